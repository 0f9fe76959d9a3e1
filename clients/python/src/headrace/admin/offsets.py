"""Look up offsets: log start, log end, or by time (KIP-396, KIP-734). The module runs on Headrace's I/O thread, except
the checks of arguments."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_core.errors import InvalidArgumentError
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP, TopicPartition

from .. import arguments
from ..engine import offsets
from ..models import OffsetAndTimestamp, OffsetSpec
from .calls import AdminCalls

_SPECIAL = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP, "max-timestamp": MAX_TIMESTAMP}


def wanted_offsets(specs: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
    """Check offset specifications in the caller's thread, and convert them to the protocol's timestamps. Raises
    InvalidArgumentError."""
    given = arguments.mapping("wanted", specs, "TopicPartition: offset specification")
    return {arguments.partition(partition): _timestamp(partition, spec) for partition, spec in given.items()}


def wanted_isolation(level: str) -> int:
    """The protocol's number for the isolation level. Raises InvalidArgumentError."""
    found = offsets.ISOLATION.get(arguments.text("isolation_level", level))
    if found is None:
        raise InvalidArgumentError(f"isolation_level={level!r}: must be {' or '.join(offsets.ISOLATION)}")
    return int(found)


async def list_offsets(
    calls: AdminCalls, wanted: dict[TopicPartition, int], isolation: int, timeout: float | None
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """Returns offsets in the order of ``wanted``."""
    engine = calls.engine
    deadline = engine.deadline(timeout)
    strangers = {partition.topic for partition in wanted} - set(engine.metadata.snapshot.topics)
    if len(strangers) > 1:
        await engine.learn(strangers)
    found = await offsets.list_offsets(engine, wanted, isolation, deadline)
    return {partition: found[partition] for partition in wanted}


def _timestamp(partition: TopicPartition, spec: OffsetSpec) -> int:
    if isinstance(spec, str) and spec in _SPECIAL:
        return _SPECIAL[spec]
    if isinstance(spec, int) and not isinstance(spec, bool) and 0 <= spec < 2**63:
        return spec
    raise InvalidArgumentError(
        f"{TopicPartition(*partition)}: offset {spec!r}: must be 'earliest', 'latest', 'max-timestamp', or a time "
        "(ms since 1970)"
    )
