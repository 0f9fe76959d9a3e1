"""A scripted cluster in this process, for responses that a real cluster gives only in rare failures.

The cluster has threaded gRPC servers (a second grpc.aio loop would disturb the client's), logs in memory, and rules
that a test sets.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import headrace_core.rpc  # noqa: F401  (before grpc)

import grpc  # isort: skip
import pytest

from headrace_core.records import check_batch, read_header, split_batches, with_base
from headrace_protos.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    common_pb2,
    fetch_pb2,
    fetch_pb2_grpc,
    metadata_pb2,
    metadata_pb2_grpc,
    offsets_pb2,
    offsets_pb2_grpc,
    produce_pb2,
    produce_pb2_grpc,
)
from tests.worlds.coordinators_standin import FakeTransactions
from tests.worlds.this_process import free_port
from tests.worlds.transactional_log import TransactionalLog

READ_COMMITTED = common_pb2.ISOLATION_LEVEL_READ_COMMITTED


class FakeCluster:
    """A fake cluster with ``brokers`` servers. Tests set its public attributes; the condition ``changed`` guards the
    attributes for which threads wait. ``restarts``: a test stops servers, and starts them again at their ports."""

    def __init__(self, brokers: int = 1, *, restarts: bool = False) -> None:
        self.changed = threading.Condition()
        self.partitions: dict[str, int] = {}
        self.leaders: dict[tuple[str, int], int] = {}
        self.epochs: dict[tuple[str, int], int] = defaultdict(int)
        self.logs: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.ends: dict[tuple[str, int], int] = defaultdict(int)
        self.starts: dict[tuple[str, int], int] = defaultdict(int)
        #: (topic, partition) -> producer id -> (epoch, its last five batches: first and last sequence, base offset)
        self.producers: dict[tuple[str, int], dict[int, tuple[int, deque[tuple[int, int, int]]]]] = defaultdict(dict)
        self.identities: list[Any] = []  # InitProducerIdRequests in the order of arrival
        self.on_identity: Callable[[Any], object] = lambda request: None  # may wait, or raise a grpc status
        self.topic_ids: dict[str, bytes] = defaultdict(lambda: b"t" * 16)
        self.max_message_bytes = 1_048_588
        self.unknown_topic = ""  # the message of the error UNKNOWN_TOPIC_OR_PARTITION
        self.auto_create = 0  # partitions of an auto-created topic; 0 refuses auto-creation
        #: (broker, ProducePartition) -> error number, 0 to append, "silent" to append without an answer,
        #: "break" to append and break the stream.
        self.on_produce: Callable[[int, Any], Any] = lambda broker, item: 0
        self.on_fetch: Callable[[int, Any], int] = lambda broker, item: 0
        #: Logs with transactions, which determine the records that read_committed requests get.
        self.transactions: dict[tuple[str, int], TransactionalLog] = {}
        #: (broker, partition, rack) -> the nearer follower, or None to stay at this broker.
        self.nearer: Callable[[int, tuple[str, int], str], int | None] = lambda broker, key, rack: None
        self.on_answer: Callable[[Any], object] = lambda answer: None  # a function that may change a produce response
        self.offsets_error = 0
        self.on_offsets: Callable[[Any], object] = lambda request: None
        self.answers_held = False
        self.metadata_held = False
        self.watchable = False  # it reports changes as they happen
        self.watches = 0
        self.creations_held = False  # a requested topic is created, and the response waits
        self.creations_asked = 0
        self.on_create: Callable[[Any], object] = lambda context: None  # called after the creation; may abort the call
        self.produced: list[tuple[int, Any]] = []  # (broker, ProduceRequest) in the order of arrival
        self.fetched: list[tuple[int, Any]] = []
        self.epochs_asked: list[Any] = []
        self.metadata_asked: list[Any] = []
        self.waited_for: list[tuple[int, int]] = []  # (broker, min_metadata_offset of a request)
        self.metadata_offset = 1  # each change increases it
        #: topic -> new count, which brokers apply only when a request waits for the change's metadata offset
        self.unapplied: dict[str, int] = {}
        self.coordinator: tuple[str, int] | None = None  # the values of every key
        self.fetch_in_flight_max = 0
        self.servers: list[grpc.Server] = []
        self.ports: list[int] = []
        for broker in range(brokers):
            self.ports.append(free_port() if restarts else 0)
            self.servers.append(self._serve(broker))

    def _serve(self, broker: int) -> grpc.Server:
        server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.max_receive_message_length", 1 << 27)])
        metadata_pb2_grpc.add_MetadataServicer_to_server(_Metadata(self, broker), server)
        produce_pb2_grpc.add_ProduceServicer_to_server(_Produce(self, broker), server)
        fetch_pb2_grpc.add_FetchServicer_to_server(_Fetch(self, broker), server)
        offsets_pb2_grpc.add_OffsetsServicer_to_server(_Offsets(self, broker), server)
        admin_pb2_grpc.add_AdminServicer_to_server(_Admin(self, broker), server)
        self.ports[broker] = server.add_insecure_port(f"127.0.0.1:{self.ports[broker]}")
        server.start()
        return server

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    def create(self, topic: str, partitions: int = 1, leader: int = 0) -> None:
        with self.changed:
            self.partitions[topic] = partitions
            for number in range(partitions):
                self.leaders[topic, number] = leader

    def delete(self, topic: str) -> None:
        with self.changed:
            for number in range(self.partitions.pop(topic)):
                for known in (self.leaders, self.logs, self.ends, self.producers):
                    known.pop((topic, number), None)
            self.topic_ids[topic] = bytes(reversed(self.topic_ids[topic][:-1])) + b"n"
            self.changed.notify_all()

    def move(self, topic: str, partition: int, leader: int) -> None:
        with self.changed:
            self.leaders[topic, partition] = leader
            self.epochs[topic, partition] += 1
            self.changed.notify_all()

    def append(self, topic: str, partition: int, data: bytes) -> int:
        """Append whole batches; returns the base offset."""
        with self.changed:
            base = end = self.ends[topic, partition]
            for position, size, first, last in split_batches(data):
                batch = (
                    with_base(data, position, end, self.epochs[topic, partition])
                    + data[position + 16 : position + size]
                )
                self.logs[topic, partition].append(batch)
                end += last - first + 1
            self.ends[topic, partition] = end
            self.changed.notify_all()
            return base

    def append_numbered(self, topic: str, partition: int, data: bytes) -> tuple[int, int]:
        """Append by the rules of KIP-98 if the batch has a producer id: (error number, base offset)."""
        header = check_batch(data, 0)
        if header.producer_id < 0:
            return 0, self.append(topic, partition, data)
        first, last = header.base_sequence, header.base_sequence + header.record_count - 1
        with self.changed:
            known = self.producers[topic, partition]
            epoch, batches = known.get(header.producer_id, (header.producer_epoch, deque(maxlen=5)))
            if header.producer_epoch < epoch:
                return 47, -1
            if header.producer_epoch > epoch:
                if first:
                    return 45, -1
                batches = deque(maxlen=5)
            for old_first, old_last, offset in batches:
                if (old_first, old_last) == (first, last):
                    return 0, offset
            if batches and first != batches[-1][1] + 1:
                return 45, -1
            offset = self.append(topic, partition, data)
            batches.append((first, last, offset))
            known[header.producer_id] = (header.producer_epoch, batches)
            return 0, offset

    def truncate(self, topic: str, partition: int, batches: int) -> None:
        """Remove this number of batches from the end, as an unclean election does, and begin the next leader epoch."""
        with self.changed:
            log = self.logs[topic, partition]
            del log[-batches:]
            self.ends[topic, partition] = split_batches(log[-1])[0][3] + 1 if log else 0
            self.epochs[topic, partition] += 1
            self.changed.notify_all()

    def end_of_epoch(self, key: tuple[str, int], epoch: int) -> tuple[int, int]:
        """The largest epoch that is at most ``epoch``, and the offset after its last record. The epoch and the offset
        are -1 if no such epoch exists."""
        found = (-1, -1)
        for batch in self.logs[key]:
            header = read_header(batch, 0)  # a damaged batch, too
            if header.leader_epoch <= epoch:
                found = (header.leader_epoch, header.next_offset)
        return found

    def put(self, topic: str, partition: int, log: TransactionalLog) -> None:
        """Make ``log`` the partition's log."""
        with self.changed:
            self.transactions[topic, partition] = log
            self.logs[topic, partition] = list(log.batches)
            self.ends[topic, partition] = log.end_offset
            self.changed.notify_all()

    def last_stable_offset(self, key: tuple[str, int]) -> int:
        log = self.transactions.get(key)
        return self.ends[key] if log is None else log.last_stable_offset

    def records(self, topic: str, partition: int = 0) -> list[Any]:
        from headrace_core.records import RecordIterator

        with self.changed:
            return list(RecordIterator(list(self.logs[topic, partition])))

    def hold_answers(self, held: bool) -> None:
        with self.changed:
            self.answers_held = held
            self.changed.notify_all()

    def stop(self) -> None:
        self.metadata_held = self.creations_held = False
        self.hold_answers(False)
        for server in self.servers:
            server.stop(0)
        for server in self.servers:
            server.wait_for_termination(5)


