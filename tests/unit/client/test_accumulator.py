"""The producer's hot path: batching, announcements, and futures."""

from __future__ import annotations

import contextlib
import gc
import random
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import accumulator
from headrace.errors import NetworkError, RecordTooLargeError
from headrace.producer.core import CLOSED
from headrace_core.records import decode_batch


class Harness:
    """An accumulator whose sender is the test."""

    def __init__(self, *, partitions: int = 1, max_batch: int = 1 << 20, **settings: Any) -> None:
        self.wakes = 0
        self.slow: list[tuple[Any, ...]] = []
        self.acc = accumulator.Accumulator(
            **{"batch_bytes": 1_000, "buffer_bytes": 100_000, **settings}, wake=self._wake, slow=self._slow
        )
        self.topic = accumulator.TopicQueues(self.acc, "t", partitions, max_batch)
        self.acc.topics["t"] = self.topic
        self.queue = self.topic.queues[0]
        self.send = accumulator.NativeProducer(self.acc).send
        self.send_async = accumulator.NativeAsyncProducer(self.acc).send

    def _wake(self) -> None:
        self.wakes += 1

    def _slow(self, *arguments: Any) -> Any:
        self.slow.append(arguments)

    def take(self, *, partial: bool = True, queue: Any = None) -> Any:
        batch = self.acc.take(queue or self.queue, partial=partial)
        if batch is not None and batch.data is None:
            batch.data = batch.builder.build()
        return batch

    def values(self, batch: Any) -> list[Any]:
        return [record.value for record in decode_batch(batch.data)]


def test_records_share_a_batch_and_keep_their_order() -> None:
    h = Harness()
    futures = [h.send("t", b"%d" % n, b"k", [("h", b"x")], None, 1_000 + n) for n in range(5)]
    batch = h.take()
    assert [(r.value, r.key, r.headers, r.timestamp_ms) for r in decode_batch(batch.data)] == [
        (b"%d" % n, b"k", [("h", b"x")], 1_000 + n) for n in range(5)
    ]
    assert batch.count == 5
    batch.finish(70, -1, None)
    assert [tuple(f.result()) for f in futures] == [("t", 0, 70 + n, 1_000 + n) for n in range(5)]


def test_sender_hears_of_a_list_when_it_ends_so_that_its_first_record_does_not_go_alone() -> None:
    def harness() -> tuple[Any, list[int]]:
        woken_at: list[int] = []
        acc = accumulator.Accumulator(
            batch_bytes=100_000, buffer_bytes=1 << 20, wake=lambda: woken_at.append(acc.records_appended), slow=print
        )
        acc.topics["t"] = accumulator.TopicQueues(acc, "t", 1, 1 << 20)
        return acc, woken_at

    acc, woken_at = harness()
    assert acc.append_many("t", [b"1", b"2", b"3"], 0, None, 0, []) == 3
    assert woken_at == [3]

    acc, woken_at = harness()
    assert acc.append_many("t", [b"x"] * 1_000, 0, None, 0, []) == 1_000
    assert woken_at == [256], "of a long list the sender hears early: 1,000 partitions fill no batch for long"

    acc, woken_at = harness()
    with pytest.raises(TypeError):
        acc.append_many("t", [b"1", b"2", b"3", "text"], 0, None, 0, [])
    assert woken_at == [3], "what was in before the bad record is sent"


def test_sender_is_woken_when_it_sleeps_and_there_is_something_new() -> None:
    h = Harness()
    h.send("t", b"a")
    h.send("t", b"b")
    assert h.wakes == 1
    assert h.acc.take_ready() == [h.queue]
    h.send("t", b"c")
    assert h.wakes == 1  # the queue is listed, and its batch is not full: it waits for a response or a timer
    for _ in range(20):
        h.send("t", b"x" * 100)
    assert h.wakes == 2  # a batch is full
    assert h.acc.take_ready() == []
    while h.take() is not None:
        pass
    assert h.acc.leave_if_empty(h.queue)
    h.send("t", b"d")
    assert h.wakes == 3


def test_full_batches_are_sealed_and_taken_oldest_first() -> None:
    h = Harness()
    sent = [b"%03d" % n + b"x" * 97 for n in range(30)]
    for value in sent:
        h.send("t", value)
    got = []
    while (batch := h.take(partial=False)) is not None:
        assert len(batch.data) <= 1_000
        assert len(batch.data) == batch.size
        got += h.values(batch)
    assert not h.acc.leave_if_empty(h.queue)
    got += h.values(h.take())
    assert got == sent


