"""A file system in memory with realistic crashes.

The file system keeps written and durable contents apart, for bytes and for names:

* a write is visible at once; it survives a power loss only if the file was synced afterwards;
* a created, renamed or unlinked name survives only if its directory was synced afterwards;
* a killed process loses neither bytes nor names, because the page cache stays;
* a failed flush leaves its pages clean in the cache but not on the disk, as Linux does (``memory_disk``). After a
  failed flush, every open file handle reports the failure at its next flush, once. ``evict`` drops the pages of a
  failed flush from the cache.

``crash_clone`` returns the file system that a machine finds after a power loss at the moment of the call. ``Loss`` says
which unsynced changes a disk keeps. After ``crash_clone`` the original file system continues, so a test can crash one
run at many places and in many ways. ``crash`` simulates the power loss in place; old file handles and locks are invalid
after the call.

Tests plan faults with ``fail`` (ENOSPC, EIO, at the nth operation of a kind), ``crash_at`` (the nth of all operations)
and ``capacity_bytes``. ``flip`` damages durable bytes. ``mount`` makes a directory a separate disk with its own size.
``break_disk`` makes all files below a directory read-only or unreadable until ``mend_disk``. ``trace`` lists every
operation, and ``note`` adds events of the test, such as an acknowledgement. A test can therefore prove the order of
operations and events.

Production code runs on CrashingFileSystem unchanged, because it implements the protocol of ``headrace_core.log.files``.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ..clock import Clock
from ..log.files import Buffer, File, Lock, Pause
from .memory_disk import (
    BLOCK_BYTES,
    Change,
    Directory,
    Inode,
    Loss,
    NameChange,
    Survivors,
    apply_names,
)

T = TypeVar("T")

_UNCHANGING = frozenset({"open", "read", "listdir", "lock"})
#: Operations that succeed even while the disk refuses writes.
_LOOKS = frozenset({"open", "read", "listdir", "stat", "statvfs"})
_MAKE_DURABLE = frozenset({"sync", "sync_directory"})


class SimulatedCrash(BaseException):
    """Raised when the simulated machine loses power. ``except Exception`` and ``except OSError`` do not catch
    SimulatedCrash; ``crash`` reboots the machine."""


class TraceEntry(NamedTuple):
    """An entry of the trace: one operation, recorded before its effect. ``position`` and ``size`` of the operation's
    bytes are -1 if it has no bytes."""

    number: int
    operation: str
    path: str
    position: int
    size: int


@dataclass(slots=True)
class Fault:
    """A planned failure: the ``nth`` ``operation`` (from 1) on a matching path raises OSError(error)."""

    operation: str
    error: int
    nth: int = 1
    times: int = 1  #: Number of consecutive operations that fail, beginning with the nth operation.
    path_ends: str = ""
    path_contains: str = ""
    partial_bytes: int = 0  #: Number of bytes that a failing write still writes.
    #: Chooses the pages that reach the disk although their flush fails; None: no page reaches the disk.
    rng: random.Random | None = None
    seen: int = 0

    def strikes(self, operation: str, path: str) -> bool:
        """Count a matching operation; returns whether the operation fails."""
        if operation != self.operation or not path.endswith(self.path_ends) or self.path_contains not in path:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


__all__ = ["BLOCK_BYTES", "CrashingFileSystem", "Fault", "Loss", "MemoryFile", "SimulatedCrash", "TraceEntry"]


class CrashingFileSystem:
    """A file system in memory that can crash, as the module's docstring describes. An absolute path and the relative
    path without its first '/' name the same file; '/' and '' are the root."""

    def __init__(self, *, capacity_bytes: int | None = None, keep_trace: bool = True) -> None:
        self.capacity_bytes = capacity_bytes
        self.trace: list[TraceEntry] = []
        self.faults: list[Fault] = []
        #: Number of operations (as counted in ``operations``) after which the machine crashes; None if it never
        #: crashes.
        self.crash_after: int | None = None
        #: Number of operations since the start that change files or names (all operations except open, read, listdir
        #: and lock).
        self.operations = 0
        #: Callback before each operation; may raise an error in the operation's place.
        self.on_operation: Callable[[TraceEntry], None] | None = None
        self.clock: Clock | None = None  #: Clock for files' modification times; with None, all times are in 1970.
        self._keep_trace = keep_trace
        #: Lock under which operations of several threads run one after another; a clone of the disk is made between two
        #: operations.
        self._lock = threading.RLock()
        self._root = Directory()
        self._locks: set[str] = set()
        self._generation = 0
        self._is_down = False
        self._used_bytes = 0
        self._disks: dict[str, int] = {}
        self._broken: dict[str, tuple[int, bool]] = {}

    def fail(
        self,
        operation: str,
        error: int = errno.EIO,
        *,
        nth: int = 1,
        times: int = 1,
        path_ends: str = "",
        path_contains: str = "",
        partial_bytes: int = 0,
        rng: random.Random | None = None,
    ) -> Fault:
        """Plan a failure. The names of the operations are: open, create, write, read, truncate, sync, sync_directory,
        rename, unlink, mkdir, rmdir, listdir, lock."""
        fault = Fault(operation, error, nth, times, path_ends, path_contains, partial_bytes, rng)
        self.faults.append(fault)
        return fault

    def mount(self, path: str, capacity_bytes: int) -> None:
        """Make the directory a separate disk of ``capacity_bytes``, which holds only the files of that directory; a
        repeated call changes the size."""
        self._disks[path] = capacity_bytes

    def break_disk(self, path: str, error: int = errno.EROFS, *, reads: bool = False) -> None:
        """Let every change below ``path`` fail with ``error`` until ``mend_disk``; with ``reads``, also reads."""
        self._broken[path] = (error, reads)

    def mend_disk(self, path: str) -> None:
        """Repair the disk that ``break_disk`` broke."""
        del self._broken[path]

    def crash_at(self, number: int) -> None:
        """Lose power at the operation with the given number (from 0), after its effect has reached only the page cache.
        The operation with the given number and every later operation raise SimulatedCrash until ``crash``."""
        self.crash_after = number

    def note(self, what: str, path: str = "", position: int = -1) -> None:
        """Add an event of the test to the trace."""
        if self._keep_trace:
            self.trace.append(TraceEntry(self.operations, what, path, position, -1))

    def files(self) -> dict[str, bytes]:
        """Return the visible bytes of every file, by path."""
        found: dict[str, bytes] = {}

        def walk(directory: Directory, prefix: str) -> None:
            for name, entry in directory.live.items():
                if isinstance(entry, Directory):
                    walk(entry, f"{prefix}{name}/")
                else:
                    found[prefix + name] = bytes(entry.live)

        walk(self._root, "/")
        return found

    def evict(self, path: str = "/") -> int:
        """Drop the clean pages of files below ``path`` from the page cache; returns the number of files that lost
        bytes."""

        def walk(entry: Inode | Directory) -> int:
            if isinstance(entry, Directory):
                return sum(map(walk, entry.live.values()))
            if not entry.lost:
                return 0
            entry.evict()
            return 1

        with self._lock:
            found = self._entry(path)
            return 0 if found is None else walk(found)

    def lost_pages(self, path: str) -> frozenset[int]:
        """Return the file's pages that a failed flush left clean in the cache, although the disk has older contents."""
        return frozenset(self._file(path).lost)

    def is_durable(self, path: str) -> bool:
        """Whether the disk has all visible bytes of the file."""
        inode = self._file(path)
        return inode.live == inode.durable

    def flip(self, path: str, position: int, mask: int = 0xFF) -> None:
        """Damage a byte of a file, on the disk and in the page cache."""
        inode = self._file(path)
        inode.live[position] ^= mask
        if position < len(inode.durable):
            inode.durable[position] ^= mask

    def replace(self, path: str, data: bytes) -> None:
        """Set a file's bytes, durably and without a trace entry, to prepare a test."""
        directory, name = self._parent(path)
        inode = Inode(bytearray(data), bytearray(data))
        directory.live[name] = directory.durable[name] = inode

    def crash(self, rng: random.Random | None = None, loss: Loss = Loss.ALL) -> None:
        """Simulate a power loss and a reboot, in place. ``loss`` decides which unsynced changes are lost. File handles
        and locks become invalid, and planned faults are cleared."""
        self._root = self.crash_clone(rng, loss)._root
        self._locks.clear()
        self._generation += 1
        self._is_down = False
        self.crash_after = None
        self.faults.clear()
        self._used_bytes = self._count_bytes()

    def crash_clone(self, rng: random.Random | None = None, loss: Loss = Loss.ALL) -> CrashingFileSystem:
        """Return a copy of the file system as it would be after a power loss at the moment of the call; the original is
        unchanged."""
        if loss in (Loss.PREFIX, Loss.BLOCKS) and rng is None:
            raise ValueError(f"{loss} needs a random source")
        clone = CrashingFileSystem(capacity_bytes=self.capacity_bytes, keep_trace=self._keep_trace)
        with self._lock:
            clone._root = Survivors(rng or random.Random(0), loss).directory(self._root)
        clone._used_bytes = clone._count_bytes()
        clone.clock = self.clock
        clone._disks.update(self._disks)
        clone._broken.update(self._broken)
        return clone

    def open(self, path: str, *, write: bool = False, create: bool = False) -> MemoryFile:
        def effect() -> MemoryFile:
            directory, name = self._parent(path)
            entry = directory.live.get(name)
            if entry is None:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                entry = Inode()
                self._change_names(directory, NameChange((), ((name, entry),)))
            if isinstance(entry, Directory):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            return MemoryFile(self, path, entry, writable=write or create, generation=self._generation)

        if write:
            self._check_broken("open for writing", path)
        return self._do("create" if create and not self.exists(path) else "open", path, effect)

    def open_lazily(self, path: str, *, create: bool = False) -> MemoryFile:
        return self.open(path, write=True, create=create)

    def file_size(self, path: str) -> int:
        return len(self._file(path).live)

    def modified_ms(self, path: str) -> int:
        return self._file(path).modified_ms

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        self._file(path).modified_ms = time_ms

    def exists(self, path: str) -> bool:
        try:
            self._check_broken("stat", path)
            return self._entry(path) is not None
        except OSError:
            return False

    def is_directory(self, path: str) -> bool:
        try:
            self._check_broken("stat", path)
            return isinstance(self._entry(path), Directory)
        except OSError:
            return False

    def listdir(self, path: str) -> list[str]:
        return self._do("listdir", path, lambda: sorted(self._directory(path).live))

    def mkdir(self, path: str) -> None:
        def effect() -> None:
            directory, name = self._parent(path)
            if name in directory.live or not name:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._change_names(directory, NameChange((), ((name, Directory()),)))

        self._do("mkdir", path, effect)

    def rmdir(self, path: str) -> None:
        def effect() -> None:
            directory, name = self._parent(path)
            if self._directory(path).live:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._change_names(directory, NameChange((name,), ()))

        self._do("rmdir", path, effect)

    def unlink(self, path: str) -> None:
        def effect() -> None:
            directory, name = self._parent(path)
            self._used_bytes -= len(self._file(path).live)
            self._change_names(directory, NameChange((name,), ()))

        self._do("unlink", path, effect)

    def unlink_gradually(self, path: str, pause: Pause) -> int:
        self.unlink(path)
        return 0

    def rename(self, old: str, new: str) -> None:
        def effect() -> None:
            directory, name = self._parent(old)
            target, new_name = self._parent(new)
            if directory is not target:
                raise OSError(errno.EXDEV, "this test file system renames only within one directory", old)
            entry = directory.live.get(name)
            if entry is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), old)
            replaced = directory.live.get(new_name)
            if isinstance(replaced, Inode):
                self._used_bytes -= len(replaced.live)
            self._change_names(directory, NameChange((name,), ((new_name, entry),)))

        self._do("rename", f"{old} -> {new}", effect)

    def sync_files(self, files: Sequence[File]) -> None:
        for file in files:
            file.sync()

    def sync_directory(self, path: str) -> None:
        def effect() -> None:
            directory = self._directory(path)
            for change in directory.pending:
                apply_names(directory.durable, change)
            directory.pending.clear()

        self._do("sync_directory", path, effect)

    def sync_directories(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.sync_directory(path)

    def lock(self, path: str) -> Lock:
        if not self.exists(path):
            self.open(path, create=True).close()

        def effect() -> Lock:
            if path in self._locks:
                raise BlockingIOError(errno.EWOULDBLOCK, "the file is locked by another owner", path)
            self._locks.add(path)
            return _MemoryLock(self, path, self._generation)

        return self._do("lock", path, effect)

    def free_bytes(self, path: str) -> int:
        self._check_broken("statvfs", path)
        disk = self._disk_of(path)
        if disk is not None:
            return max(self._disks[disk] - self._count_bytes(disk), 0)
        return 2**62 if self.capacity_bytes is None else max(self.capacity_bytes - self._used_bytes, 0)

    def total_bytes(self, path: str) -> int:
        self._check_broken("statvfs", path)
        disk = self._disk_of(path)
        if disk is not None:
            return self._disks[disk]
        return 2**62 if self.capacity_bytes is None else self.capacity_bytes

    def _do(
        self,
        operation: str,
        path: str,
        effect: Callable[[], T],
        position: int = -1,
        size: int = -1,
        before_fault: Callable[[Fault | None], object] | None = None,
    ) -> T:
        """Run one operation: add it to the trace, count it if it changes files or names, and let it fail or crash if
        planned."""
        if self._is_down:
            raise SimulatedCrash(f"{operation} {path}: the machine is down; call crash() to reboot it")
        if self._keep_trace or self.on_operation is not None:
            entry = TraceEntry(self.operations, operation, path, position, size)
            if self._keep_trace:
                self.trace.append(entry)
            if self.on_operation is not None:
                self.on_operation(entry)
        if self.faults:
            for fault in self.faults:
                if fault.strikes(operation, path):
                    if before_fault is not None:
                        before_fault(fault)
                    raise OSError(fault.error, os.strerror(fault.error), path)
        if self._broken:
            try:
                self._check_broken(operation, path)
            except OSError:
                if operation == "sync" and before_fault is not None:
                    before_fault(None)
                raise
        if operation in _UNCHANGING:
            with self._lock:
                return effect()
        number = self.operations
        self.operations = number + 1
        if number != self.crash_after:
            with self._lock:
                return effect()
        if operation in _MAKE_DURABLE:
            self._lose_power(operation, path)
        try:
            with self._lock:
                return effect()
        finally:
            self._lose_power(operation, path)

    def _check_broken(self, operation: str, path: str) -> None:
        for disk, (error, reads) in self._broken.items():
            if _is_below(path, disk) and (reads or operation not in _LOOKS):
                raise OSError(error, os.strerror(error), path)

    def _disk_of(self, path: str) -> str | None:
        return next((disk for disk in self._disks if _is_below(path, disk)), None)

    def _lose_power(self, operation: str, path: str) -> None:
        self._is_down = True
        raise SimulatedCrash(f"power lost at operation {self.operations - 1}: {operation} {path}")

    def _change_names(self, directory: Directory, change: NameChange) -> None:
        apply_names(directory.live, change)
        directory.pending.append(change)

    def _change_bytes(self, inode: Inode, change: Change) -> None:
        before = len(inode.live)
        inode.change(change)
        inode.modified_ms = self.clock.now_ms() if self.clock is not None else 0
        self._used_bytes += len(inode.live) - before

    def _entry(self, path: str) -> Inode | Directory | None:
        found: Inode | Directory = self._root
        for name in path.split("/"):
            if name in ("", "."):
                continue
            if not isinstance(found, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            following = found.live.get(name)
            if following is None:
                return None
            found = following
        return found

    def _directory(self, path: str) -> Directory:
        entry = self._entry(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not isinstance(entry, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return entry

    def _file(self, path: str) -> Inode:
        entry = self._entry(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(entry, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return entry

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        return self._directory(parent), name

    def _count_bytes(self, disk: str = "") -> int:
        def count(directory: Directory, prefix: str) -> int:
            return sum(
                count(entry, f"{prefix}{name}/") if isinstance(entry, Directory) else len(entry.live)
                for name, entry in directory.live.items()
                if isinstance(entry, Directory) or not disk or _is_below(prefix + name, disk)
            )

        return count(self._root, "/")


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


class MemoryFile:
    """An open file of a CrashingFileSystem."""

    def __init__(self, fs: CrashingFileSystem, path: str, inode: Inode, *, writable: bool, generation: int) -> None:
        self.path = path
        self._fs = fs
        self._inode = inode
        self._writable = writable
        self._generation = generation
        self._is_open = True
        self._failures_seen = inode.failures

    def size(self) -> int:
        self._check()
        return len(self._inode.live)

    def pread(self, size: int, position: int) -> bytes:
        self._check()
        return self._fs._do(
            "read", self.path, lambda: bytes(self._inode.live[position : position + size]), position, size
        )

    def pread_cached(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position)

    def is_cached(self, size: int, position: int) -> bool:
        return True

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        self._check(write=True)
        data = b"".join(buffers)
        fs = self._fs

        def write(size: int) -> int:
            fs._change_bytes(self._inode, Change(position, data[:size]))
            return size

        def effect() -> int:
            room = fs.free_bytes(self.path) + max(len(self._inode.live) - position, 0)
            if len(data) > room:
                write(room)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            return write(len(data))

        return fs._do(
            "write",
            self.path,
            effect,
            position,
            len(data),
            before_fault=lambda fault: write(0 if fault is None else fault.partial_bytes),
        )

    def truncate(self, size: int) -> None:
        self._check(write=True)
        self._fs._do("truncate", self.path, lambda: self._fs._change_bytes(self._inode, Change(size, None)), size, -1)

    def sync(self) -> None:
        self._check(write=True)
        inode = self._inode

        def effect() -> None:
            if self._failures_seen != inode.failures:  # since this handle was opened, a flush of another handle failed
                self._failures_seen = inode.failures
                raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)
            inode.make_durable()

        def fails(fault: Fault | None) -> None:
            inode.lose_pending(None if fault is None else fault.rng)
            self._failures_seen = inode.failures

        self._fs._do("sync", self.path, effect, size=len(inode.live), before_fault=fails)

    def start_writeback(self, position: int, size: int) -> None:
        self._check(write=True)

    def preallocate(self, position: int, size: int) -> None:
        self._check(write=True)

    def close(self) -> None:
        self._is_open = False

    def _check(self, *, write: bool = False) -> None:
        if self._fs._is_down:
            raise SimulatedCrash(f"{self.path}: the machine is down; call crash() to reboot it")
        if not self._is_open or self._generation != self._fs._generation:
            raise OSError(errno.EBADF, "the file was closed, or opened before a crash", self.path)
        if write and not self._writable:
            raise OSError(errno.EBADF, "the file was opened for reading", self.path)


class _MemoryLock:
    def __init__(self, fs: CrashingFileSystem, path: str, generation: int) -> None:
        self._fs = fs
        self._path = path
        self._generation = generation

    def release(self) -> None:
        if self._generation == self._fs._generation:
            self._fs._locks.discard(self._path)
            self._generation = -1
