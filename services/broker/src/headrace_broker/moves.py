"""Moves of partitions between this broker's directories, while the partitions are written and read (KIP-113).

One move runs at a time, with its own task and its own thread. The copy of a moving log catches up while appends
continue. When the copy is near the log's end, the replica delays appends for some milliseconds (``LeaderReplica.hold``)
until the rest is copied. After a move, appends continue in the partition's new directory. If the log is truncated
during a move, because a new leader lacks its last records, the copying starts again. ``headrace_core.log.moving``
describes the steps on the disk, and the state after a crash in each step.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from headrace_core.clock import Clock
from headrace_core.errors import CorruptLogError, DiskFullError, HeadraceError, StorageError
from headrace_core.log import PartitionLog
from headrace_core.log.directory import LogDirectory
from headrace_core.log.files import FileSystem, remove_tree
from headrace_core.log.moving import (
    MARKER,
    Leftovers,
    LogCopy,
    LogWasCutError,
    Marked,
    MarkerStaysError,
    MoveCancelledError,
    MoveError,
    MoveInDoubtError,
    Pace,
    TargetFailedError,
    find_leftovers,
    judge_marked,
    remove_marker,
)
from headrace_core.log.writer import DirectoryWriter
from headrace_core.node.ids import id_to_text
from headrace_core.telemetry import Emitter, ReplicaMoved
from headrace_core.types import TopicPartition

from .directories import HeldDirectory, LogDescription

logger = logging.getLogger(__name__)

#: The last pass of a log's move holds appends back. The last pass begins when at most HOLD_BELOW_BYTES are left to copy
#: (about 0.1 s). The last pass also begins after PASSES_MAX passes in a row in which the copy never waited for its rate
#: limit.
HOLD_BELOW_BYTES = 8 * 1024 * 1024
PASSES_MAX = 20


class Mover(Protocol):
    """The functions of the storage that a move calls, in the event loop."""

    def hold(self, partition: TopicPartition, log: PartitionLog) -> None:
        """Hold appends to the partition; ``log`` may be read until ``release``."""

    def release(self, partition: TopicPartition, log: PartitionLog, writer: DirectoryWriter) -> None:
        """Resume appends to the partition, in ``log``."""

    def high_watermark(self, partition: TopicPartition) -> int:
        """The partition's high watermark, as far as this broker knows it."""

    def taken_over(self, partition: TopicPartition, target: HeldDirectory) -> None:
        """Called when the partition's log is in ``target``, where the log will soon be opened."""

    def arrived(self, partition: TopicPartition) -> None:
        """Called when the moved log is open in its new directory."""

    def lost(self, partition: TopicPartition, error: HeadraceError) -> None:
        """Called when the partition is offline, because the directory of its log is unknown or the log cannot be
        opened."""


class Move:
    """One partition's move to another directory."""

    def __init__(self, log: PartitionLog, source: HeldDirectory, target: HeldDirectory, copy: LogCopy, pace: Pace):
        self.partition = log.topic_partition
        self.log = log
        self.source = source
        self.target = target
        self.copy = copy
        self.pace = pace
        self.ended = asyncio.Event()

    def describe(self) -> LogDescription:
        """Describe the copy of the log as a future log."""
        return LogDescription(
            partition=self.partition,
            size_bytes=self.copy.copied_bytes,
            offset_lag=max(self.log.log_end_offset - self.copy.end_offset, 0),
            is_future=True,
        )

    @property
    def source_writer(self) -> DirectoryWriter:
        assert self.source.writer is not None
        return self.source.writer

    @property
    def target_writer(self) -> DirectoryWriter:
        assert self.target.writer is not None
        return self.target.writer


