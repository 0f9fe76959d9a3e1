"""A program may keep an error: it keeps no gRPC call alive, for which gRPC would go on connecting after the close."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

import headrace
from headrace import TopicPartition
from headrace.errors import BootstrapError

CALLS: dict[str, Callable[[Any], Any]] = {
    "Producer": lambda client: client.send("t", b"v"),
    "AsyncProducer": lambda client: client.send("t", b"v"),
    "Consumer": lambda client: client.partitions_for("t"),
    "AsyncConsumer": lambda client: client.end_offsets([TopicPartition("t", 0)]),
    "Admin": lambda client: client.list_topics(),
    "AsyncAdmin": lambda client: client.start(),
}


def calls_of_grpc() -> set[int]:
    return {id(each) for each in gc.get_objects() if isinstance(each, grpc.aio.UnaryUnaryCall)}


@pytest.mark.parametrize("kind", CALLS)
def test_an_error_that_is_kept_keeps_no_call(kind: str) -> None:
    gc.collect()
    before = calls_of_grpc()
    client = getattr(headrace, kind)(bootstrap_servers="127.0.0.1:1", bootstrap_timeout_ms=20)

    async def run(work: Callable[[Any], Any]) -> None:
        found = work(client)
        if inspect.isawaitable(found):
            await found

    with pytest.raises(BootstrapError) as kept:
        asyncio.run(run(CALLS[kind]))
    asyncio.run(run(lambda client: client.close()))
    gc.collect()
    assert calls_of_grpc() <= before
    assert "connection refused" in kept.value.message
