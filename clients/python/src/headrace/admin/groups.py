"""Admin calls about consumer groups (KIP-222, 396, 848, 1043). Each request is sent to the group's coordinator; after a
change of coordinator, the client sends the request again to the new coordinator. The code runs on the I/O thread,
except the ``wanted_*`` functions, which check arguments in the caller's thread."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace_core.errors import (
    GroupIdNotFoundError,
    HeadraceError,
    InvalidArgumentError,
    InvalidGroupIdError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.rpc.limits import limit_of, pages
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2

from .. import arguments
from ..engine.connections import call
from ..engine.coordinators import ATTEMPT_TIMEOUT_S, raise_first
from ..group_models import (
    GROUP_STATES,
    GroupDescription,
    GroupLag,
    GroupListing,
    MemberDescription,
    MovedPartition,
    PartitionLag,
    PendingOffset,
    Rebalance,
)
from ..models import OffsetAndMetadata
from .calls import AdminCalls, raise_failures

#: Timeout in seconds of one attempt of a request that names at most one group.
_ATTEMPT_TIMEOUT_S = 2 * ATTEMPT_TIMEOUT_S

# -- arguments, checked in the caller's thread
# ---------------------------------------------------------------------------


def wanted_group(group_id: str, *, may_be_empty: bool = False) -> str:
    """Raises InvalidGroupIdError. Old clients of Kafka without a group.id commit offsets under the empty id, which only
    some calls accept."""
    if not isinstance(group_id, str) or not (group_id or may_be_empty):
        raise InvalidGroupIdError(f"group id {group_id!r}: must be a string that is not empty")
    return arguments.text("group id", group_id)


def wanted_groups(group_ids: Iterable[str] | str) -> list[str]:
    """The group ids in order, without duplicates; a single text becomes a list of one. Raises InvalidGroupIdError."""
    given = [group_ids] if isinstance(group_ids, str) else arguments.items("group_ids", group_ids, "group ids")
    return list(dict.fromkeys(wanted_group(each, may_be_empty=True) for each in given))


def wanted_states(states: Iterable[str] | str | None) -> list[str]:
    """The protocol's names of the given group states; an empty list stands for all states. Raises
    InvalidArgumentError."""
    given = [states] if isinstance(states, str) else arguments.items("states", states or (), "states")
    for state in given:
        if not isinstance(state, str) or state.lower() not in GROUP_STATES:
            raise InvalidArgumentError(f"group state {state!r}: must be one of {', '.join(GROUP_STATES)}")
    return [state.lower() for state in given]


def wanted_partitions(partitions: Iterable[TopicPartition] | None) -> list[TopicPartition] | None:
    return None if partitions is None else arguments.partitions(partitions)


def wanted_offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Check the offsets to commit. Raises InvalidArgumentError for a missing or negative offset."""
    found = {}
    for each, given in arguments.mapping("offsets", offsets, "TopicPartition: offset").items():
        partition = arguments.partition(each)
        found[partition] = arguments.offset_to_commit(partition, given)
    return found


def wanted_members(member_ids: Iterable[str] | str | None) -> list[str] | None:
    """The member ids without duplicates; None stands for all members. Raises InvalidArgumentError."""
    if member_ids is None:
        return None
    return list(dict.fromkeys(arguments.texts("member_ids", member_ids)))


# -- groups -----------------------------------------------------------------------------------------------------------


async def list_groups(calls: AdminCalls, states: list[str], timeout: float | None) -> list[GroupListing]:
    """Sorted by id. Send the request to the coordinators of all shards."""
    request = groups_pb2.ListGroupsRequest(states=states)

    async def ask(address: str, timeout_s: float) -> list[Any]:
        return [await call(calls.engine.connections.groups(address).ListGroups, request, address, timeout_s)]

    answers = await calls.coordinators.everywhere(ask, calls.engine.deadline(timeout), "listing groups")
    found = {
        group.group_id: GroupListing(
            group.group_id, group.state, group.members, group.type or "consumer", group.protocol_type
        )
        for responses in answers.values()
        for response in responses
        for group in response.groups
    }
    return [group for _, group in sorted(found.items())]


