"""Shrink examples of a failure: delta debugging (Zeller and Hildebrandt, 2002)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def shrink(items: Sequence[T], still_fails: Callable[[Sequence[T]], bool], *, tries_max: int = 200) -> tuple[T, ...]:
    """Return a small part of ``items``, in their order, that still fails. If any item of the result is removed, the
    test passes; after ``tries_max`` attempts the search ends early, and some items may be unnecessary. The test must
    fail with all ``items``."""
    kept = tuple(items)
    tries = 0
    pieces = 2
    while kept:
        pieces = min(pieces, len(kept))
        size = -(-len(kept) // pieces)
        for start in range(0, len(kept), size):
            without = kept[:start] + kept[start + size :]
            tries += 1
            if still_fails(without):
                kept = without
                pieces = max(pieces - 1, 2)
                break
            if tries >= tries_max:
                return kept
        else:
            if pieces >= len(kept):
                return kept
            pieces = min(pieces * 2, len(kept))
    return kept


def shortest(fails_at: Callable[[float], bool], longest: float, *, steps: int = 8) -> float:
    """Return a length, at most ``longest``, at which the test still fails. The search for a failing length halves the
    range, and assumes that the test fails at every longer length."""
    low, high = 0.0, longest
    for _ in range(steps):
        middle = (low + high) / 2
        if fails_at(middle):
            high = middle
        else:
            low = middle
    return high
