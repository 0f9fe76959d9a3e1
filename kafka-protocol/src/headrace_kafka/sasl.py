"""SASL on a Kafka connection: which requests a client may send, and the client's principal. No I/O.

The states are those of Kafka's SaslServerAuthenticator::

    BEGIN --SaslHandshake v1--> EXCHANGE --SaslAuthenticate*--> DONE
    BEGIN --SaslHandshake v0--> TOKENS   --frames without header*--> DONE
    DONE  --SaslHandshake v1--> EXCHANGE (KIP-368), with the same mechanism, for the same principal
    any   --error--> FAILED: the connection answers after a delay, and closes

In BEGIN a client may send only ApiVersions and SaslHandshake, in EXCHANGE only SaslAuthenticate. When a session has
ended, only SaslHandshake is accepted.
"""

from __future__ import annotations

import enum
import time
from typing import Protocol

from headrace_core.errors import (
    IllegalSaslStateError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from headrace_core.security.principal import ANONYMOUS, Principal
from headrace_core.security.sasl.exchange import Identity, ServerExchange, Step

from .wire.apis import Api

#: Minimum time in milliseconds between the beginnings of two authentications of a connection, as in Kafka.
REAUTHENTICATION_MS_MIN = 1_000
STEPS_MAX = 16  #: Maximum number of messages of a client in one exchange.


class SaslOffer(Protocol):
    """The part of headrace_core's Mechanisms that a connection needs: the SASL mechanisms of its listener."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the mechanisms."""

    def start(self, name: str, /) -> ServerExchange:
        """Begin an exchange by one of the mechanisms."""

    def is_revoked(self, identity: Identity, /) -> bool:
        """Whether the delegation token, by which a client has authenticated, has been removed or has expired since."""


def now_ms() -> float:
    """Present time, in milliseconds of the clock that ends sessions."""
    return time.monotonic() * 1_000


class State(enum.Enum):
    BEGIN = "begin"
    EXCHANGE = "exchange"
    TOKENS = "tokens"
    DONE = "done"
    FAILED = "failed"


class Authentication:
    """The SASL state of one connection. Times are milliseconds since 1970 where they come from credentials, and
    milliseconds of one steady clock elsewhere."""

    __slots__ = ("_began_ms", "_ends_ms", "_exchange", "_max_reauth_ms", "_offer", "_steps", "identity", "mechanism",
                 "state")  # fmt: skip

    def __init__(self, offer: SaslOffer, *, max_reauth_ms: int = 0) -> None:
        """``max_reauth_ms``: the longest session (connections.max.reauth.ms); 0: no limit."""
        self._offer = offer
        self._max_reauth_ms = max_reauth_ms
        self._exchange: ServerExchange | None = None
        self._steps = 0
        self._began_ms: float | None = None
        self._ends_ms: float | None = None
        self.state = State.BEGIN
        self.mechanism = ""
        self.identity: Identity | None = None  #: The client's principal; None until it has authenticated once.

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms that the listener offers."""
        return self._offer.names

    @property
    def principal(self) -> Principal:
        return ANONYMOUS if self.identity is None else self.identity.principal

    @property
    def is_revoked(self) -> bool:
        """Whether the client's delegation token has been removed or has expired: the connection must close. (Kafka's
        brokers leave a connection open when its token is removed, until the token expires.)"""
        return self.identity is not None and self._offer.is_revoked(self.identity)

    def permits(self, api: Api, now_ms: float) -> bool:
        """Whether the client may send a request of this type now; if not, the connection closes."""
        if self.is_revoked:
            return False
        if self.state is State.DONE:
            return self._ends_ms is None or now_ms < self._ends_ms or api is Api.SASL_HANDSHAKE
        if self.state is State.BEGIN:
            return api in (Api.API_VERSIONS, Api.SASL_HANDSHAKE)
        return self.state is State.EXCHANGE and api is Api.SASL_AUTHENTICATE

    def handshake(self, mechanism: str, version: int, now_ms: float) -> None:
        """Begin an exchange. Raises IllegalSaslStateError for a repeated authentication by version 0, or less than a
        second after the previous authentication began; the connection continues. Raises UnsupportedSaslMechanismError,
        or SaslAuthenticationFailedError for another mechanism than before; the connection has failed then."""
        is_again = self.state is State.DONE
        if is_again and (
            version < 1 or (self._began_ms is not None and now_ms - self._began_ms < REAUTHENTICATION_MS_MIN)
        ):
            raise IllegalSaslStateError(
                "this connection is already authenticated: to authenticate again, send SaslHandshake version 1, at "
                "most once a second"
            )
        if mechanism not in self._offer.names:
            self.state = State.FAILED
            raise UnsupportedSaslMechanismError(
                f"the listener does not offer {mechanism[:60]!r}; it offers {', '.join(self._offer.names)}"
            )
        if is_again and mechanism != self.mechanism:
            self.state = State.FAILED
            raise SaslAuthenticationFailedError(
                f"a connection that authenticated by {self.mechanism} cannot authenticate again by {mechanism}"
            )
        self.mechanism = mechanism
        self._exchange = self._offer.start(mechanism)
        self._began_ms = now_ms
        self._steps = 0
        self.state = State.EXCHANGE if version else State.TOKENS

    @property
    def exchange(self) -> ServerExchange:
        """The exchange in progress; the owner calls its ``step``, and then ``stepped`` or ``failed``."""
        assert self._exchange is not None
        return self._exchange

    def stepped(self, step: Step, now_ms: float, wall_ms: float) -> int:
        """Take the outcome of a step; returns the lifetime of the session in milliseconds, or 0 without a limit or
        while the exchange continues. Raises SaslAuthenticationFailedError; the connection has failed then."""
        self._steps += 1
        if step.identity is None:
            if self._steps >= STEPS_MAX:
                self.failed()
                raise SaslAuthenticationFailedError(f"the SASL exchange has more than {STEPS_MAX} messages")
            return 0
        before, identity = self.identity, step.identity
        if before is not None and before.principal != identity.principal:
            self.failed()
            raise SaslAuthenticationFailedError(
                f"a connection that authenticated as {before.principal} cannot authenticate again as "
                f"{identity.principal}; open another connection"
            )
        lifetime_ms: float | None = self._max_reauth_ms or None
        if identity.expires_at_ms is not None:
            left_ms = identity.expires_at_ms - wall_ms
            if left_ms <= 0:
                self.failed()
                raise SaslAuthenticationFailedError("the credential has expired; get another one")
            lifetime_ms = left_ms if lifetime_ms is None else min(lifetime_ms, left_ms)
        self.identity = identity
        self._ends_ms = None if lifetime_ms is None else now_ms + lifetime_ms
        self._exchange = None
        self.state = State.DONE
        return 0 if lifetime_ms is None else max(int(lifetime_ms), 1)

    def failed(self) -> None:
        """Called when the exchange has failed: the connection must close."""
        self.state, self._exchange = State.FAILED, None
