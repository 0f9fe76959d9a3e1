"""The Produce service: it reads requests, checks them, passes the records to the log's writer, and answers when
``acks`` is satisfied.

A produce request needs no task, because callbacks process it. The stream's reader calls ``on_request``, the directory's
writer calls back, and the last partition to finish queues the answer. Once the records are passed to the writer, the
append happens even if the stream ends, so a cancellation never leaves half a write.

Back-pressure: the broker does not read a stream while the bytes of the stream's requests in progress are above
``stream_bytes_max``. The broker also stops reading a stream while the requests in memory together exceed the broker's
budget. A client that leaves answers unread, or is over a quota (client_limits.py), stops the reading of its stream,
too.

A produce request is *in progress* until the broker has answered the request and has written its records to the log. A
request that timed out is in progress while its records wait for the disk. A request is *in memory* only until its
records are in the log. A request that waits for followers is therefore no part of the broker's budget (``ByteBudget``):
a partition that commits nothing must not stop the producers of other partitions. Such a request still keeps names and
the state of its partitions (``UnansweredRequests``).
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import deque
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    InvalidRequiredAcksError,
    InvalidTopicError,
    RecordListTooLargeError,
    RefusedRecordsError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.log import AppendInfo
from headrace_core.log.fencing import Fence
from headrace_core.metadata.shards import INTERNAL_TOPICS, SHARD_TOPICS
from headrace_core.quotas import PRODUCER_BYTE_RATE, ClientLimits, throttle_ms
from headrace_core.quotas.callers import limits_of
from headrace_core.records import check_batch_count
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.security import refusals
from headrace_core.security.access import Access, current_access
from headrace_core.security.acl_types import Operation, ResourceType
from headrace_core.types import FlushPolicy, TopicPartition
from headrace_protos.v1 import common_pb2, produce_pb2, produce_pb2_grpc

from ..bulk_turns import BULK_BYTES
from ..client_limits import StreamBrake
from ..context import BrokerContext
from ..deadlines import Expiring
from ..leader_replica import Done, LeaderReplica, ProducerTransaction
from ..partition import PartitionLeader, first_header
from ..partition.leader import Waiting
from ..partition.versions import check_topic_id

logger = logging.getLogger(__name__)

_DURABILITY = {
    FlushPolicy.COMMIT: produce_pb2.DURABILITY_COMMIT,
    FlushPolicy.INTERVAL: produce_pb2.DURABILITY_INTERVAL,
    FlushPolicy.OS: produce_pb2.DURABILITY_OS,
}
#: While a client leaves more than UNREAD_BYTES_MAX bytes of answers unread, the broker does not read the client's
#: stream.
UNREAD_BYTES_MAX = 1024 * 1024
#: Approximate memory in bytes of one partition of an unanswered request whose records are in the log, without its name.
KEPT_BYTES = 2048
#: While the unanswered requests of all streams keep too many bytes (``UnansweredRequests``), the broker does not read a
#: stream whose own unanswered requests keep more than KEPT_BYTES_MAX bytes.
KEPT_BYTES_MAX = 1024 * 1024
#: Entry of ``_Pending.in_memory`` for the request's message itself, while the broker reads the message.
_MESSAGE = -1
#: Reasons why the broker does not read a produce stream: a limit of the stream or of all streams, unread answers, or a
#: client's quota. After a large request, the stream also waits for its turn (``BulkTurns``).
#: While the broker handles a request in portions, it does not read the next one either.
_OWN_LIMIT, _BROKER_LIMIT, _UNREAD_ANSWERS, _QUOTA, _TURN, _PORTIONS = 1, 2, 4, 8, 16, 32
#: Partitions of a request that the event loop handles before it runs other tasks, about 3 ms.
PORTION = 200
_OVER = object()
#: Error codes for a produce request with invalid records. If a client's request fails with one of the codes in
#: _WORTHLESS in every partition, the broker delays the connection's next requests (``Penalties``). If several clients
#: share the stream, the broker delays the answer.
_WORTHLESS = ("CORRUPT_MESSAGE", "INVALID_RECORD", "INVALID_TIMESTAMP", "MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE")
#: Maximum number of invalid records that one produce answer lists, over all partitions.
_FAULTS_MAX = 100
_TRANSACTION_VERSIONS = (1, 2)
#: Maximum number of batches for a partition in one request. A client sends one, as in Kafka. A coordinator joins a few
#: (512 KiB each, together 1 MB) for its shard in one append.
_CLIENTS_BATCHES_MAX, _COORDINATORS_BATCHES_MAX = 1, 16
_REQUEST = "Produce"  #: Name of the request in the metrics.
_ACKS = (produce_pb2.ACKS_UNSPECIFIED, produce_pb2.ACKS_ALL, produce_pb2.ACKS_LEADER, produce_pb2.ACKS_NONE)


class Writers(enum.Enum):
    """Allowed writers of a listener: clients write to topics; coordinators write to their shards, on the internal
    listener. A client that could set a shard's epoch could permanently fence the shard's coordinator."""

    CLIENTS = enum.auto()
    COORDINATORS = enum.auto()


class ProduceService(produce_pb2_grpc.ProduceServicer):
    """headrace.v1.Produce. ``writers``: the kind of writers that the service's listener allows."""

    def __init__(self, broker: BrokerContext, writers: Writers = Writers.CLIENTS) -> None:
        self._broker = broker
        self._writers = writers

    async def Produce(self, request_iterator: Any, context: Any) -> None:
        await self._serve(ServerStream(context), context, is_packed=False)

    async def ProduceMany(self, request_iterator: Any, context: Any) -> None:
        await self._serve(ServerStream(context, packed=produce_pb2.ProduceResponses), context, is_packed=True)

    async def _serve(self, stream: ServerStream[Any, Any], context: Any, *, is_packed: bool) -> None:
        is_client = self._writers is Writers.CLIENTS
        limits = limits_of(self._broker.quotas, context, is_shared=is_packed) if is_client else None
        if limits is not None:
            await self._broker.connections.admitted(context)
        self._broker.streams.add(stream)
        self._broker.client_streams += is_client
        try:
            await stream.run(ProduceStream(self._broker, stream, self._writers, is_packed=is_packed, limits=limits))
        finally:
            self._broker.streams.discard(stream)
            self._broker.client_streams -= is_client

    async def InitProducerId(self, request: Any, context: Any) -> Any:
        """Return a producer id and an epoch for an idempotent producer (KIP-98, KIP-360)."""
        ids = self._broker.producer_ids
        if ids is None:
            raise UnsupportedVersionError(
                "this broker has no connection to a controller, which assigns producer ids; retry"
            )
        has_id, has_epoch = request.HasField("producer_id"), request.HasField("producer_epoch")
        if has_id != has_epoch:
            raise InvalidRequestError("producer_id and producer_epoch belong together: send both or neither")
        if has_id:
            producer_id, epoch = await ids.renewed(request.producer_id, request.producer_epoch)
        else:
            producer_id, epoch = await ids.next_id(), 0
        return produce_pb2.InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)


