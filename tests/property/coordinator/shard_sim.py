"""Some coordinators, one shard, one log: the product's runtime and state machine on a log that loses, delays and
truncates.

A seeded choice picks each event. A client sends a request. An append arrives at the leader (also a late append of a
former owner). Written records are committed, or the response is lost. The leader dies with some uncommitted batches.
The shard moves while the old coordinator continues.

After every event the simulation checks four rules. No acknowledged commit is lost, and no committed offset goes back. A
read at the shard's owner returns at least what had been acknowledged when the read was requested. The owner's state
machine matches its log.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace_coordinator.group.groups import Groups
from headrace_coordinator.offsets.codec import decode_key, decode_value
from headrace_coordinator.offsets.messages import CommitOffsets, FetchOffsets, OffsetsFetched, OffsetToCommit
from headrace_coordinator.runtime.claims import Claim, is_claim
from headrace_coordinator.runtime.shard import ANY_END, Answer, Append, Pause, Replay, Shard, ShardState
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import RecordKind, ShardRecord, kind_of
from headrace_core.errors import (
    FencedShardEpochError,
    HeadraceError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnexpectedLogEndError,
)

NOW_MS = 1_800_000_000_000
CLIENTS = 4


class Written(NamedTuple):
    """A record in the log. ``commit`` is (partition, offset) if the record is an offset commit."""

    record: ShardRecord
    epoch: int
    batch: int
    commit: tuple[int, int] | None


def _commit_in(record: ShardRecord) -> tuple[int, int] | None:
    if kind_of(record.key) != RecordKind.OFFSET_COMMIT or record.value is None:
        return None
    return decode_key(record.key).partition.partition, decode_value(record.value).offset


@dataclass
class Waiting:
    """An append that the leader has accepted. The leader answers when ``end`` is committed."""

    owner: Owner
    attempt: int
    base_offset: int
    end: int


class Partition:
    """The shard's log at its leader. An append must have the right epoch and the right end."""

    def __init__(self) -> None:
        self.log: list[Written] = []
        self.committed = 0
        self.waiting: list[Waiting] = []
        self._batches = 0

    def append(self, owner: Owner, append: Append) -> None:
        """FencedShardEpochError, UnexpectedLogEndError."""
        self.check_epoch(owner.epoch)
        self.check_end(append.expected_end)
        base_offset = len(self.log)
        for batch in append.batches:
            self._batches += 1
            self.log += [Written(record, owner.epoch, self._batches, _commit_in(record)) for record in batch]
        self.waiting.append(Waiting(owner, append.attempt, base_offset, len(self.log)))

    def check_epoch(self, epoch: int) -> None:
        if self.log and epoch < self.log[-1].epoch:
            raise FencedShardEpochError("a smaller epoch")

    def check_end(self, expected_end: int) -> None:
        if expected_end not in (ANY_END, len(self.log)):
            raise UnexpectedLogEndError("another end")

    def cut(self, rng: random.Random) -> list[Waiting]:
        """Elect another leader, which has some whole batches of the uncommitted records. Return the appends whose
        outcome becomes unknown."""
        tail = sorted({one.batch for one in self.log[self.committed :]})
        kept = set(tail[: rng.randint(0, len(tail))])
        self.log = [one for at, one in enumerate(self.log) if at < self.committed or one.batch in kept]
        self.committed = len(self.log)
        unknown, self.waiting = self.waiting, []
        return unknown


@dataclass
class Owner:
    """A coordinator from one start to its end, with the shard under one epoch."""

    epoch: int
    shard: Shard
    flying: list[Append] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)


class Client:
    """A consumer without a group membership, which reads its own partition. The consumer commits increasing offsets,
    one at a time."""

    def __init__(self, number: int) -> None:
        self.group_id = f"g{number % 2}"
        self.partition = number
        self.sent = 0
        self.acknowledged = 0
        self.is_waiting = False


