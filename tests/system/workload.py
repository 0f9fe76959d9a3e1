"""Producers that number their records, consumers that keep the numbers that they read, and the final check.

A record's value is its mark, ``<producer>:<sequence>``, and padding. All responses are recorded in one ``History``
(``headrace_core.testing.kafka_history``): an acknowledgement with its offset, or a refusal; without a response the
outcome is unknown.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from headrace import Consumer, Producer, TopicPartition
from headrace.errors import DeliveryTimeoutError, HeadraceError, NotEnoughReplicasError, UnknownOutcomeError
from headrace_core.testing.kafka_history import Anomaly, History, Mark, Seen
from headrace_core.testing.verdicts import NotInTimeError, SafetyViolation
from tests.system.faulty_cluster import TIMEOUT_S, FaultyCluster, eventually

#: Records in flight per producer and partition, so that a stuck partition does not delay others.
IN_FLIGHT_MAX = 32
#: How often a repeating consumer starts again from the beginning (seconds).
AGAIN_S = 3.0
#: Maximum number of anomalies that a failure lists.
LISTED_MAX = 12


def value_of(mark: Mark, size: int) -> bytes:
    return f"{mark.producer}:{mark.sequence}|".encode().ljust(size, b".")


def mark_of(value: bytes | None) -> Mark:
    text = (value or b"").partition(b"|")[0].decode(errors="replace")
    producer, _, number = text.rpartition(":")
    return Mark(producer, int(number)) if producer and number.isdigit() else Mark(f"not ours: {value!r:.80}", 0)


class _Producing(threading.Thread):
    """One producer. After a fatal error (its epoch is fenced, its sequence is out of order) a producer continues as a
    new producer, with a new name."""

    def __init__(self, load: Load, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._load = load
        self._rng = random.Random(f"{load.seed} {name}")
        self._free = [threading.Semaphore(IN_FLIGHT_MAX) for _ in range(load.partitions)]
        self.start()

    def run(self) -> None:
        try:
            life = 0
            while not self._load.stopping.is_set():
                life += 1
                self._live(f"{self.name}.{life}")
                self._load.stopping.wait(0.5)  # the error of the last failed send
        except BaseException as error:  # reported to the test, which would otherwise wait for ever
            self._load.broken = error
            raise

    def _live(self, name: str) -> None:
        load = self._load
        failed = threading.Event()
        with Producer(load.producer_settings) as producer:
            sequence = 0
            while not load.stopping.is_set() and not failed.is_set():
                partition = self._rng.randrange(load.partitions)
                if not self._free[partition].acquire(blocking=False):
                    load.stopping.wait(0.002)
                    continue
                mark = Mark(name, sequence)
                sequence += 1
                load.begin(mark, partition)
                try:
                    producer.send(
                        load.topic,
                        value_of(mark, load.value_bytes),
                        partition=partition,
                        key=name.encode(),
                        on_delivery=_Delivered(self, mark, partition, failed),
                    )
                except HeadraceError as error:  # the record was not even queued
                    load.refuse(mark, error)
                    self._free[partition].release()
                load.stopping.wait(load.pause_s)

    def done(self, mark: Mark, partition: int, metadata: Any, error: BaseException | None) -> bool:
        """Record the outcome of a record; return False if the producer can no longer be used."""
        self._free[partition].release()
        if error is None:
            self._load.acknowledge(mark, partition, metadata.offset)
        elif type(error) is DeliveryTimeoutError or isinstance(error, NotEnoughReplicasError):
            self._load.refuse(mark, error)
        else:  # records with an unknown outcome too: the history claims nothing about them
            self._load.unknown(mark, error)
            return isinstance(error, UnknownOutcomeError)
        return True


class _Delivered:
    """The delivery callback of a record, which runs on the clients' I/O thread."""

    __slots__ = ("_failed", "_mark", "_partition", "_producing")

    def __init__(self, producing: _Producing, mark: Mark, partition: int, failed: threading.Event) -> None:
        self._producing, self._mark, self._partition, self._failed = producing, mark, partition, failed

    def __call__(self, metadata: Any, error: BaseException | None) -> None:
        if not self._producing.done(self._mark, self._partition, metadata, error):
            self._failed.set()


