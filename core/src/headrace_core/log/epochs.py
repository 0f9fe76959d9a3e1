"""Leader epochs of a log and their start offsets (KIP-101, KIP-320).

Followers and consumers use the epochs to find the offset where their history diverges from the leader's history. The
file ``leader-epoch-checkpoint`` stores the epochs in Kafka's format. A lost or torn file is rebuilt from the batches,
because each batch names its epoch.
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
    """End of a leader epoch: the largest known epoch that is not above the requested epoch, and the offset after its
    last record."""

    epoch: int
    end_offset: int


UNKNOWN_EPOCH_END = EpochEnd(NO_EPOCH, -1)


class LeaderEpochs:
    """A log's leader epochs, in ascending order of epoch and start offset. The tuple ``entries`` is replaced as a
    whole, so other threads always read consistent entries."""

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self._path = f"{directory}/{LEADER_EPOCH_FILE}"
        self.entries: tuple[EpochStart, ...] = ()
        self.latest_epoch = NO_EPOCH  #: Leader epoch of the last record; -1 without entries.
        #: The entries that every batch must match; None: the epochs of the batches are unknown, because the file is
        #: Kafka's, or the log was truncated at its start.
        self.known: tuple[EpochStart, ...] | None = None
        #: Whether the epoch entries are complete, so that every batch must have the epoch of its offset. An epoch file
        #: without a checksum comes from Kafka, and may lack an entry after a crash. An epoch file without a checksum
        #: gets one only after all its entries are rebuilt from the batches.
        self.is_checksummed = True
        #: The epoch entries in the file; None if the file is unreadable.
        self._stored: tuple[EpochStart, ...] | None = ()
        #: Whether the file still has epochs that a truncation removed from the log. ``catch_up`` writes the epoch file
        #: before the log writes its next batch.
        self.is_behind = False

    def load(self) -> bool:
        """Read the checkpoint. When the file is missing or damaged, return False without entries: the checkpoint must
        be rebuilt."""
        found = load_checkpoint(self._fs, self._path)
        self._set(())
        self._stored = None if self._fs.exists(self._path) else ()
        if found is None or found.rows is None:
            return False
        try:
            entries = parse_epochs(found.rows)
        except ValueError as error:
            logger.error("epoch checkpoint %s is damaged: %s; it is rebuilt from the log's batches", self._path, error)
            return False
        self.is_checksummed = found.has_checksum
        self._stored = entries
        self._set(entries)
        return True

    def _set(self, entries: tuple[EpochStart, ...]) -> None:
        self.entries = entries
        self.latest_epoch = entries[-1].epoch if entries else NO_EPOCH
        self.known = (entries or None) if self.is_checksummed else None

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that ``epoch`` starts at ``start_offset``; the entry is durable when the method returns. For a known
        epoch, ``assign`` has an effect only if ``start_offset`` is lower than the recorded start. A lower start is
        possible after a full disk refused earlier batches of the epoch."""
        latest, start = self.entries[-1] if self.entries else (NO_EPOCH, start_offset)
        if epoch > latest or (epoch == latest and start_offset < start):
            self.replace(with_epoch(self.entries, EpochStart(epoch, start_offset)))

    def replace(self, entries: Iterable[EpochStart]) -> None:
        """Set all entries, durably."""
        entries = tuple(entries)
        if entries != self._stored:
            lines = [f"{entry.epoch} {entry.start_offset}" for entry in entries]
            write_checkpoint(self._fs, self._path, lines, has_checksum=self.is_checksummed)
            self._stored = entries
        self._set(entries)
        self.is_behind = False

    def restore(self, entries: Iterable[EpochStart]) -> None:
        """Set all entries like ``replace``, but ignore a full disk; used while a log is opened. The next change of the
        epochs writes the epoch file. If the log is opened again before the next change, the opening finds the same
        entries again."""
        entries = tuple(entries)
        try:
            self.replace(entries)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            logger.warning(
                "cannot write epoch checkpoint %s, the disk is full; trying again when the next leader epoch begins",
                self._path,
            )
            self._set(entries)

    def made_anew(self) -> None:
        """Declare that the next entries are rebuilt from all batches of the log, so the file may get a checksum."""
        if not self.is_checksummed:
            self.is_checksummed, self._stored = True, None
            self._set(self.entries)

    def truncate_from_end(self, end_offset: int, last_epoch: int = NO_EPOCH) -> None:
        """Remove epochs that start at or after ``end_offset``, the log's new end. ``last_epoch``: the leader epoch of
        the record before ``end_offset``, if that is known. If the truncation leaves the log empty, the entry that
        ``truncate_from_start`` kept stays, or is removed if its epoch is above ``last_epoch``.

        If the disk is full or no descriptor is free, the epoch file is written later, before the next batch is
        appended. A crash before the file is written does no harm, because opening the log also removes the epochs above
        the log's end."""
        entries = tuple(entry for entry in self.entries if entry.start_offset < end_offset)
        if not entries and self.entries and 0 < self.entries[0].start_offset == end_offset:
            entries = tuple(entry for entry in self.entries[:1] if entry.epoch <= last_epoch)
        try:
            self.replace(entries)
        except (OSError, ServerBusyError) as error:
            if isinstance(error, OSError) and error.errno not in NO_SPACE:
                raise
            logger.warning("cannot write %s (%s); trying again before the next batch", self._path, error)
            self._set(entries)
            self.is_behind = True

    def catch_up(self) -> None:
        """Write the checkpoint file, if it ``is_behind``. The log writes a changed epoch file before each append,
        because the file must not keep epochs that a truncation removed from the log."""
        self.replace(self.entries)

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove the entries below ``start_offset``, the new log start. The epoch of the last record below
        ``start_offset`` is kept, and starts at ``start_offset`` from then on. From the kept epoch, a follower whose log
        ends at ``start_offset`` learns whether its records diverge from the leader's. The next change of the epochs
        writes the epoch file. Opening the log removes the entries again, so retention need not force the epoch file to
        the disk."""
        below = [entry for entry in self.entries if entry.start_offset < start_offset]
        kept = [entry for entry in self.entries if entry.start_offset >= start_offset]
        if below:
            kept.insert(0, EpochStart(below[-1].epoch, start_offset))
        self._set(tuple(kept))

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of the record at ``offset``; -1 when unknown."""
        found = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset) - 1
        return self.entries[found].epoch if found >= 0 else NO_EPOCH

    def end_of(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Return the end of ``epoch`` by the rules of Kafka's LeaderEpochFileCache."""
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
        """Return ``end_of(epoch)``, but UNKNOWN_EPOCH_END for an epoch below the first entry."""
        if self.entries and epoch < self.entries[0].epoch:
            return UNKNOWN_EPOCH_END
        return self.end_of(epoch, log_end_offset)


def parse_epochs(rows: Iterable[Sequence[str]]) -> tuple[EpochStart, ...]:
    """Parse the entries of an epoch checkpoint; ValueError names the first entry that is invalid or out of order."""
    entries: list[EpochStart] = []
    for number, row in enumerate(rows):
        try:
            epoch, start_offset = map(int, row)
        except ValueError as error:
            raise ValueError(f"entry {number} is {' '.join(row)!r}: must be an epoch and its start offset") from error
        if entries and (epoch <= entries[-1].epoch or start_offset < entries[-1].start_offset):
            raise ValueError(
                f"entry {number}, epoch {epoch} from offset {start_offset}, cannot follow entry {entries[-1]}"
            )
        entries.append(EpochStart(epoch, start_offset))
    return tuple(entries)


def with_epoch(entries: tuple[EpochStart, ...], new: EpochStart) -> tuple[EpochStart, ...]:
    """Return ``entries`` with the entry ``new``. Entries that start at or after the ``new`` entry are removed, because
    they never had a record. The first entry is kept if it starts at the same offset as ``new``: this offset is the log
    start, and the first entry is the epoch of the deleted records (``truncate_from_start``)."""
    kept = [entry for entry in entries if entry.start_offset < new.start_offset and entry.epoch < new.epoch]
    if not kept and entries and entries[0].epoch < new.epoch and 0 < entries[0].start_offset == new.start_offset:
        kept = [entries[0]]
    return (*kept, new)
