"""How long to wait before trying again: doubling, with jitter, bounded (Kafka's retry.backoff.ms, KIP-580)."""

from __future__ import annotations

import random


class Backoff:
    """``next_s()`` seconds now; ``reset()`` after a success. The jitter keeps a crowd from coming back in step."""

    def __init__(self, *, first_ms: float = 50, most_ms: float = 1_000, rng: random.Random | None = None) -> None:
        self._first_ms = first_ms
        self._most_ms = most_ms
        self._rng = rng or random.Random()
        self._failures = 0

    def next_s(self) -> float:
        wait_ms = min(self._first_ms * 2.0 ** min(self._failures, 30), self._most_ms)
        self._failures += 1
        return wait_ms * self._rng.uniform(0.8, 1.2) / 1_000

    def reset(self) -> None:
        self._failures = 0
