"""Avro and Arrow: what hostile bytes cost, resolution, several writers in one batch, arrays of many types, leaks."""

from __future__ import annotations

import ctypes
import datetime
import decimal
import gc
import json
import struct
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.errors import InvalidArgumentError
from headrace.schemas import (
    AvroArrowDeserializer,
    AvroArrowSerializer,
    CorruptValueError,
    InvalidSchemaError,
    InvalidValueError,
    RegistryUnavailableError,
    Schema,
    SchemaRegistry,
    wire,
)
from headrace.schemas.avro import Type, Unresolvable, decoder, encoder, parse
from headrace.schemas.avro import arrow as module
from headrace.schemas.avro.arrow import ArrowDecoder, ArrowEncoder, BatchTooLargeError, Layout, NoArrowTypeError
from tests.worlds.registries import FakeRegistry
from tests.worlds.waiting import check_spent

FRAME = wire.header(7)


def typed(schema: Any) -> Type:
    return parse(json.dumps(schema))


def record(*fields: tuple[Any, ...], name: str = "R", **more: Any) -> dict[str, Any]:
    named = [{"name": field, "type": kind} | ({"default": rest[0]} if rest else {}) for field, kind, *rest in fields]
    return {"type": "record", "name": name, "fields": named} | more


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name} | more


def decode(schema: Any, data: list[bytes | None], reader: Any = None, layout: Layout = Layout.ARROW) -> Any:
    reading = ArrowDecoder(typed(schema if reader is None else reader), layout=layout)
    found = reading.decode_bare(pa.array(data, pa.binary()), typed(schema))
    found.values.validate(full=True)
    return found


def reason_of(schema: Any, data: bytes) -> str:
    """Why the bytes are bad; good rows around them must stay."""
    good = encoder(typed(schema)).encode(_zero(typed(schema)))
    found = decode(schema, [good, data, good])
    assert found.values[0] == found.values[2]
    assert found.values.null_count >= 1
    assert list(found.reasons) == [1]
    return str(found.reasons[1])


def _zero(kind: Type) -> Any:
    if kind.kind == "record":
        return {each.name: _zero(each.type) for each in kind.fields}
    if kind.kind == "union":
        return _zero(kind.branches[0])
    zeros = {"int": 0, "long": 0, "string": "", "bytes": b"", "array": [], "map": {}, "boolean": False, "null": None}
    if kind.kind == "enum":
        return kind.symbols[0]
    if kind.kind == "fixed" or kind.logical == "decimal":
        return bytes(kind.size or 1)
    return zeros[kind.kind]


LONGEST = b"\xff" * 9 + b"\x01"  # the least long
TOO_LONG = b"\xff" * 10 + b"\x01"


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("string", b"\x0aabc", "f: the length is 5 bytes, and fewer are left"),
        ("string", b"\x01", "f: the length is -1 bytes, and fewer are left"),
        ("string", LONGEST, "f: the length is -9223372036854775808 bytes, and fewer are left"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "f: the length is 9223372036854775807 bytes"),
        ("long", TOO_LONG, "f: a number is longer than 64 bits"),
        ("long", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "f: a number is longer than 64 bits"),
        ("long", b"\xff", "f: the data ends too early"),
        ("int", b"\x80\x80\x80\x80\x10", "f: 2147483648 does not fit into an int of 32 bits"),
        ("boolean", b"\x02", "f: a boolean has the byte 2"),
        ("boolean", b"", "f: the data ends too early"),
        ("string", b"\x04\xc0\x80", "f: a string is not UTF-8"),
        ("string", b"\x06\xed\xa0\x80", "f: a string is not UTF-8"),
        ("string", b"\x08\xf4\x90\x80\x80", "f: a string is not UTF-8"),
        ("string", b"\x10abcdefg\xc3", "f: a string is not UTF-8"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "f: is not a symbol of enum E (position 1)"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x01", "f: is not a symbol of enum E (position -1)"),
        (["null", "int"], b"\x04", "f: a union has no branch 2"),
        (["null", "int"], b"\x01", "f: a union has no branch -1"),
        ({"type": "fixed", "name": "F", "size": 4}, b"abc", "f: the data ends too early"),
        ({"type": "array", "items": "int"}, b"\x04\x02", "f[1]: the data ends too early"),
        ({"type": "array", "items": "null"}, LONGEST, "f: a block has an impossible number of items"),
        (
            {"type": "array", "items": "null"},
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "f: a block has an impossible",
        ),
        (
            {"type": "array", "items": "int"},
            b"\x01\x01\x02\x00",
            "f: a block has an impossible number of items or size",
        ),
        ({"type": "map", "values": "int"}, b"\x02\x02\xff\x02\x00", "f[0]: a string is not UTF-8"),
        ({"type": "map", "values": "int"}, b"\x02\x09a\x02\x00", "f[0]: the length is -5 bytes"),
        ("int", b"\x02\x02", "the value: 1 bytes are left after the value"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "f: -1 is beyond the range of its type"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            b"\x02\x64",
            "f: a decimal has more digits than its precision allows",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
            b"\x22\x01" + bytes(16),
            "f: a decimal has more digits than its precision allows",
        ),
    ],
)
def test_hostile_bytes_are_a_bad_row_with_the_fields_name(kind: Any, data: bytes, reason: str) -> None:
    assert reason_of(record(("f", kind)), data).startswith(reason)


