"""The compiled offset map and filter against their Python versions, byte for byte, and the hash against the test
vectors of its authors."""

from __future__ import annotations

import random
import struct

import pytest

from headrace_core.errors import CorruptMessageError, InvalidRecordError
from headrace_core.log.compaction import _pure
from headrace_core.log.compaction.horizon import HORIZON_BIT
from headrace_core.log.compaction.transactions import AbortedTransaction, TransactionHistory, TransactionJudge
from headrace_core.records import HEADER_BYTES, Compression, check_batch, decode_batch, encode_batch, read_header
from headrace_core.records.batches import with_base, with_log_append_time
from headrace_core.testing.batches import patched

native = pytest.importorskip("headrace_core.log.compaction._cleaning", reason="nothing is compiled")
SECRET = bytes(range(16))
NOW_MS = 1_700_000_000_000

#: Test vectors of the reference implementation for 128 bits of output: key 00 01 .. 0f, input 00 01 .. of each length.
SIPHASH_VECTORS = [
    "a3817f04ba25a8e66df67214c7550293",
    "da87c1d86b99af44347659119b22fc45",
    "8177228da4a45dc7fca38bdef60affe4",
]


@pytest.mark.parametrize("length", range(len(SIPHASH_VECTORS)))
def test_keys_are_hashed_with_siphash_2_4_of_128_bits(length: int) -> None:
    assert native.key_hash(bytes(range(length)), SECRET).hex() == SIPHASH_VECTORS[length]


def test_another_secret_gives_another_hash() -> None:
    assert native.key_hash(b"key", SECRET) != native.key_hash(b"key", bytes(16))


@pytest.mark.parametrize("backend", [native, _pure], ids=["native", "pure"])
def test_map_holds_the_last_offset_of_each_key_until_it_is_full(backend, rng: random.Random) -> None:  # type: ignore[no-untyped-def]
    offsets = backend.OffsetMap(24 * 1000, SECRET, 0.9)
    assert offsets.capacity == 900
    expected: dict[bytes, int] = {}
    offset = 0
    while len(expected) < 900:
        key = rng.randbytes(rng.choice([0, 1, 2, 7, 8, 9, 40]))
        offsets.put(key, offset)
        expected[key] = offset
        offset += rng.randrange(1, 1 << 40)
    assert offsets.size == 900
    assert {key: offsets.get(key) for key in expected} == expected
    assert offsets.get(b"never put") == -1
    with pytest.raises(ValueError, match="full"):
        offsets.put(b"one more", offset)
    offsets.clear()
    assert offsets.size == 0
    assert offsets.get(next(iter(expected))) == -1


def test_a_large_map_is_empty_after_clear_and_fit_for_use() -> None:
    offsets = native.OffsetMap(16 << 20, SECRET)
    for turn in range(2):
        for number in range(50_000):
            assert offsets.get(b"%d" % number) == -1
            offsets.put(b"%d" % number, number + turn)
        assert all(offsets.get(b"%d" % number) == number + turn for number in range(50_000))
        offsets.clear()


def _log(rng: random.Random) -> bytes:
    """Batches of every kind, back to back."""
    data = bytearray()
    offset = rng.randrange(1 << 33)
    for _ in range(60):
        kind = rng.choice(["plain", "plain", "idempotent", "transactional", "marker"])
        producer = {} if kind == "plain" else {"producer_id": rng.randrange(3), "producer_epoch": rng.randrange(2)}
        if kind == "marker":
            key = struct.pack(">hh", 0, rng.choice([0, 1, 1, 7]))
            records = [(NOW_MS, key, b"\0" * 6, None)]
            batch = encode_batch(records, transactional=True, control=True, **producer)
        else:
            records = [
                (
                    NOW_MS - rng.randrange(1 << 12) if rng.random() < 0.95 else -1,
                    None if rng.random() < 0.05 else b"k%d" % rng.randrange(12),
                    None if rng.random() < 0.2 else rng.randbytes(rng.choice([0, 3, 70, 300])),
                    [("name", None), ("n", b"1")] if rng.random() < 0.2 else None,
                )
                for _ in range(rng.choice([1, 2, 5, 40]))
            ]
            batch = encode_batch(
                records,
                compression=rng.choice(list(Compression)),
                transactional=kind == "transactional",
                base_sequence=0 if producer else -1,
                **producer,
            )
        if rng.random() < 0.15:
            batch = with_log_append_time(batch, NOW_MS + 5)
        if rng.random() < 0.1 and kind != "marker" and read_header(batch).base_timestamp_ms > 0:
            attributes = read_header(batch).attributes | HORIZON_BIT  # its base timestamp is read as a delete horizon
            batch = patched(batch, 21, struct.pack(">h", attributes))
        offset += rng.choice([0, 0, 3])
        data += with_base(batch, 0, offset, 4) + batch[16:]
        offset = read_header(batch)._replace(base_offset=offset).next_offset
    return bytes(data)


