"""The driver: turns, ticks, published state, and the responses to waiting callers."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from headrace_controller.cluster.requests import CreateTopics, FenceSilentBrokers, NewTopic
from headrace_controller.raft import HeartbeatResponse, Message, ReplicaKey
from headrace_core.errors import (
    CorruptLogError,
    DuplicateBrokerRegistrationError,
    HeadraceError,
    OffsetNotAvailableError,
    RequestTimedOutError,
    ServerShuttingDownError,
    UnknownServerError,
)
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.codec import decode_batches
from headrace_core.testing.clock import ManualClock
from tests.worlds.controllers_world import formatted, live_broker, running
from tests.worlds.this_process import is_error_freed
from tests.worlds.waiting import in_loop


def topic(name: str) -> CreateTopics:
    return CreateTopics((NewTopic(name=name),))


@in_loop
async def test_an_answer_names_the_offset_that_shows_what_was_done() -> None:
    async with running(formatted()) as driver:
        await live_broker(driver)
        answer = await driver.ask(topic("t"))
        assert driver.image.next_offset == answer.metadata_offset
        assert driver.image.topic("t") is not None


@in_loop
async def test_no_refused_request_waits_for_the_garbage_collector() -> None:
    async with running(formatted()) as driver:
        await live_broker(driver)
        assert await is_error_freed(lambda: live_broker(driver, life=1))  # it is alive


@in_loop
async def test_subscribers_see_every_change_in_order_before_it_is_answered() -> None:
    async with running(formatted()) as driver:
        await live_broker(driver)
        seen: list[tuple[int, int]] = []

        def note(image: MetadataImage, delta: MetadataDelta) -> None:
            assert driver.image is image
            seen.append((delta.from_offset, delta.next_offset))

        unsubscribe = driver.subscribe(note)
        start = driver.image.next_offset
        for number in range(5):
            answer = await driver.ask(topic(f"t{number}"))
            assert seen[-1][1] == answer.metadata_offset
        assert [first for first, _ in seen] == [start, *(end for _, end in seen[:-1])]
        unsubscribe()
        await driver.ask(topic("more"))
        assert len(seen) == 5


def test_a_request_that_no_rule_expects_costs_that_request_only() -> None:
    class Strange:
        """A record that no rule knows."""

    async def work() -> None:
        async with running(formatted()) as driver:
            await live_broker(driver)
            with pytest.raises(UnknownServerError, match="Strange"):
                await driver.ask(Strange())  # type: ignore[arg-type]
            await driver.ask(topic("t"))
            assert driver.image.topic("t") is not None

    asyncio.run(work())


@in_loop
async def test_committed_batches_can_be_read_from_any_offset() -> None:
    async with running(formatted()) as driver:
        await live_broker(driver)
        middle = (await driver.ask(topic("t"))).metadata_offset
        end = (await driver.ask(topic("u"))).metadata_offset
        data, following = driver.read(middle)
        assert following == end
        assert [batch.base_offset for batch in decode_batches(data)] == [middle]
        assert driver.read(end) == (b"", end)


@in_loop
async def test_one_can_wait_for_an_offset_to_be_committed() -> None:
    async with running(formatted()) as driver:
        await live_broker(driver)
        waiting = asyncio.create_task(driver.wait_applied(driver.image.next_offset + 2, 10))
        await driver.ask(topic("t"))
        assert (await waiting).topic("t") is not None
        with pytest.raises(RequestTimedOutError):
            await driver.wait_applied(driver.image.next_offset + 1, 0.01)


@in_loop
async def test_a_caller_that_goes_away_does_not_undo_its_request() -> None:
    async with running(formatted()) as driver:
        await live_broker(driver)
        asking = asyncio.create_task(driver.ask(topic("t")))
        await asyncio.sleep(0)
        asking.cancel()
        await driver.ask(topic("u"))
        assert sorted(driver.image.topic_ids) == ["t", "u"]


@in_loop
async def test_stopping_answers_what_has_arrived_and_refuses_what_comes_later() -> None:
    async with running(formatted()) as driver:
        await live_broker(driver)
        asked = [asyncio.create_task(driver.ask(topic(f"t{number}"))) for number in range(3)]
        await asyncio.sleep(0)
        driver.stop()
        await asyncio.gather(*asked)
        with pytest.raises(ServerShuttingDownError):
            await driver.ask(topic("late"))


@in_loop
async def test_a_tick_fences_a_silent_broker() -> None:
    clock = ManualClock()
    async with running(formatted(), clock) as driver:
        broker = await live_broker(driver)
        for _ in range(11):
            clock.advance(900)
            await driver.ask(FenceSilentBrokers())
        assert driver.image.brokers[broker.broker_id].fenced


@in_loop
async def test_nobody_is_fenced_after_a_pause_of_the_controller_itself() -> None:
    clock = ManualClock()
    async with running(formatted(), clock) as driver:
        broker = await live_broker(driver)
        clock.advance(60_000)
        await driver.ask(topic("t"))
        assert not driver.image.brokers[broker.broker_id].fenced
        for _ in range(11):
            clock.advance(900)
            await driver.ask(FenceSilentBrokers())
        assert driver.image.brokers[broker.broker_id].fenced


@in_loop
async def test_a_restarted_controller_has_everything_and_fences_nobody_in_haste() -> None:
    fs, clock = formatted(), ManualClock()
    async with running(fs, clock) as driver:
        broker = await live_broker(driver)
        await driver.ask(topic("t"))
        before = driver.image
    clock.advance(60_000)
    async with running(fs, clock, seed=2) as driver:
        assert driver.image.topics == before.topics
        assert driver.image.brokers == before.brokers
        assert driver.term == 2
        await driver.ask(FenceSilentBrokers())
        assert driver.image.brokers[broker.broker_id].active


@in_loop
async def test_a_broker_that_restarted_together_with_the_controller_registers_at_once() -> None:
    fs, clock = formatted(), ManualClock()
    async with running(fs, clock) as driver:
        before = await live_broker(driver)
    async with running(fs, clock, seed=2) as driver:
        after = await live_broker(driver, life=1)
        assert after.broker_id == before.broker_id
        assert after.broker_epoch > before.broker_epoch
        with pytest.raises(DuplicateBrokerRegistrationError):
            await live_broker(driver, life=2)


def test_rot_that_is_met_while_a_message_is_answered_ends_the_process_and_says_what_to_do() -> None:
    """The error appears in the handler of another node's stream, which must not hide it."""

    def rotten(message: Message) -> None:
        raise CorruptLogError("offset 7: CRC-32C is wrong")

    async def work() -> None:
        async with running(formatted()) as driver:
            await live_broker(driver)
            driver.controller.receive = rotten  # type: ignore[method-assign]
            driver.receive(Message(ReplicaKey(2), driver.controller.key, HeartbeatResponse(1, 1)))
            asked = asyncio.create_task(driver.ask(topic("t")))
            with pytest.raises(HeadraceError, match="has stopped"):
                await asked

    with pytest.raises(CorruptLogError, match=r"offset 7.*This controller stops.*headrace quorum"):
        asyncio.run(work())


