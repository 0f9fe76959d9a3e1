"""A Spark driver in a separate process, which a test may kill together with its child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace_core.testing.verdicts import NotInTimeError

LONG_S = 240.0
_ROOT = Path(__file__).resolve().parents[2]


class SparkDriver:
    """Run ``script`` with ``arguments``; its output goes to DIRECTORY/driver.log."""

    def __init__(self, script: Path, directory: Path, *arguments: str) -> None:
        self._log = directory / "driver.log"
        # Spark's workers must be able to import tests.…
        paths = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(script), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": paths},
            )

    def kill(self) -> None:
        """kill -9 for all processes of the driver: its Python, its JVM, its workers."""
        if self.process.poll() is not None:
            return
        family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        os.killpg(self.process.pid, signal.SIGKILL)
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self.process.wait(timeout=60)
        psutil.wait_procs(family, timeout=60)

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + LONG_S
        while not condition():
            if self.process.poll() is not None:
                pytest.fail(f"the driver ended before {what}: {self.output()}")
            if time.monotonic() >= deadline:
                raise NotInTimeError(f"never: {what}")
            time.sleep(0.05)  # this polls a condition, and does not wait for a guessed time

    def wait_ended(self) -> None:
        assert self.process.wait(timeout=LONG_S) == 0, self.output()

    def output(self) -> str:
        return self._log.read_text()[-3_000:]
