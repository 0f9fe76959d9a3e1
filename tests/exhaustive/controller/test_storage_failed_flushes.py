"""A voter's flush fails with EIO and the process ends; the next process continues with the contents of the page cache.
After that the power fails. The entries that the voter has acknowledged and its votes are on the disk. (``memory_disk``
describes how Linux treats the pages of a failed flush.)
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from dataclasses import replace

import pytest

from headrace_controller.raft import HardState
from headrace_core.testing.crashing_fs import Loss, SimulatedCrash
from tests.worlds.storage_world import (
    KEYS,
    Model,
    Voter,
    go_on,
    history,
    leader_change,
    small_segments,
    some_entries,
    topic,
)


@pytest.fixture(autouse=True)
def _segments_of_a_few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)


def live(voter: Voter, rng: random.Random) -> None:
    """All writes of a voter: terms and votes, entries, truncations, its own snapshots and received ones."""
    voter.append(history(rng, 5))
    voter.vote(HardState(4, KEYS[1]))
    voter.append(some_entries(rng, voter.model.end, 5, 4))
    voter.snapshot(voter.model.end)
    voter.append(some_entries(rng, voter.model.end, 20, 4))
    voter.truncate(voter.model.entries[-2].base_offset)
    voter.vote(HardState(40, KEYS[2]))
    voter.append(some_entries(rng, voter.model.end, 40, 4))
    voter.snapshot(voter.model.end)
    leaders = Model((*voter.model.entries, *some_entries(rng, voter.model.end, 60, 5)))
    voter.install(leaders, leaders.end, chunk_bytes=500)
    voter.vote(HardState(90, KEYS[0]))
    voter.append(some_entries(rng, leaders.end, 90, 3))


def power_fails(voter: Voter, rng: random.Random, loss: Loss, when: str) -> None:
    """The power may fail at any time: at once, or after more entries were acknowledged."""
    for more in (False, True):
        fs = voter.fs.crash_clone(loss=Loss.NONE)
        later = go_on(replace(voter, fs=fs), when)
        end = later.model.end
        if more:
            later.append([leader_change(200, end, later.model.voters_at(end)), topic(200, end + 1)])
            later.snapshot(later.model.end)
            later.append([topic(200, later.model.end)])
        fs.crash(rng, loss)
        go_on(later, f"{when}, more: {more}, losing {loss.value}")


@pytest.mark.parametrize("loss", [Loss.ALL, Loss.PREFIX, Loss.BLOCKS], ids=lambda loss: loss.value)
@pytest.mark.parametrize("fault", ["sync", "sync_directory"])
def test_what_a_voter_says_after_a_failed_flush_and_a_restart_outlives_a_power_loss(fault: str, loss: Loss) -> None:
    struck: Counter[str] = Counter()
    for nth in range(1, 200):
        rng = random.Random(nth)
        voter = Voter.new()
        planned = voter.fs.fail(fault, errno.EIO, nth=nth, rng=rng if nth % 2 else None)
        try:
            live(voter, random.Random(1))
        except OSError:
            struck[voter.doing.split()[0]] += 1
        else:
            assert planned.seen < nth
            break
        voter.fs.crash(loss=Loss.NONE)
        if nth % 3 == 0:
            voter.fs.evict()
        power_fails(voter, rng, loss, f"{fault} number {nth} failed ({voter.doing})")
    assert set(struck) >= {"append", "save", "finish", "install"}


def test_what_a_voter_says_after_a_kill_at_any_operation_outlives_a_power_loss() -> None:
    """In this test of killed processes no flush fails. Data and file names that the killed process had not fsynced are
    only in the page cache."""
    looked = 0
    whole = Voter.new()
    first = whole.fs.operations
    live(whole, random.Random(1))
    for number in range(first, whole.fs.operations):
        voter = Voter.new()
        voter.fs.crash_at(number)
        with pytest.raises(SimulatedCrash):
            live(voter, random.Random(1))
        voter.fs.crash(loss=Loss.NONE)
        power_fails(voter, random.Random(number), Loss.ALL, f"killed at operation {number} ({voter.doing})")
        looked += 1
    assert looked > 200
