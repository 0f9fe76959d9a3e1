"""The groups of a shard, as their records describe them, and state that only this process has (sessions, open stories).

Only ``GroupsState.apply`` changes the state that is in the log: a replay and every decision call this method.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace_core.errors import CorruptLogError

from ..state_machine import RecordKind
from .messages import GroupState, Part, Parts
from .reconciling import NOTHING, Current
from .records import (
    CurrentValue,
    GroupValue,
    Key,
    MemberValue,
    StoryValue,
    TargetValue,
    Value,
    pack,
    pack_epochs,
    unpack,
    unpack_epochs,
)
from .subscriptions import Subscription
from .timing import Session

STORIES_MAX = 20  #: Maximum number of rebalances in the history of a group.


class Member:
    """``value`` None: the log had only other records of this member id, so there is no such member (``loaded`` removes
    these records)."""

    __slots__ = ("current", "member_id", "session", "target", "value")

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.value: MemberValue | None = None
        self.target: Parts = NOTHING
        self.current = Current()
        self.session = Session(0)

    @property
    def is_blank(self) -> bool:
        return self.value is None and not self.target and self.current.revision == 0 and self.current.epoch == 0

    @property
    def said(self) -> MemberValue:
        assert self.value is not None, f"member {self.member_id} has no MEMBER record"
        return self.value


class Group:
    """``owners``: the member that has each partition, assigned or revoking. ``statics``: instance id -> member id of
    each static member. ``underway``: the members that have not reached their targets. ``subscriptions``: the different
    subscriptions of the members, each with the number of members that have this subscription. ``classics``: the number
    of members that use the classic protocol.

    Some fields of a group are not in the log. ``reasons`` has the reasons for the next target, and ``assigned_ms`` is
    the time of the last target. ``released``: the time from which on each partition has had no reader. ``unread_ms``:
    for how long each partition had no reader. ``vacated`` maps the partitions of departed members to their former
    owners, and ``departed`` has the reasons of the departures; ``story`` records the rebalance in progress.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.value: GroupValue | None = None
        self.members: dict[str, Member] = {}
        self.statics: dict[str, str] = {}
        self.owners: dict[Part, str] = {}
        self.underway: set[str] = set()
        self.subscriptions: dict[Subscription, int] = {}
        self.classics = 0
        self.stories: dict[int, StoryValue] = {}
        self.reasons: list[str] = []
        self.assigned_ms: int | None = None
        self.released: dict[Part, int] = {}
        self.unread_ms: dict[Part, int] = {}
        self.vacated: dict[Part, str] = {}
        self.departed: dict[str, str] = {}
        self.story: StoryValue | None = None

    @property
    def said(self) -> GroupValue:
        return self.value or GroupValue(0)

    @property
    def is_blank(self) -> bool:
        return self.value is None and not self.members and not self.stories

    @property
    def is_all_classic(self) -> bool:
        """Whether the group has members, which all use the classic protocol."""
        return 0 < self.classics == len(self.members)

    @property
    def state(self) -> GroupState:
        if self.value is None:
            return GroupState.DEAD
        if not self.members:
            return GroupState.EMPTY
        if self.value.target_epoch < self.value.epoch:
            return GroupState.ASSIGNING
        if self.reconciling():
            return GroupState.RECONCILING
        return GroupState.STABLE

    def reconciling(self) -> list[Member]:
        """Members that have not reached their targets, in order."""
        return [self.members[member_id] for member_id in sorted(self.underway)]

    def note(self, member: Member) -> None:
        """Update ``underway`` after a change of the member."""
        if member.is_blank or member.current.has_arrived(member.target, self.said.target_epoch):
            self.underway.discard(member.member_id)
        else:
            self.underway.add(member.member_id)

    def rebalances(self) -> list[StoryValue]:
        """The recorded rebalances, oldest first; the rebalance in progress has only the fields that are known
        already."""
        found = {story.number: story for story in self.stories.values()}
        if self.story is not None:
            found[self.story.number] = self.story
        return [found[number] for number in sorted(found)]


