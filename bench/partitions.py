"""Measure the cost of thousands of partitions on one broker, and of long logs at its start.

    partitions.py [--partitions 5000] [--rounds 6] [--smoke] [--only many,produce,unclean,clean] [--save]

A real controller and broker (``LocalCluster``), production defaults. The benchmark has four cases. The case that writes
most is last, because a virtual machine's disk may have a limited burst:

    many      memory, descriptors and idle CPU with 50 partitions and with 5,000 more (of 1 topic, then of 500 topics);
              creating and deleting the 5,000; a clean restart
    produce   to 50 partitions of a broker with 5,000 more partitions, and of a broker without them, in turns
    unclean   kill -9 with 1 GiB that was never flushed (log.flush=os) beyond the recovery point, then the start
    clean     a clean restart with 10 GiB

Each sample is one JSON object per line; a table of bars follows. Exit 1 when a bar is missed or a case fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import PYTHON, ROOT, WORK, Samples, emit, machine, rss_mib, run_json, save, settle, table

from headrace import Admin, LocalCluster, NewTopic

FEW = 50
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Sizes:
    partitions: int
    topics: int  # each topic has as many partitions as a topic of the second layout
    records: int  # records of 100 bytes in one produce run
    rounds: int
    idle_s: float
    suspect_records: int  # of 1,000 bytes
    long_records: int


FULL = Sizes(5000, 500, 4_000_000, 6, 12.0, 1_060_000, 10_800_000)
SMOKE = Sizes(60, 6, 50_000, 1, 1.0, 5_000, 10_000)


@dataclass(frozen=True, slots=True)
class Bar:
    what: str
    sample: str
    limit: float
    at_least: bool = False

    def verdict(self, samples: Samples) -> tuple[float | None, bool]:
        """The worst value, and whether it is within the limit."""
        values = samples.values.get(self.sample)
        if not values:
            return None, False
        worst = min(values) if self.at_least else max(values)
        return worst, worst >= self.limit if self.at_least else worst <= self.limit


BARS = {
    "many": (
        Bar("idle CPU of the broker, % of a core", "many.idle_cpu", 5.0),
        Bar("memory per partition, KiB (the worse of created and restarted)", "many.rss_per_partition", 20.0),
        Bar("descriptors of the broker", "many.descriptors", 1200.0),
        Bar("clean restart, s", "many.restart", 10.0),
    ),
    "produce": (
        Bar(
            "speed of producing to 50 partitions, compared with a broker that has only these 50",
            "produce.ratio",
            0.8,
            at_least=True,
        ),
    ),
    "unclean": (Bar("start after kill -9 with 1 GiB to check, s", "unclean.start", 5.0),),
    "clean": (Bar("clean restart with 10 GiB, s", "clean.restart", 3.0),),
}


class Cluster:
    """One controller and one broker, and the system's data about the two processes."""

    work = WORK

    def __init__(self, directory: Path) -> None:
        self.local = LocalCluster(
            brokers=1, controllers=1, coordinators=0, data=directory, start_timeout_s=120, stop_timeout_s=120
        )

    def pid(self, role: str) -> int:
        return next(int(node["pid"]) for node in self.local.ps() if node["role"] == role)

    def cpu_s(self, role: str) -> float:
        fields = Path(f"/proc/{self.pid(role)}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid('broker')}/fd"))

    def rss_kib(self, role: str = "broker") -> float:
        return rss_mib(self.pid(role)) * 1024

    def create(self, topics: Sequence[tuple[str, int]], **config: str) -> float:
        """Create topics in one request; returns the seconds until every partition has a leader."""
        begun = time.monotonic()
        with Admin(bootstrap_servers=self.local.bootstrap_servers) as admin:
            admin.create_topics(
                [NewTopic(name, partitions=count, replication_factor=1, config=config) for name, count in topics],
                timeout=300,
            )
        return time.monotonic() - begun

    def delete(self, topics: Sequence[str]) -> float:
        begun = time.monotonic()
        with Admin(bootstrap_servers=self.local.bootstrap_servers) as admin:
            admin.delete_topics(list(topics), timeout=300)
        return time.monotonic() - begun

    def produce(self, topic: str, records: int, *, size: int = 100, api: str = "many") -> float:
        """Records per second, all acknowledged."""
        command = [PYTHON, "-m", "headrace_tools", "bench", "produce", "--topic", topic, "--api", api]
        command += ["--records", str(records), "--record-bytes", str(size)]
        command += ["-b", self.local.bootstrap_servers, "-o", "json"]
        found = run_json(command, timeout_s=300)
        if found.get("verified") is not True:
            raise RuntimeError(f"{' '.join(command)}: not verified: {found}")
        return float(found["records_per_s"])

    def restart(self) -> float:
        """Seconds from the stop signal until the broker serves again."""
        begun = time.monotonic()
        self.local.restart("broker", 1)
        return time.monotonic() - begun

    def own_start_s(self) -> float:
        """The broker's own report of its last start (seconds)."""
        return float(re.findall(r"NodeStarted .*seconds=([0-9.]+)", self.local.log("broker", 1))[-1])


