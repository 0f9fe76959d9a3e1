"""``headrace-pipelines run`` as a process that a test may kill."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace import Admin, LocalCluster
from headrace_core.testing.verdicts import NotInTimeError
from headrace_pipelines.testing import kill_session
from tests.worlds.waiting import until

LONG_S = 600.0
NUMBER = re.compile(r"(?:lines|payments|records|commands): ([\d,]+) of ")


def kinds_to_kill(kinds: Sequence[str]) -> tuple[str, ...]:
    """The kinds of processes that a run of the tests kills: all in `make verify` (HEADRACE_PIPELINES_KILLED=all). CI
    runs each of the long files every sixth day, and kills the next kind each time."""
    if os.environ.get("HEADRACE_PIPELINES_KILLED") == "all":
        return tuple(kinds)
    return (kinds[int(os.environ["HEADRACE_TEST_SEED"]) // 6 % len(kinds)],)


class Run:
    """The command in its own process session. The run writes its summary to DIRECTORY/summary and its progress to
    DIRECTORY/said."""

    def __init__(self, pipeline: str, directory: Path, flags: list[str]) -> None:
        self._directory = directory
        command = [sys.executable, "-m", "headrace_pipelines", "run", pipeline, "--out", str(directory / "out")]
        with (directory / "summary").open("wb") as summary, (directory / "said").open("wb") as said:
            self.process = subprocess.Popen(
                [*command, "-o", "json", *flags], stdout=summary, stderr=said, start_new_session=True
            )

    def said(self) -> str:
        return (self._directory / "said").read_text(errors="replace")

    def progress(self) -> int:
        """The number of records that the run has processed, of all releases."""
        total = last = 0
        for number in (int(found.replace(",", "")) for found in NUMBER.findall(self.said())):
            total += max(0, number - last) if number >= last else number
            last = number
        return total

    def wait_for(self, processed: int) -> int:
        """Wait until the run has processed this number of records; return the current number."""
        deadline = time.monotonic() + LONG_S
        while (done := self.progress()) < processed:
            if time.monotonic() > deadline:
                raise NotInTimeError(f"the run has not processed {processed} records: {self.said()[-2000:]}")
            try:
                code = self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(f"the run ended with {code} before {processed} records: {self.said()[-3000:]}")
        return done

    def outlives(self, cluster: LocalCluster, role: str, node: int) -> None:
        """Kill a node, and start it again when the run has continued without it: other brokers lead the broker's
        partitions, and the run has processed more records (or has ended). The first line of progress after the kill may
        count only records from before the kill."""
        with cluster.killed(role, node):
            if role == "broker":
                with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
                    until(lambda: _has_leaders(admin, node), f"other brokers to lead the partitions of broker {node}")
            for _ in range(2):
                done = self.progress()
                until(lambda done=done: self._is_beyond(done), "the run to continue", LONG_S, pause_s=0.05)  # type: ignore[misc]

    def _is_beyond(self, done: int) -> bool:
        return self.progress() > done or self.process.poll() is not None

    def summary(self) -> dict[str, Any]:
        assert self.process.wait(LONG_S) == 0, self.said()[-3000:]
        return dict(json.loads((self._directory / "summary").read_text()))

    def kill(self) -> None:
        """kill -9 for the command and all its processes: its JVM, its executors, its workers."""
        if self.process.poll() is None:
            kill_session(self.process.pid)
            self.process.wait()

    def executors(self) -> list[psutil.Process]:
        found = []
        for each in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # or a zombie, for which its parent has not waited
                if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in each.cmdline():
                    found.append(each)
        return found


def processes(run: Run, role: str) -> list[psutil.Process]:
    """The run's processes with a role, such as "handler"."""
    found = []
    for each in psutil.Process(run.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process has ended
            found += [each] if role in each.cmdline() else []
    return found


def _has_leaders(admin: Admin, dead: int) -> bool:
    return all(part.leader != dead for topic in admin.describe_topics() for part in topic.partitions)