class GroupsState:
    """``has_lost_consumers``: groups that a member of the new protocol has left, perhaps at a former coordinator, until
    a tick has checked whether to convert these groups."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.has_lost_consumers: set[str] = set()

    def apply(self, key: Key, value: Value | None) -> None:
        """Apply a record. Raises CorruptLogError if the record contradicts another record."""
        group = self.groups.get(key.group_id)
        if group is None:
            if value is None:
                return
            group = self.groups[key.group_id] = Group(key.group_id)
        if key.kind == RecordKind.GROUP:
            assert value is None or isinstance(value, GroupValue)
            moved = value is None or value.target_epoch != group.said.target_epoch
            group.value = value
            for member in group.members.values() if moved else ():
                group.note(member)
        elif key.kind == RecordKind.STORY:
            _apply_story(group, int(key.member), value)
        else:
            _apply_member(group, key, value)
        if group.is_blank:
            del self.groups[key.group_id]


def _apply_story(group: Group, slot: int, value: Value | None) -> None:
    if value is None:
        group.stories.pop(slot, None)
    else:
        assert isinstance(value, StoryValue)
        group.stories[slot] = value


def _apply_member(group: Group, key: Key, value: Value | None) -> None:
    member = group.members.get(key.member)
    if member is None:
        if value is None:
            return
        member = group.members[key.member] = Member(key.member)
    if key.kind == RecordKind.MEMBER:
        assert value is None or isinstance(value, MemberValue)
        _say(group, member, value)
    elif key.kind == RecordKind.TARGET_ASSIGNMENT:
        assert value is None or isinstance(value, TargetValue)
        member.target = NOTHING if value is None else unpack(value.parts)
    else:
        assert value is None or isinstance(value, CurrentValue)
        _hold(group, member, value)
    group.note(member)
    if member.is_blank:
        del group.members[key.member]


def _say(group: Group, member: Member, value: MemberValue | None) -> None:
    before = member.value
    instance_id = before.instance_id if before is not None else None
    # Keep the instance id if another member has taken it over
    if instance_id is not None and group.statics.get(instance_id) == member.member_id:
        del group.statics[instance_id]
    if value is not None and value.instance_id is not None:
        group.statics[value.instance_id] = member.member_id
    _count(group, before, -1)
    _count(group, value, 1)
    member.value = value


def _count(group: Group, value: MemberValue | None, count: int) -> None:
    if value is not None:
        group.classics += count if value.classic is not None else 0
        said = value.subscription
        group.subscriptions[said] = group.subscriptions.get(said, 0) + count
        if not group.subscriptions[said]:
            del group.subscriptions[said]


def _hold(group: Group, member: Member, value: CurrentValue | None) -> None:
    for part in member.current.held:
        del group.owners[part]
    member.current = Current() if value is None else unpacked(value)
    for part in member.current.held:
        owner = group.owners.setdefault(part, member.member_id)
        if owner != member.member_id:
            raise CorruptLogError(
                f"group {group.group_id!r}: partition {part[1]} of topic {part[0].hex()} belongs to member {owner!r}, "
                f"and a record assigns it to {member.member_id!r} as well"
            )


def packed(current: Current) -> CurrentValue:
    """The record of a member's current assignment."""
    revoking = pack_epochs(current.revoking)
    return CurrentValue(
        current.epoch,
        current.first_epoch,
        current.revision,
        pack_epochs(current.assigned),
        tuple((topic_id, numbers) for topic_id, numbers, _ in revoking),
        tuple(epochs for _, _, epochs in revoking),
        pack(current.taken),
    )


def unpacked(value: CurrentValue) -> Current:
    """The current assignment from its record. Raises CorruptLogError if the numbers of epochs and of partitions
    differ."""
    revoking: Mapping[Part, int] = dict.fromkeys(unpack(value.revoking), value.epoch)
    if value.revoking_epochs:
        if len(value.revoking_epochs) != len(value.revoking):
            raise CorruptLogError(f"{len(value.revoking)} topics are listed with {len(value.revoking_epochs)} epochs")
        pairs = zip(value.revoking, value.revoking_epochs, strict=True)
        revoking = unpack_epochs(tuple((topic_id, numbers, epochs) for (topic_id, numbers), epochs in pairs))
    assigned = unpack_epochs(value.assigned)
    return Current(value.epoch, value.first_epoch, value.revision, assigned, revoking, unpack(value.taken))
