"""Delegation tokens (KIP-48) as the cluster describes them."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A token: a client with the token's ``hmac`` may act as ``owner`` until the token expires. Times are milliseconds
    since 1970.

    Log in with SCRAM: the user is ``token_id``, the password is ``password``, and the login module has the option
    tokenauth="true". ``requester``: the principal that requested the token. ``renewers``: the principals that may renew
    the token, in addition to the owner."""

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    max_lifetime_at_ms: int

    @property
    def password(self) -> str:
        """The HMAC as base64."""
        return base64.b64encode(self.hmac).decode()

    @property
    def jaas_config(self) -> str:
        """The value of sasl.jaas.config that logs in with this token; it is secret."""
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return f'{module} required username="{self.token_id}" password="{self.password}" tokenauth="true";'
