"""Histories of one shard, its owners and its log (shard_sim.py): nothing acknowledged is lost, no offset goes back."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from unittest import mock

import pytest

from headrace_coordinator.runtime.shard import Answer, Shard
from headrace_core.errors import HeadraceError
from tests.property.coordinator.shard_sim import History, Partition

HISTORIES, STEPS = 150, 300


def test_nothing_acknowledged_is_lost_and_no_offset_goes_back(rng: random.Random) -> None:
    acknowledged = 0
    for _ in range(HISTORIES):
        seed = rng.randrange(2**32)
        history = History(seed)
        try:
            history.run(STEPS)
        except Exception as error:
            raise AssertionError(f"History({seed}).run({STEPS})") from error
        acknowledged += history.acknowledged
    assert acknowledged > 10 * HISTORIES, "the histories hardly acknowledge anything, and so prove nothing"


def _answers_before_the_commit(decided: Callable[..., None]) -> Callable[..., None]:
    def replacement(shard: Shard, ticket: object, decision: object) -> None:
        if ticket is not None:
            shard._todo.append(Answer(ticket, decision.reply))  # type: ignore[attr-defined]
        decided(shard, None, decision)

    return replacement


def _takes_unknown_for_done(append_failed: Callable[..., None]) -> Callable[..., None]:
    def replacement(shard: Shard, attempt: int, error: HeadraceError) -> None:
        if error.code == "REQUEST_TIMED_OUT" and attempt == shard.attempt and shard._flying is not None:
            shard.appended(attempt, shard._end)
        else:
            append_failed(shard, attempt, error)

    return replacement


def _anybody_writes() -> contextlib.AbstractContextManager[object]:
    return mock.patch.multiple(Partition, check_epoch=lambda self, epoch: None, check_end=lambda self, end: None)


MUTANTS = {
    "the leader asks neither for the epoch nor for the end": _anybody_writes,
    "answers do not wait for the commit": lambda: mock.patch.object(
        Shard, "_decided", _answers_before_the_commit(Shard._decided)
    ),
    "an unknown outcome counts as done": lambda: mock.patch.object(
        Shard, "append_failed", _takes_unknown_for_done(Shard.append_failed)
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_without_a_guard_it_is_noticed(name: str) -> None:
    with MUTANTS[name]():
        for seed in range(400):
            try:
                History(seed).run(STEPS)
            except AssertionError:
                return
    pytest.fail("400 histories, and nobody noticed")
