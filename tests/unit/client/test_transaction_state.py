"""The state machine of a transactional producer: legal calls, errors, and random histories at a transaction shard."""

from __future__ import annotations

import collections
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.models import TransactionToken
from headrace.producer import transaction_state
from headrace.producer.sequences import Identity
from headrace.producer.transaction_state import CALLS, NEXT, Call, ProducerTransaction, State
from headrace_coordinator.transaction.messages import (
    AddPartitions,
    CompleteTransaction,
    EndTransaction,
    InitProducerId,
    PrepareTransaction,
    ProducerIdReply,
)
from headrace_coordinator.transaction.state import ProducerIdentity
from headrace_core.errors import (
    DeliveryTimeoutError,
    HeadraceError,
    IllegalStateError,
    InvalidArgumentError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestTimedOutError,
    RetriableError,
    TransactionAbortableError,
)
from headrace_core.types import TopicPartition
from tests.worlds.transaction_world import FENCED, TIMEOUT_MS, LostAnswerError, TransactionWorld

#: Attempts after which a producer that was not replaced must have finished its call.
ATTEMPTS_MAX = 1_000


@dataclass(eq=False)
class Program:
    """A process with one producer. ``acked``: the partitions with an acknowledged record of its transaction."""

    number: int
    producer: ProducerTransaction
    transaction: str = ""
    transactions: int = 0
    acked: set[TopicPartition] = field(default_factory=set)
    #: Whether another producer of the transactional id may have replaced this producer.
    may_be_fenced: bool = False


@dataclass
class Batch:
    transactional_id: str
    identity: Identity
    transaction: str
    partition: TopicPartition


