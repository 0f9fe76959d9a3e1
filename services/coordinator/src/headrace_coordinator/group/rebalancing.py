"""Follow up a change in a group (KIP-848): start a new group epoch and target assignment, and advance every member
towards its target.

    something changed ---> group epoch + 1 ---> target of that epoch ---> members advance (reconciling.py), pushes

By default the target is computed at once. If the last target is too recent, the new target is computed a little later,
for all changes until then (KIP-1263). Because the new target is delayed, a storm of joins costs few rebalances. The
target is computed at once after a change that leaves partitions without a reader.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from ..assignors import ASSIGNORS, MemberSpec
from ..state_machine import Push, RecordKind
from . import stories
from .messages import HeartbeatReply, Part, Parts
from .reconciling import advance, without_unread
from .records import GroupValue, Key, MemberValue
from .settings import GroupSettings
from .state import Group, Member
from .subscriptions import Topics
from .timing import NO_STREAM, Agenda
from .turn import Turn, reads_nothing

THE_GROUP = ""  #: The value that stands for the whole group in the queue of checks, in place of a member's id.


class Rebalancing:
    def __init__(self, settings: GroupSettings, topics: Topics, agenda: Agenda) -> None:
        self._settings = settings
        self._topics = topics
        self._agenda = agenda
        self.session_timeouts_ms: dict[str, int] = {}
        self.heartbeat_intervals_ms: dict[str, int] = {}

    def subscribed_by(self, member: Member) -> frozenset[bytes]:
        return self._topics.resolve(member.said.subscription)

    def subscribed(self, group: Group) -> frozenset[bytes]:
        return frozenset().union(*map(self._topics.resolve, group.subscriptions))

    def describe(self, turn: Turn, group: Group, member: Member, after: MemberValue) -> list[str]:
        """Write the member's new properties ``after``; returns the reasons for a new target, if any."""
        before = member.said
        if after == before:
            return []
        subscribed = self.subscribed_by(member)
        turn.write(Key(RecordKind.MEMBER, group.group_id, member.member_id), after)
        reasons = []
        if self.subscribed_by(member) != subscribed:
            reasons.append(f"{named(member)} subscribes to other topics")
        if after.assignor != before.assignor:
            reasons.append(f"{named(member)} prefers another assignor")
        if after.rack != before.rack:
            reasons.append(f"{named(member)} is in another rack")
        return reasons

    def settle(
        self,
        turn: Turn,
        group: Group,
        *,
        reasons: Collection[str] = (),
        urgent: bool = False,
        asking: Member | None = None,
        owned: Parts | None = None,
        reads: Parts | None = None,
    ) -> None:
        """Start a new target assignment if there is a reason, and advance all members. ``reasons``: the reasons for a
        new target; if empty, the members only advance towards the present target. ``urgent``: some partitions have no
        reader. ``asking``: the member whose request gets an answer, so that it needs no push. ``owned``: the partitions
        that the member ``asking`` reads, or None if its report is outdated. ``reads``: all partitions that ``asking``
        reads, if ``asking`` has just joined; otherwise None."""
        value = group.said
        if reasons:
            group.reasons.extend(reasons)
            value = msgspec.structs.replace(
                value,
                epoch=value.epoch + 1,
                topics_digest=self._topics.digest(self.subscribed(group)),
                empty_since_ms=-1 if group.members else turn.now_ms,
            )
        begins = value.target_epoch < value.epoch and self._may_assign(turn, group, value, urgent)
        if begins:
            self._assign(turn, group, value)
        elif value != group.value:
            turn.write(Key(RecordKind.GROUP, group.group_id), value)
        self._advance_all(turn, group, asking, owned, reads)
        stories.go_on(turn, group, began=begins)

    def _may_assign(self, turn: Turn, group: Group, value: GroupValue, urgent: bool) -> bool:
        interval_ms = self._settings.assignment_interval_ms
        if value.target_epoch == 0 or not group.members or group.assigned_ms is None:
            return True
        if turn.steady_ms - group.assigned_ms >= interval_ms:
            return True
        if urgent and len(group.members) * max(1, len(group.owners)) <= self._settings.assignment_at_once_max:
            return True
        self._agenda.put((group.group_id, THE_GROUP), group.assigned_ms + interval_ms)
        return False

    def _assign(self, turn: Turn, group: Group, value: GroupValue) -> None:
        assignor = self._assignor(group)
        specs = {
            member_id: MemberSpec(
                self.subscribed_by(member), member.target, member.said.rack or None, member.said.instance_id
            )
            for member_id, member in group.members.items()
        }
        topics = self._topics.specs(self.subscribed(group))
        before: dict[Part, str] = dict(group.vacated)
        before.update((part, member.member_id) for member in group.members.values() for part in member.target)
        targets = ASSIGNORS[assignor](specs, topics)
        after = {part: member_id for member_id, parts in targets.items() for part in parts}
        value = msgspec.structs.replace(
            value, target_epoch=value.epoch, assignor=assignor, rebalances=value.rebalances + 1
        )
        turn.write(Key(RecordKind.GROUP, group.group_id), value)
        for member_id in sorted(targets):
            turn.aim(group, group.members[member_id], targets[member_id])
        stories.begin(turn, group, before, after, self._topics.names)
        group.assigned_ms = turn.steady_ms

    def _assignor(self, group: Group) -> str:
        """The assignor that most members prefer. Among equally preferred assignors, or without a preference, the result
        is the first assignor in the coordinator's list."""
        wanted = Counter(member.said.assignor for member in group.members.values() if member.said.assignor)
        return max(self._settings.assignors, key=lambda name: wanted[name])

    def _advance_all(
        self, turn: Turn, group: Group, asking: Member | None, owned: Parts | None, reads: Parts | None
    ) -> None:
        # First, members that certainly read no partition lose the partitions outside of their target assignment. Then
        # the member that sent the request gets free partitions, and then all other members get free partitions.
        waiting = group.reconciling()
        waiting.sort(key=lambda member: (not reads_nothing(member, turn.owned_ms), member is not asking))
        for member in waiting:
            self._advance(
                turn,
                group,
                member,
                owned if member is asking else None,
                reads if member is asking else None,
                is_asking=member is asking,
            )

    def _advance(
        self,
        turn: Turn,
        group: Group,
        member: Member,
        owned: Parts | None,
        reads: Parts | None,
        *,
        is_asking: bool,
    ) -> None:
        before = member.current

        def is_free(part: Part) -> bool:
            return group.owners.get(part, member.member_id) == member.member_id

        current, target_epoch = before, group.said.target_epoch
        idle = reads_nothing(member, turn.owned_ms)
        if not (idle or is_asking or member.session.connection > NO_STREAM):
            # the member's epoch would be ahead of the epoch in its commits, because no push can announce the new epoch
            return
        if idle:
            current = advance(current, member.target, target_epoch, is_free=is_free, reads_nothing=True)
        else:
            if reads is not None:
                current = without_unread(current, member.target, reads)
            current = advance(current, member.target, target_epoch, is_free=is_free, owned=owned)
        if current == before:
            return
        turn.hold(group, member, current)
        self.watch(group, member)
        # A member whose assignment stays the same needs no push. The answer to the member's next heartbeat has the new
        # epoch, and until then the member may use the old epoch. In a large group most members keep their assignment.
        is_changed = (current.revision, current.revoking) != (before.revision, before.revoking)
        if is_changed and member.session.connected and not is_asking:
            reply = self.reply_to(group, member, with_assignment=current.revision != before.revision)
            turn.pushes.append(Push(group.group_id, member.member_id, reply))

    def reply_to(self, group: Group, member: Member, *, with_assignment: bool) -> HeartbeatReply:
        current = member.current
        assignment = frozenset(current.assigned)
        names = self._topics.names
        return HeartbeatReply(
            member.member_id,
            current.epoch,
            self.heartbeat_interval_ms(group.group_id),
            self.session_timeout_ms(group.group_id),
            self._settings.connection_grace_ms,
            current.revision,
            assignment if with_assignment else None,
            {topic_id: names[topic_id] for topic_id, _ in assignment if topic_id in names} if with_assignment else {},
        )

    def session_timeout_ms(self, group_id: str) -> int:
        return self.session_timeouts_ms.get(group_id, self._settings.session_timeout_ms)

    def session_timeout_of(self, group: Group, member: Member) -> int:
        """The session timeout of the member; a member of the classic protocol chooses its own session timeout."""
        classic = member.said.classic
        return self.session_timeout_ms(group.group_id) if classic is None else classic.session_timeout_ms

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self.heartbeat_intervals_ms.get(group_id, self._settings.heartbeat_interval_ms)

    def watch(self, group: Group, member: Member) -> None:
        """Enter the member into the queue of checks, for the earliest time at which the member may be late."""
        session = member.session
        due_ms = session.last_contact_ms + self.session_timeout_of(group, member)
        if session.broken_ms is not None:
            due_ms = min(due_ms, session.broken_ms + session.grace_ms)
        if session.late_ms is not None and session.connected:
            due_ms = min(due_ms, session.late_ms)
        for by_ms in (session.join_by_ms, session.sync_by_ms):
            if by_ms is not None:
                due_ms = min(due_ms, by_ms)
        self._agenda.put((group.group_id, member.member_id), due_ms)


def named(member: Member) -> str:
    """The name of a member in messages for operators, with the client id, which is easier to recognize than a UUID."""
    said = member.said
    names = [f"member {member.member_id}"]
    if said.instance_id:
        names.append(f"instance {said.instance_id}")
    if said.client_id:
        names.append(f"client {said.client_id}")
    return names[0] if len(names) == 1 else f"{names[0]} ({', '.join(names[1:])})"
