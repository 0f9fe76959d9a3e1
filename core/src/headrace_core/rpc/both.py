"""A port that accepts connections with and without TLS, while a cluster changes from plaintext to TLS or back.

A gRPC port accepts either TLS or plaintext connections, not both. ``BothProtocols`` listens on the node's port and
looks at the first byte of a connection: 22 begins a TLS handshake (RFC 8446, 5.1), and everything else is HTTP/2.
``BothProtocols`` forwards the bytes unchanged to one of two Unix sockets of the same gRPC server.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import grpc.aio

_HANDSHAKE = 22  #: The type of the first record of TLS.
FIRST_BYTE_S = 10.0  #: Seconds in which a connection must send its first byte.


class BothProtocols:
    """Call ``add_ports`` and then ``start`` before the gRPC server starts, and ``stop`` after the server has
    stopped."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="headrace-"))  # mode 0700
        self._server: asyncio.Server | None = None
        self._open: set[_Side] = set()

    def add_ports(self, server: grpc.aio.Server, credentials: grpc.ServerCredentials) -> None:
        server.add_insecure_port(f"unix:{self._path(encrypts=False)}")
        server.add_secure_port(f"unix:{self._path(encrypts=True)}", credentials)

    async def start(self, host: str, port: int) -> int:
        """Listen on ``host``:``port``; returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        where = host.strip("[]")
        self._server = await loop.create_server(lambda: _Front(self), where if where != "::" else None, port)
        return int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Close the port and all connections. Idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for side in list(self._open):
            side.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _path(self, *, encrypts: bool) -> str:
        return str(self._directory / ("tls" if encrypts else "plain"))

    async def connect(self, front: _Front, *, encrypts: bool) -> None:
        """Connect a client, whose connection is ``front``, to a Unix socket of the gRPC server."""
        try:
            await asyncio.get_running_loop().create_unix_connection(
                lambda: _Back(self, front), self._path(encrypts=encrypts)
            )
        except OSError:
            front.close()

    def began(self, side: _Side) -> None:
        self._open.add(side)

    def ended(self, side: _Side) -> None:
        self._open.discard(side)


class _Side(asyncio.Protocol):
    """One end of a forwarded connection. While the send buffer of one end is full, the other end stops reading."""

    def __init__(self, owner: BothProtocols) -> None:
        self._owner = owner
        self.transport: Any = None
        self.other: _Side | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._owner.began(self)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def eof_received(self) -> bool:
        return False  # close the transport; connection_lost closes the other end

    def connection_lost(self, error: Exception | None) -> None:
        self._owner.ended(self)
        if self.other is not None:
            self.other.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class _Front(_Side):
    """The client's end of a forwarded connection."""

    def __init__(self, owner: BothProtocols) -> None:
        super().__init__(owner)
        self._early = b""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTE_S, self.close)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            super().data_received(data)
            return
        self._early += data
        if self._task is None:
            if self._timer is not None:
                self._timer.cancel()
            self.transport.pause_reading()
            work = self._owner.connect(self, encrypts=data[0] == _HANDSHAKE)
            self._task = asyncio.get_running_loop().create_task(work, name="connection of either protocol")

    def joined(self, back: _Back) -> None:
        """Forward the bytes that the client has sent so far, because the connection to the server is open now."""
        self.other = back
        back.transport.write(self._early)
        self._early = b""
        self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(error)


class _Back(_Side):
    """The server's end of a forwarded connection."""

    def __init__(self, owner: BothProtocols, front: _Front) -> None:
        super().__init__(owner)
        self.other: _Side | None = front
        self._front = front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._front.transport.is_closing():
            self.close()
        else:
            self._front.joined(self)
