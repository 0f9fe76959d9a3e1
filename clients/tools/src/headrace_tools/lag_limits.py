"""Judge the lag of groups against limits, for ``headrace lag --alert``. Pure.

A group gets the same verdict as from ``headrace doctor``, the metrics and the console (headrace_core.lag). The limits
in time and records come from the command line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace_core.lag import verdict, worst

if TYPE_CHECKING:
    from headrace.group_models import GroupLag, GroupListing

#: Verdicts that raise an alarm by themselves. WARN and REWIND raise no alarm by themselves: they also occur when a
#: group catches up slowly, or when an operator has reset the group's offsets.
ALARMS = ("STOP", "STALL")
UNKNOWN = "UNKNOWN"  #: In place of the verdict OK for a group of which a lag is unknown.
#: Maximum number of partitions that a text names.
_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """``lag_s``: largest age of the first unread record; ``lag``: most unread records in all partitions (None: any
    number)."""

    lag_s: float = 30.0
    lag: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedGroup:
    """One group. ``lag``: unread records, None if the lag of a partition is unknown. ``lag_s``: the largest known age
    of an unread record, None if no age is known; it is a lower bound if ``is_at_least``. ``worst``: the partition with
    the age ``lag_s``, or "". ``above``: one text for each limit that the known lags exceed, and one for the verdict
    STOP or STALL. ``error``: why the lag of the group, or of some of its partitions, is unknown; None also for a group
    without members that is not named."""

    group: str
    state: str
    members: int
    lag: int | None
    lag_s: float | None
    is_at_least: bool
    worst: str
    status: str
    above: tuple[str, ...]
    error: str | None = None


def judged(
    groups: Iterable[GroupListing], lags: Iterable[GroupLag], limits: Limits, *, named: Collection[str] = ()
) -> list[JudgedGroup]:
    """Judge each group. A group without members exceeds no limit, unless it is ``named``: an operator who names a group
    expects that it runs. Groups that have committed no offset have no lag."""
    of_group = {lag.group_id: lag for lag in lags}
    found = []
    for group in groups:
        lag = of_group.get(group.group_id)
        if lag is not None:
            found.append(_judged(group, lag, limits, is_named=group.group_id in named))
    return sorted(found, key=lambda each: (not each.above, -(each.lag_s or 0), each.group))


def _judged(group: GroupListing, lag: GroupLag, limits: Limits, *, is_named: bool) -> JudgedGroup:
    if lag.error is not None:
        error = f"{lag.error.message} [{lag.error.code}]"
        return JudgedGroup(
            group=group.group_id,
            state=group.state,
            members=group.members,
            lag=None,
            lag_s=None,
            is_at_least=False,
            worst="",
            status=UNKNOWN,
            above=(),
            error=error,
        )
    is_empty = group.state == "empty"
    behind = [part for part in lag.partitions if part.lag and part.lag_ms is not None]
    slowest = max(behind, key=lambda part: part.lag_ms or 0, default=None)
    lag_s = None if slowest is None or slowest.lag_ms is None else slowest.lag_ms / 1_000
    unknown = [f"{part.topic}-{part.partition}" for part in lag.partitions if part.lag is None]
    if slowest is None and not unknown:
        lag_s = 0.0
    status = worst(
        verdict(part.status, lag=part.lag, complete=part.complete, is_empty=is_empty and not is_named)
        for part in lag.partitions
    )
    above = []
    gap = None
    if is_named or not is_empty:
        if unknown:
            more = f" and {len(unknown) - _NAMED_MAX} more" if len(unknown) > _NAMED_MAX else ""
            gap = f"the coordinator does not know the log end of {', '.join(unknown[:_NAMED_MAX])}{more}"
        if lag_s is not None and lag_s > limits.lag_s:
            above.append(f"{lag_s:.1f} s behind, the limit is {limits.lag_s:g} s")
        if limits.lag is not None and lag.total_lag > limits.lag:
            above.append(f"{lag.total_lag} records behind, the limit is {limits.lag}")
        if status in ALARMS:
            above.append(f"verdict {status}")
    return JudgedGroup(
        group=group.group_id,
        state=group.state,
        members=group.members,
        lag=None if unknown else lag.total_lag,
        lag_s=lag_s,
        is_at_least=slowest is not None and (slowest.lag_ms_is_at_least or bool(unknown)),
        worst="" if slowest is None else f"{slowest.topic}-{slowest.partition}",
        status=UNKNOWN if gap is not None and status == "OK" else status,
        above=tuple(above),
        error=gap,
    )
