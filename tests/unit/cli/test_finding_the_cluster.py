"""Commands that were not told where the cluster is: what they ask, and whose word counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.client import DEFAULT_BOOTSTRAP, Bootstrap
from headrace.local.finding import running_cluster
from headrace.local.processes import ProcessId, identify
from headrace.local.state import ClusterState, Node, StateFile

GONE = ProcessId(1, "of another boot")


def written(directory: Path, ports: tuple[int, ...], *, dead: tuple[int, ...] = (), controller: bool = True) -> Path:
    """A cluster of brokers at ``ports``, whose nodes "run" as this test does, but for the ``dead`` ones."""
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
    """Neither the developer's cluster nor this project's settings are found."""
    for name in ("HEADRACE_BOOTSTRAP_SERVERS", "HEADRACE_DATA"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("headrace.local.finding._directories_of_processes", lambda: iter(()))


def asked(*arguments: str) -> str:
    """Whom a command would ask."""
    app = typer.Typer()

    @app.command()
    def show(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
        print(bootstrap)

    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.output.strip()


def test_all_brokers_of_the_cluster_that_runs_here_are_asked_those_that_live_first() -> None:
    written(Path("headrace-data"), (9095, 9096, 9097), dead=(1,))
    assert asked() == "127.0.0.1:9096,127.0.0.1:9097,127.0.0.1:9095"


def test_what_the_user_said_counts_before_what_runs_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written(Path("headrace-data"), (9095, 9096))
    assert asked("-b", DEFAULT_BOOTSTRAP) == DEFAULT_BOOTSTRAP, "also when it is the default"
    monkeypatch.setenv("HEADRACE_DATA", str(written(tmp_path / "other", (4000, 4001))))
    assert asked() == "127.0.0.1:4000,127.0.0.1:4001"
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", "far:1")
    assert asked() == "far:1"
    assert asked("-b", "near:2") == "near:2"


def test_a_cluster_that_was_stopped_or_is_damaged_is_not_asked(tmp_path: Path) -> None:
    assert asked() == DEFAULT_BOOTSTRAP
    written(Path("headrace-data"), (9095, 9096), dead=(1, 2), controller=False)
    assert asked() == DEFAULT_BOOTSTRAP
    Path("headrace-data/cluster.json").write_text("{")
    assert asked() == DEFAULT_BOOTSTRAP


def test_of_clusters_in_other_directories_only_the_one_with_the_default_port_is_meant(tmp_path: Path) -> None:
    elsewhere = written(tmp_path / "elsewhere", (7000, 7001))
    former = written(tmp_path / "former", (9095, 9097), dead=(1,))
    now = written(tmp_path / "now", (9095, 9096))

    def found(*directories: Path) -> Path | None:
        told = running_cluster(DEFAULT_BOOTSTRAP, candidates=lambda: iter(directories))
        return None if told is None else told[0]

    assert found(elsewhere) is None
    assert found(elsewhere, former) == former, "its first broker is dead, and that is just when it is needed"
    assert found(former, now, former) == now


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
    from headrace.local.finding import _directories_of_processes

    assert node_process in list(_directories_of_processes())
