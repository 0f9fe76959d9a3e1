"""Clients that flood a secured cluster, and what a well-behaved neighbour notices.

Nodes and flooders (flooders.py) are processes. The bounds are wide, because the machine of a test is slow and
shared: a cluster that one of these floods stops has latencies of many seconds.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, LocalCluster, NewTopic, Producer, ScramMechanism, UserScramCredentialUpsertion
from headrace.errors import SaslAuthenticationFailedError, ServerBusyError
from headrace_core.node.sasl_sessions import EXCHANGES_PER_HOST_MAX
from headrace_core.security.sasl.scram import SHA_512
from headrace_core.security.sasl.scram_exchange import ScramClient
from headrace_kafka.connections import UNAUTHENTICATED_MAX
from tests.integration.security.flooders import READY, REFUSED_WRITE
from tests.integration.security.test_attacks import allowed
from tests.worlds.security import KafkaDoor, Refused, SdkDoor, channel, log_in
from tests.worlds.waiting import until

ROOT = Path(__file__).resolve().parents[3]
PASSWORD = "pl4nted-s3cret"
#: A flood's effect on the neighbour: p99 of a record's latency, in seconds (CI's machine is slow and shared), and the
#: growth of a process's memory.
P99_S_MAX, GROWTH_MIB_MAX = 9.0 if os.environ.get("CI") == "true" else 3.0, 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    config = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512", "connection.failed.authentication.delay.ms": "20"}
    with LocalCluster(brokers=1, controllers=1, coordinators=0, kafka=True, secure=True, config=config) as running:
        with Admin.from_properties(running.client_properties, bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("orders")])
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(name, PASSWORD, ScramMechanism.SCRAM_SHA_512) for name in ("ann", "eve")]
            )
            admin.create_acls([allowed("User:ann", "orders"), allowed("User:eve", "orders")])
        yield running


@contextmanager
def flooded(cluster: LocalCluster, kind: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a flooder; the block begins with the attack."""
    is_kafka = kind.startswith("kafka")
    address = cluster.kafka_bootstrap_servers if is_kafka else cluster.bootstrap_servers
    all_settings = {"address": address, "ca": str(cluster.directory / "security" / "ca.pem"), **settings}
    command = [sys.executable, "-m", "tests.integration.security.flooders", kind, json.dumps(all_settings)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == READY
            yield process
        finally:
            process.kill()


class Neighbour:
    """Makes one request after the other until it is stopped; ``latencies_s`` of all of them."""

    def __init__(self, request: Callable[[], object]) -> None:
        self._request = request
        self._request()
        self.latencies_s: list[float] = []
        self.error: Exception | None = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.wait(0.01):
            began_s = time.monotonic()
            try:
                self._request()
            except Exception as error:  # noqa: BLE001 - the test reports it
                self.error = error
                return
            self.latencies_s.append(time.monotonic() - began_s)

    def p99_s(self) -> float:
        assert self.error is None, self.error
        assert self.latencies_s, "no request was answered within the whole flood"
        ordered = sorted(self.latencies_s)
        return ordered[int(len(ordered) * 0.99)]


@contextmanager
def neighbour_of(cluster: LocalCluster, kind: str) -> Iterator[Neighbour]:
    """A neighbour at the attacked door: it produces at the broker, or reads metadata by Kafka's protocol."""
    if kind.startswith("kafka"):
        with KafkaDoor(cluster) as door:
            log_in(door, ScramClient(SHA_512, "ann", PASSWORD))
            with Neighbour(door.topics) as neighbour:
                yield neighbour
        return
    options: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers, "linger_ms": 0}
    with (
        Producer.from_properties(cluster.client_properties, **options) as producer,
        Neighbour(lambda: producer.send("orders", b"a record").result(timeout=30)) as neighbour,
    ):
        yield neighbour


def resident_mib(cluster: LocalCluster) -> dict[str, float]:
    """The memory of each process of the cluster."""
    nodes = {f"{node['role']} {node['id']}": node["pid"] for node in cluster.ps()}
    return {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) / 256 for name, pid in nodes.items()}


