"""Compare a follower's log with the leader's log (KIP-101, KIP-279, KIP-320, KIP-595).

Two logs with the same last epoch up to the same offset are equal up to that offset, because one leader wrote the whole
epoch. The leader looks up the follower's last epoch in its own epoch history:

    the epoch reaches at least as far in the leader's log  the logs match: push from the follower's end
    the epoch ended earlier in the leader's log, or is     the logs diverge: truncate where the largest common epoch
    not in it                                              ends
    in the leader's log, all records of the epoch are      the logs diverge where the epoch begins in the leader's log
    above the follower's last record
    the epoch ended at the leader's log start, where the   the logs match: the history keeps the epoch of the last
    leader's next epoch begins                             deleted record, and the follower there keeps its producers
    nothing in common: the follower's log, or the common   restart at the leader's log start
    part, ends below the leader's log start
    the epoch is older than the leader's first known       restart: the follower's records may never have been
    epoch, because retention deleted the leader's records  committed, so it must neither show nor keep them

The leader names the largest epoch that both logs may have. If this epoch ends at different offsets in the two logs, the
follower truncates its log at the lower offset. After the truncation the follower joins again. Each join that leads to a
truncation removes one epoch that the leader never had, so any number of elections is covered (KIP-279). The comparison
never uses the high watermark, because records above the follower's high watermark may be committed (KIP-101).

A follower may name an epoch of which it has no record. An epoch has no record if the disk became full after the epoch
was stored, before its first batch. The leader's next push has an older epoch than an epoch without records in the
follower's history, so the follower would refuse the push. When the follower learns where an epoch without records
begins, it removes the epoch from its history (``PartitionFollower.joined``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace_core.types import NO_EPOCH
from headrace_protos.v1.replication_pb2 import FollowDivergence

#: Returns (the largest known epoch that is not above the requested epoch, the offset after its last record). Returns
#: (-1, -1) if there is no such epoch, or if the requested epoch is above the last epoch. For an epoch below the log's
#: first epoch, Kafka's OffsetForLeaderEpoch returns the start of the first epoch (``PartitionLog.epoch_end_offset``).
#: Headrace treats an epoch below the log's first epoch as unknown.
EndOf = Callable[[int], tuple[int, int]]


class Match(NamedTuple):
    """Result of a comparison of a follower's log with the leader's log. ``matches``: the logs match; ``diverging``:
    where the logs diverge. If ``matches`` is false and ``diverging`` is None, the follower's log is out of range and
    restarts at the leader's start."""

    matches: bool
    diverging: FollowDivergence | None = None


MATCHES = Match(True)
OUT_OF_RANGE = Match(False)


def match(
    *, log_start: int, log_end: int, latest_epoch: int, end_of: EndOf, follower_end: int, follower_epoch: int
) -> Match:
    """Compare. The leader's log is [log_start, log_end), and its last record has ``latest_epoch`` (-1 if it has no
    record). The follower's log ends at ``follower_end``, and its last record has ``follower_epoch`` (-1 if it has no
    record)."""
    if follower_end < log_start:
        return OUT_OF_RANGE
    if follower_epoch == NO_EPOCH:
        return MATCHES if follower_end <= log_end else OUT_OF_RANGE
    # If this log has no records of the follower's epoch, that epoch ended where the last epoch before it ended.
    epoch, end = (latest_epoch, log_end) if follower_epoch > latest_epoch else end_of(follower_epoch)
    if epoch == follower_epoch and end >= follower_end:
        before, start = end_of(epoch - 1)
        if not log_start < follower_end <= start:
            return MATCHES
        epoch, end = before, start
    if epoch == NO_EPOCH or end < log_start:  # this log has deleted the common part, or does not know the common part
        return OUT_OF_RANGE
    return Match(False, FollowDivergence(epoch=epoch, end_offset=end))


def cut_for(diverging: FollowDivergence, end_of: EndOf, log_end: int) -> int:
    """Offset at which a follower truncates its log: the end of the largest epoch that both logs may have. If the two
    logs end the epoch at different offsets, the follower truncates at the lower offset."""
    epoch, end = end_of(diverging.epoch)
    if epoch == NO_EPOCH:  # this log knows no epoch, so the common part has at most the leader's records of the epoch
        return min(diverging.end_offset, log_end)
    return min(end, diverging.end_offset, log_end)
