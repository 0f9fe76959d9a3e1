"""Producers with acks=0, which end their connection after their last record."""

from __future__ import annotations

from confluent_kafka import Producer

from headrace import Admin, Consumer, LocalCluster, NewTopic, TopicPartition
from tests.worlds.kafka_protocol import running_gateway
from tests.worlds.waiting import until

TOPIC, RECORDS, PRODUCERS = "measurements", 5_000, 5


def test_records_without_answers_arrive_although_the_client_leaves_at_once() -> None:
    """The connection's end cancelled its streams: a client lost all that it had sent in its only second."""
    with LocalCluster(brokers=1, controllers=1, coordinators=1, mode="inprocess") as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(TOPIC, partitions=1, replication_factor=1)])
        end = TopicPartition(TOPIC, 0)
        with running_gateway(cluster) as gateway, Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer:
            for number in range(1, PRODUCERS + 1):
                producer = Producer({"bootstrap.servers": gateway.bootstrap_servers, "acks": 0, "log_level": 0})
                for _ in range(RECORDS):
                    producer.produce(TOPIC, bytes(100))
                assert producer.flush(30) == 0
                del producer
                wanted = number * RECORDS
                until(lambda: consumer.end_offsets([end])[end] == wanted, within_s=20)  # noqa: B023
