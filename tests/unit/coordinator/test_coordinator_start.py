"""A starting coordinator sends heartbeats as soon as it is registered, because it owns shards from then on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace_coordinator import app
from headrace_core.membership.coordinator_session import RegisteredCoordinator
from headrace_core.metadata.image import EMPTY_IMAGE
from headrace_core.node.config import NodeConfig
from headrace_core.node.meta_properties import MetaProperties


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


def test_it_heartbeats_before_its_metadata_are_current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the coordinator were killed before its first heartbeat, it would have no stream whose end the controllers
    notice."""
    meta = MetaProperties(cluster_id="cluster-one", node_id=1, directory_id=bytes(16))
    monkeypatch.setattr(app, "read_all_meta", lambda *_, **__: [meta])
    monkeypatch.setattr(app, "MetadataFollower", OldMetadata)
    monkeypatch.setattr(app, "CoordinatorSession", Session)
    given = {
        "process.roles": "coordinator",
        "log.dirs": str(tmp_path),
        "listeners": "client://127.0.0.1:0,internal://127.0.0.1:0",
        "controller.quorum.bootstrap.servers": "127.0.0.1:1",
    }

    async def scenario() -> None:
        monkeypatch.setattr(Session, "beating", asyncio.Event(), raising=False)
        coordinator = app.Coordinator(NodeConfig.from_properties(given, role="coordinator"))
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
