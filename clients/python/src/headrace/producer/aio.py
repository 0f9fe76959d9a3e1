"""AsyncProducer: the producer for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self, Unpack

from headrace_core.errors import HeadraceError, InvalidArgumentError
from headrace_core.types import TopicPartition

from .. import arguments
from ..accumulator import (
    AsyncRecordFuture,
    Headers,
    NativeAsyncProducer,
    NoSuchPartition,
    RecordMetadata,
    header_list,
)
from ..accumulator._checks import partition_number, timestamp_of
from ..engine.io_thread import interrupted_error, refuse_other_loops
from ..engine.transactions import checked_token
from ..faces import AwaitableDict, ConsumerFace, Face
from ..models import GroupMetadata, OffsetAndMetadata, TransactionToken
from ..serializers import WouldWait
from ..settings import PRODUCER, from_file, resolve
from ..typed_settings import ProducerSettings
from .blocking import ArrowData, OnDelivery
from .core import ProducerCore, deadline_error, registry_error
from .futures import ManyFuture
from .group_offsets import group_offsets
from .transaction_state import Call


class AsyncProducer(Face, NativeAsyncProducer):
    """Asyncio producer of records.

        async with AsyncProducer(bootstrap_servers="127.0.0.1:9095") as producer:
            future = await producer.send("orders", b"...", key=b"k")   # queued (waits while the buffer is full)
            metadata = await future                                    # acknowledged

    The futures that ``send`` returns work with asyncio.gather, wait and shield. Network I/O runs on Headrace's I/O
    thread, so a busy event loop does not delay acknowledgements. AsyncProducer has the configuration and the errors of
    Producer.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[ProducerSettings]) -> None:
        refuse_other_loops()
        values = resolve(PRODUCER, config, settings)
        slow = _Slow()
        core = self._core = ProducerCore(values, slow)
        slow.core = weakref.ref(core)
        super().__init__(core.accumulator)
        self._finalizer = weakref.finalize(self, core.at_exit)
        self._finalizer.atexit = False

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **overrides: Unpack[ProducerSettings]) -> Self:
        """Make the client from a properties file with Kafka's keys, such as the client.properties of `headrace up
        --secure`. ``overrides`` have priority. The call ignores keys that apply only to other kinds of clients. Raises
        InvalidConfigError for an invalid file; the message names the line."""
        return cls(from_file(PRODUCER, path, overrides))

    def _shown(self) -> list[str]:
        return self._core.shown()

    async def start(self) -> None:
        """Connect to the cluster now, instead of at the first call. Raises BootstrapError, which names each address and
        its failure, within ``bootstrap.timeout.ms``; SaslAuthenticationFailedError. A repeated ``start`` does
        nothing."""
        self._core.check_open()
        await self._core.engine.io.run_async(self._core.engine.connect())

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Queue one record and wait until it is acknowledged: ``await (await producer.send(...))``. Raises the errors
        of ``send`` and of the record's future."""
        metadata: RecordMetadata = await (await self.send(topic, value, key, headers, partition, timestamp_ms))
        return metadata

    async def send_many(
        self, topic: str, values: Iterable[Any], *, partition: int | None = None, timestamp_ms: int | None = None
    ) -> ManyFuture:
        """Queue many records: a list of values, of (key, value) tuples, or of (key, value, headers) tuples. Await the
        returned future for the outcome of the records. An error means that no record of the call was sent, except as
        described for Producer.send_many."""
        core, start = self._core, 0
        arguments.topic(topic)
        if partition is not None:
            partition = partition_number(partition)
        when = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_of(timestamp_ms)
        items = values  # the check copied the values once
        if not isinstance(items, list):
            items = arguments.items("values", values, "values, (key, value) or (key, value, headers)")
        if not items:
            return ManyFuture(topic, [])
        deadline = time.monotonic() + core.max_block_s
        while topic not in core.accumulator.topics:
            await core.wait_until_sendable_async(topic, deadline)
        while True:
            try:
                items = core.prepare_many(topic, items, partition)
                break
            except NoSuchPartition as error:
                await core.engine.io.run_async(core.recheck_partition(topic, error.args[0], core.max_block_s))
            except WouldWait as waiting:
                if not await waiting.end(deadline):
                    raise registry_error(topic, core.max_block_s) from None
        runs: list[list[Any]] = []
        with core.tracing_many(topic, len(items)) as trace:
            while (reached := core.append_prepared(topic, items, start, partition, when, runs, trace)) < len(items):
                if reached > start:
                    deadline = time.monotonic() + core.max_block_s
                start = reached
                try:
                    await core.wait_until_sendable_async(topic, deadline)
                except HeadraceError as error:
                    raise core.stopped(error, start, len(items)) from None
        return ManyFuture(topic, runs).traced(trace)

    async def send_arrow(self, topic: str, table: ArrowData) -> ManyFuture:
        """Queue the rows of an Arrow table as records (see Producer.send_arrow). A worker thread encodes the rows."""
        from .arrow import arrow_batches, as_table, missing_partition

        arguments.topic(topic)
        rows = as_table(table)
        core = self._core
        runs: list[list[Any]] = []
        deadline = time.monotonic() + core.max_block_s
        while topic not in core.accumulator.topics:
            await core.wait_until_sendable_async(topic, deadline)
        if (missing := missing_partition(core, topic, rows)) is not None:
            with contextlib.suppress(InvalidArgumentError):  # ``arrow_batches`` names the row
                await core.engine.io.run_async(core.recheck_partition(topic, missing, core.max_block_s))
        with core.tracing_rows(topic, rows) as trace:
            context = None if trace is None else trace.context
            batches = arrow_batches(core, topic, rows if trace is None or trace.rows is None else trace.rows)
            try:
                while (item := await asyncio.to_thread(next, batches, None)) is not None:
                    partition, data, count = item
                    deadline = time.monotonic() + core.max_block_s
                    while (batch := core.accumulator.append_encoded(topic, partition, data, count, context)) is None:
                        await core.wait_until_sendable_async(topic, deadline)
                    runs.append([batch, 0, count])
            except HeadraceError as error:
                raise core.stopped_rows(error, sum(run[2] for run in runs), rows.num_rows) from None
        return ManyFuture(topic, runs).traced(trace)

    async def init_transactions(self, keep_prepared: bool = False) -> TransactionToken | None:
        """Get the identity of this producer, and fence an older producer with the same ``transactional.id`` (see
        Producer.init_transactions)."""
        arguments.flag("keep_prepared", keep_prepared)
        transactions = self._core.transactional(Call.INIT)
        return await self._core.engine.io.run_async(
            transactions.init(keep_prepared=keep_prepared), transactions.interruption(Call.INIT)
        )

    async def begin_transaction(self) -> None:
        """Begin a transaction: the records of the following sends belong to the transaction (see
        Producer.begin_transaction)."""
        transactions = self._core.transactional(Call.BEGIN)
        await self._core.engine.io.run_async(transactions.begin(), transactions.interruption(Call.BEGIN))

    async def commit_transaction(self) -> None:
        """Wait until every record of the transaction is acknowledged, then commit the transaction (see
        Producer.commit_transaction)."""
        transactions = self._core.transactional(Call.COMMIT)
        await self._core.engine.io.run_async(transactions.commit(), transactions.interruption(Call.COMMIT))

    async def send_offsets(
        self,
        offsets: ConsumerFace | Mapping[TopicPartition, int | OffsetAndMetadata],
        group: GroupMetadata | None = None,
    ) -> None:
        """Commit a group's offsets as a part of the open transaction (KIP-447; see Producer.send_offsets)."""
        sent = group_offsets(offsets, group)
        transactions = self._core.transactional(Call.SEND_OFFSETS)
        await self._core.engine.io.run_async(
            transactions.send_offsets(sent), transactions.interruption(Call.SEND_OFFSETS)
        )

    async def abort_transaction(self) -> None:
        """Abort the transaction; records without an acknowledgement are dropped (see Producer.abort_transaction)."""
        transactions = self._core.transactional(Call.ABORT)
        await self._core.engine.io.run_async(transactions.abort(), transactions.interruption(Call.ABORT))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction as an ``async with`` block: the end of the block commits the transaction. If the block or the
        commit raises, the transaction is aborted (see Producer.transaction).

        A cancellation takes effect at once. In the background the transaction is aborted or, if its commit has already
        been sent, committed; the next transaction waits for this."""
        transactions = self._core.transactional(Call.BEGIN)
        io = self._core.engine.io
        await io.run_async(transactions.begin(), transactions.interruption(Call.BEGIN))
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit) as error:
            io.submit(transactions.leave(error))
            raise
        except BaseException as error:
            await io.run_async(transactions.leave(error), transactions.interruption(None))
            raise
        await io.run_async(transactions.leave(None), transactions.interruption(None))

    async def prepare(self) -> TransactionToken:
        """Make the transaction durable, without a commit or an abort (KIP-939; see Producer.prepare)."""
        transactions = self._core.transactional(Call.PREPARE)
        return await self._core.engine.io.run_async(transactions.prepare(), transactions.interruption(Call.PREPARE))

    async def complete(self, token: TransactionToken | str, *, commit: bool) -> None:
        """Commit or abort a prepared transaction, and wait until readers see the result (see Producer.complete)."""
        checked = checked_token(token)
        arguments.flag("commit", commit)
        transactions = self._core.transactional(Call.COMPLETE)
        await self._core.engine.io.run_async(
            transactions.complete(checked, commit=commit), transactions.interruption(Call.COMPLETE)
        )

    async def flush(self, timeout: float | None = None) -> None:
        """Send all queued records now, and wait until each has an outcome. ``timeout`` is in seconds; after that time
        DeliveryTimeoutError is raised."""
        self._core.check_open()
        await self._core.flush_async(None if timeout is None else arguments.seconds(timeout))

    async def partitions_for(self, topic: str) -> list[int]:
        """The topic's partition numbers."""
        self._core.check_open()
        arguments.topic(topic)
        info = await self._core.engine.io.run_async(self._core.learn(topic, self._core.max_block_s))
        return [part.partition for part in info.partitions]

    def metrics(self) -> AwaitableDict[str, float]:
        """Kafka's producer metrics by name; times are in ms."""
        return AwaitableDict(self._core.metric_values())

    def partition_metrics(self) -> AwaitableDict[TopicPartition, dict[str, float]]:
        """``record-send-total``, ``record-error-total`` and ``record-retry-total`` of each partition."""
        return AwaitableDict(self._core.sender.partition_metrics.values())

    async def close(self, timeout: float | None = None) -> None:
        """Send the remaining records, then close the producer (``timeout`` in seconds, None: close.timeout.ms). Records
        without an outcome after this time fail, with a RuntimeWarning that counts them."""
        timeout_s = self._core.engine.close_timeout_s if timeout is None else arguments.seconds(timeout)
        self._finalizer.detach()
        await self._core.close_async(timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class _Slow:
    """The slow path of ``send``, for a record that could not be queued at once."""

    core: weakref.ref[ProducerCore]

    async def __call__(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | Callable[..., object] | None,
    ) -> AsyncRecordFuture:
        core = self.core()
        if core is None:  # the program dropped the producer before it awaited the call
            raise interrupted_error()
        arguments.topic(topic)
        if partition is not None:
            partition = partition_number(partition)
        if headers is not None:
            headers = header_list(headers)
        timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_of(timestamp_ms)
        deadline = time.monotonic() + core.max_block_s
        await asyncio.sleep(0)  # a batch has just become full: let the caller's loop run
        context = None
        with core.tracing(topic, key, headers) as trace:
            if trace is not None:
                headers, context = trace.headers, trace.context
            while True:
                try:
                    future: AsyncRecordFuture | None = core.accumulator.append(
                        AsyncRecordFuture, topic, value, key, headers, partition, timestamp_ms, context
                    )
                except NoSuchPartition as error:
                    await core.engine.io.run_async(core.recheck_partition(topic, error.args[0], core.max_block_s))
                    continue
                except WouldWait as waiting:
                    if not await waiting.end(deadline):
                        raise registry_error(topic, core.max_block_s) from None
                    continue
                if future is not None:
                    break
                await core.wait_until_sendable_async(topic, deadline)
                if time.monotonic() > deadline:
                    raise deadline_error(topic, core.max_block_s)
        if trace is not None:
            future.add_done_callback(trace.one_done)
        return future


# Python's warning about a coroutine that was never awaited names the method that the program called.
_Slow.__call__.__qualname__ = "AsyncProducer.send"
