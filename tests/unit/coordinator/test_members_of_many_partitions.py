"""A group's largest member: its heartbeat may name as many partitions as have room in the records of an append.
The sizes are counted; nothing is sent."""

from __future__ import annotations

import pytest

from headrace_coordinator.group.records import CurrentValue, TargetValue, encode_value
from headrace_coordinator.runtime.shard import APPEND_BYTES_MAX
from headrace_core.rpc.limits import RequestCheck, limit_of
from headrace_protos.v1 import groups_pb2

TOPIC_PARTITIONS = 2_000


def heartbeat(partitions: int) -> bytes:
    request = groups_pb2.MembershipRequest(correlation_id=1)
    beat = request.heartbeat
    beat.group_id, beat.member_id, beat.member_epoch = "g", "m" * 36, 1
    for first in range(0, partitions, TOPIC_PARTITIONS):
        count = min(TOPIC_PARTITIONS, partitions - first)
        beat.owned.topics.add(topic_id=first.to_bytes(16, "big"), partitions=range(count))
    return request.SerializeToString()


OWNED_MAX = limit_of("Groups/Membership", "heartbeat.owned.topics.partitions")


def test_a_member_of_too_many_partitions_is_told_the_limit() -> None:
    check = RequestCheck("Groups/Membership", groups_pb2.MembershipRequest.DESCRIPTOR)
    assert check(heartbeat(OWNED_MAX)) is None
    for count in (OWNED_MAX + 1, 2 * OWNED_MAX):
        refused = check(heartbeat(count))
        assert refused is not None
        assert f"more than {OWNED_MAX} heartbeat.owned.topics.partitions" in refused.message


@pytest.mark.parametrize("epoch", [1, 1 << 16, (1 << 31) - 1])
def test_the_records_of_the_largest_member_fit_into_an_append_whatever_its_epochs(epoch: int) -> None:
    numbers, topics = tuple(range(TOPIC_PARTITIONS)), range(OWNED_MAX // TOPIC_PARTITIONS)
    target = tuple((topic.to_bytes(16, "big"), numbers) for topic in topics)
    assigned = tuple((topic_id, numbers, (epoch,) * TOPIC_PARTITIONS) for topic_id, numbers in target)
    assert len(encode_value(TargetValue(target))) < APPEND_BYTES_MAX
    assert len(encode_value(CurrentValue(epoch, epoch, epoch, assigned))) < APPEND_BYTES_MAX
    twice = tuple((bytes([at]) + topic_id[1:], some, its) for at in (1, 2) for topic_id, some, its in assigned)
    if epoch > 1:
        assert len(encode_value(CurrentValue(epoch, epoch, epoch, twice))) > APPEND_BYTES_MAX, "the reason of the limit"
