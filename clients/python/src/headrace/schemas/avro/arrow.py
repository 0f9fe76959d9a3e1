"""Avro values to Arrow arrays and back: programs for the compiled codec (``_arrow``).

ArrowDecoder turns a binary array, with values of one or more writers' schemas, into an array of the reader's type.
ArrowEncoder turns an array into a binary array. A value that cannot be decoded or encoded becomes null, and has a
reason; all other values are kept.

``arrow_types.py`` has the table of types. Source: the Avro specification 1.12, "Schema Resolution".
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace_core.records.arrow_layouts import plain_array, plain_type

from ._arrow import Decoding, Encoding, Fault, Kind, Memory, Op, schema_ids
from .arrow_maps import doubled_keys, has_maps
from .arrow_reasons import Words, joined
from .arrow_types import (
    Layout,
    NoArrowTypeError,
    decimal_bounds,
    flat_type,
    integer_flag,
    is_binary,
    is_text,
    offset_bytes,
    range_words,
    ratio,
    readable_range,
    scale,
)
from .compile import Unresolvable, check_names, encoded_default, encoded_json, is_called, matched_fields
from .schema import MISSING, Type

#: Maximum number of columns of one schema, columns within records and unions included.
COLUMNS_MAX: Final = 20_000
#: Maximum number of nodes in the decoding programs of all writers' schemas; beyond this number the decoder drops its
#: programs.
NODES_MAX: Final = 1_000_000
#: Maximum bytes of memory for the columns of one batch.
BATCH_BYTES_MAX: Final = 4 << 30

_DAY_MS = 86_400_000
#: The digits of Arrow's largest decimal.
_DIGITS_MAX: Final = 76


__all__ = ["ArrowDecoder", "ArrowEncoder", "BatchTooLargeError", "Converted", "Layout", "NoArrowTypeError"]


class BatchTooLargeError(ValueError):
    """The values of one batch need more memory, or have more bytes in one column, than Arrow's types or the codec
    allow."""


class Converted(NamedTuple):
    """``reasons`` maps each row that could not be decoded or encoded to the reason."""

    values: pa.Array
    reasons: dict[int, str]


@dataclass(slots=True)
class _Column:
    """A column of the reader's schema. ``branches``: for a union, the position of each branch's column."""

    index: int
    type: pa.DataType
    nullable: bool
    kind: int
    children: list[_Column] = field(default_factory=list)
    branches: dict[Type, int] = field(default_factory=dict)


# --- decoding ---------------------------------------------------------------------------------------------------------


class ArrowDecoder:
    """Decodes values to arrays of ``type``, which is the reader's schema as an Arrow type.

    Thread-safe: one thread at a time holds ``lock``, because the codec releases the GIL while it uses the columns.
    Raises NoArrowTypeError.
    """

    def __init__(self, reader: Type, *, layout: Layout = Layout.ARROW) -> None:
        self._reader, self._layout = reader, layout
        self.lock = threading.RLock()
        self._start()
        self.type: pa.DataType = self._root.type

    def _start(self) -> None:
        self._program = Decoding()
        self._columns = 0
        self._words = Words()
        self._root = self._column(self._reader, nullable=True, path="", within=())
        self._writers: dict[int, int] = {}
        self._unframed: tuple[Type, int] | None = None

    # Columns.

    def _column(self, kind: Type, *, nullable: bool, path: str, within: tuple[Type, ...]) -> _Column:
        """Add the columns of a type. ``within``: the records that contain the type."""
        self._columns += 1
        if self._columns > COLUMNS_MAX:
            raise NoArrowTypeError(f"the schema needs more than {COLUMNS_MAX:,} columns", path)
        if kind.kind == "union":
            return self._union_column(kind, nullable=nullable, path=path, within=within)
        if kind.kind == "record":
            if kind in within:
                raise NoArrowTypeError(f"{kind.label} contains itself, and Arrow has no recursive types", path)
            children = [
                self._column(each.type, nullable=False, path=joined(path, each.name), within=(*within, kind))
                for each in kind.fields
            ]
            made = pa.struct(
                [
                    pa.field(each.name, child.type, child.nullable)
                    for each, child in zip(kind.fields, children, strict=True)
                ]
            )
            return self._added(made, Kind.STRUCT, nullable, children=children)
        if kind.kind == "array":
            item = self._column(_item(kind), nullable=False, path=f"{path}[]", within=within)
            return self._added(
                pa.list_(pa.field("element", item.type, item.nullable)), Kind.LIST, nullable, children=[item]
            )
        if kind.kind == "map":
            key = self._added(pa.string(), Kind.TEXT, False)
            value = self._column(_item(kind), nullable=False, path=f"{path}[]", within=within)
            named = [pa.field("key", pa.string(), False), pa.field("value", value.type, value.nullable)]
            entries = self._added(pa.struct(named), Kind.STRUCT, False, children=[key, value])
            return self._added(pa.map_(*named), Kind.LIST, nullable, children=[entries])
        flat = flat_type(kind, self._layout, path)
        if kind.kind == "null":
            return self._added(flat, Kind.NOTHING, True)
        if kind.kind == "boolean":
            return self._added(flat, Kind.BITS, nullable)
        if pa.types.is_string(flat) or pa.types.is_binary(flat):
            return self._added(flat, Kind.TEXT, nullable)
        return self._added(flat, Kind.FLAT, nullable, width=flat.bit_width // 8)

    def _union_column(self, kind: Type, *, nullable: bool, path: str, within: tuple[Type, ...]) -> _Column:
        values = [each for each in kind.branches if each.kind != "null"]
        nullable = nullable or len(values) < len(kind.branches)
        if not values:
            return self._added(pa.null(), Kind.NOTHING, True)
        if len(values) == 1:
            return self._column(values[0], nullable=nullable, path=path, within=within)
        if self._layout is Layout.SPARK:
            children = [
                self._column(each, nullable=True, path=joined(path, f"member{at}"), within=within)
                for at, each in enumerate(values)
            ]
            made = pa.struct([pa.field(f"member{at}", each.type, True) for at, each in enumerate(children)])
            column = self._added(made, Kind.STRUCT, nullable, children=children)
        else:
            values = list(kind.branches)
            if len(values) > 127:
                raise NoArrowTypeError(f"the union has {len(values)} branches; an Arrow union has at most 127", path)
            children = [self._column(each, nullable=True, path=path, within=within) for each in values]
            fields = [pa.field(each.branch, child.type, True) for each, child in zip(values, children, strict=True)]
            column = self._added(pa.dense_union(fields), Kind.DENSE, False, children=children)
        column.branches = {each: at for at, each in enumerate(values)}
        return column

    def _added(
        self, made: pa.DataType, kind: int, nullable: bool, *, width: int = 0, children: Sequence[_Column] = ()
    ) -> _Column:
        index = self._program.column(kind, nullable, width, [each.index for each in children])
        return _Column(index, made, nullable, kind, list(children))

    # Writers.

    def add_writer(self, schema_id: int, writer: Type) -> None:
        """Add a writer's schema, so that values with this schema id can be decoded. Raises Unresolvable if the reader's
        schema cannot read values of the writer's schema."""
        with self.lock:
            self._writers[schema_id] = self._compiled(writer)

    def missing(self, values: pa.Array) -> list[int]:
        """The schema ids in the framed ``values`` for which ``add_writer`` has not been called yet."""
        capsule, wide = _exported(values)
        with self.lock:
            if self._program.size > NODES_MAX:
                self._start()
            return sorted(schema_ids(capsule, wide) - self._writers.keys())

    def _compiled(self, writer: Type) -> int:
        return _Resolution(self._program, self._words, self._layout).node(writer, self._reader, self._root, "")

    def decode(self, values: pa.Array, unusable: Mapping[int, str] | None = None) -> Converted:
        """Decode framed values: a magic byte, a schema id, a value. ``unusable`` maps each schema id without a writer
        to the reason. Null stays null. Raises BatchTooLargeError."""
        with self.lock:
            return self._decoded(values, True, self._writers, unusable or {})

    def decode_bare(self, values: pa.Array, writer: Type) -> Converted:
        """Decode values that have no frame. Raises BatchTooLargeError, Unresolvable."""
        with self.lock:
            if self._unframed is None or self._unframed[0] is not writer:
                self._unframed = (writer, self._compiled(writer))
            return self._decoded(values, False, {0: self._unframed[1]}, {})

    def _decoded(
        self, values: pa.Array, framed: bool, writers: dict[int, int], unusable: Mapping[int, str]
    ) -> Converted:
        capsule, wide = _exported(values)
        try:
            bad, fault, row = self._program.decode(capsule, wide, framed, writers, self._root.index, BATCH_BYTES_MAX)
            if fault:
                _raise_batch(fault, row, len(values))
            found = self._array(self._root)
        except BaseException:
            self._program.reset()
            raise
        reasons = {}
        for at, kind, node, detail, frames in bad:
            if kind == Fault.WRITER:
                reasons[at] = unusable.get(detail, f"the schema with id {detail} is not known here")
            else:
                reasons[at] = self._words.said(kind, node, detail, frames)
        return Converted(found, reasons)

    def _array(self, column: _Column) -> pa.Array:
        length, nulls, validity, values, data = self._program.take(column.index)
        below = [self._array(each) for each in column.children]
        if column.kind == Kind.NOTHING:
            return pa.nulls(length)
        if column.kind == Kind.DENSE:
            return pa.UnionArray.from_dense(
                pa.Array.from_buffers(pa.int8(), length, [None, _buffer(data)]),
                pa.Array.from_buffers(pa.int32(), length, [None, _buffer(values)]),
                below,
                [each.name for each in column.type],
            )
        buffers = [None if validity is None else _buffer(validity)]
        if column.kind != Kind.STRUCT:
            buffers.append(_buffer(values))
        if column.kind == Kind.TEXT:
            buffers.append(_buffer(data))
        return pa.Array.from_buffers(column.type, length, buffers, nulls, children=below)


