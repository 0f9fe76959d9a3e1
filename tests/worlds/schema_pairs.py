"""Random pairs of schemas, one to three edits apart: Protobuf files and JSON Schemas (draft 7). Seeded.

Each kind of edit makes an old and a new piece; a pair puts one to three pieces into one schema. Half of the pairs are
turned round, so that each edit is a relaxation in some pairs and a restriction in others.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SchemaPair:
    """``edits``: the kinds of edit that lie between the schemas."""

    language: str
    edits: tuple[str, ...]
    old: str
    new: str


def pairs(seed: int, count: int, language: str) -> Iterator[SchemaPair]:
    """``count`` pairs; each kind of edit comes first in every len(KINDS)-th pair."""
    kinds, made = (JSON_KINDS, _json_pair) if language == "JSON" else (PROTOBUF_KINDS, _protobuf_pair)
    names = list(kinds)
    for number in range(count):
        choice = random.Random(f"{seed}-{language}-{number}")
        more = choice.choices(names, k=choice.choice([0, 0, 0, 1, 1, 2]))
        edits = (names[number % len(names)], *more)
        old, new = made(choice, edits)
        if choice.random() < 0.5:
            old, new = new, old
        yield SchemaPair(language, edits, old, new)


# --- JSON Schema ------------------------------------------------------------------------------------------------------

_Choice = random.Random
_JsonKind = Callable[[_Choice], tuple[Any, Any]]


def _scalar(choice: _Choice) -> Any:
    return choice.choice(
        [
            {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"}, {},
            {"type": "string", "maxLength": 5}, {"type": "number", "minimum": 1}, {"type": ["string", "null"]},
            {"enum": ["a", "b"]}, {"const": "a"},
        ]
    )  # fmt: skip


def _bound(kind: str, keyword: str) -> _JsonKind:
    """A keyword with a number, which is changed, added or removed."""

    def make(choice: _Choice) -> tuple[Any, Any]:
        old, new = choice.sample([None, 1, 2, 3, 4, 6], 2)
        return tuple({"type": kind} | ({} if one is None else {keyword: one}) for one in (old, new))  # type: ignore[return-value]

    return make


def _keyword(kind: str | None, keyword: str, values: Callable[[_Choice], Any]) -> _JsonKind:
    """A keyword with any value, which is changed, added or removed."""

    def make(choice: _Choice) -> tuple[Any, Any]:
        base: dict[str, Any] = {} if kind is None else {"type": kind}
        given = choice.choice([0, 1, 2])
        old, new = values(choice), values(choice)
        return ({**base, keyword: old} if given else base, {**base, keyword: new} if given != 1 else base)

    return make


def _properties(choice: _Choice) -> dict[str, Any]:
    return {name: _scalar(choice) for name in choice.sample(["a", "b", "xa"], choice.randint(1, 3))}


def _content(choice: _Choice) -> dict[str, Any]:
    """A content model: open, closed, or partially open."""
    return choice.choice(
        [
            {},
            {"additionalProperties": False},
            {"additionalProperties": False},
            {"additionalProperties": _scalar(choice)},
            {"patternProperties": {"^x": _scalar(choice)}, "additionalProperties": False},
        ]
    )


def _property_added(choice: _Choice, *, required: bool, default: bool = False) -> tuple[Any, Any]:
    content = _content(choice)
    shared = {"a": {"type": "string"}}
    added = _scalar(choice) | ({"default": None} if default else {})
    new = {"type": "object", "properties": shared | {"xb": added}, **content}
    return {"type": "object", "properties": shared, **content}, new | ({"required": ["xb"]} if required else {})


def _required(choice: _Choice, *, default: bool = False) -> tuple[Any, Any]:
    known = {name: {"type": "string"} | ({"default": "x"} if default else {}) for name in ("a", "b")}
    old, new = choice.sample([[], ["a"], ["b"], ["a", "b"]], 2)
    return tuple({"type": "object", "properties": known, "required": one} for one in (old, new))  # type: ignore[return-value]


def _tuple_item(choice: _Choice) -> tuple[Any, Any]:
    rest = choice.choice([{}, {"additionalItems": False}, {"additionalItems": _scalar(choice)}])
    items = [_scalar(choice) for _ in range(choice.randint(1, 2))]
    return {"type": "array", "items": items, **rest}, {"type": "array", "items": [*items, _scalar(choice)], **rest}


def _parts(keyword: str) -> _JsonKind:
    def make(choice: _Choice) -> tuple[Any, Any]:
        parts = [{"type": "string"}, {"type": "integer", "maximum": 9}, {"type": "boolean"}]
        choice.shuffle(parts)
        kept = parts[: choice.randint(1, 2)]
        other = [*kept, parts[-1]] if choice.random() < 0.6 else [*kept[:-1], {**kept[-1], "title": "x"}, parts[-1]]
        return {keyword: kept}, {keyword: other}

    return make


def _criterion(choice: _Choice) -> tuple[Any, Any]:
    old, new = choice.sample(["allOf", "anyOf", "oneOf"], 2)
    parts = [{"type": "string", "minLength": 1}, {"type": "string", "maxLength": 9}][: choice.randint(1, 2)]
    return {old: parts}, {new: parts}


def _union(choice: _Choice) -> tuple[Any, Any]:
    one = {"type": choice.choice(["string", "integer"])}
    return one, {choice.choice(["anyOf", "oneOf", "allOf"]): [one, {"type": "null"}][: choice.randint(1, 2)]}


def _condition(choice: _Choice) -> tuple[Any, Any]:
    tested = {"required": ["a"]}
    branches = [{"then": {"required": ["b"]}}, {"else": {"maxProperties": 2}}, {}]
    old, new = choice.sample(branches, 2)
    return {"type": "object", "if": tested, **old}, {"type": "object", "if": tested, **new}


def _types(choice: _Choice) -> tuple[Any, Any]:
    names = ["string", "integer", "number", "boolean", "null", "object", "array"]
    old, new = (choice.sample(names, choice.randint(1, 3)) for _ in range(2))
    if choice.random() < 0.5:
        new = [*old, *(one for one in new if one not in old)]
    return {"type": old if len(old) > 1 else old[0]}, {"type": new if len(new) > 1 else new[0]}


def _enum(choice: _Choice) -> tuple[Any, Any]:
    old = choice.sample(["a", "b", 1, None], choice.randint(1, 3))
    new = choice.choice([[*old, "c"], [*old, 2.5], choice.sample(["a", "b", "c"], 2)])
    return {"enum": old}, {"enum": new}


def _annotation(keyword: str) -> _JsonKind:
    return _keyword("string", keyword, lambda choice: choice.choice(["a", "b", "c"]))


JSON_KINDS: dict[str, _JsonKind] = {
    "type": _types,
    "enum": _enum,
    "const": lambda choice: ({"const": choice.choice(["a", 1])}, {"const": choice.choice(["a", "b"])}),
    "multipleOf": _bound("number", "multipleOf"),
    "maximum": _bound("number", "maximum"),
    "exclusiveMaximum": _bound("integer", "exclusiveMaximum"),
    "minimum": _bound("integer", "minimum"),
    "exclusiveMinimum": _bound("number", "exclusiveMinimum"),
    "maxLength": _bound("string", "maxLength"),
    "minLength": _bound("string", "minLength"),
    "pattern": _keyword("string", "pattern", lambda choice: choice.choice(["^a", "b$", "."])),
    "format": _keyword("string", "format", lambda choice: choice.choice(["date", "email", "uuid"])),
    "items": _keyword("array", "items", _scalar),
    "items of a tuple": _tuple_item,
    "additionalItems": lambda choice: tuple(  # type: ignore[return-value,misc]
        {"type": "array", "items": [{"type": "string"}], "additionalItems": one}
        for one in choice.sample([True, False, {"type": "string"}, {"type": "string", "maxLength": 3}], 2)
    ),
    "maxItems": _bound("array", "maxItems"),
    "minItems": _bound("array", "minItems"),
    "uniqueItems": lambda choice: ({"type": "array"}, {"type": "array", "uniqueItems": choice.random() < 0.8}),
    "contains": _keyword("array", "contains", _scalar),
    "maxProperties": _bound("object", "maxProperties"),
    "minProperties": _bound("object", "minProperties"),
    "required": _required,
    "required with a default": lambda choice: _required(choice, default=True),
    "optional property": lambda choice: _property_added(choice, required=False),
    "required property": lambda choice: _property_added(choice, required=True),
    "required property with a default": lambda choice: _property_added(choice, required=True, default=True),
    "properties": _keyword("object", "properties", _properties),
    "patternProperties": _keyword("object", "patternProperties", lambda choice: {"^x": _scalar(choice)}),
    "additionalProperties": lambda choice: tuple(  # type: ignore[return-value,misc]
        {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": one}
        for one in choice.sample([True, False, {"type": "string"}, {"type": ["string", "null"]}], 2)
    ),
    "dependencies of names": _keyword(
        "object", "dependencies", lambda choice: {"a": choice.sample(["b", "c", "d"], choice.randint(1, 2))}
    ),
    "dependencies of schemas": _keyword(
        "object", "dependencies", lambda choice: {"a": {"minProperties": choice.randint(1, 3)}}
    ),
    "propertyNames": _keyword("object", "propertyNames", lambda choice: {"maxLength": choice.randint(1, 3)}),
    "if, then, else": _condition,
    "allOf": _parts("allOf"),
    "anyOf": _parts("anyOf"),
    "oneOf": _parts("oneOf"),
    "kind of combination": _criterion,
    "a union": _union,
    "not": lambda choice: tuple({"not": one} for one in choice.sample([{"type": "string"}, {"type": "integer"},  # type: ignore[return-value,misc]
                                {"type": "number"}, {"type": "string", "minLength": 2}], 2)),
    "title": _annotation("title"),
    "description": _annotation("description"),
    "default": _annotation("default"),
    "true and false": lambda choice: tuple(choice.sample([True, False, {"type": "string"}, {}], 2)),  # type: ignore[return-value,misc]
}  # fmt: skip


def _json_pair(choice: _Choice, edits: tuple[str, ...]) -> tuple[str, str]:
    schemas: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    content = choice.choice([{}, {"additionalProperties": False}])
    for schema in schemas:
        schema |= {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "definitions": {},
                   "properties": {"id": {"type": "integer"}}, "required": ["id"], **content}  # fmt: skip
    for at, kind in enumerate(edits):
        pieces = JSON_KINDS[kind](choice)
        place = choice.choice(["property", "property", "property", "item", "reference", "additional"])
        for schema, piece in zip(schemas, pieces, strict=True):
            if place == "reference":
                schema["definitions"][f"d{at}"] = piece
                piece = {"$ref": f"#/definitions/d{at}"}
            elif place == "item":
                piece = {"type": "array", "items": piece}
            elif place == "additional":
                piece = {"type": "object", "additionalProperties": piece}
            schema["properties"][f"p{at}"] = piece
    return json.dumps(schemas[0]), json.dumps(schemas[1])


# --- Protobuf ---------------------------------------------------------------------------------------------------------

_SCALARS = ["int32", "int64", "uint32", "uint64", "sint32", "sint64", "bool", "string", "bytes", "fixed32", "sfixed32",
            "fixed64", "sfixed64", "float", "double"]  # fmt: skip


class _Piece:
    """Makes the definitions of one edit. ``at`` keeps the names of several pieces apart; ``_`` is the label of an
    optional field."""

    def __init__(self, choice: _Choice, at: int, is_proto2: bool) -> None:
        self.choice, self.at, self.is_proto2 = choice, at, is_proto2
        self.optional = "optional " if is_proto2 else ""

    def field(self, number: int, kind: str = "", name: str = "", label: str | None = None) -> str:
        kind = kind or self.choice.choice(_SCALARS)
        label = ("" if kind.startswith("map<") else self.optional) if label is None else label
        return f"{label}{kind} {name or f'f{number}'} = {number};"

    def message(self, *body: str, name: str = "M") -> str:
        return f"message {name}{self.at} {{ {' '.join(body)} }}"

    def oneof(self, *fields: str, name: str = "choice") -> str:
        return f"oneof {name} {{ {' '.join(fields)} }}"

    def member(self, number: int, kind: str = "string") -> str:
        return f"{kind} f{number} = {number};"


_Protobuf = Callable[[_Piece], tuple[str, str]]


def _fields(old: Callable[[_Piece], list[str]], new: Callable[[_Piece], list[str]]) -> _Protobuf:
    """A message of the fields ``old`` and of the fields ``new``, after one field that both have."""

    def make(piece: _Piece) -> tuple[str, str]:
        first = piece.field(1, "int64", "id")
        return piece.message(first, *old(piece)), piece.message(first, *new(piece))

    return make


def _scalar_change(piece: _Piece) -> tuple[str, str]:
    old, new = piece.choice.sample(_SCALARS, 2)
    return piece.message(piece.field(1, old)), piece.message(piece.field(1, new))


def _within_group(piece: _Piece) -> tuple[str, str]:
    groups = [["int32", "int64", "uint32", "uint64", "bool"], ["string", "bytes"], ["sint32", "sint64"],
              ["fixed32", "sfixed32"], ["fixed64", "sfixed64"]]  # fmt: skip
    old, new = piece.choice.sample(piece.choice.choice(groups), 2)
    return piece.message(piece.field(1, old)), piece.message(piece.field(1, new))


def _enum_change(change: Callable[[list[str]], list[str]]) -> _Protobuf:
    def make(piece: _Piece) -> tuple[str, str]:
        at = piece.at
        values = [f"ZERO{at} = 0;", f"ONE{at} = 1;", f"TWO{at} = 2;"]
        user = piece.message(piece.field(1, f"E{at}"))
        return f"enum E{at} {{ {' '.join(values)} }} {user}", f"enum E{at} {{ {' '.join(change(values))} }} {user}"

    return make


def _two_types(piece: _Piece) -> tuple[str, str]:
    at = piece.at
    types = f"message A{at} {{ {piece.field(1, 'string')} }} message B{at} {{ {piece.field(1, 'string')} }} "
    return types + piece.message(piece.field(1, f"A{at}")), types + piece.message(piece.field(1, f"B{at}"))


def _kind_of_type(piece: _Piece) -> tuple[str, str]:
    at = piece.at
    types = f"message A{at} {{ {piece.field(1, 'string')} }} enum E{at} {{ NONE{at} = 0; }} "
    old, new = piece.choice.sample([f"A{at}", f"E{at}", "int32", "string", "map<string, int32>"], 2)
    return types + piece.message(piece.field(1, old)), types + piece.message(piece.field(1, new))


def _label(piece: _Piece) -> tuple[str, str]:
    kind = piece.choice.choice([*_SCALARS, "string", "bytes"])
    return piece.message(piece.field(1, kind)), piece.message(piece.field(1, kind, label="repeated "))


def _map_part(piece: _Piece) -> tuple[str, str]:
    keys, values = ["string", "int32", "int64", "bool"], ["string", "bytes", "int32", "double"]
    old, new = ((piece.choice.choice(keys), piece.choice.choice(values)) for _ in range(2))
    return tuple(piece.message(piece.field(1, f"map<{key}, {value}>")) for key, value in (old, new))  # type: ignore[return-value]


def _whole(old: Callable[[_Piece], str], new: Callable[[_Piece], str]) -> _Protobuf:
    return lambda piece: (old(piece), new(piece))


_M = _Piece.message
PROTOBUF_KINDS: dict[str, _Protobuf] = {
    "field added": _fields(lambda _: [], lambda one: [one.field(2)]),
    "repeated field added": _fields(lambda _: [], lambda one: [one.field(2, label="repeated ")]),
    "required field added": _fields(lambda _: [], lambda one: [one.field(2, label="required ")]),
    "required becomes optional": _fields(
        lambda one: [one.field(2, "string", label="required ")], lambda one: [one.field(2, "string")]
    ),
    "field renamed": _fields(lambda one: [one.field(2, "string")], lambda one: [one.field(2, "string", "other")]),
    "field renumbered": _fields(
        lambda one: [one.field(2, "string", "name")], lambda one: [one.field(3, "string", "name")]
    ),
    "scalar type": _scalar_change,
    "scalar type of the same group": _within_group,
    "label": _label,
    "kind of type": _kind_of_type,
    "message type": _two_types,
    "map": _map_part,
    "proto2 default": _fields(
        lambda one: ['optional string f2 = 2 [default = "a"];'], lambda one: ['optional string f2 = 2 [default = "b"];']
    ),
    "field option": _fields(
        lambda one: [one.field(2, "string")], lambda one: [f"{one.optional}string f2 = 2 [deprecated = true];"]
    ),
    "reserved": _fields(lambda _: [], lambda _: ["reserved 5 to 7; reserved 'old';"]),
    "message added": _whole(lambda one: one.message(), lambda one: f"{one.message()} {one.message(name='N')}"),
    "message renamed": _whole(lambda one: one.message(), lambda one: one.message(name="N")),
    "messages reordered": _whole(
        lambda one: f"{one.message()} {one.message(name='N')}", lambda one: f"{one.message(name='N')} {one.message()}"
    ),
    "nested message added": _whole(lambda one: one.message(), lambda one: one.message("message Inner {}")),
    "nested message moves out": _whole(
        lambda one: one.message("message Inner {}"), lambda one: f"{one.message()} message Inner{one.at} {{}}"
    ),
    "field of a nested message": _whole(
        lambda one: one.message(f"message Inner {{ {one.field(1, 'string')} }}", one.field(1, "Inner")),
        lambda one: one.message(f"message Inner {{ {one.field(1)} }}", one.field(1, "Inner")),
    ),
    "enum value added": _enum_change(lambda values: [*values, f"THREE{values[0][4:-5]} = 3;"]),
    "enum value renamed": _enum_change(lambda values: [*values[:2], f"DEUX{values[0][4:-5]} = 2;"]),
    "enum value renumbered": _enum_change(lambda values: [*values[:2], f"TWO{values[0][4:-5]} = 7;"]),
    "enum added": _whole(
        lambda one: one.message(), lambda one: f"{one.message()} enum E{one.at} {{ NONE{one.at} = 0; }}"
    ),
    "oneof around one field": _fields(lambda one: [one.field(2, "string")], lambda one: [one.oneof(one.member(2))]),
    "oneof around two fields": _fields(
        lambda one: [one.field(2, "string"), one.field(3, "string")],
        lambda one: [one.oneof(one.member(2), one.member(3))],
    ),
    "field moves into a oneof": _fields(
        lambda one: [one.field(2, "string"), one.oneof(one.member(3))],
        lambda one: [one.oneof(one.member(2), one.member(3))],
    ),
    "oneof field added": _fields(
        lambda one: [one.oneof(one.member(2))], lambda one: [one.oneof(one.member(2), one.member(3))]
    ),
    "oneof added": _fields(lambda _: [], lambda one: [one.oneof(one.member(2), one.member(3))]),
    "oneof renamed": _fields(
        lambda one: [one.oneof(one.member(2), one.member(3))],
        lambda one: [one.oneof(one.member(2), one.member(3), name="other")],
    ),
    "oneofs merged": _fields(
        lambda one: [one.oneof(one.member(2)), one.oneof(one.member(3), name="other")],
        lambda one: [one.oneof(one.member(2), one.member(3))],
    ),
    "type of a oneof field": _fields(
        lambda one: [one.oneof(one.member(2, "string"), one.member(3))],
        lambda one: [one.oneof(one.member(2, one.choice.choice(["bytes", "int32", "bool"])), one.member(3))],
    ),
    "type of a field that moves into a oneof": _fields(
        lambda one: [one.field(2, "string")], lambda one: [one.oneof(one.member(2, "int32"))]
    ),
    "package": _whole(lambda one: one.message(), lambda one: one.message()),
    "service added": _whole(
        lambda one: one.message(),
        lambda one: f"{one.message()} service S{one.at} {{ rpc Call(M{one.at}) returns (M{one.at}); }}",
    ),
    "file option": _whole(lambda one: one.message(), lambda one: one.message()),
}
_PROTO2 = {"required field added", "required becomes optional", "proto2 default"}


def _protobuf_pair(choice: _Choice, edits: tuple[str, ...]) -> tuple[str, str]:
    is_proto2 = any(kind in _PROTO2 for kind in edits) or choice.random() < 0.2
    package = choice.choice(["", "package shop;", "package shop.orders;"])
    head = f'syntax = "{"proto2" if is_proto2 else "proto3"}"; '
    texts = [head + package, head + package]
    for at, kind in enumerate(edits):
        piece = _Piece(choice, at, is_proto2)
        if kind == "package":
            texts[1] = texts[1].replace(package, "package other;") if package else f"{texts[1]} package other;"
        if kind == "file option" and kind not in edits[:at]:
            texts[1] += ' option java_package = "com.example";'
        for side, text in enumerate(PROTOBUF_KINDS[kind](piece)):
            texts[side] += f" {text}"
    return texts[0], texts[1]
