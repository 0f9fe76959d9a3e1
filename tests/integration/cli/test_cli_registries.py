"""``headrace up --registries``: replicas of the schema registry beside the other nodes, and their commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.registries import RegistryRefusal, avro, registry_client
from tests.worlds.waiting import until

Cli = Callable[..., Any]
SMALL = ("--brokers", "1", "--controllers", "1", "--port", "0", "--kafka-port", "0")


@pytest.fixture
def data(tmp_path: Path, bare_cli: Cli) -> Iterator[Path]:
    """A directory for a cluster, which is always stopped at the end."""
    yield tmp_path / "cluster"
    bare_cli("down", "--data", tmp_path / "cluster", code=None)


def registries(bare_cli: Cli, data: Path) -> list[dict[str, Any]]:
    rows = bare_cli("ps", "--data", data, "-o", "json").json()
    return [row for row in rows if row["role"] == "registry"]


def register(url: str, subject: str, number: int) -> int | None:
    """The id of a schema; None while no replica is the writer."""
    try:
        with registry_client(url) as client:
            return client.register(subject, avro(number))
    except RegistryRefusal as refusal:
        if refusal.status < 500:
            raise
        return None


def test_the_life_of_a_registrys_replicas(bare_cli: Cli, data: Path) -> None:
    up = bare_cli("up", "--data", data, *SMALL, "--registries", "1", "--registry-port", "0", "-d")
    (first,) = registries(bare_cli, data)
    assert first["address"].startswith("http://127.0.0.1:")
    assert first["data_dirs"] == []
    assert f"schema.registry.url={first['address']}" in up.text
    assert register(first["address"], "orders", 1) == 1, "a registry that is up takes writes"

    more = bare_cli("up", "--data", data, "--registries", "2", "--registry-port", "0", "-d", "-o", "json").json()
    assert [row["role"] for row in more["nodes"]] == ["controller", "broker", "coordinator", "registry", "registry"]
    one, two = registries(bare_cli, data)
    assert one == first
    assert register(two["address"], "orders-2", 2) == 2, "whichever writes: the other one forwards"

    os.kill(one["pid"], signal.SIGKILL)
    until(lambda: registries(bare_cli, data)[0]["pid"] is None)
    assert until(lambda: register(two["address"], "orders-3", 3)) == 3
    bare_cli("restart", "registry", "1", "--data", data)
    with registry_client(one["address"]) as client:
        assert client.call("GET", "/subjects") == ["orders", "orders-2", "orders-3"]

    rolled = bare_cli("cluster", "roll", "--data", data, "--role", "registry", "-o", "json").json()
    assert [(each["role"], each["id"]) for each in rolled["restarted"]] == [("registry", 1), ("registry", 2)]

    stopped = bare_cli("down", "--data", data, "-o", "json").json()["stopped"]
    assert [each["role"] for each in stopped] == ["controller", "broker", "coordinator", "registry", "registry"]
    bare_cli("up", "--data", data, "-d")
    assert until(lambda: register(one["address"], "orders-4", 4)) == 4, "the topic has everything"
    refused = bare_cli("up", "--data", data, "--registries", "1", "-d", code=1)
    assert "--registries 1: the cluster" in refused.err
    assert "has 2, and nodes can only be added" in refused.err


def test_keys_of_the_registry_are_set_like_those_of_other_nodes(bare_cli: Cli, data: Path) -> None:
    level = ("-c", "schema.compatibility.level=FULL")
    bare_cli("up", "--data", data, *SMALL, "--registries", "1", "--registry-port", "0", *level, "-d")
    (node,) = registries(bare_cli, data)
    with registry_client(node["address"]) as client:
        assert client.call("GET", "/config")["compatibilityLevel"] == "FULL"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--coordinators", "0", "--registries", "1"), "a registry needs a coordinator"),
        (("-c", "registry.listeners=http://:1"), "registry.listeners cannot be overridden"),
        (("-c", "kafkastore.bootstrap.servers=a:1"), "kafkastore.bootstrap.servers cannot be overridden"),
        (("--registry-port", "70000"), "registry_port=70000"),
    ],
)
def test_what_a_registry_cannot_have_is_refused(
    bare_cli: Cli, data: Path, arguments: tuple[str, ...], error: str
) -> None:
    refused = bare_cli("up", "--data", data, *SMALL, *arguments, "-d", code=None)
    assert refused.code != 0
    assert error in refused.err
    assert not (data / "cluster.json").exists()


def test_a_registry_without_its_cluster_fails_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "registry.properties"
    file.write_text(
        "kafkastore.bootstrap.servers=127.0.0.1:1\nregistry.listeners=http://127.0.0.1:0\n"
        "kafkastore.init.timeout.ms=1500\n"
    )
    command = [sys.executable, "-m", "headrace_registry", "--config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
