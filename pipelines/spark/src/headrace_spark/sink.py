"""The sink: what Spark calls to write a frame, or a stream's micro-batches, to topics. At least once.

A task writes and waits for the acknowledgements (sink_task.py); what Spark then hands to ``commit`` or ``abort`` on the
driver is where the rows went. There is nothing left to do in ``commit``, and nothing that ``abort`` could take back: a
log is appended to. A task that Spark runs again, and a batch that a driver started again repeats, are written again.
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
from .sink_task import SinkCommit, give_up, told_of_written, worker_producer, write_rows

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class SinkTask:
    """What batch and stream writers share: options and columns, checked on the driver, and a task's work."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = parse_sink_options(options)
        self.columns = check_columns(schema, self.options.topic)

    @property
    def notes(self) -> list[str]:
        """What is worth a word, but no error."""
        return [*self.options.notes, *([self.columns.note] if self.columns.note else [])]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """The rows of one task. Runs in a worker: the producer lives there, for the worker's life."""
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
                'mode("overwrite"): the headrace sink appends to topics and deletes nothing. Use mode("append"); to '
                "start anew, delete the topic's records, or the topic, with the admin client first"
            )
        super().__init__(options, schema)
        for note in self.notes:
            logger.warning("headrace sink: %s", note)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task's rows are acknowledged already."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Says what may have been written; a log takes nothing back."""
        logger.warning("the write failed. %s", told_of_written(commits(messages)))


class HeadraceStreamWriter(SinkTask, DataSourceStreamArrowWriter):
    """``frame.writeStream.format("headrace")``: a micro-batch's rows are written before Spark commits the batch."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Every task's rows are acknowledged already. A query's notes are told once, with its first batch."""
        if batchId == 0:
            for note in self.notes:
                logger.warning("headrace sink: %s", note)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Says what may have been written; the batch's rows are written again when the query is started again."""
        logger.warning("batch %d failed. %s", batchId, told_of_written(commits(messages)))


def commits(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommit | None]:
    """Commit messages as what they are: this sink's tasks send no others."""
    return [cast("SinkCommit | None", message) for message in messages]
