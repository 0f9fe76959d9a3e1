"""Change a group with members from the classic protocol to KIP-848 and back (KIP-848: online upgrade, downgrade). Pure.

    a member of the new protocol joins ---------> adopt: every member keeps its id, its generation, which becomes its
                                                  epoch, and its partitions
    the last member of the new protocol leaves -> as_classic: the members that are left keep the same, and rebalance

The members learn only that they must join again, as in any rebalance. A classic group has one generation for all
members. After ``as_classic``, members with an older epoch therefore get ILLEGAL_GENERATION and give up their
partitions, as in Kafka.
"""

from __future__ import annotations

from headrace_core.errors import CoordinatorLoadInProgressError, CorruptLogError, GroupIdNotFoundError

from ..classic.consumer_protocol import CONSUMER, decode_assignment, decode_subscription, encode_assignment
from ..classic.messages import ClassicState
from ..classic.state import ClassicGroup
from ..classic.state import Member as ClassicMember
from ..state_machine import RecordKind
from .messages import Part
from .reconciling import Current
from .records import ClassicSaid, GroupValue, Key, MemberValue, TargetValue, pack
from .state import Group, Member, packed
from .subscriptions import Topics
from .timing import NO_STREAM, Session
from .turn import Turn

#: The assignors of Kafka's clients. These assignors need no user data in a member's assignment, so a change of the
#: group's type loses no data. The cooperative-sticky assignor of librdkafka only copies the subscription's user data
#: there.
_ASSIGNORS = frozenset({"range", "roundrobin", "sticky", "cooperative-sticky"})


def adopt(turn: Turn, classic: ClassicGroup, topics: Topics) -> Group:
    """Write the records of a KIP-848 group with the members of ``classic``. Members that wait for their first
    generation are left out, and must join again. Raises GroupIdNotFoundError if a member's data cannot be decoded or
    come from a custom assignor. Raises CoordinatorLoadInProgressError if the assignment has partitions that this
    coordinator does not know yet. After an error, neither the group nor its records have changed."""
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
        kept = parts - given  # a custom assignor may give a partition to several members
        revoking = _unstopped(owned, taken)
        given |= kept
        taken |= revoking
        if kept:
            turn.write(Key(RecordKind.TARGET_ASSIGNMENT, group_id, member_id), TargetValue(pack(kept)))
        epochs = (dict.fromkeys(kept, generation), dict.fromkeys(revoking, generation))
        current = Current(generation, generation, 1, *epochs)
        turn.write(Key(RecordKind.CURRENT_ASSIGNMENT, group_id, member_id), packed(current))
    subscribed = frozenset[bytes]().union(*(topics.resolve(value.subscription) for _, value, _, _ in described))
    said = GroupValue(generation, generation, topics_digest=topics.digest(subscribed))
    turn.write(Key(RecordKind.GROUP, group_id), said)
    group = turn.state.groups[group_id]
    for member in group.members.values():
        member.session = Session(turn.steady_ms)
        member.session.touch(NO_STREAM, turn.steady_ms)
    return group


def _unstopped(owned: frozenset[Part], taken: set[Part]) -> frozenset[Part]:
    """The partitions that a member has lost in the latest generation, and may still read."""
    return owned - taken


def _described(
    classic: ClassicGroup, member: ClassicMember, topics: Topics
) -> tuple[MemberValue, frozenset[Part], frozenset[Part]]:
    """The member's properties, its assignment, and the partitions that the member read at its last join."""
    where = f"group {classic.group_id!r} cannot change to the new group protocol while it has members: member"
    by_name = topics.by_name or {}
    try:
        decode_subscription(member.protocols[0][1])  # used by classic_members.py
        subscription = decode_subscription(member.metadata(classic.protocol))
        assignment = decode_assignment(member.assignment)
    except CorruptLogError as error:
        raise GroupIdNotFoundError(
            f"{where} {member.member_id!r} has data that cannot be read ({error.message}); stop the group's "
            "consumers first"
        ) from None
    if assignment.user_data and classic.protocol not in _ASSIGNORS:
        raise GroupIdNotFoundError(
            f"{where} {member.member_id!r} has an assignor that adds its own data to assignments, and the change would "
            "lose the data; configure one of Kafka's assignors, or stop the group's consumers first"
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
    """Convert ``group``, whose members all use the classic protocol, to a classic group. The classic group has no
    leader, because no member has computed an assignment yet."""
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
