"""Random lives in which replicas move, brokers drain, levels change, coordinators come and go: nothing is lost, every
step is sound, all of it ends. And each guard, taken away, is missed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from cluster_histories import Broken
from ledger_histories import LedgerHistories
from ledger_mutants import MUTANTS, Mutant

from headrace_controller.cluster import moves
from headrace_controller.cluster.ledger_requests import AlterPartitionReassignments, Reassignment
from headrace_controller.cluster.requests import CreateTopics, NewTopic
from headrace_core.errors import CorruptLogError

STEPS = 400
#: Each of them takes 0.07 s.
BLOCKS, SEEDS = 4, 15
MUTANT_SEEDS = 40


def history_of(seed: int) -> LedgerHistories:
    """Every fourth one begins in an old log."""
    return LedgerHistories(seed, level=1 if seed % 4 == 0 else 2)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_is_lost_and_everything_ends_whatever_moves(block: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(block * SEEDS, (block + 1) * SEEDS):
        history = history_of(seed)
        try:
            history.run(STEPS)
        except AssertionError as broken:
            raise AssertionError(f"history_of({seed}).run({STEPS}): {broken}") from broken
        counts.update(history.counts)
    print(dict(counts))
    expected = ("begun", "ended", "planned", "drain", "producer ids", "coordinator", "coordinator beats", "level")
    assert all(counts[what] >= 5 for what in (*expected, "commit", "clean election", "lost a tail")), counts


class _LongQueue(LedgerHistories):
    """Nothing but its end, at which 24 partitions are to change places, each with most of the brokers."""

    def ask_for_moves(self) -> None:
        first, second = [tuple(machine.broker_id for machine in self.machines[at : at + 3]) for at in (0, 2)]
        topic = NewTopic(name="many", assignments=dict.fromkeys(range(24), first))
        self.ask(CreateTopics((topic,)))
        wanted = tuple(Reassignment("many", number, second) for number in range(24))
        self.ask(AlterPartitionReassignments(wanted))
        assert len(self.world.image.ledger.queued) == 23, "one at a time"


def test_at_its_end_a_history_waits_for_a_long_queue_of_moves() -> None:
    """Found by make sim, seed 20261120924: twenty moves were one round short of the time that they were given."""
    history = _LongQueue(1)
    history.ask_for_moves()
    history.run(0)
    ledger = history.world.image.ledger
    assert (dict(ledger.queued), set(ledger.reassigning)) == ({}, set())
    assert history.counts["begun"] >= 24


def test_moves_that_nobody_completes_are_noticed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "have_arrived", lambda partition: False)
    history = _LongQueue(1)
    history.ask_for_moves()
    with pytest.raises(Broken, match=r"end: .* still moves or waits"):
        history.run(0)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_guard_that_is_taken_away_is_missed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.break_it(monkeypatch.setattr)
    for seed in range(MUTANT_SEEDS):
        try:
            history_of(seed).run(STEPS)
        except (Broken, CorruptLogError) as killer:
            print(f"{mutant.name}: killed by seed {seed}: {str(killer)[:300]}")
            return
    pytest.fail(f"{mutant.name} ({mutant.removed}) survived {MUTANT_SEEDS} histories")


def test_the_list_of_mutants_names_each_once() -> None:
    names: list[Any] = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 14
