"""A run of ``Consumer.process`` on a consumer without a cluster: Ctrl-C at bad moments, errors of polls, and handlers
that do not return."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from headrace import Consumer, OffsetAndMetadata, TopicPartition
from headrace.consumer.processing import aio, blocking
from headrace.consumer.processing.book import Book
from headrace.consumer.processing.flow import LONG_S, Flow
from headrace.consumer.processing.settings import Settings
from headrace.errors import IllegalStateError, ProcessingError, RequestTimedOutError, UnknownTopicOrPartitionError
from headrace_core.records import Record
from tests.worlds.this_process import logged
from tests.worlds.waiting import check_in_time, until

TP = TopicPartition("t", 0)
SETTINGS: dict[str, Any] = {
    "concurrency": 4,
    "order": "key",
    "retries": 0,
    "retry_backoff": 0.0,
    "retry_backoff_max": 0.0,
    "dead_letters": None,
    "commit_interval": 0.1,
}


class _Core:
    """The consumer's core, its reading, its group and its I/O thread in one. ``polls``: what each poll does."""

    def __init__(self, polls: list[Callable[[], list[Record]]], end: Callable[[], None] = lambda: None) -> None:
        self.reading = self.engine = self.io = self.group = self
        self.config = {"auto.commit.interval.ms": 5_000, "bootstrap.servers": "127.0.0.1:1"}
        self.partitions = {TP: self}
        self.paused = False
        self.plain, self.traces, self.state = True, None, "open"
        self.position = 0
        self.committed: list[int] = []
        self.polls, self.end, self.count = polls, end, 0
        self.progress: Any = None

    def in_group(self, what: str) -> _Core:
        return self

    def begin_progress(self, progress: Any, interval_s: float) -> None:
        self.progress = progress

    def end_progress(self, interval_s: float) -> None:
        self.progress = None

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.progress.positions({TP: OffsetAndMetadata(self.position)})

    def known_position(self, tp: TopicPartition) -> int:
        return self.position

    def seek(self, tp: TopicPartition, offset: int) -> None:
        self.position = offset

    def seek_to_offsets(self, offsets: Any) -> None:
        assert not offsets

    def pause(self, partitions: Any) -> None: ...

    def resume(self, partitions: Any) -> None: ...

    def fetch_work(self, partitions: Any, timeout_s: Any) -> Any:
        return {TP: OffsetAndMetadata(0)}

    def commit_work(self, offsets: Any) -> None:
        self.committed.append(offsets[TP].offset)

    def run(self, work: Any) -> Any:
        return work

    async def run_async(self, work: Any) -> Any:
        return work

    def poll(self, timeout_s: float, most: int) -> list[Record]:
        self.count += 1
        if not self.polls:
            self.end()
            return []
        return self.polls.pop(0)()

    def returns(self, count: int) -> list[Record]:
        """The next records; the position is then behind them."""
        begin, self.position = self.position, self.position + count
        return [Record("t", 0, offset, 0, b"%d" % offset, b"v") for offset in range(begin, self.position)]


def run_of(core: _Core, handler: Callable[[Record], object], **more: Any) -> blocking.Run:
    settings = Settings(**SETTINGS | more)
    return blocking.Run(core, core.poll, lambda: None, handler, settings)  # type: ignore[arg-type]


