import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar, final

from headrace_core.errors import HeadraceError
from headrace_core.records import BatchBuilder

from ..producer.blocking import OnDelivery
from ._checks import Headers
from ._watching import Watch

_Future = TypeVar("_Future")

def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, as an unsigned 32-bit number (Austin Appleby's MurmurHash2 with seed 0x9747b28c)."""

def key_partitions(offsets: int, data: int, validity: int, first: int, rows: int, count: int, out: bytearray) -> None:
    """The partition of each key of a large_binary Arrow array (addresses of its buffers), -1 for null, as int32s."""

@final
class RecordMetadata:
    """Where an acknowledged record went. ``offset`` is -1 with acks=0, where nobody says."""

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
    """One batch on its way: ``builder`` while it is open, ``data`` once it is sealed, then the outcome."""

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
    #: An attempt's outcome is unknown.
    maybe_written: bool
    @property
    def done(self) -> bool: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def log_append_time_ms(self) -> int: ...
    @property
    def error(self) -> HeadraceError | None: ...
    watch: Watch | None

    def stamp(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Write an idempotent producer's number into the batch's bytes, in place: nobody else holds them."""

    def finish(self, base_offset: int, log_append_time_ms: int, error: HeadraceError | None) -> list[Any]:
        """Set the outcome and wake who waits; returns the waiters to call. Only the first call counts."""

    def wait(self, timeout_s: float | None) -> bool:
        """Block until the outcome is there; False on time-out. IllegalStateError in a callback."""

    def add_waiter(self, waiter: Any) -> bool:
        """Have ``waiter`` returned by finish; False when the outcome is there already."""

class PartitionQueue:
    """What waits to be sent to one partition. All but ``open`` and ``sealed`` belongs to the sender."""

    def __init__(self, topic: TopicQueues, partition: int) -> None: ...
    @property
    def topic(self) -> TopicQueues: ...
    @property
    def partition(self) -> int: ...
    open: SendBatch | None
    @property
    def sealed(self) -> list[SendBatch]: ...
    #: The sender knows that there is something.
    listed: bool
    #: Waiting or in flight: what the sticky choice compares.
    bytes: int
    @property
    def sequence(self) -> int: ...
    sender: Any  # the sender's QueueNotes; None before the first wake

    def requeue(self, batches: list[SendBatch]) -> None:
        """Put batches, oldest first, before those that wait."""

class TopicQueues:
    """A topic's queues. ``available``: the partitions that have a leader, among which the sticky one is chosen."""

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
        """The topic has more partitions now."""

    def shrink(self, partitions: int) -> None:
        """The topic was created again with fewer. The queues that go keep what they have, and get nothing more."""

    def choose_sticky(self) -> None:
        """Another partition for records without a key: of two picked by chance the one with less waiting (KIP-794)."""

@final
class Accumulator:
    """Takes records in and gathers them into batches. ``wake`` is called when the sender sleeps and has work."""

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
    buffered_bytes: int
    awake: bool
    #: A batch is full: an asyncio caller lets its loop turn.
    breathe: bool
    yield_us: int

    def append(
        self,
        future_class: Callable[[SendBatch, int, int], _Future],
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> _Future | None:
        """A future for the record; None when the caller must wait first (topic not known, or buffer full).

        RecordTooLargeError, InvalidTypeError, InvalidTimestampError, InvalidArgumentError; NoSuchPartition: whether it
        is new is the caller's to find out.
        """

    def prepare_many(self, topic: str, values: Iterable[Any], partition: int | None) -> list[Any]:
        """A list of its own for append_many, each record serialized and checked: that a batch may hold it, that its
        partition exists. The topic must be known. Errors are those of append; the message names the record."""

    def append_many(
        self, topic: str, values: list[Any], start: int, partition: int | None, timestamp_ms: int, runs: list[list[Any]]
    ) -> int:
        """Append ``values[start:]`` until they are all in, or the buffer is full; returns where it stopped.

        ``values`` is what prepare_many made: each a value, (key, value), (key, value, headers), or these and a
        partition. ``runs`` collects [batch, first index, count] of neighbours.
        """

    def append_encoded(self, topic: str, partition: int, data: bytes, count: int) -> SendBatch | None:
        """Queue a whole batch that is encoded already; None when the caller must wait first."""

    def take_ready(self) -> list[PartitionQueue]:
        """The queues that have turned from empty to not empty; after this the next one wakes the sender again."""

    def take(self, queue: PartitionQueue, *, partial: bool) -> SendBatch | None:
        """The queue's oldest batch: a full one, or with ``partial`` the open one too."""

    def leave_if_empty(self, queue: PartitionQueue) -> bool:
        """Whether nothing is left; then the queue will be announced again."""

    def snapshot_unfinished(self) -> list[SendBatch]:
        """All batches that have no outcome yet."""

    def seal_all(self) -> list[SendBatch]:
        """Close every open batch to more records; returns all that have no outcome yet (flush)."""

    def add_space_waiter(self, waiter: Callable[[], object]) -> bool:
        """Have ``waiter`` called when there is room; False when there is now."""

    def space_freed(self) -> None:
        """Call those who wait for room, once there is some."""

class NativeProducer:
    """The part of Producer that is compiled: ``send``, without a Python frame for each record."""

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
    ) -> RecordFuture:
        """Queue one record; its future tells where it went.

        ``value`` and ``key`` are bytes or None, or what the serializers take; ``timestamp_ms`` is now by default.
        ``on_delivery(metadata, error)`` is called on the I/O thread, where nothing may wait: ``flush``, ``close`` and
        ``result`` raise IllegalStateError there, and a send into a full buffer BufferTimeoutError at once.

        Raises RecordTooLargeError, SerializationError,
        InvalidArgumentError (no such partition), UnknownTopicOrPartitionError, BufferTimeoutError, BootstrapError,
        ClosedError; what happens later is in the future.
        """

class NativeAsyncProducer:
    """The part of AsyncProducer that is compiled: ``send``."""

    def __init__(self, accumulator: Accumulator) -> None: ...
    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Awaitable[AsyncRecordFuture]:
        """Await it to queue one record; that gives a future, which is awaited for the record's metadata.

        Arguments and errors are those of Producer.send; for a callback use the future's add_done_callback.
        """

@final
class RecordFuture(Future[RecordMetadata]):
    """The outcome of one record, to be: ask it, wait for it, or have a callback called.

    It is a concurrent.futures.Future to ``concurrent.futures.wait``, ``as_completed`` and ``asyncio.wrap_future``. It
    cannot be cancelled: the record is on its way.
    """

    def __init__(self, batch: SendBatch, index: int, timestamp_ms: int) -> None: ...
    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Where the record went; waits up to ``timeout`` seconds (TimeoutError), raises the record's failure."""

    def exception(self, timeout: float | None = None) -> HeadraceError | None:
        """The record's failure, None when it was acknowledged; waits like result."""

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(self)`` on the I/O thread once the outcome is known, at once when it is. Keep it short:
        nothing may wait there. What it raises is logged."""

@final
class AsyncRecordFuture:
    """The outcome of one record for asyncio: await it, or give it to gather, wait, shield, as any asyncio future.

    Cancelling it only gives up waiting: the record is on its way.
    """

    def __init__(self, batch: SendBatch, index: int, timestamp_ms: int) -> None: ...
    def done(self) -> bool:
        """Whether the outcome is known (or waiting for it was given up)."""

    def cancelled(self) -> bool: ...
    def result(self) -> RecordMetadata:
        """Where the record went; raises its failure, asyncio.InvalidStateError before the outcome is known."""

    def exception(self) -> HeadraceError | None:
        """The record's failure, None when it was acknowledged."""

    def get_loop(self) -> asyncio.AbstractEventLoop: ...
    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None:
        """Call ``callback(self)`` soon, on the running loop, once the outcome is known."""

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Take back add_done_callback; returns how many were taken back."""

    def cancel(self, msg: Any = None) -> bool:
        """Give up waiting. The record is sent all the same."""

    def run_callbacks(self) -> None:
        """On the loop: schedule the callbacks."""

    def __await__(self) -> Generator[Any, Any, RecordMetadata]: ...
