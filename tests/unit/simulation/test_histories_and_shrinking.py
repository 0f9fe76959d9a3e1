"""The history checkers find planted violations, one of each kind; the shrinker keeps what a failure needs."""

from __future__ import annotations

import random

import pytest

from headrace_core.testing.histories import HistoryViolation, ReadHistory, WriteHistory
from headrace_core.testing.shrinking import shortest, shrink


def test_a_history_without_a_fault_passes_also_with_unknown_outcomes() -> None:
    history = WriteHistory()
    for mark in "abcd":
        history.begin(mark)
    history.committed("a", 0)
    history.acknowledge("a", 1)
    history.committed("b", 1)  # without a response to the client
    history.refuse("c")
    history.committed("somebody else's", 2)
    history.finish()
    assert (history.acknowledged, history.refused) == (1, 1)


def test_an_acknowledged_write_that_is_not_there_is_found() -> None:
    history = WriteHistory()
    history.begin("a")
    with pytest.raises(HistoryViolation, match="not committed"):
        history.acknowledge("a", 5)
    with pytest.raises(HistoryViolation, match="lost"):
        history.finish()


def test_an_acknowledgement_that_names_the_wrong_place_is_found() -> None:
    history = WriteHistory()
    history.begin("a")
    history.committed("a", 7)
    with pytest.raises(HistoryViolation, match="below 7"):
        history.acknowledge("a", 7)


def test_a_write_that_is_there_twice_is_found() -> None:
    history = WriteHistory()
    history.begin("a")
    history.committed("a", 0)
    with pytest.raises(HistoryViolation, match="twice"):
        history.committed("a", 3)


def test_a_refused_write_that_is_there_is_found_whichever_comes_first() -> None:
    history = WriteHistory()
    history.begin("a")
    history.refuse("a")
    with pytest.raises(HistoryViolation, match="refused, and then committed"):
        history.committed("a", 0)
    history.begin("b")
    history.committed("b", 1)
    with pytest.raises(HistoryViolation, match="refused, but is committed"):
        history.refuse("b")


def test_a_write_that_is_answered_twice_is_found() -> None:
    history = WriteHistory()
    history.begin("a")
    history.refuse("a")
    with pytest.raises(HistoryViolation, match="twice"):
        history.refuse("a")


def test_a_mark_is_used_once() -> None:
    history = WriteHistory()
    history.begin("a")
    with pytest.raises(ValueError, match="twice"):
        history.begin("a")


def test_a_read_that_does_not_see_what_was_acknowledged_before_it_is_found() -> None:
    reads = ReadHistory()
    before = reads.begin()
    reads.acknowledged(10)
    reads.served(before, 3, "1")  # the request was in flight, so both results are right
    after = reads.begin()
    with pytest.raises(HistoryViolation, match="served a read from offset 9"):
        reads.served(after, 9, "1")


def test_a_read_that_goes_back_behind_another_read_is_found() -> None:
    reads = ReadHistory()
    reads.served(reads.begin(), 10, "1")
    with pytest.raises(HistoryViolation, match="from offset 4"):
        reads.served(reads.begin(), 4, "2")


def test_shrinking_leaves_what_the_failure_needs(rng: random.Random) -> None:
    needed = set(rng.sample(range(40), 3))
    found = shrink(range(40), lambda items: needed <= set(items))
    assert set(found) == needed
    assert list(found) == sorted(found)


def test_shrinking_of_what_fails_anyway_leaves_nothing_and_tries_are_bounded() -> None:
    assert shrink(range(10), lambda items: True) == ()
    tried = []
    shrink(range(100), lambda items: bool(tried.append(items)), tries_max=17)
    assert len(tried) == 17


def test_the_shortest_length_that_fails_is_found() -> None:
    assert 30.0 <= shortest(lambda length: length >= 30.0, 100.0) < 31.0
    assert shortest(lambda length: False, 100.0) == 100.0
