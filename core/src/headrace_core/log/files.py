"""The file system that the log gets as an argument: the interface, and the implementation for the real disk.

The log never calls ``os`` itself. The log's ``FileSystem`` is the machine's (``RealFileSystem``) or a simulated file
system (``headrace_core.testing.crashing_fs``). The simulated file system is in memory and can crash, lose unsynced
bytes, tear writes and fail on demand. Crash tests therefore run the production code.

The interface follows two rules of POSIX:

* bytes are durable after ``File.sync`` (fdatasync), not after a write;
* a *name* (created, renamed, unlinked) is durable after ``sync_directory`` of the directory that holds it.

Failed calls raise OSError with the usual errno; the caller decides what the failure means.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, cast

from ..file_modes import make_directory, opener

_sync_descriptors: Callable[[Iterable[int]], list[int]] | None
try:
    from ._sync import start_sync_threads as start_sync_threads
    from ._sync import sync_descriptors as _sync_descriptors
except ImportError:  # without the compiled module, files are synced one after the other
    _sync_descriptors = None

    def start_sync_threads() -> None:
        """Nothing to start."""


_read_cached: Callable[[int, int, int], bytes | None] | None
try:
    from ._cached_read import read_cached as _read_cached
except ImportError:  # without the compiled module, ask first whether the bytes are cached
    _read_cached = None

Buffer = bytes | bytearray | memoryview
#: Waits for a number of seconds; returns True if the caller must not pause any more.
Pause = Callable[[float], bool]

#: Error numbers of a full disk or quota; the disk is still usable after one of these errors.
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
IOV_MAX = 1024  #: Maximum number of buffers that Linux accepts in one writev.
_FALLOC_FL_KEEP_SIZE = 1
_SYNC_FILE_RANGE_WRITE = 2
_PROBE_STEP_BYTES = 64 * 1024
_DIRECTORIES_AT_ONCE = 64
#: Bytes of a removed file that one step frees, and seconds between two steps. To free blocks, the file system writes
#: its journal, and the flushes of all files wait for the journal: up to 40 ms for a GiB (ext4), 2 ms for 4 MiB.
FREED_AT_ONCE = 4 << 20
FREEING_PAUSE_S = 0.004


class File(Protocol):
    """An open file. Each read and write names its position, so readers and the writer share one open file without
    seeking."""

    @property
    def path(self) -> str:
        """The path by which the file was opened."""

    def size(self) -> int:
        """Size of the file in bytes."""

    def pread(self, size: int, position: int) -> bytes:
        """Read ``size`` bytes from ``position``; fewer only at the end of the file."""

    def pread_cached(self, size: int, position: int) -> bytes | None:
        """Read like ``pread`` if the bytes are in memory; None if the read would wait for the disk."""

    def is_cached(self, size: int, position: int) -> bool:
        """Whether a read of ``size`` bytes at ``position`` will (very likely) not wait for the disk. The result of
        ``is_cached`` is a hint: a wrong result only costs time."""

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers in order at ``position``; returns the number of bytes. After an OSError a part of the
        buffers may have been written; the caller removes that part."""

    def truncate(self, size: int) -> None:
        """Truncate the file to ``size``, or extend it with zeros, and free the blocks preallocated beyond ``size``."""

    def sync(self) -> None:
        """Call fdatasync: all bytes written before the call are durable when the method returns. A failed sync is final
        and must not be retried."""

    def start_writeback(self, position: int, size: int) -> None:
        """Start writing ``size`` bytes at ``position`` to the disk, for a ``sync`` that follows soon. A hint."""

    def preallocate(self, position: int, size: int) -> None:
        """Reserve blocks without changing the file's size. ``preallocate`` has no effect on a file system that cannot
        reserve blocks."""

    def close(self) -> None:
        """Close the descriptor. Idempotent."""


class Lock(Protocol):
    """An exclusive advisory lock, held until ``release`` or the end of the process."""

    def release(self) -> None:
        """Release the lock. Idempotent."""


