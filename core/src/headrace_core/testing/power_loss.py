"""Simulated power loss for real processes: a test can undo a killed process's unsynced writes.

A killed process loses no bytes that it wrote, because the page cache stays. To test what a *machine* finds after a
power loss, a node runs on ``PowerLossFileSystem``. ``PowerLossFileSystem`` is the real file system, plus a journal that
says how to undo each unsynced change. After ``kill -9`` the test calls ``lose_power`` on the journal. The node's next
start finds what a disk might hold after a power loss. All unsynced changes are lost, or the first few or some blocks
have reached the disk (``Loss``). Without a call of ``lose_power``, the test only kills the process, and no bytes are
lost.

    change                          durable after                       undone by
    bytes written, file cut         sync of the file (fdatasync)        the old bytes, the old size
    file or directory created       sync of its parent directory        its removal, with all its contents
    file or directory renamed       sync of its parent directory        its old name, and the file that had the new name
    file or directory removed       at once                             -

A failed sync behaves as on Linux (``memory_disk``): the bytes written before the sync stay clean in the page cache, and
are not on the disk. A later sync does not write the bytes of a failed sync. Only a later write to the same 4-KiB page
makes the page of a failed sync dirty again. A power loss undoes a write whose sync failed, even after any number of
later syncs.

A journal entry is written before its change. After a kill between an entry and its change, the undo of a change that
did not happen has no effect. If a kill comes between a sync and its journal entry, the sync is treated as not done,
because its caller never got a result. Unsynced changes of an earlier process are undone even if a later process has run
since, because a restart makes no change durable.

``Dials`` is a file that a test writes while the node runs; it says how long a sync takes, and whether a sync fails.

The module uses no asyncio and starts no process; ``tests/system`` starts nodes on this file system.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import pickle
import random
import shutil
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from ..log.files import Buffer, File, RealFile, RealFileSystem
from .memory_disk import BLOCK_BYTES, Loss

__all__ = ["Dials", "Loss", "PowerLossFileSystem", "lose_power"]

_LENGTH = struct.Struct("<I")
_JOURNAL = "undo.journal"
_DIALS = "dials.json"


@dataclass(frozen=True, slots=True)
class Dials:
    """Delays and failures of a disk. ``sync_errno``: the errno with which every sync fails (0: no sync fails).
    ``free_bytes``: the free space that the disk reports, although writes succeed (negative: the true one)."""

    sync_delay_ms: float = 0.0
    sync_errno: int = 0
    free_bytes: int = -1

    def write(self, directory: Path) -> None:
        """Write the dials for the node whose journal is in ``directory``; the dials apply from the node's next sync
        on."""
        temporary = directory / f"{_DIALS}.tmp"
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(directory / _DIALS)


class _Seen(NamedTuple):
    """Journal entry: a file gets a number, which later entries use."""

    file: int
    path: str


class _Write(NamedTuple):
    """Journal entry: ``size`` bytes are written at ``position`` of a file of ``old_size`` bytes; ``old``: the replaced
    bytes."""

    file: int
    position: int
    size: int
    old_size: int
    old: bytes


class _Cut(NamedTuple):
    """Journal entry: a file of ``old_size`` bytes is cut or extended to ``size``; ``old``: the removed bytes."""

    file: int
    size: int
    old_size: int
    old: bytes


class _Synced(NamedTuple):
    """Journal entry: all changes of the files before the entry numbered ``before`` are durable."""

    files: tuple[int, ...]
    before: int


class _SyncFailed(NamedTuple):
    """Journal entry: a sync of the files failed. Unsynced writes before the entry numbered ``before`` are not on the
    disk."""

    files: tuple[int, ...]
    before: int


class _Made(NamedTuple):
    path: str


class _Renamed(NamedTuple):
    """Journal entry: a file or directory is renamed. ``replaced``: the bytes of the file that had the new name."""

    old: str
    new: str
    replaced: bytes | None


class _Removed(NamedTuple):
    path: str


class _NamesSynced(NamedTuple):
    """Journal entry: the name changes in the entries with the given numbers (``_Made`` and ``_Renamed``) are
    durable."""

    entries: tuple[int, ...]


_Entry = _Seen | _Write | _Cut | _Synced | _SyncFailed | _Made | _Renamed | _Removed | _NamesSynced


def _read_journal(path: Path) -> Iterator[_Entry]:
    """Read the complete entries of the journal; the change of an incomplete entry did not happen."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    at = 0
    while at + _LENGTH.size <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + size > len(data):
            return
        yield cast("_Entry", pickle.loads(data[at : at + size]))
        at += size


