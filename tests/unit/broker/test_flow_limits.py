"""Bytes in flight and deadlines (headrace_broker.budget, headrace_broker.deadlines)."""

from __future__ import annotations

from headrace_broker.budget import ByteBudget
from headrace_broker.deadlines import Deadlines, Expiring
from headrace_core.testing.clock import ManualClock


class Stream:
    def __init__(self) -> None:
        self.reading = True

    def pause(self) -> None:
        self.reading = False

    def resume(self) -> None:
        self.reading = True


def test_a_stream_is_paused_above_the_limit_and_resumed_below_it():
    budget, stream = ByteBudget(100), Stream()
    budget.take(90, stream)
    assert stream.reading
    budget.take(20, stream)
    assert not stream.reading
    budget.give_back(9)
    assert not stream.reading
    budget.give_back(1)
    assert stream.reading


def test_streams_resume_in_the_order_in_which_they_were_paused():
    budget, first, second = ByteBudget(100), Stream(), Stream()
    budget.take(150, first)
    budget.take(150, second)
    budget.give_back(200)
    assert (first.reading, second.reading) == (True, False)
    budget.give_back(100)
    assert second.reading


def test_a_stream_that_is_gone_is_not_resumed():
    budget, stream = ByteBudget(100), Stream()
    budget.take(150, stream)
    budget.forget(stream)
    budget.give_back(150)
    assert not stream.reading
    assert budget.used == 0


def test_a_stream_that_brings_many_requests_at_once_waits_once():
    """A message of many producers' requests once put its stream into the queue as often as it had requests."""
    budget, many, other, gone = ByteBudget(100), Stream(), Stream(), Stream()
    for _ in range(5):
        budget.take(30, many)
        budget.take(10, gone)
    budget.take(10, other)
    budget.forget(gone)
    budget.give_back(130)
    assert many.reading
    many.pause()  # for another reason, which only the stream itself ends
    budget.give_back(10)
    assert (many.reading, other.reading, gone.reading) == (False, True, False)


class Waiting(Expiring):
    def __init__(self) -> None:
        super().__init__()
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
    it.discard(done)
    clock.advance(1000)
    loop.fire()
    loop.fire()
    assert (late.expired, done.expired, early.expired) == (1, 0, 0)
    assert len(it) == 1


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