@contextmanager
def cluster(name: str) -> Iterator[Cluster]:
    directory = Cluster.work / f"partitions-{name}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        one = Cluster(directory)
        with one.local:
            yield one
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# ---------------------------------------------------------------------------------------------- the cases


def many(samples: Samples, sizes: Sizes) -> None:
    for layout, topics in (
        ("one", [("many", sizes.partitions)]),
        ("topics", [(f"many-{number}", sizes.partitions // sizes.topics) for number in range(sizes.topics)]),
    ):
        with cluster(layout) as one:
            one.create([("few", FEW)])
            one.restart()
            _many(samples, sizes, one, layout, topics)
            samples.add(f"many.{layout}.delete", one.delete([name for name, _ in topics]), "s")


def _many(samples: Samples, sizes: Sizes, one: Cluster, layout: str, topics: list[tuple[str, int]]) -> None:
    fresh_kib, controller_kib = one.rss_kib(), one.rss_kib("controller")
    cpu_s = {role: one.cpu_s(role) for role in ("broker", "controller")}
    samples.add(f"many.{layout}.create", one.create(topics), "s")
    for role, before_s in cpu_s.items():
        samples.add(f"many.{layout}.create_cpu.{role}", one.cpu_s(role) - before_s, "s")
    samples.add(f"many.{layout}.rss_controller", one.rss_kib("controller") - controller_kib, "KiB")
    samples.add("many.rss_per_partition", (one.rss_kib() - fresh_kib) / sizes.partitions, "KiB")
    samples.add("many.descriptors", one.descriptors(), "")
    _idle(samples, sizes, one, layout)
    samples.add("many.restart", one.restart(), "s")
    samples.add(f"many.{layout}.start", one.own_start_s(), "s")
    samples.add("many.rss_per_partition", (one.rss_kib() - fresh_kib) / sizes.partitions, "KiB")
    samples.add("many.descriptors", one.descriptors(), "")
    _idle(samples, sizes, one, layout)


def produce(samples: Samples, sizes: Sizes) -> None:
    """Produce to 50 partitions of each broker in turn, while the other system is idle, so that a slow minute affects
    both."""
    with cluster("with-50") as few, cluster("with-all") as one:
        for each in (few, one):
            each.create([("few", FEW)])
        one.create([("many", sizes.partitions)])
        found: dict[str, list[float]] = {"with_50": [], "with_all": []}
        for number in range(sizes.rounds + 1):
            for name, each in (("with_50", few), ("with_all", one)):
                cpu_s = each.cpu_s("broker")
                records_per_s = each.produce("few", sizes.records)
                if number:  # the first round creates the files and is not measured
                    found[name].append(records_per_s)
                    samples.add(f"produce.{name}", records_per_s, "rec/s")
                    samples.add(f"produce.{name}.cpu", each.cpu_s("broker") - cpu_s, "s")
        ratio = statistics.median(found["with_all"]) / statistics.median(found["with_50"])
        samples.add("produce.ratio", ratio, "x")
        samples.add("many.descriptors", one.descriptors(), "")


def _idle(samples: Samples, sizes: Sizes, one: Cluster, layout: str) -> None:
    settle()
    time.sleep(sizes.idle_s / 4)
    before = {role: one.cpu_s(role) for role in ("broker", "controller")}
    time.sleep(sizes.idle_s)
    used = {role: (one.cpu_s(role) - before[role]) / sizes.idle_s * 100 for role in before}
    samples.add("many.idle_cpu", used["broker"], "%")
    samples.add(f"many.{layout}.idle_cpu_controller", used["controller"], "%")


def unclean(samples: Samples, sizes: Sizes) -> None:
    with cluster("unclean") as one:
        one.create([("suspect", 1)], **{"log.flush": "os", "segment.bytes": str(2**31 - 1)})
        one.produce("suspect", sizes.suspect_records, size=1000, api="arrow")
        log = next(one.local.directory.rglob("suspect-0/*.log"))
        samples.add("unclean.bytes", log.stat().st_size / 2**30, "GiB")
        one.local.kill("broker", 1)
        begun = time.monotonic()
        one.local.restart("broker", 1)
        samples.add("unclean.start", time.monotonic() - begun, "s")
        samples.add("unclean.start_of_the_broker", one.own_start_s(), "s")


def clean(samples: Samples, sizes: Sizes) -> None:
    with cluster("clean") as one:
        one.create([("long", 4)], **{"log.flush": "os"})
        one.produce("long", sizes.long_records, size=1000, api="arrow")
        size = sum(path.stat().st_size for path in one.local.directory.rglob("long-*/*.log"))
        samples.add("clean.bytes", size / 2**30, "GiB")
        samples.add("clean.first_restart", one.restart(), "s")  # the stop flushes the remaining data
        samples.add("clean.restart", one.restart(), "s")
        samples.add("clean.start", one.own_start_s(), "s")


CASES: dict[str, Callable[[Samples, Sizes], None]] = {
    "many": many,
    "produce": produce,
    "unclean": unclean,
    "clean": clean,
}


def verdicts(samples: Samples, cases: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for bar in (bar for case in cases for bar in BARS[case]):
        value, met = bar.verdict(samples)
        found.append({"what": bar.what, "bar": bar.limit, "at_least": bar.at_least, "measured": value, "met": met})
    return found


def shown(bars: Sequence[dict[str, Any]]) -> str:
    lines = []
    for bar in bars:
        value = "not measured" if bar["measured"] is None else f"{bar['measured']:.3g}"
        sign = ">=" if bar["at_least"] else "<="
        lines.append(f"{'yes' if bar['met'] else 'NO':<4}{bar['what']:<66}{sign} {bar['bar']:<8g}{value}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--work", type=Path, default=WORK, help="directory of the clusters during the run")
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    asked = parser.parse_args()
    Cluster.work = asked.work
    sizes = SMOKE if asked.smoke else FULL
    partitions, rounds = asked.partitions or sizes.partitions, asked.rounds or sizes.rounds
    sizes = Sizes(
        partitions,
        max(partitions // 10, 1),
        sizes.records,
        rounds,
        sizes.idle_s,
        sizes.suspect_records,
        sizes.long_records,
    )
    cases = asked.only.split(",")
    samples = Samples()
    emit(machine=machine())
    for case in cases:
        try:
            CASES[case](samples, sizes)
        except (RuntimeError, OSError) as failure:
            samples.fail(case, str(failure))
    bars = verdicts(samples, cases)
    emit(bars=bars)
    print(table(samples))
    print(shown(bars))
    if asked.save:
        print(save(samples, what="partitions", extra={"partitions": partitions, "bars": bars}).relative_to(ROOT))
    for failed in samples.failures:
        print(f"failed: {failed}")
    return 1 if samples.failures or not all(bar["met"] for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
