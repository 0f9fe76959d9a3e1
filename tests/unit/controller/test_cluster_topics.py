"""Topics in the cluster's rules: creation, deletion, more partitions, and every refusal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_controller.cluster import topics
from headrace_controller.cluster.requests import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    MorePartitions,
    NewTopic,
)
from headrace_core.errors import (
    HeadraceError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import ConfigResourceType, MetadataImage
from headrace_core.metadata.sorted_map import SortedMap
from tests.worlds.cluster_world import ClusterWorld


def live(brokers: int = 1, **settings: Any) -> ClusterWorld:
    world = ClusterWorld(**settings)
    for number in range(brokers):
        world.live_broker(number)
    return world


def test_a_topic_gets_an_id_partitions_leaders_and_its_configs() -> None:
    world = live()
    topic = world.create("orders", 3, configs={"retention.ms": " 5 ", "cleanup.policy": "compact, delete"})
    assert len(topic.topic_id) == 16
    assert [(p.replicas, p.isr, p.leader, p.leader_epoch) for p in topic.partitions] == [((1,), (1,), 1, 0)] * 3
    assert world.image.config(ConfigResourceType.TOPIC, "orders") == {
        "retention.ms": "5",
        "cleanup.policy": "compact,delete",
    }


@pytest.mark.parametrize("asked", [-1, 0])
def test_partitions_and_replicas_default_to_the_clusters(asked: int) -> None:
    world = live(num_partitions=6)
    topic = world.create("t", asked, replication_factor=asked)
    assert (len(topic.partitions), topic.replication_factor) == (6, 1)


def test_one_request_is_one_decision_and_its_sound_topics_are_created() -> None:
    world = live()
    world.create("there")
    decision = world.decide(
        CreateTopics((NewTopic(name="a", partitions=2), NewTopic(name="there"), NewTopic(name="b")))
    )
    world.commit()
    assert [type(result.error) for result in decision.reply] == [type(None), TopicAlreadyExistsError, type(None)]
    assert sorted(world.image.topic_ids) == ["a", "b", "there"]
    assert len(decision.records) == 2 + 1 + 1 + 1


def test_the_replicas_of_a_topic_are_on_different_brokers_and_all_in_sync() -> None:
    world = live(3, default_replication_factor=3)
    partitions = world.create("t", 6, replication_factor=2).partitions
    for each in partitions:
        assert len(set(each.replicas)) == 2
        assert sorted(each.isr) == sorted(each.replicas), "a log that is new has all that the others have"
        assert each.leader == each.replicas[0]
    assert {each.leader for each in partitions} == {1, 2, 3}
    assert world.create("u", 1).replication_factor == 3, "the cluster's default"


def test_many_topics_of_a_request_cost_one_look_at_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    world, looks = live(3), 0
    placeable = MetadataImage.placeable_brokers

    def counted(image: MetadataImage) -> Any:
        nonlocal looks
        looks += 1
        return placeable(image)

    monkeypatch.setattr(MetadataImage, "placeable_brokers", counted)
    names = [f"t{number}" for number in range(200)]
    placed = [NewTopic(name=f"{name}-placed", assignments={0: (1, 2)}) for name in names]
    results = world.ask(CreateTopics((*(NewTopic(name=name) for name in names), *placed)))
    assert not any(each.error for each in results)
    results = world.ask(CreatePartitions(tuple(MorePartitions(topic=name, total=9) for name in names)))
    assert not any(each.error for each in results)
    assert looks <= 2


def test_a_topic_that_is_still_in_flight_exists_already() -> None:
    world = live()
    world.ask(CreateTopics((NewTopic(name="t"),)), in_flight=True)
    (result,) = world.ask(CreateTopics((NewTopic(name="t"),)), in_flight=True)
    assert isinstance(result.error, TopicAlreadyExistsError)
    assert "t" not in world.image.topic_ids
    world.commit()
    assert "t" in world.image.topic_ids


@pytest.mark.parametrize(
    ("existing", "name", "collides"),
    [
        ("a.b", "a_b", "a.b"),
        ("a_b", "a.b", "a_b"),
        ("a.b_c", "a_b.c", "a.b_c"),
        ("_.", "._", "_."),
        ("a.b", "a-b", None),
        ("a.b", "a_b_", None),
        ("a.b.c", "a_b", None),
        ("a_b", "a.b.c", None),
        ("ab", "a.b", None),
        ("a.", "a", None),
        ("A.b", "a_b", None),
    ],
)
def test_a_topic_that_collides_in_metrics_is_refused(existing: str, name: str, collides: str | None) -> None:
    """As in Kafka: names that differ only in periods and underscores have one name in JMX and Prometheus."""
    world = live()
    world.create(existing)
    for is_only_checked in (True, False):
        (result,) = world.ask(CreateTopics((NewTopic(name=name),), validate_only=is_only_checked))
        if collides is None:
            assert result.error is None
        else:
            assert isinstance(result.error, InvalidTopicError)
            assert f"collides with the existing topic {collides}" in str(result.error)
    world.commit()
    (again,) = world.ask(CreateTopics((NewTopic(name=existing),)))
    assert isinstance(again.error, TopicAlreadyExistsError)


def test_topics_of_one_request_do_not_collide_as_in_kafka() -> None:
    world = live()
    results = world.ask(CreateTopics((NewTopic(name="a.b"), NewTopic(name="a_b"))))
    assert [result.error for result in results] == [None, None]
    world.commit()
    for name in ("a.b", "a_b"):
        (again,) = world.ask(CreateTopics((NewTopic(name=name),)))
        assert isinstance(again.error, TopicAlreadyExistsError)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.lists(st.text("a._", min_size=1, max_size=5), unique=True, max_size=12), st.text("a._", min_size=1, max_size=5)
)
def test_each_colliding_name_is_found(existing: list[str], name: str) -> None:
    image = MetadataImage(topic_ids=SortedMap((each, bytes(16)) for each in existing if each != name))
    expected = {each for each in existing if each != name and each.replace(".", "_") == name.replace(".", "_")}
    found = topics._colliding(image, name)
    assert found in expected if expected else found is None


def test_validate_only_answers_and_does_nothing() -> None:
    world = live(2)
    written = len(world.log)
    good, bad = world.ask(CreateTopics((NewTopic(name="t", partitions=4), NewTopic(name="..")), validate_only=True))
    assert (good.error, good.partitions) == (None, 4)
    assert isinstance(bad.error, InvalidTopicError)
    assert len(world.log) == written


@pytest.mark.parametrize(
    ("topic", "error", "message"),
    [
        ({"name": "a/b"}, InvalidTopicError, "not legal"),
        ({"name": ""}, InvalidTopicError, "not legal"),
        ({"name": "x" * 250}, InvalidTopicError, "not legal"),
        ({"name": "__cluster_metadata"}, InvalidRequestError, "the controllers' metadata log"),
        ({"name": "there"}, TopicAlreadyExistsError, "there already exists"),
        ({"partitions": -2}, InvalidPartitionsError, "at least 1"),
        ({"partitions": 10_000}, PolicyViolationError, "split it"),
        ({"partitions": 2**31 - 1}, PolicyViolationError, "split it"),
        ({"replication_factor": -2}, InvalidReplicationFactorError, "at least 1"),
        ({"replication_factor": 3}, InvalidReplicationFactorError, "3 needs 3 brokers, 2 are alive"),
        ({"configs": {"retention.mss": "1"}}, InvalidConfigError, "did you mean 'retention.ms'"),
        ({"configs": {"segment.bytes": "1"}}, InvalidConfigError, "segment.bytes"),
        ({"configs": {"leader.replication.throttled.replicas": "x" * 10_001}}, InvalidConfigError, "at most 10000"),
        ({"assignments": {0: (1,)}, "partitions": 1}, InvalidRequestError, "not both"),
        ({"assignments": {1: (1,)}}, InvalidReplicaAssignmentError, "name partitions 1, but must name partitions 0"),
        ({"assignments": {0: ()}}, InvalidReplicaAssignmentError, "must name one or more brokers, each once"),
        ({"assignments": {0: (1, 1)}}, InvalidReplicaAssignmentError, "must name one or more brokers, each once"),
        ({"assignments": {0: (9,)}}, InvalidReplicaAssignmentError, "broker 9 is not registered"),
        ({"assignments": {0: (3,)}}, InvalidReplicaAssignmentError, "alive"),
        ({"assignments": {0: (1,), 1: (1, 2)}}, InvalidReplicaAssignmentError, "replication factor is 1"),
        (
            {"assignments": {0: (1, 2), 1: (2, 9)}, "partitions": -1},
            InvalidReplicaAssignmentError,
            "broker 9 is not registered",
        ),
    ],
)
def test_an_impossible_topic_is_refused_and_leaves_nothing(
    topic: dict, error: type[HeadraceError], message: str
) -> None:
    world = live(2)
    world.register(2)  # broker 3, fenced
    world.create("there")
    written = len(world.log)
    (result,) = world.ask(CreateTopics((NewTopic(**{"name": "t", **topic}),)))
    assert type(result.error) is error
    assert message in str(result.error)
    assert len(world.log) == written


def test_a_name_given_twice_in_a_request_is_refused_each_time() -> None:
    world = live()
    results = world.ask(CreateTopics((NewTopic(name="t"), NewTopic(name="u"), NewTopic(name="t"))))
    assert [type(result.error) for result in results] == [InvalidRequestError, type(None), InvalidRequestError]
    assert sorted(world.image.topic_ids) == ["u"]


def test_no_topic_without_a_live_broker_and_the_error_says_so() -> None:
    world = ClusterWorld()
    world.register(1)
    (result,) = world.ask(CreateTopics((NewTopic(name="t", partitions=1),)))
    assert isinstance(result.error, InvalidReplicationFactorError)
    assert "needs 1 broker, none is alive" in str(result.error)


def test_a_request_may_not_make_more_records_than_allowed_in_all() -> None:
    world = live(metadata_max_records_per_request=10)
    first, second = world.ask(CreateTopics((NewTopic(name="a", partitions=6), NewTopic(name="b", partitions=6))))
    assert first.error is None
    assert isinstance(second.error, PolicyViolationError)


def test_topics_are_assigned_by_hand_when_asked() -> None:
    world = live(2)
    topic = world.create("t", -1, assignments={1: (1,), 0: (2,)})
    assert [p.replicas for p in topic.partitions] == [(2,), (1,)]


# -- deletion ---------------------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_gone_with_its_configs_and_can_come_back_as_another() -> None:
    world = live()
    before = world.create("t", configs={"retention.ms": "5"})
    (result,) = world.ask(DeleteTopics(("t",)))
    assert (result.error, result.topic_id) == (None, before.topic_id)
    assert world.image.topics == {}
    assert world.image.configs == {}
    assert world.image.loads == {}
    assert world.create("t").topic_id != before.topic_id


def test_what_cannot_be_deleted_is_named() -> None:
    world = live()
    world.create("t")
    world.create("u")
    results = world.ask(DeleteTopics(("t", "nope", "u", "u")))
    assert [type(result.error) for result in results] == [
        type(None),
        UnknownTopicOrPartitionError,
        InvalidRequestError,
        InvalidRequestError,
    ]
    assert sorted(world.image.topic_ids) == ["u"]


def test_deletion_can_be_disabled() -> None:
    world = live(delete_topic_enable=False)
    world.create("t")
    (result,) = world.ask(DeleteTopics(("t",)))
    assert isinstance(result.error, TopicDeletionDisabledError)


# -- more partitions --------------------------------------------------------------------------------------------------


def test_partitions_are_added_behind_the_others() -> None:
    world = live()
    before = world.create("t", 2)
    (result,) = world.ask(CreatePartitions((MorePartitions(topic="t", total=5),)))
    assert (result.error, result.partitions) == (None, 5)
    topic = world.image.topic("t")
    assert topic is not None
    assert topic.topic_id == before.topic_id
    assert topic.partitions[:2] == before.partitions
    assert [p.leader for p in topic.partitions] == [1] * 5


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"total": 2}, InvalidPartitionsError, "already has 2 partitions"),
        ({"total": 1}, InvalidPartitionsError, "more than the requested 1;"),
        ({"total": 0}, InvalidPartitionsError, "more than the requested 0;"),
        ({"total": -1}, InvalidPartitionsError, "more than the requested -1;"),
        ({"total": 20_000}, PolicyViolationError, "split it"),
        ({"topic": "nope", "total": 3}, UnknownTopicOrPartitionError, "'nope' does not exist"),
        ({"total": 3, "assignments": {0: (1,)}}, InvalidReplicaAssignmentError, "0, but must name partitions 2"),
        ({"total": 3, "assignments": {2: (1, 2)}}, InvalidReplicaAssignmentError, "replication factor is 1"),
        ({"total": 3, "assignments": {2: (9,)}}, InvalidReplicaAssignmentError, "broker 9 is not registered"),
    ],
)
def test_impossible_partitions_are_refused(more: dict, error: type[HeadraceError], message: str) -> None:
    world = live(2)
    world.create("t", 2)
    written = len(world.log)
    (result,) = world.ask(CreatePartitions((MorePartitions(**{"topic": "t", **more}),)))
    assert type(result.error) is error
    assert message in str(result.error)
    assert len(world.log) == written


def test_partitions_can_be_validated_and_assigned() -> None:
    world = live(2)
    world.create("t", 1)
    request = MorePartitions(topic="t", total=3, assignments={1: (2,), 2: (1,)})
    (result,) = world.ask(CreatePartitions((request,), validate_only=True))
    assert result.error is None
    assert len(world.image.topics[result.topic_id].partitions) == 1
    world.ask(CreatePartitions((request,)))
    assert [p.leader for p in world.image.topics[result.topic_id].partitions][1:] == [2, 1]


def test_a_topic_named_twice_gets_no_partitions() -> None:
    world = live()
    world.create("t", 1)
    twice = (MorePartitions(topic="t", total=2), MorePartitions(topic="t", total=3))
    assert [type(r.error) for r in world.ask(CreatePartitions(twice))] == [InvalidRequestError] * 2
