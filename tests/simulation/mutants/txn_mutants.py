"""Mutants: transaction coordinators, and transaction code of brokers, each with one guard removed. The simulator of
transactions must detect each mutant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace_broker import leader_replica
from headrace_broker.leader_replica import LeaderReplica
from headrace_broker.replication.follower_replica import FollowerReplica
from headrace_coordinator.runtime.shard import Answer, Shard, Tell
from headrace_coordinator.state_machine import Decision
from headrace_coordinator.transaction import transactions as rules
from headrace_coordinator.transaction.messages import (
    AddPartitions,
    CompleteTransaction,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    ProducerIdReply,
    WriteMarkers,
)
from headrace_coordinator.transaction.state import PREPARING, Transaction, TransactionState
from headrace_coordinator.transaction.transactions import TransactionsStateMachine
from headrace_coordinator.transport import markers
from headrace_coordinator.transport.markers import MarkerSender
from headrace_core.errors import HeadraceError, InvalidProducerEpochError
from headrace_core.log import LogConfig, group, transactions
from headrace_core.log.partition_log import PartitionLog
from headrace_core.log.producer_state import Check, Checked, ProducerEntry, ProducerTable
from headrace_core.log.transactions import Marker, TransactionalAppend
from headrace_core.membership.transaction_partitions import TransactionPartitions
from tests.simulation.mutants.mutant import Mutant, Patch

TRANSACTIONS = "transactions"
_StateMachine = TransactionsStateMachine
_RULES = rules._RULES


def _with_rule(request: type, instead: Callable[[Any, Any, int], Decision]) -> Patch:
    """Replace the state machine's rule for a kind of request."""
    return Patch(rules, "_RULES", {**_RULES, request: instead})


# -- the coordinator: identities ---------------------------------------------------------------------------------------


def _owned(self: _StateMachine, request: Any) -> Any:
    """Return the request with the present epoch in place of its own."""
    before = self.transactions.get(request.transactional_id)
    return request if before is None else request._replace(identity=before.owner)


def _end_for_any_epoch(self: _StateMachine, request: EndTransaction, now_ms: int) -> Decision:
    return self._end_asked(_owned(self, request), now_ms)


def _add_for_any_epoch(self: _StateMachine, request: AddPartitions, now_ms: int) -> Decision:
    return self._add(_owned(self, request), now_ms)


_end = _StateMachine._end


def _end_without_a_new_epoch(
    self: _StateMachine, transactional_id: str, before: Transaction, now_ms: int, **given: Any
) -> Decision:
    """End a transaction of version 2 by the rules of version 1."""
    return _end(self, transactional_id, before._replace(version=1), now_ms, **given)


_next_epoch = _StateMachine._next_epoch


def _same_epoch_again(
    self: _StateMachine, transactional_id: str, before: Transaction, expected: Any, timeout_ms: int, now_ms: int
) -> Decision:
    return Decision(reply=ProducerIdReply(before.identity))


def _one_epoch_too_many(self: _StateMachine, *arguments: Any, **given: Any) -> Decision:
    settings = self._settings
    object.__setattr__(self, "_settings", _Settings(settings))
    try:
        return _end(self, *arguments, **given)
    finally:
        object.__setattr__(self, "_settings", settings)


class _Settings:
    """Allow one more epoch than the real settings."""

    def __init__(self, settings: Any) -> None:
        self._of = settings
        self.epoch_max = settings.epoch_max + 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def _never_repeated(before: Transaction, request: Any, version: int) -> bool:
    return False


_end_asked = _StateMachine._end_asked


def _any_outcome_is_right(self: _StateMachine, request: Any, now_ms: int) -> Decision:
    """Answer the commit of an aborted transaction as if it had been committed."""
    before = self.transactions.get(request.transactional_id)
    if (
        before is not None
        and isinstance(request, EndTransaction)
        and rules._is_repeated(before, request, request.version)
    ):
        return Decision(reply=before.owner)
    return _end_asked(self, request, now_ms)


_watch = _StateMachine._watch


def _count_from_the_start(self: _StateMachine, transactional_id: str, transaction: Transaction, now_ms: int) -> None:
    _watch(self, transactional_id, transaction, min(transaction.started_ms, now_ms))


def _as_for_clients(self: LogConfig) -> LogConfig:
    return self


