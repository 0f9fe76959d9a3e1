"""From which replica a consumer reads, up to which offset, and which end offset it receives (KIP-392, KIP-207,
KIP-107)."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any
from unittest import mock

import pytest

from headrace_broker.handlers.fetch import NEARER_LOOK_MS
from headrace_broker.handlers.offsets import OffsetsService
from headrace_broker.replication.follower_replica import FollowerReplica
from headrace_core import errors
from headrace_core.log import PartitionLog
from headrace_core.metadata.records import (
    BrokerChangeRecord,
    BrokerEndpoint,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from headrace_core.records import with_base
from headrace_core.telemetry import LogDirectoryFailed
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1 import offsets_pb2
from tests.worlds.replication_messages import a_push, an_answer
from tests.worlds.solo_broker import BROKER_ID, SoloBroker, batch, fetch
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until

OTHER = 2
ORDERS = TopicPartition("orders", 0)
TOPIC_ID = b"orders".ljust(16, b".")


class Pair:
    """This broker, and a second broker, which the test plays."""

    def __init__(self, broker: SoloBroker) -> None:
        self.broker = broker

    async def begin(self, *, leader: int = BROKER_ID, rack: str = "b", leader_epoch: int = 3) -> None:
        endpoint = BrokerEndpoint("client", "127.0.0.1", 2)
        await self.broker.change(
            RegisterBrokerRecord(OTHER, 7, b"j" * 16, (b"e" * 16,), (endpoint,), rack),
            BrokerChangeRecord(OTHER, 7, fenced=False),
            TopicRecord("orders", TOPIC_ID),
            PartitionRecord(TOPIC_ID, 0, (BROKER_ID, OTHER), (BROKER_ID, OTHER), leader, leader_epoch, 0),
        )
        self.broker.context.metadata.advance(self.broker.image, None)  # type: ignore[arg-type]
        self.broker.context.reads_by_rack = True

    @property
    def leader(self) -> Any:
        return self.broker.partitions.leader(ORDERS).leader

    def follows(self, end: int, *, log_start: int = 0) -> None:
        """The second broker has every record up to ``end``."""
        said = {"log_end": end, "durable_end": end, "log_start": log_start, "now_ms": 1}
        if not self.leader.follower_acked(OTHER, 7, **said):
            self.leader.follower_joined(OTHER, 7, **said)

    @property
    def followed(self) -> FollowerReplica:
        (replica,) = self.broker.partitions.followed.values()
        return replica


def racked(correlation_id: int, *topics: str, rack: str = "b", **keys: Any) -> Any:
    request = fetch(correlation_id, *topics, **keys)
    request.rack = rack
    return request


async def append(broker: SoloBroker, *values: bytes) -> None:
    """With acks=1."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.partitions.leader(ORDERS).append(batch(*values), 1, done.set_result, committed=False)
    assert not isinstance(await done, errors.HeadraceError)


@in_loop
async def test_a_consumer_is_sent_to_a_replica_in_its_rack():
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin()
        await append(broker, b"a")
        pair.follows(1)
        consumer, answers = broker.consumer()
        consumer.on_request(racked(1, "orders"))
        (fetched,) = (await answers.wait_sent(1))[0].results
        assert fetched.preferred_read_replica == OTHER
        assert (fetched.records, fetched.next_offset, fetched.error.code) == (b"", 0, 0)
        consumer.on_request(racked(2, max_wait_ms=0))  # it has left the session
        assert not (await answers.wait_sent(2))[1].results
        consumer.on_closed()
        assert pair.leader.waiting == (0, 0)


@in_loop
async def test_who_says_no_rack_or_another_one_stays_with_the_leader():
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin()
        await append(broker, b"a")
        pair.follows(1)
        for number, request in enumerate((fetch(1, "orders"), racked(1, "orders", rack="c"))):
            consumer, answers = broker.consumer()
            consumer.on_request(request)
            (fetched,) = (await answers.wait_sent(1))[0].results
            assert not fetched.HasField("preferred_read_replica"), number
            assert fetched.next_offset == 1
            consumer.on_closed()


