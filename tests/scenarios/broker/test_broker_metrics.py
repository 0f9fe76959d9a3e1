"""The broker's numbers about its replicas and requests, beside what the broker has and does."""

from __future__ import annotations

from headrace_broker.collector import BrokerCollector
from headrace_core.errors import FencedBrokerError, ServerShuttingDownError
from headrace_core.metadata.records import PartitionChangeRecord, PartitionRecord, TopicRecord
from headrace_core.metrics import catalog
from headrace_core.metrics.histogram import Histogram
from headrace_core.metrics.model import Metric, Row
from headrace_core.metrics.node import NodeMetrics
from headrace_core.node.config import NodeConfig
from headrace_core.testing.crashing_fs import CrashingFileSystem
from tests.worlds.solo_broker import BROKER_ID, SoloBroker, StallingFileSystem, batch, fetch, produce
from tests.worlds.waiting import in_loop, until_async

PROPERTIES = {"log.dirs": "/nowhere", "listeners": "internal://127.0.0.1:0,client://127.0.0.1:0", "node.id": "1"}


class Observed:
    """The rows of a broker."""

    def __init__(self, broker: SoloBroker) -> None:
        values = NodeConfig.from_properties(PROPERTIES, role="broker").values
        self.exporter = NodeMetrics("broker", lambda: BROKER_ID, values)
        self._collector = BrokerCollector(broker.context, broker.storage, self.exporter, values)

    def rows(self) -> dict[tuple[Metric, tuple[str | int, ...]], object]:
        return {(row.metric, row.labels): row.value for row in self._collector.collect() if isinstance(row, Row)}

    def __call__(self, metric: Metric, *labels: str) -> object:
        return self.rows()[metric, labels]


async def _replicated(
    broker: SoloBroker, name: str, *, isr: tuple[int, ...], replicas: tuple[int, ...] = (BROKER_ID, 2)
) -> bytes:
    topic_id = name.encode().ljust(16, b".")
    await broker.change(
        TopicRecord(name, topic_id),
        PartitionRecord(topic_id, 0, replicas, isr, leader=BROKER_ID, leader_epoch=0, partition_epoch=0),
    )
    return topic_id


@in_loop
async def test_a_replica_that_a_reassignment_adds_is_no_failure() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        observed = Observed(broker)
        topic_id = await _replicated(broker, "orders", isr=(BROKER_ID, 2))
        assert observed(catalog.UNDER_REPLICATED) == observed(catalog.REASSIGNING_PARTITIONS) == 0
        moves = PartitionChangeRecord(topic_id, 0, 1, replicas=(BROKER_ID, 2, 3), adding=(3,), removing=(2,))
        await broker.change(moves)
        assert observed(catalog.UNDER_REPLICATED) == 0
        assert observed(catalog.REASSIGNING_PARTITIONS) == 1
        await broker.change(PartitionChangeRecord(topic_id, 0, 2, isr=(BROKER_ID,)))
        assert observed(catalog.UNDER_REPLICATED) == 1, "broker 2 was in sync before, and is missing"
        await broker.change(PartitionChangeRecord(topic_id, 0, 3, isr=(BROKER_ID, 3)))
        assert observed(catalog.UNDER_REPLICATED) == 1, "the added replica does not stand for broker 2"
        done = PartitionChangeRecord(topic_id, 0, 4, replicas=(BROKER_ID, 3), adding=(), removing=())
        await broker.change(done)
        assert observed(catalog.UNDER_REPLICATED) == observed(catalog.REASSIGNING_PARTITIONS) == 0


@in_loop
async def test_the_state_of_a_broker_is_kafkas_number() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        observed = Observed(broker)
        assert observed(catalog.BROKER_STATE) == 3
        broker.partitions.refusal = FencedBrokerError("fenced")
        assert (observed(catalog.BROKER_STATE), observed(catalog.FENCED)) == (1, 1)
        broker.partitions.refusal = ServerShuttingDownError("it stops")
        assert (observed(catalog.BROKER_STATE), observed(catalog.FENCED)) == (6, 1)


@in_loop
async def test_requests_that_wait_are_in_the_purgatory_and_the_parts_of_their_time_add_up() -> None:
    fs = StallingFileSystem()
    async with SoloBroker(fs) as broker:
        observed = Observed(broker)
        await broker.topic("t")
        producer, answers = broker.producer()
        consumer, found = broker.consumer()
        broker.context.fetches.add(consumer)
        assert observed(catalog.PURGATORY, "Produce") == observed(catalog.PURGATORY, "Fetch") == 0
        consumer.on_request(fetch(1, "t"))
        fs.stall()
        producer.on_request(produce(1, "t", batch(b"x")))
        await until_async(lambda: observed(catalog.PURGATORY, "Fetch") == 1)
        assert observed(catalog.PURGATORY, "Produce") == 1
        fs.release()
        await answers.wait_sent(1)
        await found.wait_sent(1)
        await until_async(lambda: observed(catalog.PURGATORY, "Fetch") == 0)
        assert observed(catalog.PURGATORY, "Produce") == 0
        consumer.on_closed()
        producer.on_closed()

        times = broker.context.metrics.client_times
        total, local, remote = times.of("Produce"), times.local_seconds["Produce"], times.remote_seconds["Produce"]
        assert total.count == local.count == remote.count == 1
        assert abs(total.total - local.total - remote.total) < 1e-6
        assert isinstance(total, Histogram)


@in_loop
async def test_rows_of_a_deleted_topic_end_and_its_records_stay_in_the_total() -> None:
    async with SoloBroker(CrashingFileSystem()) as broker:
        observed = Observed(broker)
        for name in ("kept", "deleted"):
            await broker.topic(name)
            await broker.append(name, batch(b"x", b"y"))
        assert observed(catalog.MESSAGES_IN, "deleted") == 2
        await broker.delete("deleted")
        await until_async(lambda: "deleted" not in broker.storage.topics())
        rows = observed.rows()
        assert not [labels for _, labels in rows if "deleted" in labels]
        assert (rows[catalog.MESSAGES_IN, ("kept",)], rows[catalog.MESSAGES_IN, ()]) == (2, 4)
        await broker.topic("deleted", topic_id=b"another id".ljust(16, b"."))
        await broker.append("deleted", batch(b"z"))
        rows = observed.rows()
        assert (rows[catalog.MESSAGES_IN, ("deleted",)], rows[catalog.MESSAGES_IN, ()]) == (1, 5)
