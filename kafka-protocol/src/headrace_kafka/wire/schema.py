"""Decodes and encodes requests and responses of every type and version, with functions that are compiled from kio's
schema classes.

kio's classes are generated from Kafka's message definitions; only their fields are used here. kio's own reader creates
objects before it has checked their number, so a few hostile bytes could exhaust the memory of the process.

A decoded message is a ``Message``: attributes by kio's field names (Kafka's names in snake_case; a time has no suffix
``_ms``). Values are plain: times and error codes are ints, a UUID is 16 bytes, an array is a list, and record batches
are a view of the message's bytes. If a message's version lacks a field, the field has the default of the newest version
that has the field. With these defaults, code that uses a message needs no version checks. The encoder takes a dict: it
ignores fields that this version lacks, uses the defaults of missing fields, and raises LookupError for an unknown name.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .apis import VERSIONS, Api
from .primitives import (
    ITEMS_MAX,
    Cursor,
    WireError,
    pack_float64,
    pack_int16,
    pack_int32,
    pack_int64,
    pack_uint16,
    put_bytestring,
    put_compact_bytestring,
    put_compact_records,
    put_compact_string,
    put_records,
    put_string,
    put_varint,
)

Reader = Callable[[Cursor], Any]
Writer = Callable[[bytearray, Any], None]

NO_UUID = bytes(16)


class Message:
    """One structure of a message, with the fields as attributes. Each structure has a subclass with the defaults of its
    fields."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and as_dict(self) == as_dict(other)

    __hash__ = None  # type: ignore[assignment]


