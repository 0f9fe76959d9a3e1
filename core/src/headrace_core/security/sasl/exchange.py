"""The two sides of a SASL exchange. An exchange does no I/O: the code that uses the exchange sends and receives the
bytes.

A server:  ``step(bytes from the client) -> Step(bytes for the client, identity or None)``, until there is an identity.
A client:  ``first() -> bytes``, then ``step(bytes from the server) -> bytes or None``, until ``is_complete``.

Both sides raise SaslAuthenticationFailedError when the exchange fails; do not use a failed exchange again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from ...errors import SaslAuthenticationFailedError
from ..principal import USER, Principal

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
GSSAPI = "GSSAPI"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER, GSSAPI)

#: Part of the error of a client that logs in at a listener without SASL; `headrace doctor` recognizes the error by this
#: text.
NO_SASL = "does not use SASL"
USER_CHARS_MAX = 1_000  #: Maximum number of characters of a user's name.


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity that has authenticated. ``expires_at_ms``: when the credential expires (milliseconds since 1970);
    None: never. ``token_id``: the delegation token that served as credential."""

    user: str
    mechanism: str
    expires_at_ms: int | None = None
    token_id: str | None = None

    @property
    def principal(self) -> Principal:
        return Principal(USER, self.user)


@dataclass(frozen=True, slots=True)
class Step:
    """A server's answer. The exchange is complete when there is an identity."""

    data: bytes = field(default=b"", repr=False)
    identity: Identity | None = None


class ServerExchange(Protocol):
    """The server's side of one exchange."""

    def is_slow(self, data: bytes) -> bool:
        """Whether the step for ``data`` takes more than a millisecond, so that it must run in a thread."""

    def step(self, data: bytes) -> Step:
        """Handle the client's bytes. Raises SaslAuthenticationFailedError."""


class ClientExchange(Protocol):
    """The client's side of one exchange."""

    @property
    def mechanism(self) -> str: ...

    @property
    def is_complete(self) -> bool:
        """Whether the client has nothing more to send or to check. If the server is complete and the client is not, the
        client must treat the server as not authenticated."""

    def first(self) -> bytes:
        """Return the first bytes for the server."""

    def step(self, data: bytes) -> bytes | None:
        """Handle the server's bytes; None: there is nothing to send. Raises SaslAuthenticationFailedError."""


def failed(mechanism: str, why: str = "") -> SaslAuthenticationFailedError:
    """Return the error of a failed exchange. Without ``why``, the message says that the credentials are wrong, but not
    which part of them."""
    return SaslAuthenticationFailedError(
        f"{mechanism}: {why}"
        if why
        else f"{mechanism}: the credentials are wrong; check the user name and the password"
    )


def check_user(user: str, mechanism: str) -> str:
    """Return a legal user name. Raises SaslAuthenticationFailedError for a name that is empty, is too long, or has
    control characters."""
    if not user or len(user) > USER_CHARS_MAX or not user.isprintable():
        raise failed(mechanism, f"a user name has 1 to {USER_CHARS_MAX} printable characters")
    return user
