"""Transactions: InitProducerId, the requests of transaction versions 1 and 2, and the requests of administrators.

The version of a client's EndTxn and TxnOffsetCommit requests shows the client's transaction version. From request
version 5 on, the transaction version is 2 (KIP-890). Clients with version 2 send neither AddPartitionsToTxn nor
AddOffsetsToTxn.
"""

from __future__ import annotations

from typing import Any

import re2

from headrace_core.errors import (
    ClusterAuthorizationFailedError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    HeadraceError,
    InvalidProducerEpochError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidTxnStateError,
    OperationNotAttemptedError,
    ProducerFencedError,
    TopicAuthorizationFailedError,
    TransactionAbortableError,
    TransactionalIdAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata.shards import INTERNAL_TOPICS, OFFSETS_TOPIC, shard_of
from headrace_core.rpc.limits import PARTITIONS_MAX, pages
from headrace_core.types import TopicPartition
from headrace_protos.v1 import (
    groups_pb2,
    produce_pb2,
    produce_pb2_grpc,
    transactions_pb2,
    transactions_pb2_grpc,
)

from ..access import ALTER, CLUSTER, CLUSTER_ACTION, CLUSTER_NAME, DESCRIBE, IDEMPOTENT_WRITE, READ, TOPIC, WRITE
from ..access import GROUP as GROUP_RESOURCE
from ..access import TRANSACTIONAL_ID as TRANSACTION_RESOURCE
from ..call import Call
from ..cluster import GROUP, TRANSACTION
from ..errors import NONE, abortable, kafkas, number, of_coordinator
from ..wire.apis import Api
from ..wire.schema import Message
from .describe_groups import ask_coordinators, few_at_once, is_listed
from .offsets import to_commit, without_epochs

Fields = dict[str, Any]

_NO_ID = -1
#: A client that sends this version of EndTxn or TxnOffsetCommit, or a higher one, uses transactions of version 2.
_VERSION_2 = 5
#: The version from which AddPartitionsToTxn names several transactions; only brokers send this version.
_MANY_TRANSACTIONS = 4

#: For each request type, the first version in which clients know PRODUCER_FENCED (KIP-588). Clients with an earlier
#: version get INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.
_FENCED_FROM = {
    Api.INIT_PRODUCER_ID: 4,
    Api.ADD_PARTITIONS_TO_TXN: 2,
    Api.ADD_OFFSETS_TO_TXN: 2,
    Api.END_TXN: 2,
    Api.TXN_OFFSET_COMMIT: 1_000,  # always INVALID_PRODUCER_EPOCH, as in Kafka
}
#: For each request type, the first version in which clients know TRANSACTION_ABORTABLE (KIP-890). Clients with an
#: earlier version get INVALID_TXN_STATE instead of TRANSACTION_ABORTABLE.
_ABORTABLE_FROM = {
    Api.INIT_PRODUCER_ID: 5,
    Api.ADD_PARTITIONS_TO_TXN: 5,
    Api.ADD_OFFSETS_TO_TXN: 4,
    Api.END_TXN: 1_000,  # always INVALID_TXN_STATE, as in Kafka: Flink's committer goes on only after this error
    Api.TXN_OFFSET_COMMIT: 4,
}

_STATES = {
    transactions_pb2.TRANSACTION_STATE_EMPTY: "Empty",
    transactions_pb2.TRANSACTION_STATE_ONGOING: "Ongoing",
    transactions_pb2.TRANSACTION_STATE_PREPARED: "Ongoing",
    transactions_pb2.TRANSACTION_STATE_PREPARE_COMMIT: "PrepareCommit",
    transactions_pb2.TRANSACTION_STATE_PREPARE_ABORT: "PrepareAbort",
    transactions_pb2.TRANSACTION_STATE_COMPLETE_COMMIT: "CompleteCommit",
    transactions_pb2.TRANSACTION_STATE_COMPLETE_ABORT: "CompleteAbort",
}
_KNOWN_STATES = {"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
                 "PrepareEpochFence"}  # fmt: skip


def _number(call: Call, error: HeadraceError) -> int:
    """An error number that the client knows, according to the version of its request."""
    if isinstance(error, ProducerFencedError) and call.version < _FENCED_FROM[call.api]:
        return InvalidProducerEpochError.number
    if isinstance(error, TransactionAbortableError) and call.version < _ABORTABLE_FROM[call.api]:
        return InvalidTxnStateError.number
    return of_coordinator(error.number)


async def init_producer_id(call: Call, request: Message) -> Fields:
    if request.transactional_id is not None:
        may_write = call.allows(WRITE, TRANSACTION_RESOURCE, request.transactional_id)
        refused: int = TransactionalIdAuthorizationFailedError.number
    else:  # a client that may write to any topic may write to it idempotently (KIP-679)
        may_write = call.sees(IDEMPOTENT_WRITE, CLUSTER, CLUSTER_NAME) or call.access.allows_any(WRITE, TOPIC)
        refused = ClusterAuthorizationFailedError.number
    if not may_write:
        return {"error_code": refused, "producer_id": _NO_ID, "producer_epoch": _NO_ID}
    has_id = request.producer_id != _NO_ID
    if has_id != (request.producer_epoch != _NO_ID):
        return {"error_code": InvalidRequestError.number, "producer_id": _NO_ID, "producer_epoch": _NO_ID}
    expected = {"producer_id": request.producer_id, "producer_epoch": request.producer_epoch} if has_id else {}
    timeout_ms = call.settings.request_timeout_ms
    try:
        if request.transactional_id is None:
            answer = await call.own(
                produce_pb2_grpc.ProduceStub,
                "InitProducerId",
                produce_pb2.InitProducerIdRequest(**expected),
                timeout_ms,
            )
        elif not request.transactional_id:
            raise InvalidRequestError("the transactional id is empty: set transactional.id, or leave it out")
        else:
            answer = await call.coordinator(
                TRANSACTION,
                request.transactional_id,
                transactions_pb2_grpc.TransactionsStub,
                "InitProducer",
                transactions_pb2.InitProducerRequest(
                    transactional_id=request.transactional_id,
                    transaction_timeout_ms=request.transaction_timeout,
                    **expected,
                ),
                timeout_ms,
            )
    except HeadraceError as error:
        code = number(error) if request.transactional_id is None else _number(call, error)
        return {"error_code": code, "producer_id": _NO_ID, "producer_epoch": _NO_ID}
    return {"error_code": NONE, "producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}


async def add_partitions_to_txn(call: Call, request: Message) -> Fields:
    if call.version >= _MANY_TRANSACTIONS:
        call.require(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
        results = [
            {
                "transactional_id": each.transactional_id,
                "topic_results": await _add_partitions(
                    call,
                    each.transactional_id,
                    each.producer_id,
                    each.producer_epoch,
                    each.topics,
                    verify_only=each.verify_only,
                ),
            }
            for each in request.transactions
        ]
        return {"error_code": NONE, "results_by_transaction": results}
    return {
        "results_by_topic_v3_and_below": await _add_partitions(
            call,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            request.v3_and_below_topics,
            verify_only=False,
        )
    }


async def _add_partitions(
    call: Call, transactional_id: str, producer_id: int, epoch: int, topics: Any, *, verify_only: bool
) -> list[Fields]:
    """Add all partitions to the transaction, or none. If some partitions do not exist, or the client is not authorized
    to write to them, all other partitions get OPERATION_NOT_ATTEMPTED."""
    partitions = [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]
    is_client = call.version < _MANY_TRANSACTIONS
    hidden = {name for name in {topic.name for topic in topics} if is_client and not _may_write(call, name)}
    faulty = {
        each: TopicAuthorizationFailedError.number if each.topic in hidden else UnknownTopicOrPartitionError.number
        for each in partitions
        if each.topic in hidden or not _exists(call, each)
    }
    code = NONE
    if is_client and not call.allows(WRITE, TRANSACTION_RESOURCE, transactional_id):
        code, faulty = TransactionalIdAuthorizationFailedError.number, {}
    elif faulty:
        code = OperationNotAttemptedError.number
    else:
        try:
            await _add(call, transactional_id, producer_id, epoch, partitions, verify_only=verify_only)
        except HeadraceError as error:
            code = _number(call, error)
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": index,
                    "partition_error_code": faulty.get(TopicPartition(topic.name, index), code),
                }
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]


def _may_write(call: Call, topic: str) -> bool:
    """Whether a client may add partitions of the topic to a transaction. As in Kafka, no client may add partitions of
    internal topics, even without an authorizer: a client adds the offsets of groups by AddOffsetsToTxn."""
    return topic not in INTERNAL_TOPICS and call.allows(WRITE, TOPIC, topic)


def _exists(call: Call, partition: TopicPartition) -> bool:
    return call.cluster.has_partition(partition.topic, partition.partition)


async def _add(
    call: Call,
    transactional_id: str,
    producer_id: int,
    epoch: int,
    partitions: list[TopicPartition],
    *,
    verify_only: bool = False,
) -> None:
    await call.coordinator(
        TRANSACTION,
        transactional_id,
        transactions_pb2_grpc.TransactionsStub,
        "AddTransactionPartitions",
        transactions_pb2.AddTransactionPartitionsRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=epoch,
            partitions=[groups_pb2.PartitionName(topic=topic, partition=index) for topic, index in partitions],
            verify_only=verify_only,
        ),
        call.settings.request_timeout_ms,
    )


