"""`headrace up` in the foreground, ended by a signal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from headrace_tools.cli import local


class Cluster:
    """A cluster whose nodes all run."""

    def __init__(self, started: int) -> None:
        self.directory = Path("cluster")
        self.nodes = tuple(SimpleNamespace(role="broker", id=number) for number in range(started))
        self.stopped = False

    def exists(self) -> bool:
        return True

    def up(self, topology: object) -> Any:
        return SimpleNamespace(state=None, nodes=self.nodes, behind=())

    def down(self) -> None:
        self.stopped = True


def ends_while_printing(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, end: BaseException, **flags: bool) -> None:
    def cut(*_: object) -> None:
        raise end

    monkeypatch.setattr(local, "ClusterDirectory", lambda *_, **__: cluster)
    monkeypatch.setattr(local, "_print_up", cut)
    local.up(**flags)


@pytest.mark.parametrize(("end", "code"), [(SystemExit(129), 0), (KeyboardInterrupt(), 130)])
def test_a_signal_while_the_nodes_are_listed_stops_them(
    monkeypatch: pytest.MonkeyPatch, end: BaseException, code: int
) -> None:
    """CI closed a terminal at this moment: the command ended, and its nodes stayed."""
    cluster = Cluster(started=2)
    with pytest.raises(typer.Exit) as ended:
        ends_while_printing(monkeypatch, cluster, end)
    assert ended.value.exit_code == code
    assert cluster.stopped


@pytest.mark.parametrize(("started", "detach"), [(0, False), (2, True)])
def test_a_signal_does_not_stop_nodes_of_the_background(
    monkeypatch: pytest.MonkeyPatch, started: int, detach: bool
) -> None:
    cluster = Cluster(started)
    with pytest.raises(SystemExit):
        ends_while_printing(monkeypatch, cluster, SystemExit(129), detach=detach)
    assert not cluster.stopped
