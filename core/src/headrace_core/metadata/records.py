"""The records of the metadata log: the controller's decisions, one frozen struct for each kind.

A record is stored as a msgpack array whose first item is the kind's number (the struct's tag), behind one byte for the
framing version (codec.py). Rules of evolution, because old logs are read forever:

* a tag is never reused, a field is never removed or reordered;
* a new field goes to the end and has a default that means "as before";
* a reader skips unknown trailing fields, and refuses an unknown tag.

Everything that a decision depended on (epochs, leaders, ids) is in the record, so that replay needs no clock, no
randomness and no rule: replaying is assignment. Source: the shape of KIP-631's records, with our own encoding.
"""

from __future__ import annotations

import enum

import msgspec

#: The newest supported level of metadata.version; the cluster's own is in its image. Level 1: tags 1 to 8. Level 2: the
#: quorum of several voters, and all that followed (features.py has what needs it).
METADATA_VERSION = 2
METADATA_VERSION_MIN = 1
METADATA_VERSION_FEATURE = "metadata.version"

#: Directory of a replica that its broker has not reported yet (KIP-858's reserved id, as all small ones are).
UNASSIGNED_DIRECTORY = bytes(16)

#: Directory of a replica that its broker cannot find while some of its directories are offline; never online.
LOST_DIRECTORY = bytes(15) + b"\x01"


class ConfigResourceType(enum.IntEnum):
    """Owner type of a configuration entry (the numbers of headrace.v1.ConfigResourceType)."""

    TOPIC = 1
    BROKER = 2


class BrokerEndpoint(msgspec.Struct, frozen=True, array_like=True):
    """Address of one of a broker's listeners."""

    listener: str
    host: str
    port: int


class FeatureRange(msgspec.Struct, frozen=True, array_like=True):
    """Supported levels of a feature, both ends included (KIP-584)."""

    name: str
    min_level: int
    max_level: int


class ClusterRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first decision of a cluster: its id, and the feature level of its log.

    ``flush_weakened`` (in snapshots): a dynamic default of the brokers has had a log.flush other than ``commit``.
    """

    cluster_id: str
    metadata_version: int
    flush_weakened: bool = False


class RegisterBrokerRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A broker process registered. It replaces the broker's earlier registration, and the broker starts fenced.

    ``broker_epoch`` is the offset of this record: it grows with each registration. The broker's id belongs to its
    ``directory_ids`` (16 bytes each). ``offline_directories``: earlier ones that it did not name. ``features``:
    supported levels; none: only level 1. A drain outlives it. ``default_log_flush``: the log.flush of its properties
    file, "" without one. ``elections_pending``: it stopped uncleanly, and is still an eligible leader of
    partitions whose last records it may have lost (KIP-966).
    """

    broker_id: int
    broker_epoch: int
    incarnation_id: bytes
    directory_ids: tuple[bytes, ...]
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    offline_directories: tuple[bytes, ...] = ()
    features: tuple[FeatureRange, ...] = ()
    default_log_flush: str = ""
    elections_pending: bool = False


class BrokerChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A broker was fenced, unfenced, settled (see RegisterBrokerRecord), began its controlled shutdown, or lost
    directories (all that are offline from here on). None leaves a field unchanged."""

    broker_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    offline_directories: tuple[bytes, ...] | None = None
    elections_pending: bool | None = None


class TopicRecord(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A new topic; its partitions follow in the same batch.

    ``flush_weakened`` (in snapshots): it has had a log.flush other than ``commit`` of its own.
    """

    name: str
    topic_id: bytes
    flush_weakened: bool = False


class PartitionRecord(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A new partition, or a partition's whole state. ``replicas[0]`` is the preferred leader; leader -1 means none.

    ``directories``: the id of each replica's directory, parallel to ``replicas``; none: all UNASSIGNED_DIRECTORY.
    ``elr``, ``last_known_elr``: the eligible leader replicas, and the last one (KIP-966). ``adding``, ``removing``: the
    replicas that a reassignment adds and removes (KIP-455), all of them in ``replicas``. ``recovering``: the leader was
    elected uncleanly and has not reported its recovery (KIP-704).
    """

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[bytes, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    recovering: bool = False


class PartitionChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A partition's leader, in-sync or eligible replicas, replicas or directories changed. None leaves a field
    unchanged; replicas without directories keep the directory of each replica that stays.

    ``partition_epoch`` is the epoch after the change; ``leader_epoch`` is set whenever the leader is.
    """

    topic_id: bytes
    partition: int
    partition_epoch: int
    leader: int | None = None
    leader_epoch: int | None = None
    isr: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    directories: tuple[bytes, ...] | None = None
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    recovering: bool | None = None


class RemoveTopicRecord(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The topic, its partitions and its configuration are removed."""

    topic_id: bytes


class ConfigRecord(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """One configuration entry; ``value`` None removes it. A broker's name is its id, or "" for all brokers."""

    resource_type: int
    resource_name: str
    key: str
    value: str | None = None


class ProducerIdsRecord(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """A broker got the producer ids from the last ``next_producer_id`` up to this one (exclusive)."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class FeatureLevelRecord(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """A feature is finalized at a level from the next record on (KIP-584). ``metadata.version`` is the only one."""

    name: str
    level: int


class BrokerDrainRecord(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """A broker's drain begins or ends: while it lasts, it gets no new replicas, and its own move to others."""

    broker_id: int
    draining: bool


class UnregisterBrokerRecord(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """The broker of this epoch is unregistered; it has no replicas."""

    broker_id: int
    broker_epoch: int


class RegisterControllerRecord(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """A controller of the quorum, and its supported levels (KIP-919)."""

    controller_id: int
    directory_id: bytes
    features: tuple[FeatureRange, ...] = ()


class RegisterCoordinatorRecord(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """A coordinator process registered, replacing an earlier one of its id. ``coordinator_epoch``: this record's
    offset.

    It has no directories, so its incarnation is its identity; the id is only a name.
    """

    coordinator_id: int
    coordinator_epoch: int
    incarnation_id: bytes
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None


class CoordinatorState(enum.IntEnum):
    """ACTIVE: gets shards. DRAINING: will stop, gets no more. GONE: not registered any more."""

    ACTIVE = 0
    DRAINING = 1
    GONE = 2


class CoordinatorChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """A coordinator's state (CoordinatorState) changed."""

    coordinator_id: int
    coordinator_epoch: int
    state: int


class ShardRecord(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """A shard, a partition of __consumer_offsets or __transaction_state, belongs to a coordinator from here on.
    ``shard_epoch`` grows with each such record, and fences earlier owners; coordinator -1: none."""

    topic_id: bytes
    partition: int
    coordinator_id: int
    shard_epoch: int


class QueuedReassignmentRecord(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """A queued reassignment; ``targets`` None: it was begun or cancelled.

    ``automatic``: planned by the cluster, so it is dropped when it no longer fits.
    """

    topic_id: bytes
    partition: int
    targets: tuple[int, ...] | None = None
    automatic: bool = False


class ReassignmentThrottleRecord(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """The reassignments' throttle, and the brokers that have it; 0 and none: removed."""

    bytes_per_s: int
    broker_ids: tuple[int, ...] = ()


MetadataRecord = (
    ClusterRecord
    | RegisterBrokerRecord
    | BrokerChangeRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | ProducerIdsRecord
    | FeatureLevelRecord
    | BrokerDrainRecord
    | UnregisterBrokerRecord
    | RegisterControllerRecord
    | RegisterCoordinatorRecord
    | CoordinatorChangeRecord
    | ShardRecord
    | QueuedReassignmentRecord
    | ReassignmentThrottleRecord
)
