"""What every handler needs from the broker, in one value that app.py fills."""

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
    """Bounds on what the broker holds for clients. Bytes unless said otherwise."""

    request_bytes_max: int = 16 * 1024 * 1024  #: Limit of one request (socket.request.max.bytes).
    #: Of one fetch's answer (fetch.max.bytes); answers are cut earlier anyway.
    fetch_bytes_max: int = 55 * 1024 * 1024
    #: Limit of unanswered requests on one produce stream; above it the stream is not read.
    stream_bytes_max: int = 16 * 1024 * 1024
    in_flight_bytes_max: int = 64 * 1024 * 1024  #: Limit of unanswered requests on all produce streams.
    request_timeout_ms: int = REQUEST_TIMEOUT_MS  #: Default timeout of a request (request.timeout.ms).


class BrokerMetrics:
    """Counters of the data path, as attributes, so that counting is only an addition."""

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
        #: Bytes pushed to followers, with their framing.
        self.replication_bytes: Counter = metrics.counter("replication-bytes-out")


class EndableStream(Protocol):
    """An open call that can be ended."""

    def finish(self, error: BaseException | None = None) -> None: ...


@dataclass(slots=True, kw_only=True)
class BrokerContext:
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
    producer_ids: ProducerIds | None = None  #: None: no controller to get them from (in tests of single rooms).
    #: Whether consumers may be sent to followers in their rack (replica.selector.class, KIP-392).
    reads_by_rack: bool = False
    unread: UnreadAnswers = field(default_factory=UnreadAnswers)
    streams: set[EndableStream] = field(default_factory=set)  #: Every open stream of the client listener.

    @property
    def broker_id(self) -> int:
        """-1 until the controllers have accepted the registration."""
        return self.identity.broker_id

    def rack_of(self, broker_id: int) -> str | None:
        """Rack of a registered, unfenced broker; None for any other."""
        broker = self.metadata.image.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.rack or None

    def end_streams(self, error: HeadraceError) -> None:
        """End every open stream with ``error``, after what is queued on it."""
        for stream in list(self.streams):
            stream.finish(error)
