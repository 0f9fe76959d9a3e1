"""``check_plain_batch`` accepts exactly the batches that ``validate_batches`` accepts as they are."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

import pytest

from headrace_core.errors import HeadraceError
from headrace_core.records import BatchHeader, Compression, _compiled, _pure
from headrace_core.testing.batches import resealed

RULES = (10_000, False, 0, 5_000_000)
PLAIN = _pure.encode_batch([(1_000, b"key", b"value", [("h", b"x")]), (900, None, b"", None), (2_000, b"", None, [])])
IDEMPOTENT = _pure.encode_batch([(1_000, b"k", b"v", [])] * 3, producer_id=7, producer_epoch=1, base_sequence=5)


def accepted(data: bytes, rules: tuple[int, bool, int, int]) -> BatchHeader | None:
    """By ``validate_batches``."""
    size_max, keys, earliest_ms, latest_ms = rules
    try:
        headers = _pure.validate_batches(
            data,
            allow_producer_id=True,
            require_keys=keys,
            timestamp_ms_min=earliest_ms,
            timestamp_ms_max=latest_ms,
        )
        given = _pure.read_header(data)
    except HeadraceError:
        return None
    is_plain = headers == [given] and not given.attributes & 7 and len(data) <= size_max
    return given if is_plain else None


def test_plain_batches_are_accepted(codec: ModuleType) -> None:
    for batch in (PLAIN, IDEMPOTENT):
        assert codec.check_plain_batch(batch, *RULES) == _pure.read_header(batch)
        assert codec.check_plain_batch(memoryview(bytearray(batch)), *RULES) == _pure.read_header(batch)


@pytest.mark.parametrize("change", [
    {"compression": Compression.GZIP},
    {"transactional": True, "producer_id": 1, "producer_epoch": 0, "base_sequence": 0},
    {"producer_id": 1, "producer_epoch": -1, "base_sequence": 0},
    {"producer_id": 1, "producer_epoch": 0, "base_sequence": -1},
])  # fmt: skip
def test_others_are_left_to_the_general_check(codec: ModuleType, change: dict[str, Any]) -> None:
    batch = _pure.encode_batch([(1_000, b"k", b"v", [])], **change)
    assert codec.check_plain_batch(batch, *RULES) is None


def test_the_topics_rules_are_kept(codec: ModuleType) -> None:
    size = len(PLAIN)
    assert codec.check_plain_batch(PLAIN, size, False, 900, 2_000) is not None
    for rules in (
        (size - 1, False, 0, 5_000),
        (size, True, 0, 5_000),
        (size, False, 901, 5_000),
        (size, False, 0, 1_999),
    ):
        assert codec.check_plain_batch(PLAIN, *rules) is None, rules
    assert codec.check_plain_batch(PLAIN + PLAIN, *RULES) is None
    assert codec.check_plain_batch(b"", *RULES) is None


@pytest.mark.parametrize("batch", [PLAIN, IDEMPOTENT], ids=["plain", "idempotent"])
def test_damaged_batches_are_judged_as_by_the_general_check(batch: bytes, rng: random.Random) -> None:
    """Each byte changed, with the CRC of the changed bytes and without; each cut."""
    damaged = [batch[:cut] for cut in range(len(batch))]
    for at in range(len(batch)):
        for byte in {0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)} - {batch[at]}:
            changed = batch[:at] + bytes([byte]) + batch[at + 1 :]
            damaged.append(changed)
            if at >= 21:
                damaged.append(resealed(changed))
    sound = 0
    for each in damaged:
        expected = accepted(each, RULES)
        sound += expected is not None
        assert _compiled.check_plain_batch(each, *RULES) == expected, each
        assert _pure.check_plain_batch(each, *RULES) == expected, each
    assert sound > len(batch) // 4
