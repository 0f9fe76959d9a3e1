"""The command ``consume``: print records of a topic to stdout, with the flags of kcat -C."""

from __future__ import annotations

import contextlib
import enum
import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from headrace_core import exact_json
from headrace_core.errors import (
    CoordinatorNotAvailableError,
    HeadraceError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from headrace_core.plurals import counted
from headrace_core.types import TopicPartition

from . import complete
from .client import DEFAULT_BOOTSTRAP, GROUP_TIMEOUT_S, Bootstrap, Properties, client_config
from .decoding import decoders
from .kcat import OffsetRange, compile_format, default_format, document, json_line, parse_offsets, unescape
from .output import note, usage_of
from .pipes import broken_pipe
from .progress import HowFar, Progress, progress

_POLL_S = 0.5
_POLL_RECORDS = 10_000

Render = Callable[[Any], bytes]


class _Isolation(enum.StrEnum):
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


def register(app: typer.Typer) -> None:
    app.command("consume")(consume)


def consume(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TOPIC]...",
            help="With -G: topic names, or one pattern such as ^orders-.*",
            autocompletion=complete.topics,
        ),
    ] = None,
    topic: Annotated[
        str | None, typer.Option("-t", "--topic", help="The topic.", autocompletion=complete.topics)
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "-G",
            "--group",
            help="Read as a member of this group and commit the offsets of printed records.",
            autocompletion=complete.groups,
        ),
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("-p", "--partition", help="Read only this partition; repeatable. Default: all.")
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--offset",
            "--output",
            metavar="OFFSET|json",
            help=(
                "Where to start: beginning (default), end, offset N, -N (last N records), or a time (s@TIME, or -2h "
                "for two hours ago). e@TIME sets where to end. `-o json` prints one JSON array. "
                "Repeatable: -o -10 -o json."
            ),
        ),
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("-e", help="Stop at the current end of each partition's log.")] = False,
    count: Annotated[int | None, typer.Option("-c", min=0, help="Stop after this many records.")] = None,
    template: Annotated[
        str | None, typer.Option("-f", help="The output format of each record, with kcat's tokens, such as '%k %s'.")
    ] = None,
    json_lines: Annotated[bool, typer.Option("-J", help="Print each record as a line of JSON.")] = False,
    key_delimiter: Annotated[
        str | None, typer.Option("-K", help="Print the key and this delimiter before the value.")
    ] = None,
    delimiter: Annotated[str, typer.Option("-D", help="The delimiter after each record.")] = r"\n",
    null: Annotated[bool, typer.Option("-Z", help="Print NULL for a null key or value.")] = False,
    unbuffered: Annotated[bool, typer.Option("-u", help="Flush after each record.")] = False,
    isolation: Annotated[
        _Isolation | None,
        typer.Option(
            help="read_committed prints no records of aborted or open transactions; "
            "read_uncommitted (the default) prints all."
        ),
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "-s",
            metavar="[key=|value=]registry",
            help="Decode by the schema registry: registry (keys and values), key=registry or value=registry. "
            "As in kcat, avro may stand in place of registry.",
        ),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "-r",
            "--registry",
            metavar="URL,...",
            help="URLs of the schema registry. Without -s: decode keys and values that begin with a schema id.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", help="Print no notes on stderr.")] = False,
    properties: Properties = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of a topic from its beginning, and new records as they arrive; -e stops at the end of the log.
    With -G the command joins a group and prints the records that the group has not read yet.

    \b
    In -f:  %t topic  %p partition  %o offset  %T timestamp (ms)  %k key  %K its length
            %s value  %S its length  %h headers  \\n \\t \\xHH  %% percent

    \b
    -o is kcat's offset. With `-o json` the output is one JSON array of all records; add -e or -c, so that the command
    ends. To give an offset too, pass -o twice: -o -10 -o json. For a JSON object per record use -J.
    A TIME is an ISO time (UTC), a duration before now such as -2h, or milliseconds since 1970.

    \b
    When the log has no offset N, `-X auto.offset.reset=` decides: earliest, latest, or none for an error. Without
    auto.offset.reset, reading begins at the first record if N was deleted, and at the end of the log if N is beyond the
    end.

    \b
    Examples:
      headrace consume -t orders -e
      headrace consume -t orders -p 0 -o -10 -e -f '%o %k=%s\\n'
      headrace consume -t orders -o -2h -e
      headrace consume -t orders -o s@2013-01-01T00:00:00 -o e@2013-01-01T01:00:00 -J
      headrace consume -t orders -e -o json
      headrace consume -G billing orders clicks
      headrace consume -t orders -e -r http://127.0.0.1:8081 -J
    """
    given = offsets or []
    as_document = "json" in given
    starts = [text for text in given if text not in ("json", "text")]
    subscribed = [*(topics or ()), *([topic] if topic is not None else [])]
    if group is not None:
        _check_group_flags(subscribed, partitions, starts)
    elif topic is None or topics:
        raise typer.BadParameter("pass one topic; for several use -G GROUP TOPIC...", param_hint="-t")
    with usage_of("-o"):
        wanted = parse_offsets(starts)
    if as_document and (json_lines or template is not None):
        raise typer.BadParameter("pass only one of -o json, -J and -f")
    if json_lines and template is not None:
        raise typer.BadParameter("pass only one of -J and -f")
    writer: _Writer
    tell_resets = not quiet
    if as_document:
        writer = _DocumentWriter()
        quiet = True  # notes would break the JSON document on a terminal
    else:
        with usage_of("-f, -D, -K"):
            writer = _Writer(_renderer(template, json_lines, delimiter, key_delimiter, null), unbuffered)
    defaults = {"allow.auto.create.topics": False} | ({} if group is None else {"auto.offset.reset": "earliest"})
    flags = {} if group is None else {"group.id": group}
    if isolation is not None:
        flags["isolation.level"] = isolation.value
    config = client_config(bootstrap, properties, kind="consumer", defaults=defaults, flags=flags)
    config |= decoders(formats, registry)
    choice = _Choice(wanted, config.get("auto.offset.reset"), tell_resets)
    if count == 0:
        writer.close()
        return
    silent = quiet or as_document or not (exit_at_end or count is not None)
    try:
        with progress(lines_s=None, beside_records=True, quiet=silent) as shown:
            if topic is None or group is not None:
                _run_in_group(
                    config,
                    subscribed,
                    exit_at_end=exit_at_end,
                    count=count,
                    writer=writer,
                    quiet=quiet,
                    shown=shown,
                )
            else:
                _run(config, topic, partitions, choice, exit_at_end, count, writer, quiet, shown)
    except BrokenPipeError:
        raise typer.Exit(broken_pipe()) from None
    except KeyboardInterrupt:
        writer.close()
        raise


def _renderer(template: str | None, json_lines: bool, delimiter: str, key_delimiter: str | None, null: bool) -> Render:
    shown_null = b"NULL" if null else b""
    if template is not None:
        return compile_format(template, null=shown_null)
    ends_with = unescape(delimiter)
    if json_lines:
        return lambda record: json_line(record) + ends_with
    return default_format(ends_with, unescape(key_delimiter) if key_delimiter is not None else None, null=shown_null)


class _Writer:
    """Writes records to stdout as bytes; flushes after each batch of records, or with -u after each record."""

    def __init__(self, render: Render, unbuffered: bool = False) -> None:
        self._render = render
        self._unbuffered = unbuffered

    def write(self, records: list[Any]) -> None:
        out = sys.stdout.buffer
        if self._unbuffered:
            for record in records:
                out.write(self._render(record))
                out.flush()
            return
        out.write(b"".join([self._render(record) for record in records]))
        out.flush()

    def close(self) -> None:
        sys.stdout.buffer.flush()


class _DocumentWriter(_Writer):
    """Writes all records as one JSON array; ``close`` writes the end of the array."""

    def __init__(self) -> None:
        super().__init__(lambda record: exact_json.dumps(document(record)).encode("utf-8", "replace"))
        self._count = 0
        self._closed = False

    def write(self, records: list[Any]) -> None:
        parts = [(b",\n" if self._count + at else b"[") + self._render(record) for at, record in enumerate(records)]
        self._count += len(records)
        sys.stdout.buffer.write(b"".join(parts))
        sys.stdout.buffer.flush()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            sys.stdout.buffer.write(b"]\n" if self._count else b"[]\n")
            sys.stdout.buffer.flush()


@dataclass(frozen=True)
class _Choice:
    """The position at which reading begins. ``reset``: auto.offset.reset if the user set it, otherwise None. ``tell``:
    whether to print a note to stderr if the log lacks the requested offset."""

    wanted: OffsetRange
    reset: str | None = None
    tell: bool = True

    def start(self, partition: TopicPartition, beginning: int, end: int, by_time: int | None) -> int:
        """The offset at which reading starts, in a log with the offsets [beginning, end). Raises OffsetOutOfRangeError
        when the log lacks the requested offset and auto.offset.reset is none."""
        start = self.wanted.start(beginning, end, by_time)
        named = self.wanted.at
        # -N means at most N records, so a log with fewer records is valid.
        if named is None or beginning <= named <= end or named < 0:
            return start
        why = f"{partition} has no offset {named}: its log holds {beginning} to {end} (the end)"
        if self.reset == "none":
            raise OffsetOutOfRangeError(
                f"{why}; pass -o with an offset of the log, or -X auto.offset.reset=earliest (auto.offset.reset is "
                "none)"
            )
        at_start = named < beginning if self.reset is None else self.reset == "earliest"
        start = beginning if at_start else end
        if self.tell:
            note(f"% {why}; reading from {start}, the {'start' if at_start else 'end'}")
        return start


@dataclass
class _Reading:
    """The limits up to which each partition is read. ``stops``: end offsets by partition. ``stop_ms``: the first record
    with the timestamp ``stop_ms`` or a later one ends the reading of its partition. ``left``: how many records may
    still be printed (None: no limit)."""

    stops: dict[TopicPartition, int]
    stop_ms: int | None
    left: int | None
    open: set[TopicPartition] = field(default_factory=set)

    def take(self, records: list[Any]) -> list[Any]:
        """Return the records to print, and remove finished partitions from ``open``."""
        wanted = []
        for record in records:
            partition = TopicPartition(record.topic, record.partition)
            if partition not in self.open:
                continue
            late = self.stop_ms is not None and record.timestamp_ms >= self.stop_ms
            if late or record.offset >= self.stops.get(partition, record.offset + 1):
                self.open.discard(partition)
                continue
            if self.left is not None:
                if not self.left:
                    break
                self.left -= 1
            wanted.append(record)
        return wanted

    def over(self) -> bool:
        return not self.open or self.left == 0


def _run(
    config: dict[str, Any],
    topic: str,
    only: list[int] | None,
    choice: _Choice,
    exit_at_end: bool,
    count: int | None,
    writer: _Writer,
    quiet: bool,
    shown: Progress,
) -> None:
    from headrace import Consumer

    with Consumer(config) as consumer:
        partitions = _partitions(consumer, topic, only)
        consumer.assign(partitions)
        stops = _position(consumer, partitions, choice, exit_at_end)
        reading = _Reading(stops, choice.wanted.stop_ms, count, set(partitions))
        starts = {partition: consumer.position(partition) for partition in stops}

        def how_far() -> HowFar:
            if count is not None:
                printed = count - (reading.left or 0)
                return HowFar(printed, count, f"{printed:,} of {counted(count, 'record')}")
            read = sum(consumer.position(partition) - start for partition, start in starts.items())
            total = sum(stops[partition] - start for partition, start in starts.items())
            return HowFar(read, total, f"{read:,} of {counted(total, 'offset')}")

        _close_finished(consumer, reading, quiet)
        while not reading.over():
            limit = _POLL_RECORDS if reading.left is None else min(_POLL_RECORDS, reading.left)
            records = consumer.poll(timeout=_POLL_S, max_records=limit)
            if records:
                writer.write(reading.take(records))
            elif _reader_is_gone():
                raise BrokenPipeError
            shown.at(how_far)
            _close_finished(consumer, reading, quiet)
        writer.close()


def _reader_is_gone() -> bool:
    """Whether the reader of the output pipe has closed it (`headrace consume -t quiet | head -1` must end)."""
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in watch.poll(0))


def _partitions(consumer: Any, topic: str, only: list[int] | None) -> list[TopicPartition]:
    there = sorted(consumer.partitions_for(topic) or ())
    if not there:
        raise UnknownTopicOrPartitionError(f"topic {topic!r} does not exist; `headrace topics list` shows the topics")
    if only:
        missing = sorted(set(only) - set(there))
        if missing:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has no partition {', '.join(map(str, missing))}; its partitions are 0 to {there[-1]}"
            )
        there = sorted(set(only))
    return [TopicPartition(topic, number) for number in there]


def _position(
    consumer: Any, partitions: list[TopicPartition], choice: _Choice, exit_at_end: bool
) -> dict[TopicPartition, int]:
    """Seek every partition to its start. Return the stop offsets of the partitions that have one."""
    beginnings, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)

    def at(time_ms: int | None) -> dict[TopicPartition, int | None]:
        if time_ms is None:
            return dict.fromkeys(partitions)
        found = consumer.offsets_for_times(dict.fromkeys(partitions, time_ms))
        return {partition: found[partition].offset if found.get(partition) else None for partition in partitions}

    starts_by_time, stops_by_time = at(choice.wanted.start_ms), at(choice.wanted.stop_ms)
    starts = {
        partition: choice.start(partition, beginnings[partition], ends[partition], starts_by_time[partition])
        for partition in partitions
    }
    stops: dict[TopicPartition, int] = {}
    for partition, start in starts.items():
        consumer.seek(partition, start)
        by_time = stops_by_time[partition]
        if by_time is not None:
            stops[partition] = by_time
        elif exit_at_end:
            stops[partition] = ends[partition]
    return stops


def _close_finished(consumer: Any, reading: _Reading, quiet: bool) -> None:
    """Finish the partitions whose position has reached their stop offset, even if no record of them was printed."""
    for partition in sorted(reading.open):
        stop = reading.stops.get(partition)
        if stop is not None and consumer.position(partition) >= stop:
            reading.open.discard(partition)
            if not quiet:
                note(f"% Reached end of topic {partition.topic} [{partition.partition}] at offset {stop}")


# -- as a member of a group (kcat -G)


def _check_group_flags(topics: list[str], only: list[int] | None, offsets: list[str]) -> None:
    """Raise a usage error for flags that cannot be combined with a group."""
    if only:
        raise typer.BadParameter("-p cannot be combined with -G: the group assigns the partitions", param_hint="-p")
    if offsets:
        raise typer.BadParameter(
            "-o cannot be combined with -G: a group continues at its committed offsets, or begins at "
            "auto.offset.reset; use `headrace groups reset-offsets` to change the committed offsets",
            param_hint="-o",
        )
    if not topics:
        raise typer.BadParameter("pass topics: headrace consume -G GROUP TOPIC...", param_hint="TOPIC")
    if any(topic.startswith("^") for topic in topics) and len(topics) > 1:
        raise typer.BadParameter("a pattern (^...) cannot be combined with other topics", param_hint="TOPIC")


def _run_in_group(
    config: dict[str, Any],
    topics: list[str],
    *,
    exit_at_end: bool,
    count: int | None,
    writer: _Writer,
    quiet: bool,
    shown: Progress,
) -> None:
    """Read until Ctrl-C or until ``count`` records are printed. With ``exit_at_end``, stop at the end offsets that the
    partitions had when they were assigned.

    Offsets are committed every five seconds, at the end, and at Ctrl-C. After an interrupt some records may be printed
    again by the next run (at least once).
    """
    from headrace import Consumer

    tell = (lambda text: None) if quiet else note
    stops: dict[TopicPartition, int] = {}
    left = count
    written: dict[TopicPartition, int] = {}
    commits = str(config.get("enable.auto.commit", True)).lower() != "false"

    def how_far() -> HowFar:
        if count is not None and left is not None:
            return HowFar(count - left, count, f"{count - left:,} of {counted(count, 'record')}")
        unread = sum(max(0, stop - consumer.position(partition)) for partition, stop in stops.items())
        return HowFar(0, 0, f"{counted(unread, 'offset')} to the end")

    def assigned(consumer: Any, partitions: list[TopicPartition]) -> None:
        tell(f"% Group {config['group.id']}: assigned {_named(partitions)}")
        if exit_at_end:
            stops.update(consumer.end_offsets(partitions))

    def gone(consumer: Any, partitions: list[TopicPartition]) -> None:
        if partitions:
            tell(f"% Group {config['group.id']}: revoked {_named(partitions)}")
        for partition in partitions:
            stops.pop(partition, None)

    waited = _Waiting(gives_up=exit_at_end)
    with Consumer(config) as consumer:
        callbacks: dict[str, Any] = {"on_assigned": assigned, "on_revoked": gone}
        if topics[0].startswith("^"):
            consumer.subscribe(pattern=topics[0].removeprefix("^").removesuffix("$"), **callbacks)
        else:
            consumer.subscribe(topics, **callbacks)
        try:
            while left is None or left > 0:
                records = consumer.poll(
                    timeout=_POLL_S, max_records=_POLL_RECORDS if left is None else min(_POLL_RECORDS, left)
                )
                if records:
                    writer.write(records)
                    written.update((TopicPartition(each.topic, each.partition), each.offset + 1) for each in records)
                    left = None if left is None else left - len(records)
                elif _reader_is_gone():
                    raise BrokenPipeError
                elif not consumer.assignment():
                    waited.look(consumer)
                shown.at(how_far)
                if stops and all(consumer.position(partition) >= stop for partition, stop in stops.items()):
                    for partition, stop in sorted(stops.items()):
                        tell(f"% Reached end of topic {partition.topic} [{partition.partition}] at offset {stop}")
                    break
        except KeyboardInterrupt:
            if commits and (ours := {tp: offset for tp, offset in written.items() if tp in consumer.assignment()}):
                with contextlib.suppress(HeadraceError):
                    consumer.commit(ours)
            raise
        writer.close()


class _Waiting:
    """Prints a note after some seconds without a coordinator of the group, then once a minute. ``gives_up``: the
    command must end without Ctrl-C, so it fails after GROUP_TIMEOUT_S without a coordinator."""

    def __init__(self, *, gives_up: bool) -> None:
        self._gives_up = gives_up
        self._tell_at = 0.0

    def look(self, consumer: Any) -> None:
        """Raises CoordinatorNotAvailableError."""
        from headrace.consumer.group import WAITING_AGAIN_S, WAITING_S

        group = consumer._core.in_group("consume -G")
        if self._gives_up and (why := group.waiting(GROUP_TIMEOUT_S)):
            raise CoordinatorNotAvailableError(f"nothing was read within {GROUP_TIMEOUT_S:g} s: {why}")
        if time.monotonic() >= self._tell_at and (why := group.waiting(WAITING_S)):
            self._tell_at = time.monotonic() + WAITING_AGAIN_S
            note(f"% {why[0].upper()}{why[1:]}")


def _named(partitions: list[TopicPartition]) -> str:
    return ", ".join(f"{each.topic} [{each.partition}]" for each in partitions)
