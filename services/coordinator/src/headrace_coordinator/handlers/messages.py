"""Convert between protobuf and the groups' messages. This module makes no decisions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace_core.errors import BY_CODE, InvalidRequestError
from headrace_core.item_errors import error_to_proto
from headrace_core.rpc.turns import Turns
from headrace_core.security.access import Access
from headrace_core.security.caller import current_caller
from headrace_core.security.principal import ANONYMOUS
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2

from ..group.messages import (
    AWAY_EPOCH,
    LEAVE_EPOCH,
    DescribedGroup,
    DescribedMember,
    Heartbeat,
    HeartbeatReply,
    Leave,
    LeaveReply,
    MemberRemoved,
    Parts,
    Rebalance,
)
from ..offsets.messages import (
    CommitOffsets,
    DeleteOffsets,
    FetchedOffset,
    FetchOffsets,
    GroupLag,
    OffsetToCommit,
    OffsetToFetch,
    PartitionResult,
)

TOPIC_ID_BYTES = 16

# -- membership -------------------------------------------------------------------------------------------------------


def host_of_client(named: str) -> str:
    """The host of the client that calls, in Kafka's form ``/10.0.0.1``. A listener that authenticates its callers knows
    the host, so that no client is described with another host. On an open listener, a broker calls for a client of
    Kafka, and only the request names the client's host (``named``)."""
    caller = current_caller()
    return named if caller.principal == ANONYMOUS or not caller.host else f"/{caller.host}"


def heartbeat(message: Any, connection: int, host: str, access: Access) -> Heartbeat:
    """Raises InvalidRequestError for an invalid topic id."""
    caller = access.caller if access.is_limited else None
    return Heartbeat(
        message.group_id,
        message.member_id,
        message.member_epoch,
        connection,
        instance_id=_given(message, "instance_id"),
        rack=_given(message, "rack"),
        client_id=message.client_id or None,
        client_host=host,
        rebalance_timeout_ms=message.rebalance_timeout_ms or None,
        topics=tuple(message.topics.names) if message.HasField("topics") else None,
        topic_regex=_given(message, "topic_regex"),
        assignor=_given(message, "assignor"),
        principal="" if caller is None else str(caller.principal),
        # do not take the host from the request, because the member could name any host
        principal_host="" if caller is None else caller.host,
        owned=_parts(message.owned) if message.HasField("owned") else None,
        revision=message.revision,
    )


def leave(message: Any, connection: int) -> Leave:
    return Leave(
        message.group_id,
        message.member_id,
        AWAY_EPOCH if message.temporarily else LEAVE_EPOCH,
        _given(message, "instance_id"),
        connection,
    )


def membership_response(reply: object, correlation_id: int) -> Any:
    """The answer to a member's request, or a push (correlation id 0)."""
    if isinstance(reply, HeartbeatReply):
        response = groups_pb2.MembershipResponse(
            correlation_id=correlation_id,
            member_id=reply.member_id,
            member_epoch=reply.member_epoch,
            heartbeat_interval_ms=reply.heartbeat_interval_ms,
            session_timeout_ms=reply.session_timeout_ms,
            connection_grace_ms=reply.connection_grace_ms,
            revision=reply.revision,
        )
        if reply.assignment is not None:
            response.assignment.CopyFrom(group_partitions(reply.assignment, reply.names))
        return response
    if isinstance(reply, LeaveReply):
        return groups_pb2.MembershipResponse(
            correlation_id=correlation_id, member_id=reply.member_id, member_epoch=reply.member_epoch
        )
    if isinstance(reply, MemberRemoved):
        error = error_to_proto(BY_CODE[reply.error](reply.reason))
        return groups_pb2.MembershipResponse(
            correlation_id=correlation_id, member_id=reply.member_id, member_epoch=LEAVE_EPOCH, error=error
        )
    raise AssertionError(f"cannot send {reply!r} to a member")


def group_partitions(parts: Parts, names: Mapping[bytes, str]) -> Any:
    """Group the partitions by topic, in ascending order."""
    message = groups_pb2.GroupPartitions()
    last: Any = None
    for topic_id, partition in sorted(parts):
        if last is None or last.topic_id != topic_id:
            last = message.topics.add(topic_id=topic_id, topic=names.get(topic_id, ""))
        last.partitions.append(partition)
    return message


def _parts(message: Any) -> Parts:
    for topic in message.topics:
        _check_topic_id(topic.topic_id, f"topic {topic.topic!r}")
    return frozenset((topic.topic_id, partition) for topic in message.topics for partition in topic.partitions)


