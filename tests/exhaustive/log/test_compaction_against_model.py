"""Compaction against a plain model: random histories, each cleaning crashes at each of its steps. By default the test
runs 12 histories or a few more. HEADRACE_FULL_COMPACTION=1 runs 2,000 histories in half an
hour, as `make verify` does. A failure prints the seed of its history, and HEADRACE_HISTORY=seed runs only this history.
"""

from __future__ import annotations

import os

import pytest

from tests.worlds.compaction_world import Counts, run_history

IS_FULL = os.environ.get("HEADRACE_FULL_COMPACTION", "0") not in ("", "0")
CHUNKS = 40 if IS_FULL else 4
HISTORIES_PER_CHUNK = 50 if IS_FULL else 1


@pytest.mark.timeout(1800 if IS_FULL else 120)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_cleaning_leaves_what_the_model_says_whenever_it_crashes(
    chunk: int, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("ERROR")  # each recovery says what it did
    counts = Counts()
    only = os.environ.get("HEADRACE_HISTORY")
    if only:
        run_history(int(only), counts)
        return
    for number in range(10 * HISTORIES_PER_CHUNK):
        print(f"history: HEADRACE_HISTORY={seed + number}")
        run_history(seed + number, counts)
        # Some histories have nothing to clean; with few histories, these may be most of them.
        if number + 1 >= HISTORIES_PER_CHUNK and counts.cleanings >= HISTORIES_PER_CHUNK and counts.dropped:
            break
    print(counts)
    assert counts.cleanings >= HISTORIES_PER_CHUNK
    assert counts.crashes > 20 * counts.cleanings
    assert counts.dropped > 0
