"""Pass a client's metrics on: to a callback at intervals, or to a registry of the package prometheus_client.

    with report_statistics(producer, every_s=10, callback=print): ...

    PrometheusCollector(producer, client_id="billing").register()      # prometheus_client's default registry

``metrics()`` and ``partition_metrics()`` of the client have the numbers; this module only passes them on. The thread
that reports or scrapes reads the client's metrics, which takes microseconds.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from headrace_core.errors import InvalidArgumentError, MissingDependencyError
from headrace_core.types import TopicPartition

from . import arguments
from .callbacks import check_handler

logger = logging.getLogger("headrace.statistics")


class Measured(Protocol):
    """A Producer or Consumer, blocking or async, or headrace_spark.QueryMetrics."""

    def metrics(self) -> Mapping[str, float]: ...

    def partition_metrics(self) -> Mapping[TopicPartition, Mapping[str, float]]: ...


@dataclass(frozen=True, slots=True)
class Statistics:
    """A client's metrics at one moment. ``at_ms``: milliseconds since 1970."""

    at_ms: int
    metrics: Mapping[str, float]
    partitions: Mapping[TopicPartition, Mapping[str, float]]

    @classmethod
    def of(cls, client: Measured) -> Statistics:
        return cls(time.time_ns() // 1_000_000, client.metrics(), client.partition_metrics())


def _measured(client: Measured) -> Measured:
    if not all(callable(getattr(client, name, None)) for name in ("metrics", "partition_metrics")):
        raise InvalidArgumentError(f"client={client!r:.80}: must be a producer or a consumer")
    return client


class report_statistics:
    """Call ``callback`` with the Statistics of ``client`` every ``every_s`` seconds, in a thread of its own, until
    ``close`` or the end of a ``with`` block. At the end, the callback is called once more with the last numbers.

    librdkafka's statistics.interval.ms and stats_cb do the same. An error of the callback is logged, and the reports
    continue. Raises InvalidArgumentError for an interval that is not positive.
    """

    def __init__(self, client: Measured, *, every_s: float, callback: Callable[[Statistics], object]) -> None:
        is_number = isinstance(every_s, int | float) and not isinstance(every_s, bool)
        if not (is_number and every_s > 0):
            raise arguments.wrong("every_s", every_s, "must be a positive number of seconds")
        self._every_s = min(every_s, arguments.SECONDS_MAX)
        check_handler("callback", callback)
        self._client, self._callback = _measured(client), callback
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-statistics", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(self._every_s)
            try:
                self._callback(Statistics.of(self._client))
            except Exception:
                logger.exception("the callback of report_statistics failed")

    def close(self) -> None:
        """Call the callback a last time, and stop the thread. Idempotent."""
        self._over.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> report_statistics:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class PrometheusCollector:
    """A collector for a registry of prometheus_client: ``kafka_producer_record_send_total{client_id="…"}`` and so on.

    The names are Kafka's client metrics with underscores, after ``kafka_producer_`` or ``kafka_consumer_``. Names that
    end in ``-total`` are counters. Metrics of a partition have the labels ``topic`` and ``partition``, and
    ``_by_partition`` in their names, because a metric of prometheus_client has one set of labels.

    A registry accepts any number of clients, each with a ``client_id`` of its own. Call ``unregister`` when a client is
    closed, because otherwise the registry continues to show the client's last numbers.
    """

    def __init__(self, client: Measured, *, client_id: str = "headrace") -> None:
        self._client, self._client_id = _measured(client), arguments.text("client_id", client_id)
        kind = "producer" if type(client).__name__.lower().endswith("producer") else "consumer"
        self._prefix = f"kafka_{kind}"
        self._clients: _Clients | None = None

    def register(self, registry: Any = None) -> PrometheusCollector:
        """Add this collector to ``registry``; None: prometheus_client's default registry. Raises MissingDependencyError
        without prometheus_client, and InvalidArgumentError if a client of the same kind has the same ``client_id`` in
        this registry."""
        clients = _clients_of(_prometheus().REGISTRY if registry is None else registry)
        clients.add(self)
        self._clients = clients
        return self

    def unregister(self) -> None:
        """Take this collector out of its registry. Idempotent."""
        if self._clients is not None:
            self._clients.remove(self)
            self._clients = None

    @property
    def identity(self) -> tuple[str, str]:
        """The identity of the collector: two collectors of a registry must not have the same identity."""
        return self._prefix, self._client_id

    def collect(self) -> Iterator[Any]:
        """The current metrics; a registry of prometheus_client calls this method."""
        core = _prometheus().core
        found = Statistics.of(self._client)
        for name, value in sorted(found.metrics.items()):
            family = self._family(core, name, ["client_id"])
            family.add_metric([self._client_id], value)
            yield family
        for name in sorted({name for values in found.partitions.values() for name in values}):
            full = f"{_stem(name)}-by-partition{'-total' if name.endswith('-total') else ''}"
            family = self._family(core, full, ["client_id", "topic", "partition"])
            for part, values in sorted(found.partitions.items()):
                if name in values:
                    family.add_metric([self._client_id, part.topic, str(part.partition)], values[name])
            yield family

    def _family(self, core: Any, name: str, labels: list[str]) -> Any:
        full = f"{self._prefix}_{_stem(name).replace('-', '_')}"
        kind = core.CounterMetricFamily if name.endswith("-total") else core.GaugeMetricFamily
        return kind(full, f"Kafka's client metric {name}.", labels=labels)


class _Clients:
    """One collector for all clients of a registry, because a registry accepts each metric name only once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._collectors: dict[tuple[str, str], PrometheusCollector] = {}

    def add(self, collector: PrometheusCollector) -> None:
        with self._lock:
            if self._collectors.setdefault(collector.identity, collector) is not collector:
                raise InvalidArgumentError(
                    f"client_id={collector.identity[1]!r}: another client of this Prometheus registry has "
                    "the same client_id; give each client its own client_id"
                )

    def remove(self, collector: PrometheusCollector) -> None:
        with self._lock:
            if self._collectors.get(collector.identity) is collector:
                del self._collectors[collector.identity]

    def describe(self) -> list[Any]:
        return []  # the names depend on the clients

    def collect(self) -> Iterator[Any]:
        """The metrics of all clients, grouped by name."""
        with self._lock:
            collectors = list(self._collectors.values())
        families: dict[str, Any] = {}
        for collector in collectors:
            for family in collector.collect():
                if family.name in families:
                    families[family.name].samples.extend(family.samples)
                else:
                    families[family.name] = family
        yield from families.values()


_lock = threading.Lock()
#: Maps each registry of prometheus_client to its clients.
_registries: weakref.WeakKeyDictionary[Any, _Clients] = weakref.WeakKeyDictionary()


def _clients_of(registry: Any) -> _Clients:
    with _lock:
        found = _registries.get(registry)
        if found is None:
            found = _Clients()
            registry.register(found)
            _registries[registry] = found
        return found


def _stem(name: str) -> str:
    return name.removesuffix("-total")


def _prometheus() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError:
        raise MissingDependencyError(
            "PrometheusCollector needs prometheus_client, which is not installed: pip install prometheus-client"
        ) from None
    return prometheus_client
