"""gRPC calls to brokers and coordinators on behalf of Kafka clients.

A node accepts only 32 calls at once on one connection, and a JoinGroup can last minutes. The gateway therefore has a
pool of channels for each node, and each channel has its own connection. A call takes the first channel with fewer than
``CALLS_MAX`` calls in flight. If all channels are full, the pool opens a new channel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    HeadraceError,
    LeaderNotAvailableError,
    NetworkError,
    NotCoordinatorError,
    RequestTimedOutError,
    ServerBusyError,
)
from headrace_core.membership.node_links import NodeLinks
from headrace_core.rpc.channel import PLAINTEXT, REPLACED_S, ChannelPurpose, Channels
from headrace_core.rpc.limits import RequestCheck
from headrace_core.rpc.status import error_from_rpc
from headrace_protos.v1 import fetch_pb2_grpc

from .client import BOOTSTRAP, Client
from .cluster import Cluster
from .links import Link, SharedLinks
from .tracing import GatewayTraces

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

#: From this number of bytes on, the gateway checks a request's size and number of items before it sends the request.
CHECKED_BYTES = 16 * 1024

Stub = Callable[[grpc.aio.Channel], Any]
_checks: dict[str, RequestCheck] = {}


class Upstream:
    """Makes calls to nodes; a gateway has one Upstream. All methods raise HeadraceError. ``timeout_ms`` limits a whole
    call."""

    def __init__(
        self,
        cluster: Cluster,
        produce: SharedLinks | None,
        channels: Channels = PLAINTEXT,
        traces: GatewayTraces | None = None,
    ) -> None:
        """``produce``: the streams for Produce requests that connections share; None if there are none. ``channels``
        opens the channels. ``traces``: None if the gateway exports no traces."""
        self.produce = produce
        self.traces = traces
        self.channels = channels
        self._cluster = cluster
        self._pools: NodeLinks[_Pool] = NodeLinks(cluster.state)

    async def close(self) -> None:
        await self._pools.close()

    def open_produce(self, client: Client) -> Any:
        """The way of a client's Produce requests to the leaders."""
        from .produce_path import Streams

        assert self.produce is not None
        return Streams(client, self.produce, self.channels)

    def open_fetch(self, client: Client, address: str) -> Any:
        """The way of a client's Fetch requests to the broker at ``address``."""
        metadata = client.metadata
        return Link(
            address,
            ChannelPurpose.FETCH,
            lambda channel: fetch_pb2_grpc.FetchStub(channel).Fetch(metadata=metadata),  # type: ignore[no-untyped-call]
            channels=self.channels,
        )

    async def any_broker(self, client: Client, stub: Stub, method: str, request: Any, timeout_ms: float) -> Any:
        """Call an unfenced broker, preferably the broker whose port the client uses. Call another broker only if the
        gateway certainly did not send the request."""
        deadline = _deadline(timeout_ms)
        failure: HeadraceError | None = None
        for address in self._addresses(client.broker_id):
            try:
                return await self.call(client, address, stub, method, request, deadline)
            except NetworkError as error:
                if error.was_sent:
                    raise
                failure = error
        raise failure or LeaderNotAvailableError("no broker is available; retry")

    async def broker(
        self, client: Client, broker_id: int, stub: Stub, method: str, request: Any, timeout_ms: float
    ) -> Any:
        """Call one broker. Raises BrokerIdNotRegisteredError if no broker has the id, and NetworkError if the broker is
        unreachable."""
        address = self._cluster.broker_address(broker_id)
        if address is None:
            raise BrokerIdNotRegisteredError(f"no broker has the id {broker_id}")
        return await self.call(client, address, stub, method, request, _deadline(timeout_ms))

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

    def _addresses(self, preferred: int) -> list[str]:
        """Addresses of the unfenced brokers; the preferred broker first."""
        brokers = [each for each in self._cluster.image.brokers.values() if not each.fenced]
        if preferred != BOOTSTRAP:
            brokers.sort(key=lambda each: each.broker_id != preferred)
        else:  # prefer a broker with an open channel, because its connection exists
            brokers.sort(key=lambda each: self._cluster.grpc_address(each) not in self._pools)
        return [address for each in brokers if (address := self._cluster.grpc_address(each)) is not None]

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
        self._channel = channels.open(address, ChannelPurpose.GATEWAY)
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
    """The channels to one node. When the gateway's certificate changes, the pool opens other channels; calls in
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
