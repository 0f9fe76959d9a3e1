"""Groups of both types: DescribeGroups, ConsumerGroupDescribe, ListGroups, DeleteGroups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeVar

from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    GroupIdNotFoundError,
    HeadraceError,
    InvalidGroupIdError,
    TopicAuthorizationFailedError,
)
from headrace_core.metadata.shards import address_of
from headrace_core.node.listeners import INTERNAL
from headrace_protos.v1 import groups_pb2, groups_pb2_grpc

from ..access import CLUSTER, CLUSTER_NAME, DELETE, DESCRIBE, TOPIC
from ..access import GROUP as GROUP_RESOURCE
from ..call import Call
from ..cluster import GROUP
from ..errors import NONE, kafkas, number
from ..upstream import when_loaded
from ..wire.schema import Message
from .operations import NOT_ASKED

Fields = dict[str, Any]
Key = TypeVar("Key")

CLASSIC, CONSUMER = "classic", "consumer"
_ERRORS_FOR_MISSING = 6  #: The version of DescribeGroups from which a missing group is an error (KIP-1043).
_MEMBER_TYPE_CLASSIC, _MEMBER_TYPE_CONSUMER = 0, 1
AT_ONCE = 16  #: Maximum number of concurrent requests to coordinators, each about one group.


def state_name(state: str) -> str:
    """Kafka's name of a group state, such as ``PreparingRebalance`` for preparing-rebalance."""
    return "".join(word.capitalize() for word in state.split("-"))


async def describe_groups(call: Call, request: Message) -> Fields:
    """Describe classic groups, and groups that have only committed offsets. ConsumerGroupDescribe describes groups of
    KIP-848."""

    def operations(group_id: str) -> int:
        asked = request.include_authorized_operations
        return call.access.operations(GROUP_RESOURCE, group_id) if asked else NOT_ASKED

    def missing(group_id: str, text: str) -> Fields:
        if call.version >= _ERRORS_FOR_MISSING:
            return failed(group_id, GroupIdNotFoundError.number, text) | {"group_state": "Dead"}
        return {"group_id": group_id, "group_state": "Dead", "authorized_operations": operations(group_id)}

    def described(group: Any) -> Fields:
        if group.type == CONSUMER:
            return missing(group.group_id, f"Group {group.group_id} is not a classic group.")
        return {
            "group_id": group.group_id,
            "group_state": state_name(group.state),
            "protocol_type": group.protocol_type,
            "protocol_data": group.protocol,
            "authorized_operations": operations(group.group_id),
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id if member.HasField("instance_id") else None,
                    "client_id": member.client_id,
                    "client_host": member.host,
                    "member_metadata": member.metadata,
                    "member_assignment": member.assignment,
                }
                for member in group.members
            ],
        }

    def failed(group_id: str, code: int, text: str) -> Fields:
        return {"group_id": group_id, "error_code": code, "error_message": text,
                "authorized_operations": NOT_ASKED}  # fmt: skip

    def unknown(group_id: str, code: int, text: str) -> Fields:
        if code == GroupIdNotFoundError.number:
            return missing(group_id, f"Group {group_id} not found.")
        return failed(group_id, code, text)

    return {"groups": await _described(call, request.groups, described, unknown)}


async def consumer_group_describe(call: Call, request: Message) -> Fields:
    """Describe groups of KIP-848 (ConsumerGroupDescribe)."""

    def described(group: Any) -> Fields:
        if not group.group_id:
            return failed("", InvalidGroupIdError.number, "The group id is empty.")
        if group.type != CONSUMER:
            text = f"Group {group.group_id} is not a consumer group."
            return failed(group.group_id, GroupIdNotFoundError.number, text)
        for topic in {
            each.topic for member in group.members for each in (*member.assigned.topics, *member.target.topics)
        }:
            if not call.allows(DESCRIBE, TOPIC, topic):
                text = "The group has topics that the client is not authorized to describe."
                return failed(group.group_id, TopicAuthorizationFailedError.number, text)
        return {
            "group_id": group.group_id,
            "group_state": state_name(group.state),
            "group_epoch": group.group_epoch,
            "assignment_epoch": group.assignment_epoch,
            "assignor_name": group.assignor,
            "authorized_operations": call.access.operations(GROUP_RESOURCE, group.group_id)
            if request.include_authorized_operations
            else NOT_ASKED,
            "members": [
                {
                    "member_id": member.member_id,
                    "instance_id": member.instance_id if member.HasField("instance_id") else None,
                    "rack_id": member.rack if member.HasField("rack") else None,
                    "member_epoch": member.member_epoch,
                    "client_id": member.client_id,
                    "client_host": member.host,
                    "subscribed_topic_names": list(member.topics),
                    "subscribed_topic_regex": member.topic_regex or None,
                    "assignment": _assignment(member.assigned),
                    "target_assignment": _assignment(member.target),
                    "member_type": _MEMBER_TYPE_CLASSIC if member.is_classic else _MEMBER_TYPE_CONSUMER,
                }
                for member in group.members
            ],
        }

    def failed(group_id: str, code: int, text: str) -> Fields:
        return {"group_id": group_id, "error_code": code, "error_message": text,
                "authorized_operations": NOT_ASKED}  # fmt: skip

    return {"groups": await _described(call, request.group_ids, described, failed)}


