"""The pure part of the directory writer: the contents of a turn, and the time when a log must be flushed."""

from __future__ import annotations

from collections import deque
from typing import cast

from headrace_core.log import Append, LogConfig, PartitionLog
from headrace_core.log.turns import (
    LOOK_AHEAD,
    TURN_ENTRIES_MAX,
    ActionEntry,
    Entry,
    SyncGauge,
    Turn,
    flush_deadline_ms,
    must_flush_now,
    plan_turn,
    plan_turn_beside,
)
from headrace_core.types import FlushPolicy


class _Log:
    """Stands for a log. A turn only checks whether two logs are the same object."""


A, B = cast("PartitionLog", _Log()), cast("PartitionLog", _Log())


def append(log: PartitionLog, size: int = 10) -> tuple[PartitionLog, Append]:
    return log, Append(data=bytes(size), leader_epoch=0)


def action(log: PartitionLog | None) -> ActionEntry:
    return ActionEntry(log, lambda: None, _nobody)


def _nobody(outcome: object) -> None:
    """No caller waits."""


def plan(*entries: Entry, bytes_max: int = 1000) -> tuple[Turn, list[Entry]]:
    queue = deque(entries)
    turn = plan_turn(queue, bytes_max=bytes_max)
    return turn, list(queue)


def shape(turn: Turn) -> list[object]:
    """("write", log, its queued appends) of each write; the other steps as they are."""
    return [
        ("write", step[0], [(step[0], append) for append in step[1]]) if isinstance(step, tuple) else step
        for step in turn.steps
    ]


def test_appends_to_a_log_are_one_write() -> None:
    a1, b1, a2, b2 = append(A), append(B), append(A), append(B)
    turn, left = plan(a1, b1, a2, b2)
    assert shape(turn) == [("write", A, [a1, a2]), ("write", B, [b1, b2])]
    assert (turn.size, turn.appends, turn.has_actions, left) == (40, 4, False, [])


def test_action_on_a_log_keeps_its_place_among_that_logs_appends_only() -> None:
    a1, b1, a2, b2, on_a = append(A), append(B), append(A), append(B), action(A)
    turn, _ = plan(a1, b1, on_a, a2, b2)
    assert shape(turn) == [("write", A, [a1]), ("write", B, [b1, b2]), on_a, ("write", A, [a2])]
    assert (turn.appends, turn.has_actions) == (4, True)


def test_action_on_the_directory_keeps_its_place_among_all() -> None:
    a1, b1, a2, on_all = append(A), append(B), append(A), action(None)
    turn, _ = plan(a1, b1, on_all, a2)
    assert shape(turn) == [("write", A, [a1]), ("write", B, [b1]), on_all, ("write", A, [a2])]


def test_turn_is_bounded_but_takes_at_least_one_entry() -> None:
    first, second, third = append(A, 600), append(A, 600), append(A, 600)
    turn, left = plan(first, second, third)
    assert (turn.size, left) == (1200, [third])
    large = append(A, 5000)
    assert plan(large)[0].size == 5000


def test_turn_answers_a_bounded_number_of_requests() -> None:
    entries = [append(A, 1) if number % 2 else action(B) for number in range(TURN_ENTRIES_MAX + 1)]
    _, left = plan(*entries, bytes_max=10_000)
    assert left == entries[TURN_ENTRIES_MAX:]


def beside(*entries: Entry, busy: PartitionLog, bytes_max: int = 100) -> tuple[list[object], list[Entry]]:
    queue = deque(entries)
    turn = plan_turn_beside(queue, busy={busy}, bytes_max=bytes_max)
    return [] if turn is None else shape(turn), list(queue)


def test_small_appends_to_other_logs_go_ahead_of_those_that_wait_for_a_large_turn() -> None:
    a1, b1, a2, b2 = append(A), append(B), append(A), append(B)
    assert beside(a1, b1, a2, b2, busy=A) == ([("write", B, [b1, b2])], [a1, a2])


def test_no_append_passes_an_earlier_one_of_its_log() -> None:
    large, small = append(B, size=101), append(B)
    assert beside(large, small, busy=A) == ([], [large, small])


def test_no_append_passes_an_action() -> None:
    for log in (A, B, None):
        acts, b1, b2 = action(log), append(B), append(B)
        assert beside(b1, acts, b2, busy=A) == ([("write", B, [b1])], [acts, b2])


def test_what_does_not_fit_beside_stays_in_its_order() -> None:
    entries = [append(B, size=40) for _ in range(4)]
    assert beside(*entries, busy=A) == ([("write", B, entries[:2])], entries[2:])


def test_only_the_first_of_a_long_queue_are_looked_at() -> None:
    waiting, b1 = [append(A) for _ in range(LOOK_AHEAD)], append(B)
    assert beside(*waiting, b1, busy=A) == ([], [*waiting, b1])
    assert beside(*waiting[1:], b1, busy=A) == ([("write", B, [b1])], waiting[1:])


def test_when_records_must_be_forced_to_disk() -> None:
    os = LogConfig(flush=FlushPolicy.OS)
    assert must_flush_now(LogConfig(), 1)
    assert not must_flush_now(os, 10**9)
    assert [must_flush_now(LogConfig(flush=FlushPolicy.OS, flush_messages=5), n) for n in (4, 5)] == [False, True]
    assert flush_deadline_ms(os, 100.0) is None
    interval = LogConfig(flush=FlushPolicy.INTERVAL, flush_ms=30)
    assert flush_deadline_ms(interval, 100.0) == 130.0
    assert flush_deadline_ms(interval, None) is None


def test_gauge_rises_at_once_and_falls_slowly() -> None:
    gauge = SyncGauge()
    gauge.add(0.1)
    gauge.add(5.0)
    assert gauge.value_ms == 5.0
    seen = []
    for _ in range(40):
        gauge.add(0.1)
        seen.append(gauge.value_ms)
    assert seen == sorted(seen, reverse=True)
    assert seen[3] > 1.0
    assert seen[-1] < 1.0


def test_a_disk_is_judged_by_the_median_of_its_flushes_and_not_by_a_hiccup() -> None:
    gauge = SyncGauge()
    for _ in range(15):
        gauge.add(2.0)
    assert gauge.median_ms is None
    gauge.add(900.0)
    assert gauge.median_ms == 2.0
    for _ in range(64):
        gauge.add(150.0)
    assert gauge.median_ms == 150.0
