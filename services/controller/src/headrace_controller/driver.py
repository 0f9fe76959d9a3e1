"""The driver: one task that owns the pure cores and the storage, and carries out what they ask for.

A *turn* takes every request that has arrived, decides each on the speculation left by the one before, appends all the
decisions with one write, forces them to disk with one fdatasync, commits, publishes the new image, and only then
answers. What arrives meanwhile is the next turn: under load, turns grow instead of queueing up.

    requests --> decide --> propose --> append + fdatasync --> commit --> publish --> answer

A request that wrote nothing is answered at the same point, after everything that it was decided on has been committed.

When the disk fills up, what would make the metadata larger is refused first, while there is room for the rest; when
there is no room at all, this controller resigns, refuses everything with DISK_FULL (retriable), and takes the lead
again with the first turn that finds room. Nobody is fenced for what could not be written.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace_core.clock import Clock
from headrace_core.errors import (
    DiskFullError,
    HeadraceError,
    InvalidConfigError,
    NotControllerError,
    RequestTimedOutError,
    ServerBusyError,
    ServerShuttingDownError,
    UnknownServerError,
    UnsupportedVersionError,
)
from headrace_core.metadata import ImageBuilder, MetadataDelta, MetadataImage
from headrace_core.metadata.codec import encode_decision
from headrace_core.node.ids import id_to_text
from headrace_core.telemetry import BrokerDirectoriesOffline, BrokerFenced, BrokerRegistered, BrokerUnfenced, Emitter

from .cluster.core import ClusterCore
from .cluster.decision import Decision
from .cluster.requests import (
    AlterConfigs,
    Bootstrap,
    CreatePartitions,
    CreateTopics,
    FenceSilentBrokers,
    Reply,
    Request,
)
from .raft import EntryKind, RaftNode, Ready, ReplicaKey, Role, VoterSet
from .storage import MetadataStorage

logger = logging.getLogger("headrace.controller")

#: Requests of one turn, and requests that may wait for theirs.
TURN_REQUESTS_MAX = 1_000
QUEUED_REQUESTS_MAX = 20_000

#: What asks for more metadata to be kept; all else keeps the cluster alive, or makes room.
_GROWTH = (CreateTopics, CreatePartitions, AlterConfigs)

#: Told of each committed change, in order.
Subscriber = Callable[[MetadataImage, MetadataDelta], None]


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply, and the metadata offset up to which one must have applied the log to see what was done."""

    reply: Any
    metadata_offset: int


