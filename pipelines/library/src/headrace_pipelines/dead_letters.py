"""Dead letters: records that a pipeline cannot process go to a topic, with the reason and their source position.

    parsed = parse_json(source, "user STRING NOT NULL, amount DOUBLE")       # adds the columns data and reason
    judged = RULES.apply(parsed)                                             # quarantine sets reason (expectations.py)
    routed(judged, topic="payments-clean", key=F.col("key"), value=F.to_json("data"))
        .writeStream.format("headrace").option("headrace.delivery", "exactly-once") ...

``reason`` is null in a good row. ``routed`` returns one frame: good rows with the given topic, key and value, and bad
rows as dead letters for the topic ``<source topic>.dead-letters``. The sink writes good rows and dead letters in one
pass, and commits them together. With exactly-once delivery each record is therefore in exactly one of the topics, once.

A dead letter has the key, value and headers of its record, byte for byte. A dead letter also has these headers:

    headrace.dead-letter.reason       text: which field, and what is wrong
    headrace.dead-letter.topic        the source position: topic, partition, offset (decimal numbers)
    headrace.dead-letter.partition
    headrace.dead-letter.offset
    headrace.dead-letter.timestamp    the record's timestamp in ms
    headrace.dead-letter.tries        how often the record was replayed before

``replay`` (replays.py) sends the records of a dead-letter topic to their source topics again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace import Admin, ConfigResource, NewTopic
from headrace_spark.schema import RECORD_WITH_HEADERS

from .errors import InvalidColumnsError
from .expectations import REASON

#: Prefix of the headers that a dead letter has in addition to the headers of its record.
PREFIX = "headrace.dead-letter."
SUFFIX = ".dead-letters"
#: Columns of the source that a dead letter needs.
NEEDED = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
#: Type of the column ``headers``.
HEADERS_TYPE = RECORD_WITH_HEADERS["headers"].dataType.simpleString()
#: Options of a sink for records above 1 MiB; brokers accept requests of up to 16 MiB.
LARGE_RECORDS = {"headrace.batch.size": "16000000", "headrace.max.request.size": "16000000"}
#: Number of bytes that are added to the source topic's ``max.message.bytes`` for its dead-letter topic, because a dead
#: letter has additional headers.
HEADER_BYTES = 16_384


def good(frame: DataFrame) -> DataFrame:
    """The good rows of ``frame``, whose ``reason`` is null, with the column ``reason`` removed."""
    _check(frame, REASON)
    return frame.where(F.col(REASON).isNull()).drop(REASON)


def dead_letters(frame: DataFrame) -> DataFrame:
    """The rows of ``frame`` with a reason, as rows of the sink: ``topic``, ``key``, ``value``, ``headers``.

    ``frame`` has the columns of the source with ``includeHeaders=true``, unchanged, and ``reason``. Raises
    InvalidColumnsError.
    """
    _check(frame, *NEEDED, REASON)
    return frame.where(F.col(REASON).isNotNull()).select(*_letter())


def routed(
    frame: DataFrame,
    *,
    topic: str | Column,
    value: Column,
    key: Column | None = None,
    headers: Column | None = None,
) -> DataFrame:
    """All rows of ``frame`` as rows of the sink: good rows with the given columns, bad rows as dead letters.

    ``topic`` is a name or a Column. The sink must not have the option ``topic``, which would apply to all rows. Raises
    InvalidColumnsError, as ``dead_letters`` does.
    """
    _check(frame, *NEEDED, REASON)
    name = F.lit(topic) if isinstance(topic, str) else topic
    given = {
        "topic": name,
        "key": F.lit(None) if key is None else key,
        "value": value,
        "headers": F.lit(None) if headers is None else headers,
    }
    types = {"topic": "string", "key": "binary", "value": "binary", "headers": HEADERS_TYPE}
    is_good = F.col(REASON).isNull()
    return frame.select(
        *[
            F.when(is_good, given[column].cast(types[column])).otherwise(letter).alias(column)
            for column, letter in zip(types, _letter(), strict=True)
        ]
    )


def header(name: str) -> Column:
    """The text of a header of dead letters, such as ``reason``; null if the record has no such header.

    ``header`` applies to frames with the column ``headers``, such as the rows of a dead-letter topic. Of the headers of
    dead letters, a replayed record has only ``tries``.
    """
    found = F.filter("headers", lambda each: each["key"] == PREFIX + name)
    return F.try_element_at(found, F.lit(-1))["value"].cast("string")


def dead_letter_topic(topic: str) -> str:
    """The name of the dead-letter topic of ``topic``."""
    return topic + SUFFIX


def create_dead_letter_topics(
    admin: Admin, topics: Iterable[str], *, partitions: int = 1, config: Mapping[str, str] | None = None
) -> list[str]:
    """Create the missing dead-letter topics of ``topics``, and return the names of the new ones.

    A dead-letter topic accepts records as large as the records of its source topic. ``config`` says how long the topic
    keeps the records (default: ``retention.ms`` of the source topic). For records above 1 MiB also give the sink the
    options LARGE_RECORDS.
    """
    there = set(admin.list_topics())
    missing = [topic for topic in dict.fromkeys(topics) if dead_letter_topic(topic) not in there]
    sources = admin.describe_configs([ConfigResource("topic", topic) for topic in missing]) if missing else {}
    new = []
    for resource, entries in sources.items():
        size = int(entries["max.message.bytes"].value) + HEADER_BYTES
        defaults = {"max.message.bytes": str(size), "retention.ms": entries["retention.ms"].value}
        new.append(
            NewTopic(dead_letter_topic(resource.name), partitions=partitions, config={**defaults, **(config or {})})
        )
    if new:
        admin.create_topics(new)
    return [topic.name for topic in new]


def _letter() -> tuple[Column, Column, Column, Column]:
    """Topic, key, value and headers of a dead letter."""
    own = {
        "reason": F.col(REASON),
        "topic": F.col("topic"),
        "partition": F.col("partition").cast("string"),
        "offset": F.col("offset").cast("string"),
        "timestamp": F.unix_millis("timestamp").cast("string"),
        "tries": F.coalesce(header("tries"), F.lit("0")),
    }
    added = F.array(
        *[F.struct(F.lit(PREFIX + name).alias("key"), text.cast("binary").alias("value")) for name, text in own.items()]
    ).cast(HEADERS_TYPE)
    kept = F.filter("headers", lambda each: ~F.coalesce(each["key"].startswith(PREFIX), F.lit(False)))
    headers = F.concat(F.coalesce(kept, F.array().cast(HEADERS_TYPE)), added)
    return (
        F.concat(F.col("topic"), F.lit(SUFFIX)).alias("topic"),
        F.col("key"),
        F.col("value"),
        headers.alias("headers"),
    )


def _check(frame: DataFrame, *names: str) -> None:
    missing = [name for name in names if name not in frame.columns]
    if not missing:
        return
    hints = {
        "headers": 'read the source with .option("includeHeaders", "true")',
        REASON: "parse_json and Expectations.apply add it",
    }
    hint = "; ".join(hints[name] for name in missing if name in hints) or (
        "keep the source's columns until dead letters are separated"
    )
    raise InvalidColumnsError(f"the frame has no column {', '.join(missing)}: {hint}")
