"""Members of groups: the cases of KIP-848 and KIP-345, and the cases of membership streams."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from headrace_coordinator.group.messages import (
    Disconnected,
    GroupConfigChanged,
    GroupState,
    Heartbeat,
    HeartbeatReply,
    Leave,
    ListedGroup,
    ListGroups,
    MembersRemoved,
    RemoveMembers,
)
from headrace_coordinator.group.settings import GroupSettings
from headrace_coordinator.group.subscriptions import Subscription, Topics
from headrace_coordinator.group.timing import NO_STREAM
from headrace_coordinator.offsets.logic import OffsetSettings
from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    FencedInstanceIdError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidGroupIdError,
    InvalidRegularExpressionError,
    InvalidRequestError,
    InvalidTopicError,
    NonEmptyGroupError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
    UnsupportedAssignorError,
)
from headrace_core.metadata.records import AclRecord
from headrace_core.records import encode_batch
from headrace_core.security.acl_types import Operation, PatternType, Permission, ResourceType
from headrace_core.security.authorizer import Authorizer
from headrace_core.security.caller import Caller
from tests.worlds.group_world import GROUP, Client, GroupShardWorld, parts, topic_id, topics

# -- joining, moving, leaving -----------------------------------------------------------------------------------------


def test_the_first_member_reads_everything_at_once() -> None:
    shard = GroupShardWorld(orders=4)
    client = Client(shard, "a")
    reply = client.join()
    assert isinstance(reply, HeartbeatReply)
    assert reply.assignment == parts("orders", 0, 1, 2, 3)
    assert reply.names == {topic_id("orders"): "orders"}
    assert (reply.member_epoch, reply.session_timeout_ms, reply.connection_grace_ms) == (1, 45_000, 500)


def test_of_six_members_on_four_partitions_two_stand_by_and_take_over() -> None:
    shard = GroupShardWorld(orders=4)
    members = shard.join(*"abcdef")
    assert shard.sizes() == [0, 0, 1, 1, 1, 1]
    for member in [each for each in members if each.reading][:2]:
        member.leave()
    shard.converge()
    assert shard.sizes() == [1, 1, 1, 1]


def test_a_fourth_member_gets_three_of_twelve_and_nobody_else_is_touched() -> None:
    """A member releases each moving partition before another member gets it. Partitions that stay are never revoked,
    not even for a moment."""
    shard = GroupShardWorld(orders=12)
    old = shard.join("a", "b", "c")
    before = {client.name: client.reading for client in old}
    fourth = Client(shard, "d")
    reply = fourth.join()
    assert reply.assignment == frozenset(), "all of its target is still somebody's"
    for client in old:
        client.hear(lets_go=False)
        assert len(client.letting_go) == 1
        client.let_go()
        client.heartbeat()
        assert fourth.inbox, "the new owner learns it as soon as the old one has let go"
        fourth.hear_all()
    assert len(fourth.reading) == 3
    for client in old:
        assert client.reading == before[client.name] - fourth.reading
    shard.converge()
    assert shard.described().state is GroupState.STABLE


def test_two_groups_do_not_know_of_each_other() -> None:
    shard = GroupShardWorld(orders=4)
    shard.join("a")
    other = shard.ask(Heartbeat("audit", "z", 0, 1, topics=("orders",), rebalance_timeout_ms=1_000))
    assert len(other.assignment) == 4
    assert shard.sizes() == [4]
    listed = shard.ask(ListGroups())
    assert listed == (ListedGroup(GROUP, GroupState.STABLE, 1), ListedGroup("audit", GroupState.STABLE, 1))
    assert shard.ask(ListGroups(("empty",))) == ()


def test_a_heartbeat_that_crossed_an_assignment_lets_go_of_nothing() -> None:
    """Member a releases a partition, gets it back, and releases it again. A heartbeat that the member sent after the
    first release arrives late."""
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a")
    stale = Heartbeat(GROUP, "a", a.epoch, 1, owned=frozenset(), revision=a.revision - 1)
    Client(shard, "b").join()
    shard.ask(stale)
    assert shard.clients["b"].reading == frozenset()
    assert [member.assigned for member in shard.described().members if member.member_id == "b"] == [frozenset()]


def test_several_epochs_may_pass_while_a_heartbeat_is_on_its_way() -> None:
    shard = GroupShardWorld(orders=8)
    (a,) = shard.join("a")
    epoch = a.epoch
    shard.join("b", "c", "d")
    assert a.epoch > epoch + 1
    reply = shard.ask(Heartbeat(GROUP, "a", epoch, 1))
    assert reply.member_epoch == a.epoch
    with pytest.raises(FencedMemberEpochError, match="join again"):
        shard.ask(Heartbeat(GROUP, "a", a.epoch + 1, 1))


def test_an_epoch_from_before_it_joined_is_fenced() -> None:
    shard = GroupShardWorld(orders=8)
    shard.join("a", "b")
    (c,) = shard.join("c")
    with pytest.raises(FencedMemberEpochError):
        shard.ask(Heartbeat(GROUP, "c", 1, c.connection or 0))


def test_an_older_stream_says_nothing_any_more() -> None:
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a")
    old = a.connection or 0
    a.cut()
    a.heartbeat()
    assert (a.connection or 0) > old
    with pytest.raises(FencedMemberEpochError, match="newer connection"):
        shard.ask(Heartbeat(GROUP, "a", 0, old, topics=("orders",), rebalance_timeout_ms=1))
    with pytest.raises(FencedMemberEpochError, match="newer connection"):
        shard.ask(Leave(GROUP, "a", connection=old))
    shard.ask(Disconnected(GROUP, "a", old))
    shard.sleep(10_000)
    assert shard.described().members[0].assigned == parts("orders", 0, 1)


def test_the_end_of_a_later_stream_whose_requests_were_refused_begins_the_grace() -> None:
    """A later stream of a member ends the former one, also if all of its requests are refused."""
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a")
    a.cut()
    a.connect()
    with pytest.raises(FencedMemberEpochError):
        shard.ask(Heartbeat(GROUP, "a", a.epoch + 1, a.connection or 0))
    a.disconnect()
    shard.sleep(shard.settings.connection_grace_ms - 1)
    assert shard.described().members
    shard.sleep(1)
    assert not shard.described().members


def test_no_stream_ends_the_session_of_a_member_without_a_stream() -> None:
    shard = GroupShardWorld(orders=2)
    shard.ask(Heartbeat(GROUP, "a", 0, NO_STREAM, topics=("orders",), rebalance_timeout_ms=1))
    shard.ask(Disconnected(GROUP, "a", 7))
    shard.sleep(shard.settings.session_timeout_ms - 1)
    assert shard.described().members


def test_members_that_an_operator_removes_together_leave_in_one_rebalance() -> None:
    """Each of them had a target assignment of its own: the removal of 300 members stopped a coordinator for 10 s."""
    shard = GroupShardWorld(orders=8)
    names = [f"m{number}" for number in range(8)]
    shard.join(*names)
    before, rebalances = shard.described().group_epoch, len(shard.rebalances())
    asked = (*names[:6], "stranger", names[0])
    removed: MembersRemoved = shard.ask(RemoveMembers(GROUP, asked))
    assert [type(each) for each in removed.errors] == [type(None)] * 6 + [UnknownMemberIdError, type(None)]
    assert shard.described().group_epoch == before + 1
    assert len(shard.rebalances()) == rebalances + 1
    shard.converge()
    assert sorted(len(each.assigned) for each in shard.described().members) == [4, 4]
    missing: MembersRemoved = shard.ask(RemoveMembers("nowhere", ("m0",)))
    assert isinstance(missing.errors[0], UnknownMemberIdError)


def test_who_joins_twice_on_one_stream_is_not_begun_anew() -> None:
    """Before the late heartbeat, the member received an assignment, and may be reading its partitions."""
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a")
    before = shard.described().members[0]
    shard.ask(Heartbeat(GROUP, "a", 0, a.connection or 0, topics=("orders",), rebalance_timeout_ms=300_000))
    assert shard.described().members[0] == before


def test_who_joins_anew_on_another_stream_keeps_its_share_under_a_new_revision() -> None:
    shard = GroupShardWorld(orders=4)
    a, _ = shard.join("a", "b")
    mine, revision = a.reading, a.revision
    epoch = shard.described().group_epoch
    a.cut()
    reply = a.join()
    assert reply.assignment == mine
    assert reply.revision > revision
    assert shard.described().group_epoch == epoch, "nothing is assigned again for that"


def test_a_storm_of_joins_is_assigned_once_in_a_while() -> None:
    shard = GroupShardWorld(GroupSettings(assignment_interval_ms=1_000), orders=50)
    first = Client(shard, "m00")
    first.join()
    for number in range(1, 50):
        Client(shard, f"m{number:02}").join()
    assert shard.described().state is GroupState.ASSIGNING
    assert shard.described().assignment_epoch == 1
    shard.sleep(1_000)
    shard.converge()
    assert shard.sizes() == [1] * 50
    assert len(shard.rebalances()) == 2, "the first member's, and one for all others"


def test_what_a_member_leaves_behind_does_not_wait() -> None:
    shard = GroupShardWorld(GroupSettings(assignment_interval_ms=1_000), orders=4)
    a = Client(shard, "a")
    a.join()
    shard.sleep(1_000)
    b, _ = shard.join("b", "c")
    shard.sleep(1_000)
    shard.converge()
    a.leave()
    b.leave()
    shard.converge()
    assert shard.clients["c"].reading == parts("orders", 0, 1, 2, 3)


def test_a_member_that_is_to_read_leaves_and_its_partition_does_not_wait() -> None:
    """The former reader still has the partition when the next reader leaves."""
    shard = GroupShardWorld(GroupSettings(assignment_interval_ms=1_000), orders=2)
    (a,) = shard.join("a")
    shard.sleep(1_000)
    b = Client(shard, "b")
    b.join()
    a.hear(lets_go=False)
    assert not b.reading
    b.leave()
    assert shard.described().assignment_epoch == shard.described().group_epoch


# -- large groups -----------------------------------------------------------------------------------------------------


def large_group(members: int) -> tuple[GroupShardWorld, list[Client]]:
    """A group whose members have their assignment; ``orders`` has two partitions."""
    shard = GroupShardWorld(GroupSettings(assignment_interval_ms=1_000, connection_grace_ms=500), orders=2)
    clients = [Client(shard, f"m{number:04}") for number in range(members)]
    for client in clients:
        client.join()
    shard.sleep(1_000)
    shard.converge()
    return shard, clients


def calls_of(work: Callable[[], object]) -> int:
    """Return how many Python functions ``work`` calls."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("what", ["join", "heartbeat", "broken connection", "leave"])
