"""Does a follower's log go on where the leader's does? (KIP-101, KIP-279, KIP-320, KIP-595)

Two logs that hold the same last epoch up to the same offset are equal up to there, for one leader wrote that epoch, and
wrote it once. So the leader looks up the follower's last epoch in its own history:

    the same epoch, and it goes at least as far here      they match: push from the follower's end
    it ended earlier here, or is not here at all           they part: cut where the largest common epoch ends
    the same epoch, and all of it lies behind here         the follower's last record lies: they part where it begins
    nothing in common (all of it lies below our start)     begin anew at our start
    its last epoch is older than the first one that we     begin anew: its records below our start may never have been
    know, because retention deleted ours                   committed, and it must neither show nor keep them

The follower cuts at the leader's end of that epoch or at its own, whichever is lower, and asks again: each round trip
takes one epoch away that the leader never had, so any number of elections in between is met (KIP-279). Never by a high
watermark: what a follower has not heard of yet may be committed (KIP-101).

A follower may name an epoch of which it has no record: the first batch met a full disk, and the epoch had been noted
before. Its own last record is of an older one, and so is what it is pushed next, which it would take from nobody; told
where the epoch begins, it lets go of it (``PartitionFollower.joined``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace_core.types import NO_EPOCH

from .messages import Divergence

#: (the largest known epoch not above the one asked for, one past its last offset); (-1, -1) when there is none, also
#: for an epoch above the last one. For an epoch below the first one, Kafka's OffsetForLeaderEpoch answers with the
#: first one's start (``PartitionLog.epoch_end_offset``). That is no answer here: nothing tells where it ended.
EndOf = Callable[[int], tuple[int, int]]


class Match(NamedTuple):
    """``matches``, or where the logs part, or (neither) out of range: begin anew at the leader's start."""

    matches: bool
    diverging: Divergence | None = None


MATCHES = Match(True)
OUT_OF_RANGE = Match(False)


def match(
    *, log_start: int, log_end: int, latest_epoch: int, end_of: EndOf, follower_end: int, follower_epoch: int
) -> Match:
    """The leader's log is [log_start, log_end), its last record of ``latest_epoch`` (-1: none). The follower's ends at
    ``follower_end``, with a record of ``follower_epoch`` (-1: it has none)."""
    if follower_end < log_start:
        return OUT_OF_RANGE
    if follower_epoch == NO_EPOCH:
        return MATCHES if follower_end <= log_end else OUT_OF_RANGE
    # An epoch that the leader has no record of ended, here, where the last one before it did.
    epoch, end = (latest_epoch, log_end) if follower_epoch > latest_epoch else end_of(follower_epoch)
    if epoch == follower_epoch and end >= follower_end:
        before, start = end_of(epoch - 1)
        if not log_start < follower_end <= start:
            return MATCHES
        epoch, end = before, start
    if end <= log_start:  # what they have in common is gone here, or not known
        return OUT_OF_RANGE
    return Match(False, Divergence(epoch, end))


def cut_for(diverging: Divergence, end_of: EndOf, log_end: int) -> int:
    """Where a follower cuts its log: the end of the largest epoch that both may have, in the log that has less."""
    epoch, end = end_of(diverging.epoch)
    if epoch == NO_EPOCH:  # no epoch is known here: what the leader has of it is the most that can be common
        return min(diverging.end_offset, log_end)
    return min(end, diverging.end_offset, log_end)
