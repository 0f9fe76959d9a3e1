"""The status of the quorum as its leader sees it (KIP-836): immutable dataclasses for DescribeQuorum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .progress import Mode
from .reads import NEVER
from .types import ReplicaKey, Role, Room, VoterSet

if TYPE_CHECKING:
    from .node import RaftNode


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """``match``: below this offset the replica's log is durable and equal to the leader's log; -1 if it is unknown.
    ``last_contact_ticks_ago``: ticks since the replica's last answer of any kind. ``caught_up_ticks_ago``: ticks since
    the replica last had the whole log. A tick count is None if the counted event never happened under this leader.
    ``room``: the space on the replica's disk; None: unknown. ``is_outdated``: the replica stopped for good, because its
    directory is an older copy (memory.py)."""

    key: ReplicaKey
    address: str
    match: int
    last_contact_ticks_ago: int | None
    caught_up_ticks_ago: int | None
    room: Room | None
    is_outdated: bool = False


@dataclass(frozen=True, slots=True)
class QuorumStatus:
    """``voters`` and ``observers``: the state of each replica, by key. Only the leader knows the states of the
    replicas; on other nodes ``voters`` and ``observers`` are empty."""

    leader: int
    term: int
    committed: int
    log_end_offset: int
    voter_set: VoterSet
    voters: tuple[ReplicaStatus, ...]
    observers: tuple[ReplicaStatus, ...]


def quorum_status(node: RaftNode) -> QuorumStatus:
    """The quorum's state, as far as this replica knows."""
    voters = node.voters
    known = [_status_of(node, key) for key in sorted({node.key, *node.followers})] if node.role is Role.LEADER else []
    return QuorumStatus(
        leader=node.leader,
        term=node.term,
        committed=node.committed,
        log_end_offset=node.log_end_offset,
        voter_set=voters,
        voters=tuple(each for each in known if each.key in voters),
        observers=tuple(each for each in known if each.key not in voters),
    )


def _status_of(node: RaftNode, key: ReplicaKey) -> ReplicaStatus:
    address = node.voters.address(key.node_id) if key in node.voters else ""
    progress = node.progress_of(key)
    if progress is None:  # the leader itself
        return ReplicaStatus(key, address, node.log_end_offset, 0, 0, node.room)
    answered_at = progress.answered_at
    # (a silent replica has the whole log too, as long as no entry is appended)
    has_all = progress.match == node.log_end_offset
    caught_up_at = answered_at if has_all else min(progress.caught_up_at, answered_at)
    return ReplicaStatus(
        key,
        address,
        progress.match if progress.mode is Mode.REPLICATE else -1,
        None if answered_at == NEVER else node.ticks - answered_at,
        None if caught_up_at == NEVER else node.ticks - caught_up_at,
        progress.room,
        key in node.outdated,
    )
