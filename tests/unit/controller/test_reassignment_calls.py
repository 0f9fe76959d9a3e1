"""Calls that move replicas, drain brokers, change levels and allocate producer ids: real controllers, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace_core.errors import (
    BrokerIdNotRegisteredError,
    InconsistentClusterIdError,
    InvalidRequestError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)
from headrace_core.metadata import EMPTY_IMAGE, METADATA_VERSION
from headrace_core.metadata.codec import decode_batches
from headrace_core.rpc import ChannelPurpose, error_from_rpc, open_channel
from headrace_protos.v1 import admin_pb2, cluster_pb2, cluster_pb2_grpc, common_pb2
from tests.worlds.controllers_world import CLUSTER_ID, Controller, with_controllers

WAIT_S = 60


async def cluster_call(controller: Controller, method: str, request: Any) -> Any:
    async with open_channel(controller.internal, ChannelPurpose.CONTROL) as channel:
        stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        try:
            return await getattr(stub, method)(request, timeout=WAIT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, controller.internal) from None


async def refusal(controller: Controller, method: str, request: Any) -> str:
    """The error of the call, or "" without an error."""
    try:
        await controller.call(method, request)
    except InvalidRequestError as error:
        return str(error)
    return ""


@contextlib.asynccontextmanager
async def live_broker(controller: Controller, *, level: int = METADATA_VERSION) -> AsyncIterator[Any]:
    """A broker that only makes calls. Its stream of heartbeats stays open: half a second after the stream's end the
    broker is fenced."""
    request = cluster_pb2.RegisterBrokerRequest(
        cluster_id=CLUSTER_ID, incarnation_id=os.urandom(16), directory_ids=[os.urandom(16)], wanted_broker_id=-1
    )
    request.endpoints.add(listener="client", host="127.0.0.1", port=9)
    request.features.add(name="metadata.version", min_level=1, max_level=level)
    registered = await cluster_call(controller, "RegisterBroker", request)
    beat = cluster_pb2.BrokerHeartbeatRequest(
        broker_id=registered.broker_id,
        broker_epoch=registered.broker_epoch,
        metadata_offset=registered.metadata_offset + 1_000,
    )
    async with open_channel(controller.internal, ChannelPurpose.HEARTBEAT) as channel:
        call = cluster_pb2_grpc.ClusterStub(channel).BrokerHeartbeat()  # type: ignore[no-untyped-call]
        await call.write(beat)
        assert not (await call.read()).fenced
        yield registered
        await call.done_writing()


async def create(controller: Controller, name: str, *replicas: list[int]) -> None:
    assignments = [
        admin_pb2.ReplicaAssignment(partition=number, broker_ids=each) for number, each in enumerate(replicas)
    ]
    topic = admin_pb2.NewTopic(name=name, assignments=assignments)
    (result,) = (await controller.call("CreateTopics", admin_pb2.CreateTopicsRequest(topics=[topic]))).results
    assert not result.error.code, result.error.message


async def reassign(controller: Controller, *items: admin_pb2.PartitionReassignment, **options: Any) -> list[str]:
    """The error's name for each item, "" if there is none."""
    request = admin_pb2.AlterPartitionReassignmentsRequest(reassignments=items, **options)
    answer = await controller.call("AlterPartitionReassignments", request)
    assert answer.metadata_offset > 0
    assert [(each.topic, each.partition) for each in answer.results] == [(each.topic, each.partition) for each in items]
    return [
        common_pb2.ErrorCode.Name(each.error.code).removeprefix("ERROR_CODE_") if each.error.code else ""
        for each in answer.results
    ]


def item(topic: str, partition: int, *replicas: int, cancel: bool = False) -> admin_pb2.PartitionReassignment:
    return admin_pb2.PartitionReassignment(topic=topic, partition=partition, replicas=replicas, cancel=cancel)


def test_reassignments_begin_are_listed_and_cancelled_and_refused_by_name(tmp_path: Path) -> None:
    async def test(controller: Controller) -> None:
        async with live_broker(controller), live_broker(controller):
            await reassigned(controller)

    async def reassigned(controller: Controller) -> None:
        await create(controller, "t", [1], [2])
        errors = await reassign(
            controller,
            item("t", 0, 1, 2),
            item("t", 1, 2),
            item("t", 2, 1),
            item("none", 0, 1),
            item("t", 0, cancel=True),
        )
        assert errors == [
            "INVALID_REQUEST",
            "",
            "UNKNOWN_TOPIC_OR_PARTITION",
            "UNKNOWN_TOPIC_OR_PARTITION",
            "INVALID_REQUEST",
        ]
        assert await reassign(controller, item("t", 0, 1, 2), keep_replication_factor=True) == [
            "INVALID_REPLICATION_FACTOR"
        ]
        assert await reassign(controller, item("t", 0, 7)) == ["INVALID_REPLICA_ASSIGNMENT"]
        assert await reassign(controller, item("t", 0)) == ["INVALID_REPLICA_ASSIGNMENT"]
        assert await reassign(controller, item("t", 0, cancel=True)) == ["NO_REASSIGNMENT_IN_PROGRESS"]
        assert await reassign(controller, throttle_bytes_per_s=5) == []
        with pytest.raises(InvalidRequestError, match="either replicas or cancel"):
            await reassign(controller, item("t", 0, 1, cancel=True))
        with pytest.raises(InvalidRequestError, match="throttle_bytes_per_s=-1"):
            await reassign(controller, throttle_bytes_per_s=-1)
        for request in (
            admin_pb2.ListPartitionReassignmentsRequest(),
            admin_pb2.ListPartitionReassignmentsRequest(
                partitions=[admin_pb2.TopicPartitions(topic="t", partitions=[0, 9])]
            ),
        ):
            assert not (await controller.call("ListPartitionReassignments", request)).reassignments
        assert await reassign(controller, item("t", 0, 2, 1)) == [""], "a replica to copy"
        (under_way,) = (
            await controller.call("ListPartitionReassignments", admin_pb2.ListPartitionReassignmentsRequest())
        ).reassignments
        assert (under_way.topic, under_way.partition) == ("t", 0)
        assert (list(under_way.replicas), list(under_way.adding_replicas)) == ([2, 1], [2])
        assert await reassign(controller, item("t", 0, cancel=True)) == [""]

    with_controllers(tmp_path, 1, 0, test)


