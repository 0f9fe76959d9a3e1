"""`make test`, and what failed in it once more, alone: what CI runs.

CI's machine is slow and shared with others. A test of real processes that waits generously may still meet a minute in
which nothing moves. So what failed is run again, with nothing beside it (Kafka's own build does the same:
maxTestRetries=1). What passes then is flaky: it is named loudly, so that somebody mends it. What fails twice has
failed; so has everything when more than ten tests failed, for that is no accident.

    tools/test_again.py            the exit code is 0 when every test has passed, the first time or the second
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST = ("make", "--no-print-directory", "test")
AGAIN = ("tools/test.sh", "--last-failed", "--last-failed-no-failures", "none")
AGAIN_MAX = 10

_SUMMARY = re.compile(r"=* ?(?P<counts>(?:\d+ \w+,? ?)+) in (?P<seconds>[\d.]+)s")


def run(
    first: Sequence[str] = FIRST, again: Sequence[str] = AGAIN, *, root: Path = ROOT, cache: Path | None = None
) -> int:
    """The exit code. ``cache``: where pytest keeps what failed."""
    failed_file = (cache or root / ".pytest_cache") / "v" / "cache" / "lastfailed"
    failed_file.unlink(missing_ok=True)  # of other runs
    code, summary = _run(first, root)
    failed = sorted(json.loads(failed_file.read_text())) if failed_file.exists() else []
    if code == 0 or not failed:
        return code
    if len(failed) > AGAIN_MAX:
        print(f"test: {len(failed)} tests failed, more than the {AGAIN_MAX} that are run again")
        return code
    print(f"test: {len(failed)} failed; again, alone: {', '.join(failed)}", flush=True)
    code, _ = _run(again, root, {"TEST_WORKERS": "1"})
    if code:
        return code
    for name in failed:
        print(f"test: FLAKY: {name} failed, and passed when it ran again, alone. Mend it.")
    print(f"=== {_with_flaky(summary, len(failed))} ===", flush=True)
    return 0


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
