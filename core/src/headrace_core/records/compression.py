"""The codecs of record batches, in the framings of Kafka's clients, with bounded decompression.

``decompress`` produces output in steps, and raises an error at the step that would exceed its limit. ``decompress``
therefore never holds more bytes than its limit plus the codec's window. Python includes zlib, and the core requires
lz4; cramjam (snappy) and zstandard are imported on first use.
"""

from __future__ import annotations

import importlib
import struct
import zlib
from collections.abc import Callable
from typing import Any

from ..errors import InvalidArgumentError, InvalidRecordError, MissingDependencyError
from .types import Buffer, Compression

_INT = struct.Struct(">i")
#: Bytes of the first output buffer when the decompressed size is unknown; each further buffer has twice the size, up to
#: _STEP_BYTES_MAX.
_STEP_BYTES, _STEP_BYTES_MAX = 64 * 1024, 4 * 1024 * 1024

# Header of Xerial's snappy framing: magic, version 1, compatible with version 1. After the header, the length of each
# compressed block precedes the block.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_XERIAL_HEADER_AS_LENGTH = _INT.unpack(_XERIAL_MAGIC[:4])[0]
#: Largest ratio of snappy's output to its input: a copy element of three bytes makes at most 64 bytes of output.
_SNAPPY_GROWTH_MAX = 22

# The lz4 frame format: magic, flags, block size, content size if flagged, header checksum, then blocks up to an end
# mark. A block is its size (whose upper bit marks stored bytes), its bytes, and a checksum if flagged.
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HEADER_BYTES_MIN = 7
_LZ4_INDEPENDENT, _LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM, _LZ4_DICTIONARY = 32, 16, 8, 4, 1
_LZ4_BLOCK = struct.Struct("<I")
_LZ4_BLOCK_BYTES = 0x7FFFFFFF

#: Kafka's compression levels of each codec (KIP-390): lowest, highest, default. For lz4, the default level 9 selects
#: the fast compressor; every other level selects the high-compression compressor.
LEVELS: dict[Compression, tuple[int, int, int]] = {
    Compression.GZIP: (1, 9, 6),
    Compression.LZ4: (1, 17, 9),
    Compression.ZSTD: (-131072, 22, 3),
}


def check_level(compression: Compression, level: int | None) -> None:
    """Raise InvalidArgumentError unless ``level`` is None or valid for the codec."""
    if level is None:
        return
    if compression not in LEVELS:
        raise InvalidArgumentError(f"compression {compression.name.lower()} has no levels; remove level {level}")
    low, high, _ = LEVELS[compression]
    if not low <= level <= high:
        raise InvalidArgumentError(f"level {level} of compression {compression.name.lower()} is not in {low}..{high}")


def require(compression: Compression) -> None:
    """Raise MissingDependencyError if the codec's package is not installed; called before the first batch is
    compressed."""
    if compression in _PACKAGES:
        _package(*_PACKAGES[compression])


def compress(compression: Compression, data: Buffer, level: int | None = None) -> Buffer:
    """Compress ``data`` to one block of the codec; returns ``data`` itself for NONE. ``level`` has the meaning of
    Kafka's compression.*.level."""
    check_level(compression, level)
    return _COMPRESS[compression](data, level)


def decompress(compression: Compression, data: Buffer, max_bytes: int) -> Buffer:
    """Decompress the records of a batch; InvalidRecordError when the block is damaged or exceeds ``max_bytes``."""
    return _DECOMPRESS[compression](data, max_bytes)


def check_lz4_frame(data: Buffer) -> None:
    """Raise InvalidRecordError if Kafka's Java clients cannot read an lz4 block that ``decompress`` can read: a block
    other than one frame of independent blocks. A broker checks the batches of producers, because one such batch would
    stop each Java consumer of its partition."""
    view = memoryview(data)
    if view[:4] != _LZ4_MAGIC or len(view) < _LZ4_HEADER_BYTES_MIN:
        raise _unreadable("does not begin with an lz4 frame")
    flags = view[4]
    if not flags & _LZ4_INDEPENDENT:
        raise _unreadable("has linked blocks")
    if flags & _LZ4_DICTIONARY:
        raise _unreadable("needs a dictionary")
    position = _LZ4_HEADER_BYTES_MIN + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    trailer_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    while position + 4 <= len(view):
        size = _LZ4_BLOCK.unpack_from(view, position)[0] & _LZ4_BLOCK_BYTES
        position += 4
        if not size:  # the end mark
            break
        position += size + trailer_bytes
    if position + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0) != len(view):
        raise _unreadable("has more than one lz4 frame")


