"""The partitions that a broker leads, without logs: its streams to followers read generated batches of given
sizes."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from headrace_broker.partition import PartitionLeader
from headrace_broker.partition.pacing import UNLIMITED, Pacer
from headrace_broker.partition.push_stream import LIVE, ColdRead, JoinedReplica, JoinedReplicaKey, PushStream
from headrace_core.errors import HeadraceError, OffsetOutOfRangeError, UnknownTopicIdError
from headrace_core.types import TopicPartition
from headrace_protos.v1.replication_pb2 import FollowJoin, FollowResponse, ReplicationLane
from tests.worlds.replication_messages import a_hello, a_join, a_request, an_ack

LEADER, FOLLOWER, OTHER = 1, 2, 3
WINDOW = 32 << 20


class Read(NamedTuple):
    records: bytes
    next_offset: int


class Batch(NamedTuple):
    base: int
    end: int
    data: bytes
    epoch: int


class Led:
    """A LedPartition. ``cold_below``: records below this offset are not in memory. ``deleted_below``: the log starts at
    this offset, which the leader does not know yet."""

    def __init__(
        self,
        name: str,
        *,
        leader_epoch: int = 1,
        replicas: tuple[int, ...] = (LEADER, FOLLOWER),
        isr: tuple[int, ...] | None = None,
    ) -> None:
        self.batches: list[Batch] = []
        self.cold_below = 0
        self.deleted_below = 0
        self.reads = 0
        self.topic_id = name.encode().ljust(16, b".")
        self.failure: HeadraceError | None = None
        self.leader = PartitionLeader(
            TopicPartition(name, 0),
            topic_id=self.topic_id,
            leader_id=LEADER,
            leader_epoch=leader_epoch,
            log_start=0,
            log_end=0,
            flushed_end=0,
            replicas=replicas,
            isr=replicas if isr is None else isr,
        )

    def append(self, size: int, records: int = 1, *, epoch: int | None = None, flushed: bool = True) -> Batch:
        leader = self.leader
        base = leader.log_end
        data = (b"%s:%d," % (self.leader.partition.topic.encode(), base)).ljust(size, b".")[:size]
        batch = Batch(base, base + records, data, leader.leader_epoch if epoch is None else epoch)
        self.batches.append(batch)
        leader.advanced(batch.end, batch.end if flushed else leader.flushed_end, size)
        return batch

    # -- LedPartition ------------------------------------------------------------------------------------------------

    @property
    def log_start(self) -> int:
        return max(self.leader.log_start, self.deleted_below)

    @property
    def latest_epoch(self) -> int:
        return self.batches[-1].epoch if self.batches else -1

    def known_epoch_end(self, epoch: int) -> tuple[int, int]:
        known = [batch for batch in self.batches if batch.epoch <= epoch and batch.end > self.deleted_below]
        if epoch > self.latest_epoch or not known:
            return -1, -1
        return known[-1].epoch, known[-1].end

    def producers_at(self, offset: int) -> bytes:
        return b"producers at %d" % offset

    def bytes_from(self, offset: int) -> int:
        return sum(len(batch.data) for batch in self.batches[self._at(offset) :])

    def read_appended(self, offset: int, max_bytes: int) -> Read | None:
        self.reads += 1
        return None if offset < self.cold_below else self.read_cold(offset, max_bytes)

    def read_cold(self, offset: int, max_bytes: int) -> Read:
        if self.failure is not None:
            raise self.failure
        if not self.log_start <= offset <= self.leader.log_end:
            raise OffsetOutOfRangeError(f"{offset} is not in the log")
        found, size = b"", 0
        for batch in self.batches[self._at(offset) :]:
            if size and size + len(batch.data) > max_bytes:
                break
            found, size, offset = found + batch.data, size + len(batch.data), batch.end
        return Read(found, offset)

    def _at(self, offset: int) -> int:
        return bisect_right(self.batches, offset, key=lambda batch: batch.end)


class LeadingBroker:
    """A broker that leads, with a clock that the test advances."""

    def __init__(self) -> None:
        self.led: dict[bytes, Led] = {}
        self.joined: dict[JoinedReplicaKey, JoinedReplica] = {}
        self.now_ms = 1_000
        self.pacer = Pacer(UNLIMITED, 0)
        self.throttled = False
        self.wakes = 0
        self.wakes_at: list[int] = []

    def lead(self, name: str, **settings: object) -> Led:
        led = Led(name, **settings)  # type: ignore[arg-type]
        self.led[led.topic_id] = led
        return led

    def stream(
        self,
        *,
        broker_id: int = FOLLOWER,
        broker_epoch: int = 10,
        kind: ReplicationLane = LIVE,
        window: int = WINDOW,
    ) -> PushStream:
        return PushStream(
            a_hello("c", broker_id, broker_epoch, LEADER, kind, window),
            find=self.find,
            is_throttled=self.is_throttled,
            joined=self.joined,
            pacer=self.pacer,
            now_ms=lambda: self.now_ms,
            wake=self._wake,
            wake_at=self.wakes_at.append,
        )

    def _wake(self) -> None:
        self.wakes += 1

    def find(self, topic_id: bytes, partition: int) -> Led:
        led = self.led.get(topic_id)
        if led is None or partition:
            raise UnknownTopicIdError("no such topic")
        led.leader.check_serving()
        return led

    def is_throttled(self, leader: PartitionLeader, broker_id: int) -> bool:
        return self.throttled and leader.is_behind(broker_id)


def join(
    led: Led,
    handle: int,
    *,
    log_end: int = 0,
    last_epoch: int = -1,
    leader_epoch: int | None = None,
    window: int = WINDOW,
    durable_end: int | None = None,
) -> FollowJoin:
    epoch = led.leader.leader_epoch if leader_epoch is None else leader_epoch
    durable_end = log_end if durable_end is None else durable_end
    return a_join(handle, led.topic_id, 0, epoch, 0, log_end, last_epoch, durable_end, window)


def said(stream: PushStream) -> FollowResponse:
    """The next message of the stream, which must have one."""
    outgoing = stream.next()
    assert outgoing is not None, "the stream has no message"
    return outgoing.response


def drain(stream: PushStream) -> list[FollowResponse]:
    """All messages that the stream can send now."""
    messages = []
    while (outgoing := stream.next()) is not None:
        messages.append(outgoing.response)
        assert len(messages) < 100_000, "the stream never becomes empty"
    return messages


def taken(stream: PushStream) -> list[ColdRead]:
    """The reads that the stream asks for."""
    reads, stream.cold_reads = stream.cold_reads, []
    return reads


def acked(stream: PushStream, handle: int, end: int) -> None:
    stream.received(a_request(acks=[an_ack(handle, end, end, 0)]))
