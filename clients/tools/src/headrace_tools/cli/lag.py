"""The command ``lag``: how far groups are behind, in records and in seconds, against limits."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import complete
from .client import (
    DEFAULT_BOOTSTRAP,
    GROUP_TIMEOUT_S,
    Bootstrap,
    GroupTimeout,
    Properties,
    admin,
    coordinator_timeout_s,
)
from .output import Output, OutputFormat, note, print_json, print_table
from .times import duration
from .watching import INTERVAL_S, Interval, Watch, watched

if TYPE_CHECKING:
    from ..lag_limits import JudgedGroup, Limits

#: Exit code of --alert; a failed command ends with 1, a wrong command line with 2.
_ABOVE = 3
#: Seconds within which a new coordinator has sampled the high watermarks of all partitions that have a leader.
_SAMPLED_S = 3.0
_LOOK_S = 0.5


def register(app: typer.Typer) -> None:
    app.command("lag")(lag)


def lag(
    groups: Annotated[
        list[str] | None,
        typer.Argument(metavar="[GROUP]...", help="Group ids; all groups by default.", autocompletion=complete.groups),
    ] = None,
    alert: Annotated[
        bool,
        typer.Option("--alert", help="Exit with 3 when a group is above a limit, or gets the verdict STOP or STALL."),
    ] = False,
    max_time: Annotated[
        float, duration("--max-time", least_s=0.0, help="Highest allowed age of a group's first unread record.")
    ] = 30.0,
    max_records: Annotated[
        int | None,
        typer.Option(
            "--max-records", min=0, help="Highest allowed number of a group's unread records; default: no limit."
        ),
    ] = None,
    last: Annotated[
        float | None,
        duration("--for", least_s=0.1, help="With --watch: end after this time, with exit code 0 if all is well."),
    ] = None,
    watch: Watch = False,
    interval: Interval = INTERVAL_S,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    properties: Properties = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show how far groups are behind: unread records, the age of the first unread record, and a verdict.

    The verdicts are those of `headrace doctor` and follow the rules of Burrow: OK; WARN: the lag grows with each
    commit; REWIND: the committed offset went back; STALL: the same offset is committed again and again; STOP: no more
    commits. UNKNOWN stands in place of OK when a lag is unknown. A group without members gets the verdict OK and is not
    compared with the limits, unless you name it. For cron and CI: --alert exits with 3 when a group is above a limit,
    or gets the verdict STOP or STALL; with 1 when a lag is unknown, else with 0. With --watch the command ends at the
    first alarm.

    \b
    Examples:
      headrace lag
      headrace lag --alert --max-time 1m || echo alarm       cron
      headrace lag billing --watch --alert --for 10m         CI: until billing lags, at most 10 minutes
      headrace lag -o json    [{"group", "state", "members", "lag", "lag_s", "is_at_least", "worst", "status",
                                "above", "error"}]
    """
    from ..lag_limits import Limits

    if last is not None and not watch:
        raise typer.BadParameter("--for needs --watch", param_hint="--for")
    wanted = list(dict.fromkeys(groups or ()))
    limits = Limits(max_time, max_records)
    ends_s = None if last is None else time.monotonic() + last
    over: list[int] = []

    def show(found: list[JudgedGroup]) -> int:
        if output is OutputFormat.JSON:
            print_json([dataclasses.asdict(each) for each in found], one_line=watch)
        else:
            _show(found)
        code = _code(found, alert=alert, watch=watch)
        if not code and ends_s is not None and time.monotonic() + interval > ends_s:
            over.append(code)
            return _OVER
        return code

    with admin(bootstrap, properties) as client:
        timeout = coordinator_timeout_s(client, timeout)
        code = watched(
            lambda: _look(client, wanted, limits, timeout, settle_s=0.0 if watch else _SAMPLED_S),
            show,
            watch=watch,
            interval_s=interval,
            output=output,
        )
    if code and not over:
        raise typer.Exit(code)


_OVER = -1  #: Ends --watch without an alarm, because the time of --for is over.


def _look(client: Any, wanted: list[str], limits: Limits, timeout_s: float, *, settle_s: float) -> list[JudgedGroup]:
    """The groups; if a lag is unknown, look again for up to ``settle_s``: a new coordinator still samples the logs."""
    until = time.monotonic() + settle_s
    while True:
        found = _look_once(client, wanted, limits, timeout_s)
        if time.monotonic() >= until or all(each.error is None for each in found):
            return found
        time.sleep(_LOOK_S)


def _look_once(client: Any, wanted: list[str], limits: Limits, timeout_s: float) -> list[JudgedGroup]:
    from headrace_core.errors import GroupIdNotFoundError

    from ..lag_limits import judged

    listed = client.list_groups(timeout=timeout_s)
    missing = [each for each in wanted if each not in {group.group_id for group in listed}]
    if missing:
        raise GroupIdNotFoundError(f"group {missing[0]!r} does not exist; `headrace groups list` shows the groups")
    chosen = [group for group in listed if not wanted or group.group_id in wanted]
    lags = client.describe_lag([group.group_id for group in chosen], raise_errors=False, timeout=timeout_s)
    lags = [each for each in lags if not isinstance(each.error, GroupIdNotFoundError)]  # deleted after the listing
    return judged(chosen, lags, limits, named=wanted)


def _code(found: list[JudgedGroup], *, alert: bool, watch: bool) -> int:
    """Print one line for each alarm and for each failed request; return the exit code."""
    above = [each for each in found if each.above] if alert else []
    failed = [each for each in found if each.error is not None]
    for each in above:
        where = f" ({each.worst})" if each.worst else ""
        note(f"headrace: group {each.group}{where}: {'; '.join(each.above)}")
    for each in failed:
        note(f"headrace: the lag of group {each.group} is unknown: {each.error}")
    return _ABOVE if above else int(bool(failed) and not watch)


def _show(found: list[JudgedGroup]) -> None:
    if not found:
        print("no group has committed an offset")
        return
    print_table(
        ("GROUP", "STATE", "MEMBERS", "LAG", "LAG S", "WORST PARTITION", "STATUS", "ABOVE"),
        [
            (
                each.group,
                each.state,
                each.members,
                each.lag,
                None if each.lag_s is None else f"{'>= ' if each.is_at_least else ''}{each.lag_s:.1f}",
                each.worst or None,
                each.status,
                "; ".join(each.above) or None,
            )
            for each in found
        ],
    )
