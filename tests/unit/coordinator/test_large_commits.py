"""Commits of as many offsets as a request may have. The event loop serves other requests during a commit, and the
limits refuse no commit that fits into a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_coordinator.handlers.classic import ClassicWaits
from headrace_coordinator.handlers.groups import GroupsService
from headrace_coordinator.handlers.transactions import TransactionsService
from headrace_coordinator.offsets.codec import CommittedOffset, encode_key, encode_value, record_bytes
from headrace_coordinator.offsets.logic import OffsetSettings
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteOffsets,
    FetchedOffset,
    FetchOffsets,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    PartitionResult,
)
from headrace_core.rpc import turns
from headrace_core.rpc.limits import COMMIT_BYTES_MAX, limit_of
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, transactions_pb2

OFFSETS = limit_of("Groups/CommitOffsets", "offsets")
RESULTS = tuple(PartitionResult("orders", number) for number in range(OFFSETS))


class Shards:
    """The only shard, which answers at once."""

    def of_group(self, group_id: str) -> Shards:
        return self

    async def ask(self, request: Any, *, is_fenced: bool = False) -> Any:
        if isinstance(request, FetchOffsets):
            return OffsetsFetched(tuple(FetchedOffset("orders", number, offset=1) for number in range(OFFSETS)))
        if isinstance(request, DeleteOffsets):
            return OffsetsDeleted(RESULTS)
        assert isinstance(request, CommitOffsets)
        assert len(request.offsets) == OFFSETS
        return OffsetsCommitted(RESULTS)

    async def commit(self, request: CommitTransactionOffsets, version: int, size: int) -> OffsetsCommitted:
        """(Replaces TransactionOffsets.)"""
        return cast(OffsetsCommitted, await self.ask(request.commit))


def groups() -> GroupsService:
    return GroupsService(lambda: cast(Any, Shards()), cast(Any, None), ClassicWaits())


async def commit() -> int:
    request = groups_pb2.CommitOffsetsRequest(group_id="g")
    for number in range(OFFSETS):
        request.offsets.add(topic="orders", partition=number, offset=1)
    return len((await groups().CommitOffsets(request, None)).results)


async def commit_in_transaction() -> int:
    request = transactions_pb2.CommitTransactionOffsetsRequest(
        group_id="g", transactional_id="t", producer_id=1, transaction_version=2
    )
    for number in range(OFFSETS):
        request.offsets.add(topic="orders", partition=number, offset=1)
    service = TransactionsService(lambda: cast(Any, Shards()), cast(Any, None), cast(Any, Shards()), cast(Any, None))
    return len((await service.CommitTransactionOffsets(request, None)).results)


async def delete() -> int:
    request = groups_pb2.DeleteOffsetsRequest(group_id="g")
    for number in range(OFFSETS):
        request.partitions.add(topic="orders", partition=number)
    return len((await groups().DeleteOffsets(request, None)).results)


async def fetch() -> int:
    request = groups_pb2.FetchOffsetsRequest(groups=[groups_pb2.OffsetsOfGroup(group_id="g")])
    return len((await groups().FetchOffsets(request, None)).groups[0].offsets)


@pytest.mark.parametrize("call", [commit, commit_in_transaction, delete, fetch])
def test_others_go_on_while_thousands_of_offsets_are_converted(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def clock() -> Iterator[float]:
        now = 0.0
        while True:
            now += 0.001
            yield now

    ticking = clock()
    monkeypatch.setattr(turns, "PAUSE_S", 0)
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: next(ticking)))

    async def scenario() -> None:
        passes = 0

        async def other() -> None:
            nonlocal passes
            while True:
                passes += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        assert await call() == OFFSETS
        beside.cancel()
        assert passes > OFFSETS / 10

    asyncio.run(scenario())


@pytest.mark.parametrize("topic", ["t", "t" * 249])
@pytest.mark.parametrize("metadata_bytes", [0, 100, 400, 1_000, 4_096])
@pytest.mark.parametrize("topic_id", [b"", b"i" * 16])
def test_commit_that_fits_into_a_batch_is_within_the_limit_of_bytes(
    topic: str, metadata_bytes: int, topic_id: bytes
) -> None:
    metadata = "x" * metadata_bytes
    committed = CommittedOffset(2**63 - 1, -1, metadata, 2**63 - 1, None, topic_id or None)
    size = record_bytes(encode_key("g", TopicPartition(topic, 2**31 - 1)), encode_value(committed))
    request = groups_pb2.CommitOffsetsRequest(group_id="g", member_id="m" * 249, member_epoch=-1, instance_id="i" * 249)
    for _ in range(OffsetSettings().commit_bytes_max // size):
        request.offsets.add(
            topic=topic,
            partition=2**31 - 1,
            offset=2**63 - 1,
            leader_epoch=-1,
            metadata=metadata,
            topic_id=topic_id,
        )
    assert request.ByteSize() <= COMMIT_BYTES_MAX
