"""When may the next node be stopped, and which? Pure functions from what was seen to what stands against it.

The order: controllers, the active one last; then brokers; then coordinators; each by id.

* **Controllers first**, as with a new version (docs/operations/upgrades.md): a node registers with what it understands,
  and those who judge it must not be older than it is. It is also the cheapest to try: a controller that does not come
  back costs no client anything.
* **The active controller last**: each one that goes costs an election. In another order the leadership may fall to one
  whose turn is next, and there is an election for every controller instead of one for all of them.
* **Coordinators last**: a shard of groups that changes hands is read from its partition's leader, and by then leaders
  stay where they are.

Before a node is stopped the *whole* cluster must be whole: every node alive, every copy in sync, every voter heard and
caught up, every shard of groups owned. That is more than the node's own share, because the next failure is the one that
must not be ours; and it is enough. What has a copy to spare keeps min.insync.replicas of them without any one broker,
three voters or more keep a majority without any one of them, and a second coordinator takes the shards of the first.
What has nothing to spare (a topic with one copy, a sole controller or coordinator) no waiting can help: that is told
(``unavoidable``), and done. The rollers of Kafka's operators treat such partitions the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from headrace.models import BrokerInfo, CoordinatorInfo, PartitionDescription, QuorumInfo
from headrace_core.plurals import counted

#: In the order of their turns; also the roles that there are.
TURNS = ("controller", "broker", "coordinator")

#: A voter that its leader has not heard for so long does not count.
VOTER_SILENT_MS = 10_000
#: Names in a sentence; the rest is a number.
_NAMED_MAX = 3


@dataclass(frozen=True, slots=True, order=True)
class NodeName:
    """A node of the cluster, by its role and its id within the role."""

    role: str
    node_id: int

    def __str__(self) -> str:
        return f"{self.role} {self.node_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSeen:
    """A partition; ``adding``: brokers that a reassignment adds, which are not missed yet; ``min_insync``: its topic's
    min.insync.replicas (None: not known)."""

    topic: str
    described: PartitionDescription
    adding: frozenset[int] = frozenset()
    min_insync: int | None = None

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.described.partition}"

    @property
    def copies(self) -> frozenset[int]:
        """The brokers that should have all of it now."""
        return frozenset(self.described.replicas) - self.adding


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One look at a cluster. ``nodes``: those of cluster.json, and whether they run. ``age_ms``: how old what is said
    of brokers and partitions may be at most (None: nobody can tell). ``unowned``: why not all shards of groups are
    served, or None. ``unanswered``: questions that had no answer; what they are about is not known."""

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
    """A node that serves again: since ``at_ms`` (wall clock, the same for all nodes: they are on one machine), which
    was ``ago_ms`` before the look."""

    node: NodeName
    at_ms: float
    ago_ms: float


@dataclass(slots=True)
class _Reasons:
    """Sentences, each of them once."""

    found: list[str] = field(default_factory=list)

    def add(self, sentences: Iterable[str]) -> None:
        self.found += [each for each in sentences if each not in self.found]


def next_node(waiting: Collection[NodeName], leader_id: int | None) -> NodeName:
    """Whose turn it is among those that wait for theirs, which must be some. ``leader_id``: the active controller as of
    now; None: not known."""
    return min(
        waiting,
        key=lambda name: (
            TURNS.index(name.role),
            name.role == "controller" and name.node_id == leader_id,
            name.node_id,
        ),
    )


def not_whole(seen: Seen, returned: Returned | None = None) -> list[str]:
    """Why the cluster is not whole, or nothing. ``returned``: the node that was restarted last must be seen to be back:
    a look that may be older than its return, and a catching up before it, do not count."""
    reasons = _Reasons()
    reasons.add(f"{name} does not run" for name, runs in sorted(seen.nodes.items()) if not runs)
    reasons.add(seen.unanswered)
    if seen.unanswered:
        return reasons.found  # what was not asked looks like what is not there
    reasons.add(_brokers_missing(seen, returned))
    reasons.add(_partitions_short(seen))
    reasons.add(_quorum_short(seen, returned))
    reasons.add(_shards_short(seen))
    return reasons.found


def unavoidable(seen: Seen, nodes: Collection[NodeName]) -> list[str]:
    """What clients will notice while ``nodes`` are restarted, for there is nobody to take over; told before."""
    told = []
    brokers = {name.node_id for name in nodes if name.role == "broker"}
    helpless = [part for part in seen.partitions if _is_helpless(part) and brokers & part.copies]
    sole = [part.name for part in helpless if len(part.copies) == 1]
    if sole:
        told.append(f"while its broker restarts nobody reads or writes {_some(sole)}: one copy each")
    tight = [part.name for part in helpless if len(part.copies) > 1]
    if tight:
        told.append(
            f"while one of its brokers restarts {_some(tight)} refuses acks=all: min.insync.replicas is as many as "
            "there are copies"
        )
    controllers = seen.of_role("controller")
    if len(controllers) < 3 and any(name.role == "controller" for name in nodes):
        told.append(
            f"with {counted(len(controllers), 'controller')} there is no majority while one restarts: metadata changes "
            "wait, records flow"
        )
    if len(seen.of_role("coordinator")) == 1 and any(name.role == "coordinator" for name in nodes):
        told.append("there is one coordinator: groups wait while it restarts")
    return told


def _is_helpless(part: PartitionSeen) -> bool:
    """Has it no copy to spare, even when all are in sync?"""
    return len(part.copies) <= (part.min_insync or 1)


def _brokers_missing(seen: Seen, returned: Returned | None) -> Iterator[str]:
    live = {each.broker_id for each in seen.brokers if not each.fenced}
    for name in seen.of_role("broker"):
        if name.node_id not in live:
            yield f"{name} is not registered as alive"
    if returned is not None and (seen.age_ms is None or seen.age_ms > returned.ago_ms):
        age = "not known" if seen.age_ms is None else f"up to {seen.age_ms:.0f} ms"
        yield f"what is known of the cluster may be from before {returned.node} was back (its age is {age})"


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
        yield "no controller leads"
        return
    now_ms = next((v.last_fetch_timestamp_ms for v in quorum.voters if v.replica_id == quorum.leader_id), None)
    if now_ms is None:  # ages are by the leader's own clock, or not known
        yield f"controller {quorum.leader_id} does not lead yet"
        return
    voters = {voter.replica_id: voter for voter in quorum.voters}
    for name in seen.of_role("controller"):
        if name.node_id not in voters:
            yield f"{name} has no vote (`headrace up` makes it a voter)"
    for number, voter in sorted(voters.items()):
        heard, caught_up = voter.last_fetch_timestamp_ms, voter.last_caught_up_timestamp_ms
        if heard is None or caught_up is None:
            yield f"controller {number} has not caught up since controller {quorum.leader_id} leads"
        elif now_ms - heard > VOTER_SILENT_MS:
            yield f"controller {number} has not been heard for {(now_ms - heard) / 1000:.0f} s"
        elif now_ms - caught_up > VOTER_SILENT_MS:
            yield f"controller {number} is behind for {(now_ms - caught_up) / 1000:.0f} s"
        elif returned is not None and returned.node == NodeName("controller", number) and caught_up < returned.at_ms:
            yield f"controller {number} has not caught up since it is back"


def _shards_short(seen: Seen) -> Iterator[str]:
    wanted = seen.of_role("coordinator")
    live = {each.coordinator_id for each in seen.coordinators if not each.draining}
    for name in wanted:
        if name.node_id not in live:
            yield f"{name} is not registered as alive"
    if wanted and seen.unowned is not None:
        yield f"not all groups are served: {seen.unowned}"


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
