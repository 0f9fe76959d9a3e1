"""Protobuf files: their references in the registry, and message classes from their descriptors.

A schema goes to the registry as the base64 of its FileDescriptorProto, as confluent-kafka sends it; the registry
converts it to text. The client also reads a file from the registry as base64 (``format=serialized``), so it needs no
parser of ``.proto`` text.
"""

from __future__ import annotations

import base64
import binascii
import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message

from .errors import InvalidSchemaError
from .models import ResolvedSchema

#: Imports below these paths need no reference, because every registry and every Protobuf library has the files.
_BUILT_IN: Final = ("google/protobuf/",)
#: Imports below these paths may be taken from installed Python packages.
_PACKAGED: Final = ("google/protobuf/", "google/type/", "google/rpc/", "google/api/")


def is_built_in(name: str) -> bool:
    """Whether an import needs no reference."""
    return name.startswith(_BUILT_IN)


def text_of(file: FileDescriptor) -> str:
    """The schema of a file, in the form that the registry accepts."""
    return base64.b64encode(file.serialized_pb).decode()


def dependencies(file: FileDescriptor) -> list[FileDescriptor]:
    """The imports of a file that need references."""
    return [each for each in file.dependencies if not is_built_in(each.name)]


def indexes_of(message: Descriptor) -> tuple[int, ...]:
    """The path to a message in its file: the index of each enclosing message from the outside in, then its own
    index."""
    found: list[int] = []
    at: Descriptor | None = message
    while at is not None:
        found.append(_siblings(at).index(at))
        at = at.containing_type
    return tuple(reversed(found))


def _siblings(message: Descriptor) -> list[Descriptor]:
    """The messages on the same level as a message, in the order of the file."""
    if message.containing_type is None:
        return list(message.file.message_types_by_name.values())
    return list(message.containing_type.nested_types)


def message_at(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor | None:
    """The message with this path in the file."""
    messages: list[Descriptor] = list(file.message_types_by_name.values())
    found: Descriptor | None = None
    for index in indexes:
        if index >= len(messages):
            return None
        found = messages[index]
        messages = list(found.nested_types)
    return found


def message_called(file: FileDescriptor, full_name: str) -> Descriptor | None:
    """The message with this full name in the file."""
    waiting = list(file.message_types_by_name.values())
    while waiting:
        each = waiting.pop()
        if each.full_name == full_name:
            return each
        waiting.extend(each.nested_types)
    return None


def message_class(message: Descriptor) -> type[Message]:
    found: type[Message] = message_factory.GetMessageClass(message)
    return found


def load(resolved: ResolvedSchema, where: Callable[[], str]) -> FileDescriptor:
    """The file of a schema that came from the registry, in its own descriptor pool. ``where`` describes the schema in
    errors. Raises InvalidSchemaError."""

    def invalid(reason: str) -> InvalidSchemaError:
        return InvalidSchemaError(f"{where()}: {reason}", schema_id=resolved.id)

    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for name, schema in resolved.references.items():
        files[name] = _file(schema.text, invalid)
        files[name].name = name  # the import's name
    main = _file(resolved.schema.text, invalid)
    main.name = main.name or "main.proto"
    while main.name in files:
        main.name = f"_{main.name}"
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(file: descriptor_pb2.FileDescriptorProto, above: tuple[str, ...]) -> None:
        if file.name in added:
            return
        if file.name in above or len(above) > 100:
            raise invalid(f"the imports form a cycle: {' -> '.join((*above, file.name))}")
        for name in file.dependency:
            dependency = files.get(name) or _packaged(name)
            if dependency is None:
                raise invalid(f"the import {name!r} is not a reference of the schema")
            add(dependency, (*above, file.name))
        added.add(file.name)
        pool.Add(file)

    try:
        add(main, ())
        found: FileDescriptor = pool.FindFileByName(main.name)
    except (TypeError, KeyError, ValueError) as error:
        raise invalid(f"the file cannot be built: {error}") from None
    return found


def _file(text: str, invalid: Callable[[str], InvalidSchemaError]) -> descriptor_pb2.FileDescriptorProto:
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        raise invalid(
            "the registry does not serve the schema as a descriptor (format=serialized); use the "
            "registry of Confluent 5.5 or later, or of Headrace"
        ) from None


def _packaged(name: str) -> descriptor_pb2.FileDescriptorProto | None:
    """A file that an installed Python package contains, such as google/protobuf/timestamp.proto."""
    if not name.startswith(_PACKAGED) or not name.endswith(".proto") or ".." in name:
        return None
    try:
        module: Any = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    except ImportError:
        return None
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file
