"""Protobuf schemas: Confluent's canonical text, the normalized text, and what is refused where."""

from __future__ import annotations

import base64

import pytest

from headrace_registry.schemas import InvalidSchemaError, Parsed, Reference, Schema, SchemaType, parse


def proto(text: str, **resolved: str) -> Parsed:
    """Parse a file; the names of references have "__" for a dot."""
    texts = {name.replace("__", "."): one for name, one in resolved.items()}
    references = tuple(Reference(name, name, 1) for name in texts)
    return parse(
        Schema(SchemaType.PROTOBUF, text, references),
        {name: Schema(SchemaType.PROTOBUF, one) for name, one in texts.items()},
    )


EVERYTHING = """
// a comment
syntax = 'proto3';
package shop.v1;
import public "google/protobuf/timestamp.proto";
import "google/protobuf/any.proto";
option java_package = "x." "y";
option (file).sub.field = { text: "a\\"b\\n" list: [1, -2.5e3] nested { on: true } [ext.name]: VALUE };
message Order {
  reserved 20 to max, 12, 9 to 11; reserved "old", "older";
  option deprecated = true; option (message) = -1;
  /* fields */
  Item item = 3 [deprecated = true, json_name = "theItem"];
  repeated sint32 numbers = 1 [packed = false];
  optional string note = 2;
  map<string, Item> by_name = 4;
  oneof payment { option (one) = X; string card = 8; bytes cash = 7 [deprecated = false]; }
  oneof other { int32 z = 6; }
  google.protobuf.Timestamp at = 13;
  Kind kind = 14;
  message Item { string name = 1; message message { } .shop.v1.Order.Item.message self = 2; }
  enum Kind { option allow_alias = true; reserved 5 to 7; UNKNOWN = 0; NEGATIVE = -1; NONE = 0 [deprecated = true]; }
}
enum Top { ZERO = 0x0; EIGHT = 010; }
service Shop { option deprecated = true;
  rpc Buy (Order) returns (stream Order.Item) { option idempotency_level = IDEMPOTENT; }
  rpc Sell (stream .shop.v1.Order) returns (Order);
}
"""
CANONICAL = """syntax = "proto3";
package shop.v1;

import "google/protobuf/any.proto";
import public "google/protobuf/timestamp.proto";

option java_package = "x.y";
option (file).sub.field = {
  text: "a\\"b\\n",
  list: [
    1,
    -2.5e3
  ],
  nested: {
    on: true
  },
  [ext.name]: VALUE
};

message Order {
  reserved 20 to 536870911, 12, 9 to 11;
  reserved "old", "older";

  option deprecated = true;
  option (message) = -1;

  Item item = 3 [
    deprecated = true,
    json_name = "theItem"
  ];
  repeated sint32 numbers = 1 [packed = false];
  optional string note = 2;
  map<string, Item> by_name = 4;
  google.protobuf.Timestamp at = 13;
  Kind kind = 14;

  oneof payment {
    option (one) = X;

    string card = 8;
    bytes cash = 7 [deprecated = false];
  }
  oneof other {
    int32 z = 6;
  }

  message Item {
    string name = 1;
    .shop.v1.Order.Item.message self = 2;

    message message {}
  }
  enum Kind {
    reserved 5 to 7;
    option allow_alias = true;
    UNKNOWN = 0;
    NEGATIVE = -1;
    NONE = 0 [deprecated = true];
  }
}
enum Top {
  ZERO = 0;
  EIGHT = 8;
}

service Shop {
  option deprecated = true;

  rpc Buy (Order) returns (stream Order.Item) {
    option idempotency_level = IDEMPOTENT;
  };
  rpc Sell (stream .shop.v1.Order) returns (Order);
}
"""


def test_canonical_text_is_that_of_confluent() -> None:
    assert proto(EVERYTHING).canonical == CANONICAL
    assert proto(CANONICAL).canonical == CANONICAL


