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
    NetworkError,
    OutOfOrderSequenceNumberError,
    RecordTooLargeError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    UnknownOutcomeError,
    from_number,
)
from headrace_core.plurals import counted
from headrace_core.records import Compression
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.limits import PARTITIONS_MAX, REQUEST_RECORDS_BYTES
from headrace_core.rpc.stream import Stream
from headrace_protos.v1 import produce_pb2

from ..accumulator import Accumulator, PartitionQueue, SendBatch
from ..engine.client import Engine
from ..engine.metadata import PartitionInfo, Snapshot, TopicInfo
from ..metrics import Metrics, PartitionCounts
from .futures import finish
from .identity import ProducerIdentity
from .sequences import DUPLICATE, STALE_METADATA, UNKNOWN_OUTCOMES, PartitionSequences, Stamp, Verdict
from .transactional import TRANSACTION_VERSION, Transactions

if TYPE_CHECKING:
    from ..tracing import ProducerTraces

logger = logging.getLogger("headrace")

_ACKS = {
    "all": produce_pb2.ACKS_ALL,
    "-1": produce_pb2.ACKS_ALL,
    "1": produce_pb2.ACKS_LEADER,
    "0": produce_pb2.ACKS_NONE,
}

#: Seconds for which a partial batch waits for a response, with linger.ms=0, while requests are in flight; the same as
#: Kafka 4's default of linger.ms.
GATHER_S = 0.005

#: Seconds that a broker may take to refuse the requests in flight after it has lost the leadership of a partition.
MOVED_S = 1.0

#: Seconds for which ``close`` waits until the broker has read requests with acks=0.
DRAIN_S = 2.0


