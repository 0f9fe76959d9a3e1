"""Avro schemas as trees: parse the JSON text of a schema, with the named types of its references.

The registry judges whether a schema is valid. This parser checks only the properties that the codec relies on, and
limits a schema's size, nesting and named types. Source: the Avro specification 1.12, "Schema Declaration".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: The largest schema text, in characters.
SCHEMA_BYTES_MAX = 5 * 1024 * 1024
#: Maximum nesting depth of the types in a schema.
DEPTH_MAX = 100

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NAMED: Final = frozenset({"record", "enum", "fixed"})

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


class AvroSchemaError(ValueError):
    """The text is not a valid Avro schema. ``path``: the place in the schema, such as ``fields[2].type``."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason, self.path = reason, path


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


#: Stands for the default of a field that declares no default; the default null is None.
MISSING: Final = _Missing()


@dataclass(slots=True)
class Field:
    name: str
    type: Type
    default: Any = MISSING
    aliases: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Type:
    """One type. ``kind``: a primitive, record, enum, fixed, array, map or union. A record may contain itself, so types
    are compared by identity."""

    kind: str
    name: str = ""  # full name of a record, enum or fixed
    aliases: tuple[str, ...] = ()
    fields: list[Field] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    default: str | None = None  # of an enum
    size: int = 0  # of a fixed
    item: Type | None = None  # of an array; of a map: its values
    branches: tuple[Type, ...] = ()
    logical: str = ""
    precision: int = 0
    scale: int = 0

    @property
    def is_named(self) -> bool:
        return self.kind in NAMED

    @property
    def label(self) -> str:
        """The name of the type in error messages."""
        return f"{self.kind} {self.name}" if self.is_named else self.kind

    @property
    def branch(self) -> str:
        """The name of this type as a branch of a union."""
        return self.name if self.is_named else self.kind


def parse(text: str, references: Iterable[str] = ()) -> Type:
    """Parse a schema. ``references``: texts of the schemas to which the parsed schema refers; each text stands after
    the texts of the schemas that it needs. Raises AvroSchemaError."""
    names: dict[str, Type] = {}
    for each in references:
        _Parser(names, may_repeat=True).type(_loaded(each), "", "", 0)
    return _Parser(names).type(_loaded(text), "", "", 0)


def parse_document(document: Any) -> Type:
    """Parse a schema from decoded JSON (a dict, list or str)."""
    return _Parser({}).type(document, "", "", 0)


def _loaded(text: str) -> Any:
    if len(text) > SCHEMA_BYTES_MAX:
        raise AvroSchemaError(f"the schema has {len(text):,} characters; the limit is {SCHEMA_BYTES_MAX:,}")
    try:
        return json.loads(text)
    except RecursionError:
        raise AvroSchemaError("the schema's JSON is nested too deep") from None
    except ValueError as error:
        stripped = text.strip()
        if stripped in PRIMITIVES:  # Confluent's registry accepts a bare name
            return stripped
        raise AvroSchemaError(f"the schema is not valid JSON: {error}") from None


