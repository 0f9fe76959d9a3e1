"""The cost of an idle cluster, and its start time.

    idle.py [--only idle,up,inprocess,tests] [--rounds 7] [--clusters 3] [--window 30] [--settle 20] [--smoke] [--save]

    idle       `headrace up` with 3 controllers, 3 brokers and 2 coordinators as processes, default settings: PSS,
               processor time and voluntary context switches of each, over ``--window`` seconds; first of a new cluster,
               then of a used cluster (20 topics of 6 partitions and 3 replicas, 600,000 records, a consumer group that
               has left); with ``--clusters`` clusters, because leaders are placed at random
    up         `headrace up -d` in a new directory, from its start to the first record acknowledged by all in-sync
               replicas, with its topic (3 replicas) created in between; then the same with the commands that `up`
               suggests (`topics create`, `produce`), each a process
    inprocess  a new Python process each time: from ``LocalCluster(mode="inprocess").start()`` to the first acknowledged
               record, and from the start of the process; a second cluster in the same process
    tests      a project with one file of 20 tests on the fixture (examples/test_orders.py), plain pytest, wall time

A new cluster has a new directory, but programs and libraries are in the page cache. Processor time is the scheduler's
(``/proc/PID/task/*/schedstat``): ticks of 10 ms miss threads that sleep before each tick. Exit 1 when a bar is missed
or a case fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import ROOT, WORK, Samples, emit, machine, save, settle, table

from headrace import Admin, Consumer, NewTopic, Producer

# An installed Headrace has bytecode, written by pip; some machines forbid Python to write bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

BROKERS, CONTROLLERS, COORDINATORS = 3, 3, 2
COMMAND = [sys.executable, "-m", "headrace_tools"]
RECORDS, TOPICS, PARTITIONS = 600_000, 20, 6


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: the median or the worst round is at most ``limit``."""

    what: str
    case: str
    sample: str
    limit: float
    worst: bool = False

    def value(self, samples: Samples) -> float | None:
        values = samples.values.get(self.sample)
        if not values:
            return None
        return max(values) if self.worst else samples.median(self.sample)


BARS = (
    Bar("idle, new: PSS of 3+3+2 processes, MiB", "idle", "new.pss.all", 600),
    Bar("idle, new: processor, % of one core", "idle", "new.cpu.all", 5),
    Bar("idle, worked with: processor, % of one core", "idle", "used.cpu.all", 5),
    Bar("`headrace up` to the first acknowledged record, s", "up", "up.first_record", 3),
    Bar("the same, the slowest round, s", "up", "up.first_record", 3, worst=True),
    Bar("in process: start() to the first acknowledged record, s", "inprocess", "inprocess.first_record", 1),
    Bar("the same, the slowest round, s", "inprocess", "inprocess.first_record", 1, worst=True),
    Bar("20 tests on the fixture, the slowest round, s", "tests", "tests.20", 10, worst=True),
)


# -- processes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Totals of a process's current threads since its start: processor seconds, and voluntary context switches."""

    cpu_s: float
    sleeps: int