class _Admin(admin_pb2_grpc.AdminServicer):
    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        self.cluster, self.broker = cluster, broker

    def DescribeConfigs(self, request: Any, context: Any) -> Any:
        """A broker shows the changes up to the largest metadata offset for which a request has waited at this
        broker."""
        applied = max((offset for broker, offset in self.cluster.waited_for if broker == self.broker), default=0)
        answer = admin_pb2.DescribeConfigsResponse()
        for resource in request.resources:
            result = answer.results.add(resource=resource)
            result.entries.add(name="retention.ms", value="new" if applied == self.cluster.metadata_offset else "old")
        return answer

    def AlterConfigs(self, request: Any, context: Any) -> Any:
        with self.cluster.changed:
            self.cluster.metadata_offset += 1
            answer = admin_pb2.AlterConfigsResponse(metadata_offset=self.cluster.metadata_offset)
        for item in request.resources:
            answer.results.add(resource=item.resource)
        return answer

    def CreateTopics(self, request: Any, context: Any) -> Any:
        cluster = self.cluster
        answer = admin_pb2.CreateTopicsResponse()
        with cluster.changed:
            cluster.creations_asked += 1
            for item in request.topics:
                result = answer.results.add(name=item.name, partitions=1, replication_factor=1)
                if item.name in cluster.partitions:
                    result.error.code = 36
                    result.error.message = f"topic {item.name} exists"
            for item in request.topics:
                cluster.create(item.name)
            cluster.metadata_offset += 1
            answer.metadata_offset = cluster.metadata_offset
            cluster.changed.notify_all()
            cluster.changed.wait_for(lambda: not cluster.creations_held, 60)
        cluster.on_create(context)
        return answer

    def CreatePartitions(self, request: Any, context: Any) -> Any:
        cluster = self.cluster
        with cluster.changed:
            cluster.metadata_offset += 1
            answer = admin_pb2.CreatePartitionsResponse(metadata_offset=cluster.metadata_offset)
            for item in request.topics:
                cluster.unapplied[item.topic] = item.total_count
                answer.results.add(topic=item.topic)
        return answer