class _Consuming(threading.Thread):
    """A consumer of all partitions. ``again``: the consumer starts again every few seconds; otherwise it continues to
    follow the log."""

    def __init__(self, load: Load, name: str, *, again: bool) -> None:
        super().__init__(name=name, daemon=True)
        self._load, self._again = load, again
        self.start()

    def run(self) -> None:
        load = self._load
        assigned = [TopicPartition(load.topic, number) for number in range(load.partitions)]
        try:
            with Consumer(load.consumer_settings) as consumer:
                consumer.assign(assigned)
                load.position(self.name)
                begun = time.monotonic()
                while not load.stopping_reading.is_set():
                    try:
                        records = consumer.poll(timeout=0.3, max_records=2000)
                    except HeadraceError as error:
                        load.reading_failed(error)
                        load.stopping_reading.wait(0.1)
                        continue
                    if records:
                        load.read(self.name, records)
                        load.stopping_reading.wait(0.01)
                    if self._again and time.monotonic() - begun > AGAIN_S:
                        consumer.seek_to_beginning(*assigned)
                        load.position(self.name)
                        begun = time.monotonic()
        except BaseException as error:
            load.broken = error
            raise


class Silences:
    """The longest time of each partition without an acknowledgement, from its first acknowledgement on (by
    ``time.monotonic``)."""

    def __init__(self, partitions: int) -> None:
        self._last: dict[int, float] = {}
        self._longest = [0.0] * partitions
        self._ended: float | None = None

    def skip(self, since: float, until: float) -> None:
        """Do not count the time between ``since`` and ``until``, in which no node runs. The time before ``since``
        counts as a separate silence."""
        for partition, last in self._last.items():
            self._longest[partition] = max(self._longest[partition], since - last)
            self._last[partition] = max(last, until)

    def acknowledged(self, partition: int, now: float) -> None:
        if self._ended is not None:
            return
        self._longest[partition] = max(self._longest[partition], now - self._last.get(partition, now))
        self._last[partition] = now

    def end(self, now: float) -> None:
        """End the measurement, because no more records are sent: a silence that lasts until now counts, but later
        silences do not."""
        if self._ended is None:
            for partition in self._last:
                self.acknowledged(partition, now)
            self._ended = now

    def longest_s(self, now: float) -> float:
        open_s = [] if self._ended is not None else [now - last for last in self._last.values()]
        return max([*self._longest, *open_s])


