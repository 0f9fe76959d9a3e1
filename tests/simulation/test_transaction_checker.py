"""The checker of transactions finds each anomaly in a history that contains it, and no anomaly in a correct history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import txn_checker as checker
from tests.simulation.txn_checker import History, Reader, Result, Transacted, find


def transaction(name: str, began: float, result: Result | None = Result.COMMITTED, **writes: int) -> Transacted:
    """Return a transaction that begins at ``began``, requests its end at ``began + 5``, and learns its result at
    ``began + 10``. ``writes``: value -> partition."""
    asked = None if result is Result.ABORTED else began + 5
    ended = None if result is None else began + 10
    return Transacted(name, began, asked, ended, result, dict(writes), set(writes))


def good() -> History:
    """A history of two producers. T1 and T3 commit, T2 aborts, and T4's commit gets no answer. T3 has read from T1."""
    t1 = transaction("T1", 0, a1=0, a2=0, a3=1)
    t2 = transaction("T2", 20, Result.ABORTED, b1=0, b2=1)
    t3 = transaction("T3", 40, c1=0, c2=1)
    t4 = transaction("T4", 44, None, d1=1, d2=0)
    t3.read.append("a1")
    t1.offsets["g", 0], t2.offsets["g", 0], t3.offsets["g", 0] = 5, 9, 7
    final = {0: [(0, "a1"), (1, "a2"), (5, "c1"), (7, "d2")], 1: [(0, "a3"), (4, "c2"), (6, "d1")]}
    reader = Reader("r", 0, [(12, 0, "a1"), (12, 1, "a2"), (60, 5, "c1")], 6)
    return History([t1, t2, t3, t4], [reader], final, final_offsets={("g", 0): 7})


def test_a_good_history_has_no_anomaly() -> None:
    assert find(good()) == []


def aborted_read_at_the_end(history: History) -> None:
    history.final[1].insert(1, (2, "b2"))


def aborted_read_by_a_reader(history: History) -> None:
    history.final[0].insert(2, (3, "b1"))
    history.readers[0].seen.insert(2, (30, 3, "b1"))


def aborted_read_in_a_transaction(history: History) -> None:
    history.transactions[2].read.append("b1")


def read_before_the_commit(history: History) -> None:
    history.readers[0].seen[0] = 3, 0, "a1"


def read_of_a_part(history: History) -> None:
    del history.readers[0].seen[1]


def committed_write_gone(history: History) -> None:
    history.final[0].remove((5, "c1"))
    history.final[1].remove((4, "c2"))
    del history.readers[0].seen[2]


def read_value_gone(history: History) -> None:
    history.transactions[2].acknowledged.discard("c1")
    history.final[0].remove((5, "c1"))


def reader_skips_a_transaction(history: History) -> None:
    del history.readers[0].seen[2]


def plain_record_gone(history: History) -> None:
    history.plain.add("p1")


def committed_half(history: History) -> None:
    history.final[1].remove((4, "c2"))


def unknown_half(history: History) -> None:
    history.final[1].remove((6, "d1"))


def doubled_in_the_log(history: History) -> None:
    history.final[1].append((9, "c2"))


def read_twice(history: History) -> None:
    history.readers[0].seen.append((70, 5, "c1"))


def later_before_earlier(history: History) -> None:
    """T3 began after the commit of T1."""
    history.final[1] = [(0, "c2"), (4, "a3"), (6, "d1")]


def read_from_each_other(history: History) -> None:
    history.transactions[0].read.append("c1")


def read_in_a_circle_of_three(history: History) -> None:
    history.transactions[0].read.append("d1")
    history.transactions[3].read.append("c1")


def offsets_ahead(history: History) -> None:
    """The group has the offsets of the aborted T2."""
    assert history.final_offsets is not None
    history.final_offsets["g", 0] = 9


def offsets_behind(history: History) -> None:
    assert history.final_offsets is not None
    history.final_offsets["g", 0] = 5


def offsets_gone(history: History) -> None:
    assert history.final_offsets is not None
    del history.final_offsets["g", 0]


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        (checker.ABORTED_READ, aborted_read_at_the_end),
        (checker.ABORTED_READ, aborted_read_by_a_reader),
        (checker.ABORTED_READ, aborted_read_in_a_transaction),
        (checker.INTERMEDIATE_READ, read_before_the_commit),
        (checker.INTERMEDIATE_READ, read_of_a_part),
        (checker.LOST_WRITE, committed_write_gone),
        (checker.LOST_WRITE, read_value_gone),
        (checker.LOST_WRITE, reader_skips_a_transaction),
        (checker.LOST_WRITE, plain_record_gone),
        (checker.TORN, committed_half),
        (checker.TORN, unknown_half),
        (checker.DUPLICATE, doubled_in_the_log),
        (checker.DUPLICATE, read_twice),
        (checker.DIRTY_WRITE, later_before_earlier),
        (checker.CIRCULAR_READS, read_from_each_other),
        (checker.CIRCULAR_READS, read_in_a_circle_of_three),
        (checker.APART, offsets_ahead),
        (checker.APART, offsets_behind),
        (checker.APART, offsets_gone),
    ],
)
def test_a_planted_anomaly_is_found_by_its_name(name: str, plant: Callable[[History], None]) -> None:
    history = good()
    plant(history)
    assert name in {each.name for each in find(history)}


def test_an_unknown_commit_may_be_visible_or_not_and_takes_its_offsets_along() -> None:
    history = good()
    history.transactions[3].offsets["g", 0] = 8
    assert history.final_offsets is not None
    history.final_offsets["g", 0] = 8
    assert find(history) == []
    for partition, gone in ((0, (7, "d2")), (1, (6, "d1"))):
        history.final[partition].remove(gone)
    assert {each.name for each in find(history)} == {checker.APART}
    history.final_offsets["g", 0] = 7
    assert find(history) == []


def test_a_write_that_was_not_acknowledged_may_be_missing() -> None:
    history = good()
    history.transactions[0].sent["a4"] = 1
    assert find(history) == []


def test_writes_of_transactions_that_run_together_may_stand_in_any_order() -> None:
    history = good()
    history.final[0][2:] = [(5, "d2"), (7, "c1")]
    history.readers[0].seen[2:] = [(60, 5, "d2")]
    assert find(history) == []
