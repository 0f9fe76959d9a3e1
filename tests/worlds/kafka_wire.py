"""A client of Kafka's wire protocol that sends single requests, for a broker of Kafka or for a gateway."""

from __future__ import annotations

import socket
import ssl
from types import TracebackType
from typing import Any

from headrace_gateway.wire.apis import VERSIONS, Api
from headrace_gateway.wire.schema import Message
from tests.worlds.kafka_frames import read_answer, request_frame

TIMEOUT_S = 30.0


class ClosedError(Exception):
    """The server closed the connection instead of answering."""


class KafkaWire:
    """A connection to ``bootstrap`` (host:port). With ``user``, it authenticates by SASL PLAIN. A context manager."""

    def __init__(
        self,
        bootstrap: str,
        *,
        user: str | None = None,
        password: str = "",
        tls: ssl.SSLContext | None = None,
        client_id: str = "wire",
    ) -> None:
        host, _, port = bootstrap.rpartition(":")
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
