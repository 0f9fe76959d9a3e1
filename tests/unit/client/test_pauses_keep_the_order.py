"""A Reading returns the records of each partition in offset order, however the caller pauses and resumes partitions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import OffsetAndMetadata, TopicPartition
from headrace.consumer.core import ConsumerCore
from headrace.consumer.inbox import Slice
from headrace.consumer.reading import Reading
from headrace.settings import CONSUMER, resolve
from headrace_core.records import encode_batch

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
BATCH = 10  # records of one slice


def reading(**settings: Any) -> Reading:
    found = ConsumerCore(resolve(CONSUMER, settings, {})).reading
    found.inbox._on_room = lambda: None  # there is no fetcher that waits for room
    return found


def put(r: Reading, tp: TopicPartition, base: int) -> None:
    """Queue one slice of ``BATCH`` records, as the fetcher does."""
    assigned = r.partitions[tp]
    data = encode_batch([(1, None, b"v", None)] * BATCH, base_offset=base)
    r.inbox.put(Slice(assigned, base, base + BATCH, [data], len(data)))


def with_slices(*bases: int) -> Reading:
    r = reading()
    r.replace_assignment([T0], from_group=False)
    r.partitions[T0].position = 0
    for base in bases:
        put(r, T0, base)
    return r


def offsets(r: Reading, most: int) -> list[int]:
    return [record.offset for record in r.drain(most)]


def test_second_pause_without_a_poll_keeps_the_current_slice_in_front() -> None:
    r = with_slices(0, 10, 20)
    got = offsets(r, 3)
    r.pause([T0])
    assert offsets(r, 5) == [], "the paused partition's queued slices are held now"
    r.resume([T0])
    got += offsets(r, 3)
    r.pause([T0])
    r.resume([T0])
    got += offsets(r, 3)
    assert got == list(range(9))
    assert r.positions()[T0].offset == 9, "a commit would lose the records that were passed over"
    assert got + offsets(r, 100) == list(range(30))


def test_iteration_that_pauses_and_resumes_continues_with_the_next_record() -> None:
    r = with_slices(0, 10, 20)
    r.pause([T0])
    r.drain(1)
    r.resume([T0])
    got: list[int] = []
    while (iterator := r.next_iterator()) is not None:
        for record in r.iterate_ready(iterator):
            got.append(record.offset)
            if len(got) % 4 == 0:
                r.pause([T0])
                r.resume([T0])
    assert got == list(range(30))


@pytest.mark.parametrize("is_held", [False, True])
def test_a_partition_that_the_group_took_returns_no_record_that_was_fetched(is_held: bool) -> None:
    r = with_slices(0, 10, 20)
    assert offsets(r, 3) == [0, 1, 2]
    if is_held:
        r.pause([T0])
    r.remove_assigned([T0])
    assert offsets(r, 100) == []
    r.add_assigned({T0: OffsetAndMetadata(3)})  # it is back: its position is the committed one
    assert r.known_position(T0) == 3
    assert offsets(r, 100) == []
    put(r, T0, 10)
    assert offsets(r, 100) == list(range(10, 20))


def test_seek_drops_what_pauses_have_held() -> None:
    r = with_slices(0, 10, 20)
    r.drain(3)
    r.pause([T0])
    r.drain(1)
    r.resume([T0])
    r.drain(1)
    r.pause([T0])
    r.seek(T0, 7)
    r.resume([T0])
    assert offsets(r, 100) == []
    assert r.known_position(T0) == 7


class Story:
    """A caller that acts at random, and a log without end that the fetcher of ``r`` reads from."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        slice_size = len(encode_batch([(1, None, b"v", None)] * BATCH))
        # In some stories, the slices of paused partitions exceed the limit, and are fetched again.
        self.r = reading(**{"fetch.queue.max.bytes": self.chance.choice([6, 1_000]) * slice_size})
        self.expected: dict[TopicPartition, int] = {}
        self.fetched: dict[TopicPartition, tuple[Any, int]] = {}  # the Partition, and the end of its records
        self.log: list[str] = []
        self.assign()

    def assign(self) -> None:
        """Drop a partition at random, and assign all partitions."""
        kept = [tp for tp in self.r.partitions if self.chance.random() < 0.7]
        self.r.replace_assignment(kept, from_group=False)
        self.r.replace_assignment([T0, T1, T2], from_group=False)
        for tp in {T0, T1, T2} - set(kept):
            self.expected[tp] = self.r.partitions[tp].position = self.chance.randrange(100)

    def fetch(self) -> None:
        for tp in (T0, T1, T2):
            assigned = self.r.partitions[tp]
            fetched, end = self.fetched.get(tp, (None, 0))
            if fetched is not assigned:
                end = self.r.known_position(tp) or 0
            if not assigned.paused and self.chance.random() < 0.5:
                base = end - end % BATCH
                data = encode_batch([(1, None, b"v", None)] * BATCH, base_offset=base)
                self.r.inbox.put(Slice(assigned, end, base + BATCH, [data], len(data)))
                end = base + BATCH
            self.fetched[tp] = assigned, end

    def some(self) -> list[TopicPartition]:
        return self.chance.sample([T0, T1, T2], self.chance.randint(1, 3))

    def deliver(self, records: Iterator[tuple[TopicPartition, int]]) -> None:
        for tp, offset in records:
            assert offset == self.expected[tp], f"{tp}: offset {offset} came, expected {self.expected[tp]}"
            self.expected[tp] = offset + 1

    def iterate(self) -> None:
        """Iterate over records, and pause and resume partitions within the loop."""
        iterator = self.r.next_iterator()
        if iterator is None:
            return
        left = self.chance.randint(1, 15)
        for record in self.r.iterate_ready(iterator):
            self.deliver(iter([(TopicPartition(record.topic, record.partition), record.offset)]))
            if self.chance.random() < 0.1:
                self.r.pause(self.some())
            if self.chance.random() < 0.1:
                self.r.resume(self.some())
            left -= 1
            if not left:
                break

    def act(self) -> None:
        chance, r = self.chance, self.r
        action = chance.choices(
            ["pause", "resume", "fetch", "drain", "iterate", "arrow", "give back", "seek", "assign"],
            [6, 6, 6, 6, 2, 2, 1, 1, 0.5],
        )[0]
        self.log.append(action)
        if action == "pause":
            r.pause(self.some())
        elif action == "resume":
            r.resume(self.some())
        elif action == "fetch":
            self.fetch()
        elif action == "drain":
            taken = r.drain(chance.randint(1, 25))
            self.deliver((TopicPartition(record.topic, record.partition), record.offset) for record in taken)
        elif action == "iterate":
            self.iterate()
        elif action in ("arrow", "give back"):
            batches = r.take_arrow(chance.choice([1, 300, 2_000]), ["partition", "offset"], False)
            if action == "give back":
                r.give_back()
                return
            rows = (row for batch in batches for row in batch.to_pylist())
            self.deliver((TopicPartition("t", row["partition"]), row["offset"]) for row in rows)
        elif action == "seek":
            tp, offset = chance.choice([T0, T1, T2]), chance.randrange(100)
            r.seek(tp, offset)
            self.expected[tp] = offset
        else:
            self.assign()

    def check(self) -> None:
        """A commit of the positions must cover the returned records, and no others."""
        assert {tp: self.r.known_position(tp) for tp in self.expected} == self.expected


@pytest.mark.parametrize("first_seed", range(0, 200, 20))
def test_records_of_each_partition_stay_in_order_in_any_story(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        story = Story(seed)
        try:
            for _ in range(120):
                story.act()
                story.check()
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}, after {' / '.join(story.log[-12:])}: {failure}") from failure
