"""Start offsets of the leader epochs that a consumer has read, to find where a log has diverged (KIP-320).

Pure. Kafka's consumer remembers only the last leader epoch and compares offsets. After an unclean election, a
comparison of offsets can skip records if the new log is at least as long as the old log. Headrace's consumer remembers
the start offsets of the last leader epochs that it has read, so it goes back to the first record that differs.
"""

from __future__ import annotations

import contextlib
import struct

from headrace_core.errors import HeadraceError
from headrace_core.records import iterate_headers

#: Reads the batch size and the leader epoch: the two fields of a batch header after the base offset (8 bytes).
_SIZE_AND_EPOCH = struct.Struct(">ii")
_BATCH_START = 16

#: Number of latest epochs that ReadEpochs remembers. If the log diverges before all remembered epochs, reading
#: continues at the start of the oldest remembered epoch. If the leader's end offset is lower than the start of the
#: oldest remembered epoch, reading continues at the leader's end offset.
KEPT = 8


class ReadEpochs:
    """For each leader epoch of one partition: the offset of the first record of the epoch that the consumer read.
    Leader epochs never decrease from one offset to the next."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        # (epoch, offset of the first record of the epoch that the consumer read)
        self._starts: list[tuple[int, int]] = []

    @property
    def last(self) -> int:
        """The leader epoch of the last record that was read; -1: unknown."""
        return self._starts[-1][0] if self._starts else -1

    def forget(self) -> None:
        self._starts.clear()

    def begin(self, offset: int, epoch: int) -> None:
        """Start with the position ``offset``; the record before it had leader epoch ``epoch`` (-1: unknown)."""
        self._starts.clear()
        if epoch >= 0:
            self.note(epoch, max(offset - 1, 0))

    def note(self, epoch: int, offset: int) -> None:
        """Remember that the record at ``offset``, which follows all noted records, has leader epoch ``epoch``."""
        if epoch > self.last:
            self._starts.append((epoch, offset))
            if len(self._starts) > KEPT:
                del self._starts[0]

    def before(self, offset: int) -> int:
        """The leader epoch of the record before ``offset``; -1: unknown."""
        return next((epoch for epoch, start in reversed(tuple(self._starts)) if start < offset), -1)

    def note_fetched(self, data: bytes, newest: int, offset: int) -> None:
        """Remember the leader epochs of fetched batches, which begin at ``offset``. ``newest`` is the highest epoch
        that a batch can have (-1: unknown). Leader epochs never decrease within a log, so the search for the last one
        ends at the first batch with ``newest``, usually the first batch of all."""
        starts, at, last = self._starts, 0, -1
        while at + _BATCH_START <= len(data):
            size, last = _SIZE_AND_EPOCH.unpack_from(data, at + 8)
            if last == newest:
                break
            at += 12 + size
        if last < 0 or (starts and last == starts[-1][0]):
            return
        if starts and last < starts[-1][0]:
            starts.clear()
        # Ignore damaged batches in this search: the caller's thread validates the batches and raises the error.
        with contextlib.suppress(HeadraceError):
            for _, header in iterate_headers(data):
                self.note(header.leader_epoch, header.base_offset)
        self.note(last, offset)

    def divergent(self, position: int, found_epoch: int, end_offset: int) -> int:
        """The first offset at which the log may differ from the records that were read up to ``position``. The
        arguments are OffsetForLeaderEpoch's answer: ``found_epoch`` is the log's largest epoch that is not above
        ``last``, and ``end_offset`` is the end of that epoch."""
        foreign = next((offset for epoch, offset in self._starts if epoch > found_epoch), position)
        return min(position, end_offset, foreign)

    def go_back(self, offset: int) -> None:
        """Drop the leader epochs that begin at ``offset`` or later, because the log does not have their records.
        Records before ``offset`` may differ, too. The next fetch request names the last leader epoch that remains, so
        the search continues until the last common record is found."""
        self._starts = [each for each in self._starts if each[1] < offset]
