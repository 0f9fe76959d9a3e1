"""The sender: takes batches off the partition queues and gets each an outcome. Runs on the I/O thread.

One ``BrokerLink`` per broker keeps one produce stream with up to ``max.in.flight.requests.per.connection`` requests on
it, each packing one batch of several partitions, in queue order.

When is a batch that is not full sent (linger.ms=0)? At once when nothing is in flight to its broker; else when the
answer comes, or after 5 ms. An idle link so has the lowest latency and a busy one gathers by itself, without which
many small sends would collapse (one message costs what a million bytes cost). Full batches never wait.

**Order.** A broker handles a stream in order, so a partition's batches arrive in order. When one fails and may be tried
again, its partition is held until every later batch in flight has its answer too, then all failed ones go again, oldest
first. A later batch that got through in between stays before them; max.in.flight.requests.per.connection=1 rules that
out until idempotence comes.

**Outcome unknown.** A stream that breaks, or a request that times out, may have written its batches. They are tried
again within delivery.timeout.ms (which may duplicate them); when that ends, the error is UnknownOutcomeError.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

import grpc.aio

import headrace_core.rpc as rpc
from headrace_core.errors import (
    ClosedError,
    DeliveryTimeoutError,
    HeadraceError,
    NetworkError,
    RequestTimedOutError,
    UnknownOutcomeError,
    from_number,
)
from headrace_core.records import Compression
from headrace_protos.v1 import produce_pb2

from ..engine.client import Engine
from ..engine.metadata import Snapshot
from ..metrics import Metrics

logger = logging.getLogger("headrace")

_ACKS = {
    "all": produce_pb2.ACKS_ALL,
    "-1": produce_pb2.ACKS_ALL,
    "1": produce_pb2.ACKS_LEADER,
    "0": produce_pb2.ACKS_NONE,
}

#: How long a batch that is not full waits for the answer before it (linger.ms=0 on a busy link): Kafka 4's linger.
GATHER_S = 0.005

_STALE_METADATA = frozenset(
    (
        "UNKNOWN_TOPIC_OR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
        "KAFKA_STORAGE_ERROR",
        "FENCED_BROKER",
        "SERVER_SHUTTING_DOWN",
        "NETWORK_EXCEPTION",
    )
)


class QueueNotes:
    """What the sender remembers of one partition queue."""

    __slots__ = ("failed", "in_flight", "link", "retry_at")

    def __init__(self) -> None:
        self.link: BrokerLink | None = None  # where its batches go, or went last
        self.in_flight = 0
        self.failed: list[Any] = []  # to be tried again once nothing is in flight
        self.retry_at = 0.0


class Request:
    """One produce request on its way."""

    __slots__ = ("batches", "correlation_id", "sent_at", "size")

    def __init__(self, correlation_id: int, batches: list[Any], size: int) -> None:
        self.correlation_id = correlation_id
        self.batches = batches
        self.size = size
        self.sent_at = time.monotonic()


class Sender:
    """Routes queues to links, and decides what a failure means."""

    def __init__(self, engine: Engine, config: dict[str, Any], metrics: Metrics) -> None:
        self.engine = engine
        self.accumulator: Any = None  # set by the core before the first wake
        self.metrics = metrics
        self.acks = _ACKS[config["acks"]]
        self.linger_s: float = config["linger.ms"] / 1000
        self.delivery_timeout_s: float = config["delivery.timeout.ms"] / 1000
        self.request_timeout_s: float = config["request.timeout.ms"] / 1000
        self.max_request_bytes: int = config["max.request.size"]
        self.max_in_flight: int = config["max.in.flight.requests.per.connection"]
        self.retries: int = config["retries"]
        self.compression = Compression.parse(config["compression.type"])
        level = config.get(f"compression.{config['compression.type']}.level")
        self.compression_level: int | None = None if level in (None, -1) else level
        self.flushing = 0
        self.links: dict[int, BrokerLink] = {}
        self._orphans: dict[Any, None] = {}  # queues whose partition has no leader that we know
        self._sweeper: asyncio.Task[None] | None = None
        engine.metadata.listeners.append(self._on_snapshot)

    # --- work comes in ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """On the I/O thread: look at what has been announced."""
        links = set()
        for queue in self.accumulator.take_ready():
            if queue.sender is None:
                queue.sender = QueueNotes()
            link = self._route(queue)
            if link is not None:
                links.add(link)
        for link in self.links.values() if self.flushing or not links else links:
            link.nudge()
        if self._sweeper is None:
            self._sweeper = self.engine.io.spawn(self._sweep(), "headrace-expiry")

    def nudge_all(self) -> None:
        for link in self.links.values():
            link.nudge()

    def _route(self, queue: Any) -> BrokerLink | None:
        """Put the queue on its leader's list; None (and an orphan) while no leader is known."""
        snapshot = self.engine.metadata.snapshot
        info = snapshot.topics.get(queue.topic.name)
        leader = info.partitions[queue.partition].leader if info and queue.partition < len(info.partitions) else -1
        broker = snapshot.brokers.get(leader)
        if broker is None:
            self._orphans[queue] = None
            self.engine.metadata.invalidate()
            return None
        link = self.links.get(leader)
        if link is None or link.address != broker.address:
            if link is not None:
                link.retire()
            link = self.links[leader] = BrokerLink(self, leader, broker.address)
        notes = queue.sender
        if notes.in_flight and notes.link is not link:  # order: the old leader must have answered first
            self._orphans[queue] = None
            return None
        notes.link = link
        link.pending[queue] = None
        return link

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        for name, queues in self.accumulator.topics.items():
            info = snapshot.topics.get(name)
            if info is None:
                continue
            if len(info.partitions) > len(queues.queues):
                queues.grow(len(info.partitions))
            queues.available = [part.partition for part in info.partitions if part.leader >= 0]
        for link in list(self.links.values()):
            for queue in [queue for queue in link.pending if self._leader_of(queue) != link.broker_id]:
                del link.pending[queue]
                self._orphans[queue] = None
        self.adopt_orphans()

    def _leader_of(self, queue: Any) -> int:
        info = self.engine.metadata.snapshot.topics.get(queue.topic.name)
        return info.partitions[queue.partition].leader if info and queue.partition < len(info.partitions) else -1

    def adopt_orphans(self) -> None:
        """Route again what had no leader, or waited for its old one."""
        orphans, self._orphans = self._orphans, {}
        for queue in orphans:
            link = self._route(queue)
            if link is not None:
                link.nudge()

    # --- outcomes --------------------------------------------------------------------------------------------------

    def succeed(self, batch: Any, base_offset: int, log_append_time_ms: int) -> None:
        count = batch.count
        finish(batch, base_offset, log_append_time_ms, None)
        self.metrics["record-send"].record(count, count)

    def fail(self, batch: Any, error: HeadraceError) -> None:
        self.metrics["record-error"].record(batch.count, batch.count)
        finish(batch, -1, -1, error)

    def settle(self, batch: Any, error: HeadraceError, *, unknown: bool) -> None:
        """A batch in flight failed: try again, or give it this error. ``unknown``: it may have been written."""
        queue, notes = batch.queue, batch.queue.sender
        batch.maybe_written = batch.maybe_written or unknown
        if error.code in _STALE_METADATA:
            self.engine.metadata.invalidate()
        if batch.done:
            return
        now = time.monotonic()
        if error.retriable and batch.attempts <= self.retries and now < batch.created_s + self.delivery_timeout_s:
            notes.failed.append(batch)
            notes.retry_at = max(notes.retry_at, now + self.engine.backoff.delay_s(batch.attempts - 1))
            self.metrics["record-retry"].record(batch.count, batch.count)
            logger.debug("retrying a batch of %s-%d: %s", queue.topic.name, queue.partition, error)
        elif error.retriable and batch.maybe_written:
            self.fail(batch, self._unknown(batch, error))
        else:
            self.fail(batch, type(error)(f"{queue.topic.name}-{queue.partition}: {error.message}"))

    def release(self, queue: Any) -> None:
        """One batch of the queue has its answer. Once all have, failed ones go back, oldest first."""
        notes = queue.sender
        notes.in_flight -= 1
        if notes.in_flight:
            return
        if notes.failed:
            notes.failed.sort(key=lambda batch: batch.sequence)
            queue.requeue([batch for batch in notes.failed if not batch.done])
            notes.failed = []
            queue.listed = True
            self._orphans[queue] = None
        if queue in self._orphans:
            del self._orphans[queue]
            link = self._route(queue)
            if link is not None:
                link.nudge()

    def _unknown(self, batch: Any, error: HeadraceError) -> UnknownOutcomeError:
        return UnknownOutcomeError(
            f"{batch.queue.topic.name}-{batch.queue.partition}: {batch.count} records were sent but not acknowledged "
            f"within delivery.timeout.ms={self.delivery_timeout_s * 1000:g}: they may or may not be in the log; the last "
            f"failure: {error.message}"
        )

    async def _sweep(self) -> None:
        """Fail what is older than delivery.timeout.ms, wherever it waits."""
        pause = min(max(self.delivery_timeout_s / 10, 0.02), 0.5)
        while True:
            await asyncio.sleep(pause)
            now = time.monotonic()
            for batch in self.accumulator.snapshot_unfinished():
                if now < batch.created_s + self.delivery_timeout_s:
                    continue
                if batch.maybe_written or (batch.attempts and batch.queue.sender.in_flight):
                    self.fail(batch, self._unknown(batch, RequestTimedOutError("no answer yet")))
                else:
                    self.fail(
                        batch,
                        DeliveryTimeoutError(
                            f"{batch.queue.topic.name}-{batch.queue.partition}: {batch.count} records were not written "
                            f"within delivery.timeout.ms={self.delivery_timeout_s * 1000:g}; {self._why(batch.queue)}"
                        ),
                    )
            for link in self.links.values():
                link.check_request_timeout(now)

    def _why(self, queue: Any) -> str:
        if self._leader_of(queue) < 0:
            return "the partition has no leader"
        link = queue.sender.link
        if link is not None and link.last_error is not None:
            return f"the last failure: {link.last_error.message}"
        return "the broker is slower than the producer"

    async def close(self) -> None:
        """Fail what is left, end the streams."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for batch in self.accumulator.snapshot_unfinished():
            error: HeadraceError = ClosedError("the producer was closed before the record was sent")
            if batch.attempts:
                error = UnknownOutcomeError("the producer was closed before the record was acknowledged")
            self.fail(batch, error)
        links, self.links = list(self.links.values()), {}
        await asyncio.gather(*(link.close() for link in links))


class BrokerLink:
    """The produce stream to one broker."""

    def __init__(self, sender: Sender, broker_id: int, address: str) -> None:
        self.sender = sender
        self.broker_id = broker_id
        self.address = address
        self.pending: dict[Any, None] = {}  # queues with something to send, in the order of their turns
        self.in_flight: dict[int, Request] = {}
        self.last_error: HeadraceError | None = None
        self._event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._correlation = 0
        self._stream: Any = None
        self._retired = False
        self._task = sender.engine.io.spawn(self._run(), f"headrace-produce-{broker_id}")

    def nudge(self) -> None:
        self._event.set()

    def retire(self) -> None:
        """The broker has another address now: let the stream go; what waits is routed again."""
        self._retired = True
        for queue in self.pending:
            self.sender._orphans[queue] = None
        self.pending.clear()
        self._task.cancel()
        self._lost(NetworkError(f"broker {self.broker_id} has left {self.address}"))

    async def close(self) -> None:
        self._task.cancel()
        if self._stream is not None:
            self._stream.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def check_request_timeout(self, now: float) -> None:
        """A broker that does not answer for request.timeout.ms is as good as gone: break the stream."""
        oldest = next(iter(self.in_flight.values()), None)
        if oldest is not None and now - oldest.sent_at > self.sender.request_timeout_s and self._stream is not None:
            self.last_error = RequestTimedOutError(f"{self.address}: no answer for {self.sender.request_timeout_s:g} s")
            self._stream.cancel()

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._something_to_do()
            answered = self._correlation
            try:
                await self._session()
            except asyncio.CancelledError:
                raise
            except HeadraceError as error:
                self.last_error = error
                failures = 0 if self._correlation > answered + 1 else failures + 1
                logger.info("produce stream to %s broke: %s", self.address, error)
                self._lost(error)
                await asyncio.sleep(self.sender.engine.backoff.delay_s(failures - 1 if failures else 0))

    async def _something_to_do(self) -> None:
        while not self.pending:
            self._event.clear()
            await self._event.wait()

    async def _session(self) -> None:
        """One stream, until it breaks (HeadraceError)."""
        stream = self._stream = self.sender.engine.connections.produce_stream(self.address)
        reader = asyncio.create_task(self._read(stream))
        reader.add_done_callback(lambda _: self._event.set())
        try:
            while not reader.done():
                request = await self._collect()
                if request is None:
                    await self._event.wait()
                    continue
                await stream.write(self._encode(request))
                if self.sender.acks == produce_pb2.ACKS_NONE:
                    self._answered_by_nobody(request)
            await reader
        except grpc.aio.AioRpcError as failure:
            raise rpc.error_from_rpc(failure, self.address) from None
        except asyncio.InvalidStateError:  # written to after it ended: the reader knows why
            await asyncio.wait([reader])
            if (error := reader.exception()) is not None:
                raise error from None
            raise NetworkError(f"{self.address}: the produce stream ended") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self.last_error or NetworkError(f"{self.address}: the produce stream was cancelled") from None
        finally:
            self._stream = None
            stream.cancel()
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, stream: Any) -> None:
        try:
            while (response := await stream.read()) is not grpc.aio.EOF:
                self._answered(response)
            code = await stream.code()
            raise NetworkError(f"{self.address}: the broker ended the produce stream ({code.name})")
        except grpc.aio.AioRpcError as failure:
            raise rpc.error_from_rpc(failure, self.address) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self.last_error or NetworkError(f"{self.address}: the produce stream was cancelled") from None

    # --- what goes out ---------------------------------------------------------------------------------------------

    async def _collect(self) -> Request | None:
        """The next request, or None; then ``_event`` is set when there may be one."""
        self._event.clear()
        sender, now = self.sender, time.monotonic()
        if len(self.in_flight) >= sender.max_in_flight:
            return None
        batches: list[Any] = []
        size, wake_at = 0, float("inf")
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
            room = sender.max_request_bytes - size
            if batches and first_size(queue) > room:
                continue
            batch = take(queue, partial=partial <= now)
            del self.pending[queue]
            if batch is not None:
                if batch.done:  # expired while it waited
                    self.pending[queue] = None
                    self._event.set()
                    continue
                batches.append(batch)
                size += batch.size
                batch.attempts += 1
                notes.in_flight += 1
            if not leave_if_empty(queue):
                self.pending[queue] = None  # its next turn comes after the others
            if size >= sender.max_request_bytes:
                break
        if not batches:
            self._wake_at(wake_at)
            return None
        self._correlation += 1
        request = Request(self._correlation, batches, size)
        self.in_flight[request.correlation_id] = request
        await self._build(batches)
        return request

    def _may_send_partial(self, queue: Any, now: float) -> float:
        """When the queue's open batch may be sent: a time of time.monotonic(), the past for now."""
        sender = self.sender
        if sender.flushing or queue.open is None:
            return 0.0
        born: float = queue.open.created_s
        if sender.linger_s and now < born + sender.linger_s:
            return born + sender.linger_s
        return born + max(GATHER_S, sender.linger_s) if self.in_flight else 0.0

    async def _build(self, batches: list[Any]) -> None:
        sender = self.sender
        for batch in batches:
            if batch.data is None:
                if sender.compression is Compression.NONE:
                    build(batch, sender.compression, None)
                else:
                    await asyncio.to_thread(build, batch, sender.compression, sender.compression_level)

    def _encode(self, request: Request) -> Any:
        sender = self.sender
        message = produce_pb2.ProduceRequest(
            correlation_id=request.correlation_id, acks=sender.acks, timeout_ms=int(sender.request_timeout_s * 1000)
        )
        records = wire_bytes = 0
        now = time.monotonic()
        for batch in request.batches:
            data = batch.data or b""  # it may have expired meanwhile
            message.partitions.add(topic=batch.queue.topic.name, partition=batch.queue.partition, records=data)
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
        """Set the event at ``when``; one timer at a time."""
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

    # --- what comes back -------------------------------------------------------------------------------------------

    def _answered(self, response: Any) -> None:
        request = self.in_flight.pop(response.correlation_id, None)
        if request is None:
            return
        sender = self.sender
        sender.metrics["request-latency"].record((time.monotonic() - request.sent_at) * 1000)
        for batch, result in zip(request.batches, response.results, strict=True):
            if not result.error.code:
                self.last_error = None
                sender.succeed(batch, result.base_offset, result.log_append_time_ms)
            else:
                error = from_number(result.error.code, result.error.message)
                if result.HasField("current_leader"):
                    hint = result.current_leader
                    sender.engine.metadata.follow_hint(
                        result.topic, result.partition, hint.leader_id, hint.leader_epoch
                    )
                unknown = error.code in ("REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
                sender.settle(batch, error, unknown=unknown)
            sender.release(batch.queue)
        self._event.set()

    def _answered_by_nobody(self, request: Request) -> None:
        self.in_flight.pop(request.correlation_id, None)
        for batch in request.batches:
            self.sender.succeed(batch, -1, -1)
            self.sender.release(batch.queue)

    def _lost(self, error: HeadraceError) -> None:
        """The stream broke: nobody knows what became of the requests in flight."""
        requests, self.in_flight = self.in_flight, {}
        if not requests:
            self.sender.engine.metadata.invalidate()
        for request in requests.values():
            for batch in request.batches:
                retriable = error if error.retriable else NetworkError(error.message)
                self.sender.settle(batch, retriable, unknown=True)
                self.sender.release(batch.queue)


def first_size(queue: Any) -> int:
    """Bytes of the batch that ``take`` would give."""
    try:
        size: int = queue.sealed[0].size
    except IndexError:
        batch = queue.open
        return batch.size if batch is not None else 0
    return size


def build(batch: Any, compression: Compression, level: int | None) -> None:
    """Turn a sealed batch's builder into bytes (on a worker thread when compressing)."""
    builder = batch.builder
    if builder is not None and batch.data is None:
        batch.data = builder.build(compression=compression, level=level)
        batch.builder = None


def finish(batch: Any, base_offset: int, log_append_time_ms: int, error: HeadraceError | None) -> None:
    """Give a batch its outcome, and tell those who wait for it, each in the way it wants to be told."""
    loops: dict[Any, list[Any]] = {}
    for waiter in batch.finish(base_offset, log_append_time_ms, error):
        if isinstance(waiter, tuple):
            future, callback = waiter
            run_callback(future, callback)
        else:
            loops.setdefault(waiter.get_loop(), []).append(waiter)
    for loop, waiters in loops.items():
        try:
            loop.call_soon_threadsafe(_run_all, waiters)
        except RuntimeError:
            logger.debug("the event loop of %d waiting sends is closed", len(waiters))


def run_callback(future: Any, callback: Callable[[Any], object]) -> None:
    """Call a user's callback; what it raises is logged, for it must not stop the sender."""
    try:
        callback(future)
    except Exception:
        logger.exception("a delivery callback failed")


def _run_all(waiters: Iterable[Any]) -> None:
    for waiter in waiters:
        waiter.run_callbacks()
