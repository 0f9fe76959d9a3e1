"""Sink topics that do not exist, in a real cluster: the cluster's settings decide whether they are created, and a
broker may be down."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace import LocalCluster, Producer
from headrace_core.errors import RequestTimedOutError, UnknownTopicOrPartitionError
from headrace_spark.sink_topics import SinkTopics, TopicCreated, open_admin
from tests.worlds import waiting


def test_a_topic_is_created_when_the_broker_that_it_needs_is_back() -> None:
    config = {"default.replication.factor": 2, "num.partitions": 3}
    with LocalCluster(brokers=2, controllers=1, coordinators=0, mode="inprocess", config=config) as cluster:
        client = {"bootstrap.servers": cluster.bootstrap_servers}
        with open_admin(client) as admin, Producer(client) as producer:
            refused = threading.Event()
            ask: Callable[[str], Any] = producer.partitions_for

            class Watched:
                def partitions_for(self, topic: str) -> list[int]:
                    try:
                        return ask(topic)
                    except Exception:
                        refused.set()
                        raise

            cluster.kill("broker", 2)
            waiting.until(lambda: len(admin.describe_cluster().brokers) == 1, "broker 2 is fenced", within_s=60)
            with ThreadPoolExecutor(1) as pool:
                made = pool.submit(SinkTopics(admin, 120).ensure, "out", Watched())
                assert refused.wait(60), made
                assert not made.done()
                cluster.restart("broker", 2)
                assert made.result(60) == TopicCreated("out", 3, 2)


def test_a_cluster_that_creates_no_topics_keeps_its_word() -> None:
    config = {"auto.create.topics.enable": False}
    with LocalCluster(brokers=1, controllers=1, coordinators=0, mode="inprocess", config=config) as cluster:
        client = {"bootstrap.servers": cluster.bootstrap_servers}
        hasty = {**client, "max.block.ms": "500"}
        with open_admin(client) as admin, Producer(client) as producer, Producer(hasty) as hasty_producer:
            topics = SinkTopics(admin, 120)
            with pytest.raises(UnknownTopicOrPartitionError, match=r"auto\.create\.topics\.enable is false"):
                topics.ensure("out", producer)
            with pytest.raises(RequestTimedOutError, match="'out' does not exist"):
                topics.ensure("out", hasty_producer)
            assert admin.list_topics() == []
