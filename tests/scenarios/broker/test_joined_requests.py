"""Plain appends of one pass of the event loop are joined (joining.py): offsets, answers and order stay those of single
appends, and flow control gets everything back."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace_broker.flow import BULK_BYTES, LIVE_S
from headrace_broker.kafka import joining
from headrace_broker.kafka.joining import Joiner
from headrace_core.errors import (
    HeadraceError,
    NotLeaderOrFollowerError,
    OutOfOrderSequenceNumberError,
    RequestTimedOutError,
)
from headrace_core.records import Compression, encode_batch, split_batches
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from headrace_kafka.client import Client
from tests.worlds.log_world import idempotent
from tests.worlds.replication_world import ReplicationWorld
from tests.worlds.solo_broker import SoloBroker, batch, produce
from tests.worlds.waiting import in_loop
from tests.worlds.waiting import until_async as until

ORDERS = TopicPartition("orders", 0)


class Sent:
    """A request of a client, and what becomes of its batches."""

    def __init__(self, door: Door, names: list[str], size: int) -> None:
        self.client = door.client
        self.size = size
        self._answers = door.answers
        self._names = names
        self._left = len(names)

    def told(self, place: int, outcome: tuple[int, int] | HeadraceError) -> bool:
        self._answers.append((self._names[place], outcome[0] if isinstance(outcome, tuple) else outcome))
        self._left -= 1
        return not self._left


class Door:
    """The joiner of a broker, and the answers in the order in which they came."""

    def __init__(self, broker: SoloBroker) -> None:
        self.broker = broker
        self.joiner = Joiner(broker.context)
        self.client = Client(host="10.0.0.1", listener="kafka")
        self.answers: list[tuple[str, int | HeadraceError]] = []

    def send(
        self,
        name: str,
        records: bytes,
        partition: TopicPartition = ORDERS,
        *,
        committed: bool = True,
        timeout_ms: int = 30_000,
        topic_id: bytes = b"",
    ) -> bool:
        sent: Any = Sent(self, [name], len(records) + 50)
        return self.joiner.add(sent, [(partition, topic_id, records)], committed=committed, timeout_ms=timeout_ms)

    def send_together(self, records: dict[TopicPartition, bytes], size: int = 0) -> bool:
        """One request for several partitions. The batches have the partitions' names."""
        sent: Any = Sent(self, [str(each) for each in records], size or sum(map(len, records.values())))
        parts: Any = [(partition, b"", batch) for partition, batch in records.items()]
        return self.joiner.add(sent, parts, committed=True, timeout_ms=30_000)

    async def answered(self, count: int) -> list[tuple[str, Any]]:
        await until(lambda: len(self.answers) >= count)
        assert len(self.answers) == count
        return self.answers

    def check_free(self) -> None:
        """Nothing is counted any more."""
        flow = self.broker.context.flow
        assert (flow.in_memory, flow.kept, len(flow.deadlines), len(flow.held)) == (0, 0, 0, 0)


def appends_of(broker: SoloBroker) -> int:
    """How many appends the writer has had."""
    (writer,) = broker.storage.writers()
    return int(writer.turn_appends.total)


@in_loop
async def test_the_batches_of_a_pass_are_one_append_for_each_partition() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders", 2)
        door = Door(broker)
        for number in range(6):
            partition = TopicPartition("orders", number % 2)
            assert door.send(f"{number}", batch(b"%d" % number, b"more"), partition, committed=number < 4)
        found = await door.answered(6)
        assert dict(found) == {"0": 0, "1": 0, "2": 2, "3": 2, "4": 4, "5": 4}
        assert appends_of(broker) == 4, "acks=all and acks=1 are not joined"
        assert broker.values("orders") == [b"0", b"more", b"2", b"more", b"4", b"more"]
        assert broker.context.metrics.produce_requests.value == 6
        door.check_free()


@in_loop
async def test_a_request_for_several_partitions_joins_others_in_each() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders", 2)
        door, other = Door(broker), TopicPartition("orders", 1)
        assert door.send("first", batch(b"1"))
        assert door.send_together({ORDERS: batch(b"2", b"3"), other: batch(b"4")})
        assert door.send("last", batch(b"5"), other)
        assert dict(await door.answered(4)) == {"first": 0, "orders-0": 1, "orders-1": 0, "last": 1}
        assert appends_of(broker) == 2
        assert broker.values("orders") == [b"1", b"2", b"3"]
        assert broker.context.metrics.produce_requests.value == 3
        assert not door.joiner._load.in_progress
        door.check_free()


