"""For each broken guard of the groups, the state machine test (groups_machine.py) must fail. Each guard has a list of
steps in which it fails at once. Random runs of the machine found these lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headrace_coordinator.group import checks, groups, rebalancing, reconciling
from headrace_coordinator.group.reconciling import advance
from headrace_core.errors import HeadraceError
from tests.worlds.group_world import Client, GroupsMachine

Patch = Callable[[pytest.MonkeyPatch], None]
Begin = tuple[str, int, bool]
Step = tuple[Any, ...]


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


def what_was_taken_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_from = reconciling._taken_from

    def broken(current: Any, target: Any) -> Any:
        return replace(taken_from(current, target), taken=frozenset())

    monkeypatch.setattr(reconciling, "_taken_from", broken)


def a_commit_has_the_newest_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the coordinator nor the member keeps the epochs of two ownerships apart."""

    def broken(current: Any, target: Any, target_epoch: int, **rest: Any) -> Any:
        after = advance(current, target, target_epoch, **rest)
        return after if after.taken.isdisjoint(target) or after.revoking else replace(after, epoch=target_epoch)

    send_commit = Client.send_commit

    def sent(self: Client, parts: Any = None) -> bool:
        ended, self.ended = self.ended, {}
        is_sent = send_commit(self, parts)
        self.ended = ended
        return is_sent

    monkeypatch.setattr(rebalancing, "advance", broken)
    monkeypatch.setattr(Client, "send_commit", sent)


#: A static member is cut off; another member gets one of its partitions, reads on, commits, and leaves.
CUT_OFF: tuple[Step, ...] = (
    ("join", "a", False), ("hear", 0, True), ("process_and_commit", 0), ("cut", 0), ("sleep", 5_000),
    ("join", "b", False), ("hear", 1, True), ("process_and_commit", 1), ("process_and_commit", 1), ("leave", 1, False),
    ("heartbeat", 0),
)  # fmt: skip

#: For each broken guard, the shortest list of steps in which the test's state machine fails. A list begins with the
#: group's settings (assignor, interval, static members), followed by the machine's rules. If a list no longer fails
#: after a change of the groups, find another list: draw random rules, keep a list that fails only without the guard,
#: and remove every rule that is not needed.
STORIES: dict[Patch, tuple[Begin, tuple[Step, ...]]] = {
    crossing_heartbeats_count: (
        ("uniform", 0, False),
        (
            ("join", "a", False), ("hear", 0, True), ("join", "b", False), ("hear", 0, True), ("heartbeat", 0),
            ("hear", 1, True), ("join", "d", False), ("join", "c", False), ("heartbeat", 1), ("hear", 3, True),
            ("heartbeat", 2), ("hear", 2, True), ("hear", 1, True),
        ),
    ),
    what_another_one_has_is_free: (("uniform", 0, True), (("join", "a", True), ("join", "c", False))),
    revoked_is_let_go: (
        ("range", 0, False),
        (
            ("join", "c", True), ("join", "a", True), ("hear", 0, True), ("heartbeat", 0), ("hear", 1, False),
            ("hear", 1, False),
        ),
    ),
    a_broken_connection_has_no_grace: (
        ("range", 300, False),
        (
            ("join", "c", True), ("hear", 0, False), ("join", "a", True), ("take_over",), ("die", 1),
            ("join", "a", True), ("hear", 1, True),
        ),
    ),
    what_was_taken_is_forgotten: (
        ("uniform", 0, True), (*CUT_OFF, ("hear", 0, True), ("process_and_commit", 0)),
    ),
    a_commit_has_the_newest_epoch: (
        ("uniform", 0, True),
        (*CUT_OFF, ("hear", 0, False), ("send_a_commit", 0), ("let_go", 0), ("heartbeat", 0), ("commit_arrives", 0)),
    ),
    half_a_decision_is_left_as_it_is: (
        ("sticky", 0, False),
        (("join", "c", False), ("hear", 0, True), ("append_is_cut_off", 0, False, 2)),
    ),
    changed_topics_are_not_looked_at: (
        ("range", 300, False),
        (("join", "c", False), ("hear", 0, False), ("join", "b", False), ("hear", 1, False)),
    ),
}  # fmt: skip
every_mutant = pytest.mark.parametrize("mutant", STORIES, ids=lambda mutant: mutant.__name__)


def _run(begin: Begin, steps: tuple[Step, ...]) -> None:
    machine = GroupsMachine()
    machine.begin(*begin)
    for rule, *arguments in steps:
        getattr(machine, rule)(*arguments)
        machine.nobody_reads_what_another_one_reads()
        machine.the_log_says_what_the_coordinator_knows()
    machine.teardown()


@every_mutant
def test_a_broken_guard_is_noticed_in_its_story(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(*STORIES[mutant])  # with the guard, the steps succeed
    mutant(monkeypatch)
    with pytest.raises((AssertionError, HeadraceError)):
        _run(*STORIES[mutant])