async def describe_groups(
    calls: AdminCalls, group_ids: list[str], raise_errors: bool, timeout: float | None
) -> list[GroupDescription]:
    """Returns descriptions in the order of ``group_ids``."""
    items = await calls.coordinators.each(
        group_ids,
        "DescribeGroups",
        lambda some: groups_pb2.DescribeGroupsRequest(group_ids=some),
        lambda answer: answer.groups,
        calls.engine.deadline(timeout),
    )
    if raise_errors:
        _raise_errors(items)
    return [_description(calls, group_id, items[group_id]) for group_id in group_ids]


async def describe_lag(
    calls: AdminCalls, group_ids: list[str], raise_errors: bool, timeout: float | None
) -> list[GroupLag]:
    """Returns lags in the order of ``group_ids``."""
    items = await calls.coordinators.each(
        group_ids,
        "DescribeLag",
        lambda some: groups_pb2.DescribeLagRequest(group_ids=some),
        lambda answer: answer.groups,
        calls.engine.deadline(timeout),
    )
    if raise_errors:
        _raise_errors(items)
    return [_lag(group_id, items[group_id]) for group_id in group_ids]


async def delete_groups(calls: AdminCalls, group_ids: list[str], timeout: float | None) -> None:
    """Raise the first failure of a group; its message lists all failures."""
    items = await calls.coordinators.each(
        group_ids,
        "DeleteGroups",
        lambda some: groups_pb2.DeleteGroupsRequest(group_ids=some),
        lambda answer: answer.results,
        calls.engine.deadline(timeout),
        when_repeated=GroupIdNotFoundError,
    )
    _raise_errors(items)


async def explain_group(calls: AdminCalls, group_id: str, timeout: float | None) -> list[Rebalance]:
    answer = await calls.coordinators.call(
        group_id,
        "ExplainGroup",
        groups_pb2.ExplainGroupRequest(group_id=group_id),
        calls.engine.deadline(timeout),
        f"explaining group {group_id!r}",
        attempt_timeout_s=_ATTEMPT_TIMEOUT_S,
    )
    return [_rebalance(each) for each in answer.rebalances]


async def remove_group_members(
    calls: AdminCalls, group_id: str, member_ids: list[str] | None, timeout: float | None
) -> list[str]:
    wanted, deadline = member_ids, calls.engine.deadline(timeout)
    if wanted is None:
        left_s = max(deadline - time.monotonic(), 0.01)
        (described,) = await describe_groups(calls, [group_id], True, left_s)
        wanted = [member.member_id for member in described.members]
    if not wanted:
        return []
    gone: list[str] = []

    def check(answer: Any) -> None:
        for each in answer.results:
            if not each.error.code and each.member_id not in gone:
                gone.append(each.member_id)
        left = [each for each in answer.results if each.member_id not in gone]
        if member_ids is None:  # a member that left during the call counts as removed
            left = [each for each in left if each.error.code != UnknownMemberIdError.number]
        raise_first(left, f"group {group_id!r}")

    for page in pages(wanted):
        request = groups_pb2.RemoveMembersRequest(group_id=group_id, member_ids=page)
        await calls.coordinators.call(
            group_id, "RemoveMembers", request, deadline, f"removing members of {group_id!r}", check, _ATTEMPT_TIMEOUT_S
        )
    return gone


# -- offsets ----------------------------------------------------------------------------------------------------------


