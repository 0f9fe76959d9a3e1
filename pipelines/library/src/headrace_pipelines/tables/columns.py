"""Columns of lake tables: the types that Delta and Iceberg both have, and the changes of a schema that are safe.

A table accepts new columns, which are null in older rows. A column keeps its type: a write may have a narrower type
(``int32`` for ``int64``), which is widened, but no other type. All columns may be null.

Dates and timestamps are in the years 1 to 9999. Other years would damage a table. delta-rs writes a date of the year
10000, and can then read no row of the table. pyiceberg and the standard library of Python have no other years.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace_core.records.arrow_layouts import plain_column, plain_type

from ..errors import InvalidColumnsError, SchemaChangeError

_SAME = (pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.string(), pa.binary())
_WIDENED = {
    pa.int8(): pa.int32(), pa.int16(): pa.int32(), pa.uint8(): pa.int32(), pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(), pa.date64(): pa.date32(), pa.large_string(): pa.string(), pa.large_binary(): pa.binary(),
}  # fmt: skip
_DIGITS_MAX = 38
#: Pairs of types: rows with the first type may be written into a table column of the second type.
_NARROWER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}
#: The first and the last day, and the first and the last microsecond, of the years 1 to 9999; counted from 1970.
DAYS = (-719_162, 2_932_896)
MICROSECONDS = (DAYS[0] * 86_400_000_000, (DAYS[1] + 1) * 86_400_000_000 - 1)


def normal_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of a table's column for values of type ``kind``; None if Delta or Iceberg has no type for the values.
    Dictionaries, runs, views and extension types count as their values."""
    kind = plain_type(kind)
    if kind in _SAME:
        return kind
    if kind in _WIDENED:
        return _WIDENED[kind]
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind) and kind.precision <= _DIGITS_MAX and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        value = normal_type(kind.value_type)
        return value and pa.list_(value)
    if pa.types.is_map(kind):
        key, value = normal_type(kind.key_type), normal_type(kind.item_type)
        return key and value and pa.map_(key, value)
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = [(field.name, normal_type(field.type)) for field in kind]
        return None if any(type_ is None for _, type_ in fields) else pa.struct(fields)
    return None


def normalized(rows: pa.Table, table: str) -> pa.Table:
    """``rows`` with the types of a table's columns. Raises InvalidColumnsError, which names the column."""
    twice = [name for name, count in Counter(each.lower() for each in rows.column_names).items() if count > 1]
    if twice:
        raise InvalidColumnsError(
            f"cannot write to table {table}: two columns are named {twice[0]!r}, and upper and lower case count as "
            "equal in a table; rename one"
        )
    columns, fields = [], []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        kind = normal_type(field.type)
        if kind is None:
            raise InvalidColumnsError(
                f"cannot write to table {table}: the column {field.name!r} is {field.type}, which Delta or Iceberg "
                "does not have; cast it in the query"
            )
        try:
            columns.append(plain_column(column).cast(kind))
        except pa.ArrowException as error:
            raise InvalidColumnsError(
                f"cannot write to table {table}: the column {field.name!r} does not fit {kind}: {error}; round or cast "
                "it in the query"
            ) from error
        if any(map(_has_other_years, columns[-1].chunks)):
            raise InvalidColumnsError(
                f"cannot write to table {table}: the column {field.name!r} has a time that is not in the years 1 to "
                "9999; filter such rows, or replace the time by null in the query"
            )
        fields.append(pa.field(field.name, kind))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _has_other_years(values: pa.Array) -> bool:
    """Whether a date or timestamp is not in the years 1 to 9999, at any depth. ``values`` have a type of a table."""
    kind = values.type
    if pa.types.is_list(kind):
        return _has_other_years(values.flatten())
    if pa.types.is_map(kind):  # the entries of a slice are a part of the entries
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        return any(_has_other_years(each.slice(first, last - first)) for each in (values.keys, values.items))
    if pa.types.is_struct(kind):
        return any(map(_has_other_years, values.flatten()))
    if not pa.types.is_date(kind) and not pa.types.is_timestamp(kind):
        return False
    is_date = pa.types.is_date(kind)
    ends = pc.min_max(values.cast(pa.int32() if is_date else pa.int64())).as_py()
    first, last = DAYS if is_date else MICROSECONDS
    return ends["min"] is not None and (ends["min"] < first or ends["max"] > last)


