"""JSON Schema: drafts 4, 6, 7, 2019-09 and 2020-12, as nodes that a check of compatibility compares.

Confluent's registry compares schemas in the model of the library ``everit``, and so does Headrace. In that model a
schema has one kind, such as a string or an object. A schema with keywords of several kinds is an ``allOf`` of its
parts: ``{"type": "string", "enum": ["a"]}`` becomes ``allOf(enum, string)``. Keywords without a ``type`` imply a kind.
The model also has the keywords that everit ignores and validators do not, such as ``contains`` and ``propertyNames``.

Without ``$schema`` everit reads draft 7, and validators the newest draft. So the keywords that drafts 2019-09 and
2020-12 added count without ``$schema`` too.

No reference is fetched: a ``$ref`` points into the schema itself or into a schema of the registry's references. A
``$ref`` to a meta-schema of json-schema.org accepts everything. A regular expression runs only in RE2, in linear time.

Source: json-schema.org, the drafts named above; the documentation of everit's library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar, Final, NoReturn
from urllib.parse import unquote, urldefrag, urljoin

import re2

from headrace_registry.schemas import json_text
from headrace_registry.schemas.model import (
    InvalidSchemaError,
    Names,
    Parsed,
    Schema,
    SchemaType,
    check_size,
    in_order,
)

Number = int | Decimal

#: Maps $schema, without the "#" at the end, to the draft. A missing or unknown $schema means draft 7.
_DRAFTS: Final = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
_META_SCHEMAS: Final = ("http://json-schema.org/", "https://json-schema.org/")

_STRING_KEYS: Final = ("minLength", "maxLength", "pattern", "format")
_NUMBER_KEYS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_OBJECT_KEYS: Final = (
    "properties",
    "required",
    "minProperties",
    "maxProperties",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "patternProperties",
    "additionalProperties",
    "propertyNames",
    "unevaluatedProperties",
)
_ARRAY_KEYS: Final = (
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
)
#: The keywords that drafts 2019-09 and 2020-12 added; in older drafts they have no meaning.
_NEW_KEYS: Final = frozenset(
    (
        "dependentRequired",
        "dependentSchemas",
        "maxContains",
        "minContains",
        "prefixItems",
        "unevaluatedItems",
        "unevaluatedProperties",
    )
)
_CONDITION_KEYS: Final = ("if", "then", "else")

#: Beginning of RE2's error message for an expression whose program has more than _PROGRAM_BYTES_MAX.
_TOO_LARGE: Final = "pattern too large"
#: Beginnings of RE2's error messages for expressions that are wrong in every dialect. RE2's other errors name features
#: that only RE2 lacks.
_WRONG_EXPRESSIONS: Final = ("missing ", "unexpected )", "no argument for repetition", "trailing \\", "invalid UTF-8")
#: Maximum number of instructions of RE2's programs for the expressions of one schema. Compiling as many takes half a
#: second. A repetition of a large class such as ``\pL{400}`` has 478,000.
_INSTRUCTIONS_MAX: Final = 500_000
#: Bytes of an instruction in memory, and RE2's limit of memory for one program.
_INSTRUCTION_BYTES, _PROGRAM_BYTES_MAX = 16, 4 << 20
#: Number of instructions at which a compiled expression is removed from RE2's own cache of 128 expressions.
_LARGE_PROGRAM: Final = 10_000
_RE2_OPTIONS = re2.Options()
_RE2_OPTIONS.log_errors = False
_RE2_OPTIONS.max_mem = _PROGRAM_BYTES_MAX


class Criterion(StrEnum):
    """The number of parts of a combined schema that a value must match."""

    ALL = "allOf"
    ANY = "anyOf"
    ONE = "oneOf"


@dataclass(eq=False, slots=True)
class Node:
    """The base class of all kinds. Nodes of one document with equal JSON have equal ``key``s."""

    key: str = field(kw_only=True)
    has_default: bool = field(default=False, kw_only=True)


@dataclass(eq=False, slots=True)
class Anything(Node):
    """The schema ``{}`` or ``true``."""


@dataclass(eq=False, slots=True)
class Nothing(Node):
    """The schema ``false``."""


@dataclass(eq=False, slots=True)
class Pointer(Node):
    """A ``$ref``. ``target`` is set when the whole schema is read, and is never a Pointer."""

    target: Node | None = None


@dataclass(eq=False, slots=True)
class String(Node):
    max_length: Number | None
    min_length: Number | None
    pattern: str | None
    format: str | None  # None if the draft does not assert formats


@dataclass(eq=False, slots=True)
class Numeric(Node):
    """``excludes_maximum`` and ``excludes_minimum``: the booleans ``exclusiveMaximum`` and ``exclusiveMinimum`` of
    draft 4."""

    maximum: Number | None
    minimum: Number | None
    excludes_maximum: bool
    excludes_minimum: bool
    exclusive_maximum: Number | None
    exclusive_minimum: Number | None
    multiple_of: Number | None
    is_integer: bool


@dataclass(eq=False, slots=True)
class Boolean(Node):
    pass


@dataclass(eq=False, slots=True)
class Null(Node):
    pass


@dataclass(eq=False, slots=True)
class Condition(Node):
    """``if``, ``then``, ``else``; a missing keyword accepts everything."""

    tested: Node
    then: Node
    otherwise: Node


@dataclass(eq=False, slots=True)
class Enum(Node):
    """``values`` has the allowed values as canonical JSON."""

    values: frozenset[str]


@dataclass(eq=False, slots=True)
class Const(Node):
    """``value`` is the allowed value as canonical JSON."""

    value: str


@dataclass(eq=False, slots=True)
class Not(Node):
    refused: Node


@dataclass(eq=False, slots=True)
class Combined(Node):
    criterion: Criterion
    parts: list[Node]


@dataclass(eq=False, slots=True)
class Container(Node):
    """What objects and arrays have in common: a schema for the properties or items that no other keyword names.

    ``additional``: the schema of ``additionalProperties`` or ``additionalItems``; None if the keyword is missing or a
    boolean. ``unevaluated``: the schema of ``unevaluatedProperties`` or ``unevaluatedItems``, which has no effect if
    the other keyword is there too (``has_additional``).
    """

    permits_additional: bool
    additional: Node | None
    has_additional: bool
    unevaluated: Node | None

    @property
    def refuses_unevaluated(self) -> bool:
        """Whether ``unevaluated`` refuses something."""
        return not self.has_additional and not isinstance(self.unevaluated, Anything | None)

    @property
    def rest(self) -> Node | None:
        """The schema of properties or items that no other keyword names; None if they may have any value."""
        if not self.permits_additional:
            return Nothing(key="false")
        return self.unevaluated if self.refuses_unevaluated else self.additional


@dataclass(eq=False, slots=True)
class Object(Container):
    properties: dict[str, Node]
    required: frozenset[str]
    property_dependencies: dict[str, frozenset[str]]
    schema_dependencies: dict[str, Node]
    patterns: dict[str, tuple[Any, Node]]  # with a compiled expression of RE2, or None if it is not run
    names: Node | None
    max_properties: Number | None
    min_properties: Number | None

    @property
    def is_open(self) -> bool:
        """Whether the object may have any property that the schema does not name."""
        return not self.patterns and self.rest is None

    def unnamed_property(self, name: str) -> Node | None:
        """The schema of a property that ``properties`` does not name: the schema of a matching pattern, or of
        additional properties."""
        for expression, node in self.patterns.values():
            if expression is not None and expression.search(name):
                return node
        return self.rest


@dataclass(eq=False, slots=True)
class Array(Container):
    all_items: Node | None
    items: list[Node]
    contains: Node | None
    max_contains: Number | None
    min_contains: Number | None
    max_items: Number | None
    min_items: Number | None
    is_unique: bool


class JsonSchema(Parsed):
    """A parsed JSON Schema. ``root`` is the node of the whole schema, ``value`` the JSON of its text."""

    type: ClassVar = SchemaType.JSON

    def __init__(self, schema: Schema, value: Any, root: Node) -> None:
        super().__init__(schema, json_text.write(value))
        self.value = value
        self.root = root

    @cached_property
    def normalized(self) -> str:
        """The canonical text with the keys of all objects in order."""
        return json_text.write(self.value, sort=True)


def parse(schema: Schema, resolved: Mapping[str, Schema]) -> JsonSchema:
    """Parse a JSON Schema. ``resolved`` has the schema of each name in its references, direct or transitive.

    Raise InvalidSchemaError.
    """
    check_size(schema)
    value = json_text.read(schema.text, exact=True)
    reader = _Reader(value)
    for name, dependency in in_order(schema, resolved):
        check_size(dependency)
        try:
            reader.add(name, json_text.read(dependency.text, exact=True))
        except InvalidSchemaError as error:
            raise InvalidSchemaError(f'in the reference "{name}": {error.message}') from None
    parsed = JsonSchema(schema, value, reader.read())
    parsed.kept_characters = reader.expressions.kept_bytes
    return parsed


class _Expressions:
    """The regular expressions of a schema and of its references. Once their programs have more than _INSTRUCTIONS_MAX
    instructions together, further expressions are neither compiled nor run."""

    def __init__(self) -> None:
        self._left = _INSTRUCTIONS_MAX

    @property
    def kept_bytes(self) -> int:
        """Approximate size of the programs."""
        return (_INSTRUCTIONS_MAX - self._left) * _INSTRUCTION_BYTES

    def compile(self, pattern: str) -> Any:
        """The compiled expression; None if it needs a feature that RE2 lacks, such as a look-ahead, or if its program
        is too large. Raise re2.error for an expression that is wrong in every dialect."""
        if self._left <= 0:
            return None
        try:
            found = re2.compile(pattern, _RE2_OPTIONS)
        except re2.error as error:
            if _problem(error).startswith(_WRONG_EXPRESSIONS):
                raise
            if _problem(error).startswith(_TOO_LARGE):
                self._left -= _PROGRAM_BYTES_MAX // _INSTRUCTION_BYTES
            return None
        self._left -= found.programsize
        if found.programsize >= _LARGE_PROGRAM:
            re2.purge()
        return found


def _problem(error: re2.error) -> str:
    text = error.args[0]
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)


@dataclass(frozen=True, slots=True)
class _Resource:
    """A part of a text with its own URI: a whole document, or a schema with an ``$id``."""

    uri: str
    value: Any
    document: str  # for messages: "" for the schema itself, the name for a reference
    root: Any  # the value of the whole document
    draft: int
    names_draft: bool = True  # whether the document has a known $schema


@dataclass(frozen=True, slots=True)
class _Place:
    """The place in a document that is being read."""

    resource: _Resource
    path: tuple[str | int, ...]

    def below(self, *parts: str | int) -> _Place:
        return _Place(self.resource, (*self.path, *parts))

    def refuse(self, problem: str, *below: str | int) -> NoReturn:
        where = f'the reference "{self.resource.document}" at ' if self.resource.document else ""
        raise InvalidSchemaError(f"invalid JSON Schema at {where}{json_text.pointer((*self.path, *below))}: {problem}")


def _id_key(draft: int) -> str:
    return "id" if draft == 4 else "$id"


class _Reader:
    """Reads the nodes of a schema, and the nodes at those places in the referenced schemas to which the schema
    points."""

    def __init__(self, value: Any) -> None:
        self._nodes: dict[int, Node] = {}  # keyed by the id() of the JSON object, which the documents keep alive
        self._resources: dict[str, _Resource] = {}
        self._anchors: dict[str, tuple[_Resource, Any]] = {}
        self._pending: list[tuple[Pointer, _Place, str]] = []
        self._shapes: dict[Any, int] = {}
        self._shape_of: dict[int, int] = {}  # by the identity of the JSON object
        self._names = Names()
        self.expressions = _Expressions()
        self._root = self._document("", value)

    def _document(self, name: str, value: Any) -> _Resource:
        if not isinstance(value, dict | bool):
            raise InvalidSchemaError(f"a JSON Schema is an object or a boolean, not {json_text.kind(value)}")
        found, uri = None, name
        if isinstance(value, dict):
            found = _DRAFTS.get(str(value.get("$schema", "")).removesuffix("#"))
        draft = found or 7
        if isinstance(value, dict):
            own = value.get(_id_key(draft))
            if isinstance(own, str):
                uri = self._join("", own, _Place(_Resource("", value, name, value, draft), ()))
        resource = _Resource(urldefrag(uri).url, value, name, value, draft, found is not None)
        self._resources.setdefault(resource.uri, resource)
        self._index(value, _Place(resource, ()))
        return resource

    def add(self, name: str, value: Any) -> None:
        """Add the document of a reference, under the name by which the schemas refer to it."""
        resource = self._document(name, value)
        for uri in (name, f"./{name}", self._join(self._root.uri, name, _Place(resource, ()))):
            self._resources.setdefault(urldefrag(uri).url, resource)

    def _index(self, value: Any, place: _Place) -> None:
        """Collect the parts of a document that have their own URI or anchor."""
        if isinstance(value, list):
            for index, item in enumerate(value):
                self._index(item, place.below(index))
        elif isinstance(value, dict):
            resource = place.resource
            own = value.get(_id_key(resource.draft))
            if isinstance(own, str) and place.path:
                uri, fragment = urldefrag(self._join(resource.uri, own, place))
                if own.startswith("#"):
                    self._anchors.setdefault(f"{resource.uri}#{fragment}", (resource, value))
                else:
                    resource = replace(resource, uri=uri, value=value)
                    self._resources.setdefault(uri, resource)
            for key in ("$anchor", "$dynamicAnchor"):
                if isinstance(value.get(key), str):
                    self._names.define(len(resource.uri) + len(value[key]))
                    self._anchors.setdefault(f"{resource.uri}#{value[key]}", (resource, value))
            for key, item in value.items():
                if key not in ("enum", "const", "default", "examples"):
                    self._index(item, _Place(resource, (*place.path, key)))

    def read(self) -> Node:
        root = self.node(self._root.value, _Place(self._root, ()))
        pointers = []
        while self._pending:
            pointer, place, reference = self._pending.pop()
            pointer.target = self._target(reference, place)
            pointers.append((pointer, place))
        for pointer, place in pointers:
            chain: dict[int, Pointer] = {}
            target: Node | None = pointer
            while isinstance(target, Pointer):
                if id(target) in chain:
                    place.refuse("the reference leads only to itself; let it lead to a schema", "$ref")
                chain[id(target)] = target
                target = target.target
            for passed in chain.values():
                passed.target = target
        return root

    def _target(self, reference: str, place: _Place) -> Node:
        """The node to which a ``$ref`` points."""
        uri, fragment = urldefrag(self._join(place.resource.uri, reference, place))
        resource = place.resource if uri == place.resource.uri else self._resources.get(uri)
        if resource is None and uri.startswith(_META_SCHEMAS):
            return Anything(key="true")
        if resource is None:
            resource = self._resources.get(urldefrag(reference).url)
        if resource is None:
            name = urldefrag(reference).url
            place.refuse(f'no schema for "{reference}"; add a reference with the name "{name}" to the request', "$ref")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(f"{resource.uri}#{fragment}")
            if found is None:
                place.refuse(f'no schema has the anchor "{fragment}"', "$ref")
            return self.node(found[1], _Place(found[0], (f"#{fragment}",)))
        parts = [part.replace("~1", "/").replace("~0", "~") for part in fragment.split("/")[1:]]
        for start in (resource.value, resource.root):
            value = _walk(start, parts)
            if isinstance(value, dict | bool):
                return self.node(value, _Place(resource, tuple(parts)))
        return place.refuse(f'"{reference}" leads to no schema', "$ref")

    def node(self, value: Any, place: _Place) -> Node:
        """The node of a schema at a place; a schema that is reached twice has only one node."""
        if isinstance(value, bool):
            return Anything(key="true") if value else Nothing(key="false")
        if not isinstance(value, dict):
            place.refuse(f"a schema is an object or a boolean, not {json_text.kind(value)}")
        known = self._nodes.get(id(value))
        if known is None:
            own = value.get(_id_key(place.resource.draft))
            if isinstance(own, str) and place.path and not own.startswith("#"):
                uri = urldefrag(self._join(place.resource.uri, own, place)).url
                place = _Place(self._resources.get(uri, place.resource), place.path)
            known = self._nodes[id(value)] = _Parts(self, value, place).node()
            known.has_default = "default" in value
        return known

    def shape(self, value: Any) -> int:
        """Return a number that is equal for equal JSON values. The time is linear in the size of the document."""
        if isinstance(value, dict | list):
            known = self._shape_of.get(id(value))
            if known is None:
                items = sorted(value.items(), key=itemgetter(0)) if isinstance(value, dict) else enumerate(value)
                content = (type(value), *((key, self.shape(item)) for key, item in items))
                known = self._shape_of[id(value)] = self._shapes.setdefault(content, len(self._shapes))
            return known
        return self._shapes.setdefault((type(value), value), len(self._shapes))

    def pointer(self, reference: Any, place: _Place, key: str) -> Pointer:
        """The node of a ``$ref``. The reader sets the Pointer's target when it has read the other nodes."""
        if not isinstance(reference, str):
            place.refuse(f"a reference is a string, not {json_text.kind(reference)}", "$ref")
        pointer = Pointer(key=key)
        self._pending.append((pointer, place, reference))
        return pointer

    def _join(self, base: str, uri: str, place: _Place) -> str:
        self._names.define(len(base) + len(uri))
        try:
            return urljoin(base, uri)
        except ValueError as error:
            place.refuse(f'"{uri[:200]}" is not a URI: {error}')


