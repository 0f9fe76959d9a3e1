"""`doctor` asks the controllers of a local cluster too, because controllers describe the cluster when no broker is
alive."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import BootstrapError
from headrace_tools.cli import doctor as command
from headrace_tools.cli.app import run
from headrace_tools.local import finding
from headrace_tools.local.processes import ProcessId, identify
from headrace_tools.local.state import ClusterState, Node, StateFile
from tests.unit.client.test_doctor_gathering import Cluster

BROKERS, CONTROLLERS = ["127.0.0.1:1", "127.0.0.1:2"], ["127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:5"]


class OnlyControllers(Cluster):
    """A cluster whose brokers are dead: only requests to its controllers succeed."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._reached = set(bootstrap.split(",")) & set(CONTROLLERS)

    def __getattr__(self, name: str) -> Any:
        if not self._reached:
            raise BootstrapError("no node answers")
        return super().__getattr__(name)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that the doctor's clients get, one text per client."""
    found: list[str] = []

    @contextlib.contextmanager
    def admin(bootstrap: str, properties: object) -> Iterator[OnlyControllers]:
        found.append(bootstrap)
        yield OnlyControllers(bootstrap)

    monkeypatch.setattr(command, "admin", admin)
    monkeypatch.setattr(finding, "_directories_of_processes", lambda: iter(()))
    for name in ("HEADRACE_BOOTSTRAP_SERVERS", "HEADRACE_DATA", "HEADRACE_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three controllers that run, and two brokers that do not."""
    alive, gone = identify(os.getpid()), ProcessId(1, "of another boot")
    nodes = [
        Node(role, number, "127.0.0.1", int(address.rpartition(":")[2]), 1_000, (), life)
        for role, addresses, life in (("controller", CONTROLLERS, alive), ("broker", BROKERS, gone))
        for number, address in enumerate(addresses, start=1)
    ]
    directory = tmp_path / "headrace-data"
    directory.mkdir()
    StateFile(directory).write(ClusterState("c", tuple(nodes), {}))
    return directory


def examine(capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    run(["doctor", "--timeout", "1", "-o", "json", *flags])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_controllers_are_asked_for_the_cluster_in_a_directory(
    asked: list[str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = examine(capsys, "--data", str(data))
    assert [each.split(",") for each in asked] == [[*BROKERS, *CONTROLLERS]]
    assert found["cluster_id"] == "ours"
    assert "no-cluster" not in {each["rule"] for each in found["findings"]}


def test_only_addresses_named_by_the_user_are_asked(
    asked: list[str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = examine(capsys, "--data", str(data), "-b", BROKERS[0])
    assert asked == [BROKERS[0]]
    assert found["cluster_id"] is None
    (finding,) = (each for each in found["findings"] if each["rule"] == "no-cluster")
    assert "no node" not in finding["what"], "controllers run"
