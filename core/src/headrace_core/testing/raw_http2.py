"""An HTTP/2 client that may break the protocol, for tests of hostile clients: it sends frames as bytes on a blocking
socket.

A gRPC library refuses to send what a hostile client may send: endless resets, messages that never finish, invalid
frames. The client of this module sends any frames, and reads frames without checks (RFC 9113, RFC 7541 without
compression).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
SETTING_MAX_CONCURRENT_STREAMS, SETTING_INITIAL_WINDOW_SIZE = 3, 4
CANCEL = 8


class Frame(NamedTuple):
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Encode one frame with its header."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def headers_block(headers: Iterable[tuple[str, str]]) -> bytes:
    """Encode headers with HPACK, each as a literal that is not indexed (RFC 7541, 6.2.2)."""
    block = bytearray()
    for name, value in headers:
        block.append(0)
        for text in (name.encode(), value.encode()):
            block += _integer(len(text), 7) + text
    return bytes(block)


def _integer(value: int, prefix_bits: int) -> bytes:
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([value])
    out = bytearray([most])
    value -= most
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    out.append(value)
    return bytes(out)


def grpc_headers(method: str, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """Return the request headers for a gRPC call of ``method``, such as "/headrace.v1.Produce/Produce"."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *more,
    ]


class RawConnection:
    """One HTTP/2 connection. ``settings``: (key, value) pairs for the SETTINGS frame of the preface. ``timeout_s``
    limits every socket call."""

    def __init__(
        self, address: tuple[str, int], *, settings: Sequence[tuple[int, int]] = (), timeout_s: float = 5.0
    ) -> None:
        self._socket = socket.create_connection(address, timeout=timeout_s)
        self._received = b""
        self._next_stream_id = 1
        payload = b"".join(struct.pack(">HI", key, value) for key, value in settings)
        self.send(PREFACE + frame(SETTINGS, 0, 0, payload))

    def send(self, data: bytes) -> None:
        """Send bytes. Raises OSError when the server has closed the connection, or reads no bytes for ``timeout_s``."""
        self._socket.sendall(data)

    def open_call(self, method: str, *more: tuple[str, str], end: bool = False) -> int:
        """Send the headers of a call; returns the call's stream id. ``end``: end the call without a message."""
        stream_id, self._next_stream_id = self._next_stream_id, self._next_stream_id + 2
        flags = END_HEADERS | (END_STREAM if end else 0)
        self.send(frame(HEADERS, flags, stream_id, headers_block(grpc_headers(method, *more))))
        return stream_id

    def reset(self, stream_id: int, code: int = CANCEL) -> None:
        self.send(frame(RST_STREAM, 0, stream_id, struct.pack(">I", code)))

    def message_part(self, stream_id: int, part: bytes) -> None:
        """Send a part of a message as a DATA frame of at most 16 KiB."""
        self.send(frame(DATA, 0, stream_id, part))

    def read_frame(self) -> Frame | None:
        """Read the next frame; None when the server has closed the connection. Raises TimeoutError when the server
        sends no frame."""
        header = self._read(9)
        if header is None:
            return None
        payload = self._read(int.from_bytes(header[:3], "big"))
        if payload is None:
            return None
        return Frame(header[3], header[4], int.from_bytes(header[5:9], "big") & 0x7FFFFFFF, payload)

    def _read(self, size: int) -> bytes | None:
        while len(self._received) < size:
            try:
                more = self._socket.recv(65_536)
            except ConnectionError:
                return None
            if not more:
                return None
            self._received += more
        taken, self._received = self._received[:size], self._received[size:]
        return taken

    def close(self) -> None:
        self._socket.close()
