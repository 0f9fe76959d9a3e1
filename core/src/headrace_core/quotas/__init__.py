"""Client quotas (KIP-13, KIP-124, KIP-546, KIP-599, KIP-612): which quota applies to a client, and how long the client
must wait. The package does no I/O, and gets the time as an argument.

entities.py   the terms of quotas: entities, keys, values, filters, and their checks
table.py      which quota applies to a user and a client id (Kafka's order)
bucket.py     the token bucket that measures a rate
manager.py    all buckets of a node, and the limits of one client
callers.py    the limits of the client of a gRPC call (membership/mutation_quota.py uses them for the calls of Admin)

Each node counts separately: a quota of 5 MB/s lets a client use 5 MB/s of every broker, as in Kafka.

A server that limits its clients (a broker for its streams and connections) does this::

    manager = QuotaManager(window_s=1, windows=11, defaults={PRODUCER_BYTE_RATE: ...})
    manager.apply(image.security.quotas)                after each change of the metadata; cheap without a change
    limits = ClientLimits(manager, user, client_id)     once for each connection, or when the client id changes

    wait_s = limits.produced(request_bytes, now_s)      after the request was accepted; 0.0: no wait
    wait_s = limits.fetched(response_bytes, now_s)      before the response is sent
    wait_s = limits.worked(seconds, now_s)              time that the node's event loop spent on the request
    wait_s = limits.mutated(partitions, now_s)          controller mutations; raises ThrottlingQuotaExceededError

Answer the request at once with the largest of the waits as ``throttle_time_ms`` (``throttle_ms(wait_s)``), and do not
read from the client's connection until the wait is over (KIP-219). Other connections continue. ``user`` is the name of
the principal without its type ("alice" of User:alice, "ANONYMOUS" without authentication). Limit the bytes of a fetch
to ``limits.fetch_bytes_max(now_s)`` when it is not None. For connections: ``manager.connected(ip, now_s)`` returns how
long the new connection must wait before it is served (KIP-612).

Streams of nodes have no quotas; on listeners without security, a node identifies itself with the metadata
``COUNTED_KEY``.
"""

from .bucket import TokenBucket, throttle_ms
from .entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    COUNTED_KEY,
    PRODUCER_BYTE_RATE,
    QUOTA_KEYS,
    REQUEST_PERCENTAGE,
    FilterPart,
    checked_entity,
    checked_filter,
    checked_value,
    matches,
    shown_entity,
)
from .manager import ClientLimits, QuotaManager
from .table import Applicable, QuotaTable

__all__ = [
    "CONNECTION_CREATION_RATE",
    "CONSUMER_BYTE_RATE",
    "CONTROLLER_MUTATION_RATE",
    "COUNTED_KEY",
    "PRODUCER_BYTE_RATE",
    "QUOTA_KEYS",
    "REQUEST_PERCENTAGE",
    "Applicable",
    "ClientLimits",
    "FilterPart",
    "QuotaManager",
    "QuotaTable",
    "TokenBucket",
    "checked_entity",
    "checked_filter",
    "checked_value",
    "matches",
    "shown_entity",
    "throttle_ms",
]
