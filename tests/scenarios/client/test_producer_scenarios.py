"""The producer against a failing cluster."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from typing import Any

import pytest

from headrace import AsyncProducer, Producer
from headrace.errors import (
    BootstrapError,
    BufferTimeoutError,
    ClosedError,
    DeliveryTimeoutError,
    IllegalStateError,
    InvalidArgumentError,
    RecordTooLargeError,
    RequestTimedOutError,
    SerializationError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from headrace_core.rpc.stream import pause
from tests.worlds.waiting import check_in_time, until

NOT_LEADER, NOT_ENOUGH_REPLICAS, INVALID_RECORD, THROTTLED = 6, 19, 87, 89


def producer(cluster: Any, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap_servers, retry_backoff_ms=5, **settings)


def values(records: list[Any]) -> list[bytes]:
    return [record.value for record in records]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_record_on_an_idle_link_is_sent_at_once_and_alone(fake: Any) -> None:
    with producer(fake) as out:
        for value in numbered(5):
            assert out.send("t", value).result(60).offset == int(value)
    assert len(fake.produced) == 5


def test_records_gather_while_a_request_is_in_flight(fake: Any) -> None:
    fake.hold_answers(True)
    with producer(fake, linger_ms=0, max_in_flight_requests_per_connection=1) as out:
        out.send("t", b"first")
        until(lambda: fake.produced)
        futures = [out.send("t", value) for value in numbered(1000)]
        fake.hold_answers(False)
        assert [future.result(60).offset for future in futures] == list(range(1, 1001))
    assert len(fake.produced) == 2


def test_partial_batch_waits_five_milliseconds_at_most_behind_a_slow_answer(fake: Any) -> None:
    with producer(fake) as out:
        out.send("t", b"known").result(60)  # a producer that the broker does not know yet sends one batch at a time
        fake.hold_answers(True)
        out.send("t", b"first")
        until(lambda: len(fake.produced) == 2)
        out.send("t", b"second")
        until(lambda: len(out._core.sender.links[0].in_flight) == 2)  # although the first batch has no response
        fake.hold_answers(False)


@pytest.mark.parametrize("headers", [{"h": b"1", "n": None}, [("h", b"1"), ("n", None)]])
def test_headers_are_those_given_also_for_the_first_record_of_a_topic(fake: Any, headers: Any) -> None:
    with producer(fake) as out:
        for _ in range(2):  # the first waits for the topic's metadata, the second does not
            out.send("t", b"v", headers=headers).result(60)
    assert [record.headers for record in fake.records("t")] == [[("h", b"1"), ("n", None)]] * 2


def test_linger_holds_a_record_back_and_flush_overrules_it(fake: Any) -> None:
    with producer(fake, linger_ms=60_000, delivery_timeout_ms=120_000) as out:
        future = out.send("t", b"v")
        assert not future.done()
        out.flush(60)
        assert future.done()


def test_one_request_carries_several_partitions(fake: Any) -> None:
    fake.create("six", 6)
    fake.hold_answers(True)
    with producer(fake, max_in_flight_requests_per_connection=1) as out:
        out.send("six", b"first", partition=0)
        until(lambda: fake.produced)
        futures = [out.send("six", b"v", partition=number) for number in range(6)]
        fake.hold_answers(False)
        for future in futures:
            future.result(60)
    assert [len(request.partitions) for _, request in fake.produced] == [1, 6]


def test_requests_in_flight_never_pass_the_limit(fake: Any) -> None:
    seen: list[int] = []
    with producer(fake, batch_size=200, max_in_flight_requests_per_connection=3) as out:
        out.send("t", b"first").result(60)
        link = out._core.sender.links[0]

        def watch(broker: int, item: Any) -> int:
            seen.append(len(link.in_flight))
            return 0

        fake.on_produce = watch
        fake.hold_answers(True)
        futures = [out.send("t", b"x" * 100) for _ in range(200)]
        until(lambda: len(link.in_flight) == 3)
        fake.hold_answers(False)
        out.flush(60)
        assert [future.result().offset for future in futures] == list(range(1, 201))
    assert max(seen) == 3


@pytest.mark.parametrize("error", [NOT_LEADER, NOT_ENOUGH_REPLICAS, THROTTLED])
def test_partition_that_refuses_for_a_while_gets_its_batches_in_order(fake: Any, error: int) -> None:
    seen: list[bytes] = []

    def refuse_until_the_first_comes_again(broker: int, item: Any) -> int:
        again = bool(seen) and item.records == seen[0]
        seen.append(item.records)
        return 0 if again or seen.count(seen[0]) > 1 else error

    with producer(fake, batch_size=200) as out:
        fake.on_produce = refuse_until_the_first_comes_again
        futures = [out.send("t", value) for value in numbered(300)]
        out.flush(60)
        assert [future.result().offset for future in futures] == list(range(300))
        assert out.metrics()["record-retry-total"] > 0
    assert values(fake.records("t")) == numbered(300)


def test_one_request_in_flight_keeps_order_whatever_fails(fake: Any, rng: Any) -> None:
    fake.on_produce = lambda broker, item: THROTTLED if rng.random() < 0.3 else 0
    with producer(fake, batch_size=200, max_in_flight_requests_per_connection=1) as out:
        futures = [out.send("t", value) for value in numbered(300)]
        out.flush(20)
        assert [future.result().offset for future in futures] == list(range(300))


def test_fatal_error_fails_its_batch_alone(fake: Any) -> None:
    fake.on_produce = lambda broker, item: INVALID_RECORD if b"bad" in item.records else 0
    with producer(fake, batch_size=100) as out:
        good = out.send("t", b"good" * 20)
        bad = out.send("t", b"bad" * 26)
        after = out.send("t", b"good" * 20)
        assert good.result(60).offset == 0
        assert (error := bad.exception(10)) is not None
        assert error.code == "INVALID_RECORD"
        assert "t-0" in error.message
        assert after.result(60).offset == 1


def test_leader_change_is_followed(fake_cluster: Any) -> None:
    cluster = fake_cluster(2)
    cluster.create("t")
    with producer(cluster) as out:
        out.send("t", b"a").result(60)
        cluster.move("t", 0, 1)
        assert out.send("t", b"b").result(60).offset == 1
    assert [broker for broker, _ in cluster.produced][-1] == 1
    assert values(cluster.records("t")) == [b"a", b"b"]


def test_broken_stream_is_opened_again_and_nothing_acknowledged_is_lost(fake: Any) -> None:
    breaks = iter([0, "break", 0, 0, "break"])
    fake.on_produce = lambda broker, item: next(breaks, 0)
    with producer(fake, batch_size=300) as out:
        futures = [out.send("t", value) for value in numbered(500)]
        out.flush(20)
        placed = {future.result().offset: value for future, value in zip(futures, numbered(500), strict=True)}
    log = {record.offset: record.value for record in fake.records("t")}
    assert len(placed) == 500
    assert all(log[offset] == value for offset, value in placed.items())


def test_outcome_is_unknown_when_the_broker_never_answers(fake: Any) -> None:
    fake.on_produce = lambda broker, item: "silent"
    with producer(fake, request_timeout_ms=100, delivery_timeout_ms=2_000) as out:
        future = out.send("t", b"v")
        with pytest.raises(
            UnknownOutcomeError, match=r"within delivery.timeout.ms=2000: they may or may not be in the"
        ):
            future.result(60)


def test_outcome_that_is_unknown_when_retries_are_used_up_says_so(fake: Any) -> None:
    fake.on_produce = lambda broker, item: "silent"
    with producer(fake, request_timeout_ms=100, retries=0, enable_idempotence=False) as out:
        error = out.send("t", b"v").exception(60)
    assert isinstance(error, UnknownOutcomeError)
    assert "not acknowledged, and retries=0 allows no further attempt: they may or may not" in error.message
    assert "delivery.timeout.ms" not in error.message


def test_delivery_times_out_when_the_broker_keeps_refusing(fake: Any) -> None:
    fake.on_produce = lambda broker, item: NOT_ENOUGH_REPLICAS
    with producer(fake, request_timeout_ms=100, delivery_timeout_ms=2_000) as out:
        error = out.send("t", b"v").exception(30)
    assert error is not None
    # (unknown: the time ended while an attempt was under way)
    assert error.code in ("DELIVERY_TIMED_OUT", "NOT_ENOUGH_REPLICAS", "OUTCOME_UNKNOWN")
    assert "an error set by the test" in error.message


def test_retries_zero_gives_the_first_failure(fake: Any) -> None:
    fake.on_produce = lambda broker, item: THROTTLED
    with producer(fake, retries=0) as out:
        error = out.send("t", b"v").exception(10)
    assert error is not None
    assert error.code == "THROTTLING_QUOTA_EXCEEDED"
    assert len(fake.produced) == 1


def test_partition_without_a_leader_times_out_saying_so(fake: Any) -> None:
    with producer(fake, request_timeout_ms=100, delivery_timeout_ms=2_000) as out:
        out.send("t", b"v").result(60)
        fake.move("t", 0, -1)
        error = out.send("t", b"v").exception(60)
    assert isinstance(error, DeliveryTimeoutError)
    assert "no leader" in error.message


def test_acks_zero_reports_no_offset(fake: Any) -> None:
    with producer(fake, acks="0") as out:
        assert out.send("t", b"v").result(60).offset == -1
        until(lambda: len(fake.records("t")) == 1)


def test_close_with_acks_0_waits_for_no_pause(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a stream with acks=0 shows that the broker has read everything: no other stream follows."""
    ended: list[bool] = []

    async def noted(seconds: float, news: asyncio.Event) -> None:
        ended.append(news.is_set())
        await pause(seconds, news)

    monkeypatch.setattr("headrace_core.rpc.stream.pause", noted)
    with producer(fake, acks="0") as out:
        assert out.send("t", b"v").result(60).offset == -1
    assert ended == [True]


