"""Decide which of a log's oldest segments retention removes. The functions of the module are pure: they decide from the
properties of the segments.

    [ segment ][ segment ][ segment ][ active ]        oldest first, so that the log never gets a gap
      removed    removed    stays: then all later segments stay, too

Kafka's three rules (UnifiedLog.deleteOldSegments) apply in order, each to the segments that the earlier rules left:

1. *Log start.* Remove a segment that lies wholly below the log start.
2. *Size* (``retention.bytes``). Remove segments as long as the remaining segments are not smaller than retention.bytes.
3. *Time* (``retention.ms``). Remove a segment whose latest record is older than retention.ms.

The rules of ``retention.bytes`` and ``retention.ms`` apply only if ``cleanup.policy`` includes ``delete``. A segment
that reaches above the high watermark stays. When all segments expire, the active segment is rolled before it is
removed, and the log continues, empty, at its end.

A segment's age is that of its latest timestamp or, where no record has a timestamp, of the last write to its file. In
Kafka, a record with a timestamp years ahead keeps its segment and all later segments for years. Headrace ignores a
timestamp that ``message.timestamp.after.max.ms`` (an hour by default) would refuse now, and uses the age of the file
instead. Records with timestamps years ahead arrived while the topic allowed later timestamps, or came with a copied
log. Kafka's rule applies to a topic that allows every future timestamp (``message.timestamp.after.max.ms`` has its
largest value).

``LogDirectory.expire`` removes the segments later, and checks again whether the log has changed since the decision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ..config import LONG_MAX
from .config import LogConfig


class Why(Enum):
    """The rule by which segments expired."""

    LOG_START = "log start"
    SIZE = "retention.bytes"
    TIME = "retention.ms"


class SegmentFacts(NamedTuple):
    """The properties of a segment that the retention rules use, besides the segment's time."""

    base_offset: int
    size: int


class Share(NamedTuple):
    """The segments that one rule removes."""

    why: Why
    segments: int
    size: int


@dataclass(frozen=True, slots=True)
class Expired:
    """Remove the oldest ``segments`` segments; the log then starts at ``log_start_offset``."""

    segments: int
    log_start_offset: int
    shares: tuple[Share, ...]
    roll_first: bool  #: Whether the active segment is among the expired segments, so that it must be rolled first.
    #: The log's count of truncations (``cuts``) at the time of the retention decision. After a truncation a segment may
    #: get younger records, so a retention decision only applies if the log's count of truncations is unchanged.
    cuts: int = 0

    def without_active(self, base_offset: int, size: int) -> Expired | None:
        """Return the decision without the active segment, which begins at ``base_offset`` and had ``size`` bytes; None
        if no other segment expired."""
        if self.segments == 1:
            return None
        *shares, last = self.shares
        if last.segments > 1:
            shares.append(Share(last.why, last.segments - 1, max(last.size - size, 0)))
        return Expired(self.segments - 1, base_offset, tuple(shares), roll_first=False)


def time_of_segment(largest_timestamp_ms: int, written_ms: Callable[[], int], *, config: LogConfig, now_ms: int) -> int:
    """Return the time that decides about a segment's age. ``written_ms``: returns the time of the last write to the
    segment's file; called only if needed."""
    if largest_timestamp_ms < 0:
        return written_ms()
    if largest_timestamp_ms > now_ms and largest_timestamp_ms - now_ms > config.timestamp_after_max_ms:
        return min(largest_timestamp_ms, written_ms())
    return largest_timestamp_ms


def expired(
    segments: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    now_ms: int,
    time_of: Callable[[int], int],
) -> Expired | None:
    """Decide which segments to remove now; None: no segments. ``segments``: all segments, oldest first; the last
    segment is active.

    ``time_of(place)``: returns the ``time_of_segment`` of a segment. ``time_of`` is called from the oldest segment on,
    up to the first segment that stays.
    """
    last = len(segments) - 1

    def end_of(place: int) -> int:
        return segments[place + 1].base_offset if place < last else log_end_offset

    def may_go(place: int) -> bool:
        is_empty_active = place == last and segments[place].size == 0
        return place <= last and end_of(place) <= high_watermark and not is_empty_active

    gone = 0
    while gone < last and may_go(gone) and segments[gone + 1].base_offset <= log_start_offset:
        gone += 1
    below_start = gone
    if config.cleanup_delete and config.retention_bytes is not None:
        surplus = sum(segment.size for segment in segments[gone:]) - config.retention_bytes
        while gone <= last and may_go(gone) and surplus >= segments[gone].size:
            surplus -= segments[gone].size
            gone += 1
    too_much = gone
    if config.cleanup_delete and config.retention_ms is not None:
        while gone <= last and may_go(gone) and now_ms - time_of(gone) > config.retention_ms:
            gone += 1
    if not gone:
        return None
    parts = ((Why.LOG_START, 0, below_start), (Why.SIZE, below_start, too_much), (Why.TIME, too_much, gone))
    return Expired(
        segments=gone,
        log_start_offset=max(log_start_offset, end_of(gone - 1)),
        shares=tuple(
            Share(why, end - start, sum(segment.size for segment in segments[start:end]))
            for why, start, end in parts
            if end > start
        ),
        roll_first=gone > last,
    )


def is_waiting_for_compaction(config: LogConfig, first_timestamp_ms: int | None, now_ms: int) -> bool:
    """Whether to seal an idle active segment because one of its records is older than ``max.compaction.lag.ms`` and
    only sealed segments are compacted (KIP-354; Kafka checks only at the next append).

    ``first_timestamp_ms``: max timestamp of the segment's first batch; None when the segment is empty.
    """
    if not config.cleanup_compact or config.max_compaction_lag_ms == LONG_MAX:
        return False
    return first_timestamp_ms is not None and 0 <= first_timestamp_ms < now_ms - config.max_compaction_lag_ms
