"""Replicas: ElectLeaders, reassignments, log directories."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import ClusterAuthorizationFailedError, HeadraceError, InvalidRequestError
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc

from ..access import CLUSTER, CLUSTER_NAME, DESCRIBE
from ..call import Call
from ..errors import NONE, kafkas, number
from ..wire.schema import Message
from .topics import change

Fields = dict[str, Any]

_ELECTION_NOT_NEEDED = 84
#: Maps Kafka's numbers of election types to Headrace's.
_ELECTION_TYPES = {0: admin_pb2.ELECTION_TYPE_PREFERRED, 1: admin_pb2.ELECTION_TYPE_UNCLEAN}


async def elect_leaders(call: Call, request: Message) -> Fields:
    """Elect preferred leaders (KIP-183) or unclean leaders (KIP-460). If the request is for all partitions, the answer
    omits partitions that needed no election. If the whole request fails, each named partition gets the error, because
    an answer of version 0 has no other error code."""
    try:
        call.require_cluster()
        return await _elect(call, request)
    except HeadraceError as error:
        refused = {"error_code": number(error), "error_message": str(error)}
        return {
            "error_code": number(error),
            "replica_election_results": [
                {
                    "topic": topic.topic,
                    "partition_result": [{"partition_id": index, **refused} for index in topic.partitions],
                }
                for topic in request.topic_partitions or ()
            ],
        }


async def _elect(call: Call, request: Message) -> Fields:
    election_type = _ELECTION_TYPES.get(request.election_type)
    if election_type is None:
        raise InvalidRequestError(f"election type {request.election_type}: must be 0 (preferred) or 1 (unclean)")
    asked = admin_pb2.ElectLeadersRequest(
        election_type=election_type,
        all_partitions=request.topic_partitions is None,
    )
    for topic in request.topic_partitions or ():
        if topic.partitions:
            asked.partitions.add(topic=topic.topic, partitions=topic.partitions)
    if not (asked.all_partitions or asked.partitions):
        return {"error_code": NONE, "replica_election_results": []}
    answer = await change(call, "ElectLeaders", asked, request.timeout)
    topics: dict[str, list[Fields]] = {}
    for found in answer.results:
        code = kafkas(found.error.code)
        if asked.all_partitions and code == _ELECTION_NOT_NEEDED:
            continue
        topics.setdefault(found.topic, []).append(
            {
                "partition_id": found.partition,
                "error_code": code,
                "error_message": found.error.message if code else None,
            }
        )
    return {
        "error_code": NONE,
        "replica_election_results": [
            {"topic": topic, "partition_result": results} for topic, results in topics.items()
        ],
    }


async def alter_partition_reassignments(call: Call, request: Message) -> Fields:
    """Begin or cancel reassignments (KIP-455)."""
    try:
        call.require_cluster()
    except HeadraceError as error:
        refused = {"error_code": number(error), "error_message": str(error)}
        return {
            **refused,
            "responses": [
                {
                    "name": topic.name,
                    "partitions": [{"partition_index": each.partition_index, **refused} for each in topic.partitions],
                }
                for topic in request.topics
            ],
        }
    asked = admin_pb2.AlterPartitionReassignmentsRequest(
        keep_replication_factor=not request.allow_replication_factor_change
    )
    for topic in request.topics:
        for item in topic.partitions:
            asked.reassignments.add(
                topic=topic.name,
                partition=item.partition_index,
                replicas=item.replicas or (),
                cancel=item.replicas is None,
            )
    answer = await change(call, "AlterPartitionReassignments", asked, request.timeout)
    found = {(result.topic, result.partition): result.error for result in answer.results}
    return {
        "error_code": NONE,
        "allow_replication_factor_change": request.allow_replication_factor_change,
        "responses": [
            {
                "name": topic.name,
                "partitions": [
                    _outcome(item.partition_index, found.get((topic.name, item.partition_index)))
                    for item in topic.partitions
                ],
            }
            for topic in request.topics
        ],
    }


def _outcome(partition: int, error: Any) -> Fields:
    code = kafkas(error.code) if error is not None else NONE
    return {"partition_index": partition, "error_code": code, "error_message": error.message if code else None}


async def list_partition_reassignments(call: Call, request: Message) -> Fields:
    call.require_cluster()
    timeout_ms = request.timeout if request.timeout > 0 else call.settings.request_timeout_ms
    asked = admin_pb2.ListPartitionReassignmentsRequest(timeout_ms=timeout_ms)
    for topic in request.topics or ():
        asked.partitions.add(topic=topic.name, partitions=topic.partition_indexes)
    topics: dict[str, list[Fields]] = {}
    if request.topics is None or request.topics:
        answer = await call.own(admin_pb2_grpc.AdminStub, "ListPartitionReassignments", asked, timeout_ms)
        for found in answer.reassignments:
            topics.setdefault(found.topic, []).append(
                {
                    "partition_index": found.partition,
                    "replicas": list(found.replicas),
                    "adding_replicas": list(found.adding_replicas),
                    "removing_replicas": list(found.removing_replicas),
                }
            )
    return {
        "error_code": NONE,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }


async def describe_log_dirs(call: Call, request: Message) -> Fields:
    """The directories of this broker. A client that is not authorized to describe the cluster
    gets no directory, and an error from version 3 on."""
    if not call.allows(DESCRIBE, CLUSTER, CLUSTER_NAME):
        return {"error_code": ClusterAuthorizationFailedError.number, "results": []}
    asked = admin_pb2.DescribeLogDirsRequest()
    for topic in request.topics or ():
        asked.topics.add(topic=topic.topic, partitions=topic.partitions)
    answer = await call.own(admin_pb2_grpc.AdminStub, "DescribeLogDirs", asked, call.settings.request_timeout_ms)
    results = []
    for directory in answer.directories:
        topics: dict[str, list[Fields]] = {}
        for partition in directory.partitions if request.topics is None or request.topics else ():
            topics.setdefault(partition.topic, []).append(
                {
                    "partition_index": partition.partition,
                    "partition_size": partition.size_bytes,
                    "offset_lag": partition.offset_lag,
                    "is_future_key": partition.is_future,
                }
            )
        results.append(
            {
                "error_code": kafkas(directory.error.code),
                "log_dir": directory.path,
                "total_bytes": directory.total_bytes,
                "usable_bytes": directory.usable_bytes,
                "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
            }
        )
    return {"error_code": NONE, "results": results}


async def alter_replica_log_dirs(call: Call, request: Message) -> Fields:
    """Move replicas of this broker to other directories (KIP-113)."""
    asked = admin_pb2.AlterReplicaLogDirsRequest()
    named: dict[str, list[int]] = {}
    for directory in request.dirs:
        wanted = asked.directories.add(path=directory.path)
        for topic in directory.topics:
            wanted.topics.add(topic=topic.name, partitions=topic.partitions)
            named.setdefault(topic.name, []).extend(topic.partitions)
    codes: dict[tuple[str, int], int] = {}
    refused = NONE
    try:
        call.require_cluster()
        answer = await call.own(
            admin_pb2_grpc.AdminStub, "AlterReplicaLogDirs", asked, call.settings.request_timeout_ms
        )
        codes = {(found.topic, found.partition): kafkas(found.error.code) for found in answer.results}
    except HeadraceError as error:
        refused = number(error)
    return {
        "results": [
            {
                "topic_name": name,
                "partitions": [
                    {"partition_index": partition, "error_code": codes.get((name, partition), refused)}
                    for partition in partitions
                ],
            }
            for name, partitions in named.items()
        ]
    }
