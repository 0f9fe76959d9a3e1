"""A scripted transaction coordinator for the scripted cluster: the real state machine behind a gRPC server, and the
leaders' part of version 2 (adding partitions, markers, fencing by epoch).

``FakeTransactions(cluster)`` takes over ``cluster.on_produce``. The fake also coordinates groups without members:
offsets in transactions stay pending until the marker. A test uses ``on_call`` to hold markers back, to lose answers, or
to refuse calls.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import headrace_core.rpc  # noqa: F401  (before grpc)

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
from headrace_core.errors import HeadraceError, UnstableOffsetCommitError
from headrace_core.item_errors import error_to_proto
from headrace_core.records import RecordIterator, read_header
from headrace_core.sinks import SinkTransaction, parse_sink_transaction
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, groups_pb2_grpc, transactions_pb2, transactions_pb2_grpc

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
