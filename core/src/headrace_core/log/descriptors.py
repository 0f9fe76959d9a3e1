"""Keep thousands of log files usable with a bounded number of file descriptors.

A broker with 5,000 partitions has 5,000 active segments and many more sealed segments, nearly all idle. The descriptor
cache is a ``FileSystem`` that wraps another file system. A file from ``open_lazily`` (the ``.log`` files) gets its
descriptor at its first use, and may lose the descriptor when another file needs one. The clock algorithm chooses the
file to close. Every use of a file sets the file's mark (a flag that means "used recently"). The clock hand visits the
files in the order of their opening, removes marks, and closes the first file without a mark. The clock algorithm
approximates "least recently used", and each use of a file only sets one attribute.

Closing the descriptor of a file that is still in use is correct only under three rules:

* **A file with unsynced bytes keeps its descriptor.** The kernel reports a write-back error to descriptors that were
  open when the error happened; an fdatasync on a new descriptor may succeed. Because the kernel reports an error only
  to open descriptors, a file that was written since its last sync stays open until it is synced. A writer sets the
  file's mark, then gets the file's descriptor; the clock hand removes the descriptor, then reads the mark. Either the
  clock hand sees the mark or the writer sees that the descriptor is gone, so the writer needs no lock.
* **A file name must still mean the same file when the file is opened again.** All changes of file names pass through
  the cache (unlink, and rename of a file or of its directory). Before a file loses its name, or another file takes that
  name, the file is *retired*. A retired file is opened if it is closed, stays open until its last reader closes it, and
  is never opened by name again. After a rename, the cache finds a file by the file's new name. Files without users are
  not tracked, so deleting 5,000 idle logs opens no file.
* **A read in progress keeps its descriptor open.** To close a descriptor, a file drops its reference; the descriptor
  closes with the last reference, after the pread in progress.

When the process has no descriptor left (EMFILE), the cache closes an eighth of its files and tries again, once.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import WeakSet, ref

from ..errors import ServerBusyError
from .files import Buffer, File, FileSystem, Lock, Pause

T = TypeVar("T")

_DIRECTORIES_AT_ONCE = 64  #: Maximum number of directories that the process syncs at the same time.
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class CachedFile:
    """A file that has a descriptor only while it is used; created by ``DescriptorCache.open_lazily``. A ``File``.

    Any thread may read the file; only the file's owner writes, truncates and syncs it. Besides OSError, every call may
    raise ServerBusyError when no descriptor is available.
    """

    __slots__ = ("__weakref__", "_cache", "_file", "_is_held", "_is_used", "_unsynced", "_why_gone", "path")

    def __init__(self, cache: DescriptorCache, path: str) -> None:
        self.path = path
        self._cache = cache
        self._file: File | None = None
        self._is_used = True
        self._unsynced = False  #: Whether the file was written or truncated since its last sync.
        #: Whether the clock hand, in search of a descriptor to close, found the file unsynced and set it aside.
        self._is_held = False
        #: The errno for an attempt to reopen the file after it was closed or retired; 0 while the file may be reopened.
        self._why_gone = 0

    @property
    def is_open(self) -> bool:
        """Whether the file has a descriptor now."""
        return self._file is not None

    def _descriptor(self) -> File:
        file = self._file
        if file is None:
            file = self._cache._reopen(self)
        self._is_used = True
        return file

    def size(self) -> int:
        return self._descriptor().size()

    def pread(self, size: int, position: int) -> bytes:
        return self._descriptor().pread(size, position)

    def pread_cached(self, size: int, position: int) -> bytes | None:  # without a call of _descriptor(), as pwritev
        file = self._file
        if file is None:
            file = self._cache._reopen(self)
        self._is_used = True
        return file.pread_cached(size, position)

    def is_cached(self, size: int, position: int) -> bool:
        return self._descriptor().is_cached(size, position)

    def drop_cache(self, size: int, position: int) -> None:
        forget = getattr(self._file, "drop_cache", None)  # drop_cache is a hint that not every file supports
        if forget is not None:
            forget(size, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        self._unsynced = True  # set the mark before taking the descriptor: see the docstring of the module
        file = self._file
        if file is None:
            file = self._cache._reopen(self)
        self._is_used = True
        return file.pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        self._unsynced = True
        self._descriptor().truncate(size)

    def sync(self) -> None:
        self._cache.sync_files((self,))

    def start_writeback(self, position: int, size: int) -> None:
        self._descriptor().start_writeback(position, size)

    def preallocate(self, position: int, size: int) -> None:
        self._descriptor().preallocate(position, size)

    def close(self) -> None:
        self._why_gone = self._why_gone or errno.EBADF
        self._file = None


class DescriptorCache:
    """A file system that limits the number of open descriptors, as the module's docstring explains. Thread-safe.
    ``files_max``: limit of the lazily opened files that have a descriptor at the same time. Files that must stay open
    (unsynced files that were set aside, and retired files in use) do not count towards the limit."""

    def __init__(self, fs: FileSystem, files_max: int) -> None:
        if files_max < 1:
            raise ValueError(f"files_max={files_max}: must be 1 or more")
        self._fs = fs
        self._files_max = files_max
        self._lock = threading.Lock()
        #: Files with a descriptor, in the order in which the clock hand visits them; some entries may be closed or
        #: garbage-collected files.
        self._ring: deque[ref[CachedFile]] = deque()
        self._held: WeakSet[CachedFile] = WeakSet()  #: Files that the clock hand set aside until they are synced.
        #: The files that are in use and not retired, by directory and then by name.
        self._files: dict[str, dict[str, ref[CachedFile]]] = {}

    @property
    def open_files(self) -> int:
        """Files with a descriptor that the cache may close or has set aside (for tests and metrics)."""
        with self._lock:
            ring = [file for item in self._ring if (file := item()) is not None and file.is_open]
            return len(ring) + sum(1 for file in self._held if file.is_open)

    def resize(self, files_max: int) -> None:
        """Set the limit of open files; closes excess files now."""
        if files_max < 1:
            raise ValueError(f"files_max={files_max}: must be 1 or more")
        with self._lock:
            self._files_max = files_max
            self._keep_to(files_max)

    def open_lazily(self, path: str, *, create: bool = False) -> CachedFile:
        """Return a file for reading and writing that gets its descriptor at its first use; a missing file raises
        OSError at the first use. ``create``: create a missing file now."""
        file = CachedFile(self, path)
        with self._lock:
            directory, name = _split(path)
            here = self._files.setdefault(directory, {})
            # Retire an older CachedFile of the same name, because a rename updates only one CachedFile.
            if (known := _alive(here.get(name))) is not None:
                self._retire(known)
            if create:
                self._give_descriptor(file, create=True)
            here[name] = ref(file)
        return file

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        return self._with_room(path, lambda: self._fs.open(path, write=write, create=create))

    def _with_room(self, path: str, call: Callable[[], T]) -> T:
        """Run ``call``, which needs a descriptor briefly, and return its result."""
        try:
            return call()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
        with self._lock:
            return self._with_fewer(path, call)

    def _reopen(self, file: CachedFile) -> File:
        with self._lock:
            found = file._file
            if found is None:
                if file._why_gone:
                    raise OSError(file._why_gone, os.strerror(file._why_gone), file.path)
                found = self._give_descriptor(file)
            return found

    def _give_descriptor(self, file: CachedFile, *, create: bool = False) -> File:
        self._keep_to(self._files_max - 1)
        try:
            found = self._fs.open(file.path, write=True, create=create)
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            found = self._with_fewer(file.path, lambda: self._fs.open(file.path, write=True, create=create))
        file._file = found
        self._ring.append(ref(file))
        return found

    def _with_fewer(self, path: str, call: Callable[[], T]) -> T:
        for _ in range(max(len(self._ring) // 8, 1)):
            self._turn_hand()
        try:
            return call()
        except OSError as error:
            if error.errno not in _NO_DESCRIPTOR:
                raise
            raise ServerBusyError(
                f"{path} cannot be opened: the process has no file descriptor left ({error.strerror}). Raise its limit "
                "(ulimit -n), or lower log.open.files.max"
            ) from error

    def _keep_to(self, files: int) -> None:
        """Close files until only ``files`` files are open; at least one closable file stays open when unsynced files
        exceed the limit."""
        while len(self._ring) > max(files - len(self._held), 0) and self._turn_hand():
            pass

    def _turn_hand(self) -> bool:
        """Remove one entry from the ring of open files; False when the ring is empty."""
        ring = self._ring
        while ring:
            item = ring.popleft()
            file = item()
            if file is None or file._file is None or file._why_gone:
                return True
            if file._is_used:
                file._is_used = False
                ring.append(item)
                continue
            taken, file._file = file._file, None
            if not file._unsynced:
                return True
            file._file = taken
            file._is_held = True
            if not file._unsynced:  # the file was synced just now, perhaps before it was set aside
                file._is_held = False
                ring.append(item)
                continue
            self._held.add(file)
            return True
        return False

    def _take_back(self, file: CachedFile) -> None:
        """Put a file that was set aside back into the ring, because the file has been synced."""
        with self._lock:
            if file._is_held:
                file._is_held = False
                self._held.discard(file)
                self._ring.append(ref(file))
                self._keep_to(self._files_max)

    def _retire(self, file: CachedFile) -> None:
        """Detach a file from its name, which will be removed or reused. Readers of a detached file keep its descriptor.
        If no descriptor is available, the readers of the file get ESTALE, because the deletion must not wait."""
        if file._file is None and not file._why_gone:
            with contextlib.suppress(OSError, ServerBusyError):
                self._give_descriptor(file)
        file._why_gone = file._why_gone or errno.ESTALE

    def unlink(self, path: str) -> None:
        with self._lock:
            self._retire_at(path)
        self._fs.unlink(path)

    def unlink_gradually(self, path: str, pause: Pause) -> int:
        with self._lock:
            self._retire_at(path)
        return self._fs.unlink_gradually(path, pause)

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            self._retire_at(new)
            self._fs.rename(old, new)
            directory, name = _split(new)
            moved = self._files.pop(old, None)
            if moved is not None:  # if a directory is renamed, its files move with the directory
                self._files[new] = moved
                for inside, item in moved.items():
                    if (each := item()) is not None:
                        each.path = f"{new}/{inside}"
            elif (file := _alive(self._forget(old))) is not None:
                file.path = new
                self._files.setdefault(directory, {})[name] = ref(file)

    def _retire_at(self, path: str) -> None:
        file = _alive(self._forget(path))
        if file is not None:
            self._retire(file)

    def _forget(self, path: str) -> ref[CachedFile] | None:
        directory, name = _split(path)
        here = self._files.get(directory)
        if here is None:
            return None
        item = here.pop(name, None)
        if not here:
            del self._files[directory]
        return item

    def rmdir(self, path: str) -> None:
        self._fs.rmdir(path)
        with self._lock:
            self._files.pop(path, None)

    def sync_files(self, files: Sequence[File]) -> None:
        cached = [file for file in files if isinstance(file, CachedFile)]
        found: list[File] = []
        try:
            for file in files:
                if not isinstance(file, CachedFile):
                    found.append(file)
                    continue
                found.append(file._file or self._reopen(file))
                file._is_used = True
                file._unsynced = False  # writes after this line need another sync
            self._fs.sync_files(found)
        except BaseException:
            for file in cached:
                file._unsynced = True
            raise
        for file in cached:
            if file._is_held:
                self._take_back(file)

    def file_size(self, path: str) -> int:
        return self._fs.file_size(path)

    def modified_ms(self, path: str) -> int:
        return self._fs.modified_ms(path)

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        self._fs.set_modified_ms(path, time_ms)

    def exists(self, path: str) -> bool:
        return self._fs.exists(path)

    def is_directory(self, path: str) -> bool:
        return self._fs.is_directory(path)

    def listdir(self, path: str) -> list[str]:
        return self._with_room(path, lambda: self._fs.listdir(path))

    def mkdir(self, path: str) -> None:
        self._fs.mkdir(path)

    def sync_directory(self, path: str) -> None:
        self._with_room(path, lambda: self._fs.sync_directory(path))

    def sync_directories(self, paths: Sequence[str]) -> None:
        for first in range(0, len(paths), _DIRECTORIES_AT_ONCE):
            some = paths[first : first + _DIRECTORIES_AT_ONCE]
            self._with_room(some[0], functools.partial(self._fs.sync_directories, some))

    def lock(self, path: str) -> Lock:
        return self._fs.lock(path)

    def free_bytes(self, path: str) -> int:
        return self._fs.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._fs.total_bytes(path)


def _split(path: str) -> tuple[str, str]:
    """Split a path into directory and name; names are interned, because nearly all logs have files of the same
    names."""
    directory, _, name = path.rpartition("/")
    return directory, sys.intern(name)


def _alive(item: ref[CachedFile] | None) -> CachedFile | None:
    return None if item is None else item()
