"""Schemas that cost a parser time, memory or stack: each is refused, or read, in five seconds of computing."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator

import pytest

from headrace_registry.compat import Level, check
from headrace_registry.schemas import InvalidSchemaError, Reference, Schema, SchemaType, parse
from headrace_registry.schemas.model import DEPTH_MAX, SCHEMA_BYTES_MAX
from tests.worlds.waiting import check_spent

AVRO, JSON, PROTOBUF = SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    started = time.thread_time()
    yield
    check_spent(started, 5)


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


LONG = "n" * 500_000
LONG_NAMES = {
    "avro": (
        AVRO,
        {
            "type": "record",
            "name": "R",
            "namespace": LONG,
            "fields": [
                {"name": f"f{index}", "type": {"type": "fixed", "name": f"F{index}", "size": 1}}
                for index in range(5000)
            ],
        },
    ),
    "avro-uses": (
        AVRO,
        {
            "type": "record",
            "name": "R",
            "namespace": LONG,
            "fields": [{"name": f"f{index}", "type": ["null", "R"]} for index in range(5000)],
        },
    ),
    "avro-aliases": (
        AVRO,
        {
            "type": "fixed",
            "name": "F",
            "size": 1,
            "namespace": LONG,
            "aliases": [f"A{index}" for index in range(20_000)],
        },
    ),
    "json-ids": (JSON, {"$id": f"http://x/{LONG}/", "properties": {f"p{i}": {"$id": str(i)} for i in range(10_000)}}),
    "json-anchors": (
        JSON,
        {"$id": f"http://x/{LONG}/", "properties": {f"p{i}": {"$anchor": f"a{i}"} for i in range(10_000)}},
    ),
    "json-references": (
        JSON,
        {"$id": f"http://x/{'n/' * 250_000}", "properties": {f"p{i}": {"$ref": "#"} for i in range(10_000)}},
    ),
}


@pytest.mark.parametrize("name", LONG_NAMES)
def test_a_long_namespace_that_many_names_repeat_is_refused(name: str) -> None:
    kind, value = LONG_NAMES[name]
    assert "the full names of the schema have more than 67108864 characters together" in refused(
        kind, json.dumps(value, separators=(",", ":"))
    )


@pytest.mark.parametrize(
    ("package", "body"),
    [
        (LONG, "".join(f"message M{index} {{}}" for index in range(20_000))),
        (
            ".".join("a" * 100_000),
            'import "google/protobuf/timestamp.proto"; message M { google.protobuf.Timestamp at = 1; }',
        ),
    ],
    ids=["long", "deep"],
)
def test_a_protobuf_package_that_many_names_repeat_is_refused(package: str, body: str) -> None:
    assert "the full names of the schema have more than" in refused(
        PROTOBUF, f'syntax = "proto3"; package {package}; {body}'
    )


def test_defaults_that_nest_deeper_than_the_text_are_refused() -> None:
    records = ['{"type":"record","name":"R0","fields":[]}'] + [
        f'{{"type":"record","name":"R{i}","fields":[{{"name":"f","type":"R{i - 1}","default":{{}}}}]}}'
        for i in range(1, 700)
    ]
    assert "the defaults are nested deeper than 128 types" in refused(AVRO, f"[{','.join(records)}]")


def test_definitions_of_a_long_chain_of_references_are_not_put_into_one_text() -> None:
    def record(index: int) -> Schema:
        fields = [] if index == 0 else [{"name": "f", "type": f"R{index - 1}"}]
        text = json.dumps({"type": "record", "name": f"R{index}", "fields": fields})
        return Schema(AVRO, text, tuple(Reference(f"R{index - 1}", "s", index) for _ in fields))

    resolved = {f"R{index}": record(index) for index in range(900)}
    parsed = parse(resolved["R899"], resolved)
    with pytest.raises(InvalidSchemaError, match="nest deeper than 128 levels"):
        parsed.formatted("resolved")
    assert parse(record(100), resolved).formatted("resolved").count('"type":"record"') == 101


def test_expressions_with_large_programs_are_not_compiled_one_after_the_other() -> None:
    for keyword in ("patternProperties", "properties"):
        value = {keyword: {f"a{i}\\pL{{400}}": {"pattern": f"b{i}\\pL{{400}}"} for i in range(10_000)}}
        parsed = parse(Schema(JSON, json.dumps(value)), {})
        assert parsed.kept_characters >= 4 << 20  # so that a cache keeps few of them


def test_an_expression_of_usual_size_still_covers_properties() -> None:
    old, new = (
        parse(Schema(JSON, json.dumps(value)), {})
        for value in (
            {"properties": {"Straße": {}}, "additionalProperties": False},
            {"patternProperties": {r"^[\p{L}\p{N} .,()/-]{1,100}$": {}}, "additionalProperties": False},
        )
    )
    assert check(Level.BACKWARD, new, [old]) == []


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        (f"{'.'.join('a' * 5000)} = 1", "the name of an option has more than 128 parts"),
        (f"(a).{'.'.join('a' * 5000)} = 1", "the name of an option has more than 128 parts"),
        (f"(a) = {{ {'b < ' * 5000} {'> ' * 5000} }}", "nested deeper than 128 levels"),
    ],
    ids=["name", "custom", "message"],
)
def test_deep_options_of_protobuf_are_refused(option: str, problem: str) -> None:
    assert problem in refused(PROTOBUF, f'syntax = "proto3"; option {option}; message M {{}}')


def test_public_imports_and_groups_of_a_descriptor_are_read_in_linear_time() -> None:
    indexes = b"\x00" * 90_000
    imports = b"\x1a\x00" * 90_000 + b"\x52\x90\xbf\x05" + indexes
    assert "more than 250000 words" in refused(PROTOBUF, base64.b64encode(imports).decode())
    groups = b"".join(
        field(2, field(1, b"g%d" % i) + b"\x18\x00\x28\x0a" + field(6, b"G%d" % i)) for i in reversed(range(15_000))
    )
    messages = b"".join(field(3, field(1, b"G%d" % i)) for i in range(15_000))
    file = field(4, field(1, b"M") + messages + groups)
    assert "the number of a field is from 1" in refused(PROTOBUF, base64.b64encode(file).decode())


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
