"""One transactional id after the other: which calls each state allows in both protocol versions, and the records that
they write."""

from __future__ import annotations

import itertools
from itertools import count

import pytest

from headrace_coordinator.state_machine import ClockSet, Decision
from headrace_coordinator.transaction.codec import decode_value
from headrace_coordinator.transaction.messages import (
    AbortTransaction,
    AddPartitions,
    CompleteTransaction,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    ListTransactions,
    MarkersWritten,
    PrepareTransaction,
    ProducerIdReply,
    TransactionEnded,
    WriteMarkers,
)
from headrace_coordinator.transaction.state import ProducerIdentity, Transaction, TransactionState
from headrace_coordinator.transaction.transactions import TransactionSettings, TransactionsStateMachine
from headrace_core.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    HeadraceError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    PolicyViolationError,
    ProducerFencedError,
    TransactionAbortableError,
    TransactionalIdNotFoundError,
)
from headrace_core.types import TopicPartition

ONE, TWO = TopicPartition("orders", 1), TopicPartition("orders", 2)
START_MS = 1_700_000_000_000
S = TransactionState


class Shard:
    """A state machine with its log; ``now_ms`` is the test's."""

    def __init__(self, **settings: int) -> None:
        self.now_ms = START_MS
        self.log: list[tuple[bytes, bytes | None]] = []
        self.pushes: list[object] = []
        self.ids = count(1_000)
        self.settings = TransactionSettings(**settings)
        self.machine = TransactionsStateMachine(lambda: next(self.ids), self.settings)
        self._keep(self.machine.loaded(self.now_ms))

    def _keep(self, decision: Decision) -> Decision:
        self.log += [(record.key, record.value) for record in decision.records]
        self.pushes += decision.pushes
        return decision

    def ask(self, request: object) -> object:
        reply = self._keep(self.machine.handle(request, self.now_ms)).reply
        if isinstance(reply, HeadraceError):
            raise reply
        return reply

    def init(self, name: str = "t", timeout_ms: int = 60_000, **named: object) -> ProducerIdentity:
        reply = self.ask(InitProducerId(name, timeout_ms, **named))  # type: ignore[arg-type]
        assert isinstance(reply, ProducerIdReply)
        return reply.identity

    def add(self, identity: ProducerIdentity, *partitions: TopicPartition, version: int = 2, name: str = "t") -> None:
        self.ask(AddPartitions(name, identity, frozenset(partitions), version))

    def end(self, identity: ProducerIdentity, *, commit: bool = True, version: int = 2) -> ProducerIdentity:
        owner = self.ask(EndTransaction("t", identity, commit, version))
        assert isinstance(owner, ProducerIdentity)
        return owner

    def mark(self) -> None:
        """Write all markers that were asked for."""
        pushes, self.pushes = self.pushes, []
        for push in pushes:
            if isinstance(push, WriteMarkers):
                self.ask(MarkersWritten(push.transactional_id, push.identity, push.partitions))

    def tick(self, after_ms: int) -> Decision:
        self.now_ms += after_ms
        return self._keep(self.machine.tick(self.now_ms))

    def moved(self) -> None:
        """A new owner replays the log."""
        self.pushes = []
        before = self.machine.transactions
        self.machine = TransactionsStateMachine(lambda: next(self.ids), self.settings)
        for key, value in self.log:
            self.machine.replay(key, value, self.now_ms)
        assert self.machine.transactions == before
        self._keep(self.machine.loaded(self.now_ms))

    def state(self, name: str = "t") -> TransactionState:
        found = self.ask(DescribeTransaction(name))
        assert isinstance(found, Transaction)
        return found.state

    def written(self) -> list[TransactionState]:
        """The states of the transaction in the log, in order."""
        return [decode_value(value).state for _, value in self.log if value is not None]


