"""Find and replace the trace contexts of rows in the column ``headers`` of an Arrow table."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from headrace_core.tracing.context import TRACEPARENT, TraceContext, sampled_context_of, with_context

#: Maximum number of traced rows that one call returns; all other rows keep their trace context.
ROWS_MAX = 64


def sampled_rows(table: pa.Table | pa.RecordBatch, most: int = ROWS_MAX) -> dict[int, TraceContext]:
    """Map row numbers to the trace context of each row with a sampled span, for at most ``most`` rows. The result is
    empty for a table without a column ``headers`` that has the type of the Kafka source. Most tables are searched
    without a Python object per row."""
    found: dict[int, TraceContext] = {}
    if "headers" not in table.column_names:
        return found
    column = table.column("headers")
    if not _are_headers(column.type):
        return found
    start = 0
    for headers in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        names = headers.flatten().field(0)
        wanted = pc.indices_nonzero(pc.fill_null(pc.equal(names, TRACEPARENT), False))
        for row in pc.unique(pc.list_parent_indices(headers).take(wanted))[: most * 4].to_pylist():
            context = sampled_context_of(_pairs(headers[row].as_py()))
            if context is not None:
                found[start + row] = context
                if len(found) == most:
                    return found
        start += len(headers)
    return found


def _are_headers(found: pa.DataType) -> bool:
    """Whether a type is that of the column ``headers`` in the Kafka source: array<struct<key: string, value:
    binary>>."""
    if not pa.types.is_list(found) or not pa.types.is_struct(found.value_type) or found.value_type.num_fields != 2:
        return False
    name, value = (found.value_type.field(index).type for index in range(2))
    return bool(pa.types.is_string(name) and pa.types.is_binary(value))


def with_contexts(table: pa.Table, contexts: Mapping[int, TraceContext]) -> pa.Table:
    """Return the table with new contexts in the headers of some rows; ``contexts`` maps row numbers to contexts."""
    column = table.column("headers")
    pieces: list[pa.Array] = []
    start = 0
    for row, context in sorted(contexts.items()):
        pieces += column.slice(start, row - start).chunks
        pairs = with_context(_pairs(column[row].as_py()), context)
        names = [field.name for field in column.type.value_type]
        pieces.append(pa.array([[dict(zip(names, pair, strict=True)) for pair in pairs]], column.type))
        start = row + 1
    pieces += column.slice(start).chunks
    whole = pa.chunked_array([pa.concat_arrays(pieces)], column.type)
    return table.set_column(table.column_names.index("headers"), "headers", whole)


def _pairs(headers: list[dict[str, bytes | None]] | None) -> list[tuple[str, bytes | None]]:
    return [tuple(each.values()) for each in headers or () if each is not None]  # type: ignore[misc]
