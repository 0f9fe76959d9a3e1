"""The lag of queries, read from the consumer groups to which the queries commit their progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace import Admin

#: Timeout in seconds of a request for the consumer lags of the queries.
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a query. ``records``: number of records that the query has not read. ``seconds``: the age of the
    oldest unread record, None if the coordinator does not know the age yet."""

    records: int
    seconds: float | None


def group_of(pipeline: str, query: str) -> str:
    """The consumer group to which a query commits its progress. Pass the name of the group to the source as
    ``headrace.group.id``."""
    return f"{pipeline}.{query}"


def lags(admin: Admin, pipeline: str, queries: Iterable[str]) -> dict[str, Lag]:
    """The lags of the queries that have committed progress. Raises HeadraceError.

    A query is left out while the coordinator does not know the end of each partition. The coordinator asks the leaders
    for the ends after the group's first commit.
    """
    names = {group_of(pipeline, query): query for query in queries}
    if not names:
        return {}
    found = admin.describe_lag(list(names), raise_errors=False, timeout=TIMEOUT_S)
    return {
        names[group.group_id]: Lag(group.total_lag, _seconds([part.lag_ms for part in group.partitions]))
        for group in found
        if group.error is None and group.partitions and all(part.lag is not None for part in group.partitions)
    }


def _seconds(ages_ms: list[int | None]) -> float | None:
    known = [age for age in ages_ms if age is not None]
    return max(known) / 1000 if known else None
