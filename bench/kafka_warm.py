"""A warm process that runs tool after tool: bench/java/WarmClient.java with Kafka's client, or a Spark driver."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from measure import WORK, emit, run, settle


def compiled(sources: Path, libs: Path) -> Path:
    """Compile bench/java; returns the folder of the classes."""
    classes = WORK / "java-classes"
    files = sorted(sources.glob("*.java"))
    done = classes / "WarmClient.class"
    if not done.exists() or done.stat().st_mtime < max(file.stat().st_mtime for file in files):
        classes.mkdir(parents=True, exist_ok=True)
        run(["javac", "-nowarn", "-cp", f"{libs}/*", "-d", str(classes), *map(str, files)], timeout_s=120)
    return classes


class WarmClient:
    """Starts the process at first use, and again after it has ended; ``warm`` warms up each start."""

    def __init__(self, command: Callable[[], Sequence[str]], log: Path, warm: Callable[[WarmClient], None]) -> None:
        self._command, self._log, self._warm = command, log, warm
        self._process: subprocess.Popen[str] | None = None
        self._warming = False  # a process that ends during its warm-up is not started again from within the warm-up

    def run(self, tool: str, *arguments: str, timeout_s: float) -> str:
        """Run the tool when the disk is idle, and return its standard output. Raises RuntimeError on failure or
        timeout."""
        process = self.ready()
        settle()
        return self._ask(process, [tool, *arguments], timeout_s)

    def ready(self) -> subprocess.Popen[str]:
        """Start and warm up the process, unless it runs."""
        if self._process is None or (self._process.poll() is not None and not self._warming):
            self.close()
            command = list(self._command())
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
            began = time.monotonic()
            self._warming = True
            try:
                self._warm(self)
            except BaseException:
                self.close()  # ``close`` ends the warm process; the next use starts another one
                raise
            finally:
                self._warming = False
            emit(step=f"{self._log.stem}.start", seconds=round(time.monotonic() - began, 1))
        return self._process

    def _ask(self, process: subprocess.Popen[str], words: list[str], timeout_s: float) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        what = " ".join(words)
        limit = threading.Timer(timeout_s, process.kill)
        limit.start()
        try:
            process.stdin.write("\t".join(words) + "\n")
            process.stdin.flush()
            lines: list[str] = []
            for line in process.stdout:
                if line == "done\n":
                    return "".join(lines).rstrip() + "\n"
                if line.startswith("failed "):
                    raise RuntimeError(f"{what}: {line.strip()[:600]} (see {self._log})")
                lines.append(line)
        finally:
            limit.cancel()
        self.close()
        raise RuntimeError(f"{what}: the client ended, or was not done after {timeout_s:g} s: {''.join(lines)[-400:]}")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None
