"""Change a group with members from the classic protocol to KIP-848 and back (KIP-848: online upgrade, downgrade). Pure.

    a member of the new protocol joins ---------> adopt: every member keeps its id, its generation, which becomes its
                                                  epoch, and its partitions
    the last member of the new protocol leaves -> as_classic: the members that are left keep the same, and rebalance

The members notice nothing of the change itself: they learn that they must join again, as in any rebalance. After
``as_classic`` a member that is in an older epoch than the latest gets ILLEGAL_GENERATION and gives up its partitions,
as in Kafka, because a classic group has one generation.
"""

from __future__ import annotations

from headrace_core.errors import CoordinatorLoadInProgressError, CorruptLogError, GroupIdNotFoundError

from ..classic.consumer_protocol import CONSUMER, decode_assignment, decode_subscription, encode_assignment
from ..classic.messages import ClassicState
from ..classic.state import ClassicGroup
from ..classic.state import Member as ClassicMember
from ..state_machine import RecordKind
from .messages import Part
from .records import ClassicSaid, CurrentValue, GroupValue, Key, MemberValue, TargetValue, pack, pack_epochs
from .state import Group, Member
from .subscriptions import Topics
from .timing import NO_STREAM, Session
from .turn import Turn


def adopt(turn: Turn, classic: ClassicGroup, topics: Topics) -> Group:
    """Write the records of a group of KIP-848 with the members of ``classic``. A member that still waits for its first
    generation is left out: it joins again. Raises, with nothing changed, GroupIdNotFoundError if the members' data have
    a form that only they understand, and CoordinatorLoadInProgressError if their leader knows partitions that this
    coordinator has not learned of yet."""
    described = [
        (member.member_id, *_described(classic, member, topics))
        for member in classic.members.values()
        if not member.is_new
    ]
    group_id, generation = classic.group_id, classic.generation
    taken = {part for _, _, parts, _ in described for part in parts}
    given: set[Part] = set()
    for member_id, value, parts, owned in described:
        turn.write(Key(RecordKind.MEMBER, group_id, member_id), value)
        kept = parts - given  # an assignor of the user's may give a partition to several members
        revoking = _unstopped(owned, taken)
        given |= kept
        taken |= revoking
        if kept:
            turn.write(Key(RecordKind.TARGET_ASSIGNMENT, group_id, member_id), TargetValue(pack(kept)))
        assigned = pack_epochs(dict.fromkeys(kept, generation))
        current = CurrentValue(generation, generation, 1, assigned, pack(revoking))
        turn.write(Key(RecordKind.CURRENT_ASSIGNMENT, group_id, member_id), current)
    subscribed = frozenset[bytes]().union(*(topics.resolve(value.topics, "") for _, value, _, _ in described))
    said = GroupValue(generation, generation, topics_digest=topics.digest(subscribed))
    turn.write(Key(RecordKind.GROUP, group_id), said)
    group = turn.state.groups[group_id]
    for member in group.members.values():
        member.session = Session(turn.steady_ms)
        member.session.touch(NO_STREAM, turn.steady_ms)
    return group


def _unstopped(owned: frozenset[Part], taken: set[Part]) -> frozenset[Part]:
    """The partitions that a member has lost in the latest generation, and may not have stopped yet."""
    return owned - taken


def _described(
    classic: ClassicGroup, member: ClassicMember, topics: Topics
) -> tuple[MemberValue, frozenset[Part], frozenset[Part]]:
    """The member's description of itself, its assignment, and the partitions that it read when it joined last."""
    where = f"group {classic.group_id!r} cannot change to the new group protocol while it has members: member"
    by_name = topics.by_name or {}
    try:
        decode_subscription(member.protocols[0][1])  # what the group will read from now on (classic_members.py)
        subscription = decode_subscription(member.metadata(classic.protocol))
        assignment = decode_assignment(member.assignment)
    except CorruptLogError as error:
        raise GroupIdNotFoundError(
            f"{where} {member.member_id!r} has data that cannot be read ({error.message}); stop its consumers first"
        ) from None
    if assignment.user_data:
        raise GroupIdNotFoundError(
            f"{where} {member.member_id!r} has an assignor whose assignments carry data of its own, which would be "
            "lost; change to one of Kafka's assignors, or stop its consumers first"
        )
    for topic, partition in (*assignment.parts, *subscription.owned):
        if topic in by_name and partition >= by_name[topic].partitions:
            raise CoordinatorLoadInProgressError(
                f"group {classic.group_id!r}: the coordinator does not know partition {partition} of topic {topic!r} "
                "yet; retry"
            )
    value = MemberValue(
        instance_id=member.instance_id,
        rack=subscription.rack,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topics=tuple(sorted(set(subscription.topics))),
        classic=ClassicSaid(member.session_timeout_ms, member.protocols),
    )
    assigned, owned = (
        frozenset(
            (by_name[topic].topic_id, partition) for topic, partition in parts if topic in by_name and partition >= 0
        )
        for parts in (assignment.parts, subscription.owned)
    )
    return value, assigned, owned


def as_classic(group: Group, topics: Topics, now_ms: int) -> ClassicGroup:
    """The classic group with the members of ``group``, which all use the classic protocol. It has no leader, because no
    member has assigned its partitions yet."""
    generation = max(member.current.epoch for member in group.members.values())
    classic = ClassicGroup(group.group_id, ClassicState.STABLE, CONSUMER, generation, state_ms=now_ms)
    for member in group.members.values():
        classic.add(_as_classic(member, topics))
    classic.protocol = classic.choose_protocol()
    classic.leader = None
    return classic


def _as_classic(member: Member, topics: Topics) -> ClassicMember:
    said = member.said
    assert said.classic is not None
    assigned = [
        (topics.names[topic_id], number) for topic_id, number in member.current.held if topic_id in topics.names
    ]
    return ClassicMember(
        member.member_id,
        said.instance_id,
        said.client_id,
        said.client_host,
        said.classic.session_timeout_ms,
        said.rebalance_timeout_ms,
        said.classic.protocols,
        0,
        encode_assignment(assigned, decode_subscription(said.classic.protocols[0][1]).version),
        is_new=False,
    )
