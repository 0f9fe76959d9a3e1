"""The codecs: formats that other clients read, limits against decompression bombs, and the error for a missing
package."""

from __future__ import annotations

import builtins
import random
import struct
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard

from headrace_core.errors import InvalidArgumentError, InvalidRecordError, MissingDependencyError
from headrace_core.records import Compression
from headrace_core.records import compression as codecs

PACKED = [codec for codec in Compression if codec is not Compression.NONE]
MIB = 1 << 20


def _samples(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [b"", b"x", b"ab" * 40_000, rng.randbytes(100_000), bytes(3 * MIB)]


@pytest.mark.parametrize("codec", PACKED)
def test_what_is_compressed_comes_back(codec, seed):
    for data in _samples(seed):
        packed = codecs.compress(codec, memoryview(data))
        assert codecs.decompress(codec, packed, len(data)) == data
        assert codecs.decompress(codec, memoryview(bytes(packed)), 4 * MIB) == data


@pytest.mark.parametrize("codec", PACKED)
def test_the_limit_is_the_last_size_that_is_accepted(codec):
    data = bytes(300_000)
    packed = codecs.compress(codec, data)
    assert len(codecs.decompress(codec, packed, 300_000)) == 300_000
    with pytest.raises(InvalidRecordError, match="more than 299999 bytes"):
        codecs.decompress(codec, packed, 299_999)


def _zstd_stream(data: bytes) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()  # does not know the size beforehand, so the frame has no size
    return packer.compress(data) + packer.flush()


def _lz4_stream(data: bytes) -> bytes:
    return lz4.frame.compress(data, store_size=False, block_linked=True)


def _xerial(*blocks: bytes) -> bytes:
    header = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    return header + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


_BOMB_BYTES = 256 * MIB
_ZEROS = bytes(16 * MIB)


def _bomb(codec: Compression) -> list[bytes]:
    """Small inputs that decompress to 256 MiB of zeros, or claim this size."""
    if codec is Compression.GZIP:
        packer = zlib.compressobj(9, wbits=31)
        return [b"".join(packer.compress(_ZEROS) for _ in range(16)) + packer.flush()]
    if codec is Compression.LZ4:
        one = lz4.frame.compress(_ZEROS, store_size=False)
        lying = bytearray(lz4.frame.compress(b"x" * 100, store_size=True))
        struct.pack_into("<Q", lying, 6, 2**60)
        return [one * 16, bytes(lying)]
    if codec is Compression.ZSTD:
        packer = zstandard.ZstdCompressor().compressobj()
        stream = b"".join(packer.compress(_ZEROS) for _ in range(16)) + packer.flush()
        return [stream, zstandard.ZstdCompressor().compress(_ZEROS) * 16]
    block = bytes(cramjam.snappy.compress_raw(_ZEROS))
    claim = b"\xff\xff\xff\xff\x0f" + b"\0" * 20  # raw snappy that claims 4 GiB
    return [_xerial(*[block] * 16), claim, _xerial(claim), b"\x80\x80\x80\x04\0\0"]


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_is_refused_before_it_takes_memory(codec):
    bombs = _bomb(codec)
    for bomb in bombs:
        assert len(bomb) < 14 * MIB
        tracemalloc.start()
        try:
            with pytest.raises(InvalidRecordError):
                codecs.decompress(codec, bomb, 8 * MIB)
            assert tracemalloc.get_traced_memory()[1] < 40 * MIB
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("codec", PACKED)
def test_damaged_blocks_are_typed_errors(codec, rng):
    data = bytes(range(256)) * 20
    packed = bytes(codecs.compress(codec, data))
    for cut in range(0, len(packed), 7):
        try:
            assert len(codecs.decompress(codec, packed[:cut], MIB)) <= len(data)
        except InvalidRecordError:
            continue
    for _ in range(300):
        damaged = bytearray(packed)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        try:
            codecs.decompress(codec, bytes(damaged), MIB)
        except InvalidRecordError:
            continue
    with pytest.raises(InvalidRecordError):
        codecs.decompress(codec, b"no such block at all", MIB)


def test_concatenated_members_and_frames_are_one_block():
    one, two = b"a" * 1000, b"b" * 70_000
    for codec in (Compression.GZIP, Compression.LZ4, Compression.ZSTD, Compression.SNAPPY):
        packed = bytes(codecs.compress(codec, one)) + bytes(codecs.compress(codec, two))
        assert codecs.decompress(codec, packed, MIB) == one + two, codec


def test_streams_that_do_not_tell_their_size_are_read():
    data = random.Random(1).randbytes(200_000) + bytes(3 * MIB)
    assert codecs.decompress(Compression.ZSTD, _zstd_stream(data), len(data)) == data
    assert codecs.decompress(Compression.LZ4, _lz4_stream(data), len(data)) == data


def test_snappy_is_read_with_and_without_the_xerial_frame():
    raw = bytes(cramjam.snappy.compress_raw(b"snappy" * 100))
    assert codecs.decompress(Compression.SNAPPY, raw, MIB) == b"snappy" * 100
    assert codecs.decompress(Compression.SNAPPY, _xerial(raw, raw), MIB) == b"snappy" * 200
    little_endian = b"\x82SNAPPY\0" + struct.pack("<ii", 1, 1) + struct.pack(">i", len(raw)) + raw
    assert codecs.decompress(Compression.SNAPPY, little_endian, MIB) == b"snappy" * 100


def test_snappy_is_written_in_xerial_blocks_of_32_kib():
    packed = bytes(codecs.compress(Compression.SNAPPY, bytes(80_000)))
    assert packed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    sizes, position = [], 16
    while position < len(packed):
        (length,) = struct.unpack_from(">i", packed, position)
        sizes.append(cramjam.snappy.decompress_raw_len(packed[position + 4 : position + 4 + length]))
        position += 4 + length
    assert sizes == [32_768, 32_768, 14_464]


def test_lz4_blocks_are_independent_since_kafka_reads_no_others():
    packed = bytes(codecs.compress(Compression.LZ4, bytes(300_000)))
    info = lz4.frame.get_frame_info(packed)
    assert not info["block_linked"]
    assert info["block_size"] == 64 * 1024


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (Compression.GZIP, 10),
        (Compression.LZ4, 0),
        (Compression.LZ4, 18),
        (Compression.ZSTD, 23),
        (Compression.NONE, 1),
    ],
)
def test_levels_that_do_not_exist_are_refused(codec, level):
    with pytest.raises(InvalidArgumentError, match=codec.name.lower()):
        codecs.compress(codec, b"x", level)


