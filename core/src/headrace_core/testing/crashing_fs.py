"""A file system in memory with realistic crashes.

It separates what was written from what is durable, for bytes and for names:

* a write is visible at once; it survives a power loss only if the file was synced afterwards;
* a created, renamed or unlinked name survives only if its directory was synced afterwards;
* a killed process loses nothing of either (the page cache stays);
* a flush that fails leaves its pages in the cache, clean, and not on the disk, as Linux does (``memory_disk``). Every
  open handle reports the failure at its next flush, once. ``evict`` drops such pages from the cache.

``crash_clone`` returns what a machine finds after a power loss at this moment, in one of several ways of real disks
(``Loss``); the original continues, so that one run can be crashed at many places and in many ways. ``crash`` does the
same in place. Old handles and locks are dead afterwards.

Faults are planned with ``fail`` (ENOSPC, EIO, at the nth operation of a kind), ``crash_at`` (nth operation of all) and
``capacity_bytes``; ``flip`` damages durable bytes. ``mount`` makes a directory a disk of its own size; ``break_disk``
makes everything below a directory read-only, or dead, until ``mend_disk``. ``trace`` lists every operation, and
``note`` adds the test's own events (such as an acknowledgement), so that a test can prove their order.

Production code runs on it unchanged: it has the protocol of ``headrace_core.log.files``.
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
from ..log.files import Buffer, File, Lock
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
#: Operations that a disk without writes still serves.
_LOOKS = frozenset({"open", "read", "listdir", "stat", "statvfs"})
_MAKE_DURABLE = frozenset({"sync", "sync_directory"})


class SimulatedCrash(BaseException):
    """The machine lost power. No ``except Exception`` or ``except OSError`` stops it; reboot with ``crash``."""


class TraceEntry(NamedTuple):
    """One operation, before its effect. ``position`` and ``size`` are of bytes, -1 without any."""

    number: int
    operation: str
    path: str
    position: int
    size: int


@dataclass(slots=True)
class Fault:
    """A planned failure: the ``nth`` (from 1) operation of this kind on a matching path raises OSError(error)."""

    operation: str
    error: int
    nth: int = 1
    times: int = 1  #: Number of failures, from the nth on.
    path_ends: str = ""
    path_contains: str = ""
    partial_bytes: int = 0  #: For a write that fails: how many of its bytes are written.
    #: For a flush that fails: chooses the pages that reach the disk nevertheless; None: no page does.
    rng: random.Random | None = None
    seen: int = 0

    def strikes(self, operation: str, path: str) -> bool:
        """Count a matching operation; returns whether it fails."""
        if operation != self.operation or not path.endswith(self.path_ends) or self.path_contains not in path:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


__all__ = ["BLOCK_BYTES", "CrashingFileSystem", "Fault", "Loss", "MemoryFile", "SimulatedCrash", "TraceEntry"]


class CrashingFileSystem:
    """See the module. Paths are absolute or relative alike: '/' and '' are the root."""

    def __init__(self, *, capacity_bytes: int | None = None, keep_trace: bool = True) -> None:
        self.capacity_bytes = capacity_bytes
        self.trace: list[TraceEntry] = []
        self.faults: list[Fault] = []
        #: Crash after this many operations (as in ``operations``); None: never.
        self.crash_after: int | None = None
        self.operations = 0  #: Operations so far that change something (all but open, read, listdir and lock).
        #: Called before each operation; may raise.
        self.on_operation: Callable[[TraceEntry], None] | None = None
        self.clock: Clock | None = None  #: For the times of writes; None: 1970.
        self._keep_trace = keep_trace
        #: Operations of several threads run one after the other, and a clone is taken between two.
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
        """Plan a failure. Operations: open, create, write, read, truncate, sync, sync_directory, rename, unlink, mkdir,
        rmdir, listdir, lock."""
        fault = Fault(operation, error, nth, times, path_ends, path_contains, partial_bytes, rng)
        self.faults.append(fault)
        return fault

    def mount(self, path: str, capacity_bytes: int) -> None:
        """Make the directory a disk of this size (again: of another size); its files count against nothing else."""
        self._disks[path] = capacity_bytes

    def break_disk(self, path: str, error: int = errno.EROFS, *, reads: bool = False) -> None:
        """Let every change below ``path`` fail with ``error`` until ``mend_disk``; with ``reads``, also reads."""
        self._broken[path] = (error, reads)

    def mend_disk(self, path: str) -> None:
        """End ``break_disk`` of ``path``."""
        del self._broken[path]

    def crash_at(self, number: int) -> None:
        """Lose power at the operation with this number (from 0), after its effect reached only the page cache:
        SimulatedCrash there, and from every later operation until ``crash``."""
        self.crash_after = number

    def note(self, what: str, path: str = "", position: int = -1) -> None:
        """Add an event of the test's own to the trace."""
        if self._keep_trace:
            self.trace.append(TraceEntry(self.operations, what, path, position, -1))

    def files(self) -> dict[str, bytes]:
        """Every file with its visible bytes."""
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
        """Drop clean pages below ``path`` from the page cache; returns the number of files that lost some."""

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
        """The file's pages that a failed flush left clean in the cache: the disk has older ones."""
        return frozenset(self._file(path).lost)

    def is_durable(self, path: str) -> bool:
        """Whether the disk has all visible bytes of the file."""
        inode = self._file(path)
        return inode.live == inode.durable

    def flip(self, path: str, position: int, mask: int = 0xFF) -> None:
        """Damage a byte, on the disk and in the cache."""
        inode = self._file(path)
        inode.live[position] ^= mask
        if position < len(inode.durable):
            inode.durable[position] ^= mask

    def replace(self, path: str, data: bytes) -> None:
        """Set a file's bytes, durably and untraced, for a test to find."""
        directory, name = self._parent(path)
        inode = Inode(bytearray(data), bytearray(data))
        directory.live[name] = directory.durable[name] = inode

    def crash(self, rng: random.Random | None = None, loss: Loss = Loss.ALL) -> None:
        """Power loss and reboot, in place: unsynced changes are lost by ``loss``, handles and locks are dead, planned
        faults are cleared."""
        self._root = self.crash_clone(rng, loss)._root
        self._locks.clear()
        self._generation += 1
        self._is_down = False
        self.crash_after = None
        self.faults.clear()
        self._used_bytes = self._count_bytes()

    def crash_clone(self, rng: random.Random | None = None, loss: Loss = Loss.ALL) -> CrashingFileSystem:
        """The file system after a power loss at this moment; this one is unchanged."""
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

    def rename(self, old: str, new: str) -> None:
        def effect() -> None:
            directory, name = self._parent(old)
            target, new_name = self._parent(new)
            if directory is not target:
                raise OSError(errno.EXDEV, "renames happen within one directory here", old)
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
                raise BlockingIOError(errno.EWOULDBLOCK, "locked by another owner", path)
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
        """Run one operation: traced, counted if it changes anything, failed or crashed if planned."""
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
            if self._failures_seen != inode.failures:  # another handle's flush failed since this one was opened
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
