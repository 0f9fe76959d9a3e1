"""Answers about several items: what they leave out for a caller that may not see all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from headrace_core.errors import GroupAuthorizationFailedError, HeadraceError, TopicAuthorizationFailedError
from headrace_core.metadata.records import AclRecord
from headrace_core.metadata.security import SecurityImage
from headrace_core.security.access import Access
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.authorization import authorization_of
from headrace_core.security.caller import Caller
from headrace_core.security.principal import Principal
from headrace_core.security.rules import access_of
from headrace_core.security.shapes import SHAPES
from headrace_protos.v1 import common_pb2, groups_pb2, transactions_pb2

KEYS = {"authorizer.class.name": "StandardAuthorizer"}
GROUP, TOPIC, TRANSACTIONAL_ID = ResourceType.GROUP, ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID


def asked(
    method: str,
    request: Any,
    handler: Any,
    *describes: tuple[ResourceType, str],
    rights: Sequence[tuple[Operation, ResourceType, str]] = (),
) -> Any:
    """The answer to User:alice, who may DESCRIBE these resources, and has these further rights."""
    acls = {}
    all_rights = [*((Operation.DESCRIBE, *each) for each in describes), *rights]
    for number, (operation, kind, name) in enumerate(all_rights):
        key = number.to_bytes(16, "big")
        acls[key] = AclRecord(key, kind, name, PatternType.LITERAL, "User:alice", "*", operation, Permission.ALLOW)
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


def test_a_transaction_with_offsets_of_a_hidden_topic_hides_only_these_offsets() -> None:
    """Kafka describes a group to a client with DESCRIBE on the group, with or without open transactions."""

    def handler(request: Any) -> Any:
        found = groups_pb2.DescribeGroupsResponse()
        for group_id, assigned in (("g", "orders"), ("hidden", "payroll")):
            group = found.groups.add(group_id=group_id)
            group.members.add(member_id="m").assigned.topics.add(topic=assigned)
            for topic in ("payroll", "orders"):
                group.pending_offsets.add(topic=topic, offset=3)
        return found

    request = groups_pb2.DescribeGroupsRequest(group_ids=["g", "hidden"])
    rights = [(GROUP, "g"), (GROUP, "hidden"), (TOPIC, "orders")]
    seen, refused = asked("Groups/DescribeGroups", request, handler, *rights).groups
    assert [each.topic for each in seen.pending_offsets] == ["orders"]
    assert (len(seen.members), seen.error.code) == (1, 0)
    assert refused.error.code == common_pb2.ERROR_CODE_TOPIC_AUTHORIZATION_FAILED
    assert not refused.members
    assert not refused.pending_offsets


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


def test_a_producer_adds_offsets_of_a_group_to_its_transaction_without_a_right_on_the_internal_topic() -> None:
    """Kafka's AddOffsetsToTxn needs WRITE on the transactional id and READ on the group, and no right on a topic."""
    write, read = (Operation.WRITE, TOPIC, "orders"), (Operation.READ, GROUP, "g")

    def added(topics: Sequence[str], *rights: tuple[Operation, ResourceType, str]) -> list[Any]:
        request = transactions_pb2.AddTransactionPartitionsRequest(
            transactional_id="copy", partitions=[groups_pb2.PartitionName(topic=topic) for topic in topics]
        )
        seen: list[Any] = []
        asked("Transactions/AddTransactionPartitions", request, seen.append, rights=rights)
        return [each.topic for each in seen[0].partitions]

    both = ["__consumer_offsets", "orders"]
    assert added(both[:1], read) == both[:1]
    assert added(both, read, write) == both
    cases: list[tuple[type[HeadraceError], list[str], list[tuple[Operation, ResourceType, str]]]] = [
        (GroupAuthorizationFailedError, both[:1], [write]),
        (TopicAuthorizationFailedError, both, [read]),
        (TopicAuthorizationFailedError, ["orders", "payroll"], [read, write]),
        (TopicAuthorizationFailedError, ["__transaction_state"], [read, write]),
    ]
    for error, topics, rights in cases:
        with pytest.raises(error):
            added(topics, *rights)


def test_pages_of_hidden_transactional_ids_are_skipped() -> None:
    """A client asks for the next page by the last id that it has got, so a page of hidden ids would be its last."""
    ids = ["a1", "a2", "a3", "b1", "b2", "z1", "z2"]

    def handler(request: Any) -> Any:
        found = [each for each in ids if each > request.after]
        answer = transactions_pb2.ListTransactionsResponse(
            has_more=len(found) > 2, loading_shards=int(not request.after)
        )
        for each in found[:2]:
            answer.transactions.add(transactional_id=each)
        return answer

    def listed(*visible: str) -> list[tuple[list[str], bool]]:
        pages: list[tuple[list[str], bool]] = []
        request = transactions_pb2.ListTransactionsRequest()
        while len(pages) < len(ids) and (not pages or pages[-1][1]):
            rights = [(TRANSACTIONAL_ID, each) for each in visible]
            answer = asked("Transactions/ListTransactions", request, handler, *rights)
            assert answer.loading_shards == (not request.after)
            pages.append(([each.transactional_id for each in answer.transactions], answer.has_more))
            request.after = pages[-1][0][-1] if pages[-1][0] else ""
        return pages

    assert listed("b2") == [(["b2"], True), ([], False)]
    assert listed("a1", "z2") == [(["a1"], True), (["z2"], False)]
    assert listed() == [([], False)]
