"""Targets: bytes from Kafka's clients.

``kafka_frames`` cuts any bytes into pieces for one connection, whose handlers answer at once. ``kafka_requests`` sends
one request of any type and version to a broker, beside a coordinator: half of the inputs are mutated bytes, half are
messages of hostile values. The broker answers with a message of that version, closes the connection, or still waits
when the time limit ends. No handler fails with an error that is no answer, and no answer contains UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from functools import cache
from typing import Any, cast

from headrace import Admin
from headrace_kafka.connection import Connection
from headrace_kafka.connections import Connections
from headrace_kafka.handlers.table import FAST, HANDLERS
from headrace_kafka.settings import KafkaSettings
from headrace_kafka.wire import schema
from headrace_kafka.wire.apis import VERSIONS, Api, title
from headrace_kafka.wire.primitives import WireError
from tests.fuzz.fuzz_engine import Target
from tests.fuzz.fuzz_handlers import TOPIC, cluster
from tests.fuzz.fuzz_seeds import batches
from tests.worlds.kafka_protocol import MemoryTransport, read_answer, request_frame

#: A request that waits on purpose ends with its connection after this time, for example a long poll.
WAIT_S = 0.15
_UNKNOWN = -1
BROKER_ID = 1  #: The cluster's only broker, which the other inputs need: no input removes it.


@cache
def served() -> tuple[tuple[Api, int], ...]:
    """Every type and version that a broker serves."""
    return tuple(
        (api, version)
        for api in sorted({*HANDLERS, *FAST})
        for version in range(VERSIONS[api].low, VERSIONS[api].high + 1)
    )


# ---------------------------------------------------------------------------------------------- frames


def kafka_frames(data: bytes) -> None:
    asyncio.run(_frames(data))


async def _frames(data: bytes) -> None:
    async def handle(call: Any, request: Any) -> dict[str, Any]:
        return {}

    connections = Connections(
        KafkaSettings(queued_bytes_max=4_096),
        cast("Any", None),
        cast("Any", None),
        dict.fromkeys((*HANDLERS, *FAST), handle),
        {},
    )
    transport, connection = MemoryTransport(), Connection(connections, "kafka")
    transport.connect(connection)
    rng = random.Random(data)
    while data and transport.state == "open":
        size = rng.choice((1, 5, 50, 5_000))
        connection.data_received(data[:size])
        data = data[size:]
        connections.sweep()
        await asyncio.sleep(0)
        transport.client_reads()
    transport.lose()
    assert connections.budget.used == 0, f"{connections.budget.used} bytes are still counted"
    assert not connections.open


def _frame_seeds() -> list[bytes]:
    rng = random.Random(17)
    return [
        bytes(b"".join(request_frame(api, version, body=hostile(api, version, rng)) for _ in range(2)))
        for api, version in served()[::7]
    ]


# ---------------------------------------------------------------------------------------------- requests


class _Failures(logging.Handler):
    """Keeps what the broker logs as a bug."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(logging.Formatter().format(record))


_failures = _Failures()
_running = contextlib.ExitStack()


@cache
def _address() -> tuple[str, int]:
    """The broker's address. Its failures are kept until ``stop``."""
    nodes = cluster()
    with Admin(bootstrap_servers=nodes.bootstrap_servers) as admin:
        if TOPIC not in admin.list_topics():
            admin.create_topics([TOPIC])
    logger = logging.getLogger("headrace.kafka")
    logger.addHandler(_failures)
    _running.callback(logger.removeHandler, _failures)
    host, _, port = nodes.kafka_bootstrap_servers.rpartition(":")
    return host, int(port)


def stop() -> None:
    """Forget the broker, before its cluster ends."""
    _running.close()
    _address.cache_clear()


def kafka_requests(data: bytes) -> None:
    if len(data) < 2:
        return
    every = served()
    api, version = every[int.from_bytes(data[:2], "big") % len(every)]
    if api is Api.UNREGISTER_BROKER and _broker_of(version, data[2:]) == BROKER_ID:
        return
    _failures.seen.clear()
    with socket.create_connection(_address(), timeout=10) as connection:
        connection.sendall(request_frame(api, version, body=data[2:]))
        connection.settimeout(WAIT_S)
        answer = _answer(connection)
    assert not _failures.seen, f"{title(api)} version {version}: {_failures.seen[0]}"
    if answer:
        for code in _codes(read_answer(api, version, answer)[1]):
            assert code != _UNKNOWN, f"{title(api)} version {version} answered UNKNOWN_SERVER_ERROR"


