"""`headrace up` with its defaults (three brokers, three controllers, a coordinator): replicas, elections,
reassignments, and the death of a broker. All tests of the file use one cluster. The tests run in the order of the file,
because the last test kills a broker.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.waiting import until

TIMEOUT_S = 90.0


class Cluster:
    """A cluster at the command line."""

    def __init__(self, cli: Callable[..., Any], data: Path) -> None:
        self._cli, self.data = cli, data
        started = self._cli(
            "up", "--data", data, "--port", "0", "--kafka-port", "0", "-d", "--timeout", "90", "-o", "json"
        )
        self.bootstrap: str = started.json()["bootstrap_servers"]

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> Any:
        return self._cli(*arguments, stdin=stdin, bootstrap=self.bootstrap, code=code)

    def json(self, *arguments: str) -> Any:
        return self(*arguments, "-o", "json").json()

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._cli("ps", "--data", self.data, "-o", "json").json()
        return found

    def end(self, broker: int, how: signal.Signals) -> None:
        """Wait until the process has ended."""
        os.kill(next(n["pid"] for n in self.nodes() if (n["role"], n["id"]) == ("broker", broker)), how)
        until(
            lambda: {"role": "broker", "id": broker, "pid": None}.items() <= self._node(broker).items(),
            "gone",
            TIMEOUT_S,
        )

    def _node(self, broker: int) -> dict[str, Any]:
        return next(node for node in self.nodes() if (node["role"], node["id"]) == ("broker", broker))

    def restart(self, broker: int) -> None:
        self._cli("restart", "--data", self.data, "broker", str(broker), "--timeout", "90")

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("topics", "describe", topic)["partitions"]
        return found

    def is_whole(self, topic: str) -> bool:
        return all(not row["under_replicated"] for row in self.partitions(topic))

    def produce(self, topic: str, lines: list[str]) -> None:
        self("produce", "-t", topic, "-X", "acks=all", stdin="\n".join(lines).encode())

    def read(self, topic: str) -> list[str]:
        lines: list[str] = self("consume", "-t", topic, "-e", "-q").lines
        return sorted(lines)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, bare_cli: Callable[..., Any]) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("replicated") / "cluster"
    try:
        yield Cluster(bare_cli, data)
    finally:
        bare_cli("down", "--data", data, "--delete", code=None)


def test_up_starts_three_of_each_and_a_coordinator_and_a_topic_has_three_copies(cluster: Cluster) -> None:
    roles = [(node["role"], node["id"]) for node in cluster.nodes()]
    assert roles == [*((role, number) for role in ("controller", "broker") for number in (1, 2, 3)), ("coordinator", 1)]
    assert cluster.bootstrap == ",".join(node["address"] for node in cluster.nodes() if node["role"] == "broker")
    made = cluster.json("topics", "create", "copies", "-p", "3")
    assert made["replication_factor"] == 3
    lines = sorted(f"record {number}" for number in range(300))
    cluster.produce("copies", lines)
    assert cluster.read("copies") == lines
    described = cluster.json("topics", "describe", "copies")
    assert described["min_insync_replicas"] == 2
    assert sorted(row["leader"] for row in described["partitions"]) == [1, 2, 3]
    for row in described["partitions"]:
        assert sorted(row["isr"]) == sorted(row["replicas"]) == [1, 2, 3]
    assert cluster.json("topics", "describe", "--under-replicated-partitions") == []
    cluster("topics", "delete", "copies")


def test_a_leader_dies_another_is_elected_and_the_first_leads_again_when_it_is_asked_to(cluster: Cluster) -> None:
    cluster("topics", "create", "led", "-p", "1")
    before = cluster.partitions("led")[0]
    cluster.produce("led", ["before"])
    cluster.end(before["leader"], signal.SIGKILL)
    cluster.produce("led", ["after"])
    (now,) = cluster.partitions("led")
    assert now["leader"] not in (before["leader"], -1)
    assert now["leader_epoch"] > before["leader_epoch"]
    assert ("led", 0) in [
        (row["topic"], row["partition"]) for row in cluster.json("topics", "describe", "--under-replicated-partitions")
    ]
    assert cluster.json("topics", "describe", "--under-min-isr-partitions") == []
    assert cluster.json("topics", "describe", "--unavailable-partitions") == []
    dead = next(row for row in cluster.json("brokers", "list") if row["id"] == before["leader"])
    assert (dead["fenced"], dead["leaders"]) == (True, 0)
    refused = cluster("partitions", "elect", "led-0", code=1)
    assert "PREFERRED_LEADER_NOT_AVAILABLE" in refused.err

    cluster.restart(before["leader"])
    until(lambda: cluster.is_whole("led"), "in sync again", TIMEOUT_S, pause_s=0.1)
    assert cluster.read("led") == ["after", "before"]
    assert cluster.json("partitions", "elect", "led-0")[0]["elected"]
    assert cluster.partitions("led")[0]["leader"] == before["leader"]
    assert cluster.json("partitions", "elect", "led-0")[0]["error"]["code"] == "ELECTION_NOT_NEEDED"
    cluster("topics", "delete", "led")


def test_partitions_are_copied_to_other_brokers_and_get_more_copies(cluster: Cluster) -> None:
    cluster("topics", "create", "moved", "-p", "2", "-r", "1")
    lines = sorted(f"{number:05} " + "x" * 200 for number in range(5_000))
    cluster.produce("moved", lines)
    before = {row["partition"]: row["replicas"][0] for row in cluster.partitions("moved")}
    targets = {number: [each for each in (1, 2, 3) if each != before[number]] for number in (0, 1)}
    moves = [f"moved-{number}={','.join(map(str, replicas))}" for number, replicas in targets.items()]
    done = cluster.json("partitions", "reassign", *moves, "--throttle", "50000000", "--wait")
    assert done["done"] is True
    for row in cluster.partitions("moved"):
        assert (row["replicas"], sorted(row["isr"])) == (targets[row["partition"]], targets[row["partition"]])
        assert row["leader"] in targets[row["partition"]]
    assert cluster.read("moved") == lines
    assert cluster.json("partitions", "list-reassignments") == []

    cluster("partitions", "reassign", "--topic", "moved", "-r", "3", "--wait")
    assert all(len(row["isr"]) == len(row["replicas"]) == 3 for row in cluster.partitions("moved"))
    cluster("partitions", "reassign", "--topic", "moved", "-r", "1", "--wait")
    assert all(len(row["replicas"]) == 1 for row in cluster.partitions("moved"))
    assert cluster.read("moved") == lines
    refused = cluster("partitions", "reassign", "moved-0=1,9", code=1)
    assert "broker 9 is not registered" in refused.err
    cluster("topics", "delete", "moved")


def test_a_broker_is_emptied_stopped_and_forgotten(cluster: Cluster) -> None:
    cluster("topics", "create", "kept", "-p", "4", "-r", "2")
    lines = sorted(f"record {number}" for number in range(1_000))
    cluster.produce("kept", lines)
    assert any(3 in row["replicas"] for row in cluster.partitions("kept"))
    alive = cluster("brokers", "unregister", "3", code=1)
    assert "drain it first" in alive.err
    assert cluster.json("brokers", "drain", "3", "--wait")["replicas_left"] == 0
    rows = {row["id"]: row for row in cluster.json("brokers", "list")}
    assert (rows[3]["draining"], rows[3]["replicas"]) == (True, 0)
    assert all(sorted(row["isr"]) == [1, 2] for row in cluster.partitions("kept"))
    cluster.end(3, signal.SIGTERM)
    cluster("brokers", "unregister", "3", "--wait", str(TIMEOUT_S))
    assert [row["id"] for row in cluster.json("brokers", "list")] == [1, 2]
    assert cluster.read("kept") == lines
