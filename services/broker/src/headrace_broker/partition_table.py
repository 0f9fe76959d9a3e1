"""Table of the partitions that this broker leads, follows or cannot serve. ``roles`` writes the table; all other parts
only read it.

Handlers look up the ``leader`` of a partition, which raises an error if this broker does not lead it. The storage
notifies the table of logs that a directory writer changed. The partition table knows the applied metadata; it uses no
other part of the broker.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

from headrace_core.errors import (
    CorruptLogError,
    FencedBrokerError,
    FencedLeaderEpochError,
    HeadraceError,
    LeaderNotAvailableError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from headrace_core.log import PartitionLog
from headrace_core.metadata import MetadataDelta, MetadataImage, PartitionImage
from headrace_core.types import NO_LEADER, TopicPartition

from .leader_replica import LeaderReplica
from .partition import PartitionLeader
from .partition.healing import Step, next_step
from .reading import Readable
from .replication.follower_replica import FollowerReplica
from .replication.pushes import PendingPushes
from .settings import BrokerIdentity


class PartitionTable:
    """See the module. The roles and errors of this broker's partitions; written only in the event loop."""

    def __init__(self, identity: BrokerIdentity, pushes: PendingPushes) -> None:
        self.identity = identity
        self._pushes = pushes
        #: The reason why the broker serves no partition now; None while it serves its partitions.
        self.refusal: HeadraceError | None = FencedBrokerError("the broker is starting; retry")
        self.image = MetadataImage()  #: The metadata image that ``roles`` applies.
        self.led: dict[TopicPartition, LeaderReplica] = {}
        self.followed: dict[TopicPartition, FollowerReplica] = {}
        #: Partitions that this broker should serve but cannot serve, each with the reason.
        self.failed: dict[TopicPartition, HeadraceError] = {}

    def state_of(self, partition: TopicPartition) -> PartitionImage | None:
        """State of the partition in the applied metadata."""
        topic = self.image.topic(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        return topic.partitions[partition.partition]

    def leader(self, partition: TopicPartition) -> LeaderReplica:
        """The replica on this broker that leads ``partition``. Raises FencedBrokerError, ServerShuttingDownError,
        UnknownTopicOrPartitionError, NotLeaderOrFollowerError, LeaderNotAvailableError, StorageError."""
        if self.refusal is not None:
            raise self.refusal.copy()
        replica = self.led.get(partition)
        if replica is None:
            raise self._why_not(partition)
        return replica

    def readable(self, partition: TopicPartition) -> Readable:
        """The replica on this broker from which a consumer may read, up to the replica's high watermark: the leader, or
        a follower (KIP-392). Raises as ``leader``."""
        if self.refusal is not None:
            raise self.refusal.copy()
        followed = self.followed.get(partition)
        return self.leader(partition) if followed is None else followed

    def check_serving(self) -> None:
        """Raises ``refusal``."""
        if self.refusal is not None:
            raise self.refusal.copy()

    def leader_hint(self, partition: TopicPartition, error: HeadraceError) -> tuple[int, int] | None:
        """(leader id, leader epoch) as this broker knows them, for errors that redirect a client."""
        if not isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError):
            return None
        found = self.state_of(partition)
        return None if found is None else (found.leader, found.leader_epoch)

    def for_clients(self, partition: TopicPartition, error: HeadraceError) -> HeadraceError:
        """The error that a client receives when the broker fails with ``error``. A damaged log is reported as
        NotLeaderOrFollowerError while other replicas have its records, because another replica takes over. The error is
        CorruptLogError if the damaged log is the last copy."""
        if not isinstance(error, CorruptLogError):
            return error
        found = self.state_of(partition)
        if found is None or next_step(found, self.identity.broker_id) is Step.KEEP:
            return error
        return NotLeaderOrFollowerError(f"{error.message}; another replica becomes leader: refresh the metadata")

    def assigned_directory(self, partition: TopicPartition, topic_id: uuid.UUID) -> uuid.UUID | None:
        """The directory that the controllers recorded for this broker's replica; the zero id if they recorded no
        directory, None if the metadata lacks the partition."""
        state = self.image.partition(topic_id.bytes, partition.partition)
        return None if state is None else uuid.UUID(bytes=state.directory_of(self.identity.broker_id))

    def leader_of(self, log: PartitionLog) -> PartitionLeader | None:
        """The leader of ``log`` on this broker; None if this broker does not lead the partition. Any thread."""
        replica = self.led.get(log.topic_partition)
        return replica.leader if replica is not None and replica.log is log else None

    def is_followed(self, log: PartitionLog) -> bool:
        """Whether ``log`` follows a leader on another broker; the leader decides about the retention of such a log. Any
        thread."""
        replica = self.followed.get(log.topic_partition)
        return replica is not None and replica.log is log and replica.leader_id != NO_LEADER

    def leaders_of(self, image: MetadataImage, delta: MetadataDelta) -> Iterable[PartitionLeader]:
        """The leaders of partitions that changed in ``delta``; all leaders if ``delta`` changed a broker."""
        if delta.brokers:
            return [replica.leader for replica in self.led.values()]
        names = {image.topics[topic_id].name: numbers for topic_id, numbers in delta.partitions.items()}
        found = (self.led.get(TopicPartition(name, number)) for name, numbers in names.items() for number in numbers)
        return [replica.leader for replica in found if replica is not None]

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """High watermark of every partition that this broker leads or follows, for the checkpoint."""
        return {partition: replica.leader.high_watermark for partition, replica in self.led.items()} | {
            partition: replica.high_watermark for partition, replica in self.followed.items()
        }

    def _why_not(self, partition: TopicPartition) -> HeadraceError:
        found = self.state_of(partition)
        if found is None:
            return UnknownTopicOrPartitionError(
                f"this broker has no partition {_shown(partition)}; refresh the metadata"
            )
        if partition in self.failed:
            return self.failed[partition].copy()
        if found.leader == NO_LEADER:
            return LeaderNotAvailableError(f"{partition} has no leader now; retry")
        return NotLeaderOrFollowerError(
            f"broker {self.identity.broker_id} is not the leader of {partition}, broker {found.leader} is; refresh "
            "the metadata"
        )

    def logs_advanced(self, logs: Iterable[PartitionLog], sent: Callable[[], None] | None = None) -> None:
        """Called when the directory writer has changed ``logs``. With ``sent``, the new records are not flushed yet,
        but can already be pushed to followers. ``sent`` is called when the pushes are sent, or immediately if there are
        no followers."""
        is_followed = False
        for log in logs:
            led = self.led.get(log.topic_partition)
            if led is not None:
                if led.log is log:
                    led.log_advanced()
                    is_followed = is_followed or (sent is not None and bool(led.leader.log_watchers))
            elif sent is None:  # a follower reports its progress once, when it is durable
                followed = self.followed.get(log.topic_partition)
                if followed is not None and followed.log is log:
                    followed.log_advanced()
        if is_followed and sent is not None:
            self._pushes.when_sent(sent)
        elif sent is not None:
            sent()


def _shown(partition: TopicPartition) -> str:
    """A client's partition name, shortened for error messages."""
    topic = partition.topic if len(partition.topic) <= 60 else partition.topic[:57] + "..."
    return f"{topic!r}-{partition.partition}"