class _Metadata(metadata_pb2_grpc.MetadataServicer):
    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        self.cluster, self.broker = cluster, broker

    def FindCoordinator(self, request: Any, context: Any) -> Any:
        answer = metadata_pb2.FindCoordinatorResponse()
        for key in request.keys:
            item = answer.coordinators.add(key=key, coordinator_id=-1)
            if self.cluster.coordinator is not None:
                item.coordinator_id, (item.host, item.port) = 9, self.cluster.coordinator
        return answer

    def GetMetadata(self, request: Any, context: Any) -> Any:
        cluster = self.cluster
        with cluster.changed:
            cluster.metadata_asked.append(request)
            cluster.waited_for.append((self.broker, request.min_metadata_offset))
            while cluster.metadata_held and context.is_active():
                cluster.changed.wait(0.05)
            return self._answer(request)

    def _answer(self, request: Any) -> Any:
        cluster = self.cluster
        with cluster.changed:
            if request.min_metadata_offset >= cluster.metadata_offset:
                for name, count in cluster.unapplied.items():
                    cluster.create(name, count)
                cluster.unapplied.clear()
            applied = cluster.metadata_offset - bool(cluster.unapplied)
            answer = metadata_pb2.MetadataResponse(cluster_id="fake", controller_id=0, metadata_offset=applied)
            for broker, port in enumerate(cluster.ports):
                answer.brokers.add(broker_id=broker, host="127.0.0.1", port=port)
            for name in request.topics:
                if name not in cluster.partitions and cluster.auto_create and request.allow_auto_topic_creation:
                    cluster.create(name, cluster.auto_create)
                item = answer.topics.add(
                    name=name, topic_id=cluster.topic_ids[name], max_message_bytes=cluster.max_message_bytes
                )
                if name not in cluster.partitions:
                    item.error.code = 3  # type: ignore[assignment]
                    item.error.message = cluster.unknown_topic
                    continue
                for number in range(cluster.partitions[name]):
                    leader = cluster.leaders[name, number]
                    item.partitions.add(partition=number, leader_id=leader, leader_epoch=cluster.epochs[name, number])
        return answer

    def WatchMetadata(self, request: Any, context: Any) -> Iterator[Any]:
        cluster = self.cluster
        if not cluster.watchable:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no watches here")
        with cluster.changed:
            cluster.watches += 1
        previous = None
        while context.is_active():
            with cluster.changed:
                answer = self._answer(request)
                if answer == previous:
                    cluster.changed.wait(0.05)
                    continue
            previous = answer
            yield answer


