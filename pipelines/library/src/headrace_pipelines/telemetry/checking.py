"""Check the results of a run against the planted faults. This module shares no code with the queries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from .fleet import Plan, name_of
from .schema import CLEARED, SILENT, SILENT_MS, Alarm


def faults_of_alarms(alarms: Iterable[Alarm], planned: Plan) -> list[str]:
    """Differences between the alarms and the planted silences: each silence must cause one alarm, which is cleared
    later unless the device is dead."""
    found: dict[str, list[Alarm]] = {}
    for alarm in alarms:
        found.setdefault(alarm.device, []).append(alarm)
    expected: dict[str, list[str]] = {}
    for number, outages in planned.items():
        for outage in outages:
            if not outage.is_kept:
                ends = [] if outage.to_s == math.inf else [CLEARED]
                expected.setdefault(name_of(number), []).extend([SILENT, *ends])
    wrong = []
    for device in sorted({*found, *expected}):
        of_device = sorted(found.get(device, []), key=lambda each: each.at_ms)
        kinds = [each.alarm for each in of_device]
        if kinds != expected.get(device, []):
            wrong.append(f"{device}: alarms {kinds}, planted {expected.get(device, [])}")
        wrong += [
            f"{device}: silent at {each.at_ms}, last reading at {each.last_ms}"
            for each in of_device
            if each.alarm == SILENT and each.at_ms != each.last_ms + SILENT_MS
        ]
    return wrong


def faults_of_grains(readings: int, grains: Mapping[str, tuple[int, int, int]]) -> list[str]:
    """Differences between the rows of the grains (topics of downsampled readings) and the good ``readings`` that the
    devices sent. ``grains`` maps each topic to the number of its rows, the number of different pairs of device and
    window, and the sum of its readings."""
    wrong = []
    for topic, (rows, pairs, total) in grains.items():
        if rows != pairs:
            wrong.append(f"{topic}: {rows:,} rows for {pairs:,} pairs of device and window")
        if total != readings:
            wrong.append(f"{topic}: {total:,} readings, but the devices sent {readings:,} good ones")
    return wrong


def faults_of_twins(twins: Mapping[str, int], newest_ms: Mapping[str, int]) -> list[str]:
    """``twins``: the time of each twin's reading; ``newest_ms``: the latest good reading of each device."""
    return [
        f"{device}: the twin has the time {twins.get(device)}, but the latest reading has {newest_ms.get(device)}"
        for device in sorted({*twins, *newest_ms})
        if twins.get(device) != newest_ms.get(device)
    ]


def faults_of_letters(letters: Mapping[str, int], bad: int) -> list[str]:
    """``letters``: dead letters by reason; ``bad``: the number of planted records that are not good readings."""
    total: Any = sum(letters.values())
    return [] if total == bad else [f"{total:,} dead letters, planted {bad:,}"]
