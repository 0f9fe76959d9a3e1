"""Producers and consumers of the broker schedules, as models: they remember what they sent, and the checks compare
their responses with the committed records (``broker_checks``).

An idempotent producer numbers its batches and sends each batch until it is answered, up to five at a time and in order.
The producer keeps its leader until a response names another leader. A producer without idempotence sends each batch
once, and its outcome is unknown.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.consumer.read_epochs import ReadEpochs
from headrace_broker.partition.versions import check_epoch
from headrace_core.errors import HeadraceError, InvalidProducerEpochError, OutOfOrderSequenceNumberError
from headrace_core.records import BatchBuilder, iterate_headers
from headrace_core.testing.clock import EPOCH_MS
from headrace_core.types import TopicPartition
from tests.simulation.broker_upkeep import earliest
from tests.simulation.sim_checks import Violation

if TYPE_CHECKING:
    from tests.simulation.broker_node import BrokerHost
    from tests.simulation.broker_sim_world import BrokerWorld

IN_FLIGHT_MAX = 5
REQUEST_TIMEOUT_MS = 350.0
RETRY_MS = 25.0
#: producer.id.expiration.ms: this is longer than a schedule with its recovery, so no producer expires.
PRODUCER_EXPIRATION_MS = 120_000
#: After this many refusals, although all earlier batches are acknowledged, the log has lost acknowledged batches.
OUT_OF_ORDER_MAX = 12


class Batch:
    __slots__ = ("data", "number", "sent_ms", "tries", "values")

    def __init__(self, number: int, values: list[bytes], data: bytes) -> None:
        self.number = number
        self.values = values
        self.data = data
        self.tries = 0
        self.sent_ms = -1.0


class Client:
    """A client's belief about the leader, and its calls, which may be lost, late or duplicated."""

    def __init__(self, world: BrokerWorld, number: int, kind: str) -> None:
        self.world = world
        self.number = number
        self.address = 100 + number + (50 if kind == "consumer" else 0)
        self.rng = random.Random(f"{world.plan.seed} {kind} {number}")
        self.leader = -1
        self.leader_epoch = -1

    def refresh(self, partition: int) -> None:
        image = self.world.image.topic("orders")
        if image is None:
            return
        state = image.partitions[partition]
        if state.leader_epoch >= self.leader_epoch:
            self.leader, self.leader_epoch = state.leader, state.leader_epoch

    def connection_lost(self, host: BrokerHost) -> None:
        """Called when the process of a broker has ended."""

    def call(self, host: BrokerHost, act: Callable[[Any, Callable[[Any], None]], None], answered: Any) -> None:
        """Run ``act(broker, reply)`` in the broker's event loop; ``answered(result)`` is called when (and if) an answer
        arrives."""
        world = self.world
        out_ms = world.message_delay_ms((self.address, host.number))
        if out_ms is None:
            return
        times = 1
        if world.quality.doubling and self.rng.random() < world.quality.doubling:
            times = 2
        is_overtaking = bool(world.quality.reordering) and self.rng.random() < world.quality.reordering
        if is_overtaking:
            out_ms += self.rng.random() * 8.0
        life = host.life

        def back(result: Any) -> None:
            back_ms = world.message_delay_ms((host.number, self.address))
            if back_ms is not None:
                world.scheduler.after(back_ms, answered, result)

        def arrive() -> None:
            if host.life == life and host.broker is not None and host.loop is not None:
                host.loop.run(act, host.broker, back)

        if is_overtaking:
            world.scheduler.after(out_ms, arrive)
        else:
            world.in_order(("client", self.address, host.number, life), out_ms, arrive)
        for _ in range(times - 1):
            world.scheduler.after(out_ms + self.rng.random() * 60.0, arrive)


