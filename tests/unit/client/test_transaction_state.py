"""The state machine of a transactional producer: legal calls, errors, and random histories at a transaction shard."""

from __future__ import annotations

import collections
import os
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from headrace.models import TransactionToken
from headrace.producer import transaction_state
from headrace.producer.sequences import Identity
from headrace.producer.transaction_state import CALLS, NEXT, Call, ProducerTransaction, State
from headrace_core.errors import (
    DeliveryTimeoutError,
    HeadraceError,
    IllegalStateError,
    InvalidArgumentError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortableError,
)
from tests.worlds.program_world import ProgramWorld

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
