"""Clean one log, on a cleaner thread: read the transactions, map the dirty keys, rewrite the segments, swap them in.

    1  transactions     headers and markers only: which transactions were aborted or are still open
    2  map              keys of the dirty part -> their latest offsets, until the map is full
    3  for each group   filter its segments into a new one; have the log's owner swap it in

A cleaning changes the log only when it swaps segments (step 3). Each swap runs while the directory writer makes no
other change to the log. The rest of a cleaning runs at the same time as appends and fetches. A swap detects truncations
and deletions of segments since the cleaning read them, and abandons a group whose segments have changed. The active
segment is never mapped or rewritten.

Each new segment keeps the last batch of its source segments, or at least the header of that batch. A new segment
therefore replaces exactly the segments that begin before its end, and an interrupted swap needs no list of source
segments. Keys are hashed with a secret of the process: a client that could choose two colliding keys would make
compaction drop a record.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...clock import Clock
from ...errors import CorruptLogError, DiskFullError, InvalidConfigError, ServerBusyError, ServerShuttingDownError
from ...types import TopicPartition
from ..files import FileSystem
from ..partition_log import PartitionLog
from ..producer_state import LastRecord
from ..segment import INDEX_SUFFIX, LOG_SUFFIX, RETIRED_SUFFIX, TIME_INDEX_SUFFIX, LogSegment, segment_name
from ..swap import commit_swap, finish_swap
from ..txn_index import TXN_INDEX_SUFFIX, AbortedTransaction, pack_entries
from .backend import BatchFilter, KeyIndexer, OffsetMap, scan_batches
from .horizon import horizon_from
from .output import CleanedSegment
from .planning import CleanerConfig, SegmentSize, Target, group_segments
from .transactions import TransactionHistory, TransactionJudge
from .windows import RateLimiter, feed_segment

logger = logging.getLogger(__name__)

#: Runs an action while the directory writer makes no other change (``DirectoryWriter.run``), and waits for the action's
#: result.
Execute = Callable[[Callable[[], bool]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningReport:
    """Result of a cleaning."""

    topic_partition: TopicPartition
    clean_offset: int  #: End offset of this cleaning: the first dirty offset of the log's next cleaning.
    segments_before: int = 0
    segments_after: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    #: Whether the offset map became full before the end of the dirty part, so that the log should be cleaned again.
    is_partial: bool = False
    #: Whether a change of the log stopped the cleaning; no record is lost, and the log can be cleaned again.
    is_interrupted: bool = False


class Cleaner:
    """Cleans one log after another and reuses one offset map for all logs. A cleaner belongs to one thread. ``secret``:
    16 random bytes, the key of the map's hash."""

    def __init__(
        self, fs: FileSystem, config: CleanerConfig, *, clock: Clock, secret: bytes, limiter: RateLimiter | None = None
    ) -> None:
        self.fs = fs
        self._config = config
        self._clock = clock
        self._limiter = limiter
        self._map = OffsetMap(config.dedupe_buffer_bytes, secret, config.load_factor)

    def clean(
        self,
        log: PartitionLog,
        target: Target,
        *,
        execute: Execute,
        producers: Mapping[int, LastRecord],
        should_stop: Callable[[], bool] = lambda: False,
    ) -> CleaningReport:
        """Clean ``log`` within the bounds of ``target``. ``producers``: the active producers, from the producer state.

        Raises CorruptLogError (a batch is unreadable; earlier swaps stay valid), InvalidConfigError (a batch has more
        records than the offset map can hold), DiskFullError, ServerShuttingDownError (``should_stop``), OSError, and
        the errors of ``execute``.
        """
        round_ = _Round(self, log, target, execute, producers, should_stop)
        try:
            return round_.run()
        finally:
            self._map.clear()


