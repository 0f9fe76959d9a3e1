"""Frozen values that the clients take and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace_core.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class RecordRange:
    """``count`` records of one partition from ``offset`` on (-1 with acks=0)."""

    topic: str
    partition: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class ManyMetadata:
    """Where the records of one send_many or send_arrow call are: ranges in sending order."""

    topic: str
    record_count: int
    ranges: tuple[RecordRange, ...]


class OffsetAndTimestamp(NamedTuple):
    """An offset found by time, with the timestamp of its record.

    ``offset`` -1: the log has no such record. ``timestamp_ms`` -1: log start or log end. ``leader_epoch`` -1: unknown.
    """

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read. ``leader_epoch``: that of the record before it; -1: unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """A consumer's identity in its group. ``generation_id``: its member epoch; -1 (and no member id) for a
    non-member."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; None means the cluster's default (num.partitions, default.replication.factor).

    ``assignments``: broker ids of each partition's replicas, preferred leader first, instead of the two counts.
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
    """One partition; ``leader`` is -1 without one. ``elr``: replicas that left the ISR with every committed record
    (KIP-966); one of them may lead a partition without leader. ``last_known_elr``: the last leader, while there is
    none."""

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
    """One topic; ``max_message_bytes``: the largest batch that brokers accept (0: not reported)."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[PartitionDescription, ...]
    max_message_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker and its client address. ``fenced``: registered but not live; ``draining``: its replicas are moving away
    and it gets no new ones."""

    broker_id: int
    host: str
    port: int
    rack: str = ""
    fenced: bool = False
    draining: bool = False

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ControllerInfo:
    """A voting controller and its internal listener (not for clients)."""

    controller_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class CoordinatorInfo:
    """A live group coordinator and its client address. ``draining``: it is stopping."""

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
    """The cluster as the answering node knows it. ``metadata_lag_ms``: upper limit of the age of its metadata, by the
    node's clock; None: unknown."""

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerInfo, ...]
    controllers: tuple[ControllerInfo, ...] = ()
    metadata_lag_ms: int | None = None
    coordinators: tuple[CoordinatorInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """One process. ``role``: controller, broker or coordinator; ``node_id``: -1 before registration.
    ``metadata_version_min`` and ``_max``: feature levels that it supports.

    ``clock_ahead_ms``: how far its wall clock is ahead of this machine's (negative: behind), within half of
    ``round_trip_ms``. ``open_descriptors``, ``descriptors_max``: None where its system does not report them or has no
    limit.
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


class ConfigResource(NamedTuple):
    """The owner of a configuration: ``type`` is "topic" or "broker"; an empty broker name means all brokers."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value set for a key, under its name at that level (``log.retention.ms`` for ``retention.ms``)."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key. ``source``: default, static_broker, dynamic_default_broker, dynamic_broker or dynamic_topic.

    ``value`` is empty when ``is_sensitive``. ``type``: boolean, int, long, double, string, list, password or class;
    ``allowed``: legal values in words, or empty. ``synonyms`` (on request): every value that is set, in order of
    precedence, the default last.
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
    """In alter_configs: add ``items`` (separated by commas) to the current list, without duplicates."""

    items: str


@dataclass(frozen=True, slots=True)
class SubtractConfig:
    """In alter_configs: remove ``items`` (separated by commas) from the current list."""

    items: str


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A controller as the leader sees it, voter or observer; None for unknown, or not seen since this leader was
    elected.

    ``log_end_offset``: durable there and equal to the leader's log; ``lag``: offsets behind the leader;
    ``last_fetch_timestamp_ms``: the leader last heard from it; ``last_caught_up_timestamp_ms``: it last had all of the
    leader's log (within a tenth of controller.quorum.election.timeout.ms).
    """

    replica_id: int
    directory_id: bytes
    address: str
    log_end_offset: int | None
    lag: int | None
    last_fetch_timestamp_ms: int | None
    last_caught_up_timestamp_ms: int | None

    @property
    def directory_id_text(self) -> str:
        """The id in Kafka's form (base64url, 22 letters)."""
        from headrace_core.node.ids import id_to_text  # here: rarely needed, and its package imports much more

        return id_to_text(self.directory_id)


@dataclass(frozen=True, slots=True)
class QuorumBroker:
    """A broker as follower of the metadata log. ``metadata_offset``: how far it had applied the log at its last
    heartbeat, ``lag`` offsets behind; ``metadata_lag_ms``: upper limit of its metadata's age (None: unknown)."""

    broker_id: int
    metadata_offset: int
    lag: int
    metadata_lag_ms: int | None
    last_heartbeat_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """The metadata quorum (KIP-836): leader, high watermark, voters and observers; ``brokers``: by id."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    brokers: tuple[QuorumBroker, ...] = ()


@dataclass(frozen=True, slots=True)
class FeatureInfo:
    """A feature (KIP-584): the cluster's level, and the range that the answering controller supports, inclusive."""

    name: str
    finalized_level: int
    min_level: int
    max_level: int


#: "preferred": each partition's first replica leads again, if it is in sync; "unclean": a partition without leader gets
#: one that is not in sync, and loses records (KIP-460).
ElectionType = Literal["preferred", "unclean"]


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A partition on its way to other brokers (KIP-455). ``replicas``: all current ones, also those to be removed;
    ``waits``: queued, nothing is copied yet."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    waits: bool = False


#: A position for list_offsets: log start, log end, the record with the largest timestamp, or the first record at or
#: after a time (ms since 1970).
OffsetSpec = Literal["earliest", "latest", "max-timestamp"] | int

#: A new value for a key; None: reset to the default.
ConfigValue = str | None | AppendConfig | SubtractConfig


class TopicPartitionReplica(NamedTuple):
    """One replica: a partition on a broker."""

    topic: str
    partition: int
    broker_id: int


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica in a log directory. ``is_future``: a copy that will replace the replica in another directory;
    ``offset_lag``: offsets that its log end is behind (a future copy: behind the current replica's); ``error``: why the
    broker does not serve it in an online directory (CorruptLogError: damaged and quarantined), or None."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker (KIP-113, KIP-827). ``error``: why it is offline, or None. ``directory_id``: 16 bytes
    or empty (see ``directory_id_text``).

    ``total_bytes`` and ``usable_bytes`` of its file system; None: unknown. ``sync_ms``: median time of recent small
    forced writes; None: too few samples.
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
        """The id in Kafka's form (base64url, 22 letters), as in meta.properties; "" for an unreadable directory."""
        from headrace_core.node.ids import id_to_text  # here: rarely needed, and its package imports much more

        return id_to_text(self.directory_id) if self.directory_id else ""
