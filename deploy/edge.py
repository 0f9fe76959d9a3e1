"""The edge of the compose stack: a TCP proxy through which clients outside of the container network reach each node
inside. The edge forwards all bytes without interpreting them.

    edge.py 9095=broker:9096 9101-9109=headrace-broker-{slot}:9096 9092=broker:9094

With {slot}, each port of a range leads to one node: the place of the port in the range is the node's slot (9103: slot
3). The node advertises this port at its external listener. A port that is given alone leads to any address of its host
name; clients use it for bootstrap connections. The edge resolves names for each connection, so a node may return with
another address. When a node cannot be reached within two seconds, the client's connection is reset, as if no process
listened.

Limits are Kafka's keys, from the environment (HEADRACE_ and the name in capitals):

    max.connections           1000 at once; further connections are reset and logged (KIP-402) max.connections.per.ip
    no limit    the same per address (KIP-308). Behind a port that an engine publishes on
                                          the loopback address, all clients share the engine's address
    connections.max.idle.ms   600000      a connection without a byte in either direction for this long is closed

A connection costs at most 256 KiB, when neither side reads. The edge closes a connection when the machine of one side
has vanished, or has not read pending data for two minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import random
import re
import resource
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

logger = logging.getLogger("headrace.edge")

CONNECT_S = 2.0
#: Limit of data that one side has sent and the other has not read; above the limit the edge stops reading from the
#: sender.
BUFFER_BYTES = 64 * 1024
#: Bytes per read; a buffer may exceed its limit by this number.
READ_BYTES = 64 * 1024
NO_LIMIT = 2**31 - 1
#: Interval of log lines about refused connections (seconds).
TELL_S = 10.0
#: Descriptors of each connection: the client's and the node's end. Descriptors for other purposes: ports, the event
#: loop, name lookups.
DESCRIPTORS_EACH, DESCRIPTORS_ELSE = 2, 100
#: Detects a vanished machine within two minutes: keep-alive on an idle connection; the user timeout (RFC 5482) with
#: unacknowledged or unread data.
SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000),
)
_ROUTE = re.compile(r"(?P<first>\d{1,5})(-(?P<last>\d{1,5}))?=(?P<host>[^:=]+):(?P<port>\d{1,5})\Z")


@dataclass(frozen=True, slots=True)
class Route:
    listen: int
    host: str
    port: int


def parse_routes(texts: list[str]) -> list[Route]:
    """Parse routes. Raises ValueError, whose message names the wrong route and the fault."""
    routes: list[Route] = []
    for text in texts:
        match = _ROUTE.match(text)
        if match is None:
            raise ValueError(f"{text}: write PORT=HOST:PORT, or FIRST-LAST=HOST:PORT with {{slot}} in HOST")
        first, last = int(match["first"]), int(match["last"] or match["first"])
        host, port = match["host"], int(match["port"])
        if not 0 < first <= last < 65_536 or not 0 < port < 65_536:
            raise ValueError(f"{text}: ports are 1 to 65535, the first before the last")
        if (first != last) != ("{slot}" in host):
            raise ValueError(f"{text}: a range of ports needs {{slot}} in the host, and {{slot}} needs a range")
        routes += [
            Route(listen, host.replace("{slot}", str(number + 1)), port)
            for number, listen in enumerate(range(first, last + 1))
        ]
    if not routes or len({route.listen for route in routes}) != len(routes):
        raise ValueError("name at least one port, and no port twice")
    return routes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_connections: int = 1000
    max_connections_per_ip: int = NO_LIMIT
    connections_max_idle_ms: int = 600_000


def parse_limits(environment: Mapping[str, str]) -> Limits:
    """Read the limits; an empty variable counts as missing. Raises ValueError, which names the wrong variable."""
    given = {}
    for name in Limits.__dataclass_fields__:
        variable = f"HEADRACE_{name.upper()}"
        text = environment.get(variable, "").strip()
        if not text:
            continue
        if not text.isdecimal() or not 0 < int(text) <= NO_LIMIT:
            raise ValueError(f"{variable}={text}: write a number from 1 to {NO_LIMIT}")
        given[name] = int(text)
    return Limits(**given)


class Admission:
    """Admission control: counts open and refused connections."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.connections = 0
        self.refused: Counter[str] = Counter()  # refused connections by the key that refused them
        self._of_ip: Counter[str] = Counter()

    def enter(self, ip: str) -> str | None:
        """Admit a connection from ``ip`` until ``leave`` (None), or return the key that refuses it."""
        if self.connections >= self.limits.max_connections:
            key = f"max.connections={self.limits.max_connections}"
        elif self._of_ip[ip] >= self.limits.max_connections_per_ip:
            key = f"max.connections.per.ip={self.limits.max_connections_per_ip}"
        else:
            self.connections += 1
            self._of_ip[ip] += 1
            return None
        self.refused[key] += 1
        return key

    def leave(self, ip: str) -> None:
        self.connections -= 1
        self._of_ip[ip] -= 1
        if not self._of_ip[ip]:
            del self._of_ip[ip]


