"""Scripted coordinators with real sockets: of groups and of transactions by name (those that begin with "a" belong to
the first), and one of transactions for the scripted cluster."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import headrace_core.rpc  # noqa: F401  (first: it sets what grpc reads when it is imported)

import grpc  # isort: skip

from headrace_coordinator.transaction.messages import (
    AbortSinkBatch,
    AbortTransaction,
    AddPartitions,
    CommitSinkBatch,
    CompleteTransaction,
    DescribeSink,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    PrepareTransaction,
    WriteMarkers,
)
from headrace_coordinator.transaction.state import ProducerIdentity
from headrace_coordinator.transaction.transactions import TransactionsStateMachine
from headrace_core.errors import (
    CoordinatorNotAvailableError,
    GroupIdNotFoundError,
    HeadraceError,
    InvalidRequestError,
    InvalidTxnStateError,
    NetworkError,
    NonEmptyGroupError,
    NotCoordinatorError,
    TransactionalIdNotFoundError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.records import RecordIterator, read_header
from headrace_core.rpc.status import status_of
from headrace_core.sinks import SinkTransaction, parse_sink_transaction
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from headrace_protos.v1 import (
    groups_pb2,
    groups_pb2_grpc,
    metadata_pb2,
    metadata_pb2_grpc,
    offsets_pb2,
    offsets_pb2_grpc,
    transactions_pb2,
    transactions_pb2_grpc,
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
    with _started(world.coordinators, groups_pb2_grpc.add_GroupsServicer_to_server):
        yield world


@contextmanager
def _started(coordinators: Iterable[Coordinator], *services: Callable[[Any, grpc.Server], None]) -> Iterator[None]:
    """Serve metadata, offsets and ``services`` of each coordinator."""
    services += (metadata_pb2_grpc.add_MetadataServicer_to_server, offsets_pb2_grpc.add_OffsetsServicer_to_server)
    servers = []
    for each in coordinators:
        server = grpc.server(ThreadPoolExecutor(4))
        for add in services:
            add(each, server)
        each.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
    try:
        yield
    finally:
        for server in servers:
            server.stop(None)


class StandinTransactionsWorld(StandinGroupsWorld):
    """``page_size`` transactions fit into a response, or the producers of ``room`` partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinators = [TransactionCoordinator(self, 0), TransactionCoordinator(self, 1)]
        self.described: dict[str, transactions_pb2.DescribedTransaction] = {}
        self.producers: dict[tuple[str, int], list[transactions_pb2.ActiveProducer]] = {}
        self.page_size = 10_000
        self.room = 2_000
        self.partition_errors: dict[tuple[str, int], list[HeadraceError]] = {}

    def add(self, transactional_id: str, state: Any, **more: Any) -> None:
        self.described[transactional_id] = transactions_pb2.DescribedTransaction(
            transactional_id=transactional_id, state=state, **{"started_at_ms": -1, "timeout_ms": 60_000, **more}
        )


