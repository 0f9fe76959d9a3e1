"""Classify a test's failure: a timeout that a slow machine may explain, or a verdict on the product.

    SafetyViolation     a verdict: the product broke a guarantee (a record was lost, repeated or reordered, ...)
    NotInTimeError      a timeout: a condition did not come true in time, because of a slow machine or a bug
    TimeoutError, subprocess.TimeoutExpired, the failure of pytest-timeout
                        a timeout
    Hypothesis's error for an example whose second run differs from the first
                        a timeout, if the test ran until the limit of pytest-timeout. tests/conftest.py records an
                        example that failed before that limit instead
    HeadraceError       a verdict, even for the product's timeouts, because an acknowledgement that never comes is one
                        of them. A ClusterStartError that was raised from a timeout is a timeout
    any other error     a verdict, such as a failed assertion

Only a test that timed out may run again (tools/test_again.py, from the file that ``record`` writes). A failure is
classified as a timeout when the exception that ends the test is a timeout. An exception other than an assertion is also
classified as a timeout if it was raised from a timeout. A SafetyViolation among the exception's causes and contexts
overrides a timeout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from headrace_core.errors import ClusterStartError, HeadraceError

#: Environment variable with the path of the file to which ``record`` appends; without the variable, ``record`` writes
#: nothing.
RECORD_KEY = "HEADRACE_TEST_VERDICTS"
SAFETY, TIME_OUT, FAILURE = "safety", "time-out", "failure"
KEPT_MAX = 3  #: Maximum number of copies of a data directory that are kept.
_PYTEST_TIMEOUT = "from pytest-timeout"
#: Errors with which Hypothesis replaces a timeout: Hypothesis repeats a failed example, and an example that timed out
#: behaves differently in the second run. The errors are listed by name, because the product does not import Hypothesis.
_DIFFERED = ("Flaky", "FlakyReplay", "FlakyStrategyDefinition")


class SafetyViolation(AssertionError):
    """Raised when the product broke a guarantee. A test that raises SafetyViolation is never retried."""


class NotInTimeError(AssertionError):
    """Raised when a condition did not become true in time."""


def kind_of(error: BaseException, *, cut_short: bool = False) -> str:
    """Classify an exception as SAFETY, TIME_OUT or FAILURE. ``cut_short``: the test ran until pytest-timeout's
    limit."""
    if any(isinstance(each, SafetyViolation) for each in _history(error)):
        return SAFETY
    if cut_short and type(error).__name__ in _DIFFERED:
        return TIME_OUT
    return TIME_OUT if _is_time_out(error) else FAILURE


def record(test: str, error: BaseException, *, cut_short: bool = False) -> None:
    """Append the failure of ``test``, as a line of JSON, to the file that RECORD_KEY names. ``cut_short`` has the same
    meaning as in ``kind_of``."""
    path = os.environ.get(RECORD_KEY)
    if not path:
        return
    line = {
        "test": test,
        "kind": kind_of(error, cut_short=cut_short),
        "error": f"{type(error).__name__}: {error}"[:500],
    }
    # (append and close: a short line is written at once, beside other writers)
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def keep(directory: Path, root: Path, name: str) -> Path:
    """Copy a data directory to ``root``/``name``, where no later run removes it; only the newest KEPT_MAX copies
    stay."""
    kept = root / name
    shutil.rmtree(kept, ignore_errors=True)
    root.mkdir(parents=True, exist_ok=True)
    shutil.copytree(directory, kept, symlinks=True, ignore=_special_files, ignore_dangling_symlinks=True)
    os.utime(kept)
    for old in sorted(root.iterdir(), key=lambda each: each.stat().st_mtime)[:-KEPT_MAX]:
        shutil.rmtree(old, ignore_errors=True)
    return kept


def _special_files(directory: str, names: list[str]) -> list[str]:
    """Return the names of sockets and pipes, which cannot be copied."""
    paths = ((name, Path(directory, name)) for name in names)
    return [name for name, path in paths if not (path.is_file() or path.is_dir() or path.is_symlink())]


def _is_time_out(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_is_time_out(each) for each in error.exceptions)
    if isinstance(error, HeadraceError) and not isinstance(error, ClusterStartError):
        return False
    if isinstance(error, NotInTimeError | TimeoutError | subprocess.TimeoutExpired):
        return True
    if isinstance(error, AssertionError):
        return False
    if type(error).__name__ == "Failed" and _PYTEST_TIMEOUT in str(error):
        return True
    return error.__cause__ is not None and _is_time_out(error.__cause__)


def _history(error: BaseException | None) -> Iterator[BaseException]:
    """Iterate over an exception, its causes and contexts, and the members of exception groups."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
