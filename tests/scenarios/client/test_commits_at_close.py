"""Commits in flight when a consumer without a subscription closes, over real connections."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, TopicPartition
from headrace.errors import CoordinatorLoadInProgressError, RequestTimedOutError
from headrace_protos.v1 import groups_pb2
from tests.worlds.coordinators_standin import FakeTransactions
from tests.worlds.waiting import check_in_time, until, until_async

TP = TopicPartition("t", 0)
KEY = ("g", "t", 0)
SLOW_S = 0.3


class FakeGroups(FakeTransactions):
    """A coordinator that also commits offsets outside of transactions."""

    def CommitOffsets(self, request: Any, context: Any) -> Any:
        def work() -> Any:
            answer = groups_pb2.CommitOffsetsResponse()
            with self.lock:
                for each in request.offsets:
                    self.offsets[request.group_id, each.topic, each.partition] = each.offset
                    answer.results.add(topic=each.topic, partition=each.partition)
            return answer

        return self._call("CommitOffsets", request, work, context)


@pytest.fixture
def groups(fake: Any) -> Iterator[FakeGroups]:
    made = FakeGroups(fake)
    yield made
    made.stop()


Outcome = tuple[bool, BaseException | None, list[BaseException | None]]


def commit_and_close(
    face: str, fake: Any, timeout: float, is_time_to_close: Callable[[], bool] = lambda: True
) -> Outcome:
    """Commit without waiting, then close when ``is_time_to_close()``. Returns whether the commit had ended when close
    returned, the commit's error, and what its callback received."""
    where = {"bootstrap_servers": fake.bootstrap_servers, "group_id": "g", "retry_backoff_ms": 5}
    reported: list[BaseException | None] = []

    def note(offsets: Any, error: BaseException | None) -> None:
        reported.append(error)

    if face == "blocking":
        consumer = Consumer(**where)  # type: ignore[arg-type]
        consumer.assign([TP])
        future = consumer.commit_async({TP: 7}, note)
        until(is_time_to_close)
        consumer.close(timeout)
        return future.done(), future.exception(5), reported

    async def scenario() -> Outcome:
        consumer = AsyncConsumer(**where)  # type: ignore[arg-type]
        consumer.assign([TP])
        future = consumer.commit_async({TP: 7}, note)
        await until_async(is_time_to_close)
        await consumer.close(timeout)
        has_ended = future.done()
        (error,) = await asyncio.gather(future, return_exceptions=True)
        await asyncio.sleep(0)
        return has_ended, error, reported

    return asyncio.run(scenario())


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_close_completes_the_commits_in_flight(fake: Any, groups: FakeGroups, face: str) -> None:
    never = threading.Event()
    groups.on_call = lambda method, request: never.wait(SLOW_S) and None if method == "CommitOffsets" else None
    assert commit_and_close(face, fake, 30.0) == (True, None, [None])
    assert groups.offsets[KEY] == 7


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_close_waits_no_longer_than_its_timeout(fake: Any, groups: FakeGroups, face: str) -> None:
    let = threading.Event()
    groups.on_call = lambda method, request: let.wait(30) and None if method == "CommitOffsets" else None
    begun = time.monotonic()
    try:
        has_ended, error, reported = commit_and_close(face, fake, 0.5, lambda: bool(groups.asked("CommitOffsets")))
    finally:
        let.set()
    assert has_ended
    assert isinstance(error, RequestTimedOutError)
    assert "may or may not have taken effect" in error.message
    assert reported == [error]
    check_in_time(begun, 10)


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
def test_closed_consumer_does_not_retry_its_commits(fake: Any, groups: FakeGroups, face: str) -> None:
    refusal = CoordinatorLoadInProgressError("an error set by the test")
    groups.on_call = lambda method, request: refusal if method == "CommitOffsets" else None
    _, error, _ = commit_and_close(face, fake, 0.3, lambda: len(groups.asked("CommitOffsets")) > 1)
    assert isinstance(error, RequestTimedOutError)
    again = threading.Event()
    groups.on_call = lambda method, request: again.set() if method == "CommitOffsets" else None

    def is_quiet() -> bool:
        """The last request may still be on its way to a thread of the server."""
        again.clear()
        return not again.wait(0.1)

    until(is_quiet)
    assert not again.wait(0.5)