class _Resolution:
    """Builds the nodes that read one writer's schema into the reader's columns. A mismatch between two schemas raises
    an error while the nodes are built. A branch of a writer's union that does not match gets a node REFUSE, because the
    mismatch matters only to values of that branch."""

    def __init__(self, program: Decoding, words: Words, layout: Layout) -> None:
        self._program, self._words, self._layout = program, words, layout
        self._made: dict[tuple[Type, Type | None, int], int] = {}

    def node(self, writer: Type, reader: Type, column: _Column, path: str) -> int:
        key = (writer, reader, column.index)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._new(writer, reader, column, path)
        return found

    def _new(self, writer: Type, reader: Type, column: _Column, path: str) -> int:
        if self._program.size > 2 * NODES_MAX:
            raise Unresolvable(f"the schemas need more than {NODES_MAX:,} nodes", path)
        if writer.kind == "union":
            refusals: list[Unresolvable] = []
            branches = [self._branch(each, reader, column, path, refusals) for each in writer.branches]
            if len(refusals) == len(writer.branches):
                raise Unresolvable(f"no branch of the writer's union can be read as {reader.label}", path)
            return self._linked(Op.READ_UNION, -1, branches)
        if reader.kind == "union":
            return self._of_union(writer, reader, column, path)
        if writer.kind == reader.kind == "record":
            check_names(writer, reader, path)
            return self._record(writer, reader, column, path)
        if writer.kind == reader.kind and writer.kind in ("array", "map"):
            inside = column.children[0] if writer.kind == "array" else column.children[0].children[1]
            item = self.node(_item(writer), _item(reader), inside, f"{path}[]")
            return self._linked(Op.READ_LIST if writer.kind == "array" else Op.READ_MAP, column.index, [item])
        if writer.kind == reader.kind == "enum":
            check_names(writer, reader, path)
            known = set(reader.symbols)
            symbols = [each if each in known else reader.default for each in writer.symbols]
            node = self._program.node(
                Op.READ_ENUM, column.index, constants=[None if each is None else each.encode() for each in symbols]
            )
            self._words.labels[node] = (reader.name, writer.symbols)
            return node
        if writer.kind == reader.kind == "fixed":
            check_names(writer, reader, path)
            if writer.size != reader.size:
                raise Unresolvable(f"fixed {reader.name} has {reader.size} bytes, the writer's {writer.size}", path)
        return self._flat(writer, reader, column, path)

    def _branch(self, writer: Type, reader: Type, column: _Column, path: str, refusals: list[Unresolvable]) -> int:
        try:
            return self.node(writer, reader, column, path)
        except Unresolvable as error:
            refusals.append(error)
            node = self._program.node(Op.REFUSE)
            self._words.labels[node] = (f"the value is a {writer.label}: {error.reason}", ())
            return node

    def _of_union(self, writer: Type, reader: Type, column: _Column, path: str) -> int:
        """Read into the first branch of the same type and name, otherwise the first branch that fits."""
        same = [each for each in reader.branches if each.kind == writer.kind and is_called(writer, each)]
        reasons = []
        for each in (*same, *(each for each in reader.branches if each not in same)):
            try:
                return self._into_branch(writer, each, column, path)
            except Unresolvable as error:
                reasons.append(error.reason)
        labels = ", ".join(each.label for each in reader.branches)
        raise Unresolvable(
            f"{writer.label} fits no branch of the reader's union ({labels}): {'; '.join(reasons)}", path
        )

    def _into_branch(self, writer: Type, branch: Type, column: _Column, path: str) -> int:
        at = column.branches.get(branch)
        if at is None:
            return self.node(writer, branch, column, path)  # (null, or the only other branch)
        value = self.node(writer, branch, column.children[at], path)
        op = Op.READ_DENSE if column.kind == Kind.DENSE else Op.READ_MEMBER
        return self._linked(op, column.index, [value], size=at)

    def _record(self, writer: Type, reader: Type, column: _Column, path: str) -> int:
        columns = dict(zip([each.name for each in reader.fields], column.children, strict=True))
        children = []
        names = []
        for written, wanted in zip(writer.fields, matched_fields(writer, reader), strict=True):
            at = joined(path, written.name)
            names.append(written.name if wanted is None else wanted.name)
            if wanted is None:
                children.append(self._skipped(written.type))
            else:
                children.append(self.node(written.type, wanted.type, columns.pop(wanted.name), at))
        for each in reader.fields:
            if each.name not in columns:
                continue
            at = joined(path, each.name)
            if each.default is MISSING:
                raise Unresolvable(
                    f"the reader's field {each.name} of record {reader.name} has no default, and the writer's schema "
                    "lacks the field",
                    at,
                )
            value = self.node(each.type, each.type, columns[each.name], at)
            default = encoded_default(each, reader)
            children.append(self._linked(Op.READ_DEFAULT, -1, [value], constants=[default]))
            names.append(each.name)
        node = self._linked(Op.READ_RECORD, column.index, children)
        self._words.names[node] = names
        return node

    def _flat(self, writer: Type, reader: Type, column: _Column, path: str) -> int:
        """Add the node of a type that contains no other types."""
        at = column.index
        pair = (writer.kind, reader.kind)
        if reader.logical == writer.logical == "decimal" and reader.scale != writer.scale:
            raise Unresolvable(f"the writer's decimal has scale {writer.scale}, the reader's has {reader.scale}", path)
        if reader.logical == "decimal" and pair in _TEXTS | {("fixed", "fixed")}:
            fixed = writer.kind == "fixed"
            return self._program.node(
                Op.READ_FIXED_DECIMAL if fixed else Op.READ_DECIMAL,
                at,
                size=writer.size,
                constants=decimal_bounds(reader.precision, column.type.bit_width // 8),
            )
        if pair == ("fixed", "fixed"):
            fixed_op = Op.READ_FIXED_BYTES if column.kind == Kind.TEXT else Op.READ_FIXED
            return self._program.node(fixed_op, at, size=writer.size)
        if pair in _TEXTS:
            return self._program.node(Op.READ_TEXT if reader.kind == "string" else Op.READ_BYTES, at)
        if reader.logical and reader.kind in ("int", "long") and pair in _INTEGERS:
            factor = scale(column.type, reader.logical)
            if reader.logical.startswith("time-"):
                limit = _DAY_MS * (1 if reader.logical == "time-millis" else 1000)
                return self._program.node(Op.READ_TIME, at, size=limit, factor=factor)
            if factor > 1:
                return self._program.node(Op.READ_SCALED, at, factor=factor)
        op = _FLAT.get(pair)
        if op is None:
            raise Unresolvable(f"the writer's {writer.label} cannot be read as {reader.label}", path)
        return self._program.node(op, at)

    def _skipped(self, writer: Type) -> int:
        """Add nodes that skip a field of the writer's schema that is not in the reader's schema. The writer's type may
        contain itself."""
        key = (writer, None, -1)
        if key in self._made:
            return self._made[key]
        if writer.kind not in _SKIPS_BELOW:
            size = _SIZES.get(writer.kind, writer.size)
            node = self._program.node(_SKIPS[writer.kind], size=size, constants=[None] * len(writer.symbols))
            self._words.labels[node] = (writer.name, writer.symbols)
            self._made[key] = node
            return node
        node = self._made[key] = self._program.node(_SKIPS_BELOW[writer.kind])
        if writer.kind == "record":
            below = [each.type for each in writer.fields]
            self._words.names[node] = [each.name for each in writer.fields]
        elif writer.kind == "union":
            below = list(writer.branches)
        else:
            below = [_item(writer)]
        self._program.link(node, [self._skipped(each) for each in below])
        return node

    def _linked(self, op: int, column: int, children: list[int], **more: Any) -> int:
        node = self._program.node(op, column, **more)
        self._program.link(node, children)
        return node


_FLAT: Final = {
    ("null", "null"): Op.READ_NULL,
    ("boolean", "boolean"): Op.READ_BOOLEAN,
    ("int", "int"): Op.READ_INT,
    ("int", "long"): Op.READ_LONG,
    ("long", "long"): Op.READ_LONG,
    ("int", "float"): Op.LONG_TO_FLOAT,
    ("long", "float"): Op.LONG_TO_FLOAT,
    ("int", "double"): Op.LONG_TO_DOUBLE,
    ("long", "double"): Op.LONG_TO_DOUBLE,
    ("float", "float"): Op.READ_FLOAT,
    ("float", "double"): Op.FLOAT_TO_DOUBLE,
    ("double", "double"): Op.READ_DOUBLE,
}
_INTEGERS: Final = {("int", "int"), ("int", "long"), ("long", "long")}
_TEXTS: Final = {(writer, reader) for writer in ("bytes", "string") for reader in ("bytes", "string")}
_SKIPS: Final = {
    "null": Op.SKIP_NULL,
    "boolean": Op.SKIP_BOOLEAN,
    "int": Op.SKIP_INT,
    "long": Op.SKIP_LONG,
    "enum": Op.SKIP_ENUM,
    "bytes": Op.SKIP_BYTES,
    "string": Op.SKIP_BYTES,
    "fixed": Op.SKIP_FIXED,
    "float": Op.SKIP_FIXED,
    "double": Op.SKIP_FIXED,
}
_SIZES: Final = {"float": 4, "double": 8}
_SKIPS_BELOW: Final = {
    "record": Op.READ_RECORD,
    "union": Op.READ_UNION,
    "array": Op.READ_LIST,
    "map": Op.READ_MAP,
}


# --- encoding ---------------------------------------------------------------------------------------------------------


class ArrowEncoder:
    """Encodes arrays of one Arrow type as values of a schema. Thread-safe: one thread at a time encodes.

    A struct's fields are found by name. A field that the array does not have gets its default, and fields that the
    schema does not have are ignored. Raises NoArrowTypeError.
    """

    def __init__(self, schema: Type, array_type: pa.DataType) -> None:
        self.type = array_type
        self._lock = threading.Lock()
        self._plain = plain_type(array_type)
        self._has_maps = has_maps(self._plain)
        self._program = Encoding()
        self._words = Words()
        self._root = self._node(schema, self._plain, 0, "")

    def encode(self, values: pa.Array, prefix: bytes = b"") -> Converted:
        """Encode each value after ``prefix``; a null stays null. Raises BatchTooLargeError."""
        values = plain_array(values)
        if pa.types.is_null(values.type):
            return Converted(pa.nulls(len(values), pa.binary()), {})
        _, capsule = values.__arrow_c_array__()
        has_validity = not pa.types.is_union(values.type)
        with self._lock:
            validity, offsets, data, nulls, bad, fault, row = self._program.encode(
                capsule, prefix, self._root, has_validity, BATCH_BYTES_MAX
            )
        if fault:
            _raise_batch(fault, row, len(values))
        buffers = [None if validity is None else _buffer(validity), _buffer(offsets), _buffer(data)]
        made = pa.Array.from_buffers(pa.binary(), len(values), buffers, nulls)
        reasons = {at: self._words.said(kind, node, detail, frames) for at, kind, node, detail, frames in bad}
        doubled = doubled_keys(values) if self._has_maps else {}
        if doubled:
            rows = pa.array([row in doubled for row in range(len(values))])
            made = pc.if_else(rows, pa.scalar(None, pa.binary()), made)
        return Converted(made, doubled | reasons)

    def _node(self, kind: Type, array: pa.DataType, slot: int, path: str) -> int:
        if kind.kind == "union":
            return self._union(kind, array, slot, path)
        if kind.kind == "null":
            if not pa.types.is_null(array):
                raise self._unfit(kind, array, path)
            return self._program.node(Op.WRITE_NOTHING)
        if pa.types.is_null(array):
            raise NoArrowTypeError(
                f"the array has only nulls (type null), and the schema's {kind.label} does not allow null", path
            )
        if kind.kind == "record":
            return self._record(kind, array, slot, path)
        if kind.kind == "array":
            if not (pa.types.is_list(array) or pa.types.is_large_list(array)):
                raise self._unfit(kind, array, path)
            item = self._node(_item(kind), array.value_type, self._program.slot(slot, 0), f"{path}[]")
            return self._linked(Op.WRITE_LIST, slot, [item], flag=8 if pa.types.is_large_list(array) else 4)
        if kind.kind == "map":
            if not pa.types.is_map(array):
                raise self._unfit(kind, array, path)
            entries = self._program.slot(slot, 0)
            key = self._node(Type("string"), array.key_type, self._program.slot(entries, 0), f"{path}[]")
            value = self._node(_item(kind), array.item_type, self._program.slot(entries, 1), f"{path}[]")
            return self._linked(Op.WRITE_MAP, slot, [key, value], flag=4)
        return self._flat(kind, array, slot, path)

    def _flat(self, kind: Type, array: pa.DataType, slot: int, path: str) -> int:
        made = self._decimal(kind, array, slot, path) if pa.types.is_decimal(array) else None
        if kind.kind == "boolean" and pa.types.is_boolean(array):
            made = self._program.node(Op.WRITE_BOOLEAN, slot)
        elif kind.kind in ("int", "long"):
            made = self._integer(kind, array, slot, path)
        elif kind.kind in ("float", "double"):
            size = 4 if kind.kind == "float" else 8
            if pa.types.is_float32(array) or pa.types.is_float64(array):
                made = self._program.node(Op.WRITE_REAL, slot, size=size, flag=array.bit_width)
            elif pa.types.is_integer(array):
                made = self._program.node(Op.WRITE_INTEGER_AS_REAL, slot, size=size, flag=integer_flag(array))
        elif kind.kind == "string" and is_text(array):
            op = Op.WRITE_UUID if kind.logical == "uuid" else Op.WRITE_TEXT
            made = self._program.node(op, slot, flag=offset_bytes(array))
        elif kind.kind == "enum" and is_text(array):
            symbols = [each.encode() for each in kind.symbols]
            made = self._program.node(Op.WRITE_ENUM, slot, flag=offset_bytes(array), constants=symbols)
            self._words.labels[made] = (kind.name, kind.symbols)
        elif kind.kind in ("bytes", "fixed") and made is None:
            fixed = kind.kind == "fixed"
            if kind.logical == "decimal" and kind.precision <= _DIGITS_MAX:
                made = self._raw_decimal(kind, array, slot)
            elif is_binary(array):
                op = Op.WRITE_FIXED if fixed else Op.WRITE_BYTES
                made = self._program.node(op, slot, size=kind.size, flag=offset_bytes(array))
                self._words.labels[made] = (f"{kind.name} of {kind.size} bytes", ())
            elif pa.types.is_fixed_size_binary(array) and (not fixed or array.byte_width == kind.size):
                made = self._program.node(Op.WRITE_FLAT, slot, size=array.byte_width, flag=0 if fixed else 1)
        if made is None:
            raise self._unfit(kind, array, path)
        return made

    def _integer(self, kind: Type, array: pa.DataType, slot: int, path: str) -> int | None:
        factor, flag = 1, 0
        if pa.types.is_integer(array):
            flag = integer_flag(array)
        elif kind.logical == "date" and pa.types.is_date32(array):
            flag = 32
        elif kind.logical == "date" and pa.types.is_date64(array):
            flag, factor = 64, -_DAY_MS
        elif kind.logical.startswith("time-") and pa.types.is_time(array):
            flag, factor = array.bit_width, ratio(array.unit, kind.logical)
        elif "timestamp-" in kind.logical and pa.types.is_timestamp(array):
            is_local = kind.logical.startswith("local-")
            if is_local is not (array.tz is None):
                cure = "a timestamp without a time zone" if is_local else "a timestamp with a time zone"
                raise NoArrowTypeError(f"{kind.logical} needs {cure}, not {array}", path)
            flag, factor = 64, ratio(array.unit, kind.logical)
        else:
            return None
        range_of = readable_range(kind.logical)
        made = self._program.node(
            Op.WRITE_INTEGER,
            slot,
            size=4 if kind.kind == "int" else 8,
            factor=factor,
            flag=flag,
            constants=[each.to_bytes(8, sys.byteorder, signed=True) for each in range_of],
        )
        if range_of:
            self._words.labels[made] = (range_words(kind.logical), ())
        return made

    def _decimal(self, kind: Type, array: pa.DataType, slot: int, path: str) -> int | None:
        if kind.logical != "decimal":
            return None
        if array.scale != kind.scale:
            raise NoArrowTypeError(f"the array's decimals have scale {array.scale}, the schema's {kind.scale}", path)
        width = array.bit_width // 8
        bounds = decimal_bounds(min(kind.precision, array.precision), width)
        made = self._program.node(Op.WRITE_DECIMAL, slot, size=kind.size, flag=width, constants=bounds)
        self._words.labels[made] = (f"decimal({kind.precision}, {kind.scale})", ())
        return made

    def _raw_decimal(self, kind: Type, array: pa.DataType, slot: int) -> int | None:
        """Bytes that are the unscaled number already; None for other arrays."""
        fixed_width = pa.types.is_fixed_size_binary(array)
        if not fixed_width and not is_binary(array):
            return None
        made = self._program.node(
            Op.WRITE_RAW_DECIMAL,
            slot,
            size=kind.size,
            factor=array.byte_width if fixed_width else 0,
            flag=0 if fixed_width else offset_bytes(array),
            constants=decimal_bounds(kind.precision, 32),
        )
        self._words.labels[made] = (f"decimal({kind.precision}, {kind.scale})", ())
        return made

    def _record(self, kind: Type, array: pa.DataType, slot: int, path: str) -> int:
        if not pa.types.is_struct(array):
            raise self._unfit(kind, array, path)
        children = []
        for each in kind.fields:
            at = array.get_field_index(each.name)
            below = joined(path, each.name)
            if at >= 0:
                child = self._program.slot(slot, at)
                children.append(self._node(each.type, array.field(at).type, child, below))
            elif len(array.get_all_field_indices(each.name)) > 1:
                raise NoArrowTypeError(f"the array has several fields with the name {each.name!r}", below)
            else:
                children.append(self._program.node(Op.WRITE_CONSTANT, constants=[_absent(each, kind, below)]))
        node = self._linked(Op.WRITE_RECORD, slot, children)
        self._words.names[node] = [each.name for each in kind.fields]
        return node

    def _union(self, kind: Type, array: pa.DataType, slot: int, path: str) -> int:
        null = next((at for at, each in enumerate(kind.branches) if each.kind == "null"), -1)
        values = [(at, each) for at, each in enumerate(kind.branches) if at != null]
        if pa.types.is_null(array):
            if null < 0:
                raise self._unfit(kind, array, path)
            return self._program.node(Op.WRITE_CONSTANT, constants=[_long(null)])
        if pa.types.is_union(array):
            return self._dense(kind, array, slot, path)
        members = [f"member{at}" for at in range(len(values))]
        if len(values) > 1 and pa.types.is_struct(array) and [each.name for each in array] == members:
            children = [
                self._chosen(
                    at, each, array.field(place).type, self._program.slot(slot, place), f"{path}.{members[place]}"
                )
                for place, (at, each) in enumerate(values)
            ]
            node = self._linked(Op.WRITE_MEMBERS, slot, children, factor=null)
            self._words.labels[node] = (", ".join(members), ())
            return node
        refusals = []
        for at, each in values:
            try:
                value = self._node(each, array, slot, path)
            except NoArrowTypeError as error:
                refusals.append(error)
                continue
            if null >= 0:
                return self._linked(Op.WRITE_OPTIONAL, slot, [value], size=null, factor=at)
            return self._linked(Op.WRITE_BRANCH, slot, [value], constants=[_long(at)])
        if len(refusals) == 1:
            raise refusals[0]
        raise self._unfit(kind, array, path)

    def _dense(self, kind: Type, array: pa.DataType, slot: int, path: str) -> int:
        if array.mode != "dense" or array.type_codes != list(range(array.num_fields)):
            raise NoArrowTypeError(f"only a dense union with the codes 0, 1, ... can be written, not {array}", path)
        children = []
        for place in range(array.num_fields):
            given = array.field(place)
            named = [at for at, each in enumerate(kind.branches) if each.branch == given.name]
            if not named:
                raise NoArrowTypeError(f"the schema's union has no branch {given.name}", path)
            slot_of = self._program.slot(slot, place)
            children.append(self._chosen(named[0], kind.branches[named[0]], given.type, slot_of, path))
        node = self._linked(Op.WRITE_DENSE, slot, children)
        self._words.labels[node] = ("the union", ())
        return node

    def _chosen(self, at: int, branch: Type, array: pa.DataType, slot: int, path: str) -> int:
        value = self._node(branch, array, slot, path)
        return self._linked(Op.WRITE_BRANCH, slot, [value], constants=[_long(at)])

    def _linked(self, op: int, slot: int, children: list[int], **more: Any) -> int:
        node = self._program.node(op, slot, **more)
        self._program.link(node, children)
        return node

    def _unfit(self, kind: Type, array: pa.DataType, path: str) -> NoArrowTypeError:
        logical = f" ({kind.logical})" if kind.logical else ""
        return NoArrowTypeError(
            f"an array of type {array} cannot be written as {kind.label}{logical}; cast it, or change the schema", path
        )


def _absent(each: Any, record: Type, path: str) -> bytes:
    """The encoded value of a field that the array does not have."""
    if each.default is not MISSING:
        return encoded_default(each, record)
    null = next((at for at, branch in enumerate(each.type.branches) if branch.kind == "null"), -1)
    if null < 0:
        raise NoArrowTypeError(f"the array lacks the field, and {record.label} has no default for the field", path)
    return _long(null)


def _long(value: int) -> bytes:
    return encoded_json(Type("long"), value)


def _item(kind: Type) -> Type:
    assert kind.item is not None
    return kind.item


def _exported(values: pa.Array) -> tuple[Any, bool]:
    """The array as a PyCapsule, and whether its offsets have 64 bits."""
    if not is_binary(values.type):
        raise TypeError(f"must be an array of type binary, not {values.type}")
    _, capsule = values.__arrow_c_array__()
    return capsule, pa.types.is_large_binary(values.type)


def _buffer(memory: Memory | None) -> pa.Buffer:
    if memory is None or not memory.size:
        return pa.py_buffer(b"")
    return pa.foreign_buffer(memory.address, memory.size, base=memory)


def _raise_batch(fault: int, row: int, rows: int) -> None:
    if fault == Fault.NO_MEMORY:
        raise MemoryError(f"no memory for row {row} of {rows} rows")
    raise BatchTooLargeError(
        f"a batch of {rows} rows is too large at row {row}: a column of a batch holds at most 2 GiB, and all columns "
        f"{BATCH_BYTES_MAX >> 30} GiB; use batches with fewer rows (in Spark: "
        "spark.sql.execution.arrow.maxRecordsPerBatch)"
    )
