"""The settings of one run of ``Consumer.process``, and what happens to a record whose handler failed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace_core.config.client_keys import CONSUMER, PRODUCER
from headrace_core.errors import InvalidArgumentError, ProcessingError, SerializationError
from headrace_core.records import Record

from ... import arguments
from .book import Work, check_order

CONCURRENCY_MAX = 10_000
RETRIES_MAX = 1_000_000
#: ``process`` takes up to this number of records from the consumer for each handler that may run at a time. A larger
#: number gives the handlers more records with different keys.
AHEAD = 10
AHEAD_MIN = 500

#: Prefix of the headers that a dead letter has in addition to its record's headers; headrace_pipelines uses the same
#: prefix.
PREFIX = "headrace.dead-letter."


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The arguments of ``process``, checked; times are seconds."""

    concurrency: int
    order: str
    retries: int
    retry_backoff: float
    retry_backoff_max: float
    dead_letters: str | None
    commit_interval: float

    def __post_init__(self) -> None:
        _check_integer("concurrency", self.concurrency, 1, CONCURRENCY_MAX)
        check_order(self.order)
        _check_integer("retries", self.retries, 0, RETRIES_MAX)
        for name in ("retry_backoff", "retry_backoff_max", "commit_interval"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
                raise InvalidArgumentError(f"{name}={value!r}: must be a number of seconds, 0 or more")
        if self.dead_letters is not None:
            arguments.topic(self.dead_letters, "dead_letters")

    @property
    def records_max(self) -> int:
        """Maximum number of records in progress."""
        return max(AHEAD * self.concurrency, AHEAD_MIN)

    def may_retry(self, work: Work, error: Exception) -> bool:
        """Whether the record's handler is called again. Bytes that cannot be deserialized are not tried again, because
        a retry would fail in the same way."""
        return work.attempts <= self.retries and not isinstance(error, SerializationError)

    def delay_s(self, work: Work) -> float:
        """Seconds until the next try: doubled with each try, and then reduced at random by up to a fifth (jitter)."""
        exponent = min(work.attempts - 1, 60)
        delay: float = min(self.retry_backoff * 2**exponent, self.retry_backoff_max)
        return delay * random.uniform(0.8, 1.0)


def _check_integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(f"{name}={value!r}: must be an integer from {low} to {high}")


def described(error: BaseException) -> str:
    """The type and the message of a handler's error. The message comes from the program's own ``__str__``, which may
    fail, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - a faulty __str__ must not hide the record
        return f"{type(error).__name__} (its text cannot be shown)"


class BuryError(Exception):
    """The dead letter of a record could not be stored. ``topic``: the topic for dead letters; ``reason``: the handler's
    error."""

    def __init__(self, topic: str, reason: Exception) -> None:
        super().__init__(topic)
        self.topic, self.reason = topic, reason


def failure_of(work: Work, error: BaseException) -> ProcessingError:
    """Make the error that ends a call of ``Consumer.process`` when the record of ``work`` could not be handled."""
    record = work.record
    at = f"{record.topic}-{record.partition} at offset {record.offset}"
    if isinstance(error, BuryError) and error.__cause__ is not None:
        text = (
            f"cannot store the dead letter of {at} in the topic {error.topic!r}: {described(error.__cause__)}; repair "
            f"the topic, then process the record again. The handler had failed after {work.attempts} tries: "
            f"{described(error.reason)}"
        )
        error = error.__cause__
    else:
        text = (
            f"the handler failed for {at} after {work.attempts} tries: {described(error)}; correct the handler, raise "
            "retries, or set dead_letters to a topic for such records"
        )
    found = ProcessingError(
        text,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )
    found.__cause__ = error
    return found


def letter_of(work: Work, error: Exception) -> dict[str, Any]:
    """The arguments of a producer's ``send`` for the dead letter of ``work.record``. The dead letter has the record's
    bytes and headers, and additional headers with the reason and the record's position."""
    record: Record = work.record
    own = {
        "reason": described(error)[:8_000],
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "tries": work.attempts,
    }
    kept = [(name, value) for name, value in record.headers or () if not name.startswith(PREFIX)]
    return {
        "key": work.key,
        "value": work.value,
        "headers": [
            *kept,
            *((PREFIX + name, str(value).encode("utf-8", "backslashreplace")) for name, value in own.items()),
        ],
    }


def producer_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the producer of dead letters. The producer gets those keys of the consumer's configuration
    that a producer also has, for example addresses and credentials."""
    return {
        name: value
        for name, value in config.items()
        if value is not None and _has(PRODUCER, name) and not (_has(CONSUMER, name) and value == _default(name))
    }


def _has(definition: Any, name: str) -> bool:
    return name in definition.keys or any(name.startswith(prefix) for prefix in definition.families)


def _default(name: str) -> Any:
    key = CONSUMER.keys.get(name)
    return None if key is None else key.default
