"""Record the transfers between the accounts of a bank, each in one transaction, and find anomalies. No I/O.

A *transfer* moves money between two or three partitions. Each of its records (*entries*) names the transfer, the number
of entries, the partition and the amount; the amounts of a transfer sum to 0. A reader therefore knows from a single
entry which other entries must be visible. Partitions get their markers at different moments, so an incomplete transfer
is an anomaly only if it stays incomplete for longer than a bound.

    aborted     an entry of an aborted transfer was read
    lost        an entry of a committed transfer is missing in the last read
    torn        some entries of a transfer are missing in the last read, or in a pass that began later than the bound
                after another entry of the transfer became visible
    late        such a pass lacks all entries of a committed transfer
    twice       an entry is at two offsets
    altered     an offset has different entries in two passes, or the entries of a transfer do not sum to 0
    misplaced   an entry is in another partition than the one it names
    reordered   in one partition, a producer's transfers are not in the order in which it began them
    zombie      a producer committed a transfer after its successor had got its identity
    unknown     an entry was read that no producer sent
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Transfer(NamedTuple):
    """``life`` is the number of the process. The processes of one transactional id run one after the other."""

    transactional_id: str
    life: int
    number: int


class Entry(NamedTuple):
    transfer: Transfer
    index: int
    count: int
    partition: int
    amount: int
    #: Whether the producer intends to abort this transfer.
    is_doomed: bool

    def encode(self, size: int) -> bytes:
        """Encode the entry as the value of a record, padded to ``size`` bytes."""
        fields = (*self.transfer, self.index, self.count, self.partition, self.amount, int(self.is_doomed))
        return (":".join(map(str, fields)) + "|").encode().ljust(size, b".")


def decode(value: bytes | None) -> Entry:
    """Decode an entry (the inverse of ``Entry.encode``). Raises ValueError if ``value`` is no entry."""
    name, *numbers = (value or b"").partition(b"|")[0].decode().split(":")
    life, number, index, count, partition, amount, is_doomed = map(int, numbers)
    return Entry(Transfer(name, life, number), index, count, partition, amount, bool(is_doomed))


class Read(NamedTuple):
    partition: int
    offset: int
    entry: Entry


@dataclass(slots=True)
class _Known:
    """The observations of a transfer. Times are from ``time.monotonic``."""

    entries: dict[int, Entry] = field(default_factory=dict)
    began_s: float | None = None
    commit_asked_s: float | None = None
    #: True: the commit was acknowledged; False: the transfer was certainly aborted; None: unknown.
    is_committed: bool | None = None
    committed_s: float | None = None
    #: When a pass over the log first read an entry of the transfer. Soon after the first read of an entry, every pass
    #: must contain all entries of the transfer.
    visible_s: float | None = None

    @property
    def decided_s(self) -> float | None:
        """The earliest known time at which the transfer was certainly committed."""
        times = [each for each in (self.committed_s, self.visible_s) if each is not None]
        return min(times, default=None)


class BankHistory:
    """Collects the reports of producers and readers. ``bound_s``: how long an entry may stay invisible after the commit
    of its transfer. Not thread-safe."""

    def __init__(self, bound_s: float) -> None:
        self.bound_s = bound_s
        self.found: list[str] = []
        #: The longest time between a transfer's commit and the first read of one of its entries, and the partition.
        self.longest_wait: tuple[float, int] = (0.0, -1)
        self.committed = self.aborted = self.read = 0
        self._transfers: dict[Transfer, _Known] = {}
        self._at: dict[tuple[int, int], Entry] = {}
        self._lives: dict[tuple[str, int], float] = {}
        self._waits: set[tuple[Transfer, int]] = set()

    # --- producers -------------------------------------------------------------------------------------------------

    def ready(self, transactional_id: str, life: int, at_s: float) -> None:
        """Called when a process got its identity: it has fenced its predecessors."""
        self._lives[transactional_id, life] = at_s

    def begins(self, transfer: Transfer, entries: Sequence[Entry], at_s: float) -> None:
        known = self._of(transfer)
        known.began_s = at_s
        known.entries = {each.index: each for each in entries}

    def commits(self, transfer: Transfer, at_s: float) -> None:
        """Called before the producer requests the commit."""
        self._of(transfer).commit_asked_s = at_s

    def ended(self, transfer: Transfer, at_s: float, *, is_committed: bool) -> None:
        known = self._of(transfer)
        known.is_committed = is_committed
        if is_committed:
            known.committed_s = at_s
            self.committed += 1
        else:
            self.aborted += 1

    # --- readers ---------------------------------------------------------------------------------------------------

    def reads(self, reads: Iterable[Read], at_s: float) -> None:
        """Called when the reader that follows the log has read records."""
        for read in reads:
            self._reads(read, at_s)
            key = read.entry.transfer, read.entry.index
            if key in self._waits:
                continue
            self._waits.add(key)
            decided_s = self._of(read.entry.transfer).decided_s
            if decided_s is not None and at_s - decided_s > self.longest_wait[0]:
                self.longest_wait = at_s - decided_s, read.partition

    def passes(self, reads: Sequence[Read], began_s: float, at_s: float, *, is_last: bool = False) -> int:
        """Called when a reader has read the whole log, up to the last stable offsets at ``began_s``. Return the number
        of incomplete transfers."""
        found: dict[Transfer, dict[int, Entry]] = {}
        last: dict[tuple[str, int, int], int] = {}
        for read in reads:
            transfer, entry = read.entry.transfer, read.entry
            self._reads(read, at_s)
            entries = found.setdefault(transfer, {})
            if entry.index in entries:
                self._finds("twice", entry, f"at offset {read.offset} of partition {read.partition}")
            entries[entry.index] = entry
            place = transfer.transactional_id, transfer.life, read.partition
            if last.get(place, -1) > transfer.number:
                self._finds("reordered", entry, f"after number {last[place]}")
            last[place] = transfer.number
        incomplete = 0
        for transfer, known in self._transfers.items():
            entries = found.get(transfer, {})
            count = next(iter(entries.values())).count if entries else len(known.entries)
            if len(entries) == count:
                if sum(each.amount for each in entries.values()):
                    self._finds("altered", transfer, f"its entries do not sum to 0: {sorted(entries.values())}")
                continue
            decided_s = known.decided_s
            if decided_s is None:  # no response confirms the commit
                continue
            incomplete += bool(entries)
            missing = sorted(set(range(count)) - set(entries))
            if is_last:
                self._finds("torn" if entries else "lost", transfer, f"entries {missing} of {count} are missing")
            elif began_s > decided_s + self.bound_s:
                self._finds(
                    "torn" if entries else "late",
                    transfer,
                    f"a pass lacks entries {missing} of {count}, {began_s - decided_s:.1f} s after the commit",
                )
        return incomplete

    def balances(self) -> dict[int, int]:
        """The balance of each partition: the sum of all entries that were read."""
        found: dict[int, int] = {}
        for (partition, _), entry in self._at.items():
            found[partition] = found.get(partition, 0) + entry.amount
        return found

    def ends(self) -> list[str]:
        """Return all anomalies. Call the method after all producers and readers have ended and the last pass was
        added."""
        for transfer, known in self._transfers.items():
            if known.is_committed is False and known.visible_s is not None:
                self._finds("aborted", transfer, "it was read")
            if known.visible_s is not None and known.began_s is None:
                self._finds("unknown", transfer, "it was read, and no producer began it")
            successors = [
                at_s
                for (name, life), at_s in self._lives.items()
                if name == transfer.transactional_id and life > transfer.life
            ]
            asked_s = known.commit_asked_s
            if known.is_committed and asked_s is not None and successors and asked_s > min(successors):
                late_s = asked_s - min(successors)
                self._finds("zombie", transfer, f"asked for the commit {late_s:.3f} s after its successor was there")
        if total := sum(self.balances().values()):
            self.found.append(f"altered: the balances sum to {total}")
        return self.found

    # ---------------------------------------------------------------------------------------------------------------

    def _of(self, transfer: Transfer) -> _Known:
        return self._transfers.setdefault(transfer, _Known())

    def _reads(self, read: Read, at_s: float) -> None:
        entry = read.entry
        self.read += 1
        known = self._of(entry.transfer)
        if known.visible_s is None:
            known.visible_s = at_s
        if entry.is_doomed:
            self._finds("aborted", entry, f"was read at offset {read.offset} of partition {read.partition}")
        if entry.partition != read.partition:
            self._finds("misplaced", entry, f"is in partition {read.partition}")
        if (sent := known.entries.get(entry.index)) is not None and sent != entry:
            self._finds("altered", entry, f"was sent as {sent}")
        before = self._at.setdefault((read.partition, read.offset), entry)
        if before != entry:
            self._finds("altered", entry, f"is at offset {read.offset}, as was {before}")

    def _finds(self, kind: str, what: Entry | Transfer, how: str) -> None:
        transfer = what.transfer if isinstance(what, Entry) else what
        name = f"{transfer.transactional_id}/{transfer.life} #{transfer.number}"
        if isinstance(what, Entry):
            name += f".{what.index}"
        self.found.append(f"{kind}: {name} {how}")
