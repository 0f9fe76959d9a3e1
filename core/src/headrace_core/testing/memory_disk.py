"""A disk in memory: what everybody sees, what is durable, and what a power loss makes of the difference.

The data behind ``crashing_fs``: files and directories that remember every unsynced change in order, and ``Survivors``,
which copies a tree as a machine finds it after a power loss.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, field
from typing import NamedTuple

BLOCK_BYTES = 4096


class Loss(enum.Enum):
    """What becomes of unsynced changes in a power loss."""

    #: All of them are gone.
    ALL = "all"
    #: None is gone: the process was killed, the machine lives.
    NONE = "none"
    #: Of each file and directory, the first few changes arrived, the last of these perhaps in part.
    PREFIX = "prefix"
    #: Each block arrived or not, independently; what is missing in a longer file reads as zeros. Names as PREFIX.
    BLOCKS = "blocks"


class Change(NamedTuple):
    """An unsynced change of a file: bytes at a position, or a new size."""

    position: int
    data: bytes | None  # None: truncate to position


@dataclass(slots=True, eq=False)
class Inode:
    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    modified_ms: int = 0

    def make_durable(self) -> None:
        for change in self.pending:
            apply_change(self.durable, change)
        self.pending.clear()

    def lose_pending(self) -> None:
        """A flush failed: the cache believes that the bytes are clean, the disk never saw them (as Linux has it)."""
        self.pending.clear()


class NameChange(NamedTuple):
    """An unsynced change of a directory: names that go, and names that come, at once."""

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
    """Copies a tree as a power loss leaves it. A file with two names stays one file."""

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
            return Inode(bytearray(old.live), bytearray(old.durable), list(old.pending), old.modified_ms)
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