def test_full_buffer_blocks_until_there_is_room(fake: Any) -> None:
    fake.hold_answers(True)
    with producer(fake, buffer_memory=20_000, batch_size=2_000) as out:
        sent: list[Any] = []
        thread = threading.Thread(target=lambda: sent.extend(out.send("t", b"x" * 100) for _ in range(500)))
        thread.start()
        until(lambda: out.metrics()["buffer-available-bytes"] == 0)
        assert thread.is_alive()
        fake.hold_answers(False)
        thread.join(60)
        out.flush(60)
        assert [future.result().offset for future in sent] == list(range(500))
        assert out.metrics()["bufferpool-wait-time-total"] > 0


def test_buffer_that_stays_full_is_an_error_after_max_block(fake: Any) -> None:
    fake.hold_answers(True)
    with producer(fake, buffer_memory=1_000, max_block_ms=2_000) as out:
        begun = time.monotonic()

        def send_more_than_fits() -> None:
            for _ in range(100):
                out.send("t", b"x" * 100)

        with pytest.raises(BufferTimeoutError, match=r"buffer\.memory=1000"):
            send_more_than_fits()
        check_in_time(begun, 30)
        fake.hold_answers(False)


def test_send_many_larger_than_the_buffer_gets_through(fake: Any) -> None:
    with producer(fake, buffer_memory=10_000, batch_size=1_000) as out:
        metadata = out.send_many("t", numbered(5_000)).result(60)
    assert metadata.record_count == 5_000
    assert sum(item.count for item in metadata.ranges) == 5_000
    assert values(fake.records("t")) == numbered(5_000)


