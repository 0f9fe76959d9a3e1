"""Run `make test`, then run the tests that timed out a second time, with no other tests beside them. CI runs this tool,
because CI's machine is slow and shared. A test of real processes with generous timeouts may still fail because the
machine runs nothing for a minute. A test that timed out runs again with no other test beside it (Kafka's build does the
same: maxTestRetries=1). If the second run of a test passes, the test is reported as flaky and must be fixed. If both
runs of a test fail, the test has failed.

Tests that fail for a reason other than a timeout do not run again: violated invariants, failed assertions, errors, and
crashed workers. Violated invariants are lost, duplicated or reordered records, and partitions with two owners. A
failure that is not a timeout fails the whole run at once. tests/conftest.py records the cause of each failure
(headrace_core.testing.verdicts defines timeouts). A test without a recorded cause does not run again. After more than
ten failures, no test runs again.

    tools/test_again.py            exit code 0 when every test has passed, in the first or the second run
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST = ("make", "--no-print-directory", "test")
AGAIN = ("tools/test.sh", "--last-failed", "--last-failed-no-failures", "none")
AGAIN_MAX = 10
#: The same text as in headrace_core.testing.verdicts.
RECORD_KEY, TIME_OUT = "HEADRACE_TEST_VERDICTS", "time-out"

_SUMMARY = re.compile(r"=* ?(?P<counts>(?:\d+ \w+,? ?)+) in (?P<seconds>[\d.]+)s")


def run(
    first: Sequence[str] = FIRST, again: Sequence[str] = AGAIN, *, root: Path = ROOT, cache: Path | None = None
) -> int:
    """Run the tests, and the failed tests again; returns the exit code. ``cache``: pytest's directory of failed
    tests."""
    failed_file = (cache or root / ".pytest_cache") / "v" / "cache" / "lastfailed"
    failed_file.unlink(missing_ok=True)  # remove the results of earlier runs
    with tempfile.TemporaryDirectory() as directory:
        record = Path(directory) / "verdicts"
        code, summary = _run(first, root, {RECORD_KEY: str(record)})
        ended = _ended(record)
    failed = sorted(json.loads(failed_file.read_text())) if failed_file.exists() else []
    if code == 0 or not failed:
        return code
    if len(failed) > AGAIN_MAX:
        print(f"test: {len(failed)} tests failed, more than the {AGAIN_MAX} that are run again")
        return code
    if final := [name for name in failed if {kind for kind, _ in ended.get(name, [("", "")])} != {TIME_OUT}]:
        for name in final:
            why = "; ".join(f"{kind}: {error}" for kind, error in ended.get(name, [])) or "no cause was recorded"
            print(f"test: NOT RUN AGAIN: {name} was not ended by a timeout ({why})", flush=True)
        return code
    print(f"test: {len(failed)} did not end in time; running again, alone: {', '.join(failed)}", flush=True)
    code, _ = _run(again, root, {"TEST_WORKERS": "1"})
    if code:
        return code
    for name in failed:
        print(f"test: FLAKY: {name} failed, and passed when it ran again, alone. Mend it.")
    print(f"=== {_with_flaky(summary, len(failed))} ===", flush=True)
    return 0


def _ended(record: Path) -> dict[str, list[tuple[str, str]]]:
    """The causes of each failed test: (kind, error) of the test's call, and of its teardown if the teardown failed."""
    ended: dict[str, list[tuple[str, str]]] = {}
    for line in record.read_text(encoding="utf-8").splitlines() if record.exists() else ():
        found = json.loads(line)
        ended.setdefault(found["test"], []).append((found["kind"], found["error"]))
    return ended


def _run(command: Sequence[str], root: Path, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run pytest; returns the exit code and the last summary of pytest. The output of pytest is printed at once."""
    summary = ""
    with subprocess.Popen(
        command,
        cwd=root,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if _SUMMARY.search(line):
                summary = line.strip("= \n")
    # `make` returns 2 for any failure.
    return process.returncode, summary


def _with_flaky(summary: str, count: int) -> str:
    """Count the flaky tests as passed: ``2 failed, 8 passed in 3s`` becomes ``10 passed (2 of them flaky: passed only
    when run again, alone) in 3s``."""
    rest = re.sub(r"\d+ (failed|errors?),? ?", "", summary)
    flaky = f"({count} of them flaky: passed only when run again, alone)"
    if (passed := re.search(r"(\d+) passed", rest)) is None:
        return f"{count} passed {flaky}, {rest}" if rest else f"{count} passed {flaky}"
    return rest.replace(passed[0], f"{int(passed[1]) + count} passed {flaky}", 1)


if __name__ == "__main__":
    sys.exit(run())
