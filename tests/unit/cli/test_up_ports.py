"""`headrace up` says when a registry, console or broker does not have the port that the user asked for, and what to use
in place of gateways."""

from __future__ import annotations

import pytest

from headrace_core.errors import InvalidArgumentError
from headrace_tools.cli.local import _note_kafka, _note_port, up
from headrace_tools.local.directory import Started, Topology
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


def brokers(kafka_port: int) -> ClusterState:
    return ClusterState("c", (Node("broker", 1, "127.0.0.1", 9095, 0, (), None, kafka_port=kafka_port),), {})


@pytest.mark.parametrize(
    ("has", "asked", "dropped", "noted"),
    [
        (9092, 9092, (), ""),
        (9093, 9092, (), "headrace: broker 1 has port 9093 for Kafka's clients, not 9092: "),
        (9093, None, (), ""),
        (
            9092,
            None,
            (CONSOLE,),
            "headrace: brokers serve Kafka's clients themselves: the gateways are gone, and broker 1",
        ),
    ],
)
def test_where_kafkas_clients_connect_is_noted_if_it_is_unexpected(
    has: int, asked: int | None, dropped: tuple[Node, ...], noted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _note_kafka(Started(brokers(has), (), dropped=dropped), Topology(kafka_port=asked))
    said = capsys.readouterr().err
    assert said.startswith(noted)
    assert bool(said) is bool(noted)


@pytest.mark.parametrize("flags", [{"gateways": 1}, {"gateways": 0}, {"gateway_port": 9092}])
def test_flags_of_gateways_say_what_to_use_instead(flags: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"broker 1 on --kafka-port \(default 9092\)"):
        up(**flags)


def test_a_kafka_port_and_none_contradict_each_other() -> None:
    with pytest.raises(InvalidArgumentError, match="contradict"):
        up(no_kafka=True, kafka_port=9092)
