"""A following broker whose disk is full or fails.

The test plays the leader (followers_world.py).
"""

from __future__ import annotations

import errno

import pytest

from headrace_core import errors
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.replication_world import ORDERS, FollowersWorld, batches, log_of
from tests.worlds.waiting import in_loop


@in_loop
async def test_a_full_disk_stops_the_acknowledgements_and_goes_on_by_itself_when_there_is_room() -> None:
    fs = CrashingFileSystem()
    async with FollowersWorld(fs) as (broker, leader):
        await leader.welcome()
        leader.push(batches(0, b"a"))
        await leader.acknowledged(1)
        fs.fail("write", error=errno.ENOSPC, path_ends=".log")
        leader.push(batches(1, b"b"))
        leader.push(batches(2, b"c"))  # in flight after the refused push: must not be written after the gap
        await leader.until(lambda: leader.left)
        assert leader.said_cannot_append == leader.left == 1, "the leader hears it at once, and once"
        assert leader.acks[-1].log_end == 1
        # While space is short, the follower joins to learn the log start, asks for one batch, and accepts none.
        # If a follower accepted batches near the threshold of free space, its disk would change the in-sync set
        # again and again.
        join = await leader.welcome()
        assert (join.log_end, join.window_bytes) == (1, 1)
        leader.push(batches(1, b"b"))
        assert leader.said_cannot_append == 2
        for writer in broker.storage.writers():  # as the broker's regular check does
            assert writer.space is not None
            assert writer.space.is_short
            writer.space.measure()
        join = await leader.welcome()
        assert (join.log_end, join.window_bytes > 1) == (1, True)
        leader.push(batches(1, b"b"))
        await leader.acknowledged(2)
        assert log_of(broker) == batches(0, b"a") + batches(1, b"b")
        assert not [event for event in broker.events if type(event).__name__ == "LogDirectoryFailed"]


@in_loop
async def test_a_follower_asks_for_a_whole_window_when_there_is_room_before_the_batch_that_it_asked_for_comes() -> None:
    """If the follower kept the one-batch window of its join, it would have only one batch in flight for ever."""
    fs = CrashingFileSystem()
    async with FollowersWorld(fs) as (broker, leader):
        await leader.welcome()
        fs.fail("write", error=errno.ENOSPC, path_ends=".log")
        leader.push(batches(0, b"a"))
        await leader.until(lambda: leader.left)
        join = await leader.welcome()
        assert join.window_bytes == 1
        for writer in broker.storage.writers():
            assert writer.space is not None
            writer.space.measure()
        leader.push(batches(0, b"a"))
        join = await leader.welcome()
        assert join.window_bytes > 1
        assert leader.said_cannot_append == 1
        leader.push(batches(0, b"a"))
        leader.push(batches(1, b"b"))
        await leader.acknowledged(2)


@in_loop
async def test_a_directory_that_fails_takes_its_followers_with_it() -> None:
    fs = CrashingFileSystem()
    async with FollowersWorld(fs) as (broker, leader):
        await leader.welcome()
        fs.fail("sync", error=errno.EIO, path_ends=".log")
        leader.push(batches(0, b"a"))
        await leader.until(lambda: leader.replica is None)
        assert not [ack for ack in leader.acks if ack.log_end]
        with pytest.raises(errors.StorageError):
            broker.partitions.leader(ORDERS)
