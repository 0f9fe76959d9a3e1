"""Answers about several groups or transactions of one request.

A small request can name the same large group a thousand times. The answers are therefore made a few at a time: other
requests are served during the call, and a cancelled call stops. The response has a maximum size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace_core.errors import HeadraceError
from headrace_core.rpc.limits import pages
from headrace_core.rpc.responses import ResponseRoom

AT_ONCE = 4  #: Number of groups or transactions whose shards are asked at the same time.


async def each_described(
    items: Sequence[Any], ask: Callable[[Any], Awaitable[Any]], refused: Callable[[Any, HeadraceError], Any]
) -> list[Any]:
    """One answer for each item, in order. ``ask`` returns the message for an item; ``refused`` returns the message for
    an item that failed, or for which the response is already too large."""
    room = ResponseRoom()

    async def answer(item: Any) -> Any:
        try:
            room.check()
            message = await ask(item)
        except HeadraceError as error:
            return refused(item, error)
        room.add(message.ByteSize())
        return message

    answers: list[Any] = []
    for some in pages(items, AT_ONCE):
        answers += await asyncio.gather(*map(answer, some))
        await asyncio.sleep(0)
    return answers