class ProgramWorld(TransactionWorld):
    """Producers of the SDK (``headrace.producer.transaction_state``) at one shard make legal and illegal calls at
    random. Batches may arrive after the end of their transaction; other processes complete prepared transactions by
    token. An illegal call changes nothing, and its error names the call to make instead; an answered commit or abort
    is the outcome of all records; only a replaced producer ends, and every other one can always continue."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.programs: list[Program] = []
        self.late: list[Batch] = []
        self.names: dict[Identity, str] = {}
        self.decisions: dict[TransactionToken, bool] = {}
        self.records: dict[str, set[TopicPartition]] = {}  # the acknowledged records of committed transactions

    def step(self) -> None:
        self.now_ms += self.random.randrange(20)
        what = self.random.choices(
            (
                self.start,
                self.call,
                self.late_batch,
                self.complete_elsewhere,
                self.marker,
                self.old_marker,
                self.move,
                self.wait,
                self.abort,
            ),
            (2, 60, 4, 3, 30, 4, 2, 1, 1),
        )[0]
        what()

    def start(self) -> None:
        producer = ProducerTransaction(self.random.choice("ab"))
        self.programs.append(Program(len(self.programs), producer))

    # --- calls -----------------------------------------------------------------------------------------------------

    def call(self) -> None:
        if not self.programs:
            return
        program = self.random.choice(self.programs[-3:])
        weights = {Call.SEND: 30, Call.COMMIT: 14, Call.BEGIN: 14, Call.SEND_OFFSETS: 5}
        weights |= {Call.PREPARE: 4, Call.ABORT: 3, Call.COMPLETE: 3}
        calls = CALLS[program.producer.state]
        if not calls or self.random.random() < 0.1:
            calls = tuple(Call)
        call = self.random.choices(calls, [weights.get(each, 2) for each in calls])[0]
        if program.producer.state is State.PREPARED and self.random.random() < 0.95:
            return  # for a while, other processes may complete the transaction
        if call not in CALLS[program.producer.state]:
            self.misuse(program, call)
            return
        self.count(call.name)
        self.make(program, call)

    def misuse(self, program: Program, call: Call) -> None:
        producer = program.producer
        before = dict(vars(producer))
        refusal: HeadraceError | None = None
        try:
            producer.check(call)
        except HeadraceError as error:
            refusal = error
        assert refusal is not None, f"{call} in {producer.state} was not refused"
        if producer.state is State.DEAD:
            assert not isinstance(refusal, IllegalStateError), refusal
            assert "make a new producer" in refusal.message
        elif isinstance(refusal, TransactionAbortableError):
            assert producer.state is State.FAILED
            assert Call.ABORT.value in refusal.message
        else:
            assert isinstance(refusal, IllegalStateError), refusal
            named = [each for each in CALLS[producer.state] if each.value.rstrip("()") in refusal.message]
            assert named, f"{call} in {producer.state}: {refusal} names no legal call"
        self.count("misuse")
        assert vars(producer) == before

    def make(self, program: Program, call: Call) -> None:
        producer = program.producer
        if call is Call.INIT:
            self.init_producer(program)
        elif call is Call.BEGIN:
            if producer.state is State.ABORTING:
                self.ask_to_end(program, commit=False)
            elif producer.state is State.NEW:
                self.init_producer(program)
            else:
                producer.begin()
                program.transaction = f"{producer.transactional_id}{program.number}.{program.transactions}"
                program.transactions += 1
                program.acked = set()
        elif call in (Call.SEND, Call.SEND_OFFSETS):  # both add a partition: a leader's partition, or the group's shard
            self.send_record(program)
        elif call is Call.COMMIT:
            producer.seal()
            if producer.commits():
                self.ask_to_end(program, commit=True)
        elif call is Call.ABORT:
            if producer.aborts():
                self.ask_to_end(program, commit=False)
        elif call is Call.PREPARE:
            producer.seal()
            producer.prepares()
            self.ask_to_prepare(program)
        else:
            self.complete(program)

    def init_producer(self, program: Program) -> None:
        producer = program.producer
        for other in self.programs:
            if other is not program and other.producer.transactional_id == producer.transactional_id:
                other.may_be_fenced = True
        keep = self.random.random() < 0.5
        reply = self.answer(program, InitProducerId(producer.transactional_id, TIMEOUT_MS, keep_prepared=keep))
        if not isinstance(reply, ProducerIdReply):
            return
        program.may_be_fenced = False
        token = None
        if reply.prepared is not None:
            token = TransactionToken(producer.transactional_id, *reply.prepared)
            self.decisions.setdefault(token, self.random.random() < 0.6)
            program.transaction = self.names[Identity(*reply.prepared)]
            self.count("kept prepared")
        self.give(reply.identity, f"program {program.number} after {program.transactions}")
        producer.initialized(Identity(*reply.identity), token)

    def send_record(self, program: Program) -> None:
        producer = program.producer
        producer.check(Call.SEND)
        producer.sent()
        assert producer.identity is not None
        name = program.transaction
        assert self.names.setdefault(producer.identity, name) == name, "two transactions with one identity"
        partition = self.random.choice(list(self.leaders))
        batch = Batch(producer.transactional_id, producer.identity, name, partition)
        fate = self.random.random()
        error: HeadraceError | None = None
        if fate < 0.04:
            error = RecordTooLargeError()
        elif fate < 0.1:
            self.late.append(batch)
            error = DeliveryTimeoutError()
        else:
            for _ in range(ATTEMPTS_MAX):
                error = self.arrives(batch)
                if error is None or not error.retriable:
                    break
                self.marker()
        if error is None:
            program.acked.add(partition)
        elif producer.record_failed(error):
            assert producer.state is State.FAILED
            self.count("failed records")

    def arrives(self, batch: Batch) -> HeadraceError | None:
        """Append the batch at its leader, by the rules of transaction version 2."""
        leader = self.leaders[batch.partition]
        producer_id, epoch = batch.identity
        if epoch < leader.epochs.get(producer_id, -1):
            return InvalidProducerEpochError()
        if batch.transaction not in leader.open.get(producer_id, ()):
            identity = ProducerIdentity(*batch.identity)
            try:
                self.ask(AddPartitions(batch.transactional_id, identity, frozenset({batch.partition})))
            except LostAnswerError:
                return RequestTimedOutError()
            except FENCED:
                return InvalidProducerEpochError()
            except HeadraceError as error:
                return error
            assert batch.transaction not in self.answered, f"{batch} joins a transaction that has ended"
        assert not self.answered.get(batch.transaction), f"{batch} is written after the commit"
        assert leader.open.get(producer_id, [batch.transaction]) == [batch.transaction]
        leader.epochs[producer_id] = epoch
        leader.open[producer_id] = [batch.transaction]
        leader.outcomes.setdefault(batch.transaction, set())
        self.count("appends")
        return None

    def late_batch(self) -> None:
        if self.late:
            batch = self.late.pop(self.random.randrange(len(self.late)))
            self.count("late batches" if self.arrives(batch) is None else "late batches refused")

    def ask_to_end(self, program: Program, *, commit: bool) -> None:
        producer = program.producer
        assert producer.identity is not None
        identity = ProducerIdentity(*producer.identity)
        reply = self.answer(program, EndTransaction(producer.transactional_id, identity, commit))
        if isinstance(reply, ProducerIdentity):
            self.tell(program.transaction, commit=commit)
            if commit:
                self.records[program.transaction] = program.acked
            producer.ended(Identity(*reply))
            self.count("committed" if commit else "aborted")
            if not program.may_be_fenced:
                self.give(reply, f"program {program.number} after {program.transactions}")

    def ask_to_prepare(self, program: Program) -> None:
        producer = program.producer
        assert producer.identity is not None
        self.names.setdefault(producer.identity, program.transaction)
        reply = self.answer(
            program, PrepareTransaction(producer.transactional_id, ProducerIdentity(*producer.identity))
        )
        if isinstance(reply, ProducerIdentity):
            token = TransactionToken(producer.transactional_id, *reply)
            self.decisions.setdefault(token, self.random.random() < 0.6)
            producer.prepared(token)
            self.count("prepared")

    def complete(self, program: Program) -> None:
        producer = program.producer
        if producer.token is None:  # the end of an unprepared transaction
            foreign = TransactionToken(producer.transactional_id, 999, 0)
            assert not producer.completes(foreign, commit=True)
            return
        commit = self.decisions[producer.token]
        if producer.state is not State.PREPARED:
            # the coordinator may have aborted the transaction instead of committing it
            commit = producer.state is State.COMMITTING
            with pytest.raises(IllegalStateError, match="earlier"):
                producer.completes(producer.token, commit=not commit)
        assert producer.completes(producer.token, commit=commit)
        self.ask_to_end(program, commit=commit)

    def complete_elsewhere(self) -> None:
        """Another process completes a prepared transaction by its token."""
        if not self.decisions:
            return
        token = self.random.choice(list(self.decisions))
        identity = ProducerIdentity(token.producer_id, token.producer_epoch)
        commit = self.decisions[token]
        try:
            self.ask(CompleteTransaction(token.transactional_id, identity, commit))
        except (*FENCED, InvalidTxnStateError, LostAnswerError, RetriableError):
            return
        self.tell(self.names[Identity(*identity)], commit=commit)
        self.count("completed elsewhere")

    def answer(self, program: Program, request: object) -> object:
        """The reply of the coordinator; None after an error, which the producer has received."""
        producer = program.producer
        failure: HeadraceError = RequestTimedOutError()
        try:
            return self.ask(request)
        except LostAnswerError:
            pass
        except HeadraceError as error:
            failure = error
        producer.refused(failure)
        if producer.state is State.DEAD:
            self.count("fenced")
            assert program.may_be_fenced, f"program {program.number} was not replaced, and has ended: {failure}"
        elif producer.state is State.FAILED:
            self.count("aborted by the coordinator")
        return None

    # --- the end ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Check that every producer that was not replaced can finish its transaction, and then do the checks of
        TransactionWorld."""
        last = {
            State.NEW: Call.INIT,
            State.OPEN: Call.COMMIT,
            State.SEALED: Call.COMMIT,
            State.COMMITTING: Call.COMPLETE,
            State.FAILED: Call.ABORT,
            State.ABORTING: Call.BEGIN,
            State.PREPARING: Call.PREPARE,
            State.PREPARED: Call.COMPLETE,
        }
        for program in self.programs:
            attempts = 0
            producer = program.producer
            while producer.state not in (State.READY, State.NEW, State.DEAD):
                attempts += 1
                assert attempts < ATTEMPTS_MAX, f"program {program.number} is stuck: {producer.state}"
                call = last[producer.state]
                if producer.state is State.COMMITTING and producer.token is None:
                    call = Call.COMMIT
                self.make(program, call)
                self.marker()
        while self.late:
            self.late_batch()
        super().settle()

    def check(self) -> None:
        super().check()
        for name, partitions in self.records.items():
            for partition in partitions:
                assert self.leaders[partition].outcomes.get(name) == {True}, f"{name}: {partition} lost its record"


