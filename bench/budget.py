"""Count the costs of each path, hop by hop, and compare them with the committed baseline.

    budget.py                 compare with bench/budget.json; exit 1 if a judged count grew by more than 15 %
    budget.py --save          count three times, and write the largest counts as the new baseline
    budget.py --json FILE     also write the counts to this file
    budget.py --only REGEX    only the paths whose names match

Counts hardly depend on the speed of the machine, so CI can judge them. But on a machine that is busy with other work,
the brokers of a transaction make 10 to 20 % more calls, so CI counts before it starts anything else.

A *path* is one way through the product, such as "produce, RF 3". An *operation* is what the path repeats: a batch, a
record or a transaction. A *hop* is one process on the path: client, leader, follower, coordinator. For each
path and hop the tool counts:

* frames: calls of Python functions, including asyncio and libraries;
* syscalls: system calls without futex and sched_yield;
* bytes: what system calls copied between the kernel and the process (files, sockets and pipes).

The tool subtracts the counts of the idle cluster. futex, sched_yield and context switches are reported and not judged,
because they depend on the scheduler. strace (Debian: strace) must be allowed to trace the processes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measure import ROOT

BASELINE = ROOT / "bench" / "budget.json"
#: Number of runs for a baseline, which keeps their largest counts, because wake-ups differ from run to run.
SAVED_RUNS = 3

#: A judged count may grow by this share, or by its floor if the floor is larger.
GROWTH_MAX = 0.15
#: Growth per operation that never fails: frames, system calls, bytes.
FLOORS = {"frames": 6.0, "syscalls": 2.0, "bytes": 512.0}
#: Number of functions and of system calls that the baseline names for each hop.
NAMED = 6
#: System calls that are reported but not judged: how often a thread waits for another one depends on the scheduler.
LOCKS = frozenset({"futex", "sched_yield"})
POLLS = frozenset({"epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6"})
#: A read or write of at most this number of bytes wakes a thread: 8 bytes of an eventfd, or 1 byte of a pair of
#: sockets.
WAKE_UP_BYTES, WAKE_UP = 8, " (wake-up)"
#: Maps (path, hop, count) to the reason why this count is not judged.
UNSTABLE = dict.fromkeys(
    (("consume-arrow", "client", "frames"), ("consume-arrow", "client", "syscalls")),
    "a call of fetch_arrow returns what has arrived, so the number of calls depends on the scheduler",
)
#: System calls that return a number of bytes copied between the kernel and the process.
COPIES = frozenset(
    (
        *("read", "readv", "pread64", "preadv", "preadv2", "recvfrom", "recvmsg"),
        *("write", "writev", "pwrite64", "pwritev", "pwritev2", "sendto", "sendmsg"),
        *("sendfile", "copy_file_range", "splice"),
    )
)


class BudgetError(Exception):
    """The counts could not be made; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class BudgetPath:
    """``records``: number of records of one operation; ``operations``: number of counted operations; ``hops``: judged
    processes."""

    name: str
    title: str
    operation: str
    records: int
    operations: int
    hops: tuple[str, ...]


#: Rows of a batch of the Arrow paths: 100 bytes each, together below batch.size.
ROWS = 8_000
PATHS = (
    BudgetPath("produce-rf1-arrow", "produce, RF 1, `send_arrow`", "batch", ROWS, 20, ("client", "leader")),
    BudgetPath(
        "produce-rf3-arrow",
        "produce, RF 3, acks=all, `send_arrow`",
        "batch",
        ROWS,
        30,
        ("client", "leader", "follower"),
    ),
    BudgetPath(
        "produce-rf3-record",
        "produce, RF 3, acks=all, one record in flight",
        "record",
        1,
        60,
        ("client", "leader", "follower"),
    ),
    BudgetPath("consume-arrow", "consume, `fetch_arrow`", "batch", ROWS, 60, ("client", "leader")),
    BudgetPath("consume-poll", "consume, `poll()`", "batch", ROWS, 60, ("client", "leader")),
    BudgetPath(
        "transaction-record",
        "a transaction of one record, RF 3",
        "transaction",
        1,
        20,
        ("client", "coordinator", "leader", "state leader", "follower"),
    ),
    BudgetPath(
        "kafka-record",
        "one record of a Kafka client, RF 3, acks=all",
        "record",
        1,
        40,
        ("leader", "follower"),
    ),
    BudgetPath("floor-record", "gRPC alone, a message of 100 bytes", "message", 1, 60, ("client", "server")),
    BudgetPath("floor-batch", "gRPC alone, a message of 880,000 bytes", "message", 1, 20, ("client", "server")),
)