class ProducerModel(Client):
    def __init__(self, world: BrokerWorld, number: int) -> None:
        super().__init__(world, number, "producer")
        self.partition = number % world.plan.partitions
        self.kind = "idempotent" if number == 0 else self.rng.choice(["idempotent", "idempotent", "acks=1", "acks=0"])
        self.producer_id = 1_000 + number
        #: Half of the producers send old events, with timestamps older than the expiration of producers.
        self.timestamp_ms = EPOCH_MS - (2 * PRODUCER_EXPIRATION_MS if number % 2 == 0 else 0)
        self.acknowledged = 0
        self._next = 0
        self._sequence = 0
        self._count = 0
        self._batches: list[Batch] = []
        self._is_stopped = False
        self._refused = 0
        self._retry_ms = -1.0
        #: A broker accepts any number from a producer that it does not know (Kafka's rule since 2.5). Until its very
        #: first batch is acknowledged, the producer sends no other batch.
        self._is_known = False

    def __str__(self) -> str:
        return f"producer {self.number}"

    @property
    def target(self) -> TopicPartition:
        return TopicPartition("orders", self.partition)

    def begin(self) -> None:
        self.refresh(self.partition)
        self._turn()

    def stop(self) -> None:
        self._is_stopped = True

    @property
    def is_idle(self) -> bool:
        return not self._batches

    def _turn(self) -> None:
        world = self.world
        now_ms = world.scheduler.now_ms
        if self._batches and any(now_ms - batch.sent_ms > REQUEST_TIMEOUT_MS for batch in self._batches):
            if self.kind == "idempotent":
                self.refresh(self.partition)
                self._send_again()
            else:
                self._batches = [each for each in self._batches if now_ms - each.sent_ms <= REQUEST_TIMEOUT_MS]
                self.refresh(self.partition)
        if 0 <= self._retry_ms <= now_ms:
            self._send_again()
        most = IN_FLIGHT_MAX if self._is_known or self.kind != "idempotent" else 1
        ahead = self._count - self._batches[0].number if self._batches else 0
        if not self._is_stopped and ahead < most and self._retry_ms < 0:
            self._new_batch()
        elif self._is_stopped and not self._batches:
            return
        world.scheduler.after(self.rng.uniform(0.5, 1.5) * world.plan.rest_ms, self._turn)

    def _new_batch(self) -> None:
        values = [b"%d/%d" % (self.number, self._next + index) for index in range(self.rng.choice([1, 1, 2, 3]))]
        self._next += len(values)
        builder = BatchBuilder(10_000)
        for value in values:
            builder.append(self.timestamp_ms, self._key_of(value), value)
        identity = (
            {"producer_id": self.producer_id, "producer_epoch": 0, "base_sequence": self._sequence}
            if self.kind == "idempotent"
            else {}
        )
        batch = Batch(self._count, values, builder.build(**identity))
        self._count += 1
        self._sequence += len(values)
        self._batches.append(batch)
        self.world.checks.sent(self, values)
        self._send(batch)

    def _key_of(self, value: bytes) -> bytes | None:
        """The key of a record in a compacted topic: one of a few keys, and sometimes a key that is seldom written."""
        plan, number = self.world.plan, int(value.partition(b"/")[2])
        if not plan.compacts:
            return None
        return b"seldom" if number % 40 == 0 else b"%d" % (number * 7 % plan.keys)

    def _send_again(self) -> None:
        """Send all unanswered batches again, in order."""
        self._retry_ms = -1.0
        for batch in self._batches:
            self.world.count("state", "batch sent again")
            self._send(batch)

    def _send(self, batch: Batch) -> None:
        batch.sent_ms = self.world.scheduler.now_ms
        batch.tries += 1
        host = self.world.host_of(self.leader)
        if host is None:
            self._fail()
            return
        acks = {"idempotent": -1, "acks=1": 1, "acks=0": 0}[self.kind]
        was_first = bool(self._batches) and batch is self._batches[0]
        if self.kind == "acks=0":
            self._batches.remove(batch)
        self.call(
            host,
            lambda broker, reply: produce(broker, self.target, batch.data, acks, reply),
            lambda result: self._answered(batch, was_first, result),
        )

    def connection_lost(self, host: BrokerHost) -> None:
        if host.number == self.leader and self._batches:
            self._fail()

    def _fail(self) -> None:
        self.refresh(self.partition)
        if self.kind != "idempotent":
            self._batches.clear()
        elif self._retry_ms < 0:
            self._retry_ms = self.world.scheduler.now_ms + RETRY_MS

    def _answered(self, batch: Batch, was_first: bool, result: Any) -> None:
        if batch not in self._batches:
            if not isinstance(result, HeadraceError) and self.kind == "idempotent":
                self.world.checks.answered_again(self, batch.values, result.base_offset)
            return
        if not isinstance(result, HeadraceError):
            self._batches.remove(batch)
            self._refused = 0
            self._is_known = True
            self.acknowledged += 1
            if self.kind == "idempotent":
                self.world.checks.acknowledged(self, batch.values, result.base_offset)
            return
        self.world.count("refusal", result.code)
        if isinstance(result, OutOfOrderSequenceNumberError | InvalidProducerEpochError):
            if was_first and batch is self._batches[0]:
                self._forgotten(result)
        elif not result.retriable and result.code not in ("CORRUPT_LOG", "FENCED_BROKER"):
            raise Violation("producers", f"{self} got an impossible answer: {result!r}")
        self._fail()

    def _forgotten(self, error: HeadraceError) -> None:
        """Handle an error that means: the earlier batches are acknowledged, but the broker does not know them, perhaps
        because it is a former leader."""
        if self.world.checks.is_tainted(self.partition):
            self._begin_anew()
            return
        if self.world.checks.are_gone(self.partition, self._batches[0].values):
            # The batch was written, and deleted before the response: a leader that rebuilt the producer state from its
            # log does not know it.
            self.world.count("state", "batch gone before its answer")
            del self._batches[0]
            return
        self._refused += 1
        if self._refused > OUT_OF_ORDER_MAX:
            raise Violation("sequences", f"{self} repeatedly sends the next batch, and is refused: {error!r}")

    def _begin_anew(self) -> None:
        """After an unclean election acknowledged batches may be lost, and their sequence numbers with them, so start
        again with a new producer id."""
        self.producer_id += 10
        self._sequence = 0
        self._batches.clear()
        self._refused = 0
        self._is_known = False


