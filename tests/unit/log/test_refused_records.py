"""An error of a refused batch lists the records that broke the topic's rules (KIP-467). Batches that Kafka's clients
could not read are refused."""

from __future__ import annotations

import struct

import lz4.frame
import pytest
from crc32c import crc32c

from headrace_core.errors import HeadraceError, InvalidRecordError, InvalidTimestampError
from headrace_core.log import appending
from headrace_core.log.appending import validate
from headrace_core.log.config import LogConfig
from headrace_core.records import Compression, RecordTuple, encode_batch

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_records_without_a_key_are_listed(compression: Compression) -> None:
    records: list[RecordTuple] = [(NOW_MS, None if at in (1, 3) else b"key", b"value", []) for at in range(5)]
    with pytest.raises(InvalidRecordError) as caught:
        validate(encode_batch(records, compression=compression), LogConfig(cleanup_compact=True), NOW_MS)
    assert [at for at, _ in caught.value.faults] == [1, 3]
    assert all("key" in text for _, text in caught.value.faults)


def test_records_with_a_wrong_time_are_listed() -> None:
    records: list[RecordTuple] = [(NOW_MS + at * 1_000, b"key", b"value", []) for at in range(4)]
    with pytest.raises(InvalidTimestampError) as caught:
        validate(encode_batch(records), LogConfig(timestamp_after_max_ms=1_500), NOW_MS)
    assert [at for at, _ in caught.value.faults] == [2, 3]


def test_the_list_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "FAULTS_MAX", 3)
    with pytest.raises(InvalidRecordError) as caught:
        validate(encode_batch([(NOW_MS, None, b"value", [])] * 10), LogConfig(cleanup_compact=True), NOW_MS)
    assert len(caught.value.faults) == 3


def test_a_batch_that_cannot_be_read_has_no_list() -> None:
    damaged = bytearray(encode_batch([(NOW_MS, b"key", b"value", [])]))
    damaged[16] = 1  # the magic number
    with pytest.raises(HeadraceError) as caught:
        validate(bytes(damaged), LogConfig(), NOW_MS)
    assert not getattr(caught.value, "faults", ())


_RECORDS: list[RecordTuple] = [(NOW_MS, b"key-%d" % number, b"value" * 10, []) for number in range(2_000)]


def in_lz4(*frames: bytes) -> bytes:
    """A batch of ``_RECORDS`` whose compressed part is ``frames``."""
    batch = bytearray(encode_batch(_RECORDS)[:61] + b"".join(frames))
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, Compression.LZ4)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def frame(data: bytes, **options: object) -> bytes:
    return bytes(
        lz4.frame.compress(data, **{"block_linked": False, "block_size": lz4.frame.BLOCKSIZE_MAX64KB} | options)
    )


def test_lz4_batches_that_would_stop_kafkas_consumers_are_refused() -> None:
    """Java clients fail with "Dependent block stream is unsupported", or read only the first frame."""
    body = encode_batch(_RECORDS)[61:]
    assert len(body) > 64 * 1024, "liblz4 links the blocks of a larger block only"
    skippable = struct.pack("<II", 0x184D2A50, 4) + b"skip"
    for frames, why in (
        ([frame(body, block_linked=True)], "linked blocks"),
        ([frame(body[:70_000]), frame(body[70_000:])], "more than one lz4 frame"),
        ([skippable, frame(body)], "does not begin with an lz4 frame"),
    ):
        with pytest.raises(InvalidRecordError, match=why):
            validate(in_lz4(*frames), LogConfig(), NOW_MS)


@pytest.mark.parametrize("store_size", [False, True])
@pytest.mark.parametrize("block_checksum", [False, True])
@pytest.mark.parametrize("content_checksum", [False, True])
def test_lz4_batches_that_kafkas_consumers_read_are_accepted(
    store_size: bool, block_checksum: bool, content_checksum: bool
) -> None:
    body = encode_batch(_RECORDS)[61:]
    packed = frame(body, store_size=store_size, block_checksum=block_checksum, content_checksum=content_checksum)
    data, headers = validate(in_lz4(packed) * 2, LogConfig(), NOW_MS)
    assert (len(data), [header.record_count for header in headers]) == (2 * (61 + len(packed)), [2_000, 2_000])