def test_a_transaction_from_its_first_partition_to_its_last_marker() -> None:
    shard = Shard()
    producer = shard.init()
    assert producer == (1_000, 0)
    shard.add(producer, ONE)
    shard.add(producer, TWO)
    shard.add(producer, ONE)  # changes nothing, and writes nothing
    owner = shard.end(producer)
    assert owner == (1_000, 1)
    [markers] = shard.pushes
    assert markers == WriteMarkers("t", owner, True, 2, frozenset({ONE, TWO}))
    shard.ask(MarkersWritten("t", owner, frozenset({ONE})))
    assert shard.state() is S.PREPARE_COMMIT
    with pytest.raises(ConcurrentTransactionsError, match="is still writing its markers"):
        shard.add(owner, ONE)
    shard.ask(MarkersWritten("t", owner, frozenset({ONE})))
    shard.ask(MarkersWritten("t", owner, frozenset({TWO})))
    assert shard.pushes[-1] == TransactionEnded("t")
    assert shard.written() == [S.EMPTY, S.ONGOING, S.ONGOING, S.PREPARE_COMMIT, S.COMPLETE_COMMIT]
    shard.add(owner, TWO)
    assert shard.end(owner, commit=False) == (1_000, 2)


def test_a_repeated_end_has_the_answer_of_the_first_until_the_next_transaction() -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, ONE)
    owner = shard.end(producer)
    assert shard.end(producer) == owner
    shard.moved()
    assert shard.end(producer) == owner
    shard.mark()
    assert shard.end(producer) == owner
    with pytest.raises(InvalidTxnStateError, match="is already committed"):
        shard.end(producer, commit=False)
    shard.add(owner, ONE)
    with pytest.raises(ProducerFencedError, match="epoch 0 of 't' is fenced"):  # KAFKA-17754
        shard.end(producer)
    assert shard.state() is S.ONGOING


def test_a_new_producer_fences_the_former_one_and_aborts_what_it_left_open() -> None:
    shard = Shard()
    old = shard.init()
    shard.add(old, ONE)
    with pytest.raises(ConcurrentTransactionsError):
        shard.init()
    assert shard.state() is S.PREPARE_ABORT
    for request in (
        AddPartitions("t", old, frozenset({TWO})),
        EndTransaction("t", old, commit=True),
        EndTransaction("t", old, commit=False),
        PrepareTransaction("t", old),
    ):
        with pytest.raises(ProducerFencedError):
            shard.ask(request)
    with pytest.raises(ConcurrentTransactionsError):
        shard.init()
    shard.mark()
    assert shard.init() == (1_000, 2)


def test_a_producer_that_goes_on_after_an_error_keeps_its_id_and_a_repeat_keeps_its_epoch() -> None:
    """KIP-360."""
    shard = Shard()
    first = shard.init()
    second = shard.init(expected=first)
    assert second == (1_000, 1)
    assert shard.init(expected=first) == second, "its answer was lost"
    shard.add(second, ONE)
    with pytest.raises(ProducerFencedError):
        shard.init(expected=first)
    with pytest.raises(ConcurrentTransactionsError):
        shard.init(expected=second)
    shard.mark()
    assert shard.init(expected=second) == (1_000, 2)
    shard.init()
    with pytest.raises(ProducerFencedError):
        shard.init(expected=ProducerIdentity(1_000, 2))
    with pytest.raises(ProducerFencedError):  # as in Kafka, which has another error here for all other requests
        shard.init(expected=ProducerIdentity(7, 2))


def test_epochs_run_out_and_a_new_producer_id_goes_on() -> None:
    shard = Shard(epoch_max=3)
    producer = shard.init()
    ends = []
    for _ in range(5):
        shard.add(producer, ONE)
        was, producer = producer, shard.end(producer)
        [markers] = [push for push in shard.pushes if isinstance(push, WriteMarkers)]
        ends.append((tuple(was), tuple(markers.identity), tuple(producer)))
        assert shard.end(was) == producer
        shard.mark()
        assert shard.end(was) == producer
    assert ends == [
        ((1_000, 0), (1_000, 1), (1_000, 1)),
        ((1_000, 1), (1_000, 2), (1_000, 2)),
        ((1_000, 2), (1_000, 3), (1_001, 0)),
        ((1_001, 0), (1_001, 1), (1_001, 1)),
        ((1_001, 1), (1_001, 2), (1_001, 2)),
    ]
    assert shard.init() == (1_002, 0)


