"""Read the keys of an authority (JWKS, RFC 7517) from a file or a URL, and read them again when they change.

``KeySource.keys`` is called by exchanges and never waits. ``run`` reads the keys every ``refresh_s``, and earlier after
a token with an unknown key id, at most once per ``UNKNOWN_S``. When a read fails, the known keys stay in use.
"""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ...errors import InvalidConfigError

logger = logging.getLogger("headrace.security")

BODY_BYTES_MAX = 1024 * 1024
KEYS_MAX = 1_000
TIMEOUT_S = 10.0
#: Minimum seconds between two reads of the keys because of an unknown key id, so that wrong tokens cannot flood the
#: authority.
UNKNOWN_S = 10.0
FILE_LOOK_S = 10.0  #: Maximum seconds between two reads of a file with keys.


class SameOrSafer(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to the same protocol or to https: on a less safe connection, an attacker could replace the
    keys."""

    def redirect_request(
        self, request: urllib.request.Request, file: Any, code: int, reason: str, headers: Any, url: str
    ) -> urllib.request.Request | None:
        if urlsplit(url).scheme not in (request.type, "https"):
            raise urllib.error.HTTPError(
                request.full_url, code, "the server redirects to a less safe protocol", headers, file
            )
        return super().redirect_request(request, file, code, reason, headers, url)


_OPENER = urllib.request.build_opener(SameOrSafer)


class KeySource:
    """The keys at ``url`` (``file:``, ``https:`` or ``http:``)."""

    def __init__(
        self, url: str, *, refresh_s: float = 3_600.0, backoff_s: float = 0.1, backoff_max_s: float = 10.0
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("file", "https", "http") or not (parts.netloc or parts.path):
            raise InvalidConfigError(
                "sasl.oauthbearer.jwks.endpoint.url must be a URL such as https://issuer/jwks.json or "
                "file:///etc/headrace/jwks.json"
            )
        self._path = Path(unquote(parts.path)) if parts.scheme == "file" else None
        self._url = url
        self._refresh_s = min(refresh_s, FILE_LOOK_S) if self._path is not None else refresh_s
        self._backoff_s, self._backoff_max_s = backoff_s, backoff_max_s
        self._keys: list[Mapping[str, Any]] = []
        self._unknown = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()

    def keys(self, key_id: str | None) -> Sequence[Mapping[str, Any]]:
        """Return the keys with the given id; all keys if ``key_id`` is None. An unknown id makes ``run`` read the keys
        soon."""
        if key_id is None:
            return self._keys
        found = [each for each in self._keys if each.get("kid") == key_id]
        if not found:
            self._unknown = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake.set)
        return found

    async def run(self) -> None:
        """Read the keys until cancelled."""
        self._loop = asyncio.get_running_loop()
        failures = 0
        while True:
            try:
                self._keys = await asyncio.to_thread(self.read)
                failures = 0
                pause_s = self._refresh_s
            except (OSError, ValueError) as error:
                pause_s = min(self._backoff_s * 2**failures, self._backoff_max_s)
                failures = min(failures + 1, 30)
                logger.warning("cannot read the keys of sasl.oauthbearer.jwks.endpoint.url: %s; trying again", error)
            self._unknown = False
            self._wake.clear()
            await self._pause(pause_s)

    async def _pause(self, seconds: float) -> None:
        """Wait; an unknown key id ends the wait after UNKNOWN_S."""
        loop = asyncio.get_running_loop()
        ends_s, early_s = loop.time() + seconds, loop.time() + UNKNOWN_S
        while (left_s := ends_s - loop.time()) > 0:
            if self._unknown:
                left_s = min(left_s, early_s - loop.time())
                if left_s <= 0:
                    return
                await asyncio.sleep(left_s)
                continue
            try:
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
            except TimeoutError:
                return

    def read(self) -> list[Mapping[str, Any]]:
        """Read and check the keys now. Raises OSError or ValueError."""
        if self._path is not None:
            with self._path.open("rb") as file:
                raw = file.read(BODY_BYTES_MAX + 1)
        else:
            request = urllib.request.Request(self._url, headers={"Accept": "application/json"})
            with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
                raw = answer.read(BODY_BYTES_MAX + 1)
        if len(raw) > BODY_BYTES_MAX:
            raise ValueError(f"the key set (JWKS) is longer than {BODY_BYTES_MAX} bytes")
        return parse_keys(raw)


def parse_keys(raw: bytes) -> list[Mapping[str, Any]]:
    """Parse a JWKS; symmetric keys are left out. Raises ValueError."""
    try:
        found = json.loads(raw)
    except RecursionError:
        raise ValueError("the JSON of the key set (JWKS) is nested too deeply") from None
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list) or len(keys) > KEYS_MAX or not all(isinstance(each, dict) for each in keys):
        raise ValueError(f'the key set (JWKS) has no list "keys" of at most {KEYS_MAX} objects')
    return [each for each in keys if each.get("kty") in ("RSA", "EC", "OKP")]
