"""The transformations of the pipeline cdc on static frames, and batches that Spark repeats."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace_core.errors import InvalidArgumentError
from headrace_pipelines.cdc import replica
from headrace_pipelines.cdc.columns import columns_of_key, columns_of_row
from headrace_pipelines.cdc.events import events
from headrace_pipelines.cdc.replica import DEAD_LETTERS, by_topic, table_of, write_batch
from headrace_pipelines.cdc.rows import typed_rows
from headrace_pipelines.expectations import REASON
from headrace_pipelines.lake.lakes import Lake, lakes
from headrace_pipelines.tables.table import Batch, LakeTable

RECORDS = (
    "key binary, value binary, headers array<struct<key: string, value: binary>>, topic string, partition int, "
    "offset bigint, timestamp timestamp"
)
KEY_SCHEMA = {"type": "struct", "fields": [{"type": "int64", "optional": False, "field": "id"}]}
ID = {"type": "int64", "optional": False, "field": "id"}
NAME = {"type": "string", "optional": True, "field": "name"}
PRICE = {
    "type": "bytes", "optional": True, "field": "price", "name": "org.apache.kafka.connect.data.Decimal",
    "parameters": {"scale": "2", "connect.decimal.precision": "10"},
}  # fmt: skip
PRINT = {"type": "bytes", "optional": True, "field": "print"}
DAY = {"type": "int32", "optional": True, "field": "day", "name": "io.debezium.time.Date"}
AT = {"type": "int64", "optional": True, "field": "at", "name": "io.debezium.time.MicroTimestamp"}
ZONED = {"type": "string", "optional": True, "field": "zoned", "name": "io.debezium.time.ZonedTimestamp"}
DAYS = {"type": "array", "optional": True, "field": "days", "items": DAY}
#: PostgreSQL's ``infinity`` as Debezium writes it.
FOREVER = {"day": 2**31 - 1, "at": 9_223_371_331_200_000_000, "zoned": "+294247-01-10T04:00:54.775Z"}
TOPIC = "shop.public.things"


def value_schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": list(fields)}]}


class Log:
    """The records of a topic, as Debezium would write them."""

    def __init__(self, topic: str = TOPIC) -> None:
        self.topic = topic
        self.records: list[tuple[Any, ...]] = []

    def raw(self, key: bytes | None, value: bytes | None) -> None:
        self.records.append((key, value, [], self.topic, 0, len(self.records), None))

    def event(self, op: str, key: int, after: dict[str, Any] | None, *fields: dict[str, Any], **more: Any) -> None:
        payload = {"op": op, "after": after, "source": {"lsn": 100 + len(self.records), "ts_ms": 1_500}, **more}
        value = {"schema": value_schema(*(fields or (ID, NAME))), "payload": payload}
        self.raw(key_of(key), json.dumps(value).encode())


def key_of(key: Any) -> bytes:
    return json.dumps({"schema": KEY_SCHEMA, "payload": {"id": key}}).encode()


def frame(spark: Any, *logs: Log) -> DataFrame:
    found: DataFrame = spark.createDataFrame([record for log in logs for record in log.records], RECORDS)
    return found


def test_events_have_their_operation_row_and_schema(spark: Any) -> None:
    log = Log()
    log.event("c", 1, {"id": 1, "name": "a"})
    log.event("d", 1, None)
    log.raw(key_of(1), None)  # a tombstone
    log.event("d", 1, None, source={"lsn": 7, "ts_ms": 2**63 - 1})  # no time of this calendar
    first, second, third = events(frame(spark, log)).orderBy("offset").collect()
    assert (third["lsn"], third["changed_at"], third[REASON]) == (7, None, None)
    assert (first["op"], json.loads(first["after"]), first["lsn"]) == ("c", {"id": 1, "name": "a"}, 100)
    assert (json.loads(first["key_row"]), json.loads(first["key_schema"])) == ({"id": 1}, KEY_SCHEMA)
    assert json.loads(first["value_schema"]) == value_schema(ID, NAME)
    assert first["changed_at"].timestamp() == 1.5
    assert (second["op"], second["after"], second[REASON], first[REASON]) == ("d", None, None, None)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (key_of(1), b"{", "value: not an event of Debezium"),
        (key_of(1), b"7", "value: not an event of Debezium"),
        (key_of(1), b"\xff\xfe", "value: not an event of Debezium"),
        (key_of(1), b'{"op": "c", "after": {"id": 1}}', "schemas.enable=true"),
        (key_of(1), b'{"schema": {}, "payload": {"op": "t"}}', "op: t is not a change of a row"),
        (None, b'{"schema": {}, "payload": {"op": "d"}}', "add a primary key to the table"),
        (b"7", b'{"schema": {}, "payload": {"op": "d"}}', "key: not an event of Debezium"),
        (key_of(1), b'{"schema": {}, "payload": {"op": "c", "after": null}}', "after: null, in an event with op c"),
    ],
)
def test_a_record_that_is_no_event_gets_a_reason(spark: Any, key: bytes | None, value: bytes, reason: str) -> None:
    log = Log()
    log.raw(key, value)
    (found,) = events(frame(spark, log)).collect()
    assert reason in found[REASON]


def typed(spark: Any, log: Log, *fields: dict[str, Any]) -> list[dict[str, Any]]:
    key, row = columns_of_key(json.dumps(KEY_SCHEMA)), columns_of_row(json.dumps(value_schema(*fields)))
    found = typed_rows(events(frame(spark, log)), key, row).toArrow().sort_by("offset")
    return list(found.to_pylist())


def test_rows_have_the_types_of_their_schema(spark: Any) -> None:
    log = Log()
    fields = (ID, NAME, PRICE, {"type": "bytes", "field": "raw"}, {"type": "struct", "field": "doc", "fields": []})
    log.event("u", 2**60, {"id": 2**60, "name": 'ü"', "price": 12.30, "raw": "AQI=", "doc": {"b": [1.50]}}, *fields)
    log.event("d", 7, None, *fields)
    first, second = typed(spark, log, *fields)
    assert first["data"] == {
        "id": 2**60,
        "name": 'ü"',
        "price": Decimal("12.30"),
        "raw": b"\1\2",
        "doc": '{"b":[1.5]}',
    }
    assert (first["key"], second["key"], second["data"]) == ({"id": 2**60}, {"id": 7}, None)
    assert (first[REASON], second[REASON]) == (None, None)


def decimal_of(name: str, precision: int, scale: int) -> dict[str, Any]:
    return PRICE | {"field": name, "parameters": {"scale": scale, "connect.decimal.precision": precision}}


#: Columns, and the JSON numbers of each of them as Connect may write them.
NUMBERS: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    (
        decimal_of("n", 38, 18),
        ("0.123456789012345678", "-100000.000000000000000001", "12345678901234567890.5", "1E-18", "1.25E+3", "-0.0"),
    ),
    (decimal_of("n", 38, 0), ("9" * 38, f"-{2**53 + 1}", "1E+37", "0E-3")),
    (decimal_of("n", 38, 38), (f"0.{'1' * 38}", "9.87654321098765432E-7")),
    ({"type": "int64", "field": "n"}, (str(2**53 + 1), str(2**63 - 1), str(-(2**63)))),
    (
        {"type": "array", "field": "n", "items": decimal_of("element", 20, 2)},
        ("[90071992547409931.25,null]", "[9.007199254740993150E+16]"),
    ),
)


@pytest.mark.parametrize(("column", "texts"), NUMBERS, ids=[columns[0]["type"] for columns in NUMBERS])
def test_numbers_of_rows_and_of_keys_have_all_their_digits(
    spark: Any, column: dict[str, Any], texts: tuple[str, ...]
) -> None:
    log = Log()
    schemas = [{"type": "struct", "fields": [column]}, value_schema(column)]
    for text in texts:
        source = '"source": {"lsn": 1, "ts_ms": 1}'
        payloads = [f'{{"n": {text}}}', f'{{"op": "c", "after": {{"n": {text}}}, {source}}}']
        log.raw(
            *[
                f'{{"schema": {json.dumps(schema)}, "payload": {payload}}}'.encode()
                for schema, payload in zip(schemas, payloads, strict=True)
            ]
        )
    key, row = columns_of_key(json.dumps(schemas[0])), columns_of_row(json.dumps(schemas[1]))
    found = typed_rows(events(frame(spark, log)), key, row).toArrow().sort_by("offset").to_pylist()
    expected = [{"n": json.loads(text, parse_float=Decimal)} for text in texts]
    assert [each[REASON] for each in found] == [None] * len(texts)
    assert [each["data"] for each in found] == expected
    assert [each["key"] for each in found] == expected


def test_decimals_within_a_column_of_json_have_all_their_digits(spark: Any) -> None:
    rate = decimal_of("rate", 38, 18)
    fields = [rate, {"type": "string", "field": "of"}, {"type": "array", "field": "many", "items": rate}]
    doc = {"type": "struct", "field": "doc", "fields": fields}
    text = '{"rate":0.123456789012345678,"of":null,"many":[12345678901234567890.500000000000000000]}'
    log = Log()
    log.event("c", 1, {"id": 1, "doc": "DOC"}, ID, doc)
    key, value, *place = log.records[0]
    log.records[0] = (key, value.replace(b'"DOC"', text.encode()), *place)
    log.event("c", 2, {"id": 2, "doc": None}, ID, doc)
    first, second = typed(spark, log, ID, doc)
    assert (first[REASON], first["data"], second["data"]) == (None, {"id": 1, "doc": text}, {"id": 2, "doc": None})


@pytest.mark.parametrize(
    ("key", "after", "reason"),
    [
        (1, {"id": "one"}, "does not fit the schema of the event"),
        (1, {"name": "a"}, "column id: null or missing"),
        ("x", {"id": 1}, "does not fit the schema of the event"),
        (None, {"id": 1}, "column id: null or missing"),
        (1, {"id": None}, "column id: null or missing"),
        (1, {"id": 1, "name": "a", "price": "ASw="}, "does not fit the schema of the event"),
        (1, {"id": 1, "name": "__debezium_unavailable_value"}, "REPLICA IDENTITY FULL"),
    ],
)
def test_a_row_that_does_not_fit_gets_a_reason(spark: Any, key: Any, after: dict[str, Any], reason: str) -> None:
    log = Log()
    log.event("u", key, after)
    (found,) = typed(spark, log, ID, NAME, PRICE)
    assert reason in found[REASON]


@pytest.mark.parametrize(
    "wrong",
    [
        {"day": FOREVER["day"]},
        {"at": FOREVER["at"]},
        {"day": -719_163},  # the last day before the year 1
        {"at": -62_135_596_800_000_001},
        {"at": 253_402_300_800_000_000},  # the year 10000
        {"days": [0, 2**31 - 1]},
    ],
    ids=str,
)
def test_a_time_that_no_lake_can_hold_gets_a_reason(spark: Any, wrong: dict[str, Any]) -> None:
    log = Log()
    log.event("c", 1, {"id": 1, **wrong})
    log.event("c", 2, {"id": 2, "day": 2_932_896, "at": -62_135_596_800_000_000, "days": [None, 1]})
    found = typed(spark, log, ID, DAY, AT, ZONED, DAYS)
    (name,) = wrong
    assert [each[REASON] for each in found] == [f"column {name}: the time is not in the years 1 to 9999", None]


def test_text_that_is_no_base64_gets_a_reason(spark: Any) -> None:
    log = Log()
    log.event("c", 1, {"id": 1, "print": "!!!"})
    log.event("c", 2, {"id": 2, "print": None})
    assert [each[REASON] for each in typed(spark, log, ID, PRINT)] == ["column print: not base64", None]
    key = {"type": "struct", "fields": [{**PRINT, "field": "id", "optional": False}]}
    bad = json.dumps({"schema": key, "payload": {"id": "!!!"}}).encode()
    keyed = events(frame(spark, log).where("offset = 1").withColumn("key", F.lit(bad)))
    row = columns_of_row(json.dumps(value_schema(ID, PRINT)))
    (found,) = typed_rows(keyed, columns_of_key(json.dumps(key)), row).collect()
    assert found[REASON] == "column id: not base64"


def content(lake: Lake, topic: str = TOPIC) -> dict[int, dict[str, Any]]:
    rows = lake.table(table_of(topic)).read().to_pylist()
    found = {row["id"]: {name: value for name, value in row.items() if not name.startswith("__")} for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of static frames have the id that ``foreachBatch`` would find."""
    monkeypatch.setattr(replica, "batch_of", lambda frame, number: Batch("replica", number))


