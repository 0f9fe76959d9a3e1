"""All quotas of a node: the table of the present metadata, and one bucket for each client that has a limit."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ThrottlingQuotaExceededError
from ..metadata.security import QuotaEntity
from .bucket import TokenBucket, throttle_ms
from .entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    QUOTA_KEYS,
    REQUEST_PERCENTAGE,
    canonical_ip,
)
from .table import Applicable, QuotaTable

#: Kafka's defaults of quota.window.size.seconds and quota.window.num.
WINDOW_S, WINDOWS = 1.0, 11
#: Maximum number of buckets. Clients choose their client ids, so the number of buckets must be bounded; full buckets
#: are removed first.
BUCKETS_MAX = 10_000
#: Maximum wait in seconds before a stream's first request. No response announces this wait to the client, so it should
#: be shorter than the request timeouts of clients (30 s). Only one stream of a client at a time has this maximum wait:
#: otherwise a client with many streams would exceed its quota.
FIRST_WAIT_S_MAX = 20.0

_BucketKey = tuple[str, str | None, str | None]


class QuotaManager:
    """The quotas of one node. ``defaults``: values by key for clients without a quota in the metadata. ``window_s``,
    ``windows``: the burst is one window, for controller mutations all windows (bucket.py)."""

    def __init__(
        self,
        *,
        window_s: float = WINDOW_S,
        windows: int = WINDOWS,
        defaults: Mapping[str, float] = {},
    ) -> None:
        self._window_s = window_s
        self._windows = windows
        self._defaults = dict(defaults)
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._buckets: dict[_BucketKey, TokenBucket] = {}
        #: The present quotas. Each change creates a new table, so ``ClientLimits`` detects a change by comparing one
        #: reference.
        self.table = QuotaTable({}, self._defaults)
        self.throttled = dict.fromkeys(QUOTA_KEYS, 0)  #: Number of waits of clients, by quota key.
        #: Total milliseconds that clients had to wait, by quota key.
        self.throttled_ms = dict.fromkeys(self.throttled, 0)

    def apply(
        self, quotas: Mapping[QuotaEntity, Mapping[str, float]], defaults: Mapping[str, float] | None = None
    ) -> None:
        """Use the quotas of an image (``image.security.quotas``), and, if given, other defaults."""
        wanted = self._defaults if defaults is None else dict(defaults)
        if quotas is self._quotas and wanted == self._defaults:
            return
        self._quotas, self._defaults = quotas, wanted
        self.table = QuotaTable(quotas, wanted)

    def bucket(self, key: str, found: Applicable, now_s: float) -> TokenBucket:
        """The bucket that all clients of the quota share."""
        place = key, found.user, found.client_id
        rate = found.rate / 100 if key == REQUEST_PERCENTAGE else found.rate
        burst = rate * self._window_s * (self._windows if key == CONTROLLER_MUTATION_RATE else 1)
        bucket = self._buckets.get(place)
        if bucket is None:
            if len(self._buckets) >= BUCKETS_MAX:
                self._make_room(now_s)
            bucket = self._buckets[place] = TokenBucket(rate, burst, now_s)
        elif (bucket.rate, bucket.burst) != (rate, burst):
            bucket.set_rate(rate, burst, now_s)
        return bucket

    def connected(self, ip: str, now_s: float) -> float:
        """Count a new connection from ``ip``; returns for how many seconds its first request must wait (KIP-612). A
        connection waits at most one window, as in Kafka."""
        if CONNECTION_CREATION_RATE not in self.table.keys:
            return 0.0
        address = canonical_ip(ip)
        rate = None if address is None else self.table.connections(address)
        if rate is None:
            return 0.0
        wait_s = self.bucket(CONNECTION_CREATION_RATE, Applicable(rate, address, None), now_s).spend(1, now_s)
        wait_s = min(wait_s, self._window_s)
        self.note(CONNECTION_CREATION_RATE, wait_s)
        return wait_s

    def note(self, key: str, wait_s: float) -> None:
        """Count a client's wait, for the metrics."""
        if wait_s > 0:
            self.throttled[key] += 1
            self.throttled_ms[key] += throttle_ms(wait_s)

    def _make_room(self, now_s: float) -> None:
        for place in [place for place, bucket in self._buckets.items() if bucket.is_full(now_s)]:
            del self._buckets[place]
        while len(self._buckets) >= BUCKETS_MAX:
            del self._buckets[next(iter(self._buckets))]

    @property
    def window_s(self) -> float:
        return self._window_s


