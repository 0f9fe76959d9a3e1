"""Topics and rows of the pipeline ``telemetry``.

    telemetry.readings           one reading of a device for each record, as JSON; the key is the device
      `-> telemetry.minutes          each device by minute
      |     `-> telemetry.fives          by five minutes, from the minutes
      |           `-> telemetry.quarters     by fifteen minutes, from the five minutes
      `-> telemetry.twins            compacted: the latest reading of each device
      `-> telemetry.alarms           a device falls silent, a device speaks again
      `-> telemetry.readings.dead-letters

A **tick** is a record without a value that only moves the event time. Without a tick, the last windows of a stopped
fleet would never close, because no later record follows.
"""

from __future__ import annotations

import json
from typing import NamedTuple

READINGS, TWINS, ALARMS = "telemetry.readings", "telemetry.twins", "telemetry.alarms"
MINUTES, FIVES, QUARTERS = GRAINS = ("telemetry.minutes", "telemetry.fives", "telemetry.quarters")
TOPICS = (READINGS, *GRAINS, TWINS, ALARMS)

#: ``time_ms``: when the device took the reading. ``centi_celsius``: hundredths of a degree, so that sums are exact.
#: ``battery``: percent.
READING = "device STRING, time_ms BIGINT, centi_celsius INT, battery INT, firmware STRING"
#: The readings of a device in a window that begins at ``window``: ``readings`` is their number. ``low``, ``high`` and
#: ``total`` are the lowest, the highest and the sum of the temperatures in hundredths of a degree. ``battery`` is the
#: lowest battery level, in percent.
GRAIN = "device STRING, window TIMESTAMP, readings BIGINT, low BIGINT, high BIGINT, total BIGINT, battery BIGINT"

#: Longest value of a record in bytes.
VALUE_BYTES_MAX = 4_096
#: Maximum milliseconds between a reading and the timestamp of its record. A reading that is later becomes a dead
#: letter. A device that was offline for a shorter time may send its stored readings.
LATE_MS_MAX = 60_000
#: Longest time, in milliseconds, by which a reading's time may be after the timestamp of its record. A later time means
#: that the device's clock is wrong; the reading would close windows too early.
AHEAD_MS_MAX = 5_000
#: Maximum disorder, in milliseconds of timestamps, in which records of different partitions become visible.
DISORDER_MS = 30_000
#: The watermark's delay: when the watermark passes a time, all good readings of this time have been read, so the
#: watermark drops no reading.
WATERMARK_MS = LATE_MS_MAX + DISORDER_MS
#: Milliseconds without a good reading, by the times of the readings, after which a device is silent.
SILENT_MS = 90_000

SILENT, CLEARED = "silent", "cleared"


class Alarm(NamedTuple):
    """A record of ALARMS. ``last_ms``: the last reading before the silence. ``at_ms``: the time when the silence became
    long enough (``silent``), or the time of the first reading after it (``cleared``)."""

    device: str
    alarm: str
    last_ms: int
    at_ms: int

    def encoded(self) -> str:
        return json.dumps(self._asdict())


def alarm_of(text: bytes | str) -> Alarm:
    """The alarm in a record of ALARMS."""
    return Alarm(**json.loads(text))
