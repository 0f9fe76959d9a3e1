"""``groups list|describe|members|explain|delete|delete-offsets|remove-members``."""

from __future__ import annotations

import enum
import shutil
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace_core.errors import GroupIdNotFoundError, HeadraceError, UnknownTopicOrPartitionError
from headrace_core.plurals import counted
from headrace_core.visible import one_line

from . import complete, group_lag
from .client import DEFAULT_BOOTSTRAP, GROUP_TIMEOUT_S, Bootstrap, GroupTimeout, admin, coordinator_timeout_s
from .each import change_each, end_with_failures, error_document
from .groups_reset import Group, chosen_partitions, reset_offsets, scope_of
from .output import Output, OutputFormat, note, print_json, print_table, show, show_rows
from .watching import INTERVAL_S, Interval, Watch, watched

if TYPE_CHECKING:
    from headrace.group_models import GroupDescription, MemberDescription, Rebalance
    from headrace_core.types import TopicPartition

#: Timeout in seconds for the lookup of log end offsets: a partition without leader must not delay the table.
_ENDS_S = 5.0
#: Exit code of --fail-on; a failed command ends with 1, a wrong command line with 2.
_LAGS = 3
#: Minimum terminal widths in columns: ``describe`` shows member ids in full from the first width on, and shows members
#: from the second width on.
_WIDE, _NARROW = 140, 110


class FailOn(enum.StrEnum):
    WARN = "warn"
    ERR = "err"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Consumer groups: members, lag, offsets, rebalances.", no_args_is_help=True)
    group.callback()(_group)
    group.command("list")(list_groups)
    group.command("describe")(describe)
    group.command("members")(members)
    group.command("explain")(explain)
    group.command("reset-offsets")(reset_offsets)
    group.command("delete")(delete)
    group.command("delete-offsets")(delete_offsets)
    group.command("remove-members")(remove_members)
    app.add_typer(group, name="groups")


def _group() -> None:
    """Show consumer groups (members, assignments, lag, offsets, rebalances), and change or delete them."""


def list_groups(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE,...",
            help="Show only groups in this state: empty, assigning, reconciling, stable or dead; for classic groups "
            "also preparing-rebalance or completing-rebalance. Repeatable.",
        ),
    ] = None,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """List the groups of the cluster.

    \b
    Examples:
      headrace groups list
      headrace groups list --state empty,stable
      headrace groups list -o json                [{"group", "state", "members", "type"}]
    """
    from headrace.group_models import GROUP_STATES

    states = [part.strip().lower() for given in state or () for part in given.split(",") if part.strip()]
    wrong = [each for each in states if each not in GROUP_STATES]
    if wrong:
        raise typer.BadParameter(
            f"group state {wrong[0]!r}: must be one of {', '.join(GROUP_STATES)}", param_hint="--state"
        )
    with admin(bootstrap) as client:
        timeout = coordinator_timeout_s(client, timeout)
        found = client.list_groups(states, timeout=timeout)
    rows = [{"group": each.group_id, "state": each.state, "members": each.members, "type": each.type} for each in found]
    show_rows(output, ("GROUP", "STATE", "MEMBERS", "TYPE"), rows)


