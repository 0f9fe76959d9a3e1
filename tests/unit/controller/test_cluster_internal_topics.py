"""Topics whose partitions are shards: their settings, more replicas when brokers join, and never more partitions."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlterResource,
    ConfigOp,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    DrainBroker,
    MorePartitions,
    NewTopic,
    OpKind,
    TopicResult,
)
from headrace_core.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    TopicAlreadyExistsError,
)
from headrace_core.metadata import ConfigResourceType
from headrace_core.metadata.configs import topic_config
from headrace_core.metadata.shards import INTERNAL_TOPICS, OFFSETS_TOPIC, SHARD_TOPICS, TRANSACTIONS_TOPIC
from tests.worlds.cluster_world import MovesWorld


def make(world: MovesWorld, name: str, **given: Any) -> TopicResult:
    (result,) = world.ask(CreateTopics((NewTopic(name=name, **given),), internal=name in INTERNAL_TOPICS))
    assert isinstance(result, TopicResult)
    return result


def configs(world: MovesWorld, name: str) -> dict[str, str]:
    return dict(world.image.config(ConfigResourceType.TOPIC, name))


@pytest.mark.parametrize(("brokers", "replicas"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_offsets_have_fifty_partitions_with_as_many_replicas_as_there_are_brokers_up_to_three(
    brokers: int, replicas: int
) -> None:
    world = MovesWorld(brokers)
    made = make(world, OFFSETS_TOPIC)
    assert (made.error, made.partitions, made.replication_factor) == (None, 50, replicas)
    assert configs(world, OFFSETS_TOPIC) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


@pytest.mark.parametrize(("brokers", "min_insync"), [(1, "1"), (2, "2"), (3, "2")])
def test_transactions_demand_two_in_sync_where_there_can_be_two(brokers: int, min_insync: str) -> None:
    world = MovesWorld(brokers)
    make(world, TRANSACTIONS_TOPIC)
    assert configs(world, TRANSACTIONS_TOPIC) == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": min_insync,
        "segment.bytes": "104857600",
        "unclean.leader.election.enable": "false",
    }


def test_what_the_properties_say_goes_before_the_defaults_and_what_the_request_says_before_both() -> None:
    world = MovesWorld(3, offsets_topic_num_partitions=7, offsets_topic_replication_factor=2)
    made = make(world, OFFSETS_TOPIC)
    assert (made.partitions, made.replication_factor) == (7, 2)
    world = MovesWorld(3, offsets_topic_num_partitions=7)
    made = make(world, OFFSETS_TOPIC, partitions=4, replication_factor=1, configs={"segment_bytes": "2000000"})
    assert (made.partitions, made.replication_factor) == (4, 1)
    assert configs(world, OFFSETS_TOPIC)["segment.bytes"] == "2000000"
    assert configs(world, OFFSETS_TOPIC)["cleanup.policy"] == "compact"


def test_replicas_named_by_an_operator_stay_and_the_settings_come_all_the_same() -> None:
    world = MovesWorld(3)
    made = make(world, TRANSACTIONS_TOPIC, assignments={0: (2,), 1: (3,)})
    assert (made.error, made.partitions, made.replication_factor) == (None, 2, 1)
    assert configs(world, TRANSACTIONS_TOPIC)["min.insync.replicas"] == "1"


def test_more_replicas_than_brokers_are_refused_when_they_were_asked_for() -> None:
    world = MovesWorld(1)
    assert isinstance(make(world, OFFSETS_TOPIC, replication_factor=3).error, InvalidReplicationFactorError)


def test_other_topics_are_made_as_before() -> None:
    world = MovesWorld(1)
    made = make(world, "orders")
    assert (made.partitions, made.replication_factor, configs(world, "orders")) == (1, 1, {})


@pytest.mark.parametrize("name", SHARD_TOPICS)
def test_they_never_get_more_partitions(name: str) -> None:
    """The number of partitions determines the shard of a group. With another number of partitions, a group would look
    for its offsets in the wrong shard."""
    world = MovesWorld(1)
    make(world, name)
    (result,) = world.ask(CreatePartitions((MorePartitions(topic=name, total=51),)))
    assert isinstance(result.error, InvalidPartitionsError)
    assert "cannot be changed" in result.error.message
    topic = world.image.topic(name)
    assert topic is not None
    assert len(topic.partitions) == 50


# -- what clients may not do ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHARD_TOPICS)
def test_clients_neither_create_nor_delete_them(name: str) -> None:
    world = MovesWorld(1)
    (created,) = world.ask(CreateTopics((NewTopic(name=name, partitions=1),)))
    assert type(created.error) is InvalidTopicError
    assert name not in world.image.topic_ids
    make(world, name)
    (again,) = world.ask(CreateTopics((NewTopic(name=name),)))
    assert type(again.error) is TopicAlreadyExistsError, "as any other topic"
    world.create("orders")
    deleted, other = world.ask(DeleteTopics((name, "orders")))
    assert type(deleted.error) is InvalidTopicError
    assert deleted.error.message.startswith(f'cannot delete topic "{name}": it is internal')
    assert other.error is None
    assert name in world.image.topic_ids


def test_only_internal_topics_are_created_as_such() -> None:
    world = MovesWorld(1)
    (result,) = world.ask(CreateTopics((NewTopic(name="orders"),), internal=True))
    assert type(result.error) is InvalidTopicError


def alter(world: MovesWorld, resource: tuple[ConfigResourceType, str], *ops: ConfigOp) -> type[Exception] | None:
    (result,) = world.ask(AlterConfigs((AlterResource(resource, ops),)))
    return None if result.error is None else type(result.error)


def policy_of(world: MovesWorld, name: str) -> Any:
    return topic_config(world.image, name)["cleanup.policy"]


@pytest.mark.parametrize(
    "op",
    [
        ConfigOp(OpKind.SET, "cleanup.policy", "delete"),
        ConfigOp(OpKind.SET, "cleanup.policy", "compact,delete"),
        ConfigOp(OpKind.SET, "cleanup_policy", "delete"),
        ConfigOp(OpKind.APPEND, "cleanup.policy", "delete"),
        ConfigOp(OpKind.SUBTRACT, "cleanup.policy", "compact"),
        ConfigOp(OpKind.DELETE, "cleanup.policy", ""),
    ],
    ids=lambda op: f"{op.kind.name} {op.value}",
)
def test_no_alteration_takes_their_cleanup_policy_away(op: ConfigOp) -> None:
    world = MovesWorld(1)
    make(world, OFFSETS_TOPIC)
    topic = (ConfigResourceType.TOPIC, OFFSETS_TOPIC)
    refusal = alter(world, topic, ConfigOp(OpKind.SET, "segment.bytes", "20000000"), op)
    assert refusal is InvalidConfigError
    assert configs(world, OFFSETS_TOPIC)["segment.bytes"] == "104857600", "altered whole or not at all"
    assert policy_of(world, OFFSETS_TOPIC) == ["compact"]


@pytest.mark.parametrize("name", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
def test_no_alteration_lets_the_leader_stamp_what_coordinators_append(name: str) -> None:
    world = MovesWorld(1)
    make(world, name)
    key, topic = "message.timestamp.type", (ConfigResourceType.TOPIC, name)
    assert alter(world, topic, ConfigOp(OpKind.SET, key, "LogAppendTime")) is InvalidConfigError
    assert alter(world, topic, ConfigOp(OpKind.SET, key, "CreateTime")) is None
    assert alter(world, topic, ConfigOp(OpKind.DELETE, key, "")) is None


def test_other_settings_of_theirs_are_altered_and_the_brokers_defaults_do_not_reach_their_policy() -> None:
    world = MovesWorld(1)
    make(world, OFFSETS_TOPIC)
    topic, brokers = (ConfigResourceType.TOPIC, OFFSETS_TOPIC), (ConfigResourceType.BROKER, "")
    assert alter(world, topic, ConfigOp(OpKind.SET, "segment.bytes", "20000000")) is None
    assert alter(world, topic, ConfigOp(OpKind.SET, "cleanup.policy", "compact")) is None, "what holds, or repairs it"
    assert alter(world, brokers, ConfigOp(OpKind.SET, "log.cleanup.policy", "delete")) is None
    assert policy_of(world, OFFSETS_TOPIC) == ["compact"]


# -- more brokers -----------------------------------------------------------------------------------------------------


def replicas(world: MovesWorld, name: str) -> list[tuple[int, ...]]:
    topic = world.image.topic(name)
    assert topic is not None
    return [partition.replicas for partition in topic.partitions]


def live_on(world: MovesWorld, times: int = 6) -> None:
    """Wait until all automatically planned moves are done. Followers catch up during the wait."""
    for _ in range(times):
        world.pass_time(40_000)
        world.settle()


def test_replicas_are_added_when_more_brokers_have_come_and_stayed() -> None:
    world = MovesWorld(1, auto_rebalance_delay_ms=30_000)
    make(world, OFFSETS_TOPIC)
    make(world, "orders", partitions=4)
    world.add_broker(2)
    world.add_broker(3)
    world.pass_time(20_000)
    assert replicas(world, OFFSETS_TOPIC) == [(1,)] * 50
    live_on(world)
    now = replicas(world, OFFSETS_TOPIC)
    assert {len(each) for each in now} == {3}
    assert [len(each) for each in replicas(world, "orders")] == [1] * 4
    assert not world.image.ledger.queued
    assert not world.image.ledger.reassigning
    live_on(world)
    assert replicas(world, OFFSETS_TOPIC) == now, "and that was all"


def test_a_new_replica_goes_to_a_rack_that_has_none() -> None:
    world = MovesWorld(1, racks=["a"], auto_rebalance_delay_ms=1_000, offsets_topic_replication_factor=2)
    make(world, OFFSETS_TOPIC, partitions=6)
    world.add_broker(2, rack="a")
    world.add_broker(3, rack="b")
    live_on(world)
    racks = {1: "a", 2: "a", 3: "b"}
    assert [{racks[each] for each in partition} for partition in replicas(world, OFFSETS_TOPIC)] == [{"a", "b"}] * 6


@pytest.mark.parametrize("settings", [{"auto_rebalance_enable": False}, {"offsets_topic_replication_factor": 1}])
def test_nothing_is_added_where_rebalancing_is_switched_off_or_the_factor_says_so(settings: dict[str, Any]) -> None:
    world = MovesWorld(1, auto_rebalance_delay_ms=1_000, **settings)
    make(world, OFFSETS_TOPIC, partitions=6)
    world.add_broker(2)
    world.add_broker(3)
    live_on(world)
    assert {len(each) for each in replicas(world, OFFSETS_TOPIC)} == {1}


def test_no_replica_is_added_on_a_broker_that_is_being_emptied() -> None:
    world = MovesWorld(2, auto_rebalance_delay_ms=1_000)
    make(world, OFFSETS_TOPIC, partitions=4)
    world.add_broker(3)
    world.ask(DrainBroker(3, True))
    live_on(world)
    assert not any(3 in each for each in replicas(world, OFFSETS_TOPIC))
    world.ask(DrainBroker(3, False))
    live_on(world)
    assert {len(each) for each in replicas(world, OFFSETS_TOPIC)} == {3}