class _Parser:
    """``may_repeat``: a second definition of a name is allowed and means the same type, because two references may
    contain it."""

    def __init__(self, names: dict[str, Type], *, may_repeat: bool = False) -> None:
        self._names = names
        self._may_repeat = may_repeat

    def type(self, document: Any, namespace: str, path: str, depth: int) -> Type:
        if depth > DEPTH_MAX:
            raise AvroSchemaError(f"the types are nested more than {DEPTH_MAX} levels deep", path)
        if isinstance(document, str):
            return self._by_name(document, namespace, path)
        if isinstance(document, list):
            return self._union(document, namespace, path, depth)
        if not isinstance(document, Mapping):
            raise AvroSchemaError(f"a type must be a name, an object or a list, not {document!r:.60}", path)
        kind = document.get("type")
        if isinstance(kind, str) and kind in NAMED:
            return self._named(kind, document, namespace, path, depth)
        if kind == "error":
            return self._named("record", document, namespace, path, depth)
        if kind == "array":
            return Type("array", item=self._inner(document, "items", namespace, path, depth))
        if kind == "map":
            return Type("map", item=self._inner(document, "values", namespace, path, depth))
        if isinstance(kind, str) and kind in PRIMITIVES:
            return _with_logical(Type(kind), document)
        if kind is None:
            raise AvroSchemaError("a type has no key `type`", path)
        return self.type(kind, namespace, _join(path, "type"), depth + 1)  # {"type": {"type": ...}}, {"type": "Name"}

    def _inner(self, document: Mapping[str, Any], key: str, namespace: str, path: str, depth: int) -> Type:
        if key not in document:
            raise AvroSchemaError(f"a type {document['type']} has no key `{key}`", path)
        return self.type(document[key], namespace, _join(path, key), depth + 1)

    def _by_name(self, name: str, namespace: str, path: str) -> Type:
        if name in PRIMITIVES:
            return Type(name)
        found = self._names.get(_full(name, namespace)) or self._names.get(name)
        if found is None:
            raise AvroSchemaError(f"unknown type {name!r}: neither defined before nor in a reference", path)
        return found

    def _union(self, document: list[Any], namespace: str, path: str, depth: int) -> Type:
        branches = tuple(
            self.type(each, namespace, f"{path}[{index}]", depth + 1) for index, each in enumerate(document)
        )
        seen: set[str] = set()
        for each in branches:
            if each.kind == "union":
                raise AvroSchemaError("a union contains a union", path)
            if each.branch in seen:
                raise AvroSchemaError(f"a union has two branches {each.branch}", path)
            seen.add(each.branch)
        return Type("union", branches=branches)

    def _named(self, kind: str, document: Mapping[str, Any], namespace: str, path: str, depth: int) -> Type:
        given = document.get("name")
        if not isinstance(given, str) or not _NAME.fullmatch(given):
            raise AvroSchemaError(f"{given!r:.60} is not a valid {kind} name", path)
        if "." in given:
            name = given
        else:
            own = document.get("namespace", namespace)
            name = f"{own}.{given}" if own and isinstance(own, str) else given
        space = name.rpartition(".")[0]
        aliases = tuple(_full(each, space) for each in _texts(document, "aliases", path))
        if name in self._names:
            if self._may_repeat:
                return self._names[name]
            raise AvroSchemaError(f"{name} is defined twice", path)
        made = self._names[name] = Type(kind, name=name, aliases=aliases)
        if kind == "enum":
            self._fill_enum(made, document, path)
        elif kind == "fixed":
            size = document.get("size")
            if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= SCHEMA_BYTES_MAX:
                raise AvroSchemaError(
                    f"fixed {name}: the size {size!r:.60} is not a whole number from 0 to {SCHEMA_BYTES_MAX}", path
                )
            made.size = size
            _with_logical(made, document)
        else:
            self._fill_record(made, document, space, path, depth)
        return made

    def _fill_enum(self, made: Type, document: Mapping[str, Any], path: str) -> None:
        made.symbols = _texts(document, "symbols", path)
        if len(set(made.symbols)) != len(made.symbols):
            raise AvroSchemaError(f"enum {made.name} has a symbol twice", path)
        default = document.get("default")
        if default is not None and default not in made.symbols:
            raise AvroSchemaError(f"the default {default!r:.60} is not a symbol of enum {made.name}", path)
        made.default = default

    def _fill_record(self, made: Type, document: Mapping[str, Any], space: str, path: str, depth: int) -> None:
        fields = document.get("fields")
        if not isinstance(fields, list):
            raise AvroSchemaError(f"record {made.name} has no list of fields", path)
        seen: set[str] = set()
        for index, each in enumerate(fields):
            at = f"{_join(path, 'fields')}[{index}]"
            name = each.get("name") if isinstance(each, Mapping) else None
            if not isinstance(name, str) or not _NAME.fullmatch(name) or "." in name:
                raise AvroSchemaError(f"{name!r:.60} is not a valid field name", at)
            if name in seen:
                raise AvroSchemaError(f"record {made.name} has the field {name} twice", at)
            seen.add(name)
            if "type" not in each:
                raise AvroSchemaError(f"field {name} has no key `type`", at)
            kind = self.type(each["type"], space, _join(at, "type"), depth + 1)
            made.fields.append(Field(name, kind, each.get("default", MISSING), _texts(each, "aliases", at)))


def _with_logical(made: Type, document: Mapping[str, Any]) -> Type:
    """Set the logical type if ``made`` can have it. Avro's specification demands that implementations ignore any other
    logical type."""
    logical = document.get("logicalType")
    if not isinstance(logical, str):
        return made
    if logical == "decimal" and made.kind in ("bytes", "fixed"):
        precision, scale = document.get("precision"), document.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0:
            made.logical, made.precision, made.scale = "decimal", precision, scale
    elif (made.kind, logical) in _LOGICAL or (logical == "uuid" and made.kind == "fixed" and made.size == 16):
        made.logical = logical
    return made


_LOGICAL: Final = frozenset(
    {
        ("int", "date"),
        ("int", "time-millis"),
        ("long", "time-micros"),
        ("long", "timestamp-millis"),
        ("long", "timestamp-micros"),
        ("long", "local-timestamp-millis"),
        ("long", "local-timestamp-micros"),
        ("long", "timestamp-nanos"),
        ("long", "local-timestamp-nanos"),
        ("string", "uuid"),
    }
)


def _texts(document: Mapping[str, Any], key: str, path: str) -> tuple[str, ...]:
    given = document.get(key, ())
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise AvroSchemaError(f"`{key}` must be a list of strings", path)
    return tuple(given)


def _full(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
