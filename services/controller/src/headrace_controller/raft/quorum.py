"""Majorities (Raft, 5.2 and 5.3), and the checks before a change of the voters (thesis, 4.1; KIP-853)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping

from headrace_core.errors import (
    DuplicateVoterError,
    InvalidRequestError,
    ReplicaNotCaughtUpError,
    VoterChangeInProgressError,
    VoterNotFoundError,
)

from .progress import Progress
from .types import ReplicaKey, VoterSet


class Outcome(enum.Enum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def agreed(voters: VoterSet, value_of: Callable[[ReplicaKey], int]) -> int:
    """The largest value that a majority of the voters has reached."""
    values = sorted((value_of(key) for key in voters), reverse=True)
    return values[voters.majority - 1] if values else 0


def is_majority(voters: VoterSet, present: Collection[ReplicaKey]) -> bool:
    """Whether the replicas ``present`` could elect a leader."""
    return sum(key in present for key in voters) >= voters.majority


def tally(voters: VoterSet, votes: Mapping[ReplicaKey, bool]) -> Outcome:
    """The state of an election: won, lost or open."""
    granted = sum(votes.get(key, False) for key in voters)
    refused = sum(not votes.get(key, True) for key in voters)
    if granted >= voters.majority:
        return Outcome.WON
    if refused > len(voters) - voters.majority:
        return Outcome.LOST
    return Outcome.PENDING


def check_voter(voters: VoterSet, key: ReplicaKey) -> None:
    """Raise VoterNotFoundError unless ``key`` is a voter."""
    if key not in voters:
        raise VoterNotFoundError(f"controller {key} is not a voter; the voters are {voters}")


def check_addition(voters: VoterSet, key: ReplicaKey) -> None:
    """Raise DuplicateVoterError if another directory of the same node is a voter."""
    present = voters.find(key.node_id)
    if present is not None:
        raise DuplicateVoterError(
            f"node {key.node_id} is a voter already, with the key {present}"
            + ("" if present == key else "; remove that voter first")
        )


def check_caught_up(key: ReplicaKey, progress: Progress | None, *, end: int, term_start: int, lag_max: int) -> None:
    """Raise ReplicaNotCaughtUpError for a replica far behind: as a voter the replica would stop commits until it has
    caught up (thesis, 4.2.1). ``end``: the end of the leader's log. ``term_start``: the start of the leader's term; the
    new voter must have an entry of that term."""
    match = -1 if progress is None else progress.match
    if end - match > lag_max or match <= term_start:
        raise ReplicaNotCaughtUpError(
            f"controller {key} has the log up to {max(match, 0)} of {end}; retry when this controller has caught up"
        )


def check_removal(voters: VoterSet, key: ReplicaKey) -> None:
    """Raise VoterNotFoundError for an unknown voter, and InvalidRequestError for the last voter."""
    check_voter(voters, key)
    if len(voters) == 1:
        raise InvalidRequestError(f"controller {key} is the only voter and cannot be removed; add another voter first")


def check_no_change(voters: VoterSet, *, is_committed: bool, has_committed_in_term: bool) -> None:
    """Raise VoterChangeInProgressError if the change to ``voters`` may not be committed yet. VoterChangeInProgressError
    is also raised if the leader has not committed an entry of its own term (the fix to 4.1)."""
    if not has_committed_in_term:
        raise VoterChangeInProgressError("the leader has not committed an entry of its term yet; retry")
    if not is_committed:
        raise VoterChangeInProgressError(f"another change of the voters, to {voters}, is in progress; retry")
