"""Find out how a client's bidirectional call ended, which grpc.aio (1.85) hides.

A write after the end of a call replaces the server's status by INTERNAL, or raises InvalidStateError, which has no
status at all. If the server's status arrived before the write, the call's done callback has recorded it here. If the
status arrives after the write has failed, gRPC does not report the status, so ``error`` asks for the status repeatedly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio

from ..errors import HeadraceError, NetworkError
from .status import BROKE_INSIDE, error_from_rpc

#: The exceptions that an operation on a call raises when the call has ended. When the client itself has cancelled the
#: call, the operation raises CancelledError instead; ``is_cancelled`` distinguishes this case from a cancelled task.
CALL_ENDED = (grpc.aio.AioRpcError, asyncio.InvalidStateError)

#: gRPC fails a write only after the end of the call, so the server's status arrives soon. ``error`` asks for the status
#: every ``_LOOK_S`` seconds, at most ``_LOOKS`` times.
_LOOK_S, _LOOKS = 0.01, 100


class CallEnd:
    """Records how a call ends. ``call``: the call, which must not have ended. Every user of the class calls ``cancel``
    in the end; afterwards the CallEnd and the call no longer refer to each other."""

    __slots__ = ("_address", "_call", "_status", "is_over")

    def __init__(self, call: grpc.aio.Call, address: str) -> None:
        self._address = address
        self._call: grpc.aio.Call | None = call
        self._status: grpc.aio.AioRpcError | None = None
        self.is_over = False  # the call has ended or was cancelled; it then sends nothing more
        call.add_done_callback(self._note)

    def cancel(self) -> None:
        """End the call, if it has not ended."""
        self.is_over = True
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _note(self, call: grpc.aio.Call) -> None:
        """Record the status of a call that is over. After the end of a call, gRPC's status coroutines do not wait any
        more."""
        self.is_over = True
        self._status = grpc.aio.AioRpcError(
            _now(call.code()), grpc.aio.Metadata(), _now(call.trailing_metadata()), _now(call.details())
        )

    async def error(self) -> HeadraceError:
        """Return the error that says why the call is over."""
        for look in range(_LOOKS):
            if self._call is None or self._status is None or self._status.details() != BROKE_INSIDE:
                break
            if look:
                await asyncio.sleep(_LOOK_S)
            if self._call is not None:
                self._note(self._call)
        status = self._status
        if self._call is None or status is None:
            return NetworkError(f"{self._address}: the stream was cancelled")
        if status.code() is grpc.StatusCode.OK:
            return NetworkError(f"{self._address}: the server ended the stream")
        return error_from_rpc(status, self._address)


def is_cancelled() -> bool:
    """Whether a CancelledError means that the current task was cancelled, not only the call."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("gRPC reported the end of the call without a status")
