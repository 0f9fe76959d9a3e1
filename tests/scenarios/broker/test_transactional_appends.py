"""Transactional produce requests and markers, at a partition's leader. The test plays the coordinator."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from crc32c import crc32c

from headrace_broker.context import BrokerLimits
from headrace_broker.handlers.produce import ProduceStream
from headrace_broker.handlers.transactions import MarkersStream, ProducersService
from headrace_broker.partition.verification import FIRST_SEQUENCES_MAX, WAITING_MAX, Verifications, WaitingRoom
from headrace_core import errors
from headrace_core.metadata.records import PartitionRecord, TopicRecord
from headrace_core.records import Compression, decode_batch, encode_batch, read_header, split_batches
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, produce_pb2, transactions_pb2
from tests.worlds.solo_broker import BROKER_ID, FakeStream, PlayedCoordinator, SoloBroker, produce
from tests.worlds.waiting import in_loop

ORDERS = TopicPartition("orders", 0)
TOPIC_ID = b"orders".ljust(16, b".")
OTHER = 2
PRODUCER = 7
CRC_AT, RECORD_COUNT_AT = 17, 57  #: Positions in a batch.


def run(scenario: Callable[[SoloBroker, PlayedCoordinator], Awaitable[None]], **options: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60), SoloBroker(CrashingFileSystem(), **options) as broker:
            await broker.topic("orders", 2)
            await scenario(broker, played(broker))

    asyncio.run(bounded())


def played(broker: SoloBroker, room: WaitingRoom | None = None) -> PlayedCoordinator:
    coordinator = PlayedCoordinator(room)
    broker.context.verifier = coordinator  # type: ignore[assignment]
    return coordinator


def batch(sequence: int, count: int = 1, *, producer_id: int = PRODUCER, epoch: int = 0, pad: int = 0) -> bytes:
    return encode_batch(
        [(1000, None, b"%d:%d:%d" % (producer_id, epoch, sequence + i) + b"." * pad, []) for i in range(count)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
        compression=Compression.LZ4 if pad else Compression.NONE,
    )


def send(
    handler: ProduceStream, number: int, records: bytes, partition: int = 0, *, version: int = 2, **options: Any
) -> None:
    request = produce(number, "orders", records, partition, **options)
    request.transactional_id, request.transaction_version = "payments", version
    handler.on_request(request)


def results(stream: FakeStream) -> list[tuple[int, str, int]]:
    """(correlation id, error code, base offset) of the responses, in their order."""
    return [
        (answer.correlation_id, name(answer.results[0].error.code), answer.results[0].base_offset)
        for answer in stream.sent
    ]


def name(number: int) -> str:
    return errors.from_number(number, "").code if number else "ok"


class Markers:
    """A coordinator's stream of markers to the broker."""

    def __init__(self, broker: SoloBroker) -> None:
        self.stream = FakeStream()
        self.handler = MarkersStream(broker.context, self.stream)  # type: ignore[arg-type]

    def send(
        self,
        epoch: int,
        *partitions: int,
        producer_id: int = PRODUCER,
        commit: bool = True,
        version: int = 2,
        coordinator_epoch: int = 1,
        topic: str = "orders",
    ) -> None:
        request = transactions_pb2.WriteMarkersRequest(
            correlation_id=epoch,
            producer_id=producer_id,
            producer_epoch=epoch,
            commit=commit,
            transaction_version=version,
            coordinator_epoch=coordinator_epoch,
            partitions=[groups_pb2.PartitionName(topic=topic, partition=each) for each in partitions or (0,)],
        )
        self.handler.on_request(transactions_pb2.WriteMarkersRequests(requests=[request]))

    async def end(self, epoch: int, *partitions: int, **options: Any) -> list[str]:
        """Send a marker, and return the error codes of its partitions."""
        count = len(self.stream.sent)
        self.send(epoch, *partitions, **options)
        answers = await self.stream.wait_sent(count + 1)
        return [name(result.error.code) for result in answers[count].results]


