"""The recorded history of a rebalance (its story), for ``groups explain``. A story says when and why the rebalance
happened, which partitions moved, and for how long each partition had no reader.

A rebalance is recorded when its target is computed, and again when the rebalance is complete. A rebalance is complete
when every member has reached its target, and each new reader has confirmed its partitions. The record of a rebalance
that was overtaken by a later rebalance has no end.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..state_machine import RecordKind
from .messages import Move, Part, Parts, Rebalance
from .records import Key, StoryMove, StoryValue
from .state import STORIES_MAX, Group, Member
from .turn import Turn

#: Limits of a rebalance's recorded history: number of partition moves, and bytes of the reason.
MOVES_MAX, REASON_MAX = 200, 400


def begin(
    turn: Turn, group: Group, before: Mapping[Part, str], after: Mapping[Part, str], names: Mapping[bytes, str]
) -> None:
    """Begin to record a rebalance with a new target; ``before`` and ``after`` are the owners of each partition.
    ``go_on`` writes the record."""
    _close(turn, group, ended_ms=-1)
    moved = sorted(part for part in before.keys() | after.keys() if before.get(part) != after.get(part))
    moves = tuple(
        StoryMove(part[0], names.get(part[0], ""), part[1], before.get(part, ""), after.get(part, ""))
        for part in moved[:MOVES_MAX]
    )
    reason = "; ".join(dict.fromkeys(group.reasons))
    if len(reason) > REASON_MAX:
        reason = reason[: REASON_MAX - 3] + "..."
    value = group.said
    story = StoryValue(value.rebalances, turn.now_ms, value.target_epoch, reason, len(moved), moves)
    group.reasons.clear()
    group.vacated.clear()
    group.unread_ms.clear()
    group.story = story


def taken(turn: Turn, group: Group, member: Member, owned: Parts) -> None:
    """Called when a member that knows its assignment has reported that it reads ``owned``."""
    for part in [part for part in group.released if part in owned and group.owners.get(part) == member.member_id]:
        group.unread_ms[part] = max(0, turn.steady_ms - group.released.pop(part))


def go_on(turn: Turn, group: Group, *, began: bool = False) -> None:
    """Record the end of the present rebalance if it is complete, or its beginning if it just ``began``."""
    if group.story is not None and _is_over(group):
        _close(turn, group, ended_ms=turn.now_ms)
    elif group.story is not None and began:
        _write(turn, group, group.story)


def _is_over(group: Group) -> bool:
    if group.said.target_epoch < group.said.epoch or group.reconciling():
        return False
    # A partition without an owner, because its topic or its last reader was removed, does not delay the end of the
    # rebalance.
    for part in [part for part in group.released if part not in group.owners]:
        del group.released[part]
    return not group.released


def _close(turn: Turn, group: Group, *, ended_ms: int) -> None:
    story = group.story
    group.story = None
    if story is None or (ended_ms < 0 and not group.unread_ms):
        return
    moves = tuple(
        msgspec.structs.replace(move, unread_ms=group.unread_ms.get((move.topic_id, move.partition), -1))
        for move in story.moves
    )
    _write(turn, group, msgspec.structs.replace(story, moves=moves, ended_ms=ended_ms))


def _write(turn: Turn, group: Group, story: StoryValue) -> None:
    turn.write(Key(RecordKind.STORY, group.group_id, str(story.number % STORIES_MAX)), story)


def history(group: Group) -> tuple[Rebalance, ...]:
    """The answer to ExplainGroup, oldest rebalance first."""
    return tuple(
        Rebalance(
            story.number,
            story.at_ms,
            story.group_epoch,
            story.reason,
            story.moved,
            tuple(
                Move(move.topic_id, move.topic, move.partition, move.from_member, move.to_member, move.unread_ms)
                for move in story.moves
            ),
            story.ended_ms,
        )
        for story in group.rebalances()
    )
