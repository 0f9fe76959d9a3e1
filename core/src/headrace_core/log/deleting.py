"""Deleted files that are still on the disk: a deletion renames a file (``.deleted``, ``-delete``) and removes it some
time later.

The delay (``file.delete.delay.ms``) leaves time to restore a log that was deleted by mistake. Readers of a deleted file
still have the file open. Removing a large file takes up to a second. The directory's writer removes no files, because
appends would wait for the removal. Any thread may remove deleted files (one thread at a time), because no writer owns
them.

The queue has no timer: callers ask ``next_due_ms``. A crash loses the queue; the next start of the directory removes
all files that have a name of a deleted file.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from typing import NamedTuple

from .files import FileSystem, remove_tree

logger = logging.getLogger(__name__)


class Removed(NamedTuple):
    """Number of files removed and bytes freed."""

    names: int
    size: int


class DeletedFiles:
    """Queue of the deleted files of one log directory. Thread-safe."""

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._lock = threading.Lock()
        #: Lock held while files are removed, so that only one thread at a time removes files.
        self._removing = threading.Lock()
        self._numbers = itertools.count()
        #: A heap of (due time on the monotonic clock, number, path, bytes).
        self._waiting: list[tuple[float, int, str, int]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def size_bytes(self) -> int:
        """Approximate bytes that removing all queued files would free."""
        with self._lock:
            return sum(size for _, _, _, size in self._waiting)

    @property
    def next_due_ms(self) -> float | None:
        """Time (monotonic) when the first queued file is due for removal."""
        with self._lock:
            return self._waiting[0][0] if self._waiting else None

    def add(self, path: str, size: int, *, due_ms: float) -> None:
        """Queue a file or directory whose new name is durable."""
        with self._lock:
            heapq.heappush(self._waiting, (due_ms, next(self._numbers), path, size))

    def remove(self, now_ms: float | None) -> Removed:
        """Remove the files that are due at ``now_ms`` (monotonic); None: remove all queued files, because the disk is
        full. May take long. A file that cannot be removed is logged, and the next start removes it."""
        names = removed_bytes = 0
        with self._removing:
            while (entry := self._take(now_ms)) is not None:
                path, size = entry
                try:
                    if self._fs.is_directory(path):
                        remove_tree(self._fs, path)
                    else:
                        self._fs.unlink(path)
                except FileNotFoundError:
                    continue  # the file was removed with its directory
                except OSError as error:
                    logger.warning("cannot remove %s, trying again at the next start: %s", path, error)
                    continue
                names += 1
                removed_bytes += size
        return Removed(names, removed_bytes)

    def _take(self, now_ms: float | None) -> tuple[str, int] | None:
        with self._lock:
            if not self._waiting or (now_ms is not None and self._waiting[0][0] > now_ms):
                return None
            _, _, path, size = heapq.heappop(self._waiting)
            return path, size