@dataclass(slots=True)
class Counts:
    """Counts of one process in one phase, or of one hop per operation."""

    functions: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    bytes: float = 0.0
    switches: float = 0.0

    def added(self, other: Counts, factor: float = 1.0) -> Counts:
        """This plus ``other`` times ``factor``."""
        return Counts(
            _sum(self.functions, other.functions, factor),
            _sum(self.calls, other.calls, factor),
            self.bytes + other.bytes * factor,
            self.switches + other.switches * factor,
        )

    def per(self, operations: float) -> Counts:
        return Counts().added(self, 1 / operations)

    def judged(self) -> dict[str, float]:
        """The judged totals. If an idle process did more work than a busy process, the count is 0."""
        return {
            "frames": max(0.0, sum(self.functions.values())),
            "syscalls": max(
                0.0, sum(n for name, n in self.calls.items() if name not in LOCKS and not is_wake_up(name))
            ),
            "bytes": max(0.0, self.bytes),
        }

    def reported(self) -> dict[str, float]:
        """The totals that depend on the scheduler."""
        return {
            "wake_ups": max(0.0, sum(n for name, n in self.calls.items() if is_wake_up(name))),
            "futex": max(0.0, sum(self.calls[name] for name in LOCKS)),
            "context_switches": max(0.0, self.switches),
        }


def is_wake_up(call: str) -> bool:
    """Whether a counted call wakes a thread, or waits until another thread or process wakes this one."""
    return call in POLLS or call.endswith(WAKE_UP)


def _sum(one: Counter[str], other: Counter[str], factor: float) -> Counter[str]:
    both: Counter[str] = Counter(one)
    for name, count in other.items():
        both[name] += count * factor  # type: ignore[assignment]  # counts per operation are fractions
    return both


def without_idle(busy: Counts, busy_s: float, idle: Counts, idle_s: float, operations: int) -> Counts:
    """Counts per operation, minus those of the idle cluster in the same time (heartbeats, metadata, timers)."""
    return busy.added(idle, -busy_s / idle_s).per(operations)


def mean(counts: Iterable[Counts]) -> Counts:
    all_of_them = list(counts)
    total = Counts()
    for each in all_of_them:
        total = total.added(each)
    return total.per(len(all_of_them))


# -- strace's output ---------------------------------------------------------------------------------------------------

_LINE = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)")
_RESULT = re.compile(r"\) += (\d+)")
_MARK = re.compile(r'"/headrace-budget/([^"]*)"')


def calls_by_phase(lines: Iterable[str], process_of: Mapping[int, int]) -> dict[str, dict[int, Counts]]:
    """phase -> process id -> counts, from the output of ``strace -f -o``.

    A phase begins with a call that names the path ``/headrace-budget/PHASE``; calls before the first one and in the
    phase "" do not count. ``process_of`` maps thread ids to process ids; new threads are learned from ``clone``. A call
    that strace shows in two parts counts where it ends, because only the second part has the result.

    Opens of /dev/null and as many closes do not count: a node opens 32 descriptors at intervals, to check whether that
    many are free (headrace_core.node.descriptors).
    """
    processes = dict(process_of)
    found: dict[str, dict[int, Counts]] = defaultdict(lambda: defaultdict(Counts))
    probing: set[int] = set()  # threads in an unfinished open of /dev/null
    phase = ""
    for line in lines:
        if not (parsed := _LINE.match(line)):
            continue
        thread, name = int(parsed[1]), parsed[2]
        if (mark := _MARK.search(line)) is not None:
            phase = mark[1]
            continue
        is_probe = name == "openat" and '"/dev/null"' in line
        if line.rstrip().endswith("<unfinished ...>"):
            if is_probe:
                probing.add(thread)
            continue
        result = _RESULT.search(line)
        value = int(result[1]) if result is not None else 0
        process = processes.get(thread, thread)
        if name in ("clone", "clone3") and value:
            processes[value] = process
        if not phase:
            continue
        counts = found[phase][process]
        if is_probe or (name == "openat" and thread in probing):
            probing.discard(thread)
            counts.calls["close"] -= 1
            continue
        wakes = name in ("read", "write", "recvfrom", "sendto") and 0 < value <= WAKE_UP_BYTES
        counts.calls[name + WAKE_UP if wakes else name] += 1
        if name in COPIES:
            counts.bytes += value
    return {each: dict(by_process) for each, by_process in found.items()}


