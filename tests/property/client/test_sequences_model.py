"""An idempotent producer's sequence numbers against a model broker, with random failures, lost responses, leader
changes and expired batches. The sender in this test is a small version of the real one. The sender has a queue, and
batches in flight on one ordered stream. The sender holds failed batches until no batch is in flight, and then retries
them, oldest first.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.producer.sequences import WINDOW, Identity, PartitionSequences, Stamp, Verdict
from tests.worlds.this_process import examples

_WRAP = 2**31


class Broker:
    """A partition's leader, by the rules of KIP-98 and KIP-360 as the broker applies them. The leader remembers the
    last five batches of a producer. An unknown producer may begin at any sequence number, and a new epoch begins at
    0."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.producers: dict[int, tuple[int, deque[tuple[int, int]]]] = {}  # id -> (epoch, (first, last) sequences)

    def append(self, batch: int, count: int, stamp: Stamp) -> str:
        known = self.producers.get(stamp.producer_id)
        last = (stamp.base_sequence + count - 1) % _WRAP
        if known is None:
            known = (stamp.producer_epoch, deque(maxlen=5))
        elif stamp.producer_epoch < known[0]:
            return "INVALID_PRODUCER_EPOCH"
        elif stamp.producer_epoch > known[0]:
            if stamp.base_sequence:
                return "OUT_OF_ORDER_SEQUENCE_NUMBER"
            known = (stamp.producer_epoch, deque(maxlen=5))
        elif (stamp.base_sequence, last) in known[1]:
            return ""
        elif stamp.base_sequence != (known[1][-1][1] + 1) % _WRAP:
            return "OUT_OF_ORDER_SEQUENCE_NUMBER"
        known[1].append((stamp.base_sequence, last))
        self.producers[stamp.producer_id] = known
        self.log.append(batch)
        return ""