def test_paths_lead_through_records_arrays_and_maps() -> None:
    inner = record(("x", "int"), ("name", "string"), name="Inner")
    schema = record(("rows", {"type": "array", "items": {"type": "map", "values": inner}}))
    data = b"\x04" + b"\x00" + b"\x02\x02k\x02\x63" + b"abc"
    assert reason_of(schema, data) == "rows[1][0].name: the length is -50 bytes, and fewer are left"


def test_a_field_that_is_skipped_is_named_too() -> None:
    writer = record(("a", "int"), ("skipped", {"type": "array", "items": record(("deep", "string"), name="S")}))
    found = decode(writer, [b"\x02\x02\x63ab"], record(("a", "int")))
    assert found.reasons == {0: "skipped[0].deep: the length is -50 bytes, and fewer are left"}


@pytest.mark.parametrize("skipped", [False, True])
def test_values_that_contain_themselves_are_bounded(skipped: bool) -> None:
    """A reader's type cannot contain itself, but a field that is skipped can."""
    chain = record(("next", ["null", "Node"]), name="Node")
    writer = record(("a", "int"), ("chain", chain))
    if not skipped:
        with pytest.raises(NoArrowTypeError, match="contains itself") as refused:
            ArrowDecoder(typed(writer))
        assert refused.value.path == "chain.next"
        return
    reader = record(("a", "int"))
    deepest = 126  # the value itself is the first level
    found = decode(writer, [b"\x02" + b"\x02" * (deepest - 1) + b"\x00", b"\x02" + b"\x02" * 100_000], reader)
    assert found.values[0].as_py() == {"a": 1}
    assert found.reasons[1].endswith("the value is nested more than 127 levels deep")


def test_few_bytes_cannot_fill_the_memory() -> None:
    wide = record(*[(f"f{at}", ["null", "long"]) for at in range(1000)], name="Wide")
    schema = {"type": "array", "items": ["null", wide]}
    bomb = b"\xc0\x84\x3d" + bytes(500_000) + b"\0"  # 500,000 nulls, each with room for 1,000 fields
    assert "too much memory" in reason_of(record(("f", schema)), bomb)
    defaults = record(("x", "null"), name="D")
    reader = record(("text", "string", "x" * 100_000), name="D")
    nothing = {"type": "array", "items": defaults}
    found = decode(nothing, [b"\x80\x89\x0c\x00"], {"type": "array", "items": reader})  # 98,880 items without a byte
    assert "too much memory" in found.reasons[0]
    symbols = {"type": "enum", "name": "E", "symbols": ["S" * 50_000, "B"]}
    found = decode({"type": "array", "items": symbols}, [b"\x80\x89\x0c" + bytes(99_000)])
    assert "too much memory" in found.reasons[0] or "left" in found.reasons[0]


def test_a_batch_beyond_the_limit_is_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", 1 << 20)
    reading = ArrowDecoder(typed("string"))
    writer = typed("string")
    value = encoder(writer).encode("x" * 100_000)
    with pytest.raises(BatchTooLargeError, match=r"batch of 20 rows is too large at row 1\d.*fewer rows"):
        reading.decode_bare(pa.array([value] * 20, pa.binary()), writer)
    found = reading.decode_bare(pa.array([value] * 5, pa.binary()), writer)
    assert found.values.to_pylist() == ["x" * 100_000] * 5
    with pytest.raises(BatchTooLargeError, match="at row"):
        ArrowEncoder(writer, pa.string()).encode(pa.array(["x" * 100_000] * 20))


def test_a_hostile_batch_takes_little_time() -> None:
    schema = record(("f", {"type": "array", "items": "null"}))
    rows = [b"\xfe\x99\x0c\x00"] * 1000  # 99,967 nulls in 4 bytes, a thousand times
    began = time.thread_time()
    found = decode(schema, rows)
    assert len(found.values) == 1000
    check_spent(began, 20)


# --- resolution -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("writer", "reader", "value", "wanted"),
    [
        ("int", "long", -5, -5),
        ("int", "float", 2**24 + 1, float(2**24)),
        ("long", "float", 2**40, float(2**40)),
        ("long", "double", 2**53, float(2**53)),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", b"x", "x"),
        ("int", ["null", "long"], 5, 5),
        ("int", ["null", "double", "int"], 5, 5),
        (["null", "int"], ["string", "null", "long"], 7, 7),
        (["int", "string"], "string", "x", "x"),
        ("int", {"type": "long", "logicalType": "timestamp-micros"}, 1, datetime.datetime(1970, 1, 1, 0, 0, 0, 1)),
    ],
)
def test_promotions_and_unions(writer: Any, reader: Any, value: Any, wanted: Any) -> None:
    data = encoder(typed(record(("f", writer)))).encode({"f": value})
    found = decode(record(("f", writer)), [data], record(("f", reader)))
    assert found.reasons == {}
    (only,) = found.values.to_pylist()
    got = only["f"]
    assert (got.replace(tzinfo=None) if isinstance(got, datetime.datetime) else got) == wanted


