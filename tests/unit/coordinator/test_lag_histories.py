"""Twenty histories of a partition's commits, and the verdict that Burrow's documented rules give each.

Source of the rules: Burrow's wiki, "Consumer Lag Evaluation Rules" (the first matching rule decides). A history has the
offsets and lags of ten commits, a minute apart, and what is known now.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from headrace_coordinator.offsets.judgement import Commit, CommitWindow, judge
from headrace_coordinator.offsets.messages import LagStatus
from headrace_coordinator.offsets.watermarks import Waiting
from headrace_core.lag import verdict

MINUTE_MS = 60_000
UP = tuple(range(100, 1_100, 100))  #: The offset advances at each commit.
SAME = (500,) * 10
GROWS = tuple(range(10, 110, 10))
SHRINKS = tuple(reversed(GROWS))
FLAT = (50,) * 10


class History(NamedTuple):
    """``lag``: now; ``silence_min``: minutes since the last commit; ``waited_min``: how long the first unread record
    has been waiting."""

    rule: str
    offsets: tuple[int, ...]
    lags: tuple[int, ...]
    expected: LagStatus
    lag: int = 100
    silence_min: float = 1
    waited_min: float = 60


OK, WARN, STOP, STALL, REWIND = LagStatus.OK, LagStatus.WARN, LagStatus.STOP, LagStatus.STALL, LagStatus.REWIND
HISTORIES = (
    History("no lag now", UP, GROWS, OK, lag=0),
    History("no lag now, and silent for a day", UP, GROWS, OK, lag=0, silence_min=1_440),
    History("no lag now, and the offset stands still", SAME, FLAT, OK, lag=0),
    History("no lag now, and the offset went back", (*UP[:9], 50), FLAT, OK, lag=0),
    History("silent for longer than the window", UP, GROWS, STOP, silence_min=10),
    History("silent for longer than the window, the lag shrank before", UP, SHRINKS, STOP, silence_min=10),
    History("silent for longer than the window, the lag was zero before", UP, (0,) * 10, STOP, silence_min=10),
    History("silent for longer than the window, the offset stood still", SAME, FLAT, STOP, silence_min=10),
    History("silent, but no longer than the window", UP, SHRINKS, OK, silence_min=9),
    History("silent because there was nothing to read", UP, (0,) * 10, OK, lag=1, silence_min=60, waited_min=0.1),
    History("the lag was zero once", UP, (*GROWS[:4], 0, *GROWS[5:]), OK),
    History("the lag was zero once, and the offset stands still since", SAME, (0, *FLAT[1:]), OK),
    History("the lag was zero once, and the offset went back", (*UP[:9], 50), (0, *FLAT[1:]), OK),
    History("the offset went back, in the middle", (*UP[:5], 50, *UP[6:]), FLAT, REWIND),
    History("the offset went back, in the end", (*UP[:9], 50), GROWS, REWIND),
    History("the offset stands still while the lag grows", SAME, GROWS, STALL),
    History("the offset stands still at an even lag", SAME, FLAT, STALL),
    History("the offset advances, and the lag grows", UP, GROWS, WARN),
    History("the offset advances, and the lag never shrinks", UP, FLAT, WARN),
    History("the offset advances, and the lag shrank once", UP, (*GROWS[:5], 1, *GROWS[6:]), OK),
)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda each: each.rule)
def test_burrows_verdict(history: History) -> None:
    window = CommitWindow()
    for minute, (offset, lag) in enumerate(zip(history.offsets, history.lags, strict=True)):
        window.note(Commit(offset, minute * MINUTE_MS, lag))
    now_ms = round((9 + history.silence_min) * MINUTE_MS)
    waiting = Waiting(round(history.waited_min * MINUTE_MS), False)
    found = judge(window, lag=history.lag, waiting=waiting, now_ms=now_ms)
    assert found is history.expected
    # With a full window, a lag and members, the verdict of the tools and metrics is the coordinator's.
    shown = verdict(found.value, lag=history.lag, complete=window.complete, is_empty=False)
    assert shown == found.value


def test_there_are_twenty_histories_of_every_verdict() -> None:
    assert len(HISTORIES) == 20
    assert {each.expected for each in HISTORIES} == {OK, WARN, STOP, STALL, REWIND}