def _assignment(partitions: Any) -> Fields:
    return {
        "topic_partitions": [
            {"topic_id": topic.topic_id, "topic_name": topic.topic, "partitions": list(topic.partitions)}
            for topic in partitions.topics
        ]
    }


async def _described(
    call: Call,
    group_ids: list[str],
    described: Callable[[Any], Fields],
    failed: Callable[[str, int, str], Fields],
) -> list[Fields]:
    async def one(group_id: str) -> Fields:
        if not call.allows(DESCRIBE, GROUP_RESOURCE, group_id):
            error = call.refusal(DESCRIBE, GROUP_RESOURCE, group_id)
            return failed(group_id, error.number, str(error))
        try:
            answer = await call.coordinator(
                GROUP,
                group_id,
                groups_pb2_grpc.GroupsStub,
                "DescribeGroups",
                groups_pb2.DescribeGroupsRequest(group_ids=[group_id]),
                call.settings.request_timeout_ms,
            )
        except HeadraceError as error:
            return failed(group_id, number(error), str(error))
        (group,) = answer.groups
        if group.error.code:
            return failed(group_id, kafkas(group.error.code), group.error.message)
        return described(group)

    return await few_at_once(group_ids, one)


async def few_at_once(keys: Collection[Key], one: Callable[[Key], Awaitable[Fields]]) -> list[Fields]:
    """Call ``one`` for every key, at most AT_ONCE at a time; return the results in the order of the keys. A few tasks
    share the keys, because a request may name very many keys."""
    left = enumerate(keys)
    found: dict[int, Fields] = {}

    async def work() -> None:
        for at, key in left:
            found[at] = await one(key)

    await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(keys)))))
    return [found[at] for at in range(len(found))]


async def list_groups(call: Call, request: Message) -> Fields:
    """List the groups of all coordinators for which ``is_listed`` is True. A client that is not authorized to describe
    the cluster gets only the groups that it is authorized to describe. The call fails if any coordinator does not
    answer, so that the list omits no group silently."""
    sees_all = call.sees(DESCRIBE, CLUSTER, CLUSTER_NAME)
    states = {state.lower() for state in request.states_filter}
    types = {each.lower() for each in request.types_filter}
    groups = []
    for answer in await ask_coordinators(
        call, groups_pb2_grpc.GroupsStub, "ListGroups", groups_pb2.ListGroupsRequest()
    ):
        if answer.loading_shards:
            raise CoordinatorLoadInProgressError("a coordinator is still loading groups; retry")
        for group in answer.groups:
            if not is_listed(call, GROUP, group.group_id):
                continue
            if not sees_all and not call.sees(DESCRIBE, GROUP_RESOURCE, group.group_id):
                continue
            name = state_name(group.state)
            if (states and name.lower() not in states) or (types and group.type not in types):
                continue
            groups.append(
                {
                    "group_id": group.group_id,
                    "protocol_type": group.protocol_type,
                    "group_state": name,
                    "group_type": group.type,
                }
            )
    return {"error_code": NONE, "groups": groups}


def is_listed(call: Call, kind: str, key: str) -> bool:
    """Whether this broker's answer lists a group or a transactional id. A client asks every broker and merges the
    lists: a broker lists only the keys for which it is the coordinator that clients get."""
    return call.cluster.coordinator_node(call.client.listener, kind, key).broker_id == call.cluster.broker_id


async def ask_coordinators(call: Call, stub: Any, method: str, request: Any) -> list[Any]:
    """Call every coordinator, and repeat the calls while a coordinator is loading shards (``when_loaded``). Raises the
    first error."""
    deadline = time.monotonic() + call.settings.request_timeout_ms / 1_000

    async def ask() -> list[Any]:
        return await asyncio.gather(
            *(
                call.upstream.call(call.client, address_of(each, INTERNAL), stub, method, request, deadline)
                for each in call.cluster.image.ledger.coordinators.values()
            )
        )

    return list(await when_loaded(ask, lambda answers: any(answer.loading_shards for answer in answers)))


async def delete_groups(call: Call, request: Message) -> Fields:
    async def one(group_id: str) -> Fields:
        try:
            call.require(DELETE, GROUP_RESOURCE, group_id)
            answer = await call.coordinator(
                GROUP,
                group_id,
                groups_pb2_grpc.GroupsStub,
                "DeleteGroups",
                groups_pb2.DeleteGroupsRequest(group_ids=[group_id]),
                call.settings.request_timeout_ms,
            )
        except HeadraceError as error:
            return {"group_id": group_id, "error_code": number(error)}
        return {"group_id": group_id, "error_code": kafkas(answer.results[0].error.code)}

    return {"results": await few_at_once(dict.fromkeys(request.groups_names), one)}
