"""Immutable values of the administration: topics, nodes, configurations, the quorum and log directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace_core.errors import HeadraceError

from .models import BrokerInfo


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; a count of None means the cluster's default (num.partitions, default.replication.factor).

    ``assignments`` replaces partition count and replication factor: it maps each partition to the broker ids of its
    replicas, preferred leader first.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic that create_topics has created."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition of a topic; ``leader`` is -1 if it has no leader. ``elr``: replicas that left the ISR with every
    committed record (KIP-966); if the partition has no leader, one of these replicas may become leader.
    ``last_known_elr``: the last leader of a partition that has no leader now."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic. ``max_message_bytes``: the largest batch that brokers accept for the topic (0: unknown, the broker did
    not report it)."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[PartitionDescription, ...]
    max_message_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ControllerInfo:
    """A voter of the controller quorum, and the address of its internal listener, which clients cannot use."""

    controller_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class CoordinatorInfo:
    """A live group coordinator and its client address. ``draining``: the coordinator is stopping."""

    coordinator_id: int
    host: str
    port: int
    rack: str = ""
    draining: bool = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The state of the cluster, as far as the answering node knows it. ``metadata_lag_ms``: upper limit of the age of
    the answering node's metadata, by that node's clock; None: unknown."""

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerInfo, ...]
    controllers: tuple[ControllerInfo, ...] = ()
    metadata_lag_ms: int | None = None
    coordinators: tuple[CoordinatorInfo, ...] = ()


class NodeDisk(NamedTuple):
    """The disk of a node's log directory."""

    path: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """One process. ``role`` is controller, broker or coordinator; ``node_id`` is -1 before the node is registered.
    ``metadata_version_min`` and ``metadata_version_max``: the feature levels that the node supports.

    ``clock_ahead_ms``: how far the node's wall clock is ahead of this machine's clock (negative: behind), with an error
    of at most half of ``round_trip_ms``. ``open_descriptors`` is None if the node's system does not report it;
    ``descriptors_max`` is None if there is no limit. ``disk``: the disk of a coordinator; None: unknown, or
    another role (``LogDirDescription``, ``QuorumReplica``).
    """

    role: str
    node_id: int
    cluster_id: str
    software_version: str
    metadata_version_min: int
    metadata_version_max: int
    started_at_ms: int
    clock_ahead_ms: float
    round_trip_ms: float
    open_descriptors: int | None
    descriptors_max: int | None
    disk: NodeDisk | None = None


class ConfigResource(NamedTuple):
    """The topic or broker that a configuration belongs to: ``type`` is "topic" or "broker"; an empty broker name means
    all brokers."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One level at which a key has a value, with the key's name at that level (``log.retention.ms`` for
    ``retention.ms``)."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key. ``source`` is one of default, static_broker, dynamic_default_broker, dynamic_broker and dynamic_topic.

    ``value`` is empty when ``is_sensitive`` is True. ``type`` is one of boolean, int, long, double, string, list,
    password and class; ``allowed`` describes the valid values, and may be empty. ``synonyms`` (on request): every level
    at which the key has a value, in order of precedence, the default last.
    """

    name: str
    value: str
    source: str
    read_only: bool = False
    documentation: str = ""
    type: str = ""
    is_sensitive: bool = False
    allowed: str = ""
    synonyms: tuple[ConfigSynonym, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendConfig:
    """A change for alter_configs: add ``items`` (separated by commas) to the key's current list, without duplicates."""

    items: str


@dataclass(frozen=True, slots=True)
class SubtractConfig:
    """A change for alter_configs: remove ``items`` (separated by commas) from the key's current list."""

    items: str


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A controller (voter or observer) as the leader of the quorum sees it. A field is None if its value is unknown, or
    if the controller was not seen since the quorum's present leader was elected.

    ``log_end_offset``: end of the part of the controller's log that is durable and equal to the leader's log; ``lag``:
    offsets behind the leader. ``last_fetch_timestamp_ms``: when the leader last received a fetch from the controller.
    ``last_caught_up_timestamp_ms``: when the controller last had all of the leader's log (within a tenth of
    controller.quorum.election.timeout.ms). ``usable_bytes``: free bytes on its disk beyond log.dir.reserve.bytes, 0
    during a shortage; ``total_bytes``: size of the disk. ``is_outdated``: the voter stopped for good, because its
    directory is an older copy.
    """

    replica_id: int
    directory_id: bytes
    address: str
    log_end_offset: int | None
    lag: int | None
    last_fetch_timestamp_ms: int | None
    last_caught_up_timestamp_ms: int | None
    usable_bytes: int | None = None
    total_bytes: int | None = None
    is_outdated: bool = False

    @property
    def directory_id_text(self) -> str:
        """The directory id in Kafka's form (base64url, 22 letters)."""
        from headrace_core.node.ids import id_to_text  # a late import: rarely needed, and its package imports much more

        return id_to_text(self.directory_id)


