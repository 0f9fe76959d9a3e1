"""Faults of brokers (their kinds are in ``broker_plan``), and their repair.

At most one disk is lost or damaged at a time. The partitions of the disk must have another replica that may lead;
otherwise no recovery would be possible. A disk counts as recovered when every in-sync set is full again.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlterPartitionReassignments,
    AlterResource,
    ConfigOp,
    ElectionType,
    ElectLeaders,
    OpKind,
    Reassignment,
)
from headrace_core.errors import HeadraceError
from headrace_core.metadata import ConfigResourceType, PartitionImage
from headrace_core.testing.crashing_fs import Loss, SimulatedCrash, TraceEntry
from headrace_core.types import NO_LEADER
from tests.simulation.broker_node import ROOT, BrokerHost
from tests.simulation.broker_stories import STORIES, StoryTeller
from tests.simulation.sim_plan import Fault

if TYPE_CHECKING:
    from tests.simulation.broker_sim_world import BrokerWorld

CONTROLLER = -1
#: This share of the faults that come during a story wait for the story's end.
STORY_KEPT = 0.8
_LOSSES = (Loss.ALL, Loss.ALL, Loss.PREFIX, Loss.BLOCKS)
_CHANGES = frozenset({"write", "sync", "sync_directory", "rename", "truncate", "create", "unlink"})


class BrokerFaults:
    """``strike`` makes a fault happen; ``mend`` ends all current faults."""

    def __init__(self, world: BrokerWorld) -> None:
        self.world = world
        self._damaged: BrokerHost | None = None
        # for the damaged disk: a file, a position, and the byte at that position
        self._rotten: tuple[str, int, int] | None = None
        self._stories = StoryTeller(world, self)
        #: Faults that wait for a story to end: with too many faults a story would hardly ever reach its end.
        self._put_off: list[Fault] = []
        self._times_mended = 0

    def strike(self, fault: Fault) -> None:
        rng = random.Random(fault.seed)
        if fault.kind in STORIES:
            what = self._stories.begin(fault, rng)
        elif self._stories.is_telling and fault.amount < STORY_KEPT:
            self._put_off.append(fault)
            return
        else:
            act: Callable[[Fault, random.Random], str] = getattr(self, f"_{fault.kind}")
            what = act(fault, rng)
        if what:
            self.world.fault_happened(fault, what)

    def story_is_over(self) -> None:
        """Run the steps that were put off, one after the other."""
        for number, fault in enumerate(self._put_off):
            self.world.scheduler.after(10.0 + 30.0 * number, self._strike_late, fault, self._times_mended)
        self._put_off.clear()

    def _strike_late(self, fault: Fault, times_mended: int) -> None:
        if times_mended == self._times_mended:  # otherwise the quiet period has begun
            self.strike(fault)

    def mend(self) -> None:
        """Repair everything: network, brokers, disk space and disk speed."""
        world = self.world
        self._times_mended += 1
        self._put_off.clear()
        self._stories.stop()
        world.quality = world.plan.quality
        world.cuts.clear()
        world.lost_answers_until_ms = world.late_requests_until_ms = world.late_metadata_until_ms = 0.0
        for host in world.hosts:
            host.slow_until_ms = 0.0
            host.fs.capacity_bytes = None
            host.fs.on_operation = None
            host.fs.faults.clear()
            host.clock.drift(1.0)
            host.resume()
            if host.is_up and host.broker is not None and host.broker.wants_shutdown:
                world.scheduler.after(400.0, self._started_again, host, host.life)
            elif not host.is_up:
                host.down_until_ms = 0.0
                world.restart(host)

    def _started_again(self, host: BrokerHost, life: int) -> None:
        """End a broker that was asked to stop: kill it if it has not stopped yet, and then start it again."""
        if host.life == life and host.is_up:
            host.kill()
        if not host.is_up:
            host.down_until_ms = 0.0
            self.world.restart(host)

    # -- the network -------------------------------------------------------------------------------------------------

    def _for_a_while(self, fault: Fault, **changes: float) -> str:
        world = self.world
        before = world.quality
        world.quality = replace(before, **changes)

        def over() -> None:
            world.quality = replace(world.quality, **{name: getattr(world.plan.quality, name) for name in changes})

        world.scheduler.after(fault.for_ms, over)
        return f"{changes} for {fault.for_ms:.0f} ms"

    def _drop(self, fault: Fault, rng: random.Random) -> str:
        return self._for_a_while(fault, loss=0.02 + 0.3 * fault.amount)

    def _duplicate(self, fault: Fault, rng: random.Random) -> str:
        return self._for_a_while(fault, doubling=0.1 + 0.6 * fault.amount)

    def _reorder(self, fault: Fault, rng: random.Random) -> str:
        return self._for_a_while(fault, reordering=0.1 + 0.7 * fault.amount)

    def _delay(self, fault: Fault, rng: random.Random) -> str:
        return self._for_a_while(fault, slowness=0.1 + 0.5 * fault.amount, slow_ms=20.0 + 300.0 * fault.amount)

    def _partition(self, fault: Fault, rng: random.Random) -> str:
        """Cut some brokers off from other brokers, from the controllers or from clients, possibly in one direction
        only."""
        world = self.world
        host = self._anybody(rng, leaders=0.6)
        others = [other.number for other in world.hosts if other is not host]
        clients = [client.address for client in (*world.producers, *world.consumers)]
        apart = rng.choice([others, [*others, CONTROLLER], [CONTROLLER], [rng.choice(others)], [*others, *clients]])
        is_one_way = rng.random() < 0.4
        links = [(host.number, other) for other in apart] + (
            [] if is_one_way else [(other, host.number) for other in apart]
        )
        if is_one_way and rng.random() < 0.5:
            links = [(to, sender) for sender, to in links]
        world.cuts.update(links)

        def over() -> None:
            world.cuts.difference_update(links)

        world.scheduler.after(fault.for_ms + 100.0, over)
        if is_one_way:
            world.count("state", "asymmetric partition")
        return f"{host} {'cannot be heard by, or hear,' if is_one_way else 'is apart from'} {apart}"

    def _stream_broken(self, fault: Fault, rng: random.Random) -> str:
        connections = self.world.connections
        if not connections:
            return ""
        for connection in rng.sample(connections, max(1, int(len(connections) * fault.amount))):
            connection.close()
        return "followers' streams break"

    def _stale_replay(self, fault: Fault, rng: random.Random) -> str:
        return "old requests arrive again" if self.world.replay(1 + int(5 * fault.amount)) else ""

    def _isr_answer_lost(self, fault: Fault, rng: random.Random) -> str:
        self.world.lost_answers_until_ms = self.world.scheduler.now_ms + fault.for_ms
        return f"AlterPartition's answers are lost for {fault.for_ms:.0f} ms"

    def _isr_request_late(self, fault: Fault, rng: random.Random) -> str:
        self.world.late_requests_until_ms = self.world.scheduler.now_ms + fault.for_ms
        return f"AlterPartition is late for {fault.for_ms:.0f} ms"

    def _metadata_late(self, fault: Fault, rng: random.Random) -> str:
        self.world.late_metadata_until_ms = self.world.scheduler.now_ms + fault.for_ms
        return f"metadata is late for {fault.for_ms:.0f} ms"

    # -- processes ---------------------------------------------------------------------------------------------------

    def _anybody(self, rng: random.Random, *, leaders: float = 0.5) -> BrokerHost:
        topic = self.world.image.topic("orders")
        if topic is not None and rng.random() < leaders:
            host = self.world.host_of(topic.partitions[rng.randrange(len(topic.partitions))].leader)
            if host is not None:
                return host
        return rng.choice(self.world.hosts)

    def down(self, host: BrokerHost, for_ms: float) -> None:
        """Start the broker at this time, not before."""
        host.down_until_ms = self.world.scheduler.now_ms + for_ms
        self.world.scheduler.after(for_ms, self.world.restart, host)

    def _crash(self, fault: Fault, rng: random.Random) -> str:
        host = self._anybody(rng)
        if not host.is_up:
            return ""
        if rng.random() < 0.35:
            host.kill()
            what = "is killed"
        else:
            host.power_loss(rng.choice(_LOSSES))
            what = "loses power"
        self.down(host, fault.for_ms)
        return f"{host} {what}"

    def _torn_block(self, fault: Fault, rng: random.Random) -> str:
        """Power is lost in the middle of an operation that changes the disk."""
        host = self._anybody(rng)
        if not host.is_up:
            return ""
        countdown = rng.randrange(1, 12)
        loss = rng.choice([Loss.PREFIX, Loss.BLOCKS, Loss.BLOCKS])

        def operation(entry: TraceEntry) -> None:
            nonlocal countdown
            if entry.operation in _CHANGES or countdown <= 0:
                countdown -= 1
                if countdown <= 0:
                    host.is_losing_power = loss
                    raise SimulatedCrash("torn")

        host.fs.on_operation = operation
        return f"{host} loses power while it writes"

    def _pause(self, fault: Fault, rng: random.Random) -> str:
        host = self._anybody(rng, leaders=0.7)
        if not host.is_up or host.is_paused:
            return ""
        life = host.life
        host.pause()
        self.world.scheduler.after(fault.for_ms, lambda: host.life == life and host.resume())
        return f"{host} stands still for {fault.for_ms:.0f} ms"

    def _restart_all(self, fault: Fault, rng: random.Random) -> str:
        for host in self.world.hosts:
            if host.is_up:
                host.power_loss(rng.choice(_LOSSES))
            self.down(host, rng.uniform(20.0, 150.0))
        return "all brokers lose power"

    def _controlled_shutdown(self, fault: Fault, rng: random.Random) -> str:
        host = self._anybody(rng, leaders=0.7)
        if not host.is_up or host.broker is None:
            return ""
        host.stop_cleanly()
        self.world.scheduler.after(fault.for_ms + 300.0, self._started_again, host, host.life)
        return f"{host} is asked to stop"

    def _clock_jump(self, fault: Fault, rng: random.Random) -> str:
        host = rng.choice(self.world.hosts)
        host.clock.jump(rng.choice([-1.0, 1.0]) * 3_600_000.0 * fault.amount)
        return f"{host}: its wall clock is set"

    def _clock_drift(self, fault: Fault, rng: random.Random) -> str:
        host = rng.choice(self.world.hosts)
        host.clock.drift(0.3 + 2.5 * fault.amount)
        return f"{host}: its clock drifts"

    # -- disks -------------------------------------------------------------------------------------------------------

    def _slow_disk(self, fault: Fault, rng: random.Random) -> str:
        host = self._anybody(rng)
        host.slow_until_ms = self.world.scheduler.now_ms + fault.for_ms
        return f"{host}: its disk is slow for {fault.for_ms:.0f} ms"

    def _full_disk(self, fault: Fault, rng: random.Random) -> str:
        host = self._anybody(rng)
        fs = host.fs
        fs.capacity_bytes = fs._used_bytes + int(600 * fault.amount)

        def over() -> None:
            fs.capacity_bytes = None

        self.world.scheduler.after(fault.for_ms, over)
        return f"{host}: its disk is full for {fault.for_ms:.0f} ms"

    def _failed_flush(self, fault: Fault, rng: random.Random) -> str:
        """A flush fails in the way Linux fails it. The directory goes offline and the process ends. The next process
        continues with the contents of the page cache. At the end of the fault, the power fails."""
        host = self._anybody(rng, leaders=0.6)
        if not host.is_up:
            return ""
        world, fs, times_mended = self.world, host.fs, self._times_mended
        some_arrive = random.Random(rng.random()) if rng.random() < 0.5 else None
        ends = rng.choice([".log", ".log", ".log", ""])
        planned = fs.fail("sync", errno.EIO, nth=rng.choice([1, 1, 2, 5]), path_ends=ends, rng=some_arrive)
        evict_ms = rng.uniform(1.0, 140.0) if rng.random() < 0.3 else None
        power_ms, loss = rng.uniform(220.0, 450.0), rng.choice(_LOSSES)

        def goes_on() -> bool:
            return times_mended == self._times_mended and host.fs is fs

        def look(until_ms: float) -> None:
            if not goes_on():
                return
            if planned.seen >= planned.nth:
                world.count("state", "flush failed")
                if evict_ms is not None:
                    world.scheduler.after(evict_ms, evict)
                world.scheduler.after(power_ms, lose_power)
            elif world.scheduler.now_ms < until_ms:
                world.scheduler.after(5.0, look, until_ms)
            elif planned in fs.faults:
                fs.faults.remove(planned)

        def evict() -> None:
            if goes_on() and not host.is_up:  # a broker that reads a hole reports it as damage
                fs.evict()

        def lose_power() -> None:
            if goes_on() and host.is_up:
                world.count("state", "power lost after a failed flush")
                host.power_loss(loss)
                self.down(host, 40.0)

        look(world.scheduler.now_ms + 150.0 + fault.for_ms)
        return f"{host}: a flush is to fail"

    def _wipe(self, fault: Fault, rng: random.Random) -> str:
        host = self._anybody(rng)
        if not self.may_lose(host):
            return ""
        self.replace_disk(host, fault.for_ms)
        return f"{host} has a new disk"

    def replace_disk(self, host: BrokerHost, for_ms: float) -> None:
        """All data on a disk are lost, if ``may_lose`` allows it."""
        host.kill()
        host.new_disk()
        self._damaged, self._rotten = host, None
        self.down(host, for_ms)

    def put_at_risk(self, host: BrokerHost) -> bool:
        """Whether the disk may be replaced by an earlier copy; then no other disk is lost or damaged before all is well
        again."""
        if not self.may_lose(host):
            return False
        self._damaged, self._rotten = host, None
        return True

    def _flipped_block(self, fault: Fault, rng: random.Random) -> str:
        """Flip a bit of a log, but not in its last batch; the machine is down at that moment, so that no write hides
        the damage."""
        host = self._anybody(rng)
        path = self.rot(host, rng, only=ROOT)
        return f"{host}: a bit of {path} is flipped" if path else ""

    def rot(self, host: BrokerHost, rng: random.Random, *, only: str) -> str:
        """Flip a bit of one of a broker's logs below ``only``, if that is allowed; return the path of the log, or
        ""."""
        if not self.may_lose(host):
            return ""
        host.kill()
        logs = sorted(
            path for path, data in host.fs.files().items() if path.endswith(".log") and len(data) > 300 and only in path
        )
        path = ""
        if logs:
            path = rng.choice(logs)
            position = rng.randrange(len(host.fs.files()[path]) - 200)
            host.fs.flip(path, position, 1 << rng.randrange(8))
            host.is_rotten = True
            self._damaged, self._rotten = host, (path, position, host.fs.files()[path][position])
        self.down(host, 20.0)
        return path

    def may_lose(self, host: BrokerHost) -> bool:
        """Whether no other disk is in danger, and each partition has another replica with all committed records that
        may become leader, in any order of failures. (With min.insync.replicas=1 only the replica that failed last may
        become leader, and the damaged replica could be the one: seed 20261120428.)"""
        world = self.world
        if world.plan.unclean:
            # this replica may be the only one left that can lead, so its loss would need an operator (seed 5044)
            return False
        if int(world.image.config(ConfigResourceType.TOPIC, "orders").get("min.insync.replicas", "2")) < 2:
            return False
        topic = world.image.topic("orders")
        if topic is None:
            return False
        if self._damaged is not None:
            if world.checks.why_not_well() is not None:
                return False
            if self._damaged is not host:
                if self._is_rotten():
                    return False
                self._damaged = self._rotten = None
        return all(
            host.number not in state.replicas or self._has_other(state, host.number) for state in topic.partitions
        )

    def _is_rotten(self) -> bool:
        """Check whether the damaged bit is still in the log. The damage has no effect until the bit is read; then the
        reading broker loses the replica."""
        if self._damaged is None or self._rotten is None:
            return False
        path, position, byte = self._rotten
        data = self._damaged.fs.files().get(path, b"")
        return position < len(data) and data[position] == byte

    @staticmethod
    def _has_other(state: PartitionImage, number: int) -> bool:
        return state.leader != NO_LEADER and len([each for each in state.isr if each != number]) >= 1

    # -- operators ---------------------------------------------------------------------------------------------------

    def _membership(self, fault: Fault, rng: random.Random) -> str:
        """Reassign a partition to other brokers."""
        world = self.world
        topic = world.image.topic("orders")
        if topic is None:
            return ""
        number = rng.randrange(len(topic.partitions))
        targets = tuple(rng.sample([host.number for host in world.hosts], 3))
        request = AlterPartitionReassignments((Reassignment("orders", number, targets),))
        reply = world.decide(request)
        if isinstance(reply, HeadraceError):
            return ""
        return f"partition {number} is to be on {targets}"

    def _leader_moved(self, fault: Fault, rng: random.Random) -> str:
        """Put the replicas of a partition in another order, and elect the new first replica."""
        world = self.world
        topic = world.image.topic("orders")
        if topic is None:
            return ""
        number = rng.randrange(len(topic.partitions))
        replicas = list(topic.partitions[number].replicas)
        rng.shuffle(replicas)
        reply = world.decide(AlterPartitionReassignments((Reassignment("orders", number, tuple(replicas)),)))
        if isinstance(reply, HeadraceError):
            return ""
        world.scheduler.after(5.0, world.decide, ElectLeaders(ElectionType.PREFERRED, (("orders", number),)))
        return f"partition {number} prefers {replicas}"

    def _fast_failovers(self, fault: Fault, rng: random.Random) -> str:
        """Hold two to four elections, each before all brokers know the result of the previous election (KIP-279). Some
        leaders are killed, and other leaders are asked to stop."""
        world = self.world
        if world.image.topic("orders") is None:
            return ""
        after_ms = 0.0
        count = rng.randrange(2, 5)
        for number in range(count):
            falls = rng.random() < 0.3
            world.scheduler.after(after_ms, self._next_leader, fault._replace(seed=fault.seed + number), falls)
            after_ms += rng.choice([3.0, 12.0, 40.0, 120.0]) * rng.uniform(0.5, 1.5)
        return f"{count} elections within {after_ms:.0f} ms"

    def _next_leader(self, fault: Fault, falls: bool) -> None:
        rng = random.Random(fault.seed)
        topic = self.world.image.topic("orders")
        assert topic is not None
        host = self.world.host_of(topic.partitions[0].leader)
        if falls and host is not None and host.is_up:
            host.power_loss(rng.choice(_LOSSES))
            self.down(host, rng.uniform(5.0, 60.0))
        else:
            self._leader_moved(fault, rng)

    def _min_insync(self, fault: Fault, rng: random.Random) -> str:
        world = self.world
        value = rng.choice(["1", "2", "2", "3"])
        if value == "1" and self._damaged is not None:  # see may_lose
            return ""
        operation = ConfigOp(OpKind.SET, "min.insync.replicas", value)
        resource = (ConfigResourceType.TOPIC, "orders")
        world.decide(AlterConfigs((AlterResource(resource, (operation,)),)))
        back = ConfigOp(OpKind.SET, "min.insync.replicas", str(world.plan.min_insync))
        world.scheduler.after(fault.for_ms, world.decide, AlterConfigs((AlterResource(resource, (back,)),)))
        return f"min.insync.replicas={value} for {fault.for_ms:.0f} ms"

    def _unclean_election(self, fault: Fault, rng: random.Random) -> str:
        """All in-sync replicas fail; then an unclean election of a remaining replica is requested."""
        world = self.world
        topic = world.image.topic("orders")
        if topic is None:
            return ""
        state = topic.partitions[0]
        for number in state.isr:
            host = world.host_of(number)
            if host is not None and host.is_up and len(state.isr) < len(state.replicas):
                host.kill()
                self.down(host, fault.for_ms + 700.0)
        world.scheduler.after(fault.for_ms + 300.0, world.decide, ElectLeaders(ElectionType.UNCLEAN, (("orders", 0),)))
        return "whoever is in sync goes away"