def test_a_branch_that_the_reader_cannot_take_is_a_bad_row() -> None:
    writer, reader = record(("f", ["int", "string"])), record(("f", "int"))
    one, two = (encoder(typed(writer)).encode({"f": value}) for value in (1, "x"))
    found = decode(writer, [one, two], reader)
    assert found.values.to_pylist() == [{"f": 1}, None]
    assert found.reasons == {1: "f: the value is a string: the writer's string cannot be read as int"}


def test_an_enums_unknown_symbol_becomes_the_default_or_a_bad_row() -> None:
    writer = record(("f", {"type": "enum", "name": "E", "symbols": ["A", "B"]}))
    data = [encoder(typed(writer)).encode({"f": each}) for each in "AB"]
    with_default = record(("f", {"type": "enum", "name": "E", "symbols": ["C", "A"], "default": "C"}))
    assert decode(writer, data, with_default).values.to_pylist() == [{"f": "A"}, {"f": "C"}]
    without = record(("f", {"type": "enum", "name": "E", "symbols": ["C", "A"]}))
    found = decode(writer, data, without)
    assert found.values.to_pylist() == [{"f": "A"}, None]
    assert found.reasons == {1: "f: the symbol B is unknown to the reader's enum E, which has no default"}


@pytest.mark.parametrize(
    ("writer", "reader", "path"),
    [
        (record(("a", "int")), record(("b", "int")), "b"),
        (record(("a", "string")), record(("a", "int")), "a"),
        (record(("a", "int"), name="X"), record(("a", "int"), name="Y"), ""),
        (record(("a", fixed(1))), record(("a", fixed(2))), "a"),
        (record(("a", {"type": "array", "items": "string"})), record(("a", {"type": "array", "items": "int"})), "a[]"),
        (record(("a", ["null", "string"])), record(("a", "int")), "a"),
    ],
)  # fmt: skip
def test_schemas_that_do_not_fit_are_refused(writer: Any, reader: Any, path: str) -> None:
    with pytest.raises(Unresolvable) as refused:
        ArrowDecoder(typed(reader)).add_writer(1, typed(writer))
    assert refused.value.path == path


def test_a_refused_writer_leaves_the_others_alone() -> None:
    reader = record(("a", "int"))
    reading = ArrowDecoder(typed(reader))
    reading.add_writer(7, typed(reader))
    with pytest.raises(Unresolvable):
        reading.add_writer(8, typed(record(("a", "string"))))
    found = reading.decode(pa.array([FRAME + b"\x02", wire.header(8) + b"\x02a"], pa.binary()), {8: "does not fit"})
    assert found.values.to_pylist() == [{"a": 1}, None]
    assert found.reasons == {1: "does not fit"}


def test_dense_unions_survive_bad_rows() -> None:
    schema = record(("u", ["int", "string", "null", record(("x", "string"), name="In")]))
    values = [{"u": 1}, {"u": "a"}, {"u": None}, {"u": {"x": "y"}}, {"u": "b"}]
    rows = [encoder(typed(schema)).encode(each) for each in values]
    broken = rows[3][:-1]
    mixed = [rows[0], broken, rows[1], broken, rows[2], None, rows[3], broken, rows[4]]
    found = decode(schema, mixed)
    assert sorted(found.reasons) == [1, 3, 7]
    assert [each for each in found.values.to_pylist() if each is not None] == values
    spark = decode(schema, mixed, layout=Layout.SPARK)
    assert spark.values[6].as_py() == {"u": {"member0": None, "member1": None, "member2": {"x": "y"}}}


def test_bad_rows_cost_no_more_after_many_good_ones() -> None:
    schema = {"type": "array", "items": ["int", "string", "long", "boolean"]}
    good = encoder(typed(schema)).encode([1, True] * 500)
    rows = [good] * 1000 + [b"\x02\x02\x09"] * 9000
    began = time.thread_time()
    found = decode(schema, rows)
    check_spent(began, 3)
    assert len(found.reasons) == 9000
    assert found.values[999].as_py() == [1, True] * 500


def test_bad_rows_leave_nothing_in_the_columns_of_a_union() -> None:
    schema = {"type": "array", "items": ["int", "string"]}
    good = encoder(typed(schema)).encode([1, "a"])
    broken = encoder(typed(schema)).encode([2, "b", 3, "c"])[:-2]
    items = decode(schema, [good, broken, good, broken]).values.values
    assert items.field(0).to_pylist() == [1, 1]
    assert items.field(1).to_pylist() == ["a", "a"]


