"""The lags of queries, from the answers of a coordinator."""

from __future__ import annotations

from typing import Any

from headrace.errors import CoordinatorNotAvailableError
from headrace.group_models import GroupLag, PartitionLag
from headrace_pipelines.lags import Lag, lags


def part(partition: int, end: int | None, age_ms: int | None = None) -> PartitionLag:
    """A partition of which the group has committed offset 4."""
    lag = None if end is None else end - 4
    return PartitionLag("parcels", partition, 4, 0, end, lag, age_ms, False, 0, "OK", 1.0)


class Cluster:
    """Answers ``describe_lag`` with the given partitions of the one group that is asked for."""

    def __init__(self, *parts: PartitionLag, error: CoordinatorNotAvailableError | None = None) -> None:
        self._parts, self._error = parts, error

    def describe_lag(self, group_ids: list[str], **_: Any) -> list[GroupLag]:
        (group_id,) = group_ids
        return [GroupLag(group_id, "OK", sum(each.lag or 0 for each in self._parts), self._parts, self._error)]


def seen(cluster: Cluster) -> dict[str, Lag]:
    return lags(cluster, "parcels", ["clean"])  # type: ignore[arg-type]


def test_the_lag_of_a_query_is_the_sum_of_its_partitions_and_its_oldest_unread_record() -> None:
    assert seen(Cluster(part(0, 7, 1_500), part(1, 5, 200))) == {"clean": Lag(4, 1.5)}
    assert seen(Cluster(part(0, 4, 0))) == {"clean": Lag(0, 0.0)}


def test_a_query_has_no_lag_until_the_end_of_each_partition_is_known() -> None:
    assert seen(Cluster(part(0, 7, 1_500), part(1, None))) == {}
    assert seen(Cluster()) == {}
    assert seen(Cluster(part(0, 4), error=CoordinatorNotAvailableError("moved"))) == {}
