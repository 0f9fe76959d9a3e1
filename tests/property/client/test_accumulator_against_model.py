"""The producer's accumulator has the same batches, wake-ups, counts and outcomes as a simple model. No queue is chosen
at random: keys or partitions choose it, or there is only one partition. The model packs records with the reference
codec, to know when a batch is full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.accumulator import Accumulator, NativeProducer, RecordFuture, TopicQueues
from headrace.errors import InvalidArgumentError, InvalidTypeError, NetworkError, RecordTooLargeError
from headrace.partitioners import key_partition
from headrace_core.records import decode_batch
from headrace_core.records._pure import BatchBuilder
from tests.worlds.this_process import examples

BATCH_BYTES, BUFFER_BYTES, LARGEST = 300, 2_500, 700

keys = st.none() | st.binary(max_size=6)
values = st.none() | st.binary(max_size=40) | st.integers(100, 900).map(bytes)
headers = st.none() | st.just([("h", b"x")]) | st.just({"d": None})


@dataclass
class Batch:
    """The model's state of a batch. ``numbers`` are the numbers of the batch's records, in order."""

    builder: Any = field(default_factory=lambda: BatchBuilder(BATCH_BYTES))
    numbers: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        return int(self.builder.size)


@dataclass
class Queue:
    open: Batch | None = None
    sealed: list[Batch] = field(default_factory=list)
    in_flight: list[Batch] = field(default_factory=list)
    listed: bool = False

    @property
    def bytes(self) -> int:
        return sum(batch.size for batch in (*self.sealed, *self.in_flight, *filter(None, [self.open])))


class Model:
    """A simple model of the accumulator."""

    def __init__(self, partitions: int) -> None:
        self.queues = [Queue() for _ in range(partitions)]
        self.ready: list[int] = []
        self.awake = False
        self.wakes = self.appended = self.waiting_for_room = self.room = 0

    @property
    def buffered(self) -> int:
        return sum(queue.bytes for queue in self.queues)

    @property
    def is_full(self) -> bool:
        return self.buffered >= BUFFER_BYTES

    def announce(self, partition: int, *, full: bool) -> None:
        queue = self.queues[partition]
        if queue.listed and not full:
            return
        if not queue.listed:
            queue.listed = True
            self.ready.append(partition)
        if not self.awake:
            self.awake = True
            self.wakes += 1

    def seal(self, partition: int) -> None:
        queue = self.queues[partition]
        if queue.open is not None:
            queue.sealed.append(queue.open)
            queue.open = None
            self.announce(partition, full=True)

    def append(self, partition: int, timestamp_ms: int, key: Any, value: Any, header: Any) -> bool:
        """Returns False if the record is too large for any batch."""
        queue = self.queues[partition]
        while True:
            batch = queue.open or Batch()
            if batch.builder.append(timestamp_ms, key, value, header) >= 0:
                break
            self.seal(partition)
        if queue.open is None and batch.size > LARGEST:
            return False
        queue.open = batch
        batch.numbers.append(self.appended)
        self.appended += 1
        self.announce(partition, full=False)
        return True

    def finish(self, partition: int, batch: Batch) -> None:
        self.queues[partition].in_flight.remove(batch)
        if self.waiting_for_room and self.buffered <= BUFFER_BYTES // 4 * 3:
            self.room += self.waiting_for_room
            self.waiting_for_room = 0


class AccumulatorMachine(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 3))
    def begin(self, partitions: int) -> None:
        self.partitions = partitions
        self.model = Model(partitions)
        self.wakes = self.room = 0
        self.acc = Accumulator(
            batch_bytes=BATCH_BYTES, buffer_bytes=BUFFER_BYTES, wake=self.woken, slow=lambda *arguments: "slow"
        )
        self.producer = NativeProducer(self.acc)
        self.topic = self.acc.topics["t"] = TopicQueues(self.acc, "t", partitions, LARGEST)
        #: Number of each accepted record -> the record, its future (None: not returned), its outcome.
        self.records: list[tuple[Any, ...]] = []
        self.futures: list[Any] = []
        self.outcomes: list[Any] = []
        self.in_flight: list[tuple[int, Batch, Any]] = []
        self.offsets = [0] * partitions
        self.clock = 1_000

    def woken(self) -> None:
        self.wakes += 1

    def has_room(self) -> None:
        self.room += 1

    def took(self, record: tuple[Any, ...], future: Any) -> None:
        self.records.append(record)
        self.futures.append(future)
        self.outcomes.append(None)

    # ---------------------------------------------------------------- callers

    @rule(key=keys, value=values, header=headers, partition=st.none() | st.integers(-1, 3))
    def send(self, key: Any, value: Any, header: Any, partition: int | None) -> None:
        if key is None and partition is None and self.partitions > 1:
            partition = 0  # the sticky choice is by chance
        self.clock += 1
        if self.model.is_full or partition == 3 or (partition or 0) >= self.partitions:
            assert self.producer.send("t", value, key, header, partition, self.clock) == "slow"
            return
        if partition is not None and partition < 0:
            with pytest.raises(InvalidArgumentError):
                self.producer.send("t", value, key, header, partition, self.clock)
            return
        chosen = partition
        if chosen is None:
            chosen = 0 if key is None else key_partition(key, self.partitions)
        pairs = list(header.items()) if isinstance(header, dict) else header
        if self.model.append(chosen, self.clock, key, value, pairs):
            self.took((self.clock, key, value), self.producer.send("t", value, key, header, partition, self.clock))
        else:
            with pytest.raises(RecordTooLargeError):
                self.producer.send("t", value, key, header, partition, self.clock)

    @rule(bad=st.sampled_from(["text", 5, object]), where=st.sampled_from(["key", "value", "header"]))
    def send_what_is_no_bytes(self, bad: Any, where: str) -> None:
        given: dict[str, Any] = {"key": b"k", "value": b"v", "headers": None}
        given["headers" if where == "header" else where] = [("h", bad)] if where == "header" else bad
        if self.model.is_full:  # a full buffer sends all records by the slow path, which the model does not see
            assert self.producer.send("t", partition=0, timestamp_ms=5, **given) == "slow"
        else:
            with pytest.raises(InvalidTypeError):
                self.producer.send("t", partition=0, timestamp_ms=5, **given)

    @rule(items=st.lists(st.tuples(keys, values), max_size=12), partition=st.integers(0, 2))
    def send_many(self, items: list[Any], partition: int) -> None:
        partition %= self.partitions
        self.clock += 1
        runs: list[list[Any]] = []
        stopped = 0
        for key, value in items:
            if self.model.is_full:
                break
            if not self.model.append(partition, self.clock, key, value, None):
                with pytest.raises(RecordTooLargeError):
                    self.acc.append_many("t", items, 0, partition, self.clock, runs)
                for taken in items[:stopped]:  # the records before it were accepted, without returned futures
                    self.took((self.clock, *taken), None)
                return
            stopped += 1
        assert self.acc.append_many("t", items, 0, partition, self.clock, runs) == stopped
        futures = [
            RecordFuture(batch, first + step, self.clock) for batch, first, count in runs for step in range(count)
        ]
        assert len(futures) == stopped
        for item, future in zip(items, futures, strict=False):
            self.took((self.clock, *item), future)

    # ---------------------------------------------------------------- the sender

    @rule()
    def look_for_work(self) -> None:
        assert [queue.partition for queue in self.acc.take_ready()] == self.model.ready
        self.model.ready, self.model.awake = [], False

    @rule(partition=st.integers(0, 2), partial=st.booleans())
    def take(self, partition: int, partial: bool) -> None:
        partition %= self.partitions
        queue = self.model.queues[partition]
        batch = self.acc.take(self.topic.queues[partition], partial=partial)
        if not queue.sealed and queue.open is not None and partial:
            queue.sealed, queue.open = [queue.open], None
        if not queue.sealed:
            assert batch is None
            return
        expected = queue.sealed.pop(0)
        queue.in_flight.append(expected)
        assert batch is not None
        if batch.data is None:
            batch.data = batch.builder.build()
        assert (batch.count, batch.size) == (len(expected.numbers), expected.size)
        records = [(record.timestamp_ms, record.key, record.value) for record in decode_batch(batch.data)]
        assert records == [self.records[number] for number in expected.numbers], "records out of order, lost or twice"
        self.in_flight.append((partition, expected, batch))

    @rule(which=st.integers(0, 5), fails=st.booleans())
    def finish(self, which: int, fails: bool) -> None:
        if not self.in_flight:
            return
        partition, expected, batch = self.in_flight.pop(which % len(self.in_flight))
        base = self.offsets[partition]
        self.model.finish(partition, expected)
        assert batch.finish(-1 if fails else base, -1, NetworkError("gone") if fails else None) == []
        for step, number in enumerate(expected.numbers):
            self.outcomes[number] = NetworkError if fails else (partition, base + step)
        self.offsets[partition] += 0 if fails else len(expected.numbers)

    @rule(which=st.integers(0, 5))
    def put_back(self, which: int) -> None:
        """A batch whose attempt failed is sent again before all waiting batches. Only the newest batch of its queue may
        be put back, to keep the order."""
        if not self.in_flight:
            return
        which %= len(self.in_flight)
        partition, expected, batch = self.in_flight[which]
        if any(other == partition for other, _, _ in self.in_flight[which + 1 :]):
            return
        del self.in_flight[which]
        queue = self.model.queues[partition]
        queue.in_flight.remove(expected)
        queue.sealed.insert(0, expected)
        self.topic.queues[partition].requeue([batch])

    @rule(partition=st.integers(0, 2))
    def leave(self, partition: int) -> None:
        partition %= self.partitions
        queue = self.model.queues[partition]
        is_empty = not queue.sealed and queue.open is None
        queue.listed = queue.listed and not is_empty
        assert self.acc.leave_if_empty(self.topic.queues[partition]) == is_empty

    @rule()
    def flush(self) -> None:
        for partition in range(self.partitions):
            self.model.seal(partition)
        batches = [batch for queue in self.model.queues for batch in (*queue.sealed, *queue.in_flight)]
        assert sorted((batch.count, batch.size) for batch in self.acc.seal_all()) == sorted(
            (len(batch.numbers), batch.size) for batch in batches
        )

    @rule()
    def wait_for_room(self) -> None:
        self.model.waiting_for_room += self.model.is_full
        assert self.acc.add_space_waiter(self.has_room) == self.model.is_full

    # ---------------------------------------------------------------- what holds

    @invariant()
    def the_counts_are_the_models(self) -> None:
        if not hasattr(self, "acc"):
            return
        model = self.model
        assert (self.acc.buffered_bytes, self.acc.records_appended) == (model.buffered, model.appended)
        assert (self.wakes, self.room) == (model.wakes, model.room)
        found = [(queue.listed, queue.bytes, len(queue.sealed), queue.open is not None) for queue in self.topic.queues]
        assert found == [(q.listed, q.bytes, len(q.sealed), q.open is not None) for q in model.queues]
        batches = sum(len(q.sealed) + len(q.in_flight) + (q.open is not None) for q in model.queues)
        assert len(self.acc.snapshot_unfinished()) == batches

    @invariant()
    def futures_say_what_became_of_their_record(self) -> None:
        if not hasattr(self, "acc"):
            return
        for future, outcome in zip(self.futures, self.outcomes, strict=True):
            if future is None:
                continue
            if outcome is None:
                assert not future.done()
            elif outcome is NetworkError:
                with pytest.raises(NetworkError):
                    future.result()
            else:
                assert tuple(future.result())[1:3] == outcome


AccumulatorMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestAccumulator = AccumulatorMachine.TestCase
