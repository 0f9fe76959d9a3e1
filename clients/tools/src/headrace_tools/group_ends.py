"""A group's lag computed from current log ends, for ``groups describe`` and ``doctor``.

A coordinator samples high watermarks every two seconds. For up to two seconds after an offset reset or a burst of
records, the coordinator's lag figures are old or unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from headrace.group_models import GroupLag, PartitionLag
from headrace_core.errors import HeadraceError, UnknownTopicOrPartitionError
from headrace_core.plurals import counted
from headrace_core.types import TopicPartition

_THREADS_MAX = 16  #: Maximum number of partition leaders that are asked at the same time.
_NAMED_MAX = 3  #: Maximum number of partitions that an error message names.


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The high watermarks of partitions. ``unknown``: the partitions without an answer, each with the reason."""

    known: Mapping[TopicPartition, int]
    unknown: Mapping[TopicPartition, HeadraceError]

    def gap(self) -> tuple[str, str] | None:
        """Return two texts for a message: the partitions whose log ends are unknown, and the error of the first
        partition. Return None if all log ends are known."""
        parts = sorted(self.unknown)
        if not parts:
            return None
        shown = ", ".join(map(str, parts[:_NAMED_MAX])) + (", ..." if len(parts) > _NAMED_MAX else "")
        error = self.unknown[parts[0]]
        return f"log ends of {counted(len(parts), 'partition')} ({shown})", f"{error.message} [{error.code}]"


def log_ends(
    client: Any, partitions: Iterable[TopicPartition], *, timeout_s: float, isolation_level: str = "read_uncommitted"
) -> LogEnds:
    """Ask all partition leaders at the same time; a leader that does not answer leaves only its own partitions without
    an end. Partitions of deleted topics are left out. With ``isolation_level="read_committed"`` the ends are the last
    stable offsets."""
    wanted = set(partitions)
    known: dict[TopicPartition, int] = {}
    unknown: dict[TopicPartition, HeadraceError] = {}
    if not wanted:
        return LogEnds(known, unknown)
    try:
        leaders = _leaders(client, sorted({part.topic for part in wanted}), timeout_s)
    except HeadraceError as error:
        return LogEnds(known, dict.fromkeys(wanted, error))
    by_leader: dict[int, list[TopicPartition]] = {}
    for part in sorted(wanted & leaders.keys()):
        by_leader.setdefault(leaders[part], []).append(part)

    def ask(parts: list[TopicPartition]) -> Any:
        wanted = dict.fromkeys(parts, "latest")
        return client.list_offsets(wanted, isolation_level=isolation_level, timeout=timeout_s)

    with ThreadPoolExecutor(min(max(len(by_leader), 1), _THREADS_MAX), "log-ends") as pool:
        asked = [(parts, pool.submit(ask, parts)) for parts in by_leader.values()]
        for parts, answer in asked:
            try:
                known.update({part: each.offset for part, each in answer.result().items()})
            except HeadraceError as error:
                unknown.update(dict.fromkeys(parts, error))
    return LogEnds(known, unknown)


def _leaders(client: Any, topics: list[str], timeout_s: float) -> dict[TopicPartition, int]:
    """The leader of each partition; deleted topics, whose committed offsets remain for a while, are left out."""
    try:
        found = client.describe_topics(topics, timeout=timeout_s)
    except UnknownTopicOrPartitionError:
        if len(topics) == 1:
            return {}
        half = len(topics) // 2
        return _leaders(client, topics[:half], timeout_s) | _leaders(client, topics[half:], timeout_s)
    return {TopicPartition(topic.name, each.partition): each.leader for topic in found for each in topic.partitions}


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
