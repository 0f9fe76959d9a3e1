"""Compare a shard's offsets with a simple model: commits, transactions, deletions, topics that are deleted and created
again, members, time, crashes.

The model is written by hand, with the rules that a user would state. After every step the shard must agree with the
model, and so must a successor that replays the shard's log. Further tests break the rules one by one, and check that
the model test fails.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_coordinator.group.messages import Topic, TopicsChanged
from headrace_coordinator.offsets import logic
from headrace_coordinator.offsets.book import OffsetBook
from headrace_coordinator.offsets.codec import CommittedOffset
from headrace_coordinator.offsets.logic import OffsetSettings, OffsetsLogic
from headrace_coordinator.offsets.messages import (
    CommitOffsets,
    CommitTransactionOffsets,
    DeleteGroup,
    DeleteOffsets,
    EndOffsets,
    FetchOffsets,
    OffsetToCommit,
)
from headrace_coordinator.offsets.pending import (
    PendingBook,
    PendingKey,
    PendingOffsets,
    Verification,
    Verifications,
)
from headrace_coordinator.offsets.retention import RetentionSettings, RetentionSweep
from headrace_coordinator.shard_state_machine import ShardStateMachine
from headrace_coordinator.state_machine import Decision, ShardRecord
from headrace_core.errors import HeadraceError, UnstableOffsetCommitError
from headrace_core.types import TopicPartition
from tests.worlds.shard_world import DAY_MS, NOW_MS, Group, GroupsByHand
from tests.worlds.this_process import examples

GROUPS = ("g", "h")
PRODUCERS = (7, 8)
TOPICS = ("s", "t")
CHECK_MS = 600_000
RETENTION_MS = DAY_MS


class _Groups(GroupsByHand):
    """The groups of this model decide nothing by themselves."""

    def handle(self, request: object, now_ms: int) -> Decision:
        return Decision()

    def tick(self, now_ms: int) -> Decision:
        return Decision()


@dataclass
class Entry:
    """The model's state of a committed offset."""

    offset: int
    at_ms: int
    topic_id: bytes
    order: int = 0  #: The number of the request that added the offset to a transaction.


