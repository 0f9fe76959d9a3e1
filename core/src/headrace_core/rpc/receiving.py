"""Receive requests: check each request against the limits before it is parsed, and never raise an exception in the
deserializer.

gRPC calls a deserializer with a message's bytes. When the deserializer raises, grpc.aio ends a unary call on the server
with UNKNOWN and a stack trace; on a client's side a read returns None. Because the deserializer must not raise, it
always returns an ``Arrival``, and the handler ends the call with the typed error in the ``Arrival``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ..errors import HeadraceError, InvalidRequestError
from .limits import RequestCheck
from .memory import give_memory_back

#: Maximum bytes of refused requests that a listener receives per second, over all connections. Receiving 1 MiB blocks
#: the event loop for one to two milliseconds, so refused requests cost the event loop less than half a percent of its
#: time.
REFUSED_BYTES_PER_S = 2 * 1024 * 1024
#: Minimum number of bytes that the penalty counts for a refused request. To receive and to refuse a request of a few
#: bytes costs a tenth of a millisecond or more, so a listener refuses at most about 500 requests per second.
REFUSED_BYTES_MIN = 4 * 1024
PENALTY_S_MAX = 30.0  #: Longest penalty of a connection, in seconds.
#: Size in bytes from which the memory of a refused request is returned to the system (memory.py).
LARGE_REFUSED_BYTES = 1024 * 1024
ANSWER_PAUSE_S_MAX = 2.0  #: Longest delay in seconds of the response to a refused request.


class Penalties:
    """Delays the next requests of a connection after the listener has refused a request of the connection. A larger
    refused request causes a longer delay.

    The penalties of all connections follow one another, so many connections with refused requests cost no more than one
    such connection. Unread bytes of a penalized connection stay in gRPC's flow-control window, or with the client if
    the window is full. When a penalized connection ends, the requests that wait are dropped unread.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, give_back: Callable[[], object] = give_memory_back
    ) -> None:
        """``give_back``: called after a refused request that is so large that its memory should be returned to the
        system."""
        self._clock = clock
        self._give_back = give_back
        self.until_s: dict[str, float] = {}  #: End of each connection's penalty; empty if there is no penalty.
        self._free_s = 0.0

    def add(self, peer: str, size: int) -> float:
        """Add a penalty to the connection ``peer``, which sent ``size`` refused bytes; returns for how many seconds the
        connection is not read."""
        left_s = self._count(size)
        self._pause(peer)
        return left_s

    def _count(self, size: int) -> float:
        """Count ``size`` refused bytes; returns the seconds until their penalty is over."""
        if size >= LARGE_REFUSED_BYTES:
            self._give_back()
        now = self._clock()
        self._free_s = min(
            max(self._free_s, now) + max(size, REFUSED_BYTES_MIN) / REFUSED_BYTES_PER_S, now + PENALTY_S_MAX
        )
        return self._free_s - now

    def _pause(self, peer: str) -> None:
        until_s, now = self.until_s, self._clock()  # in the order of the ends
        until_s.pop(peer, None)
        until_s[peer] = self._free_s
        # Remove penalties that are over. On a busy machine even the new penalty may be over: the process may wait
        # longer than 2 ms for a processor.
        while until_s and until_s[first := next(iter(until_s))] <= now:
            del until_s[first]

    def left_s(self, peer: str) -> float:
        """Return for how many more seconds the connection ``peer`` is not read."""
        return max(self.until_s.get(peer, 0.0) - self._clock(), 0.0)

    async def over(self, context: Any) -> None:
        """Wait until requests of the call's connection may be read."""
        if (left_s := self.left_s(context.peer())) > 0:
            await asyncio.sleep(left_s)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A received request of ``size`` bytes: its parsed ``message``, or the ``error`` for the response."""

    message: Any
    size: int
    penalties: Penalties
    error: HeadraceError | None = None

    async def punish(self, context: Any) -> None:
        """Add a penalty to the call's connection for the refused request, and delay the response."""
        await asyncio.sleep(min(self.penalties.add(context.peer(), self.size), ANSWER_PAUSE_S_MAX))


def arrivals_of(
    handler: grpc.RpcMethodHandler, path: str, penalties: Penalties | None = None
) -> Callable[[bytes], Arrival]:
    """Return the deserializer for ``handler``, which serves ``path`` ("/headrace.v1.Produce/Produce")."""
    kept = Penalties() if penalties is None else penalties
    parse = handler.request_deserializer
    package, _, method = path.rpartition("/headrace.v1.")
    check: RequestCheck | None = None
    unchecked_bytes = 0
    if package == "" and method != path:  # (services of libraries, such as health, have no limits in LIMITS)
        check = RequestCheck(method, parse.__self__.DESCRIPTOR)
        unchecked_bytes = check.unchecked_bytes

    def arrive(data: bytes) -> Arrival:
        size = len(data)
        if size > unchecked_bytes and check is not None and (error := check(data)) is not None:
            return Arrival(None, size, kept, error)
        try:
            return Arrival(parse(data), size, kept)
        except DecodeError as failure:
            return Arrival(None, size, kept, unreadable(path, failure))

    return arrive


def unreadable(path: str, failure: object) -> InvalidRequestError:
    """Return the error for bytes that are no valid request of ``path``."""
    return InvalidRequestError(f"{path}: the request is not a valid protobuf message: {failure}")
