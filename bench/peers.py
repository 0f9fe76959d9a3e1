"""`make bench-peers`: Headrace beside Apache Kafka and Kafka's Python clients, in one run on one machine.

    peers.py [--rounds 5] [--policies commit,os] [--warm-gib 12] [--no-spark] [--no-save] [--only REGEX]

One Kafka node (its defaults: acknowledged before it is on the disk) and one Headrace broker (`log.flush=commit`: after)
stand side by side, idle while the other works. Each round runs theirs, then ours, workload by workload, so that a slow
minute of the machine hits both; medians of the rounds are compared. 6 partitions, 100-byte random values, acks=1, RF 1.

Needs Java 17 with its compiler (SyncProducers.java), Maven for the jars, and about 16 GiB of memory.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import ours
import report
import spark_side
from kafka_node import KafkaNode
from measure import ROOT, WORK, Samples, emit, machine, peak_rss_mib, rss_mib, save, table, warm_memory
from run import codec

PERF_RECORDS = 5_000_000
CONFLUENT_RECORDS = 2_000_000
AIOKAFKA_PRODUCE_RECORDS = 300_000
AIOKAFKA_CONSUME_RECORDS = 2_000_000


@contextmanager
def kafka_topic(kafka: KafkaNode, name: str) -> Iterator[str]:
    kafka.create_topic(name)
    try:
        yield name
    finally:
        kafka.delete_topic(name)


def attempt(samples: Samples, name: str, work: Callable[[], None]) -> None:
    """A workload that fails is noted, and the run goes on."""
    try:
        work()
    except (RuntimeError, OSError, KeyError, ValueError) as failure:
        samples.fail(name, str(failure))


class Round:
    """One round: theirs and ours, alternating."""

    def __init__(self, number: int, samples: Samples, kafka: KafkaNode, headrace: ours.Headrace) -> None:
        self.number, self.samples, self.kafka, self.headrace = number, samples, kafka, headrace

    def kafka_tools(self) -> None:
        with kafka_topic(self.kafka, f"perf-{self.number}") as topic:
            rate = self.kafka.producer_perf(topic, PERF_RECORDS)
            self.samples.add("kafka.producer-perf", rate, "rec/s")
            found = self.kafka.consumer_perf(topic, PERF_RECORDS)
            self.samples.add("kafka.consumer-perf", found["fetch"], "rec/s")
            self.samples.add("kafka.consumer-perf.with-join", found["whole"], "rec/s")
            self._python("confluent", "consume", topic, CONFLUENT_RECORDS)
            self._python("aiokafka", "consume", topic, AIOKAFKA_CONSUME_RECORDS)

    def kafka_python_producers(self) -> None:
        for client, records in (("confluent", CONFLUENT_RECORDS), ("aiokafka", AIOKAFKA_PRODUCE_RECORDS)):
            with kafka_topic(self.kafka, f"{client}-{self.number}") as topic:
                self._python(client, "produce", topic, records)

    def _python(self, client: str, workload: str, topic: str, records: int) -> None:
        found = self.kafka.python_client(client, workload, topic, records)
        self.samples.add(f"{client}.{workload}", found["records_per_s"], "rec/s")

    def kafka_connections(self) -> None:
        with kafka_topic(self.kafka, f"sync-{self.number}") as topic:
            found = self.kafka.sync_producers(topic, 200, self.headrace.sizes.seconds)
            self.samples.add("kafka.sync-producers", found["requests_per_s"], "req/s")
            self.samples.add("kafka.sync-producers.p99", found["latency_ms"]["p99"], "ms")

    def run(self, policies: list[str], wanted: Callable[[str], bool]) -> None:
        ours_, samples, number = self.headrace, self.samples, self.number
        steps: list[tuple[str, Callable[[], None]]] = [
            ("grpc", lambda: ours.grpc_ceiling(samples, ours_.sizes)),
            ("codec", lambda: codec(samples, smoke=False)),
            ("kafka.tools", self.kafka_tools),
            *((f"headrace.throughput.{p}", partial(ours_.throughput, samples, p, number=number)) for p in policies),
            ("kafka.python-producers", self.kafka_python_producers),
            (
                "headrace.throughput.acks-all",
                partial(ours_.throughput, samples, policies[0], acks="all", number=number),
            ),
            ("kafka.connections", self.kafka_connections),
            *((f"headrace.connections.{p}", partial(ours_.connections, samples, p)) for p in policies),
            *((f"headrace.latency.{p}", partial(ours_.latency, samples, p)) for p in policies),
        ]
        for name, step in steps:
            if wanted(name):
                started = time.monotonic()
                attempt(self.samples, name, step)
                emit(step=name, seconds=round(time.monotonic() - started, 1))


def memory(samples: Samples, kafka: KafkaNode, headrace: ours.Headrace, moment: str) -> None:
    if kafka.pid is not None:
        samples.add(f"kafka.rss.{moment}", rss_mib(kafka.pid) if moment == "idle" else peak_rss_mib(kafka.pid), "MiB")
    headrace.memory(samples, moment)


def starts(samples: Samples, rounds: int) -> None:
    """From nothing to the first acknowledged record, formatting included, each alone."""
    import confluent_kafka  # noqa: F401  not to be counted as Kafka's start

    for _ in range(rounds):
        with KafkaNode(WORK / "kafka-start") as kafka:
            samples.add("kafka.start", kafka.start_s, "s")
        with ours.Headrace(WORK / "headrace-start", ours.FULL) as headrace:
            samples.add("headrace.start", headrace.start_s, "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policies", default="commit,os")
    parser.add_argument("--warm-gib", type=float, default=12.0)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="not into bench/results and docs/performance.md")
    parser.add_argument("--only", default="", help="steps whose name matches this regular expression")
    asked = parser.parse_args()
    policies = asked.policies.split(",")

    def wanted(name: str) -> bool:
        return re.search(asked.only, name) is not None

    samples = Samples()
    emit(machine=machine())
    emit(warmed_gib=asked.warm_gib, seconds=round(warm_memory(asked.warm_gib), 1))
    if wanted("start"):
        attempt(samples, "start", lambda: starts(samples, asked.rounds))
    with KafkaNode(WORK / "kafka") as kafka, ours.Headrace(WORK / "headrace", ours.FULL) as headrace:
        memory(samples, kafka, headrace, "idle")
        for number in range(asked.rounds):
            emit(round=number + 1, of=asked.rounds)
            Round(number, samples, kafka, headrace).run(policies, wanted)
        memory(samples, kafka, headrace, "loaded")
    if not asked.no_spark and wanted("spark"):
        attempt(samples, "spark", lambda: spark_side.measure(samples, asked.rounds))

    print(table(samples))
    print(report.bars_table(samples))
    for failure in samples.failures:
        print(f"failed: {failure}")
    if not asked.no_save:
        path = save(samples, what="peers", extra={"rounds": asked.rounds, "policies": policies})
        report.rewrite(path)
        print(f"saved: {path.relative_to(ROOT)}, docs/performance.md")
    return 1 if samples.failures else 0


if __name__ == "__main__":
    sys.exit(main())
