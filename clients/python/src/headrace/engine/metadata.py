"""The client's metadata: the brokers, and the leaders of the topics that the client uses.

A metadata snapshot is immutable; the metadata cache replaces the whole snapshot when metadata change. A broker pushes
metadata changes to the client (``watch.py``). The client also reads metadata in three cases: its metadata are older
than ``metadata.max.age.ms``, a response shows that they are wrong, or a topic is used for the first time (only that
topic, KIP-526). Metadata requests are serialized: callers that arrive during a request share its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from typing import Any

from headrace_core.errors import (
    BootstrapError,
    HeadraceError,
    InvalidReplicationFactorError,
    LeaderNotAvailableError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    from_number,
)
from headrace_core.rpc.limits import pages
from headrace_core.types import check_topic_name
from headrace_protos.v1 import metadata_pb2

from ..models import BrokerInfo
from .connections import Connections, call, check_clock
from .watch import MetadataWatch

logger = logging.getLogger("headrace")

#: Seconds for which the client looks up an unknown topic again before it raises the error: a new topic needs a moment
#: to reach every node.
UNKNOWN_TOPIC_GRACE_S = 2.0

#: First timeout in seconds of a request that a node answers from memory; each round of attempts doubles the timeout.
QUICK_S = 2.0


class Backoff:
    """Exponential back-off with 20 % jitter, so that clients do not all retry at the same moments."""

    def __init__(self, config: dict[str, Any], chance: random.Random | None = None) -> None:
        self.first_s = config["retry.backoff.ms"] / 1000
        self.longest_s = max(config["retry.backoff.max.ms"] / 1000, self.first_s)
        self._chance = chance or random.Random()

    def delay_s(self, attempt: int) -> float:
        """Seconds to wait after failure number ``attempt`` (counted from 0)."""
        pause: float = min(self.longest_s, self.first_s * 2 ** min(attempt, 16))
        return pause * self._chance.uniform(0.8, 1.2)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    topic_id: bytes
    internal: bool
    max_message_bytes: int
    partitions: tuple[PartitionInfo, ...]  # indexed by partition number


@dataclass(frozen=True, slots=True)
class Snapshot:
    cluster_id: str
    controller: int
    brokers: dict[int, BrokerInfo]
    topics: dict[str, TopicInfo]
    metadata_offset: int


_EMPTY = Snapshot("", -1, {}, {}, 0)


class MetadataCache:
    """The cache of the client's metadata; its methods run on the I/O thread. The ``listeners`` are called with each new
    snapshot."""

    def __init__(self, config: dict[str, Any], connections: Connections) -> None:
        self.snapshot = _EMPTY
        self.listeners: list[Any] = []
        #: Largest metadata offset of this client's own changes. A node applies its metadata log up to the client's
        #: largest metadata offset before it answers ``ask``.
        self.written_offset = 0
        #: Maps each partition without a leader to its last known leader and leader epoch.
        self.last_leaders: dict[tuple[str, int], tuple[int, int]] = {}
        self._config = config
        self._connections = connections
        self._bootstrap: list[str] = config["bootstrap.servers"]
        self._request_timeout_s = config["request.timeout.ms"] / 1000
        self._max_age_s = config["metadata.max.age.ms"] / 1000
        self._backoff = Backoff(config)
        self._lock = asyncio.Lock()
        self._stale = asyncio.Event()
        self._version = 0
        self._doubted_at = 0.0
        self._tracked: set[str] = set()
        #: Topics with records that wait. The next refresh creates those that were deleted, as for the first record of a
        #: new client.
        self.wanted: set[str] = set()
        #: The metadata watch is opened again at once after ``_rewatch`` (the first topic, another broker), and soon
        #: after ``_grown`` (further topics).
        self._rewatch = asyncio.Event()
        self._grown = asyncio.Event()

    async def topic(self, name: str, *, create: bool, deadline: float) -> TopicInfo:
        """The metadata of a topic, read from the cluster if the cache lacks them; ``deadline`` is in time.monotonic().

        Raises UnknownTopicOrPartitionError when the topic does not exist and is not created,
        InvalidReplicationFactorError when too few brokers are alive to create it, InvalidTopicError, BootstrapError,
        RequestTimedOutError.
        """
        found = self.snapshot.topics.get(name)
        if found is not None:
            self._track(name)
            return found
        check_topic_name(name)
        begun, attempt = time.monotonic(), 0
        while True:
            error: HeadraceError
            try:
                errors = await self.refresh([name], create=create, unless_known=True, deadline=deadline)
                found = self.snapshot.topics.get(name)
                if found is not None:
                    self._track(name)
                    return found
                error = errors.get(name) or UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
            except BootstrapError:
                raise
            except HeadraceError as failure:
                error = failure
            # (The error "too few brokers" is not final, because more brokers may be about to start.)
            may_come = isinstance(error, UnknownTopicOrPartitionError | InvalidReplicationFactorError)
            late = may_come and time.monotonic() - begun > UNKNOWN_TOPIC_GRACE_S
            if late or not (may_come or error.retriable):
                if isinstance(error, UnknownTopicOrPartitionError):
                    told = error.message if name in error.message else f"topic {name!r} does not exist"
                    raise UnknownTopicOrPartitionError(f"{told}; create it first (headrace topics create {name})")
                if late:
                    raise InvalidReplicationFactorError(f"topic {name!r}: {error.message}")
                raise error
            pause = self._backoff.delay_s(attempt)
            if time.monotonic() + pause > deadline:
                raise RequestTimedOutError(
                    f"topic {name!r}: timed out waiting for metadata; the last failure: {error.message}"
                ) from error
            attempt += 1
            await asyncio.sleep(pause)

    def _track(self, name: str) -> None:
        if name not in self._tracked:
            (self._grown if self._tracked else self._rewatch).set()
            self._tracked.add(name)

    async def refresh(
        self,
        topics: Iterable[str] | None = None,
        *,
        create: bool = False,
        unless_known: bool = False,
        deadline: float,
    ) -> dict[str, HeadraceError]:
        """Read the metadata of ``topics`` (None: all that this client uses) again; return the errors by topic.

        ``unless_known``: send no request if another caller's request has returned the given topics since the call.
        """
        seen = self._version
        async with self._my_turn(deadline):
            if unless_known and topics is not None and all(name in self.snapshot.topics for name in topics):
                return {}
            names = sorted(self._tracked if topics is None else set(topics))
            if topics is None and self._version != seen and self.written_offset <= self.snapshot.metadata_offset:
                return {}  # another caller has just refreshed the metadata
            errors: dict[str, HeadraceError] = {}
            for page in pages(names):
                request = metadata_pb2.MetadataRequest(topics=page, allow_auto_topic_creation=create)
                errors.update(self._absorb(await self.ask(request, deadline), list(page)))
            return errors

    @contextlib.asynccontextmanager
    async def _my_turn(self, deadline: float) -> AsyncIterator[None]:
        """Let one caller at a time send requests; a waiting caller fails at its own deadline."""
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                await self._lock.acquire()
        except TimeoutError:
            raise RequestTimedOutError(
                "timed out reading the cluster's metadata: none of the nodes answered; check bootstrap.servers and "
                "`headrace ps`"
            ) from None
        try:
            yield
        finally:
            self._lock.release()

    async def ask(self, request: Any, deadline: float) -> Any:
        """Send GetMetadata to the first node that answers: known brokers are tried first, then the bootstrap addresses.

        Raises BootstrapError, which names every address and why it failed, when no node answered within
        ``bootstrap.timeout.ms``.
        """
        request.min_metadata_offset = self.written_offset
        give_up = min(deadline, time.monotonic() + self._config["bootstrap.timeout.ms"] / 1000)
        attempt = 0
        is_quick = not (request.allow_auto_topic_creation or request.min_metadata_offset)
        while True:
            failures: dict[str, HeadraceError] = {}
            for address in self.addresses():
                left = deadline - time.monotonic()
                per_try = min(self._request_timeout_s, max(left, 0.05))
                if is_quick:  # a hanging node must not keep us from nodes that know the new leader
                    per_try = min(per_try, QUICK_S * 2**attempt)
                if not self.snapshot.brokers:
                    per_try = min(per_try, max(give_up - time.monotonic(), 0.5))
                try:
                    return await call(self._connections.metadata(address).GetMetadata, request, address, per_try)
                except HeadraceError as error:
                    if not error.retriable and error.code not in ("UNKNOWN_SERVER_ERROR", "UNSUPPORTED_VERSION"):
                        raise
                    failures[address] = error
            if any(isinstance(error, RequestTimedOutError) for error in failures.values()):
                check_clock()
            pause = self._backoff.delay_s(attempt)
            if time.monotonic() + pause >= give_up:
                raise await self._bootstrap_error(failures, deadline)
            attempt += 1
            await asyncio.sleep(pause)

    def addresses(self) -> list[str]:
        return list(dict.fromkeys([*self._broker_addresses(), *self._bootstrap]))

    def _broker_addresses(self) -> list[str]:
        known = [broker.address for broker in self.snapshot.brokers.values()]
        random.shuffle(known)
        return known

    async def _bootstrap_error(self, failures: dict[str, HeadraceError], deadline: float) -> BootstrapError:
        connect_timeout_s = min(max(deadline - time.monotonic(), 0.2), 2.0)
        causes = await asyncio.gather(
            *(
                self._connections.why_unreachable(address, error, connect_timeout_s)
                for address, error in failures.items()
            )
        )
        lines = "; ".join(f"{address}: {cause}" for address, cause in zip(failures, causes, strict=True))
        return BootstrapError(f"cannot reach any node of bootstrap.servers: {lines}")

    def _absorb(self, answer: Any, names: list[str]) -> dict[str, HeadraceError]:
        brokers = {
            item.broker_id: BrokerInfo(item.broker_id, item.host, item.port, item.rack, item.fenced)
            for item in answer.brokers
        }
        topics = dict(self.snapshot.topics)
        errors: dict[str, HeadraceError] = {}
        for item in answer.topics:
            if item.error.code:
                errors[item.name] = from_number(item.error.code, item.error.message)
                if isinstance(errors[item.name], UnknownTopicOrPartitionError):
                    topics.pop(item.name, None)
                continue
            if not item.partitions:
                errors[item.name] = LeaderNotAvailableError(f"topic {item.name!r} has no partitions yet")
                continue
            old = topics.get(item.name)
            new = _newer(old, _topic(item))
            topics[item.name] = old if new == old and old is not None else new  # listeners skip what is unchanged
            self._remember_leaders(old, topics[item.name])
        for name in names:
            if name not in topics and name not in errors:
                errors[name] = UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        self.snapshot = Snapshot(answer.cluster_id, answer.controller_id, brokers, topics, answer.metadata_offset)
        self._version += 1
        for listener in list(self.listeners):
            listener(self.snapshot)
        return errors

    def _remember_leaders(self, old: TopicInfo | None, new: TopicInfo) -> None:
        for part in new.partitions:
            key = (new.name, part.partition)
            if part.leader >= 0:
                self.last_leaders.pop(key, None)
            elif old is not None and part.partition < len(old.partitions):
                before = old.partitions[part.partition]
                if before.leader >= 0:
                    self.last_leaders[key] = (before.leader, before.leader_epoch)

    async def own_writes_at(self, address: str, timeout_s: float) -> None:
        """Wait until the node at ``address`` has applied this client's own changes."""
        if self.written_offset:
            request = metadata_pb2.MetadataRequest(min_metadata_offset=self.written_offset)
            await call(self._connections.metadata(address).GetMetadata, request, address, timeout_s)

    def wrote(self, metadata_offset: int) -> None:
        """Forget the topics that were read before this client's change at ``metadata_offset``, so that every later
        answer includes the change."""
        if metadata_offset > self.written_offset:
            self.written_offset = metadata_offset
            self.snapshot = replace(self.snapshot, topics={})

    def invalidate(self) -> None:
        """Mark the snapshot as outdated, so that the metadata are read again soon."""
        self._stale.set()

    def doubt(self) -> None:
        """Read metadata from another node, because a broker has not answered for a long time. Also move the metadata
        watch to another broker, because the watch may be open at the silent broker. ``doubt`` does nothing within two
        seconds after its previous call."""
        now = time.monotonic()
        if now - self._doubted_at > QUICK_S:
            self._doubted_at = now
            self._rewatch.set()
            self.invalidate()

    def follow_hint(self, topic: str, partition: int, leader: int, leader_epoch: int) -> None:
        """Use the newer leader that a broker has named in its error response, without a metadata request (KIP-951)."""
        info = self.snapshot.topics.get(topic)
        if info is None or leader < 0 or leader not in self.snapshot.brokers or partition >= len(info.partitions):
            self.invalidate()
            return
        old = info.partitions[partition]
        if leader_epoch <= old.leader_epoch:
            self.invalidate()
            return
        new = PartitionInfo(partition, leader, leader_epoch, old.replicas, old.isr, old.offline_replicas)
        parts = (*info.partitions[:partition], new, *info.partitions[partition + 1 :])
        topics = {
            **self.snapshot.topics,
            topic: TopicInfo(info.name, info.topic_id, info.internal, info.max_message_bytes, parts),
        }
        old_image = self.snapshot
        self.snapshot = Snapshot(
            old_image.cluster_id, old_image.controller, old_image.brokers, topics, old_image.metadata_offset
        )
        for listener in list(self.listeners):
            listener(self.snapshot)

    async def watch(self) -> None:
        """Background task: receive metadata changes from a broker as they happen."""
        watch = MetadataWatch(
            self._connections,
            self._rewatch,
            self._grown,
            lambda: self._tracked,
            self._broker_addresses,
            self._absorb,
            self._backoff.delay_s,
        )
        await watch.run()

    async def keep_fresh(self) -> None:
        """Background task: read metadata again when they are old or wrong, at most once per back-off."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self._max_age_s):
                    await self._stale.wait()
            except TimeoutError:
                pass
            self._stale.clear()
            if self._tracked:
                deadline = time.monotonic() + self._request_timeout_s
                try:
                    errors = await self.refresh(deadline=deadline)
                    wanted, self.wanted = self.wanted, set()
                    if lost := wanted - self.snapshot.topics.keys():
                        errors = await self.refresh(lost, create=True, deadline=deadline)
                    failures = failures + 1 if errors or self._leaderless() else 0
                except HeadraceError as error:
                    failures += 1
                    logger.warning("cannot refresh metadata, retrying: %s", error)
                if failures:
                    self._stale.set()
            await asyncio.sleep(self._backoff.delay_s(failures))

    def _leaderless(self) -> bool:
        return any(
            part.leader < 0
            for name in self._tracked
            if (info := self.snapshot.topics.get(name))
            for part in info.partitions
        )


def _topic(item: Any) -> TopicInfo:
    parts = sorted(item.partitions, key=lambda part: part.partition)
    return TopicInfo(
        item.name,
        item.topic_id,
        item.internal,
        item.max_message_bytes,
        tuple(
            PartitionInfo(
                part.partition,
                part.leader_id,
                part.leader_epoch,
                tuple(part.replicas),
                tuple(part.isr),
                tuple(part.offline_replicas),
            )
            for part in parts
        ),
    )


def _newer(old: TopicInfo | None, new: TopicInfo) -> TopicInfo:
    """The new metadata of a topic, except that a partition keeps its known leader if that leader's epoch is newer. An
    answer of a lagging node must not replace a leader by an older leader (KIP-320)."""
    if old is None or old.topic_id != new.topic_id:
        return new
    parts = tuple(
        old.partitions[part.partition]
        if part.partition < len(old.partitions) and old.partitions[part.partition].leader_epoch > part.leader_epoch
        else part
        for part in new.partitions
    )
    return TopicInfo(new.name, new.topic_id, new.internal, new.max_message_bytes, parts)
