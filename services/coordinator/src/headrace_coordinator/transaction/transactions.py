"""The state machine of a transaction shard (KIP-98, KIP-360, KIP-447, KIP-890, KIP-939). Pure.

Each decision writes one record of one transactional id, and the state follows from the records. Replaying the log of a
transaction shard therefore gives the same state. A record PREPARE_COMMIT or PREPARE_ABORT decides a transaction;
EndTransaction is answered when this record is committed. In addition to the records, the state machine keeps in memory
the partitions whose marker is still missing. A new owner of the shard requests all missing markers again; a leader
accepts a repeated marker without an append.

While markers are missing, a request for the next transaction gets ConcurrentTransactionsError. The caller waits for
``TransactionEnded`` and then repeats the request for the next transaction.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace_core.config import from_key
from headrace_core.config.server_keys import SERVER
from headrace_core.errors import (
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    RetriableError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from headrace_core.sinks import SinkTransaction, parse_sink_transaction
from headrace_core.types import TopicPartition

from ..state_machine import ClockSet, Decision, RecordKind, ShardRecord, kind_of
from .codec import RECORD_BYTES_MAX, TRANSACTION_KIND, decode_key, decode_value, encode_key, encode_value
from .messages import (
    AbortSinkBatch,
    AbortTransaction,
    AddPartitions,
    CommitSinkBatch,
    CompleteTransaction,
    DescribeSink,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListedTransaction,
    ListTransactions,
    MarkersWritten,
    PrepareTransaction,
    ProducerIdReply,
    SinkState,
    TransactionEnded,
    WriteMarkers,
)
from .refusals import aborted, check_timeout, concurrent, fenced, fencing
from .sinks import (
    NO_RECORD,
    SinkRecord,
    check_names,
    check_open,
    checked_sink,
    decided,
    decode_sink_key,
    decode_sink_value,
    encode_sink_key,
    encode_sink_value,
    has_ended_so,
    unprepared,
)
from .state import (
    ABORTED,
    BUMPING_VERSION,
    COMMITTED,
    EPOCH_MAX,
    LEGAL,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    PREPARING,
    ProducerIdentity,
    Transaction,
    TransactionState,
)
from .timeouts import Timeout, Timeouts

#: Maximum number of transactions that one tick aborts after their timeout, and of transactional ids that one tick
#: expires.
ABORTS_PER_TICK = 100
EXPIRIES_PER_TICK = 1_000
LISTED_MAX = 10_000  #: Maximum number of transactions in a reply to ListTransactions.
#: Milliseconds until the coordinator aborts a timed-out transaction again, if the abort needed a new producer id and no
#: id was available.
RETRY_MS = 1_000


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Configuration keys of transactions. ``epoch_max`` is smaller than Kafka's only in simulations."""

    timeout_ms_max: int = from_key(SERVER, "transaction.max.timeout.ms")
    expiration_ms: int = from_key(SERVER, "transactional.id.expiration.ms")
    expiration_interval_ms: int = from_key(SERVER, "transaction.remove.expired.transaction.cleanup.interval.ms")
    sink_timeout_ms: int = from_key(SERVER, "transaction.sink.timeout.ms")
    may_have_no_timeout: bool = from_key(SERVER, "transaction.two.phase.commit.enable")
    epoch_max: int = EPOCH_MAX