def normal_schema(schema: pa.Schema) -> pa.Schema:
    """The schema that a table has for readers: the same types in both formats."""
    return pa.schema([pa.field(field.name, normal_type(field.type) or field.type) for field in schema])


def new_fields(rows: pa.Schema, columns: pa.Schema, table: str) -> list[pa.Field]:
    """The fields of ``rows`` that a table with ``columns`` lacks. The schema of ``rows`` and the schema of the table
    are in the normal form of this module.

    Raises SchemaChangeError if the type of a column differs and is not narrower, or if a name differs in its case only.
    The error names the column.
    """
    known = {field.name: field.type for field in columns}
    lower = {name.lower(): name for name in known}
    new = []
    for field in rows:
        there = known.get(field.name)
        if there is None:
            if field.name.lower() in lower:
                raise SchemaChangeError(
                    f"table {table} has the column {lower[field.name.lower()]!r}, and the rows have {field.name!r}: "
                    "a table ignores the case of names; rename the column in the query"
                )
            new.append(field)
        elif not _fits(field.type, there):
            raise SchemaChangeError(
                f"table {table} refuses the column {field.name!r}: it is {there} in the table and {field.type} in the "
                "rows; cast it in the query, or write it under a new name"
            )
    return new


def _fits(rows: pa.DataType, table: pa.DataType) -> bool:
    if rows == table or (rows, table) in _NARROWER:
        return True
    if not (pa.types.is_decimal(rows) and pa.types.is_decimal(table)):
        return False
    return bool(rows.scale == table.scale and rows.precision <= table.precision)


def aligned(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """``rows`` with exactly the columns of ``columns``; a column that ``rows`` lacks is null."""
    names = set(rows.column_names)
    arrays = [
        rows[field.name].cast(field.type) if field.name in names else pa.nulls(rows.num_rows, field.type)
        for field in columns
    ]
    return pa.Table.from_arrays(arrays, schema=columns)


def check_keys(rows: pa.Table, keys: Sequence[str], table: str) -> None:
    """Raise InvalidColumnsError unless ``keys`` identify each row: the key columns exist, no key is null, and no two
    rows have equal keys."""
    for key in keys:
        if key not in rows.column_names:
            raise InvalidColumnsError(
                f"cannot merge into table {table}: the rows have no column {key!r}; they have "
                f"{', '.join(rows.column_names)}"
            )
        kind = rows.schema.field(key).type
        if pa.types.is_nested(kind) or pa.types.is_floating(kind):
            raise InvalidColumnsError(
                f"cannot merge into table {table}: the key {key!r} is {kind}, and equality of such values is not "
                "certain; use a key of integers, text, dates or times"
            )
        if rows[key].null_count:
            raise InvalidColumnsError(
                f"cannot merge into table {table}: the key {key!r} is null in {rows[key].null_count} rows; filter them"
            )
    counts = rows.select(keys).group_by(list(keys)).aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts["count_all"], 1))
    if twice.num_rows:
        first = twice.slice(0, 1).select(keys).to_pylist()[0]
        raise InvalidColumnsError(
            f"cannot merge into table {table}: {twice.num_rows} keys have several rows in one batch, the first is "
            f"{first}; keep one row for each key in the query"
        )


def rows_without(rows: pa.Table, keys: Sequence[str], others: pa.Table) -> pa.Table:
    """The ``rows`` whose keys are not in ``others``, in their order."""
    numbered = rows.select(keys).append_column("__row", pa.array(range(rows.num_rows), pa.int64()))
    kept = numbered.join(others.select(keys), keys=list(keys), join_type="left anti")
    return rows.take(kept["__row"].sort())
