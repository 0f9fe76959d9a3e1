"""Measure the free space of a log directory, and decide when the directory refuses appends.

    0          reserve                                            size of the disk
    |-------------|------------- free bytes --------------------------|
      kept for deletes, checkpoints, indexes and compaction

An append that would reduce the free bytes below the reserve is refused before any write (``log.dir.reserve.bytes``, at
most 5 % of the disk). The reserve is kept for actions that free disk space, such as deletions and compaction.

A measurement is a statvfs (a few microseconds) and is rare. With much free space, the disk is measured after a certain
number of written bytes; near the reserve, at most once in 100 ms. Between measurements, the bytes that the directory's
writer writes are subtracted from the free space. There is no timer: a full directory is measured again at the next
append, or in the broker's housekeeping.

A *shortage* begins with the first refused append. A shortage ends when ``RESUME_BYTES`` above the reserve are free, but
not before its minimum duration of some seconds. During a shortage, replicas in the full directory should not lead, and
follower replicas in the full directory are out of sync. The two thresholds and the shortest duration of a shortage keep
leadership from moving back and forth while the disk is at the limit.
"""

from __future__ import annotations

import threading

from ..clock import Clock
from ..errors import DiskFullError
from .files import FileSystem

#: Free bytes above the reserve below which the process measures the disk often, and reserves no blocks ahead.
NEAR_BYTES = 256 * 1024 * 1024
RESERVE_PART_MAX = 20  #: The reserve is at most the disk's size divided by RESERVE_PART_MAX.
#: Free bytes above the reserve at which a shortage of disk space ends; on a small disk, a twentieth of its size is
#: enough.
RESUME_BYTES = 64 * 1024 * 1024
#: Minimum duration of a shortage of disk space in milliseconds: its first value and its maximum. The minimum duration
#: doubles if a shortage begins soon after the last one ended (within twice the last minimum duration).
SHORTAGE_FIRST_MS, SHORTAGE_MOST_MS = 5_000.0, 60_000.0
_MEASURE_INTERVAL_MS = 100.0
#: With much free space, the process measures the disk again after it has written the free bytes divided by
#: _PART_WRITTEN.
_PART_WRITTEN = 8


class SpaceGauge:
    """Free space of one directory. The directory's writer updates the values when it writes, in up to two threads; any
    thread may read the values."""

    __slots__ = (
        "_clock",
        "_fs",
        "_lock",
        "_measured_ms",
        "_remeasure_below",
        "_root",
        "_shortage_ended_ms",
        "_shortage_first_ms",
        "_shortage_ms",
        "_shortage_until_ms",
        "free_bytes",
        "headroom",
        "is_full",
        "is_short",
        "reserve_bytes",
        "total_bytes",
        "wanted_reserve_bytes",
    )

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        clock: Clock,
        reserve_bytes: int,
        *,
        shortage_first_ms: float = SHORTAGE_FIRST_MS,
    ) -> None:
        self._fs = fs
        self._root = root
        self._lock = threading.Lock()
        self._clock = clock
        self.wanted_reserve_bytes = reserve_bytes
        #: The effective reserve in bytes: ``wanted_reserve_bytes``, but at most 5 % of the disk.
        self.reserve_bytes = 0
        self.free_bytes = 0  #: Free bytes of the disk at the last measurement.
        self.total_bytes = 0
        self.headroom = 0  #: Free bytes above the reserve, by the last measurement and the bytes written since.
        self._remeasure_below = 0
        self._measured_ms = -_MEASURE_INTERVAL_MS
        #: Whether free space was below the reserve at the last measurement, or an append was refused after it.
        self.is_full = False
        self.is_short = False  #: Whether the directory has a shortage of disk space; see the module's docstring.
        self._shortage_first_ms = self._shortage_ms = shortage_first_ms
        self._shortage_until_ms = 0.0
        self._shortage_ended_ms = float("-inf")

    def measure(self) -> None:
        """Ask the file system for its free space. Raises OSError when the disk fails."""
        with self._lock:
            self._measure()

    def _measure(self) -> None:
        self.free_bytes = self._fs.free_bytes(self._root)
        self.total_bytes = self._fs.total_bytes(self._root)
        self.reserve_bytes = min(self.wanted_reserve_bytes, self.total_bytes // RESERVE_PART_MAX)
        self.headroom = headroom = self.free_bytes - self.reserve_bytes
        self._remeasure_below = max(headroom - headroom // _PART_WRITTEN, NEAR_BYTES)
        self._measured_ms = now_ms = self._clock.monotonic_ms()
        self.is_full = headroom < 0
        if headroom < 0:
            self._ran_short()
        elif (
            self.is_short
            and now_ms >= self._shortage_until_ms
            and headroom >= min(RESUME_BYTES, self.total_bytes // RESERVE_PART_MAX)
        ):
            self.is_short = False
            self._shortage_ended_ms = now_ms

    def refusal(self, size: int) -> DiskFullError | None:
        """Return the error if ``size`` more bytes must be refused. Returns None if the bytes are accepted; accepted
        bytes are subtracted from the free space. Raises OSError as ``measure`` does."""
        with self._lock:
            if self.headroom - size < self._remeasure_below and (
                self._clock.monotonic_ms() - self._measured_ms >= _MEASURE_INTERVAL_MS
            ):
                self._measure()
            if size > self.headroom:
                self.is_full = True
                self._ran_short()
                return self.full_error()
            self.headroom -= size
            return None

    def ran_out(self) -> None:
        """Record that a write failed because the disk or a quota was full, although the last measurement showed enough
        free space."""
        with self._lock:
            self.is_full = True
            self._measured_ms = self._clock.monotonic_ms()
            self._ran_short()

    def _ran_short(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if not self.is_short:
            self.is_short = True
            is_back = now_ms - self._shortage_ended_ms < 2 * self._shortage_ms
            longest_ms = max(SHORTAGE_MOST_MS, self._shortage_first_ms)
            self._shortage_ms = min(2 * self._shortage_ms, longest_ms) if is_back else self._shortage_first_ms
        self._shortage_until_ms = now_ms + self._shortage_ms

    def full_error(self) -> DiskFullError:
        """Return the error for refused appends and creations of logs."""
        return DiskFullError(
            f"log directory {self._root} is full: {self.free_bytes} bytes are free, and {self.reserve_bytes} bytes "
            "are reserved (log.dir.reserve.bytes). The broker refuses writes until there is space; reads and "
            "deletes continue: free some space, lower the topics' retention, or move partitions to another "
            "directory"
        )
