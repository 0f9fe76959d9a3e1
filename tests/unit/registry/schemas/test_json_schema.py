"""JSON Schemas: the canonical and normalized text, references, and what is refused where."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace_registry.compat import Level, check
from headrace_registry.schemas import InvalidSchemaError, Parsed, Reference, Schema, SchemaType, parse


def schema(value: Any, **resolved: Any) -> Parsed:
    """Parse a schema of JSON or of a text; the names of references have "__" for a dot."""
    texts = {name.replace("__", "."): _text(one) for name, one in resolved.items()}
    references = tuple(Reference(name, name, 1) for name in texts)
    return parse(
        Schema(SchemaType.JSON, _text(value), references),
        {name: Schema(SchemaType.JSON, text) for name, text in texts.items()},
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def problems(old: Parsed, new: Parsed) -> list[str]:
    return [f"{one.kind} {one.path}" for one in check(Level.BACKWARD, new, [old])]


def test_canonical_text_keeps_keys_and_digits() -> None:
    text = '{ "type" : "number", "minimum": 1.50, "maximum": 1E+3, "title": "é\\u0007/", "minimum": 1.0 }'
    assert schema(text).canonical == '{"type":"number","minimum":1.0,"maximum":1E+3,"title":"é\\u0007/"}'
    assert schema(text).normalized == '{"maximum":1E+3,"minimum":1.0,"title":"é\\u0007/","type":"number"}'
    assert schema(schema(text).canonical).canonical == schema(text).canonical


def test_booleans_are_schemas() -> None:
    assert schema("true").canonical == "true"
    assert schema(" false ").canonical == "false"


INVALID = [
    ("[]", "a JSON Schema is an object or a boolean, not array"),
    ("{", "the schema is not valid JSON: Expecting property name enclosed in double quotes at line 1, column 2"),
    ('{"type": "text"}', 'at /type: "text" is not a type of JSON Schema'),
    ('{"type": ["string", 1]}', "at /type/1: 1 is not a type of JSON Schema"),
    ('{"properties": []}', "at /properties: properties is an object, not array"),
    ('{"properties": {"a/b": 1}}', "at /properties/a~1b: a schema is an object or a boolean, not number"),
    ('{"items": {"required": "a"}}', "at /items/required: required is an array, not string"),
    ('{"required": [1]}', "at /required: the names of properties are strings"),
    ('{"oneOf": {}}', "at /oneOf: oneOf is an array, not object"),
    ('{"allOf": [{}, null]}', "at /allOf/1: a schema is an object or a boolean, not null"),
    ('{"enum": 1}', "at /enum: enum is an array, not number"),
    ('{"not": []}', "at /not: a schema is an object"),
    ('{"maxItems": 1.5}', "at /maxItems: maxItems is a whole number"),
    ('{"maximum": "1"}', "at /maximum: maximum is a number, not string"),
    ('{"minimum": true}', "at /minimum: minimum is a number, not boolean"),
    ('{"exclusiveMinimum": true}', "at /exclusiveMinimum: exclusiveMinimum is a number, not boolean"),
    ('{"multipleOf": 0}', "at /multipleOf: multipleOf must be above 0"),
    ('{"uniqueItems": 1}', "at /uniqueItems: uniqueItems is a boolean, not number"),
    ('{"pattern": 1}', "at /pattern: a pattern is a string, not number"),
    ('{"pattern": "(a"}', 'at /pattern: the regular expression "(a" is wrong: missing )'),
    ('{"patternProperties": {"[a": {}}}', 'at /patternProperties/[a: the regular expression "[a" is wrong'),
    ('{"dependencies": {"a": 1}}', "at /dependencies/a: a schema is an object or a boolean"),
    ('{"if": 1}', "at /if: a schema is an object or a boolean"),
    ('{"contains": 1}', "at /contains: a schema is an object or a boolean"),
    ('{"$ref": 1}', "at /$ref: a reference is a string, not number"),
    ('{"$ref": "#"}', "at /$ref: the reference leads only to itself"),
    ('{"$ref": "#/definitions/a"}', 'at /$ref: "#/definitions/a" leads to no schema'),
    ('{"$ref": "#a"}', 'at /$ref: no schema has the anchor "a"'),
    ('{"$ref": "other.json"}', 'at /$ref: no schema for "other.json"; add a reference with the name "other.json"'),
    ('{"$id": "http://x/y", "items": {"$ref": "http://[::/x"}}', 'at /items: "http://[::/x" is not a URI'),
    ('{"maximum": 1e9999999999999999999}', "the exponent of the number"),
    ('{"title": "\\ud83d"}', "half of a surrogate pair"),
]


@pytest.mark.parametrize(("text", "problem"), INVALID, ids=[problem for _, problem in INVALID])
def test_invalid_schema_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchemaError) as error:
        schema(text)
    assert problem in error.value.message


def test_what_no_reference_reaches_is_not_read() -> None:
    schema({"definitions": {"a": {"type": "nonsense"}}, "default": {"$ref": "nowhere"}})
    with pytest.raises(InvalidSchemaError, match='at /definitions/a/type: "nonsense"'):
        schema({"definitions": {"a": {"type": "nonsense"}}, "$ref": "#/definitions/a"})


def test_expressions_that_only_java_has_are_accepted() -> None:
    for pattern in ("(?=a)b", "(a)\\1", "a++", "\\p{IsAlphabetic}", "a{2000}"):
        schema({"pattern": pattern, "patternProperties": {pattern: {}}})


def test_a_property_of_an_expression_that_re2_lacks_counts_as_uncovered() -> None:
    old = {"properties": {"ab": {"type": "string"}}, "additionalProperties": False}
    new = {"patternProperties": {"(?=a)": {"type": "string"}}, "additionalProperties": False}
    assert problems(schema(old), schema(new)) == ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL #/properties/ab"]


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("address.json", "address.json"),
        ("address.json#/definitions/a", "address.json"),
        ("./address.json", "address.json"),
        ("http://x.example/address.json", "http://x.example/address.json"),
    ],
)
def test_a_reference_leads_to_another_schema(reference: str, name: str) -> None:
    def home(kind: str) -> Parsed:
        address = {"type": kind, "definitions": {"a": {"type": kind}}}
        return schema({"properties": {"home": {"$ref": reference}}}, **{name.replace(".", "__"): address})

    assert problems(home("string"), home("string")) == []
    assert problems(home("string"), home("number")) == ["TYPE_CHANGED #/properties/home"]


def test_a_reference_is_relative_to_the_id() -> None:
    def home(kind: str) -> Parsed:
        value = {"$id": "http://x.example/a/person.json", "properties": {"home": {"$ref": "address.json"}}}
        return schema(value, address__json={"$id": "http://x.example/a/address.json", "type": kind})

    assert problems(home("string"), home("number")) == ["TYPE_CHANGED #/properties/home"]


def test_a_nested_id_moves_the_base() -> None:
    def nested(kind: str) -> Parsed:
        return schema(
            {
                "$id": "http://x.example/root.json",
                "properties": {"a": {"$id": "inner/a.json", "items": {"$ref": "b.json"}}},
                "definitions": {"b": {"$id": "inner/b.json", "type": kind}},
            }
        )

    assert problems(nested("string"), nested("number")) == ["TYPE_CHANGED #/properties/a/items"]


def test_references_lead_from_schema_to_schema() -> None:
    def chain(kind: str) -> Parsed:
        texts = {
            "b": Schema(SchemaType.JSON, '{"items": {"$ref": "c"}}', (Reference("c", "c", 1),)),
            "c": Schema(SchemaType.JSON, f'{{"type": "{kind}"}}'),
        }
        return parse(Schema(SchemaType.JSON, '{"$ref": "b"}', (Reference("b", "b", 1),)), texts)

    assert problems(chain("string"), chain("number")) == ["TYPE_CHANGED #/items"]


def test_escapes_of_pointers_are_understood() -> None:
    value = {"$ref": "#/definitions/a~1b%25~0", "definitions": {"a/b%~": {"type": "string"}}}
    assert problems(schema({"type": "string"}), schema(value)) == []
    assert problems(schema({"type": "number"}), schema(value)) == ["TYPE_CHANGED #/"]


def test_a_meta_schema_accepts_everything() -> None:
    value = {"properties": {"s": {"$ref": "http://json-schema.org/draft-07/schema#"}}}
    assert problems(schema({"properties": {"s": {"type": "string"}}}), schema(value)) == []


def test_the_same_definition_reached_twice_is_one_node() -> None:
    value = {
        "properties": {"a": {"$ref": "#/definitions/x"}, "b": {"$ref": "#/definitions/x"}},
        "definitions": {"x": {"type": "string"}},
    }
    other = json.loads(json.dumps(value).replace("string", "number"))
    assert problems(schema(value), schema(other)) == ["TYPE_CHANGED #/properties/a", "TYPE_CHANGED #/properties/b"]


@pytest.mark.parametrize(
    "text",
    [
        r'{"pattern": "\ud800"}',
        r'{"patternProperties": {"^\udfff": {}}}',
        r'{"patternProperties": {"^a": {}}, "properties": {"\udc00": {}}}',
        r'{"enum": ["\ud83d\u0041"]}',
        r'{"title": "\ude00\ud83d"}',
    ],
)
def test_half_of_a_surrogate_pair_is_refused_wherever_it_is(text: str) -> None:
    with pytest.raises(InvalidSchemaError, match="half of a surrogate pair"):
        parse(Schema(SchemaType.JSON, text), {})


def test_a_whole_surrogate_pair_is_a_character() -> None:
    parsed = parse(Schema(SchemaType.JSON, r'{"pattern": "\ud83d\ude00"}'), {})
    assert parsed.canonical == '{"pattern":"\U0001f600"}'


@pytest.mark.parametrize("digits", [401, 100_000])
def test_multiples_of_very_many_digits_count_as_changed(digits: int) -> None:
    one, three = ("0." + digits * digit for digit in ("1", "3"))
    old, new = (
        parse(Schema(SchemaType.JSON, f'{{"type": "number", "multipleOf": {one}}}'), {}) for one in (one, three)
    )
    assert problems(old, new) == ["MULTIPLE_OF_CHANGED #/multipleOf"]
    less = [parse(Schema(SchemaType.JSON, f'{{"type": "number", "multipleOf": 0.{300 * one}}}'), {}) for one in "31"]
    assert problems(*less) == []
