"""Credentials of the users in the metadata image, and made-up credentials for unknown users.

A server sends the salt and the iterations of a user's credential before the client proves anything. Therefore the
made-up credential of an unknown user must look like a real credential:

* The made-up credential has the *form* (length of the salt, iterations) of real credentials, drawn in proportion to the
  forms' frequency. When 3 of 4 users have 4,096 iterations, 3 of 4 unknown names have 4,096 iterations too, so a form
  does not show whether a name exists.
* Salt and form depend only on the name and on a secret that all nodes have. A client that asks twice, or asks two
  nodes, therefore gets the same answer, as for a known user. The secret is delegation.token.secret.key; without that
  key, the secret is a key of the first user, and unknown names get other salts when that user's password changes.
"""

from __future__ import annotations

import hmac
import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...metadata.records import ScramCredentialRecord
from ...metadata.security import SecurityImage
from .scram import ITERATIONS_DEFAULT, SALT_BYTES, SHA_256, SHA_512, ScramCredential, ScramMechanism, has_password
from .scram_exchange import Subject
from .tokens import TokenCredentials

#: Maximum number of forms (salt length and iterations) among which a made-up credential's form is drawn: the most
#: frequent forms of real credentials.
FORMS_MAX = 64
_Form = tuple[int, int]  # length of the salt in bytes, iterations


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
        self._models: dict[int, _Model] = {}  # by the mechanism's number
        self._modelled: Mapping[tuple[str, int], ScramCredentialRecord] | None = None

    def credential(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """The user's credential; for an unknown user, a made-up credential (``is_real`` False)."""
        security = self._security()
        record = security.scram.get((user, mechanism.number))
        made_up = self._made_up(security, mechanism, user)  # compute this always, so that the time is the same
        if record is None:
            return made_up
        return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)

    def has_password(self, user: str, password: str) -> bool:
        """Whether a user of SCRAM has this password (for PLAIN). The credentials of both SCRAM mechanisms are
        always checked, so that the duration does not show which credentials the user has."""
        found = [has_password(each, self.credential(each, user), password) for each in (SHA_512, SHA_256)]
        return any(found)

    def subject(self, mechanism: ScramMechanism, name: str, is_token: bool) -> Subject:
        """The identity that authenticates under ``name``: a user, or the owner of a token."""
        if not is_token:
            return Subject(self.credential(mechanism, name), name)
        security = self._security()
        token = security.tokens.get(name)
        if self._tokens is None:
            return Subject(self._made_up(security, mechanism, name), name)
        if token is None or token.expires_at_ms <= self._now_ms():
            return Subject(self._unreal(mechanism, name, self._tokens.salt(name), ITERATIONS_DEFAULT), name)
        owner = token.owner.partition(":")[2]
        return Subject(self._tokens.get(mechanism, name), owner, name, token.expires_at_ms)

    def has_token(self, token_id: str) -> bool:
        """Whether the cluster has the token and the token has not expired."""
        token = self._security().tokens.get(token_id)
        return token is not None and token.expires_at_ms > self._now_ms()

    def is_slow(self, mechanism: ScramMechanism, name: str, is_token: bool) -> bool:
        return (
            is_token
            and self._tokens is not None
            and name in self._security().tokens
            and not self._tokens.has(mechanism, name)
        )

    def _made_up(self, security: SecurityImage, mechanism: ScramMechanism, user: str) -> ScramCredential:
        model = self._model(security, mechanism)
        secret = (self._tokens.secret if self._tokens is not None else None) or model.secret or self._own_secret
        length, iterations = _drawn(model.forms, secret, f"{mechanism.name}\0{user}")
        salt = b""
        while len(salt) < length:
            salt += hmac.digest(secret, f"{mechanism.name}\0{len(salt)}\0{user}".encode(), "sha256")
        return self._unreal(mechanism, user, salt[:length], iterations)

    def _unreal(self, mechanism: ScramMechanism, user: str, salt: bytes, iterations: int) -> ScramCredential:
        key = hmac.digest(self._own_secret, user.encode(), mechanism.hash_name)
        return ScramCredential(salt, key, key, iterations, is_real=False)

    def _model(self, security: SecurityImage, mechanism: ScramMechanism) -> _Model:
        """The forms of the real credentials; counted again when the credentials have changed."""
        if self._modelled is not security.scram:
            self._models = _models(security.scram)
            self._modelled = security.scram
        return self._models.get(mechanism.number, _NO_USERS)


@dataclass(frozen=True, slots=True)
class _Model:
    """``forms``: the number of credentials of each form; ``secret``: a key of the first credential, by name."""

    forms: Mapping[_Form, int]
    secret: bytes = field(default=b"", repr=False)


_NO_USERS = _Model({(SALT_BYTES, ITERATIONS_DEFAULT): 1})


def _models(scram: Mapping[tuple[str, int], ScramCredentialRecord]) -> dict[int, _Model]:
    forms: dict[int, Counter[_Form]] = {}
    first: dict[int, bytes] = {}
    for (_, number), record in scram.items():
        forms.setdefault(number, Counter())[len(record.salt), record.iterations] += 1
        first.setdefault(number, record.server_key)
    return {number: _Model(dict(found.most_common(FORMS_MAX)), first[number]) for number, found in forms.items()}


def _drawn(forms: Mapping[_Form, int], secret: bytes, name: str) -> _Form:
    """Draw a form by weighted rendezvous hashing: each form has its share of all names, and a name gets another form
    only when the shares change."""
    if len(forms) == 1:
        return next(iter(forms))

    def distance(form: _Form) -> float:
        digest = hmac.digest(secret, f"form\0{form[0]}\0{form[1]}\0{name}".encode(), "sha256")
        return -math.log((int.from_bytes(digest[:8], "big") + 1) / 2**64) / forms[form]

    return min(forms, key=distance)
