"""The batch reader: both ends are resolved when the query is planned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .offset_reader import OffsetReader
from .offsets import LATEST
from .options import Limit, SourceOptions
from .planning import check_covers, plan_ranges, split_ranges
from .tasks import RangePartition, RangeTask

if TYPE_CHECKING:
    from .cluster import Cluster


class HeadraceBatchReader(RangeTask, DataSourceReader):
    """A bounded read: from the starting to the ending offsets, both resolved when the query is planned."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        super().__init__(options, schema, streaming=False)

    def partitions(self) -> Sequence[InputPartition]:
        from .sdk_cluster import worker_cluster

        return plan_batch(self.options, worker_cluster(self.options.client))


def plan_batch(options: SourceOptions, cluster: Cluster) -> list[RangePartition]:
    """The tasks of a batch query; DataLossError or a warning for given offsets that the log does not have."""
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
