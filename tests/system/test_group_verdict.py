"""The checks of the groups in the fault tests find each planted anomaly, and none in healthy runs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.system.groups_load import Change, Commit, Read, anomalies


@dataclass
class _Reader:
    read: list[Read] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)


@dataclass
class _Group:
    every: list[_Reader]
    group: str = "g"


def reader(assigned_at: float, offsets: range | list[int], *, revoked_at: float | None = None) -> _Reader:
    """Make a history of partition 0, in which one record is read each second."""
    changes = [Change("assigned", frozenset({0}), assigned_at)]
    if revoked_at is not None:
        changes.append(Change("revoked", frozenset({0}), revoked_at))
    return _Reader([Read(0, offset, assigned_at + 1 + at) for at, offset in enumerate(offsets)], changes)


def found(*readers: _Reader) -> list[str]:
    return [each.split(": ")[1] for each in anomalies(_Group(list(readers)))]  # type: ignore[arg-type]


def test_a_partition_that_is_handed_over_in_good_order_is_no_anomaly() -> None:
    first, second = reader(0, range(5), revoked_at=6), reader(7, range(5, 9))
    first.commits.append(Commit(0, 5, asked=5.5, at=6))
    assert found(first, second) == []


def test_what_was_not_committed_may_be_read_again() -> None:
    first, second = reader(0, range(5)), reader(7, range(3, 9))
    first.commits.append(Commit(0, 3, asked=3.5, at=4))
    assert found(first, second) == []


@pytest.mark.parametrize(
    ("second", "anomaly"),
    [
        (reader(7, range(2, 9)), "repeated"),
        (reader(7, [3, 4, 6, 7]), "jumped"),
        (reader(7, [3, 4, 4, 5]), "jumped"),
        (reader(3, range(3, 9)), "shared"),
    ],
)
def test_each_anomaly_is_found(second: _Reader, anomaly: str) -> None:
    first = reader(0, range(5))
    first.commits.append(Commit(0, 3, asked=1.5, at=2))
    assert found(first, second) == [anomaly]


def test_a_member_that_comes_back_is_judged_by_its_second_turn() -> None:
    member = reader(0, range(5), revoked_at=6)
    member.changes.append(Change("assigned", frozenset({0}), 10))
    member.read += [Read(0, offset, 11 + offset) for offset in range(5, 8)]
    member.commits.append(Commit(0, 5, asked=5.5, at=6))
    assert found(member) == []
    member.commits.append(Commit(0, 6, asked=5.5, at=6))
    assert found(member) == ["repeated"]
