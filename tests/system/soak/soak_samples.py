"""Sample memory, descriptors and threads of processes, and compare two windows of a run."""

from __future__ import annotations

import contextlib
import csv
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The figures that are judged, and the figure that is only reported.
JUDGED = ("rss_mib", "descriptors", "threads")
REPORTED = ("pss_mib", "grpc_threads")
#: Prefixes of the names of gRPC's native threads. A growing number of these threads is no sign of a leak
#: (docs/soak.md), so they are counted separately.
GRPC_THREADS = ("event_engine", "grpc_", "lifeguard", "timer_manager", "resolver-", "default-exec")
#: The median of the late window may exceed the median of the early window by this share.
GROWTH_MAX = 0.05
#: The early window, in minutes. The late window is the last hour, or in a shorter run the time after minute 30.
EARLY = (10.0, 30.0)
#: Shorter runs have no verdict on growth.
MINUTES_MIN = 45.0
#: A restarted process counts from this age on, in seconds: its start is not the steady state.
AGE_MIN_S = 30.0
#: The growth of a controller in one state (active or follower) is judged if each window has this many samples of that
#: state.
STATE_SAMPLES_MIN = 60
#: Bounds for runs of any length, per process.
RSS_MIB_MAX = {"controller": 400, "broker": 400, "coordinator": 400, "client": 600}
DESCRIPTORS_MAX, THREADS_MAX, GRPC_THREADS_MAX = 1_000, 150, 40


@dataclass(frozen=True, slots=True)
class Process:
    """``kept``: the process is never killed during the run, so its growth is judged. ``state``: "active" or "follower"
    for a controller, because an active controller has the connections of all nodes; else empty."""

    name: str
    role: str
    pid: int
    kept: bool
    state: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """``minute``: minute of the run; ``age_s``: age of the process in seconds."""

    minute: float
    name: str
    role: str
    kept: bool
    age_s: float
    rss_mib: float
    pss_mib: float
    descriptors: int
    #: The number of threads without gRPC's native threads.
    threads: int
    grpc_threads: int
    state: str = ""


def take(process: Process, minute: float) -> Sample | None:
    """Take a sample of a process; None if the process has ended."""
    base = Path(f"/proc/{process.pid}")
    try:
        memory = dict(_numbers((base / "smaps_rollup").read_text()))
        names = list(thread_names(process.pid))
        started = int((base / "stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        descriptors = len(os.listdir(base / "fd"))
    except (OSError, KeyError):
        return None
    grpc_threads = sum(name.startswith(GRPC_THREADS) for name in names)
    return Sample(
        round(minute, 3), process.name, process.role, process.kept,
        round(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 1),
        round(memory.get("Rss", 0) / 1024, 2), round(memory.get("Pss", 0) / 1024, 2), descriptors,
        len(names) - grpc_threads, grpc_threads, process.state,
    )  # fmt: skip


def thread_names(pid: int) -> Iterator[str]:
    """The names of the process's threads in the kernel: a Python thread has the name of its program. Raises OSError if
    the process has ended."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            yield (thread / "comm").read_text().rstrip("\n")


def _numbers(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        first = rest.split(maxsplit=1)[0] if rest.strip() else ""
        if first.isdigit():
            yield name, int(first)


class Sampler(threading.Thread):
    """Samples all processes every ``every_s`` seconds, and writes each sample to a CSV file at once."""

    def __init__(self, processes: Callable[[], Iterable[Process]], path: Path, *, every_s: float = 5.0) -> None:
        super().__init__(name="sampler", daemon=True)
        self.samples: list[Sample] = []
        self.error: BaseException | None = None
        self._processes, self._path, self._every_s = processes, path, every_s
        self._stopped = threading.Event()
        self._begun = time.monotonic()

    @property
    def minute(self) -> float:
        return (time.monotonic() - self._begun) / 60

    def run(self) -> None:
        try:
            with self._path.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(Sample.__slots__)
                while not self._stopped.wait(self._every_s):
                    for process in self._processes():
                        sample = take(process, self.minute)
                        if sample is not None:
                            self.samples.append(sample)
                            writer.writerow([getattr(sample, name) for name in Sample.__slots__])
                    file.flush()
        except BaseException as error:
            self.error = error
            raise

    def stop(self) -> None:
        self._stopped.set()
        self.join(30)


def windows(minutes: float) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """(early, late) in minutes; None for a run that is too short."""
    if minutes < MINUTES_MIN:
        return None
    return EARLY, (max(EARLY[1], minutes - 60), minutes)


def compare(samples: Iterable[Sample], minutes: float) -> list[dict[str, Any]]:
    """The medians of both windows for each process in each of its states, with the processes that grew too much first:
    ``{"name", "role", "judged", "misses", figure: {"early", "late", "growth"}, ...}``. Without windows the medians are
    those of the whole run."""
    by_name: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        if sample.age_s >= AGE_MIN_S:
            by_name.setdefault((sample.name, sample.state), []).append(sample)
    spans = windows(minutes)
    rows = [_row(found, spans) for found in by_name.values()]
    for name in {sample.name for sample in samples if sample.kept and spans}:
        mine = [row for row in rows if row["name"].partition(",")[0] == name]
        if mine and not any(row["judged"] for row in mine):
            mine[0]["misses"].append(f"{name}: in no state long enough in both windows, so its growth is unknown")
    return sorted(rows, key=lambda row: (not row["misses"], not row["judged"], row["role"], row["name"]))


def _row(samples: list[Sample], spans: tuple[tuple[float, float], tuple[float, float]] | None) -> dict[str, Any]:
    first = samples[0]
    judged = first.kept and spans is not None
    if judged and first.state:
        judged = all(sum(s <= each.minute < e for each in samples) >= STATE_SAMPLES_MIN for s, e in spans or ())
    row: dict[str, Any] = {
        "name": f"{first.name}, {first.state}" if first.state else first.name, "role": first.role, "judged": judged,
        "misses": [],
    }  # fmt: skip
    for figure in (*JUDGED, *REPORTED):
        if spans is None:
            row[figure] = {"median": _median(samples, figure)}
            continue
        early, late = (
            _median([each for each in samples if start <= each.minute < end], figure) for start, end in spans
        )
        growth = round(late / early - 1, 4) if early and late is not None else None
        row[figure] = {"early": early, "late": late, "growth": growth}
        if row["judged"] and figure in JUDGED and (growth is None or growth > GROWTH_MAX):
            row["misses"].append(f"{row['name']}: {figure} {early} in the early window, {late} in the late one")
    return row


def _median(samples: list[Sample], figure: str) -> float | None:
    return round(statistics.median(getattr(each, figure) for each in samples), 2) if samples else None


def beyond_bounds(samples: Iterable[Sample]) -> list[str]:
    """For each process and figure the worst sample above its absolute bound, as text."""
    worst: dict[tuple[str, str], tuple[float, float, float]] = {}
    for sample in samples:
        for figure, bound in (
            ("rss_mib", RSS_MIB_MAX[sample.role]), ("descriptors", DESCRIPTORS_MAX),
            ("threads", THREADS_MAX), ("grpc_threads", GRPC_THREADS_MAX)
        ):  # fmt: skip
            value = getattr(sample, figure)
            if value > max(bound, worst.get((sample.name, figure), (0, 0, 0))[0]):
                worst[sample.name, figure] = (value, bound, sample.minute)
    return [
        f"{name}: {figure} {value:g} in minute {minute:.0f}, bound {bound:g}"
        for (name, figure), (value, bound, minute) in sorted(worst.items())
    ]