def shown(broker: SoloBroker, partition: int = 0) -> list[str]:
    """The log: each batch's values, or the kind of marker with its epoch."""
    log = broker.partitions.leader(TopicPartition("orders", partition)).log
    out: list[str] = []
    offset = 0
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 20, log.log_end_offset)
        assert found is not None
        for span in split_batches(found.records):
            records = decode_batch(found.records, span.position)
            if read_header(found.records, span.position).is_control:
                out.append("commit" if (records[0].key or b"")[3] else "abort")
            else:
                out += [(record.value or b"").decode().rstrip(".") for record in records]
        offset = found.next_offset
    return out


def test_the_first_batches_of_a_transaction_wait_for_the_coordinator_in_order() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        for number in range(3):
            send(handler, number, batch(number))
        assert [each.what for each in coordinator.asked] == [("payments", PRODUCER, 0, 2, 0)]
        plain, answered = broker.producer()
        plain.on_request(produce(9, "orders", encode_batch([(1000, None, b"plain", [])])))
        await answered.wait_sent(1)
        assert stream.sent == [], "only the transactional producer waits"
        coordinator.answer()
        send(handler, 3, batch(3))
        await stream.wait_sent(4)
        assert results(stream) == [(number, "ok", 1 + number) for number in range(4)]
        send(handler, 4, batch(4))
        await stream.wait_sent(5)
        assert coordinator.asked == [], "the log shows the open transaction"
        assert shown(broker) == ["plain", *(f"7:0:{number}" for number in range(5))]
        assert broker.partitions.leader(ORDERS).last_stable_offset == 1
        assert coordinator.room.appends == coordinator.room.bytes == 0

    run(scenario)


def test_transactions_in_a_row_are_pipelined_behind_their_markers() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        markers = Markers(broker)
        send(handler, 0, batch(0))
        coordinator.answer()
        await stream.wait_sent(1)
        send(handler, 1, batch(0, epoch=1))
        send(handler, 2, batch(1, epoch=1))
        assert await markers.end(1) == ["ok"], "the marker passes the batches of the next transaction"
        assert len(stream.sent) == 1
        assert len(coordinator.asked) == 1
        coordinator.answer()
        await stream.wait_sent(3)
        assert await markers.end(2, commit=False) == ["ok"]
        assert await markers.end(2, commit=False) == ["ok"], "a repeated marker"
        assert shown(broker) == ["7:0:0", "commit", "7:1:0", "7:1:1", "abort"]
        assert broker.partitions.leader(ORDERS).last_stable_offset == 5
        send(handler, 3, batch(1, epoch=0))
        send(handler, 4, batch(2, epoch=1))
        coordinator.answer()
        coordinator.answer()
        await stream.wait_sent(5)
        assert [code for _, code, _ in results(stream)][3:] == ["INVALID_PRODUCER_EPOCH"] * 2, "late batches"

    run(scenario)


def test_a_marker_cancels_a_verification_in_flight() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        markers = Markers(broker)
        send(handler, 0, batch(0))
        send(handler, 1, batch(1))
        assert await markers.end(1, commit=False) == ["ok"]
        assert results(stream) == [(0, "INVALID_PRODUCER_EPOCH", -1), (1, "INVALID_PRODUCER_EPOCH", -1)]
        coordinator.answer()
        send(handler, 2, batch(0, epoch=1))
        coordinator.answer()
        await stream.wait_sent(3)
        assert results(stream)[2] == (2, "ok", 1)
        assert shown(broker) == ["abort", "7:1:0"], "the late confirmation had no effect"

    run(scenario)


def test_under_version_1_a_marker_lets_the_waiting_batch_be_verified_again() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        markers = Markers(broker)
        send(handler, 0, batch(0), version=1)
        coordinator.answer()
        await stream.wait_sent(1)
        assert await markers.end(0, version=1) == ["ok"]
        send(handler, 1, batch(1), version=1)
        assert await markers.end(0, version=1) == ["ok"], "version 1 accepts an equal epoch again"
        assert results(stream)[1] == (1, "CONCURRENT_TRANSACTIONS", -1)
        send(handler, 2, batch(1), version=1)
        coordinator.answer(nth=1)
        await stream.wait_sent(3)
        assert results(stream)[2] == (2, "ok", 2)  # the repeated marker took no offset
        coordinator.answer()
        assert shown(broker) == ["7:0:0", "commit", "7:0:1"]

    run(scenario)


