"""A link between two brokers breaks silently: the leader ends the stream, and the follower sends heartbeats."""

from __future__ import annotations

import asyncio

import pytest

from headrace_broker.handlers import replication
from headrace_broker.partition import push_stream
from headrace_broker.replication import follower_streams
from headrace_core.errors import NetworkError
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_protos.v1.replication_pb2 import FollowRequest, FollowResponse
from tests.scenarios.broker.test_follower_streams import Replica, at, world
from tests.worlds.replication_messages import a_push, a_request
from tests.worlds.replication_world import ReplicationWorld
from tests.worlds.solo_broker import SoloBroker
from tests.worlds.waiting import until_async as until


def test_a_follower_that_sends_heartbeats_and_falls_silent_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_stream, "SILENCE_MS", 40)

    async def scenario() -> None:
        async with ReplicationWorld(SoloBroker(CrashingFileSystem())) as world:
            await world.topic("orders")
            follower = world.follower()
            follower.hello(sends_heartbeats=True)
            follower.join(1, "orders")
            await world.append("orders", b"one")
            # later pushes stay in the stream, and do not delay the decision that the link is broken
            follower.reads = False
            await world.append("orders", b"two")
            assert world.leader("orders").log_watchers
            await until(lambda: follower.stream.ended is not None)
            assert isinstance(follower.stream.ended, NetworkError)
            assert not world.leader("orders").log_watchers

    asyncio.run(scenario())


def test_a_follower_that_says_nothing_but_that_it_is_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push_stream, "SILENCE_MS", 300)
    monkeypatch.setattr(replication, "STALLED_MS", 1)  # a pause of the machine does not count as silence

    async def scenario() -> None:
        async with ReplicationWorld(SoloBroker(CrashingFileSystem())) as world:
            await world.topic("orders")
            current, older = world.follower(), world.follower()
            current.hello(sends_heartbeats=True)
            started = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < started + 0.7:
                current.say(a_request())
                await asyncio.sleep(0.02)
            assert current.stream.ended is None
            older.hello()  # replaces the other one; an older version sends no heartbeats, so its silence proves nothing
            assert older.handler._silence is None

    asyncio.run(scenario())


def test_a_follower_says_that_it_is_there_while_it_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_streams, "HEARTBEAT_S", 0.02)

    async def scenario() -> None:
        async with world() as (leader, streams):
            said: list[FollowRequest] = []
            take = leader.said

            def noting(stream: object, request: FollowRequest) -> None:
                said.append(request)
                take(stream, request)  # type: ignore[arg-type]

            leader.said = noting  # type: ignore[method-assign]
            replica = Replica(streams)
            streams.metadata_changed(at(leader.port))
            streams.join(replica)
            await until(lambda: replica.is_following and said.count(a_request()) >= 3)
            assert leader.hellos[0].sends_heartbeats
            assert replica.losses == 0

    asyncio.run(scenario())


def test_a_leader_says_that_it_is_there_to_followers_that_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "HEARTBEAT_S", 0.02)

    async def scenario() -> None:
        async with ReplicationWorld(SoloBroker(CrashingFileSystem())) as world:
            older = world.follower()
            older.hello()
            assert not older.stream.sent, "one of an older version would not know what to make of it"
            follower = world.follower()
            follower.hello(sends_heartbeats=True)
            await until(lambda: follower.got.count(FollowResponse(sends_heartbeats=True)) >= 3)
            follower.handler.on_closed()
            assert follower.handler._heartbeat_timer is None

    asyncio.run(scenario())


def test_a_follower_that_hears_nothing_ends_the_stream_and_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is cut in one direction: the leader still gets the follower's heartbeats."""
    monkeypatch.setattr(follower_streams, "SILENCE_S", 0.1)

    async def scenario() -> None:
        async with world() as (leader, streams):
            replica = Replica(streams)
            streams.metadata_changed(at(leader.port))
            streams.join(replica)
            await until(lambda: replica.is_following)
            leader.push(a_push(replica.handle, b"of an older leader, which does not speak", 0, 0))
            await until(lambda: len(replica.pushes) == 1)
            first = leader.streams[-1]
            first.send(FollowResponse(sends_heartbeats=True))
            await until(lambda: len(leader.joins) == 2)
            assert replica.losses == 1
            assert first not in leader.streams, "the leader heard that the stream is over"

    asyncio.run(scenario())


def test_each_silent_stream_doubles_the_time_until_something_is_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the doubled limit, a push that takes longer than the silence limit would never arrive."""
    monkeypatch.setattr(follower_streams, "SILENCE_S", 0.05)
    monkeypatch.setattr(follower_streams, "SILENCE_MOST_S", 0.1)

    async def scenario() -> None:
        async with world() as (leader, streams):
            replica = Replica(streams)
            streams.metadata_changed(at(leader.port))
            streams.join(replica)
            stream = next(iter(streams._streams.values()))
            for lost, silence_s in enumerate((0.05, 0.1, 0.1)):
                await until(lambda: replica.is_following)
                assert stream._silence_s == silence_s
                leader.streams[-1].send(FollowResponse(sends_heartbeats=True))
                await until(lambda lost=lost: replica.losses > lost)
            await until(lambda: replica.is_following)
            leader.push(a_push(replica.handle, b"records", 0, 0))
            await until(lambda: len(replica.pushes) == 1)
            assert stream._silence_s == 0.05

    asyncio.run(scenario())
