"""A partition's in-sync set as its leader sees it: members, progress of the followers, and AlterPartition proposals.

The leader keeps three sets of replicas, as in KIP-497::

    committed     decided by the controllers, as far as this leader knows
    proposed      requested by an AlterPartition without a definite answer; None: no proposal
    maximal       union of both: all that the controllers MAY hold to be in sync; the high watermark waits for them

For the high watermark, the leader drops a removed replica once the removal is confirmed, and counts an added replica
from the proposal on. A proposal ends with the controller's answer or with metadata of a newer partition epoch. A
refusal ends a proposal only while it is *certain* that no other attempt at the proposal is in progress. Until a
proposal ends, the leader repeats this proposal and makes no other proposal.

An attempt without a definite answer makes the proposal *uncertain*: its request may be delayed, and granted after a
later attempt was refused. Only a newer partition epoch ends an uncertain proposal, because the controllers grant no
request with an outdated epoch. Refusals of AlterPartition::

    refusal                     of this attempt      of earlier attempts at this partition epoch
    INELIGIBLE_REPLICA          not done             may still be granted, once the member works; when the leader said
                                                     that it is uncertain, the controllers end the partition epoch
    OPERATION_NOT_ATTEMPTED     not done             may have been, or still be granted
    NOT_CONTROLLER,             not done             may have been, or still be granted
    SERVER_SHUTTING_DOWN
    INVALID_UPDATE_VERSION      not done, never      over: the metadata is newer; not repeated
    FENCED_LEADER_EPOCH,        not done, never      over, with this leader's epoch; not repeated
    NEW_LEADER_ELECTED
    UNKNOWN_TOPIC_ID,           not done, never      over, with the partition; not repeated
    UNKNOWN_TOPIC_OR_PARTITION
    INVALID_REQUEST             not done, never      unknown: the union counts until the metadata says more
    STALE_BROKER_EPOCH,         unknown here: the broker registers again, and its old epoch in the proposal is refused
    BROKER_ID_NOT_REGISTERED    as INELIGIBLE_REPLICA, which ends the partition epoch
    no answer, a timeout,       unknown              unknown: uncertain, repeated
    any other error

INELIGIBLE_REPLICA, OPERATION_NOT_ATTEMPTED, NOT_CONTROLLER and SERVER_SHUTTING_DOWN end a certain proposal, and leave
an uncertain proposal open.

    follower          joins the ISR when its durable end has reached the high watermark and the end of the log at the
                      beginning of this leader's epoch, with a broker epoch that the controllers know (KIP-841, KIP-903)
                      leaves it when it is fenced, or has not caught up for replica.lag.time.max.ms; it has caught up
                      with an acknowledgement that reaches the leader's log end, or the end that the leader's log had
                      at the follower's acknowledgement before;
                      at once when its log takes no appends, until it has appended something again;
                      when it is behind, its stream has broken, and it was not back within REJOIN_MS;
                      and when it is on no stream for another reason for JOIN_MS, such as never in this epoch

A follower's lag is measured by its durable end, because bytes in its page cache do not count as progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace_core.types import TopicPartition

#: Returns the broker epoch of a registered, unfenced broker, and None for a fenced or unregistered broker.
BrokerEpochOf = Callable[[int], int | None]

#: Milliseconds between a refused AlterPartition and the next attempt, unless newer metadata arrives earlier.
RETRY_BACKOFF_MS = 100

#: Milliseconds within which a follower must reconnect after its stream broke, to stay in the ISR. A slow follower may
#: lag for replica.lag.time.max.ms, but a follower without a stream makes no progress at all. A broken replication
#: stream is restored within milliseconds. A restarting broker is fenced, which also removes its replicas from the ISR.
REJOIN_MS = 2_000

#: Milliseconds after which a follower without a stream leaves the ISR, if its stream did not break. A follower without
#: a stream has not joined in this leader epoch, or has left its stream. Each failed attempt of a follower to join
#: restarts the JOIN_MS period, because the follower may have to truncate its log first. A
#: starting broker needs no longer period: it is unfenced only when it can follow, and only then its replicas join the
#: ISR.
JOIN_MS = 5_000

#: Value of a time that is not recorded yet.
_NO_TIME = -1
#: Value of a follower's caught-up time that means "until now": the follower had the whole log before the last append,
#: or at the beginning of the epoch. The next call about the follower replaces _CAUGHT_UP_SO_FAR by the time of the
#: call.
_CAUGHT_UP_SO_FAR = -1
#: Value of a follower's caught-up time if the follower has not caught up in this epoch.
_NEVER = -(1 << 62)

#: Error codes after which the controller will never apply the AlterPartition attempt. An error code that refuses the
#: latest AlterPartition attempt does not say whether an earlier attempt was applied.
_NOT_DONE = frozenset({"INELIGIBLE_REPLICA", "NOT_CONTROLLER", "OPERATION_NOT_ATTEMPTED", "SERVER_SHUTTING_DOWN"})


class IsrChange(NamedTuple):
    """An AlterPartition proposal: the broker ids of all members, including the leader, each with the broker epoch in
    which it is in sync."""

    isr: tuple[tuple[int, int], ...]
    partition_epoch: int
    recovering: bool = False

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(broker_id for broker_id, _ in self.isr)


class FollowerProgress:
    """One follower's progress, as its acknowledgements report it. A log position of -1 is not known yet."""

    __slots__ = (
        "absent_ms",
        "ack_leader_end",
        "ack_ms",
        "broken_ms",
        "broker_epoch",
        "broker_id",
        "cannot_append",
        "caught_up_ms",
        "durable_end",
        "is_eligible",
        "joined",
        "log_end",
        "log_start",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = -1  #: Broker epoch of the follower's last join.
        self.joined = False  #: Whether the leader has accepted the follower's join, and the join has not ended.
        self.durable_end = -1  #: End of the records that are durable on the follower.
        self.log_end = -1  #: End of the follower's log.
        self.log_start = -1  #: Start of the follower's log.
        #: Kafka's lastCaughtUpTimeMs: the last time at which the follower had the whole log.
        self.caught_up_ms = _NEVER
        self.ack_ms = _NO_TIME  #: Time of the follower's last acknowledgement.
        self.ack_leader_end = -1  #: The leader's log end at the time of the follower's last acknowledgement.
        #: Whether the follower is outside the ISR and could have joined the ISR at the last check. The high watermark
        #: waits for an eligible follower that keeps up; otherwise the follower could never reach the high watermark
        #: under load.
        self.is_eligible = False
        #: Whether the follower reported that its log takes no appends, and has appended no records after the report.
        self.cannot_append = False
        #: Time at which the follower's stream broke; None if the follower has a stream, or left it with a message.
        self.broken_ms: int | None = None
        #: Time at which the follower lost its stream, or last failed to join; only used while the follower has not
        #: joined.
        self.absent_ms = _NO_TIME

    def acked(self, durable_end: int, log_end: int, log_start: int, leader_end: int, now_ms: int) -> None:
        if log_end > self.log_end:
            self.cannot_append = False
        self.durable_end, self.log_end, self.log_start = durable_end, log_end, log_start
        if durable_end >= leader_end or self.caught_up_ms == _CAUGHT_UP_SO_FAR:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)
        elif durable_end >= self.ack_leader_end >= 0:
            self.caught_up_ms = max(self.caught_up_ms, self.ack_ms)
        self.ack_ms, self.ack_leader_end = now_ms, leader_end

    def left(self, *, cannot_append: bool, is_broken: bool, now_ms: int) -> None:
        """Record that the follower's join has ended, by a leave or because its stream ended."""
        self.joined = self.is_eligible = False
        self.absent_ms = now_ms
        self.broken_ms = now_ms if is_broken else None
        self.cannot_append = self.cannot_append or cannot_append

    def seen(self, leader_end: int, now_ms: int) -> None:
        """Record that at ``now_ms`` the leader has seen the follower, which may not have acknowledged any records
        yet."""
        if self.absent_ms == _NO_TIME:
            self.absent_ms = now_ms
        if self.durable_end >= leader_end or self.caught_up_ms == _CAUGHT_UP_SO_FAR:
            self.caught_up_ms = max(self.caught_up_ms, now_ms)

    def keeps_up(self, leader_end: int, now_ms: int, lag_ms_max: int) -> bool:
        if self.durable_end >= leader_end:
            return True
        return not self.cannot_append and now_ms <= self.late_after_ms(lag_ms_max)

    def late_after_ms(self, lag_ms_max: int) -> int:
        """Time until which the follower may be behind the leader and stay in sync."""
        late_ms = self.caught_up_ms + lag_ms_max
        if self.joined:
            return late_ms
        return min(late_ms, self.absent_ms + JOIN_MS if self.broken_ms is None else self.broken_ms + REJOIN_MS)