@pytest.mark.usefixtures("numbered")
def test_batches_become_rows_of_both_lakes_and_dead_letters_keep_their_records(spark: Any, tmp_path: Path) -> None:
    first, other, every = Log(), Log("shop.public.others"), lakes(tmp_path)
    first.event("r", 1, {"id": 1, "name": "a"})
    first.event("r", 2, {"id": 2, "name": "b"})
    first.event("u", 1, {"id": 1, "name": "A", "price": 1.5}, ID, NAME, PRICE)  # a new column
    first.event("u", 3, {"id": 3, "name": 7}, ID, {**NAME, "type": "int32"})  # a new type
    first.raw(b"k", b"broken")
    other.event("c", 9, {"id": 9, "name": "z"})
    write_batch(every)(frame(spark, first, other), 0)
    second = Log()
    second.event("d", 2, None)
    second.raw(key_of(2), None)
    second.event("c", 4, {"id": 4, "name": "d"})
    write_batch(every)(frame(spark, second), 1)
    third = Log()
    third.raw(key_of(2), None)
    write_batch(every)(frame(spark, third), 2)  # nothing but a tombstone
    write_batch(every)(frame(spark, first, other), 0)  # Spark repeats an old batch
    for lake in every:
        assert content(lake) == {
            1: {"id": 1, "name": "A", "price": Decimal("1.50")},
            4: {"id": 4, "name": "d", "price": None},
        }
        assert content(lake, other.topic) == {9: {"id": 9, "name": "z"}}
        letters = lake.table(DEAD_LETTERS).read().sort_by("offset").to_pylist()
        assert [(each["topic"], each["offset"], each["value"]) for each in letters] == [
            (TOPIC, 3, first.records[3][1]),
            (TOPIC, 4, b"broken"),
        ]
        assert "'name': it is string in the table and int32" in letters[0][REASON]


