"""A partition led by this broker: its log, its leader state, and the directory's writer.

The pure PartitionLeader decides which records are committed; the directory writer makes every change to the files. No
method of LeaderReplica blocks: appends and disk reads run on threads and call back.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from headrace_core.config import LONG_MAX
from headrace_core.errors import (
    ConcurrentTransactionsError,
    CorruptLogError,
    HeadraceError,
    InvalidProducerEpochError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    ServerShuttingDownError,
    UnknownTopicOrPartitionError,
)
from headrace_core.log import Append, AppendInfo, FoundTimestamp, PartitionLog, ReadResult
from headrace_core.log.appending import AppendOutcome, Outcomes
from headrace_core.log.fencing import Fence, check_stamps
from headrace_core.log.transactions import Marker, TransactionalAppend, marker_batch
from headrace_core.log.writer import DirectoryWriter
from headrace_core.records import iterate_headers, read_header
from headrace_core.types import NO_EPOCH, TimestampType, TopicPartition
from headrace_core.unexpected import answer_to, log_fields

from .partition import PartitionLeader, accept, needs_thread
from .partition.acceptance import check_transactional
from .partition.leader import Waiting
from .partition.schemas import SchemaCheck
from .partition.verification import Verification, Verifications, WaitingRoom
from .schema_registry import SchemaRegistry
from .threads import WorkThreads
from .tracing import AppendTrace
from .traffic import TopicTraffic

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GAPS_MAX = 100  #: Maximum number of gaps at the ends of leader epochs that a replica remembers (``past_gap``).

_CHECKS_AT_ONCE = 100  #: Appends that the event loop checks before it runs other tasks.

#: The event that all replicas share until their log first moves to another directory. A shared event saves memory,
#: because nearly all logs never move.
_NEVER_HELD = asyncio.Event()
_NEVER_HELD.set()

OnDamage = Callable[[PartitionLog, CorruptLogError], None]  #: Callback for a damaged log, called in the event loop.

#: Callback for the result of an append, called exactly once, in the event loop. (Only a joined append gets a list.)
Done = Callable[[Any], None]

#: Asks a transaction's coordinator to add (version 1: to verify) a partition of the transaction. The callback runs
#: once, in the event loop, with None if the coordinator has confirmed, else with the error for the producer.
Verify = Callable[["ProducerTransaction", TopicPartition, Callable[[HeadraceError | None], None]], None]


class ProducerTransaction(NamedTuple):
    """The transaction of a producer's append. ``version``: the client's transaction version. ``room`` limits the number
    and the bytes of the appends that wait while ``verify`` runs."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int
    verify: Verify
    room: WaitingRoom


@dataclass(slots=True, kw_only=True, eq=False)
class LeaderAppend(Append):
    """A producer's append or a marker, from the request to the acknowledgement. ``data`` is the client's batches until
    they are checked, and ``headers`` None. ``LeaderReplica.append`` describes the other fields; ``answer`` is its
    ``done``, and ``done`` its callback for the writer."""

    now_ms: int
    answer: Done
    committed: bool
    written: Callable[[Waiting], None] | None = None
    trace: AppendTrace | None = None
    #: The check of the batches' schema ids; None if the topic has no schema validation, or the ids are accepted.
    schemas: SchemaCheck | None = None


