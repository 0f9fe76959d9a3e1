"""What the endpoints of OAUTHBEARER may not do by a redirect: get the client's secret, or name keys of a stranger."""

from __future__ import annotations

import http.server
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from io import BytesIO
from urllib.error import HTTPError

import pytest

from headrace_core.security.sasl.jwks import KeySource, SameOrSafer
from headrace_core.security.sasl.token_endpoint import TokenEndpoint

SECRET = "pl4nted-s3cret"


class Server(http.server.ThreadingHTTPServer):
    """Answers with ``body``, or a redirect to ``target``; keeps the headers of the requests."""

    def __init__(self, body: bytes = b"", target: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.body, self.target = body, target
        self.seen: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Answers(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.seen.append(dict(self.headers))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(302 if self.server.target else 200)
        if self.server.target:
            self.send_header("Location", self.server.target)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(body: bytes = b"", target: str = "") -> Iterator[Server]:
    with Server(body, target) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_token_endpoint_cannot_send_the_secret_elsewhere() -> None:
    token = json.dumps({"access_token": "a.b.c"}).encode()
    with serving(token) as thief, serving(target=thief.url) as endpoint:
        with pytest.raises(OSError, match="answered with HTTP status 302"):
            TokenEndpoint(endpoint.url, "me", SECRET).fetch()
        assert "Authorization" in endpoint.seen[0]
        assert thief.seen == []
        assert TokenEndpoint(thief.url, "me", SECRET).fetch() == "a.b.c"


def test_keys_come_by_redirects_to_the_same_or_a_safer_protocol_only() -> None:
    keys = json.dumps({"keys": [{"kty": "RSA", "kid": "one"}]}).encode()
    with serving(keys) as other, serving(target=other.url) as moved:
        assert [each["kid"] for each in KeySource(moved.url).read()] == ["one"]
    handler = SameOrSafer()

    def redirected(before: str, after: str) -> str | None:
        request = urllib.request.Request(before)
        found = handler.redirect_request(request, BytesIO(), 302, "Found", Message(), after)
        return None if found is None else found.full_url

    assert redirected("https://issuer/jwks", "https://issuer/keys") == "https://issuer/keys"
    assert redirected("http://issuer/jwks", "https://issuer/jwks") == "https://issuer/jwks"
    for before, after in (("https://issuer/", "http://issuer/"), ("http://issuer/", "ftp://issuer/")):
        with pytest.raises(HTTPError, match="less safe"):
            redirected(before, after)
