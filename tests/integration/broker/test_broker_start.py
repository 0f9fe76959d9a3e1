"""A broker misses no change that happens in the cluster while it starts."""

from __future__ import annotations

import asyncio

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

        async def slow_apply_all(image: MetadataImage) -> None:
            assert image.topic("orders") is not None
            await asyncio.to_thread(delete, cluster)
            await answered.wait()
            await apply_all(image)

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
