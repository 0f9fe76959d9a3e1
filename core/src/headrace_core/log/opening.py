"""Open a log: find its segments, check the segments after an unclean stop, and find the log's start and end.

Interrupted compactions are finished first. After that, the scan checks all batches before any file is truncated or
removed, so a CorruptLogError of the scan leaves the files unchanged.

**Valid bytes in the page cache do not prove that the disk has the same bytes.** After a failed fdatasync, Linux marks
the pages clean although the disk does not have their contents. After a failed flush, the next process reads valid
batches from the page cache, and its fdatasync writes nothing and succeeds. The disk may lack valid batches, so an
unclean start rewrites every accepted batch beyond the recovery point in place and forces it to disk. An accepted batch
is treated as flushed only after it was rewritten and forced to the disk. The scan rewrites exactly the bytes that it
checked. A second read could return the disk's older bytes, because the page cache may drop a page at any time.
(Dropping the pages first would lose bytes that only the page cache has, and POSIX_FADV_DONTNEED is only advice.) A
crash in the middle of the rewrite changes nothing, because the bytes are the same. A clean start rewrites nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import CorruptLogError
from ..types import NO_EPOCH
from .config import LogConfig
from .epochs import EpochStart, LeaderEpochs, with_epoch
from .files import NO_SPACE, FileSystem
from .index import BatchMeta, IndexPlan
from .producer_files import snapshots_in
from .progress import OpeningMeter
from .recovery import Scan, Verdict, is_cut_short, judge, scan
from .segment import (
    AHEAD_FROM_BYTES,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    LogSegment,
    segment_name,
    show_compaction,
)
from .swap import SWAP, finish_swaps
from .txn_index import TXN_INDEX_SUFFIX

_SEGMENT_FILE = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex)\Z")


@dataclass(frozen=True, slots=True)
class Opened:
    segments: list[LogSegment]
    epochs: LeaderEpochs
    log_start_offset: int
    log_end_offset: int
    #: Messages for the process's log about what the recovery of this partition's log did; empty after a clean stop.
    notes: list[str]
    #: Segments whose indexes were rebuilt, each with a flag: whether the segment has a control batch.
    scanned: dict[LogSegment, bool]


class _Opening:
    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        config: LogConfig,
        now_ms: int,
        recovery_point: int,
        meter: OpeningMeter | None,
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.config = config
        self.now_ms = now_ms
        self.recovery_point = recovery_point
        self.meter = meter
        self.notes: list[str] = []
        self.leftovers: list[str] = []
        #: The index entries of the segments that were scanned from their beginning.
        self.plans: dict[LogSegment, IndexPlan] = {}

    def list_after_swaps(self) -> list[str]:
        """Finish interrupted compactions, then list the names in the directory."""
        names = self.fs.listdir(self.directory)
        if not any(name.endswith(SWAP) for name in names):
            return names
        self.notes += finish_swaps(self.fs, self.directory)
        return self.fs.listdir(self.directory)

    def attach_all(self, names: Sequence[str], log_start_offset: int) -> list[LogSegment]:
        bases = []
        present = set(names)
        for name in names:
            match = _SEGMENT_FILE.match(name)
            if match is not None and match[2] == LOG_SUFFIX:
                bases.append(int(match[1]))
            elif (match is not None and match[1] + LOG_SUFFIX not in present) or name.endswith(
                (".tmp", ".deleted", ".cleaned")
            ):
                self.leftovers.append(name)
        bases.sort()
        while len(bases) > 1 and bases[1] <= log_start_offset:  # a crash interrupted the deletion of these segments
            gone = segment_name(bases.pop(0)) + "."
            self.leftovers += [name for name in names if name.startswith(gone) and name not in self.leftovers]
        return [
            LogSegment.attach(
                self.fs,
                self.directory,
                base,
                index_bytes_max=self.config.segment_index_bytes,
                interval_bytes=self.config.index_interval_bytes,
                now_ms=self.now_ms,
                has_txn_index=segment_name(base) + TXN_INDEX_SUFFIX in present,
            )
            for base in bases
        ]

    def leave_out_what_never_began(self, segments: list[LogSegment]) -> None:
        """Drop an empty last segment if the segment before it has records at or above the empty segment's base offset.
        An empty last segment remains after a failed roll (no space, no descriptor), if a crash brings the new file's
        name back. The log continued in the old segment. The empty segment would hide records that were acknowledged
        after the failed roll."""
        while len(segments) > 1 and segments[-1].size == 0 and self.reaches(segments[-2], segments[-1].base_offset):
            empty = segments.pop()
            self.notes.append(f"{empty.path}: empty, and the segment before it continues beyond its offset: removed")
            stem = empty.path.removesuffix(LOG_SUFFIX)
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                name = f"{stem}{suffix}".removeprefix(f"{self.directory}/")
                if self.fs.exists(f"{stem}{suffix}") and name not in self.leftovers:
                    self.leftovers.append(name)

    def reaches(self, segment: LogSegment, offset: int) -> bool:
        """Whether the segment has batches at or above ``offset``, by the headers after its last index entry. The
        offsets of the segment must have no gap, because it was the active segment, which is never compacted.
        ``reaches`` ignores unreadable bytes, because other checks of the segment report damage."""
        try:
            position = segment.index.last_position() if segment.indexes_fit() else 0
            position = position if position < segment.size else 0
            first = segment.header_at(position).base_offset if position else segment.base_offset
            found = scan(segment.log, first, position=position, end=segment.size, check_crc=False, contiguous=True)
        except CorruptLogError:
            return False
        return found.next_offset > offset

    def create(self, base_offset: int) -> LogSegment:
        segment = LogSegment.create(
            self.fs,
            self.directory,
            base_offset,
            index_bytes_max=self.config.segment_index_bytes,
            interval_bytes=self.config.index_interval_bytes,
            now_ms=self.now_ms,
            reserve_bytes=self.config.segment_bytes if self.config.preallocate else 0,
        )
        self.fs.sync_directory(self.directory)
        return segment

    # ---------------------------------------------------------------- believing

    def is_cleanly_closed(self, active: LogSegment, log_end_offset: int) -> bool:
        """Whether the last segment ends at the offset that the clean shutdown recorded, and its indexes match the
        log."""
        if active.size == 0:
            return active.base_offset == log_end_offset and active.begin_empty()
        try:
            if not active.indexes_fit():
                return False
            position = active.index.last_position()
            if position >= active.size:
                return False
            first = active.header_at(position)
            found = scan(active.log, first.base_offset, position=position, check_crc=False)
        except CorruptLogError:
            return False
        return found.problem is None and found.next_offset == log_end_offset

    def is_flushed_whole(self, segment: LogSegment, found: Scan) -> bool:
        """Whether the whole segment is valid and on the disk. The segments of idle partitions are on the disk, so after
        an unclean stop a broker with thousands of idle partitions syncs no files of idle partitions. Returns False for
        an empty segment, because its name may be missing on the disk."""
        return (
            0 < found.end == segment.size
            and found.next_offset <= self.recovery_point
            and segment.size < AHEAD_FROM_BYTES
            and not self.config.preallocate
        )

    def scan_and_rewrite(self, segment: LogSegment, *, contiguous: bool, epochs: Sequence[EpochStart] | None) -> Scan:
        """Scan a segment, and rewrite its valid batches beyond the recovery point in place, as the module's docstring
        explains."""
        log = segment.log

        def rewrite(data: memoryview, position: int) -> None:
            log.pwritev([data], position)
            log.start_writeback(position, len(data))

        return scan(
            log if self.meter is None else self.meter.scanning(log),
            segment.base_offset,
            end=segment.size,
            contiguous=contiguous,
            epochs=epochs,
            accept=rewrite,
            accept_from=self.recovery_point,
            note=self.new_plan(segment).add,
        )

    def new_plan(self, segment: LogSegment) -> IndexPlan:
        """Return an empty plan, by which ``rebuild`` rebuilds the segment's indexes."""
        plan = self.plans[segment] = segment.plan_indexes()
        return plan

    def first_epoch(self, segment: LogSegment) -> int:
        """Return the leader epoch of a segment's first batch; -1 when the segment has no readable batch."""
        try:
            return segment.header_at(0).leader_epoch if segment.size else NO_EPOCH
        except CorruptLogError:
            return NO_EPOCH

    def sizes_fit(self, segment: LogSegment) -> bool:
        """Whether the sizes of a sealed segment's index files are possible; the files are not read."""
        for path, entry_bytes, needed in ((INDEX_SUFFIX, 8, False), (TIME_INDEX_SUFFIX, 12, segment.size > 0)):
            try:
                size = self.fs.file_size(segment.path.removesuffix(LOG_SUFFIX) + path)
            except FileNotFoundError:
                return False
            if size % entry_bytes or (needed and size == 0):
                return False
        return True

    def rebuild(self, segment: LogSegment, found: Scan, *, sealed: bool) -> None:
        try:
            if sealed and found.has_markers:
                # Mark the transaction index as damaged until it is rebuilt: after a crash, the next start would take a
                # missing file for an index without entries.
                segment.txn_index.doubt()
            segment.rebuild_indexes(self.plans.pop(segment))
            if sealed:
                segment.seal()
                segment.unload_indexes()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.notes.append(f"{segment.path}: the disk is full, so its indexes are in memory only")

    def corrupt(self, segment: LogSegment, why: str) -> CorruptLogError:
        return CorruptLogError(
            f"{segment.path}, {why}. The broker does not serve the log, and left the files unchanged: restore them, or "
            f"delete {self.directory}: all records of the log on this broker are lost then (docs/operations/damage.md)"
        )


