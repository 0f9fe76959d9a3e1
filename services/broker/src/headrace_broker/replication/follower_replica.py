"""A partition that follows its leader: the pure follower state, the log, and the directory's writer.

Pushed records are checked when they arrive and passed to the directory writer, which flushes them together with records
of other partitions. The replica acknowledges records after the flush. Several appends of a followed partition may be in
progress. Each append names its start offset, so no append is written behind a refused append.

A *join* is a follower's request to its leader to push a partition's records. The join names the end of the follower's
log and the epoch of its last record.

Nothing here waits. After a failure, such as a full disk or a damaged push, the replica sends the leader a new join. The
pauses between two joins grow. A replica whose append or join failed acknowledges no records until the leader has
accepted a new join. A follower that refuses pushes leaves the in-sync set after replica.lag.time.max.ms, and returns
when it has caught up.

If the log takes no appends, the replica reports this state to the leader at once (``cannot_append``). When a follower
cannot append, its leader proposes the follower's removal from the in-sync set. While the directory is short of space,
the replica still sends joins to the leader at intervals, to learn the leader's log start. When the leader's log start
advances, the follower deletes its records below the log start, which frees space in its directory. A join while the
disk is short of space asks for one batch, and the replica does not accept the batch.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import Protocol

from headrace_core.errors import (
    CorruptLogError,
    DiskFullError,
    HeadraceError,
    OffsetNotAvailableError,
    ServerShuttingDownError,
    StorageError,
    UnknownServerError,
)
from headrace_core.log import Append, AppendInfo, PartitionLog, ReadResult
from headrace_core.log.replicated import check_replicated
from headrace_core.log.writer import DirectoryWriter
from headrace_core.rpc.outage import Backoff
from headrace_core.types import TopicPartition
from headrace_protos.v1.replication_pb2 import (
    FollowAck,
    FollowEnded,
    FollowJoin,
    FollowJoined,
    FollowOffsetsUpdate,
    FollowPush,
)

from ..leader_replica import OnDamage, check_not_truncated, read_for
from ..partition import PartitionFollower
from ..partition.follower import LeaderLacks, LogsMatch, OtherStream, Restart, Stale, Truncate, Wait
from ..partition.leader import PartitionWatcher
from ..partition.push_stream import CATCH_UP, LIVE
from ..threads import WorkThreads
from ..tracing import Outcome
from ..traffic import TopicTraffic

logger = logging.getLogger(__name__)

WINDOW_BYTES = 8 * 1024 * 1024  #: Maximum bytes of unacknowledged records of one partition.
#: First and longest pause in milliseconds between two attempts of a replica to join.
_RETRY_FIRST_MS, _RETRY_MOST_MS = 10.0, 2_000.0


class Streams(Protocol):
    """What a replica asks of the streams to leaders (``FollowerStreams``)."""

    def join(self, replica: FollowerReplica) -> None:
        """Put the replica on its leader's stream of the kind ``replica.kind``."""

    def leave(self, replica: FollowerReplica, *, cannot_append: bool = False) -> None:
        """Take the replica off its stream. ``cannot_append``: because its log takes no appends."""

    def ack_due(self, replica: FollowerReplica) -> None:
        """The replica has progress, which the next message acknowledges."""

    def wake(self, replica: FollowerReplica) -> None:
        """The replica can join now."""

    def replicating(self, replica: FollowerReplica, push: FollowPush) -> Callable[[Outcome], None] | None:
        """Begin the spans of a push with traced batches; returns the function that ends them, if traces are
        exported."""

    def refused(self, replica: FollowerReplica, error: HeadraceError) -> None:
        """The replica refused a push as faulty."""

    def leader_lacks(self, replica: FollowerReplica, error: HeadraceError) -> None:
        """The replica's leader lacks committed records."""

    def truncated(self, replica: FollowerReplica, from_offset: int) -> None:
        """The replica truncated its log, which ended at ``from_offset``."""


