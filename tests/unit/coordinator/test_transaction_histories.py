"""Random histories of a transaction shard, its leaders and its producers: see tests/worlds/transaction_world.py."""

from __future__ import annotations

import collections
import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from headrace_coordinator.state_machine import Decision
from headrace_coordinator.transaction import transactions
from headrace_coordinator.transaction.messages import MarkersWritten, ProducerIdReply
from headrace_coordinator.transaction.state import Transaction
from headrace_coordinator.transaction.transactions import TransactionsStateMachine
from tests.worlds.transaction_world import TransactionWorld

HISTORIES, STEPS = 150, 400
_Patch = Callable[[pytest.MonkeyPatch], None]


def test_every_transaction_has_one_outcome_and_no_zombie_writes() -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    counts: collections.Counter[str] = collections.Counter()
    wanted = (
        "sends",
        "commits",
        "aborts",
        "repeated",
        "fenced",
        "abortable",
        "prepared",
        "kept prepared",
        "completed by token",
        "old markers",
        "moves",
        "append failed",
        "time-outs",
        "aborted by an operator",
    )
    for seed in range(first, first + 4 * HISTORIES):
        # (by chance, a run of HISTORIES may have too few of the rarest)
        if seed >= first + HISTORIES and all(counts[what] >= 10 for what in wanted):
            break
        world = TransactionWorld(seed)
        try:
            for _ in range(STEPS):
                world.step()
            world.settle()
            world.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        counts.update(world.counts)
    happened = dict(counts)
    for what in wanted:
        assert counts[what] >= 10, f"{what} hardly happened: {happened}"


def _outcome(monkeypatch: pytest.MonkeyPatch, patch: Callable[[pytest.MonkeyPatch], None]) -> str | None:
    """The failure of the histories for a shard without one guard, or None if they found no failure."""
    patch(monkeypatch)
    for seed in range(400):
        world = TransactionWorld(seed)
        try:
            for _ in range(STEPS):
                world.step()
            world.settle()
            world.check()
        except AssertionError as error:
            return str(error)
    return None


def _replaced(owner: object, name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> _Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(owner, name, change(getattr(owner, name)))

    return patch


def _ruled(request: type, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> _Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(transactions._RULES, request, change(transactions._RULES[request]))

    return patch


def _end_with(**changes: object) -> _Patch:
    """Each transaction is ended with other arguments than its rule says."""
    return _replaced(
        TransactionsStateMachine,
        "_end",
        lambda end: lambda self, *args, **named: end(self, *args, **{**named, **changes}),
    )


def _always(value: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda _: lambda *args, **named: value


def _same_epoch(end: Callable[..., Any]) -> Callable[..., Any]:
    def keeps_the_epoch(self: Any, name: str, before: Transaction, now_ms: int, **named: Any) -> Any:
        return end(self, name, before._replace(version=1), now_ms, **{**named, "is_fence": False})

    return keeps_the_epoch


def _completes_at_once(written: Callable[..., Any]) -> Callable[..., Any]:
    def first_marker_is_enough(self: Any, request: MarkersWritten, now_ms: int) -> Any:
        return written(
            self, request._replace(partitions=frozenset(self._missing.get(request.transactional_id, ()))), now_ms
        )

    return first_marker_is_enough


def _any_marker(written: Callable[..., Any]) -> Callable[..., Any]:
    def whose_marker_it_was_is_not_looked_at(self: Any, request: MarkersWritten, now_ms: int) -> Any:
        transaction = self.transactions.get(request.transactional_id)
        if transaction is not None:
            request = request._replace(identity=transaction.identity)
        return written(self, request, now_ms)

    return whose_marker_it_was_is_not_looked_at


def _same_owner(take: Callable[..., Any]) -> Callable[..., Any]:
    def new_owner_gets_the_old_identity(self: Any, name: str, before: Transaction, now_ms: int) -> Any:
        return Decision(reply=ProducerIdReply(before.owner, before.identity))

    return new_owner_gets_the_old_identity


def _same_init(give: Callable[..., Any]) -> Callable[..., Any]:
    def new_producer_gets_the_old_identity(self: Any, name: str, before: Transaction, *rest: Any) -> Any:
        return Decision(reply=ProducerIdReply(before.identity))

    return new_producer_gets_the_old_identity


MUTANTS: dict[str, _Patch] = {
    "an end keeps the epoch": _replaced(TransactionsStateMachine, "_end", _same_epoch),
    "every end aborts": _end_with(commit=False),
    "every end commits": _end_with(commit=True),
    "a replaced producer may repeat its end": _end_with(forget_producer=False),
    "no producer may repeat its end": _end_with(forget_producer=True),
    "the first marker completes": _ruled(MarkersWritten, _completes_at_once),
    "late markers count for the next transaction": _ruled(MarkersWritten, _any_marker),
    "a prepared transaction times out": _replaced(
        Transaction, "is_undecided_for_ever", lambda _: property(lambda self: False)
    ),
    "a prepared transaction's new owner has the old identity": _replaced(
        TransactionsStateMachine, "_take_prepared", _same_owner
    ),
    "a new producer has the old identity": _replaced(TransactionsStateMachine, "_next_epoch", _same_init),
    "whoever asks is the owner": _replaced(Transaction, "was_owned_by", _always(True)),
    "no end is repeated": _replaced(transactions, "_is_repeated", _always(False)),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_shard_with_a_guard_less_is_found_out(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _outcome(monkeypatch, MUTANTS[mutant]) is not None
