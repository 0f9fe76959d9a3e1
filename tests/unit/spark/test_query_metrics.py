"""``QueryMetrics`` and reports of Spark that are unlike those of a running query with topics."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from headrace import TopicPartition
from headrace_spark import QueryMetrics

OURS = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1"


def source(description: str, end: Any, latest: Any) -> dict[str, Any]:
    return {"description": description, "endOffset": end, "latestOffset": latest}


class Query:
    """``lastProgress`` of a query with these sources; None: no batch yet."""

    def __init__(self, *sources: dict[str, Any]) -> None:
        self.error: Exception | None = None
        self._sources = sources

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        if self.error is not None:
            raise self.error
        if not self._sources:
            return None
        return {
            "batchId": 4, "inputRowsPerSecond": float("nan"), "processedRowsPerSecond": 7.5, "durationMs": {},
            "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 5}], "sources": self._sources,
        }  # fmt: skip


def measured(*sources: dict[str, Any]) -> tuple[QueryMetrics, Query]:
    query = Query(*sources)
    return QueryMetrics(query), query  # type: ignore[arg-type]


def test_there_is_nothing_before_the_first_batch() -> None:
    found, _ = measured()
    assert (found.metrics(), found.partition_metrics()) == ({}, {})


@pytest.mark.parametrize("is_text", [False, True])
def test_lag_and_positions(is_text: bool) -> None:
    end: Any = {"t": {"0": 5, "1": 9}, "$start": {"t": {"0": 1}}}
    latest: Any = {"t": {"0": 8}}
    if is_text:
        end, latest = str(end).replace("'", '"'), str(latest).replace("'", '"')
    found, _ = measured(source(OURS, end, latest))
    assert found.partition_metrics() == {
        TopicPartition("t", 0): {"position": 5.0, "records-lag": 3.0},
        TopicPartition("t", 1): {"position": 9.0},  # its end is not known
    }
    metrics = found.metrics()
    assert (metrics["records-lag-max"], metrics["batches-total"], metrics["state-rows"]) == (3.0, 5.0, 3.0)
    assert (metrics["records-consumed-rate"], metrics["records-processed-rate"]) == (0.0, 7.5)


def test_a_log_end_before_the_position_is_no_lag() -> None:
    found, _ = measured(source(OURS, {"t": {"0": 5}}, {"t": {"0": 3}}))
    assert found.partition_metrics() == {TopicPartition("t", 0): {"position": 5.0, "records-lag": 0.0}}


@pytest.mark.parametrize(
    "other",
    [
        source("KafkaV2[Subscribe[t]]", {"t": {"0": 5}}, {"t": {"0": 6}}),
        source("FileStreamSource[file:/in]", {"logOffset": 3}, None),
        source(OURS, {"at": "now"}, {"at": 5}),
        source(OURS, "7", "8"),
        source(OURS, None, None),
    ],
)
def test_sources_of_other_formats_have_no_partitions(other: dict[str, Any]) -> None:
    found, _ = measured(other, source(OURS, {"t": {"0": 1}}, {"t": {"0": 1}}))
    assert set(found.partition_metrics()) == {TopicPartition("t", 0)}
    assert found.metrics()["records-lag-max"] == 0.0


@pytest.mark.parametrize("error", [Py4JNetworkError("gone"), ConnectionRefusedError()])
def test_the_last_values_stay_when_the_session_has_ended(error: Exception) -> None:
    found, query = measured(source(OURS, {"t": {"0": 5}}, {"t": {"0": 6}}))
    before = found.metrics()
    query.error = error
    assert found.metrics() == before
    assert found.partition_metrics() == {TopicPartition("t", 0): {"position": 5.0, "records-lag": 1.0}}
