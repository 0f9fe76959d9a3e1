"""``format("headrace")``: the data source that Spark registers, and its batch reader.

Where each part runs: Spark calls ``HeadraceDataSource`` and ``partitions()`` in Python processes beside the driver, and
``read()`` in worker processes, forked from a daemon. So nothing here opens a channel before ``partitions()`` or
``read()`` runs, and what travels (options, schema, ranges) is plain data.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from headrace.settings import CONSUMER

from .offset_reader import OffsetReader
from .offsets import LATEST
from .options import Limit, SourceOptions, parse_options
from .planning import OffsetRange, check_covers, plan_ranges, split_ranges
from .range_reader import read_range
from .schema import check_schema, record_schema
from .shipping import ship

if TYPE_CHECKING:
    import pyarrow as pa

    from .cluster import Cluster

logger = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """One task: one range of offsets."""

    def __init__(self, wanted: OffsetRange) -> None:
        super().__init__(tuple(wanted))

    @property
    def wanted(self) -> OffsetRange:
        return OffsetRange(*self.value)

    def __reduce__(
        self,
    ) -> tuple[Any, ...]:  # plain data, so that a worker's complaint comes from the reader (shipping.py)
        return InputPartition, (self.value,)


class HeadraceDataSource(DataSource):
    """Headrace topics as DataFrames: ``spark.dataSource.register(HeadraceDataSource)``, then ``format("headrace")``."""

    @classmethod
    def name(cls) -> str:
        """The format's name. Spark asks for it on the driver when the source is registered."""
        use_own_interpreter()
        return "headrace"

    def schema(self) -> StructType:
        """Columns of the Kafka source; options are checked here, so that a mistake shows where the frame is made."""
        return record_schema(checked(self.options, streaming=None).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        return HeadraceBatchReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .stream import HeadraceStreamReader

        return HeadraceStreamReader(dict(self.options), schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return ship(self, dict(self.__dict__))


def checked(options: Mapping[str, str], *, streaming: bool | None) -> SourceOptions:
    """The source's options and the client's, so that a mistake in either shows before anything is connected."""
    parsed = parse_options(options, streaming=streaming)
    CONSUMER.parse(parsed.client, defaults=False)
    return parsed


class RangeTask:
    """What batch and stream readers share: options, columns, and reading a range in a worker."""

    def __init__(self, options: dict[str, str], schema: StructType, *, streaming: bool) -> None:
        self.options = checked(options, streaming=streaming)
        self.columns = tuple(check_schema(schema, self.options.include_headers).fieldNames())
        for note in self.options.notes:
            logger.warning("headrace source: %s", note)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Runs in a worker: the channel is opened here, once for the worker's life."""
        from .sdk_cluster import settle, worker_cluster

        if partition.value is None:  # Spark's stand-in for "no partition at all"
            return
        yield from read_range(
            worker_cluster(self.options.client),
            OffsetRange(*cast("tuple[str, int, int, int]", partition.value)),
            columns=self.columns,
            fail_on_data_loss=self.options.fail_on_data_loss,
            timeout_ms=self.options.poll_timeout_ms,
        )
        settle()

    def __reduce__(self) -> tuple[Any, ...]:
        return ship(self, {"options": self.options, "columns": self.columns})


class HeadraceBatchReader(RangeTask, DataSourceReader):
    """A bounded read: from the starting to the ending offsets, both resolved when the query is planned."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options, schema, streaming=False)

    def partitions(self) -> Sequence[InputPartition]:
        from .sdk_cluster import worker_cluster

        return [RangePartition(wanted) for wanted in plan_batch(self.options, worker_cluster(self.options.client))]


def plan_batch(options: SourceOptions, cluster: Cluster) -> list[OffsetRange]:
    """The tasks of a batch query; DataLossError or a warning for an ending beyond the log."""
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
    ranges, losses = plan_ranges(start, end, {})
    for loss in losses:
        offsets.report_loss(loss)
    return split_ranges(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)


def use_own_interpreter() -> None:
    """Have a local session's workers run the driver's Python.

    Spark starts ``python3`` from the PATH unless PYSPARK_PYTHON says otherwise, and that one seldom has our packages.
    On ``local[*]`` the answer is plain; on a cluster the path may differ, so nothing is touched there.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None and str(context.master).startswith("local") and context.pythonExec == "python3":
        context.pythonExec = sys.executable