HISTORIES, STEPS = 60, 500
_Patch = Callable[[pytest.MonkeyPatch], None]


def history(seed: int) -> dict[str, int]:
    world = ProgramWorld(seed)
    try:
        for _ in range(STEPS):
            world.step()
        world.settle()
        world.check()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    return world.counts


def test_random_programs_at_a_shard() -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(first, first + HISTORIES):
        counts.update(history(seed))
    happened = dict(counts)
    for what in (
        *(call.name for call in Call),
        "misuse",
        "committed",
        "aborted",
        "failed records",
        "fenced",
        "aborted by the coordinator",
        "prepared",
        "kept prepared",
        "completed elsewhere",
        "late batches",
        "late batches refused",
    ):
        assert counts[what] >= 10, f"{what} hardly happened: {happened}"


def _attribute(owner: object, name: str, value: object) -> _Patch:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, value)


def _wrapped(name: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> _Patch:
    return _attribute(ProducerTransaction, name, change(getattr(ProducerTransaction, name)))


def _calls(state: State, *calls: Call) -> _Patch:
    return lambda monkeypatch: monkeypatch.setitem(CALLS, state, calls)


def _refused_fails(_: Callable[..., Any]) -> Callable[..., Any]:
    def fails(self: ProducerTransaction, error: Any) -> None:
        if self.state in (State.COMMITTING, State.PREPARING):
            self._cause = error
            self.state = State.FAILED

    return fails


def _keeps_identity(_: Callable[..., Any]) -> Callable[..., Any]:
    def ended(self: ProducerTransaction, identity: Identity) -> None:
        self.token, self.has_sent, self.state = None, False, State.READY

    return ended


def _abort_of_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLS, State.COMMITTING, (Call.COMMIT, Call.COMPLETE, Call.ABORT))
    monkeypatch.setitem(NEXT, State.COMMITTING, (*NEXT[State.COMMITTING], State.ABORTING))


