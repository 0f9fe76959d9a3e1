"""Each guard of the groups, broken: the machine (groups_machine.py) must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from headrace_coordinator.group import checks, groups, rebalancing
from headrace_coordinator.group.reconciling import advance
from tests.worlds.groups_machine import GroupsMachine

Patch = Callable[[pytest.MonkeyPatch], None]


def crossing_heartbeats_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "owned_that_counts", lambda request, member: request.owned)


def what_another_one_has_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, is_free: Any, **rest: Any) -> Any:
        return advance(*args, is_free=lambda part: True, **rest)

    monkeypatch.setattr(rebalancing, "advance", broken)


def revoked_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions move without the member's confirmation."""

    def broken(current: Any, target: Any, *args: Any, owned: Any = None, **rest: Any) -> Any:
        return advance(current, target, *args, owned=frozenset(), **rest)

    monkeypatch.setattr(rebalancing, "advance", broken)


def a_broken_connection_has_no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalancing, "reads_nothing", lambda member, steady_ms: not member.session.connected)


def half_a_decision_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups.Groups, "_is_whole", lambda self, group, subscribed: True)


def changed_topics_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups.Groups, "_review", lambda self, turn, group: None)


MUTANTS: tuple[Patch, ...] = (
    crossing_heartbeats_count,
    what_another_one_has_is_free,
    revoked_is_let_go,
    a_broken_connection_has_no_grace,
    half_a_decision_is_left_as_it_is,
    changed_topics_are_not_looked_at,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_guard_is_noticed(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    search = settings(
        max_examples=3_000, stateful_step_count=50, phases=[Phase.generate], database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    with pytest.raises((Exception, ExceptionGroup)):
        run_state_machine_as_test(GroupsMachine, settings=search)
