"""Requests to the transactions of a shard and their replies, as plain values.

    InitProducerId ------> ProducerIdReply     a producer takes its identity, and fences the former one
    AddPartitions -------> None                partitions join the open transaction, or begin one; or are verified
    EndTransaction ------> ProducerIdentity    commit or abort; the identity for the next transaction
    PrepareTransaction --> ProducerIdentity    the token of a prepared transaction (KIP-939)
    CompleteTransaction -> None                commit or abort by token
    AbortTransaction ----> None                an administrator ends an open transaction
    DescribeTransaction, ListTransactions      questions
    MarkersWritten                             the marker sender's report; no answer
    CommitSinkBatch -----> SinkState           the decision about a batch of an exactly-once sink
    AbortSinkBatch ------> SinkState           abort the batch, unless it is decided
    DescribeSink --------> SinkState           a question

A shard of transactions pushes two kinds of messages. ``WriteMarkers`` is for the marker sender, ``TransactionEnded``
for requests that wait for the end of a transaction. ``WriteMarkers`` and ``TransactionEnded`` are sent when the record
of their decision is committed.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace_core.sinks import SinkTransaction
from headrace_core.types import TopicPartition

from .state import BUMPING_VERSION, ProducerIdentity, TransactionState


class InitProducerId(NamedTuple):
    """``expected``: the identity of a producer that continues after an error (KIP-360); None for a new producer.
    ``keep_prepared``: an open prepared transaction stays open (KIP-939); without ``keep_prepared``, the transaction is
    aborted. ``has_no_timeout``: Java's ``enable2Pc``."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None
    keep_prepared: bool = False
    has_no_timeout: bool = False


class ProducerIdReply(NamedTuple):
    """``prepared``: the token of the transaction that ``keep_prepared`` left open; the producer must complete that
    transaction first."""

    identity: ProducerIdentity
    prepared: ProducerIdentity | None = None


class AddPartitions(NamedTuple):
    """``version``: the client's transaction version. ``verify_only``: change no state, and refuse partitions that the
    open transaction does not have (version 1, sent by a partition's leader)."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: frozenset[TopicPartition]
    version: int = BUMPING_VERSION
    verify_only: bool = False


class EndTransaction(NamedTuple):
    """A request of a producer to commit or abort its transaction."""

    transactional_id: str
    identity: ProducerIdentity
    commit: bool
    version: int = BUMPING_VERSION


class PrepareTransaction(NamedTuple):
    transactional_id: str
    identity: ProducerIdentity


class CompleteTransaction(NamedTuple):
    """A request to complete a prepared transaction; any client that has the transaction's token may send it.
    ``identity`` is the token that PrepareTransaction returned. The transaction's producer itself sends EndTransaction
    instead, which returns the producer's next identity, even if another client has used the token before."""

    transactional_id: str
    identity: ProducerIdentity
    commit: bool


class AbortTransaction(NamedTuple):
    transactional_id: str


class MarkersWritten(NamedTuple):
    """A report that the partitions have the marker that ``WriteMarkers`` named, or no longer exist."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: frozenset[TopicPartition]


class DescribeTransaction(NamedTuple):
    transactional_id: str


class DescribeSink(NamedTuple):
    sink: str

    @property
    def transactional_id(self) -> str:
        """The key that determines the request's shard."""
        return self.sink


class CommitSinkBatch(NamedTuple):
    """Commit the transactions of ``tokens``, unless the batch or a later batch is already decided. All other
    transactions of the sink, up to the decided batch, are aborted. ``is_final``: no batch follows. ``generation``: the
    generation that DescribeSink returned to all tasks of the batch; None: only the generations of the tokens are
    checked."""

    sink: str
    batch: int
    tokens: tuple[tuple[SinkTransaction, ProducerIdentity], ...]
    is_final: bool = False
    generation: int | None = None

    @property
    def transactional_id(self) -> str:
        """The key that determines the request's shard."""
        return self.sink


class AbortSinkBatch(NamedTuple):
    """Raise the sink's generation and abort its open transactions, unless the batch is decided, or the sink's
    generation is above ``generation``."""

    sink: str
    batch: int
    generation: int
    is_final: bool = False

    @property
    def transactional_id(self) -> str:
        """The key that determines the request's shard."""
        return self.sink


class SinkState(NamedTuple):
    """``batch``: the last decided batch, -1 if no batch is decided. ``generation``: the generation that transactions of
    the next batch must have."""

    batch: int
    generation: int


class ListTransactions(NamedTuple):
    """An empty filter selects all transactions. ``states``: pairs (state, is prepared). ``open_for_ms``: list only
    transactions that have been open for at least this many milliseconds. ``prefix``: list only transactional ids that
    begin with this prefix. ``after``: list only transactional ids that sort after this id. The reply is sorted by
    transactional id."""

    states: frozenset[tuple[TransactionState, bool]] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    open_for_ms: int = -1
    prefix: str = ""
    after: str = ""


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: TransactionState
    is_prepared: bool
    started_ms: int


class WriteMarkers(NamedTuple):
    """Write the marker into each of ``partitions``, and retry until it is written; then report ``MarkersWritten``."""

    transactional_id: str
    identity: ProducerIdentity
    commit: bool
    version: int
    partitions: frozenset[TopicPartition]


class TransactionEnded(NamedTuple):
    """Event: all markers of a transaction are written, so the next transaction of the transactional id may begin. For
    the id of a sink, the event means that all markers of the sink's decided transactions are written."""

    transactional_id: str
