"""``headrace lag --alert``: which groups are above their limits, and the exit codes."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from headrace.group_models import GroupLag, GroupListing, PartitionLag
from headrace_core.errors import CoordinatorNotAvailableError
from headrace_core.lag import VERDICTS, verdict, worst
from headrace_tools.lag_limits import Limits, judged


def _part(lag: int | None, lag_ms: int | None, status: str = "OK", *, number: int = 0, complete: float = 1) -> Any:
    return PartitionLag("t", number, 10, 0, None if lag is None else 10 + lag, lag, lag_ms, False, 0, status, complete)


def _judged(
    *parts: PartitionLag, limits: Limits | None = None, state: Any = "stable", named: tuple[str, ...] = ()
) -> Any:
    lag = GroupLag("g", "OK", sum(each.lag or 0 for each in parts), parts)
    (found,) = judged([GroupListing("g", state, 1)], [lag], limits or Limits(), named=named)
    return found


def test_a_group_is_above_its_limit_in_time_by_its_slowest_partition() -> None:
    found = _judged(_part(5, 29_000), _part(7, 30_100, number=3))
    assert (found.lag, found.lag_s, found.worst) == (12, 30.1, "t-3")
    assert found.above == ("30.1 s behind, the limit is 30 s",)
    assert _judged(_part(5, 30_000)).above == ()


def test_a_limit_in_records_counts_all_partitions() -> None:
    found = _judged(_part(5, 10), _part(7, 10, number=1), limits=Limits(lag=11))
    assert found.above == ("12 records behind, the limit is 11",)
    assert _judged(_part(5, 10), _part(6, 10, number=1), limits=Limits(lag=11)).above == ()


@pytest.mark.parametrize(("status", "is_alarm"), [("OK", 0), ("WARN", 0), ("REWIND", 0), ("STALL", 1), ("STOP", 1)])
def test_stall_and_stop_are_alarms_by_themselves(status: str, is_alarm: int) -> None:
    found = _judged(_part(1, 5, status))
    assert (found.status, found.above) == (status, (f"verdict {status}",) * is_alarm)


def test_a_group_without_members_is_judged_only_where_it_is_named() -> None:
    assert _judged(_part(1, 60_000, "STOP"), state="empty").above == ()
    found = _judged(_part(1, 60_000, "STOP"), state="empty", named=("g",))
    assert found.above == ("60.0 s behind, the limit is 30 s", "verdict STOP")


def test_an_unknown_lag_is_neither_zero_nor_above_a_limit() -> None:
    found = _judged(_part(None, None))
    assert (found.lag, found.lag_s, found.above, found.status) == (None, None, (), "UNKNOWN")
    assert found.error == "the coordinator does not know the log end of t-0"
    some = _judged(_part(None, None), _part(1, 31_000, number=1))
    assert (some.lag, some.lag_s, some.is_at_least) == (None, 31.0, True)
    assert some.above == ("31.0 s behind, the limit is 30 s",), "the known lags are judged"
    assert _judged(_part(None, None), state="empty").error is None
    failed = GroupLag("g", "OK", 0, (), CoordinatorNotAvailableError("none"))
    (found,) = judged([GroupListing("g", "stable", 1)], [failed], Limits())
    assert (found.lag, found.status) == (None, "UNKNOWN")
    assert found.error is not None
    assert _judged(_part(None, None), _part(1, 5, "STALL", number=1)).status == "STALL"


def test_stall_and_warn_need_a_full_window_and_a_lag() -> None:
    for status in ("STALL", "WARN"):
        assert verdict(status, lag=1, complete=0.9, is_empty=False) == "OK"
        assert verdict(status, lag=1, complete=1, is_empty=False) == status
    assert verdict("STOP", lag=1, complete=0.1, is_empty=False) == "STOP"
    assert {verdict(each, lag=0, complete=1, is_empty=False) for each in VERDICTS} == {"OK"}
    assert {verdict(each, lag=1, complete=1, is_empty=True) for each in VERDICTS} == {"OK"}


def test_the_worst_of_no_verdict_is_ok() -> None:
    assert worst([]) == "OK"
    assert worst(["OK", "WARN", "STALL", "REWIND"]) == "STALL"


class _Admin:
    """Answers as a cluster whose group g is ``lag_ms`` behind."""

    def __init__(self, *lags_ms: int | None) -> None:
        self._lags_ms = list(lags_ms)  # None: the coordinator does not know the log end

    def __enter__(self) -> _Admin:
        return self

    def __exit__(self, *_: object) -> None: ...

    def list_groups(self, **_: Any) -> list[GroupListing]:
        return [GroupListing("g", "stable", 1)]

    def describe_lag(self, groups: list[str], **_: Any) -> list[GroupLag]:
        lag_ms = self._lags_ms.pop(0) if len(self._lags_ms) > 1 else self._lags_ms[0]
        return [GroupLag("g", "OK", 1, (_part(None if lag_ms is None else 1, lag_ms),))]


def _run(monkeypatch: pytest.MonkeyPatch, client: _Admin, **options: Any) -> int:
    from headrace_tools.cli import lag as command

    monkeypatch.setattr(command, "admin", lambda *_: client)
    monkeypatch.setattr(command, "_SAMPLED_S", 0.1)
    monkeypatch.setattr(command, "_LOOK_S", 0.01)
    monkeypatch.setattr(command, "coordinator_timeout_s", lambda client, timeout: timeout)
    try:
        command.lag(interval=0.01, **options)
    except typer.Exit as exit_:
        return exit_.exit_code
    return 0


def test_alert_exits_with_3_above_the_limit_and_without_it_lag_only_shows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(monkeypatch, _Admin(31_000), alert=True) == 3
    assert "group g (t-0): 31.0 s behind, the limit is 30 s" in capsys.readouterr().err
    assert _run(monkeypatch, _Admin(31_000)) == 0
    assert _run(monkeypatch, _Admin(29_000), alert=True) == 0


def test_watch_ends_at_the_first_alarm_or_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(monkeypatch, _Admin(1, 2, 31_000), alert=True, watch=True) == 3
    assert _run(monkeypatch, _Admin(1), alert=True, watch=True, last=0.05) == 0


def test_an_unknown_lag_is_no_all_clear(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(monkeypatch, _Admin(None), alert=True) == 1
    assert "the lag of group g is unknown: the coordinator does not know the log end of t-0" in capsys.readouterr().err
    assert _run(monkeypatch, _Admin(None, None, 5), alert=True) == 0, "a new coordinator samples the log soon"
    assert _run(monkeypatch, _Admin(None, 31_000), alert=True) == 3
