"""A partition on this broker: its log, its leader state, and the directory's writer, tied together.

The pure leader decides what is promised; the writer owns every change to the files. Nothing here waits: an append is
handed over and comes back by a callback, a read that would wait for the disk is handed to a thread.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from headrace_core.errors import (
    HeadraceError,
    OffsetOutOfRangeError,
    ServerShuttingDownError,
    StorageError,
    UnknownServerError,
)
from headrace_core.log import Append, AppendInfo, FoundTimestamp, PartitionLog, ReadResult
from headrace_core.log.writer import DirectoryWriter
from headrace_core.types import NO_EPOCH, FlushPolicy

from .partition import PartitionLeader, accept, needs_thread
from .threads import WorkThreads

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Appended(NamedTuple):
    """An append whose promise is met."""

    base_offset: int
    log_append_time_ms: int
    flush_policy: FlushPolicy


#: How an append ends: called exactly once, in the event loop.
Done = Callable[[Appended | HeadraceError], None]


class _Unchecked(NamedTuple):
    """An append that waits for its batches, or for those before it, to be checked on a thread."""

    records: bytes
    now_ms: int
    done: Done
    committed: bool


class Replica:
    """One led partition under one leader epoch; the next epoch is a new Replica over the same log."""

    __slots__ = ("_active", "_seen_bytes", "_threads", "_unchecked", "_writer", "leader", "log", "partition")

    def __init__(
        self, log: PartitionLog, leader: PartitionLeader, writer: DirectoryWriter, threads: WorkThreads
    ) -> None:
        self.partition = leader.partition
        self.log = log
        self.leader = leader
        self._writer = writer
        self._threads = threads
        self._unchecked: deque[_Unchecked] = deque()
        self._active = log.active
        self._seen_bytes = self._active.size

    # -- append ------------------------------------------------------------------------------------------------------

    def append(self, records: bytes, now_ms: int, done: Done, *, committed: bool) -> None:
        """Append a producer's batches. ``done`` is called when the topic's flush policy is met here, and, if
        ``committed``, when every in-sync replica has met it too. An error is raised, and ``done`` is not called, or it
        is handed to ``done``: what ``accept`` raises, StorageError, and what the leader resigns with.

        Batches that are costly to check are checked on a thread; those that come meanwhile wait, to keep their order.
        """
        self.leader.check_serving()
        append = _Unchecked(records, now_ms, done, committed)
        if self._unchecked:
            self._unchecked.append(append)
        elif needs_thread(records):
            self._unchecked.append(append)
            self._check_next()
        else:
            self._submit(append, self._check(append))

    def _check(self, append: _Unchecked) -> Append:
        data, headers = accept(append.records, self.log.config, self.partition, append.now_ms)
        return Append(data=data, leader_epoch=self.leader.leader_epoch, headers=headers)

    def _submit(self, append: _Unchecked, checked: Append) -> None:
        self._writer.submit(self.log, checked, functools.partial(self._appended, append.done, append.committed))

    def _check_next(self) -> None:
        checking = self._threads.run(functools.partial(self._check, self._unchecked[0]))
        checking.add_done_callback(self._checked)

    def _checked(self, checking: asyncio.Future[Append]) -> None:
        """The first of those that wait has been checked. Those behind it that need no thread go on at once."""
        append = self._unchecked.popleft()
        self._finish_check(append, checking.result)
        while self._unchecked:
            append = self._unchecked[0]
            try:
                slow = needs_thread(append.records)
            except HeadraceError:
                slow = False  # the check itself says what is wrong
            if slow:
                self._check_next()
                return
            self._unchecked.popleft()
            self._finish_check(append, functools.partial(self._check, append))

    def _finish_check(self, append: _Unchecked, checked: Callable[[], Append]) -> None:
        try:
            self.leader.check_serving()
            self._submit(append, checked())
        except HeadraceError as error:
            append.done(error)
        except asyncio.CancelledError:  # the threads are gone: the broker has stopped
            append.done(ServerShuttingDownError(f"{self.partition}: the broker is shutting down"))
        except Exception as error:
            logger.exception("%s: a batch could not be checked", self.partition)
            append.done(UnknownServerError(f"{self.partition}: {type(error).__name__}: {error}"))

    def _appended(self, done: Done, committed: bool, outcome: AppendInfo | HeadraceError) -> None:
        if isinstance(outcome, HeadraceError):
            done(outcome)
            return
        appended = Appended(outcome.base_offset, outcome.log_append_time_ms, self.log.config.flush)
        if not committed or outcome.next_offset <= self.leader.high_watermark:
            done(appended)
        else:
            self.leader.when_committed(outcome.next_offset, lambda failed: done(appended if failed is None else failed))

    def log_moved(self) -> None:
        """A turn of the writer has ended that changed this log. Called before the waiters of its appends."""
        log = self.log
        if log.is_closed:
            return
        active = log.active
        grown = active.size - self._seen_bytes
        if active is not self._active:  # it was rolled: what came into the old segment, and all of the new one
            grown += self._active.size
            self._active = active
        self._seen_bytes = active.size
        self.leader.appended(log.log_end_offset, log.flushed_offset, max(grown, 0))

    # -- read --------------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int) -> ReadResult | None:
        """Batches from the one that holds ``offset`` up to the high watermark, at least one. None when they are not in
        the page cache: see ``read_cold``. Raises OffsetOutOfRangeError, CorruptLogError, StorageError."""
        return self._guarded(self.log.read, offset, max_bytes, self.leader.high_watermark, wait=False)

    def read_cold(self, offset: int, max_bytes: int) -> asyncio.Future[ReadResult | None]:
        """The same from a thread that may wait for the disk."""
        read = functools.partial(self.log.read, offset, max_bytes, self.leader.high_watermark)
        return self._threads.run(functools.partial(self._guarded, read))

    def _guarded(self, read: Callable[..., T], *arguments: Any, **options: Any) -> T:
        """``read(...)``, with a disk's failure turned into StorageError. In any thread."""
        try:
            return read(*arguments, **options)
        except OSError as error:
            raise StorageError(f"{self.partition}: the log cannot be read: {error}") from error

    def check_not_truncated(self, offset: int, last_fetched_epoch: int) -> None:
        """KIP-320: does the log still hold what a client has read, which ended at ``offset`` with records of
        ``last_fetched_epoch`` (-1: it does not say)? Raises OffsetOutOfRangeError when it was truncated meanwhile."""
        if last_fetched_epoch < 0:
            return
        end = self.log.epoch_end_offset(last_fetched_epoch)
        if end.epoch == last_fetched_epoch and end.end_offset >= offset:
            return
        raise OffsetOutOfRangeError(
            f"{self.partition}: the log was truncated below offset {offset} after it was read: records of leader epoch "
            f"{last_fetched_epoch} end at {end.end_offset if end.epoch == last_fetched_epoch else 'no known offset'}; "
            f"ask OffsetForLeaderEpoch where to go on"
        )

    # -- offsets -----------------------------------------------------------------------------------------------------

    def timestamp_offset(self, timestamp_ms: int) -> asyncio.Future[FoundTimestamp | None]:
        """The first record at or after a time, below the high watermark; None when there is none."""
        find = functools.partial(self.log.offset_for_timestamp, timestamp_ms, self.leader.high_watermark)
        return self._threads.run(functools.partial(self._guarded, find))

    def max_timestamp_offset(self) -> asyncio.Future[FoundTimestamp | None]:
        """The record with the largest timestamp below the high watermark; None for an empty log (KIP-734)."""
        find = functools.partial(self.log.offset_of_max_timestamp, self.leader.high_watermark)
        return self._threads.run(functools.partial(self._guarded, find))

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """(largest known epoch not above ``epoch``, its end offset); (-1, -1) when there is none."""
        if epoch == self.leader.leader_epoch:  # KIP-101: the present epoch ends where the log does, written in or not
            return epoch, self.log.log_end_offset
        end = self.log.epoch_end_offset(epoch)
        return end.epoch, end.end_offset

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record at ``offset``; -1 when there is none."""
        return self.log.epochs.epoch_of(offset) if offset < self.log.log_end_offset else NO_EPOCH

    async def delete_records(self, before_offset: int) -> None:
        """Move the log start up to ``before_offset``, durably. OffsetOutOfRangeError outside of 0 .. high watermark."""
        high_watermark = self.leader.high_watermark
        if not 0 <= before_offset <= high_watermark:
            raise OffsetOutOfRangeError(
                f"{self.partition}: records before {before_offset} cannot be deleted, it must lie between 0 and the "
                f"high watermark {high_watermark}"
            )
        directory, log = self._writer.directory, self.log
        await asyncio.shield(self._writer.run(functools.partial(directory.delete_records, log, before_offset), log=log))
        self.leader.advance_log_start(log.log_start_offset)
