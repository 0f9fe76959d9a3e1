"""`headrace up` says when a gateway, registry or console does not have the port that the user asked for."""

from __future__ import annotations

import pytest

from headrace_tools.cli.local import _note_port
from headrace_tools.local.state import ClusterState, Node

CONSOLE = Node("console", 1, "127.0.0.1", 9091, 0, (), None)


@pytest.mark.parametrize(
    ("nodes", "asked", "noted"),
    [
        ((CONSOLE,), 9397, "headrace: console 1 has port 9091, not 9397: "),
        ((CONSOLE,), 9091, ""),
        ((CONSOLE,), 0, ""),  # any free port
        ((CONSOLE,), None, ""),
        ((), 9397, ""),
    ],
)
def test_a_port_that_the_console_does_not_have_is_noted(
    nodes: tuple[Node, ...], asked: int | None, noted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _note_port(ClusterState("c", nodes, {}), "console", asked)
    said = capsys.readouterr().err
    assert said.startswith(noted)
    assert bool(said) is bool(noted)
