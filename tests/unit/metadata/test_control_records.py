"""Control records have exactly Kafka's bytes. In tests/integration/interop, Kafka's own tool reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.errors import CorruptLogError, CorruptMessageError, UnsupportedVersionError
from headrace_core.metadata.control_records import (
    LeaderChange,
    SnapshotHeader,
    SnapshotVoter,
    decode_control_batch,
    encode_control_batch,
    kraft_version,
    kraft_voters,
    leader_change,
    parse_kraft_version,
    parse_kraft_voters,
    parse_leader_change,
    parse_snapshot_header,
    snapshot_footer,
    snapshot_header,
)
from headrace_core.records import encode_batch
from headrace_core.types import join_address, split_address

A, B = b"a" * 16, b"b" * 16
node_ids = st.integers(0, 2**31 - 1)
directories = st.binary(min_size=16, max_size=16)
hosts = st.one_of(st.from_regex(r"[a-z0-9.-]{1,60}", fullmatch=True), st.sampled_from(["::1", "fe80::1"]))
addresses = st.one_of(st.just(""), st.builds(join_address, hosts, st.integers(0, 65_535)))
voters = st.lists(st.builds(SnapshotVoter, node_ids, directories, addresses), max_size=200)


def test_their_bytes_are_those_that_kafka_reads() -> None:
    assert kraft_voters([SnapshotVoter(1, A, "h:9")]).value.hex() == (
        "0000" + "02" + "00000001" + "61" * 16 + "02" + "09" + b"internal".hex() + "0268" + "0009" + "00"
        "00000001" + "00" + "00" + "00"
    )
    assert kraft_version().value.hex() == "0000000100"
    assert snapshot_footer().value.hex() == "000000"
    assert (
        snapshot_header(SnapshotHeader(7, 5)).value.hex() == "0000" + "0000000000000005" + "01904e08" + "0" * 15 + "7"
    )
    tagged = "00000001" + "01904e10" + "61" * 16
    assert leader_change(1, [(1, A)]).value.hex() == "0000" + "00000001" + "02" + tagged + "02" + tagged + "00"
    assert parse_leader_change(bytes.fromhex("0000" + "00000001" + "0200000001000200000001" + "0000")) == LeaderChange(
        1, ((1, bytes(16)),)
    ), "Kafka's own, and those of before"
    inline = "00000001" + "61" * 16 + "00"
    assert parse_leader_change(bytes.fromhex("0001" + "00000001" + "02" + inline + "02" + inline + "00")) == (
        1,
        ((1, A),),
    )


@given(voters)
def test_voters_come_back_as_they_were(some: list[SnapshotVoter]) -> None:
    assert parse_kraft_voters(kraft_voters(some).value) == tuple(some)
    keys = [(each.node_id, each.directory_id) for each in some]
    assert parse_leader_change(leader_change(3, keys).value) == LeaderChange(3, tuple(keys))


@given(st.integers(0, 2**63 - 1), st.integers(-1, 2**63 - 1))
def test_a_header_comes_back_as_it_was(offset: int, timestamp_ms: int) -> None:
    header = SnapshotHeader(offset, timestamp_ms)
    assert parse_snapshot_header(snapshot_header(header).value) == header


def test_tagged_fields_of_a_later_version_are_skipped() -> None:
    value = kraft_voters([SnapshotVoter(1, A, "h:9")]).value
    assert parse_kraft_voters(value[:-1] + b"\x01\x05\x03abc") == (SnapshotVoter(1, A, "h:9"),)


@given(st.binary(max_size=80))
def test_anything_else_is_a_corrupt_log(value: bytes) -> None:
    for parse in (parse_kraft_voters, parse_leader_change, parse_snapshot_header, parse_kraft_version):
        try:
            parse(value)
        except (CorruptLogError, UnsupportedVersionError):
            continue


def test_a_value_that_ends_too_early_says_so() -> None:
    for value, parse in (
        (kraft_voters([SnapshotVoter(1, A, "h:9"), SnapshotVoter(2, B)]).value, parse_kraft_voters),
        (leader_change(1, [(1, A), (2, B)]).value[:-1], parse_leader_change),
        (snapshot_header(SnapshotHeader(7, 5)).value, parse_snapshot_header),
    ):
        for size in range(len(value) - 40):
            with pytest.raises(CorruptLogError, match="cannot be read"):
                parse(value[:size])


def test_a_batch_of_them_comes_back_and_says_what_it_is() -> None:
    records = [snapshot_header(SnapshotHeader(7, 5)), kraft_version(), snapshot_footer()]
    data = encode_control_batch(records, base_offset=4, epoch=2, timestamp_ms=9)
    assert decode_control_batch(b"xx" + data, 2) == records
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(CorruptMessageError):
        decode_control_batch(damaged)


@pytest.mark.parametrize("key", [None, b"\0\0", b"\0\0\0"])
def test_a_control_record_without_a_type_is_damage(key: bytes | None) -> None:
    with pytest.raises(CorruptLogError, match="has no type"):
        decode_control_batch(encode_batch([(0, key, b"v", ())], control=True))


def test_a_control_record_of_an_unknown_type_asks_for_an_upgrade() -> None:
    with pytest.raises(UnsupportedVersionError, match="type 99"):
        decode_control_batch(encode_batch([(0, b"\0\0\0\x63", b"v", ())], control=True))


@pytest.mark.parametrize("address", ["", "host", ":9", "host:", "host:x", "host:65536", "host:-1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_address(address)
