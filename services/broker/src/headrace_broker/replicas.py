"""Which partitions this broker has, as everybody else asks for them; what the storage says of their logs.

``apply`` is called with each change of the metadata, in order, and returns when the change is in force: logs created,
opened or deleted, leaders and followers begun or ended, settings changed (``roles`` does that). Handlers ask for the
``leader`` of a partition, which is a lookup, or an error that says why not.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Sequence

from headrace_core.errors import (
    CorruptLogError,
    FencedBrokerError,
    FencedLeaderEpochError,
    HeadraceError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from headrace_core.log import LogConfig, PartitionLog
from headrace_core.log.dump import problem_of
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.telemetry import CorruptionFound, Emitter, PartitionClosed, PartitionFailed
from headrace_core.types import NO_LEADER, TopicPartition

from .log_settings import LogSettings
from .partition import PartitionLeader
from .partition.leader import LAG_TIME_MAX_MS
from .reading import Readable
from .replica import Replica
from .replication.follower_replica import FollowerReplica
from .replication.healing import Step, next_step
from .roles import BeginAnew, Following, Roles
from .storage import Storage

__all__ = ["LogSettings", "Replicas"]


class Replicas:
    """Every partition of this broker. ``refusal`` is why none of them is served right now; None when they are."""

    def __init__(self, settings: LogSettings, events: Emitter, *, lag_time_max_ms: int = LAG_TIME_MAX_MS) -> None:
        self.refusal: HeadraceError | None = FencedBrokerError("the broker is starting; try again")
        self._events = events
        self._storage: Storage  # tied by the composition root: each needs the other
        self._roles = Roles(settings, events, lag_time_max_ms=lag_time_max_ms)
        self._roles.heal_soon = self._heal_soon
        self._led, self._followed, self._failed = self._roles.led, self._roles.followed, self._roles.failed
        self._changing = asyncio.Lock()  # one change of the metadata, or retry, at a time
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def broker_id(self) -> int:
        """-1 until the controllers have accepted the registration."""
        return self._roles.broker_id

    @broker_id.setter
    def broker_id(self, broker_id: int) -> None:
        self._roles.broker_id = broker_id

    # -- tied by the composition root ----------------------------------------------------------------------------------

    def tie(self, storage: Storage) -> None:
        """Where the logs are."""
        self._storage = self._roles.storage = storage

    def tie_following(self, following: Following) -> None:
        """Who brings followers their leaders' records; without it they wait."""
        self._roles.following = following

    def tie_isr(self, due: Callable[[PartitionLeader], None]) -> None:
        """Hears of each leader whose in-sync set may have to change."""
        self._roles.isr_due = due

    def tie_beginnings(self, begin_anew: BeginAnew) -> None:
        """Tells the controllers that a replica begins anew, before it does."""
        self._roles.begin_anew = begin_anew

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

    def readable(self, partition: TopicPartition) -> Readable:
        """The replica here that a consumer may read, up to its high watermark: the one that leads, or one that follows
        (KIP-392). Raises as ``leader``."""
        if self.refusal is not None:
            raise self.refusal
        followed = self._followed.get(partition)
        return self.leader(partition) if followed is None else self._storage.reader(followed)

    def check_serving(self) -> None:
        """Raises ``refusal``."""
        if self.refusal is not None:
            raise self.refusal

    def leader_hint(self, partition: TopicPartition, error: HeadraceError) -> tuple[int, int] | None:
        """(leader id, leader epoch) as this broker knows them, for errors that send a client elsewhere."""
        if not isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError):
            return None
        found = self._roles.state_of(partition)
        return None if found is None else (found.leader, found.leader_epoch)

    def for_clients(self, partition: TopicPartition, error: HeadraceError) -> HeadraceError:
        """What a client hears of ``error``. That a log is damaged is no matter of its own while others have what was in
        it: NotLeaderOrFollowerError, for one of them takes over. CorruptLogError is the last copy's."""
        if not isinstance(error, CorruptLogError):
            return error
        found = self._roles.state_of(partition)
        if found is None or next_step(found, self.broker_id) is Step.KEEP:
            return error
        return NotLeaderOrFollowerError(f"{error.message}; another replica takes over: refresh the metadata")

    def assigned_directory(self, partition: TopicPartition, topic_id: uuid.UUID) -> uuid.UUID | None:
        """The directory that the controllers have on record for this broker's replica; the zero id: none yet."""
        state = self._roles.image.partition(topic_id.bytes, partition.partition)
        return None if state is None else uuid.UUID(bytes=state.directory_of(self.broker_id))

    def leader_of(self, log: PartitionLog) -> PartitionLeader | None:
        """Who leads ``log`` on this broker; None when it does not lead it. From any thread."""
        replica = self._led.get(log.topic_partition)
        return replica.leader if replica is not None and replica.log is log else None

    def is_followed(self, log: PartitionLog) -> bool:
        """Does ``log`` follow a leader elsewhere, whose retention is its own? From any thread."""
        replica = self._followed.get(log.topic_partition)
        return replica is not None and replica.log is log and replica.leader_id != NO_LEADER

    def led_of(self, partition: TopicPartition) -> Replica | None:
        """The replica that leads ``partition`` here, whether it is served or not; None when none does."""
        return self._led.get(partition)

    def led(self) -> Iterable[Replica]:
        return self._led.values()

    def followed(self) -> Iterable[FollowerReplica]:
        return self._followed.values()

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Of every partition that is led or followed here, as they are to be checkpointed."""
        return {partition: replica.leader.high_watermark for partition, replica in self._led.items()} | {
            partition: replica.high_watermark for partition, replica in self._followed.items()
        }

    def _why_not(self, partition: TopicPartition) -> HeadraceError:
        found = self._roles.state_of(partition)
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
            await self._roles.apply(image, delta)
            await self._roles.heal()

    async def apply_all(self, image: MetadataImage) -> None:
        """The first image, once the storage is open: everything is new. Logs of topics that were deleted while this
        broker was away go, and those of partitions that were moved to others; those that are damaged stay offline until
        they can be healed."""
        deleted, refused = await self._storage.settle(lambda topic_id: topic_id.bytes in image.topics)
        for partition in deleted:
            self._events.emit(PartitionClosed(partition=partition, deleted=True))
        for partition, error in refused.items():
            self._failed[partition] = error
            self._events.emit(PartitionFailed(partition=partition, reason=error.message))
        everything = {topic_id: frozenset(range(len(topic.partitions))) for topic_id, topic in image.topics.items()}
        async with self._changing:
            delta = MetadataDelta(0, image.next_offset, partitions=everything)
            await self._roles.apply(image, delta, at_start=True)
            await self._roles.heal()

    async def retry_full(self) -> list[TopicPartition]:
        """Once more for the logs that could not be made because their disk was full, or no descriptor was left; those
        that are there now. Costs nothing when there are none."""
        if not self._failed:
            return []
        async with self._changing:
            return await self._roles.retry()

    def settings_of(self, topic: str, image: MetadataImage) -> LogConfig:
        """The settings that hold for a topic's logs on this broker."""
        return self._roles.settings_of(topic, image)

    # -- what the storage says ---------------------------------------------------------------------------------------

    def logs_moved(self, logs: Iterable[PartitionLog]) -> None:
        """A turn of a writer has changed these logs."""
        for log in logs:
            replica = self._led.get(log.topic_partition) or self._followed.get(log.topic_partition)
            if replica is not None and replica.log is log:
                replica.log_moved()

    def logs_written(self, logs: Sequence[PartitionLog]) -> bool:
        """These logs have more than before, which is not forced to the disk yet: followers may have it already. True
        when there are any."""
        has_followers = False
        for log in logs:
            replica = self._led.get(log.topic_partition)
            if replica is not None and replica.log is log:
                replica.log_moved()
                has_followers = has_followers or replica.leader.is_followed
        return has_followers

    def quarantine(self, log: PartitionLog, error: CorruptLogError) -> None:
        """A log was found to be damaged, and looked at twice: this broker serves and writes it no more, here or after a
        restart. It heals if others have what is in it; else the operator has to see to it. The other partitions go
        on."""
        if not self._storage.quarantine(log, error):
            return
        partition = log.topic_partition
        self._failed[partition] = error
        self._roles.end(partition, error)
        found = problem_of(error, path=log.directory)
        self._events.emit(
            CorruptionFound(
                partition=partition, path=found.path, position=found.position, offset=found.offset, what=found.what
            )
        )
        self._events.emit(PartitionFailed(partition=partition, reason=error.message))
        self._heal_soon()

    def told_anew(self, topic_id: bytes, partition: int, metadata_offset: int) -> None:
        """The controllers know, as of ``metadata_offset``, that this replica begins anew."""
        self._roles.told_anew(topic_id, partition, metadata_offset)
        self._heal_soon()

    def _heal_soon(self) -> None:
        task = asyncio.get_running_loop().create_task(self._heal(), name="healing")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _heal(self) -> None:
        async with self._changing:
            await self._roles.heal()

    def storage_failed(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        """The directory of these partitions has failed: they are offline on this broker until it starts anew."""
        for partition in partitions:
            error = StorageError(f"{partition} is offline: {reason}")
            self._failed[partition] = error
            self._roles.end(partition, error)
            self._events.emit(PartitionFailed(partition=partition, reason=reason))

    def resign_all(self, reason: Callable[[TopicPartition], HeadraceError]) -> None:
        """Lead and follow nothing any more: the broker stops."""
        for task in self._tasks:
            task.cancel()
        for partition in (*self._led, *self._followed):
            self._roles.end(partition, reason(partition))


def _shown(partition: TopicPartition) -> str:
    """The name of a partition that a client made up, cut to a length that does no harm in a log."""
    topic = partition.topic if len(partition.topic) <= 60 else partition.topic[:57] + "..."
    return f"{topic!r}-{partition.partition}"
