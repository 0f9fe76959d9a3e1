"""Avro schemas: the canonical text of Java's Avro, the normalized text, and what is refused where."""

from __future__ import annotations

import json

import pytest

from headrace_registry.schemas import InvalidSchemaError, Parsed, Reference, Schema, SchemaType, parse


def avro(text: str, **resolved: str) -> Parsed:
    references = tuple(Reference(name.replace("__", "."), f"{name}-value", 1) for name in resolved)
    schemas = {name.replace("__", "."): Schema(SchemaType.AVRO, content) for name, content in resolved.items()}
    return parse(Schema(SchemaType.AVRO, text, references), schemas)


CANONICAL = [
    ('"string"', '"string"'),
    ('{"type": "string"}', '"string"'),
    ('{"type": "string", "avro.java.string": "String"}', '{"type":"string","avro.java.string":"String"}'),
    ('{"type": "int", "doc": "ignored"}', '"int"'),
    ('["null", {"type": "int"}]', '["null","int"]'),
    ('{"type": "array", "items": "int"}', '{"type":"array","items":"int"}'),
    ('{"values": {"type": "long"}, "type": "map", "x": 1}', '{"type":"map","values":"long","x":1}'),
    (
        '{"symbols": ["A", "B"], "name": "x.E", "type": "enum", "default": "A", "doc": "d", "p": [1.50, 1e10]}',
        '{"type":"enum","name":"E","namespace":"x","doc":"d","symbols":["A","B"],"default":"A","p":[1.5,1.0E10]}',
    ),
    (
        '{"type": "fixed", "size": 8, "name": "F", "logicalType": "decimal", "precision": 3, "aliases": ["G"]}',
        '{"type":"fixed","name":"F","size":8,"logicalType":"decimal","precision":3,"aliases":["G"]}',
    ),
    (  # the keys of a field have an order of their own; "ascending" is the default order
        '{"type": "record", "name": "R", "namespace": "a.b", "fields": [{"order": "ascending", "default": null, '
        '"type": ["null", "R"], "name": "next", "doc": "the next", "aliases": ["n"], "tag": {"b": 1, "a": 2}}, '
        '{"name": "v", "type": "double", "default": 0.0001, "order": "Descending"}]}',
        '{"type":"record","name":"R","namespace":"a.b","fields":[{"name":"next","type":["null","R"],'
        '"doc":"the next","default":null,"aliases":["n"],"tag":{"b":1,"a":2}},'
        '{"name":"v","type":"double","default":1.0E-4,"order":"descending"}]}',
    ),
    (  # a full name wins over the namespace; names are as short as their place allows
        '{"type": "record", "name": "a.R", "namespace": "ignored", "aliases": ["S", "b.T"], "fields": ['
        '{"name": "e", "type": {"type": "enum", "name": "b.E", "symbols": ["X"]}}, {"name": "f", "type": "b.E"}, '
        '{"name": "g", "type": {"type": "fixed", "name": "F", "size": 1}}, {"name": "h", "type": "F"}]}',
        '{"type":"record","name":"R","namespace":"a","fields":[{"name":"e","type":{"type":"enum","name":"E",'
        '"namespace":"b","symbols":["X"]}},{"name":"f","type":"b.E"},{"name":"g","type":{"type":"fixed",'
        '"name":"F","size":1}},{"name":"h","type":"F"}],"aliases":["S","b.T"]}',
    ),
    (  # a name without a namespace within a namespace
        '{"type": "record", "name": "a.R", "fields": [{"name": "n", "type": {"type": "record", "name": "N", '
        '"namespace": "", "fields": []}}]}',
        '{"type":"record","name":"R","namespace":"a","fields":[{"name":"n","type":{"type":"record","name":"N",'
        '"namespace":"","fields":[]}}]}',
    ),
    ('{"type": "error", "name": "E", "fields": []}', '{"type":"error","name":"E","fields":[]}'),
    ('/* c */ {"type": // d\n "int"}', '"int"'),
    ('{"type": "string", "p": "a\\u0001/\\u00e9\\n"}', '{"type":"string","p":"a\\u0001/é\\n"}'),
    ('{"type": "string", "type": "int"}', '"int"'),
    ('{"type": "record", "name": "Größe", "fields": []}', '{"type":"record","name":"Größe","fields":[]}'),
    (  # a default in quotes of a number
        '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "double", "default": "1.5"}]}',
        '{"type":"record","name":"R","fields":[{"name":"f","type":"double","default":1.5}]}',
    ),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_canonical_text_is_that_of_javas_avro(text: str, canonical: str) -> None:
    parsed = avro(text)
    assert parsed.canonical == canonical
    assert avro(canonical).canonical == canonical
    json.loads(canonical)


def test_equal_schemas_have_one_normalized_text() -> None:
    one = avro(
        '{"type": "record", "name": "R", "namespace": "n", "doc": "", "b": 1, "a": {"y": 1, "x": 2}, '
        '"aliases": ["Z", "A"], "fields": [{"name": "f", "type": "double", "default": 1, "aliases": ["z", "a"], '
        '"order": "ascending"}]}'
    )
    other = avro(
        '{"fields": [{"aliases": ["a", "z"], "name": "f", "default": 1.0, "type": {"type": "double"}}], '
        '"aliases": ["n.A", "n.Z"], "a": {"x": 2, "y": 1}, "b": 1, "name": "n.R", "type": "record"}'
    )
    assert one.canonical != other.canonical
    assert one.normalized == other.normalized
    assert avro(one.normalized).normalized == one.normalized
    assert one.normalized == (
        '{"type":"record","name":"R","namespace":"n","fields":[{"name":"f","type":"double","default":1.0,'
        '"aliases":["a","z"]}],"a":{"x":2,"y":1},"b":1,"aliases":["A","Z"]}'
    )


def test_normalized_text_keeps_what_matters() -> None:
    field = '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", %s}]}'
    texts = ['"default": 1', '"default": 2', '"order": "ignore"', '"doc": "x"', '"aliases": ["g"]', '"tag": 1']
    assert len({avro(field % text).normalized for text in texts}) == len(texts)


INVALID = [
    ("string", "the schema is not valid JSON: Expecting value at line 1, column 1"),
    ('{"type": "int"\n"x": 1}', "the schema is not valid JSON: Expecting ',' delimiter at line 2, column 1"),
    ('"text"', 'at /: "text" is neither a type of Avro nor a defined name'),
    ("12", "at /: a type is a name, an object or an array, not number"),
    ("{}", 'at /: the key "type" is missing'),
    ('{"type": {"type": "int"}}', 'at /: the key "type" is missing or is not a string'),
    ('{"type": "recrod"}', 'at /type: "recrod" is neither a type'),
    ('{"type": "array"}', 'at /: the key "items" is missing'),
    ('{"type": "array", "items": "x"}', 'at /items: "x" is neither'),
    ('{"type": "map", "values": {"type": "array", "items": 1}}', "at /values/items: a type is a name"),
    ('["int", "int"]', 'at /1: the union has the type "int" twice'),
    ('["int", ["null"]]', "at /1: a union cannot directly contain another union"),
    ('[{"type": "array", "items": "int"}, {"type": "array", "items": "long"}]', 'the type "array" twice'),
    ('{"type": "record", "fields": []}', 'at /: the key "name" is missing or is not a string'),
    ('{"type": "record", "name": "R"}', 'at /: the key "fields" is missing'),
    ('{"type": "record", "name": "R", "fields": {}}', "at /fields: the fields of a record are an array, not object"),
    ('{"type": "record", "name": "R", "fields": [1]}', "at /fields/0: a field is an object, not number"),
    ('{"type": "record", "name": "R", "fields": [{"type": "int"}]}', 'at /fields/0: the key "name" is missing'),
    ('{"type": "record", "name": "R", "fields": [{"name": "f"}]}', 'at /fields/0: the key "type" is missing'),
    (
        '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}, {"name": "f", "type": "int"}]}',
        'at /fields/1/name: the record "R" has the field "f" twice',
    ),
    ('{"type": "record", "name": "1R", "fields": []}', 'at /name: the name "1R" begins with neither a letter nor "_"'),
    ('{"type": "record", "name": "a-b", "fields": []}', 'at /name: the name "a-b" has the character "-"'),
    ('{"type": "record", "name": "a.", "fields": []}', "at /name: the name is empty"),
    ('{"type": "record", "name": "int", "fields": []}', 'at /name: "int" is the name of a primitive type'),
    ('{"type": "record", "name": "R", "fields": [{"name": "a b", "type": "int"}]}', "at /fields/0/name"),
    (
        '[{"type": "fixed", "name": "R", "size": 1}, {"type": "fixed", "name": "R", "size": 1}]',
        'at /1/name: the name "R" is defined twice',
    ),
    ('{"type": "fixed", "name": "F"}', 'at /: the key "size" is missing'),
    ('{"type": "fixed", "name": "F", "size": -1}', "at /size: the size of a fixed is a number of bytes"),
    ('{"type": "fixed", "name": "F", "size": 1.5}', "at /size: the size of a fixed is a number of bytes"),
    ('{"type": "fixed", "name": "F", "size": true}', "at /size: the size of a fixed is a number of bytes"),
    ('{"type": "enum", "name": "E"}', 'at /: the key "symbols" is missing'),
    ('{"type": "enum", "name": "E", "symbols": ["A", "A"]}', 'at /symbols/1: the enum has the symbol "A" twice'),
    ('{"type": "enum", "name": "E", "symbols": ["a b"]}', 'at /symbols/0: the name "a b" has the character " "'),
    ('{"type": "enum", "name": "E", "symbols": [1]}', "at /symbols/0: a symbol is a string, not number"),
    ('{"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}', 'at /default: the default "B" is not a symbol'),
    (
        '{"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "order": "up"}]}',
        'at /fields/0/order: the order "up" is none of ascending, descending, ignore',
    ),
    ('{"type": "record", "name": "R", "fields": [], "aliases": "S"}', "at /aliases: the aliases are an array"),
    ('{"type": "record", "name": "R", "fields": [], "aliases": ["-"]}', 'at /aliases/0: the name "-" begins'),
    ('{"type": "int", "x": NaN}', "NaN is not a JSON number"),
    ('{"type": "int", "x": 1e999}', "the number 1e999 is too large for a double"),
    ('{"type": "int", "x": %s}' % ("9" * 5000), "the schema is not valid JSON: Exceeds the limit"),
    ('{"type": "int", "x": "\\udc00"}', "the schema has half of a surrogate pair, \\udc00"),
]


@pytest.mark.parametrize(("text", "problem"), INVALID, ids=[problem for _, problem in INVALID])
def test_invalid_schema_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchemaError) as error:
        avro(text)
    assert problem in error.value.message


