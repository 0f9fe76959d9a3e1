"""Classic groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup. The coordinator makes all decisions; JoinGroup and
SyncGroup requests wait at the coordinator."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    GroupAuthorizationFailedError,
    HeadraceError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from headrace_core.item_errors import error_to_proto
from headrace_protos.v1 import groups_pb2, groups_pb2_grpc

from ..access import GROUP as GROUP_RESOURCE
from ..access import READ
from ..call import Call
from ..cluster import GROUP
from ..errors import NONE, kafkas, of_coordinator
from ..wire.schema import Message

Fields = dict[str, Any]

#: JoinGroup has KIP-394 (a member joins with a known id) from version 4 on, and KIP-814 (skip_assignment) from version
#: 9 on.
_KNOWN_ID_VERSION, _SKIP_VERSION = 4, 9
_LEAVE_MANY_VERSION = 3
#: Milliseconds that JoinGroup or SyncGroup may take beyond the member's own rebalance timeout, because other members
#: may have a longer timeout. A client that stops waiting earlier closes its connection, which ends the call.
_WAIT_MS = 300_000


async def join_group(call: Call, request: Message) -> Fields:
    if not call.allows(READ, GROUP_RESOURCE, request.group_id):
        return {"error_code": GroupAuthorizationFailedError.number, "generation_id": -1}
    asked = groups_pb2.JoinGroupRequest(
        group_id=request.group_id,
        session_timeout_ms=request.session_timeout,
        rebalance_timeout_ms=request.rebalance_timeout if call.version >= 1 else -1,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        reason=request.reason or "",
        client_id=call.client_id,
        client_host=f"/{call.client.host}",
        require_known_member_id=call.version >= _KNOWN_ID_VERSION,
        supports_skipping_assignment=call.version >= _SKIP_VERSION,
    )
    for protocol in request.protocols:
        asked.protocols.add(name=protocol.name, metadata=protocol.metadata)
    timeout_ms = max(request.rebalance_timeout, request.session_timeout, 0) + _WAIT_MS
    try:
        answer = await call.coordinator(
            GROUP, request.group_id, groups_pb2_grpc.GroupsStub, "JoinGroup", asked, timeout_ms
        )
    except HeadraceError as error:
        return {"error_code": of_coordinator(error.number), "generation_id": -1, "member_id": request.member_id}
    return {
        "error_code": of_coordinator(answer.error.code),
        "generation_id": answer.generation_id,
        "protocol_type": answer.protocol_type or None,
        "protocol_name": answer.protocol_name or None,
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": _given(member, "group_instance_id"),
                "metadata": member.metadata,
            }
            for member in answer.members
        ],
    }


async def sync_group(call: Call, request: Message) -> Fields:
    call.require(READ, GROUP_RESOURCE, request.group_id)
    asked = groups_pb2.SyncGroupRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
    )
    for each in request.assignments:
        asked.assignments.add(member_id=each.member_id, assignment=each.assignment)
    try:
        answer = await call.coordinator(
            GROUP, request.group_id, groups_pb2_grpc.GroupsStub, "SyncGroup", asked, _WAIT_MS
        )
    except HeadraceError as error:
        answer = groups_pb2.SyncGroupResponse(error=error_to_proto(error))
    code = of_coordinator(answer.error.code)
    return {
        # While the group is loaded, the member joins again, as in Kafka: clients do not expect the number itself.
        "error_code": RebalanceInProgressError.number if code == CoordinatorLoadInProgressError.number else code,
        "protocol_type": answer.protocol_type or None,
        "protocol_name": answer.protocol_name or None,
        "assignment": answer.assignment,
    }


async def heartbeat(call: Call, request: Message) -> Fields:
    call.require(READ, GROUP_RESOURCE, request.group_id)
    asked = groups_pb2.ClassicHeartbeatRequest(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
    )
    try:
        answer = await call.coordinator(
            GROUP,
            request.group_id,
            groups_pb2_grpc.GroupsStub,
            "ClassicHeartbeat",
            asked,
            call.settings.request_timeout_ms,
        )
    except HeadraceError as error:
        answer = groups_pb2.ClassicHeartbeatResponse(error=error_to_proto(error))
    code = of_coordinator(answer.error.code)
    # While the group is loaded, each heartbeat succeeds, as in Kafka: clients do not expect the number itself.
    return {"error_code": NONE if code == CoordinatorLoadInProgressError.number else code}


async def leave_group(call: Call, request: Message) -> Fields:
    call.require(READ, GROUP_RESOURCE, request.group_id)
    asked = groups_pb2.LeaveGroupRequest(group_id=request.group_id)
    if call.version < _LEAVE_MANY_VERSION:
        asked.members.add(member_id=request.member_id)
    for member in request.members if call.version >= _LEAVE_MANY_VERSION else ():
        asked.members.add(
            member_id=member.member_id, group_instance_id=member.group_instance_id, reason=member.reason or ""
        )
    answer = await call.coordinator(
        GROUP, request.group_id, groups_pb2_grpc.GroupsStub, "LeaveGroup", asked, call.settings.request_timeout_ms
    )
    if call.version < _LEAVE_MANY_VERSION:
        codes = [answer.error.code, *(member.error.code for member in answer.members)]
        return {"error_code": kafkas(next((code for code in codes if code), 0))}
    # the error of the whole group, which Kafka repeats for each member
    if answer.error.code == UnknownMemberIdError.number:
        return {
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.group_instance_id,
                    "error_code": UnknownMemberIdError.number,
                }
                for member in request.members
            ]
        }
    return {
        "error_code": kafkas(answer.error.code),
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": _given(member, "group_instance_id"),
                "error_code": kafkas(member.error.code),
            }
            for member in answer.members
        ],
    }


def _given(message: Any, field: str) -> str | None:
    return getattr(message, field) if message.HasField(field) else None