def test_normalized_text_is_sorted_and_has_full_names() -> None:
    normalized = proto(EVERYTHING).normalized
    assert proto(normalized).normalized == normalized
    message = normalized[normalized.index("message Order") : normalized.index("  enum Kind")]
    assert (
        message
        == """message Order {
  reserved 9 to 11;
  reserved 12;
  reserved 20 to 536870911;
  reserved "old";
  reserved "older";

  option deprecated = true;
  option (message) = -1;

  repeated sint32 numbers = 1 [packed = false];
  optional string note = 2;
  .shop.v1.Order.Item item = 3 [
    deprecated = true,
    json_name = "theItem"
  ];
  map<string, .shop.v1.Order.Item> by_name = 4;
  .google.protobuf.Timestamp at = 13;
  .shop.v1.Order.Kind kind = 14;

  oneof other {
    int32 z = 6;
  }
  oneof payment {
    option (one) = X;

    bytes cash = 7 [deprecated = false];
    string card = 8;
  }

  message Item {
    string name = 1;
    .shop.v1.Order.Item.message self = 2;

    message message {}
  }
"""
    )
    assert "rpc Sell (stream .shop.v1.Order) returns (.shop.v1.Order);" in normalized


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("message M { int32 b = 2; int32 a = 1; }", "message M { int32 a = 1; int32 b = 2; }"),
        ("message M { M m = 1; }", "message M { .M m = 1; }"),
        ("option php_namespace = 'p'; option go_package = 'g'; message M {}",
         'option go_package = "g"; option php_namespace = "p"; message M { }'),
        ("enum E { Z = 0; B = 2; A = 1; }", "enum E { Z = 0; A = 1; B = 2; } // c"),
        ("message M { map<string, int32> m = 1; }",
         "message M { message MEntry { option map_entry = true; string key = 1; int32 value = 2; } "
         "repeated MEntry m = 1; }"),
        ("import 'google/protobuf/any.proto'; import 'google/protobuf/empty.proto'; message M {}",
         "import 'google/protobuf/empty.proto'; import 'google/protobuf/any.proto'; message M {}"),
    ],
)  # fmt: skip
def test_equal_schemas_have_one_normalized_text(one: str, other: str) -> None:
    first, second = (proto(f"syntax = 'proto3'; package p; {text}".replace(".M", ".p.M")) for text in (one, other))
    assert first.canonical != second.canonical or one.split() != other.split()
    assert first.normalized == second.normalized


def test_messages_keep_their_order() -> None:
    """The index of a message is part of every record of Confluent's format."""
    text = 'syntax = "proto3"; message B { message D {} message C {} } message A {}'
    assert [line.strip() for line in proto(text).normalized.splitlines() if "message" in line] == [
        "message B {",
        "message D {}",
        "message C {}",
        "message A {}",
    ]


def test_proto2_is_read() -> None:
    text = """
    message M {
      required int32 a = 1 [default = -5]; optional string s = 2 [default = "x;"];
      optional group G = 3 { optional int32 b = 1; }
      oneof o { int32 c = 4; group H = 5 { required double inf = 1 [default = -inf]; } }
      extensions 100 to 199, 300, 1000 to max;
      extend M { optional int32 e = 100; }
    }
    extend M { repeated M f = 101; }
    """
    parsed = proto(text)
    assert (
        parsed.canonical
        == """
message M {
  required int32 a = 1 [default = -5];
  optional string s = 2 [default = "x;"];

  oneof o {
    int32 c = 4;

    group H = 5 {
      required double inf = 1 [default = -inf];
    }
  }

  optional group G = 3 {
    optional int32 b = 1;
  }

  extensions 100 to 199, 300, 1000 to max;

  extend M {
    optional int32 e = 100;
  }
}

extend M {
  repeated M f = 101;
}
"""
    )
    assert proto(parsed.canonical).canonical == parsed.canonical
    assert proto(parsed.normalized).normalized == parsed.normalized