class Moves:
    """All moves of partitions on this broker. Call all methods in the event loop."""

    def __init__(
        self,
        mover: Mover,
        fs: FileSystem,
        *,
        clock: Clock,
        rng: random.Random,
        events: Emitter,
        bytes_per_second: float = float("inf"),
    ) -> None:
        self._mover = mover
        self._fs = fs
        self._clock = clock
        self._rng = rng
        self._events = events
        self._bytes_per_second = bytes_per_second
        #: Requested moves of logs, in the order of the requests; the first move that is not cancelled runs next.
        self._under_way: dict[TopicPartition, Move] = {}
        self._running: Move | None = None
        self._task: asyncio.Task[None] | None = None

    def set_rate(self, bytes_per_second: float) -> None:
        """Apply ``replica.alter.log.dirs.io.max.bytes.per.second``, also to moves in progress."""
        self._bytes_per_second = bytes_per_second
        for move in self._under_way.values():
            move.pace.set_rate(bytes_per_second)

    def under_way(self) -> list[Move]:
        return list(self._under_way.values())

    def target_of(self, partition: TopicPartition) -> HeldDirectory | None:
        """Target directory of the partition's move; None if the partition does not move."""
        move = self._under_way.get(partition)
        return None if move is None else move.target

    def begin(self, log: PartitionLog, source: HeldDirectory, target: HeldDirectory) -> None:
        """Start to move ``log`` from the directory ``source`` to ``target``. Raises DiskFullError if the target
        directory has too little free space for the log."""
        partition = log.topic_partition
        assert partition not in self._under_way, f"{partition} is being moved already"
        space = target.space
        assert space is not None
        target.measure()
        if log.size_bytes + space.reserve_bytes > space.free_bytes:
            raise DiskFullError(
                f"cannot move {partition} to log directory {target.root}: the log has {log.size_bytes} bytes, and the "
                f"directory has {space.free_bytes} free bytes, of which {space.reserve_bytes} are reserved "
                "(log.dir.reserve.bytes); free some space there, or choose another directory"
            )
        self._under_way[partition] = Move(log, source, target, *self._new_copy(log, target))
        self._begin_next()

    def _new_copy(self, log: PartitionLog, target: HeldDirectory) -> tuple[LogCopy, Pace]:
        assert target.space is not None
        pace = Pace(self._clock, self._bytes_per_second)
        move_id = uuid.UUID(int=self._rng.getrandbits(128))
        return LogCopy(self._fs, log, target.root, move_id=move_id, pace=pace, room=target.space.refusal), pace

    def _begin_next(self) -> None:
        if self._running is None and self._under_way:
            move = self._running = next(iter(self._under_way.values()))
            self._task = asyncio.create_task(self._run(move), name=f"move {move.partition}")

    def _end(self, move: Move) -> None:
        del self._under_way[move.partition]
        move.ended.set()
        if self._running is move:
            self._running = None
            self._begin_next()

    async def cancel(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Cancel the moves of ``partitions`` (of all, if None); returns when each cancelled move is either undone or
        completed. Moves that have not begun end at once, so the deletion of a topic does not wait for another topic's
        copy."""
        which = None if partitions is None else frozenset(partitions)
        moves = [move for move in self.under_way() if which is None or move.partition in which]
        for move in moves:
            move.pace.cancel()
            if move is not self._running:
                self._end(move)
        for move in moves:
            await move.ended.wait()

    async def wait(self, partition: TopicPartition) -> None:
        """Wait until no move of the partition is in progress."""
        move = self._under_way.get(partition)
        if move is not None:
            await move.ended.wait()

    async def _run(self, move: Move) -> None:
        """Run a move until it is complete, has failed or was cancelled. A failed move raises no error: the directories
        and the log show the result."""
        try:
            await self._copy_and_take_over(move)
        except MoveCancelledError as error:
            logger.info("%s: %s", move.partition, error)
        except (MoveError, HeadraceError, OSError) as error:
            logger.error("cannot move the log of %s to log directory %s: %s", move.partition, move.target.root, error)
        except Exception:
            logger.exception(
                "partition %s: moving the log to log directory %s failed unexpectedly", move.partition, move.target.root
            )
        else:
            self._events.emit(ReplicaMoved(partition=move.partition, source=move.source.root, target=move.target.root))
        finally:
            self._end(move)

    async def _copy_and_take_over(self, move: Move) -> None:
        pool = ThreadPoolExecutor(1, thread_name_prefix=f"move-{move.partition}")
        on_thread = functools.partial(asyncio.get_running_loop().run_in_executor, pool)
        try:
            try:
                while not await self._is_taken_over(move, on_thread):
                    await on_thread(functools.partial(_abandon, move.copy))
                    move.pace.check()  # the move may have been cancelled
                    move.copy, move.pace = self._new_copy(move.log, move.target)
            except (MoveInDoubtError, MarkerStaysError):
                raise  # keep all files, because the files show the next start which log is valid
            except BaseException:
                # if a directory has failed, keep the copy: it may prove that the marked log is the valid log
                if move.target.failure is None and move.source.failure is None:
                    await on_thread(functools.partial(_abandon, move.copy))
                raise
        except (TargetFailedError, MoveInDoubtError) as error:
            if isinstance(error.__cause__, OSError) and not isinstance(
                error.__cause__, HeadraceError
            ):  # in all other cases no disk has failed
                move.target_writer.fail(error.__cause__)
            raise
        # The clause for HeadraceError comes first, because a timeout of the controllers is also a TimeoutError, and
        # shows no failure of a disk.
        except HeadraceError:
            raise
        except OSError as error:
            move.source_writer.fail(error)
            raise
        finally:
            pool.shutdown(wait=False)

    async def _is_taken_over(self, move: Move, on_thread: Callable[..., asyncio.Future[int]]) -> bool:
        """Copy the log, and continue in the copy. Returns False if the log was truncated meanwhile: the copy has
        records that the log no longer has."""
        try:
            await on_thread(move.copy.begin)
            passes = 0
            while await on_thread(move.copy.catch_up) > HOLD_BELOW_BYTES:
                # If producers are faster than the rate of a log's move, the move continues until an operator raises the
                # rate, as in Kafka.
                passes = 0 if move.pace.has_waited else passes + 1
                move.pace.has_waited = False
                if passes == PASSES_MAX:
                    break
            await self._take_over(move, on_thread)
        except LogWasCutError as error:
            if move.target.failure is not None or move.source.failure is not None:
                raise
            logger.info("moving %s to log directory %s starts again: %s", move.partition, move.target.root, error)
            return False
        return True

    async def _take_over(self, move: Move, on_thread: Callable[..., asyncio.Future[int]]) -> None:
        mover, partition, old, source = self._mover, move.partition, move.log, move.source_writer
        current, writer, is_taken_over = old, source, False
        mover.hold(partition, old)
        move.pace.hurry()
        try:
            # Wait until the directory writer has run an empty job: all earlier appends are in the log then.
            await source.run(_nothing, log=old)
            await on_thread(move.copy.catch_up)
            await self._commit(move)
            is_taken_over = True
            mover.taken_over(partition, move.target)
            current, writer = await self._adopt(move), move.target_writer
        except MoveInDoubtError as error:
            mover.lost(partition, StorageError(str(error)))
            raise
        except BaseException as error:
            if is_taken_over:  # after this point, an append to the old log would be lost
                mover.lost(partition, _not_opened(move, error))
            raise
        finally:
            mover.release(partition, current, writer)
        mover.arrived(partition)
        try:
            await source.run(functools.partial(source.directory.remove_released, old))
            await asyncio.to_thread(source.directory.remove_deleted)  # of a large log a GiB; retention removes the rest
        except HeadraceError as error:  # continue: the next start finds the old log and its marker
            logger.warning(
                "log directory %s: cannot remove the files of the moved log %s: %s", move.source.root, partition, error
            )

    async def _commit(self, move: Move) -> None:
        """Replace the partition's log by the copy. After any error but MoveInDoubtError, the copy is not the
        partition's log."""
        log, source, target = move.log, move.source_writer, move.target_writer
        try:
            outcome: MoveError | bool = False
            while outcome is False:
                start, end = log.log_start_offset, log.log_end_offset
                await target.run(
                    functools.partial(
                        target.directory.expect,
                        move.partition,
                        log_start=start,
                        recovery_point=end,
                        high_watermark=self._mover.high_watermark(move.partition),
                        clean_offset=source.directory.compaction.clean_offset(move.partition),
                    )
                )
                outcome = await source.run(functools.partial(_finish_and_commit, move, start, end), log=log)
            if isinstance(outcome, MoveError):
                raise outcome
        except MoveInDoubtError:
            raise
        except BaseException:
            # If a directory has failed, the target directory continues to expect the log, because the move may already
            # be committed.
            if target.failure is None and source.failure is None:
                await target.run(functools.partial(target.directory.expect_no_more, move.partition))
            raise

    async def _adopt(self, move: Move) -> PartitionLog:
        old, target = move.log, move.target_writer
        adopt = functools.partial(target.directory.adopt, move.partition, old.config, end_offset=old.log_end_offset)
        new = await target.run(adopt)
        if new.config is not old.config:  # altered meanwhile
            await target.run(functools.partial(new.reconfigure, old.config), log=new)
        return new


def _not_opened(move: Move, error: BaseException) -> HeadraceError:
    """The error for a log that cannot be opened after its move."""
    if isinstance(error, CorruptLogError):
        return error
    return StorageError(
        f"the log of {move.partition} was moved to {move.target.root} and cannot be opened there: {error}. The "
        "replica is offline until the broker restarts"
    )


def _finish_and_commit(move: Move, start: int, end: int) -> MoveError | bool:
    """Finish the copy and commit the move; runs on the source directory's writer. Returns False if the log has changed
    after the target directory recorded the log's end; the caller then tries again."""
    log, directory = move.log, move.source_writer.directory
    if directory.get(move.partition) is not log:
        return MoveCancelledError(f"the log of {move.partition} was deleted while it was moved")
    if (log.log_start_offset, log.log_end_offset) != (start, end):
        return False
    try:
        move.copy.finish()
        move.copy.commit(move.target_writer.directory.meta.directory_id)
    except MoveInDoubtError as error:
        directory.release_in_doubt(log)  # release the log: later requests, such as to delete records, would be lost
        return error
    except MoveError as error:
        return error
    directory.release(log)
    return True


def _abandon(copy: LogCopy) -> None:
    try:
        copy.abandon()
    except OSError as error:
        raise TargetFailedError(
            f"cannot remove {copy.path}, the copy of a cancelled or failed move: {error}"
        ) from error


def _nothing() -> None:
    """An empty job: when the empty job has run, all jobs that were queued before it have run."""


async def settle_moves(held: Sequence[HeldDirectory]) -> dict[TopicPartition, HeadraceError]:
    """Undo or finish interrupted moves before any log is used, so that each log is in one directory. Returns the
    partitions whose log's directory is unknown, each with the error."""
    online = {
        one.writer.directory.meta.directory_id: one.writer
        for one in held
        if one.writer is not None and one.failure is None
    }
    found: dict[uuid.UUID, Leftovers] = {}
    for one, writer in list(online.items()):
        try:
            found[one] = await asyncio.to_thread(find_leftovers, writer.directory)
        except OSError as error:  # take the directory offline, like a directory that could not be opened
            del online[one]
            writer.fail(error)
    holdings = {one: [item for item, _ in writer.directory.holdings()] for one, writer in online.items()}
    verdicts = judge_marked(found, holdings)
    refused: dict[TopicPartition, HeadraceError] = {}
    stuck: set[str] = set()
    for (directory_id, partition), verdict in verdicts.items():
        writer = online[directory_id]
        path = f"{writer.directory.root}/{partition}"
        if verdict is Marked.LOG:
            if not await _done_or_logged(writer, functools.partial(remove_marker, writer.directory.fs, path)):
                stuck.add(found[directory_id].markers[partition].future)
        elif verdict is Marked.STALE:
            logger.warning("log %s was moved to another directory before this start; deleting the old copy", path)
            await _done_or_logged(writer, functools.partial(writer.directory.delete_all, [partition]))
        else:
            why = found[directory_id].damaged.get(partition)
            if not why:
                target = found[directory_id].markers[partition].directory_id
                name = id_to_text(target.bytes) + (f" ({online[target].directory.root})" if target in online else "")
                why = f"{path} may have been moved to log directory {name}, which is missing, or does not have its log"
            refused[partition] = CorruptLogError(
                f"{why}. Start the broker with all its log directories. To use this log as it is instead, stop the "
                f"broker and remove "
                f"{path}/{MARKER}"
            )
    homes = {partition for one in holdings for partition in holdings[one] if (one, partition) not in verdicts}
    homes |= {partition for (_, partition), verdict in verdicts.items() if verdict is Marked.LOG}
    for directory_id, writer in online.items():
        for name, copied in found[directory_id].futures.items():
            if name in stuck:  # the marker of this log remains, and because of the marker the log is trusted
                continue
            # While a directory is offline, keep the copy, which may prove that this directory has the log.
            if copied in homes or len(online) == len(held):
                await _done_or_logged(writer, functools.partial(_remove_future, writer.directory, name))
    return refused


async def _done_or_logged(writer: DirectoryWriter, action: Callable[[], object]) -> bool:
    try:
        await writer.run(action)
    except HeadraceError as error:
        logger.error("log directory %s: cannot clean up after an interrupted move: %s", writer.directory.root, error)
        return False
    return True


def _remove_future(directory: LogDirectory, name: str) -> None:
    remove_tree(directory.fs, f"{directory.root}/{name}")
    directory.fs.sync_directory(directory.root)