def test_a_request_of_one_member_costs_the_same_in_a_large_group(what: str) -> None:
    def cost(members: int) -> int:
        shard, clients = large_group(members)
        one, other = clients[-1], Client(shard, "other")
        for client in clients[:3]:
            client.disconnect()  # removed later: the group has no new target for a second
        shard.sleep(600)

        def work() -> None:
            match what:
                case "join":
                    other.join()
                case "heartbeat":
                    one.heartbeat()
                case "broken connection":
                    one.disconnect()
                    shard.sleep(510)
                case "leave":
                    one.leave()

        return calls_of(work)

    assert cost(400) <= 1.1 * cost(20)


def test_members_that_leave_nothing_behind_wait_for_the_next_assignment() -> None:
    shard, clients = large_group(20)
    shard.sleep(1_000)
    idle = [client for client in clients if not client.reading]
    before = shard.described().assignment_epoch
    Client(shard, "newest").join()
    assert shard.described().assignment_epoch == before + 1  # the interval was over
    for client in idle[:10]:
        client.leave()
    assert shard.described().assignment_epoch == before + 1
    shard.sleep(1_000)
    assert shard.described().assignment_epoch == shard.described().group_epoch
    assert len(shard.rebalances()) == 4, "the first member's, those of all others, of the newest, of all departures"


