"""The classic groups of a shard, and the decisions on their requests. Pure.

    handle(request, now) -> Decision     raises and changes nothing, or decides and applies
    tick(now) -> Decision                ends phases of rebalances, removes silent members
    replay(key, value), loaded(now)      decisions of another coordinator, or before a restart

JoinGroup waits until the rebalance is complete, and SyncGroup waits for the leader's assignment; the answers are pushes
(messages.Answered). A member's session does not expire while a request of the member waits. Sessions, waiting requests
and the ids of members that have not joined are not in the log. After a change of coordinators, the members continue in
their generation.

Rules of Kafka that are easy to miss:

* The first rebalance of an empty group waits ``group.initial.rebalance.delay.ms`` for more members. If a member joins
  during the delay, the rebalance waits for another delay, in all at most for the rebalance timeout (KIP-134).
* A new dynamic member first gets a member id, and then joins with the id. A client that repeats its first JoinGroup
  therefore adds no member twice (KIP-394).
* The new process of a static member replaces the old process, which is fenced. A rebalance follows only if the member's
  subscription data have changed (KIP-345).
* A rebalance that times out removes the dynamic members that did not join; static members stay until their sessions
  end.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Iterable, Set
from typing import Any

from headrace_core.errors import (
    CorruptLogError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    HeadraceError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidCommitOffsetSizeError,
    InvalidRequestError,
    NonEmptyGroupError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from headrace_core.plurals import counted

from ..state_machine import ClockSet, Decision, ShardRecord
from ..steady_clock import SteadyClock
from .checks import check_group_id, check_join, rebalance_timeout_ms
from .consumer_protocol import CONSUMER, NamedPart, decode_assignment, subscribed_topics
from .messages import (
    Answered,
    ClassicHeartbeat,
    ClassicState,
    DescribedClassicGroup,
    DescribedClassicMember,
    Join,
    LeaveClassic,
    Left,
    MemberIdNeeded,
    Sync,
    Synced,
    Waiting,
)
from .records import GroupRecord, decode_key, decode_value, encode_key, encode_value
from .settings import ClassicSettings
from .state import ClassicGroup, Member

#: Milliseconds after which a new member that still waits for its first generation is removed, because its process may
#: have ended.
NEW_MEMBER_JOIN_MS = 300_000
TICK_GROUPS_MAX = 100  #: Maximum number of groups that one tick handles; the remaining groups are due at once.


class _Turn:
    """The records and answers of one decision."""

    __slots__ = ("answers", "now_ms", "records", "steady_ms")

    def __init__(self, now_ms: int, steady_ms: int) -> None:
        self.now_ms = now_ms
        self.steady_ms = steady_ms
        self.records: list[ShardRecord] = []
        self.answers: list[Answered] = []

    def write(self, group: ClassicGroup) -> None:
        group.has_record = True
        self.records.append(ShardRecord(encode_key(group.group_id), encode_value(group.record())))

    def erase(self, group: ClassicGroup) -> None:
        if group.has_record:
            group.has_record = False
            self.records.append(ShardRecord(encode_key(group.group_id), None))

    def answer_join(self, member: Member, outcome: object) -> None:
        if member.join_ticket is not None:
            self.answers.append(Answered(member.join_ticket, outcome))
            member.join_ticket = None

    def answer_sync(self, member: Member, outcome: object) -> None:
        if member.sync_ticket is not None:
            self.answers.append(Answered(member.sync_ticket, outcome))
            member.sync_ticket = None

    def decision(self, reply: object = None) -> Decision:
        return Decision(tuple(self.records), reply, tuple(self.answers))


class ClassicGroups:
    """All classic groups of one shard."""

    def __init__(self, settings: ClassicSettings | None = None) -> None:
        self._settings = settings or ClassicSettings()
        self._groups: dict[str, ClassicGroup] = {}
        self._clock = SteadyClock()
        self._heap: list[tuple[int, str]] = []
        self._scheduled: dict[str, int] = {}

    # -- the shard ----------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of kind CLASSIC_GROUP. Raises CorruptLogError, UnsupportedVersionError."""
        group_id = decode_key(key)
        if value is None:
            self._groups.pop(group_id, None)
        else:
            self._groups[group_id] = ClassicGroup.of(group_id, decode_value(value))

    def loaded(self, now_ms: int) -> None:
        """Called when the replay is complete: every member counts as having just sent a heartbeat. A group that has
        members and no leader was converted from the KIP-848 protocol, so its members must rebalance."""
        turn = self._turn(now_ms)
        for group in self._groups.values():
            for member in group.members.values():
                self._touch(turn, group, member)
            if group.members and group.leader is None:
                self._rebalance(turn, group)

    def handle(self, request: object, now_ms: int) -> Decision:
        """Decide a request. Raises the errors of the method that handles the request's type."""
        if isinstance(request, ClockSet):
            self._clock.was_set(request.by_ms)
            return Decision()
        return _RULES[type(request)](self, request, self._turn(now_ms))

    def handles(self, request: object) -> bool:
        """Whether the request belongs to the classic group protocol."""
        return type(request) in _RULES

    def next_due_ms(self) -> int | None:
        """Wall-clock time of the next tick at the latest; None if no work is due."""
        due_ms = self._next_due()
        return None if due_ms is None else self._clock.wall(due_ms)

    def tick(self, now_ms: int) -> Decision:
        """End rebalance phases that timed out, and remove silent members, in at most TICK_GROUPS_MAX groups."""
        turn = self._turn(now_ms)
        for _ in range(TICK_GROUPS_MAX):
            due_ms = self._next_due()
            if due_ms is None or due_ms > turn.steady_ms:
                break
            _, group_id = heapq.heappop(self._heap)
            del self._scheduled[group_id]
            group = self._groups.get(group_id)
            if group is not None:
                self._look_at(turn, group)
        return turn.decision()

    # -- queries ------------------------------------------------------------------------------------------------------

    def get(self, group_id: str) -> ClassicGroup | None:
        """The group with this id, if it has a record, members, or members about to join; otherwise None."""
        return self._groups.get(group_id)

    def group_ids(self) -> tuple[str, ...]:
        """Ids of all groups that have a record."""
        return tuple(group_id for group_id, group in self._groups.items() if group.has_record)

    def groups(self) -> Iterable[ClassicGroup]:
        return self._groups.values()

    def subscribed(self, group_id: str, topics: Set[str]) -> Set[str]:
        """Those of the topics to which a member of the group subscribes (KIP-496). If the members' subscriptions cannot
        be decoded, or if the members are no consumers, the group counts as subscribed to every topic."""
        group = self._groups.get(group_id)
        found = set[str]()
        if group is None or not group.members:
            return found
        if group.protocol_type != CONSUMER:
            return topics
        for member in group.members.values():
            for _, metadata in member.protocols[:1]:
                named = subscribed_topics(metadata)
                if named is None:
                    return topics
                found.update(topics & set(named))
        return found

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        *,
        in_transaction: bool = False,
    ) -> None:
        """Raise an error unless the member may commit offsets (Kafka: ClassicGroup.validateOffsetCommit). Raises
        UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError, RebalanceInProgressError.

        A member that has joined, and has no assignment yet, may commit in a transaction: for a producer of Kafka,
        RebalanceInProgressError is a fatal error."""
        group = self._groups[group_id]
        if generation < 0 and not group.members:
            return
        if generation < 0 and not member_id and instance_id is None:
            raise UnknownMemberIdError(
                f"group {group_id!r}: only members may commit while the group has members "
                f"({counted(len(group.members), 'member')}); stop the consumers first"
            )
        self._member(group, member_id, instance_id)
        _check_generation(group, generation)
        if group.state is ClassicState.COMPLETING_REBALANCE and not in_transaction:
            raise RebalanceInProgressError(
                f"group {group_id!r} is rebalancing; commit after the member has its assignment"
            )

    def committed(self, group_id: str, member_id: str, now_ms: int) -> None:
        """Called when a member has committed offsets: a commit counts as a heartbeat, as in Kafka."""
        group = self._groups[group_id]
        member = group.members.get(member_id)
        if member is not None:
            self._touch(self._turn(now_ms), group, member)

    def delete(self, group_id: str) -> Decision:
        """Delete the group. Raises NonEmptyGroupError and GroupIdNotFoundError."""
        group = self._groups.get(group_id)
        if group is None:
            raise GroupIdNotFoundError(f"group {group_id!r} does not exist")
        if group.members:
            raise NonEmptyGroupError(
                f"group {group_id!r} has {counted(len(group.members), 'member')}; stop them, then delete the group"
            )
        turn = _Turn(0, 0)
        turn.erase(group)
        group.move_to(ClassicState.DEAD, group.state_ms)
        del self._groups[group_id]
        return turn.decision()

    # -- a group changes its type -------------------------------------------------------------------------------------

    def begin(self, group_id: str, now_ms: int) -> Decision:
        """Write the record of a new group, which replaces an empty KIP-848 group and has no generation yet. Guard:
        without a record, nothing would say how long the group has been empty, and its committed offsets would expire as
        if their last commit had been the group's last sign of life."""
        group = self._groups[group_id]
        group.has_record = True
        record = GroupRecord(group.protocol_type, group.generation, None, None, now_ms, ())
        return Decision((ShardRecord(encode_key(group_id), encode_value(record)),))

    def take_over(self, group: ClassicGroup, now_ms: int) -> Decision:
        """Start the classic group ``group``, which replaces a KIP-848 group (migration.as_classic); its members
        rebalance."""
        turn = self._turn(now_ms)
        self._groups[group.group_id] = group
        for member in group.members.values():
            self._touch(turn, group, member)
        self._rebalance(turn, group)
        turn.write(group)
        return turn.decision()

    def hand_over(self, group_id: str, now_ms: int) -> Decision:
        """End a classic group whose members a KIP-848 group has adopted; members with a waiting request must join
        again."""
        turn = self._turn(now_ms)
        group = self._groups.pop(group_id)
        rebalancing = RebalanceInProgressError(f"group {group_id!r} is rebalancing; join again")
        for member in group.members.values():
            turn.answer_join(member, rebalancing)
            turn.answer_sync(member, rebalancing)
        turn.erase(group)
        group.move_to(ClassicState.DEAD, turn.now_ms)
        return turn.decision()

    # -- descriptions -------------------------------------------------------------------------------------------------

    def described(self, group_id: str) -> DescribedClassicGroup | None:
        group = self._groups.get(group_id)
        if group is None:
            return None
        return DescribedClassicGroup(
            group_id,
            group.state,
            group.generation,
            group.protocol_type,
            group.protocol or "",
            tuple(_described(group, member) for member in group.members.values()),
        )

    # -- joining ------------------------------------------------------------------------------------------------------

    def _join(self, request: Join, turn: _Turn) -> Decision:
        """Returns Waiting, Joined or MemberIdNeeded. Raises InvalidGroupIdError, InvalidSessionTimeoutError,
        InconsistentGroupProtocolError, UnknownMemberIdError, FencedInstanceIdError, GroupMaxSizeReachedError,
        InvalidRequestError."""
        check_join(request, self._settings)
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                raise UnknownMemberIdError(
                    f"group {request.group_id!r} has no member {request.member_id!r}; join again without a member id"
                )
            group = ClassicGroup(request.group_id, state_ms=turn.now_ms)
        if not group.supports(request.protocol_type, request.protocols):
            raise InconsistentGroupProtocolError(
                f"group {request.group_id!r} has protocols of type {group.protocol_type!r}, and its members support "
                f"{', '.join(sorted(group.common_protocols()))}; the joining member supports "
                f"{', '.join(name for name, _ in request.protocols)} of type {request.protocol_type!r}"
            )
        if request.member_id:
            return self._join_known(request, turn, group)
        if request.instance_id is not None and request.instance_id in group.statics:
            return self._replace(request, turn, group)
        self._check_size(group)
        if request.instance_id is None and request.needs_known_id:
            self._groups[group.group_id] = group
            group.pending[request.new_id] = turn.steady_ms + request.session_timeout_ms
            self._schedule(group.group_id, group.pending[request.new_id])
            return Decision(reply=MemberIdNeeded(request.new_id))
        self._groups[group.group_id] = group
        return self._add(request, turn, group, request.new_id)

    def _check_size(self, group: ClassicGroup) -> None:
        self._check_members(group)
        if len(group.pending) >= self._settings.pending_max:
            raise GroupMaxSizeReachedError(
                f"group {group.group_id!r} has {counted(len(group.pending), 'pending member')} (a pending member has "
                f"received a member id, and has not joined with it yet), and at most {self._settings.pending_max} are "
                "allowed; retry when they have joined, or when their session timeout has removed them"
            )

    def _check_members(self, group: ClassicGroup) -> None:
        """Raise GroupMaxSizeReachedError if the group is full. More members may have received member ids than the
        group has room for, so the check is repeated when they join."""
        if len(group.members) >= self._settings.max_size:
            raise GroupMaxSizeReachedError(
                f"group {group.group_id!r} has {counted(len(group.members), 'member')}, and the coordinator's "
                f"group.max.size is {self._settings.max_size}; stop a member, or raise group.max.size"
            )

    def _join_known(self, request: Join, turn: _Turn, group: ClassicGroup) -> Decision:
        if request.member_id in group.pending:
            self._check_members(group)
            if request.instance_id is not None:
                raise InvalidRequestError(
                    f"member {request.member_id!r} got its id without an instance id, but the request has the "
                    f"instance id {request.instance_id!r}"
                )
            return self._add(request, turn, group, request.member_id)
        member = self._member(group, request.member_id, request.instance_id)
        is_same = member.protocols == request.protocols
        if group.state is ClassicState.COMPLETING_REBALANCE and is_same:
            # The answer to the member's JoinGroup was lost, so send the answer again.
            self._touch(turn, group, member)
            return turn.decision(group.joined(member))
        if group.state is ClassicState.STABLE and is_same and group.leader != member.member_id:
            self._touch(turn, group, member)
            return turn.decision(group.joined(member))
        turn.answer_join(
            member,
            UnknownMemberIdError(
                f"member {member.member_id!r} has sent another JoinGroup, which replaces this request"
            ),
        )
        self._update(member, request)
        self._touch(turn, group, member)
        member.join_ticket = request.ticket
        self._rebalance(turn, group)
        return turn.decision(Waiting())

    def _add(self, request: Join, turn: _Turn, group: ClassicGroup, member_id: str) -> Decision:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            rebalance_timeout_ms(request),
            request.protocols,
            0,
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        group.add(member)
        member.until_ms = turn.steady_ms + NEW_MEMBER_JOIN_MS
        self._schedule(group.group_id, member.until_ms)
        member.join_ticket = request.ticket
        group.has_new_members = True
        self._rebalance(turn, group)
        return turn.decision(Waiting())

    def _replace(self, request: Join, turn: _Turn, group: ClassicGroup) -> Decision:
        """The new process of a static member replaces the member's old process (KIP-345)."""
        assert request.instance_id is not None
        old_id = group.statics[request.instance_id]
        member = group.members[old_id]
        fenced = FencedInstanceIdError(
            f"group {group.group_id!r}: instance id {request.instance_id!r} belongs to another process now"
        )
        old_leader, before = group.leader, member.metadata(group.protocol)
        protocol_before = group.protocol
        before_protocols = member.protocols
        turn.answer_join(member, fenced)
        turn.answer_sync(member, fenced)
        group.rename(member, request.new_id)
        self._update(member, request)
        self._touch(turn, group, member)
        is_same = group.choose_protocol() == protocol_before and (
            member.protocols == before_protocols or member.metadata(protocol_before) == before
        )
        if group.state is ClassicState.STABLE and is_same:
            turn.write(group)
            joined = group.joined(member)
            if old_leader == old_id and request.can_skip_assignment:
                return turn.decision(joined._replace(skip_assignment=True))
            # Do not name this member as the leader: a client without KIP-814 that learns that it is the leader would
            # compute the assignment again.
            return turn.decision(joined._replace(leader=old_leader or "", members=()))
        member.join_ticket = request.ticket
        self._rebalance(turn, group)
        return turn.decision(Waiting())

    def _update(self, member: Member, request: Join) -> None:
        member.protocols = request.protocols
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms(request)
        member.client_id, member.client_host = request.client_id, request.client_host

    # -- rebalances ---------------------------------------------------------------------------------------------------

    def _rebalance(self, turn: _Turn, group: ClassicGroup) -> None:
        """Begin a rebalance, or continue the rebalance in progress."""
        if group.state is not ClassicState.PREPARING_REBALANCE:
            in_progress = RebalanceInProgressError(f"group {group.group_id!r} is rebalancing; join again")
            for member in group.members.values():
                turn.answer_sync(member, in_progress)
            is_first = group.state is ClassicState.EMPTY
            group.move_to(ClassicState.PREPARING_REBALANCE, turn.now_ms)
            wait_ms = group.rebalance_timeout_ms
            group.delay_left_ms = None
            if is_first and self._settings.initial_delay_ms:
                delay_ms = min(self._settings.initial_delay_ms, wait_ms)
                group.delay_left_ms, wait_ms = wait_ms - delay_ms, delay_ms
            group.has_new_members = False
            group.due_ms = turn.steady_ms + wait_ms
            self._schedule(group.group_id, group.due_ms)
        self._complete_if_all_joined(turn, group)

    def _complete_if_all_joined(self, turn: _Turn, group: ClassicGroup) -> None:
        """Complete the join phase if all members have joined. In the first rebalance of a group, the join phase lasts
        until the initial rebalance delay is over, even if all members have joined."""
        is_complete = all(member.join_ticket is not None for member in group.members.values()) and not group.pending
        if group.state is ClassicState.PREPARING_REBALANCE and is_complete and group.delay_left_ms is None:
            self._complete_join(turn, group)

    def _join_is_over(self, turn: _Turn, group: ClassicGroup) -> None:
        """Called when the join phase has timed out, or when the initial rebalance delay has ended."""
        if group.delay_left_ms and group.has_new_members:
            delay_ms = min(self._settings.initial_delay_ms, group.delay_left_ms)
            group.delay_left_ms -= delay_ms
            group.has_new_members = False
            group.due_ms = turn.steady_ms + delay_ms
            self._schedule(group.group_id, group.due_ms)
            return
        self._complete_join(turn, group)

    def _complete_join(self, turn: _Turn, group: ClassicGroup) -> None:
        """Begin the next generation with the members that have joined, and with all static members."""
        late = [member for member in group.members.values() if member.join_ticket is None]
        for member in late:
            if member.instance_id is None:
                group.remove(member)
        group.delay_left_ms = group.due_ms = None
        joined = [member for member in group.members.values() if member.join_ticket is not None]
        if group.members and not joined:  # only static members are left, none of which has joined: wait for them
            group.due_ms = turn.steady_ms + max(group.rebalance_timeout_ms, 1)
            self._schedule(group.group_id, group.due_ms)
            return
        group.generation += 1
        if not group.members:
            group.protocol = group.leader = None
            group.move_to(ClassicState.EMPTY, turn.now_ms)
            turn.write(group)
            return
        if group.leader not in {member.member_id for member in joined}:
            group.leader = joined[0].member_id
        group.protocol = group.choose_protocol()
        group.move_to(ClassicState.COMPLETING_REBALANCE, turn.now_ms)
        for member in joined:
            member.is_new = False
            turn.answer_join(member, group.joined(member))
            self._touch(turn, group, member)
        group.due_ms = turn.steady_ms + group.rebalance_timeout_ms
        self._schedule(group.group_id, group.due_ms)

    # -- syncing ------------------------------------------------------------------------------------------------------

    def _sync(self, request: Sync, turn: _Turn) -> Decision:
        """Returns Waiting or Synced. Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError,
        InconsistentGroupProtocolError, RebalanceInProgressError, InvalidCommitOffsetSizeError (the assignments are too
        large for one record)."""
        check_group_id(request.group_id, self._settings.name_bytes_max)
        group = self._known(request.group_id, request.member_id)
        member = self._member(group, request.member_id, request.instance_id)
        _check_generation(group, request.generation)
        for said, known, what in (
            (request.protocol_type, group.protocol_type, "type"),
            (request.protocol, group.protocol or "", "name"),
        ):
            if said is not None and said != known:
                raise InconsistentGroupProtocolError(
                    f"group {group.group_id!r} has a protocol of {what} {known!r}, but the request names {said!r}"
                )
        if group.state is ClassicState.PREPARING_REBALANCE:
            self._touch(turn, group, member)
            raise RebalanceInProgressError(f"group {group.group_id!r} is rebalancing; join again")
        if group.state is ClassicState.STABLE:
            self._touch(turn, group, member)
            return turn.decision(_synced(group, member))
        if member.member_id == group.leader:
            self._assign(request, turn, group)
            return turn.decision(_synced(group, member))
        turn.answer_sync(
            member,
            RebalanceInProgressError(
                f"member {member.member_id!r} has sent another SyncGroup, which replaces this request"
            ),
        )
        member.sync_ticket = request.ticket
        return turn.decision(Waiting())

    def _assign(self, request: Sync, turn: _Turn, group: ClassicGroup) -> None:
        """Store the assignment that the leader has sent; the group becomes STABLE."""
        assignments = dict(request.assignments)
        former = {member.member_id: member.assignment for member in group.members.values()}
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        if (size := len(encode_value(group.record()))) > self._settings.record_bytes_max:
            for member in group.members.values():
                member.assignment = former[member.member_id]
            raise InvalidCommitOffsetSizeError(
                f"group {group.group_id!r}: the members' data and assignments have {size} bytes, at most "
                f"{self._settings.record_bytes_max} fit into the group's record"
            )
        group.due_ms = None
        group.move_to(ClassicState.STABLE, turn.now_ms)
        turn.write(group)
        for member in group.members.values():
            self._touch(turn, group, member)
            turn.answer_sync(member, _synced(group, member))

    # -- staying and leaving ------------------------------------------------------------------------------------------

    def _heartbeat(self, request: ClassicHeartbeat, turn: _Turn) -> Decision:
        """Raises UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError, RebalanceInProgressError."""
        check_group_id(request.group_id, self._settings.name_bytes_max)
        group = self._known(request.group_id, request.member_id)
        member = self._member(group, request.member_id, request.instance_id)
        _check_generation(group, request.generation)
        self._touch(turn, group, member)
        if group.state is ClassicState.PREPARING_REBALANCE:
            raise RebalanceInProgressError(f"group {group.group_id!r} is rebalancing; join again")
        return Decision()

    def _leave(self, request: LeaveClassic, turn: _Turn) -> Decision:
        """Returns Left. Raises InvalidGroupIdError, UnknownMemberIdError if the group does not exist."""
        check_group_id(request.group_id, self._settings.name_bytes_max)
        group = self._groups.get(request.group_id)
        if group is None:
            raise UnknownMemberIdError(f"group {request.group_id!r} does not exist")
        errors: list[HeadraceError | None] = []
        gone = []
        for each in request.members:
            try:
                if each.member_id in group.pending:
                    del group.pending[each.member_id]
                    errors.append(None)
                    continue
                member_id = each.member_id
                if not member_id and each.instance_id is not None:
                    member_id = group.statics.get(each.instance_id, "")
                member = self._member(group, member_id, each.instance_id)
                if member not in gone:
                    gone.append(member)
                errors.append(None)
            except HeadraceError as error:
                errors.append(error.with_traceback(None))
        self._remove(turn, group, gone)
        return turn.decision(Left(tuple(errors)))

    def _remove(self, turn: _Turn, group: ClassicGroup, gone: Iterable[Member]) -> None:
        """Remove members; the remaining members rebalance."""
        removed = False
        for member in gone:
            unknown = UnknownMemberIdError(f"member {member.member_id!r} left group {group.group_id!r}, or was removed")
            turn.answer_join(member, unknown)
            turn.answer_sync(member, unknown)
            group.remove(member)
            removed = True
        if removed and group.state in (ClassicState.STABLE, ClassicState.COMPLETING_REBALANCE):
            self._rebalance(turn, group)
        elif group.state is ClassicState.PREPARING_REBALANCE:
            self._complete_if_all_joined(turn, group)
        self._forget_if_nothing(group)

    def _forget_if_nothing(self, group: ClassicGroup) -> None:
        """Remove a group that never had a generation and has no members left."""
        if not (group.has_record or group.members or group.pending) and group.state is ClassicState.EMPTY:
            self._groups.pop(group.group_id, None)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _look_at(self, turn: _Turn, group: ClassicGroup) -> None:
        """Apply the expired timeouts of one group."""
        now_ms = turn.steady_ms
        for member_id in [each for each, until_ms in group.pending.items() if until_ms <= now_ms]:
            del group.pending[member_id]
        gone = [
            member
            for member in group.members.values()
            if member.until_ms <= now_ms and (member.is_new or not member.is_waiting)
        ]
        self._remove(turn, group, gone)
        if group.due_ms is not None and group.due_ms <= now_ms:
            if group.state is ClassicState.PREPARING_REBALANCE:
                self._join_is_over(turn, group)
            elif group.state is ClassicState.COMPLETING_REBALANCE:
                self._sync_is_over(turn, group)
        due = [*group.pending.values(), *(member.until_ms for member in group.members.values() if _expires(member))]
        if group.due_ms is not None:
            due.append(group.due_ms)
        if due and group.group_id in self._groups:
            self._schedule(group.group_id, max(min(due), now_ms + 1))

    def _sync_is_over(self, turn: _Turn, group: ClassicGroup) -> None:
        """Remove the members that sent no SyncGroup within the rebalance timeout; the remaining members rebalance."""
        group.due_ms = None
        late = [member for member in group.members.values() if member.sync_ticket is None]
        self._remove(turn, group, late)
        if not late:  # every member has sent SyncGroup, but the assignment is still missing
            self._rebalance(turn, group)

    def _touch(self, turn: _Turn, group: ClassicGroup, member: Member) -> None:
        if not member.is_new:
            member.until_ms = turn.steady_ms + member.session_timeout_ms
            self._schedule(group.group_id, member.until_ms)

    def _schedule(self, group_id: str, due_ms: int) -> None:
        known = self._scheduled.get(group_id)
        if known is None or due_ms < known:
            self._scheduled[group_id] = due_ms
            heapq.heappush(self._heap, (due_ms, group_id))

    def _next_due(self) -> int | None:
        heap, scheduled = self._heap, self._scheduled
        while heap and scheduled.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def _turn(self, now_ms: int) -> _Turn:
        return _Turn(now_ms, self._clock.read(now_ms, self._next_due()))

    # -- checks -------------------------------------------------------------------------------------------------------

    def _known(self, group_id: str, member_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError(
                f"group {group_id!r} has no member {member_id!r}; join again without a member id"
            )
        return group

    def _member(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> Member:
        """Raises FencedInstanceIdError, UnknownMemberIdError."""
        if instance_id is not None:
            holder = group.statics.get(instance_id)
            if holder is None:
                raise UnknownMemberIdError(f"group {group.group_id!r} has no member with instance id {instance_id!r}")
            if holder != member_id:
                raise FencedInstanceIdError(
                    f"group {group.group_id!r}: instance id {instance_id!r} belongs to member {holder!r}, not to "
                    f"{member_id!r}: two processes have the same group.instance.id"
                )
        member = group.members.get(member_id)
        if member is None:
            raise UnknownMemberIdError(
                f"group {group.group_id!r} has no member {member_id!r}; join again without a member id"
            )
        return member


def _described(group: ClassicGroup, member: Member) -> DescribedClassicMember:
    metadata = member.metadata(group.protocol)
    assignment = member.assignment if group.state is ClassicState.STABLE else b""
    topics: tuple[str, ...] = ()
    assigned: tuple[NamedPart, ...] = ()
    if group.protocol_type == CONSUMER:
        topics = subscribed_topics(metadata) or ()
        with contextlib.suppress(CorruptLogError):  # a custom assignor may use another format
            assigned = decode_assignment(assignment).parts
    return DescribedClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        metadata,
        assignment,
        topics,
        assigned,
    )


def _check_generation(group: ClassicGroup, generation: int) -> None:
    if generation != group.generation:
        raise IllegalGenerationError(
            f"group {group.group_id!r} is in generation {group.generation}, but the request has {generation}; "
            "join again"
        )


def _expires(member: Member) -> bool:
    return member.is_new or not member.is_waiting


def _synced(group: ClassicGroup, member: Member) -> Synced:
    return Synced(group.protocol_type, group.protocol or "", member.assignment)


_RULES: dict[type, Callable[[ClassicGroups, Any, _Turn], Decision]] = {
    Join: ClassicGroups._join,
    Sync: ClassicGroups._sync,
    ClassicHeartbeat: ClassicGroups._heartbeat,
    LeaveClassic: ClassicGroups._leave,
}