# -- the baseline ------------------------------------------------------------------------------------------------------


def as_json(measured: Mapping[str, Mapping[str, Counts]]) -> dict[str, Any]:
    """path -> hop -> counts per operation, rounded, with the largest functions and system calls."""
    paths = {}
    for path in PATHS:
        if path.name in measured:
            hops = {hop: _hop_json(measured[path.name][hop]) for hop in path.hops}
            paths[path.name] = {
                "title": path.title,
                "operation": path.operation,
                "operations": path.operations,
                "records": path.records,
                "hops": hops,
            }
    return {"paths": paths}


def _hop_json(counts: Counts) -> dict[str, Any]:
    return {
        **{name: round(value, 1) for name, value in counts.judged().items()},
        "reported": {name: round(value, 1) for name, value in counts.reported().items()},
        "largest_functions": _largest(counts.functions),
        "largest_syscalls": _largest(Counter({k: v for k, v in counts.calls.items() if k not in LOCKS})),
    }


def _largest(counts: Counter[str]) -> dict[str, float]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:NAMED]
    return {name: round(count, 1) for name, count in ordered if count >= 0.05}


def text_of(baseline: Mapping[str, Any]) -> str:
    return json.dumps(baseline, indent=1) + "\n"


def envelope(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The baseline of several runs: the first run, with the largest of each judged count."""
    found: dict[str, Any] = json.loads(json.dumps(runs[0]))
    for name, path in found["paths"].items():
        for hop, counts in path["hops"].items():
            for count in FLOORS:
                counts[count] = max(run["paths"][name]["hops"][hop][count] for run in runs)
    return found


@dataclass(frozen=True, slots=True)
class Growth:
    """A judged count that grew more than allowed; counts are per operation."""

    path: str
    operation: str
    hop: str
    count: str
    before: float
    after: float

    def __str__(self) -> str:
        share = f"{self.after / self.before - 1:+.0%}" if self.before else "new"
        return (
            f"{self.path}, {self.hop}: {self.count} per {self.operation} grew from {self.before:,.1f} to "
            f"{self.after:,.1f} ({share})"
        )


def growths(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Growth]:
    """The judged counts of ``after`` that exceed ``before`` by more than GROWTH_MAX and more than their floor.

    Raises ValueError if ``before`` lacks a path or hop of ``after``: a new path needs a new baseline.
    """
    found = []
    for name, path in after["paths"].items():
        for hop, counts in path["hops"].items():
            try:
                old = before["paths"][name]["hops"][hop]
            except KeyError:
                raise ValueError(f"the baseline has no counts of {name}, {hop}") from None
            for count, floor in FLOORS.items():
                if (name, hop, count) in UNSTABLE:
                    continue
                if counts[count] > old[count] + max(GROWTH_MAX * old[count], floor):
                    found.append(Growth(name, path["operation"], hop, count, old[count], counts[count]))
    return found


# -- the command -------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description="Count what each path costs, hop by hop.")
    parser.add_argument("--save", action="store_true", help="write the counts as the new baseline")
    parser.add_argument("--json", type=Path, help="also write the counts to this file")
    parser.add_argument("--only", default="", help="only the paths whose names match this regular expression")
    parser.add_argument("--count-to", type=Path, help=argparse.SUPPRESS)  # internal: makes one count
    arguments = parser.parse_args()
    paths = tuple(path for path in PATHS if re.search(arguments.only, path.name))
    if arguments.save and paths != PATHS:
        parser.error("--save needs every path; leave --only out")

    try:
        if arguments.count_to is not None:
            count_to(arguments.count_to, paths)
            return 0
        found = counted(paths)
        if arguments.save:
            found = envelope([found, *(counted(paths) for _ in range(SAVED_RUNS - 1))])
        if arguments.json is not None:
            arguments.json.write_text(text_of(found))
        if arguments.save:
            BASELINE.write_text(text_of({"versions": versions(), **found}))
            print(f"budget: wrote {BASELINE.relative_to(ROOT)}; now run tools/budget_docs.py generate")
            return 0
        return judge(found)
    except BudgetError as error:
        print(f"budget: {error}", file=sys.stderr)
        return 2


def count_to(file: Path, paths: tuple[BudgetPath, ...]) -> None:
    """Count the paths on a new cluster, and write the counts. Raises BudgetError."""
    from budget_world import measured

    with tempfile.TemporaryDirectory(prefix="headrace-budget-") as name:
        file.write_text(text_of(as_json(measured(Path(name), paths))))


def counted(paths: Sequence[BudgetPath]) -> dict[str, Any]:
    """Count the paths, and print the counts. Raises BudgetError.

    Each count needs a new process: the SDK's I/O thread outlives its clients, and a thread that runs already cannot be
    profiled.
    """
    began = time.monotonic()
    names = "|".join(f"^{path.name}$" for path in paths)
    with tempfile.TemporaryDirectory(prefix="headrace-budget-") as directory:
        file = Path(directory) / "counts.json"
        command = [sys.executable, __file__, "--only", names, "--count-to", str(file)]
        if subprocess.run(command, check=False).returncode:
            raise BudgetError("a count failed; its error is above")
        found: dict[str, Any] = json.loads(file.read_text())
    for path, costs in found["paths"].items():
        for hop, counts in costs["hops"].items():
            print(
                f"{path:20} {hop:13} {counts['frames']:10,.1f} frames {counts['syscalls']:8,.1f} syscalls "
                f"{counts['bytes']:12,.0f} bytes  per {costs['operation']}"
            )
    print(f"budget: counted in {time.monotonic() - began:.0f} s", flush=True)
    return found


def judge(found: dict[str, Any]) -> int:
    """Compare with the baseline; returns the exit code. A growth is reported only if a second run shows it too, because
    now and then a run includes a checkpoint or a slow timer."""
    if not BASELINE.exists():
        print("budget: there is no baseline; run make bench-budget BENCH=--save", file=sys.stderr)
        return 2
    baseline = json.loads(BASELINE.read_text())
    if (differing := growths(baseline, found)) and baseline["versions"] != versions():
        print(f"budget: the baseline was made with {baseline['versions']}, this run has {versions()}", file=sys.stderr)
    if differing:
        names = {growth.path for growth in differing}
        print(f"budget: counting again because of {', '.join(map(str, differing))}", flush=True)
        again = growths(baseline, counted([path for path in PATHS if path.name in names]))
        both = {(growth.path, growth.hop, growth.count) for growth in differing}
        differing = [growth for growth in again if (growth.path, growth.hop, growth.count) in both]
    for growth in differing:
        print(f"budget: {growth}", file=sys.stderr)
    if differing:
        print("budget: remove the cost, or say in the commit why it is needed, and run make bench-budget BENCH=--save")
        return 1
    print(f"budget: no judged count grew by more than {GROWTH_MAX:.0%}")
    return 0


def versions() -> dict[str, str]:
    """Versions that change counts without a change of our code."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("grpcio", "pyarrow", "uvloop")}}


if __name__ == "__main__":
    import budget  # budget_world imports this module by its name, too: there is one BudgetError

    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(budget.main())
