"""The autoscaler while the cluster does not answer. It runs without processes and without a cluster."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_core.errors import GroupAuthorizationFailedError, HeadraceError, RequestTimedOutError
from headrace_pipelines.access import Access
from headrace_pipelines.lags import Lag
from headrace_pipelines.scaling import processes
from headrace_pipelines.scaling.processes import _Autoscaler
from headrace_pipelines.scaling.scenes import SCENES

SCENE = SCENES[-1]


class _Member:
    running: set[int] = set()  # noqa: RUF012

    def __init__(self, number: int) -> None:
        self.number = number
        self.running.add(number)

    def look(self) -> None: ...

    def ask_to_end(self) -> None: ...

    def stop(self, within_s: float = 0.0) -> None:
        self.running.discard(self.number)


class _Positions:
    def __init__(self, *_: object) -> None: ...

    def look(self) -> tuple[int, int]:
        return 0, 0


def autoscaler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, looks: list[Any]) -> _Autoscaler:
    """``looks``: a lag in seconds, or an error, for each look."""

    def lags(*_: object) -> dict[str, Lag]:
        found = looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return {SCENE.name: Lag(10, found)}

    clock = iter(range(0, 10_000, 3))
    # (for this module only: the threads of other tests' clients also read the clock)
    monkeypatch.setattr(processes, "time", SimpleNamespace(time=time.time, monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(processes, "Admin", lambda _: nullcontext())
    monkeypatch.setattr(processes, "Positions", _Positions)
    monkeypatch.setattr(processes, "lags", lags)
    monkeypatch.setattr(processes, "member", lambda *given: _Member(given[-1]))
    return _Autoscaler(Access("127.0.0.1:1"), SCENE, tmp_path)


def test_members_stay_while_the_coordinator_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[Any] = [9.0, 9.0, *[RequestTimedOutError("no answer of the coordinator")] * 3, 9.0]
    running = []

    def wait(_: float) -> bool:
        running.append(len(_Member.running))
        return not looks

    autoscaler(monkeypatch, tmp_path, looks).run(wait)
    assert running == [1, 2, 4, 4, 4, 4, 4]
    assert _Member.running == set()
    assert capsys.readouterr().err.count("no answer of the coordinator; the members continue") == 3


def test_an_error_that_does_not_pass_ends_the_autoscaler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(HeadraceError):
        autoscaler(monkeypatch, tmp_path, [9.0, GroupAuthorizationFailedError("no")]).run(lambda _: False)
    assert _Member.running == set()