def _unreadable(what: str) -> InvalidRecordError:
    return InvalidRecordError(
        f"an lz4 block {what}: Kafka's clients read only one frame of independent blocks; set the producer's lz4 "
        "library to independent blocks, or use another compression.type"
    )


_PACKAGES = {
    Compression.SNAPPY: ("cramjam", "snappy"),
    Compression.LZ4: ("lz4.frame", "lz4"),
    Compression.ZSTD: ("zstandard", "zstd"),
}
_loaded: dict[str, Any] = {}


def _package(module: str, extra: str) -> Any:
    found = _loaded.get(module)
    if found is None:
        try:
            found = _loaded[module] = importlib.import_module(module)
        except ImportError as error:
            package = module.partition(".")[0]
            raise MissingDependencyError(
                f"compression {extra} needs the package {package}, which is not installed: "
                f"pip install 'headrace-core[{extra}]' (or pip install {package})"
            ) from error
    return found


def _too_large(codec: str, max_bytes: int) -> InvalidRecordError:
    return InvalidRecordError(f"a {codec} block decompresses to more than {max_bytes} bytes, the limit for one batch")


def _damaged(codec: str, why: object) -> InvalidRecordError:
    return InvalidRecordError(f"a {codec} block does not decompress: {why}")


def _in_steps(codec: str, read: Callable[[int], bytes], first_bytes: int, max_bytes: int) -> Buffer:
    """Read all output of ``read(size)``, at most ``max_bytes``, in steps of doubling size. The output is appended to
    one buffer, because joining its parts at the end would need twice the memory."""
    first = read(max(min(first_bytes, max_bytes + 1), 1))
    if len(first) > max_bytes:
        raise _too_large(codec, max_bytes)
    part = read(max(min(_STEP_BYTES, max_bytes + 1 - len(first)), 1)) if first else b""
    if not part:
        return first
    out = bytearray(first)
    while part:
        out += part
        if len(out) > max_bytes:
            raise _too_large(codec, max_bytes)
        del part
        part = read(max(min(len(out), _STEP_BYTES_MAX, max_bytes + 1 - len(out)), 1))
    return out


def _none(data: Buffer, level: int | None) -> Buffer:
    return data


def _none_back(data: Buffer, max_bytes: int) -> Buffer:
    return data


def _gzip(data: Buffer, level: int | None) -> Buffer:
    packer = zlib.compressobj(-1 if level is None else level, wbits=31)
    return packer.compress(data) + packer.flush()


def _gzip_back(data: Buffer, max_bytes: int) -> Buffer:
    unpacker = zlib.decompressobj(wbits=31)
    rest = bytes(data)

    def read(size: int) -> bytes:
        nonlocal unpacker, rest
        while True:
            if unpacker.eof:
                rest = unpacker.unused_data
                if not rest:
                    return b""
                unpacker = zlib.decompressobj(wbits=31)  # several gzip members may follow each other
            part = unpacker.decompress(rest, size)
            rest = unpacker.unconsumed_tail
            if part:
                return part
            if not unpacker.eof:
                raise _damaged("gzip", "the block ends too early")

    try:
        return _in_steps("gzip", read, max(_STEP_BYTES, 4 * len(data)), max_bytes)
    except zlib.error as error:
        raise _damaged("gzip", error) from None


def _snappy(data: Buffer, level: int | None) -> Buffer:
    raw = _package("cramjam", "snappy").snappy
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = raw.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES])
        out += _INT.pack(len(block))
        out += block
    return out


