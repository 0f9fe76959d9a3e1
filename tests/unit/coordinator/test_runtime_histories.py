"""Random histories of one shard. Owners follow each other, and appends or their responses are late or lost. In every
case, the log has all acknowledged decisions, and the owner's state matches the log. Each guard is removed once, and the
test must then fail."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from headrace_coordinator.runtime import shard as shard_module
from headrace_coordinator.runtime.claims import Claim, is_claim
from headrace_coordinator.runtime.shard import (
    ANY_END,
    Answer,
    Append,
    Became,
    Pause,
    Replay,
    Shard,
    ShardState,
    Tell,
)
from headrace_coordinator.state_machine import Decision, Push, ShardRecord
from headrace_core.errors import (
    FencedShardEpochError,
    HeadraceError,
    NotEnoughReplicasError,
    RequestTimedOutError,
    UnexpectedLogEndError,
)
from tests.worlds.shard_world import IdleMachine

HISTORIES = 150
STEPS = 250


class Ledger:
    """The partition: a log whose leader obeys epochs and expected ends (or, if the leader is broken, does not obey)."""

    def __init__(self, *, checks_epoch: bool = True, checks_end: bool = True) -> None:
        self.records: list[tuple[int, bytes, bytes | None]] = []  # epoch, key, value
        self._checks_epoch, self._checks_end = checks_epoch, checks_end

    def append(self, epoch: int, append: Append) -> int:
        if self._checks_epoch and epoch < max((each[0] for each in self.records), default=0):
            raise FencedShardEpochError(f"epoch {epoch} is over")
        base = len(self.records)
        if self._checks_end and append.expected_end not in (ANY_END, base):
            raise UnexpectedLogEndError(f"ends at {base}")
        self.records += [(epoch, record.key, record.value) for batch in append.batches for record in batch]
        return base

    def state(self, end: int | None = None) -> dict[bytes, bytes]:
        return {key: value for _, key, value in self.records[:end] if not is_claim(key) and value is not None}


class Counters(IdleMachine):
    """A state machine in which each value names the previous value, so that the next value shows a lost write."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        assert value is not None
        self.values[key] = value

    def handle(self, request: Any, now_ms: int) -> Decision:
        verb, key = request
        if verb == "read":
            return Decision(reply=self.values.get(key, b""))
        value = self.values[key] = self.values.get(key, b"") + b"."
        return Decision((ShardRecord(key, value),), reply=value, pushes=(Push("g", key.decode(), value),))


class Owner:
    """A coordinator that owns the shard under an epoch, and its shell, whose messages the history delivers."""

    def __init__(self, history: History, epoch: int) -> None:
        self.history, self.epoch = history, epoch
        self.shard = Shard("shard-0", Claim(epoch, epoch, epoch), Counters)
        self.pending: list[Callable[[], None]] = []
        self.take()

    def take(self) -> None:
        for action in self.shard.ready():
            match action:
                case Append():
                    self.pending.append(lambda append=action: self.append(append))  # type: ignore[misc]
                case Replay():
                    self.pending.append(lambda replay=action: self.replay(replay))  # type: ignore[misc]
                case Pause(attempt):
                    self.pending.append(lambda attempt=attempt: self.shard.resume(attempt))  # type: ignore[misc]
                case Answer(ticket, outcome):
                    self.history.answered(ticket, outcome)
                case Tell(pushes):
                    for push in pushes:
                        self.history.pushed(push.member_id.encode(), push.message)
                case Became():
                    pass

    def append(self, append: Append) -> None:
        """The fate of a message: not sent; done, but the answer is lost; done late; done."""
        fate = self.history.fate()
        if fate == "late":  # this coordinator stops waiting for the append, which arrives later
            self.history.late.append((self.epoch, append))
            self.shard.append_failed(append.attempt, RequestTimedOutError("who knows"))
            return
        if fate == "refused":
            self.shard.append_failed(append.attempt, NotEnoughReplicasError("one is away"))
            return
        try:
            base = self.history.ledger.append(self.epoch, append)
        except HeadraceError as error:
            self.shard.append_failed(append.attempt, error)
            return
        if fate == "unanswered":
            self.shard.append_failed(append.attempt, RequestTimedOutError("who knows"))
        else:
            self.pending.append(lambda: self.shard.appended(append.attempt, base))

    def replay(self, replay: Replay) -> None:
        records = self.history.ledger.records[: replay.end]
        middle = len(records) // 2
        for part in (records[:middle], records[middle:]):
            self.shard.replayed(replay.attempt, [(key, value, 0) for _, key, value in part])
        if self.history.rng.random() < 0.05:
            self.shard.replay_failed(replay.attempt, RequestTimedOutError("slow"))
        else:
            self.shard.replay_ended(replay.attempt, 0)

    def step(self) -> None:
        if self.pending:
            self.pending.pop(0)()
        self.take()


