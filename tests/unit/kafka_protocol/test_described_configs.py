"""DescribeConfigs in Kafka's terms."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace_core.errors import NetworkError, RequestTimedOutError, UnknownTopicOrPartitionError
from headrace_kafka.handlers.configs import DESCRIBED_AT_ONCE, TOPIC, describe_configs, described_entries
from headrace_kafka.handlers.topics import _configs_of
from headrace_protos.v1 import admin_pb2, common_pb2


def entry(name: str, value: str, kind: int, source: int = admin_pb2.CONFIG_SOURCE_DEFAULT) -> admin_pb2.ConfigEntry:
    made = admin_pb2.ConfigEntry(name=name, value=value, type=kind, source=source)
    made.synonyms.add(name=name, value=value, source=source)
    return made


def test_a_key_without_a_value_is_null_and_an_empty_list_is_one() -> None:
    found = admin_pb2.DescribeConfigsResult(
        entries=[
            entry("advertised.listeners", "", admin_pb2.CONFIG_TYPE_STRING),
            entry("metric.reporters", "", admin_pb2.CONFIG_TYPE_LIST),
            entry("broker.rack", "", admin_pb2.CONFIG_TYPE_STRING, admin_pb2.CONFIG_SOURCE_STATIC_BROKER),
            entry("num.partitions", "1", admin_pb2.CONFIG_TYPE_INT),
        ]
    )
    rows: list[dict[str, Any]] = described_entries(found, None, synonyms=True, documentation=False)
    assert {row["name"]: row["value"] for row in rows} == {
        "advertised.listeners": None,
        "metric.reporters": "",
        "broker.rack": "",
        "num.partitions": "1",
    }
    assert [len(row["synonyms"]) for row in rows] == [0, 1, 1, 1]


def test_a_topics_keys_without_a_value_are_left_out() -> None:
    """librdkafka's tests send all described entries back with AlterConfigs, which accepts no null."""
    found = admin_pb2.DescribeConfigsResult(
        resource=admin_pb2.ConfigResource(type=admin_pb2.CONFIG_RESOURCE_TYPE_TOPIC, name="orders"),
        entries=[
            entry("message.format.version", "", admin_pb2.CONFIG_TYPE_STRING),
            entry("leader.replication.throttled.replicas", "", admin_pb2.CONFIG_TYPE_LIST),
            entry("retention.ms", "1", admin_pb2.CONFIG_TYPE_LONG),
        ],
    )
    rows = described_entries(found, None, synonyms=False, documentation=False)
    assert [(row["name"], row["value"]) for row in rows] == [
        ("leader.replication.throttled.replicas", ""),
        ("retention.ms", "1"),
    ]


def test_topics_with_equal_settings_have_their_own_answers() -> None:
    """The broker converts equal settings once."""
    settings = {"a": "1", "b": "1", "c": "2", "d": "1"}
    keys = {"b": ["segment.bytes"], "d": []}

    class Cluster:
        """Answers as a broker."""

        async def own(self, stub: Any, name: str, asked: Any, timeout_ms: int) -> Any:
            answer = admin_pb2.DescribeConfigsResponse()
            for each in asked.resources:
                result = answer.results.add(resource=each)
                result.entries.append(entry("retention.ms", settings[each.name], admin_pb2.CONFIG_TYPE_LONG))
                result.entries.append(entry("segment.bytes", "7", admin_pb2.CONFIG_TYPE_INT))
            return answer

        def require(self, *_: Any) -> None: ...

        settings = SimpleNamespace(request_timeout_ms=1_000)

    resources = [
        SimpleNamespace(resource_type=TOPIC, resource_name=name, configuration_keys=keys.get(name)) for name in settings
    ]
    request: Any = SimpleNamespace(resources=resources, include_synonyms=False, include_documentation=False)
    call: Any = Cluster()
    answer = asyncio.run(describe_configs(call, request))
    found = {each["resource_name"]: [row["value"] for row in each["configs"]] for each in answer["results"]}
    assert found == {"a": ["1", "7"], "b": ["7"], "c": ["2", "7"], "d": ["1", "7"]}


def test_a_created_topic_whose_configuration_cannot_be_read_has_an_error_code() -> None:
    class Node:
        """A broker that answers the first call only."""

        settings = SimpleNamespace(request_timeout_ms=1_000)
        calls = 0

        async def own(self, stub: Any, name: str, asked: Any, timeout_ms: int) -> Any:
            self.calls += 1
            if self.calls > 1:
                raise NetworkError("gone")
            answer = admin_pb2.DescribeConfigsResponse()
            for each in asked.resources:
                result = answer.results.add(resource=each)
                if each.name == "t1":
                    result.error.code = common_pb2.ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION
                result.entries.append(entry("retention.ms", "1", admin_pb2.CONFIG_TYPE_LONG))
            return answer

    node: Any = Node()
    names = [f"t{number}" for number in range(DESCRIBED_AT_ONCE + 2)]
    found = asyncio.run(_configs_of(node, names))
    assert list(found) == names
    assert {name: each["topic_config_error_code"] for name, each in found.items() if "configs" not in each} == {
        "t1": UnknownTopicOrPartitionError.number,
        names[-2]: RequestTimedOutError.number,
        names[-1]: RequestTimedOutError.number,
    }
