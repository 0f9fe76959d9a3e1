"""The sink: writes a frame, or a stream's micro-batches, to topics. At least once.

A task writes and waits for acknowledgements (sink_task.py); the driver's ``commit`` or ``abort`` receives where the
rows went. ``commit`` has nothing left to do, and ``abort`` cannot undo: a log is append-only. A task that Spark
retries, and a batch that a restarted driver repeats, are written again.
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
        """Write the rows of one task. Runs in a worker; the producer lives as long as the worker."""
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
        """Nothing to do: every task's rows are acknowledged."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report what may have been written; it cannot be undone."""
        logger.warning("the write failed. %s", written_text(commits(messages)))


class HeadraceStreamWriter(SinkTask, DataSourceStreamArrowWriter):
    """``frame.writeStream.format("headrace")``: a micro-batch's rows are written before Spark commits the batch."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Every task's rows are acknowledged. Logs the query's notes with the first batch."""
        if batchId == 0:
            for note in self.notes:
                logger.warning("headrace sink: %s", note)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Report what may have been written; a restarted query writes the batch's rows again."""
        logger.warning("batch %d failed. %s", batchId, written_text(commits(messages)))


def commits(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommit | None]:
    """Cast commit messages: this sink's tasks send no others."""
    return [cast("SinkCommit | None", message) for message in messages]
