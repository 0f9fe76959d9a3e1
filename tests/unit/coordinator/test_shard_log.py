"""A coordinator's commits while the disk of a shard's leader is full: they go on at the next leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace_coordinator.state_machine import ShardRecord
from headrace_coordinator.transport.brokers import Leader
from headrace_coordinator.transport.shard_log import ShardLog
from headrace_core.clock import SystemClock
from headrace_core.errors import DiskFullError
from headrace_core.records import Compression
from headrace_core.types import TopicPartition
from headrace_protos.v1 import produce_pb2

SHARD = TopicPartition("__consumer_offsets", 3)
COMMIT = [[ShardRecord(b"group", b"offset")]]


class Brokers:
    """Broker 1 leads the shard, and its disk is full; broker 2 takes appends. ``elected``: 2 leads from now on."""

    def __init__(self) -> None:
        self.leader = 1
        self.asked: list[int] = []
        self.expected_ends: set[int] = set()
        self.after_refusal: Callable[[], None] = lambda: None
        self.metadata: Any = self
        self._watchers: list[Callable[[Any, Any], None]] = []

    def elected(self) -> None:
        self.leader = 2
        for watcher in list(self._watchers):
            watcher(None, None)

    def watch(self, watcher: Callable[[Any, Any], None]) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def leader_of(self, partition: TopicPartition) -> Leader:
        assert partition == SHARD
        return Leader(self.leader, 0, f"internal-{self.leader}", f"client-{self.leader}")

    def produce_link(self, address: str) -> Any:
        self.asked.append(int(address.removeprefix("internal-")))
        return self

    async def append(self, message: Any, timeout_s: float) -> Any:
        self.expected_ends.add(message.expected_end)
        result = produce_pb2.ProducePartitionResult(base_offset=7)
        if self.leader == 1:
            result.error.code = DiskFullError.number
            asyncio.get_running_loop().call_soon(self.after_refusal)
        return result


async def append(brokers: Brokers, timeout_s: float) -> int:
    log = ShardLog(
        brokers,  # type: ignore[arg-type]
        SHARD,
        b"t" * 16,
        5,
        clock=SystemClock(),
        append_timeout_s=timeout_s,
        load_bytes=1,
        compression=Compression.NONE,
    )
    return await log.append(COMMIT, 7)


def test_commit_goes_to_the_new_leader_as_soon_as_one_is_elected() -> None:
    brokers = Brokers()
    brokers.after_refusal = lambda: brokers.elected() if len(brokers.asked) == 2 else None
    assert asyncio.run(append(brokers, 60.0)) == 7
    assert brokers.asked == [1, 1, 2]
    assert brokers.expected_ends == {7}, "an append that took effect unseen is not repeated"
    assert not brokers._watchers


def test_commit_fails_with_the_full_disk_when_no_other_broker_leads_in_time() -> None:
    brokers = Brokers()
    with pytest.raises(DiskFullError, match="internal-1"):
        asyncio.run(asyncio.wait_for(append(brokers, 0.1), 30))
    assert set(brokers.asked) == {1}
