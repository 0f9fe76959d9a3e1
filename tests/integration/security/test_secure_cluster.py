"""A cluster that is secure (`headrace up --secure`, ``LocalCluster(secure=True)``): what works with its
client.properties, and what is refused without."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import stat
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer
from headrace.errors import BootstrapError, HeadraceError, InvalidConfigError, TopicAuthorizationFailedError
from headrace_core.rpc.channel import COMMON_OPTIONS
from headrace_core.security.tls import TLS_12_SUITES, TLS_13_SUITES
from headrace_tools.certs.authority import Authority, read_file
from headrace_tools.cli.app import run
from tests.worlds.security import contents_of
from tests.worlds.waiting import until

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        brokers=1, controllers=1, coordinators=1, kafka=True, registries=1, mode="inprocess", secure=True
    ) as running:
        with admin(running) as client:
            client.create_topics([NewTopic("orders", partitions=2)])
        yield running


def admin(cluster: LocalCluster) -> Admin:
    return Admin.from_properties(cluster.client_properties, bootstrap_servers=cluster.bootstrap_servers)


def security(cluster: LocalCluster) -> Path:
    return cluster.directory / "security"


def grpc_ports(cluster: LocalCluster) -> dict[str, str]:
    """The address of every gRPC port, by the listener's name."""
    found = {}
    for path in sorted(cluster.directory.glob("*/node.json")):  # with the real ports
        for name, address in json.loads(path.read_text())["listeners"].items():
            if not name.startswith("kafka"):
                found[f"{path.parent.name} {name}"] = address
    assert {"broker-1 client", "coordinator-1 internal", "controller-1 client"} <= set(found)
    return found


def all_ports(cluster: LocalCluster) -> dict[str, str]:
    http = {f"{node['role']}-{node['id']} metrics": node["metrics"] for node in cluster.ps()}
    http["registry"] = cluster.registry_urls
    kafka = {"broker-1 kafka": cluster.kafka_bootstrap_servers}
    return grpc_ports(cluster) | kafka | {name: url.split("/")[2] for name, url in http.items()}


def test_the_cluster_has_delegation_tokens(cluster: LocalCluster) -> None:
    with admin(cluster) as client:
        token = client.create_delegation_token()
    config = {"bootstrap_servers": cluster.bootstrap_servers, "sasl.jaas.config": token.jaas_config}
    with Admin.from_properties(cluster.client_properties, **config) as holder:
        assert "orders" in holder.list_topics()


def test_the_file_is_all_that_clients_need(cluster: LocalCluster) -> None:
    path, servers = cluster.client_properties, cluster.bootstrap_servers
    with Producer.from_properties(path, bootstrap_servers=servers, transactional_id="t") as producer:
        with producer.transaction():
            sent = producer.send("orders", b"in a transaction", key=b"k")
        assert sent.result(timeout=10).offset == 0
    options: dict[str, Any] = {"group_id": "g", "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    with Consumer.from_properties(path, bootstrap_servers=servers, **options) as consumer:
        consumer.subscribe(["orders"])
        (record,) = until(lambda: consumer.poll(timeout=1.0), "the record")
        assert record.value == b"in a transaction"
        consumer.commit()
    with admin(cluster) as client:
        assert client.describe_cluster().cluster_id


def test_the_command_line_takes_the_file_on_every_command(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["-b", cluster.bootstrap_servers]
    assert run(["topics", "list", *flags, "--command-config", str(cluster.client_properties)]) == 0
    assert "orders" in capsys.readouterr().out
    assert run(["topics", "list", *flags]) == 1
    assert "the server encrypts, but this client does not" in capsys.readouterr().err
    monkeypatch.setenv("HEADRACE_COMMAND_CONFIG", str(cluster.client_properties))
    assert run(["doctor", *flags]) == 0, capsys.readouterr().out


def test_keys_of_other_clients_are_left_out_and_mistakes_are_named_with_their_line(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.write_text(cluster.client_properties.read_text() + "group.id=g\nacks=all\n")
    Producer.from_properties(path, bootstrap_servers=cluster.bootstrap_servers).close()
    with Admin.from_properties(path, bootstrap_servers=cluster.bootstrap_servers) as client:
        assert client.list_topics()
    path.write_text("security.protocl=SSL\n")
    with pytest.raises(InvalidConfigError, match=r"did you mean 'security.protocol'.*client.properties, line 1"):
        Admin.from_properties(path)
    with pytest.raises(InvalidConfigError, match=r"has no effect with security.protocol=PLAINTEXT"):
        Admin(ssl_ca_location="ca.pem").list_topics()


def test_ports_of_nodes_fail_the_handshake_without_a_certificate(cluster: LocalCluster) -> None:
    ca = (security(cluster) / "ca.pem").read_bytes()
    for name, address in grpc_ports(cluster).items():
        for credentials in (None, grpc.ssl_channel_credentials(ca)):
            if credentials is not None and name.endswith(" client"):
                continue
            options = [*COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
            channel = (
                grpc.insecure_channel(address, options)
                if credentials is None
                else grpc.secure_channel(address, credentials, options)
            )
            with channel, pytest.raises(grpc.RpcError) as caught:
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)  # type: ignore[no-untyped-call]
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, name  # type: ignore[attr-defined]


def test_ports_of_clients_answer_only_health_and_authenticate_without_a_login(cluster: LocalCluster) -> None:
    ca = (security(cluster) / "ca.pem").read_bytes()
    ports = {name: address for name, address in grpc_ports(cluster).items() if name.endswith(" client")}
    assert len(ports) == 3
    for name, address in ports.items():
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca)) as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)  # type: ignore[no-untyped-call]
            for method in ("Metadata/GetMetadata", "Node/DescribeNode", "Security/DescribeUserScramCredentials"):
                with pytest.raises(grpc.RpcError) as caught:
                    channel.stream_unary(f"/headrace.v1.{method}")(iter([b""]), timeout=5)
                code = caught.value.code()  # type: ignore[attr-defined]
                assert code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED), (name, method)
                assert method != "Metadata/GetMetadata" or code is grpc.StatusCode.UNAUTHENTICATED, name


