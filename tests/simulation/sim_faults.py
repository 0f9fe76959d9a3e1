"""The kinds of faults, and what they do to a world.

A fault chooses its victims when it strikes, with its own random numbers, among the victims that exist then. A fault
without a victim does not count. Each fault repairs its damage after ``for_ms``; a quiet period repairs all damage.

Disks are lost (wiped, or damaged where recovery must notice) only while every set of voters that may count keeps more
than half of its disks. With fewer disks, no recovery would be possible.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_controller.raft import EntryKind
from headrace_core.testing.crashing_fs import Loss
from headrace_core.testing.network import Quality
from tests.simulation.sim_copies import Copy
from tests.simulation.sim_directed import DIRECTED
from tests.simulation.sim_pair_stories import PAIR_STORIES
from tests.simulation.sim_plan import Fault
from tests.simulation.sim_stories import STORIES

if TYPE_CHECKING:
    from tests.simulation.sim_controllers import ControllerHost
    from tests.simulation.sim_world import ControllersWorld

_HOUR_MS = 3_600_000.0
_ALL = 1 << 30  #: How often a planned failure happens: always.


class Faults:
    """Strikes the faults of a plan; ``strike`` is called at each fault's time."""

    def __init__(self, world: ControllersWorld) -> None:
        self.world = world
        self._noise: dict[int, tuple[str, float]] = {}
        world.mend_all.append(self._mend_network)
        world.mend_all.append(self._mend_flushes)

    def strike(self, fault: Fault) -> None:
        if self.world.is_quiet or self.world.is_healing:
            return
        rng = random.Random(fault.seed)
        story = {**STORIES, **PAIR_STORIES, **DIRECTED}.get(fault.kind)
        if story is not None:
            if self.world.story_teller.begin(fault, story, rng):
                self.world.fault_happened(fault, "a story begins")
            return
        what = getattr(self, f"_{fault.kind}")(fault, rng)
        if what:
            self.world.fault_happened(fault, what)

    def _later(self, delay_ms: float, action: Callable[..., object], *arguments: object) -> None:
        self.world.scheduler.after(delay_ms, action, *arguments)

    # -- the victims
    # -----------------------------------------------------------------------------------------------------

    def _some(self, rng: random.Random, *, leaders: float = 0.4) -> ControllerHost | None:
        """A controller that is up: with this probability the leader, otherwise any controller."""
        up = self.world.up()
        if not up:
            return None
        leader = self.world.leader()
        if leader is not None and rng.random() < leaders:
            return leader
        return rng.choice(up)

    # -- the network --------------------------------------------------------------------------------------------------

    def _drop(self, fault: Fault, rng: random.Random) -> str:
        return self._noisy(fault, "drop")

    def _duplicate(self, fault: Fault, rng: random.Random) -> str:
        return self._noisy(fault, "duplicate")

    def _reorder(self, fault: Fault, rng: random.Random) -> str:
        return self._noisy(fault, "reorder")

    def _delay(self, fault: Fault, rng: random.Random) -> str:
        return self._noisy(fault, "delay")

    def _noisy(self, fault: Fault, kind: str) -> str:
        """A fault that lasts for a while; it is counted at its end, if it has affected a message."""
        world, before = self.world, self.world.happened[kind]
        self._noise[fault.number] = (kind, fault.amount)
        self._make_noise()

        def over() -> None:
            self._noise.pop(fault.number, None)
            self._make_noise()
            struck = world.happened[kind] - before
            if struck:
                world.fault_happened(fault, f"{struck} messages in {fault.for_ms:.0f} ms")

        self._later(fault.for_ms, over)
        return ""

    def _make_noise(self) -> None:
        quality = self.world.plan.quality
        if self._noise:
            strength = {kind: max(a for k, a in self._noise.values() if k == kind) for kind, _ in self._noise.values()}
            quality = Quality(
                delay_min_ms=quality.delay_min_ms,
                delay_max_ms=quality.delay_max_ms,
                loss=0.02 + 0.4 * strength["drop"] ** 2 if "drop" in strength else 0.0,
                doubling=0.02 + 0.4 * strength["duplicate"] if "duplicate" in strength else 0.0,
                reordering=0.05 + 0.5 * strength["reorder"] if "reorder" in strength else 0.0,
                slowness=0.05 + 0.4 * strength["delay"] if "delay" in strength else 0.0,
                slow_ms=20.0 + 600.0 * strength.get("delay", 0.0) ** 2,
            )
        self.world.net.quality = quality
        self.world.calls.quality = replace(quality, doubling=0.0, reordering=0.0)

    def _mend_network(self) -> None:
        self._noise.clear()
        self._make_noise()

    def _partition(self, fault: Fault, rng: random.Random) -> str:
        world = self.world
        nodes = list(world.hosts)
        if len(nodes) < 2:
            return ""
        leader = world.leader()
        shape = rng.random()
        if shape < 0.3 and leader is not None:
            apart = {leader.node_id}
        elif shape < 0.5:
            apart = {rng.choice(nodes)}
        else:
            apart = set(rng.sample(nodes, rng.randrange(1, len(nodes))))
        links = [(a, b) for a in nodes for b in nodes if a in apart and b not in apart]
        back = [(b, a) for a, b in links]
        names = ",".join(map(str, sorted(apart)))
        direction = rng.random()
        if direction < 0.6:
            links, what = links + back, f"{names} apart from the others"
        elif direction < 0.8:
            what = f"{names} not heard by the others"
        else:
            links, what = back, f"{names} hearing nothing of the others"
        if rng.random() < 0.2 and len(links) > 2:
            links, what = rng.sample(links, len(links) // 2), "half of the links between two parts"
        world.cut(links)
        self._later(fault.for_ms, world.mend, links)
        if direction >= 0.6:
            world.count("state", "asymmetric partition")
        return what

    def _peer_lost(self, fault: Fault, rng: random.Random) -> str:
        """Break a connection for a while."""
        world, one = self.world, self._some(rng)
        others = [host for host in world.up() if host is not one]
        if one is None or not others:
            return ""
        other = rng.choice(others)
        for a, b in ((one, other), (other, one)):
            world.net.reset(a.node_id, b.node_id)
            self._later(rng.random(), world.lose, a, b.key)
        self._later(20.0 + 100.0 * rng.random(), world.connect, one, other)
        return f"between {one.node_id} and {other.node_id}"

    def _stale_replay(self, fault: Fault, rng: random.Random) -> str:
        world = self.world
        count = world.net.replay(1 + int(fault.amount * 20))
        late = 0
        for _ in range(int(fault.amount * 6)):
            if world.past_calls:
                target, request = rng.choice(world.past_calls)
                leader = world.leader()
                world.call(99, leader.node_id if leader is not None else target, request, lambda result: None)
                late += 1
        return f"{count} old messages and {late} old requests arrive" if count else ""

    # -- processes and machines ---------------------------------------------------------------------------------------

    def _crash(self, fault: Fault, rng: random.Random) -> str:
        host = self._some(rng)
        if host is None:
            return ""
        loss = rng.choice([Loss.NONE, Loss.ALL, Loss.PREFIX, Loss.BLOCKS])
        self.world.crash_now(host, loss, down_ms=fault.for_ms * 0.7)
        return f"{host} " + ("is killed" if loss is Loss.NONE else f"loses power (unsynced bytes: {loss.value} lost)")

    def _restart_all(self, fault: Fault, rng: random.Random) -> str:
        """All machines lose power at once."""
        struck = self.world.up()
        for host in struck:
            self.world.crash_now(host, self.world.draw_loss(rng), down_ms=10.0 + 300.0 * rng.random())
        return f"{len(struck)} controllers lose power" if struck else ""

    def _torn_block(self, fault: Fault, rng: random.Random) -> str:
        """The power fails in the middle of a write: only a part of the data reaches the disk."""
        host = self._some(rng)
        if host is None:
            return ""
        fs, at = host.fs, host.fs.operations + rng.randrange(5)
        fs.crash_at(at)
        host.torn_by = (fault, rng.choice([Loss.PREFIX, Loss.BLOCKS]))
        return ""  # counted when it has struck

    def _pause(self, fault: Fault, rng: random.Random) -> str:
        host = self._some(rng)
        if host is None or host.is_paused:
            return ""
        host.pause()
        self._later(fault.for_ms, host.resume)
        return f"{host} stands still for {fault.for_ms:.0f} ms"

    def _clock_jump(self, fault: Fault, rng: random.Random) -> str:
        host = self._some(rng)
        if host is None:
            return ""
        if rng.random() < 0.3:
            ms = 5_000.0 * fault.amount
            host.clock.leap(ms)
            what = f"the monotonic clock of {host} leaps {ms:.0f} ms"
        else:
            ms = rng.choice([-24 * _HOUR_MS, -_HOUR_MS, -1_500.0, 1_500.0, _HOUR_MS, 24 * _HOUR_MS])
            host.clock.jump(ms)
            what = f"the wall clock of {host} is set by {ms / 1_000:.0f} s"
        host.replan()
        return what

    def _clock_drift(self, fault: Fault, rng: random.Random) -> str:
        host = self._some(rng)
        if host is None:
            return ""
        rate = rng.choice([0.3, 0.7, 1.5, 3.0])
        host.clock.drift(rate)
        host.replan()

        def straight() -> None:
            host.clock.drift(1.0)
            host.replan()

        self._later(fault.for_ms, straight)
        return f"the clock of {host} runs at {rate} of its pace for {fault.for_ms:.0f} ms"

    # -- disks --------------------------------------------------------------------------------------------------------

    def may_lose(self, host: ControllerHost) -> bool:
        """See the module."""
        world = self.world
        if world.operator.is_waiting:
            return False
        sets = [voters for each in world.hosts.values() for voters in each.known_sets()]
        sets += [entry.voters for entry in world.checks.history if entry.kind is EntryKind.VOTERS and entry.voters][-1:]
        for voters in sets:
            if host.key not in voters:
                continue
            lost = [
                key
                for key in voters
                if world.hosts[key.node_id].key != key or world.hosts[key.node_id].record.is_damaged
            ]
            if len(lost) + 1 > (len(voters) - 1) // 2:
                return False
        return True

    def _victims(self) -> Iterable[ControllerHost]:
        return [
            host
            for host in self.world.hosts.values()
            if not host.record.is_damaged and not host.is_broken and self.may_lose(host)
        ]

    def _wipe(self, fault: Fault, rng: random.Random) -> str:
        victims = list(self._victims())
        if not victims:
            return ""
        host = rng.choice(victims)
        host.power_loss(Loss.ALL)
        old = host.key
        host.format(None)
        host.down_until_ms = self.world.now_ms + min(fault.for_ms, 300.0)
        self.world.restart_later(host, min(fault.for_ms, 300.0))
        return f"the disk of {host}, {old}, is replaced by an empty one, {host.key}"

    def _flipped_block(self, fault: Fault, rng: random.Random) -> str:
        victims = list(self._victims())
        if not victims:
            return ""
        host = rng.choice(victims)
        is_down = rng.random() < 0.7
        if is_down:
            self.world.crash_now(host, Loss.NONE, down_ms=50.0 + 200.0 * rng.random())
        what = host.flip_something(rng)
        return f"{what} of {host} is damaged{'' if is_down else ' while it runs'}" if what else ""

    def _old_copy(self, fault: Fault, rng: random.Random) -> str:
        """Copy a voter's directory, and let the voter come back with the copy after ``for_ms``."""
        world, host = self.world, self._some(rng)
        if host is None:
            return ""
        found, fs = Copy.of(host, rng), host.fs

        def restore() -> None:
            if world.is_quiet or world.is_healing or host.fs is not fs or host.record.is_damaged or host.is_broken:
                return
            if not self.may_lose(host):
                return
            is_used = host.restore(found)
            host.down_until_ms = world.now_ms + 5.0
            world.restart_later(host, 5.0)
            if is_used:
                world.fault_happened(fault, f"{host} comes back with its directory of {fault.for_ms:.0f} ms ago")

        self._later(fault.for_ms, restore)
        return ""  # counted when it has struck

    def _full_disk(self, fault: Fault, rng: random.Random) -> str:
        """No room for bytes, for new files, for both, or for entries (there is room for smaller files). ``soon``: other
        processes take the last room while the controller writes."""
        host = self._some(rng)
        if host is None or host.fs.capacity_bytes is not None:
            return ""
        world, fs, room_bytes = self.world, host.fs, rng.choice([0, 60, 500, 4_000])
        of = rng.choice(["bytes", "bytes and files", "files", "entries", "entries", "soon"])
        story = STORIES[rng.choice(["full_at_a_roll", "refused_term"])]
        if rng.random() < 0.5 and world.story_teller.begin(fault, story, rng):
            return "a story begins"
        when, leader = rng.random(), world.leader()
        if when < 0.35:  # full when the controller starts again, while the others have continued
            world.crash_now(host, Loss.NONE, down_ms=fault.for_ms * 0.5)
        elif when < 0.6 and leader is not None and leader is not host:  # full at the beginning of the next term
            world.crash_now(leader, Loss.NONE, down_ms=fault.for_ms * 0.5)
        if rng.random() < 0.3:
            host.killed_by = (fault, rng.choice([Loss.NONE, Loss.NONE, Loss.PREFIX, Loss.BLOCKS]))
        planned = []
        if of.startswith("bytes"):
            fs.capacity_bytes = sum(map(len, fs.files().values())) + room_bytes
        if of.endswith("files"):
            planned.append(fs.fail("create", errno.ENOSPC, times=_ALL))
        if of in ("entries", "soon"):
            planned.append(fs.fail("write", errno.ENOSPC, nth=rng.randrange(1, 5), times=_ALL, path_ends=".log"))
        if of == "soon":
            planned.append(fs.fail("create", errno.ENOSPC, nth=rng.randrange(1, 7), times=_ALL))

        def room() -> None:
            fs.capacity_bytes = None
            host.killed_by = None
            for each in planned:
                if each in fs.faults:
                    fs.faults.remove(each)

        self._later(fault.for_ms, room)
        return f"the disk of {host} is full of {of} for {fault.for_ms:.0f} ms"

    def _failed_flush(self, fault: Fault, rng: random.Random) -> str:
        """A flush fails in the way Linux fails it: the controller ends, is started again, and continues with the
        contents of the page cache; then the power fails."""
        world, host = self.world, self._some(rng, leaders=0.5)
        if host is None:
            return ""
        fs = host.fs
        some_arrive = random.Random(rng.random()) if rng.random() < 0.5 else None
        operation, ends = rng.choice([("sync", ".log"), ("sync", ".log"), ("sync", ""), ("sync_directory", "")])
        planned = fs.fail(operation, errno.EIO, nth=rng.choice([1, 1, 2, 5]), path_ends=ends, rng=some_arrive)
        evict_ms = rng.uniform(1.0, 190.0) if rng.random() < 0.3 else None
        power_ms, loss = rng.uniform(220.0, 600.0), world.draw_loss(rng)

        def look(until_ms: float) -> None:
            if planned.seen >= planned.nth:
                world.count("state", "flush failed")
                if evict_ms is not None:
                    self._later(evict_ms, evict)
                self._later(power_ms, lose_power)
            elif planned in fs.faults and world.now_ms < until_ms:
                self._later(5.0, look, until_ms)
            elif planned in fs.faults:
                fs.faults.remove(planned)

        def evict() -> None:
            if host.fs is fs and host.controller is None:  # a controller that reads a hole reports it as damage
                fs.evict()

        def lose_power() -> None:
            if host.fs is fs and host.controller is not None and not world.is_quiet and not world.is_healing:
                world.count("state", "power lost after a failed flush")
                world.crash_now(host, loss)

        look(world.now_ms + 100.0 + fault.for_ms)
        return f"a flush of {host} is to fail"

    def _mend_flushes(self) -> None:
        for host in self.world.hosts.values():
            host.fs.faults.clear()

    def _slow_disk(self, fault: Fault, rng: random.Random) -> str:
        host = self._some(rng)
        if host is None or host.is_slow:
            return ""
        host.is_slow = True

        def quick() -> None:
            host.is_slow = False

        self._later(fault.for_ms, quick)
        return f"the disk of {host} is slow for {fault.for_ms:.0f} ms"

    # -- the quorum ---------------------------------------------------------------------------------------------------

    def _membership(self, fault: Fault, rng: random.Random) -> str:
        return self.world.operator.change_membership()

    def _transfer(self, fault: Fault, rng: random.Random) -> str:
        return self.world.operator.transfer()

    # -- brokers ------------------------------------------------------------------------------------------------------

    def _broker_crash(self, fault: Fault, rng: random.Random) -> str:
        broker = rng.choice(self.world.brokers)
        if not broker.is_up:
            return ""
        broker.crash()
        self._later(fault.for_ms, broker.start)
        return f"{broker} is killed"

    def _broker_shutdown(self, fault: Fault, rng: random.Random) -> str:
        broker = rng.choice(self.world.brokers)
        if not broker.is_up or broker.wants_shutdown:
            return ""
        broker.wants_shutdown = True

        def killed() -> None:
            broker.crash()  # if it has not stopped by itself: the stop's time-out is over
            broker.start()

        self._later(fault.for_ms + 400.0, killed)
        return f"{broker} wants to stop"

    def _broker_wipe(self, fault: Fault, rng: random.Random) -> str:
        broker = rng.choice(self.world.brokers)
        if not broker.is_up:
            return ""
        broker.crash()
        broker.new_disks()
        self._later(20.0 + fault.for_ms * 0.2, broker.start)
        return f"{broker} loses its disks, and comes back with new ones"

    def _broker_cut(self, fault: Fault, rng: random.Random) -> str:
        broker = rng.choice(self.world.brokers)
        nodes = list(self.world.hosts)
        apart = nodes if rng.random() < 0.5 else rng.sample(nodes, rng.randrange(1, len(nodes) + 1))
        links = [(broker.address, node) for node in apart] + [(node, broker.address) for node in apart]
        self.world.calls.cut(links)
        self._later(fault.for_ms, self.world.calls.mend, links)
        return f"{broker} cut off from controllers {','.join(map(str, apart))}"

    def _directory_failed(self, fault: Fault, rng: random.Random) -> str:
        broker = rng.choice(self.world.brokers)
        left = [each for each in broker.directories if each not in broker.failed]
        if not broker.is_up or not left:
            return ""
        broker.failed = (*broker.failed, rng.choice(left))
        self._later(fault.for_ms + 500.0, broker.restart)
        return f"a directory of {broker} fails"
