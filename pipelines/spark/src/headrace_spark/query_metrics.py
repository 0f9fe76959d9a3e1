"""The metrics of a streaming query, under the names of a consumer's metrics, from Spark's own progress reports.

from headrace import PrometheusCollector, report_statistics
measured = headrace_spark.QueryMetrics(query)
PrometheusCollector(measured, client_id=query.name).register()
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql.streaming.query import StreamingQuery

from headrace import TopicPartition

from .offsets import PartitionOffsets, from_json


class QueryMetrics:
    """Reads the metrics of ``query`` on request, with the interface of a Producer or Consumer. One read takes a few
    milliseconds.

    The values are those of the last batch that Spark has reported, and stay available when the query ends. Before the
    first report there are no metrics. The rates include the query's sources of other formats; the metrics of partitions
    do not.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._last: Mapping[str, Any] = {}

    def metrics(self) -> dict[str, float]:
        """Rows per second: ``records-consumed-rate`` (rows that arrived) and ``records-processed-rate`` (rows processed
        while a batch ran). Further metrics: ``records-lag-max``, ``assigned-partitions``, ``batches-total`` (since the
        first start of the query), ``batch-duration-ms``, ``state-rows``, ``state-bytes``."""
        last = self._look()
        if not last:
            return {}
        lags = [each["records-lag"] for each in _partitions(last).values() if "records-lag" in each]
        states = last["stateOperators"]
        return {
            "records-consumed-rate": _number(last["inputRowsPerSecond"]),
            "records-processed-rate": _number(last["processedRowsPerSecond"]),
            "records-lag-max": max(lags, default=0.0),
            "assigned-partitions": float(len(_partitions(last))),
            "batches-total": last["batchId"] + 1.0,
            "batch-duration-ms": float(last["durationMs"].get("triggerExecution", 0)),
            "state-rows": float(sum(each["numRowsTotal"] for each in states)),
            "state-bytes": float(sum(each["memoryUsedBytes"] for each in states)),
        }

    def partition_metrics(self) -> dict[TopicPartition, dict[str, float]]:
        """For each partition of the query: ``position``, the offset after the last batch, and ``records-lag``.
        ``records-lag`` is the number of records between ``position`` and the log end that the source knew at that
        time."""
        return _partitions(self._look())

    def _look(self) -> Mapping[str, Any]:
        with contextlib.suppress(Py4JError, OSError):  # the session has ended
            self._last = self._query.lastProgress or self._last
        return self._last


def _partitions(progress: Mapping[str, Any]) -> dict[TopicPartition, dict[str, float]]:
    found: dict[TopicPartition, dict[str, float]] = {}
    for source in progress.get("sources", ()):
        end, latest = _offsets(source, "endOffset"), _offsets(source, "latestOffset")
        for part, position in end.items():
            found[part] = {"position": float(position)}
            if part in latest:
                found[part]["records-lag"] = float(max(latest[part] - position, 0))
    return found


def _offsets(source: Mapping[str, Any], name: str) -> PartitionOffsets:
    """The offsets of a source; empty if the source has another format."""
    found = source[name]
    if "python" not in source["description"].lower() or not found:  # Kafka's source writes offsets in the same form
        return {}
    try:
        return from_json(json.loads(found) if isinstance(found, str) else found)
    except (AttributeError, TypeError, ValueError):  # another source that is written in Python
        return {}


def _number(value: float | None) -> float:
    """Spark reports NaN for the rate of a first batch."""
    return 0.0 if value is None or math.isnan(value) else value
