"""Elections over the wire: a real controller, and brokers that only hold a session by heartbeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc.aio

from headrace_core.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    FencedLeaderEpochError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)
from headrace_core.membership.broker_session import BrokerRegistration, BrokerSession
from headrace_core.membership.metadata_follower import MetadataFollower
from headrace_core.metadata import MetadataImage, PartitionImage
from headrace_core.node.ids import random_id
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, cluster_pb2, cluster_pb2_grpc
from tests.worlds.waiting import check_took

Make = Callable[..., Any]
WAIT_S = 60


class StandIn:
    """A broker without logs; ``leave`` breaks its connections silently."""

    def __init__(self, address: str, directory: bytes, **registration: Any) -> None:
        self.session = BrokerSession(
            [address],
            BrokerRegistration(
                cluster_id="scenario",
                incarnation_id=random_id(),
                directory_ids=(directory,),
                endpoints=(("client", "127.0.0.1", 9095),),
                **registration,
            ),
            heartbeat_interval_ms=600_000,
            answer_timeout_ms=10_000,
        )
        self.task: asyncio.Task[None] | None = None

    async def join(self, follower: MetadataFollower) -> StandIn:
        registered = await self.session.register()
        self.task = asyncio.create_task(self.session.run())
        image = await follower.wait_applied(registered.metadata_offset, WAIT_S)
        self.session.applied(image.next_offset)
        async with asyncio.timeout(WAIT_S):
            await self.session.wait_unfenced()
        return self

    async def leave(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def test_a_broker_that_is_gone_is_fenced_long_before_its_session_ends_and_elections_can_be_asked_for(
    make_controller: Make,
) -> None:
    controller = make_controller(broker_session_timeout_ms="90000")
    controller.start()
    disk = random_id()

    async def live() -> None:
        follower = MetadataFollower([controller.internal], "scenario")
        following = asyncio.create_task(follower.run())
        channel = grpc.aio.insecure_channel(controller.internal)
        admin: Any = admin_pb2_grpc.AdminStub(channel)
        cluster: Any = cluster_pb2_grpc.ClusterStub(channel)

        async def until(condition: Callable[[MetadataImage], bool]) -> MetadataImage:
            async with asyncio.timeout(WAIT_S):
                while not condition(follower.image):
                    await follower.wait_applied(follower.image.next_offset + 1)
            return follower.image

        async def elect(kind: int, name: str = "t") -> int:
            request = admin_pb2.ElectLeadersRequest(
                election_type=kind,  # type: ignore[arg-type]
                partitions=[admin_pb2.TopicPartitions(topic=name, partitions=[0])],
            )
            answer = await admin.ElectLeaders(request, timeout=WAIT_S)
            await follower.wait_applied(answer.metadata_offset, WAIT_S)
            return int(answer.results[0].error.code)

        def partition() -> PartitionImage:
            topic = follower.image.topic("t")
            assert topic is not None
            return topic.partitions[0]

        try:
            broker = await StandIn(controller.internal, disk).join(follower)
            new = admin_pb2.NewTopic(name="t", partitions=1, replication_factor=1)
            created = await admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]), timeout=WAIT_S)
            await follower.wait_applied(created.metadata_offset, WAIT_S)
            assert await elect(admin_pb2.ELECTION_TYPE_PREFERRED) == ElectionNotNeededError.number
            assert await elect(admin_pb2.ELECTION_TYPE_PREFERRED, "nowhere") == UnknownTopicOrPartitionError.number

            left = time.monotonic()
            await broker.leave()
            await until(lambda image: image.brokers[1].fenced)
            fenced_s = time.monotonic() - left
            print(f"fenced {fenced_s * 1_000:.0f} ms after its connection broke")
            check_took(fenced_s, 45, "the session is 90 s, the grace half a second")
            assert (partition().leader, partition().isr, partition().elr) == (-1, (), (1,))
            assert await elect(admin_pb2.ELECTION_TYPE_UNCLEAN) == EligibleLeadersNotAvailableError.number

            epoch = broker.session.registered.broker_epoch
            again = await StandIn(controller.internal, disk, previous_broker_epoch=epoch).join(follower)
            await until(lambda image: not image.brokers[1].fenced)
            assert (partition().leader, partition().isr, partition().elr) == (1, (1,), ())

            async def alter(leader_epoch: int, isr: list[int]) -> Any:
                registered = again.session.registered
                answer = await cluster.AlterPartition(
                    cluster_pb2.AlterPartitionRequest(
                        broker_id=1,
                        broker_epoch=registered.broker_epoch,
                        metadata_offset=follower.image.next_offset,
                        topics=[
                            cluster_pb2.AlterPartitionTopic(
                                topic_id=created.results[0].topic_id,
                                partitions=[
                                    cluster_pb2.AlteredPartition(
                                        partition=0,
                                        leader_epoch=leader_epoch,
                                        partition_epoch=partition().partition_epoch,
                                        isr=[
                                            cluster_pb2.IsrMember(broker_id=each, broker_epoch=registered.broker_epoch)
                                            for each in isr
                                        ],
                                    )
                                ],
                            )
                        ],
                    ),
                    timeout=WAIT_S,
                )
                return answer.results[0]

            now = partition()
            same = await alter(now.leader_epoch, [1])
            assert (same.error.code, same.leader_id, list(same.isr)) == (0, 1, [1])
            assert same.partition_epoch == now.partition_epoch
            assert (await alter(now.leader_epoch - 1, [1])).error.code == FencedLeaderEpochError.number
            assert (await alter(now.leader_epoch, [])).error.code == InvalidRequestError.number
            await again.leave()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            await channel.close()

    asyncio.run(live())
