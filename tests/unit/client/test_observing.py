"""Statistics of clients: the callback at intervals, and the collector for prometheus_client."""

from __future__ import annotations

import threading
from typing import Any

import prometheus_client
import pytest

from headrace import PrometheusCollector, Statistics, TopicPartition, report_statistics
from headrace.errors import InvalidArgumentError
from headrace.metrics import PartitionCounts


class Producer:
    """A stand-in that counts one more record at each look."""

    def __init__(self) -> None:
        self.counts = PartitionCounts()

    def metrics(self) -> dict[str, float]:
        self.counts.of("t", 3)["record-send-total"] += 1
        return {
            "record-send-total": self.counts.values()[TopicPartition("t", 3)]["record-send-total"],
            "request-rate": 2.5,
        }

    def partition_metrics(self) -> dict[TopicPartition, dict[str, float]]:
        return self.counts.values()


def test_the_callback_gets_the_numbers_until_the_end_and_once_more_there() -> None:
    seen: list[Statistics] = []
    enough = threading.Event()

    def callback(found: Statistics) -> None:
        seen.append(found)
        if len(seen) == 2:
            enough.set()
        if len(seen) == 1:
            raise RuntimeError("a bug of the caller")

    with report_statistics(Producer(), every_s=0.01, callback=callback):
        assert enough.wait(10)
    count = len(seen)
    assert count >= 3  # two reports, and the one at the end
    assert [each.metrics["record-send-total"] for each in seen] == list(range(1, count + 1))
    assert seen[-1].partitions == {TopicPartition("t", 3): {"record-send-total": float(count)}}
    assert not [each for each in threading.enumerate() if each.name == "headrace-statistics"]


@pytest.mark.parametrize("every_s", [0, -1, float("nan")])
def test_an_interval_must_be_positive(every_s: float) -> None:
    with pytest.raises(InvalidArgumentError, match="must be a positive number of seconds"):
        report_statistics(Producer(), every_s=every_s, callback=print)


def test_wrong_arguments_are_refused_at_once() -> None:
    for every_s in ("1", None, True):
        with pytest.raises(InvalidArgumentError, match="every_s="):
            report_statistics(Producer(), every_s=every_s, callback=print)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="callback=None"):
        report_statistics(Producer(), every_s=1, callback=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="client=5"):
        report_statistics(5, every_s=1, callback=print)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="client=5"):
        PrometheusCollector(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="client_id=5"):
        PrometheusCollector(Producer(), client_id=5)  # type: ignore[arg-type]


def test_a_very_long_interval_reports_at_the_end() -> None:
    seen: list[Statistics] = []
    with report_statistics(Producer(), every_s=1e12, callback=seen.append):
        pass
    assert len(seen) == 1


def test_the_collector_has_kafkas_names_as_counters_and_gauges() -> None:
    registry: Any = prometheus_client.CollectorRegistry()
    PrometheusCollector(Producer(), client_id="billing").register(registry)
    text = prometheus_client.generate_latest(registry).decode()
    assert "# TYPE kafka_producer_record_send_total counter" in text
    assert 'kafka_producer_request_rate{client_id="billing"} 2.5' in text
    labels = {"client_id": "billing", "topic": "t", "partition": "3"}
    value = registry.get_sample_value("kafka_producer_record_send_by_partition_total", labels)
    assert value is not None
    assert value > 0


def test_a_registry_has_several_clients_and_each_row_once() -> None:
    registry: Any = prometheus_client.CollectorRegistry(auto_describe=True)
    first = PrometheusCollector(Producer(), client_id="one").register(registry)
    PrometheusCollector(Producer(), client_id="two").register(registry)
    with pytest.raises(
        InvalidArgumentError, match="client_id='two': another client of this Prometheus registry has the same"
    ):
        PrometheusCollector(Producer(), client_id="two").register(registry)
    lines = prometheus_client.generate_latest(registry).decode().splitlines()
    assert lines.count("# TYPE kafka_producer_record_send_total counter") == 1
    rows = [line.partition(" ")[0] for line in lines if not line.startswith("#")]
    assert len(rows) == len(set(rows))
    assert 'kafka_producer_request_rate{client_id="one"}' in rows
    assert 'kafka_producer_request_rate{client_id="two"}' in rows
    first.unregister()
    first.unregister()
    assert 'client_id="one"' not in prometheus_client.generate_latest(registry).decode()
    first.register(registry)
    assert 'client_id="one"' in prometheus_client.generate_latest(registry).decode()


def test_counts_are_copies() -> None:
    counts = PartitionCounts()
    counts.of("t", 0)["n"] += 2
    found = counts.values()
    counts.of("t", 0)["n"] += 1
    assert found == {TopicPartition("t", 0): {"n": 2.0}}