def open_segments(
    fs: FileSystem,
    directory: str,
    config: LogConfig,
    *,
    now_ms: int,
    recovery_point: int,
    log_start_offset: int | None,
    clean: bool,
    meter: OpeningMeter | None,
) -> Opened:
    """Open the segments of a log; the arguments are those of ``PartitionLog.open``."""
    start_is_known, log_start_offset = log_start_offset is not None, log_start_offset or 0
    opening = _Opening(fs, directory, config, now_ms, recovery_point, meter)
    segments = opening.attach_all(opening.list_after_swaps(), log_start_offset)
    opening.leave_out_what_never_began(segments)
    epochs = LeaderEpochs(fs, directory)
    epochs_known = epochs.load()
    if epochs_known and segments and not epochs.entries and opening.first_epoch(segments[0]) >= 0:
        # Only Kafka leaves an epoch file without entries, after a crash: Headrace always writes the epoch file before
        # the batches.
        epochs_known = False
    if not segments:
        if recovery_point > log_start_offset:
            raise CorruptLogError(f"{directory}: the log has no segment, but was flushed up to offset {recovery_point}")
        _remove(opening, log_start_offset)
        epochs.restore(())
        return Opened([opening.create(log_start_offset)], epochs, log_start_offset, log_start_offset, [], {})

    scans: dict[int, Scan] = {}
    if clean and opening.is_cleanly_closed(segments[-1], recovery_point):
        log_end_offset = recovery_point
    else:
        checksummed = epochs.entries if epochs_known and epochs.is_checksummed else None
        scans = _scan_unflushed(opening, segments, recovery_point, checksummed)
        log_end_offset = scans[len(segments) - 1].next_offset
        if not epochs.is_checksummed:
            # Rebuild unverified epoch entries from the batches before the epoch file gets a checksum.
            epochs_known = False
    _remove(opening, segments[0].base_offset)
    doubtful = {number for number, found in scans.items() if not opening.is_flushed_whole(segments[number], found)}
    if doubtful:
        fs.sync_directory(directory)
    without_indexes: dict[LogSegment, Scan] = {}
    for number, segment in enumerate(segments):
        sealed = number < len(segments) - 1
        found = scans.get(number)
        if found is not None:
            if number in doubtful and segment.size:
                segment.log.truncate(found.end)  # the truncation also frees reserved blocks after the end
                segment.log.sync()  # bytes found beyond the recovery point count as flushed after this point
            if sealed or segment.size or not segment.begin_empty():
                opening.rebuild(segment, found, sealed=sealed)
        elif sealed and not opening.sizes_fit(segment):
            opening.notes.append(f"{segment.path}: its indexes are missing or damaged, rebuilt")
            found = without_indexes[segment] = _headers(opening, segment, opening.new_plan(segment).add)
            opening.rebuild(segment, found, sealed=True)
        elif not sealed:
            segment.resume()

    log_start_offset = max(log_start_offset, segments[0].base_offset)
    if epochs_known and epochs.entries and epochs.entries[0].start_offset > log_start_offset:
        # After a deletion of records, the first epoch starts at the log start, so the epoch checkpoint has a copy of
        # the log start.
        if not start_is_known and opening.first_epoch(segments[0]) >= 0:
            log_start_offset = epochs.entries[0].start_offset
            opening.notes.append(
                f"{directory}: starts at offset {log_start_offset}, as the epoch checkpoint says: the checkpoint of "
                "log starts was lost"
            )
        else:
            epochs_known = False  # the checkpoint of log starts was lost, so deleted records have returned
    _restore_epochs(opening, epochs, epochs_known, segments, scans, log_start_offset, log_end_offset)
    # A log that ends below its log start is empty: the records below the start were deleted, and the records above it
    # were never flushed.
    if log_start_offset > log_end_offset:
        opening.notes.append(f"{directory}: ends at {log_end_offset}, below its start {log_start_offset}: starts empty")
        for segment in reversed(segments):
            segment.delete_files()
        segments, log_end_offset = [opening.create(log_start_offset)], log_start_offset
        scans.clear()
        without_indexes.clear()
        epochs.restore(())
    epochs.truncate_from_start(log_start_offset)
    scanned = {segment: found.has_markers for segment, found in without_indexes.items()}
    scanned |= {segments[number]: found.has_markers for number, found in scans.items()}
    return Opened(segments, epochs, log_start_offset, log_end_offset, opening.notes, scanned)


