"""The throttle of a move holds before the leader has applied the whole change that begins the move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import Admin, ConfigResource, LocalCluster, NewTopic, Producer, TopicPartition
from headrace_broker.roles import Roles
from tests.worlds.waiting import until

T0 = TopicPartition("small", 0)
#: How long the leader needs for the change after the new replica may join, as on a slow disk.
APPLIES_S = 1.0


def test_no_replica_copies_at_full_speed_while_the_leader_applies_the_throttle(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Roles.apply

    async def slowly(self: Roles, *change: Any) -> None:
        await apply(self, *change)
        await asyncio.sleep(APPLIES_S)

    with (
        LocalCluster(brokers=2, controllers=1, coordinators=0, mode="inprocess") as cluster,
        Admin(bootstrap_servers=cluster.bootstrap_servers) as admin,
        Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
    ):
        admin.create_topics([NewTopic(T0.topic, assignments={0: [1]})])
        for _ in range(8):
            producer.send(T0.topic, bytes(range(256)) * 2_000).result(timeout=30)
        monkeypatch.setattr(Roles, "apply", slowly)
        admin.alter_partition_reassignments({T0: [1, 2]}, throttle_bytes_per_s=1)
        admin.describe_configs([ConfigResource("broker", "1")])  # broker 1 has applied the change

        def copied() -> int:
            (directory,) = admin.describe_log_dirs([2], topics=[T0])[2]
            return sum(replica.size_bytes for replica in directory.replicas)

        assert until(copied, "the first batches at broker 2", 30) < 2_000_000
        (partition,) = admin.describe_topics([T0.topic])[0].partitions
        assert partition.isr == (1,)
        admin.alter_partition_reassignments({}, throttle_bytes_per_s=0)
        until(lambda: not admin.list_partition_reassignments(), "the move without a throttle", 30)
