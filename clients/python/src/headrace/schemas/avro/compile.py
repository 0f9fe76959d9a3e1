"""Build the codec's Writers and Readers from schemas, and resolve a reader's schema against a writer's.

Source: the Avro specification 1.12, "Schema Resolution". A mismatch between two schemas raises Unresolvable, before any
value is read. If one branch of a writer's union does not match, only values of that branch raise an error
(RefusingReader).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

from . import _codec as codec
from .schema import MISSING, Field, Type

#: The largest number of pairs (the writer's type, the reader's type) of two schemas.
TYPES_MAX = 100_000
#: The largest number of values in the defaults of one schema: nested defaults of records can double with each level.
DEFAULT_VALUES_MAX = 50_000
#: The largest length of a reason in an error: the reason of a union contains the reasons of its branches.
REASON_CHARACTERS_MAX = 500


class Unresolvable(ValueError):
    """The reader's schema cannot read values of the writer's schema. ``path`` names the field."""

    def __init__(self, reason: str, path: str = "") -> None:
        reason = reason if len(reason) <= REASON_CHARACTERS_MAX else f"{reason[:REASON_CHARACTERS_MAX]}..."
        super().__init__(reason)
        self.reason, self.path = reason, path


_WRITERS: dict[str, Callable[[], codec.Writer]] = {
    "null": codec.NullWriter,
    "boolean": codec.BooleanWriter,
    "int": codec.IntWriter,
    "long": codec.LongWriter,
    "float": codec.FloatWriter,
    "double": codec.DoubleWriter,
    "bytes": codec.BytesWriter,
    "string": codec.StringWriter,
}

_READERS: dict[str, Callable[[], codec.Reader]] = {
    "null": codec.NullReader,
    "boolean": codec.BooleanReader,
    "int": codec.IntReader,
    "long": codec.LongReader,
    "float": codec.FloatReader,
    "double": codec.DoubleReader,
    "bytes": codec.BytesReader,
    "string": codec.StringReader,
}

#: Maps (writer's type, reader's type) to a reader that promotes the written values.
_PROMOTIONS: dict[tuple[str, str], Callable[[], codec.Reader]] = {
    ("int", "long"): codec.LongReader,
    ("int", "float"): lambda: codec.IntAsReal(True),
    ("int", "double"): lambda: codec.IntAsReal(False),
    ("long", "float"): lambda: codec.IntAsReal(True),
    ("long", "double"): lambda: codec.IntAsReal(False),
    ("float", "double"): codec.FloatReader,
    ("string", "bytes"): codec.BytesReader,
    ("bytes", "string"): codec.StringReader,
}

_CONVERSIONS: dict[tuple[str, str], tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    ("int", "date"): (codec.write_date, codec.read_date, "date"),
    ("int", "time-millis"): (codec.write_time_millis, codec.read_time_millis, "time"),
    ("long", "time-micros"): (codec.write_time_micros, codec.read_time_micros, "time"),
    ("long", "timestamp-millis"): (codec.write_timestamp_millis, codec.read_timestamp_millis, "datetime"),
    ("long", "timestamp-micros"): (codec.write_timestamp_micros, codec.read_timestamp_micros, "datetime"),
    ("long", "local-timestamp-millis"): (codec.write_local_millis, codec.read_local_millis, "local datetime"),
    ("long", "local-timestamp-micros"): (codec.write_local_micros, codec.read_local_micros, "local datetime"),
    ("string", "uuid"): (codec.write_uuid_text, codec.read_uuid_text, "UUID"),
    ("fixed", "uuid"): (codec.write_uuid_bytes, codec.read_uuid_bytes, "UUID"),
}


def _is_converted(kind: Type) -> bool:
    """Whether Python has a type for the logical type. Python has no type for nanoseconds, so values in nanoseconds stay
    numbers."""
    return kind.logical == "decimal" or (kind.kind, kind.logical) in _CONVERSIONS


def _conversion(kind: Type) -> tuple[Callable[[Any], Any], Callable[[Any], Any], str]:
    if kind.logical == "decimal":
        numbers = codec.DecimalBytes(kind.precision, kind.scale, kind.size)
        return numbers.write, numbers.read, f"decimal({kind.precision}, {kind.scale})"
    return _CONVERSIONS[kind.kind, kind.logical]


def _check(kind: Type) -> Callable[[Any], object]:
    """A function that raises ValueError or OverflowError for a raw value that readers of the logical type refuse."""
    if kind.logical == "decimal":
        return codec.DecimalBytes(kind.precision, kind.scale, kind.size).check
    read = _conversion(kind)[1]
    if kind.kind in ("int", "long"):
        return lambda value: read(operator.index(value))
    return bytes if kind.kind == "fixed" else read  # (each UUID of 16 bytes is one)


# --- writing ----------------------------------------------------------------------------------------------------------


def encoder(schema: Type, prefix: bytes = b"") -> codec.Encoder:
    """The encoder of a schema; ``prefix`` begins each result. Raises Unresolvable for a schema that is too deep."""
    try:
        return codec.Encoder(_WriterBuilder().build(schema), prefix)
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> Unresolvable:
    return Unresolvable("the types refer to each other over too many levels")


class _WriterBuilder:
    def __init__(self) -> None:
        self._made: dict[Type, codec.Writer] = {}
        self._budget = _Budget()

    def build(self, kind: Type) -> codec.Writer:
        if kind in self._made:
            return self._made[kind]
        made = self._made[kind] = self._new(kind)
        if isinstance(made, codec.RecordWriter):
            made.fill(
                [each.name for each in kind.fields],
                [self.build(each.type) for each in kind.fields],
                [self._default(each, kind) for each in kind.fields],
            )
        return made

    def _new(self, kind: Type) -> codec.Writer:
        if kind.kind == "record":
            return codec.RecordWriter(kind.name, attribute_names)
        if kind.kind == "array":
            array = codec.ArrayWriter()
            array.item = self.build(_item(kind))
            return array
        if kind.kind == "map":
            mapped = codec.MapWriter()
            mapped.value = self.build(_item(kind))
            return mapped
        if kind.kind == "union":
            union = codec.UnionWriter()
            union.fill([self.build(each) for each in kind.branches], [each.branch for each in kind.branches])
            return union
        if kind.kind == "enum":
            return codec.EnumWriter(kind.name, kind.symbols)
        base = codec.FixedWriter(kind.name, kind.size) if kind.kind == "fixed" else _WRITERS[kind.kind]()
        if not _is_converted(kind):
            return base
        to_avro, _, label = _conversion(kind)
        return codec.LogicalWriter(base, to_avro, _check(kind), label)

    def _default(self, field: Field, record: Type) -> bytes | str | None:
        """The encoded default, or None if the field has no default. A wrong default matters only to a value that needs
        it, so the function returns the error as text instead of raising it."""
        if field.default is MISSING:
            return None
        try:
            return encoded_default(field, record, self._budget)
        except Unresolvable as error:
            return error.reason


class _Budget:
    """Counts how many more values the defaults of a schema may contain."""

    def __init__(self) -> None:
        self.left = DEFAULT_VALUES_MAX

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ValueError(f"the defaults consist of more than {DEFAULT_VALUES_MAX:,} values")


def encoded_default(field: Field, record: Type, budget: _Budget | None = None) -> bytes:
    """The default of a record's field, encoded. Raises Unresolvable."""
    try:
        return encoded_json(field.type, field.default, budget)
    except (ValueError, RecursionError) as error:
        raise Unresolvable(f"the default of field {field.name} of record {record.name}: {error}", field.name) from None


