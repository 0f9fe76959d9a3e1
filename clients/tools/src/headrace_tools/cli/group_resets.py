"""Where ``groups reset-offsets`` sets a group, as kafka-consumer-groups does it (KIP-122). Pure.

strategy                new offset of a partition whose log is [start, end)
--to-earliest           start
--to-latest             end
--to-offset N           N, or the nearer end of the log
--to-datetime, --by-duration    the first record at or after that time; end when there is none
--shift-by N            what is committed + N, or the nearer end of the log
--to-current            what is committed; end where nothing is
--from-file             what the file says, or the nearer end of the log
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace_core.errors import InvalidArgumentError
from headrace_core.types import TopicPartition

_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<days>\d+)D)?(?P<time>T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?\Z",
    re.IGNORECASE,
)

#: Topic -> partitions; None: all of them.
Scope = dict[str, set[int] | None]


def parse_scope(given: Iterable[str]) -> Scope:
    """``orders`` or ``orders:0,1``; InvalidArgumentError."""
    scope: Scope = {}
    for text in given:
        topic, colon, numbers = text.partition(":")
        parts = [part.strip() for part in numbers.split(",")] if colon else []
        if not topic or not all(part.isascii() and part.isdigit() for part in parts):
            raise InvalidArgumentError(f"{text!r}: must be TOPIC, or TOPIC:0,1,2")
        before = scope.get(topic, set())
        scope[topic] = None if not colon or before is None else before | set(map(int, parts))
    return scope


def parse_duration(text: str) -> int:
    """ISO 8601, as Kafka reads it: ``P1D``, ``PT1H30M``, ``PT0.5S``. Milliseconds; InvalidArgumentError."""
    match = _DURATION.match(text.strip())
    numbers = {name: match[name] for name in ("days", "hours", "minutes", "seconds")} if match else {}
    if match is None or match["sign"] or match["time"] in ("T", "t") or not any(numbers.values()):
        raise InvalidArgumentError(f"{text!r}: must be a duration such as P1D, PT1H30M or PT0.5S (ISO 8601)")
    seconds = (
        86_400 * int(numbers["days"] or 0)
        + 3_600 * int(numbers["hours"] or 0)
        + 60 * int(numbers["minutes"] or 0)
        + float(numbers["seconds"] or 0)
    )
    return round(seconds * 1000)


def parse_datetime(text: str) -> int:
    """``2026-11-21T08:00:00.000``, in UTC unless it names a zone. Milliseconds since 1970; InvalidArgumentError."""
    try:
        if "T" not in text.upper():
            raise ValueError
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgumentError(
            f"{text!r}: must be a time such as 2026-11-21T08:00:00.000 (UTC), or with a zone: ...+01:00"
        ) from None
    found = round((when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp() * 1000)
    if found < 0:
        raise InvalidArgumentError(f"{text!r}: is before 1970")
    return found


def parse_file(text: str, group: str, name: str) -> dict[TopicPartition, int]:
    """Lines ``topic,partition,offset``, as --export writes them, or ``group,topic,partition,offset``, of which those of
    ``group`` count. InvalidArgumentError, with the line."""
    found: dict[TopicPartition, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row:
            continue
        fields = [field.strip() for field in row]
        if len(fields) == 4:
            if fields[0] != group:
                continue
            del fields[0]
        if len(fields) != 3 or not fields[0] or not fields[1].isdigit() or not fields[2].isdigit():
            raise InvalidArgumentError(
                f"{name}, line {number}: {','.join(row)!r}: must be topic,partition,offset or "
                "group,topic,partition,offset"
            )
        partition = TopicPartition(fields[0], int(fields[1]))
        if partition in found:
            raise InvalidArgumentError(f"{name}, line {number}: {partition} is there twice")
        found[partition] = int(fields[2])
    if not found:
        raise InvalidArgumentError(f"{name}: has no offset of group {group!r}")
    return found


def to_csv(rows: Iterable[Reset]) -> str:
    """What ``parse_file`` reads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows((row.partition.topic, row.partition.partition, row.new_offset) for row in rows)
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Reset:
    """One partition: what is committed (None: nothing), and what shall be. ``note``: why not what was asked for."""

    partition: TopicPartition
    current_offset: int | None
    new_offset: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """Where a partition's log starts and ends, and the offset that was found by time (None: no record is that late)."""

    start: int
    end: int
    by_time: int | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """Exactly one of these. ``time_ms``: of --to-datetime and --by-duration."""

    to_earliest: bool = False
    to_latest: bool = False
    to_current: bool = False
    to_offset: int | None = None
    shift_by: int | None = None
    time_ms: int | None = None
    file: Mapping[TopicPartition, int] | None = None


def plan(
    strategy: Strategy, committed: Mapping[TopicPartition, int], logs: Mapping[TopicPartition, Log]
) -> list[Reset]:
    """A row for each partition of ``logs``. InvalidArgumentError: there is nothing to shift."""
    unset = [str(partition) for partition in sorted(logs) if partition not in committed]
    if strategy.shift_by is not None and unset:
        raise InvalidArgumentError(
            f"--shift-by: nothing is committed of {', '.join(unset)}, so there is nothing to shift"
        )
    return [_reset(strategy, partition, committed.get(partition), log) for partition, log in sorted(logs.items())]


def _reset(strategy: Strategy, partition: TopicPartition, current: int | None, log: Log) -> Reset:
    if strategy.to_earliest:
        return Reset(partition, current, log.start)
    if strategy.to_latest:
        return Reset(partition, current, log.end)
    if strategy.to_current:
        return Reset(partition, current, log.end if current is None else current)
    if strategy.time_ms is not None:
        if log.by_time is None:
            return Reset(partition, current, log.end, "no record is that late: the end")
        return Reset(partition, current, log.by_time)
    if strategy.file is not None:
        wanted = strategy.file[partition]
    elif strategy.shift_by is not None:
        assert current is not None
        wanted = current + strategy.shift_by
    else:
        assert strategy.to_offset is not None
        wanted = strategy.to_offset
    if wanted < log.start:
        return Reset(partition, current, log.start, f"{wanted} is before the first record: the start")
    if wanted > log.end:
        return Reset(partition, current, log.end, f"{wanted} is beyond the end: the end")
    return Reset(partition, current, wanted)