def test_a_member_whose_assignment_stays_the_same_gets_no_push() -> None:
    shard, clients = large_group(20)
    shard.sleep(1_000)
    Client(shard, "newest").join()
    informed = [client for client in clients if client.inbox]
    assert not informed
    shard.converge()
    assert {client.epoch for client in clients} == {shard.described().assignment_epoch}


def test_the_last_member_leaves_an_empty_group() -> None:
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a")
    assert shard.groups.empty_since_ms(GROUP) is None
    with pytest.raises(NonEmptyGroupError, match="stop them"):
        shard.groups.delete(GROUP)
    shard.sleep(10)
    a.leave()
    assert shard.described().state is GroupState.EMPTY
    assert shard.groups.empty_since_ms(GROUP) == shard.now_ms
    shard.take_over()
    assert shard.groups.empty_since_ms(GROUP) == shard.now_ms
    assert shard.groups.is_empty(GROUP)
    shard.log += shard.groups.delete(GROUP).records
    assert not shard.groups.exists(GROUP)
    shard.take_over()
    assert not shard.groups.exists(GROUP)
    with pytest.raises(GroupIdNotFoundError):
        shard.groups.delete(GROUP)


# -- time -------------------------------------------------------------------------------------------------------------


def test_a_silent_member_goes_after_its_session() -> None:
    shard = GroupShardWorld(orders=2)
    a, b = shard.join("a", "b")
    for _ in range(9):
        shard.sleep(4_990)
        b.heartbeat()
    assert len(shard.described().members) == 2
    shard.sleep(100)
    assert a.inbox, "its stream still stands, so it receives the reason"
    a.hear_all()
    assert a.removed is not None
    assert "session" in a.removed.reason
    shard.converge()
    assert b.reading == parts("orders", 0, 1)
    a.is_member = True
    a.heartbeat()
    assert isinstance(a.error, UnknownMemberIdError)
    assert "sent no heartbeat" in str(a.error)


def test_a_killed_member_is_gone_after_the_grace() -> None:
    shard = GroupShardWorld(orders=2)
    a, b = shard.join("a", "b")
    a.die()
    shard.sleep(499)
    assert len(shard.described().members) == 2
    shard.sleep(1)
    shard.converge()
    assert b.reading == parts("orders", 0, 1)


def test_a_connection_that_comes_back_within_the_grace_costs_nothing() -> None:
    shard = GroupShardWorld(orders=2)
    a, _ = shard.join("a", "b")
    epoch = shard.described().group_epoch
    a.disconnect()
    shard.sleep(400)
    a.heartbeat()
    shard.sleep(5_000)
    assert shard.described().group_epoch == epoch
    assert len(shard.described().members) == 2


def test_where_connections_flap_the_grace_grows() -> None:
    shard = GroupShardWorld(orders=2)
    a, _ = shard.join("a", "b")
    a.disconnect()
    shard.sleep(400)
    a.heartbeat()
    a.disconnect()
    shard.sleep(900)
    assert len(shard.described().members) == 2
    shard.sleep(100)
    assert len(shard.described().members) == 1


def test_a_coordinator_that_stood_still_blames_nobody() -> None:
    shard = GroupShardWorld(orders=2)
    shard.join("a", "b")
    shard.now_ms += 3_600_000
    shard.tick()
    assert len(shard.described().members) == 2
    shard.sleep(50_000)
    assert len(shard.described().members) == 0, "but after that the time runs as before"


