"""The output of a pipeline: steps, and progress (a bar on a terminal, plain lines otherwise)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

#: Shortest interval in seconds between progress lines in plain output.
PLAIN_EVERY_S = 2.0


class Meter:
    """Progress display of one step with a known number of records."""

    def __init__(self, console: Console, what: str, total: int, bar: Progress | None) -> None:
        self._console, self._what, self.total, self._bar = console, what, total, bar
        self._task = bar.add_task(what, total=total) if bar is not None else None
        self._shown_s, self._shown = time.monotonic(), -1

    def at(self, done: int, note: str = "") -> None:
        """Show that ``done`` records of the total are done, with ``note`` at the end of the line."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, description=f"{self._what}  {note}")
        elif time.monotonic() - self._shown_s >= PLAIN_EVERY_S or done == self.total != self._shown:
            self._shown_s, self._shown = time.monotonic(), done
            self._console.print(f"   {self._what}: {done:,} of {self.total:,}  {note}".rstrip())


class Show:
    def __init__(self, *, on_stderr: bool = False) -> None:
        self.console = Console(highlight=False, soft_wrap=True, stderr=on_stderr)
        self._began_s = time.monotonic()

    def step(self, text: str) -> None:
        """Begin a step; prints the seconds since the start."""
        self.console.print(f"{time.monotonic() - self._began_s:5.1f} s  {text}")

    def note(self, text: str) -> None:
        self.console.print(f"   {text}")

    def line(self, text: str = "") -> None:
        self.console.print(text)

    @contextmanager
    def live(self) -> Iterator[Callable[[str], None]]:
        """Progress without a known end: on a terminal a line that is updated, otherwise a new line every few
        seconds."""
        if self.console.is_terminal:
            with self.console.status("") as status:
                yield status.update
            return
        shown_s = [time.monotonic()]

        def show(text: str) -> None:
            if time.monotonic() - shown_s[0] >= PLAIN_EVERY_S:
                shown_s[0] = time.monotonic()
                self.note(text)

        yield show

    @contextmanager
    def meter(self, what: str, total: int) -> Iterator[Meter]:
        if not self.console.is_terminal:
            yield Meter(self.console, what, total, None)
            return
        columns = (
            TextColumn("  "), SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )  # fmt: skip
        with Progress(*columns, console=self.console) as bar:
            yield Meter(self.console, what, total, bar)
