"""What every handler needs of the broker, in one value that the composition root fills (app.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.telemetry import Counter, Emitter, Metrics

from .budget import ByteBudget, UnreadAnswers
from .controller_link import REQUEST_TIMEOUT_MS
from .deadlines import Deadlines
from .partition_table import PartitionTable
from .producer_ids import ProducerIds
from .replication.pushes import PendingPushes
from .settings import BrokerIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Bounds on what clients may have the broker hold. Bytes unless said otherwise."""

    #: Of one request (socket.request.max.bytes).
    request_bytes_max: int = 16 * 1024 * 1024
    #: Of one fetch's answer (fetch.max.bytes); answers are cut earlier anyway.
    fetch_bytes_max: int = 55 * 1024 * 1024
    #: Of one produce stream's unanswered requests; above it the stream is not read.
    stream_bytes_max: int = 16 * 1024 * 1024
    #: Of all produce streams together.
    in_flight_bytes_max: int = 64 * 1024 * 1024
    #: How long a request may take that does not say so itself (request.timeout.ms).
    request_timeout_ms: int = REQUEST_TIMEOUT_MS


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
        "replication_bytes",
    )

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.produce_requests: Counter = metrics.counter("produce-requests")
        self.produce_bytes: Counter = metrics.counter("produce-bytes")
        self.produce_errors: Counter = metrics.counter("produce-errors")
        self.fetch_requests: Counter = metrics.counter("fetch-requests")
        self.fetch_bytes: Counter = metrics.counter("fetch-bytes")
        self.fetch_errors: Counter = metrics.counter("fetch-errors")
        #: What was pushed to followers, with what goes around the records.
        self.replication_bytes: Counter = metrics.counter("replication-bytes-out")


class EndableStream(Protocol):
    """An open call that can be told to end."""

    def finish(self, error: BaseException | None = None) -> None: ...


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """The broker as its handlers see it."""

    identity: BrokerIdentity
    clock: Clock
    limits: BrokerLimits
    budget: ByteBudget
    deadlines: Deadlines
    metrics: BrokerMetrics
    events: Emitter
    metadata: MetadataState
    partitions: PartitionTable
    pushes: PendingPushes
    #: None: there is no controller to have any from (in tests of single rooms).
    producer_ids: ProducerIds | None = None
    #: May consumers be sent to followers in their rack (replica.selector.class, KIP-392)?
    reads_by_rack: bool = False
    unread: UnreadAnswers = field(default_factory=UnreadAnswers)
    #: Every open stream of the client listener.
    streams: set[EndableStream] = field(default_factory=set)

    @property
    def broker_id(self) -> int:
        """-1 until the controllers have accepted the registration."""
        return self.identity.broker_id

    def rack_of(self, broker_id: int) -> str | None:
        """Of a broker that is there: registered, not fenced, and with a rack; None of any other."""
        broker = self.metadata.image.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.rack or None

    def end_streams(self, error: HeadraceError) -> None:
        """End every open stream with ``error``, after what is queued on it."""
        for stream in list(self.streams):
            stream.finish(error)
