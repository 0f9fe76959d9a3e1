"""from_registry and to_registry in real Spark, with a real registry and real topics."""

from __future__ import annotations

import datetime
import decimal
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructType

from headrace import Admin, LocalCluster, NewTopic, Producer
from headrace.errors import InvalidArgumentError
from headrace.schemas import (
    AvroDeserializer,
    InvalidSchemaError,
    JsonSerializer,
    Schema,
    SchemaNotFoundError,
    SchemaRegistry,
    SchemaType,
    wire,
)
from headrace_pipelines.dead_letters import create_dead_letter_topics, routed
from headrace_pipelines.registry_parsing import parse_registry
from headrace_pipelines.replays import DeadLetter
from headrace_spark import from_registry, to_registry
from tests.integration.spark.test_pipelines_dead_letters import records_of

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=1, controllers=1, coordinators=1, registries=1, mode="inprocess") as running:
        yield running


@pytest.fixture(scope="module")
def registry(cluster: LocalCluster) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(cluster.registry_urls) as client:
        yield client


def record(*fields: tuple[Any, ...], **more: Any) -> dict[str, Any]:
    named = [{"name": name, "type": kind} | ({"default": rest[0]} if rest else {}) for name, kind, *rest in fields]
    return {"type": "record", "name": "Order", "fields": named} | more


def register(registry: SchemaRegistry, subject: str, schema: Any) -> int:
    return registry.register(subject, Schema(json.dumps(schema))).id


