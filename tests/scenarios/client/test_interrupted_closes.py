"""A producer's close that is interrupted: it shuts down anyway, and a repeated close completes it."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import AsyncProducer, Producer
from headrace.errors import ClosedError, UnknownOutcomeError
from tests.worlds.waiting import until, until_async

LIMIT_S = 30.0


class Coordinator:
    """Holds the answers to EndTransaction until ``let`` is set."""

    def __init__(self, transactions: Any) -> None:
        self.held, self.let = threading.Event(), threading.Event()
        transactions.on_call = self._hold

    def _hold(self, method: str, request: Any) -> None:
        if method == "EndTransaction":
            self.held.set()
            self.let.wait(LIMIT_S)


@pytest.fixture
def silent(transactions: Any) -> Iterator[Coordinator]:
    """A coordinator that does not answer the abort."""
    made = Coordinator(transactions)
    yield made
    made.let.set()


class Remains:
    """The background tasks and streams of a producer, which a closed producer lacks."""

    def __init__(self, out: Producer | AsyncProducer) -> None:
        self.core = out._core
        self.tasks = list(self.core.engine._keepers)
        assert self.tasks

    def assert_none(self) -> None:
        assert all(task.done() for task in self.tasks)
        assert not self.core.engine._keepers
        assert not self.core.sender.links
        assert not self.core.accumulator.snapshot_unfinished()
        assert self.core.transactions is None


def interrupt(when: threading.Event) -> threading.Thread:
    """Press Ctrl-C in the main thread after ``when``, while the main thread waits in ``Producer.close``. (An earlier
    SIGINT would end the run of the tests.)"""
    main = threading.main_thread().ident
    assert main is not None

    def waits_in_close() -> bool:
        frame = sys._current_frames()[main]
        is_waiting = frame.f_globals["__name__"] == "threading"
        callers = []
        while frame.f_back is not None:
            frame = frame.f_back
            callers.append(frame.f_code)
        return is_waiting and Producer.close.__code__ in callers

    def press() -> None:
        assert when.wait(LIMIT_S)
        until(waits_in_close)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's handler for SIGINT: a shell that starts the tests in the background ignores the signal."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("Ctrl-C interrupts only the main thread")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_cancelled_close_in_an_abort_shuts_down(fake: Any, silent: Coordinator) -> None:
    async def scenario() -> None:
        out = AsyncProducer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments")
        await out.begin_transaction()
        await (await out.send("t", b"v"))
        remains = Remains(out)
        closing = asyncio.create_task(out.close())
        await until_async(silent.held.is_set)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        remains.assert_none()
        await asyncio.wait_for(out.close(), LIMIT_S)
        with pytest.raises(ClosedError):
            await out.send("t", b"v")

    asyncio.run(scenario())


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_in_an_abort_shuts_down(fake: Any, silent: Coordinator) -> None:
    out = Producer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments")
    out.begin_transaction()
    out.send("t", b"v").result(LIMIT_S)
    remains = Remains(out)
    pressing = interrupt(silent.held)
    with pytest.raises(KeyboardInterrupt):
        out.close()
    pressing.join()
    remains.assert_none()
    out.close()


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_in_a_flush_fails_the_records_and_shuts_down(fake: Any) -> None:
    fake.hold_answers(True)
    out = Producer(bootstrap_servers=fake.bootstrap_servers)
    future = out.send("t", b"v")
    until(lambda: fake.produced)
    remains, begun = Remains(out), threading.Event()
    pressing = interrupt(begun)
    begun.set()
    with pytest.warns(RuntimeWarning, match="1 record unacknowledged"), pytest.raises(KeyboardInterrupt):
        out.close()
    pressing.join()
    assert isinstance(future.exception(0), UnknownOutcomeError)
    remains.assert_none()
    out.close()


def test_warning_as_an_error_does_not_prevent_the_shutdown(fake: Any) -> None:
    fake.hold_answers(True)
    out = Producer(bootstrap_servers=fake.bootstrap_servers)
    future = out.send("t", b"v")
    until(lambda: fake.produced)
    remains = Remains(out)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning, match="1 record unacknowledged"):
            out.close(0.05)
        remains.assert_none()
        out.close()
    assert isinstance(future.exception(0), UnknownOutcomeError)


def test_warning_as_an_error_does_not_prevent_the_shutdown_in_asyncio(fake: Any) -> None:
    async def scenario() -> None:
        out = AsyncProducer(bootstrap_servers=fake.bootstrap_servers)
        future = await out.send("t", b"v")
        await asyncio.to_thread(until, lambda: fake.produced)
        remains = Remains(out)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            with pytest.raises(RuntimeWarning, match="1 record unacknowledged"):
                await out.close(0.05)
            remains.assert_none()
            await out.close()
        with pytest.raises(UnknownOutcomeError):
            await future

    fake.hold_answers(True)
    asyncio.run(scenario())


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_repeated_close_completes_a_close_that_was_interrupted_before_its_first_wait(fake: Any, face: str) -> None:
    kind = Producer if face == "blocking" else AsyncProducer
    out: Any = kind(bootstrap_servers=fake.bootstrap_servers, linger_ms=60_000, delivery_timeout_ms=120_000)

    async def in_asyncio() -> Any:
        future = await out.send("t", b"v")
        out._core._begin_close()
        await asyncio.wait_for(out.close(), LIMIT_S)
        return await future

    if face == "blocking":
        future = out.send("t", b"v")
        core = out._core
        remains = Remains(out)
        core._begin_close()
        out.close()
        assert future.result(0).offset == 0
        remains.assert_none()
    else:
        assert asyncio.run(in_asyncio()).offset == 0
        assert not out._core.sender.links


def test_close_during_another_close_ends_with_it(fake: Any, silent: Coordinator) -> None:
    """The second close has a shorter timeout: it ends the first close, which must not raise an error."""
    out = Producer(bootstrap_servers=fake.bootstrap_servers, transactional_id="payments")
    out.begin_transaction()
    out.send("t", b"v").result(LIMIT_S)
    remains = Remains(out)
    errors: list[BaseException] = []

    def close() -> None:
        try:
            out.close()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    first = threading.Thread(target=close)
    first.start()
    assert silent.held.wait(LIMIT_S)
    out.close(0.1)
    first.join(LIMIT_S)
    assert not first.is_alive()
    assert errors == []
    remains.assert_none()
