"""Serializers and deserializers: any callable ``(topic, value)``, or an object with a method ``serialize`` or
``deserialize``.

Without a serializer, keys and values must be bytes or None.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from headrace_core.errors import InvalidConfigError, SerializationError

Serializer = Callable[[str, Any], bytes | None]
Deserializer = Callable[[str, bytes], Any]


def utf8(topic: str, value: str | None) -> bytes | None:
    """Text as UTF-8."""
    return None if value is None else value.encode()


def json_utf8(topic: str, value: Any) -> bytes | None:
    """Serialize any JSON value to compact JSON; None stays None (a tombstone)."""
    return None if value is None else json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def from_utf8(topic: str, data: bytes) -> str:
    """UTF-8 as text."""
    return data.decode()


def from_json(topic: str, data: bytes) -> Any:
    """Deserialize JSON to Python values."""
    return json.loads(data)


def serializer(given: Any, key_name: str) -> Serializer | None:
    """The callable for a configured serializer; its failures become SerializationError, which names the topic and the
    key or value."""
    call, field = _callable(given, "serialize", key_name), key_name.partition(".")[0]
    if call is None:
        return None

    def serialize(topic: str, value: Any) -> bytes | None:
        try:
            data = call(topic, value)
        except Exception as error:
            raise SerializationError(
                f"{key_name} failed for topic {topic!r}: {type(error).__name__}: {error}", topic=topic, field=field
            ) from error
        if data is not None and not isinstance(data, bytes):
            raise SerializationError(
                f"{key_name} returned {type(data).__name__} for topic {topic!r}; it must return bytes or None",
                topic=topic,
                field=field,
            )
        return data

    return serialize


def deserializer(given: Any, key_name: str) -> Deserializer | None:
    """The callable for a configured deserializer; keys and values of None are returned without a call."""
    call, field = _callable(given, "deserialize", key_name), key_name.partition(".")[0]
    if call is None:
        return None

    def deserialize(topic: str, data: bytes) -> Any:
        try:
            return call(topic, data)
        except Exception as error:
            raise SerializationError(
                f"{key_name} failed for topic {topic!r}: {type(error).__name__}: {error}", topic=topic, field=field
            ) from error

    return deserialize


def _callable(given: Any, method: str, key_name: str) -> Callable[[str, Any], Any] | None:
    if given is None:
        return None
    if isinstance(given, type):
        given = given()
    bound = getattr(given, method, given)
    if not callable(bound):
        raise InvalidConfigError(
            f"{key_name}={given!r}: must be callable as (topic, value), or have a method {method}()"
        )
    found: Callable[[str, Any], Any] = bound
    return found
