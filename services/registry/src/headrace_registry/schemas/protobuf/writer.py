"""Writes a .proto file in the form of Confluent's registry, which is its canonical text.

A message has a fixed order: reserved numbers and names, options, fields, oneofs, groups, extension ranges, messages,
enums, extensions. The form indents each level by two spaces and has no comments. The normalized form also sorts the
parts whose order has no meaning in Protobuf, and gives types their full names. Messages and enums keep their order,
because a record names its message by the message's index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace_registry.schemas.protobuf.elements import (
    CONSTANT_MAX,
    NUMBER_MAX,
    SCALARS,
    Call,
    Constant,
    Enum,
    Extend,
    Extensions,
    Field,
    File,
    Group,
    MapType,
    Message,
    OneOf,
    Option,
    OptionKind,
    Reserved,
    Service,
    Word,
)
from headrace_registry.schemas.protobuf.names import Types

_ESCAPES = {
    "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
    "\\": "\\\\", "'": "\\'", '"': '\\"',
}  # fmt: skip
#: Matches characters that a string in quotes has as escapes, and bytes that are not UTF-8.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\\'\"\udc80-\udcff]")


def canonical(file: File) -> str:
    """The file in Confluent's form, in the order of its text."""
    return _Writer(None).file(file)


def normalized(file: File, types: Types) -> str:
    """The file in Confluent's form, sorted and with full names. ``types`` has the types of the file and its imports."""
    return _Writer(types).file(file)


