"""The SASL mechanisms of a listener, from its configuration; each mechanism creates the server's side of exchanges."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import InvalidConfigError, UnsupportedSaslMechanismError
from ...metadata.security import SecurityImage
from ..references import dereferenced
from .exchange import GSSAPI, OAUTHBEARER, PLAIN, Identity, ServerExchange
from .gssapi_exchange import GssapiServer
from .jaas import LoginModule, parse_jaas
from .jwks import KeySource
from .jwt import CheckToken, TokenRules, signed_tokens, unsecured_tokens
from .kerberos import MODULE, Acceptor
from .oauthbearer import OAuthBearerServer
from .plain import PlainServer, static_users
from .scram import SCRAM
from .scram_exchange import ScramServer
from .tokens import TokenCredentials
from .users import Users

_USER_OPTION = "user_"
_UNSECURED_OPTION = "unsecuredValidator"


class Mechanisms:
    """``names``: the mechanisms in the configuration's order. Call ``run`` as a task while the listener serves."""

    def __init__(
        self, values: Mapping[str, Any], security: Callable[[], SecurityImage], now_ms: Callable[[], float]
    ) -> None:
        """``values``: the listener's values by name (NodeConfig.listener_values). ``security`` returns the present
        image. ``now_ms``: milliseconds since 1970. Raises InvalidConfigError."""
        self.names: tuple[str, ...] = tuple(dict.fromkeys(values["sasl.enabled.mechanisms"]))
        if not self.names:
            raise InvalidConfigError("sasl.enabled.mechanisms is empty: name one, such as SCRAM-SHA-512")
        self._values, self._now_ms = values, now_ms
        self._keys: KeySource | None = None
        secret = values["delegation.token.secret.key"]
        secret = dereferenced(secret, "delegation.token.secret.key") if secret else None
        self._users = Users(security, TokenCredentials(secret) if secret else None, now_ms)
        self._makers: dict[str, Callable[[], ServerExchange]] = {name: self._maker(name) for name in self.names}

    def start(self, name: str) -> ServerExchange:
        """Begin an exchange. Raises UnsupportedSaslMechanismError, which names the mechanisms."""
        maker = self._makers.get(name)
        if maker is None:
            raise UnsupportedSaslMechanismError(
                f"this listener does not have the mechanism {name[:40]!r}; it has {', '.join(self.names)}"
            )
        return maker()

    def is_revoked(self, identity: Identity) -> bool:
        """Whether ``identity`` has authenticated by a delegation token that has been removed or has expired since."""
        return identity.token_id is not None and not self._users.has_token(identity.token_id)

    async def run(self) -> None:
        """Keep the keys of OAUTHBEARER current, until cancelled."""
        if self._keys is not None:
            await self._keys.run()
        else:
            await asyncio.Event().wait()

    def _maker(self, name: str) -> Callable[[], ServerExchange]:
        if name in SCRAM:
            mechanism = SCRAM[name]
            users = self._users
            return lambda: ScramServer(
                mechanism,
                lambda user, is_token: users.subject(mechanism, user, is_token),
                is_slow=lambda user, is_token: users.is_slow(mechanism, user, is_token),
            )
        module = self._module(name)
        if name == PLAIN:
            options = {} if module is None else module.options
            static = {key[len(_USER_OPTION) :]: value for key, value in options.items() if key.startswith(_USER_OPTION)}
            check = static_users(static) if static else self._users.has_password
            return lambda: PlainServer(check, is_slow=not static)
        if name == OAUTHBEARER:
            check_token = self._token_check(module)
            return lambda: OAuthBearerServer(check_token)
        acceptor = Acceptor(module, self._values)
        return lambda: GssapiServer(acceptor)

    def _module(self, mechanism: str) -> LoginModule | None:
        """The login module of a mechanism, else the general module of the listener, if that module fits the
        mechanism."""
        own = f"{mechanism.lower()}.sasl.jaas.config"
        if self._values.get(own):
            return parse_jaas(self._values[own], own)
        general = self._values.get("sasl.jaas.config")
        if not general:
            return None
        module = parse_jaas(general)
        return module if _MODULES.get(module.name) == mechanism else None

    def _token_check(self, module: LoginModule | None) -> CheckToken:
        values = self._values
        options = {} if module is None else module.options
        rules = TokenRules(
            audiences=tuple(values["sasl.oauthbearer.expected.audience"]),
            issuer=values["sasl.oauthbearer.expected.issuer"],
            scopes=tuple(values["sasl.oauthbearer.expected.scope"]),
            scope_claim=values["sasl.oauthbearer.scope.claim.name"],
            user_claim=values["sasl.oauthbearer.sub.claim.name"],
            clock_skew_s=values["sasl.oauthbearer.clock.skew.seconds"],
        )
        url = values["sasl.oauthbearer.jwks.endpoint.url"]
        unsecured = {name: value for name, value in options.items() if name.startswith(_UNSECURED_OPTION)}
        if url and unsecured:
            raise InvalidConfigError(
                f"sasl.oauthbearer.jwks.endpoint.url and the option {next(iter(unsecured))} exclude each other: "
                f"choose signed or unsecured tokens"
            )
        if url:
            self._keys = KeySource(
                url,
                refresh_s=values["sasl.oauthbearer.jwks.endpoint.refresh.ms"] / 1_000,
                backoff_s=values["sasl.oauthbearer.jwks.endpoint.retry.backoff.ms"] / 1_000,
                backoff_max_s=values["sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms"] / 1_000,
            )
            return signed_tokens(rules, self._keys.keys, lambda: self._now_ms() / 1_000)
        if not unsecured:
            raise InvalidConfigError(
                "OAUTHBEARER needs sasl.oauthbearer.jwks.endpoint.url; for development without signatures set the "
                f'option {_UNSECURED_OPTION}PrincipalClaimName="sub" of OAuthBearerLoginModule in '
                "oauthbearer.sasl.jaas.config"
            )
        skew_ms = options.get(f"{_UNSECURED_OPTION}AllowableClockSkewMs", "0")
        if not skew_ms.isdecimal():
            raise InvalidConfigError(f"{_UNSECURED_OPTION}AllowableClockSkewMs={skew_ms[:20]}: must be a whole number")
        rules = TokenRules(
            scopes=tuple(options.get(f"{_UNSECURED_OPTION}RequiredScope", "").split()),
            scope_claim=options.get(f"{_UNSECURED_OPTION}ScopeClaimName", "scope"),
            user_claim=options.get(f"{_UNSECURED_OPTION}PrincipalClaimName", "sub"),
            clock_skew_s=int(skew_ms) / 1_000,
            needs_issued_at=False,
        )
        return unsecured_tokens(rules, lambda: self._now_ms() / 1_000)


_MODULES = {
    "PlainLoginModule": PLAIN,
    "OAuthBearerLoginModule": OAUTHBEARER,
    MODULE: GSSAPI,
}
