"""`make bench-replicated`: three replicas, alone or beside Kafka (BENCH=--peers).

    replicated.py [--peers] [--rounds 3] [--only REGEX] [--policies commit] [--smoke] [--warm-gib 12] [--save]

Headrace runs three brokers and three controllers, with replication factor 3, min.insync.replicas 2 and
`log.flush=commit`. With acks=all, Headrace therefore acknowledges a record when every in-sync replica has flushed it to
disk. With --peers three nodes of Apache Kafka run beside them, and one side is idle while the other side works. Kafka
runs at its default (acknowledged from memory), and with `flush.messages=1` (every write forced). Each round runs every
workload with Kafka and then with Headrace. Kafka's throughput is measured under each setting of kafka_node.py, with
a warm client; its best median is compared with ours.

--only selects steps by name (--list names them). --save writes bench/results/*-replicated.json and, from it, the table
in docs/performance/replicas.md. Exit 1 when a workload failed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import chain
import echo
import our_clients
import ours
from kafka_node import SMOKE_WARM_UP_S, WARM_UP_S, KafkaNode, Setting, turns
from measure import (
    WORK,
    Samples,
    Step,
    begin,
    cpu_seconds,
    emit,
    fdatasync_ms,
    flags,
    peak_rss_mib,
    rss_mib,
    run_steps,
)
from report import OF_THREE_REPLICAS, finish

#: Requests per second of the latency cases; 0: one record in flight.
RATES = (0, 1_000, 10_000, 50_000)
#: Record size of the workload *headline* in bytes.
RECORD_BYTES = 100
KAFKA_FLUSHES = {"default": {}, "flushed": {"flush.messages": "1"}}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The number of records of each workload for Headrace and for Kafka (which is slower), and the seconds of timed
    workloads."""

    arrow: int = 10_000_000
    object: int = 6_000_000
    large: int = 600_000
    many_partitions: int = 2_000_000
    kafka: int = 2_500_000
    kafka_large: int = 250_000
    kafka_many_partitions: int = 700_000
    #: With 700,000 records to 1,000 partitions and a flush for each write, some records of Kafka's producer expire
    #: after two minutes.
    kafka_many_flushed: int = 150_000
    seconds: float = 10.0
    connections: int = 200
    headline_s: float = 60.0
    headline_rate: float = 500_000
    partitions: tuple[int, ...] = (100, 1_000)


SMOKE = Sizes(
    arrow=200_000,
    object=60_000,
    large=10_000,
    many_partitions=20_000,
    kafka=50_000,
    kafka_large=5_000,
    kafka_many_partitions=20_000,
    kafka_many_flushed=10_000,
    seconds=2.0,
    connections=20,
    headline_s=3.0,
    headline_rate=50_000,
    partitions=(20,),
)


def rate_name(rate: int) -> str:
    return f"{rate // 1000}k" if rate else "alone"