def test_a_refusal_of_the_coordinator_goes_to_all_waiting_batches_in_order() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        for number in range(3):
            send(handler, number, batch(number))
        coordinator.answer(errors.TransactionAbortableError("aborted"))
        assert results(stream) == [(number, "TRANSACTION_ABORTABLE", -1) for number in range(3)]
        send(handler, 3, batch(3))
        assert len(coordinator.asked) == 1, "the coordinator is asked again"
        coordinator.answer()
        await stream.wait_sent(4)
        assert results(stream)[3] == (3, "OUT_OF_ORDER_SEQUENCE_NUMBER", -1), "the first batches are missing"
        assert shown(broker) == []
        assert handler.is_idle()

    run(scenario)


def test_under_version_1_no_batch_passes_a_refused_batch_of_an_unknown_producer() -> None:
    """The sequence of an unknown producer may be larger than 0, because the log may have forgotten the producer."""

    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        send(handler, 0, batch(5), version=1)
        coordinator.answer(errors.CoordinatorNotAvailableError("no answer in time"))
        for number, sequence in ((1, 6), (2, 5), (3, 6)):
            send(handler, number, batch(sequence), version=1)
        coordinator.answer()
        await stream.wait_sent(4)
        assert results(stream) == [
            (0, "COORDINATOR_NOT_AVAILABLE", -1),
            (1, "OUT_OF_ORDER_SEQUENCE_NUMBER", -1),
            (2, "ok", 0),
            (3, "ok", 1),
        ]

        small = played(broker, WaitingRoom(appends_max=1))
        handler, stream = broker.producer()
        send(handler, 0, batch(0, producer_id=8), partition=1)  # fills the room
        send(handler, 1, batch(0, producer_id=9), partition=1, version=1)
        small.answer()
        send(handler, 2, batch(1, producer_id=9), partition=1, version=1)
        small.answer()
        await stream.wait_sent(3)
        assert sorted(results(stream)) == [
            (0, "ok", 0),
            (1, "SERVER_BUSY", -1),
            (2, "OUT_OF_ORDER_SEQUENCE_NUMBER", -1),
        ]
        assert shown(broker) == ["7:0:5", "7:0:6"]
        assert shown(broker, 1) == ["8:0:0"]

    run(scenario)


def test_a_partition_remembers_the_first_sequences_of_the_last_producers() -> None:
    verifications: Verifications[None] = Verifications(WaitingRoom())
    for producer_id in range(FIRST_SEQUENCES_MAX + 1):
        assert verifications.first_sequence(producer_id, 0, 3) == 3
    assert verifications.first_sequence(0, 0, 5) == 5, "forgotten"
    assert verifications.first_sequence(2, 0, 5) == 3
    assert verifications.cancelled_by_marker(2, 0) == []
    assert verifications.first_sequence(2, 0, 5) == 5


def test_a_wrong_epoch_does_not_disturb_the_producer() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        send(handler, 0, batch(0, epoch=4))
        wrong, answered = broker.producer()
        send(wrong, 1, batch(0, epoch=9))
        coordinator.answer(errors.InvalidProducerEpochError("epoch 9 was never assigned"), nth=1)
        coordinator.answer()
        await stream.wait_sent(1)
        assert results(stream) == [(0, "ok", 0)]
        assert results(answered) == [(1, "INVALID_PRODUCER_EPOCH", -1)]

    run(scenario)


