"""headrace.v1.Transactions, headrace.v1.TransactionPartitions and headrace.v1.TransactionMarkers: forward each request
to the shard of its transactional id, or of its group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace_core.errors import CoordinatorNotAvailableError, HeadraceError, InvalidRequestError, InvalidTopicError
from headrace_core.item_errors import error_to_proto
from headrace_core.membership.producer_ids import ProducerIds
from headrace_core.metadata.shards import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.rpc.turns import Turns
from headrace_core.sinks import SinkTransaction, parse_sink_transaction
from headrace_core.tracing.node import NodeTraces
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, transactions_pb2, transactions_pb2_grpc

from ..offsets.messages import CommitTransactionOffsets, EndOffsets
from ..runtime.runner import Done
from ..runtime.shards import Shards
from ..runtime.transaction_offsets import TransactionOffsets
from ..runtime.transactions import Transactions
from ..transaction.messages import (
    AbortSinkBatch,
    AbortTransaction,
    AddPartitions,
    CommitSinkBatch,
    CompleteTransaction,
    DescribeSink,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListedTransaction,
    ListTransactions,
    PrepareTransaction,
    SinkState,
)
from ..transaction.state import EPOCH_MAX, ProducerIdentity, Transaction, TransactionState
from ..transaction.transactions import LISTED_MAX
from . import messages
from .descriptions import each_described
from .tracing import (
    offsets_sent,
    producer_initialized,
    traced,
    transaction_completed,
    transaction_ended,
    transaction_prepared,
)

#: Seconds that a request for the next transaction waits for the markers of the former transaction.
PARKED_S = 1.0
#: Longest wait in seconds for the markers of the transaction that the request ends, if the client's timeout allows it.
MARKERS_S = 30.0
#: Number of unanswered requests of a broker above which the coordinator does not read the broker's stream.
UNANSWERED_MAX = 1_000
#: Transaction versions of clients: 1, and 2 (KIP-890, part 2).
_VERSIONS = (1, 2)
EXPLICIT_VERSION = 1  #: The transaction version in which clients add partitions themselves.

_STATES = {
    (TransactionState.EMPTY, False): transactions_pb2.TRANSACTION_STATE_EMPTY,
    (TransactionState.ONGOING, False): transactions_pb2.TRANSACTION_STATE_ONGOING,
    (TransactionState.ONGOING, True): transactions_pb2.TRANSACTION_STATE_PREPARED,
    (TransactionState.PREPARE_COMMIT, False): transactions_pb2.TRANSACTION_STATE_PREPARE_COMMIT,
    (TransactionState.PREPARE_ABORT, False): transactions_pb2.TRANSACTION_STATE_PREPARE_ABORT,
    (TransactionState.COMPLETE_COMMIT, False): transactions_pb2.TRANSACTION_STATE_COMPLETE_COMMIT,
    (TransactionState.COMPLETE_ABORT, False): transactions_pb2.TRANSACTION_STATE_COMPLETE_ABORT,
}
_STATE_PAIRS: dict[int, tuple[TransactionState, bool]] = {number: pair for pair, number in _STATES.items()}


class TransactionsService(transactions_pb2_grpc.TransactionsServicer):
    """The service headrace.v1.Transactions, which clients call."""

    def __init__(
        self,
        shards: Callable[[], Shards],
        transactions: Transactions,
        offsets: TransactionOffsets,
        producer_ids: ProducerIds,
        traces: NodeTraces | None = None,
    ) -> None:
        """``shards`` returns this coordinator's shards; it raises an error while the coordinator starts."""
        self.traces = traces
        self._shards = shards
        self._transactions = transactions
        self._offsets = offsets
        self._producer_ids = producer_ids

    @traced(producer_initialized)
    async def InitProducer(self, request: Any, context: Any) -> Any:
        has_id, has_epoch = request.HasField("producer_id"), request.HasField("producer_epoch")
        if has_id != has_epoch:
            raise InvalidRequestError("producer_id and producer_epoch belong together: send both or neither")
        asked = InitProducerId(
            request.transactional_id,
            request.transaction_timeout_ms,
            expected=_identity(request) if has_id else None,
            keep_prepared=request.keep_prepared,
            has_no_timeout=request.enable_two_phase_commit,
        )
        try:
            reply = await self._transactions.ask(asked, PARKED_S)
        # perhaps no producer id was available, so the producer repeats the request
        except CoordinatorNotAvailableError:
            await self._producer_ids.wait()
            reply = await self._transactions.ask(asked, PARKED_S)
        response = transactions_pb2.InitProducerResponse(
            producer_id=reply.identity.producer_id, producer_epoch=reply.identity.epoch
        )
        if reply.prepared is not None:
            response.prepared.CopyFrom(_token(request.transactional_id, reply.prepared))
        return response

    async def AddTransactionPartitions(self, request: Any, context: Any) -> Any:
        asked = AddPartitions(
            request.transactional_id,
            _identity(request),
            _partitions(request.partitions),
            EXPLICIT_VERSION,
            request.verify_only,
        )
        await self._transactions.ask(asked, PARKED_S)
        return transactions_pb2.AddTransactionPartitionsResponse()

    @traced(transaction_ended)
    async def EndTransaction(self, request: Any, context: Any) -> Any:
        asked = EndTransaction(
            request.transactional_id, _identity(request), request.commit, _version(request.transaction_version)
        )
        owner = await self._end(asked, context, wait_for_markers=request.wait_for_markers)
        return transactions_pb2.EndTransactionResponse(producer_id=owner.producer_id, producer_epoch=owner.epoch)

    @traced(transaction_prepared)
    async def PrepareTransaction(self, request: Any, context: Any) -> Any:
        asked = PrepareTransaction(request.transactional_id, _identity(request))
        identity = await self._transactions.ask(asked, PARKED_S)
        return transactions_pb2.PrepareTransactionResponse(token=_token(request.transactional_id, identity))

    @traced(transaction_completed)
    async def CompleteTransaction(self, request: Any, context: Any) -> Any:
        token = request.token
        asked = CompleteTransaction(token.transactional_id, _identity(token), request.commit)
        await self._end(asked, context, wait_for_markers=request.wait_for_markers)
        return transactions_pb2.CompleteTransactionResponse()

    @traced(offsets_sent)
    async def CommitTransactionOffsets(self, request: Any, context: Any) -> Any:
        version = _version(request.transaction_version)
        identity = _identity(request)
        if identity.producer_id < 0 or not 0 <= identity.epoch <= EPOCH_MAX or request.sequence < 0:
            raise InvalidRequestError(
                f"cannot commit offsets of producer {identity.producer_id}, epoch {identity.epoch}, sequence "
                f"{request.sequence}: producer id, epoch and sequence must not be negative, and the epoch must be at "
                f"most {EPOCH_MAX}"
            )
        if not request.transactional_id:
            raise InvalidRequestError("the transactional id is empty: set transactional.id")
        async with Turns(len(request.offsets)) as turns:
            commit = (await messages.commit_offsets(request, turns))._replace(sequence=request.commit_sequence)
            asked = CommitTransactionOffsets(commit, request.transactional_id, *identity, request.sequence)
            committed = await turns.outside(self._offsets.commit(asked, version, request.ByteSize()))
            results = await messages.partition_outcomes(committed.results, turns)
        return transactions_pb2.CommitTransactionOffsetsResponse(results=results)

    async def AbortTransaction(self, request: Any, context: Any) -> Any:
        await self._transactions.ask(AbortTransaction(request.transactional_id), PARKED_S)
        return transactions_pb2.AbortTransactionResponse()

    async def CommitSinkBatch(self, request: Any, context: Any) -> Any:
        tokens = tuple((_sink_transaction(token.transactional_id), _identity(token)) for token in request.tokens)
        generation = _not_negative("generation", request.generation) if request.HasField("generation") else None
        asked = CommitSinkBatch(
            request.sink_id, _not_negative("batch", request.batch), tokens, request.is_final, generation
        )
        state = await self._end(asked, context, wait_for_markers=request.wait_for_markers)
        return transactions_pb2.CommitSinkBatchResponse(state=_sink_state(state))

    async def AbortSinkBatch(self, request: Any, context: Any) -> Any:
        asked = AbortSinkBatch(
            request.sink_id,
            _not_negative("batch", request.batch),
            _not_negative("generation", request.generation),
            request.is_final,
        )
        state = await self._end(asked, context, wait_for_markers=request.wait_for_markers)
        return transactions_pb2.AbortSinkBatchResponse(state=_sink_state(state))

    async def DescribeSink(self, request: Any, context: Any) -> Any:
        state = await self._transactions.ask(DescribeSink(request.sink_id), PARKED_S)
        return transactions_pb2.DescribeSinkResponse(state=_sink_state(state))

    async def _end(self, asked: Any, context: Any, *, wait_for_markers: bool) -> Any:
        within_s = PARKED_S
        if wait_for_markers:
            left_s = context.time_remaining()
            within_s = MARKERS_S if left_s is None else min(left_s, MARKERS_S)
        return await self._transactions.ask(asked, within_s, wait_for_markers=wait_for_markers)

    async def ListTransactions(self, request: Any, context: Any) -> Any:
        """Ask the shards one after the other, so that the coordinator serves other requests after each shard. A shard
        that stops serving during the call is not listed, and counts as loading."""
        asked = ListTransactions(
            states=frozenset(map(_state_pair, request.states)),
            producer_ids=frozenset(request.producer_ids),
            open_for_ms=request.open_for_ms if request.HasField("open_for_ms") else -1,
            prefix=request.transactional_id_prefix,
            after=request.after,
        )
        response = transactions_pb2.ListTransactionsResponse()
        found: list[ListedTransaction] = []
        for runner in self._shards().of_topic(TRANSACTIONS_TOPIC):
            try:
                listed = await runner.ask(asked)
            except HeadraceError:
                response.loading_shards += 1
                continue
            response.has_more |= len(listed) >= LISTED_MAX
            found = sorted([*found, *listed])
            response.has_more |= len(found) > LISTED_MAX
            del found[LISTED_MAX:]
            await asyncio.sleep(0)
        for each in found:
            response.transactions.add(
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                state=_STATES[each.state, each.is_prepared],
                started_at_ms=each.started_ms,
            )
        return response

    async def DescribeTransactions(self, request: Any, context: Any) -> Any:
        async def one(transactional_id: str) -> Any:
            runner = self._shards().of_transactional_id(transactional_id)
            return _described(transactional_id, await runner.ask(DescribeTransaction(transactional_id)))

        def refused(transactional_id: str, error: HeadraceError) -> Any:
            return transactions_pb2.DescribedTransaction(
                transactional_id=transactional_id, error=error_to_proto(error), started_at_ms=-1
            )

        described = await each_described(request.transactional_ids, one, refused)
        return transactions_pb2.DescribeTransactionsResponse(transactions=described)