def framed(schema_id: int, schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return wire.header(schema_id) + out.getvalue()


def frame_of(spark: Any, values: list[bytes | None]) -> Any:
    rows = [(number, None if value is None else bytearray(value)) for number, value in enumerate(values)]
    return spark.createDataFrame(rows, "number INT, value BINARY").coalesce(1)


def test_several_versions_in_one_batch_become_one_type(spark: Any, registry: SchemaRegistry) -> None:
    first = record(("id", "int"), ("customer", "string"), ("gone", ["null", "string"], None))
    second = record(("id", "long"), ("customer", "string"), ("amount", "double", 1.5))
    third = record(("id", "long"), ("customer", ["null", "string"], None), ("amount", "double", 1.5))
    registry.set_compatibility("NONE", "versions-value")
    ids = [register(registry, "versions-value", each) for each in (first, second, third)]
    values = [
        framed(ids[0], first, {"id": 1, "customer": "a", "gone": "x"}),
        framed(ids[1], second, {"id": 2**40, "customer": "b", "amount": 2.5}),
        framed(ids[2], third, {"id": 3, "customer": None, "amount": 3.5}),
        None,
    ] * 50
    column = from_registry("value", registry, subject="versions-value")
    register(registry, "versions-value", record(("only", "string", "late")))  # after the plan was made
    found = frame_of(spark, values).select(column.alias("order"))
    kind = found.schema["order"].dataType
    assert isinstance(kind, StructType)
    assert kind.fieldNames() == ["id", "customer", "amount"]
    assert isinstance(kind["id"].dataType, LongType)
    rows = [None if row.order is None else tuple(row.order) for row in found.collect()]
    assert rows == [(1, "a", 1.5), (2**40, "b", 2.5), (3, None, 3.5), None] * 50

    older = frame_of(spark, values[:1]).select(
        from_registry("value", registry, subject="versions-value", version=1).alias("order")
    )
    assert isinstance(older.schema["order"].dataType["id"].dataType, IntegerType)
    assert older.collect()[0].order.gone == "x"


def test_a_schema_of_ones_own_is_the_readers(spark: Any, registry: SchemaRegistry) -> None:
    written = record(("id", "int"), ("customer", "string"))
    schema_id = register(registry, "own-value", written)
    own = record(("number", "long"), name="Mine", aliases=["Order"])
    own["fields"][0]["aliases"] = ["id"]
    values = [framed(schema_id, written, {"id": 7, "customer": "a"})]
    found = frame_of(spark, values).select(
        from_registry("value", registry, subject="own-value", schema=json.dumps(own)).alias("order")
    )
    assert found.collect()[0].order.asDict() == {"number": 7}


def damaged(registry: SchemaRegistry, subject: str) -> tuple[list[bytes | None], list[str | None]]:
    """Values, and a part of each reason."""
    schema = record(("id", "long"), ("customer", "string"))
    other = record(("id", "string"), ("customer", "string"))
    registry.set_compatibility("NONE", subject)
    unreadable = register(registry, subject, other)
    schema_id = register(registry, subject, schema)
    good = framed(schema_id, schema, {"id": 1, "customer": "abc"})
    return [
        good,
        b"\x01" + good[1:],
        good[:-1],
        good + b"x",
        b"",
        wire.header(2**31 - 1) + good[5:],
        framed(unreadable, other, {"id": "x", "customer": "a"}),
        None,
        good,
    ], [
        None,
        "magic byte",
        "customer: the length is 3 bytes",
        "1 bytes are left",
        "too short",
        "no schema with id 2147483647",
        "id: the writer's string cannot be read as long",
        None,
        None,
    ]


def test_bad_values_are_null_with_a_reason_in_the_mode_permissive(spark: Any, registry: SchemaRegistry) -> None:
    values, reasons = damaged(registry, "damaged-value")
    column = from_registry("value", registry, subject="damaged-value", mode="permissive")
    found = frame_of(spark, values).select("number", column.alias("found")).select("number", "found.*").collect()
    assert len(found) == len(values)
    for row, reason in zip(found, reasons, strict=True):
        assert (reason or "") in (row.reason or ""), row
        assert (row.reason is None) is (reason is None), row
        assert (row.value is not None) is (row.number in (0, 8)), row


def test_a_bad_value_fails_the_query_by_default(spark: Any, registry: SchemaRegistry) -> None:
    values, _ = damaged(registry, "failing-value")
    column = from_registry("value", registry, subject="failing-value")
    assert frame_of(spark, [values[0], None]).select(column.alias("v")).collect()[0].v.customer == "abc"
    with pytest.raises(PythonException, match=r"subject 'failing-value'.*customer: the length is 3 bytes.*row 1 of"):
        frame_of(spark, [values[0], values[2]]).select(column.alias("v")).collect()


def test_a_filter_on_the_reason_decodes_once(spark: Any, registry: SchemaRegistry) -> None:
    values, _ = damaged(registry, "once-value")
    column = from_registry("value", registry, subject="once-value", mode="permissive")
    found = frame_of(spark, values).select(column.alias("found"))
    found = found.where("found.reason IS NULL AND found.value.id > 0").select("found.value.customer")
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert plan.count("from_registry(") == 1, plan
    assert [row.customer for row in found.collect()] == ["abc", "abc"]


EVERYTHING = record(
    ("n", ["null", "int"]),
    ("b", "boolean"),
    ("i", "int"),
    ("l", "long"),
    ("f", "float"),
    ("d", "double"),
    ("by", "bytes"),
    ("s", "string"),
    ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
    ("fx", {"type": "fixed", "name": "F", "size": 3}),
    ("a", {"type": "array", "items": ["null", "string"]}),
    ("m", {"type": "map", "values": {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}}),
    ("u", ["null", "string", "long"]),
    ("dec", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}),
    ("fdec", {"type": "fixed", "name": "FD", "size": 9, "logicalType": "decimal", "precision": 20, "scale": 2}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("tms", {"type": "long", "logicalType": "timestamp-millis"}),
    ("tus", {"type": "long", "logicalType": "timestamp-micros"}),
    ("lms", {"type": "long", "logicalType": "local-timestamp-millis"}),
    ("lus", {"type": "long", "logicalType": "local-timestamp-micros"}),
    ("uid", {"type": "string", "logicalType": "uuid"}),
)
UTC = datetime.UTC
VALUE = {
    "n": None, "b": True, "i": -5, "l": 2**60, "f": 0.5, "d": 1e300, "by": b"\x00\xff", "s": "né☃", "e": "B",
    "fx": b"abc", "a": ["x", None], "m": {"k": {"x": 1}}, "u": 77,
    "dec": decimal.Decimal("-1234.5678"), "fdec": decimal.Decimal("99.01"), "day": datetime.date(1969, 7, 20),
    "tms": datetime.datetime(2024, 2, 29, 12, 0, 0, 123000, UTC),
    "tus": datetime.datetime(1950, 1, 1, 0, 0, 0, 1, UTC),
    "lms": datetime.datetime(2024, 2, 29, 12, 0, 0, 123000), "lus": datetime.datetime(2001, 9, 9, 1, 46, 40, 7),
    "uid": "123e4567-e89b-12d3-a456-426614174000",
}  # fmt: skip


def test_every_type_goes_through_spark_and_back(spark: Any, registry: SchemaRegistry) -> None:
    schema_id = register(registry, "everything-value", EVERYTHING)
    data = framed(schema_id, EVERYTHING, VALUE)
    decoded = frame_of(spark, [data]).select(from_registry("value", registry, subject="everything-value").alias("v"))
    found = decoded.collect()[0].v.asDict(recursive=True)
    wanted = VALUE | {
        "u": {"member0": None, "member1": 77},
        "by": bytearray(b"\x00\xff"),
        "fx": bytearray(b"abc"),
        "tms": VALUE["tms"].replace(tzinfo=None),  # type: ignore[attr-defined]
        "tus": VALUE["tus"].replace(tzinfo=None),  # type: ignore[attr-defined]
    }
    # collect() gives timestamps in the process's time zone; the session's is UTC, as CI's processes are.
    for name in ("tms", "tus"):
        local = found[name].astimezone(UTC).replace(tzinfo=None)
        assert local == wanted.pop(name)
        del found[name]
    assert found == wanted
    again = decoded.select(to_registry("v", registry, subject="everything-value").alias("value")).collect()[0].value
    assert bytes(again) == data


def test_times_of_a_day_go_through_spark_and_back(spark: Any, registry: SchemaRegistry) -> None:
    times = record(
        ("ms", {"type": "int", "logicalType": "time-millis"}), ("us", {"type": "long", "logicalType": "time-micros"})
    )
    schema_id = register(registry, "times-value", times)
    data = framed(schema_id, times, {"ms": datetime.time(1, 2, 3, 4000), "us": datetime.time(23, 59, 59, 999999)})
    decoded = frame_of(spark, [data]).select(from_registry("value", registry, subject="times-value").alias("v"))
    text = decoded.select(F.col("v.ms").cast("string").alias("ms"), F.col("v.us").cast("string").alias("us")).collect()
    assert text[0].asDict() == {"ms": "01:02:03.004", "us": "23:59:59.999999"}
    again = decoded.select(to_registry("v", registry, subject="times-value").alias("value")).collect()[0].value
    assert bytes(again) == data


def test_rows_are_written_by_name_with_defaults(spark: Any, registry: SchemaRegistry) -> None:
    schema = record(("id", "long"), ("note", "string", "none"), ("more", ["null", "int"], None))
    schema_id = register(registry, "writing-value", schema)
    rows = spark.sql("SELECT named_struct('extra', 1.5D, 'id', cast(id AS INT)) AS order FROM range(3)")
    found = [row[0] for row in rows.select(to_registry("order", registry, subject="writing-value")).collect()]
    deserializer = AvroDeserializer(registry)
    assert [deserializer("writing", bytes(each)) for each in found] == [
        {"id": number, "note": "none", "more": None} for number in range(3)
    ]
    assert all(wire.schema_id(bytes(each)) == schema_id for each in found)


def test_rows_that_the_schema_does_not_allow(spark: Any, registry: SchemaRegistry) -> None:
    register(registry, "strict-value", record(("id", "int"), ("name", "string")))
    rows = spark.sql(
        "SELECT if(id = 3, NULL, named_struct('id', id * 1500000000, 'name', if(id = 1, NULL, 'x'))) AS o FROM range(4)"
    ).coalesce(1)
    column = to_registry("o", registry, subject="strict-value", mode="permissive")
    found = rows.select(column.alias("made")).select("made.*").collect()
    assert [row.value is None for row in found] == [False, True, True, True]
    assert [row.reason for row in found] == [
        None,
        "name: is null, and the schema does not allow null",
        "id: 3000000000 does not fit into an int of 32 bits",
        None,
    ]
    with pytest.raises(PythonException, match=r"name: is null.*strict-value version 1"):
        rows.select(to_registry("o", registry, subject="strict-value")).collect()
    wrong = spark.sql("SELECT named_struct('id', 'text', 'name', 'x') AS o")
    with pytest.raises(PythonException, match=r"id: an array of type string cannot be written as int"):
        wrong.select(to_registry("o", registry, subject="strict-value", mode="permissive")).collect()
    missing = spark.sql("SELECT named_struct('id', 1) AS o")
    with pytest.raises(PythonException, match=r"name: the array lacks the field, and record Order has no default"):
        missing.select(to_registry("o", registry, subject="strict-value")).collect()


def test_what_cannot_work_is_refused_when_the_column_is_made(spark: Any, registry: SchemaRegistry) -> None:
    assert spark is not None
    with pytest.raises(SchemaNotFoundError, match="nowhere-value"):
        from_registry("value", registry, subject="nowhere-value")
    register(registry, "list-value", record(("next", ["null", "Order"], None)))
    with pytest.raises(InvalidSchemaError, match="next: record Order contains itself") as refused:
        from_registry("value", registry, subject="list-value")
    assert (refused.value.path, refused.value.subject, refused.value.version) == ("next", "list-value", 1)
    with pytest.raises(InvalidArgumentError, match="mode='drop'"):
        from_registry("value", registry, subject="list-value", mode="drop")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="subject"):
        to_registry("value", registry, subject="")


