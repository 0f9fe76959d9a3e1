"""The quorum and the cluster's members: DescribeQuorum, UpdateFeatures, UnregisterBroker."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import InvalidUpdateVersionError, UnknownTopicOrPartitionError
from headrace_core.types import split_address
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc

from ..call import Call
from ..errors import NONE
from ..wire.schema import NO_UUID, Message
from .topics import change
from .versions import FEATURES

Fields = dict[str, Any]

METADATA_TOPIC = "__cluster_metadata"
_LISTENER = "CONTROLLER"


async def describe_quorum(call: Call, request: Message) -> Fields:
    """Describe the quorum of the metadata log (KIP-595, KIP-836), which has one topic with one partition."""
    call.require_cluster()
    timeout_ms = call.settings.request_timeout_ms
    topics = []
    nodes: list[Fields] = []
    for topic in request.topics:
        partitions = []
        for item in topic.partitions:
            if topic.topic_name != METADATA_TOPIC or item.partition_index != 0:
                unknown = UnknownTopicOrPartitionError.number
                partitions.append({"partition_index": item.partition_index, "error_code": unknown})
                continue
            answer = await call.own(
                admin_pb2_grpc.AdminStub,
                "DescribeQuorum",
                admin_pb2.DescribeQuorumRequest(timeout_ms=timeout_ms),
                timeout_ms,
            )
            observers = [_replica(each) for each in answer.observers]
            observers += [_broker(each) for each in answer.brokers]
            partitions.append(
                {
                    "partition_index": 0,
                    "error_code": NONE,
                    "leader_id": answer.leader_id,
                    "leader_epoch": answer.leader_epoch,
                    "high_watermark": answer.high_watermark,
                    "current_voters": [_replica(each) for each in answer.voters],
                    "observers": observers,
                }
            )
            nodes = [_node(each) for each in answer.voters if each.address]
        topics.append({"topic_name": topic.topic_name, "partitions": partitions})
    return {"error_code": NONE, "topics": topics, "nodes": nodes}


def _replica(replica: Any) -> Fields:
    return {
        "replica_id": replica.replica_id,
        "replica_directory_id": replica.directory_id or NO_UUID,
        "log_end_offset": replica.log_end_offset,
        "last_fetch_timestamp": replica.last_fetch_timestamp_ms,
        "last_caught_up_timestamp": replica.last_caught_up_timestamp_ms,
    }


def _broker(broker: Any) -> Fields:
    """The answer's fields for a broker; a broker is an observer of the quorum, because it follows the metadata log."""
    return {
        "replica_id": broker.broker_id,
        "log_end_offset": broker.metadata_offset,
        "last_fetch_timestamp": broker.last_heartbeat_timestamp_ms,
        "last_caught_up_timestamp": -1,
    }


def _node(voter: Any) -> Fields:
    host, port = split_address(voter.address)
    return {"node_id": voter.replica_id, "listeners": [{"name": _LISTENER, "host": host, "port": port}]}


async def update_features(call: Call, request: Message) -> Fields:
    """The levels of Kafka's features are fixed in each Headrace release: a change to the current level succeeds, and
    any other change fails. The command ``headrace features`` changes the levels of Headrace's own features."""
    call.require_cluster()
    levels = {feature.name: feature.high for feature in FEATURES}
    results: list[Fields] = []
    refusal = ""
    for update in request.feature_updates:
        known = levels.get(update.feature)
        text = ""
        if known is None:
            text = f"The feature {update.feature} is unknown; known are {', '.join(sorted(levels))}."
        elif update.max_version_level != known:
            text = (
                f"{update.feature} has level {known} in this release and cannot become {update.max_version_level}; "
                "see headrace features."
            )
        code = InvalidUpdateVersionError.number if text else NONE
        results.append({"feature": update.feature, "error_code": code, "error_message": text or None})
        refusal = refusal or text
    if refusal:
        return {
            "error_code": InvalidUpdateVersionError.number,
            "error_message": f"The update failed for all features since the following feature had an error: {refusal}",
            "results": results,
        }
    return {"error_code": NONE, "results": results}


async def unregister_broker(call: Call, request: Message) -> Fields:
    call.require_cluster()
    timeout_ms = call.settings.request_timeout_ms
    asked = admin_pb2.UnregisterBrokerRequest(broker_id=request.broker_id, timeout_ms=timeout_ms)
    await change(call, "UnregisterBroker", asked, timeout_ms)
    return {"error_code": NONE}
