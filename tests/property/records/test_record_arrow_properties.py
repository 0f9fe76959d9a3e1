"""Arrow agrees with records (rows in, batches, rows out), and the compiled code agrees with the Python code."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.errors import HeadraceError, RecordTooLargeError
from headrace_core.records import (
    DecodeLimits,
    _arrow_decode,
    _arrow_encode,
    _arrow_pure,
    _pure,
    arrow,
    with_base,
)
from headrace_core.testing.batches import resealed
from headrace_core.testing.strategies import compressions, record_lists
from tests.worlds.this_process import examples

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LIMITS = DecodeLimits(max_decompressed_bytes=1 << 20, max_records=10_000, max_headers=1_000)
TWINS = {"pure": (_arrow_pure.Encoder, _arrow_pure.Decoder), "native": (_arrow_encode.Encoder, _arrow_decode.Decoder)}


def _on(backend: str, act):
    """Run ``act`` with arrow.py on one backend. Return the result of ``act``, or the kind of its error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "BACKEND", backend)
        patch.setattr(arrow, "Encoder", TWINS[backend][0])
        patch.setattr(arrow, "Decoder", TWINS[backend][1])
        try:
            return act()
        except HeadraceError as error:
            return type(error)


def _table(written, cuts: list[int]) -> pa.Table:
    table = pa.table(
        {
            "timestamp": pa.array([None if r[0] < 0 else r[0] for r in written], pa.int64()),
            "key": pa.array([r[1] for r in written], pa.large_binary()),
            "value": pa.array([r[2] for r in written], pa.binary()),
            "headers": pa.array([[{"key": k, "value": v} for k, v in r[3]] for r in written], HEADERS),
        }
    )
    edges = sorted({0, len(written), *(cut % (len(written) + 1) for cut in cuts)})
    return pa.concat_tables([table.slice(a, b - a) for a, b in itertools.pairwise(edges)])


@settings(max_examples=examples(150))
@given(
    record_lists,
    st.lists(st.integers(0, 40), max_size=3),
    st.integers(100, 3_000),
    st.integers(0, 3_000),
    compressions,
    st.integers(0, 5),
)
def test_tables_become_the_same_batches_as_records(written, cuts, max_bytes, row_bytes, compression, skip):
    table = _table(written, cuts).slice(skip)
    limits = {"max_batch_bytes": max_bytes, "max_row_bytes": row_bytes}

    def encode():
        return arrow.encode_arrow(table, **limits, now_ms=5, compression=compression)

    plain, native = _on("pure", encode), _on("native", encode)
    assert plain == native
    if native is not RecordTooLargeError:
        read = [record for batch, _ in native for record in _pure.decode_batch(batch)]
        expected = [(5 if time < 0 else time, key, value, headers) for time, key, value, headers in written[skip:]]
        assert [(r.timestamp_ms, r.key, r.value, r.headers) for r in read] == expected


@settings(max_examples=examples(150))
@given(
    st.lists(record_lists, max_size=4),
    compressions,
    st.integers(0, 100),
    st.integers(0, 160),
    st.lists(st.sampled_from([*arrow.COLUMNS, "headers"]), unique=True, min_size=1),
)
def test_batches_become_the_columns_of_their_records(batches, compression, start, end, columns):
    slices, offset = [], 0
    for written in batches:
        slices.append(_pure.encode_batch(written, compression=compression, base_offset=offset))
        offset += len(written)

    def decode():
        return arrow.decode_arrow(
            slices, topic="t", partition=1, start_offset=start, end_offset=end, columns=columns, limits=LIMITS
        )

    plain, native = _on("pure", decode), _on("native", decode)
    if isinstance(native, type):
        assert plain is native
        return
    native.validate(full=True)
    assert native.equals(plain)
    assert native.num_rows == max(min(end, offset) - start, 0)


@settings(max_examples=examples(200))
@given(
    record_lists, compressions, st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), min_size=1, max_size=3)
)
def test_damage_under_a_right_crc_is_judged_alike(written, compression, damage):
    batch = bytearray(_pure.encode_batch(written, compression=compression))
    for position, value in damage:
        batch[17 + position % (len(batch) - 17)] = value
    data = with_base(resealed(batch), 0, 10, 0) + resealed(batch)[16:]

    def decode():
        return arrow.decode_arrow(data, topic="t", partition=1, include_headers=True, limits=LIMITS)

    plain, native = _on("pure", decode), _on("native", decode)
    assert (plain is native) if isinstance(native, type) or isinstance(plain, type) else native.equals(plain)
