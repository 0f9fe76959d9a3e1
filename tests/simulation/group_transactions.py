"""Transactional producers that commit offsets of one group, which they only name (as clients before KIP-447 do).

Two producers have open transactions at the same time, with offsets of the same partitions. The shard's part is the
product's: ``runtime/transaction_offsets.py`` and the pending offsets. The coordinator of the transactions is simulated:
it confirms offsets of an open transaction, decides, and repeats its marker until the shard's owner has answered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_coordinator.offsets.messages import CommitOffsets, CommitTransactionOffsets, EndOffsets, OffsetToCommit
from headrace_coordinator.runtime.transaction_offsets import TransactionOffsets
from headrace_core.errors import HeadraceError, InvalidTxnStateError
from headrace_core.membership.transaction_partitions import TransactionalProducer
from headrace_core.types import TopicPartition
from tests.simulation.group_members import Attempt, Caller

if TYPE_CHECKING:
    from tests.simulation.group_sim_world import GroupWorld

GROUP, PRODUCERS = "transactions", 2
COORDINATOR_EPOCH = 1


class Marker(NamedTuple):
    group_id: str
    end: EndOffsets


class Transactor(Caller):
    """A producer, and the coordinator of its transactions."""

    def __init__(self, world: GroupWorld, number: int) -> None:
        super().__init__(world, f"transactor {number}", GROUP)
        self.producer_id = 100 + number
        self.epoch = 0
        self.is_open = False
        self.rng = random.Random(f"{world.plan.seed} {self.name}")
        #: The outcome of each ended transaction, by its epoch.
        self.outcomes: dict[int, bool] = {}
        self._requests = 0

    def confirms(self, producer: TransactionalProducer) -> bool:
        return self.is_open and producer.epoch == self.epoch

    def begin(self) -> None:
        self.world.scheduler.after(self.rng.uniform(10.0, 150.0), self._next)

    def _next(self) -> None:
        if not self.world.may_commit or self.world.image.topic(self.world.topic_names[0]) is None:
            self.begin()
            return
        self.is_open = True
        self._requests = 0
        self._send(self.rng.randrange(1, 4))

    def _send(self, more: int) -> None:
        """Add offsets ``more`` times, then end the transaction. After an error the producer aborts."""
        if not more:
            self.world.scheduler.after(self.rng.uniform(0.0, 120.0), self._end, self.rng.random() < 0.7)
            return
        world, topic = self.world, self.world.image.topic(self.world.topic_names[0])
        if topic is None:
            self._end(commits=False)
            return
        self._requests += 1
        partition = self.rng.randrange(min(len(topic.partitions), 2))
        offset = next(world.numbers)
        attempt = Attempt(GROUP, topic.name, partition, offset, "", self.epoch, False)
        tag = world.checks.attempted(attempt)
        world.checks.in_transaction(tag, self, self.epoch)
        offsets = (OffsetToCommit(topic.name, partition, offset, metadata=tag, topic_id=topic.topic_id),)
        request = CommitTransactionOffsets(
            CommitOffsets(GROUP, offsets), self.name, self.producer_id, self.epoch, self._requests
        )

        def check(answer: Any) -> None:
            if answer.results[0].error is not None:
                raise answer.results[0].error

        def answered(outcome: Any) -> None:
            if isinstance(outcome, HeadraceError):
                self._end(commits=False)
            else:
                world.scheduler.after(self.rng.uniform(5.0, 60.0), self._send, more - 1)

        self.call("offsets", lambda: request, answered, check)
        if self.rng.random() < 0.3:
            world.scheduler.after(self.rng.uniform(1.0, 120.0), self._arrives_again, request)

    def _arrives_again(self, request: CommitTransactionOffsets) -> None:
        found = self.look_up()
        if found is not None and self.is_open and request.epoch == self.epoch:
            self.world.count("transaction", "request delivered twice")
            self.world.call(self, found, "offsets", request, lambda _: None)

    def _end(self, commits: bool) -> None:
        self.is_open = False
        self.outcomes[self.epoch] = commits
        marker = Marker(GROUP, EndOffsets(self.producer_id, self.epoch + 1, commits, 2, COORDINATOR_EPOCH))
        self.world.count("transaction", "committed" if commits else "aborted")

        def answered(outcome: Any) -> None:
            if isinstance(outcome, HeadraceError):
                self.world.scheduler.after(self.rng.uniform(20.0, 100.0), send)
                return
            self.epoch += 1
            self.begin()

        def send() -> None:
            self.call("marker", lambda: marker, answered)

        send()


class TransactionCalls:
    """The calls that a coordinator process answers, beside those of the Groups service."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._offsets = TransactionOffsets(process.current_shards, self._verify)

    async def _verify(self, producer: TransactionalProducer, partitions: Iterable[TopicPartition]) -> int:
        world: GroupWorld = self._process.world
        await asyncio.sleep(world.rng.uniform(0.5, 40.0) / 1_000)
        if not any(each.producer_id == producer.producer_id and each.confirms(producer) for each in world.transactors):
            raise InvalidTxnStateError(f"{producer} has no open transaction")
        return COORDINATOR_EPOCH

    async def offsets(self, request: CommitTransactionOffsets) -> Any:
        return await self._offsets.commit(request, 2, 100)

    async def marker(self, marker: Marker) -> Any:
        return await self._process.current_shards().of_group(marker.group_id).ask(marker.end, is_fenced=True)
