"""Group consumers, each in its own thread, that record their assignments and the records they read; a producer with a
fixed rate; and a client without a quota beside a limited one."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.models import OffsetAndMetadata
from tests.worlds import waiting

#: Timeout for a slow machine that runs other tests too.
LONG_S = 90.0
until = partial(waiting.until, within_s=LONG_S)

_names = itertools.count()


def new_name(what: str) -> str:
    """A name that no other test of this process uses."""
    return f"{what}-{next(_names)}"


def new_topic(bootstrap: str, partitions: int, *, copies: int | None = None, **config: str) -> str:
    name = new_name("topic")
    with Admin(bootstrap_servers=bootstrap) as admin:
        # Some records have old timestamps, so the retention check would delete them.
        keys = {"retention.ms": "-1", **config}
        admin.create_topics([NewTopic(name, partitions=partitions, replication_factor=copies, config=keys)])
    return name


def send(bootstrap: str, topic: str, counts: Mapping[int, int], *, timestamps_ms: Sequence[int] | None = None) -> None:
    """Send this many records to each partition, and wait until they are acknowledged; ``timestamps_ms``: the timestamps
    of each partition's records, in order."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        futures = [
            producer.send(
                topic,
                b"%d" % number,
                partition=partition,
                timestamp_ms=timestamps_ms[number] if timestamps_ms else None,
            )
            for partition, count in counts.items()
            for number in range(count)
        ]
        for future in futures:
            future.result(timeout=LONG_S)


def read_to_end(consumer: Consumer, within_s: float = LONG_S, *, poll_s: float = 0.2) -> list[Any]:
    """All records from the positions of the consumer's partitions to their present ends. A missing record is not waited
    for: the consumer's positions pass it. Raises NotInTimeError if a position does not reach the end."""
    ends = consumer.end_offsets(consumer.assignment())
    found: list[Any] = []

    def is_at_end() -> bool:
        found.extend(consumer.poll(poll_s, max_records=100_000))
        return all(consumer.position(partition) >= end for partition, end in ends.items())

    until(is_at_end, lambda: f"the positions reach {ends}", within_s=within_s)
    return found


class Read(NamedTuple):
    """``at``: time.monotonic()."""

    partition: int
    offset: int
    at: float


class Change(NamedTuple):
    """One call of a rebalance callback; ``what`` is assigned, revoked or lost."""

    what: str
    partitions: frozenset[int]
    at: float


class Commit(NamedTuple):
    """One acknowledged commit; ``asked`` is when it was sent, ``at`` when the acknowledgement arrived."""

    partition: int
    offset: int
    asked: float
    at: float


