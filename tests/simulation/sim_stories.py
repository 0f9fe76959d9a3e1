"""Stories: faults of several steps in a certain order, taken from the Raft papers, which random faults would seldom
reproduce completely. Each story is a generator that yields waiting times (ms). A story uses the means of all other
faults: messages that are lost or late, crashes, connections that break.

A *trap* sees every message of a controller before the network does; the message is not sent if the trap returns True.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_controller.raft import (
    AppendRequest,
    EntryKind,
    HeartbeatResponse,
    Message,
    VoteRequest,
    VoteResponse,
)
from headrace_core.log.epochs import LEADER_EPOCH_FILE
from headrace_core.testing.crashing_fs import Loss, SimulatedCrash
from headrace_core.testing.network import Quality
from tests.simulation.flush_watch import FlushWatch
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_clients import Read
from tests.simulation.sim_disk import ROOT
from tests.simulation.sim_plan import Fault

if TYPE_CHECKING:
    from tests.simulation.sim_controllers import ControllerHost
    from tests.simulation.sim_world import ControllersWorld

_RECORD_BYTES = 150  #: The approximate number of bytes of a record in the metadata log.
_PACE = 6.0  #: The pace of the clock of a controller that must lead soon.

Trap = Callable[["ControllerHost", Message], bool]
Story = Callable[["ControllersWorld", random.Random], Generator[float, None, None]]


class StoryTeller:
    """Runs one story at a time; ``stop`` ends the story and removes its traps."""

    def __init__(self, world: ControllersWorld) -> None:
        self.world = world
        self._steps: Generator[float, None, None] | None = None
        self._number = 0

    def begin(self, fault: Fault, story: Story, rng: random.Random) -> bool:
        if self._steps is not None:
            return False
        self._steps = story(self.world, rng)
        self._number += 1
        self._go_on(self._number)
        return True

    def _go_on(self, number: int) -> None:
        if self._steps is None or number != self._number:
            return
        delay_ms = next(self._steps, None)
        if delay_ms is None:
            self.stop()
        else:
            self.world.scheduler.after(delay_ms, self._go_on, number)

    def stop(self) -> None:
        if self._steps is not None:
            self._steps.close()
            self._steps = None
            self.world.traps.clear()
            self.world.spread = self.world.plan.spread


def _links(world: ControllersWorld, apart: list[int]) -> list[tuple[int, int]]:
    others = [node for node in world.hosts if node not in apart]
    return [(a, b) for a in apart for b in others] + [(b, a) for a in apart for b in others]


def _wait_for(condition: Callable[[], bool], at_most_ms: float, step_ms: float = 10.0) -> Generator[float, None, bool]:
    waited = 0.0
    while not condition():
        if waited >= at_most_ms:
            return False
        yield step_ms
        waited += step_ms
    return True


def _leader(world: ControllersWorld, *, but: tuple[int, ...] = ()) -> ControllerHost | None:
    found = [host for host in world.up() if host.leads and host.node_id not in but]
    return max(found, key=lambda host: host.controller.term if host.controller else -1, default=None)


def figure_8(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """5.4.2: a leader's entry reaches one other voter, and the leader dies. Another voter leads for a moment, and dies
    with an entry of its own. The first leader leads again, copies the old entry to a majority, but no entry of its new
    term, and dies. The second leader starts again. If a leader had counted the old entry as committed, it is now
    lost."""
    first = _leader(world)
    if first is None or len(first.voters()) < 3:
        return
    others = [node for node in first.voters() if node != first.node_id]
    friend = rng.choice(others)
    spared = [friend] if len(others) >= 4 else []
    world.tell("fault", f"figure 8: {first.node_id} leads, and reaches only {spared or 'nobody'}")

    def only_the_friend(host: ControllerHost, message: Message) -> bool:
        body = message.body
        return host is first and isinstance(body, AppendRequest) and message.to.node_id not in spared

    world.traps.append(only_the_friend)
    before = first.end()
    yield from _wait_for(lambda: first.end() > before + 1, 200.0)
    yield 10.0
    world.crash_now(first, Loss.NONE, down_ms=5_000.0)
    world.traps.clear()
    cut = _links(world, spared) if spared else []
    world.net.cut(cut)
    yield from _wait_for(lambda: _leader(world) is not None, 3_000.0)
    second = _leader(world)
    if second is None:
        return
    world.tell("fault", f"figure 8: {second.node_id} leads, and reaches nobody")
    world.traps.append(lambda host, message: host is second and isinstance(message.body, AppendRequest))
    yield 30.0
    world.crash_now(second, Loss.NONE, down_ms=20_000.0)
    world.traps.clear()
    world.net.mend(cut)
    first.down_until_ms = 0.0
    world.restart(first)
    for each in spared:
        world.connect(first, world.hosts[each])

    def old_entries_only(host: ControllerHost, message: Message) -> bool:
        body = message.body
        return isinstance(body, AppendRequest) and any(entry.term == body.term for entry in body.entries)

    world.traps.append(old_entries_only)
    world.tell("fault", f"figure 8: {second.node_id} is gone, {first.node_id} is back")
    yield from _wait_for(lambda: _leader(world) is not None, 4_000.0)
    third = _leader(world)
    yield 60.0 + 200.0 * rng.random()
    if third is None:
        return
    world.crash_now(third, Loss.NONE, down_ms=4_000.0)
    world.traps.clear()
    second.clock.drift(6.0)
    second.down_until_ms = 0.0
    world.restart(second)
    world.tell("fault", f"figure 8: {third.node_id} is gone, {second.node_id} is back")
    yield from _wait_for(lambda: _leader(world) is not None, 3_000.0)
    second.clock.drift(1.0)
    second.replan()
    third.down_until_ms = 0.0
    world.restart(third)


def vote_then_crash(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """5.2: a voter dies right after it has voted, and receives the request of another candidate when the voter is
    back."""
    quality = world.net.quality
    world.net.quality = Quality(20.0, 60.0)
    world.spread = 0.0
    asked: dict[int, list[Message]] = {}
    struck: list[ControllerHost] = []

    def watch(host: ControllerHost, message: Message) -> bool:
        body = message.body
        if isinstance(body, VoteRequest) and not body.is_pre_vote:
            asked.setdefault(body.term, []).append(message)
        elif isinstance(body, VoteResponse) and body.is_granted and not body.is_pre_vote and not struck:
            struck.append(host)
            world.scheduler.after(0.05, strike, host, body.term, message.to)
        return False

    def strike(host: ControllerHost, term: int, candidate: object) -> None:
        if not host.is_up:
            return
        world.tell("fault", f"{host} loses power, having voted in term {term}")
        world.crash_now(host, Loss.ALL, down_ms=1.0)
        for delay_ms in (3.0, 15.0, 45.0, 80.0):
            world.scheduler.after(delay_ms, ask_again, host, term, candidate)

    def ask_again(host: ControllerHost, term: int, candidate: object) -> None:
        for message in asked.get(term, ()):
            if message.to == host.key and message.sender != candidate and host.is_up:
                host.receive(message)

    world.traps.append(watch)
    leader = world.leader()
    if leader is not None:
        world.crash_now(leader, Loss.ALL, down_ms=rng.choice([30.0, 2_000.0]))
    yield from _wait_for(lambda: bool(struck), 2_500.0)
    yield 120.0
    world.net.quality = quality


def deposed_unaware(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """6.4 of the thesis: a leader is deposed and does not know it. Responses to its old heartbeats arrive late, and a
    client requests a read."""
    old = _leader(world)
    if old is None or len(old.voters()) < 3:
        return
    late: list[Message] = []

    def hold(host: ControllerHost, message: Message) -> bool:
        if message.to.node_id != old.node_id:
            return host is old
        if isinstance(message.body, HeartbeatResponse):
            late.append(message)
        return True

    yield 100.0 * rng.random()
    world.traps.append(lambda host, message: message.to.node_id == old.node_id and _held(late, message))
    yield 210.0
    world.traps[:] = [hold]
    for host in world.up():
        if host is not old:
            world.lose(host, old.key)
    new = yield from _wait_for(lambda: _has_newer(world, old), 800.0)
    if not new:
        return
    world.tell("fault", f"{old} is deposed and has not heard of it; old answers reach it, and a read")
    for host in world.up():
        if host.node_id == old.node_id:
            world.calls.send(98, old.node_id, Read(world, lambda result: None, 98))
    yield 5.0
    for message in late:
        if old.is_up:
            old.receive(message)
    yield 30.0


def _held(late: list[Message], message: Message) -> bool:
    if isinstance(message.body, HeartbeatResponse):
        late.append(message)
        return True
    return False


def _has_newer(world: ControllersWorld, old: ControllerHost) -> bool:
    new = _leader(world, but=(old.node_id,))
    if new is None or new.controller is None or old.controller is None:
        return False
    return new.controller.raft.has_committed_in_term and new.controller.term > old.controller.term


def cut_voters(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """4.1 of the thesis: a leader begins to change the voters, without reaching the other voters, and another leader
    makes a different change of the voters."""
    old = _leader(world)
    if old is None or old.controller is None or len(old.voters()) < 3:
        return

    def keeps_voters(host: ControllerHost, message: Message) -> bool:
        body = message.body
        return (
            host is old
            and isinstance(body, AppendRequest)
            and any(entry.kind is EntryKind.VOTERS for entry in body.entries)
        )

    world.traps.append(keeps_voters)
    world.operator.change_now(old, rng)
    yield 20.0
    world.operator.change_now(old, rng)
    yield 10.0 + 40.0 * rng.random()
    cut = _links(world, [old.node_id])
    world.cut(cut)
    for host in world.up():
        if host is not old:
            world.lose(host, old.key)
    yield from _wait_for(lambda: _leader(world, but=(old.node_id,)) is not None, 1_500.0)
    new = _leader(world, but=(old.node_id,))
    if new is not None and rng.random() < 0.6:
        world.operator.change_now(new, rng)
        yield 50.0
    world.traps.clear()
    world.mend(cut)
    yield 200.0


def transfer_lost(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """3.10 of the thesis: the leadership is transferred, and no voter receives messages of the new leader."""
    old = _leader(world)
    if old is None or len(old.voters()) < 3:
        return
    world.traps.append(lambda host, message: isinstance(message.body, VoteRequest) and message.body.is_transfer)
    world.operator.transfer()
    yield 400.0 + 300.0 * rng.random()


def removed_and_gone(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """4.2.2 of the thesis: a leader removes itself and dies; only its own log has the removal."""
    old = _leader(world)
    if old is None or old.controller is None or len(old.voters()) < 2 or not world.operator.may_remove(old):
        return
    world.traps.append(
        lambda host, message: (
            host is old
            and isinstance(message.body, AppendRequest)
            and any(entry.kind is EntryKind.VOTERS for entry in message.body.entries)
        )
    )
    world.operator.remove_now(old, old.key)
    yield 15.0 + 60.0 * rng.random()
    if old.is_up:
        world.crash_now(old, Loss.NONE, down_ms=20.0)
    yield 100.0 + 300.0 * rng.random()


def unwritten(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """etcd 14370: a leader's disk is slow. A follower has an entry, but too few other voters have it. After that the
    power fails."""
    old = _leader(world)
    if old is None or old.is_slow:
        return
    others = [node for node in old.voters() if node != old.node_id]
    some = rng.sample(others, len(others) // 2)
    old.is_slow = True
    world.traps.append(
        lambda host, message: (
            host is old
            and isinstance(message.body, AppendRequest)
            and message.to.node_id not in some
            and bool(message.body.entries)
        )
    )
    yield 60.0 + 200.0 * rng.random()
    if old.is_up:
        world.crash_now(old, Loss.ALL, down_ms=5.0)
    old.is_slow = False
    world.traps.clear()
    cut = _links(world, some)
    world.net.cut(cut)
    yield 900.0
    world.mend(cut)


def deaf_leader(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """6.2 of the thesis: a leader that can send but not receive must give up its leadership, even when old responses of
    its followers arrive a second time. The leader's clock runs ahead, so that two of its timeouts end within the
    period."""
    old = _leader(world)
    if old is None or old.controller is None or len(old.voters()) < 2 or not old.has_a_true_clock:
        return
    life, term = old.life, old.controller.term
    has_echo = rng.random() < 0.5
    pace = 3.0
    old.clock.drift(pace)
    old.replan()
    try:
        for _ in range(26):
            if has_echo:
                world.net.replay(3)
            cut = [(node, old.node_id) for node in world.hosts if node != old.node_id]
            world.net.cut(cut)
            yield 100.0 / pace
            # (a turn that waits for a slow disk does not tick)
            if old.life != life or old.is_paused or old.clock.rate != pace or len(old.voters()) < 2:
                break
            if old.is_slow or old.turn_is_slow:
                break
            if not all(world.net.is_cut(*link) for link in cut):
                break  # the end of another fault has repaired it: a follower's message arrived
            if not old.leads or old.controller.term != term:
                world.count("state", "deaf leader gave way")
                break
        else:
            raise Violation(
                "check quorum", f"{old} still leads, although it has received no message for 2.6 s of its clock (T 6.2)"
            )
        world.mend(cut)
    finally:
        if old.clock.rate == pace:
            old.clock.drift(1.0)
            old.replan()


def flush_then_power(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """The order of events of the fsync bug of 2018 ("fsyncgate"): a flush of a log fails, and the controller ends. The
    next process reads the page cache and counts the cached bytes as its log, and more entries are acknowledged. At the
    end, the controller's power fails in the middle of a flush. The first two steps are repeated until entries of the
    log are in the page cache only (``flush_watch``)."""
    for attempt in range(10):
        yield from _wait_for(lambda: _leader(world) is not None, 3_000.0)
        leader = _leader(world)
        if leader is None:
            return
        voters = [host for host in world.up() if host.node_id in leader.voters()]
        # The next leader may truncate entries that a leader has not forced; entries that it has sent to a follower
        # mostly stay.
        followers = [host for host in voters if host is not leader]
        victim = rng.choice(followers if followers and attempt else [leader, *followers, *followers])
        watch = FlushWatch(victim.fs, f"{ROOT}/__cluster_metadata-0/", rng)
        yield from _wait_for(lambda watch=watch: watch.has_failed, 3_000.0, 1.0)  # type: ignore[misc]
        if victim.controller is None:
            watch.process_ended()

        def is_back(victim: ControllerHost = victim, watch: FlushWatch = watch) -> bool:
            return watch.is_at_stake and victim.is_up and victim.record.shadow.checked >= watch.end_offset

        if watch.is_at_stake and (yield from _wait_for(is_back, 1_000.0, 1.0)):
            break
        watch.stop()
        yield 300.0
    else:
        return
    world.tell("fault", f"{victim} has read {watch.records_at_stake} records that only its page cache had")
    world.count("flush", "failed")
    world.count("flush", "page cache read")
    world.coverage["flush", "records at stake"] += watch.records_at_stake
    acknowledged, end = world.checks.writes.acknowledged, victim.end()

    def more_is_acknowledged() -> bool:
        return world.checks.writes.acknowledged > acknowledged and victim.end() > end

    acknowledges = yield from _wait_for(more_is_acknowledged, 3_000.0, 1.0)
    life = victim.life

    def power_fails() -> None:
        victim.torn_by = (Fault(0, world.now_ms, "torn_block", 0.0, 0.0, 0), Loss.ALL)
        raise SimulatedCrash("power fails before the flush")

    watch.fail_power(power_fails)
    yield from _wait_for(lambda: victim.life > life + 1 and victim.is_up, 3_000.0, 1.0)
    if acknowledges and watch.has_lost_power and watch.is_at_stake:
        world.count("flush", "power lost")


def full_at_a_roll(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """A follower starts again with a shorter log than the other voters, and its disk has no room for new files. The
    follower's first append has many entries, and the log must roll in the middle of them."""
    leader = _leader(world)
    followers = [host for host in world.up() if host is not leader]
    if leader is None or not followers:
        return
    victim = rng.choice(followers)
    end, fs = victim.end(), victim.fs
    world.crash_now(victim, Loss.NONE, down_ms=5_000.0)
    behind = max(20, min(world.plan.segment_bytes, 10_000) // _RECORD_BYTES)
    yield from _wait_for(lambda: leader.end() > end + behind, 1_500.0)
    if victim.fs is not fs or victim.is_up:
        return
    full = fs.fail("create", errno.ENOSPC, times=1 << 30)
    if rng.random() < 0.5:
        victim.killed_by = (Fault(0, world.now_ms, "full_disk", 0.0, 0.0, 0), Loss.NONE)
    world.tell("fault", f"{victim} comes back, {leader.end() - end} records behind, and its disk is full of files")
    victim.down_until_ms = 0.0
    world.restart(victim)
    refused = world.coverage["state", "append refused"]
    yield from _wait_for(lambda: world.coverage["state", "append refused"] > refused, 1_000.0, 5.0)
    yield 20.0
    victim.killed_by = None
    if full in fs.faults:
        fs.faults.remove(full)


def refused_term(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """A leader dies with entries that no other voter has. The other voters have full disks: each new leader's first
    entry is refused, after the file of the terms has the new term. The old leader returns and leads, and a follower
    gets the old leader's entries at the place of the refused entry. At last the follower loses power."""
    first = _leader(world)
    if first is None or len(first.voters()) < 3:
        return
    others = [world.hosts[node] for node in first.voters() if node != first.node_id]
    world.traps.append(lambda host, message: host is first and isinstance(message.body, AppendRequest))
    end = first.end()
    yield from _wait_for(lambda: first.end() > end + 2, 300.0)
    world.traps.clear()
    world.crash_now(first, Loss.NONE, down_ms=5_000.0)
    full = [
        (host.fs, host.fs.fail(operation, errno.ENOSPC, nth=nth, times=1 << 30, path_contains=path, path_ends=ends))
        for host in others
        for operation, nth, path, ends in (("write", 1, "", ".log"), ("create", 2, LEADER_EPOCH_FILE, ""))
    ]
    ends = {host.node_id: host.record.shadow.end for host in others}
    world.tell(
        "fault", f"{first} dies with {first.record.shadow.end - end} records that only it has; no other disk has room"
    )
    refused, world.spread = world.coverage["state", "append refused"], 1.0

    def of_the_first_only(host: ControllerHost, message: Message) -> bool:
        """Lose the entries of other leaders. Deliver the first leader's entries of earlier terms in a separate message.
        The remaining entries of the first leader follow when the leader sends them again."""
        body = message.body
        if not isinstance(body, AppendRequest) or host is not first:
            return isinstance(body, AppendRequest)
        old = tuple(entry for entry in body.entries if entry.term < body.term)
        if len(old) == len(body.entries):
            return False
        world.net.send(host.node_id, message.to.node_id, message._replace(body=replace(body, entries=old)))
        return True

    world.traps.append(of_the_first_only)
    has_refused = yield from _wait_for(lambda: world.coverage["state", "append refused"] > refused, 1_500.0, 5.0)
    try:
        if not has_refused:
            return
        first.down_until_ms = 0.0
        world.restart(first)
        first.clock.drift(_PACE)
        for one in others:
            for other in others:
                if one is not other:
                    world.lose(one, other.key)
        yield from _wait_for(lambda: first.leads, 1_500.0, 5.0)
    finally:
        if first.clock.rate == _PACE:
            first.clock.drift(1.0)
            first.replan()
        for fs, planned in full:
            if planned in fs.faults:
                fs.faults.remove(planned)

    def behind() -> list[ControllerHost]:
        return [host for host in others if host.is_up and host.record.shadow.end > ends[host.node_id]]

    if first.leads and (yield from _wait_for(lambda: bool(behind()), 600.0, 1.0)):
        world.count("state", "entries in the place of a refused term")
        yield 3.0 * rng.random()
        for host in behind():
            world.crash_now(host, world.draw_loss(rng), down_ms=20.0)


STORIES: dict[str, Story] = {
    "flush_then_power": flush_then_power,
    "full_at_a_roll": full_at_a_roll,
    "refused_term": refused_term,
    "figure_8": figure_8,
    "vote_then_crash": vote_then_crash,
    "deposed_unaware": deposed_unaware,
    "cut_voters": cut_voters,
    "transfer_lost": transfer_lost,
    "removed_and_gone": removed_and_gone,
    "unwritten": unwritten,
    "deaf_leader": deaf_leader,
}