class _Round:
    """State of one cleaning of one log."""

    def __init__(
        self,
        cleaner: Cleaner,
        log: PartitionLog,
        target: Target,
        execute: Execute,
        producers: Mapping[int, LastRecord],
        should_stop: Callable[[], bool],
    ) -> None:
        self._fs = cleaner.fs
        self._map = cleaner._map
        self._settings = cleaner._config
        self._limiter = cleaner._limiter
        self._now_ms = cleaner._clock.now_ms()
        self._log = log
        self._target = target
        self._config = log.config  # one configuration for the whole cleaning: a change applies to the next cleaning
        self._execute = execute
        self._should_stop = should_stop
        self._last_offsets = {
            producer_id: last.last_data_offset
            for producer_id, last in producers.items()
            if last.last_data_offset is not None
        }
        self._marker_epochs = {
            producer_id: last.producer_epoch for producer_id, last in producers.items() if last.last_data_offset is None
        }
        #: The log's count of truncations, read before the list of segments: a truncation during the cleaning may
        #: shorten a segment, which later appends fill again.
        self._cuts = log.cuts
        self._segments = log.segments
        #: Sealed segments that the log must still have, unchanged, when the cleaning swaps segments. After a swap of
        #: segments, the cleaning removes the swapped segments from the set of expected segments.
        self._expected = set(self._segments[:-1])
        self._aborted: list[AbortedTransaction] = []
        self._bytes_read = self._bytes_written = self._segments_after = 0
        self._records_read = self._records_kept = self._records_without_key = 0

    def run(self) -> CleaningReport:
        try:
            return self._run()
        except (CorruptLogError, FileNotFoundError) as error:
            # If the directory writer removed or truncated segments while the cleaner read the segments, the error is no
            # sign of damage.
            if not self._is_overtaken():
                raise
            logger.info(
                "log %s changed while it was compacted (%s); compaction retries later", self._log.directory, error
            )
            return self._report(self._target.first_dirty_offset, is_interrupted=True)

    def _is_overtaken(self) -> bool:
        """Whether the directory writer truncated or closed the log, or deleted segments that the cleaning reads."""
        present = self._log.segments[:-1]
        return self._log.cuts != self._cuts or not self._expected.issubset(present)

    def _run(self) -> CleaningReport:
        nothing = self._report(self._target.first_dirty_offset)
        if not self._segments:
            return nothing
        end = self._read_transactions(min(self._target.end_offset, self._segments[-1].base_offset))
        if end <= self._target.first_dirty_offset:
            return nothing
        clean_offset, is_partial = self._map_dirty(end)
        judge = TransactionJudge(self._aborted, self._now_ms)
        segments = [segment for segment in self._segments[:-1] if segment.base_offset < clean_offset]
        is_interrupted = False
        for group in self._groups(segments):
            if not self._clean_group_or_leave(group, judge, clean_offset - 1):
                is_interrupted = True
                break
        return self._report(
            self._target.first_dirty_offset if is_interrupted else clean_offset,
            segments_before=len(segments),
            is_partial=is_partial,
            is_interrupted=is_interrupted,
        )

    def _report(
        self, clean_offset: int, *, segments_before: int = 0, is_partial: bool = False, is_interrupted: bool = False
    ) -> CleaningReport:
        return CleaningReport(
            topic_partition=self._log.topic_partition,
            clean_offset=clean_offset,
            segments_before=segments_before,
            segments_after=self._segments_after,
            bytes_read=self._bytes_read,
            bytes_written=self._bytes_written,
            records_read=self._records_read,
            records_kept=self._records_kept,
            records_without_key=self._records_without_key,
            is_partial=is_partial,
            is_interrupted=is_interrupted,
        )

    # ---------------------------------------------------------------- steps 1 and 2: find transactions, map keys

    def _read_transactions(self, end: int) -> int:
        """Find the aborted transactions; returns the end of the cleaning, lowered to the start of the first open
        transaction.

        A transaction with data before the end may have its marker after the end, even in the active segment. The search
        for markers continues until it has found the markers of all transactions with data before the end.
        """
        history = TransactionHistory()
        for segment in self._segments:
            first_open = history.first_open_offset
            if segment.base_offset >= end and (first_open is None or first_open >= end):
                break
            feed_segment(
                segment,
                lambda window: scan_batches(window, history.observe),
                window_bytes=self._settings.io_buffer_bytes,
                limiter=self._limiter,
                check=self._check,
            )
        self._aborted = history.aborted
        first_open = history.first_open_offset
        if first_open is None or first_open >= end:
            return end
        logger.warning(
            "%s: a transaction that began at offset %d is still open, although this offset is below the last stable "
            "offset; compaction stops before the segment that has this offset",
            self._log.topic_partition,
            first_open,
        )
        return max(segment.base_offset for segment in self._segments if segment.base_offset <= first_open)

    def _map_dirty(self, end: int) -> tuple[int, bool]:
        """Map the keys from the first dirty offset on; returns the end of the mapped range, and whether the map was
        full before ``end``."""
        dirty = self._target.first_dirty_offset
        indexer = KeyIndexer(self._map, dirty, TransactionJudge(self._aborted, self._now_ms).judge)
        for segment, following in pairwise(self._segments):
            if following.base_offset <= dirty or segment.base_offset >= end:
                continue
            start = 0
            if segment.base_offset < dirty:
                place = segment.find_or_end(dirty)
                start = segment.size if place is None else place.position
            self._bytes_read += segment.size - start
            feed_segment(
                segment,
                indexer.feed,
                window_bytes=self._settings.io_buffer_bytes,
                limiter=self._limiter,
                check=self._check,
                start=start,
            )
            if indexer.is_full:
                if indexer.latest < dirty:
                    raise InvalidConfigError(
                        f"{segment.path}: the batch after offset {indexer.latest} has more records than the "
                        f"{self._map.capacity} keys that "
                        f"log.cleaner.dedupe.buffer.size={self._settings.dedupe_buffer_bytes} holds; raise "
                        "log.cleaner.dedupe.buffer.size"
                    )
                return indexer.latest + 1, True
            indexer.latest = max(indexer.latest, following.base_offset - 1)
        return indexer.latest + 1, False

    # ---------------------------------------------------------------- step 3: rewrite the segments, group by group

    def _groups(self, segments: Sequence[LogSegment]) -> list[list[LogSegment]]:
        following = {segment: after.base_offset for segment, after in pairwise(self._segments)}
        sizes = [
            SegmentSize(
                segment.base_offset,
                segment.size,
                self._size_of(segment, INDEX_SUFFIX),
                self._size_of(segment, TIME_INDEX_SUFFIX),
                following[segment],
            )
            for segment in segments
        ]
        return [[segments[place] for place in group] for group in group_segments(sizes, self._config)]

    def _size_of(self, segment: LogSegment, suffix: str) -> int:
        path = segment.path.removesuffix(LOG_SUFFIX) + suffix
        if not self._fs.exists(path):
            return 0
        file = self._fs.open(path)
        try:
            return file.size()
        finally:
            file.close()

    def _clean_group_or_leave(self, group: Sequence[LogSegment], judge: TransactionJudge, latest: int) -> bool:
        """Clean a group as ``_clean_group`` does, but return True also when retention removed all segments of the group
        during the cleaning."""
        try:
            if not self._is_below_start(group) and self._clean_group(group, judge, latest):
                return True
        except (CorruptLogError, FileNotFoundError):
            if not self._is_below_start(group):
                raise
        self._expected.difference_update(group)
        return self._is_below_start(group)

    def _is_below_start(self, group: Sequence[LogSegment]) -> bool:
        """Whether retention removed all segments of a group."""
        present = self._log.segments
        return bool(present) and present[0].base_offset > group[-1].base_offset

    def _clean_group(self, group: Sequence[LogSegment], judge: TransactionJudge, latest: int) -> bool:
        """Filter a group of segments into a new segment and swap the new segment in; False when the log changed during
        the cleaning."""
        with_records = [segment for segment in group if segment.size]
        if not with_records:
            self._segments_after += len(group)
            return True
        keep = BatchFilter(
            self._map,
            latest=latest,
            keep_next_offset=_next_offset(with_records[-1]),
            judge=judge.judge,
            last_offsets=self._last_offsets,
            marker_epochs=self._marker_epochs,
            now_ms=self._now_ms,
            horizon_ms=horizon_from(self._now_ms, self._config.delete_retention_ms),
        )
        try:
            cleaned = self._rewrite(group, with_records, keep)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFullError(
                    f"{self._log.directory}: no space left for a compacted segment ({error.strerror}); it needs up "
                    f"to {sum(segment.size for segment in group)} bytes until the old segments are deleted"
                ) from error
            raise
        if not self._execute(lambda: swap_segments(self._fs, self._log, group, cleaned, cuts=self._cuts)):
            return False
        self._expected.difference_update(group)
        self._segments_after += 1
        return True

    def _rewrite(
        self, group: Sequence[LogSegment], with_records: Sequence[LogSegment], keep: BatchFilter
    ) -> CleanedSegment:
        """Write the new segment and make it durable; the files are removed when the function raises."""
        cleaned = CleanedSegment(
            self._fs,
            self._log.directory,
            group[0].base_offset,
            self._segments[self._segments.index(group[-1]) + 1].base_offset,
            self._log.config,
            now_ms=self._now_ms,
        )
        try:
            self._write(with_records, keep, cleaned)
            cleaned.finish(self._txn_index(group))
            # If no record has a timestamp, retention uses the file's modification time.
            cleaned.set_modified_ms(self._fs.modified_ms(group[-1].path))
        except Exception:
            cleaned.discard()
            raise
        return cleaned

    def _write(self, segments: Sequence[LogSegment], keep: BatchFilter, cleaned: CleanedSegment) -> None:
        def after() -> None:
            data, batches = keep.take()
            if self._limiter is not None:
                self._limiter.spend(len(data))
            cleaned.append(data, batches)

        for segment in segments:
            feed_segment(
                segment,
                keep.feed,
                window_bytes=self._settings.io_buffer_bytes,
                limiter=self._limiter,
                check=self._check,
                after=after,
            )
            self._bytes_read += segment.size
        self._bytes_written += cleaned.size
        self._records_read += keep.records_read
        self._records_kept += keep.records_kept
        self._records_without_key += keep.records_without_key

    def _txn_index(self, group: Sequence[LogSegment]) -> bytes | None:
        """Merge the transaction indexes of a group of segments, without transactions whose data earlier cleanings
        removed. The merged index is None if no segment of the group has a transaction index."""
        if all(segment.txn_index.is_empty for segment in group):
            return None
        with_data = {(aborted.producer_id, aborted.last_offset) for aborted in self._aborted}
        entries = [entry for segment in group for entry in self._log.aborted_in(segment)]
        return pack_entries(entry for entry in entries if (entry.producer_id, entry.last_offset) in with_data)

    def _check(self) -> None:
        if self._should_stop():
            raise ServerShuttingDownError(f"the compaction of {self._log.topic_partition} was cancelled")