class TransactionPartitionsService(transactions_pb2_grpc.TransactionPartitionsServicer):
    """The service headrace.v1.TransactionPartitions, which brokers call to add or verify partitions of transactions."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def AddPartitions(self, request_iterator: Any, context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context, transactions_pb2.AddPartitionsResponses)
        await stream.run(AddPartitionsStream(self._transactions, stream))


class AddPartitionsStream(StreamHandler[Any]):
    """The AddPartitions stream of one broker."""

    __slots__ = ("_stream", "_transactions", "_unanswered")

    def __init__(self, transactions: Transactions, stream: ServerStream[Any, Any]) -> None:
        self._transactions = transactions
        self._stream = stream
        self._unanswered = 0

    def on_request(self, request: Any) -> None:
        for each in request.requests:
            self._take(each)

    def _take(self, request: Any) -> None:
        number = request.correlation_id
        try:
            asked = AddPartitions(
                request.transactional_id,
                _identity(request),
                _partitions(request.partitions),
                _version(request.transaction_version),
                request.verify_only,
            )
        except HeadraceError as error:
            self._answer(number, error)
            return
        self._unanswered += 1
        if self._unanswered >= UNANSWERED_MAX:
            self._stream.pause()
        self._transactions.put(asked, lambda outcome: self._answered(asked, number, outcome), PARKED_S)

    def is_idle(self) -> bool:
        return self._unanswered == 0

    def _answered(self, asked: AddPartitions, number: int, outcome: object) -> None:
        self._unanswered -= 1
        if self._stream.paused and self._unanswered <= UNANSWERED_MAX // 2:
            self._stream.resume()
        self._answer(number, outcome, self._transactions.epoch_of(asked.transactional_id))

    def _answer(self, number: int, outcome: object, coordinator_epoch: int = 0) -> None:
        error = error_to_proto(outcome) if isinstance(outcome, HeadraceError) else None
        response = transactions_pb2.AddPartitionsResponse(
            correlation_id=number, error=error, coordinator_epoch=coordinator_epoch
        )
        self._stream.send(response)


class TransactionMarkersService(transactions_pb2_grpc.TransactionMarkersServicer):
    """Receive the markers of transactions with group offsets. The coordinators of the transactions send the markers to
    the owners of the groups' shards."""

    def __init__(self, shards: Callable[[], Shards]) -> None:
        self._shards = shards

    async def WriteMarkers(self, request_iterator: Any, context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context, transactions_pb2.WriteMarkersResponses)
        await stream.run(MarkersStream(self._shards, stream))