def _cleaned(backend, data: bytes, rng: random.Random):  # type: ignore[no-untyped-def]
    """The result of a backend for a log, which it gets in pieces of random sizes."""
    history = TransactionHistory()
    position = 0
    while position < len(data):
        size = rng.randrange(61, 3000)
        done = backend.scan_batches(data[position : position + size], history.observe)
        position += done or max(read_header(data, position).size, 1)
    offsets = backend.OffsetMap(24 * 64, SECRET)
    first = read_header(data).base_offset
    indexer = backend.KeyIndexer(offsets, first + 20, TransactionJudge(history.aborted, NOW_MS).judge)
    assert indexer.feed(data) == len(data)
    ends = list(_headers(data))
    keep = backend.BatchFilter(
        offsets,
        latest=ends[-6].last_offset,
        keep_next_offset=ends[20].next_offset,
        judge=TransactionJudge(history.aborted, NOW_MS).judge,
        last_offsets={0: max((h.last_offset for h in ends[:40] if h.producer_id == 0), default=0)},
        marker_epochs={1: 1},
        now_ms=NOW_MS,
        horizon_ms=NOW_MS + 1000,
    )
    out, metas, position = b"", [], 0
    while position < len(data):
        done = keep.feed(data[position : position + 40_000])
        position += done
        part, batches = keep.take()
        out += part
        metas += [tuple(batch) for batch in batches]
    counts = (indexer.latest, offsets.size, keep.records_read, keep.records_kept, keep.records_without_key)
    return history.aborted, counts, metas, out


def _headers(data: bytes):  # type: ignore[no-untyped-def]
    position = 0
    while position < len(data):
        header = read_header(data, position)
        yield header
        position += header.size


@pytest.mark.parametrize("number", range(25))
def test_compiled_and_plain_code_leave_the_same_bytes(number: int, seed: int) -> None:
    data = _log(random.Random(seed))
    mine = _cleaned(native, data, random.Random(seed))
    theirs = _cleaned(_pure, data, random.Random(seed))
    assert mine[:3] == theirs[:3]
    position = 0
    for size, base_offset, last_offset, max_timestamp_ms in mine[2]:
        header = check_batch(mine[3], position)
        assert (header.size, header.base_offset, header.last_offset) == (size, base_offset, last_offset)
        assert max_timestamp_ms == (header.max_timestamp_ms if header.record_count else -1)
        position += size
    assert position == len(mine[3])
    assert mine[3] == theirs[3]
    assert mine[1][3] < mine[1][2]


@pytest.mark.parametrize("backend", [native, _pure], ids=["native", "pure"])
def test_a_damaged_batch_is_never_given_a_right_checksum(backend) -> None:  # type: ignore[no-untyped-def]
    batch = encode_batch([(NOW_MS, b"a", b"old", None), (NOW_MS, b"a", b"new", None)])
    damaged = batch[:-3] + b"x" + batch[-2:]
    offsets = backend.OffsetMap(24 * 64, SECRET)
    judge = TransactionJudge((), NOW_MS).judge
    with pytest.raises(CorruptMessageError, match="CRC-32C"):
        backend.KeyIndexer(offsets, 0, judge).feed(damaged)
    keep = _filter(backend, offsets)
    with pytest.raises(CorruptMessageError, match="CRC-32C"):
        keep.feed(damaged)
    with pytest.raises(InvalidRecordError):
        keep.feed(patched(batch, 61, b"\x7e"))
    assert keep.take() == (b"", [])


def _filter(backend, offsets, **changed):  # type: ignore[no-untyped-def]
    given = {
        "latest": 1 << 40,
        "keep_next_offset": -1,
        "judge": TransactionJudge((), NOW_MS).judge,
        "last_offsets": {},
        "marker_epochs": {},
        "now_ms": NOW_MS,
        "horizon_ms": NOW_MS + 60_000,
    }
    return backend.BatchFilter(offsets, **(given | changed))