def test_ctrl_c_between_a_poll_and_the_book_loses_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    core = _Core([])
    core.polls = [lambda: core.returns(3), lambda: core.returns(5)]
    add, handled = Book.add, []

    def interrupted(book: Book, records: list[Record]) -> None:
        if len(records) == 5:
            raise KeyboardInterrupt
        add(book, records)

    monkeypatch.setattr(Book, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_of(core, lambda record: handled.append(record.offset)).run(None)
    assert core.committed[-1] <= 3, "the five records reached no handler"
    assert core.position == core.committed[-1]


def test_ctrl_c_before_a_record_has_its_thread_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    core = _Core([])
    core.polls = [lambda: core.returns(3)]
    take = Book.take

    def interrupted(book: Book, now: float) -> Any:
        if take(book, now) is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr(Book, "take", interrupted)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_of(core, lambda record: None).run(None)
    assert core.committed == [0]
    check_in_time(began, 10)


def test_a_second_ctrl_c_leaves_the_position_at_the_first_unfinished_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the program's close() commits the records as if they were handled."""
    blocked, core = threading.Event(), _Core([])
    core.polls = [lambda: core.returns(8), lambda: interrupted()]

    def interrupted() -> list[Record]:
        monkeypatch.setattr(threading.Condition, "wait_for", lambda *_: interrupted())
        raise KeyboardInterrupt

    try:
        with pytest.raises(KeyboardInterrupt):
            run_of(core, lambda record: blocked.wait(30)).run(None)
        assert core.position == 0
    finally:
        blocked.set()


def test_a_second_cancellation_leaves_the_position_at_the_first_unfinished_record() -> None:
    core = _Core([])
    core.polls = [lambda: core.returns(8)]

    async def main() -> None:
        hangs = asyncio.Event()

        async def handle(record: Record) -> None:
            while not hangs.is_set():  # it ignores the cancellation
                try:
                    await hangs.wait()
                except asyncio.CancelledError:
                    continue

        async def poll(timeout_s: float, most: int) -> list[Record]:
            await asyncio.sleep(0.001)
            return core.poll(timeout_s, most)

        async def begin_poll() -> None: ...

        run = aio.AsyncRun(core, poll, begin_poll, handle, Settings(**SETTINGS))  # type: ignore[arg-type]
        task = asyncio.create_task(run.run(None))
        while core.count < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert core.position == 0
        hangs.set()
        await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_poll_that_fails_again_and_again_is_not_a_busy_loop(caplog: pytest.LogCaptureFixture) -> None:
    stop, polled_s = threading.Event(), []
    core = _Core([], stop.set)

    def fails() -> list[Record]:
        polled_s.append(time.monotonic())
        raise RequestTimedOutError("no answer")

    core.polls = [fails] * 5
    run_of(core, lambda record: None).run(stop)
    assert all(later - earlier > 0.09 for earlier, later in pairwise(polled_s)), "a poll each 0.1 s"
    assert core.count == 6


@pytest.mark.parametrize(
    ("has_failed", "what"),
    [
        (False, "the handler of t-0 at offset 0 has not returned"),
        (True, "the dead letter of t-0 at offset 0 is not stored"),
    ],
)
def test_a_handler_that_does_not_return_is_named(caplog: pytest.LogCaptureFixture, has_failed: bool, what: str) -> None:
    core = _Core([])
    book = Book("key")
    flow = Flow(book, core, Settings(**SETTINGS))  # type: ignore[arg-type]
    book.add(core.returns(2))
    work = book.take(100.0)
    assert work is not None
    work.has_failed = has_failed
    with caplog.at_level(logging.WARNING, "headrace"):
        flow.name_long(99.0 + LONG_S)
        assert not logged(caplog)
        for after_s in (0, 1, LONG_S - 1, LONG_S):
            flow.name_long(100.0 + LONG_S + after_s)
    assert [each.getMessage() for each in logged(caplog)] == [
        f"process: {what} for {seconds} s; running: 1 handler, unfinished: 2 records" for seconds in (60, 120)
    ]


def test_handlers_that_outlast_the_end_are_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "DRAIN_S", 0.05)
    stop, begun, blocked = threading.Event(), threading.Event(), threading.Event()

    def end() -> None:
        until(lambda: begun.is_set() and run._book.unfinished == 1, "the other record is finished")
        stop.set()

    def handle(record: Record) -> None:
        if record.offset == 0:
            begun.set()
            blocked.wait(30)

    core = _Core([], end)
    core.polls = [lambda: core.returns(2)]
    run = run_of(core, handle)
    try:
        with caplog.at_level(logging.WARNING, "headrace"):
            run.run(stop)
        # (a client of another test in this process may also log)
        (line,) = [each.getMessage() for each in caplog.records if each.getMessage().startswith("process:")]
        assert "1 handler did not return within" in line
        assert "(t-0 at offset 0)" in line
        assert core.committed == [0]
    finally:
        blocked.set()


def test_no_handler_begins_after_the_end() -> None:
    """A thread of the pool has taken its record, and reaches the run only when the run has ended."""
    stop, ended, handled = threading.Event(), threading.Event(), []
    threads = []
    core = _Core([], stop.set)
    core.polls = [lambda: core.returns(1)]
    run = run_of(core, lambda record: handled.append(record.offset))

    def late(handle: Callable[[Any], None], work: Any) -> None:
        ended.wait(30)
        handle(work)

    def submit(handle: Callable[[Any], None], work: Any) -> None:
        threads.append(threading.Thread(target=late, args=(handle, work)))
        threads[-1].start()

    run._pool.submit = submit  # type: ignore[method-assign,assignment]
    run.run(stop)
    ended.set()
    for thread in threads:
        thread.join(30)
    assert len(threads) == 1
    assert handled == []
    assert (core.committed[-1], core.position) == (0, 0), "the record comes again"


