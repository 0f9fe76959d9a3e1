"""Targets: the record batch codec, native against pure; compression; Arrow."""

# ruff: noqa: PT017 - a typed error is one of the right answers here, and its words are checked
from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pyarrow as pa

from headrace_core.errors import CorruptMessageError, HeadraceError, InvalidRecordError
from headrace_core.records import (
    HEADER_BYTES,
    SLICE_EXACT,
    BatchHeader,
    BatchSchemas,
    Compression,
    DecodeLimits,
    SchemaIds,
    _compiled,
    _pure,
    encode_batch,
    iterate_headers,
    recompress,
    whole_batches_end,
    with_base,
    with_log_append_time,
    with_max_timestamps,
)
from headrace_core.records import _arrow_pure as arrow_pure
from headrace_core.records.arrow import decode_arrow, encode_arrow
from headrace_core.records.compression import compress, decompress
from headrace_core.testing.batches import resealed
from tests.fuzz.fuzz_engine import Reader, Target, chunks
from tests.fuzz.fuzz_seeds import batches, logs, sealed, sealed_after
from tests.worlds.transactional_log import TransactionalLog

LIMITS = DecodeLimits(max_decompressed_bytes=1 << 20, max_records=2048, max_headers=64)
BACKENDS: tuple[Any, Any] = (_pure, _compiled)


def outcome(function: Callable[[], Any]) -> tuple[str, Any]:
    """The outcome of a call: a value, or the class and message of a HeadraceError. Errors that are no HeadraceError are
    raised."""
    try:
        return "ok", function()
    except HeadraceError as error:
        return type(error).__name__, error.message


def agree(function: Callable[[Any], Any], what: str) -> tuple[str, Any]:
    """The outcome of a call, which must be equal for both backends."""
    reference, native = (outcome(lambda backend=backend: function(backend)) for backend in BACKENDS)  # type: ignore[misc]
    assert _comparable(reference) == _comparable(native), f"{what}: pure says {reference}, native {native}"
    return reference


def _comparable(found: tuple[str, Any]) -> tuple[str, Any]:
    kind, value = found
    if kind != "ok":
        return kind, None
    return kind, [repr(item) for item in value] if isinstance(value, list) else repr(value)


# ---------------------------------------------------------------------------------------------- batches


def batch(data: bytes) -> None:
    """Check a batch: both backends give the same result, and an accepted batch has as many records as its header
    says."""
    kind, header = agree(lambda codec: codec.read_header(data), "read_header")
    assert kind in ("ok", "CorruptMessageError"), kind
    kind, checked = agree(lambda codec: codec.check_batch(data), "check_batch")
    if kind == "ok":
        assert checked == header
        assert checked.size <= len(data)
    kind, spans = agree(lambda codec: codec.split_batches(data), "split_batches")
    if kind == "ok":
        assert sum(span.size for span in spans) == len(data)
        assert [position for position, _ in iterate_headers(data)] == [span.position for span in spans]
    assert outcome(lambda: whole_batches_end(data))[0] in ("ok", "CorruptMessageError")
    for check_crc in (True, False):
        kind, records = agree(
            lambda codec, crc=check_crc: codec.decode_batch(data, limits=LIMITS, check_crc=crc), "decode_batch"
        )
        if kind == "ok":
            _check_records(header, records)
    if checked is not None and kind == "ok":
        _check_copies(data[: checked.size] if isinstance(checked, BatchHeader) else b"")


def slices(data: bytes) -> None:
    """Both backends accept the same slices of a log. A slice that the backends report as exact has each offset once."""
    reader = Reader(data)
    offset, end, choices = reader.integer(1), reader.integer(1), reader.integer(1)
    epochs: Any = (None, (), ((0, 0),), ((0, 0), (3, 5)), ((2, 4),))[choices % 5]
    body = reader.rest
    _, verdict = agree(lambda codec: codec.check_slice(body, offset, end, epochs), "check_slice")
    if verdict != SLICE_EXACT:
        return
    expected = None
    for position, header in iterate_headers(body):
        _pure.check_batch(body, position)
        assert (
            header.base_offset <= offset <= header.last_offset if expected is None else header.base_offset == expected
        )
        expected = header.next_offset
    assert expected in (None, end)


