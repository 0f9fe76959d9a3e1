"""Processes that a run starts in addition to Spark. The owner starts a process again when it dies, as a supervisor
does.

The owner writes how to reach the cluster as a line of JSON to the standard input of each process. So a password is
never in an argument, an environment variable or a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from .access import Access
from .errors import PipelineFailedError

STOP_S = 60.0
#: Maximum number of deaths in a row, each within HEALTHY_S seconds after the start. After DEATHS_MAX + 1 deaths in a
#: row, the process is not started again, and ``Member.look`` raises PipelineFailedError.
DEATHS_MAX = 60
HEALTHY_S = 10.0
#: Shortest time between two starts of a process.
RESTART_S = 1.0


def owner_access() -> Access:
    """Read from the owner how to reach the cluster. Call this function in a member's process, before ``owner_ended``.
    Ends the process if the owner has died."""
    with open(0, "rb", buffering=0, closefd=False) as owner:
        line = owner.readline()
    if not line.endswith(b"\n"):
        sys.exit(1)
    return Access(**json.loads(line))


def owner_ended() -> threading.Event:
    """Return an event that is set when the owner has closed the standard input, or has died. Call this function in a
    member's process."""
    ended = threading.Event()

    def read() -> None:
        while os.read(0, 1):
            pass
        ended.set()

    threading.Thread(target=read, name="owner", daemon=True).start()
    return ended


class Member:
    """A process of a run. ``deaths``: how often the process ended by itself and was started again.

    The process must call ``owner_access``, and end when its standard input ends (``owner_ended``), so that it does not
    outlive a killed owner.
    """

    def __init__(self, role: str, words: Sequence[str], log: Path, access: Access) -> None:
        self.role, self.deaths = role, 0
        self._words, self._log, self._access = list(words), log, access
        self._started_s, self._in_a_row = 0.0, 0
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._started_s = time.monotonic()
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._words, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        assert process.stdin is not None
        line = json.dumps({"servers": self._access.servers, "keys": dict(self._access.keys)})
        with contextlib.suppress(BrokenPipeError):  # it has died, and ``look`` starts it again
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
        return process

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def look(self) -> None:
        """Start the process again if it has died. Raises PipelineFailedError if the process dies again and again."""
        if self.is_alive or time.monotonic() - self._started_s < RESTART_S:
            return
        self.deaths += 1
        self._in_a_row = 1 if time.monotonic() - self._started_s > HEALTHY_S else self._in_a_row + 1
        if self._in_a_row > DEATHS_MAX:
            raise PipelineFailedError(f"the {self.role} dies again and again; {self._log} says why:\n{self.tail()}")
        self._process = self._start()

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-1_000:]

    def ask_to_end(self) -> None:
        """Ask the process to end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def stop(self, within_s: float = STOP_S) -> None:
        """Ask the process to end, and wait for it; kill it after ``within_s`` seconds."""
        self.ask_to_end()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def stop_all(members: Iterable[Member]) -> None:
    """Ask all processes to end, and wait for them; kill the processes that still run after STOP_S seconds."""
    found = list(members)
    for each in found:
        each.ask_to_end()
    deadline_s = time.monotonic() + STOP_S
    for each in found:
        each.stop(max(deadline_s - time.monotonic(), 0.0))
