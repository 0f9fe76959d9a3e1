"""A group's lag computed from current log ends, for ``groups describe`` and ``doctor``.

A coordinator samples high watermarks every two seconds. Right after an offset reset or a burst of records, the
coordinator's lag figures are old or unknown, because the next sample is up to two seconds away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.group_models import GroupLag, PartitionLag
from headrace_core.errors import HeadraceError, UnknownTopicOrPartitionError
from headrace_core.types import TopicPartition


def log_ends(client: Any, partitions: Iterable[TopicPartition], *, timeout_s: float) -> dict[TopicPartition, int]:
    """The high watermark of each partition; empty if a partition leader does not answer within ``timeout_s``."""
    wanted = set(partitions)
    if not wanted:
        return {}
    there = _counts(client, sorted({part.topic for part in wanted}), timeout_s)
    known = sorted(part for part in wanted if part.partition < there.get(part.topic, 0))
    try:
        found = client.list_offsets(dict.fromkeys(known, "latest"), timeout=timeout_s) if known else {}
    except HeadraceError:
        return {}
    return {part: each.offset for part, each in found.items()}


def _counts(client: Any, topics: list[str], timeout_s: float) -> dict[str, int]:
    """The partition counts of topics; deleted topics, whose committed offsets remain for a while, are left out."""
    try:
        return {topic.name: len(topic.partitions) for topic in client.describe_topics(topics, timeout=timeout_s)}
    except UnknownTopicOrPartitionError:
        if len(topics) == 1:
            return {}
        half = len(topics) // 2
        return _counts(client, topics[:half], timeout_s) | _counts(client, topics[half:], timeout_s)
    except HeadraceError:
        return {}


def at_ends(lag: GroupLag, ends: Mapping[TopicPartition, int], *, is_empty: bool) -> GroupLag:
    """The lag with the known log ends in place of the coordinator's samples. A partition that the group has read to the
    end is OK, as in the coordinator's rules. ``is_empty``: the group has no members, so an offset that went back is an
    operator's reset and no error."""
    parts = tuple(_at_end(part, ends.get(TopicPartition(part.topic, part.partition))) for part in lag.partitions)
    if is_empty:
        parts = tuple(dataclasses.replace(each, status="OK") if each.status == "REWIND" else each for each in parts)
    status = max((part.status for part in parts), key=_badness, default="OK")
    return dataclasses.replace(
        lag,
        partitions=parts,
        total_lag=sum(part.lag or 0 for part in parts),
        status=("OK", "WARN", "ERR")[_badness(status)] if lag.error is None else lag.status,
    )


def _at_end(part: PartitionLag, end: int | None) -> PartitionLag:
    if end is None:
        return part
    lag = max(0, end - part.committed_offset)
    return dataclasses.replace(part, high_watermark=end, lag=lag, status=part.status if lag else "OK")


def _badness(status: str) -> int:
    return 0 if status == "OK" else 1 if status == "WARN" else 2
