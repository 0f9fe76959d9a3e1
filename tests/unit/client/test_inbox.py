"""The inbox of a consumer: how long the caller's thread sleeps."""

from __future__ import annotations

import threading
import time

from headrace.callbacks import SIGNALS_S
from headrace.consumer.inbox import Inbox


def test_a_wait_without_end_sleeps_in_steps_so_that_no_signal_waits_for_ever() -> None:
    sleeps: list[float | None] = []

    class Sleeper(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            sleeps.append(timeout)
            if len(sleeps) == 3:
                inbox.alarm = True
                inbox.notify()
            return self.is_set()

    inbox = Inbox(1024, lambda: None)
    inbox._sleeper = Sleeper()
    assert inbox.wait(float("inf"))
    assert sleeps == [SIGNALS_S] * 3


def test_a_wait_with_a_deadline_ends_at_the_deadline_or_when_there_is_news() -> None:
    sleeps: list[float | None] = []

    class Sleeper(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            sleeps.append(timeout)
            return super().wait(timeout)

    inbox = Inbox(1024, lambda: None)
    inbox._sleeper = Sleeper()
    assert not inbox.wait(0.0)
    sleeps.clear()
    begun = time.monotonic()
    assert not inbox.wait(begun + 0.05)
    assert time.monotonic() - begun >= 0.05
    assert sleeps
    assert all(each is not None and each <= 0.05 < SIGNALS_S for each in sleeps)
    waker = threading.Timer(0.05, inbox.notify)
    waker.start()
    assert not inbox.wait(float("inf"))  # it returns to its caller, which looks at what changed
    waker.join()