#: The rules of the state machine, each broken in one way.
MUTANTS: dict[str, _Patch] = {
    "a lost answer of a commit means a failed commit": _wrapped("refused", _refused_fails),
    "a fenced producer continues": _attribute(transaction_state, "FATAL", frozenset()),
    "an end keeps the identity": _wrapped("ended", _keeps_identity),
    "no end reaches the coordinator": _wrapped("sent", lambda _: lambda self: None),
    "a failed record is ignored": _wrapped("record_failed", lambda _: lambda self, error: False),
    "a commit without an answer may be aborted": _abort_of_commits,
    "a failed transaction may be committed": _calls(State.FAILED, Call.ABORT, Call.COMMIT),
    "an interrupted abort cannot be finished": _calls(State.ABORTING),
}


def _outcome(monkeypatch: pytest.MonkeyPatch, patch: _Patch) -> BaseException | None:
    patch(monkeypatch)
    for seed in range(30):
        try:
            history(seed)
        except (AssertionError, HeadraceError, KeyError) as error:
            return error
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_random_programs_find_a_broken_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _outcome(monkeypatch, MUTANTS[name]) is not None


def open_transaction() -> ProducerTransaction:
    made = ProducerTransaction("payments")
    made.initialized(Identity(7, 0))
    made.begin()
    return made