def produce(broker: Any, partition: TopicPartition, data: bytes, acks: int, reply: Callable[[Any], None]) -> None:
    """Append as the Produce service does."""
    try:
        replica = broker.partitions.leader(partition)
        broker.world.append(broker.host, replica, data, acks, broker.host.clock.now_ms(), reply)
    except HeadraceError as error:
        reply(error)


class ConsumerModel(Client):
    """Reads a partition from its beginning, from its leader or from another replica."""

    def __init__(self, world: BrokerWorld, number: int) -> None:
        super().__init__(world, number, "consumer")
        self.partition = number % world.plan.partitions
        self.position = 0
        #: The last batch, if it was read from a leader: (base offset, next offset, bytes).
        self.last: tuple[int, int, bytes] | None = None
        self._asked = 0
        #: The leader epochs of the records that were read, and the leader epoch in which the position was validated.
        self._epochs = ReadEpochs()
        self._validated = -1
        self._waits_since_ms = -1.0
        #: The records at the position are deleted: reading continues at the log start (auto.offset.reset=earliest).
        self._is_out = False

    def __str__(self) -> str:
        return f"consumer {self.number}"

    def begin(self) -> None:
        self.refresh(self.partition)
        self._turn()

    def _turn(self) -> None:
        self._asked += 1
        number = self._asked
        if self.rng.random() < 0.3:
            host = self.rng.choice(self.world.hosts)
        else:
            host = self.world.host_of(self.leader) or self.world.hosts[0]
        if self.rng.random() < 0.15:
            self._ask_latest(host)
        if self._is_out:
            self.call(
                host,
                lambda broker, reply: earliest(broker, TopicPartition("orders", self.partition), reply),
                lambda result: self._begins_at(number, result),
            )
        elif self._epochs.last >= 0 and self.leader_epoch > self._validated:
            self._validate(number)
        else:
            epoch, position = self.leader_epoch, self.position
            self.call(
                host,
                lambda broker, reply: fetch(broker, self, position, epoch, reply),
                lambda result: self._answered(number, epoch, result),
            )
        self.world.scheduler.after(self.rng.uniform(15.0, 45.0), self._turn)

    def _is_first(self, number: int) -> bool:
        """Whether this is the first answer to the last request. A duplicated request gets two answers, but a client
        uses only one."""
        if number != self._asked:
            return False
        self._asked += 1
        return True

    def _validate(self, number: int) -> None:
        """In a new leader epoch, check whether the leader's log holds the records that were read (KIP-320). Until the
        check has succeeded, the consumer reads nothing."""
        now_ms = self.world.scheduler.now_ms
        if self._waits_since_ms < 0:
            self._waits_since_ms = now_ms
        host = self.world.host_of(self.leader)
        if host is None or now_ms - self._waits_since_ms > REQUEST_TIMEOUT_MS:
            self._waits_since_ms = -1.0
            self.refresh(self.partition)
            return
        epoch, last_epoch = self.leader_epoch, self._epochs.last
        target = TopicPartition("orders", self.partition)
        self.call(
            host,
            lambda broker, reply: epoch_end(broker, target, last_epoch, epoch, reply),
            lambda result: self._validated_by(number, epoch, last_epoch, result),
        )

    def _validated_by(self, number: int, epoch: int, last_epoch: int, result: Any) -> None:
        if not self._is_first(number):
            return
        self._waits_since_ms = -1.0
        if isinstance(result, HeadraceError):
            self.refresh(self.partition)
            return
        found, end_offset = result
        if found == last_epoch and end_offset >= self.position:
            self._validated = epoch
            return
        # (and not validated yet, because the records that were read before the cut may belong to another log, too)
        divergent = max(self._epochs.divergent(self.position, found, end_offset), 0)
        self.world.checks.truncated(self, self.partition, self.position, divergent)
        self._epochs.go_back(divergent)
        self.position, self.last = divergent, None

    def _begins_at(self, number: int, result: Any) -> None:
        if not self._is_first(number) or isinstance(result, HeadraceError):
            self.refresh(self.partition)
            return
        self.world.checks.earliest_answered(self, self.partition, result)
        self._is_out, self.position, self.last = False, max(self.position, result), None
        self._epochs.forget()
        self.world.count("state", "reader begins at the log's start")

    def _ask_latest(self, host: BrokerHost) -> None:
        """Ask for the end of the log, as a consumer that starts at ``latest`` does."""
        target = TopicPartition("orders", self.partition)
        self.call(host, lambda broker, reply: latest(broker, target, self.world), lambda result: None)

    def _answered(self, number: int, epoch: int, result: Any) -> None:
        if not self._is_first(number):
            return
        if isinstance(result, HeadraceError):
            self.refresh(self.partition)
            if result.code == "OFFSET_OUT_OF_RANGE":
                if self.position < self.world.checks.truths[self.partition].start_max:
                    self._is_out = True
                    return
                if not self.world.checks.is_tainted(self.partition):
                    raise Violation("consumers", f"{self} has read up to {self.position}, but is told {result!r}")
                self.position, self.last = 0, None
                self._epochs.forget()
            return
        (records, *_), is_leader = result
        self.position = self.world.checks.consumed(self, self.partition, self.position, records)
        for at, header in iterate_headers(records):
            if self._epochs.last < 0:
                self._validated = epoch
            self._epochs.note(header.leader_epoch, header.base_offset)
            # (A follower may return records that other replicas have already truncated, below the high watermark that
            # it knows.)
            self.last = (header.base_offset, header.next_offset, records[at : at + header.size]) if is_leader else None


