"""The parts of transactions that a partition's leader serves: markers, and the description of producers."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidTxnStateError,
    RequestTimedOutError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.log import AppendInfo
from headrace_core.log.producer_state import ProducerEntry
from headrace_core.log.transactions import Marker
from headrace_core.metadata.shards import INTERNAL_TOPICS, OFFSETS_TOPIC
from headrace_core.rpc.responses import ResponseRoom
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.rpc.turns import Turns
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, transactions_pb2, transactions_pb2_grpc

from ..context import BrokerContext
from ..leader_replica import LeaderReplica
from ..partition import PartitionLeader
from ..partition.leader import Waiting

_INT16_MAX = 2**15 - 1
#: Maximum number of uncommitted markers of one stream; above the maximum the broker stops reading the stream.
_PENDING_MAX = 10_000
#: Number of producers that DescribeProducers describes before the event loop may do other work.
_DESCRIBED_AT_ONCE = 20
_VERSIONS = (1, 2)


class TransactionMarkersService(transactions_pb2_grpc.TransactionMarkersServicer):
    """headrace.v1.TransactionMarkers: coordinators end their transactions in the partitions that this broker leads."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    async def WriteMarkers(self, request_iterator: Any, context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context, transactions_pb2.WriteMarkersResponses)
        self._broker.streams.add(stream)
        try:
            await stream.run(MarkersStream(self._broker, stream))
        finally:
            self._broker.streams.discard(stream)


class _Pending:
    """The state of a request to write markers. ``results`` has one entry for each partition of the request."""

    __slots__ = ("answered", "correlation_id", "deadline_ms", "partitions", "remaining", "results", "stream", "waiting")

    def __init__(self, stream: MarkersStream, correlation_id: int, partitions: list[TopicPartition]) -> None:
        self.deadline_ms = 0.0
        self.stream = stream
        self.correlation_id = correlation_id
        self.partitions = partitions
        self.results: list[Any] = [None] * len(partitions)
        self.remaining = len(partitions)
        self.answered = False
        #: The markers that wait for other replicas: each with its leader, and the argument for ``give_up``.
        self.waiting: list[tuple[PartitionLeader, Waiting]] = []

    def expire(self) -> None:
        self.stream.expired(self)


class MarkersStream(StreamHandler[Any]):
    """Answers to marker requests may be sent in any order. A marker that was passed to the log is appended even if the
    stream ends."""

    __slots__ = ("_broker", "_pending", "_stream")

    def __init__(self, broker: BrokerContext, stream: ServerStream[Any, Any]) -> None:
        self._broker = broker
        self._stream = stream
        self._pending = 0  # number of markers that are not committed, also of answered requests

    def on_request(self, request: Any) -> None:
        for each in request.requests:
            self._take(each)

    def _take(self, request: Any) -> None:
        broker = self._broker
        partitions = [TopicPartition(item.topic, item.partition) for item in request.partitions]
        pending = _Pending(self, request.correlation_id, partitions)
        try:
            marker = _marker_of(request)
        # Answer with the error instead of ending the stream, because the stream also has markers of other transactions.
        except InvalidRequestError as error:
            pending.results = [_outcome(partition, error) for partition in partitions]
            self._answer(pending)
            return
        if not partitions:
            self._answer(pending)
            return
        self._pending += len(partitions)
        if self._pending > _PENDING_MAX:
            self._stream.pause()
        broker.flow.deadlines.add(pending, broker.limits.request_timeout_ms)
        now_ms = broker.clock.now_ms()
        for index, partition in enumerate(partitions):
            done = partial(self._done, pending, index)
            try:
                if partition.topic in INTERNAL_TOPICS:
                    raise InvalidTopicError(
                        f"{partition}: only the shard's coordinator can end transactions in a partition of "
                        f"{partition.topic}"
                    )
                replica = broker.partitions.leader(partition)
                replica.append_marker(marker, now_ms, done, partial(self._written, pending, replica))
            except HeadraceError as error:
                done(error)

    def is_idle(self) -> bool:
        return self._pending == 0

    def _written(self, pending: _Pending, replica: LeaderReplica, waiting: Waiting) -> None:
        """Called when a marker is in the log, and waits for other replicas."""
        if pending.answered:
            replica.leader.give_up(waiting, _late())
        else:
            pending.waiting.append((replica.leader, waiting))

    def _done(self, pending: _Pending, index: int, outcome: AppendInfo | HeadraceError) -> None:
        """Called when a marker is committed, or has failed."""
        if isinstance(outcome, HeadraceError):
            outcome = self._broker.partitions.for_clients(pending.partitions[index], outcome)
        pending.results[index] = _outcome(pending.partitions[index], outcome)
        pending.remaining -= 1
        self._pending -= 1
        if self._pending <= _PENDING_MAX:
            self._stream.resume()
        if not pending.remaining:
            self._broker.flow.deadlines.discard(pending, None)
            self._answer(pending)
            if not self._pending:
                self._stream.check_idle()

    def expired(self, pending: _Pending) -> None:
        """Called when the timeout of the request is over: answer at once. The coordinator sends the marker again, so
        this request's markers do not wait for their commit any more."""
        late = _late()
        pending.results = [
            result or _outcome(partition, late)
            for partition, result in zip(pending.partitions, pending.results, strict=True)
        ]
        self._answer(pending)
        waits, pending.waiting = pending.waiting, []
        for leader, waiting in waits:
            leader.give_up(waiting, late)

    def _answer(self, pending: _Pending) -> None:
        if pending.answered:
            return
        pending.answered = True
        response = transactions_pb2.WriteMarkersResponse(correlation_id=pending.correlation_id, results=pending.results)
        self._stream.send(response, response.ByteSize())