# -- the coordinator: states -------------------------------------------------------------------------------------------

_add = _StateMachine._add
_init = _StateMachine._init


def _add_before_the_markers(self: _StateMachine, request: AddPartitions, now_ms: int) -> Decision:
    before = self.transactions.get(request.transactional_id)
    if before is not None and before.state in PREPARING and request.identity == before.owner:
        return Decision()
    return _add(self, request, now_ms)


def _add_without_a_record(self: _StateMachine, request: AddPartitions, now_ms: int) -> Decision:
    """Let a partition join an open transaction."""
    before = self.transactions.get(request.transactional_id)
    decision = _add(self, request, now_ms)
    if before is not None and before.state is TransactionState.ONGOING and decision.records:
        self.transactions[request.transactional_id] = before
        return Decision()
    return decision


def _complete_after_one_marker(self: _StateMachine, request: MarkersWritten, now_ms: int) -> Decision:
    if request.transactional_id in self._missing:
        self._missing[request.transactional_id] = request.partitions
    return self._markers_written(request, now_ms)


def _any_report_counts(self: _StateMachine, request: MarkersWritten, now_ms: int) -> Decision:
    """Count a late report about the previous transaction as a report about the present transaction."""
    transaction = self.transactions.get(request.transactional_id)
    if transaction is not None:
        request = request._replace(identity=transaction.identity)
    return self._markers_written(request, now_ms)


_loaded = _StateMachine.loaded


def _no_markers_at_hand_over(self: _StateMachine, now_ms: int) -> Decision:
    return _loaded(self, now_ms)._replace(pushes=())


def _no_timeouts_at_hand_over(self: _StateMachine, now_ms: int) -> Decision:
    decision = _loaded(self, now_ms)
    self._timeouts = type(self._timeouts)()
    return decision


def _no_timeouts(self: _StateMachine, transactional_id: str, transaction: Transaction, now_ms: int) -> None:
    pass


_watch = _StateMachine._watch