def test_no_epoch_and_no_producer_id_left_changes_nothing() -> None:
    shard = Shard(epoch_max=1)
    producer = shard.init()
    shard.add(producer, ONE)

    def none_left() -> int:
        raise CoordinatorLoadInProgressError("no producer ids yet")

    shard.machine._new_producer_id = none_left
    with pytest.raises(CoordinatorLoadInProgressError):
        shard.end(producer)
    assert shard.state() is S.ONGOING
    shard.tick(60_000)
    assert shard.state() is S.ONGOING, "the time-out is tried again"
    shard.machine._new_producer_id = lambda: 2_000
    shard.tick(1_000)
    assert shard.state() is S.PREPARE_ABORT


def test_a_transaction_times_out_and_its_producer_aborts_it_too() -> None:
    shard = Shard()
    producer = shard.init(timeout_ms=5_000)
    shard.add(producer, ONE)
    shard.tick(4_999)
    assert shard.state() is S.ONGOING
    assert shard.machine.next_due_ms() == shard.now_ms + 1
    shard.tick(1)
    assert shard.state() is S.PREPARE_ABORT
    with pytest.raises(ProducerFencedError):
        shard.add(producer, TWO)
    with pytest.raises(TransactionAbortableError, match="abort the transaction in this producer too"):
        shard.end(producer)
    shard.mark()
    with pytest.raises(TransactionAbortableError):
        shard.end(producer)
    owner = shard.end(producer, commit=False)
    assert owner == (1_000, 1)
    shard.add(owner, ONE)


@pytest.mark.parametrize("version", [1, 2])
def test_the_next_transaction_has_a_time_out_of_its_own(version: int) -> None:
    """Under version 1 a transaction has the same identity as the previous transaction."""
    shard = Shard()
    producer = shard.init(timeout_ms=5_000)
    shard.add(producer, ONE, version=version)
    producer = shard.end(producer, version=version)
    shard.mark()
    shard.now_ms += 4_000
    shard.add(producer, ONE, version=version)
    shard.tick(1_000)
    assert shard.state() is S.ONGOING
    shard.tick(4_000)
    assert shard.state() is S.PREPARE_ABORT


def test_a_clock_that_is_set_ends_no_transaction() -> None:
    shard = Shard()
    producer = shard.init(timeout_ms=5_000)
    shard.add(producer, ONE)
    shard.now_ms += 3_600_000
    shard.ask(ClockSet(3_600_000))
    shard.tick(0)
    assert shard.state() is S.ONGOING
    shard.tick(5_000)
    assert shard.state() is S.PREPARE_ABORT


@pytest.mark.parametrize("commit", [True, False])
def test_a_new_owner_of_the_shard_asks_for_all_markers_again(commit: bool) -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, ONE, TWO)
    owner = shard.end(producer, commit=commit)
    shard.ask(MarkersWritten("t", owner, frozenset({ONE})))
    shard.moved()
    assert shard.pushes == [WriteMarkers("t", owner, commit, 2, frozenset({ONE, TWO}))]
    shard.mark()
    assert shard.state() is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)


HOUR_MS, DAY_MS = 3_600_000, 86_400_000
OFF_MS = [0, *(sign * ms for ms in (1_000, 4_000, HOUR_MS, DAY_MS) for sign in (1, -1))]


@pytest.mark.parametrize("off_ms", OFF_MS)
def test_a_new_owner_of_the_shard_counts_from_its_take_over_whatever_the_owners_clocks_say(off_ms: int) -> None:
    shard = Shard()
    producer = shard.init(timeout_ms=5_000)
    shard.add(producer, ONE)
    shard.now_ms += 3_000 + off_ms
    shard.moved()
    shard.tick(4_999)
    assert shard.state() is S.ONGOING
    shard.add(producer, TWO)  # does not begin it again
    assert shard.machine.next_due_ms() == shard.now_ms + 1
    shard.tick(1)
    assert shard.state() is S.PREPARE_ABORT