INVALID = [
    ("message M { optional M a = 1 [json_name = '\\377']; }", "bytes that are not UTF-8"),
    ("message M { reserved '\\377'; }", "bytes that are not UTF-8"),
    ("message M { option (a). = 1; }", 'the name of an option is expected, not "="'),
    ("message M { option (a.b = 1; }", '")" is expected, not "="'),
    ("message M { option x = {[a b}]: 1}; }", 'the name of an extension is expected, not "ab}"'),
    ("message M { option x = - \"a\"; }", "a value is expected"),
    ("", "the file declares nothing; declare a message"),
    ("syntax = 'proto3';", "the file declares nothing"),
    ("syntax = 'proto4';", 'line 1, column 10: the syntax "proto4" is unknown'),
    ("syntax = 'proto3'; syntax = 'proto3';", "the file has two syntaxes"),
    ("edition = '2023';", "editions are not supported"),
    ("package a; package b;", "the file has two packages"),
    ("foo;", 'line 1, column 1: a declaration such as "message" is expected, not "foo"'),
    ("import 'x.proto'; message M {}", 'the import "x.proto" has no schema; add a reference with the name "x.proto"'),
    ("syntax = 'proto3';\n\n  message M { int32 a = 1 }", 'line 3, column 27: ";" is expected, not "}"'),
    ("syntax = 'proto3'; message M { int32 = 1; }", "the name of a"),
    ("syntax = 'proto3'; message M { int32 a = x; }", 'the number of the field is expected, not "x"'),
    ("syntax = 'proto3'; message M { int32 a = 0; }", "the number of a field is from 1 to 536870911"),
    ("syntax = 'proto3'; message M { int32 a = 19500; }", "without 19000 to 19999"),
    ("syntax = 'proto3'; message M { int32 a = 09; }", '"09" is not an octal number'),
    ("syntax = 'proto3'; message M { map<double, int32> a = 1; }", "has keys of type double"),
    ("syntax = 'proto3'; message M { repeated map<string, int32> a = 1; }", "a map has no label"),
    ("syntax = 'proto3'; message M { oneof o { repeated int32 a = 1; } }", "a field of a oneof has no label"),
    ("syntax = 'proto3'; message M { option map_entry = true; string key = 1; }", "needs the fields key = 1 and value"),
    ("syntax = 'proto3'; message M { option map_entry = true; float key = 1; int32 value = 2; }", "a key of type"),
    ("syntax = 'proto3'; message M { oneof o { } }", 'the oneof "o" of "M" is empty'),
    ("syntax = 'proto3'; message M { X a = 1; }", 'the type "X" of the field "a" of "M" is unknown'),
    ("syntax = 'proto3'; message M { map<string, X> a = 1; }", 'the type "X" of the field "a" of "M" is unknown'),
    ("syntax = 'proto3'; message M { google.protobuf.Any a = 1; }", 'the type "google.protobuf.Any" of the field'),
    ("syntax = 'proto3'; service S { rpc A (X) returns (X); }", 'the type "X" of the call "S.A" is unknown'),
    ("syntax = 'proto3'; extend X { string a = 1; }", 'the type "X" of the extension of "X" is unknown'),
    ("syntax = 'proto3'; message M { int32 a = 1; int32 b = 1; }", 'the fields "a" and "b" of "M" have the same'),
    ("syntax = 'proto3'; message M { int32 N = 1; message N {} }", '"M" declares the name "N" twice'),
    ("syntax = 'proto3'; message M { enum E { A = 0; } enum F { A = 0; } }", '"M" declares the name "A" twice'),
    ("syntax = 'proto3'; message M {} service M {}", 'the file declares the name "M" twice'),
    ("syntax = 'proto3'; message M { int32 a = 1; oneof o { int32 b = 1; } }", "have the same number, 1"),
    ("syntax = 'proto3'; message M { int32 a = 1; int32 a = 2; }", '"M" declares the name "a" twice'),
    ("syntax = 'proto3'; message M {} message M {}", 'the file declares the name "M" twice'),
    ("syntax = 'proto3'; package p; message M {} enum M { Z = 0; }", 'the file declares the name "M" twice'),
    ("syntax = 'proto3'; message M { required int32 a = 1; }", "is required, which only proto2 has"),
    ("syntax = 'proto3'; message M { optional group G = 1 {} }", '"M" has a group, which only proto2 has'),
    ("message M { int32 a = 1; }", 'the field "a" of "M" has no label; proto2 needs optional, required or repeated'),
    ("syntax = 'proto3'; enum E { }", 'the enum "E" is empty'),
    ("syntax = 'proto3'; enum E { A = 1; }", 'the first constant of the enum "E" is not 0'),
    ("syntax = 'proto3'; enum E { A = 0; A = 1; }", 'the file declares the name "A" twice'),
    ("syntax = 'proto3'; enum E { A = 0; B = 0; }", "have the same number, 0; give one of them a new number, or set"),
    ("syntax = 'proto3'; enum E { A = 4294967296; }", "the number of a constant has 32 bits"),
    ("syntax = 'proto3'; message M { option x = ; }", 'a value is expected, not ";"'),
    ("syntax = 'proto3'; message M {", "the file ends in the middle of a declaration"),
    ("syntax = 'proto3'; message M { string a = 1 [json_name = \"x]; }", "a string has no closing quote"),
    ("syntax = 'proto3'; /* message M {}", "a comment has no end"),
    ("syntax = 'proto3'; message M { option x = { a 1 }; }", '"{" is expected, not "1"'),
    ("not base64 and no file", 'a declaration such as "message" is expected'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "problem"), INVALID, ids=[text for text, _ in INVALID])
