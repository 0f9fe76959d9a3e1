"""A small request that names one large group a thousand times does not use much of the coordinator's memory, and does
not block its event loop."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace_coordinator.handlers import descriptions
from headrace_coordinator.handlers.classic import ClassicWaits
from headrace_coordinator.handlers.groups import GroupsService
from headrace_coordinator.handlers.transactions import TransactionsService
from headrace_coordinator.offsets.messages import FetchedOffset, FetchOffsets, OffsetsFetched
from headrace_coordinator.transaction.state import Transaction, TransactionState
from headrace_core.errors import InvalidRequestError
from headrace_core.rpc import responses
from headrace_core.types import TopicPartition
from headrace_protos.v1 import groups_pb2, transactions_pb2

TIMES = 100
PARTITIONS = [TopicPartition("orders", number) for number in range(200)]


class Shards:
    """The only shard, with one large group and one large transaction."""

    def __init__(self) -> None:
        self.asked = 0

    def of_group(self, group_id: str) -> Shards:
        return self

    of_transactional_id = of_group

    async def ask(self, request: Any, *, is_fenced: bool = False) -> Any:
        self.asked += 1
        if isinstance(request, FetchOffsets):
            return OffsetsFetched(tuple(FetchedOffset(*each, offset=1) for each in PARTITIONS))
        return Transaction(1, 0, 60_000, TransactionState.ONGOING, frozenset(PARTITIONS), 0)


async def offsets(shards: Shards) -> list[Any]:
    request = groups_pb2.FetchOffsetsRequest(groups=[groups_pb2.OffsetsOfGroup(group_id="g")] * TIMES)
    service = GroupsService(lambda: cast(Any, shards), cast(Any, None), ClassicWaits())
    return list((await service.FetchOffsets(request, None)).groups)


async def transactions(shards: Shards) -> list[Any]:
    request = transactions_pb2.DescribeTransactionsRequest(transactional_ids=["t"] * TIMES)
    service = TransactionsService(lambda: cast(Any, shards), cast(Any, None), cast(Any, None), cast(Any, None))
    return list((await service.DescribeTransactions(request, None)).transactions)


@pytest.mark.parametrize("call", [offsets, transactions])
def test_a_response_with_one_large_group_many_times_has_a_maximum_size(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = asyncio.run(call(Shards()))
    assert len(whole) == TIMES
    assert not any(each.error.code for each in whole)
    one = whole[0].ByteSize()
    monkeypatch.setattr(responses, "RESPONSE_BYTES_MAX", 10 * one)
    shards = Shards()
    answers = asyncio.run(call(shards))
    refused = [each for each in answers if each.error.code]
    assert len(answers) == TIMES
    assert {each.error.code for each in refused} == {InvalidRequestError.number}
    assert 10 <= shards.asked == TIMES - len(refused) < 10 + descriptions.AT_ONCE


@pytest.mark.parametrize("call", [offsets, transactions])
def test_others_are_served_in_between_and_a_cancelled_call_stops(call: Any) -> None:
    async def run() -> int:
        shards = Shards()
        task = asyncio.create_task(call(shards))
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return shards.asked

    assert 0 < asyncio.run(run()) < TIMES / 2
