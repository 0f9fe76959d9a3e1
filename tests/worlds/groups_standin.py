"""Two scripted coordinators with real sockets: groups whose name begins with "a" belong to the first, all others to the
second. Offsets, members and topics are plain tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from headrace_core.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    HeadraceError,
    NetworkError,
    NonEmptyGroupError,
    NotCoordinatorError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.rpc.status import status_of
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from headrace_protos.v1 import (
    groups_pb2,
    groups_pb2_grpc,
    metadata_pb2,
    metadata_pb2_grpc,
    offsets_pb2,
    offsets_pb2_grpc,
)

TOPIC_IDS = {"orders": b"o" * 16, "clicks": b"c" * 16}


class StandinGroupsWorld:
    """The state that both coordinators share. ``failures`` are the errors that the next calls of a method return, one
    error per call."""

    def __init__(self) -> None:
        self.coordinators = [Coordinator(self, 0), Coordinator(self, 1)]
        #: group -> (topic, partition) -> (offset, metadata)
        self.committed: dict[str, dict[tuple[str, int], tuple[int, str]]] = {}
        self.members: dict[str, list[groups_pb2.DescribedMember]] = {}
        self.lags: dict[str, groups_pb2.LagOfGroup] = {}
        self.pending: dict[str, list[groups_pb2.PendingOffset]] = {}
        self.rebalances: dict[str, list[groups_pb2.Rebalance]] = {}
        #: (start, end) of each partition, and the timestamp of each offset is ten times the offset.
        self.logs = {("orders", 0): (5, 100), ("orders", 1): (0, 50), ("clicks", 0): (0, 0)}
        self.asked: list[tuple[int, Any]] = []
        self.failures: dict[str, list[HeadraceError]] = {}
        #: Names of calls that are carried out, but whose next answer is lost.
        self.lost: set[str] = set()
        self.loading: list[int] = []
        self.has_shards = True
        #: Whether the cluster has any coordinator; ``owner`` assigns groups to the two coordinators.
        self.have_coordinators = True
        #: Returns the coordinator of a group; None if the group has no coordinator. Tests may replace this function.
        self.owner: Callable[[str], int | None] = lambda group: 0 if group.startswith("a") else 1

    def names(self, index: int) -> list[str]:
        known = {*self.committed, *self.members}
        return sorted(group for group in known if self.owner(group) == index)

    def asked_of(self, method: str) -> list[Any]:
        return [request for _, request in self.asked if type(request).__name__ == f"{method}Request"]

    def counts(self) -> Counter[str]:
        return Counter(type(request).__name__.removesuffix("Request") for _, request in self.asked)


class Coordinator(groups_pb2_grpc.GroupsServicer, metadata_pb2_grpc.MetadataServicer, offsets_pb2_grpc.OffsetsServicer):
    """One of the two coordinators; it is also a broker, for metadata and logs."""

    def __init__(self, world: StandinGroupsWorld, index: int) -> None:
        self.world = world
        self.index = index
        self.address = ""

    # -- a broker ----------------------------------------------------------------------------------------------------

    def GetMetadata(self, request: Any, context: Any) -> Any:
        world = self.world
        answer = metadata_pb2.MetadataResponse(cluster_id="c", controller_id=1, metadata_offset=7)
        host, port = world.coordinators[0].address.split(":")
        answer.brokers.add(broker_id=1, host=host, port=int(port))
        for index, each in enumerate(world.coordinators if world.have_coordinators else ()):
            host, port = each.address.split(":")
            answer.coordinators.add(coordinator_id=index + 1, host=host, port=int(port))
        for name in request.topics:
            topic = answer.topics.add(name=name)
            if name in ("__consumer_offsets", "__transaction_state") and world.has_shards:
                for shard, group in enumerate(("a", "b")):
                    owner = world.owner(group)
                    part = topic.partitions.add(partition=shard, leader_id=1, shard_epoch=3)
                    part.coordinator_id = -1 if owner is None else owner + 1
            elif name in TOPIC_IDS:
                topic.topic_id = TOPIC_IDS[name]
                for each, partition in sorted(world.logs):
                    if each == name:
                        topic.partitions.add(partition=partition, leader_id=1, replicas=[1], isr=[1])
            else:
                error = error_to_proto(UnknownTopicOrPartitionError(f"topic {name!r} does not exist"))
                topic.error.CopyFrom(error)
        return answer

    def FindCoordinator(self, request: Any, context: Any) -> Any:
        self.world.asked.append((self.index, request))
        answer = metadata_pb2.FindCoordinatorResponse(metadata_offset=7)
        for key in request.keys:
            owner = self.world.owner(key)
            if owner is None:
                error = error_to_proto(CoordinatorNotAvailableError("no coordinator is alive"))
                answer.coordinators.add(key=key, error=error, shard=-1, coordinator_id=-1)
            else:
                host, port = self.world.coordinators[owner].address.split(":")
                answer.coordinators.add(key=key, coordinator_id=owner + 1, host=host, port=int(port))
        return answer

    def ListOffsets(self, request: Any, context: Any) -> Any:
        answer = offsets_pb2.ListOffsetsResponse()
        for each in request.partitions:
            start, end = self.world.logs[each.topic, each.partition]
            offset = {EARLIEST_TIMESTAMP: start, LATEST_TIMESTAMP: end}.get(each.timestamp_ms)
            if offset is None:
                offset = max(-(-each.timestamp_ms // 10), start)
                offset = offset if offset < end else -1
            answer.results.add(topic=each.topic, partition=each.partition, offset=offset, timestamp_ms=offset * 10)
        return answer

    # -- a coordinator -----------------------------------------------------------------------------------------------

    def _called(self, request: Any, context: Any) -> None:
        self.world.asked.append((self.index, request))
        waiting = self.world.failures.get(type(request).__name__.removesuffix("Request"))
        if waiting:
            _abort(context, waiting.pop(0))

    def _wrong(self, group: str, *, may_be_new: bool = False) -> HeadraceError | None:
        world = self.world
        if world.owner(group) != self.index:
            return NotCoordinatorError(f"coordinator {self.index + 1} does not have group {group!r}")
        if not may_be_new and group not in world.committed and group not in world.members:
            return GroupIdNotFoundError(f"group {group!r} does not exist")
        return None

    def _check(self, group: str, context: Any, *, may_be_new: bool = False) -> None:
        error = self._wrong(group, may_be_new=may_be_new)
        if error is not None:
            _abort(context, error)

    def ListGroups(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        answer = groups_pb2.ListGroupsResponse(loading_shards=self.world.loading.pop(0) if self.world.loading else 0)
        for group in self.world.names(self.index):
            members = self.world.members.get(group, [])
            state = "stable" if members else "empty"
            if not request.states or state in request.states:
                answer.groups.add(
                    group_id=group,
                    state=state,
                    members=len(members),
                    type="consumer" if members else "classic",
                    protocol_type="consumer" if members else "",
                )
        return answer

    def DescribeGroups(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        answer = groups_pb2.DescribeGroupsResponse()
        for group in request.group_ids:
            members = self.world.members.get(group, [])
            error = error_to_proto(self._wrong(group))
            described = answer.groups.add(group_id=group, error=error)
            if error is None:
                described.state = "stable" if members else "empty"
                described.group_epoch = described.assignment_epoch = 4
                described.assignor = "uniform" if members else ""
                described.members.extend(members)
                described.pending_offsets.extend(self.world.pending.get(group, []))
        return answer

    def DescribeLag(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        answer = groups_pb2.DescribeLagResponse()
        for group in request.group_ids:
            error = error_to_proto(self._wrong(group))
            if error is None and group in self.world.lags:
                answer.groups.append(self.world.lags[group])
                continue
            described = answer.groups.add(group_id=group, error=error)
            if error is None:
                described.status = "OK"
                for (topic, partition), (offset, _) in sorted(self.world.committed.get(group, {}).items()):
                    described.partitions.add(topic=topic, partition=partition, committed_offset=offset, status="OK")
        return answer

    def ExplainGroup(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        self._check(request.group_id, context)
        return groups_pb2.ExplainGroupResponse(rebalances=self.world.rebalances.get(request.group_id, []))

    def DeleteGroups(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        answer = groups_pb2.DeleteGroupsResponse()
        for group in request.group_ids:
            error = self._wrong(group)
            if error is None and self.world.members.get(group):
                error = NonEmptyGroupError(f"group {group!r} has members; stop them, then delete the group")
            if error is None:
                self.world.committed.pop(group, None)
                self.world.members.pop(group, None)
            answer.results.add(group_id=group, error=error_to_proto(error))
        if "DeleteGroups" in self.world.lost:
            self.world.lost.remove("DeleteGroups")
            _abort(context, NetworkError("the connection broke"))
        return answer

    def RemoveMembers(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        self._check(request.group_id, context)
        answer = groups_pb2.RemoveMembersResponse()
        members = self.world.members[request.group_id]
        for member_id in request.member_ids:
            left = [each for each in members if each.member_id != member_id]
            error = UnknownMemberIdError(f"there is no member {member_id!r}") if len(left) == len(members) else None
            members[:] = left
            answer.results.add(member_id=member_id, error=error_to_proto(error))
        return answer

    def CommitOffsets(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        self._check(request.group_id, context, may_be_new=True)
        answer = groups_pb2.CommitOffsetsResponse()
        if self.world.members.get(request.group_id):
            error = UnknownMemberIdError(f"group {request.group_id!r} has 1 member: only members may commit")
            for each in request.offsets:
                answer.results.add(topic=each.topic, partition=each.partition, error=error_to_proto(error))
            return answer
        table = self.world.committed.setdefault(request.group_id, {})
        for each in request.offsets:
            table[each.topic, each.partition] = (each.offset, each.metadata)
            answer.results.add(topic=each.topic, partition=each.partition)
        return answer

    def FetchOffsets(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        answer = groups_pb2.FetchOffsetsResponse()
        for group in request.groups:
            error = error_to_proto(self._wrong(group.group_id, may_be_new=True))
            described = answer.groups.add(group_id=group.group_id, error=error)
            table = self.world.committed.get(group.group_id, {})
            wanted = [(each.topic, each.partition) for each in group.partitions.partitions]
            for topic, partition in wanted if group.HasField("partitions") else sorted(table):
                offset, metadata = table.get((topic, partition), (-1, ""))
                described.offsets.add(
                    topic=topic, partition=partition, offset=offset, metadata=metadata, leader_epoch=-1
                )
        return answer

    def DeleteOffsets(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        self._check(request.group_id, context)
        answer = groups_pb2.DeleteOffsetsResponse()
        for each in request.partitions:
            self.world.committed[request.group_id].pop((each.topic, each.partition), None)
            answer.results.add(topic=each.topic, partition=each.partition)
        return answer


def _abort(context: Any, error: HeadraceError) -> None:
    status, details, metadata = status_of(error)
    context.set_trailing_metadata(metadata)
    context.abort(status, details)


def member(member_id: str, client_id: str, *parts: tuple[str, int], **more: Any) -> groups_pb2.DescribedMember:
    """A member that reads ``parts``."""
    described = groups_pb2.DescribedMember(
        member_id=member_id, client_id=client_id, host="127.0.0.1", member_epoch=4, topics=["orders"], **more
    )
    for topic in dict.fromkeys(topic for topic, _ in parts):
        numbers = [number for name, number in parts if name == topic]
        for where in (described.assigned, described.target):
            where.topics.add(topic_id=TOPIC_IDS[topic], topic=topic, partitions=numbers)
    return described


@contextmanager
def serving() -> Iterator[StandinGroupsWorld]:
    world = StandinGroupsWorld()
    servers = []
    for each in world.coordinators:
        server = grpc.server(ThreadPoolExecutor(4))
        groups_pb2_grpc.add_GroupsServicer_to_server(each, server)
        metadata_pb2_grpc.add_MetadataServicer_to_server(each, server)
        offsets_pb2_grpc.add_OffsetsServicer_to_server(each, server)
        each.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
    try:
        yield world
    finally:
        for server in servers:
            server.stop(None)