def test_disk_that_fails_in_the_last_moment_does_not_count_as_stopped_cleanly() -> None:
    """The clean stop's marker would say that everything was flushed."""

    def failing(message: Message) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def work() -> None:
        async with running(formatted()) as driver:
            await live_broker(driver)
            driver.controller.receive = failing  # type: ignore[method-assign]
            driver.receive(Message(ReplicaKey(2), driver.controller.key, HeartbeatResponse(1, 1)))

    with pytest.raises(OSError, match="Input/output"):
        asyncio.run(work())


def test_a_message_that_meets_a_log_that_is_just_being_cut_is_lost_and_no_more() -> None:
    """The disk's thread removes entries that did not fit, while the loop reads the log for a follower. The loop may
    leave the follower without an answer, because the follower causes another answer with the next heartbeat."""

    def cut(message: Message) -> None:
        raise OffsetNotAvailableError("it is being truncated, and was read in the midst of it")

    async def work() -> None:
        async with running(formatted()) as driver:
            await live_broker(driver)
            driver.controller.receive = cut  # type: ignore[method-assign]
            driver.receive(Message(ReplicaKey(2), driver.controller.key, HeartbeatResponse(1, 1)))
            await driver.ask(topic("t"))

    asyncio.run(work())


def test_who_asks_while_the_disk_is_busy_shares_the_next_turn() -> None:
    """The loop continues while the log is flushed, so that requests accumulate."""
    fs = formatted()
    release, busy = threading.Event(), threading.Event()

    async def work() -> int:
        async with running(fs) as driver:
            await live_broker(driver)
            persist = driver.controller.persist

            def slow() -> None:
                busy.set()
                assert release.wait(60)
                persist()

            driver.controller.persist = slow  # type: ignore[method-assign]
            first = asyncio.create_task(driver.ask(topic("first")))
            async with asyncio.timeout(60):
                while not busy.is_set():  # noqa: ASYNC110
                    await asyncio.sleep(0)
            before = sum(entry.operation == "sync" for entry in fs.trace)
            others = [asyncio.create_task(driver.ask(topic(f"t{number}"))) for number in range(50)]
            for _ in range(5):
                await asyncio.sleep(0)
            release.set()
            await asyncio.gather(first, *others)
            return sum(entry.operation == "sync" for entry in fs.trace) - before

    assert asyncio.run(work()) == 2
