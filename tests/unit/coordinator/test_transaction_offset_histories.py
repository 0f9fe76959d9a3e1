"""Random histories of a transaction shard (tests/worlds/transaction_world.py) and a group shard, whose offsets are a
part of the transactions."""

from __future__ import annotations

import collections
import os
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace_coordinator.group.groups import Groups
from headrace_coordinator.offsets import logic
from headrace_coordinator.offsets.codec import decode_key, decode_value
from headrace_coordinator.offsets.logic import OffsetsLogic
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    CommitTransactionOffsets,
    EndOffsets,
    FetchOffsets,
    OffsetToCommit,
    VerificationFailed,
)
from headrace_coordinator.offsets.pending import Verifications, decode_pending, decode_pending_key
from headrace_coordinator.runtime.claims import Claim, is_claim
from headrace_coordinator.runtime.shard import ANY_END, Answer, Append, Pause, Replay, Shard, ShardState
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import Decision, RecordKind, ShardRecord, kind_of
from headrace_coordinator.transaction import transactions
from headrace_coordinator.transaction.messages import AddPartitions, EndTransaction, WriteMarkers
from headrace_coordinator.transaction.state import ProducerIdentity
from headrace_core.errors import (
    ConcurrentTransactionsError,
    FencedShardEpochError,
    HeadraceError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    RequestTimedOutError,
    RetriableError,
    UnexpectedLogEndError,
)
from headrace_core.types import TopicPartition
from tests.worlds.transaction_world import FENCED, Instance, LostAnswerError, TransactionWorld

SHARD = TopicPartition("__consumer_offsets", 0)
NOW_MS = 1_800_000_000_000


@dataclass(eq=False)
class Owner:
    epoch: int
    shard: Shard
    outcomes: dict[int, object] = field(default_factory=dict)


