"""The sink writes a DataFrame, or a stream's micro-batches, to topics, at least once or exactly once.

A task writes its rows and waits for acknowledgements (sink_task.py). When all tasks have ended, Spark calls ``commit``
or ``abort`` on the driver with the partitions and offsets of the rows.

*At least once*: ``commit`` does nothing, and ``abort`` cannot undo the writes, because a log is append-only. If Spark
retries a task, or a restarted driver repeats a batch, the rows are written again.

*Exactly once*: tasks write in transactions, and ``commit`` commits the transactions together (exactly_once.py). For a
stream, Spark calls ``write`` and ``commit`` on different writer objects in different processes. Only the commit
messages pass data from the process of ``write`` to the process of ``commit``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headrace_core.errors import InvalidConfigError

from .delegation import task_login, without_login
from .errors import SaveModeError
from .exactly_once import SinkBatch, abort_batch, batch_of_stream, batch_of_write, commit_batch, write_batch
from .shipping import settle, ship
from .sink_columns import check_columns
from .sink_options import APP_ID, DELIVERY, EXACTLY_ONCE, parse_sink_options
from .sink_task import SinkCommit, give_up, worker_producer, write_rows, written_text
from .sink_topics import worker_topics

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class SinkTask:
    """Common part of batch and stream writers: options and columns, checked on the driver, and the work of a task."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self.options = parse_sink_options(options)
        self.columns = check_columns(schema, self.options.topic)

    def batch(self) -> SinkBatch:
        """Return the batch that the present task writes exactly once."""
        return batch_of_stream(self.options.target)

    @property
    def notes(self) -> list[str]:
        """Notes for the user that are not errors."""
        return [*self.options.notes, *([self.columns.note] if self.columns.note else [])]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task. ``write`` runs in a worker process; the producer stays open until the worker
        process ends."""
        if self.options.is_exactly_once:
            written = write_batch(iterator, self.columns, self.options, self.batch())
            settle()
            return written
        producer = worker_producer(self.options.client)
        commit = write_rows(
            iterator,
            self.columns,
            self.options.topic,
            producer=lambda: producer,
            ensure=worker_topics(self.options.client, self.options.delivery_timeout_s).ensure,
            give_up=lambda: give_up(producer),
        )
        settle()
        return commit

    def __reduce__(self) -> tuple[Any, ...]:
        """Spark pickles a writer for the tasks when it plans the tasks, and a batch writer also for ``commit``."""
        options = self.options
        if options.token_mechanism is not None:
            login = task_login(options.client, options.token_mechanism)
            options = replace(options, client={**without_login(options.client), **login}, token_mechanism=None)
        return ship(self, {**self.__dict__, "options": options})


class HeadraceBatchWriter(SinkTask, DataSourceArrowWriter):
    """``df.write.format("headrace").mode("append").save()``."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise SaveModeError(
                'mode("overwrite"): the headrace sink appends to topics and deletes nothing. Use '
                'mode("append"); to replace the data, delete the topic\'s records or the topic first'
            )
        super().__init__(options, schema)
        self._batch = batch_of_write(self.options)
        for note in self.notes:
            logger.warning("headrace sink: %s", note)

    def batch(self) -> SinkBatch:
        return self._batch

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """With exactly-once delivery, make all rows visible. With at-least-once delivery there is nothing to do,
        because the rows of every task are already acknowledged."""
        found = received(messages)
        if self.options.is_exactly_once:
            commit_batch(self.options, self._batch, found)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report the records that may have been written. Only an exactly-once sink can abort written records."""
        found = received(messages)
        if self.options.is_exactly_once:
            logger.warning("the write to the topics failed: %s", abort_batch(self.options, self._batch, found))
        else:
            logger.warning("the write to the topics failed. %s", written_text(commits(messages)))


class HeadraceStreamWriter(SinkTask, DataSourceStreamArrowWriter):
    """``frame.writeStream.format("headrace")``: a micro-batch's rows are written before Spark commits the batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(options, schema)
        if self.options.application is not None:
            raise InvalidConfigError(
                f"{APP_ID}: leave it out, because Spark numbers a stream's batches; set {DELIVERY}={EXACTLY_ONCE}. "
                f"{APP_ID} is for a df.write within foreachBatch"
            )
        settle()  # one process creates the writers of all batches, and another process commits the batches

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """With exactly-once delivery, make the rows of the batch visible. With at-least-once delivery the rows of every
        task are already acknowledged. Log the query's notes when the first batch is committed."""
        settle()
        found = received(messages)
        if self.options.is_exactly_once and found:  # a batch without tasks has no rows
            commit_batch(self.options, SinkBatch(found[0].sink, batchId), found)
        if batchId == 0:
            for note in self.notes:
                logger.warning("headrace sink: %s", note)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Report the records that may have been written; a restarted query writes the rows of the batch again. An
        exactly-once sink aborts the records, unless the batch is already committed."""
        found = received(messages)
        if not self.options.is_exactly_once:
            logger.warning("batch %d of the stream failed. %s", batchId, written_text(commits(messages)))
        elif found:
            what = abort_batch(self.options, SinkBatch(found[0].sink, batchId), found)
            logger.warning("batch %d of the stream failed: %s. Start the query again", batchId, what)


def received(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommit]:
    """Return the commit messages of the tasks that have ended, and log the topics that were created for them."""
    found = [message for message in commits(messages) if message is not None]
    for created in dict.fromkeys(created for message in found for created in message.created):
        logger.warning("headrace sink: %s", created)
    return found


def commits(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommit | None]:
    """The commit messages as TaskCommit, the only type that tasks of this sink send."""
    return [cast("SinkCommit | None", message) for message in messages]
