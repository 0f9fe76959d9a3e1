"""Protobuf schemas: a file with the types of its imports, checked as Google's compiler checks them:

* Every import is a reference or a well-known file, and every type exists.
* The numbers of the fields of a message and the names of a scope are unique.
* An enum of proto3 begins with 0.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import ClassVar, Final

from headrace_registry.schemas.model import (
    InvalidSchemaError,
    Parsed,
    Schema,
    SchemaType,
    check_size,
    in_order,
)
from headrace_registry.schemas.protobuf import descriptor, rules, text, writer
from headrace_registry.schemas.protobuf.elements import SCALARS, Enum, Field, File, Label, MapType, Message
from headrace_registry.schemas.protobuf.names import Types
from headrace_registry.schemas.protobuf.well_known import well_known

_MAP_KEYS: Final = frozenset(SCALARS) - {"double", "float", "bytes"}


class ProtobufSchema(Parsed):
    """A parsed Protobuf schema. ``file`` is the schema's own file, ``types`` has its types and those of its imports."""

    type: ClassVar = SchemaType.PROTOBUF

    def __init__(self, schema: Schema, file: File, types: Types) -> None:
        super().__init__(schema, writer.canonical(file))
        self.file = file
        self.types = types

    @cached_property
    def normalized(self) -> str:
        """The canonical text with sorted fields, options and imports, and with full names of types."""
        return writer.normalized(self.file, self.types)

    def formatted(self, form: str) -> str:
        """The schema in another format: ``serialized`` is a FileDescriptorProto in base64; other formats give the
        canonical text."""
        if form == "serialized":
            return base64.b64encode(descriptor.write(self.file, self.types)).decode()
        return super().formatted(form)


def parse(schema: Schema, resolved: Mapping[str, Schema], *, is_new: bool = True) -> ProtobufSchema:
    """Parse a Protobuf schema. ``resolved`` has the schema of each name in its references, direct or transitive.
    ``is_new``: check the rules of ``rules.py`` too.

    Raise InvalidSchemaError.
    """
    check_size(schema)
    file = _read(schema.text)
    if not (file.types or file.services or file.extensions or file.imports or file.public_imports):
        raise InvalidSchemaError("invalid Protobuf schema: the file declares nothing; declare a message")
    types = Types()
    files: dict[str, File] = {}
    direct = {reference.name: reference for reference in schema.references}
    for name, dependency in in_order(schema, resolved):
        check_size(dependency)
        try:
            files[name] = _read(dependency.text)
        except InvalidSchemaError as error:
            raise InvalidSchemaError(f'in the reference "{name}": {error.message}') from None
        _add_imports(files[name], name, files, types)
        types.add(files[name], direct.get(name), is_local=False)
    _add_imports(file, "", files, types)
    types.add(file, None, is_local=True)
    _Checker(file, types).check()
    if is_new:
        rules.check(file, types)
    parsed = ProtobufSchema(schema, file, types)
    parsed.kept_characters = types.names.kept
    return parsed


def _read(content: str) -> File:
    """Read a .proto file, or a FileDescriptorProto in base64: only a .proto file has braces or semicolons."""
    if not content.strip() or ";" in content or "{" in content:
        return text.read(content)
    try:
        data = base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError):
        return text.read(content)  # this error says what is wrong with the text
    # A name in the bytes may be any string. Write the descriptor as text and parse the text, because parsing refuses
    # invalid names: the registry stores the text.
    return text.read(writer.canonical(descriptor.read(data)))


def _add_imports(file: File, name: str, files: Mapping[str, File], types: Types) -> None:
    """Check that the imports of a file exist, and add the types of well-known imports."""
    for path in (*file.imports, *file.public_imports):
        if path in files:
            continue
        known = well_known(path)
        if known is None:
            where = f'in the reference "{name}": ' if name else ""
            raise InvalidSchemaError(
                f'{where}the import "{path}" has no schema; add a reference with the name "{path}" to the request'
            )
        types.add(known, None, is_local=False)


