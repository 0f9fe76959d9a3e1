"""The option ``--watch``: repeat a command every few seconds until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from headrace_core.errors import HeadraceError

from .output import OutputFormat, note
from .times import duration

Seen = TypeVar("Seen")

INTERVAL_S = 2.0

Watch = Annotated[
    bool,
    typer.Option("--watch", "-w", help="Repeat every --interval until Ctrl-C; with -o json one document per line."),
]
Interval = Annotated[float, duration("--interval", least_s=0.1, help="Time between two updates of --watch.")]

#: Terminal codes that move the cursor to the top left and clear the screen.
_CLEAR = "\x1b[H\x1b[2J"


def watched(
    look: Callable[[], Seen],
    show: Callable[[Seen], int],
    *,
    watch: bool,
    interval_s: float,
    output: OutputFormat,
) -> int:
    """Call ``look`` and ``show`` repeatedly; an exit code of ``show`` other than 0 ends the loop and is returned.

    A terminal replaces the previous text; in a pipe a blank line separates the texts. If the first call of ``look``
    fails, its error is raised. Errors after the first ``look`` are printed to stderr and ``look`` is repeated, because
    a failed coordinator is soon replaced.
    """
    is_first = True
    while True:
        try:
            seen = look()
        except HeadraceError as error:
            if is_first:
                raise
            note(f"headrace: {error.message} [{error.code}]")
        else:
            if watch and output is OutputFormat.TEXT:
                if sys.stdout.isatty():
                    sys.stdout.write(_CLEAR)
                elif not is_first:
                    sys.stdout.write("\n")
            code = show(seen)
            sys.stdout.flush()
            is_first = False
            if code or not watch:
                return code
        time.sleep(interval_s)
