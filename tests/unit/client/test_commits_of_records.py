"""``commit(record)`` and ``commit_async(record)`` commit the offset after the record, and its leader epoch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import AsyncConsumer, Consumer, OffsetAndMetadata
from headrace.consumer.read_epochs import ReadEpochs
from headrace_core.records import Record
from tests.unit.client.test_group_consumer import LIMIT_S, Make, Party, joined, make, parties, run

__all__ = ["make", "parties"]

Commit = tuple[str, int, int, int]


def record(offset: int, *, partition: int = 0) -> Record:
    return Record("t", partition, offset, 0, None, b"v")


async def reading(make: Make) -> Party:
    """A member that has read t-0: offsets 5 to 9 of leader epoch 3, and 10 to 19 of leader epoch 7."""
    party = await joined(make, 0, enable_auto_commit=False)
    (assigned,) = party.core.reading.partitions.values()
    assigned.epochs = epochs = ReadEpochs()
    for epoch, offset in ((3, 5), (7, 10), (7, 19)):
        epochs.note(epoch, offset)
    assigned.position = 20
    loop = asyncio.get_running_loop()
    party.io.submit = lambda work: asyncio.run_coroutine_threadsafe(work, loop)
    party.io.run = lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(LIMIT_S)
    return party


def committed(party: Party) -> list[Commit]:
    """(topic, partition, offset, leader epoch) of all that the coordinator received, in order."""
    return [
        (each.topic, each.partition, each.offset, each.leader_epoch)
        for request in party.coordinator.commits
        for each in request.offsets
    ]


def face(kind: type[Any], party: Party) -> Any:
    """The public class with a fake core, which needs no network."""
    consumer = kind(bootstrap_servers="127.0.0.1:1")
    consumer._finalizer.detach()
    consumer._core = party.core
    return consumer


async def commit(party: Party, given: Record) -> None:
    await asyncio.to_thread(face(Consumer, party).commit, given)


async def commit_async(party: Party, given: Record) -> None:
    await asyncio.wrap_future(face(Consumer, party).commit_async(given))


async def commit_of_async_consumer(party: Party, given: Record) -> None:
    await face(AsyncConsumer, party).commit(given)


async def commit_async_of_async_consumer(party: Party, given: Record) -> None:
    await face(AsyncConsumer, party).commit_async(given)


WAYS = [commit, commit_async, commit_of_async_consumer, commit_async_of_async_consumer]


@pytest.mark.parametrize("way", WAYS)
def test_a_committed_record_is_the_offset_after_it_with_its_leader_epoch(make: Make, way: Any) -> None:
    async def scenario() -> None:
        party = await reading(make)
        await way(party, record(9))
        await way(party, record(10))
        assert committed(party) == [("t", 0, 10, 3), ("t", 0, 11, 7)]

    run(scenario)


@pytest.mark.parametrize("way", WAYS)
def test_a_record_whose_epoch_is_not_known_is_committed_without_one(make: Make, way: Any) -> None:
    """A record of a partition that the member does not own, or a record before the offsets that it has read."""

    async def scenario() -> None:
        party = await reading(make)
        await way(party, record(41, partition=1))
        await way(party, record(2))
        assert committed(party) == [("t", 1, 42, -1), ("t", 0, 3, -1)]

    run(scenario)


@pytest.mark.parametrize("way", WAYS)
def test_a_commit_before_the_first_fetch_has_the_epoch_of_the_committed_offset(make: Make, way: Any) -> None:
    """Between the assignment and the fetcher's first look at it, the only known epoch is the one that the group has
    committed. A commit in this time must not replace it by "unknown", or the next reader does not notice that the log
    diverged (KIP-320)."""

    async def scenario() -> None:
        party = await reading(make)
        (tp,) = party.core.reading.partitions
        party.core.reading.remove_assigned([tp])
        party.core.reading.add_assigned({tp: OffsetAndMetadata(20, "", 7)})
        assert party.core.reading.positions() == {tp: OffsetAndMetadata(20, leader_epoch=7)}
        await way(party, record(19))
        await way(party, record(20))
        assert committed(party) == [("t", 0, 20, 7), ("t", 0, 21, -1)]

    run(scenario)
