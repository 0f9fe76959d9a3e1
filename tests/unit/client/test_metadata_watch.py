"""How the metadata watch ends its gRPC stream, and when it opens the next one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.engine import watch as module
from headrace.engine.metadata import MetadataCache
from headrace.engine.watch import MetadataWatch
from headrace.settings import PRODUCER, resolve
from headrace_protos.v1 import metadata_pb2


class Stream:
    """A call that receives no messages. The method ``cancel`` of the call ends the waiting read, as in grpc.aio."""

    def __init__(self) -> None:
        self.reading = asyncio.Event()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reads_cancelled = 0

    async def read(self) -> None:
        self.reading.set()
        try:
            await asyncio.shield(self.over)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            self.reads_cancelled += task.cancelling()
            raise

    def cancel(self) -> None:
        self.over.cancel()


class Broker:
    """The stand-in for Connections and its stub."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.topics: list[int] = []  # the number of topics of each stream

    def metadata(self, address: str) -> Broker:
        return self

    def WatchMetadata(self, request: Any) -> Stream:
        stream = Stream()
        self.topics.append(len(request.topics))
        self.streams.put_nowait(stream)
        return stream


def test_a_watch_that_ends_leaves_its_read_to_the_call() -> None:
    """gRPC leaks the memory of a read whose task is cancelled, so the watch ends the call instead. The end of the call
    ends the read, too."""

    async def check() -> None:
        broker, wanted, changed, grown = Broker(), {"orders"}, asyncio.Event(), asyncio.Event()
        watch = MetadataWatch(
            broker, changed, grown, lambda: wanted, lambda: ["here:1"], lambda *_: None, lambda _: 0.0
        )  # type: ignore[arg-type]
        task = asyncio.create_task(watch.run())
        first = await broker.streams.get()
        await first.reading.wait()
        wanted.add("payments")
        changed.set()
        second = await broker.streams.get()  # the topics that the client wants now
        await second.reading.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert first.over.cancelled()
        assert second.over.cancelled()
        assert (first.reads_cancelled, second.reads_cancelled) == (0, 0)

    asyncio.run(asyncio.wait_for(check(), 30))


@pytest.mark.parametrize("moves", [False, True])
def test_many_new_topics_open_few_streams(moves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first response of a stream describes all its topics, so a stream for each new topic would cost time in the
    square of their number. A move to another broker does not wait."""
    if moves:
        monkeypatch.setattr(module, "GROWTH_S", 3_600)

    async def check() -> None:
        broker, wanted, changed, grown = Broker(), {"t0"}, asyncio.Event(), asyncio.Event()
        watch = MetadataWatch(
            broker, changed, grown, lambda: wanted, lambda: ["here:1"], lambda *_: None, lambda _: 0.0
        )  # type: ignore[arg-type]
        task = asyncio.create_task(watch.run())
        await (await broker.streams.get()).reading.wait()
        for number in range(1, 100):
            wanted.add(f"t{number}")
            grown.set()
            await asyncio.sleep(0)
        if moves:
            changed.set()
        await (await broker.streams.get()).reading.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert broker.topics == [1, 100]

    asyncio.run(asyncio.wait_for(check(), 30))


def test_metadata_of_topics_that_have_not_changed_stay_the_same_objects() -> None:
    """Producers skip such topics: with thousands of topics, each response would cost milliseconds."""

    def answer(epoch: int) -> metadata_pb2.MetadataResponse:
        topics = [
            metadata_pb2.TopicMetadata(
                name=name,
                topic_id=name.encode() * 16,
                partitions=[metadata_pb2.PartitionMetadata(partition=0, leader_id=1, leader_epoch=leader_epoch)],
            )
            for name, leader_epoch in (("a", 1), ("b", epoch))
        ]
        return metadata_pb2.MetadataResponse(topics=topics)

    cache = MetadataCache(resolve(PRODUCER, None, {}), None)  # type: ignore[arg-type]
    cache._absorb(answer(1), ["a", "b"])
    first = cache.snapshot.topics
    cache._absorb(answer(2), ["a", "b"])
    second = cache.snapshot.topics
    assert second["a"] is first["a"]
    assert second["b"].partitions[0].leader_epoch == 2