def test_a_clock_that_goes_back_does_not_stop_time_outs() -> None:
    shard = GroupShardWorld(orders=2)
    shard.join("a")
    shard.now_ms -= 3_600_000
    shard.ask(ListGroups())
    shard.sleep(50_000)
    assert len(shard.described().members) == 0


def test_a_group_has_its_own_session_time_out() -> None:
    shard = GroupShardWorld(orders=2)
    shard.ask(GroupConfigChanged(GROUP, session_timeout_ms=60_000, heartbeat_interval_ms=15_000))
    a = Client(shard, "a")
    reply = a.join()
    assert (reply.session_timeout_ms, reply.heartbeat_interval_ms) == (60_000, 15_000)
    shard.sleep(59_000)
    assert len(shard.described().members) == 1
    shard.ask(GroupConfigChanged(GROUP))
    shard.tick()
    assert len(shard.described().members) == 0


def test_a_change_of_coordinators_costs_no_member_anything() -> None:
    shard = GroupShardWorld(orders=4)
    members = shard.join("a", "b")
    shard.sleep(44_000)
    before, records = shard.described(), len(shard.log)
    shard.take_over()
    assert shard.described() == before
    assert len(shard.log) == records, "nothing was to be written"
    shard.sleep(44_000)
    for client in members:
        reply = client.heartbeat()
        assert reply.assignment is None, "it knows what it has"
    assert shard.described() == before


# -- static members ---------------------------------------------------------------------------------------------------


def test_a_rolling_restart_of_static_members_moves_nothing() -> None:
    shard = GroupShardWorld(orders=6)
    old = [shard.join(f"{name}1", instance_id=name)[0] for name in "abc"]
    epoch, shares = shard.described().group_epoch, {client.about["instance_id"]: client.reading for client in old}
    for client in old:
        instance_id = client.about["instance_id"]
        client.leave(temporarily=True)
        shard.sleep(20_000)
        for each in shard.clients.values():
            each.heartbeat()
        new = Client(shard, f"{instance_id}2", instance_id=instance_id)
        assert new.join().assignment == shares[instance_id]
    shard.converge()
    assert shard.described().group_epoch == epoch
    assert len(shard.described().members) == 3


def test_a_killed_static_member_keeps_its_share_for_its_session() -> None:
    shard = GroupShardWorld(orders=2)
    a, b = shard.join("a", instance_id="one")[0], shard.join("b", instance_id="two")[0]
    mine = a.reading
    a.die()
    shard.sleep(300)
    with pytest.raises(UnreleasedInstanceIdError, match="not left"):
        shard.ask(Heartbeat(GROUP, "c", 0, 9, instance_id="one", topics=("orders",), rebalance_timeout_ms=1))
    shard.sleep(300)
    c = Client(shard, "c", instance_id="one")
    assert c.join().assignment == mine, "after the grace its process can be replaced"
    a.is_member = True
    a.heartbeat()
    assert isinstance(a.error, FencedInstanceIdError)
    with pytest.raises(FencedInstanceIdError):
        shard.groups.check_commit(GROUP, "a", 1, "one")
    c.die()
    for _ in range(10):
        shard.sleep(4_400)
        b.heartbeat()
    assert len(shard.described().members) == 2
    shard.sleep(1_000)
    shard.converge()
    assert b.reading == parts("orders", 0, 1)


def test_a_live_static_member_is_not_replaced() -> None:
    shard = GroupShardWorld(orders=2)
    shard.join("a", instance_id="one")
    twin = Client(shard, "b", instance_id="one")
    twin.join()
    assert isinstance(twin.error, UnreleasedInstanceIdError)


def test_who_is_away_holds_nobody_up() -> None:
    """Partitions that the member must no longer own are free at once, because the member reads none."""
    shard = GroupShardWorld(orders=4)
    a = shard.join("a", instance_id="one")[0]
    a.leave(temporarily=True)
    b = Client(shard, "b")
    assert len(b.join().assignment) == 2
    assert shard.described().state is GroupState.STABLE
    back = Client(shard, "a2", instance_id="one")
    assert len(back.join().assignment) == 2


def test_a_static_member_that_was_cut_off_comes_back_to_what_is_left() -> None:
    shard = GroupShardWorld(orders=4)
    (a,) = shard.join("a", instance_id="one")
    a.disconnect()
    shard.sleep(1_000)
    a.pause_if_cut_off()
    b = Client(shard, "b")
    assert len(b.join().assignment) == 2
    a.heartbeat()
    a.hear_all()
    assert len(a.reading) == 2
    assert not a.reading & b.inbox[0].assignment  # type: ignore[attr-defined]


def test_only_a_static_member_can_be_away() -> None:
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a")
    with pytest.raises(InvalidRequestError, match="cannot leave temporarily"):
        a.leave(temporarily=True)


def test_an_admin_takes_a_member_out() -> None:
    shard = GroupShardWorld(orders=2)
    shard.join("a", "b")
    shard.ask(Leave(GROUP, "a"))
    shard.clients["a"].is_member = False
    shard.converge()
    assert shard.clients["b"].reading == parts("orders", 0, 1)