class MarkersStream(StreamHandler[Any]):
    """Serve the stream of one coordinator. Responses are sent in any order."""

    __slots__ = ("_shards", "_stream", "_unanswered")

    def __init__(self, shards: Callable[[], Shards], stream: ServerStream[Any, Any]) -> None:
        self._shards = shards
        self._stream = stream
        self._unanswered = 0

    def on_request(self, request: Any) -> None:
        for each in request.requests:
            self._take(each)

    def _take(self, request: Any) -> None:
        self._unanswered += 1
        if self._unanswered >= UNANSWERED_MAX:
            self._stream.pause()
        outcomes: list[HeadraceError | None] = [None] * len(request.partitions)
        missing = len(outcomes)

        def ended(index: int, outcome: object) -> None:
            nonlocal missing
            outcomes[index] = outcome if isinstance(outcome, HeadraceError) else None
            missing -= 1
            if not missing:
                self._answer(request, outcomes)

        if not outcomes:
            self._answer(request, outcomes)
        for index, name in enumerate(request.partitions):
            done = partial(ended, index)
            try:
                self._end(_marker(request), TopicPartition(name.topic, name.partition), done)
            except HeadraceError as error:
                done(error)

    def _end(self, marker: EndOffsets, shard: TopicPartition, done: Done) -> None:
        """Guard: answer only if this coordinator still owns the shard, because a former owner does not know whether
        offsets are pending."""
        if shard.topic != OFFSETS_TOPIC:
            raise InvalidTopicError(
                f"{shard}: the leader of this partition writes its markers; send the marker to the leader"
            )
        self._shards().of_shard(shard).put(marker, done, is_fenced=True)

    def is_idle(self) -> bool:
        return self._unanswered == 0

    def _answer(self, request: Any, outcomes: list[HeadraceError | None]) -> None:
        self._unanswered -= 1
        if self._stream.paused and self._unanswered <= UNANSWERED_MAX // 2:
            self._stream.resume()
        response = transactions_pb2.WriteMarkersResponse(correlation_id=request.correlation_id)
        for name, error in zip(request.partitions, outcomes, strict=True):
            response.results.add(topic=name.topic, partition=name.partition, error=error_to_proto(error))
        self._stream.send(response)


