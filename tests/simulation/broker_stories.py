"""Stories: accidents of brokers with several steps in a certain order; a guard in the product exists for each story.

A story is a generator that yields waiting times (ms). A story chooses a partition whose replicas are all in sync, and
causes the accident with ordinary faults (cut links, lost power, slow disks, leaders asked to stop). Details are random.
Most stories end with *the last one up*: all other replicas are down, so one in-sync replica leads, and must have all
committed records.

No story loses more data than other faults do: a disk is replaced or damaged only where ``may_lose`` allows it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from headrace_controller.cluster.requests import AlterPartitionReassignments, ElectionType, ElectLeaders, Reassignment
from headrace_core.metadata import PartitionImage
from headrace_core.testing.crashing_fs import Loss, SimulatedCrash
from headrace_core.types import TopicPartition
from tests.simulation.broker_checks import damage_in
from tests.simulation.broker_node import CHECKPOINT_MS, ROOT, BrokerHost, heartbeats_ended
from tests.simulation.flush_watch import FlushWatch
from tests.simulation.sim_plan import Fault

if TYPE_CHECKING:
    from tests.simulation.broker_clients import Client
    from tests.simulation.broker_faults import BrokerFaults
    from tests.simulation.broker_sim_world import BrokerWorld

Steps = Generator[float, None, None]
#: Sees every message (sender, receiver, message) on a follower's stream before the network does; the message is lost if
#: the result is True.
Trap = Callable[[BrokerHost, BrokerHost, Any], bool]

CONTROLLER = -1
_LOSSES = (None, Loss.ALL, Loss.PREFIX, Loss.BLOCKS)


class Stage:
    """One partition, and the faults that a story may cause. The links that the story has cut work again when it is
    over."""

    def __init__(self, world: BrokerWorld, faults: BrokerFaults, rng: random.Random, *, is_read: bool) -> None:
        """``is_read``: the partition has a consumer."""
        self.world = world
        self.faults = faults
        self.rng = rng
        topic = world.image.topic("orders")
        assert topic is not None
        self.number = world.consumers[0].partition if is_read else rng.randrange(len(topic.partitions))
        self.partition = TopicPartition("orders", self.number)
        self._cuts: set[tuple[int, int]] = set()

    def tell(self, what: str) -> None:
        self.world.tell("fault", f"story of partition {self.number}: {what}")

    # -- what is so --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> PartitionImage:
        topic = self.world.image.topic("orders")
        assert topic is not None
        return topic.partitions[self.number]

    def led(self, host: BrokerHost) -> Any:
        """The host's replica, if the host considers itself the partition's leader."""
        return None if host.broker is None else host.broker.partitions.led.get(self.partition)

    def followed(self, host: BrokerHost) -> Any:
        return None if host.broker is None else host.broker.partitions.followed.get(self.partition)

    def log(self, host: BrokerHost) -> Any:
        replica = self.led(host) or self.followed(host)
        return None if replica is None or replica.log.is_closed else replica.log

    def end(self, host: BrokerHost) -> int:
        log = self.log(host)
        return -1 if log is None else int(log.log_end_offset)

    def mark(self, host: BrokerHost) -> int:
        """The high watermark that the host knows."""
        led, followed = self.led(host), self.followed(host)
        return int(led.leader.high_watermark if led else followed.high_watermark if followed else -1)

    def leads(self, host: BrokerHost) -> bool:
        replica = self.led(host)
        return replica is not None and replica.leader.leader_epoch == self.state.leader_epoch

    def cast(self) -> tuple[BrokerHost, BrokerHost, BrokerHost] | None:
        """The leader and its two followers, in random order, once all of them are healthy."""
        state = self.state
        hosts = [self.world.host_of(number) for number in state.replicas]
        if len(state.isr) < 3 or len(hosts) != 3 or state.adding or state.removing:
            return None
        found = [host for host in hosts if host is not None and host.broker is not None and not host.is_paused]
        leader = next((host for host in found if host.number == state.leader), None)
        if leader is None or len(found) < 3 or not self.leads(leader) or self.log(leader) is None:
            return None
        others = [host for host in found if host is not leader]
        followed = [self.followed(host) for host in others]
        if any(each is None or each.log.is_closed or each.leader_id != leader.number for each in followed):
            return None
        self.rng.shuffle(others)
        return leader, others[0], others[1]

    # -- what is done ------------------------------------------------------------------------------------------------

    def cut(self, one: BrokerHost, *others: BrokerHost) -> None:
        """Cut the links between hosts: no messages arrive, and their streams break."""
        world = self.world
        for other in others:
            self._cut(one.number, other.number, both=True)
            for connection in list(world.connections):
                if {connection.leader, connection.follower} == {one, other}:
                    connection.close()

    def _cut(self, one: int, other: int, *, both: bool) -> None:
        links = {(one, other), (other, one)} if both else {(one, other)}
        self._cuts |= links
        self.world.cuts |= links

    def deafen(self, host: BrokerHost) -> None:
        """Cut the link from the controllers to a host, which can still send to the controllers."""
        self._cut(CONTROLLER, host.number, both=False)

    def silence_producers(self, host: BrokerHost) -> None:
        """Let no producer reach the host."""
        for producer in self.world.producers:
            self.cut_off(producer, host)

    def cut_off(self, client: Client, host: BrokerHost) -> None:
        self._cut(client.address, host.number, both=True)

    def fence(self, host: BrokerHost) -> None:
        """End the host's heartbeats until ``uncut``."""
        self._cut(CONTROLLER, host.number, both=True)
        ended = heartbeats_ended(host, host.broker) if host.broker is not None else None
        if ended is not None:
            self.world.decide(ended)

    def uncut(self) -> None:
        self.world.cuts -= self._cuts
        self._cuts.clear()

    def trap(self, trap: Trap) -> None:
        self.world.traps.append(trap)

    def release(self) -> None:
        self.world.traps.clear()
        self.world.held_requests = None

    def down(self, host: BrokerHost, for_ms: float, loss: Loss | None = None) -> None:
        """Kill the host's process, or (``loss``) cut its power; the host is started later."""
        if host.is_up:
            if loss is None:
                host.kill()
            else:
                host.power_loss(loss)
        self.faults.down(host, for_ms)

    def prefer(self, *hosts: BrokerHost) -> None:
        """Make the first of these hosts the leader if it is in sync."""
        order = tuple(host.number for host in hosts)
        self.world.decide(AlterPartitionReassignments((Reassignment("orders", self.number, order),)))
        self.world.decide(ElectLeaders(ElectionType.PREFERRED, (("orders", self.number),)))

    def until(
        self, condition: Callable[[], bool], at_most_ms: float, step_ms: float = 1.0
    ) -> Generator[float, None, bool]:
        waited = 0.0
        while not condition():
            if waited >= at_most_ms:
                return False
            yield step_ms
            waited += step_ms
        return True

    def last_one_up(self, host: BrokerHost, *others: BrokerHost) -> Steps:
        """Stop all other replicas; an in-sync replica then leads."""
        self.tell(f"{host} is the last one up")
        down_ms = self.rng.uniform(600.0, 900.0)
        for other in others:
            self.down(other, down_ms, self.rng.choice(_LOSSES))
        yield from self.until(lambda: self.leads(host), down_ms - 50.0, 5.0)
        self.uncut()
        self.release()


