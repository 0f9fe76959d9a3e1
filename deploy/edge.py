"""The edge: how clients outside reach each node inside. A TCP pass-through; it looks at no byte.

    edge.py 9095=broker:9096 9101-9109=headrace-broker-{slot}:9096 9201-9209=headrace-coordinator-{slot}:9096

A port of a range leads to the node whose number is its place in the range (9103: slot 3), which advertises that very
port at its external listener. A single port leads to any address of its name: for the first question to the cluster.
Names are looked up for each connection, so a node may come back with another address. A node that cannot be reached
within two seconds: the client's connection is reset, as if nobody listened.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import signal
import socket
import sys
from dataclasses import dataclass

logger = logging.getLogger("headrace.edge")

CONNECT_S = 2.0
#: Of what one side has sent and the other has not read; above, the first is not read any more.
BUFFER_BYTES = 256 * 1024
#: A machine that vanished without a word is noticed after two minutes, and its connections are closed.
SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_ROUTE = re.compile(r"(?P<first>\d{1,5})(-(?P<last>\d{1,5}))?=(?P<host>[^:=]+):(?P<port>\d{1,5})\Z")


@dataclass(frozen=True, slots=True)
class Route:
    """One published port, and where it leads."""

    listen: int
    host: str
    port: int


def parse_routes(texts: list[str]) -> list[Route]:
    """ValueError: what is wrong."""
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
            raise ValueError(f"{text}: a range of ports and {{slot}} in the host go together")
        routes += [
            Route(listen, host.replace("{slot}", str(number)), port)
            for number, listen in enumerate(range(first, last + 1), start=1)
        ]
    if not routes or len({route.listen for route in routes}) != len(routes):
        raise ValueError("name at least one port, and none twice")
    return routes


class Pipe(asyncio.Protocol):
    """One of the two connections of a pass-through. What it receives goes to ``other``, which tells it to wait."""

    def __init__(self) -> None:
        self.other: Pipe | None = None
        self.transport: asyncio.Transport | None = None
        self._has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(BUFFER_BYTES)
        for level, option, value in SOCKET_OPTIONS:
            transport.get_extra_info("socket").setsockopt(level, option, value)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        """True: the other direction may go on. When both have ended nothing would ever wake the two connections again,
        so they are closed here."""
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
    """The side of whoever connected; nothing is read from it before the node's side is there."""

    def __init__(self, route: Route, dialing: set[asyncio.Task[None]]) -> None:
        super().__init__()
        self._route = route
        self._dialing = dialing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._dial())
        self._dialing.add(task)
        task.add_done_callback(self._dialing.discard)

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
    """A connection to where ``route`` leads, from which nothing is read yet. OSError: to none of its addresses."""
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
    """Close so that the other side sees a reset, not an orderly end."""
    connection = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # the other side was quicker, and it is closed
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    transport.abort()


async def serve(routes: list[Route]) -> None:
    """Until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    dialing: set[asyncio.Task[None]] = set()
    servers = [
        await loop.create_server(lambda route=route: Client(route, dialing), "0.0.0.0", route.listen, backlog=128)
        for route in routes
    ]
    logger.info("the edge serves %d ports", len(servers))
    await stop.wait()
    for server in servers:
        server.close()


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        routes = parse_routes(arguments)
    except ValueError as error:
        print(f"edge: {error}", file=sys.stderr)
        return 2
    asyncio.run(serve(routes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
