"""Receive requests: check them against the limits before parsing, with their size, never an exception.

gRPC calls a deserializer with a message's bytes. When it raises, grpc.aio ends a unary call with UNKNOWN and a stack
trace; on a client's side it returns None. So ours always returns an ``Arrival``, and the call's own code ends the call
with the typed error in it.
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

#: Bytes of refused requests that a listener receives a second, over all connections. Receiving a MiB holds the event
#: loop for one to two milliseconds, so repeated refused requests cost it less than one percent.
REFUSED_BYTES_PER_S = 4 * 1024 * 1024
#: Smaller requests need no penalty. The longest penalty.
PENALIZED_BYTES_MIN, PENALTY_S_MAX = 64 * 1024, 30.0
LARGE_REFUSED_BYTES = 1024 * 1024  #: Memory of a refused request of this size is returned (memory.py).
ANSWER_PAUSE_S_MAX = 2.0  #: Longest delay of an answer to a refused request.


class Penalties:
    """Connections of one listener that sent large refused requests: their next requests are read late.

    The penalties of all connections follow one another, so many such connections cost no more than one. Unread bytes
    stay in gRPC's flow-control window, and then with the client.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, give_back: Callable[[], object] = give_memory_back
    ) -> None:
        """``give_back``: called after a request so large that its memory should be returned."""
        self._clock = clock
        self._give_back = give_back
        self._until_s: dict[str, float] = {}
        self._free_s = 0.0

    def add(self, peer: str, size: int) -> float:
        """``peer``, a connection, sent ``size`` refused bytes; returns for how many seconds it is not read."""
        if size < PENALIZED_BYTES_MIN:
            return 0.0
        if size >= LARGE_REFUSED_BYTES:
            self._give_back()
        now = self._clock()
        self._until_s = {each: until for each, until in self._until_s.items() if until > now}
        self._free_s = min(max(self._free_s, now) + size / REFUSED_BYTES_PER_S, now + PENALTY_S_MAX)
        self._until_s[peer] = self._free_s
        return self._free_s - now

    def left_s(self, peer: str) -> float:
        """Seconds for which ``peer`` is not read."""
        return max(self._until_s.get(peer, 0.0) - self._clock(), 0.0)

    async def over(self, context: Any) -> None:
        """Wait until requests of the call's connection may be read; normally returns at once."""
        if self._until_s and (left_s := self.left_s(context.peer())) > 0:
            await asyncio.sleep(left_s)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of ``size`` bytes: the ``message``, or the ``error`` for its answer."""

    message: Any
    size: int
    penalties: Penalties
    error: HeadraceError | None = None

    async def punish(self, context: Any) -> None:
        """The request is refused: add a penalty to the call's connection, and delay the answer."""
        await asyncio.sleep(min(self.penalties.add(context.peer(), self.size), ANSWER_PAUSE_S_MAX))


def arrivals_of(
    handler: grpc.RpcMethodHandler, path: str, penalties: Penalties | None = None
) -> Callable[[bytes], Arrival]:
    """The deserializer of ``handler``, which serves ``path`` ("/headrace.v1.Produce/Produce")."""
    kept = Penalties() if penalties is None else penalties
    parse = handler.request_deserializer
    package, _, method = path.rpartition("/headrace.v1.")
    check: Callable[[bytes], HeadraceError | None] = lambda data: None  # noqa: E731
    if package == "" and method != path:  # (libraries' services, such as health, have no limits here)
        check = RequestCheck(method, parse.__self__.DESCRIPTOR)

    def arrive(data: bytes) -> Arrival:
        size = len(data)
        error = check(data)
        if error is not None:
            return Arrival(None, size, kept, error)
        try:
            return Arrival(parse(data), size, kept)
        except DecodeError as failure:
            return Arrival(None, size, kept, unreadable(path, failure))

    return arrive


def unreadable(path: str, failure: object) -> InvalidRequestError:
    """The error for bytes that are no message of ``path``."""
    return InvalidRequestError(f"{path}: the request is not a valid protobuf message: {failure}")
