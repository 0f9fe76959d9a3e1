"""Twins and alarms as a StatefulProcessor (transformWithState in pandas form) with event-time timers.

**Devices are grouped into shards**, because each key of a batch costs a data frame and several state requests. The
state of a shard is one value with all its devices.

**A shard has one timer**, at the earliest time at which one of its devices may be silent. A new reading moves this
time, but does not change the timer: a timer that fires too early finds no alarm and is set again. So a batch seldom
sets a timer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from ..dead_letters import HEADERS_TYPE, routed
from ..expectations import REASON
from .devices import Device, advanced, due_ms, received
from .schema import ALARMS, TWINS, Alarm

#: Number of shards. In each batch, each shard sends several requests to Spark to read and write its state.
SHARDS = 16
#: ``timer_ms``: the time of the shard's timer; 0: no timer is set.
STATE = (
    "timer_ms BIGINT, devices ARRAY<STRUCT<name: STRING, newest_ms: BIGINT, last_ms: BIGINT, is_silent: BOOLEAN, "
    "waiting_ms: ARRAY<BIGINT>>>"
)
#: The output columns of a bad record; null in a row for a twin or an alarm.
_RECORD = ("sent_ms", "topic", "partition", "offset", "key", "value", "headers")
_RECORD_TYPES = "sent_ms BIGINT, topic STRING, partition INT, offset BIGINT, key BINARY, value BINARY, headers STRING"
OUTPUT = f"target STRING, device STRING, body STRING, {_RECORD_TYPES}, {REASON} STRING"
_COLUMNS = ["target", "device", "body", *_RECORD, REASON]

Row = tuple[Any, ...]


def watched(readings: DataFrame) -> DataFrame:
    """Twins, alarms and dead letters for the rows of ``readings.judged``, as rows of the sink."""
    is_bad = F.col(REASON).isNotNull()
    rows = readings.select(
        F.pmod(F.xxhash64("device"), F.lit(SHARDS)).cast("int").alias("shard"),
        "at", "device", "time_ms", "value", REASON,
        F.unix_millis("timestamp").alias("sent_ms"),
        *("topic", "partition", "offset"),
        F.when(is_bad, F.col("key")).alias("key"),
        F.when(is_bad, F.to_json("headers")).alias("headers"),
    )  # fmt: skip
    found = rows.groupBy("shard").transformWithStateInPandas(Watcher(), OUTPUT, "Append", "EventTime")
    source = found.select(
        *("target", "device", "body", "key", "value", "topic", "partition", "offset", REASON),
        F.timestamp_millis("sent_ms").alias("timestamp"),
        F.from_json("headers", HEADERS_TYPE).alias("headers"),
    )
    return routed(source, topic=F.col("target"), key=F.col("device"), value=F.col("body"))


class Watcher(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._shard = handle.getValueState("shard", STATE)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        """Handle the new readings of a shard. Returns the twins of devices with a later reading than before, the bad
        records, and the alarms."""
        timer_ms, devices = self._load()
        twins: dict[str, bytes] = {}
        found: list[Row] = []
        for frame in rows:
            found += _bad(frame)
            good = frame[frame["device"].notna()]
            for name, time, value in zip(good["device"], good["time_ms"].tolist(), good["value"], strict=True):
                before, time_ms = devices.get(name) or Device(name), int(time)
                devices[name] = after = received(before, time_ms)
                if after.newest_ms > before.newest_ms:
                    twins[name] = value
        nothing = (None,) * (len(_RECORD) + 1)
        found += [(TWINS, name, value.decode(), *nothing) for name, value in twins.items()]
        found += self._advance(timer_ms, devices, timerValues.getCurrentWatermarkInMs())
        yield from _frames(found)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        """Raise the alarms that are due."""
        timer_ms, devices = self._load()
        if expiredTimerInfo.getExpiryTimeInMs() == timer_ms:
            timer_ms = 0
        yield from _frames(self._advance(timer_ms, devices, timerValues.getCurrentWatermarkInMs()))

    def _load(self) -> tuple[int, dict[str, Device]]:
        stored = self._shard.get()
        if stored is None:
            return 0, {}
        timer_ms, devices = stored
        return timer_ms, {
            name: Device(name, newest_ms, last_ms, is_silent, tuple(waiting_ms))
            for name, newest_ms, last_ms, is_silent, waiting_ms in devices
        }

    def _advance(self, timer_ms: int, devices: dict[str, Device], watermark_ms: int) -> list[Row]:
        """Advance the devices to the watermark; store the shard, and set its timer if no timer fires in time. Returns
        the alarms."""
        alarms: list[Alarm] = []
        next_ms: int | None = None
        for name, device in devices.items():
            devices[name], new = advanced(device, watermark_ms)
            alarms += new
            due = due_ms(devices[name])
            if due is not None and (next_ms is None or due < next_ms):
                next_ms = due
        # A timer at or before the watermark has fired, or fires in this batch and sets the next one.
        if next_ms is not None and (not timer_ms or next_ms < timer_ms):
            timer_ms = next_ms
            self._handle.registerTimer(timer_ms)
        if devices:
            self._shard.update((timer_ms, [tuple(each) for each in devices.values()]))
        nothing = (None,) * (len(_RECORD) + 1)
        return [(ALARMS, alarm.device, alarm.encoded(), *nothing) for alarm in alarms]


def _bad(frame: pd.DataFrame) -> Iterable[Row]:
    """The bad records in a frame, as rows of OUTPUT. For pandas a null text may be NaN."""
    bad = frame[frame[REASON].notna()]
    columns = [bad[name].tolist() for name in _RECORD]
    for *position, key, value, headers, reason in zip(*columns, bad[REASON].tolist(), strict=True):
        given = (each if isinstance(each, bytes) else None for each in (key, value))
        yield (None, None, None, *position, *given, headers if isinstance(headers, str) else None, reason)


def _frames(rows: list[Row]) -> Iterator[pd.DataFrame]:
    """The rows as one frame; without rows there is no frame. One frame suffices, because the values of good records
    have at most VALUE_BYTES_MAX bytes."""
    if rows:
        yield pd.DataFrame(rows, columns=_COLUMNS).astype(object)