def encoded_json(kind: Type, value: Any, budget: _Budget | None = None, depth: int = 0) -> bytes:
    """Encode a default from its JSON. In the JSON, bytes are text (one character for each byte), and a union's value is
    of the union's first branch (since Avro 1.12 of any branch). Raises ValueError."""
    budget = _Budget() if budget is None else budget
    budget.spend()
    if depth > codec.DEPTH_MAX:
        raise ValueError(f"the value is nested more than {codec.DEPTH_MAX} levels deep")
    if kind.kind == "union":
        problems = []
        for index, each in enumerate(kind.branches):
            try:
                return _long(index) + encoded_json(each, value, budget, depth + 1)
            except ValueError as error:
                problems.append(str(error))
        raise ValueError("; ".join(problems)[:REASON_CHARACTERS_MAX] or "a union without branches has no default")
    if kind.kind == "record":
        if not isinstance(value, dict):
            raise ValueError(f"must be an object for {kind.label}, not {value!r:.60}")
        parts = []
        for field in kind.fields:
            given = value.get(field.name, field.default)
            if given is MISSING:
                raise ValueError(f"lacks the field {field.name} of {kind.label}")
            parts.append(encoded_json(field.type, given, budget, depth + 1))
        return b"".join(parts)
    if kind.kind == "array":
        if not isinstance(value, list):
            raise ValueError(f"must be a list for an array, not {value!r:.60}")
        items = [encoded_json(_item(kind), each, budget, depth + 1) for each in value]
        return (_long(len(items)) + b"".join(items) if items else b"") + b"\0"
    if kind.kind == "map":
        if not isinstance(value, dict):
            raise ValueError(f"must be an object for a map, not {value!r:.60}")
        pairs = [
            _long(len(key.encode())) + key.encode() + encoded_json(_item(kind), each, budget, depth + 1)
            for key, each in value.items()
        ]
        return (_long(len(pairs)) + b"".join(pairs) if pairs else b"") + b"\0"
    if kind.kind in ("bytes", "fixed"):
        if not isinstance(value, str):
            raise ValueError(f"must be a string for {kind.label}, not {value!r:.60}")
        value = value.encode("iso-8859-1")
    plain = Type(kind.kind, name=kind.name, symbols=kind.symbols, size=kind.size)
    try:
        return encoder(plain).encode(value)
    except codec.Mismatch as error:
        raise ValueError(error.reason) from None


