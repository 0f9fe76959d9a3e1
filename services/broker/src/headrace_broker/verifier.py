"""Verification of transactional appends at the transactions' coordinators (KIP-890).

Before a leader appends a producer's first batch of a transaction to a partition, it adds the partition to the
transaction at the coordinator of the transactional id (version 2), or verifies that the producer has added it
(version 1). The coordinator is the owner of the transactional id's shard, by this broker's metadata.

All partitions of a producer epoch that need a verification in the same pass of the event loop share a request. A
request is repeated while its failure is retriable, for at most VERIFICATION_S: the shard may be moving, or a marker of
the producer's former transaction may be missing. A repeated request changes nothing at the coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from headrace_core.clock import Clock
from headrace_core.errors import (
    CoordinatorNotAvailableError,
    HeadraceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    NetworkError,
    NotEnoughReplicasError,
    ProducerFencedError,
    RequestTimedOutError,
    ServerShuttingDownError,
    TransactionAbortableError,
)
from headrace_core.log.transactions import EPOCH_RAISING_VERSION
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata.shards import TRANSACTIONS_TOPIC, owner_of
from headrace_core.node.listeners import INTERNAL
from headrace_core.rpc import ChannelPurpose
from headrace_core.rpc.limits import PARTITIONS_MAX
from headrace_core.rpc.outage import Backoff
from headrace_core.rpc.request_link import RequestLink
from headrace_core.rpc.status import raise_proto_error
from headrace_core.types import TopicPartition, join_address
from headrace_protos.v1 import groups_pb2, transactions_pb2, transactions_pb2_grpc

from .leader_replica import ProducerTransaction
from .partition.verification import WaitingRoom

#: Longest time in seconds that an append waits for its verification.
VERIFICATION_S = 10.0
#: If a coordinator has not answered after this number of seconds, the broker repeats the request. The repeated request
#: goes to the shard's current coordinator.
ANSWER_S = 2.0

OnVerified = Callable[[HeadraceError | None], None]
Link = RequestLink[transactions_pb2.AddPartitionsRequest, transactions_pb2.AddPartitionsResponse]


class _Producer(NamedTuple):
    """The transactional producer of a request, with its transaction version."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int


class Verifier:
    """Asks the coordinators whether partitions belong to open transactions; see the module's docstring. Call all
    methods in the event loop."""

    def __init__(self, metadata: MetadataState, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._room = WaitingRoom()
        #: Verifications that the next pass of the event loop sends.
        self._unsent: dict[_Producer, list[tuple[TopicPartition, OnVerified]]] = {}
        self._links: dict[str, Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def transaction(self, transactional_id: str, producer_id: int, epoch: int, version: int) -> ProducerTransaction:
        """The transaction of an append, for ``LeaderReplica.append``."""
        return ProducerTransaction(transactional_id, producer_id, epoch, version, self.verify, self._room)

    def verify(self, transaction: ProducerTransaction, partition: TopicPartition, done: OnVerified) -> None:
        """Ask the transaction's coordinator. Calls ``done`` later, exactly once: with None when the partition belongs
        to the open transaction, else with the error for the producer."""
        producer = _Producer(*transaction[:4])
        waiting = self._unsent.get(producer)
        if waiting is None or len(waiting) == PARTITIONS_MAX:
            waiting = self._unsent[producer] = []
            task = asyncio.create_task(self._verify(producer, waiting), name="verification")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        waiting.append((partition, done))

    async def close(self) -> None:
        """Fail all pending verifications, because the broker is shutting down. Idempotent."""
        self._is_closed = True
        links, self._links = list(self._links.values()), {}
        await asyncio.gather(*(link.close() for link in links))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _verify(self, producer: _Producer, waiting: list[tuple[TopicPartition, OnVerified]]) -> None:
        if self._unsent.get(producer) is waiting:
            del self._unsent[producer]
        error: HeadraceError | None = ServerShuttingDownError("the broker is shutting down; refresh the metadata")
        try:
            await self._until_answered(producer, [partition for partition, _ in waiting])
            error = None
        except HeadraceError as failure:
            error = _for_producer(failure, producer)
        finally:
            for _, done in waiting:
                done(error)

    async def _until_answered(self, producer: _Producer, partitions: list[TopicPartition]) -> None:
        deadline_ms = self._clock.monotonic_ms() + VERIFICATION_S * 1000
        backoff = Backoff(first_ms=20, most_ms=500)
        while True:
            try:
                await self._ask(producer, partitions)
                return
            except HeadraceError as error:
                pause_s = backoff.next_s()
                left_s = (deadline_ms - self._clock.monotonic_ms()) / 1000
                if not error.retriable or left_s <= pause_s or self._is_closed:
                    raise
            await asyncio.sleep(pause_s)

    async def _ask(self, producer: _Producer, partitions: list[TopicPartition]) -> None:
        """Send one request. Raises the coordinator's error, and the errors of ``owner_of`` and ``RequestLink.ask``."""
        request = transactions_pb2.AddPartitionsRequest(
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transaction_version=producer.version,
            verify_only=producer.version < EPOCH_RAISING_VERSION,
            partitions=[groups_pb2.PartitionName(topic=topic, partition=number) for topic, number in partitions],
        )
        response = await self._link(self._coordinator(producer.transactional_id)).ask(request, ANSWER_S)
        raise_proto_error(response.error)

    def _coordinator(self, transactional_id: str) -> str:
        coordinator = owner_of(self._metadata.image, TRANSACTIONS_TOPIC, transactional_id).coordinator
        for endpoint in coordinator.endpoints:
            if endpoint.listener == INTERNAL:
                return join_address(endpoint.host, endpoint.port)
        raise CoordinatorNotAvailableError(f"coordinator {coordinator.coordinator_id} has no internal listener; retry")

    def _link(self, address: str) -> Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = RequestLink(
                address, ChannelPurpose.CONTROL, _open_call, what="a request for the partitions of a transaction"
            )
        return link


def _open_call(channel: Any) -> Any:
    return transactions_pb2_grpc.TransactionPartitionsStub(channel).AddPartitions()  # type: ignore[no-untyped-call]


def _for_producer(error: HeadraceError, producer: _Producer) -> HeadraceError:
    """The error that the producer receives, as in Kafka: nothing was written. Producers of version 1 know fewer
    errors."""
    if isinstance(error, ProducerFencedError):
        return InvalidProducerEpochError(error.message)
    if isinstance(error, NetworkError | RequestTimedOutError):
        error = CoordinatorNotAvailableError(
            f"the coordinator of transactional id {producer.transactional_id!r} does not answer: {error.message}; retry"
        )
    if producer.version < EPOCH_RAISING_VERSION:
        if isinstance(error, TransactionAbortableError):
            return InvalidTxnStateError(error.message)
        if error.retriable:
            return NotEnoughReplicasError(
                f"cannot verify the transaction of transactional id {producer.transactional_id!r}: {error.code}: "
                f"{error.message}"
            )
    return error
