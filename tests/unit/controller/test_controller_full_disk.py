"""The controller's own disk fills up. The controller refuses requests that create objects while the reserve is used,
and all changes when the reserve is empty. The controller fences no broker because of a full disk, and loses no
acknowledged change. The controller recovers automatically."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_controller.cluster.requests import (
    AlterConfigs,
    AlterResource,
    ConfigOp,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Heartbeat,
    MorePartitions,
    NewTopic,
    OpKind,
    Registered,
)
from headrace_controller.driver import ControllerDriver
from headrace_core.clock import SystemClock
from headrace_core.errors import DiskFullError
from headrace_core.metadata import ConfigResourceType
from headrace_core.testing.clock import ManualClock
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.controllers_world import ROOT, formatted, live_broker, new_driver, open_storage, running

DISK_BYTES = 20_000_000
FILLER = f"{ROOT}/somebody-elses-file"


def fill(fs: CrashingFileSystem, leave_bytes: int) -> None:
    """Another file takes the whole disk, except for this number of bytes."""
    size = fs.free_bytes(ROOT) - leave_bytes
    file = fs.open(FILLER, write=True, create=True)
    file.pwritev([bytes(size)], 0)
    file.close()


async def create(driver: ControllerDriver, name: str) -> None:
    (result,) = (await driver.ask(CreateTopics((NewTopic(name=name),)))).reply
    if result.error is not None:
        raise result.error


async def beat(driver: ControllerDriver, broker: Registered) -> Any:
    offset = driver.image.next_offset
    request = Heartbeat(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, metadata_offset=offset)
    return (await driver.ask(request)).reply


def names_after_a_restart(fs: CrashingFileSystem) -> list[str]:
    storage = open_storage(fs)
    driver = new_driver(storage)
    driver.start()
    storage.close(clean=False)
    return sorted(driver.image.topic_ids)


GROWTH = [
    CreateTopics((NewTopic(name="more"),)),
    CreatePartitions((MorePartitions(topic="before", total=2),)),
    AlterConfigs((AlterResource((ConfigResourceType.TOPIC, "before"), (ConfigOp(OpKind.SET, "retention.ms", "5"),)),)),
]


def test_growth_is_refused_within_the_reserve_and_the_cluster_lives_on() -> None:
    fs, clock = formatted(), ManualClock()
    fs.mount(ROOT, DISK_BYTES)

    async def work() -> None:
        async with running(fs, clock) as driver:
            broker = await live_broker(driver)
            for name in ("before", "doomed"):
                await create(driver, name)
            fill(fs, leave_bytes=100_000)  # below the reserve of 5 %
            term = driver.term
            for seconds in range(30):  # far longer than a broker's session
                clock.advance(1_000)
                assert not (await beat(driver, broker)).fenced
                if seconds % 10 == 0:
                    for request in GROWTH:
                        with pytest.raises(DiskFullError, match=r"log\.dir\.reserve\.bytes"):
                            await driver.ask(request)
            await driver.ask(CreateTopics((NewTopic(name="only checked"),), validate_only=True))
            (deleted,) = (await driver.ask(DeleteTopics(("doomed",)))).reply
            assert deleted.error is None, "what makes room is taken"
            second = await live_broker(driver, 2)
            assert not (await beat(driver, second)).fenced
            assert driver.term == term, "nobody had to resign"
            fs.unlink(FILLER)
            clock.advance(1_000)
            for request in GROWTH:
                (result,) = (await driver.ask(request)).reply
                assert result.error is None

    asyncio.run(work())
    assert names_after_a_restart(fs) == ["before", "more"]


def test_a_disk_without_any_room_refuses_everything_fences_nobody_and_heals() -> None:
    fs, clock = formatted(), ManualClock()
    fs.mount(ROOT, DISK_BYTES)

    async def work() -> None:
        async with running(fs, clock) as driver:
            broker = await live_broker(driver)
            await create(driver, "before")
            fill(fs, leave_bytes=0)
            fs_full_for_s = 30
            refused = 0
            for number in range(fs_full_for_s):
                clock.advance(1_000)
                for request in (DeleteTopics(("before",)), CreateTopics((NewTopic(name=f"t{number}"),))):
                    with pytest.raises(DiskFullError) as failure:
                        await driver.ask(request)
                    assert failure.value.retriable
                    refused += 1
                assert sorted(driver.image.topic_ids) == ["before"]
                assert not driver.image.brokers[broker.broker_id].fenced
                with pytest.raises(DiskFullError):
                    await beat(driver, broker)
                assert driver.read(0)[1] == driver.image.next_offset, "what is committed is served"
            assert refused == 2 * fs_full_for_s
            fs.unlink(FILLER)
            clock.advance(1_000)
            assert not (await beat(driver, broker)).fenced
            await create(driver, "after")
            assert not driver.image.brokers[broker.broker_id].fenced

    asyncio.run(work())
    assert names_after_a_restart(fs) == ["after", "before"]


def test_a_controller_starts_on_a_full_disk_serves_what_it_has_and_leads_when_there_is_room() -> None:
    fs, clock = formatted(), ManualClock()
    fs.mount(ROOT, DISK_BYTES)

    async def before() -> None:
        async with running(fs, clock) as driver:
            await live_broker(driver)
            await create(driver, "before")

    async def on_the_full_disk() -> None:
        storage = open_storage(fs, clock)
        driver = new_driver(storage, clock)
        driver.start()
        task = asyncio.create_task(driver.run())
        try:
            assert driver.leader_id == -1
            assert sorted(driver.image.topic_ids) == ["before"]
            for _ in range(3):
                with pytest.raises(DiskFullError):
                    await create(driver, "after")
            fs.unlink(FILLER)
            clock.advance(1_000)
            await create(driver, "after")
            assert driver.leader_id == 1
            assert not driver.image.brokers[1].fenced
        finally:
            driver.stop()
            await task
            storage.close()

    asyncio.run(before())
    fill(fs, leave_bytes=0)
    asyncio.run(on_the_full_disk())
    assert names_after_a_restart(fs) == ["after", "before"]


def test_a_full_disk_is_tried_again_by_the_clock_and_not_without_pause() -> None:
    fs, clock = formatted(), SystemClock()
    fs.mount(ROOT, DISK_BYTES)

    async def work() -> None:
        storage = open_storage(fs)
        driver = new_driver(storage, clock)  # type: ignore[arg-type]
        driver.start()
        task = asyncio.create_task(driver.run())
        await live_broker(driver)
        fill(fs, leave_bytes=0)
        for _ in range(2):
            with pytest.raises(DiskFullError):
                await create(driver, "t")
        tries = fs.operations
        for _ in range(200):  # turns of the loop, in each of which a driver without a pause would try
            await asyncio.sleep(0)
        assert fs.operations - tries < 20, "the disk is asked again and again"
        fs.unlink(FILLER)
        async with asyncio.timeout(60):
            while driver.leader_id < 0:  # noqa: ASYNC110  (no request comes: the tick alone finds the room)
                await asyncio.sleep(0.01)
        driver.stop()
        await task
        storage.close()

    asyncio.run(work())
