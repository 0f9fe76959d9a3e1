"""Kafka's own Java clients against Headrace beside Apache Kafka, in one run on one machine.

    java_clients.py [--rounds 3] [--records 2000000] [--seconds 10] [--replicas 1] [--smoke] [--save] [--warm-gib 6]

The same Java clients, in one warm JVM, work against a Kafka node and against Headrace's brokers in turn: producer-perf
and consumer-perf with each setting of kafka_node.py, then 200 producers and a single one, each with one record in
flight. Kafka has its defaults, so it acknowledges a record before the record is on disk. Headrace acknowledges a record
after the record is on disk. With ``--replicas 3`` both sides have three nodes, and producers have acks=all. A single
producer of Headrace's SDK shows the latency of gRPC beside it.
"""

from __future__ import annotations

import random
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from kafka_node import SETTINGS, SMOKE_WARM_UP_S, WARM_UP_S, KafkaNode, turns
from measure import WORK, Samples, begin, cpu_seconds, emit, flags, run_steps
from report import Bar, finish

from headrace import Admin, LocalCluster, NewTopic, Producer

PRODUCERS = 200
P50_ABOVE_MS_MAX = 1.0
RECORD_S = 30  #: Seconds for one record.


class Side:
    """Kafka or Headrace: the address to which Kafka's clients connect, and the workloads against that address."""

    def __init__(self, name: str, bootstrap: str, tools: KafkaNode, acks: str, pids: Callable[[], list[int]]) -> None:
        self.name, self.bootstrap, self.tools, self.acks, self.pids = name, bootstrap, tools, acks, pids

    def throughput(self, samples: Samples, number: int, records: int) -> None:
        """Fill a topic under each setting, and read it."""
        for setting in turns(number):
            with self._topic() as topic:
                rate = self.tools.producer_perf(topic, records, setting=setting, acks=self.acks)
                samples.add(f"{self.name}.producer-perf@{setting.name}", rate, "rec/s")
                before = cpu_seconds(self.pids())
                found = self.tools.consumer_perf(topic, records)
                used_s = cpu_seconds(self.pids()) - before
                samples.add(f"{self.name}.consumer-perf@{setting.name}", found["fetch"], "rec/s")
                samples.add(f"{self.name}.read-cpu@{setting.name}", used_s / records * 1e6, "us")

    def single_records(self, samples: Samples, seconds: float) -> None:
        """200 producers with one record in flight each, then one."""
        for producers in (PRODUCERS, 1):
            with self._topic() as topic:
                found = self.tools.sync_producers(topic, producers, seconds, acks=self.acks)
                samples.add(f"{self.name}.producers-{producers}", found["requests_per_s"], "req/s")
                samples.add(f"{self.name}.producers-{producers}.p50", found["latency_ms"]["p50"], "ms")

    def one_flushed(self, samples: Samples, seconds: float) -> None:
        """Kafka, which forces each record of a single producer to the disk."""
        with self._topic({"flush.messages": "1"}) as topic:
            found = self.tools.sync_producers(topic, 1, seconds, acks=self.acks)
            samples.add(f"{self.name}-flushed.producers-1", found["requests_per_s"], "req/s")

    @contextmanager
    def _topic(self, config: Mapping[str, str] | None = None) -> Iterator[str]:
        """A topic of this side, to which the tools connect while the topic exists."""
        before, self.tools.bootstrap = self.tools.bootstrap, self.bootstrap
        try:
            with self.tools.topic("headrace", config=config) as name:
                yield name
        finally:
            self.tools.bootstrap = before


def sdk_single_records(samples: Samples, bootstrap: str, acks: str, seconds: float) -> None:
    """One producer of Headrace's SDK with one record of 100 bytes in flight."""
    topic, value, times_ms = f"java-sdk-{time.monotonic_ns()}", random.Random(0).randbytes(100), []
    with Admin(bootstrap_servers=bootstrap) as admin, Producer(bootstrap_servers=bootstrap, acks=acks) as producer:
        admin.create_topics([NewTopic(topic, partitions=1)])
        producer.send(topic, value).result(RECORD_S)
        end = time.perf_counter() + seconds
        while (begun := time.perf_counter()) < end:
            producer.send(topic, value).result(RECORD_S)
            times_ms.append((time.perf_counter() - begun) * 1_000)
        admin.delete_topics([topic])
    samples.add("sdk.producers-1.p50", statistics.median(times_ms), "ms")


