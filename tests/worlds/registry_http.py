"""A client of a registry's REST API, over one kept connection, without any library of Headrace."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

JSON = "application/vnd.schemaregistry.v1+json"


class RegistryRefusal(Exception):
    """An answer with a status of 400 or above. ``code`` is the field error_code."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.code = body.get("error_code") if isinstance(body, dict) else None


class RegistryClient:
    """``call`` raises RegistryRefusal for an error answer, and OSError or http.client.HTTPException if there is no
    answer."""

    def __init__(self, url: str, timeout_s: float = 15.0) -> None:
        self.url = url
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)

    def call(self, method: str, path: str, body: object = None) -> Any:
        try:
            self._connection.request(
                method, path, None if body is None else json.dumps(body), {"Content-Type": JSON, "Accept": JSON}
            )
            answer = self._connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()  # the next call connects again
            raise
        found = json.loads(data) if data else None
        if answer.status >= 400:
            raise RegistryRefusal(answer.status, found)
        return found

    def register(self, subject: str, schema: str) -> int:
        return int(self.call("POST", f"/subjects/{quote(subject, safe='')}/versions", {"schema": schema})["id"])

    def schema(self, schema_id: int) -> str:
        return str(self.call("GET", f"/schemas/ids/{schema_id}")["schema"])

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def registry_client(url: str) -> Iterator[RegistryClient]:
    client = RegistryClient(url)
    try:
        yield client
    finally:
        client.close()
