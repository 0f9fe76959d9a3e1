"""Incremental configuration changes, and every refusal."""

from __future__ import annotations

import dataclasses

import pytest

from headrace_controller.cluster import configs
from headrace_controller.cluster.decision import Decision
from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlterResource,
    ConfigOp,
    CreateTopics,
    NewTopic,
    OpKind,
)
from headrace_core.config import Scope
from headrace_core.config.server_keys import SERVER
from headrace_core.errors import (
    HeadraceError,
    InvalidConfigError,
    InvalidRequestError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from headrace_core.metadata import ConfigRecord, ConfigResource, ConfigResourceType
from tests.worlds.cluster_world import ClusterWorld

TOPIC: ConfigResource = (ConfigResourceType.TOPIC, "t")
BROKER: ConfigResource = (ConfigResourceType.BROKER, "1")
ALL: ConfigResource = (ConfigResourceType.BROKER, "")
THROTTLED = "leader.replication.throttled.replicas"


@pytest.fixture
def world() -> ClusterWorld:
    world = ClusterWorld()
    world.live_broker(1)
    world.create("t", configs={"retention.ms": "5"})
    return world


def alter(
    world: ClusterWorld, resource: ConfigResource, *ops: ConfigOp, validate_only: bool = False
) -> HeadraceError | None:
    (result,) = world.ask(AlterConfigs((AlterResource(resource, ops),), validate_only))
    return result.error


def put(name: str, value: str) -> ConfigOp:
    return ConfigOp(OpKind.SET, name, value)


def test_one_request_sets_no_more_than_an_entry_of_the_log_should_hold(
    world: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All changes of one request are one entry, which is sent and flushed at once. Heartbeats wait for the entry of a
    request, so its size is limited."""
    assert configs.SETTINGS_BYTES_MAX == 8 << 20
    monkeypatch.setattr(configs, "SETTINGS_BYTES_MAX", 1 << 20)
    long = ",".join(f"{number}:1" for number in range(1_500))  # 9 KB, an allowed size of one value
    topics = tuple(NewTopic(name=f"n{number}", configs={THROTTLED: long}) for number in range(150))
    results = world.ask(CreateTopics(topics))
    refused = [each.error for each in results if each.error is not None]
    assert all(isinstance(each, PolicyViolationError) and "split it" in each.message for each in refused)
    made = len(topics) - len(refused)
    assert made * len(long) <= configs.SETTINGS_BYTES_MAX < (made + 1) * (len(long) + 100)
    assert len(world.image.topics) == 1 + made
    other = THROTTLED.replace("leader", "follower")
    results = world.ask(
        AlterConfigs(
            tuple(
                AlterResource((ConfigResourceType.TOPIC, name), (put(other, long), put(THROTTLED, long[4:])))
                for name in world.image.topic_ids
            )
        )
    )
    assert {type(each.error) for each in results} == {type(None), PolicyViolationError}
    held = sum(other in world.image.config(ConfigResourceType.TOPIC, name) for name in world.image.topic_ids)
    assert held == sum(each.error is None for each in results)
    assert held * 2 * len(long) <= configs.SETTINGS_BYTES_MAX + 2 * len(long)


def test_what_is_not_named_stays(world: ClusterWorld) -> None:
    assert alter(world, TOPIC, put("segment.bytes", "100")) is None
    assert world.image.config(*TOPIC) == {"retention.ms": "5", "segment.bytes": "100"}


def test_a_deleted_entry_falls_back_to_the_default(world: ClusterWorld) -> None:
    assert alter(world, TOPIC, ConfigOp(OpKind.DELETE, "retention.ms")) is None
    assert world.image.config(*TOPIC) == {}
    assert alter(world, TOPIC, ConfigOp(OpKind.DELETE, "retention.ms")) is None


def test_a_list_is_appended_to_and_subtracted_from_what_holds(world: ClusterWorld) -> None:
    assert alter(world, TOPIC, ConfigOp(OpKind.APPEND, "cleanup.policy", "compact,delete")) is None
    assert world.image.config(*TOPIC)["cleanup.policy"] == "delete,compact"
    assert alter(world, TOPIC, ConfigOp(OpKind.SUBTRACT, "cleanup.policy", "delete")) is None
    assert world.image.config(*TOPIC)["cleanup.policy"] == "compact"
    assert isinstance(alter(world, TOPIC, ConfigOp(OpKind.SUBTRACT, "cleanup.policy", "compact")), InvalidConfigError)


def test_a_brokers_list_is_changed_from_what_all_brokers_have(world: ClusterWorld) -> None:
    assert alter(world, ALL, put("log.cleanup.policy", "compact")) is None
    assert alter(world, BROKER, ConfigOp(OpKind.APPEND, "log.cleanup.policy", "delete")) is None
    assert world.image.config(*BROKER)["log.cleanup.policy"] == "compact,delete"


def test_an_entry_set_to_its_value_writes_nothing(world: ClusterWorld) -> None:
    written = len(world.log)
    assert alter(world, TOPIC, put("retention.ms", "5")) is None
    assert len(world.log) == written


def test_brokers_have_entries_of_their_own_and_common_ones(world: ClusterWorld) -> None:
    assert alter(world, BROKER, put("log.retention.ms", "7")) is None
    assert alter(world, ALL, put("log.segment.bytes", "99")) is None
    assert world.image.config(*BROKER) == {"log.retention.ms": "7"}
    assert world.image.config(*ALL) == {"log.segment.bytes": "99"}
    assert alter(world, BROKER, ConfigOp(OpKind.APPEND, "log.cleanup.policy", "compact")) is None
    assert world.image.config(*BROKER)["log.cleanup.policy"] == "delete,compact"


def test_snake_case_names_are_kept_under_their_dotted_ones(world: ClusterWorld) -> None:
    assert alter(world, TOPIC, put("max_message_bytes", "10")) is None
    assert world.image.config(*TOPIC)["max.message.bytes"] == "10"


def test_validate_only_changes_nothing(world: ClusterWorld) -> None:
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
        (TOPIC, [ConfigOp(OpKind.APPEND, "retention.ms", "1")], InvalidConfigError, "is not a list"),
        (TOPIC, [put("leader.replication.throttled.replicas", "x" * 10_001)], InvalidConfigError, "at most 10000"),
        ((ConfigResourceType.TOPIC, "nope"), [put("segment.bytes", "100")], UnknownTopicOrPartitionError, "'nope'"),
        ((ConfigResourceType.TOPIC, ""), [put("segment.bytes", "100")], UnknownTopicOrPartitionError, "''"),
        (BROKER, [put("listeners", "client://h:1")], InvalidConfigError, "properties files"),
        (BROKER, [put("retention.ms", "1")], InvalidConfigError, "log.retention.ms"),
        ((ConfigResourceType.BROKER, "9"), [put("log.retention.ms", "1")], InvalidRequestError, "not registered"),
        (
            (ConfigResourceType.BROKER, "01"),
            [put("log.retention.ms", "1")],
            InvalidRequestError,
            "must be a broker's id",
        ),
        (
            (ConfigResourceType.BROKER, "x"),
            [put("log.retention.ms", "1")],
            InvalidRequestError,
            "must be a broker's id",
        ),
        ((ConfigResourceType.BROKER, "1" * 5000), [put("log.retention.ms", "1")], InvalidRequestError, "a broker's id"),
        (TOPIC, [put("k" * 1_000_000, "1")], InvalidConfigError, "unknown topic configuration key"),
    ],
)
def test_a_wrong_alteration_is_refused_whole(
    world: ClusterWorld, resource: ConfigResource, ops: list[ConfigOp], error: type[HeadraceError], message: str
) -> None:
    written = len(world.log)
    found = alter(world, resource, *ops)
    assert type(found) is error
    assert message in str(found)
    assert len(world.log) == written


def test_one_bad_resource_does_not_spoil_the_others(world: ClusterWorld) -> None:
    good = AlterResource(TOPIC, (put("segment.bytes", "100"),))
    bad = AlterResource(BROKER, (put("log.segment.bytes", "100"), put("nonsense", "1")))
    results = world.ask(AlterConfigs((good, bad)))
    assert [type(result.error) for result in results] == [type(None), InvalidConfigError]
    assert world.image.config(*BROKER) == {}
    assert world.image.config(*TOPIC)["segment.bytes"] == "100"


def test_a_resource_named_twice_is_refused(world: ClusterWorld) -> None:
    one = AlterResource(TOPIC, (put("segment.bytes", "100"),))
    assert [type(r.error) for r in world.ask(AlterConfigs((one, one)))] == [InvalidRequestError] * 2


def test_keys_that_contradict_each_other_are_refused_together(world: ClusterWorld) -> None:
    error = alter(world, TOPIC, put("min.compaction.lag.ms", "10"), put("max.compaction.lag.ms", "5"))
    assert isinstance(error, InvalidConfigError)
    assert "min.compaction.lag.ms=10 is above max.compaction.lag.ms=5" in error.message
    assert alter(world, TOPIC, put("max.compaction.lag.ms", "5")) is None
    assert isinstance(alter(world, TOPIC, put("min.compaction.lag.ms", "6")), InvalidConfigError)
    assert alter(world, TOPIC, put("min.compaction.lag.ms", "5")) is None


def test_a_topic_is_checked_against_the_brokers_defaults_and_only_for_what_it_sets(world: ClusterWorld) -> None:
    assert alter(world, ALL, put("log.cleaner.max.compaction.lag.ms", "100")) is None
    error = alter(world, TOPIC, put("min.compaction.lag.ms", "200"))
    assert isinstance(error, InvalidConfigError)
    assert alter(world, ALL, ConfigOp(OpKind.DELETE, "log.cleaner.max.compaction.lag.ms")) is None
    assert alter(world, TOPIC, put("min.compaction.lag.ms", "200")) is None
    # the check does not read the topic
    assert alter(world, ALL, put("log.cleaner.max.compaction.lag.ms", "100")) is None
    assert alter(world, TOPIC, put("segment.bytes", "2000")) is None  # and it does not prevent unrelated changes


def test_a_new_topic_that_contradicts_itself_is_not_made(world: ClusterWorld) -> None:
    with pytest.raises(InvalidConfigError, match=r"min\.compaction\.lag\.ms=2 is above"):
        world.create("u", configs={"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"})
    assert "u" not in world.image.topic_ids


def test_cleaners_need_room_each(world: ClusterWorld) -> None:
    error = alter(world, ALL, put("log.cleaner.threads", "200"))
    assert isinstance(error, InvalidConfigError)
    assert "each thread needs 1 MiB" in error.message
    assert alter(world, ALL, put("log.cleaner.threads", "100")) is None
    assert isinstance(alter(world, BROKER, put("log.cleaner.dedupe.buffer.size", "104857599")), InvalidConfigError)


def test_what_is_set_for_all_brokers_is_checked_against_what_each_has_of_its_own(world: ClusterWorld) -> None:
    assert alter(world, BROKER, put("log.cleaner.dedupe.buffer.size", "1048576")) is None
    error = alter(world, ALL, put("log.cleaner.threads", "2"))
    assert isinstance(error, InvalidConfigError)
    assert "log.cleaner.dedupe.buffer.size=1048576 is too little for log.cleaner.threads=2" in error.message
    assert alter(world, ALL, put("log.cleaner.backoff.ms", "2")) is None


@pytest.mark.parametrize("name", ["log.cleaner.threads", "num.recovery.threads.per.data.dir"])
def test_more_threads_than_a_process_can_start_are_refused(world: ClusterWorld, name: str) -> None:
    error = alter(world, ALL, put("log.cleaner.dedupe.buffer.size", str(1 << 60)), put(name, "100000"))
    assert isinstance(error, InvalidConfigError)
    assert "must be between" in error.message


def test_what_is_each_brokers_own_cannot_be_set_for_all(world: ClusterWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = SERVER.keys["leader.replication.throttled.rate"]
    monkeypatch.setitem(SERVER.keys, rate.name, dataclasses.replace(rate, scope=Scope.PER_BROKER))
    error = alter(world, ALL, put("leader.replication.throttled.rate", "1000"))
    assert isinstance(error, InvalidConfigError)
    assert "name the broker" in error.message
    assert alter(world, BROKER, put("leader.replication.throttled.rate", "1000")) is None


def test_keys_without_effect_that_kafka_alters_for_one_broker_are_altered(world: ClusterWorld) -> None:
    """librdkafka's test of AlterConfigs sets this key of one broker."""
    name = "sasl.kerberos.min.time.before.relogin"
    assert alter(world, BROKER, put(name, "58000")) is None
    assert world.image.config(*BROKER)[name] == "58000"
    assert isinstance(alter(world, ALL, put(name, "58000")), InvalidConfigError)
    assert isinstance(alter(world, BROKER, put("sasl.jaas.config", "x")), InvalidConfigError)


@pytest.mark.parametrize(
    ("resource", "name", "value", "hint"),
    [
        (TOPIC, "log.retention.ms", "5", "for a topic it is called 'retention.ms'"),
        (TOPIC, "log.retention.hours", "5", "for a topic it is called 'retention.ms'"),
        (ALL, "retention.ms", "5", "for a server it is called 'log.retention.ms'"),
        (TOPIC, "retention.mss", "5", "did you mean 'retention.ms'"),
        (TOPIC, "retention.ms", "7d", "7d is 604800000"),
        (TOPIC, "segment.bytes", "1GiB", "1GiB is 1073741824"),
        (TOPIC, "remote.storage.enable", "true", "tiered storage is not built"),
        (ALL, "zookeeper.connect", "h:2181", "there is no ZooKeeper"),
        (ALL, "ssl.keystore.password", "hunter2", "properties files"),
        (ALL, "num.partitions", "3", "properties files"),
    ],
)
def test_a_refusal_says_what_to_do(
    world: ClusterWorld, resource: ConfigResource, name: str, value: str, hint: str
) -> None:
    error = alter(world, resource, put(name, value))
    assert isinstance(error, InvalidConfigError)
    assert hint in error.message
    assert "hunter2" not in error.message


def test_an_entry_that_could_not_be_set_any_more_can_be_deleted(world: ClusterWorld) -> None:
    records = (
        ConfigRecord(int(ConfigResourceType.TOPIC), "t", "an.old.key", "x"),
        ConfigRecord(int(ConfigResourceType.BROKER), "", "num.partitions", "3"),
    )
    world.log += records
    world.core.accept(Decision(records, None), len(world.log), epoch=1)
    world.commit()
    assert alter(world, TOPIC, ConfigOp(OpKind.DELETE, "an.old.key")) is None
    assert alter(world, ALL, ConfigOp(OpKind.DELETE, "num.partitions")) is None
    assert "an.old.key" not in world.image.config(*TOPIC)
    assert world.image.config(*ALL) == {}
    assert isinstance(alter(world, TOPIC, ConfigOp(OpKind.DELETE, "an.old.key")), InvalidConfigError)
