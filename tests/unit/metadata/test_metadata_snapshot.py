"""Snapshots: every image survives the round trip, and a damaged snapshot is never accepted."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from typing import Any

import msgspec
import pytest

from headrace_core.errors import CorruptLogError, UnsupportedVersionError
from headrace_core.metadata import (
    EMPTY_IMAGE,
    ClusterRecord,
    MetadataImage,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from headrace_core.metadata.control_records import ControlRecord, ControlType, encode_control_batch, snapshot_footer
from headrace_core.metadata.snapshot import (
    SnapshotVoter,
    check_snapshot,
    decode_snapshot,
    encode_snapshot,
    image_records,
    parse_snapshot_name,
    snapshot_name,
)
from headrace_core.records import iterate_headers
from tests.unit.metadata.any_history import LEVEL, RECORD_CLASSES, any_history

VOTERS = (
    SnapshotVoter(1, b"1" * 16, "one:9093"),
    SnapshotVoter(2, b"2" * 16, "[::1]:9093"),
    SnapshotVoter(3, b"3" * 16),
)


def encoded(image: MetadataImage) -> bytes:
    return b"".join(encode_snapshot(image, voters=VOTERS, timestamp_ms=1_700_000_000_000))


def small_image() -> MetadataImage:
    topic_id = b"t" * 16
    records: list[MetadataRecord] = [
        ClusterRecord("c", LEVEL),
        TopicRecord("t", topic_id),
        PartitionRecord(topic_id, 0, (1, 2), (1,), 1, 3, 4),
    ]
    return EMPTY_IMAGE.apply(records, 12, 5)


def test_any_history_comes_back_as_it_was_from_its_snapshot(rng: random.Random) -> None:
    seen: dict[str, set[Any]] = defaultdict(set)
    kinds: set[type] = set()
    may_be_constant = {"MetadataImage.cluster_id", "MetadataImage.metadata_version"}
    lives = 0
    while lives < 60 or (lives < 600 and not (kinds == set(RECORD_CLASSES) and _constant(seen) <= may_be_constant)):
        lives += 1
        records, image = any_history(rng, rng.randrange(2, 300))
        kinds |= set(map(type, records))
        again, voters = decode_snapshot(encoded(image))
        assert again == image
        assert list(again.topics) == list(image.topics)
        assert encoded(again) == encoded(image), "the snapshot of a snapshot is another"
        assert voters == VOTERS
        _note_values(image, seen)
    assert kinds == set(RECORD_CLASSES), "a kind of record never fitted: the histories prove nothing for it"
    assert _constant(seen) <= may_be_constant, "fields that never had a value"


def _constant(seen: dict[str, set[Any]]) -> set[str]:
    return {name for name, values in seen.items() if len(values) < 2}


def _note_values(value: Any, seen: dict[str, set[Any]]) -> None:
    """Every field of every value in an image, with its original value."""
    if isinstance(value, msgspec.Struct):
        fields = value.__struct_fields__
    elif dataclasses.is_dataclass(value):
        fields = tuple(field.name for field in dataclasses.fields(value))
    else:
        for item in value.values() if hasattr(value, "values") else value if isinstance(value, tuple) else ():
            _note_values(item, seen)
        return
    for name in fields:
        of_field = getattr(value, name)
        seen[f"{type(value).__name__}.{name}"].add(repr(of_field))
        _note_values(of_field, seen)


def test_records_of_an_image_are_in_one_order_however_it_came_about() -> None:
    ids = [bytes([number]) * 16 for number in range(9)]
    records = [TopicRecord(f"t{number}", topic_id) for number, topic_id in enumerate(ids)]
    forwards = EMPTY_IMAGE.apply(records, 9, 1)
    backwards = EMPTY_IMAGE
    for number, record in enumerate(reversed(records)):
        backwards = backwards.apply([record], number + 1, 1)
    assert list(image_records(forwards)) == list(image_records(backwards)) == records
    assert encoded(forwards) == encoded(backwards)


def test_the_empty_image_and_no_voters_are_a_snapshot_too() -> None:
    data = b"".join(encode_snapshot(EMPTY_IMAGE, voters=(), timestamp_ms=0))
    assert decode_snapshot(data) == (EMPTY_IMAGE, ())


def test_a_snapshot_says_its_place_time_and_voters() -> None:
    checked = check_snapshot(encoded(small_image()))
    assert (checked.next_offset, checked.epoch, checked.timestamp_ms) == (12, 5, 1_700_000_000_000)
    assert checked.voters == VOTERS


def test_a_large_image_is_cut_into_batches_of_a_few_thousand_records() -> None:
    records = [TopicRecord(f"t{number:05}", number.to_bytes(16, "big")) for number in range(9_000)]
    image = EMPTY_IMAGE.apply([ClusterRecord("c", LEVEL), *records], 9_001, 1)
    pieces = list(encode_snapshot(image, voters=VOTERS, timestamp_ms=0))
    counts = [header.record_count for piece in pieces for _, header in iterate_headers(piece)]
    assert counts == [3, 4_000, 4_000, 1_001, 1]
    assert decode_snapshot(b"".join(pieces))[0] == image


def test_a_snapshot_cut_at_any_byte_is_refused() -> None:
    data = encoded(small_image())
    for size in range(len(data)):
        with pytest.raises(CorruptLogError):
            check_snapshot(data[:size])
    with pytest.raises(CorruptLogError):
        check_snapshot(data + b"\0")
    with pytest.raises(CorruptLogError):
        check_snapshot(data + data)


def test_a_flipped_bit_anywhere_is_refused(rng: random.Random) -> None:
    data = encoded(small_image())
    found = check_snapshot(data)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << rng.randrange(8)
        try:
            checked = check_snapshot(bytes(damaged))
        except CorruptLogError:
            continue
        else:
            pytest.fail(f"byte {position} of {len(data)} was flipped: {checked} instead of {found}")


def test_batches_in_another_order_are_refused() -> None:
    data = encoded(small_image())
    (first, *middle, last) = [data[at : at + header.size] for at, header in iterate_headers(data)]
    assert b"".join([first, *middle, last]) == data
    for wrong in ([first, last, *middle], [*middle, first, last], [first, last], [first, *middle, *middle, last]):
        with pytest.raises(CorruptLogError):
            check_snapshot(b"".join(wrong))


def test_a_header_that_does_not_say_its_offset_is_refused() -> None:
    """Kafka's own snapshots are not accepted as Headrace snapshots."""
    kafkas = ControlRecord(ControlType.SNAPSHOT_HEADER, bytes(10) + b"\0")
    data = encode_control_batch([kafkas, *_version_and_voters()], base_offset=0, epoch=1, timestamp_ms=0)
    data += encode_control_batch([snapshot_footer()], base_offset=3, epoch=1, timestamp_ms=0)
    with pytest.raises(CorruptLogError, match="lacks the offset"):
        check_snapshot(data)