class Reader:
    """A member of a group, which runs from ``with`` (or ``start``) to ``stop``. ``handle`` is the program's work for
    each record."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        handle: Callable[[Any], object] | None = None,
        max_records: int = 500,
        commit_every_s: float | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """``commit_every_s``: interval at which the member commits the handled records without waiting for the result;
        None: auto-commit."""
        self.group, self.topic = group, topic
        #: The records that were read, in the order of their handling.
        self.read: list[Read] = []
        self.changes: list[Change] = []
        #: Acknowledged commits of readers with ``commit_every_s``, and the errors of failed commits.
        self.commits: list[Commit] = []
        self.failed_commits: list[BaseException] = []
        #: The partitions that the reader owns according to its callbacks.
        self.partitions: frozenset[int] = frozenset()
        self.error: BaseException | None = None
        self._handle, self._max_records = handle, max_records
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": commit_every_s is None,
            **(settings or {}),
        }
        self._commit_every_s = commit_every_s
        self._committing: Any = None
        self._handled: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader of {group}", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ask_to_stop()
        self._thread.join(LONG_S)
        if kind is None:
            self.check()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def stop(self) -> None:
        """Stop the member cleanly: it commits the handled records and leaves the group."""
        self.__exit__(None, None, None)

    def check(self) -> None:
        """Raise the error that ended the member, if any."""
        if self.error is not None:
            raise AssertionError(f"a reader of {self.group} ended: {self.error!r}") from self.error

    def _run(self) -> None:
        try:
            with Consumer(self._settings) as consumer:
                consumer.subscribe(
                    [self.topic], on_assigned=self._assigned, on_revoked=self._revoked, on_lost=self._lost
                )
                while not self._stop.is_set():
                    for record in consumer.poll(0.2, max_records=self._max_records):
                        if self._handle is not None:
                            self._handle(record)
                        self.read.append(Read(record.partition, record.offset, time.monotonic()))
                        self._handled[record.partition] = record.offset + 1
                    if self._commit_every_s is not None:
                        self._commit(consumer, self._commit_every_s)
                if self._handled and self._commit_every_s is not None:
                    self._commit(consumer, 0.0).result(timeout=LONG_S)
        except BaseException as error:  # noqa: BLE001 - told to the test, where it belongs
            self.error = error

    def _commit(self, consumer: Consumer, every_s: float) -> Any:
        now = time.monotonic()
        if self._committing is not None:
            future, asked = self._committing
            if every_s and (not future.done() or now - asked < every_s):
                return future
        if not self._handled:
            return None

        def note(offsets: Mapping[TopicPartition, OffsetAndMetadata], error: BaseException | None) -> None:
            if error is not None:
                self.failed_commits.append(error)
                return
            at = time.monotonic()
            self.commits += [Commit(tp.partition, each.offset, now, at) for tp, each in offsets.items()]

        offsets: dict[TopicPartition, int | OffsetAndMetadata] = {
            TopicPartition(self.topic, partition): offset for partition, offset in self._handled.items()
        }
        self._committing = consumer.commit_async(offsets, note), now
        return self._committing[0]

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._note("assigned", partitions, lambda now: self.partitions | now)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._handled and self._commit_every_s is not None:
            self._commit(consumer, 0.0).result(timeout=LONG_S)  # while the partitions belong to this reader
        self._note("revoked", partitions, lambda gone: self.partitions - gone)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._note("lost", partitions, lambda gone: self.partitions - gone)

    def _note(
        self, what: str, partitions: list[TopicPartition], change: Callable[[frozenset[int]], frozenset[int]]
    ) -> None:
        numbers = frozenset(each.partition for each in partitions)
        for number in numbers:
            self._handled.pop(number, None)
        self.partitions = change(numbers)
        self.changes.append(Change(what, numbers, time.monotonic()))


class Readers:
    """The members of one group, which read one topic."""

    def __init__(self, bootstrap: str, group: str, topic: str, partitions: int, **how: Any) -> None:
        self.bootstrap, self.group, self.topic, self.partitions, self._how = bootstrap, group, topic, partitions, how
        self.living: list[Reader] = []
        #: All readers of the group that ever existed.
        self.every: list[Reader] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.stop(*self.living, quietly=kind is not None)

    def add(self, count: int = 1, **how: Any) -> list[Reader]:
        made = [Reader(self.bootstrap, self.group, self.topic, **(self._how | how)).start() for _ in range(count)]
        self.living += made
        self.every += made
        return made

    def stop(self, *readers: Reader, quietly: bool = False) -> None:
        """Stop all the given members at once."""
        for reader in readers:
            reader.ask_to_stop()
        self.living = [each for each in self.living if each not in readers]
        for reader in readers:
            with contextlib.suppress(*([AssertionError] if quietly else [])):
                reader.stop()

    def counts(self) -> list[int]:
        """The number of partitions of each running member, in ascending order."""
        return sorted(len(each.partitions) for each in self.living)

    def until_shared(self) -> None:
        """Wait until every partition has one reader, and no reader has more than an equal share of the partitions."""
        share = self.partitions // len(self.living)
        fair = {share} if self.partitions % len(self.living) == 0 else {share, share + 1}

        def is_shared() -> bool:
            for reader in self.living:
                reader.check()
            owned = Counter(itertools.chain.from_iterable(each.partitions for each in self.living))
            return owned == Counter(range(self.partitions)) and {len(each.partitions) for each in self.living} <= fair

        until(
            is_shared,
            lambda: (
                f"{self.group}: partitions are not shared equally: {[sorted(each.partitions) for each in self.living]}"
            ),
        )

    def times(self) -> Counter[tuple[int, int]]:
        """The number of times that each (partition, offset) was processed, by all readers together."""
        return Counter((each.partition, each.offset) for reader in self.every for each in list(reader.read))

    def until_read(self, ends: Mapping[int, int]) -> Counter[tuple[int, int]]:
        """Wait until all records below the given ends were processed; return how often each record was processed."""
        wanted = {(partition, offset) for partition, end in ends.items() for offset in range(end)}

        def is_read() -> bool:
            for reader in self.living:
                reader.check()
            return sum(len(reader.read) for reader in self.every) >= len(wanted) and wanted <= self.times().keys()

        until(is_read, lambda: f"{self.group} has not read {sorted(wanted - self.times().keys())[:10]}")
        return self.times()


class Feed:
    """A producer that sends ``per_second`` records during a ``with`` block, to all partitions in turn."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        per_second: float,
        *,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._topic, self._partitions = topic, partitions
        self._settings = {"bootstrap.servers": bootstrap, **(settings or {})}
        self._pause_s = 1 / per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"feed of {topic}", daemon=True)
        self.sent = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.stop()
        if kind is None and self.error is not None:
            raise AssertionError(f"the feed of {self._topic} failed: {self.error!r}") from self.error

    def stop(self) -> None:
        """Stop sending; return when all records are acknowledged."""
        self._stop.set()
        self._thread.join(LONG_S)

    def ends(self) -> dict[int, int]:
        """The log end of each partition, for a topic without other writers; call it after ``stop``."""
        whole, rest = divmod(self.sent, self._partitions)
        return {partition: whole + (partition < rest) for partition in range(self._partitions)}

    def _run(self) -> None:
        try:
            with Producer(self._settings) as producer:
                begun = time.monotonic()
                futures = []
                while not self._stop.is_set():
                    left = begun + self.sent * self._pause_s - time.monotonic()
                    if left > 0 and self._stop.wait(left):
                        break
                    futures.append(
                        producer.send(self._topic, b"%d" % self.sent, partition=self.sent % self._partitions)
                    )
                    self.sent += 1
                for future in futures:
                    future.result(timeout=LONG_S)
        except BaseException as error:  # noqa: BLE001 - told by __exit__
            self.error = error