@in_loop
async def test_a_request_with_a_batch_that_is_not_plain_joins_nothing() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders", 2)
        door, other, sound = Door(broker), TopicPartition("orders", 1), batch(b"x")
        assert not door.send_together({ORDERS: sound, other: sound[:-1] + b"?"})
        assert not door.send_together({ORDERS: sound, TopicPartition("none", 0): sound})
        twice: Any = [(ORDERS, b"", sound), (ORDERS, b"", sound)]
        request: Any = Sent(door, ["a", "b"], 200)
        assert not door.joiner.add(request, twice, committed=True, timeout_ms=30_000)
        assert door.send("alone", sound)
        assert await door.answered(1) == [("alone", 0)]
        assert not broker.partitions.leader(other).log.log_end_offset
        door.check_free()


@in_loop
async def test_a_batch_of_a_request_that_is_refused_stops_none_of_the_others() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders", 2)
        door, other = Door(broker), TopicPartition("orders", 1)
        assert door.send_together({ORDERS: idempotent(1, 0), other: idempotent(1, 0)})
        await door.answered(2)
        assert door.send_together({ORDERS: idempotent(1, 7), other: idempotent(1, 1)})
        found = dict((await door.answered(4))[2:])
        assert isinstance(found["orders-0"], OutOfOrderSequenceNumberError)
        assert found["orders-1"] == 1
        door.check_free()


@in_loop
async def test_a_large_request_joins_only_while_no_small_one_needs_its_turn() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders", 2)
        door, turns = Door(broker), broker.context.flow.turns
        large = {ORDERS: batch(b"x" * 40_000), TopicPartition("orders", 1): batch(b"x" * 40_000)}
        assert door.send_together(large, BULK_BYTES)
        await door.answered(2)
        assert door.send_together(large, BULK_BYTES), "a large request is not a small one"
        await door.answered(4)
        assert door.send("small", batch(b"1"))
        assert not door.send_together(large, BULK_BYTES)
        await door.answered(5)
        turns.noted_s -= LIVE_S
        assert door.send_together(large, BULK_BYTES)
        await door.answered(7)
        door.check_free()


@in_loop
async def test_other_appends_of_the_pass_keep_their_place() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        door = Door(broker)
        handler, stream = broker.producer()
        assert door.send("first", batch(b"1"))
        handler.on_request(produce(1, "orders", batch(b"2")))
        assert door.send("third", batch(b"3"))
        assert door.send("fourth", batch(b"4"), timeout_ms=10_000)  # another timeout
        assert door.send("fifth", batch(b"5"))
        await stream.wait_sent(1)
        assert await door.answered(4) == [("first", 0), ("third", 2), ("fourth", 3), ("fifth", 4)]
        assert broker.values("orders") == [b"1", b"2", b"3", b"4", b"5"]
        handler.on_closed()
        door.check_free()


@in_loop
async def test_what_must_be_looked_at_or_refused_is_left_alone() -> None:
    """And leaves no trace beside its neighbours."""
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        await broker.topic("__consumer_offsets", topic_id=b"o" * 16)
        door, sound = Door(broker), batch(b"x")
        packed = encode_batch([(1, None, b"x" * 50, [])], compression=Compression.GZIP)
        transactional = encode_batch(
            [(1, None, b"x", [])], producer_id=1, producer_epoch=0, base_sequence=0, transactional=True
        )
        assert not door.send("unknown topic", sound, TopicPartition("none", 0))
        assert not door.send("unknown partition", sound, TopicPartition("orders", 1))
        assert not door.send("internal", sound, TopicPartition("__consumer_offsets", 0))
        assert not door.send("compressed", packed)
        assert not door.send("damaged", sound[:-1] + b"?")
        assert not door.send("transactional", transactional)
        assert not door.send("an older topic", sound, topic_id=b"?" * 16)
        assert not door.send("too large", batch(b"x" * 2_000_000))
        assert door.send("sound", sound, topic_id=b"orders".ljust(16, b"."))
        broker.partitions.refusal = NotLeaderOrFollowerError("fenced")
        assert not door.send("fenced", sound)
        assert await door.answered(1) == [("sound", 0)]
        door.check_free()


@in_loop
async def test_a_leader_that_resigns_in_the_pass_appends_nothing() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        door, replica = Door(broker), broker.partitions.leader(ORDERS)
        assert door.send("a", batch(b"1"))
        assert door.send("b", batch(b"2"))
        reason = NotLeaderOrFollowerError("moved")
        replica.resign(reason)
        assert [name for name, error in door.answers if error is reason] == ["a", "b"]
        assert not door.send("c", batch(b"3"))
        await asyncio.sleep(0.02)
        assert replica.log.log_end_offset == 0
        door.check_free()


@in_loop
async def test_batches_before_a_move_of_the_log_are_written_and_later_ones_wait_elsewhere() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        door, replica = Door(broker), broker.partitions.leader(ORDERS)
        assert door.send("a", batch(b"1"))
        replica.hold()
        assert not door.send("b", batch(b"2")), "LeaderReplica.append holds it"
        assert await door.answered(1) == [("a", 0)]
        (writer,) = broker.storage.writers()
        replica.release(replica.log, writer)
        assert door.send("c", batch(b"3"))
        await door.answered(2)
        door.check_free()


