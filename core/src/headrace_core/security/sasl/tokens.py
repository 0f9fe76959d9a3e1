"""Delegation tokens as credentials (KIP-48): the token's id is the user, its HMAC in base64 is the SCRAM password.

The HMAC is computed from the token's id and the secret key of the nodes (delegation.token.secret.key), so neither the
log nor any node stores it.
"""

from __future__ import annotations

import base64
import hmac
from collections import OrderedDict

from .scram import ITERATIONS_DEFAULT, ScramCredential, ScramMechanism, credential_of, salted_password

CREDENTIALS_MAX = 10_000  #: Maximum number of cached credentials of tokens.


def token_hmac(secret_key: str, token_id: str) -> bytes:
    """HMAC-SHA512 of the token's id, as Kafka's."""
    return hmac.digest(secret_key.encode(), token_id.encode(), "sha512")


def token_password(mac: bytes) -> str:
    """The password with which a client authenticates by a token in SCRAM: the token's HMAC in base64."""
    return base64.b64encode(mac).decode()


class TokenCredentials:
    """SCRAM credentials of tokens. Computing a credential takes milliseconds, so the last credentials are cached."""

    def __init__(self, secret_key: str) -> None:
        self._secret_key = secret_key
        #: The secret from which the nodes derive made-up credentials for unknown users. All nodes have the same secret.
        self.secret = hmac.digest(secret_key.encode(), b"made-up credentials", "sha256")
        self._kept: OrderedDict[tuple[str, int], ScramCredential] = OrderedDict()

    def has(self, mechanism: ScramMechanism, token_id: str) -> bool:
        """Whether ``get`` returns at once."""
        return (token_id, mechanism.number) in self._kept

    def salt(self, token_id: str) -> bytes:
        """The salt of a token with this id. (An unknown token has a salt too, so the salt does not show whether the
        token exists.)"""
        return hmac.digest(self._secret_key.encode(), b"salt\0" + token_id.encode(), "sha256")

    def get(self, mechanism: ScramMechanism, token_id: str) -> ScramCredential:
        """The credential of a token with this id. (The caller checks whether the token exists.)"""
        key = (token_id, mechanism.number)
        found = self._kept.get(key)
        if found is None:
            salt = self.salt(token_id)
            password = token_password(token_hmac(self._secret_key, token_id))
            salted = salted_password(mechanism, password, salt, ITERATIONS_DEFAULT)
            found = self._kept[key] = credential_of(mechanism, salted, salt, ITERATIONS_DEFAULT)
            while len(self._kept) > CREDENTIALS_MAX:
                self._kept.popitem(last=False)
        return found