# -- subscriptions ----------------------------------------------------------------------------------------------------


def test_partitions_that_are_added_are_read_at_once() -> None:
    shard = GroupShardWorld(orders=2)
    a, b = shard.join("a", "b")
    kept = {client.name: client.reading for client in (a, b)}
    shard.set_topics(topics(orders=6))
    a.hear_all()
    b.hear_all()
    assert len(a.reading) == len(b.reading) == 3
    assert a.reading > kept["a"]
    assert b.reading > kept["b"]


def test_a_pattern_takes_topics_that_come_and_lets_go_of_those_that_go() -> None:
    shard = GroupShardWorld(**{"eu.orders": 1, "us.orders": 1, "other": 1, "__consumer_offsets": 50})
    client = Client(shard, "a", subscribes=(), topic_regex=r"[a-z]+\.orders|__.*")
    assert client.join().assignment == parts("eu.orders", 0) | parts("us.orders", 0), "whole names, nothing internal"
    client.hear_all()
    shard.set_topics(topics(**{"eu.orders": 1, "xeu.orders.old": 1, "asia.orders": 2}))
    shard.converge()
    assert client.reading == parts("eu.orders", 0) | parts("asia.orders", 0, 1)
    assert shard.groups.subscribed(GROUP, {"any.orders", "__consumer_offsets"}) == {"any.orders"}


def test_a_pattern_with_the_name_of_an_internal_topic_matches_it() -> None:
    """franz-go sends such a pattern, and Kafka's coordinator also assigns internal topics."""
    shard = GroupShardWorld(orders=1, __consumer_offsets=2, __transaction_state=1)
    client = Client(shard, "a", subscribes=(), topic_regex=r".*(?:orders|_\_consumer_offsets).*")
    assert client.join().assignment == parts("orders", 0) | parts("__consumer_offsets", 0, 1)
    assert shard.groups.subscribed(GROUP, {"__consumer_offsets", "__transaction_state"}) == {"__consumer_offsets"}


def _may_describe(**names: str) -> Authorizer:
    """ACLs: each named user may, from 10.0.0.1, describe the topics in its text."""
    kind, operation, allow = ResourceType.TOPIC, Operation.DESCRIBE, Permission.ALLOW
    return Authorizer(
        AclRecord(bytes(16), kind, topic, PatternType.LITERAL, f"User:{user}", "10.0.0.1", operation, allow)
        for user, allowed in names.items()
        for topic in allowed.split()
    )


def test_a_pattern_takes_only_topics_that_the_member_may_describe() -> None:
    shard = GroupShardWorld(orders=1, audit=1, pay=1)
    shard.set_authorizer(_may_describe(ann="orders audit", bob="audit", eve=""))
    of = {"subscribes": (), "topic_regex": ".*", "principal_host": "10.0.0.1"}
    (ann,) = shard.join("ann", **of, principal="User:ann")
    assert ann.reading == parts("orders", 0) | parts("audit", 0)
    (eve,) = shard.join("eve", **of, principal="User:eve")
    (elsewhere,) = shard.join("elsewhere", **(of | {"principal_host": "10.0.0.2"}), principal="User:ann")
    assert eve.reading == elsewhere.reading == frozenset()
    (bob,) = shard.join("bob", **of, principal="User:bob")
    assert bob.reading == parts("audit", 0)
    assert ann.reading == parts("orders", 0)


def test_a_pattern_follows_the_acls() -> None:
    shard = GroupShardWorld(orders=1, audit=1)
    shard.set_authorizer(_may_describe(ann="orders", bob=""))
    of = {"subscribes": (), "topic_regex": ".*", "principal_host": "10.0.0.1"}
    ann, bob = shard.join("ann", **of, principal="User:ann")[0], shard.join("bob", **of, principal="User:bob")[0]
    assert (ann.reading, bob.reading) == (parts("orders", 0), frozenset())
    shard.set_authorizer(_may_describe(ann="orders", bob="audit"))
    shard.converge()
    assert (ann.reading, bob.reading) == (parts("orders", 0), parts("audit", 0))
    shard.set_authorizer(_may_describe(ann="", bob="orders audit"))  # the group reads the same topics
    shard.converge()
    assert (ann.reading, bob.reading) == (frozenset(), parts("orders", 0) | parts("audit", 0))
    shard.take_over()
    ann.heartbeat()
    bob.heartbeat()
    shard.converge()
    assert ann.reading == frozenset(), "another coordinator knows for whom the pattern is"
    shard.set_authorizer(None)
    shard.converge()
    assert len(ann.reading) == len(bob.reading) == 1


def test_a_member_from_before_the_authorizer_is_limited_from_its_next_heartbeat() -> None:
    shard = GroupShardWorld(orders=1, audit=1)
    (ann,) = shard.join("ann", subscribes=(), topic_regex=".*", principal_host="10.0.0.1", principal="")
    shard.set_authorizer(_may_describe(ann="orders"))
    ann.heartbeat(principal="User:ann")
    shard.converge()
    assert ann.reading == parts("orders", 0)


