"""``format("headrace")``: the data source that Spark registers. The data source reads topics (source.py and stream.py)
and writes topics (sink.py).

Spark calls ``HeadraceDataSource``, ``partitions()``, ``commit()`` and ``abort()`` in Python processes on the driver's
machine, and ``read()`` and ``write()`` in worker processes, forked from a daemon. Because gRPC channels do not survive
a fork, the source opens no channel before Spark calls one of its methods, and pickles only plain data.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
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

from headrace_core.errors import InvalidConfigError

from .offset_reader import OffsetReader
from .offsets import LATEST, PartitionOffsets
from .options import Limit, SourceOptions
from .planning import check_covers, plan_ranges, split_ranges
from .retries import ATTEMPTS, MAX_FAILURES, attempts_text
from .schema import record_schema
from .shipping import ship
from .tasks import RangePartition, RangeTask, checked

if TYPE_CHECKING:
    from .cluster import Cluster


class HeadraceDataSource(DataSource):
    """Headrace topics as DataFrames: ``spark.dataSource.register(HeadraceDataSource)``, then ``format("headrace")``."""

    @classmethod
    def name(cls) -> str:
        """The name of the format, which Spark's registration on the driver needs."""
        prepare_workers()
        return "headrace"

    def schema(self) -> StructType:
        """The schema: the columns of the Kafka source. ``schema`` also checks the options, so that errors occur where
        the user creates the DataFrame."""
        return record_schema(checked(self.options, streaming=None).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        self._has_planned = True
        return HeadraceBatchReader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .stream import HeadraceStreamReader  # a worker imports only the modules of its task

        self._has_planned = True
        return HeadraceStreamReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink import HeadraceBatchWriter

        return HeadraceBatchWriter(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """``overwrite`` is True for the output mode complete. In the output mode complete, each batch appends its whole
        result, as in the Kafka sink."""
        from .sink import HeadraceStreamWriter

        return HeadraceStreamWriter(dict(self.options), schema)

    def __reduce__(self) -> tuple[Any, ...]:
        """Spark pickles a data source for its own processes on the driver. After a reader was made, Spark pickles the
        source once more for its tasks. Tasks use only the source's name, so they get no options."""
        state = dict(self.__dict__)
        if state.pop("_has_planned", False):
            state["options"] = {}
        return ship(self, state)


def prepare_workers() -> None:
    """Make the workers of a local session run the same Python as the driver, and tell all workers how often Spark tries
    a task.

    Unless PYSPARK_PYTHON is set, Spark starts ``python3`` from the PATH, and this Python often lacks the Headrace
    packages. On a cluster the driver's Python may not exist at the same path, so only sessions on one machine
    (``local[...]``, ``local-cluster[...]``) are changed.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:  # a worker, which has no context, calls name() too
        return
    master = str(context.master)
    if master.startswith("local") and context.pythonExec == "python3":
        context.pythonExec = sys.executable
    context.environment[ATTEMPTS] = attempts_text(master, context.getConf().get(MAX_FAILURES))


# -- the batch reader


class HeadraceBatchReader(RangeTask, DataSourceReader):
    """A bounded read from the starting to the ending offsets. The offsets are resolved when Spark plans the first query
    of a loaded DataFrame or view. Spark keeps this plan for all later queries of the same DataFrame or view."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options, schema, streaming=False)

    def partitions(self) -> Sequence[InputPartition]:
        from .sdk_cluster import worker_cluster

        return plan_batch(self.options, worker_cluster(self.options.client), self.task_login())


def check_order(start: PartitionOffsets, end: PartitionOffsets, cluster: Cluster) -> None:
    """Raise InvalidConfigError for partitions that end before they start although the log has the start: swapped
    options are no loss of data."""
    behind = {partition: LATEST for partition, offset in end.items() if offset < start[partition]}
    if not behind:
        return
    log_end = cluster.list_offsets(behind)
    wrong = [
        f"{partition} from {start[partition]} to {end[partition]}"
        for partition in sorted(behind)
        if start[partition] <= log_end[partition]
    ]
    if wrong:
        raise InvalidConfigError(
            f"the query would end before it starts: {', '.join(wrong)}. The log has these offsets; check the options "
            "for the start (starting...) and for the end (ending...)"
        )


def plan_batch(
    options: SourceOptions, cluster: Cluster, login: Mapping[str, str] | None = None
) -> list[RangePartition]:
    """Plan the tasks of a batch query, which log in with the keys ``login``. If the log lacks requested offsets, raises
    DataLossError or logs a warning, depending on ``failOnDataLoss``. Raises InvalidConfigError if the options ask for
    an end before the start."""
    offsets = OffsetReader(options, cluster)
    start = offsets.resolve(options.starting, "startingOffsets", starting=True)
    end = offsets.resolve(options.ending, "endingOffsets", starting=False)
    check_covers("endingOffsets", end, start)
    check_order(start, end, cluster)
    if options.ending.kind is Limit.OFFSETS:
        log_end = cluster.list_offsets(dict.fromkeys(end, LATEST))
        committed = options.client.get("isolation.level") == "read_committed"
        where = "the last stable offset is" if committed else "the log at"
        for partition, offset in end.items():
            if offset > log_end[partition]:
                offsets.report_loss(f"{partition}: the query ends at {offset}, {where} {log_end[partition]}")
                end[partition] = log_end[partition]
    first = offsets.earliest(start) if options.starting.kind is Limit.OFFSETS else {}
    ranges, losses = plan_ranges(start, end, first)
    for loss in losses:
        offsets.report_loss(loss)
    return [
        RangePartition(wanted, offsets.topic_ids.get(wanted.topic, ""), login)
        for wanted in split_ranges(
            ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
        )
    ]
