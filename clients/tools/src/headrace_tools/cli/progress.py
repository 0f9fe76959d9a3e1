"""Progress of long work: a bar where stderr is a terminal, otherwise one line every few seconds.

Progress is written to stderr, never to stdout. There is no bar if the terminal cannot redraw (``TERM=dumb``). There is
no bar either if records are printed to the same terminal (``beside_records``), because bar and records would overwrite
each other. The bar disappears when the work ends; notes that are printed during the work stay above it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from .output import note

#: Shortest interval in seconds between two redraws of a progress bar, and interval in seconds of progress lines without
#: a bar.
DRAW_S = 0.1
LINE_S = 2.0


class HowFar(NamedTuple):
    """The amount of finished work: ``done`` of ``total`` (0: unknown), and a text for the display."""

    done: float
    total: float
    words: str


class Progress:
    """Shows the progress of the work. The caller may call ``at`` at any rate; subclasses limit how often they show
    something."""

    def at(self, look: Callable[[], HowFar]) -> None:
        """Report the progress: ``look`` returns the progress, and is called only if the progress will be shown."""


class _Lines(Progress):
    def __init__(self, every_s: float) -> None:
        self._every_s, self._shown_s = every_s, time.monotonic()

    def at(self, look: Callable[[], HowFar]) -> None:
        now = time.monotonic()
        if now - self._shown_s >= self._every_s:
            self._shown_s = now
            note(look().words)


class _Bar(Progress):
    def __init__(self, drawn: Any, every_s: float) -> None:
        self._drawn, self._every_s = drawn, every_s
        self._task = drawn.add_task("", total=None)
        self._shown = -every_s

    def at(self, look: Callable[[], HowFar]) -> None:
        now = time.monotonic()
        if now - self._shown < self._every_s:
            return
        self._shown = now
        done, total, words = look()
        self._drawn.update(self._task, completed=done, total=total or None, description=words)
        with contextlib.suppress(OSError):  # the terminal may have closed; the work continues without a progress bar
            self._drawn.refresh()


@contextlib.contextmanager
def progress(
    *,
    lines_s: float | None = LINE_S,
    draw_s: float = DRAW_S,
    beside_records: bool = False,
    quiet: bool = False,
) -> Iterator[Progress]:
    """A Progress that is shown as long as the ``with`` block runs.

    ``lines_s``: seconds between two lines of progress where stderr cannot show a bar (None: no lines, for work that is
    always silent in a pipe). ``draw_s``: shortest interval between two redraws of the bar. ``quiet``: neither.
    """
    if quiet or (beside_records and sys.stdout.isatty()):
        yield Progress()
    elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        with _bar(draw_s) as bar:
            yield bar
    else:
        yield Progress() if lines_s is None else _Lines(lines_s)


@contextlib.contextmanager
def _bar(every_s: float) -> Iterator[_Bar]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Drawn

    columns = (
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.description}", markup=False),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    # The thread that does the work also draws the progress bar, so no drawing thread has to be stopped. Notes to stderr
    # appear above the progress bar.
    drawn = Drawn(*columns, console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False)
    try:
        with contextlib.suppress(OSError):
            drawn.start()
        yield _Bar(drawn, every_s)
    finally:
        with contextlib.suppress(OSError):
            drawn.stop()
