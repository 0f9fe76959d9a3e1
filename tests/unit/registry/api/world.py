"""Replicas of a registry in memory: one topic, one image each, the real API on loopback ports.

A ``World`` has its own event loop, and its calls block, so that tests read like a client's transcript.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from yarl import URL

from headrace_core.node.http_bodies import SERVER
from headrace_core.node.listeners import ListenerAddress
from headrace_registry.api import application
from headrace_registry.settings import RegistrySettings
from headrace_registry.state import Decision, Image
from headrace_registry.writes import NotWriterError

T = TypeVar("T")

V1 = "application/vnd.schemaregistry.v1+json"
JSON = "application/json"
DEADLINE_S = 20.0


class MemoryRegistry:
    """A replica over a topic that is a list. ``lag_s``: how late it applies what others have written."""

    def __init__(self, topic: list[tuple[bytes, bytes | None]]) -> None:
        self.image = Image()
        self.is_ready = True
        self.is_writer = True
        self.is_current = True
        self.writer_url: str | None = None
        self.next_writer: str | None = None
        self.lag_s = 0.01
        self.error: Exception | None = None
        self.writes = 0
        self._topic = topic

    async def run(self) -> None:
        while True:
            known = len(self._topic)
            await asyncio.sleep(self.lag_s)
            self.follow(known)

    def follow(self, end: int | None = None) -> None:
        for offset in range(self.image.offset + 1, len(self._topic) if end is None else end):
            self.image.apply(*self._topic[offset], offset)

    async def catch_up(self) -> bool:
        return self.is_current

    async def wait_for_other_writer(self, url: str) -> bool:
        if self.next_writer in (None, url):
            return False
        self.writer_url = self.next_writer
        return True

    async def write(self, decide: Callable[[Image], Decision[T]]) -> T:
        if not self.is_writer:
            raise NotWriterError(self.writer_url)
        if self.error is not None:
            raise self.error
        self.follow()
        draft = self.image.draft()
        decision = decide(draft)
        self._topic.extend(decision.records)
        self.writes += len(decision.records)
        self.follow()
        return decision.answer


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: Any
    headers: dict[str, str] = field(compare=False, default_factory=dict)
    text: str = field(compare=False, default="")

    @property
    def error(self) -> tuple[int, int, str]:
        return self.status, self.body["error_code"], self.body["message"]


class World:
    """``replicas`` registries; the first one writes."""

    def __init__(self, replicas: int = 1, **settings: Any) -> None:
        self.topic: list[tuple[bytes, bytes | None]] = []
        self.registries = [MemoryRegistry(self.topic) for _ in range(replicas)]
        self._settings = RegistrySettings(
            listeners=(ListenerAddress("http", "127.0.0.1", 0),), bootstrap_servers=("127.0.0.1:1",), **settings
        )
        self.loop = asyncio.new_event_loop()
        self.servers: list[TestServer] = []
        self._session: ClientSession
        self._followers: list[asyncio.Task[None]] = []

    def __enter__(self) -> World:
        self.loop.run_until_complete(self._start())
        for registry in self.registries[1:]:
            registry.is_writer = False
            registry.writer_url = self.url(0)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.run_until_complete(self._stop())
        self.loop.close()

    @property
    def registry(self) -> MemoryRegistry:
        return self.registries[0]

    def url(self, replica: int) -> str:
        return str(self.servers[replica].make_url("")).rstrip("/")

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, DEADLINE_S))

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        replica: int = 0,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        return self.run(self.send(method, path, body, replica=replica, data=data, headers=headers))

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        replica: int = 0,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        if body is not None:
            data = json.dumps(body).encode()
        url = URL(self.url(replica) + path, encoded=True)
        sent = {"Content-Type": V1} | (headers or {}) if data is not None else headers or {}
        async with self._session.request(method, url, data=data, headers=sent) as found:
            text = await found.text()
            try:
                value = json.loads(text)
            except ValueError:
                value = None
            return Reply(found.status, value, dict(found.headers), text)

    def get(self, path: str, **more: Any) -> Reply:
        return self.call("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> Reply:
        return self.call("POST", path, body, **more)

    def put(self, path: str, body: Any = None, **more: Any) -> Reply:
        return self.call("PUT", path, body, **more)

    def delete(self, path: str, **more: Any) -> Reply:
        return self.call("DELETE", path, **more)

    def register(self, subject: str, schema: object, **more: Any) -> int:
        """Register a schema, a value or a text, and return its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        reply = self.post(f"/subjects/{subject}/versions", {"schema": text, **more})
        assert reply.status == 200, reply
        return reply.body["id"]

    async def _start(self) -> None:
        self._session = ClientSession()
        for registry in self.registries:
            server = TestServer(application(registry, self._settings))  # type: ignore[arg-type]
            await server.start_server(**SERVER)
            self.servers.append(server)
        self._followers = [self.loop.create_task(each.run()) for each in self.registries]

    async def _stop(self) -> None:
        for follower in self._followers:
            follower.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        await self._session.close()
        for server in self.servers:
            await server.close()


@contextlib.contextmanager
def world(replicas: int = 1, **settings: Any) -> Iterator[World]:
    with World(replicas, **settings) as found:
        yield found


def record(name: str, *fields: tuple[str, object] | tuple[str, object, object]) -> dict[str, Any]:
    """An Avro record. A field is (name, type) or (name, type, default)."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": each[0], "type": each[1], **({"default": each[2]} if len(each) == 3 else {})} for each in fields
        ],
    }
