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
    try:
        given = table["partition"].cast(pa.int32())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgumentError(f"column 'partition' must hold partition numbers: {error}") from None
    row = _outside(given, 0, count - 1)
    if row is not None:
        raise InvalidArgumentError(
            f"row {row}: topic {topic!r} has {count} partitions (0 to {count - 1}); partition {given[row].as_py()} "
            "does not exist"
        )


def _check_times(table: pa.Table) -> None:
    if "timestamp" not in table.column_names:
        return
    times = table["timestamp"]
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
    kind = table["headers"].type
    if not (
        pa.types.is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.get_field_index("key") >= 0
    ):
        return  # the encoder refuses or casts the column
    first = 0
    for chunk in table["headers"].chunks:
        missing = pc.is_null(pc.struct_field(pc.list_flatten(chunk), "key"))
        at = pc.index(missing, True).as_py()
        if at >= 0:
            row = first + pc.list_parent_indices(chunk)[at].as_py()
            raise InvalidArgumentError(f"row {row}: a header has no name (null)")
        first += len(chunk)


def _check_sizes(topic: str, table: pa.Table, row_bytes_max: int) -> None:
    columns = [table[name] for name in ("key", "value") if name in table.column_names]
    sizes = [pc.binary_length(column) for column in columns if _is_sized(column.type)]
    longest = sum(pc.max(size).as_py() or 0 for size in sizes)
    if HEADER_BYTES + OVERHEAD_MAX + longest <= row_bytes_max:
        return
    total: Any = pa.scalar(0, pa.int64())
    for size in sizes:
        total = pc.add(total, pc.fill_null(size.cast(pa.int64()), 0))
    for row in pc.indices_nonzero(pc.greater(total, row_bytes_max - HEADER_BYTES - OVERHEAD_MAX)).to_pylist():
        size = _batch_bytes(*(_length(table, name, row) for name in ("key", "value")))
        if size > row_bytes_max:
            raise RecordTooLargeError(
                f"row {row} alone needs more than {row_bytes_max} bytes, the limit of a batch: its batch has {size} "
                f"bytes; send smaller rows to topic {topic!r}, or raise max.request.size and, without compression, the "
                "topic's max.message.bytes and segment.bytes"
            )


def _is_sized(kind: pa.DataType) -> bool:
    return any(
        check(kind)
        for check in (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
    )


def _length(table: pa.Table, name: str, row: int) -> int | None:
    if name not in table.column_names or not _is_sized(table[name].type):
        return None
    length: int | None = pc.binary_length(table[name][row]).as_py()
    return length


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
