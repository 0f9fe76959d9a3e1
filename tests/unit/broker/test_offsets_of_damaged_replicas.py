"""Just after a leader's log was found damaged, offset requests are redirected to the next leader.

A new consumer asks for the first offset. CORRUPT_LOG would be final (nothing is read until the program seeks
elsewhere); but the other replicas have every record, and one of them is about to lead.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace_broker.handlers.offsets import OffsetsService
from headrace_core.errors import CorruptLogError, HeadraceError, NotLeaderOrFollowerError
from headrace_core.types import TopicPartition
from headrace_protos.v1 import offsets_pb2

DAMAGED = TopicPartition("orders", 3)


class Partitions:
    """The partitions of a broker whose replica of ``DAMAGED`` has just been quarantined. Another broker has the whole
    log."""

    def leader(self, partition: TopicPartition) -> Any:
        raise CorruptLogError(f"{partition}: position 17: CRC")

    def for_clients(self, partition: TopicPartition, error: HeadraceError) -> HeadraceError:
        assert partition == DAMAGED
        assert isinstance(error, CorruptLogError)
        return NotLeaderOrFollowerError(f"{error.message}; another replica takes over")


def code_of(result: Any) -> int:
    return int(result.error.code)


def test_every_question_about_offsets_is_sent_on_to_the_next_leader() -> None:
    broker: Any = SimpleNamespace(
        partitions=Partitions(),
        limits=SimpleNamespace(request_timeout_ms=1_000),
        clock=SimpleNamespace(monotonic_ms=lambda: 0.0),
    )
    service = OffsetsService(broker)
    named = {"topic": DAMAGED.topic, "partition": DAMAGED.partition}

    async def ask() -> list[Any]:
        listed = await service.ListOffsets(
            offsets_pb2.ListOffsetsRequest(partitions=[{**named, "timestamp_ms": -2, "current_leader_epoch": -1}]), None
        )
        ended = await service.OffsetForLeaderEpoch(
            offsets_pb2.OffsetForLeaderEpochRequest(partitions=[{**named, "leader_epoch": 1}]), None
        )
        deleted = await service.DeleteRecords(
            offsets_pb2.DeleteRecordsRequest(partitions=[{**named, "before_offset": 5}]), None
        )
        return [answer.results[0] for answer in (listed, ended, deleted)]

    assert [code_of(each) for each in asyncio.run(ask())] == [NotLeaderOrFollowerError.number] * 3
