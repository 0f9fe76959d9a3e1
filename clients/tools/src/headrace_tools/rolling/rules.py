"""Decide when the next node may be stopped, and which node is next. All functions of the module are pure: they derive
reasons from facts.

The order of restarts is: controllers (the active controller last), then brokers, then coordinators,
then registries; within a role by id.

* **Controllers** are restarted first, as in an upgrade (docs/operations/upgrades.md). Nodes register with the versions
  that they support, and controllers must not be older than other nodes. It is safest to begin with a controller,
  because a controller that does not come back affects no client.
* **The active controller** is the last of the controllers, because stopping a leader costs an election. If the active
  controller were stopped earlier, the leadership might move to a controller that is stopped next, and cost another
  election.
* **Coordinators** are restarted after the brokers: a new coordinator reads its partitions of ``__consumer_offsets``
  from their leaders. After the restart of all brokers the leaders no longer change.
* **Registries** are restarted last, because they may use calls that older brokers do not have.

Before a node is stopped, the cluster must be healthy: every node is alive, every replica is in sync,
and every voter is caught up. Every partition of ``__consumer_offsets`` must have a coordinator. A healthy cluster
tolerates one failure, wherever there is redundancy: partitions keep min.insync.replicas, voters keep a majority, and
another coordinator takes over a failed coordinator's groups. Where there is no redundancy (a topic with one replica, a
sole controller or coordinator), waiting does not help. The roll reports a lack of redundancy (``unavoidable``) and
continues. Kubernetes operators for Kafka follow the same rules for the order of restarts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.cluster_models import CoordinatorInfo, PartitionDescription, QuorumInfo
from headrace.models import BrokerInfo
from headrace_core.plurals import counted

#: All roles, in the order in which they are restarted.
TURNS = ("controller", "broker", "coordinator", "registry")

#: Milliseconds without a fetch from a voter after which `roll` treats the voter as absent.
VOTER_SILENT_MS = 10_000
#: Maximum number of partitions that a message names; the message counts the remaining partitions.
_NAMED_MAX = 3


@dataclass(frozen=True, slots=True, order=True)
class NodeName:
    role: str
    node_id: int

    def __str__(self) -> str:
        return f"{self.role} {self.node_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSeen:
    """A partition. ``adding``: brokers that a reassignment adds, whose replicas are expected to be incomplete;
    ``min_insync``: min.insync.replicas of the topic (None: unknown)."""

    topic: str
    described: PartitionDescription
    adding: frozenset[int] = frozenset()
    min_insync: int | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.described.partition}"

    @property
    def copies(self) -> frozenset[int]:
        """The ids of brokers that should have a complete replica now."""
        return frozenset(self.described.replicas) - self.adding


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The state of a cluster at one moment, as far as a rolling restart needs it. ``nodes``: whether each node of
    cluster.json is running. ``age_ms``: upper limit of the age of the facts about brokers and partitions (None:
    unknown). ``unowned``: why a partition of ``__consumer_offsets`` has no coordinator; None if every partition has
    one. ``unanswered``: requests that failed, so that the facts from their answers are unknown."""

    nodes: Mapping[NodeName, bool]
    age_ms: float | None = 0.0
    brokers: tuple[BrokerInfo, ...] = ()
    coordinators: tuple[CoordinatorInfo, ...] = ()
    partitions: tuple[PartitionSeen, ...] = ()
    quorum: QuorumInfo | None = None
    unowned: str | None = None
    unanswered: tuple[str, ...] = ()

    def of_role(self, role: str) -> tuple[NodeName, ...]:
        return tuple(sorted(name for name in self.nodes if name.role == role))


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A restarted node that had served again for ``ago_ms`` when the facts were collected. Nodes' wall clocks may
    differ, so ages are compared, each measured by one clock."""

    node: NodeName
    ago_ms: float


@dataclass(slots=True)
class _Reasons:
    """Sentences without duplicates."""

    found: list[str] = field(default_factory=list)

    def add(self, sentences: Iterable[str]) -> None:
        self.found += [each for each in sentences if each not in self.found]


def next_node(waiting: Collection[NodeName], leader_id: int | None) -> NodeName:
    """Choose the next of the ``waiting`` nodes (there is at least one). ``leader_id``: id of the active controller;
    None: unknown."""
    return min(
        waiting,
        key=lambda name: (
            TURNS.index(name.role),
            name.role == "controller" and name.node_id == leader_id,
            name.node_id,
        ),
    )


def not_whole(seen: Seen, returned: Returned | None = None) -> list[str]:
    """The reasons why the cluster is not healthy; empty if it is healthy. ``returned``: the node that was restarted
    last. The check ignores information that may be older than the node's return, and a catch-up before the return."""
    reasons = _Reasons()
    reasons.add(f"{name} is not running" for name, runs in sorted(seen.nodes.items()) if not runs)
    reasons.add(seen.unanswered)
    if seen.unanswered:
        return reasons.found  # return, because without these answers the checks below would report missing nodes
    reasons.add(_brokers_missing(seen, returned))
    reasons.add(_partitions_short(seen))
    reasons.add(_quorum_short(seen, returned))
    reasons.add(_shards_short(seen))
    return reasons.found


