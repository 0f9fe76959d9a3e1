"""Check that .proto files are compatible with clients compiled from an older version of the files.

``describe`` reduces descriptors to sorted JSON (the *baseline*, committed as protos/baseline.json);
``breaking_changes`` compares two baselines. Additions are compatible. A change is breaking if an existing client would
misread a message, no longer compile, or make a call that fails. Fields and enum values are identified by number, as on
the wire; methods are identified by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorSet,
)


class Field(TypedDict):
    name: str
    type: str  # field type: "int32", or the full name of a message or enum
    cardinality: str  # "singular", "optional" (explicit presence) or "repeated"
    oneof: str  # name of the oneof; "" for a field outside of a oneof


class Method(TypedDict):
    input: str
    output: str
    client_streaming: bool
    server_streaming: bool


class Description(TypedDict):
    messages: dict[str, dict[str, Field]]  # full name -> field number -> field
    enums: dict[str, dict[str, list[str]]]  # full name -> value number -> names (aliases)
    services: dict[str, dict[str, Method]]  # full name -> method name -> method


def _field(field: FieldDescriptorProto, message: DescriptorProto) -> Field:
    kind = field.type_name.lstrip(".") or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        cardinality = "repeated"
    else:
        cardinality = "optional" if field.proto3_optional else "singular"
    in_oneof = field.HasField("oneof_index") and not field.proto3_optional
    oneof = message.oneof_decl[field.oneof_index].name if in_oneof else ""
    return Field(name=field.name, type=kind, cardinality=cardinality, oneof=oneof)


def _messages(prefix: str, messages: Any) -> Iterator[tuple[str, DescriptorProto]]:
    for message in messages:
        full_name = f"{prefix}.{message.name}"
        yield full_name, message
        yield from _messages(full_name, message.nested_type)


def _values(enum: EnumDescriptorProto) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for value in enum.value:
        values.setdefault(str(value.number), []).append(value.name)
    return {number: sorted(values[number]) for number in sorted(values, key=int)}


def describe(files: FileDescriptorSet) -> Description:
    """The parts of ``files`` that clients depend on, as plain values in a stable order."""
    found = Description(messages={}, enums={}, services={})
    for file in files.file:
        for full_name, message in _messages(file.package, file.message_type):
            fields = sorted(message.field, key=lambda field: field.number)
            found["messages"][full_name] = {str(field.number): _field(field, message) for field in fields}
            for enum in message.enum_type:
                found["enums"][f"{full_name}.{enum.name}"] = _values(enum)
        for enum in file.enum_type:
            found["enums"][f"{file.package}.{enum.name}"] = _values(enum)
        for service in file.service:
            found["services"][f"{file.package}.{service.name}"] = {
                method.name: Method(
                    input=method.input_type.lstrip("."),
                    output=method.output_type.lstrip("."),
                    client_streaming=method.client_streaming,
                    server_streaming=method.server_streaming,
                )
                for method in sorted(service.method, key=lambda method: method.name)
            }
    return Description(
        messages=dict(sorted(found["messages"].items())),
        enums=dict(sorted(found["enums"].items())),
        services=dict(sorted(found["services"].items())),
    )


def _changed_fields(message: str, old: dict[str, Field], new: dict[str, Field]) -> Iterator[str]:
    number_of = {field["name"]: number for number, field in new.items()}
    for number, field in old.items():
        where = f"{message}.{field['name']}"
        now = new.get(number)
        if now is None:
            moved = number_of.get(field["name"])
            yield f"{where}: renumbered from {number} to {moved}" if moved else f"{where}: field {number} is gone"
            continue
        if now["name"] != field["name"]:
            moved = number_of.get(field["name"])
            if moved:
                yield f"{where}: renumbered from {number} to {moved}"
            else:
                yield f"{where}: field {number} is now called {now['name']}"
        if now["type"] != field["type"]:
            yield f"{where}: field {number} was {field['type']}, is {now['type']}"
        if now["cardinality"] != field["cardinality"]:
            yield f"{where}: field {number} was {field['cardinality']}, is {now['cardinality']}"
        if now["oneof"] != field["oneof"]:
            yield f"{where}: field {number} was in oneof {field['oneof'] or '(none)'}, is in {now['oneof'] or '(none)'}"


def _changed_values(enum: str, old: dict[str, list[str]], new: dict[str, list[str]]) -> Iterator[str]:
    number_of = {name: number for number, names in new.items() for name in names}
    for number, names in old.items():
        for name in names:
            now = number_of.get(name)
            if now is None:
                yield f"{enum}.{name}: value {number} is gone"
            elif now != number:
                yield f"{enum}.{name}: renumbered from {number} to {now}"


def _changed_methods(service: str, old: dict[str, Method], new: dict[str, Method]) -> Iterator[str]:
    for name, method in old.items():
        now = new.get(name)
        if now is None:
            yield f"{service}.{name}: method is gone"
        elif now != method:
            yield f"{service}.{name}: was {_signature(method)}, is {_signature(now)}"


def _signature(method: Method) -> str:
    stream = {True: "stream ", False: ""}
    return (
        f"({stream[method['client_streaming']]}{method['input']}) returns "
        f"({stream[method['server_streaming']]}{method['output']})"
    )


def breaking_changes(old: Description, new: Description) -> list[str]:
    """Describe each breaking change from ``old`` to ``new`` in one line; the list is empty if the two baselines are
    compatible."""
    found: list[str] = []
    for message, fields in old["messages"].items():
        if message in new["messages"]:
            found += _changed_fields(message, fields, new["messages"][message])
        else:
            found.append(f"{message}: message is gone")
    for enum, values in old["enums"].items():
        if enum in new["enums"]:
            found += _changed_values(enum, values, new["enums"][enum])
        else:
            found.append(f"{enum}: enum is gone")
    for service, methods in old["services"].items():
        if service in new["services"]:
            found += _changed_methods(service, methods, new["services"][service])
        else:
            found.append(f"{service}: service is gone")
    return found
