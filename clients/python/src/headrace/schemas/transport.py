"""HTTP to the registry's replicas: several URLs, tried in turn, over persistent connections.

The client caches answers and so sends few requests; therefore it uses the standard library's blocking HTTP client.
After a failure of a URL, the client tries this URL last for PAUSE_S seconds.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from headrace_core.errors import InvalidConfigError

from ..callbacks import refuse_to_wait
from .errors import RegistryUnavailableError

#: The largest answer, in bytes: a list of 100,000 long subjects or a schema of the largest size with its JSON escapes.
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
#: Maximum number of idle connections that the client keeps to one URL.
IDLE_MAX: Final = 4
#: Maximum time in seconds that the client waits for a connection (less if request.timeout.ms is less).
CONNECT_TIMEOUT_S: Final = 3.0
#: For this number of seconds after a failure of a URL, the client tries all other URLs first.
PAUSE_S: Final = 5.0
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"

#: HTTP statuses after which the client tries the next replica of the registry. After the last replica, the client
#: pauses and tries all replicas again, up to the number of retries.
_BUSY = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Answer:
    """``document``: the JSON of the body, or None without a body."""

    status: int
    document: Any


class _Failed(Exception):
    """Raised when one URL of the registry did not answer. ``may_have_arrived``: the request may have been carried
    out."""

    def __init__(self, reason: str, *, may_have_arrived: bool) -> None:
        super().__init__(reason)
        self.may_have_arrived = may_have_arrived


@dataclass(slots=True)
class _Replica:
    url: str  # without user and password
    scheme: str
    host: str
    port: int
    path: str
    authorization: str | None
    idle: list[http.client.HTTPConnection] = field(default_factory=list)
    paused_until: float = 0.0


class Transport:
    """Sends requests to the first replica that answers. Thread-safe."""

    def __init__(
        self,
        config: Mapping[str, Any],
        urls: list[str],
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._timeout_s: float = config["request.timeout.ms"] / 1000
        self._retries: int = config["retries"]
        self._backoff_s: float = config["retry.backoff.ms"] / 1000
        self._backoff_max_s: float = config["retry.backoff.max.ms"] / 1000
        self._now, self._sleep = now, sleep
        authorization = _authorization(config)
        self._replicas = [_replica(each, authorization) for each in urls]
        self._tls = _tls(config) if any(each.scheme == "https" for each in self._replicas) else None
        self._lock = threading.Lock()
        self.closed = False

    @property
    def urls(self) -> list[str]:
        """The URLs, without passwords."""
        return [each.url for each in self._replicas]

    def request(self, method: str, path: str, body: Any = None) -> Answer:
        """Send a request to the replicas in turn, until one answers. Raises RegistryUnavailableError."""
        refuse_to_wait("a request to the schema registry")
        if self.closed:
            raise RegistryUnavailableError("the SchemaRegistry is closed; create another one")
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        backoff_s = self._backoff_s
        for attempt in range(self._retries + 1):
            if attempt:
                self._sleep(backoff_s)
                backoff_s = min(backoff_s * 2, self._backoff_max_s)
            reasons = []
            for replica in self._in_order():
                try:
                    answer = self._ask(replica, method, path, data)
                except _Failed as failure:
                    replica.paused_until = self._now() + PAUSE_S
                    reasons.append(f"{replica.url}: {failure}")
                    if failure.may_have_arrived and method == "DELETE":
                        raise RegistryUnavailableError(
                            f"{method} {path}: {failure} ({replica.url}); the registry may have carried out the "
                            "request: check before you repeat it"
                        ) from None
                    continue
                replica.paused_until = 0.0
                return answer
        raise RegistryUnavailableError(
            f"no schema registry answers ({'; '.join(reasons)}); start one with `headrace up --registries 1`, or set "
            "schema.registry.url"
        )

    def _in_order(self) -> list[_Replica]:
        now = self._now()
        return sorted(self._replicas, key=lambda each: each.paused_until > now)

    def _ask(self, replica: _Replica, method: str, path: str, data: bytes | None) -> Answer:
        headers = {"Accept": f"{CONTENT_TYPE}, application/json", "User-Agent": "headrace"}
        if data is not None:
            headers["Content-Type"] = CONTENT_TYPE
        if replica.authorization is not None:
            headers["Authorization"] = replica.authorization
        connection = self._take(replica)
        was_kept = connection is not None
        while True:
            if connection is None:
                connection = self._connect(replica)
            try:
                # A server that refuses a body unread answers and closes: the answer is there, although sending fails.
                with contextlib.suppress(ConnectionError):
                    connection.request(method, replica.path + path, body=data, headers=headers)
                response = connection.getresponse()
                raw = _read(response, self._now() + self._timeout_s, self._now)
            except (http.client.HTTPException, OSError) as error:
                connection.close()
                # The server closes idle connections, so the request may fail before the server receives it.
                if was_kept and isinstance(error, http.client.RemoteDisconnected | ConnectionError):
                    connection, was_kept = None, False
                    continue
                raise _Failed(_reason(error, self._timeout_s), may_have_arrived=True) from None
            break
        if response.will_close:
            connection.close()
        else:
            self._give_back(replica, connection)
        return _answer(response, raw)

    def _connect(self, replica: _Replica) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        timeout_s = min(self._timeout_s, CONNECT_TIMEOUT_S)
        if replica.scheme == "https":
            connection = http.client.HTTPSConnection(replica.host, replica.port, timeout=timeout_s, context=self._tls)
        else:
            connection = http.client.HTTPConnection(replica.host, replica.port, timeout=timeout_s)
        try:
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sock.settimeout(self._timeout_s)
        except TimeoutError:
            connection.close()
            raise _Failed(f"no connection within {timeout_s:g} s", may_have_arrived=False) from None
        except OSError as error:
            connection.close()
            raise _Failed(_reason(error, self._timeout_s), may_have_arrived=False) from None
        return connection

    def _take(self, replica: _Replica) -> http.client.HTTPConnection | None:
        with self._lock:
            return replica.idle.pop() if replica.idle else None

    def _give_back(self, replica: _Replica, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self.closed and len(replica.idle) < IDLE_MAX:
                replica.idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self.closed = True
            idle = [each for replica in self._replicas for each in replica.idle]
            for replica in self._replicas:
                replica.idle.clear()
        for connection in idle:
            connection.close()

    def after_fork(self) -> None:
        """Close the copies of the parent's connections in a child process; the child process opens its own
        connections."""
        self._lock = threading.Lock()
        for replica in self._replicas:
            for connection in replica.idle:
                if connection.sock is not None:
                    connection.sock.close()
            replica.idle = []


def _read(response: http.client.HTTPResponse, deadline: float, now: Callable[[], float]) -> bytes:
    parts: list[bytes] = []
    size = 0
    while chunk := response.read(65536):
        size += len(chunk)
        parts.append(chunk)
        if size > ANSWER_BYTES_MAX:
            raise http.client.HTTPException(f"the answer is larger than {ANSWER_BYTES_MAX:,} bytes")
        if now() > deadline:
            raise TimeoutError
    return b"".join(parts)


def _answer(response: http.client.HTTPResponse, raw: bytes) -> Answer:
    """Raise _Failed for an answer that does not come from a working registry, but from a proxy or a busy replica."""
    document: Any = None
    try:
        document = json.loads(raw) if raw.strip() else None
    except (ValueError, RecursionError):
        kind = response.headers.get_content_type()
        raise _Failed(
            f"HTTP status {response.status} with {kind} instead of JSON: is this the address of a schema registry?",
            may_have_arrived=True,
        ) from None
    if response.status in _BUSY:
        said = document.get("message") if isinstance(document, dict) else None
        raise _Failed(f"HTTP status {response.status}{f': {said}' if said else ''}", may_have_arrived=True)
    return Answer(response.status, document)


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s (request.timeout.ms)"
    if isinstance(error, socket.gaierror):
        return f"the host name cannot be resolved ({error.strerror})"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); set ssl.ca.location"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _replica(url: str, authorization: str | None) -> _Replica:
    text = url if "://" in url else f"http://{url}"
    parts = urlsplit(text)
    try:
        port = parts.port
    except ValueError:
        port = -1
    shown = text.rpartition("@")[2] if "@" in text else text
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.fragment:
        raise InvalidConfigError(
            f"schema.registry.url: {shown!r} is not a URL of a registry: write http://HOST:PORT or https://HOST:PORT"
        )
    if parts.username is not None:
        authorization = _basic(unquote(parts.username), unquote(parts.password or ""))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/")
    port = port or (443 if parts.scheme == "https" else 80)
    return _Replica(f"{parts.scheme}://{host}:{port}{path}", parts.scheme, parts.hostname, port, path, authorization)


def _authorization(config: Mapping[str, Any]) -> str | None:
    user_info, token = config["basic.auth.user.info"], config["bearer.auth.token"]
    if user_info is not None and token is not None:
        raise InvalidConfigError("set only one of basic.auth.user.info and bearer.auth.token")
    if token is not None:
        if not token.isascii() or not token.isprintable():
            raise InvalidConfigError("bearer.auth.token: must be printable ASCII")
        return f"Bearer {token}"
    if user_info is None:
        return None
    user, colon, password = user_info.partition(":")
    if not colon:
        raise InvalidConfigError("basic.auth.user.info: must be user:password")
    return _basic(user, password)


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _tls(config: Mapping[str, Any]) -> ssl.SSLContext:
    certificate, key = config["ssl.certificate.location"], config["ssl.key.location"]
    if key is not None and certificate is None:
        raise InvalidConfigError("ssl.key.location needs ssl.certificate.location")
    try:
        context = ssl.create_default_context(cafile=config["ssl.ca.location"])
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfigError(
            f"ssl.ca.location, ssl.certificate.location, ssl.key.location: cannot load the PEM files ({error})"
        ) from None
    return context
