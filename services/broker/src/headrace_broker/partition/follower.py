"""A partition's follower: it joins its leader, truncates records that the leader never had, and accepts pushed records.

::

    state         meaning                                     next
    JOINING       no valid answer of a leader yet             join -> joined
    FOLLOWING     the logs match, the leader pushes           pushed, updated; disconnected -> JOINING
    TRUNCATING    the log is truncated, or started again      truncated -> JOINING
    OUT           needs another stream or newer metadata      retry -> JOINING

One PartitionFollower serves one leader epoch. For another leader or epoch the caller creates a new PartitionFollower,
from the log's current state. Messages to an old PartitionFollower do not reach the new object, because a stream never
uses the number of a join (the handle) again.

The rules of a follower, each with the failure that it prevents:

    truncate by leader epochs, never by the high watermark                     KIP-101, KIP-279
    join only when no append is in progress: the join must describe the log    (our own: appends run beside the stream)
    take only what starts at the log's end, in epochs that never fall          KIP-320: fencing, diverging tails
    and are not above the leader's
    the high watermark is the leader's, at most the log's end; it never        KIP-101
    goes back, unless the log is truncated below it
    truncate below the high watermark only if an unclean election was held     a leader with an older copy of its
    since; otherwise the leader lacks committed records: refuse, report it     directory
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from headrace_core.errors import HeadraceError, OffsetOutOfRangeError, UnknownServerError
from headrace_core.item_errors import error_of
from headrace_core.types import TopicPartition
from headrace_protos.v1.replication_pb2 import (
    FollowAck,
    FollowEnded,
    FollowJoin,
    FollowJoined,
    FollowOffsetsUpdate,
    FollowPush,
)

from .matching import EndOf, cut_for


class FollowerState(enum.Enum):
    """See the module."""

    JOINING = "joining"
    FOLLOWING = "following"
    TRUNCATING = "truncating"
    OUT = "out"


class LogsMatch(NamedTuple):
    """Outcome of a join: the follower's log matches the leader's log, so the leader will push records."""


class Truncate(NamedTuple):
    """Truncate the log at ``offset``, with the whole of a batch that spans the offset; then call ``truncated``.
    ``last_epoch`` is the leader epoch of the record before ``offset``, if both logs have this record or had it."""

    offset: int
    last_epoch: int


class Restart(NamedTuple):
    """Empty the log, so that its next record gets the offset ``at_offset``. Then call ``truncated``. ``producers``: a
    snapshot of the leader's producers at that offset, or empty from a leader of an older release."""

    at_offset: int
    producers: bytes = b""


class OtherStream(NamedTuple):
    """Call ``retry``, then join again on the leader's other stream: live or catch-up."""


class Wait(NamedTuple):
    """Wait for a change at the leader or in the metadata, then call ``retry``."""

    error: HeadraceError


class Stale(NamedTuple):
    """Outcome of an answer that belongs to an earlier join: ignore the answer."""


class LeaderLacks(NamedTuple):
    """The leader's log lacks records that were committed, and that this log has. Report it to the controllers, wait,
    then call ``retry``."""

    error: HeadraceError


JoinOutcome = LogsMatch | Truncate | Restart | LeaderLacks | OtherStream | Wait | Stale


