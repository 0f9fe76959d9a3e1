"""The logs of the shards, at simulated brokers that follow the product's rules: appends are fenced by epoch and by log
end.

When a leader is replaced, the uncommitted batches after some point are lost. Committed batches are never lost. An
append may arrive late, even long after its coordinator has stopped waiting for it. The answer to an append may be lost.
The brokers' half (``broker_sim_world``) simulates how real leaders and followers keep the promise that committed
records stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_broker.partition.acceptance import accept
from headrace_broker.settings import LogSettings
from headrace_coordinator.runtime.claims import is_claim
from headrace_coordinator.transport.brokers import Leader
from headrace_coordinator.transport.shard_log import ShardLog, Take
from headrace_core.errors import (
    HeadraceError,
    LeaderNotAvailableError,
    NetworkError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
)
from headrace_core.item_errors import error_to_proto
from headrace_core.log import fencing
from headrace_core.log.appending import prepare
from headrace_core.metadata import EMPTY_IMAGE, MetadataDelta, MetadataImage
from headrace_core.records import decode_batch, iterate_headers
from headrace_core.testing.clock import EPOCH_MS
from headrace_core.types import TopicPartition
from headrace_protos.v1 import produce_pb2
from tests.simulation import wrong_clocks

if TYPE_CHECKING:
    from tests.simulation.group_hosts import CoordinatorHost

LOGS = "logs"
#: Maximum number of records that one read returns.
_READ_RECORDS = 40
_STUCK_MS = 1_500.0
#: Called when the leader of a shard's log has changed; the simulated metadata do not contain these leaders.
_NO_CHANGE = MetadataDelta(0, 0)


class LoggedRecord(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None
    timestamp_ms: int


class LoggedBatch(NamedTuple):
    base: int
    end: int
    epoch: int
    records: tuple[LoggedRecord, ...]


class Unanswered(NamedTuple):
    base: int
    end: int
    answer: Callable[[Any], None]


class LogPartition:
    """The log of one shard, at its current leader."""

    def __init__(self, world: Any, partition: TopicPartition) -> None:
        self.world = world
        self.partition = partition
        self.batches: list[LoggedBatch] = []
        self.end = 0
        self.committed = 0
        self.leader = 1
        #: The coordinator of each shard epoch.
        self.owners: dict[int, CoordinatorHost] = {}
        #: The settings that the product's brokers have for this log, and how far the clock of each broker is ahead.
        self._config = LogSettings(static={}, flush_interval_ms=1_000).of(EMPTY_IMAGE, 1, partition.topic)
        self._off_ms = {
            broker: wrong_clocks.off_ms(world.plan.seed, wrong_clocks.BROKERS, f"{partition} {broker}")
            for broker in (1, 2, 3)
        }
        self.has_leader = True
        #: Replication makes no progress until this time.
        self.stuck_until_ms = 0.0
        #: Former leaders that do not know that they are deposed: appends to them have no effect and get no answer.
        self.unaware: set[int] = set()
        self._waiting: list[Unanswered] = []

    # -- append ------------------------------------------------------------------------------------------------------

    def arrived(self, to: int, message: Any, answer: Callable[[Any], None]) -> None:
        """Handle an append at the broker ``to``."""
        if to in self.unaware:
            self.world.count("log", "append at a deposed leader")
            return
        if to != self.leader or not self.has_leader:
            answer(_refused(NotLeaderOrFollowerError(f"{self.partition} is led elsewhere")))
            return
        expected_end = message.expected_end if message.HasField("expected_end") else None
        fence = fencing.Fence(message.shard_epoch, expected_end)
        largest = next((batch.epoch for batch in reversed(self.batches)), fencing.NO_SHARD_EPOCH)
        now_ms = EPOCH_MS + int(self.world.scheduler.now_ms + self._off_ms[to])
        try:
            data, accepted = accept(message.records, self._config, self.partition, now_ms)
            fencing.check_stamps(accepted, fence, self.partition)
            fencing.check_fence(fence, largest, self.end, self.partition)
            write = prepare(data, accepted, self._config, base_offset=self.end, leader_epoch=1, now_ms=now_ms)
        except HeadraceError as error:
            self.world.count("refusal", error.code)
            answer(_refused(error))
            return
        base, records = self.end, b"".join(write.buffers)
        for position, header in iterate_headers(records):
            found = tuple(
                LoggedRecord(each.offset, each.key or b"", each.value, each.timestamp_ms)
                for each in decode_batch(records, position)
            )
            self.batches.append(LoggedBatch(self.end, self.end + header.record_count, header.base_sequence, found))
            self.end += header.record_count
        self._waiting.append(Unanswered(base, self.end, answer))
        self._replicate()

    def _replicate(self) -> None:
        world = self.world
        delay_ms = world.rng.uniform(*world.plan.replication_ms)
        at_ms = max(world.scheduler.now_ms + delay_ms, self.stuck_until_ms)
        world.in_order(("replication", self.partition.partition), at_ms - world.scheduler.now_ms,
                       lambda leader=self.leader, end=self.end: self._replicated(leader, end))  # fmt: skip

    def _replicated(self, leader: int, end: int) -> None:
        if leader != self.leader or not self.has_leader:
            return
        if self.world.scheduler.now_ms < self.stuck_until_ms:
            self._replicate()
            return
        end = min(end, self.end)
        if end > self.committed:
            before, self.committed = self.committed, end
            self.world.checks.committed(self, before)
        done = [each for each in self._waiting if each.end <= self.committed]
        self._waiting = [each for each in self._waiting if each.end > self.committed]
        for each in done:
            each.answer(produce_pb2.ProducePartitionResult(base_offset=each.base))

    # -- what happens to it ------------------------------------------------------------------------------------------

    def change_leader(self, kept: float, *, without_ms: float, answers: str, unaware_ms: float) -> int:
        """Let another broker become leader after a while. The new leader has a part of the uncommitted records. Returns
        how many records are lost."""
        world = self.world
        tail = [batch for batch in self.batches if batch.base >= self.committed]
        count = round(kept * len(tail))
        lost = tail[count:]
        for batch in lost:
            self.batches.remove(batch)
        gone, self.end = self.end - (lost[0].base if lost else self.end), lost[0].base if lost else self.end
        former, self.leader = self.leader, self.leader % 3 + 1
        self.has_leader = False
        if unaware_ms:
            self.unaware.add(former)
            world.scheduler.after(unaware_ms, self.unaware.discard, former)
        waiting, self._waiting = self._waiting, []
        if answers != "none":
            error: HeadraceError = NotLeaderOrFollowerError("deposed") if answers == "refused" else NetworkError("died")
            for each in waiting:
                each.answer(_refused(error))
        world.scheduler.after(without_ms, self._led, self.leader)
        world.logs_changed(self)
        return gone

    def _led(self, leader: int) -> None:
        if leader == self.leader and not self.has_leader:
            self.has_leader = True
            self.unaware.discard(leader)
            self.world.logs_changed(self)
            self._replicate()

    def compact(self) -> int:
        """Compact the committed part, except its last batches: only the last record of each key stays. Offsets stay."""
        cleanable = [batch for batch in self.batches if batch.end <= self.committed][:-2]
        if not cleanable:
            return 0
        last = {record.key: record.offset for batch in cleanable for record in batch.records}
        before = sum(len(batch.records) for batch in cleanable)
        cleaned = [
            batch._replace(records=tuple(each for each in batch.records if last[each.key] == each.offset))
            for batch in cleanable
        ]
        self.batches[: len(cleanable)] = [batch for batch in cleaned if batch.records]
        return before - sum(len(batch.records) for batch in cleaned)

    def has_only_claims_from(self, offset: int) -> bool:
        """Whether only claims follow this offset. A coordinator learns of a late or repeated claim at its next
        write."""
        return all(is_claim(each.key) for batch in self.batches if batch.end > offset for each in batch.records)

    def read(self, position: int) -> tuple[list[LoggedRecord], int]:
        """The next committed records, and the position after these records."""
        found: list[LoggedRecord] = []
        for batch in self.batches:
            if batch.end <= position:
                continue
            if batch.end > self.committed:
                break
            found += [each for each in batch.records if each.offset >= position]
            position = batch.end
            if len(found) >= _READ_RECORDS:
                return found, position
        return found, self.committed


def _refused(error: HeadraceError) -> Any:
    return produce_pb2.ProducePartitionResult(error=error_to_proto(error))


# -- the coordinator's side --------------------------------------------------------------------------------------------


class SimLink:
    """Stands for ProduceLink: sends a request for each append, until the append is answered or times out."""

    def __init__(self, host: CoordinatorHost, broker: int) -> None:
        self._host = host
        self._broker = broker

    async def append(self, message: Any, timeout_s: float) -> Any:
        host = self._host
        assert host.loop is not None
        answer: asyncio.Future[Any] = host.loop.create_future()
        host.world.send_append(host, self._broker, message, answer)
        try:
            async with asyncio.timeout(timeout_s + 0.1):
                return await answer
        except TimeoutError:
            raise RequestTimedOutError("an append was not answered") from None


class SimBrokers:
    """The part of Brokers that ``ShardLog`` needs: the leaders, as this host knows them."""

    def __init__(self, host: CoordinatorHost) -> None:
        self._host = host
        self._watchers: dict[int, Callable[[Any, Any], None]] = {}
        self._count = 0
        self.metadata = self

    def watch(self, changed: Callable[[Any, Any], None]) -> Callable[[], None]:
        self._count += 1
        number = self._count
        self._watchers[number] = changed

        def unwatch() -> None:
            self._watchers.pop(number, None)

        return unwatch

    def news(self, image: MetadataImage | None = None, delta: MetadataDelta = _NO_CHANGE) -> None:
        for changed in list(self._watchers.values()):
            changed(image, delta)

    def leader_of(self, partition: TopicPartition) -> Leader:
        leader = self._host.leaders.get(partition.partition, 1)
        if leader is None:
            raise LeaderNotAvailableError(f"{partition} has no leader that is known")
        return Leader(leader, leader, str(leader), str(leader))

    def produce_link(self, address: str) -> SimLink:
        return SimLink(self._host, int(address))


class SimShardLog(ShardLog):
    """The product's appends; reads do not use a stream."""

    def __init__(self, host: CoordinatorHost, *arguments: Any, **given: Any) -> None:
        super().__init__(*arguments, **given)
        self._host = host

    async def read(self, end: int, take: Take) -> None:
        host, world = self._host, self._host.world
        log = world.logs[self.partition.partition]
        position, moved_ms = 0, world.scheduler.now_ms
        while position < end:
            delay_ms = world.message_delay_ms((host.name, LOGS))
            await asyncio.sleep((delay_ms if delay_ms is not None else 60.0) / 1_000)
            if delay_ms is None:
                raise NetworkError(f"{self.partition} cannot be reached")
            leader = self._brokers.leader_of(self.partition)
            if leader.broker_id != log.leader or not log.has_leader:
                raise NotLeaderOrFollowerError(f"{self.partition} is led elsewhere")
            found, next_position = log.read(position)
            if next_position > position:
                moved_ms = world.scheduler.now_ms
            elif world.scheduler.now_ms - moved_ms > _STUCK_MS:
                raise RequestTimedOutError(f"{self.partition}: replayed up to {position} of {end}, and nothing more")
            take([(each.key, each.value, each.timestamp_ms) for each in found if each.offset < end])
            position = next_position
