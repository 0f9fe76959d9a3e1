"""A small batch, damaged in every way at every byte: the result is never a crash, and never a record that was not
written."""

from __future__ import annotations

import struct

import pytest

from headrace_core.errors import CorruptMessageError, HeadraceError, InvalidRecordError
from headrace_core.records import BatchHeader, Compression, DecodeLimits, _compiled, _pure, with_base
from headrace_core.testing.batches import resealed

LIMITS = DecodeLimits(max_decompressed_bytes=1 << 16, max_records=1000, max_headers=100)
TYPED = (CorruptMessageError, InvalidRecordError)

BATCH = _pure.encode_batch(
    [(1_000, b"key", b"value", [("h", b"x"), ("n", None)]), (900, None, b"", None), (2_000_000, b"", None, [])],
    base_offset=5,
    leader_epoch=2,
)
PACKED = {
    codec: _pure.encode_batch([(1, b"k", b"v" * 40, [("h", b"x")])] * 4, compression=codec)
    for codec in Compression
    if codec is not Compression.NONE
}


def _readers(codec):
    return (
        lambda data: codec.decode_batch(data, limits=LIMITS),
        lambda data: list(codec.RecordIterator(data, limits=LIMITS, include_control=True)),
        lambda data: codec.validate_batches(data, limits=LIMITS),
        codec.check_batch,
    )


@pytest.mark.parametrize("batch", [BATCH, *PACKED.values()], ids=["none", *(c.name.lower() for c in PACKED)])
def test_truncated_at_every_byte_it_is_corrupt(codec, batch):
    for cut in range(1, len(batch)):
        for read in _readers(codec):
            with pytest.raises(CorruptMessageError):
                read(batch[:cut])


def test_any_flipped_bit_behind_the_base_is_found(codec):
    for position in range(len(BATCH)):
        for bit in range(8):
            damaged = bytearray(BATCH)
            damaged[position] ^= 1 << bit
            data = bytes(damaged)
            if position < 8 or 12 <= position < 16:  # base offset and leader epoch: the CRC does not cover them
                try:
                    header = codec.check_batch(data)
                except CorruptMessageError:
                    continue
                assert data == with_base(BATCH, 0, header.base_offset, header.leader_epoch) + BATCH[16:]
                continue
            for read in _readers(codec):
                with pytest.raises(CorruptMessageError):
                    read(data)


def _outcome(act):
    """The result of an action, or the kind of its error, in a form that is equal for both codecs."""
    try:
        result = act()
    except HeadraceError as error:
        return type(error)
    if type(result) is list:
        return [item if isinstance(item, BatchHeader) else item._fields() for item in result]
    return result


def _assert_codecs_agree(data: bytes) -> None:
    for one, other in zip(_readers(_pure), _readers(_compiled), strict=True):
        expected, found = _outcome(lambda read=one: read(data)), _outcome(lambda read=other: read(data))
        assert expected == found, data.hex()


@pytest.mark.parametrize("batch", [BATCH, *PACKED.values()], ids=["none", *(c.name.lower() for c in PACKED)])
def test_damage_under_a_right_crc_meets_the_structural_checks_and_both_codecs_agree(batch):
    interesting = (0x00, 0x01, 0x7F, 0x80, 0xFF)
    for position in range(16, len(batch)):
        for value in {*interesting, *(batch[position] ^ (1 << bit) for bit in range(8))}:
            damaged = bytearray(batch)
            damaged[position] = value
            _assert_codecs_agree(resealed(damaged))


def test_cut_short_under_a_right_crc_the_records_are_missed():
    for cut in range(61, len(BATCH)):
        data = resealed(BATCH[:cut])
        _assert_codecs_agree(data)
        for codec in (_pure, _compiled):
            with pytest.raises(InvalidRecordError):
                codec.validate_batches(data)


def test_bytes_inserted_or_removed_under_a_right_crc_are_noticed():
    for position in range(61, len(BATCH)):
        for data in (
            resealed(BATCH[:position] + BATCH[position + 1 :]),
            resealed(BATCH[:position] + b"\0" + BATCH[position:]),
            resealed(BATCH[:position] + b"\xff\xff\xff\xff\x0f" + BATCH[position + 1 :]),
        ):
            _assert_codecs_agree(data)
            for codec in (_pure, _compiled):
                with pytest.raises(TYPED):
                    codec.validate_batches(data)


def test_header_numbers_at_their_extremes_are_typed_errors_or_harmless():
    ints, longs = (8, 12, 23, 53, 57), (0, 27, 35, 43)
    for position, kind in [(21, "h"), *((at, "i") for at in ints), *((at, "q") for at in longs)]:
        bits = {"q": 63, "i": 31, "h": 15}[kind]
        for value in (0, 1, -1, 2**bits - 1, -(2**bits), 2 ** (bits - 1)):
            damaged = bytearray(BATCH)
            struct.pack_into(">" + kind, damaged, position, value)
            _assert_codecs_agree(bytes(damaged) if position == 8 else resealed(damaged))


@pytest.mark.parametrize("start_offset", [0, 6])
def test_no_flipped_bit_makes_a_consumer_pass_over_a_batch(codec, start_offset):
    """Control batches and batches below the position are skipped. The fields that identify skipped batches are checked
    first."""
    for position in range(16, len(BATCH)):
        for bit in range(8):
            damaged = bytearray(BATCH)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptMessageError):
                list(codec.RecordIterator(bytes(damaged), limits=LIMITS, start_offset=start_offset))


@pytest.mark.parametrize("start_offset", [0, 6])
@pytest.mark.parametrize("decoder", ["native", "pure"])
def test_no_flipped_bit_makes_an_arrow_reader_pass_over_a_batch(decoder, start_offset):
    from headrace_core.records import _arrow_decode, _arrow_pure

    make = {"native": _arrow_decode, "pure": _arrow_pure}[decoder].Decoder
    for position in range(16, len(BATCH)):
        for bit in range(8):
            damaged = bytearray(BATCH)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptMessageError):
                make(start_offset, 1 << 62, LIMITS, True).add(bytes(damaged), 0, 1 << 30)
