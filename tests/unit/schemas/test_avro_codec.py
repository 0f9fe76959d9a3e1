"""Avro's binary encoding: the bytes of the specification, every type, logical types, unions, and hostile bytes."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import io
import json
import math
import uuid
from typing import Any, NamedTuple

import attrs
import fastavro
import numpy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas import avro

UTC = datetime.UTC


def encode(schema: Any, value: Any) -> bytes:
    return avro.encoder(avro.parse_document(schema)).encode(value)


def decode(schema: Any, data: bytes) -> Any:
    return avro.decoder(avro.parse_document(schema)).decode(data)


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


#: (schema, value, bytes): the examples of the specification and the borders of each type.
WRITTEN = [
    ("null", None, b""),
    ("boolean", True, b"\x01"),
    ("boolean", False, b"\x00"),
    ("int", 0, b"\x00"),
    ("int", -1, b"\x01"),
    ("int", 1, b"\x02"),
    ("int", -64, b"\x7f"),
    ("int", 64, b"\x80\x01"),
    ("int", 2**31 - 1, b"\xfe\xff\xff\xff\x0f"),
    ("int", -(2**31), b"\xff\xff\xff\xff\x0f"),
    ("long", 2**63 - 1, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ("long", -(2**63), b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ("float", 1.5, b"\x00\x00\xc0\x3f"),
    ("double", 1.5, b"\x00\x00\x00\x00\x00\x00\xf8\x3f"),
    ("bytes", b"\x00\xff", b"\x04\x00\xff"),
    ("string", "foo", b"\x06foo"),
    ("string", "é", b"\x04\xc3\xa9"),
    ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B", "C", "D"]}, "D", b"\x06"),
    (record(("a", "long"), ("b", "string")), {"a": 27, "b": "foo"}, b"\x36\x06foo"),
    ({"type": "array", "items": "long"}, [3, 27], b"\x04\x06\x36\x00"),
    ({"type": "array", "items": "long"}, [], b"\x00"),
    ({"type": "map", "values": "long"}, {"a": 1}, b"\x02\x02a\x02\x00"),
    (["null", "string"], None, b"\x00"),
    (["null", "string"], "a", b"\x02\x02a"),
]


@pytest.mark.parametrize(("schema", "value", "data"), WRITTEN)
def test_bytes_are_those_of_the_specification(schema: Any, value: Any, data: bytes) -> None:
    assert encode(schema, value) == data
    assert decode(schema, data) == value


#: (schema, value, value that a reader gets)
LOGICAL = [
    ({"type": "int", "logicalType": "date"}, datetime.date(2013, 1, 1), None),
    ({"type": "int", "logicalType": "date"}, datetime.date(1, 1, 1), None),
    ({"type": "int", "logicalType": "time-millis"}, datetime.time(23, 59, 59, 999000), None),
    ({"type": "long", "logicalType": "time-micros"}, datetime.time(1, 2, 3, 4), None),
    ({"type": "long", "logicalType": "timestamp-millis"}, datetime.datetime(2013, 1, 1, 5, 6, 7, 8000, UTC), None),
    ({"type": "long", "logicalType": "timestamp-micros"}, datetime.datetime(1905, 1, 1, 5, 6, 7, 8, UTC), None),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, datetime.datetime(2013, 1, 1, 5, 6), None),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, datetime.datetime(2013, 1, 1, 5, 6, 7, 8), None),
    ({"type": "string", "logicalType": "uuid"}, uuid.UUID(int=5), None),
    ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, decimal.Decimal("-12.34"), None),
    ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, decimal.Decimal("1.5E+3"), None),
    ({"type": "bytes", "logicalType": "decimal", "precision": 38}, decimal.Decimal(10) ** 37, None),
    (
        {"type": "fixed", "name": "D", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 3},
        decimal.Decimal("-1.500"),
        None,
    ),
    # A raw number is taken as it is, and a logical type that does not suit its type is ignored.
    ({"type": "int", "logicalType": "date"}, 1, datetime.date(1970, 1, 2)),
    ({"type": "string", "logicalType": "date"}, "x", None),
    ({"type": "long", "logicalType": "of-mine"}, 5, None),
]


@pytest.mark.parametrize(
    ("schema", "value", "read"),
    [
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, uuid.UUID(int=5), uuid.UUID(int=5)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, 7, decimal.Decimal("7.00")),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 5}, b"x", b"x"),
        ({"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"}, b"x" * 12, b"x" * 12),
    ],
)
def test_logical_types_that_fastavro_does_not_write(schema: Any, value: Any, read: Any) -> None:
    assert decode(schema, encode(schema, value)) == read


@pytest.mark.parametrize(("schema", "value", "read"), LOGICAL)
def test_logical_types_have_fastavros_bytes_and_values(schema: Any, value: Any, read: Any) -> None:
    data = encode(schema, value)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    assert data == out.getvalue()
    found = decode(schema, data)
    assert found == (value if read is None else read)
    assert type(found) is type(value if read is None else read)
    assert found == fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(schema), None)


@dataclasses.dataclass
class Item:
    sku: str
    count: int = 1


@dataclasses.dataclass
class Order:
    id: int
    items: list[Item]
    note: str | None = None


class PydanticItem(pydantic.BaseModel):
    sku: str
    number: int = pydantic.Field(1, alias="count")


class PydanticOrder(pydantic.BaseModel):
    id: int
    items: list[PydanticItem]
    note: str | None = None


@attrs.define
class AttrsItem:
    sku: str
    count: int


class TupleItem(NamedTuple):
    sku: str
    count: int


ITEM = record(("sku", "string"), ("count", "int"), name="Item")
ORDER = record(("id", "long"), ("items", {"type": "array", "items": ITEM}), ("note", ["null", "string"]), name="Order")


@pytest.mark.parametrize(
    "order",
    [
        Order(1, [Item("a", 2)]),
        PydanticOrder(id=1, items=[PydanticItem(sku="a", count=2)]),
        {"id": 1, "items": [TupleItem("a", 2)], "note": None},
        {"id": 1, "items": [AttrsItem("a", 2)]},
        {"id": numpy.int64(1), "items": [Item("a", numpy.int32(2))]},  # type: ignore[arg-type]
    ],
)
def test_objects_are_written_as_dicts_are(order: Any) -> None:
    assert encode(ORDER, order) == encode(ORDER, {"id": 1, "items": [{"sku": "a", "count": 2}], "note": None})


class Colour(enum.Enum):
    RED = "RED"
    BLUE = 2


def test_members_of_an_enum_are_symbols_by_value_or_name() -> None:
    schema = {"type": "enum", "name": "E", "symbols": ["BLUE", "RED"]}
    assert [encode(schema, each) for each in (Colour.BLUE, Colour.RED, "RED")] == [b"\0", b"\2", b"\2"]


def test_a_missing_field_gets_its_default_or_null() -> None:
    schema = record(("a", "int"), ("b", ["null", "int"]), ("c", ["int", "null"]))
    schema["fields"][0]["default"] = 5
    schema["fields"].append({"name": "d", "type": {"type": "array", "items": "bytes"}, "default": ["\u00ff"]})
    assert decode(schema, encode(schema, {})) == {"a": 5, "b": None, "c": None, "d": [b"\xff"]}


def test_unions_choose_the_branch_that_suits_best() -> None:
    cat = record(("name", "string"), ("lives", "int"), name="com.acme.Cat")
    dog = record(("name", "string"), ("owner", ["null", "string"]), name="com.acme.Dog")
    schema = ["null", "int", "long", "float", "double", "string", "bytes", "boolean", cat, dog, "com.acme.Later"]
    schema[-1] = {"type": "map", "values": "int"}
    branches = {
        None: 0, 1: 1, 2**40: 2, 1.5: 4, "x": 5, b"x": 6,
    }  # fmt: skip
    for value, branch in branches.items():
        assert encode(schema, value)[0] == branch * 2, value
    assert encode(schema, True)[0] == 7 * 2
    assert encode(schema, {"name": "Tom", "lives": 9})[0] == 8 * 2
    assert encode(schema, {"name": "Rex", "owner": "Ann"})[0] == 9 * 2
    assert encode(schema, {"name": "Rex"})[0] == 9 * 2, "owner may be null"
    assert encode(schema, {"x": 1})[0] == 10 * 2
    # A value may name its branch, as in fastavro.
    assert encode(schema, ("com.acme.Dog", {"name": "Tom"}))[0] == 9 * 2
    assert encode(schema, {"-type": "Dog", "name": "Tom", "lives": 9})[0] == 9 * 2

    class Dog(NamedTuple):
        name: str
        owner: str | None

    assert encode(schema, Dog("Rex", None))[0] == 9 * 2, "the class has the record's name"


def test_a_recursive_type_may_be_nested_up_to_the_limit() -> None:
    schema = record(("next", ["null", "R"]))
    value: Any = None
    for _ in range(avro.DEPTH_MAX):
        value = {"next": value}
    assert decode(schema, encode(schema, value)) == value
    with pytest.raises(avro.Mismatch, match="nested more than 127 levels"):
        encode(schema, {"next": value})
    with pytest.raises(avro.Damaged, match="nested more than 127 levels"):
        decode(schema, b"\x02" * 1_000_000)


#: (schema, value, path, reason)
REFUSED = [
    ("int", "1", "", "must be an int, not str '1'"),
    ("int", True, "", "must be an int, not bool True"),
    ("int", 2**31, "", "must be an int of 32 bits, 2147483648 is too large"),
    ("long", 2**63, "", "must be a long of 64 bits"),
    ("long", 1.0, "", "must be a long, not float 1.0"),
    ("float", 1e300, "", "must be a float of 32 bits"),
    ("double", "1", "", "must be a double, not str '1'"),
    ("double", 10**400, "", "is too large"),
    ("boolean", 1, "", "must be a boolean, not int 1"),
    ("string", b"x", "", "must be a string, not bytes"),
    ("string", "\ud800", "", "UnicodeEncodeError"),
    ("bytes", "x", "", "must be bytes, not str"),
    ("null", 0, "", "must be null"),
    ({"type": "fixed", "name": "F", "size": 2}, b"abc", "", "must be 2 bytes (fixed F), not 3"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "", "must be a symbol of enum E, not 'B'"),
    (ORDER, {"id": 1, "items": [{"sku": "a", "count": 1}, {"sku": "b", "count": "2"}]}, "items[1].count", "an int"),
    (ORDER, {"id": 1}, "items", "is missing, and record Order has no default for it"),
    (ORDER, {"id": 1, "items": "x"}, "items", "must be a list, not str"),
    (ORDER, 5, "", "must be a dict, dataclass or model (record Order), not int 5"),
    (ORDER, {"id": 1, "items": [], "note": 5}, "note", "must be a string, not int 5"),
    (record(("m", {"type": "map", "values": "int"})), {"m": {"k": 1, "bad": "x"}}, "m.bad", "must be an int"),
    (record(("m", {"type": "map", "values": "int"})), {"m": {1: 1}}, "m", "as the key of a map"),
    (record(("u", ["int", "string"])), {"u": b"x"}, "u", "must be one of int, string, not bytes"),
    ({"type": "int", "logicalType": "date"}, datetime.datetime(2013, 1, 1), "", "must be a date"),
    ({"type": "long", "logicalType": "timestamp-millis"}, datetime.datetime(2013, 1, 1), "", "with a time zone"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, decimal.Decimal("1.234"), "", "scale"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, decimal.Decimal("123"), "", "precision"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4}, decimal.Decimal("NaN"), "", "finite"),
    ("double", 2**53 + 1, "", "9007199254740993 would lose digits; pass float(value) if it may"),
    ("float", 2**24 + 1, "", "16777217 would lose digits"),
    (record(("at", {"type": "long", "logicalType": "timestamp-millis"})), {"at": 10**15}, "at", "must be a datetime"),
    ({"type": "long", "logicalType": "timestamp-micros"}, -(2**62), "", "is none"),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, 2**62, "", "must be a local datetime"),
    (
        {"type": "long", "logicalType": "timestamp-millis"},
        datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=5))),
        "",
        "is in another year there",
    ),
    ({"type": "int", "logicalType": "date"}, 10_000_000, "", "must be a date, and 10000000 is none"),
    ({"type": "int", "logicalType": "date"}, numpy.int32(-1_000_000), "", "must be a date"),
    ({"type": "int", "logicalType": "time-millis"}, 86_400_000, "", "must be a time"),
    ({"type": "long", "logicalType": "time-micros"}, -1, "", "must be a time"),
    ({"type": "string", "logicalType": "uuid"}, "no UUID", "", "must be a UUID, and 'no UUID' is none"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4}, b"", "", "it has no bytes"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4}, b"\x27\x10", "", "more than 4 digits"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 2**31 - 1}, bytes(5_000), "", "more than"),
    (
        {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4},
        b"\xd8\xf0",
        "",
        "more than 4 digits",
    ),
]


@pytest.mark.parametrize(("schema", "value", "path", "reason"), REFUSED)
def test_a_wrong_value_is_refused_with_its_path(schema: Any, value: Any, path: str, reason: str) -> None:
    with pytest.raises(avro.Mismatch) as refused:
        encode(schema, value)
    assert reason in refused.value.reason
    assert refused.value.path == path


def test_an_encoder_works_again_after_a_failure() -> None:
    encoder = avro.encoder(avro.parse_document(ORDER), b"\0\0\0\0\1")
    for _ in range(3):
        with pytest.raises(avro.Mismatch):
            encoder.encode({"id": 1, "items": [{"sku": "a" * 5_000, "count": None}]})
        assert encoder.encode({"id": 1, "items": []}) == b"\0\0\0\0\1\x02\x00\x00"


def test_an_encoder_may_be_used_while_it_reads_a_value() -> None:
    encoder = avro.encoder(avro.parse_document(record(("a", "bytes"), ("b", "int"))))

    def a(self: Any) -> bytes:
        return encoder.encode({"a": b"x" * 10_000, "b": 1})

    value = dataclasses.make_dataclass("Sly", [("b", int)], namespace={"a": property(a)})(5)
    inner = encoder.encode({"a": b"x" * 10_000, "b": 1})
    assert encoder.encode(value) == encoder.encode({"a": inner, "b": 5})


@pytest.mark.parametrize(
    ("schema", "data", "path", "reason"),
    [
        ("boolean", b"\x02", "", "a boolean has the byte 2"),
        ("int", b"\xff\xff\xff\xff\x1f", "", "an int has the value"),
        ("long", b"\xff" * 9 + b"\x02", "", "longer than 64 bits"),
        ("long", b"\xff\xff", "", "ends within a number"),
        ("string", b"\x09abc", "", "a length of -5 bytes"),
        ("string", b"\x08abc", "", "a length of 4 bytes, but 3 are left"),
        ("string", b"\x02\xff", "", "UnicodeDecodeError"),
        ("double", b"abc", "", "ends 5 bytes too early"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "", "enum E has no position 1"),
        (["null"], b"\x02", "", "a union of 1 types has no branch 1"),
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "", "a block of"),
        ({"type": "array", "items": "null"}, b"\xff" * 9 + b"\x01\x00", "", "an impossible number of items"),
        ({"type": "array", "items": record()}, b"\x80\xc0\xcf\x24", "", "a block of"),
        (ORDER, b"\x02\x04\x02a\x02\x02b", "items[1].count", "ends within a number"),
        ("int", b"\x02\x02", "", "1 bytes are left after the value"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", "", "rror"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "", "rror"),
        ({"type": "string", "logicalType": "uuid"}, b"\x02x", "", "badly formed"),
    ],
)
def test_damaged_bytes_are_refused_with_the_path(schema: Any, data: bytes, path: str, reason: str) -> None:
    with pytest.raises(avro.Damaged) as refused:
        decode(schema, data)
    assert reason in refused.value.reason
    assert refused.value.path == path


def test_blocks_with_sizes_are_read() -> None:
    """A writer may give a block's size in bytes, as a negative count and the size."""
    assert decode({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x02\x06\x00") == [1, 2, 3]
    assert decode({"type": "map", "values": "int"}, b"\x01\x06\x02a\x02\x00") == {"a": 1}


def test_many_items_without_bytes_are_bounded() -> None:
    schema = {"type": "array", "items": "null"}
    assert len(decode(schema, encode(schema, [None] * 90_000))) == 90_000
    with pytest.raises(avro.Damaged, match="a block of 1000000 items"):
        decode(schema, encode("long", 1_000_000) + b"\0")


# --- against fastavro -------------------------------------------------------------------------------------------------

_PLAIN: list[tuple[str, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=20)),
    ("string", st.text(max_size=20)),
]


@st.composite
def schemas_with_values(draw: st.DrawFn, depth: int = 0) -> tuple[Any, Any]:
    kind = draw(st.sampled_from(["plain", "enum", "fixed", "array", "map", "record", "union"][: 3 if depth > 2 else 7]))
    name = f"N{draw(st.uuids()).hex}"
    if kind == "plain":
        schema, values = draw(st.sampled_from(_PLAIN))
        return schema, draw(values)
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, draw(st.sampled_from("ABC"))
    if kind == "fixed":
        size = draw(st.integers(0, 20))
        return {"type": "fixed", "name": name, "size": size}, draw(st.binary(min_size=size, max_size=size))
    if kind in ("array", "map"):
        schema, value = draw(schemas_with_values(depth=depth + 1))
        count = draw(st.integers(0, 3))
        if kind == "array":
            return {"type": "array", "items": schema}, [value] * count
        return {"type": "map", "values": schema}, dict.fromkeys(["a", "ä", ""][:count], value)
    if kind == "union":
        schema, value = draw(schemas_with_values(depth=depth + 1).filter(lambda each: not _is_union(each[0])))
        if schema == "null":
            return ["null", "long"], value
        return ["null", schema], draw(st.sampled_from([value, None]))
    fields = draw(st.lists(schemas_with_values(depth=depth + 1), max_size=4))
    return record(*((f"f{at}", schema) for at, (schema, _) in enumerate(fields)), name=name), {
        f"f{at}": value for at, (_, value) in enumerate(fields)
    }


def _is_union(schema: Any) -> bool:
    return isinstance(schema, list)


@given(schemas_with_values())
def test_any_value_has_fastavros_bytes_and_comes_back(pair: tuple[Any, Any]) -> None:
    schema, value = pair
    data = encode(schema, value)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    assert data == out.getvalue()
    assert decode(schema, data) == value


@given(schemas_with_values(), st.data())
def test_damaged_values_raise_damaged_and_nothing_else(pair: tuple[Any, Any], data: st.DataObject) -> None:
    schema, value = pair
    whole = encode(schema, value)
    cut = data.draw(st.integers(0, len(whole)))
    changed = bytearray(whole[:cut] + data.draw(st.binary(max_size=12)))
    decoder = avro.decoder(avro.parse_document(schema))
    try:
        found = decoder.decode(bytes(changed))
    except avro.Damaged:
        return
    assert decoder.decode(encode(schema, found)) == found or _has_nan(found)


def _has_nan(value: Any) -> bool:
    if isinstance(value, float):
        return math.isnan(value)
    if isinstance(value, dict):
        return any(map(_has_nan, value.values()))
    return isinstance(value, list) and any(map(_has_nan, value))


# --- schemas ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ("{", "", "is not valid JSON"),
        ("[" * 100_000, "", "nested too deep"),
        (json.dumps({"type": "array", "items": {"type": "strin"}}), "items.type", "unknown type 'strin'"),
        (json.dumps(record(("a", "int"), ("a", "int"))), "fields[1]", "record R has the field a twice"),
        (json.dumps(record(("a b", "int"))), "fields[0]", "'a b' is not a valid field name"),
        (json.dumps(record(("a", "Other"))), "fields[0].type", "unknown type 'Other'"),
        (json.dumps([["null"]]), "", "a union contains a union"),
        (json.dumps(["int", {"type": "int"}]), "", "a union has two branches int"),
        (
            json.dumps({"type": "fixed", "name": "F", "size": -1}),
            "",
            "fixed F: the size -1 is not a whole number from 0 to",
        ),
        (json.dumps({"type": "enum", "name": "E", "symbols": ["A", "A"]}), "", "has a symbol twice"),
        (json.dumps({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}), "", "is not a symbol of enum E"),
        (json.dumps({"type": "record", "name": "R"}), "", "has no list of fields"),
        (json.dumps({"type": "record", "name": "1R", "fields": []}), "", "'1R' is not a valid record name"),
        (json.dumps({"name": "R"}), "", "a type has no key `type`"),
        (json.dumps(5), "", "a type must be a name, an object or a list"),
        (json.dumps([record(name="A"), record(name="A")]), "[1]", "A is defined twice"),
    ],
)
def test_a_wrong_schema_is_refused_with_its_place(text: str, path: str, reason: str) -> None:
    with pytest.raises(avro.AvroSchemaError) as refused:
        avro.parse(text)
    assert reason in refused.value.reason
    assert refused.value.path == path


