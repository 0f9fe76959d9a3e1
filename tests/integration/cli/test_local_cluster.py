"""LocalCluster and the pytest fixtures, as a user's own tests use them."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace.errors import ClusterStartError, IllegalStateError, InvalidArgumentError, UnsupportedVersionError
from headrace_tools.local import ClusterDirectory
from headrace_tools.local.directory import Topology
from headrace_tools.local.processes import ProcessId, identify
from tests.worlds.readers import read_to_end
from tests.worlds.waiting import until

_ROOT = Path(__file__).parents[3]


def _send(cluster: LocalCluster, values: list[bytes]) -> None:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, acks="all") as producer:
        for future in [producer.send("events", value=value, partition=0) for value in values]:
            future.result(timeout=60)


def _read(cluster: LocalCluster) -> list[bytes | None]:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer:
        consumer.assign([TopicPartition("events", 0)])
        consumer.seek(TopicPartition("events", 0), 0)
        return [record.value for record in read_to_end(consumer)]


def _commit(cluster: LocalCluster, offset: int) -> None:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id="readers") as consumer:
        consumer.commit({TopicPartition("events", 0): offset})


def _committed(cluster: LocalCluster) -> int | None:
    with Consumer(bootstrap_servers=cluster.bootstrap_servers, group_id="readers") as consumer:
        return consumer.committed(TopicPartition("events", 0))


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
        assert _read(cluster) == [b"hello"]
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
    assert _read(cluster) == values
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
    until(lambda: b") T" in stat.read_bytes(), within_s=20)
    cluster.resume("broker", 1)
    _send(cluster, [b"after"])
    assert _read(cluster) == [b"before", b"after"]


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
        assert _read(cluster) == [b"kept"]
    with pytest.raises(InvalidArgumentError, match="nodes can only be added"):
        LocalCluster(data=tmp_path / "kept", brokers=1).start()


def test_what_cannot_be_is_refused_with_its_reason() -> None:
    with pytest.raises(InvalidArgumentError, match="mode='magic'"):
        LocalCluster(mode="magic")  # type: ignore[arg-type]


def test_a_cluster_within_this_process(tmp_path: Path) -> None:
    """A new cluster serves as soon as its ``with`` block begins. A cluster of either mode finds kept data again. A
    killed node starts again."""
    values = [b"%d" % number for number in range(100)]
    threads = threading.active_count()
    with LocalCluster(brokers=1, controllers=1, mode="inprocess", data=tmp_path / "kept") as cluster:
        assert [(row["role"], row["pid"]) for row in cluster.ps()] == [
            (role, os.getpid()) for role in ("controller", "broker", "coordinator")
        ]
        assert _alive_of_the_state_file(tmp_path / "kept") == []  # another command's `down` must not end this process
        _send(cluster, values)
        _commit(cluster, 60)
        cluster.kill("broker", 1)
        cluster.kill("coordinator", 1)
        assert [row["pid"] for row in cluster.ps()] == [os.getpid(), None, None]
        assert not (tmp_path / "kept" / "broker-1" / ".kafka_cleanshutdown").exists()
        cluster.restart("broker", 1)
        cluster.restart("coordinator", 1)
        cluster.restart("controller", 1)
        assert _read(cluster) == values
        assert _committed(cluster) == 60
        with pytest.raises(UnsupportedVersionError, match="paused"):
            cluster.pause("broker", 1)
        assert "clean=False" in cluster.log("coordinator", 1)
        assert "BrokerRegistered" in cluster.log("broker", 1)
    assert (tmp_path / "kept" / "broker-1" / ".kafka_cleanshutdown").exists()  # stopped, for the data is kept
    # the threads of the clients, and of the thread pools, stay for the next cluster
    assert threading.active_count() <= threads + 6
    with LocalCluster(data=tmp_path / "kept") as cluster:
        assert _read(cluster) == values
        assert _committed(cluster) == 60


def test_clusters_within_this_process_leave_nothing_in_it(caplog: pytest.LogCaptureFixture) -> None:
    """A killed node stops although, unlike a killed process, it could still reach other nodes. The killed node leaves
    no open descriptor, and no line in the program's log."""
    caplog.set_level(logging.INFO)
    level = logging.getLogger("headrace.broker").level
    descriptors = []
    for _ in range(3):
        with LocalCluster(brokers=1, controllers=1, mode="inprocess") as cluster:
            _send(cluster, [b"hello"])
            for role in ("controller", "coordinator", "broker"):  # from now on, no node can hand anything over
                cluster.kill(role, 1)
                assert [row["pid"] for row in cluster.ps() if row["role"] == role] == [None]
        gc.collect()  # a killed node closes no files
        descriptors.append(len(os.listdir("/proc/self/fd")))
    # the first cluster has opened the resources that stay for the next cluster: a loop, a poller
    until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors[0] + 2, lambda: f"no leak: {descriptors}")
    lines = [record for record in caplog.records if record.name.startswith(("headrace.broker", "headrace.co"))]
    assert lines == []
    assert logging.getLogger("headrace.broker").level == level


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
        until(lambda: all(voter.lag == 0 for voter in admin.describe_quorum().voters), within_s=20)
        if mode == "process":  # a suspended leader soon loses its leadership
            leader = admin.describe_quorum().leader_id
            cluster.pause("controller", leader)
            until(lambda: admin.describe_quorum().leader_id not in (leader, -1), within_s=20)
            admin.create_topics([NewTopic("while-it-slept", partitions=1)])
            cluster.resume("controller", leader)
            until(lambda: all(voter.lag == 0 for voter in admin.describe_quorum().voters), within_s=20)
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
    """After an exit, an exception or a kill -9, the nodes end and the data is deleted. The ending interpreter ends the
    nodes, or the guardian process does."""
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
            assert not os.path.exists(directory)  # an interpreter that ends normally deletes the data itself
        until(lambda: not any(_alive(int(pid)) for pid in pids), within_s=20)
        until(lambda: not os.path.exists(directory), within_s=20)
    finally:
        owner.kill()
        owner.wait()


