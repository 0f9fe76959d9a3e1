"""The client of a Kafka connection: who the client is, and its streams to brokers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from .budget import Answers

ANONYMOUS = "User:ANONYMOUS"
BOOTSTRAP = -1  #: Client.broker_id of a connection to the bootstrap port.
#: The gateway truncates longer client ids in the metadata of its gRPC calls, because gRPC limits a call's metadata to
#: 8 KiB.
CLIENT_ID_CHARS_MAX = 255

PRINCIPAL_KEY, HOST_KEY, CLIENT_ID_KEY = "headrace-principal", "headrace-client-host", "headrace-client-id"


class Client:
    """The client at the other end of one connection.

    ``listener``: name of the Kafka listener; ``broker_id``: the broker whose port the client uses, or BOOTSTRAP.
    ``client_id``: the client id in the latest request.
    """

    __slots__ = (
        "_closing",
        "_metadata",
        "_metadata_of",
        "answers",
        "broker_id",
        "client_id",
        "fetch",
        "hang_up",
        "host",
        "listener",
        "principal",
        "produce",
        "sends_silently",
    )

    def __init__(
        self, *, host: str, listener: str, broker_id: int, principal: str = ANONYMOUS, answers: Answers | None = None
    ) -> None:
        """``answers`` counts the unread answers of all connections."""
        self.host = host
        self.listener = listener
        self.broker_id = broker_id
        self.principal = principal
        self.client_id = ""
        self.answers = answers or Answers()
        #: The function that closes the client's connection; the connection sets ``hang_up``.
        self.hang_up: Callable[[], None] = _nothing
        self.sends_silently = False  #: Whether the client has sent a Produce request with acks=0.
        #: The client's produce streams (produce_path.py); None before its first Produce request.
        self.produce: Any = None
        self.fetch: Any = None  #: The client's fetch streams (fetch_path.py); None before its first Fetch request.
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._metadata_of: str | None = None
        self._closing: list[Callable[[], None]] = []

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata of each call for this client: principal, host and client id. Nodes accept this metadata
        only from a gateway."""
        if self._metadata_of != self.client_id:
            self._metadata_of = self.client_id
            self._metadata = (
                (PRINCIPAL_KEY, quote(self.principal, safe=":")),
                (HOST_KEY, self.host),
                (CLIENT_ID_KEY, quote(self.client_id[:CLIENT_ID_CHARS_MAX], safe="")),
            )
        return self._metadata

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata of a stream that connections share: the principal and the host."""
        return self.metadata[:2]

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the connection has ended."""
        self._closing.append(callback)

    def closed(self) -> None:
        """Run the callbacks of a connection that has ended."""
        self.hang_up = _nothing
        closing, self._closing = self._closing, []
        for callback in closing:
            callback()


def _nothing() -> None:
    """Do nothing, because the connection has already ended."""
