"""`make test`, and what did not come in time in it once more, alone: what CI runs.

CI's machine is slow and shared with others. A test of real processes that waits generously may still meet a minute in
which nothing moves. So a test that a time-out ended runs again, with nothing beside it (Kafka's own build does the
same: maxTestRetries=1). If it passes then, it is flaky: it is named loudly, so that somebody mends it. If it fails
twice, it has failed.

Nothing else runs again: no verdict about safety (lost, doubled, reordered, shared, a violated invariant), no failed
assertion, no error, no crashed worker. One of these fails the whole run at once. tests/conftest.py records what ended
each test (headrace_core.testing.verdicts says what counts as a time-out); a test without a record has no second chance.
Nor has any when more than ten failed, for that is no accident.

    tools/test_again.py            the exit code is 0 when every test has passed, the first time or the second
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
#: As headrace_core.testing.verdicts has them.
RECORD_KEY, TIME_OUT = "HEADRACE_TEST_VERDICTS", "time-out"

_SUMMARY = re.compile(r"=* ?(?P<counts>(?:\d+ \w+,? ?)+) in (?P<seconds>[\d.]+)s")


def run(
    first: Sequence[str] = FIRST, again: Sequence[str] = AGAIN, *, root: Path = ROOT, cache: Path | None = None
) -> int:
    """The exit code. ``cache``: where pytest keeps what failed."""
    failed_file = (cache or root / ".pytest_cache") / "v" / "cache" / "lastfailed"
    failed_file.unlink(missing_ok=True)  # of other runs
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
            why = "; ".join(f"{kind}: {error}" for kind, error in ended.get(name, [])) or "nothing recorded why"
            print(f"test: NOT RUN AGAIN: {name} was not ended by a time-out ({why})", flush=True)
        return code
    print(f"test: {len(failed)} did not end in time; again, alone: {', '.join(failed)}", flush=True)
    code, _ = _run(again, root, {"TEST_WORKERS": "1"})
    if code:
        return code
    for name in failed:
        print(f"test: FLAKY: {name} failed, and passed when it ran again, alone. Mend it.")
    print(f"=== {_with_flaky(summary, len(failed))} ===", flush=True)
    return 0


def _ended(record: Path) -> dict[str, list[tuple[str, str]]]:
    """What ended each test that failed: (kind, error), for its call, and perhaps its teardown."""
    ended: dict[str, list[tuple[str, str]]] = {}
    for line in record.read_text(encoding="utf-8").splitlines() if record.exists() else ():
        found = json.loads(line)
        ended.setdefault(found["test"], []).append((found["kind"], found["error"]))
    return ended


def _run(command: Sequence[str], root: Path, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """The exit code, and pytest's last summary. Output is passed on as it comes."""
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
    # `make` says 2 for whatever failed in it.
    return process.returncode, summary


def _with_flaky(summary: str, count: int) -> str:
    """``2 failed, 8 passed in 3s`` -> ``10 passed (2 of them flaky: only when run again, alone) in 3s``."""
    rest = re.sub(r"\d+ (failed|errors?),? ?", "", summary)
    flaky = f"({count} of them flaky: only when run again, alone)"
    if (passed := re.search(r"(\d+) passed", rest)) is None:
        return f"{count} passed {flaky}, {rest}" if rest else f"{count} passed {flaky}"
    return rest.replace(passed[0], f"{int(passed[1]) + count} passed {flaky}", 1)


if __name__ == "__main__":
    sys.exit(run())
