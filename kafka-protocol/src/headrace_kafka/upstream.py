"""What a request of Kafka's clients asks of others: of this broker's own services in the process, and of coordinators
by gRPC.

A node accepts only 32 calls at once on one connection, and a JoinGroup can last minutes. So there is a pool of channels
for each coordinator, and each channel has its own connection. A call takes the first channel with fewer than
``CALLS_MAX`` calls in flight. If all channels are full, the pool opens a new channel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    HeadraceError,
    NetworkError,
    NotCoordinatorError,
    RequestTimedOutError,
    ServerBusyError,
)
from headrace_core.membership.node_links import NodeLinks
from headrace_core.rpc.channel import REPLACED_S, ChannelPurpose, Channels
from headrace_core.rpc.limits import RequestCheck
from headrace_core.rpc.status import error_from_rpc

from .client import Client
from .cluster import Cluster

CALLS_MAX = 24  #: Maximum number of calls in flight on one channel; a node accepts 32 calls on a connection.
CHANNELS_MAX = 250  #: Maximum number of channels to one node: together 6,000 calls in flight.
TIMEOUT_MS_MAX = 3_600_000  #: Upper limit of the timeout that a client requests, in milliseconds.
#: Seconds that a call waits, after NOT_COORDINATOR or a failed connection, for metadata that names another coordinator.
NEWER_METADATA_S = 0.5
#: Seconds that a request waits while its coordinator loads groups or transactional ids. The shards of a new internal
#: topic take nearly a second to load on a busy machine, and several clients would give up earlier.
LOADED_WITHIN_S = 2.0
#: First pause in seconds between two requests to a coordinator that is loading. Each further pause before a request to
#: a loading coordinator is twice as long, up to the maximum.
LOADED_PAUSE_S, LOADED_PAUSE_S_MAX = 0.05, 0.5

#: From this number of bytes on, a request's size and number of items are checked before it is sent.
CHECKED_BYTES = 16 * 1024

Stub = Callable[[grpc.aio.Channel], Any]
_checks: dict[str, RequestCheck] = {}


class Upstream:
    """``own(client, stub, method, request, timeout_ms)`` calls this broker's service in the process, with the client's
    rights; ``open_produce(client)`` and ``open_fetch(client)`` open streams to its logs. ``has_traces``: whether the
    broker exports traces, and looks for their contexts in the headers of uncompressed records. All methods raise
    HeadraceError. ``timeout_ms`` limits a whole call."""

    def __init__(
        self,
        cluster: Cluster,
        channels: Channels,
        *,
        own: Callable[[Client, Stub, str, Any, float], Awaitable[Any]],
        open_produce: Callable[[Client], Any],
        open_fetch: Callable[[Client], Any],
        has_traces: bool = False,
    ) -> None:
        self.own, self.open_produce, self.open_fetch = own, open_produce, open_fetch
        self.has_traces = has_traces
        self.channels = channels
        self._cluster = cluster
        self._pools: NodeLinks[_Pool] = NodeLinks(cluster.state)

    async def close(self) -> None:
        await self._pools.close()

    async def coordinator(
        self, client: Client, kind: str, key: str, stub: Stub, method: str, request: Any, timeout_ms: float
    ) -> Any:
        """Call the coordinator that owns the shard of ``key``; ``kind``: "group" or "transaction". After
        NOT_COORDINATOR or a failed connection, repeat the call once if the metadata names another owner within
        NEWER_METADATA_S. While the coordinator is loading, repeat the call for up to LOADED_WITHIN_S. Raises
        NotCoordinatorError and CoordinatorNotAvailableError."""
        deadline = _deadline(timeout_ms)
        return await when_loaded(
            lambda: self._coordinator(client, kind, key, stub, method, request, deadline), _is_loading
        )

    async def _coordinator(
        self, client: Client, kind: str, key: str, stub: Stub, method: str, request: Any, deadline: float
    ) -> Any:
        address = self._cluster.owner_address(kind, key)
        try:
            return await self.call(client, address, stub, method, request, deadline)
        except NotCoordinatorError as error:
            failure: HeadraceError = error
        except NetworkError as error:
            if error.was_sent:  # the client looks up the coordinator again, and repeats the request
                raise NotCoordinatorError(str(error)) from None
            failure = CoordinatorNotAvailableError(str(error))
        other = await self._other_owner(kind, key, address, min(deadline, time.monotonic() + NEWER_METADATA_S))
        if other is None:
            raise failure
        try:
            return await self.call(client, other, stub, method, request, deadline)
        except NetworkError as error:
            raise NotCoordinatorError(str(error)) from None

    async def call(self, client: Client, address: str, stub: Stub, method: str, request: Any, deadline: float) -> Any:
        """Call ``method`` of the node at ``address``. ``deadline`` is a value of time.monotonic()."""
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise RequestTimedOutError(f"{method}: timed out before the request was sent")
        check(method, stub, request)
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools[address] = _Pool(address, self.channels)
        channel = pool.take()
        try:
            return await channel.method(stub, method)(request, timeout=left_s, metadata=client.metadata)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, address) from None
        except grpc.aio.UsageError:  # the channel was closed: the node has left the cluster
            lost = NetworkError(f"{address}: the node is not registered any more")
            lost.was_sent = False
            raise lost from None
        finally:
            channel.calls -= 1

    async def _other_owner(self, kind: str, key: str, address: str, deadline: float) -> str | None:
        """Wait until the metadata names an owner other than ``address``, and return its address; None if ``deadline``
        passes first."""
        changed = asyncio.Event()
        unwatch = self._cluster.state.watch(lambda image, delta: changed.set())
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.001)):
                while True:
                    changed.clear()
                    try:
                        owner = self._cluster.owner_address(kind, key)
                    except CoordinatorNotAvailableError:
                        owner = address
                    if owner != address:
                        return owner
                    await changed.wait()
        except TimeoutError:
            return None
        finally:
            unwatch()


async def when_loaded(ask: Callable[[], Awaitable[Any]], is_loading: Callable[[Any], bool]) -> Any:
    """Call ``ask`` until ``is_loading`` is False for its answer. CoordinatorLoadInProgressError counts as loading, too.
    After LOADED_WITHIN_S, return the last answer or raise the last error."""
    until = time.monotonic() + LOADED_WITHIN_S
    pause_s = LOADED_PAUSE_S
    while True:
        try:
            answer = await ask()
        except CoordinatorLoadInProgressError:
            if time.monotonic() >= until:
                raise
        else:
            if not is_loading(answer) or time.monotonic() >= until:
                return answer
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LOADED_PAUSE_S_MAX)


def _is_loading(answer: Any) -> bool:
    """Whether an answer says that the coordinator is still loading the group or transactional id. The first result
    decides, because all results in the answer of a loading coordinator have the same error."""
    for name in ("groups", "transactions", "results"):
        for each in getattr(answer, name, ()):
            return bool(each.error.code == CoordinatorLoadInProgressError.number)
    return hasattr(answer, "error") and bool(answer.error.code == CoordinatorLoadInProgressError.number)


def check(method: str, stub: Stub, request: Any) -> None:
    """Raise an error for a request that a node would refuse because of its size. A node stops reading a connection for
    some time after a request that is too large, and other clients share the connection. Raises InvalidRequestError."""
    if request.ByteSize() <= CHECKED_BYTES:
        return
    service = f"{stub.__name__.removesuffix('Stub')}/{method}"
    check = _checks.get(service)
    if check is None:
        check = _checks[service] = RequestCheck(service, request.DESCRIPTOR)
    error = check(request.SerializeToString())
    if error is not None:
        raise error


def _deadline(timeout_ms: float) -> float:
    return time.monotonic() + min(max(timeout_ms, 1), TIMEOUT_MS_MAX) / 1_000


class _Channel:
    """A gRPC channel with its own connection, and the methods of its stubs."""

    __slots__ = ("_channel", "_methods", "_stubs", "calls")

    def __init__(self, address: str, channels: Channels) -> None:
        self._channel = channels.open(address, ChannelPurpose.KAFKA)
        self._stubs: dict[Stub, Any] = {}
        self._methods: dict[tuple[Stub, str], Any] = {}
        self.calls = 0  #: Calls in flight.

    def method(self, stub: Stub, name: str) -> Any:
        method = self._methods.get((stub, name))
        if method is None:
            if stub not in self._stubs:
                self._stubs[stub] = stub(self._channel)
            method = self._methods[(stub, name)] = getattr(self._stubs[stub], name)
        return method

    async def close(self, grace_s: float | None = None) -> None:
        await self._channel.close(grace_s)


class _Pool:
    """The channels to one node. When the broker's certificate changes, the pool opens other channels; calls in
    progress on the old channels have REPLACED_S to end."""

    __slots__ = ("_address", "_channels", "_former", "_generation", "_open")

    def __init__(self, address: str, channels: Channels) -> None:
        self._address = address
        self._open = channels
        self._generation = channels.generation
        self._channels: list[_Channel] = []
        self._former: set[asyncio.Task[None]] = set()

    def take(self) -> _Channel:
        """Return a channel with fewer than CALLS_MAX calls, and add the new call to the channel's ``calls``; the caller
        must subtract the call later. The first channels in the pool are filled first. Raises ServerBusyError."""
        if self._open.generation != self._generation:
            self._replace()
        for channel in self._channels:
            if channel.calls < CALLS_MAX:
                channel.calls += 1
                return channel
        if len(self._channels) >= CHANNELS_MAX:
            raise ServerBusyError(f"{self._address}: {CALLS_MAX * CHANNELS_MAX} calls are in progress; retry")
        channel = _Channel(self._address, self._open)
        channel.calls = 1
        self._channels.append(channel)
        return channel

    def _replace(self) -> None:
        self._generation = self._open.generation
        former, self._channels = self._channels, []
        for channel in former:
            task = asyncio.get_running_loop().create_task(channel.close(REPLACED_S))
            self._former.add(task)
            task.add_done_callback(self._former.discard)

    async def close(self) -> None:
        for task in self._former:
            task.cancel()
        await asyncio.gather(*self._former, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels))