class Load:
    """Producers and consumers on one topic, from ``with`` to ``finish``."""

    def __init__(
        self,
        cluster: FaultyCluster,
        topic: str,
        partitions: int,
        *,
        producers: int = 2,
        consumers: int = 2,
        value_bytes: int = 200,
        pause_s: float = 0.004,
        seed: int = 0,
        idempotent: bool = True,
        producer_settings: dict[str, Any] | None = None,
    ) -> None:
        self.cluster, self.topic, self.partitions = cluster, topic, partitions
        self.value_bytes, self.pause_s, self.seed = value_bytes, pause_s, seed
        self.producer_settings: dict[str, Any] = {
            **cluster.client,
            "acks": "all",
            "enable.idempotence": idempotent,
            # The time-out of a send is longer than every fault that the send should survive.
            "delivery.timeout.ms": int(TIMEOUT_S * 1000),
            "request.timeout.ms": 10_000,
            "max.block.ms": int(TIMEOUT_S * 1000),
            **(producer_settings or {}),
        }
        self.consumer_settings: dict[str, Any] = {
            **cluster.client,
            "auto.offset.reset": "earliest",
        }
        self.history = History(idempotent=idempotent)
        self.stopping, self.stopping_reading = threading.Event(), threading.Event()
        self.broken: BaseException | None = None
        self.errors: Counter[str] = Counter()
        self.reading_errors: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._sent_at: dict[Mark, float] = {}
        self._acknowledged = 0
        self._silences = Silences(partitions)
        self._counts = (producers, consumers)
        self._producing: list[_Producing] = []
        self._consuming: list[_Consuming] = []

    def __enter__(self) -> Load:
        producers, consumers = self._counts
        self._producing = [_Producing(self, f"p{number}") for number in range(producers)]
        self._consuming = [_Consuming(self, f"c{number}", again=number > 0) for number in range(consumers)]
        return self

    def __exit__(self, *exception: object) -> None:
        self.stopping.set()
        self.stopping_reading.set()

    # -- what the threads tell

    def begin(self, mark: Mark, partition: int) -> None:
        with self._lock:
            self.history.sent(mark, partition)
            self._sent_at[mark] = time.monotonic()

    def acknowledge(self, mark: Mark, partition: int, offset: int) -> None:
        now = time.monotonic()
        with self._lock:
            self.history.acknowledged(mark, offset)
            self._acknowledged += 1
            self._silences.acknowledged(partition, now)

    def refuse(self, mark: Mark, error: BaseException) -> None:
        with self._lock:
            self.history.refused(mark)
            self.errors[type(error).__name__] += 1

    def unknown(self, mark: Mark, error: BaseException) -> None:
        with self._lock:
            self.errors[f"{type(error).__name__}: {str(error)[:200]}"] += 1

    def reading_failed(self, error: BaseException) -> None:
        with self._lock:
            self.reading_errors[f"{type(error).__name__}: {str(error)[:200]}"] += 1

    def position(self, consumer: str) -> None:
        with self._lock:
            for partition in range(self.partitions):
                self.history.positioned(consumer, partition)

    def read(self, consumer: str, records: Iterable[Any]) -> None:
        by_partition: dict[int, list[Seen]] = {}
        for record in records:
            by_partition.setdefault(record.partition, []).append(Seen(record.offset, mark_of(record.value)))
        with self._lock:
            for partition, seen in by_partition.items():
                self.history.polled(consumer, partition, seen)

    def sent_between(self, mark: Mark, spans: Iterable[tuple[float, float]]) -> bool:
        """Whether the record was passed to ``send`` within one of these spans (of time.monotonic)."""
        at = self._sent_at[mark]
        return any(first <= at <= last for first, last in spans)

    # -- what a scenario waits for

    @property
    def longest_silence_s(self) -> float:
        """The longest time without an acknowledgement in any partition, until now or the end of producing."""
        with self._lock:
            return self._silences.longest_s(time.monotonic())

    @contextmanager
    def without_nodes(self) -> Iterator[None]:
        """All nodes are stopped and started in this ``with`` block, and the duration depends on the machine. The time
        of the block therefore counts for no silence."""
        since = time.monotonic()
        yield
        with self._lock:
            self._silences.skip(since, time.monotonic())

    @property
    def acknowledged(self) -> int:
        with self._lock:
            return self._acknowledged

    def until_more(self, count: int = 100, *, what: str = "", within_s: float = TIMEOUT_S) -> None:
        """Wait until ``count`` more sends are acknowledged than at the time of the call."""
        wanted = self.acknowledged + count

        def enough() -> bool:
            if self.broken is not None:
                raise AssertionError(f"a client broke: {self.broken!r}") from self.broken
            return self.acknowledged >= wanted

        eventually(
            enough,
            lambda: f"{count} more acknowledgements {what}: {wanted - self.acknowledged} lack; errors: {self.errors}",
            within_s=within_s,
        )

    # -- the end

    def end_producing(self) -> None:
        """Let producers send their remaining records, and end."""
        with self._lock:
            self._silences.end(time.monotonic())
        self.stopping.set()
        for producing in self._producing:
            producing.join(2 * TIMEOUT_S)
            assert not producing.is_alive(), f"{producing.name} does not end; errors: {self.errors}"
        assert self.broken is None, f"a client broke: {self.broken!r}"

    def read_the_log(self) -> None:
        """Read the whole log with a new consumer, then end the consumers."""
        self._read_the_log()
        self.stopping_reading.set()
        for consuming in self._consuming:
            consuming.join(TIMEOUT_S)
            assert not consuming.is_alive(), f"{consuming.name} does not end; errors: {self.reading_errors}"

    def _read_the_log(self) -> None:
        assigned = [TopicPartition(self.topic, number) for number in range(self.partitions)]
        with Consumer(self.consumer_settings) as consumer:
            starts = _insist(lambda: consumer.beginning_offsets(assigned))
            ends = self._stable(lambda: _insist(lambda: consumer.end_offsets(assigned)))
            consumer.assign(assigned)
            for partition in assigned:
                consumer.seek(partition, starts[partition])
            found: dict[int, list[Seen]] = {number: [] for number in range(self.partitions)}
            deadline = time.monotonic() + TIMEOUT_S
            while any(consumer.position(each, timeout=TIMEOUT_S) < ends[each] for each in assigned):
                if time.monotonic() >= deadline:
                    raise NotInTimeError(f"the log is not readable up to {ends}")
                for record in consumer.poll(timeout=1.0, max_records=5000):
                    found[record.partition].append(Seen(record.offset, mark_of(record.value)))
        for each in assigned:
            self.history.log(
                each.partition, found[each.partition], log_start=starts[each], end=max(ends[each], _end(found, each))
            )

    def _stable(self, ask: Callable[[], Any]) -> Any:
        """Wait until the log ends no longer change, and return them. With less than acks=all, a record is acknowledged
        before it is committed."""
        found = [ask()]

        def stand() -> bool:
            self.stopping_reading.wait(0.3)
            found.append(ask())
            return bool(found[-1] == found[-2])

        eventually(stand, lambda: f"the log ends change although no client writes: {found[-3:]}")
        return found[-1]

    def report(self) -> str:
        history = self.history
        with self._lock:
            return self._report(history)

    def _report(self, history: History) -> str:
        return (
            f"{history.count_acknowledged} acknowledged, {history.count_refused} refused, {history.count_unknown} "
            f"unknown, {history.count_polled} read; the longest time without an acknowledgement in a partition: "
            f"{self._silences.longest_s(time.monotonic()):.2f} s; errors: {dict(self.errors)}, "
            f"reading: {dict(self.reading_errors)}"
        )


def verdict(load: Load, *, may_lose: Callable[[Mark], bool] = lambda mark: False, unclean: bool = False) -> None:
    """Raise SafetyViolation, which says what is wrong and how often. The arguments are those of
    ``History.anomalies``."""
    found = load.history.anomalies(may_lose=may_lose, unclean=unclean)
    print(load.report())
    if found:
        raise SafetyViolation(f"{len(found)} anomalies, such as\n" + _listed(found) + f"\n{load.report()}")
    assert load.history.count_acknowledged >= 100


def _listed(found: Sequence[Anomaly]) -> str:
    counts = Counter(anomaly.kind.value for anomaly in found)
    lines = [f"  {kind}: {count}" for kind, count in counts.most_common()]
    return "\n".join(lines + [f"  {anomaly}" for anomaly in found[:LISTED_MAX]])


def _end(found: dict[int, list[Seen]], partition: TopicPartition) -> int:
    records = found[partition.partition]
    return records[-1].offset + 1 if records else 0


def _insist(question: Callable[[], Any]) -> Any:
    def answer() -> Any:
        try:
            return question()
        except HeadraceError:
            return None

    return eventually(answer, "offsets are not told")
