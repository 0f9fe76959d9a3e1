"""Processes of a run beside Spark: how they end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from headrace_pipelines import members
from headrace_pipelines.access import Access
from headrace_pipelines.members import Member, stop_all

#: Ends SECONDS after its standard input has ended; the argument is SECONDS.
SLOW = "import sys, time; sys.stdin.read(); time.sleep(float(sys.argv[1]))"


def member(tmp_path: Path, seconds: float) -> Member:
    return Member("slow", [sys.executable, "-c", SLOW, str(seconds)], tmp_path / "log", Access("127.0.0.1:1"))


def test_processes_end_at_the_same_time(tmp_path: Path) -> None:
    """They ended one after another: eight members without a cluster kept Ctrl-C waiting for minutes."""
    found = [member(tmp_path, 1.0) for _ in range(6)]
    began = time.monotonic()
    stop_all(found)
    assert time.monotonic() - began < 5.0
    assert [each.exit_code for each in found] == [0] * 6


def test_processes_that_do_not_end_are_killed_after_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "STOP_S", 1.0)
    found = [member(tmp_path, 60.0) for _ in range(6)]
    began = time.monotonic()
    stop_all(found)
    assert time.monotonic() - began < 5.0
    assert [each.exit_code for each in found] == [-9] * 6
