"""The job of compose.secure.yaml that makes certificates and the secret of delegation tokens."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from headrace_console.settings import ConsoleSettings
from headrace_core.node.config import NodeConfig
from headrace_core.security.references import dereferenced
from headrace_tools.certs.authority import read_file

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("deploy_make_certs", ROOT / "deploy" / "make_certs.py")
assert _spec is not None
assert _spec.loader is not None
job = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(job)


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    for place in ("ca", *job.NODE_ROLES, "edge", "admin"):
        (tmp_path / place).mkdir()
    return tmp_path


def secrets_in(volumes: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in volumes.rglob(job.TOKEN_SECRET)}


def test_the_nodes_that_check_tokens_get_one_secret_and_no_other_container_has_it(volumes: Path) -> None:
    job.make(volumes, "headrace", 2)
    found = secrets_in(volumes)
    assert set(found) == {"ca", "controller", "broker", "coordinator"}
    (secret,) = set(found.values())
    assert len(secret.strip()) >= 32
    assert {path.stat().st_mode & 0o777 for path in volumes.rglob(job.TOKEN_SECRET)} == {0o600}
    holders = {path for path in volumes.rglob("*") if path.is_file() and secret.strip() in path.read_text()}
    assert holders == set(volumes.rglob(job.TOKEN_SECRET))


def test_a_repeated_run_keeps_the_secret_and_repairs_a_lost_copy(volumes: Path) -> None:
    job.make(volumes, "headrace", 1)
    before = secrets_in(volumes)
    (volumes / "broker" / job.TOKEN_SECRET).unlink()
    (volumes / "broker" / "token.new").write_text("a run that was killed")
    job.make(volumes, "headrace", 1)
    assert secrets_in(volumes) == before
    assert not list(volumes.rglob("*.new"))


def test_a_repeated_run_does_not_touch_the_secrets_that_nodes_read(volumes: Path) -> None:
    job.make(volumes, "headrace", 1)
    places = [volumes / role / job.TOKEN_SECRET for role in job.TOKEN_ROLES]
    before = [path.stat().st_ino for path in places]
    job.make(volumes, "headrace", 1)
    assert [path.stat().st_ino for path in places] == before


def test_two_clusters_have_different_secrets(volumes: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    job.make(volumes, "headrace", 1)
    other = tmp_path_factory.mktemp("other")
    for place in ("ca", *job.NODE_ROLES, "edge", "admin"):
        (other / place).mkdir(parents=True)
    job.make(other, "headrace", 1)
    assert secrets_in(volumes)["ca"] != secrets_in(other)["ca"]


def test_compose_gives_nodes_the_file_and_not_the_secret(volumes: Path) -> None:
    """``docker inspect`` shows the environment of a container; it has only the name of the file."""
    text = (ROOT / "deploy" / "compose.secure.yaml").read_text()
    (value,) = re.findall(r"HEADRACE_DELEGATION_TOKEN_SECRET_KEY: (.*)", text)
    (name,) = re.findall(r"^\$\$\{file:/certs/(.+)\}$", value)
    services = dict(re.findall(r"^  (\w+):\n((?:    .*\n|\n)+)", text.partition("\nservices:\n")[2], re.MULTILINE))
    given = {role for role, each in services.items() if "*tokens" in each}
    assert given == set(job.TOKEN_ROLES)
    job.make(volumes, "headrace", 1)
    for role in given:
        assert f"{role}-certs:/certs:ro" in services[role]
        read = dereferenced(f"${{file:{volumes / role / name}}}", "delegation.token.secret.key")
        assert read == (volumes / "ca" / job.TOKEN_SECRET).read_text().strip()


def test_the_console_asks_for_a_sign_in_with_the_files_of_its_volume(volumes: Path) -> None:
    job.make(volumes, "headrace", 1)
    place = volumes / "console"
    path = place / "console.properties"
    path.write_text(path.read_text().replace("/certs", str(place)))
    given = {
        "console.bootstrap.servers": "broker:9097",
        "console.listeners": "https://0.0.0.0:9090",
        "console.client.config": str(path),
        "console.schema.registry.url": "https://registry:8081",
        "ssl.keystore.location": str(place / "console-1.pem"),
        "ssl.truststore.location": str(place / "ca.pem"),
    }
    settings = ConsoleSettings.of(NodeConfig.from_properties(given, role="console"))
    assert (settings.has_sign_in, settings.mechanism, settings.encrypts) == (True, "SCRAM-SHA-512", True)
    assert not {"sasl.username", "sasl.password", "sasl.jaas.config"} & settings.client.keys()
    assert settings.registry["ssl.certificate.location"] == str(place / "console-1.pem")
    certificate = read_file(place / "console-1.pem")[0]
    assert {"headrace-console-1", "console", "localhost"} <= set(certificate.dns_names)
    assert "127.0.0.1" in certificate.addresses


def test_the_secured_edge_has_every_route_of_the_open_one_and_publishes_its_own() -> None:
    """A list of a second compose file replaces the command, and adds to the ports."""
    routes, ports = {}, {}
    for file in ("compose.yaml", "deploy/compose.secure.yaml"):
        text = (ROOT / file).read_text()
        edge = text.partition("\n  edge:\n")[2].partition("\n\n")[0]
        routes[file] = re.findall(r"^      - (\d[\d-]*)=(\S+)$", edge, re.MULTILINE)
        ports[file] = re.findall(r"^      - 127\.0\.0\.1:([\d-]+):([\d-]+)$", edge, re.MULTILINE)
    first, second = routes
    assert routes[first]
    assert set(routes[first]) < set(routes[second])
    published = ports[first] + ports[second]
    assert sorted(published) == sorted((port, port) for port, _ in routes[second])
