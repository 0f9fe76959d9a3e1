"""Where leader epochs began in what a consumer has read: it finds out by them where a log went another way (KIP-320).

Pure. Kafka's consumer remembers the last epoch alone, and compares offsets: after an unclean election it goes on behind
records that it never saw, when the other log is as long as its own was. Whoever knows where its last epochs began goes
back to the first record that the log has not.
"""

from __future__ import annotations

from headrace_core.records import iterate_headers

#: So many epochs are remembered, the latest ones. A log that goes another way before all of these is read again from
#: where the first of them began.
KEPT = 8


class ReadEpochs:
    """Of one partition. Offsets are those of the first record read of each epoch; epochs rise."""

    __slots__ = ("_starts",)

    def __init__(self) -> None:
        self._starts: list[tuple[int, int]] = []  # (epoch, first offset that was read of it)

    @property
    def last(self) -> int:
        """The epoch of the last record that was read; -1: not known."""
        return self._starts[-1][0] if self._starts else -1

    def forget(self) -> None:
        self._starts.clear()

    def begin(self, offset: int, epoch: int) -> None:
        """Reading begins at ``offset``; whoever read up to there found a record of ``epoch`` last (-1: not known)."""
        self._starts.clear()
        if epoch >= 0:
            self.note(epoch, max(offset - 1, 0))

    def note(self, epoch: int, offset: int) -> None:
        """The record at ``offset``, which comes after all that was noted, is of ``epoch``."""
        if epoch > self.last:
            self._starts.append((epoch, offset))
            if len(self._starts) > KEPT:
                del self._starts[0]

    def before(self, offset: int) -> int:
        """The epoch of the record before ``offset``, up to which was read; -1: not known."""
        return next((epoch for epoch, start in reversed(tuple(self._starts)) if start < offset), -1)

    def note_batches(self, data: bytes) -> None:
        """Whole batches were read."""
        for _, header in iterate_headers(data):
            self.note(header.leader_epoch, header.base_offset)

    def divergent(self, position: int, found_epoch: int, end_offset: int) -> int:
        """From where on the log is not what was read up to ``position``, at the latest, if its largest epoch that is
        not above ``last`` is ``found_epoch`` and ends at ``end_offset`` (OffsetForLeaderEpoch's answer)."""
        foreign = next((offset for epoch, offset in self._starts if epoch > found_epoch), position)
        return min(position, end_offset, foreign)

    def go_back(self, offset: int) -> None:
        """What was read from ``offset`` on is not in the log. What was read before may not be either: the next fetch
        names its last epoch, and so on, back to the last record that both have."""
        self._starts = [each for each in self._starts if each[1] < offset]
