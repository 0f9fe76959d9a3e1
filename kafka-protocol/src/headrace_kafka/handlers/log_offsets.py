"""Offsets of logs: ListOffsets, OffsetForLeaderEpoch, DeleteRecords, and DescribeProducers, of the partitions that this
broker leads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from headrace_core.errors import (
    HeadraceError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from headrace_core.rpc.limits import limit_of, pages
from headrace_core.rpc.turns import Turns
from headrace_core.security.acl_types import Operation
from headrace_protos.v1 import (
    common_pb2,
    groups_pb2,
    offsets_pb2,
    offsets_pb2_grpc,
    transactions_pb2,
    transactions_pb2_grpc,
)

from ..access import CLUSTER, CLUSTER_ACTION, CLUSTER_NAME, DELETE, DESCRIBE, READ, TOPIC
from ..call import Call
from ..errors import kafkas, number
from ..wire.schema import Message

MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -3, -4, -5, -6
_EARLIEST = -2
_NONE_TIERED = (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
#: For each special timestamp below -2, the first version of ListOffsets that has it.
_TIMESTAMP_FROM = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}

Fields = dict[str, Any]
#: Returns the answer's fields for a partition that failed; arguments: the partition, and the error's number and text.
Failed = Callable[[int, int, str], Fields]


class _Asked(NamedTuple):
    topic: str
    partition: int
    message: Any  #: The gRPC message for the partition.
    topic_at: int
    at: int


async def list_offsets(call: Call, request: Message) -> Fields:
    """ListOffsets. Headrace has no tiered storage: the earliest local offset is the earliest offset, and no offset is
    tiered."""

    def failed(partition: int, code: int, _text: str) -> Fields:
        return {"partition_index": partition, "error_code": code}

    async def ask(asked: list[_Asked]) -> list[Fields]:
        answer = await call.own(
            offsets_pb2_grpc.OffsetsStub,
            "ListOffsets",
            offsets_pb2.ListOffsetsRequest(
                isolation_level=common_pb2.ISOLATION_LEVEL_READ_COMMITTED
                if request.isolation_level == 1
                else common_pb2.ISOLATION_LEVEL_READ_UNCOMMITTED,
                partitions=[each.message for each in asked],
            ),
            request.timeout if request.timeout > 0 else call.settings.request_timeout_ms,
        )
        return [
            {
                "partition_index": found.partition,
                "error_code": kafkas(found.error.code),
                "offset": -1 if found.error.code else found.offset,
                "timestamp": -1 if found.error.code else found.timestamp_ms,
                "leader_epoch": -1 if found.error.code else found.leader_epoch,
            }
            for found in answer.results
        ]

    def message(topic: str, item: Message) -> Any:
        since = _TIMESTAMP_FROM.get(item.timestamp)
        if item.timestamp < _EARLIEST and (since is None or call.version < since):
            raise UnsupportedVersionError(f"ListOffsets version {call.version} has no timestamp {item.timestamp}")
        if item.timestamp in _NONE_TIERED:
            return {"partition_index": item.partition_index, "offset": -1, "timestamp": -1, "leader_epoch": -1}
        timestamp = _EARLIEST if item.timestamp == EARLIEST_LOCAL else item.timestamp
        return offsets_pb2.ListOffsetsPartition(
            topic=topic,
            partition=item.partition_index,
            timestamp_ms=timestamp,
            current_leader_epoch=item.current_leader_epoch,
        )

    named = [(topic.name, [(item.partition_index, item) for item in topic.partitions]) for topic in request.topics]
    most = limit_of("Offsets/ListOffsets", "partitions")
    results = await _of_led(call, named, message, ask, failed, most, DESCRIBE)
    return {"topics": [{"name": name, "partitions": found} for (name, _), found in zip(named, results, strict=True)]}


async def offset_for_leader_epoch(call: Call, request: Message) -> Fields:
    """OffsetForLeaderEpoch (KIP-101, KIP-320)."""

    def failed(partition: int, code: int, _text: str) -> Fields:
        return {"partition": partition, "error_code": code}

    async def ask(asked: list[_Asked]) -> list[Fields]:
        answer = await call.own(
            offsets_pb2_grpc.OffsetsStub,
            "OffsetForLeaderEpoch",
            offsets_pb2.OffsetForLeaderEpochRequest(partitions=[each.message for each in asked]),
            call.settings.request_timeout_ms,
        )
        return [
            {
                "partition": found.partition,
                "error_code": kafkas(found.error.code),
                "leader_epoch": -1 if found.error.code else found.leader_epoch,
                "end_offset": -1 if found.error.code else found.end_offset,
            }
            for found in answer.results
        ]

    def message(topic: str, item: Message) -> Any:
        return offsets_pb2.OffsetForLeaderEpochPartition(
            topic=topic,
            partition=item.partition,
            leader_epoch=item.leader_epoch,
            current_leader_epoch=item.current_leader_epoch,
        )

    named = [(topic.topic, [(item.partition, item) for item in topic.partitions]) for topic in request.topics]
    most = limit_of("Offsets/OffsetForLeaderEpoch", "partitions")
    operation = None if call.sees(CLUSTER_ACTION, CLUSTER, CLUSTER_NAME) else DESCRIBE
    results = await _of_led(call, named, message, ask, failed, most, operation)
    return {"topics": [{"topic": name, "partitions": found} for (name, _), found in zip(named, results, strict=True)]}


async def delete_records(call: Call, request: Message) -> Fields:
    """DeleteRecords (KIP-107)."""

    def failed(partition: int, code: int, _text: str) -> Fields:
        return {"partition_index": partition, "low_watermark": -1, "error_code": code}

    timeout_ms = max(request.timeout, 0)

    async def ask(asked: list[_Asked]) -> list[Fields]:
        answer = await call.own(
            offsets_pb2_grpc.OffsetsStub,
            "DeleteRecords",
            offsets_pb2.DeleteRecordsRequest(partitions=[each.message for each in asked], timeout_ms=timeout_ms),
            timeout_ms + call.settings.request_timeout_ms,
        )
        return [
            {
                "partition_index": found.partition,
                "low_watermark": -1 if found.error.code else found.low_watermark,
                "error_code": kafkas(found.error.code),
            }
            for found in answer.results
        ]

    def message(topic: str, item: Message) -> Any:
        return offsets_pb2.DeleteRecordsPartition(
            topic=topic, partition=item.partition_index, before_offset=item.offset
        )

    named = [(topic.name, [(item.partition_index, item) for item in topic.partitions]) for topic in request.topics]
    most = limit_of("Offsets/DeleteRecords", "partitions")
    results = await _of_led(call, named, message, ask, failed, most, DELETE)
    return {"topics": [{"name": name, "partitions": found} for (name, _), found in zip(named, results, strict=True)]}


async def describe_producers(call: Call, request: Message) -> Fields:
    """DescribeProducers (KIP-664)."""

    def failed(partition: int, code: int, text: str) -> Fields:
        return {"partition_index": partition, "error_code": code, "error_message": text}

    async def ask(asked: list[_Asked]) -> list[Fields]:
        answer = await call.own(
            transactions_pb2_grpc.ProducersStub,
            "DescribeProducers",
            transactions_pb2.DescribeProducersRequest(partitions=[each.message for each in asked]),
            call.settings.request_timeout_ms,
        )
        return [
            {
                "partition_index": found.partition,
                "error_code": kafkas(found.error.code),
                "error_message": found.error.message if found.error.code else None,
                "active_producers": [
                    {
                        "producer_id": each.producer_id,
                        "producer_epoch": each.producer_epoch,
                        "last_sequence": each.last_sequence,
                        "last_timestamp": each.last_timestamp_ms,
                        "coordinator_epoch": each.coordinator_epoch,
                        "current_txn_start_offset": each.transaction_start_offset
                        if each.HasField("transaction_start_offset")
                        else -1,
                    }
                    for each in found.producers
                ],
            }
            for found in answer.partitions
        ]

    def message(topic: str, item: int) -> Any:
        return groups_pb2.PartitionName(topic=topic, partition=item)

    named = [
        (topic.name, [(item, item) for item in dict.fromkeys(topic.partition_indexes)]) for topic in request.topics
    ]
    most = limit_of("Producers/DescribeProducers", "partitions")
    results = await _of_led(call, named, message, ask, failed, most, READ)
    return {"topics": [{"name": name, "partitions": found} for (name, _), found in zip(named, results, strict=True)]}


async def _of_led(
    call: Call,
    named: list[tuple[str, list[tuple[int, Any]]]],
    message: Callable[[str, Any], Any],
    ask: Callable[[list[_Asked]], Any],
    failed: Failed,
    most: int,
    operation: Operation | None,
) -> list[list[Fields]]:
    """Ask for the partitions that this broker leads. Returns the answer's fields for the partitions of each topic, in
    the request's order.

    ``named``: pairs of a topic and its list of (partition, item). ``message(topic, item)`` returns the message for the
    partition, or the answer's fields if the log need not be asked; it may raise HeadraceError. ``most``: maximum number
    of partitions in one request. ``operation``: the operation that the client needs on each topic.
    """
    results: list[list[Fields]] = [[{} for _ in items] for _, items in named]
    led: list[_Asked] = []
    async with Turns(sum(len(items) for _, items in named)) as turns:
        for topic_at, (topic, items) in enumerate(named):
            hidden = None
            if operation is not None and not call.allows(operation, TOPIC, topic):
                hidden = call.refusal(operation, TOPIC, topic)
            for at, (partition, item) in enumerate(items):
                if turns.is_over():
                    await turns.next()
                try:
                    if hidden is not None:
                        raise hidden
                    _check_leads(call, topic, partition)
                    made = message(topic, item)
                except HeadraceError as error:
                    results[topic_at][at] = failed(partition, number(error), str(error))
                    continue
                if isinstance(made, dict):
                    results[topic_at][at] = made
                else:
                    led.append(_Asked(topic, partition, made, topic_at, at))

    for page in pages(led, most) if led else ():
        asked = list(page)
        found: Iterable[Fields]
        try:
            found = await ask(asked)
        except HeadraceError as error:
            found = [failed(each.partition, number(error), str(error)) for each in asked]
        for each, fields in zip(asked, found, strict=True):
            results[each.topic_at][each.at] = fields
    return results


def _check_leads(call: Call, topic: str, partition: int) -> None:
    found = call.cluster.topic(topic)
    if found is None or not 0 <= partition < len(found.partitions):
        raise UnknownTopicOrPartitionError(f"partition {topic}-{partition} does not exist")
    leader = found.partitions[partition].leader
    if leader < 0:
        raise LeaderNotAvailableError(f"partition {topic}-{partition} has no leader")
    if leader != call.cluster.broker_id:
        raise NotLeaderOrFollowerError(f"broker {call.cluster.broker_id} does not lead {topic}-{partition}")
