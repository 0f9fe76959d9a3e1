"""All connections of a broker's Kafka listeners: their limits, their shared state, and the entrance for clients that
have not authenticated: at most UNAUTHENTICATED_MAX of them authenticate at a time, and the broker reads nothing from
further clients until their turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from headrace_core.connections import PER_IP, AddressCounts, plain
from headrace_core.metrics.calls import CallTimes
from headrace_core.quotas import QuotaManager
from headrace_core.security.audit import AuditLog
from headrace_core.security.protocols import SecurityProtocol
from headrace_core.security.sasl.slow_steps import SlowSteps

from .budget import Answers, Budget
from .call import FastHandler, Handler
from .client import Client
from .cluster import Cluster
from .rounds import Rounds
from .sasl import SaslOffer
from .settings import KafkaSettings
from .tls import ListenerTls
from .upstream import Upstream
from .wire.apis import Api

logger = logging.getLogger("headrace.kafka")

#: Maximum number of requests other than Produce and Fetch that start in one iteration of the event loop.
STARTS_MAX = 8
#: Maximum number of clients that authenticate at a time. Further clients wait, in the order of their connections.
UNAUTHENTICATED_MAX = 500
#: Maximum number of waiting clients, so that clients without a login cannot use up max.connections. For each further
#: client, the broker disconnects the oldest client that authenticates.
WAITING_MAX = 2_000
#: Memory in bytes for the requests of clients that have not authenticated. When it is used up, one client at a time
#: sends a login above SMALL_FRAME_BYTES.
STRANGERS_BYTES = 16 * 1024 * 1024
#: Seconds between two rounds in which the broker looks for slow clients, while other clients wait.
ROUND_S = 0.1
SWEEP_S = 1.0  #: Seconds between two sweeps over all connections. Connections measure times in sweeps.
LOG_LINES_PER_S = 10  #: Maximum number of log lines per second about mistakes of clients.


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """The authentication of the clients of a Kafka listener. ``sasl``: the mechanisms that the listener offers;
    ``max_reauth_ms``, ``failure_delay_ms`` and ``receive_bytes_max``: the listener's connections.max.reauth.ms,
    connection.failed.authentication.delay.ms and sasl.server.max.receive.size."""

    protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    tls: ListenerTls | None = None
    sasl: SaslOffer | None = None
    max_reauth_ms: int = 0
    failure_delay_ms: int = 100
    receive_bytes_max: int = 524_288


OPEN = ListenerSecurity()  #: The settings of a listener without security.


class Peer(Protocol):
    """A ``connection.Connection``, whose module imports this one."""

    client: Client
    is_authenticated: bool

    def wait(self) -> None: ...
    def admitted(self) -> None: ...
    def authenticates_slowly(self, now: int) -> bool: ...
    def check(self, now: int, idle: int | None) -> None: ...
    def drain(self) -> None: ...
    def end(self, *, at_once: bool = False) -> None: ...


class Entrance:
    """The connections whose clients have not authenticated yet: at most UNAUTHENTICATED_MAX ``active`` connections, and
    the ``waiting`` connections, both in the order of their beginnings. The broker reads from active connections only.
    Thousands of clients that connect at once, such as after a restart, therefore all authenticate, one after another.
    Clients that do not finish give their places to waiting clients."""

    def __init__(self, log: Callable[..., None]) -> None:
        self.active: dict[Peer, None] = {}
        self.waiting: dict[Peer, None] = {}
        self.round = 0  #: Number of rounds so far; rounds pass only while clients wait.
        self._log = log
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, connection: Peer) -> None:
        """Add a new connection."""
        self.waiting[connection] = None
        self._admit()
        if connection in self.waiting:
            connection.wait()
            self._look_later()
        if len(self.waiting) > WAITING_MAX:
            oldest = next(iter(self.active))
            del self.active[oldest]
            self._end(oldest)
            self._admit()

    def leave(self, connection: Peer) -> None:
        """Remove a connection whose client has authenticated, or that has ended."""
        self.waiting.pop(connection, None)
        if connection in self.active:
            del self.active[connection]
            self._admit()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _admit(self) -> None:
        while self.waiting and len(self.active) < UNAUTHENTICATED_MAX:
            connection = next(iter(self.waiting))
            del self.waiting[connection]
            self.active[connection] = None
            connection.admitted()

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ROUND_S, self.make_room)

    def make_room(self) -> None:
        """Disconnect as many slow clients as clients wait; the oldest first."""
        self._timer = None
        self.round += 1
        slow = [each for each in self.active if each.authenticates_slowly(self.round)]
        for connection in slow[: len(self.waiting)]:
            self._end(connection)
        if self.waiting:
            self._look_later()

    def _end(self, connection: Peer) -> None:
        self._log("%s had not authenticated while too many others wait; closed", connection.client.host)
        connection.end(at_once=True)


class Connections:
    """All Kafka connections of a broker, with their limits and shared state. Call ``sweep`` every SWEEP_S seconds."""

    def __init__(
        self,
        settings: KafkaSettings,
        cluster: Cluster,
        upstream: Upstream,
        handlers: Mapping[Api, Handler],
        fast: Mapping[Api, FastHandler],
        quotas: QuotaManager | None = None,
        calls: CallTimes | None = None,
    ) -> None:
        """``calls``: for the metrics, times and errors of requests by Kafka's name. Those of Produce and Fetch are
        counted by the streams to the logs."""
        self.settings = settings
        self.cluster = cluster
        self.upstream = upstream
        self.handlers = handlers
        self.fast = fast
        self.quotas = quotas
        self.audit: AuditLog | None = None  #: The audit log, which gets the failed logins and TLS handshakes.
        self.failed_authentications = 0  #: Number of failed logins and TLS handshakes.
        self.budget = Budget(settings.queued_bytes_max)
        #: The budget of clients that have not authenticated: they must not take memory from authenticated clients.
        self.strangers = Budget(min(settings.queued_bytes_max, STRANGERS_BYTES))
        self.answers = Answers()
        self.starts = Rounds(STARTS_MAX)
        self.long_messages = ThreadPoolExecutor(1, thread_name_prefix="long-messages")
        self.slow_steps = SlowSteps()  #: Runs the slow steps of the SASL exchanges of all connections.
        self.prepared: set[Api] = set()  #: Request types whose codecs are compiled.
        #: Appends the batch of a plain Produce request together with those of other connections. Returns False if the
        #: batch must be appended alone; otherwise calls back with its base offset and the log's start, or the error.
        self.join: Callable[..., bool] = _alone
        self.has_ended = False
        self.open: set[Peer] = set()
        self.entrance = Entrance(self.log)
        self._addresses = AddressCounts(settings.addresses)
        self.calls = calls or CallTimes("kafka")
        self.bytes_in = self.bytes_out = 0
        self.now = 0  #: Number of sweeps so far: the clock of the connections, in seconds.
        self._idle = max(int(settings.idle_ms / 1_000), 1) if settings.idle_ms >= 0 else None
        self._lines_left = LOG_LINES_PER_S
        self._lines_lost = 0
        self._none_open: asyncio.Event | None = None

    def add(self, connection: Peer, host: str) -> bool:
        """Count a new connection; False if a limit refuses it."""
        if len(self.open) >= self.settings.connections_max:
            self.log("refused a connection of %s: max.connections=%d", host, self.settings.connections_max)
            return False
        if not self._addresses.begin(host):
            self.log("refused a connection of %s: %s=%d", host, PER_IP, self.settings.addresses.most(plain(host)))
            return False
        self.open.add(connection)
        if not connection.is_authenticated:
            self.entrance.enter(connection)
        return True

    def remove(self, connection: Peer, host: str) -> None:
        self.entrance.leave(connection)
        if connection in self.open:
            self.open.remove(connection)
            self._addresses.end(host)
            if self._none_open is not None and not self.open:
                self._none_open.set()

    def sweep(self) -> None:
        """Close connections that are idle or stalled."""
        self.now += 1
        self._lines_left = LOG_LINES_PER_S
        if self._lines_lost:
            logger.warning("suppressed %d more log lines about mistakes of clients", self._lines_lost)
            self._lines_lost = 0
        for connection in list(self.open):
            connection.check(self.now, self._idle)

    def log(self, text: str, *values: object) -> None:
        """Log a client's mistake, at most LOG_LINES_PER_S times each second."""
        if self._lines_left > 0:
            self._lines_left -= 1
            logger.warning(text, *values)
        else:
            self._lines_lost += 1

    def close(self, *, at_once: bool) -> None:
        """Close all connections, and cancel requests in progress."""
        for connection in list(self.open):
            connection.end(at_once=at_once)
        self.has_ended = True
        self.entrance.close()
        self.long_messages.shutdown(wait=False, cancel_futures=True)
        self.slow_steps.close()

    async def drain(self, timeout_s: float) -> None:
        """Start no more requests, and close each connection after the answers to its requests in progress. Returns when
        all connections are closed, or after ``timeout_s`` seconds."""
        if not self.open:
            return
        self._none_open = asyncio.Event()
        for connection in list(self.open):
            connection.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._none_open.wait()


def _alone(*_: object, **__: object) -> bool:
    """Nothing is joined."""
    return False
