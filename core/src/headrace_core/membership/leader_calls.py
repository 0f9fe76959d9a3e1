"""Forward a client's request from a broker or a controller to the leading controller.

When the connection breaks after the request was sent, the outcome is unknown. After a connection breaks, a change is
not sent again, because a repeated creation would report that the topic already exists. (Kafka's brokers repeat a
request whose outcome is unknown.) The error REQUEST_TIMED_OUT tells the caller to check before a retry. Reads are
repeated. If a controller freezes during the request, the node treats the connection as broken. Once another controller
is known to lead, the node waits only one more second for the response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from ..errors import NetworkError, RequestTimedOutError
from ..rpc.status import error_from_rpc

LEFT_BEHIND_S = 1.0  #: Seconds to wait for a controller's response after another controller has become leader.
_READS = ("Describe", "List")  #: Name prefixes of methods that only read; a client may repeat a call of such a method.


def is_repeatable(method: str, request: Any) -> bool:
    """Whether an Admin call may be executed twice without harm."""
    return method.startswith(_READS) or bool(getattr(request, "validate_only", False))


def outcome_unknown(method: str, failure: NetworkError) -> RequestTimedOutError:
    """Return the error for a call of ``method`` that was sent and ended with ``failure``."""
    return RequestTimedOutError(
        f"{method}: the controller did not answer ({failure}); whether the controller carried out the request is "
        "unknown: check before you retry"
    )


async def ask_while_it_leads(
    method: Callable[..., Any],
    request: Any,
    address: str,
    timeout_s: float,
    *,
    leader_address: Callable[[], str | None],
    subscribe: Callable[[Callable[[], None]], Callable[[], None]],
) -> Any:
    """Call the controller at ``address`` and return its response, or raise its HeadraceError. Raises NetworkError also
    when another controller has become leader and the called controller does not respond.

    ``method``: a method of a gRPC stub. ``leader_address``: returns the address of the known leader. ``subscribe``:
    registers a callback for changes of the leader's address, and returns a function that removes the callback.
    """
    asked = asyncio.ensure_future(_answer(method, request, address, timeout_s))
    changed = asyncio.Event()
    unsubscribe = subscribe(changed.set)
    watching: asyncio.Future[Any] | None = None
    try:
        while not asked.done():
            if leader_address() not in (None, address):
                await asyncio.wait({asked}, timeout=LEFT_BEHIND_S)
                if not asked.done():
                    raise NetworkError(f"{address} does not answer, and another controller is leader now")
            else:
                changed.clear()
                watching = asyncio.ensure_future(changed.wait())
                await asyncio.wait({asked, watching}, return_when=asyncio.FIRST_COMPLETED)
                watching.cancel()
        return asked.result()
    finally:
        unsubscribe()
        if watching is not None:
            watching.cancel()
        asked.cancel()


async def _answer(method: Callable[..., Any], request: Any, address: str, timeout_s: float) -> Any:
    try:
        return await method(request, timeout=timeout_s)
    except grpc.aio.AioRpcError as failure:
        raise error_from_rpc(failure, address) from None
