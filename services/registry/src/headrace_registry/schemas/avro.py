"""Avro schemas: parsing, Confluent's canonical text and the normalized text.

This module follows Avro's Java implementation, because Confluent's registry uses that implementation. The same texts
are valid, and ``canonical`` is the output of Java's ``Schema.toString``. The Python packages ``avro`` and ``fastavro``
accept other texts, and write other texts. The tests compare the verdicts of these packages with those of Headrace.

The tree of a schema has one object for each place of the text, and named types appear in many places. So the tree is
a graph, with cycles for recursive records. The text that defines a name comes before the uses of the name.

Source: the Avro specification 1.12, "Schema Declaration".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final, NoReturn

from headrace_registry.schemas import json_text
from headrace_registry.schemas.json_text import quoted
from headrace_registry.schemas.model import (
    DEFAULT_STEPS_MAX,
    DEPTH_MAX,
    InvalidSchemaError,
    Names,
    Parsed,
    Schema,
    SchemaType,
    check_size,
    in_order,
)

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_ORDERS: Final = ("ascending", "descending", "ignore")
_SCHEMA_KEYS: Final = frozenset(
    ("type", "name", "namespace", "doc", "aliases", "fields", "symbols", "items", "values", "size")
)
_ENUM_KEYS: Final = _SCHEMA_KEYS | {"default"}
_FIELD_KEYS: Final = frozenset(("name", "type", "doc", "default", "order", "aliases"))
_ABSENT: Final = object()
_INT, _LONG = 1 << 31, 1 << 63


@dataclass(frozen=True, slots=True)
class Name:
    """The name of a type: its namespace ("" for none) and its simple name."""

    space: str
    simple: str

    @property
    def full(self) -> str:
        return f"{self.space}.{self.simple}" if self.space else self.simple

    def seen_from(self, space: str) -> str:
        """The shortest spelling of the name for a text in a namespace."""
        return self.simple if self.space == space and self.simple not in PRIMITIVES else self.full


@dataclass(eq=False, slots=True)
class Node:
    """A type at one place of a schema. ``kind`` is Avro's name of the type, ``props`` the keys that Avro ignores."""

    kind: str
    props: dict[str, Any] = field(default_factory=dict, kw_only=True)


@dataclass(eq=False, slots=True)
class Array(Node):
    items: Node


@dataclass(eq=False, slots=True)
class Map(Node):
    values: Node


@dataclass(eq=False, slots=True)
class Union(Node):
    branches: list[Node]


@dataclass(eq=False, slots=True)
class Named(Node):
    """A type with a name: a record, an enum or a fixed."""

    name: Name
    doc: str | None
    aliases: list[Name] = field(default_factory=list, kw_only=True)


@dataclass(eq=False, slots=True)
class Enum(Named):
    symbols: list[str]
    default: str | None


@dataclass(eq=False, slots=True)
class Fixed(Named):
    size: int


@dataclass(eq=False, slots=True)
class Field:
    """A field of a record. ``default`` is a JSON value; ``has_default`` distinguishes a default of null from no
    default."""

    name: str
    type: Node
    doc: str | None
    default: Any
    order: str
    aliases: list[str]
    props: dict[str, Any]

    @property
    def has_default(self) -> bool:
        return self.default is not _ABSENT


@dataclass(eq=False, slots=True)
class Record(Named):
    is_error: bool
    fields: list[Field] = field(default_factory=list)
    by_name: dict[str, Field] = field(default_factory=dict)


class AvroSchema(Parsed):
    """A parsed Avro schema. ``root`` is the type that the text declares."""

    type: ClassVar = SchemaType.AVRO

    def __init__(self, schema: Schema, root: Node, known: frozenset[str]) -> None:
        """``known`` has the full names that the references of the schema define."""
        super().__init__(schema, _Writer(known, normalize=False).text(root))
        self.root = root
        self._known = known

    @cached_property
    def normalized(self) -> str:
        """The canonical text with sorted properties and aliases, and without empty documentation of types. An error
        type becomes a record, and an integer as the default of a float or double becomes a double."""
        return _Writer(self._known, normalize=True).text(self.root)

    def formatted(self, form: str) -> str:
        """The schema in another format: ``resolved`` has the definitions of all types that the schema references. Raise
        InvalidSchemaError if these definitions nest too deeply."""
        if form == "resolved":
            return _Writer(frozenset(), normalize=False).text(self.root)
        return super().formatted(form)


