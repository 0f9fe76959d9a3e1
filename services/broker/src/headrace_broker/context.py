"""What every handler needs of the broker, in one value that the composition root fills (app.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace_core.clock import Clock
from headrace_core.errors import FencedBrokerError, HeadraceError, ServerShuttingDownError
from headrace_core.telemetry import Counter, Emitter, Metrics

from .budget import ByteBudget
from .deadlines import Deadlines

if TYPE_CHECKING:
    from .replicas import Replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Bounds on what clients may have the broker hold. Bytes unless said otherwise."""

    #: Of one request (socket.request.max.bytes).
    request_bytes_max: int = 100 * 1024 * 1024
    #: Of one produce stream's unanswered requests; above it the stream is not read.
    stream_bytes_max: int = 8 * 1024 * 1024
    #: Of all produce streams together.
    in_flight_bytes_max: int = 48 * 1024 * 1024
    #: How long a request may take that does not say so itself (request.timeout.ms).
    request_timeout_ms: int = 30_000


class BrokerMetrics:
    """The data path's counters, as attributes, so that counting is an addition and nothing else."""

    __slots__ = (
        "fetch_bytes",
        "fetch_errors",
        "fetch_requests",
        "metrics",
        "produce_bytes",
        "produce_errors",
        "produce_requests",
    )

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.produce_requests: Counter = metrics.counter("produce-requests")
        self.produce_bytes: Counter = metrics.counter("produce-bytes")
        self.produce_errors: Counter = metrics.counter("produce-errors")
        self.fetch_requests: Counter = metrics.counter("fetch-requests")
        self.fetch_bytes: Counter = metrics.counter("fetch-bytes")
        self.fetch_errors: Counter = metrics.counter("fetch-errors")


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """The broker as its handlers see it."""

    clock: Clock
    limits: BrokerLimits
    budget: ByteBudget
    deadlines: Deadlines
    metrics: BrokerMetrics
    events: Emitter
    replicas: Replicas
    #: Why partitions are not served right now; None when they are.
    refusal: HeadraceError | None = field(default_factory=lambda: FencedBrokerError("the broker is starting"))

    def check_serving(self) -> None:
        """Raises FencedBrokerError while the controller has this broker fenced, ServerShuttingDownError at the end."""
        if self.refusal is not None:
            raise self.refusal

    def shut(self) -> None:
        """No request is served from now on."""
        self.refusal = ServerShuttingDownError("the broker is shutting down; refresh the metadata")
