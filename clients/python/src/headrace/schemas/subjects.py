"""Subject name strategies, which determine the subject under which a topic's schema is registered.

topic         orders-value, orders-key        one schema for a topic (the default)
record        com.acme.Order                  several record types in a topic, the same in every topic
topic-record  orders-com.acme.Order           several record types in a topic, each topic on its own
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_core.errors import InvalidConfigError

#: (topic, "key" or "value", full name of the record or None) -> subject.
SubjectNameStrategy = Callable[[str, str, str | None], str]


def topic_name(topic: str, field: str, record: str | None) -> str:
    """The subject: the topic's name, followed by ``-key`` or ``-value``."""
    return f"{topic}-{field}"


def record_name(topic: str, field: str, record: str | None) -> str:
    """The subject: the record's full name."""
    return _named(record)


def topic_record_name(topic: str, field: str, record: str | None) -> str:
    """The subject: the topic's name, a hyphen, and the record's full name."""
    return f"{topic}-{_named(record)}"


def _named(record: str | None) -> str:
    if not record:
        raise InvalidConfigError(
            "subject.name.strategy: the strategies record and topic-record need a schema with a name (an Avro "
            "record, a Protobuf message, a JSON Schema with a title); use the strategy topic"
        )
    return record


_STRATEGIES: dict[str, SubjectNameStrategy] = {
    "topic": topic_name,
    "record": record_name,
    "topic-record": topic_record_name,
    "TopicNameStrategy": topic_name,
    "RecordNameStrategy": record_name,
    "TopicRecordNameStrategy": topic_record_name,
}


def strategy(given: Any) -> SubjectNameStrategy:
    """The strategy for a name, for the name of Confluent's Java class, or for a callable. Raises InvalidConfigError."""
    if isinstance(given, str):
        found = _STRATEGIES.get(given) or _STRATEGIES.get(given.rpartition(".")[2])
        if found is not None:
            return found
    elif callable(given):
        named: SubjectNameStrategy = given
        return named
    raise InvalidConfigError(
        f"subject.name.strategy={given!r:.80}: must be topic, record, topic-record, or callable as (topic, field, "
        "record name)"
    )
