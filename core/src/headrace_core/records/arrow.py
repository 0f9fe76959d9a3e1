"""Convert Arrow tables to record batches and back; the compiled codec creates no Python object per record.

Decoded tables have the schema of Spark's Kafka source (``arrow_schema``). Tables to encode have the columns of Spark's
Kafka sink: ``value``, and optionally ``key``, ``headers`` and ``timestamp``. This module needs pyarrow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, MissingDependencyError
from ..types import TimestampType
from . import BACKEND, DEFAULT_LIMITS, HEADER_BYTES, Buffer, Compression, DecodeLimits
from .compression import check_level, require

try:
    import pyarrow as pa
    import pyarrow.compute as pc

    from .arrow_layouts import plain_column, plain_type
except ImportError as error:
    raise MissingDependencyError(
        "Arrow needs the package pyarrow, which is not installed: pip install 'headrace[arrow]'"
    ) from error

if TYPE_CHECKING or BACKEND == "pure":
    from ._arrow_pure import Decoder, Encoder
else:
    from ._arrow_decode import Decoder
    from ._arrow_encode import Encoder

#: The columns of Spark's Kafka source, in Spark's order; the column ``headers`` is optional.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(_HEADER),
}
#: The usual types of keys and values.
_PLAIN = frozenset((pa.binary(), pa.string(), pa.large_binary(), pa.large_string()))
#: Limit of the bytes of values in one RecordBatch, because Arrow's binary columns have 32-bit offsets.
BYTES_MAX = 2**31 - 1
_OFFSET_MAX = 2**63 - 1
_UNITS_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}

_ALL_NULL, _OFFSETS_32, _OFFSETS_64, _FIXED_WIDTH = range(4)


def encode_arrow(
    table: pa.Table | pa.RecordBatch,
    *,
    max_batch_bytes: int,
    max_row_bytes: int = 0,
    now_ms: int,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    rows: Any = None,
    leader_epoch: int = -1,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> list[tuple[bytes, int]]:
    """Encode the rows of ``table`` as batches for one partition: a list of (batch, record count). Each batch has base
    offset 0.

    Columns: ``value`` (required) and ``key``, binary or string of any width; ``headers``, a list of structs of key and
    value, or a map; ``timestamp``, a timestamp or int64 milliseconds. Each may be dictionary-encoded, run-end encoded,
    a view or an extension type (``arrow_layouts``). Others are ignored. A missing column or a null means a record
    without key or headers, or with the time ``now_ms``. ``rows`` (row numbers) selects and orders the rows to encode. A
    batch has at most ``max_batch_bytes`` before compression. A row that does not fit into ``max_batch_bytes`` gets a
    separate batch of at most ``max_row_bytes`` before compression.

    Raises RecordTooLargeError and InvalidTimestampError, which name the row (its index in ``rows``, where given), and
    InvalidArgumentError for columns of other types.
    """
    if not HEADER_BYTES < max_batch_bytes <= BYTES_MAX:
        raise InvalidArgumentError(f"max_batch_bytes={max_batch_bytes}: must be {HEADER_BYTES + 1} to {BYTES_MAX}")
    if max_row_bytes > BYTES_MAX:
        raise InvalidArgumentError(f"max_row_bytes={max_row_bytes}: must be at most {BYTES_MAX}")
    check_level(compression, level)
    require(compression)
    columns = _canonical(table)
    encoder: Any = Encoder(
        max_batch_bytes,
        max(max_row_bytes, max_batch_bytes),
        {
            "compression": compression,
            "level": level,
            "leader_epoch": leader_epoch,
            "timestamp_type": timestamp_type,
            "producer_id": producer_id,
            "producer_epoch": producer_epoch,
            "base_sequence": base_sequence,
            "transactional": transactional,
            "control": control,
        },
    )
    if rows is None:
        for chunk in columns.to_batches():
            _add(encoder, chunk, now_ms, None)
    else:
        chosen = _row_numbers(rows, columns.num_rows)
        if len(chosen):
            _add(encoder, _one_chunk(columns), now_ms, chosen)
    batches: list[tuple[bytes, int]] = encoder.finish()
    return batches


def _canonical(table: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return the columns to encode, in types that the encoder reads; only columns of other types are cast (copied)."""
    found = {}
    converters = {"value": binary_column, "key": binary_column, "headers": _headers, "timestamp": _timestamps}
    for name, convert in converters.items():
        count = table.schema.names.count(name)
        if count > 1:
            raise InvalidArgumentError(f"the table has {count} columns named {name!r}")
        if count:
            column = table.column(name)
            found[name] = convert(name, column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column]))
    if "value" not in found:
        raise InvalidArgumentError(f"the table has no column 'value'; its columns are {', '.join(table.schema.names)}")
    return pa.table(found)


