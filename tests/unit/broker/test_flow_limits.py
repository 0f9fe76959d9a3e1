"""Bytes in flight and deadlines (headrace_broker.flow)."""

from __future__ import annotations

import asyncio

from headrace_broker.flow import TURN, Deadlines, Expiring, Flow, StreamFlow
from headrace_core.testing.clock import ManualClock
from tests.worlds.waiting import in_loop


class Stream:
    """A stream whose ``StreamFlow`` takes requests."""

    def __init__(self, flow: Flow) -> None:
        self.reading = True
        self.flow = StreamFlow(flow, None, self.pause, self.resume, bytes_max=1_000)

    def take(self, size: int) -> None:
        self.flow.admit(size, 0, 0.0)

    def pause(self) -> None:
        self.reading = False

    def resume(self) -> None:
        self.reading = True


def streams(count: int) -> tuple[Flow, list[Stream]]:
    loop = asyncio.get_running_loop()
    flow = Flow(ManualClock(), loop, 100)
    return flow, [Stream(flow) for _ in range(count)]


@in_loop
async def test_a_stream_is_paused_above_the_limit_and_resumed_below_it() -> None:
    flow, (stream,) = streams(1)
    stream.take(90)
    assert stream.reading
    stream.take(20)
    assert not stream.reading
    flow.free(9)
    assert not stream.reading
    flow.free(1)
    assert stream.reading


@in_loop
async def test_streams_resume_in_the_order_in_which_they_were_paused() -> None:
    flow, (first, second) = streams(2)
    first.take(150)
    second.take(150)
    flow.free(200)
    assert (first.reading, second.reading) == (True, False)
    flow.free(100)
    assert second.reading


@in_loop
async def test_a_stream_that_is_gone_is_not_resumed() -> None:
    flow, (stream,) = streams(1)
    stream.take(150)
    stream.flow.close()
    flow.free(150)
    assert not stream.reading
    assert flow.in_memory == 0


@in_loop
async def test_a_stream_that_brings_many_requests_at_once_waits_once() -> None:
    """A message of many producers' requests once put its stream into the queue as often as it had requests."""
    flow, (many, other, gone) = streams(3)
    for _ in range(5):
        many.take(30)
        gone.take(10)
    other.take(10)
    gone.flow.close()
    flow.free(130)
    assert many.reading
    many.flow.hold(TURN)
    flow.free(10)
    assert (many.reading, other.reading, gone.reading) == (False, True, False)


@in_loop
async def test_a_stream_is_read_when_its_last_reason_is_over() -> None:
    flow, (stream,) = streams(1)
    stream.take(150)
    stream.flow.hold(TURN)
    flow.free(150)
    assert not stream.reading
    stream.flow.release(TURN)
    assert stream.reading


@in_loop
async def test_a_stream_with_too_many_unanswered_bytes_waits_for_its_own_answers() -> None:
    flow, (stream, other) = streams(2)
    flow.in_memory_max = 10_000
    stream.take(600)
    stream.take(600)
    assert (stream.reading, other.reading) == (False, True)
    flow.free(1_200)
    assert not stream.reading, "the requests are in the log, and unanswered"
    stream.flow.done(600, 0)
    assert stream.reading


@in_loop
async def test_who_waits_for_the_last_request_is_told_once() -> None:
    flow, (stream,) = streams(1)
    told: list[int] = []
    flow.drained = lambda: told.append(flow.kept)
    stream.flow.admit(1, 7, 0.0)
    stream.flow.admit(1, 5, 0.0)
    stream.flow.done(1, 7)
    assert told == []
    stream.flow.done(1, 5)
    stream.flow.admit(1, 7, 0.0)
    stream.flow.done(1, 7)
    assert told == [0]


class Waiting(Expiring):
    def __init__(self) -> None:
        self.deadline_ms = 0.0
        self.expired = 0

    def expire(self) -> None:
        self.expired += 1


class FakeLoop:
    """Replaces call_later. The test decides when a callback runs."""

    def __init__(self) -> None:
        self.timers: list[FakeTimer] = []

    def call_later(self, delay_s, callback):
        timer = FakeTimer(callback)
        self.timers.append(timer)
        return timer

    def fire(self) -> None:
        due, self.timers = [timer for timer in self.timers if not timer.cancelled], []
        for timer in due:
            timer.callback()


class FakeTimer:
    def __init__(self, callback) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


def deadlines() -> tuple[Deadlines, ManualClock, FakeLoop]:
    clock, loop = ManualClock(), FakeLoop()
    return Deadlines(clock, loop), clock, loop  # type: ignore[arg-type]


def test_what_is_overdue_expires_once_and_what_was_discarded_never():
    it, clock, loop = deadlines()
    late, done, early = Waiting(), Waiting(), Waiting()
    it.add(late, 1000)
    it.add(done, 1000)
    it.add(early, 5000)
    it.discard(done, None)
    clock.advance(1000)
    loop.fire()
    loop.fire()
    assert (late.expired, done.expired, early.expired) == (1, 0, 0)
    assert len(it) == 1


def test_an_entry_whose_expiry_ends_another_one_does_not_stop_the_rest():
    """A fixed fault: an answer that was late released an error that waited for it and was late, too. The tick then
    failed, so requests of other streams never timed out."""
    it, clock, loop = deadlines()
    ended, last, early = Waiting(), Waiting(), Waiting()

    class Ending(Waiting):
        def expire(self) -> None:
            super().expire()
            it.discard(ended, None)

    first = Ending()
    for each in (first, ended, last):
        it.add(each, 1000)
    it.add(early, 5000)
    clock.advance(1000)
    loop.fire()
    assert [each.expired for each in (first, ended, last, early)] == [1, 0, 1, 0]
    assert len(loop.timers) == 1, "the later deadline is still looked at"


def test_there_is_no_timer_while_nothing_waits():
    it, clock, loop = deadlines()
    waiting = Waiting()
    it.add(waiting, 1000)
    it.add(Waiting(), 1000)
    assert len(loop.timers) == 1
    clock.advance(1000)
    loop.fire()
    assert loop.timers == []


def test_closing_forgets_everything():
    it, clock, loop = deadlines()
    waiting = Waiting()
    it.add(waiting, 10)
    it.close()
    clock.advance(1000)
    loop.fire()
    assert waiting.expired == 0
