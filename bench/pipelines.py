"""`make bench-pipelines`: two jobs of the library over Headrace, and over Kafka with Spark's connector, in one run.

    pipelines.py [--rounds 3] [--only REGEX] [--copies 20] [--rate 300] [--seconds 30] [--warm-gib 6] [--smoke] [--save]

The jobs are clickstream (four queries, the real web log) and lake (three queries, flights, weather and planes into
Delta and Iceberg). Both sides run the same transformations in `local[2]`, with the same settings of Spark
(pipelines_side.py) and the same triggers. Both sides have the same records in the same 2 partitions with one replica.
One Kafka node and one Headrace broker run side by side, and one side is idle while the other works. They take turns.

backlog   rows per second of the job over a topic with all records (AvailableNow): from the start of the first query to
          the end of the last one
steady    from the send of a record to its result, at a steady rate, with a trigger of one second. The result of
          clickstream is the record that a consumer reads from clickstream.requests. The results of lake are the rows in
          the tables of both formats.

Kafka acknowledges before records are on disk (its default), and Headrace after. Kafka's sink has at-least-once delivery
only; Headrace is measured with at-least-once and exactly-once delivery. Kafka's side has Spark 4.0.0, the newest that
its connector is published for. The first round, and the first seconds of a steady run, do not count: the JVMs compile.

Needs Java 17, Maven and pip for what is missing in build/bench, and about 8 GiB of memory.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shutil
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple, Protocol

import ours
import psutil
from kafka_node import PYSPARK, KafkaNode, WarmClient, connector_jars, python_path
from measure import (
    PYTHON,
    ROOT,
    WORK,
    Samples,
    Step,
    begin,
    cpu_seconds,
    emit,
    flags,
    json_at_the_end,
    peak_rss_mib,
    percentiles,
    run_steps,
)
from report import finish

from headrace import Admin, Consumer, NewTopic, Producer, TopicPartition
from headrace_pipelines.clickstream import replay
from headrace_pipelines.clickstream import schema as clickstream
from headrace_pipelines.dead_letters import dead_letter_topic
from headrace_pipelines.lake import feed
from headrace_pipelines.lake import schema as lake
from headrace_spark import find_java

MIB = 1 << 20
#: Maximum number of seconds that a driver may take for a command.
COMMAND_S = 1200
#: Seconds after a steady run in which all results must be visible.
LATE_S = 120.0
#: Seconds at the start of a steady run that do not count.
WARM_UP_S = 15.0
SMOKE_RECORDS = 2_000
#: The topics of the warm-up have this prefix, and get one record in WARM_SHARE.
WARM, WARM_SHARE = "warm-up.", 4
#: The largest number of rows of a batch, as in the library's jobs. For clickstream, the number is for each copy of the
#: log.
ROWS = {"clickstream": 2_000, "lake": 30_000}
_LINE = re.compile(rb'"line":"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Way:
    """A side (kafka or headrace) with one delivery guarantee of its sink. ``jobs`` are the jobs that are measured with
    this guarantee."""

    name: str
    side: str
    delivery: str
    jobs: tuple[str, ...]


WAYS = (
    Way("kafka", "kafka", "at-least-once", ("clickstream", "lake")),
    Way("headrace", "headrace", "exactly-once", ("clickstream", "lake")),
    Way("headrace.at-least-once", "headrace", "at-least-once", ("clickstream",)),
)
#: Topics that a job only reads, and topics that it writes.
READS = {
    "clickstream": (clickstream.LOG,),
    "lake": tuple(source.topic for source in lake.SOURCES),
}
WRITES = {
    "clickstream": (clickstream.REQUESTS, clickstream.SESSIONS, clickstream.COUNTS, clickstream.CONVERSIONS),
    "lake": (),
}


# -- the records, and a client of each system ------------------------------------------------------------------------

PARTITIONS = 2
#: Keep all records: the web log is of 2015, so the default retention would delete its records.
CONFIG = {"retention.ms": "-1"}
#: Settings of the producers on both sides.
PRODUCER = {"acks": "all", "linger.ms": 5}
#: Seconds that a producer may take for its last records.
FLUSH_S = 120
_POLL_S = 0.05


class Sent(NamedTuple):
    """A record to send. Without ``time_ms`` its timestamp is the time at which it is sent."""

    partition: int
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]
    time_ms: int | None


Send = Callable[[str, Sent], None]


def log_lines(copies: int) -> list[Sent]:
    """The lines of the web log, each ``copies`` times with different addresses, with the time of the line."""
    found = []
    for line in replay.lines(replay.web_log(), copies):
        headers = [(clickstream.LINE_HEADER, line.name)]
        found.append(Sent(zlib.crc32(line.key) % PARTITIONS, line.key, line.value, headers, line.time_ms))
    return found


def lake_records() -> dict[str, list[Sent]]:
    """The records of both releases of the lake's sources, by topic."""
    content = feed.tables()
    found: dict[str, list[Sent]] = {}
    for source in lake.SOURCES:
        records = found[source.topic] = []
        for release in lake.RELEASES:
            for row in feed.records(content[source.name], source.name, release).to_pylist():
                key = None if row["key"] is None else row["key"].encode()
                partition = len(records) if key is None else zlib.crc32(key)
                records.append(Sent(partition % PARTITIONS, key, row["value"].encode(), [], None))
    return found


