"""Replicas of the registry beside a ``LocalCluster(mode="inprocess")``, on the same event loop, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from headrace import LocalCluster
from headrace.engine.io_thread import io_thread
from headrace_core.telemetry import Emitter, Event
from headrace_registry.registry import Registry, State
from headrace_registry.schemas import Schema, SchemaType
from headrace_registry.settings import RegistrySettings, parse_http_listeners
from headrace_registry.state import Deciding, Decision, Image, Submission
from tests.worlds.waiting import until_async


def avro(number: int) -> str:
    """The text of an Avro schema; different numbers give different schemas."""
    return f'{{"type":"record","name":"R{number}","fields":[{{"name":"f","type":"int"}}]}}'


class Replicas:
    """Replicas of one registry. ``topic`` is also the group's name, so each test has its own registry."""

    def __init__(self, cluster: LocalCluster, topic: str, **settings: Any) -> None:
        self.settings = RegistrySettings(
            listeners=parse_http_listeners(["http://127.0.0.1:0"], key="registry.listeners", example_port=8081),
            bootstrap_servers=tuple(cluster.bootstrap_servers.split(",")),
            replication_factor=1,
            topic=topic,
            group_id=topic,
            **settings,
        )
        self.deciding = Deciding()
        self.running: list[Registry] = []
        self.events: list[Event] = []
        self._number = 0

    def new(self, url: str = "") -> Registry:
        """Make a replica that is not started; ``stop_all`` stops it. ``url``: by default each replica has its own
        URL."""
        self._number += 1
        events = Emitter()
        events.subscribe(self.events.append)
        replica = Registry(self.settings, url or f"http://replica-{self._number}", events=events)
        self.running.append(replica)
        return replica

    async def start(self) -> Registry:
        replica = self.new()
        await replica.start()
        return replica

    async def writer(self, *, without: Registry | None = None) -> Registry:
        """Wait for the only writer. ``without``: a replica that is ignored."""

        def found() -> Registry | None:
            writers = [each for each in self.running if each.state is State.WRITER and each is not without]
            return writers[0] if len(writers) == 1 else None

        writer: Registry = await until_async(found, "one replica to be the writer")
        return writer

    def registering(self, number: int, subject: str = "") -> Callable[[Image], Decision[int]]:
        """The decision of the registry about schema ``number``."""
        submitted = Submission(subject or f"subject-{number}", Schema(SchemaType.AVRO, avro(number)))
        return lambda image: self.deciding.register(image, submitted, normalize=False)

    async def stop_all(self) -> None:
        await asyncio.gather(*(each.stop() for each in self.running))


def run_with(replicas: Replicas, work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine on the I/O thread, then stop its replicas."""

    async def whole() -> None:
        try:
            await work
        finally:
            await replicas.stop_all()

    io_thread().run(whole())
