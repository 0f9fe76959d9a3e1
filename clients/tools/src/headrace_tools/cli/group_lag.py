"""The table of ``groups describe``: members, offsets, log ends and lag of a group. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace_core.plurals import counted

if TYPE_CHECKING:
    from headrace.group_models import GroupDescription, GroupLag, MemberDescription
    from headrace_core.types import TopicPartition

#: The group statuses that count as failures, by the value of --fail-on.
BAD = {"warn": ("WARN", "ERR"), "err": ("ERR",)}


def partitions_of(group: GroupDescription, lag: GroupLag) -> set[TopicPartition]:
    """The partitions that the group reads, or for which the group has committed offsets."""
    from headrace_core.types import TopicPartition

    return {
        *(TopicPartition(each.topic, each.partition) for each in lag.partitions),
        *readers_of(group),
    }


def readers_of(group: GroupDescription) -> dict[TopicPartition, MemberDescription]:
    """The owner of each partition; a partition that is being revoked still belongs to its old member."""
    return {part: member for member in group.members for part in (*member.assigned, *member.revoking)}


def document(group: GroupDescription, lag: GroupLag, ends: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """The group as a document of ``-o json``. ``ends``: current log ends from the partition leaders; for a missing log
    end the coordinator's last sample is used. The lag is computed from the log end in the same row, so the two figures
    agree."""
    from ..group_ends import at_ends

    error = group.error or lag.error
    lag = at_ends(lag, ends, is_empty=group.state == "empty")
    rows = [] if error is not None else _rows(group, lag, ends)
    return {
        "group": group.group_id,
        "state": None if error is not None else group.state,
        "status": None if error is not None else lag.status,
        "total_lag": sum(row["lag"] or 0 for row in rows),
        "members": len(group.members),
        "type": group.type,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor or None,
        "coordinator": {"id": group.coordinator_id, "address": group.coordinator_address},
        "partitions": rows,
        "pending_offsets": [dataclasses.asdict(each) for each in group.pending_offsets],
        "error": None if error is None else {"code": error.code, "message": error.message},
    }


def _rows(group: GroupDescription, lag: GroupLag, ends: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    from headrace_core.types import TopicPartition

    lags = {TopicPartition(each.topic, each.partition): each for each in lag.partitions}
    readers = readers_of(group)
    rows = []
    for part in sorted(partitions_of(group, lag)):
        known, reader = lags.get(part), readers.get(part)
        end = ends.get(part, known.high_watermark if known is not None else None)
        rows.append(
            {
                "topic": part.topic,
                "partition": part.partition,
                "current_offset": None if known is None else known.committed_offset,
                "log_end_offset": end,
                "lag": None if known is None else known.lag,
                "lag_ms": None if known is None else known.lag_ms,
                "lag_ms_is_at_least": known is not None and known.lag_ms_is_at_least,
                "records_lost": 0 if known is None else known.records_lost,
                "commit_timestamp_ms": None
                if known is None or known.commit_timestamp_ms < 0
                else known.commit_timestamp_ms,
                "member_id": None if reader is None else reader.member_id,
                "instance_id": None if reader is None else reader.instance_id,
                "host": None if reader is None else reader.host,
                "client_id": None if reader is None else reader.client_id,
                "status": None if known is None else known.status,
                "complete": None if known is None else known.complete,
            }
        )
    return rows


def heading(group: Mapping[str, Any]) -> str:
    members = counted(group["members"], "member") if group["members"] else "no active members"
    lost = sum(row["records_lost"] for row in group["partitions"])
    return (
        f"group {group['group']}  {group['state']}  {members}"
        + ("  classic" if group["type"] == "classic" else "")
        + f"  assignor {group['assignor'] or '-'}  "
        f"epoch {group['group_epoch']}  coordinator {group['coordinator']['id']} ({group['coordinator']['address']})  "
        f"lag {group['total_lag']}  {group['status']}" + (f"  {counted(lost, 'record')} deleted unread" if lost else "")
    )


def pending(group: Mapping[str, Any], now_ms: float) -> list[str]:
    """Print one line for each offset in an open transaction."""
    return [
        f"pending: {each['topic']}-{each['partition']} at {each['offset']}, sent by the transaction of "
        f"{each['transactional_id'] or 'producer ' + str(each['producer_id'])} "
        f"{duration(max(0, round(now_ms - each['received_at_ms'])))} ago"
        for each in group["pending_offsets"]
    ]


def judged(groups: list[dict[str, Any]], fail_on: str) -> list[str]:
    """One line for each group whose status is at least as bad as ``fail_on``: the group's partitions, and what is wrong
    with each partition."""
    lines = []
    for group in groups:
        if group["status"] in BAD[fail_on]:
            wrong = [
                f"{row['topic']}-{row['partition']} {row['status']} (lag {_shown(row['lag'])}, {lag_time(row)})"
                for row in group["partitions"]
                if row["status"] not in (None, "OK") and (fail_on == "warn" or row["status"] != "WARN")
            ]
            lines.append(f"group {group['group']}: {group['status']}: {', '.join(wrong)}")
    return lines


def lag_time(row: Mapping[str, Any]) -> str:
    """The age of the first unread record; "-" if it is unknown."""
    if row["lag_ms"] is None:
        return "-"
    return (">= " if row["lag_ms_is_at_least"] else "") + duration(row["lag_ms"])


def duration(ms: int) -> str:
    """A duration as text, with at most three digits."""
    if ms < 1_000:
        return f"{ms} ms"
    for limit, unit_ms, unit in ((100, 1_000, "s"), (100, 60_000, "min"), (72, 3_600_000, "h")):
        if ms < limit * unit_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{ms / 86_400_000:.1f} d"


def _shown(value: Any) -> Any:
    return "-" if value is None else value