class Log(Protocol):
    """A running cluster of one system."""

    def create(self, topics: Iterable[str]) -> None:
        """Create topics with PARTITIONS partitions and one replica."""

    def delete(self, topics: Sequence[str]) -> None: ...

    def producer(self) -> Any:
        """A context manager that gives a function Send. At its end all records are acknowledged, or RuntimeError is
        raised."""

    def read(self, topic: str, ended: threading.Event, take: Callable[[bytes], None]) -> None:
        """Call ``take`` with the value of each committed record of a topic, until the event ``ended`` is set."""


class HeadraceLog:
    def __init__(self, servers: str) -> None:
        self.servers = servers

    def create(self, topics: Iterable[str]) -> None:
        with Admin(bootstrap_servers=self.servers) as admin:
            new = [NewTopic(name, partitions=PARTITIONS, replication_factor=1, config=CONFIG) for name in topics]
            admin.create_topics(new, timeout=60)

    def delete(self, topics: Sequence[str]) -> None:
        with Admin(bootstrap_servers=self.servers) as admin:
            admin.delete_topics(topics)

    @contextmanager
    def producer(self) -> Iterator[Send]:
        futures: list[Any] = []
        with Producer({"bootstrap.servers": self.servers, **PRODUCER}) as producer:

            def send(topic: str, sent: Sent) -> None:
                futures.append(
                    producer.send(
                        topic,
                        key=sent.key,
                        value=sent.value,
                        headers=sent.headers,
                        partition=sent.partition,
                        timestamp_ms=sent.time_ms,
                    )
                )

            yield send
            producer.flush(timeout=FLUSH_S)
        for future in futures:
            future.result(timeout=0)

    def read(self, topic: str, ended: threading.Event, take: Callable[[bytes], None]) -> None:
        partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        settings = {"bootstrap.servers": self.servers, "isolation.level": "read_committed"}
        with Consumer(settings) as consumer:
            consumer.assign(partitions)
            consumer.seek_to_beginning()
            while not ended.is_set():
                for record in consumer.poll(_POLL_S):
                    take(record.value or b"")


class KafkaLog:
    def __init__(self, node: KafkaNode) -> None:
        self._node = node

    def create(self, topics: Iterable[str]) -> None:
        for name in topics:
            self._node.create_topic(name, partitions=PARTITIONS, config=CONFIG)

    def delete(self, topics: Sequence[str]) -> None:
        for name in topics:
            self._node.delete_topic(name)

    @contextmanager
    def producer(self) -> Iterator[Send]:
        from confluent_kafka import Producer

        failures: list[str] = []

        def on_delivery(error: object, message: object) -> None:
            if error is not None:
                failures.append(str(error))

        producer = Producer({"bootstrap.servers": self._node.bootstrap, **PRODUCER})

        def send(topic: str, sent: Sent) -> None:
            while True:
                try:
                    producer.produce(
                        topic,
                        sent.value,
                        sent.key,
                        partition=sent.partition,
                        headers=list(sent.headers),
                        timestamp=sent.time_ms if sent.time_ms is not None else int(time.time() * 1000),
                        on_delivery=on_delivery,
                    )
                    break
                except BufferError:
                    producer.poll(_POLL_S)
            producer.poll(0)

        yield send
        left = producer.flush(FLUSH_S)
        if left or failures:
            raise RuntimeError(f"Kafka: {left} records were not acknowledged, {len(failures)} failed: {failures[:1]}")

    def read(self, topic: str, ended: threading.Event, take: Callable[[bytes], None]) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

        settings = {"bootstrap.servers": self._node.bootstrap, "group.id": topic, "enable.auto.commit": False}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        try:
            while not ended.is_set():
                for message in consumer.consume(500, _POLL_S):
                    if message.error():
                        raise KafkaException(message.error())
                    take(message.value() or b"")
        finally:
            consumer.close()


