"""Turn records into rows of silver: typed rows that meet the rules of their source, and bad rows with a reason."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Observation

from ..expectations import REASON
from ..json_parsing import parse_json
from .schema import Source

#: The columns of a record, with the values as they arrived.
RECORD = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")


def judged(records: DataFrame, source: Source, release: int, observe: Observation | None = None) -> DataFrame:
    """Return the records (RECORD) with the columns ``data``, the fields of the release, and ``reason``. The records are
    not changed."""
    return source.rules.apply(parse_json(records.select(*RECORD), source.schema(release)), observe=observe)


def bronze(rows: pa.Table) -> pa.Table:
    """The unchanged records, from the collected rows that ``judged`` returned."""
    return rows.select(list(RECORD))


def silver(rows: pa.Table, source: Source) -> pa.Table:
    """The data of the good rows; for a source with keys, only the last row of each key.

    The records of a key are in one partition, because the producer gives them the same key.
    """
    good = rows.filter(pc.is_null(rows[REASON]))
    if not source.keys:
        return pa.Table.from_struct_array(good["data"])
    good = good.sort_by([("partition", "ascending"), ("offset", "ascending")])
    data = pa.Table.from_struct_array(good["data"])
    numbered = data.append_column("__row", pa.array(range(data.num_rows), pa.int64()))
    last = numbered.group_by(list(source.keys)).aggregate([("__row", "max")])
    return data.take(last["__row_max"].sort())


def quarantine(rows: pa.Table) -> pa.Table:
    """The bad records, with the reason."""
    return rows.filter(pc.is_valid(rows[REASON])).select([*RECORD, REASON])
