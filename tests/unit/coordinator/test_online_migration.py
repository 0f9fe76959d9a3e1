"""Groups that change between the classic protocol and KIP-848 while they have members (KIP-848)."""

from __future__ import annotations

import pytest

from headrace_coordinator.classic.consumer_protocol import encode_assignment
from headrace_coordinator.classic.messages import ClassicHeartbeat, Join, LeaveClassic, LeavingMember, Left, Sync
from headrace_coordinator.group.messages import DescribeGroup, Disconnected, Heartbeat, Leave, TopicsChanged
from headrace_coordinator.group.settings import GroupSettings
from headrace_coordinator.group_types import GroupsOfBothTypes
from headrace_core.errors import (
    CoordinatorLoadInProgressError,
    FencedInstanceIdError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from tests.worlds.group_world import topics
from tests.worlds.migration_world import COOPERATIVE, EAGER, GROUP, ClassicConsumer, MigrationWorld, subscription

PROTOCOLS = pytest.mark.parametrize("protocol", [COOPERATIVE, EAGER])


def classic_of(world: MigrationWorld) -> list[ClassicConsumer]:
    return [each for each in world.consumers if isinstance(each, ClassicConsumer)]


def two_classic(protocol: str = COOPERATIVE, **settings: object) -> MigrationWorld:
    """A classic group of two members, which read three partitions each."""
    world = MigrationWorld(GroupSettings(assignment_interval_ms=0, **settings), orders=6)  # type: ignore[arg-type]
    world.classic_consumer("a", protocol=protocol)
    world.classic_consumer("b", protocol=protocol)
    world.settle()
    assert world.type() == "classic"
    assert [len(each.reading) for each in world.consumers] == [3, 3]
    return world


@PROTOCOLS
def test_a_group_is_rolled_from_one_protocol_to_the_other_and_back(protocol: str) -> None:
    world = two_classic(protocol)
    a, b = classic_of(world)
    c = world.new_consumer("c")
    c.step()
    assert world.type() == "consumer"
    world.settle()
    assert sorted(len(each.reading) for each in world.alive()) == [2, 2, 2]
    assert set(a.errors) | set(b.errors) == {"REBALANCE_IN_PROGRESS"}, "no member lost its place"
    a.leave()
    world.settle()
    b.leave()
    world.settle()
    assert (world.type(), len(c.reading)) == ("consumer", 6)
    d = world.classic_consumer("d", protocol=protocol)
    world.settle()
    assert (world.type(), len(c.reading), len(d.reading)) == ("consumer", 3, 3)
    c.leave()
    world.tick()
    assert world.type() == "classic"
    world.settle()
    assert len(d.reading) == 6
    assert set(d.errors) == {"REBALANCE_IN_PROGRESS"}


def test_cooperative_members_go_on_reading_what_they_keep() -> None:
    world = two_classic()
    before = [each.reading for each in world.consumers]
    world.new_consumer("c")
    for _ in range(20):
        for each in world.alive():
            each.step()
        assert all(len(each.reading & had) >= 2 for each, had in zip(world.consumers, before, strict=False))
    world.settle()


@PROTOCOLS
def test_a_change_of_coordinators_changes_nothing(protocol: str) -> None:
    world = two_classic(protocol)
    world.new_consumer("c")
    world.settle()
    before = [(each.reading, len(each.errors)) for each in world.alive()]
    world.take_over()
    for _ in range(3):
        for each in world.alive():
            each.step()
    assert [(each.reading, len(each.errors)) for each in world.alive()] == before


def test_a_partition_that_a_member_has_not_stopped_yet_goes_to_no_other_member() -> None:
    """The leader has taken a partition from a member, whose answer to SyncGroup is still on its way, when the group
    changes its type."""
    world = two_classic()
    leader, other = classic_of(world)
    third = world.classic_consumer("third")
    while not (other.waits_for_sync and leader.wants == "sync"):
        for each in (third, leader, other):
            if not (each is leader and each.wants == "sync"):
                each.step()
    leader.step()
    had = other.reading
    new = world.new_consumer("new")
    for _ in range(6):
        new.step()
        third.step()
        world.check_readers()
    assert (world.type(), other.reading) == ("consumer", had)
    world.settle()
    assert new.reading


def test_a_static_member_is_replaced_by_a_process_with_the_new_protocol_and_back() -> None:
    world = MigrationWorld(orders=4)
    old = world.classic_consumer("old", instance_id="host-1")
    other = world.classic_consumer("other", instance_id="host-2")
    world.settle()
    had = old.reading
    old.leave()
    new = world.new_consumer("new", instance_id="host-1")
    new.step()
    assert (world.type(), new.reading) == ("consumer", had), "its place, without a rebalance"
    assert other.errors == []
    world.settle()
    new.die()  # a static member of the classic protocol takes the place of one that has not left
    back = world.classic_consumer("back", instance_id="host-1")
    back.step()
    world.tick()
    assert world.type() == "classic", "the last member of the new protocol was replaced"
    world.settle()
    assert len(back.reading) == len(other.reading) == 2
    with pytest.raises(FencedInstanceIdError):
        world.ask(ClassicHeartbeat(GROUP, "new", 1, "host-1"))


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_the_policy_forbids_an_upgrade(policy: str) -> None:
    world = two_classic(migration_policy=policy)
    log = list(world.log)
    with pytest.raises(GroupIdNotFoundError, match=r"group\.consumer\.migration\.policy"):
        world.new_consumer("c").step()
    assert (world.log, world.type()) == (log, "classic")


@pytest.mark.parametrize("policy", ["disabled", "upgrade"])
def test_the_policy_forbids_a_downgrade(policy: str) -> None:
    world = MigrationWorld(GroupSettings(assignment_interval_ms=0, migration_policy=policy))
    new = world.new_consumer("new")
    world.settle()
    old = world.classic_consumer("old")
    world.settle()
    new.leave()
    world.settle()
    assert (world.type(), len(old.reading)) == ("consumer", 6)


def test_a_group_whose_members_are_no_consumers_cannot_change() -> None:
    world = MigrationWorld()
    joined = world.ask(Join(GROUP, "", "w", 45_000, 60_000, "connect", (("sessioned", b"x"),), world.ticket()))
    assert joined is not None
    with pytest.raises(GroupIdNotFoundError, match="of type 'connect'"):
        world.new_consumer("c").step()


@pytest.mark.parametrize(("said", "assignment"), [(b"\0", b""), (subscription(["orders"]), b"\0\0\0\0\0\0\0\0\0\1u")])
def test_data_that_only_the_members_understand_are_not_lost(said: bytes, assignment: bytes) -> None:
    world = MigrationWorld()
    ticket = world.ticket()
    world.ask(Join(GROUP, "", "m", 45_000, 60_000, "consumer", (("own", said),), ticket))
    world.ask(Sync(GROUP, "m", 1, world.ticket(), assignments=(("m", assignment),)))
    log = list(world.log)
    with pytest.raises(GroupIdNotFoundError, match="cannot change to the new group protocol"):
        world.new_consumer("c").step()
    assert (world.log, world.type()) == (log, "classic")
    world.ask(ClassicHeartbeat(GROUP, "m", 1))


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_user_data_of_the_clients_own_assignors_forbid_no_change(assignor: str) -> None:
    """librdkafka's cooperative-sticky copies the subscription's user data into the assignment. The join of a member of
    the new protocol failed with GROUP_ID_NOT_FOUND, which is fatal for librdkafka, in one roll of six."""
    world = MigrationWorld()
    said, assignment = subscription(["orders"]), encode_assignment([("orders", 0)], 0)[:-4] + b"\0\0\0\1u"
    world.ask(Join(GROUP, "", "m", 45_000, 60_000, "consumer", ((assignor, said),), world.ticket()))
    world.ask(Sync(GROUP, "m", 1, world.ticket(), assignments=(("m", assignment),)))
    world.new_consumer("c").step()
    assert world.type() == "consumer"


def test_a_refused_join_leaves_the_classic_group_as_it_was() -> None:
    world = two_classic(max_size=2)
    log = list(world.log)
    with pytest.raises(Exception, match=r"group\.consumer\.max\.size"):
        world.new_consumer("c").step()
    assert (world.log, world.type()) == (log, "classic")
    for each in world.consumers[:2]:
        each.step()
        assert each.errors == []


def test_members_that_wait_join_again() -> None:
    world = two_classic()
    a, b = classic_of(world)
    late = world.classic_consumer("late")
    late.step()
    late.step()  # waits for the others
    assert late.is_waiting
    world.new_consumer("c").step()
    late.step()
    assert late.errors == ["REBALANCE_IN_PROGRESS"]
    world.settle()
    assert sorted(len(each.reading) for each in world.alive()) == [1, 1, 2, 2]
    assert set(a.errors) | set(b.errors) == {"REBALANCE_IN_PROGRESS"}


def test_a_classic_member_of_the_group_is_described_as_one() -> None:
    world = two_classic()
    world.new_consumer("c")
    world.settle()
    described = {each.client_id: each for each in world.ask(DescribeGroup(GROUP)).members}
    assert {name: each.is_classic for name, each in described.items()} == {"a": True, "b": True, "c": False}
    assert all(len(each.assigned) == 2 for each in described.values())


def test_a_classic_member_that_does_not_join_again_in_time_is_removed() -> None:
    world = two_classic(protocol=EAGER)
    a, b = classic_of(world)
    c = world.new_consumer("c")
    world.settle()
    world.new_consumer("d").step()
    for _ in range(13):  # b sends heartbeats only, for more than its rebalance timeout
        world.sleep(5_000)
        a.step()
        c.step()
        world.alive()[-1].step()
        try:
            world.ask(ClassicHeartbeat(GROUP, b.member_id, b.generation))
        except RebalanceInProgressError:
            continue
        except UnknownMemberIdError:
            break
    with pytest.raises(UnknownMemberIdError, match=r"max\.poll\.interval\.ms"):
        world.ask(ClassicHeartbeat(GROUP, b.member_id, b.generation))


def test_a_classic_member_has_its_own_session_timeout() -> None:
    world = MigrationWorld(orders=2)
    short = world.classic_consumer("short", session_timeout_ms=10_000)
    new = world.new_consumer("new")
    world.settle()
    for _ in range(3):
        world.sleep(4_000)
        new.step()
    with pytest.raises(UnknownMemberIdError):
        world.ask(ClassicHeartbeat(GROUP, short.member_id, short.generation))
    assert world.type() == "consumer"


def test_an_old_generation_is_refused() -> None:
    world = two_classic()
    a = classic_of(world)[0]
    world.new_consumer("c")
    world.settle()
    for request in (
        ClassicHeartbeat(GROUP, a.member_id, a.generation - 1),
        Sync(GROUP, a.member_id, a.generation - 1, world.ticket()),
    ):
        with pytest.raises(IllegalGenerationError):
            world.ask(request)
    with pytest.raises(IllegalGenerationError):
        world.groups.check_commit(GROUP, a.member_id, a.generation - 1, None, None)
    world.groups.check_commit(GROUP, a.member_id, a.generation, None, a.reading)


def test_members_of_another_type_or_assignor_are_refused() -> None:
    world = two_classic()
    world.new_consumer("c")
    world.settle()
    said = subscription(["orders"])
    for kind, protocol, data in (
        ("connect", COOPERATIVE, said),
        ("consumer", EAGER, said),
        ("consumer", COOPERATIVE, b""),
    ):
        with pytest.raises(InconsistentGroupProtocolError):
            world.ask(Join(GROUP, "", "x", 45_000, 60_000, kind, ((protocol, data),), world.ticket()))


def test_each_protocol_is_refused_under_the_id_of_a_member_of_the_other() -> None:
    world = two_classic()
    a = classic_of(world)[0]
    world.new_consumer("c")
    world.settle()
    with pytest.raises(UnknownMemberIdError, match="uses the classic protocol"):
        world.ask(Heartbeat(GROUP, a.member_id, a.generation, 0))
    with pytest.raises(UnknownMemberIdError, match="uses the classic protocol"):
        world.ask(Leave(GROUP, a.member_id, connection=0))
    with pytest.raises(UnknownMemberIdError, match="uses the new group protocol"):
        world.ask(ClassicHeartbeat(GROUP, "c", 1))
    left: Left = world.ask(LeaveClassic(GROUP, (LeavingMember("c"), LeavingMember(a.member_id))))
    assert [type(error) for error in left.errors] == [UnknownMemberIdError, type(None)]


def test_a_member_without_a_stream_may_commit_with_the_epoch_that_it_knows() -> None:
    """An earlier version moved the member to a later epoch when others left and joined; its commit of a partition that
    it was about to lose was refused, and the records were read twice."""
    world = MigrationWorld(orders=6)
    first, second = world.new_consumer("first"), world.new_consumer("second")
    world.settle()
    first.leave()
    world.new_consumer("third").step()
    world.new_consumer("fourth").step()
    world.groups.check_commit(GROUP, "second", second.epoch, None, second.reading)
    world.settle()


# -- found by a review


def test_data_of_a_protocol_that_the_group_does_not_use_are_checked_too() -> None:
    """An earlier version read them when it changed the group back, and its shard loaded again and again."""
    world = MigrationWorld()
    said = subscription(["orders"])
    protocols = (("own", b"\0"), ("range", said))
    tickets = [world.ticket(), world.ticket()]
    world.ask(Join(GROUP, "", "m", 45_000, 60_000, "consumer", protocols, tickets[0]))
    world.ask(Join(GROUP, "", "k", 45_000, 60_000, "consumer", (("range", said),), tickets[1]))
    world.ask(Join(GROUP, "m", "", 45_000, 60_000, "consumer", protocols, world.ticket()))
    with pytest.raises(GroupIdNotFoundError, match="cannot be read"):
        world.new_consumer("c").step()
    assert world.type() == "classic"


@PROTOCOLS
def test_after_a_change_back_and_a_take_over_every_partition_has_a_reader(protocol: str) -> None:
    """The record of the classic group must say that no member has assigned its partitions yet."""
    world = two_classic(protocol)
    c = world.new_consumer("c")
    world.settle()
    c.leave()
    world.tick()
    assert world.type() == "classic"
    world.take_over()
    world.settle()
    assert [len(each.reading) for each in world.alive()] == [3, 3]


@PROTOCOLS
def test_a_coordinator_that_stops_before_a_group_changes_back_leaves_that_to_the_next_one(protocol: str) -> None:
    world = two_classic(protocol)
    c = world.new_consumer("c")
    world.settle()
    c.leave()
    assert world.type() == "consumer"
    world.take_over()
    world.tick()
    assert world.type() == "classic"
    world.settle()
    assert [len(each.reading) for each in world.alive()] == [3, 3]


def test_a_group_that_is_too_large_to_change_back_at_once_does_not() -> None:
    world = MigrationWorld(orders=6)
    new = world.new_consumer("new")
    world.settle()
    old = [world.classic_consumer(f"old{number}", data=b"x" * 60_000) for number in range(5)]
    world.settle()
    new.leave()
    world.settle()
    assert world.type() == "consumer"
    assert sorted(len(each.reading) for each in old) == [1, 1, 1, 1, 2]


def test_a_member_that_was_removed_gives_up_its_partitions_before_it_joins_again() -> None:
    world = two_classic()
    a, b = classic_of(world)
    new = world.new_consumer("new")
    world.settle()
    for _ in range(50):  # a is silent for longer than its session timeout
        world.sleep(1_000)
        for each in (b, new):
            each.step()
    assert len(b.reading) + len(new.reading) == 6
    a.wants = "join"
    a.step()
    assert (a.errors[-1], a.reading) == ("UNKNOWN_MEMBER_ID", frozenset())
    world.settle()


def test_partitions_that_the_coordinator_does_not_know_yet_delay_the_change() -> None:
    world = MigrationWorld(orders=6)
    a = world.classic_consumer("a")
    world.settle()
    log = list(world.log)
    known, world.topics = world.topics, topics(orders=4)
    world.ask(TopicsChanged(world.topics))
    new = world.new_consumer("new")
    new.step()
    assert (world.log, world.type(), new.epoch, len(a.reading)) == (log, "classic", 0, 6)
    world.set_topics(known)
    world.settle()
    assert world.type() == "consumer"


def test_before_the_topics_are_known_no_assignment_is_given() -> None:
    world = two_classic()
    a = classic_of(world)[0]
    world.new_consumer("c")
    world.settle()
    groups = GroupsOfBothTypes(world.settings, world.classic)
    for key, value in world.log:
        groups.replay(key, value, 0)
    groups.loaded(world.now_ms)
    with pytest.raises(CoordinatorLoadInProgressError):
        groups.handle(Sync(GROUP, a.member_id, a.generation, 1), world.now_ms)


def test_a_static_member_with_a_stream_is_replaced_when_it_certainly_reads_nothing() -> None:
    world = MigrationWorld(orders=2)
    world.ask(
        Heartbeat(GROUP, "streaming", 0, 7, instance_id="host-1", topics=("orders",), rebalance_timeout_ms=60_000)
    )
    world.ask(Disconnected(GROUP, "streaming", 7))
    successor = Join(
        GROUP, "", "successor", 45_000, 60_000, "consumer", ((COOPERATIVE, subscription(["orders"])),), 1, "host-1"
    )  # fmt: skip
    with pytest.raises(CoordinatorLoadInProgressError, match="has not left; retry"):
        world.ask(successor)
    world.sleep(world.settings.connection_grace_ms)
    assert world.ask(successor).member_id == "successor"


def test_any_protocol_of_a_member_may_be_named_when_it_asks_for_its_assignment() -> None:
    """Its SyncGroup was on its way when the group changed its type."""
    world = MigrationWorld(orders=2)
    world.new_consumer("new")
    world.settle()
    said = subscription(["orders"])
    joined = world.ask(Join(GROUP, "", "m", 45_000, 60_000, "consumer", ((EAGER, said), (COOPERATIVE, said)), 1))
    synced = world.ask(Sync(GROUP, "m", joined.generation, 2, None, "consumer", COOPERATIVE))
    assert synced.protocol == COOPERATIVE
    with pytest.raises(InconsistentGroupProtocolError):
        world.ask(Sync(GROUP, "m", joined.generation, 3, None, "consumer", "sticky"))


def test_the_successor_of_a_static_member_that_had_no_assignment_yet_reads() -> None:
    """Found by the state machine test: nothing had changed, so no target was made."""
    world = MigrationWorld(orders=2)
    world.classic_consumer("old", instance_id="host-1").step()
    world.consumers[0].die()
    new = world.new_consumer("new", instance_id="host-1")
    world.settle()
    assert len(new.reading) == 2


def test_a_partition_that_a_cooperative_leader_had_withheld_is_assigned() -> None:
    """The group changes its type by a static successor between the two rounds of a cooperative rebalance."""
    world = MigrationWorld(orders=4)
    first = world.classic_consumer("first", instance_id="host-1")
    world.settle()
    second = world.classic_consumer("second", instance_id="host-2")
    while len(first.reading) != 2:
        second.step()
        first.step()
    second.die()
    world.new_consumer("successor", instance_id="host-2")
    world.settle()
