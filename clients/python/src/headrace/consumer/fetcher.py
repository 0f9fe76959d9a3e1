"""The fetcher keeps the inbox filled with records. The module runs on Headrace's I/O thread.

The fetcher finds a position and a leader for each wanted partition, and adds the partition to the fetch session at that
broker (``fetch_session.py``). Partitions that need a leader at the same time are looked up together, with few requests;
other partitions do not wait for that lookup.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Any

from headrace_core.errors import HeadraceError, InvalidArgumentError, ReplicaNotAvailableError
from headrace_core.plurals import counted
from headrace_core.types import TopicPartition

from ..engine.client import Engine
from ..engine.metadata import Snapshot
from ..engine.offsets import ISOLATION
from ..metrics import Metrics
from .fetch_session import FetchLink
from .inbox import Assigned, Inbox, Slice
from .positions import check_truncation, find_position, find_together
from .tracked import Committed, Tracked

logger = logging.getLogger("headrace")


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
        self.tracked: dict[TopicPartition, Tracked] = {}
        #: Maps (broker id, whether the link's requests contain the client's rack) to the FetchLink. A leader that knows
        #: the client's rack redirects the client to a follower in the same rack.
        self.links: dict[tuple[int, bool], FetchLink] = {}
        #: Looks up the group's committed offsets; None unless partitions of ``assign`` begin at committed offsets.
        self.committed: Committed | None = None
        self._homeless: dict[TopicPartition, None] = {}
        self._placing = asyncio.Event()
        self._placer: asyncio.Task[None] | None = None
        self._placements: set[asyncio.Task[None]] = set()
        engine.metadata.listeners.append(self._on_snapshot)

    # --- the wanted partitions -------------------------------------------------------------------------------------

    def sync(self, wanted: list[tuple[Assigned, int, int | None, str | None, bool]]) -> None:
        """Update the fetch sessions. ``wanted`` has (assigned, generation, position, reset, paused) for every assigned
        partition."""
        self.engine.start()
        if self._placer is None:
            self._placer = self.engine.spawn(self._place_all(), "headrace-fetch-placer")
        keep = set()
        for assigned, generation, position, reset, paused in wanted:
            tp = assigned.tp
            old = self.tracked.get(tp)
            if paused:
                if old is not None and old.generation != generation:
                    self._drop(old)
                elif old is not None:
                    keep.add(tp)
                    old.paused = True  # a partition may be paused while it is being placed
                    self._leave(old)
                continue
            keep.add(tp)
            if old is not None and old.assigned is assigned and old.generation == generation:
                old.paused = False
                if old.link is None and not old.placing:
                    self._homeless[tp] = None
                continue
            if old is not None:
                self._drop(old)
            new = self.tracked[tp] = Tracked(assigned, position, reset)
            new.generation = generation
            if assigned.begun is not None and assigned.begun[0] == position:
                new.epochs.begin(*assigned.begun)
            self._homeless[tp] = None
        for tp in [tp for tp in self.tracked if tp not in keep]:
            self._drop(self.tracked[tp])
        self._placing.set()

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop fetching the given partitions until a call of ``sync`` contains them again."""
        for tp in partitions:
            tracked = self.tracked.get(tp)
            if tracked is not None:
                self._drop(tracked)

    def _drop(self, tracked: Tracked) -> None:
        self._leave(tracked)
        self.tracked.pop(tracked.assigned.tp, None)

    def _leave(self, tracked: Tracked) -> None:
        self._homeless.pop(tracked.assigned.tp, None)
        if tracked.link is not None:
            tracked.link.remove(tracked)
            tracked.link = None

    def has_room(self) -> None:
        """Continue to fetch, because the caller has taken fetched records from the inbox."""
        for link in self.links.values():
            link.nudge()

    # --- placing ----------------------------------------------------------------------------------------------------

    def send_home(self, tracked: Tracked, error: HeadraceError | None = None) -> None:
        """Look up the partition's leader again; wait first if ``error`` is a failure of the broker."""
        tp = tracked.assigned.tp
        tracked.link = None
        if self.tracked.get(tp) is not tracked or tracked.paused:
            return
        if error is not None:
            if tracked.near >= 0:  # (KIP-392: otherwise the leader would send the client to the same follower again)
                tracked.far_until = time.monotonic() + self.near_s
                logger.info(
                    "%s: cannot read from broker %d, the nearest replica; reading from the leader instead: %s",
                    tp,
                    tracked.near,
                    error,
                )
            tracked.near = -1
            tracked.retry_at = time.monotonic() + self.engine.backoff.delay_s(tracked.attempts)
            tracked.attempts += 1
            self.engine.metadata.invalidate()
        self._homeless[tp] = None
        self._placing.set()

    def _on_snapshot(self, snapshot: Snapshot) -> None:
        for tp, tracked in self.tracked.items():
            info = snapshot.topics.get(tp.topic)
            if info is not None and tp.partition < len(info.partitions):
                tracked.learn_epoch(info.partitions[tp.partition].leader_epoch)
            old = tracked.link
            if old is not None and self._home(tracked) is not old:
                old.remove(tracked)  # the lookup may have closed the old link, which was left without partitions
                tracked.link = None
                self._homeless[tp] = None
            elif old is not None:
                old.note_news(tracked)
        if self._homeless:
            self._placing.set()

    def read_near(self, tracked: Tracked, broker_id: int) -> None:
        """Read the partition from the follower in the client's rack that the leader has named in its response; ask the
        leader again after metadata.max.age.ms."""
        if broker_id not in self.engine.metadata.snapshot.brokers:
            if tracked.attempts:  # the refreshed metadata do not contain the follower, either
                tracked.far_until = time.monotonic() + self.near_s
            self.send_home(tracked, ReplicaNotAvailableError(f"broker {broker_id} is not in the client's metadata yet"))
            return
        tracked.near, tracked.near_until = broker_id, time.monotonic() + self.near_s
        self.send_home(tracked)

    def _home(self, tracked: Tracked) -> FetchLink | None:
        """The link of the broker to read the partition from: a follower in the client's rack, or the leader; None if
        the partition has no leader."""
        snapshot, tp = self.engine.metadata.snapshot, tracked.assigned.tp
        info = snapshot.topics.get(tp.topic)
        leader = info.partitions[tp.partition].leader if info and tp.partition < len(info.partitions) else -1
        now = time.monotonic()
        if tracked.near >= 0 and now < tracked.near_until and tracked.near in snapshot.brokers:
            leader = tracked.near
        else:
            tracked.near = -1
        tells_rack = now >= tracked.far_until
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
            due = [self.tracked[tp] for tp in self._homeless if self.tracked[tp].retry_at <= now]
            for tracked in due:
                tracked.placing = True
                del self._homeless[tracked.assigned.tp]
            if due:  # do not await the lookup: a missing topic or a silent leader must not delay a later seek
                placement = self.engine.spawn(self._place_together(due), "headrace-fetch-placement")
                self._placements.add(placement)
                placement.add_done_callback(self._placements.discard)
            later = min((self.tracked[tp].retry_at for tp in self._homeless), default=None)
            self._placing.clear()
            try:
                async with asyncio.timeout(None if later is None else max(later - now, 0.001)):
                    await self._placing.wait()
            except TimeoutError:
                pass

    async def _place_together(self, due: list[Tracked]) -> None:
        """Look up many partitions with few requests; a missing topic does not delay the other partitions."""
        known = self.engine.metadata.snapshot.topics
        strangers = {tracked.assigned.tp.topic for tracked in due if tracked.assigned.tp.topic not in known}
        if len(strangers) > 1:
            await self.engine.learn(strangers)
            known = self.engine.metadata.snapshot.topics
        groups: dict[str, list[Tracked]] = {}
        for tracked in due:
            topic = tracked.assigned.tp.topic
            groups.setdefault("" if topic in known else topic, []).append(tracked)
        await asyncio.gather(*(self._place_group(group) for group in groups.values()))

    async def _place_group(self, group: list[Tracked]) -> None:
        lost = [tracked for tracked in group if tracked.fetch_at is None]
        if len(lost) > 1:
            await find_together(self, lost)
        await asyncio.gather(*(self._place_one(tracked) for tracked in group))

    async def _place_one(self, tracked: Tracked) -> None:
        try:
            await self._place(tracked)
        finally:
            tracked.placing = False
            if tracked.assigned.tp in self._homeless:
                self._placing.set()

    async def _place(self, tracked: Tracked) -> None:
        """Find the partition's position if it has none, and add the partition to its leader's link."""
        tp = tracked.assigned.tp
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
            if tracked.known_epoch < 0:
                tracked.known_epoch = info.partitions[tp.partition].leader_epoch
            if tracked.fetch_at is None:
                await find_position(self, tracked)
            elif tracked.may_be_truncated:
                await check_truncation(self, tracked)
        except HeadraceError as error:
            if error.retriable and error.code not in ("BOOTSTRAP_FAILED", "UNKNOWN_TOPIC_OR_PARTITION"):
                self.send_home(tracked, error)
            else:
                self.tell(tracked, error)
                tracked.retry_at = time.monotonic() + self.engine.backoff.longest_s
                if self.tracked.get(tp) is tracked and error.retriable:
                    self._homeless[tp] = None
            return
        if self.tracked.get(tp) is not tracked or tracked.paused:
            return
        end = tracked.assigned.end_offset
        if end is not None and tracked.fetch_at is not None and tracked.fetch_at >= end:
            return
        link = self._home(tracked)
        if link is None:
            tracked.retry_at = time.monotonic() + self.engine.backoff.delay_s(tracked.attempts)
            tracked.attempts += 1
            self.engine.metadata.invalidate()
            self._homeless[tp] = None
            return
        if tracked.reported is not None:
            tracked.reported.generation = -1  # the error is over: if no poll has raised it yet, none shall
            tracked.reported = None
        tracked.link = link
        link.add(tracked)

    def tell(self, tracked: Tracked, error: HeadraceError) -> None:
        """Let the caller's poll raise ``error``, after the poll has returned the records that were fetched before the
        error. If a poll has not yet raised the partition's last retriable error, a further one is dropped: the errors
        of a missing topic must not pile up in the queue of a consumer that polls seldom."""
        if error.retriable and tracked.reported is not None and not tracked.reported.is_raised:
            return
        at = tracked.fetch_at if tracked.fetch_at is not None else -1
        item = Slice(tracked.assigned, tracked.generation, at, at, error=error)
        if error.retriable:
            tracked.reported = item
        self.inbox.put(item)

    async def close(self) -> None:
        if self._placer is not None:
            self._placer.cancel()
            self._placer = None  # drop the task: a cancelled task's traceback would keep the fetcher
        for placement in self._placements:
            placement.cancel()
        links, self.links = list(self.links.values()), {}
        self.tracked.clear()
        await asyncio.gather(*(link.close() for link in links))
        self.inbox.close()
        self.committed = None  # break the reference cycle: the group refers to its fetcher
