"""send_many: every record is checked before the first is queued, so a refused record leaves no record in the queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import AsyncProducer, Producer
from headrace.errors import (
    BufferTimeoutError,
    ClosedError,
    HeadraceError,
    InvalidArgumentError,
    InvalidTypeError,
    RecordTooLargeError,
    SerializationError,
)

#: Invalid records, and their errors.
BAD: dict[str, tuple[Any, type[HeadraceError]]] = {
    "text": ("text", InvalidTypeError),
    "number": (5, InvalidTypeError),
    "tuple of one": ((b"k",), InvalidTypeError),
    "tuple of four": ((b"k", b"v", [], 0), InvalidTypeError),
    "key that is a text": (("k", b"v"), InvalidTypeError),
    "value that is a list": ((b"k", [b"v"]), InvalidTypeError),
    "too large": (b"x" * 5_000, RecordTooLargeError),
    "too large with its key": ((b"k" * 2_500, b"x" * 2_500), RecordTooLargeError),
    "too large by its headers": ((None, b"v", [("h", b"x" * 5_000)]), RecordTooLargeError),
    "headers that are a number": ((b"k", b"v", 7), InvalidTypeError),
    "header that is a text": ((b"k", b"v", [("h", "x")]), InvalidTypeError),
    "header without a value": ((b"k", b"v", [("h",)]), InvalidTypeError),
    "header name that UTF-8 cannot hold": ((b"k", b"v", [("\ud800", b"x")]), InvalidTypeError),
}


def producer(cluster: Any, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap_servers, max_request_size=4_096, **settings)


def values_of(cluster: Any) -> list[Any]:
    return [record.value for record in cluster.records("t")]


@pytest.mark.parametrize("name", BAD)
def test_bad_record_at_any_place_leaves_nothing_written(fake: Any, name: str) -> None:
    bad, error = BAD[name]
    good = [b"1", (b"k", b"2"), (None, b"3", {"h": b"1"}), b"4" * 200, bytearray(b"5")]
    with producer(fake) as out:
        for place in range(len(good) + 1):
            records = [*good[:place], bad, *good[place:]]
            with pytest.raises(error, match=rf"record {place}: .*no record of the list was sent"):
                out.send_many("t", records)
            with pytest.raises(error, match=rf"record {place}: "):
                out.send_many("t", (record for record in records))
        assert out._core.accumulator.records_appended == 0
        assert out._core.accumulator.buffered_bytes == 0
        assert out.send_many("t", good).result(60).record_count == len(good)
    assert values_of(fake) == [b"1", b"2", b"3", b"4" * 200, b"5"]


def test_generator_that_fails_leaves_nothing_written(fake: Any) -> None:
    def records() -> Iterator[bytes]:
        yield from [b"1", b"2"]
        raise LookupError("the source is gone")

    with producer(fake) as out:
        with pytest.raises(LookupError):
            out.send_many("t", records())
        out.flush(60)
    assert values_of(fake) == []


def test_serializer_and_partitioner_that_fail_in_the_middle_leave_nothing_written(fake: Any) -> None:
    def refuses_three(topic: str, value: Any) -> bytes:
        if value == 3:
            raise ValueError("not three")
        return b"%d" % value

    def partitions(topic: str, key: Any, value: bytes | None, count: int) -> int:
        if value == b"4":
            raise IndexError("a user's mistake")
        return 0

    with producer(fake, value_serializer=refuses_three, partitioner_class=partitions) as out:
        with pytest.raises(SerializationError, match=r"record 2: value\.serializer failed for topic 't'") as caught:
            out.send_many("t", [1, 2, 3])
        assert (caught.value.topic, caught.value.field) == ("t", "value")
        with pytest.raises(IndexError, match="a user's mistake"):
            out.send_many("t", [1, 2, 4])
        with pytest.raises(IndexError, match="a user's mistake"):
            out.send("t", 4)
        out.send_many("t", [5, 6]).result(60)
    assert values_of(fake) == [b"5", b"6"]


def test_partition_that_does_not_exist_leaves_nothing_written(fake: Any) -> None:
    with producer(fake) as out, pytest.raises(InvalidArgumentError, match="partition 1 does not exist"):
        out.send_many("t", [b"v"] * 3, partition=1)
    with producer(fake, partitioner_class=lambda topic, key, value, count: 7 if value == b"7" else 0) as out:
        with pytest.raises(InvalidArgumentError, match="partition 7 does not exist"):
            out.send_many("t", [b"v", b"7"])
        out.flush(60)
    assert values_of(fake) == []


def test_list_that_is_changed_afterwards_is_sent_as_it_was(fake: Any) -> None:
    records: list[Any] = [bytearray(b"1"), (b"k", b"2", [("h", b"3")])]
    with producer(fake, linger_ms=50) as out:
        future = out.send_many("t", records)
        records[0][0] = 0
        records[1][2].clear()
        future.result(60)
    found = fake.records("t")
    assert [record.value for record in found] == [b"1", b"2"]
    assert found[1].headers == [("h", b"3")]


def test_time_out_in_the_middle_of_a_list_says_how_much_is_sent(fake: Any) -> None:
    fake.hold_answers(True)
    with producer(fake, buffer_memory=20_000, batch_size=1_000, max_block_ms=2_000) as out:
        with pytest.raises(BufferTimeoutError, match=r"the first \d+ of 500 records are being sent"):
            out.send_many("t", [b"x" * 400] * 500)
        queued = out._core.accumulator.records_appended
        assert 0 < queued < 500
        fake.hold_answers(False)
        out.flush(60)
    assert len(values_of(fake)) == queued


def test_close_by_another_thread_while_records_are_serialized_sends_nothing(fake: Any) -> None:
    def serialize(topic: str, value: bytes) -> bytes:
        if value == b"2":
            thread = threading.Thread(target=out.close, args=(60,))
            thread.start()
            thread.join()
        return value

    counts: list[int] = []

    def choose(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        counts.append(count)
        return hash(value) % count

    out = producer(fake, value_serializer=serialize, partitioner_class=choose)
    with pytest.raises(ClosedError, match="this producer is closed"):
        out.send_many("t", [b"1", b"2", b"3"])
    assert set(counts) == {1}
    assert values_of(fake) == []


@pytest.mark.parametrize("after", range(0, 600, 40))
def test_close_by_another_thread_at_any_moment_is_a_result_or_the_producers_error(fake: Any, after: int) -> None:
    """``after``: the number of records after which the other thread begins to close the producer."""
    records, seen, acknowledged = [b"%d" % n for n in range(300)], 0, 0
    reached = threading.Event()

    def choose(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        nonlocal seen
        seen += 1
        if seen > after:
            reached.set()
        return hash(value) % count

    def close() -> None:
        reached.wait(60)
        out.close(60)

    out = producer(fake, partitioner_class=choose)
    closer = threading.Thread(target=close)
    closer.start()
    try:
        while True:
            acknowledged += out.send_many("t", records).result(60).record_count
    except ClosedError:  # any other error fails the test
        closer.join()
    assert len(values_of(fake)) >= acknowledged


def test_asyncio_twin_sends_all_or_nothing_too(fake: Any) -> None:
    async def run() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers) as out:
            with pytest.raises(InvalidTypeError, match="record 1: "):
                await out.send_many("t", [b"1", "2"])
            assert (await (await out.send_many("t", iter([b"3"])))).record_count == 1
            assert (await out.send_and_wait("t", b"4", key=b"k")).offset == 1

    asyncio.run(run())
    assert values_of(fake) == [b"3", b"4"]