def _slice_seeds() -> list[bytes]:
    ends = [(log, _compiled.split_batches(log)[-1].last_offset + 1) for log in logs()[:3]]
    return [bytes([0, end, choices]) + log for log, end in ends for choices in range(5)]


def _check_records(header: BatchHeader, records: list[Any]) -> None:
    assert len(records) == header.record_count <= LIMITS.max_records
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    assert all(header.base_offset <= each <= header.last_offset for each in offsets)


def _check_copies(data: bytes) -> None:
    """A batch that is made from a sound batch is sound."""
    if not data:
        return
    before = _pure.decode_batch(data, limits=LIMITS)
    for codec in Compression:
        copy = recompress(data, codec, limits=LIMITS)
        assert _pure.decode_batch(copy, limits=LIMITS) == before
    by_log = _pure.decode_batch(with_log_append_time(data, 99), limits=LIMITS)
    assert [record.value for record in by_log] == [record.value for record in before]
    assert all(record.timestamp_ms == 99 for record in by_log)
    moved = with_base(data, 0, 5, 6) + data[16:]
    assert [record.offset - 5 for record in _pure.decode_batch(moved, limits=LIMITS)] == [
        record.offset - _pure.read_header(data).base_offset for record in before
    ]


def schemas_of(codec: ModuleType, body: bytes, **options: Any) -> list[BatchSchemas]:
    schemas = SchemaIds(of_keys=True, of_values=True)
    codec.validate_batches(body, limits=LIMITS, schemas=schemas, **options)
    return schemas.batches


def validation(data: bytes) -> None:
    """Every batch that a broker accepts from a producer can be read back, record by record."""
    choices, body = data[:1].ljust(1, b"\0")[0], data[1:]
    options = {
        "allow_control": bool(choices & 1),
        "allow_transactional": bool(choices & 2),
        "allow_producer_id": bool(choices & 4),
        "require_keys": bool(choices & 8),
    }
    bounds = {"timestamp_ms_min": 0, "timestamp_ms_max": 2_000_000_000_000} if choices & 16 else {}
    kind, headers = agree(lambda codec: codec.validate_batches(body, limits=LIMITS, **options, **bounds), "validate")
    if kind != "ok":
        return
    agree(lambda codec: schemas_of(codec, body, **options, **bounds), "schema ids")
    corrected = with_max_timestamps(body, headers)
    assert _pure.validate_batches(corrected, limits=LIMITS, **options, **bounds) == [
        header._replace(crc=struct.unpack_from(">I", corrected, position + 17)[0])
        for (position, _), header in zip(iterate_headers(corrected), headers, strict=True)
    ] or [h._replace(crc=0) for h in _pure.validate_batches(corrected, limits=LIMITS, **options, **bounds)] == [
        h._replace(crc=0) for h in headers
    ]
    for position, header in iterate_headers(corrected):
        records = _compiled.decode_batch(corrected, position, limits=LIMITS)
        assert [record.offset for record in records] == list(range(header.base_offset, header.next_offset))
        assert max(record.timestamp_ms for record in records) == header.max_timestamp_ms
        assert not options["require_keys"] or all(record.key is not None for record in records)


def iterator(data: bytes) -> None:
    """Both backends return the same records to a consumer that reads many batches, and stop at the same place."""
    reader = Reader(data)
    choices, start, step = reader.integer(1), reader.integer(2), reader.below(7) + 1
    slices: Any = [reader.chunk(), reader.chunk(), reader.rest] if choices & 1 else reader.rest

    def walk(codec: Any) -> Any:
        found = codec.RecordIterator(
            slices,
            start_offset=start,
            limits=LIMITS,
            check_crc=not choices & 2,
            include_control=bool(choices & 4),
        )
        out: list[Any] = []
        while True:
            try:
                taken = found.take(step)
            except (CorruptMessageError, InvalidRecordError) as error:
                again = outcome(lambda: found.take(step))
                assert again[0] == type(error).__name__, "after an error the next step must raise again"
                out += [type(error).__name__, found.position]
                return out
            if not taken:
                out.append(found.position)
                return out
            assert [record.offset for record in taken] == sorted({record.offset for record in taken})
            assert taken[0].offset >= start
            out += taken

    agree(walk, "RecordIterator")


