"""headrace.v1.Transactions and headrace.v1.TransactionPartitions: forward each request to the shard of its
transactional id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace_core.errors import CoordinatorNotAvailableError, HeadraceError, InvalidRequestError
from headrace_core.membership.producer_ids import ProducerIds
from headrace_core.metadata.shards import TRANSACTIONS_TOPIC
from headrace_core.rpc.status import error_to_proto
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, transactions_pb2, transactions_pb2_grpc

from ..runtime.shards import Shards
from ..runtime.transactions import Transactions
from ..transaction.messages import (
    AbortTransaction,
    AddPartitions,
    CompleteTransaction,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListedTransaction,
    ListTransactions,
    PrepareTransaction,
)
from ..transaction.state import ProducerIdentity, Transaction, TransactionState
from ..transaction.transactions import LISTED_MAX
from .descriptions import each_described

#: Seconds that a request for the next transaction waits for the markers of the former transaction.
PARKED_S = 1.0
#: Longest wait in seconds for the markers of the transaction that the request ends, if the client waits as long.
MARKERS_S = 30.0
#: Number of unanswered requests of a broker above which the coordinator does not read the broker's stream.
UNANSWERED_MAX = 1_000
#: Transaction versions of clients: 1, and 2 (KIP-890, part 2).
_VERSIONS = (1, 2)

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
    """The calls of clients; CommitTransactionOffsets is not served yet."""

    def __init__(self, shards: Callable[[], Shards], transactions: Transactions, producer_ids: ProducerIds) -> None:
        """``shards`` returns this coordinator's shards; during the start ``shards`` raises an error."""
        self._shards = shards
        self._transactions = transactions
        self._producer_ids = producer_ids

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
        except CoordinatorNotAvailableError:  # perhaps there was no producer id
            await self._producer_ids.wait()
            reply = await self._transactions.ask(asked, PARKED_S)
        response = transactions_pb2.InitProducerResponse(
            producer_id=reply.identity.producer_id, producer_epoch=reply.identity.epoch
        )
        if reply.prepared is not None:
            response.prepared.CopyFrom(_token(request.transactional_id, reply.prepared))
        return response

    async def EndTransaction(self, request: Any, context: Any) -> Any:
        asked = EndTransaction(
            request.transactional_id, _identity(request), request.commit, _version(request.transaction_version)
        )
        owner = await self._end(asked, context, wait_for_markers=request.wait_for_markers)
        return transactions_pb2.EndTransactionResponse(producer_id=owner.producer_id, producer_epoch=owner.epoch)

    async def PrepareTransaction(self, request: Any, context: Any) -> Any:
        asked = PrepareTransaction(request.transactional_id, _identity(request))
        identity = await self._transactions.ask(asked, PARKED_S)
        return transactions_pb2.PrepareTransactionResponse(token=_token(request.transactional_id, identity))

    async def CompleteTransaction(self, request: Any, context: Any) -> Any:
        token = request.token
        asked = CompleteTransaction(token.transactional_id, _identity(token), request.commit)
        await self._end(asked, context, wait_for_markers=request.wait_for_markers)
        return transactions_pb2.CompleteTransactionResponse()

    async def AbortTransaction(self, request: Any, context: Any) -> Any:
        await self._transactions.ask(AbortTransaction(request.transactional_id), PARKED_S)
        return transactions_pb2.AbortTransactionResponse()

    async def _end(self, asked: Any, context: Any, *, wait_for_markers: bool) -> Any:
        within_s = PARKED_S
        if wait_for_markers:
            left_s = context.time_remaining()
            within_s = MARKERS_S if left_s is None else min(left_s, MARKERS_S)
        return await self._transactions.ask(asked, within_s, wait_for_markers=wait_for_markers)

    async def ListTransactions(self, request: Any, context: Any) -> Any:
        """Ask the shards one after the other, so that the coordinator serves other requests in between. A shard that
        stops serving during the call is not listed, and counts as loading."""
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
    """The calls of brokers."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def AddPartitions(self, request_iterator: Any, context: Any) -> None:
        stream: ServerStream[Any, Any] = ServerStream(context)
        await stream.run(AddPartitionsStream(self._transactions, stream))


class AddPartitionsStream(StreamHandler[Any]):
    """The stream of one broker."""

    __slots__ = ("_stream", "_transactions", "_unanswered")

    def __init__(self, transactions: Transactions, stream: ServerStream[Any, Any]) -> None:
        self._transactions = transactions
        self._stream = stream
        self._unanswered = 0

    def on_request(self, request: Any) -> None:
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
        self._transactions.put(asked, lambda outcome: self._answered(number, outcome), PARKED_S)

    def is_idle(self) -> bool:
        return self._unanswered == 0

    def _answered(self, number: int, outcome: object) -> None:
        self._unanswered -= 1
        if self._stream.paused and self._unanswered <= UNANSWERED_MAX // 2:
            self._stream.resume()
        self._answer(number, outcome)

    def _answer(self, number: int, outcome: object) -> None:
        error = error_to_proto(outcome) if isinstance(outcome, HeadraceError) else None
        self._stream.send(transactions_pb2.AddPartitionsResponse(correlation_id=number, error=error))


def _identity(message: Any) -> ProducerIdentity:
    return ProducerIdentity(message.producer_id, message.producer_epoch)


def _version(version: int) -> int:
    if version not in _VERSIONS:
        raise InvalidRequestError(f"transaction_version={version}: must be 1 or 2")
    return version


def _partitions(names: Any) -> frozenset[TopicPartition]:
    if not names:
        raise InvalidRequestError("the request to add partitions to a transaction names no partition")
    for name in names:
        if not name.topic or name.partition < 0:
            raise InvalidRequestError(f"{name.topic!r}-{name.partition} is not a partition")
    return frozenset(TopicPartition(name.topic, name.partition) for name in names)


def _state_pair(number: int) -> tuple[TransactionState, bool]:
    pair = _STATE_PAIRS.get(number)
    if pair is None:
        raise InvalidRequestError(f"transaction state {number} is unknown: send one of TransactionState")
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
