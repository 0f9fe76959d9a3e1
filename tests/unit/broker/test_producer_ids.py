"""Blocks of producer ids: which requests wait for the controller, and which do not."""

from __future__ import annotations

import asyncio

import pytest

from headrace_core.errors import (
    CoordinatorNotAvailableError,
    InvalidRequestError,
    NetworkError,
    ServerShuttingDownError,
    UnsupportedVersionError,
)
from headrace_core.membership.producer_ids import EPOCH_MAX, ProducerIdBlock, ProducerIds
from tests.worlds.waiting import in_loop


class Controller:
    """Gives blocks of ten on demand, or fails."""

    def __init__(self) -> None:
        self.asked = 0
        self.given = 0
        self.go = asyncio.Event()
        self.go.set()
        self.failure: Exception | None = None

    async def allocate(self) -> ProducerIdBlock:
        self.asked += 1
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        first, self.given = self.given, self.given + 10
        return ProducerIdBlock(first, 10)


@in_loop
async def test_ids_are_given_once_each_over_many_blocks() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    assert [await ids.next_id() for _ in range(95)] == list(range(95))
    await ids.close()


@in_loop
async def test_however_many_wait_the_controller_is_asked_once() -> None:
    controller = Controller()
    controller.go.clear()
    ids = ProducerIds(controller.allocate)
    waiting = [asyncio.ensure_future(ids.next_id()) for _ in range(8)]
    for _ in range(10):
        await asyncio.sleep(0)
    assert controller.asked == 1
    controller.go.set()
    assert sorted(await asyncio.gather(*waiting)) == list(range(8))
    await ids.close()


@in_loop
async def test_more_that_wait_than_a_block_has_get_the_next_block() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    assert sorted(await asyncio.gather(*(ids.next_id() for _ in range(34)))) == list(range(34))
    await ids.close()


@in_loop
async def test_the_next_block_is_asked_for_when_nine_tenths_are_gone() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    for _ in range(8):
        await ids.next_id()
    assert controller.asked == 1
    await ids.next_id()
    await asyncio.sleep(0)
    assert controller.asked == 2
    for _ in range(10):
        await asyncio.sleep(0)
    assert controller.given == 20
    controller.failure = NetworkError("away")
    assert [await ids.next_id() for _ in range(9)] == list(range(9, 18)), "the controller is away: nobody notices"
    await ids.close()


@in_loop
async def test_who_cannot_wait_gets_a_retriable_error_and_the_next_block_is_fetched_meanwhile() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    with pytest.raises(CoordinatorNotAvailableError, match="retry"):
        ids.take()
    await ids.wait()
    assert (ids.take(), controller.asked) == (0, 1)
    controller.failure = NetworkError("away")
    assert [ids.take() for _ in range(9)] == list(range(1, 10))
    for _ in range(2):
        with pytest.raises(CoordinatorNotAvailableError, match="retry"):
            ids.take()
        await asyncio.sleep(0)
    controller.failure = None
    await ids.wait()
    assert ids.take() == 10
    await ids.close()


@in_loop
async def test_without_a_controller_it_is_a_retriable_error_and_the_next_one_asks_again() -> None:
    controller = Controller()
    controller.failure = NetworkError("connection refused")
    ids = ProducerIds(controller.allocate)
    outcomes = await asyncio.gather(ids.next_id(), ids.next_id(), return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, CoordinatorNotAvailableError)
        assert outcome.retriable
        assert "connection refused" in outcome.message
    assert controller.asked == 1
    controller.failure = None
    assert await ids.next_id() == 0
    await ids.close()


@in_loop
async def test_a_cluster_whose_level_has_no_producer_ids_says_so_at_once() -> None:
    """If the error were retriable, a producer would retry until its timeout, and would never report the cause."""
    controller = Controller()
    controller.failure = UnsupportedVersionError("ProducerIdsRecord needs metadata.version 2; it is 1")
    ids = ProducerIds(controller.allocate)
    with pytest.raises(UnsupportedVersionError, match=r"metadata\.version 2"):
        await ids.next_id()
    await ids.close()


@in_loop
async def test_one_who_gives_up_takes_nothing_from_the_others() -> None:
    controller = Controller()
    controller.go.clear()
    ids = ProducerIds(controller.allocate)
    first, second = asyncio.ensure_future(ids.next_id()), asyncio.ensure_future(ids.next_id())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    controller.go.set()
    assert await second == 0
    await ids.close()


@in_loop
async def test_a_producer_gets_its_next_epoch_and_a_new_id_after_the_last() -> None:
    controller = Controller()
    ids = ProducerIds(controller.allocate)
    assert await ids.renewed(77, 4) == (77, 5)
    assert await ids.renewed(77, EPOCH_MAX - 1) == (77, EPOCH_MAX)
    assert controller.asked == 0
    assert await ids.renewed(77, EPOCH_MAX) == (0, 0)
    for producer_id, epoch in ((-1, 0), (7, -1), (7, 2**15)):
        with pytest.raises(InvalidRequestError):
            await ids.renewed(producer_id, epoch)
    await ids.close()


@in_loop
async def test_a_broker_that_stops_ends_those_who_wait() -> None:
    controller = Controller()
    controller.go.clear()
    ids = ProducerIds(controller.allocate)
    waiting = asyncio.ensure_future(ids.next_id())
    await asyncio.sleep(0)
    await ids.close()
    with pytest.raises(ServerShuttingDownError):
        await waiting
    with pytest.raises(ServerShuttingDownError):
        await ids.next_id()
