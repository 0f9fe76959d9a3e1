"""Supervision of node processes, with stand-ins for nodes: which nodes start, which keep running, and which processes
never get a signal."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace_core.errors import (
    ClusterStartError,
    IllegalStateError,
    InvalidArgumentError,
    MissingDependencyError,
)
from headrace_core.log.files import RealFileSystem
from headrace_core.node.ids import id_to_text
from headrace_core.node.meta_properties import read_meta
from headrace_core.shell.state import load
from headrace_tools.local import directory, ports
from headrace_tools.local.directory import ClusterDirectory, Topology
from headrace_tools.local.state import Node

STANDIN = Path(__file__).with_name("standin_node.py")


def _command(behaviours: dict[str, str]) -> Callable[[Path, Node], list[str]]:
    def command(directory: Path, node: Node) -> list[str]:
        behaviour = behaviours.get(node.name, "serve")
        return [
            sys.executable,
            str(STANDIN),
            behaviour,
            "--config",
            str(directory / "config" / f"{node.name}.properties"),
        ]

    return command


@pytest.fixture
def behaviours() -> dict[str, str]:
    """Node name -> behaviour. A test changes the behaviour of a node before a start."""
    return {}


@pytest.fixture
def cluster(tmp_path: Path, behaviours: dict[str, str]) -> Iterator[ClusterDirectory]:
    cluster = ClusterDirectory(tmp_path / "cluster", stop_timeout_s=10, command=_command(behaviours))
    yield cluster
    if cluster.exists():
        for node in cluster.state().nodes:
            if node.process is not None:
                node.process.signal(signal.SIGKILL)
                node.process.wait(60)


def _pids(cluster: ClusterDirectory) -> dict[str, int | None]:
    return {f"{row['role']}-{row['id']}": row["pid"] for row in cluster.ps()}


def test_up_starts_every_node_with_ports_and_directories_of_its_own(cluster: ClusterDirectory) -> None:
    started = cluster.up(Topology(brokers=3))
    assert [node.name for node in started.nodes] == ["controller-1", "broker-1", "broker-2", "broker-3"]
    rows = cluster.ps()
    assert all(row["pid"] for row in rows)
    assert len({row["address"] for row in rows}) == 4
    assert len({tuple(row["data_dirs"]) for row in rows}) == 4
    for row in rows:
        assert (Path(row["data_dirs"][0]) / "meta.properties").exists()
        assert f"stand-in {row['role']} {row['id']}" in cluster.log_path(row["role"], row["id"]).read_text()
    assert started.state.bootstrap_servers == ",".join(row["address"] for row in rows if row["role"] == "broker")


def test_up_again_says_that_everything_runs_and_touches_nothing(cluster: ClusterDirectory) -> None:
    cluster.up(Topology())
    before = _pids(cluster)
    assert cluster.up(Topology()).nodes == ()
    assert _pids(cluster) == before


def test_a_stopped_cluster_comes_back_with_its_topology_ports_and_directories(cluster: ClusterDirectory) -> None:
    cluster.up(Topology(brokers=2))
    before = cluster.ps()
    formatted = {row["data_dirs"][0]: Path(row["data_dirs"][0], "meta.properties").read_text() for row in before}
    assert [node.name for node in cluster.down()] == ["controller-1", "broker-1", "broker-2"]
    assert set(_pids(cluster).values()) == {None}
    cluster.up(Topology())
    assert [{**row, "pid": 0} for row in cluster.ps()] == [{**row, "pid": 0} for row in before]
    assert formatted == {path: Path(path, "meta.properties").read_text() for path in formatted}


def test_another_topology_or_port_for_an_existing_cluster_is_refused(cluster: ClusterDirectory) -> None:
    cluster.up(Topology(brokers=2))
    for wanted in (Topology(brokers=1), Topology(port=1234)):
        with pytest.raises(InvalidArgumentError, match=r"nodes can only be added|keeps it"):
            cluster.up(wanted)


@pytest.mark.parametrize("running", [True, False], ids=["while it runs", "when it starts"])
def test_a_cluster_that_is_there_gets_more_brokers_beside_those_it_has(
    cluster: ClusterDirectory, running: bool
) -> None:
    cluster.up(Topology(brokers=1, coordinators=1))
    before = {(row["role"], row["id"]): row for row in cluster.ps()}
    if not running:
        cluster.down()
    started = cluster.up(Topology(brokers=3))
    new = ["broker-2", "broker-3"]
    assert [node.name for node in started.nodes if running or node.name in new] == new
    assert [node.name for node in started.state.nodes] == ["controller-1", "broker-1", *new, "coordinator-1"]
    assert None not in _pids(cluster).values()
    after = {(row["role"], row["id"]): row for row in cluster.ps()}
    for who, row in before.items():
        assert {**after[who], "pid": 0} == {**row, "pid": 0}
        assert (after[who]["pid"] == row["pid"]) is running
    taken = [port for node in started.state.nodes for port in (node.port, node.internal_port)]
    assert len(set(taken)) == len(taken)
    first = started.state.node("broker", 1).port
    client_ports = [started.state.node("broker", number).port for number in (2, 3)]
    # The ports follow each other, as in a new cluster. A port that another program uses is skipped.
    assert client_ports == sorted(client_ports)
    assert first < client_ports[0] <= client_ports[1] < first + 50
    for name in new:
        node = started.state.node("broker", int(name[-1]))
        assert read_meta(node.data_dirs[0]).cluster_id == started.state.cluster_id
        assert "default.replication.factor=3\n" in (cluster.directory / "config" / f"{name}.properties").read_text()
    assert cluster.up(Topology(brokers=3)).nodes == (), "it has as many"


def test_three_controllers_begin_together_and_every_node_knows_them(cluster: ClusterDirectory) -> None:
    started = cluster.up(Topology(controllers=3))
    controllers = started.state.of_role("controller")
    assert [node.id for node in controllers] == [1, 2, 3]
    addresses = ",".join(f"127.0.0.1:{node.internal_port}" for node in controllers)
    metas = [read_meta(node.data_dirs[0]) for node in started.state.nodes]
    assert {meta.cluster_id for meta in metas} == {started.state.cluster_id}
    assert len({meta.directory_id for meta in metas}) == 4
    for node in started.state.nodes:
        properties = (cluster.directory / "config" / f"{node.name}.properties").read_text()
        assert f"controller.quorum.bootstrap.servers={addresses}\n" in properties
    voters = [load(RealFileSystem(), node.data_dirs[0]).voters for node in controllers]
    expected = [
        {"id": node.id, "directory_id": id_to_text(meta.directory_id), "address": node.internal_address}
        for node, meta in zip(controllers, metas, strict=False)
    ]
    assert voters == [expected] * 3


def test_a_controller_that_lost_its_disk_is_not_made_anew_under_its_name(cluster: ClusterDirectory) -> None:
    """The controller has lost its vote. (A real controller then refuses to start, and names the remedy.)"""
    cluster.up(Topology(controllers=3))
    cluster.kill("controller", 2)
    (data,) = cluster.state().node("controller", 2).data_dirs
    shutil.rmtree(data)
    cluster.restart("controller", 2)
    assert not Path(data).exists()
    cluster.kill("broker", 1)
    (data,) = cluster.state().node("broker", 1).data_dirs
    shutil.rmtree(data)
    cluster.restart("broker", 1)  # a broker with a new disk is a new broker
    assert (Path(data) / "meta.properties").exists()


def test_a_cluster_of_the_last_release_starts_again(cluster: ClusterDirectory) -> None:
    """The cluster's file does not have the joining controllers, and the controller's directory does not have the first
    voters."""
    cluster.up(Topology())
    cluster.down()
    path = cluster.directory / "cluster.json"
    document = json.loads(path.read_text())
    for node in document["nodes"]:
        del node["joining"]
    path.write_text(json.dumps(document))
    shutil.rmtree(cluster.directory / "controller-1" / "__cluster_metadata-0", ignore_errors=True)
    assert [node.name for node in cluster.up(Topology()).nodes] == ["controller-1", "broker-1"]


def test_a_cluster_without_a_coordinator_keeps_having_none_until_it_is_asked_for(
    cluster: ClusterDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster without coordinators, as earlier releases created it. A new cluster has a coordinator unless 0 are
    requested."""
    monkeypatch.setattr(directory, "DEFAULT_COORDINATORS", 1)
    assert [node.name for node in cluster.up(Topology(coordinators=0)).nodes] == ["controller-1", "broker-1"]
    cluster.down()
    assert [node.name for node in cluster.up(Topology()).nodes] == ["controller-1", "broker-1"]
    assert [node.name for node in cluster.up(Topology(coordinators=1)).nodes] == ["coordinator-1"]
    cluster.delete()
    started = cluster.up(Topology())
    assert [node.name for node in started.nodes] == ["controller-1", "broker-1", "coordinator-1"]
    with pytest.raises(InvalidArgumentError, match=r"--coordinators 0: .* has 1, and nodes can only be added"):
        cluster.up(Topology(coordinators=0))
    cluster.kill("coordinator", 1)
    assert _pids(cluster)["coordinator-1"] is None
    assert [node.name for node in cluster.up(Topology()).nodes] == ["coordinator-1"]
    cluster.kill("coordinator", 1)
    assert cluster.restart("coordinator", 1).alive()


