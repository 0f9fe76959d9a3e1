"""A registry in a LocalCluster, in one process and in separate ones, and its HTTP port over a life of the node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import LocalCluster
from headrace.engine.io_thread import io_thread
from headrace_core.node.config import NodeConfig
from headrace_core.node.state_file import read_state
from headrace_registry import app
from headrace_registry.app import RegistryNode
from headrace_tools.local.health import answers_http
from tests.worlds.registries import RegistryClient, RegistryRefusal, avro, registry_client
from tests.worlds.waiting import until


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, registries=2, mode="inprocess") as running:
        yield running


def test_an_in_process_cluster_has_registries(cluster: LocalCluster) -> None:
    one, two = cluster.registry_urls.split(",")
    with registry_client(one) as client, registry_client(two) as other:
        given = client.register("orders", avro(1))
        assert other.register("orders", avro(1)) == given
        assert other.schema(given) == client.schema(given)
    cluster.kill("registry", 1)
    assert not answers_http("127.0.0.1", int(one.rpartition(":")[2]), timeout_s=1.0)
    cluster.restart("registry", 1)
    with registry_client(one) as client:
        assert client.schema(given) == avro(1)


def test_a_node_serves_http_until_it_stops_and_names_its_port_in_the_state_file(
    cluster: LocalCluster, tmp_path: Any
) -> None:
    keys = {
        "node.id": "7",
        "runtime.state.file": str(tmp_path / "node.json"),
        "kafkastore.bootstrap.servers": cluster.bootstrap_servers,
        "kafkastore.topic": "own",
        "kafkastore.topic.replication.factor": "1",
        "schema.registry.group.id": "own",
        "registry.listeners": "http://127.0.0.1:0,http://[::1]:0",
    }
    node = RegistryNode(NodeConfig.from_properties(keys, role="registry"))

    async def start() -> None:
        await node.start()

    io_thread().run(start())
    try:
        state = until(lambda: read_state(str(tmp_path / "node.json")))
        assert (state.role, state.node_id) == ("registry", 7)
        assert state.listeners["http2"].startswith("[::1]:")
        with registry_client(f"http://{state.listeners['http1']}") as client:
            assert client.register("a", avro(1)) == 1, "its own topic: ids begin at 1"
    finally:
        io_thread().run(node.stop())
    assert read_state(str(tmp_path / "node.json")) is None
    port = int(state.listeners["http1"].rpartition(":")[2])
    assert not answers_http("127.0.0.1", port, timeout_s=1.0)


@pytest.mark.long
def test_the_last_writer_writes_again_soon_after_a_crash_of_all_nodes() -> None:
    """The coordinator has died too, so it keeps the dead member of the group for the session timeout (45 s)."""
    with LocalCluster(brokers=1, controllers=1, registries=1) as crashed:
        with registry_client(crashed.registry_urls) as client:
            assert client.register("before", avro(1)) == 1
        nodes = [(node["role"], node["id"]) for node in crashed.ps()]
        for node in nodes:
            crashed.kill(*node)
        for node in nodes:
            crashed.restart(*node)
        with registry_client(crashed.registry_urls) as client:
            assert until(lambda: registered(client, "after", 2), "the registry writes again", 20) == 2


def registered(client: RegistryClient, subject: str, number: int) -> int | None:
    """The id of a schema; None while no replica is the writer."""
    try:
        return client.register(subject, avro(number))
    except RegistryRefusal as refusal:
        if refusal.status < 500:
            raise
        return None


def test_a_port_that_is_taken_is_named(cluster: LocalCluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        keys = {
            "kafkastore.bootstrap.servers": cluster.bootstrap_servers,
            "registry.listeners": f"http://127.0.0.1:{port}",
        }
        node = RegistryNode(NodeConfig.from_properties(keys, role="registry"))

        async def start_and_stop() -> None:
            try:
                await node.start()
            finally:
                await node.stop()

        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port} \(registry\.listeners\)"):
            io_thread().run(start_and_stop())


def test_writes_are_refused_and_reads_answered_without_a_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "FIRST_WRITER_S", 0.2)
    with LocalCluster(brokers=1, controllers=1, coordinators=0, mode="inprocess") as lonely:
        keys = {
            "kafkastore.bootstrap.servers": lonely.bootstrap_servers,
            "kafkastore.topic.replication.factor": "1",
            "registry.listeners": "http://127.0.0.1:0",
        }
        node = RegistryNode(NodeConfig.from_properties(keys, role="registry"))

        async def scenario() -> None:
            try:
                await node.start()
                assert node.registry is not None
                assert node.registry.writer_url is None
                reader, writer = await asyncio.open_connection("127.0.0.1", int(node.registry.url.rpartition(":")[2]))
                writer.write(b"GET /subjects HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
                assert answer.startswith(b"HTTP/1.1 200")
                assert answer.endswith(b"[]")
                writer.close()
            finally:
                await node.stop()

        io_thread().run(scenario())
