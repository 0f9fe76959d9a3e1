"""Add group offsets to transactions: pass requests between the group's shard and the transaction's coordinator.

    commit(request) ---> the shard of the group ---> a Verification
                                                          |
                          the transaction's coordinator <-'--- confirmed ---> the shard of the group ---> the reply
                                 `--- refused ---> VerificationFailed

Every request with offsets is verified at the transaction's coordinator. A request that arrives after its transaction
was decided is therefore refused, even before the marker arrives.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from headrace_core.errors import ServerBusyError
from headrace_core.membership.transaction_partitions import TransactionalProducer
from headrace_core.types import TopicPartition

from ..offsets.messages import CommitTransactionOffsets, OffsetsCommitted, VerificationFailed
from ..offsets.pending import Verification
from .runner import ShardRunner, resolve
from .shards import Shards

#: Maximum number and total bytes of the requests of this coordinator that wait for the coordinators of their
#: transactions. A single request may exceed the limit of bytes.
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 16 * 1024 * 1024
#: Limits for the waiting requests of one producer, so that one producer cannot block all other producers.
WAITING_OF_PRODUCER_MAX = 100
WAITING_BYTES_OF_PRODUCER_MAX = 4 * 1024 * 1024

#: Adds the partitions to the producer's transaction; returns the epoch of the transaction's shard.
Verify = Callable[[TransactionalProducer, Iterable[TopicPartition]], Awaitable[int]]


class TransactionOffsets:
    """See the module. Call all methods in one event loop."""

    def __init__(self, shards: Callable[[], Shards], verify: Verify) -> None:
        """``shards`` returns this coordinator's shards, or raises a HeadraceError."""
        self._shards = shards
        self._verify = verify
        self._waiting = 0
        self._waiting_bytes = 0
        #: Number and total bytes of the waiting requests, by producer id.
        self._of_producer: Counter[int] = Counter()
        self._bytes_of_producer: Counter[int] = Counter()

    async def commit(self, request: CommitTransactionOffsets, version: int, size: int) -> OffsetsCommitted:
        """Add the offsets of the request to its transaction. ``version``: the client's transaction version. ``size``:
        bytes of the request. Raises the errors of ``Shards.of_group``, of the shard and of ``verify``, and
        ServerBusyError."""
        self._check_room(request.producer_id, size)
        self._enter(request.producer_id, 1, size)
        try:
            return await self._commit(request, version)
        finally:
            self._enter(request.producer_id, -1, -size)

    def _check_room(self, producer_id: int, size: int) -> None:
        count, count_bytes = self._of_producer[producer_id], self._bytes_of_producer[producer_id]
        if count and (count >= WAITING_OF_PRODUCER_MAX or count_bytes + size > WAITING_BYTES_OF_PRODUCER_MAX):
            raise ServerBusyError(
                f"producer {producer_id} has too many requests ({count}, with {count_bytes} bytes) that wait for the "
                "coordinator of its transaction: retry"
            )
        if self._waiting and (self._waiting >= WAITING_MAX or self._waiting_bytes + size > WAITING_BYTES_MAX):
            raise ServerBusyError(
                f"too many requests wait for their transactions' coordinators ({self._waiting}, with "
                f"{self._waiting_bytes} bytes): retry"
            )

    def _enter(self, producer_id: int, count: int, size: int) -> None:
        """Count requests that begin to wait (positive numbers) or stop waiting (negative numbers)."""
        self._waiting += count
        self._waiting_bytes += size
        self._of_producer[producer_id] += count
        self._bytes_of_producer[producer_id] += size
        if not self._of_producer[producer_id]:
            del self._of_producer[producer_id], self._bytes_of_producer[producer_id]

    async def _commit(self, request: CommitTransactionOffsets, version: int) -> OffsetsCommitted:
        group_id = request.commit.group_id
        shard = self._shards().shard_of_group(group_id)
        runner = self._shards().of_group(group_id)
        producer = TransactionalProducer(request.transactional_id, request.producer_id, request.epoch, version)
        verification = await _begun(runner, request)
        try:
            coordinator_epoch = await self._verify(producer, [shard])
            confirmed = request._replace(verification=verification, coordinator_epoch=coordinator_epoch)
            # Look the runner up again: the shard may have moved to another epoch of this coordinator.
            committed: OffsetsCommitted = await self._shards().of_group(group_id).ask(confirmed)
        finally:
            # A failed verification has no effect if the request was already confirmed.
            runner.put(VerificationFailed(verification))
        return committed


async def _begun(runner: ShardRunner, request: CommitTransactionOffsets) -> Verification:
    """Begin the verification of a request. If the caller is cancelled meanwhile, the verification ends at once:
    without a caller, only a marker of the producer would end it, and no marker may come."""
    begun: asyncio.Future[Verification] = asyncio.get_running_loop().create_future()
    runner.put(request, partial(_resolve, runner, begun))
    try:
        return await begun
    except asyncio.CancelledError:
        if (
            begun.done() and not begun.cancelled() and begun.exception() is None
        ):  # the reply came in the same turn of the event loop
            runner.put(VerificationFailed(begun.result()))
        raise
    finally:
        # Drop the reply: the traceback of the reply's error would keep this frame, in a reference cycle.
        del begun


def _resolve(runner: ShardRunner, begun: asyncio.Future[Verification], outcome: object) -> None:
    if begun.cancelled() and isinstance(outcome, Verification):
        runner.put(VerificationFailed(outcome))
    resolve(begun, outcome)
