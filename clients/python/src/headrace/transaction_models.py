"""Immutable values about transactions and producers. The fields have the meaning of the fields with the same names in
transactions.proto."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace_core.errors import HeadraceError
from headrace_core.types import TopicPartition

from .models import TransactionToken

#: The states of a transactional id. ongoing: a transaction is open. prepared: a prepared transaction waits for its
#: commit or abort (KIP-939). prepare-commit and prepare-abort: a transaction is committed or aborted, and some of its
#: markers are not written yet.
TransactionState = Literal[
    "empty", "ongoing", "prepared", "prepare-commit", "prepare-abort", "complete-commit", "complete-abort"
]
TRANSACTION_STATES: tuple[TransactionState, ...] = (
    "empty",
    "ongoing",
    "prepared",
    "prepare-commit",
    "prepare-abort",
    "complete-commit",
    "complete-abort",
)
#: States in which a transaction is open, or its markers are being written.
UNFINISHED_STATES: tuple[TransactionState, ...] = ("ongoing", "prepared", "prepare-commit", "prepare-abort")


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id, its coordinator, and its state. ``started_at_ms``: when the open transaction began; None: no
    transaction is open."""

    transactional_id: str
    coordinator_id: int
    producer_id: int
    state: TransactionState
    started_at_ms: int | None


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id as its coordinator sees it. ``producer_id`` and ``producer_epoch``: the identity of the open
    transaction's records; without an open transaction, the identity of the producer. ``partitions``: the partitions of
    the open transaction; while markers are being written, the partitions without a marker. ``timeout_ms`` is None if
    the producer's transactions have no timeout; ``started_at_ms`` is None if no transaction is open.

    If ``error`` is set (with ``raise_errors=False``), the other fields have no meaning.
    """

    transactional_id: str
    state: TransactionState
    coordinator_id: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    timeout_ms: int | None = None
    started_at_ms: int | None = None
    updated_at_ms: int = -1
    transaction_version: int = 0
    partitions: tuple[TopicPartition, ...] = ()
    token: TransactionToken | None = None
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class ProducerState:
    """The state of a producer in one partition, which the partition's leader keeps (KIP-664). ``last_timestamp_ms``:
    timestamp of the producer's last batch. ``transaction_start_offset``: first offset of the producer's open
    transaction; None: no transaction is open. ``last_sequence``, ``last_timestamp_ms`` and ``coordinator_epoch`` are
    None if they are unknown."""

    producer_id: int
    producer_epoch: int
    last_sequence: int | None
    last_timestamp_ms: int | None
    coordinator_epoch: int | None
    transaction_start_offset: int | None
