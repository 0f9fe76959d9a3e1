"""Which value of a configuration key holds, and where it came from.

For a topic's key, the first of these that is set (Kafka's order):

    the topic itself                      retention.ms        on the topic
    this broker, set dynamically          log.retention.ms    on broker "1"
    all brokers, set dynamically          log.retention.ms    on broker ""
    this broker's properties file         log.retention.ms    (or log.retention.hours, ...)
    the default                           retention.ms
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..config import ConfigKey
from ..errors import InvalidConfigError, InvalidRequestError
from ..log.config import TOPIC
from ..node.keys import SERVER, TOPIC_DEFAULT_KEYS
from .image import MetadataImage
from .records import ConfigResourceType

logger = logging.getLogger("headrace.config")

#: Ids are 32-bit numbers. Python refuses to convert thousands of digits with a ValueError.
_BROKER_ID_DIGITS_MAX = 10


class ConfigSource(enum.IntEnum):
    """Where a value comes from (the numbers of headrace.v1.ConfigSource)."""

    DEFAULT = 1
    STATIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    DYNAMIC_BROKER = 4
    DYNAMIC_TOPIC = 5


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """One key of a resource: its value as text, where that comes from, whether it can be altered while running."""

    name: str
    value: str
    source: ConfigSource
    read_only: bool
    documentation: str


def parse_broker_id(name: str) -> int:
    """The broker that a configuration resource names, written as a plain number; InvalidRequestError."""
    if name.isascii() and name.isdigit() and len(name) <= _BROKER_ID_DIGITS_MAX and str(int(name)) == name:
        return int(name)
    raise InvalidRequestError(f"broker {name[:60]!r}: write a broker's id, or nothing for all brokers")


def broker_topic_defaults(image: MetadataImage, broker_id: int, static: Mapping[str, Any]) -> dict[str, Any]:
    """The topic keys that a broker sets for topics that do not: what LogConfig.from_topic takes as broker_defaults.

    ``static``: those of its properties file (NodeConfig.topic_defaults()); ``broker_id`` -1: all brokers' only.
    """
    values = dict(static)
    for name in ("", str(broker_id)) if broker_id >= 0 else ("",):
        dynamic = image.config(ConfigResourceType.BROKER, name)
        if dynamic:
            values.update({topic: dynamic[key] for topic, key in TOPIC_DEFAULT_KEYS.items() if key in dynamic})
    return values


def broker_values(image: MetadataImage, broker_id: int, static: Mapping[str, Any]) -> dict[str, Any]:
    """Every server key with the typed value that holds on a broker (-1: one that is set on none by itself).

    ``static``: what its properties file sets (NodeConfig.given). A dynamic value that is not legal (it was written when
    other bounds held) counts as not set, and is logged: it must not stop a broker.
    """
    values = {name: key.default for name, key in SERVER.keys.items()}
    values.update(static)
    for name in ("", str(broker_id)) if broker_id >= 0 else ("",):
        for key_name, text in image.config(ConfigResourceType.BROKER, name).items():
            try:
                key = SERVER.key(key_name)
                if key.dynamic:
                    values[key.name] = key.parse(text)
            except InvalidConfigError as error:
                logger.warning("a dynamic value of broker %r is left out: %s", name, error)
    return values


def topic_config(
    image: MetadataImage, topic: str, *, broker_id: int = -1, static: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Every key of a topic with the typed value that holds on a broker (-1: on any)."""
    given = broker_topic_defaults(image, broker_id, static or {})
    return TOPIC.parse({**given, **image.config(ConfigResourceType.TOPIC, topic)})


def topic_value(
    image: MetadataImage, topic: str, key: str, *, broker_id: int = -1, static: Mapping[str, Any] | None = None
) -> Any:
    """One key of topic_config, without computing the others."""
    config_key = TOPIC.keys[key]
    for raw, _ in _topic_layers(image, topic, config_key, broker_id, static or {}):
        return config_key.parse(raw)
    return config_key.default


def describe_topic(
    image: MetadataImage, topic: str, *, broker_id: int = -1, static: Mapping[str, Any] | None = None
) -> list[ConfigDescription]:
    """Every key of a topic, by name, with the source of its value."""
    described = []
    for name in sorted(TOPIC.keys):
        key = TOPIC.keys[name]
        layers = _topic_layers(image, topic, key, broker_id, static or {})
        raw, source = next(layers, (key.default, ConfigSource.DEFAULT))
        described.append(_description(key, name, raw, source, read_only=False))
    return described


def describe_broker(
    image: MetadataImage, broker_id: int | None, *, static: Mapping[str, Any] | None = None
) -> list[ConfigDescription]:
    """Every server key for one broker. None: the dynamic values of all brokers, and nothing else (as Kafka has it).

    ``static``: the values its properties file sets, which only that broker knows (NodeConfig.given).
    """
    everyone = image.config(ConfigResourceType.BROKER, "")
    if broker_id is None:
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER
        return [_description(SERVER.key(name), name, raw, source) for name, raw in sorted(everyone.items())]
    own = image.config(ConfigResourceType.BROKER, str(broker_id))
    layers = (
        (own, ConfigSource.DYNAMIC_BROKER),
        (everyone, ConfigSource.DYNAMIC_DEFAULT_BROKER),
        (static or {}, ConfigSource.STATIC_BROKER),
    )
    described = []
    for name in sorted(SERVER.keys):
        key = SERVER.keys[name]
        found = next(((layer[name], source) for layer, source in layers if name in layer), None)
        raw, source = found or (key.default, ConfigSource.DEFAULT)
        described.append(_description(key, name, raw, source))
    return described


def _topic_layers(
    image: MetadataImage, topic: str, key: ConfigKey, broker_id: int, static: Mapping[str, Any]
) -> Iterator[tuple[Any, ConfigSource]]:
    """The values that are set for a topic's key, the one that holds first."""
    own = image.config(ConfigResourceType.TOPIC, topic)
    if key.name in own:
        yield own[key.name], ConfigSource.DYNAMIC_TOPIC
    server_key = TOPIC_DEFAULT_KEYS.get(key.name)
    if server_key is not None:
        layers = [("", ConfigSource.DYNAMIC_DEFAULT_BROKER)]
        if broker_id >= 0:
            layers.insert(0, (str(broker_id), ConfigSource.DYNAMIC_BROKER))
        for name, source in layers:
            dynamic = image.config(ConfigResourceType.BROKER, name)
            if server_key in dynamic:
                yield dynamic[server_key], source
    if key.name in static:
        yield static[key.name], ConfigSource.STATIC_BROKER


def _description(
    key: ConfigKey, name: str, raw: Any, source: ConfigSource, *, read_only: bool | None = None
) -> ConfigDescription:
    value = raw if raw is None else key.parse(raw)
    return ConfigDescription(
        name=name,
        value=key.format(value),
        source=source,
        read_only=not key.dynamic if read_only is None else read_only,
        documentation=key.doc if key.note is None else f"{key.doc} ({key.note})",
    )