def test_a_kafka_listener_closes_a_connection_without_a_login(cluster: LocalCluster) -> None:
    host, _, port = cluster.kafka_bootstrap_servers.partition(":")
    context = ssl.create_default_context(cafile=str(security(cluster) / "ca.pem"))
    body = b"\0\x03" + b"\0\x01" + b"\0\0\0\x07" + b"\xff\xff" + b"\xff\xff\xff\xff"  # Metadata v1, all topics
    with context.wrap_socket(socket.create_connection((host, int(port)), 5), server_hostname=host) as connection:
        connection.sendall(len(body).to_bytes(4, "big") + body)
        assert connection.recv(100) == b""


def test_a_second_user_writes_the_one_topic_that_an_entry_allows(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = password_of(cluster)
    monkeypatch.setenv("WRITER_PASSWORD", "pl4nted-s3cret")
    flags = ["-b", cluster.bootstrap_servers, "--command-config", str(cluster.client_properties)]
    acl = ["--allow-principal", "User:writer", "--operation", "WRITE", "--topic", "orders"]
    assert run(["users", "create", "writer", "--password-env", "WRITER_PASSWORD", *flags]) == 0
    assert run(["acls", "create", *acl, *flags]) == 0, capsys.readouterr().err
    printed = "".join(capsys.readouterr())
    assert secret not in printed
    assert "pl4nted" not in printed
    path = tmp_path / "writer.properties"
    text = cluster.client_properties.read_text()
    path.write_text(text.replace(secret, "pl4nted-s3cret").replace('"admin"', '"writer"'))
    with admin(cluster) as client:
        client.create_topics(["private"])

    def send(topic: str) -> None:
        with Producer.from_properties(path, bootstrap_servers=cluster.bootstrap_servers) as producer:
            producer.send(topic, b"x").result(timeout=10)

    def is_allowed() -> bool:
        try:
            send("orders")
        except HeadraceError:  # the broker has not applied the entry yet
            return False
        return True

    until(is_allowed, "the entry at the broker")
    with pytest.raises(TopicAuthorizationFailedError):
        send("private")
    with Admin.from_properties(path, bootstrap_servers=cluster.bootstrap_servers) as client:
        assert client.list_topics() == ["orders"]
        with pytest.raises(HeadraceError) as caught:
            client.create_topics(["mine"])
        assert caught.value.code in ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")


def password_of(cluster: LocalCluster) -> str:
    """The password of the user admin."""
    found = re.search('password="([^"]+)"', cluster.client_properties.read_text())
    assert found is not None
    return found[1]


def test_passwords_are_only_in_files_of_their_owner(cluster: LocalCluster) -> None:
    secret = password_of(cluster).encode()
    assert len(secret) >= 32
    found = [path for path, content in contents_of(cluster.directory).items() if secret in content]
    assert sorted(path.name for path in found) == ["admin.password", "client.properties"]


def test_certificates_open_only_the_calls_of_their_role(cluster: LocalCluster) -> None:
    """A user's certificate opens no call between nodes; a broker's does not vote; no node is a user."""
    ports = grpc_ports(cluster)
    voting = "/headrace.v1.Raft/Exchange"
    replicating = "/headrace.v1.Replication/Follow"
    describing = "/headrace.v1.Node/DescribeNode"
    listing = "/headrace.v1.Metadata/GetMetadata"
    health = "/grpc.health.v1.Health/Check"
    no, never = grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED
    for who, port, method, answer in (
        ("admin", "controller-1 internal", voting, no),
        ("broker-1", "controller-1 internal", voting, never),
        ("coordinator-1", "controller-1 internal", voting, never),
        ("admin", "broker-1 internal", replicating, no),
        ("coordinator-1", "broker-1 internal", replicating, never),
        ("controller-1", "broker-1 internal", replicating, never),
        ("admin", "broker-1 internal", describing, no),
        ("admin", "coordinator-1 internal", "/headrace.v1.TransactionMarkers/WriteMarkers", no),
        ("broker-1", "broker-1 client", listing, no),
        ("admin", "broker-1 client", listing, no),
        ("admin", "broker-1 internal", health, grpc.StatusCode.OK),
        ("controller-1", "broker-1 internal", describing, grpc.StatusCode.OK),
    ):
        assert _answer(cluster, who, ports[port], method) is answer, (who, port, method)


def _answer(cluster: LocalCluster, who: str, address: str, method: str) -> grpc.StatusCode:
    """The status of one call with the certificate of ``who``."""
    own = security(cluster)
    pem = (own / f"{who}.pem").read_bytes()
    at = pem.index(b"-----BEGIN CERTIFICATE")
    credentials = grpc.ssl_channel_credentials((own / "ca.pem").read_bytes(), pem[:at], pem[at:])
    options = [*COMMON_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(address, credentials, options) as channel:
        call = channel.stream_unary(method)
        try:
            call(iter([b""]), timeout=10)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()  # type: ignore[attr-defined]
            return code
        return grpc.StatusCode.OK


def test_http_answers_401_without_credentials(cluster: LocalCluster) -> None:
    own = security(cluster)
    bare = ssl.create_default_context(cafile=str(own / "ca.pem"))
    known = ssl.create_default_context(cafile=str(own / "ca.pem"))
    known.load_cert_chain(str(own / "admin.pem"))
    urls = [node["metrics"] for node in cluster.ps()] + [f"{cluster.registry_urls}/subjects"]
    assert len(urls) == 5
    for url in urls:
        assert url.startswith("https://")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(url, context=bare, timeout=10)
        assert caught.value.code == 401, url
        assert caught.value.headers["WWW-Authenticate"] == 'Bearer realm="headrace"'
        caught.value.close()
        with urllib.request.urlopen(url, context=known, timeout=10) as answer:
            assert answer.status == 200, url


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_finds_tls_12_and_13_and_nothing_older_on_every_port(cluster: LocalCluster) -> None:
    own = security(cluster)
    known = ["-CAfile", str(own / "ca.pem"), "-cert", str(own / "admin.pem"), "-key", str(own / "admin.pem")]
    ports = all_ports(cluster)
    assert len(ports) >= 12
    for name, address in ports.items():
        for version, is_served in (("-tls1", False), ("-tls1_1", False), ("-tls1_2", True), ("-tls1_3", True)):
            command = ["openssl", "s_client", "-connect", address, *known, "-brief", version]
            weak = [] if is_served else ["-cipher", "ALL:@SECLEVEL=0"]
            done = subprocess.run([*command, *weak], input=b"", capture_output=True, timeout=20, check=False)
            assert (b"Verification: OK" in done.stderr) == is_served, (name, version, done.stderr.decode())


#: sslyze's dependencies exclude ours, so it has an environment of its own (.ci/run makes it).
SSLYZE = shutil.which("sslyze") or shutil.which("sslyze", path=str(ROOT / "build/sslyze/bin"))
#: Commands of sslyze that find a fault, and the value that says "no fault" in their result.
FAULTS = {
    "heartbleed": "is_vulnerable_to_heartbleed",
    "openssl_ccs_injection": "is_vulnerable_to_ccs_injection",
    "tls_compression": "supports_compression",
    "session_renegotiation": "is_vulnerable_to_client_renegotiation_dos",
}


@pytest.mark.skipif(SSLYZE is None, reason="sslyze is not installed (.ci/run makes build/sslyze)")
def test_sslyze_finds_no_fault_on_any_port(cluster: LocalCluster, tmp_path: Path) -> None:
    own, found = security(cluster), tmp_path / "found.json"
    ports = all_ports(cluster)
    wanted = (
        "sslv3",
        "tlsv1",
        "tlsv1_1",
        "tlsv1_2",
        "tlsv1_3",
        "heartbleed",
        "openssl_ccs",
        "robot",
        "compression",
        "reneg",
    )
    flags = [f"--{each}" for each in wanted]
    known = ["--cert", str(own / "admin.pem"), "--key", str(own / "admin.pem")]
    command = [SSLYZE, *flags, *known, "--mozilla_config", "disable", "--json_out", str(found), *ports.values()]
    subprocess.run([str(each) for each in command], capture_output=True, timeout=120, check=False)
    scans = json.loads(found.read_text())["server_scan_results"]
    assert len(scans) == len(ports)
    for scan in scans:
        where = scan["server_location"]["port"]
        results = {name: each["result"] for name, each in scan["scan_result"].items() if each["status"] == "COMPLETED"}
        suites = {
            version: {
                each["cipher_suite"]["name"] for each in results[f"{version}_cipher_suites"]["accepted_cipher_suites"]
            }
            for version in ("ssl_3_0", "tls_1_0", "tls_1_1", "tls_1_2", "tls_1_3")
        }
        assert suites["ssl_3_0"] | suites["tls_1_0"] | suites["tls_1_1"] == set(), where
        assert suites["tls_1_2"] <= set(TLS_12_SUITES), where
        assert suites["tls_1_2"], where
        assert suites["tls_1_3"] == set(TLS_13_SUITES), where
        for name, fault in FAULTS.items():
            assert results[name][fault] is False, (where, name)
        assert results["robot"]["robot_result"].startswith("NOT_VULNERABLE"), where


def test_the_client_refuses_certificates_of_another_authority(cluster: LocalCluster, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    other.init()
    config = {"bootstrap_servers": cluster.bootstrap_servers, "ssl_truststore_location": str(other.ca_path)}

    def refusal() -> str:
        """The error. On a slow machine, the time may end before the handshake."""
        with (
            Admin.from_properties(cluster.client_properties, bootstrap_timeout_ms=1_000, **config) as client,
            pytest.raises(BootstrapError) as caught,
        ):
            client.list_topics()
        return str(caught.value)

    until(lambda: "comes from an authority that this client does not trust" in refusal())


def test_files_with_keys_are_for_their_owner_only(cluster: LocalCluster) -> None:
    for path in security(cluster).iterdir():
        assert path.stat().st_mode & 0o777 == (0o644 if path.name == "ca.pem" else 0o600), path
    assert security(cluster).stat().st_mode & 0o077 == 0


def test_everything_that_the_nodes_and_the_cluster_write_belongs_to_its_owner(cluster: LocalCluster) -> None:
    with Producer.from_properties(cluster.client_properties, bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("orders", b"secret").result(30)
    with Consumer.from_properties(
        cluster.client_properties,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id="modes",
        auto_offset_reset="earliest",
    ) as consumer:
        consumer.subscribe(["orders"])
        until(lambda: bool(consumer.poll(1.0)))
        consumer.commit()
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (cluster.directory, *cluster.directory.rglob("*"))}
    assert found.pop(security(cluster) / "ca.pem") == 0o644  # public
    assert {"meta.properties", "node.json", "cluster.json"} <= {path.name for path in found}
    assert [path for path in found if path.suffix == ".log" and "orders-0" in path.parent.name]
    assert {str(path): oct(mode) for path, mode in found.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


def test_certificates_that_are_renewed_under_load_fail_no_send(cluster: LocalCluster) -> None:
    """Every node and the client get new keys, several times; the broker restarts meanwhile, so that all connect
    again with the new ones."""
    own = security(cluster)
    files = [path for path in own.glob("*.pem") if path.name != "ca.pem"]
    servers = cluster.bootstrap_servers
    stop, failures, acknowledged = threading.Event(), [], [0]

    def send() -> None:
        with Producer.from_properties(cluster.client_properties, bootstrap_servers=servers) as producer:
            while not stop.is_set():
                try:
                    for future in [producer.send("orders", b"x" * 100) for _ in range(20)]:
                        future.result(timeout=60)
                        acknowledged[0] += 1
                except HeadraceError as error:
                    failures.append(error)
                    return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        serials = set()
        for turn in range(3):
            for path in files:
                Authority(own).renew(path)
            latest = read_file(own / "broker-1.pem")[0].serial
            serials.add(latest)
            before = acknowledged[0]
            if turn == 1:
                cluster.restart("broker", 1)
            until(lambda before=before: failures or acknowledged[0] > before + 200, "sends after new certificates")
            until(
                lambda latest=latest: failures or _serial_of(servers, own) == latest, "the new certificate at the port"
            )
    finally:
        stop.set()
        thread.join(60)
    assert not failures
    assert len(serials) == 3


def _serial_of(address: str, own: Path) -> int:
    """The serial number of the certificate that a port presents."""
    context = ssl.create_default_context(cafile=str(own / "ca.pem"))
    context.load_cert_chain(str(own / "admin.pem"))
    host, _, port = address.partition(":")
    with context.wrap_socket(socket.create_connection((host, int(port)), 5), server_hostname=host) as tls:
        return int(tls.getpeercert()["serialNumber"], 16)  # type: ignore[index,arg-type]
