"""Coordinators as processes: groups and offsets survive a coordinator's failure, and an old owner stays silent."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator

import pytest

from tests.worlds.broker_world import batch, produce_partition, produce_request, produce_stream
from tests.worlds.coordinator_world import LONG_S, GroupsCluster, Member, commit, fetch
from tests.worlds.waiting import until

import grpc  # isort: skip

from headrace import Admin, OffsetAndMetadata, TopicPartition
from headrace_protos.v1 import groups_pb2

_names = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GroupsCluster]:
    """Two coordinators; a test that ends one starts it again."""
    with GroupsCluster(tmp_path_factory.mktemp("groups"), coordinators=2) as running:
        yield running


@pytest.fixture
def topic(cluster: GroupsCluster) -> str:
    """Of four partitions."""
    return str(cluster.cluster.topic(f"topic-{next(_names)}", 4).name)


def test_offsets_outlive_the_coordinator_that_took_them(cluster: GroupsCluster, topic: str) -> None:
    group = cluster.group_of(1)
    for offset in (5, 7, 6):
        cluster.commit(group, topic, offset)
    cluster.coordinators[1].kill()
    try:
        assert cluster.wait_owner(group, other_than=1) == 2
        assert cluster.committed(group, topic) == 6
        cluster.commit(group, topic, 8)
    finally:
        cluster.coordinators[1].start()
    until(lambda: set(cluster.owners()) == {1, 2}, "the shards to be shared again", LONG_S)
    assert cluster.committed(group, topic) == 8


def test_members_share_and_one_whose_stream_breaks_is_gone_after_the_grace(cluster: GroupsCluster, topic: str) -> None:
    group = cluster.group_of(1)
    first = Member(cluster, group, [topic])
    first.wait(lambda member: len(member.assignment) == 4, "the only member to have all")
    second = Member(cluster, group, [topic])
    second.wait(lambda member: len(member.assignment) == 2, "the second to have its half")
    # The first has released the other half by now; the response with the new epoch may still be on its way to it.
    assert len(first.assignment) == 2
    assert not first.assignment & second.assignment
    first.wait(lambda member: member.epoch == second.epoch, "the first to have the epoch")
    assert len(first.assignment) == 2
    stub = cluster.stub(1)
    with pytest.raises(grpc.RpcError, match=r"STALE_MEMBER_EPOCH|FENCED_MEMBER_EPOCH"):
        stub.CommitOffsets(commit(group, topic, 1, member=first.id, epoch=0), timeout=20)
    cluster.commit(group, topic, 3, member=first.id, epoch=first.epoch)
    second.hang_up()
    first.wait(lambda member: len(member.assignment) == 4, "the first to have all again")
    described = cluster.describe(group)
    assert [(member.member_id, member.client_id) for member in described.members] == [(first.id, "by hand")]
    assert described.state == "stable"
    history = stub.ExplainGroup(groups_pb2.ExplainGroupRequest(group_id=group), timeout=20).rebalances
    assert [each.number for each in history] == sorted(each.number for each in history)
    assert "connection" in history[-1].reason
    assert {each.partition for each in history[-1].moved} == {partition for _, partition in second.assignment}
    first.leave()
    until(lambda: not cluster.describe(group).members, "the group to be empty", LONG_S)


def test_a_coordinator_that_stops_hands_its_groups_over_and_no_partition_moves(
    cluster: GroupsCluster, topic: str
) -> None:
    group = cluster.group_of(2)
    members = [Member(cluster, group, [topic], instance=f"i{number}") for number in range(2)]
    for member in members:
        member.wait(lambda member: len(member.assignment) == 2 and member.epoch == 2, "each to have its half")
    before = [(member.assignment, member.epoch) for member in members]
    cluster.coordinators[2].terminate()
    try:
        for member in members:
            member.wait(lambda member: member.ended is not None, "its stream to end")
            assert member.ended is not None
            assert "NOT_COORDINATOR" in (member.ended.details() or "")
            member.connect()
        for member, (assignment, epoch) in zip(members, before, strict=True):
            until(lambda member=member: _is_there(cluster, member), "the member to be known to the other", LONG_S)
            assert (member.assignment, member.epoch) == (assignment, epoch)
    finally:
        cluster.coordinators[2].start()
    for member in members:
        member.leave()


def _is_there(cluster: GroupsCluster, member: Member) -> bool:
    """Whether the member's stream reaches the group's coordinator, which knows the member. A stream that ended because
    the shard moved again is replaced by a new stream."""
    if member.ended is not None:
        member.connect()
    found = [each for each in cluster.describe(member.group).members if each.member_id == member.id]
    return bool(found) and found[0].member_epoch == member.epoch and member.answers > 0 and member.ended is None


def test_a_coordinator_that_stood_still_is_silent_when_it_wakes_and_lives_again(
    cluster: GroupsCluster, topic: str
) -> None:
    until(lambda: set(cluster.owners()) == {1, 2}, "the shards to be shared", LONG_S)
    group = cluster.group_of(1)
    cluster.commit(group, topic, 10)
    stub, process = cluster.stub(1), cluster.coordinators[1].process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        late = stub.CommitOffsets.future(commit(group, topic, 11), timeout=LONG_S)  # in flight to the suspended process
        question = stub.FetchOffsets.future(fetch(group, topic), timeout=LONG_S)
        assert cluster.wait_owner(group, other_than=1) == 2
        cluster.commit(group, topic, 20)
    finally:
        process.send_signal(signal.SIGCONT)
    with pytest.raises(grpc.RpcError, match=r"NOT_COORDINATOR|COORDINATOR_LOAD_IN_PROGRESS"):
        late.result()
    (answer,) = question.result().groups if question.exception() is None else (None,)
    assert answer is None or answer.error.code in (14, 16), "an old owner must not answer with what it knew"
    assert cluster.committed(group, topic) == 20
    until(lambda: set(cluster.owners()) == {1, 2}, "the one that woke to own shards again", LONG_S)
    mine = cluster.group_of(1)
    cluster.commit(mine, topic, 1)
    assert cluster.committed(mine, topic) == 1


def test_lag_is_known_soon_and_groups_are_listed_and_deleted(cluster: GroupsCluster, topic: str) -> None:
    group = cluster.group_of(1)
    with produce_stream(cluster.cluster) as stream:
        stream.send(produce_request(1, produce_partition(topic, batch(*(b"%d" % number for number in range(10))))))
        assert not stream.receive().results[0].error.code
    cluster.commit(group, topic, 4)
    stub = cluster.stub(1)

    def lag() -> int | None:
        (history,) = stub.DescribeLag(groups_pb2.DescribeLagRequest(group_ids=[group]), timeout=20).groups
        (partition,) = history.partitions
        return partition.lag if partition.HasField("lag") else None

    until(lambda: lag() == 6, "the high watermark to be seen", LONG_S)
    listed = stub.ListGroups(groups_pb2.ListGroupsRequest(), timeout=20).groups
    assert group in [each.group_id for each in listed]
    deleted = stub.DeleteGroups(groups_pb2.DeleteGroupsRequest(group_ids=[group, "nobody's"]), timeout=20).results
    assert not deleted[0].error.code
    assert deleted[1].error.code
    assert group not in [each.group_id for each in stub.ListGroups(groups_pb2.ListGroupsRequest(), timeout=20).groups]
    assert cluster.committed(group, topic) == -1


def test_an_admin_follows_groups_from_a_coordinator_that_dies_to_the_next(cluster: GroupsCluster, topic: str) -> None:
    until(lambda: set(cluster.owners()) == {1, 2}, "the shards to be shared", LONG_S)
    mine, others = cluster.group_of(1), cluster.group_of(2)
    first = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=cluster.cluster.broker.address(), default_api_timeout_ms=int(LONG_S * 1000)) as admin:
        admin.alter_group_offsets(mine, {first: 3})
        admin.alter_group_offsets(others, {first: 4})
        assert [each.coordinator_id for each in admin.describe_groups([mine, others])] == [1, 2]
        cluster.coordinators[1].kill()
        try:
            both = admin.list_groups()  # which waits until every shard has an owner again
            assert {mine, others} <= {each.group_id for each in both}
            assert [each.coordinator_id for each in admin.describe_groups([others, mine])] == [2, 2]
            assert admin.list_group_offsets(mine) == {first: OffsetAndMetadata(3)}
            assert [each.partitions[0].committed_offset for each in admin.describe_lag([mine, others])] == [3, 4]
            admin.delete_groups([mine, others])
        finally:
            cluster.coordinators[1].start()
        until(lambda: set(cluster.owners()) == {1, 2}, "the shards to be shared again", LONG_S)
        assert not {mine, others} & {each.group_id for each in admin.list_groups()}


def test_a_stream_is_one_members_and_the_latest_one_counts(cluster: GroupsCluster, topic: str) -> None:
    group = cluster.group_of(1)
    first = Member(cluster, group, [topic])
    first.wait(lambda member: len(member.assignment) == 4, "the only member to have all")
    before, epoch = first.call, first.epoch
    first.connect()
    until(lambda: not before.is_active(), "the older stream to end", LONG_S)
    assert before.code() is grpc.StatusCode.OK
    until(lambda: first.answers > 0, "the new stream to be answered", LONG_S)
    assert (first.epoch, len(first.assignment)) == (epoch, 4)
    first.id = "somebody else"
    first.heartbeat()
    first.wait(lambda member: member.ended is not None, "the stream to end")
    assert first.ended is not None
    assert "INVALID_REQUEST" in (first.ended.details() or "")
    assert first.ended.code() is grpc.StatusCode.INVALID_ARGUMENT
