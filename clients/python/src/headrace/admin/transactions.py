"""Admin calls about transactions and producers (KIP-664, 890, 939, 994). The code runs on the I/O thread, except the
``wanted_*`` functions, which check arguments in the caller's thread and raise InvalidArgumentError."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from headrace_core.errors import HeadraceError, InvalidArgumentError, InvalidRequestError
from headrace_core.rpc.limits import PARTITIONS_MAX, pages
from headrace_core.types import TopicPartition
from headrace_protos.v1 import transactions_pb2

from .. import arguments
from ..engine.connections import call
from ..engine.coordinators import ATTEMPT_TIMEOUT_S
from ..engine.transactions import token_of
from ..transaction_models import (
    TRANSACTION_STATES,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from .calls import AdminCalls, raise_failures

_PREFIX = "TRANSACTION_STATE_"
_STATES: dict[str, Any] = {
    state: transactions_pb2.TransactionState.Value(_PREFIX + state.upper().replace("-", "_"))
    for state in TRANSACTION_STATES
}
_NAMES: dict[int, TransactionState] = {_STATES[state]: state for state in TRANSACTION_STATES}
_NO_TIMEOUT_MS = 2**31 - 1

# -- arguments


def wanted_states(states: Iterable[str] | str | None) -> list[Any]:
    """Convert the names of states to the protocol's numbers; an empty list stands for all states."""
    given = [states] if isinstance(states, str) else arguments.items("states", states or (), "states")
    for state in given:
        if not isinstance(state, str) or state.lower() not in _STATES:
            raise InvalidArgumentError(f"transaction state {state!r}: must be one of {', '.join(_STATES)}")
    return [_STATES[state.lower()] for state in given]


def wanted_producers(producer_ids: Iterable[int] | None) -> list[int]:
    """Check and return the producer ids; an empty list stands for all producers."""
    given = arguments.items("producer_ids", producer_ids or (), "producer ids")
    return list(dict.fromkeys(arguments.whole("producer id", each) for each in given))


def wanted_id(transactional_id: str) -> str:
    return arguments.text("transactional_id", transactional_id, empty=False)


def wanted_ids(transactional_ids: Iterable[str] | str) -> list[str]:
    """The transactional ids in order, without duplicates; a single text becomes a list of one."""
    return list(dict.fromkeys(arguments.texts("transactional_ids", transactional_ids)))


# -- transactions of coordinators


async def list_transactions(
    calls: AdminCalls,
    states: list[Any],
    producer_ids: list[int],
    open_for_ms: int | None,
    prefix: str,
    timeout: float | None,
) -> list[TransactionListing]:
    """List transactional ids, sorted. The coordinators of all shards answer in pages."""

    async def ask(address: str, timeout_s: float) -> list[Any]:
        method = calls.engine.connections.transactions(address).ListTransactions
        responses: list[Any] = []
        for ids in pages(producer_ids) if producer_ids else [[]]:
            request = transactions_pb2.ListTransactionsRequest(
                states=states, producer_ids=ids, open_for_ms=open_for_ms, transactional_id_prefix=prefix
            )
            responses.append(await call(method, request, address, timeout_s))
            while responses[-1].has_more:
                request.after = responses[-1].transactions[-1].transactional_id
                responses.append(await call(method, request, address, timeout_s))
        return responses

    deadline = calls.engine.deadline(timeout)
    answers = await calls.transaction_coordinators.everywhere(ask, deadline, "listing transactions")
    found = {
        item.transactional_id: TransactionListing(
            item.transactional_id,
            coordinator_id,
            item.producer_id,
            _NAMES[item.state],
            item.started_at_ms if item.started_at_ms >= 0 else None,
        )
        for coordinator_id, responses in answers.items()
        for response in responses
        for item in response.transactions
    }
    return [transaction for _, transaction in sorted(found.items())]


async def describe_transactions(
    calls: AdminCalls, transactional_ids: list[str], raise_errors: bool, timeout: float | None
) -> list[TransactionDescription]:
    """Returns descriptions in the order of ``transactional_ids``."""
    items = await calls.transaction_coordinators.each(
        transactional_ids,
        "DescribeTransactions",
        lambda some: transactions_pb2.DescribeTransactionsRequest(transactional_ids=some),
        lambda answer: answer.transactions,
        calls.engine.deadline(timeout),
    )
    failed = [(name, item) for name, item in items.items() if isinstance(item, HeadraceError)]
    if failed and raise_errors:
        raise type(failed[0][1])("; ".join(error.message for _, error in failed))
    return [_description(calls, each, items[each]) for each in transactional_ids]