def test_record_above_max_request_size_is_refused_here(fake: Any) -> None:
    with producer(fake, max_request_size=1_000) as out:
        with pytest.raises(RecordTooLargeError, match=r"max\.request\.size"):
            out.send("t", b"x" * 1_000)
        assert out.send("t", b"fits").result(60).offset == 0


def test_record_above_the_topics_limit_is_refused_here(fake: Any) -> None:
    fake.max_message_bytes = 500
    with producer(fake) as out:
        with pytest.raises(RecordTooLargeError, match="500 bytes"):
            out.send("t", b"x" * 500)
        futures = [out.send("t", b"x" * 100) for _ in range(20)]
        out.flush(60)
        assert all(future.exception() is None for future in futures)
    assert all(len(item.records) <= 500 for _, request in fake.produced for item in request.partitions)


def test_compressed_record_is_judged_by_the_broker(fake: Any) -> None:
    fake.max_message_bytes = 500
    with producer(fake, compression_type="lz4") as out:
        assert out.send("t", b"x" * 5_000).result(60).offset == 0
    assert len(fake.produced[0][1].partitions[0].records) < 500


def test_batch_that_compression_leaves_too_large_is_not_sent_and_those_beside_it_are(fake: Any) -> None:
    fake.create("two", 2)
    fake.max_message_bytes = 5_000
    with producer(fake, compression_type="lz4", linger_ms=10_000) as out:
        large = out.send("two", random.Random(18).randbytes(6_000), partition=0)
        beside = out.send("two", b"beside", partition=1)
        out.flush(60)
        assert isinstance(large.exception(60), RecordTooLargeError)
        assert beside.result(60).offset == 0
        assert out.send("two", b"behind", partition=0).result(60).offset == 0
    assert all(len(item.records) <= 5_000 for _, request in fake.produced for item in request.partitions)


