"""Protobuf schemas against Google's compiler: both accept the same files and write the same descriptors."""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Iterable
from pathlib import Path

import grpc_tools
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from headrace_registry.schemas import InvalidSchemaError, Schema, SchemaType, parse
from tests.unit.registry.schemas.test_protobuf import CANONICAL, INVALID

TABLE = Path(__file__).parents[1] / "compat" / "protobuf.toml"
FILES = [
    *dict.fromkeys(
        row[side]
        for row in tomllib.loads(TABLE.read_text())["row"]
        for side in ("old", "new")
        if "map_entry" not in row[side]  # the compiler writes this option, and does not read it
    ),
    # the compiler knows no options but its own
    CANONICAL.replace("option (message) = -1;", "").replace("option (one) = X;", "").replace(
        CANONICAL[CANONICAL.index("option (file)") : CANONICAL.index("message Order")], ""
    ),
    """syntax = "proto2"; package p;
    message M {
      required int32 a = 1 [default = -5]; optional string s = 2 [default = "x;\\n"];
      optional bool t = 9 [default = true];
      optional group G = 3 { optional E b = 1 [default = B]; } enum E { A = 1; B = 2; }
      oneof o { int32 c = 4; group H = 5 { required double d = 1 [default = -inf]; } }
      extensions 100 to 199; extensions 300; extensions 1000 to max; reserved 50 to 60, 70; reserved "x";
      extend M { optional int32 e = 100; }
    }
    extend M { repeated M f = 101; }""",
    """syntax = "proto3"; package p;
    import "google/protobuf/wrappers.proto"; import public "google/protobuf/struct.proto";
    option optimize_for = CODE_SIZE; option java_multiple_files = true; option cc_enable_arenas = false;
    message M { optional int32 a = 1; optional M b = 2; oneof o { string s = 3; google.protobuf.Value v = 4; }
      map<int64, M> some_map = 5; map<bool, K> kinds = 6; int64 big = 7 [jstype = JS_STRING];
      google.protobuf.BoolValue w = 8; enum K { reserved -5 to -1, 9; ZERO = 0; MINUS = -7; } }
    service S { rpc A (stream M) returns (stream M); rpc B (M) returns (M) { option deprecated = true; } }""",
    # a name's dots, signs and comments stand apart
    """syntax = 'pro' "to3"; package p . q; import /* a */ "google/protobuf/" 'any.proto';
    message M { google . protobuf /* b */ . Any a = 1; . p . q. M m = 2; map < string , .p.q.M > n = 3;
      optional.p.q.M o = 4; repeated .p.q.M r = 5; reserved 0x10 to 021, 99 to max; }
    enum E { Z = 0; X = -0x7f; N = - 1; reserved - 9 to - 5, 100 to max; }
    service S { rpc A ( stream . p . q . M ) returns ( stream.p.q.M ) { ; option deprecated = true; ; } ; }""",
    "\ufeffsyntax = 'proto3'; message M { string weak = 1; string to = 2; string max = 3; string map = 4; }",
    'syntax = "proto3"; import weak "google/protobuf/any.proto"; import public "google/protobuf/empty.proto"; '
    "message weak {}",
    """syntax = "proto2"; enum E { Z = 0; reserved 100 to 200, 2147483647; }
    enum F { A = - 2147483648; B = 0x7fffffff; reserved -5 to 5; }""",
]  # fmt: skip

