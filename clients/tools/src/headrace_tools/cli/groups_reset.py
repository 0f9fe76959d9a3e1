"""The command ``groups reset-offsets``: set a group's committed offsets, with the options of kafka-consumer-groups
(KIP-122).

strategy                new offset of a partition whose log is [start, end)
--to-earliest           start
--to-latest             end
--to-offset N           N, or the nearer end of the log
--to-datetime, --by-duration    the first record at or after that time; end when there is none
--shift-by N            the committed offset + N, or the nearer end of the log
--to-current            the committed offset; end without one
--from-file             the offset in the file, or the nearer end of the log
"""

from __future__ import annotations

import csv
import io
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace_core.errors import (
    GroupIdNotFoundError,
    InvalidArgumentError,
    NonEmptyGroupError,
    UnknownTopicOrPartitionError,
)
from headrace_core.plurals import counted
from headrace_core.types import TopicPartition

from . import complete
from .client import DEFAULT_BOOTSTRAP, GROUP_TIMEOUT_S, Bootstrap, GroupTimeout, admin, coordinator_timeout_s
from .output import Output, OutputFormat, note, print_json, print_table, usage_of
from .times import duration_ms, time_ms

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=complete.groups)]

# -- new offsets: pure

#: A partition or an offset in a file.
_NUMBER = re.compile(r"[0-9]{1,19}")
#: Maps a topic to its wanted partitions; None means all partitions of the topic.
Scope = dict[str, set[int] | None]


def parse_scope(given: Iterable[str]) -> Scope:
    """Parse partitions in the form ``orders`` or ``orders:0,1``. Raises InvalidArgumentError."""
    scope: Scope = {}
    for text in given:
        topic, colon, numbers = text.partition(":")
        parts = [part.strip() for part in numbers.split(",")] if colon else []
        if not topic or not all(part.isascii() and part.isdigit() for part in parts):
            raise InvalidArgumentError(f"{text!r}: must be TOPIC or TOPIC:0,1,2")
        before = scope.get(topic, set())
        scope[topic] = None if not colon or before is None else before | set(map(int, parts))
    return scope


def parse_file(text: str, group: str, name: str) -> dict[TopicPartition, int]:
    """Parse the lines of an offset file: ``topic,partition,offset`` as --export writes them, or
    ``group,topic,partition,offset``. Lines of groups other than ``group`` are ignored. Raises InvalidArgumentError,
    which names the line."""
    found: dict[TopicPartition, int] = {}
    rows = csv.reader(io.StringIO(text))
    for row in rows:
        if not row:
            continue
        number = rows.line_num
        fields = [field.strip() for field in row]
        if len(fields) == 4:
            if fields[0] != group:
                continue
            del fields[0]
        if len(fields) != 3 or not fields[0] or not all(_NUMBER.fullmatch(field) for field in fields[1:]):
            raise InvalidArgumentError(
                f"{name}, line {number}: {','.join(row)!r}: must be topic,partition,offset or "
                "group,topic,partition,offset"
            )
        partition = TopicPartition(fields[0], int(fields[1]))
        if partition in found:
            raise InvalidArgumentError(f"{name}, line {number}: {partition} is listed twice")
        found[partition] = int(fields[2])
    if not found:
        raise InvalidArgumentError(f"{name}: the file has no offset of group {group!r}")
    return found


