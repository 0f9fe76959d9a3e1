"""Committed offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from typing import Any

from headrace_core.errors import (
    GroupAuthorizationFailedError,
    GroupIdNotFoundError,
    HeadraceError,
    IllegalGenerationError,
    StaleMemberEpochError,
    TopicAuthorizationFailedError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.rpc.limits import PARTITIONS_MAX, pages
from headrace_protos.v1 import groups_pb2, groups_pb2_grpc

from ..access import DELETE, DESCRIBE, READ, TOPIC
from ..access import GROUP as GROUP_RESOURCE
from ..call import Call
from ..cluster import GROUP
from ..errors import NONE, kafkas, of_coordinator
from ..wire.schema import Message
from .describe_groups import few_at_once

Fields = dict[str, Any]

_BY_ID = 10  #: The version from which OffsetCommit and OffsetFetch name topics by their ids (KIP-848, KIP-1086).
_MEMBER_EPOCHS = 9  #: The version of OffsetCommit and OffsetFetch from which clients know member epochs (KIP-848).
_TOP_LEVEL_ERRORS = 2  #: The version of OffsetFetch from which an answer has a top-level error code.
_MANY_GROUPS = 8  #: The version from which OffsetFetch asks about several groups (KIP-709).
_UNKNOWN_ID = UnknownTopicIdError("no topic has the requested topic id")


async def offset_commit(call: Call, request: Message) -> Fields:
    by_id = call.version >= _BY_ID
    topics: list[tuple[Fields, list[Fields]]] = []
    offsets: list[tuple[Fields, str, Message, bytes]] = []
    may_commit = call.allows(READ, GROUP_RESOURCE, request.group_id)
    for topic in request.topics:
        results: list[Fields] = []
        topics.append(({"topic_id": topic.topic_id} if by_id else {"name": topic.name}, results))
        found = call.cluster.topic_by_id(topic.topic_id) if by_id else None
        name = found.name if found is not None else topic.name
        refused = NONE
        if not may_commit:
            refused = GroupAuthorizationFailedError.number
        elif by_id and found is None:
            refused = _UNKNOWN_ID.number
        elif not call.allows(READ, TOPIC, name):
            refused = TopicAuthorizationFailedError.number
        for item in topic.partitions:
            result: Fields = {"partition_index": item.partition_index, "error_code": refused}
            results.append(result)
            if refused:
                continue
            offsets.append((result, name, item, topic.topic_id if by_id else b""))
    for page in pages(offsets, PARTITIONS_MAX) if offsets else ():
        asked = groups_pb2.CommitOffsetsRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.generation_id_or_member_epoch,
            instance_id=request.group_instance_id,
            offsets=[to_commit(name, item, topic_id) for _, name, item, topic_id in page],
        )
        try:
            answer = await call.coordinator(
                GROUP,
                request.group_id,
                groups_pb2_grpc.GroupsStub,
                "CommitOffsets",
                asked,
                call.settings.request_timeout_ms,
            )
        except HeadraceError as error:
            seen = error if call.version >= _MEMBER_EPOCHS else without_epochs(error)
            code = of_coordinator(seen.number)
            for result, *_ in page:
                result["error_code"] = code
            continue
        for (result, *_), found in zip(page, answer.results, strict=True):
            result["error_code"] = of_coordinator(found.error.code)
    return {"topics": [{**key, "partitions": results} for key, results in topics]}


def to_commit(topic: str, item: Message, topic_id: bytes = b"") -> Any:
    """The gRPC message for the offset of one partition in OffsetCommit or TxnOffsetCommit."""
    return groups_pb2.OffsetToCommit(
        topic=topic,
        partition=item.partition_index,
        offset=item.committed_offset,
        leader_epoch=item.committed_leader_epoch,
        metadata=item.committed_metadata or "",
        topic_id=topic_id,
    )


def without_epochs(error: HeadraceError) -> HeadraceError:
    """The error of a commit for a client that knows no member epochs, and for each producer. After ILLEGAL_GENERATION,
    a consumer joins its group again, and a producer can abort its transaction. Any other error number would end the
    producer."""
    if isinstance(error, GroupIdNotFoundError | StaleMemberEpochError):
        return IllegalGenerationError(error.message)
    return error


async def offset_fetch(call: Call, request: Message) -> Fields:
    if call.version < _MANY_GROUPS:
        fields = await _fetch_of_group(call, request, "", -1, request.topics, require_stable=request.require_stable)
        if fields["error_code"] and call.version < _TOP_LEVEL_ERRORS:
            fields["topics"] = [
                {
                    "name": topic.name,
                    "partitions": [_no_offset(index, fields["error_code"]) for index in topic.partition_indexes],
                }
                for topic in request.topics or ()
            ]
        return {"error_code": fields["error_code"], "topics": fields["topics"]}

    async def one(group: Message) -> Fields:
        member_id = group.member_id or ""
        return await _fetch_of_group(
            call, group, member_id, group.member_epoch, group.topics, require_stable=request.require_stable
        )

    return {"groups": await few_at_once(request.groups, one)}


async def _fetch_of_group(
    call: Call, group: Message, member_id: str, member_epoch: int, topics: Any, *, require_stable: bool
) -> Fields:
    """Fetch the committed offsets of one group. ``topics``: None means all topics."""
    by_id = call.version >= _BY_ID
    fields: Fields = {"group_id": group.group_id, "error_code": NONE, "topics": []}
    if not call.allows(DESCRIBE, GROUP_RESOURCE, group.group_id):
        return {**fields, "error_code": GroupAuthorizationFailedError.number}
    keys: dict[str, Fields] = {}
    asked = []
    for topic in topics or ():
        found = call.cluster.topic_by_id(topic.topic_id) if by_id else None
        key: Fields = {"topic_id": topic.topic_id} if by_id else {"name": topic.name}
        if by_id and found is None:
            unknown = [_no_offset(index, _UNKNOWN_ID.number) for index in topic.partition_indexes]
            fields["topics"].append({**key, "partitions": unknown})
            continue
        name = found.name if found is not None else topic.name
        if not call.allows(DESCRIBE, TOPIC, name):
            hidden = [_no_offset(index, TopicAuthorizationFailedError.number) for index in topic.partition_indexes]
            fields["topics"].append({**key, "partitions": hidden})
            continue
        if name not in keys:  # the request may name a topic twice
            keys[name] = {**key, "partitions": []}
            fields["topics"].append(keys[name])
        asked += [groups_pb2.PartitionName(topic=name, partition=index) for index in topic.partition_indexes]
    parts = list(pages(asked, PARTITIONS_MAX)) if topics is not None else [None]
    for part in parts if asked or topics is None else []:
        of_group = groups_pb2.OffsetsOfGroup(group_id=group.group_id, member_id=member_id, member_epoch=member_epoch)
        if part is not None:
            of_group.partitions.partitions.extend(part)
            of_group.partitions.SetInParent()
        try:
            answer = await call.coordinator(
                GROUP,
                group.group_id,
                groups_pb2_grpc.GroupsStub,
                "FetchOffsets",
                groups_pb2.FetchOffsetsRequest(groups=[of_group], require_stable=require_stable),
                call.settings.request_timeout_ms,
            )
        except HeadraceError as error:
            return {"group_id": group.group_id, "error_code": of_coordinator(error.number), "topics": []}
        (of_this,) = answer.groups
        if of_this.error.code:
            return {"group_id": group.group_id, "error_code": of_coordinator(of_this.error.code), "topics": []}
        for each in of_this.offsets:
            if each.topic not in keys:
                if not call.allows(DESCRIBE, TOPIC, each.topic):
                    continue
                topic_image = call.cluster.topic(each.topic)
                if by_id and topic_image is None:
                    continue
                keys[each.topic] = {"topic_id": topic_image.topic_id} if by_id and topic_image else {"name": each.topic}
                keys[each.topic]["partitions"] = []
                fields["topics"].append(keys[each.topic])
            keys[each.topic]["partitions"].append(
                {
                    "partition_index": each.partition,
                    "committed_offset": each.offset,
                    "committed_leader_epoch": each.leader_epoch,
                    "metadata": each.metadata,
                    "error_code": of_coordinator(each.error.code),
                }
            )
    return fields


def _no_offset(index: int, code: int) -> Fields:
    return {"partition_index": index, "committed_offset": -1, "committed_leader_epoch": -1, "metadata": "",
            "error_code": code}  # fmt: skip


async def offset_delete(call: Call, request: Message) -> Fields:
    call.require(DELETE, GROUP_RESOURCE, request.group_id)
    topics: list[Fields] = []
    asked: list[tuple[Fields, Any]] = []
    for topic in request.topics:
        results: list[Fields] = []
        topics.append({"name": topic.name, "partitions": results})
        refused = NONE if call.allows(READ, TOPIC, topic.name) else TopicAuthorizationFailedError.number
        for item in topic.partitions:
            result: Fields = {"partition_index": item.partition_index, "error_code": refused}
            results.append(result)
            if not refused and not call.cluster.has_partition(topic.name, item.partition_index):
                result["error_code"] = UnknownTopicOrPartitionError.number
            if result["error_code"]:
                continue
            asked.append((result, groups_pb2.PartitionName(topic=topic.name, partition=item.partition_index)))
    for page in pages(asked, PARTITIONS_MAX) if asked else ():
        answer = await call.coordinator(
            GROUP,
            request.group_id,
            groups_pb2_grpc.GroupsStub,
            "DeleteOffsets",
            groups_pb2.DeleteOffsetsRequest(group_id=request.group_id, partitions=[name for _, name in page]),
            call.settings.request_timeout_ms,
        )
        for (result, _), found in zip(page, answer.results, strict=True):
            result["error_code"] = kafkas(found.error.code)
    return {"error_code": NONE, "topics": topics}
