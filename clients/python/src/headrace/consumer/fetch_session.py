"""The fetch session of a consumer at one broker. The module runs on Headrace's I/O thread.

Each fetch stream has one session (see fetch.proto): the first request names the partitions, later requests only name
changes. The client sends the next request before it has processed the last response. While the consumer catches up,
several requests are in flight, so that the broker reads during the transfer. At the log end only one long poll waits,
because a second request would end the first request.

No request is sent when the inbox plus the expected responses would exceed ``fetch.queue.max.bytes``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time

from headrace_core.errors import (
    HeadraceError,
    NetworkError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    from_number,
)
from headrace_core.records import Buffer, without_aborted
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.limits import PARTITIONS_MAX
from headrace_core.types import TopicPartition
from headrace_protos.v1 import fetch_pb2

from ..engine.connections import SILENT_S, pause
from .inbox import Slice
from .positions import note_epochs
from .tracked import SessionOwner, Tracked

logger = logging.getLogger("headrace")

#: A consumer is catching up when its last fetch response had at least this many bytes.
CATCHING_UP_BYTES = 65_536

#: Maximum number of requests in flight while the consumer is catching up; a broker limits a response to about 1 MiB.
CATCHING_UP_REQUESTS = 4


Stream = Duplex[fetch_pb2.FetchRequest, fetch_pb2.FetchResponse]


class FetchLink:
    """The fetch session of a consumer at one broker. ``rack``: the client's rack as sent to the broker; empty: the
    leader does not redirect to a follower in the same rack."""

    def __init__(self, fetcher: SessionOwner, broker_id: int, address: str, rack: str) -> None:
        self.fetcher = fetcher
        self.broker_id = broker_id
        self.address = address
        self._rack = rack
        self.members: dict[TopicPartition, Tracked] = {}
        self._named: set[TopicPartition] = set()  # partitions that the broker's fetch session contains
        self._to_name: dict[TopicPartition, None] = {}
        self._to_forget: dict[TopicPartition, None] = {}
        self._correlation = 0
        self._in_flight: dict[int, float] = {}
        self._catching_up = False
        self._last_bytes = 0  # bytes of the last response that was not empty
        self._failures = 0  # consecutive failures of the stream; they set the pause before the next stream
        self._event = asyncio.Event()
        self._news = asyncio.Event()
        self._stream: Stream | None = None
        self._task: asyncio.Task[None] | None = fetcher.engine.spawn(self._run(), f"headrace-fetch-{broker_id}")

    def nudge(self) -> None:
        self._event.set()

    def add(self, tracked: Tracked) -> None:
        tp = tracked.assigned.tp
        self.note_news(tracked)
        self.members[tp] = tracked
        self._to_name[tp] = None
        self._to_forget.pop(tp, None)
        self._event.set()

    def note_news(self, tracked: Tracked) -> None:
        """End the pause before the next stream if the metadata show a newer leader epoch of the partition."""
        if tracked.has_news:  # the leader is new, so failures of the earlier leader no longer count
            tracked.has_news, self._failures = False, 0
            self._news.set()

    def remove(self, tracked: Tracked) -> None:
        tp = tracked.assigned.tp
        if self.members.get(tp) is tracked:
            del self.members[tp]
            self._to_name.pop(tp, None)
            if tp in self._named:
                self._to_forget[tp] = None
            self._event.set()

    def retire(self) -> None:
        """Stop the stream, because the broker's address has changed; the fetcher looks up the leaders of the stream's
        partitions again."""
        if self._task is not None:
            self._task.cancel()
        self._everyone_home(None)

    async def close(self) -> None:
        task, self._task = self._task, None
        # Drop the task: the task's traceback would keep gRPC's objects alive (see engine.io_thread, fork)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.members.clear()  # break the reference cycle: members refer to this fetch link

    async def _run(self) -> None:
        while True:
            while not self.members:
                self._event.clear()
                await self._event.wait()
            before = self._correlation
            self._news.clear()
            try:
                await self._session()
            except HeadraceError as error:
                self._failures = 0 if self._correlation > before + 1 else self._failures + 1
                logger.info("fetch stream to %s failed: %s", self.address, error)
                self._everyone_home(error)
            except Exception as error:  # a bug of the client or of the broker: continue to read
                self._failures += 1
                logger.exception("fetch stream to %s: unexpected error; reconnecting", self.address)
                self._everyone_home(NetworkError(f"{self.address}: {type(error).__name__}: {error}"))
            await pause(self.fetcher.engine.backoff.delay_s(max(self._failures - 1, 0)), self._news)

    def _everyone_home(self, error: HeadraceError | None) -> None:
        members, self.members = self.members, {}
        self._named.clear()
        self._to_name.clear()
        self._to_forget.clear()
        self._in_flight.clear()
        for tracked in members.values():
            self.fetcher.send_home(tracked, error)

    async def _session(self) -> None:
        """Run one fetch stream until it breaks; raises HeadraceError."""
        stream = self._stream = self.fetcher.engine.connections.fetch_stream(self.address)
        try:
            await stream.run(self._read(stream), self._write(stream), self._watch(stream))
        finally:
            self._stream = None

    async def _read(self, stream: Stream) -> None:
        while True:
            self._answered(await stream.read())

    async def _write(self, stream: Stream) -> None:
        await stream.connected()
        while True:
            self._event.clear()
            if self._may_ask():
                await stream.write(self._request())
            else:
                await self._event.wait()

    async def _watch(self, stream: Stream) -> None:
        """Break the stream when the broker is silent for longer than any response may take."""
        fetcher = self.fetcher
        limit = fetcher.max_wait_ms / 1000 + fetcher.engine.request_timeout_s
        while True:
            await asyncio.sleep(min(limit / 4, 1.0))
            oldest = next(iter(self._in_flight.values()), None)
            if oldest is not None and time.monotonic() - oldest > fetcher.max_wait_ms / 1000 + SILENT_S:
                fetcher.engine.metadata.doubt()
            if oldest is not None and time.monotonic() - oldest > limit:
                stream.cancel(
                    RequestTimedOutError(f"{self.address}: no response to a fetch request within {limit:g} s")
                )

    def _may_ask(self) -> bool:
        if self._to_name or self._to_forget:
            # Send changes of the partitions even during a long poll: the new request ends the long poll.
            return len(self._in_flight) <= CATCHING_UP_REQUESTS
        if not self.members:
            return False
        flying = len(self._in_flight)
        if flying >= (CATCHING_UP_REQUESTS if self._catching_up else 1):
            return False
        fetcher = self.fetcher
        inbox = fetcher.inbox
        # Assume that the next response is as large as the last response. A response may exceed the requested size,
        # because a broker never splits a batch.
        expected = inbox.queued_bytes + (flying + 1) * max(fetcher.answer_bytes, self._last_bytes)
        if expected > inbox.max_bytes and (flying or inbox.slices):
            inbox.fetcher_waits = True
            return not inbox.slices and not flying  # look again: the queue may have just become empty
        return True

    def _request(self) -> fetch_pb2.FetchRequest:
        fetcher = self.fetcher
        self._correlation += 1
        self._in_flight[self._correlation] = time.monotonic()
        request = fetch_pb2.FetchRequest(
            correlation_id=self._correlation,
            max_wait_ms=fetcher.max_wait_ms,
            min_bytes=fetcher.min_bytes,
            max_bytes=fetcher.answer_bytes,
            isolation_level=fetcher.isolation,
            rack=self._rack,
        )
        # The next request names the partitions beyond PARTITIONS_MAX, and is sent at once (see _may_ask).
        naming = list(itertools.islice(self._to_name, PARTITIONS_MAX))
        forgetting = list(itertools.islice(self._to_forget, PARTITIONS_MAX))
        for tp in naming:
            tracked = self.members[tp]
            tracked.valid_from = self._correlation
            request.partitions.add(
                topic=tp.topic,
                partition=tp.partition,
                fetch_offset=tracked.fetch_at or 0,
                max_bytes=fetcher.partition_bytes,
                current_leader_epoch=self._leader_epoch(tp),
                last_fetched_epoch=tracked.epochs.last,
            )
            self._named.add(tp)
            del self._to_name[tp]
        for tp in forgetting:
            request.forgotten.add(topic=tp.topic, partition=tp.partition)
            self._named.discard(tp)
            del self._to_forget[tp]
        fetcher.metrics["fetch"].record(1)
        return request

    def _answered(self, response: fetch_pb2.FetchResponse) -> None:
        sent_at = self._in_flight.pop(response.correlation_id, None)
        if response.throttle_time_ms:  # over a quota: the broker answers the requests in flight later (KIP-219)
            over_at = time.monotonic() + response.throttle_time_ms / 1000
            self._in_flight = {each: max(at, over_at) for each, at in self._in_flight.items()}
        fetcher, total = self.fetcher, 0
        for result in response.results:
            tp = TopicPartition(result.topic, result.partition)
            tracked = self.members.get(tp)
            if tracked is None or response.correlation_id < tracked.valid_from or tp in self._to_name:
                continue
            if result.error.code:
                self._failed(tp, tracked, result)
                continue
            if result.HasField("preferred_read_replica") and result.preferred_read_replica != self.broker_id:
                self._gone(tp, tracked)
                fetcher.read_near(tracked, result.preferred_read_replica)
                continue
            assigned = tracked.assigned
            assigned.high_watermark = result.high_watermark
            assigned.last_stable_offset = result.last_stable_offset
            assigned.log_start_offset = result.log_start_offset
            if result.next_offset > (tracked.fetch_at or 0):
                data = result.records
                parts: list[Buffer] = [data]
                total += len(data)
                if result.aborted_transactions:
                    aborted = [(each.producer_id, each.first_offset) for each in result.aborted_transactions]
                    parts = without_aborted(data, aborted, check_crc=fetcher.config["check.crcs"])
                fetcher.inbox.put(
                    Slice(assigned, tracked.generation, tracked.fetch_at or 0, result.next_offset, parts, len(data))
                )
                note_epochs(tracked, data, self._leader_epoch(tp))
                tracked.fetch_at = result.next_offset
                tracked.may_be_truncated = False
                tracked.attempts = 0
                if assigned.end_offset is not None and tracked.fetch_at >= assigned.end_offset:
                    self.remove(tracked)
                    tracked.link = None
        self._catching_up = total >= CATCHING_UP_BYTES
        fetcher.metrics["fetch-throttle-time"].record(response.throttle_time_ms)
        if sent_at is not None:
            fetcher.metrics["fetch-latency"].record(max(time.monotonic() - sent_at, 0.0) * 1000)
        if total:
            self._last_bytes = total
            fetcher.metrics["bytes-consumed"].record(total)
            fetcher.metrics["fetch-size"].record(total)
        self._event.set()

    def _gone(self, tp: TopicPartition, tracked: Tracked) -> None:
        """Forget a partition that the broker has removed from the session."""
        del self.members[tp]
        self._named.discard(tp)
        tracked.link = None

    def _leader_epoch(self, tp: TopicPartition) -> int:
        info = self.fetcher.engine.metadata.snapshot.topics.get(tp.topic)
        return info.partitions[tp.partition].leader_epoch if info and tp.partition < len(info.partitions) else -1

    def _failed(self, tp: TopicPartition, tracked: Tracked, result: fetch_pb2.FetchPartitionResult) -> None:
        """Handle a partition's error, which removed the partition from the session: find its new leader, or pass the
        error to the caller."""
        fetcher = self.fetcher
        detail = result.error.message
        error = from_number(result.error.code, detail if detail.startswith(str(tp)) else f"{tp}: {detail}")
        self._gone(tp, tracked)
        if tracked.near >= 0:  # a follower may lag, or not follow any more: ask the leader
            tracked.near = -1
            fetcher.send_home(tracked, error if error.retriable else None)
            return
        if isinstance(error, OffsetOutOfRangeError):
            if tracked.epochs.last >= 0 and not tracked.may_be_truncated:
                tracked.may_be_truncated = True  # check for a truncation before the position counts as the log end
                fetcher.send_home(tracked)
                return
            tracked.may_be_truncated = False
            if fetcher.config["auto.offset.reset"] == "none" or tracked.assigned.end_offset is not None:
                fetcher.tell(tracked, error)
                return
            logger.info("%s: offset %s is out of range; auto.offset.reset applies", tp, tracked.fetch_at)
            tracked.fetch_at, tracked.reset = None, None
            tracked.epochs.forget()
            fetcher.send_home(tracked)
            return
        if result.HasField("current_leader"):
            hint = result.current_leader
            fetcher.engine.metadata.follow_hint(tp.topic, tp.partition, hint.leader_id, hint.leader_epoch)
        if error.retriable:
            fetcher.send_home(tracked, error)
        else:
            fetcher.tell(tracked, error)
