"""A query with ``subscribePattern`` whose user loses the right to see the topics, and gets it back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Admin, LocalCluster, Producer, ScramMechanism, UserScramCredentialUpsertion
from headrace.acl_models import AclBinding, AclBindingFilter, AclOperation, ResourcePatternType, ResourceType

pytestmark = pytest.mark.timeout(480)

PASSWORD = "reader-of-logs-1"
RIGHTS = [
    AclBinding(
        resource_type=ResourceType.TOPIC,
        resource_name="log-",
        pattern_type=ResourcePatternType.PREFIXED,
        principal="User:reader",
        operation=operation,
    )
    for operation in (AclOperation.READ, AclOperation.DESCRIBE)
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, mode="inprocess", secure=True) as running:
        with administrator(running) as root:
            root.alter_user_scram_credentials(
                [UserScramCredentialUpsertion("reader", PASSWORD, ScramMechanism.SCRAM_SHA_512)]
            )
        yield running


def administrator(cluster: LocalCluster) -> Admin:
    return Admin.from_properties(cluster.client_properties, bootstrap_servers=cluster.bootstrap_servers)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_pattern_keeps_its_place_while_its_rights_are_gone(
    spark: Any, cluster: LocalCluster, tmp_path: Path, fails: str
) -> None:
    login = {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(cluster.directory / "security" / "ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "reader",
        "sasl.password": PASSWORD,
    }
    topics = [f"log-{fails}-{name}" for name in "ab"]
    stream = (
        spark.readStream.format("headrace")
        .options(**{f"headrace.{key}": value for key, value in login.items()})
        .option("subscribePattern", f"log-{fails}-.*")
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", fails)
        .load()
    )

    def read() -> list[str]:
        """What a query that goes on from the checkpoint reads until the present end."""
        found: list[str] = []
        query = (
            stream.selectExpr("CAST(value AS STRING)")
            .writeStream.foreachBatch(lambda batch, number: found.extend(row.value for row in batch.collect()))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(found)

    with (
        administrator(cluster) as root,
        Producer.from_properties(cluster.client_properties, bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        root.create_topics(topics)
        root.create_acls(RIGHTS)
        for topic in topics:
            producer.send(topic, b"first of " + topic[-1:].encode()).result(60)
        assert read() == ["first of a", "first of b"]
        root.delete_acls([AclBindingFilter(principal="User:reader")])
        for _ in range(2):  # a supervisor starts it again
            with pytest.raises(Exception, match="TopicAuthorizationFailedError"):
                read()
        producer.send(topics[1], b"second of b").result(60)
        root.create_acls(RIGHTS)
        assert read() == ["second of b"]
        assert read() == []