# -- offsets ----------------------------------------------------------------------------------------------------------


async def commit_offsets(message: Any, turns: Turns) -> CommitOffsets:
    """The commit in a CommitOffsetsRequest or a CommitTransactionOffsetsRequest, converted in ``turns``."""
    offsets = []
    for each in message.offsets:
        offsets.append(
            OffsetToCommit(
                each.topic, each.partition, each.offset, each.leader_epoch, each.metadata, each.topic_id or None
            )
        )
        if turns.is_over():
            await turns.next()
    return CommitOffsets(
        message.group_id,
        tuple(offsets),
        message.member_id,
        message.member_epoch,
        _given(message, "instance_id"),
    )


def fetch_offsets(message: Any, *, require_stable: bool) -> FetchOffsets:
    partitions = None
    if message.HasField("partitions"):
        partitions = tuple(OffsetToFetch(each.topic, each.partition) for each in message.partitions.partitions)
    return FetchOffsets(message.group_id, partitions, message.member_id, message.member_epoch, require_stable)


def delete_offsets(message: Any) -> DeleteOffsets:
    return DeleteOffsets(
        message.group_id, tuple(TopicPartition(each.topic, each.partition) for each in message.partitions)
    )


async def partition_outcomes(results: Iterable[PartitionResult], turns: Turns) -> list[Any]:
    outcomes = []
    for each in results:
        outcomes.append(
            groups_pb2.PartitionOutcome(topic=each.topic, partition=each.partition, error=error_to_proto(each.error))
        )
        if turns.is_over():
            await turns.next()
    return outcomes


async def committed_offsets(fetched: Iterable[FetchedOffset], turns: Turns) -> list[Any]:
    offsets = []
    for each in fetched:
        offsets.append(
            groups_pb2.CommittedOffset(
                topic=each.topic,
                partition=each.partition,
                error=error_to_proto(each.error),
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
                commit_timestamp_ms=each.commit_timestamp_ms,
            )
        )
        if turns.is_over():
            await turns.next()
    return offsets


# -- descriptions -----------------------------------------------------------------------------------------------------


def described_group(group: DescribedGroup) -> Any:
    return groups_pb2.DescribedGroup(
        group_id=group.group_id,
        state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor=group.assignor,
        type=group.type,
        protocol_type="consumer" if group.type == "consumer" else "",
        members=[_described_member(member, group.names) for member in group.members],
        pending_offsets=[
            groups_pb2.PendingOffset(
                topic=each.topic,
                partition=each.partition,
                offset=each.offset,
                transactional_id=each.transactional_id,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                received_at_ms=each.received_ms,
            )
            for each in group.pending
        ],
    )


def _described_member(member: DescribedMember, names: Mapping[bytes, str]) -> Any:
    return groups_pb2.DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        rack=member.rack,
        member_epoch=member.member_epoch,
        topics=member.topics,
        topic_regex=member.topic_regex,
        assigned=group_partitions(member.assigned, names),
        revoking=group_partitions(member.revoking, names),
        target=group_partitions(member.target, names),
        is_classic=member.is_classic,
    )


def rebalance(reply: Rebalance) -> Any:
    message = groups_pb2.Rebalance(
        at_ms=reply.at_ms,
        group_epoch=reply.group_epoch,
        reason=reply.reason,
        moved_count=reply.moved,
        ended_at_ms=reply.ended_ms,
        number=reply.number,
    )
    for move in reply.moves:
        message.moved.add(
            topic_id=move.topic_id,
            topic=move.topic,
            partition=move.partition,
            from_member=move.from_member,
            to_member=move.to_member,
            unread_ms=move.unread_ms,
        )
    return message


def lag_of_group(lag: GroupLag) -> Any:
    message = groups_pb2.LagOfGroup(group_id=lag.group_id, status=lag.status.value, total_lag=lag.total_lag)
    for each in lag.partitions:
        message.partitions.add(
            topic=each.topic,
            partition=each.partition,
            committed_offset=each.committed.offset,
            commit_timestamp_ms=each.committed.commit_timestamp_ms,
            high_watermark=each.high_watermark,
            lag=each.lag,
            lag_ms=each.lag_ms,
            lag_ms_is_at_least=each.lag_ms_is_at_least,
            records_lost=each.records_lost,
            status=each.status.value,
            complete=each.complete,
        )
    return message


def _given(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def _check_topic_id(topic_id: bytes, where: str) -> None:
    if len(topic_id) != TOPIC_ID_BYTES:
        raise InvalidRequestError(f"{where}: topic_id has {len(topic_id)} bytes, must have {TOPIC_ID_BYTES}")
