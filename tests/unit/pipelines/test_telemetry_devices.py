"""Silent devices: the pure function, and the processor with Spark's tester: state, timers, twins."""

from __future__ import annotations

import json
import random
from typing import Any

import pandas as pd
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from headrace_pipelines.telemetry.devices import Device, advanced, due_ms, received
from headrace_pipelines.telemetry.schema import ALARMS, SILENT_MS, TWINS, Alarm, alarm_of
from headrace_pipelines.telemetry.watching import Watcher

T = 1_000_000
COLUMNS = [
    "device", "time_ms", "value", "reason", "sent_ms", "topic", "partition", "offset", "key", "headers",
]  # fmt: skip


def after(times: list[int], watermarks: list[int]) -> list[Alarm]:
    """The alarms of a device that is received at ``times`` before the watermark moves through ``watermarks``."""
    device, found = Device("d"), []
    for time_ms in times:
        device = received(device, time_ms)
    for watermark_ms in watermarks:
        device, new = advanced(device, watermark_ms)
        found += new
    return found


def test_a_device_is_silent_after_ninety_seconds_and_not_before() -> None:
    silent = Alarm("d", "silent", T, T + SILENT_MS)
    assert after([T], [T + SILENT_MS - 1]) == []
    assert after([T], [T + SILENT_MS]) == [silent]
    assert after([T], [T + SILENT_MS, T + 2 * SILENT_MS]) == [silent], "one alarm for one silence"


def test_a_reading_clears_the_alarm_when_the_watermark_passes_it() -> None:
    back = T + SILENT_MS + 1
    both = [Alarm("d", "silent", T, T + SILENT_MS), Alarm("d", "cleared", T, back)]
    assert after([T, back], [back - 1]) == both[:1]
    assert after([T, back], [back]) == both
    assert after([T, T + SILENT_MS], [T + SILENT_MS]) == [], "just in time"


def test_alarms_do_not_depend_on_the_order_nor_on_the_steps_of_the_watermark(rng: random.Random) -> None:
    times = [T + at * 20_000 for at in range(60) if not 10 <= at < 20 and not 30 <= at < 34 and at < 50]
    end = T + 60 * 20_000
    expected = after(times, [end])
    assert [each.alarm for each in expected] == ["silent", "cleared", "silent", "cleared", "silent"][: len(expected)]
    for _ in range(50):
        shuffled = [*times, *rng.sample(times, 5)]
        rng.shuffle(shuffled)
        steps = sorted(rng.sample(range(T - 1, end), 20))
        assert after(shuffled, [*steps, end]) == expected


def test_a_timer_is_due_when_an_alarm_is() -> None:
    device = received(received(Device("d"), T), T + 20_000)
    assert due_ms(device) == T + 20_000 + SILENT_MS
    device, _ = advanced(device, T + 20_000 + SILENT_MS)
    assert due_ms(device) is None, "a silent device has no alarm before it speaks"
    assert due_ms(received(device, T + 500_000)) == T + 500_000


def rows(found: Any) -> list[dict[str, Any]]:
    return [] if isinstance(found, list) else list(found.to_dict("records"))


class Shard:
    def __init__(self) -> None:
        self.tester = TwsTester(
            Watcher(), timeMode="EventTime", eventTimeExtractor=lambda row: int(row["time_ms"] or 10**15)
        )

    def batch(self, *readings: tuple[str, int]) -> list[dict[str, Any]]:
        made = [(name, at, b'{"time_ms": %d}' % at, None, at, "t", 0, 0, None, None) for name, at in readings]
        return rows(self.tester.testInPandas(1, pd.DataFrame(made, columns=COLUMNS)))


def test_the_twin_is_the_latest_reading_and_not_the_one_that_came_last() -> None:
    shard = Shard()
    (twin,) = shard.batch(("a", T + 20_000), ("a", T))
    assert (twin["target"], twin["device"], json.loads(twin["body"])["time_ms"]) == (TWINS, "a", T + 20_000)
    assert shard.batch(("a", T + 10_000)) == [], "an older reading changes no twin"


def test_a_timer_raises_the_alarm_of_a_shard_without_readings() -> None:
    shard = Shard()
    shard.batch(("a", T), ("b", T + 50_000))
    assert rows(shard.tester.setWatermark(T + SILENT_MS - 1)) == []
    (first,) = rows(shard.tester.setWatermark(T + SILENT_MS))
    assert (first["target"], alarm_of(first["body"])) == (ALARMS, Alarm("a", "silent", T, T + SILENT_MS))
    (second,) = rows(shard.tester.setWatermark(T + 50_000 + SILENT_MS))
    assert alarm_of(second["body"]).device == "b"


@pytest.mark.parametrize("key", [None, b"\xff"])
def test_a_bad_record_passes_with_its_position(key: bytes | None) -> None:
    made = [(None, None, b"{", "value: malformed JSON", T, "t", 3, 7, key, '[{"key":"a"}]')]
    (row,) = rows(Shard().tester.testInPandas(1, pd.DataFrame(made, columns=COLUMNS)))
    assert (row["reason"], row["partition"], row["offset"], row["key"], row["value"]) == (
        "value: malformed JSON", 3, 7, key, b"{",
    )  # fmt: skip
