"""What the controller can be asked, and what it answers: frozen values, no protobuf.

An answer about several items has one result per item, in the request's order, with ``error`` None or what was wrong.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace_core.errors import HeadraceError
from headrace_core.metadata import BrokerEndpoint, ConfigResource


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The first thing a leader asks for: write who the cluster is, unless the log says it already."""

    cluster_id: str


# -- brokers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    cluster_id: str
    incarnation_id: bytes
    directory_ids: tuple[bytes, ...]
    endpoints: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    wanted_broker_id: int = -1


@dataclass(frozen=True, slots=True)
class Registered:
    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """``metadata_offset``: how far the broker has applied the metadata log (exclusive). ``offline_directories``: those
    that have failed in this life of it."""

    broker_id: int
    broker_epoch: int
    metadata_offset: int
    want_fence: bool = False
    want_shutdown: bool = False
    offline_directories: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    fenced: bool
    should_shutdown: bool


@dataclass(frozen=True, slots=True)
class HeartbeatsEnded:
    """A broker's heartbeat stream broke: its process has probably ended, so its successor need not wait."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class FenceSilentBrokers:
    """Time has passed: fence who has been silent for too long."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A replica of the broker that says so is in ``directory``."""

    topic_id: bytes
    partition: int
    directory: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignDirectories:
    broker_id: int
    broker_epoch: int
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class RefusedPlacement:
    placement: Placement
    error: HeadraceError


# -- topics -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """``partitions`` and ``replication_factor`` below 1 take the cluster's default. ``assignments``: partition ->
    replicas, leader first, instead of both."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTopics:
    topics: tuple[NewTopic, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    """What became of one topic of a request; the numbers are those of the topic afterwards."""

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


Request = (
    Bootstrap
    | RegisterBroker
    | Heartbeat
    | HeartbeatsEnded
    | FenceSilentBrokers
    | AssignDirectories
    | CreateTopics
    | DeleteTopics
    | CreatePartitions
    | AlterConfigs
)

Reply = (
    Registered
    | HeartbeatReply
    | tuple[RefusedPlacement, ...]
    | tuple[TopicResult, ...]
    | tuple[ConfigResult, ...]
    | None
)