def _identity(message: Any) -> ProducerIdentity:
    return ProducerIdentity(message.producer_id, message.producer_epoch)


def _marker(request: Any) -> EndOffsets:
    marker = EndOffsets(
        request.producer_id,
        request.producer_epoch,
        request.commit,
        request.transaction_version,
        request.coordinator_epoch,
    )
    if marker.producer_id < 0 or not 0 <= marker.epoch <= EPOCH_MAX or marker.version not in _VERSIONS:
        raise InvalidRequestError(f"invalid marker: {marker}")
    return marker


def _version(version: int) -> int:
    if version not in _VERSIONS:
        raise InvalidRequestError(f"transaction_version={version}: must be 1 or 2")
    return version


def _partitions(names: Any) -> frozenset[TopicPartition]:
    if not names:
        raise InvalidRequestError("the request to add partitions to a transaction names no partition")
    for name in names:
        if not name.topic or name.partition < 0:
            raise InvalidRequestError(
                f"{name.topic!r}-{name.partition} is not a partition: needs a topic and a number of 0 or more"
            )
        if name.topic == TRANSACTIONS_TOPIC:
            raise InvalidTopicError(f"{TRANSACTIONS_TOPIC} cannot be part of a transaction: only coordinators write it")
    return frozenset(TopicPartition(name.topic, name.partition) for name in names)


def _not_negative(name: str, number: int) -> int:
    if number < 0:
        raise InvalidRequestError(f"{name}={number}: must not be negative")
    return number


def _sink_transaction(transactional_id: str) -> SinkTransaction:
    found = parse_sink_transaction(transactional_id)
    if found is None:
        raise InvalidRequestError(f"{transactional_id!r} is not the transactional id of a sink")
    return found


def _sink_state(state: SinkState) -> Any:
    return transactions_pb2.SinkState(batch=state.batch, generation=state.generation)


def _state_pair(number: int) -> tuple[TransactionState, bool]:
    pair = _STATE_PAIRS.get(number)
    if pair is None:
        raise InvalidRequestError(f"transaction state {number} is unknown: must be a value of TransactionState")
    return pair


def _token(transactional_id: str, identity: ProducerIdentity) -> Any:
    return transactions_pb2.TransactionToken(
        transactional_id=transactional_id, producer_id=identity.producer_id, producer_epoch=identity.epoch
    )


def _described(transactional_id: str, transaction: Transaction) -> Any:
    is_open = transaction.state not in (
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
    )
    message = transactions_pb2.DescribedTransaction(
        transactional_id=transactional_id,
        state=_STATES[transaction.state, transaction.is_prepared],
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        timeout_ms=transaction.timeout_ms,
        started_at_ms=transaction.started_ms if is_open else -1,
        updated_at_ms=transaction.updated_ms,
        transaction_version=transaction.version,
        partitions=[
            groups_pb2.PartitionName(topic=topic, partition=partition)
            for topic, partition in sorted(transaction.partitions)
        ],
    )
    if transaction.is_prepared:
        message.token.CopyFrom(_token(transactional_id, transaction.identity))
    return message