class Ours:
    """Headrace's side: a cluster of three brokers. A step is one run of one workload."""

    def __init__(self, cluster: ours.Headrace, samples: Samples, sizes: Sizes, policy: str) -> None:
        self.cluster, self.samples, self.sizes, self.policy = cluster, samples, sizes, policy

    def steps(self) -> Iterator[Step]:
        policy = self.policy
        for acks in ("all", "1"):
            yield f"ours.{policy}.arrow.acks-{acks}", partial(self.produce, "arrow", "arrow", self.sizes.arrow, acks)
            yield (
                f"ours.{policy}.object.acks-{acks}",
                partial(self.produce, "object", "object", self.sizes.object, acks),
            )
        yield f"ours.{policy}.large", partial(self.produce, "large", "object", self.sizes.large, "all", large=True)
        for count in self.sizes.partitions:
            records = self.sizes.many_partitions
            work = partial(self.produce, f"partitions-{count}", "object", records, "all", partitions=count)
            yield f"ours.{policy}.partitions.{count}", work
        yield f"ours.{policy}.connections", self.connections
        for rate in RATES:
            yield f"ours.{policy}.latency.{rate_name(rate)}.acks-all", partial(self.latency, rate, "all")
        yield f"ours.{policy}.latency.1k.acks-1", partial(self.latency, 1_000, "1")
        yield f"ours.{policy}.headline", self.headline

    def produce(
        self,
        name: str,
        api: str,
        records: int,
        acks: str,
        *,
        large: bool = False,
        partitions: int = ours.PARTITIONS,
    ) -> None:
        """Produce at full speed; measure also the CPU seconds of our nodes per million records."""
        arguments = ["--api", api, "--records", str(records), "--acks", acks]
        arguments += ["--record-bytes", "1024", "--compression", "lz4"] if large else []
        with self.cluster.topic(self.policy, partitions=partitions) as topic:
            pids = self.cluster.pids()
            before = cpu_seconds(pids)
            found = self.cluster.bench("produce", topic, *arguments, timeout_s=300)
            used = cpu_seconds(pids) - before
        label = f"rf3.{name}.{self.policy}" + ("" if acks == "all" else f".acks-{acks}")
        self.samples.add(f"headrace.{label}", found["records_per_s"], "rec/s")
        self.samples.add(f"headrace.{label}.p99", found["latency_ms"]["p99"], "ms")
        self.samples.add(f"headrace.{label}.cpu", used / (records / 1e6), "s/M")

    def connections(self) -> None:
        self.cluster.connections(self.samples, self.policy, count=self.sizes.connections, acks="all")

    def latency(self, rate: int, acks: str) -> None:
        records = int(rate * self.sizes.seconds) if rate else int(300 * self.sizes.seconds)
        arguments = ["--records", str(records), "--acks", acks, *(["--rate", str(rate)] if rate else [])]
        with self.cluster.topic(self.policy) as topic:
            pids = self.cluster.pids()
            before = cpu_seconds(pids)
            found = self.cluster.bench("latency", topic, *arguments)
            busy_ms = (cpu_seconds(pids) - before) / 3 / records * 1e3
        if acks == "all" and rate <= 1_000:
            chain_alone(self.samples, f"{rate_name(rate)}-busy", rate, self.sizes.seconds / 2, busy_ms)
        for quantile in ("p50", "p99", "p999", "max"):
            label = f"headrace.rf3.latency.{rate_name(rate)}.{quantile}.{self.policy}"
            label += "" if acks == "all" else f".acks-{acks}"
            self.samples.add(label, found["latency_ms"][quantile], "ms")

    def headline(self) -> None:
        with self.cluster.topic(self.policy) as topic:
            pids = self.cluster.pids()
            before = cpu_seconds(pids)
            found = our_clients.headline(
                self.cluster.bootstrap, topic, rate=self.sizes.headline_rate, seconds=self.sizes.headline_s
            )
            used = cpu_seconds(pids) - before
        if not found["verified"]:
            raise RuntimeError(f"the headline was not verified: {found}")
        self.disk_alone()
        self.chain_alone(used, found["client_cpu_s"])
        label = f"headrace.rf3.headline.{self.policy}"
        self.samples.add(label, found["records_per_s"], "rec/s")
        self.samples.add(f"{label}.cpu", used / (found["records"] / 1e6), "s/M")
        self.samples.add(f"{label}.client-cpu", found["client_cpu_s"] / (found["records"] / 1e6), "s/M")
        for what in ("acked", "received", "late"):
            for quantile, value in found[f"{what}_ms"].items():
                self.samples.add(f"{label}.{what}.{quantile}", value, "ms")

    def disk_alone(self) -> None:
        """Three simple loops write and flush the same bytes to three files, at the same rate."""
        found = chain.forced_portions(
            WORK,
            size=int(self.sizes.headline_rate * our_clients.PORTION_S * RECORD_BYTES),
            every_s=our_clients.PORTION_S,
            seconds=self.sizes.headline_s / 3,
        )
        for quantile, value in found.items():
            self.samples.add(f"floor.headline.{quantile}", value, "ms")

    def chain_alone(self, nodes_s: float, clients_s: float) -> None:
        """The same portions through chain.py: without a system, and with the processor time that ours has used."""
        portions = self.sizes.headline_s / our_clients.PORTION_S
        busy = {"busy_ms": nodes_s / 3 / portions * 1e3, "client_ms": clients_s / 2 / portions * 1e3}
        for name, computing in (("headline", {}), ("headline-busy", busy)):
            found = chain.measure(
                WORK,
                size=int(self.sizes.headline_rate * our_clients.PORTION_S * RECORD_BYTES),
                every_s=our_clients.PORTION_S,
                count=int(portions / 3),
                **computing,
            )
            for what, quantiles in found.items():
                for quantile, value in quantiles.items():
                    self.samples.add(f"floor.chain.{name}.{what}.{quantile}", value, "ms")