@pytest.mark.parametrize("name", ["timestamp-nanos", "local-timestamp-nanos"])
def test_nanoseconds_are_kept(name: str) -> None:
    schema = record(("at", logical("long", name)))
    data = [encoder(typed(schema)).encode({"at": 1_700_000_000_123_456_789})]
    zone = None if name.startswith("local") else "UTC"
    found = decode(schema, data)
    assert found.values.field(0).equals(pa.array([1_700_000_000_123_456_789], pa.timestamp("ns", zone)))
    assert ArrowEncoder(typed(schema), found.values.type).encode(found.values).values.to_pylist() == data
    finer = pa.StructArray.from_arrays([pa.array([5], pa.timestamp("us", zone))], ["at"])
    assert ArrowEncoder(typed(schema), finer.type).encode(finer).values.to_pylist() == [b"\x90\x4e"]
    spark = decode(schema, data, layout=Layout.SPARK)
    assert spark.values.to_pylist() == [{"at": 1_700_000_000_123_456_789}]
    assert decoder(typed(schema)).decode(data[0]) == {"at": 1_700_000_000_123_456_789}


def test_a_decimal_of_many_bytes_is_read_if_its_value_fits() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    data = [b"\x00", b"\x28" + b"\xff" * 19 + b"\x9c", b"\x28" + bytes(18) + b"\x04\xd2"]
    found = decode(schema, data)
    assert found.values.to_pylist() == [decimal.Decimal("0.00"), decimal.Decimal("-1.00"), decimal.Decimal("12.34")]


# --- encoding ---------------------------------------------------------------------------------------------------------


def encoded(schema: Any, values: pa.Array) -> Any:
    found = ArrowEncoder(typed(schema), values.type).encode(values)
    found.values.validate(full=True)
    return found


def views_in_a_dictionary(*texts: str) -> pa.Array:
    """polars' Categorical: each text, then the first one again."""
    indices = pa.array([*range(len(texts)), 0], pa.uint32())
    return pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string_view()))


@pytest.mark.parametrize(
    ("schema", "array", "same_as"),
    [
        ("int", pa.array([1, -1], pa.int8()), [1, -1]),
        ("int", pa.array([1, 255], pa.uint8()), [1, 255]),
        ("long", pa.array([2**40], pa.uint64()), [2**40]),
        ("long", pa.array([2**31], pa.uint32()), [2**31]),
        ("double", pa.array([1, 2], pa.int16()), [1.0, 2.0]),
        ("double", pa.array([0.5], pa.float32()), [0.5]),
        ("float", pa.array([0.5], pa.float64()), [0.5]),
        ("string", pa.array(["a", "é"], pa.large_string()), ["a", "é"]),
        ("string", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        ("string", pa.array(["a", "é" * 20], pa.string_view()), ["a", "é" * 20]),
        ("bytes", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ({"type": "fixed", "name": "F", "size": 2}, pa.array([b"ab"], pa.binary()), [b"ab"]),
        ({"type": "array", "items": "int"}, pa.array([[1], []], pa.large_list(pa.int32())), [[1], []]),
        ({"type": "int", "logicalType": "time-millis"}, pa.array([1_500_000], pa.time64("us")), [1500]),
        ({"type": "long", "logicalType": "time-micros"}, pa.array([2], pa.time32("s")), [2_000_000]),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.array([-1], pa.timestamp("us", "UTC")), [-1]),
        ({"type": "long", "logicalType": "timestamp-millis"}, pa.array([-1000], pa.timestamp("us", "UTC")), [-1]),
        (logical("long", "timestamp-micros"), pa.array([5], pa.timestamp("s", "Asia/Tokyo")), [5_000_000]),
        (["string", "null", "long"], pa.array([1, None]), [1, None]),
        (["string"], pa.array(["x"]), ["x"]),
        (["null", "int"], pa.array([{"a": 1}]).field(0), [1]),
        ("string", views_in_a_dictionary("a", "é"), ["a", "é", "a"]),
        ("int", pa.array([1, 2, 1]).dictionary_encode(), [1, 2, 1]),
        ("string", pc.run_end_encode(pa.array(["a", "a", "b"])), ["a", "a", "b"]),
        ("string", pa.array(['{"x": 1}'], pa.json_()), ['{"x": 1}']),
        ("boolean", pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, 2], pa.int8())), [False, True, True]),
        (fixed(16) | {"logicalType": "uuid"}, pa.array([b"u" * 16], pa.uuid()), [b"u" * 16]),
        (logical("string", "uuid"), pa.array([str(uuid.UUID(int=7))]), [str(uuid.UUID(int=7))]),
        ("float", pa.array([0.5], pa.float16()), [0.5]),
        ("double", pa.array([2**53], pa.int64()), [2.0**53]),
        (logical("int", "date"), pa.array([-86_400_000, 86_400_000], pa.date64()), [-1, 1]),
        (logical("bytes", "decimal", precision=5, scale=2), pa.array([decimal.Decimal("-1.25")], pa.decimal32(9, 2)),
         [b"\x83"]),
        (logical("bytes", "decimal", precision=5, scale=2), pa.array([decimal.Decimal("1.25")], pa.decimal64(18, 2)),
         [b"\x7d"]),
        (logical("bytes", "decimal", precision=5, scale=2), pa.array([b"\x7d", b"\0\x7d"]), [b"\x7d", b"\0\x7d"]),
        (fixed(2) | {"logicalType": "decimal", "precision": 4}, pa.array([b"\xff\xff"], pa.binary(2)),
         [b"\xff\xff"]),
        ({"type": "array", "items": "string"}, pa.array([["a"], [], ["b"]], pa.list_view(pa.string_view())),
         [["a"], [], ["b"]]),
        ({"type": "array", "items": "int"}, pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], [3, 4]]),
        ({"type": "map", "values": "string"},
         pa.MapArray.from_arrays([0, 1, 1], pa.array(["k"]).dictionary_encode(), views_in_a_dictionary("v")[:1]),
         [{"k": "v"}, {}]),
    ],
)  # fmt: skip
def test_arrays_of_other_types_are_written(schema: Any, array: pa.Array, same_as: list[Any]) -> None:
    found = encoded(record(("f", schema)), pa.StructArray.from_arrays([array], ["f"]))
    assert found.reasons == {}
    plain = (
        {key: value for key, value in schema.items() if key != "logicalType"} if isinstance(schema, dict) else schema
    )
    writing = encoder(typed(record(("f", plain))))
    assert found.values.to_pylist() == [writing.encode({"f": each}) for each in same_as]