def test_a_schema_of_many_levels_is_refused() -> None:
    schema: Any = "int"
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    with pytest.raises(avro.AvroSchemaError, match="nested more than 100 levels"):
        avro.parse(json.dumps(schema))


def test_a_schema_of_more_than_5_mib_is_refused() -> None:
    with pytest.raises(avro.AvroSchemaError, match="the limit is 5,242,880"):
        avro.parse('"' + "x" * 6_000_000 + '"')


def test_names_are_found_in_their_namespace_and_in_references() -> None:
    inner = json.dumps({"type": "enum", "name": "com.acme.Kind", "symbols": ["A", "B"]})
    middle = json.dumps(record(("kind", "com.acme.Kind"), name="com.acme.Middle"))
    outer = {"type": "record", "namespace": "com.acme", "name": "Outer", "fields": []}
    outer["fields"] = [{"name": "m", "type": "Middle"}, {"name": "k", "type": "Kind"}]
    parsed = avro.parse(json.dumps(outer), [inner, middle])
    assert avro.encoder(parsed).encode({"m": {"kind": "B"}, "k": "A"}) == b"\x02\x00"
    assert parsed.name == "com.acme.Outer"


def test_a_wrong_default_matters_only_to_a_value_that_needs_it() -> None:
    schema = record(("a", "int"))
    schema["fields"][0]["default"] = "x"
    assert encode(schema, {"a": 1}) == b"\2"
    with pytest.raises(avro.Mismatch, match="is missing, and the default of field a of record R: must be an int"):
        encode(schema, {})