def test_a_broker_is_drained_and_unregistered_and_what_cannot_be_is_refused(tmp_path: Path) -> None:
    async def test(controller: Controller) -> None:
        async with live_broker(controller), live_broker(controller):
            await create(controller, "t", [1])
            answer = await controller.call("DrainBroker", admin_pb2.DrainBrokerRequest(broker_id=2))
            assert answer.replicas_left == 0
            assert answer.metadata_offset > 0
            with pytest.raises(BrokerIdNotRegisteredError):
                await controller.call("DrainBroker", admin_pb2.DrainBrokerRequest(broker_id=9))
            await create(controller, "u", [1])
            with pytest.raises(InvalidRequestError, match="broker 1 has 2 replica"):
                await controller.call("UnregisterBroker", admin_pb2.UnregisterBrokerRequest(broker_id=1))
        gone = admin_pb2.UnregisterBrokerRequest(broker_id=2)
        while "alive" in (refused := await refusal(controller, "UnregisterBroker", gone)):  # noqa: ASYNC110  # its grace
            await asyncio.sleep(0.02)
        assert refused == ""
        with pytest.raises(BrokerIdNotRegisteredError):
            await controller.call("UnregisterBroker", gone)
        await controller.call("DrainBroker", admin_pb2.DrainBrokerRequest(broker_id=1, cancel=True))

    with_controllers(tmp_path, 1, 0, test)


def test_producer_ids_come_in_blocks_that_never_overlap(tmp_path: Path) -> None:
    async def test(controller: Controller) -> None:
        async with live_broker(controller) as broker:
            pass
        request = cluster_pb2.AllocateProducerIdsRequest(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
        blocks = await asyncio.gather(*(cluster_call(controller, "AllocateProducerIds", request) for _ in range(5)))
        assert sorted((block.first, block.length) for block in blocks) == [(first * 1_000, 1_000) for first in range(5)]
        stale = cluster_pb2.AllocateProducerIdsRequest(broker_id=1, broker_epoch=broker.broker_epoch + 1)
        with pytest.raises(StaleBrokerEpochError):
            await cluster_call(controller, "AllocateProducerIds", stale)

    with_controllers(tmp_path, 1, 0, test)


def test_levels_are_described_and_changed_and_all_three_controllers_have_said_what_they_understand(
    tmp_path: Path,
) -> None:
    async def test(*controllers: Controller) -> None:
        def update(level: int, how: int = 0, **options: Any) -> Any:
            item = admin_pb2.FeatureUpdate(name="metadata.version", level=level, upgrade_type=how)  # type: ignore[arg-type]
            return controllers[0].call("UpdateFeatures", admin_pb2.UpdateFeaturesRequest(updates=[item], **options))

        async def level() -> tuple[int, int, int]:
            answer = await controllers[0].call("DescribeFeatures", admin_pb2.DescribeFeaturesRequest())
            (feature,) = answer.features
            assert feature.name == "metadata.version"
            return feature.finalized_level, feature.min_level, feature.max_level

        async with asyncio.timeout(WAIT_S):  # any controller answers from its applied metadata
            while await level() != (3, 1, 3):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        with pytest.raises(UnsupportedVersionError, match="1 to 1, but the cluster is at level 3"):
            async with live_broker(await leader_of(controllers), level=1):
                pass
        (result,) = (await update(9)).results
        assert result.error.code == common_pb2.ERROR_CODE_INVALID_UPDATE_VERSION
        assert "supports levels 1 to 3" in result.error.message
        (result,) = (await update(1, admin_pb2.FEATURE_UPGRADE_TYPE_SAFE_DOWNGRADE, validate_only=True)).results
        assert not result.error.code
        assert await level() == (3, 1, 3)
        with pytest.raises(InvalidRequestError, match="upgrade type 7"):
            await update(2, 7)
        leader = await leader_of(controllers)
        async with asyncio.timeout(WAIT_S):
            while len(await registered_controllers(leader)) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        wrong = cluster_pb2.RegisterControllerRequest(cluster_id="other", controller_id=7, directory_id=bytes(16))
        with pytest.raises(InconsistentClusterIdError):
            await cluster_call(leader, "RegisterController", wrong)

    with_controllers(tmp_path, 3, 0, test)


async def leader_of(controllers: tuple[Controller, ...]) -> Controller:
    described = await controllers[0].describe_once(lambda found: found.leader_id > 0)
    return next(each for each in controllers if each.node_id == described.leader_id)


async def registered_controllers(leader: Controller) -> set[int]:
    """Read the values as an observer of the metadata log sees them."""
    async with open_channel(leader.internal, ChannelPurpose.CONTROL) as channel:
        stub = cluster_pb2_grpc.ClusterStub(channel)  # type: ignore[no-untyped-call]
        call = stub.FollowMetadata(cluster_pb2.FollowMetadataRequest(cluster_id=CLUSTER_ID))
        image = EMPTY_IMAGE
        async for message in call:
            for batch in decode_batches(message.records):
                image = image.apply(batch.records, batch.next_offset, batch.epoch)
            if image.next_offset >= message.committed_offset > 0:
                return set(image.ledger.controllers)
    return set()