def test_failed_batches_go_back_in_front() -> None:
    h = Harness()
    for n in range(30):
        h.send("t", b"%03d" % n + b"x" * 97)
    first, second = h.take(partial=False), h.take(partial=False)
    h.queue.requeue([first, second])
    assert h.take() is first
    assert h.take() is second
    assert first.sequence < second.sequence


def test_buffered_bytes_count_what_has_no_outcome() -> None:
    h = Harness(buffer_bytes=1_500)
    while h.send("t", b"x" * 100) is not None:
        pass
    assert len(h.slow) == 1
    assert h.acc.buffered_bytes >= 1_500
    freed: list[int] = []
    assert h.acc.add_space_waiter(lambda: freed.append(1))
    while (batch := h.take()) is not None:
        batch.finish(0, -1, None)
    assert freed == [1]
    assert h.acc.buffered_bytes == 0
    assert h.queue.bytes == 0
    assert h.acc.unfinished == set()
    assert not h.acc.add_space_waiter(lambda: None)
    assert h.send("t", b"again") is not None


def test_unknown_topic_and_callbacks_take_the_slow_way() -> None:
    h = Harness()
    h.send("other", b"v")
    h.send("t", b"v", None, None, None, None, print)
    h.send("t", b"v", partition=5)
    assert [(item[0], item[-1]) for item in h.slow] == [("other", None), ("t", print), ("t", None)]


def test_record_that_no_batch_may_hold_is_refused_and_leaves_no_trace() -> None:
    h = Harness(max_batch=500)
    with pytest.raises(RecordTooLargeError, match="too large for topic 't'"):
        h.send("t", b"x" * 500)
    assert h.acc.buffered_bytes == 0
    assert h.acc.unfinished == set()
    future = h.send("t", b"fits")
    with pytest.raises(RecordTooLargeError):
        h.send("t", b"x" * 500)
    h.take().finish(0, -1, None)
    assert future.result().offset == 0


def test_value_that_is_not_bytes_is_a_type_error_and_leaves_no_trace() -> None:
    h = Harness()
    h.send("t", b"before")
    for value in ("text", 5, object()):
        with pytest.raises(TypeError, match=r"a value must be bytes or None, not \w+: set value\.serializer"):
            h.send("t", value)
    with pytest.raises(TypeError, match="a key must be bytes or None, not str"):
        h.send("t", b"v", "text")
    for fits in (None, b"v", bytearray(b"w"), memoryview(b"x")):
        h.send("t", fits)
    assert h.values(h.take()) == [b"before", None, b"v", b"w", b"x"]


@pytest.mark.parametrize("headers", [["h"], "headers", [("h", "text")], [(b"h", b"1")], [("h", b"1", 2)], [7]])
def test_headers_of_another_shape_are_a_type_error_that_shows_them(headers: Any) -> None:
    h = Harness()
    with pytest.raises(TypeError, match="header 0 must be a pair of a str and bytes"):
        h.send("t", b"value", headers=headers)
    assert h.acc.buffered_bytes == 0


def test_headers_may_be_a_dict() -> None:
    h = Harness()
    h.send("t", b"value", headers={"a": b"1", "b": None})
    (record,) = decode_batch(h.take().data)
    assert record.headers == [("a", b"1"), ("b", None)]


def test_keys_choose_the_partition_and_ignore_keys_does_not() -> None:
    h = Harness(partitions=6)
    for n in range(100):
        h.send("t", b"v", b"key-%d" % n)
    for number, queue in enumerate(h.topic.queues):
        while (batch := h.take(queue=queue)) is not None:
            assert {accumulator.murmur2(r.key) % 2**31 % 6 for r in decode_batch(batch.data)} == {number}
    h = Harness(partitions=6, ignore_keys=True)
    for n in range(100):
        h.send("t", b"v", b"key-%d" % n)
    assert sum(queue.open is not None for queue in h.topic.queues) == 1


def test_sticky_partition_stays_until_a_batch_is_through_and_spreads_evenly() -> None:
    h = Harness(partitions=6, batch_bytes=20_000, buffer_bytes=1 << 30)
    for _ in range(100):
        h.send("t", b"v" * 100)
    assert sum(queue.open is not None for queue in h.topic.queues) == 1
    for _ in range(60_000):
        h.send("t", b"v" * 100)
    counts = [queue.bytes for queue in h.topic.queues]
    assert min(counts) > 0.5 * max(counts)


def test_sticky_partition_changes_at_low_rates_too() -> None:
    h = Harness(partitions=6, batch_bytes=1 << 20)
    seen: Counter[int] = Counter()
    for _ in range(12_000):
        seen[h.send("t", b"v" * 1_000) and h.topic.sticky] += 1
        h.take(queue=h.topic.queues[h.topic.sticky]).finish(0, -1, None)
    assert set(seen) == set(range(6))
    assert min(seen.values()) > 800


