"""Where a partition without a position begins, by auto.offset.reset. Pure."""

from __future__ import annotations

from headrace_core.errors import NoOffsetForPartitionError
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition


def reset_timestamp(reset: str | None, policy: str, tp: TopicPartition) -> int:
    """The special timestamp of where to begin; NoOffsetForPartitionError when the policy is none."""
    wanted = reset or policy
    if wanted == "earliest":
        return EARLIEST_TIMESTAMP
    if wanted == "latest":
        return LATEST_TIMESTAMP
    raise NoOffsetForPartitionError(f"{tp} has no position and auto.offset.reset is none: seek first")