@pytest.mark.usefixtures("numbered")
def test_a_row_that_is_valid_for_ever_stops_no_table(spark: Any, tmp_path: Path) -> None:
    log, every, fields = Log(), lakes(tmp_path), (ID, DAY, AT, ZONED)
    log.event("c", 1, {"id": 1, "day": FOREVER["day"]}, *fields)
    log.event("c", 2, {"id": 2, "day": 1, "at": 0}, *fields)
    log.event("c", 3, {"id": 3, "at": FOREVER["at"]}, *fields)
    log.event("c", 4, {"id": 4, "zoned": FOREVER["zoned"]}, *fields)
    write_batch(every)(frame(spark, log), 0)
    for lake in every:
        assert content(lake).keys() == {2}
        letters = lake.table(DEAD_LETTERS).read().sort_by("offset").to_pylist()
        assert [each["offset"] for each in letters] == [0, 2, 3]


@pytest.mark.usefixtures("numbered")
@pytest.mark.parametrize("writes", range(1, 6))
def test_a_batch_that_failed_between_two_tables_is_completed(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    log, other = Log(), Log("shop.public.others")
    log.event("c", 1, {"id": 1, "name": "a"})
    log.event("c", 2, {"id": 2, "name": "b", "price": 2.5}, ID, NAME, PRICE)
    other.event("c", 9, {"id": 9, "name": "z"})
    other.raw(b"k", b"broken")
    every, left = lakes(tmp_path), [writes]
    original = LakeTable._write

    def failing(self: LakeTable, rows: pa.Table, *arguments: Any) -> bool:
        if not left[0]:
            raise OSError("the disk is full")
        left[0] -= 1
        return original(self, rows, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(LakeTable, "_write", failing)
        with pytest.raises(OSError, match="the disk is full"):
            write_batch(every)(frame(spark, log, other), 0)
    write_batch(every)(frame(spark, log, other), 0)
    for lake in every:
        assert content(lake) == {
            1: {"id": 1, "name": "a", "price": None},
            2: {"id": 2, "name": "b", "price": Decimal("2.50")},
        }
        assert content(lake, other.topic).keys() == {9}
        assert lake.table(DEAD_LETTERS).read().num_rows == 1


def test_events_with_too_many_schemas_are_refused(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "SCHEMAS_MAX", 2)
    log = Log()
    for number in range(4):
        log.event("c", number, {"id": number}, ID, {**NAME, "field": f"name{number}"})
    ((versions, refused),) = by_topic(events(frame(spark, log))).values()
    assert [version.row[1].name for version in versions] == ["name0", "name1"]
    rows = pa.concat_tables(refused).to_pylist()
    assert [row["offset"] for row in rows] == [2, 3]
    assert "more than 2 schemas" in rows[0][REASON]


@pytest.mark.parametrize("topic", ["orders", "a..b", "shop.public."])
def test_a_topic_that_is_none_of_a_table_is_refused(topic: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not the topic of a table"):
        table_of(topic)


def test_two_topics_with_one_table_are_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"two topics have the table public\.t"):
        replica.replicate(spark, None, ["a.public.t", "b.public.t"], lakes(tmp_path))  # type: ignore[arg-type]