def _long(value: int) -> bytes:
    return encoder(Type("long")).encode(value)


def _item(kind: Type) -> Type:
    assert kind.item is not None
    return kind.item


def attribute_names(kind: type, names: Sequence[str]) -> tuple[str | None, ...] | None:
    """The attributes of a class that hold a record's fields; None in place of an attribute that the class does not
    have. Returns None for a class that is not a dataclass, a pydantic model, an attrs class or a named tuple.

    A field of a pydantic model may be called by its alias.
    """
    if dataclasses.is_dataclass(kind):
        known = {each.name: each.name for each in dataclasses.fields(kind)}
    elif isinstance(getattr(kind, "model_fields", None), dict):
        known = {}
        for name, info in kind.model_fields.items():  # type: ignore[attr-defined]
            known[name] = name
            for alias in (info.alias, info.serialization_alias):
                if isinstance(alias, str):
                    known[alias] = name
    elif hasattr(kind, "__attrs_attrs__"):
        known = {each.name: each.name for each in kind.__attrs_attrs__}
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        known = {name: name for name in kind._fields}
    else:
        return None
    # The value of a field may also come from a property of the class.
    return tuple(known.get(name, name if hasattr(kind, name) else None) for name in names)


# --- reading ----------------------------------------------------------------------------------------------------------


def decoder(writer: Type, reader: Type | None = None) -> codec.Decoder:
    """The decoder that reads values of the schema ``writer`` as values of the schema ``reader`` (None: the writer's own
    schema). Raises Unresolvable."""
    try:
        return codec.Decoder(_ReaderBuilder().build(writer, writer if reader is None else reader, ""))
    except RecursionError:
        raise _too_deep() from None


