"""Build batches that no encoder writes: with offset gaps, wrong counts, or damaged bytes under a valid CRC."""

from __future__ import annotations

import struct
from typing import Any

from crc32c import crc32c

from ..records._pure_records import encode_record
from ..records.batches import assemble_batch


def resealed(batch: bytes | bytearray) -> bytes:
    """Return the batch with its length and CRC corrected."""
    out = bytearray(batch)
    struct.pack_into(">i", out, 8, len(out) - 12)
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[21:]))
    return bytes(out)


def patched(batch: bytes, position: int, new: bytes) -> bytes:
    """Replace the bytes of ``batch`` at ``position`` by ``new``, and correct length and CRC."""
    return resealed(batch[:position] + new + batch[position + len(new) :])


def batch_of(
    deltas: list[int], *, last: int | None = None, count: int | None = None, body: bytes = b"", **fields: Any
) -> bytes:
    """Build a batch whose records have the offset deltas ``deltas`` and the values "v<delta>", followed by the bytes
    ``body``."""
    records = b"".join(encode_record(0, delta, None, b"v%d" % delta, None) for delta in deltas)
    return assemble_batch(
        records + body,
        record_count=len(deltas) if count is None else count,
        last_offset_delta=(deltas[-1] if deltas else 0) if last is None else last,
        base_timestamp_ms=fields.pop("base_timestamp_ms", 1_000),
        max_timestamp_ms=fields.pop("max_timestamp_ms", 1_000),
        **fields,
    )
