"""The contexts of recent batches: how a leader recognizes a traced batch in a push, and what it forgets."""

from __future__ import annotations

from headrace_core.records import encode_batch, read_header
from headrace_core.tracing.recent import BATCHES_MAX, KEPT_S, RecentTraces, batch_key
from headrace_core.types import TopicPartition

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def test_equal_batches_of_two_partitions_have_their_own_contexts() -> None:
    recent, key = RecentTraces(), (1, 0, 0)
    recent.put(FIRST, key, "first", 0.0, 2)
    recent.put(SECOND, key, "second", 0.0, 2)
    assert (recent.pushed(FIRST, key), recent.pushed(SECOND, key)) == ("first", "second")
    assert recent.pushed(FIRST, (1, 0, 1)) is None


def test_pushes_are_searched_until_each_follower_has_the_traced_batches() -> None:
    recent = RecentTraces()
    assert not recent.has(FIRST, 0.0)
    recent.put(FIRST, (1, 0, 0), "one", 0.0, 2)
    recent.put(FIRST, (1, 0, 1), "two", 0.0, 2)
    for sequence in (0, 1, 0):
        recent.pushed(FIRST, (1, 0, sequence))
        recent.pushed(FIRST, (9, 9, 9))
        assert recent.has(FIRST, 0.0)
    recent.pushed(FIRST, (1, 0, 1))
    assert not recent.has(FIRST, 0.0)
    recent.pushed(FIRST, (1, 0, 1))  # a follower that has joined again
    recent.put(FIRST, (1, 0, 2), "three", 0.0, 1)
    assert recent.has(FIRST, 0.0), "an early push of another batch does not count for a later one"


def test_a_batch_without_followers_is_not_remembered() -> None:
    recent = RecentTraces()
    recent.put(FIRST, (1, 0, 0), "first", 0.0, 0)
    assert (len(recent), recent.has(FIRST, 0.0)) == (0, False)


def test_pushes_are_searched_only_for_some_seconds_after_a_traced_batch() -> None:
    recent = RecentTraces()
    recent.put(FIRST, (1, 0, 0), "first", 100.0, 2)
    assert recent.has(FIRST, 100.0 + KEPT_S - 0.1)
    assert not recent.has(FIRST, 100.0 + KEPT_S)
    assert not recent.has(SECOND, 100.0)


def test_the_number_of_contexts_is_bounded() -> None:
    recent = RecentTraces()
    for number in range(3 * BATCHES_MAX):
        recent.put(TopicPartition("t", number), (1, 0, number), str(number), number * 1.0, 2)
    assert len(recent) == BATCHES_MAX
    assert recent.pushed(TopicPartition("t", 0), (1, 0, 0)) is None
    last = 3 * BATCHES_MAX - 1
    assert recent.pushed(TopicPartition("t", last), (1, 0, last)) == str(last)
    assert len(recent._last_s) <= BATCHES_MAX + 1


def test_a_batch_is_known_by_its_producers_number_or_else_by_its_crc() -> None:
    plain = read_header(encode_batch([(1, b"k", b"v", [])]))
    assert batch_key(plain) == (-1, -1, plain.crc)
    numbered = plain._replace(producer_id=5, producer_epoch=2, base_sequence=9)
    assert batch_key(numbered) == batch_key(numbered._replace(crc=0, base_offset=77)) == (5, 2, 9)