class FileSystem(Protocol):
    """A tree of directories and files. Paths are strings with '/'."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Open a file; ``create`` creates a missing file, whose name is durable after ``sync_directory``."""

    def open_lazily(self, path: str, *, create: bool = False) -> File:
        """Open a long-lived file for reading and writing. The file's descriptor may be opened at the first use and
        closed between uses (``descriptors.DescriptorCache``)."""

    def file_size(self, path: str) -> int:
        """Return a file's size in bytes without opening the file; FileNotFoundError when the file is missing."""

    def modified_ms(self, path: str) -> int:
        """Return the time when a file was last written (wall clock, ms); FileNotFoundError when the file is missing."""

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        """Set a file's modification time; used for a file that replaces an older file."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists at ``path``."""

    def is_directory(self, path: str) -> bool:
        """Whether a directory exists at ``path``."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Create one directory; FileExistsError when the directory exists."""

    def rmdir(self, path: str) -> None:
        """Remove an empty directory."""

    def unlink(self, path: str) -> None:
        """Remove a file's name; open descriptors of the file stay valid."""

    def unlink_gradually(self, path: str, pause: Pause) -> int:
        """Remove a file's name as ``unlink`` does, and free a large file's blocks in steps. The pauses between the
        steps let flushes of other files proceed. When ``pause`` returns True, the remaining blocks are freed in one
        step. Returns the bytes that were freed in one step without a pause."""

    def rename(self, old: str, new: str) -> None:
        """Rename within one directory, replacing the target; atomic, also in a crash."""

    def sync_directory(self, path: str) -> None:
        """fsync a directory: makes the names in it durable."""

    def sync_directories(self, paths: Sequence[str]) -> None:
        """Sync several directories, at the same time where that is faster."""

    def sync_files(self, files: Sequence[File]) -> None:
        """Sync several files, at the same time where that is faster; returns when all files are durable. After an
        OSError, no file of the call counts as durable, and the sync must not be retried."""

    def lock(self, path: str) -> Lock:
        """Lock a file exclusively, and create the file if it is missing; BlockingIOError when another process holds the
        lock."""

    def free_bytes(self, path: str) -> int:
        """Return the bytes that can still be written on the disk of ``path``."""

    def total_bytes(self, path: str) -> int:
        """Return the size in bytes of the disk of ``path``."""


class RealFile:
    """An open file whose descriptor closes with the last reference to the object, so that readers can keep a deleted
    file."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]  # a short read means the end of the file, or a signal
        got = len(data)
        while got < size and (data := os.pread(self._fd, size - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_cached(self, size: int, position: int) -> bytes | None:
        if _read_cached is None:
            return self.pread(size, position) if self.is_cached(size, position) else None
        return _read_cached(self._fd, size, position)

    def is_cached(self, size: int, position: int) -> bool:
        # Read only one byte in every 64 KiB. One byte suffices, because the kernel fills and evicts the page cache in
        # long runs of pages.
        probe = bytearray(1)
        try:
            for at in range(position, position + size, _PROBE_STEP_BYTES):
                os.preadv(self._fd, [probe], at, os.RWF_NOWAIT)
            if size > 0:
                os.preadv(self._fd, [probe], position + size - 1, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            # This system does not support RWF_NOWAIT, so read in the usual way.
            return error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
        return True

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        total = 0
        for first in range(0, len(buffers), IOV_MAX):
            some = buffers if len(buffers) <= IOV_MAX else buffers[first : first + IOV_MAX]
            size = sum(map(len, some))
            written = os.pwritev(self._fd, some, position + total)
            if written < size:  # a short write is rare (2 GiB limit, a signal, a disk that fills up)
                rest = memoryview(b"".join(some))
                while written < size:
                    more = os.pwrite(self._fd, rest[written:], position + total + written)
                    if more == 0:
                        raise OSError(errno.EIO, "write returned 0", self.path)
                    written += more
            total += size
        return total

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def start_writeback(self, position: int, size: int) -> None:
        if _sync_file_range is not None:  # the sync that follows reports disk errors
            _sync_file_range(self._fd, position, size, _SYNC_FILE_RANGE_WRITE)

    def drop_cache(self, size: int, position: int) -> None:
        """Drop a range of bytes from the page cache, after a background read. A hint."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(self._fd, position, size, os.POSIX_FADV_DONTNEED)

    def preallocate(self, position: int, size: int) -> None:
        if _fallocate is not None:
            _fallocate(self._fd, _FALLOC_FL_KEEP_SIZE, position, size)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