def _scan_unflushed(
    opening: _Opening, segments: list[LogSegment], recovery_point: int, epochs: Sequence[EpochStart] | None
) -> dict[int, Scan]:
    """Scan every segment that reaches beyond the recovery point. Raises CorruptLogError for any damage that is not a
    torn tail."""
    scans = {}
    last = len(segments) - 1
    for number, segment in enumerate(segments):
        if number < last and segments[number + 1].base_offset <= recovery_point:
            continue
        # The active segment is never compacted, but truncation may make a compacted segment the active one.
        contiguous = number == last and not opening.config.cleanup_compact
        found = scans[number] = opening.scan_and_rewrite(segment, contiguous=contiguous, epochs=epochs)
        judgement = judge(segment.log, found, recovery_point=recovery_point, is_last=number == last)
        if judgement.verdict is Verdict.CORRUPT:
            raise opening.corrupt(segment, judgement.why)
        if judgement.verdict is Verdict.TORN:
            if opening.config.refuse_whole_tail and not is_cut_short(segment.log, found):
                raise opening.corrupt(
                    segment, f"{judgement.why}; the batch is complete, so its bytes changed on the disk"
                )
            opening.notes.append(
                f"{segment.path}: cut at position {found.end} (offset {found.next_offset}), "
                f"{found.file_size - found.end} bytes: {judgement.why}"
            )
    for number, following in pairwise(range(len(segments))):
        before, after = scans.get(number), segments[following]
        if before is None:
            continue
        gap = after.base_offset - before.next_offset
        may_have_gaps = opening.config.cleanup_compact or (gap > 0 and show_compaction(segments[:-1]))
        if gap < 0 or (gap > 0 and not may_have_gaps):
            raise opening.corrupt(
                after,
                f"position 0: the segment begins with offset {after.base_offset}, but the previous segment ends at "
                f"{before.next_offset}",
            )
        epochs_before, epochs_after = before.epochs, scans[following].epochs
        if epochs_before and epochs_after and epochs_after[0].epoch < epochs_before[-1].epoch:
            raise opening.corrupt(
                after,
                f"position 0 (offset {after.base_offset}): leader epoch {epochs_after[0].epoch} cannot follow epoch "
                f"{epochs_before[-1].epoch} of the previous segment",
            )
    return scans