#: Files whose descriptor has values in another form, or without some options.
SPELLED = [
    """syntax = "proto2"; message M {
      optional int32 a = 1 [default = - 5]; optional int64 b = 2 [default = -0x1F];
      optional uint32 c = 3 [default = 010];
      optional float d = 4 [default = - inf]; optional double e = 5 [default = -nan];
      optional double f = 6 [default = .5];
      optional double g = 7 [default = 1e3]; optional float h = 8 [default = 0.1];
      optional double i = 9 [default = 1.];
      optional double j = 10 [default = -1e-3]; optional float k = 11 [default = 16777217];
      optional E l = 12 [default = B];
      optional double m = 13 [default = 1.7976931348623157e308];
      optional uint64 n = 14 [default = 18446744073709551615];
      optional double o = 15 [default = 0x10]; optional float p = 16 [default = 3.4028235e38]; }
    enum E { A = 1; B = 2; }""",
    r'''syntax = "proto2"; message M {
      optional bytes a = 1 [default = "\377\x00\xfe\303\277 \"\'\\ \n\r\t\v\a\?"];
      optional bytes b = 2 [default = "é" 'x' "\1"];
      optional string c = 3 [default = "\303\251 \u00e9 \U0001F600 \ud83d\ude00 \001\177"];
      optional string d = 4 [default = "", json_name = "\x44"]; optional string e = 5 [default = '"' "'"]; }''',
    """syntax = "proto2"; message M { extensions 4 to 10, 20 [verification = UNVERIFIED]; extensions 100 to max; }""",
]  # fmt: skip

#: Files with options that are extensions, which a descriptor of ours does not have.
WITH_OPTIONS = [
    '''syntax = "proto2"; package check; import "google/protobuf/descriptor.proto";
    message Rules { optional Text text = 1; repeated Text texts = 2; extensions 1000 to 1999; }
    message Text { optional uint64 longest = 1; repeated string parts = 2; optional bytes raw = 3;
      optional double n = 4;
      optional Text in = 5; extensions 1000 to 1999; repeated int32 some = 6; }
    extend google.protobuf.FieldOptions { optional Rules field = 50100; repeated int32 many = 50101; }
    extend google.protobuf.FileOptions { optional Rules file = 50100; }
    extend google.protobuf.EnumValueOptions { optional Text value = 50100; }
    extend Text { optional bool iban = 1001; optional Text deep = 1002; }
    extend Rules { optional Text more = 1001; }
    option (file).text.(check.deep).(iban) = true; option ( . check . file ) . (check . more) . longest = 7;
    message M {
      optional string a = 1 [(check.field).text.(check.iban) = true, (field).text.longest = 3];
      optional string b = 2 [(many) = 1, (many) = - 2, (field) = { text: { longest: 1, in <n: - inf;> }
        texts { parts: "x" 'y' } texts [ { parts: ["a", "b"] parts: "c" }, {} ] [check.more] { raw: "\\377\\000" } }];
      optional string c = 3 [(field).text = { [check.iban]: true some: [1, -2] some: 3 some: [] n: 1e-3 }];
      extensions 10 to 20 [declaration = { number: 10, full_name: ".a.b", type: ".a.B" }, verification = DECLARATION];
    }
    enum E { Z = 0 [(value).(deep).longest = 1]; }''',
]  # fmt: skip


@pytest.mark.parametrize("text", WITH_OPTIONS)
def test_options_come_back_as_they_went_in(text: str, tmp_path: Path) -> None:
    expected = compiled(text, tmp_path)
    assert expected is not None
    schema = parse(Schema(SchemaType.PROTOBUF, text), {})
    again = compiled(schema.canonical, tmp_path)
    assert again is not None
    assert _sorted(again) == _sorted(expected)
    assert parse(Schema(SchemaType.PROTOBUF, schema.canonical), {}).canonical == schema.canonical
    normalized = compiled(schema.normalized, tmp_path)
    assert normalized is not None
    assert _without_order(normalized) == _without_order(expected)


#: Messages, maps and groups, which the compiler numbers together: a record names its message by its number.
NESTED = [
    """syntax = "proto2"; message M { message A { message Deep {} map<int32, Deep> d = 1; message Deeper {} }
      optional group G = 1 { message In {} map<string, In> i = 1; } message B {} optional group H = 2 {}
      map<string, int32> some_map = 3; enum E { Z = 0; } message C {} }""",
    'syntax = "proto2"; message M { message A {} oneof o { group G = 1 {} string s = 3; } message B {} '
    "map<string, B> m = 2; message C {} }",
    'syntax = "proto3"; message M { message A {} map<string, int32> m = 1; message B {} enum E { Z = 0; } '
    "string s = 2; message C {} map<int32, C> n = 3; }",
    'syntax = "proto3"; message M { map<string, int32> a = 9; message A {} map<string, int32> b = 2; message B {} }',
    'syntax = "proto3"; message M { string s = 1; message A {} int32 t = 2; message B {} }',
]


