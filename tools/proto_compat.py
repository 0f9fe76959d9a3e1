"""Check that .proto files are compatible with clients compiled from an older version of the files.

Additions are compatible. A change is breaking if an existing client would misread a message, no longer compile, or make
a call that fails. Fields and enum values are identified by number, as on the wire; methods are identified by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)


class _Kinds(NamedTuple):
    """What a set of files declares, by full name."""

    messages: dict[str, DescriptorProto]
    enums: dict[str, EnumDescriptorProto]
    services: dict[str, ServiceDescriptorProto]


def _declared(files: FileDescriptorSet) -> _Kinds:
    found = _Kinds({}, {}, {})

    def add(prefix: str, messages: Any, enums: Any) -> None:
        found.enums.update({f"{prefix}.{enum.name}": enum for enum in enums})
        for message in messages:
            found.messages[f"{prefix}.{message.name}"] = message
            add(f"{prefix}.{message.name}", message.nested_type, message.enum_type)

    for file in files.file:
        add(file.package, file.message_type, file.enum_type)
        found.services.update({f"{file.package}.{service.name}": service for service in file.service})
    return found


def _type(field: FieldDescriptorProto) -> str:
    return field.type_name.lstrip(".") or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _cardinality(field: FieldDescriptorProto) -> str:
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return "repeated"
    return "optional" if field.proto3_optional else "singular"


def _oneof(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    is_member = field.HasField("oneof_index") and not field.proto3_optional
    return message.oneof_decl[field.oneof_index].name if is_member else "(none)"


def _changed_fields(name: str, old: DescriptorProto, new: DescriptorProto) -> Iterator[str]:
    number_of = {field.name: field.number for field in new.field}
    by_number = {field.number: field for field in new.field}
    for was in old.field:
        where, number = f"{name}.{was.name}", was.number
        moved, now = number_of.get(was.name), by_number.get(number)
        if moved not in (None, number):
            yield f"{where}: renumbered from {number} to {moved}"
        if now is None:
            if moved is None:
                yield f"{where}: field {number} is gone"
            continue
        if moved is None:
            yield f"{where}: field {number} is now called {now.name}"
        if _type(now) != _type(was):
            yield f"{where}: field {number} was {_type(was)}, is {_type(now)}"
        if _cardinality(now) != _cardinality(was):
            yield f"{where}: field {number} was {_cardinality(was)}, is {_cardinality(now)}"
        if _oneof(now, new) != _oneof(was, old):
            yield f"{where}: field {number} was in oneof {_oneof(was, old)}, is in {_oneof(now, new)}"


def _changed_values(name: str, old: EnumDescriptorProto, new: EnumDescriptorProto) -> Iterator[str]:
    number_of = {value.name: value.number for value in new.value}
    for value in old.value:
        now = number_of.get(value.name)
        if now is None:
            yield f"{name}.{value.name}: value {value.number} is gone"
        elif now != value.number:
            yield f"{name}.{value.name}: renumbered from {value.number} to {now}"


def _signature(method: MethodDescriptorProto) -> str:
    taken, returned = method.input_type.lstrip("."), method.output_type.lstrip(".")
    return f"({'stream ' * method.client_streaming}{taken}) returns ({'stream ' * method.server_streaming}{returned})"


def _changed_methods(name: str, old: ServiceDescriptorProto, new: ServiceDescriptorProto) -> Iterator[str]:
    signatures = {method.name: _signature(method) for method in new.method}
    for method in old.method:
        now = signatures.get(method.name)
        if now is None:
            yield f"{name}.{method.name}: method is gone"
        elif now != _signature(method):
            yield f"{name}.{method.name}: was {_signature(method)}, is {now}"


def breaking_changes(old: FileDescriptorSet, new: FileDescriptorSet) -> list[str]:
    """Describe each breaking change from ``old`` to ``new`` in one line; empty if ``new`` only adds. With the arguments
    exchanged, it therefore describes what ``new`` adds."""
    were, are = _declared(old), _declared(new)

    def compare(kind: str, before: Mapping[str, Any], after: Mapping[str, Any], changed: Any) -> Iterator[str]:
        for name, declared in sorted(before.items()):
            if name in after:
                yield from changed(name, declared, after[name])
            else:
                yield f"{name}: {kind} is gone"

    return [
        *compare("message", were.messages, are.messages, _changed_fields),
        *compare("enum", were.enums, are.enums, _changed_values),
        *compare("service", were.services, are.services, _changed_methods),
    ]
