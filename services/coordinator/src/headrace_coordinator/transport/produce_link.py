"""The stream that carries appends to one broker. All shards share the stream: each append is a request, and its answer
is matched by the correlation id.

When the stream breaks, its pending appends fail, and the next append opens a new stream. A request that was not written
certainly had no effect (``NetworkError.was_sent`` is False).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque

from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError
from headrace_core.rpc import ChannelPurpose
from headrace_core.rpc.duplex import Duplex
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc

logger = logging.getLogger("headrace.coordinator.brokers")

_SLACK_S = 1.0  #: Seconds to wait for an answer to an append, in addition to the broker's timeout.

Stream = Duplex[produce_pb2.ProduceRequest, produce_pb2.ProduceResponse]
Result = produce_pb2.ProducePartitionResult


class ProduceLink:
    """See the module. Call all methods in one event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._correlation = itertools.count(1)
        self._out: deque[produce_pb2.ProduceRequest] = deque()
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._written: set[int] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def append(
        self, partition: produce_pb2.ProducePartition, timeout_s: float
    ) -> produce_pb2.ProducePartitionResult:
        """Return the result of one append with acks=all. Raises NetworkError or RequestTimedOutError; the outcome is
        then unknown, unless ``was_sent`` is False."""
        if self._closed:
            raise _unsent(self._stops())
        number = next(self._correlation)
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
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
            raise RequestTimedOutError(f"{self.address}: no answer to an append for {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)
            self._written.discard(number)
            if self._out and request in self._out:  # no caller waits any more: do not send it
                self._out.remove(request)

    async def close(self) -> None:
        """Fail pending appends."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(self._stops())

    async def _run(self) -> None:
        """Run one stream until it breaks; the next append starts a new stream."""
        stream: Stream = Duplex(
            self.address,
            ChannelPurpose.PRODUCE,
            lambda channel: produce_pb2_grpc.ProduceStub(channel).Produce(),  # type: ignore[no-untyped-call]
        )
        try:
            await stream.run(self._read(stream), self._write(stream))
        except HeadraceError as failure:
            error = failure
        except Exception as failure:  # a bug, here or in the broker: pending appends still need an outcome
            logger.exception("the append stream to %s: unexpected error; reconnecting", self.address)
            error = NetworkError(f"{self.address}: {type(failure).__name__}: {failure}")
        self._task = None
        self._fail(error)

    async def _write(self, stream: Stream) -> None:
        await stream.connected()
        while True:
            self._wake.clear()
            while self._out:
                request = self._out.popleft()
                if not stream.ended:
                    self._written.add(request.correlation_id)
                await stream.write(request)
            await self._wake.wait()

    async def _read(self, stream: Stream) -> None:
        while True:
            response = await stream.read()
            answer = self._waiting.get(response.correlation_id)
            if answer is None or answer.done():
                continue
            if len(response.results) != 1:
                raise NetworkError(f"{self.address}: {len(response.results)} results for one append")
            answer.set_result(response.results[0])

    def _stops(self) -> NetworkError:
        return NetworkError(f"{self.address}: this coordinator is shutting down")

    def _fail(self, error: HeadraceError) -> None:
        """Fail all pending appends."""
        waiting, written = self._waiting, self._written
        self._out.clear()
        if waiting:
            logger.info("the pending appends to %s failed: %s", self.address, error)
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
