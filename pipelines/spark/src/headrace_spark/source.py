"""``format("headrace")``: the data source that Spark registers. It reads (here and in stream.py) and writes (sink.py).

Spark calls ``HeadraceDataSource``, ``partitions()``, ``commit()`` and ``abort()`` in Python processes beside the
driver, and ``read()`` and ``write()`` in worker processes, forked from a daemon. So no channel is opened before one of
these calls, and only plain data is pickled.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from .offset_reader import OffsetReader
from .offsets import LATEST
from .options import Limit, SourceOptions
from .planning import check_covers, plan_ranges, split_ranges
from .schema import record_schema
from .shipping import ship
from .sink import HeadraceBatchWriter, HeadraceStreamWriter
from .stream import HeadraceStreamReader
from .tasks import RangePartition, RangeTask, checked

if TYPE_CHECKING:
    from .cluster import Cluster


class HeadraceDataSource(DataSource):
    """Headrace topics as DataFrames: ``spark.dataSource.register(HeadraceDataSource)``, then ``format("headrace")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name, for Spark's registration on the driver."""
        use_own_interpreter()
        return "headrace"

    def schema(self) -> StructType:
        """The Kafka source's columns. Checks the options, so that mistakes surface where the frame is created."""
        return record_schema(checked(self.options, streaming=None).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return HeadraceBatchReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return HeadraceStreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return HeadraceBatchWriter(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """``overwrite`` means output mode complete; as in the Kafka sink, each batch appends its whole result."""
        return HeadraceStreamWriter(dict(self.options), schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return ship(self, dict(self.__dict__))


def use_own_interpreter() -> None:
    """Have a local session's workers run the driver's Python.

    Spark starts ``python3`` from the PATH unless PYSPARK_PYTHON is set, which often lacks our packages. On a cluster
    the driver's path may not exist, so only ``local[*]`` is changed.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None and str(context.master).startswith("local") and context.pythonExec == "python3":
        context.pythonExec = sys.executable


# -- the batch reader


class HeadraceBatchReader(RangeTask, DataSourceReader):
    """A bounded read from the starting to the ending offsets, both resolved when the query is planned."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options, schema, streaming=False)

    def partitions(self) -> Sequence[InputPartition]:
        from .sdk_cluster import worker_cluster

        return plan_batch(self.options, worker_cluster(self.options.client))


def plan_batch(options: SourceOptions, cluster: Cluster) -> list[RangePartition]:
    """The tasks of a batch query. Raises DataLossError, or warns, when the log lacks given offsets."""
    offsets = OffsetReader(options, cluster)
    start = offsets.resolve(options.starting, "startingOffsets", starting=True)
    end = offsets.resolve(options.ending, "endingOffsets", starting=False)
    check_covers("endingOffsets", end, start)
    if options.ending.kind is Limit.OFFSETS:
        log_end = cluster.list_offsets(dict.fromkeys(end, LATEST))
        for partition, offset in end.items():
            if offset > log_end[partition]:
                offsets.report_loss(f"{partition}: the query ends at {offset}, the log at {log_end[partition]}")
                end[partition] = log_end[partition]
    first = offsets.earliest(start) if options.starting.kind is Limit.OFFSETS else {}
    ranges, losses = plan_ranges(start, end, first)
    for loss in losses:
        offsets.report_loss(loss)
    return [
        RangePartition(wanted, offsets.topic_ids.get(wanted.topic, ""))
        for wanted in split_ranges(
            ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
        )
    ]
