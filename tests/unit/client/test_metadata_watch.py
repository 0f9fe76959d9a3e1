"""How the metadata watch ends its gRPC stream."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.engine.watch import MetadataWatch


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

    def metadata(self, address: str) -> Broker:
        return self

    def WatchMetadata(self, request: Any) -> Stream:
        stream = Stream()
        self.streams.put_nowait(stream)
        return stream


def test_a_watch_that_ends_leaves_its_read_to_the_call() -> None:
    """gRPC leaks the memory of a read whose task is cancelled, so the watch ends the call instead. The end of the call
    ends the read, too."""

    async def check() -> None:
        broker, wanted, changed = Broker(), {"orders"}, asyncio.Event()
        watch = MetadataWatch(broker, changed, lambda: wanted, lambda: ["here:1"], lambda *_: None, lambda _: 0.0)  # type: ignore[arg-type]
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
