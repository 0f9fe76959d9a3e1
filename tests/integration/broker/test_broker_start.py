"""A broker misses no change that happens in the cluster while it starts."""

from __future__ import annotations

import asyncio
import shutil

import grpc

from headrace_broker.app import Broker
from headrace_core.metadata import MetadataDelta, MetadataImage
from headrace_core.node.config import NodeConfig
from headrace_core.types import TopicPartition
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc
from tests.worlds.broker_world import WAIT_S, Cluster

ORDERS = TopicPartition("orders", 0)


def ask(cluster: Cluster, method: str, request: object) -> None:
    """An admin call to the controller itself."""
    with grpc.insecure_channel(cluster.controller.address()) as channel:
        answer = getattr(admin_pb2_grpc.AdminStub(channel), method)(request, timeout=WAIT_S)
        assert not answer.results[0].error.code, answer


def delete(cluster: Cluster) -> None:
    ask(cluster, "DeleteTopics", admin_pb2.DeleteTopicsRequest(topics=["orders"]))


def create(cluster: Cluster) -> None:
    new = admin_pb2.NewTopic(name="orders", partitions=1, replication_factor=1)
    ask(cluster, "CreateTopics", admin_pb2.CreateTopicsRequest(topics=[new]))


def test_a_topic_deleted_while_the_first_image_is_put_into_force_takes_its_records_with_it(make_cluster):
    cluster = make_cluster()
    cluster.topic("orders").produce(b"old")
    assert cluster.broker.terminate() == 0
    answered = asyncio.Event()

    class Listening(Broker):
        async def _metadata_changed(self, image: MetadataImage, delta: MetadataDelta) -> None:
            if delta.removed_topics:
                answered.set()
            await super()._metadata_changed(image, delta)

    async def scenario() -> None:
        broker = Listening(NodeConfig.from_properties(cluster.broker.keys, role="broker"))
        apply_all = broker.roles.apply_all

        async def slow_apply_all(image: MetadataImage, former: MetadataImage) -> None:
            assert image.topic("orders") is not None
            await asyncio.to_thread(delete, cluster)
            await answered.wait()
            await apply_all(image, former)

        broker.roles.apply_all = slow_apply_all  # type: ignore[method-assign]
        try:
            await broker.start()
            before = broker.context.metadata.applied_offset
            await asyncio.to_thread(create, cluster)
            await broker.context.metadata.wait_for(before + 1, 10_000)
            log = broker.partitions.leader(ORDERS).log
            assert (log.log_end_offset, log.topic_id is not None) == (0, True)
        finally:
            await broker.stop()

    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 3 * WAIT_S)

    asyncio.run(bounded())


def test_controllers_with_an_older_state_of_the_metadata_cost_no_records(make_cluster):
    """The broker was killed, and its saved metadata is older than the controllers' backup. So the lost topic is unknown
    to it, too."""
    cluster = make_cluster()
    controller, broker = cluster.controller, cluster.broker
    known = [cluster.topic("payments")]
    known[0].produce(b"known")
    assert broker.terminate() == 0  # saves the metadata
    cluster.restart()
    known.append(cluster.topic("refunds"))
    known[1].produce(b"known")
    disk, backup = controller.data, controller.directory / "backup"
    controller.kill()
    shutil.copytree(disk, backup)
    controller.start()
    cluster.topic("orders").produce(b"precious")
    broker.kill()
    controller.kill()
    shutil.rmtree(disk)
    backup.rename(disk)
    controller.start()
    cluster.restart()
    (aside,) = broker.data.glob("orders-0.*-stray")
    assert b"precious" in (aside / "00000000000000000000.log").read_bytes()
    assert "PartitionSetAside partition=orders-0" in broker.log()
    assert [each.read() for each in known] == [[b"known"], [b"known"]]
