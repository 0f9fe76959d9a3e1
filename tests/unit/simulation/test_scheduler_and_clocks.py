"""Virtual time: events happen in order, and clocks are as wrong as configured."""

from __future__ import annotations

import random

import pytest

from headrace_core.testing.clock import EPOCH_MS, NodeClock
from headrace_core.testing.scheduler import Scheduler


def test_actions_happen_in_the_order_of_their_times_and_equal_times_in_the_order_of_their_planning() -> None:
    scheduler, ran = Scheduler(), []
    for name, at_ms in (("c", 5.0), ("a", 1.0), ("d", 5.0), ("b", 1.0)):
        scheduler.at(at_ms, ran.append, name)
    scheduler.run(10.0)
    assert ran == ["a", "b", "c", "d"]
    assert (scheduler.now_ms, scheduler.events) == (10.0, 4)


def test_what_is_planned_for_the_past_happens_now_behind_what_is_due() -> None:
    scheduler, ran = Scheduler(), []
    scheduler.at(3.0, lambda: (scheduler.at(1.0, ran.append, "late"), ran.append("first")))
    scheduler.at(3.0, ran.append, "second")
    scheduler.run(3.0)
    assert ran == ["first", "second", "late"]


def test_a_cancelled_action_does_not_happen_and_is_no_event() -> None:
    scheduler, ran = Scheduler(), []
    planned = scheduler.after(1.0, ran.append, "x")
    planned.cancel()
    planned.cancel()
    assert scheduler.next_ms is None
    scheduler.run(2.0)
    assert (ran, scheduler.events) == ([], 0)


def test_a_run_ends_at_its_time_and_goes_on_later() -> None:
    scheduler, seen = Scheduler(), []

    def again() -> None:
        seen.append(scheduler.now_ms)
        scheduler.after(10.0, again)

    scheduler.after(10.0, again)
    scheduler.run(25.0, after_each=lambda: None)
    assert (seen, scheduler.now_ms) == ([10.0, 20.0], 25.0)
    scheduler.run(30.0)
    assert seen == [10.0, 20.0, 30.0]


def test_a_drifting_clock_reads_its_own_time_and_says_how_long_that_takes() -> None:
    scheduler = Scheduler()
    clock = NodeClock(scheduler, started_ms=500.0)
    scheduler.run(100.0)
    assert clock.monotonic_ms() == 600.0
    clock.drift(0.5)
    scheduler.run(200.0)
    assert clock.monotonic_ms() == 650.0
    assert clock.due_in_ms(700.0) == 100.0
    assert clock.due_in_ms(1.0) == 0.0
    with pytest.raises(ValueError, match="rate of a clock"):
        clock.drift(0.0)


def test_wall_time_jumps_both_ways_and_the_monotonic_reading_never_goes_back() -> None:
    scheduler = Scheduler()
    clock = NodeClock(scheduler)
    scheduler.run(10.0)
    clock.jump(-3_600_000)
    assert (clock.now_ms(), clock.monotonic_ms()) == (EPOCH_MS + 10 - 3_600_000, 10.0)
    clock.leap(2_000.0)
    assert clock.monotonic_ms() == 2_010.0
    with pytest.raises(ValueError, match="back"):
        clock.leap(-1.0)


def test_the_monotonic_reading_grows_through_any_faults(rng: random.Random) -> None:
    scheduler = Scheduler()
    clock = NodeClock(scheduler)
    before = clock.monotonic_ms()
    for _ in range(300):
        scheduler.run(scheduler.now_ms + rng.uniform(0.0, 10.0))
        rng.choice(
            [
                lambda: clock.drift(rng.uniform(0.1, 3.0)),
                lambda: clock.jump(rng.uniform(-1e6, 1e6)),
                lambda: clock.leap(rng.uniform(0.0, 1e3)),
            ]
        )()
        now = clock.monotonic_ms()
        assert now >= before
        before = now
