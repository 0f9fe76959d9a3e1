"""Which partitions this broker has, and following what the controller decides about them.

``apply`` is called with each change of the metadata, in order, and returns when the change is in force: logs created,
opened or deleted, leaders begun or ended, settings changed. Handlers ask for the ``leader`` of a partition, which is a
lookup, or an error that says why not.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from headrace_core.errors import (
    CorruptLogError,
    DiskFullError,
    FencedBrokerError,
    FencedLeaderEpochError,
    HeadraceError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    ServerBusyError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from headrace_core.log import LogConfig, PartitionLog
from headrace_core.log.dump import problem_of
from headrace_core.metadata import MetadataDelta, MetadataImage, PartitionImage, TopicImage
from headrace_core.metadata.configs import broker_topic_defaults, topic_given
from headrace_core.metadata.records import ConfigResourceType
from headrace_core.telemetry import CorruptionFound, Emitter, PartitionClosed, PartitionFailed, PartitionOpened
from headrace_core.types import NO_LEADER, TopicPartition

from .partition import PartitionLeader
from .replica import Replica
from .storage import Storage

#: Why a log could not be made that is worth another try.
_PASSES = (DiskFullError, ServerBusyError)


class LogSettings:
    """The settings of a topic's logs on this broker: the topic's own keys over the brokers' over this broker's file."""

    def __init__(self, *, static: Mapping[str, Any], flush_interval_ms: int) -> None:
        self._static = static
        self._flush_interval_ms = flush_interval_ms
        #: For which configurations and broker, and what was made for them.
        self._known: tuple[Mapping[Any, Any], int, dict[Any, LogConfig]] = ({}, -1, {})

    def of(self, image: MetadataImage, broker_id: int, topic: str) -> LogConfig:
        """Topics that say the same share one LogConfig, made once for as long as no configuration changes. Any
        thread."""
        known = self._known
        if known[0] is not image.configs or known[1] != broker_id:
            known = self._known = (image.configs, broker_id, {})
        key = tuple(sorted(image.config(ConfigResourceType.TOPIC, topic).items()))
        found = known[2].get(key)
        if found is None:
            found = known[2][key] = LogConfig.from_topic(
                topic_given(image, topic),
                broker_defaults=broker_topic_defaults(image, broker_id, self._static),
                flush_interval_ms=self._flush_interval_ms,
            )
        return found


class Replicas:
    """Every partition of this broker. ``refusal`` is why none of them is served right now; None when they are."""

    def __init__(self, settings: LogSettings, events: Emitter) -> None:
        self.broker_id = -1
        self.refusal: HeadraceError | None = FencedBrokerError("the broker is starting; try again")
        self._settings = settings
        self._events = events
        self._image = MetadataImage()
        self._storage: Storage  # tied by the composition root: each needs the other
        self._led: dict[TopicPartition, Replica] = {}
        self._failed: dict[TopicPartition, HeadraceError] = {}
        self._changing = asyncio.Lock()  # one change of the metadata, or retry, at a time

    # -- for the handlers --------------------------------------------------------------------------------------------

    def leader(self, partition: TopicPartition) -> Replica:
        """The replica that leads ``partition`` here.

        Raises FencedBrokerError, ServerShuttingDownError, UnknownTopicOrPartitionError, NotLeaderOrFollowerError,
        LeaderNotAvailableError, StorageError.
        """
        if self.refusal is not None:
            raise self.refusal
        replica = self._led.get(partition)
        if replica is None:
            raise self._why_not(partition)
        return replica

    def check_serving(self) -> None:
        """Raises ``refusal``."""
        if self.refusal is not None:
            raise self.refusal

    def leader_hint(self, partition: TopicPartition, error: HeadraceError) -> tuple[int, int] | None:
        """(leader id, leader epoch) as this broker knows them, for errors that send a client elsewhere."""
        if not isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError):
            return None
        found = self._partition(partition)
        return None if found is None else (found.leader, found.leader_epoch)

    def tie(self, storage: Storage) -> None:
        """Where the logs are."""
        self._storage = storage

    def assigned_directory(self, partition: TopicPartition, topic_id: uuid.UUID) -> uuid.UUID | None:
        """The directory that the controllers have on record for this broker's replica; the zero id: none yet."""
        state = self._image.partition(topic_id.bytes, partition.partition)
        return None if state is None else uuid.UUID(bytes=state.directory_of(self.broker_id))

    def leader_of(self, log: PartitionLog) -> PartitionLeader | None:
        """Who leads ``log`` on this broker; None when it does not lead it. From any thread."""
        replica = self._led.get(log.topic_partition)
        return replica.leader if replica is not None and replica.log is log else None

    def led(self) -> Iterable[Replica]:
        return self._led.values()

    def _partition(self, partition: TopicPartition) -> PartitionImage | None:
        topic = self._image.topic(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    def _why_not(self, partition: TopicPartition) -> HeadraceError:
        found = self._partition(partition)
        if found is None:
            return UnknownTopicOrPartitionError(f"there is no partition {_shown(partition)} here")
        if partition in self._failed:
            return self._failed[partition]
        if found.leader == NO_LEADER:
            return LeaderNotAvailableError(f"{partition} has no leader at the moment")
        return NotLeaderOrFollowerError(
            f"broker {self.broker_id} does not lead {partition}, broker {found.leader} does; refresh the metadata"
        )

    # -- following the controller ------------------------------------------------------------------------------------

    async def apply(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Put ``delta``, which led to ``image``, into force."""
        async with self._changing:
            await self._apply(image, delta)

    async def _apply(self, image: MetadataImage, delta: MetadataDelta, *, at_start: bool = False) -> None:
        self._image = image
        await self._remove(delta.removed_topics.values())
        wanted: list[tuple[TopicPartition, TopicImage, PartitionImage]] = []
        for topic_id, numbers in delta.partitions.items():
            topic = image.topics[topic_id]
            wanted += [
                (TopicPartition(topic.name, number), topic, topic.partitions[number]) for number in sorted(numbers)
            ]
        await self._open_logs(wanted, at_start=at_start)
        for partition, topic, state in wanted:
            self._lead_or_not(partition, topic, state)
        await self._reconfigure(image, delta)

    async def apply_all(self, image: MetadataImage) -> None:
        """The first image, once the storage is open: everything is new. Logs of topics that were deleted while this
        broker was away go; those that are damaged stay offline."""
        deleted, refused = await self._storage.settle(lambda topic_id: topic_id.bytes in image.topics)
        for partition in deleted:
            self._events.emit(PartitionClosed(partition=partition, deleted=True))
        for partition, error in refused.items():
            self._failed[partition] = error
            self._events.emit(PartitionFailed(partition=partition, reason=error.message))
        everything = {topic_id: frozenset(range(len(topic.partitions))) for topic_id, topic in image.topics.items()}
        async with self._changing:
            await self._apply(image, MetadataDelta(0, image.next_offset, partitions=everything), at_start=True)

    async def retry_full(self) -> list[TopicPartition]:
        """Once more for the logs that could not be made because their disk was full, or no descriptor was left; those
        that are there now. Costs nothing when there are none."""
        if not any(isinstance(error, _PASSES) for error in self._failed.values()):
            return []
        async with self._changing:
            wanted: list[tuple[TopicPartition, TopicImage, PartitionImage]] = []
            for partition, error in self._failed.items():
                topic, state = self._image.topic(partition.topic), self._partition(partition)
                if isinstance(error, _PASSES) and topic is not None and state is not None:
                    wanted.append((partition, topic, state))
            await self._open_logs(wanted)
            for partition, topic, state in wanted:
                self._lead_or_not(partition, topic, state)
            return [partition for partition, _, _ in wanted if partition not in self._failed]

    def settings_of(self, topic: str, image: MetadataImage) -> LogConfig:
        """The settings that hold for a topic's logs on this broker."""
        return self._settings.of(image, self.broker_id, topic)

    async def _remove(self, topics: Iterable[TopicImage]) -> None:
        gone: list[TopicPartition] = []
        for topic in topics:
            reason = UnknownTopicOrPartitionError(f"topic {topic.name} was deleted")
            for number in range(len(topic.partitions)):
                partition = TopicPartition(topic.name, number)
                self._resign(partition, reason)
                self._failed.pop(partition, None)
                gone.append(partition)
        for partition in await self._storage.delete(gone):
            self._events.emit(PartitionClosed(partition=partition, deleted=True))

    async def _open_logs(
        self, wanted: Iterable[tuple[TopicPartition, TopicImage, PartitionImage]], *, at_start: bool = False
    ) -> None:
        missing = [
            (partition, uuid.UUID(bytes=topic.topic_id), self.settings_of(topic.name, self._image))
            for partition, topic, state in wanted
            if self.broker_id in state.replicas
            and not self._is_open(partition, topic)
            and not isinstance(self._failed.get(partition), CorruptLogError)
        ]
        for partition, outcome in await self._storage.create(missing, at_start=at_start):
            before = self._failed.pop(partition, None)
            if outcome is not None:
                self._failed[partition] = outcome
                if type(before) is not type(outcome):  # else it was said already
                    self._events.emit(PartitionFailed(partition=partition, reason=outcome.message))

    def _is_open(self, partition: TopicPartition, topic: TopicImage) -> bool:
        """A log without its topic's id (the broker died while it was made) is made again, which gives it one; one of
        another topic is refused there."""
        log = self._storage.log(partition)
        return log is not None and log.topic_id is not None and log.topic_id.bytes == topic.topic_id

    def _lead_or_not(self, partition: TopicPartition, topic: TopicImage, state: PartitionImage) -> None:
        if state.leader != self.broker_id:
            self._resign(
                partition,
                NotLeaderOrFollowerError(f"broker {self.broker_id} leads {partition} no more; refresh the metadata"),
            )
            return
        before = self._led.get(partition)
        wanted = (topic.topic_id, state.leader_epoch)
        if before is not None and (before.leader.topic_id, before.leader.leader_epoch) == wanted:
            return
        self._resign(
            partition,
            FencedLeaderEpochError(f"{partition}: the leader epoch is {state.leader_epoch} now; refresh the metadata"),
        )
        log = self._storage.log(partition)
        if log is not None and self._is_open(partition, topic):  # else it failed, and says so
            self._lead(partition, topic, state, log)

    def _lead(self, partition: TopicPartition, topic: TopicImage, state: PartitionImage, log: PartitionLog) -> None:
        # Read first: a turn may be under way on the writer's thread, and no flush is beyond what was written.
        flushed_end = log.flushed_offset
        leader = PartitionLeader(
            partition,
            topic_id=topic.topic_id,
            leader_id=self.broker_id,
            leader_epoch=state.leader_epoch,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            flushed_end=flushed_end,
            flush_policy=log.config.flush,
        )
        self._led[partition] = self._storage.replica(log, leader)
        self._events.emit(
            PartitionOpened(
                partition=partition,
                leader_epoch=state.leader_epoch,
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
            )
        )

    def _resign(self, partition: TopicPartition, reason: HeadraceError) -> None:
        replica = self._led.pop(partition, None)
        if replica is not None:
            replica.leader.resign(reason)

    async def _reconfigure(self, image: MetadataImage, delta: MetadataDelta) -> None:
        topics = {name for kind, name in delta.configs if kind is ConfigResourceType.TOPIC}
        everything = any(
            kind is ConfigResourceType.BROKER and name in ("", str(self.broker_id)) for kind, name in delta.configs
        )
        if not topics and not everything:
            return
        settings: dict[str, LogConfig] = {}
        for partition, _ in self._storage.logs():
            if everything or partition.topic in topics:
                config = settings.get(partition.topic)
                if config is None:
                    config = settings[partition.topic] = self.settings_of(partition.topic, image)
                await self._storage.reconfigure(partition, config)
                replica = self._led.get(partition)
                if replica is not None:
                    replica.leader.set_flush_policy(config.flush)

    # -- what the storage says ---------------------------------------------------------------------------------------

    def logs_moved(self, logs: Iterable[PartitionLog]) -> None:
        """A turn of a writer has changed these logs."""
        for log in logs:
            replica = self._led.get(log.topic_partition)
            if replica is not None and replica.log is log:
                replica.log_moved()

    def quarantine(self, log: PartitionLog, error: CorruptLogError) -> None:
        """A log was found to be damaged, and looked at twice: this broker serves and writes it no more, here or after a
        restart, before the operator has seen to it. The other partitions go on."""
        if not self._storage.quarantine(log, error):
            return
        partition = log.topic_partition
        self._failed[partition] = error
        self._resign(partition, error)
        found = problem_of(error, path=log.directory)
        self._events.emit(
            CorruptionFound(
                partition=partition, path=found.path, position=found.position, offset=found.offset, what=found.what
            )
        )
        self._events.emit(PartitionFailed(partition=partition, reason=error.message))

    def storage_failed(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        """The directory of these partitions has failed: they are offline on this broker until it starts anew."""
        for partition in partitions:
            error = StorageError(f"{partition} is offline: {reason}")
            self._failed[partition] = error
            self._resign(partition, error)
            self._events.emit(PartitionFailed(partition=partition, reason=reason))

    def resign_all(self, reason: Callable[[TopicPartition], HeadraceError]) -> None:
        """Lead nothing any more: the broker stops."""
        for partition in list(self._led):
            self._resign(partition, reason(partition))


def _shown(partition: TopicPartition) -> str:
    """The name of a partition that a client made up, cut to a length that does no harm in a log."""
    topic = partition.topic if len(partition.topic) <= 60 else partition.topic[:57] + "..."
    return f"{topic!r}-{partition.partition}"