def test_json_schema_values_are_json_text(spark: Any, registry: SchemaRegistry) -> None:
    text = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]})
    registry.register("json-value", Schema(text, SchemaType.JSON))
    good = JsonSerializer(registry, use_latest_version=True)("json", {"id": 1})
    assert good is not None
    values = [good, good[:5] + b'{"id": "x"}', good[:5] + b"{", None]
    column = from_registry("value", registry, subject="json-value", mode="permissive")
    found = frame_of(spark, values).select(column.alias("found")).select("found.*").collect()
    assert [row.value for row in found] == ['{"id":1}', None, None, None]
    assert ["id" in (row.reason or "") for row in found] == [False, True, True, False]
    assert found[0].reason is None
    assert found[3].reason is None
    exact = '{"id":1, "price":12345678901234567.89}'
    found = frame_of(spark, [good[:5] + exact.encode()]).select(column.alias("found")).select("found.*").collect()
    assert found[0].value == exact, "as it was written: a float has fewer digits"
    back = spark.sql("SELECT explode(array('{\"id\":1}', '{}', 'null')) AS t").coalesce(1)
    made = back.select(to_registry("t", registry, subject="json-value", mode="permissive").alias("m")).select("m.*")
    rows = made.collect()
    assert json.loads(bytes(rows[0].value)[5:]) == {"id": 1}
    assert rows[1].value is None
    assert "required" in rows[1].reason
    assert rows[2].value is None
    assert "JSON text null; to write a tombstone, set the column to NULL" in rows[2].reason