def _timeout_too_soon(self: _StateMachine, transactional_id: str, transaction: Transaction, now_ms: int) -> None:
    _watch(self, transactional_id, transaction._replace(timeout_ms=transaction.timeout_ms // 4), now_ms)


def _prepared_times_out(transaction: Transaction) -> bool:
    return False


def _keeps_nothing(self: _StateMachine, request: InitProducerId, now_ms: int) -> Decision:
    return _init(self, request._replace(keep_prepared=False), now_ms)


def _takes_what_is_open(self: _StateMachine, request: InitProducerId, now_ms: int) -> Decision:
    """Keep transactions without keep_prepared too, and transactions that are not prepared."""
    before = self.transactions.get(request.transactional_id)
    if before is not None and before.state is TransactionState.ONGOING:
        return self._take_prepared(request.transactional_id, before, now_ms)
    return _init(self, request, now_ms)


def _complete_any_token(self: _StateMachine, request: CompleteTransaction, now_ms: int) -> Decision:
    before = self.transactions.get(request.transactional_id)
    if before is not None and before.state is TransactionState.ONGOING:
        request = request._replace(identity=before.identity)
    return _end_asked(self, request, now_ms)


# -- the coordinator's runtime -----------------------------------------------------------------------------------------

_decided = Shard._decided


def _answer_before_the_commit(self: Shard, ticket: object, decision: Decision) -> None:
    if ticket is not None:
        self._todo.append(Answer(ticket, decision.reply))
    _decided(self, None, decision)


def _tell_before_the_commit(self: Shard, ticket: object, decision: Decision) -> None:
    if decision.pushes:
        self._todo.append(Tell(decision.pushes))
    _decided(self, ticket, decision._replace(pushes=()))


# -- markers -----------------------------------------------------------------------------------------------------------


async def _never_again(self: MarkerSender, *arguments: Any) -> None:
    pass


def _first_partition_only(self: MarkerSender, runner: Any, order: WriteMarkers) -> None:
    self._route(runner, order, sorted(order.partitions)[:1], markers.Backoff())
    self._written(runner, order, order.partitions - set(sorted(order.partitions)[:1]))


def _always_commits(marker: Marker, now_ms: int) -> bytes:
    return _marker_batch(marker._replace(commit=True), now_ms)


_marker_batch = transactions.marker_batch
_must_append = transactions.must_append


def _late_markers_end(marker: Marker, entry: ProducerEntry | None, partition: Any) -> bool:
    """Let a marker with an equal epoch end the open transaction also under version 2."""
    return _must_append(marker._replace(version=1), entry, partition)


def _old_markers_end(marker: Marker, entry: ProducerEntry | None, partition: Any) -> bool:
    try:
        return _must_append(marker, entry, partition)
    except InvalidProducerEpochError:
        return True


_appended = LeaderReplica._appended


def _answer_when_appended(self: LeaderReplica, append: Any, outcome: Any) -> None:
    """Answer a marker when it is on the leader's disk, before it is committed."""
    if isinstance(append.transaction, Marker):
        append.committed = False
    _appended(self, append, outcome)


def _answer_repeated_markers_at_once(self: LeaderReplica, append: Any, outcome: Any) -> None:
    if not isinstance(outcome, HeadraceError) and outcome.is_duplicate and isinstance(append.transaction, Marker):
        append.committed = False
    _appended(self, append, outcome)


# -- verification ------------------------------------------------------------------------------------------------------


def _verify_nothing(self: LeaderReplica, append: Any, transaction: Any) -> bool:
    append.transaction = TransactionalAppend(transaction.version, is_verified=True)
    return True


_is_verified = LeaderReplica._is_verified


def _verify_a_producer_once(self: LeaderReplica, append: Any, transaction: Any) -> bool:
    if self.log.producers.get(transaction.producer_id) is not None:
        return _verify_nothing(self, append, transaction)
    return _is_verified(self, append, transaction)


_until_answered = TransactionPartitions._until_answered


async def _a_refusal_is_a_yes(self: TransactionPartitions, producer: Any, partitions: Any) -> int:
    try:
        return await _until_answered(self, producer, partitions)
    except HeadraceError as error:
        if error.retriable:
            raise
        return 0


async def _no_answer_is_a_yes(self: TransactionPartitions, producer: Any, partitions: Any) -> int:
    try:
        return await self._ask(producer, partitions)
    except HeadraceError as error:
        if not error.retriable:
            raise
        return 0


async def _verify_the_first_partition(self: TransactionPartitions, producer: Any, partitions: Any) -> int:
    return await _until_answered(self, producer, partitions[:1])


# -- the log: batches --------------------------------------------------------------------------------------------------

_check = ProducerTable.check


def _repeats_are_new(self: ProducerTable, header: Any) -> Checked:
    checked = _check(self, header)
    return Checked(Check.NEXT) if checked.check is Check.DUPLICATE else checked


# -- the log: last stable offset and aborted transactions --------------------------------------------------------------


def _all_is_stable(self: ProducerTable, high_watermark: int) -> int:
    return high_watermark


def _one_open_transaction_at_a_time(self: ProducerTable, high_watermark: int) -> int:
    """Compute the last stable offset from the open transaction that began last, and not from the one that began
    first."""
    open_ones, _ = self._undecided
    return min(open_ones[-1].first_offset, high_watermark) if open_ones else high_watermark


def _nothing_is_aborted(self: PartitionLog, start: int, end: int, *, wait: bool = True) -> list[Any]:
    return []


def _only_the_last_segment(self: PartitionLog, segments: Any) -> Any:
    return segments[-1:]


_transaction_ended = ProducerTable._transaction_ended


def _aborts_count_as_commits(self: ProducerTable, ended: Any, is_abort: bool) -> None:
    _transaction_ended(self, ended, False)


_from_snapshot = ProducerTable.from_snapshot.__func__  # type: ignore[attr-defined]


def _snapshots_without_transactions(cls: Any, data: Any, path: str, next_offset: int) -> ProducerTable:
    table = _from_snapshot(cls, data, path, next_offset)
    for entry in table:
        entry.transaction_first_offset = None
    made: ProducerTable = cls(list(table), next_offset=next_offset)
    return made


def _followers_read_everything(self: FollowerReplica, offset: int, max_bytes: int, up_to: int, **given: Any) -> Any:
    return self.log.read(offset, max_bytes, up_to, wait=False)


def _mutant(name: str, breaks: str, *patches: Patch, faults: tuple[str, ...] = ()) -> Mutant:
    return Mutant(name, breaks, 20, patches, part=TRANSACTIONS, faults=faults)


LATE = ("ends_late", "produce_late")
MARKERS = ("markers_late", "markers_doubled", "markers_held", "hand_over_in_prepare")
HAND_OVER = ("coordinator_crash", "hand_over_in_prepare", "shards_move")

MUTANTS: tuple[Mutant, ...] = (
    _mutant("EndsForAnyEpoch", "KIP-890: a late end is fenced", _with_rule(EndTransaction, _end_for_any_epoch),
            faults=(*LATE, "zombie")),
    _mutant("AddsForAnyEpoch", "KIP-890: a zombie's batch is fenced", _with_rule(AddPartitions, _add_for_any_epoch),
            faults=("zombie", "produce_late")),
    _mutant("EndsWithoutANewEpoch", "KAFKA-17754", Patch(_StateMachine, "_end", _end_without_a_new_epoch), faults=LATE),
    _mutant("GivesAnEpochTwice", "KIP-98: a new producer fences the former",
            Patch(_StateMachine, "_next_epoch", _same_epoch_again), faults=("zombie", "producer_doubled")),
    _mutant("GivesTheLastEpochAway", "KIP-360: the largest epoch is for markers",
            Patch(_StateMachine, "_end", _one_epoch_too_many)),
    _mutant("RepeatedEndsAreFenced", "KIP-890: a retried end is answered from the state",
            Patch(rules, "_is_repeated", _never_repeated), faults=("append_answer_lost", "delay", "ends_late")),
    _mutant("AnyOutcomeIsRight", "KIP-1050: what a timeout has aborted is not committed",
            _with_rule(EndTransaction, _any_outcome_is_right), faults=("producer_paused", "operator_aborts")),
    _mutant("AddsBeforeTheMarkers", "KIP-890: the next transaction waits for the markers of the former",
            _with_rule(AddPartitions, _add_before_the_markers), faults=MARKERS),
    _mutant("AddsWithoutARecord", "KIP-98: a partition is in the transaction before its first batch",
            _with_rule(AddPartitions, _add_without_a_record)),
    _mutant("CompletesAfterOneMarker", "KIP-98: a transaction is complete when all have their marker",
            _with_rule(MarkersWritten, _complete_after_one_marker), faults=("marker_and_failover", "markers_lost")),
    _mutant("ForgetsMarkersAtHandOver", "KIP-98: a new owner writes the missing markers",
            Patch(_StateMachine, "loaded", _no_markers_at_hand_over), faults=HAND_OVER),
    _mutant("ForgetsTimeoutsAtHandOver", "KIP-98: transaction.timeout.ms survives a hand-over",
            Patch(_StateMachine, "loaded", _no_timeouts_at_hand_over), faults=HAND_OVER),
    _mutant("NeverTimesOut", "KIP-98: transaction.timeout.ms", Patch(_StateMachine, "_watch", _no_timeouts)),
    _mutant("TimesOutTooSoon", "KIP-98: transaction.timeout.ms", Patch(_StateMachine, "_watch", _timeout_too_soon),
            faults=("producer_paused",)),
    _mutant("PreparedOnesTimeOut", "KIP-939: a prepared transaction has no timeout",
            Patch(Transaction, "is_undecided_for_ever", property(_prepared_times_out)), faults=("hand_over_prepared",)),
    _mutant("KeepsNothingPrepared", "KIP-939: keep_prepared", _with_rule(InitProducerId, _keeps_nothing),
            faults=("hand_over_prepared",)),
    _mutant("TakesWhatIsOpen", "KIP-98: a new producer ends the open transaction",
            _with_rule(InitProducerId, _takes_what_is_open), faults=("producer_killed", "zombie")),
    _mutant("CountsFromTheStart", "a take-over compares two nodes' clocks",
            Patch(_StateMachine, "_watch", _count_from_the_start), faults=("coordinator_crash", "shards_move")),
    _mutant("LeadersCheckTheTimesOfTransactions", "a leader and a coordinator have one clock (KIP-937)",
            Patch(LogConfig, "for_coordinators", _as_for_clients)),
    _mutant("CompletesAnyToken", "KIP-939: a token names one transaction",
            _with_rule(CompleteTransaction, _complete_any_token), faults=("hand_over_prepared",)),
    _mutant("AnswersBeforeTheDecisionIsCommitted", "KIP-98: the decision is durable before it is answered",
            Patch(Shard, "_decided", _answer_before_the_commit), faults=("leader_change", "coordinator_crash")),
    _mutant("MarkersBeforeTheDecisionIsCommitted", "KIP-98: markers come after the decision",
            Patch(Shard, "_decided", _tell_before_the_commit), faults=("leader_change", "leader_slow")),
    _mutant("RefusedMarkersCount", "KIP-98: markers are written until the leader has them",
            Patch(markers, "InvalidProducerEpochError", HeadraceError), faults=("leader_moved", "crash")),
    _mutant("SendsMarkersOnce", "KIP-98: markers are written until the leader has them",
            Patch(MarkerSender, "_again", _never_again), faults=("markers_lost", "leader_moved")),
    _mutant("MarksOnePartition", "KIP-98: every partition gets the marker",
            Patch(MarkerSender, "send", _first_partition_only)),
    _mutant("MarkersAlwaysCommit", "KIP-98: a marker carries the decision",
            Patch(leader_replica, "marker_batch", _always_commits)),
    _mutant("LateMarkersEnd", "KAFKA-17754: a late marker of the transaction before",
            Patch(group, "must_append", _late_markers_end), faults=MARKERS),
    _mutant("OldMarkersEnd", "KIP-98: markers of older epochs are refused",
            Patch(group, "must_append", _old_markers_end), faults=MARKERS),
    _mutant("MarkersAreAnsweredWhenAppended", "KIP-98: a marker is committed before its answer",
            Patch(LeaderReplica, "_appended", _answer_when_appended), faults=("marker_and_failover",)),
    _mutant("RepeatedMarkersAreAnsweredAtOnce", "KAFKA-19999: the first marker may not be committed yet",
            Patch(LeaderReplica, "_appended", _answer_repeated_markers_at_once),
            faults=("marker_and_failover", "markers_doubled", "markers_late")),
    _mutant("VerifiesNothing", "KIP-890: the leader adds its partition to the transaction",
            Patch(LeaderReplica, "_is_verified", _verify_nothing)),
    _mutant("VerifiesAProducerOnce", "KIP-890: each transaction is verified",
            Patch(LeaderReplica, "_is_verified", _verify_a_producer_once)),
    _mutant("ARefusalIsAYes", "KIP-890: a refused batch is not written",
            Patch(TransactionPartitions, "_until_answered", _a_refusal_is_a_yes), faults=("zombie", "produce_late")),
    _mutant("NoAnswerIsAYes", "KIP-890: a batch waits for its verification",
            Patch(TransactionPartitions, "_until_answered", _no_answer_is_a_yes),
            faults=("verifications_lost", "coordinator_crash", "markers_held")),
    _mutant("VerifiesTheFirstPartition", "KIP-890: every partition is verified",
            Patch(TransactionPartitions, "_until_answered", _verify_the_first_partition)),
    _mutant("RepeatsAreNew", "KIP-98: a repeated batch is not written twice",
            Patch(ProducerTable, "check", _repeats_are_new), faults=("duplicate", "delay", "produce_late")),
    _mutant("AllIsStable", "KIP-98: read_committed ends at the last stable offset",
            Patch(ProducerTable, "last_stable_offset", _all_is_stable)),
    _mutant("TheNewestTransactionIsTheFirst", "KIP-98: the first open transaction bounds the stable part",
            Patch(ProducerTable, "last_stable_offset", _one_open_transaction_at_a_time)),
    _mutant("NothingIsAborted", "KIP-98: aborted ranges",
            Patch(PartitionLog, "aborted_transactions", _nothing_is_aborted)),
    _mutant("AbortedOnlyInTheLastSegment", "KIP-98: each segment has its transaction index",
            Patch(PartitionLog, "_with_aborted", _only_the_last_segment)),
    _mutant("AbortsCountAsCommits", "KIP-98: aborted ranges",
            Patch(ProducerTable, "_transaction_ended", _aborts_count_as_commits)),
    _mutant("FollowersReadEverything", "KIP-392: followers too stop at the last stable offset",
            Patch(FollowerReplica, "read", _followers_read_everything)),
)  # fmt: skip
