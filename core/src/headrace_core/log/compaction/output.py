"""The segment that a cleaning writes; its file names end in .cleaned until the segment is complete."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ...errors import CorruptLogError
from ..config import LogConfig
from ..files import Buffer, FileSystem
from ..index import BatchMeta, OffsetIndex, TimeIndex
from ..segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, LogSegment, segment_name
from ..swap import CLEANED
from ..txn_index import TXN_INDEX_SUFFIX

_WRITEBACK_BYTES = 8 * 1024 * 1024


class CleanedSegment:
    """A new segment that one thread writes; the segment has no readers before its swap."""

    def __init__(
        self, fs: FileSystem, directory: str, base_offset: int, end_offset: int, config: LogConfig, *, now_ms: int
    ) -> None:
        """``end_offset``: exclusive end of the new segment, which is the base offset of the segment that follows the
        replaced segments."""
        self.base_offset = base_offset
        self.size = 0
        self._directory = directory
        self._next_offset = base_offset
        self._end_offset = end_offset
        self._handed_over = 0
        self._fs = fs
        self._stem = stem = f"{directory}/{segment_name(base_offset)}"
        log = fs.open(stem + LOG_SUFFIX + CLEANED, write=True, create=True)
        log.truncate(0)  # an earlier attempt may have left records in the file
        self._segment = segment = LogSegment(
            fs,
            directory,
            base_offset,
            index_bytes_max=config.segment_index_bytes,
            interval_bytes=config.index_interval_bytes,
            log=log,
        )
        segment.created_ms = now_ms
        segment.path = stem + LOG_SUFFIX + CLEANED
        index_bytes_max = config.segment_index_bytes
        segment.index = OffsetIndex(fs, stem + INDEX_SUFFIX + CLEANED, base_offset, index_bytes_max)
        segment.time_index = TimeIndex(fs, stem + TIME_INDEX_SUFFIX + CLEANED, base_offset, index_bytes_max)
        segment.index.start_empty()
        segment.time_index.start_empty()

    def append(self, data: Buffer, batches: Sequence[BatchMeta]) -> None:
        """Append whole batches with their sizes, offsets and times. After an OSError a part of the batches is written:
        call ``discard``.

        Raises CorruptLogError when a batch's offsets do not follow the offsets of the previous batch. No CRC covers a
        base offset, so only the comparison of offsets detects a flipped bit in a base offset. A cleaned segment must
        not hide a damaged base offset.
        """
        if not batches:
            return
        for _, base_offset, last_offset, _ in batches:
            if not self._next_offset <= base_offset <= last_offset < self._end_offset:
                raise CorruptLogError(
                    f"{self._directory}: found a batch with offsets {base_offset} to {last_offset}, expected "
                    f"offsets from {self._next_offset} to {self._end_offset - 1}. The log is unchanged; `headrace "
                    "log dump --deep` shows the batch"
                )
            self._next_offset = last_offset + 1
        segment = self._segment
        if segment.size == 0:
            # Set the timestamp here, so that ``publish`` need not look up the timestamp.
            segment.first_timestamp_ms = batches[0][3]
        segment.write([data], len(data))
        segment.publish(batches)
        self.size = segment.size
        # Start the write now: the disk works while the next records are filtered.
        if self.size - self._handed_over >= _WRITEBACK_BYTES:
            segment.log.start_writeback(self._handed_over, self.size - self._handed_over)
            self._handed_over = self.size

    def finish(self, txn_index: bytes | None = None) -> None:
        """Complete the segment and its indexes, durably; the file names become durable when the caller syncs the
        directory. ``txn_index``: the entries of the new transaction index, empty if none are left; None when no
        replaced segment has a transaction index."""
        if txn_index is not None:
            file = self._fs.open(self._stem + TXN_INDEX_SUFFIX + CLEANED, write=True, create=True)
            try:
                file.truncate(0)
                file.pwritev([txn_index], 0)
                file.sync()
            finally:
                file.close()
        self._segment.seal()
        self._segment.log.close()

    def set_modified_ms(self, time_ms: int) -> None:
        """Set the modification time of the new file to that of its source segments."""
        self._fs.set_modified_ms(self._stem + LOG_SUFFIX + CLEANED, time_ms)

    def discard(self) -> None:
        """Remove the segment's files, as far as the disk allows."""
        with contextlib.suppress(OSError):
            self._segment.log.close()
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX):
                path = self._stem + suffix + CLEANED
                if self._fs.exists(path):
                    self._fs.unlink(path)