def _refused(access: Access, resource_type: ResourceType, name: str) -> HeadraceError | None:
    """Return the authorization error if the caller is not authorized to write to the resource, else None."""
    if access.allows(Operation.WRITE, resource_type, name):
        return None
    return refusals.refusal(Operation.WRITE, resource_type, name, access.caller.principal)


def fence_of(item: Any, writers: Writers) -> Fence | None:
    """The fencing conditions of one partition's append; None if the append has no conditions. Raises InvalidTopicError
    if a client writes to an internal topic, and InvalidRequestError for conditions that the writer is not allowed to
    set."""
    topic, has_epoch = item.topic, item.HasField("shard_epoch")
    if writers is Writers.CLIENTS:
        if topic in INTERNAL_TOPICS:
            raise InvalidTopicError(
                f"cannot write to {topic}: only coordinators write to it; commit offsets through the group's "
                "coordinator"
            )
        if has_epoch or item.HasField("expected_end"):
            raise InvalidRequestError(
                f"{topic}-{item.partition}: only coordinators may send shard_epoch and expected_end; leave them out"
            )
        return None
    if topic not in SHARD_TOPICS or not has_epoch or item.shard_epoch < 0:
        raise InvalidRequestError(
            f"{topic}-{item.partition}: coordinators may append only to {' and '.join(SHARD_TOPICS)}, with the "
            "shard_epoch of their shard"
        )
    return Fence(item.shard_epoch, item.expected_end if item.HasField("expected_end") else None)