class TransactionsStateMachine:
    """The StateMachine of a transaction shard. ``new_producer_id`` returns an id from the blocks that the controllers
    allocated to this coordinator. If no id is available, ``new_producer_id`` raises a retriable error, and no state has
    changed."""

    def __init__(self, new_producer_id: Callable[[], int], settings: TransactionSettings | None = None) -> None:
        self._new_producer_id = new_producer_id
        self._settings = settings or TransactionSettings()
        #: Transactions by transactional id; only this class changes the dictionary.
        self.transactions: dict[str, Transaction] = {}
        #: For each transaction in PREPARE_*: the partitions whose markers are missing.
        self._missing: dict[str, frozenset[TopicPartition]] = {}
        self._timeouts = Timeouts()
        #: The records of exactly-once sinks; see sinks.py.
        self.sinks: dict[str, SinkRecord] = {}
        #: Maps a sink with a record to the time at which a client last read the sink's state; only in memory.
        self._described_ms: dict[str, int] = {}
        #: Maps a sink to the number of its transactional ids in ``self.transactions``.
        self._sink_ids: Counter[str] = Counter()
        #: Maps a sink to the number of its transactions in PREPARE_*.
        self._sink_endings: Counter[str] = Counter()
        #: Completed transactional ids of sinks, in the order of completion. The dictionary still includes ids that were
        #: removed after their completion. Each id is used once, and its producer id is free for a new transactional id
        #: of a sink.
        self._free: dict[str, None] = {}
        self._set_forward_ms = 0  #: When the wall clock was last set forward, by its new time.
        self._next_expiry_ms: int | None = None
        self._expiring: Iterator[str] | None = None

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Apply a record of the log. Raises CorruptLogError and UnsupportedVersionError if this version cannot serve
        the shard."""
        kind = kind_of(key)
        if kind == RecordKind.SINK:
            sink = decode_sink_key(key)
            if value is None:
                self.sinks.pop(sink, None)
            else:
                self.sinks[sink] = decode_sink_value(value)
        if kind != TRANSACTION_KIND:
            return
        transactional_id = decode_key(key)
        self._set(transactional_id, None if value is None else decode_value(value))

    def _set(self, transactional_id: str, transaction: Transaction | None) -> None:
        """Set the state of a transactional id; None removes the id."""
        sink = parse_sink_transaction(transactional_id)
        if sink is not None and (transaction is None) == (transactional_id in self.transactions):
            self._sink_ids[sink.sink] += -1 if transaction is None else 1
            if not self._sink_ids[sink.sink]:
                del self._sink_ids[sink.sink]
        if transaction is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = transaction

    def loaded(self, now_ms: int) -> Decision:
        """Called when the replay is complete: request all missing markers again. The timeouts of open transactions go
        on from the ages in their records (timeouts.py)."""
        self._next_expiry_ms = now_ms + self._settings.expiration_interval_ms
        records: list[ShardRecord] = []
        pushes: list[object] = []
        completed: list[tuple[int, str]] = []
        # Sinks with open transactions of a batch that is already over, in order: the log lacks the ends of these
        # transactions.
        unfinished: dict[str, None] = {}
        for transactional_id, transaction in list(self.transactions.items()):
            sink = parse_sink_transaction(transactional_id)
            if transaction.state is TransactionState.ONGOING:
                self._watch(transactional_id, transaction, now_ms)
                if sink is not None and self.sinks.get(sink.sink, NO_RECORD).is_over(sink):
                    unfinished[sink.sink] = None
            elif transaction.state in _COMPLETE and sink is not None:
                completed.append((transaction.updated_ms, transactional_id))
            elif transaction.state in PREPARING:
                self._missing[transactional_id] = transaction.partitions
                if sink is not None:
                    self._sink_endings[sink.sink] += 1
                if transaction.partitions:
                    pushes.append(_markers(transactional_id, transaction, transaction.partitions))
                else:  # Kafka needs two steps to abort a transaction without partitions
                    decision = self._complete(transactional_id, transaction, now_ms)
                    records += decision.records
                    pushes += decision.pushes
        self._free.update(dict.fromkeys(transactional_id for _, transactional_id in sorted(completed)))
        for sink_name in unfinished:
            decision = self._end_decided(sink_name, now_ms)
            records += decision.records
            pushes += decision.pushes
        return Decision(tuple(records), None, tuple(pushes), is_atomic=False)

    def handle(self, request: object, now_ms: int) -> Decision:
        """Decide a request of messages.py; the methods for each request list their errors."""
        return _RULES[type(request)](self, request, now_ms)

    def _clock_set(self, request: ClockSet, now_ms: int) -> Decision:
        self._timeouts.clock_set(request.by_ms)
        if request.by_ms > 0:
            self._set_forward_ms = now_ms
        if self._next_expiry_ms is not None:
            self._next_expiry_ms += request.by_ms
        return Decision()

    def _init(self, request: InitProducerId, now_ms: int) -> Decision:
        """Raises InvalidTransactionTimeoutError, ProducerFencedError and, for a sink's id, the errors of _check_sink.
        PolicyViolationError: transactions without a timeout are not allowed. ConcurrentTransactionsError means that the
        former transaction has not ended yet; if it was open, InitProducerId has aborted it."""
        check_timeout(request, self._settings.timeout_ms_max, may_have_none=self._settings.may_have_no_timeout)
        timeout_ms = NO_TIMEOUT_MS if request.has_no_timeout else request.timeout_ms
        transactional_id = _checked_id(request.transactional_id)
        sink = self._check_sink(transactional_id)
        before = self.transactions.get(transactional_id)
        if before is None:
            free = None if sink is None else self._free_id()
            if free is None:
                identity = ProducerIdentity(self._new_producer_id(), 0)
            else:  # skip one epoch, so that the identity differs from every identity of the producer id's former users
                former = self.transactions[free].identity
                identity = ProducerIdentity(former.producer_id, former.epoch + 1)
            made = Transaction(*identity, timeout_ms, TransactionState.EMPTY, frozenset(), now_ms)
            decision = self._write(transactional_id, made, now_ms, reply=ProducerIdReply(identity))
            return decision if free is None else decision._replace(records=(self._remove(free), *decision.records))
        if request.expected is not None:
            self._check_expected(transactional_id, before, request.expected)
        if before.state in PREPARING:
            raise concurrent(transactional_id, before)
        if before.state is TransactionState.ONGOING:
            if request.keep_prepared and before.is_undecided_for_ever:
                return self._take_prepared(transactional_id, before, now_ms)
            # The reply to InitProducerId is an error, so the producer repeats the request and gets an epoch that no
            # other producer has.
            fenced = request.expected is None
            decision = self._end(transactional_id, before, now_ms, commit=False, is_fence=True, forget_producer=fenced)
            return decision._replace(reply=concurrent(transactional_id, self.transactions[transactional_id]))
        return self._next_epoch(transactional_id, before, request.expected, timeout_ms, now_ms)

    def _check_expected(self, transactional_id: str, before: Transaction, expected: ProducerIdentity) -> None:
        """Check that the producer with the identity ``expected`` may continue (KIP-360). A producer may continue with
        the current identity. If no transaction is open, a producer may also continue with its previous identity,
        because the answer with the current identity may have been lost."""
        if expected in (before.identity, before.owner):
            return
        if before.state is TransactionState.ONGOING or not before.was_owned_by(expected):
            raise ProducerFencedError(fencing(transactional_id, expected, before))

    def _next_epoch(
        self,
        transactional_id: str,
        before: Transaction,
        expected: ProducerIdentity | None,
        timeout_ms: int,
        now_ms: int,
    ) -> Decision:
        """Assign the producer its next identity, if no transaction is open."""
        is_usable = before.producer_epoch < self._settings.epoch_max
        # The request repeats an earlier request whose answer was lost.
        if is_usable and expected is not None and expected != before.identity:
            return Decision(reply=ProducerIdReply(before.identity))
        if before.producer_epoch + 1 < self._settings.epoch_max:
            identity = ProducerIdentity(before.producer_id, before.producer_epoch + 1)
        else:
            identity = ProducerIdentity(self._new_producer_id(), 0)
        after = before._replace(
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            previous_producer_id=before.producer_id,
            last_producer_epoch=NO_EPOCH if expected is None else before.producer_epoch,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            updated_ms=now_ms,
            started_ms=-1,
        )
        return self._write(transactional_id, after, now_ms, reply=ProducerIdReply(identity))

    def _take_prepared(self, transactional_id: str, before: Transaction, now_ms: int) -> Decision:
        """Take over a prepared transaction: the new owner gets a new identity, and the token stays valid. The epoch
        after the new owner's epoch stays unused, for the markers."""
        owner = before.owner
        if owner.epoch + 2 < self._settings.epoch_max:
            owner = ProducerIdentity(owner.producer_id, owner.epoch + 1)
        else:
            owner = ProducerIdentity(self._new_producer_id(), 0)
        is_other = owner.producer_id != before.producer_id
        after = before._replace(
            next_producer_id=owner.producer_id if is_other else NO_PRODUCER_ID,
            next_producer_epoch=owner.epoch,
            updated_ms=now_ms,
        )
        return self._write(transactional_id, after, now_ms, reply=ProducerIdReply(owner, before.identity))

    def _add(self, request: AddPartitions, now_ms: int) -> Decision:
        """Raises InvalidProducerIdMappingError, ProducerFencedError and ConcurrentTransactionsError.
        TransactionAbortableError: a partition to be verified is not in the open transaction. InvalidTxnStateError: the
        transaction is prepared, or the batch of the sink is decided."""
        self._check_sink(request.transactional_id)
        transactional_id, before = self._known(request.transactional_id)
        if request.identity != before.owner:
            raise fenced(transactional_id, request.identity, before)
        if before.state in PREPARING:
            raise concurrent(transactional_id, before)
        is_open = before.state is TransactionState.ONGOING
        there = before.partitions if is_open else frozenset()
        if is_open and before.is_prepared:
            raise InvalidTxnStateError(
                f"transaction of {transactional_id!r} is prepared: complete the transaction before the next send"
            )
        if is_open and before.owner != before.identity:  # markers would name the former producer
            raise InvalidTxnStateError(
                f"the open transaction of {transactional_id!r} belongs to the former producer: complete the "
                "transaction before the next send"
            )
        if request.partitions <= there:
            return Decision()
        if request.verify_only:
            missing = ", ".join(sorted(map(str, request.partitions - there))[:3])
            raise TransactionAbortableError(
                f"partitions {missing} are not in the open transaction of {transactional_id!r}; abort the transaction "
                "and begin a new one"
            )
        after = before._replace(
            state=TransactionState.ONGOING,
            partitions=there | request.partitions,
            version=request.version,
            updated_ms=now_ms,
            started_ms=before.started_ms if is_open else now_ms,
            open_ms=before.open_ms if is_open else 0,
        )
        value = encode_value(after)
        if len(value) > RECORD_BYTES_MAX:
            raise InvalidRequestError(
                f"transaction of {transactional_id!r} would have {len(after.partitions)} partitions, more than fit "
                f"into a record of {RECORD_BYTES_MAX} bytes: write to fewer partitions in one transaction"
            )
        return self._write(transactional_id, after, now_ms, value=value)

    def _end_asked(self, request: EndTransaction | CompleteTransaction, now_ms: int) -> Decision:
        """Raises InvalidProducerIdMappingError, ProducerFencedError, ConcurrentTransactionsError and
        InvalidTxnStateError. TransactionAbortableError: the request commits a transaction that a timeout or an
        administrator has aborted."""
        is_token = isinstance(request, CompleteTransaction)
        sink = parse_sink_transaction(request.transactional_id)
        record = NO_RECORD if sink is None else self.sinks.get(sink.sink, NO_RECORD)
        if sink is not None and (is_token or request.commit) and has_ended_so(sink, record, request):
            return Decision()
        transactional_id, before = self._known(request.transactional_id)
        version = BUMPING_VERSION if isinstance(request, CompleteTransaction) else request.version
        if before.state is TransactionState.ONGOING:
            if request.identity != (before.identity if is_token else before.owner):
                raise fenced(transactional_id, request.identity, before)
            if is_token and not before.is_undecided_for_ever:
                raise InvalidTxnStateError(
                    f"transaction of {transactional_id!r} is not prepared: prepare the transaction first"
                )
            decision = self._end(transactional_id, before._replace(version=version), now_ms, commit=request.commit)
            return decision._replace(reply=None) if is_token else decision
        if _is_repeated(before, request, version):
            if (before.state in COMMITTED) == request.commit:
                return Decision(reply=None if is_token else before.owner)
            if request.commit and not is_token:
                raise aborted(transactional_id)
            outcome = "committed" if before.state in COMMITTED else "aborted"
            raise InvalidTxnStateError(
                f"transaction of {transactional_id!r} is already {outcome} and cannot be changed"
            )
        if request.identity != before.owner:
            raise fenced(transactional_id, request.identity, before)
        if before.state in PREPARING:
            raise concurrent(transactional_id, before)
        if request.commit or is_token or version < BUMPING_VERSION:
            raise InvalidTxnStateError(f"no transaction of {transactional_id!r} is open: send a record first")
        return self._end(transactional_id, before._replace(version=version), now_ms, commit=False)

    def _prepare(self, request: PrepareTransaction, now_ms: int) -> Decision:
        """Raises the errors of AddPartitions. TransactionAbortableError also means that a timeout or an administrator
        has aborted the transaction."""
        self._check_sink(request.transactional_id)
        transactional_id, before = self._known(request.transactional_id)
        if request.identity != before.owner:
            if before.state in ABORTED and before.was_owned_by(request.identity):
                raise aborted(transactional_id)
            raise fenced(transactional_id, request.identity, before)
        if before.state in PREPARING:
            raise concurrent(transactional_id, before)
        if before.state is TransactionState.ONGOING and before.is_prepared:
            if before.owner != before.identity:
                raise InvalidTxnStateError(
                    f"transaction of {transactional_id!r} was prepared by an earlier producer: complete the "
                    "transaction first"
                )
            return Decision(reply=before.identity)
        is_open = before.state is TransactionState.ONGOING
        after = before._replace(
            state=TransactionState.ONGOING,
            partitions=before.partitions if is_open else frozenset(),
            version=BUMPING_VERSION,
            is_prepared=True,
            updated_ms=now_ms,
            started_ms=before.started_ms if is_open else now_ms,
            open_ms=0,
        )
        return self._write(transactional_id, after, now_ms, reply=after.identity)

    def _abort(self, request: AbortTransaction, now_ms: int) -> Decision:
        """Raises TransactionalIdNotFoundError, and InvalidTxnStateError if no transaction is open."""
        transactional_id, before = self._described(request.transactional_id)
        if before.state is not TransactionState.ONGOING:
            raise InvalidTxnStateError(
                f"no transaction of {transactional_id!r} is open: its state is {before.state.name}"
            )
        return self._end(transactional_id, before, now_ms, commit=False, is_fence=True)._replace(reply=None)

    def _markers_written(self, request: MarkersWritten, now_ms: int) -> Decision:
        """A report about a marker that is not missing is ignored: the report may be late, or belong to a former
        owner."""
        transaction = self.transactions.get(request.transactional_id)
        if transaction is None or transaction.state not in PREPARING or transaction.identity != request.identity:
            return Decision()
        missing = self._missing[request.transactional_id] - request.partitions
        self._missing[request.transactional_id] = missing
        return Decision() if missing else self._complete(request.transactional_id, transaction, now_ms)

    def _describe(self, request: DescribeTransaction, now_ms: int) -> Decision:
        """Raises TransactionalIdNotFoundError."""
        transactional_id, transaction = self._described(request.transactional_id)
        missing = self._missing.get(transactional_id, transaction.partitions)
        return Decision(reply=transaction._replace(partitions=missing))

    def _list(self, request: ListTransactions, now_ms: int) -> Decision:
        found = (
            ListedTransaction(
                transactional_id,
                transaction.producer_id,
                transaction.state,
                transaction.is_prepared,
                transaction.started_ms if transaction.state in _OPEN else -1,
            )
            for transactional_id, transaction in self.transactions.items()
            if (not request.states or (transaction.state, transaction.is_prepared) in request.states)
            and (not request.producer_ids or transaction.producer_id in request.producer_ids)
            and transactional_id.startswith(request.prefix)
            and transactional_id > request.after
            and (
                request.open_for_ms < 0
                or (transaction.state in _OPEN and now_ms - transaction.started_ms >= request.open_for_ms)
            )
        )
        return Decision(reply=tuple(heapq.nsmallest(LISTED_MAX, found)))

    def _end(
        self,
        transactional_id: str,
        before: Transaction,
        now_ms: int,
        *,
        commit: bool,
        is_fence: bool = False,
        forget_producer: bool = False,
    ) -> Decision:
        """Decide the transaction. ``is_fence``: another client than the producer asked for the end, so the epoch is
        incremented under every transaction version. The epoch is also incremented if a new producer has taken over the
        transaction (``keep_prepared``), because the batches have the former producer's epoch. ``forget_producer``: the
        producer must not even learn the transaction's outcome, because another producer replaces this producer."""
        marker, owner = before.identity, before.owner
        if is_fence or before.version >= BUMPING_VERSION or owner != before.identity:
            if owner.producer_id != before.producer_id:
                marker = ProducerIdentity(before.producer_id, before.producer_epoch + 1)
                owner = ProducerIdentity(owner.producer_id, owner.epoch + 1)
            else:
                marker = owner = ProducerIdentity(owner.producer_id, owner.epoch + 1)
                if marker.epoch >= self._settings.epoch_max and not forget_producer:
                    owner = ProducerIdentity(self._new_producer_id(), 0)
        is_other = owner.producer_id != marker.producer_id
        after = before._replace(
            producer_epoch=marker.epoch,
            next_producer_id=owner.producer_id if is_other else NO_PRODUCER_ID,
            next_producer_epoch=owner.epoch if is_other else NO_EPOCH,
            last_producer_epoch=NO_EPOCH if forget_producer else before.producer_epoch,
            state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
            updated_ms=now_ms,
            is_prepared=False,
            open_ms=0,
        )
        is_open = before.state is TransactionState.ONGOING
        if not is_open or not before.partitions:
            after = after._replace(partitions=frozenset())
            return self._complete(transactional_id, after, now_ms)._replace(reply=owner)
        decision = self._write(transactional_id, after, now_ms, reply=owner)
        self._missing[transactional_id] = after.partitions
        sink = parse_sink_transaction(transactional_id)
        if sink is not None:
            self._sink_endings[sink.sink] += 1
        return decision._replace(pushes=(_markers(transactional_id, after, after.partitions),))

    def _complete(self, transactional_id: str, before: Transaction, now_ms: int) -> Decision:
        """Complete the transaction, because all its markers are written. The record of a completed transaction contains
        the producer's next id and epoch."""
        after = before._replace(
            producer_id=before.owner.producer_id,
            producer_epoch=before.owner.epoch,
            previous_producer_id=before.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            next_producer_epoch=NO_EPOCH,
            state=TransactionState(before.state + 2),
            partitions=frozenset(),
            updated_ms=now_ms,
        )
        was_ending = self._missing.pop(transactional_id, None) is not None
        pushes: tuple[object, ...] = (TransactionEnded(transactional_id),)
        sink = parse_sink_transaction(transactional_id)
        if sink is not None:
            self._free[transactional_id] = None
            self._sink_endings[sink.sink] -= was_ending
            if not self._sink_endings[sink.sink]:
                del self._sink_endings[sink.sink]
                pushes += (TransactionEnded(sink.sink),)
        return self._write(transactional_id, after, now_ms)._replace(pushes=pushes)

    def is_ending(self, key: str) -> bool:
        """Whether markers of a decided transaction are missing. ``key`` is a transactional id, or a sink's id for all
        transactions of the sink."""
        transaction = self.transactions.get(key)
        return key in self._sink_endings or (transaction is not None and transaction.state in PREPARING)

    # -- exactly-once sinks ------------------------------------------------------------------------------------------

    def _check_sink(self, transactional_id: str) -> SinkTransaction | None:
        """The parts of a sink's transactional id, None for other ids. Raises InvalidRequestError (the id is too long),
        InvalidTxnStateError (the batch is decided) and ProducerFencedError (the batch was aborted)."""
        sink = parse_sink_transaction(transactional_id)
        if sink is not None:
            check_names(sink)
            check_open(sink, self.sinks.get(sink.sink, NO_RECORD))
        return sink

    def _describe_sink(self, request: DescribeSink, now_ms: int) -> Decision:
        sink = checked_sink(request.sink)
        if sink in self.sinks:
            self._described_ms[sink] = now_ms
        return Decision(reply=_sink_state(self.sinks.get(sink, NO_RECORD)))

    def _commit_sink(self, request: CommitSinkBatch, now_ms: int) -> Decision:
        """Raises InvalidRequestError, ProducerFencedError (a token has an older generation) and InvalidTxnStateError (a
        token's transaction is not prepared)."""
        record = self.sinks.get(checked_sink(request.sink), NO_RECORD)
        if request.batch <= record.batch:
            return Decision(reply=_sink_state(record))
        made = decided(request, record, now_ms)
        wrong = [str(token) for token, identity in request.tokens if not self._is_prepared(str(token), identity)]
        if wrong:
            raise unprepared(wrong)
        return self._write_sink(request.sink, made, now_ms)

    def _abort_sink(self, request: AbortSinkBatch, now_ms: int) -> Decision:
        """Raises InvalidRequestError."""
        record = self.sinks.get(checked_sink(request.sink), NO_RECORD)
        if request.generation > record.generation:
            raise InvalidRequestError(
                f"{request.sink!r} has generation {record.generation}, not {request.generation}: read the sink's state "
                "again"
            )
        if request.batch <= record.batch or request.generation < record.generation:
            return Decision(reply=_sink_state(record))
        made = msgspec.structs.replace(
            record, generation=record.generation + 1, is_final=request.is_final, updated_ms=now_ms
        )
        return self._write_sink(request.sink, made, now_ms)

    def _is_prepared(self, transactional_id: str, identity: ProducerIdentity) -> bool:
        transaction = self.transactions.get(transactional_id)
        return transaction is not None and transaction.is_prepared and transaction.identity == identity

    def _write_sink(self, sink: str, record: SinkRecord, now_ms: int) -> Decision:
        self.sinks[sink] = record
        ends = self._end_decided(sink, now_ms)
        written = ShardRecord(encode_sink_key(sink), encode_sink_value(record))
        return Decision((written, *ends.records), _sink_state(record), ends.pushes, is_atomic=False)

    def _end_decided(self, sink: str, now_ms: int) -> Decision:
        """End those open transactions of a sink whose outcome is determined by the sink's record."""
        record, prefix = self.sinks[sink], f"{sink}/"
        named = frozenset(record.tokens)
        records: list[ShardRecord] = []
        pushes: list[object] = []
        for transactional_id, before in list(self.transactions.items()):
            if before.state is not TransactionState.ONGOING or not transactional_id.startswith(prefix):
                continue
            found = parse_sink_transaction(transactional_id)
            if found is None or not record.is_over(found):
                continue
            commit = found.batch == record.batch and (found.nonce, *before.identity) in named
            # The producer is forgotten: a sink's transactional id is used once, so its producer needs no next identity
            decision = self._end(transactional_id, before, now_ms, commit=commit, is_fence=True, forget_producer=True)
            records += decision.records
            pushes += decision.pushes
        return Decision(tuple(records), None, tuple(pushes))

    def _free_id(self) -> str | None:
        """Remove and return a completed transactional id of a sink, whose producer id a new id may take over. If the
        producer began another transaction, its id is not free until that transaction is complete."""
        while self._free:
            del self._free[transactional_id := next(iter(self._free))]
            transaction = self.transactions.get(transactional_id)
            if transaction is None or transaction.state not in _COMPLETE:
                continue
            if transaction.producer_epoch + 1 < self._settings.epoch_max:
                return transactional_id
        return None

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Decision:
        """Abort transactions that have timed out, with prepared transactions of sinks without a decision; write the
        ages of others. Remove transactional ids and sinks that were not used for transactional.id.expiration.ms, and
        the used ids of sinks."""
        records: list[ShardRecord] = []
        pushes: list[object] = []
        done = 0
        while done < ABORTS_PER_TICK and (timeout := self._timeouts.pop_due(now_ms)) is not None:
            transaction = self._waiting_for(timeout)
            if transaction is None:
                continue
            done += 1
            if (open_ms := self._timeouts.aged(timeout, now_ms)) is not None:
                aged = transaction._replace(open_ms=open_ms)
                records += self._write(timeout.transactional_id, aged, now_ms).records
                continue
            try:
                decision = self._end(timeout.transactional_id, transaction, now_ms, commit=False, is_fence=True)
            except RetriableError:  # no new producer id is available yet
                self._timeouts.again(timeout, now_ms, RETRY_MS)
                continue
            records += decision.records
            pushes += decision.pushes
        if not done:
            records += self._expire(now_ms)
        return Decision(tuple(records), None, tuple(pushes), is_atomic=False)

    def next_due_ms(self) -> int | None:
        if self._expiring is not None:
            return 0
        due = (self._next_expiry_ms, self._timeouts.next_ms())
        return min((each for each in due if each is not None), default=None)

    def _expire(self, now_ms: int) -> list[ShardRecord]:
        if self._expiring is None:
            if self._next_expiry_ms is None or now_ms < self._next_expiry_ms:
                return []
            self._next_expiry_ms = now_ms + self._settings.expiration_interval_ms
            self._expiring = iter((*self.transactions, *self.sinks))
        tombstones: list[ShardRecord] = []
        for _ in range(EXPIRIES_PER_TICK):
            key = next(self._expiring, None)
            if key is None:
                self._expiring = None
                break
            transaction, sink = self.transactions.get(key), self.sinks.get(key)
            if transaction is not None and None in LEGAL[transaction.state]:
                is_of_sink = parse_sink_transaction(key) is not None
                kept_ms = self._settings.sink_timeout_ms if is_of_sink else self._settings.expiration_ms
                if self._age_ms(transaction.updated_ms, now_ms) >= kept_ms:
                    tombstones.append(self._remove(key))
            elif sink is not None and self._is_expired(key, sink, now_ms):
                del self.sinks[key]
                self._described_ms.pop(key, None)
                tombstones.append(ShardRecord(encode_sink_key(key), None))
        return tombstones

    def _is_expired(self, key: str, sink: SinkRecord, now_ms: int) -> bool:
        """Whether no query uses the sink any more. Guard: a sink with transactional ids is in use, because without its
        record a late task of an old generation could prepare. A task reads the sink's state before it gets a
        transactional id, so reading the sink's state counts as use of the sink. A new owner of the shard does not know
        the reads, but its first expiry is an interval later."""
        kept_ms = self._settings.sink_timeout_ms if sink.is_final else self._settings.expiration_ms
        used_ms = max(sink.updated_ms, self._described_ms.get(key, sink.updated_ms))
        return self._age_ms(used_ms, now_ms) >= kept_ms and key not in self._sink_ids

    def _age_ms(self, used_ms: int, now_ms: int) -> int:
        """The time since a record was used, by the wall clocks of its owners. If this owner's clock was set forward,
        the age counts from then at the earliest, because the time between did not pass."""
        return now_ms - max(used_ms, self._set_forward_ms)

    def _remove(self, transactional_id: str) -> ShardRecord:
        """Remove the transactional id; return its tombstone."""
        assert None in LEGAL[self.transactions[transactional_id].state]
        self._set(transactional_id, None)
        return ShardRecord(encode_key(transactional_id), None)

    def _watch(self, transactional_id: str, transaction: Transaction, now_ms: int) -> None:
        """Note when the open transaction times out, if it began or was prepared now. A prepared transaction of a sink
        times out, too, because its query may never return."""
        timeout_ms = transaction.timeout_ms
        if transaction.is_prepared and parse_sink_transaction(transactional_id) is not None:
            timeout_ms = self._settings.sink_timeout_ms
        elif transaction.is_undecided_for_ever:
            return
        self._timeouts.add(transactional_id, transaction, timeout_ms, now_ms)
        self._timeouts.forget_ended(len(self.transactions), self._waiting_for)

    def _waiting_for(self, timeout: Timeout) -> Transaction | None:
        """The open transaction that a timeout belongs to, None if that transaction has ended."""
        transaction = self.transactions.get(timeout.transactional_id)
        return transaction if transaction is not None and timeout.is_of(transaction) else None

    def _known(self, transactional_id: str) -> tuple[str, Transaction]:
        transaction = self.transactions.get(_checked_id(transactional_id))
        if transaction is None:
            raise InvalidProducerIdMappingError(
                f"transactional id {transactional_id!r} is unknown, or was not used for "
                f"{self._settings.expiration_ms} ms (transactional.id.expiration.ms): create a new producer"
            )
        return transactional_id, transaction

    def _described(self, transactional_id: str) -> tuple[str, Transaction]:
        transaction = self.transactions.get(_checked_id(transactional_id))
        if transaction is None:
            raise TransactionalIdNotFoundError(f"transactional id {transactional_id!r} is unknown")
        return transactional_id, transaction

    def _write(
        self,
        transactional_id: str,
        after: Transaction,
        now_ms: int,
        *,
        reply: object = None,
        value: bytes | None = None,
    ) -> Decision:
        """``value``: the encoded transaction, if the caller has it."""
        before = self.transactions.get(transactional_id)
        was = None if before is None else before.state
        assert after.state in LEGAL[was], f"{transactional_id}: {was} to {after.state}"
        # Raises an error if a new transactional id is not allowed.
        record = ShardRecord(encode_key(transactional_id), value or encode_value(after))
        self._set(transactional_id, after)
        if after.state is TransactionState.ONGOING and (
            before is None or was is not after.state or before.is_prepared != after.is_prepared
        ):
            self._watch(transactional_id, after, now_ms)
        return Decision((record,), reply)


