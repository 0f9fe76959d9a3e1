"""Build the published metadata image from committed entries.

A leader's own decisions already exist in the core as images (``commit``). Entries that other controllers decided, or
that were decided before a restart, come from the log on the disk (``replay``) or from a snapshot (``replace``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace_core.errors import (
    CorruptLogError,
    CorruptMessageError,
    InconsistentClusterIdError,
    InvalidRecordError,
    UnsupportedVersionError,
)
from headrace_core.metadata import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    ImageBuilder,
    MetadataDelta,
    MetadataImage,
)
from headrace_core.metadata.codec import decode_batches
from headrace_core.node.ids import id_to_text
from headrace_core.telemetry import (
    BrokerDirectoriesOffline,
    BrokerDirectoriesOutdated,
    BrokerDrained,
    BrokerDraining,
    BrokerFenced,
    BrokerRegistered,
    BrokerUnfenced,
    BrokerUnregistered,
    Emitter,
    Event,
    FeatureLevelChanged,
    UncleanLeaderElected,
)
from headrace_core.types import NO_LEADER, TopicPartition

from .cluster.balancing import is_drained
from .cluster.core import ClusterCore
from .storage import MetadataStorage

#: Callback for each committed metadata change, called in log order.
Subscriber = Callable[[MetadataImage, MetadataDelta], None]

#: Maximum number of bytes of the metadata log that a controller replays before its event loop runs other tasks.
_REPLAY_BYTES = 1 << 18


class Applier:
    """See the module. ``image`` is the committed state after all entries below ``applied``."""

    def __init__(self, core: ClusterCore, storage: MetadataStorage, cluster_id: str, emitter: Emitter) -> None:
        self._core = core
        self._storage = storage
        self._cluster_id = cluster_id
        self._emitter = emitter
        self._subscribers: tuple[Subscriber, ...] = ()
        self.image = core.committed

    @property
    def applied(self) -> int:
        """End of the log entries that the image contains."""
        return self._core.committed.next_offset

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call ``subscriber`` with each newly committed image; returns a function that ends the subscription."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(each for each in self._subscribers if each is not subscriber)

        return unsubscribe

    def commit(self, offset: int) -> None:
        """Publish the images of this leader's decisions below ``offset``, which are now committed."""
        for image, delta in self._core.commit(offset):
            before = self.image
            self._publish(image, delta)
            for event in events_of(delta, before, image):
                self._emitter.emit(event)

    def replay(self, offset: int, *, at_once: bool = False) -> None:
        """Apply the committed entries below ``offset`` from this disk: all with ``at_once``, otherwise about
        _REPLAY_BYTES. Raises CorruptLogError if the log on the disk is damaged. Raises UnsupportedVersionError for a
        log of a newer version, and InconsistentClusterIdError for another cluster's log."""
        position = self.applied
        if position >= offset:
            return
        builder, epoch = ImageBuilder(self._core.committed), -1
        while position < offset:
            data, following = self._storage.read(position, offset, _REPLAY_BYTES)
            if following <= position:
                raise CorruptLogError(
                    f"the metadata log on this disk ends at {position}, but the log was committed up to {offset}: "
                    "entries are lost"
                )
            try:
                for batch in decode_batches(data):
                    for record in batch.records:
                        builder.replay(record)
                    epoch = batch.epoch
            except (CorruptMessageError, InvalidRecordError) as error:
                raise CorruptLogError(
                    f"the metadata log is damaged after offset {position}: {error.message}"
                ) from error
            position = following
            if not at_once:
                break
        image, delta = builder.finish(position, epoch)
        self._core.replay(image)
        self._publish(image, delta)

    def replace(self, image: MetadataImage) -> None:
        """Replace the whole state by a snapshot's ``image``."""
        before = self.image
        self._core.replay(image)
        self._publish(image, MetadataDelta.between(before, image))

    def _publish(self, image: MetadataImage, delta: MetadataDelta) -> None:
        if image.cluster_id != self._cluster_id and image.cluster_id:
            raise InconsistentClusterIdError(
                f"the metadata log belongs to cluster {image.cluster_id}, but meta.properties says {self._cluster_id}"
            )
        if image.metadata_version > METADATA_VERSION:
            raise UnsupportedVersionError(
                f"the metadata log has feature level {image.metadata_version}, but this controller supports at "
                f"most {METADATA_VERSION}: upgrade this controller"
            )
        self.image = image
        for subscriber in self._subscribers:
            subscriber(image, delta)


def events_of(delta: MetadataDelta, before: MetadataImage, image: MetadataImage) -> Iterator[Event]:
    """Yield the events about brokers, unclean elections and metadata.version for the change from one image to the next.
    Only the leader of the quorum emits these events."""
    for broker_id in sorted(delta.brokers):
        if broker_id in image.brokers:
            yield from _of_broker(broker_id, before, image)
        elif broker_id in before.brokers:
            yield BrokerUnregistered(broker_id=broker_id)
    if delta.brokers or image.loads is not before.loads:
        for broker_id, broker in image.brokers.items():
            if broker.draining and is_drained(image, broker_id) and not is_drained(before, broker_id):
                yield BrokerDrained(broker_id=broker_id)
    yield from _unclean_elections(delta, before, image)
    if image.metadata_version != before.metadata_version:
        yield FeatureLevelChanged(feature=METADATA_VERSION_FEATURE, level=image.metadata_version)


def _unclean_elections(
    delta: MetadataDelta, before: MetadataImage, image: MetadataImage
) -> Iterator[UncleanLeaderElected]:
    for topic_id, numbers in delta.partitions.items():
        old_topic, topic = before.topics.get(topic_id), image.topics.get(topic_id)
        if old_topic is None or topic is None:
            continue
        for number in sorted(numbers):
            if number >= len(old_topic.partitions):
                continue
            old, new = old_topic.partitions[number], topic.partitions[number]
            is_elected = new.leader != NO_LEADER and new.leader_epoch != old.leader_epoch
            if is_elected and new.recovering and new.leader not in (*old.isr, *old.elr):
                yield UncleanLeaderElected(
                    partition=TopicPartition(topic.name, number), leader_id=new.leader, leader_epoch=new.leader_epoch
                )


def _of_broker(broker_id: int, before: MetadataImage, image: MetadataImage) -> Iterator[Event]:
    old, new = before.brokers.get(broker_id), image.brokers[broker_id]
    if old is None or old.broker_epoch != new.broker_epoch:
        yield BrokerRegistered(broker_id=broker_id, broker_epoch=new.broker_epoch)
        if not new.fenced:
            yield BrokerUnfenced(broker_id=broker_id)
        if new.outdated_directories:
            yield BrokerDirectoriesOutdated(
                broker_id=broker_id, directory_ids=tuple(sorted(map(id_to_text, new.outdated_directories)))
            )
    elif new.fenced and not old.fenced:
        reason = (
            "controlled shutdown, no heartbeat for broker.session.timeout.ms, or disconnected for longer than the "
            "grace period"
        )
        if not new.online_directories:
            reason = "all of its log directories have failed"
        yield BrokerFenced(broker_id=broker_id, reason=reason)
    elif old.fenced and not new.fenced:
        yield BrokerUnfenced(broker_id=broker_id)
    if new.draining and not (old is not None and old.draining) and broker_id in image.loads:
        yield BrokerDraining(broker_id=broker_id, replicas=image.loads[broker_id].replicas)
    failed = set(new.offline_directories) - (set() if old is None else set(old.offline_directories))
    if failed:
        yield BrokerDirectoriesOffline(broker_id=broker_id, directory_ids=tuple(sorted(map(id_to_text, failed))))
