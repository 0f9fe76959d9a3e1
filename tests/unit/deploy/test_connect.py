"""The containers of Kafka Connect: the worker's keys by the environment, compose.yaml, the image, the health check."""

from __future__ import annotations

import importlib.util
import json
import re
import socket
import stat
import subprocess
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from headrace_pipelines.cdc.connect import DEBEZIUM
from tests.integration.frameworks import java_apps

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("deploy_connect_worker", ROOT / "deploy" / "connect" / "worker.py")
assert _spec is not None
assert _spec.loader is not None
worker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(worker)

DEFAULTS = {
    "listeners": "http://0.0.0.0:8083",
    "rest.advertised.host.name": "w1",
    "plugin.path": "/opt/connect/plugins",
}


# -- the worker's keys -------------------------------------------------------------------------------------------------


def test_variables_are_keys_and_override_the_defaults() -> None:
    environment = {
        "CONNECT_GROUP_ID": "connect",
        "CONNECT_PLUGIN_PATH": " /plugins ",
        "CONNECT_SOME__KEY___NAME": "x",
        "CONNECT_EMPTY": " ",
        "PATH": "/bin",
    }
    assert worker.settings(environment, "w1") == DEFAULTS | {
        "group.id": "connect",
        "plugin.path": "/plugins",
        "some_key-name": "x",
    }


@pytest.mark.parametrize(
    "name", ["CONNECT_", "CONNECT__X", "CONNECT_X_", "CONNECT_A____B", "CONNECT_A=B", "CONNECT_A\n"]
)
def test_a_variable_that_is_no_key_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is no key of Kafka Connect"):
        worker.settings({name: "x"}, "w1")


def test_values_are_escaped_as_java_reads_them() -> None:
    assert worker.properties({"a": "x y=z:#!"}) == "a=x y=z:#!\n"
    assert worker.properties({"a": " secret"}) == "a=\\ secret\n", "Java skips spaces after the ="
    assert worker.properties({"a": 'C:\\x\n"ü€🙂'}) == 'a=C:\\\\x\\n"\\u00fc\\u20ac\\ud83d\\ude42\n'


def test_the_worker_becomes_java_and_only_its_user_may_read_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(worker, "SETTINGS", tmp_path / "connect.properties")
    monkeypatch.setattr(worker.os, "execvp", lambda program, command: called.append([program, *command]))
    monkeypatch.setenv("CONNECT_SASL_JAAS_CONFIG", 'x password="secret";')
    monkeypatch.setenv("KAFKA_HEAP_OPTS", "-Xms64m -Xmx1g")
    worker.main()
    ((program, *command),) = called
    assert (program, command[:3]) == ("java", ["java", "-Xms64m", "-Xmx1g"])
    assert command[-4:] == ["-cp", "/opt/connect/jars/*", worker.MAIN, str(tmp_path / "connect.properties")]
    text = worker.SETTINGS.read_text()
    assert 'sasl.jaas.config=x password="secret";\n' in text
    assert f"rest.advertised.host.name={socket.gethostname()}\n" in text
    assert stat.S_IMODE(worker.SETTINGS.stat().st_mode) == 0o600


# -- compose.yaml and the image ----------------------------------------------------------------------------------------