#: The read buffer, shared by all connections: its data is passed on before the next read.
_read = memoryview(bytearray(READ_BYTES))


class Pipe(asyncio.BufferedProtocol):
    """One of the two connections of a pass-through. Passes received data to ``other``, which may pause it."""

    def __init__(self) -> None:
        self.other: Pipe | None = None
        self.transport: asyncio.Transport | None = None
        self.received_at = 0.0  # time of the last received data, on the event loop's clock
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(BUFFER_BYTES)
        self.received_at = asyncio.get_running_loop().time()
        for level, option, value in SOCKET_OPTIONS:
            transport.get_extra_info("socket").setsockopt(level, option, value)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _read

    def buffer_updated(self, nbytes: int) -> None:
        self.received_at = asyncio.get_running_loop().time()
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(bytes(_read[:nbytes]))

    def eof_received(self) -> bool:
        """Return True, so that the other direction continues. When both directions have ended, close here, because no
        further event closes the connection."""
        self._has_ended = True
        if self.other is None or self.other.transport is None:
            return False
        if not self.other.transport.is_closing():
            self.other.transport.write_eof()
        return not self.other._has_ended

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        other, self.other = self.other, None
        if other is not None and other.transport is not None:
            other.other = None
            if error is None:
                other.transport.close()
            else:
                other.transport.abort()


class Client(Pipe):
    """The client's side of a connection. The edge reads no data from the client before the connection to the node is
    open."""

    def __init__(self, route: Route, edge: Edge) -> None:
        super().__init__()
        self._route = route
        self._edge = edge
        self._ip = ""
        self._is_in = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        peer = transport.get_extra_info("peername")
        self._ip = str(peer[0]) if peer else ""
        self._is_in = self._edge.let_in(self, self._ip)
        if not self._is_in:
            reset(self.transport)
            return
        task = asyncio.get_running_loop().create_task(self._dial())
        self._edge.dialing.add(task)
        task.add_done_callback(self._edge.dialing.discard)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        if self._is_in:
            self._is_in = False
            self._edge.has_left(self, self._ip)

    def idle_s(self, now: float) -> float:
        other = self.other
        return now - max(self.received_at, 0.0 if other is None else other.received_at)

    def close(self) -> None:
        """Close both connections immediately, because pending data was not read during the whole idle time."""
        for end in (self, self.other):
            if end is not None and end.transport is not None:
                end.transport.abort()

    async def _dial(self) -> None:
        transport = self.transport
        assert transport is not None
        try:
            node = await connect(self._route)
        except OSError as error:
            logger.info("port %d: %s:%d: %s", self._route.listen, self._route.host, self._route.port, error)
            reset(transport)
            return
        assert node.transport is not None
        if transport.is_closing():
            node.transport.abort()
            return
        self.other, node.other = node, self
        transport.resume_reading()
        node.transport.resume_reading()


