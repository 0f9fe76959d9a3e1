"""A gateway beside a ``LocalCluster(mode="inprocess")``, on the same event loop."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import LocalCluster
from headrace.engine.io_thread import io_thread
from headrace_core.node.config import NodeConfig
from headrace_core.node.meta_properties import format_directories
from headrace_gateway.app import Gateway


def gateway_config(cluster: LocalCluster, node_id: int = 1, **more: str) -> NodeConfig:
    """The configuration of a gateway with free ports; its directory is formatted. ``more``: further keys, with
    underscores in place of dots."""
    directory = Path(cluster.directory)
    state = json.loads((directory / "cluster.json").read_text())
    data = str(directory / f"gateway-{node_id}")
    format_directories([data], cluster_id=state["cluster_id"], node_id=node_id, ignore_formatted=True)
    controllers = [f"127.0.0.1:{node['internal_port']}" for node in state["nodes"] if node["role"] == "controller"]
    properties = {
        "node.id": str(node_id),
        "log.dirs": data,
        "listeners": "internal://127.0.0.1:0",
        "kafka.listeners": "PLAINTEXT://127.0.0.1:0",
        "controller.quorum.bootstrap.servers": ",".join(controllers),
    }
    return NodeConfig.from_properties(
        properties | {key.replace("_", "."): value for key, value in more.items()}, role="gateway"
    )


def topic_name(request: pytest.FixtureRequest) -> str:
    """Make a topic name from the name of the running test."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name)[:200]


def begin_gateway(cluster: LocalCluster, node_id: int = 1, **more: str) -> Gateway:
    """Start a gateway; the caller ends it with ``end_gateway``."""
    config = gateway_config(cluster, node_id, **more)

    async def begin() -> Gateway:
        gateway = Gateway(config)
        try:
            await gateway.start()
        except BaseException:
            await gateway.stop(at_once=True)
            raise
        return gateway

    return io_thread().run(begin())


def end_gateway(gateway: Gateway, *, at_once: bool = False) -> None:
    """Stop a gateway; ``at_once``: without a clean shutdown, as close to a crash as possible."""
    io_thread().run(gateway.stop(at_once=at_once))


@contextlib.contextmanager
def running_gateway(cluster: LocalCluster, node_id: int = 1, **more: str) -> Iterator[Gateway]:
    """Run a gateway; Kafka clients begin at ``gateway.bootstrap_servers``."""
    gateway = begin_gateway(cluster, node_id, **more)
    try:
        yield gateway
    finally:
        end_gateway(gateway)
