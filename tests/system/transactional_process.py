"""A transactional producer in its own process, so that a test can kill it, freeze it and cut its connections.

The process is a module that calls ``main``. The process prints each step before it takes the step, one JSON list per
line, and ends when its standard input is closed, or when another producer has its transactional id:

    ready                       it has its identity: its predecessors are fenced
    committed                   a transaction is committed (more fields: the module's own)
    fenced, text                another producer has the transactional id
    error, text                 a call failed, and is repeated, or the transaction is aborted
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, InvalidProducerIdMappingError, ProducerFencedError

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 120.0


class TransactionalProcess:
    """The test's handle of the process. ``report`` is called with each output line, on another thread."""

    def __init__(self, name: str, module: str, report: Callable[[list[Any]], None], **asked: Any) -> None:
        """``name``: the name of the process for the faulty network."""
        self.name = name
        self.transactional_id: str = asked["settings"]["transactional.id"]
        self.is_ready = self.is_fenced = self.was_killed = False
        self.committed = 0
        self.errors: list[str] = []
        self._report = report
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(asked)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.endswith("\n"):  # killed while it wrote the line
                return
            step = json.loads(line)
            if step[0] == "ready":
                self.is_ready = True
            elif step[0] == "fenced":
                self.is_fenced = True
            elif step[0] == "error":
                self.errors.append(step[1])
            elif step[0] == "committed":
                self.committed += 1
            self._report(step)

    def check(self) -> None:
        code = self.process.poll()
        assert code in (None, 0) or self.was_killed, f"{self.name} ended with {code}"

    def send_signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9; everything that it had printed is known when this returns."""
        self.was_killed = True
        self.process.kill()
        self._join()

    def stop(self) -> None:
        """Let the process finish its transaction, and wait until it exits."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._join()
        self.check()

    def _join(self) -> None:
        try:
            self.process.wait(LONG_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
        self._thread.join(LONG_S)


# ------------------------------------------------------------------------------------------------- in the process


def main(run: Callable[[dict[str, Any], threading.Event], None]) -> None:
    """Run the process: ``run(asked, is_over)`` works until ``is_over`` is set."""
    is_over = threading.Event()

    def until_stopped() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=until_stopped, daemon=True).start()
    try:
        run(json.loads(sys.argv[1]), is_over)
    except (ProducerFencedError, InvalidProducerIdMappingError) as error:
        report("fenced", str(error))


def report(*step: Any) -> None:
    """Print a step with the current time."""
    sys.stdout.write(json.dumps([*step, time.monotonic()]) + "\n")
    sys.stdout.flush()


def insist(call: Callable[[], Any]) -> Any:
    """Repeat a call after a timeout."""
    deadline = time.monotonic() + LONG_S
    while True:
        try:
            return call()
        except HeadraceError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise
            report("error", f"{error.code}: {error.message[:300]}")
