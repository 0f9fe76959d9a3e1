"""What a client notices of another one, the neighbour: beside a bulk client, and beside a flooder with a quota.

    neighbours.py bulk [--rounds 3] [--seconds 4] [--only REGEX] [--bulk-gib 2] [--rate 1000] [--smoke] [--save]
    neighbours.py quota [--rounds 5] [--seconds 10] [--only REGEX] [--smoke] [--save]

**bulk**: one broker, one controller, factor 1. One process sends ``--rate`` records a second (acks=1, flushed to the
disk) to a topic and reads them. Slices without another client (quiet) alternate with slices with one bulk client:

    cold-arrow, cold-poll   a reader of ``--bulk-gib`` GiB that are not in the page cache: it catches up
    warm-arrow, warm-poll   the same from the page cache
    produce                 a producer that sends as fast as it can, to a topic of its own

For the readers of cold data a third pair has the disk alone, without a broker: one process writes and flushes one
record at a time at the same rate (``disk.quiet``), then beside a process that reads from the disk as many bytes a
second as the broker did (``disk.cold-arrow``). The bars: beside a reader of cold data, p50 is at most twice and p99 at
most three times the value of the quiet slices; a missed bar is only printed.

**quota**: one broker, one controller and one coordinator. The neighbour sends 200 small records a second
(acks=all), measured from the scheduled time to the acknowledgement. The limited client has quotas of 5 MB/s and sends
as much as it can: single records (sdk), tables (arrow), librdkafka (librdkafka), or it fetches (fetch).
Each is a process that runs from the start; between its slices it is idle. The first seconds of a slice do not count:
the quota's burst, and requests in flight. The bar: the neighbour's p99 grows by less than 20 %, and each limited client
gets its rate within 10 %. Kinds that run only when ``--only`` names them:

    elsewhere   the limited client uses another cluster on this machine: it shares cores and disk, but not the broker
    kafka       librdkafka clients on a broker of Apache Kafka that flushes each write, with a quota of the same window
    unlimited   the same flood without a quota: shows that this tool detects a disturbance

First the disk alone is measured, without a broker: a process writes and flushes the neighbour's bytes on its schedule,
alone and beside a process that writes and flushes 5 MB/s. No broker can avoid the growth of the disk's own p99.

A slice beside a client is compared with the quiet slice before it, so a slow minute affects both.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import chain
import ours
from kafka_node import KafkaNode
from measure import PYTHON, WORK, Samples, begin, cpu_seconds, emit, flags, run_steps, settle
from report import Bar, finish

from headrace import Admin, Consumer, LocalCluster, Producer, QuotaEntity, TopicPartition

# -- beside a bulk client ---------------------------------------------------------------------------------------------

MIB = 1 << 20
#: Bulk client -> (workload of `headrace bench`, API, whether the bytes leave the page cache first).
BULK = {
    "cold-arrow": ("consume", "arrow", True),
    "cold-poll": ("consume", "object", True),
    "warm-arrow": ("consume", "arrow", False),
    "warm-poll": ("consume", "object", False),
    "produce": ("produce", "arrow", False),
}
RECORD_BYTES = 100


def beside_quiet(name: str, quantile: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.ratio(f"beside.{name}.{quantile}", f"quiet.{name}.{quantile}")


BARS = tuple(
    Bar(f"{name}: {quantile} of live traffic", "without the bulk client", most, "x", beside_quiet(name, quantile),
        at_least=False, peer=f"quiet.{name}.{quantile}")
    for name in BULK
    for quantile, most in (("p50", 2.0), ("p99", 3.0))
)  # fmt: skip


class Bulk:
    def __init__(self, cluster: ours.Headrace, samples: Samples, asked: argparse.Namespace) -> None:
        self.cluster, self.samples, self.asked = cluster, samples, asked
        self.live = cluster.new_topic("commit")
        self.bulk = cluster.new_topic("os")
        self.records = int(asked.bulk_gib * 1024 * MIB / RECORD_BYTES)

    def fill(self) -> None:
        self.cluster.bench("produce", self.bulk, "--api", "arrow", "--records", str(self.records), timeout_s=300)

    def slices(self, name: str) -> None:
        self._slice(f"quiet.{name}")
        with self._bulk_client(name) as pid, mock.patch.dict(os.environ, HEADRACE_BENCH_SETTLE="0"):
            before, cpu, read = time.monotonic(), cpu_seconds([self.cluster.broker_pid]), self._bytes_read()
            self._slice(f"beside.{name}")
            taken_s = time.monotonic() - before
            share = (cpu_seconds([self.cluster.broker_pid]) - cpu) / taken_s
            rate = (self._bytes_read() - read) / taken_s
            self.samples.add(f"beside.{name}.broker-cores", share, "cores")
            if not Path(f"/proc/{pid}").exists():
                raise RuntimeError(f"{name}: the bulk client ended before the slice did: enlarge --bulk-gib")
        if BULK[name][2]:
            self._disk_alone(name, rate)

    def _disk_alone(self, name: str, bytes_per_s: float) -> None:
        """Measure the time of the disk to flush records without a broker: alone, and beside a reader at this rate."""
        self.samples.add(f"beside.{name}.disk", bytes_per_s / MIB, "MiB/s")
        self._flushes(f"disk.quiet.{name}")
        reader = multiprocessing.get_context("spawn").Process(
            target=chain.read_at_rate, args=(self._bulk_files(), bytes_per_s), daemon=True
        )
        reader.start()
        try:
            self._flushes(f"disk.{name}")
        finally:
            reader.kill()
            reader.join()

    def _flushes(self, label: str) -> None:
        found = chain.forced_portions(
            self.cluster.directory, size=RECORD_BYTES, every_s=1 / self.asked.rate, seconds=self.asked.seconds, files=1
        )
        for quantile in ("p50", "p99"):
            self.samples.add(f"{label}.{quantile}", found[quantile], "ms")

    def _bytes_read(self) -> int:
        """Bytes that the broker has read from the disk (``read_bytes`` in proc(5))."""
        text = Path(f"/proc/{self.cluster.broker_pid}/io").read_text()
        return int(dict(line.split(": ") for line in text.splitlines())["read_bytes"])

    def _bulk_files(self) -> list[Path]:
        return sorted(self.cluster.directory.rglob(f"{self.bulk}-*/*.log"))

    def _slice(self, label: str) -> None:
        records = str(int(self.asked.seconds * self.asked.rate))
        found = self.cluster.bench("latency", self.live, "--records", records, "--rate", str(self.asked.rate),
                                   "--acks", "1", "--no-warm")  # fmt: skip
        for quantile in ("p50", "p99"):
            self.samples.add(f"{label}.{quantile}", found["latency_ms"][quantile], "ms")

    @contextmanager
    def _bulk_client(self, name: str) -> Iterator[int]:
        workload, api, is_cold = BULK[name]
        if is_cold:
            self._forget_pages()
        topic = self.cluster.new_topic("os") if workload == "produce" else self.bulk
        script = (
            "import subprocess, sys\n"
            "while not subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode: pass\n"
        )
        command = [PYTHON, "-m", "headrace_tools", "bench", workload, "--topic", topic, "--api", api, "--no-warm"]
        command += ["--records", str(self.records), "-b", self.cluster.bootstrap, "-o", "json"]
        process = subprocess.Popen([PYTHON, "-c", script, *command], start_new_session=True)
        try:
            self._until_it_works(name)
            yield process.pid
        finally:
            os.killpg(process.pid, 9)
            process.wait()
            if workload == "produce":
                self.cluster.delete_topic(topic)

    def _until_it_works(self, name: str) -> None:
        """Wait until the broker uses a fifth of a core: the bulk client reads or writes."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            before = cpu_seconds([self.cluster.broker_pid])
            time.sleep(0.25)
            if cpu_seconds([self.cluster.broker_pid]) - before > 0.05:
                return
        raise RuntimeError(f"{name}: the bulk client causes no load on the broker")

    def _forget_pages(self) -> None:
        for path in self._bulk_files():
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# -- beside a client with a quota ------------------------------------------------------------------------------------