@in_loop
async def test_a_replica_that_lacks_the_offset_or_is_away_is_nobodys_to_read_from():
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin()
        for value in (b"a", b"b"):
            await append(broker, value)
        pair.follows(1)
        consumer, answers = broker.consumer()
        consumer.on_request(racked(1, "orders", offset=2, max_wait_ms=0))
        assert not any(result.HasField("preferred_read_replica") for result in (await answers.wait_sent(1))[0].results)
        consumer.on_closed()
        pair.follows(2)
        pair.leader.follower_left(OTHER, 1)
        consumer, answers = broker.consumer()
        consumer.on_request(racked(1, "orders", offset=0, max_wait_ms=0))
        assert not any(result.HasField("preferred_read_replica") for result in (await answers.wait_sent(1))[0].results)
        consumer.on_closed()


@in_loop
async def test_without_the_selector_nobody_is_sent_anywhere():
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin()
        broker.context.reads_by_rack = False
        await append(broker, b"a")
        pair.follows(1)
        consumer, answers = broker.consumer()
        consumer.on_request(racked(1, "orders"))
        (fetched,) = (await answers.wait_sent(1))[0].results
        assert not fetched.HasField("preferred_read_replica")
        consumer.on_closed()


def test_a_leader_looks_again_now_and_then_whether_somebody_is_nearer():
    class Later:
        ahead_ms = 0.0

        def __init__(self, clock: Any) -> None:
            self._clock = clock

        def monotonic_ms(self) -> float:
            return self._clock.monotonic_ms() + self.ahead_ms

        def now_ms(self) -> int:
            return self._clock.now_ms()

    async def scenario() -> None:
        async with SoloBroker(CrashingFileSystem()) as broker:
            clock = broker.context.clock = Later(broker.context.clock)
            pair = Pair(broker)
            await pair.begin()
            await append(broker, b"a")
            consumer, answers = broker.consumer()
            consumer.on_request(racked(1, "orders", max_wait_ms=0))
            pair.follows(1)
            consumer.on_request(racked(2, "orders", max_wait_ms=0))
            clock.ahead_ms = NEARER_LOOK_MS + 1
            await append(broker, b"b")
            pair.follows(2)
            consumer.on_request(racked(3, max_wait_ms=0))
            third = (await answers.wait_sent(3))[2]
            assert [result.preferred_read_replica for result in third.results] == [OTHER]
            consumer.on_closed()

    asyncio.run(scenario())


def _feed(pair: Pair, *values: bytes, high_watermark: int) -> None:
    """The second broker leads, and pushes."""
    replica, end = pair.followed, pair.followed.log.log_end_offset
    records = batch(*values)
    data = with_base(records, 0, end, 3) + records[16:]
    replica.pushed(a_push(1, data, high_watermark, 0), data)


@in_loop
async def test_a_follower_serves_up_to_its_high_watermark_and_no_further():
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin(leader=OTHER)
        replica = pair.followed
        replica.join(1)
        replica.joined(an_answer(1))
        _feed(pair, b"a", b"b", high_watermark=0)
        await until(lambda: replica.follower.durable_end >= 2)
        consumer, answers = broker.consumer()
        consumer.on_request(racked(1, "orders", max_wait_ms=0))
        assert not any(result.records for result in (await answers.wait_sent(1))[0].results)
        consumer.on_request(racked(2))
        _feed(pair, b"c", high_watermark=2)
        (fetched,) = (await answers.wait_sent(2))[1].results
        assert (fetched.next_offset, fetched.high_watermark, fetched.error.code) == (2, 2, 0)
        assert fetched.records
        consumer.on_request(racked(3, "orders", offset=2, max_wait_ms=0))
        assert not any(result.error.code for result in (await answers.wait_sent(3))[2].results)  # it is on its way
        consumer.on_request(racked(4, "orders", offset=9, max_wait_ms=0))
        (fetched,) = (await answers.wait_sent(4))[3].results
        assert fetched.error.code == errors.OffsetNotAvailableError.number
        consumer.on_closed()


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE, errno.ESTALE], ids=errno.errorcode.get)
@in_loop
async def test_only_a_read_that_shows_a_failed_disk_takes_its_directory_offline(leads: bool, error: int) -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin(leader=BROKER_ID if leads else OTHER)
        if leads:
            await append(broker, b"a")
            pair.follows(1)
            replica: Any = broker.partitions.leader(ORDERS)
        else:
            replica = pair.followed
            replica.join(1)
            replica.joined(an_answer(1))
            _feed(pair, b"a", high_watermark=1)
            await until(lambda: replica.high_watermark == 1)
        fails = asyncio.get_running_loop().create_future()

        def failing(*_: object, **__: object) -> None:
            raise OSError(error, os.strerror(error))

        with mock.patch.object(PartitionLog, "read", failing), pytest.raises(errors.StorageError):
            replica.read(0, 1_000, 1)
        asyncio.get_running_loop().call_soon(fails.set_result, None)  # (a failure was scheduled before)
        await fails
        assert [type(event) for event in broker.events].count(LogDirectoryFailed) == (error == errno.EIO)


