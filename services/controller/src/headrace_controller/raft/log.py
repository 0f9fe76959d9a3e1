"""A voter's log: the entries on its disk, and the entries that are not written yet.

    start            durable      handed out         end
      |  on the disk    |   being written   |  not yet   |

Entries beyond ``durable`` are kept in memory; older entries are read through a ``LogView`` when a follower needs them.
Only the starts of terms and the voter sets of the whole log are kept in memory. The starts of terms and the voter sets
are enough to compare two logs (5.3), and to know the voters. The latest voter set in the log is in effect, committed or
not (thesis, 4.1).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from .types import Entry, Place, SnapshotId, Stored, VoterSet


class LogView(Protocol):
    """Read access to the log and the snapshots on the disk."""

    def entries(self, offset: int, end: int, max_bytes: int) -> Sequence[Entry]:
        """Durable entries below ``end``, from the entry that contains ``offset``. Returns at least one entry, and at
        most ``max_bytes`` unless the first entry alone is larger."""

    def snapshot_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """Bytes of a snapshot on the disk, and whether the snapshot ends with these bytes; None if the snapshot was
        removed."""


class RaftLog:
    """See the module."""

    def __init__(self, view: LogView, stored: Stored) -> None:
        self._view = view
        self._start = stored.start
        self._terms: list[tuple[int, int]] = list(stored.terms)
        self._voters: list[tuple[int, VoterSet]] = list(stored.voters)
        #: Entries of the Raft log that are not durable yet.
        self._tail: list[Entry] = []
        #: Number of entries in ``_tail`` that are being written.
        self._handed = 0
        self._durable = stored.end_offset
        self._truncate_to: int | None = None

    @property
    def start(self) -> Place:
        """Offset and term (the place) before the log's first entry; a snapshot has all entries before this place."""
        return self._start.place

    @property
    def snapshot(self) -> SnapshotId:
        """The snapshot that ends at the log's start."""
        return self._start

    @property
    def end_offset(self) -> int:
        return self._tail[-1].next_offset if self._tail else self._durable

    @property
    def end(self) -> Place:
        return Place(self.end_offset, self.last_term)

    @property
    def last_term(self) -> int:
        return self._terms[-1][0] if self._terms else self._start.place.term

    @property
    def durable_offset(self) -> int:
        """The durable end of the log: entries below this offset are on the disk."""
        return self._durable

    @property
    def voters(self) -> VoterSet:
        """The latest voter set in the log, committed or not."""
        return self._voters[-1][1] if self._voters else self._start.voters

    @property
    def voters_offset(self) -> int:
        """End of the entry with the latest voter set; the log's start if no entry of the log has that voter set."""
        return self._voters[-1][0] if self._voters else self._start.place.offset

    def voters_at(self, offset: int) -> VoterSet:
        """The voter set that was in effect when the log ended at ``offset``."""
        found = bisect_right(self._voters, offset, key=lambda item: item[0])
        return self._voters[found - 1][1] if found else self._start.voters

    def voters_since(self, offset: int) -> list[VoterSet]:
        """The voter set that was in effect when the log ended at ``offset``, followed by all later voter sets."""
        return [self.voters_at(offset), *(voters for at, voters in self._voters if at > offset)]

    def term_below(self, offset: int) -> int | None:
        """Term of the entry that contains ``offset`` - 1; None if the log does not have that entry."""
        if offset == self._start.place.offset:
            return self._start.place.term
        if not self._start.place.offset < offset <= self.end_offset:
            return None
        return self._term_at(offset - 1)[0]

    def place_at(self, offset: int) -> Place:
        """Return ``offset`` with the term of the entry that ends at this offset."""
        term = self.term_below(offset)
        assert term is not None, f"nothing is known of offset {offset} of a log from {self.start} to {self.end}"
        return Place(offset, term)

    def has(self, place: Place) -> bool:
        """Whether this log has an entry of term ``place.term`` that ends at ``place.offset``. If two logs have the same
        entry ending at ``place``, the logs are equal up to ``place``."""
        return self.term_below(place.offset) == place.term

    def is_up_to_date(self, end: Place) -> bool:
        """Whether a candidate whose log ends at ``end`` may become leader, because the candidate's log is at least as
        up to date as this log (5.4.1)."""
        return (end.term, end.offset) >= (self.last_term, self.end_offset)

    def last_place_up_to(self, place: Place) -> Place:
        """The last place, as offset and term, at or before ``place.offset`` where an entry ends whose term is at most
        ``place.term``. Two logs that differ at ``place`` may still agree at the offset that this method returns. The
        search for the last offset at which two logs agree skips a whole term at a time (the end of 5.3)."""
        offset = min(place.offset, self.end_offset)
        while offset > self._start.place.offset:
            term = self.term_below(offset)
            assert term is not None
            if term <= place.term:
                return Place(offset, term)
            offset = self._term_at(offset - 1)[1]
        return self._start.place

    def _term_at(self, offset: int) -> tuple[int, int]:
        """(term, its start) of the entry that holds ``offset``. The first term in the log may have begun before the
        log's start."""
        found = bisect_right(self._terms, offset, key=lambda item: item[1])
        return self._terms[found - 1] if found else (self._start.place.term, self._start.place.offset)

    def entries(self, offset: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries, beginning with the entry that contains ``offset``: about ``max_bytes``, and at least one entry if
        the log has any."""
        if offset >= self.end_offset:
            return ()
        found: list[Entry] = []
        size = 0
        if offset < self._durable:
            found += self._view.entries(offset, self._durable, max_bytes)
            size = sum(entry.size for entry in found)
            assert found, f"the storage has nothing at {offset}, below its end {self._durable}"
            offset = found[-1].next_offset
            if offset < self._durable:
                return tuple(found)
        for entry in self._tail:
            if entry.next_offset <= offset:
                continue
            if found and size + entry.size > max_bytes:
                break
            found.append(entry)
            size += entry.size
        return tuple(found)

    def snapshot_chunk(self, snapshot: SnapshotId, position: int, max_bytes: int) -> tuple[bytes, bool] | None:
        """See ``LogView.snapshot_chunk``."""
        return self._view.snapshot_chunk(snapshot, position, max_bytes)

    def append(self, entry: Entry) -> None:
        assert entry.base_offset == self.end_offset, f"an entry at {entry.base_offset}, the log ends at {self.end}"
        assert entry.term >= self.last_term, f"an entry of term {entry.term} behind one of {self.last_term}"
        self._tail.append(entry)
        if entry.term > self.last_term:
            self._terms.append((entry.term, entry.base_offset))
        if entry.voters is not None:
            self._voters.append((entry.next_offset, entry.voters))

    def adopt(self, entries: Sequence[Entry], committed: int) -> None:
        """Add a leader's entries, the first of which follows an entry of this log. The log keeps entries that it
        already has; the leader's entries replace entries that differ (5.3). Committed entries are never removed."""
        for number, entry in enumerate(entries):
            if entry.base_offset < self._start.place.offset or self.term_below(entry.next_offset) == entry.term:
                continue
            if entry.base_offset < self.end_offset:
                assert entry.base_offset >= committed, f"{entry.base_offset} is to be cut, below {committed}: committed"
                self._truncate(entry.base_offset)
            for missing in entries[number:]:
                self.append(missing)
            return

    def _truncate(self, offset: int) -> None:
        kept = [entry for entry in self._tail if entry.next_offset <= offset]
        assert not kept or kept[-1].next_offset == offset, f"{offset} lies inside an entry"
        # The entries beyond ``offset`` are on the disk, or are being written, so the disk must truncate them.
        if self._durable > offset or len(kept) < self._handed:
            self._truncate_to = offset if self._truncate_to is None else min(self._truncate_to, offset)
        self._handed = min(self._handed, len(kept))
        self._durable = min(self._durable, offset)
        self._tail = kept
        self._terms = [item for item in self._terms if item[1] < offset]
        self._voters = [item for item in self._voters if item[0] <= offset]

    def restart_behind(self, snapshot: SnapshotId) -> None:
        """Empty the log, which then begins after a received snapshot."""
        self._start = snapshot
        self._terms, self._voters, self._tail = [], [], []
        self._handed = 0
        self._durable = snapshot.place.offset
        self._truncate_to = None

    def compacted(self, snapshot: SnapshotId) -> None:
        """Start the log after a snapshot of this node's own state machine."""
        place = snapshot.place
        assert self.has(place), f"{snapshot} does not belong to the log that ends at {self.end}"
        assert place.offset <= self._durable, f"{snapshot} is ahead of the durable end, {self._durable}"
        goes_on = self._term_at(place.offset) if place.offset < self.end_offset else None
        self._terms = [item for item in self._terms if item[1] > place.offset]
        if goes_on is not None and goes_on[0] > place.term:
            self._terms.insert(0, (goes_on[0], place.offset))
        self._voters = [item for item in self._voters if item[0] > place.offset]
        self._start = snapshot

    def take_unwritten(self) -> tuple[int | None, tuple[Entry, ...]]:
        """(offset to truncate to, entries to append after that) since the last call."""
        truncate_to, self._truncate_to = self._truncate_to, None
        entries = tuple(self._tail[self._handed :])
        self._handed = len(self._tail)
        return truncate_to, entries

    def written(self) -> None:
        """Mark the entries that were handed out as durable, except entries that were truncated after they were handed
        out."""
        if self._handed:
            self._durable = self._tail[self._handed - 1].next_offset
            del self._tail[: self._handed]
            self._handed = 0
