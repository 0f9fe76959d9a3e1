"""Kafka's protocol in tests: frames, a transport in memory, and a client that sends single requests to one broker."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from headrace import LocalCluster
from headrace_broker.kafka.door import KafkaDoor
from headrace_kafka.wire.apis import VERSIONS, Api, is_flexible
from headrace_kafka.wire.frames import finish
from headrace_kafka.wire.primitives import Cursor, pack_int16, pack_int32, put_string
from headrace_kafka.wire.schema import Message, request_body, response_body
from headrace_tools.local import nodes


def request_frame(
    api: Api,
    version: int,
    correlation_id: int = 7,
    *,
    client_id: str = "asking",
    body: bytes | None = None,
    **fields: Any,
) -> bytearray:
    """A request with its length. ``body``: the bytes after the header, in place of ``fields``."""
    out = bytearray(4)
    out += pack_int16(api) + pack_int16(version) + pack_int32(correlation_id)
    put_string(out, client_id)
    if api in VERSIONS and is_flexible(api, version):
        out.append(0)
    if body is None:
        request_body(api, version).write(fields, out)
    else:
        out += body
    return finish(out)


def read_answer(api: Api, version: int, frame: bytes) -> tuple[int, Message]:
    """Decode an answer without its length: return the correlation id and the message."""
    cursor = Cursor(frame)
    correlation_id = cursor.int32()
    if is_flexible(api, version) and api is not Api.API_VERSIONS:
        cursor.skip_tagged()
    return correlation_id, response_body(api, version).read(frame, cursor.position)


class MemoryTransport(asyncio.Transport):
    """A transport that keeps the written data until ``client_reads`` takes them. ``is_reading`` and ``state`` show the
    effects of the protocol's calls."""

    def __init__(self, host: str = "10.0.0.1") -> None:
        super().__init__({"peername": (host, 4711)})
        self.written = bytearray()
        self.state = "open"
        self.is_reading_now = True
        self.protocol: asyncio.Protocol | None = None
        self._high = 64 * 1024
        self._is_paused = False

    def connect(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        protocol.connection_made(self)

    def client_reads(self) -> bytes:
        """Take all written data."""
        data, self.written = bytes(self.written), bytearray()
        if self._is_paused:
            self._is_paused = False
            assert self.protocol is not None
            self.protocol.resume_writing()
        return data

    def lose(self) -> None:
        """Notify the protocol that the connection is lost, after the transport was closed or broken."""
        assert self.protocol is not None
        self.protocol.connection_lost(None)

    # -- asyncio.Transport

    def write(self, data: Any) -> None:
        assert self.state == "open"
        self.written += data
        if len(self.written) > self._high and not self._is_paused:
            self._is_paused = True
            assert self.protocol is not None
            self.protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self._high = high

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.state != "open"

    def close(self) -> None:
        self.state = "closed"

    def abort(self) -> None:
        self.state = "aborted"

    def pause_reading(self) -> None:
        assert self.is_reading_now
        self.is_reading_now = False

    def resume_reading(self) -> None:
        assert not self.is_reading_now
        self.is_reading_now = True


TIMEOUT_S = 30.0


class ClosedError(Exception):
    """The server closed the connection instead of answering."""


class KafkaWire:
    """A connection to the first address of ``bootstrap``. With ``user``, it authenticates by SASL PLAIN. A context
    manager."""

    def __init__(
        self,
        bootstrap: str,
        *,
        user: str | None = None,
        password: str = "",
        tls: ssl.SSLContext | None = None,
        client_id: str = "wire",
    ) -> None:
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self._client_id = client_id
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._number = 0
        if user is not None:
            self.ask(Api.SASL_HANDSHAKE, mechanism="PLAIN")
            answer = self.ask(Api.SASL_AUTHENTICATE, auth_bytes=f"\0{user}\0{password}".encode())
            assert answer.error_code == 0, answer.error_message

    def __enter__(self) -> KafkaWire:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def ask(self, api: Api, version: int | None = None, /, **fields: Any) -> Message:
        """Send a request (default: of the newest version) and read its answer. Raises ClosedError."""
        version = VERSIONS[api].high if version is None else version
        self._number += 1
        frame = request_frame(api, version, self._number, client_id=self._client_id, **fields)
        try:
            self._socket.sendall(frame)
            size = int.from_bytes(self._read(4), "big")
            number, answer = read_answer(api, version, self._read(size))
        except ConnectionError as error:
            raise ClosedError(str(error)) from None
        assert number == self._number
        return answer

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return bytes(data)


def topic_name(request: pytest.FixtureRequest) -> str:
    """Make a topic name from the name of the running test."""
    return "".join(each if each.isalnum() else "-" for each in request.node.name)[:200]


@contextmanager
def secure_broker(keys: Mapping[str, str], *, listeners: str = "", has_tokens: bool = True) -> Iterator[LocalCluster]:
    """A secure in-process cluster with one node of each role, and the super user root. ``keys``: further keys of the
    broker. ``listeners``: further listeners of the broker, such as ",kafkacert://127.0.0.1:0". ``has_tokens``: whether
    the nodes know delegation tokens."""
    properties = nodes.properties

    def with_keys(state: Any, node: Any, directory: Path) -> dict[str, str]:
        values = properties(state, node, directory)
        if not has_tokens:
            values.pop("delegation.token.secret.key", None)
        if node.role == "broker":
            values |= {"listeners": values["listeners"] + listeners, **keys}
        return values

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "properties", with_keys)
        few: dict[str, Any] = {"brokers": 1, "controllers": 1, "coordinators": 1, "mode": "inprocess"}
        users = {"super.users": "User:admin;User:root"}
        with LocalCluster(**few, kafka=True, secure=True, config=users) as cluster:
            yield cluster


def address_of(cluster: LocalCluster, listener: str) -> str:
    """The address of a listener of the broker."""
    (path,) = cluster.directory.glob("broker-*/node.json")
    return str(json.loads(path.read_text())["listeners"][listener])


def door_of(cluster: LocalCluster) -> KafkaDoor:
    """The door for Kafka's clients of the only broker of an in-process cluster."""
    address = cluster.kafka_bootstrap_servers
    (found,) = [
        each
        for each in gc.get_objects()
        if isinstance(each, KafkaDoor) and any(listener.address == address for listener, _ in each._bound)
    ]
    return found
