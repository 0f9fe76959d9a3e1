"""`headrace up --racks`: the names that the cluster gets, and the note for nodes that still run with others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace_tools.cli.root import build
from headrace_tools.local.directory import ClusterDirectory, Started, Topology
from headrace_tools.local.state import ClusterState, Node

BROKER = Node("broker", 1, "127.0.0.1", 9095, 9096, ("/data",), None)


@pytest.mark.parametrize(
    ("flags", "racks", "note"),
    [
        ((), None, ""),
        (("--racks", "a, b,c"), ["a", "b", "c"], "kept --racks for the next start; these nodes still run without: "),
        (("--racks", ""), [], "kept --racks for the next start"),
        (("--racks", "a", "-c", "num.partitions=3"), ["a"], "kept -c and --racks for the next start"),
        (("--racks", "a,,b"), ["a", "", "b"], ""),  # the cluster refuses the empty name
    ],
)
def test_racks_reach_the_cluster(
    flags: Sequence[str], racks: list[str] | None, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Topology] = []

    def up(_: ClusterDirectory, wanted: Topology, **__: Any) -> Started:
        asked.append(wanted)
        return Started(ClusterState("c", (BROKER,), {}), (), behind=(BROKER,))

    monkeypatch.setattr(ClusterDirectory, "up", up)
    words = ["up", "--data", str(tmp_path), "-d", *flags]
    done = CliRunner().invoke(build(words), words)
    assert done.exit_code == 0, done.output
    assert asked[0].racks == racks
    assert note in done.output
    assert ("for the next start" in done.output) is bool(flags)
