"""Tables that are smaller than a batch of the log: cut what was decoded, and keep the rest for the next table."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from headrace_core.errors import HeadraceError

if TYPE_CHECKING:
    import pyarrow as pa

    from .inbox import Partition


class Decoded:
    """The rest of a decoded batch: without it, each table below the size of a batch would decode the batch again.

    A cache of one partition: the fetched batch stays queued. It is valid for the partition at
    ``position``, until it is stale, and for the same columns. ``size``: the bytes that it keeps in memory.
    """

    __slots__ = ("assigned", "columns", "include_headers", "position", "rows", "size")

    def __init__(
        self, assigned: Partition, rows: pa.RecordBatch, columns: list[str] | None, include_headers: bool
    ) -> None:
        self.assigned = assigned
        self.position: int = rows.column("offset")[0].as_py()
        self.rows = rows
        self.columns = columns
        self.include_headers = include_headers
        self.size: int = rows.get_total_buffer_size()

    def rows_at(
        self, assigned: Partition, position: int, columns: list[str] | None, include_headers: bool
    ) -> pa.RecordBatch | None:
        """The rows, if they are those of these columns from ``position`` on."""
        own = self.assigned, self.position, self.columns, self.include_headers
        asked = assigned, position, columns, include_headers
        return self.rows if own == asked else None


def take_rows(
    decoded: pa.RecordBatch | None,
    source: Iterator[pa.RecordBatch],
    max_bytes: int,
    *,
    is_first: bool,
    is_alone: bool,
) -> tuple[list[pa.RecordBatch], int, pa.RecordBatch | None, bool]:
    """Take more than half of ``max_bytes`` of one partition, if there is as much, and not more (``is_first``: but at
    least one record). Returns the batches, the rest of ``max_bytes``, the decoded rows after them, and whether no
    records are left.

    ``decoded``: the rows before those of ``source``. After them the records of other partitions come first, unless the
    partition ``is_alone``. Raises the error of a damaged batch, unless there are records before it.
    """
    from headrace_core.records.arrow import rows_within

    batches: list[pa.RecordBatch] = []
    left = max_bytes
    try:
        for rows in source if decoded is None else chain([decoded], source):
            count, size = rows_within(rows, left)
            if size > left and (batches or not is_first):
                count = 0  # its first record does not fit
            if count:
                batches.append(rows.slice(0, count))
                left -= size
            if count < rows.num_rows:
                return batches, left, rows.slice(count), False
            if left <= max_bytes // 2 or (rows is decoded and not is_alone):
                return batches, left, None, False
    except HeadraceError:
        if not batches:
            raise
        return batches, left, None, False
    return batches, left, None, True
