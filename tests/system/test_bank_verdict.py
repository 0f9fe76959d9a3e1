"""The checks of the bank find each anomaly in a history that contains it, and none in correct histories."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.bank_history import BankHistory, Entry, Read, Transfer, decode

BOUND_S = 15.0
FIRST, SECOND = Transfer("a", 0, 0), Transfer("a", 0, 1)


def entries(transfer: Transfer, *, is_doomed: bool = False, amounts: tuple[int, ...] = (-5, 5)) -> list[Entry]:
    """Return one entry for each of the partitions 0, 1, ..."""
    return [Entry(transfer, index, len(amounts), index, amount, is_doomed) for index, amount in enumerate(amounts)]


def reads(*some: Entry, offset: int = 0) -> list[Read]:
    return [Read(entry.partition, offset, entry) for entry in some]


@pytest.fixture
def bank() -> BankHistory:
    """A history with one transfer, which was committed at 2 s."""
    made = BankHistory(BOUND_S)
    made.ready("a", 0, 0.0)
    made.begins(FIRST, entries(FIRST), 1.0)
    made.commits(FIRST, 1.5)
    made.ended(FIRST, 2.0, is_committed=True)
    return made


def kinds(bank: BankHistory) -> set[str]:
    return {each.partition(":")[0] for each in bank.ends()}


def test_an_entry_is_its_value() -> None:
    (entry, _) = entries(FIRST)
    assert decode(entry.encode(80)) == entry
    assert len(entry.encode(80)) == 80
    for other in (None, b"", b"a:b:c|"):
        with pytest.raises(ValueError, match=r"unpack|invalid literal"):
            decode(other)


def test_a_healthy_bank_has_no_anomaly(bank: BankHistory) -> None:
    one, other = entries(FIRST)
    bank.reads(reads(one), 2.1)
    assert bank.passes(reads(one), 2.0, 2.2) == 1, "its other entry is on its way"
    bank.reads(reads(other), 6.1)
    bank.begins(SECOND, entries(SECOND), 7.0)
    bank.ended(SECOND, 8.0, is_committed=False)
    assert bank.passes(reads(one, other), 30.0, 31.0, is_last=True) == 0
    assert kinds(bank) == set()
    assert bank.longest_wait == (pytest.approx(4.1), 1)
    assert bank.balances() == {0: -5, 1: 5}


def test_a_transfer_without_an_outcome_is_whole_or_absent(bank: BankHistory) -> None:
    bank.begins(SECOND, entries(SECOND), 3.0)
    bank.commits(SECOND, 3.5)
    bank.passes(reads(*entries(FIRST)), 100.0, 101.0)
    both = reads(*entries(FIRST)) + reads(*entries(SECOND), offset=3)
    bank.passes(both, 102.0, 103.0, is_last=True)
    assert kinds(bank) == set()


def _passes(began_s: float, *some: Read, is_last: bool = False) -> Callable[[BankHistory], object]:
    return lambda bank: bank.passes(list(some), began_s, began_s + 1, is_last=is_last)


_ONE, _OTHER = reads(*entries(FIRST))
_NEXT = entries(SECOND)


@pytest.mark.parametrize(
    ("anomaly", "happens"),
    [
        ("lost", _passes(3.0, is_last=True)),
        ("torn", _passes(3.0, _ONE, is_last=True)),
        ("torn", _passes(2.1 + BOUND_S, _ONE)),
        ("late", _passes(2.1 + BOUND_S)),
        ("twice", _passes(3.0, _ONE, _OTHER, _ONE._replace(offset=1))),
        ("misplaced", _passes(3.0, _ONE, _OTHER._replace(partition=2))),
        ("altered", _passes(3.0, _ONE, _OTHER._replace(entry=_OTHER.entry._replace(amount=6)))),
        ("unknown", _passes(3.0, _ONE, _OTHER, *reads(*_NEXT, offset=1))),
    ],
)
def test_each_anomaly_of_readers_is_found(
    anomaly: str, happens: Callable[[BankHistory], object], bank: BankHistory
) -> None:
    happens(bank)
    assert anomaly in kinds(bank)


def test_an_aborted_read_is_found(bank: BankHistory) -> None:
    bank.begins(SECOND, entries(SECOND), 3.0)
    bank.reads(reads(*_NEXT, offset=1), 3.5)
    assert kinds(bank) == set(), "it may be committed"
    bank.ended(SECOND, 4.0, is_committed=False)
    assert kinds(bank) == {"aborted"}


def test_a_read_of_a_transfer_that_its_producer_aborts_is_found_at_once(bank: BankHistory) -> None:
    doomed = entries(SECOND, is_doomed=True)
    bank.begins(SECOND, doomed, 3.0)
    bank.reads(reads(*doomed, offset=1), 3.5)
    assert [each.partition(":")[0] for each in bank.found] == ["aborted", "aborted"]


def test_a_transfer_in_the_wrong_order_is_found(bank: BankHistory) -> None:
    bank.begins(SECOND, _NEXT, 3.0)
    bank.passes([*reads(*_NEXT), *reads(*entries(FIRST), offset=1)], 4.0, 5.0)
    assert kinds(bank) == {"reordered"}


def test_a_log_that_changes_between_two_passes_is_found(bank: BankHistory) -> None:
    bank.begins(SECOND, _NEXT, 3.0)
    bank.passes([_ONE, _OTHER], 4.0, 5.0)
    bank.passes([*reads(*_NEXT), *reads(*entries(FIRST), offset=1)], 6.0, 7.0)
    assert "altered" in kinds(bank)


def test_a_commit_of_a_zombie_is_found(bank: BankHistory) -> None:
    bank.reads([_ONE, _OTHER], 3.0)
    bank.ready("a", 1, 1.6)
    assert kinds(bank) == set(), "it had asked before"
    bank.ready("a", 2, 1.4)
    assert kinds(bank) == {"zombie"}
