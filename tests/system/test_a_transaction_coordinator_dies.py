"""Kill a coordinator with 25 open transactions, and with 25 decided transactions whose markers are delayed. Each
producer's next commit or abort must be quick."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from pathlib import Path

import pytest

from headrace import AsyncProducer, Consumer, Producer, TopicPartition
from headrace_core.metadata.shards import TRANSACTIONS_TOPIC, shard_of
from tests.system.faulty_cluster import TIMEOUT_S, FaultyCluster, check_silence, eventually

OPEN, DECIDED = 25, 25
#: The bound of docs/faults-transactions.md on the 95th percentile of the calls.
NEXT_END_S = 5.0
TOPIC, PARTITIONS, SHARDS = "orders", 3, 8
VICTIM = "coordinator-1"
CONFIG = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "transaction.state.log.num.partitions": str(SHARDS),
    "auto.create.topics.enable": "false",
}


def _victims_ids(cluster: FaultyCluster, silent: str) -> list[str]:
    """Return transactional ids of the coordinator that will die, in shards that the broker ``silent`` does not lead."""
    with Producer(cluster.client, transactional_id="first") as producer:
        producer.init_transactions()  # creates the topic of the shards

    def shards() -> list[int]:
        owners = cluster.shard_owners(TRANSACTIONS_TOPIC)
        return [] if -1 in owners or len(set(owners)) < 2 else owners

    owners = eventually(shards, "the coordinators do not share the shards")
    cluster.until_in_sync(TRANSACTIONS_TOPIC)
    leaders = [f"broker-{each.leader}" for each in cluster.describe(TRANSACTIONS_TOPIC)]
    usable = {
        shard for shard, owner in enumerate(owners) if f"coordinator-{owner}" == VICTIM and leaders[shard] != silent
    }
    assert usable, (owners, leaders)
    names = (f"payments-{number}" for number in itertools.count())
    return list(itertools.islice((name for name in names if shard_of(name, SHARDS) in usable), OPEN + DECIDED))


class _Client:
    """A producer, its records, and the duration of its next commit or abort."""

    def __init__(self, cluster: FaultyCluster, name: str, *, commits: bool, partitions: tuple[int, ...]) -> None:
        self.name, self.commits, self.partitions = name, commits, partitions
        self.producer = AsyncProducer(
            cluster.client, transactional_id=name, linger_ms=0, max_block_ms=int(TIMEOUT_S * 1000)
        )
        self.took_s = 0.0

    async def begin(self, what: str) -> list[bytes]:
        await self.producer.begin_transaction()
        values = [f"{self.name} {what} {partition}".encode() for partition in self.partitions]
        for partition, value in zip(self.partitions, values, strict=True):
            await self.producer.send(TOPIC, value, partition=partition)
        return values

    async def end(self, began: float) -> None:
        await (self.producer.commit_transaction() if self.commits else self.producer.abort_transaction())
        self.took_s = time.monotonic() - began


def _read(cluster: FaultyCluster, count: int) -> list[bytes]:
    """Wait until there are ``count`` committed records; return them, sorted."""
    with Consumer(cluster.client, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
        found: list[bytes] = []
        eventually(
            lambda: found.extend(record.value or b"" for record in consumer.poll(0.1)) or len(found) >= count,
            lambda: f"{count} committed records are read: {len(found)}",
        )
        return sorted(found + [record.value or b"" for record in consumer.poll(0.5)])


async def _scene(cluster: FaultyCluster, silent: str, names: list[str]) -> tuple[list[_Client], list[bytes]]:
    """Return the clients with their durations, and the values of all committed records."""
    clients = [
        _Client(cluster, name, commits=number % 2 == 0, partitions=(0, 1 + number % (PARTITIONS - 1)))
        for number, name in enumerate(names)
    ]
    still_open, decided = clients[:OPEN], clients[OPEN:]
    try:
        await asyncio.gather(*(each.producer.init_transactions() for each in clients))
        expected: list[bytes] = []
        for values in await asyncio.gather(*(each.begin("first") for each in decided)):
            expected += values
        await asyncio.gather(*(each.producer.flush() for each in decided))
        cluster.network.refuse(VICTIM, silent)  # the markers of partition 0 do not arrive
        cluster.network.reset(VICTIM, silent)
        await asyncio.gather(*(each.producer.commit_transaction() for each in decided))
        next_values = await asyncio.gather(*(each.begin("next") for each in clients))
        await asyncio.gather(*(each.producer.flush() for each in still_open))
        _check_held_back(cluster)
        await asyncio.to_thread(cluster.kill, VICTIM)
        began = time.monotonic()
        await asyncio.gather(*(each.end(began) for each in clients))
        for client, values in zip(clients, next_values, strict=True):
            expected += values if client.commits else []
        return clients, expected
    finally:
        await asyncio.gather(*(each.producer.close() for each in clients))


def _check_held_back(cluster: FaultyCluster) -> None:
    """Check that partition 0 has no marker: a reader with read_committed gets no record of it."""
    partitions = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    with Consumer(cluster.client, isolation_level="read_committed") as consumer:
        assert consumer.end_offsets(partitions[:1])[partitions[0]] == 0


def _p95(times: list[float]) -> float:
    return sorted(times)[round(0.95 * (len(times) - 1))]


@pytest.mark.timeout(600)
def test_the_next_commit_or_abort_of_each_producer_returns_in_time(tmp_path: Path, rng: random.Random) -> None:
    with FaultyCluster(tmp_path / "cluster", coordinators=2, config=CONFIG, rng=rng) as cluster:
        try:
            cluster.make_topic(TOPIC, PARTITIONS)
            silent = cluster.preferred_leader(TOPIC, 0)
            names = _victims_ids(cluster, silent)
            clients, expected = asyncio.run(_scene(cluster, silent, names))
            for what, some in (("open", clients[:OPEN]), ("decided", clients[OPEN:]), ("all", clients)):
                times = [each.took_s for each in some]
                print(f"{what}: p50 {statistics.median(times):.2f} s, p95 {_p95(times):.2f} s, max {max(times):.2f} s")
            assert _read(cluster, len(expected)) == sorted(expected)
            check_silence("the next commit or abort took (p95)", _p95(times), NEXT_END_S)
        except BaseException:
            print(cluster.tails())
            raise
