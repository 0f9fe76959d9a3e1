"""Get tokens for OAUTHBEARER: the client credentials grant (RFC 6749, section 4.4), or a file with a token."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from ...errors import InvalidConfigError, SaslAuthenticationFailedError
from .exchange import OAUTHBEARER, failed

TIMEOUT_S = 10.0
BODY_BYTES_MAX = 1024 * 1024


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: a redirect would send the client's secret to another server, possibly without
    encryption."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


@dataclass(frozen=True, slots=True)
class TokenEndpoint:
    """``url``: https:, http: or file:. ``fetch`` blocks."""

    url: str
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None
    encodes: bool = False

    def __post_init__(self) -> None:
        scheme = urlsplit(self.url).scheme
        if scheme not in ("https", "http", "file"):
            raise InvalidConfigError("sasl.oauthbearer.token.endpoint.url must begin with https:, http: or file:")
        if scheme != "file" and not (self.client_id and self.client_secret):
            raise InvalidConfigError(
                "sasl.oauthbearer.token.endpoint.url needs a client id and a client secret "
                "(sasl.oauthbearer.client.credentials.client.id and .client.secret)"
            )

    def fetch(self) -> str:
        """Return a new token. Raises SaslAuthenticationFailedError if the endpoint refuses the client, OSError or
        ValueError if the endpoint gives no valid answer."""
        parts = urlsplit(self.url)
        if parts.scheme == "file":
            return Path(unquote(parts.path)).read_text(encoding="utf-8").strip()
        name, secret = str(self.client_id), str(self.client_secret)
        if self.encodes:
            name, secret = quote(name, safe=""), quote(secret, safe="")
        form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        request = urllib.request.Request(
            self.url,
            data=urlencode(form).encode(),
            headers={
                "Authorization": "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode(),
                "Content-Type": "application/x-www-form-urlencoded",
                "Accept": "application/json",
            },
        )
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
                raw = answer.read(BODY_BYTES_MAX)
        except urllib.error.HTTPError as error:
            if error.code in (400, 401, 403):
                raise self._refused(error.code) from None
            raise OSError(f"the token endpoint answered with HTTP status {error.code}") from None
        token = json.loads(raw).get("access_token")
        if not isinstance(token, str):
            raise ValueError("the token endpoint's answer has no access_token")
        return token

    def _refused(self, status: int) -> SaslAuthenticationFailedError:
        return failed(OAUTHBEARER, f"the token endpoint refused the client ({status}); check its id, secret and scope")
