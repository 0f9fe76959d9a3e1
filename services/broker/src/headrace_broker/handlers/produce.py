"""The Produce service: it reads requests, checks them, passes the records to the log's writer, and answers when
``acks`` is satisfied.

A produce request needs no task, because callbacks process it. The stream's reader calls ``on_request``, the directory's
writer calls back, and the last partition to finish queues the answer. Once the records are passed to the writer, the
append happens even if the stream ends, so a cancellation never leaves half a write.

A produce request is *in progress* until the broker has answered the request and has written its records to the log. A
request that timed out is in progress while its records wait for the disk. flow.py says when the broker stops reading a
stream.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Hashable
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
from headrace_core.metrics.calls import CallTimes
from headrace_core.quotas import PRODUCER_BYTE_RATE, ClientLimits, throttle_ms
from headrace_core.quotas.callers import limits_of
from headrace_core.records import check_batch_count
from headrace_core.rpc.streams import ServerStream, StreamHandler
from headrace_core.security import refusals
from headrace_core.security.access import current_access
from headrace_core.security.acl_types import Operation, ResourceType
from headrace_core.types import FlushPolicy, TopicPartition
from headrace_protos.v1 import common_pb2, produce_pb2, produce_pb2_grpc

from ..context import BrokerContext
from ..flow import BULK_BYTES, PORTIONS, TURN, UNREAD, StreamFlow
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
#: Entry of ``_Request.in_memory`` for the request's message itself, while the broker reads the message.
_MESSAGE = -1
#: Partitions of a request that the event loop handles before it runs other tasks, about 3 ms.
PORTION = 200
#: Error codes for a produce request with invalid records. If a client's request fails with one of the codes in
#: _WORTHLESS in every partition, the broker delays the connection's next requests (``Penalties``).
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
        is_client = self._writers is Writers.CLIENTS
        limits = limits_of(self._broker.quotas, context) if is_client else None
        if limits is not None:
            await self._broker.connections.admitted(context)
        stream: ServerStream[Any, Any] = ServerStream(context)
        self._broker.streams.add(stream)
        self._broker.client_streams += is_client
        try:
            await stream.run(ProduceStream(self._broker, stream, self._writers, limits=limits))
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


class _Request:
    """A produce request in progress. ``results`` has one entry for each partition of the request."""

    __slots__ = (
        "acks",
        "answered",
        "correlation_id",
        "deadline_ms",
        "faults_left",
        "in_memory",
        "is_in_memory",
        "is_worthless",
        "kept",
        "local_s",
        "next",
        "order",
        "partitions",
        "records",
        "remaining",
        "replicas",
        "results",
        "size",
        "started_s",
        "stream",
        "throttle_s",
        "waiting",
    )

    def __init__(self, stream: ProduceStream, message: Any, size: int, now_s: float) -> None:
        items = message.partitions
        count = len(items)
        self.stream = stream
        self.correlation_id, self.acks = message.correlation_id, message.acks
        self.records: list[bytes] = [item.records for item in items]  # read once, because each access copies them
        self.partitions = [TopicPartition(item.topic, item.partition) for item in items]
        #: One key for each partition of the request: answers to appends with equal keys keep their order. The key is
        #: the partition, or for a transactional append the partition and the producer id. With a key for each producer,
        #: an append that waits for its transaction's coordinator does not delay the answers of other producers.
        self.order: list[Hashable] = self.partitions  # type: ignore[assignment]
        self.results: list[Any] = [None] * count
        #: The leader replicas that receive the records. With acks=all, the error after a timeout contains the replica's
        #: reason why the records are not committed yet.
        self.replicas: list[LeaderReplica | None] = [None] * count
        self.next = 0  #: Index of the first partition that is not handled yet.
        self.remaining = count
        self.size = size  #: Bytes of the whole request, including names.
        #: Approximate bytes that the request keeps after its records were written, until it is answered.
        self.kept = KEPT_BYTES * count + sum([len(partition.topic) for partition in self.partitions])
        self.faults_left = _FAULTS_MAX
        self.started_s = now_s  #: Time at which the request arrived.
        self.local_s = 0.0  #: Time at which all records of the request were in the log; 0 before that time.
        self.throttle_s = 0.0  #: Seconds that the client must wait because of a quota.
        self.is_worthless = True  #: Whether each partition that is done was refused because its records are invalid.
        #: Whether the request needs no answer any more: the broker has sent the answer, or the stream has ended.
        self.answered = False
        #: Indexes in the request of the partitions whose records are not yet in the log, and ``_MESSAGE``.
        self.in_memory: set[int] = {_MESSAGE}
        self.is_in_memory = True  #: Whether the request's bytes are a part of ``Flow.in_memory``.
        #: The appends that wait for other replicas: each with its leader, and the argument for ``give_up``.
        self.waiting: list[tuple[PartitionLeader, Waiting]] = []
        self.deadline_ms = 0.0

    def expire(self) -> None:
        self.stream.expired(self)

    def free_answer(self) -> None:
        """Free what only the answer needs, because the client has its answer or has gone. The callbacks of appends keep
        this object until the records are in the log. They do not wait for other replicas any more: while the high
        watermark does not advance, clients send again and again."""
        self.partitions, self.order, self.results, self.replicas = [], [], [], []
        waits, self.waiting = self.waiting, []
        for leader, waiting in waits:
            leader.give_up(waiting, late_error())


class ProduceStream(StreamHandler[Any]):
    __slots__ = (
        "_access",
        "_broker",
        "_flow",
        "_in_flight",
        "_is_closed",
        "_request",
        "_stream",
        "_times",
        "_unanswered",
        "_unhandled",
        "_writers",
    )

    def __init__(
        self,
        broker: BrokerContext,
        stream: ServerStream[Any, Any],
        writers: Writers = Writers.CLIENTS,
        *,
        limits: ClientLimits | None = None,
        times: CallTimes | None = None,
    ) -> None:
        """``times``: those of the client's listener, if it is not the gRPC listener of clients."""
        self._access = current_access()
        self._flow = StreamFlow(broker.flow, limits, stream.pause, stream.resume, broker.limits.stream_bytes_max)
        self._broker = broker
        self._writers = writers
        self._stream = stream
        metrics = broker.metrics
        self._times = times or (metrics.client_times if writers is Writers.CLIENTS else metrics.internal_times)
        self._in_flight: set[_Request] = set()
        self._unhandled: deque[Any] = deque()  # the requests of the last message that are not wholly handled
        self._request: _Request | None = None  # the first one of them, after the broker began to handle it
        self._is_closed = False
        #: The appends without a result by ``_Request.order``, oldest first. An error waits here for earlier appends:
        #: answers for a partition keep their order, except that a success does not wait.
        self._unanswered: dict[Hashable, OrderedDict[tuple[_Request, int], HeadraceError | None]] = {}
        self._flow.begin(PRODUCER_BYTE_RATE)

    # -- StreamHandler -----------------------------------------------------------------------------------------------

    def on_request(self, message: Any) -> None:
        now_s = time.perf_counter()
        self._unhandled.append(message)
        self._handle(now_s)
        turns = self._broker.flow.turns
        if self._stream.request_bytes < BULK_BYTES:
            turns.noted_s = now_s
        else:  # the stream's next request is read after other clients had their turn
            self._flow.hold(TURN)
            turns.ask(partial(self._flow.release, TURN))

    def _handle(self, now_s: float) -> None:
        """Handle the next PORTION partitions of the last message. The stream is not read before its last partition."""
        unhandled, room = self._unhandled, PORTION
        while unhandled and room > 0:
            message, request = unhandled[0], self._request
            if request is None:
                request = self._request = self._begin(message, now_s)
                room -= request.next  # all its partitions, if it was refused as a whole
            if not request.answered:  # otherwise it has timed out
                room = self._append(message, request, room)
                if request.next < len(request.records):
                    break
            unhandled.popleft()
            self._request, request.records = None, []
            self._free(request, _MESSAGE)
        flow = self._flow
        if flow.limits is not None and flow.limits.manager.table.keys:
            flow.worked(now_s)
        if unhandled:
            flow.hold(PORTIONS)
            asyncio.get_running_loop().call_soon(self._handle_later)
        elif flow.holds & PORTIONS:
            flow.release(PORTIONS)
            self._stream.check_idle()
        if self._is_closed:  # the call ended while this message was on the way from the reader
            self._abandon()

    def _handle_later(self) -> None:
        try:
            self._handle(time.perf_counter())
        except Exception as error:  # noqa: BLE001  (ends the stream, as an error of ``on_request`` does)
            self._stream.finish(error)

    def _begin(self, message: Any, now_s: float) -> _Request:
        """Count a request, and check what concerns all its partitions."""
        if not message.partitions:
            raise InvalidRequestError(f"produce request {message.correlation_id} names no partition")
        if message.timeout_ms < 0:
            raise InvalidRequestError(f"timeout_ms={message.timeout_ms}: must not be negative")
        broker, acks = self._broker, message.acks
        request = _Request(self, message, self._stream.request_bytes, now_s)
        record_bytes = sum(map(len, request.records))
        request.size = max(record_bytes, request.size)
        broker.metrics.produce_requests.value += 1
        broker.metrics.produce_bytes.value += record_bytes
        self._in_flight.add(request)
        request.throttle_s = self._flow.admit(request.size, request.kept, now_s)
        refused = None
        if (
            acks not in _ACKS
            or record_bytes > broker.limits.request_bytes_max
            or message.transactional_id
            or self._writers is Writers.COORDINATORS
        ):
            refused = self._refusal(message, record_bytes)
        if refused is not None:
            request.next = len(request.records)
            for index in range(request.next):
                self._failed(request, index, refused)
        elif acks != produce_pb2.ACKS_NONE:
            broker.flow.deadlines.add(request, message.timeout_ms or broker.limits.request_timeout_ms)
        if message.transactional_id:
            request.order = list(request.partitions)
        return request

    def _append(self, message: Any, request: _Request, room: int) -> int:
        """Pass the records of the next ``room`` partitions to the replicas; returns the room that is left."""
        broker, access, items = self._broker, self._access, message.partitions
        is_client, transactional_id = self._writers is Writers.CLIENTS, message.transactional_id
        granted = (
            access.granted(Operation.WRITE, ResourceType.TOPIC) if access.authorization.authorizer is not None else None
        )
        now_ms = broker.clock.now_ms()
        committed = request.acks in (produce_pb2.ACKS_ALL, produce_pb2.ACKS_UNSPECIFIED)
        batches_max = _CLIENTS_BATCHES_MAX if is_client else _COORDINATORS_BATCHES_MAX
        begun, request.next = request.next, min(request.next + room, len(request.records))
        for index in range(begun, request.next):
            item, partition, records = items[index], request.partitions[index], request.records[index]
            transaction = trace = None
            try:
                if granted is not None and partition.topic not in granted:
                    access.require(Operation.WRITE, ResourceType.TOPIC, partition.topic)
                fence = fence_of(item, self._writers)
                check_batch_count(records, batches_max, partition)
                if transactional_id:
                    transaction = self._transaction_of(message, records)
                    if transaction is not None:
                        request.order[index] = partition, transaction.producer_id
                replica = broker.partitions.leader(partition)
                if item.topic_id:
                    check_topic_id(replica.leader, item.topic_id)
                request.in_memory.add(index)
                order = request.order[index]
                done: Done = partial(self._appended, request, index, order, replica)
                if broker.traces is not None and item.traceparent:
                    trace = broker.traces.append(partition, item.traceparent, len(records))
                    done = done if trace is None else trace.ending(done)
                try:
                    replica.append(
                        records,
                        now_ms,
                        done,
                        committed=committed,
                        written=partial(self._written, request, index, replica),
                        fence=fence,
                        transaction=transaction,
                        trace=trace,
                    )
                except BaseException as error:
                    request.in_memory.discard(index)
                    if trace is not None and isinstance(error, HeadraceError):
                        trace.end(error)
                    raise
            except HeadraceError as error:
                self._refused(request, index, error)
            else:
                request.replicas[index] = replica
                if order in self._unanswered:
                    self._unanswered[order][request, index] = None
                else:
                    self._unanswered[order] = OrderedDict([((request, index), None)])
        return room - (request.next - begun)

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

    def _refusal(self, message: Any, record_bytes: int) -> HeadraceError | None:
        """An error of the whole request, which is returned for each of its partitions."""
        acks, transactional_id = message.acks, message.transactional_id
        is_coordinator = self._writers is Writers.COORDINATORS
        if acks not in _ACKS:
            return InvalidRequiredAcksError(f"acks={acks}: must be NONE, LEADER or ALL")
        if is_coordinator and acks != produce_pb2.ACKS_ALL:
            return InvalidRequiredAcksError(f"acks={acks}: must be ALL for an append of a coordinator")
        most = self._broker.limits.request_bytes_max
        if record_bytes > most:
            return RecordListTooLargeError(
                f"the request has {record_bytes} bytes of records, more than socket.request.max.bytes={most}; "
                "lower the producer's batch.size and max.request.size"
            )
        if not transactional_id:
            return None
        if is_coordinator:
            return InvalidRequestError("a coordinator's append to its shard cannot have a transactional id")
        if acks not in (produce_pb2.ACKS_ALL, produce_pb2.ACKS_UNSPECIFIED):
            return InvalidRequiredAcksError(f"acks={acks}: must be ALL with a transactional id")
        if message.transaction_version not in _TRANSACTION_VERSIONS:
            return InvalidRequestError(
                f"transaction_version={message.transaction_version}: must be 1 or 2 with a transactional id"
            )
        if self._broker.verifier is None:
            return UnsupportedVersionError("this broker cannot reach the coordinators of transactions")
        if self._access.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
            return None
        principal = self._access.caller.principal
        return refusals.refusal(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id, principal)

    def is_idle(self) -> bool:
        return not self._in_flight and not self._unhandled

    def on_written(self) -> None:
        if self._flow.holds & UNREAD and self._stream.queued_bytes <= UNREAD_BYTES_MAX // 2:
            self._flow.release(UNREAD)

    def on_closed(self) -> None:
        self._is_closed = True
        self._flow.close()
        self._abandon()

    def _abandon(self) -> None:
        """Free what the requests in progress keep for their answers, because the stream has ended. The memory of a
        request counts until its records are in the log."""
        self._unhandled.clear()
        for unanswered in self._unanswered.values():
            for key in [key for key, error in unanswered.items() if error is not None]:
                del unanswered[key]
        for request in list(self._in_flight):
            self._broker.flow.deadlines.discard(request, None)
            request.answered = True
            request.free_answer()
            self._end(request)
        if self._request is not None:
            request, self._request = self._request, None
            self._free(request, _MESSAGE)

    # -- a request's life --------------------------------------------------------------------------------------------

    def _free(self, request: _Request, index: int) -> None:
        """Called when the memory of one partition's records, or of the message, is free."""
        request.in_memory.discard(index)
        if not request.in_memory and request.is_in_memory:
            request.is_in_memory = False
            self._broker.flow.free(request.size)
            if request.answered:
                self._end(request)
                if not self._in_flight:
                    self._stream.check_idle()

    def _end(self, request: _Request) -> None:
        """End the request's progress, if the broker has answered the request and its records are in the log."""
        if request.is_in_memory or not request.answered or request not in self._in_flight:
            return
        self._in_flight.remove(request)
        self._flow.done(request.size, request.kept)

    def _written(self, request: _Request, index: int, replica: LeaderReplica, waiting: Waiting) -> None:
        """Called when the records of one partition are in the log, and wait for other replicas."""
        self._free(request, index)
        if not request.in_memory:
            request.local_s = time.perf_counter()
        if request.answered:
            replica.leader.give_up(waiting, late_error())
        else:
            request.waiting.append((replica.leader, waiting))

    def _appended(
        self,
        request: _Request,
        index: int,
        order: Hashable,
        replica: LeaderReplica,
        outcome: AppendInfo | HeadraceError,
    ) -> None:
        """Called when ``acks`` is satisfied for one partition, or cannot be satisfied. ``order``: the append's
        ``_Request.order``."""
        if index in request.in_memory:
            self._free(request, index)
        unanswered = self._unanswered[order]
        if isinstance(outcome, HeadraceError):
            is_first = request.answered or next(iter(unanswered)) == (request, index)
            if not is_first:  # its check has failed while earlier appends are being written
                unanswered[request, index] = outcome
                return
            self._failed(request, index, outcome)
        else:
            request.is_worthless = False
            if not request.answered:
                partition = request.partitions[index]
                request.results[index] = produce_pb2.ProducePartitionResult(
                    topic=partition.topic,
                    partition=partition.partition,
                    base_offset=outcome.base_offset,
                    log_append_time_ms=outcome.log_append_time_ms,
                    log_start_offset=replica.leader.log_start,
                    durability=_DURABILITY[replica.log.config.flush],
                )
            request.remaining -= 1
            if not request.remaining:
                self._answer(request)
        del unanswered[request, index]
        while unanswered and (error := unanswered[first := next(iter(unanswered))]) is not None:
            del unanswered[first]
            self._failed(*first, error)
        if not unanswered:
            del self._unanswered[order]

    def _refused(self, request: _Request, index: int, error: HeadraceError) -> None:
        """Refuse the records of one partition. Earlier appends to the partition are answered first."""
        unanswered = self._unanswered.get(request.order[index])
        if unanswered is None:
            self._failed(request, index, error)
        else:
            unanswered[request, index] = error

    def _failed(self, request: _Request, index: int, error: HeadraceError) -> None:
        if not self._is_closed:  # otherwise the client has gone, and gets no error
            self._broker.metrics.produce_errors.value += 1
            self._times.failed(_REQUEST, error.code)
        request.is_worthless &= error.code in _WORTHLESS
        if not request.answered:
            partition = request.partitions[index]
            if request.acks == produce_pb2.ACKS_NONE:
                logger.debug("produce to %s with acks NONE failed: %s", partition, error)
            request.results[index] = result = self._result_of(partition, error)
            del result.record_faults[request.faults_left :]
            request.faults_left -= len(result.record_faults)
        request.remaining -= 1
        if request.remaining:
            return
        if request.is_worthless and self._writers is Writers.CLIENTS:
            self._stream.punish(request.size)
        self._answer(request)

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

    def _answer(self, request: _Request) -> None:
        """Send the results, unless the client has an answer or has gone."""
        if not request.answered:
            request.answered = True
            self._broker.flow.deadlines.discard(request, None)
            now_s = time.perf_counter()
            self._times.answered(_REQUEST, request.started_s, request.local_s or now_s, now_s)
            if request.acks == produce_pb2.ACKS_NONE:
                self._stream.check_idle()
            else:
                response = produce_pb2.ProduceResponse(
                    correlation_id=request.correlation_id,
                    results=request.results,
                    throttle_time_ms=throttle_ms(request.throttle_s) if request.throttle_s else 0,
                )
                if request.size < BULK_BYTES:
                    self._broker.flow.turns.noted_s = now_s
                self._stream.send(response, response.ByteSize())
                if self._stream.queued_bytes > UNREAD_BYTES_MAX:
                    self._flow.hold(UNREAD)
        if not request.is_in_memory:
            self._end(request)

    def expired(self, request: _Request) -> None:
        """Called when the timeout of the produce request is over: answer at once. Records that were appended before the
        timeout stay in the log, and may still be committed. The request is then over for the client, so a high
        watermark that does not advance in one partition does not block the client's other partitions."""
        request.results = [
            result or self._result_of(partition, self._late_error(request, index))
            for index, (partition, result) in enumerate(zip(request.partitions, request.results, strict=True))
        ]
        self._answer(request)
        # Its errors wait for no earlier append any more, which may have any timeout.
        for index, order in enumerate(request.order[: request.next]):
            unanswered = self._unanswered.get(order)
            if unanswered is not None and (error := unanswered.get((request, index))) is not None:
                del unanswered[request, index]
                self._failed(request, index, error)
        request.free_answer()

    def _late_error(self, request: _Request, index: int) -> HeadraceError:
        replica = request.replicas[index]
        if replica is not None and request.acks in (produce_pb2.ACKS_ALL, produce_pb2.ACKS_UNSPECIFIED):
            return replica.leader.late_error()
        return late_error()


def late_error() -> HeadraceError:
    """The error for an append that was not confirmed in time."""
    return RequestTimedOutError(
        "the leader did not confirm the append before the timeout of the request; the records may still be appended"
    )