class FollowerReplica:
    """A followed partition under one leader epoch; the next epoch creates another FollowerReplica with the same log."""

    __slots__ = (
        "_backoff",
        "_cut",
        "_held",
        "_is_deleting",
        "_is_failing",
        "_is_probing",
        "_on_damage",
        "_reason",
        "_streams",
        "_threads",
        "_timer",
        "_unapplied",
        "_under_way",
        "_watchers",
        "_writer",
        "follower",
        "kind",
        "leader_epoch",
        "leader_id",
        "log",
        "next_ack",
        "number",
        "partition",
        "topic_id",
        "traffic",
    )

    def __init__(
        self,
        log: PartitionLog,
        follower: PartitionFollower,
        writer: DirectoryWriter,
        threads: WorkThreads,
        on_damage: OnDamage,
        traffic: TopicTraffic,
    ) -> None:
        self.traffic = traffic
        self.partition: TopicPartition = follower.partition
        self.log = log
        self.follower = follower
        self.leader_id, self.leader_epoch = follower.leader_id, follower.leader_epoch
        self.topic_id, self.number = follower.topic_id, follower.partition.partition
        self.next_ack: Callable[[], FollowAck | None] = follower.next_ack
        self.kind = LIVE  #: The kind of stream on which it follows.
        self._writer = writer
        self._threads = threads
        self._on_damage = on_damage
        self._streams: Streams | None = None
        #: The reason why this replica no longer follows its leader; None while it follows.
        self._reason: HeadraceError | None = None
        self._under_way = 0  #: Number of the replica's appends that the directory writer has not answered.
        #: Whether the directory writer refused an append of this replica; the writer then also refuses the next
        #: appends.
        self._is_failing = False
        #: Whether the replica's last join asked the leader for at most one unacknowledged byte, because the disk was
        #: short of space. The next join asks for the normal number of bytes again.
        self._is_probing = False
        #: The error of a received message, after which received records may be missing from the log; None without such
        #: an error.
        self._unapplied: HeadraceError | None = None
        #: The change of the log (truncation or restart) that must precede the replica's next join.
        self._cut: Truncate | Restart | None = None
        self._is_deleting = False
        #: Appends that wait while the log changes directories; None while appends are not held.
        self._held: list[Append] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backoff = Backoff(first_ms=_RETRY_FIRST_MS, most_ms=_RETRY_MOST_MS)
        self._watchers: dict[PartitionWatcher, None] = {}

    @property
    def high_watermark(self) -> int:
        """The leader's high watermark, as last received, but at most the end of this log."""
        return self.follower.high_watermark

    def begin(self, streams: Streams) -> None:
        """Start to follow the leader over ``streams``."""
        self._streams = streams
        streams.join(self)

    @property
    def can_join(self) -> bool:
        return not self._under_way and self._held is None and self.follower.can_join

    def join(self, handle: int) -> FollowJoin:
        space = self._writer.space
        self._is_probing = space is not None and space.is_short
        return self.follower.join(handle, 1 if self._is_probing else WINDOW_BYTES)

    def joined(self, answer: FollowJoined) -> None:
        """Apply the leader's answer to this replica's join."""
        outcome = self.follower.joined(answer, self._epoch_end)
        if isinstance(outcome, LogsMatch):
            self._follow_log_start()
        elif isinstance(outcome, Truncate | Restart):
            self._cut = outcome
            self._cut_now()
        elif isinstance(outcome, LeaderLacks):
            if self._streams is not None:
                self._streams.leader_lacks(self, outcome.error)
            self._join_later()
        else:
            self._put_out(outcome)

    def ended(self, message: FollowEnded) -> None:
        """Called when the leader has ended this replica's join."""
        self._put_out(self.follower.ended(message))

    def lost(self) -> None:
        """Called when the stream broke: join again when all records received from the stream are in the log."""
        self.follower.disconnected()

    def stumbled(self, error: Exception) -> None:
        """Called when a message could not be processed because of a bug on this broker or on the leader. Report the
        error as a refused push, and join this partition again, after increasing pauses. A message that failed for one
        partition does not affect the other partitions on the stream."""
        if self._reason is None:
            wrapped = UnknownServerError(
                f"{self.partition}: cannot apply the message of leader {self.leader_id}: {type(error).__name__}: "
                f"{error}"
            )
            self._unapplied = wrapped
            self._refuse(wrapped)
            self._forget_unwritten()

    def _forget_unwritten(self) -> None:
        """After a message that could not be applied, forget received records that never reached the writer, so that the
        next join asks for them again."""
        if self._unapplied is None or self._under_way or self._held:
            return
        error, self._unapplied = self._unapplied, None
        if self.follower.taken_end != self.follower.log_end:
            self.follower.append_failed(error)
            self._join_later()

    def updated(self, update: FollowOffsetsUpdate) -> None:
        """Apply new offsets that the leader sent."""
        before = self.follower.high_watermark
        self.follower.updated(update)
        self._follow_log_start()
        if self._watchers:
            self._notify_watchers(before)

    def _put_out(self, outcome: OtherStream | Wait | Stale) -> None:
        if isinstance(outcome, OtherStream):
            self.follower.retry()
            self.kind = LIVE if self.kind == CATCH_UP else CATCH_UP
            self._join()
        elif isinstance(outcome, Wait):
            logger.debug("%s: broker %d: %s", self.partition, self.leader_id, outcome.error)
            self._join_later()

    def _join(self) -> None:
        if self._reason is None and self._streams is not None:
            self._streams.join(self)

    def _join_later(self) -> None:
        if self._reason is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._backoff.next_s(), self._again)

    def _again(self) -> None:
        self._timer = None
        if self._reason is not None:
            return
        if self._cut is not None:
            self._cut_now()
            return
        self.follower.retry()
        self._join()

    def _leave(self, *, cannot_append: bool = False) -> None:
        if self._streams is not None:
            self._streams.leave(self, cannot_append=cannot_append)

    def _epoch_end(self, epoch: int) -> tuple[int, int]:
        end = self.log.epoch_end_offset(epoch)
        return end.epoch, end.end_offset

    def pushed(self, push: FollowPush, records: bytes) -> None:
        """Check the records of a push and pass them to the log."""
        follower = self.follower
        if push.handle != follower.handle or self._reason is not None:
            return
        space = self._writer.space
        if space is not None and space.is_short:
            self._leave(cannot_append=True)
            follower.disconnected()
            self._join_later()
            return
        if self._is_probing:
            self._leave()
            follower.disconnected()
            self._join()
            return
        before, follows = follower.high_watermark, follower.taken_end
        try:
            headers = check_replicated(
                records,
                log_end_offset=follows,
                leader_epoch=self.leader_epoch,
                latest_epoch=follower.taken_epoch,
                is_empty=follower.taken_epoch < 0,
            )
        # The push was damaged on its way, or in the leader's log, which the leader will detect.
        except HeadraceError as error:
            self._refuse(error)
            return
        last = headers[-1]
        if not follower.pushed(push, last.next_offset, last.leader_epoch):
            return
        append = Append(
            data=records,
            leader_epoch=self.leader_epoch,
            headers=headers,
            replicated=True,
            follows=follows,
            done=self._traced(push) if push.traces else self._appended,
        )
        if self._held is None:
            self._append(append)
        else:
            self._held.append(append)
        if self._watchers:
            self._notify_watchers(before)

    def _traced(self, push: FollowPush) -> Callable[[Outcome], None]:
        """The callback for the append of ``push``; if the push has traced batches, the callback also ends their
        spans."""
        end = None if self._streams is None else self._streams.replicating(self, push)
        if end is None:
            return self._appended

        def appended(outcome: Outcome) -> None:
            try:
                self._appended(outcome)
            finally:  # a fault of a span must not make the append fail
                end(outcome)

        return appended

    def _refuse(self, error: HeadraceError) -> None:
        """Refuse a push, so that the leader sends the push's records again; the records of earlier pushes still reach
        the log."""
        if self._streams is not None:
            self._streams.refused(self, error)
        self._leave()
        self.follower.disconnected()
        self._join_later()

    def _append(self, append: Append) -> None:
        self._under_way += 1
        try:
            self._writer.submit(self.log, append)
        except HeadraceError as error:  # the directory has failed, or is being closed
            self._appended(error)
        except BaseException:
            self._under_way -= 1
            raise

    def _appended(self, outcome: AppendInfo | HeadraceError) -> None:
        self._under_way -= 1
        if isinstance(outcome, HeadraceError) and not self._is_failing:
            self._is_failing = True
            self._append_failed(outcome)
        if self._under_way:
            return
        self._is_failing = False
        if self._reason is None and self._unapplied is not None:
            self._forget_unwritten()
        # (A replica that follows only acknowledges: ``log_advanced`` has announced it.)
        if self._streams is not None and self._reason is None and self.follower.handle < 0:
            self._streams.wake(self)

    def _append_failed(self, error: HeadraceError) -> None:
        self.follower.append_failed(error)
        self._leave(cannot_append=isinstance(error, DiskFullError | StorageError))
        if self._reason is not None:
            return
        if isinstance(error, CorruptLogError):
            self._on_damage(self.log, error)
        elif not isinstance(error, StorageError | ServerShuttingDownError):  # (a full disk raises no StorageError)
            logger.debug("%s: %s", self.partition, error)
            self._join_later()

    def log_advanced(self) -> None:
        """Called when the directory writer has changed this log. The writer calls ``log_advanced`` before the callbacks
        of the log's appends."""
        log, follower = self.log, self.follower
        if self._reason is not None or self._cut is not None or not log.segments:
            return
        durable_end = log.durable_end  # read the flushed end first: a turn may be running on the writer's thread
        before, log_end = follower.high_watermark, log.log_end_offset
        if log_end > follower.log_end:
            self._backoff.reset()
        follower.advanced(log_end, durable_end, log.epochs.latest_epoch)
        if self._streams is not None:
            self._streams.ack_due(self)
        log.producers.committed_end = follower.high_watermark
        if follower.leader_log_start > follower.log_start:
            self._follow_log_start()
        if self._watchers:
            self._notify_watchers(before)

    def _follow_log_start(self) -> None:
        """Advance the log start to the leader's log start, because the leader decides about retention and
        DeleteRecords."""
        wanted = self.follower.wanted_log_start
        if self._is_deleting or self._held is not None or wanted <= self.log.log_start_offset:
            return
        directory, log = self._writer.directory, self.log
        try:
            deleting = self._writer.run(functools.partial(directory.delete_records, log, wanted), log=log)
        except HeadraceError:
            return
        self._is_deleting = True
        deleting.add_done_callback(self._deleted)

    def _deleted(self, deleting: asyncio.Future[int]) -> None:
        self._is_deleting = False
        if deleting.cancelled() or (error := deleting.exception()) is not None:
            if not deleting.cancelled():
                logger.debug("%s: the log start cannot be advanced yet: %s", self.partition, error)
            return
        if self._reason is None and self._cut is None:
            self.follower.log_start_moved(self.log.log_start_offset)
            if self._streams is not None:
                self._streams.ack_due(self)
            for watcher in self._watchers:
                watcher.partition_changed(self.partition)

    def _cut_now(self) -> None:
        """Truncate the log where the leader's epoch history requires it, flush the change, then join again."""
        cut, log, directory = self._cut, self.log, self._writer.directory
        assert cut is not None
        if self._held is not None:
            return  # ``release`` does it
        if isinstance(cut, Truncate):
            action = functools.partial(directory.truncate, log, cut.offset, cut.last_epoch)
        else:
            action = functools.partial(directory.restart, log, cut.at_offset, cut.producers)
        try:
            cutting = self._writer.run(action, log=log)
        except HeadraceError:  # the directory has failed, or is being closed
            return
        cutting.add_done_callback(functools.partial(self._was_cut, log, log.log_end_offset))

    def _was_cut(self, log: PartitionLog, from_offset: int, cutting: asyncio.Future[None]) -> None:
        if cutting.cancelled():
            return
        error = cutting.exception()  # read the error also when it is not used: asyncio logs each error that is not read
        if self._reason is not None:
            return
        if error is None:
            self._cut = None
            before = self.follower.high_watermark
            self.follower.truncated(log.log_end_offset, log.epochs.latest_epoch, log_start=log.log_start_offset)
            if self._streams is not None:
                self._streams.truncated(self, from_offset)
            if self.follower.high_watermark != before:
                for watcher in self._watchers:
                    watcher.partition_changed(self.partition)
            self._join()
        elif isinstance(error, CorruptLogError):
            self._on_damage(log, error)
        # An error other than StorageError and ServerShuttingDownError means a full disk, or that the log has just
        # moved.
        elif not isinstance(error, StorageError | ServerShuttingDownError):
            logger.debug("%s: the log could not be truncated: %s", self.partition, error)
            self._join_later()

    def end(self, reason: HeadraceError) -> None:
        """Stop following, because of ``reason``. Records that were passed to the writer still reach the log."""
        if self._reason is not None:
            return
        self._reason = reason
        self._streams = None
        self._held = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for watcher in self._watchers:
            watcher.partition_changed(self.partition)

    def hold(self) -> None:
        """Hold appends until ``release``, because the log is about to change directories."""
        if self._held is None:
            self._held = []

    def release(self, log: PartitionLog, writer: DirectoryWriter) -> None:
        """Resume appends through ``writer`` to ``log``: the same log, or its copy in another directory."""
        self._writer, self.log = writer, log
        held, self._held = self._held or [], None
        if self._reason is not None:
            return
        for append in held:
            self._append(append)
        if self._cut is not None:
            self._cut_now()
        elif self._streams is not None:
            self._follow_log_start()
            self._streams.wake(self)

    @property
    def reads(self) -> FollowerReplica:
        return self

    @property
    def last_stable_offset(self) -> int:
        """End of the records for read_committed consumers."""
        return self.log.last_stable_offset(self.follower.high_watermark)

    @property
    def log_start(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end(self) -> int:
        return self.follower.log_end

    def check_serving(self) -> None:
        """Raise the reason why this replica no longer follows, if there is one."""
        if self._reason is not None:
            raise self._reason.copy()

    def read(self, offset: int, max_bytes: int, up_to: int, *, committed: bool = False) -> ReadResult | None:
        """See ``LeaderReplica.read``. Raises OffsetNotAvailableError for an offset beyond the high watermark."""
        if offset > self.high_watermark:
            raise OffsetNotAvailableError(
                f"{self.partition}: offset {offset} is not known to be committed, only offsets below "
                f"{self.high_watermark} are; retry"
            )
        try:
            return read_for(self.log, offset, max_bytes, up_to, committed=committed, wait=False)
        except OSError as error:
            raise self._writer.read_failed(self.partition, error) from error

    @property
    def threads(self) -> WorkThreads:
        return self._threads

    def read_cold(self, offset: int, max_bytes: int, up_to: int, *, committed: bool) -> ReadResult:
        """Read like ``read``, and wait for the disk: call this on a thread."""
        log = self.log
        try:
            found = read_for(log, offset, max_bytes, up_to, committed=committed, wait=True)
        except CorruptLogError as error:
            self._threads.call_soon(functools.partial(self._on_damage, log, error))
            raise
        except OSError as error:
            raise self._writer.read_failed(self.partition, error) from error
        assert found is not None, "a read that may wait for the disk always finds its bytes"
        return found

    def check_not_truncated(self, offset: int, last_fetched_epoch: int) -> None:
        """KIP-320. Raises OffsetNotAvailableError for an offset beyond the log's end, because the leader may have
        records at that offset."""
        if offset > self.log_end:
            raise OffsetNotAvailableError(
                f"{self.partition}: offset {offset} has not reached this follower yet, whose log ends at "
                f"{self.log_end}; retry, or read from the leader"
            )
        check_not_truncated(self.log, offset, last_fetched_epoch)

    def subscribe(self, watcher: PartitionWatcher) -> None:
        self._watchers[watcher] = None

    def unsubscribe(self, watcher: PartitionWatcher) -> None:
        self._watchers.pop(watcher, None)

    def _notify_watchers(self, before: int) -> None:
        if self.follower.high_watermark > before:
            # The number of new bytes is unknown when the high watermark advances, so each watcher of the partition is
            # notified with one byte. Because a watcher is notified with one byte, a fetch that waits for several bytes
            # is answered when its timeout ends.
            for watcher in self._watchers:
                watcher.partition_advanced(self.partition, 1)
