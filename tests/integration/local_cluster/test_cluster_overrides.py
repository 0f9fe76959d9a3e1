"""The user's keys for a local cluster (`up -c KEY=VALUE`): a wrong key changes nothing, and can be removed."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_core.errors import ClusterStartError, HeadraceError, InvalidArgumentError, InvalidConfigError
from headrace_core.node.properties import read_properties
from headrace_tools.local.directory import ClusterDirectory, Topology
from headrace_tools.local.state import Node

STANDIN = Path(__file__).with_name("standin_node.py")

#: Overrides that no node would take, and what the error says.
WRONG = [
    pytest.param({"wrong.key": "1"}, "unknown server configuration key 'wrong.key'", id="unknown"),
    pytest.param({"num.partitions": "many"}, "num.partitions='many': must be a whole number", id="value"),
    pytest.param({"log_flush": "never"}, "log.flush='never'", id="snake-case"),
    pytest.param({"message.max.bytes": "200000000"}, "never arrive", id="cross-check"),
    pytest.param({"broker.heartbeat.interval.ms": "90000"}, "fenced between two heartbeats", id="brokers-alone"),
    pytest.param({"advertised.listeners": "client://0.0.0.0:1"}, "clients cannot connect", id="listeners"),
    pytest.param({"log.dirs": "/a,/b"}, "A broker with several disks", id="disks"),
    pytest.param({"node_id": "7"}, "the cluster sets it for each node", id="the-clusters-own"),
]


@pytest.fixture
def dying() -> set[str]:
    """Names of nodes that end right after their start."""
    return set()


@pytest.fixture
def cluster(tmp_path: Path, dying: set[str]) -> Iterator[ClusterDirectory]:
    def command(directory: Path, node: Node) -> list[str]:
        config = directory / "config" / f"{node.name}.properties"
        return [sys.executable, str(STANDIN), "die" if node.name in dying else "serve", "--config", str(config)]

    cluster = ClusterDirectory(tmp_path / "cluster", stop_timeout_s=10, command=command)
    yield cluster
    if cluster.exists():
        for node in cluster.state().nodes:
            if node.process is not None:
                node.process.signal(signal.SIGKILL)
                node.process.wait(60)


def _files(cluster: ClusterDirectory) -> dict[str, str]:
    """The stored files of the cluster, with their contents."""
    paths = [cluster.directory / "cluster.json", *sorted((cluster.directory / "config").iterdir())]
    return {path.name: path.read_text() for path in paths}


def _store(cluster: ClusterDirectory, config: dict[str, str]) -> None:
    """Store an override as an older release or a text editor may have written it."""
    path = cluster.directory / "cluster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config": config}))


def _given(cluster: ClusterDirectory, node: str) -> dict[str, str]:
    """The properties that the node was last started with."""
    return read_properties(cluster.directory / "config" / f"{node}.properties")


@pytest.mark.parametrize(("config", "why"), WRONG)
def test_a_new_cluster_with_a_wrong_override_leaves_no_trace(
    cluster: ClusterDirectory, config: dict[str, str], why: str
) -> None:
    with pytest.raises((InvalidConfigError, InvalidArgumentError), match=why):
        cluster.up(Topology(config=config))
    assert not cluster.directory.exists()


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_a_wrong_override_of_a_cluster_changes_nothing(cluster: ClusterDirectory, running: bool) -> None:
    cluster.up(Topology(config={"log.flush": "os"}))
    if not running:
        cluster.down()
    before, pids = _files(cluster), [row["pid"] for row in cluster.ps()]
    for case in WRONG:
        config, why = case.values
        with pytest.raises((InvalidConfigError, InvalidArgumentError), match=str(why)):
            cluster.up(Topology(config=config))  # type: ignore[arg-type]
        assert _files(cluster) == before
        assert [row["pid"] for row in cluster.ps()] == pids
    cluster.up(Topology())
    assert all(row["pid"] for row in cluster.ps())


def test_an_override_that_contradicts_a_stored_one_is_refused(cluster: ClusterDirectory) -> None:
    cluster.up(Topology(config={"socket.request.max.bytes": "2000000"}))
    with pytest.raises(InvalidConfigError, match=r"never arrive.*-c socket\.request\.max\.bytes=` removes"):
        cluster.up(Topology(config={"message.max.bytes": "3000000"}))
    assert cluster.state().config == {"socket.request.max.bytes": "2000000"}


def test_an_override_of_a_running_cluster_is_kept_for_the_next_start_of_each_node(cluster: ClusterDirectory) -> None:
    cluster.up(Topology())
    started = cluster.up(Topology(config={"num.partitions": "6"}))
    assert started.nodes == ()
    assert [node.name for node in started.behind] == ["controller-1", "broker-1"]
    assert cluster.state().config == {"num.partitions": "6"}
    assert "num.partitions" not in _given(cluster, "broker-1")

    cluster.restart("broker", 1)
    assert _given(cluster, "broker-1")["num.partitions"] == "6"
    started = cluster.up(Topology(config={"num.partitions": "6"}))
    assert [node.name for node in started.behind] == ["controller-1"]

    cluster.down()
    assert cluster.up(Topology(config={"num.partitions": "6"})).behind == ()
    assert _given(cluster, "controller-1")["num.partitions"] == "6"


def test_an_empty_value_takes_an_override_back(cluster: ClusterDirectory) -> None:
    cluster.up(Topology(config={"num.partitions": "6", "log.flush": "os", "log.level": ""}))
    assert cluster.state().config == {"num.partitions": "6", "log.flush": "os"}
    cluster.down()
    cluster.up(Topology(config={"num_partitions": ""}))  # in every spelling
    assert cluster.state().config == {"log.flush": "os"}
    assert "num.partitions" not in _given(cluster, "broker-1")
    cluster.up(Topology(config={"log_flush": "interval"}))
    assert cluster.state().config == {"log_flush": "interval"}


def test_taking_back_what_is_no_key_is_refused(cluster: ClusterDirectory) -> None:
    with pytest.raises(InvalidConfigError, match=r"unknown.*did you mean 'log\.flush'"):
        cluster.up(Topology(config={"log.flsh": ""}))
    assert not cluster.directory.exists()


@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
@pytest.mark.parametrize("bad", [{"wrong.key": "1"}, {"log.dirs": "/a,/b"}, {"num.partitions": "x"}], ids=str)
def test_a_stored_override_that_is_wrong_is_named_and_can_be_removed(
    cluster: ClusterDirectory, bad: dict[str, str], running: bool
) -> None:
    cluster.up(Topology())
    if not running:
        cluster.down()
    _store(cluster, bad | {"log.flush": "os"})
    before, pids = _files(cluster), [row["pid"] for row in cluster.ps()]
    (key,) = bad
    for attempt in (lambda: cluster.up(Topology()), lambda: cluster.restart("broker", 1)):
        with pytest.raises((InvalidConfigError, InvalidArgumentError), match=rf"-c {key}=` removes"):
            attempt()
        assert _files(cluster) == before
        # `restart` has not stopped nodes that it could not start again
        assert [row["pid"] for row in cluster.ps()] == pids

    cluster.up(Topology(config={key: ""}))
    assert cluster.state().config == {"log.flush": "os"}
    cluster.restart("broker", 1)
    assert _given(cluster, "broker-1")["log.flush"] == "os"


def test_an_override_with_which_the_nodes_do_not_start_is_not_kept(cluster: ClusterDirectory, dying: set[str]) -> None:
    cluster.up(Topology(config={"log.flush": "os"}))
    cluster.down()
    dying.add("broker-1")
    with pytest.raises(ClusterStartError, match="disk is on fire"):
        cluster.up(Topology(config={"num.partitions": "6"}))
    assert cluster.state().config == {"log.flush": "os"}
    assert [row["pid"] for row in cluster.ps()] == [None, None]


def test_every_refusal_is_an_error_of_ours(cluster: ClusterDirectory) -> None:
    for case in WRONG:
        with pytest.raises(HeadraceError) as failure:
            cluster.up(Topology(config=case.values[0]))  # type: ignore[arg-type]
        assert failure.value.code in ("INVALID_CONFIG", "INVALID_ARGUMENT")
