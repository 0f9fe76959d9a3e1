"""Collect the state of a local cluster, for the decisions in rules.py."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

from headrace.cluster_models import ClusterDescription, ConfigResource, TopicDescription
from headrace_core.errors import HeadraceError

from ..local.state import ClusterState
from .rules import NodeName, PartitionSeen, Seen

if TYPE_CHECKING:
    from headrace.admin import Admin

T = TypeVar("T")

#: Timeout of one request, in seconds.
_TIMEOUT_S = 5.0

#: Number of topics per describe_configs request.
_TOPICS_AT_ONCE = 500


class Looking:
    """Collects facts about a cluster through ``client``; a request that fails or takes longer than _TIMEOUT_S is
    noted."""

    def __init__(self, client: Admin) -> None:
        self._client = client
        self._unanswered: list[str] = []

    def look(self, state: ClusterState) -> Seen:
        """Collect all facts. ``look`` takes some round trips, or seconds while nodes are down."""
        client, timeout_s = self._client, _TIMEOUT_S
        self._unanswered = []
        nodes = {NodeName(node.role, node.id): node.alive() for node in state.nodes}
        # Request the partitions before the cluster's description: if one node answers both requests, the partitions are
        # not older than the metadata age in the description.
        topics = self._ask("topics", lambda: client.describe_topics(timeout=timeout_s)) or []
        moving = self._ask("reassignments", lambda: client.list_partition_reassignments(timeout=timeout_s)) or {}
        adding = {
            (where.topic, where.partition): frozenset(move.adding_replicas) for where, move in moving.items()
        }  # fmt: skip
        min_insync = self._min_insync(topics)
        cluster = self._ask(
            "the cluster", lambda: client.describe_cluster(include_fenced_brokers=True, timeout=timeout_s)
        )
        if cluster is not None and cluster.cluster_id != state.cluster_id:
            self._unanswered.append(
                f"the node at {state.bootstrap_servers} belongs to cluster {cluster.cluster_id}, not to "
                f"{state.cluster_id}"
            )
        cluster = cluster or ClusterDescription(state.cluster_id, -1, ())
        quorum = self._ask("the quorum", lambda: client.describe_quorum(timeout=timeout_s))
        return Seen(
            nodes=nodes,
            age_ms=cluster.metadata_lag_ms,
            brokers=cluster.brokers,
            coordinators=cluster.coordinators,
            partitions=tuple(
                PartitionSeen(
                    topic=topic.name,
                    described=part,
                    adding=adding.get((topic.name, part.partition), frozenset()),
                    min_insync=min_insync.get(topic.name),
                )
                for topic in topics
                for part in topic.partitions
            ),
            quorum=quorum,
            unowned=self._unowned(state),
            unanswered=tuple(self._unanswered),
        )

    def _min_insync(self, topics: Collection[TopicDescription]) -> dict[str, int]:
        found = {}
        names = [topic.name for topic in topics]
        for start in range(0, len(names), _TOPICS_AT_ONCE):
            some = [ConfigResource("topic", name) for name in names[start : start + _TOPICS_AT_ONCE]]
            entries = self._ask(
                "configurations of topics",
                lambda some=some: self._client.describe_configs(some, timeout=_TIMEOUT_S),  # type: ignore[misc]
            )
            for resource, values in (entries or {}).items():
                found[resource.name] = int(values["min.insync.replicas"].value)
        return found

    def _unowned(self, state: ClusterState) -> str | None:
        """The reason why a partition of ``__consumer_offsets`` has no coordinator; None if every partition has one, or
        if the cluster has no coordinators. Listing groups fails until each partition of ``__consumer_offsets`` has a
        coordinator."""
        if not state.of_role("coordinator"):
            return None
        try:
            self._client.list_groups(timeout=_TIMEOUT_S)
        except HeadraceError as error:
            return f"{error.message} [{error.code}]"
        return None

    def _ask(self, what: str, question: Callable[[], T]) -> T | None:
        try:
            return question()
        except HeadraceError as error:
            self._unanswered.append(f"no node describes {what}: {error.message} [{error.code}]")
            return None
