"""Parts of an image: brokers, partitions and topics, as immutable values."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from .records import UNASSIGNED_DIRECTORY, BrokerEndpoint, ConfigResourceType, DirectoryEpoch, FeatureRange

ConfigResource = tuple[ConfigResourceType, str]  #: The resource that a configuration entry belongs to: (type, name).


class FoundEpochs(NamedTuple):
    """The broker epochs in a log directory (by its 16-byte id) at the broker's start. ``started_epoch``: of the last
    registration that opened it; ``stopped_epoch``: in the clean shutdown marker; -1: none."""

    directory_id: bytes
    started_epoch: int
    stopped_epoch: int


class BrokerImage(msgspec.Struct, frozen=True):
    """A registered broker. A broker is *active* unless it is fenced or shutting down: only active brokers may
    lead and get new replicas.

    ``directory_ids``: the log directories of the broker's registration. ``offline_directories``: directories of the
    broker's present and earlier registrations that have failed or are missing. ``draining``: the broker is being
    emptied, so it gets no new replicas. The fields from ``default_log_flush`` on are explained at RegisterBrokerRecord;
    ``directory_epochs`` has no entry for a directory that never served, or whose history a release without this field
    dropped.
    """

    broker_id: int
    broker_epoch: int
    incarnation_id: bytes
    directory_ids: tuple[bytes, ...]
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    offline_directories: tuple[bytes, ...] = ()
    draining: bool = False
    features: tuple[FeatureRange, ...] = ()
    default_log_flush: str = ""
    elections_pending: bool = False
    writes_epochs: bool = False
    outdated_directories: tuple[bytes, ...] = ()
    directory_epochs: tuple[DirectoryEpoch, ...] = ()

    @property
    def active(self) -> bool:
        return not (self.fenced or self.in_controlled_shutdown)

    @property
    def online_directories(self) -> tuple[bytes, ...]:
        return tuple(each for each in self.directory_ids if each not in self.offline_directories)

    def has_online(self, directory: bytes) -> bool:
        """Whether a replica in ``directory`` can be used. A replica without an assigned directory is treated as healthy
        (KIP-858)."""
        if directory == UNASSIGNED_DIRECTORY:
            return True
        return directory in self.directory_ids and directory not in self.offline_directories

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        """Return the broker's endpoint for a listener name; None if the broker has no such listener."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)


class PartitionImage(msgspec.Struct, frozen=True, gc=False):
    """A partition's state. ``replicas[0]`` is the preferred leader; ``leader`` is -1 while the partition has no leader.

    ``directories`` is parallel to ``replicas``: each replica's directory id, or UNASSIGNED_DIRECTORY. The fields from
    ``elr`` on are explained at PartitionRecord.

    ``clean_since``: the leader epoch that the last unclean election began; 0 without one. A committed record of this
    epoch or a later one is in the log of every leader, so a follower truncates no such record. After the snapshot of a
    release without this field, it is the epoch of that snapshot.
    """

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[bytes, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    recovering: bool = False
    clean_since: int = 0

    def directory_of(self, broker_id: int) -> bytes:
        """Return the directory of a broker's replica; UNASSIGNED_DIRECTORY also if the broker has no replica."""
        if broker_id not in self.replicas:
            return UNASSIGNED_DIRECTORY
        return self.directories[self.replicas.index(broker_id)]


class TopicImage(msgspec.Struct, frozen=True, gc=False):
    """A topic; ``partitions`` is indexed by partition number. ``flush_weakened``: the topic once had a log.flush other
    than ``commit``, so acknowledged records may not be on the disk (KIP-966)."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    flush_weakened: bool = False

    @property
    def replication_factor(self) -> int:
        """Replication factor of the first partition, as it will be after a reassignment in progress."""
        return len(self.partitions[0].replicas) - len(self.partitions[0].removing) if self.partitions else 0


class BrokerLoad(msgspec.Struct, frozen=True):
    """A broker's numbers of replicas and leaderships, which replica placement balances."""

    replicas: int = 0
    preferred_leaders: int = 0
