"""The sink: writes a frame, or a stream's micro-batches, to topics. At least once.

A task writes its rows and waits for acknowledgements (sink_task.py). When all tasks have ended, Spark calls ``commit``
or ``abort`` on the driver with the partitions and offsets of the rows. ``commit`` does nothing, and ``abort`` cannot
undo the writes, because a log is append-only. If Spark retries a task, or a restarted driver repeats a batch, the rows
are written again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from .errors import SaveModeError
from .shipping import settle, ship
from .sink_columns import check_columns
from .sink_options import parse_sink_options
from .sink_task import SinkCommit, give_up, worker_producer, write_rows, written_text

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class SinkTask:
    """Common part of batch and stream writers: options and columns, checked on the driver, and the work of a task."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = parse_sink_options(options)
        self.columns = check_columns(schema, self.options.topic)

    @property
    def notes(self) -> list[str]:
        """Notes for the user that are not errors."""
        return [*self.options.notes, *([self.columns.note] if self.columns.note else [])]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. The method runs in a worker process; the producer stays open until the worker
        process ends."""
        producer = worker_producer(self.options.client)
        commit = write_rows(
            iterator,
            self.columns,
            self.options.topic,
            producer=producer,
            give_up=lambda: give_up(producer),
        )
        settle()
        return commit

    def __reduce__(self) -> tuple[Any, ...]:
        return ship(self, dict(self.__dict__))


class HeadraceBatchWriter(SinkTask, DataSourceArrowWriter):
    """``df.write.format("headrace").mode("append").save()``."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise SaveModeError(
                'mode("overwrite"): the headrace sink appends to topics and deletes nothing. Use '
                'mode("append"); to replace the data, delete the topic\'s records or the topic first'
            )
        super().__init__(options, schema)
        for note in self.notes:
            logger.warning("headrace sink: %s", note)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """``commit`` does nothing, because the rows of every task are already acknowledged."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report the records that may have been written; the sink cannot remove them."""
        logger.warning("the write failed. %s", written_text(commits(messages)))


class HeadraceStreamWriter(SinkTask, DataSourceStreamArrowWriter):
    """``frame.writeStream.format("headrace")``: a micro-batch's rows are written before Spark commits the batch."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The rows of every task are acknowledged. Logs the query's notes with the first batch."""
        if batchId == 0:
            for note in self.notes:
                logger.warning("headrace sink: %s", note)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Report the records that may have been written; a restarted query writes the rows of the batch again."""
        logger.warning("batch %d failed. %s", batchId, written_text(commits(messages)))


def commits(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommit | None]:
    """The commit messages as TaskCommit, the only type that tasks of this sink send."""
    return [cast("SinkCommit | None", message) for message in messages]
