"""Majorities (Raft, 5.2 and 5.3). A value counts for the voter that it belongs to; nobody else is asked."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping

from .types import ReplicaKey, VoterSet


class Outcome(enum.Enum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def agreed(voters: VoterSet, value_of: Callable[[ReplicaKey], int]) -> int:
    """The largest number that a majority of voters has reached."""
    values = sorted((value_of(key) for key in voters), reverse=True)
    return values[voters.majority - 1] if values else 0


def is_majority(voters: VoterSet, present: Collection[ReplicaKey]) -> bool:
    """Could those who are ``present`` elect somebody?"""
    return sum(key in present for key in voters) >= voters.majority


def tally(voters: VoterSet, votes: Mapping[ReplicaKey, bool]) -> Outcome:
    """How an election stands."""
    granted = sum(votes.get(key, False) for key in voters)
    refused = sum(not votes.get(key, True) for key in voters)
    if granted >= voters.majority:
        return Outcome.WON
    if refused > len(voters) - voters.majority:
        return Outcome.LOST
    return Outcome.PENDING
