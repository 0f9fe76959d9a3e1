"""send_arrow: rows of a table into whole batches, without a Python object per row.

Rows are encoded chunk by chunk, so that the encoded rows that are not sent yet stay below ``buffer.memory``. The
partition of a row is its column ``partition`` if that is set, otherwise the partition of its key. A row without a
``partition`` and without a key gets the sticky partition, which changes from batch to batch. Each row has its partition
before the rows are grouped, so the rows of a partition keep their order, whatever their columns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace_core.errors import HeadraceError, InvalidArgumentError
from headrace_core.records.arrow import binary_column, encode_arrow
from headrace_core.records.arrow_layouts import plain_type

from ..accumulator import key_partitions
from .arrow_rows import at_row_of_table, partition_column, refuse_wrong_rows, row_bytes

#: Fraction of the batch size limit up to which the producer fills a batch, by estimated row size. If the producer
#: filled batches up to the limit, a chunk of rows could end with a small batch.
FILL = 0.98
#: Estimated bytes of an encoded record besides its key and value: lengths and deltas.
RECORD_OVERHEAD = 10
#: Maximum number of batches that the producer makes from one chunk.
CHUNK_BATCHES_MAX = 16


def as_table(data: Any) -> pa.Table:
    """Convert the argument of send_arrow to a pyarrow table. Accepts pyarrow objects and all objects with the Arrow
    PyCapsule interface (polars, pandas, DuckDB: ``__arrow_c_stream__``, ``__arrow_c_array__``). Raises
    InvalidArgumentError."""
    if isinstance(data, pa.Table):
        table = data
    elif isinstance(data, pa.RecordBatch):
        table = pa.Table.from_batches([data])
    elif isinstance(data, pa.RecordBatchReader):
        table = data.read_all()
    elif hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        try:
            table = pa.table(data)
        # Arrow's own errors are subclasses of TypeError, ValueError, NotImplementedError or KeyError.
        except (TypeError, ValueError, NotImplementedError, KeyError) as error:
            raise InvalidArgumentError(
                f"table: {type(data).__name__} cannot be read as Arrow columns: {error}"
            ) from error
    else:
        raise InvalidArgumentError(
            f"table={data!r:.80}: must be a pyarrow Table, RecordBatch or RecordBatchReader, or an object with "
            "__arrow_c_stream__ (of polars, pandas, DuckDB)"
        )
    for name in ("value", "key", "headers", "partition", "timestamp"):
        if table.column_names.count(name) > 1:
            raise InvalidArgumentError(f"the table has {table.column_names.count(name)} columns named {name!r}")
    if "value" not in table.column_names:
        raise InvalidArgumentError(f"send_arrow needs a column 'value'; the table has {table.column_names}")
    return table


def missing_partition(core: Any, topic: str, table: pa.Table) -> int | None:
    """A partition of the table's rows that the known metadata of the topic lacks, because it may be new; None if there
    is none, or the column is wrong."""
    if "partition" not in table.column_names or not table.num_rows:
        return None
    try:
        highest: int | None = pc.max(partition_column(table["partition"])).as_py()
    except HeadraceError:  # ``arrow_batches`` raises it
        return None
    return None if highest is None or highest < len(core.accumulator.topics[topic].queues) else highest


def arrow_batches(core: Any, topic: str, table: pa.Table) -> Iterator[tuple[int, bytes, int]]:
    """Yield (partition, batch, record count) for all rows of a table that ``as_table`` returned. The accumulator must
    have the topic's metadata before the call.

    Raises the errors of encode_arrow, and InvalidArgumentError for a partition that does not exist. Earlier rows may
    have been yielded before an error that ``refuse_wrong_rows`` does not find.
    """
    if not table.num_rows:
        return
    queues = core.accumulator.topics.get(topic)
    core.check_open()  # a closed producer has dropped its topics
    alone = min(queues.max_batch_bytes, core.accumulator.buffer_bytes)
    refuse_wrong_rows(topic, table, len(queues.queues), alone)
    limit = min(core.accumulator.batch_bytes, alone)
    sender = core.sender
    options = {
        "compression": sender.compression,
        "level": sender.compression_level,
        "max_batch_bytes": limit,
        "max_row_bytes": alone,  # maximum bytes of a row: as in send(), a record larger than batch.size is sent alone
    }
    routed = "partition" in table.column_names or (
        "key" in table.column_names and not core.accumulator.ignore_keys and table["key"].null_count < table.num_rows
    )
    wanted = min(len(queues.queues) if routed else 4, CHUNK_BATCHES_MAX)
    estimate = table.nbytes / table.num_rows + RECORD_OVERHEAD
    chunk_rows = max(int(wanted * limit * FILL / estimate), 1)
    for start, rows in _chunks(table, chunk_rows, wanted * limit):
        chunk = table.slice(start, rows)
        now_ms = time.time_ns() // 1_000_000
        if not routed:
            for data, count in _encoded(chunk, start, now_ms, options):
                queues.choose_sticky()
                yield queues.sticky, data, count
            continue
        count = len(queues.queues)
        core.check_open()  # a closed producer has dropped its queues
        partitions = _with_sticky(queues, _partitions(core, chunk, count), max(int(limit * FILL / estimate), 1))
        chunk = chunk.combine_chunks()
        order = pc.sort_indices(partitions)  # a stable sort: the rows of a partition keep their order
        runs = pc.run_end_encode(partitions.take(order))
        begin = 0
        for partition, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            rows = order.slice(begin, end - begin)
            begin = end
            for data, count in _encoded(chunk, start, now_ms, {**options, "rows": rows}):
                yield partition, data, count


def _chunks(table: pa.Table, rows_max: int, bytes_max: int) -> Iterator[tuple[int, int]]:
    """(first row, rows) of each chunk. Rows that share their bytes, in dictionaries, runs and views, are copied when
    their chunk is encoded, so a chunk of such rows has about ``bytes_max`` bytes of keys and values at most."""
    names = [name for name in ("key", "value") if name in table.column_names]
    sizes = [row_bytes(name, table[name]) for name in names if table[name].type != plain_type(table[name].type)]
    for start in range(0, table.num_rows, rows_max):
        left = [(start, min(rows_max, table.num_rows - start))]
        while left:
            first, rows = left.pop()
            if rows > 1 and sum(pc.sum(size.slice(first, rows)).as_py() or 0 for size in sizes) > 2 * bytes_max:
                left += [(first + rows // 2, rows - rows // 2), (first, rows // 2)]
            else:
                yield first, rows


def _encoded(chunk: pa.Table, first_row: int, now_ms: int, options: dict[str, Any]) -> list[tuple[bytes, int]]:
    """Encode rows of a chunk that begins at ``first_row`` of the table. Errors name the row of the table."""
    try:
        return encode_arrow(chunk, now_ms=now_ms, **options)
    except HeadraceError as error:
        rows = options.get("rows")
        raise at_row_of_table(
            error, lambda index: first_row + (index if rows is None else int(rows[index].as_py()))
        ) from None


def _with_sticky(queues: Any, partitions: pa.Array, batch_rows: int) -> pa.Array:
    """Put a sticky partition in place of each -1, and choose the next one after ``batch_rows`` of these rows."""
    if pc.min(partitions).as_py() >= 0:
        return partitions
    is_sticky = pc.less(partitions, 0)
    number = pc.cumulative_sum(is_sticky.cast(pa.int32()))  # of each sticky row, from 1
    chosen = []
    for _ in range(0, number[-1].as_py(), batch_rows):
        queues.choose_sticky()
        chosen.append(queues.sticky)
    batch = pc.divide(pc.max_element_wise(pc.subtract(number, 1), 0), batch_rows)
    return pc.if_else(is_sticky, pa.array(chosen, pa.int32()).take(batch), partitions)


def _partitions(core: Any, chunk: pa.Table, count: int) -> pa.Array:
    """The partition of each row; -1 stands for the sticky partition. The column ``partition`` was checked."""
    found: pa.Array | None = None
    if "key" in chunk.column_names and not core.accumulator.ignore_keys:
        keys = binary_column("key", chunk["key"]).cast(pa.large_binary()).combine_chunks()
        if isinstance(keys, pa.ChunkedArray):
            keys = pa.concat_arrays(keys.chunks)
        out = bytearray(4 * len(keys))
        validity, offsets, data = keys.buffers()
        key_partitions(
            offsets.address,
            data.address if data is not None else 0,
            validity.address if validity is not None else 0,
            keys.offset,
            len(keys),
            count,
            out,
        )
        found = pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(out)])
    if "partition" in chunk.column_names:
        given = partition_column(chunk["partition"])
        fallback = found if found is not None else pa.scalar(-1, pa.int32())
        merged = pc.coalesce(given, fallback)
        found = pa.concat_arrays(merged.chunks) if isinstance(merged, pa.ChunkedArray) else merged
    assert found is not None
    return found