@dataclass(frozen=True, slots=True)
class _Asked:
    request: Request
    future: asyncio.Future[Answer]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Decided; answered once everything below ``offset`` is committed."""

    offset: int
    reply: Reply
    failure: HeadraceError | None
    future: asyncio.Future[Answer]


class ControllerDriver:
    """See the module. ``run`` is the one task; all other methods are called in the same event loop."""

    def __init__(
        self,
        core: ClusterCore,
        storage: MetadataStorage,
        *,
        node_id: int,
        voters: tuple[int, ...],
        cluster_id: str,
        clock: Clock,
        emitter: Emitter | None = None,
    ) -> None:
        self._core = core
        self._storage = storage
        _check_sole_voter(node_id, voters)
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._clock = clock
        self._emitter = emitter or Emitter()
        self._asked: deque[_Asked] = deque()
        self._waiting: deque[_Waiting] = deque()
        self._wake = asyncio.Event()
        self._stopping = False
        self._was_full = False
        self._subscribers: tuple[Subscriber, ...] = ()
        self._last_tick_ms = clock.monotonic_ms()
        self._tick_ms = max(core.settings.broker_session_timeout_ms / 10, 10)
        self._published = core.committed
        self._raft = self._new_raft()

    # -- what others see ----------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The committed state."""
        return self._published

    @property
    def leader_id(self) -> int:
        """The active controller, -1 when there is none."""
        return self._raft.leader

    @property
    def term(self) -> int:
        return self._raft.term

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with each committed image from now on; returns what ends the subscription."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

        return unsubscribe

    def read(self, offset: int) -> tuple[bytes, int]:
        """Committed batches from ``offset`` on (about 1 MiB at most), and where to go on."""
        return self._storage.read(offset, self._published.next_offset)

    async def wait_applied(self, offset: int, timeout_s: float) -> MetadataImage:
        """The committed image once it holds everything below ``offset``; RequestTimedOutError."""
        if self.image.next_offset < offset:
            reached = asyncio.Event()
            unsubscribe = self.subscribe(lambda image, _: reached.set() if image.next_offset >= offset else None)
            try:
                async with asyncio.timeout(timeout_s):
                    await reached.wait()
            except TimeoutError:
                raise RequestTimedOutError(
                    f"the metadata log is committed up to {self.image.next_offset}, not yet up to {offset}"
                ) from None
            finally:
                unsubscribe()
        return self.image

    async def ask(self, request: Request) -> Answer:
        """Have ``request`` decided; returns when the decision is durable. Raises what refused it, NotControllerError,
        ServerShuttingDownError, ServerBusyError. Cancelling the caller does not undo the decision."""
        if self._stopping:
            raise ServerShuttingDownError(f"controller {self._node_id} is shutting down")
        if len(self._asked) >= QUEUED_REQUESTS_MAX:
            raise ServerBusyError(f"controller {self._node_id} has {len(self._asked)} requests waiting")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._asked.append(_Asked(request, future))
        self._wake.set()
        return await future

    def tell(self, request: Request) -> None:
        """``ask`` without caring for the answer."""
        if not self._stopping:
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._asked.append(_Asked(request, future))
            self._wake.set()

    # -- the one task -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replay the log and take the lead (on a full disk: when there is room); afterwards the image is complete.
        Raises CorruptLogError, InconsistentClusterIdError, UnsupportedVersionError, DiskFullError (a new log on a full
        disk), OSError."""
        builder = ImageBuilder(self._core.committed)
        next_offset, epoch = self._core.committed.next_offset, -1
        for batch in self._storage.batches(next_offset):
            for record in batch.records:
                builder.replay(record)
            next_offset, epoch = batch.next_offset, batch.epoch
        image, _ = builder.finish(next_offset, epoch)
        # A sole voter's own log holds nothing that was not committed: it committed each entry by flushing it.
        self._core.replay(image)
        self._published = image
        try:
            self._take_the_lead()
        except DiskFullError as error:
            if not image.cluster_id:  # a new log, which has to say whose it is
                raise
            self._step_down([], error)
            return  # what is committed is served, and the turns try again
        decision = self._core.decide(Bootstrap(self._cluster_id), self._clock.monotonic_ms())
        if decision.failure is not None:
            raise decision.failure
        if decision.records:
            self._propose(decision)
            self._carry_out()

    async def run(self) -> None:
        """Turn after turn until ``stop``. Raises OSError when the disk fails: the process must end then."""
        try:
            while not (self._stopping and not self._asked):
                if not self._asked:
                    self._wake.clear()
                    await self._wait(self._until_tick_ms() / 1_000)
                self._turn()
                await asyncio.sleep(0)  # let what arrived meanwhile in, and the answers out
        finally:
            self._stopping = True
            self._fail_all(ServerShuttingDownError(f"controller {self._node_id} has stopped"))

    def stop(self) -> None:
        """Answer what has arrived, then end ``run``."""
        self._stopping = True
        self._wake.set()

    async def _wait(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _until_tick_ms(self) -> float:
        return max(self._last_tick_ms + self._tick_ms - self._clock.monotonic_ms(), 0.0)

    def _turn(self) -> None:
        asked = [self._asked.popleft() for _ in range(min(len(self._asked), TURN_REQUESTS_MAX))]
        try:
            if self._raft.role is not Role.LEADER:
                self._take_the_lead()
            self._tick()
            now_ms = self._clock.monotonic_ms()
            for each in asked:
                decision = self._decide(each.request, now_ms)
                self._propose(decision)
                offset = self._core.speculative.next_offset
                self._waiting.append(_Waiting(offset, decision.reply, decision.failure, each.future))
            self._carry_out()
        except DiskFullError as error:
            self._step_down(asked, error)

    def _decide(self, request: Request, now_ms: float) -> Decision:
        """Deciding changes nothing, so a rule that stumbles over a request costs that request only, not the cluster its
        controller."""
        try:
            decision = self._core.decide(request, now_ms)
            if decision.records and isinstance(request, _GROWTH):
                full = self._storage.refusal(len(decision.records))
                return decision if full is None else Decision(failure=full)
            return decision
        except OSError:  # the disk is gone
            raise
        except Exception as error:
            logger.exception("%s could not be decided", type(request).__name__)
            return Decision(failure=UnknownServerError(f"{type(request).__name__}: {type(error).__name__}: {error}"))

    def _tick(self) -> None:
        """Fence who has been silent. After a pause of this very process nobody could be heard: nobody is to blame."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_tick_ms < self._tick_ms:
            return
        paused_ms, self._last_tick_ms = now_ms - self._last_tick_ms, now_ms
        if paused_ms > self._core.settings.broker_session_timeout_ms / 2:
            logger.warning("this process stood still for %.0f ms; every broker's session begins anew", paused_ms)
            self._core.lead(now_ms)
        while (decision := self._core.decide(FenceSilentBrokers(), now_ms)).records:
            self._propose(decision)

    def _propose(self, decision: Decision) -> None:
        speculative = self._core.speculative
        if decision.records:
            data = encode_decision(
                decision.records,
                timestamp_ms=self._clock.now_ms(),
                base_offset=speculative.next_offset,
                epoch=self._raft.term,
            )
            entry = self._raft.propose(data, len(decision.records))
            assert entry.base_offset == speculative.next_offset, "the log and the speculation have parted"
            self._core.accept(decision, entry.next_offset, entry.term)
        else:
            self._core.accept(decision, speculative.next_offset, speculative.epoch)

    def _carry_out(self) -> None:
        """Do what raft asks for until it asks for nothing more, then hand out what is committed."""
        while (ready := self._raft.ready()).must_persist:
            self._persist(ready)
            self._raft.persisted(ready)
        self._raft.persisted(ready)
        for image, delta in self._core.commit(ready.committed):
            self._publish(image, delta)
        while self._waiting and self._waiting[0].offset <= ready.committed:
            _answer(self._waiting.popleft())

    def _persist(self, ready: Ready) -> None:
        """A sole voter sends nothing, receives no snapshot and never has to cut what it wrote."""
        assert not ready.messages + ready.replies, "there is nobody to talk to"
        if ready.hard_state is not None:
            self._storage.save_hard_state(ready.hard_state)
        for entry in ready.entries:
            if entry.kind is EntryKind.LEADER_CHANGE:
                self._core.skip(entry.next_offset, entry.term)
        if ready.entries:
            self._storage.append(ready.entries, self._node_id)

    def _publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        before, self._published = self._published, image
        for broker_id in delta.brokers:
            self._tell_of_broker(broker_id, before, image)
        for subscriber in self._subscribers:
            subscriber(image, delta)

    def _tell_of_broker(self, broker_id: int, before: MetadataImage, image: MetadataImage) -> None:
        old, new = before.brokers.get(broker_id), image.brokers[broker_id]
        if old is None or old.broker_epoch != new.broker_epoch:
            self._emitter.emit(BrokerRegistered(broker_id=broker_id, broker_epoch=new.broker_epoch))
            if not new.fenced:
                self._emitter.emit(BrokerUnfenced(broker_id=broker_id))
        elif new.fenced and not old.fenced:
            reason = "controlled shutdown, or silent for broker.session.timeout.ms"
            if not new.online_directories:
                reason = "none of its log directories works"
            self._emitter.emit(BrokerFenced(broker_id=broker_id, reason=reason))
        elif old.fenced and not new.fenced:
            self._emitter.emit(BrokerUnfenced(broker_id=broker_id))
        failed = set(new.offline_directories) - (set() if old is None else set(old.offline_directories))
        if failed:
            names = tuple(sorted(map(id_to_text, failed)))
            self._emitter.emit(BrokerDirectoriesOffline(broker_id=broker_id, directory_ids=names))

    # -- leading, and failing to --------------------------------------------------------------------------------------

    def _new_raft(self) -> RaftNode:
        key = ReplicaKey(self._node_id, self._storage.directory_id)
        stored = self._storage.stored(VoterSet.of([key]))
        return RaftNode(key, stored, self._storage, draw=random.SystemRandom().randrange)

    def _take_the_lead(self) -> None:
        self._raft.tick()
        self._carry_out()
        if self._raft.role is not Role.LEADER:
            raise NotControllerError(f"controller {self._node_id} could not become the leader")
        now_ms = self._clock.monotonic_ms()
        self._core.lead(now_ms)
        self._last_tick_ms = now_ms
        if self._was_full:
            self._was_full = False
            logger.warning("there is room again; controller %d leads in term %d", self._node_id, self.term)

    def _step_down(self, asked: list[_Asked], error: DiskFullError) -> None:
        """Nothing of this turn was written. Forget it, refuse its requests, and begin anew with the next turn: that of
        the next request, or of the next tick."""
        if not self._was_full:
            self._was_full = True
            logger.error("%s; refusing changes until there is room", error)
        self._last_tick_ms = self._clock.monotonic_ms()
        self._core.resign()
        self._raft = self._new_raft()
        while self._waiting:
            waiting = self._waiting.popleft()
            _fail(waiting.future, error)
        for each in asked:
            _fail(each.future, error)

    def _fail_all(self, error: HeadraceError) -> None:
        for waiting in self._waiting:
            _fail(waiting.future, error)
        for each in self._asked:
            _fail(each.future, error)
        self._waiting.clear()
        self._asked.clear()


def _check_sole_voter(node_id: int, voters: tuple[int, ...]) -> None:
    if len(voters) > 1:
        raise UnsupportedVersionError(
            f"controller.quorum.voters names {len(voters)} voters: a quorum of several is not built yet; name one"
        )
    if list(voters) != [node_id]:
        raise InvalidConfigError(f"controller.quorum.voters does not name this controller, node.id={node_id}")


def _answer(waiting: _Waiting) -> None:
    if waiting.future.done():  # the caller has gone
        return
    if waiting.failure is not None:
        waiting.future.set_exception(waiting.failure)
    else:
        waiting.future.set_result(Answer(waiting.reply, waiting.offset))


def _fail(future: asyncio.Future[Answer], error: HeadraceError) -> None:
    if not future.done():
        future.set_exception(error)