def above_the_sdk(samples: Samples) -> float | None:
    """How much longer than through the SDK the acknowledgement of a single record takes at the median, in ms."""
    ours, sdk = samples.median("headrace.producers-1.p50"), samples.median("sdk.producers-1.p50")
    return None if ours is None or sdk is None else ours - sdk


def ratio(name: str, peer: str = "kafka") -> Callable[[Samples], float | None]:
    """The figure of Headrace over that of Kafka with the same setting."""

    def found(samples: Samples) -> float | None:
        ours, theirs = samples.median(f"headrace.{name}"), samples.median(f"{peer}.{name}")
        return ours / theirs if ours is not None and theirs else None

    return found


def bars(replicas: int) -> tuple[Bar, ...]:
    """The bars of Kafka's clients, with the same setting on both sides."""
    many, produce = f"producers-{PRODUCERS}", 1.0 if replicas == 1 else 1.2
    each = [
        Bar(
            f"{what}, {setting.name}", "Kafka", limit, "x", ratio(f"{name}@{setting.name}"), at_least=name != "read-cpu"
        )
        for what, name, limit in (
            ("produce", "producer-perf", produce),
            ("read", "consumer-perf", 1.0),
            ("nodes' processor time of a record read", "read-cpu", 1.0),
        )
        for setting in SETTINGS
    ]
    return (
        *each,
        Bar(f"{PRODUCERS} unbatched producers", "Kafka", 1.2, "x", ratio(many)),
        Bar("one unbatched producer", "Kafka", 0.5, "x", ratio("producers-1")),
        Bar("one unbatched producer", "Kafka, flushed", 1.2, "x", ratio("producers-1", "kafka-flushed")),
        Bar("p50 of one record", "the SDK", P50_ABOVE_MS_MAX, "ms above", above_the_sdk, at_least=False),
    )


def main() -> int:
    parser = flags(__doc__)
    parser.add_argument("--records", type=int, default=2_000_000, help="records of producer-perf and consumer-perf")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of the unbatched producers")
    parser.add_argument("--replicas", type=int, choices=(1, 3), default=1)
    asked = parser.parse_args()
    records, seconds = (100_000, 1.0) if asked.smoke else (asked.records, asked.seconds)
    samples = begin(asked)
    directory = WORK / "headrace-java"
    shutil.rmtree(directory, ignore_errors=True)
    acks = "1" if asked.replicas == 1 else "all"
    warm_up_s = SMOKE_WARM_UP_S if asked.smoke else WARM_UP_S
    with (
        LocalCluster(brokers=asked.replicas, controllers=1, coordinators=1, kafka=True, data=directory) as cluster,
        KafkaNode(WORK / "kafka-java", nodes=asked.replicas, warm_up_s=warm_up_s) as kafka,
    ):
        kafka.warm()
        theirs = Side("kafka", kafka.bootstrap, kafka, acks, lambda: kafka.pids)
        ours = Side("headrace", cluster.kafka_bootstrap_servers, kafka, acks, lambda: [n["pid"] for n in cluster.ps()])
        for number in range(asked.rounds):
            emit(round=number + 1, of=asked.rounds)
            steps = [(f"{each.name}.throughput", partial(each.throughput, samples, number, records))
                     for each in (theirs, ours)]  # fmt: skip
            steps += [(f"{each.name}.single-records", partial(each.single_records, samples, seconds))
                      for each in (theirs, ours)]  # fmt: skip
            flushed = partial(theirs.one_flushed, samples, seconds)
            single = partial(sdk_single_records, samples, cluster.bootstrap_servers, acks, seconds)
            steps += [("kafka-flushed.single-records", flushed), ("sdk.single-records", single)]
            run_steps(samples, steps, asked.only)
    what = f"java-clients-{asked.replicas}"
    return finish(samples, asked, what=what, bars=bars(asked.replicas), extra={"records": records})


if __name__ == "__main__":
    sys.exit(main())
