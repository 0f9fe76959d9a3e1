"""The consumer against a failing cluster, and its own guarantees: order, bounds, time-outs."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, OffsetRange, RangeReader, TopicPartition
from headrace.errors import (
    ClosedError,
    CorruptMessageError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidGroupIdError,
    InvalidTopicError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    SerializationError,
    UnknownTopicOrPartitionError,
)
from headrace_core.records import encode_batch
from headrace_core.testing.verdicts import NotInTimeError
from tests.worlds.waiting import check_in_time, until

T0 = TopicPartition("t", 0)
NOT_LEADER, UNKNOWN_EPOCH, UNKNOWN_SERVER, TOPIC_DENIED = 6, 75, -1, 29


def consumer(cluster: Any, **settings: Any) -> Consumer:
    given = {"auto_offset_reset": "earliest", "retry_backoff_ms": 5, "fetch_max_wait_ms": 200, **settings}
    return Consumer(bootstrap_servers=cluster.bootstrap_servers, **given)


def fill(
    cluster: Any, count: int, *, start: int = 0, per_batch: int = 10, topic: str = "t", partition: int = 0
) -> None:
    for first in range(start, start + count, per_batch):
        rows = [(1_000 + n, b"k%d" % n, b"%d" % n, None) for n in range(first, min(first + per_batch, start + count))]
        cluster.append(topic, partition, encode_batch(rows))


def read(inp: Consumer, count: int, **how: Any) -> list[Any]:
    out: list[Any] = []
    deadline = time.monotonic() + 60
    while len(out) < count:
        if time.monotonic() >= deadline:
            raise NotInTimeError(f"only {len(out)} of {count} records came")
        out += inp.poll(0.5, **how)
    return out


def offsets(records: list[Any]) -> list[int]:
    return [record.offset for record in records]


def test_records_come_whole_and_in_order(fake: Any) -> None:
    fill(fake, 100)
    with consumer(fake) as inp:
        inp.assign([T0])
        records = read(inp, 100, max_records=7)
    assert offsets(records) == list(range(100))
    assert [(r.topic, r.partition, r.key, r.value, r.timestamp_ms) for r in records[:2]] == [
        ("t", 0, b"k0", b"0", 1_000),
        ("t", 0, b"k1", b"1", 1_001),
    ]


def test_poll_returns_at_most_max_records_and_positions_follow_what_was_handed_out(fake: Any) -> None:
    fill(fake, 50)
    with consumer(fake, max_poll_records=20) as inp:
        inp.assign([T0])
        assert inp.position(T0) == 0
        first = read(inp, 1)
        assert 0 < len(first) <= 20
        assert inp.position(T0) == len(first)
        assert len(inp.poll(1, max_records=3)) == 3
        assert inp.position(T0) == len(first) + 3


def test_poll_keeps_its_time_out_when_nothing_comes(fake: Any) -> None:
    with consumer(fake, fetch_max_wait_ms=60_000) as inp:
        inp.assign([T0])
        inp.poll(0.2)
        begun = time.monotonic()
        assert inp.poll(0.2) == []
        assert 0.19 <= time.monotonic() - begun < 30
        quickest = 60.0
        for _ in range(20):
            begun = time.monotonic()
            assert inp.poll(0) == []
            quickest = min(quickest, time.monotonic() - begun)
        assert quickest < 0.1


def test_batches_are_never_empty_and_end_with_the_consumer(fake: Any) -> None:
    fill(fake, 30)
    with consumer(fake) as inp:
        inp.assign([T0])
        seen: list[int] = []
        polls = 0
        take = inp.poll

        def counted_poll(*limits: Any) -> list[Any]:
            nonlocal polls
            polls += 1
            if polls == 5:  # after empty ones
                fill(fake, 5, start=30)
            return take(*limits)

        inp.poll = counted_poll  # type: ignore[method-assign]
        for records in inp.batches(timeout=0.02, max_records=10):
            assert 0 < len(records) <= 10
            seen += offsets(records)
            if len(seen) == 35:
                inp.close()
        assert seen == list(range(35))
        assert polls >= 5, "it waits over empty polls"
    with pytest.raises(ClosedError):
        inp.batches()


def test_batches_end_when_the_consumer_is_closed_just_before_a_poll(fake: Any) -> None:
    inp = consumer(fake)
    inp.assign([T0])
    take = inp.poll

    def poll(*limits: Any) -> list[Any]:
        inp.close()
        return take(*limits)

    inp.poll = poll  # type: ignore[method-assign]
    assert list(inp.batches()) == []


def test_batches_end_when_another_thread_closes_the_consumer(fake: Any) -> None:
    inp = consumer(fake)
    inp.assign([T0])
    ended = threading.Event()

    def iterate() -> None:
        assert list(inp.batches(timeout=60)) == []
        ended.set()

    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    until(lambda: len(fake.fetched) > 0)
    inp.close()
    assert ended.wait(30)
    thread.join(5)


def test_waiting_poll_gets_a_new_record_at_once(fake: Any) -> None:
    with consumer(fake, fetch_max_wait_ms=60_000) as inp:
        inp.assign([T0])
        inp.poll(0)
        until(lambda: fake.fetched)
        fill(fake, 1)
        begun = time.monotonic()
        assert offsets(inp.poll(60)) == [0]
        check_in_time(begun, 30)


def test_one_long_poll_waits_at_the_end_of_the_log(fake: Any) -> None:
    with consumer(fake, fetch_max_wait_ms=100) as inp:
        inp.assign([T0])
        begun = time.monotonic()
        inp.poll(0.5)
        count, took_s = len(fake.fetched), time.monotonic() - begun
        assert count <= 3 + took_s / 0.1  # two requests that trigger each other would make thousands
    assert fake.fetch_in_flight_max == 1


def test_next_request_leaves_before_the_answer_is_consumed(fake: Any) -> None:
    fill(fake, 20_000, per_batch=1_000)
    with consumer(fake, max_partition_fetch_bytes=100_000) as inp:
        inp.assign([T0])
        inp.poll(0, max_records=1)
        until(lambda: len(fake.fetched) > 2)  # without another poll
        assert offsets(read(inp, 20_000)) == list(range(20_000))


def test_queue_is_bounded_by_bytes(fake: Any) -> None:
    for first in range(0, 4_000, 100):
        fake.append("t", 0, encode_batch([(1, None, b"x" * 1_000, None)] * 100))
        assert first >= 0
    with consumer(fake, fetch_queue_max_bytes=500_000, max_partition_fetch_bytes=100_000) as inp:
        inp.assign([T0])
        inp.poll(0, max_records=1)
        core = inp._core
        until(lambda: core.reading.inbox.fetcher_waits)
        assert core.reading.inbox.queued_bytes <= 500_000 + 101_100
        assert offsets(read(inp, 4_000 - inp.position(T0)))[-1] == 3_999


def test_batch_larger_than_every_limit_still_comes(fake: Any) -> None:
    fake.append("t", 0, encode_batch([(1, None, b"x" * 300_000, None)]))
    fill(fake, 5)
    with consumer(fake, fetch_queue_max_bytes=1_000, max_partition_fetch_bytes=100, fetch_max_bytes=100) as inp:
        inp.assign([T0])
        assert [len(r.value) for r in read(inp, 6)] == [300_000, 1, 1, 1, 1, 1]


def test_seek_takes_effect_at_once_and_drops_what_was_fetched(fake: Any) -> None:
    fill(fake, 1_000)
    with consumer(fake) as inp:
        inp.assign([T0])
        read(inp, 10, max_records=10)
        inp.seek(T0, 905)
        assert inp.position(T0) == 905
        assert offsets(read(inp, 95)) == list(range(905, 1_000))
        inp.seek(T0, 3)
        assert offsets(inp.poll(5, max_records=2)) == [3, 4]


def test_seek_ends_a_long_poll(fake: Any) -> None:
    fill(fake, 10)
    with consumer(fake, fetch_max_wait_ms=60_000) as inp:
        inp.assign([T0])
        read(inp, 10)
        inp.seek(T0, 0)
        begun = time.monotonic()
        assert offsets(inp.poll(60)) == list(range(10))
        check_in_time(begun, 30)


def test_seek_in_the_middle_of_iteration_moves_it(fake: Any) -> None:
    fill(fake, 100, per_batch=100)
    seen = []
    with consumer(fake) as inp:
        inp.assign([T0])
        for record in inp:
            seen.append(record.offset)
            if record.offset == 4:
                inp.seek(T0, 98)
            if record.offset == 99:
                break
        assert seen == [0, 1, 2, 3, 4, 98, 99]
        assert inp.position(T0) == 100


def test_position_follows_iteration_record_by_record(fake: Any) -> None:
    fill(fake, 10, per_batch=10)
    with consumer(fake) as inp:
        inp.assign([T0])
        for record in inp:
            assert inp.position(T0) == record.offset + 1
            if record.offset == 6:
                break
        assert offsets(inp.poll(1)) == [7, 8, 9]
        inp.seek(T0, 5)
        assert next(inp).offset == 5
        assert next(inp).offset == 6


def test_seek_to_beginning_and_end(fake: Any) -> None:
    fill(fake, 10)
    with consumer(fake) as inp:
        inp.assign([T0])
        inp.seek_to_end()
        assert inp.position(T0) == 10
        assert inp.poll(0.1) == []
        inp.seek_to_beginning(T0)
        assert offsets(read(inp, 10)) == list(range(10))


def test_paused_partition_is_silent_and_goes_on_where_it_was(fake: Any) -> None:
    fake.create("two", 2)
    fill(fake, 50, topic="two", partition=0)
    fill(fake, 50, topic="two", partition=1)
    one, other = TopicPartition("two", 0), TopicPartition("two", 1)
    with consumer(fake) as inp:
        inp.assign([one, other])
        seen = read(inp, 5, max_records=5)
        inp.pause(one)
        assert inp.paused() == {one}
        rest = [r for _ in range(4) for r in inp.poll(0.2)]
        assert {r.partition for r in rest} == {1}
        inp.resume(one)
        seen += rest + read(inp, 100 - len(seen) - len(rest))
    for partition in (0, 1):
        assert [r.offset for r in seen if r.partition == partition] == list(range(50))


def test_pause_in_the_middle_of_a_batch_loses_nothing(fake: Any) -> None:
    fill(fake, 100, per_batch=100)
    with consumer(fake) as inp:
        inp.assign([T0])
        for record in inp:
            if record.offset == 30:
                break
        inp.pause(T0)
        assert inp.position(T0) == 31
        assert inp.poll(0.1) == []
        inp.resume(T0)
        assert offsets(read(inp, 69)) == list(range(31, 100))


def test_assignment_can_change_and_positions_of_those_that_stay_are_kept(fake: Any) -> None:
    fake.create("two", 2)
    for partition in (0, 1):
        fill(fake, 20, topic="two", partition=partition)
    one, other = TopicPartition("two", 0), TopicPartition("two", 1)
    with consumer(fake) as inp:
        inp.assign([one])
        read(inp, 5, max_records=5)
        inp.assign([one, other])
        assert inp.assignment() == {one, other}
        records = read(inp, 35)
        assert [r.offset for r in records if r.partition == 0] == list(range(5, 20))
        inp.assign([other])
        assert inp.poll(0.1) == []
        with pytest.raises(IllegalStateError, match="two-0 is not assigned"):
            inp.position(one)


def test_reset_policies(fake: Any) -> None:
    fill(fake, 10)
    with consumer(fake, auto_offset_reset="latest") as inp:
        inp.assign([T0])
        assert inp.position(T0) == 10
        fill(fake, 1, start=10)
        assert offsets(read(inp, 1)) == [10]
    with consumer(fake, auto_offset_reset="none") as inp:
        inp.assign([T0])
        with pytest.raises(NoOffsetForPartitionError, match="t-0 has no position"):
            inp.poll(5)
        inp.seek(T0, 3)
        assert offsets(read(inp, 1, max_records=1)) == [3]


def test_out_of_range_position_is_reset_or_raised(fake: Any) -> None:
    fill(fake, 10)
    fake.starts["t", 0] = 4
    with consumer(fake) as inp:
        inp.assign([T0])
        inp.seek(T0, 100)
        assert offsets(read(inp, 6)) == list(range(4, 10))
    with consumer(fake, auto_offset_reset="none") as inp:
        inp.assign([T0])
        inp.seek(T0, 100)
        with pytest.raises(OffsetOutOfRangeError, match="t-0"):
            inp.poll(5)


@pytest.mark.parametrize("error", [NOT_LEADER, UNKNOWN_EPOCH])
def test_retriable_error_is_waited_out(fake: Any, error: int) -> None:
    fill(fake, 10)
    errors = iter([error] * 3)
    fake.on_fetch = lambda broker, key: next(errors, 0)
    with consumer(fake) as inp:
        inp.assign([T0])
        assert offsets(read(inp, 10)) == list(range(10))


def test_fatal_error_is_raised_after_the_records_before_it(fake: Any) -> None:
    fill(fake, 10)
    with consumer(fake) as inp:
        inp.assign([T0])
        read(inp, 10)
        fake.on_fetch = lambda broker, key: TOPIC_DENIED
        fill(fake, 1, start=10)
        with pytest.raises(Exception, match="t-0: an error set by the test"):
            inp.poll(5)


def test_leader_change_is_followed_without_gap_or_repetition(fake_cluster: Any) -> None:
    cluster = fake_cluster(2)
    cluster.create("t")
    fill(cluster, 50)
    with consumer(cluster) as inp:
        inp.assign([T0])
        read(inp, 50)
        cluster.move("t", 0, 1)
        fill(cluster, 50, start=50)
        assert offsets(read(inp, 50)) == list(range(50, 100))
    assert {broker for broker, _ in cluster.fetched} == {0, 1}


def test_broken_stream_is_opened_again(fake_cluster: Any) -> None:
    fake = fake_cluster(restarts=True)
    fake.create("t")
    fill(fake, 10)
    with consumer(fake) as inp:
        inp.assign([T0])
        read(inp, 10)
        fake.servers[0].stop(0).wait()
        fake.servers[0] = fake._serve(0)  # the same port
        fill(fake, 10, start=10)
        assert offsets(read(inp, 10)) == list(range(10, 20))


def test_corrupt_batch_is_an_error_that_stays_and_can_be_passed_by(fake: Any) -> None:
    fill(fake, 10)
    batch = bytearray(encode_batch([(1, None, b"damaged", None)]))
    batch[-3] ^= 0xFF
    fake.append("t", 0, bytes(batch))
    fill(fake, 10, start=11)
    with consumer(fake) as inp:
        inp.assign([T0])
        assert offsets(read(inp, 10)) == list(range(10))
        for _ in range(2):
            with pytest.raises(CorruptMessageError):
                inp.poll(5)
        assert inp.position(T0) == 10
        inp.seek(T0, 11)
        assert offsets(read(inp, 10)) == list(range(11, 21))
    with consumer(fake, check_crcs=False) as inp:
        inp.assign([T0])
        assert offsets(read(inp, 21)) == list(range(21))


def test_deserializers_and_their_failure(fake: Any) -> None:
    def number(topic: str, data: bytes) -> int:
        return int(data)

    rows = [(1, b"a", b"1", None), (1, None, None, None), (1, b"b", b"no number", None), (1, b"c", b"4", None)]
    fake.append("t", 0, encode_batch(rows))
    with consumer(fake, value_deserializer=number, key_deserializer=lambda topic, data: data.decode()) as inp:
        inp.assign([T0])
        assert [(r.key, r.value) for r in inp.poll(5)] == [("a", 1), (None, None)]
        for _ in range(2):
            with pytest.raises(SerializationError, match=r"t-0 at offset 2: value\.deserializer failed"):
                inp.poll(5)
        assert inp.position(T0) == 2
        inp.seek(T0, 3)
        assert next(inp).value == 4


def test_what_needs_a_group_says_so(fake: Any) -> None:
    with consumer(fake) as inp:
        for call in (lambda: inp.subscribe(["t"]), inp.commit, lambda: inp.committed(T0), inp.group_metadata):
            with pytest.raises(InvalidGroupIdError, match=r"set group\.id"):
                call()
        with pytest.raises(IllegalStateError, match="nothing is assigned"):
            inp.poll(0)


def test_partitions_come_by_hand_or_from_the_group(fake: Any) -> None:
    with consumer(fake, group_id="g", enable_auto_commit=False) as inp:
        inp.assign([T0])
        with pytest.raises(IllegalStateError, match="cannot subscribe: partitions are assigned"):
            inp.subscribe(["t"])
        inp.unsubscribe()
        inp.subscribe(["t"])
        with pytest.raises(IllegalStateError, match="cannot assign partitions"):
            inp.assign([T0])
        inp.unsubscribe()
        inp.assign([T0])


def test_a_subscription_is_checked(fake: Any) -> None:
    with consumer(fake, group_id="g") as inp:
        for call, why in (
            (lambda: inp.subscribe("t"), "needs a list"),
            (lambda: inp.subscribe(), "not both"),
            (lambda: inp.subscribe(["t"], pattern="t.*"), "not both"),
            (lambda: inp.subscribe(pattern=""), "regular expression"),
        ):
            with pytest.raises(InvalidArgumentError, match=why):
                call()
        with pytest.raises(InvalidTopicError):
            inp.subscribe(["no such/name"])
        for offset in (-1, True, "7"):
            with pytest.raises(InvalidArgumentError, match="whole number from 0"):
                inp.commit({T0: offset})  # type: ignore[dict-item]


def test_topic_that_does_not_exist_is_named(fake: Any) -> None:
    with consumer(fake, allow_auto_create_topics=False) as inp:
        inp.assign([TopicPartition("nowhere", 0)])
        with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere' does not exist"):
            inp.poll(8)
        with pytest.raises(UnknownTopicOrPartitionError):
            inp.partitions_for("nowhere")


def test_partition_that_does_not_exist_is_named(fake: Any) -> None:
    with consumer(fake) as inp:
        inp.assign([TopicPartition("t", 7)])
        with pytest.raises(InvalidArgumentError, match="has 1 partition;"):
            inp.poll(5)


def test_bad_arguments_are_refused(fake: Any) -> None:
    with consumer(fake) as inp:
        inp.assign([T0])
        for offset in (-1, 1.5, True):
            with pytest.raises(InvalidArgumentError, match="whole number"):
                inp.seek(T0, offset)
        with pytest.raises(InvalidArgumentError, match="whole number from 0"):
            inp.assign([TopicPartition("t", -1)])


def test_questions_about_offsets(fake: Any) -> None:
    fill(fake, 10)
    fake.starts["t", 0] = 2
    with consumer(fake) as inp:
        assert inp.beginning_offsets([T0]) == {T0: 2}
        assert inp.end_offsets([T0]) == {T0: 10}
        assert inp.partitions_for("t") == [0]


def test_closed_consumer_says_so(fake: Any) -> None:
    inp = consumer(fake)
    inp.assign([T0])
    inp.close()
    inp.close()
    with pytest.raises(ClosedError, match="consumer is closed"):
        inp.poll(0)


def test_metrics_have_kafkas_names(fake: Any) -> None:
    fill(fake, 10)
    with consumer(fake) as inp:
        inp.assign([T0])
        read(inp, 4, max_records=4)
        metrics = inp.metrics()
    assert metrics["records-consumed-total"] == 10
    assert metrics["records-lag-max"] == 6
    assert metrics["fetch-latency-avg"] > 0


def test_arrow_tables_hold_what_poll_would_have_given(fake: Any) -> None:
    fake.append("t", 0, encode_batch([(5, b"k", b"v", [("h", b"x")]), (6, None, None, None)]))
    fill(fake, 100, start=2)
    with consumer(fake) as inp:
        inp.assign([T0])
        first = inp.poll(5, max_records=1)  # a table may begin in the middle of a batch
        assert offsets(first) == [0]
        tables = []
        while sum(table.num_rows for table in tables) < 101:
            table = inp.fetch_arrow(5)
            assert table.num_rows
            tables.append(table)
        assert inp.position(T0) == 102
        assert [o for table in tables for o in table["offset"].to_pylist()] == list(range(1, 102))
        assert tables[0].column_names == [
            "key",
            "value",
            "topic",
            "partition",
            "offset",
            "timestamp",
            "timestampType",
            "headers",
        ]
        empty = inp.fetch_arrow(0.1, columns=["value", "offset"], include_headers=False)
        assert empty.num_rows == 0
        assert empty.column_names == ["value", "offset"]


@pytest.mark.parametrize(
    ("columns", "include_headers", "names"),
    [
        (["value", "offset"], None, ["value", "offset"]),
        (["headers", "value"], None, ["headers", "value"]),
        (["headers", "value"], True, ["headers", "value"]),
        (["value"], True, ["value", "headers"]),
        (iter(["value", "offset"]), False, ["value", "offset"]),
    ],
)
def test_arrow_tables_have_the_columns_that_were_named(
    fake: Any, columns: Any, include_headers: bool | None, names: list[str]
) -> None:
    fill(fake, 3)
    with consumer(fake) as inp:
        inp.assign([T0])
        table = inp.fetch_arrow(5, columns=columns, include_headers=include_headers)
    assert (table.column_names, table.num_rows) == (names, 3)


def test_range_reader_reads_exactly_its_ranges(fake: Any) -> None:
    fake.create("two", 2)
    for partition in (0, 1):
        fill(fake, 100, topic="two", partition=partition, per_batch=7)
    ranges = [OffsetRange("two", 0, 3, 95), OffsetRange("two", 1, 10, 10)]
    with RangeReader(ranges, bootstrap_servers=fake.bootstrap_servers) as reader:
        rows = [row for batch in reader.arrow_batches(max_bytes=500) for row in batch["offset"].to_pylist()]
    assert rows == list(range(3, 95))
    with RangeReader(ranges, {"bootstrap.servers": fake.bootstrap_servers}) as reader:
        slices = list(reader.slices())
    assert slices[-1].next_offset >= 95
    assert b"".join(item.records for item in slices)


def test_range_reader_says_when_records_are_gone_or_not_there_yet(fake: Any) -> None:
    fill(fake, 10)
    fake.starts["t", 0] = 5
    with (
        RangeReader([OffsetRange("t", 0, 0, 10)], bootstrap_servers=fake.bootstrap_servers) as reader,
        pytest.raises(OffsetOutOfRangeError),
    ):
        list(reader.slices())
    with (
        RangeReader([OffsetRange("t", 0, 5, 20)], bootstrap_servers=fake.bootstrap_servers) as reader,
        pytest.raises(OffsetOutOfRangeError, match="log ends at 10"),
    ):
        list(reader.slices())
    with pytest.raises(InvalidArgumentError, match="at or after its start"):
        RangeReader([OffsetRange("t", 0, 5, 2)])


def test_range_reader_of_a_topic_that_does_not_exist_creates_no_topic(fake: Any) -> None:
    fake.auto_create = 1
    with (
        RangeReader([OffsetRange("ordres", 0, 0, 10)], bootstrap_servers=fake.bootstrap_servers) as reader,
        pytest.raises(UnknownTopicOrPartitionError, match="'ordres' does not exist"),
    ):
        list(reader.slices())
    assert "ordres" not in fake.partitions


# --- asyncio ---------------------------------------------------------------------------------------------------------


def test_async_iteration_poll_and_arrow(fake: Any) -> None:
    fill(fake, 3_000, per_batch=500)

    async def main() -> None:
        async with AsyncConsumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest") as inp:
            inp.assign([T0])
            seen = []
            async for record in inp:
                seen.append(record.offset)
                if len(seen) == 2_500:
                    break
            assert seen == list(range(2_500))
            assert await inp.position(T0) == 2_500
            assert offsets(await inp.poll(5, max_records=10)) == list(range(2_500, 2_510))
            assert (await inp.fetch_arrow(5))["offset"][0].as_py() == 2_510
            inp.seek_to_end()
            assert await inp.position(T0) == 3_000
            begun = time.monotonic()
            assert await inp.poll(0.1) == []
            check_in_time(begun, 30)
            assert await inp.end_offsets([T0]) == {T0: 3_000}
            with pytest.raises(InvalidGroupIdError):
                await inp.subscribe(["t"])

    asyncio.run(main())


def test_async_poll_can_be_cancelled_and_loses_nothing(fake: Any) -> None:
    async def main() -> None:
        async with AsyncConsumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest") as inp:
            inp.assign([T0])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(inp.poll(30), 0.1)
            fill(fake, 5)
            assert offsets(await inp.poll(5)) == list(range(5))

    asyncio.run(main())


def test_async_batches_are_never_empty_and_end_when_another_task_closes_the_consumer(fake: Any) -> None:
    fill(fake, 30)

    async def main() -> None:
        inp = AsyncConsumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest")
        inp.assign([T0])
        seen: list[int] = []
        whole = asyncio.Event()

        async def iterate() -> None:
            async for records in inp.batches(timeout=60, max_records=7):
                assert 0 < len(records) <= 7
                seen.extend(offsets(records))
                if len(seen) == 30:
                    whole.set()

        task = asyncio.create_task(iterate())
        await asyncio.wait_for(whole.wait(), 30)
        await inp.close()
        await asyncio.wait_for(task, 30)
        assert seen == list(range(30))
        with pytest.raises(ClosedError):
            inp.batches()

    asyncio.run(main())