def test_a_dead_letter_that_cannot_be_stored_names_the_topic_and_both_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    class _Refuses:
        def __init__(self, config: Any) -> None: ...

        def send(self, topic: str, **letter: Any) -> Any:
            raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist")

        def close(self) -> None: ...

    monkeypatch.setattr(blocking, "Producer", _Refuses)
    core = _Core([])
    core.polls = [lambda: core.returns(1)]

    def handle(record: Record) -> None:
        raise ValueError("no such customer")

    with pytest.raises(ProcessingError) as failed:
        run_of(core, handle, dead_letters="dead").run(None)
    text = str(failed.value)
    assert "cannot store the dead letter of t-0 at offset 0 in the topic 'dead': UnknownTopicOrPartitionError" in text
    assert "ValueError: no such customer" in text
    assert "set dead_letters" not in text
    assert isinstance(failed.value.__cause__, UnknownTopicOrPartitionError)
    assert core.committed == [0]


class _DeadLetters:
    """An AsyncProducer whose sends are queued at once, and acknowledged by the test."""

    def __init__(self, config: Any) -> None:
        self.queued: list[asyncio.Future[Any]] = []

    async def send(self, topic: str, **letter: Any) -> asyncio.Future[Any]:
        self.queued.append(asyncio.get_running_loop().create_future())
        return self.queued[-1]

    async def send_and_wait(self, topic: str, **letter: Any) -> Any:
        return await (await self.send(topic, **letter))

    async def close(self) -> None: ...


async def _bury_three(
    monkeypatch: pytest.MonkeyPatch,
    then: Callable[[list[asyncio.Future[Any]], asyncio.Task[None], asyncio.Event], object],
) -> _Core:
    """Process three records that fail, and call ``then`` once their dead letters are queued."""
    made = _DeadLetters({})
    monkeypatch.setattr(aio, "AsyncProducer", lambda config: made)
    core, stop = _Core([]), asyncio.Event()
    core.polls = [lambda: core.returns(3)]

    def handle(record: Record) -> None:
        raise ValueError("poison")

    async def poll(timeout_s: float, most: int) -> list[Record]:
        await asyncio.sleep(0)
        if not core.polls and len(made.queued) < 3:
            return []
        if not core.polls and not any(each.done() for each in made.queued):
            assert core.positions()[TP].offset == 0, "no dead letter is acknowledged"
            then(made.queued, task, stop)
        return core.poll(timeout_s, most)

    async def begin_poll() -> None: ...

    settings = Settings(**SETTINGS | {"dead_letters": "dead"})
    task = asyncio.create_task(aio.AsyncRun(core, poll, begin_poll, handle, settings).run(stop))  # type: ignore[arg-type]
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
    return core


def test_a_record_is_finished_when_its_dead_letter_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    def acknowledge(queued: list[asyncio.Future[Any]], run: object, stop: asyncio.Event) -> None:
        for each in queued:
            each.set_result(None)
        stop.set()

    assert asyncio.run(_bury_three(monkeypatch, acknowledge)).committed == [3]


def test_a_dead_letter_that_is_refused_after_it_was_queued_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(queued: list[asyncio.Future[Any]], *_: object) -> None:
        for each in queued:
            each.set_exception(UnknownTopicOrPartitionError("topic 'dead' was deleted"))

    with pytest.raises(ProcessingError, match="cannot store the dead letter of t-0 at offset 0 in the topic 'dead'"):
        asyncio.run(_bury_three(monkeypatch, refuse))


def test_a_run_that_is_cancelled_before_its_dead_letters_are_acknowledged_commits_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = asyncio.run(_bury_three(monkeypatch, lambda queued, run, stop: run.cancel()))
    assert (core.committed, core.position) == ([0], 0)


def test_commits_during_a_run_are_those_of_finished_records() -> None:
    """A commit of the read positions would lose the records in progress after a kill."""

    class _Progress:
        def positions(self, read: Any) -> dict[TopicPartition, OffsetAndMetadata]:
            return {TP: OffsetAndMetadata(3)}

    with Consumer(bootstrap_servers="127.0.0.1:1", group_id="g") as consumer:
        core = consumer._core
        consumer.assign([TP])
        consumer.seek(TP, 40)
        group = core.in_group("test")
        assert core.offsets_to_commit(None)[TP].offset == 40
        group.begin_progress(_Progress(), 1e6)  # type: ignore[arg-type]
        assert core.offsets_to_commit(None)[TP].offset == 3
        with pytest.raises(IllegalStateError, match=r"process\(\) runs, and commits finished records itself"):
            consumer.commit({TP: 40})
        with pytest.raises(IllegalStateError, match=r"send_offsets: process\(\) runs"):
            core.offsets_for_transaction()
        group._progress = None
        consumer.unsubscribe()
