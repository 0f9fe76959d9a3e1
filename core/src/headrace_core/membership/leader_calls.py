"""What a client asked for, passed on to the leading controller by a broker or by another controller.

When the connection breaks after the request was sent, nobody knows whether it was carried out, and a change is not
sent again: a topic created a second time would be told to exist already, by its own creation. (Kafka's brokers do, and
give that answer.) REQUEST_TIMED_OUT says so, and the caller may look, and choose. What only reads is repeated. The same
holds for a controller that stands still with the request: when another is known to lead, its answer is waited for a
second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from ..errors import NetworkError, RequestTimedOutError
from ..rpc.status import error_from_rpc

#: How long an answer is waited for once another controller than the one that was asked leads.
LEFT_BEHIND_S = 1.0
#: Who asks again hears the same, or what has become of it since.
_READS = ("Describe", "List")


def is_repeatable(method: str, request: Any) -> bool:
    """Is it as good to carry out this Admin call twice as once?"""
    return method.startswith(_READS) or bool(getattr(request, "validate_only", False))


def outcome_unknown(method: str, failure: NetworkError) -> RequestTimedOutError:
    """``method`` was sent, and ``failure`` is all that was heard of it."""
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
    """The answer of the controller at ``address``, or the HeadraceError that it is. NetworkError also when another one
    leads by now, and this one does not answer.

    ``method``: of a stub. ``leader_address``: of whoever is known to lead; ``subscribe``: has a callback called
    whenever that may have changed, and returns what ends it.
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