def describe(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", help="Group ids.", autocompletion=complete.groups)
    ] = None,
    all_groups: Annotated[bool, typer.Option("--all-groups", help="Show every group of the cluster.")] = False,
    fail_on: Annotated[
        FailOn | None, typer.Option("--fail-on", help="Exit with 3 if a group has this status or a worse one.")
    ] = None,
    watch: Watch = False,
    interval: Interval = INTERVAL_S,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the partitions of groups: member, committed offset, log end offset, and lag in records and in time. Pending
    lines show offsets of open transactions.

    The column STATUS judges the last commits by the rules of Burrow (a lag monitor for Kafka). The values are OK; WARN:
    the group commits, and its lag grows; STOP: no more commits; STALL: the same offset is committed again; REWIND: the
    committed offset went back. The status of a group is WARN, or ERR if one of its partitions has STOP, STALL or
    REWIND. With --fail-on the exit code is 3 if a group has the given status or a worse one; --watch then ends.

    \b
    Examples:
      headrace groups describe billing
      headrace groups describe billing --watch
      headrace groups describe --all-groups -o json
      headrace groups describe --all-groups --fail-on err || echo alert
    """
    if bool(groups) == all_groups:
        raise typer.BadParameter("pass group ids or --all-groups, not both", param_hint="GROUP...")
    wanted = list(dict.fromkeys(groups or ()))

    def show(found: list[dict[str, Any]]) -> int:
        if output is OutputFormat.JSON:
            print_json(found, one_line=watch)
        else:
            _show_groups(found)
        bad = group_lag.judged(found, fail_on) if fail_on is not None else []
        failed = [each["error"] for each in found if each["error"] is not None]
        for line in (*bad, *(f"headrace: {error['message']} [{error['code']}]" for error in failed)):
            note(line)
        return _LAGS if bad else int(bool(failed)) if not watch else 0

    with admin(bootstrap) as client:
        timeout = coordinator_timeout_s(client, timeout)
        code = watched(
            lambda: _look(client, wanted, timeout, may_fail=watch or len(wanted) > 1),
            show,
            watch=watch,
            interval_s=interval,
            output=output,
        )
    if code:
        raise typer.Exit(code)


def _look(client: Any, wanted: list[str], timeout_s: float, *, may_fail: bool) -> list[dict[str, Any]]:
    """The JSON documents of the groups ``wanted`` (empty: all groups). ``may_fail``: write the error of a group into
    its document instead of raising it."""
    from ..group_ends import log_ends

    ids = wanted or [each.group_id for each in client.list_groups(timeout=timeout_s)]
    raises = bool(wanted) and not may_fail
    described = client.describe_groups(ids, raise_errors=raises, timeout=timeout_s)
    lags = client.describe_lag(ids, raise_errors=raises, timeout=timeout_s)
    pairs = [
        (group, lag)
        for group, lag in zip(described, lags, strict=True)
        # Groups that were deleted after the listing are left out.
        if wanted or not isinstance(group.error or lag.error, GroupIdNotFoundError)
    ]
    parts = {part for group, lag in pairs for part in group_lag.partitions_of(group, lag)}
    ends = log_ends(client, parts, timeout_s=_ENDS_S)
    if gap := ends.gap():
        what, why = gap
        note(f"no answer about {what}: {why}; the lag shown there is the coordinator's last sample")
    _note_orphaned(client, [group for group, _ in pairs], timeout_s)
    return [group_lag.document(group, lag, ends.known) for group, lag in pairs]


def _note_orphaned(client: Any, groups: list[GroupDescription], timeout_s: float) -> None:
    """Print a note for each pending offset that no transaction can end any more; the note says which commands drop the
    offset."""
    from ..orphaned_offsets import how_dropped, orphaned_offsets

    try:
        orphaned = orphaned_offsets(client, groups, timeout_s=timeout_s)
    except HeadraceError as error:
        note(f"whether a transaction ends the pending offsets is unknown: {error.message} [{error.code}]")
        return
    for each in orphaned:
        where = f"{each.pending.topic}-{each.pending.partition}"
        note(
            f"group {each.group_id}: the pending offset of {where} is orphaned, because no coordinator has its "
            f"transaction: {how_dropped(each.group_id, each.pending)}"
        )


_COLUMNS = (
    "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "LAG-TIME", "CONSUMER-ID", "HOST",
    "CLIENT-ID", "STATUS",
)  # fmt: skip


def _show_groups(groups: list[dict[str, Any]]) -> None:
    """Print a table for each group. In a pipe the table has Kafka's columns. A terminal is narrower: its table names
    the group only in the heading, and cuts member ids. A narrow terminal shows no members (`groups members` shows their
    full ids)."""
    if not groups:
        print("no group")
    columns, id_letters = list(_COLUMNS), 0
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        id_letters = 8 if width < _WIDE else 0
        left_out = {"GROUP"} if width >= _NARROW else {"GROUP", "CONSUMER-ID", "HOST"}
        columns = [column for column in _COLUMNS if column not in left_out]
    for at, group in enumerate(each for each in groups if each["error"] is None):
        print(("\n" if at else "") + one_line(group_lag.heading(group)) + "\n", flush=True)
        rows = [_cells(group["group"], row, id_letters) for row in group["partitions"]]
        print_table(
            [column.replace("-", " ") for column in columns] if sys.stdout.isatty() else columns,
            [[row[column] for column in columns] for row in rows],
        )
        for line in group_lag.pending(group, time.time() * 1_000):
            print(one_line(line), flush=True)


def _cells(group: str, row: dict[str, Any], id_letters: int) -> dict[str, Any]:
    """Cells by column. ``id_letters``: how many letters of a member id to show; 0: all of them."""
    reader = row["member_id"]
    if reader is not None and id_letters and len(reader) > id_letters + 2:
        reader = reader[:id_letters] + ".."
    return dict(
        zip(
            _COLUMNS,
            (
                group,
                *(row[each] for each in ("topic", "partition", "current_offset", "log_end_offset", "lag")),
                group_lag.lag_time(row),
                reader,
                *(row[each] for each in ("host", "client_id", "status")),
            ),
            strict=True,
        )
    )


def members(
    group: Group,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also show assigned, revoking and target partitions, and subscriptions.")
    ] = False,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show the members of a group.

    \b
    Examples:
      headrace groups members billing --verbose
      headrace groups members billing -o json
    """
    with admin(bootstrap) as client:
        timeout = coordinator_timeout_s(client, timeout)
        (found,) = client.describe_groups([group], timeout=timeout)
    if output is OutputFormat.JSON:
        print_json({"group": group, "state": found.state, "members": [_member(each) for each in found.members]})
        return
    if not found.members:
        note(f"group {group!r} has no active members")
    rows = [
        [each.member_id, each.instance_id, each.host, each.client_id, each.member_epoch, len(each.assigned)]
        for each in found.members
    ]
    columns = ["CONSUMER-ID", "INSTANCE-ID", "HOST", "CLIENT-ID", "EPOCH", "#PARTITIONS"]
    is_terminal = sys.stdout.isatty()
    if verbose and not is_terminal:
        columns += ["ASSIGNMENT", "REVOKING", "TARGET", "RACK", "SUBSCRIBES", "UPGRADED"]
        for row, each in zip(rows, found.members, strict=True):
            row += [*map(_parts, (each.assigned, each.revoking, each.target)), each.rack, _subscription(each)]
            row.append(str(not each.is_classic).lower())  # the word of kafka-consumer-groups
    print_table(columns, rows)
    if verbose and is_terminal:  # the terminal has no room for more columns
        for each in found.members:
            line = (
                f"{each.member_id}  assigned {_parts(each.assigned) or 'nothing'}"
                + (f", revoking {_parts(each.revoking)}" if each.revoking else "")
                + (f", target {_parts(each.target) or 'nothing'}" if each.target != each.assigned else "")
                + f"; subscribes to {_subscription(each) or 'nothing'}"
                + (f"; rack {each.rack}" if each.rack else "")
                + ("; uses the classic protocol" if each.is_classic else "")
            )
            print(one_line(line))


