"""Verification of transactional appends at the transactions' coordinators (KIP-890).

A leader calls the transaction's coordinator before it appends a producer's first batch of the transaction
(headrace_core.membership.transaction_partitions). Under transaction version 2 the leader adds the partition to the
transaction; under version 1 it verifies that the producer has added the partition. The verifier collects the partitions
of a producer epoch during one iteration of the event loop, and sends them in one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace_core.clock import Clock
from headrace_core.errors import HeadraceError, ServerShuttingDownError
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.membership.transaction_partitions import TransactionalProducer, TransactionPartitions
from headrace_core.rpc.limits import PARTITIONS_MAX
from headrace_core.types import TopicPartition

from .leader_replica import ProducerTransaction
from .partition.verification import WaitingRoom

OnVerified = Callable[[HeadraceError | None], None]


class Verifier:
    """Asks the coordinators whether partitions belong to open transactions; see the module's docstring. Call all
    methods in the event loop."""

    def __init__(self, metadata: MetadataState, clock: Clock) -> None:
        self._partitions = TransactionPartitions(metadata, clock)
        self._room = WaitingRoom()
        #: Verifications to send in the next iteration of the event loop.
        self._unsent: dict[TransactionalProducer, list[tuple[TopicPartition, OnVerified]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def transaction(self, transactional_id: str, producer_id: int, epoch: int, version: int) -> ProducerTransaction:
        """The transaction of an append, for ``LeaderReplica.append``."""
        return ProducerTransaction(transactional_id, producer_id, epoch, version, self.verify, self._room)

    def verify(self, transaction: ProducerTransaction, partition: TopicPartition, done: OnVerified) -> None:
        """Ask the transaction's coordinator. Calls ``done`` later, exactly once: with None when the partition belongs
        to the open transaction, else with the error for the producer."""
        producer = TransactionalProducer(*transaction[:4])
        waiting = self._unsent.get(producer)
        if waiting is None or len(waiting) == PARTITIONS_MAX:
            waiting = self._unsent[producer] = []
            task = asyncio.create_task(self._verify(producer, waiting), name="verification")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append((partition, done))

    async def close(self) -> None:
        """Fail all pending verifications, because the broker is shutting down. Idempotent."""
        await self._partitions.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _verify(self, producer: TransactionalProducer, waiting: list[tuple[TopicPartition, OnVerified]]) -> None:
        if self._unsent.get(producer) is waiting:
            del self._unsent[producer]
        error: HeadraceError | None = ServerShuttingDownError("the broker is shutting down; refresh the metadata")
        try:
            await self._partitions.verify(producer, [partition for partition, _ in waiting])
            error = None
        except HeadraceError as failure:
            error = failure
        finally:
            for _, done in waiting:
                done(error)
