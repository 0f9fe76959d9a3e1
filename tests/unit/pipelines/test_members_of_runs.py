"""Processes of a run beside Spark: how they end."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from headrace_pipelines import members
from headrace_pipelines.access import Access
from headrace_pipelines.members import Member, stop_all
from tests.worlds.waiting import check_in_time

#: Ends when the standard inputs of as many processes as the second argument says have ended. The first argument is a
#: directory, in which each of them makes a file.
TOGETHER = """
import os, sys, time
sys.stdin.read()
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
while len(os.listdir(sys.argv[1])) < int(sys.argv[2]):
    time.sleep(0.01)
"""


def member(tmp_path: Path, *, wait_for: int) -> Member:
    (tmp_path / "asked").mkdir(exist_ok=True)
    words = [sys.executable, "-c", TOGETHER, str(tmp_path / "asked"), str(wait_for)]
    return Member("slow", words, tmp_path / "log", Access("127.0.0.1:1"))


def test_processes_end_at_the_same_time(tmp_path: Path) -> None:
    """They ended one after another: eight members without a cluster kept Ctrl-C waiting for minutes. A process that is
    asked alone does not end here, and is killed."""
    found = [member(tmp_path, wait_for=6) for _ in range(6)]
    stop_all(found)
    assert [each.exit_code for each in found] == [0] * 6


def test_processes_that_do_not_end_are_killed_after_one_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "STOP_S", 1.0)
    found = [member(tmp_path, wait_for=7) for _ in range(6)]
    began = time.monotonic()
    stop_all(found)
    check_in_time(began, 5.0)
    assert [each.exit_code for each in found] == [-9] * 6
