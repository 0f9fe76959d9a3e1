"""The records of the metadata log: the controller's decisions, one frozen struct for each kind.

A record is stored as one byte with the framing version, then a msgpack array whose first item is the number of the
record's kind (the struct's tag; codec.py). New versions must read old logs forever, so the following rules apply to
changes:

* a tag is never reused, a field is never removed or reordered;
* a new field goes to the end and has a default that means "as before";
* a reader skips unknown trailing fields, and refuses an unknown tag.

A record has all results of a decision (epochs, leaders, ids), so a replay needs no clock, no randomness and no rules:
it only assigns values. The records are modelled on those of KIP-631, with another encoding.
"""

from __future__ import annotations

import enum

import msgspec

#: The newest supported level of metadata.version; the metadata image has the cluster's level. Level 1 of
#: metadata.version has the records with tags 1 to 8. Level 2 of metadata.version added the quorum of several voters and
#: newer records up to tag 24. Level 3 of metadata.version added the records of security (see features.py).
METADATA_VERSION = 3
METADATA_VERSION_MIN = 1
ELR_LEVEL = 2  #: The first metadata.version with eligible leader replicas (features.py).
METADATA_VERSION_FEATURE = "metadata.version"

#: Directory id of a replica whose broker has not reported the replica's directory yet (KIP-858 reserves the id).
UNASSIGNED_DIRECTORY = bytes(16)

#: Directory id of a replica that its broker cannot find while some of the broker's directories are offline; no online
#: directory has this id.
LOST_DIRECTORY = bytes(15) + b"\x01"


class ConfigResourceType(enum.IntEnum):
    """Type of the resource that has a configuration entry, with the numbers of headrace.v1.ConfigResourceType."""

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

    ``flush_weakened`` (in snapshots): the brokers' dynamic defaults once had a log.flush other than ``commit``.
    """

    cluster_id: str
    metadata_version: int
    flush_weakened: bool = False


class DirectoryEpoch(msgspec.Struct, frozen=True, array_like=True):
    """The broker epoch of the last registration that was unfenced while ``directory_id`` was online. ``is_written``:
    the broker had written this epoch into the directory before, so the directory proves it, unless it is an older
    copy."""

    directory_id: bytes
    broker_epoch: int
    is_written: bool


class RegisterBrokerRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A broker process registered with the controllers. The record replaces the broker's earlier registration, and the
    broker starts fenced.

    ``broker_epoch`` is the offset of the registration's record, so it grows with each registration. The broker's id is
    bound to its ``directory_ids`` (16 bytes each). ``offline_directories``: directories of earlier registrations that
    the new registration does not name. ``features``: the broker's supported levels; empty: only level 1. A registration
    does not end the broker's drain. ``default_log_flush``: the value of log.flush in the broker's properties file; ""
    if not set. ``elections_pending``: the broker stopped uncleanly, and is still an eligible leader of partitions whose
    last records it may have lost (KIP-966). ``writes_epochs``: the broker writes its epoch into each directory before
    it is unfenced. ``outdated_directories``: directories that are older copies, because they prove an older epoch than
    the controllers know, or none. ``directory_epochs`` (in snapshots): see DirectoryEpoch.
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
    writes_epochs: bool = False
    outdated_directories: tuple[bytes, ...] = ()
    directory_epochs: tuple[DirectoryEpoch, ...] = ()


class BrokerChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A broker was fenced or unfenced, has no more elections pending (see RegisterBrokerRecord), began its controlled
    shutdown, or lost directories (the record names all offline directories). A field that is None in the record stays
    unchanged."""

    broker_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    offline_directories: tuple[bytes, ...] | None = None
    elections_pending: bool | None = None