def _description(calls: AdminCalls, transactional_id: str, item: Any) -> TransactionDescription:
    if isinstance(item, HeadraceError):
        return TransactionDescription(transactional_id, "empty", error=item)
    coordinator_id, _ = calls.transaction_coordinators.node_of(transactional_id)
    return TransactionDescription(
        transactional_id=transactional_id,
        state=_NAMES[item.state],
        coordinator_id=coordinator_id,
        producer_id=item.producer_id,
        producer_epoch=item.producer_epoch,
        timeout_ms=None if item.timeout_ms == _NO_TIMEOUT_MS else item.timeout_ms,
        started_at_ms=item.started_at_ms if item.started_at_ms >= 0 else None,
        updated_at_ms=item.updated_at_ms,
        transaction_version=item.transaction_version,
        partitions=tuple(TopicPartition(each.topic, each.partition) for each in item.partitions),
        token=token_of(item.token) if item.HasField("token") else None,
    )


async def abort_transaction(calls: AdminCalls, transactional_id: str, timeout: float | None) -> None:
    await calls.transaction_coordinators.call(
        transactional_id,
        "AbortTransaction",
        transactions_pb2.AbortTransactionRequest(transactional_id=transactional_id),
        calls.engine.deadline(timeout),
        f"aborting the transaction of {transactional_id!r} (it may have taken effect; see describe_transactions)",
        attempt_timeout_s=ATTEMPT_TIMEOUT_S,
    )


# -- producers of partitions


async def describe_producers(
    calls: AdminCalls, partitions: list[TopicPartition], timeout: float | None
) -> dict[TopicPartition, list[ProducerState]]:
    """Ask the leader of each partition. Ask again for a partition that did not fit into a response, or whose leader has
    changed."""
    engine = calls.engine
    deadline = engine.deadline(timeout)
    found: dict[TopicPartition, list[ProducerState]] = {}

    async def attempt(timeout_s: float) -> None:
        while True:
            before = len(found)
            requests: dict[str, list[Any]] = {}
            for partition in partitions:
                if partition not in found:
                    address, _ = await engine.at_leader(*partition, max(deadline - time.monotonic(), 0.01))
                    of_leader = requests.setdefault(address, [])
                    if not of_leader or len(of_leader[-1].partitions) >= PARTITIONS_MAX:
                        of_leader.append(transactions_pb2.DescribeProducersRequest())
                    of_leader[-1].partitions.add(topic=partition.topic, partition=partition.partition)
            answers = await asyncio.gather(
                *(
                    call(engine.connections.producers(address).DescribeProducers, request, address, timeout_s)
                    for address, of_leader in requests.items()
                    for request in of_leader
                )
            )
            failed: list[tuple[str, Any]] = []
            for item in (item for answer in answers for item in answer.partitions):
                partition = TopicPartition(item.topic, item.partition)
                if item.error.code:
                    failed.append((str(partition), item.error))
                else:
                    found[partition] = [_producer(each) for each in item.producers]
            if not failed:
                return
            has_no_room = all(error.code == InvalidRequestError.number for _, error in failed)
            if not has_no_room or len(found) == before:
                engine.metadata.invalidate()
                raise_failures(failed)

    await engine.retrying(attempt, deadline, "describing producers")
    return {partition: found[partition] for partition in partitions}


def _producer(item: Any) -> ProducerState:
    def known(number: int) -> int | None:
        return None if number < 0 else number

    return ProducerState(
        producer_id=item.producer_id,
        producer_epoch=item.producer_epoch,
        last_sequence=known(item.last_sequence),
        last_timestamp_ms=known(item.last_timestamp_ms),
        coordinator_epoch=known(item.coordinator_epoch),
        transaction_start_offset=item.transaction_start_offset if item.HasField("transaction_start_offset") else None,
    )


async def abort_hanging_transaction(
    calls: AdminCalls, partition: TopicPartition, producer_id: int, start_offset: int, timeout: float | None
) -> None:
    engine = calls.engine
    deadline = engine.deadline(timeout)
    request = transactions_pb2.AbortHangingTransactionRequest(
        topic=partition.topic,
        partition=partition.partition,
        producer_id=producer_id,
        transaction_start_offset=start_offset,
    )

    async def attempt(timeout_s: float) -> None:
        address, _ = await engine.at_leader(*partition, max(deadline - time.monotonic(), 0.01))
        try:
            await call(engine.connections.producers(address).AbortHangingTransaction, request, address, timeout_s)
        except HeadraceError:
            engine.metadata.invalidate()
            raise

    await engine.retrying(attempt, deadline, f"aborting a hanging transaction of {partition}")
