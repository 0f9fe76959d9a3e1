"""Results of statements as a table, as JSON lines, or as CSV.

With json and csv stdout has only rows, and messages go to stderr, so that a pipe gets only rows. In JSON the second of
two columns ``id`` becomes ``id_2``.
"""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import Row

from headrace_tools.cli.output import note, print_table, say, say_data

from .naming import distinct
from .results import Arriving, Message, Result, Rows

#: Control characters, and the marks that change the direction of text.
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
OUTPUTS = ("table", "json", "csv")


def show(result: Result, output: str) -> None:
    """Print a result."""
    match result:
        case Message():
            (say if output == "table" else note)(result.text)
        case Rows():
            _show_rows(result, output)
        case Arriving():
            _show_arriving(result, output)


def _show_rows(result: Rows, output: str) -> None:
    if output == "table":
        print_table(
            [harmless(name) for name in result.columns],
            [[harmless(cell(value), keep="") for value in row] for row in result.rows],
        )
    else:
        for line in lines(result.columns, result.rows, output, heading=True):
            say_data(line)
    count = len(result.rows)
    if result.has_more:
        note(f"only the first {count} rows are shown; SET rows.max = N shows more, LIMIT N fewer")
    elif output == "table":
        note(f"{count} row{'s' if count != 1 else ''}")


def _show_arriving(result: Arriving, output: str) -> None:
    """Print each row as soon as it arrives. The format ``table`` also prints JSON for rows that arrive over time,
    because a table cannot be aligned before its last row."""
    kind = "csv" if output == "csv" else "json"
    for line in lines(result.columns, result.rows, kind, heading=True):
        say_data(line)


def lines(columns: Sequence[str], rows: Iterable[Sequence[Any]], output: str, *, heading: bool) -> Iterable[str]:
    """The lines of JSON or CSV. ``heading``: CSV begins with a line of the column names."""
    if output == "csv":
        if heading:
            yield _csv(columns)
        for row in rows:
            yield _csv(["" if value is None else cell(value) for value in row])
        return
    names = distinct(columns)
    for row in rows:
        document = {name: plain(value) for name, value in zip(names, row, strict=True)}
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
        # Escape control characters as JSON does: a terminal, too, shows the rows of EMIT CHANGES as JSON.
        yield _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _csv(row: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(row)
    return text.getvalue()


def cell(value: Any) -> Any:
    """A value for a table. Integers and floats stay numbers, so that they are aligned to the right."""
    if isinstance(value, float):
        return value
    found = plain(value)
    if found is None:
        return "NULL"
    if isinstance(found, bool):
        return "true" if found else "false"
    return found if isinstance(found, int | float | str) else json.dumps(found, ensure_ascii=False)


def plain(value: Any) -> Any:
    """Convert a value of Spark for JSON: times in ISO 8601, bytes in base64, decimals (without an exponent),
    NaN and Infinity as text."""
    if isinstance(value, Row):
        return {name: plain(each) for name, each in zip(distinct(value.__fields__), value, strict=True)}
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def harmless(value: Any, *, keep: str = "\n\t") -> Any:
    """Remove a terminal's control characters from a text, except the characters in ``keep``. Records of other programs
    may contain codes that move the cursor or change the typed text. Values other than texts stay unchanged."""
    if not isinstance(value, str):
        return value
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else ascii(found[0])[1:-1], value)


def fail(text: str) -> None:
    """Print an error."""
    print(harmless(text), file=sys.stderr, flush=True)