_KEEPER = """
import sys, time
from headrace import LocalCluster
cluster = LocalCluster(brokers=1, controllers=1, coordinators=0, data=sys.argv[1]).start()
print(cluster._guardian._process.pid, flush=True)
time.sleep(60)
"""


def _with_late_guardian(kept: Path) -> ProcessId:
    """A cluster in ``kept`` whose owner was killed, and whose guardian is suspended before it stops the nodes."""
    with subprocess.Popen([sys.executable, "-c", _KEEPER, str(kept)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        guardian = identify(int(owner.stdout.readline()))
        assert guardian is not None
        guardian.signal(signal.SIGSTOP)
        owner.kill()
    return guardian


def test_a_late_guardian_does_not_stop_the_next_cluster_in_the_directory(tmp_path: Path) -> None:
    """The guardian of a killed owner may begin its work after the next run has started its nodes."""
    guardian = _with_late_guardian(tmp_path)
    ClusterDirectory(tmp_path).down()
    with LocalCluster(brokers=1, controllers=1, coordinators=0, data=tmp_path) as cluster:
        guardian.signal(signal.SIGCONT)
        assert guardian.wait(30)
        assert all(row["pid"] for row in cluster.ps())
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics(["served"])


def test_a_cluster_that_is_started_again_by_hand_is_not_its_dead_owners(tmp_path: Path) -> None:
    guardian = _with_late_guardian(tmp_path)
    directory = ClusterDirectory(tmp_path)
    directory.up(Topology())  # the nodes still run
    try:
        guardian.signal(signal.SIGCONT)
        assert guardian.wait(30)
        assert all(node.alive() for node in directory.state().nodes)
    finally:
        directory.down()


_ABANDONED = """
import sys, time
from headrace import LocalCluster, Producer
data = sys.argv[1] if len(sys.argv) > 1 else None
cluster = LocalCluster(brokers=1, controllers=1, mode="inprocess", data=data).start()
producer = Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=600_000)
future = producer.send("events", b"sent at the very end")
future.add_done_callback(lambda future: print("sent:", future.exception() is None, flush=True))
print(cluster.directory, flush=True)
{ending}
"""


@pytest.mark.parametrize("ending", ["sys.exit(0)", "time.sleep(60)", "kept"])
def test_an_owner_that_never_stops_the_cluster_within_it_leaves_nothing_behind(ending: str, tmp_path: Path) -> None:
    """An interpreter that ends closes its clients first, and then the nodes, because the clients need the nodes."""
    script = _ABANDONED.format(ending="" if ending == "kept" else ending)
    kept, errors = tmp_path / "kept", tmp_path / "errors"
    with errors.open("w") as stderr:
        owner = subprocess.Popen(
            [sys.executable, "-c", script, *([str(kept)] if ending == "kept" else [])],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    with owner:
        assert owner.stdout is not None
        directory = owner.stdout.readline().strip()
        if "sleep" in ending:
            assert os.path.exists(directory)
            owner.send_signal(signal.SIGKILL)
            owner.wait(timeout=60)
            until(lambda: not os.path.exists(directory))
        else:
            assert owner.stdout.read() == "sent: True\n", errors.read_text()
            assert (owner.wait(timeout=60), errors.read_text()) == (0, "")
            assert os.path.exists(directory) == (ending == "kept")
        if ending == "kept":
            assert (kept / "broker-1" / ".kafka_cleanshutdown").exists()


_FORKED = """
import gc, os, sys, time
from headrace import LocalCluster, Producer
from headrace.engine.io_thread import io_thread
from tests.worlds.readers import read_to_end
from headrace.errors import IllegalStateError

cluster = LocalCluster(brokers=1, controllers=1, coordinators=0, mode="inprocess").start()
child = os.fork()
if child == 0:
    try:
        child_s = Producer(bootstrap_servers=cluster.bootstrap_servers)  # (its first use says it)
        child_s.send("events", b"from a child")
    except IllegalStateError:
        assert [row["pid"] for row in cluster.ps()] == [None, None]
        cluster.kill("broker", 1)
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
    producer.send("events", b"still there").result(timeout=60)

directory, holder = cluster.directory, [cluster]
del cluster

async def collect():
    holder.clear()
    gc.collect()

io_thread().run(collect())
until = time.monotonic() + 60
while directory.exists():
    assert time.monotonic() < until
    time.sleep(0.01)
"""


def test_a_cluster_within_this_process_is_not_its_child_s_and_may_be_collected_on_its_own_thread() -> None:
    done = subprocess.run([sys.executable, "-c", _FORKED], capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stderr) == (0, "")


_USER_TEST = """
import os, pytest

def test_shared(headrace, headrace_topic):
    assert headrace.bootstrap_servers.startswith("127.0.0.1:")
    assert [(row["role"], row["pid"]) for row in headrace.ps()] == [
        (role, os.getpid()) for role in ("controller", "broker", "broker", "coordinator")
    ]
    assert "log.flush=os" in (headrace.directory / "config" / "broker-2.properties").read_text()
    assert headrace_topic.startswith("test_shared-")

def test_shared_is_the_same(headrace, request):
    assert headrace is request.getfixturevalue("headrace")

@pytest.mark.headrace_cluster(brokers=1, coordinators=0, config={"num.partitions": 3})
def test_own(headrace, headrace_cluster):
    assert headrace.bootstrap_servers != headrace_cluster.bootstrap_servers
    assert [row["role"] for row in headrace_cluster.ps()] == ["controller", "broker"]
    assert os.getpid() not in [row["pid"] for row in headrace_cluster.ps()]
    with headrace_cluster.killed("broker", 1):
        assert headrace_cluster.ps()[1]["pid"] is None
    assert headrace_cluster.ps()[1]["pid"] is not None

@pytest.mark.headrace_cluster(3)
def test_a_mark_without_names(headrace_cluster):
    pass
"""
_USER_INI = """
[pytest]
addopts = --strict-markers
headrace_nodes = 2 brokers, 1 coordinator
headrace_config = log.flush=os
"""


def _pytest(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=directory, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_fixtures_come_with_the_package(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(_USER_TEST)
    (tmp_path / "pytest.ini").write_text(_USER_INI)
    out = _pytest(tmp_path)
    assert "3 passed, 1 error" in out, out
    assert "pass keyword arguments, such as brokers=3" in out


def test_the_example_of_a_users_own_tests_passes_on_two_workers(tmp_path: Path) -> None:
    shutil.copy(_ROOT / "examples" / "test_orders.py", tmp_path)
    out = _pytest(tmp_path, "-n", "2")
    assert "20 passed" in out, out
