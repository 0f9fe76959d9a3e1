"""The batches of an exactly-once sink: one decision for each batch, generations, abandoned transactions, and
transactional ids that are used once."""

from __future__ import annotations

from itertools import count

import pytest

from headrace_coordinator.state_machine import ClockSet, kind_of
from headrace_coordinator.transaction.messages import (
    AbortSinkBatch,
    AbortTransaction,
    AddPartitions,
    CommitSinkBatch,
    CompleteTransaction,
    DescribeSink,
    EndTransaction,
    InitProducerId,
    MarkersWritten,
    PrepareTransaction,
    ProducerIdReply,
    SinkState,
    TransactionEnded,
    WriteMarkers,
)
from headrace_coordinator.transaction.sinks import (
    SinkRecord,
    decided,
    decode_sink_key,
    decode_sink_value,
    encode_sink_key,
    encode_sink_value,
)
from headrace_coordinator.transaction.state import ProducerIdentity, TransactionState
from headrace_coordinator.transaction.transactions import TransactionSettings, TransactionsStateMachine
from headrace_core.errors import (
    CorruptLogError,
    HeadraceError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    UnsupportedVersionError,
)
from headrace_core.rpc.limits import RequestCheck
from headrace_core.sinks import SINK_BYTES_MAX, TASKS_MAX, SinkTransaction, sink_id
from headrace_core.types import TopicPartition
from headrace_protos.v1 import transactions_pb2

SINK = sink_id("0b1d", "copies")
HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS  #: transactional.id.expiration.ms
ONE = TopicPartition("copies", 1)
Token = tuple[SinkTransaction, ProducerIdentity]


class Shard:
    """A state machine with its log; the test sets ``now_ms``."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.log: dict[bytes, bytes | None] = {}
        self.markers: list[WriteMarkers] = []
        self.ended: list[str] = []
        self.ids = count(1_000)
        self.nonces = count()
        self.machine = TransactionsStateMachine(lambda: next(self.ids), TransactionSettings())
        self.machine.loaded(self.now_ms)

    def ask(self, request: object, *, kept: int | None = None) -> object:
        """``kept``: the log gets only this number of the decision's records."""
        decision = self.machine.handle(request, self.now_ms)
        self.log |= {record.key: record.value for record in decision.records[:kept]}
        self._take(decision.pushes)
        return decision.reply

    def _take(self, pushes: tuple[object, ...]) -> None:
        self.markers += [push for push in pushes if isinstance(push, WriteMarkers)]
        self.ended += [push.transactional_id for push in pushes if isinstance(push, TransactionEnded)]

    def begin(self, batch: int, partition: int = 0, *, generation: int = 0) -> Token:
        transaction = SinkTransaction(SINK, batch, generation, partition, f"{next(self.nonces):x}")
        reply = self.ask(InitProducerId(str(transaction), 60_000))
        assert isinstance(reply, ProducerIdReply)
        self.ask(AddPartitions(str(transaction), reply.identity, frozenset({ONE})))
        return transaction, reply.identity

    def prepare(self, token: Token) -> Token:
        assert self.ask(PrepareTransaction(str(token[0]), token[1])) == token[1]
        return token

    def commit(
        self,
        batch: int,
        *tokens: Token,
        kept: int | None = None,
        is_final: bool = False,
        generation: int | None = None,
    ) -> SinkState:
        state = self.ask(CommitSinkBatch(SINK, batch, tokens, is_final, generation), kept=kept)
        assert isinstance(state, SinkState)
        return state

    def mark(self) -> None:
        markers, self.markers = self.markers, []
        for each in markers:
            self.ask(MarkersWritten(each.transactional_id, each.identity, each.partitions))

    def tick(self, after_ms: int) -> None:
        self.now_ms += after_ms
        for _ in range(3):
            decision = self.machine.tick(self.now_ms)
            self.log |= {record.key: record.value for record in decision.records}
            self._take(decision.pushes)

    def move(self) -> None:
        """A new owner replays the log."""
        self.markers = []
        self.machine = TransactionsStateMachine(lambda: next(self.ids), TransactionSettings())
        for key, value in self.log.items():
            self.machine.replay(key, value, self.now_ms)
        decision = self.machine.loaded(self.now_ms)
        self.log |= {record.key: record.value for record in decision.records}
        self._take(decision.pushes)

    def state(self, token: Token) -> TransactionState:
        return self.machine.transactions[str(token[0])].state


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_a_decision_commits_the_named_transactions_and_aborts_the_others(shard: Shard) -> None:
    winners = [shard.prepare(shard.begin(0, partition)) for partition in (0, 1)]
    loser, open_one = shard.prepare(shard.begin(0, 1)), shard.begin(0, 1)
    assert shard.commit(0, *winners) == SinkState(0, 0)
    assert {marker.transactional_id: marker.commit for marker in shard.markers} == {
        **{str(token[0]): True for token in winners},
        str(loser[0]): False,
        str(open_one[0]): False,
    }
    assert shard.machine.is_ending(SINK)
    assert SINK not in shard.ended
    shard.mark()
    assert not shard.machine.is_ending(SINK)
    assert shard.ended.count(SINK) == 1