def _sink_state(record: SinkRecord) -> SinkState:
    return SinkState(record.batch, record.generation)


_COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
#: States of a transaction that has begun and whose markers are not all written.
_OPEN = (TransactionState.ONGOING, *PREPARING)


def _is_repeated(before: Transaction, request: EndTransaction | CompleteTransaction, version: int) -> bool:
    """Whether the request repeats the request that decided the last transaction. Transaction version 1 keeps the
    producer's epoch when a transaction ends."""
    if before.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return False
    if isinstance(request, CompleteTransaction):
        return before.last_producer_epoch != NO_EPOCH and request.identity == before.ran_under
    if version < BUMPING_VERSION:
        return request.identity == before.identity
    return before.was_owned_by(request.identity)


def _checked_id(transactional_id: str) -> str:
    if not transactional_id:
        raise InvalidRequestError("the transactional id is empty: set transactional.id")
    return transactional_id


def _markers(transactional_id: str, transaction: Transaction, partitions: frozenset[TopicPartition]) -> WriteMarkers:
    return WriteMarkers(
        transactional_id, transaction.identity, transaction.state in COMMITTED, transaction.version, partitions
    )


_RULES: dict[type, Callable[[TransactionsStateMachine, Any, int], Decision]] = {
    InitProducerId: TransactionsStateMachine._init,
    AddPartitions: TransactionsStateMachine._add,
    EndTransaction: TransactionsStateMachine._end_asked,
    CompleteTransaction: TransactionsStateMachine._end_asked,
    PrepareTransaction: TransactionsStateMachine._prepare,
    AbortTransaction: TransactionsStateMachine._abort,
    MarkersWritten: TransactionsStateMachine._markers_written,
    DescribeTransaction: TransactionsStateMachine._describe,
    ListTransactions: TransactionsStateMachine._list,
    DescribeSink: TransactionsStateMachine._describe_sink,
    CommitSinkBatch: TransactionsStateMachine._commit_sink,
    AbortSinkBatch: TransactionsStateMachine._abort_sink,
    ClockSet: TransactionsStateMachine._clock_set,
}
