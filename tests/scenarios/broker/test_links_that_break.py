"""A link between two brokers that breaks without a word: the leader ends the stream, and the follower says that it is
there as long as it is."""

from __future__ import annotations

import asyncio

import pytest
from replication_world import ReplicationWorld, until
from solo_broker import SoloBroker
from test_follower_streams import Replica, at, world

from headrace_broker.handlers import replication
from headrace_broker.partition.messages import Request
from headrace_broker.replication import follower_streams, leading
from headrace_core.errors import NetworkError
from headrace_core.testing.crashing_fs import CrashingFileSystem


def test_a_follower_that_speaks_and_falls_silent_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "SILENCE_MS", 40)

    async def scenario() -> None:
        async with ReplicationWorld(SoloBroker(CrashingFileSystem())) as world:
            await world.topic("orders")
            follower = world.follower()
            follower.hello(speaks=True)
            follower.join(1, "orders")
            await world.append("orders", b"one")
            follower.reads = False  # what is pushed now stays in the stream: it does not hold the verdict up
            await world.append("orders", b"two")
            assert world.leader("orders").is_followed
            await until(lambda: follower.stream.ended is not None)
            assert isinstance(follower.stream.ended, NetworkError)
            assert not world.leader("orders").is_followed

    asyncio.run(scenario())


def test_a_follower_that_says_nothing_but_that_it_is_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "SILENCE_MS", 300)
    monkeypatch.setattr(replication, "STALLED_MS", 1)  # a machine that stands still in between proves nothing

    async def scenario() -> None:
        async with ReplicationWorld(SoloBroker(CrashingFileSystem())) as world:
            await world.topic("orders")
            speaking, older = world.follower(), world.follower()
            speaking.hello(speaks=True)
            started = asyncio.get_running_loop().time()
            while asyncio.get_running_loop().time() < started + 0.7:
                speaking.say(Request())
                await asyncio.sleep(0.02)
            assert speaking.stream.ended is None
            older.hello()  # takes the place of the other one; of an older version nobody knows why it is silent
            assert older.handler._silence is None

    asyncio.run(scenario())


def test_a_follower_says_that_it_is_there_while_it_has_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_streams, "SPEAK_S", 0.02)

    async def scenario() -> None:
        async with world() as (leader, streams):
            said: list[Request] = []
            take = leader.said

            def noting(stream: object, request: Request) -> None:
                said.append(request)
                take(stream, request)  # type: ignore[arg-type]

            leader.said = noting  # type: ignore[method-assign]
            replica = Replica(streams)
            streams.metadata_changed(at(leader.port))
            streams.join(replica)
            await until(lambda: replica.is_following and said.count(Request()) >= 3)
            assert leader.hellos[0].speaks
            assert replica.losses == 0

    asyncio.run(scenario())