def _version_and_voters() -> list[ControlRecord]:
    return [
        ControlRecord(ControlType.KRAFT_VERSION, b"\0\0\0\1\0"),
        ControlRecord(ControlType.KRAFT_VOTERS, b"\0\0\1\0"),
    ]


def test_a_newer_quorum_version_asks_for_an_upgrade() -> None:
    newer = [
        ControlRecord(ControlType.SNAPSHOT_HEADER, bytes(10) + bytes.fromhex("01904e08") + bytes(8)),
        ControlRecord(ControlType.KRAFT_VERSION, b"\0\0\0\2\0"),
        _version_and_voters()[1],
    ]
    snapshot = encode_control_batch(newer, base_offset=0, epoch=0, timestamp_ms=0)
    snapshot += encode_control_batch([snapshot_footer()], base_offset=3, epoch=0, timestamp_ms=0)
    with pytest.raises(UnsupportedVersionError, match=r"kraft\.version is 2"):
        check_snapshot(snapshot)


def test_names_of_files_are_kafkas() -> None:
    assert snapshot_name(42, 7) == "00000000000000000042-0000000007.checkpoint"
    assert parse_snapshot_name(snapshot_name(42, 7)) == (42, 7)
    for other in (
        "00000000000000000042.log",
        "42-7.checkpoint",
        snapshot_name(1, 1) + ".part",
        "x" + snapshot_name(1, 1),
    ):
        assert parse_snapshot_name(other) is None
