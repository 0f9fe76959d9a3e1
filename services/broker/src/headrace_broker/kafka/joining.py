"""Joined appends: batches of one partition that arrive in one pass of the event loop become one append.

A client that does not batch sends a request for each record. Alone, each such append costs the broker an object in
every layer, a turn's bookkeeping and an answer through each layer again; together, all this is done once for a
partition and a pass. The check of a batch, its producer's sequence, its offset and its answer stay its own: a wrong
batch fails alone.

Only plain appends are joined (``Joiner.add``). All others go the way of ``LeaderReplica.append``; a joined append of
their partition is submitted before them, so the order stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace_core.errors import HeadraceError
from headrace_core.log import AppendInfo
from headrace_core.log.appending import AppendOutcome, Outcomes, timestamp_limits
from headrace_core.log.files import Buffer
from headrace_core.metadata.shards import INTERNAL_TOPICS
from headrace_core.records import BatchHeader, check_plain_batch
from headrace_core.types import TopicPartition
from headrace_kafka.client import Client

from ..context import BrokerContext
from ..flow import StreamFlow
from ..handlers.produce import KEPT_BYTES, late_error
from ..leader_replica import LeaderAppend, LeaderReplica
from ..partition.leader import Waiting

logger = logging.getLogger(__name__)

#: Most bytes and batches of a joined append. A turn of the log's writer with more bytes leaves the event loop.
JOINED_BYTES_MAX, JOINED_MAX = 48 * 1024, 500
#: Under load, a turn of the log's writer with all clients costs little more than a turn with a few. So while at least
#: BUSY requests arrived in the last WINDOW_S seconds, the broker submits the batches of a pass when each client of that
#: time has a request in progress, or after GATHER_S seconds (the timer of uvloop counts whole milliseconds).
WINDOW_S, BUSY, GATHER_S = 0.1, 600, 0.001
_REQUEST = "Produce"

#: Callback for one batch: its base offset and the log's start, or the error.
Told = Callable[[int, int, HeadraceError | None], None]


@dataclass(slots=True, kw_only=True, eq=False)
class JoinedAppend(LeaderAppend):
    """Batches of one partition with the same acks and timeout. In flow control it is one request."""

    joiner: Joiner
    replica: LeaderReplica
    timeout_ms: int
    started_s: float
    #: What ``check_plain_batch`` needs of the topic's settings.
    rules: tuple[int, bool, int, int]
    joined: bool = True
    checked: list[BatchHeader] = field(default_factory=list)
    parts: list[Buffer] = field(default_factory=list)
    joinings: list[Told] = field(default_factory=list)
    size: int = 0
    kept: int = 0
    local_s: float = 0.0
    is_in_memory: bool = True
    deadline_ms: float = 0.0
    waiting: Waiting | None = None

    def submit(self) -> None:
        """Pass the batches to the log's writer. The append takes no further batches."""
        self.replica.joined = None
        if self.parts:
            self.headers, self.data = self.checked, bytearray().join(self.parts)
            self.parts = []
            self.joiner.began(self)
            try:
                self.replica.submit(self)
            except HeadraceError as error:
                self.answer(error)
        else:
            self.answer, self.written = _nobody, None  # no reference cycle

    def refuse(self, error: HeadraceError) -> None:
        """Answer all batches with ``error``; nothing was appended."""
        self.replica.joined = None
        if self.parts:
            self.parts = []
            self.joiner.began(self)
            self.answer(error)

    def expire(self) -> None:
        """The timeout is over. The records may still be appended, or committed."""
        leader, waiting = self.replica.leader, self.waiting
        error = leader.late_error() if self.committed and not self.is_in_memory else late_error()
        self.joiner.answered(self, error)
        if waiting is not None:
            leader.give_up(waiting, error)


class _Load:
    """How many clients send, and how much: in the present window, and in the last whole one."""

    __slots__ = ("began_s", "clients", "clients_before", "in_progress", "is_busy", "requests", "window")

    def __init__(self) -> None:
        self.began_s = 0.0
        self.window = self.requests = self.clients = self.clients_before = 0
        self.in_progress = 0  #: Batches that are not answered.
        self.is_busy = False

    def turn(self, now_s: float) -> None:
        """Begin a window. After a pause, the last one says nothing."""
        is_next = now_s - self.began_s < 2 * WINDOW_S
        self.is_busy = is_next and self.requests >= BUSY
        self.clients_before = self.clients
        self.began_s, self.requests, self.clients = now_s, 0, 0
        self.window += 1


