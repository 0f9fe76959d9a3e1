"""The metrics of one node: the common collectors, the listener, and the place where an application adds its own
collectors."""

from __future__ import annotations

import functools
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..config.server_keys import listener_values
from ..errors import InvalidConfigError
from ..security.http import CHALLENGE, REFUSAL, HttpGuard
from ..security.tls import TlsSource
from ..telemetry import Emitter, Event, Metrics
from . import catalog
from .calls import CallTimes
from .exposition import Exposition
from .histogram import Histogram, RecentQuantiles
from .model import Collector, Quantiles, Row, Rows
from .process import LoopDelay, collect_process
from .server import MetricsServer, Refused, ScrapeRequest

_LISTENER = re.compile(r"(?P<scheme>https?)://(?P<host>\[[0-9a-fA-F:.]*\]|[^\[\]:/]*):(?P<port>\d{1,5})\Z")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """``host`` is None if the node serves no metrics. ``partitions_max``: the largest number of partitions that get
    rows of their own (``metrics.partitions.max``)."""

    host: str | None
    port: int
    partitions_max: int
    encrypts: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> MetricsSettings:
        """Make the settings from a node's configuration. Raises InvalidConfigError."""
        listener, most = values["metrics.listener"], values["metrics.partitions.max"]
        if not listener:
            return cls(None, 0, most)
        match = _LISTENER.match(listener)
        if match is None or int(match["port"]) > 65_535:
            raise InvalidConfigError(
                f"metrics.listener={listener}: write http://host:port or https://host:port, such as "
                "http://127.0.0.1:9400; port 0 selects a free port, an empty value serves no metrics"
            )
        return cls(match["host"], int(match["port"]), most, match["scheme"] == "https")