@dataclass(frozen=True, slots=True)
class QuorumBroker:
    """A broker in its role as follower of the metadata log. ``metadata_offset``: the offset up to which the broker had
    applied the metadata log at its last heartbeat; ``lag``: offsets behind the leading controller. ``metadata_lag_ms``:
    upper limit of the age of the broker's metadata (None: unknown)."""

    broker_id: int
    metadata_offset: int
    lag: int
    metadata_lag_ms: int | None
    last_heartbeat_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """The controller quorum (KIP-836): leader, high watermark, voters and observers; ``brokers`` are sorted by id."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    brokers: tuple[QuorumBroker, ...] = ()


@dataclass(frozen=True, slots=True)
class FeatureInfo:
    """A feature (KIP-584): the level of the cluster, and the range of levels (inclusive) that the answering controller
    supports."""

    name: str
    finalized_level: int
    min_level: int
    max_level: int


#: "preferred": each partition's first replica leads again, if it is in sync; "unclean": for a partition without a
#: leader, a replica that is not in sync becomes the leader, and records are lost (KIP-460).
ElectionType = Literal["preferred", "unclean"]


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A partition whose replicas are being moved to other brokers (KIP-455). ``replicas``: all current replicas,
    including the replicas that will be removed; ``waits``: the reassignment is queued, and no data are copied yet."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    waits: bool = False


#: A new value for a configuration key; None resets the key to its default.
ConfigValue = str | None | AppendConfig | SubtractConfig


class TopicPartitionReplica(NamedTuple):
    """One replica: a partition and the broker that stores it."""

    topic: str
    partition: int
    broker_id: int


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica in a log directory of a broker. ``is_future``: the replica is a copy that will replace the current
    replica, which is in another log directory. ``offset_lag``: by how many offsets the replica's log end is behind the
    leader, or, for a future copy, behind the current replica. ``error``: why the broker does not serve the replica
    although its directory is online (CorruptLogError: damaged and quarantined; OffsetOutOfRangeError: it keeps
    committed records that its leader lacks), or None."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker (KIP-113, KIP-827). ``error``: why the directory is offline, or None.
    ``directory_id``: 16 bytes, or empty (see ``directory_id_text``).

    ``total_bytes`` and ``usable_bytes`` describe the directory's file system; None: unknown. ``sync_ms``: median time
    of recent small forced writes (fsync); None: too few writes yet.
    """

    broker_id: int
    path: str
    directory_id: bytes
    error: HeadraceError | None
    replicas: tuple[ReplicaInfo, ...]
    total_bytes: int | None
    usable_bytes: int | None
    sync_ms: float | None = None

    @property
    def directory_id_text(self) -> str:
        """The directory id in Kafka's form (base64url, 22 letters), as in meta.properties; "" for an unreadable
        directory."""
        from headrace_core.node.ids import id_to_text  # a late import: rarely needed, and its package imports much more

        return id_to_text(self.directory_id) if self.directory_id else ""
