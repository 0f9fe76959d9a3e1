"""Count the costs of each path, hop by hop, and compare them with the committed baseline.

    budget.py                 compare with bench/budget.json; exit 1 if a judged count grew by more than 15 %
    budget.py --save          count three times, and write the largest counts as the new baseline
    budget.py --json FILE     also write the counts to this file
    budget.py --only REGEX    only the paths whose names match

Counts hardly depend on the speed of the machine, so CI can judge them. But on a machine that is busy with other work,
the brokers of a transaction make 10 to 20 % more calls, so CI counts before it starts anything else.

For each path and hop the tool counts:

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
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from budget_model import GROWTH_MAX, PATHS, BudgetError, BudgetPath, as_json, envelope, growths, text_of
from measure import ROOT

BASELINE = ROOT / "bench" / "budget.json"
#: Number of runs for a baseline, which keeps their largest counts, because wake-ups differ from run to run.
SAVED_RUNS = 3


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
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    sys.exit(main())
