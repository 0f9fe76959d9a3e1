"""The parts of the broker that every handler needs, in one object that app.py creates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.membership.producer_ids import ProducerIds
from headrace_core.metrics.calls import CallTimes
from headrace_core.node.listeners import CLIENT, INTERNAL
from headrace_core.quotas import QuotaManager
from headrace_core.rpc.receiving import Penalties
from headrace_core.telemetry import Counter, Emitter, Metrics

from .controller_link import REQUEST_TIMEOUT_MS
from .flow import Flow, NewConnections
from .partition_table import PartitionTable
from .replication.pushes import PendingPushes
from .settings import BrokerIdentity
from .tracing import BrokerTraces
from .verifier import Verifier


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Limits of the memory that the broker uses for clients. The limits are in bytes unless a limit's name says
    otherwise."""

    request_bytes_max: int = 16 * 1024 * 1024  #: Largest request in bytes (socket.request.max.bytes).
    #: Maximum bytes of records in a fetch response (fetch.max.bytes). Most fetch responses end below fetch.max.bytes,
    #: at a limit that the fetch handler sets.
    fetch_bytes_max: int = 55 * 1024 * 1024
    #: Maximum bytes of unanswered requests on one produce stream; above the maximum the broker stops reading the
    #: stream.
    stream_bytes_max: int = 16 * 1024 * 1024
    #: Maximum bytes of requests on all produce streams of the broker together whose records are not in the log yet.
    in_flight_bytes_max: int = 64 * 1024 * 1024
    #: Timeout in milliseconds of requests that set no timeout (request.timeout.ms).
    request_timeout_ms: int = REQUEST_TIMEOUT_MS


class BrokerMetrics:
    """Counters of produce, fetch and replication, as attributes, so that counting costs one addition."""

    __slots__ = (
        "client_times",
        "fetch_bytes",
        "fetch_errors",
        "fetch_requests",
        "internal_times",
        "isr_failures",
        "kafka_times",
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
        #: Bytes of record batches sent to followers.
        self.replication_bytes: Counter = metrics.counter("replication-bytes-out")
        self.isr_failures: Counter = metrics.counter("isr-updates-failed")
        #: Times and errors of the requests in streams: of clients, and of coordinators on the internal listener.
        self.client_times, self.internal_times = CallTimes(CLIENT), CallTimes(INTERNAL)
        self.kafka_times = CallTimes("kafka")  #: Times and errors of all requests of Kafka's clients.


class OpenStream(Protocol):
    """A stream of gRPC, or of a connection of Kafka's clients."""

    def finish(self, error: BaseException | None = None) -> None:
        """End the stream with an error."""


class FetchesOfStream(Protocol):
    """The fetch requests of one stream."""

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits for records (fetch.min.bytes, fetch.max.wait.ms)."""
        ...


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    identity: BrokerIdentity
    clock: Clock
    limits: BrokerLimits
    flow: Flow
    metrics: BrokerMetrics
    events: Emitter
    metadata: MetadataState
    partitions: PartitionTable
    pushes: PendingPushes
    #: The allocator of this broker's producer ids; None in unit tests, which have no controller.
    producer_ids: ProducerIds | None = None
    #: Asks the coordinators of transactions; None in unit tests, which have no coordinator.
    verifier: Verifier | None = None
    #: Whether the broker may send a consumer to a follower in the consumer's rack (replica.selector.class, KIP-392).
    reads_by_rack: bool = False
    #: Makes the spans of this broker; None if the broker exports no traces.
    traces: BrokerTraces | None = None
    quotas: QuotaManager = field(default_factory=QuotaManager)  #: The quotas of this broker's clients.
    connections: NewConnections = field(init=False)  #: The quota of new connections.
    #: All open streams: for produce and fetch requests of clients and coordinators, for replication, and for markers.
    streams: set[OpenStream] = field(default_factory=set)
    client_streams: int = 0  #: Number of open produce and fetch streams of clients.
    #: The penalties of Kafka's clients; a gRPC listener has its own.
    penalties: Penalties = field(default_factory=Penalties)
    fetches: set[FetchesOfStream] = field(default_factory=set)  #: All open fetch streams.

    def __post_init__(self) -> None:
        self.connections = NewConnections(self.quotas)

    @property
    def broker_id(self) -> int:
        """-1 until the controllers have accepted the registration."""
        return self.identity.broker_id

    def rack_of(self, broker_id: int) -> str | None:
        """Rack of a registered, unfenced broker; None for a fenced or unknown broker, and for a broker without a
        rack."""
        broker = self.metadata.image.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.rack or None

    def end_streams(self, error: HeadraceError) -> None:
        """End every open stream with ``error``, after the responses that are already queued."""
        for stream in list(self.streams):
            stream.finish(error)
