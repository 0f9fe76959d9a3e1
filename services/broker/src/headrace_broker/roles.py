"""This broker's role in each of its partitions: leader, follower or no role.

``apply`` takes each change of the metadata, in order, and returns when the change is in effect. ``apply`` compares the
state of each partition with the current role::

    state                        action
    leads, in a new epoch        end the old role; lead the log from its end, truncate nothing
    another one leads            end the old role; the log follows: its leader says where to truncate, if at all
    no leader                    end the old role; the log waits
    the same leader and epoch    a leader gets its new in-sync set; a follower continues
    not a replica any more       end the old role, delete the log (a reassignment is over)

Between two roles of a partition, the broker waits for all appends of the directory writer. Because of the wait between
two roles, a new leader knows where its epoch begins, and a new follower knows its log end. The high watermark of a
partition passes from one role of the broker to the next.

At a start, the broker also compares the logs that it finds with the metadata (``apply_all``).

A missing log is created in the directory that the metadata names. If this broker no longer has the recorded disk, the
broker first reports that the replica starts with an empty log (``fresh``, KIP-903). The broker creates the log of a
fresh replica when the metadata shows that the replica is fresh. A damaged log is healed if its partition has other
replicas (partition/healing.py).
"""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple, Protocol

from headrace_core.errors import (
    CorruptLogError,
    DiskFullError,
    FencedLeaderEpochError,
    HeadraceError,
    NotLeaderOrFollowerError,
    ReplicaNotAvailableError,
    ServerBusyError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from headrace_core.log import LogConfig, PartitionLog
from headrace_core.log.dump import problem_of
from headrace_core.metadata import EMPTY_IMAGE, MetadataDelta, MetadataImage, PartitionImage, TopicImage
from headrace_core.metadata.configs import min_insync_replicas
from headrace_core.metadata.records import ConfigResourceType
from headrace_core.telemetry import (
    CorruptionFound,
    Emitter,
    PartitionClosed,
    PartitionFailed,
    PartitionFollowed,
    PartitionOpened,
    PartitionSetAside,
    ReplicaBeginsAnew,
)
from headrace_core.types import NO_LEADER, TopicPartition

from .partition import PartitionFollower, PartitionLeader
from .partition.healing import HealingReplica, Step, has_others, next_step
from .partition.leader import LAG_TIME_MAX_MS
from .partition_table import PartitionTable
from .replication.follower_replica import FollowerReplica
from .settings import LogSettings
from .storage import Fate, Storage

_PASSES = (DiskFullError, ServerBusyError)  #: Errors of a log creation after which the broker tries the creation again.


class ReplicationStreams(Protocol):
    """The streams on which followers receive their leaders' records (``FollowerStreams``)."""

    def follow(self, replica: FollowerReplica) -> None: ...

    def unfollow(self, replica: FollowerReplica) -> None: ...

    def confirm_leave(self, replica: FollowerReplica, done: Callable[[], None]) -> Callable[[], None]:
        """Call ``done`` when the leader has confirmed the leave of ``replica``, which no longer follows. Returns a
        function that cancels the confirmation."""


#: Reports to the controllers that a replica (topic id, partition) starts with an empty log in a directory. The callback
#: of the report gets the metadata offset from which the controllers know that the replica starts with an empty log.
ReportFresh = Callable[[bytes, int, bytes, Callable[[int], None]], None]


class Assigned(NamedTuple):
    """A partition that the metadata assigns to this broker."""

    partition: TopicPartition
    topic: TopicImage
    state: PartitionImage


class Roles:
    """Applies metadata to this broker's partitions, and writes the partition table. Call all methods in the event loop.
    One metadata change or retry is in progress at a time."""

    def __init__(
        self,
        table: PartitionTable,
        storage: Storage,
        settings: LogSettings,
        *,
        streams: ReplicationStreams,
        report_fresh: ReportFresh,
        isr_due: Callable[[PartitionLeader], None],
        events: Emitter,
        lag_time_max_ms: int = LAG_TIME_MAX_MS,
    ) -> None:
        """``streams`` gives followers their leaders' records. ``isr_due`` is called with each leader whose in-sync set
        may have to change."""
        self._table = table
        self._storage = storage
        self._streams = streams
        self._on_fresh = report_fresh
        self._isr_due = isr_due
        self._healing: dict[TopicPartition, HealingReplica] = {}
        #: Replicas that start with an empty log because their disk is lost. Maps (topic id, partition) to the metadata
        #: offset from which the controllers know the loss, or to None until the controllers have answered the report.
        self._fresh: dict[tuple[bytes, int], int | None] = {}
        self._settings = settings
        self._events = events
        self._lag_time_max_ms = lag_time_max_ms
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_resigned = False
        storage.damaged.subscribe(self.quarantine)
        storage.failed.subscribe(self._storage_failed)

    def settings_of(self, topic: str, image: MetadataImage) -> LogConfig:
        """The settings of a topic's logs on this broker."""
        return self._settings.of(image, self._broker_id, topic)

    @property
    def _broker_id(self) -> int:
        return self._table.identity.broker_id

    async def apply(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Apply the change ``delta``, after which the metadata is ``image``."""
        async with self._changing:
            await self._apply(image, delta)
            await self._heal()

    async def apply_all(self, image: MetadataImage, former: MetadataImage = EMPTY_IMAGE) -> None:
        """Apply the first image, after the storage was opened; all of its partitions are new. Damaged logs stay offline
        until they are healed.

        ``former``: an image that this broker had before, and that ``image`` continues. A log that ``former`` assigns to
        this broker and ``image`` does not was deleted or reassigned meanwhile: it is deleted here, too. A log that
        neither image assigns to this broker is set aside. Its topic may have been deleted before this broker saved any
        metadata about it, or the controllers may have lost their newest records."""
        found = await self._storage.settle(functools.partial(_fate_of, image, former, self._broker_id))
        for partition in found.deleted:
            self._events.emit(PartitionClosed(partition=partition, deleted=True))
        for path, partition in found.set_aside.items():
            self._events.emit(PartitionSetAside(partition=partition, path=path))
        for partition, error in found.refused.items():
            self._fail(partition, error, error.message)
        everything = {topic_id: frozenset(range(len(topic.partitions))) for topic_id, topic in image.topics.items()}
        async with self._changing:
            delta = MetadataDelta(0, image.next_offset, partitions=everything)
            await self._apply(image, delta, at_start=True)
            await self._heal()

    async def retry_full(self) -> list[TopicPartition]:
        """Try again to create the logs that could not be created because of a full disk or a lack of file descriptors.
        Returns the partitions of the created logs. If no log's creation has failed, ``retry_full`` costs nothing."""
        failed = self._table.failed
        if not failed:
            return []
        async with self._changing:
            wanted = self._assigned([item for item, error in failed.items() if isinstance(error, _PASSES)])
            if wanted:
                await self._take_up(wanted)
            return [each.partition for each in wanted if each.partition not in failed]

    async def _apply(self, image: MetadataImage, delta: MetadataDelta, *, at_start: bool = False) -> None:
        self._table.image = image
        await self._remove(delta.removed_topics.values())
        wanted: list[Assigned] = []
        for topic_id, numbers in delta.partitions.items():
            topic = image.topics[topic_id]
            wanted += [
                Assigned(TopicPartition(topic.name, number), topic, topic.partitions[number])
                for number in sorted(numbers)
            ]
        await self._take_up(wanted, at_start=at_start)
        await self._reconfigure(image, delta)

    def heal_soon(self) -> None:
        """Check the damaged replicas when no metadata change is in progress."""
        task = asyncio.get_running_loop().create_task(self.heal(), name="healing")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def heal(self) -> None:
        """Take the next healing step of each damaged replica now."""
        async with self._changing:
            await self._heal()

    async def _heal(self) -> None:
        """Take one healing step for each damaged or fresh replica; replicas that need newer metadata wait for that
        metadata."""
        await self._take_up(self._assigned(self._recorded_fresh()))
        damaged = [item for item, error in self._table.failed.items() if isinstance(error, CorruptLogError)]
        for item in [item for item in self._healing if item not in damaged]:
            self._healing.pop(item).close()
        anew = [each for each in self._assigned(damaged) if self._may_be_made(each)]
        if not anew:
            return
        await self._storage.delete([each.partition for each in anew])
        for each in anew:
            error = self._table.failed.pop(each.partition)
            self._healing.pop(each.partition).close()
            self._events.emit(
                ReplicaBeginsAnew(
                    partition=each.partition, leader_id=each.state.leader, reason=f"it was damaged: {error.message}"
                )
            )
        await self._take_up(anew)

    def _may_be_made(self, each: Assigned) -> bool:
        """Heal a damaged replica as far as possible. Returns whether the replica's log may be deleted and created
        again, empty."""
        step = next_step(each.state, self._broker_id)
        if step is Step.KEEP:
            return False
        healing = self._healing.get(each.partition)
        if healing is None:
            healing = self._healing[each.partition] = HealingReplica()
        if healing.waits_for_leave(each.state):
            return False
        if healing.reported_offset is None or (
            step is Step.REPORT and self._table.image.next_offset >= healing.reported_offset
        ):
            directory = self._storage.directory_of(each.partition)
            if directory is not None:
                self._report_fresh(each, directory)
            return False
        return step is Step.MAKE and self._table.image.next_offset >= healing.reported_offset

    def fresh_recorded(self, topic_id: bytes, number: int, metadata_offset: int) -> None:
        """Record that, from ``metadata_offset`` on, the controllers know that this broker's replica starts with an
        empty log."""
        if (topic_id, number) in self._fresh:
            self._fresh[topic_id, number] = metadata_offset
        topic = self._table.image.topics.get(topic_id)
        healing = None if topic is None else self._healing.get(TopicPartition(topic.name, number))
        if healing is not None:
            healing.reported_offset = metadata_offset
        self.heal_soon()

    def _recorded_fresh(self) -> list[TopicPartition]:
        """Fresh replicas for which both the metadata and the controllers' answer have arrived, so that their logs can
        be created."""
        found = []
        for (topic_id, number), recorded in list(self._fresh.items()):
            topic, state = self._table.image.topics.get(topic_id), self._table.image.partition(topic_id, number)
            if topic is None or state is None or self._broker_id not in state.replicas:
                del self._fresh[topic_id, number]
            elif recorded is not None and recorded <= self._table.image.next_offset:
                found.append(TopicPartition(topic.name, number))
        return found

    def _confirm_leave(self, followed: FollowerReplica) -> None:
        """Confirm the leave of a replica with a damaged log. The leader must know that the replica left before the
        controllers learn that it starts with an empty log. A leader that does not know of the leave might propose the
        replica for the in-sync set again."""
        healing = self._healing[followed.partition] = HealingReplica((followed.leader_id, followed.leader_epoch))

        def confirmed() -> None:
            healing.unconfirmed_leave, healing.cancel = None, lambda: None
            self.heal_soon()

        healing.cancel = self._streams.confirm_leave(followed, confirmed)

    def _assigned(self, partitions: Iterable[TopicPartition]) -> list[Assigned]:
        found = []
        for partition in partitions:
            topic, state = self._table.image.topic(partition.topic), self._table.state_of(partition)
            if topic is not None and state is not None:
                found.append(Assigned(partition, topic, state))
        return found

    async def _remove(self, topics: Iterable[TopicImage]) -> None:
        gone: list[TopicPartition] = []
        for topic in topics:
            reason = UnknownTopicOrPartitionError(f"topic {topic.name} was deleted")
            for number in range(len(topic.partitions)):
                partition = TopicPartition(topic.name, number)
                self._end(partition, reason)
                self._table.failed.pop(partition, None)
                gone.append(partition)
        await self._delete(gone)

    async def _delete(self, partitions: Collection[TopicPartition]) -> None:
        for partition in await self._storage.delete(partitions):
            self._events.emit(PartitionClosed(partition=partition, deleted=True))

    async def _take_up(self, wanted: list[Assigned], *, at_start: bool = False) -> None:
        former: dict[TopicPartition, int] = {}
        for each in wanted:
            high_watermark = self._end_if_changed(each)
            if high_watermark is not None:
                former[each.partition] = high_watermark
        if former:
            await self._storage.wait_written(former)
        mine = [each for each in wanted if self._broker_id in each.state.replicas]
        gone = [each.partition for each in wanted if self._broker_id not in each.state.replicas]
        gone = [item for item in gone if self._storage.holds(item) or self._table.failed.pop(item, None) is not None]
        if gone:
            for item in gone:
                self._table.failed.pop(item, None)
            await self._delete(gone)
        await self._open_logs(mine, at_start=at_start)
        if self._has_resigned:  # the broker resigned while this method waited
            return
        for each in mine:
            self._take_part(each, former.get(each.partition))

    def _end_if_changed(self, each: Assigned) -> int | None:
        """End a role that has changed; returns the role's high watermark, or None if the partition had no role or its
        role continues."""
        partition, topic, state = each
        led, followed = self._table.led.get(partition), self._table.followed.get(partition)
        if led is not None:
            leader = led.leader
            if state.leader != self._broker_id:
                return self._end(
                    partition,
                    NotLeaderOrFollowerError(
                        f"broker {self._broker_id} is no longer the leader of {partition}; refresh the metadata"
                    ),
                )
            if (leader.topic_id, leader.leader_epoch) != (topic.topic_id, state.leader_epoch):
                return self._end(
                    partition,
                    FencedLeaderEpochError(
                        f"{partition}: the leader epoch changed to {state.leader_epoch}; refresh the metadata"
                    ),
                )
        if followed is not None:
            wanted = (topic.topic_id, state.leader, state.leader_epoch)
            if (followed.topic_id, followed.leader_id, followed.leader_epoch) != wanted or (
                self._broker_id not in state.replicas
            ):
                return self._end(
                    partition, NotLeaderOrFollowerError(f"{partition}: a new leader epoch has begun; retry")
                )
        return None

    def _end(self, partition: TopicPartition, reason: HeadraceError) -> int | None:
        """End this broker's role in the partition with the error ``reason``. Returns the role's high watermark, or None
        if there was no role."""
        led = self._table.led.pop(partition, None)
        if led is not None:
            led.resign(reason)
            return led.leader.high_watermark
        followed = self._table.followed.pop(partition, None)
        if followed is not None:
            self._streams.unfollow(followed)
            followed.end(reason)
            if isinstance(reason, CorruptLogError):
                self._confirm_leave(followed)
            return followed.high_watermark
        return None

    def _take_part(self, each: Assigned, high_watermark: int | None) -> None:
        partition, topic, state = each
        led = self._table.led.get(partition)
        if led is not None:
            self._update_leader(led.leader, topic, state)
            return
        if partition in self._table.followed:
            return
        log = self._storage.log(partition)
        if log is None or not self._is_open(partition, topic):  # opening the log failed, and reported the error
            return
        if high_watermark is None:
            high_watermark = self._storage.checkpointed(partition)
        if state.leader == self._broker_id:
            self._lead(each, log, high_watermark)
        else:
            self._follow(each, log, high_watermark)

    def _lead(self, each: Assigned, log: PartitionLog, high_watermark: int) -> None:
        partition, topic, state = each
        # Read the flushed end before the log end, because the directory writer's thread may be running: a flushed end
        # never exceeds the log end.
        flushed_end = log.flushed_end
        leader = PartitionLeader(
            partition,
            topic_id=topic.topic_id,
            leader_id=self._broker_id,
            leader_epoch=state.leader_epoch,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            flushed_end=flushed_end,
            flush_policy=log.config.flush,
            replicas=state.replicas,
            isr=state.isr,
            partition_epoch=state.partition_epoch,
            min_insync=min_insync_replicas(self._table.image, topic.name),
            high_watermark=high_watermark,
            lag_time_max_ms=self._lag_time_max_ms,
            recovering=state.recovering,
            on_isr_due=functools.partial(self._led_isr_due, partition),
        )
        self._table.led[partition] = self._storage.leader_replica(log, leader)
        self._events.emit(
            PartitionOpened(
                partition=partition,
                leader_epoch=state.leader_epoch,
                log_start_offset=log.log_start_offset,
                log_end_offset=log.log_end_offset,
            )
        )
        self._isr_due(leader)

    def _led_isr_due(self, partition: TopicPartition) -> None:
        replica = self._table.led.get(partition)
        if replica is not None:
            self._isr_due(replica.leader)

    def _update_leader(self, leader: PartitionLeader, topic: TopicImage, state: PartitionImage) -> None:
        leader.metadata_changed(
            isr=state.isr,
            partition_epoch=state.partition_epoch,
            replicas=state.replicas,
            min_insync=min_insync_replicas(self._table.image, topic.name),
            recovering=state.recovering,
        )

    def _follow(self, each: Assigned, log: PartitionLog, high_watermark: int) -> None:
        partition, topic, state = each
        # Read the durable end before the log end, because the directory writer's thread may be running.
        durable_end = log.durable_end
        follower = PartitionFollower(
            partition,
            topic_id=topic.topic_id,
            leader_id=state.leader,
            leader_epoch=state.leader_epoch,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            durable_end=durable_end,
            last_epoch=log.epochs.latest_epoch,
            high_watermark=high_watermark,
            clean_since=state.clean_since,
            compacts=log.config.cleanup_compact or self._storage.was_cleaned(partition),
        )
        replica = self._table.followed[partition] = self._storage.follower_replica(log, follower)
        self._events.emit(
            PartitionFollowed(
                partition=partition,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                log_end_offset=log.log_end_offset,
            )
        )
        if state.leader != NO_LEADER:
            self._streams.follow(replica)

    async def _open_logs(self, mine: Iterable[Assigned], *, at_start: bool) -> None:
        missing = []
        for each in mine:
            partition, topic, _ = each
            if self._is_open(partition, topic) or isinstance(self._table.failed.get(partition), CorruptLogError):
                continue
            topic_id = uuid.UUID(bytes=topic.topic_id)
            if not self._waits_for_fresh(each, topic_id):
                missing.append((partition, topic_id, self.settings_of(topic.name, self._table.image)))
        for partition, outcome in await self._storage.create(missing, at_start=at_start):
            self._made_or_not(partition, outcome)

    def _made_or_not(self, partition: TopicPartition, outcome: HeadraceError | None) -> None:
        before = self._table.failed.pop(partition, None)
        if outcome is not None:
            self._table.failed[partition] = outcome
            if type(before) is not type(outcome):  # an error of the same type was logged already
                self._events.emit(PartitionFailed(partition=partition, reason=outcome.message))

    def _is_open(self, partition: TopicPartition, topic: TopicImage) -> bool:
        """Whether the log is open and belongs to the topic with the id ``topic_id``. A log without a topic id is
        created again, with the id, because the broker crashed during the log's creation. A log with the id of another
        topic is refused."""
        log = self._storage.log(partition)
        return log is not None and log.topic_id is not None and log.topic_id.bytes == topic.topic_id

    def _waits_for_fresh(self, each: Assigned, topic_id: uuid.UUID) -> bool:
        """Whether the creation of the log must wait until the controllers know that this replica starts with an empty
        log. The creation waits if the old log was lost with a disk, and other replicas exist. The wait ends when both
        the metadata and the controllers' answer name the replica as fresh. A replica must not be reported as fresh
        again after it has joined the in-sync set: the report would remove the replica from the set."""
        key = each.topic.topic_id, each.partition.partition
        recorded = self._fresh.get(key)
        if recorded is not None and self._table.image.next_offset < recorded:
            return True
        directory = self._storage.anew(each.partition, topic_id)
        if directory is None or not has_others(each.state, self._broker_id):
            if recorded is not None or key not in self._fresh:
                self._fresh.pop(key, None)
                return False
            directory = directory or uuid.UUID(bytes=each.state.directory_of(self._broker_id))
            if directory not in self._storage.directory_ids():
                return True
        self._fresh[key] = None
        why = "its log was in a directory that this broker no longer has"
        self._report_fresh(each, directory)
        before = self._table.failed.get(each.partition)
        if not isinstance(before, ReplicaNotAvailableError):
            self._events.emit(ReplicaBeginsAnew(partition=each.partition, leader_id=each.state.leader, reason=why))
        self._table.failed[each.partition] = ReplicaNotAvailableError(
            f"{each.partition}: {why}; the replica starts empty when the controllers have recorded its new "
            "directory; retry"
        )
        return True

    def _report_fresh(self, each: Assigned, directory: uuid.UUID) -> None:
        key = each.topic.topic_id, each.partition.partition
        self._on_fresh(*key, directory.bytes, functools.partial(self.fresh_recorded, *key))

    async def _reconfigure(self, image: MetadataImage, delta: MetadataDelta) -> None:
        topics = {name for kind, name in delta.configs if kind is ConfigResourceType.TOPIC}
        everything = any(
            kind is ConfigResourceType.BROKER and name in ("", str(self._broker_id)) for kind, name in delta.configs
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
                self._reconfigured(partition, config)

    def _reconfigured(self, partition: TopicPartition, config: LogConfig) -> None:
        led, followed = self._table.led.get(partition), self._table.followed.get(partition)
        if led is not None:
            led.leader.set_flush_policy(config.flush)
            for each in self._assigned([partition]):
                self._update_leader(led.leader, each.topic, each.state)
        elif followed is not None:
            followed.log_advanced()  # advance the follower: a new flush policy changes the durable end

    def quarantine(self, log: PartitionLog, error: CorruptLogError) -> None:
        """Take out of service a log whose damage was confirmed by a second read, now or after a restart. A log taken
        out of service is healed if other replicas have its records; otherwise the operator must act. The broker
        continues to serve its partitions with undamaged logs."""
        if not self._storage.quarantine(log, error):
            return
        found = problem_of(error, path=log.directory)
        self._events.emit(
            CorruptionFound(
                partition=log.topic_partition,
                path=found.path,
                position=found.position,
                offset=found.offset,
                what=found.what,
            )
        )
        self._fail(log.topic_partition, error, error.message)
        self.heal_soon()

    def _storage_failed(self, partitions: Iterable[TopicPartition], reason: str) -> None:
        """Called when the directory of ``partitions`` has failed: the partitions are offline on this broker until it
        restarts."""
        for partition in partitions:
            self._fail(partition, StorageError(f"{partition} is offline: {reason}"), reason)

    def _fail(self, partition: TopicPartition, error: HeadraceError, reason: str) -> None:
        self._table.failed[partition] = error
        self._end(partition, error)
        self._events.emit(PartitionFailed(partition=partition, reason=reason))

    def resign_all(self, reason: Callable[[TopicPartition], HeadraceError]) -> None:
        """End all roles, and begin no other role, because the broker stops."""
        self._has_resigned = True
        for task in self._tasks:
            task.cancel()
        for partition in (*self._table.led, *self._table.followed):
            self._end(partition, reason(partition))


def _fate_of(
    image: MetadataImage, former: MetadataImage, broker_id: int, partition: TopicPartition, topic_id: uuid.UUID
) -> Fate:
    def has_replica(metadata: MetadataImage) -> bool:
        state = metadata.partition(topic_id.bytes, partition.partition)
        return state is not None and broker_id in state.replicas

    if has_replica(image):
        return Fate.KEEP
    return Fate.DELETE if has_replica(former) else Fate.SET_ASIDE
