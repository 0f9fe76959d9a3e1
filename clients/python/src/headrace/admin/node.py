"""One process, asked about itself (headrace.v1.Node), whichever role it has. Runs on the I/O thread."""

from __future__ import annotations

import time
from typing import Any

from headrace_core.errors import InvalidArgumentError
from headrace_core.types import split_address
from headrace_protos.v1 import node_pb2

from .. import arguments
from ..engine.connections import call
from ..models import NodeDescription
from .calls import AdminCalls


def wanted_address(address: str) -> str:
    """Read in the caller's thread; InvalidArgumentError."""
    arguments.text("address", address)
    try:
        split_address(address)
    except (ValueError, TypeError, AttributeError):
        raise InvalidArgumentError(f"address {address!r}: must be HOST:PORT") from None
    return address


async def describe_node(calls: AdminCalls, address: str, timeout: float | None) -> NodeDescription:
    """Two questions: the first may have to connect, so only the second one's round trip is short enough to set clocks
    against each other by."""
    engine = calls.engine
    method = engine.connections.node(address).DescribeNode
    deadline = engine.deadline(timeout)
    await call(method, node_pb2.DescribeNodeRequest(), address, deadline - time.monotonic())
    asked_ms, begun = time.time() * 1_000, time.monotonic()
    answer = await call(method, node_pb2.DescribeNodeRequest(), address, deadline - time.monotonic())
    round_trip_ms = (time.monotonic() - begun) * 1_000
    return _description(answer, answer.time_ms - (asked_ms + round_trip_ms / 2), round_trip_ms)


def _description(answer: Any, clock_ahead_ms: float, round_trip_ms: float) -> NodeDescription:
    return NodeDescription(
        role=answer.role,
        node_id=answer.node_id,
        cluster_id=answer.cluster_id,
        software_version=answer.software_version,
        metadata_version_min=answer.metadata_version_min,
        metadata_version_max=answer.metadata_version_max,
        started_at_ms=answer.started_at_ms,
        clock_ahead_ms=clock_ahead_ms,
        round_trip_ms=round_trip_ms,
        open_descriptors=None if answer.open_descriptors < 0 else answer.open_descriptors,
        descriptors_max=None if answer.descriptors_max < 0 else answer.descriptors_max,
    )