def attack(cluster: LocalCluster, kind: str, **settings: Any) -> Any:
    """Flood the cluster beside a neighbour; returns the flooder's report."""
    before = resident_mib(cluster)
    with neighbour_of(cluster, kind) as neighbour, flooded(cluster, kind, **settings) as process:
        assert process.stdout is not None
        report = json.loads(process.stdout.readline())
    after = resident_mib(cluster)
    grown_mib = {name: round(after[name] - before[name]) for name in before}
    p99_ms, count = neighbour.p99_s() * 1_000, len(neighbour.latencies_s)
    print(
        f"{kind}: p99 {p99_ms:.0f} ms of {count} requests, largest {max(neighbour.latencies_s):.2f} s",
        grown_mib,
        report,
    )
    assert neighbour.p99_s() < P99_S_MAX
    assert max(grown_mib.values()) < GROWTH_MIB_MAX
    return report["seen"]


# -- half exchanges: before the floods, because a node refuses the ports of failed connections for a while ------------


def ann() -> ScramClient:
    return ScramClient(SHA_512, "ann", PASSWORD)


def test_half_exchanges_keep_out_only_new_logins_of_their_host(cluster: LocalCluster) -> None:
    with ExitStack() as stack:
        before = stack.enter_context(SdkDoor(cluster))
        log_in(before, ann())
        made = [stack.enter_context(channel(cluster)) for _ in range(EXCHANGES_PER_HOST_MAX // 25)]
        for number in range(EXCHANGES_PER_HOST_MAX):
            half = stack.enter_context(SdkDoor(cluster, through=made[number // 25]))
            half.begin("SCRAM-SHA-512", ann().first())
        with SdkDoor(cluster) as late, pytest.raises(Refused) as caught:
            log_in(late, ann())
        assert caught.value.code == ServerBusyError.code, "the SDK retries it"
        assert before.topics() == ["orders"]
        with relay(cluster.bootstrap_servers, "127.0.0.2") as address, SdkDoor(cluster, address=address) as other:
            log_in(other, ann())
            assert other.topics() == ["orders"]
    until(lambda: _logs_in(cluster), "a login after the half exchanges have ended")


def _logs_in(cluster: LocalCluster) -> bool:
    with SdkDoor(cluster) as door:
        with suppress(Refused):
            log_in(door, ann())
        return door.is_open


def test_half_exchanges_at_a_kafka_listener_end_the_oldest_of_them_only(cluster: LocalCluster) -> None:
    with ExitStack() as stack:
        before = stack.enter_context(KafkaDoor(cluster))
        log_in(before, ann())
        halves = [stack.enter_context(KafkaDoor(cluster)) for _ in range(UNAUTHENTICATED_MAX + 20)]
        for half in halves[-20:]:
            half.begin("SCRAM-SHA-512", ann().first())
        with KafkaDoor(cluster) as late:
            log_in(late, ann())
            assert late.topics() == ["orders"]
        with pytest.raises(Refused):
            halves[0].begin("SCRAM-SHA-512", ann().first())
        assert before.topics() == ["orders"]


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.long)])
def test_failed_logins_at_a_node_do_not_delay_a_neighbour(cluster: LocalCluster, count: int) -> None:
    seen = attack(cluster, "sdk_logins", count=count)
    assert sum(seen.values()) == count
    # busy: on the port of a former guess
    assert set(seen) <= {SaslAuthenticationFailedError.code, ServerBusyError.code, REFUSED_WRITE}
    assert seen.get(REFUSED_WRITE, 0) <= count * 0.05
    assert seen[SaslAuthenticationFailedError.code] > count * 0.8


@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.long)])
def test_failed_logins_by_kafkas_protocol_do_not_delay_a_neighbour(cluster: LocalCluster, count: int) -> None:
    assert attack(cluster, "kafka_logins", count=count) == {str(SaslAuthenticationFailedError.number): count}


@pytest.mark.parametrize("kind", ["requests", "streams", "huge", "names"])
def test_a_user_that_floods_does_not_delay_a_neighbour(cluster: LocalCluster, kind: str) -> None:
    seen = attack(cluster, kind, seconds=2.0, user="eve", password=PASSWORD)
    assert sum(seen.values()) > 0


@contextmanager
def relay(target: str, source: str) -> Iterator[str]:
    """Carry the bytes of connections to ``target`` from another address of this machine; yields host:port."""
    host, _, port = target.rpartition(":")
    sockets: list[socket.socket] = []

    def pump(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65_536):
                other.sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((host, int(port)), 10, source_address=(source, 0))
                sockets.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for each in sockets:
            each.close()
