"""The caller's side of a consumer in a group. This module exchanges events with the group member, which runs on the I/O
thread.

    I/O thread                                          caller's thread
    member: Assign --> committed offsets --> Assigned --> partitions get positions; on_assigned
            Revoke --> fetching stops -----> Revoking --> auto-commit; on_revoked; partitions go; released
            Lost   --> fetching stops -----> Gone ------> partitions go; on_lost (or on_revoked, as in Kafka)
            Suspended, Resumed ------------> the inbox is shut, and opened again
            Failed ------------------------> raised by every poll

Callbacks run in the caller's thread, during poll, iteration, unsubscribe and close (Kafka's rule). The blocking and the
asyncio consumer use the same generator ``steps``. The generator yields calls for the I/O thread or for the caller, and
receives their results.

**Losses.** A member that has lost all partitions joins its group again automatically, while its caller still processes
old records. After a member has lost its partitions, the client refuses the caller's commits until the caller has
processed the loss (until ``on_lost`` has run). A commit before the end of ``on_lost`` would belong to the new
membership, although other members may have read further. The I/O thread and the caller's thread each count the losses
of partitions; a commit is valid only if the two counts are equal.

A record is auto-committed only after the caller has asked for the next record.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from headrace_core.clock import boottime_s
from headrace_core.errors import (
    HeadraceError,
    IllegalStateError,
    RequestTimedOutError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from headrace_core.plurals import counted
from headrace_core.types import TopicPartition

from ..engine.client import Engine
from ..engine.coordinators import Coordinators
from ..engine.io_thread import closed_error
from ..group.commits import NO_MEMBER, Commits, GroupOffsets, Who
from ..group.member import NOTHING, Assign, Failed, Lost, Parts, PauseCause, Resumed, Revoke, Subscription, Suspended
from ..group.membership import LEAVE_S, Membership
from ..models import GroupMetadata, OffsetAndMetadata
from .missing_topics import MissingTopics
from .reading import Reading

logger = logging.getLogger("headrace")

#: on_assigned, on_revoked or on_lost of a consumer: called with the list of partitions.
Callback = Callable[[list[TopicPartition]], Any]


class Callbacks:
    """Rebalance callbacks. The consumer object owns the callbacks, not GroupConsumer, because callbacks may refer to
    the consumer. The garbage collector never frees objects to which tasks of the I/O thread refer."""

    __slots__ = ("__weakref__", "on_assigned", "on_lost", "on_revoked")

    def __init__(
        self,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        self.on_assigned, self.on_revoked, self.on_lost = on_assigned, on_revoked, on_lost


NO_CALLBACKS = Callbacks()


class Assigned(NamedTuple):
    offsets: dict[TopicPartition, OffsetAndMetadata | None]


class Revoking(NamedTuple):
    """Partitions to revoke. ``commits`` is False if the caller has interrupted the auto-commit; the consumer then does
    not attempt the auto-commit again."""

    ticket: int
    partitions: list[TopicPartition]
    commits: bool = True


class Gone(NamedTuple):
    """Event: the member has lost partitions; ``number`` counts the losses of the member."""

    partitions: list[TopicPartition]
    number: int


class Trouble(NamedTuple):
    """An error that the caller's next call raises once; the client retries the operation."""

    error: HeadraceError


class Paused(NamedTuple):
    """A pause, in which the consumer returns no records. The pause began at ``since_ms`` (wall clock, ms)."""

    cause: PauseCause
    why: str
    since_ms: int


Event = Assigned | Revoking | Gone | Trouble

#: A warning is logged after WAITING_S seconds without a coordinator, then every WAITING_AGAIN_S seconds.
WAITING_S, WAITING_AGAIN_S = 3.0, 60.0

#: Errors after which an auto-commit does not retry the commit for a topic: the topic was deleted, or deleted and
#: created again.
DELETED = (UnknownTopicOrPartitionError, UnknownTopicIdError)


