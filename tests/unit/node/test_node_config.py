"""Properties files, listeners and start arguments of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_core.errors import InvalidConfigError
from headrace_core.node.config import NodeConfig
from headrace_core.node.listeners import (
    ListenerAddress,
    Voter,
    advertised,
    parse_addresses,
    parse_listeners,
    parse_voters,
)
from headrace_core.node.properties import format_properties, parse_overrides, parse_properties, read_properties

BASE = {"node.id": "1", "log.dirs": "/d"}


def config_of(role: str = "controller", **more: str) -> NodeConfig:
    return NodeConfig.from_properties(BASE | {key.replace("_", "."): value for key, value in more.items()}, role=role)


def test_keys_of_kafkas_that_something_else_stands_in_for_are_taken_with_a_note() -> None:
    given = {"queued_max_requests": "5", "max_connection_creation_rate": "7", "fetch_max_bytes": "4096"}
    notes = config_of("broker", **given).notes()
    assert [note.partition(":")[0] for note in notes] == ["queued.max.requests", "max.connection.creation.rate"]


def test_properties_are_read_as_java_reads_them() -> None:
    text = """
    # a comment
    ! another
    plain=value
    spaced = a value with = signs\x20\x20
    colon: x
    blank
    long=one,\\
        two
    path=C:\\\\dir
    """
    assert parse_properties(text, where="f") == {
        "plain": "value",
        "spaced": "a value with = signs",
        "colon": "x",
        "blank": "",
        "long": "one,two",
        "path": "C:\\dir",
    }


def test_what_is_formatted_is_read_back() -> None:
    values = {"a.b": "1", "c": "", "d": "x=y"}
    assert parse_properties(format_properties(values, comment="two\nlines"), where="f") == values


@pytest.mark.parametrize(("text", "message"), [("a=1\na=2", "f, line 2: a is given twice"), ("=1", "f, line 1")])
def test_a_wrong_line_is_named(text: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        parse_properties(text, where="f")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="no-such-file"):
        read_properties(tmp_path / "no-such-file")


def test_the_last_override_wins_and_a_wrong_one_is_named() -> None:
    assert parse_overrides(["a=1", "a=2", "b=x=y"]) == {"a": "2", "b": "x=y"}
    with pytest.raises(InvalidConfigError, match="-o nonsense"):
        parse_overrides(["nonsense"])


def test_listeners_voters_and_addresses_are_parsed() -> None:
    assert parse_listeners(["client://h:1", "INTERNAL://[::1]:2"]) == (
        ListenerAddress("client", "h", 1),
        ListenerAddress("internal", "[::1]", 2),
    )
    assert [each.name for each in parse_listeners(["CLIENTSASL://h:1", "external2://h:2"])] == [
        "clientsasl",
        "external2",
    ]
    assert parse_voters(["1@h:19093"]) == (Voter(1, "h:19093"),)
    assert parse_addresses(["h:1", "[::1]:2"], key="k") == ("h:1", "[::1]:2")


@pytest.mark.parametrize(
    "item",
    [
        "PLAINTEXT://h:1",
        "cleint://h:1",
        "internal2://h:1",
        "client://h",
        "client://h:70000",
        "h:1",
        "client://a:b:1",
        "client://",
        "",
    ],
)
def test_a_wrong_listener_is_refused(item: str) -> None:
    with pytest.raises(InvalidConfigError, match="listeners="):
        parse_listeners([item])


@pytest.mark.parametrize("items", [["client://h:1", "client://h:2"], ["client://h:1", "internal://h:1"]])
def test_listeners_need_names_and_addresses_of_their_own(items: list[str]) -> None:
    with pytest.raises(InvalidConfigError):
        parse_listeners(items)


@pytest.mark.parametrize("items", [["h:1"], ["x@h:1"], ["1@h"], ["1@h:0"], ["1@h:1", "1@h:2"]])
def test_a_wrong_voter_is_refused(items: list[str]) -> None:
    with pytest.raises(InvalidConfigError, match=r"controller\.quorum\.voters"):
        parse_voters(items)


def test_a_bound_port_is_advertised_unless_configured_otherwise() -> None:
    bound = [ListenerAddress("client", "0.0.0.0", 4711), ListenerAddress("internal", "127.0.0.1", 4712)]
    addresses = advertised(bound, [ListenerAddress("client", "kafka.example", 0)])
    assert addresses == (
        ListenerAddress("client", "kafka.example", 4711),
        ListenerAddress("internal", "127.0.0.1", 4712),
    )
    assert advertised(bound, [])[0].host not in ("", "0.0.0.0")


def test_a_controllers_configuration_has_its_addresses_and_defaults() -> None:
    config = config_of(controller_quorum_voters="1@h:19093", log_dirs="/d/,/e")
    assert config.controller_addresses == ("h:19093",)
    assert config.voters == (Voter(1, "h:19093"),)
    assert config.log_dirs == ("/d", "/e")
    assert config.state_file == "/d/node.json"
    assert config.values["broker.session.timeout.ms"] == 9000
    assert config.given["node.id"] == 1
    assert "num.partitions" not in config.given


def test_the_finest_spelling_of_a_retention_wins() -> None:
    assert config_of(log_retention_hours="2").topic_defaults() == {"retention.ms": 7_200_000}
    assert config_of(log_retention_hours="-1").topic_defaults() == {"retention.ms": -1}
    both = config_of(log_retention_hours="2", log_retention_minutes="3")
    assert both.topic_defaults() == {"retention.ms": 180_000}
    assert config_of(log_retention_hours="2", log_retention_ms="5").topic_defaults() == {"retention.ms": 5}


def test_a_brokers_id_may_have_kafkas_older_name() -> None:
    values = {"log.dirs": "/d", "broker.id": "7"}
    assert NodeConfig.from_properties(values, role="broker").node_id == 7
    assert NodeConfig.from_properties({"log.dirs": "/d"}, role="broker").node_id == -1
    with pytest.raises(InvalidConfigError, match="mean the same"):
        NodeConfig.from_properties(values | {"node.id": "8"}, role="broker")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"num.partitons": "3"}, "did you mean 'num.partitions'"),
        ({"num.partitions": "0"}, "num.partitions='0'"),
        ({"process.roles": "broker"}, "start headrace-"),
        ({"process.roles": "controller,broker"}, "one program for each role"),
        ({"log.dirs": ""}, "log.dirs is not set"),
        ({"log.dirs": "/d,/d/"}, "named twice"),
        ({"node.id": "-1"}, "node.id is not set"),
        ({"listeners": "client://127.0.0.1:1"}, "no internal listener"),
        ({"advertised.listeners": "client://0.0.0.0:1"}, "clients cannot connect"),
        (
            {"listeners": "internal://h:1", "advertised.listeners": "client://h:1"},
            "listeners does not have this listener",
        ),
    ],
)
def test_a_wrong_configuration_says_what_to_do(more: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        NodeConfig.from_properties(BASE | more, role="controller")