def test_fewer_controllers_than_there_are_is_refused(cluster: ClusterDirectory) -> None:
    cluster.up(Topology(controllers=3))
    with pytest.raises(InvalidArgumentError, match=r"has 3, and nodes can only be added"):
        cluster.up(Topology(controllers=1))


def test_a_controller_without_a_majority_need_only_come_up(
    cluster: ClusterDirectory, behaviours: dict[str, str]
) -> None:
    """All three controllers crashed and are started one by one. No controller can serve before the second controller is
    up."""
    cluster.up(Topology(controllers=3))
    for number in (1, 2, 3):
        cluster.kill("controller", number)
    behaviours["controller-1"] = "silent"  # as a controller that waits for the others
    assert cluster.restart("controller", 1).alive()
    cluster.start_timeout_s = 0.5
    with pytest.raises(ClusterStartError, match=r"controller 1 .* was not ready within"):
        cluster.restart("controller", 2)  # this controller completes a majority, so both must serve


def test_a_killed_node_stays_dead_until_restart(cluster: ClusterDirectory) -> None:
    cluster.up(Topology(brokers=2))
    before = _pids(cluster)
    cluster.kill("broker", 1)
    assert _pids(cluster) == before | {"broker-1": None}
    with pytest.raises(IllegalStateError, match="broker 1 is not running"):
        cluster.signal("broker", 1, signal.SIGSTOP)
    node = cluster.restart("broker", 1)
    assert node.pid() not in (None, before["broker-1"])
    assert _pids(cluster) == before | {"broker-1": node.pid()}


