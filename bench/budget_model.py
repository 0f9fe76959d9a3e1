"""The pure part of bench/budget.py: which counts there are, and how they are subtracted, compared and written. It
starts no processes.

A *path* is one way through the product, such as "produce, RF 3". An *operation* is what the path repeats: a batch, a
record or a transaction. A *hop* is one process on the path: client, leader, follower, coordinator, gateway.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
        "gateway-record",
        "one record of a Kafka client through a gateway, RF 3, acks=all",
        "record",
        1,
        40,
        ("gateway", "leader", "follower"),
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