class Kafkas:
    """Kafka's side: three nodes, topics with its default flush or with one per write."""

    def __init__(self, kafka: KafkaNode, samples: Samples, sizes: Sizes, number: int) -> None:
        self.kafka, self.samples, self.sizes, self.number = kafka, samples, sizes, number

    def steps(self) -> Iterator[Step]:
        for flush in KAFKA_FLUSHES:
            yield f"kafka.{flush}.produce", partial(self.produce, flush, "produce", self.sizes.kafka)
            yield f"kafka.{flush}.large", partial(self.produce, flush, "large", self.sizes.kafka_large, large=True)
            for count in self.sizes.partitions:
                sizes = self.sizes
                records = sizes.kafka_many_flushed if flush == "flushed" else sizes.kafka_many_partitions
                work = partial(self.produce, flush, f"partitions-{count}", records, partitions=count)
                yield f"kafka.{flush}.partitions.{count}", work
            yield f"kafka.{flush}.connections", partial(self.connections, flush)
            for rate in RATES:
                yield f"kafka.{flush}.latency.{rate_name(rate)}", partial(self.latency, flush, rate)
        yield "kafka.default.produce.acks-1", partial(self.produce, "default", "produce", self.sizes.kafka, acks="1")

    def produce(
        self,
        flush: str,
        name: str,
        records: int,
        *,
        acks: str = "all",
        large: bool = False,
        partitions: int = ours.PARTITIONS,
    ) -> None:
        """Measure the workload under each setting of kafka_node.py, each time on a new topic. A failed setting is
        reported; the results of the other settings still count."""
        size: dict[str, Any] = {"record_bytes": 1024, "compression": "lz4"} if large else {}
        label = f"kafka.rf3.{name}.{flush}" + ("" if acks == "all" else f".acks-{acks}")

        def produce_under(setting: Setting) -> None:
            self.kafka.warm()
            with self.kafka.topic(name, partitions=partitions, config=KAFKA_FLUSHES[flush]) as topic:
                before = cpu_seconds(self.kafka.pids)
                rate = self.kafka.producer_perf(topic, records, setting=setting, acks=acks, **size)
                used = cpu_seconds(self.kafka.pids) - before
            self.samples.add(f"{label}@{setting.name}", rate, "rec/s")
            self.samples.add(f"{label}.cpu@{setting.name}", used / (records / 1e6), "s/M")

        run_steps(self.samples, ((f"{label}@{each.name}", partial(produce_under, each)) for each in turns(self.number)))

    def connections(self, flush: str) -> None:
        with self.kafka.topic("sync", config=KAFKA_FLUSHES[flush]) as topic:
            found = self.kafka.sync_producers(topic, self.sizes.connections, self.sizes.seconds, acks="all")
        self.samples.add(f"kafka.rf3.connections.{flush}", found["requests_per_s"], "req/s")
        self.samples.add(f"kafka.rf3.connections.{flush}.p99", found["latency_ms"]["p99"], "ms")

    def latency(self, flush: str, rate: int) -> None:
        with self.kafka.topic("latency", config=KAFKA_FLUSHES[flush]) as topic:
            found = self.kafka.end_to_end(topic, rate=rate, seconds=self.sizes.seconds)
        for quantile in ("p50", "p99", "p999", "max"):
            label = f"kafka.rf3.latency.{rate_name(rate)}.{quantile}.{flush}"
            self.samples.add(label, found["latency_ms"][quantile], "ms")