def not_utf8(data: bytes) -> pa.Array:
    """A string array with bytes that are no UTF-8, as Spark makes from a cast of binary."""
    return pa.array([data]).view(pa.string())


@pytest.mark.parametrize(
    ("schema", "array", "reason"),
    [
        ("int", pa.array([2**31]), "f: 2147483648 does not fit into an int of 32 bits"),
        ("int", pa.array([1, None]), "f: is null, and the schema does not allow null"),
        ("long", pa.array([2**63], pa.uint64()), "f: 9223372036854775807 is beyond the range of its type"),
        ("float", pa.array([1e300]), "is beyond the range of its type"),
        (fixed(2), pa.array([b"abc"]), "f: has 3 bytes, and the schema has fixed F of 2 bytes"),
        ({"type": "enum", "name": "E", "symbols": ["A", "AB"]}, pa.array(["A", "ABC"]), "f: is not a symbol of enum E"),
        ({"type": "array", "items": "string"}, pa.array([["a", None]]), "f[1]: is null"),
        ({"type": "map", "values": "int"}, pa.array([{"k": None}], pa.map_(pa.string(), pa.int32())), "f[0]: is null"),
        (logical("long", "timestamp-micros"), pa.array([2**60], pa.timestamp("s", "UTC")), "beyond the range"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1},
            pa.array([decimal.Decimal("100.0")], pa.decimal128(10, 1)),
            "f: a decimal has more digits",
        ),
        (logical("int", "date"), pa.array([2_932_897], pa.date32()), "its type (the years 1 to 9999)"),
        (logical("int", "date"), pa.array([-719_163], pa.int32()), "beyond the range"),
        (logical("int", "time-millis"), pa.array([86_400_000], pa.int32()), "(times of one day)"),
        (logical("long", "time-micros"), pa.array([-1], pa.time64("us")), "(times of one day)"),
        (logical("long", "timestamp-millis"), pa.array([253_402_300_800_000], pa.timestamp("ms", "UTC")), "years"),
        (logical("long", "timestamp-micros"), pa.array([-62_135_596_800_000_001], pa.timestamp("us", "UTC")), "years"),
        (logical("long", "local-timestamp-millis"), pa.array([2**60], pa.timestamp("us")), "years"),
        (logical("string", "uuid"), pa.array([str(uuid.UUID(int=7)), "no UUID"]), "f: is not a UUID such as"),
        ("string", not_utf8(b"\xff"), "f: a string is not UTF-8"),
        ("string", not_utf8(b"\xed\xa0\x80"), "f: a string is not UTF-8"),
        ("double", pa.array([2**53, 2**53 + 1]), "9007199254740993 would lose digits as a floating-point number"),
        ("double", pa.array([2**63 - 1]), "would lose digits"),
        ("float", pa.array([2**24 + 1], pa.int32()), "16777217 would lose digits"),
        (logical("bytes", "decimal", precision=3), pa.array([b"\3\xe7", b"\3\xe8"]), "more digits than its precision"),
        (logical("bytes", "decimal", precision=3), pa.array([b"\xfc\x19", b"\xfc\x18"]), "more digits"),
        (logical("bytes", "decimal", precision=3), pa.array([bytes(40), b"\1" + bytes(40)]), "more digits"),
        (logical("bytes", "decimal", precision=76), pa.array([b"\0" + b"\xff" * 32]), "more digits"),
        (logical("bytes", "decimal", precision=3), pa.array([b""]), "f: has 0 bytes"),
        (fixed(2) | {"logicalType": "decimal", "precision": 3}, pa.array([b"\0\1", b"\1"]), "f: has 1 bytes"),
        (fixed(2) | {"logicalType": "decimal", "precision": 3}, pa.array([b"\x7f\xff"], pa.binary(2)), "digits"),
        (["int", "string"], pa.array([{"member0": 1, "member1": "x"}]), "exactly one value among member0, member1"),
        (["int", "string"], pa.array([{}], pa.struct({"member0": pa.int32(), "member1": pa.string()})), "exactly one"),
    ],
)  # fmt: skip
def test_values_that_the_schema_does_not_allow_are_bad_rows(schema: Any, array: pa.Array, reason: str) -> None:
    found = encoded(record(("f", schema)), pa.StructArray.from_arrays([array], ["f"]))
    assert list(found.reasons) == [len(array) - 1]
    assert reason in found.reasons[len(array) - 1]
    assert found.values.null_count == 1


