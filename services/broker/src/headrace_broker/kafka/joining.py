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
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace_core.errors import HeadraceError
from headrace_core.log.appending import AppendOutcome, Outcomes, timestamp_limits
from headrace_core.log.files import Buffer
from headrace_core.metadata.shards import INTERNAL_TOPICS
from headrace_core.records import BatchHeader, check_plain_batch
from headrace_core.types import TopicPartition
from headrace_kafka.client import Client
from headrace_kafka.produce_path import PlainProduce

from ..context import BrokerContext
from ..flow import BULK_BYTES, LIVE_S, StreamFlow
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

#: One batch of a request: its partition, the topic's id (b"" if the request names the topic) and the batch.
Part = tuple[TopicPartition, bytes, Buffer]


class _Joined(NamedTuple):
    """A batch of a joined append, which is the one at ``place`` in its request."""

    request: PlainProduce
    place: int
    header: BatchHeader


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
    batches: list[_Joined] = field(default_factory=list)  #: Those without an answer.
    parts: list[Buffer] = field(default_factory=list)
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
            self.headers = [batch.header for batch in self.batches]
            self.data = bytearray().join(self.parts)
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

    def add(self, request: PlainProduce, parts: list[Part], *, committed: bool, timeout_ms: int) -> bool:
        """Append the batches of a request whose client may write to the topics. Returns False, without a call of
        ``request.told``, if the request must go the way of all requests, where it may be refused."""
        partitions, turns = self._broker.partitions, self._broker.flow.turns
        if partitions.refusal is not None:
            return False
        now_s = time.perf_counter()
        if request.size < BULK_BYTES:
            turns.noted_s = now_s
        elif now_s - turns.noted_s < LIVE_S:  # it waits for its turn
            return False
        if len(parts) > 1 and len({part[0] for part in parts}) < len(parts):
            return False
        found = []
        for partition, topic_id, records in parts:
            replica = partitions.led.get(partition)
            if replica is None or (topic_id and topic_id != replica.leader.topic_id):
                return False
            append = self._open_append(replica, len(records), committed, timeout_ms, now_s)
            header = None if append is None else check_plain_batch(records, *append.rules)
            if append is None or header is None:
                return False
            found.append((append, header, records))
        for place, (append, header, records) in enumerate(found):
            append.batches.append(_Joined(request, place, header))
            append.parts.append(records)
            append.size += len(records)
        self._note(request.client)
        return True

    def _note(self, client: Client) -> None:
        """Count a request. It may be the last one that a gathering append waits for."""
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

    def _open_append(
        self, replica: LeaderReplica, size: int, committed: bool, timeout_ms: int, now_s: float
    ) -> JoinedAppend | None:
        """The append of this pass that may take a batch of ``size`` bytes; None if the batch cannot be joined."""
        append: JoinedAppend | None = replica.joined
        if (
            append is None
            or append.committed is not committed
            or append.timeout_ms != timeout_ms
            or append.size + size > JOINED_BYTES_MAX
            or len(append.parts) >= JOINED_MAX
        ):
            if append is not None:
                append.submit()
                if replica.joined is not None:  # a client that got its answer has sent its next batch
                    return None
            append = self._begin(replica, committed, timeout_ms, now_s)
        return append

    def _begin(self, replica: LeaderReplica, committed: bool, timeout_ms: int, now_s: float) -> JoinedAppend | None:
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
        now_ms, config = broker.clock.now_ms(), replica.log.config
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
        broker = self._broker
        broker.metrics.produce_requests.value += sum([not batch.place for batch in append.batches])
        broker.metrics.produce_bytes.value += len(append.data)
        append.kept = KEPT_BYTES * len(append.batches)
        self._flow.admit(append.size, append.kept, append.started_s)
        broker.flow.deadlines.add(append, append.timeout_ms or broker.limits.request_timeout_ms)

    def _written(self, append: JoinedAppend, waiting: Waiting) -> None:
        """The batches are in the log, and wait for other replicas."""
        append.local_s = time.perf_counter()
        self._free(append)
        if append.batches:
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
            if not append.batches:
                self._flow.done(append.size, append.kept)

    def settle(self, append: JoinedAppend, outcomes: list[AppendOutcome], up_to: int) -> list[AppendOutcome]:
        """Answer the batches that were refused or end at or below ``up_to``; returns the outcomes of the others."""
        if not append.batches:  # it has timed out
            return []
        waiting: list[tuple[_Joined, AppendOutcome]] = []
        told: list[tuple[_Joined, AppendOutcome]] = []
        for batch, outcome in zip(append.batches, outcomes, strict=True):
            is_over = isinstance(outcome, HeadraceError) or outcome.next_offset <= up_to
            (told if is_over else waiting).append((batch, outcome))
        append.batches = [batch for batch, _ in waiting]
        if told:
            self._tell(append, told)
        return [outcome for _, outcome in waiting]

    def answered(self, append: JoinedAppend, outcome: Outcomes) -> None:
        """Answer each batch, unless that was done."""
        batches, append.batches = append.batches, []
        if not batches:
            return
        if isinstance(outcome, list):
            self._tell(append, list(zip(batches, outcome, strict=True)))
        else:
            self._tell(append, [(batch, outcome) for batch in batches])
        if not append.is_in_memory:
            self._flow.done(append.size, append.kept)

    def _tell(self, append: JoinedAppend, every: list[tuple[_Joined, AppendOutcome]]) -> None:
        """Tell the requests what became of their batches. An outcome of all batches begins with the first one."""
        replica, metrics, now_s = append.replica, self._broker.metrics, time.perf_counter()
        start, ended, latest, offset = replica.leader.log_start, 0, None, 0
        if every[0][0].request.size < BULK_BYTES:
            self._broker.flow.turns.noted_s = now_s
        for (request, place, header), outcome in every:
            fate: tuple[int, int] | HeadraceError
            if isinstance(outcome, HeadraceError):
                metrics.produce_errors.value += 1
                metrics.kafka_times.failed(_REQUEST, outcome.code)
                fate = self._broker.partitions.for_clients(replica.partition, outcome)
            else:
                offset = offset if outcome is latest else outcome.base_offset
                latest, fate = outcome, (offset, start)
                offset += header.record_count
            try:
                ended += request.told(place, fate)
            except Exception:
                logger.exception("a client's answer failed unexpectedly")  # the other clients get theirs
        self._load.in_progress -= ended
        if ended:
            metrics.kafka_times.answered(_REQUEST, append.started_s, append.local_s or now_s, now_s, count=ended)


def _nothing() -> None:
    """The requests of connections that are not joined have streams that flow control holds."""


def _nobody(outcome: object) -> None:
    """Replaced before the append is submitted."""
