"""The job of compose.secure.yaml that makes certificates and the secret of delegation tokens."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from headrace_core.security.references import dereferenced

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
    assert set(found) == {"ca", "controller", "broker", "coordinator", "gateway"}
    (secret,) = set(found.values())
    assert len(secret.strip()) >= 32
    assert {path.stat().st_mode & 0o777 for path in volumes.rglob(job.TOKEN_SECRET)} == {0o600}
    holders = {path for path in volumes.rglob("*") if path.is_file() and secret.strip() in path.read_text()}
    assert holders == set(volumes.rglob(job.TOKEN_SECRET))


def test_a_repeated_run_keeps_the_secret_and_repairs_a_lost_copy(volumes: Path) -> None:
    job.make(volumes, "headrace", 1)
    before = secrets_in(volumes)
    (volumes / "broker" / job.TOKEN_SECRET).unlink()
    (volumes / "gateway" / "token.new").write_text("a run that was killed")
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
