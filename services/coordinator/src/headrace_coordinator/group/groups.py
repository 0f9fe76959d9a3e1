"""The groups of a shard, and the decisions on their requests (GroupStateMachine). Pure.

    handle(request, now) -> Decision     raises and changes nothing, or decides and applies
    tick(now) -> Decision                removes silent members; makes delayed targets
    replay(key, value), loaded(now)      decisions of another coordinator, or before a restart

A member is connected by a stream, on which it sends heartbeats (messages.py). ``checks.py`` checks requests, and
``rebalancing.py`` computes new targets after a change. ``reconciling.py`` moves members to their target assignments,
and ``timing.py`` finds silent members.

Not obvious:

* A static member (KIP-345) keeps its assignment when its process restarts. The new process of a static member has
  another member id and the same instance id, and takes over without a rebalance. The new process may take over if the
  member's old process announced its return (epoch -2), or was disconnected for the grace period. Before the old process
  has announced its return, or its grace period has ended, no other process can take over the instance id.
* A dynamic member whose connection is broken for the grace period is removed, because a process that ends closes its
  connections. Instead of a grace period, Kafka waits for the session timeout of 45 s. Until the grace period of a
  member is over, no other member gets its partitions.
* A coordinator removes no member because of the coordinator's own pause (SteadyClock), nor right after the
  coordinator became the shard's owner. A coordinator also removes no member while it does not know whether another
  coordinator owns the shard (timing.Ownership).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import Any

import msgspec

from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    HeadraceError,
    IllegalGenerationError,
    InvalidRequestError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from headrace_core.plurals import counted

from ..classic.messages import ClassicHeartbeat, Join, LeaveClassic, Sync
from ..classic.settings import ClassicSettings
from ..classic.state import ClassicGroup
from ..state_machine import ClockSet, Decision, OwnershipAsked, OwnershipProven, RecordKind
from ..steady_clock import SteadyClock
from . import checks, migration, stories
from .classic_members import ClassicMembers
from .messages import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    DescribedGroup,
    DescribedMember,
    DescribeGroup,
    Disconnected,
    ExplainGroup,
    GroupConfigChanged,
    Heartbeat,
    Leave,
    LeaveReply,
    ListedGroup,
    ListGroups,
    MembersRemoved,
    RemovalReason,
    RemoveMembers,
    TopicsChanged,
)
from .rebalancing import THE_GROUP, Rebalancing, named
from .reconciling import NOTHING, acknowledged, begun_anew, gone_away
from .records import GroupValue, Key, MemberValue, decode_key, decode_value
from .settings import GroupSettings
from .state import Group, GroupsState, Member
from .subscriptions import Subscription, Topics
from .timing import NO_STREAM, Agenda, Ownership, Session
from .turn import Turn

#: Number of records after which a tick stops before the next group; the remaining groups are due at once.
TICK_RECORDS_MAX = 1_000

#: Maximum bytes of a record's key in addition to the texts in the key.
_KEY_BYTES = 8

_FIELDS = (
    "rack",
    "client_id",
    "client_host",
    "rebalance_timeout_ms",
    "topics",
    "topic_regex",
    "assignor",
    "principal",
    "principal_host",
)


class Groups:
    """All consumer groups of one shard. ``awaits_proof``: remove a member only after the runtime has proven that this
    coordinator owned the shard (OwnershipAsked, OwnershipProven)."""

    def __init__(
        self,
        settings: GroupSettings | None = None,
        classic: ClassicSettings | None = None,
        *,
        awaits_proof: bool = False,
    ) -> None:
        self._settings = settings or GroupSettings()
        self._state = GroupsState()
        self._topics = Topics()
        self._agenda = Agenda()
        self._clock = SteadyClock()
        self._ownership = Ownership() if awaits_proof else None
        self._rebalancing = Rebalancing(self._settings, self._topics, self._agenda)
        self._classic_members = ClassicMembers(
            self._state, self._settings, classic or ClassicSettings(), self._topics, self._rebalancing, self._remove
        )
        #: Groups whose target assignment this coordinator must check, because another process computed the target.
        self._unseen: set[str] = set()
        #: Groups with a pattern subscription that matches other topics than before, because the ACLs have changed.
        self._other_rights: set[str] = set()

    def replay(self, key: bytes, value: bytes | None, timestamp_ms: int) -> None:
        """Apply a record of one of the kinds that groups use. Raises CorruptLogError, UnsupportedVersionError."""
        where = decode_key(key)
        self._state.apply(where, None if value is None else decode_value(where.kind, value))

    def loaded(self, now_ms: int) -> Decision:
        """Called when the replay is complete: every member counts as having just sent a heartbeat. ``loaded`` also
        removes members without a MEMBER record, which an interrupted decision can leave in the log."""
        turn = self._turn(now_ms)
        if self._ownership is not None:  # before the replay ended, no member could be late
            self._ownership.proven_ms = turn.owned_ms = turn.steady_ms
        for group in list(self._state.groups.values()):
            for member in list(group.members.values()):
                if member.value is None:
                    turn.forget(group, member)
                    continue
                member.session = Session(turn.steady_ms)
                if member.current.unreleased:
                    member.session.has_to_let_go(turn.steady_ms)
                self._rebalancing.watch(group, member)
            last = max(group.stories.values(), key=lambda story: story.number, default=None)
            group.story = last if last is not None and last.ended_ms < 0 else None
            self._unseen.add(group.group_id)
            if group.is_all_classic:  # the former coordinator may have stopped before it could convert the group
                self._state.has_lost_consumers.add(group.group_id)
            self._agenda.put((group.group_id, THE_GROUP), turn.steady_ms)
        return turn.decision()

    def handle(self, request: object, now_ms: int) -> Decision:
        """Handle a request. Raises the errors of the function in ``_RULES`` that handles the request, and
        InvalidRequestError if a group coordinator does not handle this type of request."""
        if isinstance(request, ClockSet):
            self._clock.was_set(request.by_ms)
            return Decision()
        if isinstance(request, OwnershipAsked | OwnershipProven):
            return self._about_ownership(request, self._turn(now_ms).steady_ms)
        rule = _RULES.get(type(request))
        if rule is None:
            raise InvalidRequestError(f"a group coordinator cannot handle {type(request).__name__}")
        return rule(self, request, self._turn(now_ms))

    def _heartbeat(self, request: Heartbeat, turn: Turn) -> Decision:
        """Returns a HeartbeatReply. Raises the errors of ``checks``, GroupMaxSizeReachedError,
        UnreleasedInstanceIdError, and CoordinatorLoadInProgressError if the topics are not known yet."""
        checks.check_heartbeat(request, self._settings)
        if not self._topics.is_known:
            raise CoordinatorLoadInProgressError(
                f"group {request.group_id!r}: the coordinator has not loaded the topics yet; retry"
            )
        if request.member_epoch == JOIN_EPOCH:
            return self._join(request, turn)
        group = self._state.groups.get(request.group_id)
        member = checks.known_member(group, request.group_id, request.member_id, request.instance_id)
        assert group is not None
        checks.check_uses_heartbeats(member)
        checks.check_connection(member, request.connection)
        checks.check_epoch(member, request.member_epoch)
        return self._answer(request, turn, group, member, checks.owned_that_counts(request, member))

    def _answer(
        self, request: Heartbeat, turn: Turn, group: Group, member: Member, owned: frozenset[tuple[bytes, int]] | None
    ) -> Decision:
        """Answer a heartbeat of an existing member."""
        session = member.session
        session.touch(request.connection, turn.steady_ms)
        if session.revoking_ms is not None:
            session.note_revoking(
                knows=checks.knows_all(request, member),
                rebalance_timeout_ms=member.said.rebalance_timeout_ms,
                session_timeout_ms=self._rebalancing.session_timeout_ms(group.group_id),
            )
            self._rebalancing.watch(group, member)
        reasons = self._rebalancing.describe(turn, group, member, _described(member.said, request))
        if owned is not None and (current := acknowledged(member.current, owned)) != member.current:
            turn.hold(group, member, current)
        if owned is not None and group.released:
            stories.taken(turn, group, member, owned)
        arrived = member.current.has_arrived(member.target, group.said.target_epoch)
        if reasons or not arrived:
            self._rebalancing.settle(turn, group, reasons=reasons, asking=member, owned=owned)
        else:
            stories.go_on(turn, group)
        knows = checks.knows_all(request, member) and request.member_epoch != JOIN_EPOCH
        return turn.decision(self._rebalancing.reply_to(group, member, with_assignment=not knows))

    def _join(self, request: Heartbeat, turn: Turn) -> Decision:
        group = self._state.groups.get(request.group_id)
        member = group.members.get(request.member_id) if group is not None else None
        if group is not None and member is not None and member.value is not None:
            checks.check_uses_heartbeats(member)
            checks.check_connection(member, request.connection)
            if member.value.instance_id != request.instance_id:
                raise InvalidRequestError(
                    f"member {request.member_id!r} joined with instance id {member.value.instance_id!r} and sent "
                    f"{request.instance_id!r}: a member must keep its instance id"
                )
            if request.connection == member.session.connection and not member.current.is_away:
                # The member's first heartbeat on this stream was already processed, so this heartbeat repeats it.
                return self._answer(request, turn, group, member, None)
            reasons: list[str] = []
            turn.hold(group, member, begun_anew(member.current))
        else:
            member, reasons = self._new_member(request, turn, group)
            group = self._state.groups[request.group_id]
        member.session = Session(turn.steady_ms)
        member.session.touch(request.connection, turn.steady_ms)
        self._rebalancing.watch(group, member)
        reasons += self._rebalancing.describe(turn, group, member, _described(member.said, request))
        group.departed.pop(member.member_id, None)
        self._rebalancing.settle(turn, group, reasons=reasons, asking=member, reads=NOTHING)
        return turn.decision(self._rebalancing.reply_to(group, member, with_assignment=True))

    def _new_member(self, request: Heartbeat, turn: Turn, group: Group | None) -> tuple[Member, list[str]]:
        """Add a new member, which may replace a static member; returns the reasons for a new target. Raises
        GroupMaxSizeReachedError, UnreleasedInstanceIdError."""
        instance_id = request.instance_id
        holder_id = group.statics.get(instance_id) if group is not None and instance_id is not None else None
        if group is not None and holder_id is not None:
            holder = group.members[holder_id]
            is_released = holder.current.is_away or holder.session.is_lost(turn.owned_ms)
            if not is_released and holder.said.classic is None:
                raise UnreleasedInstanceIdError(
                    f"group {group.group_id!r}: instance id {instance_id!r} is in use by member {holder_id!r}, "
                    "which has not left; if the process of that member has ended, retry: the id is free when that "
                    "member's connection or session ends"
                )
            return turn.replace(group, holder, request.member_id), []
        if group is not None:
            checks.check_size(group, self._settings)
        key = Key(RecordKind.MEMBER, request.group_id, request.member_id)
        turn.write(key, _described(MemberValue(instance_id=instance_id), request))
        group = self._state.groups[request.group_id]
        member = group.members[request.member_id]
        return member, [f"{named(member)} joined"]

    def _leave(self, request: Leave, turn: Turn) -> Decision:
        """Returns a LeaveReply. Raises UnknownMemberIdError, FencedInstanceIdError, and FencedMemberEpochError if the
        member has a later connection. Raises InvalidRequestError if a dynamic member announces a return."""
        checks.check_leave(request, self._settings)
        group = self._state.groups.get(request.group_id)
        member = checks.known_member(group, request.group_id, request.member_id, request.instance_id)
        assert group is not None
        if request.connection is not None:
            checks.check_uses_heartbeats(member)
        checks.check_connection(member, request.connection)
        if request.member_epoch == AWAY_EPOCH:
            if member.said.instance_id is None:
                raise InvalidRequestError(
                    f"member {member.member_id!r} cannot leave temporarily: it has no group.instance.id"
                )
            if not member.current.is_away:
                turn.hold(group, member, gone_away(member.current))
            member.session.last_contact_ms = turn.steady_ms
            member.session.connected = False
            self._rebalancing.settle(turn, group)
        else:
            self._remove(turn, group, [(member, RemovalReason.LEFT)])
        return turn.decision(LeaveReply(request.member_id, request.member_epoch))

    def _remove_members(self, request: RemoveMembers, turn: Turn) -> Decision:
        """Returns MembersRemoved. Raises InvalidGroupIdError."""
        checks.check_group_id(request.group_id, self._settings)
        group = self._state.groups.get(request.group_id)
        errors: list[HeadraceError | None] = []
        gone: dict[str, Member] = {}
        for member_id in request.member_ids:
            try:
                gone[member_id] = checks.known_member(group, request.group_id, member_id)
                errors.append(None)
            except HeadraceError as error:
                errors.append(error.with_traceback(None))
        if gone:
            assert group is not None
            self._remove(turn, group, [(member, RemovalReason.LEFT) for member in gone.values()])
        return turn.decision(MembersRemoved(tuple(errors)))

    def _disconnected(self, request: Disconnected, turn: Turn) -> Decision:
        """Start the member's grace period. The end of a stream is ignored if the member has a later stream, or has left
        the group. A stream whose requests were all refused is unknown to the session, and has replaced the stream that
        the session knows; its end leaves the member without a stream, too."""
        group = self._state.groups.get(request.group_id)
        member = group.members.get(request.member_id) if group is not None else None
        if group is None or member is None or member.value is None:
            return Decision()
        session = member.session
        if session.connected and NO_STREAM < session.connection <= request.connection:
            timeout_ms = self._rebalancing.session_timeout_ms(group.group_id)
            session.broke(turn.steady_ms, self._settings.connection_grace_ms, timeout_ms)
            self._rebalancing.watch(group, member)
        return Decision()

    def _topics_changed(self, request: TopicsChanged, turn: Turn) -> Decision:
        """Called when the topics of the cluster or the ACLs have changed. The next ticks check the groups that read a
        changed topic, and the groups whose patterns match different topics under the new ACLs."""
        changed = request.changed if self._topics.is_known else None
        has_new_acls = self._topics.is_known and request.authorizer is not self._topics.authorizer
        before = {each: self._topics.resolve(each) for each in self._patterns()} if has_new_acls else {}
        self._topics.replace(request.topics, request.authorizer)
        differing = {each for each, topic_ids in before.items() if self._topics.resolve(each) != topic_ids}
        for group in self._state.groups.values():
            if not differing.isdisjoint(group.subscriptions):
                self._other_rights.add(group.group_id)
                self._agenda.put((group.group_id, THE_GROUP), turn.steady_ms)
            elif changed is None or _reads_any(group, changed):
                self._agenda.put((group.group_id, THE_GROUP), turn.steady_ms)
        return Decision()

    def _patterns(self) -> set[Subscription]:
        return {each for group in self._state.groups.values() for each in group.subscriptions if each.regex}

    def _config_changed(self, request: GroupConfigChanged, turn: Turn) -> Decision:
        for known, value in (
            (self._rebalancing.session_timeouts_ms, request.session_timeout_ms),
            (self._rebalancing.heartbeat_intervals_ms, request.heartbeat_interval_ms),
        ):
            if value is None:
                known.pop(request.group_id, None)
            else:
                known[request.group_id] = value
        group = self._state.groups.get(request.group_id)
        if group is not None:
            for member in group.members.values():
                self._rebalancing.watch(group, member)
        return Decision()

    def next_due_ms(self) -> int | None:
        """Wall-clock time of the next tick at the latest; None if no work is due."""
        due_ms = self._agenda.next_due_ms()
        return None if due_ms is None else self._clock.wall(due_ms)

    def tick(self, now_ms: int) -> Decision:
        """Do some of the due work of the groups, group by group; more work may be left (``next_due_ms``). Work that
        became due after the last proof of ownership waits for the next proof."""
        turn = self._turn(now_ms)
        for group_id, due in self._agenda.take(turn.owned_ms).items():
            group = self._state.groups.get(group_id)
            if group is None:
                self._unseen.discard(group_id)
                self._other_rights.discard(group_id)
            elif len(turn.records) >= TICK_RECORDS_MAX:
                for each in due:
                    self._agenda.put((group_id, each), turn.owned_ms)
            else:
                self._look_at(turn, group, [group.members[each] for each in due if each in group.members])
                if THE_GROUP in due:
                    self._review(turn, group)
        return turn.decision()

    def _look_at(self, turn: Turn, group: Group, due: list[Member]) -> None:
        """Check the members of the group whose checks are due; members that leave together cause one rebalance."""
        gone = []
        for member in due:
            reason = self._overdue(turn, group, member)
            if reason is not None:
                gone.append((member, reason))
        if gone:
            self._remove(turn, group, gone)
        elif any(member.session.is_lost(turn.owned_ms) for member in due if member.member_id in group.underway):
            self._rebalancing.settle(turn, group)  # a lost static member no longer reads
        for member in due:
            if member.member_id in group.members:
                self._watch_on(turn, group, member)

    def _overdue(self, turn: Turn, group: Group, member: Member) -> RemovalReason | None:
        session, now_ms = member.session, turn.owned_ms
        if now_ms - session.last_contact_ms >= self._rebalancing.session_timeout_of(group, member):
            return RemovalReason.SESSION
        if member.said.instance_id is None and session.is_lost(now_ms):
            return RemovalReason.CONNECTION
        if session.is_slow(now_ms) or session.missed_join(now_ms):
            return RemovalReason.REBALANCE
        return None

    def _watch_on(self, turn: Turn, group: Group, member: Member) -> None:
        if member.session.is_lost(turn.owned_ms):  # a lost static member stays until its session ends
            due_ms = member.session.last_contact_ms + self._rebalancing.session_timeout_of(group, member)
            self._agenda.put((group.group_id, member.member_id), due_ms)
        else:
            self._rebalancing.watch(group, member)

    def _remove(self, turn: Turn, group: Group, gone: Iterable[tuple[Member, RemovalReason]]) -> None:
        reasons = []
        urgent = False
        for member, reason in gone:
            reasons.append(f"{named(member)} is gone: {reason.value}")
            urgent = urgent or bool(member.current.held or member.target)
            turn.remove(group, member, reason, "UNKNOWN_MEMBER_ID")
        self._rebalancing.settle(turn, group, reasons=reasons, urgent=urgent)

    def _review(self, turn: Turn, group: Group) -> None:
        """Check the group for changed topics, for a target that is due, and for the remains of another process's
        interrupted decision."""
        if not self._topics.is_known or (group.value is None and not group.members):
            return
        reasons = []
        subscribed = self._rebalancing.subscribed(group)
        if group.members and self._topics.digest(subscribed) != group.said.topics_digest:
            reasons.append("its topics have changed")
        elif group.group_id in self._other_rights:
            reasons.append("its members may describe other topics")
        self._other_rights.discard(group.group_id)
        if group.group_id in self._unseen:
            self._unseen.discard(group.group_id)
            if not reasons and group.said.target_epoch == group.said.epoch and not self._is_whole(group, subscribed):
                reasons.append("the last assignment is not complete")
        self._rebalancing.settle(turn, group, reasons=reasons)

    def _is_whole(self, group: Group, subscribed: frozenset[bytes]) -> bool:
        """Whether every partition has exactly one target member, which subscribes to the partition's topic."""
        wanted = sum(topic.partitions for topic in self._topics.specs(subscribed).values())
        aimed = [part for member in group.members.values() for part in member.target]
        mine = all(
            {topic_id for topic_id, _ in member.target} <= self._rebalancing.subscribed_by(member)
            for member in group.members.values()
        )
        return mine and len(aimed) == len(set(aimed)) == wanted

    # -- a group changes its type -------------------------------------------------------------------------------------

    def adopt(self, classic: ClassicGroup, now_ms: int) -> Decision:
        """Convert a classic group to a KIP-848 group with the same members (migration.adopt). The next tick checks
        whether the classic leader had assigned every partition. If ``adopt`` raises an error, nothing has changed."""
        turn = self._turn(now_ms)
        group = migration.adopt(turn, classic, self._topics)
        for member in group.members.values():
            self._rebalancing.watch(group, member)
        self._unseen.add(group.group_id)
        self._agenda.put((group.group_id, THE_GROUP), turn.steady_ms)
        return turn.decision()

    def disown(self, group_id: str) -> None:
        """Remove a group that ``adopt`` created, because its records will not be written."""
        del self._state.groups[group_id]

    @property
    def has_lost_consumers(self) -> bool:
        """Whether a member of the new protocol has left any group since ``left_to_classic`` last looked at the
        group."""
        return bool(self._state.has_lost_consumers)

    def left_to_classic(self) -> str | None:
        """Take a group that a member of the new protocol has left. Returns the group's id if all remaining members use
        the classic protocol, else None."""
        group_id = self._state.has_lost_consumers.pop()
        group = self._state.groups.get(group_id)
        return group_id if group is not None and group.is_all_classic else None

    def as_classic(self, group_id: str, now_ms: int) -> ClassicGroup:
        """The classic group into which the group can be converted; call this for a group whose id ``left_to_classic``
        returned."""
        return migration.as_classic(self._state.groups[group_id], self._topics, now_ms)

    def erased_bytes(self, group_id: str) -> int:
        """An upper limit for the size in bytes of the records that ``hand_over`` would return."""
        group = self._state.groups[group_id]
        members = sum(3 * (len(member_id.encode()) + _KEY_BYTES) for member_id in group.members)
        keys = 3 * len(group.members) + len(group.stories) + 1
        return members + keys * (len(group_id.encode()) + _KEY_BYTES)

    def hand_over(self, group_id: str) -> Decision:
        """End a KIP-848 group that becomes a classic group; returns tombstones, already applied, for all of its
        records."""
        group = self._state.groups[group_id]
        turn = Turn(self._state, 0, 0)
        for member in list(group.members.values()):
            turn.forget(group, member)
        self._erase(turn, group)
        return turn.decision()

    # -- queries ------------------------------------------------------------------------------------------------------

    def exists(self, group_id: str) -> bool:
        """Whether a group with the id exists, with or without members."""
        return group_id in self._state.groups

    def is_empty(self, group_id: str) -> bool:
        """Whether the group has no members. The result is True for a group that does not exist."""
        group = self._state.groups.get(group_id)
        return group is None or not group.members

    def empty_since_ms(self, group_id: str) -> int | None:
        """The time when the group's last member left, according to its record; None while the group has members or does
        not exist."""
        group = self._state.groups.get(group_id)
        if group is None or group.members or group.said.empty_since_ms < 0:
            return None
        return group.said.empty_since_ms

    def subscribed(self, group_id: str, topics: Set[str]) -> Set[str]:
        """Those of the topics to which a member of the group subscribes, by name or by pattern."""
        group = self._state.groups.get(group_id)
        return set() if group is None else {topic for topic in topics if _reads_any(group, (topic,))}

    def is_joining(self, group_id: str) -> bool:
        """Always False: each member's subscription is known at any time (KIP-848)."""
        return False

    def check_commit(
        self,
        group_id: str,
        member_id: str,
        member_epoch: int,
        instance_id: str | None,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        in_transaction: bool = False,
    ) -> None:
        """Raise UnknownMemberIdError, StaleMemberEpochError or FencedInstanceIdError unless the member may commit
        offsets.

        A negative epoch belongs to an admin's or a plain consumer's commit, which is valid while the group has no
        members. ``partitions``: the (topic name, number) of each partition in the commit. If the commit names its
        partitions, an older epoch is enough for partitions that the member has owned from that epoch on. A rebalance
        that takes no partition from the member causes no refusal of the member's commit.
        """
        group = self._state.groups.get(group_id)
        if member_epoch < 0:
            self._check_stranger(group, group_id, member_id)
            return
        member = checks.known_member(group, group_id, member_id, instance_id)
        assert group is not None
        try:
            checks.check_commit(group, member, member_epoch, self._parts(partitions))
        except StaleMemberEpochError as error:
            if member.said.classic is None:
                raise
            # the member knows only what a client of the classic protocol knows
            raise IllegalGenerationError(error.message) from None

    def committed(self, group_id: str, member_id: str, now_ms: int) -> None:
        """Called when a member has committed offsets. In a KIP-848 group, commits are no heartbeats, as in Kafka."""

    def check_fetch(self, group_id: str, member_id: str, member_epoch: int) -> None:
        """Raise an error unless the member may fetch offsets. A request to fetch offsets with a negative epoch and
        without a member id is always allowed."""
        if member_epoch < 0 and not member_id:
            return
        member = checks.known_member(self._state.groups.get(group_id), group_id, member_id)
        # A member that has lost no partitions may fetch offsets with an older epoch; check_commit decides (see
        # check_epoch).
        if not member.current.first_epoch <= member_epoch <= member.current.epoch:
            checks.check_commit(self._state.groups[group_id], member, member_epoch, None)

    def _check_stranger(self, group: Group | None, group_id: str, member_id: str) -> None:
        if group is not None and group.members:
            stranger = f"{member_id!r} is not a member" if member_id else "the commit names no member"
            raise UnknownMemberIdError(
                f"group {group_id!r}: only members may commit while the group has members "
                f"({counted(len(group.members), 'member')}), and {stranger}; stop the consumers first"
            )

    def _parts(self, partitions: Iterable[tuple[str, int]] | None) -> list[tuple[bytes, int]] | None:
        if partitions is None:
            return None
        by_name = self._topics.by_name or {}
        return [(by_name[name].topic_id if name in by_name else b"", number) for name, number in partitions]

    def group_ids(self) -> tuple[str, ...]:
        """Ids of all groups that have a record."""
        return tuple(self._state.groups)

    def delete(self, group_id: str) -> Decision:
        """Delete the group; returns tombstones, already applied, for all of its records. Raises NonEmptyGroupError and
        GroupIdNotFoundError."""
        group = checks.known_group(self._state.groups.get(group_id), group_id)
        if group.members:
            raise NonEmptyGroupError(
                f"group {group_id!r} has {counted(len(group.members), 'member')}; stop them, then delete the group"
            )
        turn = Turn(self._state, 0, 0)  # the turn writes only tombstones, which need no timestamp
        self._erase(turn, group)
        return turn.decision()

    def _erase(self, turn: Turn, group: Group) -> None:
        for slot in sorted(group.stories):
            turn.write(Key(RecordKind.STORY, group.group_id, str(slot)), None)
        turn.write(Key(RecordKind.GROUP, group.group_id), None)

    def _describe(self, request: DescribeGroup, turn: Turn) -> Decision:
        """Describe a group: returns a DescribedGroup, or raises GroupIdNotFoundError."""
        group = checks.known_group(self._state.groups.get(request.group_id), request.group_id)
        members = tuple(_described_member(member) for _, member in sorted(group.members.items()) if member.value)
        ids = {topic_id for each in members for topic_id, _ in each.assigned | each.revoking | each.target}
        names = {topic_id: self._topics.names[topic_id] for topic_id in ids if topic_id in self._topics.names}
        said: GroupValue = group.said
        return Decision(
            reply=DescribedGroup(
                group.group_id, group.state, said.epoch, said.target_epoch, said.assignor, members, names
            )
        )

    def _list(self, request: ListGroups, turn: Turn) -> Decision:
        """List groups: returns a tuple of ListedGroup."""
        listed = (ListedGroup(group.group_id, group.state, len(group.members)) for group in self._state.groups.values())
        return Decision(reply=tuple(each for each in listed if not request.states or each.state in request.states))

    def _explain(self, request: ExplainGroup, turn: Turn) -> Decision:
        """Explain a group's rebalances: returns a tuple of Rebalance, oldest first. Raises GroupIdNotFoundError."""
        return Decision(
            reply=stories.history(checks.known_group(self._state.groups.get(request.group_id), request.group_id))
        )

    def _about_ownership(self, request: OwnershipAsked | OwnershipProven, steady_ms: int) -> Decision:
        if self._ownership is not None and isinstance(request, OwnershipAsked):
            self._ownership.asked(request.number, steady_ms)
        elif self._ownership is not None:
            self._ownership.proven(request.number)
        return Decision()

    def _turn(self, now_ms: int) -> Turn:
        steady_ms = self._clock.read(now_ms, self._agenda.next_due_ms())
        return Turn(self._state, now_ms, steady_ms, None if self._ownership is None else self._ownership.proven_ms)