@in_loop
async def test_a_follower_serves_nobody_who_did_not_ask_for_it_and_names_the_leader():
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin(leader=OTHER)
        consumer, answers = broker.consumer()
        consumer.on_request(fetch(1, "orders"))
        (fetched,) = (await answers.wait_sent(1))[0].results
        assert fetched.error.code == errors.NotLeaderOrFollowerError.number
        assert fetched.current_leader.leader_id == OTHER
        consumer.on_closed()


@in_loop
async def test_a_follower_that_follows_no_more_says_so_to_its_readers():
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin(leader=OTHER)
        consumer, answers = broker.consumer()
        consumer.on_request(racked(1, "orders"))
        await broker.new_leader("orders", BROKER_ID, 4)
        (fetched,) = (await answers.wait_sent(1))[0].results
        assert fetched.error.code == errors.NotLeaderOrFollowerError.number
        consumer.on_closed()


def _list_offsets(timestamp_ms: int) -> Any:
    item = offsets_pb2.ListOffsetsPartition(
        topic="orders", partition=0, timestamp_ms=timestamp_ms, current_leader_epoch=-1
    )
    return offsets_pb2.ListOffsetsRequest(partitions=[item])


@in_loop
async def test_the_latest_offset_is_not_reported_after_an_election_before_it_is_known_again():
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin()
        await append(broker, b"a")
        service = OffsetsService(broker.context)
        await broker.new_leader("orders", BROKER_ID, 5)  # it does not know yet that any record is committed
        assert pair.leader.high_watermark == 0
        for timestamp_ms in (-1, -3, 500):
            (fetched,) = (await service.ListOffsets(_list_offsets(timestamp_ms), None)).results
            assert fetched.error.code == errors.OffsetNotAvailableError.number, timestamp_ms
        (fetched,) = (await service.ListOffsets(_list_offsets(-2), None)).results
        assert (fetched.error.code, fetched.offset) == (0, 0)
        pair.follows(1)
        for timestamp_ms, offset in ((-1, 1), (-3, 0), (500, 0)):
            (fetched,) = (await service.ListOffsets(_list_offsets(timestamp_ms), None)).results
            assert (fetched.error.code, fetched.offset) == (0, offset)


def _delete(before: int, timeout_ms: int) -> Any:
    item = offsets_pb2.DeleteRecordsPartition(topic="orders", partition=0, before_offset=before)
    return offsets_pb2.DeleteRecordsRequest(partitions=[item], timeout_ms=timeout_ms)


@in_loop
async def test_deleting_records_waits_for_the_replicas_that_are_there():
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin()
        for value in (b"a", b"b", b"c"):
            await append(broker, value)
        pair.follows(2)
        service = OffsetsService(broker.context)
        (above,) = (await service.DeleteRecords(_delete(3, 1), None)).results
        assert above.error.code == errors.OffsetOutOfRangeError.number, "the third record is not committed"
        pair.follows(3)
        (late,) = (await service.DeleteRecords(_delete(1, 1), None)).results
        assert late.error.code == errors.RequestTimedOutError.number
        await until(lambda: pair.leader.log_start == 1)  # (what was begun is finished)
        deleting = asyncio.create_task(service.DeleteRecords(_delete(2, 120_000), None))
        await until(lambda: pair.leader.log_start >= 2)
        assert not deleting.done()
        pair.follows(3, log_start=2)
        (done,) = (await deleting).results
        assert (done.error.code, done.low_watermark) == (0, 2)


@in_loop
async def test_deleting_records_ends_with_the_leadership():
    async with SoloBroker(CrashingFileSystem()) as broker:
        pair = Pair(broker)
        await pair.begin()
        await append(broker, b"a")
        pair.follows(1)
        leader = pair.leader
        deleting = asyncio.create_task(OffsetsService(broker.context).DeleteRecords(_delete(1, 120_000), None))
        await until(lambda: leader.log_start >= 1)
        await broker.new_leader("orders", OTHER, 4)
        (ended,) = (await deleting).results
        assert ended.error.code == errors.NotLeaderOrFollowerError.number