def _under(path: str, old: str, new: str) -> str:
    """Return ``path`` as it is named after ``old`` was renamed to ``new``."""
    if path == old:
        return new
    return new + path[len(old) :] if path.startswith(old + "/") else path


@dataclass(slots=True)
class _FileState:
    number: int
    path: str
    #: Changes since the file's last sync: the number of each journal entry, and the pages that the change made dirty.
    unsynced: dict[int, range] = field(default_factory=dict)
    #: For each write with a failed sync: the number of its journal entry, and the pages that did not reach the disk.
    lost: dict[int, set[int]] = field(default_factory=dict)

    def synced(self, before: int) -> None:
        forced = {page for number, pages in self.unsynced.items() if number < before for page in pages}
        self.unsynced = {number: pages for number, pages in self.unsynced.items() if number >= before}
        self.lost = {number: left for number, pages in self.lost.items() if (left := pages - forced)}

    def sync_failed(self, before: int) -> None:
        for number, pages in list(self.unsynced.items()):
            if number < before and pages:  # a cut stays in the file system's journal
                self.lost[number] = set(pages)
                del self.unsynced[number]


def _pages(entry: _Write | _Cut) -> range:
    if isinstance(entry, _Cut):
        return range(0)
    return range(entry.position // BLOCK_BYTES, -(-(entry.position + entry.size) // BLOCK_BYTES))


class _Pending:
    """Tracks unsynced changes, both while a process runs and when its journal is read."""

    def __init__(self) -> None:
        self.files: dict[int, _FileState] = {}
        #: For each journal entry that changes a name: the present name of the directory. A sync of this directory makes
        #: the change durable.
        self.names: dict[int, str] = {}
        self.next_entry = 0

    @property
    def is_empty(self) -> bool:
        return not self.names and not any(state.unsynced or state.lost for state in self.files.values())

    def apply(self, entry: _Entry) -> None:
        number, self.next_entry = self.next_entry, self.next_entry + 1
        match entry:
            case _Seen(file, path):
                self.files[file] = _FileState(file, path)
            case _Write(file=file) | _Cut(file=file):
                # An unknown file was removed, and its open descriptors stay valid
                if (known := self.files.get(file)) is not None:
                    known.unsynced[number] = _pages(entry)
            case _Synced(files, before):
                for file in files:
                    if (state := self.files.get(file)) is not None:
                        state.synced(before)
            case _SyncFailed(files, before):
                for file in files:
                    if (state := self.files.get(file)) is not None:
                        state.sync_failed(before)
            case _Made(path):
                self.names[number] = os.path.dirname(path)
            case _Renamed(old, new):
                self._forget(new)
                for state in self.files.values():
                    state.path = _under(state.path, old, new)
                self.names = {each: _under(directory, old, new) for each, directory in self.names.items()}
                self.names[number] = os.path.dirname(new)
            case _Removed(path):
                self._forget(path)
            case _NamesSynced(entries):
                for each in entries:
                    self.names.pop(each, None)

    def _forget(self, path: str) -> None:
        for number in [number for number, state in self.files.items() if state.path == path]:
            del self.files[number]


class _JournaledFile(RealFile):
    """A real file whose changes can be undone until the file is synced."""

    __slots__ = ("_disk", "number")

    def __init__(self, path: str, fd: int, disk: PowerLossFileSystem, number: int) -> None:
        super().__init__(path, fd)
        self._disk = disk
        self.number = number  #: The file's number in the disk's journal.

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> int:
        size = sum(len(buffer) for buffer in buffers)
        old_size = self.size()
        old = self.pread(min(size, old_size - position), position) if position < old_size else b""
        self._disk._note(_Write(self.number, position, size, old_size, old))
        return super().pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        old_size = self.size()
        old = self.pread(old_size - size, size) if size < old_size else b""
        if size != old_size:  # with the same size, the truncation only frees reserved blocks
            self._disk._note(_Cut(self.number, size, old_size, old))
        super().truncate(size)

    def sync(self) -> None:
        self._disk.sync_files([self])


class PowerLossFileSystem(RealFileSystem):
    """The real file system with a journal of unsynced changes. ``directory``, outside of the watched files, holds the
    journal and the dials. Thread-safe like the real file system, if a file has one writer at a time."""

    __slots__ = ("_descriptor", "_dials", "_dials_at", "_dials_path", "_lock", "_next_file", "_numbers", "_pending")

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._dials_path = str(directory / _DIALS)
        self._dials, self._dials_at = Dials(), -1
        self._pending = _Pending()
        self._numbers: dict[tuple[int, int], int] = {}  #: (device, inode) -> number of the file in the journal.
        journal = directory / _JOURNAL
        for entry in _read_journal(journal):  # entries of an earlier process, unsynced since
            self._pending.apply(entry)
        for number, state in list(self._pending.files.items()):
            with contextlib.suppress(FileNotFoundError):
                stat = os.stat(state.path)
                self._numbers[(stat.st_dev, stat.st_ino)] = number
        self._next_file = 1 + max(self._pending.files, default=0)
        self._descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def _note(self, entry: _Entry) -> None:
        with self._lock:
            self._append(entry)

    def _append(self, entry: _Entry) -> int:
        """Append an entry to the journal; returns the entry's number."""
        number = self._pending.next_entry
        data = pickle.dumps(entry, protocol=5)
        os.write(self._descriptor, _LENGTH.pack(len(data)) + data)
        self._pending.apply(entry)
        return number

    def _dial(self) -> Dials:
        try:
            at = os.stat(self._dials_path).st_mtime_ns
        except FileNotFoundError:
            return self._dials
        if at != self._dials_at:
            with open(self._dials_path) as file:
                self._dials = Dials(**json.load(file))
            self._dials_at = at
        return self._dials

    def free_bytes(self, path: str) -> int:
        wanted = self._dial().free_bytes
        return super().free_bytes(path) if wanted < 0 else wanted

    def _syncing(self, path: str) -> None:
        dials = self._dial()
        if dials.sync_delay_ms:
            time.sleep(dials.sync_delay_ms / 1000)
        if dials.sync_errno:
            raise OSError(dials.sync_errno, os.strerror(dials.sync_errno), path)

    def open(self, path: str, *, write: bool = False, create: bool = False) -> RealFile:
        with self._lock:
            if create and not os.path.exists(path):
                self._append(_Made(path))
                made = True
            else:
                made = False
            file = super().open(path, write=write, create=create)
            if not (write or create):
                return file
            stat = os.fstat(file.fileno())
            key = (stat.st_dev, stat.st_ino)
            number = self._numbers.get(key)
            if made or number is None or number not in self._pending.files:
                number, self._next_file = self._next_file, self._next_file + 1
                self._numbers[key] = number
                self._append(_Seen(number, path))
            # Use a duplicate of the descriptor, because ``file`` closes its own descriptor.
            return _JournaledFile(path, os.dup(file.fileno()), self, number)

    def sync_files(self, files: Sequence[File]) -> None:
        if not files:
            return
        before = self._pending.next_entry
        numbers = tuple(file.number for file in files if isinstance(file, _JournaledFile))
        try:
            self._syncing(files[0].path)
            if len(files) == 1:
                RealFile.sync(cast("RealFile", files[0]))
            else:
                super().sync_files(files)
        except OSError:  # one of several files may have failed, so no file counts as synced
            self._note(_SyncFailed(numbers, before))
            raise
        self._note(_Synced(numbers, before))

    def mkdir(self, path: str) -> None:
        with self._lock:
            if not os.path.exists(path):
                self._append(_Made(path))
            super().mkdir(path)

    def rmdir(self, path: str) -> None:
        super().rmdir(path)
        self._note(_Removed(path))

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._note(_Removed(path))

    def rename(self, old: str, new: str) -> None:
        with self._lock:
            replaced = Path(new).read_bytes() if os.path.isfile(new) else None
            if os.path.exists(old):  # a rename without its source fails and changes nothing
                self._append(_Renamed(old, new, replaced))
            super().rename(old, new)

    def sync_directory(self, path: str) -> None:
        self.sync_directories([path])

    def sync_directories(self, paths: Sequence[str]) -> None:
        wanted = {os.path.normpath(path) for path in paths}
        with self._lock:
            entries = [each for each, where in self._pending.names.items() if os.path.normpath(where or ".") in wanted]
        self._syncing(paths[0] if paths else "")
        for path in paths:
            super().sync_directory(path)
        if entries:
            self._note(_NamesSynced(tuple(entries)))


class _Undoing:
    """Undoes the changes of one journal that were not durable, from the last to the first."""

    def __init__(self, entries: Sequence[_Entry], rng: random.Random, loss: Loss) -> None:
        self._entries, self._rng, self._loss = entries, rng, loss
        pending = _Pending()
        for entry in entries:
            pending.apply(entry)
        self._unsynced = {number: set(state.unsynced) for number, state in pending.files.items()}
        self._lost = {number: pages for state in pending.files.values() for number, pages in state.lost.items()}
        self._undone_names = set(pending.names)
        self._renames = [at for at, entry in enumerate(entries) if isinstance(entry, _Renamed | _Removed)]
        if loss is not Loss.ALL and self._undone_names and rng.random() < 0.5:
            # Name changes reach the disk in their order, so a power loss keeps only the first few changes.
            kept = sorted(self._undone_names)[: rng.randrange(len(self._undone_names) + 1)]
            self._undone_names -= set(kept)
        self.bytes_lost = 0

    def run(self) -> None:
        paths: dict[int, str] = {entry.file: entry.path for entry in self._entries if isinstance(entry, _Seen)}
        seen_at = {entry.file: at for at, entry in enumerate(self._entries) if isinstance(entry, _Seen)}
        if self._loss is not Loss.ALL:
            for file, numbers in self._unsynced.items():
                if self._keep_some(self._now(paths[file], seen_at[file], undone=False), sorted(numbers)):
                    self._unsynced[file] = set()
        for number in range(len(self._entries) - 1, -1, -1):
            entry = self._entries[number]
            match entry:
                case _Write(file=file) if number in self._lost:
                    path = self._now(paths[file], seen_at[file], undone=False, until=number)
                    self._undo_lost(self._now(path, number), entry, self._lost[number])
                case _Write(file=file) | _Cut(file=file) if number in self._unsynced.get(file, ()):
                    # Find the file by its present name, because a rename of the file may already be undone.
                    path = self._now(paths[file], seen_at[file], undone=False, until=number)
                    self._undo_bytes(self._now(path, number), entry)
                case _Made(path) if number in self._undone_names:
                    self._undo_made(self._now(path, number))
                case _Renamed(old, new, replaced) if number in self._undone_names:
                    self._undo_rename(self._now(old, number), self._now(new, number), replaced)
                case _:
                    pass

    def _now(self, path: str | None, since: int, *, undone: bool = True, until: int | None = None) -> str | None:
        """Return the present path of the file that had ``path`` at entry ``since``. Later renames are applied to the
        path: all renames, or with ``undone`` only the renames that are not undone. Returns None if the file was removed
        or replaced."""
        for at in self._renames[bisect.bisect_right(self._renames, since) :]:
            if path is None or (until is not None and at >= until):
                return path
            entry = self._entries[at]
            if isinstance(entry, _Renamed) and not (undone and at in self._undone_names):
                path = None if path == entry.new else _under(path, entry.old, entry.new)
            elif isinstance(entry, _Removed) and entry.path == path:
                path = None
        return path

    def _keep_some(self, path: str | None, numbers: list[int]) -> bool:
        """Keep a part of a file's unsynced changes (for PREFIX and BLOCKS); returns False when the changes did not only
        extend the file."""
        entries = [self._entries[number] for number in numbers]
        if path is None or not entries or not os.path.isfile(path):
            return False
        if not all(isinstance(each, _Write) and each.position == each.old_size for each in entries):
            return False
        durable = cast("_Write", entries[0]).old_size
        size = os.path.getsize(path)
        if size <= durable:
            return False
        if self._loss is Loss.PREFIX:
            keep = self._rng.randrange(durable, size + 1)
            os.truncate(path, keep)
            self.bytes_lost += size - keep
        else:
            with open(path, "r+b") as file:
                for start in range(durable - durable % BLOCK_BYTES, size, BLOCK_BYTES):
                    if self._rng.random() < 0.5:
                        first, last = max(start, durable), min(start + BLOCK_BYTES, size)
                        file.seek(first)
                        file.write(bytes(last - first))
                        self.bytes_lost += last - first
        return True

    def _undo_bytes(self, path: str | None, entry: _Write | _Cut) -> None:
        if path is None or not os.path.isfile(path):
            return
        with open(path, "r+b") as file:
            self.bytes_lost += max(0, os.path.getsize(path) - entry.old_size)
            if entry.old:
                file.seek(entry.position if isinstance(entry, _Write) else entry.size)
                file.write(entry.old)
            file.truncate(entry.old_size)

    def _undo_lost(self, path: str | None, entry: _Write, pages: set[int]) -> None:
        """Restore the given pages of a write whose sync failed; bytes outside of the pages may stay."""
        if path is None or not os.path.isfile(path):
            return
        first, end = entry.position, entry.position + entry.size
        with open(path, "r+b") as file:
            size = os.path.getsize(path)
            for page in pages:
                low, high = max(first, page * BLOCK_BYTES), min(end, (page + 1) * BLOCK_BYTES, size)
                if low < high:
                    file.seek(low)
                    file.write(entry.old[low - first : high - first].ljust(high - low, b"\0"))
                    self.bytes_lost += high - low
            least = max(entry.old_size, first)
            if size == end:  # the file ends where the undone write ended, and never grew beyond
                while end > least and (end - 1) // BLOCK_BYTES in pages:
                    end = max((end - 1) // BLOCK_BYTES * BLOCK_BYTES, least)
                file.truncate(end)

    def _undo_made(self, path: str | None) -> None:
        if path is None:
            return
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _undo_rename(self, old: str | None, new: str | None, replaced: bytes | None) -> None:
        if new is None or old is None or not os.path.exists(new) or os.path.exists(old):
            return
        os.rename(new, old)
        if replaced is not None:
            Path(new).write_bytes(replaced)


def lose_power(directory: Path, *, loss: Loss = Loss.ALL, rng: random.Random | None = None) -> int:
    """Apply a power loss to a killed process: of the unsynced changes in the journal in ``directory``, keep only the
    changes that ``loss`` keeps. Returns how many bytes of files were lost. Removes the journal, unless ``loss`` is
    NONE."""
    journal = directory / _JOURNAL
    entries = list(_read_journal(journal))
    lost = 0
    if loss is not Loss.NONE:
        undoing = _Undoing(entries, rng or random.Random(0), loss)
        undoing.run()
        lost = undoing.bytes_lost
        journal.unlink(missing_ok=True)
    return lost
