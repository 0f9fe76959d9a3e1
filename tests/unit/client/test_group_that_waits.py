"""Messages to a caller whose member cannot read: the cause of the pause, and a missing coordinator."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headrace.consumer import group as group_consumer
from headrace.consumer.driving import drive_async
from headrace_core.errors import CoordinatorNotAvailableError
from headrace_tools.cli import consume as command
from tests.unit.client.test_group_consumer import Coordinator, Make, Party, joined, make, parties, run

__all__ = ["make", "parties"]


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING and text in each.message]


def alone(make: Make) -> Party:
    """A consumer whose group has no coordinator."""
    party = make(Coordinator(0))

    async def address(group_id: str, timeout_s: float) -> str:
        raise CoordinatorNotAvailableError("group 'g': no coordinator has shard 3 now")

    party.group._coordinators.address = address  # type: ignore[method-assign]
    party.subscribe()
    return party


def test_a_pause_is_logged_once_by_poll_and_shown_by_metrics(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        party = await joined(make, 0)
        membership = party.group._membership
        assert party.core.metric_values()["paused-since-ms"] == 0
        membership.member.session_s = 0.0  # (as if it had passed without an answer)
        membership.nudge()
        await party.away_until(lambda: party.group.paused)
        assert party.core.reading.inbox.alarm, "a poll that waits is woken"
        assert not warnings(caplog, "stops reading"), "it is poll that logs it"
        for _ in range(3):
            await party.comes_back()
        (warning,) = warnings(caplog, "stops reading")
        assert f"group 'g': member {party.group._member_id} stops reading: no answer from the coordinator" in warning
        assert "headrace doctor" in warning
        values = party.core.metric_values()
        assert values["paused-since-ms"] > 1e12
        assert (values["paused-no-answer"], values["paused-no-connection"]) == (1, 0)
        party.coordinator.tell(party.coordinator.streams[-1], with_assignment=False)
        await party.away_until(lambda: party.group.paused is None)
        await party.comes_back()
        assert party.core.metric_values()["paused-no-answer"] == 0
        assert len(warnings(caplog, "stops reading")) == 1
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)


def test_who_waits_for_a_coordinator_hears_of_it_after_some_seconds_and_seldom(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_consumer, "WAITING_S", 0.02)

    async def scenario() -> None:
        party = alone(make)
        await party.until(lambda: warnings(caplog, "waiting for the coordinator"))
        for _ in range(3):
            await party.comes_back()
        (warning,) = warnings(caplog, "waiting for the coordinator")
        assert "group 'g': COORDINATOR_NOT_AVAILABLE" in warning
        assert "headrace up --coordinators 1" in warning
        assert party.group.wake_at(float("inf")) < float("inf"), "a poll that waits looks again"
        await drive_async(party.group.leave_steps(), party.io)
        assert party.group.waiting(0.0) == ""

    run(scenario)


@pytest.mark.parametrize("exit_at_end", [False, True])
def test_consume_in_a_group_says_that_no_coordinator_answers_and_fails_when_it_should_end(
    make: Make, monkeypatch: pytest.MonkeyPatch, *, exit_at_end: bool
) -> None:
    monkeypatch.setattr(group_consumer, "WAITING_S", 0.01)
    notes: list[str] = []
    monkeypatch.setattr(command, "note", notes.append)

    class Face:
        def __init__(self, core: Any) -> None:
            self._core = core

    async def scenario() -> None:
        party = alone(make)
        waiting, face = command._Waiting(gives_up=exit_at_end), Face(party.core)

        def is_warned() -> bool:
            waiting.look(face)
            return bool(notes)

        await party.until(is_warned)
        assert notes[0].startswith("% Waiting for the coordinator of group 'g'")
        monkeypatch.setattr(command, "GROUP_TIMEOUT_S", 0.2)
        await party.until(lambda: party.group.waiting(0.25))
        if exit_at_end:
            with pytest.raises(CoordinatorNotAvailableError, match="nothing was read within"):
                waiting.look(face)
        else:
            waiting.look(face)
        assert len(notes) == 1
        await drive_async(party.group.leave_steps(), party.io)

    run(scenario)