class InSyncSet:
    """The members of the in-sync set, its possible members, and the AlterPartition proposal that is not decided yet."""

    __slots__ = (
        "_next_ms",
        "_repeat",
        "asked",
        "committed",
        "epoch_start",
        "followers",
        "is_uncertain",
        "lag_time_max_ms",
        "leader_id",
        "maximal",
        "partition",
        "partition_epoch",
        "recovering",
        "replicas",
    )

    def __init__(
        self,
        partition: TopicPartition,
        leader_id: int,
        *,
        replicas: Iterable[int],
        isr: Iterable[int],
        partition_epoch: int,
        recovering: bool,
        epoch_start: int,
        lag_time_max_ms: int,
    ) -> None:
        self.partition = partition
        self.leader_id = leader_id
        self.replicas = tuple(replicas)
        self.committed = tuple(isr)
        self.partition_epoch = partition_epoch
        self.recovering = recovering
        self.epoch_start = epoch_start
        self.lag_time_max_ms = lag_time_max_ms
        self.maximal = frozenset(self.committed)
        self.followers: dict[int, FollowerProgress] = {}  #: All replicas except the leader, by broker id.
        self.asked: IsrChange | None = None
        #: Whether the controllers may have applied an earlier attempt to send the AlterPartition proposal, or may still
        #: apply it.
        self.is_uncertain = False
        self._repeat = False  #: Whether to send the AlterPartition proposal again.
        self._next_ms = _NO_TIME  #: No proposal before.
        self._know_replicas()
        # The lag time of each follower begins now, as if its last acknowledgement had just arrived.
        for follower in self.followers.values():
            if follower.broker_id in self.maximal:
                follower.caught_up_ms = _CAUGHT_UP_SO_FAR

    @property
    def is_pressed(self) -> bool:
        """Whether a member of the in-sync set has no stream, or its log takes no appends."""
        return any(
            (follower.cannot_append or not follower.joined) and follower.broker_id in self.committed
            for follower in self.followers.values()
        )

    def durable_on_all(self, durable_end: int) -> int:
        """The smallest durable end of the leader, the maximal ISR, and the eligible followers that keep up."""
        least = durable_end
        for follower in self.followers.values():
            if follower.durable_end >= least:
                continue
            # The high watermark waits for a follower that is about to join the ISR (Kafka's
            # shouldWaitForReplicaToJoinIsr), as judged by its last acknowledgement. The wait for a silent follower ends
            # with the next check of the in-sync set.
            if follower.broker_id in self.maximal or (follower.joined and follower.is_eligible):
                least = follower.durable_end
        return least

    def grew(self, old_end: int) -> bool:
        """Record that the leader's log grew, so that followers that had the whole log are now behind. Returns True if
        at least one follower had the whole log."""
        anybody = False
        for follower in self.followers.values():
            if follower.durable_end >= old_end and follower.caught_up_ms != _CAUGHT_UP_SO_FAR:
                follower.caught_up_ms = _CAUGHT_UP_SO_FAR
                anybody = True
        return anybody

    def _know_replicas(self) -> None:
        known = self.followers
        members = dict.fromkeys((*self.replicas, *sorted(self.maximal)))
        self.followers = {
            broker_id: known.get(broker_id) or FollowerProgress(broker_id)
            for broker_id in members
            if broker_id != self.leader_id
        }

    def _set_maximal(self) -> None:
        asked = self.asked
        self.maximal = frozenset(self.committed if asked is None else (*self.committed, *asked.members))
        for follower in self.followers.values():
            if follower.broker_id in self.maximal:
                follower.is_eligible = False

    def next_proposal(
        self, now_ms: int, broker_epoch_of: BrokerEpochOf, *, leader_end: int, high_watermark: int
    ) -> IsrChange | None:
        """The AlterPartition proposal to send now; None if the in-sync set need not change. The result is also None
        while the next attempt is too early, or while an earlier proposal is undecided."""
        for follower in self.followers.values():
            follower.seen(leader_end, now_ms)
        if now_ms < self._next_ms:
            return None
        if self.asked is not None:
            return self.asked if self._repeat else None
        leader_broker_epoch = broker_epoch_of(self.leader_id)
        if leader_broker_epoch is None:
            return None  # this broker is fenced: the controllers would refuse any proposal
        if self.recovering:  # the leader stays alone in the ISR until its recovery is recorded (KIP-704)
            return IsrChange(((self.leader_id, leader_broker_epoch),), self.partition_epoch)
        broker_epochs: dict[int, int] = {self.leader_id: leader_broker_epoch}
        for follower in self.followers.values():
            broker_epoch = self._in_sync_epoch(follower, now_ms, broker_epoch_of, leader_end, high_watermark)
            if broker_epoch is not None:
                broker_epochs[follower.broker_id] = broker_epoch
        if len(broker_epochs) == len(self.committed) and all(each in broker_epochs for each in self.committed):
            return None
        order = dict.fromkeys((*self.committed, *self.replicas))
        isr = tuple((broker_id, broker_epochs[broker_id]) for broker_id in order if broker_id in broker_epochs)
        return IsrChange(isr, self.partition_epoch)

    def _in_sync_epoch(
        self,
        follower: FollowerProgress,
        now_ms: int,
        broker_epoch_of: BrokerEpochOf,
        leader_end: int,
        high_watermark: int,
    ) -> int | None:
        """The broker epoch in which the follower is in sync; None if it is not in sync."""
        broker_epoch = broker_epoch_of(follower.broker_id)
        if follower.broker_id in self.committed:
            follower.is_eligible = False
            keeps_up = follower.keeps_up(leader_end, now_ms, self.lag_time_max_ms)
            return broker_epoch if keeps_up else None
        could_join = (
            follower.joined
            and not follower.cannot_append
            and follower.broker_id in self.replicas
            and broker_epoch is not None
            and broker_epoch == follower.broker_epoch
            and follower.durable_end >= self.epoch_start
        )
        follower.is_eligible = could_join and now_ms - follower.caught_up_ms <= self.lag_time_max_ms
        return broker_epoch if could_join and follower.durable_end >= high_watermark else None

    def proposed(self, change: IsrChange) -> None:
        """Called when ``change`` is about to be sent."""
        self.asked = change
        self._repeat = False
        self._set_maximal()

    def next_due_ms(self, now_ms: int, leader_end: int) -> int | None:
        """Time of the next call of ``next_proposal``; None if only an event makes a call necessary."""
        if self.asked is not None:
            return max(self._next_ms, now_ms) if self._repeat else None
        if self.recovering:
            return max(self._next_ms, now_ms)
        due: int | None = None
        for follower in self.followers.values():
            follower.seen(leader_end, now_ms)
            if follower.broker_id in self.committed:
                if follower.durable_end >= leader_end:
                    continue
                at = now_ms if follower.cannot_append else follower.late_after_ms(self.lag_time_max_ms) + 1
            elif follower.joined:
                # An eligible follower may join the ISR now. A follower that the controllers refused, or whose broker is
                # fenced, becomes eligible only through newer metadata.
                at = now_ms + self.lag_time_max_ms if not follower.is_eligible else now_ms + RETRY_BACKOFF_MS
            else:
                continue
            due = at if due is None else min(due, at)
        return None if due is None else max(due, self._next_ms, now_ms)

    def altered(self, isr: Iterable[int], partition_epoch: int, recovering: bool) -> bool:
        """Apply the controllers' answer to an AlterPartition proposal. Returns False if the answer is outdated, or
        answers a proposal other than the present proposal."""
        members = tuple(isr)
        if partition_epoch < self.partition_epoch:
            return False
        asked = self.asked
        if asked is not None and partition_epoch == self.partition_epoch:
            wanted = set(asked.members), asked.recovering
            if wanted != (set(members), recovering):
                return False  # the answer is late, and belongs to a former proposal; the present proposal is still open
        self._decided(members, partition_epoch, recovering)
        return True

    def refused(self, code: str, *, retriable: bool, now_ms: int) -> None:
        """Called when an attempt at the AlterPartition proposal has failed. ``retriable`` means that the outcome is
        unknown, unless the error code proves that the proposal was not applied."""
        if self.asked is None:
            return
        self._next_ms = now_ms + RETRY_BACKOFF_MS
        if code in _NOT_DONE:
            if self.is_uncertain:  # an earlier attempt at the change may be in progress
                self._repeat = True
            else:
                self.asked, self._repeat = None, False
                self._set_maximal()
        elif retriable:
            self._repeat = self.is_uncertain = True
        # A refusal of AlterPartition for any other reason means that the leader epoch or the partition epoch is
        # outdated: newer metadata will arrive.

    def metadata(self, isr: Iterable[int], partition_epoch: int, replicas: Iterable[int], recovering: bool) -> bool:
        """Apply the partition's state in the metadata log. Returns False if the state in the metadata is older than the
        leader's state."""
        if partition_epoch < self.partition_epoch:
            return False
        self.replicas = tuple(replicas)
        if partition_epoch > self.partition_epoch:
            self._decided(tuple(isr), partition_epoch, recovering)
        else:
            self._know_replicas()
        return True

    def _decided(self, isr: tuple[int, ...], partition_epoch: int, recovering: bool) -> None:
        self.committed, self.partition_epoch, self.recovering = isr, partition_epoch, recovering
        self.asked = None
        self.is_uncertain = self._repeat = False
        self._next_ms = _NO_TIME
        self._set_maximal()
        self._know_replicas()
