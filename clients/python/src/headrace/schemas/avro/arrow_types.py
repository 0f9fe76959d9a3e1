"""Avro's types as Arrow's types, and the units and widths of both.

    Avro                                Arrow                            with Layout.SPARK
    null, boolean, int, long, float     null, bool, int32, int64, ...
    bytes, string, enum                 binary, string, string
    fixed                               fixed_size_binary                binary
    record, array, map                  struct, list, map
    ["null", T]                         T, nullable
    other unions                        dense_union                      struct of member0, member1, ... (one is set)
    decimal                             decimal128, decimal256           decimal128
    date                                date32
    time-millis, time-micros            time32(ms), time64(us)           time64(ns)
    timestamp-millis, -micros           timestamp(ms, us; UTC)           timestamp(us; UTC)
    local-timestamp-millis, -micros     timestamp(ms, us)                timestamp(us)
    timestamp-nanos                     timestamp(ns; UTC)               int64
    local-timestamp-nanos               timestamp(ns)                    int64
    uuid (string, fixed)                string, fixed_size_binary(16)    string, binary

Logical types that are not in the table are ignored, as the specification demands. A schema that contains itself has no
Arrow type. Source: the Avro specification 1.12, "Logical Types".
"""

from __future__ import annotations

import enum
from typing import Final

import pyarrow as pa

from .schema import Type


class Layout(enum.Enum):
    """The Arrow types that represent Avro's types: one column of the table in this module's docstring for each
    member."""

    ARROW = "arrow"
    SPARK = "spark"


class NoArrowTypeError(ValueError):
    """A schema, or a field of it, has no Arrow type, or an array's type does not fit the schema. ``path`` names the
    field."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path = reason, path


def flat_type(kind: Type, layout: Layout, path: str) -> pa.DataType:
    """The Arrow type of an Avro type that contains no other types. Raises NoArrowTypeError."""
    spark = layout is Layout.SPARK
    if kind.logical == "decimal":
        if kind.precision > (38 if spark else 76):
            raise NoArrowTypeError(f"no {layout.value} type can represent a decimal of {kind.precision} digits", path)
        return (pa.decimal128 if kind.precision <= 38 else pa.decimal256)(kind.precision, kind.scale)
    if kind.kind == "fixed":
        return pa.binary() if spark else pa.binary(kind.size)
    logical = (_SPARK_LOGICAL if spark else _LOGICAL).get(kind.logical)
    return _PRIMITIVES[kind.kind] if logical is None else logical


_PRIMITIVES: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}
_SPARK_LOGICAL: Final = {
    "date": pa.date32(),
    "time-millis": pa.time64("ns"),
    "time-micros": pa.time64("ns"),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
#: Maps each time unit of Arrow and of Avro's logical types to its nanoseconds.
_NANOSECONDS: Final = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1, "millis": 10**6, "micros": 1000, "nanos": 1}


def scale(array: pa.DataType, logical: str) -> int:
    """The factor that converts a number in Avro's unit to Arrow's unit."""
    if logical == "date" or pa.types.is_integer(array):
        return 1
    return int(_NANOSECONDS[logical.rpartition("-")[2]] // _NANOSECONDS[array.unit])


def ratio(unit: str, logical: str) -> int:
    """The factor that converts a number in Arrow's unit to Avro's unit; divide by the absolute value of a negative
    factor."""
    ours, theirs = _NANOSECONDS[unit], _NANOSECONDS[logical.rpartition("-")[2]]
    return ours // theirs if ours >= theirs else -(theirs // ours)


#: The days from 1970 of the years 1 to 9999: Python, and so fastavro, has no other years.
_DAYS: Final = (-719_162, 2_932_896)
_DAY_NS: Final = 86_400 * 10**9


def readable_range(logical: str) -> tuple[int, ...]:
    """The least and the greatest number of a date, a time or a timestamp; empty for other numbers. Timestamps of
    nanoseconds are numbers in Python, so 64 bits are their only limit."""
    if logical == "date":
        return _DAYS
    unit = logical.rpartition("-")[2]
    if unit not in ("millis", "micros"):
        return ()
    day = _DAY_NS // _NANOSECONDS[unit]
    return (0, day - 1) if logical.startswith("time-") else (_DAYS[0] * day, (_DAYS[1] + 1) * day - 1)


def range_words(logical: str) -> str:
    return "times of one day" if logical.startswith("time-") else "the years 1 to 9999"


def integer_flag(array: pa.DataType) -> int:
    """The flag of a node for an integer type: the number of bits, negative if the type is unsigned."""
    width: int = array.bit_width
    return width if pa.types.is_signed_integer(array) else -width


def is_text(array: pa.DataType) -> bool:
    return bool(pa.types.is_string(array) or pa.types.is_large_string(array))


def is_binary(array: pa.DataType) -> bool:
    return bool(pa.types.is_binary(array) or pa.types.is_large_binary(array))


def offset_bytes(array: pa.DataType) -> int:
    """The number of bytes of one offset in a text or binary array: the flag of the program's node for this array."""
    return 8 if pa.types.is_large_string(array) or pa.types.is_large_binary(array) else 4


def decimal_bounds(precision: int, width: int) -> list[bytes]:
    """The two bounds of all numbers with ``precision`` digits (both exclusive), as Arrow stores them in ``width``
    bytes."""
    most: int = 10**precision
    return [each.to_bytes(width, "little", signed=True) for each in (-most, most)]
