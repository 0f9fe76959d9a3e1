"""Write the batches of a Spark stream to lake tables, exactly once.

    stream.writeStream.foreachBatch(append_to(table)).option("checkpointLocation", ...).start()

``foreachBatch`` runs in the driver. A batch is collected in the driver as Arrow, so the batch must fit into the
driver's memory: limit it with ``maxOffsetsPerTrigger``. After a failure, Spark repeats a batch with the same id, by
which the table recognizes the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark import __version__ as pyspark_version
from pyspark.sql import DataFrame, SparkSession

from headrace_core.errors import UnsupportedVersionError

from .table import Batch, LakeTable

#: Spark's local property with the id of the query, which stays the same for one checkpoint. Spark does not document the
#: local property with the query's id.
_QUERY_ID = "sql.streaming.queryId"


def append_to(table: LakeTable) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that appends each batch to ``table`` once."""

    def write(frame: DataFrame, number: int) -> None:
        table.append(frame.toArrow(), batch_of(frame, number))

    return write


def merge_into(table: LakeTable, keys: Sequence[str]) -> Callable[[DataFrame, int], None]:
    """A function for ``foreachBatch`` that merges each batch into ``table`` by ``keys``. If two batches have a row with
    the same keys, the row of the later batch stays."""

    def write(frame: DataFrame, number: int) -> None:
        table.merge(frame.toArrow(), keys, batch_of(frame, number))

    return write


def batch_of(frame: DataFrame, number: int) -> Batch:
    """The batch that ``foreachBatch`` gives: Spark's query id and batch id. With a new checkpoint a query has a new id,
    so its batches are written again.

    Raises UnsupportedVersionError if Spark does not provide the id; in that case make a Batch with a name that you
    choose.
    """
    query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    if not query:
        raise UnsupportedVersionError(
            f"a lake table needs Spark's local property {_QUERY_ID}, but pyspark {pyspark_version} did not set it: "
            "call batch_of within foreachBatch of a classic session, or pass Batch(NAME, number) with a new name for "
            "each checkpoint"
        )
    return Batch(query, number)


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """A frame with ``rows``. The frame has no empty chunks, because pyspark 4.3 loses the rows that follow an empty
    chunk."""
    batches = [batch for batch in rows.to_batches() if batch.num_rows]
    return spark.createDataFrame(pa.Table.from_batches(batches, rows.schema))