def test_waiting_batches_are_bounded_by_producer_and_by_broker() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        for number in range(WAITING_MAX + 1):
            send(handler, number, batch(number))
        send(handler, 99, batch(0, producer_id=8))
        assert [each.what[1] for each in coordinator.asked] == [PRODUCER, 8], "other producers may wait"
        coordinator.answer()
        coordinator.answer()
        await stream.wait_sent(WAITING_MAX + 2)
        of_first = [code for number, code, _ in results(stream) if number < 99]
        assert of_first == ["ok"] * WAITING_MAX + ["SERVER_BUSY"], "answers of a producer keep their order"

        small = played(broker, WaitingRoom(appends_max=2, bytes_max=10))
        handler, stream = broker.producer()
        send(handler, 0, batch(0, producer_id=9), partition=1)
        send(handler, 1, batch(0, producer_id=10), partition=1)
        assert results(stream) == [(1, "SERVER_BUSY", -1)], "a single append may be larger than the room"
        small.answer()
        await stream.wait_sent(2)
        assert small.room.appends == 0

    run(scenario)


def test_a_leader_that_resigns_answers_the_waiting_batches() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        send(handler, 0, batch(0))
        await broker.new_leader("orders", OTHER, 1)
        assert results(stream) == [(0, "NOT_LEADER_OR_FOLLOWER", -1)]
        coordinator.answer()
        assert handler.is_idle()
        assert coordinator.room.appends == 0

    run(scenario)


def test_requests_that_are_not_transactional_in_all_their_parts_are_refused() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        handler.on_request(produce(0, "orders", batch(0)))
        plain = encode_batch([(1000, None, b"plain", [])])
        send(handler, 1, batch(0) + plain)
        send(handler, 2, batch(0) + batch(0, producer_id=8))
        send(handler, 3, batch(0), acks=produce_pb2.ACKS_LEADER)
        send(handler, 4, batch(0), version=3)
        send(handler, 5, b"no batch")
        assert [code for _, code, _ in results(stream)] == [
            "INVALID_RECORD",
            "INVALID_RECORD",
            "INVALID_RECORD",
            "INVALID_REQUIRED_ACKS",
            "INVALID_REQUEST",
            "CORRUPT_MESSAGE",
        ]
        broker.context.verifier = None
        send(handler, 6, batch(0))
        assert results(stream)[6] == (6, "UNSUPPORTED_VERSION", -1)
        assert shown(broker) == []

    run(scenario)


def test_a_plain_batch_in_a_request_with_a_transactional_id_is_appended_outside_of_the_transaction() -> None:
    """As in Kafka. It once waited for the coordinator, which knows no producer without an id."""

    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        plain = encode_batch([(1000, None, b"plain", [])])
        send(handler, 0, plain)
        send(handler, 1, plain + batch(0))
        await stream.wait_sent(2)
        assert not coordinator.asked
        assert results(stream) == [(0, "ok", 0), (1, "INVALID_RECORD", -1)]
        assert shown(broker) == ["plain"]

    run(scenario)


def test_a_batch_that_its_producer_built_wrong_is_invalid_and_not_corrupt() -> None:
    """Producers send a batch again after CORRUPT_MESSAGE."""

    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        built = bytearray(batch(0))
        struct.pack_into(">i", built, RECORD_COUNT_AT, 2)
        send(handler, 0, bytes(built))
        struct.pack_into(">I", built, CRC_AT, crc32c(bytes(built[CRC_AT + 4 :])))
        send(handler, 1, bytes(built))
        assert [code for _, code, _ in results(stream)] == ["CORRUPT_MESSAGE", "INVALID_RECORD"]

    run(scenario)


def test_a_marker_keeps_its_place_behind_batches_that_a_thread_checks() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        markers = Markers(broker)
        send(handler, 0, batch(0))
        coordinator.answer()
        await stream.wait_sent(1)
        send(handler, 1, batch(1, 200, pad=300))
        assert await markers.end(1) == ["ok"]
        await stream.wait_sent(2)
        assert results(stream)[1] == (1, "ok", 1)
        assert shown(broker)[-1] == "commit"

    run(scenario)


def test_a_marker_is_answered_for_each_partition() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        markers = Markers(broker)
        send(handler, 0, batch(0))
        send(handler, 1, batch(0, epoch=3), partition=1)
        coordinator.answer()
        coordinator.answer()
        await stream.wait_sent(2)
        assert await markers.end(1, 0, 1, 2) == ["ok", "INVALID_PRODUCER_EPOCH", "UNKNOWN_TOPIC_OR_PARTITION"]
        assert await markers.end(2, coordinator_epoch=0) == ["TRANSACTION_COORDINATOR_FENCED"]
        assert await markers.end(1, topic="__consumer_offsets") == ["INVALID_TOPIC_EXCEPTION"]
        assert shown(broker) == ["7:0:0", "commit"]
        assert shown(broker, 1) == ["7:3:0"]
        assert markers.handler.is_idle()

    run(scenario)