def test_sticky_choice_avoids_partitions_without_a_leader_and_long_queues() -> None:
    h = Harness(partitions=4)
    h.topic.available = [1, 3]
    chosen = set()
    for _ in range(50):
        h.topic.choose_sticky()
        chosen.add(h.topic.sticky)
    assert chosen == {1, 3}
    h.topic.available = [0, 1, 2, 3]
    for n in range(3):
        h.send("t", b"x" * 900, partition=n)
    picks = Counter()
    for _ in range(4_000):  # with 400 picks, 6 of 105,771 runs failed by chance
        h.topic.choose_sticky()
        picks[h.topic.sticky] += 1
    assert picks[3] > max(picks[0], picks[1], picks[2])


def test_many_values_in_one_call() -> None:
    h = Harness()
    runs: list[Any] = []
    values = [b"%03d" % n + b"x" * 97 for n in range(30)]
    assert h.acc.append_many("t", values, 0, None, 5, runs) == 30
    assert sum(run[2] for run in runs) == 30
    got = []
    while (batch := h.take()) is not None:
        got += h.values(batch)
    assert got == values
    runs.clear()
    mixed = [b"plain", (b"k", b"v"), (None, None, [("h", None)])]
    assert h.acc.append_many("t", mixed, 1, None, 5, runs) == 3
    assert [(r.key, r.value, r.headers) for r in decode_batch(h.take().data)] == [
        (b"k", b"v", []),
        (None, None, [("h", None)]),
    ]
    with pytest.raises((TypeError, ValueError, IndexError)):
        h.acc.append_many("t", [(b"k",)], 0, None, 5, runs)


def test_many_values_stop_where_the_buffer_is_full() -> None:
    h = Harness(buffer_bytes=2_000)
    runs: list[Any] = []
    values = [b"x" * 100] * 100
    stopped = h.acc.append_many("t", values, 0, None, 5, runs)
    assert 0 < stopped < 100
    assert h.acc.append_many("t", values, stopped, None, 5, runs) == stopped


@pytest.mark.parametrize("partition", [None, 0])
def test_many_values_of_a_producer_that_is_closed_meanwhile_are_not_queued(partition: int | None) -> None:
    h = Harness()

    def values(count: int) -> Iterator[bytes]:
        yield b"1"
        h.acc.state = CLOSED
        h.acc.close()
        yield from [b"%d" % n for n in range(2, count + 1)]

    items = h.acc.prepare_many("t", values(3), partition)
    assert items == [b"1", b"2", b"3"]
    assert h.acc.append_many("t", items, 0, partition, 5, []) == 0


@pytest.mark.parametrize("closing", ["serializer", "partitioner"])
def test_partitioner_of_a_producer_that_is_closed_meanwhile_never_sees_0_partitions(closing: str) -> None:
    counts: list[int] = []

    class Number:
        """A partition number whose conversion closes the producer, as another thread may do at that moment."""

        def __index__(self) -> int:
            close()
            return 1

    def close() -> None:
        h.acc.state = CLOSED
        h.acc.close()

    def serialize(topic: str, value: Any) -> bytes:
        if closing == "serializer" and value == b"2":
            close()
        return bytes(value)

    def choose(topic: str, key: bytes | None, value: bytes | None, count: int) -> Any:
        counts.append(count)
        return Number() if closing == "partitioner" and value == b"2" else hash(value) % count

    def harness() -> Harness:
        return Harness(partitions=4, value_serializer=serialize, partitioner=choose)

    h = harness()
    items = h.acc.prepare_many("t", [b"1", b"2", b"3"], None)
    assert h.acc.append_many("t", items, 0, None, 5, []) == 0
    h = harness()
    queues = h.topic.queues
    h.send("t", b"1")
    h.send("t", b"2")
    assert h.acc.records_appended == 1
    assert len(h.slow) == 1, "the slow path raises the error"
    assert sum(queue.open is not None for queue in queues) == 1
    assert set(counts) == {4}


def test_topic_of_a_closed_producer_has_no_sticky_partition_to_choose() -> None:
    h = Harness(partitions=4)
    sticky = h.topic.sticky
    h.acc.state = CLOSED
    h.acc.close()
    for _ in range(20):
        h.topic.choose_sticky()
    assert h.topic.sticky == sticky


def test_encoded_batch_goes_behind_what_is_open() -> None:
    h = Harness()
    h.send("t", b"first")
    batch = h.acc.append_encoded("t", 0, b"d" * 300, 3)
    assert (batch.count, batch.size) == (3, 300)
    assert h.values(h.take()) == [b"first"]
    assert h.take() is batch


