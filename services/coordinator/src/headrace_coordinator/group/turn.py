"""A decision in progress; each of its records is applied at once, by the function that also replays records."""

from __future__ import annotations

from ..state_machine import Decision, Push, RecordKind, ShardRecord
from .messages import AWAY_EPOCH, MemberRemoved, RemovalReason
from .reconciling import Current, begun_anew
from .records import Key, TargetValue, Value, encode_key, encode_value, pack
from .state import Group, GroupsState, Member, packed

#: The coordinator writes a group's decision of up to ATOMIC_BYTES_MAX bytes whole or not at all. The coordinator writes
#: a decision above ATOMIC_BYTES_MAX in parts, so after a crash the log may have only the first parts. Each part of a
#: group's decision is valid without the other parts, because a decision releases partitions before it assigns them. A
#: coordinator that replays an incomplete decision continues the rebalance from the replayed state.
ATOMIC_BYTES_MAX = 256 * 1024
#: Maximum number of former members that a group remembers; their requests are answered with the reason of their
#: removal.
DEPARTED_MAX = 64


class Turn:
    """``now_ms``: wall-clock time, for records. ``steady_ms``: steady time, for timeouts (steady_clock.SteadyClock).
    ``owned_ms``: steady time up to the last proof of ownership (timing.Ownership), for removals."""

    def __init__(self, state: GroupsState, now_ms: int, steady_ms: int, owned_ms: int | None = None) -> None:
        self.state = state
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.owned_ms = steady_ms if owned_ms is None else owned_ms
        self.records: list[ShardRecord] = []
        self.pushes: list[Push] = []
        self._bytes = 0

    def write(self, key: Key, value: Value | None) -> None:
        self.state.apply(key, value)
        record = ShardRecord(encode_key(key), None if value is None else encode_value(value))
        self._bytes += len(record.key) + len(record.value or b"")
        self.records.append(record)

    def decision(self, reply: object = None) -> Decision:
        return Decision(tuple(self.records), reply, tuple(self.pushes), is_atomic=self._bytes <= ATOMIC_BYTES_MAX)

    def hold(self, group: Group, member: Member, current: Current) -> None:
        """Set the member's current assignment. Partitions that the member loses have no reader from now on."""
        before = member.current
        released = before.held - current.held
        self.write(
            Key(RecordKind.CURRENT_ASSIGNMENT, group.group_id, member.member_id),
            packed(current),
        )
        for part in released:
            group.released.setdefault(part, self.steady_ms)
        if not current.unreleased:
            member.session.has_let_go()
        # The rebalance timeout starts again with each new revocation, even if the member has not received the former
        # revocation yet.
        elif not current.unreleased <= before.unreleased:
            member.session.has_to_let_go(self.steady_ms)

    def aim(self, group: Group, member: Member, target: frozenset[tuple[bytes, int]]) -> None:
        """Set the member's target assignment."""
        if target != member.target:
            self.write(
                Key(RecordKind.TARGET_ASSIGNMENT, group.group_id, member.member_id),
                TargetValue(pack(target)) if target else None,
            )

    def remove(self, group: Group, member: Member, reason: RemovalReason, error: str) -> None:
        """Remove the member: its records are deleted, and its partitions become free."""
        session = member.session
        since = self.steady_ms
        if reason in (RemovalReason.SESSION, RemovalReason.CONNECTION):
            since = session.last_contact_ms if session.broken_ms is None else session.broken_ms
        for part in member.current.held:
            group.released.setdefault(part, since)
        group.vacated.update(dict.fromkeys(member.target, member.member_id))
        if member.said.classic is None:
            self.state.has_lost_consumers.add(group.group_id)
        self.forget(group, member)
        if len(group.departed) >= DEPARTED_MAX:
            del group.departed[next(iter(group.departed))]
        group.departed[member.member_id] = reason.value
        if session.connected and reason is not RemovalReason.LEFT:
            self.pushes.append(
                Push(group.group_id, member.member_id, MemberRemoved(member.member_id, error, reason.value))
            )

    def replace(self, group: Group, holder: Member, member_id: str) -> Member:
        """Give a static member's current and target assignment to the process that replaces it, without a rebalance."""
        said, target, current = holder.said, holder.target, holder.current
        self.remove(group, holder, RemovalReason.REPLACED, "FENCED_INSTANCE_ID")
        for part in target:
            group.vacated.pop(part, None)
        self.write(Key(RecordKind.MEMBER, group.group_id, member_id), said)
        member = group.members[member_id]
        self.aim(group, member, target)
        self.hold(group, member, begun_anew(current))
        return member

    def forget(self, group: Group, member: Member) -> None:
        """Write tombstones for all records of the member."""
        for kind, is_there in (
            (RecordKind.CURRENT_ASSIGNMENT, member.current != Current()),
            (RecordKind.TARGET_ASSIGNMENT, bool(member.target)),
            (RecordKind.MEMBER, member.value is not None),
        ):
            if is_there:
                self.write(Key(kind, group.group_id, member.member_id), None)


def reads_nothing(member: Member, owned_ms: int) -> bool:
    """Whether the member certainly reads no partition now, because it left to return later, or was disconnected for the
    grace period."""
    return member.current.epoch == AWAY_EPOCH or member.session.is_lost(owned_ms)
