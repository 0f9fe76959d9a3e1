"""Verifications of transactional appends: what a broker asks coordinators, and which error a producer receives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc.aio
import pytest

from headrace_broker.verifier import Verifier
from headrace_core import errors
from headrace_core.clock import SystemClock
from headrace_core.errors import HeadraceError
from headrace_core.item_errors import error_to_proto
from headrace_core.membership import transaction_partitions
from headrace_core.membership.metadata_state import MetadataState
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.metadata.records import (
    BrokerEndpoint,
    ClusterRecord,
    PartitionRecord,
    RegisterCoordinatorRecord,
    ShardRecord,
    TopicRecord,
)
from headrace_core.metadata.shards import TRANSACTIONS_TOPIC
from headrace_core.types import TopicPartition
from headrace_protos.v1 import transactions_pb2, transactions_pb2_grpc

LIMIT_S = 60.0
TOPIC_ID = b"transactions....."[:16]


class Coordinator(transactions_pb2_grpc.TransactionPartitionsServicer):
    """Answers each request with the next of ``answers`` (None: confirmed), and confirms the remaining requests."""

    def __init__(self, *answers: HeadraceError | None) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def AddPartitions(self, _: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            for request in message.requests:
                self.asked.append(request)
                error = self.answers.pop(0) if self.answers else None
                response = transactions_pb2.AddPartitionsResponse(
                    correlation_id=request.correlation_id, error=error_to_proto(error)
                )
                await context.write(transactions_pb2.AddPartitionsResponses(responses=[response]))


class Metadata(MetadataState):
    """Metadata in which ``owned_by`` names the owner of the only shard."""

    def __init__(self) -> None:
        super().__init__()
        self._change(
            ClusterRecord("test", 1),
            TopicRecord(TRANSACTIONS_TOPIC, TOPIC_ID),
            PartitionRecord(TOPIC_ID, 0, (1,), (1,), 1, 0, 0),
        )

    def owned_by(self, coordinator_id: int, address: str) -> None:
        host, _, port = address.rpartition(":")
        endpoints = (BrokerEndpoint("client", "127.0.0.1", 1), BrokerEndpoint("internal", host, int(port)))
        self._change(
            RegisterCoordinatorRecord(coordinator_id, self.image.next_offset, b"%016d" % coordinator_id, endpoints),
            ShardRecord(TOPIC_ID, 0, coordinator_id, self.image.next_offset),
        )

    def _change(self, *records: Any) -> None:
        image, delta = self.image.apply_with_delta(records, self.image.next_offset + len(records))
        self.advance(image, delta)


@contextlib.asynccontextmanager
async def serving(coordinator: Coordinator) -> AsyncIterator[str]:
    server = grpc.aio.server()
    transactions_pb2_grpc.add_TransactionPartitionsServicer_to_server(coordinator, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield address
    finally:
        await server.stop(0)


def run(test: Callable[[Metadata, Verifier], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        metadata = Metadata()
        verifier = Verifier(metadata, SystemClock())
        try:
            async with asyncio.timeout(LIMIT_S):
                await test(metadata, verifier)
        finally:
            await verifier.close()

    asyncio.run(limited())


def verified(
    verifier: Verifier, *partitions: int, epoch: int = 3, version: int = 2
) -> list[asyncio.Future[HeadraceError | None]]:
    """Ask for partitions of one producer in one pass of the event loop."""
    futures = []
    for partition in partitions:
        future: asyncio.Future[HeadraceError | None] = asyncio.get_running_loop().create_future()
        transaction = verifier.transaction("payments", 7, epoch, version)
        transaction.verify(transaction, TopicPartition("orders", partition), future.set_result)
        futures.append(future)
    return futures


def test_partitions_of_a_producer_share_a_request() -> None:
    async def scenario(metadata: Metadata, verifier: Verifier) -> None:
        coordinator = Coordinator()
        async with serving(coordinator) as address:
            metadata.owned_by(1, address)
            waiting = verified(verifier, 0, 2) + verified(verifier, 1, epoch=4)
            assert await asyncio.gather(*waiting) == [None] * 3
            first, second = coordinator.asked
            assert (first.transactional_id, first.producer_id, first.producer_epoch) == ("payments", 7, 3)
            assert (first.transaction_version, first.verify_only) == (2, False)
            assert [(each.topic, each.partition) for each in first.partitions] == [("orders", 0), ("orders", 2)]
            assert second.producer_epoch == 4
            assert await asyncio.gather(*verified(verifier, 0, version=1)) == [None]
            assert (coordinator.asked[2].transaction_version, coordinator.asked[2].verify_only) == (1, True)

    run(scenario)


def test_retriable_errors_are_retried_and_the_new_owner_of_a_shard_is_asked() -> None:
    async def scenario(metadata: Metadata, verifier: Verifier) -> None:
        new = Coordinator(errors.ConcurrentTransactionsError("markers are missing"))
        async with serving(new) as new_address:

            class Old(Coordinator):
                async def AddPartitions(self, _: Any, context: Any) -> None:
                    metadata.owned_by(2, new_address)
                    await super().AddPartitions(_, context)

            old = Old(errors.NotCoordinatorError("moved"))
            async with serving(old) as old_address:
                metadata.owned_by(1, old_address)
                assert await asyncio.gather(*verified(verifier, 0)) == [None]
            assert (len(old.asked), len(new.asked)) == (1, 2)

    run(scenario)


@pytest.mark.parametrize(
    ("answer", "version", "code"),
    [
        (errors.ProducerFencedError("fenced"), 2, "INVALID_PRODUCER_EPOCH"),
        (errors.TransactionAbortableError("not in it"), 2, "TRANSACTION_ABORTABLE"),
        (errors.TransactionAbortableError("not in it"), 1, "INVALID_TXN_STATE"),
        (errors.InvalidTxnStateError("prepared"), 2, "INVALID_TXN_STATE"),
        (errors.InvalidProducerIdMappingError("unknown"), 1, "INVALID_PRODUCER_ID_MAPPING"),
    ],
)
def test_a_refusal_is_translated_for_the_producer(answer: HeadraceError, version: int, code: str) -> None:
    async def scenario(metadata: Metadata, verifier: Verifier) -> None:
        async with serving(Coordinator(answer)) as address:
            metadata.owned_by(1, address)
            (error,) = await asyncio.gather(*verified(verifier, 0, version=version))
            assert error is not None
            assert (error.code, answer.message in error.message) == (code, True)

    run(scenario)


def test_after_its_time_a_verification_fails_with_a_retriable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_partitions, "VERIFICATION_S", 0.05)

    async def scenario(metadata: Metadata, verifier: Verifier) -> None:
        (error,) = await asyncio.gather(*verified(verifier, 0))
        assert isinstance(error, errors.CoordinatorNotAvailableError)
        (error,) = await asyncio.gather(*verified(verifier, 0, version=1))
        assert isinstance(error, errors.NotEnoughReplicasError), "old clients retry this one"
        monkeypatch.setattr(transaction_partitions, "VERIFICATION_S", 1.0)  # time for a connection
        async with serving(Coordinator(*[errors.ConcurrentTransactionsError("missing")] * 100)) as address:
            metadata.owned_by(1, address)
            (error,) = await asyncio.gather(*verified(verifier, 0))
            assert isinstance(error, errors.ConcurrentTransactionsError)
        (error,) = await asyncio.gather(*verified(verifier, 0))
        assert isinstance(error, errors.CoordinatorNotAvailableError), "nothing was written, so the outcome is known"
        assert "does not answer" in error.message

    run(scenario)


def test_a_stopping_broker_fails_pending_verifications() -> None:
    async def scenario(metadata: Metadata, verifier: Verifier) -> None:
        waiting = verified(verifier, 0)
        await asyncio.sleep(0)
        await verifier.close()
        (error,) = await asyncio.gather(*waiting)
        assert error is not None
        assert error.retriable

    run(scenario)


def test_metadata_without_the_topic_of_transactions_is_waited_for() -> None:
    async def scenario(metadata: Metadata, verifier: Verifier) -> None:
        metadata.advance(MetadataImage(), MetadataDelta(0, 0))
        waiting = verified(verifier, 0)
        await asyncio.sleep(0)
        async with serving(Coordinator()) as address:
            metadata.advance(Metadata().image, MetadataDelta(0, 0))
            metadata.owned_by(1, address)
            assert await asyncio.gather(*waiting) == [None]

    run(scenario)
