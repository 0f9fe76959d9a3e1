"""A small schema registry in memory, behind HTTP: equal texts are one schema, and nothing is ever incompatible.

Tests of the client and of the serializers use it to count requests, and to make the registry slow, dead or hostile.
The tests in tests/integration/schemas check that the client works with Headrace's real service.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class FakeRegistry:
    """``answers``: {(method, path): (status, body)} in place of the registry's own answers; a body of bytes is sent
    unchanged. ``requests``: (method, path with query) of each request. ``gate``: requests wait while it is not set."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.schemas: list[tuple[str, str, tuple[Any, ...]]] = []  # the id is the index + 1
        self.subjects: dict[str, list[int]] = {}  # ids by version - 1
        self.refuses: tuple[int, Any] | None = None  # the answer to every registration
        self._connections: list[socket.socket] = []
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                registry._connections.append(self.connection)

            def handle_any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else {}
                registry.requests.append((self.command, self.path))
                registry.headers.append(dict(self.headers.items()))
                registry.gate.wait(30)
                path = urlsplit(self.path).path
                status, answer = registry.answers.get((self.command, path)) or registry.answer(
                    self.command, path, parse_qs(urlsplit(self.path).query), body
                )
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_: Any) -> None:
                """Print nothing in tests."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Ignore a broken connection, because tests let clients disconnect during a request."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- the REST API ------------------------------------------------------------------------------------------------

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        match [method, *map(unquote, path.strip("/").split("/"))]:
            case ["GET", "subjects"]:
                return 200, sorted(self.subjects)
            case ["GET", "schemas", "ids", number]:
                if not 0 < int(number) <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, self._document(int(number))
            case ["GET", "schemas", "ids", number, "versions"]:
                return 200, [
                    {"subject": subject, "version": at + 1}
                    for subject, ids in self.subjects.items()
                    for at, each in enumerate(ids)
                    if each == int(number)
                ]
            case ["GET", "schemas", "ids", number, "subjects"]:
                if not 0 < int(number) <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, [subject for subject, ids in self.subjects.items() if int(number) in ids]
            case ["POST", "subjects", subject, "versions"]:
                if self.refuses is not None:
                    return self.refuses
                return 200, {"id": self.add(subject, body)}
            case ["POST", "subjects", subject]:
                found = self._find(subject, body)
                if found is None:
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, {"subject": subject, "id": found, "version": self.subjects[subject].index(found) + 1} | (
                    self._document(found)
                )
            case ["GET", "subjects", subject, "versions", version]:
                ids = self.subjects.get(subject)
                if not ids:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                at = len(ids) if version == "latest" else int(version)
                if not 0 < at <= len(ids):
                    return 404, {"error_code": 40402, "message": f"Version {version} not found."}
                return 200, {"subject": subject, "version": at, "id": ids[at - 1]} | self._document(ids[at - 1])
            case ["GET", "subjects", subject, "versions"] if subject in self.subjects:
                return 200, list(range(1, len(self.subjects[subject]) + 1))
        return 404, {"error_code": 404, "message": f"HTTP 404 {method} {path}"}

    def add(self, subject: str, body: dict[str, Any]) -> int:
        """Register a schema; the schema's id."""
        key = self._key(body)
        if key not in self.schemas:
            self.schemas.append(key)
        found = self.schemas.index(key) + 1
        ids = self.subjects.setdefault(subject, [])
        if found not in ids:
            ids.append(found)
        return found

    def add_avro(self, subject: str, schema: Any) -> int:
        return self.add(subject, {"schema": json.dumps(schema)})

    def _find(self, subject: str, body: dict[str, Any]) -> int | None:
        key = self._key(body)
        found = self.schemas.index(key) + 1 if key in self.schemas else None
        return found if found in self.subjects.get(subject, ()) else None

    @staticmethod
    def _key(body: dict[str, Any]) -> tuple[str, str, tuple[Any, ...]]:
        references = tuple((each["name"], each["subject"], each["version"]) for each in body.get("references", ()))
        return body["schema"], body.get("schemaType", "AVRO"), references

    def _document(self, number: int) -> dict[str, Any]:
        text, kind, references = self.schemas[number - 1]
        named = [{"name": name, "subject": subject, "version": version} for name, subject, version in references]
        return {"schema": text, "schemaType": kind} | ({"references": named} if named else {})


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    registry = FakeRegistry()
    try:
        yield registry
    finally:
        registry.stop()
