"""``headrace-pipelines sql`` on a cluster with TLS and logins: the flags reach each client, and no secret is shown."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import LocalCluster
from headrace_core.errors import HeadraceError, SaslAuthenticationFailedError
from headrace_pipelines.access import Access, access_of, add_arguments
from headrace_pipelines.sql.command import check_cluster
from headrace_pipelines.sql.engine import Engine
from headrace_pipelines.sql.faults import Source
from headrace_pipelines.sql.output import show
from headrace_pipelines.sql.parsing import parse
from headrace_pipelines.sql.session import Session

pytestmark = pytest.mark.timeout(300)

STATEMENTS = """
CREATE STREAM orders (id INT, item STRING) WITH (key = 'id', partitions = 1);
CREATE TABLE counts AS SELECT item, count(*) AS n FROM orders GROUP BY item;
INSERT INTO orders VALUES (1, 'tea'), (2, 'tea'), (3, 'milk');
SELECT item, n FROM counts ORDER BY item;
EXPLAIN SELECT * FROM orders;
SHOW QUERIES;
SET
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    few: dict[str, Any] = {"brokers": 1, "controllers": 1, "coordinators": 1, "mode": "inprocess"}
    with LocalCluster(**few, secure=True) as running:
        yield running


def access(cluster: LocalCluster, *flags: str) -> Access:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    file = cluster.directory / "security/client.properties"
    return access_of(parser.parse_args(["-b", cluster.bootstrap_servers, "--command-config", str(file), *flags]))


def run(session: Session, text: str) -> None:
    engine, source = Engine(session), Source(text, "q.sql")
    for statement in parse(source):
        show(engine.run(statement, source), "table")


def test_the_shell_logs_in_and_shows_no_secret(
    spark: Any, cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = access(cluster, "-X", "delegation.token.enabled=true")
    secret = (cluster.directory / "security/admin.password").read_text().partition("=")[2].strip()
    assert any(secret in value for value in known.keys.values())
    check_cluster(known)
    session = Session(spark, known, tmp_path / "sql")
    try:
        run(session, STATEMENTS)
        with pytest.raises(HeadraceError) as error:
            run(session, "SELECT wrong FROM orders")
    finally:
        session.close()
    said = capsys.readouterr()
    assert "milk  1\ntea   2\n" in said.out
    assert "Physical Plan" in said.out
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5, "the catalog and a checkpoint"
    assert not [each for each in (said.out, said.err, error.value.message, repr(session)) if secret in each]
    assert not [each for each in files if secret.encode() in each]


def test_a_wrong_login_is_named_before_spark_starts(cluster: LocalCluster) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    with pytest.raises(SaslAuthenticationFailedError) as error:
        check_cluster(access(cluster, "-X", f'sasl.jaas.config={module} required username="admin" password="gu3ssed";'))
    assert "gu3ssed" not in error.value.message
    with pytest.raises(HeadraceError):
        check_cluster(Access(cluster.bootstrap_servers))
