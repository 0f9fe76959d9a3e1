"""The Spark job that reads the topic of the first scene, with the same slow call for each record.

The job runs the same query in two parts. The first part has the source's rate limit (``maxOffsetsPerTrigger``) and one
task for each partition. The second part continues from the checkpoint without the limit, with more tasks
(``minPartitions``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import SparkSession

from ..access import Access
from ..places import Places
from ..queries import Queries, started
from ..sites import Site
from . import schema
from .scenes import CALL_S, PARTITIONS
from .truth import Row

QUERY, TABLE = "spark", "spark-rows"
#: Maximum number of records of a batch in the first part of the job, where a batch begins each second.
LIMIT = 1_000
TASKS = 2 * PARTITIONS
COLUMNS = "partition INT, offset BIGINT, key STRING, n INT"


def called(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Make the slow call for each record, one call after another."""
    for batch in batches:
        for _ in range(len(batch)):
            time.sleep(CALL_S)
        yield batch


class Beside:
    """The Spark query of a run, which reads the topic of ``scene``, as the scene's group does."""

    def __init__(self, spark: SparkSession, access: Access, places: Places, scene: str) -> None:
        self._spark, self._places, self._scene = spark, places, scene
        self._site = Site(schema.PIPELINE, access.servers, places.root, keys=access.keys)
        self._queries: Queries | None = None
        self.is_limited = True
        self.batches: list[int] = []

    def warm(self) -> None:
        """Start the Python processes of Spark, so that the first batch does not wait for them."""
        empty = self._spark.range(0, TASKS, 1, TASKS)
        rows = empty.selectExpr("0 AS partition", "id AS offset", "'' AS key", "0 AS n").mapInPandas(called, COLUMNS)
        rows.collect()

    def start(self, *, is_limited: bool) -> None:
        """Start the first or the second part of the query."""
        self.stop()
        self.is_limited = is_limited
        options = {"maxOffsetsPerTrigger": str(LIMIT)} if is_limited else {"minPartitions": str(TASKS)}
        read = self._site.read(schema.topic_of(self._scene), query=QUERY) | options
        stream = self._spark.readStream.format("headrace").options(**read).load()
        n = "CAST(get_json_object(CAST(value AS STRING), '$.n') AS INT) AS n"
        rows = stream.selectExpr("partition", "offset", "CAST(key AS STRING) AS key", n).mapInPandas(called, COLUMNS)
        writer = rows.writeStream.format("parquet").queryName(QUERY)
        writer = writer.option("checkpointLocation", str(self._places.checkpoint(QUERY)))
        writer = writer.option("path", str(self._places.root / TABLE)).trigger(processingTime="1 second")
        self._queries = Queries({QUERY: started(writer.start)[0]})

    def look(self) -> None:
        """Raises QueryFailedError."""
        if self._queries is not None:
            self._queries.look()

    def stop(self) -> None:
        """Stop the query when its batch has ended."""
        if self._queries is not None:
            self._queries.look()
            self._queries.stop_after_batch()
            self.batches.append(self._queries.progress[QUERY].batches)
            self._queries = None

    def rows(self) -> list[Row]:
        """The rows that the query has written."""
        frame = self._spark.read.parquet(str(self._places.root / TABLE))
        return [(row.partition, row.offset, row.key, row.n) for row in frame.collect()]
