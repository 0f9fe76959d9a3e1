"""LocalCluster and the pytest fixtures, as a user's own tests use them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.errors import ClusterStartError, IllegalStateError, InvalidArgumentError, UnsupportedVersionError
from headrace.local import ClusterDirectory


def _send(cluster: LocalCluster, values: list[bytes]) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        for future in [producer.send("events", value=value, partition=0) for value in values]:
            future.result(timeout=30)


def _read(cluster: LocalCluster, count: int) -> list[bytes | None]:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer:
        consumer.assign([TopicPartition("events", 0)])
        consumer.seek(TopicPartition("events", 0), 0)
        values: list[bytes | None] = []
        deadline = time.monotonic() + 30
        while len(values) < count and time.monotonic() < deadline:
            values += [record.value for record in consumer.poll(timeout=1.0)]
        return values


def _commit(cluster: LocalCluster, offset: int) -> None:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id="readers") as consumer:
        consumer.commit({TopicPartition("events", 0): offset})


def _committed(cluster: LocalCluster) -> int | None:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id="readers") as consumer:
        return consumer.committed(TopicPartition("events", 0))


def _eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _alive(pid: int) -> bool:
    try:
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_cluster_lasts_as_long_as_its_block_and_leaves_nothing() -> None:
    with LocalCluster(brokers=1, controllers=1, coordinators=0) as cluster:
        directory = cluster.directory
        pids = [row["pid"] for row in cluster.ps()]
        _send(cluster, [b"hello"])
        assert _read(cluster, 1) == [b"hello"]
        assert "NodeStarted" in cluster.log("broker", 1)
    assert not directory.exists()
    assert not [pid for pid in pids if _alive(pid)]
    with pytest.raises(IllegalStateError):
        _ = cluster.bootstrap_servers


def test_acknowledged_records_survive_the_kill_of_every_node(headrace_cluster: LocalCluster) -> None:
    cluster = headrace_cluster
    values = [b"%d" % number for number in range(100)]
    _send(cluster, values)
    _commit(cluster, 70)
    before = {(row["role"], row["id"]): row for row in cluster.ps()}
    cluster.kill("broker", 1)
    cluster.kill("controller", 1)
    cluster.kill("coordinator", 1)
    assert [row["pid"] for row in cluster.ps()] == [None, None, None]
    cluster.restart("controller", 1)
    cluster.restart("broker", 1)
    cluster.restart("coordinator", 1)
    assert _read(cluster, 100) == values
    assert _committed(cluster) == 70
    for row in cluster.ps():
        old = before[row["role"], row["id"]]
        assert (row["address"], row["data_dirs"]) == (old["address"], old["data_dirs"])
        assert row["pid"] != old["pid"]


def test_a_paused_broker_answers_again_when_it_is_resumed(headrace_cluster: LocalCluster) -> None:
    cluster = headrace_cluster
    _send(cluster, [b"before"])
    cluster.pause("broker", 1)
    (stat,) = [Path(f"/proc/{row['pid']}/stat") for row in cluster.ps() if row["role"] == "broker"]
    assert _eventually(lambda: b") T" in stat.read_bytes())
    cluster.resume("broker", 1)
    _send(cluster, [b"after"])
    assert _read(cluster, 2) == [b"before", b"after"]


def test_data_given_is_kept_and_found_again(tmp_path: Path) -> None:
    with LocalCluster(
        brokers=1, controllers=1, coordinators=0, data=tmp_path / "kept", config={"log_flush": "os"}
    ) as cluster:
        _send(cluster, [b"kept"])
        first = cluster.bootstrap_servers
        with pytest.raises(IllegalStateError, match="running already"):
            LocalCluster(data=tmp_path / "kept").start()
        assert "log.flush=os" in (tmp_path / "kept" / "config" / "broker-1.properties").read_text()
    with LocalCluster(data=tmp_path / "kept", brokers=2) as cluster:  # and one broker more
        assert cluster.bootstrap_servers.split(",")[0] == first
        assert [(row["role"], row["id"]) for row in cluster.ps()] == [("controller", 1), ("broker", 1), ("broker", 2)]
        assert _read(cluster, 1) == [b"kept"]
    with pytest.raises(InvalidArgumentError, match="keeps its topology"):
        LocalCluster(data=tmp_path / "kept", brokers=1).start()


def test_what_cannot_be_is_refused_with_its_reason() -> None:
    with pytest.raises(InvalidArgumentError, match="mode='magic'"):
        LocalCluster(mode="magic")  # type: ignore[arg-type]


def test_a_cluster_within_this_process(tmp_path: Path) -> None:
    """Up at once; kept data is found again by a cluster of either kind; a node that was cut short starts again."""
    values = [b"%d" % number for number in range(100)]
    threads = threading.active_count()
    with LocalCluster(brokers=1, controllers=1, mode="inprocess", data=tmp_path / "kept") as cluster:
        assert [(row["role"], row["pid"]) for row in cluster.ps()] == [
            (role, os.getpid()) for role in ("controller", "broker", "coordinator")
        ]
        assert _alive_of_the_state_file(tmp_path / "kept") == []  # somebody else's `down` must not end this process
        _send(cluster, values)
        _commit(cluster, 60)
        cluster.kill("broker", 1)
        cluster.kill("coordinator", 1)
        assert [row["pid"] for row in cluster.ps()] == [os.getpid(), None, None]
        cluster.restart("broker", 1)
        cluster.restart("coordinator", 1)
        cluster.restart("controller", 1)
        assert _read(cluster, 100) == values
        assert _committed(cluster) == 60
        with pytest.raises(UnsupportedVersionError, match="paused"):
            cluster.pause("broker", 1)
    assert threading.active_count() <= threads + 2  # the client's threads stay for the next client
    with LocalCluster(data=tmp_path / "kept") as cluster:
        assert _read(cluster, 100) == values
        assert _committed(cluster) == 60


def _alive_of_the_state_file(directory: Path) -> list[str]:
    return [node.name for node in ClusterDirectory(directory).state().nodes if node.alive()]


@pytest.mark.parametrize("mode", ["process", "inprocess"])
def test_a_quorum_goes_on_without_one_of_three(mode: Literal["process", "inprocess"]) -> None:
    with (
        LocalCluster(brokers=1, controllers=3, coordinators=0, mode=mode) as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
    ):
        admin.create_topics([NewTopic("before", partitions=1)])
        leader = admin.describe_quorum().leader_id
        cluster.kill("controller", leader)
        admin.create_topics([NewTopic("after", partitions=1)])
        cluster.restart("controller", leader)
        assert _eventually(lambda: all(voter.lag == 0 for voter in admin.describe_quorum().voters))
        if mode == "process":  # a leader that stands still is no leader for long
            leader = admin.describe_quorum().leader_id
            cluster.pause("controller", leader)
            assert _eventually(lambda: admin.describe_quorum().leader_id not in (leader, -1))
            admin.create_topics([NewTopic("while-it-slept", partitions=1)])
            cluster.resume("controller", leader)
            assert _eventually(lambda: all(voter.lag == 0 for voter in admin.describe_quorum().voters))
        assert {"before", "after"} <= set(admin.list_topics())


def test_a_node_within_this_process_that_cannot_start_is_explained(tmp_path: Path) -> None:
    with LocalCluster(brokers=1, controllers=1, coordinators=0, mode="inprocess", data=tmp_path / "kept"):
        pass
    (tmp_path / "kept" / "broker-1" / "meta.properties").write_text("scribbled over\n")
    with pytest.raises(ClusterStartError, match=r"meta\.properties"):
        LocalCluster(mode="inprocess", data=tmp_path / "kept").start()
    assert _alive_of_the_state_file(tmp_path / "kept") == []


_OWNER = """
import sys, time
from headrace import LocalCluster
cluster = LocalCluster(brokers=1, controllers=1, coordinators=0).start()
print(cluster.directory, *[row["pid"] for row in cluster.ps()], flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise RuntimeError", "time.sleep(60)"])
def test_an_owner_that_never_stops_its_cluster_leaves_nothing_behind(ending: str) -> None:
    """Exit, exception, kill -9: the interpreter's end or the guardian ends the nodes and deletes the data."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER.format(ending=ending)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert owner.stdout is not None
        directory, *pids = owner.stdout.readline().split()
        assert len(pids) == 2
        if "sleep" in ending:
            assert all(_alive(int(pid)) for pid in pids)
            owner.send_signal(signal.SIGKILL)
        owner.wait(timeout=30)
        if "sleep" not in ending:
            assert not os.path.exists(directory)  # an interpreter that ends does not leave it to the guardian
        assert _eventually(lambda: not any(_alive(int(pid)) for pid in pids))
        assert _eventually(lambda: not os.path.exists(directory))
    finally:
        owner.kill()
        owner.wait()


_USER_TEST = """
def test_shared(headrace):
    assert headrace.bootstrap_servers.startswith("127.0.0.1:")
    assert [row["role"] for row in headrace.ps()] == ["controller", "broker", "coordinator"]

def test_shared_is_the_same(headrace, request):
    assert headrace is request.getfixturevalue("headrace")

def test_own(headrace, headrace_cluster):
    assert headrace.bootstrap_servers != headrace_cluster.bootstrap_servers
    headrace_cluster.kill("broker", 1)
    headrace_cluster.restart("broker", 1)
"""


def test_the_fixtures_come_with_the_package(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(_USER_TEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "3 passed" in done.stdout, done.stdout + done.stderr
