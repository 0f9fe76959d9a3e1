"""The answer to DeleteRecords, when the leader resigns or the low watermark falls again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_broker.handlers.offsets import _DELETING_MAX, OffsetsService, _deleted_by_all
from headrace_broker.partition import PartitionLeader
from headrace_core.errors import NotLeaderOrFollowerError, RequestTimedOutError
from headrace_core.types import TopicPartition
from headrace_protos.v1 import offsets_pb2
from tests.worlds.this_process import is_error_freed
from tests.worlds.waiting import in_loop, until_async


class ResigningLeader:
    def when_deleted(self, offset: int, done: Any) -> None:
        asyncio.get_running_loop().call_soon(done, NotLeaderOrFollowerError("moved"))

    def forget_deletion(self, done: Any) -> None:
        pass


class LeaderWithALaterFollower:
    """A follower that still has the deleted records joins right after the low watermark was reached."""

    low_watermark = 5

    def when_deleted(self, offset: int, done: Any) -> None:
        done(None)
        self.low_watermark = 3

    def forget_deletion(self, done: Any) -> None:
        pass


def test_the_answer_has_the_low_watermark_that_the_deletion_reached() -> None:
    """The simulator found the lower low watermark: brokers, seed 9488."""
    assert asyncio.run(_deleted_by_all(cast(PartitionLeader, LeaderWithALaterFollower()), 5, 30)) == 5


def test_no_failed_deletion_waits_for_the_garbage_collector() -> None:
    leader = cast(PartitionLeader, ResigningLeader())
    assert asyncio.run(is_error_freed(lambda: _deleted_by_all(leader, 5, 30)))


class Replica:
    """``outcome``: what the deletion raises; None: it waits for ever."""

    leader = SimpleNamespace(high_watermark=9, leader_epoch=1)

    def __init__(self, partition: TopicPartition, outcome: Exception | None) -> None:
        self.partition = partition
        self.outcome = outcome

    async def delete_records(self, before_offset: int) -> None:
        if self.outcome is not None:
            raise self.outcome
        await asyncio.Event().wait()


def service_of(outcome: Callable[[TopicPartition], Exception | None]) -> OffsetsService:
    broker: Any = SimpleNamespace(
        partitions=SimpleNamespace(
            leader=lambda each: Replica(each, outcome(each)), for_clients=lambda _, error: error
        ),
        limits=SimpleNamespace(request_timeout_ms=1_000),
        clock=SimpleNamespace(monotonic_ms=lambda: time.monotonic() * 1_000),
    )
    return OffsetsService(broker)


def delete(service: OffsetsService, count: int, timeout_ms: int) -> Any:
    named = [{"topic": "orders", "partition": each, "before_offset": 5} for each in range(count)]
    return service.DeleteRecords(offsets_pb2.DeleteRecordsRequest(partitions=named, timeout_ms=timeout_ms), None)


@in_loop
async def test_a_request_times_out_while_those_of_others_wait_for_a_slow_disk() -> None:
    """It waited as long as the others, whose timeouts their clients choose."""
    service = service_of(lambda _: None)
    others = asyncio.create_task(delete(service, _DELETING_MAX, 600_000))
    await until_async(service._deleting.locked)
    answer = await asyncio.wait_for(delete(service, 2, 10), 10)
    assert [each.error.code for each in answer.results] == [RequestTimedOutError.number] * 2
    others.cancel()
    await asyncio.wait([others])
    assert service._deleting._value == _DELETING_MAX


@in_loop
async def test_deletions_that_never_began_leave_their_places() -> None:
    """After an unexpected error in a few requests, the broker began no deletion any more."""
    moved, bug = NotLeaderOrFollowerError("moved"), ValueError("a bug")
    service = service_of(lambda each: bug if each.partition % 7 == 3 else moved)
    for _ in range(5):
        with pytest.raises(ExceptionGroup):
            await delete(service, 3 * _DELETING_MAX, 1_000)
    assert service._deleting._value == _DELETING_MAX
