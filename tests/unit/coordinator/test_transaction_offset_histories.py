"""Random histories of transactions with offsets of a group: see tests/worlds/transaction_offsets_world.py."""

from __future__ import annotations

import collections
import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from headrace_coordinator.offsets import logic
from headrace_coordinator.offsets.logic import OffsetsLogic
from headrace_coordinator.offsets.messages import EndOffsets, FetchOffsets
from headrace_coordinator.offsets.pending import Verifications
from headrace_coordinator.runtime.shard import Shard
from headrace_coordinator.transaction import transactions
from headrace_coordinator.transaction.messages import AddPartitions
from headrace_core.errors import HeadraceError
from tests.worlds.transaction_offsets_world import TransactionOffsetsWorld

HISTORIES, STEPS = 100, 600


def _run(seed: int) -> TransactionOffsetsWorld:
    world = TransactionOffsetsWorld(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
    world.check()
    return world


def test_offsets_take_effect_with_their_transaction_or_not_at_all() -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(first, first + HISTORIES):
        try:
            counts.update(_run(seed).counts)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    happened = dict(counts)
    for what in (
        "offsets",
        "committed offsets",
        "refused offsets",
        "repeated requests with offsets",
        "late requests",
        "stable reads",
        "moves of the group's shard",
        "moves",
        "commits",
        "aborts",
        "old markers",
        "time-outs",
    ):
        assert counts[what] >= 10, f"{what} hardly happened: {happened}"


def _unfenced(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def change(ask: Callable[..., None]) -> Callable[..., None]:
        return lambda self, ticket, request, now_ms, *, is_fenced=False: ask(
            self, ticket, request, now_ms, is_fenced=is_fenced and not isinstance(request, kind)
        )

    return change


def _without_sequence(commit: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request, now_ms: commit(self, request._replace(sequence=0), now_ms)


def _adds_without_asking(add: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(self: Any, request: AddPartitions, now_ms: int) -> Any:
        try:
            return add(self, request, now_ms)
        except HeadraceError:
            if request.transactional_id in self.transactions and request.partitions:
                return transactions.Decision()
            raise

    return replacement


MUTANTS: dict[str, tuple[object, str, Callable[[Any], Any]]] = {
    "stable reads are not fenced": (Shard, "ask", _unfenced(FetchOffsets)),
    "answers to markers are not fenced": (Shard, "ask", _unfenced(EndOffsets)),
    "a marker cancels no verification": (Verifications, "cancel", lambda _: lambda self, producer_id, epoch: None),
    "a verification from before a replay counts": (Verifications, "end", lambda _: lambda self, verification: True),
    "a late marker ends the next transaction": (
        logic, "_check_marker", lambda _: lambda marker, pending, is_bumping: None,
    ),
    "a delayed request replaces a later offset": (OffsetsLogic, "commit_in_transaction", _without_sequence),
    "a marker overwrites what was written later": (OffsetsLogic, "_overtaken", lambda _: lambda self, producer_id: {}),
    "an ended transaction takes offsets": (transactions.TransactionsStateMachine, "_add", _adds_without_asking),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_without_a_guard_it_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, change = MUTANTS[name]
    replacement = change(getattr(owner, attribute))
    monkeypatch.setattr(owner, attribute, replacement)
    if attribute == "_add":
        monkeypatch.setitem(transactions._RULES, AddPartitions, replacement)
    for seed in range(200):
        try:
            _run(seed)
        except AssertionError:
            return
    pytest.fail("200 histories noticed nothing")
