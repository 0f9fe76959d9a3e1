"""The options of the Spark sink, with the names, meanings and refusals of the Kafka sink.

This module is pure: it turns options into a frozen ``SinkOptions``, or raises an error. The module compares option
names in lower case, because Spark passes option names in lower case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.settings import PRODUCER, resolve
from headrace_core.errors import InvalidConfigError
from headrace_core.sinks import SINK_BYTES_MAX, sink_id
from headrace_core.types import check_topic_name

from .delegation import take_mechanism
from .options import KNOWN as SOURCE_OPTIONS
from .options import client_settings, lower_case, unknown_notes

#: The sink itself uses the option ``topic``; Spark uses options such as ``checkpointLocation``. The sink also accepts
#: the options of the source, so that a query can use the same options for source and sink.
KNOWN = ("topic", "checkpointLocation", "queryName", "path", "groupIdPrefix", *SOURCE_OPTIONS)

#: Spark's option for asynchronous progress tracking: Spark writes a query's progress later than the batch. Spark
#: refuses the option for Python sinks, unless an internal option overrides the check. With asynchronous progress
#: tracking, a restarted query would give the numbers of committed batches to other rows.
ASYNC_PROGRESS = "asyncProgressTrackingEnabled"

#: Client keys that the user cannot set because the sink sets them, each with the reason.
REFUSED_CLIENT_KEYS = {
    "key.serializer": "the column key is written as its bytes; use DataFrame functions to encode it",
    "value.serializer": "the column value is written as its bytes; use DataFrame functions to encode it",
    "partitioner.class": "the sink writes Arrow batches and calls no partitioner; give the frame a partition column",
    "interceptor.classes": "the sink writes Arrow batches and calls no interceptor",
    "transactional.id": "each task has an id of its own; set headrace.delivery to exactly-once",
}
#: Options that select the delivery guarantee. The names of delivery options begin like client keys, but the producer
#: has no such keys.
DELIVERY, APP_ID, APP_VERSION = "headrace.delivery", "headrace.txn.app.id", "headrace.txn.version"
AT_LEAST_ONCE, EXACTLY_ONCE = "at-least-once", "exactly-once"
#: The transaction timeout of a task, unless the user sets one: the coordinators' default of transaction.max.timeout.ms.
#: If a task is lost, its transaction usually ends before this timeout, with the commit or abort of the batch.
TASK_TIMEOUT_MS = 900_000
EACH_TOPIC = "*"  #: The target in the id of an exactly-once sink whose rows name their topics.
VERSION_DIGITS_MAX = 18  #: Maximum number of digits of the version of a write.


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options of a writer. ``topic`` None: the column ``topic`` names the topic of each row. ``application``:
    the application's id and the version of this write; a repeated version writes nothing."""

    topic: str | None
    client: Mapping[str, str]
    delivery_timeout_s: float
    is_exactly_once: bool = False
    application: tuple[str, int] | None = None
    #: The mechanism with which tasks use a delegation token; None: tasks log in as the driver does.
    token_mechanism: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        """The name of the rows' target in the id of an exactly-once sink."""
        return self.topic or EACH_TOPIC


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options ``given``, including the keys of the producer.

    Raises InvalidConfigError, and InvalidTopicError for an invalid topic name.
    """
    options = lower_case(given)
    is_exactly_once, application = _guarantee(options)
    client = client_settings(options, REFUSED_CLIENT_KEYS, where="Spark sink")
    token_mechanism = take_mechanism(client, where="Spark sink")
    if is_exactly_once and options.get(ASYNC_PROGRESS.lower(), "false").lower() == "true":
        raise InvalidConfigError(
            f"{ASYNC_PROGRESS}=true: a restarted query gives a batch number to other rows, and an exactly-once sink "
            f"would skip these rows; remove the option, or set {DELIVERY}={AT_LEAST_ONCE}"
        )
    if is_exactly_once:
        client.setdefault("transaction.timeout.ms", str(TASK_TIMEOUT_MS))
    settings = resolve(PRODUCER, {**client, "transactional.id": "task"} if is_exactly_once else client, {})
    notes = unknown_notes(options, KNOWN, where="headrace sink")
    if settings["acks"] == "0":
        notes.append(
            "acks=0: brokers acknowledge nothing, so rows may be lost without an error; at-least-once delivery "
            "needs acks=all"
        )
    topic = options.get("topic")
    if topic is not None:
        if not topic.strip():
            raise InvalidConfigError(
                "the option topic is empty: name a topic, or leave the option out and give a column named topic"
            )
        check_topic_name(topic)
    if application is not None:
        _check_sink_id(application[0], topic or EACH_TOPIC)
    return SinkOptions(
        topic=topic,
        client=client,
        delivery_timeout_s=settings["delivery.timeout.ms"] / 1000,
        is_exactly_once=is_exactly_once,
        application=application,
        token_mechanism=token_mechanism,
        notes=tuple(notes),
    )


def _check_sink_id(app_id: str, target: str) -> None:
    """Check the length of the sink's id, so that a job with a name that is too long fails before it does any work."""
    excess = len(sink_id(app_id, target)) - SINK_BYTES_MAX
    if excess > 0:
        raise InvalidConfigError(
            f"{APP_ID}={app_id[:50]!r}...: the id of the sink, with the topic, is {excess} characters longer than "
            f"{SINK_BYTES_MAX}; characters other than letters, digits and _.-~ count three for each byte. Choose a "
            "shorter id"
        )


def _guarantee(options: dict[str, str]) -> tuple[bool, tuple[str, int] | None]:
    """Return whether the sink writes exactly once, and the application with its version. The application's id and the
    version are removed from ``options``."""
    delivery, app_id, version = (options.pop(name, None) for name in (DELIVERY, APP_ID, APP_VERSION))
    if delivery is not None and delivery not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise InvalidConfigError(f"{DELIVERY}={delivery!r}: must be {AT_LEAST_ONCE} or {EXACTLY_ONCE}")
    if (app_id is None) != (version is None):
        raise InvalidConfigError(f"{APP_ID} and {APP_VERSION} belong together: set both or neither")
    if app_id is None or version is None:
        return delivery == EXACTLY_ONCE, None
    if delivery == AT_LEAST_ONCE:
        raise InvalidConfigError(f"{APP_ID}: a repeated write is skipped only with {DELIVERY}={EXACTLY_ONCE}")
    if not app_id.strip():
        raise InvalidConfigError(f"{APP_ID} is empty: name the application, for instance the query")
    if not (version.isascii() and version.isdecimal() and len(version) <= VERSION_DIGITS_MAX):
        raise InvalidConfigError(
            f"{APP_VERSION}={version!r}: must be a whole number from 0 that grows with each write, for instance the "
            "batch id of foreachBatch"
        )
    return True, (app_id, int(version))
