"""Rules for names and numbers in statements, and for the spelling of columns. Pure.

The name of a table is also the name of its topic by default, of its query, and of a directory of checkpoints. So a new
name may have only letters, digits and underscores, even within backticks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from .faults import Source, SqlError
from .tokens import Token

#: Longest name of a table, view or function, in characters.
NAME_CHARACTERS = 200
#: The largest value of a 32-bit and of a 64-bit integer.
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
#: Maximum number of rows of a SELECT in a shell: Spark counts one more row, in 32 bits.
ROWS_MAX = INT_MAX - 1
#: The columns with a record's position, and with the reason why the record cannot be parsed. No column of a table may
#: have these names.
POSITIONS = ("_partition", "_offset", "_timestamp", "_key", "_reason")
_NAME = re.compile(r"[A-Za-z0-9_]+", re.ASCII)


def is_name(text: str) -> bool:
    """Whether a table, view, function or query may have this name."""
    return len(text) <= NAME_CHARACTERS and _NAME.fullmatch(text) is not None


def check_name(token: Token, kind: str, source: Source) -> None:
    """Raise SqlError at ``token`` if a new ``kind`` (table, stream, view, function) may not have this name."""
    if not is_name(token.value):
        what = f"the name of a {kind} may have only letters, digits and underscores, at most {NAME_CHARACTERS}"
        raise SqlError(what, source, token.at, token.end)


def whole_number(token: Token, source: Source, what: str, *, least: int = 0, most: int = INT_MAX) -> int:
    """The value of a token that is a whole number from ``least`` to ``most``. Raises SqlError for a token that is not
    such a number; ``what`` is the beginning of the error's message."""
    text = token.value
    if not (text.isascii() and text.isdecimal()):
        raise SqlError(f"{what} must be a whole number", source, token.at, token.end)
    digits = text.lstrip("0") or "0"
    # int() refuses texts with thousands of digits
    if len(digits) > len(str(most)) or not least <= int(digits) <= most:
        raise SqlError(f"{what} must be a whole number from {least:,} to {most:,}", source, token.at, token.end)
    return int(digits)


def quoted(name: str) -> str:
    """A name in backticks, as Spark reads it."""
    return "`" + name.replace("`", "``") + "`"


def spelled(names: Iterable[str], columns: Iterable[str]) -> list[str]:
    """``names`` with the spelling of ``columns``; upper and lower case make no difference for the match. An unknown
    name stays unchanged."""
    known = {column.lower(): column for column in columns}
    return [known.get(name.lower(), name) for name in names]


def column_fault(columns: Sequence[str]) -> str | None:
    """The reason why a table cannot have these columns: a name that is reserved for a record's position, or two equal
    names. None if the table can have them."""
    return next((what for what in column_faults(columns) if what is not None), None)


def column_faults(columns: Iterable[str]) -> Iterator[str | None]:
    """For each column, the reason why a table with the earlier columns cannot have this column, too. None if the table
    can."""
    known: set[str] = set()
    for column in columns:
        lower = column.lower()
        if lower in POSITIONS:
            yield f"the name {column} is reserved for a record's position; give the column another name"
        elif lower in known:
            yield f"two columns have the name {column} (upper and lower case make no difference)"
        else:
            yield None
        known.add(lower)


def unknown_column(names: Iterable[str], columns: Sequence[str]) -> str | None:
    """What is wrong with the first of ``names`` that is no column; None if all are columns."""
    known = {column.lower() for column in columns}
    return next(
        (
            f"there is no column {name}; the columns are {', '.join(columns)}"
            for name in names
            if name.lower() not in known
        ),
        None,
    )


def distinct(names: Iterable[str]) -> list[str]:
    """The names, made unique: the second ``id`` becomes ``id_2``."""
    wanted = list(names)
    taken = set(wanted)
    found: dict[str, None] = {}
    last: dict[str, int] = {}  # maps each name to its last number
    for name in wanted:
        new, number = name, last.get(name, 1)
        while new in found or (number > 1 and new in taken):
            number += 1
            new = f"{name}_{number}"
        last[name] = number
        found[new] = None
    return list(found)
