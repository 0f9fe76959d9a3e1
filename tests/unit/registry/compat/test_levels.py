"""The compatibility levels: who must read whose data, of which versions; and the words of the answers."""

from __future__ import annotations

import json

import pytest

from headrace_registry.compat import Incompatibility, Level, check
from headrace_registry.schemas import Parsed, Reference, Schema, SchemaType, parse


def record(**fields: str) -> Parsed:
    """A record with fields of the type int: "default" for a field with a default, "plain" for one without."""
    each = [
        {"name": name, "type": "int", **({"default": 0} if kind == "default" else {})} for name, kind in fields.items()
    ]
    return parse(Schema(SchemaType.AVRO, json.dumps({"type": "record", "name": "R", "fields": each})), {})


A, AB, ABC = record(a="plain"), record(a="plain", b="default"), record(a="plain", b="default", c="default")
AB_PLAIN, B_PLAIN = record(a="plain", b="plain"), record(b="plain")

BACKWARD, FORWARD = (Level.BACKWARD, Level.BACKWARD_TRANSITIVE), (Level.FORWARD, Level.FORWARD_TRANSITIVE)
FULL = (Level.FULL, Level.FULL_TRANSITIVE)


@pytest.mark.parametrize(
    ("new", "earlier", "refusing"),
    [
        (AB, [A], ()),
        (A, [AB], ()),
        (AB_PLAIN, [A], (*BACKWARD, *FULL)),
        (A, [AB_PLAIN], (*FORWARD, *FULL)),
        # Confluent's example of transitivity: a default that the second version has and the third one lacks
        (AB_PLAIN, [A, AB], (Level.BACKWARD_TRANSITIVE, Level.FULL_TRANSITIVE)),
        (A, [AB_PLAIN, AB], (Level.FORWARD_TRANSITIVE, Level.FULL_TRANSITIVE)),
        (ABC, [A, AB, ABC], ()),
        (B_PLAIN, [A], (*BACKWARD, *FORWARD, *FULL)),
        (A, [], ()),
    ],
)
def test_level_says_who_must_read_whose_data(new: Parsed, earlier: list[Parsed], refusing: tuple[Level, ...]) -> None:
    assert {level for level in Level if check(level, new, earlier)} == set(refusing)


def test_the_first_incompatible_version_from_the_latest_ends_the_check() -> None:
    found = check(Level.BACKWARD_TRANSITIVE, AB_PLAIN, [A, A, AB, A, AB])
    assert [(one.kind, one.earlier) for one in found] == [("READER_FIELD_MISSING_DEFAULT_VALUE", 3)]


def test_full_reports_both_directions() -> None:
    found = check(Level.FULL, B_PLAIN, [A])
    assert [str(one) for one in found] == [
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'b' at path '/fields/0' in the new "
        "schema has no default value and is missing in the old schema', additionalInfo:'b'}",
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'a' at path '/fields/0' in the old "
        "schema has no default value and is missing in the new schema', additionalInfo:'a'}",
    ]


def avro(text: str) -> Parsed:
    return parse(Schema(SchemaType.AVRO, text), {})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            '"int"',
            '"string"',
            "{errorType:'TYPE_MISMATCH', description:'The type (path '/') of a field in the new schema does not match "
            "with the old schema', additionalInfo:'reader type: STRING not compatible with writer type: INT'}",
        ),
        (
            '["null", "int"]',
            '["null"]',
            "{errorType:'MISSING_UNION_BRANCH', description:'The new schema is missing a type inside a union field at "
            "path '/1' in the old schema', additionalInfo:'reader union lacking writer type: INT'}",
        ),
        (
            '{"type": "enum", "name": "E", "symbols": ["C", "B", "A"]}',
            '{"type": "enum", "name": "E", "symbols": ["A"]}',
            "{errorType:'MISSING_ENUM_SYMBOLS', description:'The new schema is missing enum symbols '[B, C]' at path "
            "'/symbols' in the old schema', additionalInfo:'[B, C]'}",
        ),
        (
            '{"type": "fixed", "name": "F", "size": 2}',
            '{"type": "fixed", "name": "F", "size": 3}',
            "{errorType:'FIXED_SIZE_MISMATCH', description:'The size of FIXED type field at path '/size' in the new "
            "schema does not match with the old schema', additionalInfo:'expected: 2, found: 3'}",
        ),
        (
            '{"type": "fixed", "name": "a.F", "size": 2}',
            '{"type": "fixed", "name": "a.G", "size": 2}',
            "{errorType:'NAME_MISMATCH', description:'The name of the schema has changed (path '/name')', "
            "additionalInfo:'expected: a.F'}",
        ),
    ],
)
def test_avro_is_reported_in_confluents_words(old: str, new: str, words: str) -> None:
    assert [str(one) for one in check(Level.BACKWARD, avro(new), [avro(old)])] == [words]


