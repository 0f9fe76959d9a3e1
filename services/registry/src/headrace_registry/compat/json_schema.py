"""Confluent's rules for JSON Schema: can a reader with one schema read every value that another schema accepts?

The rules compare the nodes of both schemas at the same place. Each difference has a kind, such as
``MAX_LENGTH_DECREASED``, and some kinds are incompatible. The check collects the incompatible differences only.

The *content model* of an object or array says which properties or items are allowed in addition to those that the
schema names:

=============== ============================================== ==================================================
content model   keywords                                       adding and removing a property
=============== ============================================== ==================================================
open            neither additional nor unevaluated properties  may be removed; may not be added
                are restricted
closed          additional or unevaluatedProperties false      may be added when optional; may not be removed
partially open  patternProperties, or a schema of additional   both, when that schema accepts the property's values
                or unevaluated properties
=============== ============================================== ==================================================

Confluent's registry ignores some keywords with which a reader refuses values. This check compares them:
``contains``, ``propertyNames``, ``patternProperties``, ``then`` and ``else``, ``required`` of names that ``properties``
lacks, formats (drafts 4 to 7), boolean ``exclusiveMaximum`` (draft 4), and dynamic references. It does not compare
annotations: ``title``, ``description``, ``default``, ``examples``, ``deprecated``, ``readOnly``, ``writeOnly``,
``contentEncoding``, ``contentMediaType``, ``contentSchema``, ``$comment``, and formats since draft 2019-09.

Source: Confluent's documentation, "JSON Schema compatibility rules".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

from headrace_registry.compat.matching import largest_matching
from headrace_registry.compat.model import LOOKS_PER_STEP, REPORTED_MAX, STEPS_MAX, Difference, Steps, run
from headrace_registry.schemas.json_schema import (
    Anything,
    Array,
    Combined,
    Condition,
    Const,
    Container,
    Criterion,
    Enum,
    JsonSchema,
    Node,
    Not,
    Nothing,
    Number,
    Numeric,
    Object,
    Pointer,
    String,
)

_ADDED = "The keyword at path '{path}' in the {reader} schema is not present in the {writer} schema"
_MORE = "The value at path '{path}' in the {reader} schema is more than its value in the {writer} schema"
_LESS = "The value at path '{path}' in the {reader} schema is less than its value in the {writer} schema"
_OTHER_VALUE = "The value at path '{path}' is different between the {reader} and {writer} schema"
_FEWER = "An array or combined type at path '{path}' has fewer elements in the {reader} schema than the {writer} schema"
_LONGER = "An array or combined type at path '{path}' has more elements in the {reader} schema than the {writer} schema"
_OTHER_TYPE = "A type at path '{path}' is different between the {reader} schema and the {writer} schema"
_OPEN = (
    "The {reader} schema has an open content model and has a property or item at path '{path}' which is missing in "
    "the {writer} schema"
)
_CLOSED = (
    "The {reader} schema has a closed content model and is missing a property or item present at path '{path}' in the "
    "{writer} schema"
)
_REMOVED_UNCOVERED = (
    "A property or item is missing in the {reader} schema but present at path '{path}' in the {writer} schema and is "
    "not covered by its partially open content model"
)
_ADDED_UNCOVERED = (
    "The {reader} schema has a property or item at path '{path}' which is missing in the {writer} schema and is not "
    "covered by its partially open content model"
)
#: Maps each kind of incompatibility to its reason as text (Incompatibility.reason). Confluent's reason for SCHEMA_ADDED
#: is empty.
REASONS = {
    "SCHEMA_ADDED": "",
    "TYPE_CHANGED": _OTHER_TYPE,
    "TYPE_NARROWED": _OTHER_TYPE,
    "MAX_LENGTH_ADDED": _ADDED,
    "MAX_LENGTH_DECREASED": _LESS,
    "MIN_LENGTH_ADDED": _ADDED,
    "MIN_LENGTH_INCREASED": _MORE,
    "PATTERN_ADDED": _ADDED,
    "PATTERN_CHANGED": _OTHER_VALUE,
    "MAXIMUM_ADDED": _ADDED,
    "MAXIMUM_DECREASED": _LESS,
    "MINIMUM_ADDED": _ADDED,
    "MINIMUM_INCREASED": _MORE,
    "EXCLUSIVE_MAXIMUM_ADDED": _ADDED,
    "EXCLUSIVE_MAXIMUM_DECREASED": _LESS,
    "EXCLUSIVE_MINIMUM_ADDED": _ADDED,
    "EXCLUSIVE_MINIMUM_INCREASED": _MORE,
    "MULTIPLE_OF_ADDED": _ADDED,
    "MULTIPLE_OF_EXPANDED": _MORE,
    "MULTIPLE_OF_CHANGED": _OTHER_VALUE,
    "FORMAT_ADDED": _ADDED,
    "FORMAT_CHANGED": _OTHER_VALUE,
    "REQUIRED_ATTRIBUTE_ADDED": _ADDED,
    "MAX_PROPERTIES_ADDED": _ADDED,
    "MAX_PROPERTIES_DECREASED": _LESS,
    "MIN_PROPERTIES_ADDED": _ADDED,
    "MIN_PROPERTIES_INCREASED": _MORE,
    "ADDITIONAL_PROPERTIES_REMOVED": _ADDED,
    "ADDITIONAL_PROPERTIES_NARROWED": _FEWER,
    "UNEVALUATED_PROPERTIES_REMOVED": _ADDED,
    "UNEVALUATED_PROPERTIES_NARROWED": _FEWER,
    "PROPERTY_NAMES_ADDED": _ADDED,
    "DEPENDENCY_ARRAY_ADDED": _ADDED,
    "DEPENDENCY_ARRAY_EXTENDED": _LONGER,
    "DEPENDENCY_ARRAY_CHANGED": _OTHER_VALUE,
    "DEPENDENCY_SCHEMA_ADDED": _ADDED,
    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL": "The {reader} schema has an unopen content model and has a "
    "required property at path '{path}' which is missing in the {writer} schema",
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL": _CLOSED,
    "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": _REMOVED_UNCOVERED,
    "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": _ADDED_UNCOVERED,
    "MAX_ITEMS_ADDED": _ADDED,
    "MAX_ITEMS_DECREASED": _LESS,
    "MIN_ITEMS_ADDED": _ADDED,
    "MIN_ITEMS_INCREASED": _MORE,
    "UNIQUE_ITEMS_ADDED": _ADDED,
    "ADDITIONAL_ITEMS_REMOVED": _ADDED,
    "ADDITIONAL_ITEMS_NARROWED": _FEWER,
    "UNEVALUATED_ITEMS_REMOVED": _ADDED,
    "UNEVALUATED_ITEMS_NARROWED": _FEWER,
    "CONTAINS_ADDED": _ADDED,
    "CONTAINS_CHANGED": _OTHER_VALUE,
    "MAX_CONTAINS_ADDED": _ADDED,
    "MAX_CONTAINS_DECREASED": _LESS,
    "MIN_CONTAINS_ADDED": _ADDED,
    "MIN_CONTAINS_INCREASED": _MORE,
    "ITEM_ADDED_TO_OPEN_CONTENT_MODEL": _OPEN,
    "ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL": _CLOSED,
    "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": _REMOVED_UNCOVERED,
    "ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL": _ADDED_UNCOVERED,
    "ENUM_ARRAY_NARROWED": _FEWER,
    "ENUM_ARRAY_CHANGED": _OTHER_TYPE,
    "COMBINED_TYPE_CHANGED": _OTHER_TYPE,
    "COMBINED_TYPE_SUBSCHEMAS_CHANGED": _OTHER_TYPE,
    "PRODUCT_TYPE_EXTENDED": _LONGER,
    "SUM_TYPE_NARROWED": _FEWER,
    "NOT_TYPE_EXTENDED": _LONGER,
    "CONDITION_CHANGED": _OTHER_VALUE,
}
#: A path into a schema as (first part, path below that part); None means the compared schema itself.
_Path: TypeAlias = "tuple[str, _Path] | None"
#: Incompatible differences as (kind, path from the compared schema).
_Found: TypeAlias = "list[tuple[str, _Path]]"
#: Number of characters that RE2 searches in the time of one step.
_NAME_PER_STEP = 1_000
#: Largest decimal exponent, and number of digits, with which two values of multipleOf are compared exactly.
_DIGITS_MAX = 400


def can_read(reader: JsonSchema, writer: JsonSchema, steps_max: int = STEPS_MAX) -> Sequence[Difference]:
    """Return the differences that let ``reader`` refuse a value which ``writer`` accepts."""
    found = run(_Check().compare(writer.root, reader.root), steps_max)
    return [Difference(kind, _shown(path)) for kind, path in found]


def _shown(path: _Path) -> str:
    parts = []
    while path is not None:
        part, path = path
        parts.append(part)
    return "#/" + "/".join(parts)


class _Check:
    """One check of an original schema (the writer's) against an updated schema (the reader's)."""

    def __init__(self) -> None:
        # Maps a pair of nodes (their object ids) to its differences; None while the pair is being compared.
        self._results: dict[tuple[int, int], _Found | None] = {}
        self._opened: dict[int, Node] = {}  # copies of parts (_alone), by the object id of the part

    def compare(self, original: Node, update: Node) -> Steps[_Found]:
        original, update = _behind(original), _behind(update)
        pair = (id(original), id(update))
        if pair in self._results:
            return self._results[pair] or []
        self._results[pair] = None
        found: _Found = yield self._calculate(original, update)
        self._results[pair] = found[:REPORTED_MAX]
        return found[:REPORTED_MAX]

    def _compare_at(self, found: _Found, place: str, original: Node, update: Node) -> Steps[bool]:
        """Add the differences of two schemas at a place to ``found``; return True if there are no differences."""
        below: _Found = yield self.compare(original, update)
        found.extend((kind, (place, rest)) for kind, rest in below)
        return not below

    def _calculate(self, original: Node, update: Node) -> Steps[_Found]:
        found: _Found = []
        if isinstance(original, Combined) and original.criterion is Criterion.ALL:
            yield self._no_longer_evaluated(found, original, update)
        if found or (yield self._reads_a_part(original, update)):
            return found
        match original, update:
            case (Nothing(), _) | (_, Anything()):
                return []
            case String(), String():
                return _strings(original, update)
            case Numeric(), Numeric():
                return _numbers(original, update)
            case Enum(), Enum():
                return _enums(original, update)
            case Const(), Const():
                return [] if original.value == update.value else [_at("ENUM_ARRAY_CHANGED", "const")]
            case Not(), Not():
                refused: _Found = yield self.compare(update.refused, original.refused)
                return [_at("NOT_TYPE_EXTENDED", "not")] if refused else []
            case Condition(), Condition():
                found = yield self._conditions(original, update)
                return found
            case Combined(), Combined():
                found = yield self._combined(original, update)
                return found
            case Object(), Object():
                found = yield self._objects(original, update)
                return found
            case Array(), Array():
                found = yield self._arrays(original, update)
                return found
        return [] if type(original) is type(update) else [("TYPE_CHANGED", None)]

    def _reads_a_part(self, original: Node, update: Node) -> Steps[bool]:
        """Whether one part of a combined schema makes the two schemas compatible: a part of the new union, or of the
        old allOf."""
        pairs: Iterable[tuple[Node, Node]] = ()
        match original, update:
            case Combined(), Combined():
                return False
            case _, Combined() if len(update.parts) == 1 or update.criterion is not Criterion.ALL:
                pairs = ((original, part) for part in update.parts)
            case Combined(), _ if len(original.parts) == 1 or original.criterion is Criterion.ALL:
                pairs = ((self._alone(part, original, update), update) for part in original.parts)
        for pair in pairs:
            if not (yield self.compare(*pair)):
                return True
        return False

    def _conditions(self, original: Condition, update: Condition) -> Steps[_Found]:
        """Compare ``then`` and ``else`` of the same ``if``; Confluent's registry compares none of them."""
        found: _Found = []
        if isinstance(update.then, Anything) and isinstance(update.otherwise, Anything):
            return found
        for pair in ((original.tested, update.tested), (update.tested, original.tested)):
            if (yield self.compare(*pair)):
                return [_at("CONDITION_CHANGED", "if")]
        yield self._compare_at(found, "then", original.then, update.then)
        yield self._compare_at(found, "else", original.otherwise, update.otherwise)
        return found

    def _combined(self, original: Combined, update: Combined) -> Steps[_Found]:
        if not _may_become(original, update):
            return [("COMBINED_TYPE_CHANGED", None)]
        found: _Found = []
        old_parts = list({part.key: part for part in original.parts}.values())
        new_parts = list({part.key: part for part in update.parts}.values())
        if len(old_parts) < len(new_parts) and update.criterion is Criterion.ALL:
            found.append(("PRODUCT_TYPE_EXTENDED", None))
        if len(old_parts) > len(new_parts) and original.criterion is not Criterion.ALL:
            found.append(("SUM_TYPE_NARROWED", None))
        partners: list[list[int]] = []
        for old in old_parts:
            readers = []
            for index, new in enumerate(new_parts):
                if not (yield self.compare(self._alone(old, original, new), new)):
                    readers.append(index)
            partners.append(readers)
        if largest_matching(partners) < min(len(old_parts), len(new_parts)):
            found.append(("COMBINED_TYPE_SUBSCHEMAS_CHANGED", None))
        return found

    def _alone(self, part: Node, whole: Combined, update: Node) -> Node:
        """A part of an allOf without what its other parts may allow: they evaluate properties and items too."""
        part = _behind(part)
        if not isinstance(part, Object | Array) or not part.refuses_unevaluated:
            return part
        if len(whole.parts) == 1 or whole.criterion is not Criterion.ALL:
            return part
        if isinstance(update, Container) and update.refuses_unevaluated:
            return part
        return self._opened.setdefault(id(part), replace(part, unevaluated=None))

    def _no_longer_evaluated(self, found: _Found, original: Combined, update: Node) -> Steps[None]:
        """Properties and items that the parts of ``original`` name, and that an ``unevaluatedProperties`` or
        ``unevaluatedItems`` beside the parts of ``update`` refuses; Confluent's registry compares part by part."""
        parts = update.parts if isinstance(update, Combined) and update.criterion is Criterion.ALL else [update]
        for closed in parts:
            if not isinstance(closed, Object | Array) or not closed.refuses_unevaluated:
                continue
            named, _ = yield _named(original, type(closed))
            kept, names_all = yield _named(update, type(closed))
            beside = [_own(part) for part in map(_behind, original.parts) if isinstance(part, type(closed))]
            for place, new in _own(closed).items():
                if place in named and not any(place in own for own in beside):
                    yield self._compare_at(found, place, named[place], new)
            for place, old in {} if names_all else named.items():
                is_kept = place in kept or isinstance(old, Nothing)
                if is_kept or len(found) >= REPORTED_MAX:
                    continue
                rest = closed.rest
                if isinstance(closed, Object):
                    rest = closed.unnamed_property(place.removeprefix("properties/"))
                kind = "PROPERTY" if isinstance(closed, Object) else "ITEM"
                if isinstance(rest, Nothing):
                    found.append(_at(f"{kind}_REMOVED_FROM_CLOSED_CONTENT_MODEL", place))
                elif rest is not None and not (yield self._compare_at(found, place, old, rest)):
                    found.append(_at(f"{kind}_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place))

    def _objects(self, original: Object, update: Object) -> Steps[_Found]:
        found: _Found = []
        for name in sorted(update.required - original.required):
            new = update.properties.get(name)
            # _added_property refuses a new property for an object that is not open
            is_known = name in original.properties or new is None or original.is_open
            if is_known and (new is None or not new.has_default):
                found.append(_at("REQUIRED_ATTRIBUTE_ADDED", f"required/{name}"))
        for name in original.properties | update.properties:
            if len(found) >= REPORTED_MAX:
                return found
            place = f"properties/{name}"
            if name not in update.properties:
                yield self._removed_property(found, name, original, update)
            elif name not in original.properties:
                yield self._added_property(found, name, original, update)
            else:
                yield self._compare_at(found, place, original.properties[name], update.properties[name])
        yield self._patterns(found, original, update)
        if update.names is not None and original.names is not None:
            yield self._compare_at(found, "propertyNames", original.names, update.names)
        elif not isinstance(update.names, Anything | None):
            found.append(_at("PROPERTY_NAMES_ADDED", "propertyNames"))
        yield self._dependencies(found, original, update)
        yield self._additional(found, "additionalProperties", "ADDITIONAL_PROPERTIES", original, update)
        yield self._unevaluated(found, "unevaluatedProperties", "UNEVALUATED_PROPERTIES", original, update)
        _upper(found, "maxProperties", "MAX_PROPERTIES", original.max_properties, update.max_properties)
        _lower(found, "minProperties", "MIN_PROPERTIES", original.min_properties, update.min_properties)
        return found

    def _removed_property(self, found: _Found, name: str, original: Object, update: Object) -> Steps[None]:
        place = f"properties/{name}"
        old = original.properties[name]
        if update.is_open:
            return
        yield _cost_of_patterns(update, name)
        covering = update.unnamed_property(name)
        if covering is None or isinstance(covering, Nothing):
            if not isinstance(old, Nothing):
                found.append(_at("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", place))
        elif not (yield self._compare_at(found, place, old, covering)):
            found.append(_at("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place))

    def _added_property(self, found: _Found, name: str, original: Object, update: Object) -> Steps[None]:
        place = f"properties/{name}"
        new = update.properties[name]
        yield _cost_of_patterns(original, name)
        covering = original.unnamed_property(name)
        if covering is None and not isinstance(new, Anything):
            found.append(_at("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", place))
        if original.is_open:
            return
        if covering is not None and not (yield self._compare_at(found, place, covering, new)):
            found.append(_at("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place))
        if name in update.required and not new.has_default:
            found.append(_at("REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL", place))

    def _patterns(self, found: _Found, original: Object, update: Object) -> Steps[None]:
        """Compare ``patternProperties``, which Confluent's registry does not, in the kinds of properties."""
        for pattern, (expression, new) in update.patterns.items():
            place = f"patternProperties/{pattern}"
            if pattern in original.patterns:
                yield self._compare_at(found, place, original.patterns[pattern][1], new)
                continue
            if original.rest is None and not isinstance(new, Anything):
                found.append(_at("PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", place))
                continue
            covered = [original.rest] if original.rest is not None else []
            yield 1 + len(original.properties) // LOOKS_PER_STEP
            if expression is not None:
                covered += [node for name, node in original.properties.items() if expression.search(name)]
            for old in covered:
                if not (yield self._compare_at(found, place, old, new)):
                    found.append(_at("PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place))
                    break
        for pattern, (_, old) in original.patterns.items():
            place = f"patternProperties/{pattern}"
            if pattern in update.patterns or update.rest is None or isinstance(old, Nothing):
                continue
            if isinstance(update.rest, Nothing):
                found.append(_at("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", place))
            elif not (yield self._compare_at(found, place, old, update.rest)):
                found.append(_at("PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place))

    def _dependencies(self, found: _Found, original: Object, update: Object) -> Steps[None]:
        for name, new_names in update.property_dependencies.items():
            place = f"dependencies/{name}"
            old_names = original.property_dependencies.get(name)
            if old_names is None:
                found.append(_at("DEPENDENCY_ARRAY_ADDED", place))
            elif new_names > old_names:
                found.append(_at("DEPENDENCY_ARRAY_EXTENDED", place))
            elif not new_names <= old_names:
                found.append(_at("DEPENDENCY_ARRAY_CHANGED", place))
        for name, new in update.schema_dependencies.items():
            place = f"dependencies/{name}"
            old = original.schema_dependencies.get(name)
            if old is None:
                found.append(_at("DEPENDENCY_SCHEMA_ADDED", place))
            else:
                yield self._compare_at(found, place, old, new)

    def _additional(
        self, found: _Found, keyword: str, kind: str, original: Container, update: Container
    ) -> Steps[None]:
        if original.permits_additional and not update.permits_additional:
            found.append(_at(f"{kind}_REMOVED", keyword))
        elif original.permits_additional and update.additional is not None:
            if original.additional is None:
                found.append(_at(f"{kind}_NARROWED", keyword))
            else:
                yield self._compare_at(found, keyword, original.additional, update.additional)

    def _unevaluated(
        self, found: _Found, keyword: str, kind: str, original: Container, update: Container
    ) -> Steps[None]:
        old, new = original.unevaluated, update.unevaluated
        if original.has_additional and not update.has_additional and original.permits_additional:
            old = None  # had no effect
        if isinstance(original, Array) and isinstance(update, Array) and original.contains and not update.contains:
            old = None  # the items that contains matches were evaluated
        if new is None or isinstance(new, Anything) or isinstance(old, Nothing):
            return
        if isinstance(new, Nothing):
            found.append(_at(f"{kind}_REMOVED", keyword))
        elif old is None or isinstance(old, Anything):
            found.append(_at(f"{kind}_NARROWED", keyword))
        else:
            yield self._compare_at(found, keyword, old, new)

    def _contains(self, found: _Found, original: Array, update: Array) -> Steps[None]:
        _upper(found, "maxContains", "MAX_CONTAINS", original.max_contains, update.max_contains)
        _lower(found, "minContains", "MIN_CONTAINS", original.min_contains, update.min_contains)
        old, new = original.contains, update.contains
        if new is None:
            return
        if old is None:
            if update.min_contains != 0 or update.max_contains is not None:
                found.append(_at("CONTAINS_ADDED", "contains"))
            return
        if update.min_contains != 0:
            yield self._compare_at(found, "contains", old, new)
        if update.min_contains is None and original.min_contains == 0:  # the default is 1
            found.append(_at("MIN_CONTAINS_INCREASED", "minContains"))
        if update.max_contains is not None and (yield self.compare(new, old)):
            found.append(_at("CONTAINS_CHANGED", "contains"))

    def _arrays(self, original: Array, update: Array) -> Steps[_Found]:
        found: _Found = []
        if update.all_items is not None:
            if original.all_items is None:
                found.append(_at("SCHEMA_ADDED", "items"))
            else:
                yield self._compare_at(found, "items", original.all_items, update.all_items)
        for index in range(max(len(original.items), len(update.items))):
            if len(found) >= REPORTED_MAX:
                return found
            place = f"items/{index}"
            if index >= len(update.items):
                yield self._removed_item(found, place, original.items[index], update)
            elif index >= len(original.items):
                yield self._added_item(found, place, original, update.items[index])
            else:
                yield self._compare_at(found, place, original.items[index], update.items[index])
        yield self._additional(found, "additionalItems", "ADDITIONAL_ITEMS", original, update)
        yield self._unevaluated(found, "unevaluatedItems", "UNEVALUATED_ITEMS", original, update)
        yield self._contains(found, original, update)
        _upper(found, "maxItems", "MAX_ITEMS", original.max_items, update.max_items)
        _lower(found, "minItems", "MIN_ITEMS", original.min_items, update.min_items)
        if update.is_unique and not original.is_unique:
            found.append(_at("UNIQUE_ITEMS_ADDED", "uniqueItems"))
        return found

    def _removed_item(self, found: _Found, place: str, old: Node, update: Array) -> Steps[None]:
        if update.rest is None or isinstance(old, Nothing):
            return
        if isinstance(update.rest, Nothing):
            found.append(_at("ITEM_REMOVED_FROM_CLOSED_CONTENT_MODEL", place))
        elif not (yield self._compare_at(found, place, old, update.rest)):
            found.append(_at("ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place))

    def _added_item(self, found: _Found, place: str, original: Array, new: Node) -> Steps[None]:
        if original.rest is None or (original.contains is not None and original.refuses_unevaluated):
            if not isinstance(new, Anything):
                found.append(_at("ITEM_ADDED_TO_OPEN_CONTENT_MODEL", place))
        elif not (yield self._compare_at(found, place, original.rest, new)):
            found.append(_at("ITEM_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL", place))


def _named(schema: Node, kind: type[Container]) -> Steps[tuple[dict[str, Node], bool]]:
    """The properties or items that a schema names, with those of the schemas for the same value within it, by place;
    and whether it names all."""
    named: dict[str, Node] = {}
    seen: set[int] = set()
    left = [schema]
    names_all = False
    while left:
        node = _behind(left.pop())
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield 1
        match node:
            case Combined():
                left += node.parts
            case Condition():
                left += [node.tested, node.then, node.otherwise]
            case Object() | Array() if isinstance(node, kind):
                named |= _own(node)
                names_all |= node.has_additional or isinstance(node.unevaluated, Anything)
                left += node.schema_dependencies.values() if isinstance(node, Object) else ()
    return named, names_all


def _own(schema: Object | Array) -> dict[str, Node]:
    """The properties or items that a schema itself names, by place."""
    if isinstance(schema, Object):
        return {f"properties/{name}": one for name, one in schema.properties.items()}
    return {f"items/{index}": one for index, one in enumerate(schema.items)}


def _cost_of_patterns(schema: Object, name: str) -> int:
    """The number of steps that take the time of searching the name of a property for all patterns of a schema."""
    return len(schema.patterns) * (1 + len(name) // _NAME_PER_STEP)


def _at(kind: str, place: str) -> tuple[str, _Path]:
    """A difference at a place within the compared schema."""
    return kind, (place, None)


def _behind(node: Node) -> Node:
    """The schema to which a $ref leads."""
    if isinstance(node, Pointer):
        assert node.target is not None, "the reader sets the target of every pointer"
        return node.target
    return node


def _may_become(original: Combined, update: Combined) -> bool:
    """Whether a combined schema may change from one of allOf, anyOf and oneOf to another."""
    old, new = original.criterion, update.criterion
    was_single, is_single = len(original.parts) == 1, len(update.parts) == 1
    return (
        old is new
        or new is Criterion.ANY
        or (was_single and (is_single or new is Criterion.ONE))
        or (is_single and old is Criterion.ALL)
    )


def _strings(original: String, update: String) -> _Found:
    found: _Found = []
    _upper(found, "maxLength", "MAX_LENGTH", original.max_length, update.max_length)
    _lower(found, "minLength", "MIN_LENGTH", original.min_length, update.min_length)
    if update.pattern is not None and update.pattern != original.pattern:
        found.append(_at("PATTERN_ADDED" if original.pattern is None else "PATTERN_CHANGED", "pattern"))
    if update.format is not None and update.format != original.format:
        found.append(_at("FORMAT_ADDED" if original.format is None else "FORMAT_CHANGED", "format"))
    return found


def _numbers(original: Numeric, update: Numeric) -> _Found:
    found: _Found = []
    _upper(found, "maximum", "MAXIMUM", original.maximum, update.maximum)
    _lower(found, "minimum", "MINIMUM", original.minimum, update.minimum)
    _upper(found, "exclusiveMaximum", "EXCLUSIVE_MAXIMUM", original.exclusive_maximum, update.exclusive_maximum)
    _lower(found, "exclusiveMinimum", "EXCLUSIVE_MINIMUM", original.exclusive_minimum, update.exclusive_minimum)
    if update.excludes_maximum and not original.excludes_maximum and original.maximum == update.maximum is not None:
        found.append(_at("EXCLUSIVE_MAXIMUM_ADDED", "exclusiveMaximum"))
    if update.excludes_minimum and not original.excludes_minimum and original.minimum == update.minimum is not None:
        found.append(_at("EXCLUSIVE_MINIMUM_ADDED", "exclusiveMinimum"))
    old, new = original.multiple_of, update.multiple_of
    if new is not None and old != new:
        if old is None:
            found.append(_at("MULTIPLE_OF_ADDED", "multipleOf"))
        elif _is_multiple(new, old):
            found.append(_at("MULTIPLE_OF_EXPANDED", "multipleOf"))
        elif not _is_multiple(old, new):
            found.append(_at("MULTIPLE_OF_CHANGED", "multipleOf"))
    if update.is_integer and not original.is_integer:
        found.append(("TYPE_NARROWED", None))
    return found


def _is_multiple(number: Number, divisor: Number) -> bool:
    """Whether ``number`` is a multiple of ``divisor``. Numbers with extreme exponents, or very many digits, count as no
    multiples: the exact comparison of 100,000 digits takes seconds."""
    for one in map(Decimal, (number, divisor)):
        if abs(one.adjusted()) > _DIGITS_MAX or len(one.as_tuple().digits) > _DIGITS_MAX:
            return False
    return (Fraction(number) / Fraction(divisor)).denominator == 1


def _enums(original: Enum, update: Enum) -> _Found:
    if update.values >= original.values:
        return []
    kind = "ENUM_ARRAY_NARROWED" if update.values < original.values else "ENUM_ARRAY_CHANGED"
    return [_at(kind, "enum")]


def _upper(found: _Found, keyword: str, kind: str, old: Number | None, new: Number | None) -> None:
    """Compare an upper bound: a new bound, or a smaller bound, refuses values."""
    if new is not None and old is None:
        found.append(_at(f"{kind}_ADDED", keyword))
    elif new is not None and old is not None and new < old:
        found.append(_at(f"{kind}_DECREASED", keyword))


def _lower(found: _Found, keyword: str, kind: str, old: Number | None, new: Number | None) -> None:
    """Compare a lower bound: a new bound, or a larger bound, refuses values."""
    if new is not None and old is None:
        found.append(_at(f"{kind}_ADDED", keyword))
    elif new is not None and old is not None and new > old:
        found.append(_at(f"{kind}_INCREASED", keyword))