def parse(schema: Schema, resolved: Mapping[str, Schema], *, check_defaults: bool = True) -> AvroSchema:
    """Parse an Avro schema. ``resolved`` has the schema of each name in its references, direct or transitive.

    ``check_defaults=False`` accepts defaults of the wrong type, which old versions of Confluent's registry stored.
    Raise InvalidSchemaError.
    """
    check_size(schema)
    names: dict[str, Named] = {}
    counted = Names()
    for reference, dependency in in_order(schema, resolved):
        check_size(dependency)
        try:
            _Reader(names, counted, check_defaults=False).read(dependency.text)
        except InvalidSchemaError as error:
            raise InvalidSchemaError(f'in the reference "{reference}": {error.message}') from None
    known = frozenset(names)
    root = _Reader(names, counted, check_defaults).read(schema.text)
    parsed = AvroSchema(schema, root, known)
    parsed.kept_characters = counted.kept
    return parsed


class _Reader:
    """Reads one text. ``names`` has the named types by full name; the reader adds the named types of the text."""

    def __init__(self, names: dict[str, Named], counted: Names, check_defaults: bool) -> None:
        self._names = names
        self._counted = counted
        self._check_defaults = check_defaults
        self._path: list[str | int] = []
        self._default_steps = 0

    def read(self, text: str) -> Node:
        return self._type(json_text.read(text, comments=True), "")

    def _refuse(self, problem: str, *below: str | int) -> NoReturn:
        raise InvalidSchemaError(f"invalid Avro schema at {json_text.pointer([*self._path, *below])}: {problem}")

    def _at(self, value: Any, space: str, *below: str | int) -> Node:
        """Read the type at the place ``below`` the current place of the schema."""
        self._path.extend(below)
        node = self._type(value, space)
        del self._path[-len(below) :]
        return node

    def _type(self, value: Any, space: str) -> Node:
        if isinstance(value, str):
            return self._named(value, space) or self._refuse(f'"{value}" is neither a type of Avro nor a defined name')
        if isinstance(value, list):
            return self._union(value, space)
        if not isinstance(value, dict):
            self._refuse(f"a type is a name, an object or an array, not {json_text.kind(value)}")
        return self._object(value, space)

    def _named(self, name: str, space: str) -> Node | None:
        """The type of a name: a new node of a primitive type, a named type, or None."""
        if name in PRIMITIVES:
            return Node(name)
        self._counted.look_up(len(space) + len(name))
        if space and "." not in name and (found := self._names.get(f"{space}.{name}")):
            return found
        return self._names.get(name.removeprefix(".") if name.count(".") == 1 else name)

    def _union(self, branches: list[Any], space: str) -> Union:
        nodes = []
        seen: set[str] = set()
        for index, branch in enumerate(branches):
            node = self._at(branch, space, index)
            if isinstance(node, Union):
                self._refuse("a union cannot directly contain another union", index)
            label = node.name.full if isinstance(node, Named) else node.kind
            if label in seen:
                self._refuse(f'the union has the type "{label}" twice', index)
            seen.add(label)
            nodes.append(node)
        return Union("union", nodes)

    def _object(self, value: dict[str, Any], space: str) -> Node:
        kind = self._text(value, "type", "the name of a type; write the type itself instead of an object around it")
        if kind in PRIMITIVES:
            node = Node(kind)
        elif kind == "array":
            node = Array(kind, self._at(self._need(value, "items"), space, "items"))
        elif kind == "map":
            node = Map(kind, self._at(self._need(value, "values"), space, "values"))
        elif kind in ("record", "error", "enum", "fixed"):
            return self._definition(value, kind, space)
        else:
            return self._named(kind, space) or self._refuse(
                f'"{kind}" is neither a type of Avro nor a defined name', "type"
            )
        node.props = {key: item for key, item in value.items() if key not in _SCHEMA_KEYS}
        return node

    def _definition(self, value: dict[str, Any], kind: str, space: str) -> Named:
        own_space = self._text(value, "namespace", None)
        name = self._name(self._text(value, "name", "the name of the type"), space if own_space is None else own_space)
        doc = self._text(value, "doc", None)
        keys = _SCHEMA_KEYS
        node: Named
        if kind == "enum":
            keys = _ENUM_KEYS
            node = Enum(kind, name, doc, self._symbols(value), self._text(value, "default", None))
            if node.default is not None and node.default not in node.symbols:
                self._refuse(f'the default "{node.default}" is not a symbol of the enum', "default")
            self._define(node)
        elif kind == "fixed":
            size = self._need(value, "size")
            if type(size) is not int or not 0 <= size < _INT:
                self._refuse(f"the size of a fixed is a number of bytes from 0 to {_INT - 1}", "size")
            node = Fixed(kind, name, doc, size)
            self._define(node)
        else:
            node = Record("record", name, doc, kind == "error")
            self._define(node)  # do this before the fields, which may refer to their record
            self._fields(node, self._need(value, "fields"))
        node.props = {key: item for key, item in value.items() if key not in keys}
        node.aliases = [
            self._name(alias, name.space, "aliases", index) for index, alias in enumerate(self._aliases(value))
        ]
        self._counted.look_up(sum(len(alias.space) + len(alias.simple) for alias in node.aliases))
        return node

    def _define(self, node: Named) -> None:
        full = node.name.full
        self._counted.define(len(full))
        if full in PRIMITIVES:
            self._refuse(f'"{full}" is the name of a primitive type; give the {node.kind} another name', "name")
        if full in self._names:
            self._refuse(f'the name "{full}" is defined twice; give one of both types another name', "name")
        self._names[full] = node

    def _symbols(self, value: dict[str, Any]) -> list[str]:
        symbols = self._need(value, "symbols")
        if not isinstance(symbols, list):
            self._refuse(f"the symbols of an enum are an array, not {json_text.kind(symbols)}", "symbols")
        seen: dict[str, None] = {}
        for index, symbol in enumerate(symbols):
            if not isinstance(symbol, str):
                self._refuse(f"a symbol is a string, not {json_text.kind(symbol)}", "symbols", index)
            self._check_name(symbol, "symbols", index)
            if symbol in seen:
                self._refuse(f'the enum has the symbol "{symbol}" twice', "symbols", index)
            seen[symbol] = None
        return list(seen)

    def _fields(self, record: Record, values: Any) -> None:
        if not isinstance(values, list):
            self._refuse(f"the fields of a record are an array, not {json_text.kind(values)}", "fields")
        for index, value in enumerate(values):
            self._path.extend(("fields", index))
            if not isinstance(value, dict):
                self._refuse(f"a field is an object, not {json_text.kind(value)}")
            one = self._field(value, record.name.space)
            if one.name in record.by_name:
                self._refuse(f'the record "{record.name.full}" has the field "{one.name}" twice', "name")
            del self._path[-2:]
            record.fields.append(one)
            record.by_name[one.name] = one

    def _field(self, value: dict[str, Any], space: str) -> Field:
        name = self._text(value, "name", "the name of the field")
        self._check_name(name, "name")
        node = self._at(self._need(value, "type"), space, "type")
        default = value.get("default", _ABSENT)
        if isinstance(default, str) and node.kind in ("float", "double"):
            default = self._double(default)
        order = self._text(value, "order", None)
        if order is not None and order.lower() not in _ORDERS:
            self._refuse(f'the order "{order}" is none of {", ".join(_ORDERS)}', "order")
        if default is not _ABSENT and self._check_defaults and not self._is_valid_default(node, default):
            shown = json_text.write(default)
            self._refuse(
                f'the default {shown if len(shown) <= 80 else shown[:80] + "…"} of the field "{name}" is not a '
                f"value of the field's type, {_described(node)}",
                "default",
            )
        return Field(
            name,
            node,
            self._text(value, "doc", None),
            default,
            (order or "ascending").lower(),
            list(dict.fromkeys(self._aliases(value))),
            {key: item for key, item in value.items() if key not in _FIELD_KEYS},
        )

    def _double(self, digits: str) -> float:
        try:
            return float(digits)
        except ValueError:
            self._refuse(f'the default "{digits[:40]}" is not a number', "default")

    def _aliases(self, value: dict[str, Any]) -> list[str]:
        aliases = value.get("aliases", [])
        if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
            self._refuse("the aliases are an array of strings", "aliases")
        return aliases

    def _need(self, value: dict[str, Any], key: str) -> Any:
        found = value.get(key, _ABSENT)
        if found is _ABSENT:
            self._refuse(f'the key "{key}" is missing')
        return found

    def _text(self, value: dict[str, Any], key: str, needed_as: str | None) -> Any:
        """The string that ``value`` has for ``key``; None if there is no string and ``needed_as`` is None."""
        found = value.get(key)
        if isinstance(found, str):
            return found
        if needed_as is not None:
            self._refuse(f'the key "{key}" is missing or is not a string; it must be {needed_as}')
        return None

    def _name(self, text: str, space: str, *below: str | int) -> Name:
        """The name that a text denotes: a full name if the text has a dot, else a name in ``space``."""
        given_space, dot, simple = text.rpartition(".")
        self._check_name(simple, *(below or ("name",)))
        return Name(given_space if dot else space, simple)

    def _check_name(self, name: str, *below: str | int) -> None:
        if not name:
            self._refuse("the name is empty", *below)
        if not (name[0].isalpha() or name[0] == "_"):
            self._refuse(f'the name "{name}" begins with neither a letter nor "_"', *below)
        for character in name:
            if not (character.isalnum() or character == "_"):
                self._refuse(
                    f'the name "{name}" has the character "{character}"; letters, digits and "_" are allowed', *below
                )

    def _is_valid_default(self, node: Node, value: Any, depth: int = 0) -> bool:
        """Whether the JSON value is a valid default of the type ``node``. The default of a union may be a value of any
        branch. ``depth``: number of types around ``node``; the defaults of records can nest deeper than the text."""
        self._default_steps += 1
        if depth > DEPTH_MAX:
            self._refuse(f"the defaults are nested deeper than {DEPTH_MAX} types; simplify them", "default")
        if self._default_steps > DEFAULT_STEPS_MAX:
            self._refuse(f"the check of the defaults takes more than {DEFAULT_STEPS_MAX} steps; simplify them")
        match node:
            case Record():
                return isinstance(value, dict) and all(
                    (one.has_default or one.name in value)
                    and self._is_valid_default(one.type, value.get(one.name, one.default), depth + 1)
                    for one in node.fields
                )
            case Array():
                return isinstance(value, list) and all(
                    self._is_valid_default(node.items, item, depth + 1) for item in value
                )
            case Map():
                return isinstance(value, dict) and all(
                    self._is_valid_default(node.values, item, depth + 1) for item in value.values()
                )
            case Union():
                return any(self._is_valid_default(branch, value, depth + 1) for branch in node.branches)
            case Enum() | Fixed():
                return isinstance(value, str)
        match node.kind:
            case "null":
                return value is None
            case "boolean":
                return isinstance(value, bool)
            case "int":
                return type(value) is int and -_INT <= value < _INT
            case "long":
                return type(value) is int and -_LONG <= value < _LONG
            case "float" | "double":
                return type(value) in (int, float)
        return isinstance(value, str)  # bytes, string


