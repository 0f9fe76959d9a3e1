"""A controller without a network: its driver and its storage on a file system in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace_controller.cluster.core import ClusterCore
from headrace_controller.cluster.decision import ClusterSettings
from headrace_controller.cluster.requests import Heartbeat, RegisterBroker, Registered
from headrace_controller.driver import ControllerDriver
from headrace_controller.quorum_controller import QuorumController, QuorumSettings
from headrace_controller.storage import MetadataStorage
from headrace_core.metadata import BrokerEndpoint
from headrace_core.node.meta_properties import format_directories
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.cluster_world import CLUSTER, id16

ROOT = "/data"
LOG = f"{ROOT}/__cluster_metadata-0/00000000000000000000.log"
QUORUM_STATE = f"{ROOT}/__cluster_metadata-0/quorum-state"


def formatted() -> CrashingFileSystem:
    fs = CrashingFileSystem()
    format_directories([ROOT], cluster_id=CLUSTER, node_id=1, fs=fs)
    return fs


def open_storage(fs: CrashingFileSystem, clock: ManualClock | None = None) -> MetadataStorage:
    return MetadataStorage.open(fs, ROOT, clock=clock or ManualClock(), cluster_id=CLUSTER, node_id=1)


def new_driver(storage: MetadataStorage, clock: ManualClock | None = None, seed: int = 1) -> ControllerDriver:
    rng = random.Random(seed)
    controller = QuorumController(
        ClusterCore(ClusterSettings(), new_id=lambda: rng.randbytes(16)),
        storage,
        node_id=1,
        cluster_id=CLUSTER,
        clock=clock or ManualClock(),
        draw=rng.randrange,
        settings=QuorumSettings(),
        send=lambda messages: None,
    )
    return ControllerDriver(controller, storage)


@asynccontextmanager
async def running(
    fs: CrashingFileSystem, clock: ManualClock | None = None, seed: int = 1
) -> AsyncIterator[ControllerDriver]:
    """A controller that serves; it is stopped cleanly at the end, unless its disk has failed."""
    clock = clock or ManualClock()
    storage = open_storage(fs, clock)
    driver = new_driver(storage, clock, seed)
    driver.start()
    task = asyncio.create_task(driver.run())
    try:
        yield driver
    finally:
        driver.stop()
        await task
        storage.close()


async def live_broker(driver: ControllerDriver, number: int = 1, life: int = 0) -> Registered:
    answer = await driver.ask(
        RegisterBroker(
            cluster_id=CLUSTER,
            incarnation_id=id16(1_000 * number + life),
            directory_ids=(id16(number),),
            endpoints=(BrokerEndpoint("client", "h", number),),
        )
    )
    registered = answer.reply
    assert isinstance(registered, Registered)
    beat = Heartbeat(
        broker_id=registered.broker_id,
        broker_epoch=registered.broker_epoch,
        metadata_offset=answer.metadata_offset,
    )
    await driver.ask(beat)
    return registered