def unavoidable(seen: Seen, nodes: Collection[NodeName]) -> list[str]:
    """Effects that clients will notice while ``nodes`` restart, because no other node can take over; the roll reports
    these effects before it begins."""
    notes = []
    brokers = {name.node_id for name in nodes if name.role == "broker"}
    helpless = [part for part in seen.partitions if _is_helpless(part) and brokers & part.copies]
    sole = [part.name for part in helpless if len(part.copies) == 1]
    if sole:
        notes.append(f"{_some(sole)}: one replica each, so clients cannot read or write while its broker restarts")
    tight = [part.name for part in helpless if len(part.copies) > 1]
    if tight:
        notes.append(
            f"{_some(tight)}: acks=all fails while one of its brokers restarts, because min.insync.replicas equals "
            "the number of replicas"
        )
    controllers = seen.of_role("controller")
    if len(controllers) < 3 and any(name.role == "controller" for name in nodes):
        notes.append(
            f"with {counted(len(controllers), 'controller')} there is no majority while one restarts: metadata "
            "changes wait, clients still read and write"
        )
    if len(seen.of_role("coordinator")) == 1 and any(name.role == "coordinator" for name in nodes):
        notes.append("there is one coordinator: groups wait while it restarts")
    if len(seen.of_role("registry")) == 1 and any(name.role == "registry" for name in nodes):
        notes.append("there is one registry: requests for schemas wait while it restarts")
    return notes


def _is_helpless(part: PartitionSeen) -> bool:
    """Whether the loss of one replica leaves fewer than min.insync.replicas replicas, even if all replicas are in
    sync."""
    return len(part.copies) <= (part.min_insync or 1)


def _brokers_missing(seen: Seen, returned: Returned | None) -> Iterator[str]:
    live = {each.broker_id for each in seen.brokers if not each.fenced}
    for name in seen.of_role("broker"):
        if name.node_id not in live:
            yield f"{name} is not registered as alive"
    if returned is not None and (seen.age_ms is None or seen.age_ms > returned.ago_ms):
        age = "not known" if seen.age_ms is None else f"up to {seen.age_ms:.0f} ms"
        yield f"the metadata may be older than the start of {returned.node} (its age is {age})"


def _partitions_short(seen: Seen) -> Iterator[str]:
    leaderless = [part.name for part in seen.partitions if part.described.leader < 0]
    if leaderless:
        yield f"nobody leads {_some(leaderless)}"
    missing: dict[tuple[int, ...], list[str]] = {}
    for part in seen.partitions:
        away = tuple(sorted(part.copies - set(part.described.isr)))
        if away and part.described.leader >= 0:
            missing.setdefault(away, []).append(part.name)
    for away, names in sorted(missing.items()):
        brokers = f"broker{'' if len(away) == 1 else 's'} {', '.join(map(str, away))}"
        yield f"not in sync on {brokers}: {_some(names)}"


def _quorum_short(seen: Seen, returned: Returned | None) -> Iterator[str]:
    quorum = seen.quorum
    if quorum is None:
        yield "no controller is active"
        return
    now_ms = next((v.last_fetch_timestamp_ms for v in quorum.voters if v.replica_id == quorum.leader_id), None)
    if now_ms is None:  # without the leader's time, ages are unknown, because ages are measured by the leader's clock
        yield f"controller {quorum.leader_id} is not active yet"
        return
    voters = {voter.replica_id: voter for voter in quorum.voters}
    for name in seen.of_role("controller"):
        if name.node_id not in voters:
            yield f"{name} is not a voter (`headrace up` makes it one)"
    for number, voter in sorted(voters.items()):
        last_fetch, caught_up = voter.last_fetch_timestamp_ms, voter.last_caught_up_timestamp_ms
        if last_fetch is None or caught_up is None:
            yield f"controller {number} has not caught up since controller {quorum.leader_id} became leader"
        elif now_ms - last_fetch > VOTER_SILENT_MS:
            yield f"controller {number} sent nothing for {(now_ms - last_fetch) / 1000:.0f} s"
        elif now_ms - caught_up > VOTER_SILENT_MS:
            yield f"controller {number} has been behind for {(now_ms - caught_up) / 1000:.0f} s"
        elif (
            returned is not None
            and returned.node == NodeName("controller", number)
            and now_ms - caught_up > returned.ago_ms
        ):
            yield f"controller {number} has not caught up since its start"


def _shards_short(seen: Seen) -> Iterator[str]:
    wanted = seen.of_role("coordinator")
    live = {each.coordinator_id for each in seen.coordinators if not each.draining}
    for name in wanted:
        if name.node_id not in live:
            yield f"{name} is not registered as alive"
    if wanted and seen.unowned is not None:
        yield f"groups without a coordinator: {seen.unowned}"


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
