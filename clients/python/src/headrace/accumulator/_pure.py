"""The producer's hot path in plain Python: the readable reference, and the twin of ``_native.pyx`` (tests run on both).

    Accumulator                        one per producer
      topics: name -> TopicQueues      what is known of a topic: its queues, the sticky one, its size limit
        queues[p]: PartitionQueue      one open batch, which records are appended to, and sealed ones, oldest first
          SendBatch                    records, then bytes on their way, then an outcome that its futures look up
    RecordFuture (batch, index)        one per record, with nothing of its own to resolve

Two threads meet here: callers append, the I/O thread takes batches away and finishes them. Appending is one critical
section (here a lock; in the native twin the GIL and a flag). The I/O thread is woken only when it sleeps: when a queue
turns from empty to not empty, and when a batch is full.
"""

from __future__ import annotations

import ctypes
import random
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from crc32c import crc32c

from headrace_core.errors import HeadraceError
from headrace_core.records import BatchBuilder

from ..callbacks import refuse_to_wait
from ._checks import (
    Headers,
    NoSuchPartition,
    header_list,
    partition_number,
    prepared,
    timestamp_of,
    too_large,
    wrong_topic,
    wrong_type,
)
from ._pure_futures import AsyncRecordFuture, RecordFuture, Sent
from ._pure_metadata import RecordMetadata as RecordMetadata

OPEN, CLOSED, FORKED = 0, 1, 2

#: So many bytes go to the sticky partition before another may be chosen (Kafka's default batch size).
STICKY_BYTES_MIN = 16_384

#: The sender hears of a list at its end, when a batch is full, and whenever so many of its records are in.
WAKE_RECORDS = 256

_MASK = 0xFFFFFFFF


