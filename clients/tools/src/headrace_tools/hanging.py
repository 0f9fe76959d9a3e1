"""Find hanging transactions (KIP-664) for ``transactions find-hanging`` and ``doctor``. A hanging transaction is open
in a partition, but its coordinator does not know it.

No coordinator will ever write the marker of a hanging transaction, so readers with read_committed wait for it forever.
The order of the requests rules out a false report. A leader adds its partition to the transaction at the coordinator
before it appends the transaction's first record. If the coordinator later does not have the partition in a transaction,
the transaction must have ended. After the coordinators have answered, the tool asks the leader again. If the
transaction is still open at the leader, it hangs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headrace.cluster_models import TopicDescription
from headrace.transaction_models import UNFINISHED_STATES, ProducerState, TransactionDescription
from headrace_core.errors import HeadraceError, TransactionalIdNotFoundError
from headrace_core.types import TopicPartition

from .group_ends import log_ends

OFFSETS_TOPIC = "__consumer_offsets"


def may_have_hanging(topic: TopicDescription) -> bool:
    """Whether transactions can hang in the topic. Headrace writes no transactions into internal topics. In a copy of
    Kafka's ``__consumer_offsets``, however, a transaction may be open, and then the partition is no longer
    compacted."""
    return not topic.internal or topic.name == OFFSETS_TOPIC


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that hangs in one partition. ``transactional_id``: the id to which the producer id now belongs;
    None: no coordinator knows the producer id. ``last_timestamp_ms``: timestamp of the producer's last batch."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int | None
    coordinator_epoch: int | None
    transactional_id: str | None


def hanging_transactions(
    client: Any, partitions: Iterable[TopicPartition], *, timeout_s: float
) -> tuple[list[HangingTransaction], tuple[str, str] | None]:
    """Return the hanging transactions in ``partitions``, and two texts: which partitions could not be checked, and why
    (None: all were checked). The function asks a leader for its producers only if the partition's last stable offset is
    below its high watermark: otherwise no transaction is open. Raises HeadraceError."""
    stable = log_ends(client, partitions, timeout_s=timeout_s, isolation_level="read_committed")
    ends = log_ends(client, stable.known, timeout_s=timeout_s)
    gap = stable.gap() or ends.gap()
    behind = [each for each, end in ends.known.items() if stable.known[each] < end]
    suspects = _open(client.describe_producers(behind, timeout=timeout_s)) if behind else {}
    if not suspects:
        return [], gap
    producer_ids = {producer_id for _, producer_id, _ in suspects}
    listed = client.list_transactions(producer_ids=producer_ids, timeout=timeout_s)
    owners = {each.producer_id: each.transactional_id for each in listed}
    described = client.describe_transactions(list(owners.values()), raise_errors=False, timeout=timeout_s)
    known = _known(described)
    left = {key for key in suspects if (key[0], key[1]) not in known}
    if not left:
        return [], gap
    still_open = _open(client.describe_producers({partition for partition, _, _ in left}, timeout=timeout_s))
    return [
        HangingTransaction(
            partition.topic,
            partition.partition,
            producer_id,
            state.producer_epoch,
            start_offset,
            state.last_timestamp_ms,
            state.coordinator_epoch,
            owners.get(producer_id),
        )
        for (partition, producer_id, start_offset), state in sorted(still_open.items(), key=lambda item: item[0])
        if (partition, producer_id, start_offset) in left
    ], gap


def _open(
    producers: dict[TopicPartition, list[ProducerState]],
) -> dict[tuple[TopicPartition, int, int], ProducerState]:
    """Return the open transactions by partition, producer id and first offset."""
    return {
        (partition, state.producer_id, state.transaction_start_offset): state
        for partition, states in producers.items()
        for state in states
        if state.transaction_start_offset is not None
    }


def _known(described: Iterable[TransactionDescription]) -> set[tuple[TopicPartition, int]]:
    """Return the partitions of the open transactions that the coordinators know, each with the producer id. Raises the
    error if a coordinator does not answer, because without its answer no transaction is known to hang."""
    known = set()
    for each in described:
        if isinstance(each.error, HeadraceError) and not isinstance(each.error, TransactionalIdNotFoundError):
            raise each.error
        if each.error is None and each.state in UNFINISHED_STATES:
            known |= {(partition, each.producer_id) for partition in each.partitions}
    return known
