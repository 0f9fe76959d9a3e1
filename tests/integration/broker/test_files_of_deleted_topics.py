"""The log of a deleted topic is closed when its last reader ends, even if Python's garbage collector does not run.
A log that is not closed would hold its file descriptor, and so the disk space of the removed file, for minutes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from headrace import Admin, Consumer, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_core.log.partition_log import PartitionLog
from tests.worlds.waiting import until

ROUNDS, PARTITIONS = 6, 3


@pytest.fixture
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def logs_of(topic: str) -> list[PartitionLog]:
    return [each for each in gc.get_objects() if isinstance(each, PartitionLog) and each.topic_partition.topic == topic]


def test_no_log_of_a_deleted_topic_waits_for_the_garbage_collector(without_collections: None) -> None:
    with LocalCluster(brokers=3, mode="inprocess") as cluster:
        servers = cluster.bootstrap_servers
        with Admin(bootstrap_servers=servers) as admin:
            for number in range(ROUNDS):
                topic = f"passing-{number}"
                admin.create_topics([NewTopic(topic, partitions=PARTITIONS, replication_factor=3)])
                with Producer(bootstrap_servers=servers) as producer:
                    for value in range(30):
                        producer.send(topic, value=b"%d" % value)
                    producer.flush()
                with Consumer(bootstrap_servers=servers) as consumer:
                    consumer.assign([TopicPartition(topic, each) for each in range(PARTITIONS)])
                    consumer.seek_to_beginning()
                    assert consumer.poll(timeout=30)
                # (a follower creates its logs when it learns of the topic, perhaps after the first records are read)
                until(lambda topic=topic: len(logs_of(topic)) == 3 * PARTITIONS, f"all logs of {topic}", pause_s=0.1)
                admin.delete_topics([topic])
                until(lambda topic=topic: not logs_of(topic), f"the logs of {topic} are gone", pause_s=0.1)