class _Produce(produce_pb2_grpc.ProduceServicer):
    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        self.cluster, self.broker = cluster, broker

    def InitProducerId(self, request: Any, context: Any) -> Any:
        cluster = self.cluster
        with cluster.changed:
            cluster.identities.append(request)
        cluster.on_identity(context)
        if request.HasField("producer_id"):
            return produce_pb2.InitProducerIdResponse(
                producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
            )
        return produce_pb2.InitProducerIdResponse(producer_id=1_000 + len(cluster.identities), producer_epoch=0)

    def Produce(self, requests: Any, context: Any) -> Iterator[Any]:
        cluster = self.cluster
        for request in requests:
            with cluster.changed:
                cluster.produced.append((self.broker, request))
                cluster.changed.notify_all()
            answer = produce_pb2.ProduceResponse(correlation_id=request.correlation_id)
            silent = False
            for item in request.partitions:
                verdict = cluster.on_produce(self.broker, item)
                result = answer.results.add(topic=item.topic, partition=item.partition, base_offset=-1)
                key = (item.topic, item.partition)
                if verdict in (0, "silent", "break") and cluster.leaders.get(key) != self.broker:
                    result.error.code = 6  # type: ignore[assignment]
                elif verdict in (0, "silent", "break"):
                    error, result.base_offset = cluster.append_numbered(item.topic, item.partition, item.records)
                    result.error.code = error  # type: ignore[assignment]
                    result.log_append_time_ms = -1
                else:
                    result.error.code = verdict
                    result.error.message = "an error set by the test"
                if verdict == "break":
                    context.abort(grpc.StatusCode.UNAVAILABLE, "broken by the test")
                silent = silent or verdict == "silent"
            with cluster.changed:
                while cluster.answers_held and context.is_active():
                    cluster.changed.wait(0.05)
            cluster.on_answer(answer)
            if not silent and request.acks != produce_pb2.ACKS_NONE:
                yield answer


class _Fetch(fetch_pb2_grpc.FetchServicer):
    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        self.cluster, self.broker = cluster, broker

    def Fetch(self, requests: Any, context: Any) -> Iterator[Any]:
        cluster = self.cluster
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def read() -> None:
            try:
                for request in requests:
                    inbox.put(request)
                    with cluster.changed:
                        cluster.changed.notify_all()
            except grpc.RpcError:
                pass
            inbox.put(None)

        threading.Thread(target=read, daemon=True).start()
        session: dict[tuple[str, int], list[int]] = {}
        while (request := inbox.get()) is not None:
            with cluster.changed:
                cluster.fetched.append((self.broker, request))
                cluster.fetch_in_flight_max = max(cluster.fetch_in_flight_max, 1 + inbox.qsize())
            for item in request.partitions:
                session[item.topic, item.partition] = [item.fetch_offset, item.max_bytes, item.last_fetched_epoch]
            for item in request.forgotten:
                session.pop((item.topic, item.partition), None)
            deadline = time.monotonic() + request.max_wait_ms / 1000
            while True:
                with cluster.changed:
                    answer = self._answer(request, session)
                    left = deadline - time.monotonic()
                    if answer.results or left <= 0 or not inbox.empty() or not context.is_active():
                        break
                    cluster.changed.wait(min(left, 0.05))
            yield answer

    def _answer(self, request: Any, session: dict[tuple[str, int], list[int]]) -> Any:
        cluster = self.cluster
        answer = fetch_pb2.FetchResponse(correlation_id=request.correlation_id)
        room = request.max_bytes
        for key, (offset, max_bytes, last_epoch) in list(session.items()):
            error = cluster.on_fetch(self.broker, key)
            leads = cluster.leaders.get(key) == self.broker
            if not error and not leads and not request.rack:
                error = 6
            if not error and not cluster.starts[key] <= offset <= cluster.ends[key]:
                error = 1
            if not error and last_epoch >= 0:
                epoch, end = cluster.end_of_epoch(key, last_epoch)
                error = 1 if epoch != last_epoch or end < offset else 0
            nearer = cluster.nearer(self.broker, key, request.rack) if leads and not error else None
            if nearer is not None:
                answer.results.add(
                    topic=key[0],
                    partition=key[1],
                    fetch_offset=offset,
                    next_offset=offset,
                    preferred_read_replica=nearer,
                )
                del session[key]
                continue
            if error:
                result = answer.results.add(topic=key[0], partition=key[1], fetch_offset=offset)
                result.error.code = error  # type: ignore[assignment]
                result.error.message = "an error set by the test"
                del session[key]
                continue
            taken, at, size = [], offset, 0
            base = 0
            stable, committed = cluster.last_stable_offset(key), request.isolation_level == READ_COMMITTED
            for batch in cluster.logs[key]:
                base = split_batches(batch)[0][3] + 1
                if base <= offset:
                    continue
                if committed and base > stable:
                    break
                if taken and (size + len(batch) > max_bytes or size + len(batch) > room):
                    break
                taken.append(batch)
                size += len(batch)
                at = base
            if taken:
                room -= size
                session[key][0], session[key][2] = at, -1
                result = answer.results.add(
                    topic=key[0],
                    partition=key[1],
                    fetch_offset=offset,
                    next_offset=at,
                    high_watermark=cluster.ends[key],
                    last_stable_offset=stable,
                    log_start_offset=cluster.starts[key],
                    records=b"".join(taken),
                )
                if committed and key in cluster.transactions:
                    for each in cluster.transactions[key].aborted_between(offset, at):
                        result.aborted_transactions.add(producer_id=each.producer_id, first_offset=each.first_offset)
            if room <= 0:
                break
        return answer