def floors(samples: Samples, seconds: float) -> None:
    """Current cost of one forced write and one round trip: acks=all may take this much longer than acks=1."""
    WORK.mkdir(parents=True, exist_ok=True)
    samples.add("floor.fdatasync", fdatasync_ms(WORK), "ms")
    found = echo.measure("echo", size=200, streams=1, processes=1, in_flight=1, seconds=2.0)
    samples.add("floor.echo", 1e3 / found["messages_per_s"], "ms")
    for rate in (0, 1_000):
        chain_alone(samples, rate_name(rate), rate, seconds / 2, 0)


def chain_alone(samples: Samples, name: str, rate: int, seconds: float, busy_ms: float) -> None:
    """Records of the latency cases through chain.py, from send to receipt; each node computes for ``busy_ms``."""
    count = int(seconds * (rate or 1_000))
    found = chain.measure(WORK, size=RECORD_BYTES, every_s=1 / rate if rate else 0, count=count, busy_ms=busy_ms)
    for quantile, value in found["received"].items():
        samples.add(f"floor.chain.{name}.{quantile}", value, "ms")


def memory(samples: Samples, cluster: ours.Headrace, kafka: KafkaNode | None, moment: str) -> None:
    read = rss_mib if moment == "idle" else peak_rss_mib
    samples.add(f"headrace.rf3.rss.{moment}", max(read(pid) for pid in cluster.pids("broker")), "MiB")
    samples.add(f"headrace.rf3.rss.controller.{moment}", max(read(pid) for pid in cluster.pids("controller")), "MiB")
    if kafka is not None and moment == "loaded":  # Kafka's idle memory is its heap, touched at the start
        samples.add(f"kafka.rf3.rss.{moment}", max(read(pid) for pid in kafka.pids), "MiB")


def every_name(sizes: Sizes, policies: list[str], *, peers: bool) -> list[str]:
    unused: Any = None
    names = [name for policy in policies for name, _ in Ours(unused, unused, sizes, policy).steps()]
    theirs = [name for name, _ in Kafkas(unused, unused, sizes, 0).steps()] if peers else []
    return ["floors", *theirs, *names]


def main() -> int:
    parser = flags(__doc__, warm_gib=12.0)
    parser.add_argument("--peers", action="store_true", help="also measure Apache Kafka (needs a JDK 17, and Maven)")
    parser.add_argument("--policies", default="commit", help="log.flush of our topics: commit,os,interval")
    parser.add_argument("--list", action="store_true", help="print the names of the steps and exit")
    parser.add_argument("--seconds", type=float, help="duration of each workload that runs for a time")
    asked = parser.parse_args()
    sizes = SMOKE if asked.smoke else Sizes()
    if asked.seconds is not None:
        sizes = replace(sizes, seconds=asked.seconds)
    policies = asked.policies.split(",")
    if asked.list:
        names = every_name(sizes, policies, peers=asked.peers)
        print("\n".join(name for name in names if re.search(asked.only, name)))
        return 0
    samples = begin(asked)
    with ExitStack() as stack:
        warm_up_s = SMOKE_WARM_UP_S if asked.smoke else WARM_UP_S
        node = KafkaNode(WORK / "kafka-rf3", nodes=3, warm_up_s=warm_up_s) if asked.peers else None
        kafka = None if node is None else stack.enter_context(node)
        mine = ours.Headrace(WORK / "headrace-rf3", ours.SMOKE if asked.smoke else ours.FULL, brokers=3, controllers=3)
        cluster = stack.enter_context(mine)
        samples.add("headrace.rf3.start", cluster.start_s, "s")
        memory(samples, cluster, kafka, "idle")
        for number in range(asked.rounds):
            emit(round=number + 1, of=asked.rounds)
            run_steps(samples, [("floors", lambda: floors(samples, sizes.seconds))], asked.only)
            if kafka is not None:
                run_steps(samples, Kafkas(kafka, samples, sizes, number).steps(), asked.only)
            for policy in policies:
                run_steps(samples, Ours(cluster, samples, sizes, policy).steps(), asked.only)
        memory(samples, cluster, kafka, "loaded")
    extra = {"policies": policies, "peers": asked.peers}
    return finish(samples, asked, what="replicated", bars=OF_THREE_REPLICAS, extra=extra)


if __name__ == "__main__":
    sys.exit(main())
