"""Answers about several groups or transactions of one request.

A small request can name the same large group a thousand times. The answers are therefore made a few at a time, so that
other requests are served in between and a cancelled call stops, and the response has a maximum size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace_core.errors import HeadraceError, InvalidRequestError
from headrace_core.rpc.limits import pages

#: Size in bytes of a response from which on its further groups or transactions are refused.
RESPONSE_BYTES_MAX = 64 * 1024 * 1024
AT_ONCE = 4  #: Number of groups or transactions whose shards are asked at the same time.


async def each_described(
    items: Sequence[Any], ask: Callable[[Any], Awaitable[Any]], refused: Callable[[Any, HeadraceError], Any]
) -> list[Any]:
    """One answer for each item, in order. ``ask`` returns the message for an item; ``refused`` returns the message for
    an item that failed, or for which the response has no room."""
    size = 0

    async def answer(item: Any) -> Any:
        nonlocal size
        if size >= RESPONSE_BYTES_MAX:
            return refused(
                item,
                InvalidRequestError(
                    f"the response has no room for more than {RESPONSE_BYTES_MAX} bytes; request the groups or "
                    "transactions without an answer again, in requests of their own"
                ),
            )
        try:
            message = await ask(item)
        except HeadraceError as error:
            return refused(item, error)
        size += message.ByteSize()
        return message

    answers: list[Any] = []
    for some in pages(items, AT_ONCE):
        answers += await asyncio.gather(*map(answer, some))
        await asyncio.sleep(0)
    return answers
