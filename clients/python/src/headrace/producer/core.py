"""The common core of the blocking and the asyncio producer: accumulator, sender, lifecycle, and the waits of a send."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_core.errors import (
    BufferTimeoutError,
    ClosedError,
    DeliveryTimeoutError,
    HeadraceError,
    IllegalStateError,
    InvalidArgumentError,
    RequestTimedOutError,
    TransactionAbortedError,
)
from headrace_core.plurals import counted

from ..accumulator import Accumulator, NoSuchPartition, SendBatch, TopicQueues
from ..callbacks import on_io_thread, refuse_to_wait, waiting_text
from ..engine.client import Engine
from ..engine.io_thread import END_S, call_in, closed_error, forget, forked_error, lose
from ..engine.metadata import Snapshot, TopicInfo
from ..faces import several, where
from ..metrics import Metrics
from ..partitioners import partitioner
from ..serializers import WouldWait, serializer
from .sender import Sender
from .transaction_state import Call
from .transactional import Transactions

if TYPE_CHECKING:
    import pyarrow as pa

    from ..tracing import ProducerTraces, SendTrace

logger = logging.getLogger("headrace")

#: States of the accumulator. HELD: a transactional producer may not send now, because no transaction is open.
OPEN, CLOSED, FORKED, HELD = 0, 1, 2, 3

_UNTRACED: AbstractContextManager[None] = contextlib.nullcontext()


def _warn_caller(text: str) -> None:
    logger.warning("%s", text)
    warnings.warn(text, RuntimeWarning, stacklevel=5)


#: Seconds before each look for a partition that the metadata lacks.
_LATE_PARTITION_S = (0.0, 0.05, 0.15, 0.3)


class ProducerCore:
    """The core of one producer. Producer and AsyncProducer have no state besides the core, so the garbage collector may
    free them at any time."""

    def __init__(self, config: dict[str, Any], slow: Callable[..., Any]) -> None:
        self.config = config
        self.engine = Engine(config, self, on_failure=_stopper(weakref.ref(self)))
        self.metrics = Metrics(config)
        self.sender = Sender(self.engine, config, self.metrics)
        self.max_block_s: float = config["max.block.ms"] / 1000
        self.accumulator = Accumulator(
            batch_bytes=max(min(config["batch.size"], config["max.request.size"]), 62),
            buffer_bytes=config["buffer.memory"],
            wake=_waker(weakref.ref(self)),
            slow=slow,
            adaptive=config["partitioner.adaptive.partitioning.enable"],
            ignore_keys=config["partitioner.ignore.keys"],
            partitioner=partitioner(config["partitioner.class"]),
            key_serializer=serializer(config["key.serializer"], "key.serializer"),
            value_serializer=serializer(config["value.serializer"], "value.serializer"),
        )
        self.accumulator.unread = partial(_unread, self.metrics)
        self.traces: ProducerTraces | None = None
        if config["otel.traces.enable"]:
            from ..tracing import ProducerTraces

            self.traces = self.sender.traces = ProducerTraces(config)
            self.accumulator.untraced = self.traces.gap()
        self.sender.accumulator = self.accumulator
        self._applied: dict[str, TopicInfo] = {}  # the metadata that each topic's queues have
        self.engine.metadata.listeners.append(self._on_snapshot)
        self._closing = threading.Lock()
        self._is_abandoned = False
        #: The result of ``shut_down``, which runs once; None until a close has sent the remaining records.
        self._ending: concurrent.futures.Future[None] | None = None
        self._flushing = threading.Lock()
        self.transactions: Transactions | None = None
        if config["transactional.id"] is not None:
            self.transactions = Transactions(
                self.engine,
                config,
                hold=self._hold,
                flush=partial(self.flush_async, None),
                drop=self.sender.drop,
                renewed=self.sender.identity_renewed,
                traceparent=_no_span if self.traces is None else self.traces.current,
            )
            self.sender.identity = self.sender.transactions = self.transactions
            self.accumulator.transactional = True
            self.accumulator.state = HELD

    # --- transactions ----------------------------------------------------------------------------------------------

    def transactional(self, call: Call) -> Transactions:
        """The producer's transactions. Raises IllegalStateError if the producer has no transactional id."""
        self.check_open()
        if self.transactions is None:
            raise IllegalStateError(
                f"{call.value} needs a transactional producer: set transactional.id, "
                "Producer(transactional_id='payments-1')"
            )
        return self.transactions

    def _hold(self, is_held: bool) -> None:
        """Forbid or allow sends; runs on the I/O thread."""
        with self._closing:  # without the lock, a close() of another thread between the two lines would be undone
            if self.accumulator.state != (OPEN if is_held else HELD):
                return
            self.accumulator.state = HELD if is_held else OPEN
        self.accumulator.space_freed()  # a send that waits for room learns the new state

    # --- topics ----------------------------------------------------------------------------------------------------

    async def learn(self, topic: str, timeout_s: float) -> TopicInfo:
        """Get the topic's metadata and make partition queues for the topic; runs on the I/O thread."""
        info = await self.engine.topic(topic, timeout_s)
        self.check_open()
        if self.sender.identity is not None and self.sender.identity.current is None:
            # Ask for the producer id early, because the first batch waits for the producer id.
            self.sender.identity.ask()
        if topic not in self.accumulator.topics:
            queues = TopicQueues(self.accumulator, topic, len(info.partitions), self._max_batch_bytes(info))
            queues.available = [part.partition for part in info.partitions if part.leader >= 0]
            self.accumulator.topics[topic] = queues
        return info

    async def recheck_partition(self, topic: str, partition: int, timeout_s: float) -> None:
        """Refresh the metadata of the topic, because the cached metadata may lack a new partition, and brokers may know
        of it a moment later. Raises InvalidArgumentError if the partition does not exist."""
        deadline = time.monotonic() + timeout_s
        for pause_s in _LATE_PARTITION_S if partition >= 0 else (0.0,):
            if pause_s and time.monotonic() + pause_s >= deadline:
                break
            await asyncio.sleep(pause_s)
            self.check_open()
            await self.engine.metadata.refresh([topic], deadline=deadline)
            self.check_open()
            count = len(self.accumulator.topics[topic].queues)
            if 0 <= partition < count:
                return
        raise InvalidArgumentError(
            f"topic {topic!r} has {counted(count, 'partition')} (0 to {count - 1}); partition {partition} does "
            "not exist"
        )

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        for name, queues in self.accumulator.topics.items():
            info = snapshot.topics.get(name)
            if info is not None and self._applied.get(name) is not info:
                self._applied[name] = info
                queues.max_batch_bytes = self._max_batch_bytes(info)

    def _max_batch_bytes(self, info: TopicInfo) -> int:
        """The size in bytes of the largest batch that brokers accept; compressed batches are measured before they are
        sent (Sender.too_large)."""
        limit: int = self.config["max.request.size"]
        if info.max_message_bytes > 0 and self.config["compression.type"] == "none":
            limit = min(limit, info.max_message_bytes)
        return limit

    # --- sending many ----------------------------------------------------------------------------------------------

    def prepare_many(self, topic: str, values: Any, partition: int | None) -> list[Any]:
        """Serialize and check the records of a send_many call, whose topic must be known. Raises NoSuchPartition."""
        self.check_sendable()
        return self.accumulator.prepare_many(topic, values, partition)

    def append_prepared(
        self,
        topic: str,
        items: list[Any],
        start: int,
        partition: int | None,
        when: int,
        runs: list[list[Any]],
        trace: SendTrace | None,
    ) -> int:
        """Append prepared records from index ``start`` on; return the index at which the buffer was full."""
        try:
            context = None if trace is None else trace.context
            return self.accumulator.append_many(topic, items, start, partition, when, runs, context)
        except NoSuchPartition as error:  # the topic was created again with fewer partitions
            gone = InvalidArgumentError(
                f"topic {topic!r} no longer has partition {error.args[0]}: the topic was created again with fewer "
                "partitions"
            )
            raise self.stopped(gone, sum(run[2] for run in runs), len(items)) from None

    def stopped(self, error: HeadraceError, sent: int, count: int) -> HeadraceError:
        """If records were queued before ``error`` interrupted a send_many call, add their number to the error's
        message."""
        if sent:
            error.args = (f"{error.message}; the first {sent} of {count} records are being sent", *error.args[1:])
        return error

    def stopped_rows(self, error: HeadraceError, sent: int, count: int) -> HeadraceError:
        """If rows were queued before ``error`` interrupted a send_arrow call, add their number to the error's
        message."""
        if sent:
            error.args = (f"{error.message}; {sent} of the {count} rows are being sent", *error.args[1:])
        return error

    # --- traces ----------------------------------------------------------------------------------------------------

    def tracing(self, topic: str, key: Any, headers: Any) -> AbstractContextManager[SendTrace | None]:
        """A block that queues one record: begins the record's span, which ends at once if the block raises. The block
        gets None for a record that is not traced."""
        traces = self.traces
        if traces is None or not self._is_traced(traces, 1):
            return _UNTRACED
        return _ended_by_error(traces.begin(topic, key, headers))

    def tracing_many(self, topic: str, count: int) -> AbstractContextManager[SendTrace | None]:
        """A block that queues ``count`` records, with one span (see ``tracing``)."""
        traces = self.traces
        if traces is None or not self._is_traced(traces, count):
            return _UNTRACED
        return _ended_by_error(traces.begin_many(topic, count))

    def tracing_rows(self, topic: str, table: pa.Table) -> AbstractContextManager[SendTrace | None]:
        """A block that queues the rows of a table. Rows with the context of a sampled span have spans of their own;
        without such a row the call has one span."""
        found = None if self.traces is None else self.traces.begin_rows(topic, table)
        return self.tracing_many(topic, table.num_rows) if found is None else _ended_by_error(found)

    def _is_traced(self, traces: ProducerTraces, count: int) -> bool:
        """Whether one of the next ``count`` records is offered to the application's sampler."""
        left = self.accumulator.untraced - count
        self.accumulator.untraced = left if left >= 0 else traces.gap()
        return left < 0

    def shown(self) -> list[str]:
        topics = [several("topics", sorted(self.accumulator.topics))] if self.accumulator.topics else []
        state = ("open", "closed", "forked", "open")[self.accumulator.state]
        transactional_id = self.config["transactional.id"]
        named = [] if transactional_id is None else [f"transactional id {transactional_id!r}"]
        return [where(self.config), *named, *topics, state]

    # --- waiting ---------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self.accumulator.state == FORKED:
            raise forked_error("producer")
        if self.accumulator.state == CLOSED:
            raise closed_error("producer")
        self.engine.check_alive()

    def check_sendable(self) -> None:
        self.check_open()
        transactions = self.transactions  # ``transactions`` is None if another thread has closed the producer
        if self.accumulator.state == HELD and transactions is not None:
            transactions.producer.check(Call.SEND)

    def wait_until_sendable(self, topic: str, deadline: float) -> None:
        """Block until the topic is known and the buffer has free space.

        Raises BufferTimeoutError or RequestTimedOutError after max.block.ms, and errors about the topic. In a callback,
        which must not block, BufferTimeoutError or IllegalStateError is raised at once.
        """
        self.check_sendable()
        if topic not in self.accumulator.topics:
            left = deadline - time.monotonic()
            self.engine.io.run(self.learn(topic, max(left, 0.01)))
        elif self.accumulator.buffered_bytes >= self.accumulator.buffer_bytes:
            if on_io_thread():
                raise BufferTimeoutError(
                    f"buffer.memory={self.accumulator.buffer_bytes} is full; {waiting_text('send()')} "
                    "(max.block.ms does not apply to the client's I/O thread)"
                )
            event = threading.Event()
            begun = time.monotonic()
            if self.accumulator.add_space_waiter(event.set) and not event.wait(max(deadline - begun, 0)):
                self._buffer_timeout()
            self._waited_for_room(begun)
        else:
            time.sleep(0)  # another thread is in the middle of an append

    async def wait_until_sendable_async(self, topic: str, deadline: float) -> None:
        """Wait like ``wait_until_sendable``, from another event loop."""
        self.check_sendable()
        if topic not in self.accumulator.topics:
            await self.engine.io.run_async(self.learn(topic, max(deadline - time.monotonic(), 0.01)))
        elif self.accumulator.buffered_bytes >= self.accumulator.buffer_bytes:
            loop, event, begun = asyncio.get_running_loop(), asyncio.Event(), time.monotonic()
            if self.accumulator.add_space_waiter(partial(call_in, loop, event.set)):
                try:
                    async with asyncio.timeout(max(deadline - begun, 0)):
                        await event.wait()
                except TimeoutError:
                    self._buffer_timeout()
            self._waited_for_room(begun)
        else:
            await asyncio.sleep(0)

    def wait_for_registry(self, topic: str, waiting: WouldWait, deadline: float) -> None:
        """Block until a serializer's request has ended. Raises RequestTimedOutError at ``deadline``; IllegalStateError
        in a callback."""
        refuse_to_wait("send()")
        if not waiting.block(deadline):
            raise registry_error(topic, self.max_block_s)

    def _waited_for_room(self, begun: float) -> None:
        now = time.monotonic()
        self.metrics.record(now, ("bufferpool-wait-time", now - begun, 1))

    def _buffer_timeout(self) -> None:
        raise BufferTimeoutError(
            f"buffer.memory={self.accumulator.buffer_bytes} stayed full for "
            f"max.block.ms={self.max_block_s * 1000:g}: brokers accept records more slowly than the program sends them"
            "; send more slowly, or check the brokers with `headrace doctor`"
        )

    # --- flush and close -------------------------------------------------------------------------------------------

    def begin_flush(self) -> list[Any]:
        """Make all queued records sendable at once; return the batches to wait for. Pair with end_flush."""
        with self._flushing:
            self.sender.flushing += 1
        batches = self.accumulator.seal_all()
        if batches:
            self.engine.call(self.sender.wake)
        return batches

    def end_flush(self) -> None:
        with self._flushing:
            self.sender.flushing -= 1

    def flush(self, timeout_s: float | None) -> None:
        """Block until every record that was sent before the call has an outcome. Raises DeliveryTimeoutError."""
        refuse_to_wait()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        batches = self.begin_flush()
        try:
            for batch in batches:
                if not batch.wait(None if deadline is None else max(deadline - time.monotonic(), 0)):
                    raise self.not_flushed(timeout_s)
        finally:
            self.end_flush()

    async def flush_async(self, timeout_s: float | None) -> None:
        """Wait like ``flush``, from another event loop."""
        loop, batches = asyncio.get_running_loop(), self.begin_flush()
        try:
            async with asyncio.timeout(timeout_s):
                for batch in batches:
                    event = asyncio.Event()

                    def wake(_: Any, event: asyncio.Event = event) -> None:
                        call_in(loop, event.set)

                    if batch.add_waiter((None, wake)):
                        await event.wait()
        except TimeoutError:
            raise self.not_flushed(timeout_s) from None
        finally:
            self.end_flush()

    def not_flushed(self, timeout_s: float | None) -> DeliveryTimeoutError:
        return DeliveryTimeoutError(
            f"{counted(self.unacknowledged(), 'record')} not acknowledged after {timeout_s:g} s of flush(); the "
            "producer still sends them: wait longer"
        )

    def close(self, timeout_s: float) -> None:
        """Abort the open transaction, flush, then close. Records that have no outcome after ``timeout_s`` in all fail,
        with a warning. An interrupted close (Ctrl-C) ends at once: it fails the remaining records, and closes. A
        repeated close completes what an interrupted close has left."""
        refuse_to_wait()
        if not self._begin_close():
            return
        deadline, why = time.monotonic() + timeout_s, "it was interrupted"
        try:
            if (transactions := self.transactions) is not None:
                with self._ending_transaction():
                    self.engine.io.run(transactions.close(), timeout_s)
            self.flush(max(deadline - time.monotonic(), 0))
        except DeliveryTimeoutError:
            why = f"its timeout of {timeout_s:g} s is over"
        finally:
            try:
                self.end_close(why)
            finally:  # also if the program turns warnings into errors
                concurrent.futures.wait([self._end()], END_S)

    async def close_async(self, timeout_s: float, warn: Callable[[str], object] = _warn_caller) -> None:
        """Close the producer like ``close``, from another event loop. A cancelled close is an interrupted close."""
        if not self._begin_close():
            return
        deadline, why = time.monotonic() + timeout_s, "it was interrupted"
        try:
            if (transactions := self.transactions) is not None:
                with self._ending_transaction():
                    async with asyncio.timeout(timeout_s):
                        await self.engine.io.run_async(transactions.close())
            await self.flush_async(max(deadline - time.monotonic(), 0))
        except DeliveryTimeoutError:
            why = f"its timeout of {timeout_s:g} s is over"
        finally:
            try:
                self.end_close(why, warn)
            finally:
                await asyncio.shield(asyncio.wait([asyncio.wrap_future(self._end())], timeout=END_S))

    @contextlib.contextmanager
    def _ending_transaction(self) -> Iterator[None]:
        try:
            yield
        except ClosedError:  # another thread's close was faster
            pass
        except TimeoutError:
            logger.warning(
                "the open transaction of %r could not be ended within the timeout of close(), so its coordinator "
                "aborts it after transaction.timeout.ms",
                self.config["transactional.id"],
            )

    def _begin_close(self) -> bool:
        """Refuse further sends. Returns whether the caller must complete the close: also in a repeated close, because
        the first close may have been interrupted anywhere."""
        with self._closing:
            if self.accumulator.state == FORKED:
                return False
            self.accumulator.state = CLOSED
        forget(self)
        self.accumulator.space_freed()
        if not self.engine.is_used:
            self._release()
        return self.engine.is_used and not (self._ending is not None and self._ending.done())

    def _end(self) -> concurrent.futures.Future[None]:
        """Start ``shut_down``, unless a close has started it. An interruption of the caller does not interrupt
        ``shut_down``."""
        with self._closing:
            if self._ending is None:
                self._ending = self.engine.io.finish(self.shut_down(), END_S)
            return self._ending

    def end_close(self, why: str, warn: Callable[[str], object] = _warn_caller) -> None:
        """Log a warning if records without an outcome are dropped at close."""
        if count := self.unacknowledged():
            warn(
                f"a producer ({', '.join(self.shown()[:-1])}) was closed with {counted(count, 'record')} "
                f"unacknowledged, because {why}: each future has its error; close(timeout=...) may wait longer than "
                "close.timeout.ms"
            )

    def unacknowledged(self) -> int:
        """The number of records without an outcome."""
        return sum(batch.count for batch in self.accumulator.snapshot_unfinished())

    async def shut_down(self) -> None:
        await self.sender.close()
        await self.engine.close()
        self._release()

    def _release(self) -> None:
        """Cut the reference cycles, so that Python frees a closed producer at once, and not at the next garbage
        collection."""
        self.engine.metadata.listeners.clear()
        self.transactions = self.sender.transactions = self.sender.identity = None
        self.accumulator.close()

    def at_exit(self) -> None:
        """Send the remaining records in the background, then close, because the program has dropped the producer, or
        ends."""
        if self.accumulator.state in (CLOSED, FORKED):
            return
        # An unused producer has sent nothing, so close it at once: a concurrent first call then raises the error of a
        # closed producer.
        if not self.engine.is_used:
            self.accumulator.state = CLOSED
            self._release()
        elif not self._is_abandoned:
            self._is_abandoned = True
            close = self.close_async(self.sender.delivery_timeout_s, lose)
            self.engine.io.finish(close, self.engine.close_timeout_s, self._left_at_exit)

    def _left_at_exit(self) -> str:
        if not (count := self.unacknowledged()):
            return ""
        return (
            f"a producer ({', '.join(self.shown()[:-1])}) was open at the end of the process, which leaves "
            f"{counted(count, 'record')} unacknowledged; close it (with Producer(...) as producer), or raise "
            f"close.timeout.ms={self.engine.close_timeout_s * 1000:g}"
        )

    def after_fork(self) -> None:
        self.accumulator.state = FORKED
        # Replace the lock, because a thread that exists only in the parent process may have locked the old lock.
        self._closing = threading.Lock()

    # --- metrics ---------------------------------------------------------------------------------------------------

    def metric_values(self) -> dict[str, float]:
        m, accumulator = self.metrics, self.accumulator
        return {
            "record-send-rate": m["record-send"].rate(),
            "record-send-total": m["record-send"].total,
            "record-error-rate": m["record-error"].rate(),
            "record-error-total": m["record-error"].total,
            "record-error-unread-total": m["record-error-unread"].total,
            "record-retry-rate": m["record-retry"].rate(),
            "record-retry-total": m["record-retry"].total,
            "records-per-request-avg": m["records-per-request"].average(),
            "record-queue-time-avg": m["record-queue-time"].average(),
            "record-queue-time-max": m["record-queue-time"].maximum(),
            "batch-size-avg": m["batch-size"].average(),
            "batch-size-max": m["batch-size"].maximum(),
            "compression-rate-avg": m["compression-rate"].average(),
            "request-rate": m["request"].rate(),
            "request-total": m["request"].total,
            "request-latency-avg": m["request-latency"].average(),
            "request-latency-max": m["request-latency"].maximum(),
            "produce-throttle-time-avg": m["produce-throttle-time"].average(),
            "produce-throttle-time-max": m["produce-throttle-time"].maximum(),
            "outgoing-byte-rate": m["outgoing-byte"].rate(),
            "outgoing-byte-total": m["outgoing-byte"].total,
            "requests-in-flight": float(sum(len(link.in_flight) for link in self.sender.links.values())),
            "connection-count": float(len(self.sender.links)),
            "buffer-total-bytes": float(accumulator.buffer_bytes),
            "buffer-available-bytes": float(max(accumulator.buffer_bytes - accumulator.buffered_bytes, 0)),
            "bufferpool-wait-time-total": m["bufferpool-wait-time"].total,
        }