DEFAULTS = [
    ('"int"', "1", True),
    ('"int"', "2147483648", False),
    ('"int"', "1.0", False),
    ('"int"', "true", False),
    ('"int"', "null", False),
    ('"long"', "2147483648", True),
    ('"long"', "9223372036854775808", False),
    ('"float"', "1", True),
    ('"double"', '"NaN"', True),
    ('"double"', '"x"', False),
    ('"string"', '"x"', True),
    ('"string"', "1", False),
    ('"bytes"', '"\\u00ff"', True),
    ('"boolean"', "false", True),
    ('"boolean"', "0", False),
    ('"null"', "null", True),
    ('["null", "string"]', "null", True),
    ('["null", "string"]', '"x"', True),  # since Avro 1.12 a default of any branch is valid
    ('["null", "string"]', "1", False),
    ('{"type": "array", "items": "int"}', "[1, 2]", True),
    ('{"type": "array", "items": "int"}', '[1, "x"]', False),
    ('{"type": "map", "values": "int"}', '{"a": 1}', True),
    ('{"type": "map", "values": "int"}', "[]", False),
    ('{"type": "enum", "name": "E", "symbols": ["A"]}', '"A"', True),
    ('{"type": "fixed", "name": "F", "size": 1}', '"a"', True),
    ('{"type": "record", "name": "N", "fields": [{"name": "a", "type": "int"}]}', '{"a": 1}', True),
    ('{"type": "record", "name": "N", "fields": [{"name": "a", "type": "int"}]}', "{}", False),
    ('{"type": "record", "name": "N", "fields": [{"name": "a", "type": "int", "default": 1}]}', "{}", True),
]