class NodeMetrics:
    """Serves a node's metrics. The application adds collectors before ``start``, and calls ``stop`` at its end.

    Security: with https, the listener can require a client certificate or a bearer token (security/http.py). The keys
    of the listener named metrics (listener.name.metrics.ssl...) apply; where one is not set, the node's general key
    applies.
    """

    def __init__(
        self,
        role: str,
        node_id: Callable[[], int],
        values: Mapping[str, Any],
        *,
        events: Emitter | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """``values``: the node's configuration. ``metrics``: the counters that the node shares with the follower of
        the metadata log. Raises InvalidConfigError."""
        self.settings = MetricsSettings.of(values)
        self._guard = HttpGuard.of(
            listener_values(values, "metrics"), encrypts=self.settings.encrypts, where="metrics.listener: "
        )
        self.exposition = Exposition()
        self._role, self._node_id = role, node_id
        self._events: Counter[str] = Counter()
        self._metrics = metrics
        self._loop_delay = LoopDelay()
        self._calls: list[CallTimes] = []
        #: The key is the id() of a histogram. The value keeps the histogram alive, so no other object gets the same id.
        self._recent: dict[int, RecentQuantiles] = {}
        self._server: MetricsServer | None = None
        if events is not None:
            events.subscribe(self._count)
        for collector in (self._collect_build, collect_process, self._loop_delay.collect, self._collect_events):
            self.exposition.add(collector)
        if metrics is not None:
            self.exposition.add(self._collect_metadata)
        self.exposition.add(self._collect_calls)
        self._tls: list[TlsSource] = []
        if self._guard.tls is not None:
            self.add_tls(self._guard.tls)
        self.exposition.add(self._collect_certificates)

    def add(self, collector: Collector) -> None:
        self.exposition.add(collector)

    def add_calls(self, calls: CallTimes) -> None:
        """Report the times of a listener's calls."""
        self._calls.append(calls)

    def add_tls(self, source: TlsSource) -> None:
        """Report when the certificate of a listener or a channel expires."""
        self._tls.append(source)

    def recent(self, histogram: Histogram, scale: float = 1.0) -> Quantiles:
        """The value of a summary: quantiles of the last five minutes or longer. ``scale``: see Quantiles."""
        recent = self._recent.get(id(histogram))
        if recent is None:
            recent = self._recent[id(histogram)] = RecentQuantiles(histogram)
        return Quantiles(recent.read(time.monotonic()), histogram, scale)

    def events_of(self, kind: type[Event]) -> int:
        """The number of events of a type that this node has emitted."""
        return self._events[kind.__name__]

    @property
    def url(self) -> str:
        """The URL of /metrics; empty if the node serves no metrics now."""
        if self._server is None:
            return ""
        host = self._server.host
        shown = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)
        return f"{'https' if self.settings.encrypts else 'http'}://{shown}:{self._server.port}/metrics"

    async def start(self) -> None:
        """Bind ``metrics.listener``, and serve. Raises OSError."""
        if self.settings.host is None:
            return
        server = MetricsServer(
            lambda openmetrics: self.exposition.body(openmetrics=openmetrics),
            self.settings.host,
            self.settings.port,
            ssl_context=self._guard.ssl_context(),
            authorize=self._authorize,
        )
        await server.start()
        self._server = server
        self._loop_delay.start()

    async def stop(self) -> None:
        """Close the port. Idempotent."""
        self._loop_delay.stop()
        if self._server is not None:
            await self._server.stop()
            self._server = None
        await self.exposition.close()

    def _authorize(self, request: ScrapeRequest) -> None:
        if not self._guard.admits(request.headers.get("authorization"), request.certificate):
            raise Refused(401, REFUSAL, {"WWW-Authenticate": CHALLENGE})

    def _count(self, event: Event) -> None:
        self._events[type(event).__name__] += 1

    def _collect_build(self) -> Rows:
        yield Row(catalog.BUILD_INFO, (self._role, self._node_id(), _version()), 1)

    def _collect_certificates(self) -> Rows:
        soonest: dict[str, float] = {}  # listeners may have different certificates with the same subject
        for each in [source.certificate() for source in self._tls]:
            if each is not None:
                not_after_s = each.not_after.timestamp()
                soonest[each.subject] = min(not_after_s, soonest.get(each.subject, not_after_s))
        for subject, not_after_s in soonest.items():
            yield Row(catalog.CERTIFICATE_EXPIRY, (subject,), not_after_s)

    def _collect_events(self) -> Rows:
        for name, count in sorted(self._events.items()):
            yield Row(catalog.EVENTS, (name,), count)

    def _collect_metadata(self) -> Rows:
        assert self._metrics is not None
        found = self._metrics.snapshot()
        for name, metric in catalog.METADATA_FOLLOWER.items():
            if name in found:
                yield Row(metric, (), found[name])

    def _collect_calls(self) -> Rows:
        errors: Counter[tuple[str, str, str]] = Counter()
        for calls in self._calls:
            for request, seconds in list(calls.seconds.items()):
                labels = request, calls.listener
                yield Row(catalog.REQUESTS, labels, seconds.count)
                yield Row(catalog.REQUEST_SECONDS, labels, seconds)
                yield Row(catalog.TOTAL_TIME_MS, labels, self.recent(seconds, 1_000.0))
            for request, seconds in list(calls.local_seconds.items()):
                labels = request, calls.listener
                yield Row(catalog.REQUEST_LOCAL_SECONDS, labels, seconds)
                yield Row(catalog.LOCAL_TIME_MS, labels, self.recent(seconds, 1_000.0))
            for request, seconds in list(calls.remote_seconds.items()):
                yield Row(catalog.REMOTE_TIME_MS, (request, calls.listener), self.recent(seconds, 1_000.0))
            for (request, code), count in list(calls.errors.items()):
                errors[request, calls.listener, code] += count
        for labels_of_error, count in errors.items():
            yield Row(catalog.REQUEST_ERRORS, labels_of_error, count)


@functools.cache  # call this once, because it reads a file of the installed package
def _version() -> str:
    try:
        return version("headrace-core")
    except PackageNotFoundError:
        return "unknown"
