"""Compare transactions with Apache Kafka's, with three replicas: `make bench-transactions`.

    transactions.py [--rounds 3] [--seconds 10] [--smoke] [--no-peers] [--only REGEX] [--warm-gib 12] [--save]

Headrace has three brokers, three controllers and a coordinator, and flushes every write (`log.flush=commit`). Kafka has
three nodes, and does not flush. The replication factor is 3, and one system is idle while the other works. One producer
writes one transaction after the other: each lasts 100 ms at full speed, or has 1,000 records. Kafka's client is warm,
and runs under each setting of kafka_node.py; its best median counts.

The second part has transactions of one record, with one producer and with twenty. In the part with one-record
transactions Kafka flushes every write (`flush.messages=1` on the topic and on `__transaction_state`). The third part
reads a topic of transactions of 100 ms with read_committed and with read_uncommitted, in turn; only Headrace takes
part.

--smoke: one round of 3 s per workload, at most three minutes in all, for a quick check. The exit code is 1 if a
workload failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import our_clients
import ours
from kafka_node import SETTINGS, WARM_UP_S, KafkaNode, Setting, turns
from measure import WORK, Samples, Step, begin, emit, flags, run_steps
from report import Bar, finish

FORCED = {"flush.messages": "1"}
SHORT_S, SHORT_WARM_UP_S = 3.0, 15.0
#: Number of readings with each isolation level and each API.
PASSES = 4

#: Throughput: name -> (what ends a transaction: records or ms; the limit).
SIZES = {"100-ms": ("ms", 100), "1000-records": ("records", 1_000)}
#: Transactions of one record: name -> number of producers.
SINGLES = {"one-record": 1, "one-record.20-producers": 20}


def against(name: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.ratio(f"headrace.transactions.{name}", f"kafka.transactions.{name}")


def against_plain(samples: Samples) -> float | None:
    return samples.ratio("headrace.transactions.100-ms", "headrace.plain.100-ms")


def of_uncommitted(api: str) -> Callable[[Samples], float | None]:
    return lambda samples: samples.ratio(f"headrace.read_committed.{api}", f"headrace.read_uncommitted.{api}")


BARS = (
    *(
        Bar(
            f"transactions of {name.replace('-', ' ')}, `send()`", "Kafka, RF 3, no fsync", 2.5, "x", against(name),
            peer=f"kafka.transactions.{name}",
        )
        for name in SIZES
    ),
    Bar("transactions of 100 ms, `send()`", "ours without transactions", 0.9, "x", against_plain),
    *(
        Bar(
            f"{name.replace('-', ' ').replace('.', ', ')}: p50", "Kafka with every write forced", 1.0, "x",
            against(f"{name}.p50"), at_least=False,
        )
        for name in SINGLES
    ),
    Bar(
        "one record, 20 producers", "absolute", 500, "txn/s",
        lambda samples: samples.median("headrace.transactions.one-record.20-producers.rate"),
    ),
    *(
        Bar(f"read_committed, {label}", "read_uncommitted", 0.95, "x", of_uncommitted(api))
        for api, label in (("object", "`poll()`"), ("arrow", "`fetch_arrow()`"))
    ),
)  # fmt: skip


class Theirs:
    def __init__(self, kafka: KafkaNode, samples: Samples, seconds: float, number: int) -> None:
        self.kafka, self.samples, self.seconds, self.number = kafka, samples, seconds, number

    def throughput(self) -> Iterator[Step]:
        for name, (kind, size) in SIZES.items():
            for setting in turns(self.number):
                yield f"kafka.{name}@{setting.name}", partial(self._throughput, name, kind, size, setting)

    def _throughput(self, name: str, kind: str, size: int, setting: Setting) -> None:
        found = self._run({}, kind, size, 1, setting)
        self.samples.add(f"kafka.transactions.{name}@{setting.name}", found["records_per_s"], "rec/s")

    def singles(self) -> Iterator[Step]:
        for name, producers in SINGLES.items():
            yield f"kafka.{name}", partial(self._single, name, producers)

    def _single(self, name: str, producers: int) -> None:
        self.kafka.configure_topic("__transaction_state", FORCED)
        found = self._run(FORCED, "records", 1, producers, SETTINGS[0])
        self.kafka.configure_topic("__transaction_state", dict.fromkeys(FORCED))
        add_single(self.samples, f"kafka.transactions.{name}", found)

    def _run(self, config: dict[str, str], kind: str, size: int, producers: int, setting: Setting) -> dict[str, Any]:
        self.kafka.warm()
        with self.kafka.topic("transactions", config=config) as topic:
            return self.kafka.transactions(topic, kind, size, producers, self.seconds, setting=setting)


class Ours:
    def __init__(self, cluster: ours.Headrace, samples: Samples, seconds: float, number: int) -> None:
        self.cluster, self.samples, self.seconds, self.number = cluster, samples, seconds, number

    def throughput(self) -> Iterator[Step]:
        """Every second round has the reverse order, because a workload affects the next one: page cache, disk."""
        steps: list[Step] = []
        for api in ("object", "arrow"):
            steps.append((f"ours.plain.{api}", partial(self._throughput, "plain.100-ms", "ms", 100, api, plain=True)))
            for name, (kind, size) in SIZES.items():
                steps.append((f"ours.{name}.{api}", partial(self._throughput, f"transactions.{name}", kind, size, api)))
        yield from steps if self.number % 2 == 0 else reversed(steps)

    def _throughput(self, name: str, kind: str, size: int, api: str, *, plain: bool = False) -> None:
        found = self._run(kind, size, 1, api=api, plain=plain)
        label = f"headrace.{name}" if api == "object" else f"headrace.{name}.{api}"
        self.samples.add(label, found["records_per_s"], "rec/s")

    def singles(self) -> Iterator[Step]:
        for name, producers in SINGLES.items():
            yield f"ours.{name}", partial(self._single, name, producers)

    def _single(self, name: str, producers: int) -> None:
        add_single(self.samples, f"headrace.transactions.{name}", self._run("records", 1, producers))

    def reads(self) -> Iterator[Step]:
        yield "ours.reads", self._reads

    def _reads(self) -> None:
        with self.cluster.topic("commit") as topic:
            self._write(topic, "ms", 100, 1)
            for api in ("object", "arrow"):
                arguments = {"bootstrap": self.cluster.bootstrap, "topic": topic, "passes": PASSES, "api": api}
                found = our_clients.run_role("levels", timeout_s=300, **arguments)
                for level in our_clients.LEVELS:
                    for rate in found[level]:
                        self.samples.add(f"headrace.{level}.{api}", rate, "rec/s")

    def _run(self, kind: str, size: int, producers: int, **options: Any) -> dict[str, Any]:
        with self.cluster.topic("commit") as topic:
            return self._write(topic, kind, size, producers, **options)

    def _write(self, topic: str, kind: str, size: int, producers: int, **options: Any) -> dict[str, Any]:
        arguments = {"topic": topic, "kind": kind, "size": size, "producers": producers, "seconds": self.seconds}
        arguments |= {"bootstrap": self.cluster.bootstrap, **options}
        return our_clients.run_role("transactions", timeout_s=self.seconds + 120, **arguments)


def add_single(samples: Samples, label: str, found: dict[str, Any]) -> None:
    samples.add(f"{label}.rate", found["transactions_per_s"], "txn/s")
    for quantile, value in found["latency_ms"].items():
        samples.add(f"{label}.{quantile}", value, "ms")


def main() -> int:
    parser = flags(__doc__, warm_gib=12.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds of each workload")
    parser.add_argument("--no-peers", action="store_true", help="without Kafka")
    asked = parser.parse_args()
    seconds, warm_up_s = (SHORT_S, SHORT_WARM_UP_S) if asked.smoke else (asked.seconds, WARM_UP_S)
    samples = begin(asked)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            ours.Headrace(WORK / "headrace-transactions", ours.FULL, brokers=3, controllers=3, coordinators=1)
        )
        kafka = None
        if not asked.no_peers:
            kafka = stack.enter_context(KafkaNode(WORK / "kafka-transactions", nodes=3, warm_up_s=warm_up_s))
        for number in range(asked.rounds):
            emit(round=number + 1, of=asked.rounds)
            mine = Ours(cluster, samples, seconds, number)
            theirs = None if kafka is None else Theirs(kafka, samples, seconds, number)
            for part in ("throughput", "singles"):
                for side in filter(None, (theirs, mine)):
                    run_steps(samples, getattr(side, part)(), asked.only)
            run_steps(samples, mine.reads(), asked.only)
    return finish(samples, asked, what="transactions", bars=BARS, extra={"seconds": seconds})


if __name__ == "__main__":
    sys.exit(main())
