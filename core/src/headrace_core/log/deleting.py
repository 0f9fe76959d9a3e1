"""Deleted files that are still on the disk: a deletion renames a file (``.deleted``, ``-delete``) and removes it some
time later.

The delay (``file.delete.delay.ms``) leaves time to restore a log that was deleted by mistake. Readers of a deleted file
still have the file open. Removing files takes a second for each GiB, because the blocks of a large file are freed in
steps. Without steps, each flush on the disk would wait until the file system has freed all blocks. The directory's
writer removes no files, because appends would wait for the removal. Any thread may remove deleted files (one thread at
a time), because no writer owns them.

The queue has no timer: callers ask ``next_due_ms``. A crash loses the queue; the next start of the directory removes
all files and directories whose names mark them as deleted.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from typing import NamedTuple

from ..errors import ServerBusyError
from .files import FREED_AT_ONCE, FREEING_PAUSE_S, FileSystem, remove_tree

logger = logging.getLogger(__name__)

#: Bytes after which a call of ``remove`` returns, so that its thread can do other work; removing the bytes takes about
#: a second.
REMOVED_AT_ONCE = 1 << 30
#: Delay before the next try when no descriptor is left to list a directory.
RETRY_MS = 5_000.0


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
        #: Set while a call of ``remove`` must return after its current file, without further pauses.
        self._hurry = threading.Event()
        self._is_ended = False
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

    def hurry(self) -> None:
        """Make a running gradual removal return after its current file, because other work needs its thread."""
        self._hurry.set()

    def end(self) -> None:
        """Make a running gradual removal return, and begin no further removal: the process stops, and its next start
        removes the files."""
        with self._lock:
            self._is_ended = True
            self._hurry.set()

    def remove(self, now_ms: float | None) -> Removed:
        """Remove the files that are due at ``now_ms`` (monotonic), gradually, and return after about
        ``REMOVED_AT_ONCE`` bytes; the remaining files stay due. ``now_ms`` None: remove all queued files as fast as
        possible; used when the disk is full. A file that cannot be removed is logged, and the next start removes it."""
        if now_ms is None:
            self._hurry.set()
        with self._removing:
            with self._lock:
                if not self._is_ended:
                    self._hurry.clear()
                elif now_ms is not None:
                    return Removed(0, 0)
            return self._remove_all() if now_ms is None else self._remove_due(now_ms)

    def _remove_all(self) -> Removed:
        names = removed_bytes = 0
        while (entry := self._take(None)) is not None:
            _, path, size = entry
            try:
                if self._fs.is_directory(path):
                    remove_tree(self._fs, path)
                else:
                    self._fs.unlink(path)
            except FileNotFoundError:
                continue  # the file was removed with its directory
            except OSError as error:
                _warn(path, error)
                continue
            names += 1
            removed_bytes += size
        return Removed(names, removed_bytes)

    def _remove_due(self, now_ms: float) -> Removed:
        names = removed_bytes = 0
        removal = _GradualRemoval(self._fs, self._hurry, REMOVED_AT_ONCE)
        while not removal.is_over and (entry := self._take(now_ms)) is not None:
            due_ms, path, size = entry
            before = removal.freed
            try:
                is_removed = removal.remove(path)
            except FileNotFoundError:
                continue  # the file was removed with its directory
            except OSError as error:
                _warn(path, error)
                continue
            except ServerBusyError:  # no descriptor is left
                self.add(path, size, due_ms=now_ms + RETRY_MS)
                continue
            if is_removed:
                names += 1
                removed_bytes += size
            else:
                freed = min(removal.freed - before, size)
                removed_bytes += freed
                self.add(path, size - freed, due_ms=due_ms)
        return Removed(names, removed_bytes)

    def _take(self, now_ms: float | None) -> tuple[float, str, int] | None:
        with self._lock:
            if not self._waiting or (now_ms is not None and self._waiting[0][0] > now_ms):
                return None
            due_ms, _, path, size = heapq.heappop(self._waiting)
            return due_ms, path, size


class _GradualRemoval:
    """Removes files and directories until about ``limit`` bytes are free, or until ``hurry`` is set."""

    def __init__(self, fs: FileSystem, hurry: threading.Event, limit: int) -> None:
        self._fs, self._hurry, self._limit = fs, hurry, limit
        self.freed = 0

    @property
    def is_over(self) -> bool:
        return self.freed >= self._limit or self._hurry.is_set()

    def remove(self, path: str) -> bool:
        """Remove a file or a directory; False if files of the directory remain, because ``is_over`` became true."""
        fs = self._fs
        if not fs.is_directory(path):
            try:
                size = fs.file_size(path)
            except FileNotFoundError:  # gone, or a symbolic link without a target
                size = 0
            at_once = fs.unlink_gradually(path, self._hurry.wait)
            self.freed += size
            self._hurry.wait(FREEING_PAUSE_S * at_once / FREED_AT_ONCE)
            return True
        for name in fs.listdir(path):
            if self.is_over:
                return False
            try:
                if not self.remove(f"{path}/{name}"):
                    return False
            except FileNotFoundError:  # an operator has removed this file
                continue
        fs.rmdir(path)
        return True


def _warn(path: str, error: OSError) -> None:
    logger.warning("cannot remove %s, trying again at the next start: %s", path, error)