class Watcher:
    """Observes a group from outside: its committed offsets and its lag."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, partitions: int, *, settings: Mapping[str, Any] | None = None
    ) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **(settings or {})})
        self._everywhere = [TopicPartition(topic, number) for number in range(partitions)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._consumer.close()

    def committed(self) -> dict[int, int]:
        """The committed offset of each partition; 0 for a partition without a commit."""
        found: Mapping[TopicPartition, OffsetAndMetadata | None] = self._consumer.committed(self._everywhere)
        return {tp.partition: offsets.offset if (offsets := found[tp]) is not None else 0 for tp in self._everywhere}

    def ends(self) -> dict[int, int]:
        return {tp.partition: end for tp, end in self._consumer.end_offsets(self._everywhere).items()}

    def lag(self) -> int:
        """The number of records that exist but are not committed."""
        committed = self.committed()
        return sum(self.ends().values()) - sum(committed.values())


def gaps(reads: Iterable[Read], since: float) -> dict[int, float]:
    """For each partition, the longest time between two reads after ``since``."""
    longest: dict[int, float] = {}
    last: dict[int, float] = {}
    for read in sorted(reads, key=lambda each: each.at):
        if read.at >= since:
            before = last.get(read.partition, since)
            longest[read.partition] = max(longest.get(read.partition, 0.0), read.at - before)
            last[read.partition] = read.at
    return longest


class Crash(Exception):
    """An error of the user's program, which no code of Headrace catches."""


class Neighbour(threading.Thread):
    """Sends a small record to the topic "beside" every 20 ms until the block ends."""

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__()
        self._server = cluster.bootstrap_servers
        self._over = threading.Event()
        self.latencies_s: list[float] = []
        self.throttled_ms = 0.0

    def run(self) -> None:
        with Producer(bootstrap_servers=self._server, client_id="neighbour") as producer:
            while not self._over.wait(0.02):
                sent = time.monotonic()
                producer.send("beside", b"x").result(60)
                self.latencies_s.append(time.monotonic() - sent)
            self.throttled_ms = producer.metrics()["produce-throttle-time-max"]

    def latency_s(self, part: float) -> float:
        """The quantile of the latencies: this share of the records does not exceed it."""
        return sorted(self.latencies_s)[int(len(self.latencies_s) * part)]

    def __enter__(self) -> Neighbour:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