class _ReaderBuilder:
    """Builds the reader of each pair of types only once. A type may contain itself, and several branches of a union may
    lead to the same pair. A reader is in ``_made`` before its parts are built, so that a recursive type finds itself.
    If the types of the pair turn out not to match, other readers may already refer to the pair's reader, which then
    refuses every value."""

    def __init__(self) -> None:
        self._made: dict[tuple[Type, Type], codec.Reader] = {}
        self._failed: dict[tuple[Type, Type], str] = {}
        self._budget = _Budget()

    def build(self, writer: Type, reader: Type, path: str) -> codec.Reader:
        key = (writer, reader)
        if key in self._made:
            return self._made[key]
        if key in self._failed:
            raise Unresolvable(self._failed[key], path)
        if len(self._made) + len(self._failed) > TYPES_MAX:
            raise Unresolvable(f"the schemas have more than {TYPES_MAX:,} pairs of types", path)
        try:
            found = self._made[key] = self._new(writer, reader, path)
        except Unresolvable as error:
            self._failed[key] = error.reason
            begun = self._made.pop(key, None)
            if begun is not None:
                _refuse(begun, error.reason)
            raise
        return found

    def _new(self, writer: Type, reader: Type, path: str) -> codec.Reader:
        key = (writer, reader)
        if writer.kind == "union":
            union = self._made[key] = codec.UnionReader()
            union.fill([self._branch(each, reader, path) for each in writer.branches])
            if all(isinstance(each, codec.RefusingReader) for each in union.branches):
                raise Unresolvable(f"no branch of the writer's union can be read as {reader.label}", path)
            return union
        if reader.kind == "union":
            return self._of_union(writer, reader, path)
        if writer.kind == "record" and reader.kind == "record":
            check_names(writer, reader, path)
            record = self._made[key] = codec.RecordReader()
            self._fill_record(record, writer, reader, path)
            return record
        return self._plain(writer, reader, path)

    def _branch(self, writer: Type, reader: Type, path: str) -> codec.Reader:
        try:
            return self.build(writer, reader, path)
        except Unresolvable as error:
            return codec.RefusingReader(f"the value is a {writer.label}: {error.reason}")

    def _of_union(self, writer: Type, reader: Type, path: str) -> codec.Reader:
        """The first branch of the same type and name, otherwise the first branch that can read the writer's type."""
        same = [each for each in reader.branches if each.kind == writer.kind and is_called(writer, each)]
        reasons = []
        for each in (*same, *(each for each in reader.branches if each not in same)):
            try:
                return self.build(writer, each, path)
            except Unresolvable as error:
                reasons.append(error.reason)
        labels = ", ".join(each.label for each in reader.branches)
        raise Unresolvable(
            f"{writer.label} fits no branch of the reader's union ({labels}): {'; '.join(reasons)}", path
        )

    def _plain(self, writer: Type, reader: Type, path: str) -> codec.Reader:
        """The reader of any type except records and unions."""
        if writer.kind == reader.kind == "array":
            array = codec.ArrayReader()
            self._made[writer, reader] = array
            array.item = self.build(_item(writer), _item(reader), f"{path}[]")
            return array
        if writer.kind == reader.kind == "map":
            mapped = codec.MapReader()
            self._made[writer, reader] = mapped
            mapped.value = self.build(_item(writer), _item(reader), f"{path}[]")
            return mapped
        if writer.kind == reader.kind == "enum":
            check_names(writer, reader, path)
            known = set(reader.symbols)
            symbols = [each if each in known else reader.default for each in writer.symbols]
            return codec.EnumReader(reader.name, symbols, writer.symbols)
        if writer.kind == reader.kind == "fixed":
            check_names(writer, reader, path)
            if writer.size != reader.size:
                raise Unresolvable(
                    f"the writer's fixed {writer.name} has {writer.size} bytes, the reader's has {reader.size}", path
                )
            return _logical(codec.FixedReader(writer.size), writer, reader, path)
        if writer.kind == reader.kind and writer.kind in _READERS:
            return _logical(_READERS[writer.kind](), writer, reader, path)
        promoted = _PROMOTIONS.get((writer.kind, reader.kind))
        if promoted is None:
            raise Unresolvable(f"the writer's {writer.label} cannot be read as {reader.label}", path)
        return _logical(promoted(), writer, reader, path)

    def _fill_record(self, record: codec.RecordReader, writer: Type, reader: Type, path: str) -> None:
        taken: set[str] = set()
        names: list[str | None] = []
        readers = []
        for written, wanted in zip(writer.fields, matched_fields(writer, reader), strict=True):
            at = f"{path}.{written.name}" if path else written.name
            if wanted is None:
                names.append(None)
                readers.append(self.build(written.type, written.type, at))
            else:
                taken.add(wanted.name)
                names.append(wanted.name)
                readers.append(self.build(written.type, wanted.type, at))
        made = {}
        for each in reader.fields:
            if each.name in taken:
                continue
            at = f"{path}.{each.name}" if path else each.name
            if each.default is MISSING:
                raise Unresolvable(
                    f"the reader's field {each.name} of record {reader.name} has no default, and the writer's schema "
                    "lacks the field",
                    at,
                )
            made[each.name] = self._default(each, reader, at)
        record.fill(names, readers, made)

    def _default(self, field: Field, record: Type, path: str) -> Callable[[], Any]:
        encoded = encoded_default(field, record, self._budget)
        root = self.build(field.type, field.type, path)
        return lambda: codec.Decoder(root).decode(encoded)  # (a new list or dict for each record)