class GroupShard:
    """The shard of group "g". TransactionWorld uses the group shard in place of a leader."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.log: list[tuple[int, ShardRecord]] = []
        self.owners: list[Owner] = []
        self.outcomes: dict[str, set[bool]] = {}
        self._tickets = 0
        self.move()

    @property
    def owner(self) -> Owner:
        return self.owners[-1]

    @property
    def epochs(self) -> dict[int, int]:
        return {}

    @property
    def open(self) -> dict[int, list[str]]:
        """Return the producers with pending offsets, according to the log."""
        found = {}
        for _, record in self.log:
            if kind_of(record.key) == RecordKind.PENDING_OFFSETS:
                found[decode_pending_key(record.key)] = record.value
        return {key.producer_id: [key.group_id] for key, value in found.items() if value is not None}

    def move(self) -> None:
        """Move the shard to another coordinator; the former owner does not learn of the move."""
        epoch = len(self.owners) + 1
        self.owners.append(Owner(epoch, Shard(str(SHARD), Claim(epoch, epoch, 1), lambda: ShardStateMachine(Groups()))))
        while self.owner.shard.state is not ShardState.SERVING:
            self._turn(self.owner)

    def some_owner(self) -> Owner:
        """Return an owner: usually the present owner, sometimes a former owner."""
        return self.owner if self._random.random() < 0.8 else self._random.choice(self.owners[-3:])

    def ask(self, owner: Owner, request: object, *, is_fenced: bool = False) -> Any:
        """Send a request to the shard, and return the reply. Raises the shard's error, and CoordinatorNotAvailableError
        for an unknown outcome."""
        self._tickets += 1
        owner.shard.ask(self._tickets, request, NOW_MS, is_fenced=is_fenced)
        self._turn(owner)
        outcome = owner.outcomes.pop(self._tickets)
        if isinstance(outcome, HeadraceError):
            raise outcome
        return outcome

    def tell(self, owner: Owner, request: object) -> None:
        owner.shard.ask(None, request, NOW_MS)
        self._turn(owner)

    def write_marker(self, marker: WriteMarkers) -> bool:
        """Return whether the owner confirms the marker. Raises LostAnswerError: send the marker again."""
        request = EndOffsets(*marker.identity, marker.commit, marker.version, 1)
        try:
            self.ask(self.some_owner(), request, is_fenced=True)
        except InvalidProducerEpochError:
            return False
        except RetriableError:
            raise LostAnswerError from None
        return True

    def _turn(self, owner: Owner) -> None:
        shard = owner.shard
        for _ in range(1_000):
            actions = shard.ready()
            if not actions:
                return
            for action in actions:
                match action:
                    case Append():
                        self._append(owner, action)
                    case Replay(attempt, end):
                        records = [(record.key, record.value, NOW_MS) for _, record in self.log[:end]]
                        shard.replayed(attempt, records)
                        shard.replay_ended(attempt, NOW_MS)
                    case Pause(attempt, _):
                        shard.resume(attempt)
                    case Answer(ticket, outcome):
                        assert isinstance(ticket, int)
                        owner.outcomes[ticket] = outcome
        raise AssertionError("the shard still has actions to take after 1,000 rounds")

    def _append(self, owner: Owner, append: Append) -> None:
        if self.log and owner.epoch < self.log[-1][0]:
            owner.shard.append_failed(append.attempt, FencedShardEpochError("a smaller epoch"))
            return
        if append.expected_end not in (ANY_END, len(self.log)):
            owner.shard.append_failed(append.attempt, UnexpectedLogEndError("another end"))
            return
        fate, base = self._random.random(), len(self.log)
        if fate >= 0.03:
            self.log += [(owner.epoch, record) for batch in append.batches for record in batch]
        if fate < 0.06:
            owner.shard.append_failed(append.attempt, RequestTimedOutError("no answer"))
        else:
            owner.shard.appended(append.attempt, base)

    # -- contents of the log -------------------------------------------------------------------------------------------

    def committed(self) -> dict[int, list[int]]:
        """Return all committed offsets of each partition, in order."""
        found: dict[int, list[int]] = {}
        for _, record in self.log:
            if kind_of(record.key) == RecordKind.OFFSET_COMMIT and record.value is not None:
                partition = decode_key(record.key).partition.partition
                found.setdefault(partition, []).append(decode_value(record.value).offset)
        return found

    def written(self) -> dict[int, int]:
        """Return the position in the log at which each offset became pending. (A request that arrives once more, after
        its offset was overtaken, is a new write, as in Kafka.)"""
        found, pending = {}, dict[bytes, set[int]]()
        for position, (_, record) in enumerate(self.log):
            if kind_of(record.key) == RecordKind.PENDING_OFFSETS:
                value = record.value
                offsets = {} if value is None else decode_pending(decode_pending_key(record.key), value).offsets
                now = {one.committed.offset for one in offsets.values()}
                found.update(dict.fromkeys(now - pending.get(record.key, set()), position))
                pending[record.key] = now
        return found

    def stable(self) -> dict[int, int | None]:
        """Return the stable offsets according to the log; None: unstable."""
        state_machine = ShardStateMachine(Groups())
        for _, record in self.log:
            if not is_claim(record.key):
                state_machine.replay(record.key, record.value, NOW_MS)
        return _stable(state_machine.handle(FetchOffsets("g", require_stable=True), NOW_MS).reply)


@dataclass(eq=False)
class Sending:
    """A request with an offset, and its progress. ``is_late``: the network delivers a former request again."""

    instance: Instance
    name: str
    request: CommitTransactionOffsets
    owner: Owner | None = None
    is_confirmed: bool = False
    is_late: bool = False

    @property
    def identity(self) -> ProducerIdentity:
        return ProducerIdentity(self.request.producer_id, self.request.epoch)

    @property
    def offset(self) -> OffsetToCommit:
        return self.request.commit.offsets[0]


class TransactionOffsetsWorld(TransactionWorld):
    """The group shard has a present owner, and former owners that still answer, whose appends its log refuses. A
    request with offsets has three steps: the group shard begins a verification, the transaction shard confirms it,
    the group shard adds the offsets. Between the steps come markers, time-outs, moves of both shards, repeated
    requests, requests of zombies and of ended transactions. Each offset is sent once, so it identifies its
    transaction."""

    def __init__(self, seed: int) -> None:
        #: The outcome of each transaction that has markers, by the identity in its markers.
        self.decided: dict[ProducerIdentity, bool] = {}
        self.sendings: list[Sending] = []
        self.former: list[Sending] = []
        #: Each offset's request.
        self.sent: dict[int, Sending] = {}
        self.acknowledged: set[int] = set()
        #: Transactions with a refused request; their producers abort them.
        self.doomed: set[str] = set()
        self._is_idle_wanted = False
        super().__init__(seed)
        self.groups = GroupShard(self.random)
        self.leaders[SHARD] = self.groups  # type: ignore[assignment]

    def _commit(self, decision: Decision) -> None:
        for push in decision.pushes:
            if isinstance(push, WriteMarkers):
                assert self.decided.setdefault(push.identity, push.commit) == push.commit
        super()._commit(decision)

    def step(self) -> None:
        event = self.random.choices(
            (super().step, self.send_offsets, self.go_on, self.late_request, self.read, self.move_groups),
            (40, 5, 50, 2, 4, 1),
        )[0]
        event()

    def send(self) -> None:
        leader = self.leaders.pop(SHARD)
        try:
            super().send()
        finally:
            self.leaders[SHARD] = leader

    def some(self) -> Instance | None:
        instance = super().some()
        if instance is not None and self._is_idle_wanted and not self.may_commit(instance.transaction):
            return None
        return instance

    def may_commit(self, name: str) -> bool:
        """Whether all requests of a transaction have succeeded."""
        return name not in self.doomed and not any(each.name == name and not each.is_late for each in self.sendings)

    def prepare(self) -> None:
        self._is_idle_wanted = True
        super().prepare()
        self._is_idle_wanted = False

    def ask_end(self, instance: Instance, request: Any, name: str) -> None:
        if request.commit and not instance.token and not instance.unanswered and not self.may_commit(name):
            if name not in self.doomed and self.random.random() < 0.8:
                return  # the producer waits for the answers
            request = EndTransaction(instance.transactional_id, instance.identity, commit=False)
        super().ask_end(instance, request, name)

    def marker(self) -> None:
        try:
            super().marker()
        except LostAnswerError:
            return

    def old_marker(self) -> None:
        try:
            super().old_marker()
        except LostAnswerError:
            return

    def move_groups(self) -> None:
        self.groups.move()
        self.count("moves of the group's shard")

    # -- offsets -----------------------------------------------------------------------------------------------------

    def send_offsets(self) -> None:
        instance = self.some()
        if instance is None or instance.unanswered or instance.token:
            return
        name = instance.transaction or f"{instance.transactional_id}{instance.number}.{instance.transactions}"
        sequence = 1 + sum(each.name == name for each in self.sent.values())
        offset = OffsetToCommit("t", self.random.randrange(2), len(self.sent))
        request = CommitTransactionOffsets(
            CommitOffsets("g", (offset,)), instance.transactional_id, *instance.identity, sequence
        )
        sending = Sending(instance, name, request)
        self.sent[offset.offset] = sending
        self.sendings.append(sending)

    def late_request(self) -> None:
        if self.former:
            former = self.random.choice(self.former[-20:])
            self.sendings.append(Sending(former.instance, former.name, former.request, is_late=True))
            self.count("late requests")

    def go_on(self) -> None:
        """Take the next step of a request."""
        if not self.sendings:
            return
        sending = self.random.choice(self.sendings)
        try:
            if sending.owner is None:
                owner = self.groups.some_owner()
                verification = self.groups.ask(owner, sending.request)
                sending.owner, sending.request = owner, sending.request._replace(verification=verification)
            elif not sending.is_confirmed:
                self._confirm(sending)
            else:
                self.groups.ask(sending.owner, sending.request)
                self._over(sending, is_done=True)
        except (LostAnswerError, ConcurrentTransactionsError):
            return  # the request is sent again
        except RetriableError:
            if sending.is_late:
                self._over(sending, is_done=False)
            else:  # starts again at the first step
                sending.owner, sending.is_confirmed = None, False
                sending.request = sending.request._replace(verification=None)
                self.count("repeated requests with offsets")
        except (*FENCED, InvalidTxnStateError, HeadraceError):
            self.count("refused offsets")
            self._over(sending, is_done=False)

    def _confirm(self, sending: Sending) -> None:
        instance = sending.instance
        self.ask(AddPartitions(instance.transactional_id, sending.identity, frozenset({SHARD})))
        assert self.newest[instance.transactional_id] is instance, (
            f"{sending.name} adds offsets, although its producer was replaced"
        )
        assert sending.identity == instance.identity, f"{sending.name} adds offsets, although it has ended"
        instance.transaction = sending.name
        sending.is_confirmed = True

    def _over(self, sending: Sending, *, is_done: bool) -> None:
        self.sendings.remove(sending)
        self.former.append(Sending(sending.instance, sending.name, sending.request._replace(verification=None)))
        if sending.owner is not None and sending.request.verification is not None:
            self.groups.tell(sending.owner, VerificationFailed(sending.request.verification))
        if is_done:
            self.count("offsets")
            self.acknowledged.add(sending.offset.offset)
        elif not sending.is_late:
            self.doomed.add(sending.name)

    def read(self) -> None:
        """Do a stable read, perhaps at a former owner."""
        owner = self.groups.some_owner()
        try:
            reply = self.groups.ask(owner, FetchOffsets("g", require_stable=True), is_fenced=True)
        except RetriableError:
            return
        self.count("stable reads")
        assert _stable(reply) == self.groups.stable(), "a former owner answers a stable read"

    # -- the end -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for sending in list(self.sendings):
            self._over(sending, is_done=False)
        super().settle()

    def check(self) -> None:
        super().check()
        committed, written = self.groups.committed(), self.groups.written()
        for partition, offsets in committed.items():
            assert len(set(offsets)) == len(offsets), f"partition {partition}: committed twice: {offsets}"
            order = [written[offset] for offset in offsets]
            assert order == sorted(order), f"partition {partition}: a marker set the offset back: {offsets}"
            for offset in offsets:
                sending = self.sent[offset]
                assert self.is_committed(sending.identity), (
                    f"offset {offset} of {sending.name}, which was not committed"
                )
        last: dict[tuple[ProducerIdentity, int], Sending] = {}
        for offset in sorted(self.acknowledged):
            sending = self.sent[offset]
            if self.is_committed(sending.identity):
                last[sending.identity, sending.offset.partition] = sending
        for (identity, partition), sending in last.items():
            offsets = committed.get(partition, [])
            found = [each for each in offsets if self.sent[each].identity == identity]
            if not found and any(written[each] > written[sending.offset.offset] for each in offsets):
                continue  # overtaken
            assert len(found) == 1, f"{sending.name}: {found} committed, acknowledged {sending.offset.offset}"
            assert found[0] >= sending.offset.offset, f"{sending.name}: {found[0]} came before {sending.offset.offset}"
        self.count("committed offsets", len(last))

    def is_committed(self, identity: ProducerIdentity) -> bool:
        """Return the outcome of the transaction whose records have this identity."""
        markers = [each for each in self.decided if each.producer_id == identity.producer_id and each > identity]
        assert markers, f"the transaction of {identity} never ended"
        return self.decided[min(markers)]

    def count(self, what: str, times: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + times


def _stable(reply: Any) -> dict[int, int | None]:
    return {each.partition: None if each.error else each.offset for each in reply.offsets}


HISTORIES, STEPS = 100, 600


def _run(seed: int) -> TransactionOffsetsWorld:
    world = TransactionOffsetsWorld(seed)
    for _ in range(STEPS):
        world.step()
    world.settle()
    world.check()
    return world


def test_offsets_take_effect_with_their_transaction_or_not_at_all() -> None:
    first = zlib.crc32(os.environ["HEADRACE_TEST_SEED"].encode()) % 1_000_000_000
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(first, first + HISTORIES):
        try:
            counts.update(_run(seed).counts)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    happened = dict(counts)
    for what in (
        "offsets",
        "committed offsets",
        "refused offsets",
        "repeated requests with offsets",
        "late requests",
        "stable reads",
        "moves of the group's shard",
        "moves",
        "commits",
        "aborts",
        "old markers",
        "time-outs",
    ):
        assert counts[what] >= 10, f"{what} hardly happened: {happened}"


def _unfenced(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def change(ask: Callable[..., None]) -> Callable[..., None]:
        return lambda self, ticket, request, now_ms, *, is_fenced=False: ask(
            self, ticket, request, now_ms, is_fenced=is_fenced and not isinstance(request, kind)
        )

    return change


def _without_sequence(commit: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, request, now_ms: commit(self, request._replace(sequence=0), now_ms)


def _adds_without_asking(add: Callable[..., Any]) -> Callable[..., Any]:
    def replacement(self: Any, request: AddPartitions, now_ms: int) -> Any:
        try:
            return add(self, request, now_ms)
        except HeadraceError:
            if request.transactional_id in self.transactions and request.partitions:
                return transactions.Decision()
            raise

    return replacement


MUTANTS: dict[str, tuple[object, str, Callable[[Any], Any]]] = {
    "stable reads are not fenced": (Shard, "ask", _unfenced(FetchOffsets)),
    "answers to markers are not fenced": (Shard, "ask", _unfenced(EndOffsets)),
    "a marker cancels no verification": (Verifications, "cancel", lambda _: lambda self, producer_id, epoch: None),
    "a verification from before a replay counts": (Verifications, "end", lambda _: lambda self, verification: True),
    "a late marker ends the next transaction": (
        logic, "_check_marker", lambda _: lambda marker, pending, is_bumping: None,
    ),
    "a delayed request replaces a later offset": (OffsetsLogic, "commit_in_transaction", _without_sequence),
    "a marker overwrites what was written later": (OffsetsLogic, "_overtaken", lambda _: lambda self, producer_id: {}),
    "an ended transaction takes offsets": (transactions.TransactionsStateMachine, "_add", _adds_without_asking),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_without_a_guard_it_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, change = MUTANTS[name]
    replacement = change(getattr(owner, attribute))
    monkeypatch.setattr(owner, attribute, replacement)
    if attribute == "_add":
        monkeypatch.setitem(transactions._RULES, AddPartitions, replacement)
    for seed in range(200):
        try:
            _run(seed)
        except AssertionError:
            return
    pytest.fail("200 histories noticed nothing")
