"""The fetcher keeps the inbox filled with records. The module runs on Headrace's I/O thread.

The fetcher finds a position and a leader for each wanted partition, and adds the partition to the fetch session at that
broker. Partitions that need a position or a leader at the same time are looked up together, with one request for each
leader: a request for each of a thousand partitions would take seconds. Other partitions do not wait for that lookup.

Each fetch stream has one session (see fetch.proto): the first request names the partitions, later requests only name
changes. The client sends the next request before it has processed the last response. While the consumer catches up,
several requests are in flight, so that the broker reads during the transfer. At the log end only one long poll waits,
because a second request would end the first request. No request is sent when the inbox plus the expected responses
would exceed ``fetch.queue.max.bytes``.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from headrace_core.errors import (
    HeadraceError,
    InvalidArgumentError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    ReplicaNotAvailableError,
    from_number,
)
from headrace_core.plurals import counted
from headrace_core.records import Buffer, without_aborted
from headrace_core.rpc.duplex import Duplex
from headrace_core.rpc.limits import PARTITIONS_MAX
from headrace_core.rpc.stream import Stream
from headrace_core.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from headrace_protos.v1 import fetch_pb2

from ..engine.client import Engine
from ..engine.metadata import Snapshot
from ..engine.offsets import ISOLATION, end_of_epoch, list_offsets
from ..metrics import Metrics
from .inbox import Inbox, Partition, Slice

logger = logging.getLogger("headrace")

#: Looks up the group's committed (offset, leader epoch) of each partition, within a timeout in seconds; None for a
#: partition without a committed offset.
Committed = Callable[[list[TopicPartition], float], Awaitable[dict[TopicPartition, tuple[int, int] | None]]]

#: Seconds after which the consumer gives up a joint lookup of several partitions, and looks up each partition by a
#: separate request.
TOGETHER_S = 2.0

#: A consumer is catching up when its last fetch response had at least this many bytes.
CATCHING_UP_BYTES = 65_536

#: Maximum number of requests in flight while the consumer is catching up; a broker limits a response to about 1 MiB.
CATCHING_UP_REQUESTS = 4


class FetchLink(Stream[fetch_pb2.FetchRequest, fetch_pb2.FetchResponse]):
    """The fetch session of a consumer at one broker. ``rack``: the client's rack as sent to the broker; empty: the
    leader does not redirect to a follower in the same rack."""

    logger = logger
    what, overdue = "fetch stream", "no response to a fetch request within"

    def __init__(self, fetcher: Fetcher, broker_id: int, address: str, rack: str) -> None:
        engine, name = fetcher.engine, f"headrace-fetch-{broker_id}"
        wait_s, timeout_s = fetcher.max_wait_ms / 1000, engine.request_timeout_s
        super().__init__(address, name, engine.spawn, engine.backoff.delay_s, timeout_s, wait_s)
        self.fetcher = fetcher
        self.broker_id = broker_id
        self._rack = rack
        self.members: dict[TopicPartition, Partition] = {}
        self._named: set[TopicPartition] = set()  # partitions that the broker's fetch session contains
        self._to_name: dict[TopicPartition, None] = {}
        self._to_forget: dict[TopicPartition, None] = {}
        self._catching_up = False
        self._last_bytes = 0  # bytes of the last response that was not empty

    def add(self, partition: Partition) -> None:
        tp = partition.tp
        self.note_news(partition)
        self.members[tp] = partition
        self._to_name[tp] = None
        self._to_forget.pop(tp, None)
        self.nudge()

    def note_news(self, partition: Partition) -> None:
        """End the pause before the next stream if the metadata show a newer leader epoch of the partition."""
        if partition.has_news:  # the leader is new, so failures of the earlier leader no longer count
            partition.has_news = False
            self.has_news()

    def remove(self, partition: Partition) -> None:
        tp = partition.tp
        if self.members.get(tp) is partition:
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
        for partition in members.values():
            self.fetcher.look_up_leader(partition, error)

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
            partition = self.members[tp]
            partition.valid_from = self.correlation
            request.partitions.add(
                topic=tp.topic,
                partition=tp.partition,
                fetch_offset=partition.fetch_at or 0,
                max_bytes=fetcher.partition_bytes,
                current_leader_epoch=self._leader_epoch(tp),
                last_fetched_epoch=partition.epochs.last,
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
            partition = self.members.get(tp)
            if partition is None or response.correlation_id < partition.valid_from or tp in self._to_name:
                continue
            if result.error.code:
                self._failed(tp, partition, result)
                continue
            if result.HasField("preferred_read_replica") and result.preferred_read_replica != self.broker_id:
                self._gone(tp, partition)
                fetcher.read_near(partition, result.preferred_read_replica)
                continue
            partition.high_watermark = result.high_watermark
            partition.last_stable_offset = result.last_stable_offset
            partition.log_start_offset = result.log_start_offset
            if result.next_offset > (partition.fetch_at or 0):
                data = result.records
                parts: list[Buffer] = [data]
                total += len(data)
                if result.aborted_transactions:
                    aborted = [(each.producer_id, each.first_offset) for each in result.aborted_transactions]
                    parts = without_aborted(data, aborted, check_crc=fetcher.config["check.crcs"])
                fetcher.inbox.put(Slice(partition, partition.fetch_at or 0, result.next_offset, parts, len(data)))
                partition.epochs.note_fetched(data, partition.known_epoch, partition.fetch_at or 0)
                partition.fetch_at = result.next_offset
                partition.may_be_truncated = False
                partition.attempts = 0
                if partition.end_offset is not None and partition.fetch_at >= partition.end_offset:
                    self.fetcher.leave(partition)
        self._catching_up = total >= CATCHING_UP_BYTES
        values: list[tuple[str, float, int]] = [("fetch-throttle-time", response.throttle_time_ms, 1)]
        if sent_at is not None:
            values.append(("fetch-latency", max(now - sent_at, 0.0) * 1000, 1))
        if total:
            self._last_bytes = total
            values += ("bytes-consumed", total, 1), ("fetch-size", total, 1)
        fetcher.metrics.record(now, *values)
        self.event.set()

    def _gone(self, tp: TopicPartition, partition: Partition) -> None:
        """Forget a partition that the broker has removed from the session."""
        del self.members[tp]
        self._named.discard(tp)
        self.fetcher.placed.pop(tp, None)

    def _leader_epoch(self, tp: TopicPartition) -> int:
        info = self.fetcher.engine.metadata.snapshot.topics.get(tp.topic)
        return info.partitions[tp.partition].leader_epoch if info and tp.partition < len(info.partitions) else -1

    def _failed(self, tp: TopicPartition, partition: Partition, result: fetch_pb2.FetchPartitionResult) -> None:
        """Handle a partition's error, which removed the partition from the session: find its new leader, or pass the
        error to the caller."""
        fetcher = self.fetcher
        detail = result.error.message
        error = from_number(result.error.code, detail if detail.startswith(str(tp)) else f"{tp}: {detail}")
        self._gone(tp, partition)
        if partition.near >= 0:  # a follower may lag, or not follow any more: ask the leader
            partition.near = -1
            fetcher.look_up_leader(partition, error if error.retriable else None)
            return
        if isinstance(error, OffsetOutOfRangeError):
            if partition.epochs.last >= 0 and not partition.may_be_truncated:
                partition.may_be_truncated = True  # check for a truncation before the position counts as the log end
                fetcher.look_up_leader(partition)
                return
            partition.may_be_truncated = False
            if fetcher.config["auto.offset.reset"] == "none" or partition.end_offset is not None:
                fetcher.tell(partition, error)
                return
            logger.info("%s: offset %s is out of range; auto.offset.reset applies", tp, partition.fetch_at)
            partition.fetch_at, partition.reset = None, None
            partition.epochs.forget()
            fetcher.look_up_leader(partition)
            return
        if result.HasField("current_leader"):
            hint = result.current_leader
            fetcher.engine.metadata.follow_hint(tp.topic, tp.partition, hint.leader_id, hint.leader_epoch)
        if error.retriable:
            fetcher.look_up_leader(partition, error)
        else:
            fetcher.tell(partition, error)


class Fetcher:
    """Keeps each wanted partition on the FetchLink of the broker to read from."""

    def __init__(self, engine: Engine, config: dict[str, Any], inbox: Inbox, metrics: Metrics) -> None:
        self.engine = engine
        self.inbox = inbox
        self.metrics = metrics
        self.config = config
        self.max_wait_ms: int = config["fetch.max.wait.ms"]
        self.min_bytes: int = config["fetch.min.bytes"]
        self.partition_bytes: int = config["max.partition.fetch.bytes"]
        #: Maximum size in bytes of one response: an eighth of the inbox. With this limit, the inbox can take the
        #: responses of all requests in flight in addition to queued records.
        self.answer_bytes: int = min(config["fetch.max.bytes"], max(config["fetch.queue.max.bytes"] // 8, 1))
        self.near_s: float = config["metadata.max.age.ms"] / 1000
        self.isolation = ISOLATION[config["isolation.level"]]
        self.tracked: dict[TopicPartition, Partition] = {}
        self.placed: dict[TopicPartition, FetchLink] = {}  # the link of each partition that is being fetched
        #: Maps (broker id, whether the link's requests contain the client's rack) to the FetchLink. A leader that knows
        #: the client's rack redirects the client to a follower in the same rack.
        self.links: dict[tuple[int, bool], FetchLink] = {}
        #: Looks up the group's committed offsets; None unless partitions of ``assign`` begin at committed offsets.
        self.committed: Committed | None = None
        self._unplaced: dict[TopicPartition, None] = {}
        self._placing = asyncio.Event()
        self._placer: asyncio.Task[None] | None = None
        self._placements: set[asyncio.Task[None]] = set()
        engine.metadata.listeners.append(self._on_snapshot)

    # --- the wanted partitions -------------------------------------------------------------------------------------

    def sync(self, wanted: list[tuple[Partition, int | None]]) -> None:
        """Update the fetch sessions. ``wanted`` has every assigned partition with its position."""
        self.engine.start()
        if self._placer is None:
            self._placer = self.engine.spawn(self._place_all(), "headrace-fetch-placer")
        for partition, position in wanted:
            tp, old = partition.tp, self.tracked.get(partition.tp)
            if old is not None and old is not partition:
                self._drop(old)
            if partition.paused:
                self.leave(partition)
                continue
            if self.tracked.get(tp) is not partition:
                self.tracked[tp] = partition
                if partition.fetch_at is None and not partition.is_placing:
                    partition.begin(position)
            if tp not in self.placed and not partition.is_placing:
                self._unplaced[tp] = None
        keep = {partition.tp for partition, _ in wanted}
        for tp in [tp for tp in self.tracked if tp not in keep]:
            self._drop(self.tracked[tp])
        self._placing.set()

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching the given partitions until a call of ``sync`` contains them again."""
        for tp in partitions:
            partition = self.tracked.get(tp)
            if partition is not None:
                self._drop(partition)

    def _drop(self, partition: Partition) -> None:
        self.leave(partition)
        self.tracked.pop(partition.tp, None)

    def leave(self, partition: Partition) -> None:
        """Take the partition out of its fetch session."""
        self._unplaced.pop(partition.tp, None)
        if (link := self.placed.pop(partition.tp, None)) is not None:
            link.remove(partition)

    def has_room(self) -> None:
        """Continue to fetch, because the caller has taken fetched records from the inbox."""
        for link in self.links.values():
            link.nudge()

    # --- placing ----------------------------------------------------------------------------------------------------

    def look_up_leader(self, partition: Partition, error: HeadraceError | None = None) -> None:
        """Look up the partition's leader again; wait first if ``error`` is a failure of the broker."""
        tp = partition.tp
        if self.tracked.get(tp) is not partition:
            return
        self.placed.pop(tp, None)
        if partition.paused:
            return
        if error is not None:
            if partition.near >= 0:  # (KIP-392: otherwise the leader would send the client to the same follower again)
                partition.leader_until = time.monotonic() + self.near_s
                logger.info(
                    "%s: cannot read from broker %d, the nearest replica; reading from the leader instead: %s",
                    tp,
                    partition.near,
                    error,
                )
            partition.near = -1
            partition.retry_at = time.monotonic() + self.engine.backoff.delay_s(partition.attempts)
            partition.attempts += 1
            self.engine.metadata.invalidate()
        self._unplaced[tp] = None
        self._placing.set()

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        for tp, partition in self.tracked.items():
            info = snapshot.topics.get(tp.topic)
            if info is not None and tp.partition < len(info.partitions):
                partition.learn_epoch(info.partitions[tp.partition].leader_epoch)
            old = self.placed.get(tp)
            if old is not None and self._link_of(partition) is not old:
                self.leave(partition)  # the lookup may have closed the old link, which was left without partitions
                self._unplaced[tp] = None
            elif old is not None:
                old.note_news(partition)
        if self._unplaced:
            self._placing.set()

    def read_near(self, partition: Partition, broker_id: int) -> None:
        """Read the partition from the follower in the client's rack that the leader has named in its response; ask the
        leader again after metadata.max.age.ms."""
        if broker_id not in self.engine.metadata.snapshot.brokers:
            if partition.attempts:  # the refreshed metadata do not contain the follower, either
                partition.leader_until = time.monotonic() + self.near_s
            self.look_up_leader(
                partition, ReplicaNotAvailableError(f"broker {broker_id} is not in the client's metadata yet")
            )
            return
        partition.near, partition.near_until = broker_id, time.monotonic() + self.near_s
        self.look_up_leader(partition)

    def _link_of(self, partition: Partition) -> FetchLink | None:
        """The link of the broker to read the partition from: a follower in the client's rack, or the leader; None if
        the partition has no leader."""
        snapshot, tp = self.engine.metadata.snapshot, partition.tp
        info = snapshot.topics.get(tp.topic)
        leader = info.partitions[tp.partition].leader if info and tp.partition < len(info.partitions) else -1
        now = time.monotonic()
        if partition.near >= 0 and now < partition.near_until and partition.near in snapshot.brokers:
            leader = partition.near
        else:
            partition.near = -1
        tells_rack = now >= partition.leader_until
        broker = snapshot.brokers.get(leader)
        if broker is None:
            return None
        link = self.links.get((leader, tells_rack))
        if link is None or link.address != broker.address:
            if link is not None:
                link.retire()
            rack = self.config["client.rack"] if tells_rack else ""
            link = self.links[leader, tells_rack] = FetchLink(self, leader, broker.address, rack)
        return link

    async def _place_all(self) -> None:
        while True:
            now = time.monotonic()
            due = [self.tracked[tp] for tp in self._unplaced if self.tracked[tp].retry_at <= now]
            for partition in due:
                partition.is_placing = True
                del self._unplaced[partition.tp]
            if due:  # do not await the lookup: a missing topic or a silent leader must not delay a later seek
                placement = self.engine.spawn(self._place_together(due), "headrace-fetch-placement")
                self._placements.add(placement)
                placement.add_done_callback(self._placements.discard)
            later = min((self.tracked[tp].retry_at for tp in self._unplaced), default=None)
            self._placing.clear()
            try:
                async with asyncio.timeout(None if later is None else max(later - now, 0.001)):
                    await self._placing.wait()
            except TimeoutError:
                pass

    async def _place_together(self, due: list[Partition]) -> None:
        """Look up many partitions with few requests; a missing topic does not delay the other partitions."""
        known = self.engine.metadata.snapshot.topics
        unknown = {partition.tp.topic for partition in due if partition.tp.topic not in known}
        if len(unknown) > 1:
            await self.engine.learn(unknown)
            known = self.engine.metadata.snapshot.topics
        groups: dict[str, list[Partition]] = {}
        for partition in due:
            topic = partition.tp.topic
            groups.setdefault("" if topic in known else topic, []).append(partition)
        await asyncio.gather(*(self._place_group(group) for group in groups.values()))

    async def _place_group(self, group: list[Partition]) -> None:
        lost = [partition for partition in group if partition.fetch_at is None]
        if len(lost) > 1:
            await self._find_together(lost)
        await asyncio.gather(*(self._place_one(partition) for partition in group))

    async def _place_one(self, partition: Partition) -> None:
        try:
            await self._place(partition)
        finally:
            partition.is_placing = False
            if partition.tp in self._unplaced:
                self._placing.set()

    async def _place(self, partition: Partition) -> None:
        """Find the partition's position if it has none, and add the partition to its leader's link."""
        tp = partition.tp
        try:
            info = await self.engine.topic(tp.topic)
            if tp.partition >= len(info.partitions):
                await self.engine.metadata.refresh([tp.topic], deadline=self.engine.deadline(5))
                info = self.engine.metadata.snapshot.topics.get(tp.topic, info)
            if not 0 <= tp.partition < len(info.partitions):
                raise InvalidArgumentError(
                    f"topic {tp.topic!r} has {counted(len(info.partitions), 'partition')}; partition {tp.partition} "
                    "does not exist"
                )
            if partition.known_epoch < 0:
                partition.known_epoch = info.partitions[tp.partition].leader_epoch
            if partition.fetch_at is None:
                await self._find_position(partition)
            elif partition.may_be_truncated:
                await self._check_truncation(partition)
        except HeadraceError as error:
            if error.retriable and error.code not in ("BOOTSTRAP_FAILED", "UNKNOWN_TOPIC_OR_PARTITION"):
                self.look_up_leader(partition, error)
            else:
                self.tell(partition, error)
                partition.retry_at = time.monotonic() + self.engine.backoff.longest_s
                if self.tracked.get(tp) is partition and error.retriable:
                    self._unplaced[tp] = None
            return
        if self.tracked.get(tp) is not partition or partition.paused:
            return
        end = partition.end_offset
        if end is not None and partition.fetch_at is not None and partition.fetch_at >= end:
            return
        link = self._link_of(partition)
        if link is None:
            partition.retry_at = time.monotonic() + self.engine.backoff.delay_s(partition.attempts)
            partition.attempts += 1
            self.engine.metadata.invalidate()
            self._unplaced[tp] = None
            return
        if partition.reported is not None:
            partition.reported.is_raised = True  # the error is over: if no poll has raised it yet, none shall
            partition.reported = None
        self.placed[tp] = link
        link.add(partition)

    def tell(self, partition: Partition, error: HeadraceError) -> None:
        """Let the caller's poll raise ``error``, after the poll has returned the records that were fetched before the
        error. If a poll has not yet raised the partition's last retriable error, a further one is dropped: the errors
        of a missing topic must not pile up in the queue of a consumer that polls seldom."""
        if error.retriable and partition.reported is not None and not partition.reported.is_raised:
            return
        at = partition.fetch_at if partition.fetch_at is not None else -1
        item = Slice(partition, at, at, error=error)
        if error.retriable:
            partition.reported = item
        self.inbox.put(item)

    async def close(self) -> None:
        if self._placer is not None:
            self._placer.cancel()
            self._placer = None  # drop the task: a cancelled task's traceback would keep the fetcher
        for placement in self._placements:
            placement.cancel()
        links, self.links = list(self.links.values()), {}
        self.tracked.clear()
        self.placed.clear()
        await asyncio.gather(*(link.close() for link in links))
        self.inbox.close()
        self.committed = None  # break the reference cycle: the group refers to its fetcher

    # --- positions -------------------------------------------------------------------------------------------------

    async def _find_together(self, lost: list[Partition]) -> None:
        """Find the positions of many partitions with one request per leader. Partitions whose lookup fails stay without
        a position; ``_find_position`` looks them up again, and raises the error."""
        engine = self.engine
        with contextlib.suppress(HeadraceError):
            await self._begin_where_committed(lost, TOGETHER_S)
        lost = [partition for partition in lost if partition.fetch_at is None and not partition.asks_group]
        for topic in {partition.tp.topic for partition in lost}:
            with contextlib.suppress(HeadraceError):
                await engine.topic(topic, TOGETHER_S)
        groups: dict[int, list[Partition]] = {}
        topics = engine.metadata.snapshot.topics
        for partition in lost:
            tp = partition.tp
            info = topics.get(tp.topic)
            if info is not None and tp.partition < len(info.partitions):
                groups.setdefault(info.partitions[tp.partition].leader, []).append(partition)
        groups.pop(-1, None)  # partitions without a leader: there is no broker to ask
        await asyncio.gather(*(self._find_group(group) for group in groups.values() if len(group) > 1))

    async def _find_group(self, group: list[Partition]) -> None:
        engine, policy = self.engine, self.config["auto.offset.reset"]
        with contextlib.suppress(HeadraceError):
            wanted = {partition.tp: reset_timestamp(partition.reset, policy, partition.tp) for partition in group}
            found = await list_offsets(engine, wanted, self.isolation, engine.deadline(TOGETHER_S))
            for partition in group:
                self._found(partition, found[partition.tp].offset)

    async def _begin_where_committed(self, some: list[Partition], timeout_s: float) -> None:
        """Set each position of a partition from ``assign`` to the group's committed offset, if the consumer has a
        group. Raises the errors of the OffsetFetch request."""
        asking = [partition for partition in some if partition.asks_group]
        if not asking or self.committed is None:
            return
        found = await self.committed([partition.tp for partition in asking], timeout_s)
        for partition in asking:
            partition.asks_group = False
            committed = found[partition.tp]
            if committed is not None:
                partition.epochs.begin(*committed)
                self._found(partition, committed[0])

    async def _find_position(self, partition: Partition) -> None:
        """Find the position of one partition: the group's committed offset, or else an offset by ``reset``. Raises the
        error that the lookup of the partition's offset returned."""
        engine, tp = self.engine, partition.tp
        await self._begin_where_committed([partition], engine.request_timeout_s)
        if partition.fetch_at is not None:
            return
        timestamp = reset_timestamp(partition.reset, self.config["auto.offset.reset"], tp)
        found = await list_offsets(engine, {tp: timestamp}, self.isolation, engine.deadline(engine.request_timeout_s))
        self._found(partition, found[tp].offset)

    async def _check_truncation(self, partition: Partition) -> None:
        """Check whether the log still has the records before ``fetch_at`` (KIP-320). If it lacks them, move the
        position to the first diverging offset. If auto.offset.reset is "none" or the consumer reads a bounded range,
        raise LogTruncationError instead."""
        tp, at, epoch = partition.tp, partition.fetch_at, partition.epochs.last
        assert at is not None
        engine = self.engine
        end = await end_of_epoch(engine, tp, epoch, engine.deadline(engine.request_timeout_s))
        if end.end_offset >= at and end.leader_epoch == epoch:
            return  # an ordinary log start or log end, which the next fetch response shows
        is_known = end.end_offset >= 0 and end.leader_epoch >= 0
        divergent = partition.epochs.divergent(at, end.leader_epoch, end.end_offset) if is_known else None
        if self.config["auto.offset.reset"] == "none" or partition.end_offset is not None:
            where = f"the log differs from offset {divergent} on" if is_known else "the leader does not know that epoch"
            raise LogTruncationError(
                f"{tp}: the log was truncated before offset {at}, the position of this consumer (last record: leader "
                f"epoch {epoch}); {where}. Records that this consumer has read are no longer in the log; seek to "
                "continue",
                partition=tp,
                position=at,
                divergent_offset=divergent,
            )
        where = "the offset of auto.offset.reset" if divergent is None else f"offset {divergent}"
        logger.warning("%s: the log was truncated before this consumer's position %d; continuing at %s", tp, at, where)
        partition.may_be_truncated = False
        if divergent is None:
            partition.fetch_at, partition.reset, partition.asks_group = None, None, False
            partition.epochs.forget()
            await self._find_position(partition)
        else:
            partition.epochs.go_back(divergent)
            self._found(partition, divergent)

    def _found(self, partition: Partition, offset: int) -> None:
        partition.fetch_at = offset
        if partition.position is None and partition.found is None:
            partition.found = offset
        else:  # the position is out of range: an empty slice moves it once the caller has read what came before
            self.inbox.put(Slice(partition, offset, offset))


def reset_timestamp(reset: str | None, policy: str, tp: TopicPartition) -> int:
    """The special timestamp of a ListOffsets request for a reset to "earliest" or "latest". Raises
    NoOffsetForPartitionError when auto.offset.reset is "none"."""
    wanted = reset or policy
    if wanted == "earliest":
        return EARLIEST_TIMESTAMP
    if wanted == "latest":
        return LATEST_TIMESTAMP
    raise NoOffsetForPartitionError(
        f"{tp} has no position and auto.offset.reset is none: seek to an offset first, or set auto.offset.reset"
    )