def test_a_producer_closed_by_a_finalizer_takes_no_encoded_batch() -> None:
    """The allocation of the batch may start a collection, and a finalizer may let another thread run close()."""
    h = Harness()
    threshold = gc.get_threshold()

    def close(phase: str, info: dict[str, int]) -> None:
        h.acc.state = CLOSED

    gc.callbacks.append(close)
    try:
        gc.set_threshold(1)
        batch = h.acc.append_encoded("t", 0, b"d" * 300, 3)
    finally:
        gc.callbacks.remove(close)
        gc.set_threshold(*threshold)
    assert h.acc.state == CLOSED, "no collection began"
    assert batch is None
    assert not h.acc.unfinished


def test_outcome_is_set_once() -> None:
    h = Harness()
    future = h.send("t", b"v")
    assert not future.done()
    with pytest.raises(TimeoutError, match="the producer still sends the record"):
        future.result(0.01)
    batch = h.take()
    error = NetworkError("gone")
    called: list[Any] = []
    future.add_done_callback(called.append)
    for waiting, callback in batch.finish(-1, -1, error):
        callback(waiting)
    assert batch.finish(5, -1, None) == []
    assert isinstance(future.exception(), NetworkError)
    assert str(future.exception()) == "gone"
    with pytest.raises(NetworkError, match="gone"):
        future.result()
    assert error.__traceback__ is None
    future.add_done_callback(called.append)
    assert called == [future, future]
    assert h.acc.buffered_bytes == 0


class Payload:
    pass


def failed_send(h: Harness, ask: Callable[[Any], Any]) -> weakref.ref[Payload]:
    payload = Payload()
    future = h.send("t", b"v")
    h.take().finish(-1, -1, NetworkError("gone"))
    with contextlib.suppress(NetworkError):
        ask(future)
    return weakref.ref(payload)


def raise_exception(future: Any) -> None:
    raise future.exception()


@pytest.mark.parametrize("ask", [lambda future: future.result(), raise_exception], ids=["result", "exception"])
def test_callers_of_failed_records_do_not_stay_in_memory(ask: Callable[[Any], Any]) -> None:
    """Futures take no part in garbage collection. A traceback on the error of their batch would keep the frame of the
    caller, and with it the future and all variables, until the process ends."""
    assert failed_send(Harness(), ask)() is None


def test_the_error_of_a_batch_does_not_grow_with_each_of_its_records() -> None:
    h = Harness()
    futures = [h.send("t", b"v") for _ in range(20)]
    h.take().finish(-1, -1, NetworkError("gone"))
    depths = set()
    for future in futures:
        with pytest.raises(NetworkError) as raised:
            future.result()
        depths.add(len(raised.traceback))
    assert len(depths) == 1


def test_log_append_time_replaces_the_records_time() -> None:
    h = Harness()
    future = h.send("t", b"v", timestamp_ms=5)
    h.take().finish(3, 999, None)
    assert future.result().timestamp_ms == 999


def test_seal_all_returns_all_that_is_unfinished() -> None:
    h = Harness(partitions=3)
    for number in range(3):
        h.send("t", b"v", partition=number)
    assert len(h.acc.seal_all()) == 3
    assert all(queue.open is None for queue in h.topic.queues)


def test_open_batch_that_expires_takes_no_more_records() -> None:
    h = Harness()
    lost = h.send("t", b"old")
    h.queue.open.finish(-1, -1, NetworkError("too late"))
    h.send("t", b"new")
    assert lost.exception().message == "too late"
    assert h.values(h.take()) == [b"new"]


def test_random_use_loses_and_doubles_nothing(rng: random.Random) -> None:
    h = Harness(partitions=3, buffer_bytes=5_000, batch_bytes=700)
    sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    got: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    futures = []
    for step in range(3_000):
        if rng.random() < 0.6:
            partition = rng.randrange(3)
            value = b"%d" % step + b"x" * rng.randrange(200)
            future = h.acc.append(accumulator.RecordFuture, "t", value, None, None, partition, step)
            if future is not None:
                sent[partition].append(value)
                futures.append(future)
        else:
            partition = rng.randrange(3)
            batch = h.take(partial=rng.random() < 0.5, queue=h.topic.queues[partition])
            if batch is not None:
                got[partition] += h.values(batch)
                batch.finish(0, -1, None)
    for partition, queue in enumerate(h.topic.queues):
        while (batch := h.take(queue=queue)) is not None:
            got[partition] += h.values(batch)
            batch.finish(0, -1, None)
    assert got == sent
    assert all(future.done() for future in futures)
    assert h.acc.buffered_bytes == 0
