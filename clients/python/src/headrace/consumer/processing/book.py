"""The book of records in progress: which record may be handled now, and which offsets are finished.

The book is pure: it has no clock, no threads and no I/O. The callers of the book call one method at a time.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, Literal

from headrace_core.errors import InvalidArgumentError
from headrace_core.records import Record
from headrace_core.types import TopicPartition

from ...models import OffsetAndMetadata
from .progress import WINDOW, decode_done, encode_done

#: Which records ``process`` handles one after another: records with the same key in a partition, all records of a
#: partition, or none.
Order = Literal["key", "partition", "none"]
ORDERS = ("key", "partition", "none")


class Part:
    """A partition in the book. ``done_before``: offsets of records that an earlier owner of the partition has handled.
    ``closing``: no further record of the partition is handled, because the partition is being revoked. ``is_sorted``:
    False after the consumer's position moved back (a seek, or a truncated log), because lower offsets then follow
    higher ones in ``open``."""

    __slots__ = ("bytes", "closing", "done_before", "end", "is_sorted", "open", "running", "tp")

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        #: Maps the offset of each unfinished record, in order of arrival, to the number of records with this offset.
        #: After the consumer's position moved back, an offset can have two records.
        self.open: OrderedDict[int, int] = OrderedDict()
        self.is_sorted = True
        self.end = 0  # one past the last added offset
        self.done_before: set[int] = set()
        self.bytes = 0  # size of the unfinished records
        self.running = 0
        self.closing = False

    @property
    def first(self) -> int | None:
        """The first unfinished offset."""
        if not self.open:
            return None
        return next(iter(self.open)) if self.is_sorted else min(self.open)


class Work:
    """A record to handle. ``attempts``: how often the record's handler has been called. ``key`` and ``value``: the
    record's bytes, which a deserializer replaces in ``record``. ``has_failed``: its dead letter is being stored."""

    __slots__ = ("attempts", "bytes", "chain", "has_failed", "key", "part", "record", "value")

    def __init__(self, record: Record, part: Part, chain: Hashable) -> None:
        self.record = record
        self.part = part
        self.chain = chain
        self.key: bytes | None = record.key
        self.value: bytes | None = record.value
        self.attempts = 0
        self.has_failed = False
        self.bytes = len(record.key or b"") + len(record.value or b"")

    def __str__(self) -> str:
        return f"{self.record.topic}-{self.record.partition} at offset {self.record.offset}"


