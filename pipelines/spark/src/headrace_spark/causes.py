"""The cause of a failed query: the line of Spark's error that says what is wrong."""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

from pyspark.errors import PySparkException


def cause(text: str) -> str:
    """Find the line of Spark's error that says what is wrong: the last line before the description of the query and
    the stack of the JVM."""
    told = text.partition("\n=== Streaming Query ===")[0].partition("\nJVM stacktrace:")[0]
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    frames = ("at ", "File ", "... ", "SQLSTATE: ")
    found = next((line for line in reversed(lines) if not line.startswith(frames)), text)
    return found.partition(" SQLSTATE: ")[0]


def tell_causes() -> None:
    """Let an uncaught error of a query end with its cause. Spark ends it with a SQLSTATE and the plan, after the stacks
    of the worker and the JVM, which Spark's log has, too."""
    if sys.excepthook is not _tell:
        _tell.before = sys.excepthook  # type: ignore[attr-defined]
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
    text = str(error) if isinstance(error, PySparkException) else ""
    if "Traceback (most recent call last)" not in text and "=== Streaming Query ===" not in text:
        _tell.before(kind, error, frames)  # type: ignore[attr-defined]
        return
    print("Traceback (most recent call last):\n" + "".join(traceback.format_tb(frames)), end="", file=sys.stderr)
    print(f"{kind.__module__}.{kind.__qualname__}: {cause(text)}", file=sys.stderr)
