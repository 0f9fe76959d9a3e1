"""Leader epochs of a log and their start offsets (KIP-101, KIP-320).

Followers and consumers use them to find where their history diverges from the leader's. Stored in
``leader-epoch-checkpoint`` in Kafka's format; a lost or torn file is rebuilt from the batches, which name their epochs.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import ServerBusyError
from ..types import NO_EPOCH
from .checkpoints import load_checkpoint, write_checkpoint
from .files import NO_SPACE, FileSystem

logger = logging.getLogger(__name__)

LEADER_EPOCH_FILE = "leader-epoch-checkpoint"


class EpochStart(NamedTuple):
    """A leader epoch and the offset of the first record written in it."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """End of an epoch: the largest known epoch not above the requested one, and one past its last offset."""

    epoch: int
    end_offset: int


UNKNOWN_EPOCH_END = EpochEnd(NO_EPOCH, -1)


class LeaderEpochs:
    """Entries ascending in epoch and offset. The tuple is replaced whole, so other threads read a consistent one."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._path = f"{directory}/{LEADER_EPOCH_FILE}"
        self.entries: tuple[EpochStart, ...] = ()
        #: Whether the entries are complete, so that each batch must have the epoch that they say. False for a file
        #: without checksum: Kafka wrote it, and after a crash it may lack an entry. Later entries get no checksum
        #: either, until all are rebuilt from the batches.
        self.is_checksummed = True
        self._stored: tuple[EpochStart, ...] | None = ()  #: The file's entries; None: unreadable.
        #: The file still has epochs that were cut off the log: it is written before the next batch is (``catch_up``).
        self._is_behind = False

    def load(self) -> bool:
        """Read the checkpoint; False (and empty) when it is missing or damaged, and must be rebuilt."""
        found = load_checkpoint(self._fs, self._path)
        self.entries = ()
        self._stored = None if self._fs.exists(self._path) else ()
        if found is None or found.rows is None:
            return False
        try:
            entries = parse_epochs(found.rows)
        except ValueError as error:
            logger.error("%s is damaged: %s; it is rebuilt from the batches", self._path, error)
            return False
        self.is_checksummed = found.has_checksum
        self.entries = self._stored = entries
        return True

    @property
    def latest_epoch(self) -> int:
        """Epoch of the last record; -1: none."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Start ``epoch`` at ``start_offset``; durable when this returns. No effect for a known epoch, unless this
        start is lower: the batches before it, in the same turn, met a full disk."""
        latest, start = self.entries[-1] if self.entries else (NO_EPOCH, start_offset)
        if epoch > latest or (epoch == latest and start_offset < start):
            self.replace(with_epoch(self.entries, EpochStart(epoch, start_offset)))

    def replace(self, entries: Iterable[EpochStart]) -> None:
        """Sets all entries, durably."""
        entries = tuple(entries)
        if entries != self._stored:
            lines = [f"{entry.epoch} {entry.start_offset}" for entry in entries]
            write_checkpoint(self._fs, self._path, lines, has_checksum=self.is_checksummed)
            self._stored = entries
        self.entries = entries
        self._is_behind = False

    def restore(self, entries: Iterable[EpochStart]) -> None:
        """``replace`` while a log is opened: ignores a full disk. The next change writes the file, and an earlier start
        finds the same entries again."""
        entries = tuple(entries)
        try:
            self.replace(entries)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            logger.warning("cannot write %s, the disk is full; trying again with the next epoch", self._path)
            self.entries = entries

    def made_anew(self) -> None:
        """Announce that the next entries come from all batches of the log."""
        if not self.is_checksummed:
            self.is_checksummed, self._stored = True, None

    def truncate_from_end(self, end_offset: int) -> None:
        """The log now ends at ``end_offset``. Without room or a descriptor for the file, the file follows before the
        next batch. A crash before that does no harm: opening the log cuts the epochs at its end, too."""
        entries = tuple(entry for entry in self.entries if entry.start_offset < end_offset)
        try:
            self.replace(entries)
        except (OSError, ServerBusyError) as error:
            if isinstance(error, OSError) and error.errno not in NO_SPACE:
                raise
            logger.warning("%s could not be written (%s): it is before the next batch", self._path, error)
            self.entries, self._is_behind = entries, True

    def catch_up(self) -> None:
        """A batch is about to be appended: the file must have lost the epochs that were cut off the log, durably."""
        if self._is_behind:
            self.replace(self.entries)

    def truncate_from_start(self, start_offset: int) -> None:
        """Cut the entries at ``start_offset``, the new log start: the epoch that holds it is kept, and starts there.
        The next change writes the file; opening the log repeats this, so retention forces no file."""
        below = [entry for entry in self.entries if entry.start_offset <= start_offset]
        kept = [entry for entry in self.entries if entry.start_offset > start_offset]
        if below:
            kept.insert(0, EpochStart(below[-1].epoch, start_offset))
        self.entries = tuple(kept)

    def epoch_of(self, offset: int) -> int:
        """The epoch of the record at ``offset``; -1 when unknown."""
        found = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[found].epoch if found >= 0 else NO_EPOCH

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """End of ``epoch``, as in Kafka's LeaderEpochFileCache."""
        entries = self.entries
        if epoch < 0 or not entries or epoch > entries[-1].epoch:
            return UNKNOWN_EPOCH_END
        if epoch == entries[-1].epoch:
            return EpochEnd(epoch, log_end_offset)
        above = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        if above == 0:
            return EpochEnd(epoch, entries[0].start_offset)
        return EpochEnd(entries[above - 1].epoch, entries[above].start_offset)

    def known_end_of(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """``end_of``, but UNKNOWN_EPOCH_END for an epoch below the first entry."""
        if self.entries and epoch < self.entries[0].epoch:
            return UNKNOWN_EPOCH_END
        return self.end_of(epoch, log_end_offset)


def parse_epochs(rows: Iterable[Sequence[str]]) -> tuple[EpochStart, ...]:
    """The entries of a checkpoint of epochs; ValueError names the first that is invalid or out of order."""
    entries: list[EpochStart] = []
    for number, row in enumerate(rows):
        try:
            epoch, start_offset = map(int, row)
        except ValueError as error:
            raise ValueError(f"entry {number} is {' '.join(row)!r}, not an epoch and its start offset") from error
        if entries and (epoch <= entries[-1].epoch or start_offset < entries[-1].start_offset):
            raise ValueError(f"entry {number}, epoch {epoch} from {start_offset}, cannot follow {entries[-1]}")
        entries.append(EpochStart(epoch, start_offset))
    return tuple(entries)


def with_epoch(entries: tuple[EpochStart, ...], new: EpochStart) -> tuple[EpochStart, ...]:
    """``entries`` with one more; removes entries that start at or after it, which never had a record."""
    return (*(entry for entry in entries if entry.start_offset < new.start_offset and entry.epoch < new.epoch), new)
