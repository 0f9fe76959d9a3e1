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

    def stamp(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None: ...
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

    def requeue(self, batches: list[SendBatch]) -> None: ...

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
    ) -> Awaitable[AsyncRecordFuture]: ...

@final
class RecordFuture(Future[RecordMetadata]):
    def __init__(self, batch: SendBatch, index: int, timestamp_ms: int) -> None: ...
    def result(self, timeout: float | None = None) -> RecordMetadata: ...
    def exception(self, timeout: float | None = None) -> HeadraceError | None: ...
    def add_done_callback(self, callback: Callable[[Any], object]) -> None: ...

@final
class AsyncRecordFuture:
    def __init__(self, batch: SendBatch, index: int, timestamp_ms: int) -> None: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def result(self) -> RecordMetadata: ...
    def exception(self) -> HeadraceError | None: ...
    def get_loop(self) -> asyncio.AbstractEventLoop: ...
    def add_done_callback(self, callback: Callable[[Any], object], *, context: Any = None) -> None: ...
    def remove_done_callback(self, callback: Callable[[Any], object]) -> int: ...
    def cancel(self, msg: Any = None) -> bool: ...
    def run_callbacks(self) -> None: ...
    def __await__(self) -> Generator[Any, Any, RecordMetadata]: ...
