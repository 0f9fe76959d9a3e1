"""A blocking call without a time limit sleeps in steps: a signal between two looks waits for one step, and gevent takes
no step for a deadlock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.engine import io_thread
from headrace.engine.io_thread import IoThread


@pytest.fixture
def io(monkeypatch: pytest.MonkeyPatch) -> Iterator[IoThread]:
    monkeypatch.setattr(io_thread, "SIGNALS_S", 0.001)
    made = IoThread()
    yield made
    made.stop()


async def later(steps: int, outcome: Any) -> Any:
    for _ in range(steps):
        await asyncio.sleep(0.002)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


@pytest.mark.parametrize("steps", [0, 5])
def test_the_result_comes_after_any_number_of_steps(io: IoThread, steps: int) -> None:
    assert io.run(later(steps, "found")) == "found"


@pytest.mark.parametrize("steps", [0, 5])
def test_a_time_out_of_the_work_itself_is_its_result(io: IoThread, steps: int) -> None:
    with pytest.raises(TimeoutError, match="of the work"):
        io.run(later(steps, TimeoutError("of the work")))


def test_the_caller_s_own_limit_still_holds(io: IoThread) -> None:
    with pytest.raises(TimeoutError):
        io.run(later(10_000, None), timeout=0.005)
