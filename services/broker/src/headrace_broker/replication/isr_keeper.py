"""Sends AlterPartition for all partitions that this broker leads (KIP-497).

Each leader determines its changes (``PartitionLeader.isr_change``), and signals when to check for them
(``on_isr_due``). The ISR keeper checks the leaders and sends all changes together, with one AlterPartition in progress
at a time. The ISR keeper passes to each leader the answer for its partition. ISR changes that arise during a call of
AlterPartition are sent in the next call. After a failed AlterPartition call the leaders repeat their proposals
unchanged, because the controllers may have applied these proposals.

Only the ISR keeper repeats failed AlterPartition calls. Each call of ``ask`` sends at most one request
(``ControllerLink.alter_partitions``), so a leader knows every attempt in progress. After an attempt without a definite
answer, each further AlterPartition request for the partition is marked ``uncertain``. The docstring of partition/isr.py
has the table of refusals.

A check of a leader takes some microseconds, and a busy partition signals at each append while its followers are caught
up. So::

    all replicas in sync    only a shrink is possible, after replica.lag.time.max.ms: one check every quarter of it;
                            none while its followers have all of its records. At once when a follower is on no stream,
                            or its log takes no appends
    some are not            at once, because a replica may have caught up; and again after LOOK_MS at the earliest
    the metadata changed it, or its brokers     at once
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError
from headrace_core.plurals import counted
from headrace_core.telemetry import Counter, Emitter, IsrExpanded, IsrShrunk

from ..controller_link import IsrAnswer, IsrRequest, ReplicaKey
from ..partition.isr import IsrChange
from ..partition.leader import LAG_TIME_MAX_MS, PartitionLeader

logger = logging.getLogger(__name__)

LOOK_MS = 10  #: Milliseconds between two checks of a partition that has a replica out of sync.
#: Maximum number of outdated entries in the queue of checks; beyond this number the keeper removes all outdated
#: entries.
OVERTAKEN_MAX = 1_000
CALL_PARTITIONS_MAX = 1_000  #: Maximum number of ISR changes in one AlterPartition call.
#: Error codes after which the keeper does not repeat a proposal, because newer metadata has the valid state (Kafka's
#: ``Partition.handleAlterPartitionError``). After an error with a code outside of _GIVEN_UP, the keeper repeats the
#: AlterPartition proposal.
_GIVEN_UP = frozenset(
    {
        "FENCED_LEADER_EPOCH",
        "INVALID_UPDATE_VERSION",
        "INVALID_REQUEST",
        "NEW_LEADER_ELECTED",
        "UNKNOWN_TOPIC_ID",
        "UNKNOWN_TOPIC_OR_PARTITION",
    }
)

#: Sends AlterPartition. Returns the answers of AlterPartition by topic id and partition. Raises HeadraceError if the
#: outcome of AlterPartition is unknown.
Ask = Callable[[list[IsrRequest]], Awaitable[Mapping[ReplicaKey, "IsrAnswer | HeadraceError"]]]
#: Returns the broker epoch of a registered, unfenced broker, and None for a fenced or unregistered broker.
BrokerEpochOf = Callable[[int], int | None]


class _Question(NamedTuple):
    leader: PartitionLeader
    change: IsrChange


class IsrKeeper:
    """Sends the ISR changes of all leaders. Leaders call ``due`` (through the callback ``isr_due`` of ``Roles``);
    ``run`` is the task that sends. Call all methods in one event loop."""

    def __init__(
        self,
        ask: Ask,
        broker_epoch_of: BrokerEpochOf,
        *,
        clock: Clock,
        events: Emitter,
        lag_time_max_ms: int = LAG_TIME_MAX_MS,
        failures: Counter | None = None,
    ) -> None:
        """``ask`` is ``ControllerLink.alter_partitions``, bound to this broker's id, its epoch, and the metadata offset
        that it has applied. ``broker_epoch_of`` answers from the metadata that this broker has applied.
        ``lag_time_max_ms``: replica.lag.time.max.ms. ``failures`` counts changes that the controllers did not make."""
        self._ask = ask
        self._failures = failures or Counter()
        self._broker_epoch_of = broker_epoch_of
        self._clock = clock
        self._events = events
        self._period_ms = max(lag_time_max_ms // 4, 1)
        #: Time of the next check of each watched leader, in monotonic milliseconds.
        self._due_ms: dict[PartitionLeader, int] = {}
        self._heap: list[tuple[int, int, PartitionLeader]] = []
        self._numbers = itertools.count()
        #: Time of the last check of each watched leader, in monotonic milliseconds.
        self._looked_ms: dict[PartitionLeader, int] = {}
        self._wake: asyncio.Future[None] | None = None

    @property
    def watched(self) -> int:
        """Number of partitions that are checked again without a signal; 0 on an idle broker."""
        return len(self._due_ms)

    def due(self, leader: PartitionLeader) -> None:
        """Schedule a check of a leader that was just created, or that signals a possible change of its in-sync set
        (``PartitionLeader``'s ``on_isr_due``)."""
        now_ms = self._now_ms()
        if leader in self._due_ms and _all_in_sync(leader) and not leader.is_isr_pressed:
            return  # no new check: the leader's next check is early enough
        looked_ms = self._looked_ms.get(leader)
        self._look_at(leader, now_ms if looked_ms is None else max(now_ms, looked_ms + LOOK_MS))

    def metadata_changed(self, leaders: Iterable[PartitionLeader]) -> None:
        """Called when the metadata of the partitions that ``leaders`` lead has changed, or the metadata of brokers with
        replicas of these partitions."""
        now_ms = self._now_ms()
        for leader in leaders:
            self._look_at(leader, now_ms)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            questions = self._gather()
            if questions:
                await self._exchange(questions)
            else:
                await self._sleep()

    def _look_at(self, leader: PartitionLeader, at_ms: int) -> None:
        before_ms = self._due_ms.get(leader)
        if before_ms is not None and before_ms <= at_ms:
            return
        self._due_ms[leader] = at_ms
        is_first = not self._heap or at_ms < self._heap[0][0]
        heapq.heappush(self._heap, (at_ms, next(self._numbers), leader))
        if len(self._heap) > 2 * len(self._due_ms) + OVERTAKEN_MAX:
            self._heap[:] = [entry for entry in self._heap if self._due_ms.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
        if is_first and self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _gather(self) -> list[_Question]:
        """Collect the ISR changes of all leaders that are due."""
        now_ms = self._now_ms()
        questions: list[_Question] = []
        heap, due = self._heap, self._due_ms
        while heap and heap[0][0] <= now_ms and len(questions) < CALL_PARTITIONS_MAX:
            at_ms, _, leader = heapq.heappop(heap)
            if due.get(leader) != at_ms:
                continue  # the leader was checked already, or its check is due at another time
            del due[leader]
            change = leader.isr_change(now_ms, self._broker_epoch_of)
            if change is not None:
                leader.proposed(change)
                questions.append(_Question(leader, change))
            self._watch(leader, now_ms)
        return questions

    def _watch(self, leader: PartitionLeader, now_ms: int) -> None:
        """Schedule the next check of a leader that was just checked."""
        due_ms = leader.next_due_ms(now_ms)
        if due_ms is None:
            self._looked_ms.pop(leader, None)
            return
        self._looked_ms[leader] = now_ms
        at_ms = max(due_ms, now_ms + LOOK_MS)
        if _all_in_sync(leader):
            at_ms = min(at_ms, now_ms + self._period_ms)  # check after a period; earlier signals are ignored
        self._look_at(leader, at_ms)

    async def _sleep(self) -> None:
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        timer = None
        if self._heap:
            delay_s = max(self._heap[0][0] - self._clock.monotonic_ms(), 0) / 1000
            timer = loop.call_later(delay_s, _resolve, self._wake)
        try:
            await self._wake
        finally:
            self._wake = None
            if timer is not None:
                timer.cancel()

    async def _exchange(self, questions: list[_Question]) -> None:
        asked = [
            IsrRequest(
                leader.topic_id,
                leader.partition.partition,
                leader.leader_epoch,
                change.partition_epoch,
                change.isr,
                change.recovering,
                leader.is_isr_uncertain,
            )
            for leader, change in questions
        ]
        answers: Mapping[ReplicaKey, IsrAnswer | HeadraceError] = {}
        failure: HeadraceError | None = None
        try:
            answers = await self._ask(asked)
        except HeadraceError as error:
            failure = error
            level = logging.DEBUG if error.retriable else logging.WARNING
            logger.log(level, "cannot change %s, retrying: %s", counted(len(asked), "in-sync set"), error)
        now_ms = self._now_ms()
        for leader, change in questions:
            outcome = failure or answers.get((leader.topic_id, leader.partition.partition))
            self._failures.value += not isinstance(outcome, IsrAnswer)
            if isinstance(outcome, IsrAnswer):
                self._altered(leader, outcome)
            elif isinstance(outcome, HeadraceError):
                self._refused(leader, change, outcome, is_open=failure is not None, now_ms=now_ms)
            else:  # the controller did not answer all items
                leader.alter_refused("UNKNOWN_SERVER_ERROR", retriable=True, now_ms=now_ms)
            self._look_at(leader, max(leader.next_due_ms(now_ms) or now_ms, now_ms))

    def _altered(self, leader: PartitionLeader, answer: IsrAnswer) -> None:
        before = leader.isr
        if not leader.altered(answer.isr, answer.partition_epoch, answer.leader_epoch, answer.recovering):
            return
        isr = leader.isr
        removed = tuple(sorted(set(before) - set(isr)))
        added = tuple(sorted(set(isr) - set(before)))
        if removed:
            self._events.emit(IsrShrunk(partition=leader.partition, removed=removed, isr=isr))
        if added:
            self._events.emit(IsrExpanded(partition=leader.partition, added=added, isr=isr))

    def _refused(
        self, leader: PartitionLeader, change: IsrChange, error: HeadraceError, *, is_open: bool, now_ms: int
    ) -> None:
        """``is_open`` means that the whole AlterPartition call failed, so its outcome is unknown."""
        logger.log(
            logging.DEBUG if is_open or error.retriable else logging.INFO,
            "%s: the controller rejected the in-sync set %s: %s",
            leader.partition,
            list(change.members),
            error,
        )
        leader.alter_refused(error.code, retriable=is_open or error.code not in _GIVEN_UP, now_ms=now_ms)

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_ms())


def _all_in_sync(leader: PartitionLeader) -> bool:
    return not leader.recovering and len(leader.maximal_isr) >= len(leader.replicas)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