def _member(member: MemberDescription) -> dict[str, Any]:
    def parts(of: Iterable[TopicPartition]) -> list[dict[str, Any]]:
        return [{"topic": each.topic, "partition": each.partition} for each in of]

    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "rack": member.rack,
        "member_epoch": member.member_epoch,
        "topics": list(member.topics),
        "topic_regex": member.topic_regex or None,
        "assigned": parts(member.assigned),
        "revoking": parts(member.revoking),
        "target": parts(member.target),
        "upgraded": not member.is_classic,
    }


def _parts(parts: Iterable[TopicPartition]) -> str | None:
    """The partitions of a topic in the form ``orders(0,1) clicks(3)``, as in Kafka's tool."""
    by_topic: dict[str, list[str]] = {}
    for each in parts:
        by_topic.setdefault(each.topic, []).append(str(each.partition))
    return " ".join(f"{topic}({','.join(numbers)})" for topic, numbers in by_topic.items()) or None


def _subscription(member: MemberDescription) -> str | None:
    return ",".join(member.topics) + (f" /{member.topic_regex}/" if member.topic_regex else "") or None


def explain(
    group: Group,
    watch: Watch = False,
    interval: Interval = INTERVAL_S,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Show a group's last rebalances, oldest first: time, reason, moved partitions, and how long each partition was not
    read.

    \b
    Examples:
      headrace groups explain billing
      headrace groups explain billing --watch
      headrace groups explain billing -o json
    """

    def show(found: tuple[GroupDescription, list[Rebalance]]) -> int:
        if output is OutputFormat.JSON:
            rebalance = [_rebalance(each) for each in found[1]]
            print_json({"group": group, "state": found[0].state, "rebalances": rebalance}, one_line=watch)
        else:
            _tell(*found)
        return 0

    with admin(bootstrap) as client:
        timeout = coordinator_timeout_s(client, timeout)
        watched(
            lambda: (
                client.describe_groups([group], timeout=timeout)[0],
                client.explain_group(group, timeout=timeout),
            ),
            show,
            watch=watch,
            interval_s=interval,
            output=output,
        )


def _rebalance(rebalance: Rebalance) -> dict[str, Any]:
    return {
        "number": rebalance.number,
        "at_ms": rebalance.at_ms,
        "group_epoch": rebalance.group_epoch,
        "reason": rebalance.reason,
        "ended_at_ms": rebalance.ended_at_ms,
        "moved_count": rebalance.moved_count,
        "moved": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "from_member": each.from_member,
                "to_member": each.to_member,
                "unread_ms": each.unread_ms,
            }
            for each in rebalance.moved
        ],
    }


def _tell(group: GroupDescription, rebalances: list[Rebalance]) -> None:
    clients = {each.member_id: each.instance_id or each.client_id for each in group.members}

    def named(member_id: str | None) -> str:
        if member_id is None:
            return "no member"
        return f"{member_id} ({clients[member_id]})" if clients.get(member_id) else member_id

    if not rebalances:
        print(one_line(f"group {group.group_id} has had no rebalance"))
    for at, rebalance in enumerate(rebalances):
        when = datetime.fromtimestamp(rebalance.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
        moved = f"{counted(rebalance.moved_count, 'partition')} moved"
        if rebalance.ended_at_ms is not None:
            end = f"done after {group_lag.duration(max(0, rebalance.ended_at_ms - rebalance.at_ms))}"
        else:
            end = "under way" if at == len(rebalances) - 1 else "replaced by the next rebalance"
        print(
            ("\n" if at else "")
            + f"rebalance {rebalance.number}  {when}  epoch {rebalance.group_epoch}  {moved}, {end}"
        )
        print(one_line(f"  why: {rebalance.reason}"))
        for each in rebalance.moved:
            unread = f"  unread for {group_lag.duration(each.unread_ms)}" if each.unread_ms is not None else ""
            moved_by = f"{named(each.from_member)} -> {named(each.to_member)}"
            print(one_line(f"  {each.topic}-{each.partition}: {moved_by}{unread}"))
        if rebalance.moved_count > len(rebalance.moved):
            print(f"  and {rebalance.moved_count - len(rebalance.moved)} more")


def delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...", help="Group ids.", autocompletion=complete.groups)],
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Delete groups that have no members, and their committed offsets. If some groups cannot be deleted, the others
    are, and the exit code is 1.

    \b
    Examples:
      headrace groups delete billing reports
      headrace groups delete billing reports -o json      {"deleted": [GROUP], "failed": [{"group", "error"}]}
    """
    with admin(bootstrap) as client:
        timeout = coordinator_timeout_s(client, timeout)
        deleted, failed = change_each(groups, lambda group: client.delete_groups([group], timeout=timeout))
    document: dict[str, Any] = {"deleted": list(deleted)}
    if failed:
        document["failed"] = [{"group": group, "error": error_document(error)} for group, error in failed.items()]
    show(output, document, f"deleted {', '.join(deleted)}")
    end_with_failures(failed)


def delete_offsets(
    group: Group,
    topic: Annotated[
        list[str],
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[:0,1]",
            help="A topic, or some of its partitions (TOPIC:0,1); repeatable.",
            autocompletion=complete.topics,
        ),
    ],
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Delete a group's committed offsets of topics that none of its members subscribes to. If a topic is refused, the
    offsets of the others are deleted, and the exit code is 1.

    \b
    Examples:
      headrace groups delete-offsets billing --topic orders
      headrace groups delete-offsets billing --topic orders:0,1 --topic clicks
    """
    scope = scope_of(topic)
    with admin(bootstrap) as client:
        timeout = coordinator_timeout_s(client, timeout)
        client.describe_groups([group], timeout=timeout)
        there = client.list_group_offsets(group, timeout=timeout)
        parts = chosen_partitions(scope, there)
        if not parts:
            raise UnknownTopicOrPartitionError(f"group {group!r} has no committed offset of {', '.join(topic)}")
        by_topic = {each: [part for part in parts if part.topic == each] for each in sorted({t.topic for t in parts})}
        _, failed = change_each(
            by_topic, lambda name: client.delete_group_offsets(group, by_topic[name], timeout=timeout)
        )
    deleted = [each for each in parts if each.topic not in failed]
    document: dict[str, Any] = {
        "group": group,
        "deleted": [{"topic": each.topic, "partition": each.partition} for each in deleted],
    }
    if failed:
        document["failed"] = [{"topic": name, "error": error_document(error)} for name, error in failed.items()]
    show(output, document, f"deleted the offsets of {', '.join(map(str, deleted))}")
    end_with_failures(failed)


def remove_members(
    group: Group,
    member: Annotated[
        list[str] | None, typer.Argument(metavar="MEMBER...", help="Member ids, as `groups members` shows them.")
    ] = None,
    all_members: Annotated[bool, typer.Option("--all", help="Remove all members.")] = False,
    timeout: GroupTimeout = GROUP_TIMEOUT_S,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Remove members from a group as if they had left. Use `headrace groups remove-members` for static members that
    will not come back; a member that is still running joins the group again.

    \b
    Examples:
      headrace groups remove-members billing 0f6a27c1-0a3e-4f5d-9a7e-3d6c1a2b4c5d
      headrace groups remove-members billing --all
    """
    if bool(member) == all_members:
        raise typer.BadParameter("pass member ids or --all, not both", param_hint="MEMBER...")
    with admin(bootstrap) as client:
        timeout = coordinator_timeout_s(client, timeout)
        removed = client.remove_group_members(group, member or None, timeout=timeout)
    text = f"removed {', '.join(removed)}" if removed else f"group {group} has no members"
    show(output, {"group": group, "removed": removed}, text)
