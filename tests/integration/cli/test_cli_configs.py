"""``headrace configs``: sources, lists, dry runs, and keys that reach the running broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from headrace import Admin, AppendConfig, ConfigResource, LocalCluster, SubtractConfig
from headrace.cluster_models import ClusterDescription, ConfigEntry, ConfigSynonym
from headrace.errors import InvalidConfigError
from headrace.models import BrokerInfo
from headrace_tools.cli import configs


@pytest.fixture
def topic(cli, headrace: LocalCluster) -> str:
    name = "configs-of-a-topic"
    cli("topics", "create", name, code=None)
    return name


@pytest.fixture
def altered(cli) -> Iterator[None]:
    """Remove the settings for all brokers, because other tests use the cluster."""
    yield
    cli("configs", "alter", "--broker", "1", "--delete", "log.cleaner.backoff.ms", code=None)
    cli("configs", "alter", "--broker-default", "--delete", "log.cleaner.backoff.ms,log.retention.ms", code=None)


def test_several_keys_lists_and_deletions_in_one_go(cli, topic: str) -> None:
    cli("configs", "alter", "-t", topic, "--add", "retention.ms=5000,cleanup.policy=[compact,delete]")
    rows = {row[0]: row[1:] for row in (line.split() for line in cli("configs", "describe", "-t", topic).lines[1:])}
    assert rows == {"cleanup.policy": ["compact,delete", "dynamic_topic"], "retention.ms": ["5000", "dynamic_topic"]}
    lines = cli(
        "configs", "alter", "-t", topic, "--subtract", "cleanup.policy=compact", "--delete", "retention.ms"
    ).lines
    assert lines == ["cleanup.policy=delete", "retention.ms: reset; now 604800000 (default)"]
    changed = cli("configs", "alter", "-t", topic, "--append", "cleanup.policy=compact", "-o", "json").json()
    assert changed["changed"] == {"cleanup.policy": "delete,compact"}
    cli("configs", "alter", "-t", topic, "--delete", "cleanup.policy,retention.ms")
    assert len(cli("configs", "describe", "-t", topic).lines) == 1


def test_a_check_changes_nothing(cli, topic: str) -> None:
    line = cli("configs", "alter", "-t", topic, "--set", "retention.ms=5", "--validate-only").text
    assert line == "retention.ms=5 (only checked)\n"
    assert len(cli("configs", "describe", "-t", topic).lines) == 1
    days = cli("configs", "alter", "-t", topic, "--set", "retention.ms=7d", "--dry-run").text
    assert days == "retention.ms=604800000 (only checked)\n"
    failed = cli("configs", "alter", "-t", topic, "--set", "retention.ms=soon", "--dry-run", code=1)
    assert "retention.ms='soon': must be a whole number" in failed.err


def test_every_value_that_is_set_is_reported_with_its_source(cli, topic: str, altered: None) -> None:
    cli("configs", "alter", "--broker-default", "--set", "log.retention.ms=70000")
    cli("configs", "alter", "-t", topic, "--set", "retention.ms=60000")
    (row,) = (
        row
        for row in cli("configs", "describe", "-t", topic, "-o", "json").json()["configs"]
        if row["name"] == "retention.ms"
    )
    assert [(each["name"], each["value"], each["source"]) for each in row["synonyms"]] == [
        ("retention.ms", "60000", "dynamic_topic"),
        ("log.retention.ms", "70000", "dynamic_default_broker"),
        ("log.retention.ms", "604800000", "default"),
    ]
    assert (row["type"], row["allowed"], row["read_only"], row["sensitive"]) == ("long", "-1 or more", False, False)
    shown = cli("configs", "describe", "-t", topic).text
    assert "70000 (log.retention.ms, dynamic_default_broker)" in shown
    assert "log.retention.ms" in cli("configs", "describe", "--broker-default").text
    cli("configs", "alter", "-t", topic, "--delete", "retention.ms")


def test_a_brokers_own_file_is_reported_whoever_is_asked(cli, headrace: LocalCluster) -> None:
    asked = next(node["address"] for node in headrace.ps() if node["role"] == "controller")
    found = cli("configs", "describe", "--broker", "1", "-b", asked, "-o", "json").json()
    log_dirs = next(row for row in found["configs"] if row["name"] == "log.dirs")
    assert log_dirs["source"] == "static_broker"
    assert Path(log_dirs["value"]).is_dir()


def test_a_brokers_key_is_in_force_when_the_command_returns(cli, headrace: LocalCluster, altered: None) -> None:
    cli("configs", "alter", "--broker-default", "--set", "log.cleaner.backoff.ms=14999")
    assert "'log.cleaner.backoff.ms': '15000 -> 14999'" in headrace.log("broker", 1)
    cli("configs", "alter", "--broker", "1", "--set", "log.cleaner.backoff.ms=14998")
    assert "'log.cleaner.backoff.ms': '14999 -> 14998'" in headrace.log("broker", 1)
    cli("configs", "alter", "--broker", "1", "--delete", "log.cleaner.backoff.ms")
    assert "'log.cleaner.backoff.ms': '14998 -> 14999'" in headrace.log("broker", 1)


def test_a_key_that_is_set_no_longer_is_reported_with_what_holds_now(cli, topic: str, altered: None) -> None:
    key = "log.cleaner.backoff.ms"
    cli("configs", "alter", "--broker-default", "--set", f"{key}=14997", "--set", "log.retention.ms=70000")
    cli("configs", "alter", "--broker", "1", "--set", f"{key}=14996")
    own = f"{key}: reset; now 14997 (dynamic_default_broker)"
    every = f"{key}: reset; now 14996 (dynamic_broker)"
    for arguments, line in ((("--broker", "1"), own), (("--broker-default",), every)):
        checked = cli("configs", "alter", *arguments, "--delete", key, "--validate-only")
        assert checked.lines == [f"{line} (only checked)"]
    assert cli("configs", "alter", "--broker-default", "--delete", key).lines == [every]
    last = cli("configs", "alter", "--broker", "1", "--delete", key, "-o", "json").json()
    assert last["changed"] == {key: None}
    assert last["now"] == {key: [{"brokers": [], "value": "15000", "source": "default"}]}

    line = "retention.ms: reset; now 70000 (dynamic_default_broker)"
    cli("configs", "alter", "-t", topic, "--set", "retention.ms=5000")
    assert cli("configs", "alter", "-t", topic, "--delete", "retention.ms").lines == [line]
    cli("configs", "alter", "-t", topic, "--set", "retention.ms=5000")
    assert cli("topics", "alter", topic, "--delete-config", "retention.ms").lines[1:] == [line]


def test_brokers_that_differ_are_distinguished() -> None:
    def entry(*sources: str) -> ConfigEntry:
        values = tuple(
            ConfigSynonym("k", value, source) for value, _, source in (each.partition(" ") for each in sources)
        )
        return ConfigEntry("k", values[0].value, values[0].source, synonyms=values)

    admin = Mock()
    admin.describe_cluster.return_value = ClusterDescription(
        "c", 100, tuple(BrokerInfo(number, "127.0.0.1", 1) for number in (1, 2, 3))
    )
    admin.describe_configs.return_value = {
        ConfigResource("broker", "1"): {"k": entry("5 dynamic_default_broker", "1 default")},
        ConfigResource("broker", "2"): {"k": entry("7 dynamic_broker", "5 dynamic_default_broker", "1 default")},
        ConfigResource("broker", "3"): {"k": entry("1 default")},
    }
    held = configs.what_holds(admin, ConfigResource("broker", ""), ["k", "unknown"])
    assert configs.value_after_reset("k", held["k"]) == (
        "k: reset; now 1 (default) on broker 1, 3; 7 (dynamic_broker) on broker 2"
    )
    assert configs.value_after_reset("unknown", held["unknown"]) == "unknown: reset"


def test_a_key_that_does_nothing_here_is_reported(cli, topic: str) -> None:
    done = cli("configs", "alter", "-t", topic, "--set", "local.retention.ms=5")
    assert "note: local.retention.ms: has no effect: tiered storage is not built" in done.err
    cli("configs", "alter", "-t", topic, "--delete", "local.retention.ms")
    made = cli("topics", "create", "told-at-once", "-c", "local.retention.bytes=5")
    assert "note: local.retention.bytes: has no effect" in made.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe",),
        ("describe", "--topic", "t", "--broker", "1"),
        ("describe", "--broker", "1", "--broker-default"),
        ("alter", "--topic", "t"),
        ("alter", "--topic", "t", "--set", "a=1", "--delete", "a"),
        ("alter", "--topic", "t", "--add", "a"),
    ],
)
def test_wrong_usage_is_reported_before_anybody_is_asked(bare_cli, arguments: tuple[str, ...]) -> None:
    assert bare_cli("configs", *arguments, code=2).err


def test_the_sdk_changes_lists_and_checks_only(headrace: LocalCluster, topic: str) -> None:
    resource = ConfigResource("topic", topic)
    with Admin(bootstrap_servers=headrace.bootstrap_servers) as admin:
        admin.alter_configs({resource: {"cleanup.policy": AppendConfig("compact")}}, validate_only=True)
        assert admin.describe_configs([resource])[resource]["cleanup.policy"].value == "delete"
        admin.alter_configs({resource: {"cleanup.policy": AppendConfig("compact")}})
        entry = admin.describe_configs([resource], include_synonyms=True)[resource]["cleanup.policy"]
        assert (entry.value, entry.source, entry.type) == ("delete,compact", "dynamic_topic", "list")
        assert [each.source for each in entry.synonyms] == ["dynamic_topic", "default"]
        admin.alter_configs({resource: {"cleanup.policy": SubtractConfig("compact")}})
        assert admin.describe_configs([resource])[resource]["cleanup.policy"].value == "delete"
        with pytest.raises(InvalidConfigError, match="is not a list"):
            admin.alter_configs({resource: {"retention.ms": AppendConfig("5")}})
        admin.alter_configs({resource: {"cleanup.policy": None}})