async def add_offsets_to_txn(call: Call, request: Message) -> Fields:
    """Add the group's shard, a partition of __consumer_offsets, to the transaction."""
    topic = call.cluster.topic(OFFSETS_TOPIC)
    try:
        call.require(WRITE, TRANSACTION_RESOURCE, request.transactional_id)
        call.require(READ, GROUP_RESOURCE, request.group_id)
        if topic is None:
            raise CoordinatorNotAvailableError(f"group {request.group_id!r} has no coordinator yet; retry")
        shard = TopicPartition(OFFSETS_TOPIC, shard_of(request.group_id, len(topic.partitions)))
        await _add(call, request.transactional_id, request.producer_id, request.producer_epoch, [shard])
    except HeadraceError as error:
        return {"error_code": _number(call, error)}
    return {"error_code": NONE}


async def end_txn(call: Call, request: Message) -> Fields:
    try:
        call.require(WRITE, TRANSACTION_RESOURCE, request.transactional_id)
        answer = await call.coordinator(
            TRANSACTION,
            request.transactional_id,
            transactions_pb2_grpc.TransactionsStub,
            "EndTransaction",
            transactions_pb2.EndTransactionRequest(
                transactional_id=request.transactional_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
                commit=request.committed,
                transaction_version=2 if call.version >= _VERSION_2 else 1,
            ),
            call.settings.request_timeout_ms,
        )
    except HeadraceError as error:
        return {"error_code": _number(call, error), "producer_id": _NO_ID, "producer_epoch": _NO_ID}
    return {"error_code": NONE, "producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}


async def txn_offset_commit(call: Call, request: Message) -> Fields:
    topics: list[Fields] = []
    offsets: list[tuple[Fields, Any]] = []
    refused_all: int = NONE
    try:
        call.require(WRITE, TRANSACTION_RESOURCE, request.transactional_id)
        call.require(READ, GROUP_RESOURCE, request.group_id)
    except HeadraceError as error:
        refused_all = number(error)
    for topic in request.topics:
        results: list[Fields] = []
        topics.append({"name": topic.name, "partitions": results})
        refused = refused_all
        if not refused and not call.allows(READ, TOPIC, topic.name):
            refused = TopicAuthorizationFailedError.number
        for item in topic.partitions:
            result: Fields = {"partition_index": item.partition_index, "error_code": refused}
            results.append(result)
            if refused:
                continue
            offsets.append((result, to_commit(topic.name, item)))
    for page in pages(offsets, PARTITIONS_MAX) if offsets else ():
        asked = transactions_pb2.CommitTransactionOffsetsRequest(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            transaction_version=2 if call.version >= _VERSION_2 else 1,
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.generation_id,
            instance_id=request.group_instance_id,
            offsets=[committed for _, committed in page],
        )
        try:
            answer = await call.coordinator(
                GROUP,
                request.group_id,
                transactions_pb2_grpc.TransactionsStub,
                "CommitTransactionOffsets",
                asked,
                call.settings.request_timeout_ms,
            )
            codes = [of_coordinator(found.error.code) for found in answer.results]
        except HeadraceError as error:
            codes = [_number(call, without_epochs(error))] * len(page)
        is_abortable = _ABORTABLE_FROM[Api.TXN_OFFSET_COMMIT] <= call.version < _VERSION_2
        for (result, _), code in zip(page, codes, strict=True):
            result["error_code"] = abortable(code) if is_abortable else code
    return {"topics": topics}


# -- administration ----------------------------------------------------------------------------------------------------


async def list_transactions(call: Call, request: Message) -> Fields:
    """List the transactional ids of all coordinators (KIP-664). ``transactional_id_pattern`` is a regular expression
    (RE2, KIP-1152)."""
    unknown = [state for state in request.state_filters if state not in _KNOWN_STATES]
    states = [each for each, name in _STATES.items() if name in request.state_filters]
    if request.state_filters and not states:
        return {"error_code": NONE, "unknown_state_filters": unknown}
    pattern = request.transactional_id_pattern
    matches = None
    if pattern:
        try:
            matches = re2.compile(pattern)
        except re2.error as error:
            raise InvalidRegularExpressionError(f"transactional_id_pattern: {error}") from None
    found = []
    after = ""
    while True:
        asked = transactions_pb2.ListTransactionsRequest(
            states=states,
            producer_ids=request.producer_id_filters,
            open_for_ms=request.duration_filter if request.duration_filter >= 0 else None,
            after=after,
        )
        answers = await ask_coordinators(call, transactions_pb2_grpc.TransactionsStub, "ListTransactions", asked)
        if any(answer.loading_shards for answer in answers):
            raise CoordinatorLoadInProgressError("a coordinator is still loading transactional ids; retry")
        found += [each for answer in answers for each in answer.transactions]
        if not any(answer.has_more for answer in answers):
            break
        after = min(answer.transactions[-1].transactional_id for answer in answers if answer.has_more)
        found = [each for each in found if each.transactional_id <= after]
    listed = {each.transactional_id: each for each in found}
    return {
        "error_code": NONE,
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": transactional_id,
                "producer_id": each.producer_id,
                "transaction_state": _STATES[each.state],
            }
            for transactional_id, each in listed.items()
            if (matches is None or matches.fullmatch(transactional_id))
            and call.sees(DESCRIBE, TRANSACTION_RESOURCE, transactional_id)
            and is_listed(call, TRANSACTION, transactional_id)
        ],
    }


