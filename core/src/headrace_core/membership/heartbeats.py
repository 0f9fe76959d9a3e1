"""What heartbeats to the leading controller are made of: one stream, where it goes, when it is left.

Brokers and coordinators heartbeat this way (node_session.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..errors import NetworkError
from ..rpc.streams import read_message
from .controllers import Controllers


class HeartbeatStream:
    """This side of one stream of heartbeats, one heartbeat after the other. ``leave`` ends it at any time. ``on_end``
    is told when it has ended, also between two heartbeats: the controllers wait for a node whose connection broke for
    a quarter of an interval only (broker.session.disconnect.grace.ms).

    Writes and reads that are under way are never cancelled by themselves (grpc.aio leaks what they hold): the call is,
    and they end with it. But a call that is cancelled before it has a connection leaves whoever waits to write waiting
    for ever (grpc.aio 1.85), so that wait, which holds nothing, is cancelled.
    """

    def __init__(self, call: Any, *, on_end: Callable[[], None]) -> None:
        self._call = call
        call.add_done_callback(lambda _: on_end())
        self._is_connected = False
        self._exchange: asyncio.Task[Any] | None = None

    def exchange(self, request: Any) -> asyncio.Task[Any]:
        """Write one heartbeat and read its answer. Cancelled: the stream was left."""
        self._exchange = asyncio.create_task(self._write_and_read(request))
        self._exchange.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._exchange

    def leave(self) -> None:
        """An exchange that is under way ends soon."""
        self._call.cancel()
        if self._exchange is not None and not self._is_connected:
            self._exchange.cancel()

    async def done_writing(self) -> None:
        await self._call.done_writing()

    async def _write_and_read(self, request: Any) -> Any:
        if not self._is_connected:
            await self._call.wait_for_connection()
            self._is_connected = True
        try:
            await self._call.write(request)
        except asyncio.InvalidStateError:  # what grpc.aio says of a stream that ended between two heartbeats
            raise NetworkError("the stream of heartbeats has ended") from None
        return await read_message(self._call)


class SilentControllerError(NetworkError):
    """The connection stands, and nobody answers: the process may be frozen."""


class LeadMovedError(Exception):
    """Another controller leads than the one that the heartbeats go to."""


class HeartbeatsGoTo:
    """Where the heartbeats go. Only news is a reason to leave: at first a leader that was not known of when the stream
    began (who is asked since the one that is known does not answer, is heard out), and when one was answered, and so
    led then, a leader of a later epoch; a connection that is broken needlessly looks like a broker that died."""

    def __init__(self, controllers: Controllers, address: str) -> None:
        self._controllers = controllers
        self._address = address
        self._known = controllers.leader_epoch, controllers.leader_id
        self._epoch: int | None = None

    def answered(self) -> None:
        if self._epoch is None:
            self._epoch = self._controllers.leader_epoch

    def has_been_left(self) -> bool:
        leader, epoch = self._controllers.leader_address, self._controllers.leader_epoch
        if leader in (None, self._address):
            return False
        return (epoch, self._controllers.leader_id) != self._known if self._epoch is None else epoch > self._epoch


async def wait_for_event(event: asyncio.Event, timeout_s: float) -> None:
    """Until the event is set, or the time is over."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return
