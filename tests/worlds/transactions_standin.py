"""The two scripted coordinators of groups_standin.py, extended by transactional ids and the producers of partitions."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc

from headrace_core.errors import (
    HeadraceError,
    InvalidRequestError,
    InvalidTxnStateError,
    NotCoordinatorError,
    TransactionalIdNotFoundError,
)
from headrace_core.item_errors import error_to_proto
from headrace_protos.v1 import metadata_pb2_grpc, offsets_pb2_grpc, transactions_pb2, transactions_pb2_grpc
from tests.worlds.groups_standin import Coordinator, StandinGroupsWorld, _abort


class StandinTransactionsWorld(StandinGroupsWorld):
    """``page_size`` transactions fit into a response, or the producers of ``room`` partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinators = [TransactionCoordinator(self, 0), TransactionCoordinator(self, 1)]
        self.described: dict[str, transactions_pb2.DescribedTransaction] = {}
        self.producers: dict[tuple[str, int], list[transactions_pb2.ActiveProducer]] = {}
        self.page_size = 10_000
        self.room = 2_000
        self.partition_errors: dict[tuple[str, int], list[HeadraceError]] = {}

    def add(self, transactional_id: str, state: Any, **more: Any) -> None:
        self.described[transactional_id] = transactions_pb2.DescribedTransaction(
            transactional_id=transactional_id, state=state, **{"started_at_ms": -1, "timeout_ms": 60_000, **more}
        )


class TransactionCoordinator(
    Coordinator, transactions_pb2_grpc.TransactionsServicer, transactions_pb2_grpc.ProducersServicer
):
    world: StandinTransactionsWorld

    def _refusal(self, transactional_id: str) -> HeadraceError | None:
        if self.world.owner(transactional_id) != self.index:
            return NotCoordinatorError(f"coordinator {self.index + 1} does not have {transactional_id!r}")
        if transactional_id not in self.world.described:
            return TransactionalIdNotFoundError(f"transactional id {transactional_id!r} does not exist")
        return None

    def ListTransactions(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        world = self.world
        answer = transactions_pb2.ListTransactionsResponse(loading_shards=world.loading.pop(0) if world.loading else 0)
        for name, each in sorted(world.described.items()):
            if (
                world.owner(name) != self.index
                or name <= request.after
                or not name.startswith(request.transactional_id_prefix)
                or (request.states and each.state not in request.states)
                or (request.producer_ids and each.producer_id not in request.producer_ids)
            ):
                continue
            if len(answer.transactions) == world.page_size:
                answer.has_more = True
                break
            answer.transactions.add(
                transactional_id=name,
                producer_id=each.producer_id,
                state=each.state,
                started_at_ms=each.started_at_ms,
            )
        return answer

    def DescribeTransactions(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        answer = transactions_pb2.DescribeTransactionsResponse()
        for name in request.transactional_ids:
            error = self._refusal(name)
            if error is None:
                answer.transactions.append(self.world.described[name])
            else:
                answer.transactions.add(transactional_id=name, error=error_to_proto(error))
        return answer

    def AbortTransaction(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        error = self._refusal(request.transactional_id)
        if error is not None:
            _abort(context, error)
        found = self.world.described[request.transactional_id]
        if found.state != transactions_pb2.TRANSACTION_STATE_ONGOING:
            _abort(context, InvalidTxnStateError(f"no transaction of {request.transactional_id!r} is open"))
        found.state = transactions_pb2.TRANSACTION_STATE_COMPLETE_ABORT
        return transactions_pb2.AbortTransactionResponse()

    def DescribeProducers(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        answer = transactions_pb2.DescribeProducersResponse()
        for number, each in enumerate(request.partitions):
            found = answer.partitions.add(topic=each.topic, partition=each.partition)
            failures = self.world.partition_errors.get((each.topic, each.partition))
            if failures:
                found.error.CopyFrom(error_to_proto(failures.pop(0)))  # type: ignore[arg-type]
            elif number >= self.world.room:
                found.error.CopyFrom(error_to_proto(InvalidRequestError("no room")))  # type: ignore[arg-type]
            else:
                found.producers.extend(self.world.producers.get((each.topic, each.partition), []))
        return answer

    def AbortHangingTransaction(self, request: Any, context: Any) -> Any:
        self._called(request, context)
        for each in self.world.producers.get((request.topic, request.partition), []):
            if (each.producer_id, each.transaction_start_offset) == (
                request.producer_id,
                request.transaction_start_offset,
            ):
                each.ClearField("transaction_start_offset")
                return transactions_pb2.AbortHangingTransactionResponse()
        _abort(context, InvalidTxnStateError("no transaction begins there"))
        return None


@contextmanager
def serving() -> Iterator[StandinTransactionsWorld]:
    world = StandinTransactionsWorld()
    servers = []
    for each in world.coordinators:
        server = grpc.server(ThreadPoolExecutor(4))
        metadata_pb2_grpc.add_MetadataServicer_to_server(each, server)
        offsets_pb2_grpc.add_OffsetsServicer_to_server(each, server)
        transactions_pb2_grpc.add_TransactionsServicer_to_server(each, server)
        transactions_pb2_grpc.add_ProducersServicer_to_server(each, server)
        each.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
    try:
        yield world
    finally:
        for server in servers:
            server.stop(None)
