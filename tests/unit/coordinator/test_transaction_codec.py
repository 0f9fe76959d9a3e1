"""Transactions in Kafka's format: bytes of Kafka 4.3's generated code, all versions read, damage named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_coordinator.state_machine import kind_of
from headrace_coordinator.transaction.codec import TRANSACTION_KIND, decode_key, decode_value, encode_key, encode_value
from headrace_coordinator.transaction.state import Transaction, TransactionState
from headrace_core.errors import CorruptLogError, InvalidRequestError, UnsupportedVersionError
from headrace_core.types import TopicPartition

KAFKAS_KEY = "0000000a7061796d656e74732d37"
#: The bytes of the same transaction by record version and state, from Kafka's MessageUtil.toVersionPrefixedByteBuffer.
KAFKAS_EMPTY = {
    0: "000000000000000003e800050000ea6000ffffffff0000018bcfe56800ffffffffffffffff",
    1: "000100000000000003e800050000ea6000000000018bcfe56800ffffffffffffffff00",
}
KAFKAS_ONGOING = {
    0: "000000000000000003e800050000ea60010000000200066f726465727300000002000000000000000300125f5f636f6e73756d65725f6f6"
    "6667365747300000001000000290000018bcfe568000000018bcfe56801",
    1: "000100000000000003e800050000ea600103076f726465727303000000000000000300135f5f636f6e73756d65725f6f66667365747302"
    "00000029000000018bcfe568000000018bcfe5680100",
}
KAFKAS_TAGGED = KAFKAS_ONGOING[1][:-2] + "04000800000000000003e7010800000000000007d00202000203020007"

EMPTY = Transaction(1000, 5, 60_000, TransactionState.EMPTY, frozenset(), 1_700_000_000_000)
ONGOING = EMPTY._replace(
    state=TransactionState.ONGOING,
    partitions=frozenset(
        {TopicPartition("orders", 0), TopicPartition("orders", 3), TopicPartition("__consumer_offsets", 41)}
    ),
    started_ms=1_700_000_000_001,
)


def test_a_key_is_kafkas_byte_by_byte() -> None:
    key = encode_key("payments-7")
    assert key.hex() == KAFKAS_KEY
    assert kind_of(key) == TRANSACTION_KIND
    assert decode_key(key) == "payments-7"


def test_an_id_too_long_for_a_key_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="32768 bytes, at most 32767 are allowed"):
        encode_key("é" * 16_384)


@pytest.mark.parametrize("version", [0, 1])
def test_what_kafka_wrote_is_read(version: int) -> None:
    assert decode_value(bytes.fromhex(KAFKAS_EMPTY[version])) == EMPTY
    assert decode_value(bytes.fromhex(KAFKAS_ONGOING[version])) == ONGOING


def test_what_we_write_is_kafkas_version_1() -> None:
    assert encode_value(EMPTY).hex() == KAFKAS_EMPTY[1]
    # Topics in their order; Kafka writes them in the order of a hash table.
    swapped = decode_value(encode_value(ONGOING))
    assert swapped == ONGOING
    assert len(encode_value(ONGOING).hex()) == len(KAFKAS_ONGOING[1])


def test_kafkas_tagged_fields_are_read() -> None:
    found = decode_value(bytes.fromhex(KAFKAS_TAGGED))
    assert found == ONGOING._replace(version=2, previous_producer_id=999, next_producer_id=2000, next_producer_epoch=7)


def test_the_last_epoch_that_kafka_leaves_out_is_the_one_before() -> None:
    done = ONGOING._replace(state=TransactionState.COMPLETE_COMMIT, partitions=frozenset(), version=2)
    ours = encode_value(done)
    head, tags = ours[: -len(b"\x02" + b"\x02\x02\x00\x02" + b"\xe9\x07\x02\xff\xff")], ours[-10:]
    assert tags == b"\x02" + b"\x02\x02\x00\x02" + b"\xe9\x07\x02\xff\xff"
    assert decode_value(ours).last_producer_epoch == -1, "we said that it has none"
    kafkas = head + b"\x01\x02\x02\x00\x02"
    assert decode_value(kafkas).last_producer_epoch == 4
    new_id = kafkas[:10] + b"\x00\x00" + kafkas[12:]
    assert decode_value(new_id).producer_epoch == 0
    assert decode_value(new_id).last_producer_epoch == 32_766


def test_tags_of_a_later_version_are_skipped() -> None:
    later = encode_value(EMPTY)[:-1] + b"\x01" + b"\xd0\x0f\x03abc"
    assert decode_value(later) == EMPTY


def test_damage_is_named() -> None:
    whole = encode_value(ONGOING)
    for size in range(2, len(whole)):
        with pytest.raises(CorruptLogError, match="the value of a transaction"):
            decode_value(whole[:size])
    with pytest.raises(CorruptLogError, match="follow its last field"):
        decode_value(whole + b"\x00")
    with pytest.raises(CorruptLogError, match="the status 9 is unknown"):
        decode_value(whole[:16] + b"\x09" + whole[17:])
    with pytest.raises(UnsupportedVersionError, match="has version 2"):
        decode_value(b"\x00\x02" + whole[2:])
    with pytest.raises(CorruptLogError, match="the key of a transaction"):
        decode_key(b"\x00\x00\x00\x05abc")


int64s, epochs = st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1)
partitions = st.builds(
    TopicPartition, st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.integers(0, 2**31 - 1)
)


@given(
    st.builds(
        Transaction,
        int64s,
        epochs,
        st.integers(0, 2**31 - 1),
        st.sampled_from(TransactionState),
        st.frozensets(partitions, max_size=8),
        int64s,
        int64s,
        st.just(2),
        int64s,
        int64s,
        epochs,
        epochs,
        st.booleans(),
        st.integers(0, 2**63 - 1),
    )
)
def test_every_transaction_comes_back(transaction: Transaction) -> None:
    if transaction.state is TransactionState.EMPTY:
        transaction = transaction._replace(partitions=frozenset())
    assert decode_value(encode_value(transaction)) == transaction
