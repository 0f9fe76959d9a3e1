"""Encode finished offsets above the committed offset in the metadata of a commit.

A consumer that handles records concurrently does not finish them in the order of their offsets. The committed offset is
the first unfinished offset. The commit's metadata has a bit for each later offset, so that the next owner of the
partition handles only unfinished records again.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable

PREFIX = "headrace-done:"  #: The metadata of a commit begins with this text if this module has encoded the metadata.
#: Maximum number of offsets, from the committed offset on, for which the metadata has a bit (finished or not). The bits
#: then take 2 KiB, and the metadata 2,747 characters; a coordinator accepts up to 4,096 (offset.metadata.max.bytes).
WINDOW = 16_384


def encode_done(base: int, end: int, unfinished: Iterable[int]) -> str:
    """Encode which offsets from ``base`` up to ``end`` (exclusive) are finished: all offsets except those in
    ``unfinished``. Offsets further than WINDOW from ``base`` are left out. Returns "" if no offset is finished."""
    span = min(end - base, WINDOW)
    if span <= 0:
        return ""
    bits = bytearray(b"\xff" * (span // 8)) + bytes([(1 << span % 8) - 1] if span % 8 else [])
    for offset in unfinished:
        at = offset - base
        if 0 <= at < span:
            bits[at // 8] &= ~(1 << at % 8)
    plain = bytes(bits).rstrip(b"\0")
    if not plain:
        return ""
    packed = zlib.compress(plain, 1)
    kind, data = ("z", packed) if len(packed) < len(plain) else ("b", plain)
    return f"{PREFIX}{kind}{base64.b64encode(data).decode()}"


def decode_done(base: int, metadata: str) -> set[int]:
    """Return the finished offsets in a commit's metadata; an empty set for metadata that ``encode_done`` has not
    written. ``base``: the committed offset."""
    if not metadata.startswith(PREFIX):
        return set()
    kind, text = metadata[len(PREFIX) : len(PREFIX) + 1], metadata[len(PREFIX) + 1 :]
    try:
        data = base64.b64decode(text, validate=True)
        if kind == "z":
            data = zlib.decompressobj().decompress(data, WINDOW // 8)
        elif kind != "b":
            return set()
    except (binascii.Error, zlib.error, ValueError):
        return set()
    bits = int.from_bytes(data[: WINDOW // 8], "little")
    return {base + at for at in range(bits.bit_length()) if bits >> at & 1}