class ClientLimits:
    """The limits of one client, for one connection or stream of the client. On a node without quotas, each method costs
    one comparison. ``user``: the principal's name."""

    __slots__ = ("_buckets", "_client_id", "_table", "_user", "manager")

    def __init__(self, manager: QuotaManager, user: str, client_id: str) -> None:
        self.manager = manager
        self._user = user
        self._client_id = client_id
        self._table: QuotaTable | None = None
        self._buckets: dict[str, TokenBucket] = {}

    @property
    def has_any(self) -> bool:
        """Whether the node has any quota."""
        return bool(self.manager.table.keys)

    @property
    def measures_work(self) -> bool:
        """Whether the node has any quota of time (request_percentage), so that requests must be timed."""
        return REQUEST_PERCENTAGE in self.manager.table.keys

    @property
    def has_mutation_quota(self) -> bool:
        """Whether the node has a quota of controller mutations."""
        return CONTROLLER_MUTATION_RATE in self.manager.table.keys

    def produced(self, size: int, now_s: float) -> float:
        """Count ``size`` produced bytes; returns how many seconds the client must wait."""
        return self._spend(PRODUCER_BYTE_RATE, size, now_s)

    def fetched(self, size: int, now_s: float) -> float:
        """Count ``size`` fetched bytes; returns how many seconds the client must wait."""
        return self._spend(CONSUMER_BYTE_RATE, size, now_s)

    def worked(self, seconds: float, now_s: float) -> float:
        """Count time that the node spent on the client's requests (KIP-124); returns how many seconds the client must
        wait, at most one window, as in Kafka. 100 percent is the whole event loop of the node."""
        return self._spend(REQUEST_PERCENTAGE, seconds, now_s, self.manager.window_s)

    def first_wait_s(self, key: str, now_s: float) -> float:
        """Return how many seconds a new stream of the client must wait before its first request, because the client has
        already used its quota of ``key``. If the wait is above FIRST_WAIT_S_MAX, one stream waits only
        FIRST_WAIT_S_MAX, and the next streams wait in full."""
        if key not in self.manager.table.keys:
            return 0.0
        bucket = self._bucket(key, now_s)
        if bucket is None:
            return 0.0
        wait_s = bucket.wait_s(now_s)
        if key == REQUEST_PERCENTAGE:
            return min(wait_s, self.manager.window_s)
        if wait_s > FIRST_WAIT_S_MAX and now_s - bucket.excused_s >= FIRST_WAIT_S_MAX:
            bucket.excused_s = now_s
            return FIRST_WAIT_S_MAX
        return wait_s

    def fetch_bytes_max(self, now_s: float) -> int | None:
        """The maximum size of one response: the bytes that the quota allows in one window. None: no quota."""
        if CONSUMER_BYTE_RATE not in self.manager.table.keys:
            return None
        bucket = self._bucket(CONSUMER_BYTE_RATE, now_s)
        return None if bucket is None else max(int(bucket.burst), 1)

    def mutated(self, partitions: int, now_s: float) -> float:
        """Count ``partitions`` that a request creates or deletes (KIP-599). Raises ThrottlingQuotaExceededError, with
        ``throttle_ms``, when the client is over its quota; a refused request is not counted. One request may exceed
        the quota, so that a request with more partitions than the burst is possible; the client then waits longer."""
        bucket = self._bucket(CONTROLLER_MUTATION_RATE, now_s)
        if bucket is None:
            return 0.0
        wait_s = bucket.wait_s(now_s)
        if wait_s > 0:
            self.manager.note(CONTROLLER_MUTATION_RATE, wait_s)
            raise ThrottlingQuotaExceededError(
                f"user {self._user!r} with client id {self._client_id!r} has exceeded its controller_mutation_rate of "
                f"{bucket.rate:g} partitions/s; retry in {throttle_ms(wait_s)} ms"
            )
        return bucket.spend(partitions, now_s)

    def not_mutated(self, partitions: int, now_s: float) -> None:
        """Give back ``partitions`` that ``mutated`` has counted, because the request was refused."""
        bucket = self._bucket(CONTROLLER_MUTATION_RATE, now_s)
        if bucket is not None:
            bucket.give(partitions, now_s)

    def _spend(self, key: str, amount: float, now_s: float, most_s: float | None = None) -> float:
        if key not in self.manager.table.keys:  # the usual case: there are no quotas
            return 0.0
        bucket = self._bucket(key, now_s)
        if bucket is None:
            return 0.0
        wait_s = bucket.spend(amount, now_s)
        if most_s is not None:
            wait_s = min(wait_s, most_s)
        self.manager.note(key, wait_s)
        return wait_s

    def _bucket(self, key: str, now_s: float) -> TokenBucket | None:
        if self.manager.table is not self._table:
            self._renew()
        bucket = self._buckets.get(key)
        if bucket is None:
            found = self.manager.table.find(key, self._user, self._client_id)
            if found is None:
                return None
            bucket = self._buckets[key] = self.manager.bucket(key, found, now_s)
        return bucket

    def _renew(self) -> None:
        self._table = self.manager.table
        self._buckets.clear()
