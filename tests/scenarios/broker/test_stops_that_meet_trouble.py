"""A stop in which something fails still closes the logs: else the next start has to recover them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace_broker.app import Broker
from headrace_core.node.config import NodeConfig
from headrace_core.types import TopicPartition


def test_logs_are_closed_though_upkeep_does_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        given = {"log.dirs": str(tmp_path), "controller.quorum.voters": "1@127.0.0.1:1"}
        broker = Broker(NodeConfig.from_properties(given, role="broker"))
        closed: list[int] = []

        async def stop() -> None:
            raise RuntimeError("can't start new thread")

        async def close(high_watermarks: Mapping[TopicPartition, int], *, broker_epoch: int) -> bool:
            closed.append(broker_epoch)
            return True

        monkeypatch.setattr(broker.upkeep, "stop", stop)
        monkeypatch.setattr(broker.storage, "close", close)
        await broker.stop()
        assert closed == [-1]

    asyncio.run(scenario())
