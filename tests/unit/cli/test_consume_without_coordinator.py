"""`consume -G` in a group without a coordinator reports that it waits; with -e it ends with an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import headrace
from headrace.consumer.group import WAITING_S
from headrace_tools.cli.app import run
from headrace_tools.cli.client import GROUP_TIMEOUT_S

WHY = "waiting for the coordinator of group 'billing': COORDINATOR_NOT_AVAILABLE: no coordinator has shard 3"
POLL_S = 1.0
POLLS_MAX = 40


class Alone:
    """A Consumer whose group has no coordinator. Each poll takes a second of the consumer's own clock."""

    polls = 0

    def __init__(self, config: dict[str, Any]) -> None:
        assert config["group.id"] == "billing"
        self._core = self

    def __enter__(self) -> Alone:
        return self

    def __exit__(self, *error: object) -> None: ...

    def subscribe(self, topics: list[str], **callbacks: Callable[..., None]) -> None: ...

    def assignment(self) -> set[headrace.TopicPartition]:
        return set()

    def poll(self, timeout: float, max_records: int) -> list[headrace.Record]:
        Alone.polls += 1
        if Alone.polls > POLLS_MAX:
            raise KeyboardInterrupt
        return []

    def in_group(self, what: str) -> Alone:
        return self

    def waiting(self, longer_than_s: float) -> str:
        return WHY if Alone.polls * POLL_S >= longer_than_s else ""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    Alone.polls = 0
    monkeypatch.setattr(headrace, "Consumer", Alone)


def consume(capfd: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str]]:
    """The exit code, and the lines on stderr."""
    code = run(["consume", "-G", "billing", "orders", "-b", "127.0.0.1:1", *flags])
    output = capfd.readouterr()
    assert output.out == ""
    return code, output.err.splitlines()


def test_it_reports_once_that_it_waits_and_goes_on(capfd: pytest.CaptureFixture[str]) -> None:
    code, lines = consume(capfd)
    assert code == 130, "it would wait on, if it were not interrupted"
    assert [line for line in lines if "coordinator" in line] == [f"% W{WHY[1:]}"]


def test_with_e_it_ends_with_the_cause(capfd: pytest.CaptureFixture[str]) -> None:
    code, lines = consume(capfd, "-e")
    assert code == 1
    assert (Alone.polls, WAITING_S < GROUP_TIMEOUT_S < POLLS_MAX * POLL_S) == (GROUP_TIMEOUT_S / POLL_S, True)
    first, last = (line for line in lines if "coordinator" in line)
    assert first == f"% W{WHY[1:]}"
    assert last == f"headrace: nothing was read within 15 s: {WHY} [COORDINATOR_NOT_AVAILABLE]"
