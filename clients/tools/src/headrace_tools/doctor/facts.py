"""What a doctor has seen of a cluster, at one moment. Nothing here says whether it is good or bad."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.group_models import GroupDescription, GroupLag, Rebalance
from headrace.models import (
    ClusterDescription,
    FeatureInfo,
    LogDirDescription,
    NodeDescription,
    QuorumInfo,
    TopicDescription,
)

#: What a NotAsked of the quorum is about.
THE_QUORUM = "the quorum"


class Trouble(enum.StrEnum):
    """What kept an address from being used."""

    NAME = "name"  # its name cannot be resolved
    REFUSED = "refused"  # nothing listens there
    SILENT = "silent"  # no answer to the attempt to connect, or none to the health check
    UNREACHABLE = "unreachable"  # no route, and the like
    NOT_SERVING = "not serving"  # it answers, and says that it does not serve


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """An address that was tried from here. ``detail``: the system's own words. ``node``: what it said of itself, if it
    was asked and could say."""

    address: str
    ips: tuple[str, ...] = ()
    trouble: Trouble | None = None
    detail: str = ""
    node: NodeDescription | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A node of a cluster on this machine (cluster.json); ``pid`` None: it does not run. ``stopped``: it runs, but
    stands still (SIGSTOP)."""

    role: str
    node_id: int
    address: str
    pid: int | None
    log: str
    stopped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A reassignment, looked at twice. ``copied_bytes``: by how much the new copies grew between the looks, which were
    ``apart_s`` seconds apart; None: nobody could tell."""

    topic: str
    partition: int
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    waits: bool
    copied_bytes: int | None
    apart_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group: its members, its lag, its last rebalances (the oldest first; ``at_ms`` by its coordinator's clock, which
    is ``clock_ahead_ms`` ahead of ours)."""

    described: GroupDescription
    lag: GroupLag | None = None
    rebalances: tuple[Rebalance, ...] = ()
    clock_ahead_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAsked:
    """A question that had no answer: the rules that live of it have found nothing because they saw nothing.
    ``is_no_fault``: it was not to be answered from here, or was not asked; nothing is wrong because of it."""

    what: str
    why: str
    is_no_fault: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it. ``None`` and empty: not known; ``not_asked`` says why."""

    now_ms: float
    bootstrap: tuple[Tried, ...]
    cluster: ClusterDescription | None = None
    #: By broker, coordinator (client listener), and controller (internal listener, which may well be out of reach).
    brokers: Mapping[int, Tried] = field(default_factory=dict)
    coordinators: Mapping[int, Tried] = field(default_factory=dict)
    controllers: Mapping[int, Tried] = field(default_factory=dict)
    #: Registered brokers that do not heartbeat, tried all the same: a dead one refuses, a hung one is silent.
    fenced_brokers: Mapping[int, Tried] = field(default_factory=dict)
    #: Of a cluster on this machine; ``data`` is its directory.
    data: str = ""
    local: tuple[LocalNode, ...] = ()
    features: Mapping[str, FeatureInfo] = field(default_factory=dict)
    quorum: QuorumInfo | None = None
    log_dirs: Mapping[int, tuple[LogDirDescription, ...]] = field(default_factory=dict)
    topics: tuple[TopicDescription, ...] = ()
    min_insync: Mapping[str, int] = field(default_factory=dict)
    #: Topics that delete nothing: neither a limit of time or size, nor compaction.
    unlimited: frozenset[str] = frozenset()
    moves: tuple[Move, ...] = ()
    groups: tuple[GroupFacts, ...] = ()
    not_asked: tuple[NotAsked, ...] = ()

    def fenced(self) -> set[int]:
        """Brokers that are registered, and do not live."""
        return set() if self.cluster is None else {each.broker_id for each in self.cluster.brokers if each.fenced}

    def local_node(self, role: str, node_id: int) -> LocalNode | None:
        """The node's process on this machine, if the cluster is of this machine."""
        return next((node for node in self.local if (node.role, node.node_id) == (role, node_id)), None)

    def hung(self, broker_id: int) -> bool:
        """Does this fenced broker's process run without doing anything?"""
        local, tried = self.local_node("broker", broker_id), self.fenced_brokers.get(broker_id)
        if local is not None:
            return local.pid is not None
        return tried is not None and tried.trouble is Trouble.SILENT

    def nodes(self) -> tuple[tuple[str, NodeDescription], ...]:
        """("broker 1", what it said) of every process that said something, by role and id."""
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
