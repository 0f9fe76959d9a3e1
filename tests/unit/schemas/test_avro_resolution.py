"""A reader's schema against a writer's: the specification's rules ("Schema Resolution"), and what fastavro reads."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest

from headrace.schemas import avro


def read(writer: Any, reader: Any, value: Any) -> Any:
    written, wanted = avro.parse_document(writer), avro.parse_document(reader)
    data = avro.encoder(written).encode(value)
    found = avro.decoder(written, wanted).decode(data)
    assert avro.decoder(written).decode(data) == value, "the writer's own schema reads it too"
    return found


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    listed = [each if isinstance(each, dict) else {"name": each[0], "type": each[1]} for each in fields]
    return {"type": "record", "name": name, "fields": listed} | more


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind} | more


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols)} | more


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}

#: (writer, reader, value, what the reader gets)
RESOLVED = [
    # promotions
    ("int", "long", 5, 5),
    ("int", "float", 5, 5.0),
    ("int", "double", 5, 5.0),
    ("long", "float", 2**24 + 1, float(2**24)),
    ("long", "double", 5, 5.0),
    ("float", "double", 0.5, 0.5),
    ("string", "bytes", "é", "é".encode()),
    ("bytes", "string", "é".encode(), "é"),
    # containers
    ({"type": "array", "items": "int"}, {"type": "array", "items": "double"}, [1, 2], [1.0, 2.0]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}, {"a": 1}, {"a": 1}),
    # records: fields by name, skipped, with defaults, renamed by alias
    (record(("a", "int"), ("b", "int")), record(("b", "int"), ("a", "long")), {"a": 1, "b": 2}, {"a": 1, "b": 2}),
    (record(("a", "int"), ("b", "string")), record(("a", "int")), {"a": 1, "b": "x"}, {"a": 1}),
    (record(("a", "int")), record(("a", "int"), field("b", "int", default=7)), {"a": 1}, {"a": 1, "b": 7}),
    (record(), record(field("l", {"type": "array", "items": "int"}, default=[1])), {}, {"l": [1]}),
    (record(), record(field("m", {"type": "map", "values": "int"}, default={"k": 1})), {}, {"m": {"k": 1}}),
    (record(), record(field("u", ["null", "int"], default=None)), {}, {"u": None}),
    (record(), record(field("u", ["int", "null"], default=3)), {}, {"u": 3}),
    (record(), record(field("b", "bytes", default="\u00ff")), {}, {"b": b"\xff"}),
    (record(), record(field("e", enum("A", "B"), default="B")), {}, {"e": "B"}),
    (record(), record(field("r", record(("x", "int"), name="In"), default={"x": 1})), {}, {"r": {"x": 1}}),
    (record(("old", "int")), record(field("new", "int", aliases=["old"])), {"old": 1}, {"new": 1}),
    (record(("a", "int"), name="Old"), record(("a", "int"), name="New", aliases=["Old"]), {"a": 1}, {"a": 1}),
    (record(("a", "int"), name="x.R"), record(("a", "int"), name="y.R"), {"a": 1}, {"a": 1}),
    # skipping every type
    (
        record(
            ("l", {"type": "array", "items": "string"}),
            ("m", {"type": "map", "values": "bytes"}),
            ("u", ["null", "double"]),
            ("f", {"type": "fixed", "name": "F", "size": 3}),
            ("e", enum("A", "B")),
            ("r", record(("x", "float"), ("y", "boolean"), name="In")),
            ("d", DECIMAL),
            ("last", "long"),
        ),
        record(("last", "long")),
        {
            "l": ["a", "b"], "m": {"k": b"v"}, "u": 1.5, "f": b"abc", "e": "B", "r": {"x": 0.5, "y": True},
            "d": __import__("decimal").Decimal("1.50"), "last": 9,
        },
        {"last": 9},
    ),
    # enums
    (enum("A", "B"), enum("B", "A"), "A", "A"),
    (enum("A", "B"), enum("A", default="A"), "B", "A"),
    # unions
    (["null", "int"], ["null", "long"], 5, 5),
    (["null", "int"], "int", 5, 5),
    ("int", ["null", "int"], 5, 5),
    ("int", ["string", "double"], 5, 5.0),
    ("int", ["double", "int"], 5, 5),
    (["int", "string"], ["bytes", "double"], "x", b"x"),
    (
        ["null", record(("a", "int"), name="A"), record(("a", "int"), name="B")],
        ["null", record(("a", "int"), field("z", "int", default=0), name="B"), record(("a", "long"), name="A")],
        {"a": 1},
        {"a": 1},
    ),
    # a type that contains itself
    (
        record(("v", "int"), ("next", ["null", "R"])),
        record(("next", ["null", "R"]), ("v", "double")),
        {"v": 1, "next": {"v": 2, "next": None}},
        {"v": 1.0, "next": {"v": 2.0, "next": None}},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("writer", "reader", "value", "expected"), RESOLVED)
def test_a_reader_gets_what_the_specification_says(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    found = read(writer, reader, value)
    assert found == expected
    assert repr(found) == repr(expected) or isinstance(expected, dict), "ints and floats are told apart"


def _by_fastavro(writer: Any, reader: Any, value: Any) -> Any:
    data = avro.encoder(avro.parse_document(writer)).encode(value)
    schemas = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    return fastavro.schemaless_reader(io.BytesIO(data), *schemas)


#: Where fastavro departs from the specification: a long as float keeps bits that a float does not have, and the default
#: of bytes stays text.
DEPARTS = [("long", "float"), (record(), record(field("b", "bytes", default="\u00ff")))]


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"), [each for each in RESOLVED if each[:2] not in DEPARTS]
)
def test_fastavro_reads_the_same(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert _by_fastavro(writer, reader, value) == expected


@pytest.mark.parametrize(("writer", "reader", "value", "expected"), [each for each in RESOLVED if each[:2] in DEPARTS])
def test_fastavro_departs_from_the_specification(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert _by_fastavro(writer, reader, value) != expected


#: (writer, reader, path, reason)
UNRESOLVABLE = [
    ("long", "int", "", "the writer's long cannot be read as int"),
    ("double", "float", "", "the writer's double cannot be read as float"),
    ("string", "int", "", "the writer's string cannot be read as int"),
    ("boolean", "int", "", "the writer's boolean cannot be read as int"),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, "[]", "long cannot be read as int"),
    (record(("a", "int")), record(("a", "int"), ("b", "int")), "b", "the reader's field b of record R has no default"),
    (record(("a", "string")), record(("a", "int")), "a", "string cannot be read as int"),
    (record(("a", record(("x", "long"), name="In"))), record(("a", record(("x", "int"), name="In"))), "a.x", "long"),
    (record(("a", "int"), name="A"), record(("a", "int"), name="B"), "", "give B the alias A"),
    ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "", "the reader's has 3"),
    (DECIMAL, DECIMAL | {"scale": 1}, "", "the writer's decimal has scale 2, the reader's has 1"),
    ("int", ["string", "null"], "", "int fits no branch of the reader's union (string, null)"),
    (["string", "boolean"], "int", "", "no branch of the writer's union can be read as int"),
    (record(("a", "int")), {"type": "map", "values": "int"}, "", "the writer's record R cannot be read as map"),
]


@pytest.mark.parametrize(("writer", "reader", "path", "reason"), UNRESOLVABLE)
def test_schemas_that_do_not_fit_are_refused_with_the_field(writer: Any, reader: Any, path: str, reason: str) -> None:
    with pytest.raises(avro.Unresolvable) as refused:
        avro.decoder(avro.parse_document(writer), avro.parse_document(reader))
    assert reason in refused.value.reason
    assert refused.value.path == path


def test_a_branch_that_does_not_fit_matters_only_to_values_that_have_it() -> None:
    writer, reader = avro.parse_document(["null", "int", "string"]), avro.parse_document("long")
    encode, decode = avro.encoder(writer).encode, avro.decoder(writer, reader).decode
    assert decode(encode(5)) == 5
    with pytest.raises(avro.Unreadable, match="the value is a string: the writer's string cannot be read as long"):
        decode(encode("x"))


def test_a_symbol_that_the_reader_lacks_matters_only_to_values_that_have_it() -> None:
    writer, reader = avro.parse_document(record(("e", enum("A", "B")))), avro.parse_document(record(("e", enum("A"))))
    encode, decode = avro.encoder(writer).encode, avro.decoder(writer, reader).decode
    assert decode(encode({"e": "A"})) == {"e": "A"}
    with pytest.raises(avro.Unreadable, match="the symbol B is unknown to the reader's enum E") as refused:
        decode(encode({"e": "B"}))
    assert refused.value.path == "e"


def test_a_pair_that_failed_once_is_no_reader_for_another_branch() -> None:
    """The reader's union names the same record twice: within A, which does not fit, and within B."""
    inner = record(("list", {"type": "array", "items": "string"}), ("next", ["null", "Inner"]), name="Inner")
    writer = record(("x", inner), name="Top")
    wrong = record(("list", {"type": "array", "items": "int"}), ("next", ["null", "Inner"]), name="Inner")
    reader = [
        record(("x", wrong), name="Top", namespace="a"),
        record(("x", "a.Inner"), field("y", "int", default=1), name="Top", namespace="b"),
        {"type": "map", "values": "a.Inner"},
    ]
    reader[0]["fields"][0]["type"]["namespace"] = "a"  # type: ignore[index]
    with pytest.raises(avro.Unresolvable, match="string cannot be read as int"):
        avro.decoder(avro.parse_document(writer), avro.parse_document(reader))


