"""The cluster's state at one offset of the metadata log, as an immutable value.

The controller makes decisions based on an image, and brokers serve clients from an image. A new image shares its
unchanged parts with the old image: the large tables are ``SortedMap``s, so a decision costs microseconds at any size.
An ``ImageBuilder`` collects changes. The builder copies a topic's partitions when it first changes the topic (6 us per
thousand). The replay of a whole log therefore copies each topic only once. ``finish`` returns the image and the
``MetadataDelta`` with the changes. With the delta, a broker with 5,000 partitions processes only the few partitions
that changed.

Topics are ordered by id, configurations by resource. Because topics and configurations are sorted, their order is the
same in every process, whether the image comes from a log or a snapshot.

``next_offset`` is the first offset that the image does *not* contain; "applied up to N" always means that
``next_offset`` is N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from ..errors import CorruptLogError, UnsupportedVersionError
from ..types import NO_LEADER
from .entities import BrokerImage, BrokerLoad, ConfigResource, PartitionImage, TopicImage
from .ledger import EMPTY_LEDGER, LEDGER_RECORDS, Ledger, LedgerBuilder
from .records import (
    ELR_LEVEL,
    METADATA_VERSION_FEATURE,
    UNASSIGNED_DIRECTORY,
    BrokerChangeRecord,
    BrokerDrainRecord,
    ClusterRecord,
    ConfigRecord,
    ConfigResourceType,
    DirectoryEpoch,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from .security import EMPTY_SECURITY, SECURITY_RECORDS, SecurityBuilder, SecurityImage
from .sorted_map import SortedMap

K = TypeVar("K")
V = TypeVar("V")

_NO_CONFIG: Mapping[str, str] = {}


class MetadataImage(msgspec.Struct, frozen=True):
    """The cluster's state after all records below ``next_offset``; ``epoch`` is the leader epoch of the last record.

    ``flush_weakened``: the brokers' dynamic defaults once had a log.flush other than ``commit`` (see TopicImage).
    """

    next_offset: int = 0
    epoch: int = -1
    cluster_id: str = ""
    metadata_version: int = 0
    brokers: Mapping[int, BrokerImage] = msgspec.field(default_factory=dict)
    topics: Mapping[bytes, TopicImage] = msgspec.field(default_factory=SortedMap)
    topic_ids: Mapping[str, bytes] = msgspec.field(default_factory=SortedMap)
    configs: Mapping[ConfigResource, Mapping[str, str]] = msgspec.field(default_factory=SortedMap)
    loads: Mapping[int, BrokerLoad] = msgspec.field(default_factory=dict)
    ledger: Ledger = EMPTY_LEDGER
    flush_weakened: bool = False
    security: SecurityImage = EMPTY_SECURITY

    def topic(self, name: str) -> TopicImage | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: bytes, partition: int) -> PartitionImage | None:
        topic = self.topics.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def config(self, resource_type: ConfigResourceType, name: str) -> Mapping[str, str]:
        """Return the configuration entries set on a resource itself, as text, without defaults (see configs.py)."""
        return self.configs.get((resource_type, name), _NO_CONFIG)

    def active_epoch(self, broker_id: int) -> int | None:
        """Return the epoch of a broker whose replicas may be in sync: it is registered, and neither fenced nor
        stopping. Returns None if the controllers must not count the broker's replicas as in sync."""
        broker = self.brokers.get(broker_id)
        return broker.broker_epoch if broker is not None and broker.active else None

    def active_brokers(self) -> list[BrokerImage]:
        """Return the brokers that may lead, by id."""
        return [self.brokers[broker_id] for broker_id in sorted(self.brokers) if self.brokers[broker_id].active]

    def placeable_brokers(self) -> list[BrokerImage]:
        """Return the active brokers that may get new replicas, which excludes draining brokers."""
        return [broker for broker in self.active_brokers() if not broker.draining]

    def is_available(self, partition: PartitionImage, broker_id: int) -> bool:
        """Whether a broker's replica works: the broker is active, and the replica's directory is online."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.active and broker.has_online(partition.directory_of(broker_id))

    def partitions_on(self, broker_id: int) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        """Iterate over the partitions with a replica on a broker: (topic, partition number, partition), by topic id and
        number.

        The scan ends when it has found as many replicas as ``loads`` counts. A scan of 100,000 partitions takes 6 ms if
        the partitions are in 1,000 topics, and 60 ms if they are in 100,000 topics. An index of replicas by broker
        would cost a few microseconds in each change of replicas, and 100 bytes for each replica.
        """
        load = self.loads.get(broker_id)
        left = 0 if load is None else load.replicas
        if not left:
            return
        for topic in self.topics.values():
            for number, partition in enumerate(topic.partitions):
                if broker_id in partition.replicas:
                    yield topic, number, partition
                    left -= 1
            if not left:
                return

    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    def apply(self, records: Iterable[MetadataRecord], next_offset: int, epoch: int = -1) -> MetadataImage:
        """Return the image after applying ``records``, which end just below ``next_offset``. Raises CorruptLogError for
        a record that contradicts the image."""
        return self.apply_with_delta(records, next_offset, epoch)[0]

    def apply_with_delta(
        self, records: Iterable[MetadataRecord], next_offset: int, epoch: int = -1
    ) -> tuple[MetadataImage, MetadataDelta]:
        builder = ImageBuilder(self)
        for record in records:
            _REPLAY[type(record)](builder, record)
        return builder.finish(next_offset, epoch)


EMPTY_IMAGE = MetadataImage()


class MetadataDelta(msgspec.Struct, frozen=True):
    """Changes between two images.

    ``partitions``: new or changed partitions, by topic id. ``removed_topics``: removed topics in their last state, by
    id. A topic that was deleted and created again is in ``partitions`` and in ``removed_topics``, with two ids.
    ``configs``: resources with any entry set or removed. ``coordinators``: added, changed or removed coordinators.
    ``shards``: (topic id, partition) of shards with a new owner or epoch, and of shards removed with their topic.
    ``acls``: whether any access control entry was added or removed.
    """

    from_offset: int
    next_offset: int
    brokers: frozenset[int] = frozenset()
    partitions: Mapping[bytes, frozenset[int]] = msgspec.field(default_factory=dict)
    created_topics: frozenset[bytes] = frozenset()
    removed_topics: Mapping[bytes, TopicImage] = msgspec.field(default_factory=dict)
    configs: frozenset[ConfigResource] = frozenset()
    coordinators: frozenset[int] = frozenset()
    shards: frozenset[tuple[bytes, int]] = frozenset()
    acls: bool = False

    @property
    def empty(self) -> bool:
        """Whether the delta has no changes; the images' offsets may still differ."""
        return not (
            self.brokers
            or self.partitions
            or self.removed_topics
            or self.configs
            or self.coordinators
            or self.shards
            or self.acls
        )

    @classmethod
    def between(cls, old: MetadataImage, new: MetadataImage) -> MetadataDelta:
        """Compare two images of one cluster, of which one comes from a snapshot. The delta has only real differences;
        tables that are the same object in the two images are not compared."""
        partitions: dict[bytes, frozenset[int]] = {}
        created: set[bytes] = set()
        removed: dict[bytes, TopicImage] = {}
        for topic_id in sorted(SortedMap.of(old.topics).differing(SortedMap.of(new.topics))):
            before, after = old.topics.get(topic_id), new.topics.get(topic_id)
            if before is not None and (after is None or len(after.partitions) < len(before.partitions)):
                removed[topic_id] = before  # (a topic never loses partitions, so fewer partitions mean another topic)
                before = None
            if after is None:
                continue
            if before is None:
                created.add(topic_id)
                partitions[topic_id] = frozenset(range(len(after.partitions)))
            elif changed := _changed_partitions(before, after):
                partitions[topic_id] = changed
        return cls(
            from_offset=old.next_offset,
            next_offset=new.next_offset,
            brokers=frozenset(_differing(old.brokers, new.brokers)),
            partitions=partitions,
            created_topics=frozenset(created),
            removed_topics=removed,
            configs=frozenset(_differing(old.configs, new.configs)),
            coordinators=_changed_coordinators(old.ledger, new.ledger),
            shards=_changed_shards(old.ledger, new.ledger),
            acls=bool(_differing(old.security.acls, new.security.acls)),
        )


