"""``groups reset-offsets``: where a group goes on reading, with kafka-consumer-groups' options (KIP-122).

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
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace_core.errors import (
    GroupIdNotFoundError,
    InvalidArgumentError,
    NonEmptyGroupError,
    UnknownTopicOrPartitionError,
)
from headrace_core.types import TopicPartition

from .client import DEFAULT_BOOTSTRAP, GROUP_TIMEOUT_S, Bootstrap, admin, patience_s
from .output import Output, OutputFormat, note, print_json, print_table

# -- which offsets: pure

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


# -- the command

_STRATEGIES = (
    "--to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, --by-duration, --shift-by or --from-file"
)


def reset_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="TOPIC[:0,1]", help="A topic, or partitions of it; repeatable."),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All that the group has committed.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record there is.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: what is there now is skipped.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="To what is committed; to the end where nothing is.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", metavar="TIME", help="To the first record at or after 2026-11-21T08:00:00.000"),
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", metavar="PERIOD", help="To so long ago: P1D, PT1H30M, PT10S.")
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="By so many records, back when it is negative.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="CSV", help="Lines of topic,partition,offset (--export).")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without, what it would do is shown.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show; the default.")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print topic,partition,offset as CSV.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="To wait for coordinators.")
    ] = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Set where a group goes on reading. Its consumers must be stopped. Nothing is changed without --execute.

    \b
    Examples:
      headrace groups reset-offsets billing --topic orders --to-earliest
      headrace groups reset-offsets billing --topic orders:0,1 --shift-by -100 --execute
      headrace groups reset-offsets billing --all-topics --to-datetime 2026-11-21T08:00:00.000 --execute
      headrace groups reset-offsets billing --all-topics --to-current --export > billing.csv
      headrace groups reset-offsets billing --from-file billing.csv --execute
    """
    given = [
        flag is not None and flag is not False
        for flag in (to_earliest, to_latest, to_current, to_offset, to_datetime, by_duration, shift_by, from_file)
    ]
    if sum(given) != 1:
        raise typer.BadParameter(f"give one of {_STRATEGIES}")
    if execute and dry_run:
        raise typer.BadParameter("--execute or --dry-run: one of the two", param_hint="--execute")
    if export and output is OutputFormat.JSON:
        raise typer.BadParameter("--export prints CSV, and -o json does not", param_hint="--export")
    if bool(topic) + all_topics + (from_file is not None) != 1:
        raise typer.BadParameter("say which: --topic TOPIC[:0,1] or --all-topics; a file says it itself")
    scope = scope_of(topic) if topic else None
    strategy = Strategy(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_current=to_current,
        to_offset=to_offset,
        shift_by=shift_by,
        time_ms=_time(to_datetime, by_duration),
        file=None if from_file is None else parse_file(from_file.read_text(), group, str(from_file)),
    )
    with admin(bootstrap) as client:
        timeout = patience_s(client, timeout)
        count = _members(client, group, timeout)
        if count and execute:
            raise NonEmptyGroupError(
                f"group {group!r} has {count} member{'' if count == 1 else 's'}, which would go on from where they "
                "are: stop its consumers, then reset"
            )
        rows = _plan(client, group, scope, strategy, timeout)
        if execute and rows:
            client.alter_group_offsets(group, {row.partition: row.new_offset for row in rows}, timeout=timeout)
    _show(group, rows, output, executed=execute, export=export)
    if count:
        note(f"group {group!r} has {count} member{'' if count == 1 else 's'}: stop its consumers before --execute")
    if not execute:
        note("nothing was changed (add --execute)")


def scope_of(given: Iterable[str]) -> Scope:
    """Of ``--topic``; a wrong one is a usage error."""
    try:
        return parse_scope(given)
    except InvalidArgumentError as error:
        raise typer.BadParameter(error.message, param_hint="--topic") from None


def chosen_partitions(scope: Scope, there: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Those of ``there`` that are meant, sorted."""

    def is_meant(part: TopicPartition) -> bool:
        numbers = scope.get(part.topic, set())
        return numbers is None or part.partition in numbers

    return sorted(part for part in there if is_meant(part))


def _time(to_datetime: str | None, by_duration: str | None) -> int | None:
    try:
        if to_datetime is not None:
            return parse_datetime(to_datetime)
        if by_duration is not None:
            return max(0, int(time.time() * 1000) - parse_duration(by_duration))
    except InvalidArgumentError as error:
        hint = "--to-datetime" if to_datetime is not None else "--by-duration"
        raise typer.BadParameter(error.message, param_hint=hint) from None
    return None


def _members(client: Any, group: str, timeout_s: float) -> int:
    """How many it has; a group that does not exist yet comes to be by its offsets."""
    try:
        return len(client.describe_groups([group], timeout=timeout_s)[0].members)
    except GroupIdNotFoundError:
        return 0


def _plan(client: Any, group: str, scope: Scope | None, strategy: Strategy, timeout_s: float) -> list[Reset]:
    committed = {part: each.offset for part, each in client.list_group_offsets(group, timeout=timeout_s).items()}
    if strategy.file is not None:
        parts = sorted(strategy.file)
    elif scope is None:
        parts = sorted(committed)
        if not parts:
            raise GroupIdNotFoundError(f"group {group!r} has committed nothing, so --all-topics is none: give --topic")
    else:
        parts = []
        for topic in client.describe_topics(sorted(scope), timeout=timeout_s):
            parts += chosen_partitions(scope, (TopicPartition(topic.name, each.partition) for each in topic.partitions))
            numbers = scope[topic.name] or set()
            missing = sorted(numbers - {each.partition for each in topic.partitions})
            if missing:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic.name!r} has {len(topic.partitions)} partitions; there is no "
                    + ", ".join(map(str, missing))
                )
    starts = client.list_offsets(dict.fromkeys(parts, "earliest"), timeout=timeout_s)
    ends = client.list_offsets(dict.fromkeys(parts, "latest"), timeout=timeout_s)
    times: dict[TopicPartition, int] = {}
    if strategy.time_ms is not None:
        found = client.list_offsets(dict.fromkeys(parts, strategy.time_ms), timeout=timeout_s)
        times = {part: each.offset for part, each in found.items() if each.offset >= 0}
    logs = {part: Log(starts[part].offset, ends[part].offset, times.get(part)) for part in parts}
    return plan(strategy, committed, logs)


def _show(group: str, rows: list[Reset], output: OutputFormat, *, executed: bool, export: bool) -> None:
    for row in rows:
        if row.note:
            note(f"{row.partition}: {row.note} ({row.new_offset})")
    if export:
        sys.stdout.write(to_csv(rows))
        sys.stdout.flush()
    elif output is OutputFormat.JSON:
        parts = [
            {
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "current_offset": row.current_offset,
                "new_offset": row.new_offset,
            }
            for row in rows
        ]
        print_json({"group": group, "executed": executed, "partitions": parts})
    else:
        print_table(
            ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"),
            [(group, *row.partition, row.current_offset, row.new_offset) for row in rows],
        )