# -- the runs ---------------------------------------------------------------------------------------------------------


class Watch(threading.Thread):
    """The memory and the processor time of a driver, its JVM and its workers, and the time of the cluster.

    ``rss`` and ``pss`` are the largest sums that were seen (MiB); ``pss`` counts a page that several processes share
    once. ``cpu`` has the processor seconds of the JVM, of the driver's Python processes, and of the cluster.
    """

    EVERY_S = 0.5

    def __init__(self, side: Side) -> None:
        super().__init__(daemon=True)
        self._driver, self._ended = psutil.Process(side.driver.ready().pid), threading.Event()
        self._cluster = side.cluster
        self.rss = self.pss = 0.0
        self.cpu: dict[str, float] = {}

    def run(self) -> None:
        while not self._ended.wait(self.EVERY_S):
            rss = pss = 0
            for process in self._processes():
                with suppress(psutil.NoSuchProcess, OSError):
                    rss += process.memory_info().rss
                    pss += _pss(process.pid)
            self.rss, self.pss = max(self.rss, rss / MIB), max(self.pss, pss / MIB)

    def _processes(self) -> list[psutil.Process]:
        return [self._driver, *self._driver.children(recursive=True)]

    def _used(self) -> dict[str, float]:
        used = {"jvm": 0.0, "python": 0.0, "cluster": cpu_seconds(self._cluster)}
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used["jvm" if process.name() == "java" else "python"] += times.user + times.system
                used["python"] += times.children_user + times.children_system  # the JVM too starts Python processes
        return used

    def __enter__(self) -> Watch:
        self.cpu = self._used()
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.cpu = {kind: used - self.cpu[kind] for kind, used in self._used().items()}
        self._ended.set()
        self.join()