class History:
    def __init__(self, seed: int, **ledger: bool) -> None:
        self.rng = random.Random(seed)
        self.ledger = Ledger(**ledger)
        self.late: list[tuple[int, Append]] = []
        self.owners: list[Owner] = [Owner(self, 1)]
        self.calm = False
        self.asked: dict[int, tuple[str, bytes]] = {}
        self.answers: dict[int, Any] = {}

    def fate(self) -> str:
        if self.calm:
            return "done"
        return self.rng.choices(["done", "late", "refused", "unanswered"], [80, 7, 6, 7])[0]

    def run(self) -> None:
        for _ in range(STEPS):
            chance = self.rng.random()
            owner = self.rng.choice(self.owners[-3:])
            if chance < 0.5:
                self.ask(owner)
            elif chance < 0.95:
                owner.step()
            elif chance < 0.975 and self.late:
                epoch, append = self.late.pop(self.rng.randrange(len(self.late)))
                try:
                    self.ledger.append(epoch, append)
                except HeadraceError:
                    continue
            elif chance < 0.99:
                self.owners.append(Owner(self, self.owners[-1].epoch + 1))
            else:
                owner.shard.resign()
                owner.take()
                self.owners.append(Owner(self, self.owners[-1].epoch + 1))
        self.settle()

    def ask(self, owner: Owner) -> None:
        ticket = len(self.asked)
        self.asked[ticket] = self.rng.choice(["write", "write", "read"]), self.rng.choice([b"a", b"b", b"c"])
        owner.shard.ask(ticket, self.asked[ticket], 0)
        owner.take()

    def settle(self) -> None:
        """Without further faults, every request ends."""
        self.calm = True
        for _ in range(200):
            for owner in self.owners:
                owner.step()
        last = self.owners[-1]
        assert last.shard.state is ShardState.SERVING
        assert isinstance(last.shard.state_machine, Counters)
        assert last.shard.state_machine.values == self.ledger.state(), "who serves knows the log"
        assert set(self.answers) == set(self.asked), "everybody is answered"
        for owner in self.owners[:-1]:
            if owner.shard.state is ShardState.SERVING:  # the owner has not tried to write since then
                self.ask(owner)
                for _ in range(5):
                    owner.step()
        self.check_epochs()

    # -- what always holds ---------------------------------------------------------------------------------------------

    def answered(self, ticket: Any, outcome: Any) -> None:
        assert ticket not in self.answers, "a request is answered once"
        self.answers[ticket] = outcome
        if not isinstance(outcome, HeadraceError):
            verb, key = self.asked[ticket]
            assert outcome == b"" or self.is_committed(key, outcome), f"{verb} told what is not in the log"

    def pushed(self, key: bytes, value: Any) -> None:
        assert self.is_committed(key, value), "pushed what is not in the log"

    def is_committed(self, key: bytes, value: bytes) -> bool:
        return any((key, value) == each[1:] for each in self.ledger.records)

    def check_epochs(self) -> None:
        epochs = [epoch for epoch, _, _ in self.ledger.records]
        assert epochs == sorted(epochs), "nobody writes behind a claim of a larger epoch"
        for key in (b"a", b"b", b"c"):
            lengths = [len(value or b"") for _, each, value in self.ledger.records if each == key]
            assert lengths == list(range(1, len(lengths) + 1)), "each write was decided on all before it"


@pytest.mark.parametrize("part", range(3))
def test_whatever_happens_what_was_reported_is_in_the_log_and_who_serves_knows_it(part: int, seed: int) -> None:
    for number in range(HISTORIES):
        History(seed * 1_000 + number).run()


def _found(**ledger: bool) -> bool:
    for number in range(HISTORIES):
        try:
            History(number, **ledger).run()
        except AssertionError:
            return True
    return False


def test_a_leader_that_takes_smaller_epochs_would_be_noticed() -> None:
    assert _found(checks_epoch=False)


def test_a_leader_that_does_not_look_at_the_end_would_be_noticed() -> None:
    assert _found(checks_end=False)


def _tells_at_once(self: Shard, ticket: object, decision: Decision) -> None:
    if ticket is not None:
        self._todo.append(Answer(ticket, decision.reply))
    self._gathering.add(decision.records, is_atomic=True)


def _reads_tell_at_once(self: Shard, ticket: object, decision: Decision) -> None:
    if not decision.records:
        self._answer_now(ticket, decision.reply)  # type: ignore[arg-type]
    else:
        _decided(self, ticket, decision)


def _keeps_its_state_machine(self: Shard, error: Exception) -> None:
    flying, state_machine, end = self._flying, self.state_machine, self._end
    if self.state is not ShardState.SERVING or flying is None:
        _drop(self, error)
        return
    self._forget(shard_module.for_clients(self.name, error))
    self.state_machine, self._end = state_machine, end


_decided, _drop = Shard._decided, Shard._drop


@pytest.mark.parametrize(
    ("name", "mutant"),
    [("_decided", _tells_at_once), ("_decided", _reads_tell_at_once), ("_drop", _keeps_its_state_machine)],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_a_shard_without_this_guard_would_be_noticed(
    name: str, mutant: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shard, name, mutant)
    assert _found()


def test_a_claim_that_replays_less_than_all_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = Owner.replay
    monkeypatch.setattr(Owner, "replay", lambda self, todo: replay(self, todo._replace(end=max(todo.end - 2, 0))))
    assert _found()
