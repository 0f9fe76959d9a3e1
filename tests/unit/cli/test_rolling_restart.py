"""A rolling restart of a stand-in cluster: its steps, their order, and untouched nodes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster_models import PartitionDescription, QuorumInfo, QuorumReplica
from headrace.errors import ClusterStartError, IllegalStateError, InvalidArgumentError
from headrace.models import BrokerInfo
from headrace_tools.local.state import ClusterState, Node
from headrace_tools.rolling.restarting import RollingRestart
from headrace_tools.rolling.rules import NodeName, PartitionSeen, Seen


class Alive:
    """A stand-in for a process: ``alive`` until it is killed."""

    def __init__(self, pid: int) -> None:
        self.pid, self.is_alive = pid, True

    def alive(self) -> bool:
        return self.is_alive

    def signal(self, number: Any) -> bool:
        raise AssertionError("a roll stops nodes through the cluster")

    def wait(self, timeout_s: float) -> bool:
        raise AssertionError("a roll stops nodes through the cluster")


class Cluster:
    """Three controllers and two brokers. ``looks_until_whole`` is the number of checks for which a replica is out of
    sync after a restart of a broker. ``broken`` are nodes that do not start again."""

    def __init__(self, directory: Path, *, looks_until_whole: int = 2) -> None:
        self.directory = directory
        (directory / "config").mkdir()
        names = [("controller", 1), ("controller", 2), ("controller", 3), ("broker", 1), ("broker", 2)]
        self._nodes = {
            (role, number): Node(role, number, "127.0.0.1", 9_000 + at, 9_100 + at, (), Alive(100 + at))
            for at, (role, number) in enumerate(names)
        }
        self._looks_until_whole = looks_until_whole
        self._missing: dict[int, int] = {}
        self.leader = 1
        self.happened: list[str] = []
        self.broken: set[str] = set()
        self.on_restart: Callable[[], object] = lambda: None

    def state(self) -> ClusterState:
        return ClusterState("ours", tuple(self._nodes.values()), {})

    def miss(self, broker: int, looks: int) -> None:
        self._missing[broker] = looks

    def kill(self, role: str, node_id: int) -> None:
        process = self._nodes[role, node_id].process
        assert isinstance(process, Alive)
        process.is_alive = False

    def restart(self, role: str, node_id: int) -> Node:
        assert not self._missing, f"{role} {node_id} is stopped while copies are missing"
        name = f"{role} {node_id}"
        self.happened.append(name)
        self.on_restart()
        if name in self.broken:
            self.kill(role, node_id)
            raise ClusterStartError(f"{name} ended before it served")
        if role == "broker" and self._looks_until_whole:
            self._missing[node_id] = self._looks_until_whole
        elif role == "controller" and node_id == self.leader:
            self.leader = 2
        self._nodes[role, node_id] = dataclasses.replace(
            self._nodes[role, node_id], process=Alive(200 + len(self.happened))
        )
        return self._nodes[role, node_id]

    def look(self, state: ClusterState) -> Seen:
        away = set(self._missing)
        self._missing = {broker: looks - 1 for broker, looks in self._missing.items() if looks > 1}
        part = PartitionDescription(0, 1, 1, (1, 2), tuple({1, 2} - away))
        far = 9.0e15  # later than any return
        voters = tuple(QuorumReplica(number, b"v" * 16, "", 5, 0, int(far), int(far)) for number in (1, 2, 3))
        return Seen(
            nodes={NodeName(node.role, node.id): node.alive() for node in state.nodes},
            brokers=(BrokerInfo(1, "127.0.0.1", 9_003), BrokerInfo(2, "127.0.0.1", 9_004)),
            partitions=(PartitionSeen(topic="orders", described=part, min_insync=1),),
            quorum=QuorumInfo(self.leader, 7, 5, voters, ()),
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def rolling(cluster: Cluster, reported: list[str] | None = None, **changed: Any) -> RollingRestart:
    tell = ([] if reported is None else reported).append
    # the stand-in is both the restarted cluster and the inspected cluster
    return RollingRestart(cluster, cluster, tell=tell, **({"timeout_s": 60.0} | changed))  # type: ignore[arg-type]


def test_all_are_restarted_in_order_and_nobody_while_a_copy_is_missing(cluster: Cluster) -> None:
    reported: list[str] = []
    rolled = rolling(cluster, reported).run()
    assert cluster.happened == ["controller 2", "controller 3", "controller 1", "broker 1", "broker 2"]
    assert [str(each.node) for each in rolled.restarted] == cluster.happened
    assert [each.pid for each in rolled.restarted] == [201, 202, 203, 204, 205]
    assert rolled.left == rolled.notes == ()
    assert all(each.whole_s is not None for each in rolled.restarted)
    assert [line for line in reported if line.startswith("[")] == [
        f"[{number}/5] {name}: restarting" for number, name in enumerate(cluster.happened, start=1)
    ]


def test_only_the_roles_that_are_asked_for_are_restarted(cluster: Cluster) -> None:
    assert [str(each.node) for each in rolling(cluster).run(["broker"]).restarted] == ["broker 1", "broker 2"]
    with pytest.raises(InvalidArgumentError, match="has no coordinator"):
        rolling(cluster).run(["coordinator"])


def test_a_cluster_that_is_not_whole_is_refused_and_nothing_is_stopped(cluster: Cluster) -> None:
    cluster.miss(2, looks=1_000)
    with pytest.raises(IllegalStateError, match=r"nothing was restarted.*not in sync on broker 2: orders-0"):
        rolling(cluster, settle_s=0.0).run()
    cluster.miss(2, looks=1)
    cluster.kill("controller", 3)
    # at once, because waiting does not bring the node back
    with pytest.raises(IllegalStateError, match="controller 3 is not running"):
        rolling(cluster, settle_s=3_600.0, timeout_s=3_600.0).run(["broker"])
    assert cluster.happened == []


def test_a_cluster_that_has_only_just_come_up_is_given_a_moment(cluster: Cluster) -> None:
    cluster.miss(2, looks=3)
    assert len(rolling(cluster).run(["broker"]).restarted) == 2


def test_a_node_that_does_not_come_back_ends_it_and_the_others_are_left_alone(cluster: Cluster) -> None:
    reported: list[str] = []
    cluster.broken = {"controller 3"}
    with pytest.raises(ClusterStartError, match="controller 3 ended before it served"):
        rolling(cluster, reported).run()
    assert cluster.happened == ["controller 2", "controller 3"]
    assert reported[-1].endswith("Restarted: controller 2; not restarted: controller 1, broker 1, broker 2")


def test_a_cluster_that_does_not_become_whole_again_ends_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, looks_until_whole=1_000)
    wanted = "after the restart of broker 1 the cluster is not healthy: not in sync on broker 1: orders-0"
    with pytest.raises(IllegalStateError, match=re.escape(wanted)) as caught:
        rolling(cluster, timeout_s=0.5).run(["broker"])
    assert "Restarted: broker 1; not restarted: broker 2" in caught.value.message
    assert cluster.happened == ["broker 1"]


def test_when_it_is_to_end_it_waits_for_the_node_and_for_nothing_else(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, looks_until_whole=1_000)
    ends: list[bool] = []
    cluster.on_restart = lambda: ends.append(True)
    rolled = rolling(cluster, ends=lambda: bool(ends), timeout_s=3_600.0).run(["broker"])
    assert [(str(each.node), each.whole_s) for each in rolled.restarted] == [("broker 1", None)]
    assert rolled.left == (NodeName("broker", 2),)
    assert rolling(cluster, ends=lambda: True, timeout_s=3_600.0).run(["broker"]).restarted == ()


def test_two_rolls_of_one_cluster_do_not_meet(cluster: Cluster) -> None:
    refused: list[str] = []

    def another() -> None:
        with pytest.raises(IllegalStateError) as caught:
            rolling(cluster).run()
        refused.append(caught.value.message)

    cluster.on_restart = another
    assert len(rolling(cluster).run(["broker"]).restarted) == 2
    assert ["being restarted by another" in message for message in refused] == [True, True]
    cluster.on_restart = lambda: None
    assert len(rolling(cluster).run(["broker"]).restarted) == 2  # the lock is gone with its holder
