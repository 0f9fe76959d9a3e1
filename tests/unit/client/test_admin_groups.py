"""Admin calls on groups: which coordinator gets which request, and the handling of its responses and of lost calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headrace import Admin, AsyncAdmin, GroupListing, OffsetAndMetadata, TopicPartition
from headrace.engine.client import Engine
from headrace.errors import (
    CoordinatorLoadInProgressError,
    GroupIdNotFoundError,
    InvalidArgumentError,
    InvalidGroupIdError,
    NetworkError,
    NonEmptyGroupError,
    RequestTimedOutError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from headrace_protos.v1 import groups_pb2
from tests.worlds.coordinators_standin import StandinGroupsWorld, member, serving

O0, O1, C0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("clicks", 0)


@pytest.fixture
def world() -> Iterator[StandinGroupsWorld]:
    with serving() as found:
        found.committed = {"apple": {tuple(O0): (40, "m")}, "berry": {}}
        found.members = {"berry": [member("m1", "c1", O0), member("m2", "c2", O1, instance_id="i2", rack="r")]}
        yield found


@pytest.fixture
def admin(world: StandinGroupsWorld) -> Iterator[Admin]:
    with Admin(bootstrap_servers=world.coordinators[0].address, retry_backoff_ms=1, retry_backoff_max_ms=20) as client:
        yield client


def test_all_coordinators_are_asked_for_their_groups(world: StandinGroupsWorld, admin: Admin) -> None:
    assert admin.list_groups() == [
        GroupListing("apple", "empty", 0, "classic", ""),
        GroupListing("berry", "stable", 2, "consumer", "consumer"),
    ]
    assert [each.group_id for each in admin.list_groups(["Stable", "reconciling"])] == ["berry"]
    assert list(world.asked_of("ListGroups")[-1].states) == ["stable", "reconciling"]


def test_removing_all_members_makes_one_deadline_of_its_timeout(
    world: StandinGroupsWorld, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[float | None] = []
    deadline = Engine.deadline

    def noted(engine: Engine, timeout_s: float | None = None) -> float:
        made.append(timeout_s)
        return deadline(engine, timeout_s)

    monkeypatch.setattr(Engine, "deadline", noted)
    assert admin.remove_group_members("berry", None, timeout=60.125) == ["m1", "m2"]
    assert made.count(60.125) == 1
    assert all(each is None or each <= 60.125 for each in made)


def test_half_a_list_is_none(world: StandinGroupsWorld, admin: Admin) -> None:
    world.loading = [1, 0, 0, 3]
    assert len(admin.list_groups()) == 2
    assert len(world.asked_of("ListGroups")) == 6, "asked again until no shard is being loaded"
    world.owner = lambda group: 0 if group.startswith("a") else None
    with pytest.raises(RequestTimedOutError, match="1 of 2 group shards have no coordinator"):
        admin.list_groups(timeout=2)


def test_where_nobody_has_used_a_group_there_is_none(world: StandinGroupsWorld, admin: Admin) -> None:
    world.has_shards = False
    assert admin.list_groups() == []
    assert not world.asked_of("ListGroups")


def test_groups_of_many_coordinators_are_described_with_one_call_to_each(
    world: StandinGroupsWorld, admin: Admin
) -> None:
    world.committed |= {f"a{number}": {} for number in range(50)}
    ids = ["berry", *(f"a{number}" for number in range(50))]
    described = admin.describe_groups(ids)
    assert [each.group_id for each in described] == ids
    assert world.counts() == {"FindCoordinator": 1, "DescribeGroups": 2}
    berry = described[0]
    assert (berry.state, berry.group_epoch, berry.assignor, berry.coordinator_id) == ("stable", 4, "uniform", 2)
    assert berry.coordinator_address == world.coordinators[1].address
    first, second = berry.members
    assert (first.member_id, first.client_id, first.instance_id, first.rack) == ("m1", "c1", None, None)
    assert (second.instance_id, second.rack, second.assigned, second.revoking) == ("i2", "r", (O1,), ())
    admin.describe_groups(ids)
    assert world.counts()["FindCoordinator"] == 1, "who has what is remembered"


def test_a_group_is_followed_to_its_next_coordinator(world: StandinGroupsWorld, admin: Admin) -> None:
    assert admin.describe_groups(["apple"])[0].coordinator_id == 1
    world.owner = lambda group: 1
    assert admin.describe_groups(["apple", "berry"])[0].coordinator_id == 2
    assert [each.offset for each in admin.list_group_offsets("apple").values() if each] == [40]


def test_what_fails_for_one_group_is_said_of_that_one(world: StandinGroupsWorld, admin: Admin) -> None:
    described = admin.describe_groups(["apple", "nobody's", "berry"], raise_errors=False)
    assert [each.error is None for each in described] == [True, False, True]
    assert isinstance(described[1].error, GroupIdNotFoundError)
    lags = admin.describe_lag(["nobody's", "apple"], raise_errors=False)
    assert isinstance(lags[0].error, GroupIdNotFoundError)
    assert lags[1].partitions[0].committed_offset == 40
    with pytest.raises(GroupIdNotFoundError, match=r"nobody's.*another"):
        admin.describe_groups(["nobody's", "apple", "another"])


def test_a_group_that_nobody_coordinates_does_not_hide_the_others(world: StandinGroupsWorld, admin: Admin) -> None:
    world.owner = lambda group: 0 if group.startswith("a") else None
    described = admin.describe_groups(["berry", "apple"], raise_errors=False, timeout=2)
    assert isinstance(described[0].error, RequestTimedOutError)
    assert "berry" in described[0].error.message
    assert "no coordinator is alive" in described[0].error.message
    assert described[1].state == "empty"
    assert len(world.asked_of("DescribeGroups")) == 1, "who has his answer is not asked again"


def test_a_lost_answer_is_asked_for_again_and_a_deletion_that_was_carried_out_is_one(
    world: StandinGroupsWorld, admin: Admin
) -> None:
    world.failures = {"DescribeGroups": [CoordinatorLoadInProgressError("it is being loaded"), NetworkError("away")]}
    assert admin.describe_groups("apple")[0].state == "empty"
    world.lost = {"DeleteGroups"}
    admin.delete_groups(["apple"])
    assert len(world.asked_of("DeleteGroups")) == 2
    with pytest.raises(GroupIdNotFoundError):
        admin.delete_groups(["apple"])


def test_groups_with_members_stay_and_the_others_go(world: StandinGroupsWorld, admin: Admin) -> None:
    with pytest.raises(NonEmptyGroupError, match="berry"):
        admin.delete_groups(["apple", "berry"])
    assert set(world.committed) == {"berry"}
    assert admin.remove_group_members("berry", ["m2"]) == ["m2"]
    with pytest.raises(UnknownMemberIdError, match="m2"):
        admin.remove_group_members("berry", "m2")
    assert admin.remove_group_members("berry") == ["m1"]
    assert admin.remove_group_members("berry") == []
    admin.delete_groups(["berry"])
    assert not world.committed


def test_offsets_are_listed_altered_and_deleted(world: StandinGroupsWorld, admin: Admin) -> None:
    assert admin.list_group_offsets("apple") == {O0: OffsetAndMetadata(40, "m")}
    assert admin.list_group_offsets("apple", [O1, O0]) == {O1: None, O0: OffsetAndMetadata(40, "m")}
    assert admin.list_group_offsets("apple", []) == {}
    assert admin.list_group_offsets("nobody's") == {}
    admin.alter_group_offsets("apple", {O1: 7, C0: OffsetAndMetadata(0, "new")})
    assert admin.list_group_offsets("apple") == {
        C0: OffsetAndMetadata(0, "new"),
        O0: OffsetAndMetadata(40, "m"),
        O1: OffsetAndMetadata(7),
    }
    (asked,) = world.asked_of("CommitOffsets")
    assert (asked.member_id, asked.member_epoch) == ("", -1)
    admin.delete_group_offsets("apple", [O0, C0])
    assert admin.list_group_offsets("apple") == {O1: OffsetAndMetadata(7)}


def test_offsets_of_partitions_that_are_not_there_and_of_groups_that_work_are_refused(
    world: StandinGroupsWorld, admin: Admin
) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="orders-2"):
        admin.alter_group_offsets("apple", {O0: 1, TopicPartition("orders", 2): 1})
    with pytest.raises(UnknownTopicOrPartitionError, match="oders"):
        admin.alter_group_offsets("apple", {TopicPartition("oders", 0): 1})
    assert not world.asked_of("CommitOffsets")
    with pytest.raises(UnknownMemberIdError, match="stop the group's consumers first"):
        admin.alter_group_offsets("berry", {O0: 1})


def test_lag_and_rebalances_are_reported(world: StandinGroupsWorld, admin: Admin) -> None:
    lag = groups_pb2.LagOfGroup(group_id="apple", status="ERR", total_lag=60)
    lag.partitions.add(
        topic="orders", partition=0, committed_offset=40, commit_timestamp_ms=9, high_watermark=100, lag=60,
        lag_ms=1_500, lag_ms_is_at_least=True, records_lost=2, status="STOP", complete=0.5,
    )  # fmt: skip
    lag.partitions.add(topic="orders", partition=1, committed_offset=1, commit_timestamp_ms=-1, status="OK")
    world.lags["apple"] = lag
    (listed,) = admin.describe_lag(["apple"])
    assert (listed.status, listed.total_lag) == ("ERR", 60)
    first, second = listed.partitions
    assert (first.lag, first.lag_ms, first.lag_ms_is_at_least, first.records_lost) == (60, 1_500, True, 2)
    assert (first.status, first.complete) == ("STOP", 0.5)
    assert (second.high_watermark, second.lag, second.lag_ms) == (None, None, None), "not seen yet"
    done = groups_pb2.Rebalance(
        at_ms=5, group_epoch=4, reason="m2 joined", moved_count=1, ended_at_ms=8, number=2,
        moved=[groups_pb2.MovedPartition(topic="orders", partition=1, from_member="m1", to_member="m2", unread_ms=3)],
    )  # fmt: skip
    now = groups_pb2.Rebalance(
        at_ms=9, group_epoch=5, reason="m2 left", moved_count=1, ended_at_ms=-1, number=3,
        moved=[groups_pb2.MovedPartition(topic="orders", partition=1, from_member="m2", to_member="", unread_ms=-1)],
    )  # fmt: skip
    world.rebalances["berry"] = [done, now]
    older, newer = admin.explain_group("berry")
    assert (older.number, older.reason, older.ended_at_ms, older.moved_count) == (2, "m2 joined", 8, 1)
    assert (older.moved[0].from_member, older.moved[0].to_member, older.moved[0].unread_ms) == ("m1", "m2", 3)
    assert (newer.ended_at_ms, newer.moved[0].to_member, newer.moved[0].unread_ms) == (None, None, None)
    with pytest.raises(GroupIdNotFoundError):
        admin.explain_group("nobody's")


def test_what_makes_no_sense_is_refused_before_anybody_is_asked(world: StandinGroupsWorld, admin: Admin) -> None:
    for wrong in (
        lambda: admin.describe_groups([7]),  # type: ignore[list-item]
        lambda: admin.explain_group(7),  # type: ignore[arg-type]
        lambda: admin.alter_group_offsets("", {O0: 1}),
        lambda: admin.delete_group_offsets("", [O0]),
        lambda: admin.remove_group_members("", ["m"]),
    ):
        with pytest.raises(InvalidGroupIdError):
            wrong()
    for mistaken in (
        lambda: admin.list_groups(["asleep"]),  # type: ignore[list-item]
        lambda: admin.alter_group_offsets("g", {O0: -1}),
        lambda: admin.alter_group_offsets("g", {O0: True}),
        lambda: admin.alter_group_offsets("g", {"orders-0": 1}),  # type: ignore[dict-item]
        lambda: admin.list_group_offsets("g", ["orders"]),  # type: ignore[list-item]
        lambda: admin.delete_group_offsets("g", [TopicPartition("orders", -1)]),
        lambda: admin.remove_group_members("g", [""]),
    ):
        with pytest.raises(InvalidArgumentError):
            mistaken()
    assert not world.asked


def test_the_asyncio_face_does_the_same(world: StandinGroupsWorld) -> None:
    async def scene() -> None:
        async with AsyncAdmin(bootstrap_servers=world.coordinators[0].address) as client:
            assert [each.group_id for each in await client.list_groups()] == ["apple", "berry"]
            assert (await client.describe_groups(["apple"]))[0].state == "empty"
            await client.alter_group_offsets("apple", {O0: 3})
            assert (await client.list_group_offsets("apple", [O0]))[O0] == OffsetAndMetadata(3)
            assert (await client.describe_lag(["apple"]))[0].partitions[0].committed_offset == 3
            await client.delete_group_offsets("apple", [O0])
            assert await client.explain_group("berry") == []
            assert await client.remove_group_members("berry") == ["m1", "m2"]
            await client.delete_groups(["apple", "berry"])
        assert not world.committed

    asyncio.run(scene())
