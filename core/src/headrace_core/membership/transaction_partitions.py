"""Add partitions to open transactions, by requests to the transactions' coordinators (KIP-890).

Before the first append of a producer's transaction in a partition, the partition's leader adds the partition to the
transaction (version 2), or verifies that the producer has added the partition (version 1). The owner of a group's shard
also adds or verifies the shard's partition before it accepts offsets of a transaction. A request to add or to verify
partitions is called a *verification*. The coordinator of a transaction is the owner of the transactional id's shard,
which this node knows from its metadata.

A request that fails with a retriable error is repeated for at most VERIFICATION_S. For example, the shard may be
moving, or a marker of the producer's former transaction may be missing. Repeated requests are idempotent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace_protos.v1 import groups_pb2, transactions_pb2, transactions_pb2_grpc

from ..clock import Clock
from ..errors import (
    CoordinatorNotAvailableError,
    HeadraceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    NetworkError,
    NotEnoughReplicasError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortableError,
)
from ..log.transactions import EPOCH_RAISING_VERSION
from ..metadata.shards import TRANSACTIONS_TOPIC, address_of, owner_of
from ..node.listeners import INTERNAL
from ..rpc import ChannelPurpose
from ..rpc.outage import Backoff
from ..rpc.request_link import RequestLink
from ..rpc.status import raise_proto_error
from ..types import TopicPartition
from .metadata_state import MetadataState
from .node_links import NodeLinks

#: Maximum duration of a verification, in seconds.
VERIFICATION_S = 10.0
#: If a coordinator has not answered after this number of seconds, the node sends the request again, to the shard's
#: current coordinator.
ANSWER_S = 2.0

Link = RequestLink[transactions_pb2.AddPartitionsRequest, transactions_pb2.AddPartitionsResponse]


class TransactionalProducer(NamedTuple):
    """The transactional producer of a request, with its transaction version."""

    transactional_id: str
    producer_id: int
    epoch: int
    version: int


class TransactionPartitions:
    """Verifies the partitions of transactions, as the module's docstring describes. Call all methods in the event
    loop."""

    def __init__(self, metadata: MetadataState, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._links: NodeLinks[Link] = NodeLinks(metadata)
        self._is_closed = False

    async def verify(self, producer: TransactionalProducer, partitions: Iterable[TopicPartition]) -> int:
        """Add the partitions to the producer's open transaction, or verify that they are in the transaction. Returns
        the epoch of the transaction's shard. Raises the error for the producer; then nothing was written."""
        try:
            return await self._until_answered(producer, tuple(partitions))
        except HeadraceError as error:
            raise _for_producer(error, producer) from None

    async def close(self) -> None:
        """Fail all pending requests. Idempotent."""
        self._is_closed = True
        await self._links.close()

    async def _until_answered(self, producer: TransactionalProducer, partitions: tuple[TopicPartition, ...]) -> int:
        deadline_ms = self._clock.monotonic_ms() + VERIFICATION_S * 1000
        backoff = Backoff(first_ms=20, most_ms=500)
        while True:
            try:
                return await self._ask(producer, partitions)
            except HeadraceError as error:
                pause_s = backoff.next_s()
                left_s = (deadline_ms - self._clock.monotonic_ms()) / 1000
                if not error.retriable or left_s <= pause_s or self._is_closed:
                    raise
            await asyncio.sleep(pause_s)

    async def _ask(self, producer: TransactionalProducer, partitions: tuple[TopicPartition, ...]) -> int:
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
        return response.coordinator_epoch

    def _coordinator(self, transactional_id: str) -> str:
        owner = owner_of(self._metadata.image, TRANSACTIONS_TOPIC, transactional_id)
        return address_of(owner.coordinator, INTERNAL)

    def _link(self, address: str) -> Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = RequestLink(
                address,
                ChannelPurpose.CONTROL,
                _open_call,
                what="a request for the partitions of a transaction",
                packed=transactions_pb2.AddPartitionsRequests,
                channels=self._metadata.channels,
            )
        return link


def _open_call(channel: Any) -> Any:
    return transactions_pb2_grpc.TransactionPartitionsStub(channel).AddPartitions()  # type: ignore[no-untyped-call]


def _for_producer(error: HeadraceError, producer: TransactionalProducer) -> HeadraceError:
    """Convert an error into the error that the producer receives, as in Kafka. Producers of version 1 know fewer errors
    than producers of version 2."""
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
