"""A buffer for the rows of EMIT CHANGES: Spark's batches put rows into the buffer, and the statement takes rows out and
shows the rows."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Sequence
from typing import Any

#: Maximum number of rows in the buffer. Further rows stay in the topic, because a reader may be slow and a topic large.
ROWS_MAX = 10_000
_LOOK_S = 0.2


class Arrivals:
    """A buffer that can be closed. ``put`` waits while the buffer is full, until ``close``."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        self._rows: queue.Queue[Sequence[Any]] = queue.Queue(rows_max)
        self._is_closed = threading.Event()

    def put(self, rows: Iterable[Sequence[Any]]) -> None:
        """Add rows; after ``close`` the rows are dropped."""
        for row in rows:
            while not self._is_closed.is_set():
                try:
                    self._rows.put(row, timeout=_LOOK_S)
                    break
                except queue.Full:
                    continue

    def get(self) -> Sequence[Any] | None:
        """The next row; None if no row has arrived within a fifth of a second."""
        try:
            return self._rows.get(timeout=_LOOK_S)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Let a waiting ``put`` return."""
        self._is_closed.set()
