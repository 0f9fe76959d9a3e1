"""The produce stream to one broker: builds requests, decides when to send them, and matches responses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError, from_number
from headrace_core.records import Compression
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.limits import PARTITIONS_MAX, REQUEST_RECORDS_BYTES
from headrace_protos.v1 import produce_pb2

from ..accumulator import Accumulator, PartitionQueue, SendBatch
from ..engine.client import Engine
from ..engine.connections import SILENT_S, pause
from ..metrics import Metrics
from .sequences import DUPLICATE
from .transactional import TRANSACTION_VERSION

logger = logging.getLogger("headrace")

#: Seconds for which a partial batch waits for a response, with linger.ms=0, while requests are in flight; the same as
#: Kafka 4's default of linger.ms.
GATHER_S = 0.005

#: Seconds that a broker may take to refuse the requests in flight after it has lost the leadership of a partition.
MOVED_S = 1.0

#: Seconds for which ``close`` waits until the broker has read requests with acks=0.
DRAIN_S = 2.0

#: Errors after which a batch may still be in the log, because the broker may have appended the batch before it returned
#: the error.
_UNKNOWN_OUTCOMES = frozenset(
    (
        "REQUEST_TIMED_OUT",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        "FENCED_BROKER",
        "KAFKA_STORAGE_ERROR",
        "SERVER_SHUTTING_DOWN",
        "UNKNOWN_SERVER_ERROR",
    )
)


Stream = Duplex[produce_pb2.ProduceRequest, produce_pb2.ProduceResponse]


class LinkOwner(Protocol):
    """The methods of the Sender that a link uses: the Sender assigns queues to links and handles failures."""

    engine: Engine
    accumulator: Accumulator
    metrics: Metrics
    acks: produce_pb2.Acks
    linger_s: float
    request_timeout_s: float
    max_request_bytes: int
    max_in_flight: int
    compression: Compression
    flushing: int
    transactional_id: str | None

    def orphan(self, queues: Iterable[PartitionQueue]) -> None: ...

    async def compressed(self, batch: SendBatch) -> None: ...

    def may_go(self, queue: PartitionQueue, batch: SendBatch, now: float) -> bool: ...

    def leader_of(self, queue: PartitionQueue) -> int: ...

    def too_large(self, batch: SendBatch) -> HeadraceError | None: ...

    def succeed(self, batch: SendBatch, base_offset: int, log_append_time_ms: int) -> None: ...

    def settle(self, batch: SendBatch, error: HeadraceError, *, unknown: bool) -> None: ...

    def release(self, queue: PartitionQueue) -> None: ...


class Request:
    __slots__ = ("batches", "correlation_id", "sent_at", "size", "was_sent")

    def __init__(self, correlation_id: int, batches: Sequence[SendBatch], size: int) -> None:
        self.was_sent = False
        self.correlation_id = correlation_id
        self.batches: list[SendBatch | None] = list(batches)  # an entry is None when its batch went to another leader
        self.size = size
        self.sent_at = time.monotonic()


class BrokerLink:
    """The produce stream to one broker."""

    def __init__(self, sender: LinkOwner, broker_id: int, address: str) -> None:
        self.sender = sender
        self.broker_id = broker_id
        self.address = address
        self.pending: dict[PartitionQueue, None] = {}  # queues with something to send, in round-robin order
        self.in_flight: dict[int, Request] = {}
        self.last_error: HeadraceError | None = None
        self._failures = 0  # number of consecutive failures, which sets the pause before the next stream
        self._event = asyncio.Event()
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._correlation = 0
        self._throttled_until = 0.0  # time.monotonic() until which the broker reads nothing, because of a quota
        self._stream: Stream | None = None
        self._is_draining = False
        self._ending: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = sender.engine.spawn(self._run(), f"headrace-produce-{broker_id}")

    def nudge(self) -> None:
        self._event.set()

    def has_news(self) -> None:
        """End the wait before the next stream: the broker has become a leader, so its earlier failures are outdated."""
        self._failures = 0
        self._news.set()

    def retire(self) -> None:
        """Drop the stream because the broker has a new address; the sender assigns waiting queues to the new link."""
        self.sender.orphan(self.pending)
        self.pending.clear()
        self._end()
        self._lost(NetworkError(f"broker {self.broker_id} is no longer at {self.address}"))

    async def close(self) -> None:
        if self._stream is not None and self._task is not None and self.sender.acks == produce_pb2.ACKS_NONE:
            self._is_draining = True
            self._event.set()
            await asyncio.wait({self._task}, timeout=DRAIN_S)
        self._end()
        if self._ending is not None:
            ending, self._ending = self._ending, None
            await asyncio.gather(ending, return_exceptions=True)
        self.pending.clear()  # break the reference cycle: queues refer to their link
        self.in_flight.clear()

    def _end(self) -> None:
        """Cancel the task and drop it: its traceback would keep gRPC's objects alive (engine.io_thread, fork)."""
        if self._stream is not None:
            self._stream.cancel()
        if self._task is not None:
            self._task.cancel()
            self._ending, self._task = self._task, None

    def check_request_timeout(self, now: float) -> None:
        """Break the stream when a request has had no response for request.timeout.ms."""
        oldest = next(iter(self.in_flight.values()), None)
        if oldest is not None and now - oldest.sent_at > SILENT_S:
            self.sender.engine.metadata.doubt()
        if oldest is not None and now - oldest.sent_at > self.sender.request_timeout_s and self._stream is not None:
            limit_s = self.sender.request_timeout_s
            self._stream.cancel(
                RequestTimedOutError(f"{self.address}: the broker did not answer a produce request for {limit_s:g} s")
            )

    def moved(self, now: float) -> None:
        """Stop waiting for responses about a partition that another broker has led for MOVED_S: a live broker would
        have refused the batches by now. Sequence numbers make a retry at the new leader safe; late responses of the old
        leader are ignored."""
        for request in self.in_flight.values():
            for index, batch in enumerate(request.batches if request.was_sent else ()):
                if batch is None or batch.queue.sender.sequences is None:
                    continue
                queue, notes = batch.queue, batch.queue.sender
                if self.sender.leader_of(queue) in (self.broker_id, -1):
                    notes.moved_at = float("inf")
                elif notes.moved_at > now:
                    notes.moved_at = now
                elif now - notes.moved_at > MOVED_S:
                    request.batches[index] = None
                    lost = NetworkError(
                        f"broker {self.broker_id} at {self.address} does not answer and no longer leads the partition"
                    )
                    self.sender.settle(batch, lost, unknown=True)
                    self.sender.release(queue)

    async def _run(self) -> None:
        while not self._is_draining:
            await self._something_to_do()
            answered = self._correlation
            self._news.clear()
            try:
                await self._session()
            except HeadraceError as error:
                # Drop the error's traceback, which would keep the stack frames of this link in memory.
                self.last_error = error.with_traceback(None)
                self._failures = 0 if self._correlation > answered + 1 else self._failures + 1
                logger.info("produce stream to %s failed: %s", self.address, error)
                self._lost(error)
            # An unexpected exception is a bug of the client or of the broker; the records must get an outcome in spite
            # of the bug.
            except Exception as error:
                self._failures += 1
                logger.exception("produce stream to %s: unexpected error; reconnecting", self.address)
                self.last_error = NetworkError(f"{self.address}: {type(error).__name__}: {error}")
                self._lost(self.last_error)
            if not self._is_draining:
                await pause(self.sender.engine.backoff.delay_s(max(self._failures - 1, 0)), self._news)

    async def _something_to_do(self) -> None:
        while not self.pending:
            self._event.clear()
            await self._event.wait()

    async def _session(self) -> None:
        """Run one produce stream until it breaks; raises HeadraceError."""
        stream = self._stream = self.sender.engine.connections.produce_stream(self.address)
        try:
            await stream.run(self._read(stream), self._write(stream))
        finally:
            self._stream = None

    async def _read(self, stream: Stream) -> None:
        while True:
            self._answered(await stream.read())

    async def _write(self, stream: Stream) -> None:
        await stream.connected()
        while True:
            request = await self._collect()
            if request is not None:
                message = self._encode(request)
                request.was_sent = not stream.ended
                await stream.write(message)
                if self.sender.acks == produce_pb2.ACKS_NONE:
                    self._answered_by_nobody(request)
            elif self._is_draining:
                # With acks=0 only the end of the stream shows that the broker has read all requests; cancelling the
                # stream would drop unread requests.
                await stream.done_writing()
                await asyncio.Event().wait()
            else:
                await self._event.wait()

    # --- requests --------------------------------------------------------------------------------------------------

    async def _collect(self) -> Request | None:
        """The next request, or None if no batch may be sent now; ``_event`` is set when a batch may have become
        sendable."""
        self._event.clear()
        sender, now = self.sender, time.monotonic()
        if len(self.in_flight) >= sender.max_in_flight:
            return None
        if self._throttled_until > now:
            self._wake_at(self._throttled_until)
            return None
        batches: list[SendBatch] = []
        size, wake_at = 0, float("inf")
        most = min(sender.max_request_bytes, REQUEST_RECORDS_BYTES)
        take, leave_if_empty = sender.accumulator.take, sender.accumulator.leave_if_empty
        for queue in list(self.pending):
            notes = queue.sender
            if notes.failed:
                continue
            if notes.retry_at > now:
                wake_at = min(wake_at, notes.retry_at)
                continue
            partial = self._may_send_partial(queue, now)
            if partial > now and not queue.sealed:
                wake_at = min(wake_at, partial)
                continue
            first = first_batch(queue)
            if first is not None and not sender.may_go(queue, first, now):
                continue
            room = most - size
            if batches and first_size(queue) > room:
                continue
            batch = take(queue, partial=partial <= now)
            del self.pending[queue]
            if batch is not None:
                if batch.done:  # the batch expired in the queue
                    self.pending[queue] = None
                    self._event.set()
                    continue
                batches.append(batch)
                size += batch.size
                batch.attempts += 1
                batch.in_flight = True
                notes.in_flight += 1
                if notes.sequences is not None:
                    notes.sequences.number(batch, batch.count)
            if not leave_if_empty(queue):
                self.pending[queue] = None  # move the queue to the end of the round
            if size >= most or len(batches) >= PARTITIONS_MAX:
                break
        if not batches:
            self._wake_at(wake_at)
            return None
        self._correlation += 1
        request = Request(self._correlation, batches, size)
        self.in_flight[request.correlation_id] = request
        await self._build(batches)
        request.batches = [batch for batch in batches if not self._refused_here(batch)]
        if not request.batches:
            self.in_flight.pop(request.correlation_id, None)
            self._event.set()
            return None
        return request

    def _refused_here(self, batch: SendBatch) -> bool:
        """Fail a batch that is too large after compression: a broker would refuse the batch unread and close the
        stream."""
        error = self.sender.too_large(batch)
        if error is not None:
            self.sender.settle(batch, error, unknown=False)
            self.sender.release(batch.queue)
        return error is not None

    def _may_send_partial(self, queue: PartitionQueue, now: float) -> float:
        """The time (time.monotonic()) from which the queue's open batch may be sent; a past time means now."""
        sender = self.sender
        if sender.flushing or queue.open is None:
            return 0.0
        born: float = queue.open.created_s
        if sender.linger_s and now < born + sender.linger_s:
            return born + sender.linger_s
        return born + max(GATHER_S, sender.linger_s) if self.in_flight else 0.0

    async def _build(self, batches: list[SendBatch]) -> None:
        sender = self.sender
        for batch in batches:
            if batch.data is None:
                if sender.compression is Compression.NONE:
                    build(batch, sender.compression, None)
                else:
                    await sender.compressed(batch)
            sequences = batch.queue.sender.sequences
            if sequences is not None and not batch.done:
                batch.stamp(*sequences.number(batch, batch.count))

    def _encode(self, request: Request) -> produce_pb2.ProduceRequest:
        sender = self.sender
        message = produce_pb2.ProduceRequest(
            correlation_id=request.correlation_id, acks=sender.acks, timeout_ms=int(sender.request_timeout_s * 1000)
        )
        if sender.transactional_id is not None:
            message.transactional_id, message.transaction_version = sender.transactional_id, TRANSACTION_VERSION
        records = wire_bytes = 0
        now = time.monotonic()
        for batch in filter(None, request.batches):
            data = batch.data or b""  # a batch may have expired while it waited for its turn, and then has no data
            item = message.partitions.add(topic=batch.queue.topic.name, partition=batch.queue.partition, records=data)
            if batch.trace is not None:
                item.traceparent = batch.trace
            records += batch.count
            wire_bytes += len(data)
            sender.metrics["record-queue-time"].record((now - batch.created_s) * 1000)
            sender.metrics["batch-size"].record(len(data))
            if batch.size:
                sender.metrics["compression-rate"].record(len(data) / batch.size)
        request.sent_at = now
        sender.metrics["records-per-request"].record(records)
        sender.metrics["outgoing-byte"].record(wire_bytes)
        sender.metrics["request"].record(1)
        return message

    def _wake_at(self, when: float) -> None:
        """Set ``_event`` at the time ``when``; there is one timer at a time."""
        if when == float("inf") or (self._timer is not None and self._timer_at <= when and not self._timer.cancelled()):
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = self.sender.engine.io.loop
        self._timer_at = when
        self._timer = loop.call_later(max(when - time.monotonic(), 0), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._event.set()

    # --- responses -------------------------------------------------------------------------------------------------

    def _answered(self, response: produce_pb2.ProduceResponse) -> None:
        request = self.in_flight.get(response.correlation_id)
        if request is None:
            return
        if len(response.results) != len(request.batches):
            raise NetworkError(
                f"{self.address}: a produce request had {len(request.batches)} batches, but its response has "
                f"{len(response.results)} results"
            )
        del self.in_flight[request.correlation_id]
        sender = self.sender
        sender.metrics["produce-throttle-time"].record(response.throttle_time_ms)
        if response.throttle_time_ms:
            self._throttled(response.throttle_time_ms / 1000)
        sender.metrics["request-latency"].record(max(time.monotonic() - request.sent_at, 0.0) * 1000)
        for batch, result in zip(request.batches, response.results, strict=True):
            if batch is None:
                continue
            if not result.error.code:
                self.last_error = None
                sender.succeed(batch, result.base_offset, result.log_append_time_ms)
            else:
                error = from_number(result.error.code, result.error.message)
                if error.code == DUPLICATE:
                    sender.succeed(batch, -1, -1)
                    sender.release(batch.queue)
                    continue
                if result.HasField("current_leader"):
                    hint = result.current_leader
                    sender.engine.metadata.follow_hint(
                        result.topic, result.partition, hint.leader_id, hint.leader_epoch
                    )
                sender.settle(batch, error, unknown=error.code in _UNKNOWN_OUTCOMES)
            sender.release(batch.queue)
        self._event.set()

    def _throttled(self, wait_s: float) -> None:
        """The client is over a quota (KIP-219): send nothing until the wait is over. The broker has not read the
        requests that are already sent, so their timeout begins when the wait is over."""
        self._throttled_until = max(self._throttled_until, time.monotonic() + wait_s)
        for request in self.in_flight.values():
            request.sent_at = max(request.sent_at, self._throttled_until)

    def _answered_by_nobody(self, request: Request) -> None:
        self.in_flight.pop(request.correlation_id, None)
        for batch in filter(None, request.batches):
            self.sender.succeed(batch, -1, -1)
            self.sender.release(batch.queue)

    def _lost(self, error: HeadraceError) -> None:
        """Handle a broken stream: the outcome of requests in flight is unknown."""
        requests, self.in_flight = self.in_flight, {}
        if not requests:
            self.sender.engine.metadata.invalidate()
        for request in requests.values():
            for batch in filter(None, request.batches):
                retriable = error if error.retriable else NetworkError(error.message)
                self.sender.settle(batch, retriable, unknown=request.was_sent)
                self.sender.release(batch.queue)


def first_batch(queue: PartitionQueue) -> SendBatch | None:
    """The batch that ``Accumulator.take`` would return next."""
    try:
        return queue.sealed[0]
    except IndexError:
        return queue.open


def first_size(queue: PartitionQueue) -> int:
    batch = first_batch(queue)
    return batch.size if batch is not None else 0


def build(batch: SendBatch, compression: Compression, level: int | None) -> None:
    """Encode a sealed batch; compression runs on a worker thread."""
    builder = batch.builder
    if builder is not None and batch.data is None:
        data = builder.build(compression=compression, level=level)
        if not batch.done:  # the batch may have expired during the encoding
            batch.data = data
        batch.builder = None
