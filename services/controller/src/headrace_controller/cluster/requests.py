"""The controller's requests and answers, as frozen values without protobuf.

An answer about several items has one result for each item, in the request's order; a successful item has ``error``
None.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_core.errors import HeadraceError
from headrace_core.metadata import BrokerEndpoint, ConfigResource, FeatureRange, FoundEpochs
from headrace_core.metadata.features import SUPPORTED_FEATURES
from headrace_core.metadata.records import AclRecord, DelegationTokenRecord, ScramCredentialRecord
from headrace_core.security.acl import AclFilter

from .leadership import CannotLead


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The first request that a new active controller decides in its term: write the cluster's identity and the first
    users, if the log is empty."""

    cluster_id: str
    users: tuple[ScramCredentialRecord, ...] = ()


# -- brokers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """``previous_broker_epoch`` comes from the clean shutdown markers of all directories; -1 if a directory has no
    marker (KIP-966). ``default_log_flush``: the log.flush of the broker's properties file, or "" if the file does not
    set it. ``features``: the supported feature levels; empty means that only level 1 is supported.
    ``directory_epochs``: see FoundEpochs; empty from a broker that does not write its epoch."""

    cluster_id: str
    incarnation_id: bytes
    directory_ids: tuple[bytes, ...]
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    wanted_broker_id: int = -1
    previous_broker_epoch: int = -1
    default_log_flush: str = ""
    features: tuple[FeatureRange, ...] = SUPPORTED_FEATURES
    directory_epochs: tuple[FoundEpochs, ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """``metadata_offset``: the offset (exclusive) up to which the broker has applied the metadata log.
    ``offline_directories``: directories that failed since the broker's start. ``stream``: number of the stream that
    carries this heartbeat. ``cannot_lead``: directories in which the broker's replicas must not lead now, with the
    reasons. ``lacking_leaders``: leaders (topic id, partition, leader epoch) that lack committed records which the
    broker's replicas have."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shutdown: bool = False
    offline_directories: tuple[bytes, ...] = ()
    stream: int = 0
    cannot_lead: tuple[CannotLead, ...] = ()
    lacking_leaders: tuple[tuple[bytes, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    fenced: bool
    should_shutdown: bool


@dataclass(frozen=True, slots=True)
class HeartbeatsEnded:
    """A report that a broker's heartbeat stream broke, probably because the broker's process ended. The report of a
    broken stream saves a restarted broker the wait for the end of its session. The broker's grace period begins, unless
    the broker has sent heartbeats on a newer stream."""

    broker_id: int
    broker_epoch: int
    stream: int = 0


@dataclass(frozen=True, slots=True)
class FenceSilentBrokers:
    """A request that the controller's timer makes: fence brokers that have been silent for longer than their
    session."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A report that a replica of the sender is in ``directory``. ``fresh``: the replica starts again with an empty log
    in ``directory``. A fresh report is sent before the replica's empty log is created. Without the fresh report, a
    broker would find the empty log after a restart, and take it for a complete log."""

    topic_id: bytes
    partition: int
    directory: bytes
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignDirectories:
    broker_id: int
    broker_epoch: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class RefusedPlacement:
    placement: Placement
    error: HeadraceError


# -- partitions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredPartition:
    """A leader's proposal for an in-sync set: the broker id and the broker epoch of each member (KIP-903).
    ``recovering``: the leader was elected uncleanly and has not recovered (KIP-704). ``uncertain``: an earlier attempt
    with the same partition epoch may still arrive."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    recovering: bool = False
    uncertain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """The in-sync sets that a broker proposes for the partitions that it leads (AlterPartition, KIP-497).
    ``metadata_offset``: the offset up to which the leader has applied the metadata log."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    partitions: tuple[AlteredPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """Result for one partition of an AlterPartition: the partition's state after the request, or the error."""

    topic_id: bytes
    partition: int
    error: HeadraceError | None = None
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
    recovering: bool = False


class ElectionType(enum.IntEnum):
    """Kinds of elections, with the numbers of headrace.v1.ElectionType (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """``partitions``: the topic and number of each partition; None for all partitions that need an election."""

    type: ElectionType
    partitions: tuple[tuple[str, int], ...] | None = None


@dataclass(frozen=True, slots=True)
class ElectionResult:
    topic: str
    partition: int
    error: HeadraceError | None = None


# -- topics -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """``partitions`` and ``replication_factor`` below 1 mean the cluster's defaults. ``assignments``: replicas of each
    partition by its number, leader first; given in place of ``partitions`` and ``replication_factor``."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTopics:
    """``internal``: a broker creates one of the cluster's internal topics (core/metadata/shards.py), which clients
    cannot create."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """Result for one topic of a request; ``partitions`` and ``replication_factor`` are the topic's values after the
    request."""

    name: str
    error: HeadraceError | None = None
    topic_id: bytes = b""
    partitions: int = 0
    replication_factor: int = 0


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MorePartitions:
    """``total``: the topic's number of partitions after the request. ``assignments``: replicas of each new partition,
    by partition number."""

    topic: str
    total: int
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    topics: tuple[MorePartitions, ...]
    validate_only: bool = False


# -- configuration ----------------------------------------------------------------------------------------------------


class OpKind(enum.IntEnum):
    """Kinds of configuration changes, with the numbers of headrace.v1.AlterConfigOp.Kind (KIP-339)."""

    SET = 1
    DELETE = 2
    APPEND = 3
    SUBTRACT = 4


@dataclass(frozen=True, slots=True)
class ConfigOp:
    kind: OpKind
    name: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class AlterResource:
    resource: ConfigResource
    ops: tuple[ConfigOp, ...]


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    resources: tuple[AlterResource, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class ConfigResult:
    resource: ConfigResource
    error: HeadraceError | None = None


# -- reassignment -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reassignment:
    """``targets``: the wanted replicas, preferred leader first; None cancels a reassignment that is in progress or
    queued."""

    topic: str
    partition: int
    targets: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignments:
    """``throttle_bytes_per_s``: limit of the copying rate of each broker until all reassignments are done. A throttle
    of 0 removes the limit, None leaves it unchanged. ``allow_replication_factor_change``: KIP-860."""

    reassignments: tuple[Reassignment, ...]
    allow_replication_factor_change: bool = True
    throttle_bytes_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    topic: str
    partition: int
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class DrainBroker:
    """Drain a broker (``draining`` true), or let it take replicas again."""

    broker_id: int
    draining: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """Number of replicas left on the drained broker; at 0 the broker may be shut down and unregistered."""

    replicas_left: int


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    broker_id: int


# -- producer ids -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """``coordinator``: (id, epoch) of the coordinator that gets the block; None: the broker gets the block."""

    broker_id: int = -1
    broker_epoch: int = -1
    coordinator: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The producer ids from ``first`` to ``first + length - 1``, which are never allocated again."""

    first: int
    length: int


# -- features ---------------------------------------------------------------------------------------------------------


class UpgradeType(enum.IntEnum):
    """Kinds of feature changes, with the numbers of headrace.v1.FeatureUpgradeType (KIP-584, KIP-778)."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


@dataclass(frozen=True, slots=True)
class FeatureUpdate:
    name: str
    level: int
    upgrade_type: UpgradeType = UpgradeType.UPGRADE


@dataclass(frozen=True, slots=True)
class UpdateFeatures:
    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class FeatureResult:
    name: str
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class RegisterController:
    """A controller's registration, with the feature levels that the controller supports (KIP-919)."""

    controller_id: int
    directory_id: bytes
    features: tuple[FeatureRange, ...]


# -- coordinators -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterCoordinator:
    """``incarnation_id``: 16 random bytes, new at each start of the coordinator. ``wanted_id``: the id that an operator
    configured, or -1."""

    cluster_id: str
    incarnation_id: bytes
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    wanted_id: int = -1


@dataclass(frozen=True, slots=True)
class CoordinatorRegistered:
    coordinator_id: int
    coordinator_epoch: int


@dataclass(frozen=True, slots=True)
class CoordinatorHeartbeat:
    """``want_shutdown``: the coordinator asks the controllers to transfer its shards to other coordinators. ``stream``:
    number of the stream that carries this heartbeat."""

    coordinator_id: int
    coordinator_epoch: int
    want_shutdown: bool = False
    stream: int = 0


@dataclass(frozen=True, slots=True)
class CoordinatorHeartbeatReply:
    """``should_shutdown``: the coordinator owns no shard and is no longer registered."""

    should_shutdown: bool


@dataclass(frozen=True, slots=True)
class CoordinatorHeartbeatsEnded:
    """A report that a coordinator's heartbeat stream broke: the coordinator's grace period begins, unless the
    coordinator has sent heartbeats on a newer stream."""

    coordinator_id: int
    coordinator_epoch: int
    stream: int = 0


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    """Changes of one entity's quotas: ``parts`` of the entity as (type, name), and ``operations`` as (key, value); a
    value of None removes the quota."""

    parts: tuple[tuple[str, str | None], ...]
    operations: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True)
class AlterClientQuotas:
    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class QuotaResult:
    """The outcome of one quota alteration."""

    entity: tuple[tuple[str, str | None], ...]
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    """A user's new credential. ``mechanism``: Kafka's number. The salted password is never shown."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ScramDeletion:
    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class AlterScramCredentials:
    upsertions: tuple[ScramUpsertion, ...]
    deletions: tuple[ScramDeletion, ...] = ()


@dataclass(frozen=True, slots=True)
class ScramResult:
    """The outcome of all changes of one user."""

    user: str
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class CreateAcls:
    """The access control entries to create; their ids are empty."""

    entries: tuple[AclRecord, ...]


@dataclass(frozen=True, slots=True)
class DeleteAcls:
    """Remove the entries that match one of the filters."""

    filters: tuple[AclFilter, ...]


@dataclass(frozen=True, slots=True)
class AclResult:
    """The result of creating one entry; if ``error`` is None, the entry exists."""

    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class DeleteAclsResult:
    """The entries that one filter matches."""

    removed: tuple[AclRecord, ...] = ()
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class CreateToken:
    """``token_id``: a new random id. ``lifetime_ms``: the maximum lifetime; 0 or less: the maximum of the settings.
    ``at_ms``: milliseconds since 1970."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    lifetime_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class RenewToken:
    """``token_id`` is "" if no token has the HMAC of the request. ``period_ms``: the time until the token expires;
    negative: the settings' default."""

    token_id: str
    requester: str
    period_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class ExpireToken:
    """Like RenewToken; a negative period removes the token."""

    token_id: str
    requester: str
    period_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class RemoveExpiredTokens:
    at_ms: int


Request = (
    Bootstrap
    | RegisterBroker
    | Heartbeat
    | HeartbeatsEnded
    | FenceSilentBrokers
    | AssignDirectories
    | AlterPartition
    | ElectLeaders
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
    | AlterClientQuotas
    | AlterScramCredentials
    | CreateAcls
    | DeleteAcls
    | CreateToken
    | RenewToken
    | ExpireToken
    | RemoveExpiredTokens
    | AlterPartitionReassignments
    | DrainBroker
    | UnregisterBroker
    | AllocateProducerIds
    | UpdateFeatures
    | RegisterController
    | RegisterCoordinator
    | CoordinatorHeartbeat
    | CoordinatorHeartbeatsEnded
)

Reply = (
    Registered
    | HeartbeatReply
    | tuple[RefusedPlacement, ...]
    | tuple[PartitionResult, ...]
    | tuple[ElectionResult, ...]
    | tuple[TopicResult, ...]
    | tuple[ConfigResult, ...]
    | tuple[QuotaResult, ...]
    | tuple[ScramResult, ...]
    | tuple[AclResult, ...]
    | DelegationTokenRecord
    | int
    | tuple[DeleteAclsResult, ...]
    | tuple[ReassignmentResult, ...]
    | Drained
    | ProducerIdBlock
    | tuple[FeatureResult, ...]
    | CoordinatorRegistered
    | CoordinatorHeartbeatReply
    | None
)
