"""PLAIN (RFC 4616): one message ``[authzid] NUL user NUL password``. Use it only over TLS."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping

from .exchange import PLAIN, Identity, Step, check_user, failed

PASSWORD_CHARS_MAX = 10_000

#: Checks whether a user has the given password. The check must take the same time for an unknown user as for a wrong
#: password.
CheckPassword = Callable[[str, str], bool]


class PlainServer:
    """The server's side."""

    def __init__(self, check: CheckPassword, *, is_slow: bool) -> None:
        self._check = check
        self._is_slow = is_slow

    def is_slow(self, data: bytes) -> bool:
        return self._is_slow

    def step(self, data: bytes) -> Step:
        try:
            parts = data.decode().split("\0")
        except UnicodeDecodeError:
            raise failed(PLAIN, "the client's message is not UTF-8") from None
        if len(parts) != 3:
            raise failed(
                PLAIN, "the client's message must have three parts with NUL between them: authzid, user, password"
            )
        authzid, user, password = parts
        check_user(user, PLAIN)
        if not 0 < len(password) <= PASSWORD_CHARS_MAX:
            raise failed(PLAIN, f"a password has 1 to {PASSWORD_CHARS_MAX} characters")
        if authzid and authzid != user:
            raise failed(PLAIN, "the authorization id must be the user itself; leave it out")
        if not self._check(user, password):
            raise failed(PLAIN)
        return Step(b"", Identity(user, PLAIN))


class PlainClient:
    """The client's side."""

    mechanism = PLAIN

    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()
        self.is_complete = False

    def first(self) -> bytes:
        self.is_complete = True
        return self._message

    def step(self, data: bytes) -> bytes | None:
        if data:
            raise failed(PLAIN, "the server sent data, but in PLAIN only the client sends a message")
        return None


def static_users(passwords: Mapping[str, str]) -> CheckPassword:
    """Return a check against the given passwords by user. All passwords are hashed first, so that the time of a check
    reveals neither whether the user exists nor the length of a password."""
    known = {user: _digest(password) for user, password in passwords.items()}
    no_user = _digest("")

    def check(user: str, password: str) -> bool:
        expected = known.get(user, no_user)
        return hmac.compare_digest(_digest(password), expected) and user in known

    return check


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
