"""A task's work: read one range of one partition and yield it as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace_core.errors import OffsetOutOfRangeError, RequestTimedOutError
from headrace_core.types import TopicPartition

from .cluster import Cluster
from .errors import FAIL_ON_DATA_LOSS_FALSE, FAIL_ON_DATA_LOSS_TRUE, DataLossError
from .offsets import EARLIEST, LATEST
from .planning import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


def read_range(
    cluster: Cluster,
    wanted: OffsetRange,
    *,
    columns: Sequence[str],
    batch_rows: int,
    fail_on_data_loss: bool,
    timeout_ms: int,
) -> Iterator[pa.RecordBatch]:
    """The records of ``wanted``. Gaps that compaction left are no loss; offsets that the log no longer has are.

    A loss is a DataLossError, or with ``fail_on_data_loss`` False a warning, and reading goes on at the earliest offset
    that is left of the range. RequestTimedOutError when the partition answers nothing for ``timeout_ms``.
    """
    where = TopicPartition(wanted.topic, wanted.partition)
    position = wanted.start
    while position < wanted.end:
        rest = wanted._replace(start=position)
        try:
            yield from cluster.read(rest, columns=columns, batch_rows=batch_rows, timeout_ms=timeout_ms)
            return
        except (OffsetOutOfRangeError, RequestTimedOutError) as error:
            available = (
                cluster.list_offsets({where: EARLIEST})[where],
                cluster.list_offsets({where: LATEST})[where],
            )
            if isinstance(error, RequestTimedOutError) and available[1] >= wanted.end:
                raise  # the records are there: a slow cluster, no loss
            told = f"{where}: offsets {position} to {wanted.end} are wanted, {available[0]} to {available[1]} are there"
            if fail_on_data_loss:
                raise DataLossError(f"{told}. {FAIL_ON_DATA_LOSS_TRUE}") from error
            position = next_available(rest, available)
            logger.warning("%s, going on at %d. %s", told, position, FAIL_ON_DATA_LOSS_FALSE)


def next_available(wanted: OffsetRange, available: tuple[int, int]) -> int:
    """The first offset of ``wanted`` within ``available`` (start, end); ``wanted.end`` when there is none."""
    earliest, latest = available
    if wanted.start >= latest or earliest >= wanted.end:
        return wanted.end
    return max(wanted.start, earliest)