def _next_offset(segment: LogSegment) -> int:
    """The offset after the last batch of a sealed segment that is not empty."""
    segment.load_indexes()
    next_offset = segment.base_offset
    for place in segment.places(segment.index.last_position(), segment.size):
        next_offset = place.header.next_offset
    return next_offset


def swap_segments(
    fs: FileSystem, log: PartitionLog, old: Sequence[LogSegment], cleaned: CleanedSegment, *, cuts: int
) -> bool:
    """Replace the segments ``old`` by ``cleaned``, durably. Call ``swap_segments`` through ``DirectoryWriter.run``.
    Returns False, without a change, unless the ``old`` segments are neighbouring sealed segments of the log and the
    log's ``cuts`` are unchanged. The count of truncations, ``cuts``, is needed, because a segment that was truncated,
    filled and rolled again is the same object with different records.

    ServerBusyError: no change. Every OSError of the replacement takes the log directory offline, because it is unknown
    which of the new file names are durable.
    """
    segments = log.segments
    at = segments.index(old[0]) if old[0] in segments else -1
    is_as_read = at >= 0 and list(segments[at : at + len(old)]) == list(old) and at + len(old) < len(segments)
    if not is_as_read or log.cuts != cuts:
        cleaned.discard()
        return False
    # The swap removes the producer snapshots of all old segments but the first, so the newest snapshot must be durable
    # first.
    if len(old) > 1 and not log.force_newest_snapshot():
        cleaned.discard()
        raise ServerBusyError(
            f"{log.directory}: compaction cannot make the newest producer snapshot durable, because the disk is full "
            "or no descriptor is free; it tries again later"
        )
    for segment in old:  # load the indexes before any change, because loading may fail for lack of a descriptor
        segment.load_indexes()
        log.pin_aborted(segment)
    try:
        for segment in old:
            _retire(segment)
        commit_swap(fs, log.directory, cleaned.base_offset)
        finish_swap(fs, log.directory, cleaned.base_offset, [segment.base_offset for segment in old])
        txn_index = f"{log.directory}/{segment_name(cleaned.base_offset)}{TXN_INDEX_SUFFIX}"
        has_txn_index = fs.exists(txn_index)
        # The new transaction index is empty if the old index had only transactions without remaining data.
        if has_txn_index and not fs.file_size(txn_index):
            fs.unlink(txn_index)
            has_txn_index = False
        new = LogSegment.attach(
            fs,
            log.directory,
            cleaned.base_offset,
            index_bytes_max=log.config.segment_index_bytes,
            interval_bytes=log.config.index_interval_bytes,
            now_ms=old[-1].created_ms,
            has_txn_index=has_txn_index,
        )
    except (OSError, ServerBusyError) as error:
        raise OSError(
            errno.EIO,
            f"cannot swap in a compacted segment: {error}",
            f"{log.directory}/{segment_name(cleaned.base_offset)}",
        ) from error
    log.replace_segments(old, new)
    return True


def _retire(segment: LogSegment) -> None:
    """Keep a segment readable after its replacement. The segment's .log file stays open, but its index files will
    belong to the new segment. The replaced segment gets index names that do not exist, because its index files now
    belong to the new segment. The indexes of the replaced segment are rebuilt in memory from its .log file."""
    segment.load_indexes()
    segment.rename_indexes(RETIRED_SUFFIX)
