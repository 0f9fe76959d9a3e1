"""Hostile clients beside a well-behaved one: the effect on its p99 and on the brokers' memory (`make bench-hostile`).

    hostile.py [--seconds 4] [--only NAMES] [--rate 100] [--smoke] [--small]

Three brokers, three controllers, and a coordinator are real processes with default settings (``--small``: one
of each). The topic has a replica on each broker. A producer (acks=all) sends ``--rate`` records per second and a
consumer reads them. A latency is the time from send to receipt, and belongs to the slice of the send. Beside attackers
of the coordinator, the consumer is a member of a group and commits after each poll. A latency is then the time from
send to the end of the commit. Beside attackers of Kafka's protocol (kafka_attackers.py), the producer and the
consumer are librdkafka's. An attacker is one process that may use half a core, on loopback, bounded in time and count.

Quiet slices and slices with an attacker alternate, ``--seconds`` each, in two rounds over all attackers. An attacker is
compared with the quiet slices directly before its own slices, so a slow minute affects the attack and the quiet slices.
Each result is one JSON object per line; a table follows:

    quiet_p99_ms, p99_ms, ratio, rss_mib (peak of the largest process of the attacked kind), broker_rss_mib, quiet_cpu,
    cpu (of the attacked kind), attacker_cpu (cores), alive, within_ratio (the bare bar: p99 at most 3 times the quiet
    one), fine (all bars of this attacker)

The exit code is 1 when a bar is missed. The bars are: p99 at most 3 times the quiet p99 (or 25 ms), every process
alive, no process above 400 MiB, no record lost. ``within_ratio`` compares only with 3 times the quiet p99, not with
25 ms. ``within_ratio`` is a separate result, and does not change the exit code. The time of a run with the
defaults has not been measured; nine to twelve minutes are an estimate.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from attackers import ATTACKS, MIB, OF_BROKERS, OF_CONTROLLERS, OF_COORDINATORS, READY, Pace
from kafka_attackers import BOMBED, FILLED, OF_KAFKA, TOPIC
from measure import cpu_seconds, emit, rss_mib

OF_GROUP, OF_KAFKA_CLIENT = "of-group", "of-kafka"
FILLED_BYTES = 64 * MIB  #: Bytes of records that attackers fetch by Kafka's protocol.
RATIO_MAX, RSS_MIB_MAX = 3.0, 400.0
#: A p99 below this value always passes, because the attacker shares the two cores.
FLOOR_MS = 25.0
#: Slices per attacker. Time that an attacker has to end before a quiet slice, and to connect before its own slice.
ROUNDS = 2
SETTLE_S, CONNECT_S = 0.7, 0.5
#: How long to wait for the records of a slice (seconds).
ARRIVAL_S = 5.0
COUNTS = ("sent", "received", "failed")


# -- the well-behaved client ------------------------------------------------------------------------------------------


class Client:
    """Sends a record every ``1 / rate`` s, and measures when a consumer receives it."""

    topic = TOPIC

    def __init__(self, rate: float) -> None:
        self._last = 0.0  # records that a member reads again after a rebalance count once
        self._rate, self._over, self._over_reading = rate, threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._latencies_ms: dict[float, float | None] = {}  # send time -> latency; None: the record is not received yet
        self.sent = self.received = self.failed = 0
        self._threads = [threading.Thread(target=self._send_all), threading.Thread(target=self._receive_all)]

    # -- what a client's library does

    def _ready(self) -> None:
        """Wait until the consumer knows its position."""
        raise NotImplementedError

    def _send(self, value: bytes) -> None:
        raise NotImplementedError

    def _flush(self) -> None:
        raise NotImplementedError

    def _poll(self) -> list[bytes]:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError

    # -- the measurement

    def start(self) -> None:
        self._ready()
        for thread in self._threads:
            thread.start()

    def measure(self, seconds: float) -> list[float]:
        """Latencies of records sent within ``seconds`` from now, in ms. The latency of a missing record is the time for
        which the program has waited for the record."""
        began = time.monotonic()
        time.sleep(seconds)
        with self._lock:
            known, self._latencies_ms = self._latencies_ms, {}
        slice_ms = {sent: took for sent, took in known.items() if sent >= began}
        deadline = time.monotonic() + ARRIVAL_S
        while None in slice_ms.values() and time.monotonic() < deadline:
            time.sleep(0.01)
            with self._lock:
                for sent in [sent for sent, took in slice_ms.items() if took is None]:
                    slice_ms[sent] = self._latencies_ms.pop(sent, None)
        now = time.monotonic()
        return [(now - sent) * 1000 if took is None else took for sent, took in slice_ms.items()]

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._close()

    def _send_all(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            now = time.monotonic()
            with self._lock:
                self._latencies_ms[now] = None
            self._send(struct.pack(">d", now))
            self.sent += 1
            due += 1 / self._rate
            time.sleep(max(due - time.monotonic(), 0))
        self._flush()
        time.sleep(2)
        self._over_reading.set()

    def _receive_all(self) -> None:
        while not self._over_reading.is_set():
            values = self._poll()
            now = time.monotonic()
            for value in values:
                if len(value) != 8:  # an attacker's record
                    continue
                (sent,) = struct.unpack(">d", value)
                if sent <= self._last:
                    continue
                self._last = sent
                self.received += 1
                with self._lock:
                    self._latencies_ms[sent] = (now - sent) * 1000


class SdkClient(Client):
    """A client of the SDK. With ``group``, a latency ends when the consumer has committed the record."""

    def __init__(self, bootstrap: str, rate: float, *, group: str | None = None) -> None:
        from headrace import Consumer, Producer, TopicPartition

        super().__init__(rate)
        self._producer = Producer(bootstrap_servers=bootstrap, linger_ms=0)
        self._group = group
        if group is None:
            self._consumer = Consumer(bootstrap_servers=bootstrap, auto_offset_reset="latest")
            self._consumer.assign([TopicPartition(self.topic, 0)])
        else:
            self.topic = OF_GROUP
            self._consumer = Consumer(
                bootstrap_servers=bootstrap, auto_offset_reset="latest", group_id=group, enable_auto_commit=False
            )
            self._consumer.subscribe([self.topic])

    def _ready(self) -> None:
        self._consumer.poll(timeout=1)
        deadline = time.monotonic() + 30
        while not self._consumer.assignment() and time.monotonic() < deadline:
            self._consumer.poll(timeout=0.1)
        for tp in self._consumer.assignment():
            self._consumer.position(tp, timeout=30)

    def _send(self, value: bytes) -> None:
        self._producer.send(self.topic, value).add_done_callback(self._acknowledged)

    def _acknowledged(self, future: Any) -> None:
        if future.exception() is not None:
            self.failed += 1

    def _flush(self) -> None:
        self._producer.flush()

    def _poll(self) -> list[bytes]:
        records = self._consumer.poll(timeout=0.2)
        if records and self._group is not None:
            self._consumer.commit()
        return [record.value or b"" for record in records]

    def _close(self) -> None:
        self._producer.close()
        self._consumer.close()


class KafkaClient(Client):
    """A client of librdkafka."""

    topic = OF_KAFKA_CLIENT

    def __init__(self, bootstrap: str, rate: float) -> None:
        from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

        super().__init__(rate)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True})
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(self.topic, 0, OFFSET_END)])

    def _ready(self) -> None:
        """Send records until one is received: from then on, the consumer receives all records. This also creates the
        topic of committed offsets before an attacker of groups can create it."""
        self._consumer.committed(self._consumer.assignment(), 30)
        for _ in range(300):
            self._send(b"ready")
            if self._consumer.consume(100, 0.1):
                return
        raise SystemExit("a consumer of librdkafka has received nothing for 30 s")

    def _send(self, value: bytes) -> None:
        self._producer.produce(self.topic, value, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failed += 1

    def _flush(self) -> None:
        self._producer.flush(30)

    def _poll(self) -> list[bytes]:
        return [each.value() or b"" for each in self._consumer.consume(1, 0.2) if each.error() is None]

    def _close(self) -> None:
        self._consumer.close()


def p99(latencies_ms: list[float]) -> float:
    return sorted(latencies_ms)[int(len(latencies_ms) * 0.99)] if latencies_ms else float("inf")


# -- the run ----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """Results for one attacker, over all its slices. Times in ms, CPU in seconds."""

    quiet: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    seconds = quiet_cpu = node_cpu = attacker_cpu = rss_mib = broker_rss_mib = 0.0
    alive: bool = True

    def figures(self, name: str, floor_ms: float) -> dict[str, Any]:
        quiet, beside = p99(self.quiet), p99(self.beside)
        within_ratio = beside <= RATIO_MAX * quiet
        fine = (
            (within_ratio or beside <= floor_ms)
            and self.alive
            and max(self.rss_mib, self.broker_rss_mib) <= RSS_MIB_MAX
        )
        return {
            "what": name,
            "quiet_p99_ms": round(quiet, 2),
            "p50_ms": round(statistics.median(self.beside), 2) if self.beside else None,
            "p99_ms": round(beside, 2),
            "max_ms": round(max(self.beside, default=0.0), 2),
            "ratio": round(beside / quiet, 2),
            "records": len(self.beside),
            "rss_mib": round(self.rss_mib, 1),
            "broker_rss_mib": round(self.broker_rss_mib, 1),
            "quiet_cpu": round(self.quiet_cpu / self.seconds, 2),
            "cpu": round(self.node_cpu / self.seconds, 2),
            "attacker_cpu": round(self.attacker_cpu / self.seconds, 2),
            "alive": self.alive,
            "within_ratio": within_ratio,
            "fine": fine,
        }


@dataclass(frozen=True)
class Target:
    """The attacked node, the processes of its kind, the brokers, and the well-behaved client."""

    address: str
    pids: list[int]
    brokers: list[int]
    client: Client


def one_slice(name: str, target: Target, seconds: float, outcome: Outcome) -> None:
    """Run a quiet slice, then one beside the attacker, into ``outcome``."""
    time.sleep(SETTLE_S)
    pids, client, address = target.pids, target.client, target.address
    before = cpu_seconds(pids)
    outcome.quiet += client.measure(seconds)
    outcome.quiet_cpu += cpu_seconds(pids) - before
    outcome.seconds += seconds
    lasts_s = seconds + CONNECT_S + 0.2
    command = [sys.executable, __file__, "--attack", name, "--at", address, "--seconds", str(lasts_s)]
    attacker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            with contextlib.suppress(OSError, RuntimeError):
                outcome.rss_mib = max(outcome.rss_mib, *map(rss_mib, pids))
                outcome.broker_rss_mib = max(outcome.broker_rss_mib, *map(rss_mib, target.brokers))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert attacker.stdout is not None
        if READY not in attacker.stdout.readline():
            raise SystemExit(f"the attacker {name!r} ended before it began (exit {attacker.wait()})")
        time.sleep(CONNECT_S)
        before, attackers = cpu_seconds(pids), cpu_seconds([attacker.pid])
        outcome.beside += client.measure(seconds)
        outcome.node_cpu += cpu_seconds(pids) - before
        with contextlib.suppress(OSError):
            outcome.attacker_cpu += cpu_seconds([attacker.pid]) - attackers
    finally:
        try:
            attacker.wait(10)
        except subprocess.TimeoutExpired:
            attacker.kill()
            attacker.wait()
        over.set()
        watcher.join()


def fill(bootstrap: str) -> None:
    """Write FILLED_BYTES of records that cannot be compressed."""
    from headrace import Producer

    value = random.Random(17).randbytes(256 * 1024)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(FILLED_BYTES // len(value)):
            producer.send(FILLED, value)


def measured(names: list[str], seconds: float, rate: float, floor_ms: float, size: int) -> bool:
    """Run all attackers beside ``size`` brokers and controllers; returns whether every bar is met."""
    from headrace import Admin, LocalCluster, NewTopic

    kafka = bool(OF_KAFKA.keys() & set(names))
    with LocalCluster(brokers=size, controllers=size, coordinators=1, kafka=kafka) as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics(
                [
                    NewTopic(name, partitions=1, replication_factor=size)
                    for name in (TOPIC, BOMBED, OF_GROUP, OF_KAFKA_CLIENT, FILLED)
                ]
            )
            (topic,) = admin.describe_topics([TOPIC])
            controller = admin.describe_quorum().leader_id
        nodes = cluster.ps()
        leader = topic.partitions[0].leader
        everybody = {node["pid"] for node in nodes}
        brokers, coordinators, controllers = (
            [node["pid"] for node in nodes if node["role"] == role] for role in ("broker", "coordinator", "controller")
        )
        addresses = {(node["role"], node["id"]): node["address"] for node in nodes}
        doors = {node["id"]: node["kafka"] for node in nodes if node["role"] == "broker"}
        outcomes = {name: Outcome() for name in names}
        plain: Client = SdkClient(cluster.bootstrap_servers, rate)
        clients = [plain]
        plain.start()
        member = plain
        if OF_COORDINATORS.keys() & outcomes.keys():
            member = SdkClient(cluster.bootstrap_servers, rate, group="well-behaved")
            clients.append(member)
            member.start()
        kafkas = plain
        if kafka:
            fill(cluster.bootstrap_servers)
            kafkas = KafkaClient(cluster.kafka_bootstrap_servers, rate)
            clients.append(kafkas)
            kafkas.start()
        of_broker = Target(addresses["broker", leader], brokers, brokers, plain)
        of_coordinator = Target(addresses["coordinator", 1], coordinators, brokers, member)
        of_controller = Target(addresses["controller", controller], controllers, brokers, plain)
        of_kafka = Target(doors.get(leader) or "", brokers, brokers, kafkas)
        targets = (
            dict.fromkeys(OF_BROKERS, of_broker)
            | dict.fromkeys(OF_COORDINATORS, of_coordinator)
            | dict.fromkeys(OF_CONTROLLERS, of_controller)
            | dict.fromkeys(OF_KAFKA, of_kafka)
        )
        try:
            for client in clients:
                client.measure(3)  # warm up
            quiet = plain.measure(max(seconds / ROUNDS, 1))
            emit(what="quiet", p99_ms=round(p99(quiet), 2), records=len(quiet), rss_mib=max(map(rss_mib, brokers)))
            for _ in range(ROUNDS):
                for name, outcome in outcomes.items():
                    one_slice(name, targets[name], seconds / ROUNDS, outcome)
                    outcome.alive &= {node["pid"] for node in cluster.ps()} == everybody
            figures = [outcome.figures(name, floor_ms) for name, outcome in outcomes.items()]
            for each in figures:
                emit(**each)
            after = plain.measure(max(seconds / 2, 3))
            rss = round(max(map(rss_mib, everybody)), 1)
            emit(what="afterwards", p99_ms=round(p99(after), 2), records=len(after), rss_mib=rss)
        finally:
            for client in clients:
                client.stop()
        sent, received, failed = (sum(getattr(client, what) for client in clients) for what in COUNTS)
        lost = sent - failed - received
        fine = all(each["fine"] for each in figures) and lost <= 0 and not failed
        emit(what="records", sent=sent, received=received, failed=failed, lost=lost, fine=fine)
    print(table(figures, lost, fine))
    return fine


def table(figures: list[dict[str, Any]], lost: int, fine: bool) -> str:
    columns = ["what", "quiet_p99_ms", "p99_ms", "ratio", "max_ms", "rss_mib", "broker_rss_mib", "cpu", "attacker_cpu"]
    rows = [[*columns, f"ratio <= {RATIO_MAX:g}", "verdict"]]
    rows += [
        [*(str(each[column]) for column in columns), *(_passed(each[bar]) for bar in ("within_ratio", "fine"))]
        for each in figures
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    peak = max((max(each["rss_mib"], each["broker_rss_mib"]) for each in figures), default=0.0)
    within = sum(each["within_ratio"] for each in figures)
    lines.append(f"p99 at most {RATIO_MAX:g} times the quiet one: {within} of {len(figures)} attackers")
    lines.append(f"peak RSS {peak:.0f} MiB of {RSS_MIB_MAX:.0f}, {lost} records lost: {_passed(fine)}")
    return "\n".join(lines)


def _passed(fine: bool) -> str:
    return "ok" if fine else "MISSED"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--only", default="")
    parser.add_argument("--floor-ms", type=float, default=FLOOR_MS, help="a p99 below this value always passes")
    parser.add_argument("--smoke", action="store_true", help="slices of two seconds")
    parser.add_argument("--small", action="store_true", help="run one broker and one controller")
    parser.add_argument("--attack", choices=ATTACKS, help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.attack:
        host, _, port = chosen.at.rpartition(":")
        ATTACKS[chosen.attack](Pace(chosen.seconds), (host, int(port)))
        return 0
    names = [name for name in ATTACKS if not chosen.only or name in chosen.only.split(",")]
    seconds, size = 2 if chosen.smoke else chosen.seconds, 1 if chosen.small else 3
    return 0 if measured(names, seconds, chosen.rate, chosen.floor_ms, size) else 1


if __name__ == "__main__":
    sys.exit(main())
