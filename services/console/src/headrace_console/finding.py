"""Search for records: the latest, from a time or an offset on, and by key. Every search is bounded in records, bytes
and time, and says where it stopped, so that the next request continues there.

A search whose result is shown as a list keeps PAGE records, without headers, and only the beginning of a long key or
value. A search in a topic with large records therefore needs no more memory than in other topics.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace import AsyncConsumer, TopicPartition
from headrace_core.records import Record

from .cluster import Cluster
from .display import beginning

#: Records on one page.
PAGE = 50
#: Seconds that one search may take.
SEARCH_S = 6.0
#: Seconds to wait for records that a partition should have.
_READ_S = 4.0
#: A search by key reads backwards from the log's end: at most SCANNED_MAX offsets in all, and _STRIDE offsets of one
#: partition at a time.
SCANNED_MAX = 300_000
_STRIDE = 20_000
#: Maximum number of records that a page of a topic with many partitions reads in all.
_READ_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: the records, and how far the search has read.

    ``before``: for each partition, the offset below which a search by key has not searched yet; empty: the search has
    read the whole log. ``starts``, ``ends``: the first and the end offset of each partition for the search's isolation
    level. ``is_partial``: the time limit ended the search.
    """

    records: tuple[Record, ...]
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    scanned: int = 0
    before: Mapping[int, int] | None = None
    is_partial: bool = False


async def latest(cluster: Cluster, topic: str, partitions: list[int], *, is_committed: bool) -> Found:
    """The last records of the partitions, the newest first."""
    async with _bounds(cluster, topic, partitions, is_committed=is_committed) as (consumer, starts, ends):
        each = _share(len(partitions))
        firsts = {tp: max(starts[tp], ends[tp] - each) for tp in ends}
        kept = _Kept(_newest_first)
        is_whole = await _read(consumer, firsts, ends, kept.add, deadline=_deadline())
        return _found(kept.records(), starts, ends, is_partial=not is_whole)


async def from_time(cluster: Cluster, topic: str, partitions: list[int], at_ms: int, *, is_committed: bool) -> Found:
    """The first records at or after a time, the oldest first."""
    async with _bounds(cluster, topic, partitions, is_committed=is_committed) as (consumer, starts, ends):
        at = await consumer.offsets_for_times(dict.fromkeys(ends, at_ms), timeout=_READ_S)
        firsts = {tp: each.offset for tp, each in at.items() if each is not None}
        return await _forwards(consumer, firsts, starts, ends)


async def from_offset(cluster: Cluster, topic: str, partitions: list[int], offset: int, *, is_committed: bool) -> Found:
    """The records from an offset on, the oldest first."""
    async with _bounds(cluster, topic, partitions, is_committed=is_committed) as (consumer, starts, ends):
        firsts = {tp: max(starts[tp], offset) for tp in ends}
        return await _forwards(consumer, firsts, starts, ends)


async def by_key(
    cluster: Cluster,
    topic: str,
    partitions: list[int],
    key: bytes,
    *,
    is_committed: bool,
    before: Mapping[int, int] | None = None,
) -> Found:
    """The records with a key, the newest first: about PAGE of them. Reads backwards from ``before`` (default: from the
    logs' ends)."""
    async with _bounds(cluster, topic, partitions, is_committed=is_committed) as (consumer, starts, ends):
        deadline = _deadline()
        tops = {tp: min(ends[tp], (before or {}).get(tp.partition, ends[tp])) for tp in ends}
        if before is not None:
            tops = {tp: top for tp, top in tops.items() if tp.partition in before}
        found: list[Record] = []
        scanned = 0
        is_whole = True
        while is_whole and len(found) < PAGE and scanned < SCANNED_MAX:
            turn = {tp: (max(starts[tp], top - _STRIDE), top) for tp, top in tops.items() if top > starts[tp]}
            if not turn:
                break
            for tp, (low, high) in turn.items():
                if scanned >= SCANNED_MAX or time.monotonic() > deadline or len(found) >= PAGE:
                    break
                kept = _Kept(lambda record: -record.offset, lambda record: record.key == key)
                is_whole = await _read(consumer, {tp: low}, {tp: high}, kept.add, deadline=deadline)
                if not is_whole:
                    break
                records = kept.records()
                if kept.total > len(records):  # the next search continues below the last record that is shown
                    low = records[-1].offset
                found += records
                scanned += high - low
                tops[tp] = low
            else:
                continue
            break
        found.sort(key=_newest_first)
        left = {tp.partition: top for tp, top in tops.items() if top > starts[tp]}
        return _found(found, starts, ends, scanned=scanned, before=left, is_partial=not is_whole)