@pytest.mark.parametrize("text", NESTED)
@pytest.mark.parametrize("form", ["text", "descriptor"])
def test_nested_messages_keep_their_numbers(text: str, form: str, tmp_path: Path) -> None:
    expected = compiled(text, tmp_path)
    assert expected is not None
    given = text if form == "text" else base64.b64encode(expected.SerializeToString()).decode()
    schema = parse(Schema(SchemaType.PROTOBUF, given), {})
    serialized = schema.formatted("serialized")
    again = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(serialized))
    forms = [again, compiled(schema.normalized, tmp_path)]
    if form == "text":  # the compiler does not read the entries of maps that a descriptor has
        forms.append(compiled(schema.canonical, tmp_path))
    for one in forms:
        assert one is not None
        assert _numbered(one.message_type) == _numbered(expected.message_type)
    assert parse(Schema(SchemaType.PROTOBUF, schema.canonical), {}).canonical == schema.canonical
    assert parse(Schema(SchemaType.PROTOBUF, schema.normalized), {}).normalized == schema.normalized


def test_no_message_is_lost_in_front_of_an_entry_that_no_map_uses() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="a.proto", syntax="proto3")
    outer = file.message_type.add(name="M")
    outer.nested_type.add(name="A")
    entry = outer.nested_type.add(name="UnusedEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=9, label=1)
    outer.nested_type.add(name="B")
    schema = parse(Schema(SchemaType.PROTOBUF, base64.b64encode(file.SerializeToString()).decode()), {})
    for text in (schema.canonical, schema.normalized):
        assert text.index("message A") < text.index("message B")


def _numbered(messages: Iterable[descriptor_pb2.DescriptorProto]) -> dict[int, tuple[str, object]]:
    """The messages by their numbers, without the entries of maps and groups."""
    made = enumerate(messages)
    return {
        number: (one.name, _numbered(one.nested_type))
        for number, one in made
        if not one.options.map_entry and one.name not in ("G", "H")
    }


def _without_order(file: descriptor_pb2.FileDescriptorProto) -> list[str]:
    return sorted(line for line in str(_sorted(file)).splitlines() if "_name" not in line)


def compiled(text: str, folder: Path) -> descriptor_pb2.FileDescriptorProto | None:
    """The compiler's descriptor of a file, or None when it refuses the file."""
    (folder / "default.proto").write_text(text)
    include = Path(grpc_tools.__file__).parent / "_proto"
    out = folder / "out"
    arguments = ["protoc", f"-I{folder}", f"-I{include}", f"--descriptor_set_out={out}", "default.proto"]
    if protoc.main(arguments):
        return None
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]


