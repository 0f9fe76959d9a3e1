"""ProtobufSerializer and ProtobufDeserializer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Unpack

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.message import DecodeError, EncodeError, Message

from headrace_core.errors import InvalidConfigError

from . import wire
from .building import Build
from .cache import Bounded
from .errors import CorruptValueError, IncompatibleSchemaError, InvalidValueError
from .models import Reference, ResolvedSchema, Schema, SchemaType
from .protobuf_depth import DEPTH_MAX, may_be_too_deep, too_deep_path
from .protobuf_files import (
    dependencies,
    indexes_of,
    load,
    message_at,
    message_called,
    message_class,
    text_of,
)
from .registry import SchemaRegistry
from .serde import SchemaDeserializer, SchemaSerializer, SerializerSettings, Writing, named

#: What ParseDict raises for a dict that is not a message. Besides ParseError these are errors that it does not convert:
#: OverflowError for an enum of 1e400, and SystemError for a text with half of a surrogate pair.
_NOT_A_MESSAGE = (json_format.ParseError, ArithmeticError, LookupError, SystemError, TypeError, ValueError)


class ProtobufSerializer(SchemaSerializer):
    """Writes messages of generated Protobuf classes.

        serializer = ProtobufSerializer(SchemaRegistry("http://127.0.0.1:8081"), Order)
        producer.send("orders", Order(id=1))

    The schema is the file of the message's class. The imports of this file are references, each under a subject that
    has the name of the imported file. The registry must have the schema and its references (``headrace schemas
    register``), unless ``auto_register_schemas`` is set. ``message_class``: the only message class that the serializer
    accepts; with this argument, the serializer also accepts dicts (proto JSON). Without ``message_class``, the
    serializer accepts any message. Set ``is_key`` only if you call the serializer yourself, without a client.
    """

    _type = SchemaType.PROTOBUF

    def __init__(
        self,
        registry: SchemaRegistry,
        message_class: type[Message] | None = None,
        config: Mapping[str, Any] | None = None,
        *,
        is_key: bool = False,
        **settings: Unpack[SerializerSettings],
    ) -> None:
        super().__init__(registry, config, settings, is_key=is_key, to_dict=None)
        if message_class is not None:
            _check_class(message_class)
        self._class = message_class

    def _serialize(self, topic: str, value: Any, may_wait: bool) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, Message) or (self._class is not None and not isinstance(value, self._class)):
            value = self._message(topic, value)
        descriptor = value.DESCRIPTOR
        key = (topic, descriptor)
        writing = self._writings.get(key)
        if writing is None or not self._is_fresh(writing):
            writing = self._writing(key, topic, descriptor, may_wait)
        try:
            return writing.encode(value)
        except (EncodeError, DecodeError) as error:
            chosen = writing.chosen
            reason, path = str(error), ""
            if isinstance(error, DecodeError):
                path = too_deep_path(value)
                reason = f"{path or 'a field'} is nested more than {DEPTH_MAX} messages deep, which readers refuse"
            elif missing := value.FindInitializationErrors():
                path = missing[0]
            raise InvalidValueError(
                f"the {self._field} cannot be written: {reason} (schema: "
                f"{named(chosen.subject, chosen.version, chosen.id)})",
                subject=chosen.subject,
                version=chosen.version,
                schema_id=chosen.id,
                path=path,
                topic=topic,
                field=self._field,
            ) from None

    def _message(self, topic: str, value: Any) -> Message:
        """Convert a value that is not a message of the serializer's class."""
        if self._class is not None and isinstance(value, Mapping):
            try:
                return json_format.ParseDict(dict(value), self._class())
            except _NOT_A_MESSAGE as error:
                raise InvalidValueError(
                    f"the {self._field} is not a {self._class.DESCRIPTOR.full_name}: {error}",
                    topic=topic,
                    field=self._field,
                ) from None
        wanted = "a Protobuf message" if self._class is None else f"a {self._class.DESCRIPTOR.full_name} or a dict"
        raise InvalidValueError(
            f"the {self._field} must be {wanted}, not {type(value).__name__}", topic=topic, field=self._field
        )

    def _writing(self, key: Any, topic: str, descriptor: Descriptor, may_wait: bool) -> Writing:
        until = self._until()
        asks = self._uses_latest or self._schema_id is not None
        schema = None if asks else self._schema_of(descriptor.file, may_wait, above=())
        chosen = self._choose(topic, schema, descriptor.full_name, may_wait=may_wait, serialized=True)
        indexes = indexes_of(descriptor)
        if asks:
            file = load(chosen.resolved, lambda: named(chosen.subject, chosen.version, chosen.id))
            written = message_called(file, descriptor.full_name)
            if written is None:
                raise IncompatibleSchemaError(
                    f"{named(chosen.subject, chosen.version, chosen.id)} has no message {descriptor.full_name}",
                    reasons=(f"no message {descriptor.full_name}",),
                    subject=chosen.subject,
                    version=chosen.version,
                    schema_id=chosen.id,
                    path=descriptor.full_name,
                )
            indexes = indexes_of(written)
        prefix = wire.header(chosen.id) + wire.write_indexes(indexes)
        may_nest = may_be_too_deep(descriptor)

        def encode(message: Message) -> bytes:
            data: bytes = message.SerializeToString()
            if may_nest:
                type(message).FromString(data)  # raises DecodeError: every reader refuses it too
            return prefix + data

        return self._writings.put(key, Writing(encode, chosen, until))

    def _schema_of(self, file: FileDescriptor, may_wait: bool, above: tuple[str, ...]) -> Schema:
        """The schema of a file. The file's imports are looked up, or registered, before the file, because the
        references in its schema name the versions of the imports."""
        references = []
        for each in dependencies(file):
            schema = self._schema_of(each, may_wait, (*above, file.name))
            found = self.registry.registered(
                each.name, schema, normalize=self._normalizes, register=self._registers, may_wait=may_wait
            )
            references.append(Reference(each.name, found.subject, found.version))
        return Schema(text_of(file), SchemaType.PROTOBUF, tuple(references))