def test_a_repeated_decision_changes_nothing(shard: Shard) -> None:
    first = shard.prepare(shard.begin(0))
    again = shard.prepare(shard.begin(0))
    shard.commit(0, first)
    assert shard.commit(0, again) == SinkState(0, 0)
    assert shard.state(first) is TransactionState.PREPARE_COMMIT
    assert shard.state(again) is TransactionState.PREPARE_ABORT
    with pytest.raises(InvalidTxnStateError, match=r"batch 0 .* is already committed"):
        shard.begin(0)
    shard.commit(1, shard.prepare(shard.begin(1)))
    assert shard.commit(0) == SinkState(1, 0), "batches up to a decided one are decided"


def test_a_decision_that_the_log_has_in_part_is_finished_by_the_next_owner(shard: Shard) -> None:
    tokens = [shard.prepare(shard.begin(0, partition)) for partition in (0, 1, 2)]
    orphan = shard.prepare(shard.begin(0, 2))
    shard.commit(0, *tokens, kept=2)
    shard.move()
    assert [shard.state(token) for token in tokens] == [TransactionState.PREPARE_COMMIT] * 3
    assert shard.state(orphan) is TransactionState.PREPARE_ABORT


def test_an_aborted_batch_refuses_everything_of_its_generation(shard: Shard) -> None:
    token, late, slow = shard.prepare(shard.begin(0)), shard.begin(0, 1), SinkTransaction(SINK, 0, 0, 2, "slow")
    slow_reply = shard.ask(InitProducerId(str(slow), 60_000))
    assert isinstance(slow_reply, ProducerIdReply)
    assert shard.ask(AbortSinkBatch(SINK, 0, 0)) == SinkState(-1, 1)
    assert shard.state(token) is shard.state(late) is TransactionState.PREPARE_ABORT
    for request in (
        PrepareTransaction(str(late[0]), late[1]),
        CommitSinkBatch(SINK, 0, (token,)),
        InitProducerId(str(SinkTransaction(SINK, 0, 0, 3, "new")), 60_000),
        AddPartitions(str(slow), slow_reply.identity, frozenset({ONE})),
    ):
        with pytest.raises(ProducerFencedError, match=r"generation 0.*generation 1"):
            shard.ask(request)
    assert shard.ask(AbortSinkBatch(SINK, 0, 0)) == SinkState(-1, 1), "a repeated abort raises nothing"
    shard.commit(0, shard.prepare(shard.begin(0, generation=1)))
    assert shard.ask(AbortSinkBatch(SINK, 0, 1)) == SinkState(0, 1), "the decision stands"
    assert shard.ask(DescribeSink(SINK)) == SinkState(0, 1)


