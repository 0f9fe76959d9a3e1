"""Work whose duration depends on clients yields, so that other work continues."""

from __future__ import annotations

import asyncio
import time

import pytest

from headrace_broker import threads
from headrace_broker.threads import LONG_S, REST_TIMES, Rests, WorkThreads


def busy_share(lanes: int, took_s: float, seconds: float) -> float:
    """The share of one core that ``lanes`` get if they always have work of ``took_s`` (simulated time, one thread for
    each)."""
    rests, now, busy = Rests(), 0.0, 0.0
    ends: dict[int, float] = {}
    while now < seconds:
        for lane in range(lanes):
            if lane in ends:
                if ends[lane] > now:
                    continue
                rests.ended(lane, ends.pop(lane), took_s)
            if not rests.begin(lane, now):
                ends[lane] = now + took_s
                busy += took_s
        now += 0.001
    return busy / seconds


@pytest.mark.parametrize("lanes", [1, 2, 20])
def test_long_work_of_all_lanes_together_gets_a_quarter_of_a_core(lanes: int) -> None:
    share = busy_share(lanes, 8 * LONG_S, 120.0)
    first = lanes * 8 * LONG_S / 120.0  # of a lane that has not run before
    assert 0.9 / (1 + REST_TIMES) <= share <= 1.1 / (1 + REST_TIMES) + first


def test_short_work_never_waits() -> None:
    rests = Rests()
    rests.ended("long", 10.0, 1.0)
    assert rests.begin("other", 10.0) == 0
    rests.ended("other", 10.0, LONG_S / 2)
    assert rests.begin("other", 10.0) == 0
    assert rests.begin("long", 10.0) == REST_TIMES
    assert rests.begin("long", 10.0 + REST_TIMES) == 0
    rests.ended("long", 20.0, LONG_S / 2)
    assert rests.begin("long", 20.0) == 0, "short work clears a lane"


def test_work_that_rests_is_done_in_the_end_and_others_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LONG_S", 0.0)

    async def scenario() -> None:
        pool = WorkThreads(asyncio.get_running_loop())
        assert await pool.run_rested("a", lambda: 1) == 1
        pool._rests._free_s = time.monotonic() + 0.2
        second = pool.run_rested("a", lambda: 2)
        assert await pool.run_rested("b", lambda: 3) == 3
        assert not second.done()
        assert await second == 2
        pool.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_work_that_rests_when_the_broker_stops_is_cancelled() -> None:
    async def scenario() -> None:
        pool = WorkThreads(asyncio.get_running_loop())
        pool._rests.ended("a", time.monotonic(), 100.0)
        resting = pool.run_rested("a", lambda: 1)
        await asyncio.sleep(0)
        pool.close()
        with pytest.raises(asyncio.CancelledError):
            await resting

    asyncio.run(asyncio.wait_for(scenario(), 30))
