"""Metrics of Kafka's clients: connections and bytes. Times of requests are in ``Connections.calls``."""

from __future__ import annotations

from headrace_core.metrics import catalog
from headrace_core.metrics.model import Row, Rows

from .connections import Connections


class KafkaCollector:
    """``collect`` yields the rows of a scrape."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def collect(self) -> Rows:
        connections = self._connections
        yield Row(catalog.CONNECTIONS, (), len(connections.open))
        yield Row(catalog.FAILED_AUTHENTICATIONS, (), connections.failed_authentications)
        yield Row(catalog.KAFKA_IN, (), connections.bytes_in)
        yield Row(catalog.KAFKA_OUT, (), connections.bytes_out)
        yield Row(catalog.KAFKA_QUEUED, (), connections.budget.used + connections.strangers.used)
        yield Row(catalog.KAFKA_UNREAD, (), connections.answers.unread)