_RULES: dict[type, Callable[[Groups, Any, Turn], Decision]] = {
    Heartbeat: Groups._heartbeat,
    Leave: Groups._leave,
    RemoveMembers: Groups._remove_members,
    Disconnected: Groups._disconnected,
    TopicsChanged: Groups._topics_changed,
    GroupConfigChanged: Groups._config_changed,
    DescribeGroup: Groups._describe,
    ListGroups: Groups._list,
    ExplainGroup: Groups._explain,
    Join: lambda groups, request, turn: groups._classic_members.join(request, turn),
    Sync: lambda groups, request, turn: groups._classic_members.sync(request, turn),
    ClassicHeartbeat: lambda groups, request, turn: groups._classic_members.heartbeat(request, turn),
    LeaveClassic: lambda groups, request, turn: groups._classic_members.leave(request, turn),
}


def _described(value: MemberValue, request: Heartbeat) -> MemberValue:
    """The properties that the member reports about itself. Fields of the member that the request does not name keep
    their values, except when the member joins."""
    joins = request.member_epoch == JOIN_EPOCH
    base = MemberValue(instance_id=value.instance_id) if joins else value
    said = {name: getattr(request, name) for name in _FIELDS if getattr(request, name) is not None}
    if "topics" in said:
        said["topics"] = tuple(sorted(set(said["topics"])))
    return msgspec.structs.replace(base, **said)


def _reads_any(group: Group, topics: Iterable[str]) -> bool:
    wanted = set(topics)
    return any(any(map(subscription.describes, wanted)) for subscription in group.subscriptions)


def _described_member(member: Member) -> DescribedMember:
    said, current = member.said, member.current
    return DescribedMember(
        member.member_id,
        said.instance_id,
        said.client_id,
        said.client_host,
        said.rack,
        current.epoch,
        said.topics,
        said.topic_regex,
        frozenset(current.assigned),
        frozenset(current.revoking),
        member.target,
        said.classic is not None,
    )