async def describe_transactions(call: Call, request: Message) -> Fields:
    async def one(transactional_id: str) -> Fields:
        try:
            call.require(DESCRIBE, TRANSACTION_RESOURCE, transactional_id)
            answer = await call.coordinator(
                TRANSACTION,
                transactional_id,
                transactions_pb2_grpc.TransactionsStub,
                "DescribeTransactions",
                transactions_pb2.DescribeTransactionsRequest(transactional_ids=[transactional_id]),
                call.settings.request_timeout_ms,
            )
        except HeadraceError as error:
            return {"error_code": number(error), "transactional_id": transactional_id}
        (found,) = answer.transactions
        if found.error.code:
            return {"error_code": kafkas(found.error.code), "transactional_id": transactional_id}
        topics: dict[str, list[int]] = {}
        for partition in found.partitions:
            if call.allows(DESCRIBE, TOPIC, partition.topic):
                topics.setdefault(partition.topic, []).append(partition.partition)
        return {
            "error_code": NONE,
            "transactional_id": transactional_id,
            "transaction_state": _STATES[found.state],
            "transaction_timeout": found.timeout_ms,
            "transaction_start_time": found.started_at_ms,
            "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch,
            "topics": [{"topic": name, "partitions": numbers} for name, numbers in topics.items()],
        }

    return {"transaction_states": await few_at_once(request.transactional_ids, one)}


