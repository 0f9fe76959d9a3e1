"""The work of a sink task: send Spark's rows, and count acknowledgements per partition.

A task merges Spark's Arrow batches (10,000 rows by default) into tables of a few MiB, so that the batches in the log
are full. A sink task calls the producer once per topic of a merged table. The task returns when every row is
acknowledged. If the task fails, some of its rows may be in the log.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import WriterCommitMessage

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

from .errors import NullTopicError, SinkWriteError
from .retries import retry_text
from .sink_columns import SinkColumns, rows_by_topic
from .sink_topics import KEPT, TopicCreated
from .tracing import flush_spans, task_tracer

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace import Producer

#: Bytes of rows that a task merges before a send: a few full batches of the log (1 MiB each).
GATHERED_BYTES = 4 << 20
#: Maximum number of written partitions that an error message names.
SHOWN_PARTITIONS = 8


class Outcome(Protocol):
    """The future of one ``send_arrow`` (headrace's ManyFuture)."""

    def done(self) -> bool:
        """Whether the outcome of the send is known."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the outcome and return the ManyMetadata; raises the error of the first failed record."""


class Rows(Protocol):
    """The methods of headrace's Producer that a task uses."""

    def partitions_for(self, topic: str) -> list[int]:
        """The numbers of the topic's partitions; creates a missing topic, if the cluster allows it."""

    def send_arrow(self, topic: str, table: pa.Table) -> Outcome:
        """Queue the rows of a table; the producer copies the rows before this method returns."""

    def flush(self) -> None:
        """Send all queued rows now and wait for every outcome."""


@dataclass(frozen=True, slots=True)
class PartitionWritten:
    """The records that a task wrote to one partition: ``records`` is their number, ``first`` and ``last`` are the
    offsets of the first and last record.

    Between ``first`` and ``last`` there may be offsets of other writers' records. With acks=0, ``first`` and ``last``
    are -1.
    """

    topic: str
    partition: int
    first: int
    last: int
    records: int

    def __str__(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)}: {self.records} (offsets {self.first} to {self.last})"


@dataclass(frozen=True)
class SinkCommit(WriterCommitMessage):
    """The commit message of a task: the records that it wrote, in the order of topic and partition. With an
    exactly-once sink, the message also has the sink's id and generation, and the token of the task's transaction ("":
    the task wrote no row). ``created``: the topics that did not exist before this task."""

    written: tuple[PartitionWritten, ...]
    sink: str = ""
    generation: int = 0
    token: str = ""
    created: tuple[TopicCreated, ...] = ()

    @property
    def records(self) -> int:
        return sum(item.records for item in self.written)


class Tally:
    def __init__(self) -> None:
        self._written: dict[TopicPartition, PartitionWritten] = {}
        self.created: list[TopicCreated] = []

    def acknowledged(self, ranges: Iterable[Any]) -> None:
        """Add acknowledged records. ``ranges``: topic, partition, offset of the first record (-1: unknown) and number
        of records, as the client reports them."""
        for item in ranges:
            last = item.offset + item.count - 1 if item.offset >= 0 else -1
            self.add(PartitionWritten(item.topic, item.partition, item.offset, last, item.count))

    def add(self, more: PartitionWritten) -> None:
        where = TopicPartition(more.topic, more.partition)
        old = self._written.get(where)
        if old is not None:
            more = PartitionWritten(
                *where, min(old.first, more.first), max(old.last, more.last), old.records + more.records
            )
        self._written[where] = more

    def commit(self) -> SinkCommit:
        written = tuple(self._written[where] for where in sorted(self._written))
        return SinkCommit(written, created=tuple(self.created))


