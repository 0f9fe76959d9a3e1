"""The sender: takes batches from the partition queues, sends them, and gives each an outcome. The sender runs on the
I/O thread.

Each broker has one ``BrokerLink``. A link has one produce stream, with up to ``max.in.flight.requests.per.connection``
requests in flight. A request holds at most one batch of each partition; the batches of a partition are sent in queue
order.

With linger.ms=0, a partial batch is sent at once when no request is in flight to its broker. While a request is in
flight, a partial batch waits for the next response, at most 5 ms. With linger.ms=0, an idle link has the lowest
latency, and a busy link forms larger batches. Many small requests would overload a link, because one message costs as
much time as a million bytes of data. A full batch is sent as soon as the link of its broker may send a request.

**Order.** A broker handles the requests of a stream in order, so the batches of a partition arrive in order. When a
batch fails with a retriable error, its partition sends nothing until all its batches in flight have a response. When a
partition has no batch in flight any more, all its failed batches are retried, oldest first. An idempotent producer
gives its batches sequence numbers (``sequences.py``), so the broker refuses the batches behind a failed one. Without
sequence numbers, a later batch may be written before the retry of an earlier one, unless
max.in.flight.requests.per.connection=1.

**Outcome unknown.** When a stream breaks or a request times out, the batches of the unanswered requests may have been
written. Batches with an unknown outcome are retried within delivery.timeout.ms with the same sequence numbers, by which
the broker detects duplicates. Without idempotence, a retried batch with an unknown outcome may be written twice. When
the retries of a batch that may have been written end without an acknowledgement, the error is UnknownOutcomeError.

**Leader changes.** The sender uses a new leader at once, when a broker's refusal names it (KIP-951) or the metadata
watch reports it. With a new leader, batches that wait for a retry are sent without a further wait. Without news of a
new leader, a link or a partition is retried once per retry.backoff.ms, a time that grows with each failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from headrace_core.errors import (
    ClosedError,
    DeliveryTimeoutError,
    HeadraceError,
    OutOfOrderSequenceNumberError,
    RecordTooLargeError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    UnknownOutcomeError,
)
from headrace_core.plurals import counted
from headrace_core.records import Compression
from headrace_protos.v1 import produce_pb2

from ..accumulator import Accumulator, AsyncRecordFuture, PartitionQueue, SendBatch
from ..callbacks import run_callback
from ..engine.client import Engine
from ..engine.metadata import Snapshot, TopicInfo
from ..metrics import Metrics, PartitionCounts
from .identity import ProducerIdentity
from .link import BrokerLink, build
from .sequences import PartitionSequences, Verdict
from .transactional import Transactions

if TYPE_CHECKING:
    from ..tracing import ProducerTraces

logger = logging.getLogger("headrace")

_ACKS = {
    "all": produce_pb2.ACKS_ALL,
    "-1": produce_pb2.ACKS_ALL,
    "1": produce_pb2.ACKS_LEADER,
    "0": produce_pb2.ACKS_NONE,
}

_STALE_METADATA = frozenset(
    (
        "UNKNOWN_TOPIC_OR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "NOT_LEADER_OR_FOLLOWER",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_TOPIC_ID",
        "INCONSISTENT_TOPIC_ID",
        "KAFKA_STORAGE_ERROR",
        "FENCED_BROKER",
        "SERVER_SHUTTING_DOWN",
        "NETWORK_EXCEPTION",
    )
)


class QueueNotes:
    """The sender's state of one partition queue. ``sequences`` is None without idempotence."""

    __slots__ = ("failed", "in_flight", "last_error", "leader_epoch", "link", "moved_at", "retry_at", "sequences")

    def __init__(self, sequences: PartitionSequences[SendBatch] | None) -> None:
        self.sequences = sequences
        self.leader_epoch = -1
        # The time at which the client noticed that the broker of ``link`` is no longer the leader although batches are
        # in flight; infinity otherwise.
        self.moved_at = float("inf")
        self.link: BrokerLink | None = None  # the link that the queue's batches use, or used last
        self.in_flight = 0
        self.failed: list[SendBatch] = []  # failed batches, which are sent again when no batch is in flight
        self.retry_at = 0.0
        self.last_error: HeadraceError | None = None