@pytest.mark.parametrize(("kind", "default", "is_valid"), DEFAULTS, ids=[f"{row[0]} {row[1]}" for row in DEFAULTS])
def test_defaults_have_the_type_of_their_field(kind: str, default: str, is_valid: bool) -> None:
    text = f'{{"type": "record", "name": "R", "fields": [{{"name": "f", "type": {kind}, "default": {default}}}]}}'
    if is_valid:
        avro(text)
        return
    with pytest.raises(InvalidSchemaError, match="at /fields/0/default: the default"):
        avro(text)
    if default != '"x"':  # this one is not even a number, for Java neither
        parse(Schema(SchemaType.AVRO, text), {}, is_new=False)


def test_a_reference_defines_names() -> None:
    address = '{"type": "record", "name": "a.Address", "fields": [{"name": "zip", "type": "string"}]}'
    text = '{"type": "record", "name": "a.Person", "fields": [{"name": "home", "type": "Address"}]}'
    parsed = avro(text, a__Address=address)
    assert parsed.canonical == (
        '{"type":"record","name":"Person","namespace":"a","fields":[{"name":"home","type":"Address"}]}'
    )
    assert parsed.formatted("resolved") == (
        '{"type":"record","name":"Person","namespace":"a","fields":[{"name":"home","type":{"type":"record",'
        '"name":"Address","fields":[{"name":"zip","type":"string"}]}}]}'
    )
    assert parsed.formatted("") == parsed.canonical
    with pytest.raises(InvalidSchemaError, match='"Address" is neither'):
        avro(text)


def test_a_name_of_a_reference_cannot_be_defined_again() -> None:
    with pytest.raises(InvalidSchemaError, match='the name "A" is defined twice'):
        avro('{"type": "fixed", "name": "A", "size": 1}', A='{"type": "fixed", "name": "A", "size": 1}')


def test_an_invalid_reference_is_named() -> None:
    with pytest.raises(InvalidSchemaError, match='in the reference "A": invalid Avro schema at /type'):
        avro('"int"', A='{"type": "x"}')
