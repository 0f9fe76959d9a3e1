"""Members and the autoscaler as processes. The owner starts a process again when it dies, as a supervisor does.

    python -m headrace_pipelines.scaling.processes member SCENE DIR
    python -m headrace_pipelines.scaling.processes autoscaler SCENE DIR

A process ends after its poll when its standard input ends. So the members of a killed autoscaler end, and the next
autoscaler starts with one member.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace import Admin
from headrace_core.errors import HeadraceError

from ..access import Access
from ..lags import lags
from ..members import Member, owner_access, owner_ended, stop_all
from . import schema
from .deciding import Limits, Sample, State, decide
from .handling import WORK, consumer_of
from .notes import Notes
from .positions import Positions
from .scenes import PARTITIONS, SCENES, Scene

MODULE = "headrace_pipelines.scaling.processes"
#: The first word of a line of the autoscaler's output. After this word, the line has the seconds since 1970, the number
#: of members, and the lag in seconds.
SCALED = "scaled"
#: Seconds between two checks of the autoscaler.
LOOK_S = 0.5


def member(role: str, access: Access, scene: str, out: Path, number: int = 1) -> Member:
    """The process of a role, whose log is DIR/logs/SCENE-ROLE-NUMBER.log."""
    log = out / "logs" / f"{scene}-{role}-{number}.log"
    return Member(role, [sys.executable, "-m", MODULE, role, scene, str(out)], log, access)


def notes_of(scene: str, out: Path) -> Path:
    """The directory with the notes of a scene's members."""
    return out / "notes" / scene


def rows_of(scene: str, out: Path) -> Path:
    """The file of the database into which the members of a scene write rows."""
    return out / f"{scene}.db"


def main(arguments: Sequence[str]) -> int:
    role, name, directory = arguments
    access = owner_access()
    (scene,) = (each for each in SCENES if each.name == name)
    ended, out = owner_ended(), Path(directory)
    try:
        if role == "autoscaler":
            _Autoscaler(access, scene, out).run(ended.wait)
        else:
            with consumer_of(access, name) as consumer:
                WORK[scene.work](consumer, ended, rows_of(name, out), Notes(notes_of(name, out)))
    except (HeadraceError, sqlite3.Error) as error:
        print(f"{role}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


class _Autoscaler:
    """Starts and stops members of the group, at most one for each partition."""

    def __init__(self, access: Access, scene: Scene, out: Path) -> None:
        self._access, self._scene, self._out = access, scene, out
        self._limits = Limits(partitions=PARTITIONS)
        self._members: list[Member] = []

    def run(self, wait: Callable[[float], bool]) -> None:
        """Check the lag and decide until the owner ends. Raises HeadraceError."""
        name = self._scene.name
        state = State(self._limits.least, time.monotonic())
        try:
            with Admin(self._access.admin()) as admin:
                positions = Positions(admin, schema.topic_of(name), PARTITIONS, schema.group(name))
                before = (time.monotonic(), *positions.look())
                self._have(state.members)
                while not wait(LOOK_S):
                    try:
                        sample, before = self._sample(admin, positions, before)
                    except HeadraceError as error:
                        if not error.retriable:
                            raise
                        # After a retriable error, do not stop the members: they may still work, and a stop would cause
                        # a rebalance.
                        print(
                            f"autoscaler: {error.code}: {error.message}; the members continue",
                            file=sys.stderr,
                            flush=True,
                        )
                        self._have(state.members)
                        continue
                    state = decide(state, sample, self._limits)
                    self._have(state.members)
                    lag = "-" if sample.lag_s is None else f"{sample.lag_s:.3f}"
                    print(f"{SCALED} {time.time():.3f} {state.members} {lag}", flush=True)
        finally:
            stop_all(self._members)

    def _sample(
        self, admin: Admin, positions: Positions, before: tuple[float, int, int]
    ) -> tuple[Sample, tuple[float, int, int]]:
        found = lags(admin, schema.PIPELINE, [self._scene.name]).get(self._scene.name)
        now = (time.monotonic(), *positions.look())
        spent_s, arrived, handled = (new - old for new, old in zip(now, before, strict=True))
        lag_s = None if found is None else 0.0 if not found.records else found.seconds
        return Sample(now[0], lag_s, arrived / spent_s, handled / spent_s), now

    def _have(self, count: int) -> None:
        while len(self._members) > count:
            self._members.pop().stop()
        for each in self._members:
            each.look()
        while len(self._members) < count:
            number = len(self._members) + 1
            self._members.append(member("member", self._access, self._scene.name, self._out, number))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
