"""What all benchmarks share: flags, rounds and medians, facts about the machine, steps, processes, saved results.

A sample has a dotted name with its subject and measure (``headrace.produce.arrow.commit``), and a unit. A peer measured
under several settings has a sample per setting (``kafka.producer-perf@batch-1m``); its best median counts. Rounds
alternate between Headrace and its peers, so that a slow minute affects both. Ratios are ratios of medians.
"""

from __future__ import annotations

import argparse
import datetime
import json
import mmap
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "bench"
PYTHON = sys.executable
REMOVAL_DELAY_MS = 1_000  #: Delay before the nodes of both systems remove the files of a deleted topic.
#: What fails a workload, but not the run.
FAILURES = (RuntimeError, OSError, KeyError, ValueError, subprocess.SubprocessError)

#: Units of rates: a larger figure is better; in all other units a smaller figure is better.
RATES = frozenset({"rec/s", "req/s", "rows/s", "txn/s", "MiB/s"})


@dataclass(frozen=True, slots=True)
class Best:
    """The best median of a figure, and its setting (empty if there was only one)."""

    setting: str
    median: float


@dataclass
class Samples:
    """name -> (unit, values in the order of the rounds)."""

    units: dict[str, str] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str) -> None:
        if self.units.setdefault(name, unit) != unit:
            raise ValueError(f"{name} was in {self.units[name]}, is in {unit}")
        self.values.setdefault(name, []).append(value)
        emit(sample=name, value=round(value, 4), unit=unit)

    def fail(self, name: str, why: str) -> None:
        """Report a failed workload at once, and keep it for the end and the exit code."""
        self.failures.append(f"{name}: {why}")
        emit(sample=name, failed=why)

    def median(self, name: str) -> float | None:
        values = self.values.get(name)
        return statistics.median(values) if values else None

    def by_setting(self, name: str) -> dict[str, float]:
        """setting -> median, in measured order; the key is empty without settings."""
        found = {}
        for each, values in self.values.items():
            base, _, setting = each.partition("@")
            if base == name and values:
                found[setting] = statistics.median(values)
        return found

    def best(self, name: str) -> Best | None:
        """The best median over the settings of ``name``: highest for rates, lowest for costs and times.

        Settings with fewer rounds (after failures) count as well. None: not measured.
        """
        found = self.by_setting(name)
        if not found:
            return None
        unit = next(unit for each, unit in self.units.items() if each.partition("@")[0] == name)
        setting = (max if unit in RATES else min)(found, key=found.__getitem__)
        return Best(setting, found[setting])

    def names_with_settings(self) -> list[str]:
        """The names of the figures, without the settings under which they were measured."""
        return sorted({base for base, at, _ in (each.partition("@") for each in self.values) if at})

    def ratio(self, ours: str, theirs: str) -> float | None:
        mine, other = self.median(ours), self.best(theirs)
        return mine / other.median if mine is not None and other is not None and other.median else None


#: The name of a workload, and the workload.
Step = tuple[str, Callable[[], None]]


def flags(doc: str | None, *, rounds: int = 3, warm_gib: float = 6.0) -> argparse.ArgumentParser:
    """The flags that most benchmarks have: --rounds, --only, --smoke (or --short), --warm-gib, --save."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--only", default="", help="run only the workloads whose name matches this regular expression")
    parser.add_argument("--smoke", "--short", action="store_true", help="small and quick; the figures mean nothing")
    parser.add_argument("--warm-gib", type=float, default=warm_gib, help="GiB of memory to touch first")
    parser.add_argument("--save", action="store_true", help="save the result into bench/results")
    return parser


def begin(asked: argparse.Namespace) -> Samples:
    """Say which machine this is, and touch its memory; a smoke run has one round."""
    if asked.smoke:
        asked.rounds = 1
    emit(machine=machine())
    if not asked.smoke and asked.warm_gib:
        emit(warmed_gib=asked.warm_gib, seconds=round(warm_memory(asked.warm_gib), 1))
    return Samples()


def run_steps(samples: Samples, steps: Iterable[Step], only: str = "") -> None:
    """Run the steps whose names match ``only``. A failed step is recorded, and the next one runs."""
    for name, work in steps:
        if re.search(only, name) is None:
            continue
        started = time.monotonic()
        try:
            work()
        except FAILURES as failure:
            samples.fail(name, str(failure))
        emit(step=name, seconds=round(time.monotonic() - started, 1))


def emit(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def machine() -> dict[str, Any]:
    memory_kib = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    cpu = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory_kib.split()[1]) / 2**20),
        "cpu": cpu[0] if cpu else platform.processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def warm_memory(gib: float) -> float:
    """Touch ``gib`` GiB of memory in a separate process, so that the host has provided the pages; return the seconds
    that this took.

    The first touch of a virtual machine's memory is many times slower than the second, and would distort the figures.
    """
    size = int(gib * 2**30)
    started = time.monotonic()
    if size and os.fork() == 0:
        with mmap.mmap(-1, size) as memory:
            for position in range(0, size, mmap.PAGESIZE):
                memory[position] = 1
        os._exit(0)
    elif size:
        os.wait()
    return time.monotonic() - started


def settle() -> None:
    """Wait until the disk is idle, so that the page cache of one workload is not written during the next workload.

    ``HEADRACE_BENCH_SETTLE=0`` skips the wait, which may take minutes while other programs write; use it where only the
    benchmark's code is tested.
    """
    if os.environ.get("HEADRACE_BENCH_SETTLE") != "0":
        os.sync()


def wait_for_removal(directory: Path, topic: str, timeout_s: float = 60.0) -> None:
    """Wait until the nodes with data in ``directory`` have removed the files of a deleted topic from the disk.

    While a file of a GiB is removed, a flush of another file may take 40 ms. By default the nodes of both systems
    remove the files after a minute, in the middle of another workload.
    """
    deadline = time.monotonic() + timeout_s
    while any(directory.glob(f"**/{topic}-*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    settle()


def run(command: list[str], *, timeout_s: float, env: dict[str, str] | None = None) -> str:
    """Standard output of a command, started on a settled disk. Raises RuntimeError with the end of the command's output
    when the command fails."""
    settle()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env={**os.environ, **(env or {})}, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command)}: not done after {timeout_s} s") from None
    if done.returncode:
        end = (done.stdout + done.stderr).strip()[-1200:]
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}: {end}")
    return done.stdout


def run_json(command: list[str], *, timeout_s: float, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The last JSON object that a command prints on standard output."""
    try:
        return json_at_the_end(run(command, timeout_s=timeout_s, env=env))
    except ValueError as failure:
        raise RuntimeError(f"{' '.join(command)}: {failure}") from None