@pytest.mark.parametrize(
    ("schema", "kind", "reason"),
    [
        ("int", pa.string(), "an array of type string cannot be written as int"),
        ("string", pa.binary(), "cannot be written as string"),
        ("int", pa.null(), "only nulls"),
        ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us"), "a timestamp with a time zone"),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, pa.timestamp("us", "UTC"), "without a time zone"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, pa.decimal128(9, 3), "have scale 3"),
        ({"type": "map", "values": "int"}, pa.struct([("k", pa.int32())]), "cannot be written as map"),
        (["null", "int", "string"], pa.float64(), "cannot be written as union"),
        (["null", "int"], pa.float64(), "cannot be written as int"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.binary(3), "cannot be written as fixed F"),
        (logical("string", "uuid"), pa.uuid(), "cannot be written as string .uuid.; cast it, or change the schema"),
        ("long", pa.duration("ms"), "an array of type duration.ms. cannot be written as long; cast it"),
        ("string", pa.month_day_nano_interval(), "cannot be written as string; cast it"),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            pa.int32(),
            "cannot be written as bytes .decimal.; cast it",
        ),
    ],
)
def test_arrays_whose_type_cannot_fit_are_refused_at_once(schema: Any, kind: pa.DataType, reason: str) -> None:
    with pytest.raises(NoArrowTypeError, match=reason) as refused:
        ArrowEncoder(typed(record(("f", schema))), pa.struct([("f", kind)]))
    assert refused.value.path == "f"


def test_lists_of_structs_in_slices_of_chunks_are_written() -> None:
    schema = {"type": "array", "items": record(("k", "string"), ("v", {"type": "map", "values": "long"}))}
    rows = [[{"k": f"{row}-{at}", "v": [("m", at)]} for at in range(row % 4)] for row in range(40)]
    kind = pa.list_(pa.struct([("k", pa.string()), ("v", pa.map_(pa.string(), pa.int64()))]))
    whole = pa.array(rows, kind)
    found = encoded(schema, whole.slice(7, 20).slice(3, 10))
    back = decode(schema, found.values.to_pylist())
    assert back.values.to_pylist() == rows[10:20]


def test_a_map_whose_entries_are_a_slice_is_written() -> None:
    keys, values = pa.array(["x", "y", "a", "b", "c"]), pa.array([8, 9, 1, 2, 3], pa.int64())
    fields = [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.int64())]
    entries = pa.StructArray.from_arrays([keys, values], fields=fields).slice(2)
    offsets = pa.array([0, 1, 3], pa.int32())
    kind = pa.map_(pa.string(), pa.int64())
    maps = pa.Array.from_buffers(kind, 2, [None, offsets.buffers()[1]], children=[entries])
    # Arrow's C data interface gives the slice's offset; pyarrow's own reading of such a map ignores it.
    schema = {"type": "map", "values": "long"}
    back = decode(schema, encoded(schema, maps).values.to_pylist()).values
    assert back.to_pylist() == [[("a", 1)], [("b", 2), ("c", 3)]]


def test_a_map_with_a_key_twice_is_a_bad_row() -> None:
    kind = pa.map_(pa.string(), pa.int32())
    maps = pa.array(
        [[("a", 1)], [("k", 1), ("k", 2)], None, [("a", 1), ("b", 2)], [("x", 0), ("b", 1), ("x", 0)]], kind
    )
    schema = {"type": "map", "values": "int"}
    for array in (maps, maps.slice(1, 3), pa.concat_arrays([maps, maps])):
        found = encoded(["null", schema], array)
        bad = [at for at, keys in enumerate(array.to_pylist()) if keys and len(dict(keys)) < len(keys)]
        assert sorted(found.reasons) == bad
        assert [each is None for each in found.values.to_pylist()] == [
            at in bad or not array[at].is_valid for at in range(len(array))
        ]
    assert encoded(["null", schema], maps).reasons[1] == "the value: a map has the key 'k' twice"