def test_protobuf_values_are_json_text(spark: Any, registry: SchemaRegistry) -> None:
    text = 'syntax = "proto3"; message Order { int64 id = 1; string name = 2; }'
    registry.register("proto-value", Schema(text, SchemaType.PROTOBUF))
    texts = spark.sql("""SELECT '{"id": "5", "name": "x"}' AS t""")
    encoded = texts.select(to_registry("t", registry, subject="proto-value").alias("value"))
    assert bytes(encoded.collect()[0].value)[5:] == b"\x00\x08\x05\x12\x01x"
    decoded = encoded.select(from_registry("value", registry, subject="proto-value").alias("t")).collect()
    assert json.loads(decoded[0].t) == {"id": "5", "name": "x"}


def test_bad_records_of_a_stream_go_to_the_dead_letter_topic(
    spark: Any, cluster: LocalCluster, registry: SchemaRegistry, tmp_path: Path
) -> None:
    servers = cluster.bootstrap_servers
    schema = record(("id", "long"), ("customer", "string"))
    schema_id = register(registry, "letters-value", schema)
    good = [framed(schema_id, schema, {"id": number, "customer": "c"}) for number in range(20)]
    bad = [good[0][:-1], b"no avro"]
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic(name, partitions=1) for name in ("letters", "letters-clean")])
        create_dead_letter_topics(admin, ["letters"])
    with Producer(bootstrap_servers=servers) as producer:
        for each in [*good[:10], *bad, *good[10:]]:
            producer.send("letters", each, key=b"k", headers=[("h", b"1")]).result(30)
    source = (
        spark.readStream.format("headrace")
        .option("headrace.bootstrap.servers", servers)
        .option("subscribe", "letters")
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .load()
    )
    parsed = parse_registry(source, registry, subject="letters-value")
    again = to_registry("data", registry, subject="letters-value")
    query = (
        routed(parsed, topic="letters-clean", key=F.col("key"), value=again)
        .writeStream.format("headrace")
        .option("headrace.bootstrap.servers", servers)
        .option("headrace.delivery", "exactly-once")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    clean = records_of(cluster, "letters-clean")
    assert [each.value for each in clean] == good
    letters = [DeadLetter.of(each) for each in records_of(cluster, "letters.dead-letters")]
    assert [letter.reason for letter in letters if letter] == [
        "customer: the length is 1 bytes, and fewer are left",
        "the first byte is 110, not the magic byte 0: the data was not written by a schema serializer",
    ]
    assert [letter.value for letter in letters if letter] == bad
    assert [letter.position[-1] for letter in letters if letter] == [10, 11]


def test_executors_need_neither_the_drivers_client_nor_its_cache(spark: Any, cluster: LocalCluster) -> None:
    schema = record(("id", "long"))
    with SchemaRegistry(cluster.registry_urls) as client:
        schema_id = register(client, "executors-value", schema)
        column = from_registry("value", client, subject="executors-value")
    values = [framed(schema_id, schema, {"id": number}) for number in range(1000)]
    found = frame_of(spark, values * 20).repartition(4).select(column.alias("v")).select(F.sum("v.id").alias("total"))
    assert found.collect()[0].total == sum(range(1000)) * 20
