"""SIGTERM ends a pipeline after its current batch."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: The exit code of a command that SIGTERM ended, as shells show it.
EXIT_CODE = 128 + signal.SIGTERM


class Stop:
    """Knows whether SIGTERM arrived. Before the streams start, SIGTERM ends the command at once."""

    def __init__(self) -> None:
        self._is_asked = threading.Event()
        self._waits_for_batch = False

    def listen(self) -> None:
        """Handle SIGTERM from now on; only in the main thread."""
        signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._is_asked.set()
        if not self._waits_for_batch:
            sys.exit(EXIT_CODE)

    @property
    def is_asked(self) -> bool:
        return self._is_asked.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for SIGTERM; returns whether it arrived."""
        return self._is_asked.wait(timeout_s)

    @contextmanager
    def after_batch(self) -> Iterator[None]:
        """In this block SIGTERM only sets ``is_asked``, which the block reads between batches."""
        self._waits_for_batch = True
        try:
            yield
        finally:
            self._waits_for_batch = False