def test_a_doubled_key_is_found_in_lists_structs_and_maps() -> None:
    inner = pa.map_(pa.string(), pa.string())
    kind = pa.struct([("l", pa.list_(pa.struct([("m", pa.map_(pa.string(), inner))])))])
    good, bad = [("a", "1"), ("b", "2")], [("a", "1"), ("a", "2")]
    rows = [
        {"l": [{"m": [("x", good), ("y", good)]}, {"m": [("x", good)]}]},
        {"l": []},
        {"l": [{"m": []}, {"m": [("x", good), ("y", bad)]}]},
        {"l": [{"m": [("x", good), ("x", good)]}]},
    ]
    strings = {"type": "map", "values": {"type": "map", "values": "string"}}
    schema = record(("l", {"type": "array", "items": record(("m", strings), name="I")}))
    whole = pa.array(rows, kind)
    assert sorted(encoded(schema, whole).reasons) == [2, 3]
    assert encoded(schema, whole.slice(2)).reasons == {
        0: "l[].m[]: a map has the key 'a' twice",
        1: "l[].m: a map has the key 'x' twice",
    }


# --- with a registry --------------------------------------------------------------------------------------------------

ORDER = record(("id", "long"), ("note", "string", "none"), name="Order")


def test_each_schema_is_asked_for_once_and_a_dead_registry_stops_only_new_ones(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    first = fake.add_avro("orders-value", record(("id", "int"), name="Order"))
    second = fake.add_avro("orders-value", ORDER)
    third = fake.add_avro("orders-value", record(("id", "long"), ("more", "int", 1), name="Order"))
    resolved = registry.resolved(second)
    reading = AvroArrowDeserializer(registry, resolved, subject="orders-value")
    data = [wire.header(first) + b"\x02", wire.header(second) + b"\x04\x02a"] * 100
    fake.requests.clear()
    for _ in range(3):
        found = reading.deserialize(pa.array(data, pa.binary()))
        assert found.reasons == {}
        assert found.values.to_pylist() == [{"id": 1, "note": "none"}, {"id": 2, "note": "a"}] * 100
    assert [path for _, path in fake.requests] == [f"/schemas/ids/{first}", f"/schemas/ids/{first}/versions"]
    fake.stop()
    assert reading.deserialize(pa.array(data, pa.binary())).reasons == {}
    with pytest.raises(RegistryUnavailableError):
        reading.deserialize(pa.array([wire.header(third) + b"\x02\x02"], pa.binary()))


def test_errors_name_subject_version_and_field(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    other = fake.add_avro("orders-value", record(("id", "string"), name="Order"))
    schema_id = fake.add_avro("orders-value", ORDER)
    text = fake.add("json-value", {"schema": "{}", "schemaType": "JSON"})
    reading = AvroArrowDeserializer(registry, registry.resolved(schema_id), subject="orders-value")
    rows = [wire.header(other) + b"\x02a", wire.header(text) + b"{}", wire.header(99) + b"\x02", b"\x01abcd"]
    found = reading.deserialize(pa.array(rows, pa.binary()))
    reasons = [found.reasons[row] for row in range(4)]
    assert reasons[0].startswith("id: the writer's string cannot be read as long")
    assert "orders-value version 1 (id 1)" in reasons[0]
    assert "of type JSON" in reasons[1]
    assert "no schema with id 99" in reasons[2]
    assert "the first byte is 1" in reasons[3]
    with pytest.raises(CorruptValueError, match="row 0 of a batch of 4, of which 4 are bad") as refused:
        reading.refuse(found)
    assert (refused.value.subject, refused.value.version) == ("orders-value", 2)
    recursive = fake.add_avro("list-value", record(("next", ["null", "R"], None)))
    with pytest.raises(InvalidSchemaError, match=r"contains itself.*list-value version 1") as invalid:
        AvroArrowDeserializer(registry, registry.resolved(recursive), subject="list-value")
    assert (invalid.value.path, invalid.value.version) == ("next", 1)


def test_values_in_any_layout_are_read_and_other_types_are_refused(
    fake: FakeRegistry, registry: SchemaRegistry
) -> None:
    registered = registry.register("t", Schema(json.dumps("string")))
    reading = AvroArrowDeserializer(registry, registry.resolved(registered.id))
    data = wire.header(registered.id) + encoder(typed("string")).encode("a")
    plain = pa.array([data, None])
    dictionary = plain.dictionary_encode()
    layouts = [
        plain,
        plain.cast(pa.large_binary()),
        plain.cast(pa.binary_view()),
        plain.cast(pa.binary(len(data))),
        dictionary,
        pa.DictionaryArray.from_arrays(dictionary.indices, dictionary.dictionary.cast(pa.binary_view())),
        pc.run_end_encode(plain),
    ]
    for values in layouts:
        assert reading.deserialize(values).values.to_pylist() == ["a", None], values.type
    assert reading.deserialize(pa.nulls(2)).values.to_pylist() == [None, None]
    for wrong in (pa.array(["a"]), pa.array([1])):
        with pytest.raises(InvalidArgumentError, match=r"an array of type \w+ is not binary; cast it"):
            reading.deserialize(wrong)


def test_a_serializer_writes_the_registered_version(fake: FakeRegistry, registry: SchemaRegistry) -> None:
    fake.add_avro("orders-value", ORDER)
    found = registry.version("orders-value")
    writing = AvroArrowSerializer(found, registry.resolved(found.id))
    made = writing.serialize(pa.array([{"id": 1}, {"id": None}, None]))
    assert made.values.to_pylist() == [wire.header(found.id) + b"\x02\x08none", None, None]
    with pytest.raises(InvalidValueError, match=r"id: is null.*orders-value version 1"):
        writing.refuse(made)
    assert writing.serialize(pa.array([{"id": 2, "note": "x"}])).values.to_pylist() == [
        wire.header(found.id) + b"\x04\x02x"
    ]
    with pytest.raises(InvalidValueError, match="id: an array of type string") as refused:
        writing.serialize(pa.array([{"id": "x"}]))
    assert refused.value.path == "id"
    assert Schema(found.schema.text) == found.schema


# --- memory -----------------------------------------------------------------------------------------------------------


def _allocated() -> int:
    """Bytes that malloc has given out in this process."""
    libc = ctypes.CDLL(None)

    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in
                    ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
                     "keepcost")]  # fmt: skip

    libc.mallinfo2.restype = Info
    info = libc.mallinfo2()
    return int(info.uordblks) + int(info.hblkhd)


