"""Deleted files that are still on the disk: a deletion renames a file (``.deleted``, ``-delete``) and removes it some
time later.

The delay (``file.delete.delay.ms``) leaves time to restore a log that was deleted by mistake. Readers of a deleted file
still have the file open. Removing a large file takes a second for each GiB: the blocks of a file are freed in steps,
because each flush on the disk waits while the file system frees blocks. The directory's writer removes no files,
because appends would wait for the removal. Any thread may remove deleted files (one thread at a time), because no
writer owns them.

The queue has no timer: callers ask ``next_due_ms``. A crash loses the queue; the next start of the directory removes
all files and directories whose names mark them as deleted.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from typing import NamedTuple

from .files import FileSystem, remove_tree

logger = logging.getLogger(__name__)

#: Bytes after which a call of ``remove`` returns, so that its thread can do other work: about a second.
REMOVED_AT_ONCE = 1 << 30


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
        """Remove the files that are due at ``now_ms`` (monotonic), and return after about ``REMOVED_AT_ONCE`` bytes;
        the remaining files stay due. None: remove all queued files, as fast as possible, because the disk is full. A
        file that cannot be removed is logged, and the next start removes it."""
        names = removed_bytes = 0
        with self._removing:
            while removed_bytes < REMOVED_AT_ONCE or now_ms is None:
                entry = self._take(now_ms)
                if entry is None:
                    break
                due_ms, path, size = entry
                try:
                    if now_ms is None:
                        self._remove_at_once(path)
                    else:
                        freed, is_removed = self._remove_gradually(path, REMOVED_AT_ONCE - removed_bytes)
                        if not is_removed:
                            removed_bytes += freed
                            self.add(path, max(size - freed, 0), due_ms=due_ms)
                            break
                except FileNotFoundError:
                    continue  # the file was removed with its directory
                except OSError as error:
                    logger.warning("cannot remove %s, trying again at the next start: %s", path, error)
                    continue
                names += 1
                removed_bytes += size
        return Removed(names, removed_bytes)

    def _remove_at_once(self, path: str) -> None:
        if self._fs.is_directory(path):
            remove_tree(self._fs, path)
        else:
            self._fs.unlink(path)

    def _remove_gradually(self, path: str, limit: int) -> tuple[int, bool]:
        """Remove a file, or files of a directory until at least ``limit`` bytes are free. Returns the freed bytes, and
        whether ``path`` is removed."""
        fs = self._fs
        if not fs.is_directory(path):
            size = fs.file_size(path)
            fs.unlink_gradually(path)
            return size, True
        freed = 0
        for name in fs.listdir(path):
            if freed >= limit:
                return freed, False
            more, is_removed = self._remove_gradually(f"{path}/{name}", limit - freed)
            freed += more
            if not is_removed:
                return freed, False
        fs.rmdir(path)
        return freed, True

    def _take(self, now_ms: float | None) -> tuple[float, str, int] | None:
        with self._lock:
            if not self._waiting or (now_ms is not None and self._waiting[0][0] > now_ms):
                return None
            due_ms, _, path, size = heapq.heappop(self._waiting)
            return due_ms, path, size
