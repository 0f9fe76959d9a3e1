"""The common parts of the benchmark workloads: options, results, memory, topics, values."""

from __future__ import annotations

import inspect
import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace_core.errors import InvalidArgumentError, MissingDependencyError
from headrace_core.plurals import counted
from headrace_core.types import TopicPartition

Api = Literal["object", "many", "arrow", "async"]
APIS: tuple[Api, ...] = ("object", "many", "arrow", "async")

_POOL_BYTES = 32 << 20
_WARM_BYTES, _WARM_PIECE_BYTES = 768 << 20, 16 << 20
SAMPLES = 20_000  # maximum number of latencies of single records that are kept
STALL_S = 30.0  # seconds without progress after which a benchmark gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """A result. ``value_bytes``: bytes of all values together; ``latencies_ms``: the measured times, unsorted, at least
    one."""

    workload: str
    api: Api
    records: int
    seconds: float
    value_bytes: int
    latencies_ms: Sequence[float]
    verified: bool

    def document(self) -> dict[str, Any]:
        """The result as the JSON document of ``headrace bench -o json``."""
        ordered = sorted(self.latencies_ms)
        seconds = max(self.seconds, 1e-9)
        return {
            "workload": self.workload,
            "api": self.api,
            "records": self.records,
            "seconds": round(self.seconds, 6),
            "records_per_s": round(self.records / seconds, 1),
            "mib_per_s": round(self.value_bytes / seconds / (1 << 20), 3),
            "latency_ms": {
                "p50": round(percentile(ordered, 0.5), 4),
                "p99": round(percentile(ordered, 0.99), 4),
                "p999": round(percentile(ordered, 0.999), 4),
                "max": round(ordered[-1] if ordered else 0.0, 4),
            },
            "verified": self.verified,
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value in ``ordered`` that at least ``share`` of the values do not exceed (nearest rank); 0 for an
    empty list."""
    if not ordered:
        return 0.0
    rank = -(-len(ordered) * share // 1)  # ceiling
    return ordered[min(len(ordered), max(1, int(rank))) - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """Options of a workload. ``config``: configuration keys for every client, with bootstrap.servers. ``records``:
    number of records; with None, ``consume`` reads all records of the topic. ``rate``: records per second; None means
    as fast as possible, and for ``latency`` one record in flight."""

    topic: str
    config: dict[str, Any]
    api: Api = "object"
    records: int | None = None
    record_bytes: int = 100
    rate: float | None = None
    partitions: int = 6
    warm: bool = True
    say: Callable[[str], None] = field(default=lambda line: None)

    def check(self) -> None:
        for name, value, low in (
            ("records", self.records, 1),
            ("record-bytes", self.record_bytes, 1),
            ("rate", self.rate, 1e-6),
            ("partitions", self.partitions, 1),
        ):
            if value is not None and value < low:
                raise InvalidArgumentError(f"--{name} {value}: must be at least {low:g}")


def warm_memory() -> None:
    """Touch memory before the clock starts, so that the kernel maps the memory and glibc keeps it. Call ``warm_memory``
    only in a process of a benchmark, because it changes the allocator."""
    from headrace import tune_memory

    tune_memory()
    pieces = [b"\x01" * _WARM_PIECE_BYTES for _ in range(_WARM_BYTES // _WARM_PIECE_BYTES)]
    del pieces


async def call(method: Callable[..., Any], *arguments: Any) -> None:
    """Call a method of an asyncio client, and await the result if it is awaitable."""
    outcome = method(*arguments)
    if inspect.isawaitable(outcome):
        await outcome


def ensure_topic(options: BenchOptions) -> None:
    from headrace import Admin, NewTopic
    from headrace.errors import TopicAlreadyExistsError

    with Admin(shared_config(options)) as admin:
        try:
            admin.create_topics([NewTopic(options.topic, options.partitions)])
            options.say(f"created topic {options.topic} ({counted(options.partitions, 'partition')})")
        except TopicAlreadyExistsError:
            pass


def shared_config(options: BenchOptions) -> dict[str, Any]:
    """The address of the cluster, and the security keys, which apply to every kind of client."""
    kept = ("bootstrap.servers", "security.", "ssl.", "sasl.")
    return {key: value for key, value in options.config.items() if key.startswith(kept)}


def partitions_of(consumer: Any, topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in sorted(consumer.partitions_for(topic))]


def end_offsets_of(options: BenchOptions) -> dict[TopicPartition, int]:
    from headrace import Consumer

    with Consumer(shared_config(options)) as consumer:
        return dict(consumer.end_offsets(partitions_of(consumer, options.topic)))


def moved_by(options: BenchOptions, before: dict[TopicPartition, int], wanted: int) -> bool:
    """Whether the end offsets have grown by exactly ``wanted``; a larger growth means duplicates or another writer.
    With acks=0 the end offsets may grow a short time after the last send."""
    deadline = time.monotonic() + STALL_S
    while True:
        after = end_offsets_of(options)
        moved = sum(after.values()) - sum(before.values())
        if moved >= wanted:
            return moved == wanted
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)


class Values:
    """Random values of one size: a pool of distinct values, which are used in turn."""

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self.distinct = max(1, min(count, _POOL_BYTES // size))
        self.blob = os.urandom(self.distinct * size)
        self.pool = [self.blob[at : at + size] for at in range(0, len(self.blob), size)]

    def portions(self, total: int, portion: int) -> list[list[bytes]]:
        """Divide ``total`` values into lists of at most ``portion`` values; call ``portions`` before the clock
        starts."""
        length = min(portion, total)
        if total <= self.distinct:
            return [self.pool[at : min(at + length, total)] for at in range(0, total, length)]
        if self.distinct < length:
            self.pool = list(itertools.islice(itertools.cycle(self.pool), length))
        whole = [self.pool[at : at + length] for at in range(0, len(self.pool) - length + 1, length)]
        full, rest = divmod(total, length)
        found = list(itertools.islice(itertools.cycle(whole), full))
        return [*found, whole[0][:rest]] if rest else found

    def table(self, rows: int) -> Any:
        """A pyarrow table of ``rows`` values (at most ``distinct``), without a copy of the pool's memory."""
        try:
            import numpy
            import pyarrow
        except ImportError as error:
            raise MissingDependencyError(
                "--api arrow needs pyarrow and numpy: pip install 'headrace[arrow]'"
            ) from error
        offsets = pyarrow.py_buffer(numpy.arange(rows + 1, dtype=numpy.int32) * numpy.int32(self.size))
        column = pyarrow.Array.from_buffers(
            pyarrow.binary(), rows, [None, offsets, pyarrow.py_buffer(self.blob[: rows * self.size])]
        )
        return pyarrow.table({"value": column})


class Pace:
    """Limits a sender to ``rate`` records per second on a fixed schedule: after a delay, the sender catches up."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._begun = time.perf_counter()

    def delay(self, sent: int) -> float:
        """The number of seconds until the record with number ``sent`` is due."""
        if self._rate is None:
            return 0.0
        return max(0.0, self._begun + sent / self._rate - time.perf_counter())

    def wait(self, sent: int) -> None:
        if delay := self.delay(sent):
            time.sleep(delay)


def portion_of(options: BenchOptions, wanted: int) -> int:
    """Number of records per call. With a rate, the result is at most the number of records that are due within 5 ms."""
    return wanted if options.rate is None else max(1, min(wanted, int(options.rate * 0.005)))


def timed(latencies: list[float]) -> Callable[[Any], None]:
    """Return a done callback for a future. The callback appends to ``latencies`` the time since the callback was
    made."""
    begun = time.perf_counter()
    return lambda _future: latencies.append((time.perf_counter() - begun) * 1e3)
