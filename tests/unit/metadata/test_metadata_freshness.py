"""The upper bound of a copy's age, under every order of barriers, records and pauses."""

from __future__ import annotations

import random

import pytest

from headrace_core.metadata.freshness import Freshness, MetadataLag


def test_a_copy_is_not_confirmed_at_first() -> None:
    assert Freshness(10).lag(1_000) == MetadataLag(0, None)


def test_a_copy_is_as_old_as_the_question_whose_answer_it_has_reached() -> None:
    copy = Freshness(10)
    copy.confirmed(12, began_ms=100)
    # the records below the barrier are not applied yet, so it gives no age for this copy
    assert copy.lag(150) == (2, None)
    copy.applied(11)
    assert copy.lag(160) == (1, None)
    copy.applied(12)
    assert copy.lag(170) == (0, 70)
    copy.confirmed(12, began_ms=300)
    assert copy.lag(350) == (0, 50)
    copy.confirmed(13, began_ms=400)
    assert copy.lag(450) == (1, 150)
    copy.committed(20)
    assert copy.lag(450).records == 8


def test_an_answer_that_was_long_on_its_way_makes_nothing_younger() -> None:
    copy = Freshness()
    copy.confirmed(0, began_ms=100)
    copy.confirmed(0, began_ms=50)
    assert copy.lag(10_000).ms == 9_900


def test_an_older_confirmation_that_comes_later_takes_nothing_from_one_that_waits_for_its_records() -> None:
    """A current barrier, and then the response to a request that accepted a barrier of half a second ago."""
    copy = Freshness(10)
    copy.confirmed(12, began_ms=300)
    copy.confirmed(12, began_ms=100)
    copy.applied(12)
    assert copy.lag(350) == (0, 50)


@pytest.mark.parametrize("seed", range(200))
def test_no_copy_says_that_it_is_younger_than_it_is(seed: int) -> None:
    """A log grows, answers to barriers arrive late and out of order, and a copy applies records in large steps or not
    at all. The copy must have all records that were committed before now - lag."""
    rng = random.Random(seed)
    copy, now_ms, applied, end = Freshness(), 0.0, 0, 0
    committed_at: list[float] = []  # by offset
    under_way: list[tuple[float, int]] = []  # (asked, what the leader answered)
    for _ in range(400):
        now_ms += rng.choice((0.0, 1.0, 5.0, 400.0))
        match rng.randrange(5):
            case 0 | 1:
                end += 1
                committed_at.append(now_ms)
            case 2:
                under_way.append((now_ms, end))
            case 3 if under_way:
                asked, offset = under_way.pop(rng.randrange(len(under_way)))
                copy.confirmed(offset, asked)
            case _:
                applied = rng.randint(applied, end)
                copy.applied(applied)
        lag = copy.lag(now_ms)
        assert lag.records <= end - applied
        if lag.ms is not None:
            missing = [at for offset, at in enumerate(committed_at) if offset >= applied]
            assert not missing or missing[0] >= now_ms - lag.ms, f"seed {seed}: {missing[0]} at {now_ms}, {lag}"


def test_a_copy_far_behind_keeps_a_bounded_number_of_confirmations_and_stays_true() -> None:
    copy = Freshness()
    for number in range(1_000):
        copy.confirmed(number + 1, began_ms=number * 10.0)
    copy.applied(1)
    assert copy.lag(10_000).ms == 10_000
    copy.applied(500)
    ms = copy.lag(10_000).ms
    assert ms is not None
    assert ms >= 10_000 - 4_990
    copy.applied(1_000)
    assert copy.lag(10_000).ms == 10