async def list_group_offsets(
    calls: AdminCalls,
    group_id: str,
    partitions: list[TopicPartition] | None,
    require_stable: bool,
    timeout: float | None,
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Returns offsets in the order of ``partitions``; None for a partition without a committed offset."""
    found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(partitions or ())
    deadline = calls.engine.deadline(timeout)
    most = limit_of("Groups/FetchOffsets", "groups.partitions.partitions")
    for page in [None] if partitions is None else pages(partitions, most):
        found.update(await _list_offsets(calls, group_id, page, require_stable, deadline))
    return found


async def _list_offsets(
    calls: AdminCalls,
    group_id: str,
    partitions: Sequence[TopicPartition] | None,
    require_stable: bool,
    deadline: float,
) -> dict[TopicPartition, OffsetAndMetadata]:
    request = groups_pb2.FetchOffsetsRequest(require_stable=require_stable)
    of_group = request.groups.add(group_id=group_id, member_epoch=-1)
    if partitions is not None:
        of_group.partitions.SetInParent()
        for each in partitions:
            of_group.partitions.partitions.add(topic=each.topic, partition=each.partition)

    def check(answer: Any) -> None:
        raise_first(answer.groups, f"group {group_id!r}")
        raise_first(answer.groups[0].offsets, f"group {group_id!r}")

    what = f"listing the offsets of {group_id!r}"
    answer = await calls.coordinators.call(group_id, "FetchOffsets", request, deadline, what, check, _ATTEMPT_TIMEOUT_S)
    found = {}
    for each in answer.groups[0].offsets:
        if each.offset >= 0:
            offset = OffsetAndMetadata(each.offset, each.metadata, each.leader_epoch)
            found[TopicPartition(each.topic, each.partition)] = offset
    return found


async def alter_group_offsets(
    calls: AdminCalls, group_id: str, offsets: dict[TopicPartition, OffsetAndMetadata], timeout: float | None
) -> None:
    """Commit offsets without being a member of the group. Refuse partitions that do not exist before sending the
    commit. A coordinator takes an unknown partition for a new partition, so the client would retry the commit until the
    timeout."""
    if not offsets:
        return
    deadline = calls.engine.deadline(timeout)
    left_s = max(deadline - time.monotonic(), 0.01)
    topics = await calls.describe_topics(sorted({each.topic for each in offsets}), left_s)
    counts = {topic.name: len(topic.partitions) for topic in topics}
    missing = [str(each) for each in sorted(offsets) if each.partition >= counts[each.topic]]
    if missing:
        raise UnknownTopicOrPartitionError(
            f"cannot set offsets of group {group_id!r}: there is no partition {', '.join(missing)}"
        )
    for page in pages(list(offsets.items()), limit_of("Groups/CommitOffsets", "offsets")):
        request = groups_pb2.CommitOffsetsRequest(group_id=group_id, member_epoch=-1)
        for each, value in page:
            request.offsets.add(
                topic=each.topic,
                partition=each.partition,
                offset=value.offset,
                leader_epoch=value.leader_epoch,
                metadata=value.metadata,
            )
        try:
            await calls.coordinators.call(
                group_id,
                "CommitOffsets",
                request,
                deadline,
                f"altering the offsets of {group_id!r}",
                lambda answer: raise_first(answer.results, f"group {group_id!r}"),
                _ATTEMPT_TIMEOUT_S,
            )
        except UnknownMemberIdError as error:
            raise UnknownMemberIdError(f"{error.message}; stop the group's consumers first") from None


async def delete_group_offsets(
    calls: AdminCalls, group_id: str, partitions: list[TopicPartition], timeout: float | None
) -> None:
    if not partitions:
        return
    deadline = calls.engine.deadline(timeout)
    what = f"deleting offsets of {group_id!r}"
    results: list[Any] = []
    for page in pages(partitions, limit_of("Groups/DeleteOffsets", "partitions")):
        request = groups_pb2.DeleteOffsetsRequest(group_id=group_id)
        for each in page:
            request.partitions.add(topic=each.topic, partition=each.partition)
        results += (
            await calls.coordinators.call(
                group_id, "DeleteOffsets", request, deadline, what, attempt_timeout_s=_ATTEMPT_TIMEOUT_S
            )
        ).results
    raise_failures((f"{each.topic}-{each.partition}", each.error) for each in results)


# -- from the wire ----------------------------------------------------------------------------------------------------


def _raise_errors(items: Mapping[str, Any]) -> None:
    """Raise the first failure of a partition; its message lists all failures."""
    errors = [(group_id, each) for group_id, each in items.items() if isinstance(each, HeadraceError)]
    if errors:
        messages = (
            each.message if repr(group_id) in each.message else f"group {group_id!r}: {each.message}"
            for group_id, each in errors
        )
        raise type(errors[0][1])("; ".join(messages))


def _description(calls: AdminCalls, group_id: str, item: Any) -> GroupDescription:
    if isinstance(item, HeadraceError):
        return GroupDescription(group_id, "dead", error=item)
    node_id, address = calls.coordinators.node_of(group_id)
    return GroupDescription(
        group_id=group_id,
        state=item.state,
        group_epoch=item.group_epoch,
        assignment_epoch=item.assignment_epoch,
        assignor=item.assignor,
        members=tuple(map(_member, item.members)),
        coordinator_id=node_id,
        coordinator_address=address,
        pending_offsets=tuple(
            PendingOffset(
                each.topic,
                each.partition,
                each.offset,
                each.transactional_id,
                each.producer_id,
                each.producer_epoch,
                each.received_at_ms,
            )
            for each in item.pending_offsets
        ),
        type=item.type or "consumer",
    )


def _member(item: Any) -> MemberDescription:
    return MemberDescription(
        member_id=item.member_id,
        instance_id=item.instance_id if item.HasField("instance_id") else None,
        client_id=item.client_id,
        host=item.host,
        rack=item.rack if item.HasField("rack") else None,
        member_epoch=item.member_epoch,
        topics=tuple(item.topics),
        topic_regex=item.topic_regex,
        assigned=_partitions(item.assigned),
        revoking=_partitions(item.revoking),
        target=_partitions(item.target),
        is_classic=item.is_classic,
    )


def _partitions(item: Any) -> tuple[TopicPartition, ...]:
    """Sorted. Deleted topics are left out of the result, because a deleted topic has no name."""
    return tuple(
        sorted(TopicPartition(each.topic, part) for each in item.topics if each.topic for part in each.partitions)
    )


def _lag(group_id: str, item: Any) -> GroupLag:
    if isinstance(item, HeadraceError):
        return GroupLag(group_id, "ERR", 0, (), item)
    return GroupLag(group_id, item.status, item.total_lag, tuple(map(_partition_lag, item.partitions)))


def _partition_lag(item: Any) -> PartitionLag:
    return PartitionLag(
        topic=item.topic,
        partition=item.partition,
        committed_offset=item.committed_offset,
        commit_timestamp_ms=item.commit_timestamp_ms,
        high_watermark=item.high_watermark if item.HasField("high_watermark") else None,
        lag=item.lag if item.HasField("lag") else None,
        lag_ms=item.lag_ms if item.HasField("lag_ms") else None,
        lag_ms_is_at_least=item.lag_ms_is_at_least,
        records_lost=item.records_lost,
        status=item.status,
        complete=item.complete,
    )


def _rebalance(item: Any) -> Rebalance:
    return Rebalance(
        number=item.number,
        at_ms=item.at_ms,
        group_epoch=item.group_epoch,
        reason=item.reason,
        moved=tuple(
            MovedPartition(
                each.topic,
                each.partition,
                each.from_member or None,
                each.to_member or None,
                each.unread_ms if each.unread_ms >= 0 else None,
            )
            for each in item.moved
        ),
        moved_count=item.moved_count,
        ended_at_ms=item.ended_at_ms if item.ended_at_ms >= 0 else None,
    )