def _described(node: Node) -> str:
    if isinstance(node, Named):
        return f'the {node.kind} "{node.name.full}"'
    if isinstance(node, Union):
        return f"the union of {', '.join(_described(branch) for branch in node.branches[:20])}"
    return node.kind


class _Writer:
    """Writes a schema as Java's ``Schema.toString``: a named type is defined at its first place, and only named at
    later places."""

    def __init__(self, known: frozenset[str], *, normalize: bool) -> None:
        self._written = set(known)
        self._normalize = normalize
        self._parts: list[str] = []
        self._depth = 0

    def text(self, root: Node) -> str:
        self._type(root, "")
        return "".join(self._parts)

    def _type(self, node: Node, space: str) -> None:
        match node:
            case Union():
                self._parts.append("[")
                for index, branch in enumerate(node.branches):
                    if index:
                        self._parts.append(",")
                    self._type(branch, space)
                self._parts.append("]")
            case Named() if node.name.full in self._written:
                self._parts.append(quoted(node.name.seen_from(space)))
            case Named():
                self._written.add(node.name.full)
                self._definition(node, space)
            case Array():
                self._parts.append('{"type":"array","items":')
                self._type(node.items, space)
                self._props(node.props)
                self._parts.append("}")
            case Map():
                self._parts.append('{"type":"map","values":')
                self._type(node.values, space)
                self._props(node.props)
                self._parts.append("}")
            case _ if node.props:
                self._parts.append(f'{{"type":"{node.kind}"')
                self._props(node.props)
                self._parts.append("}")
            case _:
                self._parts.append(f'"{node.kind}"')

    def _definition(self, node: Named, space: str) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise InvalidSchemaError(
                f"the definitions of the schema and of its references nest deeper than {DEPTH_MAX} levels; ask for the "
                "schema without its references"
            )
        is_error = isinstance(node, Record) and node.is_error and not self._normalize
        self._parts.append(f'{{"type":"{"error" if is_error else node.kind}","name":{quoted(node.name.simple)}')
        if node.name.space != space:
            self._parts.append(f',"namespace":{quoted(node.name.space)}')
        if node.doc or (node.doc is not None and not self._normalize):
            self._parts.append(f',"doc":{quoted(node.doc)}')
        match node:
            case Record():
                self._parts.append(',"fields":[')
                for index, one in enumerate(node.fields):
                    if index:
                        self._parts.append(",")
                    self._field(one, node.name.space)
                self._parts.append("]")
            case Enum():
                self._parts.append(f',"symbols":{json_text.write(node.symbols)}')
                if node.default is not None:
                    self._parts.append(f',"default":{quoted(node.default)}')
            case Fixed():
                self._parts.append(f',"size":{node.size}')
        self._props(node.props)
        aliases = dict.fromkeys(node.aliases)
        if aliases:
            ordered = sorted(aliases, key=lambda alias: alias.full) if self._normalize else aliases
            self._parts.append(f',"aliases":{json_text.write([alias.seen_from(node.name.space) for alias in ordered])}')
        self._parts.append("}")
        self._depth -= 1

    def _field(self, one: Field, space: str) -> None:
        self._parts.append(f'{{"name":{quoted(one.name)},"type":')
        self._type(one.type, space)
        if one.doc is not None:
            self._parts.append(f',"doc":{quoted(one.doc)}')
        if one.has_default:
            default = _as_typed(one.type, one.default) if self._normalize else one.default
            self._parts.append(f',"default":{json_text.write(default, sort=self._normalize)}')
        if one.order != "ascending":
            self._parts.append(f',"order":"{one.order}"')
        if one.aliases:
            self._parts.append(f',"aliases":{json_text.write(sorted(one.aliases) if self._normalize else one.aliases)}')
        self._props(one.props)
        self._parts.append("}")

    def _props(self, props: dict[str, Any]) -> None:
        for key in sorted(props) if self._normalize else props:
            self._parts.append(f",{quoted(key)}:{json_text.write(props[key], sort=self._normalize)}")


def _as_typed(node: Node, value: Any) -> Any:
    """A default as a value of its type: a whole number becomes a double for a field of type float or double."""
    if isinstance(node, Union) and node.branches:
        node = node.branches[0]
    if node.kind in ("float", "double") and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return value
    if isinstance(node, Array) and isinstance(value, list):
        return [_as_typed(node.items, item) for item in value]
    if isinstance(node, Map) and isinstance(value, dict):
        return {key: _as_typed(node.values, item) for key, item in value.items()}
    if isinstance(node, Record) and isinstance(value, dict):
        types = node.by_name
        return {key: _as_typed(types[key].type, item) if key in types else item for key, item in value.items()}
    return value
