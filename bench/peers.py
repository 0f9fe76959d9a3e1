"""`make bench-peers`: Headrace beside Apache Kafka and Kafka's Python clients, in one run on one machine.

    peers.py [--rounds 5] [--policies commit,os] [--warm-gib 12] [--no-spark] [--no-save] [--only REGEX]

One Kafka node and one Headrace broker run side by side, and one is idle while the other works. Kafka has its defaults,
so it acknowledges a record before the record is on disk. Headrace has `log.flush=commit`, so it acknowledges a record
after the record is on disk. Each round runs every workload with Kafka and then with Headrace, so that a slow minute
affects both. The medians of the rounds are compared. 6 partitions, 100-byte random values, acks=1, RF 1. Kafka runs
under each setting of kafka_settings.py, with a warm client; its best median is compared with ours.

Needs Java 17 with its compiler (SyncProducers.java), Maven for the jars, and about 16 GiB of memory.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import ours
import report
import spark_side
from kafka_node import KafkaNode
from kafka_settings import SMOKE_WARM_UP_S, WARM_UP_S, Setting, turns
from measure import ROOT, WORK, Samples, emit, machine, peak_rss_mib, rss_mib, save, table, warm_memory
from run import codec


@dataclass(frozen=True, slots=True)
class Sizes:
    """Records of each Kafka workload. Consumers read producer-perf's records, and some further records for the
    warm-up."""

    perf: int = 5_000_000
    confluent: int = 2_000_000
    aiokafka_produce: int = 300_000
    aiokafka_consume: int = 2_000_000


@contextmanager
def kafka_topic(kafka: KafkaNode, name: str) -> Iterator[str]:
    kafka.create_topic(name)
    try:
        yield name
    finally:
        kafka.delete_topic(name)


def attempt(samples: Samples, name: str, work: Callable[[], None]) -> None:
    """Run a workload. If the workload fails, record the failure and continue."""
    try:
        work()
    except (RuntimeError, OSError, KeyError, ValueError) as failure:
        samples.fail(name, str(failure))


class Round:
    """Run one round of every workload, alternating between Kafka and Headrace."""

    def __init__(self, number: int, samples: Samples, kafka: KafkaNode, headrace: ours.Headrace, sizes: Sizes) -> None:
        self.number, self.samples, self.kafka, self.headrace, self.sizes = number, samples, kafka, headrace, sizes

    def kafka_tools(self) -> None:
        """Fill a topic under each setting, and read its log."""
        for setting in turns(self.number):
            attempt(self.samples, f"kafka.tools@{setting.name}", partial(self._kafka_tools, setting))

    def _kafka_tools(self, setting: Setting) -> None:
        records = self.sizes.perf
        with kafka_topic(self.kafka, f"perf-{self.number}-{setting.name}") as topic:
            rate = self.kafka.producer_perf(topic, records, setting=setting)
            self.samples.add(f"kafka.producer-perf@{setting.name}", rate, "rec/s")
            found = self.kafka.consumer_perf(topic, records)
            self.samples.add(f"kafka.consumer-perf@{setting.name}", found["fetch"], "rec/s")
            self.samples.add(f"kafka.consumer-perf.with-join@{setting.name}", found["whole"], "rec/s")
            self._python("confluent", "consume", topic, self.sizes.confluent, setting)
            self._python("aiokafka", "consume", topic, self.sizes.aiokafka_consume, setting)

    def kafka_python_producers(self) -> None:
        for client, records in (("confluent", self.sizes.confluent), ("aiokafka", self.sizes.aiokafka_produce)):
            for setting in turns(self.number):
                work = partial(self._python_producer, client, records, setting)
                attempt(self.samples, f"{client}.produce@{setting.name}", work)

    def _python_producer(self, client: str, records: int, setting: Setting) -> None:
        with kafka_topic(self.kafka, f"{client}-{self.number}-{setting.name}") as topic:
            self._python(client, "produce", topic, records, setting)

    def _python(self, client: str, workload: str, topic: str, records: int, setting: Setting) -> None:
        found = self.kafka.python_client(client, workload, topic, records, setting=setting)
        self.samples.add(f"{client}.{workload}@{setting.name}", found["records_per_s"], "rec/s")

    def kafka_connections(self) -> None:
        with kafka_topic(self.kafka, f"sync-{self.number}") as topic:
            found = self.kafka.sync_producers(topic, 200, self.headrace.sizes.seconds)
            self.samples.add("kafka.sync-producers", found["requests_per_s"], "req/s")
            self.samples.add("kafka.sync-producers.p99", found["latency_ms"]["p99"], "ms")

    def kafka_together(self) -> None:
        """Write under each setting, while another process reads."""
        for setting in turns(self.number):
            attempt(self.samples, f"kafka.together@{setting.name}", partial(self._kafka_together, setting))

    def _kafka_together(self, setting: Setting) -> None:
        with kafka_topic(self.kafka, f"together-{self.number}-{setting.name}") as topic:
            rate = self.kafka.producer_perf_beside_a_reader(topic, self.sizes.perf, setting=setting)
            self.samples.add(f"kafka.together@{setting.name}", rate, "rec/s")

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
            ("kafka.together", self.kafka_together),
            *((f"headrace.together.{p}", partial(ours_.together, samples, p)) for p in policies[:1]),
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
    # ``starts`` measures idle memory: in this case the JVM does not touch its heap.
    if kafka.pid is not None and moment == "loaded":
        samples.add(f"kafka.rss.{moment}", peak_rss_mib(kafka.pid), "MiB")
    headrace.memory(samples, moment)


def starts(samples: Samples, rounds: int) -> None:
    """Measure the time from an empty directory to the first acknowledged record, including formatting. Each system runs
    alone. Kafka's heap is not touched."""
    import confluent_kafka  # noqa: F401  not to be counted as Kafka's start

    for _ in range(rounds):
        with KafkaNode(WORK / "kafka-start", pre_touch=False) as kafka:
            samples.add("kafka.start", kafka.start_s, "s")
            if kafka.pid is not None:
                samples.add("kafka.rss.idle", rss_mib(kafka.pid), "MiB")
        with ours.Headrace(WORK / "headrace-start", ours.FULL) as headrace:
            samples.add("headrace.start", headrace.start_s, "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policies", default="commit,os")
    parser.add_argument("--warm-gib", type=float, default=12.0)
    parser.add_argument("--no-spark", action="store_true")
    parser.add_argument("--no-save", action="store_true", help="do not write bench/results and docs/performance")
    parser.add_argument("--only", default="", help="steps whose name matches this regular expression")
    parser.add_argument("--smoke", action="store_true", help="small and quick runs, whose figures have no meaning")
    asked = parser.parse_args()
    sizes = Sizes(perf=200_000, confluent=50_000, aiokafka_produce=20_000, aiokafka_consume=50_000)
    sizes = sizes if asked.smoke else Sizes()
    rounds = 1 if asked.smoke else asked.rounds
    policies = asked.policies.split(",")

    def wanted(name: str) -> bool:
        return re.search(asked.only, name) is not None

    samples = Samples()
    emit(machine=machine())
    if not asked.smoke:
        emit(warmed_gib=asked.warm_gib, seconds=round(warm_memory(asked.warm_gib), 1))
    if wanted("start"):
        attempt(samples, "start", lambda: starts(samples, rounds))
    warm_up_s = SMOKE_WARM_UP_S if asked.smoke else WARM_UP_S
    with (
        KafkaNode(WORK / "kafka", warm_up_s=warm_up_s) as kafka,
        ours.Headrace(WORK / "headrace", ours.FULL) as headrace,
    ):
        memory(samples, kafka, headrace, "idle")
        for number in range(rounds):
            emit(round=number + 1, of=rounds)
            Round(number, samples, kafka, headrace, sizes).run(policies, wanted)
        memory(samples, kafka, headrace, "loaded")
    if not asked.no_spark and wanted("spark"):
        attempt(samples, "spark", lambda: spark_side.measure(samples, rounds))

    print(table(samples))
    print(report.bars_table(samples))
    print(report.settings_table(samples))
    for failure in samples.failures:
        print(f"failed: {failure}")
    if not asked.no_save and not asked.smoke:
        path = save(samples, what="peers", extra={"rounds": rounds, "policies": policies})
        report.rewrite(path)
        print(f"saved: {path.relative_to(ROOT)}, docs/performance")
    return 1 if samples.failures else 0


if __name__ == "__main__":
    sys.exit(main())