def json_at_the_end(output: str) -> dict[str, Any]:
    """The last JSON object of a program's output. Raises ValueError if the output has no JSON object."""
    start = output.rfind("\n{") + 1 if "\n{" in output else output.find("{")
    try:
        parsed = json.loads(output[start:])
    except ValueError:
        raise ValueError(f"no JSON at the end of its output: {output[-400:]}") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"not a JSON object: {output[-400:]}")
    return parsed


def add_lines(samples: Samples, output: str) -> None:
    """Add the samples {"sample", "value", "unit"} that another benchmark printed, one per line."""
    for line in output.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            if "value" in found:
                samples.add(found["sample"], found["value"], found["unit"])


def rss_mib(pid: int) -> float:
    return _status_kib(pid, "VmRSS") / 1024


def peak_rss_mib(pid: int) -> float:
    return _status_kib(pid, "VmHWM") / 1024


def _status_kib(pid: int, key: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"no {key} for process {pid}")


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds of processes since their starts, user and system."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def fdatasync_ms(directory: Path, *, count: int = 500, size: int = 200) -> float:
    """Median time to force ``size`` appended bytes to disk, one after the other (ms)."""
    path = directory / "fdatasync"
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(count):
            file.write(b"x" * size)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - started) * 1e3)
    path.unlink()
    return statistics.median(taken)


def percentiles(milliseconds: list[float]) -> dict[str, float]:
    ordered = sorted(milliseconds)
    shares = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}
    return {name: round(ordered[max(0, int(len(ordered) * share + 0.999999) - 1)], 3) for name, share in shares.items()}


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def save(samples: Samples, *, what: str, extra: dict[str, Any]) -> Path:
    """Write bench/results/<date>-<machine>-<what>.json, with one line for each sample; returns its path."""
    facts = machine()
    day = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    path = ROOT / "bench" / "results" / f"{day}-{facts['cores']}cores-{facts['memory_gib']}gib-{what}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "date": day,
        "commit": commit(),
        "machine": facts,
        **extra,
        "samples": {
            name: {"unit": samples.units[name], "values": [round(value, 4) for value in values]}
            for name, values in sorted(samples.values.items())
        },
        "failures": samples.failures,
    }
    path.write_text(text_of(content))
    return path


def text_of(result: dict[str, Any]) -> str:
    """JSON with one line for each item, and for each sample."""
    parts = []
    for key, value in result.items():
        if isinstance(value, dict | list) and value and key != "machine":
            names = value if isinstance(value, list) else value.items()
            lines = [
                json.dumps(each) if isinstance(value, list) else f"{json.dumps(each[0])}: {json.dumps(each[1])}"
                for each in names
            ]
            opening, closing = ("[", "]") if isinstance(value, list) else ("{", "}")
            parts.append(f"{json.dumps(key)}: {opening}\n  " + ",\n  ".join(lines) + f"\n {closing}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def table(samples: Samples) -> str:
    """Every median, one per line, for people."""
    width = max((len(name) for name in samples.values), default=0)
    lines = []
    for name in sorted(samples.values):
        values = samples.values[name]
        spread = f"{min(values):,.6g} .. {max(values):,.6g}" if len(values) > 1 else ""
        lines.append(f"{name:<{width}}  {statistics.median(values):>16,.6g} {samples.units[name]:<8} {spread}")
    return "\n".join(lines)
