"""The record that a consumer returns."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import tracemalloc

import pytest

from headrace_core.types import TimestampType


def _record(codec, **changes):
    fields = {
        "topic": "t",
        "partition": 1,
        "offset": 2,
        "timestamp_ms": 3,
        "key": b"k",
        "value": b"v",
        "headers": [("h", b"x"), ("n", None)],
        "leader_epoch": 4,
        "timestamp_type": TimestampType.LOG_APPEND_TIME,
    }
    return codec.Record(**(fields | changes))


def test_records_are_equal_when_all_fields_are(codec):
    assert _record(codec) == _record(codec)
    for field, other in [
        ("topic", "u"),
        ("partition", 9),
        ("offset", 9),
        ("timestamp_ms", 9),
        ("key", None),
        ("value", None),
        ("headers", []),
        ("leader_epoch", -1),
        ("timestamp_type", TimestampType.CREATE_TIME),
    ]:
        assert _record(codec) != _record(codec, **{field: other}), field
    assert _record(codec) != "t"


def test_records_are_not_hashable_since_they_hold_a_list(codec):
    with pytest.raises(TypeError, match="unhashable"):
        hash(_record(codec))


def test_repr_names_every_part(codec):
    assert repr(_record(codec)) == (
        "Record(topic='t', partition=1, offset=2, timestamp_ms=3, key=b'k', value=b'v', "
        "headers=[('h', b'x'), ('n', None)], leader_epoch=4)"
    )


def test_records_survive_pickling_and_copying(codec):
    record = _record(codec)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(record, protocol)) == record
    assert copy.deepcopy(record) == record


def test_key_and_value_may_be_assigned_and_nothing_else(codec):
    record = _record(codec)
    record.key, record.value = "key", {"deserialized": True}
    assert (record.key, record.value) == ("key", {"deserialized": True})
    for field in ("topic", "partition", "offset", "timestamp_ms", "headers", "leader_epoch", "timestamp_type"):
        with pytest.raises(AttributeError):
            setattr(record, field, getattr(record, field))
    with pytest.raises(AttributeError):
        record.other = 1


def test_headers_default_to_a_list_of_ones_own(codec):
    first, second = (_record(codec, headers=None) for _ in range(2))
    assert first.headers == []
    assert first.headers is first.headers
    assert first.headers is not second.headers


def test_a_kept_record_does_not_keep_its_slice(codec):
    batch = codec.encode_batch([(1, b"key", b"value", None), *[(1, None, b"x" * 1000, None)] * 1000])
    references = sys.getrefcount(batch)
    iterator = codec.RecordIterator([batch], topic="t")
    kept = next(iterator)
    del iterator
    gc.collect()
    assert sys.getrefcount(batch) == references
    assert (kept.key, kept.value) == (b"key", b"value")


def test_records_do_not_leak(codec):
    batch = codec.encode_batch([(1, b"key" * 100, b"value" * 100, [("h", b"x" * 100)])] * 100)

    def churn() -> None:
        for _ in range(20):
            for record in codec.RecordIterator([batch, batch], topic="t"):
                record.headers  # noqa: B018
            codec.decode_batch(batch)
            codec.validate_batches(batch)
            builder = codec.BatchBuilder(1 << 16)
            builder.append_many([(b"k", b"v" * 1000)] * 100)
            builder.build()

    churn()
    gc.collect()
    tracemalloc.start()
    try:
        churn()
        gc.collect()
        growth = []
        for _ in range(3):
            before = tracemalloc.get_traced_memory()[0]
            churn()
            gc.collect()
            growth.append(tracemalloc.get_traced_memory()[0] - before)
        # A leak shows in each round; a thread that another test has left may allocate in one of them.
        assert min(growth) < 20_000, growth
    finally:
        tracemalloc.stop()