def test_an_impossible_marker_is_refused_and_the_markers_of_others_are_written() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        markers = Markers(broker)
        send(handler, 0, batch(0))
        coordinator.answer()
        await stream.wait_sent(1)
        assert await markers.end(1, 0, 1, version=3) == ["INVALID_REQUEST"] * 2
        assert await markers.end(1, producer_id=-1) == ["INVALID_REQUEST"]
        assert await markers.end(2**15) == ["INVALID_REQUEST"]
        assert await markers.end(1, coordinator_epoch=-1) == ["INVALID_REQUEST"]
        assert await markers.end(1) == ["ok"]
        assert shown(broker) == ["7:0:0", "commit"]
        assert markers.handler.is_idle()

    run(scenario)


def test_a_marker_is_answered_when_it_is_committed() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        await broker.change(
            TopicRecord("copied", b"copied".ljust(16, b".")),
            PartitionRecord(b"copied".ljust(16, b"."), 0, (BROKER_ID, OTHER), (BROKER_ID, OTHER), BROKER_ID, 0, 0),
        )
        leader = broker.partitions.leader(TopicPartition("copied", 0)).leader
        leader.follower_joined(OTHER, 5, log_end=0, durable_end=0, log_start=0, now_ms=0)
        first, second = Markers(broker), Markers(broker)
        first.send(1, topic="copied")
        second.send(1, topic="copied")
        log = broker.partitions.leader(TopicPartition("copied", 0)).log
        assert await broker.partitions.leader(TopicPartition("copied", 0))._writer.flush(log) == 1
        assert first.stream.sent == second.stream.sent == [], "also the repeated marker waits for the commit"
        leader.follower_acked(OTHER, 5, durable_end=1, log_end=1, log_start=0, now_ms=0)
        for each in (first, second):
            (answer,) = await each.stream.wait_sent(1)
            assert name(answer.results[0].error.code) == "ok"
        assert log.log_end_offset == 1

    run(scenario)


@in_loop
async def test_a_marker_that_is_not_committed_in_time_is_asked_for_again() -> None:
    limits = BrokerLimits(request_timeout_ms=50)
    async with asyncio.timeout(60), SoloBroker(CrashingFileSystem(), limits=limits) as broker:
        await broker.change(
            TopicRecord("orders", TOPIC_ID),
            PartitionRecord(TOPIC_ID, 0, (BROKER_ID, OTHER), (BROKER_ID, OTHER), BROKER_ID, 0, 0),
        )
        markers = Markers(broker)
        leader = broker.partitions.leader(ORDERS).leader
        for _ in range(3):
            assert await markers.end(1) == ["REQUEST_TIMED_OUT"]
            assert markers.handler.is_idle(), "what timed out would in the end stop the markers of others"
            assert leader.waiting[0] == 0
        leader.follower_joined(OTHER, 5, log_end=0, durable_end=0, log_start=0, now_ms=0)
        leader.follower_acked(OTHER, 5, durable_end=1, log_end=1, log_start=0, now_ms=0)
        assert await markers.end(1) == ["ok"]
        assert leader.log_end == 1