def test_a_late_decision_without_tokens_of_an_aborted_attempt_is_refused(shard: Shard) -> None:
    shard.ask(AbortSinkBatch(SINK, 0, 0))
    again = shard.prepare(shard.begin(0, generation=1))
    with pytest.raises(ProducerFencedError, match=r"batch 0 .* under generation 0"):
        shard.commit(0, generation=0)
    assert shard.commit(0, again, generation=1) == SinkState(0, 1)
    assert shard.machine.transactions[str(again[0])].state is TransactionState.PREPARE_COMMIT


def test_a_sinks_id_that_begins_again_is_not_free(shard: Shard) -> None:
    token = shard.begin(0)
    transactional_id = str(token[0])
    shard.ask(EndTransaction(transactional_id, token[1], commit=False))
    shard.mark()
    owner = shard.machine.transactions[transactional_id].owner
    shard.ask(AddPartitions(transactional_id, owner, frozenset({ONE})))
    shard.begin(0, 1)  # takes a free id, if there is one
    assert shard.machine.transactions[transactional_id].state is TransactionState.ONGOING
    shard.ask(EndTransaction(transactional_id, owner, commit=False))
    shard.mark()
    shard.begin(0, 2)
    assert transactional_id not in shard.machine.transactions


def test_a_decision_names_prepared_transactions_of_its_batch_only(shard: Shard) -> None:
    token, open_one = shard.prepare(shard.begin(0)), shard.begin(0, 1)
    aborted = shard.prepare(shard.begin(0, 2))
    shard.ask(AbortTransaction(str(aborted[0])))
    for wrong, message in (
        (open_one, "not prepared"),
        (aborted, "not prepared"),
        ((token[0], token[1]._replace(epoch=3)), "not prepared"),
    ):
        with pytest.raises(InvalidTxnStateError, match=message):
            shard.commit(0, wrong)
    for wrong_request, message in (
        (CommitSinkBatch(SINK, 1, (token,)), "does not belong to batch 1"),
        (CommitSinkBatch(sink_id("other", "copies"), 0, (token,)), "does not belong to batch 0 of"),
        (CommitSinkBatch(SINK, 0, (token, token)), "two tokens for partition 0"),
        (CommitSinkBatch("orders", 0, ()), "not the id of a sink"),
        (AbortSinkBatch(SINK, 0, 1), "has generation 0, not 1"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            shard.ask(wrong_request)
    assert shard.state(token) is TransactionState.ONGOING
    assert SINK not in shard.machine.sinks


def test_only_its_batch_commits_a_transaction(shard: Shard) -> None:
    token = shard.prepare(shard.begin(0))
    name, identity = str(token[0]), token[1]
    for request in (CompleteTransaction(name, identity, commit=True), EndTransaction(name, identity, commit=True)):
        with pytest.raises(InvalidTxnStateError, match="only together with its batch"):
            shard.ask(request)
    shard.commit(0, token)
    shard.mark()
    shard.tick(2 * HOUR_MS)
    assert name not in shard.machine.transactions
    shard.ask(CompleteTransaction(name, identity, commit=True))  # the decision answers
    with pytest.raises(InvalidTxnStateError, match="already committed"):
        shard.ask(CompleteTransaction(name, identity, commit=False))
    shard.commit(1)
    with pytest.raises(ProducerFencedError, match="no longer known"):
        shard.ask(CompleteTransaction(name, identity, commit=True))


@pytest.mark.parametrize("off_ms", [None, 0, 24 * HOUR_MS, -24 * HOUR_MS])
def test_a_prepared_transaction_without_a_decision_is_aborted_an_hour_after_it_whoever_owns_the_shard(
    shard: Shard, off_ms: int | None
) -> None:
    begun = shard.begin(0)
    shard.tick(50_000)  # its age before it was prepared does not count
    token = shard.prepare(begun)
    if off_ms is not None:
        shard.tick(HOUR_MS // 2)  # the owner writes its age
        shard.now_ms += off_ms
        shard.move()
        shard.tick(HOUR_MS // 2 - 1)
    else:
        shard.tick(HOUR_MS - 1)
    assert shard.state(token) is TransactionState.ONGOING
    shard.tick(1)
    assert shard.state(token) is TransactionState.PREPARE_ABORT
    with pytest.raises(InvalidTxnStateError, match=r"not committed within transaction\.sink\.timeout\.ms"):
        shard.commit(0, token)


def test_a_final_decision_is_forgotten_after_an_hour_and_a_streams_after_the_expiration(shard: Shard) -> None:
    other = sink_id("write", "copies")
    shard.commit(0, shard.prepare(shard.begin(0)))
    shard.ask(CommitSinkBatch(other, 0, (), is_final=True))
    shard.mark()
    shard.tick(2 * HOUR_MS)
    assert set(shard.machine.sinks) == {SINK}
    shard.tick(WEEK_MS - 2 * HOUR_MS - 1)
    assert set(shard.machine.sinks) == {SINK}
    assert shard.commit(0) == SinkState(0, 0), "a repeated driver within the expiration commits nothing"
    shard.move()
    shard.tick(HOUR_MS)
    assert not shard.machine.sinks
    assert not [key for key, value in shard.log.items() if value is not None]


def test_an_aborted_batch_of_a_query_that_never_comes_back_expires(shard: Shard) -> None:
    shard.ask(AbortSinkBatch(SINK, 0, 0))
    shard.tick(WEEK_MS)
    assert not shard.machine.sinks


def test_each_decision_begins_the_expiration_of_its_sink_again(shard: Shard) -> None:
    for batch in range(3):
        shard.commit(batch, shard.prepare(shard.begin(batch)))
        shard.mark()
        shard.tick(WEEK_MS - HOUR_MS)
        assert shard.ask(DescribeSink(SINK)) == SinkState(batch, 0)


def test_a_sink_with_a_task_at_work_does_not_expire(shard: Shard) -> None:
    """The sink's generation refuses the tasks of the aborted attempts."""
    assert shard.ask(AbortSinkBatch(SINK, 0, 0)) == SinkState(-1, 1)
    shard.now_ms += WEEK_MS - HOUR_MS // 2
    token = shard.prepare(shard.begin(0, generation=1))
    shard.tick(HOUR_MS // 2 + 1)
    assert shard.commit(0, token, generation=1) == SinkState(0, 1)


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize(("is_final", "kept_ms"), [(False, WEEK_MS), (True, HOUR_MS)])
def test_a_sink_does_not_expire_between_a_tasks_read_of_its_state_and_its_first_row(
    shard: Shard, is_final: bool, kept_ms: int, is_moved: bool
) -> None:
    assert shard.ask(AbortSinkBatch(SINK, 0, 0, is_final)) == SinkState(-1, 1)
    shard.now_ms += kept_ms - 1
    assert shard.ask(DescribeSink(SINK)) == SinkState(-1, 1)
    if is_moved:
        shard.move()
    shard.tick(HOUR_MS - 1)
    shard.ask(AbortSinkBatch(SINK, 0, 1, is_final))
    shard.commit(0, shard.prepare(shard.begin(0, generation=2)), generation=2)


def test_reads_of_their_states_leave_nothing_of_sinks_that_expire(shard: Shard) -> None:
    shard.ask(DescribeSink(SINK))
    shard.ask(AbortSinkBatch(SINK, 0, 0))
    shard.ask(DescribeSink(SINK))
    shard.tick(WEEK_MS)
    shard.ask(DescribeSink(SINK))
    assert not shard.machine.sinks
    assert not shard.machine._described_ms


def test_a_clock_that_was_set_forward_expires_no_sink(shard: Shard) -> None:
    shard.commit(0, shard.prepare(shard.begin(0)))
    shard.mark()
    shard.now_ms += 2 * WEEK_MS
    shard.ask(ClockSet(2 * WEEK_MS))
    shard.tick(2 * HOUR_MS)
    assert shard.ask(DescribeSink(SINK)) == SinkState(0, 0)


def test_the_names_in_the_ids_of_sinks_have_a_limit(shard: Shard) -> None:
    longest = sink_id("q" * (512 - len(sink_id("", "copies"))), "copies")
    shard.ask(CommitSinkBatch(longest, 0, ()))
    long = longest.replace("/q", "/qq")
    for request in (CommitSinkBatch(long, 0, ()), AbortSinkBatch(long, 0, 0), DescribeSink(long)):
        with pytest.raises(InvalidRequestError, match=r"__headrace_sink/qqq.* has 513 bytes, at most 512"):
            shard.ask(request)
    with pytest.raises(InvalidRequestError, match="has 513 bytes"):
        shard.ask(InitProducerId(str(SinkTransaction(long, 0, 0, 0, "a")), 60_000))
    with pytest.raises(InvalidRequestError, match=r"__headrace_sink/0b1d.* has 65 bytes, at most 64"):
        shard.ask(InitProducerId(str(SinkTransaction(SINK, 0, 0, 0, "a" * 65)), 60_000))


def test_many_tasks_keep_memory_and_log_flat(shard: Shard) -> None:
    tasks, batches = 10, 500
    for batch in range(batches):
        if batch in (100, 200):
            shard.move()
        tokens = [shard.prepare(shard.begin(batch, partition)) for partition in range(tasks)]
        identities = {token[1] for token in tokens}
        assert len(identities) == tasks
        shard.commit(batch, *tokens)
        shard.mark()
        assert len(shard.machine._timeouts._heap) <= 2 * tasks + 1_001
    assert len(shard.machine.transactions) <= tasks
    assert sum(value is not None for value in shard.log.values()) <= tasks + 1
    assert next(shard.ids) <= 1_000 + tasks, "all tasks have used the producer ids of the first batch"


def test_the_largest_batch_is_one_decision_of_one_request(shard: Shard) -> None:
    sink = sink_id("q" * (SINK_BYTES_MAX - len(sink_id("", "copies"))), "copies")
    largest = 10**18 - 1
    tokens = [
        (SinkTransaction(sink, largest, largest, 2**31 - 1 - task, f"{task:016x}"), (task << 32, 32_000))
        for task in range(TASKS_MAX)
    ]
    record = SinkRecord(largest, largest)
    named = tuple((transaction, ProducerIdentity(*identity)) for transaction, identity in tokens)
    decided(CommitSinkBatch(sink, largest, named), record, shard.now_ms)  # otherwise it raises
    request = transactions_pb2.CommitSinkBatchRequest(sink_id=sink, batch=largest, generation=largest)
    for transaction, (producer_id, epoch) in tokens:
        request.tokens.add(transactional_id=str(transaction), producer_id=producer_id, producer_epoch=epoch)
    check = RequestCheck("Transactions/CommitSinkBatch", request.DESCRIPTOR)
    assert check(request.SerializeToString()) is None


def test_epochs_of_a_reused_producer_id_never_reach_the_largest(shard: Shard) -> None:
    shard.machine = TransactionsStateMachine(lambda: next(shard.ids), TransactionSettings(epoch_max=6))
    used = set()
    for batch in range(30):
        token = shard.prepare(shard.begin(batch))
        assert token[1] not in used
        assert token[1].epoch < 6
        used.add(token[1])
        shard.commit(batch, token)
        shard.mark()
    assert len({producer_id for producer_id, _ in used}) > 5


def test_records_of_sinks_are_our_own_kind() -> None:
    record = SinkRecord(7, 2, (("a1", 1_000, 3),), is_final=True, updated_ms=5)
    assert decode_sink_value(encode_sink_value(record)) == record
    assert decode_sink_key(encode_sink_key(SINK)) == SINK
    assert kind_of(encode_sink_key(SINK)) == 1_010
    assert decode_sink_value(encode_sink_value(SinkRecord())[:2] + b"\x92\x04\x01") == SinkRecord(4, 1)
    with pytest.raises(UnsupportedVersionError):
        decode_sink_value(b"\x00\x01\x90")
    for damaged in (b"\x00\x00\x91", b"\x00\x00\xa1a", b"\x00\x00"):
        with pytest.raises(CorruptLogError):
            decode_sink_value(damaged)
    with pytest.raises(HeadraceError):
        decode_sink_key(b"\x03\xf2\x00\x09abc")
