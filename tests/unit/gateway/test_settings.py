"""A gateway's configuration."""

from __future__ import annotations

import pytest

from headrace_core.errors import InvalidConfigError
from headrace_core.node.config import NodeConfig
from headrace_kafka.settings import QUEUED_BYTES, REQUEST_BYTES, GatewaySettings

BASE = {"log.dirs": "/data", "listeners": "internal://127.0.0.1:0"}


def settings_of(**keys: str) -> GatewaySettings:
    named = {key.replace("_", "."): value for key, value in keys.items()}
    return GatewaySettings.of(NodeConfig.from_properties(BASE | named, role="gateway"))


def test_the_defaults_are_kafkas() -> None:
    settings = settings_of()
    assert [str(each) for each in settings.listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert settings.request_bytes_max == REQUEST_BYTES == 104_857_600
    assert (settings.queued_bytes_max, settings.idle_ms, settings.broker_ports) == (QUEUED_BYTES, 600_000, {})


def test_listeners_have_any_names_and_ports_for_broker_ids() -> None:
    settings = settings_of(
        kafka_listeners="plaintext://:9092,OUTSIDE://0.0.0.0:9094",
        kafka_advertised_listeners="OUTSIDE://kafka.example:9094",
        kafka_broker_ports="Plaintext:19092",
        socket_request_max_bytes="4194304",
    )
    assert [each.name for each in settings.listeners] == ["PLAINTEXT", "OUTSIDE"]
    assert [str(each) for each in settings.advertised] == ["OUTSIDE://kafka.example:9094"]
    assert (settings.broker_ports, settings.request_bytes_max) == ({"PLAINTEXT": 19092}, 4_194_304)


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ({"kafka_listeners": ""}, "kafka.listeners is empty"),
        ({"kafka_listeners": "9092"}, "write name://host:port, such as PLAINTEXT://"),
        ({"kafka_advertised_listeners": "OUTSIDE://a:1"}, "kafka.listeners does not have this listener"),
        ({"kafka_advertised_listeners": "PLAINTEXT://0.0.0.0:1"}, "clients cannot connect to 0.0.0.0"),
        ({"kafka_broker_ports": "PLAINTEXT"}, "write NAME:BASE"),
        ({"kafka_broker_ports": "PLAINTEXT:0"}, "write NAME:BASE"),
        ({"kafka_broker_ports": "OUTSIDE:19092"}, "kafka.listeners does not have this listener"),
    ],
)
def test_wrong_listeners_are_refused_with_their_key(keys: dict[str, str], error: str) -> None:
    with pytest.raises(InvalidConfigError, match=error):
        settings_of(**keys)
