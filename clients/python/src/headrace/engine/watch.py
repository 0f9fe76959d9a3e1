"""The metadata watch: a stream on which a broker pushes each metadata change of the topics that a client uses.

With the watch, a client learns of a new leader at once, and does not need to poll metadata after the old leader has
failed. Besides the watch, the metadata cache reads metadata by age and after errors, because a watch that hangs reports
nothing.

A broker may hang while its connections stay open: after two seconds of silence the client opens the watch at another
broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc.aio

import headrace_core.rpc as rpc
from headrace_core.errors import HeadraceError, NetworkError, UnsupportedVersionError
from headrace_core.rpc.duplex import read_message
from headrace_core.rpc.limits import ITEMS_MAX
from headrace_protos.v1 import metadata_pb2

from .connections import Connections

logger = logging.getLogger("headrace")

#: How long a stream stays open after the client has begun to use further topics: a fixed time, and a time for each
#: topic of the stream.
GROWTH_S, GROWTH_TOPIC_S = 0.1, 0.0002


class MetadataWatch:
    """The metadata watch of one client; its methods run on the I/O thread. The owner sets ``changed`` when the first
    topic is wanted, or to move the watch to another broker. The owner sets ``grown`` when further topics are wanted,
    whose metadata it has just read. ``wanted()`` returns the topics, ``addresses()`` the nodes to try in random order.
    ``on_answer(answer, names)`` receives each response; ``pause_s(attempt)`` is the wait after a failure."""

    def __init__(
        self,
        connections: Connections,
        changed: asyncio.Event,
        grown: asyncio.Event,
        wanted: Callable[[], set[str]],
        addresses: Callable[[], list[str]],
        on_answer: Callable[[Any, list[str]], object],
        pause_s: Callable[[int], float],
    ) -> None:
        self._changed, self._grown = changed, grown
        self._connections = connections
        self._wanted = wanted
        self._addresses = addresses
        self._on_answer = on_answer
        self._pause_s = pause_s
        self._answers = 0

    async def run(self) -> None:
        """Watch until cancelled, or until no node supports watches."""
        failures, unable = 0, set[str]()
        while True:
            self._changed.clear()
            self._grown.clear()
            # Maximum number of topics in one watch request. The client reads the metadata of further topics again when
            # they are old, and after errors.
            names = sorted(self._wanted())[:ITEMS_MAX]
            if not names:
                await self._changed.wait()
                continue
            candidates = [address for address in self._addresses() if address not in unable]
            if not candidates:
                return
            address = candidates[0]
            answers = self._answers
            try:
                await self._watch(address, names)
            except UnsupportedVersionError:
                unable.add(address)
            except HeadraceError as error:
                failures = 0 if self._answers > answers + 1 else failures + 1
                logger.debug("the metadata watch at %s ended: %s", address, error)
                await asyncio.sleep(self._pause_s(failures))

    async def _watch(self, address: str, names: list[str]) -> None:
        """Read one stream until it breaks (HeadraceError), or until it must be opened again."""
        stream = self._connections.metadata(address).WatchMetadata(metadata_pb2.MetadataRequest(topics=names))
        reader = asyncio.create_task(self._read(stream, address, names))
        change = asyncio.create_task(self._changed.wait())
        growth = asyncio.create_task(self._growth(len(names)))
        try:
            await asyncio.wait({reader, change, growth}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                await reader
        finally:
            # Cancelling the call ends the reader; gRPC leaks the memory of a read whose task is cancelled.
            stream.cancel()
            change.cancel()
            growth.cancel()
            await asyncio.gather(reader, change, growth, return_exceptions=True)

    async def _growth(self, count: int) -> None:
        """Wait until the stream of ``count`` topics lacks topics, and then for others to come. The first response of a
        stream describes all its topics: a stream for each new topic would cost time in the square of their number."""
        await self._grown.wait()
        await asyncio.sleep(GROWTH_S + count * GROWTH_TOPIC_S)

    async def _read(self, stream: Any, address: str, names: list[str]) -> None:
        try:
            while (answer := await read_message(stream)) is not grpc.aio.EOF:
                self._answers += 1
                self._on_answer(answer, names)
            raise NetworkError(f"{address}: the broker ended the metadata watch")
        except grpc.aio.AioRpcError as failure:
            raise rpc.error_from_rpc(failure, address) from None
