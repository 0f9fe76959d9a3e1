"""For each broken guard of groups that change their type, the state machine test (migration_machine.py) must fail. Each
guard has a list of steps in which it fails at once; random runs of the machine found these lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace_coordinator.group import migration, rebalancing
from headrace_coordinator.group.classic_members import ClassicMembers
from headrace_coordinator.group.reconciling import NOTHING, Current, advance, without_unread
from headrace_core.errors import HeadraceError
from tests.worlds.migration_world import COOPERATIVE, EAGER, MigrationMachine

Patch = Callable[[pytest.MonkeyPatch], None]
Step = tuple[Any, ...]


def what_a_member_may_still_read_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group changes its type between the leader's assignment and a member's answer."""
    monkeypatch.setattr(migration, "_unstopped", lambda owned, taken: NOTHING)


def a_join_stops_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cooperative member goes on reading while it joins."""

    def broken(current: Current, target: Any, reads: Any) -> Current:
        return without_unread(current, target, NOTHING)

    monkeypatch.setattr(rebalancing, "without_unread", broken)


def what_another_one_has_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, is_free: Any, **rest: Any) -> Any:
        return advance(*args, is_free=lambda part: True, **rest)

    monkeypatch.setattr(rebalancing, "advance", broken)


def members_move_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members without a stream get a new generation that they do not learn."""
    monkeypatch.setattr(rebalancing, "NO_STREAM", -2)


def a_classic_member_learns_of_no_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassicMembers, "_has_step", lambda self, group, member: False)


STORIES: dict[Patch, tuple[str, tuple[Step, ...]]] = {
    what_a_member_may_still_read_is_free: (
        COOPERATIVE,
        (
            ("start", True), ("start", True), ("steps", 4), ("start", True), ("step", 2, 2), ("step", 1, 1),
            ("step", 0, 2), ("step", 1, 1), ("step", 0, 1), ("step", 0, 1), ("start", False),
        ),
    ),
    a_join_stops_everything: (COOPERATIVE, (("start", True), ("steps", 3), ("start", False))),
    what_another_one_has_is_free: (COOPERATIVE, (("start", True), ("start", False))),
    members_move_without_asking: (EAGER, (("start", False), ("start", True))),
    a_classic_member_learns_of_no_rebalance: (COOPERATIVE, (("start", False), ("start", True))),
}  # fmt: skip


def _run(protocol: str, steps: tuple[Step, ...]) -> None:
    machine = MigrationMachine()
    machine.begin(protocol, version=3, static=False, interval_ms=0)
    for rule, *arguments in steps:
        getattr(machine, rule)(*arguments)
        machine.no_partition_has_two_readers()
        machine.the_log_says_what_the_coordinator_knows()
    machine.teardown()


@pytest.mark.parametrize("mutant", STORIES, ids=lambda mutant: mutant.__name__)
def test_a_broken_guard_is_noticed_in_its_story(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(*STORIES[mutant])  # with the guard, the steps succeed
    mutant(monkeypatch)
    with pytest.raises((AssertionError, HeadraceError)):
        _run(*STORIES[mutant])