def _ignore(batch: BatchMeta) -> None:
    """Keep nothing of a batch whose segment keeps its indexes."""


def _headers(opening: _Opening, segment: LogSegment, note: Callable[[BatchMeta], None]) -> Scan:
    found = scan(segment.log, segment.base_offset, end=segment.size, check_crc=False, note=note)
    if found.problem is not None:
        raise opening.corrupt(
            segment, f"position {found.end}: {found.problem}; this position is below the recovery point"
        )
    return found


def _restore_epochs(
    opening: _Opening,
    epochs: LeaderEpochs,
    known: bool,
    segments: list[LogSegment],
    scans: dict[int, Scan],
    log_start_offset: int,
    log_end_offset: int,
) -> None:
    """Restore the epoch checkpoint: remove entries at or above the log's end, and add the epochs of the scanned
    batches. A lost checkpoint is rebuilt from all batches of the log. An empty log keeps the epoch of its last deleted
    record."""
    if not known:
        epochs.made_anew()
    entries = tuple(entry for entry in epochs.entries if known and entry.start_offset < log_end_offset)
    if known and not entries and 0 < log_start_offset == log_end_offset:
        entries = epochs.entries[:1]
    before: Scan | None = None
    for number, segment in enumerate(segments):
        found = scans.get(number)
        if found is None and not known:
            found = _headers(opening, segment, _ignore)
        for entry in found.epochs if found is not None else ():
            if entry.epoch > (entries[-1].epoch if entries else -1):
                start_offset = entry.start_offset
                if found is not None and before is not None and entry is found.epochs[0]:
                    start_offset = min(start_offset, before.next_offset)
                entries = with_epoch(entries, EpochStart(entry.epoch, start_offset))
        before = found
    epochs.restore(entries)


def _remove(opening: _Opening, first_offset: int) -> None:
    if any(name.endswith(LOG_SUFFIX) for name in opening.leftovers):
        # Force the producer snapshots before the leftover segments are removed, because only the snapshots know some
        # producers.
        snapshots_in(opening.fs, opening.directory).force(first_offset)
    for name in opening.leftovers:
        opening.fs.unlink(f"{opening.directory}/{name}")
    if opening.leftovers:
        opening.fs.sync_directory(opening.directory)