class Book:
    """Records in progress. ``order`` is one of ORDERS; records without a key have no order under ``key``."""

    def __init__(self, order: str) -> None:
        self._order = order
        self._parts: dict[TopicPartition, Part] = {}
        self._ready: deque[Work] = deque()
        #: A chain is the set of records that must be handled one after another. Maps each chain with a record that is
        #: ready, running or delayed to the later records, which wait for that record.
        self._chains: dict[Hashable, deque[Work]] = {}
        self._delayed: list[tuple[float, int, Work]] = []
        self._numbers = itertools.count()
        self.unfinished = 0  #: Number of records that were added to the Book and are neither finished nor dropped.
        self.bytes = 0  #: Size in bytes of the keys and values of the unfinished records.
        self.running = 0  #: Number of records in running handlers.
        #: Maps each record in a running handler to the time at which its handler began, longest-running first.
        self.begun: dict[Work, float] = {}

    def assigned(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Note new partitions with their committed offsets, whose metadata may list finished records."""
        for tp, committed in offsets.items():
            part = self._parts[tp] = Part(tp)
            if committed is not None:
                part.done_before = decode_done(committed.offset, committed.metadata)

    def add(self, records: Iterable[Record]) -> None:
        """Add records, in the order of their offsets; records that an earlier owner has finished are left out."""
        for record in records:
            tp = TopicPartition(record.topic, record.partition)
            part = self._parts.get(tp)
            if part is None:
                part = self._parts[tp] = Part(tp)
            if record.offset < part.end:
                part.is_sorted = not part.open
                part.done_before.clear()  # the same offsets may hold different records now
            part.end = record.offset + 1
            if record.offset in part.done_before:
                part.done_before.discard(record.offset)
                continue
            part.open[record.offset] = part.open.get(record.offset, 0) + 1
            work = Work(record, part, self._chain_of(tp, record))
            self.unfinished += 1
            self.bytes += work.bytes
            part.bytes += work.bytes
            if work.chain is None:
                self._ready.append(work)
            elif (waiting := self._chains.get(work.chain)) is not None:
                waiting.append(work)
            else:
                self._chains[work.chain] = deque()
                self._ready.append(work)

    def _chain_of(self, tp: TopicPartition, record: Record) -> Hashable:
        if self._order == "partition":
            return tp
        return (tp, record.key) if self._order == "key" and record.key is not None else None

    def take(self, now: float) -> Work | None:
        """Take the next record that may be handled at the time ``now``; None if there is none."""
        while self._delayed and self._delayed[0][0] <= now:
            self._ready.append(heapq.heappop(self._delayed)[2])
        while self._ready:
            work = self._ready.popleft()
            if work.part.closing:
                self._advance(work)
                continue
            work.attempts += 1
            work.part.running += 1
            self.running += 1
            self.begun[work] = now
            return work
        return None

    @property
    def due_at(self) -> float | None:
        """The time at which the next delayed record may be handled."""
        return self._delayed[0][0] if self._delayed else None

    def finish(self, work: Work) -> None:
        """Note that a record is handled, or is stored as a dead letter."""
        self._stopped(work)
        part, offset = work.part, work.record.offset
        if offset in part.open:
            part.open[offset] -= 1
            if not part.open[offset]:
                del part.open[offset]
                part.is_sorted = part.is_sorted or not part.open
            part.bytes -= work.bytes
            if self._parts.get(part.tp) is part:
                self.unfinished -= 1
                self.bytes -= work.bytes
        self._advance(work)

    def again(self, work: Work, at: float) -> None:
        """Handle a record again at the time ``at``; later records with the same key wait."""
        self._stopped(work)
        if work.part.closing:
            self._advance(work)
        else:
            heapq.heappush(self._delayed, (at, next(self._numbers), work))

    def give_back(self, work: Work) -> None:
        """Note that the handler of a record was interrupted; the record stays unfinished."""
        self._stopped(work)
        self._advance(work)

    def _stopped(self, work: Work) -> None:
        self.running -= 1
        del self.begun[work]
        work.part.running -= 1

    def _advance(self, work: Work) -> None:
        """Make the next record of a chain ready; the records of a chain are handled one after another."""
        if work.chain is None:
            return
        waiting = self._chains[work.chain]
        if waiting:
            self._ready.append(waiting.popleft())
        else:
            del self._chains[work.chain]

    def close(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Handle no further record of the partitions (None: of all); running handlers may finish their records."""
        parts = (
            self._parts.values() if partitions is None else [self._parts[tp] for tp in partitions if tp in self._parts]
        )
        closing = set(map(id, parts))
        for part in parts:
            part.closing = True
        kept = []
        for entry in self._delayed:
            if id(entry[2].part) in closing:
                self._advance(entry[2])
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._delayed = kept

    def is_running(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether a handler is running for a record of the partitions."""
        return any(self._parts[tp].running for tp in partitions if tp in self._parts)

    def running_of(self, partitions: Iterable[TopicPartition] | None = None) -> list[Work]:
        """The records of the partitions (None: of all) whose handlers are running; the longest-running one is first."""
        parts = None if partitions is None else {id(self._parts[tp]) for tp in partitions if tp in self._parts}
        return [work for work in self.begun if parts is None or id(work.part) in parts]

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are no longer assigned to this consumer."""
        gone = [tp for tp in partitions if tp in self._parts]
        self.close(gone)
        for tp in gone:
            part = self._parts.pop(tp)
            self.unfinished -= sum(part.open.values())
            self.bytes -= part.bytes

    def too_far(self) -> set[TopicPartition]:
        """The partitions that get no more records now, because their last offset is WINDOW or more after their first
        unfinished offset."""
        return {
            tp for tp, part in self._parts.items() if (first := part.first) is not None and part.end - first >= WINDOW
        }

    def positions(self, read: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit, without leader epochs. ``read``: the positions after the records that the consumer has
        returned, which are committed for partitions without unfinished records."""
        return {
            tp: OffsetAndMetadata(*_progress(self._parts[tp], position.offset)) if tp in self._parts else position
            for tp, position in read.items()
        }


def _progress(part: Part, read: int) -> tuple[int, str]:
    """The first unfinished offset of a partition, and the metadata with the finished offsets above it. ``read``: the
    position after the records that the consumer has returned."""
    base = read if part.first is None else min(part.first, read)
    later = {offset for offset in part.done_before if offset >= max(part.end, base)}
    if not later:
        return base, encode_done(base, part.end, part.open)
    begin = max(part.end, base)
    end = min(max(later) + 1, base + WINDOW)
    return base, encode_done(
        base, end, itertools.chain(part.open, (each for each in range(begin, end) if each not in later))
    )


def check_order(order: Any) -> None:
    """Raise InvalidArgumentError unless ``order`` is one of ORDERS."""
    if order not in ORDERS:
        raise InvalidArgumentError(f"order={order!r}: must be 'key', 'partition' or 'none'")