class _Offsets(offsets_pb2_grpc.OffsetsServicer):
    def __init__(self, cluster: FakeCluster, broker: int) -> None:
        self.cluster, self.broker = cluster, broker

    def _error(self, key: tuple[str, int]) -> int:
        """Answer with NOT_LEADER_OR_FOLLOWER, as a broker does for a partition that another broker leads."""
        return self.cluster.offsets_error or (0 if self.cluster.leaders.get(key) == self.broker else 6)

    def ListOffsets(self, request: Any, context: Any) -> Any:
        cluster = self.cluster
        cluster.on_offsets(request)
        answer = offsets_pb2.ListOffsetsResponse()
        with cluster.changed:
            for item in request.partitions:
                key = (item.topic, item.partition)
                committed = request.isolation_level == READ_COMMITTED
                end = cluster.last_stable_offset(key) if committed else cluster.ends[key]
                offset = cluster.starts[key] if item.timestamp_ms == -2 else end
                result = answer.results.add(topic=item.topic, partition=item.partition, offset=offset, timestamp_ms=-1)
                result.error.code = self._error(key)  # type: ignore[assignment]
        return answer

    def OffsetForLeaderEpoch(self, request: Any, context: Any) -> Any:
        cluster = self.cluster
        answer = offsets_pb2.OffsetForLeaderEpochResponse()
        with cluster.changed:
            cluster.epochs_asked.append(request)
            for item in request.partitions:
                key = (item.topic, item.partition)
                epoch, end = cluster.end_of_epoch(key, item.leader_epoch)
                result = answer.results.add(
                    topic=item.topic, partition=item.partition, leader_epoch=epoch, end_offset=end
                )
                result.error.code = self._error(key)  # type: ignore[assignment]
        return answer


@pytest.fixture
def fake_cluster() -> Iterator[Callable[..., FakeCluster]]:
    """Create fake clusters, and stop them after the test."""
    made: list[FakeCluster] = []

    def make(brokers: int = 1, *, restarts: bool = False) -> FakeCluster:
        made.append(FakeCluster(brokers, restarts=restarts))
        return made[-1]

    yield make
    for cluster in made:
        cluster.stop()


@pytest.fixture
def fake(fake_cluster: Callable[..., FakeCluster]) -> FakeCluster:
    """One broker, one topic "t" with one partition."""
    cluster = fake_cluster()
    cluster.create("t")
    return cluster


@pytest.fixture
def transactions(fake: FakeCluster) -> Iterator[FakeTransactions]:
    """The coordinator of ``fake``'s transactions."""
    made = FakeTransactions(fake)
    yield made
    made.stop()


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port without a listener (it stays bound, so that no other process gets it)."""
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
