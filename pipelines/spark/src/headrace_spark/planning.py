"""The offsets of a batch, and their split into tasks. Pure arithmetic.

The rules for offsets and tasks are the rules of the Kafka source. A limit on offsets is split in proportion to each
partition's backlog. A partition that is new to the query is read from its start. Records that the log no longer has are
reported as a possible data loss.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from headrace_core.errors import InvalidConfigError
from headrace_core.types import TopicPartition

from .offsets import PartitionOffsets, show

#: For error messages: maps an option to the meaning of its negative offsets.
_SPECIAL_OFFSETS = {
    "startingOffsets": " The offset -1 means latest, -2 means earliest.",
    "endingOffsets": " The offset -1 means latest.",
}


class OffsetRange(NamedTuple):
    """Offsets ``start`` (inclusive) to ``end`` (exclusive) of a partition: the work of one task."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets in the range: an upper bound of the number of records, because compaction and markers leave
        gaps."""
        return self.end - self.start


class Plan(NamedTuple):
    """The ranges of a batch, and a sentence about each possible data loss."""

    ranges: list[OffsetRange]
    losses: list[str]


def check_covers(option: str, given: Collection[TopicPartition], assigned: Collection[TopicPartition]) -> None:
    """Raise InvalidConfigError unless ``given`` names exactly the partitions that are read."""
    missing, extra = set(assigned) - set(given), set(given) - set(assigned)
    if missing or extra:
        raise InvalidConfigError(
            f"{option} must name exactly the partitions that the query reads. Missing: {show(missing)}. Named but not "
            f"read: {show(extra)}.{_SPECIAL_OFFSETS.get(option, '')}"
        )


def rate_limit(
    limit: int,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    first: Mapping[TopicPartition, int],
) -> PartitionOffsets:
    """The end of a batch of ``limit`` offsets, split in proportion to the backlogs of the partitions.

    ``first`` has the log start of each partition. Partitions missing in ``start`` are read from their log start, and
    offsets below the log start are not part of a backlog. A partition's share below one offset is rounded up, so that
    small partitions make progress; the batch may then exceed the limit. Shares above one offset are rounded down. The
    partitions that lost most by the rounding get one offset more, until the limit is reached. The Kafka source leaves
    the remainder of the rounding to the next batch, which costs a query with AvailableNow another batch for a few rows.
    """
    begins = {partition: _begin(partition, start, first) for partition in end}
    sizes = {
        partition: end[partition] - begin
        for partition, begin in begins.items()
        if begin is not None and end[partition] > begin
    }
    total = sum(sizes.values())
    if total <= limit:
        return dict(end)
    shares = {partition: limit * size / total for partition, size in sizes.items()}
    taken = {p: math.ceil(share) if share < 1 else math.floor(share) for p, share in shares.items()}
    left = limit - sum(taken.values())
    for partition in sorted(taken, key=lambda p: (taken[p] - shares[p], p)):
        if left > 0 and taken[partition] < sizes[partition]:
            taken[partition] += 1
            left -= 1
    limited = dict(end)
    for partition, count in taken.items():
        begin = begins[partition]
        assert begin is not None
        limited[partition] = min(end[partition], begin + count)
    return limited


def _begin(
    partition: TopicPartition, start: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]
) -> int | None:
    known = [offsets[partition] for offsets in (start, first) if partition in offsets]
    return max(known, default=None)


def offsets_waiting(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """Number of offsets from ``start`` to ``end``; a partition missing in ``start`` counts from offset 0."""
    return sum(offset - start.get(partition, 0) for partition, offset in end.items())


def plan_ranges(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], first: Mapping[TopicPartition, int]
) -> Plan:
    """One range for each partition of ``end`` that has offsets to read.

    ``first`` has the log start of each partition. A range begins at the log start if the partition is missing in
    ``start``, or if records at its start were deleted.
    """
    losses: list[str] = []
    added = end.keys() - start.keys()
    unknown = added - first.keys()
    if unknown:
        losses.append(f"cannot find the start of {show(unknown)}: the topic was deleted")
    losses += [
        f"{partition} was added and starts at {first[partition]} instead of 0"
        for partition in sorted(added & first.keys())
        if first[partition] != 0
    ]
    gone = start.keys() - end.keys()
    if gone:
        losses.append(f"{show(gone)} is gone")
    ranges = []
    for partition in sorted(end.keys() - unknown):
        begin = start[partition] if partition in start else first[partition]
        if end[partition] < begin:
            losses.append(f"{partition} went back from offset {begin} to {end[partition]}")
            continue
        left = min(max(begin, first.get(partition, begin)), end[partition])
        if left > begin:
            losses.append(
                f"{partition}: offsets {begin} to {end[partition]} are missing, the log starts at "
                f"{first[partition]}: {left - begin} offsets are deleted"
            )
        if end[partition] > left:
            ranges.append(OffsetRange(*partition, left, end[partition]))
    return Plan(ranges, losses)


def split_ranges(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Split ranges for parallelism: first into ranges of at most ``max_records`` offsets, then into about
    ``min_partitions`` ranges in all.

    With ``min_partitions`` large ranges are split in proportion to their size. A range whose share is at most one task
    stays whole, and the proportions of the other ranges are computed without it.
    """
    parts = [item for item in ranges if item.size > 0]
    if max_records is not None:
        parts = [piece for item in parts for piece in _cut(item, math.ceil(item.size / max_records))]
    if min_partitions is None or len(parts) >= min_partitions or not parts:
        return parts
    total = sum(item.size for item in parts)
    whole = {item for item in parts if _share(item.size, total, min_partitions) == 1}
    total -= sum(item.size for item in whole)
    tasks = max(min_partitions - len(whole), 1)
    return [
        piece
        for item in parts
        for piece in _cut(item, 1 if item in whole else _share(item.size, total, tasks))
        if piece.size > 0
    ]


def _share(size: int, total: int, tasks: int) -> int:
    return max(math.floor(size / total * tasks + 0.5), 1)


def _cut(item: OffsetRange, parts: int) -> list[OffsetRange]:
    """Split a range into ``parts`` pieces, in order. Their sizes differ by at most one; larger pieces come last."""
    pieces, begin, remaining = [], item.start, item.size
    for left in range(parts, 0, -1):
        size = remaining // left
        pieces.append(OffsetRange(item.topic, item.partition, begin, begin + size))
        begin, remaining = begin + size, remaining - size
    return pieces