def test_unknown_topic_is_named_soon(fake: Any) -> None:
    with producer(fake) as out, pytest.raises(UnknownTopicOrPartitionError, match="'nowhere' does not exist"):
        out.send("nowhere", b"v")


@pytest.mark.parametrize("told", ["", "topic 'nowhere' does not exist; brokers create no such topic"])
def test_the_error_of_an_unknown_topic_gives_the_servers_reason_and_guesses_none(fake: Any, told: str) -> None:
    fake.unknown_topic = told
    with producer(fake) as out, pytest.raises(UnknownTopicOrPartitionError) as failed:
        out.send("nowhere", b"v")
    known = told or "topic 'nowhere' does not exist"
    assert failed.value.message == f"{known}; create it first (headrace topics create nowhere)"


def test_topic_is_created_by_sending_to_it(fake: Any) -> None:
    fake.auto_create = 3
    with producer(fake) as out:
        out.send("new", b"v").result(60)
        assert out.partitions_for("new") == [0, 1, 2]
    assert any(request.allow_auto_topic_creation for request in fake.metadata_asked)


def test_topic_is_not_created_when_the_client_may_not(fake: Any) -> None:
    fake.auto_create = 3
    with producer(fake, allow_auto_create_topics=False) as out, pytest.raises(UnknownTopicOrPartitionError):
        out.send("new", b"v")


@pytest.mark.parametrize("error", [3, 6, 100], ids=["unknown topic", "not leader", "unknown topic id"])
@pytest.mark.parametrize("settings", [{}, {"enable_idempotence": False, "acks": "1"}])
@pytest.mark.parametrize("partitions", [1, 4])
def test_a_used_producer_creates_a_deleted_topic_again_like_a_new_one(
    fake: Any, error: int, settings: dict[str, Any], partitions: int
) -> None:
    fake.create("gone", 2)
    fake.auto_create = partitions
    fake.on_produce = lambda broker, item: 0 if item.topic in fake.partitions else error
    with producer(fake, **settings) as out:
        out.send("gone", b"old", partition=0).result(60)
        fake.delete("gone")
        futures = [out.send("gone", b"%d" % number, partition=0) for number in range(3)]
        for future in futures:
            future.result(10)
        assert [bytes(each.value) for each in fake.records("gone", 0)] == [b"0", b"1", b"2"]
        assert len(out.partitions_for("gone")) == partitions
    assert [list(each.topics) for each in fake.metadata_asked if each.allow_auto_topic_creation] == [["gone"]] * 2


def test_a_used_producer_creates_no_topic_when_the_client_may_not(fake: Any) -> None:
    fake.create("gone")
    fake.auto_create = 1
    with producer(fake, allow_auto_create_topics=False) as out:
        out.send("gone", b"old").result(60)
        fake.delete("gone")
        late = out.send("gone", b"new")
        until(lambda: fake.metadata_asked[-1].topics == ["gone"])
        assert not any(each.allow_auto_topic_creation for each in fake.metadata_asked)
        assert "gone" not in fake.partitions
        fake.create("gone")
        late.result(60)


def test_a_producer_whose_records_have_failed_creates_no_topic_again(fake: Any) -> None:
    """It asked for the topic for ever, and created it, without records, as soon as brokers allowed it."""
    fake.create("gone")
    fake.on_produce = lambda broker, item: 0 if item.topic in fake.partitions else 3
    with producer(fake, delivery_timeout_ms=600, request_timeout_ms=500) as out:
        out.send("gone", b"old").result(60)
        fake.delete("gone")
        with pytest.raises(DeliveryTimeoutError, match="'gone' no longer exists"):
            out.send("gone", b"new").result(60)
        seen = len(fake.metadata_asked) + 2  # a refresh was perhaps on its way
        assert any(each.allow_auto_topic_creation for each in fake.metadata_asked[1:seen])
        until(lambda: len(fake.metadata_asked) > seen + 2)
        assert not any(each.allow_auto_topic_creation for each in fake.metadata_asked[seen:])


def test_partition_out_of_range_is_asked_for_again_before_it_is_refused(fake: Any) -> None:
    with producer(fake) as out:
        out.send("t", b"v").result(60)
        with pytest.raises(InvalidArgumentError, match="has 1 partition "):
            out.send("t", b"v", partition=1)
        with fake.changed:
            fake.create("t", 2)
        assert out.send("t", b"v", partition=1).result(60).partition == 1


