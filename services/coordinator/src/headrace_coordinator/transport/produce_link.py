"""The stream that carries appends to one broker; all shards share the stream.

Appends that arrive in one pass of the event loop share a request: a message costs more than the few records of a shard.
The broker answers a request when all its appends are committed. The answers of a request therefore arrive together, and
so do the next appends of its shards. Only appends that wait for the same replicas share a request, so a follower that
hangs delays no append that does not need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import NamedTuple

from headrace_core.errors import HeadraceError, NetworkError, RequestTimedOutError
from headrace_core.rpc import ChannelPurpose
from headrace_core.rpc.request_link import RequestLink
from headrace_protos.v1 import produce_pb2, produce_pb2_grpc

_SLACK_S = 1.0  #: Seconds to wait for an answer to an append, in addition to the broker's timeout.
#: Maximum number and bytes of appends in one request. A larger append is sent alone, because a broker refuses a whole
#: request that is too large.
TOGETHER_MAX, TOGETHER_BYTES_MAX = 100, 256 * 1024


class _Append(NamedTuple):
    partition: produce_pb2.ProducePartition
    timeout_s: float
    result: asyncio.Future[produce_pb2.ProducePartitionResult]


class _Together:
    """Appends that share a request."""

    __slots__ = ("appends", "bytes", "names", "task")

    def __init__(self) -> None:
        self.appends: list[_Append] = []
        self.names: set[tuple[str, int]] = set()
        self.bytes = 0
        self.task: asyncio.Task[None] | None = None  #: Sends the request; None before the next pass of the event loop.

    def has_room(self, partition: produce_pb2.ProducePartition) -> bool:
        """Whether the append fits. A request names a partition once."""
        return (
            len(self.appends) < TOGETHER_MAX
            and self.bytes + len(partition.records) <= TOGETHER_BYTES_MAX
            and (partition.topic, partition.partition) not in self.names
        )

    def add(self, append: _Append) -> None:
        self.appends.append(append)
        self.names.add((append.partition.topic, append.partition.partition))
        self.bytes += len(append.partition.records)

    def left(self) -> None:
        """Called when a caller of an append has disconnected. If no caller remains and the request is not written yet,
        the request is not sent."""
        if self.task is not None and all(append.result.done() for append in self.appends):
            self.task.cancel()


class ProduceLink:
    """Appends to partitions that the broker at ``address`` leads. Call all methods in one event loop."""

    def __init__(self, address: str) -> None:
        def check(request: produce_pb2.ProduceRequest, response: produce_pb2.ProduceResponse) -> None:
            if len(response.results) != len(request.partitions):
                raise NetworkError(f"{address}: {len(response.results)} results for {len(request.partitions)} appends")

        self._address = address
        self._link: RequestLink[produce_pb2.ProduceRequest, produce_pb2.ProduceResponse] = RequestLink(
            address,
            ChannelPurpose.PRODUCE,
            lambda channel: produce_pb2_grpc.ProduceStub(channel).Produce(),  # type: ignore[no-untyped-call]
            what="an append",
            check=check,
        )
        #: Appends that the next pass of the event loop sends, by the replicas that they wait for.
        self._unsent: dict[Hashable, _Together] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(
        self, partition: produce_pb2.ProducePartition, timeout_s: float, replicas: Hashable = None
    ) -> produce_pb2.ProducePartitionResult:
        """Return the result of one append with acks=all. ``replicas``: the replicas that the append waits for. Raises
        the errors of RequestLink.ask."""
        loop = asyncio.get_running_loop()
        together = self._unsent.get(replicas)
        if together is None or not together.has_room(partition):
            together = self._unsent[replicas] = _Together()
            loop.call_soon(self._send, replicas, together)
        append = _Append(partition, timeout_s, loop.create_future())
        together.add(append)
        try:
            async with asyncio.timeout(timeout_s + _SLACK_S):
                return await append.result
        except TimeoutError:
            raise RequestTimedOutError(
                f"{self._address}: no answer to an append for {timeout_s + _SLACK_S:g} s"
            ) from None
        finally:
            together.left()
            del append, together  # the traceback of an error keeps this frame

    async def close(self) -> None:
        """Fail pending appends."""
        await self._link.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _send(self, replicas: Hashable, together: _Together) -> None:
        if self._unsent.get(replicas) is together:
            del self._unsent[replicas]
        together.appends = [append for append in together.appends if not append.result.done()]
        if together.appends:
            task = asyncio.get_running_loop().create_task(
                self._ask(together.appends), name=f"appends to {self._address}"
            )
            together.task = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, appends: list[_Append]) -> None:
        timeout_s = max(append.timeout_s for append in appends)
        request = produce_pb2.ProduceRequest(
            acks=produce_pb2.ACKS_ALL,
            timeout_ms=max(int(timeout_s * 1_000), 1),
            partitions=[append.partition for append in appends],
        )
        try:
            response = await self._link.ask(request, timeout_s + _SLACK_S)
        except HeadraceError as error:
            for append in appends:
                if not append.result.done():
                    append.result.set_exception(error.copy())
            return
        for append, result in zip(appends, response.results, strict=True):
            if not append.result.done():
                append.result.set_result(result)
