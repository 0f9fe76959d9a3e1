"""A machine is suspended and resumes: its timers are late, and its lease clock is ahead of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headrace.consumer.driving import drive_async
from headrace.consumer.inbox import Slice
from headrace_core import clock
from headrace_core.clock import SystemClock, boottime_s
from headrace_core.records import RecordIterator
from tests.unit.client.test_group_consumer import T0, Make, joined, make, parties, run  # noqa: F401 - fixtures


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Suspend the machine for this number of seconds: CLOCK_BOOTTIME advances, CLOCK_MONOTONIC and timers do not."""
    real, slept_ns = time.clock_gettime_ns, 0

    def read(which: int) -> int:
        return real(which) + (slept_ns if which == time.CLOCK_BOOTTIME else 0)

    def suspend(seconds: float) -> None:
        nonlocal slept_ns
        slept_ns += int(seconds * 1e9)

    monkeypatch.setattr(time, "clock_gettime_ns", read)
    return suspend


def test_the_clock_of_leases_counts_a_suspension(sleep: Callable[[float], None]) -> None:
    system = SystemClock()
    before_ms, before_s, timer_s = system.monotonic_ms(), boottime_s(), time.monotonic()
    sleep(3_600)
    assert system.monotonic_ms() - before_ms >= 3_600_000
    assert boottime_s() - before_s >= 3_600
    assert time.monotonic() - timer_s < 3_600


def test_where_there_is_no_such_clock_the_monotonic_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_BOOTTIME", time.CLOCK_MONOTONIC)
    assert abs(SystemClock().monotonic_ms() / 1_000 - time.monotonic()) < 60


def test_a_member_hands_out_nothing_after_a_suspension_although_its_timers_are_late(
    make: Make,  # noqa: F811
    sleep: Callable[[float], None],
) -> None:
    async def scenario() -> None:
        party = await joined(make, 0, enable_auto_commit=False)
        core, member = party.core, party.group._membership.member
        begun = RecordIterator([b""], topic="t", partition=0, start_offset=10, check_crc=True)
        core.reading.current = (
            Slice(core.reading.partitions[T0], 10, 11),
            begun,
        )
        assert core.reading.next_iterator() is begun
        sleep(member.session_s + 1)
        assert not member.is_suspended, "no timer has ticked yet"
        assert core.reading.next_iterator() is None
        assert core.reading.take_arrow(1 << 20, None, False) == []
        await party.until(lambda: core.reading.next_iterator() is begun)  # once the coordinator has answered
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)