class _Writer:
    """Writes lines. ``_types`` is None in the canonical form; ``_scope`` is the place for the resolution of names."""

    def __init__(self, types: Types | None) -> None:
        self._types = types
        self._lines: list[str] = []
        self._indent = ""
        self._scope = ""
        self._is_proto3 = False

    def _line(self, text: str) -> None:
        for part in text.split("\n"):
            self._lines.append(f"{self._indent}{part}\n" if part else "\n")

    def _sorted(self, values: Iterable[Any], key: Callable[[Any], Any]) -> list[Any]:
        return sorted(values, key=key) if self._types else list(values)

    def file(self, file: File) -> str:
        self._scope, self._is_proto3 = file.package, file.is_proto3
        if file.syntax is not None:
            self._line(f'syntax = "{file.syntax}";')
        if file.package:
            self._line(f"package {file.package};")
        if file.imports or file.public_imports:
            self._lines.append("\n")
            for word, paths in (("import", file.imports), ("import public", file.public_imports)):
                for path in sorted(set(paths)) if self._types else paths:
                    is_weak = word == "import" and path in file.weak_imports
                    self._line(f"{'import weak' if is_weak else word} {_quoted(path)};")
        if file.options:
            self._lines.append("\n")
            self._options(file.options)
        if file.types:
            self._lines.append("\n")
            self._nested(self._written(file.types))
        if file.extensions:
            self._lines.append("\n")
            self._extends(file.extensions)
        if file.services:
            self._lines.append("\n")
            for service in file.services:
                self._service(service)
        return "".join(self._lines)

    def _written(self, types: list[Message | Enum]) -> list[Message | Enum]:
        """The messages and then the enums, in the normalized form without the entries of maps."""
        messages = [one for one in types if isinstance(one, Message) and not (self._types and one.map_entry)]
        return [*messages, *(one for one in types if isinstance(one, Enum))]

    def _nested(self, types: list[Message | Enum]) -> None:
        for one in types:
            if isinstance(one, Message):
                self._message(one)
            else:
                self._enum(one)

    def _block(self, head: str, body: Callable[[], None]) -> None:
        """Write ``head {``, the body with more indent, and ``}``. If the body is empty, both braces are on one line."""
        self._line(f"{head} {{")
        self._indent += "  "
        before = len(self._lines)
        body()
        self._indent = self._indent[:-2]
        if len(self._lines) == before:
            self._lines[-1] = f"{self._indent}{head} {{}}\n"
        else:
            self._line("}")

    def _message(self, message: Message, head: str | None = None) -> None:
        scope, self._scope = self._scope, f"{self._scope}.{message.name}" if self._scope else message.name
        self._block(head or f"message {message.name}", lambda: self._message_body(message))
        self._scope = scope

    def _message_body(self, message: Message) -> None:
        self._sections((message.reserved, self._reserved), (message.options, self._options), *self._members(message))

    def _members(self, message: Message) -> list[tuple[list[Any], Callable[[list[Any]], None]]]:
        """Fields, oneofs, groups, extension ranges, messages, enums and extensions. A message comes before a map or
        group that it precedes in the source: the compiler numbers all three together, and records name their message by
        its number. Confluent's form has messages behind all fields, and so gives them other numbers."""
        types = self._written(message.types)
        own = {one.name: one for one in types if isinstance(one, Message)}
        before: dict[int, list[Message | Enum]] = {}  # messages by the number of maps and groups in front of them
        made = 0
        for name in message.nested:
            if name in own:
                before.setdefault(made, []).append(own[name])
            else:
                made += 1
        before.pop(made, None)  # behind all of them
        early: set[int] = set()
        sections: list[tuple[list[Any], Callable[[list[Any]], None]]] = [([], self._fields)]
        written = 0
        for one, write in self._in_order(message):
            makes = self._makes(one)
            due = [each for count in range(written, written + makes) for each in before.pop(count, ())]
            if due:
                sections.append((due, self._nested))
                early.update(map(id, due))
            if sections[-1][1] != write:
                sections.append(([], write))
            sections[-1][0].append(one)
            written += makes
        return [
            *sections,
            (message.extension_ranges, self._extension_ranges),
            ([one for one in types if id(one) not in early], self._nested),
            (message.extensions, self._extends),
        ]

    def _in_order(self, message: Message) -> Iterator[tuple[Any, Callable[[list[Any]], None]]]:
        yield from ((one, self._fields) for one in self._by_number(message.fields))
        oneofs = [oneof for oneof in message.oneofs if not self._types or oneof.fields or oneof.groups]
        yield from ((oneof, self._oneofs) for oneof in self._sorted(oneofs, _first_number))
        yield from ((group, self._groups) for group in message.groups)

    def _makes(self, member: Field | OneOf | Group) -> int:
        """The number of messages that a member declares by the way."""
        if isinstance(member, OneOf):
            return len(member.groups)
        if isinstance(member, Group):
            return 1
        kind = self._full_type(member.type) if self._types else member.type
        return int(isinstance(kind, MapType))

    def _sections(self, *sections: tuple[list[Any], Callable[[list[Any]], None]]) -> None:
        """Write the parts of a body that are not empty, with an empty line between two of them."""
        first = len(self._lines)
        for part, write in sections:
            if part:
                if len(self._lines) > first:
                    self._lines.append("\n")
                write(part)

    def _reserved(self, statements: list[list[Reserved]]) -> None:
        if self._types:
            each = [value for values in statements for value in values]
            statements = [[value] for value in sorted(each, key=_reserved_key)]
        for values in statements:
            self._line(f"reserved {', '.join(_reserved_text(value) for value in values)};")

    def _by_number(self, fields: list[Field]) -> list[Field]:
        return self._sorted(fields, lambda one: one.number)

    def _fields(self, fields: list[Field]) -> None:
        for one in fields:
            self._line(self._field(one) + ";")

    def _field(self, one: Field) -> str:
        kind, label = one.type, one.label
        if self._types:
            kind = self._full_type(kind)
            if isinstance(kind, MapType):
                label = None
        options = [*one.options, *(option for option in (one.default, one.json_name) if option)]
        return f"{f'{label} ' if label else ''}{kind} {one.name} = {one.number}{self._bracketed(options)}"

    def _full_type(self, kind: str | MapType) -> str | MapType:
        """A type with its full name, and the entry of a map as a map."""
        assert self._types is not None
        if isinstance(kind, str) and kind not in SCALARS:
            found = self._types.find(kind, self._scope)
            assert found is not None, "the schema checks that all types exist"
            entry = found.map_entry
            if entry is None:
                return f".{found.name}"
            return MapType(entry.key, str(self._full_type_from(entry.value, found.name)))
        if isinstance(kind, MapType):
            return MapType(kind.key, str(self._full_type(kind.value)))
        return kind

    def _full_type_from(self, kind: str, scope: str) -> str | MapType:
        before, self._scope = self._scope, scope
        try:
            return self._full_type(kind)
        finally:
            self._scope = before

    def _oneofs(self, oneofs: list[OneOf]) -> None:
        for oneof in oneofs:
            self._block(f"oneof {oneof.name}", lambda oneof=oneof: self._oneof_body(oneof))  # type: ignore[misc]

    def _oneof_body(self, oneof: OneOf) -> None:
        self._sections(
            (oneof.options, self._options), (self._by_number(oneof.fields), self._fields), (oneof.groups, self._groups)
        )

    def _groups(self, groups: list[Group]) -> None:
        for group in groups:
            label = f"{group.field.label} " if group.field.label else ""
            options = self._bracketed(group.field.options)
            head = f"{label}group {group.message.name} = {group.field.number}{options}"
            self._message(group.message, head)

    def _extension_ranges(self, statements: list[Extensions]) -> None:
        for one in statements:
            ranges = ", ".join(_range_text(*each) for each in one.ranges)
            self._line(f"extensions {ranges}{self._bracketed(one.options)};")

    def _extends(self, extends: list[Extend]) -> None:
        for extend in extends:
            name = str(self._full_type(extend.message)) if self._types else extend.message
            self._block(f"extend {name}", lambda extend=extend: self._fields(self._by_number(extend.fields)))  # type: ignore[misc]

    def _enum(self, enum: Enum) -> None:
        self._block(f"enum {enum.name}", lambda: self._enum_body(enum))

    def _enum_body(self, enum: Enum) -> None:
        self._reserved(enum.reserved)
        self._options(enum.options)
        # In proto3 the constant 0 must come first. Confluent's registry sorts by number alone, and so puts -1 before
        # 0.
        constants: list[Constant] = self._sorted(
            enum.constants, lambda one: (self._is_proto3 and one.number != 0, one.number, one.name)
        )
        for one in constants:
            self._line(f"{one.name} = {one.number}{self._bracketed(one.options)};")

    def _service(self, service: Service) -> None:
        self._block(f"service {service.name}", lambda: self._service_body(service))

    def _service_body(self, service: Service) -> None:
        self._sections((service.options, self._options), (service.calls, self._calls))

    def _calls(self, calls: list[Call]) -> None:
        for call in calls:
            head = self._call_head(call)
            if call.options:
                self._block(head, lambda call=call: self._options(call.options))  # type: ignore[misc]
                self._lines[-1] = f"{self._indent}}};\n"
            else:
                self._line(f"{head};")

    def _call_head(self, call: Call) -> str:
        request, response = call.request, call.response
        if self._types:
            request, response = str(self._full_type(request)), str(self._full_type(response))
        streams = ["stream " if flag else "" for flag in (call.streams_request, call.streams_response)]
        return f"rpc {call.name} ({streams[0]}{request}) returns ({streams[1]}{response})"

    def _options(self, options: list[Option]) -> None:
        for option in self._sorted(options, lambda one: one.name):
            self._line(f"option {self._option(option)};")

    def _bracketed(self, options: list[Option]) -> str:
        if not options:
            return ""
        texts = [self._option(option) for option in self._sorted(options, lambda one: one.name)]
        if len(texts) == 1:
            return f" [{texts[0]}]"
        return " [\n" + ",\n".join(_indented(text) for text in texts) + "\n]"

    def _option(self, option: Option) -> str:
        name = f"({option.name})" if option.is_custom else option.name
        match option.kind:
            case OptionKind.OPTION:
                return f"{name}.{self._option(option.value)}"
            case OptionKind.STRING:
                return f"{name} = {_quoted(option.value)}"
            case OptionKind.WORD:
                return f"{name} = {option.value}"
        return f"{name} = {self._value(option.value)}"

    def _value(self, value: Any) -> str:
        """A value within an option, in the text format."""
        match value:
            case dict():
                keys = sorted(value) if self._types else value
                lines = [f"{key}: {self._value(value[key])}" for key in keys]
                brackets = "{}"
            case list():
                lines = [self._value(item) for item in value]
                brackets = "[]"
            case Word():
                return value.text
            case _:
                return _quoted(value)
        body = _indented(",\n".join(lines)) + "\n" if lines else ""
        return f"{brackets[0]}\n{body}{brackets[1]}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _quoted(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return _ESCAPES.get(character) or f"\\{ord(character) & 0xFF:03o}"  # a surrogate stands for a byte


def _range_text(start: int, end: int) -> str:
    return str(start) if start == end else f"{start} to {'max' if end == NUMBER_MAX else end}"


def _reserved_text(value: Reserved) -> str:
    if isinstance(value, tuple):
        return f"{value[0]} to {'max' if value[1] == CONSTANT_MAX else value[1]}"
    return _quoted(value) if isinstance(value, str) else str(value)


def _reserved_key(value: Reserved) -> tuple[bool, int, str]:
    """The sort key of an item of ``reserved``: numbers and ranges by their first number, then names."""
    start = value[0] if isinstance(value, tuple) else value
    return isinstance(start, str), start if isinstance(start, int) else 0, str(value)


def _first_number(oneof: OneOf) -> int:
    return min(one.number for one in [*oneof.fields, *(group.field for group in oneof.groups)])