def _refuse(begun: codec.Reader, reason: str) -> None:
    """Finish a reader whose types do not match: the reader refuses every value."""
    refusing = codec.RefusingReader(reason)
    if isinstance(begun, codec.RecordReader):
        begun.fill([None], [refusing], {})
    elif isinstance(begun, codec.ArrayReader):
        begun.item = refusing
    elif isinstance(begun, codec.MapReader):
        begun.value = refusing
    elif isinstance(begun, codec.UnionReader):
        begun.fill([])


def _logical(base: codec.Reader, writer: Type, reader: Type, path: str) -> codec.Reader:
    """The reader's logical type determines how a value is converted. Decimals must have the same scale."""
    if not _is_converted(reader):
        return base
    if reader.logical == writer.logical == "decimal" and reader.scale != writer.scale:
        raise Unresolvable(f"the writer's decimal has scale {writer.scale}, the reader's has {reader.scale}", path)
    return codec.LogicalReader(base, _conversion(reader)[1])


def matched_fields(writer: Type, reader: Type) -> list[Field | None]:
    """For each field of the writer's record, the reader's field that gets the values; None if the reader has no such
    field. Fields are found by name or by alias."""
    written_names = {each.name for each in writer.fields}
    by_name = {each.name: each for each in reader.fields}
    for each in reader.fields:
        if each.name not in written_names:
            for alias in each.aliases:
                by_name.setdefault(alias, each)
    taken: set[str] = set()
    matched: list[Field | None] = []
    for written in writer.fields:
        wanted = by_name.get(written.name)
        if wanted is not None and wanted.name in taken:
            wanted = None
        if wanted is not None:
            taken.add(wanted.name)
        matched.append(wanted)
    return matched


def is_called(writer: Type, reader: Type) -> bool:
    """Whether a named type of the reader means the writer's type: the same unqualified name, or an alias."""
    if not writer.is_named:
        return True
    simple = writer.name.rpartition(".")[2]
    return (
        reader.name.rpartition(".")[2] == simple
        or writer.name in reader.aliases
        or simple in [each.rpartition(".")[2] for each in reader.aliases]
    )


def check_names(writer: Type, reader: Type, path: str) -> None:
    """Raise Unresolvable unless the reader's named type and the writer's named type match."""
    if not is_called(writer, reader):
        raise Unresolvable(
            f"the writer's {writer.label} and the reader's {reader.label} have different names; give "
            f"{reader.name} the alias {writer.name}",
            path,
        )
