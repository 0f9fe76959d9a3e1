"""ConsumerGroupHeartbeat (KIP-848). The handler calls the unary gRPC method Groups.Heartbeat."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import HeadraceError, InvalidRequestError
from headrace_core.node.ids import id_to_text, random_id
from headrace_protos.v1 import groups_pb2, groups_pb2_grpc

from ..access import DESCRIBE, READ, TOPIC
from ..access import GROUP as GROUP_RESOURCE
from ..call import Call
from ..cluster import GROUP
from ..errors import of_coordinator
from ..wire.schema import Message

Fields = dict[str, Any]

JOIN_EPOCH = 0
_MEMBERS_CHOOSE_IDS = 1  #: First version of ConsumerGroupHeartbeat in which members choose their ids (KIP-1082).


async def consumer_group_heartbeat(call: Call, request: Message) -> Fields:
    call.require(READ, GROUP_RESOURCE, request.group_id)
    if not request.group_id:
        raise InvalidRequestError("the group id is empty: set group.id")
    for name in dict.fromkeys(request.subscribed_topic_names or ()):
        call.require(DESCRIBE, TOPIC, name)
    member_id = request.member_id
    if not member_id and request.member_epoch == JOIN_EPOCH and call.version < _MEMBERS_CHOOSE_IDS:
        member_id = id_to_text(random_id())
    heartbeat = groups_pb2.MemberHeartbeat(
        group_id=request.group_id,
        member_id=member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack=request.rack_id or None,
        rebalance_timeout_ms=max(request.rebalance_timeout, 0),
        topic_regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        client_id=call.client_id,
    )
    names = request.subscribed_topic_names
    if names is None and request.member_epoch == JOIN_EPOCH and request.subscribed_topic_regex:
        names = ()
    if names is not None:
        heartbeat.topics.names.extend(names)
        heartbeat.topics.SetInParent()
    if request.topic_partitions is not None and request.member_epoch != JOIN_EPOCH:
        heartbeat.owned.SetInParent()
        for topic in request.topic_partitions:
            heartbeat.owned.topics.add(topic_id=topic.topic_id, partitions=topic.partitions)
    try:
        answer = await call.coordinator(
            GROUP,
            request.group_id,
            groups_pb2_grpc.GroupsStub,
            "Heartbeat",
            groups_pb2.HeartbeatRequest(heartbeat=heartbeat, client_host=f"/{call.client.host}"),
            call.settings.request_timeout_ms,
        )
    except HeadraceError as error:
        return {"error_code": of_coordinator(error.number), "error_message": str(error), "member_id": member_id or None}
    if answer.error.code:
        return {
            "error_code": of_coordinator(answer.error.code),
            "error_message": answer.error.message,
            "member_id": member_id or None,
        }
    fields: Fields = {
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval": answer.heartbeat_interval_ms,
        "assignment": None,
    }
    if answer.HasField("assignment"):
        fields["assignment"] = {
            "topic_partitions": [
                {"topic_id": topic.topic_id, "partitions": list(topic.partitions)} for topic in answer.assignment.topics
            ]
        }
    return fields