def write_rows(
    batches: Iterable[pa.RecordBatch],
    columns: SinkColumns,
    topic: str | None,
    *,
    producer: Callable[[], Rows],
    ensure: Callable[[str, Rows], TopicCreated | None],
    give_up: Callable[[], None],
    in_transaction: bool = False,
) -> SinkCommit:
    """Write all rows, and return when every row is acknowledged. ``producer`` returns the producer; the first rows may
    be merged before the producer is ready. ``ensure`` creates a missing topic before the first row for the topic is
    sent. ``in_transaction``: readers with read_committed do not see the rows of a failed task.

    Raises NullTopicError, or SinkWriteError for the client's errors. A task that fails, or that Spark ends early, first
    calls ``give_up``, which closes the producer and drops queued rows.
    """
    tally = Tally()
    sent: deque[Outcome] = deque()
    rows = 0
    sending = ""  # the topic of the current send; an error during a send names no partition
    try:
        for table in gathered(batches):
            opened = producer()
            for sending, part in rows_by_topic(table, columns, topic, rows):
                created = ensure(sending, opened)
                if created is not None:
                    tally.created.append(created)
                sent.append(opened.send_arrow(sending, part))
            sending = ""
            rows += table.num_rows
            while sent and sent[0].done():
                tally.acknowledged(sent.popleft().result(0).ranges)
        producer().flush()
        while sent:
            tally.acknowledged(sent.popleft().result().ranges)
        flush_spans()
    except NullTopicError as error:
        give_up()
        _settle(sent, tally)
        raise NullTopicError(f"{error.message}. {_written_by_failed(tally, in_transaction)}") from None
    except HeadraceError as error:
        give_up()
        _settle(sent, tally)
        where = f"topic {sending!r}: " if sending and sending not in error.message else ""
        raise SinkWriteError(
            f"{where}{error.message} [{error.code}]. {_written_by_failed(tally, in_transaction)}. {retry_text()}"
        ) from error
    except BaseException:  # Spark ended the task, or passed an invalid batch
        give_up()
        raise
    return tally.commit()


def gathered(batches: Iterable[pa.RecordBatch], size: int = GATHERED_BYTES) -> Iterator[pa.Table]:
    """Merge Spark's batches into tables of at least ``size`` bytes (the last table may be smaller), without a copy."""
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        held += batch.nbytes
        if held >= size:
            yield pa.Table.from_batches(waiting)
            waiting, held = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _settle(sent: Iterable[Outcome], tally: Tally) -> None:
    """Count the records that were acknowledged before the producer was closed."""
    for outcome in sent:
        with contextlib.suppress(HeadraceError, TimeoutError):
            tally.acknowledged(outcome.result(0).ranges)


def _written_by_failed(tally: Tally, in_transaction: bool) -> str:
    what = "No row of the task is visible" if in_transaction else written_text([tally.commit()])
    return ". ".join([*map(str, tally.created), what])


def written_text(commits: Iterable[SinkCommit | None]) -> str:
    """A sentence that says which rows are in the log; in ``commits`` None stands for an unfinished task."""
    tally = Tally()
    for commit in commits:
        for item in commit.written if commit is not None else ():
            tally.add(item)
    total = tally.commit()
    if not total.written:
        return "No row was acknowledged, but some may be in the log"
    shown = ", ".join(map(str, total.written[:SHOWN_PARTITIONS]))
    more = len(total.written) - SHOWN_PARTITIONS
    return (
        f"{total.records} rows were acknowledged and stay in the log "
        f"({shown}{f' and {more} more partitions' if more > 0 else ''}); others may be there too"
    )


# -- the producer: one per worker process and configuration, kept for later tasks

Key = tuple[int, frozenset[tuple[str, str]]]

#: The producers of this process, by process id and configuration. The keys of the producers include the process id,
#: because workers are forks; the least recently used producer comes first. When there are more than KEPT producers, the
#: worker closes the least recently used one.
_of_worker: dict[Key, Producer] = {}


def worker_producer(config: Mapping[str, str]) -> Producer:
    """The producer of this worker process, which runs one task after the other.

    Between tasks the producer has no unacknowledged rows, so Spark may end the worker with a signal at any time.
    """
    from headrace import Producer

    task_tracer(config)  # the producer's spans go where the worker's environment says
    key = (os.getpid(), frozenset(config.items()))
    found = _of_worker.pop(key, None) or Producer(dict(config))
    while len(_of_worker) >= KEPT:
        _of_worker.pop(next(iter(_of_worker))).close()
    _of_worker[key] = found
    return found


def give_up(producer: Producer) -> None:
    """Close the producer of a failed task at once and drop its queued rows."""
    for key in [key for key, kept in _of_worker.items() if kept is producer]:
        del _of_worker[key]
    producer.close(0)
