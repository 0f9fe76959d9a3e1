"""Groups that change between the classic protocol and KIP-848 while they have members (KIP-848)."""

from __future__ import annotations

import pytest

from headrace_coordinator.classic.messages import ClassicHeartbeat, Join, LeaveClassic, LeavingMember, Left, Sync
from headrace_coordinator.group.messages import DescribeGroup, Heartbeat, Leave
from headrace_coordinator.group.settings import GroupSettings
from headrace_core.errors import (
    FencedInstanceIdError,
    GroupIdNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
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


def test_a_refused_join_leaves_the_classic_group_as_it_was() -> None:
    world = two_classic(max_size=2)
    log = list(world.log)
    with pytest.raises(Exception, match=r"group\.consumer\.max\.size"):
        world.new_consumer("c").step()
    assert (world.log, world.type()) == (log, "classic")
    for each in world.consumers[:2]:
        each.step()
        assert each.errors == []


def test_members_that_wait_are_told_to_join_again() -> None:
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
    assert {name: each.protocol for name, each in described.items()} == {
        "a": "classic",
        "b": "classic",
        "c": "consumer",
    }
    assert all(len(each.assigned) == 2 for each in described.values())


def test_a_classic_member_that_is_told_to_join_and_does_not_is_removed() -> None:
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