class OnIoThread(NamedTuple):
    """A step: run ``work`` on the I/O thread and send its result to the generator."""

    work: Coroutine[Any, Any, Any]


class InCaller(NamedTuple):
    """A step: call ``function`` in the caller's thread, and await its result if it is awaitable."""

    function: Callback
    partitions: list[TopicPartition]


Steps = Generator[OnIoThread | InCaller, Any, None]


class Progress(Protocol):
    """The finished records of the consumer's partitions while ``Consumer.process`` runs; without ``process``, every
    record that the consumer has returned counts as finished. The methods are called in the caller's thread."""

    def assigned(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
        """Note partitions that the group has assigned, with their committed offsets."""

    def revoking(self, partitions: list[TopicPartition]) -> object:
        """Wait for the handlers of partitions that will be committed and revoked. The result may be awaitable."""

    def forget(self, partitions: list[TopicPartition]) -> None:
        """Forget partitions that the consumer no longer has."""

    def positions(self, read: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit. ``read``: the positions after the returned records."""


class GroupConsumer:
    """Group membership and commits of a consumer, created when ``group.id`` is first needed. ``reading`` has the
    consumer's partitions and positions."""

    def __init__(self, config: dict[str, Any], engine: Engine, reading: Reading) -> None:
        self.group_id: str = config["group.id"]
        self.instance_id: str | None = config["group.instance.id"]
        self.subscription: Subscription | None = None
        self.error: HeadraceError | None = None
        #: Time (time.monotonic()) of the caller's last call; ``is_here`` says whether the caller is waiting in a call.
        self.seen_at = time.monotonic()
        self.is_here = False
        self.is_evicted = False
        #: The reason why the consumer returns no records now; None while records may be returned. Only the I/O thread
        #: sets ``paused``.
        self.paused: Paused | None = None
        self._reported_pause: Paused | None = None
        self._tell_waiting_at = 0.0
        self._reading = reading
        self._engine = engine
        self._max_poll_interval_s: float = config["max.poll.interval.ms"] / 1000
        self._auto_commits: bool = config["enable.auto.commit"]
        self._commits_itself = self._auto_commits  # False while the consumer leaves the group without a commit
        self._interval_s: float = config["auto.commit.interval.ms"] / 1000
        self._next_commit_at = 0.0
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}  # the offsets of the last full auto-commit
        self._progress: Progress | None = None
        self._left_by_progress: dict[TopicPartition, OffsetAndMetadata] = {}  # ``offsets`` at the last Progress's end
        self._callbacks_of_face: weakref.ref[Callbacks] = weakref.ref(NO_CALLBACKS)
        self._events: deque[Event] = deque()
        self._member_id = str(uuid.uuid4())
        # How often the consumer lost its partitions, and how many of these losses the consumer has reported to the
        # caller.
        self._losses = self._reported_losses = 0
        self._lost_why = ""
        self._is_leaving = False
        self._commit_timeout_s = self._engine.request_timeout_s  # timeout of an auto-commit that is awaited
        self._position_seen: tuple[int, int] = (0, 0)
        self._coordinators = Coordinators(self._engine)
        self._membership = Membership(self._engine, self._coordinators, config, self._member_id, self._settle)
        self._membership.has_trouble = self._has_trouble
        self._membership.begins_to_wait = reading.interrupt
        self._commits = Commits(
            self._engine, self._coordinators, self.group_id, self._who, self._topic_id_of, self._ended
        )
        #: The tasks of the commits in flight; the timeout of each task ends its commit when the consumer is closed.
        self._in_flight: dict[asyncio.Task[Any], asyncio.Timeout] = {}
        self._has_ended = False
        self._topic_ids: tuple[Parts, dict[TopicPartition, bytes]] = NOTHING, {}
        self._changing = asyncio.Lock()  # a join waits until an earlier leave has ended
        self._arrivals: set[asyncio.Task[None]] = set()
        self._watcher: asyncio.Task[None] | None = None
        self._missing = MissingTopics(engine, self.group_id)
        self._auto_committing: asyncio.Task[None] | None = None

    def _who(self) -> Who:
        if self.subscription is None:
            return NO_MEMBER
        if self._membership.member.epoch == 0:
            # This member has left the group, so the coordinator refuses its commits.
            return Who(self._member_id, -1, self.instance_id)
        return Who(self._member_id, self._membership.member.epoch, self.instance_id)

    def _topic_id_of(self, tp: TopicPartition) -> bytes:
        owned = self._membership.member.owned
        if self._topic_ids[0] is not owned:
            self._topic_ids = owned, {TopicPartition(part.topic, part.partition): part.topic_id for part in owned}
        return self._topic_ids[1].get(tp, b"")

    def _ended(self) -> dict[TopicPartition, int]:
        return {TopicPartition(part.topic, part.partition): at for part, at in self._membership.member.ended.items()}

    @property
    def metadata(self) -> GroupMetadata:
        """The identity for a transaction, which has one epoch for all partitions. The member takes no partitions while
        it has partitions to release, so it has owned all its partitions under the oldest of their epochs."""
        who = self._who()
        epoch = min((who.epoch, *self._membership.member.ended.values()))
        return GroupMetadata(self.group_id, max(epoch, -1), who.member_id, self.instance_id)

    # -- the caller's side -------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription, callbacks: Callbacks) -> None:
        self._callbacks_of_face = weakref.ref(callbacks)
        self.error = None
        self.is_evicted = False
        self.subscription = subscription
        self._next_commit_at = time.monotonic() + self._interval_s
        self._join(subscription)

    @property
    def _callbacks(self) -> Callbacks:
        return self._callbacks_of_face() or NO_CALLBACKS

    def _join(self, subscription: Subscription) -> None:
        self.seen_at = time.monotonic()
        engine = self._engine
        engine.io.call(lambda: engine.spawn(self._begin(subscription), "headrace-member-begin"))

    def assigned_by_hand(self) -> None:
        """Prepare a call of ``assign``: commit the positions of the old partitions."""
        if self._is_auto_commit_due(float("inf")):
            self._commit_now()
        self._next_commit_at = time.monotonic() + self._interval_s
        self._engine.io.call(self._watch)

    async def committed_of(
        self, partitions: list[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, tuple[int, int] | None]:
        """(offset, leader epoch) for the fetcher; None: no offset. ``committed_of`` runs on the I/O thread."""
        try:
            found = await self._commits.fetch(partitions, timeout_s)
        except HeadraceError as error:
            if timeout_s >= self._engine.request_timeout_s:
                self._has_trouble(error)
            raise
        return {tp: None if each is None else (each.offset, each.leader_epoch) for tp, each in found.items()}

    def check(self) -> None:
        """Note the time of the caller's call, and log warnings that are due. Raise the error that ended the membership,
        after all events of the membership were delivered."""
        self.seen_at = time.monotonic()
        self._warn()
        if not self._events:
            self._go_on()

    def _warn(self) -> None:
        """Log why the member does not return records: once per pause, and at intervals while it has no coordinator."""
        paused = self.paused
        if paused is not self._reported_pause:
            self._reported_pause = paused
            if paused is not None:
                logger.warning(
                    "group %r: member %s stops reading: %s, so other members may own its partitions now; it "
                    "resumes when a coordinator answers; check coordinators and controllers with `headrace doctor`",
                    self.group_id,
                    self._member_id,
                    paused.why,
                )
        if self.seen_at >= self._tell_waiting_at and (why := self.waiting(WAITING_S)):
            self._tell_waiting_at = self.seen_at + WAITING_AGAIN_S
            logger.warning("%s", why)

    def waiting(self, longer_than_s: float) -> str:
        """A text that says what the group has been waiting for. The text is "" if the group has waited for less than
        ``longer_than_s``, or is not waiting."""
        waiting = self._membership.waiting
        if waiting is None or self.subscription is None or time.monotonic() - waiting[0] < longer_than_s:
            return ""
        error = waiting[1]
        cure = "" if "--coordinators" in error.message else "; `headrace up --coordinators 1` starts a coordinator"
        return f"waiting for the coordinator of group {self.group_id!r}: {error.code}: {error.message}{cure}"

    def _go_on(self) -> None:
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.is_evicted and self.subscription is not None and not self._is_leaving:
            self.is_evicted = False
            self._join(self.subscription)

    @property
    def has_work(self) -> bool:
        return self._reading.inbox.alarm or self._is_auto_commit_due(time.monotonic())

    def _is_auto_commit_due(self, now: float) -> bool:
        """The auto-commit also covers partitions of ``assign``, as in Kafka."""
        return self._commits_itself and bool(self._reading.partitions) and now >= self._next_commit_at

    @property
    def is_processing(self) -> bool:
        """Whether ``process`` runs."""
        return self._progress is not None

    def begin_progress(self, progress: Progress, interval_s: float) -> None:
        """Commit the offsets of ``progress.offsets`` every ``interval_s`` seconds until ``end_progress``, also if
        auto-commit is off. Raises IllegalStateError if a run is in progress already."""
        if self._progress is not None:
            raise IllegalStateError(
                "process() is already running: a consumer can run one process() at a time; wait until it returns"
            )
        self._progress = progress
        self._commits_itself, self._interval_s, self._next_commit_at = True, interval_s, time.monotonic() + interval_s
        self._committed = {}

    def end_progress(self, interval_s: float) -> None:
        """Commit the consumer's positions again, every ``interval_s`` seconds if auto-commit is on. A commit of the
        position at which the run has ended still lists the finished records after this position."""
        self._left_by_progress = self.positions()
        self._progress = None
        self._commits_itself, self._interval_s, self._next_commit_at = (
            self._auto_commits,
            interval_s,
            time.monotonic() + interval_s,
        )
        self._committed = {}

    def positions(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit for the given partitions (None: all)."""
        read = self._reading.positions(partitions)
        if self._progress is not None:
            return self._reading.with_epochs(self._progress.positions(read))
        left = self._left_by_progress
        return {tp: left[tp] if tp in left and left[tp].offset == each.offset else each for tp, each in read.items()}

    def _commit_now(self) -> None:
        """Commit in the background all positions that have changed since the last auto-commit."""
        positions = self.positions()
        if positions and positions != self._committed:
            self._committed = positions
            self._engine.io.call(self._commit_behind_the_scenes, positions, self._reported_losses)

    def steps(self) -> Steps:
        """Steps for the events since the caller's last call, in order, and for the auto-commit if it is due. An
        exception in a callback ends the generator; the event of that callback still takes effect, and the next call
        continues with the next event."""
        while self._events:
            event = self._events.popleft()
            if isinstance(event, Gone):
                yield from self._drop(event)
            elif any(isinstance(later, Gone) for later in tuple(self._events)):
                continue  # a later loss took all partitions
            elif isinstance(event, Assigned):
                yield from self._take_up(event)
            elif isinstance(event, Revoking):
                yield from self._revoke(event)
            else:
                raise event.error.with_traceback(None)
        inbox = self._reading.inbox
        inbox.alarm = False
        if self._events:  # an event is queued before its alarm is set, so look once more
            inbox.alarm = True
            return
        self._go_on()
        if self._is_auto_commit_due(now := time.monotonic()):
            self._next_commit_at = now + self._interval_s
            self._commit_now()

    def wake_at(self, deadline: float) -> float:
        """The time until which the caller may sleep before it calls ``has_work`` or ``check``: at most ``deadline``."""
        waiting = self._membership.waiting
        if waiting is not None:
            deadline = min(deadline, max(waiting[0] + WAITING_S, self._tell_waiting_at, self.seen_at + 0.05))
        return min(deadline, self._next_commit_at) if self._commits_itself and self._reading.partitions else deadline

    def _take_up(self, event: Assigned) -> Steps:
        self._reading.add_assigned(event.offsets)
        if self._progress is not None:
            self._progress.assigned(event.offsets)
        self._committed = {}
        partitions = sorted(event.offsets)
        if self._callbacks.on_assigned is not None:
            yield InCaller(self._callbacks.on_assigned, partitions)

    def _revoke(self, event: Revoking) -> Steps:
        if event.commits:
            try:
                if self._progress is not None:
                    yield InCaller(self._progress.revoking, event.partitions)
                yield from self._commit_at_last(event.partitions)
            except BaseException:  # on Ctrl-C, or when the caller's task is cancelled, on_revoked must still be called
                self._events.appendleft(event._replace(commits=False))
                raise
        yield from self._let_go(event.partitions, event.ticket)

    def _commit_at_last(self, partitions: list[TopicPartition]) -> Steps:
        """Auto-commit positions before their partitions are revoked. If the commit fails, the next owner reads the
        records since the last commit again."""
        positions = self.positions(partitions) if self._commits_itself else {}
        if not positions:
            return
        try:
            yield OnIoThread(self._commit(positions, self._reported_losses, self._commit_timeout_s, DELETED))
        except DELETED as error:
            logger.info("group %r: the auto-commit failed, because a topic was deleted: %s", self.group_id, error)
        except (HeadraceError, TimeoutError) as error:
            logger.warning(
                "group %r: the auto-commit before a revocation failed, so records may be read again: %s",
                self.group_id,
                str(error) or "no answer in time",
            )

    def _let_go(self, partitions: list[TopicPartition], ticket: int | None) -> Steps:
        try:
            if self._callbacks.on_revoked is not None and partitions:
                yield InCaller(self._callbacks.on_revoked, partitions)
        finally:
            self._remove(partitions)
            if ticket is not None:
                self._engine.io.call(self._released, ticket)

    def _drop(self, event: Gone) -> Steps:
        known = [tp for tp in event.partitions if tp in self._reading.partitions]
        self._remove(known)
        callback = self._callbacks.on_lost or self._callbacks.on_revoked
        try:
            if callback is not None and known:
                yield InCaller(callback, known)
        finally:
            self._reported_losses = event.number

    def _remove(self, partitions: list[TopicPartition]) -> None:
        self._reading.remove_assigned(partitions)
        if self._progress is not None:
            self._progress.forget(partitions)

    def leave_steps(self, timeout_s: float | None = 30.0, *, commits: bool = True) -> Steps:
        """Steps of unsubscribe and close: revoke all partitions, wait for the commits in flight, then leave the group.
        ``commits`` is False to skip the auto-commit, because the last records were not processed. ``timeout_s``: time
        limit of all steps; the commits leave a part of this time for the leave request."""
        if self._is_leaving:
            return
        commits_s = float("inf") if timeout_s is None else max(timeout_s - LEAVE_S - 1.0, timeout_s / 2)
        commits_until = time.monotonic() + commits_s
        if self.subscription is None:  # without a subscription, the program itself has assigned the partitions (if any)
            if commits:
                yield from self._commit_at_last(sorted(self._reading.partitions))
            yield from self._finish_commits(commits_until)
            return
        self._is_leaving = True
        self.seen_at = time.monotonic()
        self._commits_itself = self._commits_itself and commits
        self._commit_timeout_s = min(commits_s, self._commit_timeout_s)
        try:
            try:
                yield from self._revoke_all()
            except Exception:  # on_revoked failed; the program's commits must not be lost, too
                yield from self._finish_commits(commits_until)
                raise
            # Wait after on_revoked, which may commit, and before the leave request: the coordinator refuses the commits
            # of a member that has left.
            yield from self._finish_commits(commits_until)
        finally:
            try:
                yield OnIoThread(self._leave())
            except TimeoutError:
                logger.info(
                    "group %r: close() had no time left to leave the group; the coordinator removes the consumer later",
                    self.group_id,
                )
            finally:
                self._reading.remove_assigned(list(self._reading.partitions))
                self.subscription = None
                self.error = None
                self.is_evicted = self._is_leaving = False
                self._reported_losses = self._losses
                self._reading.inbox.alarm = self._reading.inbox.shut = False
                self.paused = None
                self._reading.inbox.open_until(float("inf"))
                self._commits_itself = self._auto_commits
                self._commit_timeout_s = self._engine.request_timeout_s

    def _revoke_all(self) -> Steps:
        try:
            yield from self.steps()
        except Exception as failure:
            # (``self.error`` was raised to the caller, or the caller makes no call that could raise it)
            if failure is not self.error:
                logger.exception(
                    "group %r: the consumer could not leave cleanly; the coordinator removes it after its "
                    "session timeout",
                    self.group_id,
                )
        yield from self._commit_at_last(sorted(self._reading.partitions))
        yield from self._let_go(sorted(self._reading.partitions), None)

    def _finish_commits(self, until: float) -> Steps:
        """Wait for the commits in flight (of ``commit_async``, and auto-commits) until ``until`` (time.monotonic()).
        After an earlier leave request or an earlier end of the connections, these commits would be lost."""
        # If the time is over, ``end`` ends the commits.
        with contextlib.suppress(TimeoutError):
            yield OnIoThread(self._until_none_in_flight(until))

    def metric_values(self) -> dict[str, float]:
        """Metrics: the time since when no records are returned (0: not paused), a gauge per cause, which is 1 for the
        current cause, and the number of subscribed topics that do not exist."""
        paused = self.paused
        found = {
            "paused-since-ms": 0.0 if paused is None else float(paused.since_ms),
            "subscribed-topics-missing": float(len(self._missing.names)),
        }
        for cause in PauseCause:
            found[f"paused-{cause}"] = float(paused is not None and paused.cause is cause)
        return found

    def commit_work(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], traceparent: str | None = None
    ) -> Coroutine[Any, Any, None]:
        """The coroutine of a commit, for the I/O thread. ``traceparent``: the trace context of the program's span.
        Raises UnknownMemberIdError when the consumer was evicted or has lost its partitions."""
        self.seen_at = time.monotonic()
        self._committed = {}
        return self._commit(offsets, self._reported_losses, traceparent=traceparent)

    def in_transaction(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> GroupOffsets:
        """Return offsets for a transaction, with the member's identity. The result has a ``refusal`` if the group
        evicted the consumer, or if the consumer has lost its partitions."""
        self.seen_at = time.monotonic()
        topic_ids = {tp: self._topic_id_of(tp) for tp in offsets}
        found = GroupOffsets(self.metadata, offsets, topic_ids, end_auto_commits=self._end_auto_commits)
        # Check for lost partitions only after reading the member's identity.
        return found._replace(refusal=self._why_lost(self._reported_losses))

    def fetch_work(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None
    ) -> Coroutine[Any, Any, dict[TopicPartition, OffsetAndMetadata | None]]:
        return self._commits.fetch(partitions, timeout_s)

    # -- on the I/O thread -------------------------------------------------------------------------------------------

    async def _begin(self, subscription: Subscription) -> None:
        async with self._changing:
            self._membership.subscribe(subscription)
            self._missing.watch(subscription, lambda: {part.topic for part in self._membership.member.owned})
            self._watch()

    async def _leave(self) -> None:
        self._stop_watching()  # the consumer may be leaving the group, and would get no events
        async with self._changing:
            self._stop_watching()
            arrivals, self._arrivals = self._arrivals, set()
            for task in arrivals:
                task.cancel()
            try:
                await self._membership.leave()
            finally:
                self._membership.member.take_events()
                self._events.clear()

    def _watch(self) -> None:
        if self._watcher is None and not self._has_ended:
            self._watcher = self._engine.spawn(self._watch_progress(), "headrace-poll-interval")

    def _stop_watching(self) -> None:
        self._missing.stop()
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.cancel()

    async def end(self) -> None:
        """End the membership. If the consumer has not left its group (it was garbage-collected, or the process ends),
        leave the group without a commit."""
        if self.subscription is not None:
            await self._leave()
        self._stop_watching()
        self._membership.close()
        await self._end_commits()
        self._commits.close()

    async def _until_none_in_flight(self, until: float) -> None:
        while self._in_flight and (left_s := until - time.monotonic()) > 0:
            await asyncio.wait(set(self._in_flight), timeout=None if left_s == float("inf") else left_s)

    async def _end_commits(self) -> None:
        """End the commits in flight with an error. Otherwise, the end of the connections would cancel a commit, and a
        commit between two attempts would open new connections."""
        self._has_ended = True
        if not self._in_flight:
            return
        logger.warning(
            "group %r: the consumer was closed with %s in flight, so their outcome is unknown; raise the timeout of "
            "close(), or check the coordinators with `headrace doctor`",
            self.group_id,
            counted(len(self._in_flight), "commit"),
        )
        now = asyncio.get_running_loop().time()
        for limit in self._in_flight.values():
            limit.reschedule(now)
        await asyncio.wait(set(self._in_flight))

    def _released(self, ticket: int) -> None:
        self._membership.member.released(ticket)
        self._membership.nudge()

    async def _commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        reported_losses: int,
        timeout_s: float | None = None,
        final: tuple[type[HeadraceError], ...] = (),
        traceparent: str | None = None,
    ) -> None:
        """``reported_losses``: the number of partition losses that the caller knew when it chose the offsets. Raises
        RequestTimedOutError (the outcome is unknown) if the consumer is closed before the commit has ended."""
        refusal = self._why_lost(reported_losses)
        if refusal is not None:
            raise refusal
        if self._has_ended:
            raise closed_error("consumer")
        task, limit = asyncio.current_task(), asyncio.timeout(None)
        assert task is not None
        try:
            async with limit:
                self._in_flight[task] = limit
                await self._commits.commit(offsets, timeout_s, final, traceparent)
                return
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            del self._in_flight[task]
            # Drop the task: the traceback of the commit's error keeps this frame.
            del task, limit
        raise RequestTimedOutError(
            f"committing to {self.group_id!r}: the consumer was closed before the coordinator answered, so the commit "
            "may or may not have taken effect; raise the timeout of close()"
        )

    async def _end_auto_commits(self) -> None:
        """Stop auto-commits permanently, because an auto-commit would also commit the records of an aborted
        transaction."""
        self._auto_commits = self._commits_itself = False
        await self._commits.none_in_flight()

    def _why_lost(self, reported_losses: int) -> UnknownMemberIdError | None:
        """The error of a commit after the group evicted the consumer, or after the consumer lost partitions."""
        if self.subscription is None or not (self.is_evicted or reported_losses != self._losses):
            return None
        return UnknownMemberIdError(
            f"group {self.group_id!r}: cannot commit, because this member lost its partitions: {self._lost_why}"
        )

    def _commit_behind_the_scenes(
        self, positions: dict[TopicPartition, OffsetAndMetadata], reported_losses: int
    ) -> None:
        if self._auto_committing is not None and not self._auto_committing.done():
            self._committed = {}  # with no known offsets, the next auto-commit is complete again
            return
        work = self._auto_commit(positions, reported_losses)
        self._auto_committing = self._engine.spawn(work, "headrace-auto-commit")

    async def _auto_commit(self, positions: dict[TopicPartition, OffsetAndMetadata], reported_losses: int) -> None:
        try:
            await self._commit(positions, reported_losses, final=DELETED)
        except HeadraceError as error:
            self._committed = {}  # the auto-commit is retried even if nothing is read before the retry
            if not self._has_ended:  # (``_end_commits`` has logged it)
                logger.warning(
                    "group %r: the auto-commit failed; the next auto-commit repeats it: %s", self.group_id, error
                )

    def _settle(self) -> None:
        """Pass the member's new events on to the consumer."""
        for event in self._membership.member.take_events():
            if isinstance(event, Assign):
                task = self._engine.spawn(self._arrive(event), "headrace-member-arrival")
                self._arrivals.add(task)
                task.add_done_callback(self._arrivals.discard)
            elif isinstance(event, Revoke):
                self._tell(Revoking(event.ticket, self._stop(event.parts)))
            elif isinstance(event, Lost):
                logger.warning("group %r: lost its partitions: %s", self.group_id, event.why)
                self._gone(event.parts, event.why)
            elif isinstance(event, Suspended):
                self.paused = Paused(event.cause, event.why, time.time_ns() // 1_000_000)
                self._reading.shut(True)
                self._reading.interrupt()  # interrupt the caller, which logs the failures
            elif isinstance(event, Resumed):
                self.paused = None
                self._reading.shut(False)
            elif isinstance(event, Failed):
                self.error = event.error
                self._reading.interrupt()
        self._reading.inbox.open_until(self._membership.member.reads_until())

    def _gone(self, parts: Parts, why: str) -> None:
        self._losses += 1
        self._lost_why = why
        self._tell(Gone(self._stop(parts), self._losses))

    def _has_trouble(self, error: HeadraceError) -> None:
        if not any(isinstance(event, Trouble) for event in tuple(self._events)):
            self._tell(Trouble(error))

    def _stop(self, parts: Parts) -> list[TopicPartition]:
        partitions = sorted(TopicPartition(part.topic, part.partition) for part in parts)
        self._reading.fetcher.stop(partitions)
        return partitions

    def _tell(self, event: Event) -> None:
        self._events.append(event)
        self._reading.interrupt()

    async def _arrive(self, event: Assign) -> None:
        """Fetch the committed offsets of newly assigned partitions, then pass the assignment to the caller."""
        partitions = [TopicPartition(part.topic, part.partition) for part in event.parts]
        offsets: dict[TopicPartition, OffsetAndMetadata | None] = {}
        while True:
            try:
                offsets = await self._commits.fetch(partitions)
                break
            except HeadraceError as error:
                logger.warning("group %r: cannot read committed offsets, retrying: %s", self.group_id, error)
                await asyncio.sleep(self._engine.backoff.longest_s)
        begun = self._membership.member.begin(event.ticket, boottime_s())
        taken = {TopicPartition(part.topic, part.partition) for part in begun}
        if taken:
            self._tell(Assigned({tp: offset for tp, offset in offsets.items() if tp in taken}))
        self._membership.nudge()

    async def _watch_progress(self) -> None:
        """Leave the group when the caller makes no call for max.poll.interval.ms, so that other members get the
        partitions. Each call of a consumer method, and each step of an iteration, restarts the time of
        max.poll.interval.ms.

        Interrupt an iteration for an auto-commit that is due: an iteration may read a fetched part for hours without a
        call of the consumer.
        """
        while True:
            await asyncio.sleep(min(self._max_poll_interval_s / 10, 1.0))
            now = time.monotonic()
            if self._reading.under_way is not None and self._is_auto_commit_due(now):
                self._reading.interrupt()
            current = self._reading.current
            seen = (id(current[1]), int(current[1].position)) if current is not None else (0, 0)
            if self.is_here or seen != self._position_seen or not self._membership.member.is_wanted:
                self._position_seen, self.seen_at = seen, now
                continue
            silent_s = now - self.seen_at
            if silent_s > self._max_poll_interval_s:
                await self._evict(
                    f"the consumer was not polled for {silent_s:.1f} s, longer than max.poll.interval.ms="
                    f"{self._max_poll_interval_s * 1000:g}, and left the group: handle records faster, poll fewer at a "
                    "time (max.poll.records), or raise max.poll.interval.ms"
                )

    async def _evict(self, why: str) -> None:
        logger.error("group %r: %s", self.group_id, why)
        async with self._changing:
            self._lost_why, self.is_evicted = why, True
            # Drop the partitions first: a call whose wait ends now must return no more records of these partitions.
            if owned := self._membership.member.owned:
                self._gone(owned, why)
            await self._membership.leave()
            self._settle()
        self._reading.interrupt()  # wake a poll that began during the leave, so that the poll joins the group again
