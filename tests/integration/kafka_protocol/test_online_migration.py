"""A group of librdkafka's consumers is rolled from the classic protocol to KIP-848 and back while records arrive: each
record is read, and none again whose offset is committed; the group is never empty."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import Admin, Consumer, LocalCluster
from tests.worlds.kafka_protocol import topic_name

WAIT_S = 60.0
PARTITIONS = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    quick = {
        "group.consumer.heartbeat.interval.ms": 200,
        "group.consumer.min.heartbeat.interval.ms": 200,
        "group.initial.rebalance.delay.ms": 0,
    }
    with LocalCluster(brokers=1, controllers=1, coordinators=1, kafka=True, mode="inprocess", config=quick) as running:
        yield running


class Rolled:
    """A group, its topic, and all records that its members have read and committed."""

    def __init__(self, cluster: LocalCluster, topic: str, **config: Any) -> None:
        self.kafka = cluster.kafka_bootstrap_servers
        self.topic = self.group = topic
        self.config = config
        self.written = 0
        self.read: set[tuple[int, int]] = set()
        self._committed = [0] * PARTITIONS
        self.members: list[confluent_kafka.Consumer] = []
        self.ours: Consumer | None = None
        self._producer = confluent_kafka.Producer({"bootstrap.servers": self.kafka})
        admin = AdminClient({"bootstrap.servers": self.kafka})
        created = admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        created[topic].result(WAIT_S)

    def join(self, protocol: str) -> confluent_kafka.Consumer:
        config: dict[str, Any] = {
            "bootstrap.servers": self.kafka,
            "group.id": self.group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "on_commit": self._on_commit,
        }
        if protocol == "classic":
            config |= {"heartbeat.interval.ms": 200, **self.config}
        member = confluent_kafka.Consumer(config)
        member.subscribe([self.topic])
        self.members.append(member)
        return member

    def leave(self, member: confluent_kafka.Consumer) -> None:
        self.members.remove(member)
        member.close()

    def go_on(self) -> None:
        """Write some records; each member reads what there is and commits."""
        for _ in range(10):
            self._producer.produce(self.topic, b"x", partition=self.written % PARTITIONS)
            self.written += 1
        self._producer.flush(WAIT_S)
        for member in self.members:
            found = [each for each in member.consume(100, 0.05) if each.error() is None]
            if found:
                places = [(each.partition(), each.offset()) for each in found]
                self._has_read(places)
                # This thread must not wait for the answer: the commit may wait behind the member's JoinGroup, and that
                # for another member, which joins only when this thread polls it.
                member.commit()
        if self.ours is not None:
            places = [(record.partition, record.offset) for record in self.ours.poll(0.05)]
            self._has_read(places)
            self.ours.commit()
            self._has_committed(places)

    def _on_commit(
        self, error: confluent_kafka.KafkaError | None, places: list[confluent_kafka.TopicPartition]
    ) -> None:
        """A member that reads on while its group rebalances may have an older generation, as with Kafka."""
        if error is None:
            self._has_committed([(each.partition, each.offset - 1) for each in places if each.error is None])

    def _has_read(self, places: list[tuple[int, int]]) -> None:
        """Only a record whose offset is not committed may be read again."""
        for partition, offset in places:
            is_new = (partition, offset) not in self.read
            assert is_new or offset >= self._committed[partition], f"{partition}-{offset} was read again"
            self.read.add((partition, offset))

    def _has_committed(self, places: list[tuple[int, int]]) -> None:
        for partition, offset in places:
            self._committed[partition] = max(self._committed[partition], offset + 1)

    def until_shared(self) -> None:
        """Go on until the members share the partitions equally and have read all."""
        while True:
            self.go_on()
            sizes = [len(each.assignment()) for each in self.members]
            if self.ours is not None:
                sizes.append(len(self.ours.assignment()))
            if sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1:
                break
        while len(self.read) < self.written:
            self.go_on()

    def close(self) -> None:
        for member in self.members:
            member.close()


def described(cluster: LocalCluster, group: str) -> tuple[str, list[bool]]:
    """The group's type, and whether each of its members uses the classic protocol."""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        (found,) = admin.describe_groups([group])
    return found.type, sorted(each.is_classic for each in found.members)


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_group_is_rolled_to_the_new_protocol_and_back_under_load(
    cluster: LocalCluster, request: pytest.FixtureRequest, strategy: str
) -> None:
    rolled = Rolled(cluster, topic_name(request), **{"partition.assignment.strategy": strategy})
    with contextlib.closing(rolled):
        old = [rolled.join("classic"), rolled.join("classic")]
        rolled.until_shared()
        assert described(cluster, rolled.group) == ("classic", [True, True])
        new = [rolled.join("consumer")]
        rolled.until_shared()
        assert described(cluster, rolled.group) == ("consumer", [False, True, True])
        rolled.leave(old[0])
        new.append(rolled.join("consumer"))
        rolled.until_shared()
        rolled.leave(old[1])
        rolled.until_shared()
        assert described(cluster, rolled.group) == ("consumer", [False, False])
        back = rolled.join("classic")
        rolled.until_shared()
        rolled.leave(new[0])
        rolled.leave(new[1])
        rolled.until_shared()
        assert described(cluster, rolled.group) == ("classic", [True])
        assert len(back.assignment()) == PARTITIONS
        assert len(rolled.read) == rolled.written


def test_a_consumer_of_ours_joins_a_classic_group_and_leaves_it(
    cluster: LocalCluster, request: pytest.FixtureRequest
) -> None:
    rolled = Rolled(cluster, topic_name(request), **{"partition.assignment.strategy": "cooperative-sticky"})
    settings = {"group_id": rolled.group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    with contextlib.closing(rolled):
        rolled.join("classic")
        rolled.until_shared()
        with Consumer(bootstrap_servers=cluster.bootstrap_servers, **settings) as ours:
            ours.subscribe([rolled.topic])
            rolled.ours = ours
            rolled.until_shared()
            assert described(cluster, rolled.group) == ("consumer", [False, True])
            rolled.ours = None
        rolled.until_shared()
        assert described(cluster, rolled.group) == ("classic", [True])
        assert len(rolled.read) == rolled.written
