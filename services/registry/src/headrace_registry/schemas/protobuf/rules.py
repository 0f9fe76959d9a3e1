"""Further rules of Google's compiler, for new schemas only: another registry may have stored schemas that break them.

A schema that breaks a rule has no generated code, and Protobuf's libraries refuse the descriptors of most of them, so a
consumer could not read its records:

* A message does not use the numbers and names that it reserves, and its ranges do not overlap.
* A map is not in a oneof, and the names of the entries of maps are unique.
* The names of fields in JSON are unique; in proto2, only the names that the file gives them. Fields of proto3 have no
  defaults. A default has the type of its field.
* A call uses messages, and an extension uses a number of an extension range.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from headrace_registry.schemas.model import InvalidSchemaError
from headrace_registry.schemas.protobuf.elements import (
    NUMBER_MAX,
    Enum,
    Extend,
    Field,
    File,
    Label,
    MapType,
    Message,
    OptionKind,
    Reserved,
)
from headrace_registry.schemas.protobuf.names import Types, entry_name

_INTEGER = re.compile(r"[+-]?(0[xX][0-9A-Fa-f]+|[0-9]+)\Z", re.ASCII)
_INT_TYPES = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64")
_TEXT_TYPES = ("string", "bytes")
#: The option with which a message may have equal names in JSON.
_EQUAL_JSON_NAMES = "deprecated_legacy_json_field_conflicts"


def check(file: File, types: Types) -> None:
    """Check a file whose types all exist. Raise InvalidSchemaError."""
    _Rules(file, types).check()


class _Rules:
    def __init__(self, file: File, types: Types) -> None:
        self._file = file
        self._types = types
        #: The extension ranges of each extended message, sorted, and the constants of each enum with a default; by the
        #: id of the element. Many fields may use one element.
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        self._constants: dict[int, frozenset[str]] = {}

    def check(self) -> None:
        package = self._file.package
        _unique([*self._file.imports, *self._file.public_imports], "the file imports", "remove one of the imports")
        for one in self._file.types:
            self._type(one, package)
        for extend in self._file.extensions:
            self._extend(extend, package)
        for service in self._file.services:
            scope = f"{package}.{service.name}" if package else service.name
            for call in service.calls:
                for name in (call.request, call.response):
                    self._message_named(name, scope, f'the call "{scope}.{call.name}"')

    def _type(self, one: Message | Enum, outer: str) -> None:
        name = f"{outer}.{one.name}" if outer else one.name
        if isinstance(one, Enum):
            numbers = [(constant.number, constant.name) for constant in one.constants]
            _check_reserved(name, one.reserved, [], numbers, low=-(1 << 31), high=(1 << 31) - 1)
        else:
            self._message(one, name)

    def _message(self, message: Message, name: str) -> None:
        groups = [*message.groups, *(group for oneof in message.oneofs for group in oneof.groups)]
        in_oneofs = [one for oneof in message.oneofs for one in oneof.fields]
        fields = [*message.fields, *in_oneofs, *(group.field for group in groups)]
        extensions = [each for one in message.extension_ranges for each in one.ranges]
        numbers = [(one.number, one.name) for one in fields]
        _check_reserved(name, message.reserved, extensions, numbers, low=1, high=NUMBER_MAX)
        if self._file.is_proto3 and extensions:
            raise _refuse(f'"{name}" has extension ranges, which only proto2 has; remove them')
        for one in in_oneofs:
            if isinstance(one.type, MapType):
                raise _refuse(f'the map "{one.name}" of "{name}" is in a oneof; put it into a message')
        entries = [entry_name(one.name) for one in message.fields if isinstance(one.type, MapType)]
        if entries:
            known = [*(one.name for one in fields), *(oneof.name for oneof in message.oneofs)]
            known += [one.name for one in message.types]
            _unique([*known, *entries], f'"{name}" has the name', "rename the map of this entry, or the other element")
        self._json_names(message, fields, name)
        for one in fields:
            self._default(one, name)
        for extend in message.extensions:
            self._extend(extend, name)
        for nested in (*message.types, *(group.message for group in groups)):
            self._type(nested, name)

    def _json_names(self, message: Message, fields: Sequence[Field], name: str) -> None:
        if any(option.name == _EQUAL_JSON_NAMES and option.value == "true" for option in message.options):
            return
        names = [str(one.json_name.value) for one in fields if one.json_name]
        if self._file.is_proto3:
            names += [_json_name(one.name) for one in fields if not one.json_name]
        _unique(names, f'two fields of "{name}" have the JSON name', "rename one of the fields")

    def _default(self, one: Field, name: str) -> None:
        if one.default is None:
            return
        problem = ""
        if self._file.is_proto3:
            problem = "only proto2 has defaults"
        elif one.label is Label.REPEATED or isinstance(one.type, MapType):
            problem = "a repeated field has no default"
        else:
            problem = self._mismatch(one.type, one.default.kind, str(one.default.value), name)
        if problem:
            raise _refuse(f'the default of the field "{one.name}" of "{name}" is wrong: {problem}')

    def _mismatch(self, kind: str, option: OptionKind, value: str, scope: str) -> str:
        """The reason why ``value`` is not a default of the type ``kind``; empty if it is."""
        if (option is OptionKind.STRING) != (kind in _TEXT_TYPES):
            return f"it is not a value of the type {kind}"
        if kind == "bool" and value not in ("true", "false"):
            return "it is neither true nor false"
        if kind in _INT_TYPES and not _INTEGER.match(value):
            return "it is not a whole number"
        found = self._types.find(kind, scope)
        if found is None:
            return ""
        if isinstance(found.element, Message):
            return "a message has no default"
        constants = self._constants.get(id(found.element))
        if constants is None:
            constants = frozenset(constant.name for constant in found.element.constants)
            self._constants[id(found.element)] = constants
        if value not in constants:
            return f"the enum {kind} has no constant {value[:80]}"
        return ""

    def _extend(self, extend: Extend, scope: str) -> None:
        where = f'the extension of "{extend.message}"'
        message = self._message_named(extend.message, scope, where)
        found = self._types.find(extend.message, scope)
        ranges = self._ranges.get(id(message))
        if ranges is None:
            ranges = self._ranges[id(message)] = sorted(
                each for some in message.extension_ranges for each in some.ranges
            )
        for one in extend.fields:
            self._default(one, scope)
            # The registry knows only the names of well-known messages, such as google.protobuf.FieldOptions.
            if found is not None and found.is_local and not _is_within(one.number, ranges):
                raise _refuse(f"{where} has the number {one.number}, which is in none of its extension ranges")

    def _message_named(self, name: str, scope: str, where: str) -> Message:
        found = self._types.find(name, scope)
        if found is None or not isinstance(found.element, Message):
            raise _refuse(f'the type "{name}" of {where} is not a message')
        return found.element


def _check_reserved(
    name: str,
    statements: Sequence[Sequence[Reserved]],
    extensions: Sequence[tuple[int, int]],
    numbers: Sequence[tuple[int, str]],
    *,
    low: int,
    high: int,
) -> None:
    """Check that the reserved numbers and the extension ranges are legal and apart, and that no field or constant uses
    them. ``numbers``: number and name of each field or constant."""
    reserved = [value for statement in statements for value in statement]
    names = [value for value in reserved if isinstance(value, str)]
    _unique(names, f'"{name}" reserves the name', "remove one of them")
    ranges = [value if isinstance(value, tuple) else (value, value) for value in reserved if not isinstance(value, str)]
    ranges = sorted([*ranges, *extensions])
    for start, end in ranges:
        if not low <= start <= end <= high:
            raise _refuse(
                f'"{name}" has the range {start} to {end}; a range begins at {low} or later, and ends at {high} or '
                "earlier"
            )
    for (_, end), (start, _) in pairwise(ranges):
        if start <= end:
            raise _refuse(f'two ranges of "{name}" have the number {start}; keep one of them')
    used = frozenset(names)
    for number, one in numbers:
        if one in used:
            raise _refuse(f'"{name}" uses the name "{one}", which it reserves; choose another name')
        if _is_within(number, ranges):
            raise _refuse(
                f'"{one}" of "{name}" has the number {number}, which is reserved or in an extension range; choose '
                "another number"
            )


def _is_within(number: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether one of the ranges, which are sorted and do not overlap, has the number."""
    index = bisect_right(ranges, (number, 1 << 31)) - 1
    return index >= 0 and number <= ranges[index][1]


def _unique(names: Iterable[str], problem: str, cure: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise _refuse(f'{problem} "{name}" twice; {cure}')
        seen.add(name)


def _json_name(name: str) -> str:
    """The name of a field in JSON: fooBar for foo_bar."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _refuse(problem: str) -> InvalidSchemaError:
    return InvalidSchemaError(f"invalid Protobuf schema: {problem}")
