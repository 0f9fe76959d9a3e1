"""The doctor's advice about use: the doctor finds each pattern at its threshold and not below it, and still reports a
healthy cluster."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from headrace import TopicPartition
from headrace.cluster_models import ReplicaInfo
from headrace.group_models import GroupDescription, GroupLag, MemberDescription, PartitionLag
from headrace_tools.doctor.diagnosis import diagnose, is_healthy
from headrace_tools.doctor.facts import Facts, GroupFacts
from headrace_tools.doctor.gathering import _keeps_everything
from tests.unit.client.test_doctor_rules import GIB, NOW_MS, found, healthy, log_dir, only, partition, topic

HOUR_MS = 3_600_000


def member(name: str, *partitions: tuple[str, int]) -> MemberDescription:
    assigned = tuple(TopicPartition(*each) for each in partitions)
    return MemberDescription(name, None, "client", "host", None, 3, ("orders",), "", assigned)


def group(*members: MemberDescription, state: Any = "stable", lag: GroupLag | None = None) -> GroupFacts:
    return GroupFacts(described=GroupDescription("billing", state, members=members, coordinator_id=1), lag=lag)


def many(count: int, name: str) -> dict[str, Any]:
    """A cluster with this number of topics of one partition. Each topic has a replica of a few bytes on every
    broker."""
    names = [name.format(number) for number in range(count)]
    replicas = tuple(ReplicaInfo(each, 0, 10, 0, False) for each in names)
    return {
        "topics": tuple(topic(each, partition()) for each in names),
        "log_dirs": {number: (log_dir(number, replicas=replicas),) for number in (1, 2, 3)},
    }


def test_hundreds_of_tiny_topics() -> None:
    assert only(**many(500, "t{}")).rule == "topics-tiny"
    assert found(**many(499, "t{}")) == []
    unknown = many(500, "t{}")
    assert found(**unknown | {"log_dirs": {1: unknown["log_dirs"][1]}}) == [], "the other brokers did not answer"


def test_more_partitions_than_consumers_can_use() -> None:
    wide = topic("orders", *map(partition, range(100)))
    readers = [member(f"m{number}", ("orders", number)) for number in range(10)]
    finding = only(topics=(wide,), groups=(group(*readers[:9]),))
    assert (finding.rule, "100 partitions" in finding.what, "9 members" in finding.what) == (
        "partitions-unused",
        True,
        True,
    )
    assert found(topics=(wide,), groups=(group(*readers),)) == []
    assert found(topics=(wide,), groups=()) == [], "no group reads it: nothing is known of its consumers"


def test_more_members_than_partitions() -> None:
    idle = group(member("a", ("orders", 0)), member("b", ("orders", 1)), member("c"))
    assert only(groups=(idle,)).what == "1 of 3 members of group 'billing' have no partition"
    rebalancing = dataclasses.replace(idle, described=dataclasses.replace(idle.described, state="reconciling"))
    assert found(groups=(rebalancing,)) == [], "it may get one in a moment"


def test_more_replicas_than_were_measured() -> None:
    full = topic("orders", *(partition(number, replicas=(1,), isr=(1,)) for number in range(5_001)))
    finding = only(topics=(full,), min_insync={})
    assert (finding.rule, finding.where) == ("replicas-many", "broker 1")
    assert found(topics=(dataclasses.replace(full, partitions=full.partitions[:5_000]),), min_insync={}) == []


def test_a_topic_without_limits_that_fills_a_disk() -> None:
    def holding(size: int) -> dict[str, Any]:
        replicas = (ReplicaInfo("orders", 0, size, 0, False),)
        return {"log_dirs": healthy().log_dirs | {2: (log_dir(2, replicas=replicas),)}}

    finding = only(unlimited=frozenset({"orders"}), **holding(50 * GIB))
    assert (finding.rule, finding.where) == ("retention-unlimited", "broker 2: /data")
    assert found(unlimited=frozenset({"orders"}), **holding(49 * GIB)) == []
    assert found(**holding(50 * GIB)) == [], "it has a limit"


@pytest.mark.parametrize(
    ("changed", "keeps"),
    [
        ({}, True),
        ({"retention.ms": "1000"}, False),
        ({"retention.bytes": "1"}, False),
        ({"cleanup.policy": "compact"}, False),
    ],
)
def test_which_topics_keep_everything(changed: dict[str, str], keeps: bool) -> None:
    values = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"} | changed
    entries: Any = {key: type("Entry", (), {"value": value}) for key, value in values.items()}
    assert _keeps_everything(entries) is keeps


def test_an_inbox_for_each_request() -> None:
    assert only(**many(20, "reply-deadbeef{:02}")).rule == "reply-topics"
    assert found(**many(19, "reply-deadbeef{:02}")) == []
    assert found(**many(20, "replies-{:02}")) == [], "no id in their names"


def test_a_lag_that_nobody_watches() -> None:
    def behind(hours: int, **changed: Any) -> GroupFacts:
        part = PartitionLag("orders", 0, 90, NOW_MS - hours * HOUR_MS, 100, 10, 5, False, 0, "OK", 1.0)
        part = dataclasses.replace(part, **changed)
        return group(state="empty", lag=GroupLag("billing", "OK", part.lag or 0, (part,)))

    finding = only(groups=(behind(26),))
    assert finding.rule == "lag-unwatched"
    assert "10 records behind, and committed last 26 h ago" in finding.what
    assert found(groups=(behind(23),)) == []
    assert found(groups=(behind(26, lag=0),)) == []
    # the commit's time is the coordinator's, whose clock is two days off
    for off_h in (48, -48):
        assert bool(found(groups=(dataclasses.replace(behind(26 - off_h), clock_ahead_ms=off_h * HOUR_MS),)))
        assert found(groups=(dataclasses.replace(behind(23 - off_h), clock_ahead_ms=off_h * HOUR_MS),)) == []


def test_advice_leaves_a_cluster_healthy_and_comes_last() -> None:
    facts: Facts = dataclasses.replace(healthy(), **many(500, "t{}"))
    assert [each.severity for each in diagnose(facts)] == ["advice"]
    assert is_healthy(facts)
    worse = dataclasses.replace(facts, topics=(*facts.topics, topic("orders", partition(leader=-1, isr=(), elr=(2,)))))
    severities = [each.severity for each in diagnose(worse)]
    assert (severities[0], severities[-1]) == ("error", "advice")
    assert not is_healthy(worse)
