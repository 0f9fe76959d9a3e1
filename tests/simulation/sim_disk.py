"""The disk of a simulated controller: the product's storage code on a file system that loses unsynced data in a crash.

``ObservedStorage`` is a ``MetadataStorage`` that reports what it is asked to write. The checks therefore know what a
replica claims to hold without asking the replica, and find out after a crash whether the replica still holds it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from headrace_controller.raft import Entry, HardState, ReplicaKey, SnapshotId, VoterSet
from headrace_controller.storage import MetadataStorage
from headrace_core.errors import CorruptMessageError, DiskFullError
from headrace_core.records import HEADER_BYTES, BatchHeader, iterate_headers
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.simulation.sim_checks import ShadowLog, Violation

if TYPE_CHECKING:
    from tests.simulation.sim_checks import SafetyChecks

ROOT = "/metadata"


class DiskRecord:
    """The writes to a disk, and the data that the disk must keep permanently."""

    def __init__(self) -> None:
        self.shadow = ShadowLog.behind(0)
        #: The log start offset at the last check. Entries below the log start offset may be only in a snapshot.
        self.start = 0
        self.start_term = 0
        self.hard_state: HardState | None = None
        #: The entries of writes that a crash has interrupted, or that a full disk has refused since the last flush.
        #: Such entries may be on the disk after a crash, or not.
        self.pending_entries: tuple[Entry, ...] = ()
        self.pending_cut: int | None = None
        self.pending_hard_state: HardState | None = None
        #: The simulation itself has flipped a byte or torn a block, so missing data are no fault of the product.
        self.is_damaged = False

    @property
    def last_term(self) -> int:
        entries = self.shadow.entries
        return entries[-1].term if entries else self.start_term


class ObservedStorage(MetadataStorage):
    """See the module. Call ``watch`` before the first write."""

    record: DiskRecord
    own: ReplicaKey
    checks: SafetyChecks
    tell: Callable[[str, Any], None]

    def watch(
        self, own: ReplicaKey, record: DiskRecord, checks: SafetyChecks, tell: Callable[[str, Any], None]
    ) -> None:
        self.record, self.own, self.checks, self.tell = record, own, checks, tell

    def append(self, entries: Sequence[Entry], *rest: Any) -> int:
        record = self.record
        if entries[0].base_offset != record.shadow.end:
            raise Violation(
                "log matching", f"{self.own} appends at {entries[0].base_offset}, but its log does not end there"
            )
        self.checks.appended(self.own, record.shadow, entries, record.last_term)
        record.pending_entries += tuple(entries)
        segments = self._log.segments[-1:]
        try:
            result = super().append(entries, *rest)
        except DiskFullError:
            self._check_refusal(entries)
            raise
        if self._log.segments[-1:] != segments:
            self.tell("rolls", None)
        record.pending_entries = ()
        record.shadow.append(entries)
        self.checks.durable(self.own, entries)
        self.tell("appends", entries)
        return result

    def _take_back(self, end: int) -> None:
        self.tell("refuses", end)
        super()._take_back(end)

    def _check_refusal(self, entries: Sequence[Entry]) -> None:
        """Check that nothing is left of entries that a full disk has refused. A log that was empty may keep the first
        refused entries, which then count as durable."""
        record, end = self.record, self.log_end_offset
        kept = [entry for entry in entries if entry.next_offset <= end]
        was_empty = self.log_start_offset >= record.shadow.end
        if kept and not was_empty:
            raise Violation(
                "refusal", f"{self.own} still has {kept[0].base_offset}/{kept[0].term}, which its full disk refused"
            )
        terms = [each for each in self._log.epochs.entries if each.start_offset >= max(end, 1)]
        if terms:
            raise Violation(
                "refusal", f"{self.own} still has term {terms[0].epoch}, whose entries its full disk refused"
            )
        if kept:
            record.shadow.append(kept)
            self.checks.durable(self.own, kept)

    def truncate(self, offset: int) -> None:
        record = self.record
        if offset < record.shadow.checked:
            raise Violation("state machines", f"{self.own} truncates its log at {offset}, below its committed entries")
        record.pending_cut = offset
        try:
            super().truncate(offset)
        except DiskFullError:  # cut or not
            self._cut_short()
            raise
        record.pending_cut = None
        record.shadow.truncate(offset)
        self.tell("cuts", offset)

    def install(self, snapshot: SnapshotId, *rest: Any) -> None:
        record = self.record
        if snapshot.place.offset <= record.shadow.checked:
            raise Violation(
                "state machines", f"{self.own} installs snapshot {snapshot.place}, below its committed entries"
            )
        record.pending_cut = 0
        try:
            super().install(snapshot, *rest)
        except DiskFullError:
            # the snapshot already counts, and the log is replaced when the disk has room
            if self.newest_snapshot() == snapshot:
                self._installed(snapshot)
            else:
                self._cut_short()
            raise
        self._installed(snapshot)

    def _installed(self, snapshot: SnapshotId) -> None:
        record = self.record
        record.pending_cut = None
        record.shadow = ShadowLog.behind(snapshot.place.offset)
        record.start, record.start_term = snapshot.place
        self.tell("installs", snapshot)

    def _cut_short(self) -> None:
        """The disk has no room. The process continues with the entries that its storage reports."""
        record = self.record
        record.pending_cut = None
        if self.log_end_offset < record.shadow.end:
            record.shadow.truncate(self.log_end_offset)

    def save_hard_state(self, state: HardState) -> None:
        self.record.pending_hard_state = state
        super().save_hard_state(state)
        self.record.pending_hard_state = None
        self.record.hard_state = state
        self.tell("saves", state)

    def recovered(self) -> None:
        """Check after a start that the disk holds everything that was promised, and nothing that was never written."""
        record = self.record
        stored = self.stored(VoterSet.of([self.own]))
        start, end = stored.start.place.offset, stored.end_offset
        kept = ShadowLog.behind(start)
        offset = start
        while offset < end:
            found = self.entries(offset, end, 1 << 20)
            kept.append(found)
            offset = found[-1].next_offset
        known: dict[int, list[Entry]] = {}
        for entry in (*record.shadow.entries, *record.pending_entries):
            known.setdefault(entry.base_offset, []).append(entry)
        cut = end if record.pending_cut is None else record.pending_cut
        before = record.shadow
        if not record.is_damaged:
            expected = start
            for entry in kept.entries:
                if entry.base_offset != expected:
                    raise Violation(
                        "durability",
                        f"{self.own} lacks the entry at {expected}, before {entry.base_offset}/{entry.term}",
                    )
                expected = entry.next_offset
                written = known.get(entry.base_offset, ())
                if not any(was.term == entry.term and was.data == entry.data for was in written):
                    raise Violation(
                        "durability",
                        f"{self.own} has {entry.base_offset}/{entry.term} on its disk, which was never written there",
                    )
            lost = [each for each in before.entries if start <= each.base_offset and each.next_offset > end]
            if lost and lost[0].base_offset < cut:
                raise Violation(
                    "durability",
                    f"{self.own} has lost {lost[0].base_offset}/{lost[0].term}, which it had reported as durable",
                )
            if start > before.end and record.pending_cut is None:
                raise Violation(
                    "durability", f"{self.own}'s log begins at {start}, but it ended at {before.end} before"
                )
            allowed = (record.hard_state, record.pending_hard_state)
            state = stored.hard_state
            if record.hard_state is not None and state not in allowed:
                raise Violation("durability", f"{self.own} restarts with {state}, but had saved {record.hard_state}")
        record.shadow = kept
        self.checks.durable(self.own, kept.entries[-max(len(record.pending_entries), 8) :])
        record.start, record.start_term = stored.start.place
        record.hard_state = stored.hard_state
        record.pending_entries, record.pending_cut, record.pending_hard_state = (), None, None


#: The files on a controller's disk, and how often a fault chooses each of them.
_TARGETS = {".log": 6, ".checkpoint": 3, "quorum-state": 1, "leader-epoch-checkpoint": 1, "meta.properties": 1}


def _whole_batches(data: bytes) -> list[tuple[int, BatchHeader]]:
    """The entries before the end, or before the part that a power loss has left of an entry that was being written."""
    found = []
    with contextlib.suppress(CorruptMessageError):
        for each in iterate_headers(data):
            found.append(each)  # noqa: PERF402  (what came before the torn one counts)
    return found


def flip_something(fs: CrashingFileSystem, rng: random.Random, record: DiskRecord) -> str:
    """Damage one byte on the disk: of the log, of a snapshot, or of a small file; return which file.

    The header of the log's last batch is not damaged: a damaged header looks like a batch that was being written when
    the power failed. Recovery truncates a last batch with a damaged header (docs/invariants.md), although its replica
    may have promised it.
    """
    files = {path: data for path, data in fs.files().items() if data}
    kinds = [kind for kind in _TARGETS if any(path.endswith(kind) for path in files)]
    if not kinds:
        return ""
    (kind,) = rng.choices(kinds, [_TARGETS[each] for each in kinds])
    path = rng.choice(sorted(path for path in files if path.endswith(kind)))
    size = len(files[path])
    if kind == ".log":
        batches = _whole_batches(files[path])
        if not batches:
            return ""
        last, header = batches[-1]
        position = rng.choice([*range(last), *range(last + HEADER_BYTES, last + header.size)])
    else:
        position = rng.randrange(size)
    fs.flip(path, position, 1 << rng.randrange(8))
    record.is_damaged = True
    return f"byte {position} of {path.rpartition('/')[2]}"