@pytest.mark.parametrize(("host", "checks"), [("*", 2), ("10.0.0.1", 40)])
def test_members_on_many_hosts_share_a_pattern_unless_acls_name_hosts(host: str, checks: int) -> None:
    """Otherwise each change of a topic would cost a check of every topic for every host."""
    asked: list[str] = []

    class Counting(Authorizer):
        def allows(self, caller: Caller, operation: int, resource_type: int, name: str) -> bool:
            asked.append(name)
            return super().allows(caller, operation, resource_type, name)

    entry = AclRecord(
        bytes(16), ResourceType.TOPIC, "a", PatternType.LITERAL, "User:ann", host, Operation.DESCRIBE, Permission.ALLOW
    )
    topics_ = Topics()
    topics_.replace(topics(a=1, b=1), Counting([entry]))
    for number in range(20):
        topics_.resolve(Subscription((), ".*", "User:ann", f"10.0.0.{number}"))
    assert len(asked) == checks


def test_new_acls_change_no_group_without_a_pattern() -> None:
    shard = GroupShardWorld(orders=1)
    shard.join("ann", principal="User:ann")
    records = len(shard.log)
    shard.set_authorizer(_may_describe(bob="orders"))
    assert len(shard.log) == records


def test_a_topic_that_is_made_anew_is_another_one() -> None:
    shard = GroupShardWorld(orders=1)
    (a,) = shard.join("a")
    before = a.reading
    shard.set_topics({"orders": topics(orders=1)["orders"]._replace(topic_id=b"n" * 16)})
    shard.converge()
    assert a.reading == {(b"n" * 16, 0)} != before


def test_a_topic_that_nobody_subscribes_to_changes_no_group() -> None:
    shard = GroupShardWorld(orders=1)
    shard.join("a")
    records = len(shard.log)
    shard.set_topics(topics(orders=1, other=5))
    assert len(shard.log) == records
    assert shard.groups.next_due_ms() is not None


def test_a_member_changes_what_it_subscribes_to() -> None:
    shard = GroupShardWorld(orders=2, audit=2)
    (a,) = shard.join("a")
    shard.ask(
        Heartbeat(GROUP, "a", a.epoch, a.connection or 0, topics=("audit",), owned=a.reading, revision=a.revision)
    )
    a.heartbeat()
    a.hear_all()
    shard.converge()
    assert a.reading == parts("audit", 0, 1)
    assert not shard.groups.subscribed(GROUP, {"orders"})


def test_a_pattern_that_would_take_forever_does_not() -> None:
    shard = GroupShardWorld(**{"a" * 200: 1})
    client = Client(shard, "a", subscribes=(), topic_regex="(a*)*b")
    assert client.join().assignment == frozenset()


def test_most_members_choose_the_assignor() -> None:
    shard = GroupShardWorld(orders=2)
    shard.join("a", assignor="range")
    assert shard.described().assignor == "range"
    shard.join("b", assignor="sticky")
    shard.join("c", assignor="sticky")
    assert shard.described().assignor == "sticky"


# -- who is not let in ------------------------------------------------------------------------------------------------


def test_a_topic_with_a_name_that_no_topic_can_have_is_no_error() -> None:
    shard = GroupShardWorld(orders=1)
    reply = shard.ask(Heartbeat(GROUP, "a", 0, 1, topics=("no/slash", "orders"), rebalance_timeout_ms=1_000))
    assert reply.member_epoch == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"group_id": ""}, InvalidGroupIdError),
        ({"group_id": "g" * 250}, InvalidGroupIdError),
        ({"member_id": ""}, InvalidRequestError),
        ({"member_id": "m" * 250}, InvalidRequestError),
        ({"instance_id": ""}, InvalidRequestError),
        ({"member_epoch": -3}, InvalidRequestError),
        ({"rebalance_timeout_ms": None}, InvalidRequestError),
        ({"rebalance_timeout_ms": 0}, InvalidRequestError),
        ({"topics": None}, InvalidRequestError),
        ({"topics": ("t" * 250,)}, InvalidTopicError),
        ({"topics": ("t",) * 5_001}, InvalidRequestError),
        ({"owned": parts("orders", 0)}, InvalidRequestError),
        ({"topic_regex": "a("}, InvalidRegularExpressionError),
        ({"topic_regex": r"(a)\1"}, InvalidRegularExpressionError),
        ({"topic_regex": "a" * 1_025}, InvalidRegularExpressionError),
        ({"assignor": "cooperative"}, UnsupportedAssignorError),
    ],
)
def test_a_join_that_makes_no_sense_changes_nothing(change: dict[str, object], error: type[Exception]) -> None:
    shard = GroupShardWorld(orders=1)
    request = Heartbeat(GROUP, "a", 0, 1, topics=("orders",), rebalance_timeout_ms=1_000)._replace(**change)
    with pytest.raises(error):
        shard.ask(request)
    assert shard.log == []
    assert shard.groups.group_ids() == ()