class _Checker:
    def __init__(self, file: File, types: Types) -> None:
        self._file = file
        self._types = types

    def check(self) -> None:
        package = self._file.package
        self._unique("the file", [one.name for one in self._file.services], self._file.types)
        for one in self._file.types:
            self._type(one, package)
        for extend in self._file.extensions:
            self._exists(extend.message, package, f'the extension of "{extend.message}"')
            self._fields(extend.fields, package, f'the extension of "{extend.message}"', needs_label=True)
        for service in self._file.services:
            scope = f"{package}.{service.name}" if package else service.name
            for call in service.calls:
                for name in (call.request, call.response):
                    self._exists(name, scope, f'the call "{scope}.{call.name}"')

    def _refuse(self, problem: str) -> InvalidSchemaError:
        return InvalidSchemaError(f"invalid Protobuf schema: {problem}")

    def _unique(self, where: str, names: Iterable[str], types: Collection[Message | Enum]) -> None:
        """Check the names of a scope. The constants of an enum belong to the scope around the enum."""
        seen: set[str] = set()
        constants = [constant.name for one in types if isinstance(one, Enum) for constant in one.constants]
        for name in (*names, *(one.name for one in types), *constants):
            if name in seen:
                raise self._refuse(f'{where} declares the name "{name}" twice; rename one of them')
            seen.add(name)

    def _type(self, one: Message | Enum, outer: str) -> None:
        name = f"{outer}.{one.name}" if outer else one.name
        if isinstance(one, Message):
            self._message(one, name)
        else:
            self._enum(one, name)

    def _message(self, message: Message, name: str) -> None:
        groups = [*message.groups, *(group for oneof in message.oneofs for group in oneof.groups)]
        numbers: dict[int, str] = {}
        fields = [*message.fields, *(one for oneof in message.oneofs for one in oneof.fields)]
        for one in (*fields, *(group.field for group in groups)):
            if one.number in numbers:
                raise self._refuse(
                    f'the fields "{numbers[one.number]}" and "{one.name}" of "{name}" have the same number, '
                    f"{one.number}; give one of them a new number"
                )
            numbers[one.number] = one.name
        names = [*(one.name for one in fields), *(oneof.name for oneof in message.oneofs)]
        self._unique(f'"{name}"', names, [*message.types, *(group.message for group in groups)])
        if message.map_entry:
            self._map_entry(message, name)
        self._fields(message.fields, name, f'"{name}"', needs_label=True)
        for oneof in message.oneofs:
            if not oneof.fields and not oneof.groups:
                raise self._refuse(f'the oneof "{oneof.name}" of "{name}" is empty; give it a field')
            self._fields(oneof.fields, name, f'"{name}"', needs_label=False)
        if groups and self._file.is_proto3:
            raise self._refuse(f'"{name}" has a group, which only proto2 has; use a message')
        for extend in message.extensions:
            self._exists(extend.message, name, f'an extension in "{name}"')
            self._fields(extend.fields, name, f'an extension in "{name}"', needs_label=True)
        for nested in (*message.types, *(group.message for group in groups)):
            self._type(nested, name)

    def _map_entry(self, message: Message, name: str) -> None:
        """Check the message of the entries of a map, which a descriptor has in place of the map."""
        fields = [(one.name, one.number) for one in message.fields]
        parts = (message.oneofs, message.groups, message.types, message.extensions)
        if sorted(fields) != [("key", 1), ("value", 2)] or any(parts):
            raise self._refuse(f'"{name}" has the option map_entry, and so needs the fields key = 1 and value = 2 only')
        key = next(one.type for one in message.fields if one.number == 1)
        if key not in _MAP_KEYS:
            raise self._refuse(f'"{name}" has the option map_entry and a key of type {key}; use a string or an integer')

    def _fields(self, fields: Iterable[Field], scope: str, where: str, *, needs_label: bool) -> None:
        for one in fields:
            is_map = isinstance(one.type, MapType)
            if needs_label and not self._file.is_proto3 and one.label is None and not is_map:
                raise self._refuse(
                    f'the field "{one.name}" of {where} has no label; proto2 needs optional, required or repeated'
                )
            if self._file.is_proto3 and one.label is Label.REQUIRED:
                raise self._refuse(
                    f'the field "{one.name}" of {where} is required, which only proto2 has; remove the word "required"'
                )
            kind = one.type
            if isinstance(kind, MapType):
                if kind.key not in _MAP_KEYS:
                    raise self._refuse(
                        f'the map "{one.name}" of {where} has keys of type {kind.key}; '
                        "use a string, a bool or an integer"
                    )
                kind = kind.value
            if kind not in SCALARS:
                self._exists(kind, scope, f'the field "{one.name}" of {where}')

    def _exists(self, name: str, scope: str, where: str) -> None:
        if not name.startswith("."):  # the search goes through each scope
            self._types.names.look_up((scope.count(".") + 1) * (len(scope) + len(name)))
        if self._types.find(name, scope) is None:
            raise self._refuse(f'the type "{name}" of {where} is unknown; import its file or correct the name')

    def _enum(self, enum: Enum, name: str) -> None:
        if not enum.constants:
            raise self._refuse(f'the enum "{name}" is empty; give it a constant')
        if self._file.is_proto3 and enum.constants[0].number != 0:
            raise self._refuse(
                f'the first constant of the enum "{name}" is not 0; an enum of proto3 must begin with the number 0'
            )
        may_repeat = any(option.name == "allow_alias" and option.value == "true" for option in enum.options)
        numbers: dict[int, str] = {}
        for one in enum.constants:
            if one.number in numbers and not may_repeat:
                raise self._refuse(
                    f'the constants "{numbers[one.number]}" and "{one.name}" of the enum "{name}" have the same '
                    f"number, {one.number}; give one of them a new number, or set allow_alias"
                )
            numbers[one.number] = one.name
