"""Rows of a table as records: the value in the table's format, and the key."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from headrace_spark import to_registry

from .catalog import Table

KEY, VALUE = "key", "value"


def with_records(frame: DataFrame, table: Table, registry: str | None) -> DataFrame:
    """``frame``, whose columns are those of ``table``, as the columns ``key`` and ``value`` of its records."""
    return frame.select(key_of(frame, table.key).alias(KEY), value_of(frame, table, registry).alias(VALUE))


def value_of(frame: DataFrame, table: Table, registry: str | None) -> Column:
    """The value of each row."""
    names = [F.col(f"`{name}`") for name in frame.columns]
    if table.format == "text":
        return names[0].cast("string")
    if table.format == "avro":
        return to_registry(F.struct(*names), registry, subject=table.subject)
    return F.to_json(F.struct(*names), {"ignoreNullFields": "false"})


def key_of(frame: DataFrame, key: Sequence[str]) -> Column:
    """The key of each row: the text of one column, the JSON of several, or null."""
    columns = [F.col(f"`{name}`") for name in key]
    if not columns:
        return F.lit(None).cast("string")
    kind = frame.schema[key[0]].dataType
    if len(columns) > 1 or isinstance(kind, StructType | ArrayType | MapType):
        return F.to_json(F.struct(*columns))
    return columns[0].cast("string")
