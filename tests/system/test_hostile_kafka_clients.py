"""Hostile clients of Kafka's protocol besides a well-behaved one.

The long test runs the attackers of bench/kafka_attackers.py against processes, for two seconds each. The others look
into a broker of this process, at real sockets.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from headrace import Admin, LocalCluster, NewTopic
from headrace_kafka.wire.apis import Api
from tests.worlds.kafka_protocol import door_of, read_answer, request_frame
from tests.worlds.waiting import until

BENCH = Path(__file__).parents[2] / "bench" / "hostile.py"
ATTACKERS = (
    "slow_readers,half_open,oversized,connects_and_resets,pipelined,idle_connections,waiting_members,garbage_records,"
    "large_garbage,batch_bombs,many_partitions,many_topics,garbage"
)
#: The limits are high because the machine runs other tests too: above them, a client waits for the attackers.
P99_MS_MAX, RECORD_S_MAX = 2_000, 5.0
TOPIC, FILLED = "victim", "filled"
CONFIG = {"group.initial.rebalance.delay.ms": "0"}
#: Frames that end a connection: sizes of 2 GiB, negative ones, and one byte above socket.request.max.bytes.
ILLEGAL = [struct.pack(">ihh", size, Api.METADATA, 12) for size in (2**31 - 1, -1, -(2**31), 104_857_601)]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_well_behaved_client_is_served_beside_hostile_ones() -> None:
    names = [f"kafka_{each}" for each in ATTACKERS.split(",")]
    command = [sys.executable, str(BENCH), "--smoke", "--small", "--only", ",".join(names)]
    command += ["--floor-ms", str(P99_MS_MAX)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)
    print(done.stdout)
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert [each["what"] for each in reports[1:-2]] == names
    assert reports[-1]["lost"] == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, kafka=True, mode="inprocess", config=CONFIG) as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(each, partitions=1, replication_factor=1) for each in (TOPIC, FILLED)])
        yield running


def address(cluster: LocalCluster) -> tuple[str, int]:
    host, _, port = cluster.kafka_bootstrap_servers.rpartition(":")
    return host, int(port)


@contextlib.contextmanager
def held(cluster: LocalCluster, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open connections, each of which has sent ``first``."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(address(cluster), timeout=30))
            connection.sendall(first)
            connections.append(connection)
        yield connections


class WellBehaved:
    """Sends a record, waits until it is received, and notes how long that took; again and again."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.seconds: list[float] = []
        servers = cluster.kafka_bootstrap_servers
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "log_level": 0})
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "log_level": 0})
        self._consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> WellBehaved:
        self._thread.start()
        until(lambda: len(self.seconds) > 20)
        self.seconds.clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()

    def goes_on(self, records: int = 100) -> None:
        """Wait for more records, each of which took RECORD_S_MAX at most."""
        wanted = len(self.seconds) + records
        until(lambda: len(self.seconds) >= wanted)
        assert max(self.seconds) < RECORD_S_MAX

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            value = b"%r" % began
            self._producer.produce(TOPIC, value)
            self._producer.poll(0)
            while not self._over.is_set():
                if value in [each.value() for each in self._consumer.consume(1, 0.5)]:
                    self.seconds.append(time.monotonic() - began)
                    break


def test_half_open_connections_and_illegal_frames_slow_no_client(cluster: LocalCluster) -> None:
    half = bytes(request_frame(Api.PRODUCE, 9, body=bytes(400 * 1024)))[: 200 * 1024]
    with WellBehaved(cluster) as client, held(cluster, 500, b"\0\0"), held(cluster, 100, half):
        until(lambda: len(door_of(cluster).connections.open) >= 600)
        client.goes_on()
        for data in ILLEGAL:
            with held(cluster, 50, data) as connections:
                for each in connections:
                    assert each.recv(1) == b"", "the broker closes the connection"
        client.goes_on()


def test_hundreds_of_calls_that_wait_slow_no_client_and_end_with_their_connections(cluster: LocalCluster) -> None:
    """JoinGroup waits for the other members; a closed connection cancels its call at the coordinator."""
    join = request_frame(
        Api.JOIN_GROUP,
        3,
        group_id="waiting",
        session_timeout=60_000,
        rebalance_timeout=300_000,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b"x"}],
    )

    pools = door_of(cluster)._upstream._pools

    def calls() -> int:
        # (copies, because the broker's thread changes the collections)
        return sum(channel.calls for pool in list(pools.values()) for channel in list(pool._channels))

    with WellBehaved(cluster) as client:
        with held(cluster, 1, bytes(join)) as (first,):
            answer = first.recv(4, socket.MSG_WAITALL)
            answer = first.recv(int.from_bytes(answer, "big"), socket.MSG_WAITALL)
            assert read_answer(Api.JOIN_GROUP, 3, answer)[1].error_code == 0
            with held(cluster, 300, bytes(join)):  # they wait for the first member to join again
                until(lambda: calls() >= 300, lambda: f"{calls()} calls wait")
                client.goes_on()
            until(lambda: calls() < 10, lambda: f"{calls()} calls still wait")
        client.goes_on()


