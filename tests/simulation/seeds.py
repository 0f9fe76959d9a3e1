"""Schedules that have found a bug; every run of the tests runs them again. A seed gives the same schedule only while
plans are drawn in the same way. Each seed therefore names a test that repeats the events step by step, and that test
guards against the bug permanently. When the bugs were found, logs did not roll. For this reason ``plan`` returns the
seed's schedule with segments that hold a whole log.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from headrace_controller.storage import SEGMENT_BYTES
from tests.simulation.sim_plan import Plan, make_plan


class Found(NamedTuple):
    seed: int
    what: str
    test: str

    @property
    def plan(self) -> Plan:
        return replace(make_plan(self.seed), segment_bytes=SEGMENT_BYTES)


FOUND: tuple[Found, ...] = (
    Found(
        5,
        "a leader that was asked to hand over before it was ready, or while a broker's time was up, ended",
        "tests/unit/controller/test_controller_found_by_simulation.py",
    ),
    Found(
        30112,
        "a move of a partition without a leader got one by being begun, and its brokers copied more than they may",
        "this one: its history of brokers ends with it",
    ),
    Found(
        2305,
        "old answers of its followers, which came a second time, kept a leader that nobody could reach",
        "tests/unit/controller/test_raft_traps.py",
    ),
    Found(
        55,
        "a controller that came back with a long log began a snapshot of nothing, and ended",
        "tests/unit/controller/test_controller_found_by_simulation.py",
    ),
)
