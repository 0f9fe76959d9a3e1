"""Producer: the blocking producer."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, Unpack

from headrace_core.errors import HeadraceError, InvalidArgumentError
from headrace_core.types import TopicPartition

from .. import arguments
from ..accumulator import NativeProducer, NoSuchPartition, RecordFuture, RecordMetadata, header_list
from ..accumulator._checks import partition_number, timestamp_of
from ..callbacks import check_callback, refuse_to_wait
from ..engine.transactions import checked_token
from ..faces import ConsumerFace, Face
from ..models import GroupMetadata, OffsetAndMetadata, TransactionToken
from ..serializers import WouldWait
from ..settings import PRODUCER, from_file, resolve
from ..typed_settings import ProducerSettings
from .core import ProducerCore, deadline_error
from .futures import ManyFuture
from .group_offsets import group_offsets
from .transaction_state import Call

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowStream(Protocol):
    """An object with rows as an Arrow stream (PyCapsule interface), such as a data frame of polars or pandas."""

    def __arrow_c_stream__(self, requested_schema: object = None, /) -> object: ...


class ArrowArray(Protocol):
    """An object with rows as one Arrow struct array (PyCapsule interface)."""

    def __arrow_c_array__(self, requested_schema: object = None, /) -> Any: ...


ArrowData: TypeAlias = "pa.Table | pa.RecordBatch | pa.RecordBatchReader | ArrowStream | ArrowArray"

OnDelivery = Callable[[RecordMetadata | None, HeadraceError | None], object]


class Producer(Face, NativeProducer):
    """Writes records to topics.

        with Producer(bootstrap_servers="127.0.0.1:9095", acks="all") as producer:
            future = producer.send("orders", b"...", key=b"k")
            print(future.result(timeout=10).offset)

    Pass the configuration as a dict with Kafka's dotted names, or as snake_case keywords; an unknown key raises
    InvalidConfigError with a "did you mean" suggestion. Thread-safe. A producer connects at its first call. A send
    waits up to ``max.block.ms`` while the buffer is full. ``close``, or leaving the ``with`` block, sends the remaining
    records. The method ``send`` is compiled (``NativeProducer.send``).
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[ProducerSettings]) -> None:
        values = resolve(PRODUCER, config, settings)
        slow = _Slow()
        core = self._core = ProducerCore(values, slow.send)
        slow.core = weakref.ref(core)
        super().__init__(core.accumulator)
        self._finalizer = weakref.finalize(self, core.at_exit)
        self._finalizer.atexit = False  # not at exit: the core's own finalizer waits there

    @classmethod
    def from_properties(cls, path: str | os.PathLike[str], **overrides: Unpack[ProducerSettings]) -> Self:
        """Make the client from a properties file with Kafka's keys, such as the client.properties of `headrace up
        --secure`. ``overrides`` have priority. The call ignores keys that apply only to other kinds of clients. Raises
        InvalidConfigError for an invalid file; the message names the line."""
        return cls(from_file(PRODUCER, path, overrides))

    def _shown(self) -> list[str]:
        return self._core.shown()

    def start(self) -> None:
        """Connect to the cluster now, instead of at the first call. Raises BootstrapError, which names each address and
        its failure, within ``bootstrap.timeout.ms``; SaslAuthenticationFailedError. A repeated ``start`` does
        nothing."""
        self._core.check_open()
        self._core.engine.io.run(self._core.engine.connect())

    def send_many(
        self, topic: str, values: Iterable[Any], *, partition: int | None = None, timestamp_ms: int | None = None
    ) -> ManyFuture:
        """Queue many records: a list of values, of (key, value) tuples, or of (key, value, headers) tuples.
        ``send_many`` returns one future for all records.

        ``values`` may be any iterable. All records are serialized and checked before the first record is queued: an
        error names the bad record, and means that no record was sent. If a list is larger than the free buffer,
        BufferTimeoutError or ClosedError may occur after a part of the list was sent. The error's message says how many
        records were sent.
        """
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
            core.wait_until_sendable(topic, deadline)
        while True:
            try:
                items = core.prepare_many(topic, items, partition)
                break
            except NoSuchPartition as error:
                core.engine.io.run(core.recheck_partition(topic, error.args[0], core.max_block_s))
            except WouldWait as waiting:
                core.wait_for_registry(topic, waiting, deadline)
        runs: list[list[Any]] = []
        with core.tracing_many(topic, len(items)) as trace:
            while (reached := core.append_prepared(topic, items, start, partition, when, runs, trace)) < len(items):
                if reached > start:
                    deadline = time.monotonic() + core.max_block_s
                start = reached
                try:
                    core.wait_until_sendable(topic, deadline)
                except HeadraceError as error:
                    raise core.stopped(error, start, len(items)) from None
        return ManyFuture(topic, runs).traced(trace)

    def send_arrow(self, topic: str, table: ArrowData) -> ManyFuture:
        """Queue the rows of an Arrow table as records: column ``value``, and optionally ``key``, ``headers``,
        ``partition`` and ``timestamp``. ``send_arrow`` makes no Python object for a row, and returns one future for all
        rows.

        ``table`` is a pyarrow table or any object with ``__arrow_c_stream__``: a data frame of polars or pandas, a
        relation of DuckDB. The columns ``value`` and ``key`` are binary or text of any width. Rows are copied before
        the call returns. Serializers and ``partitioner.class`` do not apply to Arrow rows. Wrong rows are found before
        the first row is queued: the error names the row, and no row was sent. If an error interrupts the call later,
        for example BufferTimeoutError, its message says how many rows are being sent.
        """
        from .arrow import arrow_batches, as_table, missing_partition

        arguments.topic(topic)
        rows = as_table(table)
        core = self._core
        runs: list[list[Any]] = []
        deadline = time.monotonic() + core.max_block_s
        while topic not in core.accumulator.topics:
            core.wait_until_sendable(topic, deadline)
        if (missing := missing_partition(core, topic, rows)) is not None:
            with contextlib.suppress(InvalidArgumentError):  # ``arrow_batches`` names the row
                core.engine.io.run(core.recheck_partition(topic, missing, core.max_block_s))
        with core.tracing_rows(topic, rows) as trace:
            context = None if trace is None else trace.context
            traced = rows if trace is None or trace.rows is None else trace.rows
            try:
                for partition, data, count in arrow_batches(core, topic, traced):
                    deadline = time.monotonic() + core.max_block_s
                    while (batch := core.accumulator.append_encoded(topic, partition, data, count, context)) is None:
                        core.wait_until_sendable(topic, deadline)
                    runs.append([batch, 0, count])
            except HeadraceError as error:
                raise core.stopped_rows(error, sum(run[2] for run in runs), rows.num_rows) from None
        return ManyFuture(topic, runs).traced(trace)

    def init_transactions(self, keep_prepared: bool = False) -> TransactionToken | None:
        """Get the identity of this producer, and fence an older producer with the same ``transactional.id``.

        The first ``begin_transaction`` gets the identity, too; call ``init_transactions`` to fence the older producer
        earlier, or with ``keep_prepared=True``. With ``keep_prepared`` a prepared transaction of the older producer
        stays open (KIP-939): the call returns the transaction's token, and this producer must complete the transaction
        first. Without ``keep_prepared`` an open transaction of the older producer is aborted.
        """
        arguments.flag("keep_prepared", keep_prepared)
        transactions = self._core.transactional(Call.INIT)
        return self._core.engine.io.run(
            transactions.init(keep_prepared=keep_prepared), None, transactions.interruption(Call.INIT)
        )

    def begin_transaction(self) -> None:
        """Begin a transaction: the records of the following sends belong to the transaction. Raises ProducerFencedError
        (another producer uses the ``transactional.id``), IllegalStateError (a transaction is open already)."""
        transactions = self._core.transactional(Call.BEGIN)
        self._core.engine.io.run(transactions.begin(), None, transactions.interruption(Call.BEGIN))

    def commit_transaction(self) -> None:
        """Wait until every record of the transaction is acknowledged, then commit the transaction.

        Raises TransactionAbortableError (a record failed, or the transaction timed out: call ``abort_transaction``, and
        repeat the work), ProducerFencedError (make a new producer), RequestTimedOutError (the outcome is unknown: call
        ``commit_transaction`` again).
        """
        transactions = self._core.transactional(Call.COMMIT)
        self._core.engine.io.run(transactions.commit(), None, transactions.interruption(Call.COMMIT))

    def send_offsets(
        self,
        offsets: ConsumerFace | Mapping[TopicPartition, int | OffsetAndMetadata],
        group: GroupMetadata | None = None,
    ) -> None:
        """Commit a group's offsets as a part of the open transaction (KIP-447): the offsets take effect when the
        transaction is committed.

            for records in consumer.batches():
                with producer.transaction():
                    for record in records:
                        producer.send("payments", handle(record), record.key)
                    producer.send_offsets(consumer)

        If you pass a consumer, the offsets are its positions after the records that ``poll`` has returned, and its
        auto-commits stop. If you pass a mapping from partitions to offsets (of the next records to read), also pass
        ``group=consumer.group_metadata()``, and set ``enable.auto.commit=false``. The group's coordinator refuses the
        offsets of a consumer that has lost its partitions.

        Raises TransactionAbortableError (the offsets were refused: call ``abort_transaction``, then
        ``Consumer.seek_to_committed``, and repeat the work), IllegalStateError (no transaction is open),
        InvalidArgumentError, InvalidGroupIdError.
        """
        sent = group_offsets(offsets, group)
        transactions = self._core.transactional(Call.SEND_OFFSETS)
        self._core.engine.io.run(transactions.send_offsets(sent), None, transactions.interruption(Call.SEND_OFFSETS))

    def abort_transaction(self) -> None:
        """Abort the transaction. Records without an acknowledgement are dropped: their futures raise
        TransactionAbortedError. Raises ProducerFencedError; after RequestTimedOutError call ``abort_transaction``
        again, or ``begin_transaction``."""
        transactions = self._core.transactional(Call.ABORT)
        self._core.engine.io.run(transactions.abort(), None, transactions.interruption(Call.ABORT))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction as a ``with`` block: the end of the block commits the transaction. If the block or the commit
        raises, the transaction is aborted, and the exception is raised again.

            with producer.transaction():
                producer.send("payments", b"...")

        A transaction that the block has prepared or aborted stays prepared or aborted.
        """
        transactions = self._core.transactional(Call.BEGIN)
        io = self._core.engine.io
        io.run(transactions.begin(), None, transactions.interruption(Call.BEGIN))
        try:
            yield
        except BaseException as error:
            io.run(transactions.leave(error), None, transactions.interruption(None))
            raise
        io.run(transactions.leave(None), None, transactions.interruption(None))

    def prepare(self) -> TransactionToken:
        """Make the transaction durable, without a commit or an abort (two-phase commit, KIP-939), after every record is
        acknowledged. No timeout ends a prepared transaction. Pass the returned token to ``complete``, or to
        ``Admin.complete_transaction`` in any process, to commit or abort the transaction. Raises the errors of
        ``commit_transaction``."""
        transactions = self._core.transactional(Call.PREPARE)
        return self._core.engine.io.run(transactions.prepare(), None, transactions.interruption(Call.PREPARE))

    def complete(self, token: TransactionToken | str, *, commit: bool) -> None:
        """Commit or abort a prepared transaction, of this producer or of another producer, and wait until readers see
        the result. The call may be repeated with the same outcome (commit or abort). Raises InvalidTxnStateError (the
        transaction has ended differently), ProducerFencedError (the transaction's outcome is no longer known)."""
        checked = checked_token(token)
        arguments.flag("commit", commit)
        transactions = self._core.transactional(Call.COMPLETE)
        work = transactions.complete(checked, commit=commit)
        self._core.engine.io.run(work, None, transactions.interruption(Call.COMPLETE))

    def flush(self, timeout: float | None = None) -> None:
        """Send all queued records now, and wait until each has an outcome. ``timeout`` is in seconds; after that time
        DeliveryTimeoutError is raised."""
        self._core.check_open()
        self._core.flush(None if timeout is None else arguments.seconds(timeout))

    def partitions_for(self, topic: str) -> list[int]:
        """The topic's partition numbers."""
        self._core.check_open()
        arguments.topic(topic)
        info = self._core.engine.io.run(self._core.learn(topic, self._core.max_block_s))
        return [part.partition for part in info.partitions]

    def metrics(self) -> dict[str, float]:
        """Kafka's producer metrics by name (``record-send-rate``, ``request-latency-avg``, ...); times are in ms."""
        return self._core.metric_values()

    def partition_metrics(self) -> dict[TopicPartition, dict[str, float]]:
        """``record-send-total``, ``record-error-total`` and ``record-retry-total`` of each partition."""
        return self._core.sender.partition_metrics.values()

    def close(self, timeout: float | None = None) -> None:
        """Send the remaining records, then close the producer (``timeout`` in seconds, None: close.timeout.ms). Records
        without an outcome after this time fail, with a RuntimeWarning that counts them."""
        refuse_to_wait()
        timeout_s = self._core.engine.close_timeout_s if timeout is None else arguments.seconds(timeout)
        self._finalizer.detach()
        self._core.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Slow:
    """The slow path of ``send``, for a record that could not be queued at once. The object holds only a weak reference
    to the core, because a strong one would be a reference cycle. During a send, the producer keeps the core alive."""

    core: weakref.ref[ProducerCore]

    def send(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
        on_delivery: OnDelivery | None,
    ) -> RecordFuture:
        core = self.core()
        assert core is not None
        arguments.topic(topic)
        check_callback("on_delivery", on_delivery)
        if partition is not None:
            partition = partition_number(partition)
        if headers is not None:
            headers = header_list(headers)
        timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_of(timestamp_ms)
        deadline = time.monotonic() + core.max_block_s
        context = None
        with core.tracing(topic, key, headers) as trace:
            if trace is not None:
                headers, context = trace.headers, trace.context
            while True:
                try:
                    future: RecordFuture | None = core.accumulator.append(
                        RecordFuture, topic, value, key, headers, partition, timestamp_ms, context
                    )
                except NoSuchPartition as error:
                    core.engine.io.run(core.recheck_partition(topic, error.args[0], core.max_block_s))
                    continue
                except WouldWait as waiting:
                    core.wait_for_registry(topic, waiting, deadline)
                    continue
                if future is not None:
                    break
                core.wait_until_sendable(topic, deadline)
                if time.monotonic() > deadline:
                    raise deadline_error(topic, core.max_block_s)
        if trace is not None:
            future.add_done_callback(trace.one_done)
        if on_delivery is not None:
            future.add_done_callback(_Delivery(on_delivery))
        return future


class _Delivery:
    """A done callback that calls ``on_delivery(metadata, error)``."""

    def __init__(self, on_delivery: OnDelivery) -> None:
        self.wrapped = on_delivery

    def __call__(self, future: RecordFuture) -> None:
        error = future.exception()
        self.wrapped(None if error else future.result(), error)