def test_a_reader_that_found_an_unfit_type_refuses_its_values() -> None:
    """B reads the writer's R before it turns out that R does not fit; the union's other branch is taken."""
    writer = record(("b", ["null", record(("r", ["null", "R"]), name="B")]), ("late", "string"))
    reader = record(("b", ["null", record(("r", ["null", "R"]), name="B")]), ("late", "int"))
    written, wanted = avro.parse_document(["null", writer]), avro.parse_document(["null", reader])
    decode = avro.decoder(written, wanted).decode
    encode = avro.encoder(written).encode
    assert decode(encode(None)) is None
    with pytest.raises(avro.Unreadable, match="string cannot be read as int"):
        decode(encode({"b": {"r": {"b": None, "late": "x"}}, "late": "y"}))


def test_many_alike_records_are_resolved_fast() -> None:
    """60 records that refer to each other, of which no pair fits."""
    names = [f"R{number}" for number in range(60)]

    def schemas(last: str) -> Any:
        made: list[Any] = []
        for number, name in enumerate(names):
            made.append(record(("next", ["null", *names[:number]]), ("last", last), name=name))
        return made

    with pytest.raises(avro.Unresolvable) as refused:
        avro.decoder(avro.parse_document(schemas("string")), avro.parse_document(schemas("int")))
    assert len(refused.value.reason) < 1_000


def test_defaults_are_not_shared_between_records() -> None:
    writer = avro.parse_document(record())
    reader = avro.parse_document(record(field("l", {"type": "array", "items": "int"}, default=[])))
    decode = avro.decoder(writer, reader).decode
    decode(b"")["l"].append(1)
    assert decode(b"") == {"l": []}


def test_a_name_is_preferred_to_an_alias() -> None:
    writer = record(("old", "int"), ("new", "int"))
    reader = record(field("new", "int", aliases=["old"]))
    assert read(writer, reader, {"old": 1, "new": 2}) == {"new": 2}