class SequencesWorld:
    """One partition; batches are numbers that grow."""

    def __init__(self, first: int) -> None:
        self.now = 0.0
        self.broker = Broker()
        self.book: PartitionSequences[int] = PartitionSequences()
        self.book.renew(Identity(7, 0))
        self.book._next = self.book._acked = first  # a partition that was written to for a long time
        if first:
            self.broker.producers[7] = (0, deque([(first - 1, first - 1)], maxlen=5))
        self.epochs = 0
        self.queue: deque[int] = deque()
        self.counts: dict[int, int] = {}
        self.stream: deque[tuple[int, Stamp]] = deque()  # written, not read by the broker yet
        self.ghosts: list[tuple[int, Stamp]] = []  # from broken streams: the broker may still read them
        self.answers: deque[tuple[int, str]] = deque()
        self.failed: list[int] = []
        self.acknowledged: list[int] = []
        self.refused: set[int] = set()  # the producer has learned that they were not written
        self.unknown: set[int] = set()
        self.lost = False  # by an unclean election, together with acknowledged records

    @property
    def in_flight(self) -> int:
        return len(self.stream) + len(self.answers)

    @property
    def flying(self) -> list[int]:
        return [batch for batch, _ in self.answers] + [batch for batch, _ in self.stream]

    def produce(self, count: int, batches: int) -> None:
        for _ in range(batches):
            batch = len(self.counts)
            self.counts[batch] = count
            self.queue.append(batch)

    def send(self, most: int) -> None:
        for _ in range(most):
            while self.queue and (self.queue[0] in self.unknown or self.queue[0] in self.refused):
                self.queue.popleft()
            if self.failed or not self.queue:
                return
            batch = self.queue[0]
            if not self.book.may_send(batch, self.in_flight, self.now):
                if self.in_flight:
                    return
                self._regroup()
                if batch in self.unknown:
                    continue
                if self.book.needs_identity:
                    self.epochs += 1
                    self.book.renew(Identity(7, self.epochs))
                assert self.book.may_send(batch, 0, self.now), "nothing holds it back, and still it may not go"
            self.queue.popleft()
            stamp = self.book.number(batch, self.counts[batch])
            self.stream.append((batch, stamp))
            assert self.in_flight <= WINDOW

    def broker_reads(self, most: int, verdict: str) -> None:
        """The broker handles the batches on the stream. The first batch gets ``verdict``."""
        for _ in range(min(most, len(self.stream))):
            batch, stamp = self.stream.popleft()
            code, verdict = verdict or self.broker.append(batch, self.counts[batch], stamp), ""
            self.answers.append((batch, code))

    def late_promise(self) -> None:
        """The batches are written, with an unknown outcome for the producer: acks=all timed out, or the leader
        resigned."""
        if self.stream:
            batch, stamp = self.stream.popleft()
            code = self.broker.append(batch, self.counts[batch], stamp)
            self.answers.append((batch, code or "REQUEST_TIMED_OUT"))

    def client_reads(self, most: int) -> None:
        for _ in range(min(most, len(self.answers))):
            batch, code = self.answers.popleft()
            self._answered(batch, code)

    def stream_breaks(self, read: int, haunts: bool) -> None:
        """The stream breaks. The broker had read some batches, and their responses are lost. Batches that the broker
        had not read are lost, or arrive late."""
        for _ in range(min(read, len(self.stream))):
            batch, stamp = self.stream.popleft()
            self.broker.append(batch, self.counts[batch], stamp)
            self.answers.append((batch, ""))
        lost = self.flying
        if haunts:
            self.ghosts += self.stream
        self.stream.clear()
        self.answers.clear()
        for index, batch in enumerate(lost):
            self._failed(batch, "NETWORK_EXCEPTION", retriable=True, unknown=True, left=len(lost) - index - 1)

    def ghost_appears(self) -> None:
        if self.ghosts:
            batch, stamp = self.ghosts.pop(0)
            self.broker.append(batch, self.counts[batch], stamp)

    def time_is_over(self, count: int) -> None:
        """delivery.timeout.ms ends for the oldest batches without an outcome."""
        open_batches = sorted({*self.flying, *self.failed, *self.queue} - self.unknown - self.refused)
        for batch in open_batches[:count]:
            self._give_up(batch, in_flight=batch in self.flying)
        self.failed = [batch for batch in self.failed if batch not in self.unknown and batch not in self.refused]

    def time_passes(self, silence: float) -> None:
        self.now += silence

    def broker_forgets(self) -> None:
        """A day without a batch (producer.id.expiration.ms)."""
        if not self.book._numbers and not self.ghosts:
            self.now += 86_400
            self.broker.producers.clear()

    def unclean_election(self, batches: int) -> None:
        """The new leader lacks the end of the log. The new leader's state of the producer comes from the remaining
        records."""
        known = self.broker.producers.get(7)
        if known is not None and len(known[1]) > batches and len(self.broker.log) > batches and not self.ghosts:
            self.lost = True
            del self.broker.log[-batches:]
            for _ in range(batches):
                known[1].pop()

    # --- the sender in small ----------------------------------------------------------------------------------------

    def _answered(self, batch: int, code: str) -> None:
        if not code:
            self.book.acknowledged(batch, self.now)
            if batch not in self.unknown and batch not in self.refused:
                self.acknowledged.append(batch)
            self._released(self.in_flight)
            return
        unknown = code == "REQUEST_TIMED_OUT"
        retriable = code in ("REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS")
        self._failed(batch, code, retriable=retriable, unknown=unknown, left=self.in_flight)

    def _failed(self, batch: int, code: str, *, retriable: bool, unknown: bool, left: int) -> None:
        verdict = self.book.failed(batch, code, retriable=retriable, unknown=unknown)
        if batch not in self.unknown and batch not in self.refused:
            if verdict in (Verdict.RETRY, Verdict.RENUMBER):
                self.failed.append(batch)
            else:
                (self.unknown if verdict is Verdict.UNKNOWN else self.refused).add(batch)
        self._released(left)

    def _give_up(self, batch: int, *, in_flight: bool) -> None:
        maybe = self.book.give_up(batch, in_flight=in_flight)
        (self.unknown if maybe else self.refused).add(batch)

    def _released(self, left: int) -> None:
        if left:
            return
        self._regroup()
        gone = self.unknown | self.refused
        self.queue.extendleft(sorted((batch for batch in self.failed if batch not in gone), reverse=True))
        self.failed = []

    def _regroup(self) -> None:
        for batch in self.book.regroup():
            self._give_up(batch, in_flight=False)
            self.unknown.add(batch)
            self.refused.discard(batch)

    # --- what must hold ---------------------------------------------------------------------------------------------

    def nothing_twice(self) -> None:
        log = self.broker.log
        assert len(log) == len(set(log)), f"twice in the log: {log}"

    def in_order(self) -> None:
        log = self.broker.log
        assert log == sorted(log), f"out of order: {log}"

    def acknowledged_is_written_and_refused_is_not(self) -> None:
        assert self.lost or set(self.acknowledged) <= set(self.broker.log)
        assert not self.refused & set(self.broker.log), "told as not written, and it is in the log"

    def all_is_well_again(self) -> None:
        """Without further faults, every batch gets its outcome."""
        for _ in range(3 * len(self.counts) + 10):
            self.send(8)
            self.broker_reads(8, "")
            self.client_reads(8)
        assert not self.queue
        assert not self.in_flight
        assert not self.failed
        outcomes: Any = {*self.acknowledged} | self.refused | self.unknown
        assert outcomes == set(self.counts)

    def check(self) -> None:
        self.nothing_twice()
        self.in_order()
        self.acknowledged_is_written_and_refused_is_not()


