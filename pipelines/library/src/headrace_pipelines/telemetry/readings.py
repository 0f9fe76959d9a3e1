"""Convert records to readings, or to dead letters with a reason. Every record becomes either a reading or a dead
letter. The reason depends only on the record, not on other records or on the machine's clock."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ..dead_letters import NEEDED
from ..expectations import REASON
from .schema import AHEAD_MS_MAX, LATE_MS_MAX, READING, VALUE_BYTES_MAX, WATERMARK_MS

#: Pairs (condition of a bad record, reason); the first condition that is true gives the reason. The column ``reading``
#: is the record's value, parsed with the schema READING. The parser replaces bytes that are not UTF-8. The device
#: chooses ``time_ms``, so a sum or a difference with ``time_ms`` may overflow.
_BAD = (
    (f"octet_length(value) > {VALUE_BYTES_MAX}", f"value: more than {VALUE_BYTES_MAX} bytes"),
    ("NOT is_valid_utf8(CAST(value AS STRING))", "value: not UTF-8"),
    (
        "reading.device IS NULL OR reading.time_ms IS NULL OR reading.centi_celsius IS NULL OR reading.battery IS NULL "
        "OR reading.firmware IS NULL",
        "value: not a JSON object with device, time_ms, centi_celsius, battery and firmware",
    ),
    ("key IS NULL OR reading.device <> CAST(key AS STRING)", "device: not the key of the record"),
    (
        f"reading.time_ms < unix_millis(timestamp) - {LATE_MS_MAX}",
        f"time_ms: more than {LATE_MS_MAX // 1000} s before the record",
    ),
    (
        f"reading.time_ms > unix_millis(timestamp) + {AHEAD_MS_MAX}",
        f"time_ms: more than {AHEAD_MS_MAX // 1000} s after the record",
    ),
    ("reading.centi_celsius NOT BETWEEN -10000 AND 20000", "centi_celsius: not from -10000 to 20000"),
    ("reading.battery NOT BETWEEN 0 AND 100", "battery: not from 0 to 100"),
)


def judged(records: DataFrame) -> DataFrame:
    """One row for each record of the source, which also has the column ``headers``. A row has the source's columns, the
    fields of a reading, ``reason`` and ``at``. ``reason`` is null for a good reading and for a tick; ``at`` is the
    event time with its watermark.

    ``at`` of a tick or a bad record is the record's timestamp. A tick has null fields."""
    parsed = records.select(*NEEDED, F.from_json(F.col("value").cast("string"), READING).alias("reading"))
    rows = parsed.select(*NEEDED, "reading", _reason().alias(REASON))
    is_good = F.col(REASON).isNull() & F.col("value").isNotNull()
    fields = (F.when(is_good, F.col(f"reading.{name}")).alias(name) for name in _FIELDS)
    at = F.when(is_good, F.timestamp_millis("reading.time_ms")).otherwise(F.col("timestamp"))
    return rows.select(*NEEDED, REASON, *fields, at.alias("at")).withWatermark("at", f"{WATERMARK_MS} milliseconds")


_FIELDS = ("device", "time_ms", "centi_celsius", "battery")


def _reason() -> Column:
    """The reason why a record is bad; null for a good record and for a tick."""
    (condition, reason), *others = _BAD
    found = F.when(F.col("value").isNull(), F.lit(None).cast("string")).when(F.expr(condition), reason)
    for condition, reason in others:
        found = found.when(F.expr(condition), reason)
    return found