def test_defaults_that_double_with_each_level_are_refused_fast() -> None:
    kind: Any = "int"
    for level in range(60):
        fields = [{"name": name, "type": kind, "default": {} if level else 0} for name in "ab"]
        fields[1]["type"] = f"R{level - 1}" if level else kind
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    with pytest.raises(avro.Mismatch, match="the defaults consist of more than 50,000 values"):
        encode(kind, {})


def test_types_that_refer_to_each_other_over_too_many_levels_are_refused() -> None:
    kinds: list[Any] = [record(("a", "int"), name="R0")]
    kinds += [record(("a", f"R{number - 1}"), name=f"R{number}") for number in range(1, 2_000)]
    parsed = avro.parse('"R1999"', map(json.dumps, kinds))
    for build in (avro.encoder, avro.decoder):
        with pytest.raises(avro.Unresolvable, match="over too many levels"):
            build(parsed)


def test_a_union_of_alike_records_is_written_fast() -> None:
    """Each branch suits each value: looking at all levels would take 3^60 steps."""
    names = ("Add", "Sub", "Mul")
    operand: list[Any] = ["null", *names]
    records = [record(("left", ["null"]), ("right", ["null"]), name=name) for name in names]
    first = records[0]
    first["fields"][0]["type"] = ["null", "Add", *records[1:]]
    for each in records[1:]:
        for field in each["fields"]:
            field["type"] = ["null", "Add"]
    first["fields"][1]["type"] = operand
    value: Any = None
    for _ in range(60):
        value = {"left": value, "right": value if value is None else {"left": None, "right": None}}
    assert decode(first, encode(first, value))["left"]["left"] is not None


def test_numpys_booleans_are_booleans() -> None:
    assert encode("boolean", numpy.bool_(True)) == b"\1"
    assert encode(["null", "boolean"], numpy.bool_(False)) == b"\2\0"
