"""kafka-python and aiokafka read Headrace's batches, and Headrace reads theirs, with all codecs.

Uncompressed batches are canonical: equal records have equal bytes with every writer.
"""

from __future__ import annotations

from types import SimpleNamespace

import aiokafka.record.default_records as aiokafka_records
import cramjam
import kafka.codec
import kafka.record.default_records as kafka_records
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_core.records import Compression, _compiled, recompress
from headrace_core.testing.strategies import compressions, records
from tests.worlds.this_process import examples

# kafka-python wants python-snappy; cramjam, which aiokafka and we use, has the same raw format.
kafka.codec.snappy = SimpleNamespace(
    compress=lambda data: bytes(cramjam.snappy.compress_raw(data)),
    decompress=lambda data: bytes(cramjam.snappy.decompress_raw(data)),
)
kafka_records.codecs = kafka.codec

#: aiokafka treats a first timestamp of -1 (none) as "nothing appended yet" and writes another base timestamp, so the
#: test does not draw -1.
timed_lists = st.lists(records.filter(lambda record: record[0] >= 0), min_size=1, max_size=40)

LIBRARIES = {"kafka-python": kafka_records, "aiokafka": aiokafka_records}


def _their_batch(library, written, compression: Compression, **fields) -> bytes:
    options = {
        "is_transactional": False,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "batch_size": 1 << 30,
    } | fields
    builder = library.DefaultRecordBatchBuilder(magic=2, compression_type=int(compression), **options)
    for offset, (timestamp_ms, key, value, headers) in enumerate(written):
        assert builder.append(offset, timestamp_ms, key, value, headers) is not None
    return bytes(builder.build())


def _their_records(library, batch: bytes):
    reader = library.DefaultRecordBatch(bytearray(batch))
    assert reader.validate_crc()
    return [(r.offset, r.timestamp, r.key, r.value, [(name, content) for name, content in r.headers]) for r in reader]


def _our_records(batch: bytes):
    return [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in _compiled.decode_batch(batch)]


def _expected(written):
    return [(offset, *record) for offset, record in enumerate(written)]


@pytest.mark.parametrize("name", LIBRARIES)
@settings(max_examples=examples(60))
@given(timed_lists, compressions)
def test_they_read_ours(name, written, compression):
    batch = _compiled.encode_batch(written, compression=compression)
    assert _their_records(LIBRARIES[name], batch) == _expected(written)


@pytest.mark.parametrize("name", LIBRARIES)
@settings(max_examples=examples(60))
@given(timed_lists, compressions)
def test_we_read_theirs_and_a_broker_would_take_them(name, written, compression):
    batch = _their_batch(LIBRARIES[name], written, compression)
    assert _our_records(batch) == _expected(written)
    (header,) = _compiled.validate_batches(batch)
    assert header.record_count == len(written)
    assert recompress(batch, Compression.NONE) == _compiled.encode_batch(written, leader_epoch=header.leader_epoch)


@pytest.mark.parametrize("name", LIBRARIES)
@given(timed_lists)
def test_uncompressed_batches_are_the_same_bytes(name, written):
    theirs = _their_batch(LIBRARIES[name], written, Compression.NONE)
    # each library has its own value for "none", and no CRC covers this field
    leader_epoch = _compiled.read_header(theirs).leader_epoch
    assert _compiled.encode_batch(written, leader_epoch=leader_epoch) == theirs


@pytest.mark.parametrize("name", LIBRARIES)
def test_idempotent_and_transactional_fields_are_the_same_bytes(name):
    written = [(1_000 + i, b"k", b"v%d" % i, [("h", None)]) for i in range(10)]
    fields = {"producer_id": 77, "producer_epoch": 3, "base_sequence": 12}
    theirs = _their_batch(LIBRARIES[name], written, Compression.NONE, is_transactional=True, **fields)
    leader_epoch = _compiled.read_header(theirs).leader_epoch
    assert _compiled.encode_batch(written, transactional=True, leader_epoch=leader_epoch, **fields) == theirs