def read_committed(data: bytes) -> None:
    """Both backends remove the same batches, and return the other batches unchanged and in order."""
    reader = Reader(data)
    choices = reader.integer(1)
    aborted = [(reader.integer(1) % 8, reader.integer(1)) for _ in range(choices & 3)]
    log = reader.rest
    found = agree(
        lambda codec: [bytes(each) for each in codec.without_aborted(log, aborted, check_crc=not choices & 4)],
        "without_aborted",
    )
    assert found[0] == "ok", "damage is left to the decoder"
    at = 0
    for part in found[1]:
        at = log.index(part, at) + len(part)
    if not aborted:
        assert found[1] == [log]


def builder(data: bytes) -> None:
    """For any input, both builders make the same bytes, and these are read back unchanged."""
    reader = Reader(data)
    codec = Compression(reader.below(5))
    limit = HEADER_BYTES + 1 + reader.integer(2) % 4096
    records = []
    while reader.rest and len(records) < 200:
        choices = reader.integer(1)
        timestamp_ms = reader.integer(8 if choices & 1 else 2) - (1 if choices & 2 else 0)
        key = reader.bytes(choices >> 4) if choices & 4 else None
        value = reader.chunk()[:1000] if choices & 8 else None
        headers = [(reader.bytes(3).decode("latin-1"), reader.bytes(2))] if choices & 64 else None
        records.append((timestamp_ms, key, value, headers))

    def build(backend: Any) -> Any:
        made, taken = backend.BatchBuilder(limit), 0
        for record in records:
            if made.append(*record) < 0:
                break
            taken += 1
            assert made.size <= limit or made.count == 1
        return (taken, made.build() if taken else b"")

    kind, built = agree(build, "BatchBuilder")
    if kind == "ok" and built[0]:
        taken, plain = built
        found = _compiled.decode_batch(recompress(plain, codec))
        assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in found] == [
            (timestamp_ms, key, value, headers or []) for timestamp_ms, key, value, headers in records[:taken]
        ]


def compression(data: bytes) -> None:
    """Decompressing a block returns bytes within the limit, or raises InvalidRecordError. Decompression uses no more
    memory than the limit."""
    codec = Compression(data[:1].ljust(1, b"\0")[0] % 5)
    try:
        found = decompress(codec, data[1:], 1 << 20)
    except InvalidRecordError:
        return
    if codec is Compression.NONE:
        return
    assert len(found) <= 1 << 20
    assert bytes(decompress(codec, compress(codec, found), 1 << 20)) == bytes(found)


def _compressed() -> list[bytes]:
    plain, bomb = b"headrace " * 30, bytes(40 << 20)
    return [
        *(bytes([codec]) + bytes(compress(codec, plain)) for codec in Compression),
        *(bytes([codec]) + bytes(compress(codec, bomb))[:60_000] for codec in (Compression.GZIP, Compression.ZSTD)),
        bytes([Compression.SNAPPY]) + b"\xff\xff\xff\xff\x07" + bytes(30),
    ]


# ---------------------------------------------------------------------------------------------- Arrow


def arrow_decode(data: bytes) -> None:
    """The columns have the values that the record iterator returns. The compiled decoder and the Python decoder
    agree."""
    start = data[:1].ljust(1, b"\0")[0]
    body = data[1:]
    plain = outcome(lambda: _rows(body, start))
    columns = outcome(
        lambda: (
            decode_arrow([body], topic="t", partition=1, start_offset=start, include_headers=True, limits=LIMITS)
            .drop_columns(["timestamp"])
            .to_pylist()
        )
    )
    kind, spans = outcome(lambda: _pure.split_batches(body))
    if kind == "ok" and any(after.base_offset <= before.last_offset for before, after in pairwise(spans)):
        # not a slice of a log: the iterator skips offsets that it has already passed, but the decoder of tables does
        # not remember them
        return
    if columns[0] != "ok" and "microseconds" in columns[1]:
        return  # a record can have this time, but Arrow's column cannot
    assert (plain[0] == "ok") == (columns[0] == "ok"), f"records say {plain}, arrow says {columns}"
    if plain[0] == "ok":
        assert [_of_row(row) for row in columns[1]] == plain[1]