def _pss(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:"))


class Side:
    """A cluster with its processes, and the Spark driver that works with it."""

    def __init__(
        self,
        name: str,
        log: Log,
        cluster: list[int],
        servers: str,
        environment: dict[str, str],
        jars: Sequence[str] = (),
    ) -> None:
        self.name, self.log, self.cluster = name, log, cluster
        self._directory = WORK / f"pipelines-{name}"
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        settings = [f"{key}={value}" for key, value in environment.items()]
        script = str(ROOT / "bench" / "pipelines_side.py")
        self._command = ["env", *settings, PYTHON, script, name, servers, str(self._directory / "run"), *jars]
        self.driver = WarmClient(lambda: self._command, self._directory / f"{name}-driver.log", lambda _: None)

    def ask(self, *words: str) -> dict[str, Any]:
        return json_at_the_end(self.driver.run(*words, timeout_s=COMMAND_S))


class Bench:
    def __init__(self, samples: Samples, sides: dict[str, Side], asked: argparse.Namespace) -> None:
        self._samples, self._sides, self._asked = samples, sides, asked
        self._numbers = itertools.count(1)
        self._counts: dict[str, dict[str, int]] = {}
        self._rows: dict[str, int] = {}

    # -- backlog

    def fill(self, job: str, records: dict[str, list[Sent]]) -> None:
        """Write the records of a backlog to both systems, and a part of them to the topics of the warm-up."""
        self._rows[job] = sum(map(len, records.values()))
        for side in self._sides.values():
            began = time.monotonic()
            for prefix, share in (("", 1), (WARM, WARM_SHARE)):
                topics = [prefix + topic for topic in records]
                side.log.create([*topics, *map(dead_letter_topic, topics)])
                with side.log.producer() as send:
                    for topic, every in zip(topics, records.values(), strict=True):
                        for sent in every[: len(every) // share]:
                            send(topic, sent)
            emit(step=f"{side.name}.fill.{job}", records=self._rows[job], seconds=round(time.monotonic() - began, 1))

    def backlog(self, job: str, way: Way, *, is_counted: bool) -> None:
        side, prefix = self._sides[way.side], f"run-{next(self._numbers)}."
        source = "" if is_counted else WARM
        topics = [prefix + topic for topic in WRITES[job]]
        side.log.create(topics)
        with Watch(side) as watch:
            done = side.ask("backlog", job, way.delivery, source, prefix, str(self._rows_of_batch(job)))
        side.log.delete(topics)
        name = f"{way.name}.{job}.backlog"
        self._check(source + job, way, done["counts"])
        _tell_batches(way.name, done["batches"])
        if not is_counted:
            emit(warm_up=name, seconds=round(done["seconds"], 1), cpu=watch.cpu)
            return
        self._samples.add(name, self._rows[job] / done["seconds"], "rows/s")
        self._used(name, watch)

    def _used(self, name: str, watch: Watch) -> None:
        self._samples.add(f"{name}.rss", watch.rss, "MiB")
        self._samples.add(f"{name}.pss", watch.pss, "MiB")
        for kind, seconds in watch.cpu.items():
            self._samples.add(f"{name}.cpu.{kind}", seconds, "s")

    def _rows_of_batch(self, job: str) -> int:
        return ROWS[job] * (self._asked.copies if job == "clickstream" else 1)

    def _check(self, what: str, way: Way, counts: dict[str, int]) -> None:
        """Raise RuntimeError unless all runs of a job over the same records have the same results."""
        first = self._counts.setdefault(what, counts)
        if counts != first:
            raise RuntimeError(f"{way.name} {what}: {counts}, and another run had {first}")
        emit(step=f"{way.name}.{what}", counts=counts)

    # -- steady

    def steady(self, job: str, way: Way, *, records: list[Sent], is_counted: bool) -> None:
        """Send ``records`` to the first topic that the job reads, and sum up the latencies."""
        side, prefix = self._sides[way.side], f"run-{next(self._numbers)}."
        topics = [prefix + topic for topic in (*READS[job], *map(dead_letter_topic, READS[job]), *WRITES[job])]
        side.log.create(topics)
        with Watch(side) as watch:
            side.ask("start", job, way.delivery, prefix, prefix, str(self._rows_of_batch(job)))
            measured = _of_lines if job == "clickstream" else _of_flights
            taken = measured(side, prefix, records, self._asked)
        side.log.delete(topics)
        name = f"{way.name}.{job}.steady"
        if not is_counted:
            emit(warm_up=name)
            return
        for quantile, value in percentiles([each * 1e3 for each in taken]).items():
            if quantile in ("p50", "p99", "max"):
                self._samples.add(f"{name}.{quantile}", value, "ms")
        self._used(name, watch)


def _of_lines(side: Side, prefix: str, records: list[Sent], asked: argparse.Namespace) -> list[float]:
    """Seconds from the send of a line to the receipt of its request, without the warm-up."""
    sent_s: dict[bytes, float] = {}
    taken: dict[bytes, float] = {}
    ended = threading.Event()

    def take(value: bytes) -> None:
        found = _LINE.search(value)
        if found is not None and found[1] in sent_s:
            taken.setdefault(found[1], time.monotonic() - sent_s[found[1]])

    def note(_: int, record: Sent) -> None:
        sent_s[record.headers[0][1]] = time.monotonic()

    reader = threading.Thread(target=side.log.read, args=(prefix + clickstream.REQUESTS, ended, take), daemon=True)
    reader.start()
    try:
        _send(side, prefix + clickstream.LOG, records, asked.rate, note)
        batches = side.ask("stop")["batches"]
        _tell_batches(side.name, batches)
        if (processed := sum(batch["rows"] for batch in batches["requests"])) != len(records):
            raise RuntimeError(f"{processed} of {len(records)} lines were processed")
        names = [record.headers[0][1] for record in records]
        deadline = time.monotonic() + LATE_S
        while any(name not in taken for name in names):
            if time.monotonic() > deadline:
                raise RuntimeError(f"a consumer received {len(taken)} of {len(names)} requests")
            time.sleep(0.1)
    finally:
        ended.set()
        reader.join()
    return [taken[name] for name in names[_warm(asked) :]]


def _of_flights(side: Side, prefix: str, records: list[Sent], asked: argparse.Namespace) -> list[float]:
    """Seconds from the send of a flight to the moment when the tables have it, without the warm-up."""
    sent: dict[str, list[tuple[int, float]]] = {}

    def note(number: int, record: Sent) -> None:
        sent.setdefault(str(record.partition), []).append((number, time.time()))

    _send(side, prefix + lake.FLIGHTS.topic, records, asked.rate, note)
    batches = side.ask("stop")["batches"]
    _tell_batches(side.name, batches)
    taken, done = [], dict.fromkeys(sent, 0)
    for batch in batches["flights"]:
        for partition, end in batch["end"].items():
            for number, sent_s in sent.get(partition, [])[done.get(partition, 0) : end]:
                if number >= _warm(asked):
                    taken.append(batch["visible"] - sent_s)
            done[partition] = end
    if sum(done.values()) != len(records):
        raise RuntimeError(f"{sum(done.values())} of {len(records)} flights were processed")
    return taken


def _warm(asked: argparse.Namespace) -> int:
    """The number of records at the start of a steady run that do not count."""
    return int(asked.rate * asked.warm_up_s)


def _send(side: Side, topic: str, records: list[Sent], rate: float, note: Callable[[int, Sent], None]) -> None:
    """Send records at a steady rate; call ``note`` just before each record."""
    with side.log.producer() as send:
        began = time.monotonic()
        for number, record in enumerate(records):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            note(number, record)
            send(topic, record)


def _tell_batches(side: str, batches: dict[str, list[dict[str, Any]]]) -> None:
    """For each query, print the mean duration (ms) of each part of a batch. The means are over the second half of the
    query's batches with rows."""
    for query, every in batches.items():
        late = every[len(every) // 2 :]
        parts = {part for batch in late for part in batch["ms"]}
        means = {part: round(sum(batch["ms"].get(part, 0) for batch in late) / len(late)) for part in sorted(parts)}
        emit(step=f"{side}.{query}", batches=len(every), mean_ms=means)


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--copies", type=int, default=20, help="number of copies of the web log in the backlog")
    parser.add_argument("--rate", type=float, default=300.0, help="records per second of the workload steady")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of the workload steady, after the warm-up")
    asked = parser.parse_args()
    asked.warm_up_s = WARM_UP_S
    if asked.smoke:
        asked.copies, asked.rate, asked.seconds, asked.warm_up_s = 1, 50.0, 4.0, 0.0
    sparks = {"headrace": version("pyspark"), "kafka": PYSPARK}
    samples = begin(asked)
    java = {"JAVA_HOME": str(find_java())}
    jars = [str(jar) for jar in connector_jars()]
    path = python_path()
    with (
        KafkaNode(WORK / "kafka") as kafka,
        ours.Headrace(WORK / "headrace", ours.FULL, coordinators=1) as headrace,
        ExitStack() as stack,
    ):
        sides = {
            "kafka": Side("kafka", KafkaLog(kafka), kafka.pids, kafka.bootstrap, {**java, "PYTHONPATH": path}, jars),
            "headrace": Side("headrace", HeadraceLog(headrace.bootstrap), headrace.pids(), headrace.bootstrap, java),
        }
        for side in sides.values():
            stack.callback(side.driver.close)
        _measure(Bench(samples, sides, asked), samples, asked)
        for side in sides.values():
            samples.add(f"{side.name}.cluster.rss", sum(map(peak_rss_mib, side.cluster)), "MiB")
    extra = {"spark": sparks, "copies": asked.copies, "rate": asked.rate, "seconds": asked.seconds}
    return finish(samples, asked, what="pipelines", extra=extra)


def _measure(bench: Bench, samples: Samples, asked: argparse.Namespace) -> None:
    for job in ROWS:
        for workload in ("backlog", "steady"):
            ways = [way for way in WAYS if job in way.jobs and re.search(asked.only, f"{way.name}.{job}.{workload}")]
            if not ways:
                continue
            if workload == "backlog":
                bench.fill(job, _records(job, asked.copies, most=SMOKE_RECORDS if asked.smoke else None))
                work: Callable[..., None] = bench.backlog
            else:
                most = int(asked.rate * (asked.warm_up_s + asked.seconds))
                work = partial(bench.steady, records=_records(job, copies=1, most=most)[READS[job][0]])
            for number in range(0 if asked.smoke else -1, asked.rounds):
                steps: list[Step] = [
                    (f"{way.name}.{job}.{workload}", partial(work, job, way, is_counted=number >= 0))
                    for way in _in_turn(ways, number)
                ]
                run_steps(samples, steps)


def _records(job: str, copies: int, most: int | None) -> dict[str, list[Sent]]:
    """The records of a job by topic, at most ``most`` records of each topic."""
    every = {clickstream.LOG: log_lines(copies)} if job == "clickstream" else lake_records()
    return {topic: records[:most] for topic, records in every.items()}


def _in_turn(ways: list[Way], number: int) -> list[Way]:
    """The ways in the order of round ``number``: each round begins with another way."""
    first = number % len(ways)
    return ways[first:] + ways[:first]


if __name__ == "__main__":
    sys.exit(main())
