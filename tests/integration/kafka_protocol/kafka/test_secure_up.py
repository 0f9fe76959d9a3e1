"""Kafka's Java tools with the client.properties of a secure local cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import Admin, LocalCluster
from tests.integration.kafka_protocol.kafka_tools import KafkaTools

pytestmark = pytest.mark.timeout(300)


def test_kafka_topics_takes_the_clusters_client_properties(tmp_path: Path) -> None:
    topics = "org.apache.kafka.tools.TopicCommand"
    with (
        LocalCluster(brokers=1, controllers=1, coordinators=1, kafka=True, mode="inprocess", secure=True) as cluster,
        KafkaTools(tmp_path) as tools,
    ):
        of = ("--bootstrap-server", cluster.kafka_bootstrap_servers, "--command-config", str(cluster.client_properties))
        made = tools.run(topics, *of, "--create", "--topic", "from-java", "--partitions", "2")
        assert made.code == 0, made.text
        with Admin.from_properties(cluster.client_properties, bootstrap_servers=cluster.bootstrap_servers) as admin:
            assert admin.list_topics() == ["from-java"]
