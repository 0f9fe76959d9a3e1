"""Measure the cost of encryption: the ratio of throughput with TLS to throughput without TLS, for Headrace and for
Apache Kafka, in one run.

    security.py [--rounds 3] [--records 5000000] [--short] [--save] [--warm-gib 6]

Each side has one node of each kind, on which plain and encrypted workloads take turns. Headrace has two clusters: one
without security, and one as `headrace up --secure` makes it (TLS, a SCRAM user, ACLs, which its super user passes).
Kafka has one node with two listeners. Headrace's clients are those of `headrace bench`; Kafka's clients are its own
tools.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import report
from bars import Bar, verdicts
from kafka_node import KafkaNode
from kafka_settings import SMOKE_WARM_UP_S, WARM_UP_S, turns
from measure import PYTHON, ROOT, WORK, Samples, emit, machine, run, run_json, save, table, warm_memory
from peers import attempt, kafka_topic

from headrace import Admin, LocalCluster, NewTopic

TOPICS = itertools.count()
PRODUCE_APIS = ("arrow", "many", "object")
SHARE_MIN = 0.6


class Side:
    """One of Headrace's clusters. ``name``: plain or tls."""

    def __init__(self, name: str, cluster: LocalCluster) -> None:
        self.name, self.cluster = name, cluster
        self._login = ["--command-config", str(cluster.client_properties)] if name == "tls" else []

    def throughput(self, samples: Samples, records: int) -> None:
        for api in PRODUCE_APIS:
            with self._topic() as topic:
                count = records // (1 if api == "arrow" else 2)
                found = self._bench("produce", topic, "--api", api, "--records", str(count), "--acks", "all")
                samples.add(f"headrace.{self.name}.produce.{api}", found, "rec/s")
                if api == "arrow":
                    found = self._bench("consume", topic, "--api", api, "--records", str(count))
                    samples.add(f"headrace.{self.name}.consume.{api}", found, "rec/s")

    def _bench(self, workload: str, topic: str, *arguments: str) -> float:
        command = [PYTHON, "-m", "headrace_tools", "bench", workload, "--topic", topic, "-o", "json"]
        servers = ["-b", self.cluster.bootstrap_servers, *self._login]
        return float(run_json([*command, *servers, *arguments], timeout_s=180)["records_per_s"])

    @contextmanager
    def _topic(self) -> Iterator[str]:
        name = f"security-{next(TOPICS)}"
        servers = self.cluster.bootstrap_servers
        if self._login:
            connected = Admin.from_properties(self.cluster.client_properties, bootstrap_servers=servers)
        else:
            connected = Admin(bootstrap_servers=servers)
        with connected as admin:
            admin.create_topics([NewTopic(name, partitions=6)], timeout=60)
            yield name
            admin.delete_topics([name])


def kafkas_throughput(kafka: KafkaNode, name: str, samples: Samples, number: int, records: int) -> None:
    for setting in turns(number):
        with (
            kafka_topic(kafka, f"security-{next(TOPICS)}") as topic,
            kafka.over_tls() if name == "tls" else nullcontext(),
        ):
            rate = kafka.producer_perf(topic, records, setting=setting, acks="all")
            samples.add(f"kafka.{name}.produce@{setting.name}", rate, "rec/s")
            found = kafka.consumer_perf(topic, records)
            samples.add(f"kafka.{name}.consume@{setting.name}", found["fetch"], "rec/s")


def certificates(directory: Path) -> tuple[Path, Path]:
    """A certificate with its key for Kafka's node, and the authority, made by `headrace certs`."""
    shutil.rmtree(directory, ignore_errors=True)
    certs = [PYTHON, "-m", "headrace_tools", "certs"]
    run([*certs, "init", "--dir", str(directory)], timeout_s=60)
    key = directory / "kafka.pem"
    run(
        [*certs, "issue", "broker", "1", "--host", "127.0.0.1", "--dir", str(directory), "--out", str(key)],
        timeout_s=60,
    )
    return key, directory / "ca.pem"


def share(workload: str) -> Callable[[Samples], float | None]:
    """The ratio of Headrace's throughput with TLS to its throughput without TLS."""
    return lambda samples: samples.ratio(f"headrace.tls.{workload}", f"headrace.plain.{workload}")


def kafkas_share(samples: Samples, workload: str) -> float | None:
    encrypted, plain = samples.best(f"kafka.tls.{workload}"), samples.best(f"kafka.plain.{workload}")
    return None if encrypted is None or plain is None else encrypted.median / plain.median


WORKLOADS = (*(f"produce.{api}" for api in PRODUCE_APIS), "consume.arrow")
BARS = tuple(Bar(f"{each} with TLS", "without TLS", SHARE_MIN, "x", share(each)) for each in WORKLOADS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--warm-gib", type=float, default=6.0)
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    asked = parser.parse_args()
    rounds, records = (1, 100_000) if asked.short else (asked.rounds, asked.records)
    samples = Samples()
    emit(machine=machine())
    if not asked.short:
        emit(warmed_gib=asked.warm_gib, seconds=round(warm_memory(asked.warm_gib), 1))
    for name in ("plain", "tls"):
        shutil.rmtree(WORK / f"security-{name}", ignore_errors=True)
    tls = certificates(WORK / "security-certs")
    one = partial(LocalCluster, brokers=1, controllers=1, coordinators=1)
    with (
        one(data=WORK / "security-plain") as plain,
        one(data=WORK / "security-tls", secure=True) as secure,
        KafkaNode(WORK / "kafka-security", warm_up_s=SMOKE_WARM_UP_S if asked.short else WARM_UP_S, tls=tls) as kafka,
    ):
        kafka.warm()
        sides = (Side("plain", plain), Side("tls", secure))
        for number in range(rounds):
            emit(round=number + 1, of=rounds)
            for side in sides[:: 1 if number % 2 == 0 else -1]:
                attempt(samples, f"headrace.{side.name}", partial(side.throughput, samples, records))
                theirs = partial(kafkas_throughput, kafka, side.name, samples, number, records // 2)
                attempt(samples, f"kafka.{side.name}", theirs)
    print(table(samples))
    print(report.verdicts_table(verdicts(samples, BARS)))
    for workload in ("produce", "consume"):
        found = kafkas_share(samples, workload)
        print(f"Kafka's own ratio of {workload}: {'not measured' if found is None else f'{found:.2f}'}")
    for failure in samples.failures:
        print(f"failed: {failure}")
    if asked.save:
        path = save(samples, what="security", extra={"rounds": rounds, "records": records})
        print(f"saved: {path.relative_to(ROOT)}")
    return 1 if samples.failures else 0


if __name__ == "__main__":
    sys.exit(main())