@in_loop
async def test_a_join_larger_than_a_segment_goes_into_several() -> None:
    """A fixed fault: an assertion in the log's writer took the log directory offline."""
    async with SoloBroker(CrashingFileSystem(), segment_bytes="1024") as broker:
        await broker.topic("orders")
        door = Door(broker)
        for number in range(20):
            assert door.send(f"{number}", batch(b"x" * 100))
        assert [offset for _, offset in await door.answered(20)] == list(range(20))
        assert broker.partitions.leader(ORDERS).log.segment_count > 2
        door.check_free()


@in_loop
async def test_a_full_disk_fails_all_and_returns_their_memory() -> None:
    fs = CrashingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders")
        door = Door(broker)
        fs.fail("write", 28, path_ends=".log")
        for name in "ab":
            assert door.send(name, batch(name.encode()))
        found = await door.answered(2)
        assert [error.code for _, error in found] == ["DISK_FULL", "DISK_FULL"]
        assert door.send("c", batch(b"c"))
        assert (await door.answered(3))[2] == ("c", 0)
        door.check_free()


@in_loop
async def test_batches_that_wait_for_a_follower_time_out_and_are_freed() -> None:
    async with ReplicationWorld(SoloBroker(CrashingFileSystem())) as here:
        await here.topic("orders")
        door = Door(here.broker)
        assert door.send("quick", batch(b"1"), committed=False)
        assert door.send("late", batch(b"2"), timeout_ms=1)
        found = await door.answered(2)
        assert found[0] == ("quick", 0)
        assert isinstance(found[1][1], RequestTimedOutError)
        assert here.leader("orders").waiting[0] == 0
        door.check_free()


@in_loop
async def test_a_batch_that_is_refused_does_not_wait_for_the_commit_of_the_others() -> None:
    async with ReplicationWorld(SoloBroker(CrashingFileSystem())) as here:
        await here.topic("orders")
        door = Door(here.broker)
        follower = here.follower()
        follower.hello()
        assert door.send("one", idempotent(1, 0))
        assert door.send("refused", idempotent(1, 7))
        assert door.send("two", idempotent(2, 0))
        (found,) = await door.answered(1)
        assert found[0] == "refused"
        assert isinstance(found[1], OutOfOrderSequenceNumberError)
        follower.join(1, "orders")
        await until(lambda: len(list(split_batches(follower.records(1)))) == 2)
        follower.ack(1, 2)
        assert (await door.answered(3))[1:] == [("one", 0), ("two", 1)]
        follower.handler.on_closed()
        door.check_free()


@in_loop
async def test_an_answer_that_fails_costs_the_others_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        door = Door(broker)

        def fail(*_: object) -> None:
            raise ValueError("a client's fault")

        told, door.answers = door.answers, cast("Any", SimpleNamespace(append=fail))
        assert door.send("a", batch(b"1"))
        door.answers = told
        assert door.send("b", batch(b"2"))
        assert await door.answered(1) == [("b", 1)]
        assert "a client's fault" in caplog.text
        door.check_free()


@in_loop
async def test_under_load_the_batches_of_several_passes_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until each client of the last window has a request in progress, or the timer is over."""
    monkeypatch.setattr(joining, "BUSY", 4)
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        door = Door(broker)
        clients = [Client(host="10.0.0.1", listener="kafka") for _ in range(4)]

        async def window() -> None:
            """All clients send, each in a pass of its own."""
            for client in clients:
                door.client = client
                assert door.send("x", batch(b"x"))
                await asyncio.sleep(0)
            await until(lambda: not door.joiner._load.in_progress)

        await window()
        before = appends_of(broker)
        assert before > 1, "nobody is known yet"
        door.joiner._load.began_s -= joining.WINDOW_S
        await window()
        assert appends_of(broker) == before + 1
        assert not door.joiner._timer

        door.client = clients[0]
        assert door.send("alone", batch(b"y"))
        assert door.joiner._timer is not None
        assert (await door.answered(9))[-1] == ("alone", 8), "the timer ends the wait"

        assert door.send("overtaken", batch(b"z"))
        handler, stream = broker.producer()
        handler.on_request(produce(1, "orders", batch(b"other")))
        assert [each.results[0].base_offset for each in await stream.wait_sent(1)] == [10]
        assert door.answers[-1] == ("overtaken", 9)
        handler.on_closed()
        door.check_free()


@in_loop
async def test_a_pause_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "BUSY", 1)
    async with SoloBroker(CrashingFileSystem()) as broker:
        await broker.topic("orders")
        door = Door(broker)
        for count in (1, 2):
            assert door.send("x", batch(b"x"))
            await door.answered(count)
            door.joiner._load.began_s -= 2 * joining.WINDOW_S
        assert door.send("after a pause", batch(b"x"))
        assert door.joiner._timer is None
        await door.answered(3)
