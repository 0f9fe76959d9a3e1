"""Credentials of the users in the metadata image, and made-up ones for unknown users.

A made-up credential has the salt's length and the iterations of the real ones. Its salt depends only on the name and on
a secret that all nodes have, so asking twice, or at two nodes, does not show that the user is unknown.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable

from ...metadata.records import ScramCredentialRecord
from ...metadata.security import SecurityImage
from .scram import ITERATIONS_DEFAULT, SALT_BYTES, SHA_256, SHA_512, ScramCredential, ScramMechanism, has_password
from .scram_exchange import Subject
from .tokens import TokenCredentials


class Users:
    """``security`` returns the present image; ``tokens`` None: there are no delegation tokens. ``now_ms``: milliseconds
    since 1970."""

    def __init__(
        self, security: Callable[[], SecurityImage], tokens: TokenCredentials | None, now_ms: Callable[[], float]
    ) -> None:
        self._security = security
        self._tokens = tokens
        self._now_ms = now_ms
        self._own_secret = secrets.token_bytes(32)

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """The user's credential; for an unknown user a made-up one (``is_real`` False)."""
        security = self._security()
        record = security.scram.get((user, mechanism.number))
        made_up = self._made_up(security, mechanism, user)  # always, so that the time is the same
        if record is None:
            return made_up
        return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)

    def has_password(self, user: str, password: str) -> bool:
        """Whether a user of SCRAM has this password (for PLAIN). Both mechanisms are always checked, so that the time
        does not show which of them the user has."""
        found = [has_password(each, self.credential(each, user), password) for each in (SHA_512, SHA_256)]
        return any(found)

    def subject(self, mechanism: ScramMechanism, name: str, is_token: bool) -> Subject:
        """The identity that authenticates under ``name``: a user, or the owner of a token."""
        if not is_token:
            return Subject(self.credential(mechanism, name), name)
        security = self._security()
        token = security.tokens.get(name)
        if token is None or self._tokens is None or token.expires_at_ms <= self._now_ms():
            return Subject(self._made_up(security, mechanism, name), name)
        owner = token.owner.partition(":")[2]
        return Subject(self._tokens.get(mechanism, name), owner, name, token.expires_at_ms)

    def is_slow(self, mechanism: ScramMechanism, name: str, is_token: bool) -> bool:
        return (
            is_token
            and self._tokens is not None
            and name in self._security().tokens
            and not self._tokens.has(mechanism, name)
        )

    def _made_up(self, security: SecurityImage, mechanism: ScramMechanism, user: str) -> ScramCredential:
        like = _first(security, mechanism)
        secret = self._own_secret if like is None else like.server_key
        length, iterations = (SALT_BYTES, ITERATIONS_DEFAULT) if like is None else (len(like.salt), like.iterations)
        salt = b""
        while len(salt) < length:
            salt += hmac.digest(secret, f"{mechanism.name}\0{len(salt)}\0{user}".encode(), "sha256")
        key = hmac.digest(self._own_secret, user.encode(), mechanism.hash_name)
        return ScramCredential(salt[:length], key, key, iterations, is_real=False)


def _first(security: SecurityImage, mechanism: ScramMechanism) -> ScramCredentialRecord | None:
    """The first credential of the mechanism, by name. It is found at once unless many users lack the mechanism."""
    for looked, ((_, number), record) in enumerate(security.scram.items()):
        if number == mechanism.number:
            return record
        if looked >= 100:
            break
    return None
