"""Metadata records to bytes and back."""

from __future__ import annotations

import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.errors import CorruptLogError, CorruptMessageError, HeadraceError, UnsupportedVersionError
from headrace_core.metadata import (
    UNASSIGNED_DIRECTORY,
    BrokerChangeRecord,
    BrokerDrainRecord,
    BrokerEndpoint,
    ClusterRecord,
    ConfigRecord,
    CoordinatorChangeRecord,
    FeatureLevelRecord,
    FeatureRange,
    MetadataImage,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QueuedReassignmentRecord,
    ReassignmentThrottleRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RegisterCoordinatorRecord,
    RemoveTopicRecord,
    ShardRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from headrace_core.metadata.codec import decode_batches, decode_record, encode_decision, encode_record
from headrace_core.metadata.records import (
    AclRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    RemoveAclRecord,
    RemoveDelegationTokenRecord,
    RemoveScramCredentialRecord,
    ScramCredentialRecord,
)
from headrace_core.records import encode_batch

A = b"a" * 16
ONE_OF_EACH: list[MetadataRecord] = [
    ClusterRecord("c", 1),
    RegisterBrokerRecord(1, 7, A, (A, b"b" * 16), (BrokerEndpoint("client", "h", 1),), None),
    BrokerChangeRecord(1, 7, fenced=False),
    BrokerChangeRecord(1, 7, in_controlled_shutdown=True),
    BrokerChangeRecord(1, 7, offline_directories=(A, b"b" * 16)),
    BrokerChangeRecord(1, 7, elections_pending=False),
    TopicRecord("t", A),
    PartitionRecord(A, 0, (1, 2), (1,), 1, 3, 4),
    PartitionRecord(A, 1, (1, 2), (1,), 1, 3, 4, (A, bytes(16))),
    PartitionChangeRecord(A, 0, 5, leader=-1, leader_epoch=9),
    PartitionChangeRecord(A, 0, 6, directories=(bytes(16), A)),
    PartitionRecord(A, 2, (1, 2, 3), (1,), 1, 3, 4, elr=(2,), last_known_elr=(3,), adding=(3,), removing=(2,)),
    PartitionChangeRecord(A, 0, 7, elr=(2,), last_known_elr=(), adding=(3,), removing=(2,), recovering=True),
    RemoveTopicRecord(A),
    ConfigRecord(1, "t", "k", None),
    ProducerIdsRecord(1, 7, 5_000),
    FeatureLevelRecord("metadata.version", 2),
    BrokerDrainRecord(1, True),
    UnregisterBrokerRecord(1, 7),
    RegisterControllerRecord(3, A, (FeatureRange("metadata.version", 1, 2),)),
    RegisterCoordinatorRecord(1, 9, A, (BrokerEndpoint("internal", "h", 1),), "rack"),
    CoordinatorChangeRecord(1, 9, 2),
    ShardRecord(A, 0, -1, 4),
    QueuedReassignmentRecord(A, 0, (1, 2), True),
    QueuedReassignmentRecord(A, 0),
    ReassignmentThrottleRecord(1_000_000, (1, 2)),
    AclRecord(A, 2, "orders", 3, "User:alice", "*", 3, 3),
    RemoveAclRecord(A),
    ScramCredentialRecord("alice", 1, b"salt", b"stored", b"server", 4_096),
    RemoveScramCredentialRecord("alice", 1),
    ClientQuotaRecord((("client-id", None), ("user", "alice")), "producer_byte_rate", 1.5),
    ClientQuotaRecord((("user", "alice"),), "producer_byte_rate"),
    DelegationTokenRecord("t", "User:alice", "User:bob", ("User:carol",), 1, 2, 3),
    RemoveDelegationTokenRecord("t"),
]


def test_there_is_one_of_each_kind() -> None:
    assert {type(record) for record in ONE_OF_EACH} == set(typing.get_args(MetadataRecord))


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: type(record).__name__)
def test_each_kind_comes_back_as_it_was(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record)) == record


def test_the_bytes_of_version_1_stay_as_they_are() -> None:
    """All later versions must read old logs. If this test fails, the format has changed, and needs a new framing
    version or tag."""
    assert encode_record(TopicRecord("t", b"\x01" * 16)).hex() == "019404a174c410" + "01" * 16 + "c2"
    assert decode_record(bytes.fromhex("019304a174c410" + "01" * 16)) == TopicRecord("t", b"\x01" * 16)
    assert encode_record(ConfigRecord(1, "t", "k", "v")).hex() == "01950801a174a16ba176"
    assert encode_record(RemoveTopicRecord(b"\x01" * 16)).hex() == "019207c410" + "01" * 16
    old = bytes.fromhex("01950303cd012cc3c0")  # written before directories existed
    assert decode_record(old) == BrokerChangeRecord(3, 300, fenced=True)
    assert encode_record(BrokerChangeRecord(3, 300, fenced=True)).hex() == "01970303cd012cc3c0c0c0"