class Sender:
    """Assigns partition queues to broker links, and handles failures."""

    def __init__(self, engine: Engine, config: dict[str, Any], metrics: Metrics) -> None:
        self.engine = engine
        self.accumulator: Accumulator  # the core sets the accumulator before the first wake
        self.metrics = metrics
        self.partition_metrics = PartitionCounts()
        self.acks = _ACKS[config["acks"]]
        self.linger_s: float = config["linger.ms"] / 1000
        self.delivery_timeout_s: float = config["delivery.timeout.ms"] / 1000
        self.request_timeout_s: float = config["request.timeout.ms"] / 1000
        self.max_request_bytes: int = config["max.request.size"]
        self.max_in_flight: int = config["max.in.flight.requests.per.connection"]
        self.retries: int = config["retries"]
        self.compression = Compression.parse(config["compression.type"])
        level = config.get(f"compression.{config['compression.type']}.level")
        self.compression_level: int | None = None if level in (None, -1) else level
        self.traces: ProducerTraces | None = None  # set by the core
        self.flushing = 0
        self.links: dict[int, BrokerLink] = {}
        self.identity: ProducerIdentity | Transactions | None = None
        #: The core of a transactional producer sets ``transactions`` together with ``identity``.
        self.transactions: Transactions | None = None
        self.transactional_id: str | None = config["transactional.id"]
        if config["enable.idempotence"] and self.transactional_id is None:
            self.identity = ProducerIdentity(engine, self.identity_renewed, self._identity_refused)
        self._nameless: dict[PartitionQueue, None] = {}  # queues that wait for a producer id or a new epoch
        self._orphans: dict[PartitionQueue, None] = {}  # queues whose partition has no known leader
        self._sweeper: asyncio.Task[None] | None = None
        self._compressing: dict[SendBatch, asyncio.Future[None]] = {}
        self._topic_ids: dict[str, bytes] = {}
        #: The metadata that each topic's queues have. Most topics do not change from snapshot to snapshot.
        self._applied: dict[str, TopicInfo] = {}
        self._closed = False
        engine.metadata.listeners.append(self._on_snapshot)

    # --- queues and routing ----------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Process the queues that have new batches; runs on the I/O thread."""
        if self._closed:
            return
        links = set()
        for queue in self.accumulator.take_ready():
            if queue.sender is None:
                queue.sender = QueueNotes(None if self.identity is None else PartitionSequences())
            link = self._route(queue)
            if link is not None:
                links.add(link)
        for link in self.links.values() if self.flushing or not links else links:
            link.nudge()
        if self._sweeper is None:
            self._sweeper = self.engine.spawn(self._sweep(), "headrace-expiry")

    def nudge_all(self) -> None:
        for link in self.links.values():
            link.nudge()

    def _route(self, queue: PartitionQueue) -> BrokerLink | None:
        """Add the queue to the link of its leader; without a known leader, remember the queue and return None."""
        snapshot = self.engine.metadata.snapshot
        info = snapshot.topics.get(queue.topic.name)
        leader = info.partitions[queue.partition].leader if info and queue.partition < len(info.partitions) else -1
        broker = snapshot.brokers.get(leader)
        if broker is None:
            self._orphans[queue] = None
            if info is None and self.engine.create_topics and _has_records(queue):
                self.engine.metadata.wanted.add(queue.topic.name)
            self.engine.metadata.invalidate()
            return None
        link = self.links.get(leader)
        if link is None or link.address != broker.address:
            old, link = link, BrokerLink(self, leader, broker.address)
            # Register the new link first: retiring the old link returns its batches, and the sender routes these
            # batches at once.
            self.links[leader] = link
            if old is not None:
                old.retire()
        notes: QueueNotes = queue.sender
        # To keep the order of records, wait for the old leader's responses.
        if notes.in_flight and notes.link is not link:
            self._orphans[queue] = None
            return None
        notes.link, notes.moved_at = link, float("inf")
        epoch = info.partitions[queue.partition].leader_epoch if info else -1
        if epoch > notes.leader_epoch:  # a newer leader epoch: no pause after earlier failures
            notes.leader_epoch, notes.retry_at = epoch, 0.0
            link.has_news()
        link.pending[queue] = None
        return link

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        for name, queues in self.accumulator.topics.items():
            info = snapshot.topics.get(name)
            if info is None or self._applied.get(name) is info:
                continue
            self._applied[name] = info
            known = self._topic_ids.setdefault(name, info.topic_id)
            if len(info.partitions) > len(queues.queues):
                queues.grow(len(info.partitions))
            queues.available = [part.partition for part in info.partitions if part.leader >= 0]
            # The topic was deleted and created again; if the topic's id is unchanged, fewer partitions only mean that
            # the answering node lags.
            if known != info.topic_id:
                self._topic_ids[name] = info.topic_id
                if len(info.partitions) < len(queues.queues):
                    queues.shrink(len(info.partitions))
        for link in list(self.links.values()):
            for queue in [queue for queue in link.pending if self._has_news(queue, link)]:
                del link.pending[queue]
                self._orphans[queue] = None
        self.adopt_orphans()

    def leader_of(self, queue: PartitionQueue) -> int:
        """The id of the partition's leader according to the metadata; -1 without a leader."""
        info = self.engine.metadata.snapshot.topics.get(queue.topic.name)
        return info.partitions[queue.partition].leader if info and queue.partition < len(info.partitions) else -1

    def _has_news(self, queue: PartitionQueue, link: BrokerLink) -> bool:
        """Whether the partition has another leader, or the same leader in a new epoch or at a new address."""
        snapshot = self.engine.metadata.snapshot
        info = snapshot.topics.get(queue.topic.name)
        if info is None or queue.partition >= len(info.partitions):
            return True
        part = info.partitions[queue.partition]
        known: int = queue.sender.leader_epoch
        broker = snapshot.brokers.get(link.broker_id)
        is_elsewhere = broker is not None and broker.address != link.address
        return bool(part.leader != link.broker_id or part.leader_epoch > known or is_elsewhere)

    def orphan(self, queues: Iterable[PartitionQueue]) -> None:
        """Remember queues that have lost their link; new metadata assign them to links again."""
        self._orphans.update(dict.fromkeys(queues))

    def adopt_orphans(self) -> None:
        """Assign each queue without a link to the link of its partition's leader, if the metadata show a leader, and
        the old leader has answered the queue's requests."""
        if self._closed:
            return
        orphans, self._orphans = self._orphans, {}
        for queue in orphans:
            link = self._route(queue)
            if link is not None:
                link.nudge()

    async def compressed(self, batch: SendBatch) -> None:
        """Compress the batch on a worker thread. A batch is compressed only once, even if the link that requested the
        compression no longer exists."""
        work = self._compressing.get(batch)
        if work is None:
            loop = asyncio.get_running_loop()
            try:
                work = loop.run_in_executor(None, build, batch, self.compression, self.compression_level)
            except RuntimeError:  # the interpreter is ending and starts no more threads: this is the last flush
                build(batch, self.compression, self.compression_level)
                return
            self._compressing[batch] = work
            work.add_done_callback(lambda _: self._compressing.pop(batch, None))
        await asyncio.shield(work)

    # --- producer id and numbers -----------------------------------------------------------------------------------

    def may_go(self, queue: PartitionQueue, batch: SendBatch, now: float) -> bool:
        """Whether the next batch of the queue may be sent now. If the batch may not be sent yet, the queue's link is
        notified when it should check again."""
        notes: QueueNotes = queue.sender
        sequences = notes.sequences
        if sequences is None or batch.done:
            return True
        if sequences.may_send(batch, notes.in_flight, now):
            return True
        if notes.in_flight:
            return False  # the response to a batch is pending
        self._regroup(queue)
        if not sequences.needs_identity:
            return bool(batch.done) or sequences.may_send(batch, 0, now)
        assert self.identity is not None
        if self.identity.current not in (None, sequences.identity):
            sequences.renew(self.identity.current)
            if self.transactions is not None:
                self.transactions.numbered(sequences)
            return sequences.may_send(batch, 0, now)
        self._nameless[queue] = None
        self.identity.ask()
        return False

    def _regroup(self, queue: PartitionQueue) -> None:
        for batch in queue.sender.sequences.regroup():
            gap = OutOfOrderSequenceNumberError(
                "the broker no longer has the sequence numbers of this producer's earlier batches"
            )
            self.fail(batch, self._unknown(batch, queue.sender.last_error or gap))

    def identity_renewed(self) -> None:
        self._nameless.clear()
        self.nudge_all()

    def _identity_refused(self, error: HeadraceError) -> None:
        """Fail the waiting batches, because no broker granted a producer id."""
        waiting, self._nameless = self._nameless, {}
        for batch in self.accumulator.snapshot_unfinished():
            if batch.queue in waiting and not batch.in_flight:
                self.fail(batch, type(error)(error.message))
        self.nudge_all()

    def too_large(self, batch: SendBatch) -> RecordTooLargeError | None:
        """The error for a batch larger than its topic allows; None if the size is allowed."""
        topic, size = batch.queue.topic.name, len(batch.data or b"")
        info = self.engine.metadata.snapshot.topics.get(topic)
        if info is None or not 0 < info.max_message_bytes < size:
            return None
        cure = "send smaller records" if batch.count == 1 else "lower batch.size"
        return RecordTooLargeError(
            f"a batch of {counted(batch.count, 'record')} has {size} bytes after compression, the limit is "
            f"{info.max_message_bytes} (the smallest of the topic's max.message.bytes and segment.bytes, and the "
            f"brokers' socket.request.max.bytes); {cure}, or raise these keys"
        )

    # --- outcomes --------------------------------------------------------------------------------------------------

    def succeed(self, batch: SendBatch, base_offset: int, log_append_time_ms: int) -> None:
        count, sequences = batch.count, batch.queue.sender.sequences
        if sequences is not None:
            sequences.acknowledged(batch, time.monotonic())
        batch.queue.sender.last_error = None
        finish(batch, base_offset, log_append_time_ms, None)
        self.metrics["record-send"].record(count, count)
        self.partition_metrics.add(batch.queue.topic.name, batch.queue.partition, "record-send-total", count)

    def fail(self, batch: SendBatch, error: HeadraceError) -> None:
        """Set ``error`` as the outcome of the batch; later responses for the batch have no effect."""
        self.metrics["record-error"].record(batch.count, batch.count)
        self.partition_metrics.add(batch.queue.topic.name, batch.queue.partition, "record-error-total", batch.count)
        if self.transactions is not None:
            self.transactions.record_failed(error)
        notes: QueueNotes | None = batch.queue.sender
        if notes is not None and notes.sequences is not None:
            notes.sequences.give_up(batch, in_flight=batch.in_flight)
        finish(batch, -1, -1, error)

    def drop(self, error_of: Callable[[SendBatch], HeadraceError]) -> None:
        """Fail every batch without an outcome."""
        for batch in self.accumulator.snapshot_unfinished():
            self.fail(batch, error_of(batch))
        self.nudge_all()

    def settle(self, batch: SendBatch, error: HeadraceError, *, unknown: bool) -> None:
        """Retry a failed batch, or set ``error`` as its outcome. ``unknown``: the batch may have been written."""
        queue = batch.queue
        notes: QueueNotes = queue.sender
        batch.in_flight = False
        batch.maybe_written = batch.maybe_written or unknown
        notes.last_error = error
        if error.code in _STALE_METADATA:
            self.engine.metadata.invalidate()
        again = error.retriable
        if notes.sequences is not None:
            verdict = notes.sequences.failed(batch, error.code, retriable=error.retriable, unknown=unknown)
            again = verdict in (Verdict.RETRY, Verdict.RENUMBER)
        if batch.done:
            return
        now = time.monotonic()
        if again and batch.attempts <= self.retries and now < batch.created_s + self.delivery_timeout_s:
            notes.failed.append(batch)
            notes.retry_at = max(notes.retry_at, now + self.engine.backoff.delay_s(batch.attempts - 1))
            self.metrics["record-retry"].record(batch.count, batch.count)
            self.partition_metrics.add(queue.topic.name, queue.partition, "record-retry-total", batch.count)
            logger.debug("retrying a batch of %s-%d: %s", queue.topic.name, queue.partition, error)
        elif batch.maybe_written:
            self.fail(batch, self._unknown(batch, error))
        else:
            self.fail(batch, type(error)(f"{queue.topic.name}-{queue.partition}: {_reason(queue, error)}"))

    def release(self, queue: PartitionQueue) -> None:
        """Note that a batch of the queue has its response. When no batch of the queue is in flight any more, failed
        batches are put back into the queue, oldest first."""
        notes: QueueNotes = queue.sender
        notes.in_flight -= 1
        if notes.in_flight:
            return
        if notes.sequences is not None:
            self._regroup(queue)
        if notes.failed:
            notes.failed.sort(key=lambda batch: batch.sequence)
            queue.requeue([batch for batch in notes.failed if not batch.done])
            notes.failed = []
            queue.listed = True
            self._orphans[queue] = None
        if queue in self._orphans and not self._closed:
            del self._orphans[queue]
            link = self._route(queue)
            if link is not None:
                link.nudge()

    def _unknown(self, batch: SendBatch, error: HeadraceError) -> UnknownOutcomeError:
        queue = batch.queue
        why = f"the last failure: {error.code}: {_reason(queue, error)}"
        if self.leader_of(queue) < 0:
            why = f"{self._leaderless(queue)}; {why}"
        if time.monotonic() >= batch.created_s + self.delivery_timeout_s:
            how = f"not acknowledged within delivery.timeout.ms={self.delivery_timeout_s * 1000:g}"
        elif error.retriable and batch.attempts > self.retries:
            how = f"not acknowledged, and retries={self.retries} allows no further attempt"
        else:
            how = "not acknowledged, and the broker's answer forbids a retry"
        return UnknownOutcomeError(
            f"{queue.topic.name}-{queue.partition}: {counted(batch.count, 'record')} sent but {how}: "
            f"they may or may not be in the log; {why}"
        )

    async def _sweep(self) -> None:
        """Fail all batches that are older than delivery.timeout.ms. Repeat a wake-up of the sender that Ctrl-C in the
        caller's thread prevented."""
        pause = min(max(self.delivery_timeout_s / 10, 0.02), 0.5)
        while True:
            await asyncio.sleep(pause)
            # The accumulator has a batch for the sender, but Ctrl-C interrupted the caller before the caller woke the
            # sender.
            if self.accumulator.awake:
                self.wake()
            if self.traces is not None:
                self.accumulator.untraced = self.traces.ticked(self.accumulator.untraced)
            now = time.monotonic()
            for batch in self.accumulator.snapshot_unfinished():
                if now < batch.created_s + self.delivery_timeout_s:
                    continue
                if batch.maybe_written or batch.in_flight:
                    last = batch.queue.sender.last_error or RequestTimedOutError("no answer yet")
                    self.fail(batch, self._unknown(batch, last))
                else:
                    self.fail(
                        batch,
                        DeliveryTimeoutError(
                            f"{batch.queue.topic.name}-{batch.queue.partition}: {counted(batch.count, 'record')} not "
                            f"written within delivery.timeout.ms={self.delivery_timeout_s * 1000:g}; "
                            + self._why(batch.queue)
                        ),
                    )
            for link in list(self.links.values()):  # iterate over a copy: ``moved`` may open a link to the new leader
                link.check_request_timeout(now)
                link.moved(now)
                link.nudge()  # the expired batch may have blocked later batches

    def _why(self, queue: PartitionQueue) -> str:
        if queue.topic.name not in self.engine.metadata.snapshot.topics:
            return f"topic {queue.topic.name!r} no longer exists"
        notes: QueueNotes = queue.sender
        if self.leader_of(queue) < 0:
            return self._leaderless(queue)
        if queue in self._nameless and self.identity is not None and self.identity.last_error is not None:
            return f"no producer id from the brokers: {self.identity.last_error.message}"
        link_error = None if notes is None or notes.link is None else notes.link.last_error
        if isinstance(link_error, SaslAuthenticationFailedError):  # it explains why the older one still lasts
            return f"the last failure: {link_error.message}"
        if notes is not None and notes.last_error is not None:
            return f"the last failure: {notes.last_error.code}: {notes.last_error.message}"
        if link_error is not None:
            return f"the last failure: {link_error.message}"
        return "the broker writes more slowly than the producer sends"

    def _leaderless(self, queue: PartitionQueue) -> str:
        last = self.engine.metadata.last_leaders.get((queue.topic.name, queue.partition))
        if last is None:
            return f"{queue.topic.name}-{queue.partition} has no leader"
        return f"{queue.topic.name}-{queue.partition} has no leader; broker {last[0]} led it last (epoch {last[1]})"

    async def close(self) -> None:
        """Fail the remaining batches and end the streams; later wake-ups open no new streams."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None  # drop the task: a cancelled task's traceback would keep the sender
        if isinstance(self.identity, ProducerIdentity):
            await self.identity.close()
        for batch in self.accumulator.snapshot_unfinished():
            error: HeadraceError = ClosedError("the producer was closed before the record was sent")
            if batch.in_flight or batch.maybe_written:
                error = UnknownOutcomeError(
                    "the producer was closed before the record was acknowledged: it may or may not be in the log"
                )
            self.fail(batch, error)
        links, self.links = list(self.links.values()), {}
        await asyncio.gather(*(link.close() for link in links))
        self._orphans.clear()
        self._nameless.clear()


def finish(batch: SendBatch, base_offset: int, log_append_time_ms: int, error: HeadraceError | None) -> None:
    """Set the outcome of a batch and notify its waiters: a callback is called, an asyncio future is completed on its
    event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[AsyncRecordFuture]] = {}
    for waiter in batch.finish(base_offset, log_append_time_ms, error):
        if isinstance(waiter, tuple):
            future, callback = waiter
            run_callback(callback, future)
        else:
            loops.setdefault(waiter.get_loop(), []).append(waiter)
    for loop, waiters in loops.items():
        try:
            loop.call_soon_threadsafe(_run_all, waiters)
        except RuntimeError:
            logger.debug("the event loop of %d waiting sends is closed", len(waiters))


def _has_records(queue: PartitionQueue) -> bool:
    """Whether the queue has records that have not failed."""
    return any(batch is not None and not batch.done for batch in (queue.open, *queue.sealed))


def _reason(queue: PartitionQueue, error: HeadraceError) -> str:
    """The text of an error without the name of the partition, because the producer's own message already begins with
    that name."""
    return error.message.removeprefix(f"{queue.topic.name}-{queue.partition}: ")


def _run_all(waiters: Iterable[AsyncRecordFuture]) -> None:
    for waiter in waiters:
        waiter.run_callbacks()
