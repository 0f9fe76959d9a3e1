"""headrace.v1.Admin on the client listener of every controller: forwards to the leader what only it can do.

Because controllers forward Admin calls to the leader, a client may use the address of any controller. The internal
listener does not forward calls: its callers look for the leader themselves. The internal listener forwards no calls, so
that two controllers that take each other for the leader cannot forward in a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from headrace_core.errors import (
    HeadraceError,
    NetworkError,
    NotControllerError,
    ServerShuttingDownError,
    UnsupportedVersionError,
)
from headrace_core.membership.leader_calls import ask_while_it_leads, is_repeatable, outcome_unknown
from headrace_core.rpc import ChannelPurpose, open_channel
from headrace_core.rpc.server import Listener
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc

from ..driver import ControllerDriver
from ..raft import NO_LEADER
from .admin import AdminHandler

#: Calls that every controller answers, whether it leads or not, without forwarding them to the leader.
LOCAL = frozenset({"DescribeConfigs", "DescribeLogDirs", "AlterReplicaLogDirs"})
_WAIT_S_MAX = 30.0  #: Longest wait in seconds for a leader of the controllers, if the request has no deadline.
_RETRY_S = 0.05


class LeaderLink:
    """Channels to the present leader, and to earlier leaders, which may still answer calls."""

    def __init__(self, driver: ControllerDriver) -> None:
        self._driver = driver
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._waiting: set[Callable[[], None]] = set()
        self._seen = NO_LEADER
        driver.on_turn(self._look)

    async def call(self, method: str, request: Any, timeout_s: float) -> Any:
        """Return the leader's answer to an Admin call. Raises NotControllerError (retriable) if no leader is known, or
        if the leader is unreachable or did not answer a read. Raises RequestTimedOutError if it is unknown whether a
        change was made (core/membership/leader_calls.py). Errors other than NotControllerError and RequestTimedOutError
        come from the leader's answer."""
        address = self._address()
        if address is None:
            raise self._driver.controller.not_controller()
        stub = admin_pb2_grpc.AdminStub(self._channel_to(address))  # type: ignore[no-untyped-call]
        try:
            return await ask_while_it_leads(
                getattr(stub, method),
                request,
                address,
                timeout_s,
                leader_address=self._address,
                subscribe=self._subscribe,
            )
        except NetworkError as lost:
            if not lost.was_sent:
                raise NotControllerError(f"cannot reach the leading controller at {address}; retry") from None
            if is_repeatable(method, request):
                raise NotControllerError(f"the leading controller did not answer ({lost}); retry") from None
            raise outcome_unknown(method, lost) from None

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def _address(self) -> str | None:
        driver = self._driver
        return driver.controller.addresses.get(driver.leader_id)

    def _channel_to(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, ChannelPurpose.CONTROL)
        return channel

    def _subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._waiting.add(changed)
        return lambda: self._waiting.discard(changed)

    def _look(self) -> None:
        """Check for a new leader; the driver calls this method after each turn."""
        if self._driver.leader_id != self._seen:
            self._seen = self._driver.leader_id
            for changed in tuple(self._waiting):
                changed()


class AdminThroughAnyController(admin_pb2_grpc.AdminServicer):
    """See the module. This module generates the methods of AdminThroughAnyController, one for each call of the Admin
    service."""

    def __init__(self, driver: ControllerDriver, admin: AdminHandler) -> None:
        self._driver = driver
        self._admin = admin
        self._link = LeaderLink(driver)

    def register(self, listener: Listener) -> None:
        """Serve on ``listener``; call this before the listener starts."""
        listener.add(admin_pb2_grpc.add_AdminServicer_to_server, self, "headrace.v1.Admin")

    async def close(self) -> None:
        """Close the channels; call this after the listener has stopped."""
        await self._link.close()

    async def _led(self, method: str, request: Any, context: Any) -> Any:
        """Get the answer from the leader, on this node or on another; waits while there is no leader."""
        loop = asyncio.get_running_loop()
        left_s = context.time_remaining()
        deadline = loop.time() + (_WAIT_S_MAX if left_s is None else min(left_s, _WAIT_S_MAX))
        local: Callable[[Any, Any], Awaitable[Any]] = getattr(self._admin, method)
        while True:
            failure: HeadraceError
            try:
                if self._driver.is_leader:
                    return await local(request, context)
                return await self._link.call(method, request, max(deadline - loop.time(), 0.001))
            except NotImplementedError:
                raise UnsupportedVersionError(f"{method} is not implemented") from None
            except (NotControllerError, ServerShuttingDownError) as error:  # nothing was changed
                failure = error
            if loop.time() + _RETRY_S >= deadline:
                raise failure
            await asyncio.sleep(_RETRY_S)


def _method(name: str) -> Callable[[AdminThroughAnyController, Any, Any], Any]:
    if name in LOCAL:

        async def local(self: AdminThroughAnyController, request: Any, context: Any) -> Any:
            return await getattr(self._admin, name)(request, context)

        return local

    async def led(self: AdminThroughAnyController, request: Any, context: Any) -> Any:
        return await self._led(name, request, context)

    return led


for _each in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods:
    setattr(AdminThroughAnyController, _each.name, _method(_each.name))
