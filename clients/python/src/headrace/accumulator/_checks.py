"""Checks of a producer's arguments: records, partitions and timestamps."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from headrace_core.errors import HeadraceError, InvalidTimestampError, InvalidTypeError, RecordTooLargeError
from headrace_core.records import TIMESTAMP_MS_MIN, BatchBuilder

from ..arguments import INT32_MAX, INT64_MAX, whole

#: Headers of a record, in the forms that a caller may pass.
Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]


class NoSuchPartition(IndexError):
    """Raised for a partition number that the topic does not have, according to the metadata that the client knows. The
    argument of NoSuchPartition is the partition number."""


def header_list(headers: Headers) -> list[Any]:
    """The headers of one record (a dict or pairs), as a new list."""
    try:
        return list(headers.items() if isinstance(headers, Mapping) else headers)
    except TypeError:
        raise InvalidTypeError(
            f"headers must be a dict, or pairs of a str and bytes (or None), not {headers!r:.80}"
        ) from None


def partition_number(partition: Any) -> int:
    """The partition number as an int. Raises InvalidArgumentError if the number is not a valid partition number of any
    topic."""
    return whole("partition", partition, 0, INT32_MAX)


def timestamp_of(timestamp_ms: Any) -> int:
    """Check a timestamp and return it in ms. Raises InvalidTypeError, InvalidTimestampError."""
    try:
        value = operator.index(timestamp_ms)
        if isinstance(timestamp_ms, bool):
            raise TypeError
    except TypeError:
        raise InvalidTypeError(
            f"timestamp_ms must be whole milliseconds since 1970, not {timestamp_ms!r:.80}"
        ) from None
    if not TIMESTAMP_MS_MIN <= value <= INT64_MAX:
        raise InvalidTimestampError(
            f"timestamp_ms={value}: must be milliseconds since 1970 (or, negative, before), from -2^62 to 2^63 - 1"
        )
    return value


def wrong_topic(topic: Any) -> InvalidTypeError:
    return InvalidTypeError(f"topic must be a str, not {topic!r:.80}")


def wrong_type(topic: str, key: Any, value: Any, headers: list[Any] | None, error: Exception | None) -> Exception:
    """The error for a key, value or header that is not bytes. The error's message names the wrong argument and says
    what to do."""
    if isinstance(error, HeadraceError):  # from a timestamp
        return error
    for name, given in (("value", value), ("key", key)):
        if given is not None and not isinstance(given, bytes | bytearray | memoryview):
            return InvalidTypeError(
                f"topic {topic!r}: a {name} must be bytes or None, not {type(given).__name__}: set {name}.serializer"
            )
    for index, pair in enumerate(headers or ()):
        match pair:
            case [str(name), None | bytes() | bytearray() | memoryview()] if _is_utf8(name):
                continue
        return InvalidTypeError(
            f"topic {topic!r}: header {index} must be a pair of a str and bytes (or None), not {pair!r:.80}"
        )
    return InvalidTypeError(f"topic {topic!r}: cannot encode the given value as a record: {error}")


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def prepared(accumulator: Any, known: Any, item: Any, number: int, partition: int | None) -> tuple[Any, ...]:
    """Record ``number`` of a list as (key, value, headers, partition), serialized and checked."""
    try:
        key, value, headers = None, item, None
        if isinstance(item, tuple):
            if not 2 <= len(item) <= 3:
                raise InvalidTypeError(f"a tuple of {len(item)} items is not a record: must be (key, value[, headers])")
            key, value, headers = (*item, None)[:3]
        if accumulator.key_serializer is not None:
            key = accumulator.key_serializer(known.name, key)
        if accumulator.value_serializer is not None:
            value = accumulator.value_serializer(known.name, value)
        headers = None if headers is None else header_list(headers)
        limit = min(known.max_batch_bytes, accumulator.buffer_bytes)
        try:
            key, value = (None if each is None else bytes(memoryview(each)) for each in (key, value))
            alone = BatchBuilder(limit)
            alone.append(0, key, value, headers)
        except (TypeError, ValueError, BufferError) as error:
            raise wrong_type(known.name, key, value, headers, error) from None
        if alone.size > limit:
            raise too_large(known.name, alone.size, known.max_batch_bytes, accumulator.buffer_bytes)
        # The partition count is 0 if another thread has closed the producer; append_many then appends nothing.
        count = len(known.queues)
        if partition is None and accumulator.partitioner is not None and count:
            partition = accumulator.partitioner(known.name, key, value, count)
            if partition is not None:
                partition = partition_number(partition)
                if partition >= count:
                    raise NoSuchPartition(partition)
    except HeadraceError as error:
        error.args = (f"record {number}: {error.message}; no record of the list was sent", *error.args[1:])
        raise
    return key, value, headers, partition


def too_large(topic: str, size: int, limit: int, buffer_bytes: int) -> RecordTooLargeError:
    if size > limit:
        return RecordTooLargeError(
            f"a record of {size} bytes (as a batch of its own) is too large for topic {topic!r}: the limit is "
            f"{limit} bytes; send a smaller record, or raise max.request.size and, without compression, the topic's "
            "max.message.bytes and segment.bytes"
        )
    return RecordTooLargeError(
        f"a record of {size} bytes does not fit into buffer.memory={buffer_bytes}; send a smaller record, or raise "
        "buffer.memory"
    )
