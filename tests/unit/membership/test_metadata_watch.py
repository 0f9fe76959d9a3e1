"""A metadata watch on a node that is cut off from the controllers ends, so that the client watches another node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_core.errors import FencedBrokerError
from headrace_core.membership import metadata_watch
from headrace_core.membership.metadata_watch import TOO_OLD_MS, MetadataWatch
from headrace_protos.v1 import metadata_pb2


class Context:
    """The server's side of a call whose client reads everything."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.has_written = asyncio.Event()

    async def write(self, message: Any) -> None:
        self.written.append(message)
        self.has_written.set()


class Node:
    def __init__(self, age_ms: float | None) -> None:
        self.age_ms = age_ms
        self.looks = 0
        self.watchers = 0
        self.has_looked_often = asyncio.Event()

    def look(self) -> float | None:
        self.looks += 1
        if self.looks == 5:
            self.has_looked_often.set()
        return self.age_ms

    def subscribe(self, watcher: Any) -> Any:
        self.watchers += 1

        def unsubscribe() -> None:
            self.watchers -= 1

        return unsubscribe

    async def answer(self) -> metadata_pb2.MetadataResponse:
        return metadata_pb2.MetadataResponse(metadata_offset=7)

    def watch(self) -> MetadataWatch:
        return MetadataWatch(metadata_pb2.MetadataRequest(topics=["a"]), self.answer, self.subscribe, self.look)


def test_a_watch_ends_when_the_nodes_metadata_become_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_watch, "LOOK_S", 0.001)

    async def check() -> None:
        node, context = Node(1.0), Context()
        serving = asyncio.create_task(node.watch().serve(context))
        await node.has_looked_often.wait()  # it looks again and again, and says nothing
        assert not serving.done()
        assert len(context.written) == 1
        node.age_ms = TOO_OLD_MS + 1
        with pytest.raises(FencedBrokerError, match="no contact with the controllers for 10 s"):
            await serving
        assert len(context.written) == 1
        assert node.watchers == 0

    asyncio.run(asyncio.wait_for(check(), 30))


def test_a_node_without_contact_begins_no_watch() -> None:
    async def check() -> None:
        node, context = Node(60_000.0), Context()
        with pytest.raises(FencedBrokerError, match="for 60 s"):
            await node.watch().serve(context)
        assert context.written == []

    asyncio.run(asyncio.wait_for(check(), 30))


def test_an_idle_watch_looks_only_from_time_to_time() -> None:
    """Without news it neither sends nor spins."""

    async def check() -> None:
        node, context = Node(None), Context()
        serving = asyncio.create_task(node.watch().serve(context))
        await context.has_written.wait()
        looks = node.looks
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert node.looks - looks <= 2
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    asyncio.run(asyncio.wait_for(check(), 30))