#: Where a batch's header (see headrace_core.records.types) has the CRC of what follows it, and the producer's fields.
_CRC, _PRODUCER_FIELDS = 17, 43


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as an unsigned 32-bit number (Austin Appleby's MurmurHash2 with seed 0x9747b28c)."""
    length = len(data)
    h = (0x9747B28C ^ length) & _MASK
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * 0x5BD1E995 & _MASK
        k = (k ^ k >> 24) * 0x5BD1E995 & _MASK
        h = (h * 0x5BD1E995 & _MASK) ^ k
    tail = data[whole:]
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * 0x5BD1E995 & _MASK
    h = (h ^ h >> 13) * 0x5BD1E995 & _MASK
    return h ^ h >> 15


def key_partitions(offsets: int, data: int, validity: int, first: int, rows: int, count: int, out: bytearray) -> None:
    """The partition of each key of a large_binary Arrow array (addresses of its buffers), -1 for null, as int32s."""
    ends = (ctypes.c_int64 * (first + rows + 1)).from_address(offsets)
    for row in range(rows):
        at = first + row
        if validity and not ctypes.c_uint8.from_address(validity + (at >> 3)).value >> (at & 7) & 1:
            partition = -1
        else:
            key = ctypes.string_at(data + ends[at], ends[at + 1] - ends[at]) if ends[at + 1] > ends[at] else b""
            partition = (murmur2(key) & 0x7FFFFFFF) % count
        struct.pack_into("=i", out, 4 * row, partition)


class SendBatch:
    """One batch on its way: ``builder`` while it is open, ``data`` once it is sealed, then the outcome."""

    def __init__(self, queue: PartitionQueue, builder: Any, data: bytes | None = None, count: int = 0) -> None:
        self.queue = queue
        self.builder = builder
        self.data = data
        self.count = count
        self.size = 0 if data is None else len(data)
        self.created_s = time.monotonic()
        self.sequence = queue.next_sequence()
        self.attempts = 0
        self.in_flight = False
        self.maybe_written = False  # an attempt's outcome is unknown
        self.done = False
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.error: HeadraceError | None = None
        self.watch: Any = None  # concurrent.futures.wait's (_watching.py)
        self._event: threading.Event | None = None
        self._waiters: list[Any] = []

    def stamp(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Write an idempotent producer's number into the batch's bytes, which nobody else may hold; and their CRC."""
        if self.data is not None:
            data = bytearray(self.data)
            struct.pack_into(">qhi", data, _PRODUCER_FIELDS, producer_id, producer_epoch, base_sequence)
            struct.pack_into(">I", data, _CRC, crc32c(memoryview(data)[_CRC + 4 :]))
            self.data = bytes(data)

    def finish(self, base_offset: int, log_append_time_ms: int, error: HeadraceError | None) -> list[Any]:
        """Set the outcome and wake who waits; returns the waiters to call. Only the first call counts."""
        accumulator = self.queue.topic.accumulator
        with accumulator.lock:
            if self.done:
                return []
            self.base_offset, self.log_append_time_ms, self.error = base_offset, log_append_time_ms, error
            self.done = True
            self.data = self.builder = None
            if self.queue.open is self:
                self.queue.open = None
            accumulator.unfinished.discard(self)
            accumulator.buffered_bytes -= self.size
            self.queue.bytes -= self.size
            waiters, self._waiters = self._waiters, []
            if self._event is not None:
                self._event.set()
        accumulator.space_freed()
        return waiters

    def wait(self, timeout_s: float | None) -> bool:
        """Block until the outcome is there; False on time-out. IllegalStateError in a callback."""
        if not self.done:
            if timeout_s is None or timeout_s > 0:
                refuse_to_wait("result()")
            with self.queue.topic.accumulator.lock:
                if self._event is None:
                    self._event = threading.Event()
                    if self.done:
                        self._event.set()
            self._event.wait(timeout_s)
        return self.done

    def add_waiter(self, waiter: Any) -> bool:
        """Have ``waiter`` returned by finish; False when the outcome is there already."""
        with self.queue.topic.accumulator.lock:
            if self.done:
                return False
            self._waiters.append(waiter)
            return True


class PartitionQueue:
    """What waits to be sent to one partition. All but ``open`` and ``sealed`` belongs to the sender."""

    def __init__(self, topic: TopicQueues, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.open: SendBatch | None = None
        self.sealed: list[SendBatch] = []
        self.listed = False  # the sender knows that there is something
        self.bytes = 0  # waiting or in flight: what the sticky choice compares
        self.sequence = 0
        self.sender: Any = None  # the sender's own notes

    def requeue(self, batches: list[SendBatch]) -> None:
        """Put batches, oldest first, before those that wait."""
        self.sealed[:0] = batches

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence


class TopicQueues:
    """A topic's queues. ``available``: the partitions that have a leader, among which the sticky one is chosen."""

    def __init__(self, accumulator: Accumulator, name: str, partitions: int, max_batch_bytes: int) -> None:
        self.accumulator = accumulator
        self.name = name
        self.queues = [PartitionQueue(self, number) for number in range(partitions)]
        self.available = list(range(partitions))
        self.max_batch_bytes = max_batch_bytes
        self.sticky = random.randrange(partitions)
        self.sticky_bytes = 0

    def grow(self, partitions: int) -> None:
        """Partitions were added."""
        self.queues += [PartitionQueue(self, number) for number in range(len(self.queues), partitions)]

    def shrink(self, partitions: int) -> None:
        """The topic was made anew with fewer. The queues that go keep what they have, and get nothing more."""
        with self.accumulator.lock:
            if self.sticky >= partitions:
                self.sticky = random.randrange(partitions)
            self.queues = self.queues[:partitions]

    def choose_sticky(self) -> None:
        """Another partition for records without a key: of two picked by chance the one with less waiting (KIP-794)."""
        self.sticky_bytes = 0
        choices = self.available or range(len(self.queues))
        if len(choices) == 1:
            self.sticky = choices[0]
            return
        one = random.choice(choices)
        other = random.choice(choices)
        if one == self.sticky:
            one = choices[(choices.index(one) + 1) % len(choices)]
        if not self.accumulator.adaptive or self.queues[one].bytes <= self.queues[other].bytes or other == self.sticky:
            self.sticky = one
        else:
            self.sticky = other


class Accumulator:
    """Takes records in and gathers them into batches. ``wake`` is called when the sender sleeps and has work."""

    def __init__(
        self,
        *,
        batch_bytes: int,
        buffer_bytes: int,
        wake: Callable[[], object],
        slow: Callable[..., Any],
        adaptive: bool = True,
        ignore_keys: bool = False,
        partitioner: Callable[[str, bytes | None, bytes | None, int], int | None] | None = None,
        key_serializer: Callable[[str, Any], bytes | None] | None = None,
        value_serializer: Callable[[str, Any], bytes | None] | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.batch_bytes = batch_bytes
        self.buffer_bytes = buffer_bytes
        self.adaptive = adaptive
        self.ignore_keys = ignore_keys
        self.partitioner = partitioner
        self.key_serializer = key_serializer
        self.value_serializer = value_serializer
        self.state = OPEN
        self.buffered_bytes = 0
        self.records_appended = 0
        self.topics: dict[str, TopicQueues] = {}
        self.unfinished: set[SendBatch] = set()
        self.ready: list[PartitionQueue] = []
        self.awake = False
        self._space_waiters: list[Callable[[], object]] = []
        self.breathe = False  # a batch is full: an asyncio caller lets its loop turn
        self._wake = wake
        self._call_wake = False
        self._slow = slow

    # --- callers ---------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: Any = None,
    ) -> Any:
        """Producer.send: append, or hand over to ``slow``, which waits as long as it must."""
        if on_delivery is None:
            try:
                future = self.append(RecordFuture, topic, value, key, headers, partition, timestamp_ms)
            except NoSuchPartition:  # the slow way asks again
                future = None
            if future is not None:
                return future
        return self._slow(topic, value, key, headers, partition, timestamp_ms, on_delivery)

    def send_async(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        """AsyncProducer.send: an awaitable that gives the future, at once if possible."""
        if self.breathe:
            self.breathe = False
        else:
            try:
                future = self.append(AsyncRecordFuture, topic, value, key, headers, partition, timestamp_ms)
            except NoSuchPartition:
                future = None
            if future is not None:
                return Sent(future)
        return self._slow(topic, value, key, headers, partition, timestamp_ms, None)

    def append(
        self,
        future_class: Any,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> Any:
        """A future for the record; None when the caller must wait first (topic not known, or buffer full).

        RecordTooLargeError, InvalidTypeError, InvalidTimestampError, InvalidArgumentError; NoSuchPartition: whether it
        is new is the caller's to find out.
        """
        if not isinstance(topic, str):
            raise wrong_topic(topic)
        known = self.topics.get(topic)
        if known is None or self.state != OPEN or self.buffered_bytes >= self.buffer_bytes:
            return None
        if self.key_serializer is not None:
            key = self.key_serializer(topic, key)
        if self.value_serializer is not None:
            value = self.value_serializer(topic, value)
        if headers is not None:
            headers = header_list(headers)
        if partition is None and self.partitioner is not None:
            partition = self.partitioner(topic, key, value, len(known.queues))
        timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_of(timestamp_ms)
        with self.lock:
            if self.state != OPEN:  # closed while the caller's code ran: nobody would send it any more
                return None
            queue = self.queue_for(known, key, partition)
            sticky = partition is None and (key is None or self.ignore_keys)
            batch, index = self._put(queue, timestamp_ms, key, value, headers, sticky)
        self._wake_sender()
        return future_class(batch, index, timestamp_ms)

    def prepare_many(self, topic: str, values: Iterable[Any], partition: int | None) -> list[Any]:
        """A list of its own for append_many, each record serialized and checked: that a batch may hold it, that its
        partition exists. The topic must be known. Errors are those of append; the message names the record."""
        known = self.topics[topic]
        if partition is not None and partition >= len(known.queues):
            raise NoSuchPartition(partition)
        return [prepared(self, known, item, number, partition) for number, item in enumerate(values)]

    def append_many(
        self, topic: str, values: Any, start: int, partition: int | None, timestamp_ms: int, runs: list[list[Any]]
    ) -> int:
        """Append ``values[start:]`` until they are all in, or the buffer is full; returns where it stopped.

        ``values`` is what prepare_many made: each a value, (key, value), (key, value, headers), or these and a
        partition. ``runs`` collects [batch, first index, count] of neighbours.
        """
        try:
            return self._append_many(topic, values, start, partition, timestamp_ms, runs)
        finally:
            self._wake_sender()

    def _append_many(
        self, topic: str, values: Any, start: int, partition: int | None, timestamp_ms: int, runs: list[list[Any]]
    ) -> int:
        known = self.topics.get(topic)
        count = len(values)
        while known is not None and start < count and self.state == OPEN and self.buffered_bytes < self.buffer_bytes:
            item = values[start]
            key, value, headers, chosen = None, item, None, partition
            if isinstance(item, tuple):
                if not 2 <= len(item) <= 4:
                    raise wrong_type(topic, None, None, None, TypeError(f"a tuple of {len(item)}"))
                key, value = item[0], item[1]
                headers = item[2] if len(item) > 2 else None
                chosen = item[3] if len(item) > 3 else partition
            with self.lock:
                if self.state != OPEN:
                    break
                queue = self.queue_for(known, key, chosen)
                sticky = chosen is None and (key is None or self.ignore_keys)
                batch, index = self._put(queue, timestamp_ms, key, value, headers, sticky)
            if runs and runs[-1][0] is batch and runs[-1][1] + runs[-1][2] == index:
                runs[-1][2] += 1
            else:
                runs.append([batch, index, 1])
            start += 1
            if self.breathe or start % WAKE_RECORDS == 0:
                self.breathe = False
                self._wake_sender()
        return start

    def append_encoded(self, topic: str, partition: int, data: bytes, count: int) -> SendBatch | None:
        """Queue a whole batch that is encoded already; None when the caller must wait first."""
        known = self.topics.get(topic)
        if known is None or self.state != OPEN or self.buffered_bytes >= self.buffer_bytes:
            return None
        with self.lock:
            queue = self.queue_for(known, None, partition)
            self._seal(queue)
            batch = SendBatch(queue, None, data, count)
            self.unfinished.add(batch)
            queue.sealed.append(batch)
            self.buffered_bytes += batch.size
            queue.bytes += batch.size
            self.records_appended += count
            self._announce(queue, full=True)
        self._wake_sender()
        return batch

    def queue_for(self, known: TopicQueues, key: bytes | None, partition: int | None) -> PartitionQueue:
        """The queue of a partition, of a key, or the sticky one; NoSuchPartition."""
        if partition is not None:
            partition = partition_number(partition)
            if partition >= len(known.queues):
                raise NoSuchPartition(partition)
            return known.queues[partition]
        if key is not None and not self.ignore_keys:
            if not isinstance(key, bytes | bytearray | memoryview):
                raise wrong_type(known.name, key, None)
            return known.queues[(murmur2(bytes(key)) & 0x7FFFFFFF) % len(known.queues)]
        queue = known.queues[known.sticky]
        if queue.open is None and known.sticky_bytes >= STICKY_BYTES_MIN:
            known.choose_sticky()
            queue = known.queues[known.sticky]
        return queue

    def _put(
        self, queue: PartitionQueue, timestamp_ms: int, key: Any, value: Any, headers: Any, sticky: bool
    ) -> tuple[SendBatch, int]:
        topic = queue.topic
        while True:
            batch = queue.open
            if batch is None:
                batch = SendBatch(queue, BatchBuilder(min(self.batch_bytes, topic.max_batch_bytes)))
            try:
                index: int = batch.builder.append(timestamp_ms, key, value, headers)
            except (TypeError, ValueError, BufferError) as error:
                raise wrong_type(topic.name, key, value, headers, error) from None
            if index >= 0:
                break
            self._seal(queue)
            if sticky and topic.sticky_bytes >= STICKY_BYTES_MIN:
                topic.choose_sticky()
                queue = topic.queues[topic.sticky]
        grown = batch.builder.size - batch.size
        if index == 0:
            if batch.builder.size > min(topic.max_batch_bytes, self.buffer_bytes):
                self._wake_sender()  # the batch before it was sealed for this record
                raise too_large(topic.name, batch.builder.size, topic.max_batch_bytes, self.buffer_bytes)
            queue.open = batch
            self.unfinished.add(batch)
        batch.size += grown
        batch.count += 1
        self.buffered_bytes += grown
        self.records_appended += 1
        queue.bytes += grown
        topic.sticky_bytes += grown
        self._announce(queue, full=False)
        return batch, index

    def _seal(self, queue: PartitionQueue) -> None:
        if queue.open is not None:
            queue.sealed.append(queue.open)
            queue.open = None
            self.breathe = True
            self._announce(queue, full=True)

    def _announce(self, queue: PartitionQueue, *, full: bool) -> None:
        if not queue.listed:
            queue.listed = True
            self.ready.append(queue)
        elif not full:
            return
        if not self.awake:
            self.awake = True
            self._call_wake = True  # called by whoever appends, once the step is over

    def _wake_sender(self) -> None:
        if self._call_wake:
            self._call_wake = False
            self._wake()

    # --- the I/O thread --------------------------------------------------------------------------------------------

    def take_ready(self) -> list[PartitionQueue]:
        """The queues that have turned from empty to not empty; after this the next one wakes the sender again."""
        with self.lock:
            self.awake = False
            ready, self.ready = self.ready, []
            return ready

    def take(self, queue: PartitionQueue, *, partial: bool) -> SendBatch | None:
        """The queue's oldest batch: a full one, or with ``partial`` the open one too."""
        with self.lock:
            if not queue.sealed and partial and queue.open is not None:
                queue.sealed.append(queue.open)
                queue.open = None
            return queue.sealed.pop(0) if queue.sealed else None

    def leave_if_empty(self, queue: PartitionQueue) -> bool:
        """Whether nothing is left; then the queue will be announced again."""
        with self.lock:
            if queue.sealed or queue.open is not None:
                return False
            queue.listed = False
            return True

    def snapshot_unfinished(self) -> list[SendBatch]:
        """All batches that have no outcome yet."""
        with self.lock:
            return list(self.unfinished)

    def seal_all(self) -> list[SendBatch]:
        """Close every open batch to more records; returns all that have no outcome yet (flush)."""
        with self.lock:
            for batch in list(self.unfinished):
                queue = batch.queue
                if queue.open is batch:
                    self._seal(queue)
            unfinished = list(self.unfinished)
        self._wake_sender()
        return unfinished

    def add_space_waiter(self, waiter: Callable[[], object]) -> bool:
        """Have ``waiter`` called when there is room; False when there is now."""
        with self.lock:
            if self.buffered_bytes < self.buffer_bytes or self.state != OPEN:
                return False
            self._space_waiters.append(waiter)
            return True

    def space_freed(self) -> None:
        """Call those who wait for room, once there is some."""
        if self._space_waiters and (self.buffered_bytes <= self.buffer_bytes * 3 // 4 or self.state != OPEN):
            with self.lock:
                waiters, self._space_waiters = self._space_waiters, []
            for waiter in waiters:
                waiter()
