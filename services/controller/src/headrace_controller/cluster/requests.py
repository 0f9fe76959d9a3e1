"""The controller's requests and answers: frozen values, no protobuf.

An answer about several items has one result per item, in the request's order, with ``error`` or None.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_core.errors import HeadraceError
from headrace_core.metadata import BrokerEndpoint, ConfigResource, FeatureRange
from headrace_core.metadata.features import SUPPORTED_FEATURES

from .leadership import CannotLead


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A leader's first request: write the cluster's identity, unless the log has it."""

    cluster_id: str


# -- brokers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """``previous_broker_epoch``: from the clean shutdown markers of all directories, -1 without (KIP-966).
    ``default_log_flush``: the log.flush of the broker's properties file, "" without one. ``features``: supported
    levels; none: only level 1."""

    cluster_id: str
    incarnation_id: bytes
    directory_ids: tuple[bytes, ...]
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    wanted_broker_id: int = -1
    previous_broker_epoch: int = -1
    default_log_flush: str = ""
    features: tuple[FeatureRange, ...] = SUPPORTED_FEATURES


@dataclass(frozen=True, slots=True)
class Registered:
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """``metadata_offset``: how far the broker has applied the metadata log (exclusive). ``offline_directories``: those
    that failed since its start. ``stream``: number of the stream that carries this. ``cannot_lead``: where its replicas
    must not lead now."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shutdown: bool = False
    offline_directories: tuple[bytes, ...] = ()
    stream: int = 0
    cannot_lead: tuple[CannotLead, ...] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    fenced: bool
    should_shutdown: bool


@dataclass(frozen=True, slots=True)
class HeartbeatsEnded:
    """A broker's heartbeat stream broke: its process has probably ended. Its successor need not wait, and its grace
    begins, unless it heartbeats on another stream already."""

    broker_id: int
    broker_epoch: int
    stream: int = 0


@dataclass(frozen=True, slots=True)
class FenceSilentBrokers:
    """Time has passed: fence brokers that were silent for too long."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A replica of the sender is in ``directory``; ``fresh``: it starts over there, without records. It is sent before
    the log is created: otherwise a restart would find the empty log and take it for a complete one."""

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
    """A leader's proposal for an in-sync set: (broker id, broker epoch) of each member (KIP-903). ``recovering``: it
    was elected uncleanly and has not recovered (KIP-704). ``uncertain``: an earlier attempt at this partition epoch may
    still arrive."""

    topic_id: bytes
    partition: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]
    recovering: bool = False
    uncertain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """The leader of the partitions proposes in-sync sets (KIP-497). ``metadata_offset``: how far it has applied
    the metadata log."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    partitions: tuple[AlteredPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionResult:
    """Result for one partition of an AlterPartition: its state afterwards, or the error."""

    topic_id: bytes
    partition: int
    error: HeadraceError | None = None
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()
    recovering: bool = False


class ElectionType(enum.IntEnum):
    """The numbers of headrace.v1.ElectionType (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """``partitions``: (topic, number) of each; None: all that need it."""

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
    """``partitions`` and ``replication_factor`` below 1 mean the cluster's default. ``assignments``: partition ->
    replicas, leader first, in place of both."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTopics:
    """``internal``: a broker creates the cluster's own topics (core/metadata/shards.py); clients cannot."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    internal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """Result for one topic; the numbers are those of the topic afterwards."""

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
    """``total``: the count afterwards. ``assignments``: replicas of the new partitions, by number."""

    topic: str
    total: int
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    topics: tuple[MorePartitions, ...]
    validate_only: bool = False


# -- configuration ----------------------------------------------------------------------------------------------------


class OpKind(enum.IntEnum):
    """The numbers of headrace.v1.AlterConfigOp.Kind (KIP-339)."""

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
    """``targets``: the wanted replicas, preferred leader first; None cancels a reassignment in progress or queued."""

    topic: str
    partition: int
    targets: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignments:
    """``throttle_bytes_per_s``: limit of copying for each broker until all reassignments are done; 0 removes it, None
    leaves it. ``allow_replication_factor_change``: KIP-860."""

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
    """Drain a broker (``draining``), or let it have replicas again."""

    broker_id: int
    draining: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """Remaining replicas on the broker; at 0 it may be shut down and unregistered."""

    replicas_left: int


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    broker_id: int


# -- producer ids -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The ids [first, first + length), never allocated again."""

    first: int
    length: int


# -- features ---------------------------------------------------------------------------------------------------------


class UpgradeType(enum.IntEnum):
    """The numbers of headrace.v1.FeatureUpgradeType (KIP-584, KIP-778)."""

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
    """A controller reports the levels that it supports (KIP-919)."""

    controller_id: int
    directory_id: bytes
    features: tuple[FeatureRange, ...]


# -- coordinators -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterCoordinator:
    """``incarnation_id``: 16 random bytes for each start. ``wanted_id``: what an operator set, or -1."""

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
    """``want_shutdown``: give my shards to others. ``stream``: number of the stream that carries this."""

    coordinator_id: int
    coordinator_epoch: int
    want_shutdown: bool = False
    stream: int = 0


@dataclass(frozen=True, slots=True)
class CoordinatorHeartbeatReply:
    """``should_shutdown``: it owns nothing and is not registered any more."""

    should_shutdown: bool


@dataclass(frozen=True, slots=True)
class CoordinatorHeartbeatsEnded:
    """A coordinator's stream broke: its grace begins, unless it heartbeats on another stream already."""

    coordinator_id: int
    coordinator_epoch: int
    stream: int = 0


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
    | tuple[ReassignmentResult, ...]
    | Drained
    | ProducerIdBlock
    | tuple[FeatureResult, ...]
    | CoordinatorRegistered
    | CoordinatorHeartbeatReply
    | None
)
