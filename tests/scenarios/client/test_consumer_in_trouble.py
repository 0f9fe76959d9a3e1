"""A consumer under failures: pauses at a bad moment, damage, one partition in error, a thousand partitions."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, Producer, TopicPartition
from headrace.engine import metadata
from headrace.errors import (
    CorruptMessageError,
    HeadraceError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from headrace_core.records import encode_batch
from headrace_core.testing.verdicts import NotInTimeError
from tests.worlds.waiting import check_in_time, until

T0 = TopicPartition("t", 0)


def consumer(cluster: Any, **settings: Any) -> Consumer:
    given = {"auto_offset_reset": "earliest", "retry_backoff_ms": 5, "fetch_max_wait_ms": 200, **settings}
    return Consumer(bootstrap_servers=cluster.bootstrap_servers, **given)


def fill(cluster: Any, count: int, *, topic: str = "t", partition: int = 0, value: bytes = b"v") -> None:
    cluster.append(topic, partition, encode_batch([(n, None, value, None) for n in range(count)]))


def read(inp: Consumer, count: int) -> list[Any]:
    out: list[Any] = []
    deadline = time.monotonic() + 60
    while len(out) < count:
        if time.monotonic() >= deadline:
            raise NotInTimeError(f"only {len(out)} of {count} records came")
        out += inp.poll(0.5)
    return out


def test_partition_paused_while_it_is_placed_is_not_fetched(fake: Any) -> None:
    fake.create("u")
    fill(fake, 10)
    with consumer(fake) as inp:
        inp.assign([T0, TopicPartition("u", 0)])
        inp.poll(0)  # the search for the start position has begun
        inp.pause(T0)
        inp.poll(0)
        fill(fake, 1, topic="u")
        assert len(read(inp, 1)) == 1
        inp.poll(0.2)
        assert T0 not in {tp for link in inp._core.reading.fetcher.links.values() for tp in link.members}
        inp.resume(T0)
        assert len(read(inp, 10)) == 10


def test_pausing_and_resuming_over_and_over_keeps_memory_bounded(fake: Any) -> None:
    for _ in range(60):
        fill(fake, 10, value=b"x" * 10_000)
    with consumer(fake, fetch_queue_max_bytes=1_000_000, max_partition_fetch_bytes=100_000) as inp:
        inp.assign([T0])
        core, seen = inp._core, 0
        records: list[Any] = []
        for _ in range(12):
            records += inp.poll(2, max_records=1)
            until(
                lambda: (
                    core.reading.inbox.fetcher_waits
                    or core.reading.inbox.queued_bytes > 500_000
                    or core.reading.fetcher.tracked[T0].fetch_at == 600
                )
            )
            inp.pause(T0)
            assert inp.poll(0) == []
            held = sum(item[0].size for queue in core.reading._held.values() for item in queue)
            seen = max(seen, held + core.reading.inbox.queued_bytes)
            inp.resume(T0)
        assert seen < 2_500_000
        records += read(inp, 600 - len(records))
    assert [record.offset for record in records] == list(range(600))


def test_error_of_one_partition_is_raised_until_it_is_seeked(fake: Any) -> None:
    fill(fake, 5)
    fake.starts["t", 0] = 3
    with consumer(fake, auto_offset_reset="none") as inp:
        inp.assign([T0])
        inp.seek(T0, 0)
        for _ in range(3):
            with pytest.raises(OffsetOutOfRangeError):
                inp.poll(5)
        inp.seek(T0, 0)
        with pytest.raises(OffsetOutOfRangeError):
            inp.poll(5)


def test_arrow_stops_before_a_damaged_batch_and_skips_nothing(fake_cluster: Any) -> None:
    cluster = fake_cluster()
    cluster.create("t", 2)
    fill(cluster, 5)
    damaged = bytearray(encode_batch([(1, None, b"damaged", None)] * 5))
    damaged[-3] ^= 0xFF
    cluster.append("t", 0, bytes(damaged))
    fill(cluster, 5)
    fill(cluster, 7, partition=1)
    with consumer(cluster) as inp:
        inp.assign([T0, TopicPartition("t", 1)])
        got: list[tuple[int, int]] = []
        failures = 0
        deadline = time.monotonic() + 60
        while failures < 3 and time.monotonic() < deadline:
            try:
                table = inp.fetch_arrow(0.3)
            except CorruptMessageError:
                failures += 1
                continue
            got += zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)
        assert failures == 3
        assert sorted(got) == [(0, n) for n in range(5)] + [(1, n) for n in range(7)]
        assert inp.position(T0) == 5
        inp.seek(T0, 10)
        assert inp.fetch_arrow(5)["offset"].to_pylist() == list(range(10, 15))


# --- metadata and time-outs -----------------------------------------------------------------------------------------


def test_a_thousand_partitions_are_placed_with_a_handful_of_questions(fake: Any) -> None:
    fake.create("wide", 1_000)
    asked: list[Any] = []
    fake.on_offsets = asked.append
    with consumer(fake) as inp:
        inp.assign([TopicPartition("wide", number) for number in range(1_000)])
        inp.poll(0)
        until(lambda: sum(len(link.members) for link in inp._core.reading.fetcher.links.values()) == 1_000)
    assert len(fake.metadata_asked) <= 3
    assert len(asked) <= 10


def test_time_outs_hold_while_another_request_for_metadata_hangs(fake: Any) -> None:
    with (
        consumer(fake, metadata_max_age_ms=20) as inp,
        Producer(bootstrap_servers=fake.bootstrap_servers, metadata_max_age_ms=20, max_block_ms=2_000) as out,
    ):
        out.send("t", b"1").result(60)
        assert inp.partitions_for("t") == [0]
        fake.metadata_held = True
        asked = len(fake.metadata_asked)
        # both refresh their metadata because of its age, and get no answer
        until(lambda: len(fake.metadata_asked) > asked + 1)
        begun = time.monotonic()
        with pytest.raises(HeadraceError):
            out.send("new", b"2")
        with pytest.raises(HeadraceError):
            inp.partitions_for("new", timeout=0.3)
        with pytest.raises(HeadraceError):
            inp.end_offsets([TopicPartition("new", 0)], timeout=0.3)
        check_in_time(begun, 30)
        fake.metadata_held = False


def test_seek_does_not_wait_for_a_topic_that_is_not_there(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "UNKNOWN_TOPIC_GRACE_S", 60.0)
    fill(fake, 10)
    with consumer(fake) as inp:
        inp.assign([T0, TopicPartition("nowhere", 0), TopicPartition("nor-here", 0)])
        assert len(read(inp, 10)) == 10
        # the leader is being searched
        until(lambda: sum("nowhere" in request.topics for request in fake.metadata_asked) > 3)
        inp.seek(T0, 4)
        assert len(read(inp, 6)) == 6


def test_async_fetch_arrow_that_is_cancelled_loses_nothing(fake: Any) -> None:
    fill(fake, 10)

    async def scenario() -> list[int]:
        async with AsyncConsumer(bootstrap_servers=fake.bootstrap_servers, auto_offset_reset="earliest") as inp:
            inp.assign([T0])
            core: Any = inp._core
            assert await inp.poll(5, max_records=3)
            inside, go_on, take = threading.Event(), threading.Event(), core.reading.take_arrow

            def slow(*arguments: Any) -> Any:
                taken = take(*arguments)
                inside.set()
                go_on.wait(60)
                return taken

            core.reading.take_arrow = slow
            task = asyncio.create_task(inp.fetch_arrow(5))
            await asyncio.to_thread(inside.wait, 10)
            task.cancel()
            await asyncio.sleep(0)
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            core.reading.take_arrow = take
            return list((await inp.fetch_arrow(5))["offset"].to_pylist())

    assert asyncio.run(scenario()) == list(range(3, 10))


def test_offsets_of_a_topic_that_is_not_there_say_so_soon(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "UNKNOWN_TOPIC_GRACE_S", 0.2)
    fake.create("gone")
    gone = TopicPartition("gone", 0)
    with consumer(fake, default_api_timeout_ms=100_000) as inp:
        begun = time.monotonic()
        with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere' does not exist"):
            inp.end_offsets([TopicPartition("nowhere", 0)])
        assert inp.end_offsets([gone]) == {gone: 0}
        with fake.changed:
            del fake.partitions["gone"]
        fake.offsets_error = 3
        with pytest.raises(UnknownTopicOrPartitionError, match="'gone' does not exist"):
            inp.beginning_offsets([gone])
        check_in_time(begun, 60)


def test_error_of_a_missing_topic_is_over_when_the_topic_is_there(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "UNKNOWN_TOPIC_GRACE_S", 0.05)
    fill(fake, 10)
    later = TopicPartition("later", 0)
    with consumer(fake, retry_backoff_max_ms=20) as inp:
        inp.assign([T0, later])
        fetcher = inp._core.reading.fetcher
        inp._core.reading.sync()
        until(lambda: later in fetcher.tracked and fetcher.tracked[later].reported, "an error waits for a poll")
        fake.create("later")
        until(lambda: later in fetcher.placed, "the topic's partition is fetched")
        fill(fake, 10, topic="later")
        assert len(read(inp, 20)) == 20  # without an error


def test_what_the_io_thread_finds_never_writes_the_callers_position(fake: Any) -> None:
    fill(fake, 10)
    with consumer(fake) as inp:
        inp.assign([T0])
        assigned = inp._core.reading.partitions[T0]
        inp.poll(0)
        until(lambda: assigned.found is not None)
        assert assigned.position is None  # a seek may be writing it just now
        assert inp.position(T0) == 0
        inp.seek_to_end(T0)
        assert inp._core.reading.known_position(T0) is None  # the found offset belongs to the time before the seek
        inp.seek(T0, 7)
        assert inp.position(T0) == 7
        assert [record.offset for record in read(inp, 3)] == [7, 8, 9]