def test_many_batches_leave_no_memory_behind() -> None:
    schema = record(
        ("id", "long"), ("text", "string"), ("note", ["null", "string"]), ("list", {"type": "array", "items": "int"}),
        ("u", ["int", "string"]), ("d", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    )  # fmt: skip
    writer = typed(schema)
    value = {"id": 1, "text": "x" * 50, "note": None, "list": [1, 2], "u": "y", "d": decimal.Decimal("1.25")}
    good = FRAME + encoder(writer).encode(value)
    batch = pa.array([good, good[:-1], None, b"x", good] * 400, pa.binary())
    reading = ArrowDecoder(writer)
    reading.add_writer(7, writer)
    writing = ArrowEncoder(writer, reading.type)
    kept = []
    sizes = []
    for turn in range(60):
        found = reading.decode(batch)
        back = writing.encode(found.values, FRAME)
        if turn == 30:
            kept.append(found.values.slice(5, 1))  # an array outlives the decoder's next batches
        del found, back
        if turn >= 10 and turn % 10 == 0:
            gc.collect()
            sizes.append(_allocated())
    assert kept[0].to_pylist() == [value]
    assert max(sizes[2:]) - sizes[1] < 2_000_000, sizes


def test_threads_may_share_a_decoder_and_an_encoder() -> None:
    schema = record(("id", "long"), ("text", "string"), ("u", ["int", "string"]))
    writer = typed(schema)
    reading = ArrowDecoder(writer)
    writing = ArrowEncoder(writer, reading.type)

    def turn(number: int) -> bool:
        reading.add_writer(number, writer)
        values = [{"id": at, "text": "x" * (at % 50), "u": number} for at in range(2000)]
        data = [wire.header(number) + encoder(writer).encode(value) for value in values]
        found = reading.decode(pa.array(data, pa.binary()))
        back = writing.encode(found.values, wire.header(number))
        return bool(found.values.to_pylist() == values and back.values.to_pylist() == data)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(turn, range(40)))


def test_programs_and_their_memory_end_with_their_owner() -> None:
    schema = record(*[(f"f{at}", ["null", "string"]) for at in range(200)])

    def turn() -> None:
        reading = ArrowDecoder(typed(schema))
        reading.add_writer(7, typed(schema))
        reading.decode(pa.array([FRAME + bytes(200)], pa.binary()))
        ArrowEncoder(typed(schema), reading.type)

    for _ in range(3):
        turn()
    gc.collect()
    before = _allocated()
    for _ in range(20):
        turn()
    gc.collect()
    assert _allocated() - before < 1_000_000


def test_a_decoder_forgets_its_writers_when_they_need_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NODES_MAX", 100)
    reader = record(("a", "int"))
    reading = ArrowDecoder(typed(reader))
    value = struct.pack(">BI", 0, 1) + b"\x02"
    for number in range(200):
        array = pa.array([wire.header(number) + value[5:]], pa.binary())
        for each in reading.missing(array):
            reading.add_writer(each, typed(reader))
        assert reading.decode(array).values.to_pylist() == [{"a": 1}]
    assert reading.missing(pa.array([wire.header(0) + b"\x02"], pa.binary())) == [0]
