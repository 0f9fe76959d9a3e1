"""The partition of one shard, at its current leader: append under the shard's epoch, and read all committed records.

A failed append is repeated, perhaps at another leader, within offsets.commit.timeout.ms. The check of ``expected_end``
makes a repeated append harmless. If an earlier attempt took effect unnoticed, the log's end has changed. A repeated
append then fails with UnexpectedLogEndError, and the shard replays its log. Because a repeated append is harmless, a
new leader of the shard's partition causes a pause, but no replay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from headrace_core.clock import Clock
from headrace_core.errors import (
    HeadraceError,
    NetworkError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    from_number,
)
from headrace_core.records import (
    COMMIT,
    HEADER_BYTES,
    BatchHeader,
    Compression,
    RecordIterator,
    decode_batch,
    encode_batch,
    iterate_headers,
)
from headrace_core.records.types import LENGTH_PREFIX_BYTES, TRANSACTIONAL_BIT
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.outage import Backoff
from headrace_core.types import TopicPartition
from headrace_protos.v1 import fetch_pb2, produce_pb2

from ..offsets.kafka_transactions import KafkaTransactions, Replayed
from ..state_machine import ShardRecord
from .brokers import Brokers, Leader

logger = logging.getLogger("headrace.coordinator.shard")

#: After one of these error codes, the append had no effect, except perhaps on a leader that has just resigned. A leader
#: that has just resigned may have made the append despite its error code; the retry detects the append.
_TRY_AGAIN = frozenset(
    (
        "NOT_LEADER_OR_FOLLOWER",
        "LEADER_NOT_AVAILABLE",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "FENCED_LEADER_EPOCH",
        "FENCED_BROKER",
        "NOT_ENOUGH_REPLICAS",
        "KAFKA_STORAGE_ERROR",
        "DISK_FULL",
        "SERVER_SHUTTING_DOWN",
        "SERVER_BUSY",
        "NETWORK_EXCEPTION",
    )
)
#: Seconds to wait for a leader's answer after the metadata names a new leader, because the former leader may be frozen.
_MOVED_S = 0.5
_TURN_RECORDS = 500  #: Maximum number of records that a replay passes on before the event loop runs other tasks.
#: Seconds without progress after which a coordinator gives up a replay, because the log's end may have been truncated.
_STUCK_S = 15.0
_FETCH_WAIT_MS = 500
_ATTRIBUTES_AT = 22  #: Position of the lower byte of the attributes in a batch.

Stream = Duplex[fetch_pb2.FetchRequest, fetch_pb2.FetchResponse]

#: Callback that receives (key, value, timestamp) of each record of the next batches.
Take = Callable[[Sequence[Replayed]], None]


class ShardLog:
    """The log of a shard that this coordinator owns."""

    def __init__(
        self,
        brokers: Brokers,
        partition: TopicPartition,
        topic_id: bytes,
        shard_epoch: int,
        *,
        clock: Clock,
        append_timeout_s: float,
        load_bytes: int,
        compression: Compression,
    ) -> None:
        """``append_timeout_s`` is offsets.commit.timeout.ms, ``load_bytes`` is offsets.load.buffer.size, and
        ``compression`` is offsets.topic.compression.codec."""
        self._compression = compression
        self.partition = partition
        self._brokers = brokers
        self._topic_id = topic_id
        self._shard_epoch = shard_epoch
        self._clock = clock
        self._append_timeout_s = append_timeout_s
        self._load_bytes = load_bytes

    async def append(self, batches: Sequence[Sequence[ShardRecord]], expected_end: int) -> int:
        """Append batches; returns the first record's offset when all in-sync replicas have all records.
        ``expected_end`` -1: anywhere.

        Raises FencedShardEpochError, which is final. Raises UnexpectedLogEndError if another append came first, perhaps
        an earlier attempt of the same append. After a HeadraceError that is neither FencedShardEpochError nor
        UnexpectedLogEndError, the outcome of the append is unknown.
        """
        message = produce_pb2.ProducePartition(
            topic=self.partition.topic,
            partition=self.partition.partition,
            topic_id=self._topic_id,
            records=self._encoded(batches),
            shard_epoch=self._shard_epoch,
        )
        if expected_end >= 0:
            message.expected_end = expected_end
        loop = asyncio.get_running_loop()
        deadline, backoff = loop.time() + self._append_timeout_s, Backoff(most_ms=250)
        while True:
            try:
                return await self._append_once(message, deadline - loop.time())
            except HeadraceError as failed:
                error = failed
            pause_s = backoff.next_s()
            if error.code not in _TRY_AGAIN or loop.time() + pause_s >= deadline:
                raise error
            logger.debug("%s: tried again: %s", self.partition, error)
            await self._metadata_changes(pause_s)

    def _encoded(self, batches: Sequence[Sequence[ShardRecord]]) -> bytes:
        now_ms = self._clock.now_ms()
        return b"".join(
            encode_batch(
                ((now_ms, record.key, record.value, None) for record in batch),
                base_sequence=self._shard_epoch,
                compression=self._compression,
            )
            for batch in batches
        )

    async def _append_once(self, message: produce_pb2.ProducePartition, timeout_s: float) -> int:
        leader = self._brokers.leader_of(self.partition)
        link = self._brokers.produce_link(leader.internal)
        result = await self._unless_moved(link.append(message, max(timeout_s, 0.001)), leader)
        if result.error.code:
            raise from_number(result.error.code, f"{result.error.message} (from {leader.internal})")
        return int(result.base_offset)

    async def _unless_moved(self, answer: Any, leader: Leader) -> Any:
        """Return the answer. Raises NetworkError if the metadata has named another leader for a while and no answer has
        arrived."""
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)

        def look(image: object, delta: object) -> None:
            if limit.when() is None and self._is_led_elsewhere(leader):
                limit.reschedule(loop.time() + _MOVED_S)

        unwatch = self._brokers.metadata.watch(look)
        try:
            async with limit:
                return await answer
        except TimeoutError:
            if not limit.expired():  # the broker's answer is a RequestTimedOutError, which is a TimeoutError too
                raise
            raise NetworkError(
                f"{leader.internal} does not answer and is no longer the leader of {self.partition}"
            ) from None
        finally:
            unwatch()

    def _is_led_elsewhere(self, leader: Leader) -> bool:
        try:
            return self._brokers.leader_of(self.partition).broker_id != leader.broker_id
        except HeadraceError:
            return False  # no other leader to try yet

    async def _metadata_changes(self, timeout_s: float) -> None:
        """Wait until the metadata changes in a way that may help the append, or until the timeout."""
        news = asyncio.Event()
        unwatch = self._brokers.metadata.watch(lambda image, delta: news.set())
        try:
            async with asyncio.timeout(timeout_s):
                await news.wait()
        except TimeoutError:
            pass
        finally:
            unwatch()

    async def read(self, end: int, take: Take) -> None:
        """Pass all committed records, from the log's start up to ``end`` (exclusive), to the shard. HeadraceError: not
        all."""
        leader = self._brokers.leader_of(self.partition)
        session = _Reading(self.partition, self._topic_id, end, take, self._load_bytes)
        stream = self._brokers.fetch_stream(leader.client)
        await stream.run(session.run(stream), self._watch(stream, session, end))

    async def _watch(self, stream: Stream, session: _Reading, end: int) -> None:
        """Abandon a replay that makes no progress."""
        while True:
            before = session.position
            await asyncio.sleep(_STUCK_S)
            if session.position == before:
                stream.cancel(
                    RequestTimedOutError(
                        f"{self.partition}: replayed up to {before} of {end}, then no progress for {_STUCK_S:g} s "
                        f"from {stream.address}"
                    )
                )


class _Reading:
    """A fetch stream that reads one partition from its start."""

    def __init__(self, partition: TopicPartition, topic_id: bytes, end: int, take: Take, load_bytes: int) -> None:
        self.position = 0
        self._partition = partition
        self._topic_id = topic_id
        self._end = end
        self._take = take
        self._load_bytes = load_bytes
        self._kafka = KafkaTransactions()

    async def run(self, stream: Stream) -> None:
        await stream.connected()
        asked, number = True, 0
        while self.position < self._end:
            number += 1
            request = fetch_pb2.FetchRequest(correlation_id=number, max_wait_ms=_FETCH_WAIT_MS, min_bytes=1)
            if asked:
                request.partitions.add(
                    topic=self._partition.topic,
                    partition=self._partition.partition,
                    topic_id=self._topic_id,
                    fetch_offset=self.position,
                    max_bytes=self._load_bytes,
                    current_leader_epoch=-1,
                    last_fetched_epoch=-1,
                )
            await stream.write(request)
            response = await stream.read()
            asked = False
            for result in response.results:
                asked = await self._result(result)

    async def _result(self, result: Any) -> bool:
        """Process one result of the fetch stream; returns True if the next fetch request must name the partition
        again."""
        if result.error.code:
            error = from_number(result.error.code, result.error.message)
            if isinstance(error, OffsetOutOfRangeError) and result.log_start_offset > self.position:
                self.position = result.log_start_offset
                return True
            raise error
        for data, header in _parts(result.records):
            if header is not None:
                self._take(self._of_kafka(data, header))
                continue
            records = RecordIterator(
                data,
                topic=self._partition.topic,
                partition=self._partition.partition,
                start_offset=self.position,
            )
            while some := records.take(_TURN_RECORDS):
                plain = [(each.key or b"", each.value, each.timestamp_ms) for each in some if each.offset < self._end]
                self._take([*plain, *self._kafka.plain(plain)])
                await asyncio.sleep(0)
        self.position = max(self.position, result.next_offset)
        return False

    def _of_kafka(self, data: memoryview, header: BatchHeader) -> list[Replayed]:
        """Convert a transactional batch or a marker, which only Kafka writes into a shard, to Headrace's records."""
        found = decode_batch(data, start_offset=self.position)
        records = [(each.key or b"", each.value, each.timestamp_ms) for each in found if each.offset < self._end]
        if not header.is_control:
            return self._kafka.batch(header.producer_id, header.producer_epoch, records)
        return [
            ended
            for key, _, timestamp_ms in records
            for ended in self._kafka.marker(
                header.producer_id, commit=int.from_bytes(key[2:4], "big") == COMMIT, timestamp_ms=timestamp_ms
            )
        ]


def _parts(data: bytes) -> Iterator[tuple[memoryview, BatchHeader | None]]:
    """Split whole batches: return each transactional batch with its header, and the plain batches between them without
    a header."""
    view = memoryview(data)
    if not _has_transactional(data):
        yield view, None
        return
    plain_from = 0
    for position, header in iterate_headers(view):
        if header.is_transactional:  # also a marker
            if plain_from < position:
                yield view[plain_from:position], None
            plain_from = position + header.size
            yield view[position:plain_from], header
    if plain_from < len(view):
        yield view[plain_from:], None


def _has_transactional(data: bytes) -> bool:
    """Whether a batch is transactional. Nearly all batches are not transactional, so the function reads only two fields
    of each header."""
    position, size = 0, len(data)
    while position + HEADER_BYTES <= size:
        if data[position + _ATTRIBUTES_AT] & TRANSACTIONAL_BIT:
            return True
        position += LENGTH_PREFIX_BYTES + int.from_bytes(data[position + 8 : position + LENGTH_PREFIX_BYTES], "big")
    return False