def as_dict(message: Message) -> dict[str, Any]:
    """The decoded fields, with nested structures as dicts, as the encoders accept them."""
    return {name: _plain(value) for name, value in vars(message).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return as_dict(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


class Body:
    """Decodes and encodes the bodies of one message type and version, without headers."""

    def __init__(self, struct: _Struct) -> None:
        self._read = struct.reader()
        self._write = struct.writer()

    def read(self, data: bytes, position: int = 0, items_max: int = ITEMS_MAX) -> Message:
        """Decode the message that begins at ``position`` of ``data``. Raises WireError if the bytes are not a message
        of the type and version, TooManyItemsError if it has more than ``items_max`` items. Bytes after the message are
        ignored, as in Kafka: librdkafka 2.16 sends extra bytes in a Metadata request for all topics."""
        return self._read(Cursor(data, position, items_max))  # type: ignore[no-any-return]

    def write(self, fields: Mapping[str, Any], out: bytearray | None = None) -> bytearray:
        """Append the message with ``fields`` to ``out`` (default: a new bytearray), and return it."""
        if out is None:
            out = bytearray()
        self._write(out, fields)
        return out


@functools.cache
def request_body(api: Api, version: int) -> Body:
    """The Body for the requests of a type and version; VERSIONS must include the version."""
    return Body(_Struct(_entity(api, version, "request"), _shape(api, "request")))


@functools.cache
def response_body(api: Api, version: int) -> Body:
    """The Body for the responses of a type and version; VERSIONS must include the version."""
    return Body(_Struct(_entity(api, version, "response"), _shape(api, "response")))


def prepare(apis: Iterable[Api]) -> None:
    """Compile the codecs of these request types in advance, so that no client waits for the compilation. One type takes
    up to 0.3 seconds, mostly for the imports of kio's classes."""
    for api in apis:
        for version in range(VERSIONS[api].low, VERSIONS[api].high + 1):
            request_body(api, version)
            response_body(api, version)


def message_class(api: Api, kind: str, *path: str) -> type[Message]:
    """The class of a decoded message, or of the structures in one of its fields. ``kind``: "request" or "response";
    ``path``: the names of the field and of the fields that contain it, such as ``"topic_data"``."""
    shape = _shape(api, kind)
    for name in path:
        shape = shape.nested[name]
    return shape.message


def has_response_field(api: Api, version: int, name: str) -> bool:
    """Whether responses of this type and version have a top-level field ``name``."""
    return any(field.name == name for field in dataclasses.fields(_entity(api, version, "response")))


# -- kio's classes ----------------------------------------------------------------------------------------------------


def _import_types() -> None:
    """Import kio's primitive types without Hypothesis. If Hypothesis is installed, kio imports it and registers
    strategies, which costs 200 MiB and half a second. A broker needs no strategies, so this function hides Hypothesis
    during the import, unless the process has already imported Hypothesis."""
    if "hypothesis" in sys.modules:
        importlib.import_module("kio.static.primitive")
        return
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("kio.static.primitive")
    finally:
        sys.modules.pop("hypothesis", None)


_import_types()


def _entity(api: Api, version: int, kind: str) -> type[Any]:
    """kio's class for a request or a response."""
    module = importlib.import_module(f"kio.schema.{api.name.lower()}.v{version}.{kind}")
    (found,) = (
        each
        for each in vars(module).values()
        if dataclasses.is_dataclass(each)
        and isinstance(each, type)
        and each.__module__ == module.__name__
        and each.__type__.name == kind  # type: ignore[attr-defined]
    )
    return found


class _Kind(typing.NamedTuple):
    """The type of a field. ``kafka``: kio's name of the primitive type; "" for a structure, which is ``entity``."""

    kafka: str
    entity: type[Any] | None
    is_array: bool
    is_nullable: bool


@functools.cache
def _kinds(entity: type[Any]) -> dict[str, _Kind]:
    hints = typing.get_type_hints(entity)
    return {field.name: _kind(field, hints[field.name]) for field in dataclasses.fields(entity)}


def _kind(field: dataclasses.Field[Any], hint: Any) -> _Kind:
    is_nullable = is_array = False
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        is_nullable = True
        (hint,) = (each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is tuple:
        is_array = True
        hint = typing.get_args(hint)[0]
    kafka = field.metadata.get("kafka_type", "")
    return _Kind(kafka, None if kafka else hint, is_array, is_nullable)


class _Shape:
    """One structure in all versions of its message: every field that any version has, with the default of the newest
    version that has the field."""

    def __init__(self, entities: list[type[Any]]) -> None:
        """``entities``: kio's classes of the structure, oldest version first."""
        self.defaults: dict[str, Any] = {}
        self.nested: dict[str, _Shape] = {}
        found: dict[str, list[type[Any]]] = {}
        for entity in entities:
            kinds = _kinds(entity)  # type: ignore[arg-type]
            for field in dataclasses.fields(entity):
                kind = kinds[field.name]
                self.defaults[field.name] = _default(field, kind)
                if kind.entity is not None:
                    found.setdefault(field.name, []).append(kind.entity)
        for name, classes in found.items():
            self.nested[name] = shape = _Shape(classes)
            if isinstance(self.defaults[name], Message):
                self.defaults[name] = shape.message()
        self.message: type[Message] = type(entities[-1].__name__, (Message,), dict(self.defaults))


@functools.cache
def _shape(api: Api, kind: str) -> _Shape:
    versions = VERSIONS[api]
    return _Shape([_entity(api, version, kind) for version in range(versions.low, versions.high + 1)])


_ZERO: dict[str, Any] = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "records": None, "uuid": NO_UUID}


def _default(field: dataclasses.Field[Any], kind: _Kind) -> Any:
    """The default of a field, as a plain value."""
    if field.default is dataclasses.MISSING:
        if kind.is_array:
            return None if kind.is_nullable else ()
        if kind.entity is not None:
            return None if kind.is_nullable else Message()
        return None if kind.is_nullable and kind.kafka in ("string", "bytes") else _ZERO.get(kind.kafka, 0)
    value: Any = field.default
    if dataclasses.is_dataclass(value):
        return Message()
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if value is None and kind.kafka == "uuid":
        return NO_UUID
    if value is None and kind.kafka == "datetime_i64":
        return -1
    if isinstance(value, uuid.UUID):
        return value.bytes
    if kind.kafka == "error_code":
        return int(value.value)
    return value


# -- one structure of one version -------------------------------------------------------------------------------------

_READERS: dict[str, Reader] = {
    "bool": Cursor.boolean,
    "int8": Cursor.int8,
    "int16": Cursor.int16,
    "uint16": Cursor.uint16,
    "int32": Cursor.int32,
    "int64": Cursor.int64,
    "float64": Cursor.float64,
    "error_code": Cursor.int16,
    "timedelta_i32": Cursor.int32,
    "timedelta_i64": Cursor.int64,
    "datetime_i64": Cursor.int64,
    "uuid": Cursor.uuid,
}
_SIZES = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8, "float64": 8, "error_code": 2}
_SIZES |= {"timedelta_i32": 4, "timedelta_i64": 8, "datetime_i64": 8, "uuid": 16}


def _packing(pack: Callable[[Any], bytes]) -> Writer:
    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _put_bool(out: bytearray, value: Any) -> None:
    out.append(1 if value else 0)


def _put_int8(out: bytearray, value: int) -> None:
    out.append(value & 0xFF)


def _put_uuid(out: bytearray, value: bytes | None) -> None:
    out += value or NO_UUID


_WRITERS: dict[str, Writer] = {
    "bool": _put_bool,
    "int8": _put_int8,
    "int16": _packing(pack_int16),
    "uint16": _packing(pack_uint16),
    "int32": _packing(pack_int32),
    "int64": _packing(pack_int64),
    "float64": _packing(pack_float64),
    "error_code": _packing(pack_int16),
    "timedelta_i32": _packing(pack_int32),
    "timedelta_i64": _packing(pack_int64),
    "datetime_i64": _packing(pack_int64),
    "uuid": _put_uuid,
}


class _Struct:
    """Compiles the reader and the writer of one structure of one version."""

    def __init__(self, entity: type[Any], shape: _Shape) -> None:
        self._flexible: bool = entity.__flexible__
        self._shape = shape
        self._kinds = _kinds(entity)  # type: ignore[arg-type]
        fields = dataclasses.fields(entity)
        self._plain = [field.name for field in fields if "tag" not in field.metadata]
        self._tagged = {field.metadata["tag"]: field.name for field in fields if "tag" in field.metadata}
        self._nested = {
            name: _Struct(kind.entity, shape.nested[name])
            for name, kind in self._kinds.items()
            if kind.entity is not None
        }

    def bytes_min(self) -> int:
        """The minimum size in bytes of a structure on the wire."""
        return sum(self._size(name) for name in self._plain) + (1 if self._flexible else 0)

    def _size(self, name: str) -> int:
        kind = self._kinds[name]
        if kind.is_array:
            return 1 if self._flexible else 4
        if kind.entity is not None:
            return 1 if kind.is_nullable else self._nested[name].bytes_min()
        return _SIZES.get(kind.kafka) or (1 if self._flexible else 2 if kind.kafka == "string" else 4)

    # -- reading ------------------------------------------------------------------------------------------------------

    def reader(self) -> Reader:
        plain = tuple((name, self._reader(name)) for name in self._plain)
        tagged = {tag: (name, self._reader(name)) for tag, name in self._tagged.items()}
        flexible, message_class = self._flexible, self._shape.message
        new = message_class.__new__

        def read(cursor: Cursor) -> Message:
            cursor.count_items(1)
            message = new(message_class)
            fields = message.__dict__
            for name, read_field in plain:
                fields[name] = read_field(cursor)
            if flexible:
                if tagged:
                    _read_tagged(cursor, tagged, fields)
                else:
                    cursor.skip_tagged()
            return message

        return read

    def _reader(self, name: str) -> Reader:
        kind = self._kinds[name]
        if kind.is_array:
            element = self._element_reader(name)
            size = self._element_size(name)
            return _array_reader(element, size, self._flexible, kind.is_nullable, name)
        if kind.entity is not None:
            read = self._nested[name].reader()
            return _nullable_reader(read) if kind.is_nullable else read
        if kind.kafka in _READERS:
            return _READERS[kind.kafka]
        read = self._variable_reader(kind.kafka)
        return read if kind.is_nullable or kind.kafka == "records" else _required_reader(read, name)

    def _variable_reader(self, kafka: str) -> Reader:
        if kafka == "string":
            return Cursor.compact_string if self._flexible else Cursor.string
        if kafka == "records":
            return Cursor.compact_records if self._flexible else Cursor.records
        return Cursor.compact_bytestring if self._flexible else Cursor.bytestring

    def _element_reader(self, name: str) -> Reader:
        kind = self._kinds[name]
        if kind.entity is not None:
            return self._nested[name].reader()
        if kind.kafka in _READERS:
            return _READERS[kind.kafka]
        return _required_reader(self._variable_reader(kind.kafka), name)

    def _element_size(self, name: str) -> int:
        kind = self._kinds[name]
        if kind.entity is not None:
            return max(self._nested[name].bytes_min(), 1)
        return _SIZES.get(kind.kafka) or (1 if self._flexible else 2)

    # -- writing ------------------------------------------------------------------------------------------------------

    def writer(self) -> Writer:
        plain = tuple((name, self._writer(name), self._default(name)) for name in self._plain)
        tagged = tuple(
            (tag, name, self._writer(name), self._shape.defaults[name]) for tag, name in sorted(self._tagged.items())
        )
        tagged_names = frozenset(self._tagged.values())
        flexible = self._flexible
        known = self._shape.defaults.keys()
        title = self._shape.message.__name__

        def write(out: bytearray, given: Any) -> None:
            fields = vars(given) if isinstance(given, Message) else given
            if not fields.keys() <= known:
                raise LookupError(f"{title} has no field {', '.join(sorted(fields.keys() - known))}")
            for name, write_field, default in plain:
                write_field(out, fields.get(name, default))
            if flexible:
                if tagged and not fields.keys().isdisjoint(tagged_names):
                    _write_tagged(out, tagged, fields)
                else:
                    out.append(0)

        return write

    def _default(self, name: str) -> Any:
        """The default of the field in the newest version, or an empty value if that default is null and this version
        has no null."""
        default = self._shape.defaults[name]
        return self._absent(name) if default is None else default

    def _absent(self, name: str) -> Any:
        """The value that the encoder writes for None: null, or an empty value if this version has no null."""
        kind = self._kinds[name]
        if kind.is_nullable or kind.kafka == "records":
            return None
        return () if kind.is_array else {} if kind.entity is not None else _ZERO.get(kind.kafka, 0)

    def _writer(self, name: str) -> Writer:
        """A writer of the field that accepts None even if this version has no null."""
        write, absent = self._strict_writer(name), self._absent(name)
        if absent is None:
            return write

        def write_or_absent(out: bytearray, value: Any) -> None:
            write(out, absent if value is None else value)

        return write_or_absent if self._kinds[name].is_array or self._kinds[name].kafka not in _WRITERS else write

    def _strict_writer(self, name: str) -> Writer:
        kind = self._kinds[name]
        if kind.entity is not None:
            element = self._nested[name].writer()
        elif kind.kafka in _WRITERS:
            element = _WRITERS[kind.kafka]
        elif kind.kafka == "string":
            element = put_compact_string if self._flexible else put_string
        elif kind.kafka == "records":
            element = put_compact_records if self._flexible else put_records
        else:
            element = put_compact_bytestring if self._flexible else put_bytestring
        if kind.is_array:
            return _array_writer(element, self._flexible)
        return _nullable_writer(element) if kind.entity is not None and kind.is_nullable else element


def _read_tagged(cursor: Cursor, tagged: Mapping[int, tuple[str, Reader]], fields: dict[str, Any]) -> None:
    count = cursor.varint()
    cursor.count_items(count)
    for _ in range(count):
        tag, size = cursor.varint(), cursor.varint()
        start = cursor.skip(size)
        known = tagged.get(tag)
        if known is None:
            continue
        end, cursor.position = cursor.position, start
        name, read = known
        fields[name] = read(cursor)
        if cursor.position != end:
            raise cursor.fail(f"the tagged field {name} does not end at byte {end}")


def _write_tagged(out: bytearray, tagged: tuple[tuple[int, str, Writer, Any], ...], fields: Mapping[str, Any]) -> None:
    present = [
        (tag, write, fields[name])
        for tag, name, write, default in tagged
        if name in fields and not _is_default(fields[name], default)
    ]
    put_varint(out, len(present))
    for tag, write, value in present:
        body = bytearray()
        write(body, value)
        put_varint(out, tag)
        put_varint(out, len(body))
        out += body


def _is_default(value: Any, default: Any) -> bool:
    if value is None or default is None:
        return value is default
    if isinstance(default, Message):  # to leave out a structure, do not name it
        return False
    return bool(value == default) or (default == () and not value)


def _required_reader(read: Reader, name: str) -> Reader:
    def read_required(cursor: Cursor) -> Any:
        value = read(cursor)
        if value is None:
            raise cursor.fail(f"{name} is null")
        return value

    return read_required


def _nullable_reader(read: Reader) -> Reader:
    def read_nullable(cursor: Cursor) -> Any:
        return None if cursor.int8() < 0 else read(cursor)

    return read_nullable


def _nullable_writer(write: Writer) -> Writer:
    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write(out, value)

    return write_nullable


def _array_reader(read: Reader, size: int, flexible: bool, is_nullable: bool, name: str) -> Reader:
    def read_array(cursor: Cursor) -> list[Any] | None:
        count = cursor.varint() - 1 if flexible else cursor.int32()
        if count < 0:
            if count == -1 and is_nullable:
                return None
            raise cursor.fail(f"the array {name} has {count} elements")
        if count * size > cursor.left():
            raise cursor.fail(f"the array {name} has {count} elements, but only {cursor.left()} bytes are left")
        cursor.count_items(count)
        return [read(cursor) for _ in range(count)]

    return read_array


def _array_writer(write: Writer, flexible: bool) -> Writer:
    def write_array(out: bytearray, values: Any) -> None:
        if values is None:
            out += b"\x00" if flexible else b"\xff\xff\xff\xff"
            return
        if flexible:
            put_varint(out, len(values) + 1)
        else:
            out += pack_int32(len(values))
        for value in values:
            write(out, value)

    return write_array


__all__ = [
    "Body",
    "Message",
    "WireError",
    "as_dict",
    "has_response_field",
    "message_class",
    "request_body",
    "response_body",
]
