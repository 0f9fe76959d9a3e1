"""The commands ``log dump`` and ``log verify``: read segments, indexes and checkpoints without a broker."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace_core.errors import CorruptLogError, InvalidArgumentError
from headrace_core.plurals import counted

from .kcat import document
from .output import Output, OutputFormat, note, print_json
from .paths import DataPath, path_of
from .progress import HowFar, progress


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Read log files without a broker.", no_args_is_help=True)
    group.callback()(_group)
    group.command("dump")(dump)
    group.command("verify")(verify)
    app.add_typer(group, name="log")


def _group() -> None:
    """Read and check log files without a broker."""


def dump(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH", help="A .log, .index or .timeindex file, a partition's directory, or a log directory."
        ),
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also decode and check every record.")] = False,
    data: DataPath = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Print the contents of log files, and check them: CRCs, offsets, indexes against segments.

    Changes nothing. Exit code 1 means corruption; each problem is a line on stderr with file, position and offset. An
    incomplete last batch, which the broker cuts off when it starts, is only a note on stderr and does not count as
    corruption.

    \b
    Examples:
      headrace log dump ./cluster/broker-1/orders-0
      headrace log dump ./cluster/broker-1/orders-0/00000000000000000000.log --deep
      headrace log dump 00000000000000000000.index -o json
    """
    from headrace_core.log.dump import Note, Problem
    from headrace_core.log.dump import dump as lines_of

    path = path_of(path, data)
    problems: list[Problem] = []
    notes: list[Note] = []
    counts: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    try:
        for line in lines_of(str(path), deep=deep):
            kind = _KINDS[type(line).__name__]
            counts[kind] += 1
            if isinstance(line, Note):
                notes.append(line)
            elif isinstance(line, Problem):
                problems.append(line)
            if output is OutputFormat.JSON:
                rows.append({"kind": kind, **_row(line)})
            elif not isinstance(line, Problem):
                print(_text(line))
    except BrokenPipeError:  # the output pipe of this command broke, not one of the files
        raise
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(str(error)) from error
    if output is OutputFormat.JSON:
        found = {plural: [_without_kind(row) for row in rows if row["kind"] == kind] for kind, plural in _PLURALS}
        print_json({"path": str(path), "sound": not problems, **found})
    else:
        print(", ".join(_counted(counts[kind], kind, plural) for kind, plural in _PLURALS if counts[kind]))
    for line in notes:
        note(f"headrace: {line}; {line.cure}")
    for problem in problems:
        note(f"headrace: {problem} [{CorruptLogError.code}]")
    if problems:
        raise typer.Exit(1)


def verify(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="PATH",
            help="A log directory, a directory that contains several log directories, a partition's directory, or a "
            ".log file.",
        ),
    ] = None,
    data: DataPath = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check the files of a log completely: batches, records, offsets, leader epochs, indexes, checkpoints.

    Changes nothing. Exit code 1 means damage; each problem is a line on stderr with file, position, offset and cure. An
    incomplete last batch, which the broker cuts off when it starts, is only a note on stderr and does not count as
    damage: the exit code stays 0. For a reliable result stop the broker first: a record that the broker is writing may
    look like damage.

    \b
    Examples:
      headrace log verify ./cluster
      headrace log verify ./cluster/broker-1
      headrace log verify ./cluster/broker-1/orders-0 -o json
    """
    from headrace_core.log.dump import Note, Problem
    from headrace_core.log.verify import Counts
    from headrace_core.log.verify import verify as lines_of

    path = path_of(path, data)
    counts = Counts()
    problems: list[Problem] = []
    notes: list[Note] = []
    started = time.monotonic()
    try:
        with progress(lines_s=_PROGRESS_S) as shown:
            for line in lines_of(str(path), counts=counts):
                if isinstance(line, Note):
                    notes.append(line)
                    note(f"headrace: {line}; {line.cure}")
                elif isinstance(line, Problem):
                    problems.append(line)
                    note(f"headrace: {line} [{CorruptLogError.code}]" + (f"; {line.cure}" if line.cure else ""))
                else:
                    shown.at(functools.partial(_how_far, counts, started, line.path))
    except BrokenPipeError:  # the output pipe of this command broke, not one of the files
        raise
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(str(error)) from error
    if output is OutputFormat.JSON:
        found = {"problems": [_row(line) for line in problems], "notes": [_row(line) for line in notes]}
        print_json({"path": str(path), "sound": not problems, **dataclasses.asdict(counts), **found})
    else:
        verdict = counted(len(problems), "problem") if problems else "no damage"
        left = f", {counted(len(notes), 'note')} (repaired at the next start)" if notes else ""
        print(f"{_counts(counts)}: {verdict}{left}")
    if problems:
        raise typer.Exit(1)


#: Interval of progress lines in seconds, where stderr cannot show a progress bar.
_PROGRESS_S = 2.0


def _counted(number: int, kind: str, plural: str) -> str:
    return counted(number, kind.replace("_", " "), plural.replace("_", " "))


def _how_far(counts: Any, started_s: float, path: str) -> HowFar:
    return HowFar(0, 0, f"headrace: {_counts(counts)} after {time.monotonic() - started_s:.0f} s; now {path}")


def _counts(counts: Any) -> str:
    each = [_counted(getattr(counts, plural), kind, plural) for kind, plural in _PLURALS[:3]]
    return ", ".join([*each, counted(counts.bytes, "byte")])


_KINDS = {
    "FileLine": "file",
    "BatchLine": "batch",
    "RecordLine": "record",
    "OffsetEntryLine": "offset_entry",
    "TimeEntryLine": "time_entry",
    "AbortedLine": "aborted_transaction",
    "ProducerLine": "producer",
    "Problem": "problem",
    "Note": "note",
}
_PLURALS = (
    ("file", "files"),
    ("batch", "batches"),
    ("record", "records"),
    ("offset_entry", "offset_entries"),
    ("time_entry", "time_entries"),
    ("aborted_transaction", "aborted_transactions"),
    ("producer", "producers"),
    ("problem", "problems"),
    ("note", "notes"),
)


def _without_kind(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != "kind"}


def _row(line: Any) -> dict[str, Any]:
    """The fields of a line for JSON output. The fields of a batch header or of a record are at the same level as path
    and position."""
    fields = {field.name: getattr(line, field.name) for field in dataclasses.fields(line)}
    if "cure" in fields:  # the line is a problem or a note, in which -1 means unknown
        return {key: None if value == -1 else value for key, value in fields.items()}
    if "header" in fields:
        return fields | _header(fields.pop("header")) | {"path": line.path, "position": line.position}
    if "record" in fields:
        return fields | document(fields.pop("record")) | {"path": line.path, "position": line.position}
    return fields


def _header(header: Any) -> dict[str, Any]:
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "record_count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "size": header.size,
        "compression": header.compression.name.lower(),
        "timestamp_type": header.timestamp_type.name,
        "base_timestamp_ms": header.base_timestamp_ms,
        "max_timestamp_ms": header.max_timestamp_ms,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "crc": header.crc,
    }


def _text(line: Any) -> str:
    row = _row(line)
    kind = _KINDS[type(line).__name__]
    if kind == "file":
        return f"{row['path']} ({row['size']} bytes)"
    indent = "    " if kind == "record" else "  "
    shown = ((key, value) for key, value in row.items() if key not in ("path", "topic", "partition"))
    return indent + f"{kind.replace('_', ' ')}: " + " ".join(_pairs(shown))


def _pairs(items: Iterable[tuple[str, Any]]) -> Iterable[str]:
    for key, value in items:
        yield f"{key}={str(value).lower() if isinstance(value, bool) else value}"