class _Pending(Expiring):
    """A produce request in progress. ``results`` has one entry for each partition of the request."""

    __slots__ = (
        "acks",
        "answered",
        "correlation_id",
        "faults_left",
        "in_memory",
        "is_in_memory",
        "is_worthless",
        "kept",
        "local_s",
        "order",
        "partitions",
        "remaining",
        "replicas",
        "results",
        "size",
        "started_s",
        "stream",
        "throttle_s",
        "waiting",
    )

    def __init__(self, stream: ProduceStream, correlation_id: int, acks: int, partitions: list[TopicPartition]) -> None:
        super().__init__()
        self.stream = stream
        self.correlation_id = correlation_id
        self.acks = acks
        self.partitions = partitions
        #: One key for each partition of the request: answers to appends with equal keys keep their order. The key is
        #: the partition, or for a transactional append the partition and the producer id. With a key for each producer,
        #: an append that waits for its transaction's coordinator does not delay the answers of other producers.
        self.order: list[Hashable] = partitions  # type: ignore[assignment]
        self.results: list[Any] = [None] * len(partitions)
        #: The leader replicas that receive the records. With acks=all, the error after a timeout contains the replica's
        #: reason why the records are not committed yet.
        self.replicas: list[LeaderReplica | None] = [None] * len(partitions)
        self.remaining = len(partitions)
        self.size = 0
        #: Approximate bytes that the request keeps after its records were written, until it is answered.
        self.kept = KEPT_BYTES * len(partitions) + sum([len(partition.topic) for partition in partitions])
        self.faults_left = _FAULTS_MAX
        self.started_s = time.perf_counter()  #: Time at which the request arrived.
        self.local_s = 0.0  #: Time at which all records of the request were in the log; 0 before that time.
        self.throttle_s = 0.0  #: Seconds that the client must wait because of a quota.
        self.is_worthless = True  #: Whether each partition that is done was refused because its records are invalid.
        #: Whether the request needs no answer any more: the broker has sent the answer, or the stream has ended.
        self.answered = False
        #: Indexes in the request of the partitions whose records are not yet in the log, and ``_MESSAGE``.
        self.in_memory: set[int] = {_MESSAGE}
        #: Whether the bytes of this request are a part of the broker's budget.
        self.is_in_memory = True
        #: The appends that wait for other replicas: each with its leader, and the argument for ``give_up``.
        self.waiting: list[tuple[PartitionLeader, Waiting]] = []

    def expire(self) -> None:
        self.stream.expired(self)

    def free_answer(self) -> None:
        """Free what only the answer needs, because the client has its answer or has gone. The callbacks of appends keep
        this object until the records are in the log. They do not wait for other replicas any more: while the high
        watermark does not advance, clients send again and again."""
        self.partitions, self.order, self.results, self.replicas = [], [], [], []
        waits, self.waiting = self.waiting, []
        for leader, waiting in waits:
            leader.give_up(waiting, _late())


class _Held:
    """A refused append, whose error is sent after ``before`` earlier appends to the same partition have ended."""

    __slots__ = ("before", "error", "index", "pending")

    def __init__(self, before: int, pending: _Pending, index: int, error: HeadraceError) -> None:
        self.before = before
        self.pending = pending
        self.index = index
        self.error = error