def test_restart_of_a_running_node_stops_it_cleanly_first(cluster: ClusterDirectory) -> None:
    cluster.up(Topology())
    before = _pids(cluster)["broker-1"]
    cluster.restart("broker", 1)
    assert _pids(cluster)["broker-1"] != before
    assert "stopped cleanly" in cluster.log_path("broker", 1).read_text()


def test_up_starts_the_nodes_that_are_dead(cluster: ClusterDirectory) -> None:
    cluster.up(Topology(brokers=2))
    before = _pids(cluster)
    cluster.kill("broker", 2)
    assert [node.name for node in cluster.up(Topology()).nodes] == ["broker-2"]
    assert _pids(cluster) == before | {"broker-2": _pids(cluster)["broker-2"]}


def test_down_stops_a_paused_node_cleanly_too(cluster: ClusterDirectory) -> None:
    cluster.up(Topology())
    cluster.signal("broker", 1, signal.SIGSTOP)
    cluster.down()
    assert "stopped cleanly" in cluster.log_path("broker", 1).read_text()


def test_a_node_that_ignores_sigterm_is_killed_in_the_end(tmp_path: Path, behaviours: dict[str, str]) -> None:
    behaviours["broker-1"] = "stubborn"
    cluster = ClusterDirectory(tmp_path / "cluster", stop_timeout_s=0.2, command=_command(behaviours))
    cluster.up(Topology())
    process = cluster.state().node("broker", 1).process
    assert process is not None
    cluster.down()
    assert not process.alive()


