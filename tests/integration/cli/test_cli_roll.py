"""`headrace cluster roll` on real processes that are in use. A roll is refused, interrupted or completed, and no record
is lost. All tests of the file use one cluster. The tests run in the order of the file, and each test leaves all nodes
running.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition

WAIT_S = 240


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {"offsets.topic.num.partitions": 4}
    with LocalCluster(brokers=2, controllers=3, coordinators=2, kafka=True, config=config) as running:
        yield running


def pids(cluster: LocalCluster) -> dict[tuple[str, int], int]:
    return {(row["role"], row["id"]): row["pid"] for row in cluster.ps()}


class Writer:
    """Sends numbers to partition 0 with acks=all until it is stopped, at most 500 a second."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._futures: list[Any] = []
        self._stop = threading.Event()
        self._topic = topic
        self._producer = Producer(bootstrap_servers=bootstrap, acks="all")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            self._futures += [
                self._producer.send(self._topic, b"%09d" % (len(self._futures) + more), partition=0)
                for more in range(5)
            ]  # fmt: skip

    def stop(self) -> list[Any]:
        """The outcome of every record: an exception, or the offset."""
        self._stop.set()
        self._thread.join()
        outcomes = [future.exception(WAIT_S) or future.result(0).offset for future in self._futures]
        self._producer.close()
        return outcomes


def read(bootstrap: str, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with Consumer(bootstrap_servers=bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        while len(found) < count:
            some = [bytes(record.value) for record in consumer.poll(60)]
            assert some, f"{count - len(found)} of {count} records do not come"
            found += some
        return found + [bytes(record.value) for record in consumer.poll(0.2)]


def test_a_cluster_with_a_dead_node_is_left_as_it_is(cluster: LocalCluster, bare_cli: Callable[..., Any]) -> None:
    with cluster.killed("coordinator", 2):
        before = pids(cluster)
        refused = bare_cli("cluster", "roll", "--data", cluster.directory, code=1, timeout_s=WAIT_S)
        assert "nothing was restarted" in refused.err
        assert "coordinator 2 is not running" in refused.err
        assert pids(cluster) == before


def test_ctrl_c_ends_it_between_two_nodes_and_leaves_all_of_them_running(cluster: LocalCluster, program: str) -> None:
    before = pids(cluster)
    arguments = [program, "cluster", "roll", "--data", str(cluster.directory), "--role", "controller"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE_")}
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as rolling:
        assert rolling.stderr is not None
        first = rolling.stderr.readline()
        assert first.startswith("[1/3] controller "), first
        rolling.send_signal(signal.SIGINT)  # while the node is being stopped, or started
        out, err = rolling.communicate(timeout=WAIT_S)
    assert rolling.returncode == 130, err
    assert "not restarted: controller " in out
    after = pids(cluster)
    assert None not in after.values()
    # a slow machine may deliver the signal when the next node is being restarted
    assert err.partition("it ends as soon as")[2].count(": restarting") <= 1, "no further node is begun"
    begun = [line.split()[1:3] for line in (first, *err.splitlines()) if line.endswith(("restarting", "restarting\n"))]
    assert {name for name in before if before[name] != after[name]} == {
        (role, int(number.rstrip(":"))) for role, number in begun
    }


@pytest.mark.long
def test_every_node_is_restarted_under_a_producer_and_nothing_is_lost_or_fails(
    cluster: LocalCluster, bare_cli: Callable[..., Any]
) -> None:
    bootstrap = cluster.bootstrap_servers
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("rolled", partitions=1, replication_factor=2)])
    with Consumer(bootstrap_servers=bootstrap, group_id="there-are-shards") as member:
        member.assign([TopicPartition("rolled", 0)])
        member.commit({TopicPartition("rolled", 0): 0})
    before = pids(cluster)
    writer = Writer(bootstrap, "rolled")
    try:
        rolled = bare_cli("cluster", "roll", "--data", cluster.directory, "-o", "json", timeout_s=WAIT_S)
    finally:
        outcomes = writer.stop()
    summary = rolled.json()
    assert summary["left"] == summary["notes"] == []
    names = [(row["role"], row["id"]) for row in summary["restarted"]]
    assert sorted(names[:3]) == [("controller", number) for number in (1, 2, 3)]
    assert names[3:] == [(role, number) for role in ("broker", "coordinator") for number in (1, 2)]
    assert {name: row["pid"] for name, row in zip(names, summary["restarted"], strict=True)} == pids(cluster)
    assert all(before[name] != pid for name, pid in pids(cluster).items())
    failed = [outcome for outcome in outcomes if not isinstance(outcome, int)]
    assert (failed[:3], outcomes) == ([], list(range(len(outcomes))))
    assert len(outcomes) > 100
    assert read(bootstrap, "rolled", len(outcomes)) == [b"%09d" % number for number in range(len(outcomes))]
    with Consumer(bootstrap_servers=bootstrap, group_id="there-are-shards") as member:
        assert member.committed([TopicPartition("rolled", 0)])[TopicPartition("rolled", 0)].offset == 0
