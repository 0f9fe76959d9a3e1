"""`make bench-peers`: Headrace beside Apache Kafka and Kafka's Python clients, in one run on one machine.

    peers.py [--rounds 5] [--policies commit,os] [--warm-gib 12] [--no-spark] [--save] [--only REGEX] [--smoke]

One Kafka node and one Headrace broker run side by side, and one is idle while the other works. Kafka has its defaults,
so it acknowledges a record before the record is on disk. Headrace has `log.flush=commit`, so it acknowledges a record
after the record is on disk. Each round runs every workload with Kafka and then with Headrace, so that a slow minute
affects both. The medians of the rounds are compared. 6 partitions, 100-byte random values, acks=1, RF 1. Kafka runs
under each setting of kafka_node.py, with a warm client; its best median is compared with ours.

Needs Java 17 with its compiler (SyncProducers.java), Maven for the jars, and about 16 GiB of memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import ours
import spark
from kafka_node import SMOKE_WARM_UP_S, WARM_UP_S, KafkaNode, Setting, turns
from measure import WORK, Samples, Step, begin, emit, flags, peak_rss_mib, rss_mib, run_steps
from report import OF_ONE_REPLICA, finish
from run import codec


@dataclass(frozen=True, slots=True)
class Sizes:
    """Records of each Kafka workload. Consumers read producer-perf's records, and some further records for the
    warm-up."""

    perf: int = 5_000_000
    confluent: int = 2_000_000
    aiokafka_produce: int = 300_000
    aiokafka_consume: int = 2_000_000


class Round:
    """Run one round of every workload, alternating between Kafka and Headrace."""

    def __init__(self, number: int, samples: Samples, kafka: KafkaNode, headrace: ours.Headrace, sizes: Sizes) -> None:
        self.number, self.samples, self.kafka, self.headrace, self.sizes = number, samples, kafka, headrace, sizes

    def kafka_tools(self) -> None:
        """Fill a topic under each setting, and read its log."""
        names = ((f"kafka.tools@{each.name}", partial(self._kafka_tools, each)) for each in turns(self.number))
        run_steps(self.samples, names)

    def _kafka_tools(self, setting: Setting) -> None:
        records = self.sizes.perf
        with self.kafka.topic("perf") as topic:
            rate = self.kafka.producer_perf(topic, records, setting=setting)
            self.samples.add(f"kafka.producer-perf@{setting.name}", rate, "rec/s")
            found = self.kafka.consumer_perf(topic, records)
            self.samples.add(f"kafka.consumer-perf@{setting.name}", found["fetch"], "rec/s")
            self.samples.add(f"kafka.consumer-perf.with-join@{setting.name}", found["whole"], "rec/s")
            self._python("confluent", "consume", topic, self.sizes.confluent, setting)
            self._python("aiokafka", "consume", topic, self.sizes.aiokafka_consume, setting)

    def kafka_python_producers(self) -> None:
        for client, records in (("confluent", self.sizes.confluent), ("aiokafka", self.sizes.aiokafka_produce)):
            producing = partial(self._python_producer, client, records)
            names = ((f"{client}.produce@{each.name}", partial(producing, each)) for each in turns(self.number))
            run_steps(self.samples, names)

    def _python_producer(self, client: str, records: int, setting: Setting) -> None:
        with self.kafka.topic(client) as topic:
            self._python(client, "produce", topic, records, setting)

    def _python(self, client: str, workload: str, topic: str, records: int, setting: Setting) -> None:
        found = self.kafka.python_client(client, workload, topic, records, setting=setting)
        self.samples.add(f"{client}.{workload}@{setting.name}", found["records_per_s"], "rec/s")

    def kafka_connections(self) -> None:
        with self.kafka.topic("sync") as topic:
            found = self.kafka.sync_producers(topic, 200, self.headrace.sizes.seconds)
            self.samples.add("kafka.sync-producers", found["requests_per_s"], "req/s")
            self.samples.add("kafka.sync-producers.p99", found["latency_ms"]["p99"], "ms")

    def kafka_together(self) -> None:
        """Write under each setting, while another process reads."""
        names = ((f"kafka.together@{each.name}", partial(self._kafka_together, each)) for each in turns(self.number))
        run_steps(self.samples, names)

    def _kafka_together(self, setting: Setting) -> None:
        with self.kafka.topic("together") as topic:
            rate = self.kafka.producer_perf_beside_a_reader(topic, self.sizes.perf, setting=setting)
            self.samples.add(f"kafka.together@{setting.name}", rate, "rec/s")

    def steps(self, policies: list[str], *, smoke: bool) -> Iterator[Step]:
        ours_, samples, number = self.headrace, self.samples, self.number
        yield "grpc", lambda: ours.grpc_ceiling(samples, ours_.sizes)
        yield "codec", lambda: codec(samples, smoke=smoke)
        yield "kafka.tools", self.kafka_tools
        for policy in policies:
            yield f"headrace.throughput.{policy}", partial(ours_.throughput, samples, policy, number=number)
        yield "kafka.python-producers", self.kafka_python_producers
        all_of_them = partial(ours_.throughput, samples, policies[0], acks="all", number=number)
        yield "headrace.throughput.acks-all", all_of_them
        yield "kafka.together", self.kafka_together
        yield f"headrace.together.{policies[0]}", partial(ours_.together, samples, policies[0])
        yield "kafka.connections", self.kafka_connections
        for policy in policies:
            yield f"headrace.connections.{policy}", partial(ours_.connections, samples, policy)
            yield f"headrace.latency.{policy}", partial(ours_.latency, samples, policy)


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
    parser = flags(__doc__, rounds=5, warm_gib=12.0)
    parser.add_argument("--policies", default="commit,os", help="log.flush of our topics")
    parser.add_argument("--no-spark", action="store_true")
    asked = parser.parse_args()
    small = Sizes(perf=200_000, confluent=50_000, aiokafka_produce=20_000, aiokafka_consume=50_000)
    sizes, ours_sizes = (small, ours.SMOKE) if asked.smoke else (Sizes(), ours.FULL)
    policies = asked.policies.split(",")
    samples = begin(asked)
    run_steps(samples, [("start", lambda: starts(samples, asked.rounds))], asked.only)
    with (
        KafkaNode(WORK / "kafka", warm_up_s=SMOKE_WARM_UP_S if asked.smoke else WARM_UP_S) as kafka,
        ours.Headrace(WORK / "headrace", ours_sizes) as headrace,
    ):
        memory(samples, kafka, headrace, "idle")
        for number in range(asked.rounds):
            emit(round=number + 1, of=asked.rounds)
            steps = Round(number, samples, kafka, headrace, sizes).steps(policies, smoke=asked.smoke)
            run_steps(samples, steps, asked.only)
        memory(samples, kafka, headrace, "loaded")
    if not asked.no_spark:
        run_steps(samples, [("spark", lambda: spark.measure(samples, asked.rounds, smoke=asked.smoke))], asked.only)
    return finish(samples, asked, what="peers", bars=OF_ONE_REPLICA, extra={"policies": policies})


if __name__ == "__main__":
    sys.exit(main())
