"""A stream that its handler pauses before the first request reads nothing until it resumes."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from headrace_core.rpc.streams import ServerStream, StreamHandler
from tests.worlds.waiting import in_loop


class Context:
    """A call whose client has closed its side."""

    def __init__(self) -> None:
        self.reads = 0

    async def read(self) -> Any:
        self.reads += 1
        return grpc.aio.EOF

    async def write(self, response: Any) -> None:
        raise AssertionError("nothing to write")


@pytest.mark.parametrize("is_ended", [False, True])
@in_loop
async def test_a_stream_that_begins_paused_reads_after_its_pause(is_ended: bool) -> None:
    context = Context()
    stream: ServerStream[Any, Any] = ServerStream(context)  # type: ignore[arg-type]
    stream.pause()
    serving = asyncio.ensure_future(stream.run(StreamHandler()))
    for _ in range(10):
        await asyncio.sleep(0)
    assert context.reads == 0
    assert not serving.done()
    if is_ended:
        stream.finish()
    else:
        stream.resume()
    await serving
    assert context.reads == (0 if is_ended else 1)