class BrokerLink(Stream[produce_pb2.ProduceRequest, produce_pb2.ProduceResponse]):
    """The produce stream to one broker. The Sender assigns queues to links, and handles failures."""

    logger = logger
    what, overdue = "produce stream", "the broker did not answer a produce request for"

    def __init__(self, sender: Sender, broker_id: int, address: str) -> None:
        engine, timeout_s = sender.engine, sender.request_timeout_s
        super().__init__(address, f"headrace-produce-{broker_id}", engine.spawn, engine.backoff.delay_s, timeout_s)
        self.sender = sender
        self.broker_id = broker_id
        self.pending: dict[PartitionQueue, None] = {}  # queues with something to send, in round-robin order
        #: The batches of each request without an answer; None for a batch that went to another leader.
        self.in_flight: dict[int, list[SendBatch | None]] = {}
        self._last_sent = 0  # the number of the last request that gRPC got
        self.last_error: HeadraceError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._throttled_until = 0.0  # time.monotonic() until which the broker reads nothing, because of a quota
        self._is_draining = False

    def retire(self) -> None:
        """Drop the stream because the broker has a new address; the sender assigns waiting queues to the new link."""
        self.sender.unroute(self.pending)
        self.pending.clear()
        self.end()
        self.lost(NetworkError(f"broker {self.broker_id} is no longer at {self.address}"))

    async def close(self) -> None:
        """End the stream. With acks=0, first let the broker read what was written, for DRAIN_S."""
        if self.duplex is not None and self._task is not None and self.sender.acks == produce_pb2.ACKS_NONE:
            self._is_draining = True
            self.event.set()
            await asyncio.wait({self._task}, timeout=DRAIN_S)
        await super().close()
        self.pending.clear()  # break the reference cycle: queues refer to their link
        self.in_flight.clear()

    def moved(self, now: float) -> None:
        """Stop waiting for responses about a partition that another broker has led for MOVED_S: a live broker would
        have refused the batches by now. Sequence numbers make a retry at the new leader safe; late responses of the old
        leader are ignored."""
        for number, batches in self.in_flight.items():
            for index, batch in enumerate(batches if number <= self._last_sent else ()):
                if batch is None or batch.queue.sender.sequences is None:
                    continue
                notes: QueueNotes = batch.queue.sender
                if self.sender.leader_of(batch.queue) in (self.broker_id, -1):
                    notes.moved_at = float("inf")
                elif notes.moved_at > now:
                    notes.moved_at = now
                elif now - notes.moved_at > MOVED_S:
                    batches[index] = None
                    lost = NetworkError(
                        f"broker {self.broker_id} at {self.address} does not answer and no longer leads the partition"
                    )
                    self.sender.settle(batch, lost, unknown=True)

    # --- the stream --------------------------------------------------------------------------------------------------

    def open(self) -> Duplex[produce_pb2.ProduceRequest, produce_pb2.ProduceResponse]:
        return self.sender.engine.connections.produce_stream(self.address)

    def has_work(self) -> bool:
        return bool(self.pending) and not self._is_draining

    def is_silent(self) -> None:
        self.sender.engine.metadata.doubt()

    async def next_request(self) -> produce_pb2.ProduceRequest | None:
        sender, now = self.sender, time.monotonic()
        if sender.acks == produce_pb2.ACKS_NONE:
            self._acknowledge_written(now)
        taken = self._take(now)
        if not taken:
            if self._is_draining and self.duplex is not None:
                # With acks=0 only the end of the stream shows that the broker has read all requests; cancelling the
                # stream would drop unread requests.
                await self.duplex.done_writing()
                await asyncio.Event().wait()
            return None
        self.correlation += 1
        number = self.correlation
        batches: list[SendBatch | None] = [batch for batch, _ in taken]
        self.in_flight[number] = batches
        self.sent_at[number] = now
        message = produce_pb2.ProduceRequest(
            correlation_id=number, acks=sender.acks, timeout_ms=int(sender.request_timeout_s * 1000)
        )
        if sender.transactional_id is not None:
            message.transactional_id, message.transaction_version = sender.transactional_id, TRANSACTION_VERSION
        topics, records, wire_bytes = sender.engine.metadata.snapshot.topics, 0, 0
        values: list[tuple[str, float, int]] = [("request", 1, 1)]
        for batch, stamp in taken:
            if batch.data is None:
                if sender.compression is Compression.NONE:
                    build(batch, Compression.NONE, None)
                else:
                    await sender.compressed(batch)
            data = batch.data or b""  # a batch may have expired while it waited for its turn, and then has no data
            info = topics.get(batch.queue.topic.name)
            if info is not None and 0 < info.max_message_bytes < len(data):
                batches.remove(batch)  # a broker would refuse the batch unread, and close the stream
                sender.refuse(batch, info.max_message_bytes)
                continue
            if stamp is not None and not batch.done:
                batch.stamp(*stamp)
            item = message.partitions.add(topic=batch.queue.topic.name, partition=batch.queue.partition, records=data)
            if batch.trace is not None:
                item.traceparent = batch.trace
            records, wire_bytes = records + batch.count, wire_bytes + len(data)
            values.append(("record-queue-time", (now - batch.created_s) * 1000, 1))
            values.append(("batch-size", len(data), 1))
            if batch.size:
                values.append(("compression-rate", len(data) / batch.size, 1))
        if not batches:
            del self.in_flight[number], self.sent_at[number]
            self.event.set()
            return None
        self.sent_at[number] = now = time.monotonic()
        sender.metrics.record(now, *values, ("records-per-request", records, 1), ("outgoing-byte", wire_bytes, 1))
        if self.duplex is not None and not self.duplex.ended:
            self._last_sent = number
        return message

    def _take(self, now: float) -> list[tuple[SendBatch, Stamp | None]]:
        """The batches of the next request with their numbers, at most one of each partition. If none may be sent now,
        ``event`` is set when one may have become sendable."""
        sender, taken = self.sender, list[tuple[SendBatch, Stamp | None]]()
        if len(self.in_flight) >= sender.max_in_flight:
            return taken
        if self._throttled_until > now:
            self._wake_at(self._throttled_until)
            return taken
        room, wake_at = min(sender.max_request_bytes, REQUEST_RECORDS_BYTES), float("inf")
        gather_s = 0.0 if sender.flushing else max(GATHER_S if self.in_flight else 0.0, sender.linger_s)
        for queue in list(self.pending):
            notes: QueueNotes = queue.sender
            if notes.failed:
                continue
            first: SendBatch | None = queue.sealed[0] if queue.sealed else queue.open
            ready_at: float = notes.retry_at
            if first is not None and not queue.sealed:
                ready_at = max(ready_at, first.created_s + gather_s)
            if ready_at > now:
                wake_at = min(wake_at, ready_at)
                continue
            if first is not None:
                sequences = notes.sequences
                if (
                    sequences is not None
                    and not first.done
                    and not sequences.may_send(first, notes.in_flight, now)
                    and not sender.may_go(queue, first, now)
                ) or (taken and first.size > room):
                    continue
            batch = None if first is None else sender.accumulator.take(queue, partial=True)
            del self.pending[queue]
            if batch is not None and not batch.done:
                batch.attempts += 1
                batch.in_flight = True
                notes.in_flight += 1
                taken.append((batch, None if notes.sequences is None else notes.sequences.number(batch, batch.count)))
                room -= batch.size
            elif queue.sealed or queue.open is not None:  # the batch has expired in the queue: look at the next one
                self.event.set()
            if not sender.accumulator.leave_if_empty(queue):
                self.pending[queue] = None  # move the queue to the end of the round
            if room <= 0 or len(taken) >= PARTITIONS_MAX:
                break
        if not taken and wake_at < float("inf"):
            self._wake_at(wake_at)
        return taken

    def _wake_at(self, when: float) -> None:
        """Set ``event`` at the time ``when``; there is one timer at a time."""
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self.sender.engine.io.loop.call_later(max(when - time.monotonic(), 0), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.event.set()

    # --- responses ---------------------------------------------------------------------------------------------------

    def received(self, response: produce_pb2.ProduceResponse) -> None:
        batches = self.in_flight.get(response.correlation_id)
        if batches is None:
            return
        if len(response.results) != len(batches):
            raise NetworkError(
                f"{self.address}: a produce request had {len(batches)} batches, but its response has "
                f"{len(response.results)} results"
            )
        sender, now, throttle_ms = self.sender, time.monotonic(), response.throttle_time_ms
        took_s = now - self.sent_at.pop(response.correlation_id)
        del self.in_flight[response.correlation_id]
        if throttle_ms:
            self._throttled_until = max(self._throttled_until, now + throttle_ms / 1000)
            self.throttled_until(self._throttled_until)
        answered = [
            (batch, result) for batch, result in zip(batches, response.results, strict=True) if batch is not None
        ]
        sent = sum(batch.count for batch, result in answered if not result.error.code)
        sender.metrics.record(
            now,
            ("produce-throttle-time", throttle_ms, 1),
            ("request-latency", max(took_s, 0.0) * 1000, 1),
            ("record-send", sent, sent),
        )
        for batch, result in answered:
            if not result.error.code:
                self.last_error = None
                sender.succeed(batch, result.base_offset, result.log_append_time_ms, now)
            else:
                self._refused(batch, result, now)
        if self.pending or self._is_draining:
            self.event.set()

    def _refused(self, batch: SendBatch, result: produce_pb2.ProducePartitionResult, now: float) -> None:
        sender, error = self.sender, from_number(result.error.code, result.error.message)
        if error.code == DUPLICATE:
            sender.metrics.record(now, ("record-send", batch.count, batch.count))
            sender.succeed(batch, -1, -1, now)
            return
        if result.HasField("current_leader"):
            hint = result.current_leader
            sender.engine.metadata.follow_hint(result.topic, result.partition, hint.leader_id, hint.leader_epoch)
        sender.settle(batch, error, unknown=error.code in UNKNOWN_OUTCOMES)

    def _acknowledge_written(self, now: float) -> None:
        """With acks=0, a request that gRPC has taken is over."""
        while self.in_flight:
            number = next(iter(self.in_flight))
            del self.sent_at[number]
            for batch in filter(None, self.in_flight.pop(number)):
                self.sender.metrics.record(now, ("record-send", batch.count, batch.count))
                self.sender.succeed(batch, -1, -1, now)

    def lost(self, error: HeadraceError) -> None:
        requests, self.in_flight = self.in_flight, {}
        self.sent_at.clear()
        self.last_error = error
        if self._is_draining:
            self.has_news()  # no other stream follows: ``close`` waits for no pause
        if not requests:
            self.sender.engine.metadata.invalidate()
        for number, batches in requests.items():
            for batch in filter(None, batches):
                retriable = error if error.retriable else NetworkError(error.message)
                self.sender.settle(batch, retriable, unknown=number <= self._last_sent)


class QueueNotes:
    """The sender's state of one partition queue. ``sequences`` is None without idempotence."""

    __slots__ = (
        "counts",
        "failed",
        "in_flight",
        "last_error",
        "leader_epoch",
        "link",
        "moved_at",
        "retry_at",
        "routed_by",
        "sequences",
    )

    def __init__(self, sequences: PartitionSequences[SendBatch] | None, counts: dict[str, float]) -> None:
        self.sequences = sequences
        self.counts = counts  # the partition's metrics
        self.routed_by = -1  # the number of the metadata by which ``link`` was chosen
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
        self._awaiting_id: dict[PartitionQueue, None] = {}  # queues that wait for a producer id or a new epoch
        self._unrouted: dict[PartitionQueue, None] = {}  # queues without a link: leader unknown, or the old one answers
        self._snapshots = 0  # counts the metadata that were received
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
            notes: QueueNotes | None = queue.sender
            if notes is None:
                counts = self.partition_metrics.of(queue.topic.name, queue.partition)
                queue.sender = QueueNotes(None if self.identity is None else PartitionSequences(), counts)
                link = self._route(queue)
            elif notes.routed_by == self._snapshots and notes.link is not None:
                link = notes.link
                link.pending[queue] = None
            else:
                link = self._route(queue)
            if link is not None:
                links.add(link)
        for link in self.links.values() if self.flushing or not links else links:
            link.nudge()
        if self._sweeper is None:
            self._sweeper = self.engine.spawn(self._sweep(), "headrace-expiry")

    def nudge_all(self) -> None:
        for link in list(self.links.values()):
            link.nudge()

    def _route(self, queue: PartitionQueue) -> BrokerLink | None:
        """Add the queue to the link of its leader; without a known leader, remember the queue and return None."""
        snapshot = self.engine.metadata.snapshot
        part = self._info(queue)
        broker = None if part is None else snapshot.brokers.get(part.leader)
        if part is None or broker is None:
            self._unrouted[queue] = None
            if queue.topic.name not in snapshot.topics and self.engine.create_topics and _has_records(queue):
                self.engine.metadata.wanted.add(queue.topic.name)
            self.engine.metadata.invalidate()
            return None
        link = self.links.get(part.leader)
        if link is None or link.address != broker.address:
            old, link = link, BrokerLink(self, part.leader, broker.address)
            # Register the new link first: retiring the old link returns its batches, and the sender routes these
            # batches at once.
            self.links[part.leader] = link
            if old is not None:
                old.retire()
        notes: QueueNotes = queue.sender
        # To keep the order of records, wait for the old leader's responses.
        if notes.in_flight and notes.link is not link:
            self._unrouted[queue] = None
            return None
        notes.link, notes.moved_at, notes.routed_by = link, float("inf"), self._snapshots
        if part.leader_epoch > notes.leader_epoch:  # a newer leader epoch: no pause after earlier failures
            notes.leader_epoch, notes.retry_at = part.leader_epoch, 0.0
            link.has_news()
        link.pending[queue] = None
        return link

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshots += 1
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
                self._unrouted[queue] = None
        self.route_again()

    def leader_of(self, queue: PartitionQueue) -> int:
        """The id of the partition's leader according to the metadata; -1 without a leader."""
        part = self._info(queue)
        return -1 if part is None else part.leader

    def _info(self, queue: PartitionQueue) -> PartitionInfo | None:
        info = self.engine.metadata.snapshot.topics.get(queue.topic.name)
        return info.partitions[queue.partition] if info and queue.partition < len(info.partitions) else None

    def _has_news(self, queue: PartitionQueue, link: BrokerLink) -> bool:
        """Whether the partition has another leader, or the same leader in a new epoch or at a new address."""
        part, broker = self._info(queue), self.engine.metadata.snapshot.brokers.get(link.broker_id)
        if part is None or part.leader != link.broker_id or part.leader_epoch > queue.sender.leader_epoch:
            return True
        return broker is not None and broker.address != link.address

    def unroute(self, queues: Iterable[PartitionQueue]) -> None:
        """Remember queues that have lost their link; new metadata assign them to links again."""
        self._unrouted.update(dict.fromkeys(queues))

    def route_again(self) -> None:
        """Assign each queue without a link to the link of its partition's leader, if the metadata show a leader, and
        the old leader has answered the queue's requests."""
        if self._closed:
            return
        waiting, self._unrouted = self._unrouted, {}
        for queue in waiting:
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
        """Whether the next batch of the queue, which ``may_send`` refused, may be sent now, perhaps with numbers that
        begin anew after a gap. If not, the queue's link is notified when it should check again."""
        notes: QueueNotes = queue.sender
        sequences = notes.sequences
        assert sequences is not None
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
        self._awaiting_id[queue] = None
        self.identity.ask()
        return False

    def _regroup(self, queue: PartitionQueue) -> None:
        for batch in queue.sender.sequences.regroup():
            gap = OutOfOrderSequenceNumberError(
                "the broker no longer has the sequence numbers of this producer's earlier batches"
            )
            self.fail(batch, self._unknown(batch, queue.sender.last_error or gap))

    def identity_renewed(self) -> None:
        self._awaiting_id.clear()
        self.nudge_all()

    def _identity_refused(self, error: HeadraceError) -> None:
        """Fail the waiting batches, because no broker granted a producer id."""
        waiting, self._awaiting_id = self._awaiting_id, {}
        for batch in self.accumulator.snapshot_unfinished():
            if batch.queue in waiting and not batch.in_flight:
                self.fail(batch, type(error)(error.message))
        self.nudge_all()

    def refuse(self, batch: SendBatch, max_bytes: int) -> None:
        """Fail a batch that is larger than its topic allows."""
        cure = "send smaller records" if batch.count == 1 else "lower batch.size"
        error = RecordTooLargeError(
            f"a batch of {counted(batch.count, 'record')} has {len(batch.data or b'')} bytes after compression, the "
            f"limit is {max_bytes} (the smallest of the topic's max.message.bytes and segment.bytes, and the brokers' "
            f"socket.request.max.bytes); {cure}, or raise these keys"
        )
        self.settle(batch, error, unknown=False)

    # --- outcomes --------------------------------------------------------------------------------------------------

    def succeed(self, batch: SendBatch, base_offset: int, log_append_time_ms: int, now: float) -> None:
        notes: QueueNotes = batch.queue.sender
        if notes.sequences is not None:
            notes.sequences.acknowledged(batch, now)
        notes.last_error = None
        notes.counts["record-send-total"] += batch.count
        finish(batch, base_offset, log_append_time_ms, None)
        self._answered(batch.queue)

    def fail(self, batch: SendBatch, error: HeadraceError) -> None:
        """Set ``error`` as the outcome of the batch; later responses for the batch have no effect."""
        self.metrics.record(time.monotonic(), ("record-error", batch.count, batch.count))
        self.partition_metrics.of(batch.queue.topic.name, batch.queue.partition)["record-error-total"] += batch.count
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
        self._fail_or_retry(batch, error, unknown=unknown)
        self._answered(batch.queue)

    def _fail_or_retry(self, batch: SendBatch, error: HeadraceError, *, unknown: bool) -> None:
        queue = batch.queue
        notes: QueueNotes = queue.sender
        batch.in_flight = False
        batch.maybe_written = batch.maybe_written or unknown
        notes.last_error = error
        if error.code in STALE_METADATA:
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
            self.metrics.record(now, ("record-retry", batch.count, batch.count))
            notes.counts["record-retry-total"] += batch.count
            logger.debug("retrying a batch of %s-%d: %s", queue.topic.name, queue.partition, error)
        elif batch.maybe_written:
            self.fail(batch, self._unknown(batch, error))
        else:
            self.fail(batch, type(error)(f"{queue.topic.name}-{queue.partition}: {_reason(queue, error)}"))

    def _answered(self, queue: PartitionQueue) -> None:
        """Note that a batch of the queue has its response. When no batch of the queue is in flight any more, failed
        batches are put back into the queue, oldest first."""
        notes: QueueNotes = queue.sender
        notes.in_flight -= 1
        if notes.in_flight:
            return
        if notes.sequences is not None and notes.sequences.is_broken:
            self._regroup(queue)
        if notes.failed:
            notes.failed.sort(key=lambda batch: batch.sequence)
            queue.requeue([batch for batch in notes.failed if not batch.done])
            notes.failed = []
            queue.listed = True
            self._unrouted[queue] = None
        if queue in self._unrouted and not self._closed:
            del self._unrouted[queue]
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
            self._expire(time.monotonic())

    def _expire(self, now: float) -> None:
        """Fail what is too old. (A function of its own: ``_sweep`` would keep its last batch while it sleeps.)"""
        for batch in self.accumulator.snapshot_unfinished():
            if now < batch.created_s + self.delivery_timeout_s:
                continue
            if batch.maybe_written or batch.in_flight:
                last = batch.queue.sender.last_error or RequestTimedOutError("no answer yet")
                self.fail(batch, self._unknown(batch, last))
            else:
                late = DeliveryTimeoutError(
                    f"{batch.queue.topic.name}-{batch.queue.partition}: {counted(batch.count, 'record')} not written "
                    f"within delivery.timeout.ms={self.delivery_timeout_s * 1000:g}; {self._why(batch.queue)}"
                )
                self.fail(batch, late)
        for link in list(self.links.values()):  # iterate over a copy: ``moved`` may open a link to the new leader
            link.moved(now)
            link.nudge()  # the expired batch may have blocked later batches

    def _why(self, queue: PartitionQueue) -> str:
        if queue.topic.name not in self.engine.metadata.snapshot.topics:
            return f"topic {queue.topic.name!r} no longer exists"
        notes: QueueNotes = queue.sender
        if self.leader_of(queue) < 0:
            return self._leaderless(queue)
        if queue in self._awaiting_id and self.identity is not None and self.identity.last_error is not None:
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
        self._unrouted.clear()
        self._awaiting_id.clear()


def build(batch: SendBatch, compression: Compression, level: int | None) -> None:
    """Encode a sealed batch; compression runs on a worker thread."""
    builder = batch.builder
    if builder is not None and batch.data is None:
        data = builder.build(compression=compression, level=level)
        if not batch.done:  # the batch may have expired during the encoding
            batch.data = data
        batch.builder = None


def _has_records(queue: PartitionQueue) -> bool:
    """Whether the queue has records that have not failed."""
    return any(batch is not None and not batch.done for batch in (queue.open, *queue.sealed))


def _reason(queue: PartitionQueue, error: HeadraceError) -> str:
    """The text of an error without the name of the partition, because the producer's own message already begins with
    that name."""
    return error.message.removeprefix(f"{queue.topic.name}-{queue.partition}: ")
