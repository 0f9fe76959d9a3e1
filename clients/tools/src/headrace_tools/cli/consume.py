"""``consume``: records of a topic to stdout. kcat's flags (kcat -C)."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from headrace_core.errors import OffsetOutOfRangeError, UnknownTopicOrPartitionError
from headrace_core.types import TopicPartition

from .client import DEFAULT_BOOTSTRAP, Bootstrap, Properties, client_config
from .consume_group import check_group_flags, run_in_group
from .kcat import OffsetRange, compile_format, default_format, document, json_line, parse_offsets, unescape
from .output import note
from .pipes import broken_pipe
from .progress import HowFar, Progress, progress

_POLL_S = 0.5
_POLL_RECORDS = 10_000

Render = Callable[[Any], bytes]


def register(app: typer.Typer) -> None:
    app.command("consume")(consume)


def consume(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="TOPIC", help="With -G: topics, or one pattern, ^orders-.*")
    ] = None,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="The topic.")] = None,
    group: Annotated[
        str | None, typer.Option("-G", "--group", help="Read as a member of this group, which commits what is printed.")
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("-p", "--partition", help="Only this partition; repeatable. Default: all.")
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--offset",
            "--output",
            metavar="OFFSET|json",
            help="beginning (default), end, N, -N (the last N), s@MS (from a time), e@MS (up to a time); or json.",
        ),
    ] = None,
    exit_at_end: Annotated[bool, typer.Option("-e", help="End when all that was there at the start is read.")] = False,
    count: Annotated[int | None, typer.Option("-c", min=0, help="End after so many records.")] = None,
    template: Annotated[str | None, typer.Option("-f", help="What to print for each record; see above.")] = None,
    json_lines: Annotated[bool, typer.Option("-J", help="A JSON object on a line for each record.")] = False,
    key_delimiter: Annotated[
        str | None, typer.Option("-K", help="Print the key before the value, split by this.")
    ] = None,
    delimiter: Annotated[str, typer.Option("-D", help="What to print after each record.")] = r"\n",
    null: Annotated[bool, typer.Option("-Z", help="Print NULL for a null key or value.")] = False,
    unbuffered: Annotated[bool, typer.Option("-u", help="Write each record at once.")] = False,
    quiet: Annotated[bool, typer.Option("-q", help="Say nothing on stderr.")] = False,
    properties: Properties = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of a topic, from its beginning, and then those that follow; -e ends at the end. With -G: those
    that the group has not read yet, beside its other members.

    \b
    In -f:  %t topic  %p partition  %o offset  %T timestamp (ms)  %k key  %K its length
            %s value  %S its length  %h headers  \\n \\t \\xHH  %% percent

    \b
    -o is kcat's offset; the value `json` asks for output instead: one JSON array of all records (use it with -e or
    -c), and both may be given: -o -10 -o json. For a stream of JSON objects use -J.

    \b
    An offset N that is not there: `-X auto.offset.reset=` decides. earliest and latest begin there, none is an
    error. Without it: the first record there is for one that is gone, the end for one beyond it.

    \b
    Examples:
      headrace consume -t orders -e
      headrace consume -t orders -p 0 -o -10 -e -f '%o %k=%s\\n'
      headrace consume -t orders -o s@1356998400000 -c 5 -J
      headrace consume -t orders -e -o json
      headrace consume -G billing orders clicks
    """
    given = offsets or []
    as_document = "json" in given
    starts = [text for text in given if text not in ("json", "text")]
    subscribed = [*(topics or ()), *([topic] if topic is not None else [])]
    if group is not None:
        check_group_flags(subscribed, partitions, starts)
    elif topic is None or topics:
        raise typer.BadParameter("name one topic with -t (several: -G GROUP TOPIC...)", param_hint="-t")
    wanted = parse_offsets(starts)
    if as_document and (json_lines or template is not None):
        raise typer.BadParameter("-o json, -J and -f exclude each other")
    if json_lines and template is not None:
        raise typer.BadParameter("-J and -f exclude each other")
    writer: _Writer
    tell_resets = not quiet
    if as_document:
        writer = _DocumentWriter()
        quiet = True  # notes between the lines of a document would help nobody
    else:
        writer = _Writer(_renderer(template, json_lines, delimiter, key_delimiter, null), unbuffered)
    defaults = {"allow.auto.create.topics": False} | ({} if group is None else {"auto.offset.reset": "earliest"})
    flags = {} if group is None else {"group.id": group}
    config = client_config(bootstrap, properties, kind="consumer", defaults=defaults, flags=flags)
    choice = _Choice(wanted, config.get("auto.offset.reset"), tell_resets)
    if count == 0:
        writer.close()
        return
    silent = quiet or as_document or not (exit_at_end or count is not None)
    try:
        with progress(lines_s=None, beside_records=True, quiet=silent) as shown:
            if topic is None or group is not None:
                run_in_group(
                    config,
                    subscribed,
                    exit_at_end=exit_at_end,
                    count=count,
                    writer=writer,
                    quiet=quiet,
                    reader_is_gone=_reader_is_gone,
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
    """Records as bytes on stdout, flushed after each portion, or with -u after each record."""

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
    """One JSON array, written as the records come and closed at the end, whatever ends it."""

    def __init__(self) -> None:
        super().__init__(lambda record: json.dumps(document(record), ensure_ascii=False).encode("utf-8", "replace"))
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
    """Where to begin. ``reset``: the user's auto.offset.reset, None when none was given; ``tell``: say on stderr
    that an offset is not there."""

    wanted: OffsetRange
    reset: str | None = None
    tell: bool = True

    def start(self, partition: TopicPartition, beginning: int, end: int, by_time: int | None) -> int:
        """The first offset to read of a partition that holds [beginning, end); OffsetOutOfRangeError when the one that
        was named is not there and auto.offset.reset is none."""
        start = self.wanted.start(beginning, end, by_time)
        named = self.wanted.at
        if named is None or beginning <= named <= end or named < 0:  # -N: up to N, so that fewer are no error
            return start
        why = f"{partition}: offset {named} is not there: the log holds {beginning} to {end} (its end)"
        if self.reset == "none":
            raise OffsetOutOfRangeError(
                f"{why}, and auto.offset.reset=none: give -o one of those, or auto.offset.reset=earliest or latest"
            )
        at_start = named < beginning if self.reset is None else self.reset == "earliest"
        start = beginning if at_start else end
        if self.tell:
            note(f"% {why}; reading begins at {start}, the {'start' if at_start else 'end'}")
        return start


@dataclass
class _Reading:
    """How far each partition is to be read. ``stops``: the offset to stop before; ``stop_ms``: the first record this
    late stops its partition; ``left``: how many records may still be printed (None: any number)."""

    stops: dict[TopicPartition, int]
    stop_ms: int | None
    left: int | None
    open: set[TopicPartition] = field(default_factory=set)

    def take(self, records: list[Any]) -> list[Any]:
        """Those of ``records`` that are wanted; partitions that are through leave ``open``."""
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
                return HowFar(printed, count, f"{printed:,} of {count:,} records")
            read = sum(consumer.position(partition) - start for partition, start in starts.items())
            total = sum(stops[partition] - start for partition, start in starts.items())
            return HowFar(read, total, f"{read:,} of {total:,} offsets")

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
    """Has whoever reads our pipe closed it? (`headrace consume -t quiet | head -1` must end too.)"""
    watch = select.poll()
    watch.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in watch.poll(0))


def _partitions(consumer: Any, topic: str, only: list[int] | None) -> list[TopicPartition]:
    there = sorted(consumer.partitions_for(topic) or ())
    if not there:
        raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}; `headrace topics list` shows those there are")
    if only:
        missing = sorted(set(only) - set(there))
        if missing:
            raise UnknownTopicOrPartitionError(
                f"topic {topic!r} has partitions 0 to {there[-1]}; there is no {', '.join(map(str, missing))}"
            )
        there = sorted(set(only))
    return [TopicPartition(topic, number) for number in there]


def _position(
    consumer: Any, partitions: list[TopicPartition], choice: _Choice, exit_at_end: bool
) -> dict[TopicPartition, int]:
    """Seek every partition to its start; returns the offsets to stop before, for those that have one."""
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
    """Partitions whose position has reached their stop are through, though no record said so (or none was there)."""
    for partition in sorted(reading.open):
        stop = reading.stops.get(partition)
        if stop is not None and consumer.position(partition) >= stop:
            reading.open.discard(partition)
            if not quiet:
                note(f"% Reached end of topic {partition.topic} [{partition.partition}] at offset {stop}")