small = st.integers(1, 5)
ACTIONS = st.one_of(
    st.tuples(st.just("produce"), small, st.integers(1, 7)),
    *[st.tuples(st.just("send"), small)] * 3,
    *[st.tuples(st.just("broker_reads"), small, st.just(""))] * 3,
    st.tuples(st.just("broker_reads"), small, st.sampled_from(["NOT_ENOUGH_REPLICAS", "INVALID_RECORD"])),
    *[st.tuples(st.just("client_reads"), small)] * 3,
    st.tuples(st.just("late_promise")),
    st.tuples(st.just("stream_breaks"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("ghost_appears")),
    st.tuples(st.just("time_is_over"), st.integers(1, 3)),
    st.tuples(st.just("time_passes"), st.sampled_from([1.0, 10_000.0])),
    st.tuples(st.just("broker_forgets")),
    st.tuples(st.just("unclean_election"), st.integers(1, 3)),
)


@settings(max_examples=examples(1_500), deadline=None)
@given(first=st.sampled_from([0, _WRAP - 7]), story=st.lists(ACTIONS, max_size=60))
def test_the_log_has_each_record_once_and_in_order_whatever_fails(first: int, story: list[Any]) -> None:
    world = SequencesWorld(first)
    for name, *arguments in story:
        getattr(world, name)(*arguments)
        world.check()
    world.all_is_well_again()
    world.check()


@pytest.mark.parametrize("seed", range(40))
def test_long_stories_by_chance(seed: int) -> None:
    """The test of long histories does not shrink failures, but runs longer histories: 25 histories of 200 actions for
    each seed."""
    rng = random.Random(seed)
    for _ in range(25):
        world = SequencesWorld(rng.choice([0, _WRAP - 7]))
        for _ in range(200):
            getattr(world, (action := rng.choice(_CHANCE))[0])(*(choose(rng) for choose in action[1]))
            world.check()
        world.all_is_well_again()
        world.check()


def _number(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda rng: rng.randint(low, high)


def _one_of(*choices: Any) -> Callable[[random.Random], Any]:
    return lambda rng: rng.choice(choices)


_CHANCE: list[tuple[str, tuple[Callable[[random.Random], Any], ...]]] = [
    *[("produce", (_number(1, 4), _number(1, 7)))] * 3,
    *[("send", (_number(1, 8),))] * 6,
    *[("broker_reads", (_number(1, 5), _one_of("", "", "NOT_ENOUGH_REPLICAS", "INVALID_RECORD")))] * 5,
    *[("client_reads", (_number(1, 5),))] * 5,
    ("late_promise", ()),
    *[("stream_breaks", (_number(0, 5), _one_of(True, False)))] * 2,
    ("ghost_appears", ()),
    ("time_is_over", (_number(1, 3),)),
    ("time_passes", (_one_of(1.0, 10_000.0),)),
    ("broker_forgets", ()),
    ("unclean_election", (_number(1, 3),)),
]
