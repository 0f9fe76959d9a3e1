"""The program ``python -m headrace_gateway``."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from headrace import Admin, LocalCluster, NewTopic, TopicPartition
from headrace_core.node.state_file import RuntimeState, read_state
from headrace_core.records import encode_batch
from headrace_kafka.wire.apis import Api
from tests.worlds.kafka_protocol import KafkaWire, gateway_config, read_answer, request_frame
from tests.worlds.waiting import WAIT_S, until

CONNECTIONS = 5_000
AT_ONCE = 250  #: Connections that open, or that send a request, at a time: the queue of a listener is short.
SERVED_S = 120  #: Seconds for 5,000 connections on a busy machine.
RSS_MIB_MAX = 200


@contextlib.contextmanager
def gateway_process(
    cluster: LocalCluster, directory: Path, node_id: int
) -> Iterator[tuple[subprocess.Popen[bytes], RuntimeState]]:
    """A gateway in a process of its own, once it serves, and its state file's content."""
    config = gateway_config(cluster, node_id)
    keys = {key: ",".join(value) if isinstance(value, list) else str(value) for key, value in config.given.items()}
    file = directory / "gateway.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    process = subprocess.Popen([sys.executable, "-m", "headrace_gateway", "--config", str(file)])
    try:
        yield process, until(lambda: process.poll() is None and read_state(config.state_file))
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, mode="inprocess") as running:
        yield running


def test_a_gateway_serves_until_sigterm_and_stops_cleanly(cluster: LocalCluster, tmp_path: Path) -> None:
    with gateway_process(cluster, tmp_path, 1) as (process, state):
        assert (state.role, state.node_id, state.pid) == ("gateway", 1, process.pid)
        admin = AdminClient({"bootstrap.servers": state.listeners["PLAINTEXT"]})
        assert list(admin.list_topics(timeout=20).brokers) == [1]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert not Path(gateway_config(cluster).state_file).exists()


def test_a_gateway_serves_five_thousand_connections(cluster: LocalCluster, tmp_path: Path) -> None:
    """Each of 5,000 connections writes a record, all stay open, and then each gets an answer again."""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("crowd", partitions=6)])
    data = [{"index": 0, "records": encode_batch([(5, None, b"x", [])])}]
    topic_data = [{"name": "crowd", "partition_data": data}]
    produce = request_frame(Api.PRODUCE, 9, acks=1, timeout=60_000, topic_data=topic_data)
    versions = request_frame(Api.API_VERSIONS, 2)

    async def answer(reader: asyncio.StreamReader) -> bytes:
        return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

    async def crowd(host: str, port: int) -> list[int]:
        limit = asyncio.Semaphore(AT_ONCE)
        streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

        async def join() -> int:
            async with limit:
                reader, writer = await asyncio.open_connection(host, port)
                streams.append((reader, writer))
                writer.write(produce)
                _, message = read_answer(Api.PRODUCE, 9, await answer(reader))
                return int(message.responses[0].partition_responses[0].error_code)

        async def ask_again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
            async with limit:
                writer.write(versions)
                return int(read_answer(Api.API_VERSIONS, 2, await answer(reader))[1].error_code)

        async with asyncio.timeout(SERVED_S):
            codes = await asyncio.gather(*(join() for _ in range(CONNECTIONS)))
            codes += await asyncio.gather(*(ask_again(*each) for each in streams))
        for _, writer in streams:
            writer.close()
        return codes

    with gateway_process(cluster, tmp_path, 2) as (process, state):
        host, _, port = state.listeners["PLAINTEXT"].rpartition(":")
        with KafkaWire(f"{host}:{port}") as wire:  # until the gateway knows the topic's leaders
            until(lambda: wire.ask(Api.METADATA, 9, topics=[{"name": "crowd"}]).topics[0].error_code == 0)
        assert asyncio.run(crowd(host, int(port))) == [0] * (2 * CONNECTIONS)
        memory = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
        assert memory is not None
        assert int(memory[1]) / 1024 <= RSS_MIB_MAX
    first = TopicPartition("crowd", 0)
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        assert admin.list_offsets({first: "latest"})[first].offset == CONNECTIONS
