"""Runs of the library's pipelines on a cluster with TLS, logins and access control, as a user with few rights.

The rights are those of docs/pipelines-running.md. Each run checks its own results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import Admin, LocalCluster, ScramMechanism, UserScramCredentialUpsertion
from headrace.acl_models import AclBinding, AclOperation, ResourcePatternType, ResourceType
from tests.worlds.pipelines_world import Run
from tests.worlds.waiting import until

pytestmark = pytest.mark.timeout(300)

PASSWORD = "pl4nted-secret"
TRANSACTIONS = ("__headrace_sink/", "orders-handler-", "headrace-ship-logs-")


def rights(*pipelines: str) -> list[AclBinding]:
    named = [(kind, f"{name}.") for name in pipelines for kind in (ResourceType.TOPIC, ResourceType.GROUP)]
    named += [(ResourceType.TRANSACTIONAL_ID, name) for name in TRANSACTIONS]
    named.append((ResourceType.TOPIC, "headrace-ship-positions"))
    return [
        AclBinding(
            resource_type=kind,
            resource_name=name,
            pattern_type=ResourcePatternType.PREFIXED,
            principal="User:etl",
            operation=AclOperation.ALL,
        )
        for kind, name in named
    ]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    few: dict[str, Any] = {"brokers": 1, "controllers": 1, "coordinators": 1, "mode": "process"}
    with LocalCluster(**few, secure=True) as running:
        with Admin.from_properties(running.client_properties, bootstrap_servers=running.bootstrap_servers) as admin:
            admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion("etl", PASSWORD, ScramMechanism.SCRAM_SHA_512)]
            )
            admin.create_acls(rights("clickstream", "logs", "orders", "scaling"))
        yield running


@pytest.fixture
def flags(cluster: LocalCluster, tmp_path: Path) -> list[str]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    lines = [line for line in cluster.client_properties.read_text().splitlines() if "jaas" not in line]
    lines.append(f'sasl.jaas.config={module} required username="etl" password="{PASSWORD}";')
    file = tmp_path / "etl.properties"
    file.write_text("\n".join(lines))
    return ["--bootstrap-servers", cluster.bootstrap_servers, "--command-config", str(file)]


def shown(run: Run) -> list[str]:
    """What `ps` shows of the run's processes, with their environments."""
    found = []
    for each in [psutil.Process(run.process.pid), *psutil.Process(run.process.pid).children(recursive=True)]:
        try:
            found.append(f"{each.cmdline()} {each.environ()}")
        except psutil.Error:  # it has ended
            continue
    return found


@pytest.mark.parametrize(
    ("pipeline", "more", "processes", "expected"),
    [
        ("orders", ["--orders", "300", "--rate", "500"], 3, {"orders": 300}),
        ("clickstream", ["--speed", "1000000"], 1, {"requests": 10_000}),
        ("logs", ["--speed", "30000"], 1, {"lines": 10_000}),
        ("scaling", ["--scenes", "autoscaled", "--rate", "1000"], 2, None),
    ],
)
def test_a_pipeline_runs_with_a_login_and_shows_no_password(
    pipeline: str, more: list[str], processes: int, expected: dict[str, int] | None, flags: list[str], tmp_path: Path
) -> None:
    run = Run(pipeline, tmp_path, [*flags, *more])
    try:
        run.wait_for(1)
        seen = until(lambda: each if len(each := shown(run)) > processes else None, "the run's processes")
        summary = run.summary()
    finally:
        run.kill()
    assert not [each for each in seen if PASSWORD in each]
    assert expected is None or {key: summary[key] for key in expected} == expected
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]
    recorded = json.loads((tmp_path / "out/run.json").read_text())
    assert recorded["end"] == "done"
    assert PASSWORD not in run.said()
