"""Producer: the blocking producer."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, Unpack

from headrace_core.errors import HeadraceError

from .. import arguments
from ..accumulator import NativeProducer, NoSuchPartition, RecordFuture, RecordMetadata, header_list
from ..accumulator._checks import partition_number, timestamp_of
from ..callbacks import check_callback, refuse_to_wait
from ..faces import Face
from ..settings import PRODUCER, resolve
from ..typed_settings import ProducerSettings
from .core import ProducerCore, deadline_error
from .futures import ManyFuture

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowStream(Protocol):
    """An object with rows as an Arrow stream (PyCapsule interface): of polars, pandas, DuckDB and others."""

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
    InvalidConfigError with a "did you mean". Thread-safe. A producer connects at its first call. A send waits up to
    ``max.block.ms`` while the buffer is full. ``close``, or leaving the ``with`` block, sends the remaining records.
    The method ``send`` is compiled (``NativeProducer.send``).
    """

    def __init__(self, config: Mapping[str, Any] | None = None, /, **settings: Unpack[ProducerSettings]) -> None:
        values = resolve(PRODUCER, config, settings)
        slow = _Slow()
        core = self._core = slow.core = ProducerCore(values, slow.send)
        super().__init__(core.accumulator)
        self._finalizer = weakref.finalize(self, core.abandon)
        self._finalizer.atexit = False  # the core has a finalizer that waits

    def _shown(self) -> list[str]:
        return self._core.shown()

    def send_many(
        self, topic: str, values: Iterable[Any], *, partition: int | None = None, timestamp_ms: int | None = None
    ) -> ManyFuture:
        """Queue many records: a list of values, of (key, value) tuples, or of (key, value, headers) tuples.
        ``send_many`` returns one future for all records.

        ``values`` may be any iterable. All records are serialized and checked before the first one is queued: an error
        names the bad record, and means that no record was sent. Only BufferTimeoutError or ClosedError in the middle of
        a list that is larger than the free buffer can mean that a part was sent; the error's message says how many
        records.
        """
        core, start = self._core, 0
        arguments.topic(topic)
        if partition is not None:
            partition = partition_number(partition)
        when = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_of(timestamp_ms)
        items = values  # copied once, by the check
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
        runs: list[list[Any]] = []
        while (reached := core.append_prepared(topic, items, start, partition, when, runs)) < len(items):
            if reached > start:
                deadline = time.monotonic() + core.max_block_s
            start = reached
            try:
                core.wait_until_sendable(topic, deadline)
            except HeadraceError as error:
                raise core.stopped(error, start, len(items)) from None
        return ManyFuture(topic, runs)

    def send_arrow(self, topic: str, table: ArrowData) -> ManyFuture:
        """Queue the rows of an Arrow table as records: column ``value``, and optionally ``key``, ``headers``,
        ``partition`` and ``timestamp``. ``send_arrow`` makes no Python object for a row, and returns one future for all
        rows.

        ``table`` is a pyarrow table or any object with ``__arrow_c_stream__``: a data frame of polars or pandas, a
        relation of DuckDB. The columns ``value`` and ``key`` are binary or text of any width. Rows are copied before
        the call returns. Serializers and ``partitioner.class`` do not apply to Arrow rows.
        """
        from .arrow import arrow_batches, as_table

        arguments.topic(topic)
        rows = as_table(table)
        core = self._core
        runs: list[list[Any]] = []
        deadline = time.monotonic() + core.max_block_s
        while topic not in core.accumulator.topics:
            core.wait_until_sendable(topic, deadline)
        for partition, data, count in arrow_batches(core, topic, rows):
            deadline = time.monotonic() + core.max_block_s
            while (batch := core.accumulator.append_encoded(topic, partition, data, count)) is None:
                core.wait_until_sendable(topic, deadline)
            runs.append([batch, 0, count])
        return ManyFuture(topic, runs)

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

    def close(self, timeout: float | None = None) -> None:
        """Send the remaining records (``timeout`` in seconds, None: delivery.timeout.ms), then close the producer."""
        refuse_to_wait()
        timeout_s = self._core.sender.delivery_timeout_s + 1 if timeout is None else arguments.seconds(timeout)
        self._finalizer.detach()
        self._core.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Slow:
    """The slow path of ``send``, for a record that could not be queued at once. ``_Slow`` refers to the producer's
    core only, so that the garbage collector can free the producer."""

    core: ProducerCore

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
        core = self.core
        arguments.topic(topic)
        check_callback("on_delivery", on_delivery)
        if partition is not None:
            partition = partition_number(partition)
        if headers is not None:
            headers = header_list(headers)
        timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_of(timestamp_ms)
        deadline = time.monotonic() + core.max_block_s
        while True:
            try:
                future: RecordFuture | None = core.accumulator.append(
                    RecordFuture, topic, value, key, headers, partition, timestamp_ms
                )
            except NoSuchPartition as error:
                core.engine.io.run(core.recheck_partition(topic, error.args[0], core.max_block_s))
                continue
            if future is not None:
                break
            core.wait_until_sendable(topic, deadline)
            if time.monotonic() > deadline:
                raise deadline_error(topic, core.max_block_s)
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
