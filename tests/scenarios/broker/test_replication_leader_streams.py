"""Followers' streams at a leading broker: admission, pushes, and the cost of a bad or slow follower."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_broker.partition.push_stream import CATCH_UP
from headrace_core import errors
from headrace_core.log.turns import SyncGauge
from headrace_core.metadata.records import ConfigRecord, ConfigResourceType
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.replication_messages import a_request, an_ack
from tests.worlds.replication_world import FollowerEnd, ReplicationWorld
from tests.worlds.solo_broker import BROKER_ID, SoloBroker, batch, produce
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until


def world() -> ReplicationWorld:
    return ReplicationWorld(SoloBroker(CrashingFileSystem()))


@in_loop
async def test_a_follower_gets_byte_for_byte_what_the_leader_has():
    async with world() as here:
        await here.topic("orders")
        await here.append("orders", b"before")
        follower = here.follower()
        follower.hello()
        follower.join(1, "orders")
        for number in range(50):
            await here.append("orders", b"value %d" % number)
        await until(lambda: follower.records(1) == here.log_bytes("orders"))
        follower.handler.on_closed()


@in_loop
async def test_acks_all_waits_for_the_follower_and_not_longer():
    async with world() as here:
        await here.topic("orders")
        follower = here.follower()
        follower.hello()
        follower.join(1, "orders")
        producer, answers = here.broker.producer()
        producer.on_request(produce(1, "orders", batch(b"a")))
        await until(lambda: bool(follower.records(1)))
        assert answers.sent == []
        follower.ack(1, 1)
        (answer,) = await answers.wait_sent(1)
        assert answer.results[0].error.code == 0
        await until(lambda: any(update.high_watermark == 1 for message in follower.got for update in message.updates))
        producer.on_closed()
        follower.handler.on_closed()


def _diary(fs: CrashingFileSystem, follower: FollowerEnd) -> list[str]:
    """Operations on the log after this point: write, sending (the push is passed on), sync."""
    diary: list[str] = []
    fs.on_operation = lambda entry: diary.append(entry.operation) if entry.path.endswith(".log") else None
    send = follower.stream.send

    def sending(response: Any, size: int = 0) -> None:
        if response.pushes:
            diary.append("sending")
        send(response, size)

    follower.stream.send = sending  # type: ignore[method-assign]
    return diary


def test_the_leader_flushes_when_the_push_to_its_follower_is_handed_over(monkeypatch: pytest.MonkeyPatch):
    # On a loaded machine a flush would count as slow. The directory's thread would then flush, without this order.
    monkeypatch.setattr(SyncGauge, "add", lambda self, elapsed_ms: None)

    async def scenario() -> None:
        fs = CrashingFileSystem()
        async with ReplicationWorld(SoloBroker(fs)) as here:
            await here.topic("orders")
            follower = here.follower()
            follower.hello()
            follower.join(1, "orders")
            await until(lambda: any(message.joined for message in follower.got))
            diary = _diary(fs, follower)
            for value in (b"a", b"b", b"c"):
                await here.append("orders", value)
            fs.on_operation = None
            steps = [said for said in diary if said in ("write", "sending", "sync")]
            assert steps == ["write", "sending", "sync"] * 3
            follower.handler.on_closed()

    asyncio.run(scenario())


@in_loop
async def test_a_follower_that_does_not_read_holds_up_no_flush():
    fs = CrashingFileSystem()
    async with ReplicationWorld(SoloBroker(fs)) as here:
        await here.topic("orders")
        follower = here.follower()
        follower.hello()
        follower.join(1, "orders")
        await until(lambda: any(message.joined for message in follower.got))
        follower.reads = False
        for value in (b"a", b"b", b"c"):
            await here.append("orders", value)
        assert here.leader("orders").flushed_end == 3
        waiting = here.follower()
        waiting.hello()  # replaces the other stream, which ends with a push in flight
        await here.append("orders", b"d")
        assert here.leader("orders").flushed_end == 4
        waiting.handler.on_closed()
        follower.handler.on_closed()


@in_loop
async def test_offsets_that_were_due_while_a_message_was_written_are_sent_after_it():
    async with ReplicationWorld(SoloBroker(CrashingFileSystem())) as here:
        await here.topic("orders")
        follower = here.follower()
        follower.hello()
        follower.join(1, "orders")
        await until(lambda: any(message.joined for message in follower.got))
        follower.reads = False
        await here.append("orders", b"a")
        follower.ack(1, 1)
        assert here.leader("orders").high_watermark == 1
        assert follower.handler._timer is not None
        await until(lambda: follower.handler._timer is None)
        follower.take()
        follower.take()
        updates = [update for message in follower.got for update in message.updates]
        assert [(update.handle, update.high_watermark) for update in updates] == [(1, 1)]
        follower.handler.on_closed()


def test_a_stream_whose_turn_fails_holds_up_no_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("broken on purpose")

    async def scenario() -> None:
        fs = CrashingFileSystem()
        async with ReplicationWorld(SoloBroker(fs)) as here:
            await here.topic("orders")
            follower = here.follower()
            follower.hello()
            follower.join(1, "orders")
            await until(lambda: any(message.joined for message in follower.got))
            monkeypatch.setattr(follower.handler._pushes, "next", broken)
            for count, value in enumerate((b"a", b"b", b"c"), 1):
                await asyncio.wait_for(here.append("orders", value), 20)
                assert here.leader("orders").flushed_end == count
            assert isinstance(follower.stream.ended, errors.UnknownServerError)
            assert "broken on purpose" in str(follower.stream.ended)
            follower.handler.on_closed()

    asyncio.run(scenario())


@in_loop
async def test_what_a_turn_of_the_writer_brings_to_many_partitions_is_one_message():
    async with world() as here:
        await here.topic("orders", 200)
        follower = here.follower()
        follower.hello()
        for number in range(200):
            follower.join(number, "orders", partition=number)
        await until(lambda: sum(len(message.joined) for message in follower.got) == 200)
        before = len(follower.got)
        await asyncio.gather(*(here.append("orders", b"x", partition=number) for number in range(200)))
        await until(lambda: sum(len(message.pushes) for message in follower.got) == 200)
        assert sum(bool(message.pushes) for message in follower.got[before:]) <= 3
        follower.handler.on_closed()


@in_loop
async def test_a_follower_that_does_not_read_costs_one_message():
    async with world() as here:
        await here.topic("orders", 4)
        follower = here.follower(reads=False)
        follower.hello()
        for number in range(4):
            follower.join(number, "orders", partition=number)
        for _ in range(20):
            for number in range(4):
                await here.append("orders", b"x" * 100_000, partition=number)
        assert len(follower.stream.sent) == 1
        assert follower.stream.queued_bytes < 2 << 20
        follower.reads = True
        follower.take()
        for number in range(4):
            await until(lambda number=number: follower.records(number) == here.log_bytes("orders", number))
        follower.handler.on_closed()


@in_loop
async def test_a_follower_that_acknowledges_nothing_gets_its_window_and_is_sent_nothing_more():
    async with world() as here:
        await here.topic("orders")
        follower = here.follower()
        follower.hello(window=1 << 20)
        follower.join(1, "orders")
        for _ in range(40):
            await here.append("orders", b"x" * 100_000)
        await until(lambda: len(follower.records(1)) >= 1 << 20)
        await here.append("orders", b"x")
        assert len(follower.records(1)) <= (1 << 20) + 101_000
        follower.ack(1, 5)
        await until(lambda: len(follower.records(1)) > (1 << 20) + 101_000)
        follower.handler.on_closed()


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"cluster_id": "another"}, errors.InconsistentClusterIdError),
        ({"leader_id": 9}, errors.NotLeaderOrFollowerError),
        ({"broker_id": BROKER_ID}, errors.InvalidRequestError),
        ({"broker_id": 44}, errors.NotLeaderOrFollowerError),
        ({"broker_epoch": 6}, errors.StaleBrokerEpochError),
        ({"window_bytes": 0}, errors.InvalidRequestError),
    ],
)
@in_loop
async def test_who_is_not_let_in(wrong: dict[str, object], error: type[errors.HeadraceError]):
    async with world() as here:
        follower = here.follower()
        with pytest.raises(error):
            follower.hello(**wrong)
        follower.handler.on_closed()


@in_loop
async def test_a_stream_without_a_hello_is_refused():
    async with world() as here:
        with pytest.raises(errors.InvalidRequestError):
            here.follower().ack(1, 1)
        follower = here.follower()
        follower.hello()
        with pytest.raises(errors.InvalidRequestError):
            follower.hello()


@in_loop
async def test_a_former_life_ends_when_the_metadata_brings_the_next_one():
    async with world() as here:
        await here.topic("orders")
        before = here.follower()
        before.hello()
        before.join(1, "orders")
        await here.append("orders", b"a")
        await until(lambda: bool(before.records(1)))
        await here.registers(9)
        assert isinstance(before.stream.ended, errors.StaleBrokerEpochError)
        before.say(a_request(acks=(an_ack(1, 1, 1, 0),)))  # was in flight
        assert here.leader("orders").high_watermark == 0
        now = here.follower()
        now.hello(broker_epoch=9)
        now.join(1, "orders", log_end=1, last_epoch=0)
        await until(lambda: here.leader("orders").high_watermark == 1)
        before.handler.on_closed()
        assert here.leader("orders").progress[1].is_joined
        now.handler.on_closed()


@in_loop
async def test_a_follower_that_dials_again_takes_the_place_of_its_broken_stream():
    async with world() as here:
        await here.topic("orders")
        broken, again, other_lane = here.follower(), here.follower(), here.follower()
        broken.hello()
        broken.join(1, "orders")
        other_lane.hello(kind=CATCH_UP)
        again.hello()
        again.join(1, "orders")
        await here.append("orders", b"a")
        await until(lambda: bool(again.records(1)))
        assert not broken.records(1)
        assert other_lane.stream.ended is None
        broken.handler.on_closed()
        await here.append("orders", b"b")
        await until(lambda: again.records(1) == here.log_bytes("orders"))
        for end in (again, other_lane):
            end.handler.on_closed()
        assert not here.service._joined


@in_loop
async def test_a_deleted_topic_ends_its_handles_and_the_others_go_on():
    async with world() as here:
        await here.topic("orders")
        await here.topic("payments")
        follower = here.follower()
        follower.hello()
        follower.join(1, "orders")
        follower.join(2, "payments")
        await here.broker.delete("orders")
        await until(lambda: [ended.handle for message in follower.got for ended in message.ended] == [1])
        await here.append("payments", b"a")
        await until(lambda: bool(follower.records(2)))
        follower.handler.on_closed()


@in_loop
async def test_a_log_that_is_damaged_where_a_follower_reads_ends_its_handle_and_is_taken_out():
    fs = CrashingFileSystem()
    async with ReplicationWorld(SoloBroker(fs)) as here:
        await here.topic("orders")
        await here.append("orders", b"sound")
        fs.flip("/data/orders-0/00000000000000000000.log", 70)
        follower = here.follower()
        follower.hello()
        follower.join(1, "orders")
        await until(lambda: [ended.handle for message in follower.got for ended in message.ended] == [1])
        assert not follower.records(1)
        with pytest.raises(errors.CorruptLogError):
            here.leader("orders")
        follower.handler.on_closed()


@in_loop
async def test_many_answers_that_nobody_reads_hold_the_stream_back():
    async with world() as here:
        await here.topic("orders")
        follower = here.follower(reads=False)
        follower.hello()
        handle = 0
        while not follower.stream.paused:
            assert handle < 100_000
            for _ in range(1000):
                handle += 1
                follower.join(handle, "nothing")
        follower.reads = True
        follower.take()
        await until(lambda: not follower.stream.paused)
        await until(lambda: sum(len(message.joined) for message in follower.got) == handle)
        follower.handler.on_closed()


@in_loop
async def test_the_throttle_of_a_topic_is_that_of_its_leaders():
    async with world() as here:
        await here.topic("orders", 3)
        here.service.set_throttle(1000)
        leader = here.leader("orders", 1)
        leader.metadata_changed(
            isr=(BROKER_ID,), partition_epoch=1, replicas=leader.replicas, min_insync=1, recovering=False
        )
        assert not here.service.is_throttled(leader, 2)
        for listed, expected in (("1:1,2:1", True), ("1:2", False), ("*", True), ("0:1", False)):
            await here.broker.change(
                ConfigRecord(ConfigResourceType.TOPIC, "orders", "leader.replication.throttled.replicas", listed)
            )
            assert here.service.is_throttled(leader, 2) is expected, listed
        here.service.set_throttle(2**63 - 1)
        assert not here.service.is_throttled(leader, 2)


@in_loop
async def test_bytes_that_are_no_request_end_the_stream():
    async with world() as here:
        await here.topic("orders")
        follower = here.follower()
        follower.hello()
        follower.join(1, "orders")
        request = a_request(acks=[an_ack(1, 99, 99, 0)])
        with pytest.raises(errors.InvalidRequestError):
            follower.handler.on_request(request)
        follower.handler.on_closed()
        assert here.leader("orders").high_watermark == 0


@in_loop
async def test_what_comes_on_a_stream_that_was_replaced_takes_nothing_from_the_one_that_counts():
    async with world() as here:
        await here.topic("orders")
        former, follower = here.follower(), here.follower()
        former.hello()
        follower.hello()
        follower.join(1, "orders")
        former.join(1, "orders")  # the acknowledgement had been read before the stream was ended
        await here.append("orders", b"value")
        await until(lambda: follower.records(1) == here.log_bytes("orders"))
        assert not former.got
        former.handler.on_closed()
        follower.handler.on_closed()