class TransactionCoordinator(
    Coordinator, transactions_pb2_grpc.TransactionsServicer, transactions_pb2_grpc.ProducersServicer
):
    world: StandinTransactionsWorld

    def _refusal(self, transactional_id: str) -> HeadraceError | None:
        if self.world.owner(transactional_id) != self.index:
            return NotCoordinatorError(f"coordinator {self.index + 1} does not have {transactional_id!r}")
        if transactional_id not in self.world.described:
            return TransactionalIdNotFoundError(f"transactional id {transactional_id!r} does not exist")
        return None

    def ListTransactions(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        world = self.world
        answer = transactions_pb2.ListTransactionsResponse(loading_shards=world.loading.pop(0) if world.loading else 0)
        for name, each in sorted(world.described.items()):
            if (
                world.owner(name) != self.index
                or name <= request.after
                or not name.startswith(request.transactional_id_prefix)
                or (request.states and each.state not in request.states)
                or (request.producer_ids and each.producer_id not in request.producer_ids)
            ):
                continue
            if len(answer.transactions) == world.page_size:
                answer.has_more = True
                break
            answer.transactions.add(
                transactional_id=name,
                producer_id=each.producer_id,
                state=each.state,
                started_at_ms=each.started_at_ms,
            )
        return answer

    def DescribeTransactions(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        answer = transactions_pb2.DescribeTransactionsResponse()
        for name in request.transactional_ids:
            error = self._refusal(name)
            if error is None:
                answer.transactions.append(self.world.described[name])
            else:
                answer.transactions.add(transactional_id=name, error=error_to_proto(error))
        return answer

    def AbortTransaction(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        error = self._refusal(request.transactional_id)
        if error is not None:
            _abort(context, error)
        found = self.world.described[request.transactional_id]
        if found.state != transactions_pb2.TRANSACTION_STATE_ONGOING:
            _abort(context, InvalidTxnStateError(f"no transaction of {request.transactional_id!r} is open"))
        found.state = transactions_pb2.TRANSACTION_STATE_COMPLETE_ABORT
        return transactions_pb2.AbortTransactionResponse()

    def DescribeProducers(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        answer = transactions_pb2.DescribeProducersResponse()
        for number, each in enumerate(request.partitions):
            found = answer.partitions.add(topic=each.topic, partition=each.partition)
            failures = self.world.partition_errors.get((each.topic, each.partition))
            if failures:
                found.error.CopyFrom(error_to_proto(failures.pop(0)))  # type: ignore[arg-type]
            elif number >= self.world.room:
                found.error.CopyFrom(error_to_proto(InvalidRequestError("no room")))  # type: ignore[arg-type]
            else:
                found.producers.extend(self.world.producers.get((each.topic, each.partition), []))
        return answer

    def AbortHangingTransaction(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        for each in self.world.producers.get((request.topic, request.partition), []):
            if (each.producer_id, each.transaction_start_offset) == (
                request.producer_id,
                request.transaction_start_offset,
            ):
                each.ClearField("transaction_start_offset")
                return transactions_pb2.AbortHangingTransactionResponse()
        _abort(context, InvalidTxnStateError("no transaction begins there"))
        return None


@contextmanager
def serving_transactions() -> Iterator[StandinTransactionsWorld]:
    world = StandinTransactionsWorld()
    with _started(
        world.coordinators,
        transactions_pb2_grpc.add_TransactionsServicer_to_server,
        transactions_pb2_grpc.add_ProducersServicer_to_server,
    ):
        yield world


# ``FakeTransactions(cluster)``: the real state machine behind a gRPC server, and the leaders' part of version 2 (adding
# partitions, markers, fencing by epoch). It takes over ``cluster.on_produce``, and coordinates groups without members:
# offsets in transactions stay pending until the marker. A test uses ``on_call`` to hold markers back, to lose answers,
# or to refuse calls.

#: The shard of all groups.
SHARD = TopicPartition("__consumer_offsets", 0)


class FakeTransactions(transactions_pb2_grpc.TransactionsServicer, groups_pb2_grpc.GroupsServicer):
    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.lock = threading.RLock()
        self.machine = TransactionsStateMachine(self._new_producer_id)
        self.machine.loaded(0)
        self.now_ms = 0
        self.calls: list[tuple[str, Any]] = []
        #: (method, request) -> an error to answer; "lost": carry the call out, and lose its answer.
        self.on_call: Callable[[str, Any], HeadraceError | str | None] = lambda method, request: None
        self.markers: list[WriteMarkers] = []
        self.markers_held = False
        #: (producer id, epoch of the records) of committed transactions.
        self.committed: set[tuple[int, int]] = set()
        #: (partition, ...) -> an error number that a leader returns without any other action.
        self.on_produce: Callable[[int, Any], Any] = lambda broker, item: 0
        #: (group, topic, partition) -> the committed offset.
        self.offsets: dict[tuple[str, str, int], int] = {}
        #: producer id -> (group, topic, partition) -> (sequence of the request, offset).
        self.pending: dict[int, dict[tuple[str, str, int], tuple[int, int]]] = {}
        self._names: dict[int, str] = {}
        self._open: dict[int, set[int]] = {}  # producer id -> the epochs of its batches without a marker
        self._last_producer_id = 4_000
        self.server = grpc.server(ThreadPoolExecutor(8))
        transactions_pb2_grpc.add_TransactionsServicer_to_server(self, self.server)
        groups_pb2_grpc.add_GroupsServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        cluster.coordinator = ("127.0.0.1", self.port)
        cluster.on_produce = self._produce

    def _new_producer_id(self) -> int:
        self._last_producer_id += 1
        return self._last_producer_id

    def stop(self) -> None:
        self.server.stop(0).wait()

    # --- the coordinator -------------------------------------------------------------------------------------------

    def handle(self, request: Any) -> Any:
        with self.lock:
            decision = self.machine.handle(request, self.now_ms)
            self.markers += [push for push in decision.pushes if isinstance(push, WriteMarkers)]
            if not self.markers_held:
                self.write_markers()
            if isinstance(decision.reply, HeadraceError):
                raise decision.reply
            return decision.reply

    def write_markers(self) -> None:
        with self.lock:
            markers, self.markers = self.markers, []
            for marker in markers:
                producer_id, epoch = marker.identity
                written = self._open.pop(producer_id, set())
                pending = self.pending.pop(producer_id, {})
                if marker.commit:
                    self.committed |= {(producer_id, each) for each in written}
                    self.offsets |= {key: offset for key, (_, offset) in pending.items()}
                for partition in marker.partitions:
                    with self.cluster.changed:
                        self.cluster.producers[partition][producer_id] = (epoch, deque(maxlen=5))
                self.handle(MarkersWritten(marker.transactional_id, marker.identity, marker.partitions))

    def _call(self, method: str, request: Any, work: Callable[[], Any], context: Any) -> Any:
        with self.lock:
            self.calls.append((method, request))
        fate = self.on_call(method, request)
        try:
            if isinstance(fate, HeadraceError):
                raise fate
            answer = work()
        except HeadraceError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{error.code}: {error.message}")
        if fate == "lost":
            context.abort(grpc.StatusCode.UNAVAILABLE, "lost by the test")
        return answer

    def asked(self, method: str) -> list[Any]:
        with self.lock:
            return [request for name, request in self.calls if name == method]

    def InitProducer(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            timeout_ms, keep = request.transaction_timeout_ms, request.keep_prepared
            reply = self.handle(InitProducerId(request.transactional_id, timeout_ms, keep_prepared=keep))
            with self.lock:
                self._names[reply.identity.producer_id] = request.transactional_id
            answer = transactions_pb2.InitProducerResponse(
                producer_id=reply.identity.producer_id, producer_epoch=reply.identity.epoch
            )
            if reply.prepared is not None:
                answer.prepared.CopyFrom(_token(request.transactional_id, reply.prepared))
            return answer

        return self._call("InitProducer", request, work, context)

    def EndTransaction(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            identity = ProducerIdentity(request.producer_id, request.producer_epoch)
            owner = self.handle(EndTransaction(request.transactional_id, identity, request.commit))
            return transactions_pb2.EndTransactionResponse(producer_id=owner.producer_id, producer_epoch=owner.epoch)

        return self._call("EndTransaction", request, work, context)

    def PrepareTransaction(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            identity = ProducerIdentity(request.producer_id, request.producer_epoch)
            token = self.handle(PrepareTransaction(request.transactional_id, identity))
            return transactions_pb2.PrepareTransactionResponse(token=_token(request.transactional_id, token))

        return self._call("PrepareTransaction", request, work, context)

    def CompleteTransaction(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            identity = ProducerIdentity(request.token.producer_id, request.token.producer_epoch)
            self.handle(CompleteTransaction(request.token.transactional_id, identity, request.commit))
            return transactions_pb2.CompleteTransactionResponse()

        return self._call("CompleteTransaction", request, work, context)

    def CommitSinkBatch(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            tokens = tuple(
                (_sink(token.transactional_id), ProducerIdentity(token.producer_id, token.producer_epoch))
                for token in request.tokens
            )
            generation = request.generation if request.HasField("generation") else None
            state = self.handle(CommitSinkBatch(request.sink_id, request.batch, tokens, request.is_final, generation))
            return transactions_pb2.CommitSinkBatchResponse(state=transactions_pb2.SinkState(**state._asdict()))

        return self._call("CommitSinkBatch", request, work, context)

    def AbortSinkBatch(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            state = self.handle(AbortSinkBatch(request.sink_id, request.batch, request.generation, request.is_final))
            return transactions_pb2.AbortSinkBatchResponse(state=transactions_pb2.SinkState(**state._asdict()))

        return self._call("AbortSinkBatch", request, work, context)

    def DescribeSink(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            state = self.handle(DescribeSink(request.sink_id))
            return transactions_pb2.DescribeSinkResponse(state=transactions_pb2.SinkState(**state._asdict()))

        return self._call("DescribeSink", request, work, context)

    def CommitTransactionOffsets(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            identity = ProducerIdentity(request.producer_id, request.producer_epoch)
            self.handle(AddPartitions(request.transactional_id, identity, frozenset({SHARD})))
            answer = transactions_pb2.CommitTransactionOffsetsResponse()
            with self.lock:
                table = self.pending.setdefault(request.producer_id, {})
                for each in request.offsets:
                    key = (request.group_id, each.topic, each.partition)
                    table[key] = max(table.get(key, (0, 0)), (request.sequence, each.offset))
                    answer.results.add(topic=each.topic, partition=each.partition)
            return answer

        return self._call("CommitTransactionOffsets", request, work, context)

    def FetchOffsets(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            answer = groups_pb2.FetchOffsetsResponse()
            with self.lock:
                pending = {key for table in self.pending.values() for key in table}
                for group in request.groups:
                    found = answer.groups.add(group_id=group.group_id)
                    for each in group.partitions.partitions:
                        key = (group.group_id, each.topic, each.partition)
                        item = found.offsets.add(topic=each.topic, partition=each.partition, leader_epoch=-1)
                        item.offset = self.offsets.get(key, -1)
                        if request.require_stable and key in pending:
                            item.error.CopyFrom(error_to_proto(UnstableOffsetCommitError("pending")))  # type: ignore[arg-type]
            return answer

        return self._call("FetchOffsets", request, work, context)

    def abort(self, transactional_id: str) -> None:
        """Abort the open transaction, as an operator (or the timeout) does."""
        self.handle(AbortTransaction(transactional_id))

    # --- the leaders -----------------------------------------------------------------------------------------------

    def _produce(self, broker: int, item: Any) -> Any:
        error = self.on_produce(broker, item)
        header = read_header(item.records, 0)
        if error or header.producer_id not in self._names:
            return error
        assert header.is_transactional
        partition = TopicPartition(item.topic, item.partition)
        with self.lock:
            known = self.cluster.producers[partition].get(header.producer_id)
            if known is not None and header.producer_epoch < known[0]:
                return 47
            identity = ProducerIdentity(header.producer_id, header.producer_epoch)
            try:
                self.handle(AddPartitions(self._names[header.producer_id], identity, frozenset({partition})))
            except HeadraceError as refusal:
                return 47 if refusal.number == 90 else refusal.number
            self._open.setdefault(header.producer_id, set()).add(header.producer_epoch)
        return error

    def records(self, topic: str, partition: int = 0) -> list[bytes]:
        """The values of the committed records, in log order."""
        with self.cluster.changed:
            log = list(self.cluster.logs[topic, partition])
        found: list[bytes] = []
        for batch in log:
            header = read_header(batch, 0)
            if (header.producer_id, header.producer_epoch) in self.committed:
                found += [record.value or b"" for record in RecordIterator([batch])]
        return found


def _sink(transactional_id: str) -> SinkTransaction:
    found = parse_sink_transaction(transactional_id)
    assert found is not None
    return found


def _token(transactional_id: str, identity: ProducerIdentity) -> transactions_pb2.TransactionToken:
    return transactions_pb2.TransactionToken(
        transactional_id=transactional_id, producer_id=identity.producer_id, producer_epoch=identity.epoch
    )