def test_many_threads_share_a_producer_and_lose_nothing(fake: Any) -> None:
    with producer(fake, batch_size=500) as out:
        futures: list[list[Any]] = [[] for _ in range(4)]

        def work(number: int) -> None:
            for value in numbered(2_000):
                futures[number].append(out.send("t", b"%d-%s" % (number, value)))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        out.flush(20)
        offsets = [[future.result().offset for future in line] for line in futures]
    log = {record.offset: record.value for record in fake.records("t")}
    assert sorted(offset for line in offsets for offset in line) == list(range(8_000))
    for number, line in enumerate(offsets):
        assert line == sorted(line)
        assert [log[offset] for offset in line] == [b"%d-%d" % (number, index) for index in range(2_000)]


def test_callbacks_get_metadata_or_the_error(fake: Any) -> None:
    fake.on_produce = lambda broker, item: INVALID_RECORD if b"bad" in item.records else 0
    seen: list[Any] = []
    with producer(fake) as out:
        out.send("t", b"good", on_delivery=lambda metadata, error: seen.append((metadata, error))).result(60)
        out.send("t", b"bad", on_delivery=lambda metadata, error: seen.append((metadata, error))).exception(10)
    assert seen[0][0].offset == 0
    assert seen[0][1] is None
    assert seen[1][0] is None
    assert seen[1][1].code == "INVALID_RECORD"


def test_callback_that_raises_or_blocks_does_not_stop_the_sender(fake: Any) -> None:
    caught: list[BaseException] = []
    with producer(fake) as out:

        def blocking(metadata: Any, error: Any) -> None:
            try:
                out.partitions_for("t")
            except IllegalStateError as failure:
                caught.append(failure)
            raise RuntimeError("a user's mistake")

        out.send("t", b"v", on_delivery=blocking).result(60)
        assert out.send("t", b"w").result(60).offset == 1
    assert "callback" in str(caught[0])


def test_serializers_are_applied_once_and_their_failures_are_typed(fake: Any) -> None:
    from headrace.serializers import json_utf8

    with producer(fake, value_serializer=json_utf8, key_serializer=lambda topic, key: key.encode()) as out:
        out.send("t", {"a": 1}, key="k").result(60)
        with pytest.raises(SerializationError, match=r"key\.serializer failed for topic 't'"):
            out.send("t", {}, key=5)
    (record,) = fake.records("t")
    assert (record.key, record.value) == (b"k", b'{"a":1}')


def test_partitioner_decides_and_sees_serialized_bytes(fake: Any) -> None:
    fake.create("six", 6)
    seen: list[Any] = []

    def to_last(topic: str, key: bytes | None, value: bytes | None, count: int) -> int:
        seen.append((topic, key, value, count))
        return count - 1

    with producer(fake, partitioner_class=to_last) as out:
        assert out.send("six", b"v", key=b"k").result(60).partition == 5
        assert out.send("six", b"v", partition=2).result(60).partition == 2
    assert seen == [("six", b"k", b"v", 6)]


def test_send_after_close_is_a_typed_error(fake: Any) -> None:
    out = producer(fake)
    out.send("t", b"v").result(60)
    out.close()
    out.close()
    with pytest.raises(ClosedError, match="producer is closed"):
        out.send("t", b"v")


def test_close_flushes(fake: Any) -> None:
    out = producer(fake, linger_ms=60_000, delivery_timeout_ms=120_000)
    futures = [out.send("t", value) for value in numbered(10)]
    out.close()
    assert [future.result(0).offset for future in futures] == list(range(10))


def test_close_warns_of_records_it_gives_up(fake: Any) -> None:
    fake.hold_answers(True)
    out = producer(fake)
    future = out.send("t", b"v")
    until(lambda: fake.produced)
    with pytest.warns(RuntimeWarning, match="closed with 1 record unacknowledged"):
        out.close(timeout=0.05)
    assert isinstance(future.exception(1), UnknownOutcomeError)


def test_producer_that_is_dropped_without_close_still_sends(fake: Any) -> None:
    out = producer(fake, linger_ms=60_000, delivery_timeout_ms=120_000)
    out.send("t", b"v")
    del out
    gc.collect()
    until(lambda: len(fake.records("t")) == 1)


