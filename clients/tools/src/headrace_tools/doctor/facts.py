"""The state of a cluster at one moment, as ``headrace doctor`` collected it, without conclusions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.cluster_models import (
    ClusterDescription,
    FeatureInfo,
    LogDirDescription,
    NodeDescription,
    QuorumInfo,
    TopicDescription,
)
from headrace.group_models import GroupDescription, GroupLag, Rebalance
from headrace.transaction_models import TransactionDescription

from ..hanging import HangingTransaction
from ..orphaned_offsets import OrphanedOffset

#: The value of ``NotAsked.what`` when the request about the controller quorum failed.
THE_QUORUM = "the quorum"


class Trouble(enum.StrEnum):
    """The reason why an address could not be used."""

    NAME = "name"  # the name cannot be resolved
    REFUSED = "refused"  # no process listens
    SILENT = "silent"  # the node answers neither the connection attempt nor the health check
    UNREACHABLE = "unreachable"  # the machine has no route to the node, or the network has a similar error
    NOT_SERVING = "not serving"  # the node answers the health check with NOT_SERVING
    TLS = "tls"  # no TLS connection; ``refusal`` says why
    LOGIN = "login"  # the node answers the health check and refuses the client's login; ``refusal`` says why


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node and this client cannot work together, although the network works. ``rule``: the name of the doctor's
    rule. ``what``: what failed and why; ``cure``: what to do."""

    rule: str
    what: str
    cure: str

    def __str__(self) -> str:
        return f"{self.what}; {self.cure}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """An address that the doctor tried to connect to from this machine. ``detail``: the operating system's message.
    ``node``: the node's description of itself, if it answered. ``refusal``: why TLS or the login failed."""

    address: str
    ips: tuple[str, ...] = ()
    trouble: Trouble | None = None
    detail: str = ""
    node: NodeDescription | None = None
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A node of a cluster on this machine, from cluster.json. ``pid`` is None if the node is not running; ``stopped``:
    the node's process is suspended by SIGSTOP."""

    role: str
    node_id: int
    address: str
    pid: int | None
    log: str
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A reassignment, sampled twice. ``copied_bytes``: growth of the new replicas between the two samples of the
    reassignment, which are ``apart_s`` seconds apart; None: unknown."""

    topic: str
    partition: int
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    waits: bool
    copied_bytes: int | None
    apart_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group: members, lag, and last rebalances (oldest first). ``at_ms`` of a rebalance is by the coordinator's
    clock, which is ``clock_ahead_ms`` ahead of this machine's clock."""

    described: GroupDescription
    lag: GroupLag | None = None
    rebalances: tuple[Rebalance, ...] = ()
    clock_ahead_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFacts:
    """A transaction that is open, or whose markers are being written. The times in ``described`` come from the
    coordinator's clock, which is ``clock_ahead_ms`` ahead of this machine's clock."""

    described: TransactionDescription
    clock_ahead_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAsked:
    """A request that got no answer or was not sent; the rules that need its data found nothing. ``is_no_fault``: the
    request cannot be sent from this machine, or was left out on purpose, so the missing answer does not mean a fault of
    the cluster."""

    what: str
    why: str
    is_no_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All observations. ``None`` and empty values in the facts mean unknown; ``not_asked`` says why."""

    now_ms: float
    bootstrap: tuple[Tried, ...]
    cluster: ClusterDescription | None = None
    #: The addresses of brokers and coordinators (client listener) and of controllers (internal listener, often
    #: unreachable from the doctor's machine), by id.
    brokers: Mapping[int, Tried] = field(default_factory=dict)
    coordinators: Mapping[int, Tried] = field(default_factory=dict)
    controllers: Mapping[int, Tried] = field(default_factory=dict)
    #: Registered brokers that send no heartbeats to the controller. The doctor also tries the addresses of silent
    #: brokers: a dead broker refuses connections, a hanging broker accepts them and sends no response.
    fenced_brokers: Mapping[int, Tried] = field(default_factory=dict)
    #: The directory of a cluster on this machine; "" if the cluster is elsewhere.
    data: str = ""
    local: tuple[LocalNode, ...] = ()
    is_data_open: bool = False  #: Whether other users of this machine may read the directory ``data``.
    features: Mapping[str, FeatureInfo] = field(default_factory=dict)
    quorum: QuorumInfo | None = None
    log_dirs: Mapping[int, tuple[LogDirDescription, ...]] = field(default_factory=dict)
    topics: tuple[TopicDescription, ...] = ()
    min_insync: Mapping[str, int] = field(default_factory=dict)
    #: Topics that keep all records: no limit of time or size, and no compaction.
    unlimited: frozenset[str] = frozenset()
    moves: tuple[Move, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    transactions: tuple[TransactionFacts, ...] = ()
    hanging: tuple[HangingTransaction, ...] = ()
    orphaned: tuple[OrphanedOffset, ...] = ()
    not_asked: tuple[NotAsked, ...] = ()

    def fenced(self) -> set[int]:
        return set() if self.cluster is None else {each.broker_id for each in self.cluster.brokers if each.fenced}

    def local_node(self, role: str, node_id: int) -> LocalNode | None:
        """The node in cluster.json, if the cluster is on this machine."""
        return next((node for node in self.local if (node.role, node.node_id) == (role, node_id)), None)

    def hung(self, broker_id: int) -> bool:
        """Whether a fenced broker hangs: its process on this machine runs, or its address accepts connections but does
        not answer."""
        local, tried = self.local_node("broker", broker_id), self.fenced_brokers.get(broker_id)
        if local is not None:
            return local.pid is not None
        return tried is not None and tried.trouble is Trouble.SILENT

    def nodes(self) -> tuple[tuple[str, NodeDescription], ...]:
        """("broker 1", description) of every process that answered, by role and id."""
        return tuple(
            (f"{role} {node_id}", tried.node)
            for role, all_tried in (
                ("controller", self.controllers),
                ("broker", self.brokers),
                ("coordinator", self.coordinators),
            )
            for node_id, tried in sorted(all_tried.items())
            if tried.node is not None
        )