async def one(cluster: Cluster, topic: str, partition: int, offset: int) -> Record | None:
    """The record at an offset; None if the log has no record at that offset (deleted, compacted, a marker, or not
    written yet)."""
    async with _bounds(cluster, topic, [partition], is_committed=False) as (consumer, starts, ends):
        tp = TopicPartition(topic, partition)
        if not starts[tp] <= offset < ends[tp]:
            return None
        found: list[Record] = []
        await _read(consumer, {tp: offset}, {tp: offset + 1}, found.append, deadline=_deadline())
        return next((record for record in found if record.offset == offset), None)


# -- reading


@contextlib.asynccontextmanager
async def _bounds(
    cluster: Cluster, topic: str, partitions: list[int], *, is_committed: bool
) -> AsyncIterator[tuple[AsyncConsumer, dict[TopicPartition, int], dict[TopicPartition, int]]]:
    consumer = cluster.consumer(is_committed=is_committed)
    try:
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        starts = await consumer.beginning_offsets(wanted, timeout=_READ_S)
        ends = await consumer.end_offsets(wanted, timeout=_READ_S)
        yield consumer, starts, ends
    finally:
        await consumer.close(timeout=2.0)


async def _forwards(
    consumer: AsyncConsumer,
    firsts: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> Found:
    each = _share(len(firsts))
    kept = _Kept(_oldest_first)
    is_whole = await _read(
        consumer, firsts, {tp: ends[tp] for tp in firsts}, kept.add, deadline=_deadline(), each_max=each
    )
    return _found(kept.records(), starts, ends, is_partial=not is_whole)


def _newest_first(record: Record) -> tuple[int, int, int]:
    return -record.timestamp_ms, record.partition, -record.offset


def _oldest_first(record: Record) -> tuple[int, int, int]:
    return record.timestamp_ms, record.partition, record.offset


class _Kept:
    """Keeps the first PAGE of the selected records in ``order``, shortened as in lists. ``wanted``: selects records.
    ``total``: the number of selected records."""

    def __init__(self, order: Callable[[Record], Any], wanted: Callable[[Record], bool] | None = None) -> None:
        self._order, self._wanted = order, wanted
        self._found: list[Record] = []
        self.total = 0

    def add(self, record: Record) -> None:
        if self._wanted is not None and not self._wanted(record):
            return
        self.total += 1
        self._found.append(listed(record))
        if len(self._found) >= 2 * PAGE:
            self._found = self.records()

    def records(self) -> list[Record]:
        return sorted(self._found, key=self._order)[:PAGE]


def listed(record: Record) -> Record:
    """The record without headers, and with only the beginning of a long key or value."""
    return Record(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        beginning(record.key),
        beginning(record.value),
        None,
        record.leader_epoch,
        record.timestamp_type,
    )


async def _read(
    consumer: AsyncConsumer,
    firsts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    add: Callable[[Record], None],
    *,
    deadline: float,
    each_max: int | None = None,
) -> bool:
    """Call ``add`` with the records of each partition from ``firsts`` up to ``ends``, at most ``each_max`` records of
    each partition. Returns whether all of these records were read before the deadline."""
    left = {tp: ends[tp] for tp, first in firsts.items() if first < ends[tp]}
    counts = dict.fromkeys(left, 0)
    await consumer.assign(list(left))
    for tp in left:
        await consumer.seek(tp, firsts[tp])
    while left:
        wait_s = min(1.0, deadline - time.monotonic())
        if wait_s <= 0:
            return False
        for record in await consumer.poll(timeout=wait_s, max_records=2_000):
            tp = TopicPartition(record.topic, record.partition)
            if tp in left and record.offset < left[tp] and (each_max is None or counts[tp] < each_max):
                counts[tp] += 1
                add(record)
        done = [
            tp
            for tp, end in left.items()
            if (each_max is not None and counts[tp] >= each_max) or await consumer.position(tp) >= end
        ]
        for tp in done:
            del left[tp]
        if done:
            await consumer.pause(*done)
    return True


def _share(partitions: int) -> int:
    """Return how many records a search reads of each partition, depending on the number of partitions."""
    return max(1, min(PAGE, _READ_MAX // max(1, partitions)))


def _deadline() -> float:
    return time.monotonic() + SEARCH_S


def _found(
    records: list[Record],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    *,
    scanned: int = 0,
    before: Mapping[int, int] | None = None,
    is_partial: bool = False,
) -> Found:
    return Found(
        tuple(records),
        {tp.partition: offset for tp, offset in starts.items()},
        {tp.partition: offset for tp, offset in ends.items()},
        scanned,
        before,
        is_partial,
    )
