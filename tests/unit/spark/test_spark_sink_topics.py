"""A sink topic that does not exist: created where the cluster allows it, tried again while brokers are down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace_core.errors import (
    BootstrapError,
    HeadraceError,
    InvalidReplicationFactorError,
    LeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from headrace_spark import sink_topics
from headrace_spark.sink_topics import SinkTopics, TopicCreated


class FakeCluster:
    """Admin and producer of a cluster with two replicas and three partitions for each topic."""

    def __init__(self, *topics: str) -> None:
        self.topics = set(topics)
        self.refusals: list[HeadraceError] = []
        self.hidden = 0  # descriptions by a node that has not learned of the topic
        self.described = 0

    def describe_topics(self, names: Any) -> Any:
        self.described += 1
        (name,) = names
        if name in self.topics and self.hidden:
            self.hidden -= 1
        elif name in self.topics:
            return [SimpleNamespace(partitions=[SimpleNamespace(replicas=(1, 2))] * 3)]
        raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")

    def partitions_for(self, topic: str) -> list[int]:
        if self.refusals:
            raise self.refusals.pop(0)
        self.topics.add(topic)
        return [0, 1, 2]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds; a pause advances the time."""
    now = [100.0]
    pause = lambda pause_s: now.__setitem__(0, now[0] + pause_s)  # noqa: E731
    monkeypatch.setattr(sink_topics, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pause))
    return now


def test_a_topic_that_exists_costs_one_request_and_is_not_reported() -> None:
    cluster = FakeCluster("out")
    topics = SinkTopics(cluster, 120)
    assert [topics.ensure("out", cluster) for _ in range(3)] == [None] * 3
    assert cluster.described == 1


def test_a_missing_topic_is_created_and_reported_once(clock: list[float]) -> None:
    cluster = FakeCluster()
    cluster.hidden = 2
    topics = SinkTopics(cluster, 120)
    assert topics.ensure("out", cluster) == TopicCreated("out", 3, 2)
    assert topics.ensure("out", cluster) is None
    assert cluster.topics == {"out"}


def test_too_few_brokers_and_a_silent_cluster_are_waited_for(clock: list[float]) -> None:
    cluster = FakeCluster()
    few = InvalidReplicationFactorError("replication factor 2 needs 2 brokers, 1 is alive")
    cluster.refusals = [few] * 20 + [LeaderNotAvailableError()]
    assert SinkTopics(cluster, 120).ensure("out", cluster) == TopicCreated("out", 3, 2)
    assert clock[0] > 110


def test_after_the_delivery_timeout_the_last_failure_is_raised(clock: list[float]) -> None:
    cluster = FakeCluster()
    cluster.refusals = [InvalidReplicationFactorError("replication factor 2 needs 2 brokers, 1 is alive")] * 1_000
    with pytest.raises(InvalidReplicationFactorError, match=r"1 is alive; tried until delivery\.timeout\.ms=120000"):
        SinkTopics(cluster, 120).ensure("out", cluster)
    assert 219 < clock[0] <= 220


def test_a_cluster_that_creates_no_topics_fails_the_task_at_once(clock: list[float]) -> None:
    cluster = FakeCluster()
    cluster.refusals = [UnknownTopicOrPartitionError("auto.create.topics.enable is false")] * 2
    with pytest.raises(UnknownTopicOrPartitionError, match="enable is false"):
        SinkTopics(cluster, 120).ensure("out", cluster)
    assert (clock[0], cluster.topics) == (100.0, set())


def test_an_address_where_nobody_ever_answered_fails_the_task_at_once(clock: list[float]) -> None:
    cluster = FakeCluster("in")
    nobody = BootstrapError("cannot reach any node of bootstrap.servers: kafak-1:9095: unknown host")
    cluster.refusals = [nobody] * 1_000
    with pytest.raises(BootstrapError, match="kafak-1"):
        SinkTopics(cluster, 120).ensure("out", cluster)
    assert clock[0] == 100.0


def test_a_cluster_that_is_gone_for_a_while_is_waited_for(clock: list[float]) -> None:
    cluster = FakeCluster("in")
    topics = SinkTopics(cluster, 120)
    assert topics.ensure("in", cluster) is None
    cluster.refusals = [BootstrapError("cannot reach any node of bootstrap.servers")] * 20
    assert topics.ensure("out", cluster) == TopicCreated("out", 3, 2)
    assert clock[0] == 110.0
