"""The producer's hot path, compiled against plain: the same calls, the same batches, wake-ups, counts and outcomes.

Chance is kept out: keys or partitions choose the queue, or there is one partition. What is acknowledged is checked
against a plain model too: every record that was taken is in exactly one batch, in the order of its queue.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.accumulator import _pure
from headrace.errors import NetworkError
from headrace_core.records import decode_batch

_native = pytest.importorskip("headrace.accumulator._native", reason="not compiled here")

BATCH_BYTES, BUFFER_BYTES, LARGEST = 300, 2_500, 700

keys = st.none() | st.binary(max_size=6)
values = st.none() | st.binary(max_size=40) | st.integers(100, 900).map(bytes)
headers = st.none() | st.just([("h", b"x")]) | st.just({"d": None})


class Side:
    """One of the twins, and how to tell its objects apart from the outside."""

    def __init__(self, name: str, partitions: int) -> None:
        self.backend = importlib.import_module(f"headrace.accumulator.{name}")
        self.wakes = 0
        self.room = 0
        self.acc = self.backend.Accumulator(
            batch_bytes=BATCH_BYTES, buffer_bytes=BUFFER_BYTES, wake=self._woken, slow=lambda *arguments: "slow"
        )
        self.topic = self.backend.TopicQueues(self.acc, "t", partitions, LARGEST)
        self.acc.topics["t"] = self.topic
        self.futures: list[Any] = []
        self.taken: list[Any] = []

    def _woken(self) -> None:
        self.wakes += 1

    def space(self) -> None:
        self.room += 1

    def data_of(self, batch: Any) -> bytes:
        if batch.data is None:
            batch.data = batch.builder.build()
        return bytes(batch.data)

    def state(self) -> tuple[Any, ...]:
        acc = self.acc
        return (
            acc.buffered_bytes,
            acc.records_appended,
            len(acc.snapshot_unfinished()),
            self.wakes,
            self.room,
            [future.done() for future in self.futures],
            [(queue.listed, queue.bytes, len(queue.sealed), queue.open is not None) for queue in self.topic.queues],
        )


class TwinMachine(RuleBasedStateMachine):
    @initialize(partitions=st.integers(1, 3))
    def begin(self, partitions: int) -> None:
        self.partitions = partitions
        self.sides = [Side("_pure", partitions), Side("_native", partitions)]
        #: What was taken in, by partition, not yet taken away: (timestamp, key, value).
        self.waiting: dict[int, list[tuple[Any, ...]]] = {number: [] for number in range(partitions)}
        self.offsets = dict.fromkeys(range(partitions), 0)
        self.expected: list[tuple[int, int] | type[Exception]] = []
        self.in_flight: list[tuple[int, list[int]]] = []
        self.numbers: dict[int, list[int]] = {number: [] for number in range(partitions)}
        self.clock = 1_000

    def both(self, call: Callable[[Side], Any]) -> Any:
        """The outcome, the same on both sides."""
        found = []
        for side in self.sides:
            try:
                found.append(("ok", call(side)))
            except Exception as error:  # noqa: BLE001 - whatever one raises, the other must raise too
                found.append((type(error).__name__, str(error)))
        assert found[0] == found[1]
        return found[0]

    # ---------------------------------------------------------------- callers

    @rule(key=keys, value=values, header=headers, partition=st.none() | st.integers(-1, 3))
    def send(self, key: Any, value: Any, header: Any, partition: int | None) -> None:
        if key is None and partition is None and self.partitions > 1:
            partition = 0  # the sticky choice is by chance
        self.clock += 1

        def call(side: Side) -> str:
            future = side.acc.send("t", value, key, header, partition, self.clock)
            if future == "slow":
                return "slow"
            side.futures.append(future)
            return "taken"

        if self.both(call) != ("ok", "taken"):
            return
        chosen = partition
        if chosen is None:
            chosen = 0 if key is None else (_pure.murmur2(key) & 0x7FFFFFFF) % self.partitions
        self.numbers[chosen].append(len(self.expected))
        self.expected.append((-1, -1))
        self.waiting[chosen].append((self.clock, key, value))

    @rule(bad=st.sampled_from(["text", 5, object]), where=st.sampled_from(["key", "value", "header"]))
    def send_what_is_no_bytes(self, bad: Any, where: str) -> None:
        given: dict[str, Any] = {"key": b"k", "value": b"v", "headers": None}
        given["headers" if where == "header" else where] = [("h", bad)] if where == "header" else bad
        kind, _ = self.both(lambda side: side.acc.send("t", given["value"], given["key"], given["headers"], 0, 5))
        assert kind in ("InvalidTypeError", "ok")  # a full buffer sends everything the slow way, unseen

    @rule(items=st.lists(st.tuples(keys, values), max_size=12), partition=st.integers(0, 2))
    def send_many(self, items: list[Any], partition: int) -> None:
        partition %= self.partitions
        self.clock += 1

        def call(side: Side) -> Any:
            runs: list[list[Any]] = []
            stopped = side.acc.append_many("t", items, 0, partition, self.clock, runs)
            for batch, first, count in runs:
                side.futures += [side.backend.RecordFuture(batch, first + step, self.clock) for step in range(count)]
            return stopped, [run[1:] for run in runs]

        kind, outcome = self.both(call)
        if kind != "ok":
            self.settle_after_error(items, partition)
            return
        for key, value in items[: outcome[0]]:
            self.numbers[partition].append(len(self.expected))
            self.expected.append((-1, -1))
            self.waiting[partition].append((self.clock, key, value))

    def settle_after_error(self, items: list[Any], partition: int) -> None:
        """A record that is too large: those before it were taken in, and have futures that nobody was given."""
        taken = self.sides[0].acc.records_appended - sum(len(side) for side in self.waiting.values()) - self.gone
        for key, value in items[:taken]:
            self.numbers[partition].append(-1)
            self.waiting[partition].append((self.clock, key, value))

    gone = 0

    # ---------------------------------------------------------------- the sender

    @rule()
    def look_for_work(self) -> None:
        self.both(lambda side: [queue.partition for queue in side.acc.take_ready()])

    @rule(partition=st.integers(0, 2), partial=st.booleans())
    def take(self, partition: int, partial: bool) -> None:
        partition %= self.partitions

        def call(side: Side) -> Any:
            batch = side.acc.take(side.topic.queues[partition], partial=partial)
            if batch is None:
                return None
            side.taken.append(batch)
            return batch.count, batch.size, side.data_of(batch)

        _, found = self.both(call)
        if found is None:
            return
        count, _, data = found
        records = [(record.timestamp_ms, record.key, record.value) for record in decode_batch(data)]
        assert records == self.waiting[partition][:count], "records out of order, lost or twice"
        del self.waiting[partition][:count]
        self.gone += count
        self.in_flight.append((partition, self.numbers[partition][:count]))
        del self.numbers[partition][:count]

    @rule(which=st.integers(0, 5), fails=st.booleans())
    def finish(self, which: int, fails: bool) -> None:
        if not self.in_flight:
            return
        which %= len(self.in_flight)
        partition, numbers = self.in_flight.pop(which)
        base = self.offsets[partition]
        error = NetworkError("gone") if fails else None
        self.both(lambda side: len(side.taken.pop(which).finish(-1 if fails else base, -1, error)))
        for step, number in enumerate(numbers):
            if number >= 0:
                self.expected[number] = NetworkError if fails else (partition, base + step)
        self.offsets[partition] += 0 if fails else len(numbers)

    @rule(which=st.integers(0, 5))
    def put_back(self, which: int) -> None:
        """An attempt failed and is made again: before all that waits. Only the newest of its queue, to keep order."""
        if not self.in_flight:
            return
        which %= len(self.in_flight)
        partition, _ = self.in_flight[which]
        if any(other == partition for other, _ in self.in_flight[which + 1 :]):
            return
        partition, numbers = self.in_flight.pop(which)
        datas = []
        for side in self.sides:
            batch = side.taken.pop(which)
            datas.append(side.data_of(batch))
            side.topic.queues[partition].requeue([batch])
        assert datas[0] == datas[1]
        back = [(record.timestamp_ms, record.key, record.value) for record in decode_batch(datas[0])]
        self.waiting[partition][:0] = back
        self.numbers[partition][:0] = numbers
        self.gone -= len(numbers)

    @rule(partition=st.integers(0, 2))
    def leave(self, partition: int) -> None:
        self.both(lambda side: side.acc.leave_if_empty(side.topic.queues[partition % self.partitions]))

    @rule()
    def flush(self) -> None:
        self.both(lambda side: sorted((batch.count, batch.size) for batch in side.acc.seal_all()))

    @rule()
    def wait_for_room(self) -> None:
        self.both(lambda side: side.acc.add_space_waiter(side.space))

    # ---------------------------------------------------------------- what holds

    @invariant()
    def twins_agree(self) -> None:
        if not hasattr(self, "sides"):
            return
        assert self.sides[0].state() == self.sides[1].state()
        assert self.sides[0].acc.buffered_bytes >= 0

    @invariant()
    def futures_say_what_became_of_their_record(self) -> None:
        if not hasattr(self, "sides"):
            return
        for side in self.sides:
            assert len(side.futures) >= len(self.expected) - self.unseen
            for future, expected in zip(side.futures, self.expected, strict=False):
                if expected == (-1, -1):
                    assert not future.done()
                elif isinstance(expected, tuple):
                    assert tuple(future.result())[1:3] == expected
                else:
                    with pytest.raises(NetworkError):
                        future.result()

    unseen = 0


TwinMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAccumulatorTwins = TwinMachine.TestCase