def _marker_of(request: Any) -> Marker:
    if (
        request.producer_id < 0
        or not 0 <= request.producer_epoch <= _INT16_MAX
        or request.coordinator_epoch < 0
        or request.transaction_version not in _VERSIONS
    ):
        raise InvalidRequestError(
            f"invalid marker: producer {request.producer_id} with epoch {request.producer_epoch}, coordinator epoch "
            f"{request.coordinator_epoch}, transaction version {request.transaction_version}; ids and epochs must not "
            "be negative, and the version must be 1 or 2"
        )
    return Marker(
        request.producer_id,
        request.producer_epoch,
        request.commit,
        request.coordinator_epoch,
        request.transaction_version,
    )


def _late() -> HeadraceError:
    return RequestTimedOutError("the marker was not committed before the timeout; send it again")


def _outcome(partition: TopicPartition, outcome: AppendInfo | HeadraceError) -> Any:
    return groups_pb2.PartitionOutcome(
        topic=partition.topic,
        partition=partition.partition,
        error=error_to_proto(outcome) if isinstance(outcome, HeadraceError) else None,
    )


class ProducersService(transactions_pb2_grpc.ProducersServicer):
    """headrace.v1.Producers."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    async def DescribeProducers(self, request: Any, context: Any) -> Any:
        partitions = dict.fromkeys(TopicPartition(item.topic, item.partition) for item in request.partitions)
        response, room = transactions_pb2.DescribeProducersResponse(), ResponseRoom()
        async with Turns(len(partitions) + sum(map(self._count, partitions))) as turns:
            for partition in partitions:
                if turns.is_over():
                    await turns.next()
                described = response.partitions.add(topic=partition.topic, partition=partition.partition)
                try:
                    room.check()
                    entries = list(self._broker.partitions.leader(partition).log.producers)
                except HeadraceError as error:
                    failure = error_to_proto(self._broker.partitions.for_clients(partition, error))
                    described.error.CopyFrom(failure)  # type: ignore[arg-type]
                    continue
                for start in range(0, len(entries), _DESCRIBED_AT_ONCE):
                    if turns.is_over():
                        await turns.next()
                    described.producers.extend(map(_active_producer, entries[start : start + _DESCRIBED_AT_ONCE]))
                room.add(described.ByteSize())
        return response

    def _count(self, partition: TopicPartition) -> int:
        """Number of the partition's producers; 0 if this broker does not lead the partition."""
        try:
            return len(self._broker.partitions.leader(partition).log.producers)
        except HeadraceError:
            return 0

    async def AbortHangingTransaction(self, request: Any, context: Any) -> Any:
        """Abort a hanging transaction in one partition, also in ``__consumer_offsets``: there, only Kafka leaves open
        transactions, because Headrace writes no transactions to this topic. The marker is an append to the shard's log
        that the coordinator of the shard does not expect. The coordinator therefore replays the shard, and drops the
        pending offsets of the aborted transaction."""
        partition = TopicPartition(request.topic, request.partition)
        if partition.topic in INTERNAL_TOPICS and partition.topic != OFFSETS_TOPIC:
            raise InvalidTopicError(
                f"{partition}: only the shard's coordinator can end transactions in a partition of {partition.topic}"
            )
        replica = self._broker.partitions.leader(partition)
        entry = replica.log.producers.get(request.producer_id)
        if entry is None or entry.transaction_first_offset != request.transaction_start_offset:
            raise InvalidTxnStateError(
                f"{partition}: no transaction of producer {request.producer_id} begins at offset "
                f"{request.transaction_start_offset}: list open transactions with DescribeProducers"
            )
        # Transaction version 1, because only in this version may a marker have the same epoch as the transaction that
        # it ends.
        marker = Marker(entry.producer_id, entry.epoch, False, max(entry.coordinator_epoch, 0), 1)
        done: asyncio.Future[AppendInfo | HeadraceError] = asyncio.get_running_loop().create_future()
        replica.append_marker(
            marker, self._broker.clock.now_ms(), lambda outcome: None if done.done() else done.set_result(outcome)
        )
        try:
            async with asyncio.timeout(self._broker.limits.request_timeout_ms / 1000):
                outcome = await done
        except TimeoutError:
            raise replica.leader.late_error() from None
        if isinstance(outcome, HeadraceError):
            raise outcome
        return transactions_pb2.AbortHangingTransactionResponse()


def _active_producer(entry: ProducerEntry) -> Any:
    last, first_offset = entry.last_batch, entry.transaction_first_offset
    return transactions_pb2.ActiveProducer(
        producer_id=entry.producer_id,
        producer_epoch=entry.epoch,
        last_sequence=-1 if last is None else last.last_sequence,
        last_timestamp_ms=entry.last_timestamp_ms,
        coordinator_epoch=entry.coordinator_epoch,
        transaction_start_offset=first_offset,
    )