RATE = 5_000_000  # bytes per second
RATE_SHARE, P99_RATIO_MAX = 0.1, 1.2
NEIGHBOUR_RATE = 200  # records per second
VALUE, TABLE_ROWS = bytes(10_000), 50
BUFFER_BYTES = 4 << 20
FLOODED, BESIDE = "flooded", "beside"
LIMITED, OTHER = "limited", "unlimited"
KINDS = ("sdk", "arrow", "librdkafka", "fetch")
ELSEWHERE, KAFKA = "elsewhere", "kafka"
#: Kafka's quotas with a burst of one second, like ours; by default they let a client send ten seconds' bytes at once.
KAFKA_WINDOW = {"quota.window.num": "2", "quota.window.size.seconds": "1"}
DISK_BYTES = (100_000, 500_000)  #: Sizes of the writes of 5 MB/s: produce requests of the SDK, and tables.
WARM_S = 1.5  # Seconds at the start of a slice, until the burst of the quota is over.


# -- the clients, each in a process ------------------------------------------------------------------------------------


class Orders:
    """Commands of the parent process on standard input: "go", then "stop"; the end of the input ends the process."""

    def __init__(self) -> None:
        self.is_on = threading.Event()
        self.is_over = threading.Event()
        self._went = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            if line.strip() == "go":
                self.is_on.set()
                self._went.set()
            else:
                self.is_on.clear()
        self.is_over.set()
        self.is_on.clear()
        self._went.set()

    def slices(self) -> Iterator[None]:
        """One item for each slice, at its beginning."""
        while True:
            self._went.wait()
            self._went.clear()
            if self.is_over.is_set():
                return
            yield


