"""Progress of opening a log directory, reported every few seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from ..clock import Clock
from .files import File

INTERVAL_MS = 2000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningProgress:
    """Progress after ``seconds``: ``logs_opened`` of ``logs`` logs are open, and recovery has read
    ``scanned_bytes``."""

    path: str
    logs_opened: int
    logs: int
    scanned_bytes: int
    seconds: float


OnProgress = Callable[[OpeningProgress], None]


class OpeningMeter:
    """Counts opened logs and bytes, and calls ``on_progress`` at most every INTERVAL_MS (each count checks the clock;
    there is no timer). Thread-safe."""

    def __init__(self, path: str, clock: Clock, on_progress: OnProgress | None) -> None:
        self.logs = 0
        self._path = path
        self._clock = clock
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._opened = self._scanned_bytes = 0
        self._began_ms = self._reported_ms = clock.monotonic_ms()

    def log_opened(self) -> None:
        """Count a log that was opened or found to be damaged."""
        self._count(1, 0)

    def scanned(self, size: int) -> None:
        self._count(0, size)

    def scanning(self, file: File) -> File:
        """Wrap ``file`` so that a scan's reads are counted."""
        return cast("File", _CountedFile(file, self))

    def _count(self, opened: int, scanned_bytes: int) -> None:
        with self._lock:
            self._opened += opened
            self._scanned_bytes += scanned_bytes
            now_ms = self._clock.monotonic_ms()
            if self._on_progress is None or now_ms - self._reported_ms < INTERVAL_MS:
                return
            self._reported_ms = now_ms
            progress = OpeningProgress(
                path=self._path,
                logs_opened=self._opened,
                logs=self.logs,
                scanned_bytes=self._scanned_bytes,
                seconds=(now_ms - self._began_ms) / 1000,
            )
        self._on_progress(progress)


class _CountedFile:
    __slots__ = ("_file", "_meter")

    def __init__(self, file: File, meter: OpeningMeter) -> None:
        self._file = file
        self._meter = meter

    def size(self) -> int:
        return self._file.size()

    def pread(self, size: int, position: int) -> bytes:
        data = self._file.pread(size, position)
        self._meter.scanned(len(data))
        return data
