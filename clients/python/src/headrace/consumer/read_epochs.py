"""The start offsets of leader epochs in what a consumer has read, to find where a log diverged (KIP-320).

Pure. Kafka's consumer remembers only the last epoch and compares offsets. After an unclean election it can skip records
when the new log is at least as long as the old one. With the start offsets of its last epochs, this consumer goes back
to the first record that differs.
"""

from __future__ import annotations

from headrace_core.records import iterate_headers

#: The latest epochs are remembered, this many. A log that diverges before them is read again from the oldest of them.
KEPT = 8


class ReadEpochs:
    """The epochs of one partition. Each offset is the first one read of its epoch; epochs rise."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        self._starts: list[tuple[int, int]] = []  # (epoch, first offset read of it)

    @property
    def last(self) -> int:
        """The epoch of the last record read; -1: unknown."""
        return self._starts[-1][0] if self._starts else -1

    def forget(self) -> None:
        self._starts.clear()

    def begin(self, offset: int, epoch: int) -> None:
        """Reading begins at ``offset``; the record before it had ``epoch`` (-1: unknown)."""
        self._starts.clear()
        if epoch >= 0:
            self.note(epoch, max(offset - 1, 0))

    def note(self, epoch: int, offset: int) -> None:
        """The record at ``offset``, after all noted ones, has ``epoch``."""
        if epoch > self.last:
            self._starts.append((epoch, offset))
            if len(self._starts) > KEPT:
                del self._starts[0]

    def before(self, offset: int) -> int:
        """The epoch of the record before ``offset``; -1: unknown."""
        return next((epoch for epoch, start in reversed(tuple(self._starts)) if start < offset), -1)

    def note_batches(self, data: bytes) -> None:
        for _, header in iterate_headers(data):
            self.note(header.leader_epoch, header.base_offset)

    def divergent(self, position: int, found_epoch: int, end_offset: int) -> int:
        """The first offset that may differ from what was read up to ``position``, given OffsetForLeaderEpoch's answer:
        the log's largest epoch not above ``last`` is ``found_epoch``, and it ends at ``end_offset``."""
        foreign = next((offset for epoch, offset in self._starts if epoch > found_epoch), position)
        return min(position, end_offset, foreign)

    def go_back(self, offset: int) -> None:
        """Drop the epochs from ``offset`` on, which the log lacks. Earlier records may differ too: the next fetch names
        their last epoch, and so on, back to the last common record."""
        self._starts = [each for each in self._starts if each[1] < offset]
