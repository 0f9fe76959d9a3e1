"""Debezium's change events as rows of a DataFrame: what changed, in which table, by which schema.

Kafka Connect's JsonConverter, with schemas, writes an event like this:

    key     {"schema": ..., "payload": {"id": 7}}
    value   {"schema": ..., "payload": {"before": ..., "after": {"id": 7, "name": "x"}, "source": {"lsn": 42, ...},
             "op": "u"}}

``op`` is r (a row of the snapshot), c (insert), u (update) or d (delete). An update of the primary key is a delete of
the old key and an insert of the new key. A tombstone (a record without a value) follows each delete. The tombstone is
for the compaction of topics, and changes nothing in the lake.

Keys and values may also be in Avro, with the schemas of a registry. ``avro.py`` converts keys and values in Avro to
JSON first.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructType

from headrace.schemas import SchemaRegistry

from ..expectations import REASON
from .avro import KEY, KEY_REASON, VALUE, VALUE_REASON, as_json
from .columns import CORRUPT

#: The columns of a Kafka record, which the query leaves unchanged.
RECORD = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
_AVRO, _FAULT = "__avro", "__fault"
#: Longest excerpt of a text in a reason, in characters.
EXCERPT_CHARACTERS = 80

# Spark writes a JSON object anew to keep it in a STRING field, and the fractions in it become doubles: enough to quote
# a row, or to look for a text in it. Rows are read from the texts of the whole key and value (rows.py).
_SOURCE = StructType().add("lsn", LongType()).add("ts_ms", LongType())
_PAYLOAD = StructType().add("op", StringType()).add("after", StringType()).add("source", _SOURCE)
_VALUE = StructType().add("schema", StringType()).add("payload", _PAYLOAD).add(CORRUPT, StringType())
_KEY = StructType().add("schema", StringType()).add("payload", StringType()).add(CORRUPT, StringType())
_MS_MAX = 253_402_300_799_999
_OPERATIONS = ("r", "c", "u", "d")
_NO_KEY = "key: null; add a primary key to the table, or set Debezium's message.key.columns"
_NO_REGISTRY = "in Avro, with a schema id, and no schema registry is named; set schema.registry.url"
_NO_EVENT = "not an event of Debezium with its schema; set schemas.enable=true for Connect's JsonConverter: "


def events(records: DataFrame, registry: SchemaRegistry | None = None) -> DataFrame:
    """One row for each change event: the columns of RECORD, and

    op                          r, c, u or d
    key_json, value_json        the whole key and value, as JSON texts
    key_row, after              the key, and the row after the change, to quote them: fractions have 17 digits at most.
                                ``after`` is null for a delete
    key_schema, value_schema    Connect's schemas of the event's key and value, as JSON texts
    lsn, changed_at             the position in PostgreSQL's log, and the time of the commit
    reason                      why the event cannot be applied; null for a good event

    Tombstones are left out. ``registry``: the registry with the schemas of events in Avro; without it, these events get
    a reason.
    """
    changes = records.select(*RECORD).where(F.col("value").isNotNull())
    texts, reasons = [F.col("key"), F.col("value")], [_without_registry("key"), _without_registry("value")]
    if registry is not None:
        changes = changes.withColumn(_AVRO, as_json(F.col("key"), F.col("value"), registry))
        found = F.col(_AVRO)
        texts = [
            F.coalesce(found[KEY].cast("binary"), F.col("key")),
            F.coalesce(found[VALUE].cast("binary"), F.col("value")),
        ]
        reasons = [found[KEY_REASON], found[VALUE_REASON]]
    parsed = changes.select(
        *RECORD,
        texts[0].cast("string").alias("key_json"),
        texts[1].cast("string").alias("value_json"),
        parsed_json(texts[0], _KEY).alias("in_key"),
        parsed_json(texts[1], _VALUE).alias("event"),
        F.coalesce(F.concat(F.lit("value: "), reasons[1]), F.concat(F.lit("key: "), reasons[0])).alias(_FAULT),
    )
    key, event, payload = F.col("in_key"), F.col("event"), F.col("event.payload")
    op, after = payload["op"], payload["after"]
    is_delete = op == "d"
    reason = (
        F.when(F.col(_FAULT).isNotNull(), F.col(_FAULT))
        .when(~_is_whole(event) | op.isNull(), F.concat(F.lit(f"value: {_NO_EVENT}"), excerpt(F.col("value"))))
        .when(~op.isin(*_OPERATIONS), F.concat(F.lit("op: "), op, F.lit(" is not a change of a row (r, c, u or d)")))
        .when(F.col("key").isNull(), F.lit(_NO_KEY))
        .when(~_is_whole(key), F.concat(F.lit(f"key: {_NO_EVENT}"), excerpt(F.col("key"))))
        .when(~is_delete & after.isNull(), F.concat(F.lit("after: null, in an event with op "), op))
    )
    return parsed.select(
        *RECORD,
        op.alias("op"),
        "key_json",
        "value_json",
        key["payload"].alias("key_row"),
        F.when(~is_delete, after).alias("after"),
        key["schema"].alias("key_schema"),
        event["schema"].alias("value_schema"),
        payload["source"]["lsn"].alias("lsn"),
        _time(payload["source"]["ts_ms"]).alias("changed_at"),
        reason.alias(REASON),
    )


def _without_registry(column: str) -> Column:
    """The reason for a key or value in Avro, if there is no registry; null for a key or value in JSON. (JSON never
    begins with a byte 0.)"""
    return F.when(F.substring(F.col(column), 1, 1) == F.lit(b"\0"), F.lit(_NO_REGISTRY))


def parsed_json(text: Column, schema: StructType) -> Column:
    """Parse a JSON text as a struct. If the text does not fit ``schema``, the field CORRUPT contains the text.
    ``parsed_json`` returns null for null and for a text that is not UTF-8."""
    whole = text.cast("string")
    parsed = F.from_json(whole, schema, {"columnNameOfCorruptRecord": CORRUPT})
    return F.when(F.is_valid_utf8(whole), parsed)


def excerpt(text: Column) -> Column:
    """The beginning of a text, to quote it in a reason."""
    return F.substring(F.make_valid_utf8(text.cast("string")), 1, EXCERPT_CHARACTERS)


def _time(ms: Column) -> Column:
    """The timestamp for a number of milliseconds since 1970; null if it is not in the years 1970 to 9999."""
    return F.when(ms.between(0, _MS_MAX), F.timestamp_millis(ms))


def _is_whole(parsed: Column) -> Column:
    """Whether a parsed key or value is an object with a schema and a payload."""
    return parsed[CORRUPT].isNull() & parsed["schema"].isNotNull() & parsed["payload"].isNotNull()
