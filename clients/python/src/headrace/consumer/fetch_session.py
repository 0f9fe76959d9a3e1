"""The fetch session of a consumer at one broker. The module runs on Headrace's I/O thread.

Each fetch stream has one session (see fetch.proto): the first request names the partitions, later requests only name
changes. The client sends the next request before it has processed the last response. While the consumer catches up,
several requests are in flight, so that the broker reads during the transfer. At the log end only one long poll waits,
because a second request would end the first request.

No request is sent when the inbox plus the expected responses would exceed ``fetch.queue.max.bytes``.
"""

from __future__ import annotations

import itertools
import logging
import time

from headrace_core.errors import HeadraceError, OffsetOutOfRangeError, from_number
from headrace_core.records import Buffer, without_aborted
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.limits import PARTITIONS_MAX
from headrace_core.rpc.stream import Stream
from headrace_core.types import TopicPartition
from headrace_protos.v1 import fetch_pb2

from .inbox import Slice
from .tracked import SessionOwner, Tracked

logger = logging.getLogger("headrace")

#: A consumer is catching up when its last fetch response had at least this many bytes.
CATCHING_UP_BYTES = 65_536

#: Maximum number of requests in flight while the consumer is catching up; a broker limits a response to about 1 MiB.
CATCHING_UP_REQUESTS = 4


class FetchLink(Stream[fetch_pb2.FetchRequest, fetch_pb2.FetchResponse]):
    """The fetch session of a consumer at one broker. ``rack``: the client's rack as sent to the broker; empty: the
    leader does not redirect to a follower in the same rack."""

    logger = logger
    what, overdue = "fetch stream", "no response to a fetch request within"

    def __init__(self, fetcher: SessionOwner, broker_id: int, address: str, rack: str) -> None:
        engine, name = fetcher.engine, f"headrace-fetch-{broker_id}"
        wait_s, timeout_s = fetcher.max_wait_ms / 1000, engine.request_timeout_s
        super().__init__(address, name, engine.spawn, engine.backoff.delay_s, timeout_s, wait_s)
        self.fetcher = fetcher
        self.broker_id = broker_id
        self._rack = rack
        self.members: dict[TopicPartition, Tracked] = {}
        self._named: set[TopicPartition] = set()  # partitions that the broker's fetch session contains
        self._to_name: dict[TopicPartition, None] = {}
        self._to_forget: dict[TopicPartition, None] = {}
        self._catching_up = False
        self._last_bytes = 0  # bytes of the last response that was not empty

    def add(self, tracked: Tracked) -> None:
        tp = tracked.assigned.tp
        self.note_news(tracked)
        self.members[tp] = tracked
        self._to_name[tp] = None
        self._to_forget.pop(tp, None)
        self.nudge()

    def note_news(self, tracked: Tracked) -> None:
        """End the pause before the next stream if the metadata show a newer leader epoch of the partition."""
        if tracked.has_news:  # the leader is new, so failures of the earlier leader no longer count
            tracked.has_news = False
            self.has_news()

    def remove(self, tracked: Tracked) -> None:
        tp = tracked.assigned.tp
        if self.members.get(tp) is tracked:
            del self.members[tp]
            self._to_name.pop(tp, None)
            if tp in self._named:
                self._to_forget[tp] = None
            self.nudge()

    def retire(self) -> None:
        """Stop the stream, because the broker's address has changed; the fetcher looks up the leaders of the stream's
        partitions again."""
        self.end()
        self._look_up_leaders(None)

    async def close(self) -> None:
        await super().close()
        self.members.clear()  # break the reference cycle: members refer to this fetch link

    def _look_up_leaders(self, error: HeadraceError | None) -> None:
        members, self.members = self.members, {}
        self._named.clear()
        self._to_name.clear()
        self._to_forget.clear()
        self.sent_at.clear()
        for tracked in members.values():
            self.fetcher.send_home(tracked, error)

    # --- the stream --------------------------------------------------------------------------------------------------

    def open(self) -> Duplex[fetch_pb2.FetchRequest, fetch_pb2.FetchResponse]:
        return self.fetcher.engine.connections.fetch_stream(self.address)

    def has_work(self) -> bool:
        return bool(self.members)

    def is_silent(self) -> None:
        self.fetcher.engine.metadata.doubt()

    def lost(self, error: HeadraceError) -> None:
        self._look_up_leaders(error)

    async def next_request(self) -> fetch_pb2.FetchRequest | None:
        if not self._may_ask():
            return None
        fetcher = self.fetcher
        self.correlation += 1
        now = self.sent_at[self.correlation] = time.monotonic()
        request = fetch_pb2.FetchRequest(
            correlation_id=self.correlation,
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
            tracked.valid_from = self.correlation
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
        fetcher.metrics.record(now, ("fetch", 1, 1))
        return request

    def _may_ask(self) -> bool:
        if self._to_name or self._to_forget:
            # Send changes of the partitions even during a long poll: the new request ends the long poll.
            return len(self.sent_at) <= CATCHING_UP_REQUESTS
        if not self.members:
            return False
        flying = len(self.sent_at)
        if flying >= (CATCHING_UP_REQUESTS if self._catching_up else 1):
            return False
        fetcher = self.fetcher
        inbox = fetcher.inbox
        # Assume that the next response is as large as the last response. A response may exceed the requested size,
        # because a broker never splits a batch.
        expected = (flying + 1) * max(fetcher.answer_bytes, self._last_bytes)
        if (flying or inbox.slices) and expected + inbox.queued_bytes > inbox.max_bytes:
            inbox.fetcher_waits = True
            return not inbox.slices and not flying  # look again: the queue may have just become empty
        return True

    def received(self, response: fetch_pb2.FetchResponse) -> None:
        now, sent_at = time.monotonic(), self.sent_at.pop(response.correlation_id, None)
        if response.throttle_time_ms:  # over a quota: the broker answers the requests in flight later
            self.throttled_until(now + response.throttle_time_ms / 1000)
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
                tracked.epochs.note_fetched(data, tracked.known_epoch, tracked.fetch_at or 0)
                tracked.fetch_at = result.next_offset
                tracked.may_be_truncated = False
                tracked.attempts = 0
                if assigned.end_offset is not None and tracked.fetch_at >= assigned.end_offset:
                    self.remove(tracked)
                    tracked.link = None
        self._catching_up = total >= CATCHING_UP_BYTES
        values: list[tuple[str, float, int]] = [("fetch-throttle-time", response.throttle_time_ms, 1)]
        if sent_at is not None:
            values.append(("fetch-latency", max(now - sent_at, 0.0) * 1000, 1))
        if total:
            self._last_bytes = total
            values += ("bytes-consumed", total, 1), ("fetch-size", total, 1)
        fetcher.metrics.record(now, *values)
        self.event.set()

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
