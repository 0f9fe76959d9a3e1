"""Forward a client's request from a broker or a controller to the leading controller.

When the connection breaks after the request was sent, its outcome is unknown, and a change is not sent again: a
repeated creation would report that the topic already exists. (Kafka's brokers do so.) REQUEST_TIMED_OUT says it, and
the caller may check, and choose. Reads are repeated. The same applies to a controller that freezes with the request:
when another is known to lead, the answer is awaited for a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from ..errors import NetworkError, RequestTimedOutError
from ..rpc.status import error_from_rpc

LEFT_BEHIND_S = 1.0  #: How long to wait for an answer once another controller leads.
_READS = ("Describe", "List")  #: Repeating these is harmless.


def is_repeatable(method: str, request: Any) -> bool:
    """Whether this Admin call may be carried out twice."""
    return method.startswith(_READS) or bool(getattr(request, "validate_only", False))


def outcome_unknown(method: str, failure: NetworkError) -> RequestTimedOutError:
    """The error after ``method`` was sent and ended with ``failure``."""
    return RequestTimedOutError(
        f"{method}: the controller did not answer ({failure}); whether the request was carried out is unknown: "
        "check before you retry"
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
    """The answer of the controller at ``address``, or its HeadraceError. NetworkError also when another one leads by
    now, and this one does not answer.

    ``method``: of a stub. ``leader_address``: of the known leader; ``subscribe``: has a callback called when that may
    have changed, and returns a function that ends it.
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
