"""A broker sets the maximum number of connections of its listeners."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace_broker import app
from headrace_core.node import descriptors
from headrace_core.node.config import NodeConfig


def test_each_listener_takes_no_more_connections_than_the_descriptors_leave_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection above the maximum is closed as soon as it is accepted
    (tests/unit/rpc/test_hostile_connections.py)."""
    most: dict[str, Any] = {}

    class Listener(app.Listener):
        def __init__(self, name: str, *args: Any, connections_max: int, **limits: Any) -> None:
            most[name] = connections_max
            super().__init__(name, *args, connections_max=connections_max, **limits)

        async def start(self) -> int:
            return 1

    monkeypatch.setattr(app, "Listener", Listener)
    given = {
        "log.dirs": str(tmp_path),
        "controller.quorum.voters": "1@127.0.0.1:1",
        "listeners": "client://127.0.0.1:0,external://127.0.0.1:0,internal://127.0.0.1:0",
        "max.connections": "5000",
    }

    async def bound(limit: int) -> int:
        monkeypatch.setattr(descriptors, "descriptor_limit", lambda: limit)
        broker = app.Broker(NodeConfig.from_properties(given, role="broker"))
        await broker._bind()
        return broker.settings.current.open_files_max

    files = asyncio.run(bound(1_000_000))
    assert most == {"client": 5_000, "external": 5_000, "internal": 5_000}
    asyncio.run(bound(files + 1_000))
    assert set(most.values()) == {descriptors.connections_with_room(5_000, files, files + 1_000)}
    assert 0 < most["client"] < 1_000
