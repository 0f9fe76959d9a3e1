"""Schemas that cost a parser time, memory or stack: each is refused, or read, in five seconds of computing."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator

import pytest

from headrace_registry.schemas import InvalidSchemaError, Schema, SchemaType, parse
from headrace_registry.schemas.model import DEPTH_MAX, SCHEMA_BYTES_MAX

AVRO, JSON, PROTOBUF = SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < 5


def refused(kind: SchemaType, text: str) -> str:
    with pytest.raises(InvalidSchemaError) as error:
        parse(Schema(kind, text), {})
    assert len(error.value.message) < 2000, "a message does not repeat the schema"
    return error.value.message


@pytest.mark.parametrize("kind", SchemaType)
def test_five_megabytes_are_refused(kind: SchemaType) -> None:
    assert f"the limit is {SCHEMA_BYTES_MAX}" in refused(kind, '"' + "x" * (5 << 20) + '"')
    assert f"the limit is {SCHEMA_BYTES_MAX}" in refused(kind, '"' + "é" * (SCHEMA_BYTES_MAX // 2 + 1) + '"')


@pytest.mark.parametrize("kind", SchemaType)
def test_a_lone_surrogate_is_refused(kind: SchemaType) -> None:
    assert "half of a surrogate pair" in refused(kind, '"\ud800"')


AVRO_LEVELS = [
    ('{"type":"array","items":', '"int"', "}"),
    ('{"type":"map","values":', '"int"', "}"),
    ("[", '"int"', "]"),
    ('{"type":"int","x":', "1", "}"),
]
JSON_LEVELS = [
    *(
        (f'{{"{keyword}":', "{}", "}")
        for keyword in ("not", "items", "additionalProperties", "additionalItems", "if", "contains", "propertyNames")
    ),
    ('{"type":"object","additionalProperties":', "{}", "}"),
    ('{"type":["array","object"],"items":', "{}", "}"),
    ('{"allOf":[', "{}", "]}"),
    ('{"properties":{"a":', "{}", "}}"),
    ('{"patternProperties":{"a":', "{}", "}}"),
    ('{"dependencies":{"a":', "{}", "}}"),
    ('{"enum":[', "1", "]}"),
    ('{"x":', "1", "}"),
]


def deep(level: tuple[str, str, str], depth: int) -> str:
    begin, core, end = level
    levels = depth // (begin.count("{") + begin.count("["))
    return begin * levels + core + end * levels


def below(frames: int, kind: SchemaType, text: str) -> None:
    """Parse below many frames of a server."""
    if frames:
        below(frames - 1, kind, text)
    else:
        parsed = parse(Schema(kind, text), {})
        assert parsed.canonical
        assert parsed.normalized


@pytest.mark.parametrize(
    ("kind", "level"), [*((AVRO, level) for level in AVRO_LEVELS), *((JSON, level) for level in JSON_LEVELS)]
)
def test_ten_thousand_levels_are_refused(kind: SchemaType, level: tuple[str, str, str]) -> None:
    assert f"nested deeper than {DEPTH_MAX} levels" in refused(kind, deep(level, 10_000))


@pytest.mark.parametrize(
    ("kind", "level"), [*((AVRO, level) for level in AVRO_LEVELS if level[0] != "["), *((JSON, x) for x in JSON_LEVELS)]
)
def test_the_deepest_allowed_schema_leaves_stack_for_a_server(kind: SchemaType, level: tuple[str, str, str]) -> None:
    below(200, kind, deep(level, DEPTH_MAX - 1))


def test_deep_protobuf_is_refused() -> None:
    text = 'syntax = "proto3";'
    messages = "message M {" * 10_000 + "}" * 10_000
    assert f"nested deeper than {DEPTH_MAX} levels" in refused(PROTOBUF, text + messages)
    assert "messages are nested deeper than 32 levels" in refused(PROTOBUF, text + "message M {" * 33 + "}" * 33)
    below(200, PROTOBUF, text + "message M {" * 32 + "}" * 32)
    below(200, PROTOBUF, f"{text} option (x) = {deep(('{a:', '{}', '}'), DEPTH_MAX - 2)}; message M {{}}")
    refused(PROTOBUF, f"{text} option (x) = {deep(('{a:', '{}', '}'), 10_000)};")


@pytest.mark.parametrize("kind", SchemaType)
@pytest.mark.parametrize(
    "text",
    [
        '"' + '\\"' * 500_000,
        '"' * 1_000_000,
        "/*" * 500_000,
        "/" * 1_000_000,
        "//" + "*/" * 400_000,
        "{" * 1_000_000,
        "}" * 1_000_000,
        "[],{}" * 200_000,
        "-" * 1_000_000,
        "a" * 1_000_000,
        "(" * 1_000_000,
        "\n" * 1_000_000 + "x",
        "9" * 1_000_000,
        "\x00" * 1_000_000,
        "'" + "\\'" * 500_000,
    ],
    ids=lambda text: repr(text[:6]),
)
def test_a_megabyte_of_one_sign_is_refused(kind: SchemaType, text: str) -> None:
    refused(kind, text)


def test_a_wide_avro_schema_is_read() -> None:
    fields = ",".join(f'{{"name":"f{index}","type":"int"}}' for index in range(30_000))
    parse(Schema(AVRO, f'{{"type":"record","name":"R","fields":[{fields}]}}'), {})
    branches = ",".join(f'{{"type":"fixed","name":"F{index}","size":1}}' for index in range(20_000))
    parse(Schema(AVRO, f"[{branches}]"), {})


def test_defaults_that_double_with_every_record_are_refused() -> None:
    def record(index: int) -> str:
        inner = f'"R{index - 1}"' if index else '"int"'
        default = "{}" if index else "0"
        fields = ",".join(f'{{"name":"{name}","type":{inner},"default":{default}}}' for name in "ab")
        return f'{{"type":"record","name":"R{index}","fields":[{fields}]}}'

    assert "the check of the defaults takes more than" in refused(
        AVRO, f"[{','.join(record(index) for index in range(64))}]"
    )


def test_a_record_whose_default_contains_itself_is_read() -> None:
    parse(Schema(AVRO, '{"type":"record","name":"R","fields":[{"name":"f","type":"R","default":{"f":{}}}]}'), {})


def test_a_wide_json_schema_is_read() -> None:
    properties = {f"p{index}": {"type": "string", "pattern": f"^{index}$"} for index in range(15_000)}
    parse(Schema(JSON, json.dumps({"properties": properties})), {})
    references = {f"p{index}": {"$ref": "#"} for index in range(30_000)}
    parse(Schema(JSON, json.dumps({"properties": references})), {})


def test_a_long_chain_of_pointers_is_read() -> None:
    definitions = {f"d{index}": {"$ref": f"#/definitions/d{index + 1}"} for index in range(15_000)}
    definitions["d15000"] = {"type": "string"}
    parse(Schema(JSON, json.dumps({"$ref": "#/definitions/d0", "definitions": definitions})), {})
    definitions["d15000"] = {"$ref": "#/definitions/d0"}
    assert "leads only to itself" in refused(JSON, json.dumps({"$ref": "#/definitions/d0", "definitions": definitions}))


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(.*)*" * 5000 + "x", "((a{0,50}){0,50}){0,50}", "(" * 50_000 + ")" * 50_000]
)
def test_expressions_that_hang_elsewhere_do_not_hang(pattern: str) -> None:
    value = {"patternProperties": {pattern: {}}, "properties": {"a" * 10_000 + "!": {}}, "pattern": pattern}
    try:
        parse(Schema(JSON, json.dumps(value)), {})
    except InvalidSchemaError as error:
        assert "regular expression" in error.message  # noqa: PT017 - it may also be valid


def test_deeply_nested_json_with_much_text_is_read_once() -> None:
    """The key of a node must not cost the size of everything below it."""
    text = deep(('{"allOf":[', json.dumps({"enum": ["x" * 20] * 30_000}), "]}"), DEPTH_MAX - 3)
    parse(Schema(JSON, text), {})


def test_wide_protobuf_is_read() -> None:
    fields = "".join(f"string f{index} = {index + 1};" for index in range(18_000))
    parse(Schema(PROTOBUF, f'syntax = "proto3"; message M {{ {fields} }}'), {})
    messages = "".join(f"message M{index} {{ M{index // 2} m = 1; }}" for index in range(20_000))
    parse(Schema(PROTOBUF, f'syntax = "proto3"; {messages}'), {})


def field(number: int, content: bytes) -> bytes:
    """A field of a length in Protobuf's encoding."""
    length = len(content)
    size = bytearray()
    while length >= 0x80:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([number << 3 | 2, *size, length]) + content


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\xff" * 100, "the bytes end in the middle of a number"),
        (b"\x0a\xff\xff\xff\xff\x0f", "the bytes end in the middle of a field"),
        (b"\x09\x00", "the bytes end in the middle of a field"),
        (field(4, b"\x22\x00"), "a message has no name"),
        (b"\x08\x01", "the field name has the wrong wire type"),
        (field(1, b"\xff\xfe"), "the field name is not valid UTF-8"),
        (b"\x27", "the wire type 7 is unknown"),
        (b"\x50\x05", "a public import has no path"),
        (field(12, b"proto9"), 'the syntax "proto9" is unknown'),
        (field(4, field(1, b"M") + field(2, field(1, b"f"))), 'the field "f" has no type_name'),
    ],
)
def test_bytes_that_are_no_descriptor_are_refused(data: bytes, problem: str) -> None:
    assert problem in refused(PROTOBUF, base64.b64encode(data).decode())


def test_deep_descriptors_are_refused() -> None:
    message = field(1, b"M")
    for _ in range(5000):
        message = field(1, b"M") + field(3, message)
    assert "nested deeper" in refused(PROTOBUF, base64.b64encode(field(4, message)).decode())


def test_a_name_in_a_descriptor_must_be_a_name() -> None:
    data = field(4, field(1, b"A; x") + field(2, field(1, b"f") + b"\x18\x01\x28\x05"))
    assert '"{" is expected, not ";"' in refused(PROTOBUF, base64.b64encode(data).decode())


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (AVRO, f'"{"x" * 900_000}"'),
        (AVRO, f'{{"type":"record","name":"{"x" * 900_000}-","fields":[]}}'),
        (JSON, f'{{"$ref":"{"x" * 900_000}"}}'),
        (JSON, f'{{"properties":{{"{"x" * 900_000}":1}}}}'),
        (PROTOBUF, f'syntax = "proto3"; message M {{ {"x" * 900_000} a = 1; }}'),
        (PROTOBUF, f'import "{"x" * 900_000}";'),
    ],
    ids=["name", "definition", "reference", "property", "type", "import"],
)
def test_messages_do_not_repeat_long_names(kind: SchemaType, text: str) -> None:
    refused(kind, text)
