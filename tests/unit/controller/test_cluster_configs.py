"""Configuration altered incrementally, and every refusal."""

from __future__ import annotations

import pytest
from cluster_world import World

from headrace_controller.cluster.requests import AlterConfigs, AlterResource, ConfigOp, OpKind
from headrace_core.errors import HeadraceError, InvalidConfigError, InvalidRequestError, UnknownTopicOrPartitionError
from headrace_core.metadata import ConfigResource, ConfigResourceType

TOPIC: ConfigResource = (ConfigResourceType.TOPIC, "t")
BROKER: ConfigResource = (ConfigResourceType.BROKER, "1")
ALL: ConfigResource = (ConfigResourceType.BROKER, "")


@pytest.fixture
def world() -> World:
    world = World()
    world.live_broker(1)
    world.create("t", configs={"retention.ms": "5"})
    return world


def alter(world: World, resource: ConfigResource, *ops: ConfigOp, validate_only: bool = False) -> HeadraceError | None:
    (result,) = world.ask(AlterConfigs((AlterResource(resource, ops),), validate_only))
    return result.error


def put(name: str, value: str) -> ConfigOp:
    return ConfigOp(OpKind.SET, name, value)


def test_what_is_not_named_stays(world: World) -> None:
    assert alter(world, TOPIC, put("segment.bytes", "100")) is None
    assert world.image.config(*TOPIC) == {"retention.ms": "5", "segment.bytes": "100"}


def test_a_deleted_entry_falls_back_to_the_default(world: World) -> None:
    assert alter(world, TOPIC, ConfigOp(OpKind.DELETE, "retention.ms")) is None
    assert world.image.config(*TOPIC) == {}
    assert alter(world, TOPIC, ConfigOp(OpKind.DELETE, "retention.ms")) is None


def test_a_list_is_appended_to_and_subtracted_from_what_holds(world: World) -> None:
    assert alter(world, TOPIC, ConfigOp(OpKind.APPEND, "cleanup.policy", "compact,delete")) is None
    assert world.image.config(*TOPIC)["cleanup.policy"] == "delete,compact"
    assert alter(world, TOPIC, ConfigOp(OpKind.SUBTRACT, "cleanup.policy", "delete")) is None
    assert world.image.config(*TOPIC)["cleanup.policy"] == "compact"
    assert isinstance(alter(world, TOPIC, ConfigOp(OpKind.SUBTRACT, "cleanup.policy", "compact")), InvalidConfigError)


def test_an_entry_set_to_its_value_writes_nothing(world: World) -> None:
    written = len(world.log)
    assert alter(world, TOPIC, put("retention.ms", "5")) is None
    assert len(world.log) == written


def test_brokers_have_entries_of_their_own_and_common_ones(world: World) -> None:
    assert alter(world, BROKER, put("log.retention.ms", "7")) is None
    assert alter(world, ALL, put("log.segment.bytes", "99")) is None
    assert world.image.config(*BROKER) == {"log.retention.ms": "7"}
    assert world.image.config(*ALL) == {"log.segment.bytes": "99"}
    assert alter(world, BROKER, ConfigOp(OpKind.APPEND, "log.cleanup.policy", "compact")) is None
    assert world.image.config(*BROKER)["log.cleanup.policy"] == "delete,compact"


def test_snake_case_names_are_kept_under_their_dotted_ones(world: World) -> None:
    assert alter(world, TOPIC, put("max_message_bytes", "10")) is None
    assert world.image.config(*TOPIC)["max.message.bytes"] == "10"


def test_validate_only_changes_nothing(world: World) -> None:
    written = len(world.log)
    assert alter(world, TOPIC, put("segment.bytes", "100"), validate_only=True) is None
    assert isinstance(alter(world, TOPIC, put("segment.bytes", "x"), validate_only=True), InvalidConfigError)
    assert len(world.log) == written


@pytest.mark.parametrize(
    ("resource", "ops", "error", "message"),
    [
        (TOPIC, [put("retention.mss", "1")], InvalidConfigError, "did you mean 'retention.ms'"),
        (TOPIC, [put("segment.bytes", "1")], InvalidConfigError, "between 14"),
        (TOPIC, [put("log.flush", "never")], InvalidConfigError, "one of commit, interval, os"),
        (TOPIC, [put("segment.bytes", "100"), put("segment_bytes", "100")], InvalidRequestError, "altered twice"),
        (TOPIC, [ConfigOp(OpKind.APPEND, "retention.ms", "1")], InvalidConfigError, "no list"),
        (TOPIC, [put("leader.replication.throttled.replicas", "x" * 10_001)], InvalidConfigError, "at most 10000"),
        ((ConfigResourceType.TOPIC, "nope"), [put("segment.bytes", "100")], UnknownTopicOrPartitionError, "'nope'"),
        ((ConfigResourceType.TOPIC, ""), [put("segment.bytes", "100")], UnknownTopicOrPartitionError, "''"),
        (BROKER, [put("listeners", "client://h:1")], InvalidConfigError, "properties files"),
        (BROKER, [put("retention.ms", "1")], InvalidConfigError, "log.retention.ms"),
        ((ConfigResourceType.BROKER, "9"), [put("log.retention.ms", "1")], InvalidRequestError, "not registered"),
        ((ConfigResourceType.BROKER, "01"), [put("log.retention.ms", "1")], InvalidRequestError, "write a broker's id"),
        ((ConfigResourceType.BROKER, "x"), [put("log.retention.ms", "1")], InvalidRequestError, "write a broker's id"),
        ((ConfigResourceType.BROKER, "1" * 5000), [put("log.retention.ms", "1")], InvalidRequestError, "a broker's id"),
        (TOPIC, [put("k" * 1_000_000, "1")], InvalidConfigError, "unknown topic configuration key"),
    ],
)
def test_a_wrong_alteration_is_refused_whole(
    world: World, resource: ConfigResource, ops: list[ConfigOp], error: type[HeadraceError], message: str
) -> None:
    written = len(world.log)
    found = alter(world, resource, *ops)
    assert type(found) is error
    assert message in str(found)
    assert len(world.log) == written


def test_one_bad_resource_does_not_spoil_the_others(world: World) -> None:
    good = AlterResource(TOPIC, (put("segment.bytes", "100"),))
    bad = AlterResource(BROKER, (put("log.segment.bytes", "100"), put("nonsense", "1")))
    results = world.ask(AlterConfigs((good, bad)))
    assert [type(result.error) for result in results] == [type(None), InvalidConfigError]
    assert world.image.config(*BROKER) == {}
    assert world.image.config(*TOPIC)["segment.bytes"] == "100"


def test_a_resource_named_twice_is_refused(world: World) -> None:
    one = AlterResource(TOPIC, (put("segment.bytes", "100"),))
    assert [type(r.error) for r in world.ask(AlterConfigs((one, one)))] == [InvalidRequestError] * 2
