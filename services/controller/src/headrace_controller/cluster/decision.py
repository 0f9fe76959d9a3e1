"""Input and output of the rules for the cluster: a view to decide on, and the decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from headrace_core.config import from_key
from headrace_core.config.server_keys import SERVER
from headrace_core.errors import HeadraceError
from headrace_core.metadata import MetadataImage, MetadataRecord

from .leadership import Hindered
from .requests import Reply
from .sessions import BrokerSessions, Contact, CoordinatorContact, CoordinatorSessions


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """The configuration keys that decisions depend on."""

    num_partitions: int = from_key(SERVER, "num.partitions")
    default_replication_factor: int = from_key(SERVER, "default.replication.factor")
    delete_topic_enable: bool = from_key(SERVER, "delete.topic.enable")
    broker_session_timeout_ms: int = from_key(SERVER, "broker.session.timeout.ms")
    broker_heartbeat_interval_ms: int = from_key(SERVER, "broker.heartbeat.interval.ms")
    broker_session_disconnect_grace_ms: int = from_key(SERVER, "broker.session.disconnect.grace.ms")
    metadata_max_records_per_request: int = from_key(SERVER, "metadata.max.records.per.request")
    #: The min.insync.replicas with which a new cluster starts; from then on, the value in the metadata is used.
    min_insync_replicas: int = from_key(SERVER, "min.insync.replicas")
    unclean_leader_election_enable: bool = from_key(SERVER, "unclean.leader.election.enable")
    unclean_leader_election_interval_ms: int = from_key(SERVER, "unclean.leader.election.interval.ms")
    auto_leader_rebalance_enable: bool = from_key(SERVER, "auto.leader.rebalance.enable")
    leader_imbalance_check_interval_seconds: int = from_key(SERVER, "leader.imbalance.check.interval.seconds")
    leader_imbalance_per_broker_percentage: int = from_key(SERVER, "leader.imbalance.per.broker.percentage")
    auto_rebalance_enable: bool = from_key(SERVER, "auto.rebalance.enable")
    auto_rebalance_delay_ms: int = from_key(SERVER, "auto.rebalance.delay.ms")
    auto_rebalance_threshold_percentage: int = from_key(SERVER, "auto.rebalance.threshold.percentage")
    reassignment_partitions_per_broker: int = from_key(SERVER, "reassignment.partitions.per.broker")
    offsets_topic_num_partitions: int = from_key(SERVER, "offsets.topic.num.partitions")
    offsets_topic_replication_factor: int = from_key(SERVER, "offsets.topic.replication.factor")
    offsets_topic_segment_bytes: int = from_key(SERVER, "offsets.topic.segment.bytes")
    transaction_state_log_num_partitions: int = from_key(SERVER, "transaction.state.log.num.partitions")
    transaction_state_log_replication_factor: int = from_key(SERVER, "transaction.state.log.replication.factor")
    transaction_state_log_min_isr: int = from_key(SERVER, "transaction.state.log.min.isr")
    transaction_state_log_segment_bytes: int = from_key(SERVER, "transaction.state.log.segment.bytes")
    delegation_token_max_lifetime_ms: int = from_key(SERVER, "delegation.token.max.lifetime.ms")
    delegation_token_expiry_time_ms: int = from_key(SERVER, "delegation.token.expiry.time.ms")


@dataclass(slots=True)
class Agenda:
    """A leader's pending work and the state of its term. The leader's pending work is not in the log, because the next
    leader derives it from the image.

    ``elections_pending``: brokers whose partition changes were too many for one decision. ``min_insync_offset``: the
    offset at which min.insync.replicas last changed, or at which the leader's term began. ``nothing_begins``: a state
    in which no queued reassignment could begin, so the leader makes no attempt until the state changes.
    """

    elections_pending: set[int] = field(default_factory=set)
    min_insync_offset: int = 0
    nothing_begins: tuple[object, ...] = ()


class View(msgspec.Struct, frozen=True):
    """Input of a decision: the speculative image, the sessions, the time, new ids and the leader's pending work.
    ``hindered``: brokers that cannot lead now, according to their sessions and the present request."""

    image: MetadataImage
    sessions: BrokerSessions
    coordinator_sessions: CoordinatorSessions
    settings: ClusterSettings
    now_ms: float
    new_id: Callable[[], bytes]
    agenda: Agenda = msgspec.field(default_factory=Agenda)
    hindered: Hindered = msgspec.field(default_factory=dict)


class Decision(msgspec.Struct, frozen=True):
    """Result of a rule: the records, the reply, and the contact with a node, which updates the node's session. The
    records are written together or not at all, and the reply is sent after their commit.

    ``failure`` replaces the reply when the whole request is refused. ``elections_pending``: brokers for whose
    partitions more records must follow (``brokers.settle``).
    """

    records: tuple[MetadataRecord, ...] = ()
    reply: Reply = None
    contact: Contact | None = None
    failure: HeadraceError | None = None
    coordinator: CoordinatorContact | None = None
    elections_pending: tuple[int, ...] = ()