class TopicRecord(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A new topic; its partitions follow in the same batch.

    ``flush_weakened`` (in snapshots): the topic once had a log.flush other than ``commit``.
    """

    name: str
    topic_id: bytes
    flush_weakened: bool = False


class PartitionRecord(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """A new partition, or a partition's whole state. ``replicas[0]`` is the preferred leader; ``leader`` -1 means no
    leader.

    ``directories``: the id of each replica's directory, parallel to ``replicas``; empty: all UNASSIGNED_DIRECTORY.
    ``elr``, ``last_known_elr``: the eligible leader replicas, and the last known eligible leader (KIP-966). ``adding``,
    ``removing``: the replicas that a reassignment adds and removes (KIP-455); ``replicas`` contains the added and the
    removed replicas. ``recovering``: the leader was elected uncleanly and has not reported its recovery (KIP-704).
    ``clean_since`` (in snapshots): see PartitionImage.
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
    clean_since: int | None = None


class PartitionChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """A partition's leader, in-sync or eligible replicas, replicas or directories changed. A field that is None in the
    record stays unchanged. When ``replicas`` changes but ``directories`` is None, each remaining replica keeps its
    directory.

    ``partition_epoch`` is the epoch after the change; ``leader_epoch`` is set whenever ``leader`` is set.
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
    """One configuration entry; with ``value`` None, the record removes the entry. The resource name of a broker is its
    id, or "" for all brokers."""

    resource_type: int
    resource_name: str
    key: str
    value: str | None = None


class ProducerIdsRecord(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """A broker, or a coordinator (``broker_id`` -1), got the producer ids from the previous record's
    ``next_producer_id`` up to this record's ``next_producer_id`` (exclusive)."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class FeatureLevelRecord(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """A feature is finalized at a level from the next record on (KIP-584). ``metadata.version`` is the only feature."""

    name: str
    level: int


class BrokerDrainRecord(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """A broker's drain begins or ends. During a drain, the broker gets no new replicas, and its replicas move to other
    brokers."""

    broker_id: int
    draining: bool


class UnregisterBrokerRecord(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """The broker with the given id and epoch is unregistered; it has no replicas."""

    broker_id: int
    broker_epoch: int


class RegisterControllerRecord(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """A controller of the quorum, and its supported levels (KIP-919)."""

    controller_id: int
    directory_id: bytes
    features: tuple[FeatureRange, ...] = ()


class RegisterCoordinatorRecord(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """A coordinator process registered; the record replaces an earlier registration with the same id.
    ``coordinator_epoch``: the offset of the registration's record.

    A coordinator has no directories, so its incarnation is its identity, and its id is only a name.
    """

    coordinator_id: int
    coordinator_epoch: int
    incarnation_id: bytes
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None


class CoordinatorState(enum.IntEnum):
    """The state of a coordinator. ACTIVE: gets shards. DRAINING: the coordinator will stop and gets no more shards.
    GONE: the coordinator is no longer registered."""

    ACTIVE = 0
    DRAINING = 1
    GONE = 2


class CoordinatorChangeRecord(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """A coordinator's state (CoordinatorState) changed."""

    coordinator_id: int
    coordinator_epoch: int
    state: int


class ShardRecord(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """A shard (a partition of __consumer_offsets or __transaction_state) belongs to a coordinator from the record on
    (-1: to none). ``shard_epoch`` grows with each ownership record of a shard, and fences earlier owners."""

    topic_id: bytes
    partition: int
    coordinator_id: int
    shard_epoch: int


class QueuedReassignmentRecord(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """A reassignment was queued; ``targets`` None: a queued reassignment was begun or cancelled.

    ``automatic``: the cluster planned the reassignment, so the controller drops it when it no longer fits.
    """

    topic_id: bytes
    partition: int
    targets: tuple[int, ...] | None = None
    automatic: bool = False


class ReassignmentThrottleRecord(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """The throttle of reassignments, and the brokers to which it applies. A throttle of 0 without brokers: the throttle
    is removed."""

    bytes_per_s: int
    broker_ids: tuple[int, ...] = ()


class AclRecord(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """An access control entry exists from the record on. ``acl_id`` (16 bytes) identifies the entry. The types, the
    operation and the permission are Kafka's numbers; ``principal`` has the form ``User:alice``."""

    acl_id: bytes
    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class RemoveAclRecord(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """The access control entry with the given id is removed."""

    acl_id: bytes


class ScramCredentialRecord(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """A user's SCRAM credential for one mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512; KIP-900). The keys are those of
    RFC 5802; the password and the salted password are not stored."""

    user: str
    mechanism: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class RemoveScramCredentialRecord(msgspec.Struct, frozen=True, array_like=True, tag=28):
    """A user's SCRAM credential for one mechanism is removed."""

    user: str
    mechanism: int


class ClientQuotaRecord(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """A quota of an entity (KIP-546); with ``value`` None, the record removes the quota.

    ``entity``: pairs of a type (user, client-id, ip) and a name, sorted by type; a name of None means the type's
    default.
    """

    entity: tuple[tuple[str, str | None], ...]
    key: str
    value: float | None = None


class DelegationTokenRecord(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """A delegation token was created or renewed (KIP-48). Times are milliseconds since 1970. The token's HMAC is not
    stored: it is computed from the token's id and the secret key of the nodes."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    max_lifetime_at_ms: int


class RemoveDelegationTokenRecord(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """A delegation token is removed, because it expired or because a user ended it."""

    token_id: str


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
    | AclRecord
    | RemoveAclRecord
    | ScramCredentialRecord
    | RemoveScramCredentialRecord
    | ClientQuotaRecord
    | DelegationTokenRecord
    | RemoveDelegationTokenRecord
)
