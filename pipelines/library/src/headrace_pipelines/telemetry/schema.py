"""Topics and rows of the pipeline.

    telemetry.readings           one reading of a device for each record, as JSON; the key is the device
      `-> telemetry.minutes          each device by minute
      |     `-> telemetry.fives          by five minutes, from the minutes
      |           `-> telemetry.quarters     by fifteen minutes, from the five minutes
      `-> telemetry.twins            compacted: the latest reading of each device
      `-> telemetry.alarms           a device falls silent, a device speaks again
      `-> telemetry.readings.dead-letters

A **tick** is a record without a value. It only moves the event time, because a fleet that has stopped closes no window.
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
#: A device in a window that begins at ``window``. ``low``, ``high`` and ``total`` are of the temperature in
#: hundredths of a degree: the mean is ``total / readings``. ``battery`` is the lowest, in percent.
GRAIN = "device STRING, window TIMESTAMP, readings BIGINT, low BIGINT, high BIGINT, total BIGINT, battery BIGINT"

#: Longest value of a record in bytes.
VALUE_BYTES_MAX = 4_096
#: A reading whose record is written more than this after the reading is a dead letter. A device that was offline for
#: less may send what it has kept.
LATE_MS_MAX = 60_000
#: A reading from further in the future of its record has a wrong clock. It would close windows.
AHEAD_MS_MAX = 5_000
#: Records of different partitions become visible in the order of their timestamps up to this.
DISORDER_MS = 30_000
#: So all good readings of a time have been read when the watermark passes it, and the watermark drops no reading.
WATERMARK_MS = LATE_MS_MAX + DISORDER_MS
#: A device is silent when it has sent no good reading for this time, by the times of its readings.
SILENT_MS = 90_000

SILENT, CLEARED = "silent", "cleared"


class Alarm(NamedTuple):
    """A record of ALARMS. ``last_ms``: the last reading before the silence. ``at_ms``: when the silence was long enough
    (``silent``), or the first reading after it (``cleared``)."""

    device: str
    alarm: str
    last_ms: int
    at_ms: int

    def encoded(self) -> str:
        return json.dumps(self._asdict())


def alarm_of(text: bytes | str) -> Alarm:
    """The alarm in a record of ALARMS."""
    return Alarm(**json.loads(text))