def _cast(name: str, column: pa.ChunkedArray, to: pa.DataType, wanted: str) -> pa.ChunkedArray:
    try:
        return column.cast(to)
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"column {name!r} has type {column.type}, not {wanted}: {error}") from None


def plain_named(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """``plain_column`` of a column, whose name is in the InvalidArgumentError for damaged values."""
    try:
        return plain_column(column)
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"column {name!r} of type {column.type} cannot be read: {error}") from None


def binary_column(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return ``column`` as plain binary or text, whatever its layout. InvalidArgumentError names the column."""
    if column.type in _PLAIN:
        return column
    plain = plain_type(column.type)
    if not is_bytes(plain):
        raise InvalidArgumentError(
            f"column {name!r} has type {plain}, not binary or string: cast the column, or encode it yourself"
        )
    return plain_named(name, column)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether the encoder reads keys and values of a plain type."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_null(kind)
        # (decimals have a fixed width too, but are not meant as bytes)
        or (pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind))
    )


def _headers(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.type == _TYPES["headers"]:
        return column
    wanted = "list<struct<key: string, value: binary>>"
    plain = plain_named(name, column)
    if pa.types.is_null(plain.type):
        return plain
    if not (pa.types.is_list(plain.type) or pa.types.is_large_list(plain.type) or pa.types.is_map(plain.type)):
        raise InvalidArgumentError(f"column {name!r} has type {column.type}, not {wanted}: cast the column")
    return _cast(name, plain, _TYPES["headers"], wanted)


def _timestamps(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.type != pa.int64():
        column = plain_named(name, column)
    kind = column.type
    if pa.types.is_timestamp(kind):
        return column if kind.unit in _UNITS_PER_MS else _cast(name, column, pa.timestamp("ms", kind.tz), "a timestamp")
    if pa.types.is_int64(kind) or pa.types.is_null(kind):
        return column
    raise InvalidArgumentError(
        f"column {name!r} has type {kind}, not a timestamp or int64 (milliseconds since 1970): cast the column"
    )


def _one_chunk(columns: pa.Table) -> pa.RecordBatch:
    if all(column.num_chunks == 1 for column in columns.columns):
        return columns.to_batches()[0]
    # Arrow's types with 64-bit offsets, for columns with 2 GiB and more in one chunk.
    wide = {pa.binary(): pa.large_binary(), pa.string(): pa.large_string()}
    fields = [column.cast(wide.get(column.type, column.type)) for column in columns.columns]
    return pa.table(fields, names=columns.column_names).combine_chunks().to_batches()[0]


def _row_numbers(rows: Any, row_count: int) -> pa.Array:
    chosen = rows.combine_chunks() if isinstance(rows, pa.ChunkedArray) else rows
    chosen = chosen if isinstance(chosen, pa.Array) else pa.array(chosen, pa.int64())
    try:
        chosen = chosen.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidArgumentError(f"the argument rows must have row numbers: {error}") from None
    if chosen.null_count:
        raise InvalidArgumentError("rows must be row numbers without nulls")
    if len(chosen):
        ends = pc.min_max(chosen).as_py()
        if ends["min"] < 0 or ends["max"] >= row_count:
            raise InvalidArgumentError(
                f"the row numbers reach from {ends['min']} to {ends['max']}, but the table has {row_count} rows"
            )
    return chosen


def _add(encoder: Any, chunk: pa.RecordBatch, now_ms: int, rows: pa.Array | None) -> None:
    named = dict(zip(chunk.schema.names, chunk.columns, strict=True))
    if BACKEND != "native":
        encoder.add(named, now_ms, None if rows is None else rows.to_pylist())
        return
    headers = named.get("headers")
    if headers is not None and pa.types.is_null(headers.type):
        headers = None
    alive: list[pa.Array] = []
    described_headers = None
    bound = -1 if rows is not None or headers is not None else sum(_data_bytes(named.get(c)) for c in ("key", "value"))
    if headers is not None:
        names, contents = headers.values.flatten()
        alive += [names, contents]
        validity, offsets = headers.buffers()[:2]
        described_headers = (
            _address(validity) if headers.null_count else 0,
            _address(offsets),
            headers.offset,
            _describe(names),
            _describe(contents),
            len(names),
        )
    timestamps = named.get("timestamp")
    described_timestamps = None
    if timestamps is not None and not pa.types.is_null(timestamps.type):
        validity, data = timestamps.buffers()
        divisor = _UNITS_PER_MS[timestamps.type.unit] if pa.types.is_timestamp(timestamps.type) else 1
        described_timestamps = (
            _address(validity) if timestamps.null_count else 0,
            _address(data),
            timestamps.offset,
            divisor,
        )
    row_count, rows_at = chunk.num_rows, 0
    if rows is not None:
        row_count, rows_at = len(rows), _address(rows.buffers()[1]) + 8 * rows.offset
    encoder.add(
        row_count,
        _describe(named.get("key")),
        _describe(named["value"]),
        described_timestamps,
        described_headers,
        now_ms,
        rows_at,
        bound,
    )
    del alive


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else buffer.address


def _data_bytes(column: pa.Array | None) -> int:
    """Upper bound of the bytes that the rows of a column hold."""
    if column is None or pa.types.is_null(column.type):
        return 0
    if pa.types.is_fixed_size_binary(column.type):
        return len(column) * int(column.type.byte_width)
    return int(column.nbytes)


def _describe(column: pa.Array | None) -> tuple[int, ...] | None:
    if column is None or pa.types.is_null(column.type) or not len(column):
        return None
    buffers = column.buffers()
    validity = _address(buffers[0]) if column.null_count else 0
    data = buffers[-1]
    size = 0 if data is None else data.size
    if pa.types.is_fixed_size_binary(column.type):
        return (_FIXED_WIDTH, validity, 0, _address(data), size, column.type.byte_width, column.offset)
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    layout = _OFFSETS_64 if wide else _OFFSETS_32
    return (layout, validity, _address(buffers[1]), _address(data), size, 0, column.offset)


@functools.cache
def arrow_schema(columns: tuple[str, ...] | None = None, include_headers: bool = False) -> pa.Schema:
    """Return the schema of the tables that ``decode_arrow`` returns for the same arguments."""
    names = (*(COLUMNS if columns is None else columns), *(("headers",) if include_headers else ()))
    for name in names:
        if name not in _TYPES:
            raise InvalidArgumentError(f"no column {name!r}: a record has {', '.join(_TYPES)}")
    if len(set(names)) != len(names):
        raise InvalidArgumentError(f"the argument columns names a column twice: {', '.join(names)}")
    return pa.schema([(name, _TYPES[name]) for name in names])


def decode_arrow(
    slices: Buffer | Iterable[Buffer],
    *,
    topic: str,
    partition: int,
    start_offset: int = 0,
    end_offset: int | None = None,
    columns: Sequence[str] | None = None,
    include_headers: bool = False,
    limits: DecodeLimits = DEFAULT_LIMITS,
    check_crc: bool = True,
) -> pa.RecordBatch:
    """Decode whole batches of one partition: the records from ``start_offset`` on, below ``end_offset``.

    ``columns``: the names of the wanted columns, in the wanted order ("headers" is a column, too). Columns that
    ``columns`` does not name are not decoded. A record without headers has a null list, as in Spark's Kafka source.
    Control records are left out.

    Raises CorruptMessageError, InvalidRecordError, and InvalidArgumentError when the keys or values exceed one
    RecordBatch (2 GiB); ``decode_arrow_split`` returns several RecordBatches.
    """
    batches = decode_arrow_split(
        slices,
        topic=topic,
        partition=partition,
        start_offset=start_offset,
        end_offset=end_offset,
        columns=columns,
        include_headers=include_headers,
        limits=limits,
        check_crc=check_crc,
    )
    if len(batches) > 1:
        raise InvalidArgumentError(
            f"the records of {topic}-{partition} exceed {BYTES_MAX} bytes, the limit of an Arrow RecordBatch: "
            "decode fewer slices, or call decode_arrow_split"
        )
    return batches[0]


def decode_arrow_split(
    slices: Buffer | Iterable[Buffer],
    *,
    topic: str,
    partition: int,
    start_offset: int = 0,
    end_offset: int | None = None,
    columns: Sequence[str] | None = None,
    include_headers: bool = False,
    limits: DecodeLimits = DEFAULT_LIMITS,
    check_crc: bool = True,
    max_bytes: int = BYTES_MAX,
) -> list[pa.RecordBatch]:
    """Decode like ``decode_arrow``, into as many RecordBatches as keep each below ``max_bytes``; at least one."""
    schema = arrow_schema(None if columns is None else tuple(columns), include_headers)
    decoder: Any = Decoder(start_offset, _OFFSET_MAX if end_offset is None else end_offset, limits, check_crc)
    return list(_record_batches(decoder, slices, schema, topic, partition, max_bytes, max_bytes))


def iterate_arrow(
    slices: Buffer | Iterable[Buffer],
    *,
    topic: str,
    partition: int,
    start_offset: int = 0,
    end_offset: int | None = None,
    columns: Sequence[str] | None = None,
    include_headers: bool = False,
    limits: DecodeLimits = DEFAULT_LIMITS,
    check_crc: bool = True,
    max_bytes: int,
    is_cut: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Decode like ``decode_arrow``, one RecordBatch after the other. Each has at most ``max_bytes`` of keys, values and
    headers, or one row (``is_cut`` false: or one batch of the log). Whatever the compression, no more is decoded at a
    time than ``max_bytes``, or one batch of the log (``limits.max_decompressed_bytes``)."""
    schema = arrow_schema(None if columns is None else tuple(columns), include_headers)
    decoder: Any = Decoder(start_offset, _OFFSET_MAX if end_offset is None else end_offset, limits, check_crc)
    for batch in _record_batches(decoder, slices, schema, topic, partition, max_bytes, BYTES_MAX):
        while is_cut and (rows := rows_within(batch, max_bytes)[0]) < batch.num_rows:
            yield batch.slice(0, rows)
            batch = batch.slice(rows)
        yield batch


def rows_within(batch: pa.RecordBatch, max_bytes: int) -> tuple[int, int]:
    """How many of the first rows have at most ``max_bytes`` of keys, values and headers, at least one (if there is
    one); and the bytes that these rows have."""
    high: int = batch.num_rows
    size = data_bytes(batch)
    if size <= max_bytes or high <= 1:
        return high, size
    low, size = 1, data_bytes(batch.slice(0, 1))
    while low < high:
        middle = (low + high + 1) // 2
        of_middle = data_bytes(batch.slice(0, middle))
        if of_middle <= max_bytes:
            low, size = middle, of_middle
        else:
            high = middle - 1
    return low, size


def data_bytes(batch: pa.RecordBatch) -> int:
    """The bytes of a RecordBatch's keys, values and headers."""
    size = 0
    for name in ("key", "value", "headers"):
        at = batch.schema.get_field_index(name)
        if at >= 0:
            size += batch.column(at).nbytes
    return size


def _record_batches(
    decoder: Any,
    slices: Buffer | Iterable[Buffer],
    schema: pa.Schema,
    topic: str,
    partition: int,
    max_bytes: int,
    max_batch_bytes: int,
) -> Iterator[pa.RecordBatch]:
    flags = [name in schema.names for name in ("key", "value", "offset", "timestamp", "timestampType", "headers")]
    for data in [slices] if isinstance(slices, bytes | bytearray | memoryview) else slices:
        position = decoder.add(data, 0, max_bytes, max_batch_bytes)
        while position < len(data):
            yield _record_batch(schema, decoder.columns(*flags), topic, partition)
            position = decoder.add(data, position, max_bytes, max_batch_bytes)
    yield _record_batch(schema, decoder.columns(*flags), topic, partition)


def _record_batch(schema: pa.Schema, raw: dict[str, Any], topic: str, partition: int) -> pa.RecordBatch:
    rows = raw["rows"]
    return pa.RecordBatch.from_arrays(
        [_array(name, raw, rows, topic, partition) for name in schema.names], schema=schema
    )


def _array(name: str, raw: dict[str, Any], rows: int, topic: str, partition: int) -> pa.Array:
    if name == "topic":
        return _repeated(topic, rows)
    if name == "partition":
        return _repeated(partition, rows)
    column = raw[name]
    if isinstance(column, pa.Array):
        return column
    if name == "headers":
        return _header_lists(column, rows)
    if name in ("key", "value"):
        return _binary_array(pa.binary(), column, rows)
    return pa.Array.from_buffers(_TYPES[name], rows, [None, _buffer(column)], 0)


def _buffer(memory: Any) -> pa.Buffer:
    return pa.foreign_buffer(memory.address, memory.size, base=memory) if memory.size else pa.py_buffer(b"")


def _binary_array(kind: pa.DataType, column: tuple[Any, ...], rows: int) -> pa.Array:
    validity, offsets, data, nulls = column
    buffers = [None if validity is None else _buffer(validity), _buffer(offsets), _buffer(data)]
    return pa.Array.from_buffers(kind, rows, buffers, nulls)


def _header_lists(column: tuple[Any, ...], rows: int) -> pa.Array:
    validity, offsets, nulls, names, contents, count, ascii_names = column
    keys = _binary_array(pa.string(), names, count)
    if not ascii_names:
        try:
            keys.validate(full=True)
        except pa.ArrowInvalid:  # a key that is not UTF-8 is readable all the same, as in Kafka's clients
            raw = keys.cast(pa.binary()).to_pylist()
            keys = pa.array([name.decode(errors="replace") for name in raw], pa.string())
    pairs = pa.StructArray.from_arrays([keys, _binary_array(pa.binary(), contents, count)], fields=list(_HEADER))
    buffers = [None if validity is None else _buffer(validity), _buffer(offsets)]
    return pa.Array.from_buffers(_TYPES["headers"], rows, buffers, nulls, children=[pairs])


def _repeated(value: str | int, rows: int) -> pa.Array:
    """An array of equal values: a view of an array that is cached for each value and each order of magnitude of the
    length."""
    if rows > 1 << 20:
        return _build_repeated(value, rows)
    return _cached_repeated(value, max(1 << (rows - 1).bit_length(), 1024) if rows else 0)[:rows]


@functools.lru_cache(maxsize=32)
def _cached_repeated(value: str | int, rows: int) -> pa.Array:
    return _build_repeated(value, rows)


def _build_repeated(value: str | int, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string() if isinstance(value, str) else pa.int32()), rows)
