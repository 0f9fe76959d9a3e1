"""The stream of appends to one broker. Shards share it: a request for each append, matched by correlation id.

A stream that breaks fails what waits on it, and the next append opens another. What was not written yet has surely had
no effect (``NetworkError.was_sent`` is False).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from typing import Any

import grpc.aio

from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError
from headrace_core.rpc.status import error_from_rpc
from headrace_core.rpc.streams import read_message
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc

from .connecting import connected

logger = logging.getLogger("headrace.coordinator.brokers")

#: How much later than the broker's own time-out an answer may come.
_SLACK_S = 1.0


class ProduceLink:
    """See the module. Lives in one event loop."""

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        self.address = address
        self._stub = produce_pb2_grpc.ProduceStub(channel)  # type: ignore[no-untyped-call]
        self._correlation = itertools.count(1)
        self._out: deque[produce_pb2.ProduceRequest] = deque()
        self._waiting: dict[int, asyncio.Future[produce_pb2.ProducePartitionResult]] = {}
        self._written: set[int] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stream: Any = None
        self._closed = False

    async def append(self, partition: produce_pb2.ProducePartition, timeout_s: float) -> Any:
        """The result of one append with acks=all. NetworkError, RequestTimedOutError: nobody knows, unless
        ``was_sent`` is False."""
        if self._closed:
            raise _unsent(NetworkError(f"{self.address}: this coordinator stops"))
        number = next(self._correlation)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        request = produce_pb2.ProduceRequest(
            correlation_id=number,
            acks=produce_pb2.ACKS_ALL,
            timeout_ms=max(int(timeout_s * 1_000), 1),
            partitions=[partition],
        )
        self._out.append(request)
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"appends to {self.address}")
        try:
            async with asyncio.timeout(timeout_s + _SLACK_S):
                return await answer
        except TimeoutError:
            raise RequestTimedOutError(f"{self.address}: an append was not answered for {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)
            self._written.discard(number)
            if self._out and request in self._out:  # nobody waits for it any more: it had better not be sent
                self._out.remove(request)

    async def close(self) -> None:
        """What waits fails."""
        self._closed = True
        if self._stream is not None:
            self._stream.cancel()
        self._wake.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Streams, one after the other, as long as anything is to be sent."""
        error: HeadraceError = NetworkError(f"{self.address}: the stream of appends has ended")
        try:
            await self._serve()
        except grpc.aio.AioRpcError as failure:
            error = error_from_rpc(failure, self.address)
        except HeadraceError as failure:
            error = failure
        except (asyncio.CancelledError, asyncio.InvalidStateError):  # the call was cancelled, or ended under a write
            pass
        self._task = None
        self._fail(error)

    async def _serve(self) -> None:
        stream = self._stream = self._stub.Produce()
        reader = asyncio.create_task(self._read(stream), name=f"answers of {self.address}")
        reader.add_done_callback(lambda _: self._wake.set())
        try:
            await connected(stream, reader)
            while not (reader.done() or self._closed):
                self._wake.clear()
                while self._out and not reader.done():
                    request = self._out.popleft()
                    self._written.add(request.correlation_id)
                    await stream.write(request)
                if not (self._out or reader.done() or self._closed):
                    await self._wake.wait()
            if reader.done():
                await reader
        finally:
            self._stream = None
            stream.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, stream: Any) -> None:
        while (response := await read_message(stream)) is not grpc.aio.EOF:
            answer = self._waiting.get(response.correlation_id)
            if answer is not None and not answer.done():
                answer.set_result(response.results[0])
        code = await stream.code()
        raise NetworkError(f"{self.address}: the broker ended the stream of appends ({code.name})")

    def _fail(self, error: HeadraceError) -> None:
        """Nobody will answer what waits."""
        waiting, written = self._waiting, self._written
        self._out.clear()
        if waiting:
            logger.info("appends to %s: %s", self.address, error)
        for number, answer in waiting.items():
            if answer.done():
                continue
            failure: HeadraceError = NetworkError(error.message) if not error.retriable else error
            if number not in written:
                failure = _unsent(NetworkError(error.message))
            answer.set_exception(failure)


def _unsent(error: NetworkError) -> NetworkError:
    error.was_sent = False
    return error
