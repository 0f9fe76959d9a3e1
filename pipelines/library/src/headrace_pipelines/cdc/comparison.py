"""Compare a table of a lake with its table in PostgreSQL, row by row and column by column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..tables.table import LakeTable
from .changes import CHANGED_AT, LSN
from .postgres import Postgres

_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """``rows``: number of rows in PostgreSQL. ``different``: number of rows that are missing, additional, duplicated or
    have other values in the lake. ``shown``: descriptions of some of the different rows."""

    table: str
    rows: int
    different: int
    shown: tuple[str, ...]

    def __str__(self) -> str:
        if not self.different:
            return f"{self.table}: all {self.rows:,} rows are equal"
        return f"{self.table}: {self.different:,} of {self.rows:,} rows differ: {'; '.join(self.shown)}"


def compare(postgres: Postgres, table: LakeTable, name: str, keys: Sequence[str]) -> Comparison:
    """Compare ``table`` with PostgreSQL's table ``name`` (``schema.table``), whose primary key is ``keys``.

    All columns of PostgreSQL's table are compared; a column that the table of the lake lacks counts as null.
    """
    names = postgres.execute(
        "SELECT attname FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped "
        f"AND attrelid = '{name}'::regclass ORDER BY attnum"
    ).splitlines()
    found = table.read()
    kinds = {field.name: field.type for field in found.schema if field.name not in (LSN, CHANGED_AT)}
    schema = pa.schema([(each, kinds.get(each, pa.string())) for each in names])
    quoted = ", ".join('"' + each.replace('"', '""') + '"' for each in names)
    expected = postgres.read(f"SELECT {quoted} FROM {name}", schema)
    return compared(name, expected, found, keys)


def compared(name: str, expected: pa.Table, found: pa.Table, keys: Sequence[str]) -> Comparison:
    """Compare the rows of ``found`` with ``expected``, in the columns of ``expected``."""
    there: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    columns = expected.column_names
    for row in found.to_pylist():
        there.setdefault(tuple(row[key] for key in keys), []).append({each: row.get(each) for each in columns})
    wrong = []
    for row in expected.to_pylist():
        key = tuple(row[each] for each in keys)
        rows = there.pop(key, [])
        if rows != [row]:
            wrong.append(f"{dict(zip(keys, key, strict=True))} is {rows or 'missing'}, not {row}")
    wrong += [f"{dict(zip(keys, key, strict=True))} should not exist" for key in there]
    return Comparison(name, expected.num_rows, len(wrong), tuple(wrong[:_SHOWN_MAX]))
