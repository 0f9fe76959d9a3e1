"""DeleteRecords fails because the leader resigns."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from headrace_broker.handlers.offsets import _deleted_by_all
from headrace_broker.partition import PartitionLeader
from headrace_core.errors import NotLeaderOrFollowerError
from tests.worlds.garbage import is_error_freed


class ResigningLeader:
    def when_deleted(self, offset: int, done: Any) -> None:
        asyncio.get_running_loop().call_soon(done, NotLeaderOrFollowerError("moved"))

    def forget_deletion(self, done: Any) -> None:
        pass


def test_no_failed_deletion_waits_for_the_garbage_collector() -> None:
    leader = cast(PartitionLeader, ResigningLeader())
    assert asyncio.run(is_error_freed(lambda: _deleted_by_all(leader, 5, 30)))