def test_compose_gives_the_worker_what_a_distributed_worker_needs() -> None:
    text = (ROOT / "compose.yaml").read_text()
    found = re.search(r"^  connect:\n(.*?)^  \S", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    environment = dict(re.findall(r"^ {6}(CONNECT_\w+): (.*)$", found[1], re.MULTILINE))
    strings = "org.apache.kafka.connect.storage.StringConverter"
    assert worker.settings(environment, "w1") == DEFAULTS | {
        "bootstrap.servers": "broker:9092",
        "group.id": "connect",
        "config.storage.topic": "connect-configs",
        "offset.storage.topic": "connect-offsets",
        "status.storage.topic": "connect-status",
        "config.storage.replication.factor": "3",
        "offset.storage.replication.factor": "3",
        "status.storage.replication.factor": "3",
        "exactly.once.source.support": "enabled",
        "key.converter": strings,
        "value.converter": strings,
        "reconnect.backoff.max.ms": "1000",
    }


def composed(*arguments: str) -> dict[str, Any]:
    """The services of compose.yaml as Compose understands them."""
    command = ["docker", "compose", *arguments, "config", "--format", "json"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        pytest.skip("docker is not installed")
    if (
        done.returncode
        and subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("Compose v2 is not installed")
    assert done.returncode == 0, done.stderr
    services: dict[str, Any] = json.loads(done.stdout)["services"]
    return services


def test_compose_starts_a_worker_only_by_profile_and_publishes_it_on_loopback() -> None:
    assert "connect" not in composed()
    services = composed("--profile", "connect")
    assert set(services) - set(composed()) == {"connect", "connect-edge"}
    connect, edge = services["connect"], services["connect-edge"]
    assert "ports" not in connect, "several workers cannot share a port of the host"
    (port,) = edge["ports"]
    assert (port["host_ip"], port["published"], port["target"]) == ("127.0.0.1", "8083", 8083)
    assert edge["command"][-1] == "8083=connect:8083"
    for service in (connect, edge):
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert set(service["networks"]) == {"client"}
        assert service["healthcheck"]["test"] == ["CMD", "health", "127.0.0.1", "8083", "http", "/health"]
    assert connect["depends_on"]["broker"]["condition"] == "service_healthy"
    assert connect["build"]["target"] == "connect"


def test_the_image_takes_the_jars_from_where_the_script_puts_them() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    script = (ROOT / "deploy" / "connect" / "jars.sh").read_text()
    assert "to=build/connect\n" in script
    assert 'mv "$to/new" "$to/jars"' in script
    assert f"COPY build/connect/jars {worker.JARS}\n" in dockerfile
    assert f"RUN mkdir {worker.PLUGINS}\n" in dockerfile
    assert "!build/connect/jars" in (ROOT / ".dockerignore").read_text().splitlines()


def test_the_image_has_the_release_of_connect_that_the_tests_run() -> None:
    pom = ElementTree.parse(ROOT / "deploy" / "connect" / "pom.xml")
    names = {"m": "http://maven.apache.org/POM/4.0.0"}
    assert pom.findtext("m:properties/m:kafka.version", namespaces=names) == java_apps.KAFKA
    artifacts = {each.text for each in pom.iterfind("m:dependencies/m:dependency/m:artifactId", names)}
    assert {"connect-runtime", "connect-json", "connect-transforms", "connect-file", "connect-mirror"} <= artifacts


def test_the_image_has_the_release_of_debezium_that_the_pipeline_runs() -> None:
    pom = ElementTree.parse(ROOT / "deploy" / "connect" / "pom.xml")
    names = {"m": "http://maven.apache.org/POM/4.0.0"}
    assert pom.findtext("m:properties/m:debezium.version", namespaces=names) == DEBEZIUM
    assert "debezium-connector-postgres" in {
        each.text for each in pom.iterfind("m:dependencies/m:dependency/m:artifactId", names)
    }


# -- the health check --------------------------------------------------------------------------------------------------


class _Health(BaseHTTPRequestHandler):
    """Answers as a worker that starts: GET / is 200, GET /health is 503."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response({"/": 200, "/health": 503}.get(self.path, 404))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
        """No access log."""


@pytest.fixture(scope="module")
def health(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("health") / "health"
    subprocess.run(
        ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, ROOT / "deploy" / "health.c"], check=True
    )
    return program


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Health) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["http"], 0),
        (["http", "/"], 0),
        (["http", "/health"], 1),
        (["http", "/" + "x" * 2_000], 1),
        (["https"], 2),
        (["http", "/", "more"], 2),
    ],
)
def test_the_health_check_asks_the_path_that_it_is_given(health: Path, port: int, words: list[str], code: int) -> None:
    done = subprocess.run([health, "127.0.0.1", str(port), *words], capture_output=True, timeout=30, check=False)
    assert done.returncode == code


def test_the_health_check_fails_where_nothing_listens(health: Path) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        command = [str(health), "127.0.0.1", str(held.getsockname()[1]), "http", "/health"]
        assert subprocess.run(command, timeout=30, check=False).returncode == 1
