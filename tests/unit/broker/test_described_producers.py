"""A small DescribeProducers request does not use much of the broker's memory, and does not block its event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_broker.handlers.transactions import ProducersService
from headrace_core.errors import HeadraceError, InvalidRequestError
from headrace_core.log.producer_state import ProducerEntry, ProducerTable
from headrace_core.rpc import responses
from headrace_protos.v1 import groups_pb2, transactions_pb2

PARTITIONS, PRODUCERS = 50, 200


class CountedTable(ProducerTable):
    """The producers of each partition, with a count of how often they were listed."""

    def __init__(self) -> None:
        self.is_listed = asyncio.Event()
        self.listed = 0
        super().__init__(ProducerEntry(producer_id, 0) for producer_id in range(PRODUCERS))
        self.is_listed.clear()
        self.listed = 0

    def __iter__(self) -> Any:
        self.listed += 1
        self.is_listed.set()
        return super().__iter__()


async def described(table: ProducerTable, *partitions: int) -> list[Any]:
    replica = SimpleNamespace(log=SimpleNamespace(producers=table))

    def for_clients(_: object, error: HeadraceError) -> HeadraceError:
        return error

    leaders = SimpleNamespace(leader=lambda _: replica, for_clients=for_clients)
    names = [groups_pb2.PartitionName(topic="orders", partition=each) for each in partitions]
    request = transactions_pb2.DescribeProducersRequest(partitions=names)
    service = ProducersService(cast(Any, SimpleNamespace(partitions=leaders)))
    return list((await service.DescribeProducers(request, None)).partitions)


def test_a_repeated_partition_is_answered_once() -> None:
    table = CountedTable()
    answers = asyncio.run(described(table, *[1, 0] * 1_000))
    assert [each.partition for each in answers] == [1, 0]
    assert [len(each.producers) for each in answers] == [PRODUCERS] * 2
    assert table.listed == 2


def test_a_response_has_a_maximum_size(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = asyncio.run(described(CountedTable(), 0))
    monkeypatch.setattr(responses, "RESPONSE_BYTES_MAX", 10 * one.ByteSize())
    table = CountedTable()
    answers = asyncio.run(described(table, *range(PARTITIONS)))
    assert [each.partition for each in answers] == list(range(PARTITIONS))
    whole = [each for each in answers if len(each.producers) == PRODUCERS]
    refused = [each for each in answers if each.error.code == InvalidRequestError.number]
    assert whole + refused == answers
    assert 10 <= len(whole) == table.listed <= 11


def test_a_cancelled_call_lists_no_further_producers() -> None:
    async def run() -> int:
        table = CountedTable()
        task = asyncio.create_task(described(table, *range(PARTITIONS)))
        await table.is_listed.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return table.listed

    assert 0 < asyncio.run(run()) < PARTITIONS
