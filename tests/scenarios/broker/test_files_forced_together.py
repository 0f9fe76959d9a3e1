"""Several partitions in one turn: their files are forced concurrently, and no producer is answered before all files are
forced."""

from __future__ import annotations

import asyncio
import errno

from headrace_core import errors
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.solo_broker import SoloBroker, StallingFileSystem, batch, produce
from tests.worlds.waiting import in_loop


@in_loop
async def test_no_partition_of_a_turn_is_acknowledged_before_every_file_is_forced():
    fs = StallingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders", 6)
        producer, answers = broker.producer()
        fs.stall()
        try:
            for partition in range(6):  # large enough for the directory's thread: the loop stays free to look
                producer.on_request(produce(partition, "orders", batch(b"x" * 50_000), partition))
            assert await asyncio.to_thread(fs.stalling.wait, 20)
            for _ in range(50):
                await asyncio.sleep(0)
            assert answers.sent == []
        finally:
            fs.release()
        await answers.wait_sent(6)
        assert {answer.results[0].error.code for answer in answers.sent} == {0}
        assert all(broker.values("orders", partition) for partition in range(6))


@in_loop
async def test_one_file_that_cannot_be_forced_fails_the_whole_directory():
    fs = CrashingFileSystem()
    async with SoloBroker(fs) as broker:
        await broker.topic("orders", 6)
        producer, answers = broker.producer()
        fs.fail("sync", errno.EIO, path_contains="/orders-4/", times=100)
        for partition in range(6):
            producer.on_request(produce(partition, "orders", batch(b"a"), partition))
        await answers.wait_sent(6)
        assert {answer.results[0].error.code for answer in answers.sent} == {errors.StorageError.number}
        for partition in range(6):
            refused = await broker.append("orders", batch(b"b"), partition)
            assert refused.error.code == errors.StorageError.number
