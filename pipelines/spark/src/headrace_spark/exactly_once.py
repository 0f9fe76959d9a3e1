"""Write exactly once: each attempt of a task writes in a transaction and prepares it; one request commits the batch.

    task      describe the sink ---> decided: drain the rows, write nothing
                                `--> write in a transaction of its own ---> prepare ---> token to the driver
    driver    commit: CommitSinkBatch(tokens)       the decision, and the end of all transactions
              abort:  AbortSinkBatch(generation)    changes nothing if the decision stands

Spark does not tell a failed attempt, or the slower of two attempts, to abort. CommitSinkBatch does not name the
transactions of failed and of slower attempts, so the coordinator aborts these transactions. A restarted driver repeats
a batch; if the batch was already committed, that commit remains valid (docs/decisions/0021).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace_core.errors import HeadraceError, UnsupportedVersionError
from headrace_core.sinks import SinkTransaction, sink_id

from .errors import NullTopicError, SinkWriteError
from .retries import retry_text
from .sink_columns import SinkColumns
from .sink_options import SinkOptions
from .sink_task import SinkCommit, write_rows
from .sink_topics import open_admin, worker_admin, worker_topics
from .tracing import task_tracer

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace import Producer

logger = logging.getLogger(__name__)

#: Spark's local properties that contain the query and batch of a task. Spark does not document the local properties
#: with the ids of query and batch.
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
ABORT_S = 5.0  #: Maximum number of seconds for a failed task to abort its transaction.


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch of a sink. ``is_final``: no batch follows."""

    sink: str
    number: int
    is_final: bool = False


def batch_of_write(options: SinkOptions) -> SinkBatch:
    """The batch of ``df.write``: the application's version, or the only batch of a new sink."""
    if options.application is not None:
        app_id, version = options.application
        return SinkBatch(sink_id(app_id, options.target), version)
    return SinkBatch(sink_id(f"write-{secrets.token_hex(16)}", options.target), 0, is_final=True)


def batch_of_stream(target: str) -> SinkBatch:
    """Return the batch of the stream task that runs now. Raises UnsupportedVersionError if Spark does not tell the task
    its query and batch."""
    from pyspark import TaskContext
    from pyspark import __version__ as version

    context = TaskContext.get()
    query, batch = (context and context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
    if not query or not batch or not batch.isdecimal():
        raise UnsupportedVersionError(
            f"exactly-once delivery needs Spark's local properties {QUERY_ID} and {BATCH_ID}, and pyspark {version} "
            f"gave this task {query!r} and {batch!r}: use a trigger with micro-batches, or headrace.delivery="
            "at-least-once"
        )
    return SinkBatch(sink_id(query, target), int(batch))


def write_batch(
    batches: Iterator[pa.RecordBatch], columns: SinkColumns, options: SinkOptions, batch: SinkBatch
) -> SinkCommit:
    """Write the rows of one task, and prepare their transaction. If the batch is already committed, the rows are read
    and not written. Raises SinkWriteError."""
    state = worker_admin(options.client).describe_sink(batch.sink)
    nothing = SinkCommit((), batch.sink, state.generation)
    rows = (each for each in batches if each.num_rows)
    if state.batch >= batch.number:
        for _ in rows:
            pass
        return nothing
    first = next(rows, None)
    if first is None:
        return nothing
    transaction = SinkTransaction(batch.sink, batch.number, state.generation, _partition(), secrets.token_hex(8))
    with ThreadPoolExecutor(1, "headrace-begin") as pool:
        begun = pool.submit(_begun, options, transaction)  # meanwhile Spark delivers the first rows
        try:
            commit = write_rows(
                itertools.chain((first,), rows),
                columns,
                options.topic,
                producer=begun.result,
                ensure=worker_topics(options.client, options.delivery_timeout_s).ensure,
                give_up=lambda: _close(begun),
                in_transaction=True,
            )
            token = begun.result().prepare()
        except HeadraceError as error:
            if isinstance(error, SinkWriteError | NullTopicError):
                raise
            raise SinkWriteError(
                f"{error.message} [{error.code}]. No row of the task is visible. {retry_text()}"
            ) from error
        finally:
            _close(begun)
    return replace(nothing, written=commit.written, token=str(token), created=commit.created)


def _begun(options: SinkOptions, transaction: SinkTransaction) -> Producer:
    """A producer with an open transaction."""
    from headrace import Producer

    task_tracer(options.client)
    producer = Producer({**options.client, "transactional.id": str(transaction)})
    try:
        producer.begin_transaction()
    except BaseException:
        producer.close(0)
        raise
    return producer


def _close(begun: Future[Producer]) -> None:
    """Close the producer, which aborts its open transaction. Do nothing if the producer could not begin a
    transaction."""
    with contextlib.suppress(HeadraceError):
        begun.result().close(ABORT_S)


def commit_batch(options: SinkOptions, batch: SinkBatch, commits: Sequence[SinkCommit]) -> None:
    """Commit the batch, and wait until readers see it. If the batch is already committed, the call changes nothing.
    Raises InvalidArgumentError, before the commit, if more tasks have written rows than one request can commit."""
    tokens = [commit.token for commit in commits if commit.token]
    generation = min((commit.generation for commit in commits), default=None)
    with open_admin(options.client) as admin:
        admin.commit_sink_batch(batch.sink, batch.number, tokens, generation=generation, is_final=batch.is_final)


def abort_batch(options: SinkOptions, batch: SinkBatch, commits: Sequence[SinkCommit]) -> str:
    """Abort the batch. If the batch is already committed, nothing changes: an earlier commit with an unknown outcome
    may have taken effect. Returns what happened."""
    with open_admin(options.client) as admin:
        generation = max((commit.generation for commit in commits), default=None)
        if generation is None:
            generation = admin.describe_sink(batch.sink).generation
        state = admin.abort_sink_batch(batch.sink, batch.number, generation, is_final=batch.is_final)
    return "its rows are visible: the commit was decided" if state.batch >= batch.number else "no row of it is visible"


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context is not None else 0
