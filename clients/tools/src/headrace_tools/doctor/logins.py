"""Explain why a node refuses a client's login (SASL). ``Logins`` logs in at an address; ``refusal_of`` explains an
error.

A server's answer says that the mechanism, the clock or the token is wrong, if the answer reveals no secret. A server
gives the same answer for an unknown user and for a wrong password, so that an attacker cannot find out which users
exist. The rules that report the refusals are in security_rules.py.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_core.errors import (
    HeadraceError,
    IllegalSaslStateError,
    InvalidConfigError,
    NetworkError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from headrace_core.security.sasl.exchange import GSSAPI, NO_SASL, OAUTHBEARER, PLAIN
from headrace_core.security.sasl.jaas import LoginModule, parse_jaas
from headrace_core.security.sasl.jwt import claims_of

from .facts import Refusal

if TYPE_CHECKING:
    from headrace.admin import Admin
    from headrace.cluster_models import NodeDescription


class LoginCause(enum.StrEnum):
    """The reason of a refused login; a stable name for scripts."""

    NEEDED = "sasl-required"
    NOT_SERVED = "sasl-not-served"
    MECHANISM = "sasl-mechanism"
    CREDENTIALS = "login-refused"
    TOKEN = "token-refused"
    ENDPOINT = "token-endpoint"
    KDC = "kerberos-kdc"
    CLOCKS = "kerberos-clock"
    TICKET = "kerberos-ticket"
    OTHER = "login-failed"


@dataclass(frozen=True, slots=True)
class LoginKeys:
    """The keys about the login in a client's configuration, without secrets. ``user``: the user, the principal, or the
    token's id; "" if unknown. ``is_token``: ``user`` is the id of a delegation token. ``bearer_ends_s``: when the
    configured OAUTHBEARER token expires (seconds since 1970); None: unknown."""

    protocol: str
    mechanism: str
    user: str = ""
    is_token: bool = False
    bearer_ends_s: float | None = None

    @property
    def is_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LoginKeys:
        """Read the resolved configuration of an admin client."""
        protocol, mechanism = str(config["security.protocol"]), config["sasl.mechanisms"] or config["sasl.mechanism"]
        jaas = config["sasl.jaas.config"]
        module = LoginModule("", {}) if not jaas else parse_jaas(jaas)
        own = (config["sasl.username"], config["sasl.kerberos.principal"])
        named = (module.options.get("username"), module.options.get("principal"), *own)
        return cls(
            protocol,
            mechanism,
            next((str(each) for each in named if each), ""),
            module.flag("tokenauth"),
            _end_of(config["sasl.oauthbearer.token"]),
        )


class Logins:
    """Logs in at one address after the other. Each login has its own client, so that the refusal of one node does not
    affect the login at another node."""

    def __init__(self, open_admin: Callable[[str], AbstractContextManager[Admin]], keys: LoginKeys) -> None:
        """``open_admin(address)`` makes a client for this address."""
        self._open_admin, self._keys = open_admin, keys

    def try_at(self, address: str, timeout_s: float) -> NodeDescription | Refusal | None:
        """Log in, and ask the node to describe itself. Returns the node's answer, or the reason why the login failed;
        None: the call failed for another reason."""
        try:
            with self._open_admin(address) as client:
                return client.describe_node(address, timeout=timeout_s)
        except HeadraceError as error:
            return refusal_of(error, address, self._keys)


def refusal_of(error: HeadraceError, address: str, keys: LoginKeys) -> Refusal | None:
    """Explain the failure of a call at ``address``; None if the login is not the reason."""
    said = error.message.removesuffix(f" (from {address})")
    if isinstance(error, UnsupportedSaslMechanismError):
        return _refusal(
            LoginCause.MECHANISM,
            said,
            "set sasl.mechanism to one of these and set its credentials, or add the mechanism to "
            "sasl.enabled.mechanisms of the node",
        )
    if not keys.is_sasl:
        return _without_sasl(error, said)
    if isinstance(error, NetworkError | RequestTimedOutError | InvalidConfigError):
        return _unfinished(said, keys)
    if isinstance(error, SaslAuthenticationFailedError | IllegalSaslStateError):
        return _refused(said, keys)
    return None


def _without_sasl(error: HeadraceError, said: str) -> Refusal | None:
    """The refusal of a client that does not use SASL."""
    if not isinstance(error, SaslAuthenticationFailedError):
        return None
    if "the connection is not authenticated" in said:
        return _refusal(
            LoginCause.NEEDED,
            said.partition(": set ")[0],
            "set security.protocol to the listener's protocol, and set sasl.mechanism and the credentials",
        )
    return _refusal(LoginCause.OTHER, said, "use the certificate of a user (ssl.keystore.location)")


def _unfinished(said: str, keys: LoginKeys) -> Refusal | None:
    """The login needs a third party (a KDC, a token endpoint) that does not answer."""
    if keys.mechanism == GSSAPI and ("no KDC answers" in said or "no authentication within" in said):
        return _refusal(
            LoginCause.KDC,
            said,
            "check the kdc of the realm in krb5.conf (KRB5_CONFIG names the file), its name in DNS, and port 88 of "
            "the firewall",
        )
    if keys.mechanism == OAUTHBEARER and "token.endpoint.url" in said:
        return _refusal(
            LoginCause.ENDPOINT,
            said,
            "check sasl.oauthbearer.token.endpoint.url, the client's id and secret, and that this machine reaches the "
            "authority",
        )
    if "no authentication within" in said:
        return _refusal(LoginCause.OTHER, said, "look at the node's log and load; a longer --timeout may help")
    return None


def _refused(said: str, keys: LoginKeys) -> Refusal:
    if NO_SASL in said:
        return _refusal(
            LoginCause.NOT_SERVED,
            f"the listener {NO_SASL}, but this client logs in",
            "set security.protocol=SSL or PLAINTEXT, to match the listener, or use the port of another listener",
        )
    if keys.mechanism == GSSAPI:
        return _by_kerberos(said)
    if keys.mechanism == OAUTHBEARER:
        return _by_bearer(said, keys)
    if "the credentials are wrong" not in said:
        return _refusal(LoginCause.OTHER, said, "see docs/security-authentication.md; the node's log shows the attempt")
    return _by_delegation_token(keys) if keys.is_token else _by_password(keys)


def _by_password(keys: LoginKeys) -> Refusal:
    has = "plain.sasl.jaas.config of the listener lists its users" if keys.mechanism == PLAIN else (
        f"`headrace users list` (as another user) shows who has a password for {keys.mechanism}"
    )  # fmt: skip
    return _refusal(
        LoginCause.CREDENTIALS,
        f"the user {keys.user!r} is unknown for {keys.mechanism}, or its password is wrong (servers do not say which)",
        f"check sasl.username and sasl.password, or sasl.jaas.config; {has}",
    )


def _by_delegation_token(keys: LoginKeys) -> Refusal:
    return _refusal(
        LoginCause.TOKEN,
        f"the delegation token {keys.user} is not valid: it has expired, was removed, or its secret is wrong",
        "`headrace tokens list` (as its owner) shows when it expires; make another with `headrace tokens create --out "
        "FILE`, and renew it in time; all nodes need the same delegation.token.secret.key",
    )


def _by_bearer(said: str, keys: LoginKeys) -> Refusal:
    ends_s, now_s = keys.bearer_ends_s, time.time()
    if "expired" in said or (ends_s is not None and ends_s <= now_s):
        own = "" if ends_s is None else f" (by this machine's clock, {abs(now_s - ends_s):.0f} s "
        own += "" if ends_s is None else ("ago)" if ends_s <= now_s else "from now: one of the clocks is wrong)")
        return _refusal(
            LoginCause.TOKEN,
            f"{said.partition(';')[0]}{own}",
            "put a new token into sasl.oauthbearer.token, or set sasl.oauthbearer.token.endpoint.url, so that the "
            "client gets new ones; compare the clocks",
        )
    return _refusal(
        LoginCause.OTHER,
        said,
        "compare the token's iss, aud and scope with sasl.oauthbearer.expected.* of the node, and its key with "
        "sasl.oauthbearer.jwks.endpoint.url",
    )


def _by_kerberos(said: str) -> Refusal:
    what, _, cure = said.partition("; ")
    if "clocks" in said:
        return _refusal(
            LoginCause.CLOCKS, what, "synchronize this machine, the node and the KDC (NTP); krb5.conf has clockskew"
        )
    if "kinit" in said:
        return _refusal(LoginCause.TICKET, what, cure)
    return _refusal(
        LoginCause.OTHER, what, cure or "check sasl.kerberos.service.name, the principal, and the keytab of the node"
    )


def _refusal(cause: LoginCause, what: str, cure: str) -> Refusal:
    return Refusal(str(cause), what, cure)


def _end_of(token: str | None) -> float | None:
    """When a configured token expires; None for a reference (``${file:…}``) or an opaque token."""
    try:
        end_s = claims_of(token).get("exp") if token else None
    except SaslAuthenticationFailedError:
        return None
    return float(end_s) if isinstance(end_s, int | float) else None