def test_invalid_schema_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(InvalidSchemaError) as error:
        proto(text)
    assert problem in error.value.message


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("enum E { Z = 0; reserved 100 to max; }", "reserved 100 to max;"),
        ("enum E { Z = 0; reserved 100 to 2147483647; }", "reserved 100 to max;"),
        ("message M { reserved 100 to max; }", "reserved 100 to 536870911;"),
        ("message M { option (a) .b . ( c . d ) = 1; }", "option (a).b.(c.d) = 1;"),
        ("message M { option (x).(y).z.(.w) = true; }", "option (x).(y).z.(.w) = true;"),
        ("message M { option features.(pb.go).api = A; }", "option features.(pb.go).api = A;"),
        ("message M { option (x) = - /* minus */ 5; }", "option (x) = -5;"),
        ("message M { option (x) = { n: - inf m: [- 1] }; }", "n: -inf"),
        ('message M { option (x) = "\\377\\u00e9\\001"; }', 'option (x) = "\\377é\\001";'),
        ("import weak 'google/protobuf/any.proto'; message M {}", 'import weak "google/protobuf/any.proto";'),
    ],
)
def test_text_is_stored_with_its_meaning(text: str, stored: str) -> None:
    parsed = proto(f'syntax = "proto3"; {text}')
    for written in (parsed.canonical, parsed.normalized):
        assert stored in written
    assert proto(parsed.canonical).canonical == parsed.canonical


def test_the_default_of_bytes_keeps_its_bytes_in_a_descriptor() -> None:
    text = r'message M { optional bytes a = 1 [default = "\377\x00\"\303\277"]; '
    text += r'optional string b = 2 [default = "\377"]; }'
    data = base64.b64decode(proto(text).formatted("serialized"))
    assert rb"\377\000\"\303\277" in data
    again = proto(base64.b64encode(data).decode()).canonical
    assert r'[default = "\377\000\"ÿ"]' in again
    assert r'b = 2 [default = "\377"]' in again


def test_references_are_imported() -> None:
    text = 'syntax = "proto3"; package a; import "dir/b.proto"; message M { b.N n = 1; c.O o = 2; }'
    second = 'syntax = "proto3"; package b; import public "c.proto"; message N {}'
    third = Schema(SchemaType.PROTOBUF, 'syntax = "proto3"; package c; message O {}')
    parsed = parse(
        Schema(SchemaType.PROTOBUF, text, (Reference("dir/b.proto", "b", 1),)),
        {"dir/b.proto": Schema(SchemaType.PROTOBUF, second, (Reference("c.proto", "c", 1),)), "c.proto": third},
    )
    assert ".b.N n = 1;" in parsed.normalized
    assert ".c.O o = 2;" in parsed.normalized
    with pytest.raises(InvalidSchemaError, match=r'in the reference "b.proto": the import "x.proto" has no schema'):
        proto('syntax = "proto3"; import "b.proto"; message M {}', b__proto='import "x.proto"; message N {}')
    with pytest.raises(InvalidSchemaError, match=r'in the reference "b.proto": invalid Protobuf schema at line 1'):
        proto('syntax = "proto3"; import "b.proto"; message M {}', b__proto="message N {")


def test_base64_may_have_line_breaks() -> None:
    data = base64.encodebytes(base64.b64decode(proto(CANONICAL).formatted("serialized"))).decode()
    assert "\n" in data.strip()
    assert "message Order {" in proto(data).canonical
