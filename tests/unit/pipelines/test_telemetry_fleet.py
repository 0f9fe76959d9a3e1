"""The fleet and what its results must be: planted faults are as many and as large as the pipeline needs."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter

import pytest

from headrace_pipelines.telemetry import fleet
from headrace_pipelines.telemetry.checking import (
    faults_of_alarms,
    faults_of_grains,
    faults_of_letters,
    faults_of_twins,
)
from headrace_pipelines.telemetry.schema import AHEAD_MS_MAX, CLEARED, LATE_MS_MAX, SILENT, SILENT_MS, Alarm

SEED, DEVICES, MINUTES = 3, 1_000, 10


@pytest.fixture(scope="module")
def sent() -> list[fleet.Delivery]:
    return list(fleet.deliveries(SEED, DEVICES, MINUTES))


def test_the_same_seed_gives_the_same_records(sent: list[fleet.Delivery]) -> None:
    assert list(fleet.deliveries(SEED, DEVICES, MINUTES)) == sent
    assert list(fleet.deliveries(SEED + 1, DEVICES, MINUTES)) != sent


def test_records_are_in_the_order_of_their_arrival_and_readings_are_not(sent: list[fleet.Delivery]) -> None:
    arrivals = [each.at_ms for each in sent]
    assert arrivals == sorted(arrivals)
    late = Counter(each.kind for before, each in itertools.pairwise(sent) if each.time_ms < before.time_ms)
    assert late[fleet.GOOD] > 1_000


def test_every_fault_is_planted_and_a_good_reading_is_good(sent: list[fleet.Delivery]) -> None:
    kinds = Counter(each.kind for each in sent)
    assert set(kinds) == set(fleet.KINDS)
    end_ms = fleet.START_MS + MINUTES * 60_000
    for each in sent:
        if each.kind in (fleet.GOOD, fleet.AGAIN):
            row = json.loads(each.value)
            assert (row["device"], row["time_ms"]) == (each.device, each.time_ms)
            assert -AHEAD_MS_MAX <= each.at_ms - each.time_ms <= LATE_MS_MAX
            assert each.time_ms < end_ms
        if each.kind == fleet.TOO_LATE:
            assert each.at_ms - each.time_ms > LATE_MS_MAX
    good = Counter((each.device, each.time_ms) for each in sent if each.kind == fleet.GOOD)
    assert max(good.values()) == 1, "a second one is AGAIN"


def test_gaps_above_the_limit_are_those_that_are_planted(sent: list[fleet.Delivery]) -> None:
    times: dict[str, list[int]] = {}
    for each in sent:
        if each.kind == fleet.GOOD:
            times.setdefault(each.device, []).append(each.time_ms)
    end_ms, found = fleet.START_MS + MINUTES * 60_000, Counter[str]()
    for device, of_device in times.items():
        of_device.sort()
        found[device] = sum(b - a > SILENT_MS for a, b in zip(of_device, [*of_device[1:], end_ms], strict=True))
    planned = Counter({fleet.name_of(each): sum(not one.is_kept for one in all_) for each, all_ in _plan().items()})
    assert +found == +planned


def _plan() -> fleet.Plan:
    return fleet.plan(SEED, DEVICES, MINUTES)


def test_a_dead_device_has_no_later_outage() -> None:
    planned = fleet.plan(1, 3_000, 60)
    dead = [outages for outages in planned.values() if any(each.to_s == math.inf for each in outages)]
    assert len(dead) > 20
    assert all(each.to_s != math.inf for outages in dead for each in outages[:-1])


def test_a_missing_or_wrong_alarm_is_found() -> None:
    planned = {1: [fleet.Outage(70, 190)], 2: [fleet.Outage(70, 110, is_kept=True)]}
    name = fleet.name_of(1)
    silent, cleared = Alarm(name, SILENT, 5, 5 + SILENT_MS), Alarm(name, CLEARED, 5, 200_000)
    assert faults_of_alarms([cleared, silent], planned) == []
    assert len(faults_of_alarms([silent], planned)) == 1
    assert len(faults_of_alarms([silent, silent, cleared], planned)) == 1
    assert len(faults_of_alarms([silent._replace(at_ms=7), cleared], planned)) == 1
    assert len(faults_of_alarms([silent, cleared, Alarm(fleet.name_of(2), SILENT, 5, 5 + SILENT_MS)], planned)) == 1


def test_lost_and_doubled_rows_are_found() -> None:
    assert faults_of_grains(10, {"minutes": (4, 4, 10)}) == []
    assert faults_of_grains(10, {"minutes": (5, 4, 10)}) == ["minutes: 5 rows for 4 pairs of device and window"]
    assert faults_of_grains(10, {"fives": (4, 4, 9)}) == ["fives: 9 readings, but the devices sent 10 good ones"]
    assert faults_of_twins({"a": 1}, {"a": 1}) == []
    assert len(faults_of_twins({"a": 1}, {"a": 2, "b": 1})) == 2
    assert faults_of_letters({"x": 1}, 1) == []
    assert faults_of_letters({}, 1) == ["0 dead letters, planted 1"]
