"""The properties of a local cluster's nodes, such as the number of replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_tools.local import nodes
from headrace_tools.local.directory import DEFAULT_BROKERS, DEFAULT_CONTROLLERS, DEFAULT_COORDINATORS
from headrace_tools.local.state import ClusterState, Node

FACTOR, MINIMUM = "default.replication.factor", "min.insync.replicas"


def properties(brokers: int, **config: str) -> dict[str, str]:
    """The properties of the controller in a cluster with this number of brokers."""
    made = tuple(
        Node(role=role, id=number, host="h", port=1, internal_port=2, data_dirs=("/d",))
        for role, count in (("controller", 1), ("broker", brokers))
        for number in range(1, count + 1)
    )
    keys = {key.replace("_", "."): value for key, value in config.items()}
    return nodes.properties(ClusterState(cluster_id="c", nodes=made, config=keys), made[0], Path("/d"))


@pytest.mark.parametrize(
    ("brokers", "factor", "minimum"), [(1, "1", None), (2, "2", None), (3, "3", "2"), (5, "3", "2")]
)
def test_there_are_three_where_there_are_three_brokers_and_two_must_have_a_record(
    brokers: int, factor: str, minimum: str | None
) -> None:
    found = properties(brokers)
    assert (found[FACTOR], found.get(MINIMUM)) == (factor, minimum)


def test_what_the_user_says_comes_last() -> None:
    found = properties(3, default_replication_factor="1", min_insync_replicas="1")
    assert (found[FACTOR], found[MINIMUM]) == ("1", "1")


def test_a_new_classic_group_waits_a_moment_for_members_that_start_together() -> None:
    coordinator = Node(role="coordinator", id=1, host="h", port=1, internal_port=2, data_dirs=("/d",))
    found = nodes.properties(ClusterState(cluster_id="c", nodes=(coordinator,), config={}), coordinator, Path("/d"))
    assert 100 <= int(found["group.initial.rebalance.delay.ms"]) <= 500


def test_a_new_cluster_has_three_of_each_and_a_coordinator() -> None:
    assert (DEFAULT_BROKERS, DEFAULT_CONTROLLERS, DEFAULT_COORDINATORS) == (3, 3, 1)
