"""Rows of a table as records: the value in the table's format, and the key."""

from __future__ import annotations

import functools
import operator
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StructField,
    StructType,
    TimestampType,
)

from headrace_spark import to_registry

from ..access import Registry
from .catalog import Table
from .naming import quoted, spelled
from .plans import KEPT

KEY, VALUE = "key", "value"
#: The record key of a row whose only key column is NULL. This byte never occurs in UTF-8 text, so no other row can have
#: this key.
NULL_KEY = b"\xff"
#: Write times with microseconds, Spark's full precision; by default to_json writes milliseconds.
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def fitted(frame: DataFrame, table: Table, schema: StructType) -> DataFrame:
    """``frame`` with its columns spelled as in ``schema``; the names may differ in upper and lower case only. A row
    with NULL in a NOT NULL column fails the query; the error names the column. A row that is not kept has no value."""
    named = frame.toDF(*spelled(frame.columns, schema.fieldNames()))
    required = {field.name for field in schema.fields if not field.nullable}
    columns = []
    for name in named.columns:
        column = F.col(quoted(name))
        if name in required:
            what = f"{table.name}: a row has NULL in the column {name}, which is NOT NULL"
            kind = named.schema[name].dataType
            is_missing = column.isNull() & F.col(KEPT) if KEPT in named.columns else column.isNull()
            column = F.when(is_missing, F.raise_error(what).cast(kind)).otherwise(column).alias(name)
        columns.append(column)
    return named.select(*columns)


def with_records(frame: DataFrame, table: Table, registry: Registry) -> DataFrame:
    """Convert ``frame``, which has the columns of ``table``, to the columns ``key`` and ``value`` of records. A row
    that is not kept becomes a record without a value, which deletes the row of its key."""
    kept = F.col(KEPT) if KEPT in frame.columns else None
    value = value_of(frame.drop(KEPT), table, registry, kept)
    if kept is not None:
        value = F.when(kept, value)
    return frame.select(key_of(frame, table).alias(KEY), value.alias(VALUE))


def value_of(frame: DataFrame, table: Table, registry: Registry, kept: Column | None = None) -> Column:
    """The value of each row. In JSON a number that is NaN or infinite fails the query: JSON has no such number.
    ``kept``: whether a row needs a value."""
    names = [F.col(quoted(name)) for name in frame.columns]
    if table.format == "text":
        return names[0].cast("string")
    if table.format == "avro":
        row = F.struct(*names)
        # (Spark calls a Python function for all rows, also below F.when, and other rows may not fit the schema)
        return to_registry(row if kept is None else F.when(kept, row), registry, subject=table.subject)
    checked = [_finite(column, field, table) for column, field in zip(names, frame.schema.fields, strict=True)]
    return F.to_json(F.struct(*checked), {"ignoreNullFields": "false", **_TIMES})


def key_of(frame: DataFrame, table: Table) -> Column:
    """The key of each row: the text of one column, the JSON of several, or null. Times are in UTC, so that one key has
    one text in every session, and in the hour that a local clock repeats.

    A table with a primary key has a key in each record, because a compacted topic accepts no record without a key. In a
    table with a primary key, the key NULL is written as NULL_KEY."""
    columns = [F.col(quoted(name)) for name in table.key]
    if not columns:
        return F.lit(None).cast("string")
    field = frame.schema[table.key[0]]
    if len(columns) > 1 or isinstance(field.dataType, StructType | ArrayType | MapType):
        return F.to_json(F.struct(*columns), {**_TIMES, "timeZone": "UTC"})
    text = (_in_utc(columns[0]) if isinstance(field.dataType, TimestampType) else columns[0]).cast("string")
    if not table.is_latest or not field.nullable:
        return text
    return F.coalesce(text.cast("binary"), F.lit(bytearray(NULL_KEY)))


def _in_utc(time: Column) -> Column:
    """A TIMESTAMP as the TIMESTAMP_NTZ of UTC, whatever the session's zone."""
    seconds = (F.unix_micros(time).cast("decimal(26, 6)") / 1_000_000).cast("decimal(18, 6)")
    return F.lit("1970-01-01").cast("timestamp_ntz") + F.make_dt_interval(secs=seconds)


def _finite(column: Column, field: StructField, table: Table) -> Column:
    wrong = _is_not_finite(column, field.dataType)
    if wrong is None:
        return column
    what = f"{table.name}: the column {field.name} is NaN or infinite, which JSON cannot hold; nanvl() replaces NaN"
    failed = F.raise_error(what).cast(field.dataType)
    return F.when(wrong, failed).otherwise(column).alias(field.name)


def _is_not_finite(column: Column, kind: DataType) -> Column | None:
    """True for a value with a number that is NaN or infinite, at any depth; None for a type without such numbers."""
    if isinstance(kind, FloatType | DoubleType):
        return F.coalesce(F.isnan(column) | (F.abs(column) == F.lit(float("inf"))), F.lit(False))
    if isinstance(kind, ArrayType):
        return _any(column, kind.elementType)
    if isinstance(kind, MapType):
        return _any(F.map_values(column), kind.valueType)
    if not isinstance(kind, StructType):
        return None
    found = [_is_not_finite(column.getField(field.name), field.dataType) for field in kind.fields]
    wrong = [each for each in found if each is not None]
    return functools.reduce(operator.or_, wrong) if wrong else None


def _any(column: Column, kind: DataType) -> Column | None:
    if _is_not_finite(F.lit(None), kind) is None:
        return None
    return F.coalesce(F.exists(column, lambda each: cast("Column", _is_not_finite(each, kind))), F.lit(False))
