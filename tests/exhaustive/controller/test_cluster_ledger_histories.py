"""Random histories in which replicas move, brokers are drained, levels change, and coordinators join and leave. No
record is lost, every step satisfies the invariants, and every move ends. If one guard is removed, some history
fails."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from headrace_controller.cluster import moves
from headrace_controller.cluster.requests import (
    AlterPartitionReassignments,
    CreateTopics,
    FeatureUpdate,
    NewTopic,
    Reassignment,
    UpdateFeatures,
    UpgradeType,
)
from headrace_controller.cluster.sessions import BrokerSessions
from headrace_core.errors import CorruptLogError
from headrace_core.metadata import METADATA_VERSION_FEATURE
from tests.simulation.cluster_histories import Broken
from tests.simulation.ledger_histories import LedgerHistories
from tests.simulation.mutants.ledger_mutants import MUTANTS, Mutant

STEPS = 400
#: Each history takes 0.07 s.
BLOCKS, SEEDS = 4, 15
MUTANT_SEEDS = 40
#: A coordinator is the first to reach a new leader; an older copy that is the only replica registers twice before it
#: leads; it leads only after the level is raised and it gets further replicas.
RARE = (78, 96, 328)


def history_of(seed: int) -> LedgerHistories:
    """Every fourth history begins in an old log."""
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


@pytest.mark.parametrize("seed", RARE)
def test_rare_histories_lose_nothing(seed: int) -> None:
    history_of(seed).run(STEPS)


def test_nothing_is_lost_when_decisions_are_cut_to_pieces() -> None:
    """metadata.max.records.per.request limits the records of one decision, at level 1, too."""
    for seed in range(0, 24, 2):
        history = LedgerHistories(seed, level=1 if seed % 4 == 0 else 2, metadata_max_records_per_request=4)
        try:
            history.run(STEPS)
        except AssertionError as broken:
            raise AssertionError(f"seed {seed}, metadata_max_records_per_request=4: {broken}") from broken


class _LongQueue(LedgerHistories):
    """The history has only its end phase, in which 24 partitions must move, each to or from most of the brokers."""

    def ask_for_moves(self) -> None:
        first, second = [tuple(machine.broker_id for machine in self.machines[at : at + 3]) for at in (0, 2)]
        topic = NewTopic(name="many", assignments=dict.fromkeys(range(24), first))
        self.ask(CreateTopics((topic,)))
        wanted = tuple(Reassignment("many", number, second) for number in range(24))
        self.ask(AlterPartitionReassignments(wanted))
        assert len(self.world.image.ledger.queued) == 23, "one at a time"


def test_at_its_end_a_history_waits_for_a_long_queue_of_moves() -> None:
    """Found by make sim, seed 20261120924: twenty moves needed one round more than the history allowed."""
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


class _OneStops(LedgerHistories):
    """The history has only its end phase. Before the end phase, one broker was asked to delay its stop until another
    broker leads its partitions."""

    def begin_to_stop(self, *, then_level: int) -> None:
        first, second = self.machines[:2]
        only, both = (first.broker_id,), (first.broker_id, second.broker_id)
        self.ask(
            CreateTopics((NewTopic(name="only", assignments={0: only}), NewTopic(name="both", assignments={0: both})))
        )
        self._stop(first)
        assert first.is_up
        assert self.state_of("only") == (-1, only), "at level 1 the last of the ISR stays in it"
        assert self.state_of("both") == (second.broker_id, (second.broker_id,))
        if then_level > 1:
            update = FeatureUpdate(METADATA_VERSION_FEATURE, then_level, UpgradeType.UPGRADE)
            self.ask(UpdateFeatures((update,)))
        assert self.world.image.metadata_version == then_level

    def state_of(self, name: str) -> tuple[int, tuple[int, ...]]:
        partition = self.world.partition(name)
        return partition.leader, partition.isr


@pytest.mark.parametrize("level", [1, 2])
def test_at_its_end_a_history_has_stopped_and_started_again_who_was_still_stopping(level: int) -> None:
    """Found by make sim, seed 2848: a broker asked once to stop, got the answer to wait, and then sent heartbeats as if
    it had not asked. The broker led no partition. Partitions that only this broker could lead therefore had no leader,
    although all brokers were alive."""
    history = _OneStops(0, level=1)
    history.begin_to_stop(then_level=level)
    history.run(0)
    first = history.machines[0]
    assert history.world.image.brokers[first.broker_id].active
    assert history.counts["clean stop"] == 1
    assert history.state_of("only") == (first.broker_id, (first.broker_id,))


def test_a_broker_that_may_never_stop_is_noticed_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokerSessions, "metadata_offset", lambda self, broker_id: 0)
    history = _OneStops(0, level=1)
    history.begin_to_stop(then_level=1)
    with pytest.raises(Broken, match=r"works: .* does not work \(only-0\)"):
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
