"""Stories that are each written for a guard: they find a mutant without it in one schedule (``mutants``), whatever the
seed. Means and form are those of sim_stories; only mutants and tests tell these stories."""

from __future__ import annotations

import errno
import random
from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace_controller.raft import AppendRequest, AppendResponse, HeartbeatRequest, Message, Place, VoteRequest
from headrace_core.testing.crashing_fs import Loss
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_copies import Copy
from tests.simulation.sim_stories import Story, _leader, _links, _wait_for

if TYPE_CHECKING:
    from tests.simulation.sim_controllers import ControllerHost
    from tests.simulation.sim_world import ControllersWorld

_ALL = 1 << 30  #: How often a planned failure happens: always.


def _leads(world: ControllersWorld) -> Generator[float, None, ControllerHost | None]:
    """Wait for an active leader of three voters."""

    def is_active() -> bool:
        found = _leader(world)
        return found is not None and found.controller is not None and found.controller.is_active

    yield from _wait_for(is_active, 3_000.0, 5.0)
    found = _leader(world)
    return found if found is not None and is_active() and len(found.voters()) >= 3 else None


def power_loss(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """Followers that have just voted and acknowledged, and have a snapshot, lose everything that they did not force."""
    leader = yield from _leads(world)
    if leader is None:
        return
    world.crash_now(leader, Loss.NONE, down_ms=50.0)
    leader = yield from _leads(world)
    snapshots = world.coverage["state", "snapshot taken"]
    yield from _wait_for(lambda: world.coverage["state", "snapshot taken"] >= snapshots + 3, 3_000.0, 5.0)
    for host in world.up():
        if not host.leads:
            end = host.record.shadow.end
            yield from _wait_for(lambda host=host, end=end: host.record.shadow.end > end, 1_000.0, 1.0)  # type: ignore[misc]
            world.crash_now(host, Loss.ALL, down_ms=20.0)
            yield 300.0
    world.count("story", "power_loss")


def cut_leader(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """A leader appends entries that nobody gets, is deposed, truncates them, and leads again. Then it is killed, and
    reads its log again."""
    old = yield from _leads(world)
    if old is None:
        return
    world.traps.append(lambda host, message: host is old and isinstance(message.body, AppendRequest))
    end = old.end()
    yield from _wait_for(lambda: old.end() > end + 3, 600.0)
    cut = _links(world, [old.node_id])
    world.cut(cut)
    for host in world.up():
        if host is not old:
            world.lose(host, old.key)
    yield from _wait_for(lambda: _leader(world, but=(old.node_id,)) is not None, 3_000.0)
    cuts = world.coverage["state", "log truncated"]
    yield 400.0
    world.traps.clear()
    world.mend(cut)
    yield from _wait_for(lambda: world.coverage["state", "log truncated"] > cuts, 1_500.0, 1.0)
    yield 200.0
    leader = _leader(world)
    if leader is not None and leader.controller is not None and old.is_up and leader is not old:
        controller = leader.controller
        leader.guarded(lambda: controller.transfer(old.key, lambda result: None))
        leader.wake()
        yield from _wait_for(lambda: old.leads, 1_000.0)
        yield 500.0
    world.crash_now(old, Loss.NONE, down_ms=20.0)
    yield 200.0
    world.count("story", "cut_leader")


def full_start(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """A controller starts again after a power loss, and its disk has no room for anything."""
    for _ in range(3):
        leader = yield from _leads(world)
        followers = [host for host in world.up() if host is not leader]
        if leader is None or not followers:
            return
        host = rng.choice(followers)
        world.crash_now(host, Loss.PREFIX, down_ms=5_000.0)
        fs = host.fs
        full = [fs.fail(each, errno.ENOSPC, times=_ALL) for each in ("create", "write")]
        host.down_until_ms = 0.0
        world.restart(host)
        yield 100.0
        for each in full:
            if each in fs.faults:
                fs.faults.remove(each)
        yield 500.0
    world.count("story", "full_start")


def unheard_commit(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """A leader commits, and dies before the others hear of the commit. The next leader has the entries, and must not
    decide before it has applied them."""
    old = yield from _leads(world)
    if old is None:
        return
    committed = old.controller.raft.committed  # type: ignore[union-attr]

    def hide(host: ControllerHost, message: Message) -> bool:
        body = message.body
        if host is not old or not isinstance(body, AppendRequest | HeartbeatRequest) or body.committed <= committed:
            return False
        hidden = replace(body, committed=committed)
        world.net.send(host.node_id, message.to.node_id, message._replace(body=hidden))
        return True

    world.traps.append(hide)
    yield from _wait_for(lambda: world.checks.committed > committed + 8, 1_500.0, 1.0)
    world.crash_now(old, Loss.NONE, down_ms=3_000.0)
    world.traps.clear()
    yield from _wait_for(lambda: _leader(world) is not None, 3_000.0, 1.0)
    yield 500.0
    world.count("story", "unheard_commit")


def unheard_acknowledgements(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """A follower has a leader's entries, and its answers are lost. The leader is deposed, and the follower leads and
    commits them: the leader must not say that they never happened."""
    old = yield from _leads(world)
    if old is None:
        return
    world.traps.append(lambda host, message: message.to == old.key and isinstance(message.body, AppendResponse))
    end = old.end()
    yield from _wait_for(lambda: old.end() > end + 3, 600.0)
    yield 30.0
    world.traps.clear()
    cut = _links(world, [old.node_id])
    world.cut(cut)
    for host in world.up():
        if host is not old:
            world.lose(host, old.key)
    yield from _wait_for(lambda: _leader(world, but=(old.node_id,)) is not None, 3_000.0)
    yield from _wait_for(lambda: not old.leads, 2_000.0)
    yield 300.0
    world.mend(cut)
    yield 300.0
    world.count("story", "unheard_acknowledgements")


def older_copy(world: ControllersWorld, rng: random.Random) -> Generator[float, None, None]:
    """A voter votes for the leader of a new term, and comes back with a copy of its directory from before. Another
    candidate of the same term asks for its vote. The leader lives, and remembers the vote (but no acknowledgement, so
    its heartbeats would find nothing): the copy must be stopped."""
    first = yield from _leads(world)
    if first is None:
        return
    copies = {host.node_id: Copy.of(host, rng) for host in world.up() if host is not first}
    world.traps.append(lambda host, message: host.node_id in copies and isinstance(message.body, AppendResponse))
    world.crash_now(first, Loss.NONE, down_ms=5_000.0)
    yield from _wait_for(lambda: _leader(world) is not None, 3_000.0, 1.0)
    leader = _leader(world)
    if leader is None:
        return
    first.down_until_ms = 0.0
    world.restart(first)
    yield from _leads(world)
    (voter,) = (world.hosts[node_id] for node_id in copies if node_id != leader.node_id)
    vote, found = voter.record.hard_state, world.coverage["state", "older copy found"]
    lapsed = world.coverage["state", "older copy whose witnesses were silent"]
    if vote is None or vote.vote != leader.key or not leader.leads or not voter.restore(copies[voter.node_id]):
        return
    world.tell("fault", f"{voter} comes back with a copy from before its vote for {leader.node_id}")
    world.count("story", "older_copy")
    voter.down_until_ms = 0.0
    world.restart(voter)
    world.connect(voter, first)
    request = VoteRequest(vote.term, Place(leader.end(), vote.term))
    world.net.send(first.node_id, voter.node_id, Message(first.key, voter.key, request))

    def is_over() -> bool:
        seen = world.coverage
        return (
            seen["state", "older copy found"] > found
            or seen["state", "older copy whose witnesses were silent"] > lapsed
        )

    yield from _wait_for(is_over, 3_000.0)
    if world.coverage["state", "older copy found"] == found:
        raise Violation("older copies", f"{voter} has an older copy of its directory, and is not stopped")


#: Stories that mutants and tests ask for.
DIRECTED: dict[str, Story] = {
    "power_loss": power_loss,
    "cut_leader": cut_leader,
    "full_start": full_start,
    "unheard_commit": unheard_commit,
    "unheard_acknowledgements": unheard_acknowledgements,
    "older_copy": older_copy,
}