def _stopper(core_of: weakref.ref[ProducerCore]) -> Callable[[], None]:
    """Forbids further sends, and fails the records without an outcome."""

    def stop() -> None:
        core, failure = core_of(), None
        if core is not None:
            failure = core.engine.failure()
        if core is not None and failure is not None:
            core._hold(True)
            core.sender.drop(lambda batch: failure)

    return stop


def _waker(core_of: weakref.ref[ProducerCore]) -> Callable[[], None]:
    """The accumulator's ``wake``, which has only a weak reference to the producer's core."""

    def wake() -> None:
        core = core_of()
        if core is not None:
            core.engine.call(core.sender.wake)

    return wake


def _unread(metrics: Metrics, batch: SendBatch, count: int) -> None:
    """``count`` records of a failed batch were not delivered, and the program has dropped their futures unread. Runs in
    any thread. (The program knows of the records that it has aborted.)"""
    error = batch.failure()
    if error is None or isinstance(error, TransactionAbortedError):
        return
    metrics.record(time.monotonic(), ("record-error-unread", count, 1))
    logger.warning(
        "%s-%d: %s not delivered, and the program has not read the outcome (await, result(), exception()): %s: %s",
        batch.queue.topic.name,
        batch.queue.partition,
        counted(count, "record"),
        error.code,
        error.message,
    )


def _no_span() -> None:
    """The trace context of a producer without traces, which is always None."""


def registry_error(topic: str, block_s: float) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"topic {topic!r}: a serializer got no answer from the schema registry within "
        f"max.block.ms={block_s * 1000:g}; check the registry with `headrace schemas list`"
    )


def deadline_error(topic: str, block_s: float) -> RequestTimedOutError:
    return RequestTimedOutError(
        f"topic {topic!r}: the record could not be queued within max.block.ms={block_s * 1000:g}; "
        "check the brokers with `headrace doctor`"
    )


@contextlib.contextmanager
def _ended_by_error(trace: SendTrace | None) -> Iterator[SendTrace | None]:
    try:
        yield trace
    except BaseException as error:
        if trace is not None:
            trace.failed(error)
        raise
