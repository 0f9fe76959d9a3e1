"""The runs of pipelines: which process runs in a directory, where its cluster is, and how the last run ended.

    DIR/run.json    the present or last run
    DIR/run.lock    locked by the process that runs a pipeline in DIR

A process is known by its pid and its start time, so a signal never reaches another process with the same pid.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace_tools.local.processes import ProcessId, identify

from .errors import AlreadyRunningError

_FILE, _LOCK = "run.json", "run.lock"


@dataclass(frozen=True, slots=True)
class Run:
    """A run. ``end`` is None while the run goes on, and later ``done``, ``stopped``, ``interrupted`` or ``failed``."""

    pipeline: str
    process: ProcessId
    began_ms: int
    bootstrap_servers: str | None = None
    ended_ms: int | None = None
    end: str | None = None

    @property
    def state(self) -> str:
        """``running``, the end of the run, or ``died`` if its process ended without a record."""
        if self.end is not None:
            return self.end
        return "running" if self.process.alive() else "died"


def find(directory: Path) -> Run | None:
    """The present or last run in ``directory``."""
    try:
        fields = json.loads((directory / _FILE).read_text())
    except FileNotFoundError:
        return None
    return Run(**{**fields, "process": ProcessId(**fields["process"])})


@contextmanager
def recorded(directory: Path, pipeline: str) -> Iterator[Callable[[str], None]]:
    """Record a run in ``directory`` while the block runs; the block calls the function with the end of the run.

    Raises AlreadyRunningError if another process runs a pipeline in the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyRunningError(
                f"a pipeline already runs in {directory}; stop it with `headrace-pipelines stop {pipeline} --out "
                f"{directory}`, or choose another directory with --out"
            ) from None
        process = identify(os.getpid())
        assert process is not None
        _write(directory, Run(pipeline, process, _now_ms()))
        ends = ["failed"]
        try:
            yield ends.append
        finally:
            run = find(directory)
            assert run is not None
            _write(directory, dataclasses.replace(run, ended_ms=_now_ms(), end=ends[-1]))


def serving(directory: Path, bootstrap_servers: str) -> None:
    """Record the cluster of the run in ``directory``, for ``status`` and ``replay``."""
    run = find(directory)
    if run is not None:
        _write(directory, dataclasses.replace(run, bootstrap_servers=bootstrap_servers))


def _write(directory: Path, run: Run) -> None:
    new = directory / f".{_FILE}.new"
    new.write_text(json.dumps(dataclasses.asdict(run)) + "\n")
    new.replace(directory / _FILE)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