def test_json_and_protobuf_are_reported_in_confluents_words() -> None:
    old = parse(Schema(SchemaType.JSON, '{"type": "string"}'), {})
    new = parse(Schema(SchemaType.JSON, '{"type": "string", "maxLength": 3}'), {})
    assert [str(one) for one in check(Level.BACKWARD, new, [old])] == [
        '{errorType:"MAX_LENGTH_ADDED", description:"The keyword at path \'#/maxLength\' in the new schema is not '
        'present in the old schema"}'
    ]
    old = parse(Schema(SchemaType.PROTOBUF, 'syntax = "proto3"; message M { int32 a = 1; }'), {})
    new = parse(Schema(SchemaType.PROTOBUF, 'syntax = "proto3"; message M { string a = 1; }'), {})
    assert [str(one) for one in check(Level.FORWARD, new, [old])] == [
        '{errorType:"FIELD_SCALAR_KIND_CHANGED", description:"The kind of a SCALAR field at path \'#/M/1\' in the old '
        'schema does not match its kind in the new schema"}'
    ]


def test_words_survive_braces_and_signs_in_names() -> None:
    old = parse(Schema(SchemaType.JSON, '{"properties": {"{reader}%s": {"type": "string"}}}'), {})
    new = parse(Schema(SchemaType.JSON, '{"properties": {"{reader}%s": {"type": "number"}}}'), {})
    (found,) = check(Level.BACKWARD, new, [old])
    assert found.path == "#/properties/{reader}%s"
    assert found.reason == (
        "A type at path '#/properties/{reader}%s' is different between the new schema and the old schema"
    )


def test_another_language_is_incompatible() -> None:
    new = parse(Schema(SchemaType.JSON, "{}"), {})
    found = check(Level.FULL, new, [A])
    assert (
        found
        == [Incompatibility("SCHEMA_TYPE_CHANGED", "/", "Incompatible because of different schema type", None, 0)] * 2
    )
    assert str(found[0]) == "Incompatible because of different schema type"
    assert check(Level.NONE, new, [A]) == []


def _proto(text: str, name: str = "", imported: str = "", version: int = 1) -> Parsed:
    references = (Reference(name, f"{name}-subject", version),) if name else ()
    resolved = {name: Schema(SchemaType.PROTOBUF, 'syntax = "proto3"; ' + imported)} if name else {}
    return parse(Schema(SchemaType.PROTOBUF, 'syntax = "proto3"; ' + text, references), resolved)


USER = 'import "h.proto"; message T { .p.Home home = 1; }'
LOCAL = "message T { Home home = 1; } message Home { int32 id = 1; }"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        # the imported file has another version, whose message changed
        (
            _proto(USER, "h.proto", "package p; message Home { int32 id = 1; }"),
            _proto(USER, "h.proto", "package p; message Home { string id = 1; }", version=2),
            ["FIELD_SCALAR_KIND_CHANGED #/Home/1", "FIELD_NAMED_TYPE_CHANGED #/T/1"],
        ),
        # the same version is not compared again
        (
            _proto(USER, "h.proto", "package p; message Home { int32 id = 1; }"),
            _proto(USER, "h.proto", "package p; message Home { string id = 1; }"),
            [],
        ),
        # the package of an imported file does not count
        (
            _proto(USER, "h.proto", "package p; message Home { int32 id = 1; }"),
            _proto(USER.replace(".p.", ".q."), "h.proto", "package q; message Home { int32 id = 1; }", version=2),
            [],
        ),
        # a message moves to an imported file and back
        (
            _proto(LOCAL),
            _proto(USER, "h.proto", "package p; message Home { int32 id = 1; }"),
            ["MESSAGE_REMOVED #/Home"],
        ),
        (_proto(USER, "h.proto", "package p; message Home { int32 id = 1; }"), _proto(LOCAL), []),
    ],
)
def test_imported_messages_are_compared(old: Parsed, new: Parsed, expected: list[str]) -> None:
    assert [f"{one.kind} {one.path}" for one in check(Level.BACKWARD, new, [old])] == expected


def test_avro_types_of_references_are_compared() -> None:
    def person(kind: str) -> Parsed:
        home = Schema(SchemaType.AVRO, f'{{"type":"record","name":"Home","fields":[{{"name":"id","type":"{kind}"}}]}}')
        text = '{"type": "record", "name": "P", "fields": [{"name": "home", "type": "Home"}]}'
        return parse(Schema(SchemaType.AVRO, text, (Reference("Home", "home", 1),)), {"Home": home})

    assert check(Level.BACKWARD, person("long"), [person("int")]) == []
    assert [one.path for one in check(Level.BACKWARD, person("int"), [person("long")])] == [
        "/fields/0/type/fields/0/type"
    ]