@pytest.mark.parametrize("letter", ["n", "\u00e9", "\U0001f600"])
def test_the_record_of_the_longest_subscription_fits_into_a_batch(letter: str) -> None:
    """A leader would refuse a larger batch, and the shard would lose its state at each attempt of the member."""
    settings, largest = GroupSettings(), 0
    for count in (500, 1_000, 3_000, settings.topics_max):
        shard = GroupShardWorld(orders=1)
        names = tuple(f"{number:04}" + letter * 245 for number in range(count))
        request = Heartbeat(GROUP, "a", 0, 1, topics=names, rebalance_timeout_ms=1_000)
        if sum(len(name.encode()) for name in names) > settings.topics_bytes_max:
            with pytest.raises(InvalidRequestError, match="use a pattern"):
                shard.ask(request)
            assert shard.log == []
        else:
            shard.ask(request)
            largest = max(largest, *(len(encode_batch([(0, key, value, None)])) for key, value in shard.log))
    assert 0 < largest <= OffsetSettings().commit_bytes_max


def test_a_full_group_takes_nobody_else_but_its_static_members() -> None:
    shard = GroupShardWorld(GroupSettings(assignment_interval_ms=0, max_size=1), orders=1)
    (a,) = shard.join("a", instance_id="one")
    b = Client(shard, "b")
    b.join()
    assert isinstance(b.error, GroupMaxSizeReachedError)
    a.leave(temporarily=True)
    assert Client(shard, "a2", instance_id="one").join().assignment == parts("orders", 0)


def test_nobody_joins_before_it_is_known_which_topics_there_are() -> None:
    from headrace_coordinator.group.groups import Groups

    groups = Groups()
    groups.loaded(0)
    with pytest.raises(CoordinatorLoadInProgressError):
        groups.handle(Heartbeat(GROUP, "a", 0, 1, topics=("orders",), rebalance_timeout_ms=1), 0)


def test_who_is_not_in_the_group_is_asked_to_join() -> None:
    shard = GroupShardWorld(orders=1)
    with pytest.raises(UnknownMemberIdError, match="join again"):
        shard.ask(Heartbeat(GROUP, "a", 3, 1))
    with pytest.raises(UnknownMemberIdError):
        shard.ask(Leave(GROUP, "a"))
    with pytest.raises(InvalidRequestError, match="cannot handle"):
        shard.ask(object())


# -- commits ----------------------------------------------------------------------------------------------------------


def test_a_commit_needs_the_member_s_epoch() -> None:
    shard = GroupShardWorld(orders=4)
    (a,) = shard.join("a")
    epoch = a.epoch
    shard.groups.check_commit(GROUP, "a", epoch, None)
    shard.groups.check_fetch(GROUP, "a", epoch)
    shard.join("b")
    with pytest.raises(StaleMemberEpochError, match="apply the new assignment"):
        shard.groups.check_commit(GROUP, "a", epoch, None)
    with pytest.raises(StaleMemberEpochError, match="does not exist"):
        shard.groups.check_commit(GROUP, "a", a.epoch + 1, None)
    shard.groups.check_fetch(GROUP, "a", epoch)
    with pytest.raises(UnknownMemberIdError):
        shard.groups.check_commit(GROUP, "z", epoch, None)
    with pytest.raises(StaleMemberEpochError):
        shard.groups.check_fetch(GROUP, "a", a.epoch + 1)


def test_a_commit_of_an_older_epoch_counts_for_what_the_member_has_had_since() -> None:
    """KIP-1251: a rebalance that does not revoke a partition does not refuse the commits of its reader."""
    shard = GroupShardWorld(orders=4)
    (a,) = shard.join("a")
    epoch = a.epoch
    (b,) = shard.join("b")
    kept, lost = ([("orders", number) for _, number in client.reading] for client in (a, b))
    shard.groups.check_commit(GROUP, "a", epoch, None, kept)
    with pytest.raises(StaleMemberEpochError):
        shard.groups.check_commit(GROUP, "a", epoch, None, kept + lost)
    b.leave()
    shard.converge()
    with pytest.raises(StaleMemberEpochError):  # it owns it again, but another member owned it in between
        shard.groups.check_commit(GROUP, "a", epoch, None, lost)


@pytest.mark.parametrize("takes_over", [False, True], ids=["same coordinator", "next coordinator"])
def test_a_commit_of_an_older_epoch_counts_for_what_the_member_must_release(takes_over: bool) -> None:
    """A member that lags behind two rebalances still reads the partitions that the second one revokes. If its commit
    were refused, the next member would read the same records again (found by a test under load)."""
    shard = GroupShardWorld(orders=4, clicks=1)
    (a,) = shard.join("a")
    epoch = a.epoch
    Client(shard, "b", subscribes=("clicks",)).join()  # a new epoch, in which the first member keeps its partitions
    Client(shard, "c").join()
    current = shard.groups._state.groups[GROUP].members["a"].current
    assert current.epoch > a.epoch == epoch
    revoked = [("orders", number) for _, number in current.revoking]
    assert revoked
    if takes_over:
        shard.take_over()
    shard.groups.check_commit(GROUP, "a", epoch, None, revoked)
    with pytest.raises(StaleMemberEpochError):
        shard.groups.check_commit(GROUP, "a", epoch - 1, None, revoked)