@pytest.mark.parametrize("off_ms", OFF_MS)
@pytest.mark.parametrize("timeout_ms", [5_000, 60_000, 900_000])
def test_a_transaction_times_out_however_often_its_shard_moves_and_never_early(off_ms: int, timeout_ms: int) -> None:
    shard = Shard()
    shard.add(shard.init(timeout_ms=timeout_ms), ONE)
    interval_ms = min(timeout_ms // 8 + 1, 30_000)
    open_ms = moves = 0
    while shard.state() is S.ONGOING:
        for _ in range(15):  # each owner serves for one and a half intervals
            shard.tick(interval_ms // 10)
            open_ms += interval_ms // 10
            if shard.state() is not S.ONGOING:
                break
        else:
            shard.now_ms += off_ms if moves % 2 else -off_ms
            shard.moved()
            moves += 1
        assert open_ms < timeout_ms + (moves + 1) * interval_ms
    assert open_ms >= timeout_ms
    assert moves > 5


def test_a_clock_that_is_set_makes_no_transaction_older_for_the_next_owner() -> None:
    shard = Shard()
    shard.add(shard.init(timeout_ms=8_000), ONE)
    shard.tick(4_000)
    shard.now_ms += DAY_MS
    shard.ask(ClockSet(DAY_MS))
    shard.tick(1_002)
    shard.moved()
    shard.tick(2_997)
    assert shard.state() is S.ONGOING
    shard.tick(1)
    assert shard.state() is S.PREPARE_ABORT


def test_the_next_transaction_of_a_producer_is_as_old_as_itself() -> None:
    for version in (1, 2):
        shard = Shard()
        producer = shard.init(timeout_ms=8_000)
        for _ in range(2):
            shard.add(producer, ONE, version=version)
            shard.tick(7_000)
            assert shard.machine.transactions["t"].open_ms == 7_000
            producer = shard.end(producer, version=version)
            shard.mark()
            assert shard.machine.transactions["t"].open_ms == 0
        assert shard.state() is S.COMPLETE_COMMIT


def test_a_short_transaction_costs_no_record_for_its_age() -> None:
    shard = Shard()
    producer = shard.init()
    for _ in range(3):
        shard.add(producer, ONE)
        shard.tick(7_000)
        before = len(shard.log)
        producer = shard.end(producer)
        shard.mark()
        assert len(shard.log) - before == 2
    assert len(shard.log) == 1 + 3 * 3


def test_many_transactions_that_are_due_at_once_are_all_served() -> None:
    shard = Shard()
    names = [f"t{number}" for number in range(250)]
    for name in names:
        shard.add(shard.init(name), ONE, name=name)
    for expected in (100, 200, 250):
        shard.tick(10_000 if expected == 100 else 0)
        assert sum(shard.machine.transactions[name].open_ms == 10_000 for name in names) == expected


@pytest.mark.parametrize("off_ms", OFF_MS)
@pytest.mark.parametrize("set_ms", [DAY_MS, -DAY_MS])
def test_a_clock_that_is_set_right_after_a_take_over_ends_no_transaction_and_keeps_none(
    off_ms: int, set_ms: int
) -> None:
    shard = Shard()
    shard.add(shard.init("a", timeout_ms=5_000), ONE, name="a")
    shard.now_ms += off_ms
    shard.moved()
    shard.tick(2_000)
    shard.now_ms += set_ms
    shard.ask(ClockSet(set_ms))
    shard.add(shard.init("b", timeout_ms=5_000), ONE, name="b")
    shard.tick(2_999)
    assert (shard.state("a"), shard.state("b")) == (S.ONGOING, S.ONGOING)
    shard.tick(1)
    assert (shard.state("a"), shard.state("b")) == (S.PREPARE_ABORT, S.ONGOING)
    shard.tick(2_000)
    assert shard.state("b") is S.PREPARE_ABORT


def test_a_clock_that_is_set_forward_makes_no_transactional_id_older() -> None:
    shard = Shard(expiration_ms=DAY_MS, expiration_interval_ms=HOUR_MS)
    shard.init()
    shard.now_ms += 30 * DAY_MS
    shard.ask(ClockSet(30 * DAY_MS))
    for _ in range(23):
        shard.tick(HOUR_MS)
    assert "t" in shard.machine.transactions
    shard.tick(HOUR_MS)
    assert not shard.machine.transactions, "a clock that was far behind keeps none for ever"


def test_a_late_report_of_another_marker_counts_for_nothing() -> None:
    shard = Shard()
    producer = shard.init()
    shard.add(producer, ONE)
    second = shard.end(producer)
    shard.mark()
    shard.add(second, ONE)
    shard.end(second)
    shard.ask(MarkersWritten("t", second, frozenset({ONE})))
    shard.ask(MarkersWritten("never seen", second, frozenset({ONE})))
    assert shard.state() is S.PREPARE_COMMIT


def test_an_abort_without_a_partition_moves_the_epoch_and_needs_no_marker() -> None:
    shard = Shard()
    producer = shard.init()
    owner = shard.end(producer, commit=False)
    assert owner == (1_000, 1)
    assert shard.end(producer, commit=False) == owner
    assert shard.state() is S.COMPLETE_ABORT
    with pytest.raises(InvalidTxnStateError, match="no transaction of 't' is open"):
        shard.end(owner)


class TestVersion1:
    def test_the_epoch_stays_and_an_end_may_be_repeated(self) -> None:
        shard = Shard()
        producer = shard.init()
        shard.add(producer, ONE, version=1)
        assert shard.end(producer, version=1) == producer
        assert shard.end(producer, version=1) == producer
        [markers] = shard.pushes
        assert markers == WriteMarkers("t", producer, True, 1, frozenset({ONE}))
        with pytest.raises(ConcurrentTransactionsError):
            shard.add(producer, ONE, version=1)
        shard.mark()
        assert shard.end(producer, version=1) == producer
        shard.add(producer, ONE, version=1)
        assert shard.end(producer, commit=False, version=1) == producer

    def test_a_leader_may_verify_a_partition(self) -> None:
        shard = Shard()
        producer = shard.init()
        shard.add(producer, ONE, version=1)
        shard.ask(AddPartitions("t", producer, frozenset({ONE}), 1, verify_only=True))
        with pytest.raises(TransactionAbortableError, match=r"partitions orders-2 are not in the open transaction"):
            shard.ask(AddPartitions("t", producer, frozenset({TWO}), 1, verify_only=True))
        assert len(shard.log) == 2

    def test_nothing_open_is_not_ended(self) -> None:
        shard = Shard()
        producer = shard.init()
        for commit in (True, False):
            with pytest.raises(InvalidTxnStateError):
                shard.end(producer, commit=commit, version=1)

    def test_a_producer_that_goes_on_is_known_after_a_hand_over(self) -> None:
        """The coordinator decided the producer's InitProducerId (KIP-360), the answer was lost, and the shard moved to
        another owner."""
        shard = Shard()
        producer = shard.init()
        shard.add(producer, ONE, version=1)
        shard.end(producer, version=1)
        shard.mark()
        renewed = shard.init(expected=producer)
        assert renewed == (1_000, 1)
        shard.moved()
        assert shard.init(expected=producer) == renewed

    @pytest.mark.parametrize("moves", [False, True])
    @pytest.mark.parametrize("former", [0, 1, 2])
    def test_a_fenced_producer_stays_fenced_after_its_successors_transaction(self, moves: bool, former: int) -> None:
        """The successor's transaction ends without a new epoch. The epoch before it is that of the fenced producer, and
        no identity that the successor had."""
        shard = Shard(epoch_max=2)
        for _ in range(former):
            shard.init()  # the second one uses up the epochs of the producer id
        refusals = (ProducerFencedError, InvalidProducerIdMappingError)
        fenced = shard.init()
        owner = shard.init()
        for commit in (True, False):
            shard.add(owner, ONE, version=1)
            assert shard.end(owner, commit=commit, version=1) == owner
            for is_marked in (False, True):
                if is_marked:
                    shard.mark()
                if moves:
                    shard.moved()
                with pytest.raises(ProducerFencedError):
                    shard.init(expected=fenced)
                for version, ends_so in itertools.product((1, 2), (True, False)):
                    with pytest.raises(refusals):
                        shard.end(fenced, commit=ends_so, version=version)
            assert shard.end(owner, commit=commit, version=1) == owner, "a repeated request"

    def test_a_time_out_fences_the_producer(self) -> None:
        shard = Shard()
        producer = shard.init(timeout_ms=5_000)
        shard.add(producer, ONE, version=1)
        shard.tick(5_000)
        assert shard.pushes[-1] == WriteMarkers("t", ProducerIdentity(1_000, 1), False, 1, frozenset({ONE}))
        with pytest.raises(ProducerFencedError):
            shard.end(producer, version=1)


class TestPrepared:
    def prepared(self, shard: Shard) -> ProducerIdentity:
        producer = shard.init(timeout_ms=5_000)
        shard.add(producer, ONE)
        token = shard.ask(PrepareTransaction("t", producer))
        assert token == producer
        return producer

    def test_it_waits_for_its_decision_beyond_every_time_out(self) -> None:
        shard = Shard()
        token = self.prepared(shard)
        assert shard.ask(PrepareTransaction("t", token)) == token
        shard.moved()
        shard.tick(86_400_000)
        assert shard.state() is S.ONGOING
        with pytest.raises(InvalidTxnStateError, match="is prepared: complete the transaction"):
            shard.add(token, TWO)
        assert shard.end(token) == (1_000, 1)

    @pytest.mark.parametrize("commit", [True, False])
    def test_the_token_completes_it_any_number_of_times_one_way(self, commit: bool) -> None:
        shard = Shard()
        token = self.prepared(shard)
        for _ in range(2):
            shard.ask(CompleteTransaction("t", token, commit))
        shard.mark()
        shard.ask(CompleteTransaction("t", token, commit))
        with pytest.raises(InvalidTxnStateError, match="already"):
            shard.ask(CompleteTransaction("t", token, not commit))
        assert shard.end(token, commit=commit) == (1_000, 1), "its producer goes on"

    def test_the_token_of_an_earlier_transaction_completes_nothing(self) -> None:
        shard = Shard()
        token = self.prepared(shard)
        shard.ask(CompleteTransaction("t", token, commit=True))
        shard.mark()
        owner = shard.end(token)
        shard.add(owner, ONE)
        shard.ask(PrepareTransaction("t", owner))
        with pytest.raises(ProducerFencedError):
            shard.ask(CompleteTransaction("t", token, commit=True))
        assert shard.state() is S.ONGOING

    def test_what_timed_out_is_aborted_and_the_producer_goes_on(self) -> None:
        shard = Shard()
        producer = shard.init(timeout_ms=5_000)
        shard.add(producer, ONE)
        shard.tick(5_000)
        for _ in range(2):
            with pytest.raises(TransactionAbortableError, match="abort the transaction in this producer too"):
                shard.ask(PrepareTransaction("t", producer))
            shard.mark()
        assert shard.state() is S.COMPLETE_ABORT
        owner = shard.end(producer, commit=False)
        assert shard.ask(PrepareTransaction("t", owner)) == owner

    def test_what_is_not_prepared_is_not_completed(self) -> None:
        shard = Shard()
        producer = shard.init()
        shard.add(producer, ONE)
        with pytest.raises(InvalidTxnStateError, match="prepare the transaction first"):
            shard.ask(CompleteTransaction("t", producer, commit=True))

    def test_an_empty_one_is_prepared_and_completed(self) -> None:
        shard = Shard()
        producer = shard.init()
        token = shard.ask(PrepareTransaction("t", producer))
        assert isinstance(token, ProducerIdentity)
        shard.ask(CompleteTransaction("t", token, commit=True))
        assert shard.state() is S.COMPLETE_COMMIT
        assert shard.pushes == [TransactionEnded("t")]

    def test_a_new_producer_keeps_it_and_the_token_stays_valid(self) -> None:
        shard = Shard()
        token = self.prepared(shard)
        reply = shard.ask(InitProducerId("t", 60_000, keep_prepared=True))
        assert reply == ProducerIdReply(ProducerIdentity(1_000, 1), token)
        newest = shard.ask(InitProducerId("t", 60_000, keep_prepared=True))
        assert newest == ProducerIdReply(ProducerIdentity(1_000, 2), token)
        with pytest.raises(ProducerFencedError):
            shard.end(ProducerIdentity(1_000, 1))
        with pytest.raises(ProducerFencedError):
            shard.end(token)
        shard.ask(CompleteTransaction("t", token, commit=True))
        assert shard.end(ProducerIdentity(1_000, 2)) == (1_000, 3), "the token was faster"
        with pytest.raises(ProducerFencedError):
            shard.end(token)

    def test_a_new_producer_that_keeps_it_gets_a_new_id_when_the_epochs_run_out(self) -> None:
        shard = Shard(epoch_max=2)
        token = self.prepared(shard)
        reply = shard.ask(InitProducerId("t", 60_000, keep_prepared=True))
        assert reply == ProducerIdReply(ProducerIdentity(1_001, 0), token)
        assert shard.end(ProducerIdentity(1_001, 0)) == (1_001, 1)
        [markers] = shard.pushes
        assert isinstance(markers, WriteMarkers)
        assert markers.identity == (1_000, 1)
        shard.mark()
        shard.add(ProducerIdentity(1_001, 1), ONE)

    def test_a_new_producer_that_does_not_keep_it_aborts_it(self) -> None:
        shard = Shard()
        token = self.prepared(shard)
        with pytest.raises(ConcurrentTransactionsError):
            shard.init()
        with pytest.raises(ProducerFencedError):
            shard.ask(CompleteTransaction("t", token, commit=True))
        assert shard.state() is S.PREPARE_ABORT

    def test_javas_enable_2pc_has_no_time_out(self) -> None:
        with pytest.raises(PolicyViolationError, match=r"transaction\.two\.phase\.commit\.enable"):
            Shard().init(has_no_timeout=True)
        shard = Shard(may_have_no_timeout=True)
        producer = shard.init(has_no_timeout=True)
        shard.add(producer, ONE)
        shard.tick(86_400_000)
        assert shard.state() is S.ONGOING
        reply = shard.ask(InitProducerId("t", 1, keep_prepared=True, has_no_timeout=True))
        assert reply == ProducerIdReply(ProducerIdentity(1_000, 1), producer)

    @pytest.mark.parametrize("epoch_max", [2, 32_767])
    def test_a_producer_that_keeps_an_undecided_one_adds_nothing_to_it(self, epoch_max: int) -> None:
        """The markers have the producer id of the transaction, and would not end what the new producer writes."""
        shard = Shard(may_have_no_timeout=True, epoch_max=epoch_max)
        shard.add(shard.init(has_no_timeout=True), ONE)
        reply = shard.ask(InitProducerId("t", 1, keep_prepared=True, has_no_timeout=True))
        assert isinstance(reply, ProducerIdReply)
        with pytest.raises(InvalidTxnStateError, match="former producer: complete the transaction"):
            shard.add(reply.identity, TWO)
        assert reply.prepared is not None
        shard.ask(CompleteTransaction("t", reply.prepared, commit=True))
        shard.mark()
        assert shard.state() is S.COMPLETE_COMMIT

    def test_an_old_client_that_ends_a_kept_one_gets_the_identity_that_is_stored(self) -> None:
        shard = Shard()
        token = self.prepared(shard)
        reply = shard.ask(InitProducerId("t", 60_000, keep_prepared=True))
        assert isinstance(reply, ProducerIdReply)
        owner = shard.end(reply.identity, version=1)
        shard.mark()
        with pytest.raises(ProducerFencedError):
            shard.add(token, ONE, version=1)
        shard.add(owner, ONE, version=1)


def test_what_an_operator_asks() -> None:
    shard = Shard()
    producer = shard.init()
    shard.init("other")
    shard.add(producer, ONE)
    shard.now_ms += 10_000
    listed = shard.ask(ListTransactions(open_for_ms=10_000))
    assert [each.transactional_id for each in listed] == ["t"]  # type: ignore[attr-defined]
    assert len(shard.ask(ListTransactions())) == 2  # type: ignore[arg-type]
    assert shard.ask(ListTransactions(open_for_ms=10_001)) == ()
    [empty] = shard.ask(ListTransactions(states=frozenset({(S.EMPTY, False)})))  # type: ignore[misc]
    assert shard.ask(ListTransactions(prefix="oth")) == shard.ask(ListTransactions(after="a", prefix="o")) == (empty,)
    assert shard.ask(ListTransactions(after="t")) == ()
    shard.ask(PrepareTransaction("t", producer))
    assert shard.ask(ListTransactions(states=frozenset({(S.ONGOING, False)}))) == ()
    [prepared] = shard.ask(ListTransactions(states=frozenset({(S.ONGOING, True)})))  # type: ignore[misc]
    assert (prepared.transactional_id, prepared.started_ms) == ("t", START_MS)
    assert shard.ask(ListTransactions(producer_ids=frozenset({empty.producer_id}))) == (empty,)
    with pytest.raises(TransactionalIdNotFoundError):
        shard.state("nothing")
    with pytest.raises(TransactionalIdNotFoundError):
        shard.ask(AbortTransaction("nothing"))
    with pytest.raises(InvalidTxnStateError, match="EMPTY"):
        shard.ask(AbortTransaction("other"))
    shard.ask(AbortTransaction("t"))
    with pytest.raises(TransactionAbortableError):
        shard.end(producer)
    assert shard.end(producer, commit=False) == (1_000, 1)


def test_ids_that_are_not_used_are_forgotten() -> None:
    shard = Shard(expiration_ms=100_000, expiration_interval_ms=10_000)
    shard.init("old")
    prepared = shard.init("t")
    shard.add(prepared, ONE)
    shard.ask(PrepareTransaction("t", prepared))
    shard.now_ms += 99_000
    shard.init("young")
    shard.tick(0)
    assert set(shard.machine.transactions) == {"old", "t", "young"}
    shard.tick(10_000)
    assert set(shard.machine.transactions) == {"t", "young"}
    shard.moved()
    with pytest.raises(InvalidProducerIdMappingError, match=r"transactional\.id\.expiration\.ms"):
        shard.ask(EndTransaction("old", ProducerIdentity(1_000, 0), commit=True))


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_time_out_that_is_not_allowed_is_refused(timeout_ms: int) -> None:
    with pytest.raises(
        InvalidTransactionTimeoutError, match=r"transaction.max.timeout.ms: lower transaction.timeout.ms"
    ):
        Shard().init(timeout_ms=timeout_ms)


def test_bad_ids_and_too_many_partitions_are_refused_and_change_nothing() -> None:
    shard = Shard()
    with pytest.raises(InvalidRequestError, match=r"set transactional\.id"):
        shard.init("")
    with pytest.raises(InvalidRequestError, match="at most 32767 are allowed"):
        shard.init("x" * 32_768)
    producer = shard.init()
    many = frozenset(TopicPartition("orders", number) for number in range(150_000))
    with pytest.raises(InvalidRequestError, match="would have 150000 partitions"):
        shard.ask(AddPartitions("t", producer, many))
    assert shard.state() is S.EMPTY
    assert "x" * 32_768 not in shard.machine.transactions
