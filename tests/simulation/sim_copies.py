"""Older copies of a voter's directory: what other processes remember, and what a copy may do until it is found.

The simulation knows itself which controller remembers more than a copy has (``Heard``), from the messages that it
delivered. A copy of which nobody remembers anything is not restored: the docs forbid it. It is counted apart, as is a
copy whose witnesses end, or cannot be reached, before they could speak. A copy that votes although a witness could be
reached breaks a promise.
"""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, NamedTuple

from headrace_controller.raft import (
    AppendRequest,
    AppendResponse,
    HardState,
    HeartbeatRequest,
    Message,
    ReplicaKey,
    Role,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from headrace_core.testing.crashing_fs import CrashingFileSystem, Loss
from tests.simulation.sim_checks import ShadowLog, Violation
from tests.simulation.sim_disk import DiskRecord

if TYPE_CHECKING:
    from tests.simulation.sim_controllers import ControllerHost

#: A witness that a copy could reach for so long must have been heard.
REACHED_MS = 400.0


class Heard:
    """What the messages to one process have shown about the disks of others."""

    def __init__(self) -> None:
        self._votes: dict[tuple[ReplicaKey, int], ReplicaKey] = {}
        self._ends: dict[tuple[ReplicaKey, int], int] = {}

    def hear(self, host: ControllerHost, message: Message) -> None:
        controller = host.controller
        assert controller is not None
        sender, body = message.sender, message.body
        if sender not in controller.voters or controller.raft._questions.are_open:
            return  # (a process that has just started notes nothing until it takes part)
        match body:
            case VoteResponse():
                if body.is_granted and not body.is_pre_vote:
                    self._votes[sender, body.term] = host.key
            case VoteRequest():
                if not body.is_pre_vote:
                    self._votes[sender, body.term] = sender
            case HeartbeatRequest():
                self._votes[sender, body.term] = sender
                self._end(sender, body.term, body.durable)
            case AppendRequest() | SnapshotRequest():
                self._votes[sender, body.term] = sender
            case AppendResponse():
                leads = controller.role is Role.LEADER and controller.term == body.term
                if leads and not body.is_rejected:
                    self._end(sender, body.term, body.match.offset)

    def _end(self, key: ReplicaKey, term: int, end: int) -> None:
        self._ends[key, term] = max(end, self._ends.get((key, term), 0))

    def contradicts(self, key: ReplicaKey, state: HardState, end: int) -> bool:
        """Whether a disk of ``key`` with this state and a log up to ``end`` has less than it had."""
        votes = [(term, vote) for (who, term), vote in self._votes.items() if who == key]
        ends = [(term, at) for (who, term), at in self._ends.items() if who == key]
        return any(term > state.term or (term == state.term and vote != state.vote) for term, vote in votes) or any(
            term > state.term or (term == state.term and at > end) for term, at in ends
        )


class Copy(NamedTuple):
    """A directory as it was at some time."""

    key: ReplicaKey
    fs: CrashingFileSystem
    record: DiskRecord

    @classmethod
    def of(cls, host: ControllerHost, rng: random.Random) -> Copy:
        """A copy of the files, or of what the disk has of them."""
        fs = host.fs.crash_clone(rng, rng.choice([Loss.NONE, Loss.ALL]))
        record = copy.copy(host.record)
        shadow = record.shadow
        record.shadow = ShadowLog(list(shadow.entries), list(shadow.ends), shadow.base, shadow.checked)
        return cls(host.key, fs, record)

    @property
    def end(self) -> int:
        return self.record.shadow.end

    @property
    def state(self) -> HardState:
        return self.record.hard_state or HardState()


class Restored:
    """A voter that has come back with a copy. ``witnesses``: (controller, its life) that remember more."""

    def __init__(self, host: ControllerHost, witnesses: list[tuple[ControllerHost, int]]) -> None:
        self.host = host
        self._witnesses = {witness.node_id: (witness, life) for witness, life in witnesses}
        self._reached_ms: dict[int, float] = {}
        #: The copy was about to vote, and no witness could speak.
        self.has_lapsed = False

    def look(self) -> None:
        """Note since when each witness can be reached."""
        host, world = self.host, self.host.world
        is_calm = world.net.quality == world.plan.quality and host.is_up and not (host.is_paused or host.is_slow)
        for node_id, (witness, life) in list(self._witnesses.items()):
            if witness.life != life or witness.record.is_damaged:
                del self._witnesses[node_id]
                self._reached_ms.pop(node_id, None)
                continue
            links = (host.node_id, node_id), (node_id, host.node_id)
            if is_calm and not (witness.is_paused or witness.is_slow or any(world.net.is_cut(*link) for link in links)):
                self._reached_ms.setdefault(node_id, world.now_ms)
            else:
                self._reached_ms.pop(node_id, None)

    def promises(self, message: Message) -> bool:
        """Called before the copy sends a message; returns whether the message is a vote that no witness could stop.
        Raises Violation if a witness could."""
        body = message.body
        if not (isinstance(body, VoteRequest) or (isinstance(body, VoteResponse) and body.is_granted)):
            return False
        if body.is_pre_vote:
            return False
        self.look()
        world = self.host.world
        reached = [node_id for node_id, at_ms in self._reached_ms.items() if world.now_ms - at_ms >= REACHED_MS]
        if reached:
            raise Violation(
                "older copies",
                f"{self.host} votes in term {body.term} with an older copy of its directory, although controller "
                f"{reached[0]} remembers more and could be reached",
            )
        return True


def witnesses_of(found: Copy, hosts: list[ControllerHost]) -> list[tuple[ControllerHost, int]]:
    """The processes that remember more than the copy has."""
    return [
        (host, host.life)
        for host in hosts
        if host.key != found.key
        and host.is_sound
        and found.key in host.controller.voters  # type: ignore[union-attr]
        and host.heard.contradicts(found.key, found.state, found.end)
    ]