def test_tables_name_every_state_and_lead_back_to_ready() -> None:
    assert set(CALLS) == set(NEXT) == set(State)
    for state in set(State) - {State.DEAD}:
        reached, more = {state}, True
        while more:
            after = reached.union(*(NEXT[each] for each in reached))
            more, reached = after != reached, after
        assert State.READY in reached
        assert State.DEAD in NEXT[state]
        assert CALLS[state]


def test_commit_of_an_empty_transaction_needs_no_coordinator() -> None:
    made = open_transaction()
    made.seal()
    assert not made.commits()
    assert made.state is State.READY
    assert made.identity == Identity(7, 0)
    made.begin()
    assert not made.aborts()


def test_commit_with_a_lost_answer_is_repeated_and_nothing_else_is_legal() -> None:
    made = open_transaction()
    made.sent()
    made.seal()
    assert made.commits()
    made.refused(RequestTimedOutError())
    for call in (Call.BEGIN, Call.SEND, Call.ABORT, Call.PREPARE):
        with pytest.raises(IllegalStateError, match=r"may have taken effect; repeat commit_transaction\(\)"):
            made.check(call)
    assert made.commits()
    made.ended(Identity(7, 1))
    made.begin()
    assert made.identity == Identity(7, 1)


def test_failed_record_makes_the_transaction_abortable() -> None:
    made = open_transaction()
    made.sent()
    assert made.record_failed(DeliveryTimeoutError("t-0: not written"))
    assert not made.record_failed(DeliveryTimeoutError("t-1: not written")), "the first cause counts"
    for call in (Call.SEND, Call.COMMIT, Call.PREPARE):
        with pytest.raises(TransactionAbortableError, match=r"t-0: not written; call abort_transaction\(\)"):
            made.check(call)
    with pytest.raises(IllegalStateError, match=r"abort_transaction\(\)"):
        made.check(Call.BEGIN)
    assert made.aborts()
    made.ended(Identity(7, 1))
    made.check(Call.BEGIN)


def test_fenced_producer_says_so_at_every_call() -> None:
    made = open_transaction()
    made.sent()
    assert made.aborts()
    made.refused(ProducerFencedError("producer 7 with epoch 0 is fenced"))
    for call in Call:
        with pytest.raises(ProducerFencedError, match="epoch 0 is fenced; close it, and make a new producer"):
            made.check(call)


def test_prepared_transaction_waits_for_its_decision() -> None:
    made = open_transaction()
    made.seal()
    made.prepares()
    token = TransactionToken("payments", 7, 0)
    made.prepared(token)
    for call in (Call.BEGIN, Call.SEND, Call.COMMIT, Call.ABORT, Call.PREPARE):
        with pytest.raises(IllegalStateError, match=r"complete\(token, commit=True or False\)"):
            made.check(call)
    assert not made.completes(TransactionToken("other", 7, 0), commit=True), "another producer's"
    assert made.completes(token, commit=False)
    with pytest.raises(IllegalStateError, match=r"repeat complete\(token, commit=False\)"):
        made.completes(token, commit=True)
    made.ended(Identity(7, 1))
    assert not made.completes(token, commit=False), "this producer has finished with it"


def test_token_is_a_text() -> None:
    token = TransactionToken("a:b", 2**62, 5)
    assert TransactionToken.parse(str(token)) == token
    for bad in ("", "1:2", "1:2:", "x:2:a", "1:-2:a", "\u0661:2:a", None):
        with pytest.raises(InvalidArgumentError, match="PRODUCER_ID:EPOCH:TRANSACTIONAL_ID"):
            TransactionToken.parse(bad)  # type: ignore[arg-type]