class _FlockLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealFileSystem:
    """The machine's file system. Stateless."""

    __slots__ = ()

    def open(self, path: str, *, write: bool = False, create: bool = False) -> RealFile:
        flags = (os.O_RDWR if write or create else os.O_RDONLY) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(path, opener(path, flags))

    def open_lazily(self, path: str, *, create: bool = False) -> RealFile:
        return self.open(path, write=True, create=create)

    def file_size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        os.utime(path, ns=(time_ms * 1_000_000, time_ms * 1_000_000))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        make_directory(path)

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def unlink_gradually(self, path: str, pause: Pause) -> int:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:  # no descriptor is left, a symbolic link, no permission, or no file
            self.unlink(path)
            return 0
        try:
            self.unlink(path)
            status = os.fstat(fd)
            allocated = status.st_blocks * 512  # with the blocks that are reserved beyond the end
            size = allocated if allocated - status.st_size >= FREED_AT_ONCE else status.st_size
            if status.st_nlink:  # the file has another name, such as a backup's hard link
                return 0
            if size <= FREED_AT_ONCE:
                return size
            pause(FREEING_PAUSE_S)  # an open that found the name before has its descriptor now
            if not _is_only_descriptor(fd):
                return size
            with contextlib.suppress(OSError):  # the name is gone; closing the descriptor frees the remaining blocks
                if size > status.st_size:
                    os.ftruncate(fd, size)  # cuts free reserved blocks only below the file's end
                for end in range((size - 1) // FREED_AT_ONCE * FREED_AT_ONCE, 0, -FREED_AT_ONCE):
                    os.ftruncate(fd, end)
                    if pause(FREEING_PAUSE_S):
                        return end
            return 0
        finally:
            os.close(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_directories(self, paths: Sequence[str]) -> None:
        if len(paths) < 2 or _sync_descriptors is None:
            for path in paths:
                self.sync_directory(path)
            return
        for first in range(0, len(paths), _DIRECTORIES_AT_ONCE):
            some = paths[first : first + _DIRECTORIES_AT_ONCE]
            # For a directory fdatasync is enough, because the names are the directory's data.
            self.sync_files(
                [RealFile(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) for path in some]
            )

    def sync_files(self, files: Sequence[File]) -> None:
        if len(files) < 2 or _sync_descriptors is None:
            for file in files:
                file.sync()
            return
        failures = _sync_descriptors([cast("RealFile", file).fileno() for file in files])
        for file, failure in zip(files, failures, strict=True):
            if failure:
                raise OSError(failure, os.strerror(failure), file.path)

    def lock(self, path: str) -> Lock:
        fd = opener(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return _FlockLock(fd)

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def total_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize


_FileCall = Callable[[int, int, int, int], int]


def _is_only_descriptor(fd: int) -> bool:
    """Whether no other descriptor or memory map of the unlinked file is open, in any process: then nothing reads the
    file any more. The kernel grants a write lease only while no other descriptor of the file is open (fcntl(2),
    F_SETLEASE). Returns False where the file system has no leases. On overlayfs the kernel does not count memory maps;
    Headrace maps no files."""
    try:
        # The kernel would announce a conflicting open with SIGIO, which ends a process by default. Nothing can open an
        # unlinked file by its name; SIGURG is ignored by default.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return False
    return True


def _libc(name: str, *types: type) -> _FileCall | None:
    """Return a function of the C library that Python does not expose; None where the C library lacks the function."""
    try:
        function = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    function.argtypes = list(types)
    function.restype = ctypes.c_int
    return cast("_FileCall", function)


# Python's posix_fallocate is not used: it would grow the file, with zeros at the end.
_fallocate = _libc("fallocate", ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_sync_file_range = _libc("sync_file_range", ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


@contextlib.contextmanager
def full_disk_tolerated() -> Iterator[None]:
    """Ignore an OSError for a full disk, for writes that can be left out or repeated later."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise


def read_file(fs: FileSystem, path: str) -> bytes:
    file = fs.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write_file_atomically(fs: FileSystem, path: str, data: bytes) -> None:
    """Replace a small file so that a crash leaves either the old bytes or the new bytes: write a new file, fsync,
    rename, fsync the directory. The new bytes of the file are durable when the function returns."""
    write_files_atomically(fs, [(path, data)])


def write_files_atomically(fs: FileSystem, files: Sequence[tuple[str, bytes]], *, sync_names: bool = True) -> None:
    """Replace several files, given as (path, bytes), as ``write_file_atomically`` does, and sync the files together.
    Without ``sync_names`` the caller must sync the directories to make the new names durable."""
    temporary: list[File] = []
    try:
        for path, data in files:
            temporary.append(file := fs.open(_temporary(path), write=True, create=True))
            file.truncate(0)
            file.pwritev([data], 0)
        fs.sync_files(temporary)
    finally:
        for file in temporary:
            file.close()
    for path, _ in files:
        fs.rename(_temporary(path), path)
    if sync_names:
        fs.sync_directories(list(dict.fromkeys(path.rpartition("/")[0] for path, _ in files)))


def _temporary(path: str) -> str:
    return f"{path}.tmp"


def remove_tree(fs: FileSystem, path: str) -> None:
    for name in fs.listdir(path):
        child = f"{path}/{name}"
        if fs.is_directory(child):
            remove_tree(fs, child)
        else:
            fs.unlink(child)
    fs.rmdir(path)


def make_directories(fs: FileSystem, path: str) -> None:
    """Create a directory and its parents; each new name is durable when the function returns."""
    if path in ("", "/", ".") or fs.is_directory(path):
        return
    parent = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    make_directories(fs, parent)
    fs.mkdir(path)
    fs.sync_directory(parent)