@pytest.mark.parametrize("backend", [native, _pure], ids=["native", "pure"])
@pytest.mark.parametrize("codec", list(Compression))
def test_a_tombstone_gets_a_horizon_and_keeps_its_time(backend, codec: Compression) -> None:  # type: ignore[no-untyped-def]
    batch = encode_batch(
        [(NOW_MS - 9, b"a", None, [("h", b"1")]), (NOW_MS - 7, b"b", b"v", None)], compression=codec, base_offset=5
    )
    before = decode_batch(batch)
    keep = _filter(backend, backend.OffsetMap(24 * 64, SECRET))
    keep.feed(batch)
    once = bytes(keep.take()[0])
    header = check_batch(once)
    assert header.attributes & HORIZON_BIT
    assert header.base_timestamp_ms == NOW_MS + 60_000
    assert (header.max_timestamp_ms, header.compression) == (NOW_MS - 7, codec)
    assert decode_batch(once) == before
    again = _filter(backend, backend.OffsetMap(24 * 64, SECRET), now_ms=NOW_MS + 59_999, horizon_ms=1)
    again.feed(once)
    assert again.take()[0] == once, "a horizon is set once"
    late = _filter(backend, backend.OffsetMap(24 * 64, SECRET), now_ms=NOW_MS + 60_000)
    late.feed(once)
    (kept,) = decode_batch(bytes(late.take()[0]))
    assert kept == before[1]


def test_an_abort_marker_outlives_its_data_and_goes_after_its_horizon() -> None:
    data = encode_batch([(1, b"k", b"v", None)], base_offset=3, producer_id=9, producer_epoch=0, transactional=True)
    marker = encode_batch(
        [(2, struct.pack(">hh", 0, 0), b"\0" * 6, None)],
        base_offset=8, producer_id=9, producer_epoch=0, transactional=True, control=True,
    )  # fmt: skip
    history = TransactionHistory()
    assert _pure.scan_batches(data + marker, history.observe) == len(data + marker)
    assert history.aborted == [AbortedTransaction(9, 3, 8)]

    def clean(log: bytes, now_ms: int) -> bytes:
        found = TransactionHistory()
        native.scan_batches(log, found.observe)
        keep = _filter(
            native,
            native.OffsetMap(24 * 64, SECRET),
            judge=TransactionJudge(found.aborted, now_ms).judge,
            now_ms=now_ms,
            horizon_ms=now_ms + 100,
        )
        keep.feed(log)
        return bytes(keep.take()[0])

    first = clean(data + marker, 1000)
    assert first == marker, "the data goes, its marker stays as it is"
    second = clean(first, 2000)
    assert read_header(second).base_timestamp_ms == 2100
    assert decode_batch(second) == decode_batch(marker)
    assert clean(second, 2099) == second
    assert clean(second, 2100) == b""


@pytest.mark.parametrize("backend", [native, _pure], ids=["native", "pure"])
def test_a_marker_that_was_written_unreadable_ends_no_transaction_and_stays(backend) -> None:  # type: ignore[no-untyped-def]
    """A batch with an unreadable marker has a valid CRC, so logs may contain such batches. An early version of the
    cleaner reported damage for an unreadable marker, and refused its log for ever."""
    old, new = [(NOW_MS, b"key", b"old", None)], [(NOW_MS, b"key", b"new", None)]
    data = encode_batch(old) + encode_batch(new, base_offset=1)
    whole = encode_batch(
        [(NOW_MS, struct.pack(">hh", 0, 1), bytes(6), None)],
        base_offset=2, producer_id=7, producer_epoch=0, transactional=True, control=True,
    )  # fmt: skip
    marker = patched(whole, HEADER_BYTES, b"\x7e")  # the record claims more bytes than there are
    with pytest.raises(InvalidRecordError):
        decode_batch(marker)
    history = TransactionHistory()
    log = data + marker + encode_batch([(NOW_MS, b"other", b"x", None)], base_offset=3)
    assert backend.scan_batches(log, history.observe) == len(log)
    judge = TransactionJudge(history.aborted, NOW_MS)
    offsets = backend.OffsetMap(24 * 64, SECRET)
    assert backend.KeyIndexer(offsets, 0, judge.judge).feed(log) == len(log)
    for now_ms in (NOW_MS, NOW_MS + 10**9):
        judge = TransactionJudge(history.aborted, now_ms)
        keep = _filter(backend, offsets, judge=judge.judge, latest=3, now_ms=now_ms, horizon_ms=now_ms + 100)
        assert keep.feed(log) == len(log)
        log = bytes(keep.take()[0])
        assert [header.base_offset for header in _headers(log)] == [1, 2, 3]
        assert marker in log


@pytest.mark.parametrize("backend", [native, _pure], ids=["native", "pure"])
def test_a_map_that_may_be_filled_to_the_brim_still_knows_what_it_does_not_hold(backend) -> None:  # type: ignore[no-untyped-def]
    offsets = backend.OffsetMap(24 * 8, SECRET, 1.0)
    assert offsets.capacity == 7
    for number in range(7):
        offsets.put(b"%d" % number, number)
    assert offsets.get(b"not there") == -1
