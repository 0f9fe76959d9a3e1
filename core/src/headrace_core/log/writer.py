"""Group commit for a log directory: an asyncio writer that makes all changes of the directory, in turns.

A turn writes all queued appends (one writev for each partition). After the writes, the turn syncs the files whose
topic's ``log.flush`` demands a flush (one fdatasync for each file). After the flush the turn completes the waiting
requests, with exactly the offsets that it wrote. All appends that arrive during a flush share the next flush, and an
acknowledgement never covers bytes that were written later.

Small turns run in the event loop: a flush of a few KiB takes about 0.1 ms, less than waking a thread. The directory's
thread runs large turns, turns with an action such as a roll, and all turns on a disk whose small flushes are slow.

Turns do not overlap, with one exception. While a large turn of appends is on the directory's thread, a second thread
runs small turns to other logs (*turns beside*). A client with large writes therefore does not delay clients with small
writes. Two turns at the same time never write the same log, and an action runs alone.

A failed write or flush takes the directory offline, because the state of the disk is unknown. After a failure all
queued and all later requests get StorageError, and ``on_failure`` is called. A full disk does not take the directory
offline. Appends that would use up the directory's reserve get DiskFullError before a write (``space``). If an append
fails with ENOSPC, the writer removes the append's bytes again. While the disk is full, actions continue, because
actions such as deletions free space.

In a turn with several files, ``sync_file_range`` follows each write, so the disk works while the next file is written.
After the writes, C threads sync the files at the same time, in one commit of the file system's journal.

Blocks are reserved ahead of a growing segment without changing the file's size (``FALLOC_FL_KEEP_SIZE``). With reserved
blocks, flushes are 15 to 25 % faster, and the file gets no tail of zeros. Sealing a segment frees the unused blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from typing import Any, TypeVar

from ..clock import Clock
from ..errors import DiskFullError, HeadraceError, ServerShuttingDownError, StorageError
from ..metrics.histogram import COUNT_BOUNDS, Histogram
from ..records import BatchHeader
from ..types import FlushPolicy, TopicPartition
from .appending import Append, AppendInfo, Outcomes
from .directory import LogDirectory
from .files import Buffer
from .group import may_roll
from .partition_log import PartitionLog, flush_together
from .space import NEAR_BYTES, SpaceGauge
from .turns import (
    ActionEntry,
    Done,
    Entry,
    Step,
    SyncGauge,
    Turn,
    flush_deadline_ms,
    must_flush_now,
    plan_turn,
    plan_turn_beside,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: Values of errno after which a failed read does not point to a damaged disk: the process has run out of file
#: descriptors or memory, the file was removed or closed, or the read was interrupted. (ESTALE: descriptors.py could not
#: keep the file of a deleted segment open for its readers.)
_NOT_THE_DISK = (
    errno.ENOENT,
    errno.EBADF,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EINTR,
    errno.EAGAIN,
    errno.ESTALE,
)

INLINE_BYTES_MAX = 64 * 1024
TURN_BYTES_MAX = 32 * 1024 * 1024
INLINE_SYNC_MS_MAX = 1.0
#: Called in the loop with the logs that advanced in a turn: with ``sent`` when bytes are written but not flushed, and
#: without ``sent`` after the turn. The called function calls ``sent`` once: when the new bytes are sent to the
#: followers, or immediately if there is nothing to send.
OnAdvanced = Callable[[Sequence[PartitionLog], Callable[[], None] | None], None]


class _TurnThread:
    """A thread that runs turns one after another. The first turn starts the thread."""

    def __init__(self, name: str, run: Callable[[Turn], None]) -> None:
        self._name, self._run = name, run
        self._turns: SimpleQueue[Turn | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()

    def put(self, turn: Turn) -> None:
        if self._thread is None:
            self.start()
        self._turns.put(turn)

    def close(self) -> None:
        """Wait until all turns have run, and end the thread."""
        if self._thread is not None:
            self._turns.put(None)
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while (turn := self._turns.get()) is not None:
            self._run(turn)
            turn = None  # the buffers are not kept while the thread waits


class DirectoryWriter:
    """Group commit for one directory (see the module's docstring). Create the writer in its event loop; ``await
    close()`` before the directory is closed. The writer calls the following callbacks in the loop:

    * ``on_advanced`` is called with ``sent`` during a turn, when bytes are written (readable up to ``log_end_offset``)
      but not flushed. It sends the bytes to followers, so that the disks of all replicas work at the same time. A flush
      in the event loop would delay the sending, so a turn in the loop flushes only after ``sent`` was called. A turn on
      the directory's thread does not wait, so a log may be closed before its bytes are sent. ``on_advanced`` is called
      without ``sent`` after each turn, before the turn's requests complete. It advances high watermarks and wakes
      fetches, once for each log.
    * ``on_failure`` is called once, when the directory has failed.
    * ``on_full`` is called with True when the directory begins to refuse appends for lack of space, and with False when
      an append succeeds again. ``on_short`` is called with True when a shortage of space begins, and with False when it
      ends (``space``).
    """

    def __init__(
        self,
        directory: LogDirectory,
        *,
        clock: Clock,
        on_advanced: OnAdvanced | None = None,
        on_failure: Callable[[StorageError], None] | None = None,
        space: SpaceGauge | None = None,
        on_full: Callable[[bool], None] | None = None,
        on_short: Callable[[bool], None] | None = None,
        inline_bytes_max: int = INLINE_BYTES_MAX,
        turn_bytes_max: int = TURN_BYTES_MAX,
        inline_sync_ms_max: float = INLINE_SYNC_MS_MAX,
    ) -> None:
        self.directory = directory
        #: The error that took the log directory offline; None while the directory is online.
        self.failure: StorageError | None = None
        self.pending_bytes = 0  #: Number of bytes of appends that are queued or being written, for back-pressure.
        self._clock = clock
        self._on_advanced = on_advanced
        self._on_failure = on_failure
        #: Free space of the log directory; None if it is unknown, so that only ENOSPC shows a full disk.
        self.space = space
        self._on_full = on_full
        self._was_full = False
        self._on_short = on_short
        self._was_short = False
        self._inline_bytes_max = inline_bytes_max
        self._turn_bytes_max = turn_bytes_max
        self._inline_sync_ms_max = inline_sync_ms_max
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Entry] = deque()
        self._is_scheduled = False
        self._running: Turn | None = None
        self._beside: Turn | None = None  #: A small turn for other logs, which runs while ``_running`` is in progress.
        #: The logs that ``_running`` writes, which ``_beside`` must not write; None if no small turn may run now.
        self._busy: frozenset[PartitionLog] | None = None
        #: The turn whose bytes are written, and are flushed as soon as the leader has sent them to the followers; None
        #: if there is no such turn.
        self._sending: Turn | None = None
        #: A turn of appends with more bytes leaves room for small turns beside it.
        self._room_above_bytes = inline_bytes_max
        self._is_closed = False
        self._idle: asyncio.Future[None] | None = None
        self._sync_gauge = SyncGauge()
        #: For the metrics: seconds of the turns' flushes, appends of each turn, and bytes of all turns.
        self.flush_seconds, self.turn_appends, self.bytes_written = Histogram(), Histogram(COUNT_BOUNDS), 0
        self._dirty: set[PartitionLog] = set()
        self._flush_timer: asyncio.TimerHandle | None = None
        name = f"log-{directory.root.rpartition('/')[2]}"
        self._thread = _TurnThread(name, self._run_on_thread)
        self._thread_beside = _TurnThread(f"{name}-small", self._run_on_thread)

    @property
    def sync_ms(self) -> float | None:
        """Median time of the directory's last small flushes in ms; None after fewer than 16 flushes."""
        return self._sync_gauge.median_ms

    # ---------------------------------------------------------------- asking for work

    def append(
        self, log: PartitionLog, data: Buffer, *, leader_epoch: int, headers: Sequence[BatchHeader] | None = None
    ) -> asyncio.Future[AppendInfo]:
        """Append whole batches; the future completes when the topic's ``log.flush`` is met.

        ``headers``: the result of ``validate``, if the caller has called it. Cancelling the future does not cancel the
        write. The future raises the errors of ``PartitionLog.append_many``, and StorageError. Raises StorageError when
        the directory has failed, ServerShuttingDownError when the writer is closed.
        """
        future: asyncio.Future[AppendInfo] = self._loop.create_future()
        self.submit(log, Append(data=data, leader_epoch=leader_epoch, headers=headers, done=_resolver(future)))
        return future

    def submit(self, log: PartitionLog, append: Append) -> None:
        """Append without a future: the writer calls ``append.done`` in the loop with an AppendInfo or an exception."""
        if self.failure is not None or self._is_closed:
            self._refuse()
        size = len(append.data)
        self.pending_bytes += size
        self._queue.append((log, append))
        if self._is_scheduled:
            return
        # While a turn runs, only a small append may begin, beside a large turn on the thread.
        if self._beside is not None or (
            self._running is not None and (self._busy is None or log in self._busy or size > self._inline_bytes_max)
        ):
            return
        self._is_scheduled = True
        self._loop.call_soon(self._start_turn)

    def run(self, action: Callable[[], T], *, log: PartitionLog | None = None) -> asyncio.Future[T]:
        """Run a change (create, truncate, roll, delete, write checkpoints, ...) on the directory's thread. The change
        runs after all earlier requests and before all later requests for ``log`` or, without ``log``, for all logs.
        While the change runs, no other change of the directory runs. The future raises the action's HeadraceError. An
        OSError of the action takes the directory offline; if the disk is full, the future raises DiskFullError
        instead."""
        if self.failure is not None or self._is_closed:
            self._refuse()
        future: asyncio.Future[T] = self._loop.create_future()
        self._enqueue(ActionEntry(log, action, _resolver(future)))
        return future

    def fail(self, error: BaseException) -> None:
        """Take the directory offline after a disk error outside the writer (a read, a check): queued requests get
        StorageError. Call ``fail`` in the event loop. Idempotent."""
        self._fail(self._failure_of(error))

    def read_failed(self, partition: TopicPartition, error: OSError) -> StorageError:
        """Return the error for a failed read. An unreadable disk takes the directory offline, as in Kafka. Any thread
        may call ``read_failed``."""
        if error.errno not in _NOT_THE_DISK:
            with contextlib.suppress(RuntimeError):  # a closed loop raises RuntimeError: no callback is needed any more
                self._loop.call_soon_threadsafe(self.fail, error)
        return StorageError(f"{partition}: cannot read the log: {error}")

    def flush(self, log: PartitionLog) -> asyncio.Future[int]:
        """Force earlier appends of a log to the disk, under any flush policy; returns the flushed end."""
        return self.run(log.flush, log=log)

    async def close(self) -> None:
        """Finish the queued requests, then stop and refuse later requests. ``close`` does not close the directory
        itself."""
        self._is_closed = True
        if self._flush_timer is not None:
            self._flush_timer.cancel()
        if self._queue or self._is_busy or self._is_scheduled:
            self._idle = self._loop.create_future()
            await asyncio.shield(self._idle)
        self._thread.close()
        self._thread_beside.close()

    def _refuse(self) -> None:
        if self.failure is not None:
            raise StorageError(self.failure.message)
        raise ServerShuttingDownError(f"the log directory {self.directory.root} is being closed")

    @property
    def _is_busy(self) -> bool:
        return self._running is not None or self._beside is not None

    def _enqueue(self, entry: ActionEntry) -> None:
        self._queue.append(entry)
        if not self._is_scheduled and not self._is_busy:
            self._is_scheduled = True
            self._loop.call_soon(self._start_turn)

    # ---------------------------------------------------------------- turns (event loop)

    def _start_turn(self) -> None:
        self._is_scheduled = False
        if self._running is not None or self._beside is not None:
            self._start_beside()
            return
        if not self._queue:
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
            return
        turn = self._running = plan_turn(self._queue, bytes_max=self._turn_bytes_max)
        if self._needs_thread(turn):
            if turn.size > self._room_above_bytes and not turn.has_actions:
                self._busy = frozenset([step[0] for step in turn.steps if isinstance(step, tuple)])
            self._thread.put(turn)
            return
        self._write(turn)
        if turn.failure is not None or not turn.written:
            self._flush(turn)
            self._end_turn(turn)
        else:
            self._sending = turn
            self._tell_advanced(turn.written, self._flush_sent)

    def _start_beside(self) -> None:
        """If small appends are waiting for the large turn on the thread, run them now in a turn beside."""
        if self._busy is None or self._beside is not None:
            return
        self._beside = plan_turn_beside(self._queue, busy=self._busy, bytes_max=self._inline_bytes_max)
        if self._beside is not None:
            self._thread_beside.put(self._beside)

    def _needs_thread(self, turn: Turn) -> bool:
        """Whether the turn may block the event loop for too long: because of its size, an action, a slow disk, or a
        roll, which flushes all unflushed bytes of a segment."""
        if turn.has_actions or turn.size > self._inline_bytes_max:
            return True
        if self._sync_gauge.value_ms > self._inline_sync_ms_max:
            return True
        now_ms = self._clock.now_ms()
        return any(isinstance(step, tuple) and may_roll(*step, now_ms) for step in turn.steps)

    def _flush_sent(self) -> None:
        """Flush in the loop once the bytes are sent to followers, so that the leader's disk and the followers' disks
        work at the same time."""
        turn, self._sending = self._sending, None
        if turn is not None:
            self._flush(turn)
            self._end_turn(turn)

    def begin_thread(self) -> None:
        """Start the directory's thread now. Without a call of ``begin_thread``, the first turn that needs the thread
        starts it."""
        self._thread.start()

    def _end_turn(self, turn: Turn) -> None:
        is_beside = turn is self._beside
        if is_beside:
            self._beside = None
        else:
            self._running = self._busy = None
        self.pending_bytes -= turn.size
        if turn.size <= self._inline_bytes_max and not is_beside:  # a small flush takes longer while a large flush runs
            self._sync_gauge.add(turn.sync_ms)
        if turn.was_flushed:
            self.flush_seconds.observe(turn.sync_ms / 1000)
        if turn.size:
            self.bytes_written += turn.size
            self.turn_appends.observe(turn.appends)
        if turn.failure is not None:
            self._fail(turn.failure)
        space = self.space
        if space is not None and (space.is_short is not self._was_short or space.is_full is not self._was_full):
            self._space_changed(space)
        if self._queue and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._start_turn)
        if turn.logs:
            for log in turn.logs:
                if log.unflushed_since_ms is not None:
                    self._dirty.add(log)
            if self._dirty:
                self._schedule_flush()
            self._tell_advanced(turn.logs, None)
        for done, outcome in turn.outcomes:
            try:
                done(outcome)
            except Exception as error:  # noqa: BLE001 - one waiter's bug must not cost the others their answers
                self._tell_bug(error)
        if self._idle is not None and not self._queue and not self._is_busy and not self._idle.done():
            self._idle.set_result(None)

    def _space_changed(self, space: SpaceGauge) -> None:
        if space.is_short is not self._was_short:
            self._was_short = space.is_short
            if self._on_short is not None:
                self._call(self._on_short, space.is_short)
        if space.is_full is not self._was_full:
            self._was_full = space.is_full
            if self._on_full is not None:
                self._call(self._on_full, space.is_full)

    def _tell_advanced(self, logs: list[PartitionLog], sent: Callable[[], None] | None) -> None:
        try:
            if logs and self._on_advanced is not None and (sent is None or self.failure is None):
                self._on_advanced(logs, sent)
                return
        except Exception as error:  # noqa: BLE001 - as in _call; and the turn ends all the same
            self._tell_bug(error)
        if sent is not None:
            sent()

    def _call(self, function: Callable[[Any], object], argument: object) -> None:
        try:
            function(argument)
        except Exception as error:  # noqa: BLE001 - one waiter's bug must not cost the others their answers
            self._tell_bug(error)

    def _tell_bug(self, error: Exception) -> None:
        self._loop.call_exception_handler(
            {"message": f"{self.directory.root}: a callback of the log writer raised an error", "exception": error}
        )

    def _fail(self, failure: StorageError) -> None:
        if self.failure is not None:
            return
        self.failure = failure
        logger.error("%s", failure.message)
        queued, self._queue = self._queue, deque()
        for entry in queued:
            if isinstance(entry, tuple):
                self.pending_bytes -= len(entry[1].data)
                self._call(entry[1].done, StorageError(failure.message))
            else:
                self._call(entry.done, StorageError(failure.message))
        if self._on_failure is not None:
            self._call(self._on_failure, failure)

    # ---------------------------------------------------------------- flushing by time (event loop)

    def _schedule_flush(self) -> None:
        if self._flush_timer is not None or self._is_closed or self.failure is not None:
            return
        deadline_ms: float | None = None
        for log in list(self._dirty):
            due_ms = flush_deadline_ms(log.config, log.unflushed_since_ms)
            if due_ms is None or log.is_closed:  # a closed log is deleted, and its records need no flush
                self._dirty.discard(log)
            elif deadline_ms is None or due_ms < deadline_ms:
                deadline_ms = due_ms
        if deadline_ms is not None:
            delay_s = max(deadline_ms - self._clock.monotonic_ms(), 0.0) / 1000
            self._flush_timer = self._loop.call_later(delay_s, self._flush_due)

    def _flush_due(self) -> None:
        self._flush_timer = None
        if self._is_closed or self.failure is not None:
            return
        now_ms = self._clock.monotonic_ms()
        for log in list(self._dirty):
            due_ms = flush_deadline_ms(log.config, log.unflushed_since_ms)
            if due_ms is not None and due_ms <= now_ms:
                self._dirty.discard(log)
                self._enqueue(ActionEntry(log, log.flush, _ignore))
        self._schedule_flush()

    # ---------------------------------------------------------------- turns (loop or thread)

    def _run_on_thread(self, turn: Turn) -> None:
        self._write(turn)
        with contextlib.suppress(RuntimeError):  # a closed loop raises RuntimeError: no caller waits any more
            if turn.written:
                self._loop.call_soon_threadsafe(self._tell_advanced, turn.written, _nothing)
        self._flush(turn)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._end_turn, turn)

    def _write(self, turn: Turn) -> None:
        """Write the turn's appends and run its actions."""
        touched: dict[PartitionLog, None] = {}
        written: dict[PartitionLog, None] = {}
        space, several = self.space, len(turn.steps) > 1
        try:
            for step in turn.steps:
                if not isinstance(step, tuple):
                    if step.log is not None:
                        touched[step.log] = None
                    turn.outcomes.append((step.done, self._act(step)))
                    continue
                log, appends = step
                touched[log] = None
                if space is not None:
                    refusal = space.refusal(sum([len(append.data) for append in appends]))
                    if refusal is not None:
                        turn.outcomes += [(append.done, refusal) for append in appends]
                        continue
                    if log.segments:
                        log.segments[-1].reserves_ahead = space.headroom >= NEAR_BYTES
                # While the disk writes one file of a turn, the next file is written to the page cache, and the journal
                # commits the new sizes together. Because the writes of several files overlap, the flush of a turn takes
                # half the time.
                start_writeback = several and log.config.flush is FlushPolicy.COMMIT
                outcomes = log.append_many(appends, start_writeback=start_writeback)
                turn.outcomes += zip([append.done for append in appends], outcomes, strict=True)
                if space is not None and any(_is_disk_full(outcome) for outcome in outcomes):
                    space.ran_out()
                if log.log_end_offset > log.flushed_end:
                    written[log] = None
            turn.logs, turn.written = list(touched), list(written)
        except Exception as error:  # noqa: BLE001 - a disk error, or a bug in the middle of a change: both are final
            self._failed(turn, error)

    def _flush(self, turn: Turn) -> None:
        """Sync the files that the turn has written, as the topics' flush policies demand."""
        if turn.failure is not None:
            return
        try:
            started = time.perf_counter()
            flushed = [
                log
                for log in turn.logs
                if log.segments and must_flush_now(log.config, log.log_end_offset - log.flushed_end)
            ]
            flush_together(self.directory.fs, flushed)
            turn.sync_ms, turn.was_flushed = (time.perf_counter() - started) * 1000, bool(flushed)
        except Exception as error:  # noqa: BLE001 - a disk error or a bug: final, as in _write
            self._failed(turn, error)

    def _failed(self, turn: Turn, error: Exception) -> None:
        failure = turn.failure = self._failure_of(error)
        turn.outcomes = [(done, failure) for done in _waiters(turn.steps)]
        turn.logs, turn.written = [], []

    def _failure_of(self, error: BaseException) -> StorageError:
        failure = StorageError(
            f"log directory {self.directory.root} failed and is offline: {type(error).__name__}: {error}. Check "
            "the disk, then restart the broker"
        )
        failure.__cause__ = error
        return failure

    def _act(self, step: ActionEntry) -> object:
        try:
            return step.action()
        except HeadraceError as error:
            return error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                if self.space is not None:
                    self.space.ran_out()
                return DiskFullError(f"{self.directory.root}: no space left on the disk ({error.strerror})")
            raise


def _is_disk_full(outcome: Outcomes) -> bool:
    if isinstance(outcome, list):
        return any(isinstance(each, DiskFullError) for each in outcome)
    return isinstance(outcome, DiskFullError)


def _waiters(steps: Iterable[Step]) -> list[Done]:
    waiters: list[Done] = []
    for step in steps:
        if isinstance(step, tuple):
            waiters += [append.done for append in step[1]]
        else:
            waiters.append(step.done)
    return waiters


def _resolver(future: asyncio.Future[Any]) -> Done:
    def resolve(outcome: object) -> None:
        if future.done():  # the caller was cancelled, but the work was done
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    return resolve


def _nothing() -> None:
    """Do nothing: ``sent`` of a turn on the thread, which does not wait for the sending."""


def _ignore(outcome: object) -> None:
    """Ignore the outcome of a flush by time, for which no caller waits; a failed flush takes the directory offline."""