@in_loop
async def test_markers_and_epochs_survive_a_restart_and_a_new_leader_epoch() -> None:
    fs = CrashingFileSystem()
    async with asyncio.timeout(60), SoloBroker(fs) as broker:
        await broker.topic("orders")
        coordinator = played(broker)
        handler, stream = broker.producer()
        send(handler, 0, batch(0))
        coordinator.answer()
        await stream.wait_sent(1)
        assert await Markers(broker).end(1, coordinator_epoch=4) == ["ok"]
        send(handler, 1, batch(0, epoch=1))
        coordinator.answer()
        await stream.wait_sent(2)
        await broker.new_leader("orders", BROKER_ID, 1)
        image = broker.image
    fs.crash()
    async with asyncio.timeout(60), SoloBroker(fs, image=image) as broker:
        coordinator = played(broker)
        markers = Markers(broker)
        assert await markers.end(1) == ["INVALID_PRODUCER_EPOCH"], "a late marker of the transaction before"
        assert await markers.end(2, coordinator_epoch=3) == ["TRANSACTION_COORDINATOR_FENCED"]
        handler, stream = broker.producer()
        send(handler, 2, batch(1, epoch=1))
        await stream.wait_sent(1)
        assert results(stream) == [(2, "ok", 3)], "the log shows the open transaction"
        assert await markers.end(2, commit=False, coordinator_epoch=4) == ["ok"]
        assert shown(broker) == ["7:0:0", "commit", "7:1:0", "7:1:1", "abort"]


def test_producers_are_described_and_a_hanging_transaction_is_aborted() -> None:
    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        handler, stream = broker.producer()
        send(handler, 0, batch(0, 3, epoch=2))
        coordinator.answer()
        await stream.wait_sent(1)
        await Markers(broker).end(6, producer_id=8, coordinator_epoch=5)
        service = ProducersService(broker.context)

        async def described(*partitions: int) -> Any:
            names = [groups_pb2.PartitionName(topic="orders", partition=each) for each in partitions]
            request = transactions_pb2.DescribeProducersRequest(partitions=names)
            return (await service.DescribeProducers(request, None)).partitions

        orders, unknown = await described(0, 7)
        assert name(unknown.error.code) == "UNKNOWN_TOPIC_OR_PARTITION"
        writer, ended = orders.producers
        assert (writer.producer_id, writer.producer_epoch, writer.last_sequence) == (PRODUCER, 2, 2)
        assert (writer.transaction_start_offset, writer.coordinator_epoch) == (0, -1)
        assert (writer.last_timestamp_ms, ended.last_sequence, ended.coordinator_epoch) == (1000, -1, 5)
        assert not ended.HasField("transaction_start_offset")

        def abort(offset: int) -> Any:
            return service.AbortHangingTransaction(
                transactions_pb2.AbortHangingTransactionRequest(
                    topic="orders", partition=0, producer_id=PRODUCER, transaction_start_offset=offset
                ),
                None,
            )

        with pytest.raises(errors.InvalidTxnStateError, match="begins at offset 1"):
            await abort(1)
        await abort(0)
        assert shown(broker)[-1] == "abort"
        (orders,) = await described(0)
        assert not orders.producers[0].HasField("transaction_start_offset")
        assert broker.partitions.leader(ORDERS).last_stable_offset == 5

    run(scenario)


def test_a_transaction_that_kafka_left_open_in_the_offsets_topic_is_aborted() -> None:
    """Headrace writes no transactions to ``__consumer_offsets``, so no coordinator would end the transaction, and
    compaction would stop at the open transaction."""

    async def scenario(broker: SoloBroker, coordinator: PlayedCoordinator) -> None:
        offsets, state = TopicPartition("__consumer_offsets", 0), TopicPartition("__transaction_state", 0)
        service = ProducersService(broker.context)
        written: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await broker.topic(offsets.topic, topic_id=b"o" * 16)
        leader = broker.partitions.leader(offsets)
        kafkas = coordinator.transaction("kafka", PRODUCER, 2, 2)
        leader.append(batch(0, 2, epoch=2), 1000, written.set_result, committed=True, transaction=kafkas)
        coordinator.answer()
        await written

        def abort(partition: TopicPartition) -> Any:
            return service.AbortHangingTransaction(
                transactions_pb2.AbortHangingTransactionRequest(
                    topic=partition.topic, partition=0, producer_id=PRODUCER, transaction_start_offset=0
                ),
                None,
            )

        assert leader.last_stable_offset == 0
        await abort(offsets)
        assert leader.last_stable_offset == leader.log.log_end_offset == 3
        with pytest.raises(errors.InvalidTopicError, match="only the shard's coordinator"):
            await abort(state)

    run(scenario)