class History:
    """One random history of a shard, with the model beside it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.groups = _Groups()
        self.settings = OffsetSettings(
            retention=RetentionSettings(retention_ms=RETENTION_MS, check_interval_ms=CHECK_MS)
        )
        self.now_ms = NOW_MS
        self.log: list[ShardRecord] = []
        self.topics: dict[str, Topic] = {}
        self.book: dict[tuple[str, TopicPartition], Entry] = {}
        #: Producer id -> offsets in its open transaction.
        self.pending: dict[int, dict[tuple[str, TopicPartition], Entry]] = {
            producer_id: {} for producer_id in PRODUCERS
        }
        self.epochs = dict.fromkeys(PRODUCERS, 0)
        self.sends = 0
        #: The numbered requests of each producer's open transaction, and the last number that reached each offset.
        self.sent: dict[int, list[CommitTransactionOffsets]] = {producer_id: [] for producer_id in PRODUCERS}
        self.numbers: dict[tuple[int, tuple[str, TopicPartition]], int] = {}
        self.state = self._loaded()

    def _loaded(self) -> ShardStateMachine:
        """A new owner of the shard."""
        state = ShardStateMachine(self.groups, self.settings)
        for key, value in self.log:
            state.replay(key, value, NOW_MS)
        state.loaded(self.now_ms)
        state.handle(TopicsChanged(dict(self.topics)), self.now_ms)
        return state

    def run(self, steps: int) -> None:
        for _ in range(steps):
            often, seldom = (
                (self.commit, self.wait, self.send, self.end),
                (self.delete, self.delete_group, self.topic, self.member, self.crash, self.late_marker),
            )
            stories = (self.race, self.late_request, self.visit, self.long_transaction)
            self.rng.choice((*often, *often, *seldom, *stories))()
            self.check()

    def _ask(self, request: object) -> Decision | None:
        """Return None if the request was refused and changed nothing."""
        before = self._offsets(self.state)
        try:
            decision = self.state.handle(request, self.now_ms)
        except HeadraceError:
            assert self._offsets(self.state) == before, "a refused request has changed something"
            return None
        self.log += decision.records
        return decision

    def _partition(self) -> TopicPartition:
        return TopicPartition(self.rng.choice(TOPICS), self.rng.randrange(2))

    def commit(self, group_id: str = "", epoch: int = 0, partition: TopicPartition | None = None) -> None:
        group_id, partition = group_id or self.rng.choice(GROUPS), partition or self._partition()
        offset = self.rng.randrange(1_000)
        members = self.groups.groups[group_id].members if group_id in self.groups.groups else {}
        epoch = epoch or self.rng.choice((-1, 1, 2))
        member_id = "m" if epoch >= 0 else ""
        decision = self._ask(CommitOffsets(group_id, (OffsetToCommit(*partition, offset),), member_id, epoch))
        assert (decision is not None) == (members.get("m") == epoch if members or epoch >= 0 else True)
        if decision is not None and partition.topic in self.topics:
            topic_id = self.topics[partition.topic].topic_id
            self.book[group_id, partition] = Entry(offset, self.now_ms, topic_id)
            for offsets in self.pending.values():
                offsets.pop((group_id, partition), None)

    def race(self) -> None:
        """Let both producers add an offset of the same partition; then one transaction ends before the other."""
        group_id, partition = self.rng.choice(GROUPS), self._partition()
        for producer_id in self.rng.sample(PRODUCERS, 2):
            self.send(producer_id, group_id, partition, may_crash=False)
        for producer_id in self.rng.sample(PRODUCERS, self.rng.randrange(3)):
            self._end(producer_id, commit=self.rng.random() < 0.7)
            self.check()

    def send(
        self,
        producer_id: int = 0,
        group_id: str = "",
        partition: TopicPartition | None = None,
        *,
        may_crash: bool = True,
    ) -> None:
        """Let a producer add an offset to its transaction."""
        producer_id = producer_id or self.rng.choice(PRODUCERS)
        group_id, partition = group_id or self.rng.choice(GROUPS), partition or self._partition()
        offset = self.rng.randrange(1_000)
        epoch = self.rng.choice((-1, 1, 2))
        commit = CommitOffsets(group_id, (OffsetToCommit(*partition, offset),), "m" if epoch >= 0 else "", epoch)
        number = self.rng.choice((0, self.sends + 1))
        request = CommitTransactionOffsets(commit, "t", producer_id, self.epochs[producer_id], number)
        self.sends += 1
        decision = self._ask(request)
        group = self.groups.groups.get(group_id)
        assert (decision is not None) == (epoch < 0 or (group is not None and group.members.get("m") == epoch))
        if decision is None:
            return
        assert isinstance(decision.reply, Verification)
        if self.rng.random() < 0.2:
            self._end(producer_id, commit=False)  # a time-out, while the transaction is verified
            assert self._ask(request._replace(verification=decision.reply)) is None
            return
        if may_crash and self.rng.random() < 0.1:
            self.crash()
            assert self._ask(request._replace(verification=decision.reply)) is None
            return
        assert self._ask(request._replace(verification=decision.reply)) is not None
        self._expect_pending(request)
        if number:
            self.sent[producer_id].append(request)

    def _expect_pending(self, request: CommitTransactionOffsets) -> None:
        ((name, number, offset, *_),) = request.commit.offsets
        key = request.commit.group_id, TopicPartition(name, number)
        last = self.numbers.get((request.producer_id, key), 0)
        if name in self.topics and not 0 < request.sequence <= last:
            self.sends += 1
            entry = Entry(offset, self.now_ms, self.topics[name].topic_id, self.sends)
            self.pending[request.producer_id][key] = entry
            self.numbers[request.producer_id, key] = request.sequence

    def late_request(self) -> None:
        """A request of an open transaction arrives again. It must not change what it, or a later one, has changed."""
        requests = [request for sent in self.sent.values() for request in sent]
        if not requests:
            return
        request = self.rng.choice(requests)
        decision = self._ask(request)
        if decision is not None:
            assert isinstance(decision.reply, Verification)
            assert self._ask(request._replace(verification=decision.reply)) is not None
            self._expect_pending(request)

    def end(self) -> None:
        self._end(self.rng.choice(PRODUCERS), commit=self.rng.random() < 0.6)

    def _end(self, producer_id: int, *, commit: bool) -> None:
        self.epochs[producer_id] += 1
        marker = EndOffsets(producer_id, self.epochs[producer_id], commit, 2, 1)
        for _ in range(self.rng.choice((1, 1, 2))):  # perhaps twice
            assert self._ask(marker) is not None
        ended, self.pending[producer_id] = self.pending[producer_id], {}
        self.sent[producer_id].clear()
        self.numbers = {key: number for key, number in self.numbers.items() if key[0] != producer_id}
        for key, entry in ended.items() if commit else ():
            self.book[key] = Entry(entry.offset, self.now_ms, entry.topic_id)
            for offsets in self.pending.values():  # an older offset of another transaction can take effect no more
                if key in offsets and offsets[key].order < entry.order:
                    del offsets[key]

    def late_marker(self) -> None:
        """Send a marker of an earlier transaction, which must change nothing."""
        producer_id = self.rng.choice(PRODUCERS)
        epoch = self.epochs[producer_id] - self.rng.randrange(2)
        self._ask(EndOffsets(producer_id, max(epoch, 0), self.rng.random() < 0.5, 2, 1))

    def delete(self) -> None:
        group_id, partition = self.rng.choice(GROUPS), self._partition()
        group = self.groups.groups.get(group_id)
        if self._ask(DeleteOffsets(group_id, (partition,))) is not None and not (
            group is not None and partition.topic in group.topics
        ):
            self._forget(lambda key: key == (group_id, partition))

    def _forget(self, is_gone: Callable[[tuple[str, TopicPartition]], bool]) -> None:
        for offsets in (self.book, *self.pending.values()):
            for key in [key for key in offsets if is_gone(key)]:
                del offsets[key]

    def delete_group(self) -> None:
        group_id = self.rng.choice(GROUPS)
        if self._ask(DeleteGroup(group_id)) is not None:
            self._forget(lambda key: key[0] == group_id)

    def topic(self) -> None:
        name = self.rng.choice(TOPICS)
        topics = dict(self.topics)
        if topics.pop(name, None) is None or self.rng.random() < 0.5:
            topics[name] = Topic(name, self.rng.randbytes(16), 2)
        self.topics = topics
        self._ask(TopicsChanged(topics, frozenset({name}) if self.rng.random() < 0.5 else None))
        self._forget(lambda key: key[1].topic == name)
        if self.rng.random() < 0.5:
            # perhaps to the new topic, before the offsets of the old topic are deleted
            partition = TopicPartition(name, self.rng.randrange(2))
            if self.rng.random() < 0.5:
                self.commit(partition=partition)
            else:
                self.send(partition=partition, may_crash=False)
        self._tick()

    def member(self) -> None:
        group = self.groups.groups.setdefault(self.rng.choice(GROUPS), Group(empty_since_ms=self.now_ms))
        if group.members and self.rng.random() < 0.6:
            group.members, group.topics, group.empty_since_ms = {}, set(), self.now_ms
        else:
            group.members = {"m": self.rng.choice((1, 2))}
            group.topics = set(self.rng.sample(TOPICS, self.rng.randrange(3)))

    def wait(self) -> None:
        """Time passes in the steps of the runtime's ticks, or the clock jumps, temporarily or permanently."""
        if self.rng.random() < 0.2:
            self.now_ms += self.rng.choice((-10 * DAY_MS, -CHECK_MS, 3 * CHECK_MS, 10 * DAY_MS))
            self._tick()
            return
        self._tick_on(self.rng.choice((1, 3, 150)))

    def visit(self) -> None:
        """A member commits, and leaves after longer than the retention time: only then do the days begin."""
        group = self.groups.groups.setdefault(group_id := self.rng.choice(GROUPS), Group())
        group.members, group.topics = {"m": 1}, set(self.rng.sample(TOPICS, self.rng.choice((1, 2))))
        self.commit(group_id, 1)
        self._tick_on(150)
        group.members, group.topics, group.empty_since_ms = {}, set(), self.now_ms
        self.check()
        self._tick_on(3)

    def long_transaction(self) -> None:
        """A transaction ends longer than the retention time after its offsets were added."""
        producer_id = self.rng.choice(PRODUCERS)
        self.send(producer_id, may_crash=False)
        self._tick_on(150)
        self._end(producer_id, commit=True)
        self._tick_on(3)

    def _tick_on(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now_ms += CHECK_MS
            self._expect_expiry()
            self._tick()

    def _expect_expiry(self) -> None:
        for (group_id, partition), entry in list(self.book.items()):
            group = self.groups.groups.get(group_id)
            is_active = group is not None and bool(group.members)
            if (group_id, partition) in self._unstable() or (is_active and partition.topic in group.topics):
                continue
            since_ms = max(entry.at_ms, 0 if group is None or is_active else group.empty_since_ms)
            if self.now_ms - since_ms >= RETENTION_MS:
                del self.book[group_id, partition]

    def _tick(self) -> None:
        for _ in range(100):
            due_ms = self.state.next_due_ms()
            if due_ms is None or due_ms > self.now_ms:
                return
            self.log += self.state.tick(self.now_ms).records
        raise AssertionError("there is always something due")

    def crash(self) -> None:
        """(The log does not tell the numbers of dropped offsets.)"""
        self.state = self._loaded()
        self.numbers = {each: number for each, number in self.numbers.items() if each[1] in self.pending[each[0]]}

    def _offsets(self, state: ShardStateMachine) -> dict[tuple[str, TopicPartition], int]:
        return {
            (group_id, TopicPartition(one.topic, one.partition)): one.offset
            for group_id in GROUPS
            for one in state.handle(FetchOffsets(group_id), self.now_ms).reply.offsets  # type: ignore[attr-defined]
        }

    def _unstable(self) -> set[tuple[str, TopicPartition]]:
        return {key for offsets in self.pending.values() for key in offsets}

    def check(self) -> None:
        for state in (self.state, self._loaded()):
            stable = {
                (group_id, TopicPartition(one.topic, one.partition)): one.error
                for group_id in GROUPS
                for one in state.handle(FetchOffsets(group_id, require_stable=True), self.now_ms).reply.offsets  # type: ignore[attr-defined]
            }
            unstable = {key for key, error in stable.items() if isinstance(error, UnstableOffsetCommitError)}
            assert unstable == self._unstable(), "pending offsets"
        expected = {key: entry.offset for key, entry in self.book.items()}
        assert self._offsets(self.state) == expected
        assert self._offsets(self._loaded()) == expected, "a successor that replays the log differs"


@settings(max_examples=examples(60))
@given(st.integers(0, 2**32))
def test_a_shards_offsets_are_those_of_a_simple_book(seed: int) -> None:
    History(seed).run(40)


@contextlib.contextmanager
def _broken(where: object, name: str, replacement: Callable[..., object]) -> Iterator[None]:
    with mock.patch.object(where, name, replacement):
        yield


def _expires_by_commit_time_alone(sweep: RetentionSweep, committed: object, _since: object, now_ms: int) -> bool:
    return now_ms - committed.commit_timestamp_ms >= RETENTION_MS  # type: ignore[attr-defined]


def _forgets_tombstones(
    of: OffsetsLogic, gone: Iterable[tuple[str, TopicPartition, bytes | None]]
) -> tuple[ShardRecord, ...]:
    for group_id, partition, _ in tuple(gone):
        of._apply(group_id, partition, None)
    return ()


def _applies_before_it_checks(of: OffsetsLogic, request: CommitOffsets, **how: bool) -> None:
    for offset in request.offsets:
        partition = TopicPartition(offset.topic, offset.partition)
        if partition in of.book.of(request.group_id):
            of.book.apply(request.group_id, partition, None)
    raise HeadraceError("refused")


def _never_hears(sweep: RetentionSweep, now_ms: int) -> None:
    pass


def _ignores_older_offsets(book: OffsetBook, group_id: str, partition: TopicPartition, committed: object) -> None:
    known = book.of(group_id).get(partition)
    if known is None or committed is None or committed.offset >= known.offset:  # type: ignore[attr-defined]
        _apply(book, group_id, partition, committed)  # type: ignore[arg-type]


def _writes_commits_only(*which: object) -> tuple[ShardRecord, ...]:
    return tuple(record for record in _end_records(*which) if record.value is not None)  # type: ignore[arg-type]


def _drops_and_forgets(of: OffsetsLogic, changes: Mapping[PendingKey, PendingOffsets | None]) -> None:
    for key, after in changes.items():
        of.book.pending.apply(key, after)


def _added_without_numbers(
    of: OffsetsLogic, request: CommitTransactionOffsets, accepted: Iterable[tuple[TopicPartition, CommittedOffset]]
) -> dict[PendingKey, PendingOffsets]:
    return _added(of, request._replace(sequence=0), accepted)


_added = OffsetsLogic._added
_apply = OffsetBook.apply
_end_records = logic._end_records

MUTANTS: dict[str, tuple[object, str, Callable[..., object]]] = {
    "expiry asks nobody whether the group has members": (GroupsByHand, "is_empty", lambda self, group_id: True),
    "days are counted from the commit only": (RetentionSweep, "_is_expired", _expires_by_commit_time_alone),
    "tombstones are applied and not written": (OffsetsLogic, "_remove", _forgets_tombstones),
    "a refused commit has changed something": (OffsetsLogic, "_check_committer", _applies_before_it_checks),
    "the new topic's offsets are buried with the old one's": (logic, "_may_belong", lambda committed, topic_id: True),
    "no commit is checked for its member": (OffsetsLogic, "_check_committer", lambda self, request, **how: None),
    "a clock that was set back stops the checks": (RetentionSweep, "check_clock", _never_hears),
    "a consumer may not go back": (OffsetBook, "apply", _ignores_older_offsets),
    "topics that go leave their offsets": (OffsetsLogic, "topics_changed", lambda self, request: None),
    "a marker cancels no verification": (Verifications, "cancel", lambda self, producer_id, epoch: None),
    "a late marker ends the next transaction": (logic, "_check_marker", lambda marker, pending, is_bumping: None),
    "a transaction's offsets keep their time": (CommittedOffset, "_replace", lambda self, **changes: self),
    "pending offsets expire": (PendingBook, "partitions", lambda self, group_id: set()),
    "a marker's tombstones are not written": (logic, "_end_records", _writes_commits_only),
    "an older offset of a transaction replaces a commit": (OffsetsLogic, "_pending", lambda self, *of: {}),
    "dropped offsets come back": (OffsetsLogic, "_drop", _drops_and_forgets),
    "requests have no numbers": (OffsetsLogic, "_added", _added_without_numbers),
    "the last marker decides": (OffsetsLogic, "_overtaken", lambda self, producer_id: {}),
    "removed pending offsets are not written": (logic, "_pending_records", lambda changes: ()),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(name: str) -> None:
    with _broken(*MUTANTS[name]):
        for seed in range(300):
            try:
                History(seed).run(40)
            except (AssertionError, HeadraceError):
                return
    pytest.fail("300 histories, and nobody noticed")
