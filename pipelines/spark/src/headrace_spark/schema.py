"""Spark and Arrow schemas of the rows that the headrace source returns: the columns of Spark's Kafka source.

A query may select columns with ``.schema("partition INT, value BINARY")``. Spark does not tell a Python source which
columns a query uses, and the transfer of unused columns to the JVM costs time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace_core.errors import InvalidConfigError

if TYPE_CHECKING:
    import pyarrow as pa

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

RECORD = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
RECORD_WITH_HEADERS = StructType([*RECORD.fields, StructField("headers", HEADERS)])


def record_schema(include_headers: bool) -> StructType:
    """The schema with all columns. The column ``headers`` is included only on request; it is null for a record without
    headers."""
    return RECORD_WITH_HEADERS if include_headers else RECORD


def check_schema(asked: StructType, include_headers: bool) -> StructType:
    """The user's schema ``asked``, if it has only columns of the source; otherwise raises InvalidConfigError."""
    known = {field.name: field for field in record_schema(include_headers).fields}
    for field in asked.fields:
        found = known.get(field.name)
        if found is None:
            hint = " (it needs the option includeHeaders=true)" if field.name == "headers" else ""
            raise InvalidConfigError(
                f"schema: the headrace source has no column {field.name!r}{hint}; it has {', '.join(known)}"
            )
        if found.dataType != field.dataType:
            raise InvalidConfigError(
                f"schema: column {field.name!r} is {found.dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it in the query"
            )
    if not asked.fields:
        raise InvalidConfigError("schema: must name at least one column")
    return asked


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of a batch with the columns of ``schema``."""
    import pyarrow as pa

    types = {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(
            pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
        ),
    }
    return pa.schema([pa.field(name, types[name]) for name in schema.fieldNames()])