@pytest.mark.parametrize(("behaviour", "says"), [("die", "ended before it served"), ("silent", "was not ready within")])
def test_a_failed_first_start_quotes_the_log_ends_everything_and_leaves_no_data(
    tmp_path: Path, behaviours: dict[str, str], behaviour: str, says: str
) -> None:
    behaviours["broker-1"] = behaviour
    # the nodes that do start, or end by themselves, must have the time for it
    start_timeout_s = 10 if behaviour == "silent" else 60
    cluster = ClusterDirectory(tmp_path / "cluster", start_timeout_s=start_timeout_s, command=_command(behaviours))
    with pytest.raises(ClusterStartError) as failure:
        cluster.up(Topology())
    assert says in str(failure.value)
    assert f"stand-in broker 1 ({behaviour})" in str(failure.value)
    assert not cluster.exists()
    assert sorted(path.name for path in cluster.directory.iterdir()) == ["config", "logs"]
    assert not _running_under(cluster.directory)
    behaviours.clear()
    cluster.start_timeout_s = 60
    cluster.up(Topology())  # and the next start is a first one again
    cluster.down()


def test_a_failed_later_start_keeps_the_data(cluster: ClusterDirectory, behaviours: dict[str, str]) -> None:
    cluster.up(Topology())
    (data,) = cluster.state().node("broker", 1).data_dirs
    Path(data, "precious").write_text("records")
    cluster.down()
    behaviours["broker-1"] = "die"
    with pytest.raises(ClusterStartError, match="disk is on fire"):
        cluster.up(Topology())
    assert set(_pids(cluster).values()) == {None}
    assert not _running_under(cluster.directory)
    assert Path(data, "precious").read_text() == "records"


def test_a_coordinator_that_cannot_serve_yet_does_not_keep_the_others_from_the_next_start(
    cluster: ClusterDirectory, behaviours: dict[str, str]
) -> None:
    """A coordinator ends at its start in a cluster with an older metadata.version, which must be raised first."""
    cluster.up(Topology(coordinators=0))
    cluster.down()
    behaviours["coordinator-1"] = "die"
    with pytest.raises(ClusterStartError, match="disk is on fire"):
        cluster.up(Topology(coordinators=1))
    assert [node.name for node in cluster.up(Topology()).nodes] == ["controller-1", "broker-1"]
    del behaviours["coordinator-1"]
    assert [node.name for node in cluster.up(Topology(coordinators=1)).nodes] == ["coordinator-1"]


def test_a_failed_start_quotes_nothing_of_an_earlier_life(
    cluster: ClusterDirectory, behaviours: dict[str, str]
) -> None:
    cluster.up(Topology())
    cluster.down()
    with cluster.log_path("broker", 1).open("a") as log:
        log.write("an old trouble: the address is in use\n")
    behaviours["broker-1"] = "die"
    with pytest.raises(ClusterStartError) as failure:
        cluster.up(Topology())
    assert "disk is on fire" in str(failure.value)
    assert "old trouble" not in str(failure.value)
    assert type(failure.value) is ClusterStartError