def to_csv(rows: Iterable[Reset]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows((row.partition.topic, row.partition.partition, row.new_offset) for row in rows)
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Reset:
    """One partition with its committed offset (None: no offset) and its new offset. ``note``: why the new offset is not
    the requested one."""

    partition: TopicPartition
    current_offset: int | None
    new_offset: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Log:
    """The start and end of a partition's log, and the offset found by time (None: no record has that timestamp or a
    later one)."""

    start: int
    end: int
    by_time: int | None = None


@dataclass(frozen=True, slots=True)
class Strategy:
    """The strategy that chooses the new offsets; exactly one field is set. ``time_ms``: the time from --to-datetime or
    --by-duration, in ms since 1970."""

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
    """Compute a row for each partition of ``logs``. Raises InvalidArgumentError if --shift-by applies to a partition
    without a committed offset."""
    unset = [str(partition) for partition in sorted(logs) if partition not in committed]
    if strategy.shift_by is not None and unset:
        raise InvalidArgumentError(
            f"--shift-by: {', '.join(unset)} has no committed offset to shift; use another strategy for this partition"
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
            return Reset(partition, current, log.end, "no record is that late; using the end")
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
        return Reset(partition, current, log.start, f"{wanted} is before the first record; using the start")
    if wanted > log.end:
        return Reset(partition, current, log.end, f"{wanted} is beyond the end; using the end")
    return Reset(partition, current, wanted)


# -- the command

_STRATEGIES = (
    "--to-earliest, --to-latest, --to-current, --to-offset, --to-datetime, --by-duration, --shift-by or --from-file"
)


def reset_offsets(
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:0,1]",
            help="A topic, or some of its partitions (TOPIC:0,1); repeatable.",
            autocompletion=complete.topics,
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset all partitions with a committed offset.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="Reset to the first record of the log.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="Reset to the end of the log.")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Keep the committed offset; without one, reset to the end of the log.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help="Reset to the first record at or after this time, such as -2h or 2026-11-21T08:00:00.000",
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration",
            metavar="DURATION",
            help="Reset to the first record that is at most this old, such as 7d or PT1H30M.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", help="Shift the committed offsets by this number: forward, or back if negative."),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from-file",
            metavar="CSV",
            help="Reset to the offsets in this file of topic,partition,offset lines (see --export).",
        ),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Set the offsets; without --execute the command only shows them.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the new offsets (default).")] = False,
    export: Annotated[bool, typer.Option("--export", help="Print lines of topic,partition,offset as CSV.")] = False,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Set the committed offsets of a group: the group continues to read at these offsets. Stop the group's consumers
    first. Without --execute the command only shows the new offsets.

    \b
    Examples:
      headrace groups reset-offsets billing --topic orders --to-earliest
      headrace groups reset-offsets billing --topic orders:0,1 --shift-by -100 --execute
      headrace groups reset-offsets billing --all-topics --to-datetime 2026-11-21T08:00:00.000 --execute
      headrace groups reset-offsets billing --topic orders --by-duration 2h --execute
      headrace groups reset-offsets billing --all-topics --to-current --export > billing.csv
      headrace groups reset-offsets billing --from-file billing.csv --execute
    """
    given = [
        flag is not None and flag is not False
        for flag in (to_earliest, to_latest, to_current, to_offset, to_datetime, by_duration, shift_by, from_file)
    ]
    if sum(given) != 1:
        raise typer.BadParameter(f"pass exactly one of {_STRATEGIES}")
    if execute and dry_run:
        raise typer.BadParameter("--execute cannot be combined with --dry-run", param_hint="--execute")
    if export and output is OutputFormat.JSON:
        raise typer.BadParameter("--export prints CSV, and cannot be combined with -o json", param_hint="--export")
    if bool(topic) + all_topics + (from_file is not None) != 1:
        raise typer.BadParameter("pass one of --topic TOPIC[:0,1], --all-topics or --from-file")
    scope = scope_of(topic) if topic else None
    strategy = Strategy(
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_current=to_current,
        to_offset=to_offset,
        shift_by=shift_by,
        time_ms=_time(to_datetime, by_duration),
        file=None if from_file is None else _offsets_in(from_file, group),
    )
    with admin(bootstrap) as client:
        timeout = coordinator_timeout_s(client, timeout)
        count = _members(client, group, timeout)
        if count and execute:
            raise NonEmptyGroupError(
                f"cannot reset group {group!r} while it has {counted(count, 'member')}; stop its consumers first"
            )
        rows = _plan(client, group, scope, strategy, timeout)
        if execute and rows:
            client.alter_group_offsets(group, {row.partition: row.new_offset for row in rows}, timeout=timeout)
    _show(group, rows, output, executed=execute, export=export)
    if count:
        note(f"group {group!r} has {counted(count, 'member')}: stop its consumers before --execute")
    if not execute:
        note("nothing was changed (add --execute)")


def _offsets_in(path: Path, group: str) -> dict[TopicPartition, int]:
    """The offsets in the file of --from-file. Raises InvalidArgumentError."""
    try:
        return parse_file(path.read_text(encoding="utf-8"), group, str(path))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidArgumentError(f"{path}: is not a CSV file ({error})") from None


def scope_of(given: Iterable[str]) -> Scope:
    """Parse the value of ``--topic``; raises a usage error if it is wrong."""
    with usage_of("--topic"):
        return parse_scope(given)


def chosen_partitions(scope: Scope, there: Iterable[TopicPartition]) -> list[TopicPartition]:
    def is_meant(part: TopicPartition) -> bool:
        numbers = scope.get(part.topic, set())
        return numbers is None or part.partition in numbers

    return sorted(part for part in there if is_meant(part))


def _time(to_datetime: str | None, by_duration: str | None) -> int | None:
    if to_datetime is not None:
        with usage_of("--to-datetime"):
            return time_ms(to_datetime)
    if by_duration is not None:
        with usage_of("--by-duration"):
            return max(0, int(time.time() * 1000) - duration_ms(by_duration))
    return None


def _members(client: Any, group: str, timeout_s: float) -> int:
    """The number of members of the group; 0 for a group that does not exist, which the reset creates."""
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
            raise GroupIdNotFoundError(f"group {group!r} has no committed offsets for --all-topics; pass --topic")
    else:
        parts = []
        for topic in client.describe_topics(sorted(scope), timeout=timeout_s):
            parts += chosen_partitions(scope, (TopicPartition(topic.name, each.partition) for each in topic.partitions))
            numbers = scope[topic.name] or set()
            missing = sorted(numbers - {each.partition for each in topic.partitions})
            if missing:
                raise UnknownTopicOrPartitionError(
                    f"topic {topic.name!r} has no partition {', '.join(map(str, missing))}; "
                    f"it has {counted(len(topic.partitions), 'partition')}"
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
