"""How a broker reports leaders that lack committed records: soon, all of them, and with few heartbeats."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headrace_broker.replication.follower_streams import FollowerStreams
from headrace_broker.settings import BrokerIdentity
from headrace_core.errors import OffsetOutOfRangeError
from headrace_core.membership.broker_session import (
    LACKING_LEADERS_MAX,
    BrokerRegistration,
    BrokerSession,
    LackingLeader,
    RegisteredBroker,
)
from headrace_core.telemetry import Emitter, Metrics
from headrace_core.types import TopicPartition
from tests.worlds.solo_broker import SoloBroker, StallingFileSystem


class Replica:
    partition, leader_id, leader_epoch = TopicPartition("t", 0), 1, 3


def test_only_a_new_report_hurries_the_heartbeat() -> None:
    """Each replica joins again every two seconds, and its leader still lacks the records."""
    hurried: list[int] = []
    streams = FollowerStreams(
        BrokerIdentity(2),
        events=Emitter(),
        metrics=Metrics(),
        on_lacking=lambda: hurried.append(1),
    )
    replicas = [cast("Any", Replica()) for _ in range(3)]
    for _ in range(5):
        for replica in replicas:
            streams.leader_lacks(replica, OffsetOutOfRangeError("it lacks records"))
    assert len(hurried) == 3


def test_heartbeats_name_all_leaders_in_turn() -> None:
    """The controllers leave leaders without eligible replicas in office: these must not keep the others out."""
    lacking = [LackingLeader(bytes(16), number, 0) for number in range(2 * LACKING_LEADERS_MAX + 1)]

    async def named() -> list[list[int]]:
        session = BrokerSession(
            ["controller:9"],
            BrokerRegistration(cluster_id="c", incarnation_id=bytes(16), directory_ids=(), endpoints=()),
            heartbeat_interval_ms=2_000,
            lacking_leaders=lambda: lacking,
        )
        session._registered = RegisteredBroker(1, 2, 3)
        return [[each.partition for each in session._heartbeat(number).lacking_leaders] for number in range(4)]

    numbers = list(range(len(lacking)))
    first, second, third, again = asyncio.run(named())
    assert first + second + third == numbers
    assert again == first


@pytest.mark.parametrize("was_cleaned", [False, True])
def test_a_log_that_was_compacted_before_its_policy_changed_may_lack_epochs(was_cleaned: bool) -> None:
    """Its follower refused to truncate for good: the leader's compacted log lacked an epoch of superseded records."""

    async def compacts() -> bool:
        async with SoloBroker(StallingFileSystem()) as broker:
            await broker.topic("t")
            if was_cleaned:
                broker.storage.writers()[0].directory.compaction.adopt(TopicPartition("t", 0), 0)
            await broker.new_leader("t", 2, 1)
            return broker.partitions.followed[TopicPartition("t", 0)].follower.compacts

    assert asyncio.run(compacts()) is was_cleaned