Story = Callable[[Stage, BrokerHost, BrokerHost, BrokerHost], Steps]


class StoryTeller:
    """Runs one story at a time; ``stop`` ends the story and repairs the links that it has cut."""

    def __init__(self, world: BrokerWorld, faults: BrokerFaults) -> None:
        self._world = world
        self._faults = faults
        self._steps: Steps | None = None
        self._stage: Stage | None = None
        self._number = 0

    @property
    def is_telling(self) -> bool:
        return self._steps is not None

    def begin(self, fault: Fault, rng: random.Random) -> str:
        if self._steps is not None or self._world.image.topic("orders") is None:
            return ""
        self._stage = Stage(self._world, self._faults, rng, is_read=fault.kind == "reader_overtaken")
        self._steps = self._tell(STORIES[fault.kind], self._stage, fault.kind)
        self._number += 1
        self._go_on(self._number)
        return "begins" if self._steps is not None else ""

    def _tell(self, story: Story, stage: Stage, name: str) -> Steps:
        cast = stage.cast()
        for _ in range(40):
            if cast is not None:
                break
            yield 10.0
            cast = stage.cast()
        if cast is None:
            return
        stage.tell(f"{name}: {cast[0]} leads, {cast[1]} and {cast[2]} follow")
        yield from story(stage, *cast)
        self._world.count("story", name)

    def _go_on(self, number: int) -> None:
        if self._steps is None or number != self._number:
            return
        delay_ms = next(self._steps, None)
        if delay_ms is None:
            self.stop()
            self._faults.story_is_over()
        else:
            self._world.scheduler.after(delay_ms, self._go_on, number)

    def stop(self) -> None:
        if self._steps is None or self._stage is None:
            return
        self._steps.close()
        self._steps = None
        self._stage.uncut()
        self._stage.release()


