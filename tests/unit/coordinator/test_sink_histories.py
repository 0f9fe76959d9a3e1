"""Random histories of an exactly-once sink: see tests/worlds/sink_world.py."""

from __future__ import annotations

import collections
import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from headrace_coordinator.transaction import transactions
from headrace_coordinator.transaction.messages import CommitSinkBatch
from headrace_coordinator.transaction.sinks import SinkRecord
from headrace_coordinator.transaction.transactions import TransactionsStateMachine
from tests.worlds.sink_world import SinkWorld

HISTORIES, STEPS = 60, 500


def run(seed: int) -> SinkWorld:
    world = SinkWorld(seed)
    try:
        for _ in range(STEPS):
            world.step()
        world.settle()
        world.check()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return world


def test_every_batch_is_committed_once_and_whole_or_not_at_all() -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    counts: collections.Counter[str] = collections.Counter()
    wanted = (
        "decisions",
        "answered",
        "repeated batches",
        "drained",
        "aborts",
        "append failed",
        "append cut off",
        "answers lost",
        "moves",
        "aborted by an operator",
        "refused decision: INVALID_TXN_STATE",
        "refused PrepareTransaction: PRODUCER_FENCED",
        "refused CompleteTransaction: INVALID_TXN_STATE",
    )
    for number in range(4 * HISTORIES):
        # (by chance, one in a hundred runs of HISTORIES had too few of the rarest)
        if number >= HISTORIES and all(counts[what] >= 10 for what in wanted):
            break
        counts.update(run(first + number).counts)
    happened = dict(counts)
    for what in wanted:
        assert counts[what] >= 10, f"{what} hardly happened: {happened}"


_Patch = Callable[[pytest.MonkeyPatch], None]


def _replaced(owner: object, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> _Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, change(getattr(owner, name)))


def _always(value: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda _: lambda *args, **named: value


def _decides_again(commit: Callable[..., Any]) -> Callable[..., Any]:
    def later_decision_replaces_the_first(self: Any, request: CommitSinkBatch, now_ms: int) -> Any:
        record = self.sinks.get(request.sink)
        if record is not None and record.batch == request.batch:
            self.sinks[request.sink] = SinkRecord(request.batch - 1, record.generation)
        return commit(self, request, now_ms)

    return later_decision_replaces_the_first


MUTANTS: dict[str, _Patch] = {
    "a later decision replaces the first": lambda monkeypatch: monkeypatch.setitem(
        transactions._RULES, CommitSinkBatch, _decides_again(TransactionsStateMachine._commit_sink)
    ),
    "a decision names transactions that are not prepared": _replaced(
        TransactionsStateMachine, "_is_prepared", _always(True)
    ),
    "a new owner does not finish a decision": _replaced(
        TransactionsStateMachine,
        "loaded",
        lambda loaded: lambda self, now_ms: _without(self, lambda: loaded(self, now_ms)),
    ),
    "a transaction may be committed alone": _replaced(TransactionsStateMachine, "_has_ended_so", _always(False)),
    "a producer id keeps its epoch for the next task": _replaced(
        TransactionsStateMachine,
        "_first_identity",
        lambda first: lambda self, free: self.transactions[free].identity if free else first(self, free),
    ),
    "prepared transactions wait for ever": _replaced(
        TransactionsStateMachine,
        "_watch",
        lambda watch: lambda self, name, each, now_ms: None if each.is_prepared else watch(self, name, each, now_ms),
    ),
}


def _without(machine: Any, loaded: Callable[[], Any]) -> Any:
    sinks, machine.sinks = machine.sinks, {}
    try:
        return loaded()
    finally:
        machine.sinks = sinks


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_sink_with_a_guard_less_is_found_out(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    with pytest.raises(AssertionError):
        collections.deque(map(run, range(300)), maxlen=0)
