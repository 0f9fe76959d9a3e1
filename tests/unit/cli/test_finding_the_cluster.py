"""Commands without an address: the cluster they use, and the precedence of settings."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace_tools.cli.client import DEFAULT_BOOTSTRAP, Bootstrap, finds_cluster
from headrace_tools.local import finding
from headrace_tools.local.finding import clusters_here
from headrace_tools.local.processes import ProcessId, identify
from headrace_tools.local.state import ClusterState, Node, StateFile

GONE = ProcessId(1, "of another boot")


def written(directory: Path, ports: tuple[int, ...], *, dead: tuple[int, ...] = (), controller: bool = True) -> Path:
    """A cluster of brokers at ``ports``, whose nodes, except the ``dead`` ones, have the pid of this test and so count
    as running."""
    life = identify(os.getpid())
    directory.mkdir()
    nodes = [Node("controller", 1, "127.0.0.1", 5, 6, (), life if controller else GONE)]
    nodes += [
        Node("broker", number, "127.0.0.1", port, port + 1_000, (), GONE if number in dead else life)
        for number, port in enumerate(ports, start=1)
    ]
    StateFile(directory).write(ClusterState("c", tuple(nodes), {}))
    return directory


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's own cluster and this project's settings from the commands."""
    for name in ("HEADRACE_BOOTSTRAP_SERVERS", "HEADRACE_DATA", "HEADRACE_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADRACE_PROFILES", str(tmp_path / "profiles"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(finding, "_directories_of_processes", lambda: iter(()))
    monkeypatch.setattr(finding, "listens", lambda address: False)


@pytest.fixture
def somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener at the default address belongs to no cluster of this machine. The listener may be the edge of the
    compose stack."""
    monkeypatch.setattr(finding, "listens", lambda address: address == DEFAULT_BOOTSTRAP)


def found_for(*arguments: str) -> tuple[str, str]:
    """Return the addresses that a command would use, and its note on stderr."""
    app = typer.Typer()

    @app.command()
    @finds_cluster
    def show(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
        print(bootstrap)

    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout.strip(), done.stderr.strip()


def asked(*arguments: str) -> str:
    """Return the addresses that a command would use; it must not print a note."""
    address, words = found_for(*arguments)
    assert words == ""
    return address


def test_all_brokers_of_the_cluster_that_runs_here_are_asked_those_that_live_first() -> None:
    written(Path("headrace-data"), (9095, 9096, 9097), dead=(1,))
    assert asked() == "127.0.0.1:9096,127.0.0.1:9097,127.0.0.1:9095"


def test_what_the_user_said_counts_before_what_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    written(Path("headrace-data"), (9095, 9096))
    assert asked("-b", DEFAULT_BOOTSTRAP) == DEFAULT_BOOTSTRAP, "also when it is the default"
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "far:1")
    assert asked() == "far:1"
    assert asked("-b", "near:2") == "near:2"


def test_a_profile_counts_before_what_runs_here_and_nothing_is_said_of_that(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "far.properties").write_text("bootstrap.servers=far:1\n")
    (tmp_path / "profiles" / "racks.properties").write_text("client.rack=b\n")
    written(Path("headrace-data"), (9095, 9096))
    assert asked("--profile", "far") == "far:1"
    assert asked("--profile", "racks") == "127.0.0.1:9095,127.0.0.1:9096", "it does not say where the cluster is"


def test_a_cluster_that_was_stopped_or_is_damaged_is_not_asked() -> None:
    assert asked() == DEFAULT_BOOTSTRAP
    written(Path("headrace-data"), (9095, 9096), dead=(1, 2), controller=False)
    assert asked() == DEFAULT_BOOTSTRAP
    Path("headrace-data/cluster.json").write_text("{")
    assert asked() == DEFAULT_BOOTSTRAP


def test_a_cluster_of_which_only_controllers_run_hides_nobody() -> None:
    written(Path("headrace-data"), (9095, 9096), dead=(1, 2), controller=True)
    assert asked() == DEFAULT_BOOTSTRAP, "its dead brokers are not asked in place of who listens there"


@pytest.mark.parametrize("named", [False, True])
def test_a_cluster_that_a_program_would_not_find_is_not_asked_either_and_that_is_said(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = written(tmp_path / "other" if named else Path("headrace-data"), (4000, 4001))
    if named:
        monkeypatch.setenv("HEADRACE_DATA", str(directory))
    address, words = found_for()
    assert address == DEFAULT_BOOTSTRAP, "which is where Producer() goes"
    assert str(directory) in words
    assert "-b 127.0.0.1:4000,127.0.0.1:4001" in words
    assert asked("-b", "127.0.0.1:4000") == "127.0.0.1:4000"


def test_when_another_cluster_has_taken_the_dead_brokers_port_that_one_is_asked(somebody_else: None) -> None:
    written(Path("headrace-data"), (9095, 9096), dead=(1,))
    address, words = found_for()
    assert address == DEFAULT_BOOTSTRAP
    assert "headrace-data is a different cluster" in words


def found(*directories: Path) -> Path | None:
    meant = clusters_here(DEFAULT_BOOTSTRAP, candidates=lambda: iter(directories)).meant
    return None if meant is None else meant.directory


def test_of_clusters_in_other_directories_only_the_one_with_the_default_port_is_meant(tmp_path: Path) -> None:
    elsewhere = written(tmp_path / "elsewhere", (7000, 7001))
    former = written(tmp_path / "former", (9095, 9097), dead=(1,))
    now = written(tmp_path / "now", (9095, 9096))
    assert found(elsewhere) is None
    assert found(elsewhere, former) == former, "its first broker is dead, and that is just when it is needed"
    assert found(former, now, former) == now


def test_of_two_clusters_whose_first_brokers_are_dead_neither_is_guessed(tmp_path: Path) -> None:
    one = written(tmp_path / "one", (9095, 9096), dead=(1,))
    two = written(tmp_path / "two", (9095, 9097), dead=(1,))
    assert found(one) == one
    assert found(one, two) is None


def test_a_cluster_elsewhere_whose_port_somebody_else_has_taken_is_not_meant(
    tmp_path: Path, somebody_else: None
) -> None:
    assert found(written(tmp_path / "former", (9095, 9097), dead=(1,))) is None


def test_who_listens_is_found_by_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert not finding.listens(address), "bound, and not listening"
        listener.listen()
        assert finding.listens(address)


@pytest.fixture
def node_process(tmp_path: Path) -> Iterator[Path]:
    """A process with a node's command line; it ends with the test."""
    data = written(tmp_path / "a cluster", (9095, 9096), dead=(1,))
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, "-m", "headrace_broker", "--config", str(data / "config" / "b.properties")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield data
        process.communicate(timeout=60)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")
def test_a_cluster_in_any_directory_is_found_by_the_command_lines_of_its_nodes(
    node_process: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert node_process in list(finding._directories_of_processes())
