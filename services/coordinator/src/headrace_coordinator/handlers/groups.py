"""headrace.v1.Groups: forwards each request to the shard of its group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from headrace_core.errors import HeadraceError
from headrace_core.item_errors import error_to_proto
from headrace_core.metadata.shards import OFFSETS_TOPIC
from headrace_core.rpc.turns import Turns
from headrace_core.tracing.node import NodeTraces
from headrace_protos.v1 import groups_pb2, groups_pb2_grpc

from ..classic.messages import DescribedClassicGroup
from ..group.messages import DescribeGroup, ExplainGroup, ListGroups, RemoveMembers
from ..offsets.messages import DeleteGroup, DescribeLag
from ..runtime.shards import Shards
from . import classic, messages
from .classic import ClassicWaits
from .descriptions import each_described
from .membership import Members
from .tracing import offsets_committed, traced
from .unary_members import UnaryMembers


class GroupsService(groups_pb2_grpc.GroupsServicer):
    def __init__(
        self,
        shards: Callable[[], Shards],
        members: Members,
        waits: ClassicWaits,
        traces: NodeTraces | None = None,
    ) -> None:
        """``shards`` returns this coordinator's shards; during the start ``shards`` raises an error."""
        self.traces = traces
        self._shards = shards
        self._members = members
        self._waits = waits
        self._unary_members = UnaryMembers()

    async def Membership(self, request_iterator: Any, context: Any) -> None:
        self._shards()
        await self._members.serve(context)

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        runner = self._shards().of_group(request.heartbeat.group_id)
        return await self._unary_members.heartbeat(runner, request)

    async def JoinGroup(self, request: Any, context: Any) -> Any:
        return await classic.join(self._waits, self._shards().of_group(request.group_id), request)

    async def SyncGroup(self, request: Any, context: Any) -> Any:
        return await classic.sync(self._waits, self._shards().of_group(request.group_id), request)

    async def ClassicHeartbeat(self, request: Any, context: Any) -> Any:
        return await classic.heartbeat(self._shards().of_group(request.group_id), request)

    async def LeaveGroup(self, request: Any, context: Any) -> Any:
        return await classic.leave(self._shards().of_group(request.group_id), request)

    @traced(offsets_committed)
    async def CommitOffsets(self, request: Any, context: Any) -> Any:
        async with Turns(len(request.offsets)) as turns:
            asked = (await messages.commit_offsets(request, turns))._replace(sequence=request.sequence)
            committed = await turns.outside(self._ask(request.group_id, asked))
            return groups_pb2.CommitOffsetsResponse(results=await messages.partition_outcomes(committed.results, turns))

    async def FetchOffsets(self, request: Any, context: Any) -> Any:
        async def one(item: Any) -> Any:
            asked = messages.fetch_offsets(item, require_stable=request.require_stable)
            # With ``require_stable``, check that this coordinator still owns the shard: a former owner may not know
            # that a transaction began or ended.
            runner = self._shards().of_group(item.group_id)
            fetched = await runner.ask(asked, is_fenced=request.require_stable)
            async with Turns(len(fetched.offsets)) as turns:
                offsets = await messages.committed_offsets(fetched.offsets, turns)
            return groups_pb2.CommittedOffsetsOfGroup(group_id=item.group_id, offsets=offsets)

        groups = await each_described(request.groups, one, _refused(groups_pb2.CommittedOffsetsOfGroup))
        return groups_pb2.FetchOffsetsResponse(groups=groups)

    async def DeleteOffsets(self, request: Any, context: Any) -> Any:
        async with Turns(len(request.partitions)) as turns:
            deleted = await turns.outside(self._ask(request.group_id, messages.delete_offsets(request)))
            return groups_pb2.DeleteOffsetsResponse(results=await messages.partition_outcomes(deleted.results, turns))

    async def ListGroups(self, request: Any, context: Any) -> Any:
        """A shard that stops serving during the call is not listed, and counts as loading."""
        asked = ListGroups(tuple(request.states))
        answers = await asyncio.gather(
            *(runner.ask(asked) for runner in self._shards().of_topic(OFFSETS_TOPIC)), return_exceptions=True
        )
        response = groups_pb2.ListGroupsResponse()
        for answer in answers:
            if isinstance(answer, HeadraceError):
                response.loading_shards += 1
            elif isinstance(answer, BaseException):
                raise answer
            else:
                for group in answer:
                    response.groups.add(
                        group_id=group.group_id,
                        state=group.state.value,
                        members=group.members,
                        type=group.type,
                        protocol_type=group.protocol_type,
                    )
        return response

    async def DescribeGroups(self, request: Any, context: Any) -> Any:
        async def one(group_id: str) -> Any:
            group = await self._ask(group_id, DescribeGroup(group_id))
            if isinstance(group, DescribedClassicGroup):
                return classic.described(group)
            return messages.described_group(group)

        groups = await each_described(request.group_ids, one, _refused(groups_pb2.DescribedGroup))
        return groups_pb2.DescribeGroupsResponse(groups=groups)

    async def RemoveMembers(self, request: Any, context: Any) -> Any:
        member_ids = tuple(request.member_ids)
        errors: Sequence[HeadraceError | None]
        try:
            errors = (await self._ask(request.group_id, RemoveMembers(request.group_id, member_ids))).errors
        except HeadraceError as error:
            errors = [error.with_traceback(None)] * len(member_ids)
        return groups_pb2.RemoveMembersResponse(
            results=[
                groups_pb2.MemberOutcome(member_id=member_id, error=error_to_proto(error))
                for member_id, error in zip(member_ids, errors, strict=True)
            ]
        )

    async def DeleteGroups(self, request: Any, context: Any) -> Any:
        async def one(group_id: str) -> Any:
            await self._ask(group_id, DeleteGroup(group_id))
            return groups_pb2.GroupOutcome(group_id=group_id)

        results = await _each(request.group_ids, one, groups_pb2.GroupOutcome)
        return groups_pb2.DeleteGroupsResponse(results=results)

    async def ExplainGroup(self, request: Any, context: Any) -> Any:
        history = await self._ask(request.group_id, ExplainGroup(request.group_id))
        return groups_pb2.ExplainGroupResponse(rebalances=[messages.rebalance(each) for each in history])

    async def DescribeLag(self, request: Any, context: Any) -> Any:
        async def one(group_id: str) -> Any:
            return messages.lag_of_group(await self._ask(group_id, DescribeLag(group_id)))

        groups = await each_described(request.group_ids, one, _refused(groups_pb2.LagOfGroup))
        return groups_pb2.DescribeLagResponse(groups=groups)

    async def _ask(self, group_id: str, request: object) -> Any:
        return await self._shards().of_group(group_id).ask(request)


async def _each(
    group_ids: Collection[str], ask: Callable[[str], Awaitable[Any]], message: Callable[..., Any]
) -> list[Any]:
    """One answer for each group of a request; the shards receive the request at the same time. The answer for a failed
    group is a ``message`` with the error."""

    refused = _refused(message)

    async def answer(group_id: str) -> Any:
        try:
            return await ask(group_id)
        except HeadraceError as error:
            return refused(group_id, error)

    return await asyncio.gather(*(answer(group_id) for group_id in group_ids))


def _refused(message: Callable[..., Any]) -> Callable[[Any, HeadraceError], Any]:
    """The answer for a failed item: a group id, or a message with the field ``group_id``."""
    return lambda item, error: message(group_id=getattr(item, "group_id", item), error=error_to_proto(error))
