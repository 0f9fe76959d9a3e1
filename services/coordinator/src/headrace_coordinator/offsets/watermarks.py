"""When did the high watermark pass an offset? A bounded memory of how a partition's log has grown. Pure.

Now and then somebody asks the leaders for their high watermarks. Between two such samples the log is taken to have
grown evenly, which is how a lag in records becomes a lag in seconds (as Burrow's and Lightbend's lag exporters do)::

    offset                       . (t3, 900)
      |                     .
      |          . (t2, 500)                    committed offset 700: record 700 came half-way between t2 and t3
      |   . . . (t1, 400)                       a log at rest is kept as the two ends of its rest
      +------------------------------- time

When the memory is full every other sample of its older half goes: so its size is fixed (2 KiB), it reaches back to the
first sample however long ago that was, and what is long ago is known more coarsely than what was just now.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

SAMPLES_MAX = 128


class Waiting(NamedTuple):
    """How long the record at an offset has been there: ``at_least`` when it came before the first sample."""

    waited_ms: int
    at_least: bool


class WatermarkHistory:
    """The high watermarks of one partition over time. Times are the coordinator's wall clock, in milliseconds."""

    __slots__ = ("_offsets", "_times_ms", "log_start")

    def __init__(self) -> None:
        self._times_ms = array("q")  # ascending
        self._offsets = array("q")  # ascending; of equal ones there are two at most
        self.log_start = 0

    @property
    def high_watermark(self) -> int | None:
        """The newest one, or None before the first sample."""
        return self._offsets[-1] if self._offsets else None

    def __len__(self) -> int:
        return len(self._offsets)

    def sample(self, now_ms: int, high_watermark: int, log_start: int = 0) -> None:
        """``high_watermark`` is what a leader says now.

        A smaller one than before means an unclean election, or a new leader that has not heard of its followers yet:
        what was above it is forgotten. A clock that was set back takes the whole history with it, so that what is
        told are durations that somebody has seen pass.
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
        """How long the record at ``offset`` has been in the log; no time at all when it is not there yet."""
        after = bisect_right(self._offsets, offset)  # the first sample in which the record was there
        if after == len(self._offsets):
            return Waiting(0, False)
        if after == 0:
            return Waiting(max(0, now_ms - self._times_ms[0]), True)
        low, high = self._offsets[after - 1], self._offsets[after]
        start_ms, end_ms = self._times_ms[after - 1], self._times_ms[after]
        came_ms = start_ms + (end_ms - start_ms) * (offset - low) // (high - low)
        return Waiting(max(0, now_ms - came_ms), False)
