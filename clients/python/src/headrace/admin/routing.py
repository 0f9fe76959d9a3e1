"""Questions that only one broker can answer: what its disks and its properties file say. Runs on the I/O thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace_core.errors import BrokerIdNotRegisteredError
from headrace_protos.v1 import metadata_pb2

from ..engine.connections import call
from .calls import AdminCalls

T = TypeVar("T")


async def at_broker(
    calls: AdminCalls, broker_id: int, ask: Callable[[int, str, float], Awaitable[T]], timeout: float | None
) -> T:
    """``ask`` a broker, once it shows what this client has written. BrokerIdNotRegisteredError when it is not live."""
    engine = calls.engine

    async def attempt(timeout_s: float) -> T:
        broker = engine.metadata.snapshot.brokers.get(broker_id)
        if broker is None:
            live = ", ".join(map(str, sorted(engine.metadata.snapshot.brokers))) or "none"
            raise BrokerIdNotRegisteredError(f"broker {broker_id} is not live, or does not exist (live: {live})")
        if calls.written_offset:
            seen = metadata_pb2.MetadataRequest(min_metadata_offset=calls.written_offset)
            await call(engine.connections.metadata(broker.address).GetMetadata, seen, broker.address, timeout_s)
        return await ask(broker_id, broker.address, timeout_s)

    answer: T = await engine.retrying(attempt, engine.deadline(timeout), f"asking broker {broker_id}")
    return answer
