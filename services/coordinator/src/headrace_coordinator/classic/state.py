"""A classic group and its members. Pure.

from                   to                     when
---------------------  ---------------------  --------------------------------------------------------------
EMPTY                  PREPARING_REBALANCE    a member joins
PREPARING_REBALANCE    COMPLETING_REBALANCE   all members have joined, or the rebalance timeout is over
PREPARING_REBALANCE    EMPTY                  no member has joined
COMPLETING_REBALANCE   STABLE                 the leader has sent the assignment
COMPLETING_REBALANCE   PREPARING_REBALANCE    a member joins with other data, leaves, or is removed
STABLE                 PREPARING_REBALANCE    as above, or the leader joins again
any                    DEAD                   the group is deleted, or another type of group takes its id
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .messages import ClassicState, Joined, JoinedMember, Protocols
from .records import GroupRecord, MemberRecord

TRANSITIONS: dict[ClassicState, frozenset[ClassicState]] = {
    ClassicState.EMPTY: frozenset({ClassicState.PREPARING_REBALANCE, ClassicState.DEAD}),
    ClassicState.PREPARING_REBALANCE: frozenset(
        {ClassicState.COMPLETING_REBALANCE, ClassicState.EMPTY, ClassicState.DEAD}
    ),
    ClassicState.COMPLETING_REBALANCE: frozenset(
        {ClassicState.STABLE, ClassicState.PREPARING_REBALANCE, ClassicState.DEAD}
    ),
    ClassicState.STABLE: frozenset({ClassicState.PREPARING_REBALANCE, ClassicState.DEAD}),
    ClassicState.DEAD: frozenset(),
}


@dataclass(slots=True)
class Member:
    """``join_ticket``, ``sync_ticket``: ticket of the member's waiting JoinGroup or SyncGroup; None if no request
    waits. ``until_ms``: end of the session, on the steady clock. ``is_new``: the member has not yet been part of a
    generation."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    until_ms: int
    assignment: bytes = b""
    join_ticket: int | None = None
    sync_ticket: int | None = None
    is_new: bool = True

    @property
    def is_waiting(self) -> bool:
        return self.join_ticket is not None or self.sync_ticket is not None

    def metadata(self, protocol: str | None) -> bytes:
        """The member's data for a protocol (assignor); empty if the member does not support the protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class ClassicGroup:
    """``pending``: ids of members that have not joined yet (KIP-394), each with its expiry time. ``due_ms``: when the
    present phase of the rebalance ends. ``delay_left_ms``: how much longer the first rebalance may wait for more
    members; None in later rebalances. ``state_ms``: wall-clock time of the last change of the state."""

    group_id: str
    state: ClassicState = ClassicState.EMPTY
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_ms: int = -1
    has_record: bool = False
    members: dict[str, Member] = field(default_factory=dict)
    statics: dict[str, str] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    due_ms: int | None = None
    delay_left_ms: int | None = None
    has_new_members: bool = False

    def move_to(self, state: ClassicState, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state} -> {state}"
        self.state = state
        self.state_ms = now_ms

    def add(self, member: Member) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member.member_id
        self.pending.pop(member.member_id, None)
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None and self.statics.get(member.instance_id) == member.member_id:
            del self.statics[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def rename(self, member: Member, new_id: str) -> None:
        """Give the member id ``new_id`` to a static member whose process has restarted."""
        self.members = {new_id if known is member else name: known for name, known in self.members.items()}
        if self.leader == member.member_id:
            self.leader = new_id
        member.member_id = new_id
        assert member.instance_id is not None
        self.statics[member.instance_id] = new_id

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def common_protocols(self) -> set[str]:
        """The protocols that all members support."""
        sets = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*sets) if sets else set()

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols could join the group: its protocol type matches, and it has a protocol
        in common with all members."""
        if not self.members:
            return True
        return self.protocol_type == protocol_type and bool(self.common_protocols() & {name for name, _ in protocols})

    def choose_protocol(self) -> str:
        """Choose the protocol with the most votes. Each member votes for the first of its protocols that all members
        support."""
        common = self.common_protocols()
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self.members.values()
        )
        most = max(votes.values())
        return min(name for name, count in votes.items() if count == most)

    def joined(self, member: Member, *, skip_assignment: bool = False) -> Joined:
        """The answer to a member's join in the present generation."""
        members: tuple[JoinedMember, ...] = ()
        if member.member_id == self.leader:
            members = tuple(
                JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol))
                for each in self.members.values()
            )
        return Joined(
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol or "",
            self.leader or "",
            members,
            skip_assignment,
        )

    def record(self) -> GroupRecord:
        return GroupRecord(
            self.protocol_type,
            self.generation,
            self.protocol,
            self.leader,
            self.state_ms,
            tuple(
                MemberRecord(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol),
                    member.assignment,
                )
                for member in self.members.values()
            ),
        )

    @classmethod
    def of(cls, group_id: str, record: GroupRecord) -> ClassicGroup:
        """Restore a group from its record. The record has each member's data only for the chosen protocol."""
        group = cls(
            group_id,
            ClassicState.STABLE if record.members else ClassicState.EMPTY,
            record.protocol_type,
            record.generation,
            record.protocol,
            None,
            record.state_ms,
            True,
        )
        for each in record.members:
            group.add(
                Member(
                    each.member_id,
                    each.instance_id,
                    each.client_id,
                    each.client_host,
                    each.session_timeout_ms,
                    each.rebalance_timeout_ms,
                    ((record.protocol or "", each.subscription),),
                    0,
                    each.assignment,
                    is_new=False,
                )
            )
        group.leader = record.leader
        return group