# ---------------------------------------------------------------------------------------------- page caches and disks


def page_cache(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """A replica's disk is slow, so its writes stay in the page cache for long. The replica is paused, and the other
    replicas go down. After that the paused replica, which is the last running replica, loses power. The paused replica
    is also the first replica to start again. Records that the paused replica acknowledged before they were fsynced are
    lost."""
    rng, world = stage.rng, stage.world
    victim = rng.choice([leader, one])
    rest = [host for host in (leader, one, other) if host is not victim]
    victim.slow_until_ms = world.scheduler.now_ms + 800.0
    log = stage.log(victim)

    def is_ahead_of_its_disk() -> bool:
        replica = stage.led(leader)
        if replica is None or log.is_closed:
            return True
        durable = [each.durable_end for each in replica.leader.progress if each.broker_id != victim.number]
        return log.log_end_offset > log.flushed_end and min(durable) > log.flushed_end

    for _ in range(rng.choice([1, 2])):  # the second time its disk is busy with a longer turn
        yield from stage.until(is_ahead_of_its_disk, 250.0, 0.5)
        yield rng.uniform(0.0, 6.0)
    if not is_ahead_of_its_disk() or log.is_closed:
        return
    victim.pause()
    stage.tell(f"{victim} stands still, with {log.log_end_offset - log.flushed_end} records that are not on its disk")
    down_ms = rng.uniform(700.0, 1_000.0)
    for host in rest:
        stage.down(host, down_ms, rng.choice(_LOSSES))
    yield from stage.until(lambda: stage.state.isr == (victim.number,), 450.0, 2.0)
    stage.down(victim, rng.uniform(10.0, 60.0), Loss.ALL)
    victim.slow_until_ms = 0.0
    yield from stage.until(lambda: stage.leads(victim), down_ms - 250.0, 5.0)


def flush_then_power(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """The order of events of the fsync bug of 2018 ("fsyncgate"): a flush of a log fails, and the process ends. The
    next process reads the page cache and gets in sync again, and more records are acknowledged. At the end, the other
    replicas go down, and the power of the first replica fails in the middle of a flush. The first two steps are
    repeated until committed records are in the page cache only (``flush_watch``)."""
    rng, world = stage.rng, stage.world
    truth = world.checks.truths[stage.number]
    for attempt in range(8):
        # The next leader may truncate records that a leader has not forced; records that it has sent to a follower
        # stay.
        victim = one if attempt else rng.choice([leader, one, one])
        watch = FlushWatch(victim.fs, f"{ROOT}/{stage.partition.topic}-{stage.number}/", rng)
        yield from stage.until(lambda watch=watch: watch.has_failed, 1_500.0)  # type: ignore[misc]
        yield from stage.until(lambda victim=victim: not victim.is_up, 600.0)  # type: ignore[misc]
        watch.process_ended()

        def is_back(victim: BrokerHost = victim, watch: FlushWatch = watch) -> bool:
            ends = stage.end(victim), stage.mark(victim), truth.end
            return watch.is_at_stake and victim.number in stage.state.isr and min(ends) >= watch.end_offset

        if watch.is_at_stake and (yield from stage.until(is_back, 1_500.0, 2.0)):
            break
        watch.stop()
        cast = None
        for _ in range(150):
            cast = cast or stage.cast()
            if cast is None:
                yield 10.0
        if cast is None:
            return
        leader, one, other = cast
    else:
        return
    stage.tell(f"{victim} has read {watch.records_at_stake} records that only its page cache had")
    world.count("flush", "failed")
    world.count("flush", "page cache read")
    world.coverage["flush", "records at stake"] += watch.records_at_stake
    end = truth.end

    def has_more() -> bool:
        # The leader may drop the victim from the ISR once more; only a replica in the ISR leads after the others.
        return truth.end > end and stage.end(victim) >= truth.end and victim.number in stage.state.isr

    yield from stage.until(has_more, 1_500.0)
    down_ms = rng.uniform(1_500.0, 1_800.0)
    for host in (leader, one, other):
        if host is not victim:
            stage.down(host, down_ms, rng.choice(_LOSSES))
    yield from stage.until(lambda: stage.state.isr == (victim.number,) and stage.leads(victim), 900.0, 2.0)
    life = victim.life

    def power_fails() -> None:
        victim.is_losing_power = Loss.ALL
        raise SimulatedCrash("power fails before the flush")

    acknowledged = truth.end > end
    watch.fail_power(power_fails)
    yield from stage.until(lambda: victim.life > life and stage.leads(victim), down_ms - 950.0, 2.0)
    if acknowledged and watch.has_lost_power and watch.is_at_stake:
        world.count("flush", "power lost")
    yield from stage.until(lambda: stage.leads(victim), 600.0, 5.0)


def new_disk_back(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """KIP-903: a replica has all committed records, and producers have stopped. The replica's disk is replaced, and the
    replica starts again. The replica's acknowledgements from before the replacement would be enough to count the
    replica as in sync."""
    stage.silence_producers(leader)

    def is_calm() -> bool:
        replica = stage.led(leader)
        return replica is None or all(
            each.durable_end == replica.leader.high_watermark == each.log_end for each in replica.leader.progress
        )

    yield from stage.until(is_calm, 300.0, 2.0)
    if stage.end(leader) < 1 or not stage.faults.may_lose(one):
        return
    before = stage.world.image.brokers[one.number].broker_epoch
    stage.cut(one, leader, other)
    stage.faults.replace_disk(one, 10.0)
    stage.tell(f"{one} has a new disk, and reaches nobody")

    def is_back() -> bool:
        broker = stage.world.image.brokers.get(one.number)
        return broker is not None and broker.active and broker.broker_epoch != before

    if not (yield from stage.until(is_back, 900.0, 5.0)):
        return
    yield stage.rng.uniform(30.0, 250.0)
    if stage.leads(leader):
        yield from stage.last_one_up(one, leader, other)


def rotten_follower(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """A follower's log turns out to be damaged, so the follower starts with an empty log. All replicas except the
    damaged follower fail at the same moment."""
    path = stage.faults.rot(one, stage.rng, only=f"{ROOT}/{stage.partition.topic}-{stage.number}/")
    if not path:
        return
    stage.tell(f"{one}: a bit of {path} is flipped")
    yield 25.0
    yield from stage.until(lambda: stage.log(one) is not None and one.number in stage.state.isr, 1_000.0, 5.0)
    log = stage.log(one)
    damage = None if log is None else damage_in(log)
    if damage is None or one.loop is None or one.broker is None:
        return
    one.loop.run(one.broker.roles.quarantine, log, damage)
    empty = stage.until(lambda: stage.log(one) is not None and stage.log(one) is not log, 700.0, 0.3)
    if not (yield from empty):
        return
    stage.cut(one, leader, other)
    yield stage.rng.choice([0.0, 1.0, 5.0])
    yield from stage.last_one_up(one, leader, other)


def old_copy(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """A broker is the last one up, and returns first, with an earlier copy of its disk. If it has served in a later
    epoch since the copy, the controllers must not elect it. Otherwise the epoch is right: it leads, and must give way
    when a follower refuses to truncate what was committed. Without another eligible replica nobody could tell: such
    copies are counted, and not restored."""
    rng, world = stage.rng, stage.world
    victim = rng.choice([leader, one])
    rest = [host for host in (leader, one, other) if host is not victim]
    if not stage.faults.put_at_risk(victim):
        return
    copy = victim.fs.crash_clone(rng, rng.choice([Loss.ALL, Loss.PREFIX]))
    is_older = rng.random() < 0.5
    life = victim.life

    def is_in_sync() -> bool:
        return victim.is_up and victim.life > life - (not is_older) and victim.number in stage.state.isr

    if is_older:
        stage.down(victim, rng.uniform(10.0, 60.0), rng.choice(_LOSSES))
    end = world.checks.truths[stage.number].end
    has_more = stage.until(
        lambda: is_in_sync() and min(stage.mark(host) for host in rest) > end + 1 and len(stage.state.isr) == 3, 900.0
    )
    if not (yield from has_more):
        return
    if not is_older:
        yield 2 * CHECKPOINT_MS  # a follower remembers what was committed as of its last checkpoint
    down_ms = rng.uniform(600.0, 800.0)
    for host in rest:
        stage.down(host, down_ms + rng.uniform(0.0, 200.0), rng.choice(_LOSSES))
    if not (yield from stage.until(lambda: stage.state.isr == (victim.number,), 500.0, 2.0)):
        return
    if not is_older and not stage.state.elr:
        world.count("copy", "undetectable")
        return
    victim.kill()
    victim.restore(copy, is_older=is_older)
    for client in (*world.producers, *world.consumers):
        stage.cut_off(client, victim)
    stage.faults.down(victim, rng.uniform(5.0, 40.0))
    world.count("copy", "older" if is_older else "of the present epoch")
    stage.tell(f"{victim} is back with a copy of its disk, {'older' if is_older else 'of the present epoch'}")
    yield from stage.until(lambda: not any(host.is_up for host in rest) or stage.cast() is not None, 300.0, 5.0)
    yield from stage.until(lambda: stage.cast() is not None, 1_500.0, 5.0)


# ---------------------------------------------------------------------------------------------- where logs part


def handed_over_twice(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """KIP-101: the leadership moves to a replica that does not know the latest high watermark yet. The third replica
    also does not know the latest high watermark. The new leader fails before it learns the high watermark."""

    def is_ahead() -> bool:
        return stage.mark(leader) > max(stage.mark(one), stage.mark(other))

    if not (yield from stage.until(is_ahead, 300.0, 0.4)):
        return
    leader.pause()
    stage.silence_producers(other)
    stage.prefer(other, one, leader)
    answered: list[int] = []

    def one_answer(sender: BrokerHost, to: BrokerHost, message: Any) -> bool:
        if sender is not other or to is not one:
            return False
        if getattr(message, "joined", ()):
            answered.append(1)
            return len(answered) > 1
        return bool(answered)

    stage.trap(one_answer)
    stage.tell(f"{other} is to lead, {leader} stands still, and knows that {stage.mark(leader)} is committed")
    yield from stage.until(lambda: bool(answered) or not other.is_up, 250.0, 0.5)
    yield stage.rng.uniform(5.0, 40.0)
    if answered:
        yield from stage.last_one_up(one, leader, other)
    else:
        leader.resume()


def lonely_leader(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """KIP-279: a replica leads alone for a moment, writes, and fails. The other replicas never learn of that epoch, and
    continue to write; then the first replica starts again, with a log that is not longer than the other logs."""
    rng = stage.rng
    stage.cut(one, leader, other)
    stage.prefer(one, other, leader)

    def has_written() -> bool:
        replica = stage.led(one)
        if replica is None:
            return not one.is_up
        return bool(replica.log.flushed_end > replica.leader.epoch_start)

    if not (yield from stage.until(has_written, 500.0, 2.0)) or not one.is_up:
        return
    end = stage.end(one)
    stage.tell(f"{one} has led alone, up to {end}")
    stage.down(one, 900.0, rng.choice(_LOSSES))
    yield from stage.until(lambda: max(stage.end(leader), stage.end(other)) > end, 700.0, 2.0)
    yield rng.choice([0.0, 5.0, 30.0])
    stage.uncut()
    one.down_until_ms = 0.0
    stage.world.restart(one)
    yield rng.uniform(100.0, 400.0)


def cut_and_back(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """Batches of an idempotent producer are truncated, and then sent again to the same broker, which leads again: it
    must accept them as new batches."""
    rng, world = stage.rng, stage.world
    writers = [each for each in world.producers if each.kind == "idempotent" and each.partition == stage.number]
    if not writers:
        return
    before = stage.end(leader)
    stage.cut(leader, one, other)
    if not (yield from stage.until(lambda: not leader.is_up or stage.end(leader) > before, 120.0, 1.0)):
        return
    stage.silence_producers(one)
    stage.prefer(one, leader, other)
    stage.tell(f"{leader} has written alone up to {stage.end(leader)}, and {one} is to lead")
    yield from stage.until(lambda: stage.followed(leader) is not None and stage.leads(one), 300.0, 2.0)
    stage.uncut()
    stage.silence_producers(one)
    yield from stage.until(
        lambda: stage.end(leader) <= stage.end(one) and stage.followed(leader) is not None, 300.0, 2.0
    )
    yield rng.choice([1.0, 10.0, 40.0])
    stage.prefer(leader, one, other)
    yield rng.uniform(20.0, 60.0)
    stage.uncut()
    yield rng.uniform(100.0, 500.0)


# ---------------------------------------------------------------------------------------------- who is in sync


def _leave(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Generator[float, None, bool]:
    """A follower leaves the in-sync set, because it was killed and restarted, or lags; it reaches no other replica, and
    records are committed without it. Return whether the follower has left the in-sync set and records are committed
    without it."""
    end = stage.end(one)
    if stage.rng.random() < 0.7:
        stage.down(one, stage.rng.uniform(20.0, 150.0))
    stage.cut(one, leader, other)

    def has_left() -> bool:
        return one.number not in stage.state.isr and stage.followed(one) is not None and stage.mark(leader) > end

    return (yield from stage.until(lambda: has_left() or not leader.is_up, 1_500.0, 0.4)) and stage.leads(leader)


def _answers_are_lost(stage: Stage, sender: BrokerHost, to: BrokerHost) -> None:
    """Drop the messages that ``sender`` sends on the stream of its follower ``to``."""
    stage.trap(lambda speaker, hearer, message: speaker is sender and hearer is to)


def _is_in_sync(stage: Stage, host: BrokerHost, at_most_ms: float) -> Generator[float, None, bool]:
    return (yield from stage.until(lambda: host.number in stage.state.isr, at_most_ms, 1.0))


def asked_and_gone(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """KIP-497: a follower is in sync again; its leader requests its addition from the controllers, and receives no
    answer. The follower fails, and the leader continues without it. The story tests whether the leader may commit
    records."""
    if not (yield from _leave(stage, leader, one, other)):
        return
    stage.uncut()

    def is_asked_for() -> bool:
        replica = stage.led(leader)
        asked = None if replica is None else replica.leader._in_sync.asked
        return replica is None or (asked is not None and one.number in asked.members)

    if not (yield from stage.until(is_asked_for, 900.0, 0.3)) or stage.led(leader) is None:
        return
    stage.deafen(leader)
    if not (yield from _is_in_sync(stage, one, 150.0)) or stage.led(leader) is None:
        return
    stage.cut(one, leader, other)
    end = stage.end(one)
    stage.tell(f"{one} is in sync, up to {end}, which {leader} does not hear; and it is gone")
    within_ms = stage.rng.choice([700.0, 900.0])
    yield from stage.until(lambda: stage.mark(leader) > end or not leader.is_up, within_ms, 2.0)
    if leader.is_up:
        yield from stage.last_one_up(one, leader, other)


def refused_then_granted(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """KIP-497: the leader's request to add a follower is delayed in a connection. A later request is refused, because
    the follower has already been fenced. At the end, the follower works again, and the delayed request arrives. The
    story tests whether the leader may commit records without the follower."""
    if not (yield from _leave(stage, leader, one, other)):
        return
    world = stage.world
    stage.uncut()
    held = world.held_requests = []

    def open_question() -> Any:
        replica = stage.led(leader)
        return None if replica is None else replica.leader._in_sync.asked

    def is_fenced() -> bool:
        broker = world.image.brokers.get(one.number)
        return broker is None or broker.fenced

    def is_uncertain() -> bool:
        replica = stage.led(leader)
        return replica is None or (replica.leader._in_sync.is_uncertain and one.number in replica.leader.maximal_isr)

    if not (yield from stage.until(lambda: open_question() is not None, 400.0, 1.0)):
        return
    stage.fence(one)
    yield from stage.until(lambda: is_uncertain() and is_fenced(), 900.0, 1.0)
    world.held_requests = None
    epoch = stage.state.partition_epoch
    if not is_fenced() or not stage.leads(leader) or open_question() is None:
        return
    yield from stage.until(lambda: open_question() is None or stage.state.partition_epoch != epoch, 400.0, 0.5)
    stage.uncut()
    stage.deafen(leader)
    stage.cut(one, leader, other)
    yield from stage.until(lambda: not is_fenced(), 700.0, 1.0)
    for request in held:
        world.decide(request)
    end = stage.end(one)
    stage.tell(f"{one} ends at {end}; {len(held)} held requests have arrived, in sync are {stage.state.isr}")
    yield from stage.until(lambda: stage.mark(leader) > end or not leader.is_up, 300.0, 2.0)
    if leader.is_up:
        yield from stage.last_one_up(one, leader, other)


def behind_the_mark(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """KIP-497: a follower that lacks committed records joins its leader, whose answers do not reach it."""
    if not (yield from _leave(stage, leader, one, other)):
        return
    stage.tell(f"{one} is out of sync and ends at {stage.end(one)}, and {stage.mark(leader)} is committed")
    stage.uncut()
    _answers_are_lost(stage, leader, one)
    yield from _is_in_sync(stage, one, stage.rng.choice([100.0, 300.0]))
    if stage.leads(leader) and one.is_up:
        yield from stage.last_one_up(one, leader, other)


def behind_the_epoch(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """KIP-497, KIP-966: the leader fails as soon as it has committed records without a follower. The next leader does
    not know that these records are committed, and the follower joins it: the follower has all records that this leader
    considers committed."""
    if not (yield from _leave(stage, leader, one, other)):
        return
    stage.tell(f"{one} is out of sync and ends at {stage.end(one)}, and {stage.mark(leader)} is committed")
    stage.down(leader, 1_500.0, stage.rng.choice(_LOSSES))
    yield from stage.until(lambda: stage.leads(other), 800.0, 1.0)
    stage.uncut()
    _answers_are_lost(stage, other, one)
    yield from _is_in_sync(stage, one, stage.rng.choice([150.0, 400.0]))
    if other.is_up and one.is_up:
        yield from stage.last_one_up(one, leader, other)


def behind_the_start(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """While a follower is away, an operator deletes all records, and the producers stop. The follower begins again at
    the leader's log start, and leads next: it must know the producers of the deleted records. The story runs only where
    an operator deletes records."""
    deleters = stage.world.deleters
    if not deleters or not (yield from _leave(stage, leader, one, other)):
        return
    stage.silence_producers(leader)
    yield from stage.until(lambda: stage.mark(leader) == stage.end(leader), 300.0, 1.0)
    start = stage.mark(leader)
    if not stage.leads(leader) or start <= stage.end(one):
        return
    deleters[0].delete(leader, stage.number, start)
    stage.tell(f"{one} ends at {stage.end(one)}, and all before {start} is deleted")
    log = stage.log(leader)
    yield from stage.until(lambda: log.is_closed or log.log_start_offset >= start, 300.0, 1.0)
    stage.uncut()
    for host in (leader, one, other):
        stage.silence_producers(host)
    if (yield from _is_in_sync(stage, one, 900.0)) and one.is_up:
        yield from stage.last_one_up(one, leader, other)


# ---------------------------------------------------------------------------------------------- readers


def reader_overtaken(stage: Stage, leader: BrokerHost, one: BrokerHost, other: BrokerHost) -> Steps:
    """KIP-320: a consumer has read records that an unclean election truncates, and the new leader's log grows beyond
    the consumer's position. The consumer must notice the truncation. The story runs only where unclean elections are
    allowed."""
    world = stage.world
    if not (yield from _leave(stage, leader, one, other)):
        return
    end = stage.end(one)
    readers = [each for each in world.consumers if each.partition == stage.number]
    if not readers:
        return
    yield from stage.until(lambda: any(each.position > end for each in readers), 400.0, 2.0)
    stage.down(leader, 2_500.0, stage.rng.choice(_LOSSES))
    stage.down(other, 150.0, stage.rng.choice(_LOSSES))
    stage.uncut()
    for reader in readers:  # any broker would redirect it to the leader
        stage.cut_off(reader, other)
    stage.tell(f"{one} is asked to lead, with {end} records; readers are at {[each.position for each in readers]}")
    yield 120.0
    world.decide(ElectLeaders(ElectionType.UNCLEAN, (("orders", stage.number),)))
    yield from stage.until(lambda: stage.mark(one) > max(each.position for each in readers), 1_200.0, 5.0)
    yield stage.rng.uniform(150.0, 500.0)


STORIES: dict[str, Story] = {
    story.__name__: story
    for story in (
        page_cache,
        flush_then_power,
        new_disk_back,
        rotten_follower,
        old_copy,
        handed_over_twice,
        lonely_leader,
        cut_and_back,
        asked_and_gone,
        refused_then_granted,
        behind_the_mark,
        behind_the_epoch,
        behind_the_start,
        reader_overtaken,
    )
}
