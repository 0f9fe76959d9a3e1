"""Calls of this broker to the active controller, whoever that is at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc.aio

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError, NetworkError, NotControllerError, RequestTimedOutError
from headrace_core.rpc import ChannelPurpose, error_from_rpc, open_channel
from headrace_protos.v1 import admin_pb2_grpc

_RETRY_S = 0.05


class ControllerLink:
    """A channel to each controller's internal listener, opened on first use."""

    def __init__(self, addresses: Sequence[str], clock: Clock) -> None:
        assert addresses, "a broker needs the address of at least one controller"
        self._addresses = tuple(addresses)
        self._clock = clock
        self._active = 0
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def call(self, method: str, request: Any, timeout_ms: int) -> Any:
        """The active controller's answer to an Admin call. A controller that is not active, or cannot be reached,
        makes way for the next one until ``timeout_ms`` are over; then its error is raised. Others are raised at once.
        """
        deadline = self._clock.monotonic_ms() + timeout_ms
        failure: HeadraceError = RequestTimedOutError(f"Admin.{method}: no controller answered within {timeout_ms} ms")
        while (left_ms := deadline - self._clock.monotonic_ms()) > 0:
            address = self._addresses[self._active]
            try:
                return await getattr(self._stub(address), method)(request, timeout=left_ms / 1000)
            except grpc.aio.AioRpcError as error:
                failure = error_from_rpc(error, address)
            if not isinstance(failure, NotControllerError | NetworkError):
                raise failure
            self._active = (self._active + 1) % len(self._addresses)
            await asyncio.sleep(_RETRY_S)
        raise failure

    def _stub(self, address: str) -> Any:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = open_channel(address, ChannelPurpose.CONTROL)
        return admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()
