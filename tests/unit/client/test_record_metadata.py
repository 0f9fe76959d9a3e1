"""The result of a record's future."""

from __future__ import annotations

import gc
import pickle

import pytest

from headrace import ManyMetadata, RecordMetadata, RecordRange


def test_says_where_the_record_went():
    metadata = RecordMetadata("orders", 3, 2**40, 1_700_000_000_000)
    topic, partition, offset, timestamp_ms = metadata
    assert (topic, partition, offset, timestamp_ms) == ("orders", 3, 2**40, 1_700_000_000_000)
    assert (metadata.topic, metadata.partition) == ("orders", 3)
    assert (metadata.offset, metadata.timestamp_ms) == (2**40, 1_700_000_000_000)
    assert (
        repr(metadata)
        == "RecordMetadata(topic='orders', partition=3, offset=1099511627776, timestamp_ms=1700000000000)"
    )


def test_equal_by_value_and_never_to_another_place():
    metadata = RecordMetadata("orders", 3, 7, 1)
    assert metadata == RecordMetadata("orders", 3, 7, 1)
    assert hash(metadata) == hash(RecordMetadata("orders", 3, 7, 1))
    others = [("orderz", 3, 7, 1), ("orders", 4, 7, 1), ("orders", 3, 8, 1), ("orders", 3, 7, 2)]
    assert all(metadata != RecordMetadata(*other) for other in others)
    assert metadata != "orders"


def test_cannot_be_changed_and_survives_pickling():
    metadata = RecordMetadata("orders", 3, 7, 1)
    with pytest.raises(AttributeError):
        metadata.offset = 8
    assert pickle.loads(pickle.dumps(metadata)) == metadata


def test_costs_the_garbage_collector_nothing():
    assert not gc.is_tracked(RecordMetadata("orders", 3, 7, 1))


def test_shows_a_few_ranges_of_many() -> None:
    ranges = tuple(RecordRange("orders", 0, offset, 1) for offset in range(60_000))
    few = ManyMetadata("orders", 2, ranges[:2])
    assert repr(few) == f"ManyMetadata(topic='orders', record_count=2, ranges=({ranges[0]}, {ranges[1]}))"
    many = repr(ManyMetadata("orders", 60_000, ranges))
    assert many.endswith(", ... 59997 more))")
    assert len(many) < 500
