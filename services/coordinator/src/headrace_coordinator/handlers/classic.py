"""The calls of classic groups: requests that wait for their answers, and the conversion from and to protobuf."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from headrace_core.errors import HeadraceError, MemberIdRequiredError, NotCoordinatorError
from headrace_core.item_errors import error_to_proto
from headrace_protos.v1 import groups_pb2

from ..classic.messages import (
    Answered,
    ClassicHeartbeat,
    DescribedClassicGroup,
    Join,
    Joined,
    LeaveClassic,
    LeavingMember,
    MemberIdNeeded,
    Sync,
    Synced,
    Waiting,
)
from ..runtime.runner import ShardRunner, resolve
from . import messages


class ClassicWaits:
    """JoinGroup and SyncGroup calls that wait for an answer of their group's shard (classic.messages.Answered)."""

    def __init__(self) -> None:
        self._tickets = itertools.count(1)
        self._waiting: dict[int, tuple[ShardRunner, asyncio.Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, runner: ShardRunner, request: Callable[[int], object]) -> Any:
        """Send the request that ``request`` returns for a new ticket, and wait for the answer. Raises the errors of the
        request, and NotCoordinatorError if this coordinator stops serving the shard first. If the caller is cancelled,
        the answer is dropped, and the member stays in the group until its session ends."""
        ticket = next(self._tickets)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = runner, answer
        try:
            reply = await runner.ask(request(ticket))
            return await answer if isinstance(reply, Waiting) else reply
        finally:
            del self._waiting[ticket]
            answer.cancel()
            del answer  # the traceback of the answer's error would keep this frame

    def tell(self, answers: Sequence[Answered]) -> None:
        for ticket, outcome in answers:
            waiting = self._waiting.get(ticket)
            if waiting is not None:
                resolve(waiting[1], outcome)

    def shard_left(self, runner: ShardRunner) -> None:
        """Called when this coordinator has stopped serving the shard of ``runner``: the shard's waiting calls fail."""
        for waiting, answer in self._waiting.values():
            if waiting is runner:
                resolve(
                    answer,
                    NotCoordinatorError(
                        f"this coordinator no longer serves {runner.shard.name}; look up the coordinator again"
                    ),
                )


async def join(waits: ClassicWaits, runner: ShardRunner, request: Any) -> Any:
    instance_id = _given(request, "group_instance_id")
    asked = partial(
        Join,
        request.group_id,
        request.member_id,
        f"{instance_id or request.client_id or 'member'}-{uuid.uuid4()}",
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocol_type,
        tuple((each.name, each.metadata) for each in request.protocols),
        instance_id=instance_id,
        client_id=request.client_id,
        client_host=messages.host_of_client(request.client_host),
        reason=request.reason,
        needs_known_id=request.require_known_member_id,
        can_skip_assignment=request.supports_skipping_assignment,
    )
    try:
        reply = await waits.ask(runner, lambda ticket: asked(ticket=ticket))
    except HeadraceError as error:
        return groups_pb2.JoinGroupResponse(error=error_to_proto(error), generation_id=-1, member_id=request.member_id)
    if isinstance(reply, MemberIdNeeded):
        needed = MemberIdRequiredError("the member is new: join again with the member id of this response")
        return groups_pb2.JoinGroupResponse(error=error_to_proto(needed), generation_id=-1, member_id=reply.member_id)
    return _joined(reply)


def _joined(reply: Joined) -> Any:
    response = groups_pb2.JoinGroupResponse(
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
    )
    for member in reply.members:
        response.members.add(member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata)
    return response


async def sync(waits: ClassicWaits, runner: ShardRunner, request: Any) -> Any:
    asked = partial(
        Sync,
        request.group_id,
        request.member_id,
        request.generation_id,
        instance_id=_given(request, "group_instance_id"),
        protocol_type=_given(request, "protocol_type"),
        protocol=_given(request, "protocol_name"),
        assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
    )
    try:
        reply: Synced = await waits.ask(runner, lambda ticket: asked(ticket=ticket))
    except HeadraceError as error:
        return groups_pb2.SyncGroupResponse(error=error_to_proto(error))
    return groups_pb2.SyncGroupResponse(
        protocol_type=reply.protocol_type, protocol_name=reply.protocol, assignment=reply.assignment
    )


async def heartbeat(runner: ShardRunner, request: Any) -> Any:
    asked = ClassicHeartbeat(
        request.group_id, request.member_id, request.generation_id, _given(request, "group_instance_id")
    )
    try:
        await runner.ask(asked)
    except HeadraceError as error:
        return groups_pb2.ClassicHeartbeatResponse(error=error_to_proto(error))
    return groups_pb2.ClassicHeartbeatResponse()


async def leave(runner: ShardRunner, request: Any) -> Any:
    members = tuple(
        LeavingMember(each.member_id, _given(each, "group_instance_id"), each.reason) for each in request.members
    )
    try:
        left = await runner.ask(LeaveClassic(request.group_id, members))
    except HeadraceError as error:
        return groups_pb2.LeaveGroupResponse(error=error_to_proto(error))
    response = groups_pb2.LeaveGroupResponse()
    for member, refused in zip(members, left.errors, strict=True):
        response.members.add(
            member_id=member.member_id, group_instance_id=member.instance_id, error=error_to_proto(refused)
        )
    return response


def described(group: DescribedClassicGroup) -> Any:
    response = groups_pb2.DescribedGroup(
        group_id=group.group_id,
        state=group.state.value,
        group_epoch=group.generation,
        assignment_epoch=group.generation,
        assignor=group.protocol,
        type="classic",
        protocol_type=group.protocol_type,
        protocol=group.protocol,
    )
    for member in group.members:
        response.members.add(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.client_host,
            member_epoch=group.generation,
            metadata=member.metadata,
            assignment=member.assignment,
            topics=member.topics,
            assigned=_named_partitions(member.assigned),
            is_classic=True,
        )
    return response


def _named_partitions(parts: Iterable[tuple[str, int]]) -> Any:
    """Partitions of topics whose ids the members do not know."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in parts:
        by_topic.setdefault(topic, []).append(partition)
    topics = [groups_pb2.PartitionsOfTopic(topic=name, partitions=each) for name, each in sorted(by_topic.items())]
    return groups_pb2.GroupPartitions(topics=topics)


def _given(message: Any, field: str) -> str | None:
    return getattr(message, field) if message.HasField(field) else None
