"""Plan which logs to clean, up to which offset, in which order. The functions of the module depend only on their
arguments.

    first segment             first dirty offset                  end                    log end
         |  cleaned before, one     |   dirty: never read           |  not yet: active,     |
         |  record for each key     |   by a cleaning               |  unstable, too young  |

A cleaning reads the dirty part of a log into the offset map, then rewrites all segments before the end of the cleaning.
The end of a cleaning is a segment's base offset, so segments after the end are never touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from ...config import LONG_MAX
from ...types import TopicPartition
from ..config import LogConfig
from ..index import OFFSET_ENTRY, RELATIVE_OFFSET_MAX, TIME_ENTRY


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """The broker's settings: ``log.cleaner.*``."""

    #: log.cleaner.dedupe.buffer.size: bytes of one cleaner's offset map, 24 bytes for each key.
    dedupe_buffer_bytes: int = 134_217_728
    load_factor: float = 0.9  #: log.cleaner.io.buffer.load.factor: part of the offset map that may be used.
    #: log.cleaner.io.buffer.size: bytes that are read and filtered at once (a larger batch is read whole).
    io_buffer_bytes: int = 524_288


class CleanableSegment(NamedTuple):
    """The properties of a segment by which the logs to compact are chosen."""

    base_offset: int
    size: int
    largest_timestamp_ms: int
    first_timestamp_ms: int | None  #: Max timestamp of the segment's first batch; None when the segment is empty.


@dataclass(frozen=True, slots=True)
class Target:
    """A log that can be cleaned, from ``first_dirty_offset`` up to and without ``end_offset``."""

    topic_partition: TopicPartition
    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool  #: Whether one of the log's records is older than max.compaction.lag.ms.

    @property
    def dirty_ratio(self) -> float:
        """Kafka's dirty ratio, below the end of the next cleaning: dirty bytes divided by all bytes."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0


def first_dirty_offset(checkpoint: int | None, log_start_offset: int, log_end_offset: int) -> int:
    """Return the end offset of the last cleaning. A checkpoint outside of the log (after a deletion of records, a
    truncation or a recreation of the log) is ignored: all records are dirty."""
    if checkpoint is None or not log_start_offset <= checkpoint <= log_end_offset:
        return log_start_offset
    return checkpoint


def target_of(
    topic_partition: TopicPartition,
    segments: Sequence[CleanableSegment],
    config: LogConfig,
    *,
    checkpoint: int | None,
    log_start_offset: int,
    log_end_offset: int,
    stable_offset: int,
    now_ms: int,
) -> Target:
    """Determine the offset up to which a log could be cleaned now. ``segments``: all segments, oldest first; the last
    segment is active.

    ``stable_offset``: the last stable offset (at most the high watermark); a transaction may still commit or abort the
    records above it. Three kinds of segments are never cleaned: the active segment, a segment with records at or above
    the stable offset, and a segment with a record younger than min.compaction.lag.ms.
    """
    dirty = first_dirty_offset(checkpoint, log_start_offset, log_end_offset)
    end = segments[-1].base_offset
    for segment, following in pairwise(segments):
        if following.base_offset <= dirty:
            continue
        young = (
            config.min_compaction_lag_ms > 0 and segment.largest_timestamp_ms > now_ms - config.min_compaction_lag_ms
        )
        if young or following.base_offset > stable_offset:
            end = segment.base_offset
            break
    end = max(end, dirty)
    clean_bytes = cleanable_bytes = 0
    oldest_ms = LONG_MAX
    for segment, following in pairwise(segments):
        if following.base_offset <= dirty:
            clean_bytes += segment.size
            continue
        if segment.base_offset < end:
            cleanable_bytes += segment.size
        if segment.first_timestamp_ms is not None and segment.first_timestamp_ms > 0:
            oldest_ms = min(oldest_ms, segment.first_timestamp_ms)
    is_overdue = cleanable_bytes > 0 and oldest_ms < now_ms - config.max_compaction_lag_ms
    return Target(topic_partition, dirty, end, clean_bytes, cleanable_bytes, is_overdue)


def in_order(targets: Iterable[tuple[Target, LogConfig]]) -> list[Target]:
    """Return the logs that are worth a cleaning now: first the logs beyond max.compaction.lag.ms, then the logs by
    falling dirty ratio."""
    worth = [
        target
        for target, config in targets
        if target.cleanable_bytes > 0 and (target.is_overdue or target.dirty_ratio > config.min_dirty_ratio)
    ]
    return sorted(worth, key=lambda target: (not target.is_overdue, -target.dirty_ratio, target.topic_partition))


class SegmentSize(NamedTuple):
    """The properties of a segment that decide which segments are compacted together. ``next_offset``: the base offset
    of the next segment."""

    base_offset: int
    size: int
    index_bytes: int
    time_index_bytes: int
    next_offset: int


def group_segments(segments: Sequence[SegmentSize], config: LogConfig) -> list[list[int]]:
    """Group neighbouring segments (as indices into ``segments``); each group becomes one segment. A group stays within
    the size limits of a segment and its indexes. Every offset of a group fits into 31 bits relative to the group's base
    offset (KAFKA-6264)."""
    groups: list[list[int]] = []
    size = index_bytes = time_index_bytes = base_offset = 0
    for place, segment in enumerate(segments):
        size += segment.size
        index_bytes += segment.index_bytes
        time_index_bytes += segment.time_index_bytes
        if (
            groups
            and size <= config.segment_bytes
            and index_bytes <= config.segment_index_bytes - OFFSET_ENTRY.size
            and time_index_bytes <= config.segment_index_bytes - TIME_ENTRY.size
            and segment.next_offset - 1 - base_offset <= RELATIVE_OFFSET_MAX
        ):
            groups[-1].append(place)
        else:
            groups.append([place])
            size, index_bytes, time_index_bytes = segment.size, segment.index_bytes, segment.time_index_bytes
            base_offset = segment.base_offset
    return groups
