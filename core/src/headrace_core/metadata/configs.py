"""The effective value of a configuration key, and its source.

The value of a topic's key is the first value in the following list that is set (Kafka's order):

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
from functools import lru_cache
from typing import Any

from ..config import ConfigDef, ConfigKey, Kind
from ..config.server_keys import SERVER, effective
from ..config.topic_keys import COARSE_DEFAULT_KEYS, TOPIC, TOPIC_DEFAULT_KEYS
from ..errors import InvalidConfigError, InvalidRequestError
from .image import MetadataImage
from .records import ConfigResourceType

logger = logging.getLogger("headrace.config")

#: Maximum number of digits of a broker id, a 32-bit number; Python raises ValueError for a number with thousands of
#: digits.
_BROKER_ID_DIGITS_MAX = 10


class ConfigSource(enum.IntEnum):
    """The source of a key's value, with the numbers of headrace.v1.ConfigSource."""

    DEFAULT = 1
    STATIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    DYNAMIC_BROKER = 4
    DYNAMIC_TOPIC = 5


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value that one source sets for a key. ``name`` is the key's name at the source: a broker sets ``retention.ms``
    as ``log.retention.ms``."""

    name: str
    value: str
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """One key of a resource: its value as text, the value's source, and whether the key can be altered at run time.

    ``value`` is empty when the key is ``sensitive``. ``synonyms``: every value that is set, the effective value first,
    the default last (as in Kafka's DescribeConfigs).
    """

    name: str
    value: str
    source: ConfigSource
    read_only: bool
    documentation: str
    kind: Kind
    sensitive: bool
    allowed: str
    synonyms: tuple[ConfigSynonym, ...]


def parse_broker_id(name: str) -> int:
    """Parse the broker id that names a configuration resource. Raises InvalidRequestError unless the name is a plain
    number."""
    if name.isascii() and name.isdigit() and len(name) <= _BROKER_ID_DIGITS_MAX and str(int(name)) == name:
        return int(name)
    raise InvalidRequestError(f"broker {name[:60]!r}: must be a broker's id, or empty for all brokers")


def topic_given(image: MetadataImage, topic: str) -> dict[str, Any]:
    """Return the typed values that are set on the topic itself, for the argument ``given`` of LogConfig.from_topic."""
    return _legal(TOPIC, image.config(ConfigResourceType.TOPIC, topic), f"topic {topic}")


def broker_topic_defaults(image: MetadataImage, broker_id: int, static: Mapping[str, Any]) -> dict[str, Any]:
    """Return a broker's defaults for topic keys, for the argument ``broker_defaults`` of LogConfig.from_topic.

    ``static``: the defaults in the broker's properties file (NodeConfig.topic_defaults()). ``broker_id`` -1: only
    values that are set for all brokers.
    """
    values = dict(static)
    dynamic = _dynamic(image, broker_id)
    if dynamic:
        values.update({topic: dynamic[key] for topic, key in TOPIC_DEFAULT_KEYS.items() if key in dynamic})
    return values


_SERVER_DEFAULTS = {name: key.default for name, key in SERVER.keys.items()}


def broker_values(image: MetadataImage, broker_id: int, static: Mapping[str, Any]) -> dict[str, Any]:
    """Return every server key with its typed effective value on a broker (-1: a broker without dynamic values of its
    own).

    ``static``: the values in the broker's properties file (NodeConfig.given).
    """
    values = _SERVER_DEFAULTS | effective(static, static)
    values.update((name, value) for name, value in _dynamic(image, broker_id).items() if SERVER.key(name).dynamic)
    return values


def topic_config(
    image: MetadataImage, topic: str, *, broker_id: int = -1, static: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return every key of a topic with its typed effective value on a broker (-1: on any broker)."""
    given = broker_topic_defaults(image, broker_id, static or {})
    return TOPIC.parse({**given, **topic_given(image, topic)})


def _dynamic(image: MetadataImage, broker_id: int) -> dict[str, Any]:
    """Return the typed dynamic values of server keys that apply to a broker (-1: only the values for all brokers)."""
    values: dict[str, Any] = {}
    for name in ("", str(broker_id)) if broker_id >= 0 else ("",):
        texts = image.config(ConfigResourceType.BROKER, name)
        if texts:
            values.update(_legal(SERVER, texts, f"broker {name}" if name else "all brokers"))
    return values


def _legal(declared: ConfigDef, texts: Mapping[str, str], where: str) -> dict[str, Any]:
    """Convert texts to typed values. A value that is no longer legal is logged and treated as not set: a record of an
    older release must not stop a node."""
    values = {}
    for name, text in texts.items():
        try:
            values[name] = _typed(declared, name, text)
        except InvalidConfigError as error:
            logger.warning("ignoring a value set for %s: %s", where, error)
    return values


@lru_cache(maxsize=512)
def _parsed(declared: ConfigDef, name: str, text: str) -> Any:
    return declared.key(name).parse(text)


def _typed(declared: ConfigDef, name: str, text: str) -> Any:
    """Parse the text of a value; raises InvalidConfigError. Parsed values are cached, because a cluster has few
    different values, and each of the controller's decisions reads some of them."""
    value = _parsed(declared, name, text)
    return list(value) if type(value) is list else value


def topic_value(
    image: MetadataImage, topic: str, key: str, *, broker_id: int = -1, static: Mapping[str, Any] | None = None
) -> Any:
    """Return the value of one key of ``topic_config``, without computing the other keys."""
    config_key = TOPIC.keys[key]
    for raw, _ in _topic_layers(image, topic, config_key, broker_id, static or {}):
        try:
            return _typed(TOPIC, key, raw) if isinstance(raw, str) else config_key.parse(raw)
        except InvalidConfigError as error:
            logger.warning("ignoring a value set for topic %s: %s", topic, error)
    return config_key.default


def min_insync_replicas(image: MetadataImage, topic: str) -> int:
    """Return a topic's min.insync.replicas: the topic's value, else the value set for all brokers, else the default.

    Values of min.insync.replicas in properties files are ignored. Controllers and brokers must use the same value of
    min.insync.replicas at the same metadata offset. If their values differed, an eligible leader replica could lack a
    committed record (KIP-966).
    """
    value: int = topic_value(image, topic, "min.insync.replicas")
    return value


def describe_topic(
    image: MetadataImage,
    topic: str,
    *,
    broker_id: int = -1,
    static: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> list[ConfigDescription]:
    """Describe every key of a topic, by name, with the source of its value.

    ``static``: the topic keys that a properties file sets (NodeConfig.topic_defaults()). ``given``: all values of the
    properties file (NodeConfig.given), with the names that the file uses; if ``given`` is passed, ``static`` is
    ignored.
    """
    described = []
    for name in sorted(TOPIC.keys):
        key = TOPIC.keys[name]
        server_name = TOPIC_DEFAULT_KEYS.get(name, name)
        found = [
            (name if source is ConfigSource.DYNAMIC_TOPIC else server_name, raw, source)
            for raw, source in _topic_layers(image, topic, key, broker_id, {} if given is not None else static or {})
        ]
        found += _static(server_name, given or {})
        described.append(_description(key, found, server_name, read_only=False))
    return described


def describe_broker(
    image: MetadataImage, broker_id: int | None, *, static: Mapping[str, Any] | None = None
) -> list[ConfigDescription]:
    """Describe every server key for one broker. Without a broker, describe only the dynamic values for all brokers (as
    in Kafka).

    ``static``: the values in the broker's properties file, which only that broker knows (NodeConfig.given).
    """
    static = static or {}
    number = static.get("node.id", static.get("broker.id"))
    if number is not None:  # two names of one number; Kafka describes both
        static = {"node.id": number, "broker.id": number, **static}
    everyone = image.config(ConfigResourceType.BROKER, "")
    if broker_id is None:
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER
        return [
            _description(key, [(name, raw, source)], name)
            for name, raw in sorted(everyone.items())
            if (key := _declared(name)) is not None
        ]
    own = image.config(ConfigResourceType.BROKER, str(broker_id))
    layers = ((own, ConfigSource.DYNAMIC_BROKER), (everyone, ConfigSource.DYNAMIC_DEFAULT_BROKER))
    names = SERVER.keys.keys() | own.keys() | everyone.keys() | static.keys()
    described = []
    for name in sorted(names):
        key = _declared(name)
        if key is not None:
            found = [(name, layer[name], source) for layer, source in layers if name in layer]
            described.append(_description(key, found + _static(name, static), name))
    return described


#: A configured value: (name of the key, raw value, source). A topic's key that is set on a broker has the broker's
#: name, such as ``log.retention.ms``.
_Set = tuple[str, Any, ConfigSource]


def _declared(name: str) -> ConfigKey | None:
    """Return the declaration of a key; None for a key of a later or earlier release."""
    try:
        return SERVER.key(name)
    except InvalidConfigError:
        return None


def _static(name: str, given: Mapping[str, Any]) -> list[_Set]:
    """Return the values that a properties file sets for a server key, directly or by a key in a coarser unit (hours,
    minutes); the effective value first."""
    found = [(name, given[name])] if name in given else []
    for coarse, (fine, _) in COARSE_DEFAULT_KEYS.items():
        if fine == name and given.get(coarse) is not None:
            found.append((coarse, effective({}, {coarse: given[coarse]})[fine]))
    return [(spelling, value, ConfigSource.STATIC_BROKER) for spelling, value in found]


def _topic_layers(
    image: MetadataImage, topic: str, key: ConfigKey, broker_id: int, static: Mapping[str, Any]
) -> Iterator[tuple[Any, ConfigSource]]:
    """Return the values that are set for a topic's key, the effective value first."""
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
    key: ConfigKey, found: list[_Set], default_name: str, *, read_only: bool | None = None
) -> ConfigDescription:
    layers = [*found, (default_name, _default(key), ConfigSource.DEFAULT)]
    synonyms = tuple(ConfigSynonym(name, _text(key, raw), source) for name, raw, source in layers)
    holds = synonyms[0]
    return ConfigDescription(
        name=key.name,
        value=holds.value,
        source=holds.source,
        read_only=not key.dynamic if read_only is None else read_only,
        documentation=key.documentation,
        kind=key.kind,
        sensitive=key.sensitive,
        allowed=key.allowed,
        synonyms=synonyms,
    )


def _default(key: ConfigKey) -> Any:
    """The default that a description shows. Kafka states some defaults in hours (168 for log.retention.hours), and
    Headrace in milliseconds."""
    if key.name.endswith(".hours") and key.name in COARSE_DEFAULT_KEYS:
        fine, factor = COARSE_DEFAULT_KEYS[key.name]
        return SERVER.key(fine).default // factor
    return key.default


def _text(key: ConfigKey, raw: Any) -> str:
    """Return a value as canonical text. A value that is no longer legal is returned unchanged, and a secret is returned
    as an empty text."""
    if key.sensitive:
        return ""
    if not isinstance(raw, str):  # typed already
        return key.format(raw)
    try:
        return key.format(key.parse(raw))
    except InvalidConfigError:
        return str(raw)