async def write_txn_markers(call: Call, request: Message) -> Fields:
    """Abort hanging transactions (KIP-664). ``kafka-transactions abort`` sends this request to the leaders of the
    partitions. Clients may only abort; only coordinators commit."""
    refused: int = NONE
    if not (call.sees(ALTER, CLUSTER, CLUSTER_NAME) or call.allows(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)):
        refused = ClusterAuthorizationFailedError.number
    markers = []
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            results = [
                {
                    "partition_index": index,
                    "error_code": refused or await _abort_hanging(call, topic.name, index, marker),
                }
                for index in topic.partition_indexes
            ]
            topics.append({"name": topic.name, "partitions": results})
        markers.append({"producer_id": marker.producer_id, "topics": topics})
    return {"markers": markers}


async def _abort_hanging(call: Call, topic: str, index: int, marker: Message) -> int:
    timeout_ms = call.settings.request_timeout_ms
    try:
        if marker.transaction_result:
            raise InvalidRequestError("only a coordinator may commit a transaction")
        if not _exists(call, TopicPartition(topic, index)):
            raise UnknownTopicOrPartitionError(f"partition {topic}-{index} does not exist")
        answer = await call.own(
            transactions_pb2_grpc.ProducersStub,
            "DescribeProducers",
            transactions_pb2.DescribeProducersRequest(
                partitions=[groups_pb2.PartitionName(topic=topic, partition=index)]
            ),
            timeout_ms,
        )
        (found,) = answer.partitions
        if found.error.code:
            return kafkas(found.error.code)
        start = next(
            (
                each.transaction_start_offset
                for each in found.producers
                if each.producer_id == marker.producer_id and each.HasField("transaction_start_offset")
            ),
            None,
        )
        if start is None:
            raise InvalidTxnStateError(f"producer {marker.producer_id} has no open transaction in {topic}-{index}")
        await call.own(
            transactions_pb2_grpc.ProducersStub,
            "AbortHangingTransaction",
            transactions_pb2.AbortHangingTransactionRequest(
                topic=topic, partition=index, producer_id=marker.producer_id, transaction_start_offset=start
            ),
            timeout_ms,
        )
    except HeadraceError as error:
        return number(error)
    return NONE
