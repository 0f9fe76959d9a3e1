"""Serializers and deserializers: any callable ``(topic, value)``, or an object with a method ``serialize`` or
``deserialize``.

Without a serializer, keys and values must be bytes or None.

A serializer that calls a service (``headrace.schemas``) must not block an event loop, and must not wait longer than the
client's call may take. If a serializer has a method ``serialize_nowait`` (a deserializer: ``deserialize_nowait``),
clients call it in place of ``serialize``. The method ``serialize_nowait`` raises WouldWait instead of waiting; the
client waits for the end of the request, then calls the method again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace_core.errors import InvalidConfigError, SerializationError

from . import strict_json

Serializer = Callable[[str, Any], bytes | None]
Deserializer = Callable[[str, bytes], Any]


class WouldWait(Exception):
    """Raised by a serializer or deserializer that needs the response to a request in progress. When ``request`` has
    ended, call the serializer again: the call then returns a result, or raises the request's error."""

    def __init__(self, request: concurrent.futures.Future[Any]) -> None:
        super().__init__("the serializer waits for the schema registry")
        self.request = request

    async def end(self, deadline: float) -> bool:
        """Wait until the request has ended; return False when ``deadline`` (monotonic time) passes first. Cancelling
        the caller does not cancel the request, which other callers may need."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self.request.add_done_callback(partial(_set_in, loop, ended))
        try:
            async with asyncio.timeout(_left(deadline)):
                await ended.wait()
        except TimeoutError:
            return False
        return True

    def block(self, deadline: float) -> bool:
        """Wait like ``end``, in the caller's thread."""
        return bool(concurrent.futures.wait([self.request], _left(deadline)).done)


def _left(deadline: float) -> float | None:
    return None if deadline == math.inf else max(deadline - time.monotonic(), 0)


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event, _: object) -> None:
    with contextlib.suppress(RuntimeError):  # the caller's event loop has ended
        loop.call_soon_threadsafe(event.set)


def utf8(topic: str, value: str | None) -> bytes | None:
    """Text as UTF-8. Raises SerializationError."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise SerializationError(f"a {type(value).__name__} is not text: {value!r:.60}; convert it with str(value)")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise SerializationError(
            f"the text {value!r:.60} has half of a surrogate pair at character {error.start}, which is not UTF-8"
        ) from None


def json_utf8(topic: str, value: Any) -> bytes | None:
    """Serialize any JSON value to compact JSON; None stays None (a tombstone). Raises SerializationError, which names
    the place, for a value that JSON does not have (NaN, infinities, two keys that become one, half a surrogate pair) or
    that is nested more than ``strict_json.DEPTH_MAX`` levels deep."""
    if value is None:
        return None
    try:
        return strict_json.encode(value)
    except strict_json.NotJsonError as error:
        raise SerializationError(f"the value is not valid JSON: {error}") from error.__cause__


def from_utf8(topic: str, data: bytes) -> str:
    """UTF-8 as text."""
    return data.decode()


def from_json(topic: str, data: bytes) -> Any:
    """Deserialize JSON to Python values."""
    return json.loads(data)


def serializer(given: Any, key_name: str) -> Serializer | None:
    """The callable for a configured serializer; its failures become SerializationError, which names the topic and the
    key or value. The callable may raise WouldWait."""
    field = key_name.partition(".")[0]
    call = _callable(given, "serialize", key_name, field)
    if call is None:
        return None

    def serialize(topic: str, value: Any) -> bytes | None:
        try:
            data = call(topic, value)
        except WouldWait:
            raise
        except SerializationError as error:
            raise _located(error, key_name, topic, field) from error.__cause__
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
    """The callable for a configured deserializer; keys and values of None are returned without a call. The callable may
    raise WouldWait."""
    field = key_name.partition(".")[0]
    call = _callable(given, "deserialize", key_name, field)
    if call is None:
        return None

    def deserialize(topic: str, data: bytes) -> Any:
        try:
            return call(topic, data)
        except WouldWait:
            raise
        except SerializationError as error:
            raise _located(error, key_name, topic, field) from error.__cause__
        except Exception as error:
            raise SerializationError(
                f"{key_name} failed for topic {topic!r}: {type(error).__name__}: {error}", topic=topic, field=field
            ) from error

    return deserialize


def _located(error: SerializationError, key_name: str, topic: str, field: str) -> SerializationError:
    """A copy of a serializer's own error that also names the topic and the field (key or value). The copy has the class
    and the other attributes of the original error."""
    found = error.copy()
    found.args = (f"{key_name} failed for topic {topic!r}: {error.message}", *error.args[1:])
    found.topic, found.field = topic, field
    return found


def _callable(given: Any, method: str, key_name: str, field: str) -> Callable[[str, Any], Any] | None:
    """The function of a configured serializer. If the object has a method ``for_field``, that method returns the object
    for keys or for values."""
    if given is None:
        return None
    if isinstance(given, type):
        given = given()
    for_field = getattr(given, "for_field", None)
    if for_field is not None:
        given = for_field(field)
    bound = getattr(given, f"{method}_nowait", None) or getattr(given, method, given)
    if not callable(bound):
        raise InvalidConfigError(
            f"{key_name}={given!r}: must be callable as (topic, value), or have a method {method}()"
        )
    found: Callable[[str, Any], Any] = bound
    return found
