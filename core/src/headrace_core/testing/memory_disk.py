"""A disk in memory, with visible and durable contents, and with the result of a power loss.

``crashing_fs`` uses this module's files and directories, which remember every unsynced change in order. ``Survivors``
copies a directory tree as a machine finds it after a power loss.

A failed flush behaves as on Linux. After a failed flush, the pages stay in the cache and are marked clean, although the
disk does not have their contents (``Inode.lost``). A later flush skips the lost pages, and succeeds. A write to a lost
page makes the whole page dirty again. When a lost page is evicted, or the machine loses power, the disk's older
contents reappear. Names and sizes of files are metadata: the file system's journal keeps changes of metadata pending
until a flush succeeds.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, field
from typing import NamedTuple

BLOCK_BYTES = 4096


class Loss(enum.Enum):
    """Which unsynced changes are lost in a power loss."""

    ALL = "all"  #: All unsynced changes are lost in a power loss.
    NONE = "none"  #: No change is lost, because only the process was killed.
    #: The first few unsynced changes of each file and directory reached the disk, the last of them perhaps in part.
    PREFIX = "prefix"
    #: Each unsynced block may have reached the disk or not, independently of all other blocks. Blocks of a grown file
    #: that did not reach the disk read as zeros. Of the changes of names, the first few reached the disk (as for
    #: PREFIX).
    BLOCKS = "blocks"


class Change(NamedTuple):
    """An unsynced change of a file: new bytes at a position, or a new size."""

    position: int
    data: bytes | None  # the written bytes; None: the change truncates the file to ``position``


@dataclass(slots=True, eq=False)
class Inode:
    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    modified_ms: int = 0
    #: Pages that a failed flush left clean in the cache, although the disk lacks their contents.
    lost: set[int] = field(default_factory=set)
    #: Number of the file's failed flushes. Linux reports each failed flush once to every descriptor that was open at
    #: the time of the failure.
    failures: int = 0

    def change(self, change: Change) -> None:
        """Change the visible contents; the change is durable after ``make_durable``. Lost pages that the change touches
        become dirty again."""
        before = len(self.live)
        apply_change(self.live, change)
        self.pending.append(change)
        if not self.lost:
            return
        position, data = change
        if data is not None:
            dirty = self.lost.intersection(_pages(position, len(data)))
        else:
            self.lost = {page for page in self.lost if page * BLOCK_BYTES < len(self.live)}
            dirty = self.lost & {position // BLOCK_BYTES} if position < before else set()
        for page in sorted(dirty):
            at = page * BLOCK_BYTES
            self.pending.append(Change(at, bytes(self.live[at : at + BLOCK_BYTES])))
        self.lost -= dirty

    def make_durable(self) -> None:
        for change in self.pending:
            apply_change(self.durable, change)
        self.pending.clear()

    def lose_pending(self, rng: random.Random | None) -> None:
        """Mark the file's unsynced pages as lost, as a failed flush does (see the module's docstring). With ``rng``,
        each page has reached the disk or not, at random and independently of other pages."""
        pages: set[int] = set()
        cuts: list[Change] = []
        for change in self.pending:
            if change.data is not None:
                pages.update(_pages(change.position, len(change.data)))
            elif change.position < len(self.durable):
                cuts.append(change)
        self.pending = cuts
        pages = {page for page in pages if page * BLOCK_BYTES < len(self.live)}
        if rng is not None:
            self.make_durable()  # the cuts reach the disk first: the journal was written before the data
            for page in sorted(pages):
                if rng.random() < 0.5:
                    at = page * BLOCK_BYTES
                    apply_change(self.durable, Change(at, bytes(self.live[at : at + BLOCK_BYTES])))
                    pages.discard(page)
        self.lost |= pages
        self.failures += 1

    def evict(self) -> None:
        """Drop the clean pages from the cache. After the drop, pages that a failed flush lost have the disk's contents
        (zeros beyond the file's end on the disk)."""
        for page in self.lost:
            at = page * BLOCK_BYTES
            size = min(BLOCK_BYTES, len(self.live) - at)
            self.live[at : at + size] = bytes(self.durable[at : at + size]).ljust(size, b"\0")
        self.lost.clear()


def _pages(position: int, size: int) -> range:
    return range(position // BLOCK_BYTES, -(-(position + size) // BLOCK_BYTES))


class NameChange(NamedTuple):
    """An unsynced change of a directory: names removed and added in one step."""

    gone: tuple[str, ...]
    come: tuple[tuple[str, Entry], ...]


@dataclass(slots=True, eq=False)
class Directory:
    live: dict[str, Entry] = field(default_factory=dict)
    durable: dict[str, Entry] = field(default_factory=dict)
    pending: list[NameChange] = field(default_factory=list)


Entry = Inode | Directory


def apply_change(data: bytearray, change: Change) -> None:
    position, new = change
    if new is None:
        if len(data) > position:
            del data[position:]
        else:
            data.extend(bytes(position - len(data)))
        return
    if len(data) < position:
        data.extend(bytes(position - len(data)))
    data[position : position + len(new)] = new


def apply_names(names: dict[str, Entry], change: NameChange) -> None:
    for name in change.gone:
        names.pop(name, None)
    names.update(change.come)


class Survivors:
    """Copies a directory tree as a power loss leaves it. A file with two names stays one file in the copy."""

    def __init__(self, rng: random.Random, loss: Loss) -> None:
        self._rng = rng
        self._loss = loss
        self._copies: dict[int, Entry] = {}

    def directory(self, old: Directory) -> Directory:
        if self._loss is Loss.NONE:
            return Directory(
                self._entries(old.live),
                self._entries(old.durable),
                [NameChange(change.gone, tuple(self._entries(dict(change.come)).items())) for change in old.pending],
            )
        names = dict(old.durable)
        if self._loss is not Loss.ALL:
            for change in old.pending[: self._rng.randint(0, len(old.pending))]:
                apply_names(names, change)
        entries = self._entries(names)
        return Directory(entries, dict(entries))

    def _entries(self, names: dict[str, Entry]) -> dict[str, Entry]:
        return {name: self._copy(entry) for name, entry in names.items()}

    def _copy(self, entry: Entry) -> Entry:
        if id(entry) not in self._copies:
            self._copies[id(entry)] = self.directory(entry) if isinstance(entry, Directory) else self._inode(entry)
        return self._copies[id(entry)]

    def _inode(self, old: Inode) -> Inode:
        if self._loss is Loss.NONE:
            return Inode(
                bytearray(old.live),
                bytearray(old.durable),
                list(old.pending),
                old.modified_ms,
                set(old.lost),
                old.failures,
            )
        if self._loss is Loss.PREFIX:
            data = self._prefix(old)
        elif self._loss is Loss.BLOCKS:
            data = self._blocks(old)
        else:
            data = bytearray(old.durable)
        return Inode(data, bytearray(data), modified_ms=old.modified_ms)

    def _prefix(self, old: Inode) -> bytearray:
        data = bytearray(old.durable)
        whole = self._rng.randint(0, len(old.pending))
        for change in old.pending[:whole]:
            apply_change(data, change)
        if whole < len(old.pending) and (torn := old.pending[whole]).data is not None:
            apply_change(data, Change(torn.position, torn.data[: self._rng.randint(0, len(torn.data))]))
        return data

    def _blocks(self, old: Inode) -> bytearray:
        full = bytearray(old.durable)
        for change in old.pending:
            apply_change(full, change)
        low, high = sorted((len(old.durable), len(full)))
        sizes = [low, high, min(high, max(low, self._rng.randint(low, high) // BLOCK_BYTES * BLOCK_BYTES))]
        size = self._rng.choice(sizes)
        data = bytearray(size)
        for at in range(0, size, BLOCK_BYTES):
            source = full if self._rng.random() < 0.5 else old.durable
            block = source[at : min(at + BLOCK_BYTES, size)]
            data[at : at + len(block)] = block
        return data
