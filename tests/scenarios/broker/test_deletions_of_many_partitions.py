"""DeleteRecords with many partitions: the event loop begins and ends only some deletions at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_broker.handlers.offsets import OffsetsService
from headrace_broker.leader_replica import LeaderReplica
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_protos.v1 import offsets_pb2
from tests.worlds.solo_broker import SoloBroker, batch
from tests.worlds.waiting import in_loop

AT_ONCE = 100


@in_loop
async def test_two_thousand_deletions_are_begun_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them got a task in one pass of the loop, which took 75 ms."""
    tasks: list[int] = []
    deleting = LeaderReplica.delete_records

    async def counted(replica: LeaderReplica, before_offset: int) -> None:
        tasks.append(len(asyncio.all_tasks()))
        await deleting(replica, before_offset)

    monkeypatch.setattr(LeaderReplica, "delete_records", counted)
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders", 3)
        await broker.topic("stock")
        for partition in range(3):
            await broker.append("orders", batch(b"a", b"b"), partition)
        request = offsets_pb2.DeleteRecordsRequest(timeout_ms=30_000)
        for number in range(2_000):
            request.partitions.add(topic="orders", partition=number % 3, before_offset=1)
        for topic, before in (("absent", 0), ("stock", 9)):
            request.partitions.add(topic=topic, before_offset=before)
        service = OffsetsService(broker.context)
        answers: list[Any] = await asyncio.gather(*(service.DeleteRecords(request, None) for _ in range(3)))
        answer = answers[0]
        assert len(tasks) == 3 * 2_001
        assert max(tasks) <= 2 * AT_ONCE + 10, "a task for each deletion, and one for its write"
        assert [each.low_watermark for each in answer.results[:2_000]] == [1] * 2_000
        assert [bool(each.error.code) for each in answer.results[2_000:]] == [True, True]
