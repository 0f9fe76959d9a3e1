"""The standard gRPC health check, and a GET for nodes that serve HTTP, sent over a plain socket.

``headrace up`` must be quick, fork-safe and light, and the health check is the only call that it needs. Importing grpc
costs more time than a health check, and gRPC's threads break a later fork (Spark's workers). Instead of grpc, this
module implements only the frames of HTTP/2 (RFC 9113) and gRPC that the health check needs:

    client: preface, SETTINGS, HEADERS(stream 1, POST /grpc.health.v1.Health/Check), DATA(00 00000000, END_STREAM)
    server: SETTINGS, ..., HEADERS, DATA(00 00000002 08 01), HEADERS(grpc-status, END_STREAM)

The message ``08 01`` is HealthCheckResponse{status: SERVING}; any other message, or no answer, means "not yet".
"""

from __future__ import annotations

import socket
import ssl
import struct
import time

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SERVING = b"\x08\x01"
_SERVES_HTTP = (b"HTTP/1.1 200", b"HTTP/1.1 401")  #: A console that asks for a sign-in answers 401.
_FRAME_BYTES_MAX = 1 << 20


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _header(name: bytes, value: bytes) -> bytes:
    """Encode a header in the simplest form of HPACK: literal, not indexed, not Huffman-coded (RFC 7541, 6.2.2); name
    and value must be shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _request(authority: str) -> bytes:
    headers = b"".join(
        _header(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/grpc.health.v1.Health/Check"),
            (b":authority", authority.encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        )
    )
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0)
        + _frame(_HEADERS, _END_HEADERS, 1, headers)
        + _frame(_DATA, _END_STREAM, 1, b"\x00" * 5)  # an empty message, which asks for the health of the whole server
    )


def is_serving(
    host: str, port: int, *, timeout_s: float, tls: ssl.SSLContext | None = None, name: str | None = None
) -> bool:
    """Whether the server at ``host:port`` answers SERVING within ``timeout_s``. ``tls``: the TLS context of the
    connection; None: the server does not encrypt. ``name``: the name that the server's certificate must have, if it
    differs from ``host``."""
    return _health(host, port, timeout_s, tls, name) == _SERVING


def answers(
    host: str, port: int, *, timeout_s: float = 1.0, tls: ssl.SSLContext | None = None, name: str | None = None
) -> bool:
    """Whether the server answers with any status within ``timeout_s``, as a controller does that waits for other
    controllers."""
    return _health(host, port, timeout_s, tls, name) is not None


def answers_http(host: str, port: int, *, timeout_s: float, tls: ssl.SSLContext | None = None) -> bool:
    """Whether the HTTP server at ``host:port`` answers ``GET /`` with the status 200 or 401 within ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    try:
        with _connected(host, port, timeout_s, tls) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            return _read(connection, len(_SERVES_HTTP[0]), deadline) in _SERVES_HTTP
    except (OSError, EOFError):
        return False


def _connected(
    host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None, name: str | None = None
) -> socket.socket:
    connection = socket.create_connection((host, port), timeout=timeout_s)
    if tls is None:
        return connection
    try:
        return tls.wrap_socket(connection, server_hostname=(name or host).strip("[]"))
    except BaseException:
        connection.close()
        raise


def _health(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None, name: str | None) -> bytes | None:
    deadline = time.monotonic() + timeout_s
    try:
        with _connected(host, port, timeout_s, tls, name) as connection:
            connection.sendall(_request(f"{host}:{port}"))
            return _answer(connection, deadline)
    except (OSError, EOFError, ValueError):
        return None


def _answer(connection: socket.socket, deadline: float) -> bytes | None:
    """The first gRPC message on stream 1; None if the stream ends without a message."""
    body = b""
    while True:
        head = _read(connection, 9, deadline)
        length = int.from_bytes(head[:3], "big")
        kind, flags, stream = struct.unpack(">BBI", head[3:])
        if length > _FRAME_BYTES_MAX:
            raise ValueError(f"the server sent a frame of {length} bytes, so it is not a gRPC server")
        payload = _read(connection, length, deadline)
        if kind == _SETTINGS and not flags & _ACK:
            connection.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            connection.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _DATA and stream == 1:
            body += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
            if len(body) >= 5 and len(body) >= 5 + int.from_bytes(body[1:5], "big"):
                return body[5 : 5 + int.from_bytes(body[1:5], "big")]
        if kind in (_RST_STREAM, _GOAWAY) or (stream == 1 and flags & _END_STREAM and kind in (_DATA, _HEADERS)):
            return None


def _read(connection: socket.socket, count: int, deadline: float) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        connection.settimeout(remaining)
        part = connection.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
