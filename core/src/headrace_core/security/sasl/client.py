"""A client's login: makes the client's side of SASL exchanges from the client's configuration.

Credentials come from sasl.jaas.config, or from librdkafka's keys (sasl.username, sasl.password, …).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import InvalidConfigError, NetworkError, SaslAuthenticationFailedError
from ..references import dereferenced
from .exchange import GSSAPI, OAUTHBEARER, PLAIN, ClientExchange, failed
from .gssapi_exchange import GssapiClient
from .jaas import LoginModule, parse_jaas
from .jwt import claims_of
from .kerberos import MODULE, Initiator, TicketSource
from .oauthbearer import OAuthBearerClient
from .plain import PlainClient
from .scram import SCRAM
from .scram_exchange import ScramClient
from .token_endpoint import TokenEndpoint

_MODULES = {
    PLAIN: "PlainLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
    GSSAPI: MODULE,
    **dict.fromkeys(SCRAM, "ScramLoginModule"),
}
#: The window in which a session is renewed, as fractions of its lifetime (as in Kafka, KIP-368).
RENEW_WINDOW = 0.85, 0.95
#: The fraction of a token's lifetime after which the client gets a new token (Kafka's window factor).
RENEW_AFTER = 0.8


class Login:
    """The credentials of one client. ``mechanism``: the mechanism of every exchange. ``renew_from``, ``renew_to``: the
    window in which the client authenticates again, as fractions of a session's lifetime."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises InvalidConfigError for credentials that are missing or do not fit the mechanism."""
        self._config = config
        self.mechanism: str = config["sasl.mechanisms"] or config["sasl.mechanism"]
        jaas = config["sasl.jaas.config"]
        self._module = None if not jaas else _checked(parse_jaas(jaas), self.mechanism)
        self._make = self._maker()
        self.renew_from, self.renew_to = RENEW_WINDOW
        if self.mechanism == GSSAPI:
            self.renew_from = config["sasl.kerberos.ticket.renew.window.factor"]
            self.renew_to = min(self.renew_from + config["sasl.kerberos.ticket.renew.jitter"], 1.0)

    def start(self, host: str) -> ClientExchange:
        """Begin an exchange with the server at ``host``. Call ``start`` on a thread that may block, because ``start``
        may ask a token endpoint or a Kerberos KDC. Raises SaslAuthenticationFailedError, or NetworkError if a token
        cannot be fetched now."""
        return self._make(host)

    def _maker(self) -> Callable[[str], ClientExchange]:
        if self.mechanism == PLAIN:
            user, password = self._user()
            return lambda host: PlainClient(user, password)
        if self.mechanism in SCRAM:
            mechanism = SCRAM[self.mechanism]
            user, password = self._user()
            is_token = self._module is not None and self._module.flag("tokenauth")
            return lambda host: ScramClient(mechanism, user, password, is_token=is_token)
        if self.mechanism == GSSAPI:
            initiator = Initiator(TicketSource.of(self._module, self._config))
            return lambda host: GssapiClient(initiator, host)
        return self._bearer()

    def _user(self) -> tuple[str, str]:
        if self._module is not None:
            return self._module.option("username"), self._module.option("password")
        user, password = self._config["sasl.username"], self._config["sasl.password"]
        if not user or not password:
            raise InvalidConfigError(
                f"sasl.mechanism={self.mechanism} needs sasl.username and sasl.password, or sasl.jaas.config"
            )
        return user, dereferenced(password, "sasl.password")

    def _bearer(self) -> Callable[[str], ClientExchange]:
        config = self._config
        options = {} if self._module is None else self._module.options
        extensions = dict(each.partition("=")[::2] for each in config["sasl.oauthbearer.extensions"] or ())
        prefix = "extension_"
        extensions |= {name[len(prefix) :]: value for name, value in options.items() if name.startswith(prefix)}
        url = config["sasl.oauthbearer.token.endpoint.url"]
        callback, static = config["oauth.cb"], config["sasl.oauthbearer.token"]
        unsecured = {
            name.removeprefix("unsecuredLoginStringClaim_"): value
            for name, value in options.items()
            if name.startswith("unsecuredLoginStringClaim_")
        }
        source: Callable[[], tuple[str, float | None]]
        if callback is not None:
            setting = config.get("sasl.oauthbearer.config") or ""
            source = lambda: _called(callback, setting)  # noqa: E731
        elif static:
            token = dereferenced(static, "sasl.oauthbearer.token")
            source = lambda: (token, None)  # noqa: E731
        elif url:
            endpoint = TokenEndpoint(
                url,
                config["sasl.oauthbearer.client.credentials.client.id"]
                or config["sasl.oauthbearer.client.id"]
                or options.get("clientId"),
                _secret(config, options),
                config["sasl.oauthbearer.scope"] or options.get("scope"),
                config["sasl.oauthbearer.header.urlencode"],
            )
            source = lambda: _fetched(endpoint)  # noqa: E731
        elif unsecured:
            source = lambda: _unsecured(unsecured)  # noqa: E731
        else:
            raise InvalidConfigError(
                "sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url, oauth_cb or "
                "sasl.oauthbearer.token"
            )
        tokens = _Tokens(source)
        return lambda host: OAuthBearerClient(tokens.get(), extensions)


class _Tokens:
    """Caches a token for most of its lifetime."""

    def __init__(self, source: Callable[[], tuple[str, float | None]]) -> None:
        self._source = source
        self._token, self._renew_at_s = "", 0.0

    def get(self) -> str:
        now_s = time.time()
        if not self._token or now_s >= self._renew_at_s:
            self._token, ends_s = self._source()
            self._renew_at_s = 0.0 if ends_s is None else now_s + (ends_s - now_s) * RENEW_AFTER
        return self._token


def _checked(module: LoginModule, mechanism: str) -> LoginModule:
    if module.name != _MODULES[mechanism]:
        raise InvalidConfigError(
            f"sasl.jaas.config has {module.name[:100]}, but sasl.mechanism={mechanism} needs {_MODULES[mechanism]}"
        )
    return module


def _secret(config: Mapping[str, Any], options: Mapping[str, str]) -> str | None:
    for key in ("sasl.oauthbearer.client.credentials.client.secret", "sasl.oauthbearer.client.secret"):
        if config[key]:
            return dereferenced(config[key], key)
    return options.get("clientSecret")


def _fetched(endpoint: TokenEndpoint) -> tuple[str, float | None]:
    try:
        token = endpoint.fetch()
    except (OSError, ValueError) as error:
        raise NetworkError(f"cannot get a token from sasl.oauthbearer.token.endpoint.url: {error}") from None
    return token, _end_of(token)


def _end_of(token: str) -> float | None:
    try:
        end_s = claims_of(token).get("exp")
    except SaslAuthenticationFailedError:  # an opaque token
        return None
    return float(end_s) if isinstance(end_s, int | float) else None


def _called(callback: Callable[[str], tuple[str, float]], setting: str) -> tuple[str, float | None]:
    try:
        token, end_s = callback(setting)[:2]
        return str(token), float(end_s)
    except Exception as error:
        raise failed(OAUTHBEARER, f"oauth_cb failed with {type(error).__name__}") from error


def _unsecured(claims: Mapping[str, str]) -> tuple[str, float]:
    """Make a token without a signature, as Kafka's unsecured login does; for development."""
    import base64
    import json

    now_s = time.time()

    def part(value: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    body = {**claims, "iat": int(now_s), "exp": int(now_s + 3_600)}
    return f"{part({'alg': 'none'})}.{part(body)}.", now_s + 3_600
