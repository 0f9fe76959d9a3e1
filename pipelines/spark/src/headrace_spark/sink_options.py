"""The options of the Spark sink, with the names, meanings and refusals of the Kafka sink.

This module is pure: it turns options into a frozen ``SinkOptions``, or raises an error. The module compares option
names in lower case, because Spark passes option names in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.settings import PRODUCER, resolve
from headrace_core.errors import InvalidConfigError, UnsupportedVersionError
from headrace_core.types import check_topic_name

from .options import KNOWN as SOURCE_OPTIONS
from .options import client_settings, unknown_notes

#: The sink itself uses the option ``topic``; Spark uses options such as ``checkpointLocation``. The sink also accepts
#: the options of the source, so that a query can use the same options for source and sink.
KNOWN = ("topic", "checkpointLocation", "queryName", "path", "groupIdPrefix", *SOURCE_OPTIONS)

#: Client keys that the user cannot set because the sink sets them, each with the reason.
REFUSED_CLIENT_KEYS = {
    "key.serializer": "the column key is written as its bytes; use DataFrame functions to encode it",
    "value.serializer": "the column value is written as its bytes; use DataFrame functions to encode it",
    "partitioner.class": "the sink writes Arrow batches and calls no partitioner; give the frame a partition column",
    "interceptor.classes": "the sink writes Arrow batches and calls no interceptor",
}
AT_LEAST_ONCE = "the sink is at least once until transactions are built; leave the option out"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options of a writer. ``topic`` None: the column ``topic`` names the topic of each row."""

    topic: str | None
    client: Mapping[str, str]
    notes: tuple[str, ...] = ()


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options ``given``, including the keys of the producer.

    Raises InvalidConfigError, InvalidTopicError for an invalid name, UnsupportedVersionError for a planned feature.
    """
    options = {str(name).lower(): str(value) for name, value in given.items()}
    client = client_settings(options, REFUSED_CLIENT_KEYS, where="Spark sink")
    if "transactional.id" in client:
        raise UnsupportedVersionError(f"kafka.transactional.id: {AT_LEAST_ONCE}")
    settings = resolve(PRODUCER, client, {})
    notes = unknown_notes(options, KNOWN, where="headrace sink")
    if settings["acks"] == "0":
        notes.append(
            "acks=0: brokers acknowledge nothing, so rows may be lost without an error; at-least-once delivery "
            "needs acks=all"
        )
    topic = options.get("topic")
    if topic is not None:
        if not topic.strip():
            raise InvalidConfigError("topic is empty: name one, or leave the option out and give a column named topic")
        check_topic_name(topic)
    return SinkOptions(topic=topic, client=client, notes=tuple(notes))
