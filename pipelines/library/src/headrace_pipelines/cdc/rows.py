"""Typed rows from the events of one table that have the same schema."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructType

from ..expectations import REASON
from ..tables.columns import DAYS, MICROSECONDS
from .columns import CORRUPT, Column
from .events import excerpt, parsed_json

#: The value that Debezium writes in place of a large value that an update did not change, and that PostgreSQL therefore
#: did not log (TOAST).
UNAVAILABLE = "__debezium_unavailable_value"
_LOST = (
    "the event lacks a large value, which PostgreSQL did not log because the update did not change it; run ALTER TABLE "
    "... REPLICA IDENTITY FULL"
)
#: Columns of typed rows besides those of the table: the event's position in the topic, and the event's own fields.
POSITION = ("partition", "offset", "op", "lsn", "changed_at")


def typed_rows(events: DataFrame, key: Sequence[Column], row: Sequence[Column]) -> DataFrame:
    """The rows of good events, whose schema has the columns ``key`` and ``row``.

    The result has the columns POSITION, the struct ``key`` with the key's columns, and the struct ``data`` with the
    row's columns (null for a delete). The column ``reason`` says why the event cannot be applied, or is null.
    """
    parsed = events.select(
        *POSITION,
        "key_row",
        "after",
        _parsed_row("key_json", key, "payload").alias("key"),
        F.when(F.col("after").isNotNull(), _parsed_row("value_json", row, "payload", "after")).alias("data"),
    )
    of_key = [column.name for column in key]
    required = [column.name for column in row if not column.is_nullable or column.name in of_key]
    fault = F.coalesce(_fault("data", "after", required), _lost(), *_wrong_values("data", row))
    of_the_key = F.coalesce(_fault("key", "key_row", of_key), *_wrong_values("key", key))
    reason = F.coalesce(of_the_key, F.when(F.col("op") != "d", fault))
    return parsed.select(
        *POSITION,
        _decoded("key", key).alias("key"),
        F.when(F.col("data").isNotNull(), _decoded("data", row)).alias("data"),
        reason.alias(REASON),
    )


def _parsed_row(text: str, columns: Sequence[Column], *path: str) -> SparkColumn:
    """The row at ``path`` in a JSON text; null if the text does not fit ``columns``. It is parsed from the whole text,
    in which numbers have all their digits."""
    kind = StructType()
    for column in columns:
        kind.add(column.name, DataType.fromDDL(column.json))
    for name in reversed(path):
        kind = StructType().add(name, kind)
    parsed = parsed_json(F.col(text), kind.add(CORRUPT, StringType()))
    row = functools.reduce(SparkColumn.getField, path, parsed)
    return F.when(parsed[CORRUPT].isNull(), row)


def _fault(struct: str, text: str, required: Sequence[str]) -> SparkColumn:
    """The fault of a parsed row; null for a correct row. The columns ``required`` must not be null."""
    parsed = F.col(struct)
    missing = [F.when(parsed[name].isNull(), F.lit(f"column {name}: null or missing")) for name in required]
    broken = F.concat(F.lit("the row does not fit the schema of the event: "), excerpt(F.col(text)))
    return F.coalesce(F.when(parsed.isNull(), broken), *missing)


def _wrong_values(struct: str, columns: Sequence[Column]) -> list[SparkColumn]:
    """The faults of values that fit their JSON type, and that a lake cannot hold: text that is no base64, and times in
    other years than 1 to 9999, such as PostgreSQL's ``infinity``. Each fault is null for a correct value."""
    found = []
    for column in columns:
        value = F.col(struct)[column.name]
        if column.is_base64:
            is_wrong = value.isNotNull() & _unbase64(value).isNull()
            found.append(F.when(is_wrong, F.lit(f"column {column.name}: not base64")))
        elif (is_wrong_time := _has_other_years(column)) is not None:
            is_wrong = F.exists(value, is_wrong_time) if column.json.startswith("ARRAY<") else is_wrong_time(value)
            found.append(F.when(is_wrong, F.lit(f"column {column.name}: the time is not in the years 1 to 9999")))
    return found


def _has_other_years(column: Column) -> Callable[[SparkColumn], SparkColumn] | None:
    """The condition that a value, or an element of an array, is not in the years 1 to 9999; None for a column without
    times."""
    first, last = MICROSECONDS
    cast = column.cast
    if cast is None:
        is_zoned = column.json in ("TIMESTAMP", "ARRAY<TIMESTAMP>")
        return (lambda value: ~F.unix_micros(value).between(first, last)) if is_zoned else None
    cast = cast.value_type if pa.types.is_list(cast) else cast
    if pa.types.is_date(cast):
        return lambda value: ~value.between(*DAYS)
    unit = 1_000 if cast.unit == "ms" else 1
    return lambda value: ~value.between(first // unit, last // unit)


def _decoded(struct: str, columns: Sequence[Column]) -> SparkColumn:
    return F.struct(*[_value(F.col(struct)[column.name], column).alias(column.name) for column in columns])


def _value(value: SparkColumn, column: Column) -> SparkColumn:
    if column.is_json:
        return F.to_json(value, {"ignoreNullFields": "false"})
    return _unbase64(value) if column.is_base64 else value


def _unbase64(value: SparkColumn) -> SparkColumn:
    return F.try_to_binary(value, F.lit("base64"))


def _lost() -> SparkColumn:
    """The reason for a row in which Debezium does not know a value; null for other rows."""
    texts = (UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode())
    is_lost = [F.contains(F.col("after"), F.lit(f'"{text}"')) for text in texts]
    return F.when(is_lost[0] | is_lost[1], F.lit(_LOST))
