"""``low_latency_session``: the settings that it passes on."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from headrace_core.errors import InvalidArgumentError
from headrace_spark import low_latency_session
from headrace_spark.session import LOW_LATENCY

SOCKET = "spark.python.unix.domain.socket.enabled"


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each call of ``session``."""
    calls: list[Any] = []
    module = sys.modules["headrace_spark.session"]
    monkeypatch.setattr(module.SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(module, "session", lambda name, *, master, **settings: calls.append((name, master, settings)))
    return calls


def test_it_is_a_session_with_the_settings_of_the_shortest_path(passed: list[Any]) -> None:
    low_latency_session("alerts", master="local[2]", spark_sql_shuffle_partitions=4)
    ((name, master, settings),) = passed
    assert (name, master) == ("alerts", "local[2]")
    assert settings == {**LOW_LATENCY, "spark.sql.shuffle.partitions": 4}


@pytest.mark.parametrize("name", [SOCKET, SOCKET.replace(".", "_")])
def test_a_setting_of_the_caller_wins(passed: list[Any], name: str) -> None:
    low_latency_session(**{name: "false"})
    assert passed[0][2] == {**LOW_LATENCY, SOCKET: "false"}


def test_an_active_session_is_refused(passed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["headrace_spark.session"].SparkSession, "getActiveSession", lambda: "active")
    with pytest.raises(InvalidArgumentError, match="stop it first"):
        low_latency_session()
    assert passed == []
