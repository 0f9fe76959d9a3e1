"""Answers about several items: what they leave out for a caller that may not see all of them."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace_core.metadata.records import AclRecord
from headrace_core.metadata.security import SecurityImage
from headrace_core.security.access import Access
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.authorization import authorization_of
from headrace_core.security.caller import Caller
from headrace_core.security.principal import Principal
from headrace_core.security.rules import access_of
from headrace_core.security.shapes import SHAPES
from headrace_protos.v1 import common_pb2, groups_pb2

KEYS = {"authorizer.class.name": "StandardAuthorizer"}
GROUP, TOPIC, TRANSACTIONAL_ID = ResourceType.GROUP, ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


def asked(method: str, request: Any, handler: Any, *describes: tuple[ResourceType, str]) -> Any:
    """The answer to User:alice, who may DESCRIBE these resources."""
    acls = {}
    for number, (kind, name) in enumerate(describes):
        key = number.to_bytes(16, "big")
        acls[key] = AclRecord(
            key, kind, name, PatternType.LITERAL, "User:alice", "*", Operation.DESCRIBE, Permission.ALLOW
        )
    image = SecurityImage(acls=acls)
    access = Access(Caller(Principal("User", "alice"), "10.0.0.1"), authorization_of(KEYS, lambda: image))
    found = access_of(f"/headrace.v1.{method}")
    assert found is not None

    async def answer(rest: Any) -> Any:
        return handler(rest)

    return asyncio.run(SHAPES[method](access, found, request, answer))


def test_a_group_shows_no_transactional_id_that_the_caller_may_not_describe() -> None:
    def handler(request: Any) -> Any:
        found = groups_pb2.DescribeGroupsResponse()
        group = found.groups.add(group_id="g")
        for name in ("own", "payroll"):
            group.pending_offsets.add(topic="orders", offset=3, transactional_id=name)
        return found

    request = groups_pb2.DescribeGroupsRequest(group_ids=["g"])
    rights = [(GROUP, "g"), (TOPIC, "orders"), (TRANSACTIONAL_ID, "own")]
    (group,) = asked("Groups/DescribeGroups", request, handler, *rights).groups
    assert [(each.transactional_id, each.offset) for each in group.pending_offsets] == [("own", 3), ("", 3)]


def test_offsets_of_refused_topics_are_never_asked_for() -> None:
    seen: list[Any] = []

    def handler(request: Any) -> Any:
        seen.append(request)
        found = groups_pb2.FetchOffsetsResponse()
        for group in request.groups:
            result = found.groups.add(group_id=group.group_id)
            for each in group.partitions.partitions:
                result.offsets.add(topic=each.topic, partition=each.partition, offset=7)
            if not group.HasField("partitions"):  # all offsets of the group
                result.offsets.add(topic="orders", offset=7)
                result.offsets.add(topic="payroll", offset=7)
        return found

    request = groups_pb2.FetchOffsetsRequest()
    for topics in (["payroll"], ["orders", "payroll"]):
        group = request.groups.add(group_id="g")
        for topic in topics:
            group.partitions.partitions.add(topic=topic)
    request.groups.add(group_id="g")
    request.groups.add(group_id="other")
    answer = asked("Groups/FetchOffsets", request, handler, (GROUP, "g"), (TOPIC, "orders"))
    assert [[each.topic for each in group.partitions.partitions] for group in seen[0].groups] == [[], ["orders"], []]
    assert [group.HasField("partitions") for group in seen[0].groups] == [True, True, False]
    assert [{each.topic: each.offset for each in group.offsets} for group in answer.groups] == [
        {"payroll": -1},
        {"orders": 7, "payroll": -1},
        {"orders": 7},
        {},
    ]
    assert answer.groups[3].error.code == common_pb2.ERROR_CODE_GROUP_AUTHORIZATION_FAILED