def test_a_commit_of_before_the_member_got_the_partition_again_does_not_count_while_it_is_revoked() -> None:
    shard = GroupShardWorld(orders=4)
    (a,) = shard.join("a")
    epoch = a.epoch
    (b,) = shard.join("b")
    lost = {number for _, number in b.reading}
    b.leave()
    shard.converge()  # the first member has all partitions again; some of them only since now
    Client(shard, "c").join()
    Client(shard, "d").join()
    revoking = shard.groups._state.groups[GROUP].members["a"].current.revoking
    again = [("orders", number) for _, number in revoking if number in lost]
    always = [("orders", number) for _, number in revoking if number not in lost]
    assert again
    for part in again:
        with pytest.raises(StaleMemberEpochError):
            shard.groups.check_commit(GROUP, "a", epoch, None, [part])
        shard.groups.check_commit(GROUP, "a", a.epoch, None, [part])
    for part in always:
        shard.groups.check_commit(GROUP, "a", epoch, None, [part])


def test_a_delayed_commit_does_not_set_back_a_partition_that_two_members_have_released() -> None:
    """The member keeps its epoch, because it has more to release. Meanwhile another member has had the partition, and
    has left (found by simulation)."""
    shard = GroupShardWorld(orders=6)
    (a,) = shard.join("a")
    epoch = a.epoch
    b, c = Client(shard, "b"), Client(shard, "c")
    b.join()
    a.hear(lets_go=False)
    c.join()  # the new target takes more from the first member
    a.let_go()
    a.heartbeat()
    group = shard.groups._state.groups[GROUP]
    passed_on = {part for part, owner in group.owners.items() if owner == "b"}
    b.leave()
    (released,) = passed_on - group.owners.keys()
    assert group.members["a"].current.epoch == epoch
    kept = [("orders", number) for _, number in a.reading]
    shard.groups.check_commit(GROUP, "a", epoch, None, [*kept, ("elsewhere", 0)])
    with pytest.raises(StaleMemberEpochError, match="waits for its next member"):
        shard.groups.check_commit(GROUP, "a", epoch, None, [("orders", released[1])])


def test_who_was_cut_off_commits_nothing_that_was_given_to_another_one_meanwhile() -> None:
    """The member learns its new epoch and the revocation at the same time. The member's last commit has the valid
    epoch, and would set back the offset that another member has committed (found by simulation)."""
    shard = GroupShardWorld(orders=4)
    (a,) = shard.join("a", instance_id="one")
    had = a.reading
    a.disconnect()
    shard.sleep(shard.settings.connection_grace_ms + 1)
    b = Client(shard, "b", instance_id="two")
    b.join()
    b.hear_all()
    a.heartbeat()
    a.hear(lets_go=False)
    kept, lost = ([("orders", number) for _, number in parts] for parts in (had - b.reading, b.reading))
    assert lost
    assert a.letting_go == b.reading
    shard.groups.check_commit(GROUP, "a", a.epoch, "one", [*kept, ("elsewhere", 0)])
    with pytest.raises(StaleMemberEpochError, match="belongs to member 'b' now"):
        shard.groups.check_commit(GROUP, "a", a.epoch, "one", kept + lost)
    shard.groups.check_commit(GROUP, "b", b.epoch, "two", lost)


def test_strangers_commit_only_to_groups_without_members() -> None:
    shard = GroupShardWorld(orders=1)
    (a,) = shard.join("a")
    with pytest.raises(UnknownMemberIdError, match=r"\(1 member\)"):
        shard.groups.check_commit(GROUP, "", -1, None)
    shard.groups.check_fetch(GROUP, "", -1)
    a.leave()
    shard.groups.check_commit(GROUP, "", -1, None)


# -- why did I rebalance? ---------------------------------------------------------------------------------------------


def test_a_rebalance_is_reported_with_its_reason_its_moves_and_how_long_nobody_read() -> None:
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a", client_id="billing")
    shard.join("b", client_id="billing")
    mine = [number for _, number in a.reading]
    shard.sleep(1_000)
    a.die()
    shard.sleep(500)
    shard.sleep(20)
    shard.converge()
    last = shard.rebalances()[-1]
    assert last.reason == (
        "member a (client billing) is gone: its connection broke and it did not reconnect within the grace period"
    )
    assert [(move.topic, move.partition, move.from_member, move.to_member, move.unread_ms) for move in last.moves] == [
        ("orders", mine[0], "a", "b", 520)
    ]
    assert (last.at_ms, last.ended_ms) == (shard.now_ms - 20, shard.now_ms)
    assert last.group_epoch == shard.described().group_epoch
    before = shard.rebalances()
    shard.take_over()
    assert shard.rebalances() == before


def test_only_the_last_twenty_rebalances_are_kept() -> None:
    shard = GroupShardWorld(orders=2)
    (a,) = shard.join("a")
    for number in range(15):
        (b,) = shard.join(f"b{number}")
        b.leave()
        shard.converge()
    rebalances = shard.rebalances()
    assert [each.number for each in rebalances] == list(range(12, 32))
    slots = {key for key, value in shard.log if value is not None and key[:2] == (1005).to_bytes(2, "big")}
    assert len(slots) == 20
    assert a.reading == parts("orders", 0, 1)
