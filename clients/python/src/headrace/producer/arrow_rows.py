"""Checks of the rows of send_arrow before the first row is queued.

send_arrow encodes a table chunk by chunk, so an error of the encoder may come after earlier rows are queued. This
module finds wrong rows before, with Arrow's kernels: partitions that do not exist, times before 1970, headers without a
name, and rows that are too large by their key and value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace_core.errors import HeadraceError, InvalidArgumentError, InvalidTimestampError, RecordTooLargeError
from headrace_core.records.arrow import binary_column, is_bytes, plain_named
from headrace_core.records.arrow_layouts import plain_array, shared_values
from headrace_core.records.types import HEADER_BYTES, TIMESTAMP_MS_MIN

INT64_MAX = 2**63 - 1
#: Upper bound of the bytes of a record without headers, besides its key and value: lengths, deltas and attributes.
OVERHEAD_MAX = 36
#: The smallest time of a column, by its unit. Columns with other units have no earlier times.
_EARLIEST = {"s": TIMESTAMP_MS_MIN // 1_000, "ms": TIMESTAMP_MS_MIN}


def refuse_wrong_rows(topic: str, table: pa.Table, partitions: int, row_bytes_max: int) -> None:
    """Raise the error of the first wrong row of a column, which says that no row was sent."""
    try:
        _check_partitions(topic, table, partitions)
        _check_times(table)
        _check_names(table)
        _check_sizes(topic, table, row_bytes_max)
    except HeadraceError as error:
        error.args = (f"{error.message}; no row of the table was sent", *error.args[1:])
        raise


def at_row_of_table(error: HeadraceError, row_of: Callable[[int], int]) -> HeadraceError:
    """Change the row that an error of the encoder names into the row of the table. ``row_of`` maps the encoder's index
    to the row of the table."""
    found = re.match(r"row (\d+)\b", error.message)
    if found is not None:
        error.args = (f"row {row_of(int(found[1]))}{error.message[found.end() :]}", *error.args[1:])
    return error


def _check_partitions(topic: str, table: pa.Table, count: int) -> None:
    if "partition" not in table.column_names:
        return
    given = partition_column(table["partition"])
    row = _outside(given, 0, count - 1)
    if row is not None:
        raise InvalidArgumentError(
            f"row {row}: topic {topic!r} has {count} partitions (0 to {count - 1}); partition {given[row].as_py()} "
            "does not exist"
        )


def partition_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column ``partition`` as int32. Raises InvalidArgumentError."""
    plain = plain_named("partition", column)
    wrong: object = "cast the column to int32"
    if not (pa.types.is_boolean(plain.type) or pa.types.is_temporal(plain.type)):
        try:
            return plain.cast(pa.int32())
        except pa.ArrowException as error:
            wrong = error
    raise InvalidArgumentError(f"column 'partition' must hold partition numbers, and has type {column.type}: {wrong}")


def _check_times(table: pa.Table) -> None:
    if "timestamp" not in table.column_names:
        return
    times = plain_named("timestamp", table["timestamp"])
    kind = times.type
    if not (pa.types.is_timestamp(kind) or kind == pa.int64()):
        return  # the encoder refuses or casts the column
    earliest = _EARLIEST.get(kind.unit if pa.types.is_timestamp(kind) else "ms")
    row = None if earliest is None else _outside(times.cast(pa.int64()), earliest, INT64_MAX)
    if row is not None:
        raise InvalidTimestampError(f"row {row}: the timestamp must be at least -2^62 ms")


def _check_names(table: pa.Table) -> None:
    if "headers" not in table.column_names:
        return
    headers = table["headers"]
    if not (pa.types.is_list(headers.type) or pa.types.is_large_list(headers.type)):
        headers = plain_named("headers", headers)
    kind = headers.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or pa.types.is_null(kind.value_type):
        return  # names of a map are not null, and the encoder refuses other types
    if not pa.types.is_struct(kind.value_type) or kind.value_type.get_field_index("key") < 0:
        raise InvalidArgumentError(
            f"column 'headers' has type {table['headers'].type}, whose items must have the fields key and value"
        )
    first = 0
    for chunk in headers.chunks:
        missing = pc.is_null(pc.struct_field(pc.list_flatten(chunk), "key"))
        at = pc.index(missing, True).as_py()
        if at >= 0:
            row = first + pc.list_parent_indices(chunk)[at].as_py()
            raise InvalidArgumentError(f"row {row}: a header has no name (null)")
        first += len(chunk)


def _check_sizes(topic: str, table: pa.Table, row_bytes_max: int) -> None:
    sizes = {name: row_bytes(name, table[name]) for name in ("key", "value") if name in table.column_names}
    longest = sum(pc.max(size).as_py() or 0 for size in sizes.values())
    if HEADER_BYTES + OVERHEAD_MAX + longest <= row_bytes_max:
        return
    total: Any = pa.scalar(0, pa.int64())
    for size in sizes.values():
        total = pc.add(total, pc.fill_null(size.cast(pa.int64()), 0))
    for row in pc.indices_nonzero(pc.greater(total, row_bytes_max - HEADER_BYTES - OVERHEAD_MAX)).to_pylist():
        size = _batch_bytes(*(sizes[name][row].as_py() if name in sizes else None for name in ("key", "value")))
        if size > row_bytes_max:
            raise RecordTooLargeError(
                f"row {row} alone needs more than {row_bytes_max} bytes, the limit of a batch: its batch has {size} "
                f"bytes; send smaller rows to topic {topic!r}, or raise max.request.size and, without compression, the "
                "topic's max.message.bytes and segment.bytes"
            )


def row_bytes(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The bytes of each row of a key or value column; null where the row is null. Raises InvalidArgumentError for a
    type that is not bytes or text."""
    if is_bytes(column.type) and not pa.types.is_null(column.type):
        return pc.binary_length(column)
    binary_column(name, column.slice(0, 0))  # raises the error for a type that is neither
    try:
        return pa.chunked_array([_lengths(chunk).cast(pa.int64()) for chunk in column.chunks], pa.int64())
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"column {name!r} of type {column.type} cannot be read: {error}") from None


def _lengths(array: pa.Array) -> pa.Array:
    """The bytes of each value; those of dictionaries and runs are counted once, not copied for each row."""
    if isinstance(array, pa.ExtensionArray):
        return _lengths(array.storage)
    if isinstance(array, pa.DictionaryArray | pa.RunEndEncodedArray):
        values, rows = shared_values(array)
        return _lengths(values).take(rows)
    plain = plain_array(array)
    return pa.nulls(len(plain), pa.int64()) if pa.types.is_null(plain.type) else pc.binary_length(plain)


def _batch_bytes(key: int | None, value: int | None) -> int:
    """Bytes of a batch with one record without headers."""
    body = 1 + 1 + 1 + _field(key) + _field(value) + 1  # attributes, two deltas, the number of headers
    return HEADER_BYTES + _varint(body) + body


def _field(length: int | None) -> int:
    return 1 if length is None else _varint(length) + length


def _varint(value: int) -> int:
    """Bytes of a number that is 0 or more as a zigzag varint."""
    return max((value.bit_length() + 1 + 6) // 7, 1)


def _outside(column: pa.ChunkedArray, low: int, high: int) -> int | None:
    """The row of the first value below ``low`` or above ``high``; None if there is none."""
    found = pc.min_max(column).as_py()  # (faster than a comparison of each row)
    if found["min"] is None or (found["min"] >= low and found["max"] <= high):
        return None
    row: int = pc.index(pc.or_(pc.less(column, low), pc.greater(column, high)), True).as_py()
    return row