def test_a_log_of_before_directories_is_replayed() -> None:
    """The test has the arrays as older versions wrote them."""
    endpoint, topic_id, directory = ["client", "h", 1], b"t" * 16, b"d" * 16
    arrays: list[list[object]] = [
        [1, "cluster", 1],
        [2, 1, 1, b"i" * 16, [directory], [endpoint], None],
        [3, 1, 1, False, None],
        [4, "t", topic_id],
        [5, topic_id, 0, [1], [1], 1, 0, 0],
        [6, topic_id, 0, 1, -1, 1, None, None],
    ]
    records = [decode_record(b"\x01" + msgspec.msgpack.encode(array)) for array in arrays]
    image = MetadataImage().apply(records, len(records))
    partition = image.partition(topic_id, 0)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch) == (-1, 1)
    assert partition.directories == (UNASSIGNED_DIRECTORY,)
    assert image.brokers[1].online_directories == (directory,)
    assert image.brokers[1].has_online(partition.directory_of(1)), "nobody has said where it is: it is believed well"


def test_one_decision_is_one_batch_with_its_offsets_and_epoch() -> None:
    data = encode_decision(ONE_OF_EACH, timestamp_ms=5, base_offset=40, epoch=6)
    (batch,) = decode_batches(data)
    assert (batch.base_offset, batch.next_offset, batch.epoch) == (40, 40 + len(ONE_OF_EACH), 6)
    assert list(batch.records) == ONE_OF_EACH


def test_a_control_batch_takes_up_offsets_and_has_no_records() -> None:
    control = encode_batch([(0, b"\0\0\0\2", b"", ())], base_offset=3, leader_epoch=1, control=True)
    data = control + encode_decision([TopicRecord("t", A)], timestamp_ms=0, base_offset=4, epoch=1)
    batches = list(decode_batches(data))
    assert [(b.base_offset, b.next_offset, len(b.records)) for b in batches] == [(3, 4, 0), (4, 5, 1)]


def test_a_reader_skips_fields_that_a_newer_writer_appended() -> None:
    newer = b"\x01" + msgspec.msgpack.encode([4, "t", A, False, "something new", 17])
    assert decode_record(newer) == TopicRecord("t", A)


def test_a_reader_fills_in_fields_that_an_older_writer_did_not_know() -> None:
    older = b"\x01" + msgspec.msgpack.encode([3, 1, 7])
    assert decode_record(older) == BrokerChangeRecord(1, 7)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, CorruptLogError),
        (b"", CorruptLogError),
        (b"\x02\x93", UnsupportedVersionError),
        (b"\x01" + msgspec.msgpack.encode([99, "x"]), UnsupportedVersionError),
        (b"\x01\x93\x04", CorruptLogError),
    ],
)
def test_what_cannot_be_read_is_a_typed_error(value: bytes | None, error: type[HeadraceError]) -> None:
    with pytest.raises(error):
        decode_record(value)


@given(st.binary(max_size=60))
def test_random_bytes_are_a_record_or_a_typed_error(value: bytes) -> None:
    try:
        decode_record(value)
    except (CorruptLogError, UnsupportedVersionError):
        return


def test_a_decision_is_not_skipped_because_a_flipped_bit_calls_it_control() -> None:
    data = bytearray(encode_decision(ONE_OF_EACH, timestamp_ms=5, base_offset=0, epoch=6))
    data[22] ^= 0x20  # the control bit of the attributes
    with pytest.raises(CorruptMessageError, match="CRC"):
        list(decode_batches(bytes(data)))


@given(st.integers(min_value=8), st.integers(0, 255))
def test_a_damaged_batch_is_never_taken_for_another_decision(position: int, value: int) -> None:
    """The CRC covers all bytes after the CRC. Readers in sequence check the base offset and the epoch before the
    CRC."""
    data = bytearray(encode_decision(ONE_OF_EACH, timestamp_ms=5, base_offset=0, epoch=6))
    at = 16 + position % (len(data) - 16)
    if data[at] == value:
        return
    data[at] = value
    with pytest.raises((CorruptMessageError, UnsupportedVersionError)):
        list(decode_batches(bytes(data)))