def _snappy_back(data: Buffer, max_bytes: int) -> Buffer:
    view = memoryview(data)
    if view[:8] != _XERIAL_MAGIC:
        return _snappy_block(view, max_bytes, max_bytes)
    if len(view) < len(_XERIAL_HEADER):
        raise _damaged("snappy", "the block's header is cut short")
    # Ignore the versions in the Xerial header: some clients wrote the fields "version" and "compatible version"
    # little-endian.
    out = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(view):
        if len(view) - position < 4:
            raise _damaged("snappy", f"the block length at byte {position} is cut short")
        length = _INT.unpack_from(view, position)[0]
        if length == _XERIAL_HEADER_AS_LENGTH and view[position : position + 8] == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)  # several Xerial streams may follow each other
            continue
        position += 4
        if not 0 <= length <= len(view) - position:
            raise _damaged(
                "snappy", f"the block at byte {position} claims {length} bytes, but only {len(view) - position} follow"
            )
        out += _snappy_block(view[position : position + length], max_bytes - len(out), max_bytes)
        position += length
    return out


def _snappy_block(block: memoryview, room_bytes: int, max_bytes: int) -> Buffer:
    raw = _package("cramjam", "snappy").snappy
    try:
        size = raw.decompress_raw_len(block)
        if size > _SNAPPY_GROWTH_MAX * len(block) + 64:
            raise _damaged("snappy", f"{len(block)} compressed bytes cannot expand to the {size} bytes that they claim")
        if size > room_bytes:
            raise _too_large("snappy", max_bytes)
        return bytes(raw.decompress_raw(block))
    except InvalidRecordError:
        raise
    except Exception as error:  # noqa: BLE001 - cramjam.DecompressionError derives from Exception, and nothing narrower
        raise _damaged("snappy", error) from None


def _lz4(data: Buffer, level: int | None) -> Buffer:
    frame = _package("lz4.frame", "lz4")
    # Kafka reads only lz4 frames with independent blocks.
    packed: bytes = frame.compress(
        data,
        compression_level=0 if level is None or level == LEVELS[Compression.LZ4][2] else max(level, 3),
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=True,
    )
    return packed


def _lz4_back(data: Buffer, max_bytes: int) -> Buffer:
    frame = _package("lz4.frame", "lz4")
    try:
        size = frame.get_frame_info(data)["content_size"]
        if size > max_bytes:
            raise _too_large("lz4", max_bytes)
        unpacker = frame.LZ4FrameDecompressor()
        rest: Buffer = data

        def read(limit: int) -> bytes:
            nonlocal unpacker, rest
            while True:
                if unpacker.eof:
                    rest = unpacker.unused_data or b""
                    if not rest:
                        return b""
                    unpacker = frame.LZ4FrameDecompressor()  # several LZ4 frames may follow each other
                part: bytes = unpacker.decompress(rest, limit)
                rest = b""
                if part:
                    return part
                if not unpacker.eof and unpacker.needs_input:
                    raise _damaged("lz4", "the block ends too early")

        return _in_steps("lz4", read, min(size or max(_STEP_BYTES, 4 * len(data)), max_bytes + 1), max_bytes)
    except (RuntimeError, EOFError, ValueError) as error:
        raise _damaged("lz4", error) from None


def _zstd(data: Buffer, level: int | None) -> Buffer:
    zstandard = _package("zstandard", "zstd")
    packed: bytes = zstandard.ZstdCompressor(level=LEVELS[Compression.ZSTD][2] if level is None else level).compress(
        data
    )
    return packed


def _zstd_back(data: Buffer, max_bytes: int) -> Buffer:
    zstandard = _package("zstandard", "zstd")
    try:
        size = zstandard.get_frame_parameters(data).content_size
        known = size not in (zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR)
        if known and size > max_bytes:
            raise _too_large("zstd", max_bytes)
        reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        first = size if known and size else max(_STEP_BYTES, 4 * len(data))
        return _in_steps("zstd", reader.read, min(first, max_bytes + 1), max_bytes)
    except zstandard.ZstdError as error:
        raise _damaged("zstd", error) from None


_COMPRESS: dict[Compression, Callable[[Buffer, int | None], Buffer]] = {
    Compression.NONE: _none,
    Compression.GZIP: _gzip,
    Compression.SNAPPY: _snappy,
    Compression.LZ4: _lz4,
    Compression.ZSTD: _zstd,
}
_DECOMPRESS: dict[Compression, Callable[[Buffer, int], Buffer]] = {
    Compression.NONE: _none_back,
    Compression.GZIP: _gzip_back,
    Compression.SNAPPY: _snappy_back,
    Compression.LZ4: _lz4_back,
    Compression.ZSTD: _zstd_back,
}