class ProduceStream(StreamHandler[Any]):
    """One stream. ``is_packed``: each message contains the requests of several producers (ProduceMany)."""

    __slots__ = (
        "_access",
        "_appending",
        "_brake",
        "_broker",
        "_held",
        "_holds",
        "_in_flight",
        "_in_flight_bytes",
        "_is_closed",
        "_is_packed",
        "_kept_bytes",
        "_local_times",
        "_remote_times",
        "_stream",
        "_times",
        "_writers",
    )

    def __init__(
        self,
        broker: BrokerContext,
        stream: ServerStream[Any, Any],
        writers: Writers = Writers.CLIENTS,
        *,
        is_packed: bool = False,
        limits: ClientLimits | None = None,
    ) -> None:
        self._access = current_access()
        self._is_packed = is_packed
        hold, release = partial(self._hold, _QUOTA), partial(self._release, _QUOTA)
        self._brake = None if limits is None else StreamBrake(limits, hold, release)
        self._broker = broker
        self._writers = writers
        self._stream = stream
        times = broker.metrics.client_times if writers is Writers.CLIENTS else broker.metrics.internal_times
        self._times, self._local_times = times.of(_REQUEST), times.local_of(_REQUEST)
        self._remote_times = times.remote_of(_REQUEST)
        self._in_flight: set[_Pending] = set()
        self._in_flight_bytes = 0
        self._kept_bytes = 0
        self._is_closed = False
        self._holds = 0  # reasons why the stream is not read, as bits (see ``pause``)
        self._appending: dict[Hashable, int] = {}  # number of appends in progress by ``_Pending.order``
        self._held: dict[Hashable, deque[_Held]] = {}
        if self._brake is not None:
            self._brake.begin(PRODUCER_BYTE_RATE)

    # -- StreamHandler -----------------------------------------------------------------------------------------------

    def on_request(self, request: Any) -> None:
        self._work_on(self._handle_all(request))
        if self._stream.request_bytes < BULK_BYTES:
            self._broker.turns.note()
        else:  # the stream's next request is read after other clients had their turn
            self._hold(_TURN)
            self._broker.turns.ask(partial(self._release, _TURN))

    def _work_on(self, portions: Iterator[None]) -> None:
        """Handle the next portion of a message. The stream is not read before the last one."""
        brake = self._brake
        is_timed = brake is not None and brake.limits.measures_work
        started_s = time.perf_counter() if is_timed else 0.0
        is_over = next(portions, _OVER) is _OVER
        if is_timed and brake is not None:
            brake.worked(started_s)
        if not is_over:
            self._hold(_PORTIONS)
            asyncio.get_running_loop().call_soon(self._work_on_later, portions)
        elif self._holds & _PORTIONS:
            self._release(_PORTIONS)
            self._stream.check_idle()

    def _work_on_later(self, portions: Iterator[None]) -> None:
        try:
            self._work_on(portions)
        except Exception as error:  # noqa: BLE001  (ends the stream, as an error of ``on_request`` does)
            self._stream.finish(error)

    def _handle_all(self, request: Any) -> Iterator[None]:
        if self._is_packed:
            handled = 0
            for each in request.requests:
                handled += len(each.partitions)
                if handled > PORTION:
                    handled = len(each.partitions)
                    yield
                    if self._is_closed:
                        return
                yield from self._handle(each, each.ByteSize())
        else:
            yield from self._handle(request, self._stream.request_bytes)

    def _handle(self, request: Any, size: int) -> Iterator[None]:
        """Handle one request of ``size`` bytes. Yields after each portion of PORTION partitions, except the last."""
        items = request.partitions
        if not items:
            raise InvalidRequestError(f"produce request {request.correlation_id} names no partition")
        if request.timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms={request.timeout_ms}: must not be negative")
        records = [item.records for item in items]  # read the records once, because each access copies them
        partitions = [TopicPartition(item.topic, item.partition) for item in items]
        pending = _Pending(self, request.correlation_id, request.acks, partitions)
        record_bytes = sum(map(len, records))
        pending.size = max(record_bytes, size)  # size of the whole request, including names
        self._begin(pending, record_bytes)
        try:
            yield from self._append_all(request, pending, records, record_bytes)
        finally:
            self._freed(pending, _MESSAGE)
            if self._is_closed:  # the call ended while this message was on the way from the reader
                self._abandon()

    def _append_all(self, request: Any, pending: _Pending, records: list[bytes], record_bytes: int) -> Iterator[None]:
        """Check the request, and pass the records of its partitions to the replicas."""
        broker, acks, transactional_id = self._broker, pending.acks, request.transactional_id
        items, partitions = request.partitions, pending.partitions
        if self._brake is not None:
            pending.throttle_s = self._brake.produced(pending.size)
        refused = self._refusal_of_all(pending, record_bytes)
        if transactional_id and refused is None:
            refused = self._refusal_of_transaction(request)
        access = self._access
        granted = access.granted(Operation.WRITE, ResourceType.TOPIC)
        if granted is not None and transactional_id and refused is None:
            refused = _refused(access, ResourceType.TRANSACTIONAL_ID, transactional_id)
        if refused is not None:
            for index in range(len(partitions)):
                self._failed(pending, index, refused)
            return
        if acks != produce_pb2.ACKS_NONE:
            broker.deadlines.add(pending, request.timeout_ms or broker.limits.request_timeout_ms)
        now_ms = broker.clock.now_ms()
        committed = acks in (produce_pb2.ACKS_ALL, produce_pb2.ACKS_UNSPECIFIED)
        transaction: ProducerTransaction | None = None
        batches_max = _CLIENTS_BATCHES_MAX if self._writers is Writers.CLIENTS else _COORDINATORS_BATCHES_MAX
        traces = broker.traces
        if transactional_id:
            pending.order = list(partitions)
        for index, item in enumerate(items):
            if index and not index % PORTION:
                yield
                if pending.answered:  # it has timed out, or the client has gone
                    return
            try:
                if granted is not None and (topic := partitions[index].topic) not in granted:
                    access.require(Operation.WRITE, ResourceType.TOPIC, topic)
                fence = fence_of(item, self._writers)
                check_batch_count(records[index], batches_max, partitions[index])
                if transactional_id:
                    transaction = self._transaction_of(request, records[index])
                    if transaction is not None:
                        pending.order[index] = partitions[index], transaction.producer_id
                replica = broker.partitions.leader(partitions[index])
                check_topic_id(replica.leader, item.topic_id)
                pending.in_memory.add(index)
                order = pending.order[index]
                done: Done = partial(self._appended, pending, index, order, replica)
                trace = None
                if traces is not None and item.traceparent:
                    trace = traces.append(partitions[index], item.traceparent, len(records[index]))
                    done = done if trace is None else trace.ending(done)
                try:
                    replica.append(
                        records[index],
                        now_ms,
                        done,
                        committed=committed,
                        written=partial(self._written, pending, index, replica),
                        fence=fence,
                        transaction=transaction,
                        trace=trace,
                    )
                except BaseException as error:
                    pending.in_memory.discard(index)
                    if trace is not None and isinstance(error, HeadraceError):
                        trace.end(error)
                    raise
            except HeadraceError as error:
                self._refused(pending, index, error)
            else:
                pending.replicas[index] = replica
                self._appending[order] = self._appending.get(order, 0) + 1

    def _transaction_of(self, request: Any, records: bytes) -> ProducerTransaction | None:
        """The transaction of a partition's batches; None if the first one is not transactional. As in Kafka, the
        batches are then appended outside of the transaction. Raises the errors of ``first_header``."""
        assert self._broker.verifier is not None, "the request was refused"
        header = first_header(records)
        if not header.is_transactional:
            return None
        return self._broker.verifier.transaction(
            request.transactional_id, header.producer_id, header.producer_epoch, request.transaction_version
        )

    def _refusal_of_all(self, pending: _Pending, record_bytes: int) -> HeadraceError | None:
        """An error of the whole request, which is returned for each of its partitions."""
        if pending.acks not in _ACKS:
            return InvalidRequiredAcksError(f"acks={pending.acks}: must be NONE, LEADER or ALL")
        if self._writers is Writers.COORDINATORS and pending.acks != produce_pb2.ACKS_ALL:
            return InvalidRequiredAcksError(f"acks={pending.acks}: must be ALL for an append of a coordinator")
        most = self._broker.limits.request_bytes_max
        if record_bytes > most:
            return RecordListTooLargeError(
                f"the request has {record_bytes} bytes of records, more than socket.request.max.bytes={most}; "
                "lower the producer's batch.size and max.request.size"
            )
        return None

    def _refusal_of_transaction(self, request: Any) -> HeadraceError | None:
        """An error of a whole request with a transactional id."""
        if self._writers is Writers.COORDINATORS:
            return InvalidRequestError("a coordinator's append to its shard cannot have a transactional id")
        if request.acks not in (produce_pb2.ACKS_ALL, produce_pb2.ACKS_UNSPECIFIED):
            return InvalidRequiredAcksError(f"acks={request.acks}: must be ALL with a transactional id")
        if request.transaction_version not in _TRANSACTION_VERSIONS:
            return InvalidRequestError(
                f"transaction_version={request.transaction_version}: must be 1 or 2 with a transactional id"
            )
        if self._broker.verifier is None:
            return UnsupportedVersionError("this broker cannot reach the coordinators of transactions")
        return None

    def is_idle(self) -> bool:
        return not self._in_flight and not self._holds & _PORTIONS

    def on_written(self) -> None:
        if self._holds & _UNREAD_ANSWERS and self._stream.queued_bytes <= UNREAD_BYTES_MAX // 2:
            self._release(_UNREAD_ANSWERS)

    def on_closed(self) -> None:
        self._is_closed = True
        self._broker.budget.forget(self)
        self._abandon()
        if self._brake is not None:
            self._brake.close()

    def _abandon(self) -> None:
        """Free what the requests in progress keep for their answers, because the stream has ended. Requests in memory
        stay a part of the broker's budget until their records are in the log."""
        self._held.clear()
        for pending in list(self._in_flight):
            self._broker.deadlines.discard(pending)
            pending.answered = True
            pending.free_answer()
            self._end(pending)

    # -- back-pressure (ByteBudget's Pausable) -----------------------------------------------------------------------

    def pause(self) -> None:
        self._hold(_BROKER_LIMIT)

    def resume(self) -> None:
        self._release(_BROKER_LIMIT)

    def _hold(self, reason: int) -> None:
        self._holds |= reason
        self._stream.pause()

    def _release(self, reason: int) -> None:
        self._holds &= ~reason
        if not self._holds:
            self._stream.resume()

    # -- a request's life --------------------------------------------------------------------------------------------

    def _begin(self, pending: _Pending, record_bytes: int) -> None:
        broker = self._broker
        broker.metrics.produce_requests.value += 1
        broker.metrics.produce_bytes.value += record_bytes
        self._in_flight.add(pending)
        self._in_flight_bytes += pending.size
        self._kept_bytes += pending.kept
        broker.unanswered.add(pending.kept)
        if self._has_too_many():
            self._hold(_OWN_LIMIT)
        broker.budget.take(pending.size, self)

    def _has_too_many(self) -> bool:
        """Whether the stream's requests in progress exceed a limit of the stream."""
        broker = self._broker
        if self._in_flight_bytes > broker.limits.stream_bytes_max:
            return True
        return broker.unanswered.is_full and self._kept_bytes > KEPT_BYTES_MAX

    def _freed(self, pending: _Pending, index: int) -> None:
        """Called when the memory of one partition's records, or of the message, is free. If the whole request is no
        longer in memory, its bytes return to the broker's budget."""
        pending.in_memory.discard(index)
        if pending.in_memory or not pending.is_in_memory:
            return
        pending.is_in_memory = False
        self._broker.budget.give_back(pending.size)
        self._end(pending)

    def _end(self, pending: _Pending) -> None:
        """End the request's progress, if the broker has answered the request and its records are in the log."""
        if pending.is_in_memory or not pending.answered or pending not in self._in_flight:
            return
        self._in_flight.remove(pending)
        self._in_flight_bytes -= pending.size
        self._kept_bytes -= pending.kept
        self._broker.unanswered.remove(pending.kept)
        if self._holds & _OWN_LIMIT and not self._has_too_many():
            self._release(_OWN_LIMIT)
        if not self._in_flight:
            self._stream.check_idle()

    def _written(self, pending: _Pending, index: int, replica: LeaderReplica, waiting: Waiting) -> None:
        """Called when the records of one partition are in the log, and wait for other replicas."""
        self._freed(pending, index)
        if not pending.in_memory:
            pending.local_s = time.perf_counter()
        if pending.answered:
            replica.leader.give_up(waiting, _late())
        else:
            pending.waiting.append((replica.leader, waiting))

    def _appended(
        self,
        pending: _Pending,
        index: int,
        order: Hashable,
        replica: LeaderReplica,
        outcome: AppendInfo | HeadraceError,
    ) -> None:
        """Called when ``acks`` is satisfied for one partition, or cannot be satisfied. ``order``: the append's
        ``_Pending.order``."""
        self._freed(pending, index)
        if isinstance(outcome, HeadraceError):
            self._failed(pending, index, outcome)
        else:
            self._succeeded(pending, index, replica, outcome)
        left = self._appending[order] - 1
        if left:
            self._appending[order] = left
        else:
            del self._appending[order]
        if order in self._held:
            self._release_held(order)

    def _refused(self, pending: _Pending, index: int, error: HeadraceError) -> None:
        """Refuse the records of one partition. Answers for a partition keep their order, so earlier appends are
        answered first."""
        order = pending.order[index]
        before = self._appending.get(order, 0)
        if before and not self._is_packed:  # (answers to different producers have no order)
            self._held.setdefault(order, deque()).append(_Held(before, pending, index, error))
        else:
            self._failed(pending, index, error)

    def _release_held(self, order: Hashable) -> None:
        """Called when an append has ended: send the errors of refused appends that waited only for this append."""
        held = self._held[order]
        for refusal in held:
            refusal.before -= 1
        while held and held[0].before == 0:
            refusal = held.popleft()
            self._failed(refusal.pending, refusal.index, refusal.error)
        if not held:
            del self._held[order]

    def _succeeded(self, pending: _Pending, index: int, replica: LeaderReplica, outcome: AppendInfo) -> None:
        pending.is_worthless = False
        if not pending.answered:
            partition = pending.partitions[index]
            pending.results[index] = produce_pb2.ProducePartitionResult(
                topic=partition.topic,
                partition=partition.partition,
                base_offset=outcome.base_offset,
                log_append_time_ms=outcome.log_append_time_ms,
                log_start_offset=replica.leader.log_start,
                durability=_DURABILITY[replica.log.config.flush],
            )
        self._one_done(pending)

    def _failed(self, pending: _Pending, index: int, error: HeadraceError) -> None:
        if not self._is_closed:  # otherwise the client has gone, and gets no error
            metrics = self._broker.metrics
            metrics.produce_errors.value += 1
            times = metrics.client_times if self._writers is Writers.CLIENTS else metrics.internal_times
            times.failed(_REQUEST, error.code)
        pending.is_worthless &= error.code in _WORTHLESS
        if not pending.answered:
            partition = pending.partitions[index]
            if pending.acks == produce_pb2.ACKS_NONE:
                logger.debug("produce to %s with acks NONE failed: %s", partition, error)
            pending.results[index] = result = self._result_of(partition, error)
            del result.record_faults[pending.faults_left :]
            pending.faults_left -= len(result.record_faults)
        self._one_done(pending)

    def _result_of(self, partition: TopicPartition, error: HeadraceError) -> Any:
        error = self._broker.partitions.for_clients(partition, error)
        hint = self._broker.partitions.leader_hint(partition, error)
        return produce_pb2.ProducePartitionResult(
            topic=partition.topic,
            partition=partition.partition,
            error=error_to_proto(error),
            base_offset=-1,
            log_append_time_ms=-1,
            log_start_offset=-1,
            current_leader=None if hint is None else common_pb2.LeaderHint(leader_id=hint[0], leader_epoch=hint[1]),
            record_faults=[produce_pb2.RecordFault(index=index, message=message) for index, message in error.faults]
            if isinstance(error, RefusedRecordsError)
            else (),
        )

    def _one_done(self, pending: _Pending) -> None:
        pending.remaining -= 1
        if pending.remaining:
            return
        self._broker.deadlines.discard(pending)
        if pending.is_worthless and self._writers is Writers.CLIENTS:
            if self._is_packed:
                self._stream.punish_one(pending.size, partial(self._finish, pending))
                return
            self._stream.punish(pending.size)
        self._finish(pending)

    def _finish(self, pending: _Pending) -> None:
        if not pending.answered:
            self._answer(pending, pending.results)
        self._end(pending)

    def _answer(self, pending: _Pending, results: list[Any]) -> None:
        pending.answered = True
        now_s = time.perf_counter()
        local_s = pending.local_s or now_s
        self._times.observe(now_s - pending.started_s)
        self._local_times.observe(local_s - pending.started_s)
        self._remote_times.observe(now_s - local_s)
        if pending.acks == produce_pb2.ACKS_NONE:
            return
        response = produce_pb2.ProduceResponse(
            correlation_id=pending.correlation_id, results=results, throttle_time_ms=throttle_ms(pending.throttle_s)
        )
        if pending.size < BULK_BYTES:
            self._broker.turns.note()
        self._stream.send(response, response.ByteSize())
        if self._stream.queued_bytes > UNREAD_BYTES_MAX:
            self._hold(_UNREAD_ANSWERS)

    def expired(self, pending: _Pending) -> None:
        """Called when the timeout of the produce request is over: answer at once. Records that were appended before the
        timeout stay in the log, and may still be committed. The request is then over for the client, so a high
        watermark that does not advance in one partition does not block the client's other partitions."""
        results = [
            result or self._result_of(partition, self._late_error(pending, index))
            for index, (partition, result) in enumerate(zip(pending.partitions, pending.results, strict=True))
        ]
        self._answer(pending, results)
        pending.free_answer()
        self._end(pending)

    def _late_error(self, pending: _Pending, index: int) -> HeadraceError:
        replica = pending.replicas[index]
        if replica is not None and pending.acks in (produce_pb2.ACKS_ALL, produce_pb2.ACKS_UNSPECIFIED):
            return replica.leader.late_error()
        return _late()


def _late() -> HeadraceError:
    return RequestTimedOutError(
        "the leader did not confirm the append before the timeout of the request; the records may still be appended"
    )
