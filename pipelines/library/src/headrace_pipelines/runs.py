"""The runs of pipelines: which process runs in a directory, where its cluster is, and how the last run ended.

    DIR/run.json    the present or last run
    DIR/run.lock    locked by the process that runs a pipeline in DIR

A process is identified by its pid and its start time, so a signal never reaches another process with the same pid.

A run whose job has called ``prepared`` has topics and checkpoints. If a run with topics and checkpoints does not end
with ``done``, the next run with the same flags continues it.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headrace_core.errors import InvalidArgumentError
from headrace_tools.local.processes import ProcessId, identify

from .durable import replace_file
from .errors import AlreadyRunningError

_FILE, _LOCK = "run.json", "run.lock"


@dataclass(frozen=True, slots=True)
class Run:
    """A run. ``end`` is None during the run; then ``done``, ``stopped``, ``interrupted`` or ``failed``.

    ``flags``: the flags of the run that a continued run must have, too. ``is_prepared``: the topics of the run exist.
    ``continued``: how many times the run was continued.
    """

    pipeline: str
    process: ProcessId
    began_ms: int
    bootstrap_servers: str | None = None
    ended_ms: int | None = None
    end: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    is_prepared: bool = False
    continued: int = 0

    @property
    def state(self) -> str:
        """``running``, the end of the run, or ``died`` if the process of the run ended without recording an end."""
        if self.end is not None:
            return self.end
        return "running" if self.process.alive() else "died"


def find(directory: Path) -> Run | None:
    """The present or last run in ``directory``. Raises InvalidArgumentError if the file is damaged."""
    path = directory / _FILE
    try:
        fields = json.loads(path.read_text())
        return Run(**{**fields, "process": ProcessId(**fields["process"])})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidArgumentError(
            f"{path} is damaged ({type(error).__name__}: {error}); move it away, and start the pipeline again"
        ) from None


@contextmanager
def recorded(
    directory: Path,
    pipeline: str,
    flags: Mapping[str, str] | None = None,
    *,
    restart: bool = False,
    how_to_stop: str | None = None,
) -> Iterator[Callable[[str], None]]:
    """Record a run in ``directory`` while the block runs. The block receives a function, and calls it with the end of
    the run. Without that call the run has ``failed``; after Ctrl-C it was ``interrupted``, after SIGTERM ``stopped``.

    ``how_to_stop``: the text of the error that says how to stop a pipeline that already runs (default:
    `headrace-pipelines stop`).

    If the last run is prepared and not done, the new run continues the last run, except with ``restart``. Raises
    AlreadyRunningError if another process runs a pipeline in the directory, and InvalidArgumentError if the last run
    has other flags.
    """
    given = dict(flags or {})
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            how_to_stop = how_to_stop or f"stop it with `headrace-pipelines stop {pipeline} --out {directory}`"
            raise AlreadyRunningError(
                f"a pipeline already runs in {directory}; {how_to_stop}, or choose another directory with --out"
            ) from None
        process = identify(os.getpid())
        assert process is not None
        new = Run(pipeline, process, _now_ms(), flags=given)
        last = None if restart else find(directory)
        if last is not None and last.pipeline == pipeline and last.is_prepared and last.state != "done":
            _check_same(directory, last.flags, given)
            new = dataclasses.replace(new, is_prepared=True, continued=last.continued + 1)
        ends = ["failed"]  # ends[0] applies if the block names no end
        try:
            _write(directory, new)
            yield ends.append
        except KeyboardInterrupt:
            ends[0] = "interrupted"
            raise
        except SystemExit:
            ends[0] = "stopped"
            raise
        finally:
            with _signals_wait():  # users press Ctrl-C twice
                run = find(directory)
                # A signal may arrive before the file has this run. Then the file keeps the run before this one.
                if run is not None and (run.process, run.began_ms) == (new.process, new.began_ms):
                    _write(directory, dataclasses.replace(run, ended_ms=_now_ms(), end=ends[-1]))


@contextmanager
def _signals_wait() -> Iterator[None]:
    """SIGINT and SIGTERM take effect after this block, which is in the main thread."""
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda each, _: arrived.append(each))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for each in arrived:
        signal.raise_signal(each)


def _check_same(directory: Path, before: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise InvalidArgumentError if a run that continues the last run has other flags than the last run."""
    changed = [name for name in sorted({*before, *given}) if before.get(name) != given.get(name)]
    if changed:
        flags = ", ".join(f"{name} {before.get(name)} (now {given.get(name)})" for name in changed)
        raise InvalidArgumentError(
            f"the run in {directory} is not done, and was started with other flags: {flags}; continue it with the same "
            "flags, or begin again with --restart"
        )


def prepared(directory: Path) -> None:
    """Record that the topics of the run exist. From now on a run that does not end with ``done`` can be continued."""
    run = find(directory)
    if run is not None:
        _write(directory, dataclasses.replace(run, is_prepared=True))


def serving(directory: Path, bootstrap_servers: str) -> None:
    """Record the cluster of the run in ``directory``, for ``status`` and ``replay``."""
    run = find(directory)
    if run is not None:
        _write(directory, dataclasses.replace(run, bootstrap_servers=bootstrap_servers))


def _write(directory: Path, run: Run) -> None:
    replace_file(directory / _FILE, json.dumps(dataclasses.asdict(run)) + "\n")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
