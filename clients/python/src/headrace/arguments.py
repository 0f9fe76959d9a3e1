"""Checks of arguments in the caller's thread: InvalidArgumentError names the argument, its value and what is valid.

Arguments are checked before they are used, so that a wrong argument does not cause an error inside protobuf, a file or
a lock. A number may have any integer type (``operator.index`` decides, so NumPy's integers are valid), but not bool.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from headrace_core.errors import InvalidArgumentError
from headrace_core.types import TopicPartition, check_topic_name

from .models import OffsetAndMetadata

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
#: The longest timeout in seconds that a request can carry (int32 milliseconds, 24 days); the client reduces longer
#: timeouts, also infinity, to this value.
SECONDS_MAX = 2_147_483.0


def wrong(name: str, given: Any, must: str) -> InvalidArgumentError:
    shown = repr(given)
    return InvalidArgumentError(f"{name}={shown if len(shown) <= 100 else shown[:97] + '...'}: {must}")


def whole(name: str, given: Any, low: int = 0, high: int = INT64_MAX) -> int:
    """Check an integer argument: from ``low`` to ``high``."""
    try:
        value = operator.index(given)
    except TypeError:
        value = low - 1
    if isinstance(given, bool) or not low <= value <= high:
        raise wrong(name, given, f"must be a whole number from {low} to {high}")
    return value


def offset(given: Any, name: str = "offset") -> int:
    """Check an offset argument: 0 to 2^63-1."""
    return whole(name, given)


def flag(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise wrong(name, given, "must be True or False")
    return given


def seconds(given: Any, name: str = "timeout", *, none: bool = False, negative: bool = False) -> float:
    """Check a timeout argument in seconds; the result is at most ``SECONDS_MAX``. ``none``: the value None is valid and
    means the longest timeout; ``negative``: values below 0 are valid and mean 0, as in concurrent.futures.Future."""
    if given is None and none:
        return SECONDS_MAX
    value = float("nan")
    if not isinstance(given, bool | str | bytes):
        try:
            value = float(given)
        except OverflowError:
            value = SECONDS_MAX if given > 0 else -1.0
        except (TypeError, ValueError):
            pass
    if negative and value < 0:
        return 0.0
    if not value >= 0:
        raise wrong(name, given, f"must be a number of seconds, 0 or more{', or None' if none else ''}")
    return min(value, SECONDS_MAX)


def text(name: str, given: Any, *, empty: bool = True) -> str:
    """Check a str argument, which must be valid UTF-8."""
    if not isinstance(given, str) or not (given or empty):
        raise wrong(name, given, "must be a string" if empty else "must be a string that is not empty")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise wrong(name, given, "must be a string that can be encoded as UTF-8") from None
    return given


def items(name: str, given: Any, what: str) -> list[Any]:
    """Check an argument that is an iterable, and return its items as a list; text and bytes are refused."""
    if isinstance(given, str | bytes | bytearray):
        raise wrong(name, given, f"must be a list of {what}")
    try:
        return list(given)
    except TypeError:
        raise wrong(name, given, f"must be a list of {what}") from None


def texts(name: str, given: Any, *, empty: bool = False) -> list[str]:
    """Check a list of texts; a single text becomes a list of one."""
    found = [given] if isinstance(given, str) else items(name, given, "strings")
    return [text(name, each, empty=empty) for each in found]


def mapping(name: str, given: Any, what: str) -> Mapping[Any, Any]:
    if not isinstance(given, Mapping):
        raise wrong(name, given, f"must be a dict of {what}")
    return given


def topic(given: Any, name: str = "topic") -> str:
    """Check a topic name. Raises InvalidTopicError."""
    return check_topic_name(text(name, given))


def partition(given: Any) -> TopicPartition:
    """Check a partition: a TopicPartition, or a (topic name, number) pair."""
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[0], str):
        raise InvalidArgumentError(f"{given!r:.100} is not a partition: give TopicPartition(topic, number)")
    return TopicPartition(topic(given[0]), whole(f"partition of {given[0]!r}", given[1], 0, INT32_MAX))


def partitions(given: Any, name: str = "partitions") -> list[TopicPartition]:
    """The TopicPartitions of an argument, in order and without duplicates."""
    if isinstance(given, TopicPartition):
        raise wrong(name, given, "must be a list of TopicPartition(topic, number)")
    return list(dict.fromkeys(partition(each) for each in items(name, given, "TopicPartition(topic, number)")))


def offset_to_commit(tp: TopicPartition, given: Any) -> OffsetAndMetadata:
    """Check an offset to commit: an integer or an OffsetAndMetadata."""
    if not isinstance(given, OffsetAndMetadata):
        return OffsetAndMetadata(offset(given, f"offset of {tp}"))
    return OffsetAndMetadata(
        offset(given.offset, f"offset of {tp}"),
        text(f"metadata of {tp}", given.metadata),
        whole(f"leader_epoch of {tp}", given.leader_epoch, -1, INT32_MAX),
    )


def polling(timeout: Any, max_records: Any) -> tuple[float, int | None]:
    """Check the arguments of a poll."""
    most = None if max_records is None else whole("max_records", max_records, 1)
    return seconds(timeout), most


def batching(timeout: Any, max_records: Any) -> tuple[float, int | None]:
    """Check the arguments of ``batches``: a timeout of 0 would poll without a pause."""
    checked, most = polling(timeout, max_records)
    if checked == 0:
        raise wrong("timeout", timeout, "must be above 0 s; with 0 the loop would poll without a pause")
    return checked, most


def arrow(columns: Any, include_headers: Any, max_bytes: Any) -> tuple[list[str] | None, bool]:
    """Check the arguments of calls that return Arrow data. Returns the columns, and whether the column of headers is
    added to them. ``include_headers`` None: headers are added only to the default columns."""
    found = None if columns is None else [text("columns", each) for each in items("columns", columns, "column names")]
    adds = found is None if include_headers is None else flag("include_headers", include_headers)
    whole("max_bytes", max_bytes, 1)
    return found, adds and "headers" not in (found or ())


def stop_event(given: Any) -> None:
    """Check an event that ends a run: a threading.Event, an asyncio.Event, or another object with ``is_set``."""
    if given is not None and not callable(getattr(given, "is_set", None)):
        raise wrong("stop", given, "must be an event, or None")


def times(given: Any) -> dict[TopicPartition, int]:
    """Check a mapping from partitions to timestamps in milliseconds since 1970."""
    found = {}
    for tp, timestamp_ms in mapping("timestamps_ms", given, "TopicPartition: ms since 1970").items():
        found[partition(tp)] = whole(f"time of {tp}", timestamp_ms)
    return found