def usage(pid: int) -> Usage:
    cpu_ns, sleeps = 0, 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            cpu_ns += int((task / "schedstat").read_text().split()[0])
            status = (task / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        line = next(line for line in status.splitlines() if line.startswith("voluntary_ctxt_switches"))
        sleeps += int(line.split()[1])
    return Usage(cpu_ns / 1e9, sleeps)


def memory_mib(pid: int) -> dict[str, float]:
    """PSS (shared pages counted in part), USS (unshared), and the anonymous part."""
    kib: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, amount = line.split()[:2]
        kib[name.rstrip(":")] = int(amount)
    uss = kib["Private_Clean"] + kib["Private_Dirty"]
    return {"pss": kib["Pss"] / 1024, "uss": uss / 1024, "anonymous": kib["Pss_Anon"] / 1024}


def measure_idle(
    samples: Samples, state: str, nodes: Sequence[dict[str, Any]], *, settle_s: float, window_s: float
) -> None:
    """``<state>.{pss,uss,anonymous,cpu,sleeps}.<role>-<place>`` and ``.all``; place 1 is the busiest node of its role:
    the leading controller, or the broker with most followers."""
    settle()
    time.sleep(settle_s)
    before, begun = {node["pid"]: usage(node["pid"]) for node in nodes}, time.monotonic()
    time.sleep(window_s)
    seconds = time.monotonic() - begun
    total: dict[str, float] = {}
    found: dict[str, list[dict[str, float]]] = {}
    for node in nodes:
        then, now = before[node["pid"]], usage(node["pid"])
        values = memory_mib(node["pid"]) | {
            "cpu": 100 * (now.cpu_s - then.cpu_s) / seconds,
            "sleeps": (now.sleeps - then.sleeps) / seconds,
        }
        found.setdefault(node["role"], []).append(values)
    for role in sorted(found):
        for place, values in enumerate(sorted(found[role], key=lambda values: -values["cpu"]), 1):
            for kind, value in values.items():
                total[kind] = total.get(kind, 0.0) + value
                samples.add(f"{state}.{kind}.{role}-{place}", value, _UNITS[kind])
    for kind, value in total.items():
        samples.add(f"{state}.{kind}.all", value, _UNITS[kind])


_UNITS = {"pss": "MiB", "uss": "MiB", "anonymous": "MiB", "cpu": "%", "sleeps": "1/s"}


# -- clusters ----------------------------------------------------------------------------------------------------------


def headrace(*arguments: str, text: str | None = None) -> str:
    """The output of a `headrace` command. Raises RuntimeError with the error text of a command that failed."""
    done = subprocess.run([*COMMAND, *arguments], input=text, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(f"headrace {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


@contextmanager
def up(work: Path, *more: str) -> Iterator[dict[str, Any]]:
    """`headrace up -d` in a new directory: its description; the cluster is removed after the block."""
    directory = Path(tempfile.mkdtemp(prefix="idle-", dir=work)) / "data"
    try:
        yield json.loads(headrace("up", "-d", "-o", "json", "--port", "0", "--data", str(directory), *more))
    finally:
        if directory.exists():
            headrace("down", "--data", str(directory))
        shutil.rmtree(directory.parent, ignore_errors=True)


def first_record(bootstrap: str) -> None:
    """Create a topic with the cluster's defaults, and send a record until all in-sync replicas have it."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("first")])
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send("first", b"one crate").result(timeout=60)


def work_with(bootstrap: str) -> None:
    """Use a cluster: topics, records, a consumer group; all clients end."""
    names = [f"worked-{number}" for number in range(TOPICS)]
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(name, partitions=PARTITIONS) for name in names])
    with Producer(bootstrap_servers=bootstrap) as producer:
        for name in names:
            for number in range(RECORDS // TOPICS):
                producer.send(name, b"%0100d" % number)
        producer.flush()
    seen = 0
    with Consumer(bootstrap_servers=bootstrap, group_id="idle", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(names)
        deadline = time.monotonic() + 120
        while seen < RECORDS and time.monotonic() < deadline:
            seen += len(consumer.poll(timeout=1.0))
    if seen != RECORDS:
        raise RuntimeError(f"the group read {seen} of {RECORDS} records")


# -- cases -------------------------------------------------------------------------------------------------------------


def idle(samples: Samples, asked: argparse.Namespace) -> None:
    for _ in range(asked.clusters):
        idle_cluster(samples, asked)


def idle_cluster(samples: Samples, asked: argparse.Namespace) -> None:
    with up(asked.work, "--coordinators", str(COORDINATORS)) as cluster:
        nodes = cluster["nodes"]
        if len(nodes) != BROKERS + CONTROLLERS + COORDINATORS:
            raise RuntimeError(f"{len(nodes)} nodes")
        measure_idle(samples, "new", nodes, settle_s=asked.settle, window_s=asked.window)
        work_with(cluster["bootstrap_servers"])
        measure_idle(samples, "used", nodes, settle_s=asked.settle, window_s=asked.window)


def up_to_first_record(samples: Samples, asked: argparse.Namespace) -> None:
    for _ in range(asked.rounds):
        settle()
        begun = time.monotonic()
        with up(asked.work) as cluster:
            samples.add("up.serves", time.monotonic() - begun, "s")
            first_record(cluster["bootstrap_servers"])
            samples.add("up.first_record", time.monotonic() - begun, "s")
    for _ in range(asked.rounds):
        settle()
        begun = time.monotonic()
        with up(asked.work) as cluster:
            bootstrap = cluster["bootstrap_servers"]
            headrace("topics", "create", "orders", "-p", "6", "-b", bootstrap)
            headrace("produce", "-t", "orders", "-b", bootstrap, text="hello\n")
            samples.add("up.pasted_commands", time.monotonic() - begun, "s")


_IN_PROCESS = """
import json, sys, time
from headrace import Admin, LocalCluster, NewTopic, Producer
taken = []
for number in range(2):
    begun = time.monotonic()
    with LocalCluster(brokers=1, controllers=1, mode="inprocess") as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("first")])
        with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send("first", b"one crate").result(timeout=60)
        taken.append({"start": time.monotonic() - begun, "process": time.monotonic() - float(sys.argv[1])})
print(json.dumps(taken))
"""


def in_process(samples: Samples, asked: argparse.Namespace) -> None:
    for _ in range(asked.rounds):
        settle()
        command = [sys.executable, "-c", _IN_PROCESS, repr(time.monotonic())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise RuntimeError(f"in process: exit {done.returncode}: {done.stderr.strip()[-600:]}")
        first, second = json.loads(done.stdout)
        samples.add("inprocess.first_record", first["start"], "s")
        samples.add("inprocess.first_record_from_process_start", first["process"], "s")
        samples.add("inprocess.second_cluster", second["start"], "s")


def twenty_tests(samples: Samples, asked: argparse.Namespace) -> None:
    project = Path(tempfile.mkdtemp(prefix="idle-project-", dir=asked.work))
    try:
        (project / "pytest.ini").write_text("[pytest]\n")
        (project / "tests").mkdir()
        shutil.copy(ROOT / "examples" / "test_orders.py", project / "tests")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "HEADRACE"))}
        for _ in range(asked.rounds):
            settle()
            begun = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q"],
                cwd=project,
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            taken = time.monotonic() - begun
            if done.returncode or "20 passed" not in done.stdout:
                raise RuntimeError(f"the project's tests: exit {done.returncode}: {done.stdout.strip()[-600:]}")
            samples.add("tests.20", taken, "s")
    finally:
        shutil.rmtree(project, ignore_errors=True)


CASES: dict[str, Callable[[Samples, argparse.Namespace], None]] = {
    "idle": idle,
    "up": up_to_first_record,
    "inprocess": in_process,
    "tests": twenty_tests,
}


def verdicts(samples: Samples, cases: Sequence[str]) -> list[dict[str, Any]]:
    found = []
    for bar in (bar for bar in BARS if bar.case in cases):
        value = bar.value(samples)
        met = value is not None and value <= bar.limit
        values = samples.values.get(bar.sample, [])
        found.append({"what": bar.what, "bar": bar.limit, "measured": value, "n": len(values), "met": met})
    return found


def shown(bars: Sequence[dict[str, Any]]) -> str:
    lines = []
    for bar in bars:
        value = "not measured" if bar["measured"] is None else f"{bar['measured']:.3g}"
        met = "yes" if bar["met"] else "NO"
        lines.append(f"{met:<4}{bar['what']:<60}<= {bar['bar']:<8g}{value:<14}n={bar['n']}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clusters", type=int, default=3, help="number of idle clusters to measure")
    parser.add_argument("--window", type=float, default=30.0, help="seconds for which an idle cluster is measured")
    parser.add_argument("--settle", type=float, default=20.0, help="seconds to wait before the measurement")
    parser.add_argument("--work", type=Path, default=WORK, help="directory of the clusters during the run")
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="one round with short windows, which only shows whether the benchmark works",
    )
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    asked = parser.parse_args()
    if asked.smoke:
        asked.rounds, asked.clusters, asked.window, asked.settle = 1, 1, 3.0, 2.0
    cases = asked.only.split(",")
    asked.work.mkdir(parents=True, exist_ok=True)
    samples = Samples()
    emit(machine=machine())
    for case in cases:
        try:
            CASES[case](samples, asked)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            samples.fail(case, str(error))
    bars = verdicts(samples, cases)
    emit(bars=bars)
    print(table(samples))
    print(shown(bars))
    if asked.save:
        extra = {"rounds": asked.rounds, "clusters": asked.clusters, "window_s": asked.window, "bars": bars}
        print(save(samples, what="idle", extra=extra).relative_to(ROOT))
    for failed in samples.failures:
        print(f"failed: {failed}")
    return 1 if samples.failures or not all(bar["met"] for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