def test_flush_that_times_out_says_how_many_are_left(fake: Any) -> None:
    fake.hold_answers(True)
    with producer(fake) as out:
        future = out.send("t", b"v")
        with pytest.raises(DeliveryTimeoutError, match="1 record not acknowledged"):
            out.flush(0.05)
        with pytest.raises(TimeoutError):
            future.result(0.01)
        fake.hold_answers(False)
        assert future.result(60).offset == 0


def test_unreachable_bootstrap_names_address_and_cause(unused_port: int) -> None:
    with (
        Producer(
            bootstrap_servers=f"127.0.0.1:{unused_port},nosuchhost.invalid:9095", bootstrap_timeout_ms=3_000
        ) as out,
        pytest.raises(BootstrapError) as caught,
    ):
        out.send("t", b"v")
    assert f"127.0.0.1:{unused_port}: connection refused" in caught.value.message
    assert "'nosuchhost.invalid' cannot be resolved" in caught.value.message


def test_metadata_is_read_again_when_it_is_old(fake: Any) -> None:
    with producer(fake, metadata_max_age_ms=50) as out:
        out.send("t", b"v").result(60)
        asked = len(fake.metadata_asked)
        until(lambda: len(fake.metadata_asked) > asked + 2)


def test_first_use_by_many_threads_asks_for_a_topic_once_each_at_most(fake: Any) -> None:
    with producer(fake) as out:
        threads = [threading.Thread(target=out.send, args=("t", b"v")) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        out.flush(60)
    assert len(fake.metadata_asked) <= 9
    assert len(fake.records("t")) == 8


# --- asyncio ---------------------------------------------------------------------------------------------------------


def test_async_futures_work_with_gather_wait_for_and_cancellation(fake: Any) -> None:
    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers) as out:
            futures = [await out.send("t", value) for value in numbered(100)]
            metadata = await asyncio.gather(*futures)
            assert [item.offset for item in metadata] == list(range(100))
            fake.hold_answers(True)
            slow = await out.send("t", b"slow")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(slow), 0.05)
            other = await out.send("t", b"other")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(other, 0.05)
            assert other.cancelled()
            fake.hold_answers(False)
            assert (await slow).offset == 100
            await out.flush(60)
        assert values(fake.records("t"))[-1] == b"other"  # the caller stops waiting, but the send continues

    asyncio.run(main())


def test_async_send_waits_while_the_buffer_is_full_and_lets_the_loop_turn(fake: Any) -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        async with AsyncProducer(
            bootstrap_servers=fake.bootstrap_servers, buffer_memory=20_000, batch_size=2_000
        ) as out:
            task = asyncio.create_task(tick())
            futures = [await out.send("t", b"x" * 100) for _ in range(1_000)]
            await out.flush(60)
            task.cancel()
            assert [(await future).offset for future in futures] == list(range(1_000))
        return ticks

    assert asyncio.run(main()) > 20


def test_async_errors_are_those_of_the_blocking_producer(fake: Any) -> None:
    fake.on_produce = lambda broker, item: INVALID_RECORD

    async def main() -> None:
        async with AsyncProducer(bootstrap_servers=fake.bootstrap_servers, max_request_size=500) as out:
            with pytest.raises(RecordTooLargeError):
                await out.send("t", b"x" * 1_000)
            with pytest.raises(UnknownTopicOrPartitionError):
                await out.send("nowhere", b"v")
            future = await out.send("t", b"v")
            with pytest.raises(Exception, match="an error set by the test"):
                await future
            many = await out.send_many("t", numbered(10))
            with pytest.raises(Exception, match="an error set by the test"):
                await many
            task = asyncio.create_task(out.send("t", b"v"))  # what send returns is a coroutine
            await task
            await out.flush(60)
        with pytest.raises(ClosedError):
            await out.send("t", b"v")

    asyncio.run(main())


def test_async_producer_outlives_its_loop(fake: Any) -> None:
    out = AsyncProducer(bootstrap_servers=fake.bootstrap_servers)

    async def one() -> int:
        return int((await (await out.send("t", b"v"))).offset)

    assert [asyncio.run(one()), asyncio.run(one())] == [0, 1]
    asyncio.run(out.close())


def test_metadata_of_a_silent_node_times_out(fake: Any) -> None:
    fake.move("t", 0, -1)
    with producer(fake, max_block_ms=2_000) as out:
        with pytest.raises((RequestTimedOutError, DeliveryTimeoutError, TimeoutError)):
            out.send("t", b"v").result(0.3)
        with pytest.warns(RuntimeWarning):
            out.close(0.01)
