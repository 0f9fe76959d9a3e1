"""An error of a query ends with its cause."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headrace_spark.causes import cause, tell_causes


def test_the_cause_of_a_failed_query_is_the_last_line_that_says_something() -> None:
    text = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PYTHON_EXCEPTION] it failed:
Traceback (most recent call last):
  File "headrace_spark/stream.py", line 3, in read
headrace_spark.errors.DataLossError: log-0: offsets 3 to 5 are gone

=== Streaming Query ===
Identifier: clickstream-requests
Thread State: RUNNABLE"""
    assert cause(text) == "headrace_spark.errors.DataLossError: log-0: offsets 3 to 5 are gone"
    assert cause(text.replace(" are gone", " are gone\nSQLSTATE: 38000")) == cause(text)
    assert cause(text.replace(" are gone", " are gone SQLSTATE: 38000")) == cause(text)
    assert cause("") == ""


FAILED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "sink_task.py", line 169, in write_rows
headrace_spark.errors.SinkWriteError: topic 'x': cannot reach any node. Spark does not repeat the task
SQLSTATE: 38000

JVM stacktrace:
\tat org.apache.spark.sql.Foo"""


def shown(error: Exception, capsys: Any) -> list[str]:
    with pytest.raises(type(error)) as caught:
        raise error
    sys.excepthook(caught.type, caught.value, caught.tb)
    return str(capsys.readouterr().err).splitlines()


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the hook has got that was there before."""
    got: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: got.append(given[1]))
    tell_causes()
    tell_causes()
    return got


@pytest.mark.parametrize(
    "text", [FAILED, FAILED.partition("\nJVM")[0] + " SQLSTATE: XXKST\n=== Streaming Query ===\nId"]
)
def test_an_uncaught_error_of_a_query_ends_with_its_cause_once(text: str, before: list[Any], capsys: Any) -> None:
    lines = shown(PySparkException(text), capsys)
    said = "headrace_spark.errors.SinkWriteError: topic 'x': cannot reach any node. Spark does not repeat the task"
    assert lines[-1].endswith(f"PySparkException: {said}")
    assert sum(said in line for line in lines) == 1
    assert "test_causes_of_failures.py" in "".join(lines), "the program's own frames stay"
    assert before == []


@pytest.mark.parametrize("error", [ValueError("Traceback (most recent call last)"), PySparkException("no column x")])
def test_other_errors_are_shown_as_before(error: Exception, before: list[Any], capsys: Any) -> None:
    assert shown(error, capsys) == []
    assert before == [error], "once, also after two sessions"
