"""Seed inputs for mutation, and fixes that make mutated inputs plausible again."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

from crc32c import crc32c

from headrace_core.records import HEADER_BYTES, Compression, encode_batch
from headrace_core.testing.batches import batch_of
from headrace_core.types import TimestampType

ABORT, COMMIT = 0, 1
TIME_MS = 1_700_000_000_000


def marker(control_type: int, *, producer_id: int = 7, epoch: int = 0, base_offset: int = 0) -> bytes:
    """The control batch that ends a transaction."""
    return encode_batch(
        [(TIME_MS, struct.pack(">hh", 0, control_type), bytes(6), None)],
        base_offset=base_offset,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        transactional=True,
        control=True,
    )


def batches() -> list[bytes]:
    """One batch of each kind."""
    records = [
        (TIME_MS, b"key-1", b"value-1", [("trace", b"x"), ("none", None)]),
        (TIME_MS + 5, None, None, None),
        (TIME_MS - 5, b"key-2", b"v" * 70, None),
        (-1, b"", b"", [("", b"")]),
    ]
    found = [encode_batch(records, compression=codec, leader_epoch=0) for codec in Compression]
    found += [
        encode_batch([(TIME_MS, b"k", b"v", None)]),
        encode_batch(records[:2], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True),
        encode_batch(records[:2], timestamp_type=TimestampType.LOG_APPEND_TIME, leader_epoch=3),
        marker(ABORT),
        marker(COMMIT),
        batch_of([0, 2, 5], last=9),
        batch_of([], last=3, count=0, producer_id=7, producer_epoch=1, base_sequence=4),
    ]
    return found


def rebased(items: Sequence[bytes], base_offset: int = 0) -> bytes:
    """Batches one after another, with consecutive offsets."""
    out, offset = b"", base_offset
    for batch in items:
        out += struct.pack(">q", offset) + batch[8:]
        offset += struct.unpack_from(">i", batch, 23)[0] + 1
    return out


def logs() -> list[bytes]:
    """Small logs, back to back."""
    found = batches()
    keyed = [
        encode_batch([(TIME_MS + number, b"k%d" % (number % 3), None if number % 5 == 0 else b"v%d" % number, None)])
        for number in range(12)
    ]
    transaction = [
        encode_batch(
            [(TIME_MS, b"k1", b"t", None)], producer_id=7, producer_epoch=0, base_sequence=number, transactional=True
        )
        for number in range(2)
    ]
    return [
        rebased(found),
        rebased(keyed),
        rebased([*keyed[:3], *transaction, marker(ABORT), *keyed[3:6], *transaction, marker(COMMIT)]),
        rebased(keyed, 100),
    ]


def framed(data: bytes, start: int = 0) -> list[tuple[int, int]]:
    """(position, size) of each batch according to the length fields. The last batch may be incomplete."""
    found, position = [], start
    while len(data) - position >= HEADER_BYTES:
        size = struct.unpack_from(">i", data, position + 8)[0] + 12
        if size < HEADER_BYTES or size > len(data) - position:
            size = len(data) - position
        found.append((position, size))
        position += size
    return found


def sealed(data: bytes, rng: random.Random, start: int = 0) -> bytes:
    """Repair lengths and CRCs (sometimes offsets too), so that the changed bytes pass these checks."""
    out = bytearray(data)
    renumber, offset = rng.random() < 0.5, 0
    for position, size in framed(data, start):
        struct.pack_into(">i", out, position + 8, size - 12)
        if rng.random() < 0.9:
            out[position + 16] = 2
        if renumber:
            struct.pack_into(">q", out, position, offset)
            offset += max(struct.unpack_from(">i", out, position + 23)[0], 0) + 1
        struct.pack_into(">I", out, position + 17, crc32c(memoryview(out)[position + 21 : position + size]))
    return bytes(out)


def sealed_after(start: int):  # type: ignore[no-untyped-def]
    """Do the same as ``sealed``, but for inputs with some bytes of choices before their batches."""
    return lambda data, rng: sealed(data, rng, start)


def sealed_snapshot(data: bytes, rng: random.Random) -> bytes:
    """A producer snapshot with a valid CRC."""
    out = bytearray(data.ljust(6, b"\0"))
    if rng.random() < 0.7:
        struct.pack_into(">h", out, 0, 1)
        if len(out) >= 10:
            struct.pack_into(">i", out, 6, (len(out) - 10) // 46)
    struct.pack_into(">I", out, 2, crc32c(memoryview(out)[6:]))
    return bytes(out)