def _changed_coordinators(old: Ledger, new: Ledger) -> frozenset[int]:
    """Return the ids of added, changed or removed coordinators."""
    return frozenset(_differing(old.coordinators, new.coordinators))


def _changed_shards(old: Ledger, new: Ledger) -> frozenset[tuple[bytes, int]]:
    """Return the added and removed shards, and the shards with a new owner."""
    return frozenset(_differing(old.shards, new.shards))


def _changed_partitions(before: TopicImage, after: TopicImage) -> frozenset[int]:
    known = before.partitions
    return frozenset(
        number
        for number, partition in enumerate(after.partitions)
        if number >= len(known) or (partition is not known[number] and partition != known[number])
    )


def _differing(old: Mapping[K, V], new: Mapping[K, V]) -> set[K]:
    """Return the keys that only one of two mappings has, or whose values differ."""
    if old is new:
        return set()
    if not (isinstance(old, SortedMap) and isinstance(new, SortedMap)):
        return {key for key in {*old, *new} if old.get(key) != new.get(key)}
    return {key for key in old.differing(new) if old.get(key) != new.get(key)}


class ImageBuilder:
    """Collects changes of an image. A builder is not shared between tasks, and is used once: ``finish`` ends its
    use."""

    def __init__(self, base: MetadataImage) -> None:
        self._base = base
        self._cluster_id = base.cluster_id
        self._metadata_version = base.metadata_version
        self._brokers: dict[int, BrokerImage] | None = None
        self._topics = SortedMap.of(base.topics).edit()
        self._topic_ids = SortedMap.of(base.topic_ids).edit()
        self._configs = SortedMap.of(base.configs).edit()
        self._loads: dict[int, list[int]] = {}  # broker -> changes of [replicas, preferred leaders]
        self._open_topics: dict[bytes, list[PartitionImage]] = {}  # topics whose partitions are being changed
        self._changed_brokers: set[int] = set()
        self._changed_partitions: dict[bytes, set[int]] = {}
        self._created: set[bytes] = set()
        self._removed: dict[bytes, TopicImage] = {}
        self._changed_configs: set[ConfigResource] = set()
        self._ledger: LedgerBuilder | None = None
        self._security: SecurityBuilder | None = None
        self._flush_weakened = base.flush_weakened
        # Shared tuples of directories, because thousands of partitions have equal directories.
        self._same: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record. Raises CorruptLogError when the record names an entity that does not exist, because the log
        then lacks records."""
        _REPLAY[type(record)](self, record)

    def finish(self, next_offset: int, epoch: int = -1) -> tuple[MetadataImage, MetadataDelta]:
        """Return the new image and its changes since the base image. ``epoch`` -1 keeps the epoch of the base image."""
        base = self._base
        for topic_id, partitions in self._open_topics.items():
            self._topics[topic_id] = msgspec.structs.replace(self._topics[topic_id], partitions=tuple(partitions))
        image = MetadataImage(
            next_offset=next_offset,
            epoch=base.epoch if epoch < 0 else epoch,
            cluster_id=self._cluster_id,
            metadata_version=self._metadata_version,
            brokers=base.brokers if self._brokers is None else self._brokers,
            topics=self._topics.finish(),
            topic_ids=self._topic_ids.finish(),
            configs=self._configs.finish(),
            loads=self._new_loads() if self._loads else base.loads,
            ledger=base.ledger if self._ledger is None else self._ledger.finish(),
            flush_weakened=self._flush_weakened,
            security=base.security if self._security is None else self._security.finish(),
        )
        delta = MetadataDelta(
            from_offset=base.next_offset,
            next_offset=next_offset,
            brokers=frozenset(self._changed_brokers),
            partitions={topic_id: frozenset(changed) for topic_id, changed in self._changed_partitions.items()},
            created_topics=frozenset(self._created),
            removed_topics=self._removed,
            configs=frozenset(self._changed_configs),
            coordinators=_changed_coordinators(base.ledger, image.ledger),
            shards=_changed_shards(base.ledger, image.ledger),
            acls=base.security.acls is not image.security.acls
            and bool(_differing(base.security.acls, image.security.acls)),
        )
        return image, delta

    def _own_brokers(self) -> dict[int, BrokerImage]:
        if self._brokers is None:
            self._brokers = dict(self._base.brokers)
        return self._brokers

    def _open(self, topic_id: bytes, record: MetadataRecord) -> list[PartitionImage]:
        partitions = self._open_topics.get(topic_id)
        if partitions is None:
            topic = self._topics.get(topic_id)
            if topic is None:
                raise _impossible(record, f"no topic has the id {topic_id.hex()}")
            partitions = self._open_topics[topic_id] = list(topic.partitions)
        return partitions

    def _own_ledger(self) -> LedgerBuilder:
        if self._ledger is None:
            self._ledger = LedgerBuilder(self._base.ledger)
        return self._ledger

    def _new_loads(self) -> Mapping[int, BrokerLoad]:
        loads = dict(self._base.loads)
        for broker_id, (replicas, leaders) in self._loads.items():
            before = loads.get(broker_id, BrokerLoad())
            after = BrokerLoad(before.replicas + replicas, before.preferred_leaders + leaders)
            if after.replicas:
                loads[broker_id] = after
            else:
                loads.pop(broker_id, None)
        return loads

    def _count(self, replicas: tuple[int, ...], sign: int) -> None:
        for position, broker_id in enumerate(replicas):
            load = self._loads.setdefault(broker_id, [0, 0])
            load[0] += sign
            load[1] += sign if position == 0 else 0

    def _cluster(self, record: ClusterRecord) -> None:
        self._cluster_id = record.cluster_id
        self._metadata_version = record.metadata_version
        self._flush_weakened = self._flush_weakened or record.flush_weakened

    def _feature_level(self, record: FeatureLevelRecord) -> None:
        if record.name != METADATA_VERSION_FEATURE:
            raise UnsupportedVersionError(
                f"feature {record.name} is finalized at level {record.level}, which this node does not know: "
                "upgrade this node"
            )
        self._metadata_version = record.level

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        brokers = self._own_brokers()
        before = brokers.get(record.broker_id)
        brokers[record.broker_id] = BrokerImage(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            directory_ids=record.directory_ids,
            endpoints=record.endpoints,
            rack=record.rack,
            fenced=True,
            in_controlled_shutdown=False,
            offline_directories=record.offline_directories,
            draining=before is not None and before.draining,
            features=record.features,
            default_log_flush=record.default_log_flush,
            elections_pending=record.elections_pending,
            writes_epochs=record.writes_epochs,
            outdated_directories=record.outdated_directories,
            directory_epochs=record.directory_epochs or _kept_epochs(before, record),
        )
        self._changed_brokers.add(record.broker_id)

    def _broker_change(self, record: BrokerChangeRecord) -> None:
        broker = (self._base.brokers if self._brokers is None else self._brokers).get(record.broker_id)
        if broker is None:
            raise _impossible(record, f"broker {record.broker_id} is not registered")
        if broker.broker_epoch != record.broker_epoch:
            raise _impossible(
                record, f"broker {record.broker_id} has epoch {broker.broker_epoch}, not {record.broker_epoch}"
            )
        broker = self._own_brokers()[record.broker_id] = msgspec.structs.replace(
            broker,
            fenced=broker.fenced if record.fenced is None else record.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown
            if record.in_controlled_shutdown is None
            else record.in_controlled_shutdown,
            offline_directories=broker.offline_directories
            if record.offline_directories is None
            else record.offline_directories,
            elections_pending=broker.elections_pending
            if record.elections_pending is None
            else record.elections_pending,
        )
        if record.fenced is False:
            self._own_brokers()[record.broker_id] = _served(broker)
        self._changed_brokers.add(record.broker_id)

    def _broker_drain(self, record: BrokerDrainRecord) -> None:
        broker = self._own_brokers().get(record.broker_id)
        if broker is None:
            raise _impossible(record, f"broker {record.broker_id} is not registered")
        self._own_brokers()[record.broker_id] = msgspec.structs.replace(broker, draining=record.draining)
        self._changed_brokers.add(record.broker_id)

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        broker = self._own_brokers().pop(record.broker_id, None)
        if broker is None or broker.broker_epoch != record.broker_epoch:
            raise _impossible(record, f"broker {record.broker_id} is not registered with this epoch")
        self._changed_brokers.add(record.broker_id)

    def _ledger_record(self, record: MetadataRecord) -> None:
        if not self._own_ledger().replay(record):
            raise _impossible(record, "the record names an entry that is not in the ledger")

    def _security_record(self, record: MetadataRecord) -> None:
        if self._security is None:
            self._security = SecurityBuilder(self._base.security)
        if not self._security.replay(record):
            raise _impossible(record, "the record removes an entry that does not exist")

    def _topic(self, record: TopicRecord) -> None:
        if record.name in self._topic_ids:
            raise _impossible(record, f"topic {record.name} already exists")
        self._topic_ids[record.name] = record.topic_id
        self._topics[record.topic_id] = TopicImage(
            record.name, record.topic_id, (), flush_weakened=record.flush_weakened
        )
        self._created.add(record.topic_id)
        self._changed_partitions.setdefault(record.topic_id, set())

    def _partition(self, record: PartitionRecord) -> None:
        partitions = self._open(record.topic_id, record)
        number = record.partition
        if number > len(partitions) or number < 0:
            raise _impossible(
                record,
                f"the topic has {len(partitions)} partitions, so the number of the next partition cannot be {number}",
            )
        new = PartitionImage(
            replicas=record.replicas,
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=self._directories(record, record.directories, record.replicas),
            elr=record.elr,
            last_known_elr=record.last_known_elr,
            adding=record.adding,
            removing=record.removing,
            recovering=record.recovering,
            clean_since=record.leader_epoch if record.clean_since is None else record.clean_since,
        )
        if number == len(partitions):
            partitions.append(new)
        else:
            self._count(partitions[number].replicas, -1)
            partitions[number] = new
        self._count(record.replicas, +1)
        self._note_reassignment(record.topic_id, number, new)
        self._changed_partitions.setdefault(record.topic_id, set()).add(number)

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        partitions = self._open(record.topic_id, record)
        if not 0 <= record.partition < len(partitions):
            raise _impossible(record, f"the topic has only {len(partitions)} partitions")
        old = partitions[record.partition]
        if record.replicas is not None:
            self._count(old.replicas, -1)
            self._count(record.replicas, +1)
        recovering = old.recovering if record.recovering is None else record.recovering
        # Without eligible leader replicas, a leader may have lost records in a crash, and nothing says so.
        is_clean = self._metadata_version >= ELR_LEVEL and (not recovering or record.leader == NO_LEADER)
        new = partitions[record.partition] = PartitionImage(
            replicas=old.replicas if record.replicas is None else record.replicas,
            isr=old.isr if record.isr is None else record.isr,
            leader=old.leader if record.leader is None else record.leader,
            leader_epoch=old.leader_epoch if record.leader_epoch is None else record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=self._changed_directories(record, old),
            elr=old.elr if record.elr is None else record.elr,
            last_known_elr=old.last_known_elr if record.last_known_elr is None else record.last_known_elr,
            adding=old.adding if record.adding is None else record.adding,
            removing=old.removing if record.removing is None else record.removing,
            recovering=recovering,
            clean_since=old.clean_since if record.leader_epoch is None or is_clean else record.leader_epoch,
        )
        if record.adding is not None or record.removing is not None:
            self._note_reassignment(record.topic_id, record.partition, new)
        self._changed_partitions.setdefault(record.topic_id, set()).add(record.partition)

    def _note_reassignment(self, topic_id: bytes, number: int, partition: PartitionImage) -> None:
        moving = bool(partition.adding or partition.removing)
        if moving or self._ledger is not None or self._base.ledger.reassigning:
            self._own_ledger().partition_moves(topic_id, number, moving=moving)

    def _changed_directories(self, record: PartitionChangeRecord, old: PartitionImage) -> tuple[bytes, ...]:
        if record.directories is None and record.replicas is None:
            return old.directories
        replicas = old.replicas if record.replicas is None else record.replicas
        kept = tuple(old.directory_of(broker_id) for broker_id in replicas)
        return self._directories(record, kept if record.directories is None else record.directories, replicas)

    def _directories(
        self, record: MetadataRecord, directories: tuple[bytes, ...], replicas: tuple[int, ...]
    ) -> tuple[bytes, ...]:
        """Return a directory id for each replica; equal tuples are the same object. A record of an old log names no
        directories, so every replica gets UNASSIGNED_DIRECTORY."""
        directories = directories or (UNASSIGNED_DIRECTORY,) * len(replicas)
        if len(directories) != len(replicas):
            raise _impossible(record, f"{len(replicas)} replicas are listed with {len(directories)} directories")
        return self._same.setdefault(directories, directories)

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        partitions = self._open(record.topic_id, record)
        topic = msgspec.structs.replace(self._topics[record.topic_id], partitions=tuple(partitions))
        del self._topics[record.topic_id]
        del self._open_topics[record.topic_id]
        for partition in partitions:
            self._count(partition.replicas, -1)
        del self._topic_ids[topic.name]
        self._own_ledger().topic_removed(record.topic_id, len(partitions))
        resource = (ConfigResourceType.TOPIC, topic.name)
        if resource in self._configs:
            del self._configs[resource]
            self._changed_configs.add(resource)
        self._changed_partitions.pop(record.topic_id, None)
        if record.topic_id in self._created:
            # The topic was added and removed in the same change, so no image ever had it.
            self._created.discard(record.topic_id)
        else:
            self._removed[record.topic_id] = self._base.topics[record.topic_id]

    def _config(self, record: ConfigRecord) -> None:
        try:
            resource = (ConfigResourceType(record.resource_type), record.resource_name)
        except ValueError:
            raise UnsupportedVersionError(
                f"a configuration entry has resource type {record.resource_type}, which this node does not know: "
                "upgrade this node"
            ) from None
        entries = dict(self._configs.get(resource) or _NO_CONFIG)
        if record.value is None:
            entries.pop(record.key, None)
        else:
            entries[record.key] = record.value
        if entries:
            self._configs[resource] = entries
        elif resource in self._configs:
            del self._configs[resource]
        self._changed_configs.add(resource)
        if record.key == "log.flush" and record.value not in (None, "commit"):
            self._weaken_flush(resource)

    def _weaken_flush(self, resource: ConfigResource) -> None:
        """Record, permanently, that a resource once had a ``log.flush`` other than ``commit``. Records that were
        acknowledged under the weaker policy may not be on the disk, even after the policy is changed back."""
        resource_type, name = resource
        if resource_type is ConfigResourceType.BROKER:
            self._flush_weakened = True
            return
        topic_id = self._topic_ids.get(name)
        if topic_id is not None and not self._topics[topic_id].flush_weakened:
            self._topics[topic_id] = msgspec.structs.replace(self._topics[topic_id], flush_weakened=True)


_REPLAY: dict[type, Callable[[ImageBuilder, Any], None]] = {
    ClusterRecord: ImageBuilder._cluster,
    RegisterBrokerRecord: ImageBuilder._register_broker,
    BrokerChangeRecord: ImageBuilder._broker_change,
    TopicRecord: ImageBuilder._topic,
    PartitionRecord: ImageBuilder._partition,
    PartitionChangeRecord: ImageBuilder._partition_change,
    RemoveTopicRecord: ImageBuilder._remove_topic,
    ConfigRecord: ImageBuilder._config,
    FeatureLevelRecord: ImageBuilder._feature_level,
    BrokerDrainRecord: ImageBuilder._broker_drain,
    UnregisterBrokerRecord: ImageBuilder._unregister_broker,
    **dict.fromkeys(LEDGER_RECORDS, ImageBuilder._ledger_record),
    **dict.fromkeys(SECURITY_RECORDS, ImageBuilder._security_record),
}


def _kept_epochs(before: BrokerImage | None, record: RegisterBrokerRecord) -> tuple[DirectoryEpoch, ...]:
    if before is None:
        return ()
    named = {*record.directory_ids, *record.offline_directories}
    return tuple(each for each in before.directory_epochs if each.directory_id in named)


def _served(broker: BrokerImage) -> BrokerImage:
    """The broker, whose online directories may have acknowledged records from now on in its present epoch."""
    online = broker.online_directories
    epochs = (
        *(each for each in broker.directory_epochs if each.directory_id not in online),
        *(DirectoryEpoch(each, broker.broker_epoch, broker.writes_epochs) for each in online),
    )
    return msgspec.structs.replace(broker, directory_epochs=tuple(sorted(epochs, key=lambda each: each.directory_id)))


def _impossible(record: MetadataRecord, why: str) -> CorruptLogError:
    return CorruptLogError(f"metadata record {record!r} cannot be applied: {why}; the metadata log is damaged")
