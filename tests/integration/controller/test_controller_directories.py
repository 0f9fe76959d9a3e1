"""Directories over the wire: a real controller, and a broker that only has a session with heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from headrace_core.errors import LogDirNotFoundError, StaleBrokerEpochError, UnknownTopicIdError
from headrace_core.membership.broker_session import BrokerRegistration, BrokerSession, CannotLead
from headrace_core.membership.metadata_follower import MetadataFollower
from headrace_core.metadata import MetadataDelta, MetadataImage, PartitionImage
from headrace_core.node.ids import random_id
from headrace_core.types import NO_LEADER
from headrace_protos.v1 import admin_pb2, admin_pb2_grpc, cluster_pb2, cluster_pb2_grpc

Make = Callable[..., Any]
WAIT_S = 60


class StandIn:
    """A broker without logs: it registers with ``directories``, follows the metadata, heartbeats."""

    def __init__(self, address: str, *directories: bytes) -> None:
        self.follower = MetadataFollower([address], "scenario", on_change=self._on_change)
        #: The assignments that the broker reports. ``session.hurry`` reports the assignments at once.
        self.cannot_lead: list[CannotLead] = []
        self.session = BrokerSession(
            [address],
            BrokerRegistration(
                cluster_id="scenario",
                incarnation_id=random_id(),
                directory_ids=directories,
                endpoints=(("client", "127.0.0.1", 9095),),
            ),
            # The interval is long, so that the test can distinguish an immediate heartbeat from a regular one.
            heartbeat_interval_ms=600_000,
            answer_timeout_ms=10_000,
            cannot_lead=lambda: self.cannot_lead,
        )
        self.channel = grpc.aio.insecure_channel(address)
        self.cluster: Any = cluster_pb2_grpc.ClusterStub(self.channel)
        self.admin: Any = admin_pb2_grpc.AdminStub(self.channel)
        self.tasks: list[asyncio.Task[None]] = []

    async def _on_change(self, image: MetadataImage, delta: MetadataDelta) -> None:
        self.session.applied(image.next_offset)

    async def __aenter__(self) -> StandIn:
        self.tasks.append(asyncio.create_task(self.follower.run()))
        await self.session.register()
        self.tasks.append(asyncio.create_task(self.session.run()))
        async with asyncio.timeout(WAIT_S):
            await self.session.wait_unfenced()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.channel.close()

    async def topic(self, name: str, partitions: int, *, copies: int = 1) -> bytes:
        new = admin_pb2.NewTopic(name=name, partitions=partitions, replication_factor=copies)
        answer = await self.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]), timeout=WAIT_S)
        assert not answer.results[0].error.code, answer
        return bytes(answer.results[0].topic_id)

    async def assign(self, topic_id: bytes, where: dict[bytes, list[int]], *, epoch: int | None = None) -> Any:
        """Return the response when this broker has applied the effect of the request."""
        registered = self.session.registered
        request = cluster_pb2.AssignReplicasToDirsRequest(
            broker_id=registered.broker_id,
            broker_epoch=registered.broker_epoch if epoch is None else epoch,
            directories=[
                cluster_pb2.DirectoryAssignment(
                    directory_id=directory,
                    topics=[cluster_pb2.AssignedTopic(topic_id=topic_id, partitions=partitions)],
                )
                for directory, partitions in where.items()
            ],
        )
        answer = await self.cluster.AssignReplicasToDirs(request, timeout=WAIT_S)
        await self.follower.wait_applied(answer.metadata_offset)
        return answer

    async def until(self, condition: Callable[[MetadataImage], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition(self.follower.image):
                await self.follower.wait_applied(self.follower.image.next_offset + 1)

    def partitions(self, topic_id: bytes) -> tuple[PartitionImage, ...]:
        return self.follower.image.topics[topic_id].partitions


def test_a_failed_directory_is_known_at_once_and_outlives_the_controller(make_controller: Make) -> None:
    controller = make_controller(broker_session_timeout_ms="90000")
    controller.start()
    one, two = random_id(), random_id()

    async def live() -> None:
        async with StandIn(controller.internal, one, two) as broker:
            topic_id = await broker.topic("t", 4)
            answer = await broker.assign(topic_id, {one: [0, 1], two: [2, 3]})
            assert not answer.refused
            assert [each.directories for each in broker.partitions(topic_id)] == [(one,), (one,), (two,), (two,)]
            broker.session.directories_failed([two])
            await broker.until(lambda image: image.brokers[1].offline_directories == (two,))
            assert [each.leader for each in broker.partitions(topic_id)] == [1, 1, NO_LEADER, NO_LEADER]
            assert not broker.session.fenced
            offset = broker.follower.image.next_offset
            controller.kill()
            controller.start()
            # A new heartbeat stream names the directory again: no change.
            async with StandIn(controller.internal, random_id()) as other:
                await broker.until(lambda image: image.next_offset > offset and 2 in image.brokers)
                await other.until(lambda image: image.next_offset >= broker.follower.image.next_offset)
                assert other.follower.image.brokers[1].offline_directories == (two,)
                assert [each.leader for each in other.partitions(topic_id)] == [1, 1, NO_LEADER, NO_LEADER]
        async with StandIn(controller.internal, one, two) as again:
            await again.until(lambda image: not image.brokers[1].fenced)
            assert again.session.registered.broker_id == 1
            assert [each.leader for each in again.partitions(topic_id)] == [1] * 4

    asyncio.run(live())
    assert "BrokerDirectoriesOffline broker_id=1" in controller.log()


def test_another_replica_leads_at_once_when_the_leaders_directory_fails(make_controller: Make) -> None:
    """No session times out, and no test waits for a regular heartbeat, because the stand-ins send heartbeats every ten
    minutes."""
    controller = make_controller(broker_session_timeout_ms="90000")
    controller.start()
    sound, failing = random_id(), random_id()

    async def live() -> None:
        async with (
            StandIn(controller.internal, sound, failing) as one,
            StandIn(controller.internal, random_id()) as two,
        ):
            topic_id = await one.topic("t", 4, copies=2)
            assigned = await one.assign(topic_id, {sound: [0, 1], failing: [2, 3]})
            await two.follower.wait_applied(assigned.metadata_offset)
            before = two.partitions(topic_id)
            assert {1, 2} == {each.leader for each in before[2:]}, "in the failing directory one leads and one follows"
            one.session.directories_failed([failing])
            await two.until(lambda image: image.brokers[1].offline_directories == (failing,))
            after = two.partitions(topic_id)
            assert [(each.leader, each.isr) for each in after[2:]] == [(2, (2,))] * 2
            assert after[:2] == before[:2]
            assert not one.session.fenced

    asyncio.run(live())


def test_a_broker_that_cannot_lead_hands_over_at_once_and_the_next_controller_knows_too(make_controller: Make) -> None:
    controller = make_controller(broker_session_timeout_ms="90000")
    controller.start()

    async def live() -> None:
        async with StandIn(controller.internal, random_id()) as one, StandIn(controller.internal, random_id()) as two:
            topic_id = await one.topic("t", 4, copies=2)

            def led_by(*brokers: int) -> Callable[[MetadataImage], bool]:
                return lambda image: (
                    topic_id in image.topics
                    and {each.leader for each in image.topics[topic_id].partitions} == {*brokers}
                )

            await two.until(led_by(1, 2))
            one.cannot_lead = [CannotLead("NO_DESCRIPTORS")]
            one.session.hurry()
            await two.until(led_by(2))
            assert all(len(each.isr) == 2 for each in two.partitions(topic_id))
            one.cannot_lead, two.cannot_lead = [], [CannotLead("NO_DESCRIPTORS")]
            one.session.hurry()
            two.session.hurry()
            await two.until(led_by(1))
            controller.kill()
            controller.start()
            again = await one.topic("again", 4, copies=2)
            await two.until(
                lambda image: again in image.topics and {each.leader for each in image.topics[again].partitions} == {1}
            )

    asyncio.run(live())


def test_wrong_and_hostile_assignments_are_answered_and_change_nothing(make_controller: Make) -> None:
    controller = make_controller()
    controller.start()
    one, two = random_id(), random_id()

    async def live() -> None:
        async with StandIn(controller.internal, one, two) as broker:
            topic_id = await broker.topic("t", 2)
            await broker.until(lambda image: topic_id in image.topics)
            offset = broker.follower.image.next_offset
            epoch = broker.session.registered.broker_epoch
            with pytest.raises(grpc.aio.AioRpcError, match=StaleBrokerEpochError.code):
                await broker.assign(topic_id, {one: [0]}, epoch=epoch - 1)
            with pytest.raises(grpc.aio.AioRpcError, match="POLICY_VIOLATION"):
                await broker.assign(topic_id, {one: list(range(20_000))})
            for topic, directory, partition, code in (
                (b"", one, 0, UnknownTopicIdError.number),
                (topic_id[:-1], one, 0, UnknownTopicIdError.number),
                (topic_id, one, -1, 3),
                (topic_id, one, 2**31 - 1, 3),
                (topic_id, b"", 0, LogDirNotFoundError.number),
                (topic_id, one * 2, 0, LogDirNotFoundError.number),
                (topic_id, bytes(16), 0, LogDirNotFoundError.number),
            ):
                (refused,) = (await broker.assign(topic, {directory: [partition]})).refused
                assert (refused.topic_id, refused.partition, refused.error.code) == (topic, partition, code)
            assert not (await broker.assign(topic_id, {})).refused
            broker.session.directories_failed([b"", bytes(16), random_id(), two])
            await broker.until(lambda image: bool(image.brokers[1].offline_directories))
            assert broker.follower.image.brokers[1].offline_directories == (two,), "the others are not the broker's"
            assert broker.follower.image.next_offset == offset + 1

    asyncio.run(live())
