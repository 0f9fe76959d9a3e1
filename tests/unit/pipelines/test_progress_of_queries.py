"""Spark's progress of a query, summed over its batches."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import Row

from headrace.errors import InvalidArgumentError
from headrace_pipelines import jobs
from headrace_pipelines.lags import Lag
from headrace_pipelines.queries import START_ATTEMPTS, Progress, Queries, started
from headrace_pipelines.sites import Site


def batch(number: int, rows: int, **more: Any) -> dict[str, Any]:
    timestamp = f"2026-01-01T00:00:{number:02}.500Z"
    batch = {"batchId": number, "timestamp": timestamp, "numInputRows": rows}
    return {**batch, "eventTime": {}, "stateOperators": [], **more}


def state(rows: int, size: int, late: int, repeats: int | None = None) -> dict[str, Any]:
    custom = {} if repeats is None else {"customMetrics": {"numDroppedDuplicateRows": repeats}}
    return {"numRowsTotal": rows, "memoryUsedBytes": size, "numRowsDroppedByWatermark": late, **custom}


def test_rows_late_rows_and_repeats_add_up_and_the_state_is_that_of_the_last_batch() -> None:
    progress = Progress()
    progress.take(batch(0, 10, stateOperators=[state(4, 100, 1, 2), state(3, 50, 0)]))
    progress.take(batch(1, 5, stateOperators=[state(2, 40, 2, 1)]))
    assert (progress.rows, progress.batches, progress.late, progress.repeats) == (15, 2, 3, 3)
    assert (progress.state_rows, progress.state_bytes) == (2, 40)
    assert progress.began_s == datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC).timestamp()


def test_a_batch_that_was_taken_before_changes_nothing() -> None:
    progress = Progress()
    for _ in range(2):
        progress.take(batch(0, 10, observedMetrics={"lines": Row(good=9, bad=1)}))
    assert (progress.rows, progress.batches) == (10, 1)
    assert progress.observed == {"good": 9, "bad": 1}


def test_the_watermark_is_unknown_until_spark_has_read_a_time() -> None:
    progress = Progress()
    progress.take(batch(0, 1, eventTime={"watermark": "1970-01-01T00:00:00.000Z"}))
    assert progress.watermark is None
    progress.take(batch(1, 1, eventTime={"watermark": "2015-05-17T10:05:03.000Z"}))
    assert progress.watermark == datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)
    progress.take(batch(2, 1))
    assert progress.watermark == datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)


class StandIn:
    """A query that starts as Spark's queries do, and then fails with ``error``, or is ready."""

    def __init__(self, error: str | None) -> None:
        self._error = error
        self._before = ["Initializing StreamExecution", "Initializing sources"]

    @property
    def isActive(self) -> bool:
        return bool(self._before) or self._error is None

    @property
    def status(self) -> dict[str, str]:
        return {"message": self._before.pop(0) if self._before else "Waiting for data to arrive"}

    def exception(self) -> str | None:
        return None if self._before else self._error

    def stop(self) -> None:
        self._before, self._error = [], self._error or "stopped"


def test_a_query_is_started_again_only_if_its_python_process_was_late() -> None:
    late = "SparkException: Python worker failed to connect back."
    for errors, starts in (
        ([late, late, None], 3),
        ([None], 1),
        (["DataLossError: gone", None], 1),
        ([late] * 9, START_ATTEMPTS),
    ):
        waiting: Any = iter([StandIn(error) for error in errors])
        queries: list[Any] = []

        def start(waiting: Any = waiting, queries: list[Any] = queries) -> Any:
            queries.append(next(waiting))
            return queries[-1]

        assert started(start) == queries[-1:]
        assert len(queries) == starts
        assert not any(query.isActive for query in queries[:-1])


def test_all_queries_of_a_pipeline_start_again_together() -> None:
    first: Any = [StandIn(None), StandIn("SparkException: Python worker failed to connect back.")]
    second: Any = [StandIn(None), StandIn(None)]
    waiting = iter([first, second])
    assert started(lambda: next(waiting)) == second
    assert [query.isActive for query in first] == [False, False]


def test_the_progress_line_has_rows_lag_watermark_state_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    lags = {"clean": Lag(records=50, seconds=1.5)}
    monkeypatch.setattr(jobs, "lags", lambda admin, pipeline, queries: lags)
    clock = iter([100.0, 101.0, 102.0, 103.0])
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    query: Any = StandIn(None)
    queries = Queries({"clean": query})
    line = jobs.ProgressLine(queries, None, "parcels")  # type: ignore[arg-type]
    queries.progress["clean"].rows = 10
    assert line.text() == "10 rows, lag 1.5 s (50 records), time left unknown, watermark none, state 0 rows 0.0 MB"
    queries.progress["clean"].rows = 35
    assert line.text().startswith("35 rows, lag 1.5 s (50 records), 2 s left, ")
    lags["clean"] = Lag(records=50, seconds=None)
    assert ", lag unknown (50 records), " in jobs.ProgressLine(queries, None, "parcels").text()  # type: ignore[arg-type]
    lags.clear()
    assert ", lag unknown, " in jobs.ProgressLine(queries, None, "parcels").text()  # type: ignore[arg-type]


def test_the_last_progress_line_has_the_lag_of_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    lags = [{"clean": Lag(records=0, seconds=None)}, {"clean": Lag(records=3, seconds=1.5)}]
    monkeypatch.setattr(jobs, "lags", lambda admin, pipeline, queries: lags.pop())
    clock = iter([100.0, 100.5, 101.0])
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    line = jobs.ProgressLine(Queries({"clean": StandIn(None)}), None, "parcels")  # type: ignore[arg-type, dict-item]
    assert [", lag 1.5 s (3 records), " in line.text() for _ in range(2)] == [True, True]
    assert ", lag 0.0 s (0 records), 0 s left, " in line.text(at_once=True)


def test_queries_without_names_of_their_own_are_stopped_and_refused() -> None:
    queries: Any = [StandIn(None), StandIn(None)]
    for query, name in zip(queries, ("clean", None), strict=True):
        query.name = name
    with pytest.raises(InvalidArgumentError, match=r"site\.write\(query=NAME\)"):
        jobs.by_name(queries)
    assert [query.isActive for query in queries] == [False, False]
    queries = [StandIn(None), StandIn(None)]
    queries[0].name, queries[1].name = "clean", "other"
    assert list(jobs.by_name(queries)) == ["clean", "other"]


def test_a_cluster_of_machines_needs_checkpoints_that_all_of_them_reach() -> None:
    for master, checkpoints in (("local[2]", None), ("local-cluster[1,1,512]", None), ("yarn", "hdfs://a/b")):
        jobs.check_checkpoints(master, checkpoints)
    for checkpoints in (None, "/data"):
        with pytest.raises(InvalidArgumentError, match="give --checkpoints URL"):
            jobs.check_checkpoints("spark://127.0.0.1:7077", checkpoints)
    assert Site("p", "s", Path("/d"), checkpoints="hdfs://a/b").write(query="q")["checkpointLocation"] == "hdfs://a/b/q"
