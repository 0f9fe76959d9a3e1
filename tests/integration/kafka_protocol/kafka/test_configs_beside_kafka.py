"""Configurations from a broker and from Kafka: the same requests get the same error codes, and the same keys of a
broker are read-only.

Marked `kafka`: needs Java and Kafka's jars.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

from headrace import Admin, LocalCluster, NewTopic
from headrace_kafka.wire.apis import Api
from tests.integration.interop.kafka.test_kafka_keys import OTHER_SCOPES
from tests.integration.interop.kafka_peer import KafkaBroker
from tests.worlds.kafka_protocol import KafkaWire

pytestmark = pytest.mark.timeout(300)

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
NAME = "orders"

#: Keys and values for broker 1 and for the default of all brokers.
BROKER_VALUES = {
    "broker.id": "2",
    "node.id": "2",
    "broker.rack": "b",
    "log.dirs": "/tmp/elsewhere",
    "auto.create.topics.enable": "true",
    "num.partitions": "3",
    "default.replication.factor": "3",
    "log.retention.hours": "3",
    "log.cleaner.enable": "false",
    "replica.selector.class": "x",
    "num.io.threads": "x",
    "message.max.bytes": "-1",
    "log.cleanup.policy": "x",
    "log.cleaner.threads": "1",
    "log.retention.ms": "86400000",
    "unclean.leader.election.enable": "true",
}
TOPIC_VALUES = {
    "retention.ms": "x",
    "max.message.bytes": "-1",
    "min.insync.replicas": "0",
    "cleanup.policy": "x",
    "no.such.key": "1",
    "compression.type": "gzip",
}


#: Keys of one broker that Kafka can alter, in addition to OTHER_SCOPES: here they have no effect.
WITHOUT_EFFECT = ("config.providers", "principal.builder.class")


class Alter(NamedTuple):
    """Alters one resource. ``ops``: (key, value, operation)."""

    kind: int
    name: str
    ops: Sequence[tuple[str, str | None, int]]


ALTERS = [
    *(Alter(BROKER, name, [(key, value, SET)]) for name in ("1", "") for key, value in BROKER_VALUES.items()),
    *(Alter(TOPIC, NAME, [(key, value, SET)]) for key, value in TOPIC_VALUES.items()),
    Alter(BROKER, "1", [("min.insync.replicas", "1", SET)]),
    Alter(BROKER, "1", [("num.io.threads", "9", APPEND)]),
    Alter(BROKER, "1", [("log.cleanup.policy", "compact", APPEND)]),
    Alter(BROKER, "1", [("log.cleanup.policy", "delete", SUBTRACT)]),
    Alter(BROKER, "1", [("log.retention.ms", "1000", SET), ("log.retention.ms", "2000", SET)]),
    Alter(BROKER, "1", [("log.retention.ms", "1000", SET), ("broker.id", "2", SET)]),
    Alter(BROKER, "1", [("log.retention.ms", None, SET)]),
    Alter(BROKER, "9", [("log.retention.ms", "1000", SET)]),
    Alter(BROKER, "x", [("log.retention.ms", "1000", SET)]),
    Alter(TOPIC, NAME, [("retention.ms", None, SET)]),
    Alter(TOPIC, NAME, [("retention.ms", "1", SET), ("retention.ms", "2", SET)]),
    Alter(TOPIC, NAME, [("retention.ms", "1", APPEND)]),
    Alter(TOPIC, NAME, [("cleanup.policy", "compact", APPEND)]),
    Alter(TOPIC, NAME, [("cleanup.policy", "delete", DELETE)]),
    Alter(TOPIC, "missing", [("retention.ms", "1", SET)]),
    Alter(TOPIC, "", [("retention.ms", "1", SET)]),
    Alter(TOPIC, NAME, []),
]
DESCRIBED = [(BROKER, "1"), (BROKER, ""), (BROKER, "9"), (BROKER, "x"), (TOPIC, NAME), (TOPIC, "missing"), (TOPIC, "")]


class Answers(NamedTuple):
    """Error codes by request, and whether each key of broker 1 is read-only."""

    codes: Mapping[str, int]
    read_only: Mapping[str, bool]
    ids: tuple[str, str]


def answers(bootstrap: str) -> Answers:
    codes: dict[str, int] = {}
    with KafkaWire(bootstrap) as wire:
        for alter in ALTERS:
            for is_only_checked in (True, False):
                _alter(wire, alter, is_only_checked, codes)
        entries: dict[str, Any] = {}
        for kind, name in DESCRIBED:
            resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
            (found,) = wire.ask(Api.DESCRIBE_CONFIGS, resources=[resource]).results
            codes[f"describe {kind} {name!r}"] = found.error_code
            if (kind, name) == (BROKER, "1"):
                entries = {each.name: each for each in found.configs}
    read_only = {name: each.read_only for name, each in entries.items()}
    return Answers(codes, read_only, (entries["node.id"].value, entries["broker.id"].value))


def _alter(wire: KafkaWire, alter: Alter, is_only_checked: bool, codes: dict[str, int]) -> None:
    title = f"{alter.kind} {alter.name!r} {alter.ops}, validate_only={is_only_checked}"
    configs = [{"name": key, "value": value, "config_operation": op} for key, value, op in alter.ops]
    resource = {"resource_type": alter.kind, "resource_name": alter.name, "configs": configs}
    answer = wire.ask(Api.INCREMENTAL_ALTER_CONFIGS, resources=[resource], validate_only=is_only_checked)
    codes[f"increment {title}"] = answer.responses[0].error_code
    # Replacing the configuration of all brokers would remove Kafka's own min.insync.replicas, which Kafka refuses.
    if all(op == SET for _, _, op in alter.ops) and (alter.kind, alter.name) != (BROKER, ""):
        resource["configs"] = [{"name": key, "value": value} for key, value, _ in alter.ops]
        answer = wire.ask(Api.ALTER_CONFIGS, resources=[resource], validate_only=is_only_checked)
        codes[f"replace {title}"] = answer.responses[0].error_code


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka")) as kafka:
        kafka.create_topics({NAME: {}})
        yield answers(kafka.bootstrap)


@pytest.fixture(scope="module")
def ours() -> Iterator[Answers]:
    with LocalCluster(brokers=1, controllers=1, kafka=True, mode="inprocess") as cluster:
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(NAME, partitions=1)])
        yield answers(cluster.kafka_bootstrap_servers)


def test_requests_get_kafkas_error_codes(theirs: Answers, ours: Answers) -> None:
    different = {name: (code, ours.codes[name]) for name, code in theirs.codes.items() if code != ours.codes[name]}
    assert different == {}


def test_the_table_tells_requests_apart(theirs: Answers) -> None:
    assert set(theirs.codes.values()) == {0, 3, 17, 40, 42}


def test_the_same_keys_are_read_only(theirs: Answers, ours: Answers) -> None:
    """tests/integration/interop/kafka/test_kafka_keys.py gives the reasons for differences."""
    shared = theirs.read_only.keys() & ours.read_only.keys()
    assert len(shared) > 250
    different = {name for name in shared if theirs.read_only[name] != ours.read_only[name]}
    assert different <= {*OTHER_SCOPES, *WITHOUT_EFFECT}
    assert different >= set(WITHOUT_EFFECT)


def test_a_broker_has_its_number_under_both_names(theirs: Answers, ours: Answers) -> None:
    assert theirs.ids == ours.ids == ("1", "1")
