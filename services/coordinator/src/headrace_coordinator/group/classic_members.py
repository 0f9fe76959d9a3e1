"""Members of the classic protocol in a group of KIP-848, while the group moves from one protocol to the other. Pure.

    JoinGroup   takes the member one step towards its target (reconciling.py); its epoch is the generation
    SyncGroup   answers with the member's assignment; nothing waits
    Heartbeat   REBALANCE_IN_PROGRESS when a step is possible, so that the member joins again

The coordinator computes the assignment, so no member is the leader. The assignment of a classic member changes only
when the member joins, because no other answer can announce a new assignment. JoinGroup shows which partitions a classic
member reads. A member with a cooperative assignor names its partitions in its subscription, and a member with an eager
assignor stops reading before it joins. The coordinator ignores the partitions in a subscription with an outdated
generation, because the subscription is older than the member's latest join.

A member is removed if it does not join within its rebalance timeout after the first heartbeat that was answered with
REBALANCE_IN_PROGRESS. A member is also removed if it does not send SyncGroup within its rebalance timeout after its
join. Kafka's GroupMetadataManager has the same join timeout and sync timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    CorruptLogError,
    HeadraceError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidRequestError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

from ..classic.checks import check_group_id, check_join, rebalance_timeout_ms
from ..classic.consumer_protocol import (
    CONSUMER,
    Subscription,
    decode_subscription,
    encode_assignment,
)
from ..classic.messages import (
    ClassicHeartbeat,
    Join,
    Joined,
    LeaveClassic,
    LeavingMember,
    Left,
    MemberIdNeeded,
    Protocols,
    Sync,
    Synced,
)
from ..classic.settings import ClassicSettings
from ..state_machine import Decision, RecordKind
from . import checks, stories
from .messages import Parts, RemovalReason
from .rebalancing import Rebalancing, named
from .reconciling import NOTHING
from .records import ClassicSaid, Key, MemberValue
from .settings import GroupSettings
from .state import Group, GroupsState, Member
from .subscriptions import Topics
from .timing import NO_STREAM, Session
from .turn import Turn, reads_nothing

#: Maximum bytes of a classic member's data for all of its protocols, because the data are part of the member's record.
PROTOCOLS_BYTES_MAX = 256 * 1024

Remove = Callable[[Turn, Group, Iterable[tuple[Member, RemovalReason]]], None]


class ClassicMembers:
    """Handles the requests of classic members in KIP-848 groups. ``remove`` removes members of a group, and reassigns
    their partitions."""

    def __init__(
        self,
        state: GroupsState,
        settings: GroupSettings,
        classic: ClassicSettings,
        topics: Topics,
        rebalancing: Rebalancing,
        remove: Remove,
    ) -> None:
        self._state = state
        self._settings = settings
        self._classic = classic
        self._topics = topics
        self._rebalancing = rebalancing
        self._remove = remove

    # -- joining ------------------------------------------------------------------------------------------------------

    def join(self, request: Join, turn: Turn) -> Decision:
        """Returns Joined or MemberIdNeeded. Raises InvalidGroupIdError, InvalidRequestError,
        InvalidSessionTimeoutError, InconsistentGroupProtocolError, UnknownMemberIdError, FencedInstanceIdError,
        GroupMaxSizeReachedError, CoordinatorLoadInProgressError."""
        check_join(request, self._classic)
        group = self._group(request.group_id, request.member_id)
        subscription = self._subscription(request, group)
        self._check_topics(request.group_id)
        if not request.member_id and request.instance_id is None and request.needs_known_id:
            checks.check_size(group, self._settings)
            return Decision(reply=MemberIdNeeded(request.new_id))
        return self._joined(request, turn, group, subscription)

    def _joined(self, request: Join, turn: Turn, group: Group, subscription: Subscription) -> Decision:
        member = self._present(request, group, subscription)
        reads: Parts = NOTHING
        reasons: list[str] = []
        if member is None:
            member, reasons = self._added(request, turn, group, subscription)
            member.session = Session(turn.steady_ms)
        elif subscription.generation in (None, member.current.epoch):
            reads = self._parts(subscription) & member.current.held
        else:
            return self._rejoined(request, turn, group, member, subscription, None)
        return self._rejoined(request, turn, group, member, subscription, reads, reasons)

    def _rejoined(
        self,
        request: Join,
        turn: Turn,
        group: Group,
        member: Member,
        subscription: Subscription,
        reads: Parts | None,
        reasons: Iterable[str] = (),
    ) -> Decision:
        session = member.session
        session.touch(NO_STREAM, turn.steady_ms)
        session.join_by_ms, session.sync_by_ms = None, turn.steady_ms + rebalance_timeout_ms(request)
        self._rebalancing.watch(group, member)
        reasons = [*reasons, *self._rebalancing.describe(turn, group, member, _described(request, subscription))]
        group.departed.pop(member.member_id, None)
        self._rebalancing.settle(turn, group, reasons=reasons, asking=member, owned=reads, reads=reads)
        protocol, _ = request.protocols[0]
        return turn.decision(Joined(member.member_id, member.current.epoch, CONSUMER, protocol, leader=""))

    def _present(self, request: Join, group: Group, subscription: Subscription) -> Member | None:
        """The member that joins again; None if the member is new, or replaces a static member. Guard: a removed member
        gets UNKNOWN_MEMBER_ID, so that it gives up its partitions, which other members may read now."""
        if not request.member_id:
            return None
        is_there = request.member_id in group.members or request.instance_id is not None
        was_there = request.member_id in group.departed or subscription.generation is not None
        if not (is_there or was_there):
            return None  # an earlier request got this member id (KIP-394), perhaps from another coordinator
        return self._known(group, request.member_id, request.instance_id)

    def _added(self, request: Join, turn: Turn, group: Group, subscription: Subscription) -> tuple[Member, list[str]]:
        """Add a member, which may replace a static member (KIP-345); returns the reasons for a new target. A static
        classic member does not leave when its process ends, so a new process replaces the member at once. Guard: a
        static member with a stream is replaced only when its old process certainly reads no partition; until then
        clients retry."""
        member_id = request.member_id or request.new_id
        holder_id = group.statics.get(request.instance_id) if request.instance_id is not None else None
        if holder_id is None:
            checks.check_size(group, self._settings)
            turn.write(Key(RecordKind.MEMBER, group.group_id, member_id), _described(request, subscription))
            member = group.members[member_id]
            return member, [f"{named(member)} joined with the classic protocol"]
        holder = group.members[holder_id]
        if holder.session.connection > NO_STREAM and not reads_nothing(holder, turn.owned_ms):
            raise CoordinatorLoadInProgressError(
                f"group {group.group_id!r}: instance id {request.instance_id!r} is in use by member {holder_id!r}, "
                "which has not left; retry"
            )
        return turn.replace(group, holder, member_id), []

    # -- its assignment -----------------------------------------------------------------------------------------------

    def sync(self, request: Sync, turn: Turn) -> Decision:
        """Returns Synced. Raises InvalidGroupIdError, UnknownMemberIdError, FencedInstanceIdError,
        IllegalGenerationError, InconsistentGroupProtocolError, RebalanceInProgressError,
        CoordinatorLoadInProgressError."""
        group, member, classic = self._sender(request)
        self._check_topics(request.group_id)
        names = [name for name, _ in classic.protocols]
        for said, known, what in ((request.protocol_type, [CONSUMER], "type"), (request.protocol, names, "name")):
            if said is not None and said not in known:
                raise InconsistentGroupProtocolError(
                    f"group {group.group_id!r}: member {member.member_id!r} has protocols of {what} "
                    f"{', '.join(known)}, but the request names {said!r}"
                )
        member.session.touch(NO_STREAM, turn.steady_ms)
        if member.current.epoch < group.said.target_epoch and not member.current.revoking:
            self._must_rejoin(turn, group, member)
        member.session.sync_by_ms = None
        topics = self._topics.names
        assigned = frozenset(member.current.assigned)
        if group.released:
            stories.taken(turn, group, member, assigned)
        stories.go_on(turn, group)
        assignment = encode_assignment(
            [(topics[topic_id], partition) for topic_id, partition in assigned if topic_id in topics],
            decode_subscription(classic.protocols[0][1]).version,
        )
        return turn.decision(Synced(CONSUMER, request.protocol or names[0], assignment))

    def heartbeat(self, request: ClassicHeartbeat, turn: Turn) -> Decision:
        """Raises InvalidGroupIdError, UnknownMemberIdError, FencedInstanceIdError, IllegalGenerationError,
        RebalanceInProgressError."""
        group, member, _ = self._sender(request)
        member.session.touch(NO_STREAM, turn.steady_ms)
        if self._has_step(group, member):
            self._must_rejoin(turn, group, member)
        member.session.join_by_ms = None
        return Decision()

    def _has_step(self, group: Group, member: Member) -> bool:
        """Whether a join would bring the member closer to its target assignment."""
        current = member.current
        if current.revoking or current.epoch < group.said.target_epoch:
            return True
        return any(part not in group.owners for part in member.target if part not in current.assigned)

    def _must_rejoin(self, turn: Turn, group: Group, member: Member) -> None:
        session = member.session
        if session.join_by_ms is None:
            session.join_by_ms = turn.steady_ms + member.said.rebalance_timeout_ms
            self._rebalancing.watch(group, member)
        raise RebalanceInProgressError(f"group {group.group_id!r} is rebalancing; join again")

    # -- leaving ------------------------------------------------------------------------------------------------------

    def leave(self, request: LeaveClassic, turn: Turn) -> Decision:
        """Returns Left. Raises InvalidGroupIdError, UnknownMemberIdError if the group does not exist. An operator may
        name a member of either protocol by its instance id alone."""
        check_group_id(request.group_id, self._classic.name_bytes_max)
        group = self._group(request.group_id, "")
        errors: list[HeadraceError | None] = []
        gone: list[Member] = []
        for each in request.members:
            try:
                member = self._leaving(group, each)
            except HeadraceError as error:
                errors.append(error.with_traceback(None))
                continue
            errors.append(None)
            if member not in gone:
                gone.append(member)
        if gone:
            self._remove(turn, group, [(member, RemovalReason.LEFT) for member in gone])
        return turn.decision(Left(tuple(errors)))

    def _leaving(self, group: Group, leaving: LeavingMember) -> Member:
        if not leaving.member_id and leaving.instance_id is not None:
            holder_id = group.statics.get(leaving.instance_id, "")
            return checks.known_member(group, group.group_id, holder_id, leaving.instance_id)
        return self._known(group, leaving.member_id, leaving.instance_id)

    # -- checks -------------------------------------------------------------------------------------------------------

    def _group(self, group_id: str, member_id: str) -> Group:
        group = self._state.groups.get(group_id)
        if group is None:
            raise UnknownMemberIdError(
                f"group {group_id!r} has no member {member_id!r}; join again without a member id"
            )
        return group

    def _sender(self, request: Sync | ClassicHeartbeat) -> tuple[Group, Member, ClassicSaid]:
        check_group_id(request.group_id, self._classic.name_bytes_max)
        group = self._group(request.group_id, request.member_id)
        member = self._known(group, request.member_id, request.instance_id)
        if request.generation != member.current.epoch:
            raise IllegalGenerationError(
                f"group {group.group_id!r}: member {member.member_id!r} is in generation {member.current.epoch}, but "
                f"the request has {request.generation}; join again"
            )
        classic = member.said.classic
        assert classic is not None
        return group, member, classic

    def _known(self, group: Group, member_id: str, instance_id: str | None) -> Member:
        """The member with this id; raises an error if it is unknown, or does not use the classic protocol."""
        member = checks.known_member(group, group.group_id, member_id, instance_id)
        if member.said.classic is None:
            raise UnknownMemberIdError(
                f"group {group.group_id!r}: member {member_id!r} uses the new group protocol; join again without a "
                "member id"
            )
        return member

    def _subscription(self, request: Join, group: Group) -> Subscription:
        """Decode the subscription in the data of the member's first protocol. Raises InconsistentGroupProtocolError if
        the member cannot be in this group, and InvalidRequestError for too large data."""
        if request.protocol_type != CONSUMER:
            raise InconsistentGroupProtocolError(
                f"group {group.group_id!r} has members of type {CONSUMER!r}; the joining member is of type "
                f"{request.protocol_type!r}"
            )
        common = common_protocols(
            member.said.classic.protocols
            for member in group.members.values()
            if member.value is not None and member.said.classic is not None and member.member_id != request.member_id
        )
        names = {name for name, _ in request.protocols}
        if common is not None and not common & names:
            raise InconsistentGroupProtocolError(
                f"group {group.group_id!r}: its members of the classic protocol support {', '.join(sorted(common))}; "
                f"the joining member supports {', '.join(sorted(names))}"
            )
        size = sum(len(data) for _, data in request.protocols)
        if size > PROTOCOLS_BYTES_MAX:
            raise InvalidRequestError(
                f"group {group.group_id!r}: the member's subscriptions have {size} bytes, at most "
                f"{PROTOCOLS_BYTES_MAX} are allowed; subscribe to fewer topics or list fewer assignors"
            )
        try:
            return decode_subscription(request.protocols[0][1])
        except CorruptLogError as error:
            raise InconsistentGroupProtocolError(
                f"group {group.group_id!r}: the joining member's subscription cannot be read: {error.message}"
            ) from None

    def _check_topics(self, group_id: str) -> None:
        if not self._topics.is_known:
            raise CoordinatorLoadInProgressError(
                f"group {group_id!r}: the coordinator has not loaded the topics yet; retry"
            )

    def _parts(self, subscription: Subscription) -> Parts:
        by_name = self._topics.by_name or {}
        return frozenset(
            (by_name[topic].topic_id, partition) for topic, partition in subscription.owned if topic in by_name
        )


def common_protocols(each: Iterable[Protocols]) -> set[str] | None:
    """The names of the protocols that all members support; None if there are no members."""
    common: set[str] | None = None
    for protocols in each:
        names = {name for name, _ in protocols}
        common = names if common is None else common & names
    return common


def _described(request: Join, subscription: Subscription) -> MemberValue:
    return MemberValue(
        instance_id=request.instance_id,
        rack=subscription.rack,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=rebalance_timeout_ms(request),
        topics=tuple(sorted(set(subscription.topics))),
        classic=ClassicSaid(request.session_timeout_ms, request.protocols),
    )
