"""The answer to DeleteRecords, when the leader resigns or the low watermark falls again."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from headrace_broker.handlers.offsets import _deleted_by_all
from headrace_broker.partition import PartitionLeader
from headrace_core.errors import NotLeaderOrFollowerError
from tests.worlds.this_process import is_error_freed


class ResigningLeader:
    def when_deleted(self, offset: int, done: Any) -> None:
        asyncio.get_running_loop().call_soon(done, NotLeaderOrFollowerError("moved"))

    def forget_deletion(self, done: Any) -> None:
        pass


class LeaderWithALaterFollower:
    """A follower that still has the deleted records joins right after the low watermark was reached."""

    low_watermark = 5

    def when_deleted(self, offset: int, done: Any) -> None:
        done(None)
        self.low_watermark = 3

    def forget_deletion(self, done: Any) -> None:
        pass


def test_the_answer_has_the_low_watermark_that_the_deletion_reached() -> None:
    """The simulator found the lower low watermark: brokers, seed 9488."""
    assert asyncio.run(_deleted_by_all(cast(PartitionLeader, LeaderWithALaterFollower()), 5, 30)) == 5


def test_no_failed_deletion_waits_for_the_garbage_collector() -> None:
    leader = cast(PartitionLeader, ResigningLeader())
    assert asyncio.run(is_error_freed(lambda: _deleted_by_all(leader, 5, 30)))