def _walk(value: Any, parts: Iterable[str]) -> Any:
    for part in parts:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and len(part) < 9 and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


class _Parts:
    """Takes one schema apart into the nodes of its kinds. A keyword that several kinds know belongs to the first part
    that knows the keyword."""

    def __init__(self, reader: _Reader, value: dict[str, Any], place: _Place) -> None:
        self._reader = reader
        self._value = value
        self._place = place
        self._draft = place.resource.draft
        self._is_new = self._draft >= 2019 or not place.resource.names_draft
        self._left = set(value) if self._is_new else set(value) - _NEW_KEYS
        self._key = reader.shape(value)

    def node(self) -> Node:
        """Build the node of the schema. The method is long to keep Python's stack short: schemas are nested deeply."""
        value = self._value
        parts: list[Node] = []
        if "$ref" in value:
            parts.append(self._reader.pointer(value["$ref"], self._place, f"$ref {self._key}"))
            if self._draft < 2019:
                return parts[0]  # older drafts ignore other keywords beside a $ref
        # A dynamic reference leads where a $ref does, if no other document extends it.
        parts += [
            self._reader.pointer(value[keyword], self._place, f"$ref {self._key}")
            for keyword in ("$dynamicRef", "$recursiveRef")
            if keyword in value and self._draft >= 2019
        ]
        if "enum" in value:
            values = frozenset(json_text.write(one, sort=True) for one in self._list("enum"))
            parts.append(Enum(values, key=f"enum {self._key}"))
        for criterion in Criterion:
            if criterion in value:
                each = [
                    self._reader.node(one, self._place.below(criterion, index))
                    for index, one in enumerate(self._list(criterion))
                ]
                parts.append(_combined(criterion, each, f"{criterion} {self._key}"))
        if "not" in value:
            parts.append(Not(self._child("not"), key=f"not {self._key}"))
        if "const" in value and self._draft > 4:
            parts.append(Const(json_text.write(value["const"], sort=True), key=f"const {self._key}"))
        kind = value.get("type")
        if isinstance(kind, list):
            each = [self._of_type(one, "type", index) for index, one in enumerate(kind)]
            parts.append(_combined(Criterion.ANY, each, f"type {self._key}"))
        elif "type" in value:
            parts.append(self._of_type(kind, "type"))
        # Keywords of arrays, objects and so on imply a part of their kind, even if "type" does not name the kind.
        if self._left.intersection(_ARRAY_KEYS):
            parts.append(self._array())
        if self._left.intersection(_OBJECT_KEYS):
            parts.append(self._object())
        if self._left.intersection(_NUMBER_KEYS):
            parts.append(self._number(False))
        if self._left.intersection(_STRING_KEYS):
            parts.append(self._string())
        if self._draft >= 7 and self._left.intersection(_CONDITION_KEYS):
            tested, then, otherwise = (
                self._child(key) if key in value else Anything(key="true") for key in _CONDITION_KEYS
            )
            parts.append(Condition(tested, then, otherwise, key=f"if {self._key}"))
        if len(parts) == 1:
            return parts[0]
        return _combined(Criterion.ALL, parts, f"parts {self._key}") if parts else Anything(key=str(self._key))

    def _of_type(self, kind: Any, *below: str | int) -> Node:
        match kind:
            case "string":
                return self._string()
            case "integer" | "number":
                return self._number(kind == "integer")
            case "boolean":
                return Boolean(key="boolean")
            case "null":
                return Null(key="null")
            case "array":
                return self._array()
            case "object":
                return self._object()
            case _:
                return self._place.refuse(f"{json_text.write(kind)[:80]} is not a type of JSON Schema", *below)

    def _string(self) -> String:
        self._left.difference_update(_STRING_KEYS)
        pattern = self._value.get("pattern")
        if pattern is not None:
            if not isinstance(pattern, str):
                self._place.refuse(f"a pattern is a string, not {json_text.kind(pattern)}", "pattern")
            self._expression(pattern, "pattern")
        form = self._value.get("format")
        if self._is_new or not isinstance(form, str):
            form = None  # since draft 2019-09 a format is an annotation
        return String(self._count("maxLength"), self._count("minLength"), pattern, form, key=f"string {self._key}")

    def _number(self, is_integer: bool) -> Numeric:
        self._left.difference_update(_NUMBER_KEYS)
        multiple_of = self._number_of("multipleOf")
        if multiple_of is not None and multiple_of <= 0:
            self._place.refuse("multipleOf must be above 0", "multipleOf")
        return Numeric(
            self._number_of("maximum"),
            self._number_of("minimum"),
            self._draft == 4 and self._value.get("exclusiveMaximum") is True,
            self._draft == 4 and self._value.get("exclusiveMinimum") is True,
            self._exclusive("exclusiveMaximum"),
            self._exclusive("exclusiveMinimum"),
            multiple_of,
            is_integer,
            key=f"{'integer' if is_integer else 'number'} {self._key}",
        )

    def _exclusive(self, keyword: str) -> Number | None:
        if self._draft == 4 and isinstance(self._value.get(keyword), bool):
            return None  # in draft 4 the keyword only says how to read maximum or minimum
        return self._number_of(keyword)

    def _object(self) -> Object:
        self._left.difference_update(_OBJECT_KEYS)
        property_dependencies: dict[str, frozenset[str]] = {}
        schema_dependencies: dict[str, Node] = {}
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            if not (self._draft < 2019 if keyword == "dependencies" else self._is_new):
                continue
            for name, value in self._dict(keyword).items():
                if value == []:
                    continue  # everit has no dependency on an empty list of properties
                if isinstance(value, list):
                    property_dependencies[name] = self._strings(value, keyword, name)
                else:
                    schema_dependencies[name] = self._reader.node(value, self._place.below(keyword, name))
        additional = self._value.get("additionalProperties", True)
        return Object(
            properties=self._children("properties"),
            required=self._strings(self._list("required"), "required"),
            property_dependencies=property_dependencies,
            schema_dependencies=schema_dependencies,
            patterns={
                pattern: (self._expression(pattern, "patternProperties", pattern), node)
                for pattern, node in self._children("patternProperties").items()
            },
            names=self._child("propertyNames") if "propertyNames" in self._value and self._draft > 4 else None,
            permits_additional=additional is not False,
            additional=None if isinstance(additional, bool) else self._child("additionalProperties"),
            has_additional="additionalProperties" in self._value,
            unevaluated=self._new_child("unevaluatedProperties"),
            max_properties=self._count("maxProperties"),
            min_properties=self._count("minProperties"),
            key=f"object {self._key}",
        )

    def _array(self) -> Array:
        self._left.difference_update(_ARRAY_KEYS)
        listed, rest = "items", "additionalItems"
        if "prefixItems" in self._value and self._is_new:
            listed, rest = "prefixItems", "items"
        all_items, items = None, []
        if isinstance(self._value.get(listed), list):
            items = [
                self._reader.node(one, self._place.below(listed, index))
                for index, one in enumerate(self._value[listed])
            ]
        elif listed in self._value:
            all_items = self._child(listed)
        additional = self._value.get(rest, True)
        is_unique = self._value.get("uniqueItems", False)
        if not isinstance(is_unique, bool):
            self._place.refuse(f"uniqueItems is a boolean, not {json_text.kind(is_unique)}", "uniqueItems")
        return Array(
            all_items=all_items,
            items=items,
            permits_additional=additional is not False,
            additional=None if isinstance(additional, bool) else self._child(rest),
            has_additional=rest in self._value or all_items is not None,
            unevaluated=self._new_child("unevaluatedItems"),
            contains=self._child("contains") if "contains" in self._value and self._draft > 4 else None,
            max_contains=self._count("maxContains") if self._is_new else None,
            min_contains=self._count("minContains") if self._is_new else None,
            max_items=self._count("maxItems"),
            min_items=self._count("minItems"),
            is_unique=is_unique,
            key=f"array {self._key}",
        )

    def _expression(self, pattern: str, *below: str) -> Any:
        """The compiled regular expression; None if it is not run (_Expressions)."""
        try:
            return self._reader.expressions.compile(pattern)
        except re2.error as error:
            self._place.refuse(
                f"the regular expression {json_text.quoted(pattern[:200])} is wrong: {_problem(error)}", *below
            )

    def _child(self, keyword: str) -> Node:
        return self._reader.node(self._value[keyword], self._place.below(keyword))

    def _new_child(self, keyword: str) -> Node | None:
        """The schema of a keyword that draft 2019-09 added."""
        return self._child(keyword) if self._is_new and keyword in self._value else None

    def _children(self, keyword: str) -> dict[str, Node]:
        return {
            name: self._reader.node(value, self._place.below(keyword, name))
            for name, value in self._dict(keyword).items()
        }

    def _dict(self, keyword: str) -> dict[str, Any]:
        value = self._value.get(keyword, {})
        if not isinstance(value, dict):
            self._place.refuse(f"{keyword} is an object, not {json_text.kind(value)}", keyword)
        return value

    def _list(self, keyword: str) -> list[Any]:
        value = self._value.get(keyword, [])
        if not isinstance(value, list):
            self._place.refuse(f"{keyword} is an array, not {json_text.kind(value)}", keyword)
        return value

    def _strings(self, values: list[Any], *below: str) -> frozenset[str]:
        if not all(isinstance(value, str) for value in values):
            self._place.refuse("the names of properties are strings", *below)
        return frozenset(values)

    def _number_of(self, keyword: str) -> Number | None:
        value = self._value.get(keyword)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | Decimal)):
            self._place.refuse(f"{keyword} is a number, not {json_text.kind(value)}", keyword)
        return value

    def _count(self, keyword: str) -> Number | None:
        value = self._number_of(keyword)
        if isinstance(value, Decimal) and value != value.to_integral_value():
            self._place.refuse(f"{keyword} is a whole number", keyword)
        return value


def _combined(criterion: Criterion, parts: list[Node], key: str) -> Combined:
    # everit puts combined parts first; the places in Confluent's messages count in this order.
    return Combined(criterion, sorted(parts, key=lambda part: not isinstance(part, Combined)), key=key)
