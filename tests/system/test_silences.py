"""How long a partition had no acknowledgement: the figures that the fault programme's bounds are compared with."""

from __future__ import annotations

from tests.system.workload import Silences


def test_it_is_the_longest_of_any_one_partition() -> None:
    silences = Silences(2)
    for now in range(10):
        silences.acknowledged(0, float(now))  # another partition's acknowledgements hide nothing
        if now in (1, 8):
            silences.acknowledged(1, float(now))
    assert silences.longest_s(9.0) == 7.0


def test_one_that_lasts_still_counts() -> None:
    silences = Silences(2)
    silences.acknowledged(0, 1.0)
    assert silences.longest_s(4.0) == 3.0
    silences.end(5.0)
    assert silences.longest_s(100.0) == 4.0


def test_nothing_counts_before_the_first_record_or_after_the_last_one() -> None:
    silences = Silences(1)
    assert silences.longest_s(100.0) == 0.0
    silences.acknowledged(0, 100.0)
    silences.end(101.0)
    silences.acknowledged(0, 200.0)
    silences.end(300.0)
    assert silences.longest_s(300.0) == 1.0