def _running_under(directory: Path) -> list[str]:
    """Command lines of live processes that mention the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(directory) in line:
                found.append(line)
    return found


def test_a_stale_state_file_never_harms_a_process_that_got_the_pid(cluster: ClusterDirectory) -> None:
    """After a reboot, or after some time, a node's old pid may belong to another process."""
    cluster.up(Topology())
    cluster.down()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        path = cluster.directory / "cluster.json"
        document = json.loads(path.read_text())
        for node in document["nodes"]:
            node["process"] = {"pid": stranger.pid, "started": "an-earlier-boot/12345"}
        path.write_text(json.dumps(document))
        assert set(_pids(cluster).values()) == {None}
        with pytest.raises(IllegalStateError):
            cluster.signal("broker", 1, signal.SIGSTOP)
        cluster.kill("broker", 1)
        assert cluster.down() == ()
        assert len(cluster.up(Topology()).nodes) == 2
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_wanted_port_goes_to_the_first_broker_and_a_taken_one_is_refused(cluster: ClusterDirectory) -> None:
    from headrace_tools.local import ports

    (port,) = ports.pick(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(ClusterStartError, match=f"port {port} on 127.0.0.1 is taken"):
            cluster.up(Topology(port=port))
    started = cluster.up(Topology(port=port, brokers=2))
    assert started.state.bootstrap_servers.split(",")[0] == f"127.0.0.1:{port}"


def test_a_port_stolen_between_the_look_and_the_bind_is_replaced(
    cluster: ClusterDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace_tools.local import ports

    with socket.socket() as thief:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        real = ports.pick
        picked: list[list[int]] = []

        def pick(count: int, **more: object) -> list[int]:
            found = real(count, **more)  # type: ignore[arg-type]
            if not picked:  # the first choice is the port that another program just took
                found[0] = thief.getsockname()[1]
            picked.append(found)
            return found

        monkeypatch.setattr(ports, "pick", pick)
        stolen, is_free = thief.getsockname()[1], ports.is_free
        monkeypatch.setattr(ports, "is_free", lambda port, host="127.0.0.1": port == stolen or is_free(port, host))
        cluster.up(Topology())
        assert len(picked) == 6  # two attempts of three choices each
    assert all(_pids(cluster).values())


def test_commands_on_one_cluster_take_turns(cluster: ClusterDirectory) -> None:
    """Two `up` at once: one starts the nodes, the other finds them running."""
    outcomes: list[int] = []
    threads = [
        threading.Thread(target=lambda: outcomes.append(len(cluster.up(Topology(brokers=2)).nodes))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == [0, 0, 3]


def test_a_lock_held_for_too_long_is_an_error_that_says_so(cluster: ClusterDirectory) -> None:
    from headrace_tools.local.state import StateFile

    cluster.directory.mkdir()
    with (cluster.directory / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            pytest.raises(ClusterStartError, match="another headrace command"),
            StateFile(cluster.directory).locked(0.05),
        ):
            pass


def test_delete_removes_what_is_ours_and_nothing_else(cluster: ClusterDirectory) -> None:
    cluster.up(Topology())
    (cluster.directory / "notes.txt").write_text("mine")
    cluster.delete()
    assert [path.name for path in cluster.directory.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    "topology",
    [
        Topology(brokers=0),
        Topology(controllers=0),
        Topology(port=70_000),
        Topology(config={"listeners": "client://127.0.0.1:1"}),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(cluster: ClusterDirectory, topology: Topology) -> None:
    with pytest.raises(InvalidArgumentError):
        cluster.up(topology)
    assert not cluster.directory.exists()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 1}', '{"version": 99, "nodes": []}'])
def test_a_damaged_state_file_is_named(cluster: ClusterDirectory, content: str) -> None:
    cluster.directory.mkdir()
    (cluster.directory / "cluster.json").write_text(content)
    with pytest.raises(ClusterStartError, match=r"cluster\.json"):
        cluster.ps()
    (cluster.directory / "cluster.json").unlink()


def test_an_empty_directory_has_no_cluster_and_the_error_says_how_to_start_one(cluster: ClusterDirectory) -> None:
    for ask in (cluster.ps, cluster.down, lambda: cluster.restart("broker", 1)):
        with pytest.raises(InvalidArgumentError, match="headrace up --data"):
            ask()
    assert not cluster.directory.exists()


def test_without_the_services_the_error_names_the_extra_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "headrace_broker", None)  # as when it is not installed
    place = tmp_path / "cluster"
    with pytest.raises(MissingDependencyError, match=r"headrace-broker .* pip install 'headrace\[cluster\]'"):
        ClusterDirectory(place).up(Topology(brokers=1, controllers=1, coordinators=0))
    assert not place.exists()


def _racks(cluster: ClusterDirectory) -> dict[str, str]:
    """The rack in each node's properties file; nodes without one are left out."""
    found = {}
    for path in (cluster.directory / "config").iterdir():
        keys = dict(line.partition("=")[::2] for line in path.read_text().splitlines())
        if "broker.rack" in keys:
            found[path.stem] = keys["broker.rack"]
        assert ("replica.selector.class" in keys) == (path.stem.startswith("broker") and "broker.rack" in keys)
    return found


def test_brokers_listen_for_kafkas_clients_at_ports_that_they_keep(cluster: ClusterDirectory) -> None:
    first = ports.pick(1)[0]
    assert cluster.up(Topology(brokers=2)).state.kafka_bootstrap_servers == ""
    cluster.down()
    started = cluster.up(Topology(kafka=True, kafka_port=first))
    doors = {row["id"]: row["kafka"] for row in cluster.ps() if row["role"] == "broker"}
    assert doors[1] == f"127.0.0.1:{first}"
    assert started.state.kafka_bootstrap_servers == ",".join(doors.values())
    for number, door in doors.items():
        text = (cluster.directory / "config" / f"broker-{number}.properties").read_text()
        assert f",kafka://{door}" in text
    assert "kafka" not in next(row for row in cluster.ps() if row["role"] == "controller")
    cluster.up(Topology(brokers=3))
    cluster.down()
    cluster.up(Topology())
    assert {row["id"]: row["kafka"] for row in cluster.ps() if row["role"] == "broker" and row["id"] < 3} == doors
    assert all(row["kafka"] for row in cluster.ps() if row["role"] == "broker"), "a new broker does as the others"
    cluster.down()
    cluster.up(Topology(kafka=False))
    assert [row["kafka"] for row in cluster.ps() if row["role"] == "broker"] == [None] * 3
    assert "kafka://" not in (cluster.directory / "config" / "broker-1.properties").read_text()


def test_the_gateways_of_an_older_release_are_dropped_and_broker_1_has_their_port(cluster: ClusterDirectory) -> None:
    cluster.up(Topology(brokers=2))
    cluster.down()
    path = cluster.directory / "cluster.json"
    document = json.loads(path.read_text())
    port, internal = ports.pick(2)
    gateway = {**document["nodes"][-1], "role": "gateway", "id": 1, "port": port, "internal_port": internal}
    gateway |= {"metrics_port": 0, "data_dirs": [str(cluster.directory / "gateway-1")]}
    document["nodes"].append(gateway)
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidArgumentError, match="brokers serve Kafka's clients themselves"):
        cluster.restart("gateway", 1)
    started = cluster.up(Topology())
    assert [node.name for node in started.dropped] == ["gateway-1"]
    assert {row["role"] for row in cluster.ps()} == {"controller", "broker"}
    assert started.state.kafka_bootstrap_servers.split(",")[0] == f"127.0.0.1:{port}"
    assert cluster.up(Topology()).dropped == ()


def test_brokers_and_coordinators_take_the_racks_in_turn(cluster: ClusterDirectory) -> None:
    cluster.up(Topology(brokers=3, coordinators=1, racks=["a", "eu west"]))
    racks = {"broker-1": "a", "broker-2": "eu west", "broker-3": "a", "coordinator-1": "a"}
    assert _racks(cluster) == racks
    assert not cluster.up(Topology()).behind  # a later start keeps the racks
    grown = cluster.up(Topology(brokers=4))
    assert _racks(cluster)["broker-4"] == "eu west"
    assert not grown.behind


def test_other_racks_wait_for_the_next_start_and_no_names_remove_them(cluster: ClusterDirectory) -> None:
    cluster.up(Topology(racks=["a"]))
    assert [node.name for node in cluster.up(Topology(racks=["b"])).behind] == ["broker-1"]
    cluster.down()
    cluster.up(Topology())
    assert _racks(cluster) == {"broker-1": "b"}
    cluster.down()
    cluster.up(Topology(racks=[]))
    assert _racks(cluster) == {}


def test_a_failed_start_keeps_the_racks_that_were_there(cluster: ClusterDirectory, behaviours: dict[str, str]) -> None:
    cluster.up(Topology(racks=["a"]))
    cluster.down()
    behaviours["broker-1"] = "die"
    with pytest.raises(ClusterStartError):
        cluster.up(Topology(racks=["b"]))
    assert cluster.state().racks == ("a",)


@pytest.mark.parametrize("name", ["", " a", "a\nlog.dirs=/tmp/x", "r" * 250])
def test_a_rack_has_a_printable_name(cluster: ClusterDirectory, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not the name of a rack"):
        cluster.up(Topology(racks=["a", name]))
    assert not cluster.directory.exists()