class PartitionFollower:
    """The follower's state under one leader epoch. Not thread-safe; the caller carries out the follower's decisions."""

    __slots__ = (
        "_acked",
        "_leader_high_watermark",
        "clean_since",
        "compacts",
        "durable_end",
        "error",
        "handle",
        "high_watermark",
        "last_epoch",
        "leader_epoch",
        "leader_id",
        "leader_lacks",
        "leader_log_start",
        "log_end",
        "log_start",
        "partition",
        "state",
        "taken_end",
        "taken_epoch",
        "topic_id",
    )

    def __init__(
        self,
        partition: TopicPartition,
        *,
        topic_id: bytes,
        leader_id: int,
        leader_epoch: int,
        log_start: int,
        log_end: int,
        durable_end: int,
        last_epoch: int,
        high_watermark: int,
        clean_since: int | None = None,
        compacts: bool = False,
    ) -> None:
        """``clean_since``: see PartitionImage; None: unknown, so any truncation may be right. ``compacts``: the
        leader's log may lack the epochs of records that were compacted away."""
        assert 0 <= log_start <= log_end, f"{partition}: log start {log_start} beyond log end {log_end}"
        assert durable_end <= log_end, f"{partition}: durable end {durable_end} beyond log end {log_end}"
        self.partition = partition
        self.topic_id = topic_id
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.log_start = log_start
        self.log_end = log_end
        self.durable_end = durable_end
        self.last_epoch = last_epoch  #: Leader epoch of the log's last record; -1 if the log is empty.
        self.high_watermark = min(max(high_watermark, log_start), log_end)
        self.clean_since = clean_since
        self.compacts = compacts
        #: Set if the leader's last answer showed that it lacks committed records.
        self.leader_lacks: HeadraceError | None = None
        self.state = FollowerState.JOINING
        self.error: HeadraceError | None = None  #: The reason why the follower is in the state OUT.
        #: Number of the replica's present join on its stream (the handle); -1 if the replica has not joined.
        self.handle = -1
        self._leader_high_watermark = 0
        self.leader_log_start = 0
        #: End offset of the records that the follower handed to the log. The log may not have written all records that
        #: it received.
        self.taken_end = log_end
        self.taken_epoch = last_epoch  #: Leader epoch of the last received record; -1 if there is none.
        self._acked: tuple[int, int, int] | None = None  #: The fields of the last acknowledgement.

    # -- joining -----------------------------------------------------------------------------------------------------

    @property
    def can_join(self) -> bool:
        """Whether the follower may join: its state is JOINING, and no append is in progress."""
        return self.state is FollowerState.JOINING and self.handle < 0 and self.taken_end == self.log_end

    def join(self, handle: int, window_bytes: int) -> FollowJoin:
        """Start a join; returns the request for the leader."""
        assert self.can_join, f"{self.partition}: cannot join, {self.state.value}, {self.taken_end} of {self.log_end}"
        self.handle = handle
        self._acked = None
        return FollowJoin(
            handle=handle,
            topic_id=self.topic_id,
            partition=self.partition.partition,
            leader_epoch=self.leader_epoch,
            log_start=self.log_start,
            log_end=self.log_end,
            last_epoch=self.last_epoch,
            durable_end=self.durable_end,
            window_bytes=window_bytes,
        )

    def joined(self, answer: FollowJoined, end_of: EndOf) -> JoinOutcome:
        """Apply the leader's answer to the join. ``end_of(epoch)`` returns the largest epoch in this log that is not
        above ``epoch``, and the end of that epoch."""
        if answer.handle != self.handle or self.state is not FollowerState.JOINING:
            return Stale()
        refusal = error_of(answer.error)
        if refusal is not None:
            return self._out(refusal)
        if answer.other_lane:
            self._end(FollowerState.OUT)
            return OtherStream()
        self.leader_lacks = None
        if self._leader_lacks(answer, end_of):
            error = self.leader_lacks = OffsetOutOfRangeError(
                f"{self.partition}: leader {self.leader_id} has no records up to {self.high_watermark}, the high "
                f"watermark here, although no unclean election was held since: its log may be an older copy; nothing "
                "was truncated"
            )
            self._out(error)
            return LeaderLacks(error)
        if answer.out_of_range:
            self._end(FollowerState.TRUNCATING)
            return Restart(answer.log_start, answer.producers)
        if answer.HasField("diverging"):
            cut = cut_for(answer.diverging, end_of, self.log_end)
            if cut >= self.log_end and self.last_epoch > answer.diverging.epoch:
                # This replica once led in epochs without a record, because the first append of each epoch was refused
                # or repeated a batch. All records match the leader's log, so the follower removes only the epochs
                # without records, as in Kafka's UnifiedLog.truncateTo. A truncation that removes no record changes no
                # producer state.
                self._end(FollowerState.TRUNCATING)
                return Truncate(self.log_end, answer.diverging.epoch)
            if cut >= self.log_end:  # the leader says that the logs diverge, but not where: truncating cannot help
                return self._out(
                    UnknownServerError(
                        f"{self.partition}: leader {self.leader_id} answered that leader epoch "
                        f"{answer.diverging.epoch} ends at {answer.diverging.end_offset}, which contradicts this "
                        f"follower's log (log end offset {self.log_end}, last leader epoch {self.last_epoch}); "
                        "nothing was truncated"
                    )
                )
            self._end(FollowerState.TRUNCATING)
            return Truncate(max(cut, 0), answer.diverging.epoch)
        self.state = FollowerState.FOLLOWING
        self._learn_offsets(answer.high_watermark, answer.log_start)
        return LogsMatch()

    def _leader_lacks(self, answer: FollowJoined, end_of: EndOf) -> bool:
        """Whether following the answer would remove a committed record that every leader must have.

        A leader whose epoch ends, or whose log ends, below the high watermark lacks it for certain. In a compacted log
        nothing else is certain: a leader that copied it after the compaction does not know every epoch.
        """
        high_watermark = self.high_watermark
        if self.clean_since is None or not self._has_records_since(self.clean_since, end_of):
            return False
        if answer.out_of_range:
            return answer.log_start < high_watermark and (answer.log_end < high_watermark or not self.compacts)
        if not answer.HasField("diverging"):
            return False
        cut = cut_for(answer.diverging, end_of, self.log_end)
        return cut < high_watermark and (answer.diverging.end_offset < high_watermark or not self.compacts)

    def _has_records_since(self, epoch: int, end_of: EndOf) -> bool:
        """Whether the last record below the high watermark has ``epoch`` or a later one. If that record was deleted,
        the next one tells: its leader had every record before it."""
        if epoch == 0:
            return self.high_watermark > 0
        if epoch > self.last_epoch:
            return False
        start = end_of(epoch - 1)[1]
        return self.high_watermark > start or start <= self.log_start < self.log_end

    def truncated(self, log_end: int, last_epoch: int, *, log_start: int | None = None) -> None:
        """Note that the log was truncated, or emptied and restarted, and that this is durable. The log now ends at
        ``log_end``, and its last record has ``last_epoch``."""
        assert self.state is FollowerState.TRUNCATING, f"{self.partition}: cut while {self.state.value}"
        self.log_end = self.durable_end = self.taken_end = log_end
        self.last_epoch = self.taken_epoch = last_epoch
        self.log_start = min(self.log_start, log_end) if log_start is None else log_start
        self.high_watermark = min(max(self.high_watermark, self.log_start), log_end)
        self.state = FollowerState.JOINING

    def ended(self, message: FollowEnded) -> OtherStream | Wait | Stale:
        """Called when the leader has ended the present join of this follower."""
        if message.handle != self.handle:
            return Stale()
        reason = error_of(message.error)
        if reason is not None:
            return self._out(reason)
        self._end(FollowerState.OUT)
        return OtherStream()

    def disconnected(self) -> None:
        """Called when the stream to the leader broke, or when the follower has ended its present join. The follower
        joins again when the log has all received records."""
        if self.state is not FollowerState.TRUNCATING:
            self._end(FollowerState.JOINING)

    def retry(self) -> None:
        """Try to join again, because the reason for the state OUT may be over."""
        if self.state is FollowerState.OUT:
            self._end(FollowerState.JOINING)

    def _out(self, error: HeadraceError) -> Wait:
        self._end(FollowerState.OUT)
        self.error = error
        return Wait(error)

    def _end(self, state: FollowerState) -> None:
        self.handle = -1
        self.error = None
        self.state = state

    # -- following ---------------------------------------------------------------------------------------------------

    def pushed(self, push: FollowPush, end: int, epoch: int) -> bool:
        """Take pushed records, which follow the records taken before (``check_replicated``) and end at ``end`` with a
        record of ``epoch``. Returns False, without effect, for a push that does not belong to the present join."""
        if push.handle != self.handle or self.state is not FollowerState.FOLLOWING:
            return False
        self.taken_end, self.taken_epoch = end, epoch
        self._learn_offsets(push.high_watermark, push.log_start)
        return True

    def advanced(self, log_end: int, durable_end: int, last_epoch: int) -> None:
        """Record that the follower's log has the received records up to ``log_end``, and has met its flush policy up to
        ``durable_end``."""
        assert self.log_end <= log_end <= self.taken_end, f"{self.partition}: {log_end}, {self.taken_end} were taken"
        assert durable_end <= log_end, f"{self.partition}: durable end {durable_end} beyond the end {log_end}"
        self.log_end, self.last_epoch = log_end, last_epoch
        self.durable_end = max(self.durable_end, durable_end)
        self.high_watermark = max(self.high_watermark, min(self._leader_high_watermark, log_end))

    def append_failed(self, error: HeadraceError) -> None:
        """Called when received records could not be appended, for example because of a full disk."""
        self.taken_end, self.taken_epoch = self.log_end, self.last_epoch
        if self.state is not FollowerState.TRUNCATING:
            self._out(error)

    def updated(self, updated: FollowOffsetsUpdate) -> None:
        """Apply new offsets that the leader sent."""
        if updated.handle == self.handle and self.state is FollowerState.FOLLOWING:
            self._learn_offsets(updated.high_watermark, updated.log_start)

    def log_start_moved(self, log_start: int) -> None:
        """Record that the records below ``log_start`` were deleted from this log."""
        self.log_start = max(self.log_start, log_start)

    @property
    def wanted_log_start(self) -> int:
        """The leader's log start, limited to this replica's high watermark: the follower deletes the records below this
        offset."""
        return max(self.log_start, min(self.leader_log_start, self.high_watermark))

    def next_ack(self) -> FollowAck | None:
        """Return the next acknowledgement and mark it as sent; None if there is no progress to report, or no leader."""
        if self.state is not FollowerState.FOLLOWING:
            return None
        progress = self.durable_end, self.log_end, self.log_start
        if progress == self._acked:
            return None
        self._acked = progress
        return FollowAck(
            handle=self.handle, durable_end=self.durable_end, log_end=self.log_end, log_start=self.log_start
        )

    def _learn_offsets(self, high_watermark: int, log_start: int) -> None:
        self._leader_high_watermark = max(self._leader_high_watermark, high_watermark)
        self.leader_log_start = max(self.leader_log_start, log_start)
        self.high_watermark = max(self.high_watermark, min(self._leader_high_watermark, self.log_end))
