"""The reading part of a consumer, which never waits: assignment, positions, and records from the inbox.

The caller's thread decodes records on demand, one Slice (fetched batches of one partition) at a time. The position of a
partition is the offset after the last record that was returned.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_core.errors import HeadraceError, IllegalStateError, SerializationError
from headrace_core.records import Buffer, Record, RecordIterator, iterate_headers
from headrace_core.types import TopicPartition

from .. import arguments
from ..engine.client import Engine
from ..engine.io_thread import closed_error, forked_error
from ..metrics import Metrics, PartitionCounts
from ..models import OffsetAndMetadata
from ..serializers import WouldWait, deserializer
from .decoded import Decoded, take_rows
from .fetcher import Fetcher
from .inbox import Inbox, Partition, Slice

if TYPE_CHECKING:
    import pyarrow as pa

    from ..tracing import ConsumerTraces

#: Partitions as the consumer's methods accept them: ``pause(a, b)`` and ``pause([a, b])`` mean the same.
Named = Iterable["TopicPartition | Iterable[TopicPartition]"]
#: Slices of one partition that are queued again, each with its iterator.
Queued = list[tuple[Slice, RecordIterator]]


class Reading:
    """Partitions, positions and current records of one consumer. A Reading is not thread-safe."""

    def __init__(self, config: dict[str, Any], engine: Engine) -> None:
        self.state = "open"
        self.metrics = Metrics(config)
        self.partition_counts = PartitionCounts()
        self.inbox = Inbox(config["fetch.queue.max.bytes"], self._room)
        self.fetcher = Fetcher(engine, config, self.inbox, self.metrics)
        self.max_poll_records: int = config["max.poll.records"]
        self._poll_bytes: int = config["fetch.max.bytes"]
        self.check_crcs: bool = config["check.crcs"]
        self.reads_committed: bool = config["isolation.level"] == "read_committed"
        self.key_deserializer = deserializer(config["key.deserializer"], "key.deserializer")
        self.value_deserializer = deserializer(config["value.deserializer"], "value.deserializer")
        self.plain = self.key_deserializer is None and self.value_deserializer is None
        self.traces: ConsumerTraces | None = None
        if config["otel.traces.enable"]:
            from ..tracing import ConsumerTraces

            self.traces = ConsumerTraces(config)
        self.partitions: dict[TopicPartition, Partition] = {}
        self._engine = engine
        self._current: tuple[Slice, RecordIterator] | None = None
        #: The iterator of the Slice (fetched batches of one partition) from which the consumer returns records. An
        #: iteration stops before its next record when a different iterator or None is ``under_way``; the I/O thread may
        #: set None (``interrupt``).
        self.under_way: RecordIterator | None = None
        # Slices of paused partitions.
        self._held: dict[TopicPartition, deque[tuple[Slice, RecordIterator | None]]] = {}
        # Slices (fetched batches of one partition) that the consumer returns before the slices of the inbox.
        self._resumed: deque[tuple[Slice, RecordIterator | None]] = deque()
        self._errors: dict[TopicPartition, HeadraceError] = {}  # errors of partitions that are stopped until a seek
        # The Slice whose retriable error ``next_slice`` raised last; None after a Slice with records.
        self._failed: Slice | None = None
        # The rows that the last table left of a batch; ``_resumed`` begins with this batch.
        self._decoded: Decoded | None = None
        # The position at which the last ``drain`` or ``take_arrow`` began to read each partition.
        self._taken: dict[Partition, int] = {}
        self.is_dirty = False  # the fetcher does not know the present assignment: see ``sync``
        #: Whether a position has moved over data without records for the caller since the caller's poll began: aborted
        #: transactions, transaction markers, gaps left by compaction. Then the poll ends (KAFKA-12980).
        self.skipped = False

    def traceparent(self) -> str | None:
        """The trace context of the program's current span, for the request of a commit; None if the span is not
        sampled."""
        return None if self.traces is None else self.traces.current()

    def _room(self) -> None:
        self._engine.call(self.fetcher.has_room)

    @property
    def current(self) -> tuple[Slice, RecordIterator] | None:
        return self._current

    @current.setter
    def current(self, value: tuple[Slice, RecordIterator] | None) -> None:
        self._current = value
        self.under_way = None if value is None else value[1]

    def check_open(self) -> None:
        if self.state == "forked":
            raise forked_error("consumer")
        if self.state != "open":
            raise closed_error("consumer")
        self._engine.check_alive()

    # --- assignment and positions ------------------------------------------------------------------------------------

    def replace_assignment(self, wanted: Iterable[TopicPartition], *, from_group: bool) -> None:
        """Replace the assignment; partitions in the old and the new assignment keep their positions. ``from_group``:
        new partitions begin at the group's committed offset."""
        old = self.partitions
        self.partitions = {tp: old.get(tp) or self._new(tp, from_group=from_group) for tp in wanted}
        for tp, assigned in old.items():
            if tp not in self.partitions:
                self._void(assigned)
        self.is_dirty = True

    def add_assigned(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Add partitions that the group has assigned, with their committed offsets; without an offset (None)
        auto.offset.reset applies."""
        for tp, committed in offsets.items():
            assigned = self.partitions[tp] = self._new(tp)
            if committed is not None:
                assigned.position = committed.offset
                assigned.begun = committed.offset, committed.leader_epoch
        self.is_dirty = True

    def remove_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            assigned = self.partitions.pop(tp, None)
            if assigned is not None:
                self._void(assigned)

    def positions(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The known positions of the given partitions (None: all), with the leader epoch of the record before each
        position. A commit contains the leader epoch, by which the next reader of the partition detects a diverged log
        (KIP-320)."""
        found = {}
        for tp in self.partitions if partitions is None else partitions:
            position = self.known_position(tp) if tp in self.partitions else None
            if position is not None:
                found[tp] = OffsetAndMetadata(position, leader_epoch=self._epoch_before(tp, position))
        return found

    def with_epochs(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets with the leader epoch of the record before each; see ``positions``."""
        return {
            tp: OffsetAndMetadata(each.offset, each.metadata, self._epoch_before(tp, each.offset))
            for tp, each in offsets.items()
        }

    def _epoch_before(self, tp: TopicPartition, offset: int) -> int:
        return self.partitions[tp].epoch_before(offset) if tp in self.partitions else -1

    def offsets_to_commit(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | Record | None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit for the argument of a commit; for a record, the offset after the record. Raises
        InvalidArgumentError."""
        if offsets is None:
            return self.positions()
        found = {}
        if isinstance(offsets, Record):
            tp, after = TopicPartition(offsets.topic, offsets.partition), offsets.offset + 1
            return {tp: OffsetAndMetadata(after, leader_epoch=self._epoch_before(tp, after))}
        for tp, given in arguments.mapping("offsets", offsets, "TopicPartition: offset, or a record").items():
            partition = arguments.partition(tp)
            found[partition] = arguments.offset_to_commit(partition, given)
        return found

    def clear_assignment(self) -> None:
        self.remove_assigned(list(self.partitions))
        self.sync()

    def _new(self, tp: TopicPartition, *, from_group: bool = False) -> Partition:
        assigned = Partition(tp, self.partition_counts.of(*tp))
        assigned.from_group = from_group
        return assigned

    def assigned(self, tp: TopicPartition) -> Partition:
        found = self.partitions.get(tp)
        if found is None:
            raise IllegalStateError(f"{TopicPartition(*tp)} is not assigned to this consumer; assign it first")
        return found

    def _void(self, assigned: Partition) -> Partition:
        """Make all fetched data of the partition stale; returns the Partition that takes its place."""
        new = assigned.anew()
        if self.partitions.get(assigned.tp) is assigned:
            self.partitions[assigned.tp] = new
        self._held.pop(assigned.tp, None)
        self._errors.pop(assigned.tp, None)
        if self.current is not None and self.current[0].partition is assigned:
            self.current = None
        self._drop_decoded(assigned)
        self._resumed = deque(item for item in self._resumed if item[0].partition is not assigned)
        self.is_dirty = True
        return new

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.check_open()
        assigned = self.assigned(tp)
        offset = arguments.offset(offset)
        new = self._void(assigned)
        new.position, new.reset = offset, None

    def seek_to(self, partitions: Named, where: str) -> None:
        self.check_open()
        for tp in list(self.partitions) if not partitions else each_of(partitions):
            self._void(self.assigned(tp)).reset = where

    def pause(self, partitions: Named) -> None:
        self.check_open()
        for tp in each_of(partitions):
            assigned = self.assigned(tp)
            if not assigned.paused:
                assigned.paused = self.is_dirty = True
                self._hold_taken(assigned)

    def resume(self, partitions: Named) -> None:
        self.check_open()
        for tp in each_of(partitions):
            assigned = self.assigned(tp)
            if assigned.paused:
                assigned.paused = False
                self.is_dirty = True
                self._resumed.extend(self._held.pop(tp, ()))

    def _hold_taken(self, assigned: Partition) -> None:
        """Hold the partition's current slice, and behind it its slices in ``_resumed``. Slices that stayed in
        ``_resumed`` would come before the current slice if the next resume came before a poll."""
        held: deque[tuple[Slice, RecordIterator | None]] = deque()
        if self.current is not None and self.current[0].partition is assigned:
            assigned.position = self.current[1].position
            held.append(self.current)
            self.current = None
        held.extend(entry for entry in self._resumed if entry[0].partition is assigned)
        if held:
            self._resumed = deque(entry for entry in self._resumed if entry[0].partition is not assigned)
            self._held[assigned.tp] = held
            self._limit_held(assigned)

    def _hold(self, item: Slice, iterator: RecordIterator | None) -> None:
        """Hold a slice of a paused partition, behind the partition's held slices."""
        self._held.setdefault(item.partition.tp, deque()).append((item, iterator))
        self._limit_held(item.partition)

    def _limit_held(self, assigned: Partition) -> None:
        """Drop the slices of the partition if too many bytes are held, and fetch them again later: repeated pauses must
        not fill the memory."""
        self._drop_decoded(assigned)
        kept = sum(entry[0].size for some in (self._resumed, *self._held.values()) for entry in some)
        if kept > self.inbox.max_bytes:
            position = self.known_position(assigned.tp)
            self._void(assigned).position = position

    def known_position(self, tp: TopicPartition) -> int | None:
        """The partition's position; None until it has been looked up."""
        assigned = self.assigned(tp)
        if self.current is not None and self.current[0].partition is assigned:
            return int(self.current[1].position)
        return assigned.found if assigned.position is None else assigned.position

    def sync(self) -> None:
        if not self.is_dirty or self.state != "open":  # (a callback may have closed the consumer)
            return
        self.is_dirty = False
        wanted = [(assigned, self.known_position(tp)) for tp, assigned in self.partitions.items()]
        self._engine.call(self.fetcher.sync, wanted)

    # --- for the group (on the I/O thread) ---------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Stop the iteration before the next record, because the caller must do other work first, such as a rebalance
        callback."""
        self.inbox.alarm = True
        self.under_way = None
        self.inbox.notify()

    def shut(self, is_shut: bool) -> None:
        """Forbid or allow the return of records. When the return of records is allowed again, interrupt the caller's
        wait, because records that are already queued do not wake the caller."""
        self.inbox.shut = is_shut
        if is_shut:
            self.under_way = None
        else:
            self.interrupt()

    # --- returning records -------------------------------------------------------------------------------------------

    def next_slice(self) -> tuple[Slice, RecordIterator | None] | None:
        """The next Slice (fetched batches of one partition) to read records from, and its iterator if the consumer has
        begun to read the Slice. If a partition has failed, its error is raised in place of its next Slice.

        After a retriable error, the next Slice with records comes before further retriable errors. So partitions that
        cannot be read, however many they are, do not keep the caller from the records of the others.
        """
        passed: list[Slice] = []
        try:
            while True:
                if self._resumed:
                    item, iterator = self._resumed.popleft()
                else:
                    taken = self.inbox.take()
                    if taken is None:
                        if passed:
                            self._raise(passed.pop(0))
                        self._raise_standing()
                        return None
                    item, iterator = taken, None
                if item.partition.paused:
                    self._hold(item, iterator)
                elif item.error is None:
                    self._failed = None
                    return item, iterator
                elif self._failed is not None and item.error.retriable:
                    passed.append(item)
                else:
                    self._raise(item)
        finally:
            self.inbox.slices.extendleft(reversed(passed))

    def _raise(self, item: Slice) -> None:
        assert item.error is not None
        if item.error.retriable:
            self._failed = item
        else:
            self._errors[item.partition.tp] = item.error
        item.is_raised = True
        raise item.error.with_traceback(None)

    def _raise_later(self, error: Exception) -> None:
        """Let the next call raise ``error``, because the caller gets records from this one."""
        if self._failed is not None and self._failed.error is error:
            self._failed.is_raised = False
            self.inbox.slices.appendleft(self._failed)
            self._failed = None

    def _raise_standing(self) -> None:
        """Raise the error of a partition that has stopped: at each poll, after the fetched records of all other
        partitions."""
        for tp, error in self._errors.items():
            if not self.partitions[tp].paused:
                raise error.with_traceback(None)

    def next_iterator(self) -> RecordIterator | None:
        """The iterator to read records from: the current one, or a new iterator over the next Slice; None without
        fetched records."""
        if self.inbox.alarm or self.inbox.is_shut:
            return None
        if self._decoded is not None:
            self._keep(None)
        if self._current is None:
            if not (self.inbox.slices or self._resumed or self._errors) or (found := self.next_slice()) is None:
                return None
            item, iterator = found
            if iterator is None:
                tp = item.partition.tp
                iterator = RecordIterator(
                    item.parts,
                    topic=tp.topic,
                    partition=tp.partition,
                    start_offset=item.fetch_offset,
                    check_crc=self.check_crcs,
                )
                self._count_consumed(item)
            self._current = (item, iterator)
        iterator = self.under_way = self._current[1]
        # Check again: the I/O thread may have set a flag before this method set ``under_way``.
        return None if self.inbox.alarm or self.inbox.is_shut else iterator

    def _iterator(self, item: Slice, offset: int) -> RecordIterator:
        tp = item.partition.tp
        return RecordIterator(
            item.parts, topic=tp.topic, partition=tp.partition, start_offset=offset, check_crc=self.check_crcs
        )

    def finish_slice(self, iterator: RecordIterator) -> None:
        """Set the position of a partition to the end of the Slice whose iterator has ended."""
        if self._current is not None and self._current[1] is iterator:
            item = self._current[0]
            item.partition.position = max(iterator.position, item.next_offset)
            self._current = self.under_way = None

    def drain(self, max_records: int) -> list[Record]:
        """Return up to ``max_records`` fetched records. The last one may reach ``fetch.max.bytes`` of keys, values and
        headers, which limits them however well they were compressed. ``drain`` raises an error only if it has no
        records to return. Raises WouldWait when a deserializer waits for the schema registry.

        If ``drain`` returns records instead of an error, the error occurs again at the next call. A damaged Slice stays
        the current Slice, the error of a stopped partition is kept in ``_errors``, and the Slice of a retriable error
        is queued again.
        """
        traces = self.traces
        began_ns = 0 if traces is None else time.time_ns()
        self._taken = {}
        out: list[Record] = []
        left = self._poll_bytes
        try:
            try:
                while len(out) < max_records and left > 0 and (iterator := self.next_iterator()) is not None:
                    assert self._current is not None
                    item, stood = self._current[0], iterator.position
                    self._taken.setdefault(item.partition, stood)
                    taken = iterator.take(max_records - len(out), left)
                    left -= iterator.taken_bytes
                    if not taken:
                        self.skipped |= item.next_offset > stood
                    elif not self.plain:
                        taken = self._deserialized(taken)
                    if not taken or iterator.position >= item.next_offset:
                        self.finish_slice(iterator)
                    if out:
                        out += taken
                    else:
                        out = taken
            except (HeadraceError, WouldWait) as error:
                if not out:
                    raise
                self._raise_later(error)
            if traces is not None:
                traces.polled(out, began_ns)
            return out
        except (HeadraceError, WouldWait):
            raise
        except BaseException:  # Ctrl-C, or no memory
            self.give_back()
            raise

    def deserialize(self, record: Record) -> Record:
        """Replace the record's key and value by the results of the deserializers. Raises SerializationError."""
        if self.key_deserializer is not None and record.key is not None:
            record.key = self.key_deserializer(record.topic, record.key)
        if self.value_deserializer is not None and record.value is not None:
            record.value = self.value_deserializer(record.topic, record.value)
        return record

    def _deserialized(self, records: list[Record]) -> list[Record]:
        """Deserialize records up to the first failure; the next poll starts at the record that failed."""
        for index, record in enumerate(records):
            try:
                self.deserialize(record)
            except WouldWait:
                self.go_back(record)
                if index == 0:
                    raise
                return records[:index]
            except SerializationError as error:
                raw = self.go_back(record)
                if index == 0:
                    raise _located(error, raw) from error.__cause__
                return records[:index]
        return records

    def go_back(self, record: Record) -> Record:
        """Go back to ``record``, which was taken from the current Slice: the next call returns ``record`` again.
        Returns it unchanged."""
        assert self.current is not None
        item = self.current[0]
        self.current = (item, self._iterator(item, record.offset))
        return self._iterator(item, record.offset).take(1)[0]

    def iterate_ready(self, iterator: RecordIterator) -> Iterator[Record]:
        """The records of one Slice, until the Slice ends or is no longer the current one (seek, pause, close)."""
        if self.plain:
            for record in iterator:
                yield record
                if self.under_way is not iterator:
                    return
        else:
            while (deserialized := self._next_deserialized(iterator)) is not None:
                yield deserialized
                if self.under_way is not iterator:
                    return
        self.finish_slice(iterator)

    def _next_deserialized(self, iterator: RecordIterator) -> Record | None:
        """The next record of the current Slice; None at its end."""
        assert self.current is not None
        item, stood = self.current[0], iterator.position
        try:
            return next(iter(self._deserialized(iterator.take(1))), None)
        except (HeadraceError, WouldWait):
            raise
        except BaseException:  # Ctrl-C: a later iteration begins with this record
            self.current = (item, self._iterator(item, stood))
            raise

    def take_arrow(self, max_bytes: int, columns: list[str] | None, include_headers: bool) -> list[pa.RecordBatch]:
        """Decode fetched data: at most ``max_bytes`` of keys, values and headers, or one record. The result has one or
        more Arrow batches per partition.

        If a batch is damaged, the call returns the batches before the damaged one, and a later call raises the error.
        """
        self._taken = {}
        if self.inbox.alarm or self.inbox.is_shut:
            return []
        try:
            return self._batches(max_bytes, columns, include_headers)
        except HeadraceError:
            raise
        except BaseException:  # Ctrl-C, or no memory
            self.give_back()
            raise

    def _batches(self, max_bytes: int, columns: list[str] | None, include_headers: bool) -> list[pa.RecordBatch]:
        from headrace_core.records.arrow import arrow_schema, data_bytes

        names = arrow_schema(None if columns is None else tuple(columns), include_headers).names
        if "offset" not in names:  # the position after the returned rows
            columns = [*(columns or ()), "offset"]
        taken: dict[Partition, list[tuple[Slice, int]]] = {}
        size = 0
        if self.current is not None:
            item, iterator = self.current
            self._take(item, int(iterator.position), taken)
            self.current = None
        while size < max_bytes:
            try:
                found = self.next_slice()
            except HeadraceError as error:
                if not taken:
                    raise
                self._raise_later(error)
                break
            if found is None:
                break
            item, old = found
            if old is None:
                self._count_consumed(item)
            self._take(item, item.fetch_offset if old is None else int(old.position), taken)
            size += item.size
        batches: list[pa.RecordBatch] = []
        failure: HeadraceError | None = None
        # What is left of each partition, in the order of the next call. A partition with decoded rows comes first, but
        # then the others: a busy partition keeps no other waiting.
        first: list[Queued] = []
        waiting: list[Queued] = []
        last: list[Queued] = []
        left, left_over = max_bytes, None
        for assigned, entries in taken.items():
            start = entries[0][1]
            if failure is not None or first or (batches and left <= max_bytes // 2):
                waiting.append(self._from(entries, start))
                continue
            decode = partial(self._decode_arrow, assigned, columns=columns, include_headers=include_headers)
            kept = self._decoded
            decoded = None if kept is None else kept.rows_at(assigned, start, columns, include_headers)
            try:
                parts = [part for item, _ in entries for part in item.parts]
                after = start if decoded is None else decoded.column("offset")[-1].as_py() + 1
                source = decode(parts, after, max_bytes=max_bytes, is_cut=False)
                rows, left, rest, is_end = take_rows(
                    decoded, source, left, is_first=not batches, is_alone=len(taken) == 1
                )
            except HeadraceError as error:
                failure = error
                rows, end, damaged = self._arrow_before_damage(entries, partial(decode, max_bytes=max_bytes))
                left -= sum(map(data_bytes, rows))
                # The next call raises the error; without records before it, the other partitions come next.
                (first if batches or rows else last).append(damaged)
            else:
                end = rows[-1].column("offset")[-1].as_py() + 1 if rows else start
                if is_end:
                    end = entries[-1][0].next_offset
                _move(entries[0][0], end)
                (last if rest is None else first).append(self._from(entries, end))
                if rest is not None and not assigned.is_stale and self.state == "open":
                    left_over = Decoded(assigned, rest, columns, include_headers)
            batches += rows
            self.skipped |= end > start
        for again in reversed(first + waiting + last):
            self._queue(again)
        self._keep(left_over)
        if failure is not None and not batches:
            raise failure
        return [batch.select(names) for batch in batches]

    def _from(self, entries: list[tuple[Slice, int]], position: int) -> Queued:
        """The records of the entries from ``position`` on."""
        left = [(item, max(start, position)) for item, start in entries if item.next_offset > position]
        return [(item, self._iterator(item, start)) for item, start in left]

    def _keep(self, decoded: Decoded | None) -> None:
        self._decoded = decoded
        self.inbox.count_decoded(0 if decoded is None else decoded.size)

    def _drop_decoded(self, assigned: Partition) -> None:
        if self._decoded is not None and self._decoded.assigned is assigned:
            self._keep(None)

    def _queue(self, again: Queued) -> None:
        """Queue slices of one partition before all others, unless a seek has made them stale."""
        if again and not again[0][0].partition.is_stale:
            self._resumed.extendleft(reversed(again))

    def _take(self, item: Slice, start: int, taken: dict[Partition, list[tuple[Slice, int]]]) -> None:
        taken.setdefault(item.partition, []).append((item, start))
        self._taken.setdefault(item.partition, start)

    def give_back(self) -> None:
        """Undo the last ``drain`` or ``take_arrow``, whose caller did not receive the result: fetch the data again."""
        for assigned, start in self._taken.items():
            if not assigned.is_stale and self.state == "open":
                self._void(assigned).position = start

    def _decode_arrow(
        self,
        assigned: Partition,
        parts: list[Buffer],
        start: int,
        *,
        columns: list[str] | None,
        include_headers: bool,
        max_bytes: int,
        is_cut: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        from headrace_core.records.arrow import iterate_arrow

        return iterate_arrow(
            parts,
            topic=assigned.tp.topic,
            partition=assigned.tp.partition,
            start_offset=start,
            end_offset=assigned.end_offset,
            columns=columns,
            include_headers=include_headers,
            check_crc=self.check_crcs,
            max_bytes=max_bytes,
            is_cut=is_cut,
        )

    def _arrow_before_damage(
        self, entries: list[tuple[Slice, int]], decode: Callable[[list[Buffer], int], Iterator[pa.RecordBatch]]
    ) -> tuple[list[pa.RecordBatch], int, Queued]:
        """Decode batch by batch until a batch fails. Returns the batches, the position after them, and the slices from
        the failed batch on."""
        batches: list[pa.RecordBatch] = []
        position = entries[0][1]
        for index, (item, start) in enumerate(entries):
            position = start
            try:
                for part in item.parts:
                    for at, header in iterate_headers(part):
                        found = decode([part[at : at + header.size]], position)
                        batches += [batch for batch in found if batch.num_rows]
                        position = max(position, header.next_offset)
            except HeadraceError:
                again = [(item, self._iterator(item, position))]
                again += [(later, self._iterator(later, at)) for later, at in entries[index + 1 :]]
                return batches, _move(item, position), again
            position = _move(item, item.next_offset)
        return batches, position, []

    def _end(self, assigned: Partition) -> int:
        """The end of the records that this consumer may read, as an offset; -1: not known yet."""
        return assigned.last_stable_offset if self.reads_committed else assigned.high_watermark

    # --- close -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the consumer: it returns no more records, and frees the fetched records."""
        self.state = "closed"
        self.current = None
        self._held.clear()
        self._resumed.clear()
        self._taken = {}
        self._decoded = None
        self.inbox.notify()

    def _count_consumed(self, item: Slice) -> None:
        count = item.next_offset - item.fetch_offset
        self.metrics.record(time.monotonic(), ("records-consumed", count, 1))
        item.partition.counts["records-consumed-total"] += count

    def partition_values(self) -> dict[TopicPartition, dict[str, float]]:
        """The record counts of each partition that was read, and the lag of each assigned partition."""
        found = self.partition_counts.values()
        for tp, assigned in list(self.partitions.items()):
            end, position = self._end(assigned), self.known_position(tp)
            if end >= 0 and position is not None:
                found.setdefault(tp, {})["records-lag"] = float(max(end - position, 0))
        return found

    def metric_values(self) -> dict[str, float]:
        m = self.metrics
        lags = [
            # After a seek, or from a committed offset, the position may lie above the last stable offset.
            max(end - position, 0)
            for tp, assigned in self.partitions.items()
            if (end := self._end(assigned)) >= 0 and (position := self.known_position(tp)) is not None
        ]
        return {
            "records-consumed-rate": m["records-consumed"].rate(),
            "records-consumed-total": m["records-consumed"].total,
            "bytes-consumed-rate": m["bytes-consumed"].rate(),
            "bytes-consumed-total": m["bytes-consumed"].total,
            "fetch-rate": m["fetch"].rate(),
            "fetch-total": m["fetch"].total,
            "fetch-latency-avg": m["fetch-latency"].average(),
            "fetch-latency-max": m["fetch-latency"].maximum(),
            "fetch-throttle-time-avg": m["fetch-throttle-time"].average(),
            "fetch-throttle-time-max": m["fetch-throttle-time"].maximum(),
            "fetch-size-avg": m["fetch-size"].average(),
            "fetch-size-max": m["fetch-size"].maximum(),
            "records-lag-max": float(max(lags, default=0)),
            "assigned-partitions": float(len(self.partitions)),
            "queued-bytes": float(self.inbox.queued_bytes),
        }


def _move(item: Slice, position: int) -> int:
    """Set the position of a Slice's partition, and return it. A seek during the decoding, from another task, keeps its
    position."""
    if not item.partition.is_stale:
        item.partition.position = position
    return position


def each_of(partitions: Named) -> list[TopicPartition]:
    if isinstance(partitions, TopicPartition):
        raise arguments.wrong("partitions", partitions, "must be a list of TopicPartition(topic, number)")
    found: list[TopicPartition] = []
    for item in arguments.items("partitions", partitions, "TopicPartition(topic, number)"):
        if isinstance(item, list | set | frozenset | dict):
            found += each_of(item)
            continue
        found.append(arguments.partition(item))
    return found


def _located(error: SerializationError, record: Record) -> SerializationError:
    """A copy of a deserializer's error that also names the record which could not be deserialized (KIP-1036). The copy
    has the class of the original error."""
    where = f"{record.topic}-{record.partition} at offset {record.offset}"
    found = error.copy()
    found.args = (
        f"{where}: {error.message}; seek past it to continue: seek(error.topic_partition, {record.offset + 1})",
    )
    found.topic, found.record = record.topic, record
    found.partition, found.offset, found.topic_partition = record.partition, record.offset, record.topic_partition
    return found