def _broker_of(version: int, body: bytes) -> int | None:
    """The broker that an UnregisterBroker request names; None for bytes that are no such request."""
    try:
        return int(schema.request_body(Api.UNREGISTER_BROKER, version).read(body).broker_id)
    except WireError:
        return None


def _answer(connection: socket.socket) -> bytes:
    """The answer without its length; empty if the broker closed the connection, or still waits."""
    data = b""
    try:
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            part = connection.recv(1 << 16)
            if not part:
                return b""
            data += part
    except (TimeoutError, ConnectionError):
        return b""
    return data[4:]


def _codes(message: schema.Message) -> list[int]:
    found = []
    for name, value in vars(message).items():
        if name == "error_code":
            found.append(value)
        for each in value if isinstance(value, list) else (value,):
            if isinstance(each, schema.Message):
                found += _codes(each)
    return found


# ---------------------------------------------------------------------------------------------- hostile values

_NUMBERS = (0, 0, 1, 1, -1, 2, 5, 100, (1 << 15) - 1, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32, "timedelta_i64": 64}
_BITS |= {"datetime_i64": 64, "error_code": 16}
_NAMES = (
    TOPIC,
    TOPIC,
    TOPIC,
    "",
    ".",
    "no/such",
    "n" * 249,
    "n" * 300,
    "é\0",
    "__consumer_offsets",
    "g",
    "1",
    "consumer",
)
_NAMES += ("retention.ms", "cleanup.policy", "range", "[", "(a*)*b", "127.0.0.1", "stable", "uniform")
_COUNTS = (0, 1, 1, 1, 2, 3, 20)


def hostile(api: Api, version: int, rng: random.Random) -> bytes:
    """The body of a request with hostile values, and some valid values."""
    fields = _fields(schema._entity(api, version, "request"), rng)
    return bytes(schema.request_body(api, version).write(fields))


def _fields(entity: type[Any], rng: random.Random) -> dict[str, Any]:
    return {name: _value(kind, rng) for name, kind in schema._kinds(entity).items() if rng.random() < 0.9}


def _value(kind: Any, rng: random.Random) -> Any:
    if kind.is_nullable and rng.random() < 0.2 and kind.kafka not in ("uuid", "datetime_i64"):
        return None
    if kind.is_array:
        return [_scalar(kind, rng) for _ in range(rng.choice(_COUNTS))]
    return _scalar(kind, rng)


def _scalar(kind: Any, rng: random.Random) -> Any:
    if kind.entity is not None:
        return _fields(kind.entity, rng)
    if kind.kafka in _BITS:
        high = 1 << (_BITS[kind.kafka] - 1)
        return max(min(rng.choice(_NUMBERS), high - 1), -high)
    if kind.kafka == "uint16":
        return rng.choice((0, 1, 9092, 65535))
    if kind.kafka == "bool":
        return rng.random() < 0.5
    if kind.kafka == "float64":
        return rng.choice((0.0, -1.0, 1e308, float("nan")))
    if kind.kafka == "uuid":
        return rng.choice((bytes(16), b"\xff" * 16, rng.randbytes(16)))
    if kind.kafka == "string":
        return rng.choice(_NAMES)
    return rng.choice([b"", b"x", bytes(100), *batches()])


def _request_seeds() -> list[bytes]:
    rng = random.Random(17)
    return [
        number.to_bytes(2, "big") + hostile(api, version, rng)
        for number, (api, version) in enumerate(served())
        if version in (VERSIONS[api].low, VERSIONS[api].high)
    ]


def _fix(data: bytes, rng: random.Random) -> bytes:
    """Half of the inputs are built as messages, because random bytes are hardly ever a valid message."""
    if rng.random() < 0.5:
        return data
    every = served()
    number = rng.randrange(1 << 16)
    api, version = every[number % len(every)]
    return number.to_bytes(2, "big") + hostile(api, version, rng)


TARGETS = [
    Target("kafka_frames", kafka_frames, _frame_seeds),
    Target("kafka_requests", kafka_requests, _request_seeds, _fix),
]
