"""Handlers and projectors as processes. The owner starts a process again when it dies, as a supervisor does.

    python -m headrace_pipelines.orders.processes handler HOST:PORT NAME
    python -m headrace_pipelines.orders.processes projector HOST:PORT DATABASE
    python -m headrace_pipelines.orders.processes rebuild HOST:PORT DATABASE

A process ends after its batch when its standard input ends, so no process outlives a killed owner.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace_core.errors import HeadraceError

from ..errors import PipelineFailedError
from .database import Database
from .handling import Handler
from .projecting import Projector

MODULE = "headrace_pipelines.orders.processes"
STOP_S = 60.0
#: The first word of a line of the rebuild; then seconds since 1970, and the sum of its positions.
REBUILT = "rebuilt"
#: A process that dies more often than this within a run has a fault of its own.
DEATHS_MAX = 20
#: Shortest time between two starts of a process.
RESTART_S = 1.0


def main(arguments: Sequence[str]) -> int:
    role, servers, name = arguments
    is_stopped = _stdin_ended()
    try:
        if role == "handler":
            Handler(servers, name).run(is_stopped)
            return 0
        with Database(name) as database:
            projector = Projector(servers, database)
            if role == "rebuild":
                projector.rebuild(is_stopped, lambda position: print(REBUILT, time.time(), position, flush=True))
            else:
                projector.follow(is_stopped)
    except HeadraceError as error:
        print(f"{role}: {error.code}: {error.message}", file=sys.stderr, flush=True)
        return 1
    return 0


def _stdin_ended() -> Callable[[], bool]:
    ended = threading.Event()

    def read() -> None:
        while os.read(0, 1):
            pass
        ended.set()

    threading.Thread(target=read, name="owner", daemon=True).start()
    return ended.is_set


class Member:
    """A process of a run. ``deaths``: how often it ended by itself, and was started again."""

    def __init__(self, role: str, servers: str, name: str, log: Path) -> None:
        self.role, self.deaths = role, 0
        self._words = [sys.executable, "-m", MODULE, role, servers, name]
        self._log = log
        self._started_s = 0.0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._started_s = time.monotonic()
        with self._log.open("ab") as log:
            return subprocess.Popen(self._words, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def look(self) -> None:
        """Start the process again if it has died. Raises PipelineFailedError if it dies again and again."""
        if self.is_alive or time.monotonic() - self._started_s < RESTART_S:
            return
        self.deaths += 1
        if self.deaths > DEATHS_MAX:
            raise PipelineFailedError(f"the {self.role} died {self.deaths} times; {self._log} says why:\n{self.tail()}")
        self._process = self._start()

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-1_000:]

    def stop(self) -> None:
        """Ask the process to end after its batch, and wait for it; kill it after STOP_S seconds."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