def on_schedule(
    orders: Orders, out: Path, send: Callable[[Callable[[], None]], None], flush: Callable[[], object]
) -> None:
    """Send at the rate from the first order to the end; then write [scheduled, seconds] of each record. ``send`` sends
    one record, and calls its argument when the record is acknowledged."""
    seen: list[tuple[float, float]] = []

    def note(due_s: float) -> None:
        seen.append((due_s, time.monotonic() - due_s))

    print("ready", flush=True)
    for _ in orders.slices():
        break
    due = time.monotonic()
    while orders.is_on.is_set():
        due += 1 / NEIGHBOUR_RATE
        time.sleep(max(due - time.monotonic(), 0))
        send(partial(note, due))
    flush()
    out.write_text(json.dumps(seen))


def neighbour(cluster: dict[str, str], orders: Orders, out: Path) -> None:
    with Producer(bootstrap_servers=cluster["headrace"], client_id="neighbour", acks="all", linger_ms=0) as producer:
        producer.send(BESIDE, b"x" * 100).result(60)

        def send(acknowledged: Callable[[], None]) -> None:
            sent = producer.send(BESIDE, b"x" * 100)
            sent.add_done_callback(lambda done: acknowledged() if done.exception() is None else None)

        on_schedule(orders, out, send, producer.flush)
        throttled_ms = producer.metrics()["produce-throttle-time-max"]
    assert not throttled_ms, "the neighbour was throttled, although it has no quota"


def kafka_neighbour(cluster: dict[str, str], orders: Orders, out: Path) -> None:
    import confluent_kafka

    servers = cluster["kafka"]
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "client.id": "neighbour", "linger.ms": 0})
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            producer.poll(0.1)

    polling = threading.Thread(target=poll)
    polling.start()

    def send(acknowledged: Callable[[], None]) -> None:
        producer.produce(BESIDE, b"x" * 100, on_delivery=lambda error, _: None if error else acknowledged())

    try:
        send(lambda: None)
        producer.flush(60)
        on_schedule(orders, out, send, lambda: producer.flush(60))
    finally:
        is_over.set()
        polling.join()


