"""A starting coordinator sends heartbeats as soon as it is registered, because a registered coordinator owns shards."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from headrace_coordinator import app
from headrace_core.membership.coordinator_session import RegisteredCoordinator
from headrace_core.metadata.image import EMPTY_IMAGE
from headrace_core.node.config import NodeConfig
from headrace_core.node.listeners import CLIENT, INTERNAL
from headrace_core.node.meta_properties import MetaProperties
from headrace_core.rpc.server import STREAMS_PER_CLIENT_CONNECTION_MAX, STREAMS_PER_CONNECTION_MAX
from headrace_core.testing.raw_http2 import SETTING_MAX_CONCURRENT_STREAMS, RawConnection


class OldMetadata:
    """A follower whose controllers do not confirm how current it is."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.image = EMPTY_IMAGE

    async def load(self, store: Any) -> None:
        pass

    async def save(self) -> None:
        pass

    async def run(self) -> None:
        await asyncio.Event().wait()

    wait_current = run


class Session:
    beating: asyncio.Event

    def __init__(self, *_: Any, **__: Any) -> None:
        self.registered = RegisteredCoordinator(1, 7, 8)

    async def register(self) -> RegisteredCoordinator:
        return self.registered

    async def run(self) -> None:
        self.beating.set()
        await asyncio.Event().wait()


def config_in(directory: Path) -> NodeConfig:
    given = {
        "process.roles": "coordinator",
        "log.dirs": str(directory),
        "listeners": "client://127.0.0.1:0,internal://127.0.0.1:0",
        "controller.quorum.bootstrap.servers": "127.0.0.1:1",
    }
    return NodeConfig.from_properties(given, role="coordinator")


def test_it_heartbeats_before_its_metadata_are_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the coordinator were killed before its first heartbeat, it would have no stream whose end the controllers
    notice."""
    meta = MetaProperties(cluster_id="cluster-one", node_id=1, directory_id=bytes(16))
    monkeypatch.setattr(app, "read_all_meta", lambda *_, **__: [meta])
    monkeypatch.setattr(app, "MetadataFollower", OldMetadata)
    monkeypatch.setattr(app, "CoordinatorSession", Session)

    async def scenario() -> None:
        monkeypatch.setattr(Session, "beating", asyncio.Event(), raising=False)
        coordinator = app.Coordinator(config_in(tmp_path))
        starting = asyncio.create_task(coordinator.start())
        try:
            async with asyncio.timeout(10):
                await Session.beating.wait()
            assert not starting.done()
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            await coordinator.stop(at_once=True)

    asyncio.run(scenario())


def test_a_connection_of_a_client_has_fewer_calls_than_one_of_a_node(tmp_path: Path) -> None:
    """Without the limit, each client begins thousands of calls at once, which delay the calls of all other clients."""

    async def announced(port: int) -> int:
        connection = await asyncio.to_thread(RawConnection, ("127.0.0.1", port))
        settings = await asyncio.to_thread(connection.read_frame)
        connection.close()
        assert settings is not None
        return dict(struct.iter_unpack(">HI", settings.payload))[SETTING_MAX_CONCURRENT_STREAMS]

    async def scenario() -> None:
        coordinator = app.Coordinator(config_in(tmp_path))
        await coordinator._bind()
        try:
            ports = {name: int(coordinator.address(name).rpartition(":")[2]) for name in (CLIENT, INTERNAL)}
            assert await announced(ports[CLIENT]) == STREAMS_PER_CLIENT_CONNECTION_MAX
            assert await announced(ports[INTERNAL]) == STREAMS_PER_CONNECTION_MAX
        finally:
            await coordinator.stop(at_once=True)

    asyncio.run(scenario())
