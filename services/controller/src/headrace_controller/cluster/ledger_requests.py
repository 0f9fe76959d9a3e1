"""What can be asked about moves of replicas, producer ids, feature levels and coordinators; the rest is in requests.py.

Frozen values, no protobuf. An answer about several items has one result per item, in the request's order.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from headrace_core.errors import HeadraceError
from headrace_core.metadata import BrokerEndpoint, FeatureRange

# -- reassignment -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reassignment:
    """``targets``: the replicas wanted, preferred leader first; None cancels what is under way or waiting."""

    topic: str
    partition: int
    targets: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class AlterPartitionReassignments:
    """``throttle_bytes_per_s``: what copying may cost each broker until all reassignments are done; 0 lifts the
    throttle, None leaves it as it is. ``allow_replication_factor_change``: KIP-860."""

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
    """Empty a broker (``draining``), or let it have replicas again."""

    broker_id: int
    draining: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """How many replicas the broker has still; it may be shut down and unregistered at 0."""

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
    """The ids [first, first + length) belong to who asked, and to nobody else, ever."""

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
    """A controller says which levels it understands (KIP-919)."""

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
    """``want_shutdown``: give my shards to others. ``stream``: which of its streams this comes on."""

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


LedgerRequest = (
    AlterPartitionReassignments
    | DrainBroker
    | UnregisterBroker
    | AllocateProducerIds
    | UpdateFeatures
    | RegisterController
    | RegisterCoordinator
    | CoordinatorHeartbeat
    | CoordinatorHeartbeatsEnded
)

LedgerReply = (
    tuple[ReassignmentResult, ...]
    | Drained
    | ProducerIdBlock
    | tuple[FeatureResult, ...]
    | CoordinatorRegistered
    | CoordinatorHeartbeatReply
)