async def connect(route: Route) -> Pipe:
    """Connect to the target of ``route``, and do not read from the connection yet. Raises OSError when all addresses of
    the target fail."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError("no address")
    try:
        async with asyncio.timeout(CONNECT_S):
            found = await loop.getaddrinfo(route.host, route.port, type=socket.SOCK_STREAM)
        random.shuffle(found)
    except TimeoutError:
        raise OSError("the name was not found in time") from None
    for family, _, _, _, address in found:
        try:
            async with asyncio.timeout(CONNECT_S):
                transport, pipe = await loop.create_connection(Pipe, str(address[0]), int(address[1]), family=family)
            transport.pause_reading()
            return pipe
        except TimeoutError:
            failure = OSError(f"{address[0]} does not answer")
        except OSError as error:
            failure = error
    raise failure


def reset(transport: asyncio.Transport) -> None:
    """Close with a reset instead of an orderly end."""
    connection = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # the other side has already closed the connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    transport.abort()


class Edge:
    """The open connections: admission and idle timeouts."""

    def __init__(self, limits: Limits) -> None:
        self.admission = Admission(limits)
        self.clients: set[Client] = set()
        self.dialing: set[asyncio.Task[None]] = set()
        self._logged_at = -TELL_S
        self._logged: Counter[str] = Counter()
        self._refused_last = ""

    def let_in(self, client: Client, ip: str) -> bool:
        if self.admission.enter(ip) is not None:
            self._refused_last = ip
            self.tell_refusals()
            return False
        self.clients.add(client)
        return True

    def has_left(self, client: Client, ip: str) -> None:
        self.clients.discard(client)
        self.admission.leave(ip)

    def tell_refusals(self) -> None:
        """Log the first refusal at once, and later refusals together."""
        now = asyncio.get_running_loop().time()
        if now - self._logged_at < TELL_S:
            return
        admission = self.admission
        for key, count in (admission.refused - self._logged).items():
            self._logged_at = now
            logger.warning(
                "%d connections refused by %s, the last one from %s; %d are open, and %d were refused since the start",
                count,
                key,
                self._refused_last,
                admission.connections,
                admission.refused.total(),
            )
        self._logged = admission.refused.copy()

    def end_idle(self) -> int:
        now, limit_s = asyncio.get_running_loop().time(), self.admission.limits.connections_max_idle_ms / 1_000
        idle = [client for client in self.clients if client.idle_s(now) >= limit_s]
        for client in idle:
            client.close()
        if idle:
            logger.info(
                "%d connections were idle for %g s (connections.max.idle.ms), and are closed", len(idle), limit_s
            )
        return len(idle)

    async def keep_house(self) -> None:
        """Run the periodic tasks until cancelled."""
        every_s = min(TELL_S, self.admission.limits.connections_max_idle_ms / 4_000)
        while True:
            await asyncio.sleep(every_s)
            self.end_idle()
            self.tell_refusals()


def allow_descriptors(limits: Limits, ports: int) -> Limits:
    """Raise the process's descriptor limit as far as ``limits`` may need. If the limit cannot be raised, return lower
    limits, because a process without descriptors can neither accept nor refuse a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fixed = DESCRIPTORS_ELSE + ports
    wanted = fixed + DESCRIPTORS_EACH * limits.max_connections
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    possible = max(1, (soft - fixed) // DESCRIPTORS_EACH)
    logger.warning(
        "max.connections=%d needs %d descriptors, but the limit is %d (ulimit -n); max.connections is reduced to %d",
        limits.max_connections,
        wanted,
        soft,
        possible,
    )
    return dataclasses.replace(limits, max_connections=possible)


async def serve(routes: list[Route], limits: Limits) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    edge = Edge(allow_descriptors(limits, len(routes)))
    servers = [
        await loop.create_server(functools.partial(Client, route, edge), "0.0.0.0", route.listen, backlog=128)
        for route in routes
    ]
    house = loop.create_task(edge.keep_house())
    logger.info("the edge serves %d ports: %s", len(servers), edge.admission.limits)
    await stop.wait()
    house.cancel()
    for server in servers:
        server.close()


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        routes, limits = parse_routes(arguments), parse_limits(os.environ)
    except ValueError as error:
        print(f"edge: {error}", file=sys.stderr)
        return 2
    asyncio.run(serve(routes, limits))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
