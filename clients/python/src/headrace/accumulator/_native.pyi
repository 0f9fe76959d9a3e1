import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar, final

from headrace_core.errors import HeadraceError
from headrace_core.records import BatchBuilder

from ..producer.blocking import OnDelivery
from ._checks import Headers
from ._watching import Watch

_Future = TypeVar("_Future")

def murmur2(data: bytes) -> int: ...
def key_partitions(
    offsets: int, data: int, validity: int, first: int, rows: int, count: int, out: bytearray
) -> None: ...

@final
class RecordMetadata:
    def __init__(self, topic: str, partition: int, offset: int, timestamp_ms: int) -> None: ...
    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...

class SendBatch:
    def __init__(
        self, queue: PartitionQueue, builder: BatchBuilder | None, data: bytes | None = None, count: int = 0
    ) -> None: ...
    @property
    def queue(self) -> PartitionQueue: ...
    builder: Any  # a BatchBuilder while the batch is open, else None
    data: bytes | None
    count: int
    size: int
    created_s: float
    @property
    def sequence(self) -> int: ...
    attempts: int
    in_flight: bool
    #: Whether the outcome of an attempt is unknown, so that the batch may be in the log.
    maybe_written: bool
    @property
    def done(self) -> bool: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def log_append_time_ms(self) -> int: ...
    @property
    def error(self) -> HeadraceError | None: ...
    def failure(self) -> HeadraceError | None:
        """Return a copy of ``error``. Code that raises the error, or passes it to a program, uses a copy."""

    watch: Watch | None
    #: The traceparent of the batch's first traced record or call; None for none.
    trace: str | None
    #: The number of records of a failed batch whose error the program has read.
    reads: int

    def stamp(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None: ...
    def finish(self, base_offset: int, log_append_time_ms: int, error: HeadraceError | None) -> list[Any]:
        """Set the outcome of the batch and wake the waiting threads; return the waiters that the caller must notify.
        Only the first call has an effect."""

    def wait(self, timeout_s: float | None) -> bool:
        """Block until the outcome is known; return False after the timeout. Raises IllegalStateError in a callback."""

    def add_waiter(self, waiter: Any) -> bool:
        """Let ``finish`` return ``waiter``; return False, without effect, if the outcome is already known."""

class PartitionQueue:
    """Batches waiting to be sent to one partition. Only the sender uses fields other than ``open`` and ``sealed``."""

    def __init__(self, topic: TopicQueues, partition: int) -> None: ...
    @property
    def topic(self) -> TopicQueues: ...
    @property
    def partition(self) -> int: ...
    open: SendBatch | None
    @property
    def sealed(self) -> list[SendBatch]: ...
    #: Whether the sender knows that the queue is not empty.
    listed: bool
    #: Bytes that wait or are in flight: the choice of the sticky partition compares the queues by them.
    bytes: int
    @property
    def sequence(self) -> int: ...
    sender: Any  # the sender's QueueNotes; None before the first wake

    def requeue(self, batches: list[SendBatch]) -> None: ...

class TopicQueues:
    """The partition queues of a topic. The sticky partition is one of ``available``, the partitions with a leader."""

    def __init__(self, accumulator: Accumulator, name: str, partitions: int, max_batch_bytes: int) -> None: ...
    @property
    def accumulator(self) -> Accumulator: ...
    @property
    def name(self) -> str: ...
    queues: list[PartitionQueue]
    available: list[int]
    max_batch_bytes: int
    sticky: int
    sticky_bytes: int

    def grow(self, partitions: int) -> None:
        """Add partition queues, because the topic has got more partitions."""

    def shrink(self, partitions: int) -> None:
        """Drop partition queues, because the topic was created again with fewer partitions. A dropped queue keeps its
        records and gets no new ones."""

    def choose_sticky(self) -> None:
        """Choose another sticky partition, for records without a key: of two random partitions, the one whose queue has
        fewer bytes (KIP-794)."""

@final
class Accumulator:
    """Gathers a producer's records into batches. Calls ``wake`` when the sender sleeps and has work."""

    def __init__(
        self,
        *,
        batch_bytes: int,
        buffer_bytes: int,
        wake: Callable[[], object],
        slow: Callable[..., Any],
        adaptive: bool = True,
        ignore_keys: bool = False,
        partitioner: Callable[[str, bytes | None, bytes | None, int], int | None] | None = None,
        key_serializer: Callable[[str, Any], bytes | None] | None = None,
        value_serializer: Callable[[str, Any], bytes | None] | None = None,
    ) -> None: ...
    @property
    def batch_bytes(self) -> int: ...
    @property
    def buffer_bytes(self) -> int: ...
    @property
    def ignore_keys(self) -> bool: ...
    @property
    def records_appended(self) -> int: ...
    @property
    def topics(self) -> dict[str, TopicQueues]: ...
    @property
    def unfinished(self) -> set[SendBatch]: ...
    state: int
    #: Whether the batches carry the transactional flag.
    transactional: bool
    buffered_bytes: int
    #: Called with a failed batch and the number of its records whose error nobody has read, when nobody can any more.
    unread: Callable[[SendBatch, int], object] | None
    awake: bool
    #: Whether a batch has become full: an asyncio caller then lets its event loop run.
    breathe: bool
    yield_us: int
    #: Number of records that ``send`` appends before it offers one to the tracer; with 0 the compiled ``send`` calls
    #: the slow path. -1: the producer makes no traces.
    untraced: int

    def append(
        self,
        future_class: Callable[[SendBatch, int, int], _Future],
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
        trace: str | None = None,
    ) -> _Future | None:
        """Append one record and return its future; None if the caller must wait first (topic unknown or buffer full).

        Raises RecordTooLargeError, InvalidTypeError, InvalidTimestampError, InvalidArgumentError. Raises
        NoSuchPartition if the known metadata lack the partition: the caller then checks whether the partition is new.
        """

    def prepare_many(self, topic: str, values: Iterable[Any], partition: int | None) -> list[Any]:
        """Serialize and check records (their sizes, and that their partitions exist), and return them as a new list for
        append_many. The topic must be known. The errors are those of ``append``; the message names the record."""

    def append_many(
        self,
        topic: str,
        values: list[Any],
        start: int,
        partition: int | None,
        timestamp_ms: int,
        runs: list[list[Any]],
        trace: str | None = None,
    ) -> int:
        """Append ``values[start:]`` to the end, or until the buffer is full; return the index of the next record.

        ``values`` comes from prepare_many: each item is a value, (key, value) or (key, value, headers), possibly with a
        partition. ``runs`` collects [batch, first index, count] for runs of records in the same batch.
        """

    def append_encoded(
        self, topic: str, partition: int, data: bytes, count: int, trace: str | None = None
    ) -> SendBatch | None:
        """Queue an encoded batch and return it; None if the caller must wait first (topic unknown or buffer full)."""

    def take_ready(self) -> list[PartitionQueue]:
        """The queues that are no longer empty. After this call, the next queue that gets a record wakes the sender."""

    def take(self, queue: PartitionQueue, *, partial: bool) -> SendBatch | None:
        """Remove and return the queue's oldest full batch; with ``partial`` the open batch if no batch is full."""

    def leave_if_empty(self, queue: PartitionQueue) -> bool:
        """Return whether the queue is empty; if it is, its next record announces the queue to the sender again."""

    def close(self) -> None:
        """Drop the queues, which refer to the accumulator and to the sender: without reference cycles a closed producer
        leaves memory at once. ``state`` must be set first, so that no append uses the queues."""

    def snapshot_unfinished(self) -> list[SendBatch]:
        """All batches without an outcome."""

    def seal_all(self) -> list[SendBatch]:
        """Close every open batch to more records; returns all batches without an outcome (for flush)."""

    def add_space_waiter(self, waiter: Callable[[], object]) -> bool: ...
    def space_freed(self) -> None: ...

class NativeProducer:
    def __init__(self, accumulator: Accumulator) -> None: ...
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> RecordFuture: ...

class NativeAsyncProducer:
    def __init__(self, accumulator: Accumulator) -> None: ...
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Coroutine[Any, Any, AsyncRecordFuture]: ...

@final
class RecordFuture(Future[RecordMetadata]):
    def __init__(self, batch: SendBatch, index: int, timestamp_ms: int) -> None: ...
    def result(self, timeout: float | None = None) -> RecordMetadata: ...
    def exception(self, timeout: float | None = None) -> HeadraceError | None: ...
    def add_done_callback(self, callback: Callable[[Any], object]) -> None: ...

@final
class AsyncRecordFuture(asyncio.Future[RecordMetadata]):
    def __init__(self, batch: SendBatch, index: int, timestamp_ms: int) -> None: ...
    def exception(self) -> HeadraceError | None: ...
    def run_callbacks(self) -> None: ...
