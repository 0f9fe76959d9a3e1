"""The frozen values that the clients take and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from headrace_core.errors import HeadraceError


@dataclass(frozen=True, slots=True)
class RecordRange:
    """``count`` records of one partition, from ``offset`` on (-1 with acks=0)."""

    topic: str
    partition: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class ManyMetadata:
    """Where the records of one send_many or send_arrow call went: ranges, in the order in which they were sent."""

    topic: str
    record_count: int
    ranges: tuple[RecordRange, ...]


class OffsetAndTimestamp(NamedTuple):
    """An offset found by time, with the timestamp of the record there.

    ``offset`` -1: no record is that late. ``timestamp_ms`` -1: not asked for (the start or the end of a log).
    ``leader_epoch`` -1: not known."""

    offset: int
    timestamp_ms: int
    leader_epoch: int = -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read. ``leader_epoch``: of the record before it; -1: not known."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """A consumer as a member of its group. ``generation_id``: its member epoch; -1, and no member id: it is none."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; None means the cluster's default (num.partitions, default.replication.factor).

    ``assignments``: the broker ids of each partition's replicas, leader first, instead of the two counts.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] | None = None


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """What create_topics made."""

    name: str
    topic_id: bytes
    partitions: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition; ``leader`` is -1 while there is none. ``elr``: replicas that left the ISR with every committed
    record (KIP-966), for which a partition without a leader waits; ``last_known_elr``: who led last, while nobody does.
    """

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
    """One topic; ``max_message_bytes`` is the largest batch that its brokers accept (0 when they do not say)."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: tuple[PartitionDescription, ...]
    max_message_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A broker and the address at which clients reach it. ``fenced``: it is registered, and does not live;
    ``draining``: it is being emptied, and gets no new replicas."""

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
    """A controller that votes, and its internal listener (which clients do not use)."""

    controller_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class CoordinatorInfo:
    """A coordinator of groups that lives, and the address at which clients reach it. ``draining``: it is stopping."""

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
    """The cluster as the answering node knows it. ``metadata_lag_ms``: how old that may be at most, by that node's own
    clock; None: it does not know."""

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerInfo, ...]
    controllers: tuple[ControllerInfo, ...] = ()
    metadata_lag_ms: int | None = None
    coordinators: tuple[CoordinatorInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What a process knows of itself alone. ``role``: controller, broker or coordinator; ``node_id``: -1 while it has
    not registered. ``metadata_version_min`` and ``_max``: the feature levels that it understands.

    ``clock_ahead_ms``: by how much its wall clock is ahead of this machine's (negative: behind), give or take half of
    ``round_trip_ms``. ``open_descriptors``, ``descriptors_max``: None where its system does not tell, or there is no
    limit."""

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
    """What a configuration belongs to: ``type`` is "topic" or "broker"; a broker's empty name is the default of all."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value that is set for a key, under the name that it has there (``log.retention.ms`` for ``retention.ms``)."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key. ``source``: default, static_broker, dynamic_default_broker, dynamic_broker or dynamic_topic.

    ``value`` is empty when ``is_sensitive``. ``type``: boolean, int, long, double, string, list, password or class;
    ``allowed``: the legal values in words, or empty. ``synonyms`` (when asked for): every value that is set, the one
    that holds first, the default last.
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
    """In alter_configs: add ``items`` (with commas) to the list that holds now, where they are not in it."""

    items: str


@dataclass(frozen=True, slots=True)
class SubtractConfig:
    """In alter_configs: take ``items`` (with commas) out of the list that holds now."""

    items: str


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A controller, a voter or not, as the leader sees it; None where that is not known, or not since this one leads.

    ``log_end_offset``: durable there, and equal to the leader's log; ``lag``: how many offsets that is behind;
    ``last_fetch_timestamp_ms``: when the leader last heard from it; ``last_caught_up_timestamp_ms``: when it last had
    all of the leader's log (to a tenth of controller.quorum.election.timeout.ms)."""

    replica_id: int
    directory_id: bytes
    address: str
    log_end_offset: int | None
    lag: int | None
    last_fetch_timestamp_ms: int | None
    last_caught_up_timestamp_ms: int | None

    @property
    def directory_id_text(self) -> str:
        """The id as Kafka writes it (base64url, 22 letters)."""
        from headrace_core.node.ids import id_to_text  # here: few need it, and its package reads much more

        return id_to_text(self.directory_id)


@dataclass(frozen=True, slots=True)
class QuorumBroker:
    """A broker, which follows the metadata log too. ``metadata_offset``: how far it had applied the log at its last
    heartbeat, ``lag`` offsets behind; ``metadata_lag_ms``: how old what it shows may be at most (None: not known)."""

    broker_id: int
    metadata_offset: int
    lag: int
    metadata_lag_ms: int | None
    last_heartbeat_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    """The metadata quorum (KIP-836): its leader, what is committed, who votes and who follows; ``brokers``: those that
    heartbeat, by id."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    brokers: tuple[QuorumBroker, ...] = ()


@dataclass(frozen=True, slots=True)
class FeatureInfo:
    """A feature (KIP-584): the level that the cluster is at, and which ones the controller that answered understands,
    both ends included."""

    name: str
    finalized_level: int
    min_level: int
    max_level: int


#: "preferred": each partition's first replica leads again, if it is in sync; "unclean": a partition without a leader
#: gets one that is not in sync, and loses records (KIP-460).
ElectionType = Literal["preferred", "unclean"]


@dataclass(frozen=True, slots=True)
class PartitionReassignment:
    """A partition on its way to other brokers (KIP-455). ``replicas``: all at present, those that will leave too;
    ``waits``: its turn has not come, nothing is copied yet."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]
    waits: bool = False


#: What list_offsets looks for: the log's start, its end, the record with the largest timestamp, or the first record at
#: or after a time (ms since 1970).
OffsetSpec = Literal["earliest", "latest", "max-timestamp"] | int

#: What a key may be altered to; None: back to its default.
ConfigValue = str | None | AppendConfig | SubtractConfig


class TopicPartitionReplica(NamedTuple):
    """One replica: a partition on a broker."""

    topic: str
    partition: int
    broker_id: int


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """One replica in a log directory. ``is_future``: a copy that will replace the replica in another directory;
    ``offset_lag``: how many offsets its log's end is behind (of a future one: behind the present replica's);
    ``error``: why the broker does not serve it although the directory is online (CorruptLogError: it is damaged and
    quarantined), or None."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A log directory of a broker (KIP-113, KIP-827). ``error``: why it is offline, or None. ``directory_id``:
    16 bytes, or none (see ``directory_id_text``).

    ``total_bytes`` and ``usable_bytes`` are those of its file system; None when they cannot be told. ``sync_ms``: how
    long small forced writes take there, the median of the last ones; None: there were too few to tell."""

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
        """The id as Kafka writes it (base64url, 22 letters), as in errors and meta.properties; "" when it cannot
        be told (a directory that could not be read)."""
        from headrace_core.node.ids import id_to_text  # here: few need it, and its package reads much more

        return id_to_text(self.directory_id) if self.directory_id else ""
