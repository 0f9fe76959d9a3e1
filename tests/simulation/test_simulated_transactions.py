"""Run a few schedules of transactions in every test run; ``make sim`` runs thousands.

A failure names its seed: ``make sim SCHEDULES=1 SEED=... SIM="--half transactions"`` repeats it, with its transcript.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from headrace_coordinator.transaction.codec import encode_key, encode_value
from headrace_coordinator.transaction.state import Transaction, TransactionState
from headrace_core.log.transactions import Marker, marker_batch
from headrace_core.membership import transaction_partitions
from headrace_core.records import encode_batch
from headrace_core.types import TopicPartition
from tests.simulation import run
from tests.simulation.determinism import check_one_history, check_plans
from tests.simulation.mutants.scoreboard import MUTANTS
from tests.simulation.sim_checks import Violation
from tests.simulation.sim_plan import Fault
from tests.simulation.sim_world import listen_to_the_log
from tests.simulation.txn_checks import TxnChecks
from tests.simulation.txn_coverage import TRANSACTIONS_LISTED
from tests.simulation.txn_plan import KINDS, make_txn_plan
from tests.simulation.txn_sim_world import TxnWorld
from tests.simulation.wrong_clocks import COORDINATORS, roles_off

SCHEDULES = 16


@pytest.mark.parametrize("part", range(2))
def test_no_schedule_of_transactions_breaks_a_promise(part: int) -> None:
    listen_to_the_log()
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    for seed in range(first + part, first + SCHEDULES, 2):
        outcome = run.outcome_of(make_txn_plan(seed))
        again = f'make sim SCHEDULES=1 SEED={seed} SIM="--half transactions"'
        assert outcome.failure is None, f"{outcome.failure}; again: {again}"
        assert outcome.events > 1_000
        assert run.part_of(outcome) == "transactions"


def test_a_seed_of_transactions_is_one_history_in_every_process_whatever_its_hashes_are() -> None:
    check_one_history((3, 11), "transactions")


def test_plans_of_transactions_are_what_they_are_said_to_be() -> None:
    assert set(check_plans(make_txn_plan, 500)) == set(KINDS)


def test_a_run_of_transactions_that_saw_too_little_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    coverage = Counter(dict.fromkeys(TRANSACTIONS_LISTED, 1))
    part = run.PartTally(500, [9_000] * 500, [30] * 500, coverage)
    tally = run.Tally(beside={**run.Tally().beside, "transactions": part})
    assert run.report(tally, is_measured=False) == []
    del coverage["transaction", "epochs ran out"]
    (wrong,) = run.report(tally, is_measured=False)
    assert "transaction epochs ran out" in wrong
    capsys.readouterr()


def test_mutants_of_transactions_name_faults_that_exist() -> None:
    mutants = [mutant for mutant in MUTANTS.values() if mutant.part == "transactions"]
    assert len(mutants) >= 30
    assert all(set(mutant.faults) <= set(KINDS) for mutant in mutants)


@pytest.mark.parametrize("name", ["EndsWithoutANewEpoch", "AllIsStable", "VerifiesNothing"])
def test_a_guard_of_transactions_that_is_removed_is_missed(name: str) -> None:
    _, outcomes = run.do_work(run.Work(name, 1, 60))
    failure = outcomes[-1].failure
    assert failure is not None, f"{name} survived"
    assert failure.by_checker


@pytest.mark.parametrize("name", [None, "CountsFromTheStart", "LeadersCheckTheTimesOfTransactions"])
def test_coordinators_that_are_days_apart_take_shards_over_and_nothing_else_happens(name: str | None) -> None:
    assert roles_off(3) == {COORDINATORS}
    faults = tuple(
        Fault(number, 500.0 + 150.0 * number, ("coordinator_crash", "shards_move")[number % 2], 100.0, 0.5, number)
        for number in range(12)
    )
    plan = replace(make_txn_plan(3), faults=faults, coordinators=2, timeout_ms=1_500)
    with contextlib.nullcontext() if name is None else MUTANTS[name].applied():
        failure = run.outcome_of(plan).failure
    found = {None: None, "CountsFromTheStart": "timeout", "LeadersCheckTheTimesOfTransactions": "liveness"}
    assert (failure and failure.what) == found[name]


def test_patches_of_a_schedule_of_transactions_are_gone_when_it_is_over() -> None:
    run.run_one(run.plan_of(1, "transactions"))
    assert transaction_partitions.VERIFICATION_S == 10.0


# -- the checks themselves: a violation that is planted is found -------------------------------------------------------


def checks() -> TxnChecks:
    return TxnWorld(make_txn_plan(1)).checks


def decided(found: TxnChecks, name: str, state: TransactionState, **changes: Any) -> None:
    transaction = Transaction(7, 0, 800, state, frozenset({TopicPartition("orders", 0)}), 5_000, 1_000, 2)
    key = encode_key(name)
    found._decision(key[4:].decode(), encode_value(transaction._replace(**changes)))


def opened() -> TxnChecks:
    """Open a transaction of producer 7, epoch 0, with a batch in partition 0."""
    found = checks()
    decided(found, "t0", TransactionState.EMPTY)
    decided(found, "t0", TransactionState.ONGOING)
    committed(found, 0, 0, b"a")
    return found


def committed(found: TxnChecks, epoch: int, offset: int, value: bytes) -> None:
    batch = encode_batch(
        [(1, None, value, None)], producer_id=7, producer_epoch=epoch, base_sequence=0, transactional=True
    )
    found._commit(found.truths[0], offset, batch)


def marked(found: TxnChecks, epoch: int, *, commit: bool) -> None:
    found._commit(found.truths[0], 9, marker_batch(Marker(7, epoch, commit, 1, 2), 1))


def test_a_marker_needs_a_decision_with_its_outcome() -> None:
    found = opened()
    with pytest.raises(Violation, match="marker: partition 0: the marker at 0 commits"):
        marked(found, 1, commit=True)
    decided(found, "t0", TransactionState.PREPARE_COMMIT, producer_epoch=1)
    with pytest.raises(Violation, match="aborts the transaction of producer 7, epoch 1"):
        marked(found, 1, commit=False)
    marked(found, 1, commit=True)


def test_no_batch_stands_behind_the_marker_of_its_epoch_or_beside_another_epoch() -> None:
    found = opened()
    with pytest.raises(Violation, match=r"mixed: .* transaction of epoch 0 is open since 0"):
        committed(found, 1, 1, b"b")
    decided(found, "t0", TransactionState.PREPARE_COMMIT, producer_epoch=1)
    marked(found, 1, commit=True)
    with pytest.raises(Violation, match=r"late batch: .* up to epoch 0 have ended"):
        committed(found, 0, 3, b"c")


def test_a_marker_ends_no_transaction_of_its_own_epoch() -> None:
    found = opened()
    decided(found, "t0", TransactionState.PREPARE_COMMIT, producer_epoch=1)
    marked(found, 1, commit=True)
    decided(found, "t0", TransactionState.COMPLETE_COMMIT, producer_epoch=1)
    decided(found, "t0", TransactionState.ONGOING, producer_epoch=1)
    committed(found, 1, 3, b"b")
    with pytest.raises(Violation, match="late marker: partition 0"):
        marked(found, 1, commit=True)


def test_a_value_is_committed_once() -> None:
    found = opened()
    with pytest.raises(Violation, match="doubled"):
        committed(found, 0, 1, b"a")


def test_states_and_epochs_do_not_go_back() -> None:
    found = opened()
    with pytest.raises(Violation, match="transitions: t0 goes from"):
        decided(found, "t0", TransactionState.EMPTY)
    found = opened()
    decided(found, "t0", TransactionState.PREPARE_COMMIT, producer_epoch=3)
    with pytest.raises(Violation, match="goes back from epoch 3 to 2"):
        decided(found, "t0", TransactionState.COMPLETE_COMMIT, producer_epoch=2)
    with pytest.raises(Violation, match="producer ids: t0 and t1"):
        decided(found, "t1", TransactionState.EMPTY)


def test_an_abort_needs_a_reason() -> None:
    found = opened()
    decided(found, "t0", TransactionState.PREPARE_ABORT, producer_epoch=1)  # 4 s after it began: its timeout
    found = opened()
    with pytest.raises(Violation, match="timeout: t0 is aborted 300 ms after it began"):
        decided(found, "t0", TransactionState.PREPARE_ABORT, producer_epoch=1, updated_ms=1_300)
    found = opened()
    found.world.abort_asked("t0", prepared=False)
    decided(found, "t0", TransactionState.PREPARE_ABORT, producer_epoch=1, updated_ms=1_300)
    found = opened()
    decided(found, "t0", TransactionState.ONGOING, is_prepared=True)
    found.world.abort_asked("t0", prepared=False)
    with pytest.raises(Violation, match="prepared: t0 was prepared, and is aborted"):
        decided(found, "t0", TransactionState.PREPARE_ABORT, producer_epoch=1)