def latest(broker: Any, partition: TopicPartition, world: BrokerWorld) -> None:
    """Answer as the Offsets service does."""
    try:
        leader = broker.partitions.leader(partition).leader
        leader.check_latest_known()
    except HeadraceError:
        return
    world.checks.latest_answered(partition.partition, leader)


def epoch_end(
    broker: Any, partition: TopicPartition, last_epoch: int, epoch: int, reply: Callable[[Any], None]
) -> None:
    """Answer as the Offsets service does (OffsetForLeaderEpoch)."""
    try:
        replica = broker.partitions.leader(partition)
        check_epoch(replica.leader, epoch)
        reply(replica.epoch_end(last_epoch))
    except HeadraceError as error:
        reply(error)


def fetch(broker: Any, consumer: ConsumerModel, position: int, epoch: int, reply: Callable[[Any], None]) -> None:
    """Fetch as the Fetch service does: from any readable replica, up to its high watermark. The consumer does not send
    ``last_fetched_epoch``, like Kafka's consumers: it relies on fencing."""
    try:
        replica = broker.partitions.readable(TopicPartition("orders", consumer.partition))
        check_epoch(replica.reads, epoch)
        leader = getattr(replica, "leader", None)
        if leader is not None:
            if position > leader.high_watermark:
                reply(((b"", position), False))
                return
            consumer.world.checks.reads_on(consumer, replica, position)
        end = replica.reads.high_watermark
        found = replica.read(position, 4_000, end)
        if found is None:
            if leader is None:
                reply(((b"", position), False))
                return
            reading = replica.threads.run(partial(replica.read_cold, position, 4_000, end, committed=False))
            reading.add_done_callback(lambda done: reply(done.exception() or (done.result(), True)))
        else:
            reply((found, leader is not None))
    except HeadraceError as error:
        reply(error)
