"""The answer to DeleteRecords, when the leader resigns or the low watermark falls again."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

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


class ReplicaOnASlowDisk:
    leader = SimpleNamespace(high_watermark=9, leader_epoch=1)

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition

    async def delete_records(self, before_offset: int) -> None:
        await asyncio.Event().wait()


@in_loop
async def test_a_request_times_out_while_those_of_others_wait_for_a_slow_disk() -> None:
    """It waited as long as the others, whose timeouts their clients choose."""
    broker: Any = SimpleNamespace(
        partitions=SimpleNamespace(leader=ReplicaOnASlowDisk, for_clients=lambda _, error: error),
        limits=SimpleNamespace(request_timeout_ms=1_000),
        clock=SimpleNamespace(monotonic_ms=lambda: time.monotonic() * 1_000),
    )
    service = OffsetsService(broker)

    def delete(count: int, timeout_ms: int) -> Any:
        named = [{"topic": "orders", "partition": each, "before_offset": 5} for each in range(count)]
        return service.DeleteRecords(offsets_pb2.DeleteRecordsRequest(partitions=named, timeout_ms=timeout_ms), None)

    others = asyncio.create_task(delete(_DELETING_MAX, 600_000))
    await until_async(service._deleting.locked)
    answer = await asyncio.wait_for(delete(2, 10), 10)
    assert [each.error.code for each in answer.results] == [RequestTimedOutError.number] * 2
    others.cancel()
    await asyncio.wait([others])
    assert service._deleting._value == _DELETING_MAX
