"""The rows of a group: what the coordinator does not know has no row, and a group without members raises no alarm."""

from __future__ import annotations

import enum

import pytest

from headrace_coordinator.classic.messages import ClassicState
from headrace_coordinator.collector import _STATES, _group_rows
from headrace_coordinator.group.messages import GroupState, ListedGroup
from headrace_coordinator.offsets.codec import CommittedOffset
from headrace_coordinator.offsets.messages import GroupLag, LagStatus, PartitionLag
from headrace_core.metrics import catalog
from headrace_core.metrics.model import Metric

COMMITTED = CommittedOffset(offset=40, leader_epoch=-1, metadata="", commit_timestamp_ms=0)


def _lag(*lags: tuple[int, int | None, int | None], status: LagStatus = LagStatus.OK) -> GroupLag:
    """``lags``: (partition, lag, lag in ms)."""
    parts = tuple(
        PartitionLag("t", number, COMMITTED, None if lag is None else 40 + lag, lag, lag_ms, False, 0, status, 1.0)
        for number, lag, lag_ms in lags
    )
    return GroupLag("g", status, sum(part.lag or 0 for part in parts), parts)


def _rows(
    lag: GroupLag | None, state: enum.StrEnum = GroupState.STABLE
) -> dict[tuple[Metric, tuple[object, ...]], object]:
    rows = _group_rows(ListedGroup("g", state, 0), lag, of_partitions=True)
    return {(row.metric, row.labels): row.value for row in rows}


def test_a_lag_that_is_not_known_yet_is_no_zero() -> None:
    """After a failover a zero would say that the group has caught up, and would end its alert."""
    found = _rows(_lag((0, None, None), (1, None, None)))
    assert found[catalog.GROUP_OFFSET_SUM, ("g", "t")] == 80
    shown = {metric for metric, _ in found}
    assert not shown & {
        catalog.GROUP_LAG,
        catalog.GROUP_LAG_SUM,
        catalog.GROUP_LAG_SECONDS,
        catalog.GROUP_LAG_SECONDS_MAX,
    }


def test_known_lags_are_summed() -> None:
    found = _rows(_lag((0, 7, 1_500), (1, 5, 2_500), (2, None, None)))
    assert found[catalog.GROUP_LAG_SUM, ("g", "t")] == 12
    assert found[catalog.GROUP_LAG_SECONDS_MAX, ("g",)] == 2.5
    assert found[catalog.GROUP_LAG_SECONDS, ("g", "t", 0)] == 1.5


def test_a_group_without_offsets_has_no_lag() -> None:
    assert _rows(None)[catalog.GROUP_LAG_SECONDS_MAX, ("g",)] == 0.0


@pytest.mark.parametrize("state", [GroupState.EMPTY, ClassicState.EMPTY])
def test_a_group_without_members_has_not_stopped(state: enum.StrEnum) -> None:
    """A finished batch job of a Kafka client, too, is no failure."""
    lag = _lag((0, 7, 900_000), status=LagStatus.STOP)
    assert _rows(lag)[catalog.GROUP_STATUS, ("g", "STOP")] == 1
    found = _rows(lag, state)
    assert (found[catalog.GROUP_STATUS, ("g", "OK")], found[catalog.GROUP_STATUS, ("g", "STOP")]) == (1, 0)


def test_each_state_of_a_group_is_counted_once() -> None:
    counted = [str(each) for some in _STATES.values() for each in some]
    assert sorted(counted) == sorted({*map(str, GroupState), *map(str, ClassicState)})
