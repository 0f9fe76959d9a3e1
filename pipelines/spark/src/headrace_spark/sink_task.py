"""A task's work: send the rows that Spark hands over, and know of each partition what was acknowledged.

Spark's Arrow batches (10,000 rows, unless told otherwise) are gathered to a few MiB, so that the log's batches are
full; a gathered table goes to the producer with one call for each topic in it. The task ends when every row is
acknowledged. So when it returns, its rows are in the log; when it fails, some may be.
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
from .sink_columns import SinkColumns, rows_by_topic

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace import Producer

#: So many bytes of rows are gathered before they are sent: some full batches of the log (1 MiB each).
GATHERED_BYTES = 4 << 20
#: Of the partitions written, a message names so many.
SHOWN_PARTITIONS = 8


class Outcome(Protocol):
    """What becomes of the rows of one ``send_arrow`` (headrace's ManyFuture)."""

    def done(self) -> bool:
        """Whether it is known."""

    def result(self, timeout: float | None = None) -> Any:
        """ManyMetadata; raises the first failure."""


class Rows(Protocol):
    """The producer, as a task sees it (headrace's Producer)."""

    def send_arrow(self, topic: str, table: pa.Table) -> Outcome:
        """Queue a table's rows; they are copied out before this returns."""

    def flush(self) -> None:
        """Send everything now and wait for every outcome."""


@dataclass(frozen=True, slots=True)
class PartitionWritten:
    """What a task wrote to one partition: ``records``, the first at offset ``first``, the last at ``last``.

    Other writers' records may lie between. Offsets are -1 with acks=0.
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
    """A task's commit message: what it wrote, in the order of topic and partition."""

    written: tuple[PartitionWritten, ...]

    @property
    def records(self) -> int:
        return sum(item.records for item in self.written)


class Tally:
    """What was acknowledged so far, by partition."""

    def __init__(self) -> None:
        self._written: dict[TopicPartition, PartitionWritten] = {}

    def acknowledged(self, ranges: Iterable[Any]) -> None:
        """``ranges``: topic, partition, offset of the first record (-1 unknown), count, as the client reports them."""
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
        return SinkCommit(tuple(self._written[where] for where in sorted(self._written)))


def write_rows(
    batches: Iterable[pa.RecordBatch],
    columns: SinkColumns,
    topic: str | None,
    *,
    producer: Rows,
    give_up: Callable[[], None],
) -> SinkCommit:
    """Write all rows; returns once each is acknowledged.

    Raises NullTopicError, or SinkWriteError for everything that the client reports; ``give_up`` is called first (close
    the producer, and send nothing more of what is queued), also when the task itself is ended.
    """
    tally = Tally()
    sent: deque[Outcome] = deque()
    rows = 0
    sending = ""  # the topic, while its rows are handed over: what fails then knows of no partition
    try:
        for table in gathered(batches):
            for sending, part in rows_by_topic(table, columns, topic, rows):
                sent.append(producer.send_arrow(sending, part))
            sending = ""
            rows += table.num_rows
            while sent and sent[0].done():
                tally.acknowledged(sent.popleft().result(0).ranges)
        producer.flush()
        while sent:
            tally.acknowledged(sent.popleft().result().ranges)
    except NullTopicError as error:
        give_up()
        _settle(sent, tally)
        raise NullTopicError(f"{error.message}. {told_of_written([tally.commit()])}") from None
    except HeadraceError as error:
        give_up()
        _settle(sent, tally)
        where = f"topic {sending!r}: " if sending and sending not in error.message else ""
        raise SinkWriteError(
            f"{where}{error.message} [{error.code}]. {told_of_written([tally.commit()])}; Spark writes the task's rows "
            "again when it tries the task once more"
        ) from error
    except BaseException:  # Spark ends the task, or hands over something strange
        give_up()
        raise
    return tally.commit()


def gathered(batches: Iterable[pa.RecordBatch], size: int = GATHERED_BYTES) -> Iterator[pa.Table]:
    """Spark's batches, in tables of at least ``size`` bytes (but the last); nothing is copied."""
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
    """Count what was acknowledged before the producer was closed."""
    for outcome in sent:
        with contextlib.suppress(HeadraceError, TimeoutError):
            tally.acknowledged(outcome.result(0).ranges)


def told_of_written(commits: Iterable[SinkCommit | None]) -> str:
    """A sentence on what is in the log; None is a task that did not finish."""
    tally = Tally()
    for commit in commits:
        for item in commit.written if commit is not None else ():
            tally.add(item)
    total = tally.commit()
    if not total.written:
        return "No row is known to have been written; some may be in the log all the same"
    shown = ", ".join(map(str, total.written[:SHOWN_PARTITIONS]))
    more = len(total.written) - SHOWN_PARTITIONS
    return (
        f"{total.records} rows were acknowledged and stay in the log "
        f"({shown}{f' and {more} more partitions' if more > 0 else ''}); others may be there too"
    )


# -- the producer: one for each worker process and configuration, kept for the worker's next tasks

#: A worker that has served so many different sinks closes the producer that it has not used for longest.
KEPT = 4

Key = tuple[int, frozenset[tuple[str, str]]]

#: By process id, since a worker is a fork; in the order of their last use.
_of_worker: dict[Key, Producer] = {}


def worker_producer(config: Mapping[str, str]) -> Producer:
    """The producer of this worker process: a worker runs one task after the other, and connects once.

    Between tasks it holds nothing that is not acknowledged, so Spark may end the worker with a signal at any time.
    """
    from headrace import Producer

    key = (os.getpid(), frozenset(config.items()))
    found = _of_worker.pop(key, None) or Producer(dict(config))
    while len(_of_worker) >= KEPT:
        _of_worker.pop(next(iter(_of_worker))).close()
    _of_worker[key] = found
    return found


def give_up(producer: Producer) -> None:
    """Close it at once: what is queued is not sent any more, lest a failed task goes on writing."""
    for key in [key for key, kept in _of_worker.items() if kept is producer]:
        del _of_worker[key]
    producer.close(0)