class Rate:
    """Bytes per second after the first seconds of a slice."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._from: tuple[float, int] | None = None
        self._bytes = 0

    def add(self, size: int) -> None:
        self._bytes += size
        now = time.monotonic()
        if self._from is None and now - self._began >= WARM_S:
            self._from = now, self._bytes

    def per_s(self) -> float:
        if self._from is None:
            return 0.0
        at, before = self._from
        return (self._bytes - before) / (time.monotonic() - at)


def flood_with(
    orders: Orders, send: Callable[[Callable[[], None]], None], size: int, flush: Callable[[], object]
) -> None:
    """Send until each "stop", as fast as the client accepts; report the rate of each slice."""
    print("ready", flush=True)
    for _ in orders.slices():
        rate = Rate()

        def acknowledged(rate: Rate = rate) -> None:
            rate.add(size)

        while orders.is_on.is_set():
            send(acknowledged)
        found = rate.per_s()
        flush()
        print(json.dumps({"bytes_per_s": found}), flush=True)


def sdk(cluster: dict[str, str], orders: Orders, client_id: str = LIMITED, *, tables: bool = False) -> None:
    import pyarrow as pa

    rows = pa.table({"value": [VALUE] * TABLE_ROWS})
    server = cluster["headrace"]
    with Producer(bootstrap_servers=server, client_id=client_id, buffer_memory=BUFFER_BYTES) as producer:

        def send(acknowledged: Callable[[], None]) -> None:
            sent: Any = producer.send_arrow(FLOODED, rows) if tables else producer.send(FLOODED, VALUE)
            sent.add_done_callback(lambda done: acknowledged() if done.exception() is None else None)

        flood_with(orders, send, len(VALUE) * (TABLE_ROWS if tables else 1), producer.flush)


def librdkafka(cluster: dict[str, str], orders: Orders) -> None:
    import confluent_kafka

    config = {"bootstrap.servers": cluster["kafka"], "client.id": LIMITED, "linger.ms": 5}
    producer = confluent_kafka.Producer({**config, "queue.buffering.max.kbytes": BUFFER_BYTES // 1024})

    def send(acknowledged: Callable[[], None]) -> None:
        try:
            producer.produce(FLOODED, VALUE, on_delivery=lambda error, _: None if error else acknowledged())
            producer.poll(0)
        except BufferError:
            producer.poll(0.05)

    flood_with(orders, send, len(VALUE), lambda: producer.flush(60))


def fetch(cluster: dict[str, str], orders: Orders) -> None:
    """Read the flooded topic from its beginning in each slice."""
    place = TopicPartition(FLOODED, 0)
    print("ready", flush=True)
    for _ in orders.slices():
        rate = Rate()
        with Consumer(bootstrap_servers=cluster["headrace"], client_id=LIMITED) as consumer:
            consumer.assign([place])
            consumer.seek_to_beginning([place])
            while orders.is_on.is_set():
                rate.add(sum(len(each.value or b"") for each in consumer.poll(0.2)))
            found = rate.per_s()
        print(json.dumps({"bytes_per_s": found}), flush=True)


def client(kind: str, cluster: dict[str, str], out: Path) -> None:
    orders = Orders()
    if kind == "neighbour":
        neighbour(cluster, orders, out)
    elif kind == "kafka-neighbour":
        kafka_neighbour(cluster, orders, out)
    elif kind in ("librdkafka", KAFKA):
        librdkafka(cluster, orders)
    elif kind == "fetch":
        fetch(cluster, orders)
    else:
        sdk(cluster, orders, OTHER if kind == OTHER else LIMITED, tables=kind == "arrow")


class Client:
    """The parent's side of a client."""

    def __init__(self, kind: str, servers: dict[str, str], out: Path) -> None:
        self.kind = kind
        command = [PYTHON, __file__, "client", kind, json.dumps(servers), str(out)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the client {kind} did not start")

    def order(self, word: str) -> None:
        assert self._process.stdin is not None
        print(word, file=self._process.stdin, flush=True)

    def report(self) -> dict[str, float]:
        assert self._process.stdout is not None
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        return found

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait(60):
            raise RuntimeError(f"the client {self.kind} failed")


# -- the parent --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Slice:
    """A slice of time in which the neighbour was alone (``kind`` is alone), or beside a client. Times:
    time.monotonic()."""

    kind: str
    from_s: float
    to_s: float
    bytes_per_s: float = 0.0
    cpu: float = 0.0  # processor use of the broker, in cores
    latencies_ms: list[float] = field(default_factory=list)

    def quantile_ms(self, part: float) -> float:
        return sorted(self.latencies_ms)[int(len(self.latencies_ms) * part)]


@contextmanager
def running(name: str, seconds: float) -> Iterator[LocalCluster]:
    """A cluster whose flooded topic has enough records for a client that fetches for ``seconds``."""
    data = WORK / name
    shutil.rmtree(data, ignore_errors=True)
    with LocalCluster(data=data, brokers=1, controllers=1, coordinators=1, kafka=True) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([FLOODED, BESIDE], timeout=60)
            rates: dict[str, float | None] = {"producer_byte_rate": RATE, "consumer_byte_rate": RATE}
            admin.alter_client_quotas({QuotaEntity(client_id=LIMITED): rates})
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:  # records for the client that fetches
            for _ in range(int(RATE * (seconds + WARM_S + 2)) // len(VALUE)):
                producer.send(FLOODED, VALUE)
            producer.flush()
        yield cluster


def one_slice(flooder: Client | None, seconds: float, broker: int) -> Slice:
    if flooder is not None:
        flooder.order("go")
    time.sleep(WARM_S)
    cpu, began = cpu_seconds([broker]), time.monotonic()
    time.sleep(seconds)
    found = Slice("alone" if flooder is None else flooder.kind, began, time.monotonic())
    found.cpu = (cpu_seconds([broker]) - cpu) / (found.to_s - began)
    if flooder is not None:
        flooder.order("stop")
        found.bytes_per_s = flooder.report()["bytes_per_s"]
    return found


def servers_of(cluster: LocalCluster) -> dict[str, str]:
    return {"headrace": cluster.bootstrap_servers, "kafka": cluster.kafka_bootstrap_servers}


def measured(
    beside: Client, flooders: list[Client], broker: int, rounds: int, seconds: float, out: Path
) -> list[Slice]:
    """All slices of a cluster. ``beside``: the neighbour, whose broker has the pid ``broker``. Ends the clients."""
    slices: list[Slice] = []
    with ExitStack() as stack:
        for each in flooders:
            stack.callback(each.end)
        beside.order("go")
        settle()
        for each in flooders:
            one_slice(each, seconds, broker)  # warm-up, in which Kafka's JVM compiles
        for number in range(rounds):
            emit(round=number + 1, of=rounds)
            for flooder in flooders:
                slices += [one_slice(None, seconds, broker), one_slice(flooder, seconds, broker)]
                emit(beside=flooder.kind, megabytes_per_s=round(slices[-1].bytes_per_s / 1e6, 2))
        beside.order("stop")
        beside.end()
        latencies = json.loads(out.read_text())
    for one in slices:
        one.latencies_ms = [1e3 * took for at, took in latencies if one.from_s <= at < one.to_s]
    return slices


def our_slices(kinds: list[str], rounds: int, seconds: float, out: Path) -> list[Slice]:
    with ExitStack() as stack:
        cluster = stack.enter_context(running("quotas", seconds))
        flooders = [Client(kind, servers_of(cluster), out) for kind in kinds if kind != ELSEWHERE]
        if ELSEWHERE in kinds:
            other = stack.enter_context(running("quotas-elsewhere", seconds))
            flooders.append(Client(ELSEWHERE, servers_of(other), out))
        broker = next(node["pid"] for node in cluster.ps() if node["role"] == "broker")
        return measured(Client("neighbour", servers_of(cluster), out), flooders, broker, rounds, seconds, out)


def kafka_slices(rounds: int, seconds: float, out: Path) -> list[Slice]:
    with KafkaNode(WORK / "quotas-kafka", settings=KAFKA_WINDOW) as kafka:
        for topic in (FLOODED, BESIDE):
            kafka.create_topic(topic, partitions=1, config={"flush.messages": "1"})
        kafka.limit_client(LIMITED, {"producer_byte_rate": RATE})
        servers = {"kafka": kafka.bootstrap}
        beside, flooder = Client("kafka-neighbour", servers, out), Client(KAFKA, servers, out)
        return measured(beside, [flooder], kafka.pids[0], rounds, seconds, out)


def disk_alone(samples: Samples, rounds: int, seconds: float) -> None:
    """The times of ``chain.forced_portions`` with the neighbour's records, alone and beside 5 MB/s."""
    with tempfile.TemporaryDirectory(dir=WORK) as made:
        directory = Path(made)

        def forced(name: str) -> None:
            found = chain.forced_portions(directory, size=100, every_s=1 / NEIGHBOUR_RATE, seconds=seconds, files=1)
            samples.add(f"disk.{name}.p50", found["p50"], "ms")
            samples.add(f"disk.{name}.p99", found["p99"], "ms")

        for _ in range(rounds):
            forced("alone")
            for size in DISK_BYTES:
                over_s = 2 * seconds + 10  # longer than the measurement takes
                with chain.forced_beside(directory, size=size, every_s=size / RATE, seconds=over_s):
                    forced(f"beside.{size // 1000}KB")


def collect(slices: list[Slice], samples: Samples) -> dict[str, list[float]]:
    """Add the figures of all slices; returns the ratios of p99 by kind, one for each pair of slices."""
    ratios: dict[str, list[float]] = {}
    for alone, flooded in zip(slices[::2], slices[1::2], strict=True):
        for each, name in ((alone, f"{flooded.kind}.alone"), (flooded, f"{flooded.kind}.beside")):
            samples.add(f"{name}.p50", each.quantile_ms(0.5), "ms")
            samples.add(f"{name}.p99", each.quantile_ms(0.99), "ms")
            samples.add(f"{name}.broker", each.cpu, "cores")
        samples.add(f"{flooded.kind}.rate", flooded.bytes_per_s / 1e6, "MB/s")
        ratios.setdefault(flooded.kind, []).append(flooded.quantile_ms(0.99) / alone.quantile_ms(0.99))
    return ratios


def verdict(samples: Samples, kind: str, ratios: list[float]) -> str:
    alone, beside = samples.median(f"{kind}.alone.p99"), samples.median(f"{kind}.beside.p99")
    rate = samples.median(f"{kind}.rate")
    assert alone is not None
    assert beside is not None
    assert rate is not None
    of_medians = beside / alone
    is_met = of_medians < P99_RATIO_MAX and abs(rate * 1e6 / RATE - 1) <= RATE_SHARE
    word = "" if kind in (OTHER, ELSEWHERE, KAFKA) else "met" if is_met else "NOT MET"
    pairs = ", ".join(f"{each:.2f}" for each in ratios)
    return (
        f"{kind}: p99 {alone:.2f} ms alone, {beside:.2f} ms beside: {of_medians:.2f} (pairs {pairs}, median "
        f"{statistics.median(ratios):.2f}); {rate:.2f} MB/s {word}"
    )


# -- the run ----------------------------------------------------------------------------------------------------------


def bulk(words: list[str]) -> int:
    parser = flags(__doc__, warm_gib=0.0)
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds of each slice")
    parser.add_argument("--bulk-gib", type=float, default=2.0)
    parser.add_argument("--rate", type=int, default=1_000, help="live records per second")
    asked = parser.parse_args(words)
    if asked.smoke:
        asked.seconds, asked.bulk_gib = 1.0, 0.5
    samples = begin(asked)
    with ours.Headrace(WORK / "fairness", ours.FULL) as cluster:
        beside = Bulk(cluster, samples, asked)
        beside.fill()
        for _ in range(asked.rounds):
            run_steps(samples, ((name, partial(beside.slices, name)) for name in BULK), asked.only)
    return finish(samples, asked, what="bulk", bars=BARS)


def quota(words: list[str]) -> int:
    parser = flags(__doc__, rounds=5, warm_gib=0.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args(words)
    known = (*KINDS, ELSEWHERE, KAFKA, OTHER) if asked.only else KINDS
    kinds = [kind for kind in known if re.search(asked.only, kind)]
    samples = begin(asked)
    rounds, seconds = (2, 3.0) if asked.smoke else (asked.rounds, asked.seconds)
    disk_alone(samples, rounds, seconds)
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "latencies.json"
        slices = []
        if mine := [kind for kind in kinds if kind != KAFKA]:
            slices += our_slices(mine, rounds, seconds, out)
        if KAFKA in kinds:
            slices += kafka_slices(rounds, seconds, out)
    ratios = collect(slices, samples)
    code = finish(samples, asked, what="quotas", extra={"seconds": seconds})
    for kind in kinds:
        print(verdict(samples, kind, ratios[kind]))
    return code


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(sys.argv[2], json.loads(sys.argv[3]), Path(sys.argv[4]))
    elif sys.argv[1:2] in (["bulk"], ["quota"]):
        sys.exit({"bulk": bulk, "quota": quota}[sys.argv[1]](sys.argv[2:]))
    else:
        raise SystemExit(__doc__)