def _sorted(file: descriptor_pb2.FileDescriptorProto) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor without what has no order in Protobuf, and without names for JSON, which the compiler computes."""

    def clean(message: descriptor_pb2.DescriptorProto) -> None:
        for one in (*message.field, *message.extension):
            one.ClearField("json_name")
        fields = sorted(message.field, key=lambda one: one.number)
        names = [oneof.name for oneof in message.oneof_decl]
        oneofs = sorted(names)
        for one in fields:
            if one.HasField("oneof_index"):
                one.oneof_index = oneofs.index(names[one.oneof_index])
        for enum in message.enum_type:
            values = sorted(enum.value, key=lambda one: (one.number, one.name))
            del enum.value[:]
            enum.value.extend(values)
        ranges, reserved = sorted(message.reserved_range, key=lambda one: one.start), sorted(message.reserved_name)
        del message.reserved_range[:], message.reserved_name[:]
        message.reserved_range.extend(ranges)
        message.reserved_name.extend(reserved)
        nested = sorted(message.nested_type, key=lambda one: one.name)
        for one in nested:
            clean(one)
        del message.field[:], message.oneof_decl[:], message.nested_type[:]
        message.field.extend(fields)
        message.oneof_decl.extend(descriptor_pb2.OneofDescriptorProto(name=name) for name in oneofs)
        message.nested_type.extend(nested)

    for message in file.message_type:
        clean(message)
    for one in file.extension:
        one.ClearField("json_name")
    public = {file.dependency[index] for index in file.public_dependency}
    dependencies = sorted(file.dependency)
    del file.dependency[:], file.public_dependency[:]
    file.dependency.extend(dependencies)
    file.public_dependency.extend(index for index, path in enumerate(dependencies) if path in public)
    return file


@pytest.mark.parametrize("text", [*FILES, *SPELLED])
def test_descriptor_is_that_of_the_compiler(text: str, tmp_path: Path) -> None:
    expected = compiled(text, tmp_path)
    assert expected is not None
    schema = parse(Schema(SchemaType.PROTOBUF, text), {})
    ours = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.formatted("serialized")))
    assert _sorted(ours) == _sorted(expected)


@pytest.mark.parametrize("text", FILES)
def test_descriptor_of_the_compiler_is_read(text: str, tmp_path: Path) -> None:
    file = compiled(text, tmp_path)
    assert file is not None
    for message in file.message_type:
        _without_json_names(message)
    for extension in file.extension:
        extension.ClearField("json_name")
    from_text = parse(Schema(SchemaType.PROTOBUF, text), {})
    from_bytes = parse(Schema(SchemaType.PROTOBUF, base64.b64encode(file.SerializeToString()).decode()), {})
    # A file of proto2 may leave out its syntax; its descriptor always does. Explicit names for JSON went above.
    without_syntax = from_text.normalized.replace('syntax = "proto2";\n', "")
    if "json_name" not in text:
        assert from_bytes.normalized.replace('syntax = "proto2";\n', "") == without_syntax


def _without_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    for one in (*message.field, *message.extension):
        one.ClearField("json_name")
    for nested in message.nested_type:
        _without_json_names(nested)


@pytest.mark.parametrize("text", [*FILES, *SPELLED])
def test_canonical_and_normalized_text_mean_the_same(text: str, tmp_path: Path) -> None:
    expected = compiled(text, tmp_path)
    assert expected is not None
    schema = parse(Schema(SchemaType.PROTOBUF, text), {})
    for written in (schema.canonical, schema.normalized):
        again = compiled(written, tmp_path)
        assert again is not None
        assert _sorted(again) == _sorted(expected)


#: Files that the compiler accepts and Confluent's registry refuses, or that only the registry cannot use.
ONLY_THE_COMPILER = {
    "", "syntax = 'proto3';", "edition = '2023';", "message M { optional M a = 1 [json_name = '\\377']; }",
    "message M { reserved '\\377'; }",
}  # fmt: skip


@pytest.mark.parametrize("text", [text for text, _ in INVALID if text not in ONLY_THE_COMPILER])
def test_the_compiler_refuses_what_the_registry_refuses(text: str, tmp_path: Path) -> None:
    assert compiled(text, tmp_path) is None
    with pytest.raises(InvalidSchemaError):
        parse(Schema(SchemaType.PROTOBUF, text), {})


#: Files that the compiler refuses although every type exists and every number and name is unique.
REFUSED = [
    'syntax = "proto3"; message M { reserved 1; int32 a = 1; }',
    'syntax = "proto3"; message M { reserved "a"; int32 a = 1; }',
    'syntax = "proto3"; message M { reserved 2 to 9; oneof o { int32 a = 1; int32 b = 9; } }',
    'syntax = "proto3"; message M { reserved 1 to 5, 3; }',
    'syntax = "proto3"; message M { reserved 5 to 1; }',
    'syntax = "proto3"; message M { reserved 0; }',
    'syntax = "proto3"; message M { reserved "a", "a"; }',
    'syntax = "proto3"; message M { message N { reserved 1; int32 a = 1; } }',
    'syntax = "proto3"; message M { extensions 1 to 5; }',
    'syntax = "proto2"; message M { extensions 4 to 10; optional int32 a = 5; }',
    'syntax = "proto2"; message M { extensions 4 to 10, 7 to 12; }',
    'syntax = "proto2"; message M { extensions 4 to 10; reserved 5; }',
    'syntax = "proto2"; message M { extensions 4; } extend M { optional int32 a = 100; }',
    'syntax = "proto2"; enum E { A = 0; } extend E { optional int32 a = 100; }',
    'syntax = "proto3"; enum E { Z = 0; reserved 1; A = 1; }',
    'syntax = "proto3"; enum E { Z = 0; reserved "A"; A = 1; }',
    'syntax = "proto3"; message M { int32 foo_bar = 1; int32 fooBar = 2; }',
    'syntax = "proto3"; message M { string a = 1 [json_name = "x"]; string x = 2; }',
    """syntax = "proto2";
    message M { optional string a = 1 [json_name = "x"]; optional string b = 2 [json_name = "x"]; }""",
    'syntax = "proto3"; message M { map<string, int32> a = 1; message AEntry {} }',
    'syntax = "proto3"; message M { oneof o { map<string, int32> a = 1; } }',
    'syntax = "proto3"; message M { int32 a = 1 [default = 5]; }',
    'syntax = "proto2"; message M { optional int32 a = 1 [default = "x"]; }',
    'syntax = "proto2"; message M { optional string a = 1 [default = x]; }',
    'syntax = "proto2"; message M { optional int32 a = 1 [default = 1.5]; }',
    'syntax = "proto2"; message M { optional bool a = 1 [default = 1]; }',
    'syntax = "proto2"; message M { optional M a = 1 [default = x]; }',
    'syntax = "proto2"; message M { optional E a = 1 [default = NO]; } enum E { A = 1; }',
    'syntax = "proto2"; message M { repeated int32 a = 1 [default = 5]; }',
    'syntax = "proto3"; import "google/protobuf/any.proto"; import "google/protobuf/any.proto"; message M {}',
    'syntax = "proto3"; service S { rpc A (E) returns (E); } enum E { Z = 0; }',
]
ACCEPTED = [
    'syntax = "proto3"; message M { reserved 2, 4 to max; reserved "b"; int32 a = 1; oneof o { int32 c = 3; } }',
    """syntax = "proto3"; import "google/protobuf/descriptor.proto";
    extend google.protobuf.FieldOptions { int32 a = 50000; }""",
    """syntax = "proto3";
    message M { option deprecated_legacy_json_field_conflicts = true; int32 a_b = 1; int32 aB = 2; }""",
    'syntax = "proto3"; message M { map<string, M> m = 1; map<string, M> n = 2; int32 a = 3; int32 A = 4; }',
    'syntax = "proto2"; message M { optional int32 foo_bar = 1; optional int32 fooBar = 2; }',
    'syntax = "proto2"; message M { optional int32 a = 1; optional int32 b = 2 [json_name = "a"]; }',
    """syntax = "proto2"; message M { optional double d = 1 [default = -inf]; optional float f = 2 [default = 1e3];
    optional bytes b = 3 [default = "\\001x"]; optional E e = 4 [default = B]; optional sint64 s = 5 [default = -0x1F];
    optional bool t = 6 [default = false]; extensions 10 to 19, 30; extend M { optional E x = 30 [default = A]; } }
    enum E { A = 1; B = 2; reserved -9 to 0, 3 to max; }""",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_the_compiler_refuses_is_not_registered_but_still_read(text: str, tmp_path: Path) -> None:
    assert compiled(text, tmp_path) is None
    schema = Schema(SchemaType.PROTOBUF, text)
    with pytest.raises(InvalidSchemaError, match="invalid Protobuf schema: "):
        parse(schema, {})
    parse(schema, {}, is_new=False)  # another registry may have stored it


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_the_compiler_accepts_is_registered(text: str, tmp_path: Path) -> None:
    assert compiled(text, tmp_path) is not None
    parse(Schema(SchemaType.PROTOBUF, text), {})