@pytest.mark.parametrize(
    ("codec", "levels"), [(Compression.GZIP, (1, 9)), (Compression.LZ4, (1, 9, 17)), (Compression.ZSTD, (-5, 19))]
)
def test_levels_work(codec, levels):
    for level in levels:
        assert codecs.decompress(codec, codecs.compress(codec, bytes(10_000), level), MIB) == bytes(10_000)


@pytest.mark.parametrize(
    ("codec", "package"), [(Compression.SNAPPY, "cramjam"), (Compression.ZSTD, "zstandard"), (Compression.LZ4, "lz4")]
)
def test_a_missing_package_is_named_with_its_cure(codec, package, monkeypatch):
    genuine = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return genuine(name, *args, **kwargs)

    monkeypatch.setattr(codecs, "_loaded", {})
    monkeypatch.setattr(codecs.importlib, "import_module", refuse)
    for act in (lambda: codecs.require(codec), lambda: codecs.compress(codec, b"x")):
        with pytest.raises(MissingDependencyError, match=f"pip install .*{package}"):
            act()
    codecs.require(Compression.GZIP)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
def test_decompressing_takes_the_memory_of_the_result_once(codec):
    """Parts that were joined at the end took it twice: two bombs of 127 MiB took a broker to 530 MiB."""
    packed = codecs.compress(codec, bytes(32 * MIB))
    tracemalloc.start()
    try:
        assert len(codecs.decompress(codec, packed, 64 * MIB)) == 32 * MIB
        assert tracemalloc.get_traced_memory()[1] < 44 * MIB
    finally:
        tracemalloc.stop()


def test_names_are_parsed_as_kafka_writes_them():
    assert [Compression.parse(name) for name in ("none", "gzip", "Snappy", " lz4 ", "ZSTD")] == list(Compression)
    with pytest.raises(InvalidArgumentError, match="none, gzip, snappy, lz4, zstd"):
        Compression.parse("brotli")
