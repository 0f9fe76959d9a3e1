"""Measure how a client with a quota, which floods the broker, affects another client (the neighbour): the neighbour's
latency alone, and beside the limited client.

    quotas.py [--rounds 5] [--seconds 10] [--kinds sdk,arrow,gateway,fetch,elsewhere,kafka] [--short] [--save]

One broker, one controller, one coordinator and one gateway. The neighbour sends 200 small records a second (acks=all)
and measures each from its scheduled time to its acknowledgement. The limited client has quotas of 5 MB/s and sends as
much as it can: single records (sdk), tables (arrow), librdkafka at the gateway (gateway), or it fetches (fetch). Each
is a process that runs from the start; between its slices it is idle.

Slices take turns: alone, sdk, alone, arrow, alone, gateway, alone, fetch. A slice beside a limited client is compared
with the slice alone before it, so a slow minute affects both. The first seconds of a slice do not count: the quota's
burst, and requests in flight. One slice of each client before the first round warms up. A figure is the median over the
rounds. The bar: the neighbour's p99 grows by less than 20 %, and each limited client gets its rate within 10 %.

    --kinds unlimited    also the same flood without a quota, to show that this tool detects a disturbance

Two kinds show the effect of the machine itself on the neighbour. ``elsewhere``: the limited client (sdk) uses another
cluster on this machine, so it shares cores and the disk with the neighbour, but not its broker. ``kafka``: librdkafka
clients as neighbour and as limited client, on a broker of Apache Kafka that flushes each write; the quota's window is
one second, as in Headrace.

First the disk alone is measured, without a broker: a process writes and flushes the neighbour's bytes on its schedule,
alone and beside a process that writes and flushes 5 MB/s. No broker can avoid the growth of the disk's own p99.
"""

from __future__ import annotations

import argparse
import json
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

import floors
from measure import PYTHON, ROOT, WORK, Samples, cpu_seconds, emit, machine, save, settle, table

from headrace import Admin, Consumer, LocalCluster, Producer, QuotaEntity, TopicPartition

RATE = 5_000_000  # bytes per second
RATE_SHARE, P99_RATIO_MAX = 0.1, 1.2
NEIGHBOUR_RATE = 200  # records per second
VALUE, TABLE_ROWS = bytes(10_000), 50
BUFFER_BYTES = 4 << 20
FLOODED, BESIDE = "flooded", "beside"
LIMITED, OTHER = "limited", "unlimited"
KINDS = ("sdk", "arrow", "gateway", "fetch")
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


def gateway(cluster: dict[str, str], orders: Orders) -> None:
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
    elif kind in ("gateway", KAFKA):
        gateway(cluster, orders)
    elif kind == "fetch":
        fetch(cluster, orders)
    else:
        sdk(cluster, orders, OTHER if kind == OTHER else LIMITED, tables=kind == "arrow")


class Client:
    """The parent's side of a client."""

    def __init__(self, kind: str, servers: dict[str, str], out: Path) -> None:
        self.kind = kind
        command = [PYTHON, __file__, "--client", kind, "--cluster", json.dumps(servers), "--out", str(out)]
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
    with LocalCluster(data=data, brokers=1, controllers=1, coordinators=1, gateways=1) as cluster:
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


def ours(kinds: list[str], rounds: int, seconds: float, out: Path) -> list[Slice]:
    with ExitStack() as stack:
        cluster = stack.enter_context(running("quotas", seconds))
        flooders = [Client(kind, servers_of(cluster), out) for kind in kinds if kind != ELSEWHERE]
        if ELSEWHERE in kinds:
            other = stack.enter_context(running("quotas-elsewhere", seconds))
            flooders.append(Client(ELSEWHERE, servers_of(other), out))
        broker = next(node["pid"] for node in cluster.ps() if node["role"] == "broker")
        return measured(Client("neighbour", servers_of(cluster), out), flooders, broker, rounds, seconds, out)


def kafkas(rounds: int, seconds: float, out: Path) -> list[Slice]:
    from kafka_node import KafkaNode

    with KafkaNode(WORK / "quotas-kafka", settings=KAFKA_WINDOW) as kafka:
        for topic in (FLOODED, BESIDE):
            kafka.create_topic(topic, partitions=1, config={"flush.messages": "1"})
        kafka.limit_client(LIMITED, {"producer_byte_rate": RATE})
        servers = {"kafka": kafka.bootstrap}
        beside, flooder = Client("kafka-neighbour", servers, out), Client(KAFKA, servers, out)
        return measured(beside, [flooder], kafka.pids[0], rounds, seconds, out)


def disk_alone(samples: Samples, rounds: int, seconds: float) -> None:
    """The times of ``floors.forced_portions`` with the neighbour's records, alone and beside 5 MB/s."""
    with tempfile.TemporaryDirectory(dir=WORK) as made:
        directory = Path(made)

        def forced(name: str) -> None:
            found = floors.forced_portions(directory, size=100, every_s=1 / NEIGHBOUR_RATE, seconds=seconds, files=1)
            samples.add(f"disk.{name}.p50", found["p50"], "ms")
            samples.add(f"disk.{name}.p99", found["p99"], "ms")

        for _ in range(rounds):
            forced("alone")
            for size in DISK_BYTES:
                over_s = 2 * seconds + 10  # longer than the measurement takes
                with floors.forced_beside(directory, size=size, every_s=size / RATE, seconds=over_s):
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--kinds", default=",".join((*KINDS, ELSEWHERE)))
    parser.add_argument("--short", action="store_true", help="2 rounds of 3 s, which only show whether the tool works")
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--cluster", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        client(asked.client, json.loads(asked.cluster), asked.out)
        return 0
    kinds = tuple(asked.kinds.split(","))
    known = (*KINDS, ELSEWHERE, KAFKA, OTHER)
    if unknown := set(kinds) - set(known):
        parser.error(f"--kinds: {', '.join(sorted(unknown))}: choose from {', '.join(known)}")
    rounds, seconds = (2, 3.0) if asked.short else (asked.rounds, asked.seconds)
    samples = Samples()
    emit(machine=machine())
    disk_alone(samples, rounds, seconds)
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "latencies.json"
        slices = ours([kind for kind in kinds if kind != KAFKA], rounds, seconds, out)
        if KAFKA in kinds:
            slices += kafkas(rounds, seconds, out)
    ratios = collect(slices, samples)
    print(table(samples))
    for kind in kinds:
        print(verdict(samples, kind, ratios[kind]))
    if asked.save:
        path = save(samples, what="quotas", extra={"rounds": rounds, "seconds": seconds})
        print(f"saved: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
