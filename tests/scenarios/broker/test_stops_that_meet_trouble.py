"""A stop in which an operation fails still closes the logs: otherwise the next start must recover them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace_broker.app import Broker
from headrace_core.log.checkpoints import BROKER_EPOCH, CLEAN_SHUTDOWN, CleanShutdown, write_clean_shutdown
from headrace_core.metadata import FoundEpochs
from headrace_core.node.config import NodeConfig
from headrace_core.testing.crashing_fs import CrashingFileSystem
from headrace_core.types import TopicPartition
from tests.worlds.solo_broker import SoloBroker
from tests.worlds.waiting import in_loop


@in_loop
async def test_logs_are_closed_though_upkeep_does_not_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"log.dirs": str(tmp_path), "controller.quorum.voters": "1@127.0.0.1:1"}
    broker = Broker(NodeConfig.from_properties(given, role="broker"))
    closed: list[int] = []

    async def stop() -> None:
        raise RuntimeError("can't start new thread")

    async def close(high_watermarks: Mapping[TopicPartition, int], *, broker_epoch: int, **_: object) -> bool:
        closed.append(broker_epoch)
        return True

    monkeypatch.setattr(broker.upkeep, "stop", stop)
    monkeypatch.setattr(broker.storage, "close", close)
    await broker.stop()
    assert closed == [-1]


@in_loop
async def test_a_broker_knows_the_epoch_it_stopped_cleanly_with_in_all_of_its_directories() -> None:
    """KIP-966: the broker reports the epoch of its clean stop at its next registration. Without the epoch of the clean
    stop, the controllers remove the broker from the eligible leader replicas."""
    fs = CrashingFileSystem()
    roots = ("/one", "/two")
    async with SoloBroker(fs, *roots) as broker:
        assert broker.storage.clean_shutdown_epoch() is None, "nobody has stopped yet"
    again = SoloBroker(fs, *roots)
    assert again.storage.clean_shutdown_epoch() == 1
    write_clean_shutdown(fs, "/two", CleanShutdown(2))
    assert again.storage.clean_shutdown_epoch() is None, "of two lives"
    fs.unlink(f"/two/{CLEAN_SHUTDOWN}")
    assert again.storage.clean_shutdown_epoch() is None, "one of them was not closed"


@in_loop
async def test_a_broker_names_the_epochs_that_each_of_its_directories_proves() -> None:
    fs = CrashingFileSystem()
    roots = ("/one", "/two")
    async with SoloBroker(fs, *roots) as broker:
        ids = [each.bytes for each in broker.storage.directory_ids()]
        copy = fs.crash_clone()
    again = SoloBroker(fs, *roots)
    fs.unlink(f"/two/{CLEAN_SHUTDOWN}")
    fs.unlink(f"/two/{BROKER_EPOCH}")
    again.storage.identify()
    assert again.storage.directory_epochs() == [FoundEpochs(ids[0], 1, 1), FoundEpochs(ids[1], -1, -1)]
    restored = SoloBroker(copy, *roots)
    restored.storage.identify()
    assert restored.storage.directory_epochs() == [FoundEpochs(each, 1, -1) for each in ids], "copied while it ran"
