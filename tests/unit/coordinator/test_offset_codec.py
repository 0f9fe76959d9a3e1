"""Offset commits in Kafka's format: bytes written by hand from its schemas, all versions read, damage named."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_coordinator.offsets import codec
from headrace_coordinator.offsets.codec import (
    CommitKey,
    CommittedOffset,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from headrace_coordinator.state_machine import RecordKind, kind_of
from headrace_core.errors import CorruptLogError, InvalidGroupIdError, UnsupportedVersionError
from headrace_core.types import TopicPartition

TOPIC_ID = bytes(range(16))


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text.encode())) + text.encode()


def test_a_key_is_kafkas_byte_by_byte() -> None:
    key = encode_key("grüße", TopicPartition("orders", 7))
    assert key == b"\x00\x01" + _string("grüße") + _string("orders") + b"\x00\x00\x00\x07"
    assert kind_of(key) == RecordKind.OFFSET_COMMIT


def test_keys_of_before_0_8_2_are_read() -> None:
    key = b"\x00\x00" + encode_key("g", TopicPartition("t", 0))[2:]
    assert decode_key(key) == CommitKey("g", TopicPartition("t", 0))


def test_a_value_without_a_topic_id_is_version_3_which_kafka_reads_since_2_1() -> None:
    value = encode_value(CommittedOffset(42, 5, "note", 1_000))
    assert value == b"\x00\x03" + struct.pack(">qi", 42, 5) + _string("note") + struct.pack(">q", 1_000)


def test_a_value_with_a_topic_id_is_version_4_with_one_tagged_field() -> None:
    value = encode_value(CommittedOffset(42, 5, "note", 1_000, None, TOPIC_ID))
    assert value == (
        b"\x00\x04" + struct.pack(">qi", 42, 5) + b"\x05note" + struct.pack(">q", 1_000) + b"\x01\x00\x10" + TOPIC_ID
    )


VERSIONS = {
    0: (struct.pack(">q", 42) + _string("m") + struct.pack(">q", 1_000), CommittedOffset(42, -1, "m", 1_000)),
    1: (
        struct.pack(">q", 42) + _string("m") + struct.pack(">qq", 1_000, 2_000),
        CommittedOffset(42, -1, "m", 1_000, 2_000),
    ),
    2: (struct.pack(">q", 42) + _string("m") + struct.pack(">q", 1_000), CommittedOffset(42, -1, "m", 1_000)),
    3: (struct.pack(">qi", 42, 9) + _string("m") + struct.pack(">q", 1_000), CommittedOffset(42, 9, "m", 1_000)),
    4: (
        struct.pack(">qi", 42, 9) + b"\x02m" + struct.pack(">q", 1_000) + b"\x00",
        CommittedOffset(42, 9, "m", 1_000),
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_a_value_is_read(version: int) -> None:
    body, expected = VERSIONS[version]
    assert decode_value(struct.pack(">h", version) + body) == expected


def test_version_1_without_an_expiry_has_none() -> None:
    value = b"\x00\x01" + struct.pack(">q", 42) + _string("") + struct.pack(">qq", 1_000, -1)
    assert decode_value(value).expire_timestamp_ms is None


def test_tagged_fields_of_a_newer_kafka_are_skipped() -> None:
    body = struct.pack(">qi", 42, 9) + b"\x01" + struct.pack(">q", 1_000)
    value = b"\x00\x04" + body + b"\x03" + b"\x00\x10" + TOPIC_ID + b"\x07\x03abc" + b"\x80\x01\x00"
    assert decode_value(value) == CommittedOffset(42, 9, "", 1_000, None, TOPIC_ID)


def test_a_topic_id_of_zeros_is_none() -> None:
    body = struct.pack(">qi", 42, 9) + b"\x01" + struct.pack(">q", 1_000)
    assert decode_value(b"\x00\x04" + body + b"\x01\x00\x10" + bytes(16)).topic_id is None


def test_a_newer_version_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedVersionError, match="upgrade"):
        decode_value(b"\x00\x05" + bytes(30))


def test_a_group_id_that_no_key_holds_is_refused() -> None:
    with pytest.raises(InvalidGroupIdError, match="32768"):
        encode_key("g" * 32_768, TopicPartition("t", 0))


@pytest.mark.parametrize("topic_id", [None, TOPIC_ID])
def test_every_truncation_and_every_surplus_is_named(topic_id: bytes | None) -> None:
    key = encode_key("group", TopicPartition("topic", 3))
    value = encode_value(CommittedOffset(42, 5, "note", 1_000, None, topic_id))
    for size in range(2, len(key)):
        with pytest.raises(CorruptLogError, match="key of an offset commit"):
            decode_key(key[:size])
    for size in range(len(value)):
        with pytest.raises(CorruptLogError, match="value of an offset commit"):
            decode_value(value[:size])
    for whole, decode in ((key, decode_key), (value, decode_value)):
        with pytest.raises(CorruptLogError, match="follow its last field"):
            decode(whole + b"\x00")  # type: ignore[operator]


def test_text_that_is_no_utf_8_is_damage() -> None:
    with pytest.raises(CorruptLogError, match="UTF-8"):
        decode_key(b"\x00\x01\x00\x01\xff\x00\x01t\x00\x00\x00\x00")


def test_a_varint_without_an_end_and_a_topic_id_of_another_size_are_damage() -> None:
    head = b"\x00\x04" + struct.pack(">qi", 42, 9)
    with pytest.raises(CorruptLogError, match="varint"):
        decode_value(head + b"\xff" * 6 + bytes(20))
    with pytest.raises(CorruptLogError, match="tagged field 0, is damaged: a field at byte 0 of 1 claims 16 bytes"):
        decode_value(head + b"\x01" + struct.pack(">q", 1) + b"\x01\x00\x01x")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
int32s, int64s = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


@given(texts, texts, int32s)
def test_any_key_comes_back(group_id: str, topic: str, partition: int) -> None:
    assert decode_key(encode_key(group_id, TopicPartition(topic, partition))) == (group_id, (topic, partition))


@given(
    st.builds(
        CommittedOffset,
        int64s,
        int32s,
        texts,
        int64s,
        st.none(),
        st.none() | st.binary(min_size=16, max_size=16).filter(any),
    )
)
def test_any_value_comes_back(committed: CommittedOffset) -> None:
    assert decode_value(encode_value(committed)) == committed


@given(st.data())
def test_what_is_read_quickly_is_what_is_read_field_by_field(data: st.DataObject) -> None:
    """Both decoders also agree on bytes with damage in one place. Both decoders refuse the damaged bytes, or both read
    the same value."""
    committed = CommittedOffset(5, 2, data.draw(texts), 7, None, data.draw(st.none() | st.just(TOPIC_ID)))
    key = encode_key(data.draw(texts), TopicPartition(data.draw(texts), 3))
    for whole, decode, quick in (
        (encode_value(committed), codec.decode_value, "_plain_value"),
        (key, codec.decode_key, "_plain_key"),
    ):
        damaged = bytearray(whole)
        damaged[data.draw(st.integers(2, len(whole) - 1))] ^= data.draw(st.integers(0, 255))
        outcomes = []
        for is_quick in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                if not is_quick:
                    patch.setattr(codec, quick, lambda _: None)
                try:
                    outcomes.append(decode(bytes(damaged)))
                except CorruptLogError:
                    outcomes.append(None)
        assert outcomes[0] == outcomes[1]


def test_all_that_we_write_is_read_quickly() -> None:
    """If the fast decoder refused Headrace's own values, it would be useless."""
    for topic_id in (None, TOPIC_ID):
        assert codec._plain_value(encode_value(CommittedOffset(1, 2, "m" * 126, 3, None, topic_id))) is not None
        assert codec._plain_value(encode_value(CommittedOffset(1, 2, "", 3, None, topic_id))) is not None
    assert codec._plain_key(encode_key("grüße", TopicPartition("t", 0))) is not None


@given(st.binary(max_size=80))
def test_any_bytes_are_a_value_or_a_typed_error(data: bytes) -> None:
    try:
        committed = decode_value(data)
    except (CorruptLogError, UnsupportedVersionError):
        return
    assert decode_value(data) == committed