class Joiner:
    """The joined appends of all partitions of a broker."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        #: Unanswered joined appends, among the streams of flow control. While it is held, nothing is joined.
        self._flow = StreamFlow(broker.flow, None, _nothing, _nothing, broker.limits.in_flight_bytes_max)
        self._open: list[JoinedAppend] = []  # of this pass
        self._timer: asyncio.TimerHandle | None = None
        self._load = _Load()

    def add(
        self,
        partition: TopicPartition,
        records: Buffer,
        joining: Told,
        client: Client,
        *,
        topic_id: bytes = b"",
        committed: bool,
        timeout_ms: int,
        size: int,
    ) -> bool:
        """Append one whole batch of a client, which is not transactional and may write to the topic. Returns False,
        without a call of ``joining``, if the batch must go the way of all appends, where it may be refused."""
        broker = self._broker
        replica = broker.partitions.led.get(partition)
        if replica is None or broker.partitions.refusal is not None:
            return False
        append = replica.joined
        if (
            append is None
            or append.committed is not committed
            or append.timeout_ms != timeout_ms
            or append.size + size > JOINED_BYTES_MAX
            or len(append.parts) >= JOINED_MAX
        ):
            if append is not None:
                append.submit()
            append = self._begin(replica, committed, timeout_ms)
            if append is None:
                return False
        if topic_id and topic_id != replica.leader.topic_id:
            return False
        header = check_plain_batch(records, *append.rules)
        if header is None:
            return False
        append.checked.append(header)
        append.parts.append(records)
        append.joinings.append(joining)
        append.size += size
        load = self._load
        load.requests += 1
        load.in_progress += 1
        if client.joined_in != load.window:
            client.joined_in = load.window
            load.clients += 1
        if self._timer is not None and load.in_progress >= load.clients_before:
            self._timer.cancel()
            self._timer = None
            asyncio.get_running_loop().call_soon(self._submit_all)
        return True

    def _begin(self, replica: LeaderReplica, committed: bool, timeout_ms: int) -> JoinedAppend | None:
        broker, leader = self._broker, replica.leader
        if (
            self._flow.holds
            or broker.quotas.table.keys
            or not replica.may_join
            or replica.partition.topic in INTERNAL_TOPICS
        ):
            return None
        try:
            leader.check_serving()
            if committed:
                leader.check_enough_in_sync()
        except HeadraceError:
            return None
        now_s, now_ms, config = time.perf_counter(), broker.clock.now_ms(), replica.log.config
        append = replica.joined = JoinedAppend(
            data=b"",
            leader_epoch=leader.leader_epoch,
            now_ms=now_ms,
            answer=_nobody,
            committed=committed,
            joiner=self,
            replica=replica,
            timeout_ms=timeout_ms,
            started_s=now_s,
            rules=(
                min(config.message_bytes_max, config.segment_bytes),
                config.cleanup_compact,
                *timestamp_limits(config, now_ms),
            ),
        )
        append.answer = lambda outcome: self._done(append, outcome)
        append.written = lambda waiting: self._written(append, waiting)
        if not self._open:
            self._begin_pass(now_s)
        self._open.append(append)
        broker.flow.turns.noted_s = now_s
        return append

    def _begin_pass(self, now_s: float) -> None:
        """Submit after this pass of the event loop or, under load, when no further client is expected."""
        load, loop = self._load, asyncio.get_running_loop()
        if now_s - load.began_s >= WINDOW_S:
            load.turn(now_s)
        if load.is_busy and load.in_progress < load.clients_before:
            self._timer = loop.call_later(GATHER_S, self._submit_all)
        else:
            loop.call_soon(self._submit_all)

    def _submit_all(self) -> None:
        self._timer = None
        appends, self._open = self._open, []
        for append in appends:
            if append.replica.joined is append:
                append.submit()

    def began(self, append: JoinedAppend) -> None:
        """Count an append that is about to be submitted."""
        broker, count = self._broker, len(append.joinings)
        broker.metrics.produce_requests.value += count
        broker.metrics.produce_bytes.value += len(append.data)
        append.kept = KEPT_BYTES * count
        self._flow.admit(append.size, append.kept, append.started_s)
        broker.flow.deadlines.add(append, append.timeout_ms or broker.limits.request_timeout_ms)

    def _written(self, append: JoinedAppend, waiting: Waiting) -> None:
        """The batches are in the log, and wait for other replicas."""
        append.local_s = time.perf_counter()
        self._free(append)
        if append.joinings:
            append.waiting = waiting
        else:  # it has timed out
            append.replica.leader.give_up(waiting, late_error())

    def _done(self, append: JoinedAppend, outcome: Outcomes) -> None:
        """``acks`` is satisfied, or cannot be satisfied."""
        append.answer, append.written = _nobody, None  # no reference cycle
        self._broker.flow.deadlines.discard(append, None)
        self._free(append)
        self.answered(append, outcome)

    def _free(self, append: JoinedAppend) -> None:
        if append.is_in_memory:
            append.is_in_memory = False
            self._broker.flow.free(append.size)
            if not append.joinings:
                self._flow.done(append.size, append.kept)

    def settle(self, append: JoinedAppend, outcomes: list[AppendOutcome], up_to: int) -> list[AppendOutcome]:
        """Answer the batches that were refused or end at or below ``up_to``; returns the outcomes of the others."""
        if not append.joinings:  # it has timed out
            return []
        every = list(zip(append.joinings, append.checked, outcomes, strict=True))
        told = [each for each in every if isinstance(each[2], HeadraceError) or each[2].next_offset <= up_to]
        waiting = [each for each in every if each not in told]
        append.joinings, append.checked = [each[0] for each in waiting], [each[1] for each in waiting]
        if told:
            self._count(append, len(told))
            for joining, _, outcome in told:
                self._tell_outcome(joining, outcome, append.replica)
        return [each[2] for each in waiting]

    def answered(self, append: JoinedAppend, outcome: Outcomes) -> None:
        """Answer each batch, unless that was done."""
        joinings, append.joinings = append.joinings, []
        if not joinings:
            return
        self._count(append, len(joinings))
        if isinstance(outcome, AppendInfo):
            offset, start = outcome.base_offset, append.replica.leader.log_start
            for joining, header in zip(joinings, append.checked, strict=True):
                _tell(joining, offset, start, None)
                offset += header.record_count
        else:
            outcomes = outcome if isinstance(outcome, list) else [outcome] * len(joinings)
            for joining, each in zip(joinings, outcomes, strict=True):
                self._tell_outcome(joining, each, append.replica)
        append.checked = []
        if not append.is_in_memory:
            self._flow.done(append.size, append.kept)

    def _count(self, append: JoinedAppend, count: int) -> None:
        """Count answers."""
        now_s = time.perf_counter()
        self._load.in_progress -= count
        self._broker.flow.turns.noted_s = now_s
        self._broker.metrics.kafka_times.answered(
            _REQUEST, append.started_s, append.local_s or now_s, now_s, count=count
        )

    def _tell_outcome(self, joining: Told, outcome: AppendOutcome, replica: LeaderReplica) -> None:
        if not isinstance(outcome, HeadraceError):
            _tell(joining, outcome.base_offset, replica.leader.log_start, None)
            return
        metrics = self._broker.metrics
        metrics.produce_errors.value += 1
        metrics.kafka_times.failed(_REQUEST, outcome.code)
        _tell(joining, -1, -1, self._broker.partitions.for_clients(replica.partition, outcome))


def _tell(joining: Told, offset: int, start: int, error: HeadraceError | None) -> None:
    try:
        joining(offset, start, error)
    except Exception:
        logger.exception("a client's answer failed unexpectedly")  # the other clients get theirs


def _nothing() -> None:
    """The requests of connections that are not joined have streams that flow control holds."""


def _nobody(outcome: object) -> None:
    """Replaced before the append is submitted."""