def test_clients_that_read_nothing_get_little_and_slow_no_client(cluster: LocalCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.kafka_bootstrap_servers, "batch.size": 20_000, "log_level": 0})
    for _ in range(1_000):
        producer.produce(FILLED, bytes(10_000))
    assert producer.flush(60) == 0
    fetch = request_frame(
        Api.FETCH,
        11,
        replica_id=-1,
        max_wait=100,
        min_bytes=1,
        max_bytes=50 << 20,
        session_id=0,
        session_epoch=-1,
        topics=[{"topic": FILLED, "partitions": [{"partition": 0, "partition_max_bytes": 50 << 20}]}],
    )
    with held(cluster, 1) as (reader,):
        sizes = []
        for _ in range(4):
            reader.sendall(bytes(fetch))
            size = left = int.from_bytes(reader.recv(4, socket.MSG_WAITALL), "big")
            while left:
                left -= len(reader.recv(left))
            sizes.append(size)
        assert sizes[0] < 100_000 < 200_000 < sizes[1] < 300_000 < 900_000 < sizes[3]
    with WellBehaved(cluster) as client, held(cluster, 50, bytes(fetch * 5)):
        until(lambda: sum(each._is_stalled for each in list(door_of(cluster).connections.open)) >= 50)
        assert door_of(cluster).connections.answers.unread < 70 << 20
        client.goes_on()
    answers = door_of(cluster).connections.answers
    until(lambda: (answers.unread, answers.fetches) == (0, 0))


def test_a_long_rack_costs_no_stream(cluster: LocalCluster) -> None:
    """A broker refuses a rack of a megabyte, and then does not read the connection, which streams share."""
    fetch = request_frame(Api.FETCH, 12, replica_id=-1, max_bytes=1, topics=[
        {"topic": TOPIC, "partitions": [{"partition": 0, "partition_max_bytes": 1}]}
    ], session_epoch=-1, rack_id="r" * 100_000)  # fmt: skip
    with held(cluster, 1, bytes(fetch)) as (connection,):
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        answer = read_answer(Api.FETCH, 12, connection.recv(size, socket.MSG_WAITALL))[1]
        assert [each.error_code for topic in answer.responses for each in topic.partitions] == [0]
        (path,) = [each.client.fetch for each in list(door_of(cluster).connections.open) if each.client.fetch]
        assert path._stream.way._is_open


def test_large_refused_requests_of_one_client_slow_no_other_client(cluster: LocalCluster) -> None:
    """The broker does not read the connection of refused bytes for a second for each 2 MiB. The streams of several
    clients shared that connection."""
    garbage = request_frame(Api.PRODUCE, 9, acks=-1, timeout=5_000, topic_data=[
        {"name": FILLED, "partition_data": [{"index": 0, "records": bytes(15 << 20)}]}
    ])  # fmt: skip
    with WellBehaved(cluster) as client, held(cluster, 4) as connections:
        for each in connections:
            each.sendall(bytes(garbage))
        for each in connections:
            each.settimeout(60)
            assert each.recv(1), "the broker answers"
        client.goes_on(300)


@pytest.mark.parametrize("key", ["max.connections.per.ip", "max.connections"])
def test_connections_above_the_limits_are_closed_and_the_others_go_on(key: str) -> None:
    with (
        LocalCluster(
            brokers=1, controllers=1, coordinators=1, kafka=True, mode="inprocess", config={**CONFIG, key: "30"}
        ) as cluster,
        WellBehaved(cluster) as client,
        held(cluster, 100) as connections,
    ):
        ended = [each for each in connections if _has_ended(each)]
        assert 70 <= len(ended) < 100
        client.goes_on()


def _has_ended(connection: socket.socket) -> bool:
    """Whether the broker closes the connection, rather than answer."""
    try:
        connection.sendall(bytes(request_frame(Api.API_VERSIONS, 3)))
        return not connection.recv(1)
    except ConnectionError:
        return True