class LeaderReplica:
    """A led partition under one leader epoch; the next epoch creates another LeaderReplica with the same log."""

    __slots__ = (
        "_active",
        "_gaps",
        "_held",
        "_on_damage",
        "_released",
        "_schemas",
        "_seen_bytes",
        "_threads",
        "_unchecked",
        "_verifications",
        "_writer",
        "joined",
        "leader",
        "log",
        "partition",
        "reads",
        "traffic",
    )

    def __init__(
        self,
        log: PartitionLog,
        leader: PartitionLeader,
        writer: DirectoryWriter,
        threads: WorkThreads,
        schemas: SchemaRegistry,
        on_damage: OnDamage,
        traffic: TopicTraffic,
    ) -> None:
        self.partition = leader.partition
        self.log = log
        self.leader = self.reads = (
            leader  #: ``reads``: the state from which consumers read (``FollowerReplica.reads``).
        )
        self._writer = writer
        self._threads = threads
        self._schemas = schemas
        self._on_damage = on_damage
        self.traffic = traffic
        #: The ``kafka.joining.JoinedAppend`` that takes further batches.
        self.joined: Any = None
        self._unchecked: deque[LeaderAppend] = deque()
        #: Transactional appends that wait for their coordinator; None before the first transactional append.
        self._verifications: Verifications[LeaderAppend] | None = None
        #: Checked appends that wait while the log changes directories; None while appends are not held.
        self._held: list[LeaderAppend] | None = None
        self._released = _NEVER_HELD  #: An event that is set when the last ``hold`` ends.
        #: Gaps in the log at the ends of leader epochs: maps the end of an epoch to the next offset with a record
        #: (``past_gap``).
        self._gaps: dict[int, int] = {}
        self._active = log.active
        self._seen_bytes = self._active.size

    def append(
        self,
        records: bytes,
        now_ms: int,
        done: Done,
        *,
        committed: bool,
        written: Callable[[Waiting], None] | None = None,
        fence: Fence | None = None,
        transaction: ProducerTransaction | None = None,
        trace: AppendTrace | None = None,
    ) -> None:
        """Append a producer's batches to the log. Calls ``done`` when this broker and, if ``committed``, every in-sync
        replica have met the topic's flush policy.

        ``append`` either raises an error and never calls ``done``, or passes the error to ``done``. The possible errors
        of ``append`` are those of ``accept``, OutOfOrderSequenceNumberError, InvalidProducerEpochError, StorageError,
        and the error with which the leader resigned. With ``committed``, NotEnoughReplicasError means that no record
        was written. With a ``fence`` (a coordinator's append to its shard) the errors include FencedShardEpochError,
        UnexpectedLogEndError, and InvalidRequestError for batches without the fence's epoch.

        ``written`` is called before ``done``, when the records are in the log and ``done`` waits for other replicas.
        Its argument can be passed to ``PartitionLeader.give_up``. After ``written`` was called, the broker no longer
        keeps the bytes of the produce request.

        For transactional batches, ``transaction`` is required. Unless the log shows that the partition belongs to the
        transaction, the batches wait for the confirmation of the transaction's coordinator. While the batches wait,
        only appends of the same producer epoch wait with the batches. The errors of transactional batches include
        InvalidTxnStateError, TransactionAbortableError, ServerBusyError (too many appends wait),
        ConcurrentTransactionsError, and the errors of ``transaction.verify``.

        A repeated batch of an idempotent producer gets the offset of its first append, and is answered under the same
        conditions as a new batch. Batches that are costly to check are checked on a thread; later batches of the
        partition wait, to keep the order.

        ``trace`` records when the batches are passed to the writer, and when the batches are written; the call of
        ``done`` ends the trace's span.
        """
        self.leader.check_serving()
        if committed:
            self.leader.check_enough_in_sync()
        if self.joined is not None:
            self.joined.submit()  # the order stays
        append = LeaderAppend(
            data=records,
            leader_epoch=self.leader.leader_epoch,
            fence=fence,
            now_ms=now_ms,
            answer=done,
            committed=committed,
            written=written,
            trace=trace,
        )
        if transaction is not None and not self._is_verified(append, transaction):
            return
        if self._unchecked:
            self._unchecked.append(append)
        elif needs_thread(records, self.log.config):
            self._unchecked.append(append)
            self._check_next()
        else:
            self._check(append)
            if append.schemas is None or self._has_schemas(append):
                self.submit(append)
            else:
                self._unchecked.append(append)

    def _is_verified(self, append: LeaderAppend, transaction: ProducerTransaction) -> bool:
        """Whether the append may continue; False if the append waits for its transaction's coordinator."""
        entry = self.log.producers.get(transaction.producer_id)
        if entry is not None and entry.transaction_first_offset is not None and entry.epoch == transaction.epoch:
            # The log itself checks that the transaction is open.
            append.transaction = TransactionalAppend(transaction.version, is_verified=False)
            return True
        if self._verifications is None:
            self._verifications = Verifications(transaction.room)
        verifications = self._verifications
        found = verifications.find(transaction.producer_id, transaction.epoch)
        sequence = read_header(append.data).base_sequence
        first_sequence = verifications.first_sequence(transaction.producer_id, transaction.epoch, sequence)
        append.transaction = TransactionalAppend(transaction.version, True, first_sequence)
        if found is not None and found.is_verified:
            found.appending += 1
            append.answer = functools.partial(self._verified_ended, found, append.answer)
            return True
        new = verifications.wait(transaction.producer_id, transaction.epoch, append, len(append.data))
        if new is not None:
            transaction.verify(transaction, self.partition, functools.partial(self._verified, new))
        return False

    def _verified(self, verification: Verification[LeaderAppend], error: HeadraceError | None) -> None:
        """Called when the coordinator has answered, or when the time limit for its answer is over."""
        assert self._verifications is not None
        if error is not None:
            for append in self._verifications.refused(verification):
                append.answer(error)
            return
        for append in self._verifications.confirmed(verification):
            append.answer = functools.partial(self._verified_ended, verification, append.answer)
            self._go_on(append)

    def _verified_ended(
        self, verification: Verification[LeaderAppend], done: Done, outcome: AppendInfo | HeadraceError
    ) -> None:
        assert self._verifications is not None
        self._verifications.ended(verification, is_appended=not isinstance(outcome, HeadraceError))
        done(outcome)

    def append_marker(
        self, marker: Marker, now_ms: int, done: Done, written: Callable[[Waiting], None] | None = None
    ) -> None:
        """End a producer's transaction: append the marker, unless the log has it already. Calls ``done`` when the
        marker is committed or has failed. If ``append_marker`` raises an error, the method has changed nothing and does
        not call ``done``. The errors are those of ``append`` and of ``headrace_core.log.transactions.must_append``.
        ``written``: as for ``append``."""
        self.leader.check_serving()
        self.leader.check_enough_in_sync()
        if self.joined is not None:
            self.joined.submit()
        if self._verifications is not None:
            for waiting in self._verifications.cancelled_by_marker(marker.producer_id, marker.last_ended_epoch):
                waiting.answer(_ended_by(marker, waiting, self.partition))
        append = LeaderAppend(
            data=marker_batch(marker, now_ms),
            leader_epoch=self.leader.leader_epoch,
            transaction=marker,
            now_ms=now_ms,
            answer=done,
            committed=True,
            written=written,
        )
        self._go_on(append)

    def resign(self, reason: HeadraceError) -> None:
        """End the leadership: every append that waits gets the error ``reason``."""
        if self.joined is not None:
            self.joined.refuse(reason)
        self.leader.resign(reason)
        if self._verifications is not None:
            for append in self._verifications.cancelled():
                append.answer(reason)

    def _go_on(self, append: LeaderAppend) -> None:
        """Check and submit an append whose errors go to ``done``."""
        if self._unchecked:
            self._unchecked.append(append)
        elif self._is_slow(append):
            self._unchecked.append(append)
            self._check_next()
        elif not self._finish_check(append, functools.partial(self._check, append)):
            self._unchecked.append(append)

    def _is_slow(self, append: LeaderAppend) -> bool:
        try:
            return needs_thread(append.data, self.log.config)
        except HeadraceError:
            return False  # the append is not slow: the check itself raises the error

    def _check(self, append: LeaderAppend) -> None:
        transaction, config = append.transaction, self.log.config
        if isinstance(transaction, Marker):
            append.headers = [read_header(append.data)]
            return
        if append.fence is None:
            append.schemas = SchemaCheck.of(self.partition.topic, config)
        append.data, append.headers = accept(
            append.data,
            config,
            self.partition,
            append.now_ms,
            allow_transactional=transaction is not None,
            schemas=None if append.schemas is None else append.schemas.ids,
        )
        if transaction is not None:
            check_transactional(append.headers[0], self.partition)
        elif append.fence is not None:
            check_stamps(append.headers, append.fence, self.partition)

    def _has_schemas(self, append: LeaderAppend) -> bool:
        """Whether the schema registry has the schema ids of the append; False if the append waits for the registry's
        answer. Raises the errors of ``SchemaRegistry.accepts``."""
        if append.schemas is not None:
            if not self._schemas.accepts(append.schemas, self.partition, self._schemas_answered):
                return False
            append.schemas = None
        return True

    @property
    def may_join(self) -> bool:
        """Whether the next append needs no further check than that of its batch, and waits for no earlier append."""
        config = self.log.config
        return (
            not self._unchecked
            and self._held is None
            and config.compression_type == "producer"
            and config.timestamp_type is TimestampType.CREATE_TIME
            and SchemaCheck.of(self.partition.topic, config) is None
        )

    def submit(self, append: LeaderAppend) -> None:
        """Pass an append whose batches are checked to the directory's writer. Raises StorageError and
        ServerShuttingDownError."""
        if self._held is not None:
            self._held.append(append)
            return
        if append.trace is not None:
            append.trace.submitted(append.headers, len(self.leader.isr) - 1)
        append.done = functools.partial(self._appended, append)
        self._writer.submit(self.log, append)

    def _check_next(self) -> None:
        checking = self._threads.run_rested(self.partition, functools.partial(self._check, self._unchecked[0]))
        checking.add_done_callback(self._checked)

    def _checked(self, checking: asyncio.Future[None]) -> None:
        """Called when the first waiting append has been checked."""
        self._first_checked(checking.result)

    def _schemas_answered(self) -> None:
        """Called when the schema registry has answered for the first waiting append, or did not answer in time."""
        self._first_checked(_nothing)

    def _first_checked(self, check: Callable[[], None]) -> None:
        """Finish the check of the first waiting append. Also process the later appends, as long as their checks need
        neither a thread nor an answer of the schema registry, in portions: a client may have queued thousands."""
        for _ in range(_CHECKS_AT_ONCE):
            if not self._finish_check(self._unchecked[0], check):
                return
            self._unchecked.popleft()
            if not self._unchecked:
                return
            append = self._unchecked[0]
            if self._is_slow(append):
                self._check_next()
                return
            check = functools.partial(self._check, append)
        asyncio.get_running_loop().call_soon(self._first_checked, check)

    def _finish_check(self, append: LeaderAppend, check: Callable[[], None]) -> bool:
        """Finish the check of an append. ``check`` checks the batches and stores the result in the append, or raises an
        error. Returns False if the append waits for the schema registry."""
        try:
            self.leader.check_serving()  # check again: the append may have waited for a thread or a move
            if append.committed:
                self.leader.check_enough_in_sync()
            check()
            if not self._has_schemas(append):
                return False
            self.submit(append)
        except HeadraceError as error:
            append.answer(error)
        except asyncio.CancelledError:  # the threads are gone, because the broker has stopped
            append.answer(ServerShuttingDownError(f"{self.partition}: the broker is shutting down"))
        except Exception as error:
            logger.exception(
                "partition %s: checking a batch failed unexpectedly", self.partition, extra=log_fields(error)
            )
            append.answer(answer_to(error, str(self.partition)))
        return True

    def _appended(self, append: LeaderAppend, outcome: Outcomes) -> None:
        append.done, append.data = _ignored, b""  # no reference cycle keeps the records, and no follower that is late
        done = append.answer
        if isinstance(outcome, list):
            up_to = self.leader.high_watermark if append.committed else LONG_MAX
            end = max(map(self._count, outcome))
            joined: Any = append
            outcome = joined.joiner.settle(joined, outcome, up_to)
            if not outcome:
                end = -1
        else:
            end = self._count(outcome)
        if end < 0:
            done(outcome)
            return
        if append.trace is not None:
            append.trace.written()
        if not append.committed or end <= self.leader.high_watermark:
            done(outcome)
        else:
            waiting = self.leader.when_committed(end, lambda failed: done(outcome if failed is None else failed))
            if waiting is not None and append.written is not None:
                append.written(waiting)

    def _count(self, outcome: AppendOutcome) -> int:
        """Count what was appended; returns the offset after it, -1 after an error."""
        if isinstance(outcome, HeadraceError):
            if isinstance(outcome, CorruptLogError):
                self._on_damage(self.log, outcome)
            return -1
        if not outcome.is_duplicate:
            self.traffic.records_in += outcome.next_offset - outcome.base_offset
            self.traffic.bytes_in += outcome.size
        return outcome.next_offset

    def hold(self) -> None:
        """Hold appends until ``release``, because the log is about to change directories. Appends that were passed to
        the writer before ``hold`` are written before any later work of the writer."""
        if self.joined is not None:
            self.joined.submit()
        if self._held is None:
            self._held, self._released = [], asyncio.Event()

    def release(self, log: PartitionLog, writer: DirectoryWriter) -> None:
        """Resume appends through ``writer`` to ``log``: the same log, or its copy in another directory."""
        self._writer = writer
        if log is not self.log:
            self.log = log
            self._active = log.active
            self._seen_bytes = self._active.size
        held, self._held = self._held or [], None
        self._released.set()
        for append in held:
            self._finish_check(append, _nothing)

    def log_advanced(self) -> None:
        """Called when the directory writer has changed this log. The writer calls ``log_advanced`` before the callbacks
        of the log's appends."""
        log = self.log
        if not log.segments:  # the log is closed
            return
        active = log.segments[-1]
        grown = active.size - self._seen_bytes
        # The segment was rolled: count the new bytes of the old segment and all bytes of the new segment.
        if active is not self._active:
            grown += self._active.size
            self._active = active
        self._seen_bytes = active.size
        flushed_end = log.flushed_end  # read the flushed end first: a turn may be running on the writer's thread
        self.leader.advanced(log.log_end_offset, flushed_end, max(grown, 0))
        log.producers.committed_end = self.leader.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """End of the records for read_committed consumers."""
        return self.log.last_stable_offset(self.leader.high_watermark)

    def read(self, offset: int, max_bytes: int, up_to: int, *, committed: bool = False) -> ReadResult | None:
        """Read batches up to ``up_to``, from the batch that contains ``offset``; returns at least one batch. With
        ``committed``, ``up_to`` is the high watermark, and the read is ``PartitionLog.read_committed``. Returns None if
        the batches or the transaction indexes are not in memory: then call ``read_cold``. Raises OffsetOutOfRangeError,
        OffsetNotAvailableError (the log was cut), CorruptLogError, StorageError."""
        try:
            return read_for(self.log, offset, max_bytes, up_to, committed=committed, wait=False)
        except OSError as error:
            raise self._writer.read_failed(self.partition, error) from error

    @property
    def threads(self) -> WorkThreads:
        return self._threads

    def read_cold(self, offset: int, max_bytes: int, up_to: int, *, committed: bool) -> ReadResult:
        """Read like ``read``, and wait for the disk: call this on a thread."""
        found = self._looked_up(lambda log: read_for(log, offset, max_bytes, up_to, committed=committed, wait=True))
        assert found is not None, "a read that may wait for the disk always finds its bytes"
        return found

    @property
    def log_start(self) -> int:
        """The log's start offset. ``leader.log_start`` gets the log's start offset later, when the event loop learns of
        the change."""
        return self.log.log_start_offset

    @property
    def latest_epoch(self) -> int:
        """Leader epoch of the log's last record; -1 if the log has no record."""
        return self.log.epochs.latest_epoch

    def known_epoch_end(self, epoch: int) -> tuple[int, int]:
        """(largest epoch at or below ``epoch`` with records here, its end); (-1, -1) if there is none."""
        end = self.log.epochs.known_end_of(epoch, self.log.log_end_offset)
        return end.epoch, end.end_offset

    def producers_at(self, offset: int) -> bytes:
        """A snapshot of the log's producers after all records before ``offset``, for a follower that begins at
        ``offset``."""
        return self.log.producers.snapshot_at(offset)

    def bytes_from(self, offset: int) -> int:
        """Approximate number of bytes of the records from ``offset`` on. The number of bytes is estimated without I/O,
        from the position of the offset within its segment."""
        total, end = 0, self.leader.log_end
        for segment in reversed(self.log.segments):
            size, base = segment.size, segment.base_offset
            if base <= offset:
                if offset < end:
                    total += size * (end - offset) // (end - base)
                break
            total, end = total + size, base
        return total

    def read_appended(self, offset: int, max_bytes: int) -> ReadResult | None:
        """Read like ``read``, but up to the log's end, including records that are not committed."""
        try:
            return self.log.read(offset, max_bytes, self.leader.log_end, wait=False)
        except OSError as error:
            raise self._writer.read_failed(self.partition, error) from error

    def read_appended_cold(self, offset: int, max_bytes: int) -> asyncio.Future[ReadResult | None]:
        """Read like ``read_appended``, but on a thread that may wait for the disk."""
        up_to = self.leader.log_end
        return self._threads.run(lambda: self._looked_up(lambda log: log.read(offset, max_bytes, up_to)))

    def _looked_up(self, look: Callable[[PartitionLog], T]) -> T:
        """Run ``look(log)`` on a thread, and again if the log moved to another directory during the run."""
        log = self.log
        while True:
            try:
                return look(log)
            except CorruptLogError as error:
                self._threads.call_soon(functools.partial(self._on_damage, log, error))
                raise
            except (OSError, UnknownTopicOrPartitionError) as error:
                if self.log is not log:
                    log = self.log
                elif isinstance(error, OSError):
                    raise self._writer.read_failed(self.partition, error) from error
                else:
                    raise

    def check_not_truncated(self, offset: int, last_fetched_epoch: int) -> None:
        check_not_truncated(self.log, offset, last_fetched_epoch, self._gaps)

    def timestamp_offset(self, timestamp_ms: int, up_to: int) -> asyncio.Future[FoundTimestamp | None]:
        """The first record below ``up_to`` with the timestamp ``timestamp_ms`` or a later one; None if no record has
        such a timestamp."""
        return self._threads.run(lambda: self._looked_up(lambda log: log.offset_for_timestamp(timestamp_ms, up_to)))

    def max_timestamp_offset(self, up_to: int) -> asyncio.Future[FoundTimestamp | None]:
        """The record with the largest timestamp below ``up_to``; None for an empty log (KIP-734)."""
        return self._threads.run(lambda: self._looked_up(lambda log: log.offset_of_max_timestamp(up_to)))

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch at or below ``epoch``, its end offset); (-1, -1) if there is none."""
        if epoch == self.leader.leader_epoch:  # KIP-101: the present epoch ends at the log's end, even without records
            return epoch, self.log.log_end_offset
        end = self.log.epoch_end_offset(epoch)
        return end.epoch, end.end_offset

    def past_gap(self, end_offset: int) -> asyncio.Future[int] | None:
        """The offset of the first record at or after ``end_offset``, the end of a leader epoch. Returns None if
        compaction cannot have removed records at that offset.

        A replica that copied a compacted log knows an epoch's end only as the end of its last batch. A client may have
        read beyond this batch before compaction removed the epoch's last records. A client's offset above the batch
        therefore does not mean that the log was truncated. The result is stored, so that ``check_not_truncated``
        accepts a client's offset above the epoch's last batch."""
        if not 0 <= end_offset < self.log.log_end_offset or not self.log.may_have_gaps():
            return None

        def remember(found: asyncio.Future[int]) -> None:
            if not found.cancelled() and found.exception() is None:
                if len(self._gaps) >= _GAPS_MAX:
                    self._gaps.clear()
                self._gaps[end_offset] = found.result()

        looking = self._threads.run(lambda: self._looked_up(lambda log: log.first_offset_from(end_offset)))
        looking.add_done_callback(remember)
        return looking

    def epoch_at(self, offset: int) -> int:
        """Leader epoch of the record at ``offset``; -1 if the log has no such record."""
        return self.log.epochs.epoch_of(offset) if offset < self.log.log_end_offset else NO_EPOCH

    async def delete_records(self, before_offset: int) -> None:
        """Advance the log start to ``before_offset``, and flush the change to the disk. Raises PolicyViolationError if
        the topic's cleanup.policy lacks ``delete``. Raises OffsetOutOfRangeError if the offset is negative or above the
        high watermark."""
        if not self.log.config.cleanup_delete:
            raise PolicyViolationError(
                f"{self.partition}: cannot delete records: cleanup.policy of topic {self.partition.topic} lacks "
                '"delete"; send tombstones, or set cleanup.policy=compact,delete'
            )
        high_watermark = self.leader.high_watermark
        if not 0 <= before_offset <= high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.partition}: cannot delete records before {before_offset}: must be between 0 and the high "
                f"watermark {high_watermark}"
            )
        while True:
            directory, log = self._writer.directory, self.log
            deleting = self._writer.run(functools.partial(directory.delete_records, log, before_offset), log=log)
            try:
                await asyncio.shield(deleting)
                break
            except UnknownTopicOrPartitionError:  # the log was deleted, or moved to another directory
                await self._released.wait()
                if self.log is log:
                    raise
        # If the partition had a different leader during the deletion, the log start may already be higher.
        self.leader.advance_log_start(min(log.log_start_offset, high_watermark))


def read_for(
    log: PartitionLog, offset: int, max_bytes: int, up_to: int, *, committed: bool, wait: bool
) -> ReadResult | None:
    """Read from the log; ``LeaderReplica.read`` describes the arguments and the result. The result has a batch with
    records, unless only batches without records follow. Compaction leaves batches without records, and a client that
    gets only such batches may not advance (kafka-go fetches from offset 1 again)."""
    read = log.read_committed if committed else log.read
    found = read(offset, max_bytes, up_to, wait=wait)
    while found is not None and found.records and not read_header(found.records).record_count:
        if any(header.record_count for _, header in iterate_headers(found.records)):
            return found
        try:
            following = read(found.next_offset, max_bytes, up_to, wait=wait)
        except OffsetOutOfRangeError:  # the log was cut, or its start has moved
            return found
        if following is not None and not following.records:
            return found
        found = following
    return found


def check_not_truncated(
    log: PartitionLog, offset: int, last_fetched_epoch: int, gaps: Mapping[int, int] = MappingProxyType({})
) -> None:
    """Raise OffsetOutOfRangeError if the log lost records that a client has read (KIP-320). The client read up to
    ``offset``; the last record that it read has ``last_fetched_epoch`` (-1 if unknown). ``gaps``: see
    ``LeaderReplica.past_gap``."""
    if last_fetched_epoch < 0:
        return
    end = log.epoch_end_offset(last_fetched_epoch)
    if end.epoch == last_fetched_epoch and gaps.get(end.end_offset, end.end_offset) >= offset:
        return
    raise OffsetOutOfRangeError(
        f"{log.topic_partition}: the log was truncated below the fetch offset {offset}: records of leader epoch "
        f"{last_fetched_epoch} end at "
        f"{end.end_offset if end.epoch == last_fetched_epoch else 'an unknown offset'}; ask OffsetForLeaderEpoch "
        "for the offset to continue from"
    )


def _ended_by(marker: Marker, waiting: LeaderAppend, partition: TopicPartition) -> HeadraceError:
    """The error for an append that waits for a transaction while the transaction's marker arrives. Under version 1 the
    marker may be a late marker of the previous transaction, so the producer retries."""
    epoch = read_header(waiting.data).producer_epoch
    if epoch < marker.epoch:
        return InvalidProducerEpochError(
            f"{partition}: producer {marker.producer_id} with epoch {epoch} is fenced: a marker of epoch "
            f"{marker.epoch} has ended its transaction"
        )
    return ConcurrentTransactionsError(
        f"{partition}: a marker of producer {marker.producer_id} arrived before its batch was written: retry"
    )


def _nothing() -> None:
    """Placeholder for the check of an append that is already checked."""


def _ignored(outcome: object) -> None:
    """Replaces the callback of an append that has ended."""
