"""Burrow's rules by name (its wiki, "Consumer Lag Evaluation Rules"), and Headrace's differences."""

from __future__ import annotations

import pytest

from headrace_coordinator.offsets.judgement import (
    SILENCE_MS,
    WINDOW_COMMITS,
    Commit,
    CommitWindow,
    judge,
    worst,
)
from headrace_coordinator.offsets.messages import LagStatus
from headrace_coordinator.offsets.watermarks import Waiting

MINUTE_MS = 60_000
#: The first unread record is older than any window.
LONG = Waiting(24 * 60 * MINUTE_MS, False)


def _window(offsets: list[int], lags: list[int | None], *, apart_ms: int = MINUTE_MS) -> CommitWindow:
    window = CommitWindow()
    for number, (offset, lag) in enumerate(zip(offsets, lags, strict=True)):
        window.note(Commit(offset, number * apart_ms, lag))
    return window


def _judge(window: CommitWindow, *, lag: int = 100, waiting: Waiting = LONG, after_ms: int = MINUTE_MS) -> LagStatus:
    """``after_ms`` is the time since the last commit."""
    return judge(window, lag=lag, waiting=waiting, now_ms=window.commits[-1].timestamp_ms + after_ms)


ADVANCING = list(range(0, 1_000, 100))
GROWING: list[int | None] = [100 + 10 * number for number in range(10)]


def test_rule_0_who_has_no_lag_now_is_well_however_long_it_is_silent() -> None:
    window = _window([100] * 10, [5] * 10)
    assert _judge(window, lag=0, after_ms=1_000 * MINUTE_MS) is LagStatus.OK


def test_rule_1_stop_the_silence_is_longer_than_the_window() -> None:
    window = _window(ADVANCING, GROWING)  # the window covers nine minutes
    assert _judge(window, after_ms=9 * MINUTE_MS + 1) is LagStatus.STOP
    assert _judge(window, after_ms=9 * MINUTE_MS) is LagStatus.WARN


def test_rule_1_stop_counts_also_when_the_lag_was_zero_once() -> None:
    """A consumer died after it had caught up. Burrow's first version reported OK for ever."""
    window = _window(ADVANCING, [0] * 10)
    assert _judge(window, after_ms=10 * MINUTE_MS) is LagStatus.STOP


def test_rule_1_nobody_has_stopped_where_nothing_was_to_be_read() -> None:
    """A topic without traffic: no commit for an hour, and then a record one second ago."""
    window = _window(ADVANCING, [0] * 10)
    assert _judge(window, lag=1, waiting=Waiting(1_000, False), after_ms=60 * MINUTE_MS) is LagStatus.OK


def test_rule_2_ok_the_lag_was_zero_within_the_window() -> None:
    lags: list[int | None] = [*GROWING[:5], 0, *GROWING[6:]]
    assert _judge(_window(ADVANCING, lags)) is LagStatus.OK


def test_rule_3_rewind_the_offset_went_back() -> None:
    assert _judge(_window([*ADVANCING[:5], 50, *ADVANCING[6:]], GROWING)) is LagStatus.REWIND


def test_rule_4_stall_commits_come_and_stand_still() -> None:
    assert _judge(_window([500] * 10, GROWING)) is LagStatus.STALL
    assert _judge(_window([500] * 10, [100] * 10)) is LagStatus.STALL


def test_rule_5_warn_it_works_and_falls_behind() -> None:
    assert _judge(_window(ADVANCING, GROWING)) is LagStatus.WARN
    assert _judge(_window(ADVANCING, [100] * 10)) is LagStatus.WARN, "a lag that stays is no better"


def test_rule_6_ok_the_lag_shrank_once() -> None:
    lags: list[int | None] = [*GROWING[:5], 90, *GROWING[6:]]
    assert _judge(_window(ADVANCING, lags)) is LagStatus.OK


def test_only_the_last_ten_commits_count() -> None:
    window = _window([900, 0, *ADVANCING], [10, 0, *GROWING])
    assert len(window.commits) == WINDOW_COMMITS
    assert window.complete == 1.0
    assert _judge(window) is LagStatus.WARN, "neither the zero lag nor the step back is remembered"


def test_a_window_that_is_not_full_is_judged_but_a_pause_is_no_stop() -> None:
    window = _window([10, 20], [5, 6], apart_ms=5_000)
    assert window.complete == pytest.approx(0.2)
    assert _judge(window, after_ms=SILENCE_MS) is LagStatus.WARN
    assert _judge(window, after_ms=SILENCE_MS + 1) is LagStatus.STOP


def test_one_commit_tells_of_a_stop_only() -> None:
    window = _window([10], [None])
    assert _judge(window, after_ms=SILENCE_MS) is LagStatus.OK
    assert _judge(window, after_ms=SILENCE_MS + 1) is LagStatus.STOP


def test_who_has_watched_for_a_moment_only_does_not_call_it_a_stop() -> None:
    """A coordinator that has just taken the shard over: the commits are old, the first high watermark is a second old.
    Before the first high watermark, the consumer may have had nothing to read."""
    window = _window(ADVANCING, [None] * 10)
    assert _judge(window, waiting=Waiting(1_000, True), after_ms=60 * MINUTE_MS) is LagStatus.OK


def test_lags_that_nobody_knows_are_neither_zero_nor_growing() -> None:
    assert _judge(_window(ADVANCING, [None] * 10)) is LagStatus.OK
    assert _judge(_window(ADVANCING, [None] * 8 + [10, 11])) is LagStatus.WARN
    assert _judge(_window([5] * 10, [None] * 10)) is LagStatus.STALL


def test_commits_after_each_batch_share_places_so_that_the_window_covers_some_time() -> None:
    window = CommitWindow()
    for number in range(2_000):  # 20 seconds, 100 commits a second
        window.note(Commit(number, number * 10, 5))
    assert len(window.commits) == WINDOW_COMMITS
    first, last = window.commits[0], window.commits[-1]
    assert last == Commit(1_999, 19_990, 5)
    assert last.timestamp_ms - first.timestamp_ms > 8_000


def test_a_step_back_is_remembered_even_among_quick_commits() -> None:
    window = CommitWindow()
    for number, offset in enumerate([0, 100, 200, 150, 300, 400]):
        window.note(Commit(offset, number * 10, 5))
    assert _judge(window, after_ms=1) is LagStatus.REWIND


def test_no_commit_no_judgement() -> None:
    assert judge(CommitWindow(), lag=100, waiting=LONG, now_ms=0) is LagStatus.OK


def test_a_group_is_as_ill_as_its_worst_partition() -> None:
    ok, warn = LagStatus.OK, LagStatus.WARN
    assert worst([]) is ok
    assert worst([ok, ok]) is ok
    assert worst([ok, warn, ok]) is warn
    for error in (LagStatus.STOP, LagStatus.STALL, LagStatus.REWIND):
        assert worst([ok, warn, error]) is LagStatus.ERR