class History:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.partition = Partition()
        self.clients = [Client(number) for number in range(CLIENTS)]
        self.answers: dict[int, Callable[[object], None]] = {}
        self.tickets = 0
        self.owners: list[Owner] = []
        self.now_ms = NOW_MS
        self.acknowledged = 0
        self._move()

    @property
    def owner(self) -> Owner:
        return self.owners[-1]

    def run(self, steps: int) -> None:
        bad = self.rng.choice((0.2, 1, 2))
        events = (
            (self._commit, 14), (self._read, 4), (self._arrive, 14), (self._replicate, 10), (self._replay, 8),
            (self._resume, 8), (self._lose_answer, bad), (self._leader_dies, bad), (self._move, bad / 2),
            (self._resign, bad / 2),
        )  # fmt: skip
        names, weights = [event for event, _ in events], [weight for _, weight in events]
        for _ in range(steps):
            self.now_ms += self.rng.randrange(50)
            self.rng.choices(names, weights)[0]()
            self._turn()
            self._check_log()
        self._heal()

    # -- events ------------------------------------------------------------------------------------------------------

    def _ask(self, owner: Owner, request: object, answered: Callable[[object], None]) -> None:
        self.tickets += 1
        self.answers[self.tickets] = answered
        owner.shard.ask(self.tickets, request, self.now_ms)

    def _commit(self) -> None:
        client = self.rng.choice(self.clients)
        if client.is_waiting:
            return
        client.is_waiting = True
        client.sent += 1
        offset = client.sent

        def answered(outcome: object) -> None:
            client.is_waiting = False
            if not isinstance(outcome, HeadraceError):  # otherwise the outcome is unknown: the next one is larger
                client.acknowledged = offset
                self.acknowledged += 1

        request = CommitOffsets(client.group_id, (OffsetToCommit("t", client.partition, offset),))
        self._ask(self.owner, request, answered)

    def _read(self) -> None:
        """Read the committed offset at the owner of the shard. A former owner does not answer, because its lease has
        ended."""
        owner, client = self.owner, self.rng.choice(self.clients)
        at_least = client.acknowledged

        def answered(outcome: object) -> None:
            if isinstance(outcome, OffsetsFetched) and owner is self.owner:
                found = {one.partition: one.offset for one in outcome.offsets}.get(client.partition, 0)
                assert at_least <= found <= client.sent, f"read {found}, when {at_least} had been acknowledged"

        self._ask(owner, FetchOffsets(client.group_id), answered)

    def _arrive(self) -> None:
        """An append of any present or former owner arrives at the leader."""
        owner = self.rng.choice([each for each in self.owners if each.flying] or [self.owner])
        if not owner.flying:
            return
        append = owner.flying.pop(self.rng.randrange(len(owner.flying)))
        try:
            self.partition.append(owner, append)
        except HeadraceError as error:
            owner.shard.append_failed(append.attempt, error)

    def _replicate(self) -> None:
        """All in-sync replicas have the written records."""
        self.partition.committed = len(self.partition.log)
        waiting, self.partition.waiting = self.partition.waiting, []
        for one in waiting:
            one.owner.shard.appended(one.attempt, one.base_offset)

    def _lose_answer(self) -> None:
        """The connection breaks. The append is written or still in transit, and its coordinator gets a time-out."""
        owner = self.rng.choice(self.owners)
        for one in [one for one in self.partition.waiting if one.owner is owner]:
            self.partition.waiting.remove(one)
            owner.shard.append_failed(one.attempt, RequestTimedOutError("no answer"))
        for append in owner.flying:  # it stays in transit
            owner.shard.append_failed(append.attempt, RequestTimedOutError("no answer"))

    def _leader_dies(self) -> None:
        for one in self.partition.cut(self.rng):
            one.owner.shard.append_failed(one.attempt, NotLeaderOrFollowerError("the leader died"))

    def _replay(self) -> None:
        owner = self.rng.choice([each for each in self.owners if each.replays] or [self.owner])
        if owner.replays:
            replay = owner.replays.pop(0)
            end = min(replay.end, self.partition.committed)
            found = [(one.record.key, one.record.value, NOW_MS) for one in self.partition.log[:end]]
            owner.shard.replayed(replay.attempt, found)
            owner.shard.replay_ended(replay.attempt, self.now_ms)

    def _resume(self) -> None:
        owner = self.rng.choice(self.owners)
        if owner.pauses:
            owner.shard.resume(owner.pauses.pop(0).attempt)

    def _move(self) -> None:
        """The controllers assign the shard to another coordinator; the former owner does not know it yet."""
        epoch = len(self.owners) + 1
        shard = Shard(f"shard of epoch {epoch}", Claim(epoch, epoch, 1), lambda: ShardStateMachine(Groups()))
        self.owners.append(Owner(epoch, shard))

    def _resign(self) -> None:
        """A former owner learns that it has lost the shard."""
        owner = self.rng.choice(self.owners)
        if owner is not self.owner:
            owner.shard.resign()

    def _turn(self) -> None:
        for owner in self.owners:
            for action in owner.shard.ready():
                match action:
                    case Append():
                        owner.flying.append(action)
                    case Replay():
                        owner.replays.append(action)
                    case Pause():
                        owner.pauses.append(action)
                    case Answer(ticket, outcome):
                        assert isinstance(ticket, int)
                        self.answers.pop(ticket)(outcome)

    # -- what must hold ----------------------------------------------------------------------------------------------

    def _check_log(self) -> None:
        """Every acknowledged offset is in the committed part of the log, and no smaller offset follows it."""
        latest = {one.commit[0]: one.commit[1] for one in self.partition.log[: self.partition.committed] if one.commit}
        for client in self.clients:
            found = latest.get(client.partition, 0)
            assert found >= client.acknowledged, f"{client.acknowledged} was acknowledged, the log says {found}"

    def _replayed(self) -> dict[int, int]:
        state_machine = ShardStateMachine(Groups())
        for one in self.partition.log:
            if not is_claim(one.record.key):
                state_machine.replay(one.record.key, one.record.value, NOW_MS)
        return _offsets(state_machine, self.now_ms)

    def _heal(self) -> None:
        """End the faults. The last owner then serves, answers every request, and has the state of the log."""
        for _ in range(500):
            for event in (self._arrive, self._replicate, self._replay, self._resume):
                event()
                self._turn()
            if (
                self.owner.shard.state is ShardState.SERVING
                and not self.answers
                and not any(owner.flying for owner in self.owners)
            ):
                break
        else:
            raise AssertionError(
                f"the shard does not come to serve: {self.owner.shard.state}, {len(self.answers)} wait"
            )
        self._check_log()
        assert self.owner.shard.state_machine is not None
        assert _offsets(self.owner.shard.state_machine, self.now_ms) == self._replayed()


def _offsets(state_machine: object, now_ms: int) -> dict[int, int]:
    replies = [state_machine.handle(FetchOffsets(f"g{number}"), now_ms).reply for number in range(2)]  # type: ignore[attr-defined]
    return {one.partition: one.offset for reply in replies for one in reply.offsets}
