"""The history of a partition's high watermark, in bounded memory. Pure.

The coordinator samples the leaders' high watermarks at intervals. Between two samples the log is assumed to grow
evenly, so a lag in records can be turned into a lag in seconds. Burrow's and Lightbend's lag exporters interpolate in
the way that the picture shows::

    offset                       . (t3, 900)
      |                     .
      |          . (t2, 500)                    committed offset 700: record 700 came half-way between t2 and t3
      |   . . . (t1, 400)                       an idle time is kept as its two ends
      +------------------------------- time

When a history is full, every second sample in the older half of the history is dropped. Because samples are dropped, a
history has a fixed size (2 KiB) and reaches back to the first sample, but older times are coarser.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

SAMPLES_MAX = 128


class Waiting(NamedTuple):
    """How long the record at an offset has been in the log. ``at_least``: the record is older than the first sample."""

    waited_ms: int
    at_least: bool


class WatermarkHistory:
    """The high watermarks of one partition over time. Times are in milliseconds of the coordinator's wall clock."""

    __slots__ = ("_offsets", "_times_ms", "log_start")

    def __init__(self) -> None:
        self._times_ms = array("q")  # ascending
        self._offsets = array("q")  # ascending offsets, of which at most two are equal
        self.log_start = 0

    @property
    def high_watermark(self) -> int | None:
        """The newest high watermark; None before the first sample."""
        return self._offsets[-1] if self._offsets else None

    def __len__(self) -> int:
        return len(self._offsets)

    def sample(self, now_ms: int, high_watermark: int, log_start: int = 0) -> None:
        """Add a leader's current high watermark.

        A high watermark below the previous high watermark means an unclean election, or a new leader without
        acknowledgements so far. When the high watermark goes back, the samples above the new high watermark are
        dropped. If the clock was set back, all samples are moved back by the same time. A reported duration is
        therefore never longer than the real duration.
        """
        times, offsets = self._times_ms, self._offsets
        self.log_start = log_start
        if times and now_ms < times[-1]:
            back = times[-1] - now_ms
            times[:] = array("q", [time - back for time in times])
        if offsets and high_watermark < offsets[-1]:
            kept = bisect_right(offsets, high_watermark)
            del times[kept:], offsets[kept:]
        if len(offsets) > 1 and offsets[-2] == offsets[-1] == high_watermark:
            times[-1] = now_ms
            return
        times.append(now_ms)
        offsets.append(high_watermark)
        if len(offsets) > SAMPLES_MAX:
            half = SAMPLES_MAX // 2
            del times[1:half:2], offsets[1:half:2]

    def waiting(self, offset: int, now_ms: int) -> Waiting:
        """How long the record at ``offset`` has been in the log; zero if the log does not have the record yet."""
        after = bisect_right(self._offsets, offset)  # index of the first sample in which the log had the record
        if after == len(self._offsets):
            return Waiting(0, False)
        if after == 0:
            return Waiting(max(0, now_ms - self._times_ms[0]), True)
        low, high = self._offsets[after - 1], self._offsets[after]
        start_ms, end_ms = self._times_ms[after - 1], self._times_ms[after]
        came_ms = start_ms + (end_ms - start_ms) * (offset - low) // (high - low)
        return Waiting(max(0, now_ms - came_ms), False)
