"""Output of commands: results are written to stdout, as text or as one JSON document; all other messages are written to
stderr.

On a terminal rich draws the tables; a pipe gets plain columns without colour, which are never wrapped or cut. Control
characters are shown as escapes (headrace_core.visible), because names come from other clients.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TextIO

import typer

from headrace_core.errors import HeadraceError
from headrace_core.visible import escaped, one_line

from .times import config_value


class OutputFormat(enum.StrEnum):
    TEXT = "text"
    JSON = "json"


#: The option ``-o json``, which all commands have in common.
Output = Annotated[
    OutputFormat, typer.Option("--output", "-o", help="The output format: text, or json (one JSON document on stdout).")
]


def note(message: str) -> None:
    """Print a line for people on stderr; a closed terminal does not raise an error."""
    _tell(one_line(message), sys.stderr)


def say(message: str) -> None:
    """Print lines on stdout; a closed terminal does not raise an error, because the command continues."""
    _tell(escaped(message), sys.stdout)


def say_data(line: str) -> None:
    """Print a line of CSV or JSON on stdout. On a terminal, visible escapes such as ``\\x1b`` replace control
    characters, as in ``say``; otherwise the line is printed unchanged. A closed terminal does not raise an error."""
    _tell(escaped(line) if sys.stdout.isatty() else line, sys.stdout)


def _tell(message: str, to: TextIO) -> None:
    try:
        print(message, file=to, flush=True)
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            # Redirect both streams to /dev/null: Python flushes buffered text at exit, and a failed flush would change
            # the exit code.
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    os.dup2(nowhere.fileno(), stream.fileno())


def show(output: OutputFormat, document: Any, text: str) -> None:
    if output is OutputFormat.JSON:
        print_json(document)
    else:
        print(escaped(text))


def show_rows(output: OutputFormat, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as JSON, or as a table with the given ``columns``; each row has its values in the order of the
    columns."""
    if output is OutputFormat.JSON:
        print_json(rows)
    else:
        print_table(columns, [tuple(row.values()) for row in rows])


def print_json(document: Any, *, one_line: bool = False) -> None:
    """Print a JSON document: indented on a terminal (unless ``one_line``), on one line in a pipe."""
    indent = 2 if sys.stdout.isatty() and not one_line else None
    sys.stdout.write(json.dumps(document, indent=indent, default=_plain) + "\n")
    sys.stdout.flush()


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table with a heading; numbers are right-aligned."""
    table, numeric = _cells(columns, rows)
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(_rich_table(columns, table, numeric))
        return
    heads = tuple(columns)
    widths = [max(len(row[at]) for row in (heads, *table)) for at in range(len(columns))]
    for row in (heads, *table):
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.flush()


def rich_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    """Make the table of ``print_table`` as a rich renderable, for live views."""
    return _rich_table(columns, *_cells(columns, rows))


def _cells(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> tuple[list[tuple[str, ...]], list[bool]]:
    """The text of each cell, and for each column whether it holds numbers."""
    table = [tuple("-" if cell is None else one_line(str(cell)) for cell in row) for row in rows]
    return table, [bool(table) and all(_is_number(row[at]) for row in table) for at in range(len(columns))]


def _is_number(text: str) -> bool:
    return text == "-" or text.lstrip("-").replace(".", "", 1).replace(",", "").isdigit()


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


@contextlib.contextmanager
def usage_of(flag: str) -> Iterator[None]:
    """Convert an error about the value of ``flag`` to a usage error (exit code 2)."""
    try:
        yield
    except (HeadraceError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint=flag) from None


def key_values(pairs: Iterable[str], flag: str) -> dict[str, str]:
    """Parse ``["a=b", ...]`` to a dict; a value such as 7d of a key with ``.ms`` is converted to milliseconds. A usage
    error names ``flag`` and the wrong pair."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(f"{pair!r}: must be KEY=VALUE", param_hint=flag)
        found[key.strip()] = config_value(key.strip(), value.strip())
    return found


def tell_notes(kind: str, keys: Iterable[str]) -> None:
    """Print a note on stderr for each of the ``keys`` that has no effect, with its replacement; ``kind`` is "topic" or
    "broker". Keys that this release of the command line does not know are skipped, because a newer cluster may know
    such keys."""
    from headrace_core.config.server_keys import SERVER
    from headrace_core.config.topic_keys import TOPIC
    from headrace_core.errors import InvalidConfigError

    declared = TOPIC if kind == "topic" else SERVER
    for key in keys:
        try:
            lines = declared.notes([key])
        except InvalidConfigError:
            continue
        for line in lines:
            note(f"note: {line}")