class _Read(NamedTuple):
    """A schema, its file descriptor, and the classes of its messages. ``kinds`` maps the path in the file to the class
    of the message."""

    resolved: ResolvedSchema
    file: FileDescriptor
    kinds: dict[tuple[int, ...], type[Message]]


class ProtobufDeserializer(SchemaDeserializer):
    """Reads Protobuf messages.

        consumer = Consumer(group_id="g", value_deserializer=ProtobufDeserializer(registry, Order))

    ``message_class``: a generated class, or several classes; the message name in a value selects one of them. Without a
    class, messages are built from the registry's schema. ``into``: ``dict`` for proto JSON with the fields' own names,
    or any callable that takes the message.
    """

    def __init__(
        self,
        registry: SchemaRegistry,
        message_class: type[Message] | Iterable[type[Message]] | None = None,
        *,
        into: Any = None,
        is_key: bool = False,
    ) -> None:
        super().__init__(registry, is_key=is_key, into=into)
        classes = (
            () if message_class is None else (message_class,) if isinstance(message_class, type) else message_class
        )
        self._classes: dict[str, type[Message]] | None = None
        if message_class is not None:
            self._classes = {}
            for each in classes:
                _check_class(each)
                self._classes[each.DESCRIPTOR.full_name] = each
        self._reads: Bounded[bytes, _Read] = Bounded(registry.cache_capacity)
        #: Maps the first bytes of a value (header and message path) to the message class and the reader. The cache
        #: contains only message paths whose numbers take one byte each.
        self._short: Bounded[bytes, tuple[type[Message], _Read]] = Bounded(registry.cache_capacity)

    def _builder(self, into: Any) -> Build | None:
        return to_dict if into is dict else super()._builder(into)

    def _deserialize(self, topic: str, data: bytes | None, may_wait: bool) -> Any:
        if data is None:
            return None
        at = _after_short_path(data)
        known = self._short.get(data[:at])
        if known is not None:
            kind, read = known
        else:
            kind, read, at = self._find(topic, data, may_wait)
        try:
            message = kind.FromString(data[at:])
        except DecodeError as error:
            place = self._place(topic, read.resolved)
            raise CorruptValueError(
                f"the bytes are not a {kind.DESCRIPTOR.full_name} of "
                f"{named(place['subject'], place['version'], read.resolved.id)}: {error}",
                path=kind.DESCRIPTOR.full_name,
                **place,
            ) from None
        return message if self._build is None else self._built(self._build, message, topic, read.resolved)

    def _find(self, topic: str, data: bytes, may_wait: bool) -> tuple[type[Message], _Read, int]:
        """Return the class of the message, its schema's data, and the position in ``data`` at which the message
        begins."""
        read = self._reads.get(data[: wire.HEADER_BYTES])
        if read is None:
            read = self._read(topic, data, may_wait)
        indexes, at = self._indexes(topic, data, read.resolved)
        kind = read.kinds.get(indexes)
        if kind is None:
            kind = read.kinds[indexes] = self._kind(topic, indexes, read)
        if at == _after_short_path(data):
            self._short.put(bytes(data[:at]), (kind, read))
        return kind, read, at

    def _read(self, topic: str, data: bytes, may_wait: bool) -> _Read:
        resolved = self._resolved(topic, data, SchemaType.PROTOBUF, may_wait=may_wait, serialized=True)
        place = self._place(topic, resolved)
        file = load(resolved, lambda: named(place["subject"], place["version"], resolved.id))
        return self._reads.put(bytes(data[: wire.HEADER_BYTES]), _Read(resolved, file, {}))

    def _indexes(self, topic: str, data: bytes, resolved: ResolvedSchema) -> tuple[tuple[int, ...], int]:
        try:
            return wire.read_indexes(data, wire.HEADER_BYTES)
        except CorruptValueError as error:
            raise CorruptValueError(error.message, **self._place(topic, resolved)) from None

    def _kind(self, topic: str, indexes: tuple[int, ...], read: _Read) -> type[Message]:
        place = self._place(topic, read.resolved)
        where = named(place["subject"], place["version"], read.resolved.id)
        written = message_at(read.file, indexes)
        if written is None:
            raise CorruptValueError(f"{where} has no message with the path {list(indexes)}", **place)
        if self._classes is None:
            return message_class(written)
        found = self._classes.get(written.full_name)
        if found is None:
            raise IncompatibleSchemaError(
                f"the value is a {written.full_name} ({where}); this deserializer reads "
                f"{', '.join(sorted(self._classes))}",
                reasons=(f"unexpected message {written.full_name}",),
                path=written.full_name,
                **place,
            )
        return found


def to_dict(message: Message) -> dict[str, Any]:
    """A message as proto JSON, with the fields' own names."""
    found: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return found


def _after_short_path(data: bytes) -> int:
    """The position at which the message begins, if each number of its path takes one byte. A message's path is encoded
    as the number of indexes (zigzag), then the indexes."""
    return wire.HEADER_BYTES + 1 + (data[wire.HEADER_BYTES] >> 1) if len(data) > wire.HEADER_BYTES else 0


def _check_class(kind: Any) -> None:
    if not isinstance(kind, type) or not issubclass(kind, Message):
        raise InvalidConfigError(f"message_class={kind!r:.80}: must be a generated Protobuf class")
