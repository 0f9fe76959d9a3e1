"""The bytes that a log may return: whole batches that are consistent with their neighbours and epochs. The tests run on
both backends."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_core.records import (
    SLICE_EXACT,
    SLICE_HAS_GAPS,
    _pure,
    encode_batch,
    slice_fault,
    split_batches,
    with_base,
)
from headrace_core.records.batches import epoch_range, without_position

try:
    from headrace_core.records import _compiled
except ImportError:
    BACKENDS: list[ModuleType] = [_pure]
else:
    BACKENDS = [_pure, _compiled]

OFFSET_MAX = 2**63 - 1


def batch(base_offset: int, epoch: int = 0, count: int = 2) -> bytes:
    data = encode_batch([(5, None, b"value", [])] * count)
    return with_base(data, 0, base_offset, epoch) + data[16:]


@pytest.fixture(params=BACKENDS, ids=lambda module: module.__name__.rpartition(".")[2])
def backend(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = request.param
    return module


def test_a_slice_without_a_gap_is_exact(backend: ModuleType) -> None:
    data = batch(10) + batch(12) + batch(14)
    for offset in (10, 11):
        assert backend.check_slice(data, offset, 16) == SLICE_EXACT
    assert backend.check_slice(b"", 10, 10) == SLICE_EXACT


def test_a_gap_anywhere_is_reported(backend: ModuleType) -> None:
    size = len(batch(0))
    assert backend.check_slice(batch(10) + batch(12), 9, 14) == SLICE_HAS_GAPS, "before it"
    assert backend.check_slice(batch(10) + batch(13), 10, 15) == SLICE_HAS_GAPS, "within"
    assert backend.check_slice(batch(10) + batch(12), 10, 15) == SLICE_HAS_GAPS, "behind it"
    assert backend.check_slice(batch(10) + batch(11), 10, 15) == size, "an overlap is none"
    assert backend.check_slice(batch(10) + batch(12), 10, 13) == size, "the last one reaches too far"
    assert backend.check_slice(batch(10), 12, 20) == 0, "the first one does not reach so far"


def test_each_batch_needs_the_epoch_that_holds_for_its_offsets(backend: ModuleType) -> None:
    data = batch(10, 3) + batch(12, 3) + batch(14, 5)
    size = len(batch(0))
    assert backend.check_slice(data, 10, 16, [(3, 0), (5, 14)]) == SLICE_EXACT
    assert backend.check_slice(data, 10, 16, [(3, 0)]) == 2 * size
    assert backend.check_slice(data, 10, 16, [(3, 0), (5, 12)]) == size
    assert backend.check_slice(data, 10, 16, []) == 0
    assert backend.check_slice(data, 10, 16, [(3, 11), (5, 14)]) == SLICE_EXACT, "the log's start was moved into it"
    assert backend.check_slice(data, 10, 16, [(5, 14)]) == SLICE_EXACT, "Kafka's, from before it knew of epochs"
    assert backend.check_slice(data, 10, 16, [(2, 14)]) == 0


def test_every_flipped_bit_is_reported_and_explained(backend: ModuleType) -> None:
    sound = batch(10, 3) + batch(12, 3) + batch(14, 3)
    size = len(batch(0))
    for position in range(len(sound)):
        for bit in range(8):
            data = bytearray(sound)
            data[position] ^= 1 << bit
            verdict = backend.check_slice(bytes(data), 10, 16, [(3, 0)])
            assert verdict == _pure.check_slice(bytes(data), 10, 16, [(3, 0)])
            assert verdict != SLICE_EXACT, f"bit {bit} of byte {position}"
            if verdict >= 0:
                assert verdict in (0, size, 2 * size)
                before = split_batches(bytes(data[:verdict]))
                what = slice_fault(bytes(data), verdict, before[-1].last_offset + 1 if before else 10, 16, [(3, 0)])
                assert what
                assert "is intact now" not in what


@given(
    data=st.lists(st.builds(batch, st.integers(0, 40), st.integers(-1, 3), st.integers(1, 3)), max_size=4).map(
        b"".join
    ),
    cut=st.integers(0, 40),
    offset=st.integers(0, 45),
    end=st.integers(0, 45),
    epochs=st.none() | st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40)), max_size=3).map(sorted),
)
def test_both_backends_say_the_same(
    data: bytes, cut: int, offset: int, end: int, epochs: list[tuple[int, int]] | None
) -> None:
    data = data[: max(len(data) - cut, 0)]
    outcomes = {module.check_slice(data, offset, end, epochs) for module in BACKENDS}
    assert len(outcomes) == 1


def test_the_epoch_of_an_offset() -> None:
    epochs = [(2, 5), (4, 9)]
    assert [epoch_range(epochs, offset) for offset in (4, 5, 8, 9, 99)] == [
        (0, 5, -1, 2),
        (5, 9, 2, 2),
        (5, 9, 2, 2),
        (9, OFFSET_MAX, 4, 4),
        (9, OFFSET_MAX, 4, 4),
    ]
    assert epoch_range([], 7) == (0, OFFSET_MAX, -1, -1)


def test_a_place_in_the_window_is_nobodys_business() -> None:
    assert without_position("batch at position 17: magic is 3") == "the batch: magic is 3"
    assert without_position("something else") == "something else"
