"""The client of a Kafka connection: who the client is, and its produce and fetch streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from headrace_core.security.caller import Caller
from headrace_core.security.principal import ANONYMOUS, Principal
from headrace_core.security.protocols import SecurityProtocol
from headrace_core.security.sasl.slow_steps import SlowSteps

from .budget import Answers
from .sasl import Authentication

#: Longer client ids are cut in the metadata of gRPC calls, because gRPC limits a call's metadata to 8 KiB.
CLIENT_ID_CHARS_MAX = 255

PRINCIPAL_KEY, HOST_KEY, CLIENT_ID_KEY = "headrace-principal", "headrace-client-host", "headrace-client-id"


class Client:
    """The client at the other end of one connection.

    ``listener``: name of the Kafka listener.
    ``principal``: the client's principal; ANONYMOUS until it has authenticated. ``token_id``: the delegation token with
    which the client authenticated. ``client_id``: the client id in the latest request.
    """

    __slots__ = (
        "_caller",
        "_closing",
        "_metadata",
        "_metadata_of",
        "answers",
        "authentication",
        "client_id",
        "fetch",
        "hang_up",
        "hold",
        "host",
        "joined_in",
        "listener",
        "mute",
        "on_authenticated",
        "principal",
        "produce",
        "protocol",
        "sends_silently",
        "slow_steps",
        "token_id",
    )

    def __init__(
        self,
        *,
        host: str,
        listener: str,
        principal: Principal = ANONYMOUS,
        protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT,
        answers: Answers | None = None,
    ) -> None:
        """``protocol``: the listener's security protocol. ``answers`` counts the unread answers of all connections."""
        self.host = host
        self.listener = listener
        self.principal = principal
        self.token_id: str | None = None
        self.joined_in = -1  #: A mark of ``Connections.join``.
        self.protocol = protocol
        #: The SASL state of the connection; None on listeners without SASL.
        self.authentication: Authentication | None = None
        #: Runs the slow steps of the client's SASL exchange; None on listeners without SASL.
        self.slow_steps: SlowSteps | None = None
        #: Called once the client has authenticated; the connection sets this function.
        self.on_authenticated: Callable[[], None] = _nothing
        self.client_id = ""
        self.answers = answers or Answers()
        #: Closes the client's connection; the connection sets this function.
        self.hang_up: Callable[[], None] = _nothing
        #: Keeps the connection from starting further requests for a number of milliseconds; the connection sets this
        #: function.
        self.mute: Callable[[int], None] = _ignore
        #: Keeps the connection from starting further requests (True) until the next call (False); the connection sets
        #: this function.
        self.hold: Callable[[bool], None] = _let
        self.sends_silently = False  #: Whether the client has sent a Produce request with acks=0.
        #: The client's produce streams (produce_path.py); None before its first Produce request.
        self.produce: Any = None
        self.fetch: Any = None  #: The client's fetch streams (fetch_path.py); None before its first Fetch request.
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._metadata_of: Caller | None = None
        self._caller: Caller | None = None
        self._closing: list[Callable[[], None]] = []

    @property
    def caller(self) -> Caller:
        """The caller object for authorizers. The property returns the same object until the client's principal, host or
        client id changes."""
        caller = self._caller
        if (
            caller is None
            or caller.client_id != self.client_id
            or caller.principal is not self.principal
            or caller.host != self.host
        ):
            caller = self._caller = Caller(
                self.principal, self.host, self.client_id, self.listener, token_id=self.token_id
            )
        return caller

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The gRPC metadata of each call for this client: principal, host and client id. Nodes accept this metadata
        only from a broker."""
        caller = self.caller
        if self._metadata_of is not caller:
            self._metadata_of = caller
            self._metadata = (
                (PRINCIPAL_KEY, quote(str(self.principal), safe=":")),
                (HOST_KEY, self.host),
                (CLIENT_ID_KEY, quote(self.client_id[:CLIENT_ID_CHARS_MAX], safe="")),
            )
        return self._metadata

    def authenticated(self, principal: Principal, token_id: str | None = None) -> None:
        """Set the client's identity."""
        self.principal, self.token_id = principal, token_id
        self._caller = None
        self.on_authenticated()

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the connection has ended."""
        self._closing.append(callback)

    def closed(self) -> None:
        """Run the callbacks of a connection that has ended."""
        self.hang_up = self.on_authenticated = _nothing
        self.mute = _ignore
        self.hold = _let
        closing, self._closing = self._closing, []
        for callback in closing:
            callback()


def _ignore(_: int) -> None:
    """Do nothing, because the connection has already ended."""


def _let(_: bool) -> None:
    """Do nothing, because the connection has already ended."""


def _nothing() -> None:
    """Do nothing, because the connection has already ended."""
