"""Requests as they arrive: checked against the limits before they are parsed, with their size, never an exception.

gRPC calls a deserializer with a message's bytes. When it raises, grpc.aio ends a unary call with UNKNOWN and a stack
trace; on a client's side it hands out None. So ours returns an ``Arrival`` in every case, and the call's own code ends
the call with the typed error in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ..errors import HeadraceError, InvalidRequestError
from .limits import LIMITS, RequestCheck

#: The answer to a refused request waits as long as its bytes take at this rate: a client that sends nothing but large
#: refused requests, one after the other, costs a few percent of the loop.
REFUSED_BYTES_PER_S = 8 * 1024 * 1024
#: Called with the size of a request that was refused unparsed.
OnRefused = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of ``size`` bytes: the ``message``, or the ``error`` that it is answered with."""

    message: Any
    size: int
    error: HeadraceError | None = None

    def opened(self) -> Any:
        """The message; raises the error."""
        if self.error is not None:
            raise self.error
        return self.message


async def pause_after_refusal(size: int) -> None:
    """Before the answer to a refused request of ``size`` bytes."""
    await asyncio.sleep(size / REFUSED_BYTES_PER_S)


def arrivals_of(
    handler: grpc.RpcMethodHandler, path: str, on_refused: OnRefused = lambda size: None
) -> Callable[[bytes], Arrival]:
    """The deserializer of ``handler``, which serves ``path`` ("/headrace.v1.Produce/Produce")."""
    parse = handler.request_deserializer
    method = path.rpartition("/headrace.v1.")[2]
    check: Callable[[bytes], HeadraceError | None] = lambda data: None  # noqa: E731
    if method in LIMITS:
        check = RequestCheck(method, parse.__self__.DESCRIPTOR)

    def arrive(data: bytes) -> Arrival:
        size = len(data)
        error = check(data)
        if error is not None:
            on_refused(size)
            return Arrival(None, size, error)
        try:
            return Arrival(parse(data), size)
        except DecodeError as failure:
            return Arrival(None, size, unreadable(path, failure))

    return arrive


def unreadable(path: str, failure: object) -> InvalidRequestError:
    """The error for bytes that are no message of ``path``."""
    return InvalidRequestError(f"{path}: the request is not a valid protobuf message: {failure}")