def _rows(data: bytes, start: int) -> list[tuple[Any, ...]]:
    found = _pure.RecordIterator(data, start_offset=start, limits=LIMITS)
    return [(record.offset, record.key, record.value, record.headers) for record in found]


def _of_row(row: dict[str, Any]) -> tuple[Any, ...]:
    headers = [(pair["key"], pair["value"]) for pair in row["headers"] or []]
    return row["offset"], row["key"], row["value"], headers


def arrow_encode(data: bytes) -> None:
    """Encode the rows of a table. Both encoders make the same batches, within the size limits and with exactly the rows
    of the table."""
    reader = Reader(data)
    limit = 80 + reader.integer(2) % 2000
    alone = limit + reader.integer(1)
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    while reader.rest and len(keys) < 200:
        choices = reader.integer(1)
        keys.append(reader.bytes(choices & 15) if choices & 16 else None)
        values.append(reader.bytes(reader.integer(1)) if choices & 32 else None)
    wide = data[:1] > b"\x80"
    kind = pa.large_binary() if wide else pa.binary()
    table = pa.table({"key": pa.array(keys, kind), "value": pa.array(values, kind)})
    if len(keys) > 3 and data[-1:] > b"\x60":
        table = table.slice(1, len(keys) - 2)
        keys, values = keys[1:-1], values[1:-1]
    found = outcome(lambda: encode_arrow(table, max_batch_bytes=limit, max_row_bytes=alone, now_ms=5))
    encoder = arrow_pure.Encoder(limit, alone, {})

    def reference() -> list[tuple[bytes, int]]:
        encoder.add({"key": pa.array(keys, kind), "value": pa.array(values, kind)}, 5, None)
        return encoder.finish()

    plain = outcome(reference)
    assert found[0] == plain[0], f"{found} is not {plain}"
    if found[0] != "ok":
        return
    assert [(bytes(made), count) for made, count in found[1]] == [(bytes(made), count) for made, count in plain[1]]
    records = [record for made, _ in found[1] for record in _compiled.decode_batch(made)]
    assert [(record.key, record.value) for record in records] == list(zip(keys, values, strict=True))
    assert all(len(made) <= (alone if count == 1 else limit) for made, count in found[1])


def _iterator_seeds() -> list[bytes]:
    one, two = logs()[0], encode_batch([(5, b"k", b"v", None)], base_offset=40)
    return [b"\0\0\0\3" + one, b"\1\0\2\1" + chunks(one, two) + two, b"\6\0\1\2" + one]


def _read_committed_seeds() -> list[bytes]:
    log = TransactionalLog.random(7)
    first = [byte for each in log.aborted[:2] for byte in (each.producer_id, each.first_offset)]
    return [bytes([2, *first]) + b"".join(log.batches), b"\1\0\0" + logs()[0]]


TARGETS = (
    Target("batch", batch, lambda: [*batches(), resealed(batches()[0])], sealed),
    Target("slices", slices, _slice_seeds, sealed_after(3)),
    Target("validation", validation, lambda: [b"\x07" + item for item in (*batches(), logs()[1])], sealed_after(1)),
    Target("iterator", iterator, _iterator_seeds, sealed_after(4)),
    Target("read_committed", read_committed, _read_committed_seeds, sealed_after(5)),
    Target("builder", builder, lambda: [bytes(range(256)), b"\1\1\0" + b"\x4c\0\5abcd\0\3xyz" * 5]),
    Target("compression", compression, _compressed),
    Target("arrow_decode", arrow_decode, lambda: [b"\0" + item for item in (*batches(), logs()[0])], sealed_after(1)),
    Target("arrow_encode", arrow_encode, lambda: [bytes(range(256)), b"\1\0" + b"\x35abcde\4wxyz" * 9]),
)
