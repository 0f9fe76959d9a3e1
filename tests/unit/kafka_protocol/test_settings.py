"""The settings of a broker's listeners for Kafka's clients."""

from __future__ import annotations

import pytest

from headrace_core.errors import InvalidConfigError
from headrace_core.node.config import NodeConfig
from headrace_core.security.protocols import SecurityProtocol
from headrace_kafka.settings import QUEUED_BYTES, REQUEST_BYTES, KafkaSettings

LISTENERS = "client://127.0.0.1:0,internal://127.0.0.1:0"


def config_of(listeners: str, role: str = "broker", **keys: str) -> NodeConfig:
    named = {key.replace("_", "."): value for key, value in keys.items()}
    return NodeConfig.from_properties(
        {"node.id": "1", "log.dirs": "/data", "listeners": f"{LISTENERS}{listeners}", **named}, role=role
    )


def test_the_defaults_are_kafkas() -> None:
    settings = KafkaSettings.of(config_of(",kafka://127.0.0.1:9092"))
    assert [str(each) for each in settings.listeners] == ["kafka://127.0.0.1:9092"]
    assert settings.request_bytes_max == REQUEST_BYTES == 104_857_600
    assert (settings.queued_bytes_max, settings.idle_ms) == (QUEUED_BYTES, 600_000)


def test_each_listener_has_its_protocol() -> None:
    protocols = "client:SSL,internal:SSL,kafka:PLAINTEXT,kafkasasl:SASL_SSL"
    config = config_of(
        ",kafka://:9092,KafkaSASL://0.0.0.0:9094",
        advertised_listeners="kafkasasl://kafka.example:9094",
        listener_security_protocol_map=protocols,
        socket_request_max_bytes="4194304",
    )
    settings = KafkaSettings.of(config)
    assert settings.protocols == {"kafka": SecurityProtocol.PLAINTEXT, "kafkasasl": SecurityProtocol.SASL_SSL}
    assert settings.request_bytes_max == 4_194_304


@pytest.mark.parametrize(
    ("listeners", "role", "keys", "error"),
    [
        (",kafka://9092", "broker", {}, "write name://host:port"),
        (",kafka://127.0.0.1:9092", "coordinator", {}, "only brokers speak Kafka's protocol, not a coordinator"),
        (",kafka://127.0.0.1:9092", "controller", {}, "only brokers speak Kafka's protocol, not a controller"),
        ("", "broker", {"advertised_listeners": "kafka://a:1"}, "listeners does not have this listener"),
        (",kafka://:9092", "broker", {"advertised_listeners": "kafka://0.0.0.0:1"}, "clients cannot connect to"),
    ],
)
def test_wrong_listeners_are_refused_with_their_key(
    listeners: str, role: str, keys: dict[str, str], error: str
) -> None:
    with pytest.raises(InvalidConfigError, match=error):
        config_of(listeners, role, **keys)
